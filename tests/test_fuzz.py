"""Every command, with arguments, variables and files that nobody would expect: one line, exit code 2, and no traceback.

Commands run in this process. Where one would really begin, by starting a process or changing the kit's own files, an
audit hook ends it: it has read all that it was given by then.
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
from labkit.bench import flags
from labkit.system import files, paths

pytestmark = pytest.mark.weekly

MAX_LINES = 6  # on stderr: the error, and warnings before it
WORDS = (
    *(
        "",
        "n" * 5000,
        "\udce9\udcff",
        "-",
        "--",
        "-1",
        "0",
        "00",
        "07",
        "1",
        "2.5",
        "1e9",
        "1e400",
        "nan",
        "inf",
        "-inf",
    ),
    *("9" * 5000, "²", "٣", "..", "/", ".", "~", "~nobody/x", "\x1b[2J", "a b", ",", "00,,02", "[red]", "%s{nodes}"),
    *(
        "http://[",
        "http://x:99999",
        "127.0.0.1",
        "1 Gbit/s",
        "9:00",
        "24:61",
        "9999-12-31",
        "0001-01-01",
        "day",
        "bash",
    ),
)
FILES = ("file", "folder", "pipe", "loop", "missing", "empty", "nested", "folder/x.md", "file/x.ics", "out.png")
DEVICES = ("/dev/full", "/dev/null", "/dev/zero", "/proc/self/mem", "/dev/stdin")
NASTY = st.sampled_from([*WORDS, *FILES, *DEVICES])
VARIABLES = ("LAB_FOLDER", "LAB_DATA", "LAB_ROOM", "HOME", "XDG_STATE_HOME", "COLUMNS", "TERM", "SHELL")
CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "sqlite3.connect"}
BEGINS = {"subprocess.Popen", "os.fork", "os.exec", "os.posix_spawn", "os.system", "os.kill", "os.killpg"}


class Begun(BaseException):
    """The command has begun what it is for."""


class Watch:
    """What ends a command that begins, and refuses it the network."""

    place: Path | None = None  # where the command runs, while it runs

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.place:
            return
        if event in BEGINS:
            raise Begun(event)
        if event in ("socket.connect", "socket.bind"):
            raise OSError("no network here")
        if event == "socket.getaddrinfo":
            str(arguments[0]).encode("idna")
            raise socket.gaierror("no network here")
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            self._changes(arguments[0])

    def _changes(self, what: object) -> None:
        if not isinstance(what, str | bytes | Path) or not os.fsdecode(what) or "__pycache__" in os.fsdecode(what):
            return
        path, place = Path(os.path.realpath(os.fsdecode(what))), self.place
        if path.is_relative_to(paths.ROOT) or path.parent == Path("/"):  # which was named
            raise Begun(f"changes {path}")
        self.place = None  # so that the failure can be told
        assert path.is_relative_to(place) or path.parts[1] in ("dev", "proc"), f"it changes {path}"
        self.place = place


WATCH = Watch()
sys.addaudithook(WATCH)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Put back what commands change of this process."""
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


def lay_out(place: Path) -> None:
    place.mkdir()
    (place / "folder").mkdir()
    (place / "file").write_text("text\n")
    (place / "empty").touch()
    (place / "nested").write_text("[" * 200_000)
    (place / "loop").symlink_to("loop")
    os.mkfifo(place / "pipe")


def run(arguments: list[str], variables: dict[str, str], place: Path) -> None:
    """Run a command line as `./lab` does, and see that it ends as it should."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with kept(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        os.chdir(place / "here")
        tempfile.tempdir = str(place)
        os.environ.update({"HOME": str(place)} | variables)
        sys.argv = ["lab", *arguments]
        files._warned.clear()
        WATCH.place = place
        try:
            cli.main()
        except SystemExit as left:
            code = left.code or 0
        except Begun:
            pass
        finally:
            WATCH.place = None
    told = err.getvalue()
    assert code in (0, 1, 2, 130), told
    assert told.count("\n") <= MAX_LINES, told
    assert "Traceback" not in told
    assert all(line.isprintable() for line in told.splitlines()), told
    assert code != 2 or "lab: " in told


def commands(group=None, above: tuple[str, ...] = ()):
    for name, command in (group or typer.main.get_command(cli.application())).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*above, name))
        else:
            yield pytest.param(command, (*above, name), id=" ".join((*above, name)))


def options_of(command) -> list[list[str]]:
    """Return all that a command's options are called; those of `lab bench` are argparse's."""
    named = [parameter.opts for parameter in command.params if parameter.param_type_name == "option"]
    return named + ([[name] for name in flags.parser()._option_string_actions] if command.name == "bench" else [])


@st.composite
def command_lines(draw, command) -> list[str]:
    words = []
    for parameter in command.params:
        if parameter.param_type_name == "argument" and (parameter.required or draw(st.booleans())):
            words.append(draw(NASTY))
    options = options_of(command)
    for names in draw(st.lists(st.sampled_from(options), max_size=3)) if options else []:
        value = draw(st.none() | NASTY)
        words.append(names[0] if value is None else f"{names[0]}={value}")
    return draw(st.permutations(words))


def hold(command, name: tuple[str, ...]) -> None:
    @settings(
        max_examples=40,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(command_lines(command), st.dictionaries(st.sampled_from(VARIABLES), NASTY, max_size=2))
    def holds(words: list[str], variables: dict[str, str]) -> None:
        with tempfile.TemporaryDirectory() as place:
            lay_out(Path(place) / "here")  # so that ".." is a place of the test's too
            run([*name, *words], variables, Path(os.path.realpath(place)))

    holds()


# What takes long and reads nothing of what was given, by the first word of the commands that come to it.
CUT_SHORT = {
    "bench": "labkit.bench.__main__.measure",
    "build": "labkit_author.lint.lint",
    "doctor": "labkit.doctor.checks.examine",
    "join": "labkit.doctor.checks.examine",
    "lint": "labkit_author.lint.lint",
    "rehearse": "labkit_author.execution.execute",
    "roofline": "labkit.roofline.measure.limits",
    "start": "jupyterlab.labapp.LabApp.initialize_server",
    "tune": "labkit.system.lease.take",
}


@pytest.fixture
def cut_short(monkeypatch, name):
    """Have this command begun where it comes to what takes long."""
    monkeypatch.setattr(sys, "argv", sys.argv)

    def begun(*_, **__):
        raise Begun

    if name[0] in CUT_SHORT:
        monkeypatch.setattr(CUT_SHORT[name[0]], begun)


@pytest.mark.parametrize(("command", "name"), list(commands()))
def test_a_command_refuses_what_makes_no_sense(command, name, cut_short):
    hold(command, name)
