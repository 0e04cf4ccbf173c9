"""Execute labs, and store their outputs or what they record, if nothing in their outputs is unfit for it."""

import html
import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from labkit.display.results import describe_machine
from labkit.display.speedups import STEPS
from labkit.measure import recordings
from labkit.system import files, lacks, paths
from labkit.system.errors import LabError
from labkit.system.words import plural
from labkit_author import build, sources
from labkit_author.execution import execute
from labkit_author.notebooks import dumps

EXECUTED = paths.STATE / "executed"  # executed notebooks until all are stored, and results of runs before a session
DRAFT = "draft "  # prefix of the session of a lab that was stored without the others
PNG = re.compile(r"data:image/png;base64,[\w+/=]+")
MARK = re.compile(r"⚠ [^\n]*?(busy|meanwhile|not valid)", re.I)  # written by `labkit.system.load`
DOCTOR = re.compile(r"^(?:warn|fail)\s+(?!data )(\S+)", re.M)  # without MNIST, the labs use their own digits
LADDER = re.compile(r"Not taken yet: ([^\"]+)")  # in the alternative text of `labkit.display.ladder`


def store(chosen: Sequence[Path], on_lab: Callable[[str], None] = print) -> list[Path]:
    """Execute all labs in one session and store all or none; a selection of labs is stored as drafts, one by one.

    A session of all labs starts with an empty `solutions/work`, so the ladder has only its steps. A session that
    stopped at a lab resumes there, unless the machine has rebooted.

    Parameters
    ----------
    chosen : sequence of Path
        The sources.
    on_lab : callable
        Called with the name of each lab when it starts.

    Returns
    -------
    list of Path
        The notebooks that were written.

    Raises
    ------
    LabError
        If a lab fails, or an output is unfit to be stored; the executed notebooks are kept for reading.
    """
    if missing := lacks.simulated():
        raise LabError(f"a run without {', '.join(missing)} is not stored: unset {lacks.VARIABLE}.")
    draft = list(chosen) != sources.labs()
    session, done = _session([] if draft else chosen)
    with files.writing(EXECUTED):
        EXECUTED.mkdir(parents=True, exist_ok=True)
    if not draft and not done:
        _set_aside(paths.SOLUTIONS / "work")
    for source in chosen[done:]:
        on_lab(source.stem)
        subject = f"{source.stem} was not" if draft else "No lab was"
        consequence = f"{subject} stored; executed notebooks: {paths.shown(EXECUTED)}"
        try:
            executed = execute(build.solution(source), name=f"{source.stem}-solution", cwd=paths.SOLUTIONS)
        except LabError as error:
            raise LabError(f"{error}. {consequence}") from error
        executed.metadata |= {build.KEY: build.key(source), build.SESSION: f"{DRAFT if draft else ''}{session}"}
        files.write(EXECUTED / f"{source.stem}.ipynb", dumps(executed))
        if reasons := problems(executed, source.stem[:2], draft):
            raise LabError(f"lab {source.stem[:2]}, {'; '.join(reasons)}. {consequence}")
        if draft:
            _store(source)
    if not draft:
        for source in chosen:
            _store(source)
    return [build.solution_path(source) for source in chosen]


