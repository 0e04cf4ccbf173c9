"""`lab room`: a room's board."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.system import addresses, paths
from labkit_classroom.commands.options import Hours, Labs, RouteName, Start, timetable

if TYPE_CHECKING:
    from labkit_classroom.board import host

app = typer.Typer(help="A room's board, for instructors: progress, raised hands, results.", no_args_is_help=True)


@app.command("open", epilog="Example: `./lab room open --route day --start 9:00`")
def room_open(
    address: Annotated[
        str | None, typer.Option(help="The address to listen on.", show_default="this machine's address")
    ] = None,
    port: Annotated[int, typer.Option(help="The port to listen on.", min=1, max=65535)] = 8500,
    route: RouteName = None,
    labs: Labs = None,
    start: Start = "9:00",
    hours: Hours = 7.0,
    cert: Annotated[Path | None, typer.Option(help="A certificate, for https.")] = None,
    key: Annotated[Path | None, typer.Option(help="The certificate's key.")] = None,
    people: Annotated[
        int | None,
        typer.Option(help="Number expected. Until then, the wall shows how to join in large type.", min=1),
    ] = None,
) -> None:
    """Open the board and serve it until Ctrl-C. Reopening it resumes with all its data.

    On the instructor's page, you can remove seats and change the code while the board is open.
    With a route or labs, it also shows whether the room is behind schedule. The room is stored in `.lab/room/`.
    Exit code 0 after Ctrl-C, 2 if it can't be opened, for example because the port is taken.
    """
    from labkit_classroom.board import host

    tls = host.tls_files(cert, key)
    days = timetable(route, labs, start, hours)[1] if route or labs else []
    address = addresses.numeric(address or addresses.machine_address())

    def on_open(opened: host.Opened) -> None:
        _show_addresses(opened)
        if addresses.is_wildcard(address):
            print("It listens on all addresses of this machine, on every network.")
        print("Ctrl-C stops the board and keeps the room; ./lab room close closes the room.", flush=True)

    host.open_room(address, port, days=days, tls=tls, on_open=on_open, people=people)


def _show_addresses(opened: "host.Opened") -> None:
    print(f"The room is open. Code: {opened.code}")
    print(f"Students type:           ./lab join {opened.base} {opened.code}")
    print(f"For the projector:       {opened.wall}")
    print(f"For you only:            {opened.instructor}")


@app.command("status", epilog="Example: `./lab room status`")
def room_status() -> None:
    """Show the running board's addresses and code, the number of people, and raised hands.

    Exit code 2 if none is running.
    """
    from labkit_classroom.board import host

    opened, view = host.status()
    _show_addresses(opened)
    print(f"People: {view['people']}")
    hands = [f"{seat['seat']} at {seat['hand_at']}, {seat['hand_up']} min" for seat in view["seats"] if seat["hand_at"]]
    print(f"Hands: {'; '.join(hands) or 'none'}")
    if view["make_up"]:
        print(view["make_up"])


@app.command("close", epilog="Example: `./lab room close --out room.json`")
def room_close(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("room.json"),
) -> None:
    """Write counts, and results without seats, to a file, and delete everything else about the room.

    Figures for fewer than five people or machines are dropped, and counts are rounded down to multiples of five. Exit
    code 2 if there is no room or the file can't be written; nothing is deleted then.
    """
    from labkit_classroom.board import host

    host.close_room(out)
    print(f"wrote {paths.shown(out)}; everything else about the room is deleted")
