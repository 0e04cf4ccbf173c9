"""The measurement of lab 05's grid, without TensorFlow: another function measures its points."""

import csv
import itertools
import math
import time

import pytest

from labkit.system.machine import Machine
from labkit.system.paths import DATA
from labkit.tune import grid

KNOBS = {"omp": [1, 2], "affinity": ["none", grid.PINNED]}
MACHINE = Machine((0, 1), ((0,), (1,)), None, 2**30, 2**30, ("AVX2",), ((0, 1),), "Synthetic CPU")


def read(file):
    lines = file.read_text().splitlines(keepends=True)
    head = [line for line in lines if line.startswith("#")]
    return head, list(csv.DictReader(lines[len(head) :]))


def test_the_grid_is_the_one_that_the_kit_ships_on_as_many_cores():
    knobs = grid.grid(cores=2)
    assert math.prod(map(len, knobs.values())) == 288
    head, rows = read(DATA / "tuning-grid.csv")
    assert "2 cores" in head[0]
    assert len(rows) == 288
    assert {name: list(dict.fromkeys(row[name] for row in rows)) for name in knobs} == {
        name: list(map(str, values)) for name, values in knobs.items()
    }


@pytest.mark.parametrize("cores", [1, 3, 64])
def test_threads_go_from_half_the_cores_to_twice_as_many(cores):
    threads = grid.grid(cores)["omp"]
    assert threads == sorted(set(threads))
    assert (threads[0], threads[-1]) == (max(1, cores // 2), 2 * cores)


def test_a_point_is_measured_in_a_process_of_its_own():
    seen = []

    def measure(settings):
        seen.append(settings)
        return 10.0 * settings["omp"]

    assert grid.measure_in_fork({"omp": 3}, measure) == 30.0
    assert seen == []


@pytest.mark.parametrize("failure", [lambda settings: 1 / 0, lambda settings: time.sleep(60)])
def test_a_point_that_fails_or_hangs_is_not_a_number(failure, capfd):
    assert math.isnan(grid.measure_in_fork({}, failure, timeout=0.5))


def test_a_round_measures_each_point_once_in_an_order_of_its_own(capsys):
    orders: list[list] = []

    def measure(settings):
        orders[-1].append(tuple(settings.values()))
        return 7.0

    for number in (1, 2):
        orders.append([])
        speeds = grid.measure_round(KNOBS, number, measure)
        assert speeds == dict.fromkeys(itertools.product(*KNOBS.values()), 7.0)
        assert "4 of 4 points" in capsys.readouterr().err
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(itertools.product(*KNOBS.values()))
    assert orders[0] != orders[1]


def test_the_file_has_each_round_and_their_median(tmp_path):
    points = list(itertools.product(*KNOBS.values()))
    rounds = [dict.fromkeys(points, speed) for speed in (10.0, 30.0, 20.0)]
    grid.write(tmp_path / "grid.csv", KNOBS, rounds, MACHINE, "2.14.0")
    head, rows = read(tmp_path / "grid.csv")
    assert head[:2] == ["# Synthetic CPU, 2 cores, AVX2\n", head[1]]
    assert head[1].startswith("# TensorFlow 2.14.0 with OpenMP")
    assert [tuple(rows[0])] == [("omp", "affinity", "round1", "round2", "round3", "images_s")]
    assert len(rows) == len(points)
    assert rows[0] == dict(zip(rows[0], ("1", "none", "10", "30", "20", "20"), strict=True))
