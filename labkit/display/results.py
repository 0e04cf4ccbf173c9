"""A lab's results, kept in `work/results-NN.json` for `lab report`: table, pictures, verdicts, guesses and steps."""

import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import fastjsonschema
from IPython.display import display

from labkit.display import guesses, markdown, speedups
from labkit.display.consistency import Limit
from labkit.display.measured import Measured
from labkit.system import files, locks
from labkit.system.errors import LabError
from labkit.system.lease import usable_machine
from labkit.system.load import BUSY_MARK, Others
from labkit.system.machine import TENSORFLOW

WORK = Path("work")  # of the notebook that is running
COLUMNS = ("published", "this machine", "its limit")
PASSED, NOT_YET, NOT_ATTEMPTED = "passed", "not yet", "not attempted"
CHECK_FAILED = "the check itself failed"

# What optional sections have handed in, by lab and kind of run: for as long as this kernel lives, as its names do.
_handed_in: dict[tuple[str, bool], dict[str, tuple[Sequence[Any], ...]]] = {}


class NotMeasured(str):
    """In place of a measured figure: the section that would have measured it, and how a table says so."""

    __slots__ = ()

    def __new__(cls, section: str) -> "NotMeasured":
        """Return the text for a section, such as "4"."""
        return super().__new__(cls, f"not measured (section {section})")


