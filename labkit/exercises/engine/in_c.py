"""Exercises in C, as data: the program that runs a student's file, and cases with their results.

The file is built with sanitizers and runs in a child process, so that a wrong index is the answer's, not the kernel's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labkit import native
from labkit.exercises.engine.on_ranks import Script
from labkit.exercises.engine.outcomes import NotAttempted, NotYet
from labkit.exercises.engine.values import expect_equal
from labkit.system.errors import LabError


class Case(NamedTuple):
    """One run of the program: `what` for `text`, such as "the result for 8 images", is `expected`.

    The program computes it from `arrays` and further `arguments` (`native.compute`). Choose integers, whose float32
    sums are exact in any order. `hint` is for mistakes that appear in this case.
    """

    text: str
    arrays: Sequence[np.ndarray]
    arguments: tuple[object, ...]
    expected: np.ndarray
    hint: str = ""
    what: str = "the result"
    threads: int = 2


@dataclass(frozen=True)
class InC:
    """An exercise: a C file.

    `build` takes the file and `flags`, and returns the program. `cases` begin with the simplest. `hints`, `wrong` and
    `right` are as in `OnRanks`, but a mistake has a part of its message. `names` has the results of some mistakes for a
    case's arrays, by the end of the sentence "It is as if …".
    """

    build: Callable[..., Path]
    cases: Callable[[], Iterable[Case]]
    hints: tuple[str, ...]
    names: Mapping[str, Callable[..., np.ndarray]] = field(default_factory=dict)
    wrong: Sequence[tuple[str, Script]] = ()
    right: Sequence[Script] = ()

    def check(self, file: Path) -> None:
        """Raise `NotYet` unless the file's program is right in each case; `NotAttempted` without a compiler."""
        if why := native.obstacle():
            raise NotAttempted(f"{why[0].upper()}{why[1:]}. ")
        try:
            try:
                program = self.build(file, flags=native.CHECKED)
            except native.NoSanitizers:  # then a wrong index is found only if it changes a result, or crashes
                program = self.build(file, flags=native.FAST)
        except LabError as error:
            raise NotYet(str(error)) from error
        for case in self.cases():
            self._decide(program, case)

    def _decide(self, program: Path, case: Case) -> None:
        try:
            result = native.compute(program, case.arrays, *case.arguments, threads=case.threads)
        except LabError as error:
            raise NotYet(f"{error} That happens for {case.text}.", case.hint) from None
        if result.size != case.expected.size:
            raise NotYet(f"The program ended without {case.what} for {case.text}.", case.hint)
        result = result.reshape(case.expected.shape)
        try:
            expect_equal(result, case.expected, f"{case.what} for {case.text}", rel=0, abs=0)
        except NotYet as mistake:
            equal = (why for why, wrong in self.names.items() if np.array_equal(result, wrong(*case.arrays)))
            why = next(equal, "") if result.any() else ""
            raise NotYet(f"{mistake} It is as if {why}." if why else str(mistake), case.hint) from None
