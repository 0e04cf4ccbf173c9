"""Simulated lacks: `LAB_WITHOUT=torch,slurm` makes this machine look as if it had neither, to see what a lab does."""

import importlib.util
import os
import platform

from labkit.system.errors import LabError

VARIABLE = "LAB_WITHOUT"
PARTS = ("namespaces", "torch", "slurm", "compiler", "bf16", "engine", "daal4py")


def simulated() -> list[str]:
    """Return the parts that this machine should appear to lack.

    Raises
    ------
    LabError
        If the variable names another part.
    """
    parts = [part.strip() for part in os.environ.get(VARIABLE, "").split(",") if part.strip()]
    if unknown := [part for part in parts if part not in PARTS]:
        raise LabError(f"{VARIABLE}: there is no part {unknown[0]!r}; choose from {', '.join(PARTS)}.")
    return parts


def reason(part: str) -> str:
    """Return why this machine lacks a part; empty if that is not simulated."""
    return f"{VARIABLE} simulates a machine without {part}" if part in simulated() else ""


def package(name: str) -> str:
    """Return why a Python package is missing; empty if it is there."""
    installed = importlib.util.find_spec(name) is not None
    return reason(name) or ("" if installed else f"{name} is not installed on this {platform.machine()} machine")
