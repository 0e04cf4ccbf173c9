"""What the labs ask of a room, by the entry point `labkit.room`: its sender, and its figures."""

from pathlib import Path
from typing import Any

from labkit.system.errors import LabError
from labkit_classroom.board.background import start_sender

__all__ = ["figures", "start_sender"]


def figures(folder: Path) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Return the figures on the wall of the room that a student sends figures to, and what is to be said of them."""
    from labkit.report import page
    from labkit_classroom.board import seat

    try:
        kept = seat.membership(folder)
        if not kept or not kept["figures"]:
            return {}, ""
        asked = {key: value for key, value in kept.items() if key != "token"}  # the wall shows no seat, and needs none
        found = page.room_figures(seat.ask("GET", asked, "/view/wall").content)
    except LabError as error:
        return {}, f"The room's figures are not here: {error}"
    except (ValueError, RecursionError):  # neither JSON nor what a board sends
        return {}, "The room's figures are not here: the board's answer can't be read."
    return found, "" if found else "The room has no figures yet: they are shown from five machines on."
