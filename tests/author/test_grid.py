"""The recorder of lab 05's grid refuses disturbed launches, resumes, and spreads a point's launches over time."""

import csv
from collections import Counter

import pytest
from machines import machine

from labkit.system import load
from labkit.system.errors import LabError
from labkit.system.paths import DATA
from labkit.tune import space
from labkit_author import grid

KNOBS = {
    "threads": space.Knob((1, None), env="THREADS", default=2),
    "pages": space.Knob((None, "huge"), env="PAGES", default="small"),
}


@pytest.fixture
def launches(monkeypatch):
    """Replace the knobs and the command; return the launches: those in `disturbed`, by number, are disturbed."""
    calls = []

    def command(settings):
        calls.append(tuple(settings.values()))
        busy = len(calls) in disturbed
        load._report_to_enclosing(load.Contention(share=0.5 * busy, busy=busy, capacity=1.0))
        return 100.0 + len(calls)

    disturbed = set()
    monkeypatch.setattr(grid, "usable_machine", lambda: machine(2))
    monkeypatch.setattr(space, "read", lambda file, machine: KNOBS)
    monkeypatch.setattr(grid, "Command", lambda *args, **options: command)
    return calls, disturbed


def rows(file):
    return list(csv.DictReader(line for line in file.read_text().splitlines() if not line.startswith("#")))


def test_each_point_is_launched_once_before_any_is_launched_again(tmp_path, launches):
    file = tmp_path / "launches.csv"
    assert grid.record(file, None) == 0
    recorded = rows(file)
    assert [row["launch"] for row in recorded] == [str(n) for n in range(1, grid.LAUNCHES + 1) for _ in range(4)]
    assert {*Counter((row["threads"], row["pages"]) for row in recorded).values()} == {grid.LAUNCHES}
    orders = {tuple((row["threads"], row["pages"]) for row in recorded[i : i + 4]) for i in range(0, len(recorded), 4)}
    assert len(orders) > 1


def test_a_disturbed_launch_is_refused_and_repeated(tmp_path, launches, capsys):
    calls, disturbed = launches
    disturbed |= {1, 3}
    file = tmp_path / "launches.csv"
    assert grid.record(file, 3) == 4 * grid.LAUNCHES - 1
    assert [row["images_s"] for row in rows(file)] == ["102.0"]
    assert capsys.readouterr().out.count("refused") == 2
    assert grid.record(file, None) == 0
    assert len(rows(file)) == 4 * grid.LAUNCHES == len(calls) - 2


def test_a_recording_resumes_and_refuses_other_knobs(tmp_path, launches, monkeypatch):
    file = tmp_path / "launches.csv"
    grid.record(file, 5)
    before = file.read_text()
    assert grid.record(file, 2) == 4 * grid.LAUNCHES - 7
    assert file.read_text().startswith(before)
    monkeypatch.setattr(space, "read", lambda file, machine: {"cores": KNOBS["threads"]})
    with pytest.raises(LabError, match="was recorded on another machine"):
        grid.record(file, 1)


def test_the_kits_recording_is_complete():
    recorded = rows(DATA / "tuning-launches.csv")
    knobs = space.read(space.MNIST_KNOBS, machine(2))
    points = Counter(tuple(row[name] for name in knobs) for row in recorded)
    assert points == dict.fromkeys(grid.points(knobs), grid.LAUNCHES)
    assert all(float(row["images_s"]) > 0 and float(row["others"]) < load.BUSY_SHARE for row in recorded)
