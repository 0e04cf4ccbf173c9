from labs import ThreeWays


class TestExercises(ThreeWays):
    lab = "00"
    on_ranks = frozenset({3})
