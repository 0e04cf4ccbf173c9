import ast
import math
from pathlib import Path

import lab_cells
import numpy as np
import pytest
from labs import Student, ThreeWays, same, swap

from labkit.exercises import sources
from labkit.system import statistics
from labkit.system.paths import ROOT
from labkit.train import schedule


@pytest.fixture
def student(tmp_path, monkeypatch):
    """The lab in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Student("08", {"np": np, "math": math, "statistics": statistics})


STEP_BY_STEP = swap(
    """    epochs = int(hours * 3600 * speed / images)
    peak = min(0.256 * batch / 256, max_rate)
    warmup_steps = peak / max_rise  # the rate rises by peak / warmup_steps a step
    return epochs, peak * 256 / batch, warmup_steps * batch / images""",
    """    lr_init = min(0.256, max_rate * 256 / batch)
    steps_per_epoch = images / batch
    warmup = lr_init * batch / 256 / max_rise / steps_per_epoch
    return [np.floor(hours * 3600 / (images / speed)), np.float64(lr_init), warmup]""",
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
CASE_BY_CASE = swap(
    """    suspects = {"reading": "32, no reading", "network": "32, fp16 gradients"}
    gains = {word: statistics.ratio(speeds[run], speeds["32"]) for word, run in suspects.items()}
    shown = [word for word, gain in gains.items() if gain.low > 1]
    if shown:
        return max(shown, key=lambda word: gains[word].value)
    return "batch" if statistics.ratio(speeds["32"], speeds["16"]).low > 1 else "measure\"""",
    """    reading = statistics.ratio(speeds["32, no reading"], speeds["32"])
    network = statistics.ratio(speeds["32, fp16 gradients"], speeds["32"])
    if reading.verdict == "faster" and not (network.verdict == "faster" and network.value > reading.value):
        return "reading"
    if network.verdict == "faster":
        return "network"
    if statistics.ratio(speeds["32"], speeds["16"]).verdict == "faster":
        return "batch"
    return "measure\"""",
)
RATIO_OF_STEPS = swap("return step(1) / step(n)", "return np.float64(max(compute, reading) / step(n))")


