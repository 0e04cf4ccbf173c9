"""Commands run on nodes as with ssh; `lab testbed` passes on their results, and no process outlives it."""

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
TIMEOUT_S = 15  # for commands that take 1 or 2 s on an idle machine
LAB = [sys.executable, "-c", "from labkit.cli import application; application()()"]


# --- enter.sh, in place of ssh ---


@pytest.fixture(scope="module")
def wires(wires_can_be_made):
    with Testbed(2) as testbed_:
        yield testbed_


def enter(wires: Testbed, *words: str) -> subprocess.CompletedProcess:
    environ = {**os.environ, **wires.variables}
    return subprocess.run([testbed.ENTER, *words], env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.mark.parametrize("options", [(), ("-x",), ("-q", "-x", "--quiet")])
def test_a_command_runs_on_the_node_of_the_address(wires, options):
    for node in wires.nodes:
        show_cpus = shlex.join([sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"])
        name, *cpus = enter(wires, *options, node.address, f"hostname; {show_cpus}").stdout.split()
        assert (name, set(map(int, cpus))) == (f"node{node.number}", set(node.cpus))


def test_words_reach_a_shell_on_the_node_as_with_ssh(wires):
    """They are joined by spaces and parsed by the remote shell: callers of ssh, such as Hydra, quote for it."""
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
    assert done.stderr == f"lab: no node of this testbed has the address {address}.\n"


def test_input_reaches_the_command(wires):
    environ = {**os.environ, **wires.variables}
    done = subprocess.run([testbed.ENTER, "10.77.0.1", "cat"], env=environ, input=b"through", capture_output=True)
    assert done.stdout == b"through"


@pytest.mark.parametrize(("checkout", "tmp"), [("a checkout", "tmp"), ("checkout", "a tmp"), ("a checkout", "a tmp")])
def test_mpirun_gets_a_launcher_path_without_spaces(wires_can_be_made, tmp_path, monkeypatch, checkout, tmp):
    for name in (checkout, tmp):
        (tmp_path / name).mkdir()
    (tmp_path / checkout / "enter.sh").write_bytes(testbed.ENTER.read_bytes())
    monkeypatch.setattr(testbed, "ENTER", tmp_path / checkout / "enter.sh")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / tmp))
    if " " in checkout and " " in tmp:
        with pytest.raises(LabError, match=r"Set TMPDIR to another folder\.$"):
            Testbed(1)
    else:
        with Testbed(1) as wires:
            launcher = wires.variables["HYDRA_LAUNCHER_EXEC"]
            assert " " not in launcher
            assert Path(launcher).read_bytes() == testbed.ENTER.read_bytes()
    assert not list((tmp_path / tmp).iterdir())


# --- command.run ---


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_the_status_matches_a_shells(wires, script, status):
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


def test_it_describes_the_wires_and_passes_on_the_status(wires_can_be_made):
    status, output = lab("--nodes", "3", "--rate", "200 Mbit/s", "--", "sh", "-c", "hostname; exit 3")
    assert status == 3
    assert output.startswith("3 nodes on wires of 200 Mbit/s: a transfer reached ")


def test_racks(wires_can_be_made):
    racks = ("--nodes", "3", "--racks", "2", "--uplink", "50 Mbit/s")
    status, output = lab(*racks, "--", "tc", "qdisc", "show", "dev", "up2")
    assert status == 0
    assert output.startswith("3 nodes in 2 racks on wires of 1 Gbit/s, uplinks of 50 Mbit/s: a transfer reached ")
    assert "rate 50Mbit burst 16000b lat 100ms" in output


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


def test_an_interactive_shell(wires_can_be_made, tmp_path):
    """In a terminal, the labs' programs and the wires' counters are available, and Ctrl-D ends it."""
    pid, terminal = pty.fork()
    if not pid:
        os.environ |= {"SHELL": "/bin/bash", "HOME": str(tmp_path), "PS1": "$ "}
        os.environ["PATH"] = os.pathsep.join(
            part for part in os.environ["PATH"].split(os.pathsep) if "sbin" not in part and ".venv" not in part
        )
        os.execv(LAB[0], [*LAB, "testbed", "shell"])
    typed = b"type mpirun; tc -s qdisc show dev port1; ip -s link show port2; echo DONE=$((40 + 2))\n"
    output = _read_until(terminal, b"Gbit/s: a transfer reached")
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


def _read_until(terminal: int, expected: bytes | None, typing: bytes = b"") -> bytes:
    """Read until the expected output arrives, or the other end is closed; while there is no output, type."""
    output, deadline = b"", time.monotonic() + 60
    with contextlib.suppress(OSError):  # the other end was closed
        while (expected is None or expected not in output) and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.5)[0]:
                output += os.read(terminal, 1 << 16)
            elif typing:  # a shell discards input before its prompt
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
    """Start `lab testbed -- mpirun …` as from a terminal; yield it when its ranks are up."""
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(RANK))
    monkeypatch.setenv("LABKIT_TEST", str(tmp_path))
    words = [*LAB, "testbed", "--", "mpirun", "-n", "2", "python", str(script)]
    heed_hangup = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)  # noqa: E731, which `nohup ./lab test` ignores
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed_hangup
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
    assert wait_until(lambda: not living(str(tmp_path)), TIMEOUT_S), living(str(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_no_process_outlives_it(ranks, tmp_path, number):
    ranks.send_signal(number)
    assert ranks.wait(TIMEOUT_S) == -number
    assert wait_until(lambda: not living(str(tmp_path)), TIMEOUT_S), living(str(tmp_path))


def test_an_interrupt_from_the_terminal_ends_mpirun(ranks, tmp_path):
    os.killpg(ranks.pid, signal.SIGINT)
    assert ranks.wait(TIMEOUT_S) not in (0, -signal.SIGINT)
    assert wait_until(lambda: not living(str(tmp_path)), TIMEOUT_S), living(str(tmp_path))
