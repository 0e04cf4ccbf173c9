"""Add the skeleton of a new exercise to a lab's source, and its check."""

import re
import subprocess
import sysconfig
from pathlib import Path

from labkit.system import files, paths
from labkit_author import sources
from labkit_author.notebooks import QUESTIONS, by_section
from labkit_author.skeletons import FUNCTION, SCRIPT, TABLES

DO_MIN = 10  # minutes of a new exercise, until they are measured
CLOSING = re.compile(r"^# %% \[markdown\][^\n]*\n# (?:## (?:Questions|Remember)|<div[^\n]*alert-warning)", re.M)
CHECK = re.compile(r"^\w+ = check\(\d+, .*$", re.M)


def new_exercise(source: Path, script: bool = False) -> tuple[int, list[Path]]:
    """Add an exercise after a lab's last one, before the closing questions.

    Parameters
    ----------
    source : Path
        The lab's source.
    script : bool
        Whether the answer is a script whose function runs on ranks.

    Returns
    -------
    tuple of (int, list of Path)
        The exercise's number, and the files that were written.
    """
    lab, skeleton = source.stem[:2], SCRIPT if script else FUNCTION
    checks = paths.ROOT / "labkit" / "exercises" / "labs" / f"lab{lab}.py"
    number = len(sources.exercises(sources.read(source))) + 1
    names = {"n": str(number), "lab": lab}
    _put(source, _end_of_exercises(source.read_text(encoding="utf-8")), skeleton.text.substitute(names))
    before = checks.read_text(encoding="utf-8") if checks.exists() else TABLES.substitute(names)
    files.write(checks, _importing(skeleton.imports, before) + skeleton.check.substitute(names))
    _format(source, checks)
    _give_minutes(source, number)
    return number, [source, checks]


def _give_minutes(source: Path, exercise: int) -> None:
    """Plan minutes for an exercise's section if it has none."""
    sections = by_section(sources.read(source))
    name = next(section.name for section in sections if exercise in section.exercises)
    heading = "Questions" if name == QUESTIONS else f"{name} · .*"
    without = re.compile(rf"^(# ## {heading} {{read [\d.]+)(?!.*, do )", re.M)
    files.write(source, without.sub(rf"\g<1>, do {DO_MIN}", source.read_text(encoding="utf-8")))


def _end_of_exercises(text: str) -> int:
    """Return the line before which to insert a new exercise: the first closing cell, or the end."""
    begin = max((check.end() for check in CHECK.finditer(text)), default=0)
    closing = CLOSING.search(text, begin)
    return text.count("\n", 0, closing.start()) if closing else text.count("\n")


def _put(path: Path, line: int, text: str) -> None:
    """Insert text after a line of a file."""
    lines = path.read_text(encoding="utf-8").split("\n")
    files.write(path, "\n".join([*lines[:line], *text.removesuffix("\n").split("\n"), *lines[line:]]))


def _importing(imports: dict[str, str], text: str) -> str:
    """Return a module's text with its missing imports added, for ruff to sort."""
    imported = " ".join(re.findall(r"^(?:from|import) .*(?:\([^)]*\))?", text, re.M))
    missing = [line for name, line in imports.items() if not re.search(rf"\b{name}\b", imported)]
    first = re.search(r"^(?:from|import) ", text, re.M)
    return text if first is None else "\n".join([text[: first.start()] + "\n".join(missing), text[first.start() :]])


def _format(*changed: Path) -> None:
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    for command in (("check", "--quiet", "--fix", "--select=I"), ("format", "--quiet")):
        subprocess.run([ruff, *command, *changed], cwd=paths.ROOT, check=True)
