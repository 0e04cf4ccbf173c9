"""Are the answers to lab 08 right: schedule, a rank's images, efficiency, accumulation, LARS' trust ratio?"""

import math

import numpy as np

from labkit.exercises.answers import call
from labkit.exercises.core import Lab
from labkit.exercises.values import describe, is_number
from labkit.exercises.verdicts import expect

lab = Lab("08")


@lab.exercise(
    1,
    hints=(
        "Two cases: before step `warmup`, and from it on. Which share of the way has been gone in each?",
        "The peak is lr_init * batch / 256. In the warm-up the share of it is step / warmup; afterwards it is half of "
        "1 + the cosine of π times the share of the rest that is over.",
        "peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) once step >= warmup, which also "
        "spares you 0 / 0.",
    ),
)
def learning_rates(answer) -> None:
    """A ramp from 0 to the peak of the linear rule, then half a cosine down to 0."""
    for step, steps, warmup, batch, right, why in [
        (100, 1000, 100, 256, 0.256, "the peak for 256 images a step"),
        (100, 1000, 100, 1024, 1.024, "four times the images, four times the rate"),
        (0, 1000, 100, 1024, 0.0, "the warm-up starts at 0"),
        (50, 1000, 100, 1024, 0.512, "half of the warm-up"),
        (550, 1000, 100, 1024, 0.512, "half of the way down the cosine"),
        (325, 1000, 100, 1024, 0.512 * (1 + math.sqrt(0.5)), "a quarter of the way down the cosine"),
        (999, 1000, 100, 256, 0.128 * (1 + math.cos(math.pi * 899 / 900)), "the last step, nearly 0"),
        (30, 200, 62.5, 512, 0.24576, "the warm-up need not be whole steps"),
        (0, 1000, 0, 256, 0.256, "no warm-up"),
        (5, 10, 20, 256, 0.064, "a warm-up that is longer than the run"),
    ]:
        got = call(answer, step, steps, warmup, batch, 0.256)
        asked = f"learning_rate(step={step}, steps={steps}, warmup={warmup}, batch={batch}, lr_init=0.256)"
        expect(is_number(got), f"{asked} to be a number; it is {describe(got)}")
        close = math.isclose(got, right, rel_tol=1e-6, abs_tol=1e-9)
        expect(close, f"{asked} to be {right:.6g} ({why}); it is {got:.6g}")


@lab.exercise(
    2,
    hints=(
        "Number the images of all epochs one after the other: the stream. How many of them does one step of all ranks "
        "take, and where does step `step` begin?",
        "Rank r takes the r-th `batch` of them, from (step * ranks + rank) * batch on. Place p of the stream is in "
        "epoch p // n, at place p % n.",
        "[order(p // n)[p % n] for p in range(first, first + batch)]",
    ),
)
def shares(answer) -> None:
    """All ranks' images of a step are the next piece of the stream of epochs."""
    for n, ranks, batch in [(12, 1, 4), (12, 2, 3), (12, 3, 2), (10, 2, 3), (10, 3, 4), (5, 2, 4), (3, 2, 5)]:
        orders = [np.random.default_rng((n, epoch)).permutation(n) for epoch in range(40)]
        stream = np.concatenate(orders).tolist()
        for step in range(4):
            case = f"step {step} with {n} images and {ranks} {'rank' if ranks == 1 else 'ranks'} × {batch}"
            got = [image for rank in range(ranks) for image in _images(answer, step, rank, ranks, batch, n, orders)]
            right = stream[step * ranks * batch : (step + 1) * ranks * batch]
            often = [image for image in sorted(set(got)) if got.count(image) > right.count(image) > 0]
            expect(not often, f"{case} to take no image more often than the stream has it there; yours repeats {often}")
            expect(
                sorted(got) == sorted(right),
                f"{case} to take {sorted(right)}, the next {ranks * batch} of the stream; yours takes {sorted(got)}",
            )


