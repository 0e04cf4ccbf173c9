"""What goes between a seat and the board, all of it: what each side takes from the other, which it does not trust.

A seat sends its whole state each time, so that whatever was lost on the way, the last state arrives.
"""

import hmac
import json
import re
import secrets
import unicodedata
from collections.abc import Callable
from typing import Any

import fastjsonschema

from labkit.display.results import CHECK_FAILED, NAME_LETTERS, NOT_ATTEMPTED, NOT_YET, PASSED

MAX_BYTES = 32_768  # bytes of a message
SEAT_LETTERS = 24  # letters of a seat's name
CODE_LETTERS = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"  # letters and digits without those that look alike
CODE_LENGTH = 6  # letters of a room's code
MAX_VERDICTS = 200  # verdicts of a seat
MAX_FIGURES = 60  # of a lab
MAX_GUESSES = 100  # guesses of a seat
CHOICE_LETTERS = 40  # letters of a choice
ANSWER_HEADER = "Board-Protocol"  # a header of each answer: whatever answers without is no board
MAX_ANSWER_BYTES = 4_000_000  # bytes of a board's answer; the largest is the wall with its figures
ANSWER_LETTERS = 200  # letters of a text in an answer
ANSWER_DEPTH = 8  # levels of lists and objects in an answer
LARGEST = 1e15  # of a figure, and of a guess
# Printable by Unicode, and yet nothing to be seen: fillers, a blank, and what chooses between forms of a letter.
UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
MARKS = 3  # combining marks on a letter; more of them would lie over the lines above and below

Schema = dict[str, Any]  # a JSON schema

# Lengths too: "$" matches before a line's end.
_LAB = {"type": "string", "pattern": "^[0-9]{2}$", "maxLength": 2}
_EXERCISE = {"type": "integer", "minimum": 1, "maximum": 20}
_MINUTE = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}$", "maxLength": 16}
_NAME = {"type": "string", "minLength": 1, "maxLength": 60}


