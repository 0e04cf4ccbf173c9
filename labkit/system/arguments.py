"""Command-line flags of the kit's programs: bounded numbers, booleans, and one-line errors."""

import argparse
import math
import operator
from collections.abc import Callable
from typing import NoReturn

from labkit.system.errors import LabError

_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def as_integer(value: object) -> int | None:
    """Return a Python or NumPy integer as an int; None for anything else, including booleans."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `LabError`s, and that accepts no abbreviated flags.

    Flags that are not set are missing from the result: the program's configuration has their defaults.

    Parameters
    ----------
    command : str
        The command to run the program, as typed.
    description, epilog : str
        The text that `--help` shows before and after the flags.
    """

    def __init__(self, command: str, description: str, epilog: str):
        super().__init__(
            command,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise an error with the problem and the way to get help."""
        raise LabError(f"{message.rstrip('.')}. {self.prog} --help lists the flags.")


def integer(minimum: int) -> Callable[[str], int]:
    """Return a converter from a flag's text to an integer of at least `minimum`."""

    def convert(text: str) -> int:
        value = int(text)
        _check(value, text, minimum)
        return value

    convert.__name__ = "integer"  # the name in argparse's errors
    return convert


def number(minimum: float, maximum: float = math.inf) -> Callable[[str], float]:
    """Return a converter from a flag's text to a number from `minimum` to `maximum`."""

    def convert(text: str) -> float:
        value = float(text)
        _check(value, text, minimum, maximum)
        return value

    convert.__name__ = "number"
    return convert


def add_switch(group: argparse._ArgumentGroup, name: str, text: str) -> None:
    """Add a boolean flag: `--name`, `--name=true`, `--name=false` or `--noname`."""

    def convert(value: str) -> bool:
        if value.lower() not in _TRUTH:
            raise argparse.ArgumentTypeError(f"{value!r} is neither true nor false")
        return _TRUTH[value.lower()]

    group.add_argument(f"--{name}", nargs="?", const=True, type=convert, metavar="BOOL", help=text)
    group.add_argument(f"--no{name}", dest=name, action="store_false", help=argparse.SUPPRESS)


def _check(value: float, text: str, minimum: float, maximum: float = math.inf) -> None:
    if value < minimum:
        raise argparse.ArgumentTypeError(f"{text} is less than {minimum}")
    if not value <= maximum:  # or NaN
        raise argparse.ArgumentTypeError(f"{text} is more than {maximum}")