def _images(answer, step: int, rank: int, ranks: int, batch: int, n: int, orders: list[np.ndarray]) -> list[int]:
    """Give a rank's images as a list, or tell what else the answer is."""

    def my_images(step: int, rank: int, ranks: int, batch: int, n: int) -> object:
        return answer(step, rank, ranks, batch, n, lambda epoch: orders[epoch].copy())

    got = call(my_images, step, rank, ranks, batch, n)
    asked = f"my_images(step={step}, rank={rank}, ranks={ranks}, batch={batch}, n={n}, order)"
    row = isinstance(got, list | tuple | range) or (isinstance(got, np.ndarray) and got.ndim == 1)
    expect(row, f"{asked} to be a list or an array of one dimension; it is {describe(got)}")
    expect(len(got) == batch, f"{asked} to have {batch} images; it has {len(got)}")
    expect(all(is_number(image) for image in got), f"{asked} to be {batch} numbers; it is {got!r}")
    expect(all(image in range(n) for image in got), f"{asked} to be numbers from 0 to {n - 1}; it is {got!r}")
    return [int(image) for image in got]


@lab.exercise(
    3,
    hints=(
        "Three times make a step: computing, what of the all-reduce is not hidden behind it, and reading, which goes "
        "on at the same time as the first two.",
        "ring = 2 * (n - 1) * (latency + gradient / n / bandwidth). Not hidden is what it takes longer than hidden * "
        "compute; that is never less than 0.",
        "step(n) = max(compute + max(0, ring - hidden * compute), n * reading); the efficiency is step(1) / step(n).",
    ),
)
def efficiencies(answer) -> None:
    """One worker's step over that of n: computing, a ring that may hide behind it, and shared reading."""
    mega, giga = 1e6, 1e9
    for n, latency, size, hidden, reading, right, why in [
        (1, 1e-3, 100 * mega, 0.0, 0.0, 1.0, "one worker sends nothing"),
        (2, 0.0, 100 * mega, 0.0, 0.0, 0.5, "the ring takes as long as the computing"),
        (4, 0.0, 100 * mega, 0.0, 0.0, 0.4, "the ring sends 2 · 3/4 of the gradient"),
        (101, 1e-3, 0.0, 0.0, 0.0, 1 / 3, "200 messages of 1 ms"),
        (4, 0.0, 100 * mega, 0.5, 0.0, 0.5, "0.05 s of the ring's 0.15 s are hidden"),
        (2, 0.0, 40 * mega, 0.5, 0.0, 1.0, "all of the ring is hidden"),
        (10, 0.0, 0.0, 0.0, 0.02, 0.5, "reading for 10 takes 0.2 s, and computing goes on meanwhile"),
        (4, 0.0, 0.0, 0.0, 0.02, 1.0, "reading takes less than computing"),
        (2, 0.0, 0.0, 0.0, 0.2, 0.5, "already one worker waits for its images"),
        (4, 1e-3, 100 * mega, 0.25, 0.06, 0.1 / 0.24, "reading hides the ring"),
        (1024, 1e-6, 100 * mega, 0.0, 0.0, 0.1 / (0.1 + 2046 * (1e-6 + 100e6 / 1024 / 1e9)), "all of it"),
    ]:
        arguments = {"compute": 0.1, "gradient": size, "latency": latency, "bandwidth": giga}
        arguments |= {"hidden": hidden, "reading": reading}
        got = call(answer, n, **arguments)
        asked = f"efficiency({n}, {', '.join(f'{name}={value:g}' for name, value in arguments.items())})"
        expect(is_number(got), f"{asked} to be a number; it is {describe(got)}")
        expect(math.isclose(got, right, rel_tol=1e-6), f"{asked} to be {right:.4g} ({why}); it is {got:.4g}")


