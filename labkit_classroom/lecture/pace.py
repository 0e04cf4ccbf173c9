"""How fast a room went: what its sections took, against what was planned, from the file of `./lab room close`."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.system import files, paths
from labkit.system.errors import LabError

Pace = Mapping[str, Mapping[str, float]]  # how many times as long as planned each section of a lab took, by lab
# Beyond these a room's times say more about something else than about the section: a lab that was only shown, or a
# lunch in the middle of it.
LEAST, MOST = 0.5, 3.0


def read(path: Path) -> Pace:
    """Return how many times as long as planned each section took, of a room's file.

    Its `minutes` are spans, `{"lab": "02", "sections": ["1", "2"], "planned": 22.0, "taken": 31.0}`: all sections of
    one get the same. A section in several gets what these took in all.

    Raises
    ------
    LabError
        When it can't be read, or has no such minutes.
    """
    shown = paths.shown(path)
    try:
        room = files.read_json(path)
    except OSError as error:
        raise LabError(
            files.describe_error(error, f"cannot read {shown}", "name what ./lab room close has written")
        ) from error
    except ValueError as error:
        raise LabError(f"{shown} is no file of a room: name what ./lab room close has written.") from error
    spans = room.get("minutes") if isinstance(room, dict) else None
    if not isinstance(spans, list) or not all(map(_is_span, spans)):
        raise LabError(f"{shown} has no minutes of a room: name what ./lab room close has written.")
    planned, taken = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for span in spans:
        for section in span["sections"]:
            planned[span["lab"], section] += span["planned"]
            taken[span["lab"], section] += span["taken"]
    pace: dict[str, dict[str, float]] = {}
    for (lab, section), minutes in planned.items():
        pace.setdefault(lab, {})[section] = min(MOST, max(LEAST, taken[lab, section] / minutes))
    return pace


def _is_span(span: Any) -> bool:
    return (
        isinstance(span, dict)
        and isinstance(span.get("lab"), str)
        and isinstance(span.get("sections"), list)
        and all(isinstance(name, str) for name in span["sections"])
        and all(map(are_minutes, (span.get("planned"), span.get("taken"))))
        and span["planned"] > 0
    )


def are_minutes(minutes: Any) -> bool:
    """Whether it is a time that a part of a day takes, in minutes, as a file has it."""
    return isinstance(minutes, float | int) and 0 <= minutes < 24 * 60