class TestExercises(ThreeWays):
    lab = "08"
    mistakes = [
        (1, swap("hours * 3600 * speed", "hours * 60 * speed"), "to use its hours; after 1 epochs there is time for"),
        (
            1,
            swap("int(hours * 3600 * speed / images)", "math.ceil(hours * 3600 * speed / images)"),
            "65 epochs take 4.01",
        ),
        (1, swap("int(hours * 3600 * speed / images)", "hours * 3600 * speed / images"), "to be a whole number"),
        (1, swap("speed / images", "speed * batch / images"), "to fit into its hours"),
        (1, swap("min(0.256 * batch / 256, max_rate)", "0.256 * batch / 256"), "to be 8 (the limit); it is 65.54"),
        (1, swap("min(0.256 * batch / 256, max_rate)", "max_rate"), "to be 1.024 (by the linear rule); it is 10"),
        (1, swap("peak * 256 / batch,", "peak,"), "to be 1.024 (by the linear rule); it is 4.096"),
        (1, swap("warmup_steps * batch / images", "warmup_steps"), "as short as it may"),
        (1, swap("warmup_steps * batch / images", "warmup_steps / images"), "at most; in"),
        (1, swap("warmup_steps * batch / images", "8"), "as short as it may; in 8 epochs"),
        (1, swap("warmup_steps * batch / images", "0"), "as the rate cannot jump; it is 0"),
        (1, swap("return epochs,", "epochs,"), "to be three values; it is None: does it return?"),
        (1, swap("return epochs,", "return f'{epochs}',"), "to be a number; it is '64'"),
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
        (5, swap("gain.low > 1", "gain.value > 1"), "(a higher mean whose interval has 1 in it)"),
        (5, swap("gain.low > 1", "gain.significant"), "(both are slower)"),
        (
            5,
            swap('speeds[run], speeds["32"])', 'speeds[run], speeds["16"])'),
            "(nothing helps, and 32 are faster than 16)",
        ),
        (5, swap('speeds[run], speeds["32"])', 'speeds["32"], speeds[run])'), "(without reading it is nearly twice"),
        (5, swap("max(shown", "min(shown"), "(both help, the second more)"),
        (5, swap("max(shown, key=lambda word: gains[word].value)", "shown[-1]"), "(both help, the first more)"),
        (5, swap("if shown:", "if len(shown) == 1:"), "(both help, the second more)"),
        (5, swap("max(shown, key", "max(gains, key"), "(the larger gain is not shown)"),
        (5, swap('["16"]).low > 1', '["16"]).value > 1'), "(32 have a higher mean than 16"),
        (5, swap('else "measure"', 'else "batch"'), '"measure" of 16: '),
        (5, swap('return "batch" if', 'return "reading" if'), "(nothing helps, and 32 are faster than 16)"),
        (5, swap("        return max(", "        max("), "(without reading it is nearly twice as fast); it is"),
    ]
    right = [
        (1, same),
        (1, STEP_BY_STEP),
        (1, swap("int(hours * 3600 * speed / images)", "hours * 3600 * speed // images")),
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
        (5, CASE_BY_CASE),
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


@pytest.mark.parametrize("warmup", [0, 62.5, 100, 400])
def test_the_rate_that_students_read_is_the_programs(warmup):
    rate = lab_cells.functions("08", "learning_rate", math=math)["learning_rate"]
    for step in range(200):
        right = schedule.learning_rate(step, 200, warmup, schedule.peak_rate(0.8, 64), cosine=True)
        assert rate(step, 200, warmup, 64, 0.8) == pytest.approx(right, abs=1e-12)


def cells(*names):
    """Return functions of the lab's cells that judge a measurement."""
    return lab_cells.functions("08", *names, math=math, np=np, statistics=statistics)


@pytest.mark.parametrize(
    ("strong", "weak", "of_strong", "of_weak", "between"),
    [
        ([1800, 1810, 1790], [1960, 1950, 1970], "): below 100%", "below 100%", "faster"),
        ([2000, 2010, 1990], [2005, 1990, 2000], "not told apart from 100%", "not told apart", "no difference beyond"),
        ([2400, 2410, 2390], [2200, 2210, 2190], "above 100%", "above 100%", "slower"),
        ([1500, 2600, 1900], [1950, 1990, 2100], "not told apart from 100%", "not told apart", "no difference beyond"),
        ([1800], [1960], "efficiency 90%: one round only", "efficiency 98%: one round only", "one round only"),
        (None, [1960], None, "efficiency 98%: one round only", None),
    ],
)
def test_scaling_is_told_as_far_as_its_rounds_show(strong, weak, of_strong, of_weak, between, capsys):
    one = [1000, 1005, 995][: len(weak)]
    speeds = {("weak", 1): one, ("weak", 2): weak} | ({("strong", 2): strong} if strong else {})
    cells("efficiency_of", "tell_efficiency")["tell_efficiency"](speeds)
    lines = capsys.readouterr().out.splitlines()
    assert of_weak in next(line for line in lines if line.startswith("weak "))
    for beginning, text in (("strong ", of_strong), ("on 2, weak", between)):
        found = [line for line in lines if line.startswith(beginning)]
        assert len(found) == (strong is not None)
        assert all(text in line for line in found)


@pytest.mark.parametrize(
    ("top1", "reference", "verdict"),
    [
        (0.946, 0.942, "+0.4 points, no more than the 2.9 of chance"),
        (0.686, 0.946, "-26.0 points, more than the"),
        (0.99, 0.90, "+9.0 points, more than the"),
        (1.0, 1.0, "+0.0 points, no more than the 0.0 of chance"),
    ],
)
def test_two_accuracies_are_told_apart_only_beyond_chance(top1, reference, verdict, capsys):
    cells("tell_accuracy")["tell_accuracy"]("a run", top1, reference, 500)
    assert verdict in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (statistics.Ratio(0.96, 0.94, 0.98), "predicts 97%, which is inside the measured 94% to 98%"),
        (statistics.Ratio(0.90, 0.88, 0.92), "predicts 97%, which is outside the measured 88% to 92%"),
        (statistics.Ratio(1.05, 1.0, 1.1), "outside"),
        (statistics.Ratio(0.96), "one round measured 96%, so there is no interval"),
    ],
)
def test_a_prediction_is_held_against_the_interval(found, text, capsys):
    cells("tell_prediction")["tell_prediction"](0.97, found)
    assert text in capsys.readouterr().out
