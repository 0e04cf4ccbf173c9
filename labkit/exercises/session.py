"""The beginning of a lab's notebook: its checks, its results file, the machine, and how pictures look."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from labkit.display import boxes, notices, plots
from labkit.display.results import WORK, Results
from labkit.exercises import classroom_link
from labkit.exercises.core import Checker, checker
from labkit.system import lease
from labkit.system.errors import LabError
from labkit.system.lease import usable_machine
from labkit.system.machine import Machine
from labkit.system.words import plural


class OpenLab(NamedTuple):
    """What a lab's notebook works with.

    Attributes
    ----------
    check : Checker
        Checks an answer: `name = check(1, name)`.
    results : Results
        Keeps what the lab measures, for the report.
    machine : Machine
        What this notebook may use of the machine.
    work : Path
        The folder for files that the lab writes.
    """

    check: Checker
    results: Results
    machine: Machine
    work: Path


def open_lab(number: str, namespace: dict[str, Any]) -> OpenLab:
    """Open a lab in its notebook: make the folder for its files, set the style of pictures, print the machine.

    Call it before TensorFlow is imported, whose notices it keeps away.

    Parameters
    ----------
    number : str
        The lab, such as "07".
    namespace : dict
        The notebook's globals; `QUICK` among them, where it is true, says that this is a small run, as the tests make
        them. A lab's cell tagged `parameters` has it: Papermill gives it another value, and so does nbval in the tests.
    """
    notices.hide()  # first: the checks of some labs import TensorFlow
    check = checker(number, namespace, bool(namespace.get("QUICK")))
    boxes.keep_words_whole()
    plots.use_style()
    WORK.mkdir(exist_ok=True)
    classroom_link.open_lab(Path.cwd(), number)  # after a restart of the machine, say, the room's sender runs no more
    machine = usable_machine()
    if number == "09" and "NEON" in machine.isa:
        raise LabError("daal4py, which this lab is about, has no package for Arm: run it on a machine with x86-64.")
    cores = plural(machine.usable_cores, "core")
    print(f"{machine.model}: {cores} for this notebook, {', '.join(machine.isa) or 'no AVX2'}")
    if cleared := os.environ.get("LAB_CLEARED"):
        print(f"Not passed on, because results would change: {cleared} (env/variables.txt has the rules).")
    if shared := lease.slots():
        slots = plural(len(shared), "measuring slot")
        print(f"{slots} of {plural(lease.slot_cores(), 'core')} each: measurements wait until one is free.")
    return OpenLab(check, check.results, machine, WORK)
