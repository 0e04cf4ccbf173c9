"""Commands for instructors, before and during the workshop."""

import functools
import getpass
import os
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.options import SOMETIMES, LabNumber, StudentFolder
from labkit.system import files, paths, terminal
from labkit.system.errors import LabError
from labkit.system.words import plural
from labkit_classroom.commands.options import Hours, Labs, RouteName, Start, chosen_route, timetable

app = typer.Typer()
command = functools.partial(app.command, rich_help_panel="Teaching")


@command(epilog="Example: `./lab agenda --route day --start 9:00` or `./lab agenda --labs 00,02,07 --hours 3.5`")
def agenda(
    route: RouteName = None,
    labs: Labs = None,
    start: Start = "9:00",
    hours: Hours = 7.0,
    people: Annotated[int | None, typer.Option(help="Number of people sharing one server.", min=1, max=10_000)] = None,
    slots: Annotated[int, typer.Option(help="With --people: the number of measuring slots on the server.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the timetable to this file, in Markdown.")] = None,
) -> None:
    """Print a route's timetable: clock times for every section, and breaks.

    Breaks are at most 90 minutes of work apart. Waiting times are those of this machine, as measured by `./lab
    rehearse`. With --people and --slots, they are for people who share one server.
    """
    from rich.markdown import Markdown

    from labkit_classroom.lecture.agenda import markdown

    rounds = max(1.0, people / slots) if people else 1.0
    chosen, days, advice = timetable(route, labs, start, hours, rounds=rounds)
    if people:
        advice.append(f"{people} people measure on {plural(slots, 'slot')}: all waiting takes {rounds:.3g}× as long.")
    text = markdown(chosen, days, advice)
    if out:
        _write(out, text)
    else:
        terminal.console().print(Markdown(text))


@command(epilog="Example: `./lab rehearse --route day`")
def rehearse(
    route: RouteName = None,
    labs: Labs = None,
) -> None:
    """Run a route's labs in full, and store their waiting times on this machine, for `./lab agenda`.

    It takes as long as a student waits, and prints an estimate first. Use the machine you will teach on, otherwise
    idle. Each lab's waiting times are stored in `.lab/rehearsal.json` as soon as it has run, and its results in
    `.lab/rehearsal/work/`: `./lab guide` and `./lab slides` show them.
    """
    from labkit_classroom.lecture import rehearsal

    chosen = f"--route {route}" if route else f"--labs {labs}"
    numbers = chosen_route(route, labs).labs
    print(f"{plural(len(numbers), 'lab')}, in full: about {rehearsal.estimate(numbers):.0f} minutes")
    rehearsal.run(numbers, lambda title, status: print(f"{title}: {status or 'running …'}", flush=True))
    print(f"Everything runs on this machine. Next: ./lab agenda {chosen}")


@command(epilog="Example: `./lab guide --route day --start 9:00 --out guide.html`")
def guide(
    route: RouteName = None,
    labs: Labs = None,
    start: Start = "9:00",
    hours: Hours = 7.0,
    helpers: Annotated[bool, typer.Option("--helpers", help="Make only the page for helpers.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="The page to write.", show_default="guide.html, or helpers.html")
    ] = None,
) -> None:
    """Make the instructor's guide: one page with timetable, what to say, answers, and common mistakes.

    Its last chapter is for helpers: for each exercise, common mistakes, a question to ask, and when to show the
    solution. --helpers makes a printable page of that chapter alone. After `./lab rehearse`, waiting times and results
    are this machine's. The guide contains the answers: it is not for students.
    """
    from labkit_classroom.lecture import guide, rehearsal
    from labkit_classroom.lecture.agenda import markdown

    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}  # suppress notices: nothing is computed
    chosen, days, advice = timetable(route, labs, start, hours)
    template = "helpers" if helpers else "guide"
    agenda_text = markdown(chosen, days, advice)
    _write(out or Path(f"{template}.html"), guide.render(chosen, days, agenda_text, rehearsal.RESULTS, template))
    print("It contains the answers: it is not for students.")


