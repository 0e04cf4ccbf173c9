"""Commands for instructors: before the day, and on the day."""

import functools
import getpass
import os
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.options import LabNumber, StudentFolder
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
    people: Annotated[int | None, typer.Option(help="how many people measure on one server", min=1, max=10_000)] = None,
    slots: Annotated[int, typer.Option(help="with --people: the server's measuring slots", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="write it to a file, in Markdown, instead")] = None,
) -> None:
    """Make a timetable of a route: clock times of each section, and breaks.

    A route has its breaks in `solutions/routes.toml`. With --labs, they are at most 90 minutes of work apart. Waiting
    is what the labs took on this machine, which `./lab rehearse` measures. With --people and --slots, all waiting is
    that of people who share one server.
    """
    from rich.markdown import Markdown

    from labkit_classroom.lecture.agenda import markdown

    rounds = max(1.0, people / slots) if people else 1.0
    chosen, days, advice = timetable(route, labs, start, hours, rounds=rounds)
    if people:
        advice.append(f"{people} people measure on {plural(slots, 'slot')}: all waiting counts {rounds:.3g} times.")
    text = markdown(chosen, days, advice)
    if out:
        _write(out, text)
    else:
        terminal.console().print(Markdown(text))


@command(epilog="Example: `./lab rehearse --route day`")
def rehearse(
    route: RouteName = None,
    labs: Labs = None,
    quick: Annotated[bool, typer.Option("--quick", help="run all cells once, small, and keep nothing")] = False,
) -> None:
    """Run the labs of a route in full, and keep what their waiting takes on this machine, for `./lab agenda`.

    It takes as long as a student waits, and says beforehand how long that is by the plan. Do it on the machine of the
    day, and leave it alone; try it with --quick before. Each lab's waits are kept in `.lab/rehearsal.json` as soon as
    it has run. Its figures are kept in `.lab/rehearsal/work/`: `./lab guide` and `./lab slides` show them.
    """
    from labkit_classroom.lecture import rehearsal

    chosen = f"--route {route}" if route else f"--labs {labs}"
    numbers = chosen_route(route, labs).labs
    minutes = "up to a minute for each" if quick else f"about {rehearsal.estimate(numbers):.0f} minutes"
    print(f"{plural(len(numbers), 'lab')}, {'all cells once, small' if quick else 'in full'}: {minutes}")
    rehearsal.run(numbers, lambda title, what: print(f"{title}: {what or 'running …'}", flush=True), quick)
    print(f"All of it runs on this machine. Next: ./lab {'rehearse' if quick else 'agenda'} {chosen}")


@command(epilog="Example: `./lab guide --route day --start 9:00 --out guide.html`")
def guide(
    route: RouteName = None,
    labs: Labs = None,
    start: Start = "9:00",
    hours: Hours = 7.0,
    helpers: Annotated[bool, typer.Option("--helpers", help="the helpers' page alone")] = False,
    out: Annotated[
        Path | None, typer.Option(help="the page to write", show_default="guide.html, or helpers.html")
    ] = None,
) -> None:
    """Make the instructor's guide: one page with timetable, what to say, answers, mistakes and what they look like.

    Its last chapter is for helpers: of each exercise two mistakes, a question to ask, and when to show the solution.
    --helpers makes a page of it, to print. After `./lab rehearse`, waits and figures are this machine's. The page is
    not for students: it has the answers.
    """
    from labkit_classroom.lecture import guide, rehearsal
    from labkit_classroom.lecture.agenda import markdown

    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}  # nothing is computed: no notices
    chosen, days, advice = timetable(route, labs, start, hours)
    template = "helpers" if helpers else "guide"
    timed = markdown(chosen, days, advice)
    _write(out or Path(f"{template}.html"), guide.render(chosen, days, timed, rehearsal.RESULTS, template))
    print("It has the answers: it is not for students.")


