import time
from fractions import Fraction

import lab_cells
import numpy as np
import pytest
import tensorflow as tf
from labs import ThreeWays

from labkit.exercises import core
from labkit.system.statistics import ratio, ratios
from labkit_author.mistakes import Change


class TestExercises(ThreeWays):
    lab = "01"
    names = {"np": np, "tf": tf, "v1": tf.compat.v1, "time": time, "Fraction": Fraction}


def test_an_answer_that_waits_in_a_session_is_reported_by_its_line(student, capsys, monkeypatch):
    monkeypatch.setattr(core, "ANSWER_LIMIT_S", 1.0)
    waits = """with tf.Graph().as_default(), v1.Session() as empty:
        empty.run(tf.queue.FIFOQueue(1, tf.float32).dequeue())
    with graph.as_default(), v1.Session()"""
    student.check(2, student.answer(2, Change(before="with graph.as_default(), v1.Session()", after=waits)))
    assert 'It was in line 6: "empty.run(tf.queue.FIFOQueue(1, tf.float32).dequeue())".' in capsys.readouterr().out


@pytest.mark.parametrize("spoil", ["v1.disable_eager_execution()", "tf.config.run_functions_eagerly(True)"])
def test_an_answer_that_changes_how_tensorflow_works_is_reported_and_undone(student, capsys, spoil):
    student.check(4, student.answer(4, Change(before="step = tf.V", after=f"{spoil}; step = tf.V")))
    assert "Exercise 4 · not yet." in capsys.readouterr().out
    student.check(4, student.answer(4))
    assert "Exercise 4 · passed." in capsys.readouterr().out


# What the lab says of its measurements, from invented ones of each kind.

WORDS = lab_cells.functions("01", "thread_speeds", "tell_threads", "tell", np=np, ratio=ratio, ratios=ratios)
KINDS = [(1.8, "faster"), (0.6, "slower"), (1.0, "no difference beyond chance")]


def launches(case, of_settings):
    """What the script has written: the milliseconds of each setting, launch by launch."""
    times = {setting: list(ms) for setting, ms in of_settings.items()}
    return [
        {"case": case, "inter": inter, "intra": intra, "ms": times[inter, intra][launch]}
        for launch in range(4)
        for inter, intra in times
    ]


@pytest.mark.parametrize(("speed", "verdict"), KINDS)
def test_threads_gain_what_the_rounds_show(speed, verdict, capsys):
    one, more = [5.0, 5.1, 4.9, 5.0], [ms / speed for ms in (5.0, 4.9, 5.1, 5.1)]
    timed = launches("small", {(1, 1): one, (4, 1): more, (1, 2): one[::-1], (4, 2): more[::-1]})
    speeds = WORDS["thread_speeds"](timed)
    assert speeds["small"][1, 1] == [1000 / ms for ms in one]
    gains = WORDS["tell_threads"]("small", speeds["small"])
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"small, 4 inter-op, 1 intra-op: {gains[4, 1]} times as fast: {verdict}")
    assert told[-1].startswith("small, both kinds against intra-op alone: ")
    assert f"times as fast: {verdict}" in told[-1]
    more[1] *= 9  # one disturbed round
    speeds = WORDS["thread_speeds"](launches("small", {(1, 1): one, (4, 1): more}))
    assert "no difference beyond chance" in WORDS["tell_threads"]("small", speeds["small"])[4, 1].verdict
    assert "both kinds" not in capsys.readouterr().out


@pytest.mark.parametrize(("speed", "verdict"), KINDS)
def test_merging_gains_what_the_rounds_show(speed, verdict, capsys):
    rounds = [1.0, 1.02, 0.99]
    speeds = {"apart": rounds, "merged": [speed * each for each in rounds[::-1]], "convolution alone": [2.0] * 3}
    gain, most = WORDS["tell"]("first", speeds)
    told = capsys.readouterr().out
    assert told.startswith(f"first block: merged {gain} times as fast: {verdict}")
    assert "the convolution alone: 1.99 (" in told
    assert gain.verdict.startswith(verdict)
    assert most.verdict == "faster"
