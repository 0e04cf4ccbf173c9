"""A student's seat in a room: join, send state, raise a hand, leave. Nothing is sent before joining."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import requests
import urllib3

from labkit.display.results import NOT_ATTEMPTED, find_problem, read
from labkit.exercises.classroom_link import MEMBERSHIP, OPENED
from labkit.system import files, paths
from labkit.system.errors import LabError, first_cause
from labkit_classroom.board import protocol

RESULTS = "results-[0-9][0-9].json"  # in work/, written by the labs
CONNECT_S, ANSWER_S = 3.0, 9.0  # to connect, and between two parts of a response
SENT = (
    "This is sent: your seat's name; for each exercise you checked, its verdict, hints and minute; the lab you opened "
    "last; your guesses, and your machine's results for them; a raised hand; and, with --check, the doctor's verdict. "
    "Nothing else. The board knows which seat measured a result, but shows results without seats, and only for five "
    "machines or more."
)


def membership(folder: Path) -> dict[str, Any] | None:
    """Return the content of the seat's file; None if the student has not joined a room.

    Raises
    ------
    LabError
        If the file is damaged.
    """
    path = folder / MEMBERSHIP
    try:
        content: dict[str, Any] | None = files.read_json(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LabError(files.describe_error(error, f"cannot read {paths.shown(path)}", "use your --folder")) from error
    except ValueError:
        content = None
    if not protocol.fits(content, protocol.MEMBERSHIP):
        raise LabError(f"{paths.shown(path)} is damaged: delete it and join again.")
    return content


def join(
    address: str, code: str, seat: str = "", folder: Path | None = None, ca: str = "", check: bool = False
) -> None:
    """Join a room: from now on, your seat's state is sent to its board, and nothing else. It is printed.

    If you are already in the room and give another address, you keep your seat: the board has moved.

    Parameters
    ----------
    address, code : str
        As shown by the instructor.
    seat : str
        Your name for the instructor, such as your place; by default, a number from the board.
    folder : Path, optional
        The folder with your labs; by default, the current one.
    ca : str
        A file with the certificate of a board that uses https.
    check : bool
        Whether to send the doctor's verdict on this machine as well.

    Raises
    ------
    LabError
        If the board can't be reached or refuses the code.
    """
    folder = folder or Path.cwd()
    member: dict[str, Any] = {"address": _address(address), "code": code, "ca": ca}
    if before := membership(folder):
        if protocol.plain_code(before["code"]) != protocol.plain_code(code):
            raise LabError(
                f"you are in the room at {before['address']} as {before['seat']!r}: run ./lab leave first. "
                f"If that board is gone for good, delete {paths.shown(folder / MEMBERSHIP)}."
            )
        save(folder, before | member)
        print(
            f"You are still in the room as {before['seat']!r}; your state is sent to {member['address']} from now on."
        )
        start_sender(folder)
        return
    member["doctor"] = _doctor() if check else None
    name = protocol.visible(seat, protocol.SEAT_LETTERS)
    answer = ask("POST", member, "/api/seats", {"code": code, "seat": name})
    if answer.status != 201:
        raise LabError(f"the board refused: {answer.error}.")
    if not protocol.fits(answer.content, protocol.JOINED):
        raise _not_a_board(member["address"])
    member["seat"] = protocol.visible(answer.content["seat"], protocol.SEAT_LETTERS)
    member["token"] = answer.content["token"]
    try:
        save(folder, member)
    except LabError:  # without its token, the seat could never be deleted
        ask("DELETE", member, "/api/seat")
        (folder / MEMBERSHIP).unlink(missing_ok=True)
        raise
    print(f"You have joined as {member['seat']!r}. {SENT} Right now:")
    for key, value in state(folder, member).items():
        print(f"  {key}: {json.dumps(value)}")
    print("./lab leave stops this and deletes all of it.")
    start_sender(folder)


def leave(folder: Path | None = None) -> None:
    """Leave the room; the board deletes everything about your seat.

    Raises
    ------
    LabError
        If you have not joined a room, or the board does not answer; you are then still in the room.
    """
    folder = folder or Path.cwd()
    member = membership(folder)
    if not member:
        raise LabError("you have not joined a room.")
    try:
        answer = ask("DELETE", member, "/api/seat")
    except LabError as error:
        file = paths.shown(folder / MEMBERSHIP)
        raise LabError(
            f"{error} You are still in the room. Deleting {file} stops sending, but deletes nothing on the board."
        ) from error
    if answer.status not in (204, 403):  # 403: the board no longer knows the seat
        raise LabError(f"the board refused: {answer.error}. You are still in the room.")
    forget(folder, member["token"])
    print("You have left, and the board has deleted everything about your seat.")


def hand(folder: Path | None = None) -> None:
    """Raise your hand, or lower it if it is up; the instructor sees which exercise you checked last.

    Parameters
    ----------
    folder : Path, optional
        The folder with your labs; by default, the current one.
    """
    folder = folder or Path.cwd()
    member = membership(folder)
    if not member:
        print("You have not joined a room, so no one can see your hand: ./lab join ADDRESS CODE")
        return
    last = max(
        _exercises(folder),
        key=lambda entry: (entry["minute"], entry["lab"], entry["exercise"]),
        default={"lab": "00", "exercise": 1},
    )
    place = {"lab": last["lab"], "exercise": last["exercise"]}
    answer = ask("PUT", member, "/api/seat/hand", place)
    if answer.status != 200:
        raise LabError(f"the board refused: {answer.error}.")
    if answer.content == protocol.HAND_UP:
        print(f"Your hand is up at lab {place['lab']}, exercise {place['exercise']}. Repeat the command to lower it.")
    else:
        print("Your hand is down.")


def start_sender(folder: Path) -> None:
    """Start the sender for a folder if its student has joined a room; a second sender exits by itself.

    It outlives this process. If it cannot be started, the next lab to be opened tries again.
    """
    with contextlib.suppress(OSError):
        folder = folder.resolve()
        if not (folder / MEMBERSHIP).exists():
            return
        subprocess.Popen(
            [sys.executable, "-m", "labkit_classroom.board.sender", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={name: value for name, value in os.environ.items() if not name.startswith(("PMI_", "LABKIT_"))},
        )


def save(folder: Path, content: dict[str, Any]) -> None:
    """Write the seat's file, which only this user can read."""
    path = folder / MEMBERSHIP
    with files.writing(path):
        path.touch(mode=0o600)  # before it contains the token
    files.write(path, json.dumps(content, indent=1))


