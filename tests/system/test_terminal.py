"""Untrusted text cannot control a terminal; tables and progress are plain."""

import io
import sys

import pytest
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from labkit.system import terminal

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31mred\r\x08\x7f\u202eevil\u2066\udcff"


def test_letters_tabs_and_newlines_are_unchanged():
    text = "plain – ü 東京 🎉\tcolumn\nline"
    assert terminal.sanitize(text) == text


def test_no_control_character_is_left():
    shown = terminal.sanitize(EVIL)
    assert shown == "�[2J�]0;title��31mred����evil��"
    assert all(letter.isprintable() for letter in shown)


def test_table_cells_are_sanitized():
    console = terminal.console()
    console.file = io.StringIO()
    table = Table("student", "lab", title=Text(EVIL))
    table.add_row(EVIL, "7")
    console.print(table)
    assert all(line.isprintable() for line in console.file.getvalue().splitlines())


def test_a_very_long_line_is_shortened_in_the_middle(capsys):
    terminal.say("a" * 5000 + "b\nshort")
    long, short = capsys.readouterr().err.splitlines()
    assert len(long) < 700
    assert long.endswith("b")
    assert short == "short"


def test_a_table_has_no_rules_and_columns_two_spaces_apart():
    table = terminal.plain_table(Column("name"), Column("images/s", justify="right"), header=True)
    table.add_row("default", "1.50")
    out = io.StringIO()
    Console(file=out, width=60).print(table)
    assert [line.rstrip() for line in out.getvalue().splitlines()] == ["name     images/s", "default      1.50"]


@pytest.mark.parametrize(
    ("options", "is_terminal", "out"),
    [
        ({"force_jupyter": True}, False, "Measuring …\n"),
        ({"force_terminal": True}, True, ""),
        ({"force_terminal": True}, False, ""),  # FORCE_COLOR
        ({}, False, ""),
    ],
)
def test_progress_is_printed_in_a_notebook_shown_in_a_terminal_and_hidden_in_a_pipe(
    monkeypatch, capsys, options, is_terminal, out
):
    monkeypatch.setenv("TERM", "xterm")  # a "dumb" one can't erase
    monkeypatch.setattr("rich.console.Console", lambda stderr: Console(stderr=stderr, **options))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with terminal.progress("Starting …") as tell:
        tell("Measuring …")
    printed = capsys.readouterr()
    assert printed.out == out
    assert ("Measuring …" in printed.err) == is_terminal
    assert not printed.err or printed.err.endswith("\x1b[2K")


def test_the_same_warning_is_printed_once(tmp_path, capsys):
    for _ in range(3):
        terminal.warn(f"{tmp_path} is amiss.")
    assert capsys.readouterr().err == f"Warning: {tmp_path} is amiss.\n"
