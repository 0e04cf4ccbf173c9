"""`lab hub`: one server for the class."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from labkit.system import paths, terminal
from labkit.system.errors import LabError

if TYPE_CHECKING:
    from labkit_classroom.hub.control import Hub
    from labkit_classroom.hub.settings import Settings
    from labkit_classroom.hub.verify import Row

app = typer.Typer(help="One server for the class: students log in with a seat and a code.", no_args_is_help=True)

DEFAULT_PORT = 8000
MAX_STUDENTS = 500
SYSTEMD_IS_UP = Path("/run/systemd/system")  # exists where systemd runs: sd_booted(3)
DEFAULT_GIB = 4


@app.command("up", epilog="Example: `./lab hub up --students 40 --labs day`")
def up(
    students: Annotated[int, typer.Option(help="Number of seats.", min=1, max=MAX_STUDENTS)] = 40,
    labs: Annotated[
        str, typer.Option(help="The labs, or a route such as day. The first lab opens at login.")
    ] = "00,02,07",
    address: Annotated[
        str | None, typer.Option(help="HOST[:PORT] to listen on.", show_default=f"this machine's, port {DEFAULT_PORT}")
    ] = None,
    cert: Annotated[Path | None, typer.Option(help="A certificate, for https.")] = None,
    key: Annotated[Path | None, typer.Option(help="The certificate's key.")] = None,
    memory: Annotated[
        int | None,
        typer.Option(help="GiB per student; 0 for no limit.", min=0, show_default=f"{DEFAULT_GIB} where systemd runs"),
    ] = None,
    student_files: Annotated[
        Path | None, typer.Option("--files", help="The parent of the students' folders.", show_default="students")
    ] = None,
) -> None:
    """Start the hub, verify the limits of students' servers, and open it. It runs until `./lab hub down`.

    If you are root, each seat has a Unix account, and limits where systemd runs. Otherwise, all servers run under your
    account, for a trial. Students can join a room that is open on this machine (`./lab room open`). After a crash, the
    same command resumes with the servers that are still running. Codes and the log are in `.lab/hub/`; codes stay valid
    for the next hub with the same files. Exit code 2 if a limit doesn't hold; the hub then stays closed.
    """
    from labkit.system.machine import this_machine
    from labkit.system.terminal import progress
    from labkit_classroom.board.host import tls_files
    from labkit_classroom.hub.control import Hub
    from labkit_classroom.hub.partition import partition

    request = _request(students, labs, address, memory, student_files, tls_files(cert, key))
    hub = Hub()
    with progress("Starting the hub and a first server …"):
        rows = hub.start(request)
    settings = hub.client.settings
    _show_limits(rows, request, students)
    if settings.cpus:
        print(f"Cores: {partition(this_machine(), students)}.")
    print(f"\nThe hub is open:    {request.url}")
    _show_paths(hub, settings)
    if not request.cert:
        print("Without --cert and --key, codes cross the network unencrypted.")
    if not request.has_accounts:
        print("THIS IS A TRIAL: all servers run under your account, and students can read its files. Use root.")
    print("Next: ./lab hub warm, before students arrive. At the end: ./lab hub down")


@app.command("warm", epilog="Example: `./lab hub warm`")
def warm() -> None:
    """Start all students' servers, a few at a time, so that no one waits at login.

    Exit code 1 if any don't start.
    """
    from labkit_classroom.hub.control import Hub
    from labkit_classroom.hub.settings import LOG

    hub = Hub()
    failed = hub.client.warm(lambda up, total: print(f"{up} of {total} servers are up", flush=True))
    if failed:
        print(f"Not up: {', '.join(failed)}. See {paths.shown(hub.folder / LOG)}.")
        raise SystemExit(1)


@app.command("status", epilog="Example: `./lab hub status`")
def status() -> None:
    """Show the hub's address, the page of codes, and the number of running servers. Exit code 1 if no hub is up."""
    from labkit_classroom.hub.control import Hub

    hub = Hub()
    if not hub.settings:
        print("No hub is up. Start one: ./lab hub up --students 40")
        raise SystemExit(1)
    client = hub.client
    servers = [client.servers().get(seat) for seat in client.settings.seats]
    ready, other = servers.count("ready"), len(servers) - servers.count("ready") - servers.count(None)
    print(f"The hub is {'open' if hub.is_open else 'closed'}:    {client.settings.url}")
    print(f"Servers:            {ready} up, {other} starting or stopping, of {len(servers)} seats")
    _show_paths(hub, client.settings)


@app.command("down", epilog="Example: `./lab hub down`")
def down() -> None:
    """Stop the hub and students' processes, and remove the accounts. Students' folders and the codes stay."""
    from labkit.system.terminal import progress
    from labkit_classroom.hub.control import Hub

    hub = Hub()
    settings = hub.settings
    if not settings:
        print("No hub was up.")
        return
    with progress("Stopping the hub and its servers …"):
        hub.stop()
    print(f"The hub has stopped. Students' folders and the codes are in {paths.shown(settings.files)}.")


def _request(
    students: int,
    labs: str,
    address: str | None,
    memory: int | None,
    files: Path | None,
    tls: tuple[Path, Path] | None = None,
) -> "Settings":
    """Return the request for a hub, with this machine's defaults."""
    from labkit.exercises import catalogue
    from labkit.system import addresses
    from labkit_classroom.hub.settings import ACCOUNTS, SYSTEMD, TRIAL, Settings
    from labkit_classroom.lecture import routes

    mode = TRIAL if os.geteuid() != 0 else SYSTEMD if SYSTEMD_IS_UP.is_dir() else ACCOUNTS
    if memory and mode != SYSTEMD:
        raise LabError("--memory needs root on a machine where systemd runs: nothing else here can limit memory.")
    if memory is None:
        memory = DEFAULT_GIB if mode == SYSTEMD else 0
    try:
        parts = urlsplit(f"//{address or addresses.machine_address()}")
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    except ValueError as error:
        raise LabError(f"--address is HOST or HOST:PORT, not {address!r:.80}.") from error
    names = routes.find(labs).labs if labs in routes.names() else labs.split(",")
    return Settings(
        files=(files or paths.ROOT / "students").absolute(),
        students=students,
        labs=tuple(catalogue.find(name.strip()).number for name in names),
        mode=mode,
        memory=memory << 30,
        address=host,
        port=port,
        cert=str(tls[0].absolute()) if tls else "",
        key=str(tls[1].absolute()) if tls else "",
    )


def _show_paths(hub: "Hub", settings: "Settings") -> None:
    """Print where codes, folders and the room are."""
    print(f"Seats and codes:    {paths.shown(hub.cards)}, to print and cut up")
    print(f"Students' folders:  {paths.shown(settings.files)}")
    if "LAB_ROOM" in settings.variables:
        print(f"The room:           {settings.variables['LAB_ROOM']}; students join it with ./lab join in a terminal")


def _show_limits(rows: "list[Row]", hub: "Settings", students: int) -> None:
    """Print a server's limits, and how many fit into memory."""
    from rich.table import Column

    from labkit.system.machine import this_machine
    from labkit.system.terminal import plain_table
    from labkit_classroom.hub.settings import ACCOUNTS
    from labkit_classroom.hub.verify import capacity

    if rows:
        table = plain_table(*map(Column, ("a student's server", "requested", "actual")), header=True)
        for row in rows:
            table.add_row(*row)
        terminal.console().print(table)
    if hub.mode == ACCOUNTS:
        print("systemd is not running here: seats have separate accounts, but no limits.")
    print(capacity(hub, this_machine(), students))
