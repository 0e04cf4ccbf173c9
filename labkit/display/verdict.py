"""Verdicts on exercises: the same words everywhere, coloured in notebooks."""

from labkit.display import boxes, plots
from labkit.display.results import CHECK_FAILED, NOT_ATTEMPTED, NOT_YET, PASSED

# Okabe and Ito's colours. Black text on them has a contrast of 6:1 or more, in a light and in a dark theme.
COLOURS = {PASSED: plots.GREEN, NOT_YET: plots.ORANGE, NOT_ATTEMPTED: plots.SKY, CHECK_FAILED: plots.PURPLE}


def show(exercise: int, verdict: str, lines: list[str], solution: str = "") -> None:
    """Show a verdict and, indented below it, details.

    Parameters
    ----------
    exercise : int
        The exercise's number.
    verdict : str
        `PASSED`, `NOT_YET`, `NOT_ATTEMPTED` or `CHECK_FAILED`.
    lines : list of str
        Details for the student.
    solution : str
        The kit's solution, which a notebook shows collapsed after *passed*, for comparison.
    """
    folded = solution if verdict == PASSED else ""
    boxes.show(f"Exercise {exercise} · ", verdict, COLOURS[verdict], lines, folded)


def show_hint(exercise: int, hint: str) -> None:
    """Show a requested hint."""
    boxes.show(f"Exercise {exercise}", lines=[hint])
