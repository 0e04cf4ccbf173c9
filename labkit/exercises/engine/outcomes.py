"""The outcomes of a check: it returns when an answer is right, and raises one of these otherwise."""

from typing import NoReturn

REPORT, FAILED = "REPORT ", "FAILED "  # prefixes of a rank's lines for the check: a probe's findings, its failure


class NotYet(Exception):
    """The answer is wrong; the message tells the student what was expected and what came instead.

    `hint` is specific to this mistake, and is shown before the exercise's own hints.
    """

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


class NotAttempted(Exception):
    """The answer is still the stub, or the kit's solution; the message tells the student what to do, if anything."""


def expect(condition: bool, expectation: str, hint: str = "") -> None:
    """Raise `NotYet` unless `condition`; `expectation` completes the sentence "Expected …"."""
    if not condition:
        refuse(expectation, hint)


def refuse(expectation: str, hint: str = "") -> NoReturn:
    """Raise `NotYet`; `expectation` completes the sentence "Expected …"."""
    raise NotYet(f"Expected {expectation}{'' if expectation.endswith('?') else '.'}", hint)
