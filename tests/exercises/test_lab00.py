from labs import ThreeWays


class TestExercises(ThreeWays):
    lab = "00"
    on_ranks = frozenset({2, 3})


def test_a_solution_passes_in_a_launch_of_its_own(student, capsys):
    """As a student runs it: the answers above share launches."""
    student.check(2, student.answer(2))
    assert "Exercise 2 · passed." in capsys.readouterr().out
