"""Export the results of complete runs on this machine, for comparison with other machines."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.exercises import catalogue
from labkit.report import page
from labkit.roofline import measure
from labkit.system import paths
from labkit.system.errors import LabError

HAS_TABLE = "results.table("  # in the notebooks of labs with a closing table


def collect(folder: Path) -> dict[str, Any]:
    """Return machine, limits and closing tables of the labs that ran, without names of hosts, users or folders.

    Parameters
    ----------
    folder : Path
        The folder with the labs' `results-NN.json`.

    Raises
    ------
    LabError
        When there is no closing table, a lab did not run in full, a figure was disturbed, or the labs ran on different
        machines.
    """
    labs = {lab["lab"]: lab for lab in page.read_labs(folder)}
    with_table = [lab.number for lab in catalogue.labs() if HAS_TABLE in lab.notebook.read_text(encoding="utf-8")]
    ran = [number for number in with_table if number in labs]
    if not ran:
        raise LabError("there is no closing table yet: run a lab in full, including its optional sections.")
    if problems := [f"lab {number}: {problem}" for number in ran for problem in _problems(labs[number])]:
        raise LabError(f"can't export: {'; '.join(problems)}. Run these labs in full on an idle machine.")
    tables = {number: labs[number]["table"] for number in ran}
    on = labs[next(iter(tables))]["on"]
    if other := [number for number in tables if labs[number]["on"] != on]:
        raise LabError(f"can't export: lab {', '.join(other)} ran on another machine or software. Run it again.")
    limits = measure.limits()
    if limits.others.busy:
        raise LabError("can't export: the limits were measured during other work. Run ./lab roofline --again.")
    exported = {name: limits.as_dict()[name] for name in ("peaks", "instructions", "bandwidth")}
    version = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    when = max(labs[number]["when"] for number in tables)[:10]
    return {"on": on, "when": when, "kit": version, "limits": exported, "labs": tables}


def _problems(lab: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons why a lab's results are not a complete run."""
    if lab["quick"]:
        yield "a small test run"
    elif "table" not in lab:
        yield "no closing table yet"
    else:
        for row in lab["table"]["rows"]:
            if row["busy"]:
                yield f"disturbed by other work: {row['texts'][0]}"
            elif row["missing"]:
                yield f"{row['texts'][0]}: {row['texts'][2]}"
