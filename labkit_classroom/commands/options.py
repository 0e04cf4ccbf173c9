"""Options shared by the instructors' commands, and the route or timetable they request."""

from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.system.errors import LabError

if TYPE_CHECKING:
    from labkit_classroom.lecture.agenda import Day
    from labkit_classroom.lecture.routes import Route

RouteName = Annotated[
    str | None,
    typer.Option(
        "--route",
        help="The route: half, day, two-days, language-models or pytorch-first.",
    ),
]
Labs = Annotated[str | None, typer.Option(help="Labs to include instead of a route, core sections only: 00,02,07.")]
Start = Annotated[str, typer.Option(help="When a day begins.")]
Hours = Annotated[float, typer.Option(help="With --labs: the length of the day, including breaks.", min=0.5, max=24)]


def chosen_route(name: str | None, labs: str | None, hours: float = 7.0) -> "Route":
    """Return a route, by name or from labs."""
    from labkit_classroom.lecture import routes

    if (name is None) == (labs is None):
        raise LabError(f"name a route, --route {'|'.join(routes.names())}, or labs, such as --labs 00,02,07.")
    return routes.find(name) if name else routes.of_labs((labs or "").split(","), hours)


def timetable(
    route: str | None, labs: str | None, start: str, hours: float, rounds: float = 1.0
) -> "tuple[Route, list[Day], list[str]]":
    """Return a route, its days with clock times, and advice on them."""
    from labkit_classroom.lecture import agenda, rehearsal

    chosen, waits = chosen_route(route, labs, hours), rehearsal.waits()
    days = agenda.schedule(chosen, agenda.clock(start), date.today(), waits, rounds)
    return chosen, days, [*agenda.advice(days), agenda.basis(chosen, waits)]
