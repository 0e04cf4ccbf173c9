from collections import Counter

import lab_cells
import numpy as np
import pytest
from labs import ThreeWays

from labkit.bench.configurations import Comparison
from labkit.system.statistics import Ratio


class TestExercises(ThreeWays):
    lab = "03"
    names = {"np": np, "Counter": Counter}


# --- What the lab says of its measurements, played invented results of each kind ---

ROUNDS = [1.0, 1.02, 0.99]  # how fast each of three rounds is
NOISE = [(1, -1, 0), (-1, 0, 1), (0, 1, -1), (-1, 1, 0)]  # of each configuration, in its rounds


def comparison(speeds, rounds=3, noise=0.01, work=None):
    """A comparison in which each configuration has this speed, in rounds that differ, with some noise of its own."""
    results = {
        name: [
            {"images_per_second": speed * ROUNDS[turn] * (1 + noise * NOISE[row][turn]), "gflop_per_image": 1.0}
            for turn in range(rounds)
        ]
        for row, (name, speed) in enumerate(speeds.items())
    }
    for name, gflop in (work or {}).items():
        for result in results[name]:
            result["gflop_per_image"] = gflop
    return Comparison(results, {})


def cells(*names):
    return lab_cells.functions("03", *names, np=np, Ratio=Ratio)


VERDICTS = [
    ({"new": 20.0}, 3, "faster", "→ change it on this machine: this gains at least"),
    ({"new": 3.0}, 3, "slower", "→ stay with what is tuned: this costs at least 6"),
    ({"new": 10.0}, 3, "no difference beyond chance", "these rounds cannot resolve differences below a factor of 1."),
    ({"new": 20.0}, 1, "one round only, so there is no interval", "→ measure in rounds before you decide"),
    ({}, 3, "not measured here", ""),
]


@pytest.mark.parametrize(("speeds", "rounds", "verdict", "advice"), VERDICTS)
def test_what_is_said_of_a_configuration_is_what_its_rounds_show(speeds, rounds, verdict, advice, capsys):
    both = cells("tell", "advise")
    found = comparison({"tuned": 10.0, **speeds}, rounds)
    both["tell"](found, "new", "tuned")
    assert f": {verdict}" in capsys.readouterr().out
    both["advise"](found, "new", "tuned")
    told = capsys.readouterr().out
    assert f": {verdict}" in told
    assert advice in told
    assert ("→" in told) == bool(advice)


def test_advice_that_the_noise_does_not_bear_is_not_given(capsys):
    cells("tell", "advise")["advise"](comparison({"tuned": 10.0, "new": 9.0}, noise=0.2), "new", "tuned")
    told = capsys.readouterr().out
    assert "no difference beyond chance" in told
    assert "stay" not in told


@pytest.mark.parametrize(
    ("forward", "rounds", "says"),
    [
        (45.0, 3, "times the GFLOP/s of training: more"),
        (20.0, 3, "times the GFLOP/s of training: fewer"),
        (30.0, 3, "times the GFLOP/s of training: no difference beyond chance"),
        (45.0, 1, "1.47 times the GFLOP/s of training: one round only, so there is no interval"),
    ],
)
def test_the_forward_pass_is_compared_by_operations_and_not_by_images(forward, rounds, says, capsys):
    conclude = cells("tell", "reached", "conclude")["conclude"]
    speeds = {"training": 10.0, "forward": forward}
    conclude(comparison(speeds, rounds, work={"training": 24.0, "forward": 8.0}))
    told = capsys.readouterr().out
    assert "training, unfused against training: not measured here" in told
    assert told.rstrip().endswith(says)


def test_the_batch_sizes_rule_is_found_again():
    """A fixed time of 0.2 s and 0.1 s an image, without noise."""
    sizes = [1, 2, 4, 8]
    speeds = {f"float32, batch {size}": size / (0.2 + 0.1 * size) for size in sizes}
    fit = lab_cells.functions("03", "fit", np=np, sizes=sizes, by_batch=comparison(speeds, noise=0.0))["fit"]
    assert fit("float32") == pytest.approx([0.2, 0.1], rel=0.01)
