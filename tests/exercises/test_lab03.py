from labs import ThreeWays


class TestExercises(ThreeWays):
    lab = "03"
