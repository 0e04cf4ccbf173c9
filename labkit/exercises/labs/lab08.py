"""Exercises of lab 08: flags within limits, the share of the missing time, the nodes to request."""

import math
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from labkit.exercises.engine.reference import Case, Reference, Result

EXERCISES: dict[int, Reference] = {}

EXERCISES[1] = Reference(
    cases=[
        (1_000_000, 32, 256, 32_000.0, 0.5, 5, 4096),
        Case((1_000_000, 4, 256, 4_500.0, 4, 8, 8192), because="memory is the limit"),
        Case((1_000_000, 64, 256, 50_000.0, 1, 5, 8192), because="the largest batch is the limit"),
        Case((1_000_000, 48, 256, 50_000.0, 1, 2.5, 1000), because="20 images on 48 workers are fewer than 1,000"),
        Case((1_000_000, 2, 512, 9_000.0, 1, 5, 256), because="one worker alone could take more than all may"),
        Case((1_281_167, 8, 32, 1_000.0, 0.2, 5, 8192), because="not even one epoch fits"),
    ],
    more=st.tuples(
        st.integers(1_000, 2_000_000),
        st.integers(1, 64),
        st.integers(1, 512),
        st.floats(100, 100_000),
        st.floats(0.01, 24),
        st.integers(1, 20),
        st.integers(64, 16_384),
    ),
    returns=(
        Result("num_iter"),
        Result("batch_size"),
        Result("peak", format=".2f"),
        Result("warmup_steps", format=","),
    ),
    wrong={
        "the epochs were not rounded down": {"int(hours * 3600 * speed / images)": "hours * 3600 * speed / images"},
        "hours were minutes": {"3600": "60"},
        "the batch always filled the memory": {"min(batch, largest // workers)": "batch"},
        "the largest batch were for each worker": {"largest // workers": "largest"},
        "the batch were always the largest": {"min(batch, largest // workers)": "largest // workers"},
        "the batch were not a whole number": {"largest // workers": "largest / workers"},
        "the batch were rounded up": {"largest // workers": "-(-largest // workers)"},
        "the peak didn't follow the batch": {"0.256 * together / 256": "0.256"},
        "the peak were that of one worker": {"0.256 * together": "0.256 * batch_size"},
        "the peak followed the workers, not the images": {"0.256 * together / 256": "0.256 * workers"},
        "the warm-up were counted in steps of one worker": {"images / together": "images / batch_size"},
        "the warm-up were rounded down": {"math.ceil(warmup * images / together)": "int(warmup * images / together)"},
        "the warm-up lasted one epoch": {"warmup * images": "images"},
    },
    also=[{"int(hours * 3600 * speed / images)": "math.floor(hours * 3600 / (images / speed))"}],
    hints=(
        "Start with batch_size: which of two limits is lower, memory or a worker's part of the largest batch?",
        "All workers together take workers * batch_size images per step. The peak and the steps of an epoch follow "
        "from this number, not from `batch`.",
        "num_iter = int(hours * 3600 * speed / images); batch_size = min(batch, largest // workers); together = "
        "workers * batch_size; peak = 0.256 * together / 256; warmup_steps = math.ceil(warmup * images / together)",
    ),
)

ONE, TODAY = (640.0, 1), (480.0, 3)
SECONDS = "healthy_s, today_s, run_s = (nodes / speed for speed, nodes in (healthy, today, run))"
EXERCISES[2] = Reference(
    cases=[
        Case((ONE, TODAY, TODAY), because="a step takes as long as today's"),
        Case((ONE, TODAY, (1920.0, 3)), because="a step takes as long as the healthy node's"),
        Case((ONE, TODAY, (960.0, 3)), because="a step takes half as long as today's"),
        Case((ONE, TODAY, (640.0, 2)), because="two nodes train, so a step takes half as long as today's"),
        Case((ONE, TODAY, (240.0, 3)), because="a step takes twice as long as today's"),
        ((1_000.0, 2), (1_500.0, 6), (2_000.0, 5)),
    ],
    more=st.tuples(
        st.tuples(st.floats(500, 1_000), st.just(1)),
        st.tuples(st.floats(100, 900), st.integers(2, 8)),
        st.tuples(st.floats(100, 2_000), st.integers(1, 8)),
    ).filter(lambda case: case[1][1] / case[1][0] > 1.1 / case[0][0]),
    returns=(Result(format=".0f"),),
    case=lambda healthy, today, run: f"recovered({healthy}, {today}, {run})",
    wrong={
        "it were a fraction, not in percent": {"100 * ": ""},
        "it were the share that is still missing": {"(today_s - run_s)": "(run_s - healthy_s)"},
        "the number of nodes didn't matter": {"nodes / speed": "1 / speed"},
        "speeds were compared, not the times of steps": {
            SECONDS: "healthy_s, today_s, run_s = healthy[0], today[0], run[0]"
        },
        "speeds per node were compared, not the times of steps": {"(nodes / speed for": "(speed / nodes for"},
        "it were the gain in speed": {"(today_s - run_s) / (today_s - healthy_s)": "(today_s / run_s - 1)"},
        "it were the share of today's step, not of the missing time": {"(today_s - healthy_s)": "today_s"},
        "it were the share of the healthy step, not of the missing time": {"(today_s - healthy_s)": "healthy_s"},
        "it were what the run loses": {"(today_s - run_s)": "(run_s - today_s)"},
    },
    also=[
        {"100 * (today_s - run_s) / (today_s - healthy_s)": "100 - 100 * (run_s - healthy_s) / (today_s - healthy_s)"}
    ],
    hints=(
        "First turn each pair into the time of a step: n nodes with 32 images each take n * 32 / speed seconds. The 32 "
        "is the same in all three.",
        "The missing time is today's step minus the healthy one. The run recovers today's step minus its own.",
        "100 * (today_s - run_s) / (today_s - healthy_s), where each is nodes / speed",
    ),
)


