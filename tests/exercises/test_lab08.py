import random
from pathlib import Path
from unittest.mock import Mock

import lab_cells
import pytest
from labs import ThreeWays

from labkit.exercises import sick_cluster
from labkit.exercises.sick_cluster import FAULTS, RECORDED, TODAY, SickCluster
from labkit.measure import recorded
from labkit.testbed import Testbed, processors
from labkit.testbed.processors import CPUS, NONE, STORAGE, WIRE, Fault, draw, processor
from labkit_author import sources

RIGHT_RUNS = {"storage's wire": "local copies", "node 2's wire": "without node 2", "slow node 3": "without node 3"}
# A plan that suffices for every case: each node left out, the suspect alone, and local copies.
PLAN = ("without node 1", "without node 2", "without node 3", "alone on node 2", "local copies")
BUDGET = 10


class TestExercises(ThreeWays):
    lab = "08"


@pytest.fixture
def runs():
    """Return the runs that the lab offers."""
    (cell,) = (cell for cell in sources.read(sources.find("08")).cells if cell.source.startswith("RUNS = {"))
    names = {"two_cpus_per_node": lambda: False}
    exec(cell.source, names)
    assert names["BUDGET"] == BUDGET
    return names["RUNS"]


@pytest.fixture
def recovered():
    solved = sources.solved(sources.read(sources.find("08")))
    (cell,) = (cell for cell in solved.cells if cell.source.startswith("def recovered"))
    names = {}
    exec(cell.source, names)
    return names["recovered"]


def number_of(fault):
    return next(number for number in range(10_000) if draw(number) == fault)


@pytest.fixture
def cluster(monkeypatch, runs, recovered):
    """Return a function that returns the recorded cluster with a fault."""
    monkeypatch.setattr(sick_cluster, "obstacle", lambda: "none in this test")
    return lambda fault: SickCluster("work/job.py", runs, BUDGET, recovered, number_of(fault))


def share(cluster, run):
    return cluster.share(
        (cluster.healthy.value, 1), (cluster.today.value, 3), (cluster.done[run].value, cluster.nodes(run))
    )


def verdict(cluster, capsys, *answer):
    capsys.readouterr()
    cluster.answer(*answer)
    return capsys.readouterr().out


@pytest.mark.parametrize("fault", RECORDED, ids=str)
def test_the_right_cause_with_its_run_and_share_is_accepted_and_no_other_cause(fault, cluster, capsys):
    case = cluster(fault)
    assert "not attempted" in verdict(case, capsys, ..., "local copies", 50)
    assert case.reveal().startswith("Answer first")
    for run in PLAN:
        case.run(run)
    assert case.left == 0
    run = RIGHT_RUNS.get(str(fault), "local copies")
    seen = share(case, run)
    for off in (-14, 0, 14):
        assert ": right." in verdict(case, capsys, str(fault), run, seen + off)
    assert str(fault) in case.reveal()
    assert "does not recover" in verdict(case, capsys, str(fault), run, seen + 16)
    for other in {*FAULTS} - {str(fault)}:
        assert f"It isn't {other}" in verdict(case, capsys, other, run, seen)
    if fault.kind != NONE:
        assert "doesn't take away" in verdict(
            case, capsys, str(fault), "alone on node 2", share(case, "alone on node 2")
        )


def test_answers_that_cannot_be_judged_say_what_is_needed(cluster, capsys):
    case = cluster(Fault(STORAGE))
    assert "The cause is one of: storage's wire; " in verdict(case, capsys, "the network", "local copies", 50)
    assert "one of those that you made: none yet" in verdict(case, capsys, "no fault", "local copies", 50)
    case.run("local copies")
    assert "those that you made: local copies" in verdict(case, capsys, "no fault", TODAY, 50)
    assert "The share is a number" in verdict(case, capsys, "no fault", "local copies", "half")


def test_a_careless_student_exhausts_the_budget(cluster, runs, capsys):
    case = cluster(Fault(NONE))
    made = [run for run in runs if case.run(run)]
    assert made == ["local copies", "no exchange", "exchange every 4th step", "alone on node 1"]
    assert "without node 1: refused. It costs 2 node-hours, and 1 are left." in capsys.readouterr().out


@pytest.mark.parametrize("fault", RECORDED, ids=str)
def test_few_random_answers_pass(fault, cluster, runs, capsys):
    case, rng = cluster(fault), random.Random(1)
    case.left = 1_000
    for run in runs:
        case.run(run)
    causes = [cause for cause in FAULTS if cause != CPUS]
    answers = [(rng.choice(causes), rng.choice([*runs]), rng.uniform(0, 100)) for _ in range(200)]
    assert sum(": right." in verdict(case, capsys, *answer) for answer in answers) <= 20


def test_every_run_of_the_lab_is_recorded_for_every_fault(runs):
    expected = {f"{fault}: {run}" for fault in RECORDED for run in (*runs, TODAY, sick_cluster.HEALTHY)}
    assert {*recorded("08-cases").figures} == expected


def test_faults_are_drawn_evenly_and_always_the_same():
    drawn = [draw(number) for number in range(2_000)]
    assert drawn == [draw(number) for number in range(2_000)]
    kinds = [fault.kind for fault in drawn]
    assert all(300 < kinds.count(kind) < 500 for kind in {*kinds})
    assert {str(fault) for fault in drawn} == {*FAULTS}


def test_only_the_processor_at_fault_is_slow(monkeypatch):
    slept = []
    monkeypatch.setattr(processors.time, "sleep", slept.append)
    for fault in (Fault(processors.NODE, 2), Fault(CPUS), Fault(NONE)):
        for node in (1, 2):
            for cpus in (1, 2):
                processor(number_of(fault), node, cpus)(1.0)
    assert slept == [1, 1, 3, 3, 2, 1, 2, 1, 1, 1, 1, 1]


def test_the_healthy_node_is_healthy_in_every_case(monkeypatch):
    slept = []
    monkeypatch.setattr(processors.time, "sleep", slept.append)
    monkeypatch.setattr(sick_cluster, "Testbed", Mock())
    for number in range(100):
        node, *options = sick_cluster._Case(number, "work/job.py", {}).runs[sick_cluster.HEALTHY].split()
        processor(number, int(node), cpus=1 + ("two-cpus" in options))(1.0)
    assert {*slept} == {1}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to a folder with the lab's scripts."""
    monkeypatch.chdir(tmp_path)
    lab_cells.write_files("08")
    return tmp_path


@pytest.mark.slow
def test_a_case_on_wires(folder, wires_can_be_made, runs, recovered, monkeypatch):
    set_to = []
    monkeypatch.setattr(Testbed, "set_wire", lambda bed, *wire: set_to.append(wire))
    for name in ("storage.py", "job.py"):
        path = Path("work", name)
        path.write_text(path.read_text().replace("BLOCKS, STEPS = 9, 4", "BLOCKS, STEPS = 6, 1"))
    case = SickCluster("work/job.py", runs, BUDGET, recovered, number_of(Fault(WIRE, 2)))
    assert set_to == [(2, sick_cluster.SLOW_RATES[WIRE])]
    for run in ("local copies", "no exchange", "alone on node 1"):
        assert len(case.run(run).rounds) == 6
    assert case.left == 3
    case.answer("no fault", "local copies", 0)
    assert "node 2's wire carries 37.5 Mbit/s, not 150 Mbit/s" in case.reveal()
