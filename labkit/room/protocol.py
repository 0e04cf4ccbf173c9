"""What is sent to the board, all of it: the schemas that both sides hold each message to.

A seat sends its whole state each time, so that whatever was lost on the way, the last state arrives.
"""

import json
from typing import Any

import jsonschema

from labkit.display.results import CHECK_FAILED, NOT_ATTEMPTED, NOT_YET, PASSED

MAX_BYTES = 32_768  # of a message
SEAT_LETTERS = 24  # of a seat's name

_LAB = {"type": "string", "pattern": "^[0-9]{2}$"}
_EXERCISE = {"type": "integer", "minimum": 1, "maximum": 20}
_MINUTE = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}$"}
_NAME = {"type": "string", "minLength": 1, "maxLength": 60}


def _object(**properties: dict) -> dict:
    """Return the schema of an object that has these properties, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: dict, most: int) -> dict:
    return {"type": "array", "items": items, "maxItems": most}


JOIN = _object(
    code={"type": "string", "maxLength": 12},
    seat={"type": "string", "maxLength": SEAT_LETTERS},  # empty: the board gives it a number
)
STATE = _object(
    exercises=_list(
        _object(
            lab=_LAB,
            exercise=_EXERCISE,
            verdict={"enum": [PASSED, NOT_YET, NOT_ATTEMPTED, CHECK_FAILED]},
            hint={"type": "integer", "minimum": 0, "maximum": 20},
            minute=_MINUTE,
        ),
        most=200,
    ),
    hand={"anyOf": [{"type": "null"}, _object(lab=_LAB, exercise=_EXERCISE, minute=_MINUTE)]},
    doctor={
        "anyOf": [
            {"type": "null"},
            _list(_object(lab=_NAME, status={"enum": ["ok", "warn", "fail"]}, because=_list(_NAME, most=30)), most=30),
        ]
    },
)
FIGURES = _object(
    code={"type": "string", "maxLength": 12},
    lab=_LAB,
    cores={"type": "integer", "minimum": 1, "maximum": 100_000},
    isa=_list(_NAME, most=10),
    figures=_list(_object(name={"type": "string", "maxLength": 120}, value={"type": "number"}), most=60),
)


class Refused(ValueError):
    """A message that is not as it should be: why, in one line."""


def read(body: bytes, schema: dict) -> dict[str, Any]:
    """Return a message that fits its schema.

    Raises
    ------
    Refused
        When it does not.
    """
    if len(body) > MAX_BYTES:
        raise Refused(f"a message has {MAX_BYTES:,} bytes at most")
    try:
        message = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refused("not JSON") from error
    try:
        jsonschema.validate(message, schema, cls=jsonschema.Draft202012Validator)
    except jsonschema.ValidationError as error:
        raise Refused(f"{error.json_path}: {error.message}"[:200]) from error
    return message


def seat_name(text: str) -> str:
    """Return a seat's name as it is shown: one line without what can't be seen."""
    visible = "".join(letter for letter in text if letter.isprintable())
    return " ".join(visible.split())[:SEAT_LETTERS]


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
