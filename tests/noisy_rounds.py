"""Synthetic comparisons: logarithms of speeds that differ only by noise."""

from collections.abc import Iterator

import numpy as np

LASTING = 3.0  # standard deviation of noise that affects a whole round; a quiet speed's own noise has 1
SHARED = 3.0  # standard deviation of noise shared by a kind of speeds, such as one library's


def comparisons(
    rng: np.random.Generator, cases: int, speeds: int, rounds: int
) -> Iterator[tuple[str, np.ndarray, list[int]]]:
    """Yield the noise's name, logarithms (cases, speeds, rounds), and the indices to compare with the first speed."""
    noise = {"equal": np.ones(speeds)}
    which = {"reference": slice(0, 1), "last": slice(speeds - 1, speeds), "half": slice(speeds // 2, speeds)}
    for times in (3, 13):
        for name, noisy in which.items():
            noise[f"{name} x {times}"] = np.ones(speeds)
            noise[f"{name} x {times}"][noisy] = times
    others = sorted({1, speeds - 1})
    for name, deviations in noise.items():
        common = _draw(rng, (cases, 1, rounds), LASTING)
        yield name, common + _draw(rng, (cases, speeds, rounds), deviations[:, None]), others
    kinds = _draw(rng, (cases, 2, rounds), SHARED)[:, np.arange(speeds) * 2 // speeds]
    lasting = _draw(rng, (cases, 1, rounds), LASTING)
    yield "two kinds", lasting + kinds + _draw(rng, (cases, speeds, rounds), 1.0), others


def launches(rng: np.random.Generator, cases: int, rounds: int, slow: float) -> np.ndarray:
    """Return equal speeds (cases, 2, rounds); a share `slow` of the launches has a third of the others' speed."""
    shape = (cases, 2, rounds)
    return np.exp(_draw(rng, shape, 0.03)) / np.where(rng.random(shape) < slow, 3.0, 1.0)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], deviation: float | np.ndarray) -> np.ndarray:
    return deviation * rng.normal(size=shape)
