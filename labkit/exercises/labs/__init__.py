"""One module per lab: its exercises as data for the engine."""

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # they take a second to import, which ranks can save
    from labkit.exercises.engine.in_c import InC
    from labkit.exercises.engine.on_ranks import OnRanks
    from labkit.exercises.engine.reference import Reference


def references(number: str) -> "dict[int, Reference]":
    """Return the exercises of lab `number` that are functions, by number."""
    return _exercises(number, "Reference")


def on_ranks(number: str) -> "dict[int, OnRanks]":
    """Return the exercises of lab `number` whose function runs on ranks, by number."""
    return _exercises(number, "OnRanks")


def in_c(number: str) -> "dict[int, InC]":
    """Return the exercises of lab `number` that are C files, by number."""
    return _exercises(number, "InC")


def _exercises(number: str, kind: str) -> dict[int, Any]:
    if not importlib.util.find_spec(name := f"{__name__}.lab{number}"):
        return {}
    exercises: dict[int, Any] = importlib.import_module(name).EXERCISES
    return {n: exercise for n, exercise in exercises.items() if type(exercise).__name__ == kind}
