"""Handwritten digits for the MNIST labs: MNIST if it is on this machine, otherwise 5,000 of it or scikit-learn's."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.data.mnist import REGISTRY, File, Part, data_folder, read_5k, read_mnist, read_registry
from labkit.system.errors import LabError
from labkit.system.paths import shown

# scikit-learn and SciPy are imported where they are used: every rank imports this module, and few need either.


@dataclass(frozen=True, eq=False)
class Digits:
    """Handwritten digits, ready to train on.

    Attributes
    ----------
    x_train, x_test : (n, 28, 28, 1) float32 in 0..1, light strokes on black
    y_train, y_test : (n,) int64 in 0..9
    source : one sentence for the student: which set this is and, if it is not MNIST, why
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str


def load_digits(
    n_train: int | None = None,
    n_test: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
    registry: Path = REGISTRY,
    real: bool = False,
) -> Digits:
    """Return the digits for the MNIST labs, from this machine only, without network access.

    MNIST if `mnist.npz` is in `folder` or in Keras' cache; otherwise 5,000 of its digits (`real`), or scikit-learn's
    1,797, enlarged to 28×28, rotated, shifted and scaled, with noise.
    The same arguments give the same bytes, on every rank. Nothing is written.

    Parameters
    ----------
    n_train, n_test : int, optional
        The numbers of digits, balanced over the classes where possible. By default all of MNIST, its 4,000 and 1,000
        real digits, or 8,000 and 2,000 of scikit-learn's. Neither number changes what the other selects.
    seed : int
        The seed of the selection, its order, and the variations of the built-in digits.
    folder : Path, optional
        The folder to search first: by default the environment variable `LAB_DATA`, else the checkout's `data/`.
    registry : Path
        The TOML file with the size and SHA-256 of `mnist.npz`.
    real : bool
        Whether to use 5,000 of MNIST's digits, not scikit-learn's, if all of MNIST isn't on this machine. More digits
        than there are of a part are variants: rotated, shifted and scaled.

    Raises
    ------
    LabError
        A file is damaged (it is named, and never skipped for another set), or a number is out of range.
    """
    folder = data_folder(folder)
    built_in = _real if real else _built_in
    originals = _mnist(folder, read_registry(registry)) or built_in(f"MNIST is not in {shown(folder)}/")
    n_train = _number("n_train", n_train, originals.default[0], originals.maximum[0])
    n_test = _number("n_test", n_test, originals.default[1], originals.maximum[1])
    _number("seed", seed, 0, 2**63, minimum=0)
    # Separate random streams, so that the test digits don't depend on the number of training digits.
    train = _selected(originals.train, n_train, np.random.default_rng([seed, 0]), originals.render)
    test = _selected(originals.test, n_test, np.random.default_rng([seed, 1]), originals.render)
    source = f"{originals.title}: {n_train:,} training and {n_test:,} test digits, {originals.origin}."
    return Digits(*train, *test, source)


_Render = Callable[[Part, np.ndarray, np.random.Generator], np.ndarray]


@dataclass(frozen=True, eq=False)
class _Set:
    title: str
    origin: str
    train: Part
    test: Part
    default: tuple[int, int]  # the numbers of digits unless the lab passes them
    maximum: tuple[int, int]
    render: _Render  # originals and indices to (n, 28, 28) uint8


def _mnist(folder: Path, file: File) -> _Set | None:
    """Return MNIST; None if it is not on this machine."""
    if not (parts := read_mnist(folder, file)):
        return None
    train, test, where = parts
    numbers = len(train.labels), len(test.labels)
    return _Set("MNIST", f"read from {where}", train, test, numbers, numbers, _varied_if_repeated)


def _number(name: str, requested: int | None, default: int, maximum: int, minimum: int = 1) -> int:
    number = default if requested is None else requested
    if not isinstance(number, int | np.integer) or not minimum <= number <= maximum:
        raise LabError(f"{name}={requested!r} is not possible here: pass an integer from {minimum:,} to {maximum:,}.")
    return int(number)


def _selected(part: Part, n: int, rng: np.random.Generator, render: _Render) -> Part:
    """Return `n` images (n, 28, 28, 1) float32 in 0..1 and their labels (n,) int64."""
    chosen = _balanced(part.labels, n, rng)
    images = render(part, chosen, rng)
    return Part(images[..., np.newaxis] / np.float32(255), part.labels[chosen].astype(np.int64))


