"""Commands for instructors: before the day, and on the day."""

import functools
import os
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli import completion
from labkit.cli.options import LabNumber, StudentFolder
from labkit.system import files, paths, terminal
from labkit.system.errors import LabError
from labkit_classroom.commands.options import (
    FirstDay,
    Hours,
    Labs,
    People,
    RouteName,
    Slots,
    Start,
    chosen_route,
    timetable,
)

app = typer.Typer()
command = functools.partial(app.command, rich_help_panel="Teaching")


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
    from labkit_classroom.lecture import agenda_view

    chosen, days, advice = timetable(route, labs, start, hours, day, people, slots)
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
    from labkit_classroom.lecture import rehearsal

    numbers = [part.lab for day in chosen_route(route, labs).days for part in day if part.lab]
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
    from labkit_classroom.lecture import guide, rehearsal

    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}  # nothing is computed: no notices
    chosen, days, advice = timetable(route, labs, start, hours, day)
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
    from labkit_classroom.lecture import rehearsal, routes
    from labkit_classroom.lecture import slides as pages

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
    from labkit.exercises import copies, sources
    from labkit_classroom.lecture import catch_up

    source = sources.find(lab)
    own_copy = copies.reset(source, folder, catch_up.copy(source, to))
    place = paths.shown(copies.copy_path(source, folder))
    print(
        f"{place} is solved up to exercise {to}, which is yours."
        + (f" Yours before: {paths.shown(own_copy)}" if own_copy else "")
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
    from labkit_classroom.lecture import collected

    for table in collected.tables(folder):
        terminal.console().print(table)
