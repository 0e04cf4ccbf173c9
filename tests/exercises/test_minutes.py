"""The plan of minutes is complete, and the notebooks' headers and the agenda match it."""

from datetime import UTC, datetime, timedelta

import nbformat
import pytest

from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import minutes, notebooks, sources

SECTIONS = [
    minutes.Section("1", read=4, do=5),
    minutes.Section("2", read=4, wait=1.2, core=False),
    minutes.Section("3", read=4, core=False),
    minutes.Section("questions", read=3),
]


@pytest.fixture
def lab(write_source):
    """Return a function that writes a lab with two sections and questions, with these plans."""

    def write_lab(*plans):
        names = ("1 · One", "2 · Two", "Questions")
        headings = (f"# ## {name}{plan}\n" for name, plan in zip(names, plans, strict=True))
        return write_source(f"[markdown]\n# # Title\n#\n# **Time** {{minutes}}\n#\n{''.join(headings)}", "x = 1")

    return write_lab


def test_header_has_the_total_the_core_and_the_optional_sections():
    assert minutes.head(SECTIONS, exercises=1) == (
        "about 20 minutes: 15 to read and run, 5 for one exercise, 1 of waiting. "
        "Short of time? The core takes 10: sections 2 and 3 are optional."
    )
    assert minutes.head(SECTIONS[:1], exercises=2) == (
        "about 10 minutes: 4 to read and run, 5 for two exercises, less than a minute of waiting."
    )


def test_notebook_has_its_times_and_marks_optional_sections(lab):
    source = lab(" {read 5}", " {read 5, optional}", " {read 2}")
    text = minutes.fill(sources.read(source), source).cells[0].source
    assert "**Time** about 10 minutes: 12 to read" in text
    assert text.endswith("## 1 · One\n## 2 · Two · optional\n## Questions")


@pytest.mark.parametrize("plan", ["", " {raed 5}", " {read five}", " {read 5 do 4}"])
def test_a_section_without_readable_minutes_is_an_error(lab, plan):
    with pytest.raises(LabError, match=r"add minutes such as {read 5, .*} after the heading '2 · Two'"):
        minutes.plan(lab(" {read 5}", plan, " {read 2}"))


def executed(*cells):
    """Return a notebook with these headings, and code cells that took these seconds."""
    notebook, start = nbformat.v4.new_notebook(), datetime(2026, 1, 1, tzinfo=UTC)
    for cell in cells:
        if isinstance(cell, str):
            notebook.cells.append(nbformat.v4.new_markdown_cell(cell))
            continue
        states = {"iopub.status.busy": start, "iopub.status.idle": start + timedelta(seconds=cell)}
        times = {state: time.isoformat() for state, time in states.items()}
        notebook.cells.append(nbformat.v4.new_code_cell("x = 1", metadata={notebooks.TIMES: times}))
    return notebook


RAN = ("# Title", 6, "## 1 · One", 24, 30, "text", 6, "## 2 · Two · optional", 3, "## Questions")


def test_stored_run_has_the_waiting_time_of_each_section():
    assert notebooks.waited(executed(*RAN)) == {"1": pytest.approx(1.1), "2": pytest.approx(0.05), "questions": 0}


def test_stored_run_that_waits_longer_than_planned_is_reported(lab):
    other_plans = (" {read 5, optional}", " {read 2}")
    assert minutes.overruns(lab(" {wait 0.9}", *other_plans), executed(*RAN)) == []
    assert minutes.overruns(lab(" {wait 0.8}", *other_plans), executed(*RAN)) == [
        "section 1 of lab 42 waited 1.10 minutes; its heading plans 0.8"
    ]


def test_the_readmes_agenda_is_up_to_date():
    readme = (paths.ROOT / "README.md").read_text()
    assert minutes.with_agenda(readme) == readme, "run ./lab build"
    assert minutes.with_agenda(readme.replace(" | 25 |", " | 99 |").replace("Welcome", "Hello")) == readme