def _balanced(labels: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return `n` indices in random order, from each class alternately; all are used once before any is reused."""
    rounds = np.tile(np.arange(len(labels)), (math.ceil(n / len(labels)), 1))
    pool = rng.permuted(rounds, axis=1).ravel()
    turn = np.empty(len(pool), dtype=np.int64)
    for label in np.unique(labels):
        members = labels[pool] == label
        turn[members] = np.arange(members.sum())
    return rng.permutation(pool[np.argsort(turn, kind="stable")[:n]])


def _real(reason: str) -> _Set:
    train, test = _split(read_5k(), 1_000)
    return _Set(
        title="5,000 of MNIST's digits",
        origin=f"as {reason} (`./lab data fetch` downloads all 70,000)",
        train=train,
        test=test,
        default=(4_000, 1_000),
        maximum=(60_000, 10_000),
        render=_varied_if_repeated,
    )


def _varied_if_repeated(part: Part, chosen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    images = part.images[chosen]
    return images if len(chosen) <= len(part.labels) else _varied(images / 255, rng)


def _split(everything: Part, n_test: int) -> tuple[Part, Part]:
    """Return training and test originals, in a fixed split with an equal number of each class in the test."""
    test = _balanced(everything.labels, n_test, np.random.default_rng(0))
    train = np.setdiff1d(np.arange(len(everything.labels)), test)
    first, second = (Part(everything.images[part], everything.labels[part]) for part in (train, test))
    return first, second


def _built_in(reason: str) -> _Set:
    train, test = _originals()
    return _Set(
        title="scikit-learn's 1,797 handwritten digits, enlarged and varied",
        origin=f"because {reason} (`./lab data fetch` downloads it)",
        train=train,
        test=test,
        default=(8_000, 2_000),
        maximum=(60_000, 10_000),  # as MNIST, so that no lab works with one set and fails with the other
        render=lambda part, chosen, rng: _varied(part.images[chosen] / 16, rng, noise=0.1),
    )


def _originals() -> tuple[Part, Part]:
    """Return scikit-learn's digits, (n, 8, 8) float64 in 0..16, in a fixed split: 36 test digits of each class."""
    from sklearn.datasets import load_digits

    everything = load_digits()
    return _split(Part(everything.images, everything.target), 360)


def _varied(originals: np.ndarray, rng: np.random.Generator, noise: float = 0.0) -> np.ndarray:
    """Turn each of (n, 8, 8) or (n, 28, 28) float64 in 0..1 into its own variant, (n, 28, 28) uint8.

    As in MNIST, the digit fills a box of about 20×20 pixels. `noise` is a standard deviation. With these ranges a CNN
    of two convolutions and two dense layers (8,000 digits of scikit-learn's, batch 64) reached 92–94% in one epoch, 97%
    in three and 98% in five.
    """
    from scipy import ndimage

    n, width = originals.shape[:2]
    angle = np.deg2rad(rng.uniform(-10, 10, n))
    step = (8 / 20 if width == 8 else 1) * rng.uniform(1 / 1.1, 1.1, n)  # original pixels per new pixel
    shift = rng.uniform(-1.5, 1.5, (n, 2))  # new pixels
    grains = rng.normal(0, noise, (n, 28, 28))
    cos, sin = step * np.cos(angle), step * np.sin(angle)
    to_original = np.stack([np.stack([cos, -sin], axis=-1), np.stack([sin, cos], axis=-1)], axis=-2)

    # A border of background keeps the spline from smearing strokes that touch the edge over the new margin.
    splines = np.pad(originals, ((0, 0), (1, 1), (1, 1)))
    for axis in (1, 2):
        splines = ndimage.spline_filter1d(splines, axis=axis)
    old_centre, new_centre = (width + 1) / 2, 13.5
    images = np.empty((n, 28, 28))
    for spline, matrix, moved, image in zip(splines, to_original, shift, images, strict=True):
        offset = old_centre - matrix @ (new_centre + moved)
        ndimage.affine_transform(spline, matrix, offset, image.shape, image, prefilter=False)
    # 256 grey values, as MNIST has: numbers that two CPUs round differently in the last bit end in the same value.
    return np.rint(255 * np.clip(images + grains, 0, 1)).astype(np.uint8)
