"""Where lab 09 imports `usable_machine` from."""

from labkit.system.cores import usable_machine

__all__ = ["usable_machine"]
