"""What did a lab measure here? Kept in one small file, `work/results-NN.json`, for `lab report` to read."""

import contextlib
import json
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from IPython.display import Markdown, display

from labkit.machine import this_machine

WORK = Path("work")  # of the notebook that is running
COLUMNS = ("published", "this machine", "its limit")
PASSED = "passed"


class Results:
    """The results of one lab, written as they come; what comes again replaces what was there.

    Parameters
    ----------
    lab : str
        Its number, such as "07".
    quick : bool
        Whether this is a small run, whose figures mean little.
    """

    def __init__(self, lab: str, quick: bool = False):
        self.path = WORK / f"results-{lab}.json"
        self._about = {"lab": lab, "quick": quick}

    def table(self, what: str, rows: Sequence[Sequence[str]]) -> None:
        """Show and keep the lab's closing table.

        Parameters
        ----------
        what : str
            What the figures are of: the head of the first column.
        rows : sequence of (name, published, this machine, its limit)
            The figures with their units, as shown; an empty text where there is none.
        """
        lines = [(what, *COLUMNS), ("---",) * 4, *rows]
        display(Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines)))
        self._keep("table", {"what": what, "rows": [list(row) for row in rows]})

    def picture(self, title: str, png: str, alt: str) -> None:
        """Keep a picture, `png` in base64. One of the same title is replaced: have no measured figure in it."""
        self._keep("pictures", self._read().get("pictures", {}) | {title: {"png": png, "alt": alt}})

    def exercise(self, number: int, verdict: str) -> None:
        """Keep how an exercise stands. What was passed once stays so."""
        exercises = self._read().get("exercises", {})
        if exercises.get(str(number)) != PASSED:
            self._keep("exercises", exercises | {str(number): verdict})

    def _read(self) -> dict[str, Any]:
        """Give what is kept; nothing of a file that is damaged: a lab goes on without it."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self.path.read_text())
        return {}

    def _keep(self, key: str, value: Any) -> None:
        kept = self._read() | self._about | {key: value, "when": time.strftime("%Y-%m-%d %H:%M"), "on": _setting()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")  # whole or not at all
        fresh.write_text(json.dumps(kept, indent=1))
        fresh.replace(self.path)


def _setting() -> dict[str, str | int]:
    """What the figures were measured on and with."""
    machine = this_machine()
    return {
        "cpu": machine.model,
        "cores": machine.usable_cores,
        "numa nodes": len(machine.numa),
        "memory": f"{machine.memory / 2**30:.0f} GiB",
        "instruction sets": ", ".join(machine.isa),
        "software": ", ".join(f"{name} {metadata.version(name)}" for name in ("tensorflow-cpu", "horovod", "mpich")),
    }
