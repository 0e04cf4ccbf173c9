"""Checks for lab 08: flags within limits, a rank's images, nodes to request, accumulation, and a diagnosis."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.answers import call, for_all
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import expect, hinting, refuse
from labkit.exercises.engine.values import (
    as_number,
    describe,
    expect_equal,
    has_format,
    integer,
    number,
    numeric_array,
    parts,
    short,
)
from labkit.system import statistics
from labkit.system.words import plural

lab = Lab("08")


LR_INIT, BASE_BATCH = 0.256, 256  # Bede's rate, and the batch size that it is for


@lab.exercise(
    1,
    hints=(
        "How many images does the run process in its hours, and how many epochs is that? What is the peak for this "
        "batch? Only then turn both into flags.",
        "The program multiplies --lr_init by batch / 256, so divide the peak by that. In a warm-up of n steps from 0 "
        "to the peak, the rate rises by peak / n per step. How many epochs is that?",
        "epochs = int(hours * 3600 * speed / images); peak = min(0.256 * batch / 256, max_rate); lr_init = peak * 256 "
        "/ batch; warm-up in epochs = peak / max_rise * batch / images.",
    ),
)
def flags_within_limits(answer: Callable[..., Any]) -> None:
    """Check for the most epochs that fit, the linear rule's peak or the limit, and the shortest warm-up."""

    def decide(
        images: int, batch: int, speed: float, hours: float, max_rate: float, max_rise: float, rounding: float = 1e-9
    ) -> None:
        case = f"choose_flags({images}, {batch}, {speed:g}, {hours:g}, {max_rate:g}, {max_rise:g})"
        flags = parts(call(answer, images, batch, speed, hours, max_rate, max_rise), 3, f"{case} to be three values")
        epochs = integer(flags[0], f"num_iter of {case}")
        lr_init, warmup = number(flags[1], f"lr_init of {case}"), number(flags[2], f"lr_warmup_epochs of {case}")
        possible = hours * 3600 * speed / images
        expect(
            epochs <= possible * (1 + rounding),
            f"{case} to fit into its hours; {plural(epochs, 'epoch')} would take {epochs / possible * hours:.3g} hours",
        )
        expect(
            epochs + 1 > possible * (1 - rounding),
            f"{case} to use its hours; after {plural(epochs, 'epoch')} there is time for {possible - epochs:.3g} more",
        )
        peak, right = lr_init * batch / BASE_BATCH, min(LR_INIT * batch / BASE_BATCH, max_rate)
        limit = "the limit" if right == max_rate else "by the linear rule"
        expect_equal(peak, right, f"the peak of {case}, lr_init × batch / 256,", rel=1e-5, because=limit)
        steps = warmup * images / batch
        expect(steps > 0, f"the warm-up of {case} to be longer than 0, as the rate cannot jump; it is {warmup:g}")
        expect(
            right / steps <= max_rise * (1 + 1e-5),
            f"the rate of {case} to rise by {max_rise:g} per step at most; in {warmup:.4g} epochs, {steps:.4g} steps, "
            f"it rises by {right / steps:.5g} per step",
        )
        expect(
            right / steps >= max_rise * (1 - 1e-5),
            f"the warm-up of {case} to be as short as allowed; in {warmup:.4g} epochs, {steps:.4g} steps, the rate "
            f"rises by only {right / steps:.5g} per step",
        )
        for value, spec, name in zip(
            flags, ("<3", ".3f", ".1f"), ("num_iter", "lr_init", "lr_warmup_epochs"), strict=True
        ):
            expect(
                has_format(value, spec),
                f"{name} of {case} to be an int or a float, for the next cell to print; it is {describe(value)}",
            )

    for case in [
        (1_000_000, 1024, 4_500, 4, 10, 0.001),
        (1_000_000, 256, 1_000, 10, 10, 0.001),
        (1_000_000, 64, 1_000, 10.1, 10, 0.0001),
        (1_000_000, 65_536, 50_000, 1, 8, 0.01),
        (2_000, 64, 1_250, 0.01, 0.05, 0.002),
        (1_000_000, 262_144, 1_000_000, 0.001, 10, 0.001),  # a warm-up longer than the run
        (1_000_000, 1024, 1_000, 0.2, 10, 0.001),  # less than one epoch
    ]:
        decide(*case)
    decide(16_384, 64, 1_024, 1, 10, 0.001, rounding=0)  # exactly 225 epochs, in any order of computation
    for_all(
        decide,
        images=st.integers(1_000, 2_000_000),
        batch=st.integers(1, 65_536),
        speed=st.floats(1_000, 100_000),
        hours=st.floats(0.01, 24),
        max_rate=st.sampled_from((0.05, 1.0, 8.0, 100.0)),
        max_rise=st.sampled_from((1e-4, 1e-3, 0.02)),
    )


