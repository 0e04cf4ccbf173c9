"""Try mutants of a lab's solutions on its checks: a survivor is a mistake that the check misses.

    python tests/tools/mutate.py 09 --exercise 6

Checking a mutant takes at most a second for a function, and a few seconds for a script on ranks. Mutants that are also
right answers are in `tests/exercises/equivalent.toml`, with a reason. The exit code is 1 if any other mutant passes, if
a check itself fails, or if that file lists a line that is not a mutant.

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
from labkit.exercises.engine import checker
from labkit.exercises.engine.on_ranks import Script
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import sources

TESTS = paths.ROOT / "tests"
EQUIVALENT = TESTS / "exercises" / "equivalent.toml"  # mutants that are also right, with a reason
ANSWER_LIMIT_S = 5.0  # for functions; scripts have the check's own limits
MUTANT_LIMIT_S = 300.0  # for a check, which a mutant may block
FORK = multiprocessing.get_context("fork")

Verdict = tuple[str, str]  # the outcome, and the student's message


@dataclass
class MutationResults:
    """The results of an exercise's mutants, each identified by the changed line, as `old → new`."""

    count: int = 0
    equivalent: list[str] = field(default_factory=list)  # they passed, and are known to be right
    survivors: list[str] = field(default_factory=list)  # others that passed
    failures: list[str] = field(default_factory=list)  # on which the check itself failed, with the error
    stale: list[str] = field(default_factory=list)  # lines listed as right that are not mutants of this solution


def equivalent(lab: str, number: int) -> dict[str, str]:
    """Return the mutants of an exercise that are known to be right, each with its reason."""
    known: dict[str, str] = tomllib.loads(EQUIVALENT.read_text()).get(lab, {}).get(str(number), {})
    return known


def script_and_code(solution: str) -> tuple[str, str]:
    """Split a solution into its `%%writefile` line, or an empty string, and its Python code."""
    if solution.startswith("%%writefile"):
        head, newline, code = solution.partition("\n")
        return head + newline, code
    return "", solution


def try_exercise(lab: str, number: int, every: int = 1) -> MutationResults:
    """Try every n-th mutant of an exercise's solution on its check.

    Raises
    ------
    LabError
        If the lab has no such exercise, or the solution itself does not pass.
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

        def judge(change: Script | None = None) -> Verdict:
            return _in_a_fork(lambda: student.check.judge(number, student.answer(number, change)))

        outcome, message = judge()
        if outcome != PASSED:
            raise LabError(f"the solution of exercise {number} does not pass here: {message}")
        for results.count, (mutant, line) in enumerate(list(lines_of.items())[::every], 1):
            outcome, message = judge(Script(before=solution, after=head + mutant))
            if outcome == PASSED:
                (results.equivalent if line in known else results.survivors).append(line)
            elif outcome == CHECK_FAILED:
                results.failures.append(f"{line}: {message.splitlines()[-1]}")
    return results


def _in_a_fork(judge: Callable[[], Verdict]) -> Verdict:
    """Return the result of `judge` in a fork of this process, which a mutant may corrupt, end or block."""
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
    checker.ANSWER_LIMIT_S = ANSWER_LIMIT_S
    send.send(judge())


def main() -> None:
    """Try the mutants of one lab and print the survivors."""
    parser = argparse.ArgumentParser(description="List small mistakes in a lab's solutions that its checks miss.")
    parser.add_argument("lab", help="the lab, such as 07")
    parser.add_argument("--exercise", type=int, help="only this exercise")
    parser.add_argument("--every", type=int, default=1, help="try only every n-th mutant, as for scripts on ranks")
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    sys.path += [str(TESTS / folder) for folder in ("helpers", "exercises")]
    source = sources.find(args.lab)
    problems = 0
    for number in [args.exercise] if args.exercise else sources.exercises(sources.read(source)):
        results = try_exercise(source.stem[:2], number, args.every)
        print(f"exercise {number}: {results.count} mutants, {len(results.survivors)} survivors", flush=True)
        groups = {
            "passed": results.survivors,
            "the check itself failed": results.failures,
            f"no longer a mutant, but listed in {EQUIVALENT.name}": results.stale,
        }
        for label, lines in groups.items():
            problems += len(lines)
            for line in lines:
                print(f"   {label}: {line}")
        if results.survivors:
            entry = f"{paths.shown(EQUIVALENT)}, below [{source.stem[:2]}.{number}]"
            print(f"   Add a case to the check for each, or list it in {entry}, with the reason that it is right.")
    raise SystemExit(problems > 0)


if __name__ == "__main__":
    main()
