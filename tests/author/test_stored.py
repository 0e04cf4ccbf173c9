"""Stored runs are of one session, and nothing is stored that speaks against it."""

import os
import pwd

import nbformat
import pytest

from labkit.display import ladder
from labkit.doctor.checks import Finding, Report
from labkit.doctor.view import as_text
from labkit.system import paths
from labkit.system.errors import LabError
from labkit.system.load import BUSY_MARK, Others
from labkit_author import build, sources, stored

BUSY = Others("section 2", share=0.4, busy=True)
WIRES = Others("section 3", share=0.0, busy=True, doubt="rank 1 had no core")


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
def test_an_output_that_speaks_against_storing_is_named_by_its_cell(output, problem, draft):
    found = problems(cell(printed("fine")), cell(output), draft=draft)
    assert len(found) == 1
    assert found[0].startswith("cell 2: ")
    assert problem in found[0]


@pytest.mark.parametrize(
    "output",
    [
        printed("⚠ AMX IS NOT HERE, and nothing in this lab is measured with it."),
        printed("Other work took 2% of the cores meanwhile."),
        printed("That is not valid: try again."),
        shown(image_png="//root/", text_html=f'<img src="data:image/png;base64,{paths.ROOT}=">'),
    ],
)
def test_other_words_are_no_problem(output):
    assert problems(cell(output)) == []


def test_the_doctors_warnings_about_this_machine_are_refused(machine_report):
    examine = "print(as_text(examine(quick=QUICK)))"
    assert problems(cell(printed(machine_report("ok", "MPI")), source=examine)) == []
    assert problems(cell(printed(machine_report("warn", "data")), source=examine)) == []  # the labs have digits
    for status in ("warn", "fail"):
        found = problems(cell(printed(machine_report(status, "speed")), source=examine))
        assert found == ["cell 1: the doctor has a warning about this machine: speed"]
    assert problems(cell(printed("warn  speed"))) == []  # another program's word


@pytest.fixture
def machine_report():
    from machines import machine

    def report(status, name):
        return as_text(Report(machine(), (Finding(name, status, "seen", "do this"),), ()))

    return report


def test_a_ladder_has_the_steps_of_the_labs_before_it():
    alt = ladder.describe({})
    assert problems(cell(picture(alt)), lab="01") == []
    assert problems(cell(picture(alt)), lab="02") == ["cell 1: its ladder lacks steps of lab 01"]
    assert problems(cell(picture(alt)), lab="04") == ["cell 1: its ladder lacks steps of lab 01, 02, 03"]
    assert problems(cell(shown(text_html=f'<img alt="{alt}">')), lab="03") == [
        "cell 1: its ladder lacks steps of lab 01, 02"
    ]
    assert problems(cell(picture(alt)), lab="04", draft=True) == []


@pytest.fixture
def two_labs(write_source, tmp_path, monkeypatch):
    """Two labs of one cell, whose execution prints what `says` has for them."""
    for name in ("SOLUTIONS", "NOTEBOOKS"):
        monkeypatch.setattr(paths, name, tmp_path)
    monkeypatch.setattr(stored, "KEPT", tmp_path / "kept")
    says = {"40_first": "one", "41_second": "two"}
    labs = [write_source("[markdown]\n# # T", "measure()", name=f"{name}.py") for name in says]

    def execute(notebook, name, cwd):
        text = says[name.removesuffix("-solution")]
        if isinstance(text, Exception):
            raise text
        (cwd / "work").mkdir(exist_ok=True)
        (cwd / "work" / name).write_text(text)
        notebook.cells[1] |= {"outputs": [printed(text)], "execution_count": 1}
        return notebook

    monkeypatch.setattr(stored, "execute", execute)
    return labs, says


def session(source):
    return build.stored(source).metadata[build.SESSION]


