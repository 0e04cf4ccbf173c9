"""The ladder: every lab's speed-up on this machine, with its interval."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from labkit.display import plots, results
from labkit.display.speedups import STEPS
from labkit.measure.figures import Measured
from labkit.system.load import BUSY_MARK

TITLE = "Speed-ups on this machine, each on its own lab's model"
NOT_YET = "not taken yet"
GREY = "0.45"


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the steps that the labs in a folder have taken, in ladder order; damaged files are skipped."""
    taken: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("results-[0-9][0-9].json")):
        try:
            stored = results.read(file)
        except (OSError, ValueError):
            continue
        if not results.find_problem(stored):
            taken |= stored.get("steps", {})
    return {name: taken[name] for name in STEPS if name in taken}


def describe(taken: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe the ladder in words."""
    steps = [f"{_name(name)}: {', '.join(_label(step))}" for name, step in taken.items()]
    to_come = [_name(name) for name in STEPS if name not in taken]
    return " ".join(
        [
            f"Steps taken: {'; '.join(steps)}." if steps else "No steps taken yet.",
            f"Not taken yet: {'; '.join(to_come)}." if to_come else "All are taken.",
        ]
    )


def draw(taken: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw one row per step: a point for its speed-up, a line for its interval.

    Parameters
    ----------
    taken : mapping of str to mapping
        Steps by name, as `read` returns them.
    """
    groups = {work: [name for name in STEPS if STEPS[name].work == work] for work in ("training", "inference")}
    rows = [row for work, names in groups.items() for row in (f"{work.capitalize()} steps", *names)]
    figure, axes = plt.subplots(figsize=(9.3, 0.5 * len(rows) + 1.6), layout="constrained")
    text_style: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
    factors = [0.8, 2.5]  # at least this range is shown
    for place, name in enumerate(rows):
        if name not in STEPS:
            axes.text(-0.02, place, name, ha="right", weight="bold", **text_style)
            continue
        step = taken.get(name)
        words, colour, face = (
            ("black", plots.BLUE, plots.BLUE) if step and _significant(step) else (GREY, GREY, "white")
        )
        axes.text(-0.02, place, _name(name).replace(" vs ", "\nvs "), ha="right", color=words, **text_style)
        axes.text(1.02, place, "\n".join(_label(step)) if step else NOT_YET, color=words, **text_style)
        if step and step["numbers"] and (value := step["numbers"]["value"]) > 0:
            low, high = step["numbers"]["interval"] or (value, value)
            low = max(low, value / 10)  # an interval may reach 0, a logarithmic axis can't
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
    axes.set_xlabel("speed-up over each step's own baseline (×, log scale)")
    figure.suptitle(TITLE)
    return figure


def _name(name: str) -> str:
    return f"{STEPS[name].what} (lab {STEPS[name].lab})"


def _significant(step: Mapping[str, Any]) -> bool:
    """Whether a step's gain or loss is significant: its interval excludes 1."""
    low, high = (step["numbers"] and step["numbers"]["interval"]) or (1, 1)
    return bool(low > 1 or high < 1)


def _label(step: Mapping[str, Any]) -> list[str]:
    """Return the lines next to a step: speed-up and interval; verdict and share of the limit."""
    if not (numbers := step["numbers"]):
        return [step["text"]]
    interval, digits = numbers["interval"] or (math.nan, math.nan), 2 if numbers["value"] < 10 else 1
    figure = str(Measured(numbers["value"], interval[0], interval[1], numbers["unit"], digits))
    verdict = "no interval" if not numbers["interval"] else "" if _significant(step) else "not significant"
    share = "" if step["share"] is None else f"{step['share']:.0f}% of limit"
    lines = (f"{figure} {BUSY_MARK}" if step["busy"] else figure, ", ".join(filter(None, [verdict, share])))
    return [line for line in lines if line]
