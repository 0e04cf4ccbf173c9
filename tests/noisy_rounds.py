"""Invented comparisons: logarithms of speeds that are all alike, but for their noise."""

from collections.abc import Iterator

import numpy as np

LASTING = 3.0  # the standard deviation of what makes a round slow for all; a quiet speed's own noise has 1
SHARED = 3.0  # that of what speeds of a kind share, such as one library's


def comparisons(
    rng: np.random.Generator, cases: int, speeds: int, rounds: int
) -> Iterator[tuple[str, np.ndarray, list[int]]]:
    """Yield what the noise is, logarithms (cases, speeds, rounds), and which speeds to compare with the first."""
    noise = {"equal": np.ones(speeds)}
    which = {"reference": slice(0, 1), "last": slice(speeds - 1, speeds), "half": slice(speeds // 2, speeds)}
    for times in (3, 13):
        for name, noisy in which.items():
            noise[f"{name} x {times}"] = np.ones(speeds)
            noise[f"{name} x {times}"][noisy] = times
    others = sorted({1, speeds - 1})
    for name, each in noise.items():
        yield name, _draw(rng, (cases, 1, rounds), LASTING) + _draw(rng, (cases, speeds, rounds), each[:, None]), others
    kinds = _draw(rng, (cases, 2, rounds), SHARED)[:, np.arange(speeds) * 2 // speeds]
    lasting = _draw(rng, (cases, 1, rounds), LASTING)
    yield "two kinds", lasting + kinds + _draw(rng, (cases, speeds, rounds), 1.0), others


def launches(rng: np.random.Generator, cases: int, rounds: int, slow: float) -> np.ndarray:
    """Return speeds (cases, 2, rounds) that are alike; a share of the launches has a third of the others' speed."""
    shape = (cases, 2, rounds)
    return np.exp(_draw(rng, shape, 0.03)) / np.where(rng.random(shape) < slow, 3.0, 1.0)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], deviation: float | np.ndarray) -> np.ndarray:
    return deviation * rng.normal(size=shape)
