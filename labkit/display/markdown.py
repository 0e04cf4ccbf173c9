"""Markdown tables for notebooks."""

from collections.abc import Iterable, Sequence

from IPython.display import Markdown


def table(head: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> Markdown:
    """Return a table for `display`, with paragraphs below it."""
    lines = (head, ["---"] * len(head), *rows)
    return Markdown("\n\n".join(["\n".join(f"| {' | '.join(line)} |" for line in lines), *notes]))
