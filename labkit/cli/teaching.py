"""Commands for instructors: before the day, and on the day."""

import functools
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.cli import completion
from labkit.cli.options import LabNumber, StudentFolder
from labkit.system import files, paths, terminal
from labkit.system.errors import LabError

if TYPE_CHECKING:
    from labkit.room.agenda import Day
    from labkit.room.routes import Route

app = typer.Typer()
command = functools.partial(app.command, rich_help_panel="Teaching")
room = typer.Typer(
    help="The board of a room, for instructors: who is how far, and who asks for help.", no_args_is_help=True
)
app.add_typer(room, name="room", rich_help_panel="Teaching")

RouteName = Annotated[
    str | None, typer.Option("--route", help="the route: half, day or two-days", autocompletion=completion.routes)
]
Labs = Annotated[str | None, typer.Option(help="or the labs, by their core sections, such as 00,02,07")]
Start = Annotated[str, typer.Option(help="when a day begins")]
Hours = Annotated[float, typer.Option(help="with --labs: how long the day is, with its breaks", min=0.5)]
People = Annotated[int | None, typer.Option(help="how many measure on one server, in turns", min=1)]
Slots = Annotated[int | None, typer.Option(help="with --people: on how many measuring slots", min=1)]
FirstDay = Annotated[str | None, typer.Option("--date", help="the first day", show_default="today")]


@command(epilog="Example: `./lab agenda --route day --start 9:00` or `./lab agenda --labs 00,02,07 --hours 3.5`")
def agenda(
    route: RouteName = None,
    labs: Labs = None,
    start: Start = "9:00",
    hours: Hours = 7.0,
    day: FirstDay = None,
    people: People = None,
    slots: Slots = None,
    out: Annotated[Path | None, typer.Option(help="write it to a file, .md or .ics, instead")] = None,
) -> None:
    """Make a timetable of a route: clock times, with the waiting that the labs took on this machine.

    `./lab rehearse` measures that waiting. Where a day does not fit, it says what to leave out. Where people share one
    server, --people and --slots make their waiting a round of the room: `./lab hub up` says how many slots there are.
    """
    from labkit.room import agenda_view

    chosen, days, advice = _timetable(route, labs, start, hours, day, people, slots)
    if out is None:
        for one in days:
            terminal.console().print(agenda_view.table(one, agenda_view.day_title(one)))
        print("\n".join(advice))
        return
    writers = {".md": agenda_view.markdown, ".ics": agenda_view.calendar}
    if out.suffix not in writers:
        raise LabError(f"an agenda is written as .md or .ics, not as {out.name}.")
    files.write(out, writers[out.suffix](chosen, days, advice), "name another file with --out")
    print(f"wrote {paths.shown(out)}")


def _route(name: str | None, labs: str | None, hours: float = 7.0) -> "Route":
    """Return a route, by its name or of labs."""
    from labkit.room import routes

    if (name is None) == (labs is None):
        raise LabError(f"name a route, --route {'|'.join(routes.names())}, or the labs, such as --labs 00,02,07.")
    return routes.find(name) if name else routes.of_labs((labs or "").split(","), hours)


def _timetable(
    route: str | None,
    labs: str | None,
    start: str,
    hours: float,
    day: str | None,
    people: int | None = None,
    slots: int | None = None,
) -> "tuple[Route, list[Day], list[str]]":
    """Return a route, its days with clock times, and what is to be said of them."""
    from labkit.room import agenda, rehearsal

    chosen, waits = _route(route, labs, hours), rehearsal.waits()
    rounds, shared = agenda.sharing(people, slots)
    days = agenda.schedule(chosen, agenda.clock(start), agenda.calendar_day(day), waits, rounds)
    return chosen, days, [*agenda.advice(days), agenda.basis(chosen, waits), *filter(None, [shared])]


@command(epilog="Example: `./lab rehearse --route day`")
def rehearse(
    route: RouteName = None,
    labs: Labs = None,
) -> None:
    """Run the labs of a route in full, and keep what their waiting takes on this machine, for `./lab agenda`.

    It takes as long as a student waits: up to six minutes a lab. Do it on the machine of the day, and leave it alone.
    Each lab's waits are kept in `.lab/rehearsal.json` as soon as it is through. Its figures are kept in
    `.lab/rehearsal/work/`: `./lab guide` and `./lab slides` show them.
    """
    from labkit.room import rehearsal

    numbers = [part.lab for day in _route(route, labs).days for part in day if part.lab]
    rehearsal.run(numbers, lambda title, what: print(f"{title}: {what or 'running …'}", flush=True))
    print(f"Next: ./lab agenda {f'--route {route}' if route else f'--labs {labs}'}")


@command(epilog="Example: `./lab guide --route day --start 9:00 --out guide.html`")
def guide(
    route: RouteName = None,
    labs: Labs = None,
    start: Start = "9:00",
    hours: Hours = 7.0,
    day: FirstDay = None,
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("guide.html"),
) -> None:
    """Make the instructor's guide: one page with timetable, what to say, answers, mistakes and what they look like.

    After `./lab rehearse`, its waits are this machine's, from `.lab/rehearsal.json`, and its figures too. Without,
    waits are as planned, and figures the stored runs'. It is not for students: it has the answers.
    """
    from labkit.room import guide, rehearsal

    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}  # nothing is computed: no notices
    chosen, days, advice = _timetable(route, labs, start, hours, day)
    files.write(out, guide.render(chosen, days, advice, rehearsal.FOLDER / "work"), "name another file with --out")
    print(f"wrote {paths.shown(out)}: it has the answers, and needs no network")


