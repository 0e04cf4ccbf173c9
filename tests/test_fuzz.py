"""Fuzz every command with odd arguments, variables and files: one line, exit code 2, and no traceback.

Commands run in this process. When one would start its real work (a process, or changes to the kit's own files), an
audit hook stops it: by then it has read all its input.
"""

import contextlib
import io
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit import cli
from labkit.system import paths, terminal

pytestmark = pytest.mark.weekly

MAX_LINES = 6  # on stderr: the error, and warnings before it
ODD = "- -- -1 0 00 07 1 2.5 1e9 1e400 nan inf -inf ² ٣ .. / . ~ ~nobody/x , 00,,02 [red] %s{nodes} http://["
ODD += " http://x:99999 127.0.0.1 9:00 24:61 9999-12-31 0001-01-01 day bash"
WORDS = (*ODD.split(), "", "n" * 5000, "9" * 5000, "\udce9\udcff", "\x1b[2J", "a b", "1 Gbit/s")
FILES = ("file", "folder", "pipe", "loop", "missing", "empty", "nested", "folder/x.md", "file/x.ics", "out.png")
DEVICES = ("/dev/full", "/dev/null", "/dev/zero", "/proc/self/mem", "/dev/stdin")
NASTY = st.sampled_from([*WORDS, *FILES, *DEVICES])
VARIABLES = ("LAB_FOLDER", "LAB_DATA", "LAB_ROOM", "HOME", "XDG_STATE_HOME", "COLUMNS", "TERM", "SHELL")
CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "sqlite3.connect"}
PROCESSES = {"subprocess.Popen", "os.fork", "os.exec", "os.posix_spawn", "os.system", "os.kill", "os.killpg"}


class WorkStarted(BaseException):
    """The command has started its real work."""


class Guard:
    """An audit hook that stops a command when it starts its work, and denies it the network."""

    folder: Path | None = None  # where the command runs, while it runs

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.folder:
            return
        if event in PROCESSES:
            raise WorkStarted(event)
        if event in ("socket.connect", "socket.bind"):
            raise OSError("no network here")
        if event == "socket.getaddrinfo":
            str(arguments[0]).encode("idna")
            raise socket.gaierror("no network here")
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            self._check_change(arguments[0])

    def _check_change(self, target: object) -> None:
        name = os.fsdecode(target) if isinstance(target, str | bytes | Path) else ""
        if not name or "__pycache__" in name:
            return
        path, folder = Path(os.path.realpath(name)), self.folder
        if path.is_relative_to(paths.ROOT) or path.parent == Path("/"):  # named in an argument
            raise WorkStarted(f"changes {path}")
        self.folder = None  # so that the failure can be reported
        assert path.is_relative_to(folder) or path.parts[1] in ("dev", "proc"), f"it changes {path}"
        self.folder = folder


GUARD = Guard()
sys.addaudithook(GUARD)


@contextlib.contextmanager
def process_state() -> Iterator[None]:
    """Restore the state of this process that commands change."""
    environ, folder, temporary = dict(os.environ), Path.cwd(), tempfile.tempdir
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environ)
        tempfile.tempdir = temporary
        for number, handler in handlers.items():
            signal.signal(number, handler)


def create_files(folder: Path) -> None:
    folder.mkdir()
    (folder / "folder").mkdir()
    (folder / "file").write_text("text\n")
    (folder / "empty").touch()
    (folder / "nested").write_text("[" * 200_000)
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")


def run(arguments: list[str], variables: dict[str, str], home: Path) -> None:
    """Run a command line as `./lab` does, and check its output and exit code."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with process_state(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        os.chdir(home / "current")
        tempfile.tempdir = str(home)
        os.environ.update({"HOME": str(home)} | variables)
        sys.argv = ["lab", *arguments]
        terminal._seen.clear()
        GUARD.folder = home
        try:
            cli.main()
        except SystemExit as exit_error:
            code = exit_error.code or 0
        except WorkStarted:
            pass
        finally:
            GUARD.folder = None
    errors = err.getvalue()
    assert code in (0, 1, 2, 130), errors
    assert errors.count("\n") <= MAX_LINES, errors
    assert "Traceback" not in errors
    assert all(line.isprintable() for line in errors.splitlines()), errors
    assert code != 2 or "lab: " in errors


def commands(group=None, prefix: tuple[str, ...] = ()):
    for name, command in (group or typer.main.get_command(cli.application())).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*prefix, name))
        else:
            yield pytest.param(command, (*prefix, name), id=" ".join((*prefix, name)))


@st.composite
def command_lines(draw, command) -> list[str]:
    words = []
    for parameter in command.params:
        if parameter.param_type_name == "argument" and (parameter.required or draw(st.booleans())):
            words.append(draw(NASTY))
    options = [parameter.opts[0] for parameter in command.params if parameter.param_type_name == "option"]
    for name in draw(st.lists(st.sampled_from(options), max_size=3)) if options else []:
        value = draw(st.none() | NASTY)
        words.append(name if value is None else f"{name}={value}")
    return draw(st.permutations(words))


def fuzz(command, name: tuple[str, ...]) -> None:
    @settings(
        max_examples=40,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(command_lines(command), st.dictionaries(st.sampled_from(VARIABLES), NASTY, max_size=2))
    def run_examples(words: list[str], variables: dict[str, str]) -> None:
        with tempfile.TemporaryDirectory() as home:
            create_files(Path(home) / "current")  # so that ".." also belongs to the test
            run([*name, *words], variables, Path(os.path.realpath(home)))

    run_examples()


# Slow functions that read none of the input, by the command's first word.
SLOW = {
    "bench": "labkit.bench.__main__.measure",
    "build": "labkit_author.lint.lint",
    "doctor": "labkit.doctor.checks.examine",
    "join": "labkit.doctor.checks.examine",
    "lint": "labkit_author.lint.lint",
    "rehearse": "labkit_author.execution.execute",
    "roofline": "labkit.roofline.measure.limits",
    "start": "jupyterlab.labapp.LabApp.initialize_server",
    "tune": "labkit.system.cores.reserve",
}


@pytest.fixture
def stop_before_slow_work(monkeypatch, name):
    """Stop the command at its slow function."""
    monkeypatch.setattr(sys, "argv", sys.argv)

    def start_work(*_, **__):
        raise WorkStarted

    if name[0] in SLOW:
        monkeypatch.setattr(SLOW[name[0]], start_work)


@pytest.mark.parametrize(("command", "name"), list(commands()))
def test_commands_refuse_invalid_input(command, name, stop_before_slow_work):
    fuzz(command, name)
