"""Commands run on nodes as if by ssh, `lab testbed` hands on what they give, and nothing outlives it."""

import contextlib
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from labkit.cli import application
from labkit.system.errors import LabError
from labkit.system.processes import find, wait_until
from labkit.testbed import Testbed, command, testbed

pytestmark = pytest.mark.slow  # each makes a testbed, in about half a second
SOON = 15  # seconds for what takes one or two on an idle machine
LAB = [sys.executable, "-c", "from labkit.cli import application; application()()"]


# --- enter.sh, in ssh's place ---


@pytest.fixture(scope="module")
def wires(wires_can_be_made):
    with Testbed(2) as made:
        yield made


def enter(wires: Testbed, *words: str) -> subprocess.CompletedProcess:
    environ = {**os.environ, **wires.variables}
    return subprocess.run([testbed.ENTER, *words], env=environ, capture_output=True, text=True, timeout=SOON)


@pytest.mark.parametrize("options", [(), ("-x",), ("-q", "-x", "--quiet")])
def test_a_command_runs_on_the_node_of_the_address(wires, options):
    for node in wires.nodes:
        done = enter(wires, *options, node.address, "hostname; taskset -cp $$")
        name, affinity = done.stdout.splitlines()
        assert name == f"node{node.number}"
        cpus = affinity.rpartition(" ")[2]
        assert set(_expand(cpus)) == set(node.cpus)


def _expand(cpus: str) -> list[int]:
    ends = [list(map(int, part.split("-"))) for part in cpus.split(",")]
    return [cpu for end in ends for cpu in range(end[0], end[-1] + 1)]


def test_words_reach_a_shell_there_as_ssh_has_it(wires):
    """They are joined by blanks and read by the other side's shell: who calls ssh quotes for it, as Hydra does."""
    odd = ["two words", "$HOME", "*", "it's", '"', "back\\slash", "", "-n", "a;b", "line\nend"]
    printing = [sys.executable, "-c", "import sys; print(sys.argv[1:])", *odd]
    assert enter(wires, "10.77.0.1", *map(shlex.quote, printing)).stdout == f"{odd}\n"
    assert enter(wires, "10.77.0.1", "echo", "$((1 + 1))  3").stdout == "2 3\n"


def test_the_exit_status_is_the_commands(wires):
    assert enter(wires, "10.77.0.2", "exit 7").returncode == 7
    assert enter(wires, "10.77.0.2", "no-such-program").returncode == 127


@pytest.mark.parametrize("address", ["10.77.0.3", "10.77.0.254", "localhost", "10.77.0", ""])
def test_an_address_that_no_node_has(wires, address):
    done = enter(wires, "-x", address, "hostname")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"lab: no node of this network has the address {address}.\n"


def test_input_reaches_the_command(wires):
    environ = {**os.environ, **wires.variables}
    told = subprocess.run([testbed.ENTER, "10.77.0.1", "cat"], env=environ, input=b"through", capture_output=True)
    assert told.stdout == b"through"


@pytest.mark.parametrize(("checkout", "tmp"), [("a checkout", "tmp"), ("checkout", "a tmp"), ("a checkout", "a tmp")])
def test_mpirun_gets_a_launcher_without_a_blank_in_its_path(wires_can_be_made, tmp_path, monkeypatch, checkout, tmp):
    for name in (checkout, tmp):
        (tmp_path / name).mkdir()
    (tmp_path / checkout / "enter.sh").write_bytes(testbed.ENTER.read_bytes())
    monkeypatch.setattr(testbed, "ENTER", tmp_path / checkout / "enter.sh")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / tmp))
    if " " in checkout and " " in tmp:
        with pytest.raises(LabError, match=r"Set TMPDIR to another folder\.$"):
            Testbed(1)
    else:
        with Testbed(1) as made:
            launcher = made.variables["HYDRA_LAUNCHER_EXEC"]
            assert " " not in launcher
            assert Path(launcher).read_bytes() == testbed.ENTER.read_bytes()
    assert not list((tmp_path / tmp).iterdir())


# --- command.run ---


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_the_status_is_as_a_shell_gives_it(wires, script, status):
    assert command.run(wires, ["sh", "-c", script]) == status


def test_an_interrupt_is_left_to_the_command(wires):
    before = signal.getsignal(signal.SIGINT)
    script = f"trap 'exit 5' INT; kill -INT {os.getpid()}; kill -INT $$; sleep 5"
    assert command.run(wires, ["sh", "-c", script]) == 5
    assert signal.getsignal(signal.SIGINT) is before


