import pytest

from labkit.bench import configurations
from labkit.mpi import torch_ranks
from labkit.slurm import cluster
from labkit.system import kernels, lacks
from labkit.system.errors import LabError
from labkit.system.machine import this_machine
from labkit.testbed import Testbed, obstacle


@pytest.fixture
def everything_missing(monkeypatch):
    monkeypatch.setenv("LAB_WITHOUT", ", ".join(lacks.PARTS))


@pytest.mark.usefixtures("everything_missing")
def test_each_probe_reports_the_simulated_lack():
    assert obstacle() == "LAB_WITHOUT simulates a machine without namespaces"
    assert torch_ranks.obstacle() == "LAB_WITHOUT simulates a machine without torch"
    assert cluster.obstacle() == "LAB_WITHOUT simulates a machine without slurm"
    assert cluster.find_slurm() is None
    assert {"BF16", "AMX"}.isdisjoint(this_machine().isa)
    with pytest.raises(LabError, match="without namespaces"):
        Testbed(2)


def test_a_simulated_lack_of_a_compiler_stops_torch_compile(monkeypatch):
    monkeypatch.setattr(torch_ranks, "obstacle", lambda: "")
    monkeypatch.setenv("LAB_WITHOUT", "compiler")
    assert "without compiler" in configurations.known()["torch-compile"].missing


def test_an_unknown_part_is_named_with_the_known_ones(monkeypatch):
    monkeypatch.setenv("LAB_WITHOUT", "slurm,namespace")
    with pytest.raises(LabError, match=r"^LAB_WITHOUT: there is no part 'namespace'; choose from namespaces, torch, "):
        this_machine()


def test_the_variable_reaches_notebooks_and_programs():
    variables = {"LAB_WITHOUT": "torch", "OMP_NUM_THREADS": "1"}
    kernels.settle_environment(variables)
    assert variables["LAB_WITHOUT"] == "torch"
    assert "OMP_NUM_THREADS" not in variables
