"""What tests of several modules share."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

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
