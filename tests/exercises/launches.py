"""Run many answers on ranks in one launch, because imports alone take seconds on each rank (`batch.py`).

The fixtures `outputs` and `student` (conftest.py) use `run_all` and `student`.
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

from labkit.exercises.engine import answers
from labkit.exercises.ranks import runner
from labkit.mpi.failure import RankError
from labkit.mpi.launch import Run, run_ranks
from labkit_author.mistakes import Change

BATCH = Path(__file__).with_name("batch.py")
TIMEOUT_S = 900


class Launch(NamedTuple):
    """A launch that a check requests: ranks, folder, the arguments of `python`."""

    ranks: int
    folder: Path
    args: list[str]


class _LaunchNeeded(BaseException):
    """Raised with the launch that a check requests; the check itself never catches it."""


Key = tuple[int, tuple[str, ...]] | str  # ranks and arguments, with a script's text for its path; or a name
Outputs = dict[Key, list[list[str]] | None]  # each rank's lines; None if the answer needs a separate launch


def run_all(request: pytest.FixtureRequest, folder: Path, more: Mapping[Key, Launch] | None = None) -> Outputs:
    """Return the outputs of the answers that the module's selected tests run on ranks, and of `more` launches."""
    lab = request.module.TestExercises
    cases = [
        (folder / f"case {number}", lab, case)
        for number, item in enumerate(request.session.items)
        if getattr(item, "module", None) is request.module and (case := case_of(item)).get("exercise") in lab.on_ranks
    ]
    outputs: Outputs = {}
    pending = dict(more or {})
    while True:  # a check may request a second launch after the first
        for case in cases:
            pending |= _next_launch(*case, outputs)
        if not pending:
            return outputs
        outputs |= _run(pending, folder)
        pending = {}


def case_of(item: pytest.Item) -> Mapping[str, Any]:
    """Return a test's parameters if its answer is a solution or a changed one, else none."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params if {"mistake", "right"} & params.keys() else {}


@contextlib.contextmanager
def student(lab: type[ThreeWays], folder: Path, run: Callable[..., Run]) -> Iterator[Student]:
    """Make a student of a lab in a folder, whose checks launch with `run`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(answers, "run_ranks", run)
        yield lab.make_student(folder)


def replay(outputs: Outputs) -> Callable[..., Run]:
    """Return a replacement for `run_ranks` that replays stored outputs, and runs other answers."""

    def run(n: int, *args: object, **options: Any) -> Run:
        lines = outputs.get(_key(n, args))
        return run_ranks(n, *args, **options) if lines is None else _as_run(lines)

    return run


def _next_launch(folder: Path, lab: type[ThreeWays], case: Mapping[str, Any], outputs: Outputs) -> dict[Key, Launch]:
    """Return the next launch that a case's check requests, unless it has already run."""

    def run(n: int, *args: object, **options: Any) -> Run:
        key = _key(n, args)
        if lines := outputs.get(key):
            return _as_run(lines)
        script = next(path for path in map(Path, map(str, args[1:])) if path.suffix == ".py")
        raise _LaunchNeeded(key, Launch(n, folder, [*map(str, args)]), script.resolve(), script.read_text())

    folder.mkdir(exist_ok=True)
    change: Change | None = case.get("mistake", case.get("right"))
    with student(lab, folder, run) as learner:
        try:
            learner.check(case["exercise"], learner.answer(case["exercise"], change))
        except _LaunchNeeded as request:
            key, launch, script, text = request.args
            script.write_text(text)  # the check may have removed it
            return {} if key in outputs else {key: launch}
    return {}


def _key(n: int, args: tuple[object, ...]) -> Key:
    probe, *others = map(str, args)
    return n, (probe, *(Path(arg).read_text() if arg.endswith(".py") else arg for arg in others))


def _as_run(lines: list[list[str]]) -> Run:
    for rank, rank_lines in enumerate(lines):
        if _failed(rank_lines):
            raise RankError(f"Rank {rank} failed.", tuple(rank_lines), rank)
    return Run(tuple(map(tuple, lines)))


def _run(launches: Mapping[Key, Launch], folder: Path) -> Outputs:
    """Run all scripts, one launch per number of ranks; after a script that doesn't finish, start another launch."""
    by_ranks: dict[int, list[Key]] = defaultdict(list)
    for key, launch in launches.items():
        by_ranks[launch.ranks].append(key)
    outputs: Outputs = {}
    for n, keys in by_ranks.items():
        while keys:
            out = Path(tempfile.mkdtemp(prefix=f"{len(keys)} on {n} ranks ", dir=folder))
            list_file = out / "list.json"
            list_file.write_text(json.dumps([(str(launches[key].folder), launches[key].args) for key in keys]))
            with contextlib.suppress(RankError):  # the script's lines report it
                run_ranks(n, BATCH, list_file, out, threads=1, show=False, timeout=TIMEOUT_S)
            finished = sum((out / f"{number}-done").exists() for number in range(len(keys)))
            for number, key in enumerate(keys[: finished + 1]):
                lines = _lines(out, number, n)
                outputs[key] = lines if number < finished or any(map(_failed, lines)) else None
            keys = keys[finished + 1 :]
    assert any(outputs.values()), f"nothing ran: see {folder}"
    return outputs


def _lines(out: Path, number: int, n: int) -> list[list[str]]:
    files = [out / f"{number}-{rank}" for rank in range(n)]
    return [file.read_text(errors="replace").splitlines() if file.exists() else [] for file in files]


def _failed(lines: list[str]) -> bool:
    return any(line.startswith(runner.FAILED) for line in lines)
