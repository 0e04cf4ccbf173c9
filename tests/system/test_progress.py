"""Progress is shown in terminals and notebooks, and nowhere else."""

from rich.console import Console

from labkit.system.progress import progress


def test_in_a_notebook_each_line_is_printed(monkeypatch, capsys):
    monkeypatch.setattr("labkit.system.progress.Console", lambda stderr: Console(stderr=stderr, force_jupyter=True))
    with progress("Starting …") as tell:
        tell("Measuring …")
    assert capsys.readouterr().out == "Measuring …\n"


def test_nothing_is_shown_in_a_pipe(capsys):
    with progress("Starting …") as tell:
        tell("Measuring …")
    assert capsys.readouterr() == ("", "")


def test_in_a_terminal_a_line_is_shown_and_removed(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")  # a "dumb" one can't erase
    monkeypatch.setattr("labkit.system.progress.Console", lambda stderr: Console(stderr=stderr, force_terminal=True))
    with progress("Starting …") as tell:
        tell("Measuring …")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Measuring …" in printed.err
    assert printed.err.endswith("\x1b[2K")
