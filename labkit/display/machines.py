"""Results of complete runs on several machines, from `lab report --json`: `data/machines/NAME.json`."""

from pathlib import Path
from typing import Any

import fastjsonschema

from labkit.display import markdown, results
from labkit.system import files, paths
from labkit.system.errors import LabError

FOLDER = paths.ROOT / "data" / "machines"
_SPEED = {"type": "number", "exclusiveMinimum": 0}
_PEAKS = {"type": "object", "required": ["float32"], "additionalProperties": _SPEED}
_INSTRUCTION = {"type": "object", "required": ["instruction", "speed"], "properties": {"speed": _SPEED}}
_LIMITS = {"peaks": _PEAKS, "instructions": {"additionalProperties": _INSTRUCTION}, "bandwidth": _SPEED}
_PARTS = {
    "on": {"type": "object", "required": ["cpu", "cores", "instruction sets"]},
    "when": {"type": "string", "pattern": "^20[0-9]{2}-[0-9]{2}-[0-9]{2}$"},
    "kit": {"type": "string"},
    "limits": {"type": "object", "required": list(_LIMITS), "properties": _LIMITS},
    "labs": {"type": "object", "propertyNames": {"pattern": "^[0-9]{2}$"}},
}
_SCHEMA = {"type": "object", "required": list(_PARTS), "properties": _PARTS, "additionalProperties": False}


def read_all() -> list[dict[str, Any]]:
    """Return the contents of all files, sorted by name.

    Raises
    ------
    LabError
        When a file is not from `lab report --json`.
    """
    return [_read(path) for path in sorted(FOLDER.glob("*.json"))]


def table(lab: str, about: str = "") -> str:
    """Return a lab's rows whose names begin with `about`, with a column per machine, in Markdown; empty if none."""
    columns: dict[str, dict[str, str]] = {}
    for machine in read_all():
        rows = [row["texts"] for row in machine["labs"].get(lab, {"rows": []})["rows"]]
        if matching := {name: figure for name, _, figure, *_ in rows if name.startswith(about)}:
            columns[_describe(machine)] = matching
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    table = [[name, *(column.get(name) or "–" for column in columns.values())] for name in names]
    return str(markdown.table(["", *columns], table).data) if columns else ""


def _describe(machine: dict[str, Any]) -> str:
    """Describe a machine in words: "AMD EPYC, 2 cores, AVX, AVX2, AVX-512 (2026-11-26)"."""
    on = machine["on"]
    return f"{on['cpu']}, {on['cores']} cores, {on['instruction sets']} ({machine['when']})"


def _find_problem(machine: Any) -> str:
    """Return the problem with a machine's results; an empty string if there is none."""
    try:
        fastjsonschema.validate(_SCHEMA, machine)
    except fastjsonschema.JsonSchemaValueException as error:
        return str(error.message)
    about = {"lab": "", "quick": False, "when": machine["when"], "on": machine["on"]}
    problems = {lab: results.find_problem(about | {"table": table}) for lab, table in machine["labs"].items()}
    return next((f"lab {lab}: {problem}" for lab, problem in problems.items() if problem), "")


def _read(path: Path) -> dict[str, Any]:
    try:
        machine: dict[str, Any] = files.read_json(path)
        problem = _find_problem(machine)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise LabError(f"{paths.shown(path)} is not a file from ./lab report --json: {problem}.")
    return machine
