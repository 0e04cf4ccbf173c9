"""What a student hands in: one zip with the labs' results and the doctor's verdict, and nothing else."""

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


def write(folder: Path, name: str, examine: Callable[[], Mapping[str, Any]]) -> tuple[Path, list[str]]:
    """Write a student's zip into their folder; return it, and the names of the files in it.

    Parameters
    ----------
    folder : Path
        The student's own. A file there that is not what a lab writes is left out.
    name : str
        The name by which the instructor knows them.
    examine : callable
        Returns the doctor's report, as `lab doctor --json` prints it.

    Raises
    ------
    LabError
        When there are no results, or the name can't be a file's.
    """
    if not re.fullmatch(r"\w[\w .@+-]{0,99}", name):
        raise LabError(f"a name has letters, digits, blanks and . @ + - _: not {name!r:.80}. Give yours with --name.")
    results = sorted(file for file in folder.glob("work/results-[0-9][0-9].json") if _is_sound(file))
    if not results:
        raise LabError(f"no lab has left results in {paths.shown(folder / WORK)}: do an exercise, or name --folder.")
    entries = {str(file.relative_to(folder)): file.read_bytes() for file in results}
    entries["doctor.json"] = json.dumps(examine(), indent=1).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry, text in entries.items():
            packed.writestr(entry, text)
    out = folder / f"{name}-results.zip"
    files.write(out, content.getvalue())
    return out, list(entries)


def _is_sound(file: Path) -> bool:
    try:
        return not find_problem(read(file))
    except (OSError, ValueError):
        return False


def documents(file: Path) -> dict[str, bytes]:
    """Return the files in a student's zip, by the names that `write` gives; nothing else in it is read.

    Raises
    ------
    OSError
        When it can't be read, or is too large.
    ValueError
        When it is damaged, has none of these files, or they unpack to more than `files.MAX_BYTES`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(files.read(file, MAX_ZIP_BYTES))) as packed:
            entries = [entry for entry in packed.infolist() if NAME.fullmatch(entry.filename)]
            if not entries or sum(entry.file_size for entry in entries) > files.MAX_BYTES:
                raise ValueError("it is not what ./lab class --zip makes")
            return {entry.filename: packed.read(entry) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error  # RuntimeError: it takes a password
