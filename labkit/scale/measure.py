"""The metric of a command on several numbers of nodes, over several wires, in turns; and the efficiencies."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from labkit.system import load
from labkit.system.errors import LabError
from labkit.system.metrics import format_metric
from labkit.system.statistics import Ratio, ratios, remarks

NO_LIMIT = "no limit"


class Point(NamedTuple):
    """What is measured: on how many nodes, and over which wires: a rate such as "1 Gbit/s", or `NO_LIMIT`."""

    nodes: int
    wires: str

    def __str__(self) -> str:
        """Return it in words."""
        return count_nodes(self.nodes) if self == REFERENCE else f"{count_nodes(self.nodes)}, {self.wires}"


REFERENCE = Point(1, NO_LIMIT)  # nothing leaves a single node


def count_nodes(nodes: int) -> str:
    """Return a number of nodes in words."""
    return f"{nodes} node{'s' * (nodes != 1)}"


def points(nodes: Sequence[int], rates: Sequence[str]) -> list[Point]:
    """Return what to measure: the reference, then each number of nodes without a limit and at each rate."""
    return [REFERENCE, *(Point(number, wires) for number in nodes if number > 1 for wires in (NO_LIMIT, *rates))]


@dataclass
class Scaling:
    """What a command's metric was, round by round, and what follows from it.

    Attributes
    ----------
    metrics : mapping of Point to list of float
        The metric in each round; of what has failed, of fewer rounds.
    failed : mapping of Point to str
        Why some have not been measured in all rounds; with the reference, the rounds end.
    minimize : bool
        Whether the metric is a time.
    strong : bool
        Whether that time is of one piece of work, which all nodes share; else each node has as much as a single one.
    interrupted : bool
        Whether the rounds were interrupted.
    others : load.Others
        What else had the cores meanwhile.
    """

    metrics: Mapping[Point, list[float]]
    failed: Mapping[Point, str] = field(default_factory=dict)
    minimize: bool = False
    strong: bool = False
    interrupted: bool = False
    others: load.Others = field(default_factory=load.Others)

    @property
    def measured(self) -> list[Point]:
        """What was measured in all the rounds that count, of which the reference has its metrics."""
        return [point for point in self.metrics if point == REFERENCE or point not in self.failed]

    @property
    def wires(self) -> list[str]:
        """The wires, `NO_LIMIT` first."""
        return list(dict.fromkeys(point.wires for point in self.metrics))

    @property
    def rounds(self) -> int:
        """How many rounds count."""
        return len(self.metrics[REFERENCE])

    def metric(self, point: Point) -> float:
        """Return the mean over the rounds."""
        return statistics.fmean(self.metrics[point])

    def times(self, point: Point, other: Point = REFERENCE) -> Ratio:
        """Return how many times as much work per second is done; the interval has the noise of these two."""
        return ratios({str(each): self._work(each) for each in (point, other)}, str(other))[str(point)]

    @property
    def remarks(self) -> list[str]:
        """What to know of the noise before one reads the efficiencies; mostly nothing."""
        return remarks({str(each): self._work(each) for each in self.measured}, str(REFERENCE))

    def efficiency(self, point: Point) -> Ratio:
        """Return the work per second, as a share of that many times what a single node does."""
        return Ratio(*(part / point.nodes for part in self.times(point)))

    def _work(self, point: Point) -> list[float]:
        """Return the work per second of all nodes together, in a unit that is the same for each number of nodes."""
        if not self.minimize:
            return self.metrics[point]
        return [(1 if self.strong else point.nodes) / seconds for seconds in self.metrics[point]]


def take_turns(
    wanted: Sequence[Point],
    run: Callable[[Point], float],
    rounds: int,
    unit: str = "",
    minimize: bool = False,
    strong: bool = False,
) -> Scaling:
    """Measure each point once a round, so that noise which lasts falls on all alike, and print how it goes.

    What fails once is not measured again; a failure of the reference, or an interrupt, ends the rounds: those that are
    whole count.

    Parameters
    ----------
    wanted : sequence of Point
        The reference first.
    run : callable
        Returns the metric, or raises LabError.
    rounds : int
        How many; every other one goes backwards.
    unit : str
        Of the metric.
    minimize, strong : bool
        As for `Scaling`.

    Raises
    ------
    LabError
        When the reference fails at once.
    """
    metrics: dict[Point, list[float]] = {point: [] for point in wanted}
    failed: dict[Point, str] = {}
    interrupted = False
    width = max(len(str(point)) for point in wanted)
    turns = [(number, point) for number in range(1, rounds + 1) for point in (wanted if number % 2 else wanted[::-1])]
    with load.combine() as others:
        try:
            for number, point in turns:
                if point in failed:
                    continue
                print(f"round {number} of {rounds}  {point!s:{width}}", end="  ", flush=True)
                try:
                    metrics[point].append(run(point))
                except LabError as error:
                    if point == REFERENCE and number == 1:
                        print("failed", flush=True)
                        raise LabError(f"it fails on 1 node, where there are no wires: {error}") from error
                    print(f"failed: {error}", flush=True)
                    failed[point] = str(error)
                    if point == REFERENCE:
                        break
                else:
                    print(f"{format_metric(metrics[point][-1]):>10} {unit}", flush=True)
        except KeyboardInterrupt:
            interrupted = True
            print("interrupted", flush=True)
    whole = min(len(each) for point, each in metrics.items() if point not in failed or point == REFERENCE)
    return Scaling(
        {point: each[:whole] for point, each in metrics.items()},
        failed,
        minimize,
        strong,
        interrupted,
        others,
    )
