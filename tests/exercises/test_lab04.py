import numpy as np
from labs import ThreeWays


class TestExercises(ThreeWays):
    lab = "04"
    names = {"np": np}
    slow = frozenset({5, 6})
