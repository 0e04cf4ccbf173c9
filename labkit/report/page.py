"""The page that a student takes home: the machine, the figures, the pictures, the exercises passed."""

from pathlib import Path
from typing import Any

import jinja2

from labkit.display.results import COLUMNS, NOT_ATTEMPTED, PASSED, find_problem, read, without_empty_columns
from labkit.exercises import sources
from labkit.system import files, paths
from labkit.system.errors import LabError
from labkit.system.load import BUSY_MARK

TEMPLATE = Path(__file__).with_suffix(".html")


def render(folder: Path) -> str:
    """Return the page, a text that needs no other file and no network.

    Parameters
    ----------
    folder : Path
        Where the labs that were run have left their `results-NN.json`.

    Raises
    ------
    LabError
        When there is none, or one is damaged.
    """
    labs = [_lab(file) for file in sorted(folder.glob("results-[0-9][0-9].json"))]
    if not labs:
        raise LabError(
            f"no lab has left results in {paths.shown(folder)} yet: run one, such as ./lab start 02, or name another "
            "folder with --from, such as notebooks/work."
        )
    machines: dict[tuple, list[str]] = {}
    for lab in labs:
        machines.setdefault(tuple(lab["on"].items()), []).append(lab["lab"])
    ran = {lab["lab"] for lab in labs}
    verdicts = [verdict for lab in labs for verdict in lab["exercises"].values()]
    for table in [lab["table"] for lab in labs if lab.get("table")]:
        table["head"], table["rows"] = without_empty_columns((table["what"], *COLUMNS), table["rows"])
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        labs=labs,
        machines=machines,
        busy=[lab["lab"] for lab in labs if _busy(lab)],
        mark=BUSY_MARK,
        passed=verdicts.count(PASSED),
        exercises=len(verdicts),
        to_come=[sources.title(source) for source in sources.labs() if source.stem[:2] not in ran],
    )


def _busy(lab: dict[str, Any]) -> bool:
    """Whether a figure of its closing table was measured while other work had the cores."""
    return any(BUSY_MARK in text for row in lab.get("table", {}).get("rows", []) for text in row)


def _lab(file: Path) -> dict[str, Any]:
    """Return what a lab has left, with its title, and a verdict for each of its exercises."""
    try:
        kept = read(file)
        if wrong := find_problem(kept):
            raise ValueError(wrong)
        if kept["lab"] != file.stem[-2:]:
            raise ValueError(f"it is of lab {kept['lab']!r}")
    except OSError as error:
        raise LabError(files.describe_error(error, f"cannot read {paths.shown(file)}")) from error
    except ValueError as error:
        what = f"{paths.shown(file)} is damaged ({error})"
        raise LabError(f"{what}: delete it, and run that lab's last cells again.") from error
    try:
        source = sources.find(kept["lab"])
    except LabError as error:
        raise LabError(f"{paths.shown(file)} is of no lab that is here: move it away.") from error
    verdicts = kept.get("exercises", {})
    exercises = {n: verdicts.get(str(n), NOT_ATTEMPTED) for n in sources.exercises(sources.read(source))}
    return {"pictures": {}, **kept, "title": sources.title(source), "exercises": exercises}
