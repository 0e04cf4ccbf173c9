"""A student's seat in a room: join, the state that is sent, raise a hand, leave. Nothing is sent before joining."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import requests
import urllib3

from labkit.display.results import NOT_ATTEMPTED, find_problem, read
from labkit.exercises.classroom_link import MEMBERSHIP, OPENED
from labkit.system import files, paths
from labkit.system.errors import LabError, first_cause
from labkit.system.lease import usable_machine
from labkit_classroom.board import protocol
from labkit_classroom.board.entry_point import start_sender

RESULTS = "results-[0-9][0-9].json"  # in work/, written by the labs
CONNECT_S, ANSWER_S = 3.0, 9.0  # to connect, and between two parts of an answer
SENT = (
    "Sent are your seat's name; for each exercise that you checked its verdict, hints and minute; the lab that you "
    "opened last; your guesses with the results that your machine measured for them; its cores and instruction set; a "
    "raised hand; and the doctor's verdict if you gave --check. Nothing else. The board knows which seat measured a "
    "result; it shows results without seats, from five machines on."
)


def membership(folder: Path) -> dict[str, Any] | None:
    """Return what the folder contains of the seat; None if the student has not joined a room.

    Raises
    ------
    LabError
        When the file is damaged.
    """
    path = folder / MEMBERSHIP
    try:
        content: dict[str, Any] | None = files.read_json(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LabError(files.describe_error(error, f"cannot read {paths.shown(path)}", "name your folder")) from error
    except ValueError:
        content = None
    if not protocol.fits(content, protocol.MEMBERSHIP):
        raise LabError(f"{paths.shown(path)} is damaged: delete it, and join again.")
    return content


def join(
    address: str, code: str, seat: str = "", folder: Path | None = None, ca: str = "", check: bool = False
) -> None:
    """Join a room: from now on your seat's state is sent to its board, and nothing else. It is printed.

    If you are in the room already and give another address, you keep the seat: the board has moved.

    Parameters
    ----------
    address, code : str
        As the instructor shows them.
    seat : str
        What the instructor calls you by, such as your place; by default the board gives you a number.
    folder : Path, optional
        The folder with your labs; the current one by default.
    ca : str
        A file with the certificate of a board that uses https.
    check : bool
        Whether the doctor's verdict on this machine is sent too.

    Raises
    ------
    LabError
        When the board can't be reached, or refuses the code.
    """
    folder = folder or Path.cwd()
    new: dict[str, Any] = {"address": _address(address), "code": code, "ca": ca}
    if before := membership(folder):
        if protocol.plain_code(before["code"]) != protocol.plain_code(code):
            raise LabError(
                f"you are in the room at {before['address']} as {before['seat']!r}: ./lab leave first. "
                f"If its board never answers again, delete {paths.shown(folder / MEMBERSHIP)}."
            )
        keep(folder, before | new)
        print(f"You are still in, as {before['seat']!r}: your state is sent to {new['address']} from now on.")
        start_sender(folder)
        return
    new |= {"machine": _machine(), "doctor": _doctor() if check else None}
    name = protocol.visible(seat, protocol.SEAT_LETTERS)
    answer = ask("POST", new, "/api/seats", {"code": code, "seat": name})
    if answer.status != 201:
        raise LabError(f"the board says: {answer.error}.")
    if not protocol.fits(answer.content, protocol.JOINED):
        raise _not_a_board(new["address"])
    new |= {"seat": protocol.visible(answer.content["seat"], protocol.SEAT_LETTERS), "token": answer.content["token"]}
    try:
        keep(folder, new)
    except LabError:  # without the token, the seat could never be deleted
        ask("DELETE", new, "/api/seat")
        (folder / MEMBERSHIP).unlink(missing_ok=True)
        raise
    print(f"You are in, as {new['seat']!r}. {SENT} At the moment:")
    for key, value in state(folder, new).items():
        print(f"  {key}: {json.dumps(value)}")
    print("./lab leave ends it and deletes all of it.")
    start_sender(folder)


def leave(folder: Path | None = None) -> None:
    """Leave the room; the board deletes everything it has of your seat.

    Raises
    ------
    LabError
        When you are not in a room, or the board does not answer: then you are still in.
    """
    folder = folder or Path.cwd()
    member = membership(folder)
    if not member:
        raise LabError("you are in no room.")
    try:
        answer = ask("DELETE", member, "/api/seat")
    except LabError as error:
        file = paths.shown(folder / MEMBERSHIP)
        raise LabError(
            f"{error} You are still in. Without {file}, nothing more is sent, and nothing deleted."
        ) from error
    if answer.status not in (204, 403):  # 403: the board does not know the seat any more
        raise LabError(f"the board says: {answer.error}. You are still in.")
    forget(folder, member["token"])
    print("You have left, and all that the board had of your seat is deleted.")


def hand(lab: str = "", exercise: int = 0, folder: Path | None = None) -> None:
    """Raise your hand, or take it down when it is up; the instructor sees at which exercise you are.

    Parameters
    ----------
    lab, exercise
        What it is about; by default the exercise that you checked last.
    folder : Path, optional
        The folder with your labs; the current one by default.
    """
    folder = folder or Path.cwd()
    member = membership(folder)
    if not member:
        print("You are in no room, so nobody sees your hand: ./lab join ADDRESS CODE")
        return
    last = max(
        _exercises(folder),
        key=lambda entry: (entry["minute"], entry["lab"], entry["exercise"]),
        default={"lab": "00", "exercise": 1},
    )
    place = {"lab": lab or last["lab"], "exercise": exercise or last["exercise"]}
    if not protocol.fits(place, protocol.HAND):
        raise LabError("a hand is raised at a lab and an exercise, such as hand('07', 2).")
    answer = ask("PUT", member, "/api/seat/hand", place)
    if answer.status != 200:
        raise LabError(f"the board says: {answer.error}.")
    if answer.content == protocol.HAND_UP:
        print(f"Your hand is up, at lab {place['lab']}, exercise {place['exercise']}. Again: it is down.")
    else:
        print("Your hand is down.")


def keep(folder: Path, content: dict[str, Any]) -> None:
    """Write the seat's file, which only this user can read."""
    path = folder / MEMBERSHIP
    with files.writing(path):
        path.touch(mode=0o600)  # before it contains a token
    files.write(path, json.dumps(content, indent=1))