@lab.exercise(
    2,
    hints=(
        "Put the images of all epochs one after the other: the stream. How many of them does one step take on all "
        "ranks, and where does step `step` begin?",
        "`rank` takes `batch` of them, starting at (step * ranks + rank) * batch. Position p of the stream is position "
        "p % n of epoch p // n.",
        "[order(p // n)[p % n] for p in range(first, first + batch)]",
    ),
)
def shares(answer: Callable[..., Any]) -> None:
    """Check that all ranks' images of a step are the next piece of the stream of epochs."""

    def decide(step: int, n: int, ranks: int, batch: int, seed: int = 0) -> None:
        first = step * ranks * batch
        orders = _Orders(n, last=(first + ranks * batch - 1) // n, seed=seed)
        right = [int(orders.right(place // n)[place % n]) for place in range(first, first + ranks * batch)]
        case = f"step {step} with {n} images and {ranks} {'rank' if ranks == 1 else 'ranks'} × {batch}"
        case += ", with a different order than in earlier calls," * (seed > 0)
        taken = [image for rank in range(ranks) for image in _images(answer, step, rank, ranks, batch, n, orders)]
        repeated = [image for image in sorted(set(taken)) if taken.count(image) > right.count(image) > 0]
        expect(not repeated, f"{case} to take no image more often than the stream does; yours repeats {repeated}")
        expect(
            sorted(taken) == sorted(right),
            f"{case} to take {sorted(right)}, the next {ranks * batch} of the stream; yours takes {sorted(taken)}",
        )

    for n, ranks, batch in [(12, 1, 4), (12, 2, 3), (12, 3, 2), (10, 2, 3), (10, 3, 4), (5, 2, 4), (3, 2, 5)]:
        for step in range(4):
            decide(step, n, ranks, batch)
    decide(0, 10, 2, 3, seed=1)  # a different order of the same images: an answer must not cache orders
    for_all(
        decide,
        examples=50,
        step=st.integers(0, 12),
        n=st.integers(1, 40),
        ranks=st.integers(1, 5),
        batch=st.integers(1, 9),
    )


class _Orders:
    """The `order` of a dataset: a permutation for each epoch, the same array in each call, as in the notebook."""

    def __init__(self, n: int, last: int, seed: int) -> None:
        self.n, self.last, self.seed = n, last, seed
        self.returned: dict[int, np.ndarray] = {}

    def order(self, epoch: int, /) -> np.ndarray:
        """Return an epoch's order, positional-only as in the notebook; two epochs beyond the step also exist."""
        number = as_number(epoch)
        if not isinstance(number, int) or number < 0:
            raise ValueError(f"order({short(epoch)}): epochs are integers from 0 on")
        if number > self.last + 2:
            raise IndexError(f"order({number}): there is no such epoch yet; this step ends in epoch {self.last}")
        return self.returned.setdefault(number, self.right(number))

    def right(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.n, epoch, self.seed)).permutation(self.n)

    def unchanged(self) -> bool:
        return all(np.array_equal(order, self.right(epoch)) for epoch, order in self.returned.items())


def _images(
    answer: Callable[..., Any], step: int, rank: int, ranks: int, batch: int, n: int, orders: _Orders
) -> list[int]:
    """Return a rank's images as a list; reject anything else."""
    picks = call(_drained(answer), step, rank, ranks, batch, n, orders.order)
    case = f"my_images(step={step}, rank={rank}, ranks={ranks}, batch={batch}, n={n}, order)"
    expect(orders.unchanged(), f"the arrays that order(epoch) returns to stay unchanged; {case} changed one")
    is_list = (
        isinstance(picks, Iterable) and not isinstance(picks, str | bytes | dict) and getattr(picks, "ndim", 1) == 1
    )
    expect(is_list, f"{case} to be a list or a one-dimensional array; it is {describe(picks)}")
    images = [integer(image, f"image {place} of {case}") for place, image in enumerate(list(picks))]
    expect(len(images) == batch, f"{case} to have {batch} images; it has {len(images)}")
    expect(all(0 <= image < n for image in images), f"{case} to be numbers from 0 to {n - 1}; it is {images}")
    return images


MAX_PARTS = 10_000  # per generator: more than any right answer yields


def _drained(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an answer so that it returns a list if it yields its parts."""

    @functools.wraps(answer)  # messages show its name and signature
    def drained_answer(*args: Any) -> Any:
        result = answer(*args)
        return list(itertools.islice(result, MAX_PARTS)) if isinstance(result, Iterator) else result

    return drained_answer


@lab.exercise(
    3,
    hints=(
        "How long does the job take on n nodes? How many images does a step on all of them take, and how many steps "
        "are needed? Then add the fixed hours.",
        "Node-hours are n times the hours of the whole job. Which of 1, 2, … largest meet both the deadline and the "
        "budget?",
        "job_hours = fixed + images / (n * batch) * seconds_of(n) / 3600; return an n in range(1, largest + 1) with "
        "job_hours <= hours and n * job_hours <= budget, else 0.",
    ),
)
def node_hours(answer: Callable[..., Any]) -> None:
    """Accept any number of nodes within deadline, budget and `largest`; 0 only if there is none."""

    def decide(
        hours: float,
        budget: float,
        largest: int = 32,
        fixed: float = 0.1,
        exchange: float = 0.0,
        reading: float = 0.0,
        images: int = 36_000_000,
        exact: bool = False,
    ) -> None:
        def seconds_of(n: int, /) -> float:
            return max(0.25 + exchange * (n - 1) / n, n * n * reading)

        def job(n: int, more: int = 0) -> float:
            return fixed + (images / (n * 250) + more) * seconds_of(n) / 3600

        case = f"choose_nodes(seconds_of, {images}, 250, {fixed:g}, {hours:g}, {budget:g}, {largest}) with steps of "
        case += f"max(0.25 + {exchange:g} * (n - 1) / n, n * n * {reading:g}) s"
        n = integer(call(answer, seconds_of, images, 250, fixed, hours, budget, largest), case)
        # Unless exact, both answers are right at a limit; one more step, as an answer may round up.
        rounding, more = (1.0, 0) if exact else (1 + 1e-9, 1)
        clear = [m for m in range(1, largest + 1) if job(m, more) * rounding * max(1 / hours, m / budget) <= 1]
        choices = plural(clear[0], "node") if len(clear) == 1 else f"{len(clear)} choices"
        expect(n != 0 or not clear, f"{case} to find a number of nodes: {choices} would meet all limits; it is 0")
        expect(0 <= n <= largest, f"{case} to be from 0 to {largest}, the largest; it is {n}")
        for limit, what, factor in ((hours, "end within {:g} hours", 1), (budget, "cost at most {:g} node-hours", n)):
            expect(
                n == 0 or factor * job(n) <= limit * rounding,
                f"{case} to {what.format(limit)}; on {plural(n, 'node')}, the job takes {job(n or 1):.4g} hours, "
                f"{fixed:g} of them fixed, or {n * job(n or 1):.4g} node-hours",
            )

    near = [(3.0, 12.5), (3.0, 12.5, 3), (3.0, 12.5, 4), (2.6003, 12.5, 4), (2.5999, 12.5, 4)]
    costly = [(3.0, 10.2), (1.0, 10.5, 32, 0.0), (1.0, 31.0, 32, 0.5), (8.0, 0.6, 4, 0.25, 0.0, 0.0, 900_000)]
    slow = [(1.95, 25.0, 64, 0.1, 0.25), (2.7, 13.0, 64, 0.1, 0.0, 0.01), (1.5, 1e6, 500, 0.1, 0.0, 0.01)]
    slow += [(1.7, 99.0, 8, 0.0, 0.0, 1800.0, 900), (1.0, 1.0, 8, 0.0, 0.0, 900.0, 1_000, True)]  # 3.6 steps, 4 steps
    cases: list[tuple[Any, ...]] = [*near, *costly, *slow]
    for case in cases:
        decide(*case)
    for_all(
        decide,
        examples=60,
        hours=st.sampled_from((0.55, 1.3, 2.9, 7.7)),
        budget=st.sampled_from((4.3, 11.1, 23.0, 170.0)),
        largest=st.integers(1, 64),
        fixed=st.sampled_from((0.0, 0.1, 1.0)),
        exchange=st.sampled_from((0.0, 0.05, 0.5)),
        reading=st.sampled_from((0.0, 0.001, 0.01)),
        images=st.sampled_from((900_000, 7_200_000, 36_000_000)),
    )


@lab.exercise(
    4,
    hints=(
        "gradient_of returns a mean over its images. How do you get from the means of the pieces to the mean of all?",
        "A mean times its number of images is a sum, and sums can be added. The last piece may be smaller.",
        "For each piece: total[i] += len(piece) / len(x) * gradient_of(piece, its labels)[i].",
    ),
)
def accumulation(answer: Callable[..., Any]) -> None:
    """Compare with the gradient of all images, with at most `most` images at a time, for any number of arrays."""

    def decide(count: int, most: int, arrays: int = 2) -> None:
        rng = np.random.default_rng(count)
        seen: list[int] = []  # images in each call
        pairs: list[tuple[int, int]] = []  # in all calls: the index of an image in x, and its label
        x, y = rng.normal(size=(count, 3, 2)), rng.integers(0, 4, count)

        # Positional-only: the next cell's function has other parameter names.
        def gradient_of(images: Any, labels: Any, /) -> list[np.ndarray]:
            images, labels = np.asarray(images), np.asarray(labels)
            if len(images) != len(labels):
                raise ValueError(f"gradient_of got {len(images)} images and {len(labels)} labels")
            if not len(images):
                raise ValueError("gradient_of got no images")
            if len(images) > most:
                raise MemoryError(f"{len(images)} images at a time; {most} fit")
            if len(seen) >= 10 * count:
                raise ValueError(f"gradient_of was called more than {len(seen)} times for {count} images")
            seen.append(len(images))
            gradients = _softmax_gradients(images, labels, arrays)
            pairs.extend(zip(_places(images, x), labels.tolist(), strict=True))
            return gradients

        gradient_of.__qualname__ = "gradient_of"  # for Python's message about a wrong call
        result = call(_drained(answer), gradient_of, x, y, most)
        case = f"for {count} images, {most} at a time"
        right = _softmax_gradients(x, y, arrays)
        is_sequence = isinstance(result, list | tuple) or (
            isinstance(result, np.ndarray) and result.dtype == object and result.ndim > 0
        )
        expect(is_sequence, f"a list of gradients {case}; it is {describe(result)}")
        sums = [numeric_array(part) for part in result]
        shapes = [describe(part) if array is None else array.shape for part, array in zip(result, sums, strict=True)]
        expected = [part.shape for part in right]
        expect(shapes == expected, f"gradients of shapes {' and '.join(map(str, expected))} {case}; they are {shapes}")
        off = max(float(np.abs(part - exact).max()) for part, exact in zip(sums, right, strict=True))
        scale = max(float(np.abs(part).max()) for part in right)
        if off < 1e-5 * scale:
            return
        places = [place for place, _ in pairs]
        mislabelled = [f"image {place} has {label}, not {y[place]}" for place, label in pairs if label != y[place]]
        expect(
            not mislabelled,
            f"each image to come with its own label {case}; in yours, {'; '.join(mislabelled[:2])}",
            hint="Split x and y at the same places, and keep both in the same order.",
        )
        unused = [place for place in range(count) if place not in places]
        expect(not unused, f"each of the {count} images to be used {case}; yours leaves out {_listed(unused)}")
        repeated = [place for place in range(count) if places.count(place) > 1]
        share, pieces = off / scale, f"the pieces have {short(seen)[1:-1]} images"
        refuse(
            f"the gradient of all {count} at once {case}; yours is off by {share:.{1 if share >= 1e-3 else 4}%} of its "
            "largest number. "
            + (
                f"It uses {_listed(repeated)} more than once: {pieces}. Does each image count once?"
                if repeated
                else f"Is it the mean over images, when {pieces}?"
            ),
            hint="The last piece may be smaller than `most`: it has the remaining images." if repeated else "",
        )

    for case in [(12, 4), (10, 4), (3, 8), (7, 1), (9, 8), (10, 4, 1), (10, 4, 5)]:
        decide(*case)
    for_all(decide, examples=50, count=st.integers(1, 30), most=st.integers(1, 32), arrays=st.integers(1, 4))


def _listed(places: list[int]) -> str:
    """Return "image 8" or "images 6, 7"; the first six if there are more."""
    numbers = ", ".join(map(str, places[:6])) + ", …" * (len(places) > 6)
    return f"image{'s' * (len(places) > 1)} {numbers}"


def _places(images: np.ndarray, x: np.ndarray) -> list[int]:
    """Return the index in x of each image, or of the nearest one if an answer rounds."""
    rows, known = images.reshape(len(images), 1, -1), x.reshape(len(x), -1)
    places: list[int] = np.abs(rows - known).sum(axis=2).argmin(axis=1).tolist()
    return places


def _softmax_gradients(x: np.ndarray, y: np.ndarray, arrays: int) -> list[np.ndarray]:
    """Return `arrays` gradients of a mean cross-entropy, alternately weights and biases of softmax regressions.

    The weights have an axis of length 1, as in a convolution.
    """
    rows = x.reshape(len(x), -1)
    gradients: list[np.ndarray] = []
    for seed in range((arrays + 1) // 2):
        logits = rows @ np.random.default_rng(seed).normal(size=(rows.shape[1], 4)) + np.linspace(-1, 1, 4)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (p / p.sum(axis=1, keepdims=True) - np.eye(4)[y]) / len(x)
        gradients += [(rows.T @ error)[:, None], error.sum(axis=0)]
    return gradients[:arrays]


SUSPECTS = {"reading": "32, no reading", "network": "32, accumulate 4"}
# How far each of three rounds deviates: multiples with a mean of 0.
DEVIATIONS = {"16": (1, 0, -1), "32": (0, 1, -1), "32, no reading": (-1, 0, 1), "32, accumulate 4": (1, -1, 0)}
SMALL = 0.004  # deviation of the logarithm at which a gain of 3% is still clear
# Deviations as shares of the logarithm of a run's gain. With three rounds, an interval excludes 1 up to 0.4.
STILL_CLEAR, HIGHER_IN_ALL, LOWER_IN_ONE = 0.3, 0.5, 1.6
LARGER_HINT = (
    "Both runs show a gain here: which has the larger ratio, the .value of statistics.ratio? Mean or median speeds "
    "may rank them differently, as each round has its own ratio."
)
REST_HINT = (
    "Neither run shows a gain here, so '32' and '16' decide, compared in the same way: is the .verdict of their ratio "
    "'faster'?"
)


@lab.exercise(
    5,
    hints=(
        "Which run do you compare with the one without reading, and the one that accumulates: 16 workers or 32? And "
        "what must the interval exclude before the run shows anything?",
        "A gain is shown when the .verdict of statistics.ratio(speeds[run], speeds['32']) is 'faster'. Only if neither "
        "is shown, compare '32' with '16' in the same way.",
        "gains = {word: statistics.ratio(speeds[run], speeds['32']) …}; shown = [word for word, gain in gains.items() "
        "if gain.verdict == 'faster']; of those, the one with the largest .value.",
    ),
)
def next_changes(answer: Callable[..., Any]) -> None:
    """Check the conclusion from the intervals: the larger of two gains, else the speed of 32 workers, else nothing."""

    def decide_on(speeds: dict[str, list[int]], why: str) -> None:
        ratios = {word: statistics.ratio(speeds[run], speeds["32"]) for word, run in SUSPECTS.items()}
        shown = [word for word, ratio in ratios.items() if ratio.verdict == "faster"]
        faster = statistics.ratio(speeds["32"], speeds["16"]).verdict == "faster"
        right = max(shown, key=lambda word: ratios[word].value) if shown else "batch" if faster else "measure"
        case = "; ".join(f"{run}: {', '.join(map(str, rounds))}" for run, rounds in speeds.items())
        word = call(answer, speeds)
        larger = len(shown) > 1 and str(word) in SUSPECTS
        rest = not shown and str(word) in ("batch", "measure")
        with hinting(LARGER_HINT if larger else REST_HINT if rest else ""):
            expect_equal(word, right, f"diagnose of {case}", because=why)

    def decide(
        scaling: float,
        reading: float,
        network: float,
        noisy: str = "",
        noise: float = LOWER_IN_ONE,
        rounds: tuple[float, ...] = (1.0, 1.0, 1.0),
        why: str = "",
    ) -> None:
        gains = {"16": 1 / scaling, "32": 1.0, SUSPECTS["reading"]: reading, SUSPECTS["network"]: network}
        deviate = {run: max(SMALL, noise * abs(math.log(gain)) * (run == noisy)) for run, gain in gains.items()}
        speeds = {
            run: [
                round(18_000 * slow * gain * math.exp(deviate[run] * shift))
                for slow, shift in zip(rounds, DEVIATIONS[run], strict=True)
            ]
            for run, gain in gains.items()
        }
        decide_on(speeds, why)

    for scaling, reading, network, noisy, noise, why in [
        (1.0, 1.9, 1.0, "", 0, "without reading it is nearly twice as fast"),
        (1.0, 1.0, 1.5, "", 0, "with a quarter of the exchanges it is faster"),
        (1.2, 1.2, 1.5, "", 0, "both help, the second more"),
        (1.2, 1.7, 1.3, "", 0, "both help, the first more"),
        (1.9, 1.0, 1.0, "", 0, "nothing helps, and 32 are faster than 16"),
        (1.0, 1.0, 1.0, "", 0, "all are equally fast"),
        (1.0, 1.4, 1.0, SUSPECTS["reading"], LOWER_IN_ONE, "a higher mean whose interval includes 1"),
        (1.9, 1.4, 1.0, SUSPECTS["reading"], LOWER_IN_ONE, "a higher mean whose interval includes 1"),
        (1.0, 1.4, 1.0, SUSPECTS["reading"], HIGHER_IN_ALL, "higher in each round, yet its interval includes 1"),
        (1.0, 1.0, 1.4, SUSPECTS["network"], HIGHER_IN_ALL, "higher in each round, yet its interval includes 1"),
        (1.3, 1.0, 1.0, "16", LOWER_IN_ONE, "32 have a higher mean than 16, but the interval includes 1"),
        (1.3, 1.0, 1.0, "16", HIGHER_IN_ALL, "32 are faster than 16 in each round, yet the interval includes 1"),
        (1.0, 0.6, 0.6, "", 0, "both are slower"),
        (1.9, 0.6, 1.0, "", 0, "one is slower, and 32 are faster than 16"),
        (1.0, 1.6, 1.2, SUSPECTS["reading"], LOWER_IN_ONE, "the larger gain is not significant"),
        (1.0, 2.0, 1.5, SUSPECTS["reading"], STILL_CLEAR, "both help, the first more, though its interval is wider"),
        (1.0, 2.0, 1.7, SUSPECTS["network"], STILL_CLEAR, "both help, the first more, though the second may be higher"),
        (1.0, 1.0, 1.03, "", 0, "a gain of 3%, and its interval is above 1"),
    ]:
        decide(scaling, reading, network, noisy, noise, why=why)
    # Two nearly equal ratios. Mean speeds rank the first pair differently, median speeds the second.
    for no_reading, why in [
        ([29_241, 36_000, 44_321], "the larger ratio, 2.01 vs 2.00"),
        ([32_798, 34_480, 46_543], "the larger ratio, 2.08 vs 2.01"),
    ]:
        rounds = {"16": [18_072, 18_000, 17_928], "32": [18_000, 18_072, 17_928], SUSPECTS["reading"]: no_reading}
        decide_on(rounds | {SUSPECTS["network"]: [36_180, 36_325, 36_035]}, why)
    decide(1.0, 1.3, 1.0, rounds=(1.0, 0.4, 0.7), why="one round was slow for all, and each round shows the same gain")
    for_all(
        decide,
        examples=60,
        scaling=st.sampled_from((0.7, 1.0, 1.03, 1.2, 1.9)),
        reading=st.sampled_from((0.6, 1.0, 1.03, 1.1, 1.7)),
        network=st.sampled_from((0.6, 1.0, 1.05, 1.2, 2.0)),
        noisy=st.sampled_from(("", "16", *SUSPECTS.values())),
        noise=st.sampled_from((STILL_CLEAR, HIGHER_IN_ALL, LOWER_IN_ONE)),
        rounds=st.sampled_from(((1.0, 1.0, 1.0), (1.0, 0.4, 0.7), (0.8, 1.0, 0.9))),
    )
