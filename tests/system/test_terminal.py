"""Nobody else's words act on a terminal."""

import io

import pytest
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from labkit.system import terminal

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31mred\r\x08\x7f\u202eevil\u2066\udcff"


def test_a_text_keeps_its_letters_tabs_and_lines():
    text = "plain – ü 東京 🎉\tcolumn\nline"
    assert terminal.harmless(text) == text


def test_no_control_is_left():
    shown = terminal.harmless(EVIL)
    assert shown == "�[2J�]0;title��31mred����evil��"
    assert all(letter.isprintable() for letter in shown)


@pytest.mark.parametrize("text", [EVIL, "x\ny" + EVIL, EVIL * 40])
@pytest.mark.parametrize("make", [Text, escape], ids=["Text", "markup"])
def test_a_tables_cells_are_harmless_and_its_columns_stay_in_line(monkeypatch, text, make):
    monkeypatch.setenv("COLUMNS", "60")
    console = terminal.console()
    console.file = io.StringIO()
    table = Table("student", "lab", title=make(text))
    table.add_row(make(text), "7")
    console.print(table, make(text), sep="\n")
    lines = console.file.getvalue().splitlines()
    assert all(line.isprintable() for line in lines)
    assert len({len(line) for line in lines if line.startswith(("│", "├", "┃"))}) == 1


def test_richs_own_colours_stay(monkeypatch):
    console = terminal.console()
    console.file = io.StringIO()
    console._color_system = 1  # as in a terminal
    console.print(Text("red" + EVIL, "red"))
    assert console.file.getvalue().startswith("\x1b[31mred[2J")


def test_a_very_long_line_is_told_without_its_middle(capsys):
    terminal.say("a" * 5000 + "b\nshort")
    long, short = capsys.readouterr().err.splitlines()
    assert len(long) < 700
    assert long.endswith("b")
    assert short == "short"
