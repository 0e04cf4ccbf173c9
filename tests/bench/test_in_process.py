import itertools

import pytest

from labkit.bench import in_process
from labkit.bench.in_process import Step, compare_steps


@pytest.fixture
def clock(monkeypatch):
    """A clock that only steps move; returns a maker of steps that take so many seconds."""
    now = [0.0]
    monkeypatch.setattr(in_process.time, "perf_counter", lambda: now[0])

    def step(name, seconds, ran, **about):
        taken = itertools.cycle([seconds] if isinstance(seconds, float) else seconds)

        def run():
            ran.append(name)
            now[0] += next(taken)

        return Step(run, **about)

    return step


def test_steps_take_turns_and_short_ones_are_repeated(clock, capsys):
    ran = []
    steps = {
        "long": clock("long", 0.5, ran, images=8, gflop_per_image=2.0),
        "short": clock("short", 0.125, ran, images=1, use_fp16=True),
    }
    found = compare_steps(steps, rounds=2, turn_s=0.25)
    assert ran == ["long"] * 2 + ["short"] * 2 + ["long", "short", "short"] * 2
    assert found.rates("long") == [16, 16]
    assert found.rates("short") == [8, 8]
    assert found.gflops("long") == pytest.approx(32)
    assert [found.results[name][0]["settings"]["use_fp16"] for name in steps] == [False, True]
    out = capsys.readouterr().out
    assert "warming up: short\n" in out
    assert "round 2 of 2\n" in out


def test_a_ratio_is_of_the_same_rounds(clock):
    ran = []
    steps = {  # the first two are warming up
        "a": clock("a", [9.0, 1.0, 1.0, 2.0], ran, images=1),
        "b": clock("b", [9.0, 0.5, 0.5, 1.0], ran, images=1),
    }
    times = compare_steps(steps, rounds=2).ratio("b", "a")
    assert times == pytest.approx((2, 2, 2))