# --- lab testbed ---


def lab(*words: str) -> tuple[int, str]:
    done = subprocess.run([*LAB, "testbed", *words], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_it_says_what_the_wires_are_and_hands_the_status_on(wires_can_be_made):
    status, output = lab("--nodes", "3", "--rate", "200 Mbit/s", "--", "sh", "-c", "hostname; exit 3")
    assert status == 3
    assert output.startswith("3 nodes on wires of 200 Mbit/s: a transfer got ")


def test_racks(wires_can_be_made):
    racks = ("--nodes", "3", "--racks", "2", "--uplink", "50 Mbit/s")
    status, output = lab(*racks, "--", "tc", "qdisc", "show", "dev", "up2")
    assert status == 0
    assert output.startswith("3 nodes in 2 racks on wires of 1 Gbit/s, uplinks of 50 Mbit/s: a transfer got ")
    assert "rate 50Mbit burst 16000b lat 100ms" in output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "give a command after --"),
        (("--rate", "fast", "--", "true"), "a rate is written like"),
        (("--nodes", "65", "--", "true"), "nodes is a whole number from 1 to 64"),
        (("--racks", "2", "--", "true"), "give the uplink's rate too"),
        (("--", "no-such-program"), "cannot start no-such-program"),
    ],
)
def test_what_makes_no_sense_is_one_line(wires_can_be_made, words, told):
    outcome = CliRunner().invoke(application(), ["testbed", *words])
    assert isinstance(outcome.exception, LabError)
    assert told in str(outcome.exception)
    assert "\n" not in str(outcome.exception)


def test_a_shell_that_one_types_in(wires_can_be_made, tmp_path):
    """At a terminal: the labs' programs and the wires' counters are there, and Ctrl-D ends it."""
    pid, terminal = pty.fork()
    if not pid:
        os.environ |= {"SHELL": "/bin/bash", "HOME": str(tmp_path), "PS1": "$ "}
        os.environ["PATH"] = os.pathsep.join(
            part for part in os.environ["PATH"].split(os.pathsep) if "sbin" not in part and ".venv" not in part
        )
        os.execv(LAB[0], [*LAB, "testbed", "shell"])
    typed = b"type mpirun; tc -s qdisc show dev port1; ip -s link show port2; echo DONE=$((40 + 2))\n"
    output = _read_until(terminal, b"Gbit/s: a transfer got")
    os.write(terminal, typed)
    output += _read_until(terminal, b"DONE=42")
    output += _read_until(terminal, None, typing=b"\x04")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    text = output.decode()
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert f"mpirun is {Path(sys.executable).parent}/mpirun" in text
    assert "qdisc tbf" in text
    assert "Sent " in text
    assert "RX:" in text


def _read_until(terminal: int, wanted: bytes | None, typing: bytes = b"") -> bytes:
    """Read until something wanted comes, or the other end is closed; while nothing comes, type something."""
    output, deadline = b"", time.monotonic() + 60
    with contextlib.suppress(OSError):  # the other end was closed
        while (wanted is None or wanted not in output) and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.5)[0]:
                output += os.read(terminal, 1 << 16)
            elif typing:  # a shell that is not at its prompt yet throws away what was typed
                os.write(terminal, typing)
    return output


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
    """Start `lab testbed -- mpirun …` as from a terminal, and give it when its ranks are up."""
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(RANK))
    monkeypatch.setenv("LABKIT_TEST", str(tmp_path))
    words = [*LAB, "testbed", "--", "mpirun", "-n", "2", "python", str(script)]
    heard = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)  # noqa: E731, which `nohup ./lab test` ignores
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heard
    ) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        lines = [line for line in lines if not line.startswith("Warning:")]
        while "".join(lines).count("ready") < 2:  # mpirun may mix the ranks' lines
            lines.append(process.stdout.readline())
            assert lines[-1]
        assert len(living(str(tmp_path))) >= 5
        yield process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert wait_until(lambda: not living(str(tmp_path)), SOON), living(str(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_outlives_it(ranks, tmp_path, number):
    ranks.send_signal(number)
    assert ranks.wait(SOON) == -number
    assert wait_until(lambda: not living(str(tmp_path)), SOON), living(str(tmp_path))


def test_an_interrupt_from_the_terminal_ends_mpirun(ranks, tmp_path):
    os.killpg(ranks.pid, signal.SIGINT)
    assert ranks.wait(SOON) not in (0, -signal.SIGINT)
    assert wait_until(lambda: not living(str(tmp_path)), SOON), living(str(tmp_path))