@command(epilog="Example: `./lab slides 07` or `./lab slides --route day --out day.html`")
def slides(
    labs: Annotated[
        list[str] | None, typer.Argument(help="the labs, such as 07", autocompletion=completion.labs)
    ] = None,
    route: RouteName = None,
    out: Annotated[
        Path | None, typer.Option(help="the page to write", show_default="slides-07.html, by labs or route")
    ] = None,
) -> None:
    """Make slides of labs: one page with what to say, questions, pictures and exercises, and notes for the speaker.

    Of a lab they have all sections, of a route those that it does. Keys: S shows the notes, Esc all slides, ? all keys.
    To print them, add ?print-pdf to the address.
    """
    from labkit.exercises import sources
    from labkit.room import rehearsal, routes
    from labkit.room import slides as pages

    if bool(labs) == bool(route):
        raise LabError(f"name labs, such as ./lab slides 07, or a route: --route {'|'.join(routes.names())}.")
    results = rehearsal.FOLDER / "work"
    if route:
        chosen = routes.find(route)
        title, name = chosen.title, route
        done = [(sources.find(part.lab), part.sections) for day in chosen.days for part in day if part.lab]
        decks = [pages.deck(source, results, {one.name for one in sections}) for source, sections in done]
    else:
        decks = [pages.deck(source, results) for source in dict.fromkeys(map(sources.find, labs or ()))]
        title, name = "; ".join(one.title for one in decks), "-".join(one.number for one in decks)
    out = out or Path(f"slides-{name}.html")
    files.write(out, pages.render(title, decks), "name another file with --out")
    print(f"wrote {paths.shown(out)}: it needs a browser, and no network")


@command(epilog="Example: `./lab catchup 07 --to 4`")
def catchup(
    lab: LabNumber,
    to: Annotated[int, typer.Option(help="the exercise to go on with", min=1)],
    folder: StudentFolder,
) -> None:
    """Put a copy of a lab in your folder in which the exercises before one are solved; yours is kept beside it.

    The results down to there are of another machine, and marked so.
    """
    from labkit.authoring import copies
    from labkit.exercises import sources
    from labkit.room import catch_up

    source = sources.find(lab)
    kept = copies.reset(source, folder, catch_up.copy(source, to))
    place = paths.shown(copies.copy_path(source, folder))
    print(
        f"{place} is solved up to exercise {to}, which is yours."
        + (f" Yours before: {paths.shown(kept)}" if kept else "")
    )
    print(f"In JupyterLab: reload the file from disk, then run all above exercise {to}.")


@command("class", epilog="Example: `./lab class collected/`")
def show_class(
    folder: Annotated[Path, typer.Argument(help="where the students' results-NN.json and doctor's JSON files are")],
) -> None:
    """Show how far a class is, and which machines can run what, from collected files: no server, no network.

    A student is a folder below it, or what a file's name begins with, such as `ada-results-07.json`. Files that can't
    be read are named, with exit code 0. It is 2 when there are no others.
    """
    from labkit.room import collected

    for table in collected.tables(folder):
        terminal.console().print(table)


@command(epilog="Example: `./lab pack --out /media/stick/labs`")
def pack(
    out: Annotated[Path, typer.Option(help="the folder to make, on a stick or for the room's web server")],
    python: Annotated[bool, typer.Option(help="bring Python too; without, each laptop needs its own")] = True,
) -> None:
    """Pack all that laptops need to set up without a network: the kit, Python, all packages, Horovod compiled, MNIST.

    About 1.1 GB. Interrupted, it goes on from there. Students use it by the two commands in its README.txt.
    """
    from labkit.room import pack

    made = pack.make(out, lambda line: print(line, flush=True), python)
    place = paths.shown(out)
    print(f"{place}: {made.n_files} files, {made.size / 1e9:.2f} GB, with their checksums in SHA256SUMS.")
    print(f"From the stick: sh {shlex.quote(str(out / 'start.sh'))}. From this machine: python3 -m http.server in it.")


@room.command("open", epilog="Example: `./lab room open --route day --start 9:00`")
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
) -> None:
    """Open the board and serve it until Ctrl-C. Opened again, it goes on with all it had.

    On the instructor's page you remove seats, and change the code while the board is open.
    With a route, or labs, it also shows who is behind the timetable. The room is kept in `.lab/room/`. Exit code 0 when
    it was ended by Ctrl-C, 2 when it can't be opened, such as when the port is taken.
    """
    from labkit.room import host

    tls = host.tls_files(cert, key)
    days = _timetable(route, labs, start, hours, day)[1] if route or labs else []
    address = host.numeric(address or host.own_address())

    def say(base: str, code: str, instructor: str) -> None:
        print(f"The room is open. Code: {code}")
        print(f"Students type:           ./lab join {base} {code}")
        print(f"For the projector:       {base}/")
        print(f"For you, and nobody else: {instructor}")
        if host.is_everywhere(address):
            print("It listens on all addresses of this machine, in each of its networks.")
        print("Ctrl-C ends the board and keeps the room; ./lab room close ends the room.", flush=True)

    host.open_room(address, port, days, tls, say, new_code)


@room.command("close", epilog="Example: `./lab room close --out room.json`")
def room_close(out: Annotated[Path, typer.Option(help="the file for what may be kept")] = Path("room.json")) -> None:
    """Keep counts and figures without seats in a file, and delete all else that the room had.

    Nothing of fewer than five people or machines is kept: counts are rounded down to fives. Exit code 2 when there is
    no room, or the file can't be written; then nothing is deleted.
    """
    from labkit.room import host

    host.close_room(out)
    print(f"wrote {paths.shown(out)}; all else of the room is deleted")
