"""Commands run on nodes as with ssh; `lab testbed` passes on their results, and no process outlives it."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from labkit.cli import application
from labkit.system.errors import LabError
from labkit.system.processes import find, wait_until
from labkit.testbed import Testbed, command, testbed

pytestmark = pytest.mark.slow  # each makes a testbed, in about half a second
TIMEOUT_S = 15  # for commands that take 1 or 2 s on an idle machine
LAB = [sys.executable, "-c", "from labkit.cli import application; application()()"]


# --- enter.sh, in place of ssh ---


@pytest.fixture(scope="module")
def wires(wires_can_be_made):
    with Testbed(2) as testbed_:
        yield testbed_


def enter(wires: Testbed, *words: str, text: str = "") -> subprocess.CompletedProcess:
    command, environ = [testbed.ENTER, *words], {**os.environ, **wires.variables}
    return subprocess.run(command, env=environ, input=text, capture_output=True, text=True, timeout=TIMEOUT_S)


def test_a_command_runs_on_the_node_of_the_address(wires):
    for node in wires.nodes:
        show_cpus = shlex.join([sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"])
        name, *cpus = enter(wires, "-q", "-x", node.address, f"hostname; {show_cpus}").stdout.split()
        assert (name, set(map(int, cpus))) == (f"node{node.number}", set(node.cpus))


def test_words_and_input_reach_a_shell_on_the_node_as_with_ssh(wires):
    """They are joined by spaces and parsed by the remote shell: callers of ssh, such as Hydra, quote for it."""
    odd = ["two words", "$HOME", "*", "it's", '"', "back\\slash", "", "-n", "a;b", "line\nend"]
    printing = [sys.executable, "-c", "import sys; print(sys.argv[1:])", *odd]
    assert enter(wires, "10.77.0.1", *map(shlex.quote, printing)).stdout == f"{odd}\n"
    assert enter(wires, "10.77.0.1", "echo", "$((1 + 1))  3; cat; exit 7", text="in").stdout == "2 3\nin"
    assert enter(wires, "10.77.0.2", "exit 7").returncode == 7


@pytest.mark.parametrize("address", ["10.77.0.3", "10.77.0", ""])
def test_an_address_that_no_node_has(wires, address):
    done = enter(wires, "-x", address, "hostname")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"lab: no node of this testbed has the address {address}.\n"


# --- command.run ---


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_status_matches_a_shells(wires, script, status):
    assert command.run(wires, ["sh", "-c", script]) == status


def test_an_interrupt_is_left_to_the_command(wires):
    before = signal.getsignal(signal.SIGINT)
    script = f"trap 'exit 5' INT; kill -INT {os.getpid()}; kill -INT $$; sleep 5"
    assert command.run(wires, ["sh", "-c", script]) == 5
    assert signal.getsignal(signal.SIGINT) is before


# --- lab testbed ---


def test_it_describes_the_wires_opens_a_shell_and_passes_on_its_status(wires_can_be_made):
    """The labs' programs and the wires' counters are on the shell's PATH."""
    visible = [part for part in os.environ["PATH"].split(os.pathsep) if "sbin" not in part and ".venv" not in part]
    done = subprocess.run(
        [*LAB, "testbed", "--nodes", "3", "--racks", "2", "--uplink", "50 Mbit/s", "shell"],
        env={**os.environ, "SHELL": "/bin/bash", "PATH": os.pathsep.join(visible)},
        input="type mpirun; tc qdisc show dev up2; ip -s link show port2; exit 3\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("3 nodes in 2 racks on wires of 1 Gbit/s, uplinks of 50 Mbit/s: a transfer reached ")
    assert f"mpirun is {Path(sys.executable).parent}/mpirun" in done.stdout
    assert "rate 50Mbit burst 16000b lat 100ms" in done.stdout
    assert "RX:" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a command after --"),
        (("--rate", "fast", "--", "true"), "a rate must be like"),
        (("--nodes", "65", "--", "true"), "nodes must be an integer from 1 to 64"),
        (("--racks", "2", "--", "true"), "set the uplink's rate too"),
        (("--wire", "50 Mbit/s", "--", "true"), "--wire must be like '3=50 Mbit/s'"),
        (("--queue", "7", "--", "true"), "a queue must be an integer of bytes"),
        (("--", "no-such-program"), "cannot start no-such-program"),
    ],
)
def test_invalid_options_are_one_line_errors(wires_can_be_made, words, message):
    outcome = CliRunner().invoke(application(), ["testbed", *words])
    assert isinstance(outcome.exception, LabError)
    assert message in str(outcome.exception)
    assert "\n" not in str(outcome.exception)


RANK = """
    import time
    from mpi4py import MPI
    MPI.COMM_WORLD.barrier()
    print("ready", flush=True)
    time.sleep(100)
"""


def living(mark: str) -> list[psutil.Process]:
    return find(lambda process: process.environ().get("LABKIT_TEST") == mark)


@pytest.fixture
def ranks(wires_can_be_made, tmp_path, monkeypatch):
    """Start `lab testbed -- mpirun …` as from a terminal; yield it when its ranks are up."""
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(RANK))
    monkeypatch.setenv("LABKIT_TEST", str(tmp_path))
    words = [*LAB, "testbed", "--", "mpirun", "-n", "2", "python", str(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        lines = [line for line in lines if not line.startswith("Warning:")]
        while "".join(lines).count("ready") < 2:  # mpirun may mix the ranks' lines
            lines.append(process.stdout.readline())
            assert lines[-1]
        assert len(living(str(tmp_path))) >= 5
        yield process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert wait_until(lambda: not living(str(tmp_path)), TIMEOUT_S), living(str(tmp_path))


def test_an_interrupt_from_the_terminal_ends_mpirun(ranks, tmp_path):
    os.killpg(ranks.pid, signal.SIGINT)
    assert ranks.wait(TIMEOUT_S) not in (0, -signal.SIGINT)
    assert wait_until(lambda: not living(str(tmp_path)), TIMEOUT_S), living(str(tmp_path))
