import math
from decimal import Decimal
from fractions import Fraction

import lab_cells
import numpy as np
import pandas as pd
import pytest
from labs import ThreeWays

from labkit.display.measured import Measured
from labkit.system.statistics import ratios


class TestExercises(ThreeWays):
    lab = "02"
    names = {"np": np, "math": math, "Decimal": Decimal, "Fraction": Fraction}


@pytest.mark.parametrize(
    ("speeds", "verdict"),
    [
        ([20.0, 20.2, 19.9], "faster"),
        ([5.0, 5.1, 4.9], "slower"),
        ([10.0, 9.8, 10.3], "not significant"),
        ([20.0], "one round only, so there is no interval"),
    ],
)
def test_verdict_on_a_configuration_follows_from_its_rounds(speeds, verdict, capsys):
    tell = lab_cells.functions("02", "tell", ratios=ratios, Measured=Measured)["tell"]
    first = [10.0, 10.1, 9.9][: len(speeds)]
    tell({"Eigen": first, "oneDNN": speeds})
    assert f" vs Eigen: {verdict}" in capsys.readouterr().out


def test_loss_is_reached_when_the_mean_of_the_last_losses_is_below_it():
    until = lab_cells.functions("02", "smooth", "until", np=np, pd=pd)["until"]
    run = {"training": {"losses": [3.0, 2.0, 0.1], "seconds": [1.0, 0.5, 0.25]}}  # means 3, 2.5, 1.7
    assert until(3.5, run) == (1, 1.0)
    assert until(2.0, run) == (3, 1.75)
    assert np.isnan(until(1.0, run)).all()
