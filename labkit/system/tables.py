"""Tables in the terminal."""

from rich.table import Column, Table


def plain_table(*columns: Column, header: bool = False) -> Table:
    """Return an empty table without rules, with two spaces between columns."""
    return Table(*columns, box=None, show_header=header, pad_edge=False, padding=(0, 2, 0, 0))
