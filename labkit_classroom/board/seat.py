"""A student's seat in a room: joining, what is sent, raising a hand, leaving. Nothing is sent before somebody joins.

A board is not trusted: `ask` reads its answers, all of them, and takes so much, in so long a time, and nothing odd.
"""

import asyncio
import json
import logging
import os
import re
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import fastjsonschema
from tornado import httpclient, simple_httpclient

from labkit.display.results import NOT_ATTEMPTED, find_problem, name_on_all_machines, read
from labkit.exercises.room import MEMBERSHIP, OPENED
from labkit.system import files, locks, paths
from labkit.system.errors import LabError
from labkit.system.lease import usable_machine
from labkit_classroom.board import protocol
from labkit_classroom.board.background import start_sender

HAND = ".room-hand.json"
RESULTS = "results-[0-9][0-9].json"  # in work/: what the labs leave
CONNECT_S, ANSWER_S = 3.0, 9.0  # to connect, and for all of the answer to come
MAX_SHOWN = 300  # letters of a path, or of an address
MAX_HEADER = 16_384  # bytes of an answer's
TAKEN = (200, 204)  # statuses by which a board takes a state: with an answer, and without
SENT = (
    "Sent are your seat's name, for each exercise that you checked its verdict, hints and minute, the lab that you "
    "opened last, your guesses with the figures that your machine measured beside them, a raised hand, and the "
    "doctor's verdict if you gave --check; nothing else."
)
_TEXT = {"type": "string", "maxLength": 4096}
_KEPT = {
    "address": _TEXT,
    "code": _TEXT,
    "seat": _TEXT,
    "token": protocol.TOKEN,
    "figures": {"type": "boolean"},
    "doctor": {},
    "ca": _TEXT,
    "sent": {"type": "array", "items": _TEXT},
    "leaving": {"type": "boolean"},
}
_is_membership = fastjsonschema.compile({"type": "object", "properties": _KEPT, "required": list(_KEPT)})


