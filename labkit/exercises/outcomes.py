"""The outcomes of a check: it returns when an answer is right, and raises one of these otherwise."""

from typing import NoReturn


class NotYet(Exception):
    """The answer does something else than it should: what was expected and what came, for the student."""


class NotAttempted(Exception):
    """The answer is still the stub, or the kit's own solution: what to do, if anything, for the student."""


def expect(condition: bool, expectation: str) -> None:
    """Raise `NotYet` unless `condition`; `expectation` completes the sentence "Expected …"."""
    if not condition:
        refuse(expectation)


def refuse(expectation: str) -> NoReturn:
    """Raise `NotYet`; `expectation` completes the sentence "Expected …"."""
    raise NotYet(f"Expected {expectation}{'' if expectation.endswith('?') else '.'}")
