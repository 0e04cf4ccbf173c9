"""`lab room`: the board of a room."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.system import addresses, paths
from labkit_classroom.commands.options import FirstDay, Hours, Labs, RouteName, Start, timetable

if TYPE_CHECKING:
    from labkit_classroom.board import host

app = typer.Typer(
    help="The board of a room, for instructors: who is how far, and who asks for help.", no_args_is_help=True
)


@app.command("open", epilog="Example: `./lab room open --route day --start 9:00`")
def room_open(
    address: Annotated[
        str | None, typer.Option(help="the address to listen on", show_default="this machine's own")
    ] = None,
    port: Annotated[int, typer.Option(help="the port to listen on", min=1, max=65535)] = 8500,
    route: RouteName = None,
    labs: Labs = None,
    start: Start = "9:00",
    hours: Hours = 7.0,
    day: FirstDay = None,
    cert: Annotated[Path | None, typer.Option(help="a certificate, for https")] = None,
    key: Annotated[Path | None, typer.Option(help="and its key")] = None,
    new_code: Annotated[bool, typer.Option("--new-code", help="give it a new code; who has a seat keeps it")] = False,
    people: Annotated[
        int | None, typer.Option(help="expected number: until then the wall shows in large how to join", min=1)
    ] = None,
) -> None:
    """Open the board and serve it until Ctrl-C. Opened again, it goes on with all it had.

    On the instructor's page you remove seats, and change the code while the board is open.
    With a route, or labs, it also shows whether the room is behind the timetable. The room is kept in `.lab/room/`.
    Exit code 0 when it was ended by Ctrl-C, 2 when it can't be opened, such as when the port is taken.
    """
    from labkit_classroom.board import host

    tls = host.tls_files(cert, key)
    days = timetable(route, labs, start, hours, day)[1] if route or labs else []
    address = addresses.numeric(address or addresses.own())

    def say(opened: host.Opened) -> None:
        _say_where(opened)
        if addresses.is_everywhere(address):
            print("It listens on all addresses of this machine, in each of its networks.")
        print("Ctrl-C ends the board and keeps the room; ./lab room close ends the room.", flush=True)

    host.open_room(address, port, days=days, tls=tls, on_open=say, new_code=new_code, people=people)


def _say_where(opened: "host.Opened") -> None:
    print(f"The room is open. Code: {opened.code}")
    print(f"Students type:           ./lab join {opened.base} {opened.code}")
    print(f"For the projector:       {opened.wall}")
    print(f"For you, and nobody else: {opened.instructor}")


@app.command("status", epilog="Example: `./lab room status`")
def room_status() -> None:
    """Show addresses and code of the board that runs, how many are in, and whose hand is up.

    Exit code 2 when none runs.
    """
    from labkit_classroom.board import host

    opened, shown = host.status()
    _say_where(opened)
    print(f"People: {shown['people']}")
    hands = [f"{one['seat']} at {one['hand_at']}, {one['hand_up']} min" for one in shown["seats"] if one["hand_at"]]
    print(f"Hands: {'; '.join(hands) or 'none'}")
    if shown["make_up"]:
        print(shown["make_up"])


@app.command("close", epilog="Example: `./lab room close --out room.json`")
def room_close(out: Annotated[Path, typer.Option(help="the file for what may be kept")] = Path("room.json")) -> None:
    """Keep counts, results without seats, and minutes in a file, and delete everything else that the room had.

    Minutes are those that the room took for sections, next to the planned ones, if it had a timetable. Nothing of
    fewer than five people or machines is kept: counts are rounded down to fives. Exit code 2 if there is no room, or
    the file can't be written; then nothing is deleted.
    """
    from labkit_classroom.board import host

    host.close_room(out)
    print(f"wrote {paths.shown(out)}; all else of the room is deleted")
