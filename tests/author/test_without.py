"""Each lab runs to its end on a machine without namespaces, PyTorch, Slurm, a compiler and BF16, as it promises."""

import nbformat
import pytest

from labkit.exercises import catalogue
from labkit.system import lacks
from labkit_author import changed, execution

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    "lab",
    # `./lab test --all` runs the labs that didn't change, too.
    [pytest.param(lab, marks=[] if changed.has_lab(lab.number) else pytest.mark.weekly) for lab in catalogue.labs()],
    ids=lambda lab: lab.name,
)
def test_a_lab_runs_without_what_a_machine_may_lack(lab, tmp_path, monkeypatch):
    monkeypatch.setenv(lacks.VARIABLE, ",".join(lacks.PARTS))
    execution.execute(nbformat.read(lab.notebook, as_version=4), name=f"{lab.name}-without", cwd=tmp_path, QUICK=True)
