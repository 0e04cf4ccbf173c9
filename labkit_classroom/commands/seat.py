"""Commands for students in a room: join, hand, leave."""

import functools
import os
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.options import LABS, SOMETIMES, StudentFolder

app = typer.Typer()
command = functools.partial(app.command, rich_help_panel=LABS)


@command(epilog="Example: `./lab join http://192.168.1.5:8500 K7Q2M9 --seat B4`")
def join(
    address: Annotated[str, typer.Argument(help="The board's address.", envvar="LAB_ROOM")],
    code: Annotated[str, typer.Argument(help="The room's code.", envvar="LAB_ROOM_CODE")],
    folder: StudentFolder,
    seat: Annotated[
        str, typer.Option(help="Your name for the instructor.", envvar="LAB_SEAT", show_default="a number")
    ] = "",
    check: Annotated[bool, typer.Option("--check", help="Send the doctor's verdict on this machine, too.")] = False,
    ca: Annotated[
        Path | None, typer.Option(help="The certificate of a board that uses https.", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Join a room, and send your verdicts, guesses and results, and the lab you are in, to its board.

    Everything that is sent is printed. The board knows which seat measured a result, but shows results without seats,
    and only for five machines or more.

    A separate process sends it, so no cell waits for it. Your seat is stored in `.room.json` in your folder.
    `./lab leave` stops this, and the board deletes everything about your seat.
    """
    from labkit_classroom.board import seat as membership

    membership.join(address, code, seat, folder, os.path.realpath(ca) if ca else "", check)


@command(epilog="Example: `./lab hand`")
def hand(folder: StudentFolder) -> None:
    """Raise your hand, or lower it again; the instructor sees which exercise you checked last.

    In a notebook: `from labkit_classroom import hand; hand()`.
    """
    from labkit_classroom.board import seat

    seat.hand(folder=folder)


@app.command(rich_help_panel=SOMETIMES, epilog="Example: `./lab leave`")
def leave(folder: StudentFolder) -> None:
    """Leave the room; its board deletes everything about your seat.

    Nothing is sent after that. If the board does not answer, you are still in the room: try again.
    """
    from labkit_classroom.board import seat

    seat.leave(folder)
