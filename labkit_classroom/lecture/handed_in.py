"""What a student hands in: one zip with the labs' results and the doctor's verdict, and nothing else.

A zip that comes from somebody else is read in memory, within bounds, and only by the names that `write` gives: nothing
of it is written anywhere.
"""

import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labkit.display.results import WORK, find_problem, read
from labkit.system import files, paths
from labkit.system.errors import LabError

DOCTOR = "doctor.json"
RESULTS = "work/results-[0-9][0-9].json"
NAME = re.compile(r"work/results-\d\d\.json|doctor\.json", re.ASCII)
OF_STUDENT = re.compile(r"(.+?)[-_. ]+results\b.*")  # a browser adds " (1)" to a second one's name
MAX_ZIP_BYTES = 32 * 2**20
MAX_BYTES = files.MAX_BYTES  # of all that is in a zip
MAX_FILES = 100
KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def write(folder: Path, name: str, examine: Callable[[], Mapping[str, Any]]) -> tuple[Path, list[str]]:
    """Write a student's zip into their folder.

    Parameters
    ----------
    folder : Path
        The student's own.
    name : str
        By which the instructor knows them.
    examine : callable
        Returns the doctor's report, as `lab doctor --json` prints it.

    Returns
    -------
    Path, list of str
        The zip, and the names of what is in it. A file that is not what a lab writes is left out.

    Raises
    ------
    LabError
        When there are no results, or the name can't be a file's.
    """
    if not re.fullmatch(r"\w[\w .@+-]{0,99}", name):
        raise LabError(f"a name has letters, digits, blanks and . @ + - _: not {name!r:.80}. Give yours with --name.")
    entries = {str(file.relative_to(folder)): file.read_bytes() for file in _results(folder)}
    if not entries:
        raise LabError(f"no lab has left results in {paths.shown(folder / WORK)}: do an exercise, or name --folder.")
    entries[DOCTOR] = json.dumps(examine(), indent=1).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry, text in entries.items():
            packed.writestr(entry, text)
    out = folder / f"{name}-results.zip"
    files.write(out, content.getvalue())
    return out, list(entries)


def _results(folder: Path) -> list[Path]:
    """Return the results in a student's folder that can be read."""

    def is_sound(file: Path) -> bool:
        try:
            return not find_problem(read(file))
        except (OSError, ValueError):
            return False

    return [file for file in sorted(folder.glob(RESULTS)) if is_sound(file)]


def student(file: Path) -> str:
    """Return whose a zip is, by its name."""
    found = OF_STUDENT.fullmatch(file.stem)
    return found[1] if found else file.stem


def documents(file: Path) -> dict[str, bytes]:
    """Return what is in a student's zip, by the names that `write` gives; all else in it is not read.

    Raises
    ------
    OSError
        When it can't be read, or has more than `MAX_ZIP_BYTES`.
    ValueError
        When it is no zip, a damaged one, or has more than `MAX_FILES` files, or `MAX_BYTES` in those that are read.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(files.read(file, MAX_ZIP_BYTES))) as packed:
            entries = [entry for entry in packed.infolist() if NAME.fullmatch(entry.filename)]
            if len(packed.infolist()) > MAX_FILES or any(entry.compress_type not in KINDS for entry in entries):
                raise ValueError("it is not what ./lab class --zip makes")
            found, left = {}, MAX_BYTES
            for entry in entries:
                with packed.open(entry) as one:
                    found[entry.filename] = one.read(left + 1)  # whatever size it claims
                left -= len(found[entry.filename])
                if left < 0:
                    raise ValueError("it has too much")
            return found
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error  # RuntimeError: it takes a password
