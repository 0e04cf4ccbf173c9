"""Fuzz the files that commands read: any content is read, or refused in one line."""

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.display.measured import Measured
from labkit.display.results import Results, row
from labkit.exercises import catalogue, working_copies
from labkit.report import page
from labkit.system import terminal
from labkit.system.errors import LabError
from labkit_classroom.board import seat
from labkit_classroom.lecture import collected

pytestmark = pytest.mark.weekly

LEAVES = st.sampled_from(
    [
        *(None, True, 0, -1, 10**400, 1e308, float("nan")),
        *("", "x" * 3000, "\ud800", "\x1b[2J", "[/red]", "passed", "\0", "²", "07"),
    ]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["1", "on", "\x1b"]), inner, max_size=3)
    ),
)
DEEP = b"[" * 200_000


def key_paths(value: Any, path: tuple = ()) -> list[tuple]:
    """Return the path to each part of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(below for key, part in items for below in key_paths(part, (*path, key)))]


def contents(original: Any) -> st.SearchStrategy[bytes]:
    """Return variants of a file's content: with one part changed, truncated, or random bytes."""
    text = json.dumps(original).encode()

    def change(path: tuple, value: Any) -> bytes:
        if not path:
            return json.dumps(value).encode()
        variant = copy.deepcopy(original)
        part = variant
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = value
        return json.dumps(variant).encode()

    changed = st.builds(change, st.sampled_from(key_paths(original)), VALUES)
    truncated = st.integers(0, len(text)).map(lambda end: text[:end])
    return changed | truncated | st.binary(max_size=20) | st.just(DEEP)


def fuzz(examples: int = 40):
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )


RESULTS = {
    "lab": "02",
    "quick": False,
    "when": "2026-12-01 10:00",
    "on": {"cpu": "x", "cores": 2},
    "exercises": {"1": "passed"},
    "progress": {"1": {"hint": 1, "minute": "2026-12-01T10:00"}},
    "table": {"what": "speed", "rows": [row("a", "1", Measured(2, 1, 3, "images/s"), "3")], "notes": ["a note"]},
    "pictures": {"Speed": {"png": "iVBORw0KGgo=", "alt": "a picture"}},
}
DOCTOR = {"ok": True, "labs": [{"lab": "07 Horovod", "status": "fail", "because": ["memory"], "fix": []}]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Run in an empty folder, with no earlier warnings remembered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("labkit.system.terminal._seen", set())
    (tmp_path / "work").mkdir()
    return tmp_path


def test_results_and_the_doctors_verdicts(folder, capsys):
    file = folder / "work" / "results-02.json"
    (folder / "work" / "eve-results-07.json").write_text(json.dumps(RESULTS))
    (folder / "eve.json").write_text(json.dumps(DOCTOR))

    @fuzz()
    @given(contents(RESULTS), contents(DOCTOR))
    def reading(content: bytes, doctor: bytes) -> None:
        file.write_bytes(content)
        (folder / "ada.json").write_bytes(doctor)
        console = terminal.console()
        for table in collected.tables(collected.collect(folder)):
            console.print(table)
        assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
        with contextlib.suppress(LabError):
            html = page.render(folder / "work")
            html.encode()
            assert "\x1b" not in html
        json.dumps(seat.state(folder, {"machine": None, "doctor": None}))
        Results("02").exercise(2, "passed")
        assert json.loads(file.read_bytes())["exercises"]["2"] == "passed"
        page.render(folder / "work")

    reading()


def test_the_record_of_copies_and_the_copies(folder):
    lab = catalogue.find("00")
    path = working_copies.copy_path(lab, folder)
    fresh = working_copies.fresh(lab)

    @fuzz(30)
    @given(contents({path.name: "0" * 64}), contents(json.loads(fresh)))
    def reading(record: bytes, notebook: bytes) -> None:
        (folder / working_copies.RECORD).write_bytes(record)
        path.write_bytes(notebook)
        backup = working_copies.reset(lab, folder, fresh)
        assert backup is None or backup.read_bytes() == notebook  # nothing is lost
        assert path.read_text() == fresh

    reading()
