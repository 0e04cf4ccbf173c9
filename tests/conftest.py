"""Options, fixtures and hooks for all tests."""

import ctypes
import fcntl
import functools
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import classroom_group
import fast
import order
import pytest

from labkit.mpi import torch_ranks
from labkit.slurm import cluster
from labkit.system import account_access, processes
from labkit.testbed import obstacle
from labkit.testbed.testbed import SLEEP_WHILE_WAITING

# `./lab test &` ignores interrupts, and child processes would inherit that; some tests are about interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The first TBB in a process serves all libraries, and OpenVINO's is too old for daal4py (docs/contribute/upstream.md).
ctypes.CDLL(str(Path(sys.prefix, "lib", "libtbb.so.12")))

collect_ignore = [] if classroom_group.INSTALLED else ["classroom", "browser"]
WORKER = "PYTEST_XDIST_WORKER"  # set in the worker processes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only the tests without TensorFlow, ranks, Slurm, notebooks")
    parser.addoption(
        "--nothing-skipped", action="store_true", help="fail if a test is skipped because this machine lacks something"
    )


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # imports stay: this makes TensorFlow's a second shorter
    if WORKER not in os.environ:
        use_private_temporary_folder(config)
        make_waiting_ranks_sleep()
    if config.getoption("--fast"):
        fast.begin()


def use_private_temporary_folder(config: pytest.Config) -> None:
    """Set a temporary folder that is removed after the run, as killed processes leave files behind."""
    folder = Path(tempfile.mkdtemp(prefix="lab-tests-"))
    folder.chmod(0o1777)  # as /tmp: some tests use other accounts
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # the tests' own folders stay, for inspection
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def make_waiting_ranks_sleep() -> None:
    """Make waiting ranks, including hanging ones, leave cores to other tests."""
    os.environ.update(SLEEP_WHILE_WAITING)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        fast.deselect_slow(config, items)
    else:
        order.longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> order.Units | None:
    return order.Units(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude imported objects from garbage collection, which Hypothesis runs for each check."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def umask_stays() -> Iterator[None]:
    """Restore the umask, which commands for students set."""
    before = os.umask(0o077)
    os.umask(before)
    yield
    os.umask(before)


SOURCE_HEAD = """\
# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

"""


@pytest.fixture
def write_source(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a lab's source; a cell that starts with `[` begins on the marker's line."""

    def write(*cells: str, name: str = "42_made_up.py") -> Path:
        path = tmp_path / name
        path.write_text(
            SOURCE_HEAD + "\n".join(f"# %%{' ' if cell.startswith('[') else chr(10)}{cell}\n" for cell in cells)
        )
        return path

    return write


@pytest.fixture(scope="session")
def slurm_is_installed() -> None:
    """Skip tests that start a real Slurm if set-up could not install it."""
    if reason := cluster.obstacle():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def small(slurm_is_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Cluster]:
    """Yield a running Slurm of 2 nodes, which `order.unit` gives to one process."""
    slurm_cluster = cluster.Cluster(tmp_path_factory.mktemp("small") / "cluster")
    slurm_cluster.up(2, until=os.getpid())
    yield slurm_cluster
    slurm_cluster.down()


@pytest.fixture(scope="session")
def wires_can_be_made() -> None:
    """Skip tests that make nodes with wires if this machine does not allow them."""
    if reason := obstacle():
        pytest.skip(f"nodes with wires: {reason}")


@pytest.fixture(scope="session")
def pytorch_is_here() -> None:
    """Skip tests of PyTorch itself if it is not installed."""
    if reason := torch_ranks.obstacle():
        pytest.skip(f"PyTorch: {reason}")


@pytest.fixture(scope="session")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site over an older one, once for all processes of a run; skip if uv has no Sphinx."""
    from labkit_author import site

    shared = tmp_path_factory.getbasetemp()
    if WORKER in os.environ:
        shared = shared.parent
    out = shared / "the site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "index.html").exists():
            offline = processes.run(site.sphinx("--version"), env={"UV_OFFLINE": "1"}, timeout=60)
            if any("connectivity is disabled" in line for line in offline.lines):
                pytest.skip("Sphinx is not in uv's cache: ./lab site fetches it")
            out.mkdir(exist_ok=True)
            for name in ("searchindex.js", "of-another-day.html"):
                (out / name).write_text("")
            site.build(out)
    return out


@functools.cache
def why_no_users() -> str:
    """Return why the tests can't create users here and switch to them; empty if they can."""
    missing = [program for program in ("useradd", "userdel", "setpriv") if not shutil.which(program)]
    if os.geteuid() != 0 or missing:
        return f"this needs {' and '.join(missing) or 'root'}"
    switch_user = ["setpriv", "--reuid=65534", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "true"]
    errors = subprocess.run(switch_user, capture_output=True, text=True).stderr.strip()
    if errors:
        return f"this needs root with all its capabilities: {errors}"
    return (reason := account_access.problem()) and f"{reason}; {account_access.REMEDY}"


@pytest.fixture(scope="session")
def two_users_can_be_made() -> None:
    """Skip tests with two users if they can't be created."""
    if reason := why_no_users():
        pytest.skip(reason)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With `--nothing-skipped`, fail if a test was skipped."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--nothing-skipped") and reporter and (skipped := reporter.getreports("skipped")):
        reporter.write_line(f"{len(skipped)} SKIPPED, a failure with --nothing-skipped.", red=True, bold=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat at the end which tests were skipped here, and why."""
    files: dict[str, set[str]] = defaultdict(set)
    if not classroom_group.INSTALLED:
        files["the classroom's packages are not installed: ./lab setup --classroom"].add("tests/classroom")
    for report in terminalreporter.getreports("skipped"):
        reason = str(report.longrepr[-1]).removeprefix("Skipped: ")
        if not reason.startswith(fast.SKIPPED):
            files[reason].add(report.nodeid.partition("::")[0])
    for reason, names in sorted(files.items()):
        line = f"NOT TESTED HERE ({', '.join(sorted(names))}): {reason}"
        terminalreporter.write_line(line, red=True, bold=True)
