"""Render the take-home page: machine, speed-ups, figures, pictures, exercises, guesses and answers."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from labkit.display import ladder, plots
from labkit.display.results import (
    COLUMNS,
    NOT_ATTEMPTED,
    PASSED,
    find_problem,
    read,
    texts,
    without_empty_columns,
)
from labkit.exercises import catalogue
from labkit.system import files, paths
from labkit.system.errors import LabError
from labkit.system.load import BUSY_MARK

TEMPLATE = Path(__file__).with_suffix(".html")


def render(
    folder: Path,
    room: Mapping[tuple[str, str], str] | None = None,
    room_note: str = "",
) -> str:
    """Return the page as HTML that needs no other file and no network.

    Parameters
    ----------
    folder : Path
        The folder with the labs' `results-NN.json`.
    room : mapping, optional
        A room's results as text, by lab and number of the guess.
    room_note : str
        A sentence on the room, such as why it has no results.

    Raises
    ------
    LabError
        When there are no results, or some are damaged.
    """
    labs = read_labs(folder)
    machines: dict[tuple[Any, ...], list[str]] = {}
    for lab in labs:
        machines.setdefault(tuple(lab["on"].items()), []).append(lab["lab"])
    ran = {lab["lab"] for lab in labs}
    verdicts = [verdict for lab in labs for verdict in lab["exercises"].values()]
    for lab in labs:
        if table := lab.get("table"):
            table["head"], shown_rows = without_empty_columns((table["what"], *COLUMNS), texts(table["rows"]))
            for row, shown in zip(table["rows"], shown_rows, strict=True):
                row["shown"] = shown
    steps = ladder.read(folder)
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        labs=labs,
        machines=machines,
        ladder=base64.b64encode(plots.png(ladder.draw(steps))).decode() if steps else "",
        ladder_in_words=ladder.describe(steps),
        guesses=[
            (lab, guess, (room or {}).get((lab["lab"], number), ""))
            for lab in labs
            for number, guess in lab["guesses"].items()
            if guess["guess"] or guess["here"]
        ],
        answers=[(lab, answer) for lab in labs for answer in lab["answers"].values() if answer["answer"]],
        has_room=bool(room),
        disturbed=[(lab, row["texts"][0]) for lab in labs for row in _rows(lab) if row["busy"]],
        mark=BUSY_MARK,
        room_note=room_note,
        passed=verdicts.count(PASSED),
        exercises=len(verdicts),
        to_come=[lab.title for lab in catalogue.labs() if lab.number not in ran],
    )


def read_labs(folder: Path) -> list[dict[str, Any]]:
    """Return the results of the labs that ran, as `render` shows them; it raises the same errors."""
    labs = [_lab(file) for file in sorted(folder.glob("results-[0-9][0-9].json"))]
    if not labs:
        raise LabError(
            f"there are no results in {paths.shown(folder)} yet: run a lab, such as ./lab start 02, or name another "
            "folder with --from, such as my-labs/work."
        )
    return labs


def _rows(lab: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lab.get("table", {}).get("rows", [])
    return rows


def _lab(file: Path) -> dict[str, Any]:
    """Return a lab's results, with its title, and a verdict for each of its exercises."""
    try:
        results = read(file)
        if problem := find_problem(results):
            raise ValueError(problem)
        if results["lab"] != file.stem[-2:]:
            raise ValueError(f"it belongs to lab {results['lab']!r}")
    except OSError as error:
        raise LabError(
            files.describe_error(error, f"cannot read {file}", "move it away, or make it readable")
        ) from error
    except ValueError as error:
        what = f"{paths.shown(file)} is damaged ({error})"
        raise LabError(f"{what}: delete it, and run that lab's last cells again.") from error
    try:
        lab = catalogue.find(results["lab"])
    except LabError as error:
        raise LabError(f"{paths.shown(file)} belongs to a lab that doesn't exist: move it away.") from error
    verdicts = results.get("exercises", {})
    exercises = {n: verdicts.get(str(n), NOT_ATTEMPTED) for n in lab.exercises}
    return {"pictures": {}, "guesses": {}, "answers": {}, **results, "title": lab.title, "exercises": exercises}
