"""What did a student's K-Means script really do? Run by `lab09` on some ranks:

    mpirun -n 3 python lab09_ranks.py fit SCRIPT PHOTO COLOURS ITERATIONS
    mpirun -n 3 python lab09_ranks.py kmeans SCRIPT ARGUMENTS…

Imports SCRIPT, lets its functions work on the shares of a small photo, and prints one line of facts per rank. What
one process finds from the same start is computed beside it, to compare with.
"""

import json
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import daal4py as d4p
import numpy as np
from mpi4py import MPI
from PIL import Image

RANKS = MPI.COMM_WORLD


def objective(pixels: np.ndarray, centroids: np.ndarray) -> float:
    """Sum of squared distances from each pixel to its nearest centroid."""
    return distances(pixels, centroids).min(axis=1).sum()


def distances(pixels: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Squared distances (n, k) from each pixel to each centroid."""
    return ((pixels[:, None] - centroids[None]) ** 2).sum(axis=2)


def one_process(pixels: np.ndarray, begin: np.ndarray, iterations: int) -> np.ndarray:
    """The centroids that one process finds from all pixels."""
    return d4p.kmeans(len(begin), iterations, accuracyThreshold=0).compute(pixels, begin).centroids


def shape(what: Any) -> list[int] | str:
    """The shape of an array, the type of anything else."""
    return list(what.shape) if isinstance(what, np.ndarray) else type(what).__name__


def answer(function: Any, *args: Any) -> Any:
    """Call the student's function, and tell of a failure, or a stub, without this module's part in it."""
    try:
        return function(*args)
    except NotImplementedError:
        sys.exit(f"{function.__name__} is still to be written.")
    except Exception as error:
        traceback.print_exception(error.with_traceback(error.__traceback__.tb_next))  # without the frame of this call
        sys.exit(1)


def fit_facts(script: dict[str, Any], photo: str, colours: str, iterations: str) -> dict[str, Any]:
    """Facts of the functions `spread` and `fit`."""
    pixels = np.load(photo).reshape(-1, 3).astype(np.float64)
    known = np.arange(12.0).reshape(4, 3)
    apart = known.copy()
    apart[2, 1] -= 2.5 * RANKS.rank  # downwards, and in one number alone
    begin = RANKS.bcast(pixels[:: len(pixels) // int(colours)][: int(colours)])
    mine = np.array_split(pixels, RANKS.size)[RANKS.rank]
    facts = {
        "spread": [told(answer(script["spread"], array)) for array in (known, apart)],
        "right": [0.0, 2.5 * (RANKS.size - 1)],
    }
    end = answer(script["fit"], mine, begin.copy(), int(iterations))
    facts["shape"], facts["wanted"] = shape(end), list(begin.shape)
    if not all(RANKS.allgather(facts["shape"] == facts["wanted"])):
        return facts
    every = np.stack(RANKS.allgather(end))
    batch = one_process(pixels, begin, int(iterations))
    own = one_process(mine, begin, int(iterations))
    return facts | {
        "apart": float(np.ptp(every, axis=0).max()),
        "alone": bool(np.allclose(end, own, rtol=1e-6)),
        "stayed": bool(np.array_equal(end, begin)),
        "objective": objective(pixels, end),
        "batch": objective(pixels, batch),
    }


def told(value: Any) -> float | str:
    """A number as it is, anything else by its type."""
    return float(value) if isinstance(value, int | float | np.number) else type(value).__name__


def kmeans_facts(script: dict[str, Any], *arguments: str) -> dict[str, Any]:
    """Facts of the whole script: the labels on each rank, and the picture that it wrote."""
    arguments = tuple(argument.format(rank=RANKS.rank) for argument in arguments)
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    photo = np.load(options["--photo"])
    begin, centroids, labels = answer(script["main"], list(arguments))
    pixels = photo.reshape(-1, 3).astype(np.float64)
    mine = np.array_split(pixels, RANKS.size)[RANKS.rank]
    facts: dict[str, Any] = {"labels": shape(labels), "wanted": [len(mine)], "type": str(getattr(labels, "dtype", ""))}
    if not all(RANKS.allgather(facts["labels"] == facts["wanted"] and labels.dtype == np.uint8)):
        return facts
    every, away = np.stack(RANKS.allgather(centroids)), distances(mine, centroids)
    # A pixel halfway between two centroids may have either.
    nearest = away[np.arange(len(mine)), np.minimum(labels, len(centroids) - 1)] <= away.min(axis=1) * (1 + 1e-9) + 1e-9
    facts |= {
        "nearest": float(nearest.mean()),
        "apart": float(np.ptp(every, axis=0).max()),
        "objective": objective(pixels, centroids),
        "batch": objective(pixels, one_process(pixels, begin, int(options["--iterations"]))),
    }
    labels = RANKS.allgather(labels)
    written = Path(options["--out"]) / "photo.png"
    facts["wrote"] = written.is_file()
    if facts["wrote"]:
        with Image.open(written) as image:
            picture = np.asarray(image.convert("RGB"))
        right = np.rint(centroids).astype(np.uint8)[np.concatenate(labels)].reshape(photo.shape)
        facts["shape"], facts["photo"] = list(picture.shape[:2]), list(photo.shape[:2])
        if picture.shape == right.shape:
            facts["same"] = float((picture == right).all(axis=2).mean())
    return facts


def main() -> None:
    """Import the script, let it work, print the facts."""
    kind, path, *arguments = sys.argv[1:]
    sys.path.insert(0, str(Path(path).parent))
    script = runpy.run_path(path, run_name="answer")
    facts = {"fit": fit_facts, "kmeans": kmeans_facts}[kind](script, *arguments)
    print("FACTS", json.dumps({"rank": RANKS.rank, **facts}), flush=True)


if __name__ == "__main__":
    main()
