"""Lab 09's exercise on ranks: a distributed K-Means with daal4py."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from labkit.exercises.engine.on_ranks import Case, OnRanks, Saw, Script
from labkit.exercises.engine.outcomes import expect
from labkit.exercises.engine.values import describe

EXERCISES: dict[int, OnRanks] = {}

PIXELS, COLOURS, ITERATIONS = 2_173, 6, 4  # pixels not divisible by 4; iterations before it converges
EXACT = 1e-6  # tolerance, of values up to 255


def a_photo(n: int) -> Iterator[Case]:
    """Return one case: shares of smooth colours with noise, so that the ranks' pixels differ."""
    place = np.arange(PIXELS) / PIXELS
    smooth = np.stack([40 + 180 * place, 250 - 200 * place, 128 + 100 * np.sin(9 * place)], axis=1)
    pixels = np.rint(smooth + np.random.default_rng(0).normal(0, 6, smooth.shape)).clip(0, 255)
    shares = [share.copy() for share in np.array_split(pixels, n)]
    yield Case(f"{PIXELS} pixels on {n} ranks", [(share, COLOURS, ITERATIONS) for share in shares])


def centroids_are_returned(case: Case, seen: Sequence[Saw]) -> None:
    """`run` returns the first centroids, the last ones and the objective."""
    for saw in seen:
        result: Any = saw.result
        three = isinstance(result, tuple | list) and len(result) == 3
        expect(three, f"run to return the first centroids, the last ones and the objective; it is {describe(result)}")
        for name, part in zip(("first", "last"), result[:2], strict=True):
            right = isinstance(part, np.ndarray) and part.shape == (COLOURS, 3)
            expect(right, f"the {name} centroids to be an array of shape ({COLOURS}, 3); they are {describe(part)}")


def starts_are_equal(case: Case, seen: Sequence[Saw]) -> None:
    """All ranks start from the same centroids."""
    apart = np.ptp(np.stack([saw.result[0] for saw in seen]), axis=0).max()
    expect(
        apart == 0,
        f"all {len(seen)} ranks to have the same first centroids; they differ by up to {apart:.3g}. Each rank drew its "
        "own, from its own pixels",
        hint="d4p.kmeans_init(colours, method=…, distributed=True)",
    )


def ends_are_equal(case: Case, seen: Sequence[Saw]) -> None:
    """All ranks end with the same centroids."""
    apart = np.ptp(np.stack([saw.result[1] for saw in seen]), axis=0).max()
    expect(
        apart == 0,
        f"all {len(seen)} ranks to end with the same centroids; they differ by up to {apart:.3g}. Each rank fitted its "
        "own pixels alone",
        hint="d4p.kmeans(colours, iterations, accuracyThreshold=0, distributed=True)",
    )


def ranks_equal_one_process(case: Case, seen: Sequence[Saw]) -> None:
    """The last centroids are those of one process with all pixels and the same start."""
    import daal4py as d4p

    pixels = np.concatenate([share for share, *_ in case.arguments])
    begin, end, _ = seen[0].result
    alone = d4p.kmeans(COLOURS, ITERATIONS, accuracyThreshold=0).compute(pixels, begin).centroids
    apart = np.abs(end - alone).max()
    expect(
        apart < EXACT,
        f"{len(seen)} ranks to end where one process ends that starts from the same centroids, with all pixels; they "
        f"are up to {apart:.3g} away",
        hint="Did the fit start from the centroids that you return, and make all `iterations`? accuracyThreshold=0 "
        "keeps it from stopping early.",
    )


START, FIT = '"plusPlusDense", distributed=True', "accuracyThreshold=0, distributed=True"
LAST = "return begin, result.centroids, result.objectiveFunction.item()"

EXERCISES[4] = OnRanks(
    "run",
    parameters=("mine", "colours", "iterations"),
    world=True,
    requires="daal4py",
    cases=a_photo,
    invariants=(centroids_are_returned, starts_are_equal, ends_are_equal, ranks_equal_one_process),
    hints=(
        "Compare the two scripts, line by line. Each lacks an argument that the other one has.",
        "Both `kmeans_init` and `kmeans` need distributed=True.",
        'd4p.kmeans_init(colours, method="plusPlusDense", distributed=True), and d4p.kmeans(colours, iterations, '
        "accuracyThreshold=0, distributed=True)",
    ),
    wrong=(
        (centroids_are_returned, Script(before=LAST, after="return result.centroids")),
        (centroids_are_returned, Script(before=LAST, after="return begin, result, 0.0")),
        (starts_are_equal, Script(before=START, after='"plusPlusDense"')),
        (ends_are_equal, Script(before=FIT, after="accuracyThreshold=0")),
        (ranks_equal_one_process, Script(before="colours, iterations,", after="colours, iterations // 2,")),
        (ranks_equal_one_process, Script(before=LAST, after="return result.centroids, result.centroids, 0.0")),
        (ranks_equal_one_process, Script(before=LAST, after="return begin, begin, 0.0")),
    ),
    right=(
        Script(
            before="return begin, result.centroids,", after="return first.compute(mine).centroids, result.centroids,"
        ),
        Script(before=START, after='"randomDense", distributed=True'),
    ),
)
