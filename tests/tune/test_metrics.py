"""The metric is found in what a command prints, and a failure quotes its last lines."""

import sys

import pytest

from labkit.system.errors import LabError
from labkit.tune.metrics import by_field, by_pattern, format_metric, measure, reader, unit


def printing(*lines, status=0):
    return [sys.executable, "-S", "-c", f"import sys; print({chr(10).join(lines)!r}); sys.exit({status})"]


@pytest.mark.parametrize(
    ("metric", "lines", "number"),
    [
        (by_pattern(r"total images/sec: ([\d.]+)"), ["total images/sec: 1.5", "total images/sec: 17.25", "bye"], 17.25),
        (by_pattern(r"[\d,.]+(?= GFLOP)"), ["1,234.5 GFLOP/s"], 1234.5),
        (by_pattern("speed (.*)"), ["speed 1e3"], 1000),
        (by_field("speed"), ["start {", '{"speed": 3.5}', "end"], 3.5),
        (by_field("runs.1.speed"), ["{", ' "runs": [{}, {"speed": 4}]', "}"], 4),
        (by_field("speed"), ['{"speed": 1}', '{"speed": 2}'], 2),
    ],
)
def test_the_metric_is_picked(metric, lines, number):
    assert measure(printing(*lines), metric) == number


@pytest.mark.parametrize(
    ("metric", "lines", "told"),
    [
        (by_pattern("speed (.*)"), ["slow"], "no line that matches.* Its last lines:\n  slow"),
        (by_pattern("speed (.*)"), ["speed fast"], "'fast', and not a number"),
        (by_pattern("speed (.*)"), ["speed nan"], "not a number"),
        (by_field("speed"), ["speed"], "no JSON object"),
        (by_field("run.speed"), ['{"run": {"time": 1}}'], "no run.speed: at speed there are time"),
        (by_field("run"), ['{"run": {"time": 1}}'], "not a number"),
    ],
)
def test_no_metric_is_reported_with_the_last_lines(metric, lines, told):
    with pytest.raises(LabError, match=told):
        measure(printing(*lines), metric)


@pytest.mark.slow
def test_a_crash_and_a_hang_are_reported():
    with pytest.raises(LabError, match=r"exit status 3\. Its last lines:\n  out of luck"):
        measure(printing("out of luck", status=3), by_pattern("x"))
    with pytest.raises(LabError, match=r"not over after 1 s\. It printed nothing"):
        measure(["sleep", "60"], by_pattern("x"), timeout=1)


@pytest.mark.parametrize(("pattern", "told"), [("(", "not a regular expression"), ("(a)(b)", "2 groups")])
def test_a_pattern_that_makes_no_sense(pattern, told):
    with pytest.raises(LabError, match=told):
        by_pattern(pattern)


def test_the_options_say_where_the_metric_is():
    lines = ["speed 3", "total images/sec: 2", '{"a": 1}']
    assert [reader(*options)(lines) for options in ((None, None), ("speed (.*)", None), (None, "a"))] == [2, 3, 1]
    assert [unit(*options) for options in ((None, None), ("speed (.*)", None), (None, "a"))] == [
        "images/s",
        "metric",
        "a",
    ]
    with pytest.raises(LabError, match="give one of them"):
        reader("speed (.*)", "a")


@pytest.mark.parametrize(
    ("metric", "text"), [(13_580_000.4, "13,580,000"), (1234.5, "1,234"), (123.456, "123.5"), (0.0123456, "0.01235")]
)
def test_a_metric_has_no_exponent(metric, text):
    assert format_metric(metric) == text
