"""`lab doctor`: check whether this machine can run each lab, and how to fix what is missing."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.doctor.checks import examine
    from labkit.doctor.view import as_text, render, summary

__all__ = ["as_text", "examine", "render", "summary"]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__, submod_attrs={"checks": ["examine"], "view": ["as_text", "render", "summary"]}
)
