"""Open a lab in its notebook: its checks, its results file, the machine, and the style of plots."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from labkit.display import boxes, notices, plots
from labkit.display.results import WORK, Results
from labkit.exercises import classroom_link
from labkit.exercises.engine.checker import Checker, checker
from labkit.system import lacks
from labkit.system.cores import slot_cores, slots, usable_machine
from labkit.system.machine import Machine
from labkit.system.words import plural


class OpenLab(NamedTuple):
    """The objects that a lab's notebook uses.

    Attributes
    ----------
    check : Checker
        Checks an answer: `name = check(1, name)`.
    results : Results
        Stores the lab's measurements for the report.
    machine : Machine
        The part of the machine that this notebook may use.
    work : Path
        The folder for files that the lab writes.
    """

    check: Checker
    results: Results
    machine: Machine
    work: Path


def open_lab(number: str, namespace: dict[str, Any]) -> OpenLab:
    """Open a lab in its notebook: make the folder for its files, set the style of plots, print the machine.

    Call it before importing TensorFlow, whose notices it hides.

    Parameters
    ----------
    number : str
        The lab, such as "07".
    namespace : dict
        The notebook's globals; a true `QUICK` among them means a small run, as in the tests. It is in the lab's cell
        tagged `parameters`, where Papermill, and nbval in the tests, set another value.
    """
    if notebook := namespace.get("__vsc_ipynb_file__"):  # VS Code may run cells in another folder
        os.chdir(Path(notebook).parent)
    notices.hide()  # first: the checks of some labs import TensorFlow
    check = checker(number, namespace, bool(namespace.get("QUICK")))
    boxes.install_style()
    plots.use_style()
    WORK.mkdir(exist_ok=True)
    classroom_link.open_lab(Path.cwd(), number)  # after a reboot, say, the room's sender is no longer running
    machine = usable_machine()
    cores = plural(machine.usable_cores, "core")
    print(f"{machine.model}: {cores} for this notebook, {', '.join(machine.isa) or 'no AVX2'}")
    if missing := lacks.simulated():
        print(f"{lacks.VARIABLE} simulates a machine without {', '.join(missing)}.")
    if cleared := os.environ.get("LAB_CLEARED"):
        print(f"Variables cleared, because they would change results: {cleared} (rules: env/variables.txt).")
    if shared := slots():
        size = plural(slot_cores(), "core")
        print(f"{plural(len(shared), 'measuring slot')} of {size} each: measurements wait until one is free.")
    return OpenLab(check, check.results, machine, WORK)
