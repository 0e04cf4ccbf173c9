"""Seats' login codes, and the page of cards to print.

The codes are in `.codes.json` among the students' files, readable by its owner only, so printed cards stay valid for
the next hub with the same files.
"""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import jinja2

from labkit.system import files, paths
from labkit.system.errors import LabError
from labkit_classroom.board import protocol

FILE = ".codes.json"
LENGTH = 8  # letters per code, from an alphabet of 31: 40 bits


def make(students_files: Path, seats: tuple[str, ...]) -> dict[str, str]:
    """Return the codes by seat, with new ones for seats that have none.

    Raises
    ------
    LabError
        If the file can't be read or written, or isn't private.
    """
    file = students_files / FILE
    codes = read(file)
    codes |= {seat: protocol.new_code(LENGTH) for seat in seats if seat not in codes}
    with files.writing(file):
        file.touch(mode=0o600)  # private before anything is written
    files.write(file, json.dumps(codes))
    return {seat: codes[seat] for seat in seats}


def read(file: Path) -> dict[str, str]:
    """Return all codes in a file; empty if it doesn't exist or is empty."""
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise ValueError("other users can read it")
            codes: dict[str, str] = json.loads(opened.read() or "{}")
        if not all(isinstance(code, str) and len(code) == LENGTH for code in codes.values()):
            raise ValueError("it does not contain codes")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise LabError(
            f"the codes in {paths.shown(file)} are unusable ({error}). Delete the file to get new codes and cards."
        ) from error
    return codes


def page(url: str, codes: Mapping[str, str]) -> str:
    """Return a page to print and cut up: one card per seat, with address, seat and code."""
    template = Path(__file__).with_name("cards.html").read_text(encoding="utf-8")
    grouped = {seat: f"{code[: LENGTH // 2]}-{code[LENGTH // 2 :]}" for seat, code in codes.items()}
    return jinja2.Environment(autoescape=True).from_string(template).render(url=url, codes=grouped)