def forget(folder: Path, token: str) -> None:
    """Delete the file of the seat with this token, but not of a newer seat."""
    member = membership(folder)
    if member and member["token"] == token:
        (folder / MEMBERSHIP).unlink(missing_ok=True)


def state(folder: Path, member: dict[str, Any]) -> dict[str, Any]:
    """Return the seat's state to send, without entries the board would refuse: files may have been edited."""
    return {
        "exercises": _exercises(folder),
        "opened": _opened(folder),
        "guesses": _guesses(folder),
        "doctor": member["doctor"],
    }


def room_results(folder: Path) -> dict[tuple[str, str], str]:
    """Return summaries of the room's results by lab and question number; empty outside a room.

    Raises
    ------
    LabError
        If the board does not answer.
    """
    member = membership(folder)
    if not member:
        return {}
    wall = ask("GET", {"address": member["address"], "ca": member["ca"]}, "/view/wall").content  # without the token
    if not protocol.fits(wall, protocol.WALL):
        raise _not_a_board(member["address"])
    return {
        (result["lab"], str(result["number"])): protocol.visible(result["summary"], protocol.TEXT_LETTERS)
        for result in wall["results"]
    }


class Answer(NamedTuple):
    """A board's response: status and content (None if empty)."""

    status: int
    content: Any

    @property
    def error(self) -> str:
        """The reason for a refusal, in one line."""
        reason = self.content.get("error") if isinstance(self.content, dict) else None
        return protocol.visible(reason, protocol.TEXT_LETTERS) if isinstance(reason, str) else str(self.status)


