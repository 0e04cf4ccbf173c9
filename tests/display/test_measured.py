import json
import math

import numpy as np
import pytest

from labkit.display.measured import Measured, with_unit
from labkit.system.statistics import Ratio


@pytest.mark.parametrize(
    ("measured", "text", "numbers"),
    [
        (
            Measured(*Ratio(1.808, 1.681, 1.949), "×", of="6.8 → 12.4 images/s"),
            "6.8 → 12.4 images/s: 1.81× (1.68 to 1.95)",
            (1.81, [1.68, 1.95], "×"),
        ),
        (Measured(*Ratio(1.5), "×", note="one round"), "1.50×, one round", (1.5, None, "×")),
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


def test_a_unit_follows_its_number():
    assert [with_unit("3", unit) for unit in ("×", "%", "ms", "")] == ["3×", "3%", "3 ms", "3"]
