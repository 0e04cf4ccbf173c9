"""Tests of measuring lab 05's grid, with a function instead of TensorFlow."""

import csv
import math
from types import SimpleNamespace

import pytest
from machines import machine

from labkit.system import load
from labkit.system.errors import LabError
from labkit.system.paths import DATA
from labkit.tune import grid, space

KNOBS = {
    "threads": space.Knob((1, None), env="THREADS", default=2),
    "pages": space.Knob((None, "huge"), env="PAGES", default="small"),
}
MACHINE = machine(2)
STOCK = DATA / "tuning-grid-stock.csv"


def rows_of(file):
    lines = file.read_text().splitlines()
    return [line for line in lines if line.startswith("#")], [*csv.DictReader(line for line in lines if line[0] != "#")]


def test_the_kits_grid_has_all_points_of_its_knobs_on_two_cores():
    head, rows = rows_of(STOCK)
    assert "2 cores" in head[0]
    knobs = space.read(space.MNIST_KNOBS, MACHINE)
    assert [tuple(row[name] for name in knobs) for row in rows] == [*grid.points(knobs)]
    assert all(float(row[f"round{number}"]) > 0 for row in rows for number in (1, 2))


def test_a_point_has_the_default_value_of_an_unset_knob():
    assert grid.points(KNOBS) == {
        ("1", "small"): {"threads": 1, "pages": None},
        ("1", "huge"): {"threads": 1, "pages": "huge"},
        ("2", "small"): {"threads": None, "pages": None},
        ("2", "huge"): {"threads": None, "pages": "huge"},
    }


def test_each_round_measures_each_point_once_in_a_different_order():
    rounds, calls = [{}, {}], []

    def objective(settings):
        calls.append(tuple(settings.values()))
        return 7.0

    assert [*grid.measure(KNOBS, rounds, objective)] == [1] * 4 + [2] * 4
    assert rounds == [dict.fromkeys(grid.points(KNOBS), 7.0)] * 2
    first, second = calls[:4], calls[4:]
    assert set(first) == set(second)
    assert len(set(first)) == 4
    assert first != second


def test_a_failed_point_is_nan_and_the_others_are_measured(capsys):
    def objective(settings):
        if settings["pages"]:
            raise LabError("out of memory")
        return 5.0

    rounds = [{}]
    assert len([*grid.measure(KNOBS, rounds, objective)]) == 4
    assert math.isnan(rounds[0]["1", "huge"])
    assert rounds[0]["1", "small"] == 5.0
    assert "out of memory" in capsys.readouterr().err


def test_a_launch_is_repeated_while_other_work_disturbs_it():
    def run(*disturbed):
        calls = []

        def objective(settings):
            busy = disturbed[len(calls)]
            load._report_to_enclosing(load.Contention(share=0.5 * busy, busy=busy, capacity=1.0))
            calls.append(settings)
            return float(len(calls))

        return grid.undisturbed(objective)({}), len(calls)

    assert run(False) == (1.0, 1)
    assert run(True, False) == (2.0, 2)
    assert run(True, True, True) == (3.0, grid.ATTEMPTS)


def test_an_interrupted_measurement_resumes_with_the_missing_points(tmp_path):
    file, calls = tmp_path / "grid.csv", []
    rounds = grid.read(file, KNOBS, 2)
    for _ in zip(range(5), grid.measure(KNOBS, rounds, lambda settings: 5.0), strict=False):
        grid.write(file, KNOBS, rounds, MACHINE, "2.21.0")
    resumed = grid.read(file, KNOBS, 2)
    assert resumed == rounds
    for _ in grid.measure(KNOBS, resumed, lambda settings: calls.append(settings) or 6.0):
        grid.write(file, KNOBS, resumed, MACHINE, "2.21.0")
    assert len(calls) == 8 - sum(map(len, rounds))
    assert [len(metrics) for metrics in grid.read(file, KNOBS, 2)] == [4, 4]


def test_a_grid_with_other_knobs_is_not_resumed(tmp_path):
    file = tmp_path / "grid.csv"
    grid.write(file, KNOBS, [{}], MACHINE, "2.21.0")
    with pytest.raises(LabError, match="a grid with other knobs"):
        grid.read(file, {"cores": KNOBS["threads"]})


def test_the_file_has_each_round_and_their_median(tmp_path):
    file = tmp_path / "grid.csv"
    rounds = [dict.fromkeys(grid.points(KNOBS), speed) for speed in (10.0, 30.0, 20.0)]
    del rounds[1]["2", "huge"]
    grid.write(file, KNOBS, rounds, SimpleNamespace(model="Synthetic CPU", usable_cores=2, isa=("AVX2",)), "2.21.0")
    head, rows = rows_of(file)
    assert head[0] == "# Synthetic CPU, 2 cores, AVX2"
    assert head[1].startswith("# TensorFlow 2.21.0 from PyPI")
    assert list(rows[0]) == ["threads", "pages", "round1", "round2", "round3", "images_s"]
    assert [*rows[0].values()] == ["1", "small", "10", "30", "20", "20"]
    assert [*rows[3].values()] == ["2", "huge", "10", "", "20", "15"]
