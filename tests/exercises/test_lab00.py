from labs import ThreeWays


class TestExercises(ThreeWays):
    lab = "00"
    on_ranks = frozenset({2, 3})


def test_solution_passes_in_a_separate_launch(student, capsys):
    """As a student runs it; the answers above share launches."""
    student.check(2, student.answer(2))
    assert "Exercise 2 · passed." in capsys.readouterr().out
