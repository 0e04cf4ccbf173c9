"""The case of lab 08: a cluster with at most one fault, a budget for the runs that find it, and the check."""

import itertools
import json
import os
import random
from collections.abc import Callable, Mapping

from labkit.display import boxes
from labkit.measure import Measured, record, recorded
from labkit.measure.figures import summarize
from labkit.measure.recordings import VARIABLE
from labkit.mpi import run_ranks
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.testbed import Testbed, obstacle
from labkit.testbed.processors import CPUS, NODE, NONE, STORAGE, TRAINERS, WIRE, Fault, draw
from labkit.testbed.units import show_rate

RATE = 150e6  # bit/s, of every healthy wire
STORAGE_NODE = 4
SLOW_RATES = {STORAGE: RATE / 9, WIRE: RATE / 4}
FAULTS = (
    *(STORAGE, *(str(Fault(WIRE, node)) for node in TRAINERS)),
    *(*(str(Fault(NODE, node)) for node in TRAINERS), CPUS, NONE),
)
RECORDED = (Fault(STORAGE), Fault(WIRE, 2), Fault(NODE, 3), Fault(NONE))
RECORDING = "08-cases"
TODAY, HEALTHY = "as today", "one healthy node"  # runs that cost nothing
TOLERANCE = 15  # percentage points


class SickCluster:
    """Three nodes that train and one for storage; one of them may have a fault.

    Parameters
    ----------
    job : str
        The path of the script.
    runs : mapping of str to str
        The nodes that train and its other arguments, for each run that students may choose.
    budget : int
        The node-hours. A run costs one for each node that trains.
    share : callable
        Takes the speeds in images/s and the numbers of nodes of one healthy node, of today's cluster, and of a run;
        returns the percentage of the missing time that the run recovers.
    case : int, optional
        The number that the fault is drawn from; by default, a random one.
    """

    def __init__(
        self, job: str, runs: Mapping[str, str], budget: int, share: Callable[..., float], case: int | None = None
    ) -> None:
        self.runs, self.left, self.share = runs, budget, share
        self.case = random.randrange(1000, 10_000) if case is None else case
        self.done: dict[str, Measured] = {}
        self._answers = 0
        no_wires = obstacle()
        possible = {fault.kind for fault in RECORDED}
        if two_cpus_per_node():
            possible.add(CPUS)
        while (fault := draw(self.case)).kind not in possible:
            self.case += 1
        if no_wires:
            print(f"No wires: {no_wires}")
            self.fault = next(known for known in RECORDED if known.kind == fault.kind)
            figures = recorded(RECORDING).figures
            self._measure = lambda run: figures[f"{self.fault}: {run}"]
        else:
            self.fault = fault
            self._measure = _Case(self.case, job, runs).measure
        self.healthy, self.today = self._measure(HEALTHY), self._measure(TODAY)

    def nodes(self, run: str) -> int:
        """Return the number of nodes that train in a run."""
        return len(self.runs[run].split()[0])

    def run(self, name: str) -> Measured | None:
        """Make a run, charge it, print its images/s and return them; refuse it if the budget is too small."""
        if name not in self.runs:
            raise LabError(f"there is no run {name!r}: choose from {', '.join(map(repr, self.runs))}.")
        cost = self.nodes(name)
        if cost > self.left:
            print(f"{name}: refused. It costs {cost} node-hours, and {self.left} are left.")
            return None
        self.done[name] = figure = self._measure(name)
        self.left -= cost
        print(f"{name}, nodes that train: {cost}: {figure}")
        print(f"{cost} node-hours, {self.left} left")
        return figure

    def answer(self, cause: object, run: object, share: object) -> None:
        """Check a cause, the decisive run and the share of the missing time that it recovers, in percent."""
        if ... in (cause, run, share):
            boxes.show("The case: ", "not attempted", "#e0e0e0")
            return
        self._answers += 1
        head = f"The case, answer {self._answers}: "
        if problem := self._problem(cause, run, share):
            boxes.show(head, "not yet", "#f9e79f", lines=[problem])
        else:
            boxes.show(head, "right", "#a9dfbf", lines=[self._in_words()])

    def _problem(self, cause: object, run: object, share: object) -> str:
        if cause not in FAULTS:
            return f"The cause is one of: {'; '.join(FAULTS)}."
        if run not in self.done:
            return f"The decisive run is one of those that you made: {'; '.join(self.done) or 'none yet'}."
        if not isinstance(share, int | float):
            return f"The share is a number, in percent; it is {share!r}."
        figure = self.done[str(run)]
        seen = self.share(
            (self.healthy.value, 1), (self.today.value, len(TRAINERS)), (figure.value, self.nodes(str(run)))
        )
        if abs(seen - share) > TOLERANCE:
            return f"{run!r} does not recover {share:g}% of the missing time: compute the share with your function."
        if cause != str(self.fault):
            return f"It isn't {cause}. Which run would recover most of the missing time if it were? Did it?"
        if self.fault.kind != NONE and run != self._cure():
            return "The cause is right, and the share too, but this run doesn't take away the part at fault alone."
        return ""

    def _cure(self) -> str:
        """Return the run without the part at fault, and with everything else."""
        cures = {STORAGE: "local copies", CPUS: "two CPUs per rank"}
        return cures.get(self.fault.kind, f"without node {self.fault.node}")

    def reveal(self) -> str:
        """Return the fault of the cluster in words, if there has been an answer."""
        return self._in_words() if self._answers else "Answer first, with cluster.answer; a wrong answer is enough."

    def _in_words(self) -> str:
        if rate := SLOW_RATES.get(self.fault.kind):
            return f"Case {self.case}: {self.fault} carries {show_rate(rate)}, not {show_rate(RATE)}."
        return f"Case {self.case}: {self.fault}. All wires carry {show_rate(RATE)}."


