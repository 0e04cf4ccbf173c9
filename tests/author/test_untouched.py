"""Each untouched student notebook reaches its closing table: exercises continue with the kit's solution.

Cells whose output never varies say what the stored solution notebook says, as nbval would compare them.
"""

import nbformat
import pytest
from lab_cells import verdict_of

from labkit.exercises import catalogue
from labkit.system import paths
from labkit_author import execution, lint, notebooks
from labkit_classroom.lecture.labs import has_closing_table

pytestmark = pytest.mark.timeout(600)


def text(cell):
    """Return the text that a cell printed, and the texts that it displayed."""
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    return printed, [output.data.get("text/plain") for output in cell.outputs if "data" in output]


@pytest.mark.parametrize("lab", catalogue.labs(), ids=lambda lab: lab.name)
def test_untouched_notebook_runs_to_its_end(lab, tmp_path):
    notebook = nbformat.read(lab.notebook, as_version=4)
    done = execution.execute(notebook, name=f"{lab.name}-untouched", cwd=tmp_path, QUICK=True)
    verdicts = [verdict_of(cell) for cell in done.cells if notebooks.checks(cell)]
    assert len(verdicts) == len(lab.exercises)
    assert all("· not attempted." in verdict for verdict in verdicts), verdicts
    tables = [cell.outputs[-1].data["text/markdown"] for cell in done.cells if has_closing_table(cell)]
    assert not any("not measured (section" in table for table in tables), tables
    solution = nbformat.read(paths.SOLUTIONS / lab.notebook.name, as_version=4)
    stored = {cell.id: text(cell) for cell in solution.cells if cell.get("execution_count")}
    compared = [
        cell
        for cell in done.cells
        if lint.CHECKED in cell.metadata.get("tags", []) and cell.id in stored and not notebooks.checks(cell)
    ]
    assert [text(cell) for cell in compared] == [stored[cell.id] for cell in compared]
