"""Read a command's knobs from a TOML file, with the values that each can have on this machine."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastjsonschema

from labkit.system import files
from labkit.system.errors import LabError
from labkit.system.machine import Machine

DEFAULT_KNOBS = Path(__file__).with_name("knobs.toml")
BENCH_KNOBS = Path(__file__).with_name("knobs-bench.toml")  # for lab bench
PLACES = ("env", "flag", "prefix")
MAX_VALUES = 10_000  # per knob; a search tries a few dozen
_TEXT = {"type": "string", "pattern": r"^[^\x00-\x1f]*$"}
_WITH_VALUE = {"type": "string", "pattern": r"^[^\x00-\x1f]*\{value\}[^\x00-\x1f]*$"}
_BOUND = {"anyOf": [{"type": "integer"}, {"enum": ["cpus", "cores"]}]}
_KNOB = {
    "type": "object",
    "properties": {
        "type": {"enum": ["integer", "choice"]},
        "text": _TEXT,
        "env": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
        "flag": _WITH_VALUE,
        "prefix": _WITH_VALUE,
        "low": _BOUND,
        "high": _BOUND,
        "step": {"type": "integer", "minimum": 1},
        "log": {"type": "boolean"},
        "default": {"type": ["number", "string"], "pattern": _TEXT["pattern"]},
        "values": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"type": ["number", "string"], "pattern": _TEXT["pattern"]},
        },
    },
    "additionalProperties": False,
    "required": ["type"],
    "if": {"properties": {"type": {"const": "integer"}}},
    "then": {"required": ["low", "high"]},
    "else": {"required": ["values"]},
}
_check = fastjsonschema.compile({"type": "object", "minProperties": 1, "additionalProperties": _KNOB})


@dataclass(frozen=True)
class Knob:
    """A setting of a command.

    Attributes
    ----------
    values : tuple
        Possible values; None leaves the setting unset.
    env, flag, prefix : str
        Where the value goes: a variable, after the command, or before it. Exactly one is set.
    text : str
        Description.
    """

    values: tuple[Any, ...]
    env: str = ""
    flag: str = ""
    prefix: str = ""
    text: str = ""


def space_of(knobs: Mapping[str, Knob]) -> dict[str, tuple[Any, ...]]:
    """Return the knobs' search space, as `search` takes it."""
    return {name: knob.values for name, knob in knobs.items()}


def read(file: Path, machine: Machine) -> dict[str, Knob]:
    """Read a TOML file of knobs; `knobs.toml` in this folder documents the format.

    Raises
    ------
    LabError
        If it can't be read or is invalid.
    """
    try:
        tables = tomllib.loads(files.read(file).decode("utf-8-sig"))
        _check(tables)
    except OSError as error:
        raise LabError(f"cannot read {file}: {error.strerror}. Name a TOML file with --knobs.") from error
    except fastjsonschema.JsonSchemaValueException as error:
        raise LabError(f"{file}: {error.message.replace('data.', 'knob ', 1)}; see {DEFAULT_KNOBS}.") from error
    except (ValueError, RecursionError) as error:
        raise LabError(f"{file} is not TOML: {error}.") from error
    knobs = {}
    for name, table in tables.items():
        try:
            places = {place: table[place] for place in PLACES if place in table}
            if len(places) != 1:
                raise LabError("give exactly one of env, flag and prefix for its value.")
            integer = table["type"] == "integer"
            values = _integers(table, machine) if integer else table["values"]
            default = table.get("default")
            # Programs don't see a quota, so their defaults count all CPUs or cores.
            default = {"cpus": len(machine.cpus), "cores": len(machine.cores)}.get(default, default)
            if default in values:  # an unset knob has this value
                values = [None if value == default else value for value in values]
            else:  # None comes next to an integer's highest value, as programs use all cores by default
                values = [*values, None] if integer else [None, *values]
        except LabError as error:
            raise LabError(f"{file}, knob {name}: {error}") from error
        knobs[name] = Knob(tuple(values), **places, text=table.get("text", ""))
    return knobs


def _integers(table: Mapping[str, Any], machine: Machine) -> list[int]:
    quota = len(machine.cpus) if machine.quota is None else max(1, int(machine.quota))
    names = {"cpus": min(len(machine.cpus), quota), "cores": machine.usable_cores}
    low, high = (names.get(table[key], table[key]) for key in ("low", "high"))
    step, log = table.get("step", 1), table.get("log")
    if low > high or (log and low < 1):
        raise LabError(f"its range is from {low} to {high}: low must not exceed high, and must be at least 1 with log.")
    if log:
        halves = [high >> halvings for halvings in range(high.bit_length())]
        return sorted({low, *(number for half in halves for number in (half, half * 3 // 4) if number >= low)})
    if (high - low) // step >= MAX_VALUES:
        raise LabError(f"it has more than {MAX_VALUES:,} values: set a larger step, or log = true.")
    return list(range(low, high + 1, step))
