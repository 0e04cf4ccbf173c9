"""Short messages in the notebook's font: a heading with a coloured badge, and indented lines below it."""

import html
from collections.abc import Sequence

from IPython import get_ipython
from IPython.display import display

# Long lines wrap between words, with a hanging indent.
LINE = "white-space: pre-wrap; overflow-wrap: anywhere; word-break: normal"
BODY = f"{LINE}; padding-left: 3em; text-indent: -1em"
BADGE = "color: #000000; font-weight: bold; padding: 0 0.4em; border-radius: 0.2em"

# JupyterLab breaks cell output mid-word (`word-break: break-all`). Its dark theme has light links, which are unreadable
# on a box's light background.
STYLE = (
    "<style>.jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere; } "
    ".jp-RenderedHTMLCommon .alert a { color: inherit; text-decoration: underline; }</style>"
)


def show(head: str, badge: str = "", colour: str = "", lines: Sequence[str] = (), folded: str = "") -> None:
    """Show a heading and, indented below it, lines.

    In a notebook the badge has a coloured background; elsewhere, and for programs that read the notebook, only the text
    is shown.

    Parameters
    ----------
    head : str
        The start of the heading, such as "Exercise 1 · ".
    badge, colour : str
        The words that follow, and their background.
    lines : sequence of str
        The lines below.
    folded : str
        Code shown collapsed at the end, in notebooks only.
    """
    end = "" if f"{head}{badge}".endswith("?") else "."
    text = "\n   ".join([f"{head}{badge}{end}", *lines])
    if not hasattr(get_ipython(), "kernel"):
        print(text)
        return
    coloured = f'<span style="background-color: {colour}; {BADGE}">{html.escape(badge)}</span>' if badge else ""
    body = "".join(f'\n   <div style="{BODY}">{html.escape(line)}</div>' for line in lines)
    details = (
        f"<details><summary>The kit's solution</summary><pre>{html.escape(folded)}</pre></details>" if folded else ""
    )
    page = f'<div style="{LINE}">{html.escape(head)}{coloured}{end}</div>{body}{details}'
    display({"text/html": page, "text/plain": text}, raw=True)


def install_style() -> None:
    """Make JupyterLab wrap cell output between words, and show links in boxes in the text colour."""
    if hasattr(get_ipython(), "kernel"):
        display({"text/html": STYLE, "text/plain": ""}, raw=True)
