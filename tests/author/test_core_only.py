"""Each untouched lab reaches its closing table with its core alone, and with any optional section added.

The sources don't show side effects of cells on objects and files. So each lab's core runs, then each optional section,
with the core's names restored before it.
"""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from labkit.exercises import catalogue
from labkit_author import execution, notebooks
from labkit_classroom.lecture.labs import has_closing_table

pytestmark = [pytest.mark.weekly, pytest.mark.timeout(600)]

# The core's names, and copies of its containers.
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


@pytest.mark.parametrize("lab", catalogue.labs(), ids=lambda lab: lab.name)
def test_the_core_and_each_optional_section_reach_the_closing_table(lab, tmp_path):
    notebook = nbformat.read(lab.notebook, as_version=4)
    code = [
        (part.name, cell) for part in notebooks.by_section(notebook) for cell in part.cells if cell.cell_type == "code"
    ]
    optional = [section.name for section in lab.sections if not section.core]
    core = [cell for section, cell in code if section not in optional]
    tables = [place for place, cell in enumerate(core) if has_closing_table(cell)]
    end = tables[0] + 1 if tables else len(core)
    cells = [*core[:end], new_code_cell(KEEP)]
    for name in optional:
        cells += [new_code_cell(RESTORE), *(cell for section, cell in code if section == name)]
        cells += [new_code_cell(core[place].source) for place in tables]
    together = new_notebook(cells=[*cells, *core[end:]], metadata=notebook.metadata)
    done = execution.execute(together, name=f"{lab.name}-core", cwd=tmp_path, QUICK=True)
    shown = [cell.outputs[-1].data["text/markdown"] for cell in done.cells if has_closing_table(cell)]
    missing = [set(re.findall(r"not measured \(section (\d+)\)", text)) for text in shown]
    measured = {section for section, cell in code if section in optional and "results.hand_in(" in cell.source}
    assert missing == [measured, *(measured - {name} for name in optional)] * len(tables)
