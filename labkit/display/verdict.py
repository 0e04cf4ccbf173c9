"""The verdict on an exercise: the same plain words everywhere, coloured in a notebook."""

from labkit.display import boxes, plots
from labkit.display.results import CHECK_FAILED, NOT_ATTEMPTED, NOT_YET, PASSED

# Okabe and Ito's colours. Black text on them has a contrast of 6:1 or more, in a light and in a dark theme.
COLOURS = {PASSED: plots.GREEN, NOT_YET: plots.ORANGE, NOT_ATTEMPTED: plots.SKY, CHECK_FAILED: plots.PURPLE}


def show(exercise: int, verdict: str, lines: list[str], solution: str = "") -> None:
    """Show a verdict and, indented below it, what the student should know.

    Parameters
    ----------
    exercise : int
        The number.
    verdict : str
        `PASSED`, `NOT_YET`, `NOT_ATTEMPTED` or `CHECK_FAILED`.
    lines : list of str
        What the student should know.
    solution : str
        The kit's, which a notebook shows folded behind *passed*, to compare.
    """
    folded = solution if verdict == PASSED else ""
    boxes.show(f"Exercise {exercise} · ", verdict, COLOURS[verdict], lines, folded)


def show_hint(exercise: int, hint: str) -> None:
    """Show a hint that was asked for."""
    boxes.show(f"Exercise {exercise}", lines=[hint])
