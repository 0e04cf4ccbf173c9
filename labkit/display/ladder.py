"""The ladder: the speed-ups of all labs on this machine, each with its interval."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from labkit.display import plots, results
from labkit.display.measured import Measured
from labkit.display.speedups import STEPS
from labkit.system.load import BUSY_MARK

TITLE = "What each step gains here, each on its own lab's model"
NOT_YET = "not taken yet"
GREY = "0.45"


def show(kept_by: results.Results) -> None:
    """Show the steps taken in this folder, each with its factor, and those to come."""
    taken = read(kept_by.path.parent)
    plots.show(draw(taken), alt=describe(taken))


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the steps that the labs in a folder have taken, in their order; damaged files have none."""
    taken: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("results-[0-9][0-9].json")):
        try:
            kept = results.read(file)
        except (OSError, ValueError):
            continue
        if not results.find_problem(kept):
            taken |= kept.get("steps", {})
    return {name: taken[name] for name in STEPS if name in taken}


def describe(taken: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the ladder in words."""
    steps = [f"{_name(name)}: {', '.join(_label(step))}" for name, step in taken.items()]
    to_come = [_name(name) for name in STEPS if name not in taken]
    return " ".join(
        [
            f"Steps taken: {'; '.join(steps)}." if steps else "No step taken yet.",
            f"Not taken yet: {'; '.join(to_come)}." if to_come else "All are taken.",
        ]
    )


def draw(taken: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Return the picture: one row per step, a point for its factor and a line for its interval.

    Parameters
    ----------
    taken : mapping of str to mapping
        By name, steps as `read` returns them.
    """
    groups = {work: [name for name in STEPS if STEPS[name].work == work] for work in ("training", "inference")}
    rows = [row for work, names in groups.items() for row in (f"{work.capitalize()} steps", *names)]
    figure, axes = plt.subplots(figsize=(9.3, 0.5 * len(rows) + 1.6), layout="constrained")
    beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
    factors = [0.8, 2.5]  # at least this range is shown
    for place, name in enumerate(rows):
        if name not in STEPS:
            axes.text(-0.02, place, name, ha="right", weight="bold", **beside)
            continue
        step = taken.get(name)
        words, colour, face = (
            ("black", plots.BLUE, plots.BLUE) if step and _significant(step) else (GREY, GREY, "white")
        )
        axes.text(-0.02, place, _name(name).replace(" vs ", "\nvs "), ha="right", color=words, **beside)
        axes.text(1.02, place, "\n".join(_label(step)) if step else NOT_YET, color=words, **beside)
        if step and step["numbers"] and (value := step["numbers"]["value"]) > 0:
            low, high = step["numbers"]["interval"] or (value, value)
            low = max(low, value / 10)  # where it reaches 0, the axis does not
            factors += [low, high]
            axes.plot([low, high], [place, place], color=colour, marker="|", markersize=10, linewidth=3)
            axes.plot([value], [place], color=colour, marker="o", markersize=9, markerfacecolor=face)
    axes.axvline(1, color="black", linewidth=1.5, marker="")
    axes.set_xscale("log")
    axes.set(xlim=(min(factors) / 1.1, 1.1 * max(factors)), ylim=(len(rows) - 0.5, -0.5), yticks=[])
    span = max(factors) / min(factors)
    labelled = (1, 1.5, 2, 3, 5) if span < 8 else (1, 2, 5) if span < 60 else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=labelled, numticks=99))
    axes.xaxis.set_major_formatter("{x:g}×")
    axes.xaxis.set_minor_locator(LogLocator(subs=range(2, 10), numticks=99))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, axis="x", which="both")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("speed-up over the step's own reference (×, logarithmic axis)")
    figure.suptitle(TITLE)
    return figure


def _name(name: str) -> str:
    return f"{STEPS[name].what} (lab {STEPS[name].lab})"


def _significant(step: Mapping[str, Any]) -> bool:
    """Whether a step is a gain or a loss, and not chance: by its lab's verdict, or else by its interval."""
    low, high = (step["numbers"] and step["numbers"]["interval"]) or (1, 1)
    return bool(step.get("significant", low > 1 or high < 1))


def _label(step: Mapping[str, Any]) -> list[str]:
    """Return the lines next to a step: its factor and interval; what that shows, and the share of the limit."""
    if not (numbers := step["numbers"]):
        return [step["text"]]
    interval, digits = numbers["interval"] or (math.nan, math.nan), 2 if numbers["value"] < 10 else 1
    figure = str(Measured(numbers["value"], interval[0], interval[1], numbers["unit"], digits))
    verdict = "no interval" if not numbers["interval"] else "" if _significant(step) else "not significant"
    if not verdict and interval[0] <= 1 <= interval[1]:
        verdict = "by rank"
    share = "" if step["share"] is None else f"{step['share']:.0f}% of limit"
    lines = (f"{figure} {BUSY_MARK}" if step["busy"] else figure, ", ".join(filter(None, [verdict, share])))
    return [line for line in lines if line]
