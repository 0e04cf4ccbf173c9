"""One module per lab: its exercises as data for the engine."""

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.exercises.engine.reference import Reference


def references(number: str) -> "dict[int, Reference]":
    """Return the exercises of lab `number` that are data, by number."""
    if not importlib.util.find_spec(name := f"{__name__}.lab{number}"):
        return {}
    exercises: dict[int, Reference] = importlib.import_module(name).EXERCISES
    return exercises
