"""What tests of several modules share."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit import cluster

# `./lab test &` ignores interrupts, and what tests start would inherit that: some tests are about interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

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
    if reason := cluster.why_not():
        pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly when the tests that start a real Slurm were skipped."""
    skipped = {report.nodeid.partition("::")[0] for report in terminalreporter.getreports("skipped")}
    if skipped & {"tests/test_cluster.py", "tests/train/test_sbatch.py"} and (why := cluster.why_not()):
        terminalreporter.write_line(f"SLURM WAS NOT TESTED HERE. It is {why}", red=True, bold=True)
