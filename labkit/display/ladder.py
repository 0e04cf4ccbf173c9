"""The ladder: this machine's way from the default to the fastest, a step a lab, each with its factor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from labkit.display import plots, results
from labkit.display.speedups import STEPS

TITLE = "From the default to the fastest, step by step"


def show(kept_by: results.Results) -> None:
    """Show where a lab's student is: the steps taken in this folder, those to come, and what each gave here."""
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
    steps = [f"{STEPS[name].what} {_label(step)}" for name, step in taken.items()]
    to_come = [f"{what} (lab {lab})" for name, (lab, what) in STEPS.items() if name not in taken]
    return " ".join(
        [
            f"Steps taken: {'; '.join(steps)}." if steps else "No step taken yet.",
            f"Not taken yet: {'; '.join(to_come)}." if to_come else "All are taken.",
        ]
    )


def draw(taken: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Return the picture: a row a step, a point for its factor and a line for its interval.

    Parameters
    ----------
    taken : mapping of str to mapping
        By name, steps as `read` returns them.
    """
    figure, axes = plt.subplots(figsize=(5, 0.5 * len(STEPS) + 1.2))  # the words at its sides come on top
    factors = [1.0]
    for place, (name, (lab, what)) in enumerate(STEPS.items()):
        step = taken.get(name)
        numbers = step["numbers"] if step else None
        if numbers and numbers["value"] > 0:
            low, high = numbers["interval"] or (numbers["value"], numbers["value"])
            factors += [low, high]
            axes.plot([low, high], [place, place], color=plots.BLUE, marker="", linewidth=4)
            axes.plot([numbers["value"]], [place], color=plots.BLUE, marker="o", markersize=9)
        text = _label(step) if step else "not taken yet"
        beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
        axes.text(1.03, place, text, color="black" if step else "0.4", **beside)
        axes.text(-0.03, place, f"{what} · {lab}", ha="right", **beside)
    axes.axvline(1, color="black", linewidth=1, marker="")
    axes.set_xscale("log")
    axes.set_xlim(min(0.8, 0.9 * min(factors)), max(2.5, 1.2 * max(factors)))
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if _inside(tick, axes.get_xlim())]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(len(STEPS) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xlabel("times as fast, each on its own lab's model")
    axes.set_title(TITLE)
    figure.set_layout_engine("none")  # which would make room for the words in the axes
    return figure


def _inside(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def _label(step: Mapping[str, Any]) -> str:
    share = "" if step["share"] is None else f", {step['share']:.0f}% of the limit"
    return f"{step['text']}{share}"
