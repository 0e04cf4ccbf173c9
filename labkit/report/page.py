"""The page that a student takes home: the machine, the steps, the guesses, the figures, pictures and exercises."""

import base64
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastjsonschema
import jinja2

from labkit.display import ladder, plots
from labkit.display.measured import with_unit
from labkit.display.results import (
    COLUMNS,
    NOT_ATTEMPTED,
    PASSED,
    find_problem,
    name_on_all_machines,
    read,
    texts,
    without_empty_columns,
)
from labkit.exercises import catalogue
from labkit.system import files, paths
from labkit.system.errors import LabError
from labkit.system.load import BUSY_MARK

FEW = 5  # people, or machines, from which on a room shows counts and figures: of fewer, one would know whose they are
_FIGURE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "value": {"type": "number"}, "unit": {"type": "string"}},
    "required": ["name", "value", "unit"],
}
_MACHINE = {
    "type": "object",
    "properties": {"figures": {"type": "array", "items": _FIGURE}},
    "required": ["figures"],
}
_LABS = {"type": "object", "additionalProperties": {"type": "array", "items": _MACHINE}}
_WALL = {"type": "object", "properties": {"figures": _LABS}, "required": ["figures"]}  # as far as it is read
_check_wall = fastjsonschema.compile(_WALL)
TEMPLATE = Path(__file__).with_suffix(".html")


def render(
    folder: Path,
    room: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    room_note: str = "",
) -> str:
    """Return the page, a text that needs no other file and no network.

    Parameters
    ----------
    folder : Path
        Where the labs that were run have left their `results-NN.json`.
    room : mapping, optional
        By lab, the closing figures of a room's machines: messages with `figures`, each a `name`, a `value`, a `unit`.
    room_note : str
        What is to be said of the room, such as why there are no figures of it.

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
    machines: dict[tuple[Any, ...], list[str]] = {}
    for lab in labs:
        machines.setdefault(tuple(lab["on"].items()), []).append(lab["lab"])
    ran = {lab["lab"] for lab in labs}
    verdicts = [verdict for lab in labs for verdict in lab["exercises"].values()]
    for lab in labs:
        if lab.get("table"):
            _show_table(lab["table"], (room or {}).get(lab["lab"], ()))
    steps = ladder.read(folder)
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        labs=labs,
        machines=machines,
        ladder=base64.b64encode(plots.png(ladder.draw(steps))).decode() if steps else "",
        ladder_in_words=ladder.describe(steps),
        guesses=[(lab, guess) for lab in labs for guess in lab["guesses"].values() if guess["guess"] or guess["here"]],
        disturbed=[(lab, row["texts"][0]) for lab in labs for row in _rows(lab) if row["busy"]],
        mark=BUSY_MARK,
        room_note=room_note,
        passed=verdicts.count(PASSED),
        exercises=len(verdicts),
        to_come=[lab.title for lab in catalogue.labs() if lab.number not in ran],
    )


def room_figures(answer: object) -> dict[str, list[dict[str, Any]]]:
    """Return a board's answer for its wall as `render` takes it: the figures by lab.

    Raises
    ------
    ValueError
        When it is of another shape.
    """
    figures: dict[str, list[dict[str, Any]]] = _check_wall(answer)["figures"]
    return figures


def _show_table(table: dict[str, Any], sent: Sequence[Mapping[str, Any]]) -> None:
    """Add what the page shows of a table: its `head`, and the texts `shown` of each row.

    The last column has a room's figures, where machines have sent one of a row's name.
    """
    values: dict[str, dict[str, list[float]]] = {}  # by name and unit
    for message in sent:
        for figure in message["figures"]:
            values.setdefault(figure["name"], {}).setdefault(figure["unit"], []).append(figure["value"])
    names = [name_on_all_machines(row["texts"][0]) for row in table["rows"]]
    table["head"], shown = without_empty_columns((table["what"], *COLUMNS), texts(table["rows"]))
    if not values.keys().isdisjoint(names):
        table["head"].append("the room")
        shown = [[*each, _in_words(values.get(name, {}))] for name, each in zip(names, shown, strict=True)]
    for row, each in zip(table["rows"], shown, strict=True):
        row["shown"] = each


def _in_words(values: Mapping[str, Sequence[float]]) -> str:
    """Return median and range by unit; nothing of so few machines that the range would be somebody's."""
    return "; ".join(
        f"{with_unit(_short(statistics.median(held)), unit)} "
        f"({_short(min(held))} to {_short(max(held))}, {len(held)} machines)"
        for unit, held in values.items()
        if len(held) >= FEW
    )


def _short(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _rows(lab: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lab.get("table", {}).get("rows", [])
    return rows


def _lab(file: Path) -> dict[str, Any]:
    """Return what a lab has left, with its title, and a verdict for each of its exercises."""
    try:
        kept = read(file)
        if wrong := find_problem(kept):
            raise ValueError(wrong)
        if kept["lab"] != file.stem[-2:]:
            raise ValueError(f"it is of lab {kept['lab']!r}")
    except OSError as error:
        raise LabError(
            files.describe_error(error, f"cannot read {file}", "move it away, or see to it that it can be read")
        ) from error
    except ValueError as error:
        what = f"{paths.shown(file)} is damaged ({error})"
        raise LabError(f"{what}: delete it, and run that lab's last cells again.") from error
    try:
        lab = catalogue.find(kept["lab"])
    except LabError as error:
        raise LabError(f"{paths.shown(file)} is of no lab that is here: move it away.") from error
    verdicts = kept.get("exercises", {})
    exercises = {n: verdicts.get(str(n), NOT_ATTEMPTED) for n in lab.exercises}
    return {"pictures": {}, "guesses": {}, **kept, "title": lab.title, "exercises": exercises}
