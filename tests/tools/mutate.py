"""Tries mutants of a lab's solutions on its checks: a survivor is a mistake that the check doesn't see.

    python tests/tools/mutate.py 09 --exercise 6

The check of a function takes a second at most per mutant, that of a script on ranks some seconds. Mutants that are
right answers too are in `tests/exercises/equivalent.toml`, with the reason. The exit code is 1 when any other mutant
passes, when a check itself fails on one, and when that file lists a line that is no mutant.

Libraries such as mutmut and Cosmic Ray change files and run a test suite for each mutant. Here one function judges one
answer, in a fork of this process, which has already imported the slow libraries.
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from mutants import mutants

from labkit.display.results import CHECK_FAILED, NOT_YET, PASSED
from labkit.exercises import core
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import sources
from labkit_author.mistakes import Change

TESTS = paths.ROOT / "tests"
EQUIVALENT = TESTS / "exercises" / "equivalent.toml"  # mutants that are right too, with the reason
ANSWER_LIMIT_S = 5.0  # the limit of an answer that is a function; a script's runs have the limits of the check
MUTANT_LIMIT_S = 300.0  # the limit of a check, which a mutant may keep from ending
FORK = multiprocessing.get_context("fork")

Verdict = tuple[str, str]  # the outcome, and what the student is shown


@dataclass
class MutationResults:
    """The results of an exercise's mutants, each named by the line that differs, as `old → new`.

    Attributes
    ----------
    count : int
        The number of mutants.
    equivalent : list of str
        The mutants that passed, and are known to be right.
    survivors : list of str
        All other mutants that passed.
    failures : list of str
        The mutants on which the check itself failed, and how.
    stale : list of str
        Lines known to be right that are no mutants of this solution.
    """

    count: int = 0
    equivalent: list[str] = field(default_factory=list)
    survivors: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)


def equivalent(lab: str, number: int) -> dict[str, str]:
    """Return the mutants of an exercise that are known to be right too, each with its reason."""
    known: dict[str, str] = tomllib.loads(EQUIVALENT.read_text()).get(lab, {}).get(str(number), {})
    return known


def script_and_code(solution: str) -> tuple[str, str]:
    """Return the line of a solution that writes a script, or nothing, and its Python."""
    if solution.startswith("%%writefile"):
        head, newline, code = solution.partition("\n")
        return head + newline, code
    return "", solution


def try_exercise(lab: str, number: int, every: int = 1) -> MutationResults:
    """Try every n-th mutant of an exercise's solution on its check.

    Raises
    ------
    LabError
        When the lab has no such exercise, or the solution itself does not pass.
    """
    exercises = sources.exercises(sources.read(sources.find(lab)))
    if number not in exercises:
        raise LabError(f"lab {lab} has no exercise {number}, only {sorted(exercises)}.")
    solution = exercises[number].solution
    head, code = script_and_code(solution)
    lines_of, known = mutants(code), equivalent(lab, number)
    results = MutationResults(stale=sorted(set(known) - set(lines_of.values())))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        tests = importlib.import_module(f"test_lab{lab}").TestExercises
        student = tests.make_student(Path(folder))

        import hypothesis.strategies  # noqa: F401  # once, before the forks

        def judge(change: Change | None = None) -> Verdict:
            return _in_a_fork(lambda: student.check.judge(number, student.answer(number, change)))

        outcome, message = judge()
        if outcome != PASSED:
            raise LabError(f"the solution of exercise {number} does not pass here: {message}")
        for results.count, (mutant, line) in enumerate(list(lines_of.items())[::every], 1):
            outcome, message = judge(Change(before=solution, after=head + mutant))
            if outcome == PASSED:
                (results.equivalent if line in known else results.survivors).append(line)
            elif outcome == CHECK_FAILED:
                results.failures.append(f"{line}: {message.splitlines()[-1]}")
    return results


def _in_a_fork(judge: Callable[[], Verdict]) -> Verdict:
    """Return the result of `judge` in a fork of this process, which a mutant may spoil, end or block."""
    receive, send = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_judge, args=(judge, send))
    child.start()
    send.close()
    try:
        return receive.recv() if receive.poll(MUTANT_LIMIT_S) else (NOT_YET, "never ends")
    except EOFError:
        return NOT_YET, "ends the process"
    finally:
        child.kill()
        child.join()


def _judge(judge: Callable[[], Verdict], send: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # a limit that ends compiled code too
        os.dup2(quiet, stream)
    core.ANSWER_LIMIT_S = ANSWER_LIMIT_S
    send.send(judge())


def main() -> None:
    """Try the mutants of one lab and print the survivors."""
    parser = argparse.ArgumentParser(description="List the mistakes in a lab's solutions that its checks don't see.")
    parser.add_argument("lab", help="the lab, such as 07")
    parser.add_argument("--exercise", type=int, help="only this exercise")
    parser.add_argument("--every", type=int, default=1, help="try every n-th mutant only, as for a script on ranks")
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    sys.path += [str(TESTS), str(TESTS / "exercises")]
    source = sources.find(args.lab)
    problems = 0
    for number in [args.exercise] if args.exercise else sources.exercises(sources.read(source)):
        tried = try_exercise(source.stem[:2], number, args.every)
        print(f"exercise {number}: {tried.count} mutants, {len(tried.survivors)} survivors", flush=True)
        groups = {
            "passed": tried.survivors,
            "the check itself failed": tried.failures,
            f"no longer a mutant, but listed in {EQUIVALENT.name}": tried.stale,
        }
        for what, lines in groups.items():
            problems += len(lines)
            for line in lines:
                print(f"   {what}: {line}")
        if tried.survivors:
            listed = f"{paths.shown(EQUIVALENT)}, below [{source.stem[:2]}.{number}]"
            print(f"   Add a case to the check for each, or list it in {listed}, with the reason that it is right.")
    raise SystemExit(problems > 0)


if __name__ == "__main__":
    main()
