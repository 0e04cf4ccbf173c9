"""The seats' codes: made once, printed on a page to cut up, and asked for by their hashes."""

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

import jinja2

from labkit.system import files, paths
from labkit.system.errors import LabError
from labkit_classroom.board import protocol

FILE = "codes.json"  # the hashes, in the hub's folder
KEPT = ".codes.json"  # the codes, among the students' files; its owner alone can read it
LENGTH = 8  # letters of a code, out of 31: 40 bits


def make(folder: Path, files_of_students: Path, seats: tuple[str, ...], new: bool = False) -> dict[str, str]:
    """Return a code for each seat, and keep their hashes in a hub's folder.

    The codes themselves are kept among the students' files, so that printed cards are good for the next hub of these.

    Parameters
    ----------
    folder, files_of_students : Path
        Of the hub.
    seats : tuple of str
        Their names.
    new : bool
        Whether all codes are new, and those that are kept are void.
    """
    if new:
        forget(files_of_students)
    before = kept(files_of_students)
    codes = {seat: before.get(seat) or protocol.new_code(LENGTH) for seat in seats}
    with files.writing(files_of_students / KEPT):
        files_of_students.mkdir(parents=True, exist_ok=True)
        (files_of_students / KEPT).touch(mode=0o600)  # before it has anything in it
    files.write(files_of_students / KEPT, json.dumps(before | codes))
    hashes = {}
    for seat, code in codes.items():
        salt = secrets.token_bytes(16)
        hashes[seat] = [salt.hex(), _hash(code, salt).hex()]
    files.write(folder / FILE, json.dumps(hashes))
    return codes


def kept(files_of_students: Path) -> dict[str, str]:
    """Return the codes of the last hub of these files, by seat.

    Raises
    ------
    LabError
        When they can't be read, or are not this user's own.
    """
    file = files_of_students / KEPT
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(opened) as text:
            status = os.fstat(opened)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise ValueError("it is not yours alone")
            codes: dict[str, str] = json.loads(text.read() or "{}")  # empty, where it was killed before it wrote
        if not all(isinstance(code, str) and len(code) == LENGTH for code in codes.values()):
            raise ValueError("it has something else")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise LabError(
            f"the codes in {paths.shown(file)} cannot be used ({error}): --new-codes makes new ones, for new cards."
        ) from error
    return codes


def forget(files_of_students: Path) -> None:
    """Delete the codes that are kept."""
    with files.writing(files_of_students / KEPT):
        (files_of_students / KEPT).unlink(missing_ok=True)


def read(folder: Path) -> dict[str, list[str]]:
    """Return the salt and the hash of each seat's code."""
    digests: dict[str, list[str]] = json.loads((folder / FILE).read_text())
    return digests


def fits(digests: Mapping[str, list[str]], seat: str, code: str) -> bool:
    """Whether a code is this seat's, in a time that tells nothing of the seat or the code."""
    salt, digest = digests.get(seat, [secrets.token_hex(16), secrets.token_hex(32)])
    typed = _hash(protocol.plain_code(code), bytes.fromhex(salt))
    return hmac.compare_digest(typed, bytes.fromhex(digest))


def page(url: str, codes: Mapping[str, str]) -> str:
    """Return a page to print and cut up: on each card the address, a seat and its code."""
    template = Path(__file__).with_name("cards.html").read_text()
    grouped = {seat: f"{code[: LENGTH // 2]}-{code[LENGTH // 2 :]}" for seat, code in codes.items()}
    return jinja2.Environment(autoescape=True).from_string(template).render(url=url, codes=grouped)


def _hash(code: str, salt: bytes) -> bytes:
    return hashlib.scrypt(code.encode(errors="replace"), salt=salt, n=1 << 12, r=8, p=1, dklen=32)
