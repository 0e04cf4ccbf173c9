"""`lab hub`: one server for all."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.system import addresses, paths, terminal
from labkit.system.errors import LabError
from labkit_classroom.commands.options import FirstDay, RouteName, Start, chosen_route, timetable

if TYPE_CHECKING:
    from labkit_classroom.hub.check import Row
    from labkit_classroom.hub.control import Hub
    from labkit_classroom.hub.settings import Request, State
    from labkit_classroom.lecture.routes import Route

WORKSHOP = "Deep learning at scale on CPUs"

app = typer.Typer(help="One server for all: students log in with a seat and a code.", no_args_is_help=True)

DEFAULT_LABS = "00,02,07"
Students = Annotated[int, typer.Option(help="how many seats", min=1, max=500)]
Labs = Annotated[
    str | None,
    typer.Option(help="or the labs that are taught; the first one is opened at login", show_default=DEFAULT_LABS),
]
Port = Annotated[int, typer.Option(help="the port to listen on", min=1, max=65535)]
BoardPort = Annotated[int, typer.Option(help="the port of the room's board; 0 for no board", min=0, max=65535)]
Memory = Annotated[float, typer.Option(help="GiB that each student can have; 0 for no limit", min=0)]
Cores = Annotated[
    float | None,
    typer.Option(
        help="CPU time that each can have, in CPUs; 0 for no limit", min=0, show_default="a quarter, at least 2"
    ),
]
Isolation = Annotated[
    str | None,
    typer.Option(
        help="what keeps students apart: systemd, accounts, slurm or none", show_default="the best that there is"
    ),
]
Hours = Annotated[float, typer.Option(help="after which Slurm ends a student's job, with --isolation slurm", min=0.1)]
Slots = Annotated[bool, typer.Option(help="lend cores for measuring, one student at a time, and edit on the others")]


@app.command("up", epilog="Example: `./lab hub up --students 40 --route day --start 9:00`")
def up(
    students: Students = 40,
    route: RouteName = None,
    labs: Labs = None,
    start: Start = "9:00",
    day: FirstDay = None,
    name: Annotated[
        str | None, typer.Option(help="the workshop's name, on the login page", show_default="the route's")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="the address to listen on", show_default="this machine's own")
    ] = None,
    port: Port = 8000,
    board_port: BoardPort = 8500,
    cert: Annotated[Path | None, typer.Option(help="a certificate, for https")] = None,
    key: Annotated[Path | None, typer.Option(help="and its key")] = None,
    memory: Memory = 4.0,
    cores: Cores = None,
    student_files: Annotated[
        Path | None, typer.Option("--files", help="where each student's folder is made", show_default="students")
    ] = None,
    isolation: Isolation = None,
    slots: Slots = True,
    hours: Hours = 8.0,
    new_codes: Annotated[
        bool, typer.Option("--new-codes", help="make new codes; the cards that were printed become void")
    ] = False,
) -> None:
    """Start the server, check what students are held to, and let them in. It stays until `./lab hub down`.

    Students have copies of the labs of the route, or of --labs, and the room's board has their timetable.
    As root each seat has a Unix account of its own, with limits by systemd, or by cgroups where systemd does not run.
    Otherwise all servers run under your account, for trying. With `--isolation slurm` each server is a Slurm job of
    yours; sbatch's own variables, such as SBATCH_PARTITION and SBATCH_ACCOUNT, choose where. After a crash, the same
    command goes on where it was. Seats with their codes, and the log, are in `.lab/hub/`. The codes are kept among the
    students' files: the next hub of the same files takes them again. Exit code 2 when a limit that was asked for does
    not hold: then nobody is let in.
    """
    address = address or addresses.own()
    _look_ahead(address, port, board_port, isolation)  # before the imports below, which take seconds

    import signal

    from labkit.system.progress import progress
    from labkit_classroom.board.host import tls_files
    from labkit_classroom.hub import codes, opening, settings
    from labkit_classroom.hub.control import Hub

    tls = tls_files(cert, key)
    files = student_files or opening.FILES
    chosen = _chosen(route, labs)
    board_plan = ["--route", route] if route else ["--labs", labs] if labs else []
    if board_plan:
        timetable(route, labs, start, chosen.hours, day)  # refuses what the board could not read
        board_plan += ["--start", start, *(["--date", day] if day else [])]
    request = opening.settle(
        students,
        chosen.labs,
        address,
        port,
        board_port=board_port,
        tls=tls,
        memory_gib=memory,
        cores=cores,
        students_files=files,
        keep_apart=_not_as_root(isolation),
        divide=slots,
        hours=hours,
        name=name or (f"{WORKSHOP}: {chosen.title[0].lower()}{chosen.title[1:]}" if route else WORKSHOP),
        timetable=board_plan,
    )
    hub = Hub()
    has_old_codes = not new_codes and bool(codes.kept(files))
    for number in (signal.SIGTERM, signal.SIGHUP):  # as by Ctrl-C, nothing is left of what was not open yet
        signal.signal(number, signal.default_int_handler)
    with progress("Starting the hub, and a server to look at …"):
        rows, server = opening.open_checked(hub, request, new_codes)
    state = hub.state
    assert state
    _show(rows, request)
    print("\n".join(opening.capacity(request, server, request.labs)))
    if request.cpus:
        print(f"Cores: {opening.division(state)}.")
    print(f"\nThe room is open:   {request.url}")
    if not request.cert:
        print("Without --cert and --key, codes cross the network in the clear.")
    _show_places(hub, state)
    if has_old_codes:
        print("The codes are those of before: printed cards are good. --new-codes makes new ones.")
    if request.isolation == settings.NONE:
        print("NOTHING KEEPS STUDENTS APART: all servers run under your account. This is for trying; run it as root.")
    if request.isolation == settings.SLURM:
        print("NOTHING KEEPS STUDENTS' FILES APART: all jobs are yours. Each can read all that you can, the codes too.")
    print("Next: ./lab hub warm, before they come. When done: ./lab hub down")


@app.command("check", epilog="Example: `./lab hub check --students 40 --route day`")
def check(
    students: Students = 40,
    route: RouteName = None,
    labs: Labs = None,
    address: Annotated[
        str | None, typer.Option(help="the address that `up` will listen on", show_default="this machine's own")
    ] = None,
    port: Port = 8000,
    board_port: BoardPort = 8500,
    memory: Memory = 4.0,
    cores: Cores = None,
    isolation: Isolation = None,
    slots: Slots = True,
    hours: Hours = 8.0,
) -> None:
    """Read back from inside a server what it is held to, and measure how many students the machine carries.

    Of a hub that is up, it looks at that one. Otherwise it looks first at what `up` will need: root, Python, ports.
    Then it starts a hub for the look, on loopback, and ends it with its accounts and folders. The labs' memory comes
    last, and is measured once, by running them small, which takes up to a minute for each. Exit code 1 when a limit
    that was asked for does not hold.
    """
    address = address or addresses.own()
    _look_ahead(address, port, board_port, isolation)

    import shutil
    from dataclasses import replace

    from labkit_classroom.hub import memory as lab_memory
    from labkit_classroom.hub import opening, settings
    from labkit_classroom.hub.control import Hub

    numbers, hub = _chosen(route, labs).labs, Hub()
    up = hub.state if hub.pid() else None
    if up:
        rows, server = opening.verify(hub)
        request = up.request
    else:
        request = opening.settle(
            students,
            numbers,
            address,
            port,
            board_port=board_port,
            memory_gib=memory,
            cores=cores,
            students_files=paths.STATE / "hub-check-students",
            keep_apart=_not_as_root(isolation),
            divide=slots,
            hours=hours,
        )
        if request.isolation == settings.NONE:
            print("Nothing would keep students apart: that takes root. This is for trying.")
        hub = Hub(paths.STATE / "hub-check")
        try:
            (free,) = addresses.free_ports(1)
            hub.start(replace(request, address=addresses.LOOPBACK, port=free, board_port=0))
            rows, server = opening.verify(hub)
        finally:
            hub.stop()
            shutil.rmtree(request.files, ignore_errors=True)
    _show(rows, request)
    if request.isolation != settings.SLURM:  # of a job, Slurm is asked for memory
        lab_memory.of_labs(numbers, lambda title: print(f"Measuring the memory of {title} …", flush=True))
    print("\n".join(opening.capacity(request, server, numbers)))
    raise SystemExit(0 if all(row.holds for row in rows) else 1)


@app.command("warm", epilog="Example: `./lab hub warm`")
def warm() -> None:
    """Start every student's server beforehand, four at a time.

    Otherwise whoever logs in last waits for all the others. Exit code 1 when one does not start: it is named.
    """
    from labkit_classroom.hub import configuration, opening
    from labkit_classroom.hub.client import Client

    running = _running()

    def show(up: int, of: int) -> None:
        print(f"{up} of {of} servers are up", flush=True)

    failed = opening.warm(Client(running), configuration.start_timeout(running), show)
    if failed:
        print(f"Not up: {', '.join(failed)}. The hub's log says why: {paths.shown(running.folder)}/hub.log")
    raise SystemExit(1 if failed else 0)


@app.command("status", epilog="Example: `./lab hub status`")
def status() -> None:
    """Show the addresses, the page of codes, and how many servers run. Exit code 1 when the hub is not up.

    What happens is in `.lab/hub/hub.log`.
    """
    from labkit_classroom.hub.client import Client
    from labkit_classroom.hub.control import Hub

    hub = Hub()
    state = hub.state
    if not state:
        print("No hub is up. Start one: ./lab hub up --students 40")
    elif not hub.pid():
        print("The hub was ended from outside. The same ./lab hub up goes on with it, ./lab hub down clears it.")
    else:
        servers = Client(state).servers()
        ready = sum(state == "ready" for state in servers.values())
        print(f"The hub is {'open' if hub.is_open else 'up, and lets nobody in yet'}: {state.request.url}")
        if not hub.is_open:
            print("Does no ./lab hub up look at it any more? The same one goes on with it, ./lab hub down clears it.")
        print(f"Servers: {ready} up, {len(servers) - ready} starting or stopping, of {state.request.students} seats")
        _show_places(hub, state)
        raise SystemExit(0)
    raise SystemExit(1)


@app.command("down", epilog="Example: `./lab hub down`")
def down(
    delete_files: Annotated[bool, typer.Option("--delete-files", help="delete the students' folders too")] = False,
) -> None:
    """End the server, its students' processes and the accounts that it made. Students' folders and codes are kept.

    The board's room is kept too, until `./lab room close`.
    """
    from labkit.system.progress import progress
    from labkit_classroom.hub.control import Hub

    hub = Hub()
    state = hub.state
    with progress("Ending the hub and its servers …"):
        was_up = hub.stop(delete_files)
    if not state or not was_up:
        print("No hub was up.")
    elif delete_files:
        print("The hub is ended, and the students' folders and codes are deleted.")
    else:
        folders = paths.shown(state.request.files)
        print(f"The hub is ended. Students' folders are kept in {folders}, and the codes of the cards.")
    if state and state.request.board_port:
        print("The board's room is kept: ./lab room close keeps its counts, and deletes the rest.")


def _chosen(route: str | None, labs: str | None) -> "Route":
    """Return the route, by its name or of labs; of the usual labs where neither is given."""
    return chosen_route(route, labs if route or labs is not None else DEFAULT_LABS)


def _running() -> "State":
    """Return the hub that is up."""
    from labkit_classroom.hub.control import Hub

    hub = Hub()
    state = hub.state
    if not state or not hub.pid():
        raise LabError("no hub is up: ./lab hub up --students 40 starts one.")
    return state


def _look_ahead(address: str, port: int, board_port: int, isolation: str | None) -> None:
    """Refuse in the first second what would be found after minutes, unless there is a hub: it may have the ports."""
    import os

    from labkit_classroom.hub import ahead, settings

    if not settings.load(settings.FOLDER):
        how = _not_as_root(isolation) or (settings.ACCOUNTS if os.geteuid() == 0 else settings.NONE)
        ahead.look(address, port, board_port, how in (settings.SYSTEMD, settings.ACCOUNTS))


def _not_as_root(isolation: str | None) -> str | None:
    """Return what keeps students apart; refuse what would make all of them root."""
    import os

    if isolation in ("none", "slurm") and os.geteuid() == 0:
        raise LabError(f"--isolation {isolation} would make every student root: run this as another user.")
    return isolation


def _show_places(hub: "Hub", state: "State") -> None:
    """Print where everything is."""
    print(f"Seats and codes:    {paths.shown(hub.cards)}, to print and cut up")
    print(f"Students' folders:  {paths.shown(state.request.files)}")
    if state.request.board_port:
        wall = f"{state.variables['LAB_ROOM']}/#{state.variables['LAB_ROOM_CODE']}"
        print(f"Students join the board by ./lab join in a terminal. For the projector: {wall}")
        print(f"For you, and nobody else: {state.instructor}")


def _show(rows: "list[Row]", request: "Request") -> None:
    """Print what a server is held to."""
    from rich.table import Column

    from labkit.system.tables import plain_table

    table = plain_table(*map(Column, ("a student's server", "asked", "found", "")), header=True)
    for row in rows:
        table.add_row(row.what, row.asked, row.found, "" if row.holds else "DOES NOT HOLD")
    console = terminal.console()
    console.print(f"Kept apart by: {request.isolation}")
    console.print(table)
