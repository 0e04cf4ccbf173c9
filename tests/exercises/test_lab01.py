import lab_cells
import numpy as np
import pytest
import tensorflow as tf
from labs import ThreeWays

from labkit.display.consistency import Limit, repeated
from labkit.display.measured import Measured
from labkit.exercises.engine import checker
from labkit.system.statistics import interval, ratio, ratios
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


# The lab's sentences about its measurements, for synthetic results of each kind.

CELLS = lab_cells.functions(
    "01",
    *("summarise", "thread_speeds", "report_threads", "saved_per_step", "explain_saving"),
    *("report_fusion", "compare_fusion"),
    **{"np": np, "interval": interval, "ratio": ratio, "ratios": ratios},
    **{"Limit": Limit, "Measured": Measured, "repeated": repeated},
)
KINDS = [(1.8, "faster"), (0.6, "slower"), (1.0, "not significant")]


def launches(case, ms_by_setting):
    """Return the script's results: the milliseconds of each setting, launch by launch."""
    times = {setting: list(ms) for setting, ms in ms_by_setting.items()}
    return [
        {"case": case, "inter": inter, "intra": intra, "ms": times[inter, intra][launch]}
        for launch in range(4)
        for inter, intra in times
    ]


@pytest.mark.parametrize(("speed", "verdict"), KINDS)
def test_speedup_by_threads_follows_from_the_rounds(speed, verdict, capsys):
    single, multi = [5.0, 5.1, 4.9, 5.0], [ms / speed for ms in (5.0, 4.9, 5.1, 5.1)]
    timed = launches("small", {(1, 1): single, (4, 1): multi, (1, 2): single[::-1], (4, 2): multi[::-1]})
    speeds = CELLS["thread_speeds"](timed)
    assert speeds["small"][1, 1] == [1000 / ms for ms in single]
    gains = CELLS["report_threads"]("small", speeds["small"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"small, 4 inter-op, 1 intra-op: {Measured(*gains[4, 1], '×')}, {verdict}")
    multi[1] *= 9  # one disturbed round
    speeds = CELLS["thread_speeds"](launches("small", {(1, 1): single, (4, 1): multi}))
    assert not CELLS["report_threads"]("small", speeds["small"])[4, 1].significant
    line = capsys.readouterr().out
    assert "round 2 at 0.1" in line
    assert line.count(" in 3 of 4") + line.count(" in 4 of 4") == 1  # by rank, named once
    assert "both kinds" not in line


@pytest.mark.parametrize(
    ("inter", "intra", "both", "line"),
    [
        (1.7, 0.9, 1.3, "both kinds vs inter-op alone, the better kind here: 0.76× (0.76 to 0.76), slower"),
        (1.2, 1.8, 1.8, "both kinds vs intra-op alone, the better kind here: 1.00× (1.00 to 1.00), not significant"),
    ],
)
def test_both_kinds_of_threads_are_compared_with_the_better_kind(inter, intra, both, line, capsys):
    single = np.array([10.0, 11.0, 10.5])
    speeds = {(1, 1): single, (2, 1): inter * single, (1, 2): intra * single, (2, 2): both * single}
    CELLS["report_threads"]("small", speeds)
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"small, {line}")


@pytest.mark.parametrize(
    ("at_32", "at_2048", "conclusion"),
    [
        (1.0, 1.6, "grows 1.6× with the batch. 1.00 ms can be calls; 0.60 ms depend on the batch, so they are not."),
        (1.0, 1.0, "That fits a fixed time per step, the calls; no growth is proven."),
        (1.6, 1.0, "The time saved shrinks with the batch, which calls do not explain."),
    ],
)
def test_only_fixed_savings_are_attributed_to_calls(at_32, at_2048, conclusion):
    def saved(ms):
        graph = np.array([0.4, 0.41, 0.39])
        return CELLS["saved_per_step"](
            {"eager": 1000 / (graph + ms * np.array([1, 1.01, 0.99])), "graph": 1000 / graph}
        )

    explained = CELLS["explain_saving"]({32: saved(at_32), 256: saved(1.2), 2048: saved(at_2048)})
    assert explained.startswith(
        f"time saved: {saved(at_32)} in batches of 32, {saved(at_2048)} in batches of 2048; the"
    )
    assert explained.endswith(conclusion)


@pytest.mark.parametrize(("speed", "verdict"), KINDS)
def test_speedup_by_merging_follows_from_the_rounds(speed, verdict, capsys):
    rounds = [1.0, 1.02, 0.99]
    speeds = {
        "apart": rounds,
        "merged": [speed * images_per_s for images_per_s in rounds[::-1]],
        "convolution alone": [2.0] * 3,
    }
    merged, limit = CELLS["report_fusion"]("first", speeds)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"first block, merged vs apart: {merged}, {verdict}")
    assert lines[1] == f"   its limit: {limit.describe(merged)}"
    assert limit.measured.value == pytest.approx(1.99, abs=0.01)
    assert lines[2] == "   the convolution takes 50% of the time of the separate operations"


@pytest.mark.parametrize(("first", "winner"), [(1.5, "first"), (1.1, "no difference"), (0.8, "middle")])
def test_block_with_the_larger_speedup_from_fusion_is_named(first, winner, capsys):
    apart, merged = np.array([1.0, 1.02, 0.99]), np.array([1.1, 1.11, 1.1])
    blocks = {
        "first": {"apart": apart, "merged": first / 1.1 * merged[::-1]},
        "middle": {"apart": apart, "merged": merged},
    }
    assert CELLS["compare_fusion"](blocks) == winner
    assert capsys.readouterr().out.startswith("speed-up of the first block vs that of the middle block: ")
