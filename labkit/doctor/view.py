"""The doctor's report, in a terminal and, shorter, in a notebook."""

import io

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from labkit.doctor.checks import GIB, Report
from labkit.system.tables import plain_table
from labkit.system.words import plural

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
VERDICTS = {"warn": "can run, but look at: ", "fail": "cannot run: "}


def render(report: Report, console: Console, short: bool = False) -> None:
    """Show the machine, the checks with their remedies, and the labs that these concern, in words and colours.

    A short report leaves out the checks in which all is well.
    """
    machine = report.machine
    console.print(
        f"{machine.model}, usable cores: {machine.usable_cores}, memory: {machine.memory / GIB:.1f} GiB\n",
        markup=False,
        highlight=False,
    )
    checks = _columns(3)
    for finding in report.findings:
        if not short or finding.status != "ok":
            seen = Text(f"{finding.seen}\nfix: {finding.fix}" if finding.fix else finding.seen)
            checks.add_row(Text(finding.status, STYLES[finding.status]), finding.name, seen)
    if checks.row_count:
        console.print(checks, "")
    labs = _columns(2)
    for verdict in report.verdicts:
        if verdict.status != "ok":
            because = ", ".join(finding.name for finding in verdict.because)
            words = (VERDICTS[verdict.status], STYLES[verdict.status])
            labs.add_row(Text(verdict.lab), Text.assemble(words, because))
    if labs.row_count:
        console.print(labs)
    if fine := len(report.verdicts) - labs.row_count:
        console.print(f"{plural(fine, 'other lab')} can run." if labs.row_count else "All labs can run.")


def as_text(report: Report) -> str:
    """Return the short report as plain text of at most 100 columns."""
    text = io.StringIO()
    render(report, Console(file=text, width=100, color_system=None, force_jupyter=False), short=True)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _columns(count: int) -> Table:
    """Return a table in which a path is shown whole."""
    return plain_table(*(Column(overflow="fold") for _ in range(count)))