def membership(folder: Path) -> dict[str, Any] | None:
    """Return what is kept of the seat; None when nobody has joined from this folder.

    Raises
    ------
    LabError
        When the file is damaged.
    """
    path = folder / MEMBERSHIP
    try:
        kept: dict[str, Any] | None = files.read_json(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LabError(files.describe_error(error, f"cannot read {_shown(path)}", "name your folder")) from error
    except ValueError:
        kept = None
    if not protocol.fits(kept, _is_membership):
        raise LabError(f"{_shown(path)} is damaged: delete it, and join again.")
    return kept


def _shown(path: Path | str) -> str:
    """Return a path as it is told; of a very long one, its end."""
    text = paths.shown(Path(path))
    return text if len(text) <= MAX_SHOWN else f"…{text[-MAX_SHOWN:]}"


def join(
    address: str,
    code: str,
    seat: str = "",
    figures: bool = False,
    folder: Path | None = None,
    ca: str = "",
    check: bool = False,
) -> None:
    """Join a room: from now on, your seat's state is sent to its board, and nothing else.

    That is how the exercises stand that you checked, the lab that you opened last, your guesses with the figures that
    were measured beside them, a raised hand, and with `check` the doctor's verdict.

    Whoever is in the room already, and names another address, keeps the seat: the board has moved.

    Parameters
    ----------
    address, code : str
        As the instructor shows them.
    seat : str
        What the instructor calls you by, such as your place; by default the board gives you a number.
    figures : bool
        Whether the closing figures of your labs are sent too, without your seat.
    folder : Path, optional
        The folder with your labs; a notebook's own is the current one, which is the default.
    ca : str
        A file with the certificate of a board that is reached by https.
    check : bool
        Whether the doctor's verdict on this machine is sent too.

    Raises
    ------
    LabError
        When the board can't be reached, or does not know the code.
    """
    folder = folder or Path.cwd()
    kept: dict[str, Any] = {"address": _address(address), "code": code, "figures": figures, "ca": ca}
    if before := membership(folder):
        _follow(folder, before, kept)
        return
    kept |= {"doctor": _doctor() if check else None, "sent": [], "leaving": False}
    answer = ask("POST", kept, "/api/seats", {"code": code, "seat": protocol.seat_name(seat)})
    if answer.status != 201:
        raise LabError(f"the board says: {answer.error}.")
    if not protocol.fits(answer.content, protocol.JOINED):
        raise _no_board(kept["address"])
    kept |= {key: answer.content[key] for key in ("seat", "token")}  # whatever else it says: consent is the student's
    try:
        keep(folder, kept)
    except LabError:  # nobody would have the token, by which the seat is deleted
        ask("DELETE", kept, "/api/seat")
        raise
    print(f"You are in, as {kept['seat']!r}. {SENT} This is all of it now:")
    print(_in_lines(state(folder, kept)))
    if figures:
        print("And once for each lab, without your seat, its closing figures, such as:")
        print(_in_lines(next(closing_figures(folder), _EXAMPLE)))
    print("./lab leave ends it and deletes all of it.")
    start_sender(folder)


def _follow(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Go on with a seat at a board that is at another address, if that board knows it.

    Raises
    ------
    LabError
        When it is no move: another room, or the same board.
    """
    if before["leaving"]:
        hope = f"delete {_shown(folder / MEMBERSHIP)} if it never will"
        raise LabError(
            f"the board at {before['address']} has not deleted your seat yet: wait until it answers, or {hope}."
        )
    moved = before | {key: now[key] for key in ("address", "ca")}
    if moved == before or protocol.plain_code(before["code"]) != protocol.plain_code(now["code"]):
        raise LabError(f"you are in a room as {before['seat']!r}: ./lab leave first.")
    answer = ask("PUT", moved, "/api/seat", state(folder, moved))
    if answer.status not in TAKEN:
        raise LabError(f"you are in a room as {before['seat']!r}, and this board says: {answer.error}.")
    keep(folder, moved)
    print(f"You are still in, as {before['seat']!r}: what is sent goes to {moved['address']} from now on.")
    start_sender(folder)


def leave(folder: Path | None = None) -> None:
    """Leave the room; the board deletes all it has of your seat.

    Raises
    ------
    LabError
        When nobody has joined from this folder.
    """
    folder = folder or Path.cwd()
    kept = membership(folder)
    if not kept:
        raise LabError("you are in no room.")
    change(folder, leaving=True)
    (folder / HAND).unlink(missing_ok=True)
    if try_to_leave(folder):
        print("You have left, and all that the board had of your seat is deleted.")
    else:
        start_sender(folder)
        print("Nothing more is sent. The board does not answer: it is asked to delete what it has until it does.")


def try_to_leave(folder: Path) -> bool:
    """Ask the board to delete the seat; forget it, and return True, when that is done or there is nothing to delete."""
    kept = membership(folder)
    if not kept:
        return True
    try:
        done = ask("DELETE", kept, "/api/seat").status in (204, 403)
    except LabError:
        return False
    if done:
        forget(folder, kept["token"])
    return done


def hand(lab: str = "", exercise: int = 0, folder: Path | None = None) -> None:
    """Raise your hand, or take it down when it is up; the instructor sees at which exercise you are.

    Parameters
    ----------
    lab, exercise
        What it is about; by default the exercise that you checked last.
    folder : Path, optional
        The folder with your labs; a notebook's own is the current one, which is the default.
    """
    folder = folder or Path.cwd()
    if not membership(folder):
        print("You are in no room, so nobody sees your hand: ./lab join ADDRESS CODE")
        return
    path = folder / HAND
    if path.exists():
        path.unlink()
        print("Your hand is down.")
        return
    last = max(_exercises(folder), key=lambda one: (one["minute"], one["lab"], one["exercise"]), default=None)
    raised = {
        "lab": lab or (last["lab"] if last else "00"),
        "exercise": exercise or (last["exercise"] if last else 1),
    }
    if not protocol.fits(raised, protocol.HAND):
        raise LabError("a hand is raised at a lab and an exercise, such as hand('07', 2).")
    files.write(path, json.dumps(raised))
    start_sender(folder)  # unless it runs
    print(f"Your hand is up, at lab {raised['lab']}, exercise {raised['exercise']}. Again: it is down.")


def lower(folder: Path, sent: dict[str, Any]) -> bool:
    """Take down the hand that was sent, and no other; return whether it was up."""
    if sent["hand"] is None or _read_part(folder / HAND, protocol.HAND) != sent["hand"]:
        return False
    (folder / HAND).unlink(missing_ok=True)
    return True


def keep(folder: Path, kept: dict[str, Any]) -> None:
    """Keep what is to be known of the seat, for this user alone."""
    path = folder / MEMBERSHIP
    before = path.exists()
    try:
        with files.writing(path):
            path.touch(mode=0o600)  # before there is a token in it
        files.write(path, json.dumps(kept, indent=1))
    except files.NotWritten:
        if not before:
            path.unlink(missing_ok=True)
        raise


def change(folder: Path, **values: Any) -> dict[str, Any] | None:
    """Change what is kept of the seat, as the notebooks and the sender may at the same time; None when it is gone."""
    with locks.locked(folder / MEMBERSHIP):
        kept = membership(folder)
        if kept:
            kept |= values
            keep(folder, kept)
    return kept


def forget(folder: Path, token: str) -> None:
    """Forget the seat of this token; one that was taken since stays."""
    with locks.locked(folder / MEMBERSHIP):
        kept = membership(folder)
        if kept and kept["token"] == token:
            (folder / MEMBERSHIP).unlink(missing_ok=True)


def state(folder: Path, kept: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the seat, as it is sent: without what a board would refuse, from files that were edited."""
    return {
        "exercises": _exercises(folder),
        "opened": _read_part(folder / OPENED, protocol.OPENED),
        "guesses": _guesses(folder),
        "hand": _read_part(folder / HAND, protocol.HAND),
        "doctor": kept["doctor"],
    }


def _read_part(path: Path, kind: protocol.Message) -> dict[str, Any] | None:
    """Return the part of a state that is kept in a file of its own; None where there is none that fits."""
    try:
        part: dict[str, Any] | None = files.read_json(path)
    except (OSError, ValueError):
        return None
    return part if protocol.fits(part, kind) else None


def closing_figures(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the closing figures of each lab as they are sent, but for the ticket; none that was disturbed."""
    machine = usable_machine()
    for lab, kept in _results(folder):
        figures = [
            {"name": name_on_all_machines(row["texts"][0]), "value": numbers["value"], "unit": numbers["unit"]}
            for row in kept.get("table", {}).get("rows", [])
            if (numbers := row["numbers"]) and not row["busy"]
        ]
        figures = [one for one in figures if protocol.fits(one, protocol.FIGURE)][: protocol.MAX_FIGURES]
        if figures and not kept["quick"]:
            yield {"lab": lab, "cores": machine.usable_cores, "isa": list(machine.isa), "figures": figures}


class Answer(NamedTuple):
    """A board's answer: its status, and its content as `protocol.read_answer` gives it, None where there is none."""

    status: int
    content: Any

    @property
    def error(self) -> str:
        """Return why the board refuses, in a line."""
        told = self.content.get("error") if isinstance(self.content, dict) else None
        return told if told and isinstance(told, str) else str(self.status)


def ask(method: str, kept: dict[str, Any], path: str, message: object = None) -> Answer:
    """Send a message to the board and return its answer.

    A redirect is not followed, an encoding not undone, and no proxy asked: one for the internet does not lead to the
    room's board.

    Raises
    ------
    LabError
        When there is none, or one that is not a board's.
    """
    headers = {"Content-Type": "application/json"} if message is not None else {}
    if "token" in kept:
        headers["Authorization"] = f"Bearer {kept['token']}"
    request = httpclient.HTTPRequest(
        kept["address"] + path,
        method,
        headers,
        body=None if message is None else json.dumps(message).encode(),
        connect_timeout=CONNECT_S,
        request_timeout=ANSWER_S,
        follow_redirects=False,
        decompress_response=False,
        user_agent="labkit",
        ca_certs=kept["ca"] or None,
    )
    try:
        with ThreadPoolExecutor(1) as pool:  # a notebook's own thread has a loop that runs
            answer = pool.submit(asyncio.run, _fetch(request)).result()
    except ssl.SSLError as error:
        refused = re.search(r"certificate verify failed: ([^(]*)", str(error))
        what = f"{refused[1].strip()}. Name its certificate by --ca" if refused else "it does not speak https"
        raise LabError(f"no safe connection to the board at {kept['address']}: {what}.") from error
    except Exception as error:  # of bytes that are no answer, whatever Tornado raises
        if kept["ca"] and not os.access(kept["ca"], os.R_OK):
            raise LabError(f"there is no certificate {_shown(kept['ca'])}: name the board's file with --ca.") from error
        raise LabError(
            f"the board at {kept['address']} does not answer ({type(error).__name__}). Is the address right, with "
            "http or https, and is this machine in the room's network?"
        ) from error
    if protocol.ANSWER_HEADER not in answer.headers:  # a guest network's log-in page, say
        raise _no_board(kept["address"])
    try:
        return Answer(answer.code, protocol.read_answer(answer.body) if answer.body else None)
    except protocol.Refused as error:
        raise _no_board(kept["address"]) from error


async def _fetch(request: httpclient.HTTPRequest) -> httpclient.HTTPResponse:
    """Return what answers a request, whole and in time."""
    logging.getLogger("tornado.general").setLevel(logging.ERROR)  # of a certificate, `ask` tells
    client = simple_httpclient.SimpleAsyncHTTPClient(
        force_instance=True,
        max_buffer_size=protocol.MAX_ANSWER_BYTES + MAX_HEADER,
        max_header_size=MAX_HEADER,
        max_body_size=protocol.MAX_ANSWER_BYTES,
    )
    try:
        return await client.fetch(request, raise_error=False)
    finally:
        client.close()


def _no_board(address: str) -> LabError:
    return LabError(f"what answers at {address} is not a board. Is the address right, with its port?")


def _doctor() -> list[dict[str, Any]]:
    """Return the doctor's verdict on each lab, with the names of what it rests on and no text of this machine's."""
    from labkit.doctor import checks  # here because the sender, which has no use for it, would import it too

    return [
        {
            "lab": verdict.lab,
            "status": verdict.status,
            "because": [finding.name for finding in verdict.because if finding.status == verdict.status],
        }
        for verdict in checks.examine().verdicts
    ]


def _address(text: str) -> str:
    """Return the board's address; http where nothing is said."""
    address = text.strip().removesuffix("/")
    address = address if "://" in address else f"http://{address}"
    try:
        parts = urlsplit(address)
        plain = {parts.path, parts.query, parts.fragment, parts.username, parts.password} <= {"", None}
        right = parts.scheme in ("http", "https") and parts.hostname and plain and (parts.port or True)
        parts.netloc.encode("idna")  # a host's name has parts of 63 letters at most
    except ValueError:
        right = False
    if not right or not address.isprintable() or len(address) > MAX_SHOWN:
        raise LabError(f"an address is written like http://192.168.1.5:8500, not {text[:MAX_SHOWN]!r}.")
    return address


def _in_lines(message: dict[str, Any]) -> str:
    """Return a message as JSON, each item of a list on a line of its own."""
    parts = []
    for key, value in message.items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}"


def _results(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each lab has left; what is damaged, or being written, is not there."""
    for file in sorted((folder / "work").glob(RESULTS)):
        try:
            kept = read(file)
        except (OSError, ValueError):
            continue
        if not find_problem(kept):
            yield file.stem[-2:], kept


def _exercises(folder: Path) -> list[dict[str, Any]]:
    found = [
        {
            "lab": lab,
            "exercise": int(number),
            "verdict": verdict,
            "hint": kept.get("progress", {}).get(number, {}).get("hint", 0),
            "minute": kept.get("progress", {}).get(number, {}).get("minute") or kept["when"].replace(" ", "T"),
        }
        for lab, kept in _results(folder)
        for number, verdict in kept.get("exercises", {}).items()
        if verdict != NOT_ATTEMPTED and re.fullmatch("[0-9]{1,2}", number)
    ]
    return [one for one in found if protocol.fits(one, protocol.VERDICT)][: protocol.MAX_VERDICTS]


def _guesses(folder: Path) -> list[dict[str, Any]]:
    """Return each guess as it is sent: a number or a choice, and beside it the figure, but for that of a small run."""
    found = []
    for lab, kept in _results(folder):
        for number, held in kept.get("guesses", {}).items():
            guess, here = held.get("values", (None, None))
            here = None if kept["quick"] else here
            if re.fullmatch("[0-9]{1,2}", number) and (guess, here) != (None, None):
                found.append({"lab": lab, "number": int(number), "guess": guess, "here": here})
    return [one for one in found if protocol.fits(one, protocol.GUESS)][: protocol.MAX_GUESSES]


_EXAMPLE = {
    "lab": "03",
    "cores": 2,
    "isa": ["AVX2"],
    "figures": [{"name": "oneDNN against Eigen", "value": 1.8, "unit": "×"}],
}