class _Case:
    """A case on a testbed."""

    def __init__(self, case: int, job: str, runs: Mapping[str, str]) -> None:
        self.case, self.job, fault = case, job, draw(case)
        self.testbed = Testbed(len(TRAINERS) + 1, RATE)
        a_healthy_node = fault.node % len(TRAINERS) + 1
        self.runs = {**runs, HEALTHY: f"{a_healthy_node} local two-cpus", TODAY: "".join(map(str, TRAINERS))}
        _ = self.testbed.check  # measured now, while all wires are healthy
        if fault.kind in SLOW_RATES:
            self.testbed.set_wire(fault.node or STORAGE_NODE, SLOW_RATES[fault.kind])

    def measure(self, run: str) -> Measured:
        """Return a run's images/s, of some blocks of steps."""
        nodes, arguments = self.testbed.nodes, [self.case, self.testbed.nodes[-1].address, *self.runs[run].split()]
        launched = run_ranks(len(nodes), self.job, *arguments, threads=1, network=self.testbed, show=False)
        speeds = json.loads(next(line for lines in launched.lines for line in lines if line.startswith("[")))
        return summarize(speeds, "images/s", contention=(launched.others,))


def two_cpus_per_node() -> bool:
    """Return whether each node of a testbed, if one can be made, has at least two cores."""
    return usable_machine().usable_cores >= 2 * STORAGE_NODE and not obstacle()


def record_cases(job: str, runs: Mapping[str, str], quick: bool) -> None:
    """Make every run of every case, if recordings are made."""
    if VARIABLE not in os.environ:
        return
    figures: dict[str, Measured] = {}
    for fault in RECORDED:
        case = next(number for number in itertools.count(1) if draw(number) == fault)
        on_testbed = _Case(case, job, runs)
        figures |= {f"{fault}: {run}": on_testbed.measure(run) for run in on_testbed.runs}
        on_testbed.testbed.close()
    record(RECORDING, figures, quick)
