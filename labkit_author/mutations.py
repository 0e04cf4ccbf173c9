"""Puts mutants of a lab's solutions through its checks: what survives is a mistake that a check can't see.

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
from labkit.system.turns import this_share
from labkit_author import core_path
from labkit_author.mutants import mutants

EQUIVALENT = paths.ROOT / "tests" / "exercises" / "equivalent.toml"  # mutants that are right too, with the reason
ANSWER_LIMIT_S = 5.0  # the limit of an answer that is a function; a script's runs have the limits of the check
MUTANT_LIMIT_S = 300.0  # the limit of a check, which a mutant may keep from ending
FORK = multiprocessing.get_context("fork")


@dataclass
class Tried:
    """What came of an exercise's mutants, each named by the line that differs, as `old → new`.

    Attributes
    ----------
    count : int
        How many there were.
    equivalent : list of str
        Those that passed, and are known to be right.
    survivors : list of str
        All others that passed.
    failures : list of str
        Those on which the check itself failed, and how.
    stale : list of str
        Known to be right, and no mutants of this solution.
    """

    count: int = 0
    equivalent: list[str] = field(default_factory=list)
    survivors: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)


def equivalent(lab: str, number: int) -> dict[str, str]:
    """Return the mutants of an exercise that are known to be right too, each with its reason."""
    return tomllib.loads(EQUIVALENT.read_text()).get(lab, {}).get(str(number), {})


def try_exercise(source: Path, number: int, every: int = 1, tell: Callable[[str], None] = print) -> Tried:
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
    script = core_path.written(notebook.cells[exercise.cell])
    text = exercise.solution.partition("\n")[2] if script else exercise.solution
    made, known = mutants(text), equivalent(source.stem[:2], number)
    tried = Tried(stale=sorted(set(known) - set(made.values())))
    chosen = list(made.items())[::every]
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
        for tried.count, (mutant, line) in enumerate(chosen, 1):
            outcome, message = judge(mutant)
            if outcome == PASSED:
                (tried.equivalent if line in known else tried.survivors).append(line)
            elif outcome == CHECK_FAILED:
                tried.failures.append(f"{line}: {message.splitlines()[-1]}")
            tell(f"exercise {number}: {tried.count} of {len(chosen)} mutants, {len(tried.survivors)} survived")
    return tried


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
    """Write the lab's modules to the current folder, and return what the notebook has when it comes to an exercise.

    Of the cells before it, that is what the answer's names and the modules are made of; none measures anything.
    """
    names: dict[str, Any] = {
        "check": lambda number, answer: answer,
        "machine": this_share(),
        "work": Path("work"),
        "QUICK": True,
    }
    given = set(names)
    Path("work").mkdir()
    for cell in notebook.cells:
        if script := core_path.written(cell):
            Path(script).write_text(cell.source.partition("\n")[2] + "\n")
    for index, statements in reversed(list(_needed(notebook, exercise, given))):
        remember_lines(f"<cell {index}>", notebook.cells[index].source)
        exec(compile(ast.Module(statements, type_ignores=[]), f"<cell {index}>", "exec"), names)
    return names


def _needed(notebook: NotebookNode, exercise: int, given: set[str]) -> Iterator[tuple[int, list[ast.stmt]]]:
    """Yield the statements that an exercise needs, of the cells before it, the last cell first."""
    uses = core_path.uses_of(ast.unparse(sources.parse(notebook.cells[exercise])))
    wanted = {*uses.now, *uses.later}
    for index in reversed(range(exercise)):
        cell = notebook.cells[index]
        if cell.cell_type != "code" or core_path.written(cell):
            continue
        needed: list[ast.stmt] = []
        for statement in reversed(sources.parse(cell).body):
            uses = core_path.uses_of(ast.unparse(statement))
            if uses.bound & (wanted - given) or _writes_module(statement):
                needed.insert(0, statement)
                wanted = (wanted - uses.bound) | uses.now | uses.later
        yield index, needed


def _writes_module(statement: ast.stmt) -> bool:
    """Whether it writes a module that scripts import, as `(work / "plan.py").write_text(…)`."""
    text = ast.unparse(statement)
    return not isinstance(statement, ast.FunctionDef) and ".py')" in text and ".write_text(" in text


def _in_a_fork(judge: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """Return what `judge` returns in a fork of this process, which a mutant may spoil, end, or keep for ever."""
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
    for stream in (1, 2):  # of compiled code too
        os.dup2(quiet, stream)
    core.ANSWER_LIMIT_S = ANSWER_LIMIT_S
    send.send(judge())
