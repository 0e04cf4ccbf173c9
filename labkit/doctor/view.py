"""Render the doctor's report: in full for a terminal, shortened for a notebook."""

import io
import os

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from labkit.doctor.checks import CHECKS, GIB, NOT_TRIED, OPTIONAL, Report
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
    who = "for the hub's administrator" if "JUPYTERHUB_USER" in os.environ else "fix"
    for finding in report.findings:
        if finding.status != "ok":
            text = Text(f"{finding.seen}\n{who}: {finding.fix}" if finding.fix else finding.seen)
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
    if lacking := ", ".join(f"{name} (for {', '.join(labs)})" for name, labs in _lacking(report).items()):
        console.print(f"Optional, and missing: {lacking}. Labs then show recorded results, or use less data.")


def summary(report: Report) -> str:
    """Return the verdict in three lines: the machine, what needs attention or was not tried, and the labs."""
    machine = report.machine
    cores, isa = (next(each.seen for each in report.findings if each.name == name) for name in ("cores", "ISA"))
    untried = [each.name for each in report.findings if each.seen == NOT_TRIED.error]
    skipped, lacking = {*untried, *OPTIONAL}, _lacking(report)
    unfit = {"fail"}, {"fail", "warn"}  # of optional parts and those not tried, only what is damaged
    attention = [each.name for each in report.findings if each.status in unfit[each.name not in skipped]]
    labs: dict[str, list[str]] = {"can run": [], "check first": [], "can't run": []}
    for verdict in report.verdicts:
        limited = any(finding.name in attention for finding in verdict.because)
        labs["can't run" if verdict.status == "fail" else "check first" if limited else "can run"].append(verdict.lab)
    told = f"Needs attention (./lab doctor): {', '.join(attention)}." if attention else "Nothing needs attention."
    later = f" Optional, and missing: {', '.join(lacking)}." if lacking else ""
    later += f" Not tried yet: {', '.join(untried)}." if untried else ""
    by_verdict = (f"{words} {', '.join(lab[:2] for lab in some)}" for words, some in labs.items() if some)
    first = f"{machine.model}: cores {cores}; {isa}; {machine.memory / GIB:.1f} GiB of memory."
    return "\n".join([first, told + later, f"Labs: {'; '.join(by_verdict)}."])


def _lacking(report: Report) -> dict[str, list[str]]:
    """Return the optional parts that are missing, with the numbers of the labs that show less without them."""
    missing: dict[str, list[str]] = {}
    for verdict in report.verdicts:
        for finding in verdict.because:
            if finding.name in OPTIONAL and finding.status == "warn":
                missing.setdefault(finding.name, []).append(verdict.lab[:2])
    return missing


def as_text(report: Report) -> str:
    """Return the short report as plain text, at most 100 columns wide."""
    text = io.StringIO()
    render(report, Console(file=text, width=100, color_system=None, force_jupyter=False), short=True)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _columns(count: int) -> Table:
    """Return a table that wraps long paths instead of truncating them."""
    return plain_table(*(Column(overflow="fold") for _ in range(count)))
