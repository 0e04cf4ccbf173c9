"""A lab's results, stored in `work/results-NN.json` for `lab report`: table, pictures, verdicts, answers and steps."""

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

from labkit.display import boxes, guesses, markdown, speedups
from labkit.measure.figures import Measured
from labkit.system import files, locks, terminal
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.system.load import BUSY_MARK, Contention
from labkit.system.machine import TENSORFLOW

WORK = Path("work")  # next to the running notebook
COLUMNS = ("published", "this machine", "limit or prediction")
PASSED, NOT_YET, NOT_ATTEMPTED = "passed", "not yet", "not attempted"
CHECK_FAILED = "the check itself failed"

# Rows from optional sections, by lab and kind of run. Like the kernel's variables, they are lost when it restarts.
_handed_in: dict[tuple[str, bool], dict[str, tuple[Sequence[Any], ...]]] = {}


class NotMeasured(str):
    """A placeholder for a figure whose section was not run, as a table shows it."""

    __slots__ = ()

    def __new__(cls, section: str) -> "NotMeasured":
        """Return the text for a section, such as "4"."""
        return super().__new__(cls, f"not measured (section {section})")


class Results:
    """The results of one lab, written as they arrive; repeated results replace earlier ones.

    Parameters
    ----------
    lab : str
        Its number, such as "07".
    quick : bool
        Whether this is a small test run, whose figures mean little.
    """

    def __init__(self, lab: str, quick: bool = False):
        self.path = WORK / f"results-{lab}.json"
        self._about = {"lab": lab, "quick": quick}
        self._handed_in = _handed_in.setdefault((lab, quick), {})

    def hand_in(self, section: str, *rows: Sequence[Any]) -> None:
        """Store an optional section's rows for the closing table, replacing its earlier ones.

        They stay in memory: a restarted kernel begins without them, so a table never mixes two runs.

        Parameters
        ----------
        section : str
            Its number, such as "4".
        *rows : sequence of (name, published, this machine, limit or prediction)
            Arguments of `row`.
        """
        self._handed_in[section] = rows

    def handed_in(self, section: str, *expected: tuple[str, str]) -> list[Sequence[Any]]:
        """Return an optional section's rows for the closing table.

        Parameters
        ----------
        section : str
            Its number, such as "4".
        *expected : (name, published)
            The section's figures: its rows if it has not run, each "not measured".
        """
        missing = [(name, published, NotMeasured(section), "") for name, published in expected]
        return list(self._handed_in.get(section, missing))

    def table(self, what: str, rows: Sequence[Sequence[Any]]) -> None:
        """Show and store the lab's closing table.

        Figures measured while other work used the cores are marked, with a note on what to do. A column that is empty
        in all rows is not shown.

        Parameters
        ----------
        what : str
            The heading of the first column.
        rows : sequence of (name, published, this machine, limit or prediction)
            Arguments of `row`; for the rows of optional sections, see `handed_in`.
        """
        table_rows = [row(*values) for values in rows]
        watches = [watch for _, _, measured, _ in rows for watch in _contention(measured)]
        notes = list(dict.fromkeys(watch.note for watch in watches if watch.note))  # unique, in order
        display(markdown.table(*without_empty_columns((what, *COLUMNS), texts(table_rows)), notes))
        self._store(table={"what": what, "rows": table_rows, "notes": notes})

    def picture(self, title: str, png: str, alt: str) -> None:
        """Store a picture, `png` in base64. It replaces one of the same title, so titles contain no figures."""
        self._store(pictures={title: {"png": png, "alt": alt}})

    def exercise(self, number: int, verdict: str, hint: int = 0) -> None:
        """Store the verdict on an exercise, the number of hints shown, and the time. A passed exercise stays passed."""
        self._store(exercises={str(number): verdict}, progress={str(number): _progress(hint)})

    def hint(self, number: int, shown: int) -> None:
        """Store the number of hints shown for an exercise, and the time."""
        self._store(progress={str(number): _progress(shown)})

    def guess(
        self,
        number: int,
        question: str,
        answer: object,
        unit: str = "",
        choices: Sequence[str] = (),
        pairs: bool = False,
    ) -> None:
        """Store and show a student's guess. Without one, or with an invalid one, the lab continues.

        Parameters
        ----------
        number : int
            Its number in the lab.
        question : str
            The quantity, in a few words, such as "two threads vs one".
        answer : object
            The guess, a number or one of the choices; three dots (`...`) without a guess.
        unit : str
            The unit of a number, such as "×".
        choices : sequence of str
            The choices; empty where the guess is a number.
        pairs : bool
            Whether a room's wall draws each guess with its figure (read by `lab build`).
        """
        guess = guesses.parse(answer, unit, choices)
        guesses.show(number, guess.text, guess.advice)
        stored = self._stored_guess(number)
        new = {"question": question, "guess": guess.text, "values": [guess.value, stored["values"][1]]}
        self._store(guesses={str(number): stored | new})

    def compare_guess(self, number: int, measured: Measured | str) -> None:
        """Show a guess and the figure, a `Measured` or one of the choices, and store both."""
        stored = self._stored_guess(number)
        guesses.show_comparison(number, stored["question"], stored["guess"], measured)
        new = {"here": str(measured), "values": [stored["values"][0], guesses.value_of(measured)]}
        self._store(guesses={str(number): stored | new})

    def answer(self, number: int, question: str, text: object) -> None:
        """Store and show a student's answer to an open question, for `lab report`. It is never sent or graded.

        Parameters
        ----------
        number : int
            Its number in the lab.
        question : str
            The question, such as "What limits conv2 on your machine?".
        text : object
            The answer; three dots (`...`) until there is one.
        """
        answer = "" if text is ... else str(text).strip().encode(errors="replace").decode()  # no lone surrogates
        boxes.show(f"Question {number} · {question}", lines=[answer or "Replace the three dots with your answer."])
        self._store(answers={str(number): {"question": question, "answer": answer}})

    def _stored_guess(self, number: int) -> dict[str, Any]:
        """Return the stored guess, with defaults for missing parts; an unreadable file can't be written either."""
        stored: dict[str, Any] = {}
        with contextlib.suppress(OSError):
            stored = self._read().get("guesses", {}).get(str(number), {})
        return {"question": "", "guess": "", "here": "", "values": [None, None]} | stored

    def step(self, name: str, measured: Measured | str, share: float | None = None) -> None:
        """Store a step of the ladder.

        Parameters
        ----------
        name : str
            One of `speedups.STEPS`.
        measured : Measured or str
            The speed-up, or a text such as why this machine cannot take the step.
        share : float, optional
            The share of the machine's limit that the faster of the two reaches, in percent.

        Raises
        ------
        LabError
            When there is no such step.
        """
        if name not in speedups.STEPS:
            raise LabError(f"there is no step {name!r}: choose from {', '.join(speedups.STEPS)}.")
        figure = row(name, "", measured, "")
        step = {"text": figure["texts"][2], "numbers": figure["numbers"], "busy": figure["busy"]}
        step["share"] = None if share is None else round(float(share), 1)
        self._store(steps={name: step})

    def _read(self) -> dict[str, Any]:
        """Return the stored results without damaged parts: a lab continues without them."""
        try:
            stored = read(self.path)
        except (FileNotFoundError, ValueError):
            return {}
        return {key: value for key, value in stored.items() if not _part_problem(key, value)}

    def _store(self, **values: Any) -> None:
        """Add or replace values. If that fails, the lab warns once and continues."""
        try:
            with files.writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with locks.locked(self.path):  # another kernel of this lab may write at the same time
                self._change(values)
        except files.NotWritten as error:
            terminal.warn(f"{error} Until then, ./lab report lacks new results; the lab continues.")

    def _change(self, values: dict[str, Any]) -> None:
        with files.writing(self.path):
            stored = self._read()
        new = {key: value if key == "table" else stored.get(key, {}) | value for key, value in values.items()}
        if "exercises" in new:
            before = stored.get("exercises", {})
            new["exercises"] |= {number: PASSED for number in before if before[number] == PASSED}
            if all(stored.get(key) == value for key, value in new.items()):
                return
        stored |= self._about | new | {"when": time.strftime("%Y-%m-%d %H:%M"), "on": describe_machine()}
        files.write(self.path, json.dumps(stored, indent=1))