@lab.exercise(
    4,
    hints=(
        "gradient_of gives a mean over its images. How do you get from the means of the pieces to the mean of all?",
        "A mean times its number of images is a sum, and sums can be added up. The last piece may be smaller.",
        "For each piece: total[i] += len(piece) / len(x) * gradient_of(piece, its labels)[i].",
    ),
)
def accumulation(answer) -> None:
    """Equal to the gradient of all images at once, with few images at a time."""
    rng = np.random.default_rng(0)
    weights, biases = rng.normal(size=(3, 4)), rng.normal(size=4)
    for count, most in [(12, 4), (10, 4), (3, 8), (7, 1), (9, 8)]:
        x, y = rng.normal(size=(count, 3)), rng.integers(0, 4, count)
        before, seen = (x.copy(), y.copy()), []

        def gradient_of(x, y, before=before, seen=seen, most=most):
            x, y = np.asarray(x), np.asarray(y)
            if len(x) != len(y):
                raise ValueError(f"gradient_of got {len(x)} images and {len(y)} labels")
            if not len(x):
                raise ValueError("gradient_of got no image")
            if len(x) > most:
                raise MemoryError(f"{len(x)} images at a time; {most} fit")
            if len(seen) > len(before[0]):
                raise ValueError("gradient_of was called more often than there are images")
            seen.append(len(x))
            return _softmax_gradient(weights, biases, x, y)

        def accumulated(count: int, most: int, gradient_of=gradient_of, x=x, y=y) -> object:
            return answer(gradient_of, x, y, most)

        got = call(accumulated, count, most)
        same = np.array_equal(x, before[0]) and np.array_equal(y, before[1])
        expect(same, "images and labels to be left as they were; yours changes them")
        case = f"for {count} images, {most} at a time"
        expect(isinstance(got, list | tuple), f"a list of gradients {case}; it is {describe(got)}")
        right = _softmax_gradient(weights, biases, *before)
        got = [_array(part) for part in got]
        shapes = [part.shape for part in got]
        expect(shapes == [(3, 4), (4,)], f"gradients of shapes (3, 4) and (4,) {case}; they are {shapes}")
        expect(sum(seen) == count, f"each of the {count} images to be used once {case}; yours uses {sum(seen)}")
        off = max(float(np.abs(part - exact).max()) for part, exact in zip(got, right, strict=True))
        scale = max(float(np.abs(part).max()) for part in right)
        expect(
            off < 1e-6 * scale,
            f"the gradient of all {count} at once {case}; yours is off by {off / scale:.1%} of its largest number. Is "
            f"it the mean over images, when the pieces have {', '.join(map(str, seen))} of them?",
        )


def _array(part: object) -> np.ndarray:
    """Give numbers as an array; an empty one when they are none."""
    try:
        return np.asarray(part, dtype=float)
    except (TypeError, ValueError):
        return np.empty(0)


def _softmax_gradient(weights: np.ndarray, biases: np.ndarray, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Give the gradients of softmax regression's mean cross entropy, by weights and by biases."""
    logits = x @ weights + biases
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = (p / p.sum(axis=1, keepdims=True) - np.eye(4)[y]) / len(x)
    return [x.T @ error, error.sum(axis=0)]


@lab.exercise(
    5,
    hints=(
        "A norm is the square root of the sum of all squares: np.linalg.norm, which takes arrays of any shape.",
        "coefficient * ‖w‖ / (‖g‖ + decay * ‖w‖). When is that useless, because a norm is 0?",
        "size, slope = np.linalg.norm(weight), np.linalg.norm(gradient); give 1.0 if size == 0 or slope == 0.",
    ),
)
def trust_ratios(answer) -> None:
    """0.001·‖w‖ / (‖g‖ + d·‖w‖), and 1 where a norm is 0."""
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(3, 3, 2, 4)).astype("float32"), 0.1 * rng.normal(size=(3, 3, 2, 4)).astype("float32")
    size, slope = (math.sqrt((array.astype(float) ** 2).sum()) for array in (w, g))
    cases = [
        ("a 3 × 3 × 2 × 4 convolution without decay", w, g, 0.0, 0.001 * size / slope),
        ("the same with decay 0.1", w, g, 0.1, 0.001 * size / (slope + 0.1 * size)),
        ("a dense layer", w[0, 0], g[0, 0], 0.1, None),
        ("weights and gradient 1,000 times as large, decay 0.1", 1000 * w, 1000 * g, 0.1, None),
        ("weights that are all 0", 0 * w, g, 0.1, 1.0),
        ("a gradient that is all 0", w, 0 * g, 0.1, 1.0),
        ("weights and gradient that are all 0, without decay", 0 * w, 0 * g, 0.0, 1.0),
    ]
    for case, weight, gradient, decay, right in cases:
        before = weight.copy(), gradient.copy()
        if right is None:
            size, slope = (math.sqrt((array.astype(float) ** 2).sum()) for array in before)
            right = 0.001 * size / (slope + decay * size)

        def trust_ratio(decay: float, weight=weight, gradient=gradient) -> object:
            with np.errstate(all="ignore"):  # what comes of 0 / 0 is told below
                return answer(weight, gradient, decay)

        got = call(trust_ratio, decay)
        same = np.array_equal(weight, before[0]) and np.array_equal(gradient, before[1])
        expect(same, "weight and gradient to be left as they were; yours changes them")
        if isinstance(got, np.ndarray) and got.ndim == 0:
            got = got.item()
        expect(is_number(got), f"one number for {case}; it is {describe(got)}")
        expect(math.isclose(got, right, rel_tol=1e-4), f"{right:.6g} for {case}; it is {got:.6g}")