def test_all_labs_are_stored_together(two_labs, tmp_path):
    labs, _ = two_labs
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "results-07.json").write_text("{}")
    begun = []
    assert stored.store(labs, begun.append) == [build.solution_path(source) for source in labs]
    assert begun == ["40_first", "41_second"]
    assert session(labs[0]) == session(labs[1])
    assert not session(labs[0]).startswith(stored.DRAFT)
    assert not any(build.is_stale(source) or build.has_drifted(source) for source in labs)
    assert not (tmp_path / "work" / "results-07.json").exists(), "an earlier run's results"
    assert (tmp_path / "kept" / "work" / "results-07.json").exists()
    assert not list((tmp_path / "kept").glob("*.ipynb"))


def test_some_labs_are_drafts_and_use_what_others_have_left(two_labs, tmp_path):
    labs, _ = two_labs
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "results-07.json").write_text("{}")
    stored.store(labs[1:], print)
    assert session(labs[1]).startswith(stored.DRAFT)
    assert not build.solution_path(labs[0]).exists()
    assert (tmp_path / "work" / "results-07.json").exists()


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (str(BUSY), "lab 41, cell 1: it is marked: ⚠ Meanwhile"),
        (LabError("41_second-solution: cell 1 failed: ValueError"), "41_second-solution: cell 1 failed: ValueError"),
    ],
)
def test_none_is_stored_when_one_may_not_be_and_what_ran_is_kept(two_labs, tmp_path, second, told):
    labs, says = two_labs
    says["41_second"] = second
    with pytest.raises(LabError, match="No lab was stored; what ran: ") as refused:
        stored.store(labs, print)
    assert str(refused.value).startswith(told)
    assert str(tmp_path / "kept") in str(refused.value)
    assert not any(build.solution_path(source).exists() for source in labs)
    assert "one" in (tmp_path / "kept" / "40_first.ipynb").read_text()


def test_a_session_that_stopped_goes_on_where_it_stopped(two_labs, tmp_path):
    labs, says = two_labs
    says["41_second"] = str(BUSY)
    with pytest.raises(LabError, match="No lab was stored"):
        stored.store(labs, print)
    says["41_second"] = "two"
    begun = []
    stored.store(labs, begun.append)
    assert begun == ["41_second"]
    assert session(labs[0]) == session(labs[1])
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["40_first-solution", "41_second-solution"]


@pytest.mark.parametrize("change", ["code", "boot", "draft"])
def test_it_begins_anew_after_a_change_or_a_boot(two_labs, tmp_path, change):
    labs, says = two_labs
    says["41_second"] = str(BUSY)
    with pytest.raises(LabError):
        stored.store(labs, print)
    says["41_second"] = "two"
    kept = tmp_path / "kept" / "40_first.ipynb"
    notebook = nbformat.read(kept, as_version=4)
    if change == "code":
        notebook.metadata[build.KEY] = "of other code"
    elif change == "boot":
        notebook.metadata[build.SESSION] = "2026-01-01 00:00 12345678"
    else:
        notebook.metadata[build.SESSION] = stored.DRAFT + notebook.metadata[build.SESSION]
    kept.write_text(nbformat.writes(notebook))
    begun = []
    stored.store(labs, begun.append)
    assert begun == ["40_first", "41_second"]
    assert session(labs[0]) == session(labs[1])


def test_a_draft_is_stored_by_itself(two_labs, write_source, tmp_path):
    labs, says = two_labs
    says["42_third"] = "three"
    write_source("[markdown]\n# # T", "measure()", name="42_third.py")
    says["41_second"] = str(BUSY)
    with pytest.raises(LabError, match=r"41_second was not stored; what ran: .*kept$"):
        stored.store(labs, print)
    assert session(labs[0]).startswith(stored.DRAFT)
    assert not build.solution_path(labs[1]).exists()
    assert (tmp_path / "kept" / "41_second.ipynb").exists()


@pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)
def test_what_is_stored_has_no_problems(source):
    notebook = build.stored(source)
    draft = notebook.metadata.get(build.SESSION, stored.DRAFT).startswith(stored.DRAFT)
    assert stored.problems(notebook, source.stem[:2], draft) == []


@pytest.mark.weekly  # between releases, labs that changed are stored as drafts
def test_all_labs_are_stored_from_one_session():
    sessions = {build.stored(source).metadata[build.SESSION] for source in sources.labs()}
    assert len(sessions) == 1
    assert not max(sessions).startswith(stored.DRAFT)
