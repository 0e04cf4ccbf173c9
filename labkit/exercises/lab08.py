"""Checks of lab 08: schedule, a rank's images, efficiency, accumulation, LARS' trust ratio."""

import math

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.answers import call, for_all
from labkit.exercises.core import Lab
from labkit.exercises.outcomes import expect
from labkit.exercises.values import as_number, describe, numeric_array, same, short, whole

lab = Lab("08")


@lab.exercise(
    1,
    hints=(
        "Two cases: before step `warmup`, and from it on. What share of each part is over at step `step`?",
        "The peak is lr_init * batch / 256. In the warm-up the rate is step / warmup of it. Afterwards it is half of 1 "
        "+ the cosine of π times the share of the remaining steps that is over.",
        "peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) once step >= warmup. This order "
        "also avoids 0 / 0.",
    ),
)
def learning_rates(answer) -> None:
    """A ramp from 0 to the peak of the linear rule, then half a cosine down to 0."""

    def decide(step: int, steps: int, warmup: float, batch: int, lr_init: float, why: str = "") -> None:
        peak = lr_init * batch / 256
        if step < warmup:
            right = peak * (step / warmup)
        else:
            right = peak / 2 + peak / 2 * math.cos(math.pi * (step - warmup) / (steps - warmup))
        got = call(answer, step, steps, warmup, batch, lr_init)
        case = f"learning_rate(step={step}, steps={steps}, warmup={warmup:g}, batch={batch}, lr_init={lr_init:g})"
        same(got, right, case, rel=1e-5, abs=1e-6 * peak, because=why)

    for step, steps, warmup, batch, why in [
        (100, 1000, 100, 256, "the peak for 256 images a step"),
        (100, 1000, 100, 1024, "four times the images, four times the rate"),
        (100, 1000, 100, 64, "a quarter of the images, a quarter of the rate"),
        (0, 1000, 100, 1024, "the warm-up starts at 0"),
        (50, 1000, 100, 1024, "half of the warm-up"),
        (550, 1000, 100, 1024, "halfway down the cosine"),
        (325, 1000, 100, 1024, "a quarter of the way down the cosine"),
        (999, 1000, 100, 256, "the last step, nearly 0"),
        (30, 200, 62.5, 512, "the warm-up need not be whole steps"),
        (0, 1000, 0, 256, "no warm-up"),
        (5, 10, 20, 256, "a warm-up longer than the run"),
    ]:
        decide(step, steps, warmup, batch, 0.256, why)
    for_all(
        lambda run, warmup, batch, lr_init: decide(run[0], run[1], warmup, batch, lr_init),
        run=st.integers(1, 2000).flatmap(lambda steps: st.tuples(st.integers(0, steps - 1), st.just(steps))),
        warmup=st.one_of(st.integers(0, 1000), st.floats(0, 1000, width=16)),
        batch=st.integers(1, 65_536),
        lr_init=st.sampled_from((0.1, 0.256, 0.8, 1.0, 8)),
    )


