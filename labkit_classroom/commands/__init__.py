"""The classroom commands of `./lab`."""

import typer

from labkit_classroom.commands import board, hub, lecture, seat


def add(app: typer.Typer) -> None:
    """Add the classroom commands to the app."""
    app.add_typer(seat.app)
    app.add_typer(lecture.app)
    app.add_typer(board.app, name="room", rich_help_panel="Teaching")
    app.add_typer(hub.app, name="hub", rich_help_panel="Teaching")
