"""Probe for lab 09: run a student's K-means script. `lab09` starts it on several ranks:

    mpirun -n 4 python lab09_ranks.py fit SCRIPT PHOTO COLOURS ITERATIONS
    mpirun -n 3 python lab09_ranks.py kmeans SCRIPT ARGUMENTS…

It imports SCRIPT, runs its functions on the shares of a small photo, and reports once per rank. For comparison, it also
computes the result of one process from the same start.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import daal4py as d4p
import numpy as np
from mpi4py import MPI
from PIL import Image, UnidentifiedImageError

from labkit.exercises.ranks.runner import load, report, watched

RANKS = MPI.COMM_WORLD
# Shifts of one number of a centroid on each rank; the extremes are on different ranks each time.
SHIFTS = (
    (0.0, 0.0, 0.0, 0.0),
    (0.0, 1.5, -2.5, 0.0),
    (0.0, -2.5, 0.5, 1.5),
    (-1.0, 0.5, 3.0, 1.0),  # in a ring, neighbours differ by 2.5 at most
    (1.0, 3.0, 0.5, -1.0),
    (0.5, 0.5, 0.5, 4.0),
    (4.25, 0.0, 0.0, 0.0),
    (0.0, 0.0, 2**-10, 0.0),  # a tiny difference
)


def objective(pixels: np.ndarray, centroids: np.ndarray) -> float:
    """Return the sum of squared distances from each pixel to its nearest centroid."""
    return float(distances(pixels, centroids).min(axis=1).sum())


def distances(pixels: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Return squared distances (n, k) from each pixel to each centroid."""
    squares: np.ndarray = ((pixels[:, None] - centroids[None]) ** 2).sum(axis=2)
    return squares


def one_process(pixels: np.ndarray, begin: np.ndarray, iterations: int) -> np.ndarray:
    """Return the centroids that one process finds from all pixels."""
    centroids: np.ndarray = d4p.kmeans(len(begin), iterations, accuracyThreshold=0).compute(pixels, begin).centroids
    return centroids


def shape(value: Any) -> list[int] | str:
    """Return the shape of an array, or the type of anything else."""
    if value is None:
        return "None: is a return missing?"
    return list(value.shape) if isinstance(value, np.ndarray) else f"of type {type(value).__name__}"


