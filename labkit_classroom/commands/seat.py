"""Commands by which a student is in a room."""

import functools
import os
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.options import StudentFolder

app = typer.Typer()
command = functools.partial(app.command, rich_help_panel="The labs")


@command(epilog="Example: `./lab join http://192.168.1.5:8500 K7Q2M9 --seat B4`")
def join(
    address: Annotated[str, typer.Argument(help="the board's address", envvar="LAB_ROOM")],
    code: Annotated[str, typer.Argument(help="the room's code", envvar="LAB_ROOM_CODE")],
    folder: StudentFolder,
    seat: Annotated[
        str, typer.Option(help="what the instructor calls you by", envvar="LAB_SEAT", show_default="a number")
    ] = "",
    check: Annotated[bool, typer.Option("--check", help="send the doctor's verdict on this machine too")] = False,
    ca: Annotated[
        Path | None, typer.Option(help="the certificate of a board that uses https", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Join a room: your verdicts, guesses and their results, and the lab you are in are sent to its board.

    It prints everything that is sent. The board knows which seat measured a result, and shows results without seats,
    from five machines on.

    A separate process sends it, so no cell waits for it. Your seat is stored in `.room.json` in your folder.
    `./lab leave` ends it, and the board deletes everything it has of your seat.
    """
    from labkit_classroom.board import seat as own

    own.join(address, code, seat, folder, os.path.realpath(ca) if ca else "", check)


@command(epilog="Example: `./lab hand`")
def hand(folder: StudentFolder) -> None:
    """Raise your hand, or take it down again; the instructor sees at which exercise you are.

    That is the exercise that you checked last. In a notebook: `from labkit_classroom import hand; hand()`.
    """
    from labkit_classroom.board import seat

    seat.hand(folder=folder)


@command(epilog="Example: `./lab leave`")
def leave(folder: StudentFolder) -> None:
    """Leave the room; its board deletes all it has of your seat.

    Nothing more is sent from then on. A board that does not answer is asked until it does.
    """
    from labkit_classroom.board import seat

    seat.leave(folder)
