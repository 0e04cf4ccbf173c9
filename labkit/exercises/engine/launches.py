"""Check scripts on ranks: run the cases of an exercise in one launch, and report the invariant that doesn't hold."""

from pathlib import Path

from labkit.exercises import ranks
from labkit.exercises.engine.answers import reports, run_answer
from labkit.exercises.engine.on_ranks import OnRanks
from labkit.exercises.engine.outcomes import NotAttempted, NotYet
from labkit.system import lacks

PROGRAM = Path(ranks.__file__).with_name("run_cases.py")
RANKS = 4
CALL_LIMIT_S, PROGRAM_LIMIT_S = 10.0, 60.0  # time limits for one call of a function, and of a program's `main`


class Convicted(NotYet):
    """A script for which an invariant doesn't hold; `invariant` is its name."""

    def __init__(self, message: str, hint: str, invariant: str):
        super().__init__(message, hint)
        self.invariant = invariant


def check(exercise: OnRanks, script: str) -> None:
    """Raise `NotYet` unless every invariant of an exercise holds for a script."""
    if exercise.requires and (missing := lacks.package(exercise.requires)):
        raise NotAttempted(f"{missing}. ")
    (mistake,) = mistakes(exercise, [script], 180.0 if exercise.world else 60.0)
    if mistake is not None:
        raise mistake


def mistakes(exercise: OnRanks, scripts: list[str], limit_s: float = 60.0) -> list[Convicted | None]:
    """Return the first invariant that doesn't hold for each script; all of them run in one launch.

    Raises
    ------
    NotYet
        If a script fails, exits or hangs.
    RuntimeError
        If an invariant itself fails, with its traceback.
    """
    limit = PROGRAM_LIMIT_S if exercise.world else CALL_LIMIT_S
    arguments = exercise.cases.__module__, exercise.function, limit, *scripts
    run = run_answer(RANKS, PROGRAM, *arguments, threads=1, timeout=limit_s)
    found = [mistake and Convicted(**mistake) for mistake in reports(run)[0]]
    if failures := [str(mistake) for mistake in found if mistake and not mistake.invariant]:
        raise RuntimeError(failures[0])
    return found
