"""One module per lab: its exercises as data for the engine."""

import importlib.util
from typing import TYPE_CHECKING, Any

from labkit.exercises.engine.on_ranks import OnRanks

if TYPE_CHECKING:
    from labkit.exercises.engine.reference import Reference  # takes a second to import, which ranks can save


def references(number: str) -> "dict[int, Reference]":
    """Return the exercises of lab `number` that are functions, by number."""
    return {n: exercise for n, exercise in _exercises(number).items() if not isinstance(exercise, OnRanks)}


def on_ranks(number: str) -> dict[int, OnRanks]:
    """Return the exercises of lab `number` whose function runs on ranks, by number."""
    return {n: exercise for n, exercise in _exercises(number).items() if isinstance(exercise, OnRanks)}


def _exercises(number: str) -> dict[int, Any]:
    if not importlib.util.find_spec(name := f"{__name__}.lab{number}"):
        return {}
    exercises: dict[int, Any] = importlib.import_module(name).EXERCISES
    return exercises
