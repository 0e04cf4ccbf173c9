"""Checks for lab 09: labels, shares, and two scripts whose ranks must act as one."""

import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.answers import call, for_all, reports, run_answer
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import expect, refuse
from labkit.exercises.engine.values import describe, integer, numeric_array, parts

lab = Lab("09")

PROBE = Path(__file__).with_name("lab09_ranks.py")
RANKS = 3  # few, as each takes seconds to start
FIT_RANKS = 4  # with 2, comparing with rank 0 compares all pairs; with 3, so does comparing neighbours in a ring
HEIGHT, WIDTH = 41, 53  # 2,173 pixels, not divisible by 3
COLOURS, ITERATIONS = 6, 12
NEAR = 0.2  # squared distances in float32 may differ by this, however they are computed: 3 * 255**2 / 2**20


@lab.exercise(
    2,
    hints=(
        "d4p.kmeans takes the number of centroids and the number of iterations. How many iterations here?",
        "d4p.kmeans(len(centroids), 0, assignFlag=True).compute(pixels, centroids) has the labels in `assignments`.",
        "assignments has the shape (n, 1); .ravel() makes it (n,).",
    ),
    moves=True,
)
def labels(answer: Callable[..., Any]) -> None:
    """Check that each pixel gets its nearest centroid, and that centroids stay unchanged."""

    def decide(pixels: np.ndarray, centroids: np.ndarray) -> None:
        n, k = len(pixels), len(centroids)
        returned = call(answer, pixels, centroids)
        result = None if isinstance(returned, list | tuple) else numeric_array(returned)
        case = f"for {n} {'pixel' if n == 1 else 'pixels'} and {k} {'centroid' if k == 1 else 'centroids'}"
        if result is None or result.shape != (n,):
            refuse(f"an array of shape ({n},) {case}; it is {describe(returned)}")
        expect(np.issubdtype(result.dtype, np.integer), f"an integer type {case}; it is {result.dtype}")
        most = np.iinfo(result.dtype).max
        expect(most >= k - 1, f"a type that holds labels up to {k - 1} {case}; {result.dtype} holds them up to {most}")
        expect(
            result.min() >= 0 and result.max() < k,
            f"labels from 0 to {k - 1} {case}; yours go from {result.min()} to {result.max()}",
        )
        away = ((pixels[:, None] - centroids[None]) ** 2).sum(axis=2)
        wrong = int((away[np.arange(n), result] > away.min(axis=1) + NEAR).sum())
        expect(
            wrong == 0,
            f"each pixel to get the nearest of the centroids passed in {case}; {wrong} of {n} got another one. Is it "
            "the distance over all three numbers, and did no iteration move the centroids?",
        )

    def decide_on_random(n: int, k: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        decide(rng.integers(0, 256, (n, 3)).astype(np.float64), rng.uniform(0, 255, (k, 3)))

    # The last has more labels than uint8 holds, and a prime number of pixels, which no chunk size divides.
    for n, k in [(500, 7), (3, 3), (1000, 2), (600, 256), (10_007, 300)]:
        decide_on_random(n, k, seed=9)
    for_all(decide_on_random, n=st.integers(1, 40), k=st.integers(1, 9), seed=st.integers(0, 99))


@lab.exercise(
    3,
    hints=(
        "Don't round each share: what you round off is lost. Round where a share *ends*. Where does the next start?",
        "Ranks up to and including this one get n * sum(weights[: rank + 1]) / sum(weights) pixels, in integers.",
        "start = n * sum(weights[:rank]) // sum(weights), and stop is the start of rank + 1.",
    ),
    moves=True,
)
def shares(answer: Callable[..., Any]) -> None:
    """Check for a disjoint cover of range(n) in rank order, each share within a pixel of its exact size."""

    def decide(n: int, weights: list[int]) -> list[tuple[int, int]]:
        case = f"for n = {n:,} and weights {weights}"
        cuts = []
        for rank in range(len(weights)):
            result = call(answer, n, rank, weights)
            ends = parts(result, 2, f"two integers, (start, stop), for rank {rank} {case}")
            for end, name in zip(ends, (f"{end} for rank {rank} {case}" for end in ("start", "stop")), strict=True):
                integer(end, name, int_only=True)
                expect(hasattr(end, "__index__"), f"{name} to be an int, for a slice; it is {describe(end)}")
            start, stop = map(int, ends)
            within = 0 <= start <= stop <= n or start == stop  # an empty share may be anywhere
            expect(within, f"0 <= start <= stop <= n for rank {rank} {case}; it is {start, stop}")
            cuts.append((start, stop))
        nonempty = [(rank, pair) for rank, pair in enumerate(cuts) if pair[0] < pair[1]]
        for (rank, pair), (next_rank, following) in itertools.pairwise(nonempty):
            problem = "leave a gap" if pair[1] < following[0] else "overlap"
            expect(
                pair[1] == following[0],
                f"rank {next_rank} to start where rank {rank} stops {case}; {pair} and {following} {problem}",
            )
        reach = (nonempty[0][1][0], nonempty[-1][1][1]) if nonempty else (0, 0)
        expect(reach == (0, n), f"the shares to reach from 0 to {n} {case}; they reach from {reach[0]} to {reach[1]}")
        for rank, ((start, stop), weight) in enumerate(zip(cuts, weights, strict=True)):
            off = abs((stop - start) * sum(weights) - n * weight)  # in integers, so nothing is rounded
            expect(
                off <= sum(weights),
                f"{n * weight / sum(weights):.6g} pixels for rank {rank} {case}, give or take one; it gets "
                f"{stop - start}",
            )
        return cuts

    for n, weights in (
        (12, [1]),
        (12, [1, 1, 1, 1]),
        (12, [3, 1]),
        (10, [1, 1, 1, 1]),
        (2173, [1, 1]),
        (2173, [8, 8, 4]),
        (3, [1, 1, 1, 1, 1]),
        (5, [1, 9, 1]),
        (0, [2, 1]),
        (2_500_001, [1, 2, 3, 4, 5, 6, 7]),
        (2**24 + 3, [1, 127]),  # n * sum(weights) overflows int32
        (2**24 + 3, [1, 1]),  # not exact in float32, and few enough for an answer that loops over all pixels
    ):
        decide(n, weights)
    n, weights = 2173, [8, 8, 4]
    in_order = decide(n, weights)
    for rank in reversed(range(len(weights))):
        case = f"for rank {rank} for n = {n:,} and weights {weights}, called alone"
        called_alone = tuple(
            integer(end, f"both ends {case}")
            for end in parts(call(answer, n, rank, weights), 2, f"two integers {case}")
        )
        expect(called_alone == in_order[rank], f"(start, stop) to be {in_order[rank]} {case}; it is {called_alone}")
    for_all(
        decide,
        n=st.one_of(st.integers(0, 100), st.integers(0, 10**6)),
        weights=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    )


SPREAD_HINT = (
    "Each number of each centroid has a value on every rank. The ranks differ in it by the largest of these values "
    "minus the smallest, and every rank returns the largest of these differences."
)


@lab.exercise(
    4,
    hints=(
        "Compare the two daal4py calls in looks.py. Which argument does one have that the other doesn't?",
        "d4p.kmeans(…, distributed=True). For spread: np.stack(MPI.COMM_WORLD.allgather(centroids)) has one more axis, "
        "the first, over the ranks.",
        "fit: return d4p.kmeans(len(begin), iterations, accuracyThreshold=0, distributed=True).compute(mine, "
        "begin).centroids. spread: return float((all_ranks.max(axis=0) - all_ranks.min(axis=0)).max())",
    ),
)
def fit(answer: str) -> None:
    """Check on 4 ranks that spread is right, and that all ranks end with the centroids of one process."""
    photo = _photo(answer)
    ranks = reports(run_answer(FIT_RANKS, PROBE, "fit", answer, photo, COLOURS, ITERATIONS, threads=1, timeout=60))
    for rank, report in enumerate(ranks):
        for case, right, value in report["spread"]:
            expect(
                not isinstance(value, str),
                f"spread to be a number on every rank; on rank {rank} it is {value}",
                hint=SPREAD_HINT,
            )
            expect(
                math.isclose(value, right, abs_tol=1e-9),
                f"spread to be {right} on every rank when {case}; on rank {rank} it is {value:g}",
                hint=SPREAD_HINT,
            )
    for rank, report in enumerate(ranks):
        expect(
            report["shape"] == report["wanted"],
            f"fit to return the centroids, an array of shape {tuple(report['wanted'])}; on rank {rank} "
            f"it is {_shape(report['shape'])}",
        )
        for name, function in report["changed"]:
            refuse(f"{name} to stay unchanged; {function} changed it on rank {rank}")
    first = ranks[0]
    reason = "each rank fitted its own share alone" if first["alone"] else "not all of them took part in the fit"
    expect(
        first["apart"] == 0,
        f"all {FIT_RANKS} ranks to end with the same centroids; they differ by up to {first['apart']:.3g}: {reason}",
    )
    expect(not first["stayed"], "fit to return the centroids after the iterations; these are still the first ones")
    _equals_one_process(first, FIT_RANKS)


@lab.exercise(
    5,
    hints=(
        "labels_of(mine, centroids) works on this rank's pixels; .astype(np.uint8) turns the labels into bytes: "
        "rank 0's buffer is for bytes, and Gatherv fails with any other type. Its counts follow from `shares`.",
        "counts = [stop - start for start, stop in shares]; all_labels = np.empty(height * width, np.uint8) on rank 0 "
        "and None elsewhere; ranks.Gatherv(labels, [all_labels, counts], root=0) on *all* ranks.",
        "if rank == 0: picture = Image.fromarray(all_labels.reshape(height, width)); "
        "picture.putpalette(np.rint(centroids).astype(np.uint8).tobytes()); picture.save(args.out / 'photo.png')",
    ),
)
def kmeans(answer: str) -> None:
    """Check on 3 ranks that each pixel gets its nearest centroid, once, and only rank 0 writes the picture."""
    photo = _photo(answer)
    out = photo.with_name("kmeans-check")
    shutil.rmtree(out, ignore_errors=True)
    arguments = ("--photo", photo, "--colours", COLOURS, "--iterations", ITERATIONS, "--out", out / "rank-{rank}")
    ranks = reports(run_answer(RANKS, PROBE, "kmeans", answer, *arguments, threads=1, timeout=60))
    for rank, report in enumerate(ranks):
        labels = report["labels"]
        expect(
            labels == report["wanted"],
            f"a label for each of the {report['wanted'][0]} pixels of rank {rank}, in one dimension; `labels` is "
            f"{_shape(labels)}",
        )
        expect(
            report["type"] == "uint8", f"labels of one byte each, np.uint8; on rank {rank} they are {report['type']}"
        )
    for rank, report in enumerate(ranks):
        wrong = np.mean(np.array(report["beyond"]) > NEAR)
        expect(
            wrong == 0,
            f"each pixel to have the label of its nearest centroid; on rank {rank}, {wrong:.0%} have another one",
        )
        expect(
            report["labelled"] <= report["wanted"][0],
            f"labels_of to get only the {report['wanted'][0]} pixels of rank {rank}; it got {report['labelled']}",
        )
    writers = [rank for rank, report in enumerate(ranks) if report["wrote"]]
    expect(writers == [0], f"photo.png from rank 0 only; it came from {f'ranks {writers}' if writers else 'no rank'}")
    first = ranks[0]
    expect(first["shape"] is not None, "photo.png to be a picture; the file is not a PNG")
    expect(
        first["shape"] == first["photo"],
        f"a picture of {HEIGHT} rows and {WIDTH} columns; it has {first['shape'][0]} and {first['shape'][1]}",
    )
    expect(
        first["off"] != 1,
        "the palette to contain the centroids rounded to integers, as with np.rint; some of your numbers are off by 1",
    )
    expect(
        first["same"] == 1,
        f"each pixel of photo.png to have the colour of its centroid; on {RANKS} ranks, "
        f"{100 * (1 - first['same']):.0f}% have another one. It needs the labels in rank order, and the palette",
    )
    _equals_one_process(first, RANKS)


def _equals_one_process(first: dict[str, Any], ranks: int) -> None:
    """Compare the objective of the ranks' centroids with that of one process."""
    expect(
        math.isclose(first["objective"], first["batch"], rel_tol=1e-9),
        f"{ranks} ranks to find what one process finds from the same start in {ITERATIONS} iterations, objective "
        f"{first['batch']:.6g}; theirs is {first['objective']:.6g}. Run all iterations, over the pixels of all "
        "ranks",
    )


def _photo(answer: str) -> Path:
    """Write a small, photo-like picture of an awkward size next to the answer, and return its path."""
    down, right = np.mgrid[0:HEIGHT, 0:WIDTH]
    channels = (40 + 4 * down, 250 - 3 * right - down, 128 + 100 * np.sin(right / 7 + down / 11))
    noise = np.random.default_rng(0).normal(0, 6, (HEIGHT, WIDTH, 3))
    path = Path(answer).parent / "kmeans-check.npy"
    np.save(path, np.clip(np.stack(channels, axis=2) + noise, 0, 255).astype(np.uint8))
    return path


def _shape(shape: list[int] | str) -> str:
    return f"an array of shape {tuple(shape)}" if isinstance(shape, list) else shape