class Results:
    """The results of one lab, written as they come; what comes again replaces what was there.

    Parameters
    ----------
    lab : str
        Its number, such as "07".
    quick : bool
        Whether this is a small run, whose figures mean little.
    """

    def __init__(self, lab: str, quick: bool = False):
        self.path = WORK / f"results-{lab}.json"
        self._about = {"lab": lab, "quick": quick}
        self._handed_in = _handed_in.setdefault((lab, quick), {})

    def hand_in(self, section: str, *rows: Sequence[Any]) -> None:
        """Keep an optional section's rows for the closing table, in place of those that it has handed in before.

        They are kept in memory: a kernel that was restarted begins without, so a table never mixes two runs.

        Parameters
        ----------
        section : str
            Its number, such as "4".
        *rows : sequence of (name, published, this machine, its limit, *watches)
            As `row` takes them.
        """
        self._handed_in[section] = rows

    def handed_in(self, section: str, *expected: tuple[str, str]) -> list[Sequence[Any]]:
        """Return an optional section's rows for the closing table.

        Parameters
        ----------
        section : str
            Its number, such as "4".
        *expected : (name, published)
            What it measures: the rows when it has not run, each "not measured".
        """
        missing = [(name, published, NotMeasured(section), "") for name, published in expected]
        return list(self._handed_in.get(section, missing))

    def table(self, what: str, rows: Sequence[Sequence[Any]]) -> None:
        """Show and keep the lab's closing table.

        Figures measured while other work used the cores are marked, with a note on what to do. A column that is empty
        in all rows is not shown.

        Parameters
        ----------
        what : str
            What the figures are of: the head of the first column.
        rows : sequence of (name, published, this machine, its limit, *watches)
            As `row` takes them. Rows of optional sections: `handed_in`.
        """
        made = [row(*each) for each in rows]
        watches = [watch for _, _, measured, _, *others in rows if measured for watch in others]
        notes = list(dict.fromkeys(watch.note for watch in watches if watch.note))  # in their order, each once
        display(markdown.table(*without_empty_columns((what, *COLUMNS), texts(made)), notes))
        self._keep(table={"what": what, "rows": made, "notes": notes})

    def picture(self, title: str, png: str, alt: str) -> None:
        """Keep a picture, `png` in base64. One of the same title is replaced: have no measured figure in it."""
        self._keep(pictures={title: {"png": png, "alt": alt}})

    def exercise(self, number: int, verdict: str, hint: int = 0) -> None:
        """Keep the verdict on an exercise, the number of hints shown, and the time. A passed exercise stays passed."""
        self._keep(
            exercises={str(number): verdict},
            progress={str(number): _progress(hint)},
        )

    def hint(self, number: int, shown: int) -> None:
        """Keep how many hints to an exercise were shown, and when."""
        self._keep(progress={str(number): _progress(shown)})

    def guess(self, number: int, question: str, answer: object, unit: str = "", choices: Sequence[str] = ()) -> None:
        """Keep and show a student's guess. Without one, or with an invalid one, the lab continues.

        Parameters
        ----------
        number : int
            Its number in the lab.
        question : str
            What the figure is of, in a few words, such as "two threads against one".
        answer : object
            The guess, a number or one of the choices; three dots (`...`) without a guess.
        unit : str
            Of a number, such as "×".
        choices : sequence of str
            The choices; none where the guess is a number.
        """
        given = guesses.parse(answer, unit, choices)
        guesses.show(number, given.text, given.what_to_do)
        kept = self._kept_guess(number)
        now = {"question": question, "guess": given.text, "values": [given.value, kept["values"][1]]}
        self._keep(guesses={str(number): kept | now})

    def compare_guess(self, number: int, measured: Measured | str) -> None:
        """Show a guess and the figure, a `Measured` or one of the choices, and keep both."""
        kept = self._kept_guess(number)
        guesses.show_comparison(number, kept["question"], kept["guess"], measured)
        now = {"here": str(measured), "values": [kept["values"][0], guesses.value_of(measured)]}
        self._keep(guesses={str(number): kept | now})

    def _kept_guess(self, number: int) -> dict[str, Any]:
        """Return what was kept of a guess before, if it can be read: nothing can be kept where it can't."""
        kept: dict[str, Any] = {}
        with contextlib.suppress(OSError):
            kept = self._read().get("guesses", {}).get(str(number), {})
        return {"question": "", "guess": "", "here": "", "values": [None, None]} | kept

    def step(
        self,
        name: str,
        measured: Measured | str,
        *watches: Others,
        share: float | None = None,
        significant: bool | None = None,
    ) -> None:
        """Keep a step of the ladder.

        Parameters
        ----------
        name : str
            One of `speedups.STEPS`.
        measured : Measured or str
            The factor; a text where there is none, such as why this machine cannot take the step.
        *watches : Others
            Under which it was measured (`load.watch`).
        share : float, optional
            How much of the machine's limit the faster of the two reaches, in percent.
        significant : bool, optional
            `Ratio.significant`, which may be by rank; by default the interval decides.

        Raises
        ------
        LabError
            When there is no such step.
        """
        if name not in speedups.STEPS:
            raise LabError(f"there is no step {name!r}, only {', '.join(speedups.STEPS)}.")
        kept = row(name, "", measured, "", *watches)
        step = {"text": kept["texts"][2], "numbers": kept["numbers"], "busy": kept["busy"]}
        step["share"] = None if share is None else round(float(share), 1)
        self._keep(steps={name: step if significant is None else step | {"significant": bool(significant)}})

    def _read(self) -> dict[str, Any]:
        """Return what is kept, but for what is damaged: a lab goes on without it."""
        try:
            kept = read(self.path)
        except (FileNotFoundError, ValueError):
            return {}
        return {key: value for key, value in kept.items() if not _part_problem(key, value)}

    def _keep(self, **values: Any) -> None:
        """Add each value, or replace the one kept. If that is impossible, the lab warns once and continues."""
        try:
            with files.writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with locks.locked(self.path):  # another kernel of this lab may keep something at the same time
                self._change(values)
        except files.NotWritten as error:
            files.warn(f"{error} Without that, ./lab report has nothing of it; the lab goes on.")

    def _change(self, values: dict[str, Any]) -> None:
        with files.writing(self.path):
            kept = self._read()
        new = {key: value if key == "table" else kept.get(key, {}) | value for key, value in values.items()}
        if "exercises" in new:
            before = kept.get("exercises", {})
            new["exercises"] |= {number: PASSED for number in before if before[number] == PASSED}
            if all(kept.get(key) == value for key, value in new.items()):
                return
        kept |= self._about | new | {"when": time.strftime("%Y-%m-%d %H:%M"), "on": _describe_machine()}
        files.write(self.path, json.dumps(kept, indent=1))


def _progress(hint: int) -> dict[str, Any]:
    return {"hint": hint, "minute": time.strftime("%Y-%m-%dT%H:%M")}


def row(name: str, published: str, measured: Measured | str, limit: Limit | str, *watches: Others) -> dict[str, Any]:
    """Return a row of a closing table as it is kept.

    Parameters
    ----------
    name : str
        What the figure is of.
    published : str
        The published figure, or an empty text.
    limit : Limit or str
        The most that the machine could do, or an empty text.
    measured : Measured or str
        This machine's figure, or a text, such as a choice of settings.
    *watches : Others
        Under which it was measured (`load.watch`).

    Returns
    -------
    dict
        `texts`, a list of the four as they are shown; `numbers`, value, interval and unit, or None; `busy`, whether
        other work had the cores; `missing`, whether its section did not run.
    """
    text = str(measured)
    busy = bool(text) and any(watch.busy for watch in watches)
    if isinstance(limit, Limit):
        limit = limit.describe(measured) if isinstance(measured, Measured) else str(limit.measured)
    return {
        "texts": [name, published, f"{text} {BUSY_MARK}" if busy else text, limit],
        "numbers": measured.numbers() if isinstance(measured, Measured) else None,
        "busy": busy,
        "missing": isinstance(measured, NotMeasured),
    }


