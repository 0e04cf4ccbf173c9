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
def lab(write_source, tmp_path, monkeypatch):
    """Return a function that writes a plan, and a lab with two sections and questions."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    text = "[markdown]\n# # Title\n#\n# **Time** {minutes}\n#\n# ## 1 · One\n# ## 2 · Two\n# ## Questions"

    def write_plan(*lines):
        (tmp_path / minutes.FILE).write_text("\n".join(["[42]", *lines]))
        return write_source(text, "x = 1")

    return write_plan


def test_header_has_the_total_the_core_and_the_optional_sections():
    assert minutes.head(SECTIONS, exercises=1) == (
        "about 20 minutes: 15 to read and run, 5 for one exercise, 1 of waiting. "
        "Short of time? The core takes 10: sections 2 and 3 are optional."
    )
    assert minutes.head(SECTIONS[:1], exercises=2) == (
        "about 10 minutes: 4 to read and run, 5 for two exercises, less than a minute of waiting."
    )


def test_notebook_has_its_times_and_marks_optional_sections(lab):
    source = lab("1 = {read = 5}", "2 = {read = 5, core = false}", "questions = {read = 2}")
    text = minutes.fill(sources.read(source), source).cells[0].source
    assert "**Time** about 10 minutes: 12 to read" in text
    assert "## 1 · One\n## 2 · Two · optional\n## Questions" in text


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["1 = {read = 5}", "questions = {read = 2}"],
            "has 1, questions for lab 42, whose sections are 1, 2, questions",
        ),
        (["2 = {read = 5}", "1 = {}", "questions = {}"], "add one line for each, in order"),
        (
            ["1 = {raed = 5}", "2 = {}", "questions = {}"],
            "section 1 of lab 42 has unknown keys: raed; known keys: core, do, read, wait",
        ),
    ],
)
def test_plan_with_wrong_sections_is_an_error(lab, lines, message):
    with pytest.raises(LabError, match=message):
        minutes.plan(lab(*lines))


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
    other_lines = ("2 = {read = 5, core = false}", "questions = {read = 2}")
    assert minutes.overruns(lab("1 = {wait = 0.9}", *other_lines), executed(*RAN)) == []
    assert minutes.overruns(lab("1 = {wait = 0.8}", *other_lines), executed(*RAN)) == [
        "section 1 of lab 42 waited 1.10 minutes; minutes.toml plans 0.8"
    ]


def test_agenda_gets_the_minutes_of_the_plan(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    lab("1 = {read = 10, do = 20}", "2 = {wait = 3}", "questions = {read = 2}")
    readme = tmp_path / "README.md"
    readme.write_text("| [42 A](notebooks/42_made_up.ipynb) | do 99 things | 5 |\n| [41 B](x) | y | 5 |\n")
    assert minutes.write_agenda() == readme
    assert readme.read_text() == "| [42 A](notebooks/42_made_up.ipynb) | do 99 things | 35 |\n| [41 B](x) | y | 5 |\n"
    assert minutes.write_agenda() is None
