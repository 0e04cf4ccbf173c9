"""Flags of the kit's programs: numbers within bounds, truth values, and errors of one line."""

import argparse
import math
import operator
from collections.abc import Callable
from typing import NoReturn

from labkit.system.errors import LabError

_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def as_integer(value: object) -> int | None:
    """Return an integer, Python's or NumPy's; None of anything else, truth values too."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `LabError`s, and that guesses no flag from its beginning.

    Flags that are not given are left out of the result: their defaults are those of the program's configuration.

    Parameters
    ----------
    command : str
        The command that one types to run the program.
    description, epilog : str
        The texts that `--help` shows before the flags and after them.
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
        """Raise an error with the problem, and where help is."""
        raise LabError(f"{message.rstrip('.')}. {self.prog} --help lists the flags.")


def whole_number(least: int) -> Callable[[str], int]:
    """Return the converter from a flag's text to a whole number that is not less than `least`."""

    def convert(text: str) -> int:
        value = int(text)
        _check(value, text, least)
        return value

    convert.__name__ = "whole number"  # the name in argparse's errors
    return convert


def number(least: float, most: float = math.inf) -> Callable[[str], float]:
    """Return the converter from a flag's text to a number from `least` to `most`."""

    def convert(text: str) -> float:
        value = float(text)
        _check(value, text, least, most)
        return value

    convert.__name__ = "number"
    return convert


def add_switch(group: argparse._ArgumentGroup, name: str, text: str) -> None:
    """Add a flag that is written `--name`, `--name=true`, `--name=false` or `--noname`."""

    def convert(value: str) -> bool:
        if value.lower() not in _TRUTH:
            raise argparse.ArgumentTypeError(f"{value!r} is neither true nor false")
        return _TRUTH[value.lower()]

    group.add_argument(f"--{name}", nargs="?", const=True, type=convert, metavar="BOOL", help=text)
    group.add_argument(f"--no{name}", dest=name, action="store_false", help=argparse.SUPPRESS)


def _check(value: float, text: str, least: float, most: float = math.inf) -> None:
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} is less than {least}")
    if not value <= most:  # which not-a-number isn't either
        raise argparse.ArgumentTypeError(f"{text} is more than {most}")
