import contextlib
import itertools
from types import SimpleNamespace

import pytest

from labkit.measure import alternate, alternation, per_second
from labkit.system import load
from labkit.system.errors import LabError


def test_the_order_is_reversed_in_every_other_round():
    calls = []
    alternate({name: lambda name=name: calls.append(name) or 1.0 for name in "abc"}, rounds=3)
    assert "".join(calls) == "abccbaabc"


def test_figures_keep_rounds_unit_and_source():
    figures = {"a": iter([2.0, 1.0, 3.0]), "b": iter([20.0, 10.0, 30.0])}
    results = alternate({name: figures[name].__next__ for name in figures}, 3, "images/s", where="section 1")
    assert results["a"].rounds == (2, 1, 3)
    assert results["b"].rounds == (20, 10, 30)
    assert results["b"].value == 20
    assert results["a"].unit == "images/s"
    assert results["a"].source == results["b"].source
    assert results["a"].source.what == "section 1: a, b"


@pytest.mark.parametrize("figure", [0.0, -1.0, float("nan"), float("inf")])
def test_figures_that_are_not_positive_are_refused(figure):
    with pytest.raises(LabError, match=r"^graph: a figure must be a positive number, not "):
        alternate({"graph": lambda: figure}, rounds=1)


def test_figures_keep_a_record_of_other_work(monkeypatch):
    monkeypatch.setattr(alternation.load, "watch", lambda where, show: contextlib.nullcontext(load.Contention(where)))
    results = alternate({"a": lambda: 1.0, "b": lambda: 1.0}, rounds=1, where="section 2")
    assert results["a"].contention == results["b"].contention == (load.Contention("section 2"),)


def test_long_measurements_announce_their_duration_and_show_rounds(monkeypatch):
    lines, now = [], itertools.count(0, 4)
    monkeypatch.setattr(alternation, "progress", lambda start: contextlib.nullcontext(lines.append))
    monkeypatch.setattr(alternation, "time", SimpleNamespace(monotonic=now.__next__))
    alternate({"a": lambda: 1.0, "b": lambda: 1.0}, rounds=3)
    lefts = 16, 8, 0
    assert lines == ["a, b: about 24 s", *(f"round {n} of 3, about {s} s left" for n, s in enumerate(lefts, 1))]


def test_short_calls_are_repeated_and_count_as_work(monkeypatch):
    clock, calls = [0.0], []

    def step():
        clock[0] += 0.1
        calls.append(1)

    monkeypatch.setattr(alternation, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    measure = per_second(step, work=32, at_least_s=0.45)
    assert len(calls) == 2  # warm-up
    assert measure() == pytest.approx(320)
    assert len(calls) == 2 + 5