def _object(**properties: Schema) -> Schema:
    """Return the schema of an object that has these properties, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Schema, most: int) -> Schema:
    return {"type": "array", "items": items, "maxItems": most}


_VERDICT = _object(
    lab=_LAB,
    exercise=_EXERCISE,
    verdict={"enum": [PASSED, NOT_YET, NOT_ATTEMPTED, CHECK_FAILED]},
    hint={"type": "integer", "minimum": 0, "maximum": 20},
    minute=_MINUTE,
)
_HAND = _object(lab=_LAB, exercise=_EXERCISE)
_OPENED = _object(lab=_LAB, minute=_MINUTE)
_MACHINE = _list(_object(lab=_NAME, status={"enum": ["ok", "warn", "fail"]}, because=_list(_NAME, most=30)), most=30)
_NUMBER = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}  # 1e999 is infinite, which no page can read
_FIGURE = _object(
    name={"type": "string", "maxLength": NAME_LETTERS},
    value=_NUMBER,
    unit={"type": "string", "maxLength": 20},
)


def _or_null(*schemas: Schema) -> Schema:
    return {"anyOf": [{"type": "null"}, *schemas]}


# A number, or a choice; the board keeps those alone that the kit's own question has (`questions.fitting`).
_ANSWER = _or_null(_NUMBER, {"type": "string", "minLength": 1, "maxLength": CHOICE_LETTERS})
_GUESS = _object(lab=_LAB, number={"type": "integer", "minimum": 1, "maximum": 20}, guess=_ANSWER, here=_ANSWER)

Message = Callable[[Any], Any]  # a kind of message: raises an error for what does not fit

# Messages.
JOIN = fastjsonschema.compile(
    _object(code={"type": "string", "maxLength": 12}, seat={"type": "string", "maxLength": SEAT_LETTERS})
)  # empty: a number is given
STATE = fastjsonschema.compile(
    _object(
        exercises=_list(_VERDICT, most=MAX_VERDICTS),
        opened=_or_null(_OPENED),
        guesses=_list(_GUESS, most=MAX_GUESSES),
        hand=_or_null(_HAND),
        doctor=_or_null(_MACHINE),
    ),
)
FIGURES = fastjsonschema.compile(
    _object(
        ticket={"type": "string", "pattern": "^[0-9a-f]{64}$", "maxLength": 64},
        lab=_LAB,
        cores={"type": "integer", "minimum": 1, "maximum": 100_000},
        isa=_list(_NAME, most=10),
        figures=_list(_FIGURE, most=MAX_FIGURES),
    )
)
TOKEN = {"type": "string", "pattern": r"^[0-9]{1,9}\.[A-Za-z0-9_-]{20,80}$", "maxLength": 90}
JOINED = fastjsonschema.compile(  # what a board answers; it may say more, which nobody reads
    {
        "type": "object",
        "properties": {"seat": {"type": "string", "minLength": 1, "maxLength": SEAT_LETTERS}, "token": TOKEN},
        "required": ["seat", "token"],
    }
)
# What a board answers to a state: nothing, or that the instructor has helped with the hand in it.
HELPED = fastjsonschema.compile({"type": "object", "properties": {"helped": {"const": True}}, "required": ["helped"]})
# Parts of messages, for a student's side to leave out what the board would refuse.
VERDICT, HAND, FIGURE, OPENED, GUESS = map(fastjsonschema.compile, (_VERDICT, _HAND, _FIGURE, _OPENED, _GUESS))


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


def read_answer(body: bytes) -> Any:
    """Return the content of a board's answer: with numbers of a figure's size, and texts that can be shown in a line.

    Raises
    ------
    Refused
        When it is no JSON, or deeper or larger than what a board answers.
    """
    if len(body) > MAX_ANSWER_BYTES:
        raise Refused(f"an answer has {MAX_ANSWER_BYTES:,} bytes at most")
    try:
        answer = json.loads(body, parse_constant=_refuse_constant, parse_int=_bounded, parse_float=_bounded)
        return _plain(answer, ANSWER_DEPTH)
    except (ValueError, RecursionError) as error:
        raise Refused("not JSON, or not what a board answers") from error


def ticket(token: str, lab: str) -> str:
    """Return the ticket by which a seat sends a lab's figures, once; without a token nobody can tell whose it is."""
    return hmac.new(token.encode(), f"figures {lab}".encode(), "sha256").hexdigest()


def visible(text: str, most: int) -> str:
    """Return a text as one line of so many letters at most, without what can't be seen or lies over other lines."""
    if not (text.isascii() and text.isprintable()):
        spaced = "".join(" " if letter.isspace() else letter for letter in text)
        shown = "".join(letter for letter in UNSEEN.sub("", spaced) if letter.isprintable())
        marks, letters = 0, []
        for letter in unicodedata.normalize("NFC", shown):
            marks = marks + 1 if unicodedata.category(letter) in ("Mn", "Me") else 0
            if marks <= MARKS:
                letters.append(letter)
        text = "".join(letters)
    return " ".join(text.split())[:most].rstrip()


def seat_name(text: str) -> str:
    """Return a seat's name as it is shown."""
    return visible(text, SEAT_LETTERS)


def name_key(name: str) -> str:
    """Return a key that names share which differ only in case, spaces, forms of letters, and the unseen."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return visible(folded, len(folded))


def new_code(length: int = CODE_LENGTH) -> str:
    """Return a code that is easy to read out and to type; by default as long as a room's."""
    return "".join(secrets.choice(CODE_LETTERS) for _ in range(length))


def plain_code(text: str) -> str:
    """Return a code as it is compared, however it was typed."""
    return text.upper().replace("-", "").replace(" ", "")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _bounded(text: str) -> float:
    """Return a number of JSON's; a whole one stays whole."""
    number = float(text)
    if not -LARGEST <= number <= LARGEST:
        raise ValueError("a number is too large")
    return int(text) if text.lstrip("-").isdecimal() else number


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return visible(value, ANSWER_LETTERS)
    if isinstance(value, list | dict) and not depth:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_plain(one, depth - 1) for one in value]
    if isinstance(value, dict):
        return {visible(key, ANSWER_LETTERS): _plain(one, depth - 1) for key, one in value.items()}
    return value
