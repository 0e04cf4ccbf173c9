import json
import math

import numpy as np
import pytest

from labkit.measure import Measured, Source
from labkit.measure.figures import summarize


@pytest.mark.parametrize(
    ("measured", "text", "numbers"),
    [
        (
            Measured(1.808, 1.681, 1.949, "×", of="6.8 → 12.4 images/s"),
            "6.8 → 12.4 images/s: 1.81× (1.68 to 1.95)",
            (1.81, [1.68, 1.95], "×"),
        ),
        (Measured(1.5, unit="×", note="one round"), "1.50×, one round", (1.5, None, "×")),
        (Measured(*(100 * np.array([0.874, 0.75, 1.01])), "%", digits=0), "87% (75 to 101)", (87, [75, 101], "%")),
        (Measured(11408.4, unit="images/s", digits=0), "11,408 images/s", (11408, None, "images/s")),
        (Measured(np.float32(0.0231), unit="s", digits=3), "0.023 s", (0.023, None, "s")),
        (
            Measured(0.02, -0.17, 0.22, "points", signed=True),
            "+0.02 points (-0.17 to +0.22)",
            (0.02, [-0.17, 0.22], "points"),
        ),
        (Measured(3), "3.00", (3, None, "")),
    ],
)
def test_text_and_numbers_have_the_same_digits(measured, text, numbers):
    assert str(measured) == text
    stored = json.loads(json.dumps(measured.numbers()))
    assert stored == dict(zip(("value", "interval", "unit"), numbers, strict=True))


def test_figures_that_are_not_finite_have_no_numbers():
    assert Measured(math.nan, unit="s").numbers() is None
    assert Measured(math.inf, unit="s").numbers() is None
    assert Measured(1, 0.5, math.inf).numbers() == {"value": 1, "interval": None, "unit": ""}


def test_a_figure_is_the_median_of_its_rounds_with_three_significant_digits():
    assert str(summarize([10, 12, 11, 13, 11.5, 14], "ms")) == "11.7 ms (10.0 to 14.0)"
    assert str(summarize([1234, 1235, 1236, 1237, 1238, 1300, 1240], "images/s")) == "1,237 images/s (1,234 to 1,300)"
    assert str(summarize([0.01234] * 6, "s")) == "0.0123 s (0.0123 to 0.0123)"


@pytest.mark.parametrize(("n", "low", "high"), [(6, 1, 6), (7, 1, 7), (8, 1, 8), (9, 2, 8), (12, 3, 10), (20, 6, 15)])
def test_intervals_lie_between_order_statistics(n, low, high):
    figure = summarize(range(n, 0, -1))
    assert (figure.low, figure.high) == (low, high)


def test_fewer_than_six_rounds_give_points_instead_of_an_interval():
    figure = summarize([12.4, 12.1, 12.9, 12.2, 12.3], "images/s")
    assert math.isnan(figure.low)
    assert math.isnan(figure.high)
    assert str(figure) == "12.3 images/s (5 rounds: 12.4, 12.1, 12.9, 12.2, 12.3)"
    assert str(summarize([12.4], "images/s")) == "12.4 images/s"


@pytest.mark.parametrize("noise", ["normal", "exponential", "cauchy"])
@pytest.mark.parametrize("n", [6, 9, 11])
def test_at_least_95_percent_of_intervals_contain_the_true_median(n, noise):
    rng = np.random.default_rng(n)
    logs = {
        "normal": rng.normal(size=(4000, n)),
        "exponential": rng.exponential(size=(4000, n)) - math.log(2),  # median 0, skewed
        "cauchy": rng.standard_cauchy((4000, n)).clip(-700, 700),  # far outliers
    }[noise]
    figures = [summarize(row) for row in np.exp(logs)]
    held = np.mean([figure.low <= 1 <= figure.high for figure in figures])
    assert held > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 4000)


def test_the_source_says_what_produced_a_figure_and_when():
    source = Source("section 3: eager, graph", "2026-11-28T10:41:07.123+00:00")
    figure = summarize([2.0] * 6, "ms", source)
    assert str(figure.source) == "section 3: eager, graph, 2026-11-28T10:41:07"
    assert figure.numbers()["source"] == str(source)
