"""Filter TensorFlow's notices from notebooks, where they appear in red and look like errors."""

import os
import re
import sys
import warnings
from typing import Any

from IPython import get_ipython

# Levels I (info) and W (warning), from TensorFlow's logging and absl's. The first absl messages come before it knows a
# level, so TF_CPP_MIN_LOG_LEVEL doesn't apply to them.
_NOTICE = re.compile(
    r"^(?:[IW]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: [IW] |WARNING: All log messages before absl::|"
    r"To enable the following instructions:).*(?:\n|\Z)",
    re.M,
)


def hide() -> None:
    """Hide notices in this notebook; errors still appear, and a terminal shows everything.

    Call it before TensorFlow is imported.
    """
    # tqdm, which other packages import, asks for ipywidgets in a notebook.
    warnings.filterwarnings("ignore", message="IProgress not found")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; inherited by programs that the notebook starts
    shell = get_ipython()
    if not hasattr(shell, "kernel"):
        return
    _filter()
    # IPython installs a `write` on the stream for each cell, and removes it afterwards.
    if _filter not in shell.events.callbacks["pre_run_cell"]:
        shell.events.register("pre_run_cell", _filter)


def _filter(*_: object) -> None:
    """Filter notices from the stream through which ipykernel forwards output from compiled code."""
    stream: Any = sys.stderr
    write = stream.write

    def filtered_write(text: str) -> int:
        rest = without_notices(text)
        if rest or not text:
            write(rest)
        return len(text)

    stream.write = filtered_write


def without_notices(text: str) -> str:
    """Remove notices from printed text."""
    return _NOTICE.sub("", text)
