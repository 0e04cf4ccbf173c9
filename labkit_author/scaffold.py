"""Puts the skeletons of a new lab and of a new exercise into the files where they belong."""

import ast
import re
import subprocess
import sysconfig
from pathlib import Path

from labkit.exercises import minutes, sources
from labkit.system import files, paths
from labkit.system.errors import LabError
from labkit_author import renumber, skeletons
from labkit_author.skeletons import FUNCTION, SCRIPT

DO_MIN = 10  # minutes of a new exercise, until somebody has measured it
MARKER = re.compile(r"# %%(?!%|\w)")
CLOSING = re.compile(r"^# %% \[markdown\][^\n]*\n# (?:## (?:Questions|Remember)|<div[^\n]*alert-warning)", re.M)

TEST_IMPORTS = {name: f"from labs import {name}" for name in ("same", "swap")}


def new_lab(number: str, topic: str) -> list[Path]:
    """Make a lab with one exercise: source, checks, tests, and its lines in plan, agenda and the doctor's table.

    Parameters
    ----------
    number : str
        Two digits that no lab has yet, such as "10".
    topic : str
        Lower-case words joined by `_`, for the files' names; the title is made from it.

    Returns
    -------
    list of Path
        The files that were written.

    Raises
    ------
    LabError
        For a number or a topic of another form, or a number that is taken.
    """
    if not re.fullmatch(r"\d\d", number):
        raise LabError(f"a lab's number has two digits, such as 10; {number!r} has not.")
    if not re.fullmatch(r"[a-z]\w*", topic):
        raise LabError(f"a topic is lower-case words joined by _, such as data_pipelines; {topic!r} is not.")
    if taken := [source.stem for source in sources.labs() if source.stem.startswith(number)]:
        raise LabError(f"number {number} is taken by {taken[0]}: take the next free one.")
    names = {"number": number, "name": f"{number}_{topic}", "title": topic.replace("_", " ").capitalize()}
    source = paths.SOLUTIONS / f"{names['name']}.py"
    made = {
        source: skeletons.LAB_SOURCE,
        _checks_of(number): skeletons.LAB_CHECKS,
        _tests_of(number): skeletons.LAB_TESTS,
    }
    for path, template in made.items():
        files.write(path, template.substitute(names))
    plan = paths.SOLUTIONS / minutes.FILE
    files.write(plan, plan.read_text() + skeletons.MINUTES.substitute(names))
    readme = paths.ROOT / "README.md"
    _insert(readme, r"(?:^\| \[\d\d .*\n)+", skeletons.AGENDA.substitute(names), "the agenda's table")
    doctor = paths.ROOT / "labkit" / "doctor" / "labs.py"
    _insert(doctor, r"^LABS = \(\n(?:[ ].*\n)+", skeletons.DOCTOR.substitute(names), "the table LABS")
    new_exercise(source)
    return [*made, plan, readme, doctor]


def new_exercise(source: Path, after: int | None = None, script: bool = False) -> tuple[int, list[Path], list[str]]:
    """Add an exercise to a lab's source, to its checks, and to its tests; those after it get the next number.

    Parameters
    ----------
    source : Path
        The lab's source.
    after : int, optional
        The exercise that it comes after; by default it is the last, before the closing questions.
    script : bool
        Whether it is a script on ranks, with a probe.

    Returns
    -------
    tuple of (int, list of Path, list of str)
        The exercise's number; the files that were written, those with the exercise first: source, checks, tests, and
        the probe of a script; and where a person has to look (`renumber.make_room`).

    Raises
    ------
    LabError
        For an exercise that the lab does not have, and when the last skeleton is still as it was.
    """
    lab, skeleton = source.stem[:2], SCRIPT if script else FUNCTION
    known = sources.exercises(sources.read(source))
    if after is not None and after not in known:
        raise LabError(f"lab {lab} has no exercise {after}, only {', '.join(map(str, known))}.")
    number = (len(known) if after is None else after) + 1
    names = {"n": str(number), "lab": lab}
    name, checks, tests = f"{skeleton.name}_{number}", _checks_of(lab), _tests_of(lab)
    if re.search(rf"\b{name}\b", source.read_text()):
        raise LabError(f"{paths.shown(source)} has {name} of an earlier skeleton: make that exercise yours first.")
    for cases in renumber.CASES:
        _end_of_cases(tests, cases, after)  # before anything is written
    written, counted = renumber.make_room(source, number - 1)
    probe = checks.with_name(f"lab{lab}_{name}.py")
    _put(source, _place_of_text(source, after), skeleton.text.substitute(names))
    _put(checks, _end_of_check(checks, after), skeleton.check.substitute(names))
    files.write(checks, _importing(skeleton.imports, checks.read_text()))
    for cases, template in (("mistakes", skeleton.mistakes), ("right", skeleton.right)):
        _put(tests, _end_of_cases(tests, cases, after), template.substitute(names))
    files.write(tests, _importing(TEST_IMPORTS, tests.read_text()))
    made = [source, checks, tests]
    if skeleton.probe is not None:
        files.write(probe, skeleton.probe.substitute(names))
        made.append(probe)
    _format(*made)
    made += _give_minutes(source, number)
    return number, [*made, *(path for path in written if path not in made)], counted


