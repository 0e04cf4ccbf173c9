"""The student's copies of the labs, in a folder that git ignores.

An update of the kit changes only tracked files, so it never touches a student's work. An edited copy is kept; an
unedited one is refreshed when the lab changes. To tell them apart, `.lab-copies.json` in the folder stores the hash of
each copy as it was made.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from labkit.exercises import catalogue
from labkit.exercises.catalogue import LabInfo
from labkit.system import files, kernels, locks, paths
from labkit.system.errors import LabError

RECORD = paths.COPIES_RECORD
FRONT_DOOR = paths.ROOT / "lab"
GLOSSARY = paths.ROOT / "docs" / "learn" / "glossary.md"
AGENTS = paths.ENV / "AGENTS.md"  # read by coding assistants in their working folder
OTHER_FOLDER = "choose a folder of your own with --folder or the variable LAB_FOLDER"


@dataclass(frozen=True)
class Update:
    """The result of updating the copies in a folder.

    Attributes
    ----------
    refreshed : tuple of str
        The labs, such as "07", whose unedited copy was replaced by the new version.
    outdated : tuple of str
        The labs whose edited copy was kept, although the lab has a new version.
    """

    refreshed: tuple[str, ...]
    outdated: tuple[str, ...]


def copy_path(lab: LabInfo, folder: Path) -> Path:
    """Return the path of a lab's copy."""
    return folder / lab.notebook.name


def fresh(lab: LabInfo) -> str:
    """Return a new copy of a lab."""
    return as_copy(lab.notebook.read_text(encoding="utf-8"))


def as_copy(notebook: str) -> str:
    """Return the text of a student's notebook, which names the labs' kernel and links to the copied glossary.

    JupyterLab can't open files above the folder it was started in. Without `language_info`, it asks for a kernel if the
    labs' kernel is not registered, rather than using another one for Python.
    """
    content = json.loads(notebook.replace("](../docs/learn/glossary.md", f"]({GLOSSARY.name}"))
    content["metadata"]["kernelspec"] = kernels.KERNEL
    content["metadata"].pop("language_info", None)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def update(folder: Path, labs: Sequence[str] | None = None) -> Update:
    """Copy labs, the glossary they link to, and the rules for coding assistants into a folder; keep edited files.

    The folder also gets a link to the kit's `lab` command. The rules are copied if the kit has any (`AGENTS`).

    Parameters
    ----------
    folder : Path
        The student's folder.
    labs : sequence of str, optional
        The numbers of the labs to copy; all by default. Existing copies of other labs are kept up to date.

    Raises
    ------
    NotWritten
        If a copy can't be written; every copy is complete, new or old.
    LabError
        If the folder is the kit's own.
    """
    with _changing(folder):
        previous = _read_record(folder)
        record = dict(previous)
        refreshed, outdated = [], []
        for document in filter(Path.exists, (GLOSSARY, AGENTS)):
            _copy(document.read_text(encoding="utf-8"), folder / document.name, record)
        for lab in catalogue.labs():
            path = copy_path(lab, folder)
            if labs is not None and lab.number not in labs and not path.exists():
                continue
            text = fresh(lab)
            if not _copy(text, path, record) and previous.get(path.name) != _fingerprint(text.encode()):
                outdated.append(lab.number)
            elif path.name in previous and record[path.name] != previous[path.name]:
                refreshed.append(lab.number)
        _write_record(folder, record)
    _link_front_door(folder)
    return Update(tuple(refreshed), tuple(outdated))


def reset(lab: LabInfo, folder: Path, text: str | None = None) -> Path | None:
    """Replace a lab's copy with a fresh one, or with `text`.

    Returns
    -------
    Path or None
        The numbered backup of the student's copy; None if there was no copy or it was still fresh.
    """
    with _changing(folder):
        path, record = copy_path(lab, folder), _read_record(folder)
        text = fresh(lab) if text is None else text
        backup = None
        if path.exists() and _fingerprint(content := files.read(path, math.inf)) != _fingerprint(text.encode()):
            backup = next(
                free for number in count(1) if not (free := path.with_suffix(f".backup-{number}.ipynb")).exists()
            )
            files.write(backup, content)  # not a move: if this is interrupted, the student's copy is still in place
        files.write(path, text, OTHER_FOLDER)
        record[path.name] = _fingerprint(fresh(lab).encode())  # a different `text` counts as edited, and is kept
        _write_record(folder, record)
    return backup


@contextlib.contextmanager
def _changing(folder: Path) -> Iterator[None]:
    """Create the folder, and lock its copies against other commands during the block."""
    if Path(os.path.realpath(folder)) in (paths.NOTEBOOKS, paths.SOLUTIONS):
        raise LabError(f"{paths.shown(folder)} is the kit's own folder, which git tracks: {OTHER_FOLDER}.")
    with files.writing(folder, OTHER_FOLDER):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locks.locked(folder / RECORD):
        yield


def _link_front_door(folder: Path) -> None:
    """Make `./lab` work in a terminal in the folder too, unless a file has that name."""
    link = folder / FRONT_DOOR.name
    if (
        not FRONT_DOOR.exists()
        or (link.exists() and not link.is_symlink())
        or os.path.realpath(folder) == str(paths.ROOT)
    ):
        return
    with contextlib.suppress(OSError):  # a file system without links
        if not link.is_symlink() or link.readlink() != FRONT_DOOR:
            link.unlink(missing_ok=True)
            link.symlink_to(FRONT_DOOR)


def _copy(text: str, path: Path, record: dict[str, str]) -> bool:
    """Write and record a copy, unless there is an edited one; return whether it is now fresh."""
    content = text.encode()
    before, after = _fingerprint(files.read(path, math.inf)) if path.exists() else None, _fingerprint(content)
    if before not in (None, after, record.get(path.name)):
        return False
    if before != after:
        files.write(path, content, OTHER_FOLDER)
    record[path.name] = after
    return True


def _fingerprint(content: bytes) -> str:
    """Return a hash of a copy; for a notebook, of its cells only, since JupyterLab adds metadata on opening."""
    try:
        parts = [
            [cell["cell_type"], "".join(cell["source"]), cell["metadata"], cell.get("outputs")]
            for cell in json.loads(content)["cells"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):  # not a notebook, or a damaged one
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _read_record(folder: Path) -> dict[str, str]:
    """Return the hash of each copy as it was made, by file name; empty if damaged, so that copies count as edited."""
    try:
        record = files.read_json(folder / RECORD)
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _write_record(folder: Path, record: dict[str, str]) -> None:
    if record != _read_record(folder):
        files.write(folder / RECORD, json.dumps(record, indent=1, sort_keys=True), OTHER_FOLDER)
