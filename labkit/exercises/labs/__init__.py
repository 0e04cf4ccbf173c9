"""One module per lab: its exercises as data for the engine."""

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.exercises.engine.on_ranks import OnRanks
    from labkit.exercises.engine.reference import Reference


def references(number: str) -> "dict[int, Reference]":
    """Return the exercises of lab `number` that are data, by number."""
    return _table(number, "EXERCISES")


def on_ranks(number: str) -> "dict[int, OnRanks]":
    """Return the exercises of lab `number` whose function runs on ranks, by number."""
    return _table(number, "ON_RANKS")


def _table(number: str, name: str) -> dict[int, Any]:
    if not importlib.util.find_spec(module := f"{__name__}.lab{number}"):
        return {}
    table: dict[int, Any] = getattr(importlib.import_module(module), name, {})
    return table
