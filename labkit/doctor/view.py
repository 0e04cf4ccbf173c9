"""Render the doctor's report: in full for a terminal, shortened for a notebook."""

import io

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from labkit.doctor.checks import CHECKS, GIB, Report
from labkit.system.terminal import plain_table
from labkit.system.words import plural

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
VERDICTS = {"warn": "can run, but check: ", "fail": "cannot run: "}


def render(report: Report, console: Console, short: bool = False) -> None:
    """Print the machine, the checks with their fixes, and the affected labs.

    Checks that pass share rows; a short report omits them.
    """
    machine = report.machine
    console.print(
        f"{machine.model}, usable cores: {machine.usable_cores}, memory: {machine.memory / GIB:.1f} GiB\n",
        markup=False,
        highlight=False,
    )
    checks = _columns(3)
    if not short:
        groups: dict[str, list[str]] = {check.group: [] for check in CHECKS}
        for check, finding in zip(CHECKS, report.findings, strict=True):
            if finding.status == "ok":
                name = "" if finding.name == check.group else f"{finding.name}: "
                groups[check.group].append(name + finding.seen)
        for group, passed in groups.items():
            if passed:
                checks.add_row(Text("ok", STYLES["ok"]), group, Text(" · ".join(passed)))
    for finding in report.findings:
        if finding.status != "ok":
            text = Text(f"{finding.seen}\nfix: {finding.fix}" if finding.fix else finding.seen)
            checks.add_row(Text(finding.status, STYLES[finding.status]), finding.name, text)
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
    if ready := len(report.verdicts) - labs.row_count:
        console.print(f"{plural(ready, 'other lab')} can run." if labs.row_count else "All labs can run.")


def as_text(report: Report) -> str:
    """Return the short report as plain text, at most 100 columns wide."""
    text = io.StringIO()
    render(report, Console(file=text, width=100, color_system=None, force_jupyter=False), short=True)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _columns(count: int) -> Table:
    """Return a table that wraps long paths instead of truncating them."""
    return plain_table(*(Column(overflow="fold") for _ in range(count)))
