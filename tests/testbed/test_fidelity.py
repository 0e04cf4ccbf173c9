"""Fidelity: whether cores were the limit of what ran on a testbed is seen, and told."""

import dataclasses
import subprocess
import sys

import pytest

from labkit.mpi import run_ranks
from labkit.system import load
from labkit.system.machine import this_machine
from labkit.testbed import Testbed, command, fidelity, testbed

pytestmark = pytest.mark.slow

SPIN = """\
import socket, sys, time
wire, end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), time.monotonic() + 2
while time.monotonic() < end:
    if sys.argv[1:]:
        wire.sendto(bytes(1000), ("10.77.0.2", 9))
"""


@pytest.fixture
def on_one_core(monkeypatch, wires_can_be_made):
    """Make two nodes that share a core."""
    machine = this_machine()
    one = dataclasses.replace(machine, cores=machine.cores[:1])
    monkeypatch.setattr(testbed, "usable_machine", lambda: one)
    with Testbed(2) as nodes:
        yield nodes


def spin(nodes: Testbed, *numbers: int, sending: bool = True) -> None:
    cpu = str(nodes.nodes[0].cpus[0])
    spinning = ["taskset", "-c", cpu, sys.executable, "-c", SPIN, *["to node 2"] * sending]
    running = [subprocess.Popen([*nodes.enter(number), *spinning]) for number in numbers]
    assert [process.wait(60) for process in running] == [0] * len(numbers)


def test_shared_cores_that_are_in_use_make_figures_doubtful(on_one_core):
    with fidelity.watch(on_one_core) as seen:
        spin(on_one_core, 1, 2, 2)
    assert seen.used > fidelity.MAX_USED
    assert seen.doubt == f"the cores that nodes share were in use for {seen.used:.0%} of the time"


def test_what_runs_before_the_wires_are_used_such_as_imports_does_not_count(on_one_core):
    with fidelity.watch(on_one_core) as seen:
        spin(on_one_core, 1, 2, 2, sending=False)
    assert (seen.used, seen.doubt) == (0, "")


def test_where_each_node_has_cores_of_its_own_they_are_used_as_those_of_a_real_one(wires_can_be_made):
    if len(this_machine().cores) < 2:
        pytest.skip("two nodes share the one core")
    with Testbed(2) as nodes:
        with fidelity.watch(nodes) as seen:
            spin(nodes, 1, 1)
        assert seen.used == 0


@pytest.fixture
def doubtful(monkeypatch):
    """Have every run on a testbed found to be limited by the cores."""
    monkeypatch.setattr(fidelity.Fidelity, "doubt", property(lambda self: "the cores were in use"))


def test_ranks_tell_it_to_the_measurement_around_them(doubtful, wires_can_be_made, tmp_path, capsys):
    (tmp_path / "nothing.py").write_text("")
    with load.watch("section 7") as others:
        run = run_ranks(2, "nothing.py", cwd=tmp_path, network="1 Gbit/s", threads=1, show=False)
    assert run.others.busy
    assert others.busy
    assert others.note.startswith(
        "⚠ section 7: not valid: the cores were the limit, not the wire, as the cores were in use"
    )
    assert "⚠ Not valid: the cores were the limit" in capsys.readouterr().out


def test_a_command_on_nodes_tells_it_too(doubtful, on_one_core, capfd):
    assert command.run(on_one_core, ["true"]) == 0
    assert "⚠ Not valid: the cores were the limit, not the wire" in capfd.readouterr().out
