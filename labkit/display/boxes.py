"""Short texts in a notebook's own font: a head with a coloured word, and lines below it that break between words."""

import html
from collections.abc import Sequence

from IPython import get_ipython
from IPython.display import display

# A line that is too long goes on below its own beginning, and breaks between words.
LINE = "white-space: pre-wrap; overflow-wrap: anywhere; word-break: normal"
BODY = f"{LINE}; padding-left: 3em; text-indent: -1em"
BADGE = "color: #000000; font-weight: bold; padding: 0 0.4em; border-radius: 0.2em"

# JupyterLab breaks what a cell prints in the middle of words (`word-break: break-all`). Its dark theme has light links,
# which can't be read on a box's light ground.
STYLE = (
    "<style>.jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere; } "
    ".jp-RenderedHTMLCommon .alert a { color: inherit; text-decoration: underline; }</style>"
)


def show(head: str, badge: str = "", colour: str = "", lines: Sequence[str] = (), folded: str = "") -> None:
    """Show a head and, indented below it, lines.

    In a notebook the badge's words have a coloured background; elsewhere, and for programs that read the notebook,
    there is the text alone.

    Parameters
    ----------
    head : str
        What comes first, such as "Exercise 1 · ".
    badge, colour : str
        The words behind it, and their background.
    lines : sequence of str
        What stands below.
    folded : str
        Code that a notebook shows folded behind all, and only a notebook.
    """
    text = "\n   ".join([f"{head}{badge}.", *lines])
    if not hasattr(get_ipython(), "kernel"):
        print(text)
        return
    coloured = f'<span style="background-color: {colour}; {BADGE}">{html.escape(badge)}</span>' if badge else ""
    body = "".join(f'\n   <div style="{BODY}">{html.escape(line)}</div>' for line in lines)
    behind = (
        f"<details><summary>The kit's solution</summary><pre>{html.escape(folded)}</pre></details>" if folded else ""
    )
    page = f'<div style="{LINE}">{html.escape(head)}{coloured}.</div>{body}{behind}'
    display({"text/html": page, "text/plain": text}, raw=True)


def keep_words_whole() -> None:
    """Have JupyterLab break what cells print between words, and show links in boxes in their text's colour."""
    if hasattr(get_ipython(), "kernel"):
        display({"text/html": STYLE, "text/plain": ""}, raw=True)
