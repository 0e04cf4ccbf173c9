"""The doctor's report on the screen."""

import io

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from labkit.doctor.checks import GIB, Report
from labkit.system.tables import plain_table

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
VERDICTS = {"ok": "can run", "warn": "can run, but look at", "fail": "cannot run"}


def render(report: Report, console: Console) -> None:
    """Show the machine, the checks, and each lab's verdict with what to do; nothing is told by colour alone."""
    machine = report.machine
    console.print(
        f"{machine.model}, usable cores: {machine.usable_cores}, memory: {machine.memory / GIB:.1f} GiB\n",
        markup=False,
        highlight=False,
    )
    checks = _columns(3)
    for finding in report.findings:
        checks.add_row(Text(finding.status, STYLES[finding.status]), finding.name, _lines(finding.seen, finding.fix))
    labs = _columns(2)
    for verdict in report.verdicts:
        because = ", ".join(finding.name for finding in verdict.because)
        word = VERDICTS[verdict.status] + (": " if because else "")
        reasons = _lines(because, *verdict.fixes)
        labs.add_row(Text(verdict.lab), Text.assemble((word, STYLES[verdict.status]), reasons))
    console.print(checks, "", labs, sep="\n")


def as_text(report: Report) -> str:
    """Return the output of `render` as plain text of at most 100 columns."""
    text = io.StringIO()
    render(report, Console(file=text, width=100, color_system=None, force_jupyter=False))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _columns(count: int) -> Table:
    """Return a table in which a path is shown whole."""
    return plain_table(*(Column(overflow="fold") for _ in range(count)))


def _lines(text: str, *fixes: str) -> Text:
    """Return the text and the remedy, each on a line of its own."""
    return Text("\n".join([text, *(f"fix: {fix}" for fix in fixes if fix)]))
