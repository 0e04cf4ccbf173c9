"""Progress is shown where somebody waits, and nothing is printed where nobody does."""

from rich.console import Console

from labkit.system.progress import progress


def test_in_a_notebook_each_line_is_printed(monkeypatch, capsys):
    monkeypatch.setattr("labkit.system.progress.Console", lambda stderr: Console(stderr=stderr, force_jupyter=True))
    with progress("Starting …") as tell:
        tell("Measuring …")
    assert capsys.readouterr().out == "Measuring …\n"


def test_in_a_pipe_nothing_is_said(capsys):
    with progress("Starting …") as tell:
        tell("Measuring …")
    assert capsys.readouterr() == ("", "")


def test_in_a_terminal_a_line_is_shown_and_taken_away_again(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")  # one that is "dumb" can't take anything away
    monkeypatch.setattr("labkit.system.progress.Console", lambda stderr: Console(stderr=stderr, force_terminal=True))
    with progress("Starting …") as tell:
        tell("Measuring …")
    told = capsys.readouterr()
    assert told.out == ""
    assert "Measuring …" in told.err
    assert told.err.endswith("\x1b[2K")
