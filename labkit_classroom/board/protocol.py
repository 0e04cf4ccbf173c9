"""Messages between a seat and the board: schemas, limits, and the room's code.

A seat always sends its whole state, so any message that arrives brings the board up to date.
"""

import json
import secrets
from collections.abc import Callable
from typing import Any

import fastjsonschema

from labkit.display.results import CHECK_FAILED, NOT_ATTEMPTED, NOT_YET, PASSED

FEW = 5  # people or machines; counts and results of fewer are not shown
MAX_BYTES = 32_768  # per message
MAX_ANSWER_BYTES = 4_000_000  # the largest response is the wall's content
MAX_VERDICTS = 200  # per seat
MAX_GUESSES = 100  # per seat
MAX_MAGNITUDE = 1e15  # of a guess or result; 1e999 is infinite, which pages cannot parse
SEAT_LETTERS = 24
CHOICE_LETTERS = 40
TEXT_LETTERS = 300  # of a text from the board that is printed or goes into a report
CODE_LETTERS = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"  # no look-alikes
CODE_LENGTH = 6
ANSWER_HEADER = "Board-Protocol"  # on every response: a server that does not send it is not a board

Schema = dict[str, Any]
Validator = Callable[[Any], Any]  # a compiled schema: raises JsonSchemaValueException if a message does not fit


def _object(**properties: Schema) -> Schema:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Schema, max_items: int) -> Schema:
    return {"type": "array", "items": items, "maxItems": max_items}


def _or_null(*schemas: Schema) -> Schema:
    return {"anyOf": [{"type": "null"}, *schemas]}


# Patterns need a maxLength as well: "$" also matches before a final newline.
_LAB = {"type": "string", "pattern": "^[0-9]{2}$", "maxLength": 2}
_NUMBER = {"type": "integer", "minimum": 1, "maximum": 20}
_MINUTE = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}$", "maxLength": 16}
_NAME = {"type": "string", "minLength": 1, "maxLength": 60}
_VERDICT = _object(
    lab=_LAB,
    exercise=_NUMBER,
    verdict={"enum": [PASSED, NOT_YET, NOT_ATTEMPTED, CHECK_FAILED]},
    hint={"type": "integer", "minimum": 0, "maximum": 20},
    minute=_MINUTE,
)
_OPENED = _object(lab=_LAB, minute=_MINUTE)
_VALUE = _or_null(
    {"type": "number", "minimum": -MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE},
    {"type": "string", "minLength": 1, "maxLength": CHOICE_LETTERS},
)
_GUESS = _object(lab=_LAB, number=_NUMBER, guess=_VALUE, here=_VALUE)
_DOCTOR = _list(
    _object(lab=_NAME, status={"enum": ["ok", "warn", "fail"]}, because=_list(_NAME, max_items=30)), max_items=30
)
_TEXT = {"type": "string", "maxLength": 4096}
_TOKEN = {"type": "string", "pattern": r"^[0-9]{1,9}\.[A-Za-z0-9_-]{20,80}$", "maxLength": 90}

# Messages from a seat. An empty seat name requests a number.
JOIN = fastjsonschema.compile(
    _object(code={"type": "string", "maxLength": 12}, seat={"type": "string", "maxLength": SEAT_LETTERS})
)
STATE = fastjsonschema.compile(
    _object(
        exercises=_list(_VERDICT, max_items=MAX_VERDICTS),
        opened=_or_null(_OPENED),
        guesses=_list(_GUESS, max_items=MAX_GUESSES),
        doctor=_or_null(_DOCTOR),
    )
)
HAND = fastjsonschema.compile(_object(lab=_LAB, exercise=_NUMBER))
HELD = fastjsonschema.compile(_or_null(_object(lab=_LAB, number=_NUMBER)))  # from the instructor's page
# Parts of a state: a seat leaves out those the board would refuse.
VERDICT, OPENED, GUESS = map(fastjsonschema.compile, (_VERDICT, _OPENED, _GUESS))

# Responses of the board, as far as a seat reads them.
JOINED = fastjsonschema.compile(
    {
        "type": "object",
        "properties": {"seat": {"type": "string", "minLength": 1, "maxLength": SEAT_LETTERS}, "token": _TOKEN},
        "required": ["seat", "token"],
    }
)
HAND_UP, HAND_DOWN = {"hand": "up"}, {"hand": "down"}
_RESULT = {"lab": _LAB, "number": _NUMBER, "summary": _TEXT}
WALL = fastjsonschema.compile(
    {
        "type": "object",
        "properties": {
            "results": {"type": "array", "items": {"type": "object", "properties": _RESULT, "required": list(_RESULT)}}
        },
        "required": ["results"],
    }
)

# The seat's file in a student's folder.
MEMBERSHIP = fastjsonschema.compile(
    _object(
        address=_TEXT,
        code=_TEXT,
        seat=_TEXT,
        token=_TOKEN,
        doctor=_or_null(_DOCTOR),
        ca=_TEXT,
    )
)


class Refused(ValueError):
    """A message that does not fit its schema, with a one-line reason."""


def read(body: bytes, schema: Validator) -> Any:
    """Return the message in a request's body.

    Raises
    ------
    Refused
        If it does not fit its schema.
    """
    try:
        return schema(json.loads(body, parse_constant=_refuse_constant))
    except fastjsonschema.JsonSchemaValueException as error:
        raise Refused(visible(error.message, TEXT_LETTERS)) from error
    except (ValueError, RecursionError) as error:
        raise Refused("not JSON, or nested too deeply") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def fits(part: object, schema: Validator) -> bool:
    """Whether a message, or a part of one, fits its schema."""
    try:
        schema(part)
    except fastjsonschema.JsonSchemaValueException:
        return False
    return True


def visible(text: str, max_letters: int) -> str:
    """Return a text as one printable line of at most `max_letters` letters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:max_letters].rstrip()


def new_code(length: int = CODE_LENGTH) -> str:
    """Return a code that is easy to read out and type; by default, as long as a room's."""
    return "".join(secrets.choice(CODE_LETTERS) for _ in range(length))


def plain_code(text: str) -> str:
    """Return a code in canonical form, however it was typed."""
    return text.upper().replace("-", "").replace(" ", "")
