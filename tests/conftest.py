"""What tests of several modules share."""

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
from collections.abc import Callable
from pathlib import Path

import fast
import order
import pytest

from labkit.mpi import torch_ranks
from labkit.slurm import cluster
from labkit.system import others, processes
from labkit.testbed import obstacle
from labkit.testbed.testbed import SLEEP_WHILE_WAITING

# `./lab test &` ignores interrupts, and what tests start would inherit that: some tests are about interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The first TBB in a process serves all who need one, and OpenVINO's own is too old for daal4py (docs/upstream.md).
ctypes.CDLL(str(Path(sys.prefix, "lib", "libtbb.so.12")))

STORED = "HAS CELLS WITHOUT STORED OUTPUTS"  # in the reason of a skip (tests/author/test_notebooks.py)
WORKER = "PYTEST_XDIST_WORKER"  # a variable of the processes that share the tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only the tests without TensorFlow, ranks, Slurm, notebooks")
    parser.addoption("--nothing-skipped", action="store_true", help="fail when this machine lacks what a test needs")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # what is imported stays: TensorFlow's import is a second shorter without
    if WORKER not in os.environ:
        keep_temporary_files_apart(config)
        have_ranks_sleep_while_they_wait()
    if config.getoption("--fast"):
        fast.begin()


def keep_temporary_files_apart(config: pytest.Config) -> None:
    """Give what the tests start a temporary folder that goes with the run: what is killed leaves its files behind."""
    folder = Path(tempfile.mkdtemp(prefix="lab-tests-"))
    folder.chmod(0o1777)  # as /tmp has: some tests are of other accounts
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # the tests' own folders stay, to be read
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def have_ranks_sleep_while_they_wait() -> None:
    """Have ranks that wait, as those that hang, keep no core from the tests beside them."""
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
    """Keep what imports have made out of all garbage collections, of which Hypothesis starts one for each check."""
    gc.freeze()
    gc.enable()


SOURCE_HEAD = """\
# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

"""


@pytest.fixture
def write_source(tmp_path: Path) -> Callable[..., Path]:
    """Write a lab's source from its cells; a cell that starts with `[` goes on the marker's line up to its line end."""

    def write(*cells: str, name: str = "42_made_up.py") -> Path:
        path = tmp_path / name
        path.write_text(
            SOURCE_HEAD + "\n".join(f"# %%{' ' if cell.startswith('[') else chr(10)}{cell}\n" for cell in cells)
        )
        return path

    return write


@pytest.fixture(scope="session")
def slurm_is_installed() -> None:
    """Have the tests that start a real Slurm skipped, and said so loudly, where set-up could not install it."""
    if reason := cluster.obstacle():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def wires_can_be_made() -> None:
    """Have the tests that make nodes with wires between them skipped, and said so loudly, where there can be none."""
    if reason := obstacle():
        pytest.skip(f"no network: {reason}")


@pytest.fixture(scope="session")
def pytorch_is_here() -> None:
    """Have the tests of PyTorch itself skipped, and said so loudly, where nobody asked for it."""
    if reason := torch_ranks.obstacle():
        pytest.skip(f"RANKS WITH PYTORCH NOT TESTED HERE: {reason}")


@pytest.fixture(scope="session")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the site in place of an older one, once for all processes of a run; skip it where uv has no Sphinx."""
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
                pytest.skip("no site: Sphinx is not in uv's cache: ./lab site fetches it")
            out.mkdir(exist_ok=True)
            for name in ("searchindex.js", "of-another-day.html"):
                (out / name).write_text("")
            site.build(out)
    return out


@functools.cache
def why_no_users() -> str:
    """Give the one line why the tests can't make users here and be them; empty when they can."""
    missing = [program for program in ("useradd", "userdel", "setpriv") if not shutil.which(program)]
    if os.geteuid() != 0 or missing:
        return f"this takes {' and '.join(missing) or 'root'}"
    become = ["setpriv", "--reuid=65534", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "true"]
    told = subprocess.run(become, capture_output=True, text=True).stderr.strip()
    if told:
        return f"this takes root with all its capabilities: {told}"
    return (reason := others.why_not()) and f"{reason}; {others.REMEDY}"


@pytest.fixture(scope="session")
def two_users_can_be_made() -> None:
    """Have the tests with two users skipped, and said so loudly, where there is no root to make them."""
    if reason := why_no_users():
        pytest.skip(reason)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail, should it be asked for, where a test was skipped: a run that tested nothing is not green there."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--nothing-skipped") and reporter and (skipped := reporter.getreports("skipped")):
        reporter.write_line(f"{len(skipped)} SKIPPED, AND --nothing-skipped: that is a failure.", red=True, bold=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly which tests were skipped as this machine lacks wires, a browser, Slurm, two users, or Sphinx."""
    reasons = {str(report.longrepr[-1]) for report in terminalreporter.getreports("skipped")}
    for reason in sorted(reason for reason in reasons if "no site: " in reason):
        told = reason.partition("no site: ")[2]
        terminalreporter.write_line(f"THE SITE WAS NOT BUILT HERE: {told}", red=True, bold=True)
    for reason in sorted(reason for reason in reasons if "no network: " in reason):
        told = reason.partition("no network: ")[2]
        terminalreporter.write_line(f"NODES WITH WIRES WERE NOT ALL TESTED HERE: {told}", red=True, bold=True)
    for reason in sorted(reason for reason in reasons if "NOT TESTED HERE" in reason or STORED in reason):
        terminalreporter.write_line(reason.removeprefix("Skipped: "), red=True, bold=True)
    skipped = {report.nodeid.partition("::")[0] for report in terminalreporter.getreports("skipped")}
    for reason in sorted(reason for reason in reasons if "no browser: " in reason):
        files = ", ".join(sorted(name for name in skipped if name.startswith("tests/browser/")))
        told = reason.partition("no browser: ")[2]
        terminalreporter.write_line(f"PAGES WERE NOT TESTED IN A BROWSER HERE ({files}): {told}.", red=True, bold=True)
    users = "tests/slurm/test_cluster_users.py"
    of_slurm = {
        "tests/slurm/test_cluster.py",
        "tests/train/test_sbatch.py",
        users,
    }
    if skipped & of_slurm and (why := cluster.obstacle()):
        terminalreporter.write_line(f"SLURM WAS NOT TESTED HERE. It is {why}", red=True, bold=True)
    elif users in skipped and (why := why_no_users()):
        told = "THAT NO OTHER USER CAN USE THE SMALL SLURM WAS NOT TESTED HERE"
        terminalreporter.write_line(f"{told}: {why}. As root: ./lab test {users}", red=True, bold=True)