class _Table:
    """A function of n, given as the values at 1, 2, …; the last one holds for all larger n."""

    def __init__(self, name: str, *values: float) -> None:
        self.name, self.values = name, values

    def __call__(self, n: int, /) -> float:
        return self.values[min(n, len(self.values)) - 1]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{value:g}' for value in self.values)}, …)"


def _requests(choose: Callable[..., Any], seconds: Any, waits: Any, *limits: float) -> Any:
    """Call an answer with functions of n, for 3.6 million images at 250 per node."""
    return choose(_Table("seconds_of", *seconds), _Table("wait_of", *waits), 3_600_000, 250, *limits)


def _request(seconds: Any, waits: Any, fixed: float, budget: float, largest: int) -> str:
    steps, queue = ", ".join(f"{s:g}" for s in seconds), ", ".join(f"{w:g}" for w in waits)
    numbers = f"3.6 million images, {fixed:g} fixed hours, a budget of {budget:g} and at most {largest} nodes"
    return f"the choice with steps of {steps}, … s on 1, 2, … nodes, waits of {queue}, … h, {numbers}"


EXERCISES[3] = Reference(
    cases=[
        Case(((1.0,), (0.0,), 0.1, 100.0, 8), because="no one waits, so the most nodes are first"),
        Case(((1.0,), (0.0, 0.1, 0.2, 2.0, 4.0), 0.1, 100.0, 8), because="4 nodes or more wait for hours"),
        Case(((1.0,), (0.0,), 0.1, 4.55, 8), because="5 nodes cost 4.5 node-hours, and 6 cost 4.6"),
        Case(((1.0, 2.0), (0.0,), 0.0, 100.0, 8), because="2 nodes need as long as 1, and 3 are faster"),
        Case(((1.0, 2.0, 3.0, 4.0), (0.0,), 0.0, 100.0, 4), because="all are equally early"),
        Case(((1.0,), (0.0,), 0.0, 3.0, 8), because="even one node costs 4 node-hours"),
        Case(((1.0,), (0.0,), 1.0, 4.5, 8), because="even one node costs 5 node-hours"),
        Case(((1.0, 5.0), (20.0, 0.0), 0.0, 8.0, 2), because="2 nodes cost 20 node-hours"),
        Case(((1.0, 1.0, 1.0, 9.0), (0.5, 0.4, 3.0), 0.2, 9.0, 6), because="3 wait too long, and 4 are slow"),
        Case(((0.5, 0.6, 0.8, 0.8, 1.0), (0.0, 0.3, 0.3, 0.1, 9.0), 1.0, 7.0, 5)),
    ],
    more=st.tuples(
        st.lists(st.floats(0.5, 3), min_size=1, max_size=5).map(tuple),
        st.lists(st.floats(0, 4), min_size=1, max_size=5).map(tuple),
        st.sampled_from((0.0, 0.13, 1.07)),
        st.sampled_from((3.3, 5.1, 11.7, 99.0)),
        st.integers(1, 8),
    ),
    use=_requests,
    case=_request,
    wrong={
        "no one waited": {
            " and wait_of(n) + hours < earliest": " and hours < earliest",
            "n, wait_of(n) + hours": "n, hours",
        },
        "waiting cost node-hours": {"n * hours <= budget": "n * (wait_of(n) + hours) <= budget"},
        "the budget didn't matter": {"n * hours <= budget and ": ""},
        "the budget were for one node": {"n * hours <= budget": "hours <= budget"},
        "the fewest nodes within the budget were the best": {" and wait_of(n) + hours < earliest": " and not best"},
        "the most nodes within the budget were the best": {" and wait_of(n) + hours < earliest": ""},
        "the most nodes won, where several are equally early": {"hours < earliest": "hours <= earliest + 1e-9"},
        "there were no fixed hours": {"fixed + images": "images"},
        "the fixed hours shrank with the nodes": {"fixed + images": "fixed / n + images"},
        "one node took all images": {"(n * batch)": "batch"},
        "`largest` itself were too many": {"largest + 1": "largest"},
    },
    also=[
        lambda seconds_of, wait_of, images, batch, fixed, budget, largest: min(
            (
                (wait_of(n) + hours, n)
                for n in range(1, largest + 1)
                for hours in [fixed + images / (n * batch) * seconds_of(n) / 3600]
                if n * hours <= budget
            ),
            default=(math.inf, 0),
        )[1]
    ],
    hints=(
        "How many hours does the job itself take on n nodes? And when is its result there, counted from submitting?",
        "job = fixed + images / (n * batch) * seconds_of(n) / 3600 hours; it costs n * job, and its result is there "
        "after wait_of(n) + job.",
        "Go through range(1, largest + 1), skip an n with n * job > budget, and keep the n with the smallest "
        "wait_of(n) + job. Compare with <, so that the fewest nodes win.",
    ),
)
