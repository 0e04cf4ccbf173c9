"""Mutants of a lab's solutions, put through its checks: a survivor is a mistake that a check can't see.

Libraries such as mutmut and Cosmic Ray change files and run a test suite for each mutant. Here one function judges one
answer, in a fork of this process, which has imported what takes seconds.
"""

import ast
import contextlib
import multiprocessing
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from labkit.display.results import CHECK_FAILED, NOT_YET, PASSED
from labkit.exercises import core, sources
from labkit.exercises.answers import remember_lines
from labkit.system import paths
from labkit.system.errors import LabError
from labkit.system.lease import usable_machine
from labkit_author import core_path
from labkit_author.mutants import mutants

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


def try_exercise(source: Path, number: int, every: int = 1, tell: Callable[[str], None] = print) -> MutationResults:
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
    script = core_path.script_of(notebook.cells[exercise.cell])
    text = exercise.solution.partition("\n")[2] if script else exercise.solution
    lines_of, known = mutants(text), equivalent(source.stem[:2], number)
    results = MutationResults(stale=sorted(set(known) - set(lines_of.values())))
    chosen = list(lines_of.items())[::every]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        names = _prepare(notebook, exercise.cell)
        check = core.checker(source.stem[:2], names)

        sources.blank(notebook)  # this and Hypothesis are imported once, before the forks
        import hypothesis.strategies  # noqa: F401

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
            tell(f"exercise {number}: {results.count} of {len(chosen)} mutants, {len(results.survivors)} survived")
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
        "machine": usable_machine(),
        "work": Path("work"),
        "QUICK": True,
    }
    defined = set(names)
    Path("work").mkdir()
    for cell in notebook.cells:
        if script := core_path.script_of(cell):
            Path(script).write_text(cell.source.partition("\n")[2] + "\n")
    for index, statements in reversed(list(_needed(notebook, exercise, defined))):
        remember_lines(f"<cell {index}>", notebook.cells[index].source)
        exec(compile(ast.Module(statements, type_ignores=[]), f"<cell {index}>", "exec"), names)
    return names


def _needed(notebook: NotebookNode, exercise: int, defined: set[str]) -> Iterator[tuple[int, list[ast.stmt]]]:
    """Yield the statements that an exercise needs, of the cells before it, the last cell first."""
    uses = core_path.uses_of(ast.unparse(sources.parse(notebook.cells[exercise])))
    open_names = {*uses.now, *uses.later}
    for index in reversed(range(exercise)):
        cell = notebook.cells[index]
        if cell.cell_type != "code" or core_path.script_of(cell):
            continue
        needed: list[ast.stmt] = []
        for statement in reversed(sources.parse(cell).body):
            uses = core_path.uses_of(ast.unparse(statement))
            if uses.bound & (open_names - defined) or _writes_module(statement):
                needed.insert(0, statement)
                open_names = (open_names - uses.bound) | uses.now | uses.later
        yield index, needed


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
