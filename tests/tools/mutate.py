"""Tries mutants of a lab's solutions on its checks: a survivor is a mistake that the check doesn't see.

    python tests/tools/mutate.py 09 --exercise 6

The check of a function takes a second at most per mutant, that of a script on ranks some seconds. Mutants that are
right answers too are in `tests/exercises/equivalent.toml`, with the reason. The exit code is 1 when any other mutant
passes, when a check itself fails on one, and when that file lists a line that is no mutant.

Libraries such as mutmut and Cosmic Ray change files and run a test suite for each mutant. Here one function judges one
answer, in a fork of this process, which has already imported the slow libraries.
"""

import argparse
import ast
import contextlib
import multiprocessing
import os
import symtable
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mutants import mutants
from nbformat import NotebookNode

from labkit.display.results import CHECK_FAILED, NOT_YET, PASSED
from labkit.exercises import core
from labkit.exercises.answers import remember_lines
from labkit.system import paths
from labkit.system.errors import LabError
from labkit.system.machine import this_machine
from labkit_author import sources
from labkit_author.notebooks import parse, script_of

EQUIVALENT = paths.ROOT / "tests" / "exercises" / "equivalent.toml"  # mutants that are right too, with the reason
ANSWER_LIMIT_S = 5.0  # the limit of an answer that is a function; a script's runs have the limits of the check
MUTANT_LIMIT_S = 300.0  # the limit of a check, which a mutant may keep from ending
FORK = multiprocessing.get_context("fork")


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


def try_exercise(source: Path, number: int, every: int = 1) -> MutationResults:
    """Put every mutant of a solution through its check, or every so-many-th.

    Raises
    ------
    LabError
        When the lab has no such exercise, or the solution itself does not pass.
    """
    notebook = sources.read(source)
    exercises = sources.exercises(notebook)
    if number not in exercises:
        raise LabError(f"lab {source.stem[:2]} has no exercise {number}, only {sorted(exercises)}.")
    exercise = exercises[number]
    script = script_of(notebook.cells[exercise.cell])
    text = exercise.solution.partition("\n")[2] if script else exercise.solution
    lines_of, known = mutants(text), equivalent(source.stem[:2], number)
    results = MutationResults(stale=sorted(set(known) - set(lines_of.values())))
    chosen = list(lines_of.items())[::every]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        names = _prepare(notebook, exercise.cell)
        check = core.checker(source.stem[:2], names)

        import hypothesis.strategies  # noqa: F401  # once, before the forks

        def judge(answer: str) -> tuple[str, str]:
            return _in_a_fork(lambda: check.judge(number, _answer(answer, script, names, exercise.name)))

        outcome, message = judge(text)
        if outcome != PASSED:
            raise LabError(f"the solution of exercise {number} does not pass here: {message}")
        for results.count, (mutant, line) in enumerate(chosen, 1):
            outcome, message = judge(mutant)
            if outcome == PASSED:
                (results.equivalent if line in known else results.survivors).append(line)
            elif outcome == CHECK_FAILED:
                results.failures.append(f"{line}: {message.splitlines()[-1]}")
    return results


def _answer(text: str, script: str, names: dict[str, Any], name: str) -> Any:
    """Return the answer that a text is: a function in the notebook's namespace, or a script's path."""
    if script:
        Path(script).write_text(text + "\n")
        return script
    remember_lines("<mutant>", text)
    namespace = dict(names)
    exec(compile(text, "<mutant>", "exec"), namespace)
    return namespace[name]


def _prepare(notebook: NotebookNode, exercise: int) -> dict[str, Any]:
    """Write the lab's modules to the current folder, and return the notebook's names when it comes to an exercise.

    Of the cells before it, only statements run that the answer's names and the modules need; none measures anything.
    """
    names: dict[str, Any] = {
        "check": lambda number, answer: answer,
        "machine": this_machine(),
        "work": Path("work"),
        "QUICK": True,
    }
    defined = set(names)
    Path("work").mkdir()
    for cell in notebook.cells:
        if script := script_of(cell):
            Path(script).write_text(cell.source.partition("\n")[2] + "\n")
    for index, statements in reversed(list(_needed(notebook, exercise, defined))):
        remember_lines(f"<cell {index}>", notebook.cells[index].source)
        exec(compile(ast.Module(statements, type_ignores=[]), f"<cell {index}>", "exec"), names)
    return names


def _needed(notebook: NotebookNode, exercise: int, defined: set[str]) -> Iterator[tuple[int, list[ast.stmt]]]:
    """Yield the statements that an exercise needs from the cells before it, the last cell first."""
    open_names, _ = _names_of(parse(notebook.cells[exercise]))
    for index in reversed(range(exercise)):
        cell = notebook.cells[index]
        if cell.cell_type != "code" or script_of(cell):
            continue
        needed: list[ast.stmt] = []
        for statement in reversed(parse(cell).body):
            used, bound = _names_of(statement)
            if bound & (open_names - defined) or _writes_module(statement):
                needed.insert(0, statement)
                open_names = (open_names - bound) | used
        yield index, needed


def _names_of(code: ast.AST) -> tuple[set[str], set[str]]:
    """Return the global names that code uses, in its functions too, and those that it binds."""
    table = symtable.symtable(ast.unparse(code), "cell", "exec")
    bound = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    used = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    scopes = table.get_children()
    while scopes:
        scope = scopes.pop()
        used |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
        scopes += scope.get_children()
    match code:
        case ast.AugAssign(target=ast.Name(name)):
            used.add(name)
    return used, bound


def _writes_module(statement: ast.stmt) -> bool:
    """Whether a statement writes a module that scripts import, as `(work / "plan.py").write_text(…)`."""
    text = ast.unparse(statement)
    return not isinstance(statement, ast.FunctionDef) and ".py')" in text and ".write_text(" in text


def _in_a_fork(judge: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """Return the result of `judge` in a fork of this process, which a mutant may spoil, end, or keep for ever."""
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


def _judge(judge: Callable[[], tuple[str, str]], send: Connection) -> None:
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
    source = sources.find(args.lab)
    problems = 0
    for number in [args.exercise] if args.exercise else sources.exercises(sources.read(source)):
        tried = try_exercise(source, number, args.every)
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
