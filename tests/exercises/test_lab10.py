import numpy as np
from labs import ThreeWays


class TestExercises(ThreeWays):
    lab = "10"
    names = {"np": np}
