import ast
import math
from pathlib import Path

import numpy as np
import pytest
from labs import Student, ThreeWays, same, swap

from labkit.exercises import sources
from labkit.system.paths import ROOT


@pytest.fixture
def student(tmp_path, monkeypatch):
    """The lab in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Student("08", {"np": np, "math": math})


BY_INTERPOLATION = swap("return peak * step / warmup", "return float(np.interp(step, [0, warmup], [0, peak]))")
HALF_ANGLE = swap(
    "0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))",
    "math.cos(0.5 * math.pi * (step - warmup) / (steps - warmup)) ** 2",
)
INTERLEAVED = swap(
    """first = (step * ranks + rank) * batch
    return [order(place // n)[place % n] for place in range(first, first + batch)]""",
    """first = step * ranks * batch
    stream = np.concatenate([order(epoch) for epoch in range((first + ranks * batch) // n + 1)])
    return stream[first : first + ranks * batch][rank::ranks]""",
)
SUMS = swap(
    """        parts = [len(images) / len(x) * g for g in gradient_of(images, labels)]
        total = parts if total is None else [sum_ + part for sum_, part in zip(total, parts)]
    return total""",
    """        parts = [len(images) * g for g in gradient_of(images, labels)]
        total = parts if total is None else tuple(sum_ + part for sum_, part in zip(total, parts))
    return [part / len(x) for part in total]""",
)
BY_DOT_PRODUCT = swap("np.linalg.norm(weight)", "math.sqrt(np.vdot(weight, weight))")
RATIO_OF_STEPS = swap("return step(1) / step(n)", "return np.float64(max(compute, reading) / step(n))")


class TestExercises(ThreeWays):
    lab = "08"
    mistakes = [
        (1, swap("lr_init * batch / 256", "lr_init"), "to be 1.024 (four times the images, four times the rate)"),
        (1, swap("lr_init * batch / 256", "lr_init * batch"), "to be 0.256 (the peak for 256 images a step)"),
        (1, swap("if step < warmup", "if False"), "(the warm-up starts at 0)"),
        (1, swap("if step < warmup", "if step <= warmup"), "ZeroDivisionError"),
        (1, swap("(step - warmup) / (steps - warmup)", "step / steps"), "(the peak for 256 images a step)"),
        (1, swap("peak * 0.5 * (1 +", "peak * (1 +"), "to be 0.256 (the peak for 256 images a step); it is 0.512"),
        (1, swap("math.pi * ", "0.5 * math.pi * "), "(halfway down the cosine)"),
        (1, swap("step / warmup", "step / int(warmup)"), "(the warm-up need not be whole steps)"),
        (1, swap("return peak * step / warmup", "return math.nan"), "(the warm-up starts at 0); it is nan"),
        (1, swap("return peak * 0.5", "peak * 0.5"), "to be a number; it is None: does it return?"),
        (1, swap("batch / 256", "(batch // 256)"), "(a quarter of the images, a quarter of the rate)"),
        (1, swap("batch / 256", "max(batch / 256, 0.25)"), "batch="),
        (
            2,
            swap("order(place // n)[place % n]", "np.sort(order(place // n))[place % n]"),
            "of the stream; yours takes",
        ),
        (2, swap("    return [order", "    order(0).sort()\n    return [order"), "to stay as they were"),
        (2, swap("(step * ranks + rank) * batch", "step * ranks * batch"), "no image more often"),
        (2, swap("(step * ranks + rank) * batch", "(step + rank) * batch"), "the next 6 of the stream"),
        (2, swap("order(place // n)", "order(0)"), "of the stream; yours takes"),
        (2, swap("[place % n]", "[place]"), "IndexError"),
        (2, swap("first + batch)", "first + ranks * batch)"), "to have 3 images; it has 6"),
        (2, swap("order(place // n)[place % n]", "place + n"), "to be numbers from 0 to 11"),
        (
            2,
            swap("[order(place // n)[place % n] for", "[[order(place // n)[place % n]] for"),
            "image 0 of my_images(step=0, rank=0, ranks=1, batch=4, n=12, order) to be a number; it is a list",
        ),
        (
            2,
            swap("return [order", "[order"),
            "to be a list or an array of one dimension; it is None: does it return?",
        ),
        (3, swap("2 * (n - 1)", "(n - 1)"), "the ring takes as long as the computing"),
        (3, swap("gradient / n /", "gradient /"), "(the ring takes as long as the computing); it is 0.3333"),
        (
            3,
            swap("max(0, ring - hidden * compute)", "ring - hidden * compute"),
            "0.05 s of the ring's 0.15 s are hidden",
        ),
        (3, swap("hidden * compute", "0"), "0.05 s of the ring's 0.15 s are hidden"),
        (3, swap("n * reading", "reading"), "reading for 10 takes 0.2 s"),
        (3, swap("step(1) / step(n)", "compute / step(n)"), "already one worker waits for its images"),
        (3, swap("return step(1) / step(n)", "return step(n) / step(1)"), "the ring takes as long as the computing"),
        (3, swap("latency + gradient", "gradient"), "200 messages of 1 ms"),
        (
            3,
            swap("return step(1) / step(n)", "return f'{step(1) / step(n):.0%}'"),
            "to be a number; it is '100%', of type str",
        ),
        (3, swap("hidden=0.0, reading=0.0", "hidden, reading"), "missing 2 required positional arguments"),
        (4, swap("len(images) / len(x) * g", "g"), "yours is off by"),
        (4, swap("len(images) / len(x) * g", "most / len(x) * g"), "when the pieces have 4, 4, 2 of them"),
        (4, swap("range(0, len(x), most)", "range(0, len(x) // most * most, most)"), "each of the 10 images"),
        (4, swap("start : start + most", "start:"), "MemoryError: 12 images at a time; 4 fit"),
        (4, swap("labels = x[start : start + most], y[start : start + most]", "labels = x[:most], y"), "and 12 labels"),
        (4, swap("    return total", "    return total[0]"), "a list of gradients for 12 images"),
        (4, swap("    return total", "    return total[::-1]"), "gradients of shapes (3, 4) and (4,)"),
        (4, swap("    total = None", "    total = None\n    x /= 255"), "x to stay as it was; accumulate changed it"),
        (5, swap("coefficient * size", "0.001 * size"), "the same with coefficient 0.02"),
        (5, swap("slope == 0", "slope < 0.1"), "the factor for"),
        (5, swap("coefficient * size", "size"), "for a 3 × 3 × 2 × 4 convolution"),
        (5, swap("slope + decay * size", "slope"), "for the same with decay 0.1"),
        (5, swap("coefficient * size / (slope", "coefficient * slope / (size"), "for a 3 × 3 × 2 × 4 convolution"),
        (5, swap("np.linalg.norm(weight)", "np.abs(weight).sum()"), "for a 3 × 3 × 2 × 4 convolution"),
        (5, swap("if size == 0 or slope == 0", "if False"), "the factor for weights that are all 0 to be 1; it is 0"),
        (5, swap("if size == 0 or slope == 0", "if size == 0"), "the factor for a gradient that is all 0 to be 1"),
        (5, swap("    size, slope", "    gradient += 1\n    size, slope"), "gradient to stay as it was"),
        (5, swap("return float(", "weight *= 0\n    return float("), "weight to stay as it was"),
        (
            5,
            swap("return float(coefficient * size", "return (coefficient * np.abs(weight)"),
            "to be a number; it is an array of shape (3, 3, 2, 4), float32",
        ),
    ]
    right = [
        (1, same),
        (1, BY_INTERPOLATION),
        (1, HALF_ANGLE),
        (1, swap("return peak * 0.5", "return np.float32(peak) * 0.5")),
        (2, same),
        (2, INTERLEAVED),
        (
            2,
            swap(
                "return [order(place // n)[place % n] for place in",
                "return [float(order(place // n)[place % n]) for place in",
            ),
        ),
        (3, same),
        (3, RATIO_OF_STEPS),
        (4, same),
        (4, SUMS),
        (5, same),
        (5, BY_DOT_PRODUCT),
    ]


def code_of(path: Path, name: str) -> str:
    """Return a function's code without annotations and comments."""
    function = next(node for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == name)
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(function)


def test_the_training_step_that_students_read_is_the_programs():
    program = ROOT / "labkit" / "train" / "loop.py"
    assert code_of(sources.find("08"), "make_train_step") == code_of(program, "make_train_step")
