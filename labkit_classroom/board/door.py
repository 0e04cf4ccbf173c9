"""What the labs ask of a room, by the entry point `labkit.room`: its sender, and its figures."""

from pathlib import Path
from typing import Any

from labkit.system.errors import LabError
from labkit_classroom.board.background import start_sender

__all__ = ["figures", "start_sender"]


def figures(folder: Path) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Return the figures on the wall of a student's room, by lab, and a sentence when there are none to show."""
    from labkit.report import page
    from labkit_classroom.board import seat

    try:
        membership = seat.membership(folder)
        if not membership or not membership["figures"]:
            return {}, ""
        # The wall shows no seat, and needs none.
        without_seat = {key: value for key, value in membership.items() if key != "token"}
        shown = page.room_figures(seat.ask("GET", without_seat, "/view/wall").content)
    except LabError as error:
        return {}, f"The room's figures are not here: {error}"
    except (ValueError, RecursionError):  # neither JSON nor what a board sends
        return {}, "The room's figures are not here: the board's answer can't be read."
    return shown, "" if shown else "The room has no figures yet: they are shown from five machines on."
