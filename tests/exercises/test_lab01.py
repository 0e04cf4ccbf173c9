import numpy as np
import pytest
import tensorflow as tf
from labs import ThreeWays

from labkit.exercises.engine import checker
from labkit_author.mistakes import Change


class TestExercises(ThreeWays):
    lab = "01"
    names = {"np": np, "tf": tf, "v1": tf.compat.v1}


def test_answer_that_hangs_in_a_session_is_reported_with_its_line(student, capsys, monkeypatch):
    monkeypatch.setattr(checker, "ANSWER_LIMIT_S", 1.0)
    waits = """with tf.Graph().as_default(), v1.Session() as empty:
        empty.run(tf.queue.FIFOQueue(1, tf.float32).dequeue())
    with graph.as_default()"""
    student.check(1, student.answer(1, Change(before="with graph.as_default()", after=waits)))
    assert 'It was in line 6: "empty.run(tf.queue.FIFOQueue(1, tf.float32).dequeue())".' in capsys.readouterr().out


@pytest.mark.parametrize("spoil", ["v1.disable_eager_execution()", "tf.config.run_functions_eagerly(True)"])
def test_global_change_to_tensorflow_is_reported_and_undone(student, capsys, spoil):
    student.check(3, student.answer(3, Change(before="step = tf.V", after=f"{spoil}; step = tf.V")))
    assert "Exercise 3 · not yet." in capsys.readouterr().out
    student.check(3, student.answer(3))
    assert "Exercise 3 · passed." in capsys.readouterr().out
