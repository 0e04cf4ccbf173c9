"""What a scaling measurement shows: a table, where it breaks in sentences that follow from the intervals, and JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Column, Table

from labkit.scale.measure import NO_LIMIT, REFERENCE, Point, Scaling, count_nodes
from labkit.system.metrics import format_metric
from labkit.system.statistics import Ratio, caption
from labkit.system.tables import plain_table


class Break(NamedTuple):
    """Where a command stops scaling on some wires.

    Attributes
    ----------
    nodes : int or None
        The first number of nodes for which that is beyond chance; None when there is none.
    text : str
        That in words.
    """

    nodes: int | None
    text: str


def find_break(scaling: Scaling, wires: str, threshold: float) -> Break:
    """Return the first number of nodes that is not worth it, beyond chance.

    That is where the efficiency's interval is below the threshold; or where the interval of the speed, relative to the
    number before, holds 1 or less, and is short enough to hold less than that share of an ideal gain. Where an interval
    holds both, nobody can tell.
    """
    before = REFERENCE
    unclear: list[str] = []
    for point in (point for point in scaling.metrics if point.wires == wires and point != REFERENCE):
        if point in scaling.failed:
            return Break(None, _no_break(before, unclear, f" On {count_nodes(point.nodes)} it failed."))
        efficiency, gain = scaling.efficiency(point), scaling.times(point, before)
        if math.isnan(efficiency.low):
            return Break(None, "one round only, so nobody can tell.")
        latest, doubts = (" at the latest", f" {' '.join(unclear)}") if unclear else ("", "")
        at = f"breaks at {count_nodes(point.nodes)}{latest}"
        if efficiency.high < threshold:
            return Break(point.nodes, f"{at}: efficiency {show_share(efficiency)}, below {threshold:.0%}.{doubts}")
        worthwhile = 1 + threshold * (point.nodes / before.nodes - 1)
        if gain.low <= 1 and gain.high < worthwhile:
            how = "slower than" if gain.high < 1 else "not faster beyond chance than"
            return Break(point.nodes, f"{at}, {how} {count_nodes(before.nodes)}: {gain} times as fast.{doubts}")
        if efficiency.low < threshold:
            what = f"the interval of the efficiency, {show_share(efficiency)}, holds {threshold:.0%}"
            unclear.append(f"On {count_nodes(point.nodes)}, nobody can tell: {what}.")
        elif gain.low <= 1:
            what = f"{gain} times as fast as {count_nodes(before.nodes)} may be a gain, or none"
            unclear.append(f"On {count_nodes(point.nodes)}, nobody can tell: {what}.")
        before = point
    return Break(None, _no_break(before, unclear))


def _no_break(last: Point, unclear: Sequence[str], remark: str = "") -> str:
    if unclear:
        return f"{' '.join(unclear)}{remark} More rounds make the intervals shorter."
    if last == REFERENCE:
        return remark.strip()
    return f"does not break up to {count_nodes(last.nodes)}.{remark}"


def find_breaks(scaling: Scaling, threshold: float) -> dict[str, Break]:
    """Return where the command breaks on each of the wires, and whether the wires' rate alone is the reason."""
    breaks = {wires: find_break(scaling, wires, threshold) for wires in scaling.wires}
    limit = breaks[NO_LIMIT].nodes
    if limit:
        for wires, found in breaks.items():
            if wires != NO_LIMIT and found.nodes and limit <= found.nodes:
                text = f"{found.text} Without a limit it breaks by then too, so the rate is not the only reason."
                breaks[wires] = Break(found.nodes, text)
    return breaks


def show_share(ratio: Ratio) -> str:
    """Return a ratio as a percentage: `93% (90 to 96%)`."""
    return f"{ratio.value:.0%}" + ("" if math.isnan(ratio.low) else f" ({100 * ratio.low:.0f} to {ratio.high:.0%})")


def table(scaling: Scaling, unit: str) -> Table:
    """Return the table of a measurement."""
    right = [Column(head, justify="right", no_wrap=True) for head in (unit, "efficiency", "of no limit")]
    found = plain_table(Column("nodes", justify="right"), Column("wires", no_wrap=True), *right, header=True)
    for point in scaling.metrics:
        mean = format_metric(scaling.metric(point)) if scaling.metrics[point] else "–"
        if point == REFERENCE:
            found.add_row("1", "–", mean, "100%", "")
        elif point in scaling.failed:
            found.add_row(str(point.nodes), point.wires, mean, "failed", "")
        else:
            free = Point(point.nodes, NO_LIMIT)
            compared = point != free and free not in scaling.failed
            against = show_share(scaling.times(point, free)) if compared else ""
            found.add_row(str(point.nodes), point.wires, mean, show_share(scaling.efficiency(point)), against)
    return found


def notes(scaling: Scaling) -> list[str]:
    """Return what stands below the table: what an efficiency is, and how sure."""
    busy = [str(scaling.others)] if scaling.others.busy else []
    return [_definition(scaling), caption(scaling.rounds), *scaling.remarks, *busy]


def _definition(scaling: Scaling) -> str:
    if not scaling.minimize:
        return (
            "efficiency: the metric on n nodes, divided by n times that on 1 node. The metric has to count all ranks."
        )
    if scaling.strong:
        return (
            "efficiency: the time on 1 node, divided by n times that on n nodes, which share the work (strong scaling)"
        )
    return "efficiency: the time on 1 node, divided by that on n nodes, each of which has as much work (weak scaling)"


def as_dict(scaling: Scaling, breaks: Mapping[str, Break]) -> dict[str, Any]:
    """Return the results as `json.dumps` takes them."""

    def numbers(ratio: Ratio) -> dict[str, float | None]:
        return {name: None if math.isnan(part) else part for name, part in ratio._asdict().items()}

    def entry(point: Point) -> dict[str, Any]:
        efficiency = None if point in scaling.failed else numbers(scaling.efficiency(point))
        return {
            "nodes": point.nodes,
            "wires": None if point == REFERENCE else point.wires,
            "metric": scaling.metrics[point],
            "efficiency": numbers(Ratio(1.0, 1.0, 1.0)) if point == REFERENCE else efficiency,
            "failure": scaling.failed.get(point, ""),
        }

    return {
        "scaling": "strong" if scaling.strong else "weak" if scaling.minimize else "throughput",
        "rounds": scaling.rounds,
        "results": [entry(point) for point in scaling.metrics],
        "breaks": {wires: found._asdict() for wires, found in breaks.items()},
        "interrupted": scaling.interrupted,
        "others": scaling.others.as_dict(),
    }
