"""Stored runs come from one session, and unfit outputs are not stored."""

import os
import pwd

import nbformat
import pytest
from machines import machine

from labkit.display import ladder
from labkit.doctor.checks import Finding, Report
from labkit.doctor.view import as_text
from labkit.system import paths
from labkit.system.errors import LabError
from labkit.system.load import BUSY_MARK, Contention
from labkit_author import build, sources, stored

BUSY = Contention("section 2", share=0.4, busy=True)
WIRES = Contention("section 3", share=0.0, busy=True, doubt="rank 1 had no core")


def cell(*outputs, source="measure()"):
    return nbformat.v4.new_code_cell(source, outputs=list(outputs), execution_count=1)


def printed(text):
    return nbformat.v4.new_output("stream", text=f"Before.\n{text}\n")


def shown(**data):
    return nbformat.v4.new_output("display_data", data={key.replace("_", "/"): text for key, text in data.items()})


def picture(alt):
    png = {"image/png": {"alt": alt}}
    return nbformat.v4.new_output("display_data", data={"image/png": "iVBORw0KGgo="}, metadata=png)


def problems(*cells, lab="03", **options):
    return stored.problems(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("⚠ busy"), *cells]), lab, **options
    )


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (printed(BUSY), "marked: ⚠ Meanwhile"),
        (printed(WIRES), "marked: ⚠ Not valid"),
        (shown(text_markdown=f"| a | 3× {BUSY_MARK} |\n\n{BUSY.note}"), "marked: ⚠ busy"),
        (shown(text_html=f"<p>{WIRES.note}</p>"), "not valid"),
        (picture(f"Bars. {BUSY_MARK}: other work"), "marked: ⚠ busy"),
        (printed(f"wrote {paths.ROOT}/x"), f"a folder of this machine, {paths.ROOT}"),
        (shown(text_plain=f"PosixPath('{pwd.getpwuid(os.getuid()).pw_dir}/x')"), "a folder of this machine"),
    ],
)
@pytest.mark.parametrize("draft", [False, True])
def test_an_unfit_output_is_reported_with_its_cell(output, problem, draft):
    reported = problems(cell(printed("fine")), cell(output), draft=draft)
    assert len(reported) == 1
    assert reported[0].startswith("cell 2: ")
    assert problem in reported[0]


@pytest.mark.parametrize(
    "output",
    [
        printed("⚠ AMX IS NOT HERE, and nothing in this lab is measured with it."),
        printed("Other work took 2% of the cores meanwhile."),
        printed("That is not valid: try again."),
        shown(image_png="//root/", text_html=f'<img src="data:image/png;base64,{paths.ROOT}=">'),
    ],
)
def test_similar_outputs_are_accepted(output):
    assert problems(cell(output)) == []


def test_doctor_warnings_about_this_machine_are_refused():
    def report(status, name):
        return printed(as_text(Report(machine(), (Finding(name, status, "seen", "do this"),), ())))

    examine = "print(as_text(examine(quick=QUICK)))"
    assert problems(cell(report("ok", "MPI"), source=examine)) == []
    assert problems(cell(report("warn", "data"), source=examine)) == []  # labs have their own digits
    for status in ("warn", "fail"):
        reported = problems(cell(report(status, "speed"), source=examine))
        assert reported == ["cell 1: the doctor warns about this machine: speed"]
    assert problems(cell(printed("warn  speed"))) == []  # another program's output


def test_a_ladder_needs_the_steps_of_earlier_labs():
    alt = ladder.describe({})
    assert problems(cell(picture(alt)), lab="01") == []
    assert problems(cell(picture(alt)), lab="02") == ["cell 1: the ladder lacks steps of lab 01"]
    assert problems(cell(picture(alt)), lab="04") == ["cell 1: the ladder lacks steps of lab 01, 02, 03"]
    assert problems(cell(shown(text_html=f'<img alt="{alt}">')), lab="03") == [
        "cell 1: the ladder lacks steps of lab 01, 02"
    ]
    assert problems(cell(picture(alt)), lab="04", draft=True) == []