@command(epilog="Example: `./lab slides 07` or `./lab slides --route day --start 9:00`")
def slides(
    labs: Annotated[list[str] | None, typer.Argument(help="The labs, such as 07.")] = None,
    route: RouteName = None,
    start: Annotated[str | None, typer.Option(help="With --route: when a day begins. Adds clock times.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The page to write.", show_default="slides-07.html, for example")
    ] = None,
) -> None:
    """Make slides for labs: one page with key points, questions, pictures, exercises and speaker notes.

    For labs, they cover all sections; for a route, its sections and breaks, with end times if you give --start. Type
    the room's address and code on the cover: click on the placeholders. Keys: S shows the notes, Esc all slides, ? all
    keys. To print, add ?print-pdf to the address.
    """
    from labkit.exercises import catalogue
    from labkit_classroom.lecture import rehearsal, routes
    from labkit_classroom.lecture import slides as pages

    if bool(labs) == bool(route) or (start and not route):
        names = "|".join(routes.names())
        raise LabError(f"name labs, such as ./lab slides 07, or a route: --route {names}, optionally with --start.")
    if route:
        chosen, days, _ = timetable(route, None, start or "9:00", 0)
        title, name, audience = chosen.title, route, chosen.audience
        decks = pages.of_days(days, rehearsal.RESULTS, timed=bool(start))
    else:
        infos = {info.number: info for info in map(catalogue.find, labs or ())}
        title, name, audience = "; ".join(info.title for info in infos.values()), "-".join(infos), ""
        decks = [deck for info in infos.values() for deck in pages.of_lab(info, rehearsal.RESULTS)]
    _write(out or Path(f"slides-{name}.html"), pages.render(title, decks, audience))


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # for example in a container run with a numeric --user
        raise LabError("your account has no name on this machine: give your name with --name.") from error


def _write(out: Path, text: str) -> None:
    files.write(out, text, "name another file with --out")
    print(f"wrote {paths.shown(out)}")


@app.command(rich_help_panel=SOMETIMES, epilog="Example: `./lab catchup 07 --to 4`")
def catchup(
    lab: LabNumber,
    to: Annotated[int, typer.Option(help="The first exercise to leave unsolved.", min=1)],
    folder: StudentFolder,
) -> None:
    """Replace your copy of a lab with one solved up to an exercise; your own copy is kept.

    Results before that exercise are from another machine, and marked as such.
    """
    from labkit.exercises import catalogue, working_copies
    from labkit_classroom.lecture import catch_up

    info = catalogue.find(lab)
    backup = working_copies.reset(info, folder, catch_up.copy(info, to))
    place = paths.shown(working_copies.copy_path(info, folder))
    print(
        f"In {place}, the exercises before {to} are solved. Continue with exercise {to}."
        + (f" Your own copy: {paths.shown(backup)}" if backup else "")
    )
    print(f"In JupyterLab: reload the file from disk, then run all cells above exercise {to}.")


@command("class", epilog="Example: `./lab class --zip --name ada` (a student), then `./lab class collected/` (you)")
def show_class(
    folder: StudentFolder,
    collected_in: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="The folder with the students' zips or folders.", show_default=False),
    ] = None,
    as_zip: Annotated[
        bool, typer.Option("--zip", help="For students: pack your results into one file to hand in.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(help="With --zip: your name.", envvar="LAB_SEAT", show_default="your account's name"),
    ] = None,
) -> None:
    """Show a class's progress, and which machines can run which labs, from collected files, without a server.

    With --zip, a student packs `work/results-NN.json` and the output of `./lab doctor --json` into `NAME-results.zip`
    in their folder. The instructor puts all zips into one folder. Each zip or folder is a student; so is the first part
    of a file's name, as in `ada-results-07.json`. Unreadable files are listed.
    """
    if as_zip == (collected_in is not None):
        raise LabError("students type ./lab class --zip --name NAME; you type ./lab class FOLDER, with all zips in it.")
    if collected_in:
        from labkit_classroom.lecture import collected

        for table in collected.tables(collected.collect(collected_in)):
            terminal.console().print(table)
        return
    from labkit.doctor import checks
    from labkit_classroom.lecture import handed_in

    out, entries = handed_in.write(folder, name or _account(), lambda: checks.examine().as_dict())
    print(f"wrote {paths.shown(out)} with {', '.join(entries)}: hand it in")