def _give_minutes(source: Path, exercise: int) -> list[Path]:
    """Plan minutes for an exercise's section where it had none; return the plan's file if that changed it."""
    sections = minutes.by_section(sources.read(source))
    name = next((section.name for section in sections if exercise in section.exercises), "")
    if not name or next(section.do for section in minutes.plan(source) if section.name == name):
        return []
    plan = paths.SOLUTIONS / minutes.FILE
    line = rf"(?ms)(^\[{source.stem[:2]}\]$.*?^{name} = {{[^}}\n]*?)(, wait|, core| }})"
    files.write(plan, re.sub(line, rf"\g<1>, do = {DO_MIN}\g<2>", plan.read_text(), count=1))
    return [plan]


def _place_of_text(source: Path, after: int | None) -> int:
    """Return the line of a source before which a new exercise belongs: the cell after the check of one, or the end."""
    text = source.read_text()
    lines = text.split("\n")
    known = sources.exercises(sources.read(source))
    checks = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assign)]
    checked = {number: node.end_lineno or 0 for node in checks for number in known if _is_check_of(node.value, number)}
    if after is None:  # the lab's closing cells stand after its last exercise
        begin = len("\n".join(lines[: max(checked.values(), default=0)]))
        return text.count("\n", 0, found.start()) if (found := CLOSING.search(text, begin)) else len(lines)
    return next((line for line in range(checked[after], len(lines)) if MARKER.match(lines[line])), len(lines))


def _is_check_of(node: ast.AST, number: int) -> bool:
    match node:
        case ast.Call(ast.Name("check"), [ast.Constant(found), *_]):
            return found == number
    return False


def _end_of_check(checks: Path, after: int | None) -> int:
    """Return the line of a lab's checks after the check of an exercise; the last line for none."""
    text = checks.read_text()
    for node in ast.parse(text).body if after is not None else []:
        for decorator in getattr(node, "decorator_list", []):
            match decorator:
                case ast.Call(ast.Attribute(attr="exercise"), [ast.Constant(number), *_]) if number == after:
                    return node.end_lineno or 0
    return text.count("\n")


def _end_of_cases(tests: Path, cases: str, after: int | None) -> int:
    """Return the line of a lab's tests after the last of the cases of an exercise, or of all exercises."""
    for node in ast.walk(ast.parse(tests.read_text())):
        match node:
            case ast.Assign([ast.Name(name)], ast.List(entries)) if name == cases:
                of_it = [entry for entry in entries if after is None or renumber.first_number(entry) == after]
                return (of_it[-1].end_lineno or 0) if of_it else (node.end_lineno or 0) - 1
    raise LabError(f"{paths.shown(tests)} has lost the list `{cases}`: bring it back.")


def _put(path: Path, line: int, text: str) -> None:
    """Put text after so many lines of a file."""
    lines = path.read_text().split("\n")
    files.write(path, "\n".join([*lines[:line], *text.removesuffix("\n").split("\n"), *lines[line:]]))


def _checks_of(number: str) -> Path:
    return paths.ROOT / "labkit" / "exercises" / f"lab{number}.py"


def _tests_of(number: str) -> Path:
    return paths.ROOT / "tests" / "exercises" / f"test_lab{number}.py"


def _insert(path: Path, after: str, line: str, what: str) -> None:
    """Put a line below the match of the expression `after`."""
    text = path.read_text()
    if not (found := re.search(after, text, re.M)):
        raise LabError(f"{paths.shown(path)} has lost {what}: bring it back, and add there {line.strip()}")
    files.write(path, text[: found.end()] + line + text[found.end() :])


def _importing(imports: dict[str, str], text: str) -> str:
    """Return a module's text with those of the imports that it lacks, for ruff to put in order."""
    imported = " ".join(re.findall(r"^(?:from|import) .*(?:\([^)]*\))?", text, re.M))
    missing = [line for name, line in imports.items() if not re.search(rf"\b{name}\b", imported)]
    first = re.search(r"^(?:from|import) ", text, re.M)
    return text if first is None else "\n".join([text[: first.start()] + "\n".join(missing), text[first.start() :]])


def _format(*changed: Path) -> None:
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    for command in (("check", "--quiet", "--fix", "--select=I"), ("format", "--quiet")):
        subprocess.run([ruff, *command, *changed], cwd=paths.ROOT, check=True)
