import pytest

from labkit.exercises import minutes, sources
from labkit.exercises.minutes import Section
from labkit_author import lint


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
        ("from x import *", "import * hides"),
        ("'x' in globals()", "globals() hides which names a cell takes"),
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


def lab_with_an_optional_section(write_source, monkeypatch, core, optional, closing):
    """A lab's source of which section 2 may be left out, and the lines of what lint says of it."""
    monkeypatch.setattr(minutes, "plan", lambda source: [Section("1"), Section("2", core=False), Section("3")])
    headings = [f"[markdown]\n# # T\n#\n# ## {n} · S" if n == 1 else f"[markdown]\n# ## {n} · S" for n in (1, 2, 3)]
    source = write_source(headings[0], core, headings[1], optional, headings[2], closing)
    lines = source.read_text().splitlines()
    return [(lines[int(found.split(":")[1]) - 1], found.partition(": ")[2]) for found in lint.lint(source)]


def test_what_a_core_cell_takes_from_an_optional_section_is_told_by_its_line(write_source, monkeypatch):
    made = lab_with_an_optional_section(write_source, monkeypatch, "a = 1", "a = 2", "b = 3\n\nprint(a)")
    assert [line for line, _ in made] == ["print(a)"]
    assert made[0][1].startswith("takes a from section 2, which is optional: ")
    assert lab_with_an_optional_section(write_source, monkeypatch, "a = 1", "b = a", "print(a)") == []


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (("pass", 'r.hand_in("2")', 'r.handed_in("2")'), []),
        (("pass", 'r.hand_in("2")', "pass"), [('r.hand_in("2")', "the closing table does not ask for them")]),
        (("pass", "pass", 'r.handed_in("2")'), [('r.handed_in("2")', "which hands in none")]),
        (("pass", 'r.hand_in("3")', 'r.handed_in("3")'), [('r.hand_in("3")', "only that section can")]),
        (('r.hand_in("1")', "pass", 'r.handed_in("1")'), [('r.hand_in("1")', "and an optional one")]),
    ],
)
def test_rows_are_handed_in_by_their_section_and_asked_for(write_source, monkeypatch, cells, told):
    found = lab_with_an_optional_section(write_source, monkeypatch, *cells)
    assert [line for line, _ in found] == [line for line, _ in told]
    assert all(part in problem for (_, problem), (_, part) in zip(found, told, strict=True)), found


def test_lint_finds_a_check_that_nobody_compares(write_source):
    answer = "def f():\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION"
    problems = lint.lint(write_source("[markdown]\n# # T", answer, "f = check(1, f)", name="00_made_up.py"))
    assert any("without the tag nbval-check-output" in problem for problem in problems), problems


def test_lint_finds_an_exercise_without_a_check_in_the_labs_module(write_source):
    answer = "def f():\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION"
    cells = [cell for number in range(1, 10) for cell in (answer, f"f = check({number}, f)")]
    problems = lint.lint(write_source("[markdown]\n# # T", *cells, name="00_made_up.py"))
    assert any("exercise 9 has no check" in problem for problem in problems), problems
