import pytest

from labkit.system.errors import LabError
from labkit_author import sources

ANSWER = "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION"
CHECK = "double = check(1, double)"


def test_same_source_gives_the_same_cells_and_ids(write_source):
    source = write_source("[markdown]\n# # Title", "x = 1", "x = 1")
    first, second = sources.read(source), sources.read(source)
    assert first == second
    assert len({cell.id for cell in first.cells}) == 3


def test_ids_stay_when_a_cell_is_inserted_before_them(write_source):
    before = sources.read(write_source("x = 1", "y = 2"))
    after = sources.read(write_source("w = 0", "x = 1", "y = 2"))
    assert [cell.id for cell in before.cells] == [cell.id for cell in after.cells][1:]


def test_cells_keep_their_tags_and_folding(write_source):
    source = write_source('[markdown] tags=["instructor"]\n# secret', "x = 1", name="42_made_up.py")
    source.write_text(source.read_text() + '# %% jupyter={"source_hidden": true}\ny = 2\n')
    metadata = [{"tags": ["instructor"]}, {}, {"jupyter": {"source_hidden": True}}]
    assert [cell.metadata for cell in sources.read(source).cells] == metadata


def test_blanking_keeps_the_signature_and_removes_the_solution(write_source):
    notebook = sources.read(write_source(ANSWER, CHECK))
    blanked = sources.blank(notebook)
    assert "2 * x" in notebook.cells[0].source
    banner = "# ──────────────────── YOUR CODE HERE ────────────────────"
    assert blanked.cells[0].source == f"def double(x):\n    {banner}\n    raise NotImplementedError()"
    assert blanked.cells[1].source == CHECK


def test_solved_notebook_has_solutions_without_markers_and_the_same_ids(write_source):
    script = "# %%writefile work/s.py\n### BEGIN SOLUTION\nprint(1)\n### END SOLUTION\nprint('### END SOLUTION')"
    notebook = sources.read(write_source(ANSWER, CHECK, script, 's = check(2, "work/s.py")'))
    solved = sources.solved(notebook)
    assert solved.cells[0].source == "def double(x):\n    return 2 * x"
    assert solved.cells[2].source == "%%writefile work/s.py\nprint(1)\nprint('### END SOLUTION')"
    assert [cell.id for cell in solved.cells] == [cell.id for cell in notebook.cells]


def test_c_is_a_comment_in_the_source_and_code_in_the_notebook(write_source):
    c = "#include <math.h>\n\nint f(void) {\n    ### BEGIN SOLUTION\n    return 1 % 2;\n    ### END SOLUTION\n}"
    cell = "# %%writefile work/f.c\n" + "\n".join(f"# {line}".rstrip() for line in c.split("\n"))
    notebook = sources.read(write_source(cell, 'f = check(1, "work/f.c")'))
    assert notebook.cells[0].source == f"%%writefile work/f.c\n{c}"
    blanked = sources.blank(notebook).cells[0].source
    assert blanked == f"%%writefile work/f.c\n#include <math.h>\n\nint f(void) {{\n    {sources.STUB_IN_C}\n}}"
    assert sources.exercises(notebook)[1].name == "f"


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ("### BEGIN SOLUTION\nx = 1", "no end"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION", "nested"),
        ("x = 1\n### END SOLUTION", "without"),
    ],
)
def test_malformed_solutions_are_errors_with_the_cell(write_source, cell, complaint):
    with pytest.raises(LabError, match=f"(?s)cell 0.*{complaint}.*x = 1"):
        sources.blank(sources.read(write_source(cell)))


def test_exercises_are_found_with_their_solutions(write_source):
    script = "# %%writefile work/s.py\n### BEGIN SOLUTION\nprint(1)\n### END SOLUTION"
    exercises = sources.exercises(sources.read(write_source(ANSWER, CHECK, script, 's = check(2, "work/s.py")')))
    assert [(n, e.name, e.cell) for n, e in exercises.items()] == [(1, "double", 0), (2, "s", 2)]
    assert exercises[2].solution.startswith("%%writefile work/s.py\n")


@pytest.mark.parametrize(
    ("cells", "complaint"),
    [
        ((CHECK,), "no cell before it"),
        ((ANSWER,), "without a"),
        ((ANSWER, ANSWER, CHECK), "without a"),
        ((ANSWER, CHECK, ANSWER, CHECK), "twice"),
    ],
)
def test_unpaired_solutions_and_checks_are_errors(write_source, cells, complaint):
    with pytest.raises(LabError, match=complaint):
        sources.exercises(sources.read(write_source(*cells)))


@pytest.mark.parametrize(
    "name", ["7", "07", "07_horovod_mnist", "07_horovod_mnist.ipynb", "solutions/07_horovod_mnist.py"]
)
def test_labs_are_found_by_number_name_or_path(name):
    assert sources.find(name).name == "07_horovod_mnist.py"
