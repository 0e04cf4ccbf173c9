"""Fidelity: runs on a testbed that were limited by the cores are detected and reported."""

import contextlib
import dataclasses
import re
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
    single_core = dataclasses.replace(machine, cores=machine.cores[:1])
    monkeypatch.setattr(testbed, "usable_machine", lambda: single_core)
    with Testbed(2) as nodes:
        yield nodes


def spin(nodes: Testbed, *numbers: int, sending: bool = True) -> None:
    cpu = str(nodes.nodes[0].cpus[0])
    spinning = ["taskset", "-c", cpu, sys.executable, "-c", SPIN, *["to node 2"] * sending]
    running = [subprocess.Popen([*nodes.enter(number), *spinning]) for number in numbers]
    assert [process.wait(60) for process in running] == [0] * len(numbers)


def test_busy_shared_cores_make_figures_unreliable_unless_the_use_was_brief(on_one_core, monkeypatch):
    brief, result = load.Contention(), load.Contention()
    with fidelity.watch(on_one_core, brief):
        with fidelity.watch(on_one_core, result):
            spin(on_one_core, 1, 2, 2)
        monkeypatch.setattr(fidelity, "MIN_USE_S", 60)
    assert brief.doubt == ""
    assert re.fullmatch(r"the cores that nodes share were in use for \d+% of the time", result.doubt)


def test_work_before_the_wires_are_used_does_not_count(on_one_core):
    result = load.Contention()
    with fidelity.watch(on_one_core, result):
        spin(on_one_core, 1, 2, 2, sending=False)
    assert result.doubt == ""


def test_nodes_with_separate_cores_may_be_busy(wires_can_be_made):
    if len(this_machine().cores) < 2:
        pytest.skip("two nodes share the one core")
    result = load.Contention()
    with Testbed(2) as nodes, fidelity.watch(nodes, result):
        spin(nodes, 1, 1)
    assert result.doubt == ""


@pytest.fixture
def core_limited(monkeypatch):
    """Make every run on a testbed appear limited by the cores."""

    @contextlib.contextmanager
    def watch(testbed, others):
        yield
        others.doubt = "the cores were in use"

    monkeypatch.setattr(fidelity, "watch", watch)


def test_ranks_report_it_to_the_enclosing_measurement(core_limited, wires_can_be_made, tmp_path, monkeypatch, capsys):
    (tmp_path / "nothing.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with Testbed(2) as wires, load.watch("section 7") as others:
        run = run_ranks(2, "nothing.py", network=wires, threads=1, show=False)
    assert run.others.busy
    assert others.busy
    assert others.note.startswith(
        "⚠ section 7: not valid: the cores were the limit, not the wire, as the cores were in use"
    )
    assert "⚠ Not valid: the cores were the limit" in capsys.readouterr().out


def test_a_command_on_nodes_reports_it_too(core_limited, on_one_core, capfd):
    assert command.run(on_one_core, ["true"]) == 0
    assert "⚠ Not valid: the cores were the limit, not the wire" in capfd.readouterr().out
