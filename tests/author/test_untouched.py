"""Each lab, untouched, runs to its closing table by its core alone, and with any optional section added.

That no cell takes a *name* from an optional section is read off the sources, for all combinations at once
(`test_core_path.py`). What cells leave in objects and files is not: so each lab's core is run, and behind it each
optional section, with the core's names as they were before. This is also the one time that all cells of the students'
notebook run: nbval runs the solutions from top to bottom.
"""

import re
from typing import NamedTuple

import pytest
from lab_cells import verdict_of
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from labkit.exercises import minutes, notebooks, sources
from labkit_author import build
from labkit_classroom.lecture.guide import has_closing_table

pytestmark = pytest.mark.timeout(600)

# Names as the core has left them, and containers with what it has put into them.
KEEP = """
def _copy(value):
    return type(value)(value) if type(value) in (dict, list, set) else value


_ours = lambda name: not name.startswith("_") and name not in get_ipython().user_ns_hidden
_core = {name: _copy(value) for name, value in globals().items() if _ours(name)}
"""
RESTORE = """
for name in [name for name in globals() if _ours(name)]:
    del globals()[name]
globals().update({name: _copy(value) for name, value in _core.items()})
results._handed_in.clear()
"""


class Executed(NamedTuple):
    """An untouched lab that ran: the students' code cells by their sections, its optional sections, what ran."""

    code: list[tuple[str, NotebookNode]]
    optional: list[str]
    cells: list[NotebookNode]


@pytest.fixture(scope="module", params=sources.labs(), ids=lambda source: source.stem)
def executed(request, tmp_path_factory):
    source = request.param
    notebook = notebooks.student(source)
    code = [
        (section, cell)
        for section, cell in zip(minutes.section_of(notebook), notebook.cells, strict=True)
        if cell.cell_type == "code"
    ]
    optional = [section.name for section in minutes.plan(source) if not section.core]
    core = [cell for section, cell in code if section not in optional]
    tables = [place for place, cell in enumerate(core) if has_closing_table(cell)]
    end = tables[0] + 1 if tables else len(core)
    cells = [*core[:end], new_code_cell(KEEP)]
    for name in optional:
        cells += [new_code_cell(RESTORE), *(cell for section, cell in code if section == name)]
        cells += [new_code_cell(core[place].source) for place in tables]
    together = new_notebook(cells=[*cells, *core[end:]], metadata=notebook.metadata)
    folder = tmp_path_factory.mktemp("untouched")
    done = build.execute(together, name=f"{source.stem}-untouched", cwd=folder, QUICK=True)
    return Executed(code, optional, done.cells)


def test_all_cells_run_and_no_exercise_counts_as_attempted(executed):
    verdicts = [verdict_of(cell) for cell in executed.cells if sources.checks(cell)]
    assert len(verdicts) == sum(bool(sources.checks(cell)) for _, cell in executed.code)
    assert all("· not attempted." in verdict for verdict in verdicts), verdicts


def test_the_core_alone_and_with_each_optional_section_comes_to_the_closing_table(executed):
    shown = [cell.outputs[-1].data["text/markdown"] for cell in executed.cells if has_closing_table(cell)]
    missing = [set(re.findall(r"not measured \(section (\d+)\)", text)) for text in shown]
    measured = {section for section, cell in executed.code if "results.hand_in(" in cell.source}
    tables = sum(has_closing_table(cell) for _, cell in executed.code)
    assert missing == [measured, *(measured - {name} for name in executed.optional)] * tables
