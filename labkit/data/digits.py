"""Handwritten digits for the MNIST labs: MNIST if it is on this machine, otherwise 5,000 of its digits."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.data.mnist import REGISTRY, Part, data_folder, read_5k, read_mnist, read_registry
from labkit.system.errors import LabError
from labkit.system.paths import shown


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
    folder: Path | None = None,
    registry: Path = REGISTRY,
) -> Digits:
    """Return the digits for the MNIST labs, from this machine only, without network access.

    MNIST if `mnist.npz` is in `folder`; otherwise 5,000 of its digits. The same arguments give the same bytes, on every
    rank. Nothing is written.

    Parameters
    ----------
    n_train, n_test : int, optional
        The numbers of digits, balanced over the classes where possible; by default all of MNIST, or 4,000 and 1,000.
        Neither number changes what the other selects.
    folder : Path, optional
        The folder of `mnist.npz`: by default the environment variable `LAB_DATA`, else the checkout's `data/`.
    registry : Path
        The TOML file with the size and SHA-256 of `mnist.npz`.

    Raises
    ------
    LabError
        A file is damaged (it is named, and never skipped for another set), or a number is out of range.
    """
    folder, file = data_folder(folder), read_registry(registry)
    if originals := read_mnist(folder, file):
        title, origin = "MNIST", f"read from {shown(folder / file.name)}"
    else:
        title, originals = "5,000 of MNIST's digits", _split(read_5k(), 1_000)
        origin = f"as MNIST is not in {shown(folder)}/ (`./lab data fetch` downloads all 70,000)"
    n_train = _number("n_train", n_train, len(originals[0].labels))
    n_test = _number("n_test", n_test, len(originals[1].labels))
    # Separate random streams, so that the test digits don't depend on the number of training digits.
    train = _selected(originals[0], n_train, np.random.default_rng([0, 0]))
    test = _selected(originals[1], n_test, np.random.default_rng([0, 1]))
    return Digits(*train, *test, f"{title}: {n_train:,} training and {n_test:,} test digits, {origin}.")


def _number(name: str, requested: int | None, available: int) -> int:
    number = available if requested is None else requested
    if not isinstance(number, int | np.integer) or not 1 <= number <= available:
        raise LabError(f"{name}={requested!r} is not possible here: pass an integer from 1 to {available:,}.")
    return int(number)


def _selected(part: Part, n: int, rng: np.random.Generator) -> Part:
    """Return `n` images (n, 28, 28, 1) float32 in 0..1 and their labels (n,) int64."""
    chosen = _balanced(part.labels, n, rng)
    return Part(part.images[chosen][..., np.newaxis] / np.float32(255), part.labels[chosen].astype(np.int64))


def _balanced(labels: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return `n` indices in random order, from each class alternately."""
    pool = rng.permuted(np.arange(len(labels)))
    turn = np.empty(len(pool), dtype=np.int64)
    for label in np.unique(labels):
        members = labels[pool] == label
        turn[members] = np.arange(members.sum())
    return rng.permutation(pool[np.argsort(turn, kind="stable")[:n]])


def _split(everything: Part, n_test: int) -> tuple[Part, Part]:
    """Return training and test originals, in a fixed split with an equal number of each class in the test."""
    test = _balanced(everything.labels, n_test, np.random.default_rng(0))
    train = np.setdiff1d(np.arange(len(everything.labels)), test)
    first, second = (Part(everything.images[part], everything.labels[part]) for part in (train, test))
    return first, second
