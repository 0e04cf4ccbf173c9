import io

from rich.console import Console
from rich.table import Column

from labkit.system.tables import plain_table


def test_a_table_has_no_rules_and_columns_two_spaces_apart():
    table = plain_table(Column("name"), Column("images/s", justify="right"), header=True)
    table.add_row("default", "1.50")
    out = io.StringIO()
    Console(file=out, width=60).print(table)
    assert [line.rstrip() for line in out.getvalue().splitlines()] == ["name     images/s", "default      1.50"]
