import os
import pwd
import shutil
import subprocess
import sys

import nbformat
import pytest
from lab_cells import verdict_of

from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import build, execution, notebooks, sources, stored

LABS = sources.labs()


def by_name(source):
    return source.stem


@pytest.mark.parametrize("source", LABS, ids=by_name)
def test_student_notebook_matches_its_source(source):
    assert build.student_path(source).read_text() == notebooks.dumps(build.student(source)), "run ./lab build"


@pytest.mark.parametrize("source", LABS, ids=by_name)
def test_solution_notebook_matches_its_source_and_has_run(source):
    assert not build.has_drifted(source), "run ./lab build"
    assert build.has_run(source), "a code cell changed: run ./lab build --execute"
    without = [cell for cell in build.stored(source).cells if cell.cell_type == "code" and not cell.execution_count]
    assert not any(cell.outputs for cell in without)
    if without:
        number = source.stem[:2]
        command = f"./lab build {number} --execute"
        pytest.skip(f"LAB {number} HAS CELLS WITHOUT STORED OUTPUTS ({len(without)}): a maintainer runs {command}")


@pytest.mark.parametrize("source", LABS, ids=by_name)
def test_student_notebook_has_no_solutions(source):
    cells = nbformat.read(build.student_path(source), as_version=4).cells
    assert not any(notebooks.INSTRUCTOR in cell.metadata.get("tags", []) for cell in cells)
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.parametrize("source", LABS, ids=by_name)
def test_notebooks_contain_no_local_folders_and_no_markers(source):
    for path in (build.student_path(source), build.solution_path(source)):
        text = path.read_text()
        assert str(paths.ROOT) not in text
        assert sources.BEGIN not in text
        assert f"{pwd.getpwuid(os.getuid()).pw_dir}/" not in text  # `lab test` may have moved $HOME


@pytest.mark.parametrize("source", LABS, ids=by_name)
def test_stored_solutions_passed_their_checks(source):
    cells = [cell for cell in build.stored(source).cells if notebooks.checks(cell) and cell.execution_count]
    verdicts = [[f"Exercise {number} · passed." for number, _ in notebooks.checks(cell)] for cell in cells]
    assert [[verdict_of(cell)] for cell in cells] == verdicts
    assert verdicts


def test_execution_refuses_unknown_parameters(write_source, tmp_path):
    notebook = sources.read(write_source("QUICK = False", "x = 1"))
    notebook.cells[0].metadata["tags"] = ["parameters"]
    with pytest.raises(LabError, match="no parameter 'QUIKC', only QUICK"):
        execution.execute(notebook, "misspelt", tmp_path, QUIKC=True)


def test_execution_fails_if_the_kernel_exits_early(write_source, tmp_path):
    notebook = sources.read(write_source("import sys", "sys.exit(0)", "x = 1"))
    with pytest.raises(execution.ExecutionError, match=r"cell 1 |ended early"):
        execution.execute(notebook, "leaves", tmp_path)


def test_a_failing_notebook_is_kept_and_its_cell_named(write_source, tmp_path):
    notebook = sources.read(write_source("x = 1", "1 / 0", "y = 2"))
    with pytest.raises(execution.ExecutionError, match=r"cell 1 failed: ZeroDivisionError.*kept: .*fails\.ipynb"):
        execution.execute(notebook, "fails", tmp_path)
    assert "ZeroDivisionError" in (paths.STATE / "executed" / "fails.ipynb").read_text()


def test_execution_always_uses_this_environment(write_source, tmp_path):
    notebook = sources.read(write_source("import sys", "print(sys.prefix)"))
    notebook.metadata.kernelspec.name = "another-kernel"
    done = execution.execute(notebook, "elsewhere", tmp_path)
    assert done.cells[1].outputs[0].text.strip() == str(paths.ROOT / ".venv")


