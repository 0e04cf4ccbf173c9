"""The seats' codes: made once, printed on a page to cut up, and kept hashed."""

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

import jinja2

from labkit.room import protocol
from labkit.room.board.store import new_code
from labkit.system import files

FILE = "codes.json"
LENGTH = 8  # of 31 letters: 40 bits


def make(folder: Path, seats: tuple[str, ...]) -> dict[str, str]:
    """Return a new code for each seat, and keep their hashes in a hub's folder."""
    codes = {seat: new_code(LENGTH) for seat in seats}
    kept = {}
    for seat, code in codes.items():
        salt = secrets.token_bytes(16)
        kept[seat] = [salt.hex(), _hash(code, salt).hex()]
    files.write(folder / FILE, json.dumps(kept))
    return codes


def read(folder: Path) -> dict[str, list[str]]:
    """Return the salt and the hash of each seat's code."""
    return json.loads((folder / FILE).read_text())


def fits(kept: Mapping[str, list[str]], seat: str, code: str) -> bool:
    """Whether it is this seat's code, in a time that tells nothing of the seat or the code."""
    salt, known = kept.get(seat, [secrets.token_hex(16), secrets.token_hex(32)])
    given = _hash(protocol.plain_code(code), bytes.fromhex(salt))
    return hmac.compare_digest(given, bytes.fromhex(known))


def page(url: str, codes: Mapping[str, str]) -> str:
    """Return a page to print and cut up: on each card the address, a seat and its code."""
    template = Path(__file__).with_name("cards.html").read_text()
    grouped = {seat: f"{code[: LENGTH // 2]}-{code[LENGTH // 2 :]}" for seat, code in codes.items()}
    return jinja2.Environment(autoescape=True).from_string(template).render(url=url, codes=grouped)


def _hash(code: str, salt: bytes) -> bytes:
    return hashlib.scrypt(code.encode(errors="replace"), salt=salt, n=1 << 12, r=8, p=1, dklen=32)
