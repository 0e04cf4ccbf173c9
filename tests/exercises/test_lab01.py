from dataclasses import replace

import tensorflow as tf
from labs import ThreeWays


class TestExercises(ThreeWays):
    lab = "01"
    names = {"replace": replace, "tf": tf}
