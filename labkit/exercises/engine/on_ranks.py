"""Exercises whose function runs on ranks, as data: cases, and invariants over what each rank saw.

`launches.check` runs a student's script on the cases in one launch. A mistake is named by the first invariant that
doesn't hold.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from labkit.exercises.engine.outcomes import expect
from labkit.system.errors import LabError

PICKLING = 300  # bytes that pickling adds to a message, at most
OVERWRITTEN = -12_345.0  # in a rank's arrays after its call: what a message contains that was still being sent


class Case(NamedTuple):
    """One call of the function on each rank of a communicator.

    Attributes
    ----------
    text : str
        Completes "for …" in messages, such as "12 numbers on 4 ranks".
    arguments : sequence of tuple
        Each rank's arguments after the communicator; every call gets copies.
    receive_delay_s, send_pause_s : float
        How long the last rank waits before each receive, and after each message that it sends.
    hint : str
        For mistakes that appear in this case.
    """

    text: str
    arguments: Sequence[tuple[Any, ...]]
    receive_delay_s: float = 0.0
    send_pause_s: float = 0.0
    hint: str = ""


class Saw(NamedTuple):
    """The view of one rank after a call.

    Attributes
    ----------
    rank : int
        Its number in the communicator.
    result : object
        What the function returned.
    after : tuple
        Its arguments after the call.
    messages, collectives : list
        What it sent, as `labkit.mpi.CountingComm` counts.
    allocated : int
        The most bytes of new arrays and objects that existed at the same time during the call.
    """

    rank: int
    result: Any
    after: tuple[Any, ...]
    messages: list[tuple[int, int]]
    collectives: list[tuple[str, float]]
    allocated: int

    @property
    def bytes_sent(self) -> float:
        """The bytes that it sent."""
        return sum(size for _, size in [*self.messages, *self.collectives])


Invariant = Callable[[Case, Sequence[Saw]], None]  # raises `NotYet` unless it holds for what all ranks saw


class Script(NamedTuple):
    """Another answer: the solution with a part replaced."""

    after: str  # the new lines
    before: str = ""  # the lines to replace; without it, everything after the line `below`
    below: str = "### BEGIN SOLUTION"

    def apply(self, solution: str) -> str:
        """Return the solution with the part replaced."""
        place = self.before or f"{self.below}\n"
        if place not in solution:
            raise LabError(f"the solution no longer contains {place!r}: plant another mistake.")
        if self.before:
            return solution.replace(self.before, self.after)
        return solution.partition(place)[0] + place + self.after


@dataclass(frozen=True)
class OnRanks:
    """An exercise: a script's function that runs on ranks.

    Attributes
    ----------
    function : str
        Its name in the script.
    parameters : tuple of str
        The names of its parameters after the communicator.
    fills : tuple of str
        Those whose arrays it may change.
    world : bool
        Whether it is a program's `main`, which gets no communicator, and runs once, on all ranks.
    cases : callable
        Returns the cases for a number of ranks; in a module that ranks can import.
    invariants : sequence of callable
        What holds for every case, in the order in which it is checked.
    hints : tuple of str
        From a nudge to nearly the answer.
    wrong : sequence of (callable, Script)
        Planted mistakes, each with the invariant that convicts it.
    right : sequence of Script
        The solution in other words.
    requires : str
        A package that some machines lack: there, the exercise is not attempted.
    """

    function: str
    parameters: tuple[str, ...]
    cases: Callable[[int], Iterable[Case]]
    invariants: Sequence[Invariant]
    hints: tuple[str, ...]
    fills: tuple[str, ...] = ()
    world: bool = False
    wrong: Sequence[tuple[Invariant, Script]] = ()
    right: Sequence[Script] = ()
    requires: str = ""

    def unchanged(self, case: Case, seen: Sequence[Saw]) -> None:
        """Check that arguments which the function doesn't fill are as before, bit for bit."""
        for saw in seen:
            for name, before, after in zip(self.parameters, case.arguments[saw.rank], saw.after, strict=True):
                expect(
                    name in self.fills or not isinstance(before, np.ndarray) or before.tobytes() == after.tobytes(),
                    f"`{name}` to stay unchanged; rank {saw.rank} changed it for {case.text}",
                )