def texts(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the texts of kept rows."""
    return [each["texts"] for each in rows]


def without_empty_columns(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return a closing table's head and rows without the columns in which no row has anything."""
    used = [
        place for place in range(len(head)) if not rows or any(row[place : place + 1] not in ([], [""]) for row in rows)
    ]
    return [head[place] for place in used], [[row[place] for place in used if place < len(row)] for row in rows]


def read(path: Path) -> dict[str, Any]:
    """Read a lab's file.

    Raises
    ------
    OSError
        When it can't be read, or is no regular file.
    ValueError
        When it is not a JSON object.
    """
    kept = files.read_json(path)
    if not isinstance(kept, dict):
        raise ValueError("it is not a JSON object")
    return kept


def find_problem(kept: dict[str, Any]) -> str:
    """Return what is wrong with the content of a lab's file; an empty text when nothing is."""
    for key in ("lab", "quick", "when", "on"):
        if key not in kept:
            return f"it has no {key!r}"
    return next(filter(None, (_part_problem(key, value) for key, value in kept.items())), "")


def _part_problem(key: str, value: Any) -> str:
    try:
        _validator(key)(value)
    except fastjsonschema.JsonSchemaValueException:
        return f"its {key!r} is not what a lab writes"
    return ""


@functools.cache
def _validator(key: str) -> Callable[[Any], Any]:
    validator: Callable[[Any], Any] = fastjsonschema.compile(_PARTS.get(key, {}))
    return validator


Schema = dict[str, Any]  # a JSON schema


def _object(**properties: Schema) -> Schema:
    """Return the schema of an object that has at least these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _by_text(values: Schema) -> Schema:
    """Return the schema of an object with any texts as its keys."""
    return {"type": "object", "propertyNames": _TEXT, "additionalProperties": values}


def _or_null(*schemas: Schema) -> Schema:
    return {"anyOf": [{"type": "null"}, *schemas]}


def _list(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


# No half of a surrogate pair, which can't be written to a page.
_TEXT = {"type": "string", "pattern": r"^[^\ud800-\udfff]*$"}
_NUMBER = {"type": "number", "minimum": -sys.float_info.max, "maximum": sys.float_info.max}
_BOOLEAN = {"type": "boolean"}
_NUMBERS = _or_null(
    _object(value=_NUMBER, unit=_TEXT, interval=_or_null(_list(_NUMBER, minItems=2, maxItems=2)))
)  # as `Measured.numbers` returns them
_ROW = _object(
    texts=_list(_TEXT, minItems=1 + len(COLUMNS), maxItems=1 + len(COLUMNS)),
    numbers=_NUMBERS,
    busy=_BOOLEAN,
    missing=_BOOLEAN,
)
_PNG = {"type": "string", "pattern": "^iVBORw0KGgo[A-Za-z0-9+/]*={0,2}$"}  # in base64
_ANSWER = _or_null(_TEXT, _NUMBER)
_GUESS = _object(question=_TEXT, guess=_TEXT, here=_TEXT)
_GUESS["properties"]["values"] = _list(_ANSWER, minItems=2, maxItems=2)  # which an earlier kit did not write
_STEP = _object(text=_TEXT, numbers=_NUMBERS, busy=_BOOLEAN, share=_or_null(_NUMBER))

# The parts of a lab's file; a part of another name is from a later version, and is ignored.
_PARTS: dict[str, Schema] = {
    "lab": _TEXT,
    "quick": _BOOLEAN,
    "when": _TEXT,
    "on": _by_text({"anyOf": [_TEXT, {"type": "integer"}]}),
    "table": _object(what=_TEXT, rows=_list(_ROW), notes=_list(_TEXT)),
    "pictures": _by_text(_object(png=_PNG, alt=_TEXT)),
    "exercises": _by_text(_TEXT),
    "progress": _by_text(_object(hint={"type": "integer"}, minute=_TEXT)),
    "guesses": _by_text(_GUESS),
    "steps": {"type": "object", "propertyNames": {"enum": list(speedups.STEPS)}, "additionalProperties": _STEP},
}


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"no {package}"


def _describe_machine() -> dict[str, str | int]:
    """What the figures were measured on and with."""
    machine = usable_machine()
    return {
        "cpu": machine.model,
        "cores": machine.usable_cores,
        "numa nodes": len(machine.numa),
        "memory": f"{machine.memory / 2**30:.0f} GiB",
        "instruction sets": ", ".join(machine.isa),
        "software": ", ".join(map(_version, (TENSORFLOW, "horovod", "mpich"))),
    }
