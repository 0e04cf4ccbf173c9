"""Integers among arguments; the fields of a program's configuration that are its flags."""

import operator
from typing import NamedTuple


def as_integer(value: object) -> int | None:
    """Return a Python or NumPy integer as an int; None for anything else, including booleans."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


class Flag(NamedTuple):
    """The flag of a field `name: Annotated[int, Flag("…")]` of a configuration, a frozen dataclass: `--name`.

    Attributes
    ----------
    help : str
        What the field means.
    min : float, optional
        Its lower bound.
    choices : tuple of str
        Its values, if its type doesn't list them.
    """

    help: str
    min: float | None = None
    choices: tuple[str, ...] = ()
