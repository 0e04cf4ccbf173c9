"""The verdict on an exercise: the same plain words everywhere, coloured in a notebook."""

import html

from IPython import get_ipython
from IPython.display import display

from labkit.display import plots
from labkit.display.results import CHECK_FAILED, NOT_ATTEMPTED, NOT_YET, PASSED

# Okabe and Ito's colours. Black text on them has a contrast of 6:1 or more, in a light and in a dark theme.
COLOURS = {PASSED: plots.GREEN, NOT_YET: plots.ORANGE, NOT_ATTEMPTED: plots.SKY, CHECK_FAILED: plots.PURPLE}
BADGE = "color: #000000; font-weight: bold; padding: 0 0.4em; border-radius: 0.2em"


def show(exercise: int, verdict: str, lines: list[str]) -> None:
    """Show a verdict and, indented below it, what the student should know.

    In a notebook the verdict's words have a coloured background; elsewhere, and for programs that read the notebook,
    there is the text alone.
    """
    head, body = f"Exercise {exercise} · ", "\n   ".join([".", *lines])
    text = f"{head}{verdict}{body}"
    if not hasattr(get_ipython(), "kernel"):
        print(text)
        return
    badge = f'<span style="background-color: {COLOURS[verdict]}; {BADGE}">{verdict}</span>'
    page = f'<pre style="white-space: pre-wrap">{html.escape(head)}{badge}{html.escape(body)}</pre>'
    display({"text/html": page, "text/plain": text}, raw=True)


def show_hint(exercise: int, hint: str) -> None:
    """Show a hint that was asked for."""
    print(f"Exercise {exercise}.\n   {hint}")