@pytest.fixture
def two_labs(write_source, tmp_path, monkeypatch):
    """Two labs of one cell each; executing them prints the text in `outputs`, or raises it."""
    for name in ("SOLUTIONS", "NOTEBOOKS"):
        monkeypatch.setattr(paths, name, tmp_path)
    monkeypatch.setattr(stored, "EXECUTED", tmp_path / "executed")
    outputs = {"40_first": "one", "41_second": "two"}
    labs = [write_source("[markdown]\n# # T", "measure()", name=f"{name}.py") for name in outputs]

    def execute(notebook, name, cwd):
        text = outputs[name.removesuffix("-solution")]
        if isinstance(text, Exception):
            raise text
        (cwd / "work").mkdir(exist_ok=True)
        (cwd / "work" / name).write_text(text)
        notebook.cells[1] |= {"outputs": [printed(text)], "execution_count": 1}
        return notebook

    monkeypatch.setattr(stored, "execute", execute)
    return labs, outputs


def session(source):
    return build.stored(source).metadata[build.SESSION]


def test_all_labs_are_stored_together(two_labs, tmp_path):
    labs, _ = two_labs
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "results-07.json").write_text("{}")
    started = []
    assert stored.store(labs, started.append) == [build.solution_path(source) for source in labs]
    assert started == ["40_first", "41_second"]
    assert session(labs[0]) == session(labs[1])
    assert not session(labs[0]).startswith(stored.DRAFT)
    assert not any(build.is_stale(source) or build.has_drifted(source) for source in labs)
    assert not (tmp_path / "work" / "results-07.json").exists(), "an earlier run's results"
    assert (tmp_path / "executed" / "work" / "results-07.json").exists()
    assert not list((tmp_path / "executed").glob("*.ipynb"))


def test_drafts_use_the_results_of_other_labs(two_labs, tmp_path):
    labs, _ = two_labs
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "results-07.json").write_text("{}")
    stored.store(labs[1:], print)
    assert session(labs[1]).startswith(stored.DRAFT)
    assert not build.solution_path(labs[0]).exists()
    assert (tmp_path / "work" / "results-07.json").exists()


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (str(BUSY), "lab 41, cell 1: the output is marked: ⚠ Meanwhile"),
        (LabError("41_second-solution: cell 1 failed: ValueError"), "41_second-solution: cell 1 failed: ValueError"),
    ],
)
def test_one_unfit_lab_keeps_all_from_being_stored(two_labs, tmp_path, second, message):
    labs, outputs = two_labs
    outputs["41_second"] = second
    with pytest.raises(LabError, match="No lab was stored; executed notebooks: ") as error:
        stored.store(labs, print)
    assert str(error.value).startswith(message)
    assert str(tmp_path / "executed") in str(error.value)
    assert not any(build.solution_path(source).exists() for source in labs)
    assert "one" in (tmp_path / "executed" / "40_first.ipynb").read_text()


def test_a_stopped_session_resumes(two_labs, tmp_path):
    labs, outputs = two_labs
    outputs["41_second"] = str(BUSY)
    with pytest.raises(LabError, match="No lab was stored"):
        stored.store(labs, print)
    outputs["41_second"] = "two"
    started = []
    stored.store(labs, started.append)
    assert started == ["41_second"]
    assert session(labs[0]) == session(labs[1])
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["40_first-solution", "41_second-solution"]


@pytest.mark.parametrize("change", ["code", "boot", "draft"])
def test_a_session_restarts_after_a_change_or_a_reboot(two_labs, tmp_path, change):
    labs, outputs = two_labs
    outputs["41_second"] = str(BUSY)
    with pytest.raises(LabError):
        stored.store(labs, print)
    outputs["41_second"] = "two"
    first = tmp_path / "executed" / "40_first.ipynb"
    notebook = nbformat.read(first, as_version=4)
    if change == "code":
        notebook.metadata[build.KEY] = "of other code"
    elif change == "boot":
        notebook.metadata[build.SESSION] = "2026-01-01 00:00 12345678"
    else:
        notebook.metadata[build.SESSION] = stored.DRAFT + notebook.metadata[build.SESSION]
    first.write_text(nbformat.writes(notebook))
    started = []
    stored.store(labs, started.append)
    assert started == ["40_first", "41_second"]
    assert session(labs[0]) == session(labs[1])


@pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)
def test_stored_notebooks_have_no_problems(source):
    notebook = build.stored(source)
    draft = notebook.metadata.get(build.SESSION, stored.DRAFT).startswith(stored.DRAFT)
    assert stored.problems(notebook, source.stem[:2], draft) == []


@pytest.mark.weekly  # between releases, labs that changed are stored as drafts
def test_all_stored_labs_come_from_one_session():
    sessions = {build.stored(source).metadata[build.SESSION] for source in sources.labs()}
    assert len(sessions) == 1
    assert not max(sessions).startswith(stored.DRAFT)
