"""Does a student's answer do what it should? One module a lab; `core` has what all share."""

from labkit.exercises.core import checker

__all__ = ["checker"]
