"""The picture of a scaling measurement: the efficiency on each number of nodes, a line for each of the wires."""

import math

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from labkit.display import plots
from labkit.scale.measure import NO_LIMIT, REFERENCE, Scaling, count_nodes
from labkit.scale.report import show_share

SHIFT = 1.015  # of each line to the right, so that no interval hides another


def draw(scaling: Scaling, threshold: float) -> tuple[Figure, str]:
    """Draw the efficiencies with their intervals; return the picture and its alternative text."""
    plots.use_style()
    figure, axes = plt.subplots()
    axes.axhline(100, color=plots.BLACK, marker="none", linestyle="--", linewidth=1.5, label="ideal")
    axes.axhline(
        100 * threshold, color=plots.BLACK, marker="none", linestyle=":", linewidth=1.5, label=f"{threshold:.0%}"
    )
    texts = []
    for number, wires in enumerate(scaling.wires):
        line = [point for point in scaling.measured if point.wires == wires and point != REFERENCE]
        if not line:
            continue
        found = [scaling.efficiency(point) for point in line]
        bars = [[0.0, *(_length(each.value - each.low) for each in found)],
                [0.0, *(_length(each.high - each.value) for each in found)]]  # fmt: skip
        axes.errorbar(
            [1.0, *(point.nodes * SHIFT**number for point in line)],
            [100, *(100 * each.value for each in found)],
            yerr=bars,
            capsize=4,
            linestyle=":" if wires == NO_LIMIT else "-",
            label="wires without a limit" if wires == NO_LIMIT else wires,
        )
        shares = ", ".join(
            f"{count_nodes(point.nodes)} {show_share(each)}" for point, each in zip(line, found, strict=True)
        )
        texts.append(f"{wires}: {shares}.")
    nodes = sorted({point.nodes for point in scaling.metrics})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(nodes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(number) for number in nodes])
    intervals = ", with 95% intervals" if scaling.rounds > 1 else ""
    axes.set(title=f"Scaling efficiency{intervals}", xlabel="number of nodes", ylabel="efficiency (%)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure, " ".join(["The efficiency, of which 1 node has 100%.", *texts])


def _length(share: float) -> float:
    """Return an error bar's length in percent; none where there is no interval."""
    return 0.0 if math.isnan(share) else 100 * share
