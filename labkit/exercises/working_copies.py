"""The student's own copies of the labs, in a folder that git ignores.

An update of the kit changes tracked files alone, so it never meets a student's work. A copy that was edited is kept;
one that was not is refreshed when the lab has changed. To tell them apart, the folder holds the hash of each copy as it
was made, in `.lab-copies.json`.
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
GLOSSARY = paths.ROOT / "docs" / "glossary.md"
AGENTS = paths.ENV / "AGENTS.md"  # what coding assistants read in the folder in which they work
OTHER_FOLDER = "name a folder of your own with --folder, or in the variable LAB_FOLDER"


@dataclass(frozen=True)
class Update:
    """What became of the copies in a folder.

    Attributes
    ----------
    refreshed : tuple of str
        The labs, such as "07", whose copy was not edited and is now the new version.
    outdated : tuple of str
        The labs whose copy was edited and kept, although the lab has a new version.
    """

    refreshed: tuple[str, ...]
    outdated: tuple[str, ...]


def copy_path(lab: LabInfo, folder: Path) -> Path:
    """Return where a lab's copy belongs."""
    return folder / lab.notebook.name


def fresh(lab: LabInfo) -> str:
    """Return a new copy of a lab."""
    return as_copy(lab.notebook.read_text(encoding="utf-8"))


def as_copy(notebook: str) -> str:
    """Return the text of a student's notebook: it names the labs' kernel, and its links lead to the glossary's copy.

    JupyterLab opens no file above the folder that it was started in. Without `language_info`, it asks for a kernel when
    the labs' own is not registered, and doesn't take another for Python.
    """
    content = json.loads(notebook.replace("](../docs/glossary.md", f"]({GLOSSARY.name}"))
    content["metadata"]["kernelspec"] = kernels.KERNEL
    content["metadata"].pop("language_info", None)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def update(folder: Path, labs: Sequence[str] | None = None) -> Update:
    """Copy labs, the glossary they link to, and the rules for coding assistants into a folder; keep what was edited.

    A link there leads to the kit's commands. Rules for assistants are copied where the kit has some, `AGENTS`.

    Parameters
    ----------
    folder : Path
        The student's own.
    labs : sequence of str, optional
        The numbers of those that are copied; all by default. Copies of others that are there are kept up to date.

    Raises
    ------
    NotWritten
        When a copy can't be written; every copy is whole, new or old.
    LabError
        When the folder is the kit's own.
    """
    with _changing(folder):
        made = _read_record(folder)
        record = dict(made)
        refreshed, outdated = [], []
        for beside in filter(Path.exists, (GLOSSARY, AGENTS)):
            _copy(beside.read_text(encoding="utf-8"), folder / beside.name, record)
        for lab in catalogue.labs():
            path = copy_path(lab, folder)
            if labs is not None and lab.number not in labs and not path.exists():
                continue
            text = fresh(lab)
            if not _copy(text, path, record) and made.get(path.name) != _fingerprint(text.encode()):
                outdated.append(lab.number)
            elif path.name in made and record[path.name] != made[path.name]:
                refreshed.append(lab.number)
        _write_record(folder, record)
    _link_front_door(folder)
    return Update(tuple(refreshed), tuple(outdated))


def reset(lab: LabInfo, folder: Path, text: str | None = None) -> Path | None:
    """Put a fresh copy of a lab in place, or another text of it.

    Returns
    -------
    Path or None
        Where the student's own is kept, numbered; None when there was none or it was still fresh.
    """
    with _changing(folder):
        path, record = copy_path(lab, folder), _read_record(folder)
        text = fresh(lab) if text is None else text
        kept = None
        if path.exists() and _fingerprint(own := files.read(path, math.inf)) != _fingerprint(text.encode()):
            kept = next(
                free for number in count(1) if not (free := path.with_suffix(f".backup-{number}.ipynb")).exists()
            )
            files.write(kept, own)  # a copy, so that the student's own stays in place should this end here
        files.write(path, text, OTHER_FOLDER)
        record[path.name] = _fingerprint(fresh(lab).encode())  # another text counts as edited, and is kept
        _write_record(folder, record)
    return kept


@contextlib.contextmanager
def _changing(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other commands from changing its copies during the block."""
    if Path(os.path.realpath(folder)) in (paths.NOTEBOOKS, paths.SOLUTIONS):
        raise LabError(f"{paths.shown(folder)} is the kit's own folder, which git tracks: {OTHER_FOLDER}.")
    with files.writing(folder, OTHER_FOLDER):
        folder.mkdir(parents=True, exist_ok=True)
    with locks.locked(folder / RECORD):
        yield


def _link_front_door(folder: Path) -> None:
    """Let `./lab` work in a terminal in the folder too; a file of that name is left alone."""
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
    """Write a copy where there is none, or one that was not edited, and record it; return whether it is fresh now."""
    content = text.encode()
    before, after = _fingerprint(files.read(path, math.inf)) if path.exists() else None, _fingerprint(content)
    if before not in (None, after, record.get(path.name)):
        return False
    if before != after:
        files.write(path, content, OTHER_FOLDER)
    record[path.name] = after
    return True


def _fingerprint(content: bytes) -> str:
    """Return a hash of a copy; of a notebook, of its cells alone, since JupyterLab adds metadata when it opens one."""
    try:
        parts = [
            [cell["cell_type"], "".join(cell["source"]), cell["metadata"], cell.get("outputs")]
            for cell in json.loads(content)["cells"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):  # no notebook, or a damaged one
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _read_record(folder: Path) -> dict[str, str]:
    """Return the hash of each copy as it was made, by file name; what is damaged counts as edited."""
    try:
        record = files.read_json(folder / RECORD)
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _write_record(folder: Path, record: dict[str, str]) -> None:
    if record != _read_record(folder):
        files.write(folder / RECORD, json.dumps(record, indent=1, sort_keys=True), OTHER_FOLDER)
