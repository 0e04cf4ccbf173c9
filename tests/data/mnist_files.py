"""Synthetic sets in MNIST's layout, and a registry that takes them for the truth."""

import gzip
import hashlib
import io
import struct
from pathlib import Path

import numpy as np

from labkit.data.digits import Digits

NPZ = "mnist.npz"
IDX = tuple(f"{prefix}-{kind}-ubyte.gz" for prefix in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
KEYS = ("x_train", "y_train", "x_test", "y_test")


def mnist_arrays(n_train=60, n_test=30) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "x_train": rng.integers(0, 256, (n_train, 28, 28), dtype=np.uint8),
        "y_train": (np.arange(n_train) % 10).astype(np.uint8),
        "x_test": rng.integers(0, 256, (n_test, 28, 28), dtype=np.uint8),
        "y_test": (np.arange(n_test) % 10).astype(np.uint8),
    }


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def idx_bytes(array: np.ndarray, magic: bytes | None = None, shape=None, tail=b"") -> bytes:
    shape = array.shape if shape is None else shape
    magic = bytes([0, 0, 8, array.ndim]) if magic is None else magic
    return gzip.compress(magic + struct.pack(f">{len(shape)}I", *shape) + array.tobytes() + tail)


def idx_files(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: idx_bytes(arrays[key]) for name, key in zip(IDX, KEYS, strict=True)}


def register(path: Path, contents: dict[str, bytes], npz_mirrors=(), idx_mirrors=()) -> Path:
    """Write a registry that takes `contents` for the truth."""
    lines = []
    for form, names, mirrors in (("npz", (NPZ,), npz_mirrors), ("idx", IDX, idx_mirrors)):
        lines += ["[[mnist]]", f'form = "{form}"', f"mirrors = {list(mirrors)}", "files = ["]
        lines += [
            f'{{ name = "{name}", size = {len(contents[name])}, '
            f'sha256 = "{hashlib.sha256(contents[name]).hexdigest()}" }},'
            for name in names
        ]
        lines += ["]"]
    path.write_text("\n".join(lines))
    return path


def put(folder: Path, contents: dict[str, bytes], *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(contents[name])


def fingerprint(given: Digits) -> str:
    return hashlib.sha256(b"".join(getattr(given, key).tobytes() for key in KEYS)).hexdigest()


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


DAMAGE = {
    "truncated": lambda content: content[: len(content) // 2],
    "altered": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
    "empty": lambda content: b"",
    "trailing": lambda content: content + b"\0",
    "a web page": lambda content: b"<html>Please log in</html>".ljust(len(content)),
}
