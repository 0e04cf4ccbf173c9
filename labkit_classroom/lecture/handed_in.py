"""The zip that a student hands in: the labs' results and the doctor's verdict, nothing else."""

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

NAME = re.compile(r"work/results-\d\d\.json|doctor\.json", re.ASCII)
MAX_ZIP_BYTES = 32 * 2**20
METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # the others can't be unpacked in bounded memory


def write(folder: Path, name: str, examine: Callable[[], Mapping[str, Any]]) -> tuple[Path, list[str]]:
    """Write a student's zip into their folder; return its path and the names of the files in it.

    Parameters
    ----------
    folder : Path
        The student's folder. Invalid results files are left out.
    name : str
        The student's name for the instructor.
    examine : callable
        Returns the doctor's report, as `lab doctor --json` prints it.

    Raises
    ------
    LabError
        If there are no results, or the name can't be used for a file.
    """
    if not re.fullmatch(r"\w[\w .@+-]{0,99}", name):
        raise LabError(f"a name may contain letters, digits, blanks and . @ + - _, not {name!r:.80}. Use --name.")
    results = sorted(file for file in folder.glob("work/results-[0-9][0-9].json") if _is_valid(file))
    if not results:
        raise LabError(f"there are no results in {paths.shown(folder / WORK)}: do an exercise first, or set --folder.")
    entries = {str(file.relative_to(folder)): file.read_bytes() for file in results}
    entries["doctor.json"] = json.dumps(examine(), indent=1).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, text in entries.items():
            archive.writestr(entry, text)
    out = folder / f"{name}-results.zip"
    files.write(out, content.getvalue())
    return out, list(entries)


def _is_valid(file: Path) -> bool:
    try:
        return not find_problem(read(file))
    except (OSError, ValueError):
        return False


def documents(file: Path) -> dict[str, bytes]:
    """Return the files that `write` puts into a student's zip, by name; nothing else in it is read.

    Raises
    ------
    OSError
        If it can't be read, or is too large.
    ValueError
        If it is damaged, contains none of these files, or unpacks to more than `files.MAX_BYTES`, whatever size it
        claims.
    """
    contents: dict[str, bytes] = {}
    left = files.MAX_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(files.read(file, MAX_ZIP_BYTES))) as archive:
            entries = [entry for entry in archive.infolist() if NAME.fullmatch(entry.filename)]
            if not entries or any(entry.compress_type not in METHODS for entry in entries):
                raise ValueError("it is not from ./lab class --zip")
            for entry in entries:
                with archive.open(entry) as file_inside:
                    contents[entry.filename] = file_inside.read(left + 1)
                left -= len(contents[entry.filename])
                if left < 0:
                    raise ValueError(f"it unpacks to more than {files.MAX_BYTES} bytes")
            return contents
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error  # RuntimeError: it needs a password
