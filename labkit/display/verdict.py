"""The verdict on an exercise: the same plain words everywhere, coloured in a notebook."""

import html

from IPython import get_ipython
from IPython.display import display

from labkit.display import plots
from labkit.display.results import CHECK_FAILED, NOT_ATTEMPTED, NOT_YET, PASSED

# Okabe and Ito's colours. Black text on them has a contrast of 6:1 or more, in a light and in a dark theme.
COLOURS = {PASSED: plots.GREEN, NOT_YET: plots.ORANGE, NOT_ATTEMPTED: plots.SKY, CHECK_FAILED: plots.PURPLE}
BADGE = "color: #000000; font-weight: bold; padding: 0 0.4em; border-radius: 0.2em"


# A line that is too long goes on below its own beginning, and breaks between words.
LINE = "white-space: pre-wrap; overflow-wrap: anywhere; word-break: normal"
BODY = f"{LINE}; padding-left: 3em; text-indent: -1em"


def show(exercise: int, verdict: str, lines: list[str], solution: str = "") -> None:
    """Show a verdict and, indented below it, what the student should know.

    In a notebook the verdict's words have a coloured background; elsewhere, and for programs that read the notebook,
    there is the text alone.

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
    badge = f'<span style="background-color: {COLOURS[verdict]}; {BADGE}">{verdict}</span>'
    folded = f"<details><summary>The kit's solution</summary><pre>{html.escape(solution)}</pre></details>"
    _show(f"Exercise {exercise} · ", verdict, badge, lines, folded if verdict == PASSED and solution else "")


def show_hint(exercise: int, hint: str) -> None:
    """Show a hint that was asked for."""
    _show(f"Exercise {exercise}", "", "", [hint], "")


def _show(head: str, verdict: str, badge: str, lines: list[str], behind: str) -> None:
    text = "\n   ".join([f"{head}{verdict}.", *lines])
    if not hasattr(get_ipython(), "kernel"):
        print(text)
        return
    body = "".join(f'\n   <div style="{BODY}">{html.escape(line)}</div>' for line in lines)
    page = f'<div style="{LINE}">{html.escape(head)}{badge}.</div>{body}{behind}'
    display({"text/html": page, "text/plain": text}, raw=True)
