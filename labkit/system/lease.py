"""The former place of `usable_machine`, which lab 09 imports from here."""

from labkit.system.cores import usable_machine

__all__ = ["usable_machine"]