def record(source: Path) -> list[Path]:
    """Run a lab's solution, and write what it records to `data/recorded`, with machine, date and commit.

    Raises
    ------
    LabError
        If the lab fails, records nothing, or has an output that is unfit to be stored.
    """
    if missing := lacks.simulated():
        raise LabError(f"a run without {', '.join(missing)} is not recorded: unset {lacks.VARIABLE}.")
    number, machine = source.stem[:2], describe_machine()
    if not shutil.which("git"):
        raise LabError("a recording names the kit's commit: install git.")
    command = ["git", "-C", str(paths.ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout.strip()
    label = {
        "machine": f"{machine['cpu']}, {plural(int(machine['cores']), 'core')}",
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ[recordings.VARIABLE] = folder
        try:
            executed = execute(build.solution(source), name=f"{source.stem}-recording", cwd=paths.SOLUTIONS)
        finally:
            del os.environ[recordings.VARIABLE]
        if reasons := problems(executed, number, draft=True):
            raise LabError(f"lab {number}, {'; '.join(reasons)}. Nothing was recorded.")
        values = {file.name: files.read_json(file) for file in sorted(Path(folder).glob(f"{number}-*.json"))}
    if not values:
        raise LabError(f'lab {number} records nothing: call labkit.measure.record("{number}-…", figures, QUICK) in it.')
    target = paths.DATA / "recorded"
    with files.writing(target):
        target.mkdir(exist_ok=True)
    for name, value in values.items():
        files.write(target / name, json.dumps(label | value, indent=1) + "\n")
    return [target / name for name in values]


def _session(chosen: Sequence[Path]) -> tuple[str, int]:
    """Return the name of a session of all labs, and the number of labs done: more than 0 when a session resumes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")[:8]
    session, done = f"{time.strftime('%Y-%m-%d %H:%M')} {boot}", 0
    for source in chosen:
        path = EXECUTED / f"{source.stem}.ipynb"
        if not path.exists():
            break
        notebook = nbformat.read(path, as_version=4)
        earlier = notebook.metadata.get(build.SESSION, DRAFT)
        if earlier.startswith(DRAFT) or not earlier.endswith(boot) or (done and earlier != session):
            break
        if notebook.metadata[build.KEY] != build.key(source) or problems(notebook, source.stem[:2]):
            break
        session, done = earlier, done + 1
    return session, done


def _store(source: Path) -> None:
    executed = EXECUTED / f"{source.stem}.ipynb"
    files.write(build.solution_path(source), executed.read_text(encoding="utf-8"))
    executed.unlink()


def problems(notebook: NotebookNode, lab: str, draft: bool = False) -> list[str]:
    """Return the reasons not to store an executed notebook, as lines `cell 7: problem`.

    Parameters
    ----------
    notebook : NotebookNode
        The executed notebook.
    lab : str
        The lab's number: its ladder must have the steps of all earlier labs.
    draft : bool
        Whether other labs' steps may be missing.
    """
    return [
        f"cell {index}: {problem}"
        for index, cell in enumerate(notebook.cells)
        if cell.cell_type == "code"
        for problem in _problems(cell, lab, draft)
    ]


def _problems(cell: NotebookNode, lab: str, draft: bool) -> Iterator[str]:
    text = html.unescape("\n".join(PNG.sub("", part) for output in cell.outputs for part in _texts(output)))
    if marked := MARK.search(text):
        yield f"the output is marked: {marked[0]} …"
    homes = {os.environ.get("HOME", ""), pwd.getpwuid(os.getuid()).pw_dir} - {"", "/"}
    for folder in (str(paths.ROOT), *(f"{home}/" for home in homes)):
        if folder in text:
            yield f"the output names a folder of this machine, {folder}"
    if "examine(" in cell.source:
        yield from (f"the doctor warns about this machine: {name}" for name in DOCTOR.findall(text))
    to_come = " ".join(LADDER.findall(text))
    if not draft and (
        missing := sorted({step.lab for step in STEPS.values() if step.lab < lab and step.what in to_come})
    ):
        yield f"the ladder lacks steps of lab {', '.join(missing)}"


def _texts(node: Any) -> Iterator[str]:
    """Yield all texts of an output, except for pictures."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for key, value in node.items():
            if not (key == "image/png" and isinstance(value, str)):
                yield from _texts(value)
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value)


def _set_aside(work: Path) -> None:
    """Move the results of earlier runs out of the way, replacing those moved before."""
    if work.exists():
        aside = EXECUTED / "work"
        with files.writing(aside):
            shutil.rmtree(aside, ignore_errors=True)
            shutil.move(work, aside)
