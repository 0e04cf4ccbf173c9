"""The outcomes of a check: it returns when an answer is right, and raises one of these otherwise."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn

REPORT, FAILED = "REPORT ", "FAILED "  # begin a rank's lines for the check: what a probe found, why it ended


class NotYet(Exception):
    """The answer does something else than it should: what was expected and what came, for the student.

    `hint` is one for this mistake, which comes before those that the exercise gives in their order.
    """

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


class NotAttempted(Exception):
    """The answer is still the stub, or the kit's own solution: what to do, if anything, for the student."""


def expect(condition: bool, expectation: str, hint: str = "") -> None:
    """Raise `NotYet` unless `condition`; `expectation` completes the sentence "Expected …"."""
    if not condition:
        refuse(expectation, hint)


def refuse(expectation: str, hint: str = "") -> NoReturn:
    """Raise `NotYet`; `expectation` completes the sentence "Expected …"."""
    raise NotYet(f"Expected {expectation}{'' if expectation.endswith('?') else '.'}", hint)


@contextlib.contextmanager
def hinting(hint: str) -> Iterator[None]:
    """Give a mistake that is found inside this hint, unless it comes with one."""
    try:
        yield
    except NotYet as mistake:
        mistake.hint = mistake.hint or hint
        raise