@command(epilog="Example: `./lab slides 07` or `./lab slides --route day --start 9:00`")
def slides(
    labs: Annotated[list[str] | None, typer.Argument(help="the labs, such as 07")] = None,
    route: RouteName = None,
    start: Annotated[str | None, typer.Option(help="with --route: when a day begins, for clock times")] = None,
    out: Annotated[
        Path | None, typer.Option(help="the page to write", show_default="slides-07.html, by labs or route")
    ] = None,
) -> None:
    """Make slides of labs: one page with what to say, questions, pictures and exercises, and notes for the speaker.

    Of a lab they have all sections, of a route those that it does, and its breaks; with --start, they say until when.
    The cover has a place for the room's address and code: click on it, and write them there. Keys: S shows the notes,
    Esc all slides, ? all keys. To print them, add ?print-pdf to the address.
    """
    from labkit.exercises import catalogue
    from labkit_classroom.lecture import rehearsal, routes
    from labkit_classroom.lecture import slides as pages

    if bool(labs) == bool(route) or (start and not route):
        names = "|".join(routes.names())
        raise LabError(f"name labs, such as ./lab slides 07, or a route: --route {names}, with --start if you like.")
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
    except (KeyError, OSError) as error:  # as in a container that runs as a number (docker run --user)
        raise LabError("your account has no name on this machine: give yours with --name.") from error


def _write(out: Path, text: str) -> None:
    files.write(out, text, "name another file with --out")
    print(f"wrote {paths.shown(out)}")


@command(epilog="Example: `./lab catchup 07 --to 4`")
def catchup(
    lab: LabNumber,
    to: Annotated[int, typer.Option(help="the exercise to continue with", min=1)],
    folder: StudentFolder,
) -> None:
    """Put a copy of a lab in your folder in which the exercises before one are solved; your own copy is kept.

    The results before that exercise are from another machine, and marked so.
    """
    from labkit.exercises import catalogue, working_copies
    from labkit_classroom.lecture import catch_up

    info = catalogue.find(lab)
    own_copy = working_copies.reset(info, folder, catch_up.copy(info, to))
    place = paths.shown(working_copies.copy_path(info, folder))
    print(
        f"In {place}, the exercises before {to} are solved. Go on with exercise {to}."
        + (f" Your own copy: {paths.shown(own_copy)}" if own_copy else "")
    )
    print(f"In JupyterLab: reload the file from disk, then run all above exercise {to}.")


@command("class", epilog="Example: `./lab class --zip --name ada`, and with all zips: `./lab class collected/`")
def show_class(
    own: StudentFolder,
    collected_in: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="where the students' zips, or their folders, are", show_default=False),
    ] = None,
    as_zip: Annotated[
        bool, typer.Option("--zip", help="for a student: make one file to hand in, of your results")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(help="with --zip: who you are", envvar="LAB_SEAT", show_default="the name of your account"),
    ] = None,
    grades_file: Annotated[
        Path | None, typer.Option("--csv", help="write points too, one for each exercise, for a learning platform")
    ] = None,
) -> None:
    """Show how far a class is, and which machines can run what, from collected files: no server, no network.

    With --zip a student makes `NAME-results.zip` in their folder, of `work/results-NN.json` and of what `./lab doctor
    --json` says. The instructor puts all zips into a folder. A student is a zip, a folder, or what a file's name begins
    with, such as `ada-results-07.json`. Files that can't be read are listed. The points of --csv are what the students'
    files say, with the columns of nbgrader's export.
    """
    if as_zip == (collected_in is not None):
        raise LabError("name the folder with all zips, or make your own zip: ./lab class --zip --name YOU")
    if collected_in:
        from labkit_classroom.lecture import collected

        found = collected.collect(collected_in)
        for table in collected.tables(found):
            terminal.console().print(table)
        if grades_file:
            _write(grades_file, collected.as_csv(found))
        return
    from labkit.doctor import checks
    from labkit_classroom.lecture import handed_in

    out, entries = handed_in.write(own, name or _account(), lambda: checks.examine().as_dict())
    print(f"wrote {paths.shown(out)}, with {', '.join(entries)}: hand it in")
