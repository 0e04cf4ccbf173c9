"""Each untouched student notebook reaches its closing table: exercises continue with the kit's solution."""

import nbformat
import pytest
from lab_cells import verdict_of

from labkit.exercises import catalogue
from labkit_author import execution, notebooks
from labkit_classroom.lecture.labs import has_closing_table

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("lab", catalogue.labs(), ids=lambda lab: lab.name)
def test_untouched_notebook_runs_to_its_end(lab, tmp_path):
    notebook = nbformat.read(lab.notebook, as_version=4)
    done = execution.execute(notebook, name=f"{lab.name}-untouched", cwd=tmp_path, QUICK=True)
    verdicts = [verdict_of(cell) for cell in done.cells if notebooks.checks(cell)]
    assert len(verdicts) == len(lab.exercises)
    assert all("· not attempted." in verdict for verdict in verdicts), verdicts
    tables = [cell.outputs[-1].data["text/markdown"] for cell in done.cells if has_closing_table(cell)]
    assert not any("not measured (section" in table for table in tables), tables