@pytest.mark.slow
def test_nbval_and_papermill_set_quick(write_source, tmp_path):
    notebook = sources.read(write_source("QUICK = False", "print(QUICK)"))
    notebook.cells[0].metadata["tags"] = ["parameters"]
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="True\n")]
    for number, cell in enumerate(notebook.cells, start=1):
        cell.execution_count = number
    (tmp_path / "compared.ipynb").write_text(notebooks.dumps(notebook))
    shutil.copy(paths.SOLUTIONS / "conftest.py", tmp_path)
    nbval = (sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", tmp_path, "--nbval", "--nbval-current-env")
    done = subprocess.run([*nbval, tmp_path], capture_output=True, text=True)
    assert "2 passed" in done.stdout
    for quick in (True, False):
        done = execution.execute(notebook, "small", tmp_path, QUICK=quick)
        assert done.cells[1].outputs[0].text == f"{quick}\n"


def test_build_keeps_outputs_if_only_prose_changes(write_source, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "students")
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    (tmp_path / "students").mkdir()
    source = write_source("[markdown]\n# # Title\n#\n# ## 1 · One", "print(6 * 7)")
    solution = build.solution_path(source)
    stored.store([source], print)
    assert "42" in solution.read_text()
    session = build.stored(source).metadata[build.SESSION]
    write_source("[markdown]\n# # Another title\n#\n# ## 1 · One", "print(6 * 7)")
    build.build(source)
    assert "42" in solution.read_text()
    assert "Another title" in solution.read_text()
    assert build.stored(source).metadata[build.SESSION] == session
    assert notebooks.waited(build.stored(source))["1"] > 0
    assert build.is_executed(source)


def test_a_stored_notebook_is_stale_if_its_code_or_checks_change(write_source, tmp_path, monkeypatch):
    checks = tmp_path / "labkit" / "exercises" / "lab42.py"
    checks.parent.mkdir(parents=True)
    checks.write_text("lab = 42")
    for name, folder in {"ROOT": tmp_path, "NOTEBOOKS": tmp_path, "SOLUTIONS": tmp_path}.items():
        monkeypatch.setattr(paths, name, folder)
    monkeypatch.setattr(build, "student_path", lambda source: tmp_path / "student.ipynb")
    source = write_source("[markdown]\n# # Title", "print(6 * 7)")
    monkeypatch.setattr(stored, "execute", lambda notebook, name, cwd: notebook)
    stored.store([source], print)
    assert not build.is_stale(source)
    write_source("[markdown]\n# # Another title", "print(6 * 7)")
    build.build(source)
    assert not build.is_stale(source)
    assert not build.has_drifted(source)
    checks.write_text("lab = 43")
    assert build.is_stale(source)
    checks.write_text("lab = 42")
    write_source("[markdown]\n# # Title", "print(6 * 7)", "new = 1")
    build.build(source)
    assert build.is_stale(source)


@pytest.fixture
def executed(write_source, tmp_path, monkeypatch):
    """A lab of two cells, stored with synthetic outputs."""
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "students")
    (tmp_path / "students").mkdir()
    source = write_source("[markdown]\n# # Title", "print(6 * 7)", "print(6 * 8)")
    notebook = build.solution(source)
    for number, (cell, printed) in enumerate(zip(notebook.cells[1:], ("42\n", "48\n"), strict=True), start=1):
        cell.execution_count = number
        cell.outputs = [nbformat.v4.new_output("stream", text=printed)]
    build.solution_path(source).write_text(notebooks.dumps(notebook))
    return source


def outputs(source):
    return ["".join(out.text for out in cell.get("outputs", [])) for cell in build.stored(source).cells[1:]]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (("print(6 * 7)", "print(6 * 8)", "new = 1"), ["42\n", "48\n", ""]),
        (("new = 1", "print(6 * 7)", "new = 2", "print(6 * 8)"), ["", "42\n", "", "48\n"]),
        (("print(6 * 7)", "print(6 * 9)"), ["", ""]),  # one changed
        (("print(6 * 7)", "new = 1"), ["", ""]),
        (("print(6 * 8)",), [""]),  # one removed
        (("print(6 * 8)", "print(6 * 7)"), ["", ""]),  # another order
    ],
)
def test_build_keeps_outputs_if_code_cells_are_only_added(executed, write_source, cells, expected):
    write_source("[markdown]\n# # Another title", *cells)
    build.build(executed)
    assert outputs(executed) == expected
    assert build.has_run(executed) == any(expected)
    assert not build.is_executed(executed)
    assert not build.has_drifted(executed)


def test_waiting_for_what_ran_in_the_background_does_not_count():
    times = {"iopub.status.busy": "2026-11-28T10:00:00Z", "iopub.status.idle": "2026-11-28T10:03:00Z"}
    cells = [nbformat.v4.new_code_cell("x", metadata={notebooks.TIMES: times}) for _ in range(2)]
    cells[1].metadata["tags"] = [notebooks.BACKGROUND]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("## 1 · One"), *cells])
    assert notebooks.waited(notebook) == {"1": 3}
