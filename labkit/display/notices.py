"""TensorFlow's notices, kept away from a notebook, where they stand in red below a cell and look like errors."""

import os
import re
import sys
import warnings
from typing import Any

from IPython import get_ipython

# Of level I (info) and W (warning), by TensorFlow's logging and by absl's. The first of absl's come before it knows of
# a level, so TF_CPP_MIN_LOG_LEVEL does not hold for them.
_NOTICE = re.compile(
    r"^(?:[IW]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: [IW] |WARNING: All log messages before absl::|"
    r"To enable the following instructions:).*(?:\n|\Z)",
    re.M,
)


def hide() -> None:
    """Keep notices away from this notebook; errors still come, and a terminal still shows all.

    Call it before TensorFlow is imported.
    """
    # Optuna imports tqdm, which asks for ipywidgets in a notebook.
    warnings.filterwarnings("ignore", message="IProgress not found")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; programs that the notebook starts have it too
    shell = get_ipython()
    if not hasattr(shell, "kernel"):
        return
    _filter()
    # IPython puts each cell's own `write` into the stream, and takes it out behind the cell.
    if _filter not in shell.events.callbacks["pre_run_cell"]:
        shell.events.register("pre_run_cell", _filter)


def _filter(*_: object) -> None:
    """Have the stream by whose `write` ipykernel passes on what compiled code prints write all but notices."""
    stream: Any = sys.stderr
    write = stream.write

    def write_the_rest(text: str) -> int:
        rest = without_notices(text)
        if rest or not text:
            write(rest)
        return len(text)

    stream.write = write_the_rest


def without_notices(text: str) -> str:
    """Return what was printed without the notices in it."""
    return _NOTICE.sub("", text)
