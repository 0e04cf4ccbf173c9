import pytest

from labkit.authoring import lint
from labkit.exercises import sources


@pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)
def test_sources_are_well_made(source):
    if problems := lint.lint(source):
        pytest.fail("\n".join(problems), pytrace=False)


def test_a_problem_is_reported_by_file_and_line(write_source):
    source = write_source("[markdown]\n# # T", "x = 1\n\nplt.show()")
    number = source.read_text().splitlines().index("plt.show()") + 1
    assert [problem.partition(": ")[0].endswith(f"{source.name}:{number}") for problem in lint.lint(source)] == [True]


def test_an_exercise_without_a_check_and_a_long_one_are_problems(write_source):
    text = "def f():\n" + "    x = 1\n" * lint.MAX_GAP_LINES + "    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION"
    problems = lint.lint(write_source("[markdown]\n# # T", text, '[tags=["nbval-check-output"]\nf = check(1, f)'[1:]))
    assert any("exercise 1 has no check" in problem for problem in problems), problems
    assert any("lines: at most" in problem for problem in problems), problems
    (lone,) = lint.lint(write_source("[markdown]\n# # T", text))
    assert "no `name = check(N, …)` follows" in lone


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ("!ls", "bare !command"),
        ("files = !ls", "bare !command"),
        ("open('/home/me/x')", "absolute path"),
        ("open('~/x')", "absolute path"),
        ("[markdown]\n# # T\n#\n# ![](picture.png)", "alternative text"),
        ('[markdown]\n# # T\n#\n# <img src="picture.png">', "alternative text"),
        ("plt.show()", "alternative text"),
        ("plots.show(figure)", "without alt"),
        ('plots.show(figure, alt="")', "empty alt"),
        ("x = (", "syntax error"),
        ("%%writefile work/train_hvd.py\nx = 1", "07_horovod_mnist.py writes work/train_hvd.py too"),
        ("[markdown]\n# ## T", "the first heading"),
        ("[markdown]\n# # T\n#\n# ### U", "jumps"),
        ("[markdown]\n# # T\n#\n# # U", "second title"),
    ],
)
def test_lint_finds(write_source, cell, complaint):
    cells = [cell] if cell.startswith("[markdown]") else ["[markdown]\n# # T", cell]
    problems = lint.lint(write_source(*cells))
    assert any(complaint in problem for problem in problems), problems


def test_lint_finds_a_check_that_nobody_compares(write_source):
    answer = "def f():\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION"
    problems = lint.lint(write_source("[markdown]\n# # T", answer, "f = check(1, f)", name="00_made_up.py"))
    assert any("without the tag nbval-check-output" in problem for problem in problems), problems


def test_lint_finds_an_exercise_without_a_check_in_the_labs_module(write_source):
    answer = "def f():\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION"
    cells = [cell for number in range(1, 10) for cell in (answer, f"f = check({number}, f)")]
    problems = lint.lint(write_source("[markdown]\n# # T", *cells, name="00_made_up.py"))
    assert any("exercise 9 has no check" in problem for problem in problems), problems
