"""Run networks of 8-bit integers in C (lab 04): a student's `layer` in a program that classifies images."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labkit import native
from labkit.system import files

PROGRAM = Path(__file__).with_suffix(".c")  # its head lists its commands
ALIGNED = 64  # codes: rows of weights end at a multiple of that, so that vectors of any length fill them
KINDS = ("pool", "convolution", "dense")


class Layer(NamedTuple):
    """A layer: its kind, one of `KINDS`, and unless it is a pool, codes (inputs, outputs), biases and factors."""

    kind: str
    codes: np.ndarray = np.zeros((0, 0))
    bias: np.ndarray = np.zeros(0)
    factor: np.ndarray = np.zeros(0)


def build(file: str | Path, flags: Sequence[str] = native.FAST) -> Path:
    """Return the program with the function `layer` of a C file."""
    return native.build(file, PROGRAM, flags=(*flags, f"-I{PROGRAM.parent}"))


def run(
    program: Path, layers: Sequence[Layer], images: np.ndarray, threads: int | None = None, at_least_s: float = 0.3
) -> tuple[np.ndarray, float]:
    """Return the last layer's codes for square images of uint8, and the images/s of the median pass over them.

    Images are (n, side, side, channels). Convolutions are 3 × 3 with 'same' padding; pools take the largest of 2 × 2.
    """
    with files.temporary_folder() as folder:
        network, batch, result = folder / "network", folder / "images", folder / "codes"
        network.write_bytes(b"".join(_parts(layers, *images.shape[2:])))
        batch.write_bytes(np.asarray(images, np.uint8).tobytes())
        lines = native.run(program, "run", network, batch, result, at_least_s, threads=threads)
        codes = np.fromfile(result, np.uint8).reshape(len(images), -1)
    return codes, len(images) / float(lines[0])


def _parts(layers: Sequence[Layer], side: int, channels: int) -> list[bytes]:
    """Return a network as the program reads it."""
    parts = [np.array([len(layers), side, channels], np.int32).tobytes()]
    for kind, codes, bias, factor in layers:
        padded = np.pad(np.asarray(codes, np.int8), ((0, -len(codes) % ALIGNED), (0, 0))).T
        shape = np.array([KINDS.index(kind), *padded.shape[::-1]], np.int32)
        arrays = shape, padded, np.asarray(bias, np.int32), np.asarray(factor, np.float32)
        parts += [array.tobytes() for array in arrays]
    return parts
