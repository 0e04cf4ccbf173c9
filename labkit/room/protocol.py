"""What is sent to the board, all of it: the schemas that both sides hold each message to.

A seat sends its whole state each time, so that whatever was lost on the way, the last state arrives.
"""

import json
from collections.abc import Callable
from typing import Any

import fastjsonschema

from labkit.display.results import CHECK_FAILED, NOT_ATTEMPTED, NOT_YET, PASSED

MAX_BYTES = 32_768  # of a message
SEAT_LETTERS = 24  # of a seat's name
MAX_VERDICTS = 200  # of a seat
MAX_FIGURES = 60  # of a lab
FIGURE_LETTERS = 120  # of its name
ANSWER_HEADER = "Board-Protocol"  # each answer of a board has it: what else answers at an address is none

# Lengths too: "$" matches before a line's end.
_LAB = {"type": "string", "pattern": "^[0-9]{2}$", "maxLength": 2}
_EXERCISE = {"type": "integer", "minimum": 1, "maximum": 20}
_MINUTE = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}$", "maxLength": 16}
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


_VERDICT = _object(
    lab=_LAB,
    exercise=_EXERCISE,
    verdict={"enum": [PASSED, NOT_YET, NOT_ATTEMPTED, CHECK_FAILED]},
    hint={"type": "integer", "minimum": 0, "maximum": 20},
    minute=_MINUTE,
)
_HAND = _object(lab=_LAB, exercise=_EXERCISE, minute=_MINUTE)
_MACHINE = _list(_object(lab=_NAME, status={"enum": ["ok", "warn", "fail"]}, because=_list(_NAME, most=30)), most=30)
_FIGURE = _object(
    name={"type": "string", "maxLength": FIGURE_LETTERS},
    value={"type": "number", "minimum": -1e15, "maximum": 1e15},  # JSON's 1e999 is infinite, which no page can read
    unit={"type": "string", "maxLength": 20},
)
_CODE = {"type": "string", "maxLength": 12}
_SEAT = {"type": "string", "maxLength": SEAT_LETTERS}  # empty: the board gives it a number


def _or_null(schema: dict) -> dict:
    return {"anyOf": [{"type": "null"}, schema]}


Message = Callable[[Any], Any]  # a kind of message: raises an error for what does not fit

# Messages.
JOIN = fastjsonschema.compile(
    _object(code=_CODE, seat={"type": "string", "maxLength": SEAT_LETTERS})
)  # empty: a number is given
STATE = fastjsonschema.compile(
    _object(exercises=_list(_VERDICT, most=MAX_VERDICTS), hand=_or_null(_HAND), doctor=_or_null(_MACHINE)),
)
FIGURES = fastjsonschema.compile(
    _object(
        code=_CODE,
        lab=_LAB,
        cores={"type": "integer", "minimum": 1, "maximum": 100_000},
        isa=_list(_NAME, most=10),
        figures=_list(_FIGURE, most=MAX_FIGURES),
    )
)
TOKEN = fastjsonschema.compile({"type": "string", "maxLength": 100})
# Parts of messages, for a student's side to leave out what the board would refuse.
VERDICT, HAND, FIGURE = map(fastjsonschema.compile, (_VERDICT, _HAND, _FIGURE))


class Refused(ValueError):
    """A message that is not as it should be: why, in one line."""


def read(body: bytes, kind: Message) -> Any:
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
        raise Refused("not JSON, or nested too deeply") from error
    try:
        return kind(message)
    except fastjsonschema.JsonSchemaValueException as error:
        raise Refused(error.message[:200]) from error


def fits(part: object, kind: Message) -> bool:
    """Whether a message, or a part of one, is as it should be."""
    try:
        kind(part)
    except fastjsonschema.JsonSchemaValueException:
        return False
    return True


def seat_name(text: str) -> str:
    """Return a seat's name as it is shown: one line without what can't be seen."""
    visible = "".join(letter for letter in text if letter.isprintable())
    return " ".join(visible.split())[:SEAT_LETTERS]


def plain_code(text: str) -> str:
    """Return a code as it is compared, however it was typed."""
    return text.upper().replace("-", "").replace(" ", "")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
