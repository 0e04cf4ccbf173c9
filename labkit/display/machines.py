"""Results of complete runs on several machines: `data/machines/NAME.json`, which `lab report --json` writes."""

from pathlib import Path
from typing import Any

import fastjsonschema

from labkit.display import results
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
    """Return the content of all files, by name.

    Raises
    ------
    LabError
        When a file is not what `lab report --json` writes.
    """
    return [_read(path) for path in sorted(FOLDER.glob("*.json"))]


def _find_problem(machine: Any) -> str:
    """Return what is wrong with a machine's results; an empty text when nothing is."""
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
        raise LabError(f"{paths.shown(path)} is not what ./lab report --json writes: {problem}.")
    return machine
