"""What answers print on ranks, many of them in one launch: an import alone takes seconds on each rank (`batch.py`).

The fixtures `launched` and `student` (conftest.py) are `print_all` and `student` of here.
"""

import contextlib
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from labs import Student, ThreeWays

from labkit.exercises import answers, ranks
from labkit.mpi.launch import RankError, Run, run_ranks
from labkit_author.mistakes import Change

BATCH = Path(__file__).with_name("batch.py")
TIMEOUT_S = 900


class Launch(NamedTuple):
    """A launch that a check wants: ranks, folder, the words behind `python`."""

    ranks: int
    folder: Path
    words: list[str]


class _Wanted(BaseException):
    """Raised with the launch that a check wants; no handler of the check's catches it."""


Key = tuple[int, tuple[str, ...]] | str  # ranks and words, with the text of a script for its path; or a name
Printed = dict[Key, list[list[str]] | None]  # the lines of each rank; None for a launch that has to be made by itself


def print_all(request: pytest.FixtureRequest, folder: Path, more: Mapping[Key, Launch] | None = None) -> Printed:
    """Return what the answers of all cases print that are about to be tested, as far as they run on ranks.

    Parameters
    ----------
    request, folder
        Pytest's request for the fixture, of whose module the cases are; and an empty folder.
    more : mapping, optional
        Further launches, by names of their own.
    """
    lab = request.module.TestExercises
    cases = [
        (folder / f"case {number}", lab, case)
        for number, item in enumerate(request.session.items)
        if getattr(item, "module", None) is request.module and (case := case_of(item)).get("exercise") in lab.on_ranks
    ]
    printed: Printed = {}
    wanted = dict(more or {})
    while True:  # a check may want its second launch when it has seen the first
        for case in cases:
            wanted |= _wanted(*case, printed)
        if not wanted:
            return printed
        printed |= _run(wanted, folder)
        wanted = {}


def case_of(item: pytest.Item) -> Mapping[str, Any]:
    """Return the parameters of a test whose answer is a solution or a change of it; none of another test."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params if {"mistake", "right"} & params.keys() else {}


@contextlib.contextmanager
def student(lab: type[ThreeWays], folder: Path, case: Mapping[str, Any], run: Callable[..., Run]) -> Iterator[Student]:
    """Make a student of a lab in a folder, whose checks launch by `run`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(answers, "run_ranks", run)
        for limit, seconds in lab.limits.items() if "mistake" in case else ():
            patch.setattr(limit, seconds)
        yield lab.make_student(folder)


def replayed(printed: Printed) -> Callable[..., Run]:
    """Return a launch that prints what an answer has printed already; other answers are run."""

    def run(n: int, *words: object, **options: Any) -> Run:
        lines = printed.get(_key(n, words))
        return run_ranks(n, *words, **options) if lines is None else _as_run(lines)

    return run


def _wanted(folder: Path, lab: type[ThreeWays], case: Mapping[str, Any], printed: Printed) -> dict[Key, Launch]:
    """Return the launch that the check of a case wants next, if that is not yet made."""

    def run(n: int, *words: object, **options: Any) -> Run:
        key = _key(n, words)
        if lines := printed.get(key):
            return _as_run(lines)
        script = next(path for path in map(Path, map(str, words[1:])) if path.suffix == ".py")
        raise _Wanted(key, Launch(n, folder, [*map(str, words)]), script.resolve(), script.read_text())

    folder.mkdir(exist_ok=True)
    change: Change | None = case.get("mistake", case.get("right"))
    with student(lab, folder, case, run) as one:
        try:
            one.check(case["exercise"], one.answer(case["exercise"], change))
        except _Wanted as wanted:
            key, launch, script, text = wanted.args
            script.write_text(text)  # which the check may have taken away
            return {} if key in printed else {key: launch}
    return {}


def _key(n: int, words: tuple[object, ...]) -> Key:
    probe, *others = map(str, words)
    return n, (probe, *(Path(word).read_text() if word.endswith(".py") else word for word in others))


def _as_run(lines: list[list[str]]) -> Run:
    for rank, own in enumerate(lines):
        if _failed(own):
            raise RankError(f"Rank {rank} failed.", tuple(own), rank)
    return Run("mpirun", tuple(map(tuple, lines)), 0.0, 1, True, "", ())


def _run(wanted: Mapping[Key, Launch], folder: Path) -> Printed:
    """Run all scripts, those on as many ranks in one launch; one that not all ranks are through with ends a launch."""
    by_ranks: dict[int, list[Key]] = defaultdict(list)
    for key, launch in wanted.items():
        by_ranks[launch.ranks].append(key)
    printed: Printed = {}
    for n, left in by_ranks.items():
        while left:
            out = Path(tempfile.mkdtemp(prefix=f"{len(left)} on {n} ranks ", dir=folder))
            listed = out / "list.json"
            listed.write_text(json.dumps([(str(wanted[key].folder), wanted[key].words) for key in left]))
            with contextlib.suppress(RankError):  # told by the script's own lines
                run_ranks(n, BATCH, listed, out, threads=1, show=False, timeout=TIMEOUT_S)
            through = sum((out / f"{number}-done").exists() for number in range(len(left)))
            for number, key in enumerate(left[: through + 1]):
                lines = _lines(out, number, n)
                printed[key] = lines if number < through or any(map(_failed, lines)) else None
            left = left[through + 1 :]
    assert any(printed.values()), f"nothing has run: see {folder}"
    return printed


def _lines(out: Path, number: int, n: int) -> list[list[str]]:
    files = [out / f"{number}-{rank}" for rank in range(n)]
    return [file.read_text(errors="replace").splitlines() if file.exists() else [] for file in files]


def _failed(lines: list[str]) -> bool:
    return any(line.startswith(ranks.FAILED) for line in lines)
