import subprocess
import sys

import pytest

from labkit.exercises.catalogue import Section
from labkit.system import paths
from labkit_author import lint, minutes, sources


@pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)
def test_lab_sources_have_no_problems(source):
    if problems := lint.lint(source):
        pytest.fail("\n".join(problems), pytrace=False)


def test_problems_are_reported_by_file_and_line(write_source):
    source = write_source("[markdown]\n# # T", "x = 1\n\nplt.show()")
    number = source.read_text().splitlines().index("plt.show()") + 1
    assert [problem.partition(": ")[0].endswith(f"{source.name}:{number}") for problem in lint.lint(source)] == [True]


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
        ("%%writefile work/train_hvd.py\nx = 1", "07_horovod_mnist.py also writes work/train_hvd.py"),
        ("[markdown]\n# ## T", "the first heading"),
        ("[markdown]\n# # T\n#\n# ### U", "jumps"),
        ("[markdown]\n# # T\n#\n# # U", "second title"),
        ("from labkit.mpi import run_ranks, run_rank", "the kit has no labkit.mpi.run_rank"),
        ("from labkit.system import lode", "the kit has no labkit.system.lode"),
        ("from labkit.slurm.cluster import find_slurn", "the kit has no labkit.slurm.cluster.find_slurn"),
        ("import labkit.mpy", "the kit has no labkit.mpy"),
        ("%%writefile work/mine.py\nfrom labkit.data import load_digit", "the kit has no labkit.data.load_digit"),
        ("[markdown]\n# # T\n#\n# A [**rank**](../docs/learn/glossary.md#ranc)", "glossary.md#ranc is not an entry"),
        ("[markdown]\n# # T\n#\n# Some **ranks**.", "[**ranks**](../docs/learn/glossary.md#rank)"),
    ],
)
def test_lint_finds(write_source, cell, complaint):
    cells = [cell] if cell.startswith("[markdown]") else ["[markdown]\n# # T", cell]
    problems = lint.lint(write_source(*cells))
    assert any(complaint in problem for problem in problems), problems


ANSWER = "def f():\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION"


@pytest.mark.parametrize(("do", "count"), [(0, 1), (5, 0)])
def test_sections_with_exercises_need_minutes_to_do_them(write_source, monkeypatch, do, count):
    monkeypatch.setattr(minutes, "plan", lambda source: [Section("1"), Section("2", do=do)])
    cells = ["[markdown]\n# # T\n#\n# ## 1 · S", "x = 1", "[markdown]\n# ## 2 · S", ANSWER, "f = check(1, f)"]
    problems = [problem for problem in lint.lint(write_source(*cells)) if "no minutes to do it" in problem]
    assert len(problems) == count
    assert all("section 2 has exercise 1, but" in problem for problem in problems)


def test_lint_imports_no_tensorflow():
    script = "import sys; from labkit import cli; sys.argv = ['lab', 'lint', '00']\ntry: cli.main()\n"
    script += "except SystemExit as exit: print(exit.code or 0, 'tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.stdout == "0 False\n", done.stderr


def test_lint_finds_exercises_without_a_check(write_source):
    cells = [cell for number in range(1, 10) for cell in (ANSWER, f"f = check({number}, f)")]
    problems = lint.lint(write_source("[markdown]\n# # T", *cells, name="00_made_up.py"))
    assert any("exercise 9 has no check" in problem for problem in problems), problems


def test_lint_finds_lines_that_need_scrolling(write_source):
    wide = f"x = {'1' * 97}"
    problems = lint.lint(write_source("[markdown]\n# # T", wide, f"y = {'1' * 96}"))
    assert [problem for problem in problems if "columns" in problem] == [
        f"{problems[0].partition(': ')[0]}: a line of code has 101 columns: at most 100 fit without scrolling"
    ]


def test_tensorflow_is_imported_after_open_lab(write_source):
    opening = 'check, results, machine, work = open_lab("02", globals())'
    message = "TensorFlow is imported before open_lab"
    for cells, reported in (
        (("import tensorflow as tf", opening), True),
        ((opening, "import tensorflow as tf"), False),
        ((opening, "from tensorflow import keras"), False),
        (("from tensorflow import keras", opening), True),
    ):
        assert any(message in problem for problem in lint.lint(write_source("[markdown]\n# # T", *cells))) == reported


def test_guesses_are_numbered_and_compared(write_source):
    ask, compare = 'results.guess({}, "a", ...)', 'results.compare_guess({}, "b")'
    for cells, message in (
        ((ask.format(1), compare.format(1), ask.format(2), compare.format(2)), ""),
        ((ask.format(2), compare.format(2)), "guess 2 is the lab's guess 1"),
        ((ask.format(1),), "guess 1 is never compared with a figure"),
        ((compare.format(1),), "guess 1 is compared, but never asked for"),
    ):
        problems = [problem for problem in lint.lint(write_source("[markdown]\n# # T", *cells)) if "guess" in problem]
        assert [message in problem for problem in problems] == [True] * bool(message)


@pytest.mark.parametrize(
    ("prose", "anywhere", "in_notes"),
    [
        ("It trains 5.6 images/s here.", "'5.6 images/s'", ""),
        ("| here | 1,029 GFLOP/s |", "'1,029 GFLOP/s'", ""),
        ("Reading reaches 85 GB/s, about.", "'85 GB/s'", ""),
        ("A graph was 1.3 to 1.5 times as fast.", "'1.3 to 1.5 times as fast'", ""),
        ("A graph was 3× faster.", "'3× faster'", ""),
        ("The call took 81 times\n# as long.", "'81 times as long'", ""),
        ("Published (2019): 400 images/s.\n#\n# It was 2 images/s.", "'2 images/s'", ""),
        ("- Published: 400 images/s.\n# - Here: 2 images/s.", "'2 images/s'", ""),
        ("A step took 7.65 ms.", "", "'7.65 ms'"),
        ("Training in BF16: 2.3×.", "", "'2.3×'"),
        ("Training gained 1.82 times.", "", "'1.82 times'"),
        ("It gained something (1.69 to 1.96).", "", "'(1.69 to 1.96)'"),
        ("The check allows `30 ms`.", "", "'30 ms'"),
    ],
)
def test_results_in_prose_need_a_source(write_source, prose, anywhere, in_notes):
    for tags, expected in (("", anywhere), (' tags=["instructor"]', anywhere or in_notes)):
        problems = lint.lint(write_source("[markdown]\n# # T", f"[markdown]{tags}\n# {prose}"))
        assert [expected in problem and "has no source" in problem for problem in problems] == [True] * bool(expected)


@pytest.mark.parametrize(
    "prose",
    [
        "In 2019, Intel showed 17.69 images/s.",
        "One GPU trained 400 images/s ([its report](https://example.org)).",
        "| (2019) | speed |\n# | --- | --- |\n# | MKL | 4.6 times as fast |",
        "The published figure is 4.6 times as fast.",
        "It takes about 20 s, and reading takes 5 minutes.",
        "Wires of 1 Gbit/s; a 3×3 window of 28×28 pixels, and 2×(3+4) numbers.",
        "Twice as fast, or four times as many weights; 16 numbers at a time, 3 times.",
    ],
)
def test_other_figures_need_no_source(write_source, prose):
    source = write_source("[markdown]\n# # T", f'[markdown] tags=["instructor"]\n# {prose}')
    assert lint.lint(source) == []


def test_figures_in_code_need_no_source(write_source):
    assert lint.lint(write_source("[markdown]\n# # T\n#\n# Given `2 GB/s`:\n#\n# ```\n# 3 images/s\n# ```")) == []