def forget(folder: Path, token: str) -> None:
    """Delete the file of the seat with this token, not that of a seat taken since."""
    now = membership(folder)
    if now and now["token"] == token:
        (folder / MEMBERSHIP).unlink(missing_ok=True)


def state(folder: Path, member: dict[str, Any]) -> dict[str, Any]:
    """Return the seat's state as it is sent, without what the board would refuse: files may have been edited."""
    return {
        "exercises": _exercises(folder),
        "opened": _opened(folder),
        "guesses": _guesses(folder),
        "machine": member["machine"],
        "doctor": member["doctor"],
    }


def room_results(folder: Path) -> dict[tuple[str, str], str]:
    """Return a summary of the room's results by lab and number of the question; empty outside a room.

    Raises
    ------
    LabError
        When the board does not answer.
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
    """A board's answer: its status and its content, None if it has none."""

    status: int
    content: Any

    @property
    def error(self) -> str:
        """The reason why the board refuses, in a line."""
        reason = self.content.get("error") if isinstance(self.content, dict) else None
        return protocol.visible(reason, protocol.TEXT_LETTERS) if isinstance(reason, str) else str(self.status)


def ask(method: str, member: dict[str, Any], path: str, message: object = None) -> Answer:
    """Send a message to the board and return its answer. No redirect is followed and no proxy used.

    Raises
    ------
    LabError
        When there is no answer, or it is not from a board.
    """
    address, ca = member["address"], member["ca"]
    headers = {"Authorization": f"Bearer {member['token']}"} if "token" in member else {}
    session = requests.Session()
    session.trust_env = False  # a proxy for the internet does not reach the room's board
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
        what = f"{refused[1].strip()}. Name its certificate with --ca" if refused else "it does not use https"
        raise LabError(f"no safe connection to the board at {address}: {what}.") from error
    except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:  # of requests, or of an answer that breaks off
        raise LabError(
            f"the board at {address} does not answer ({first_cause(error)}). Is the address right, with http or "
            "https, and is this machine in the room's network?"
        ) from error
    if protocol.ANSWER_HEADER not in answer.headers:  # such as a guest network's login page
        raise _not_a_board(address)
    try:
        return Answer(answer.status_code, json.loads(body) if body else None)
    except (ValueError, RecursionError) as error:
        raise _not_a_board(address) from error


def _not_a_board(address: str) -> LabError:
    return LabError(f"what answers at {address} is not a board. Is the address right, with its port?")


def _machine() -> dict[str, Any]:
    """Return this machine's cores and instruction set, as the wall tells machines apart."""
    machine = usable_machine()
    isa = next((name for name in protocol.ISA if name in machine.isa), protocol.ISA[-1])
    return {"cores": machine.usable_cores, "isa": isa}


def _doctor() -> list[dict[str, Any]]:
    """Return the doctor's verdict on each lab, with the names of failed checks and no other text."""
    from labkit.doctor import checks  # here because the sender would import it too

    return [
        {
            "lab": verdict.lab,
            "status": verdict.status,
            "because": [finding.name for finding in verdict.because if finding.status == verdict.status],
        }
        for verdict in checks.examine().verdicts
    ]


def _address(text: str) -> str:
    """Return a board's address; http if no scheme is given."""
    address = text.strip().removesuffix("/")
    address = address if "://" in address else f"http://{address}"
    if not re.fullmatch(r"https?://[A-Za-z0-9.:\[\]-]{1,255}", address):
        raise LabError(f"an address is written like http://192.168.1.5:8500, not {text[: protocol.TEXT_LETTERS]!r}.")
    return address


def _opened(folder: Path) -> dict[str, Any] | None:
    """Return the lab that was opened last, and when; None if that is not known."""
    try:
        opened: dict[str, Any] = files.read_json(folder / OPENED)
    except (OSError, ValueError):
        return None
    return opened if protocol.fits(opened, protocol.OPENED) else None


def _results(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the results of each lab, without files that are damaged or being written."""
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
    """Return each guess as it is sent: a number or a choice, with this machine's result unless from a small run."""
    guesses = []
    for lab, content in _results(folder):
        for number, entry in content.get("guesses", {}).items():
            guess, here = entry.get("values", (None, None))
            here = None if content["quick"] else here
            if re.fullmatch("[0-9]{1,2}", number) and (guess, here) != (None, None):
                guesses.append({"lab": lab, "number": int(number), "guess": guess, "here": here})
    return [guess for guess in guesses if protocol.fits(guess, protocol.GUESS)][: protocol.MAX_GUESSES]