def fit_findings(script: str, photo: str, colours: str, iterations: str) -> dict[str, Any]:
    """Return findings about the functions `spread` and `fit`."""
    spread, fit = load(script, "spread", "fit")
    where = f"on rank {RANKS.rank} of {RANKS.size}"
    pixels = np.load(photo).reshape(-1, 3).astype(np.float64)
    findings: dict[str, Any] = {"spread": [], "changed": []}
    for case, right, centroids in spreads():
        argument = centroids[RANKS.rank].copy()
        with watched(script, f"in spread, {where}"):
            findings["spread"].append((case, right, json_value(spread(argument))))
        if not np.array_equal(argument, centroids[RANKS.rank]):
            findings["changed"] = [("centroids", "spread")]
    begin = RANKS.bcast(pixels[:: len(pixels) // int(colours)][: int(colours)])
    mine = np.array_split(pixels, RANKS.size)[RANKS.rank].copy()
    inputs = {"mine": mine.copy(), "begin": begin.copy()}
    with watched(script, f"in fit, {where}"):
        end = fit(*inputs.values(), int(iterations))
    findings["changed"] += [
        (name, "fit") for name, before in (("mine", mine), ("begin", begin)) if not np.array_equal(inputs[name], before)
    ]
    findings["shape"], findings["wanted"] = shape(end), list(begin.shape)
    if not all(RANKS.allgather(findings["shape"] == findings["wanted"])):
        return findings
    ends = np.stack(RANKS.allgather(end))
    batch = one_process(pixels, begin, int(iterations))
    of_share = one_process(mine, begin, int(iterations))
    return findings | {
        "apart": float(np.ptp(ends, axis=0).max()),
        "alone": bool(np.allclose(end, of_share, rtol=1e-6)),
        "stayed": bool(np.array_equal(end, begin)),
        "objective": objective(pixels, end),
        "batch": objective(pixels, batch),
    }


def spreads() -> Iterator[tuple[str, float, np.ndarray]]:
    """Yield cases for `spread`: a description, the right value, and each rank's centroids."""
    same = np.tile(np.random.default_rng(0).integers(-400, 400, (5, 3)) / 4, (RANKS.size, 1, 1))
    for shifts in SHIFTS:
        centroids = same.copy()
        centroids[:, 2, 1] += shifts
        case = f"one number of a centroid is shifted by {', '.join(map(str, shifts))} on ranks 0 to {RANKS.size - 1}"
        yield case if any(shifts) else "all ranks hold the same", max(shifts) - min(shifts), centroids
    centroids = same.copy()
    for row, column, shifts in ((0, 0, SHIFTS[1]), (2, 1, SHIFTS[2]), (2, 2, SHIFTS[3]), (4, 2, SHIFTS[6])):
        centroids[:, row, column] += (1 + column) * np.array(shifts)
    yield "several numbers are shifted, each on different ranks", float(np.ptp(centroids, axis=0).max()), centroids
    centroids = same.copy()
    centroids[1, 3] *= -1
    yield "a centroid has the opposite signs on rank 1", float(np.ptp(centroids, axis=0).max()), centroids
    centroids = same.copy()
    centroids[2, :2] = centroids[2, 1::-1]
    yield "two centroids are swapped on rank 2", float(np.ptp(centroids, axis=0).max()), centroids


def json_value(value: Any) -> float | str:
    """Return a number, or a 0-dimensional array, as a float; describe anything else."""
    is_number = np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf"
    return float(value) if is_number else str(shape(value))


def kmeans_findings(script: str, *arguments: str) -> dict[str, Any]:
    """Return findings about the whole script: the labels on each rank, and the picture."""
    arguments = tuple(argument.format(rank=RANKS.rank) for argument in arguments)
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    photo = np.load(options["--photo"])
    (main,) = load(script, "main")
    labelled = [0]  # the largest number of pixels passed to labels_of
    if "labels_of" in main.__globals__:
        main.__globals__["labels_of"] = counted(main.__globals__["labels_of"], labelled)
    Path(options["--out"]).mkdir(parents=True)  # so that another rank that writes doesn't fail
    with watched(script, f"on rank {RANKS.rank} of {RANKS.size}"):
        begin, centroids, labels = main(list(arguments))
    pixels = photo.reshape(-1, 3).astype(np.float64)
    share: Callable[..., Any] = importlib.import_module("pieces").share  # the student's, next to the script
    mine = pixels[slice(*share(len(pixels), RANKS.rank, [1] * RANKS.size))]
    findings: dict[str, Any] = {
        "labels": shape(labels),
        "wanted": [len(mine)],
        "type": str(getattr(labels, "dtype", "")),
        "labelled": max(labelled),
    }
    if not all(RANKS.allgather(findings["labels"] == findings["wanted"] and labels.dtype == np.uint8)):
        return findings
    of_ranks, away = np.stack(RANKS.allgather(centroids)), distances(mine, centroids)
    # How much farther each pixel's labelled centroid is than its nearest; infinite for an invalid label.
    valid = np.minimum(labels, len(centroids) - 1)
    beyond = np.where(labels == valid, away[np.arange(len(mine)), valid] - away.min(axis=1), np.inf)
    findings |= {
        "beyond": beyond.tolist(),
        "apart": float(np.ptp(of_ranks, axis=0).max()),
        "objective": objective(pixels, centroids),
        "batch": objective(pixels, one_process(pixels, begin, int(options["--iterations"]))),
    }
    labels = RANKS.allgather(valid)
    written = Path(options["--out"]) / "photo.png"
    findings["wrote"] = written.is_file()
    if findings["wrote"]:
        try:
            with Image.open(written, formats=("PNG",)) as image:
                picture = np.asarray(image.convert("RGB"))
        except UnidentifiedImageError:
            return findings | {"shape": None}
        right = np.rint(centroids).astype(np.uint8)[np.concatenate(labels)].reshape(photo.shape)
        findings["shape"], findings["photo"] = list(picture.shape[:2]), list(photo.shape[:2])
        if picture.shape == right.shape:
            findings["same"] = float((picture == right).all(axis=2).mean())
            findings["off"] = int(np.abs(picture.astype(int) - right).max())
    return findings


def counted(function: Callable[..., Any], sizes: list[int]) -> Callable[..., Any]:
    """Wrap a function so that each call appends the size of its first argument to `sizes`."""

    def counting(*args: Any, **kwargs: Any) -> Any:
        sizes.extend(len(array) for array in (*args, *kwargs.values())[:1])
        return function(*args, **kwargs)

    return counting


KINDS: dict[str, Callable[..., dict[str, Any]]] = {"fit": fit_findings, "kmeans": kmeans_findings}


def main() -> None:
    """Run the script, and report the findings."""
    kind, *arguments = sys.argv[1:]
    report(KINDS[kind](*arguments))


if __name__ == "__main__":
    main()