def ask(method: str, member: dict[str, Any], path: str, message: object = None) -> Answer:
    """Send a message to the board and return its response, without following redirects or using a proxy.

    Raises
    ------
    LabError
        If there is no response, or it is not from a board.
    """
    address, ca = member["address"], member["ca"]
    headers = {"Authorization": f"Bearer {member['token']}"} if "token" in member else {}
    session = requests.Session()
    session.trust_env = False  # an internet proxy does not reach the room's board
    try:
        with session.request(
            method,
            address + path,
            json=message,
            headers=headers,
            verify=ca or True,
            timeout=(CONNECT_S, ANSWER_S),
            allow_redirects=False,
            stream=True,
        ) as answer:
            body = answer.raw.read(protocol.MAX_ANSWER_BYTES)
    except requests.exceptions.SSLError as error:
        refused = re.search(r"certificate verify failed: ([^(]*)", str(error))
        problem = f"{refused[1].strip()}. Pass its certificate with --ca" if refused else "it does not use https"
        raise LabError(f"no secure connection to the board at {address}: {problem}.") from error
    except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:  # from requests, or from a truncated response
        raise LabError(
            f"the board at {address} does not answer ({first_cause(error)}). Is the address right, with http or "
            "https, and is this machine on the room's network?"
        ) from error
    if protocol.ANSWER_HEADER not in answer.headers:  # such as a guest network's login page
        raise _not_a_board(address)
    try:
        return Answer(answer.status_code, json.loads(body) if body else None)
    except (ValueError, RecursionError) as error:
        raise _not_a_board(address) from error


def _not_a_board(address: str) -> LabError:
    return LabError(f"the server at {address} is not a board. Is the address right, including its port?")


def _doctor() -> list[dict[str, Any]]:
    """Return the doctor's verdict on each lab, with the names of failed checks and no other text."""
    from labkit.doctor import checks  # here, so that the sender does not import it

    return [
        {
            "lab": verdict.lab,
            "status": verdict.status,
            "because": [finding.name for finding in verdict.because if finding.status == verdict.status],
        }
        for verdict in checks.examine().verdicts
    ]


def _address(text: str) -> str:
    """Return a board's address; the default scheme is http."""
    address = text.strip().removesuffix("/")
    address = address if "://" in address else f"http://{address}"
    if not re.fullmatch(r"https?://[A-Za-z0-9.:\[\]-]{1,255}", address):
        raise LabError(f"an address looks like http://192.168.1.5:8500, not {text[: protocol.TEXT_LETTERS]!r}.")
    return address


def _opened(folder: Path) -> dict[str, Any] | None:
    """Return the lab that was opened last, and when; None if unknown."""
    try:
        opened: dict[str, Any] = files.read_json(folder / OPENED)
    except (OSError, ValueError):
        return None
    return opened if protocol.fits(opened, protocol.OPENED) else None


def _results(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the results of each lab, skipping files that are damaged or being written."""
    for file in sorted((folder / "work").glob(RESULTS)):
        try:
            content = read(file)
        except (OSError, ValueError):
            continue
        if not find_problem(content):
            yield file.stem[-2:], content


def _exercises(folder: Path) -> list[dict[str, Any]]:
    entries = []
    for lab, content in _results(folder):
        for number, verdict in content.get("exercises", {}).items():
            progress = content.get("progress", {}).get(number, {})
            if verdict != NOT_ATTEMPTED and re.fullmatch("[0-9]{1,2}", number):
                minute = progress.get("minute") or content["when"].replace(" ", "T")
                entry = {"lab": lab, "exercise": int(number), "verdict": verdict}
                entries.append(entry | {"hint": progress.get("hint", 0), "minute": minute})
    return [entry for entry in entries if protocol.fits(entry, protocol.VERDICT)][: protocol.MAX_VERDICTS]


def _guesses(folder: Path) -> list[dict[str, Any]]:
    """Return the guesses to send: numbers or choices, with this machine's results except from small runs."""
    guesses = []
    for lab, content in _results(folder):
        for number, entry in content.get("guesses", {}).items():
            guess, here = entry["values"]
            here = None if content["quick"] else here
            if re.fullmatch("[0-9]{1,2}", number) and (guess, here) != (None, None):
                guesses.append({"lab": lab, "number": int(number), "guess": guess, "here": here})
    return [guess for guess in guesses if protocol.fits(guess, protocol.GUESS)][: protocol.MAX_GUESSES]
