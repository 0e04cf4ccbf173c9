import math
from decimal import Decimal
from fractions import Fraction

import lab_cells
import numpy as np
import pandas as pd
from labs import ThreeWays


class TestExercises(ThreeWays):
    lab = "02"
    names = {"np": np, "math": math, "Decimal": Decimal, "Fraction": Fraction}


def test_loss_is_reached_when_the_mean_of_the_last_losses_is_below_it():
    until = lab_cells.functions("02", "smooth", "until", np=np, pd=pd)["until"]
    run = {"training": {"losses": [3.0, 2.0, 0.1], "seconds": [1.0, 0.5, 0.25]}}  # means 3, 2.5, 1.7
    assert until(3.5, run) == (1, 1.0)
    assert until(2.0, run) == (3, 1.75)
    assert np.isnan(until(1.0, run)).all()
