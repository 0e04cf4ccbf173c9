"""Load the planted mistakes and alternative right answers of a lab's exercises.

They are in `solutions/mistakes/NN.toml`; those of scripts and C files that are data, in `labkit/exercises/labs`.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from labkit.exercises.labs import in_c, on_ranks
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author.notebooks import BEGIN


@dataclass(frozen=True)
class Change:
    """A change to a solution's text.

    Attributes
    ----------
    after : str
        The new text.
    before : str
        The text to replace, at each place in the solution.
    below : str
        If `before` is empty, `after` replaces everything below this line.
    message : str
        Text that the check prints about this mistake, or what doesn't hold then; empty for a right answer.
    """

    after: str
    before: str = ""
    below: str = BEGIN
    message: str = ""

    def apply(self, solution: str) -> str:
        """Return the solution with this change."""
        place = self.before or f"{self.below}\n"
        if place not in solution:
            raise LabError(f"the solution no longer contains {place!r}: plant another mistake.")
        if self.before:
            return solution.replace(self.before, self.after)
        return solution.partition(place)[0] + place + self.after


def planted(number: str) -> dict[int, list[Change]]:
    """Return the planted mistakes of a lab's exercises, by exercise."""
    wrong = {
        n: [((invariant.__doc__ or "").strip().rstrip("."), script) for invariant, script in of.wrong]
        for n, of in on_ranks(number).items()
    } | {n: of.wrong for n, of in in_c(number).items()}
    data = {n: [Change(*script, message=message) for message, script in pairs] for n, pairs in wrong.items()}
    return _load(number, "mistakes") | data


def right(number: str) -> dict[int, list[Change]]:
    """Return the alternative right answers of a lab's exercises, by exercise."""
    data = {n: of.right for n, of in on_ranks(number).items()} | {n: of.right for n, of in in_c(number).items()}
    return _load(number, "right") | {n: [Change(*script) for script in scripts] for n, scripts in data.items()}


def path(number: str) -> Path:
    """Return a lab's file."""
    return paths.SOLUTIONS / "mistakes" / f"{number}.toml"


def _load(number: str, kind: str) -> dict[int, list[Change]]:
    if not path(number).exists():
        return {}
    exercises = tomllib.loads(path(number).read_text(encoding="utf-8"))
    return {int(exercise): [Change(**entry) for entry in kinds.get(kind, [])] for exercise, kinds in exercises.items()}