def _progress(hint: int) -> dict[str, Any]:
    return {"hint": hint, "minute": time.strftime("%Y-%m-%dT%H:%M")}


def row(name: str, published: str, measured: Measured | str, limit: str) -> dict[str, Any]:
    """Return a row of a closing table, as stored.

    Parameters
    ----------
    name : str
        The quantity.
    published : str
        The published figure, or an empty string.
    measured : Measured or str
        This machine's figure, or a text, such as a choice of settings.
    limit : str
        The machine's limit, or a prediction; may be an empty string.

    Returns
    -------
    dict
        `texts`, a list of the four as shown; `numbers`, value, interval and unit, or None; `busy`, whether other work
        used the cores; `missing`, whether its section did not run.
    """
    text = str(measured)
    busy = any(watch.busy for watch in _contention(measured))
    return {
        "texts": [name, published, f"{text} {BUSY_MARK}" if busy else text, limit],
        "numbers": measured.numbers() if isinstance(measured, Measured) else None,
        "busy": busy,
        "missing": isinstance(measured, NotMeasured),
    }


def _contention(measured: Measured | str) -> tuple[Contention, ...]:
    """Return a figure's records of other work on the cores meanwhile."""
    return measured.contention if isinstance(measured, Measured) else ()


def texts(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the texts of stored rows."""
    return [row["texts"] for row in rows]


def without_empty_columns(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return a closing table's head and rows without columns that are empty in every row."""
    used = [i for i in range(len(head)) if not rows or any(row[i : i + 1] not in ([], [""]) for row in rows)]
    return [head[i] for i in used], [[row[i] for i in used if i < len(row)] for row in rows]


def read(path: Path) -> dict[str, Any]:
    """Read a lab's file.

    Raises
    ------
    OSError
        When it can't be read, or is not a regular file.
    ValueError
        When it is not a JSON object.
    """
    stored = files.read_json(path)
    if not isinstance(stored, dict):
        raise ValueError("it is not a JSON object")
    return stored


def find_problem(stored: dict[str, Any]) -> str:
    """Return the problem with the contents of a lab's file; an empty string if there is none."""
    for key in ("lab", "quick", "when", "on"):
        if key not in stored:
            return f"it has no {key!r}"
    return next(filter(None, (_part_problem(key, value) for key, value in stored.items())), "")


def _part_problem(key: str, value: Any) -> str:
    try:
        _validator(key)(value)
    except fastjsonschema.JsonSchemaValueException:
        return f"its {key!r} is malformed"
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
    """Return the schema of an object with any strings as its keys."""
    return {"type": "object", "propertyNames": _TEXT, "additionalProperties": values}


def _or_null(*schemas: Schema) -> Schema:
    return {"anyOf": [{"type": "null"}, *schemas]}


def _list(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


# No lone surrogates, which can't be written to a page.
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
_GUESS = _object(question=_TEXT, guess=_TEXT, here=_TEXT, values=_list(_ANSWER, minItems=2, maxItems=2))
_STEP = _object(text=_TEXT, numbers=_NUMBERS, busy=_BOOLEAN, share=_or_null(_NUMBER))

# The parts of a lab's file; unknown parts come from later versions, and are ignored.
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
    "answers": _by_text(_object(question=_TEXT, answer=_TEXT)),
    "steps": {"type": "object", "propertyNames": {"enum": list(speedups.STEPS)}, "additionalProperties": _STEP},
}


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"no {package}"


def describe_machine() -> dict[str, str | int]:
    """Return the machine and the software behind the figures."""
    machine = usable_machine()
    return {
        "cpu": machine.model,
        "cores": machine.usable_cores,
        "numa nodes": len(machine.numa),
        "memory": f"{machine.memory / 2**30:.0f} GiB",
        "instruction sets": ", ".join(machine.isa),
        "software": ", ".join(map(_version, (TENSORFLOW, "horovod", "mpich"))),
    }