@lab.exercise(
    2,
    hints=(
        "Write the images of all epochs one after the other: the stream. How many of them does one step of all ranks "
        "take, and where does step `step` begin?",
        "Rank r takes the r-th `batch` of them, from (step * ranks + rank) * batch on. Place p of the stream is in "
        "epoch p // n, at place p % n.",
        "[order(p // n)[p % n] for p in range(first, first + batch)]",
    ),
)
def shares(answer) -> None:
    """All ranks' images of a step are the next piece of the stream of epochs."""

    def decide(step: int, n: int, ranks: int, batch: int) -> None:
        order = _Orders(n)
        first = step * ranks * batch
        right = [int(order.right(place // n)[place % n]) for place in range(first, first + ranks * batch)]
        case = f"step {step} with {n} images and {ranks} {'rank' if ranks == 1 else 'ranks'} × {batch}"
        got = [image for rank in range(ranks) for image in _images(answer, step, rank, ranks, batch, n, order)]
        often = [image for image in sorted(set(got)) if got.count(image) > right.count(image) > 0]
        expect(not often, f"{case} to take no image more often than the stream has it there; yours repeats {often}")
        expect(
            sorted(got) == sorted(right),
            f"{case} to take {sorted(right)}, the next {ranks * batch} of the stream; yours takes {sorted(got)}",
        )

    for n, ranks, batch in [(12, 1, 4), (12, 2, 3), (12, 3, 2), (10, 2, 3), (10, 3, 4), (5, 2, 4), (3, 2, 5)]:
        for step in range(4):
            decide(step, n, ranks, batch)
    for_all(
        decide,
        examples=50,
        step=st.integers(0, 12),
        n=st.integers(1, 40),
        ranks=st.integers(1, 5),
        batch=st.integers(1, 9),
    )


class _Orders:
    """The `order` of a set: a permutation for each epoch, the same array each time, as in the notebook."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.given: dict[int, np.ndarray] = {}

    def __call__(self, epoch: int) -> np.ndarray:
        number = as_number(epoch)
        if not isinstance(number, int) or number < 0:
            raise ValueError(f"order({short(epoch)}): epochs are whole numbers from 0 on")
        return self.given.setdefault(number, self.right(number))

    def right(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.n, epoch)).permutation(self.n)

    def unchanged(self) -> bool:
        return all(np.array_equal(given, self.right(epoch)) for epoch, given in self.given.items())


def _images(answer, step: int, rank: int, ranks: int, batch: int, n: int, order: _Orders) -> list[int]:
    """Return a rank's images as a list; reject an answer that is anything else."""
    got = call(answer, step, rank, ranks, batch, n, order)
    case = f"my_images(step={step}, rank={rank}, ranks={ranks}, batch={batch}, n={n}, order)"
    expect(order.unchanged(), f"the arrays that order(epoch) returns to stay as they were; {case} changed one")
    row = isinstance(got, list | tuple | range) or (isinstance(got, np.ndarray) and got.ndim == 1)
    expect(row, f"{case} to be a list or an array of one dimension; it is {describe(got)}")
    expect(len(got) == batch, f"{case} to have {batch} images; it has {len(got)}")
    images = [whole(image, f"image {place} of {case}") for place, image in enumerate(got)]
    expect(all(0 <= image < n for image in images), f"{case} to be numbers from 0 to {n - 1}; it is {images}")
    return images


@lab.exercise(
    3,
    hints=(
        "A step has three times: computing, the part of the all-reduce that is not hidden behind it, and reading, "
        "which happens at the same time as the first two.",
        "ring = 2 * (n - 1) * (latency + gradient / n / bandwidth). The part that is not hidden is what exceeds "
        "hidden * compute; it is never less than 0.",
        "step(n) = max(compute + max(0, ring - hidden * compute), n * reading); the efficiency is step(1) / step(n).",
    ),
)
def efficiencies(answer) -> None:
    """One worker's step over that of n: computing, a ring that may hide behind it, and shared reading."""

    def step(n: int, compute: float, gradient: float, latency: float, bandwidth: float, hidden=0.0, reading=0.0):
        ring = 2 * (n - 1) * (latency + gradient / n / bandwidth)
        return max(compute + max(0, ring - hidden * compute), n * reading)

    def decide(n: int, why: str = "", **arguments: float) -> None:
        got = call(answer, n, **arguments)
        case = f"efficiency({n}, {', '.join(f'{name}={value:g}' for name, value in arguments.items())})"
        same(got, step(1, **arguments) / step(n, **arguments), case, because=why)

    for n, latency, megabytes, hidden, reading, why in [
        (1, 1e-3, 100, 0.0, 0.0, "one worker sends nothing"),
        (2, 0.0, 100, 0.0, 0.0, "the ring takes as long as the computing"),
        (4, 0.0, 100, 0.0, 0.0, "the ring sends 2 · 3/4 of the gradient"),
        (101, 1e-3, 0, 0.0, 0.0, "200 messages of 1 ms"),
        (4, 0.0, 100, 0.5, 0.0, "0.05 s of the ring's 0.15 s are hidden"),
        (2, 0.0, 40, 0.5, 0.0, "all of the ring is hidden"),
        (10, 0.0, 0, 0.0, 0.02, "reading for 10 takes 0.2 s, and computing goes on meanwhile"),
        (4, 0.0, 0, 0.0, 0.02, "reading takes less than computing"),
        (2, 0.0, 0, 0.0, 0.2, "already one worker waits for its images"),
        (4, 1e-3, 100, 0.25, 0.06, "reading hides the ring"),
        (1024, 1e-6, 100, 0.0, 0.0, "all of it"),
    ]:
        network = {"gradient": 1e6 * megabytes, "latency": latency, "bandwidth": 1e9}
        decide(n, why, compute=0.1, **network, hidden=hidden, reading=reading)
    decide(4, "hidden and reading left at 0", compute=0.1, gradient=1e8, latency=0.0, bandwidth=1e9)
    for_all(
        decide,
        n=st.integers(1, 2048),
        compute=st.sampled_from((0.01, 0.1, 1.0)),
        gradient=st.sampled_from((0, 1_000_000, 100_000_000)),
        latency=st.sampled_from((0.0, 1e-5, 1e-3)),
        bandwidth=st.sampled_from((1e8, 1e9, 1e10)),
        hidden=st.sampled_from((0.0, 0.25, 0.5, 1.0)),
        reading=st.sampled_from((0.0, 1e-4, 0.02, 0.3)),
    )


@lab.exercise(
    4,
    hints=(
        "gradient_of returns a mean over its images. How do you get from the means of the pieces to the mean of all?",
        "A mean times its number of images is a sum, and sums can be added up. The last piece may be smaller.",
        "For each piece: total[i] += len(piece) / len(x) * gradient_of(piece, its labels)[i].",
    ),
)
def accumulation(answer) -> None:
    """Equal to the gradient of all images at once, with few images at a time."""
    weights, biases = np.random.default_rng(0).normal(size=(3, 4)), np.linspace(-1, 1, 4)

    def decide(count: int, most: int) -> None:
        rng = np.random.default_rng(count)
        seen: list[int] = []  # images in each call
        x, y = rng.normal(size=(count, 3)), rng.integers(0, 4, count)

        def gradient_of(images, labels):
            images, labels = np.asarray(images), np.asarray(labels)
            if len(images) != len(labels):
                raise ValueError(f"gradient_of got {len(images)} images and {len(labels)} labels")
            if not len(images):
                raise ValueError("gradient_of got no image")
            if len(images) > most:
                raise MemoryError(f"{len(images)} images at a time; {most} fit")
            if len(seen) > count:
                raise ValueError("gradient_of was called more often than there are images")
            seen.append(len(images))
            return _softmax_gradient(weights, biases, images, labels)

        got = call(answer, gradient_of, x, y, most)
        case = f"for {count} images, {most} at a time"
        expect(isinstance(got, list | tuple), f"a list of gradients {case}; it is {describe(got)}")
        arrays = [numeric_array(part) for part in got]
        shapes = [describe(part) if array is None else array.shape for part, array in zip(got, arrays, strict=True)]
        expect(shapes == [(3, 4), (4,)], f"gradients of shapes (3, 4) and (4,) {case}; they are {short(shapes)}")
        expect(sum(seen) == count, f"each of the {count} images to be used once {case}; yours uses {sum(seen)}")
        right = _softmax_gradient(weights, biases, x, y)
        off = max(float(np.abs(part - exact).max()) for part, exact in zip(arrays, right, strict=True))
        scale = max(float(np.abs(part).max()) for part in right)
        expect(
            off < 1e-5 * scale,
            f"the gradient of all {count} at once {case}; yours is off by {off / scale:.1%} of its largest number. Is "
            f"it the mean over images, when the pieces have {', '.join(map(str, seen))} of them?",
        )

    for count, most in [(12, 4), (10, 4), (3, 8), (7, 1), (9, 8)]:
        decide(count, most)
    for_all(decide, examples=50, count=st.integers(1, 30), most=st.integers(1, 32))


def _softmax_gradient(weights: np.ndarray, biases: np.ndarray, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Return the gradients of softmax regression's mean cross-entropy, with respect to the weights and the biases."""
    logits = x @ weights + biases
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = (p / p.sum(axis=1, keepdims=True) - np.eye(4)[y]) / len(x)
    return [x.T @ error, error.sum(axis=0)]


@lab.exercise(
    5,
    hints=(
        "A norm is the square root of the sum of all squares: np.linalg.norm, which takes arrays of any shape.",
        "coefficient * ‖w‖ / (‖g‖ + decay * ‖w‖). In which cases does this not help, because a norm is 0?",
        "size, slope = np.linalg.norm(weight), np.linalg.norm(gradient); return 1.0 if size == 0 or slope == 0.",
    ),
)
def trust_ratios(answer) -> None:
    """c·‖w‖ / (‖g‖ + d·‖w‖), and 1 where a norm is 0."""

    def decide(case: str, weight: np.ndarray, gradient: np.ndarray, decay: float, *coefficient: float) -> None:
        size, slope = (math.sqrt((array.astype(float) ** 2).sum()) for array in (weight, gradient))
        right = 1.0 if 0 in (size, slope) else (*coefficient, 0.001)[0] * size / (slope + decay * size)
        same(call(answer, weight, gradient, decay, *coefficient), right, f"the factor for {case}", rel=1e-4)

    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(3, 3, 2, 4)).astype("float32"), 0.1 * rng.normal(size=(3, 3, 2, 4)).astype("float32")
    cases: list[tuple[str, np.ndarray, np.ndarray, float, tuple[float, ...]]] = [
        ("a 3 × 3 × 2 × 4 convolution without decay", w, g, 0.0, ()),
        ("the same with decay 0.1", w, g, 0.1, ()),
        ("the same with coefficient 0.02", w, g, 0.1, (0.02,)),
        ("a dense layer", w[0, 0], g[0, 0], 0.1, ()),
        ("weights and gradient 1,000 times as large, decay 0.1", 1000 * w, 1000 * g, 0.1, ()),
        ("weights that are all 0", 0 * w, g, 0.1, ()),
        ("a gradient that is all 0", w, 0 * g, 0.1, ()),
        ("weights and gradient that are all 0, without decay", 0 * w, 0 * g, 0.0, ()),
    ]
    for case, weight, gradient, decay, coefficient in cases:
        decide(case, weight, gradient, decay, *coefficient)

    def decide_random(
        shape: tuple[int, ...], seed: int, large: float, small: float, decay: float, coefficient: float
    ) -> None:
        rng = np.random.default_rng(seed)
        weight, gradient = (scale * rng.normal(size=shape).astype("float32") for scale in (large, small))
        text = f"normal numbers of shape {shape}, times {large:g} and {small:g}, decay {decay:g}"
        decide(f"{text}, coefficient {coefficient:g}", weight, gradient, decay, coefficient)

    scales = st.sampled_from((1.0, 0.01, 100.0, 0.0))
    for_all(
        decide_random,
        examples=60,
        shape=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
        seed=st.integers(0, 9),
        large=scales,
        small=scales,
        decay=st.sampled_from((0.0, 1e-4, 0.1, 1.0)),
        coefficient=st.sampled_from((0.001, 0.01, 1.0)),
    )
