"""What answers print on ranks, many of them in one launch: an import alone takes seconds on each rank (`batch.py`).

A module whose checks start ranks has a fixture `launched`, which is `printed` of its cases, and makes a `student` here.
"""

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

import pytest
from labs import Student

from labkit.exercises import answers, ranks
from labkit.mpi.launch import RankError, Run, run_ranks

BATCH = Path(__file__).with_name("batch.py")
TIMEOUT_S = 900

Printed = dict[str, list[list[str]]]  # by script, a list of lines for each rank
Launch = tuple[int, Path, list[str]]  # ranks, folder, words behind `python`


class _Asked(BaseException):
    """What a check is about to run; no handler of the check's catches it."""


def printed(
    request: pytest.FixtureRequest,
    folder: Path,
    make_student: Callable[[Path], Student],
    exercises: Set[int],
    more: Mapping[str, Launch] | None = None,
) -> Printed:
    """Return what the answers of all cases print that are about to be tested, by the text of each.

    Parameters
    ----------
    request, folder
        Pytest's request for the fixture, of whose module the cases are; and an empty folder.
    make_student : callable
        Makes a student in a folder, which is the current one.
    exercises : set of int
        The exercises that run on ranks.
    more : mapping, optional
        Further scripts by names of their own.
    """
    wanted = dict(more or {})
    for item in request.session.items:
        case = getattr(item, "callspec", None)
        if not case or item.module is not request.module or case.params.get("exercise") not in exercises:
            continue
        if (edit := case.params.get("edit")) is None:
            continue
        own = folder / f"case {len(wanted)}"
        own.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(own)
            student = make_student(own)
            answer = Path(student.answer(case.params["exercise"], edit)).resolve()
            if (text := answer.read_text()) not in wanted and (
                launch := _asked(student, case.params["exercise"], answer)
            ):
                wanted[text] = (launch[0], own, launch[1])
    return _run(wanted, folder)


def student(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    make_student: Callable[[Path], Student],
) -> Student:
    """Return a student in a folder, whose checks get what the fixture `launched` has of their answers."""
    monkeypatch.chdir(folder)
    if "edit" in request.fixturenames:
        monkeypatch.setattr(answers, "run_ranks", _replayed(lambda: request.getfixturevalue("launched")))
    return make_student(folder)


def _replayed(made: Callable[[], Printed]) -> Callable[..., Run]:
    """Return a launch that prints what `made` has of an answer; other answers are run."""

    def run(n: int, probe: Path, *words: object, **options: Any) -> Run:
        script = next(word for word in map(str, words) if word.endswith(".py"))
        lines = made().get(Path(script).read_text())
        if lines is None:
            return run_ranks(n, probe, *words, **options)
        for rank, own in enumerate(lines):
            if _failed(own):
                raise RankError(f"Rank {rank} failed.", tuple(own), rank)
        return Run("mpirun", tuple(map(tuple, lines)), 0.0, 1, True, "", ())

    return run


def _asked(student: Student, exercise: int, answer: Path) -> tuple[int, list[str]] | None:
    """Return how many ranks the check of an answer starts, and with which words; None when it starts none."""

    def run(n: int, *words: object, **options: Any) -> Run:
        raise _Asked(n, [*map(str, words)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "run_ranks", run)
        try:
            student.check(exercise, str(answer))
        except _Asked as asked:
            return asked.args[0], asked.args[1]
    return None


def _run(wanted: Mapping[str, Launch], folder: Path) -> Printed:
    """Run all scripts, those on as many ranks in one launch; one that not all ranks are through with ends a launch."""
    by_ranks: dict[int, list[str]] = defaultdict(list)
    for key, (n, *_) in wanted.items():
        by_ranks[n].append(key)
    found: Printed = {}
    for n, left in by_ranks.items():
        while left:
            out = folder / f"{len(left)} on {n} ranks"
            out.mkdir()
            listed = out / "list.json"
            listed.write_text(json.dumps([(str(wanted[key][1]), wanted[key][2]) for key in left]))
            with contextlib.suppress(RankError):  # told by the script's own lines
                run_ranks(n, BATCH, listed, out, threads=1, show=False, timeout=TIMEOUT_S)
            through = sum((out / f"{number}-done").exists() for number in range(len(left)))
            for number, key in enumerate(left[: through + 1]):
                lines = _lines(out, number, n)
                if number < through or any(map(_failed, lines)):  # what ends otherwise is run by itself
                    found[key] = lines
            left = left[through + 1 :]
    assert found, f"nothing has run: see {folder}"
    return found


def _lines(out: Path, number: int, n: int) -> list[list[str]]:
    files = [out / f"{number}-{rank}" for rank in range(n)]
    return [file.read_text(errors="replace").splitlines() if file.exists() else [] for file in files]


def _failed(lines: list[str]) -> bool:
    return any(line.startswith(ranks.FAILED) for line in lines)
