"""`lab doctor`: check whether this machine can run each lab, and show how to fix what is missing."""

from labkit.doctor.checks import examine
from labkit.doctor.view import as_text, summary

__all__ = ["as_text", "examine", "summary"]
