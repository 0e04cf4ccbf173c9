import itertools
import time
from types import SimpleNamespace

import pytest

from labkit.bench.in_process import Step, compare_steps
from labkit.measure import alternation


@pytest.fixture
def clock(monkeypatch):
    """Patch the clock so that only steps advance it; return a function that makes steps with a duration in seconds."""
    clock_s = [0.0]
    monkeypatch.setattr(alternation, "time", SimpleNamespace(perf_counter=lambda: clock_s[0], monotonic=time.monotonic))

    def step(name, seconds, calls, **attributes):
        durations = itertools.cycle([seconds] if isinstance(seconds, float) else seconds)

        def run():
            calls.append(name)
            clock_s[0] += next(durations)

        return Step(run, **attributes)

    return step


def test_steps_alternate_and_short_ones_are_repeated(clock):
    calls = []
    steps = {
        "long": clock("long", 0.5, calls, images=8, gflop_per_image=2.0),
        "short": clock("short", 0.125, calls, images=1, use_fp16=True),
    }
    comparison = compare_steps(steps, rounds=2, turn_s=0.25)
    assert calls == ["long"] * 2 + ["short"] * 2 + ["long", "short", "short", "short", "short", "long"]
    assert comparison.rates("long") == [16, 16]
    assert comparison.rates("short") == [8, 8]
    assert comparison.gflops("long") == pytest.approx(32)
    assert [comparison.results[name][0]["settings"]["use_fp16"] for name in steps] == [False, True]


def test_a_ratio_pairs_rounds(clock):
    calls = []
    steps = {  # the first two are warm-up
        "a": clock("a", [9.0, 1.0, 1.0, 2.0], calls, images=1),
        "b": clock("b", [9.0, 0.5, 0.5, 1.0], calls, images=1),
    }
    ratio = compare_steps(steps, rounds=2).ratio("b", "a")
    assert ratio == pytest.approx((2, 2, 2))
