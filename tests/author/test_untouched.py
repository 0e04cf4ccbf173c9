"""Each student notebook, untouched, runs to its closing table: every exercise continues with the kit's solution."""

import pytest
from lab_cells import has_closing_table, verdict_of

from labkit.exercises import notebooks, sources
from labkit_author import build

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)
def test_untouched_notebook_runs_to_its_end(source, tmp_path):
    notebook = notebooks.student(source)
    done = build.execute(notebook, name=f"{source.stem}-untouched", cwd=tmp_path, QUICK=True)
    verdicts = [verdict_of(cell) for cell in done.cells if sources.checks(cell)]
    assert verdicts
    assert all("· not attempted." in verdict for verdict in verdicts), verdicts
    tables = [cell.outputs[-1].data["text/markdown"] for cell in done.cells if has_closing_table(cell)]
    assert not any("not measured" in table for table in tables), tables
