"""Checks for lab 11: buckets, DDP that sends while it computes, ZeRO-1, FSDP, and their crossover."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hypothesis import strategies as st

from labkit.exercises.engine.answers import call, for_all, reports, run_answer
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.on_ranks import PICKLING
from labkit.exercises.engine.outcomes import expect, refuse
from labkit.exercises.engine.values import describe, number
from labkit.system.words import plural

lab = Lab("11")

PROBE = Path(__file__).with_name("lab11_ranks.py")
RANKS = 3  # layer and network sizes are not multiples of it, so that there is padding
MAX_WHOLE_LAYERS = 3  # per rank at a time, in exercise 4
NEAR = 1e-4  # relative tolerance: float32 sums in any order


@lab.exercise(
    1,
    hints=(
        "The last layer's gradient is ready first. Which comes next, and when does it no longer fit?",
        "Go through reversed(range(len(sizes))). Append the layer to the last bucket if it fits; otherwise start "
        "a new bucket with it.",
        "full = []; for layer in reversed(range(len(sizes))): if full and sum(sizes[other] for other in full[-1]) + "
        "sizes[layer] <= limit: full[-1].append(layer); else: full.append([layer]); return full",
    ),
    moves=True,
)
def buckets(answer: Callable[..., Any]) -> None:
    """Check for layers from last to first, in buckets as full as the limit allows."""

    def decide(sizes: list[int], limit: int) -> None:
        called = f"buckets({sizes}, {limit})"
        result = call(answer, sizes, limit)
        expect(isinstance(result, list | tuple), f"{called} to be a list of lists; it is {describe(result)}")
        result_buckets = []
        for place, bucket in enumerate(result):
            name = f"bucket {place} of {called}"
            expect(isinstance(bucket, list | tuple), f"{name} to be a list of layer numbers; it is {describe(bucket)}")
            expect(len(bucket) > 0, f"{name} to hold a layer; it is empty")
            for layer in bucket:
                expect(hasattr(layer, "__index__"), f"the layers in {name} to be ints; one is {describe(layer)}")
            result_buckets.append([int(layer) for layer in bucket])
        order = [layer for bucket in result_buckets for layer in bucket]
        backward = list(reversed(range(len(sizes))))
        wrong_way = order == backward[::-1] and len(order) > 1
        expect(
            order == backward,
            f"{called} to hold each layer once, in the order in which gradients become ready: {backward}; they are in "
            f"the order {order}",
            hint="In which order does a backward pass go through the layers?" if wrong_way else "",
        )
        for place, bucket in enumerate(result_buckets):
            size = sum(sizes[layer] for layer in bucket)
            expect(
                size <= limit or len(bucket) == 1,
                f"bucket {place} of {called} to hold {limit} bytes at most; {bucket} has {size}",
            )
            if place + 1 < len(result_buckets):
                following = result_buckets[place + 1][0]
                expect(
                    size + sizes[following] > limit,
                    f"bucket {place} of {called} to be filled: layer {following} still fits, {size} + "
                    f"{sizes[following]} bytes",
                )

    for sizes, limit in (
        ([3, 3, 4, 9], 7),
        ([4, 4, 4, 4], 8),
        ([9, 1, 1], 5),
        ([1, 1, 9], 5),
        ([2, 9, 2], 5),
        ([5], 1),
        ([5, 5, 5], 0),
        ([1, 2, 3, 4, 5, 6], 1000),
        ([], 10),
    ):
        decide(sizes, limit)
    for_all(decide, sizes=st.lists(st.integers(1, 20), max_size=9), limit=st.integers(0, 60))


@lab.exercise(
    2,
    hints=(
        "Two nested loops: over the buckets, and over the layers of a bucket. What do you do with the gradients after "
        "the inner one?",
        "Store what self.sender.submit(self.average, gradients) returns in a list. Call .result() on each when all "
        "gradients have been computed, not before.",
        "futures = []; for bucket in self.buckets: gradients = []; for layer in bucket: gradient, error = "
        "backward(self.weights[layer], outputs[layer], outputs[layer + 1], error); gradients.append(gradient); then "
        "futures.append(self.sender.submit(self.average, gradients)). After it: for bucket, future in "
        "zip(self.buckets, futures): for layer, mean in zip(bucket, future.result()): "
        "self.states[layer].update(self.weights[layer], mean)",
    ),
)
def ddp(answer: str) -> None:
    """Check on 3 ranks: trains like one process, one all-reduce per bucket, started before the next gradient."""
    for rank, report in enumerate(_reports("ddp", answer)):
        _trains_as_one_process(rank, report)
        expect(
            report["collectives"] == report["buckets"],
            f"one all-reduce for each of the {report['buckets']} buckets in a step; rank {rank} took part in "
            f"{report['collectives']}",
        )
        expect(
            not report["late"],
            f"a bucket to be submitted when its gradients are complete; rank {rank} continued with the next bucket "
            "without sending it",
            hint="Submit a bucket once its last gradient has been computed, inside the loop over buckets.",
        )
        expect(
            not report["waited"],
            f"all gradients to be computed while the first bucket is in flight; rank {rank} waited for a mean before "
            "the last gradient",
            hint="Where is .result() called? It waits. Call it after all gradients have been computed.",
        )


@lab.exercise(
    3,
    hints=(
        "An all-reduce is a reduce-scatter and an all-gather. What has to happen between the two? Where does this "
        "rank's shard of self.flat begin?",
        "mine = np.empty(self.share, np.float32), then Reduce_scatter_block, then divide by self.ranks.size. shard = "
        "slice(self.ranks.rank * self.share, (self.ranks.rank + 1) * self.share).",
        "self.ranks.Reduce_scatter_block(self.flat_gradient, mine); mine /= self.ranks.size; "
        "self.state.update(self.flat[shard], mine); self.ranks.Allgather(MPI.IN_PLACE, self.flat)",
    ),
)
def zero1(answer: str) -> None:
    """Check on 3 ranks: trains like one process, with sharded states and no more traffic than an all-reduce."""
    for rank, report in enumerate(_reports("zero1", answer)):
        _trains_as_one_process(rank, report)
        _check_traffic(rank, report, "a reduce-scatter of the gradients and an all-gather of the weights")


@lab.exercise(
    4,
    hints=(
        "Draw three layers, from the last to the first: when does each compute, and what is sent meanwhile? Which "
        "weights does the forward pass leave in `weight`?",
        "Take the weights from `coming.result()`, except for the last layer. Before you call backward, submit "
        "self.gather for layer - 1, into the same variable `coming`. After it, submit self.scatter.",
        "scattered = {}; for layer in reversed(range(last + 1)): if layer < last: weight = coming.result(); if layer > "
        "0: coming = self.sender.submit(self.gather, layer - 1); gradient, error = backward(weight, outputs[layer], "
        "outputs[layer + 1], error); scattered[layer] = self.sender.submit(self.scatter, gradient). Then, for layer, "
        "share in scattered.items(): self.states[layer].update(self.shares[layer], share.result())",
    ),
)
def fsdp(answer: str) -> None:
    """Check on 3 ranks: trains like one process, with few whole layers at a time, prefetching, and none stored."""
    for rank, report in enumerate(_reports("fsdp", answer)):
        _trains_as_one_process(rank, report)
        _check_traffic(rank, report, "two gathers and a reduce-scatter per layer, one gather less for the last")
        for what in ("weights", "gradients"):
            expect(
                report[what] <= MAX_WHOLE_LAYERS,
                f"rank {rank} to hold the whole {what} of at most {MAX_WHOLE_LAYERS} layers at a time; it held "
                f"{report[what]}",
                hint="Variables, lists and futures keep what they refer to. Which ones do you still need?",
            )
        for layer in report["alone"]:
            refuse(
                f"the weights of layer {layer} to be gathered while layer {layer + 1} computes; rank {rank} did one "
                "after the other",
                hint="Call self.sender.submit(self.gather, layer - 1) before backward, and .result() after it.",
            )
        expect(
            not report["stored"],
            f"rank {rank} to hold no whole weights after a step; it holds those of {plural(report['stored'], 'layer')}",
            hint="Is a whole layer stored in an attribute?",
        )


@lab.exercise(
    5,
    hints=(
        "Just above that rate, FSDP is faster; just below, ZeRO-1. If FSDP's sending were hidden there, its step would "
        "take c, and ZeRO-1's c + 2S. Could those be equal?",
        "So FSDP's step takes 3S there, and 3S = c + 2S. What is S? For the rate: how many bits does a byte have?",
        "S = c: (ranks - 1) / ranks * 4 * parameters * 8 / rate = seconds. Solve it for rate.",
    ),
)
def crossover(answer: Callable[..., Any]) -> None:
    """Check that both steps take equally long at the rate, to a thousandth."""

    def decide(parameters: int, ranks: int, seconds: float) -> None:
        called = f"crossover({parameters}, {ranks}, {seconds})"
        rate = number(call(answer, parameters, ranks, seconds), called)
        expect(rate > 0, f"{called} to be a rate above 0; it is {rate:.4g}")
        once = (ranks - 1) / ranks * 4 * parameters * 8 / rate  # seconds to send the weights once
        zero1, fsdp = seconds + 2 * once, max(seconds, 3 * once)
        hint = ""
        if math.isclose(3 * once, seconds, rel_tol=0.01):
            hint = "At that rate, FSDP's sending is just hidden, and ZeRO-1 still sends after computing."
        elif any(math.isclose(once, seconds * times, rel_tol=0.01) for times in (8, 1 / 8)):
            hint = "How many bits does a byte have?"
        expect(
            math.isclose(once, seconds, rel_tol=1e-3),
            f"both to take equally long at the rate that {called} returns; at {rate:.4g} bits/s, ZeRO-1 takes "
            f"{zero1:.4g} s and FSDP {fsdp:.4g} s",
            hint=hint,
        )

    billion = 10**9
    for case in (
        (10**6, 2, 0.5),
        (10**6, 3, 0.5),
        (billion, 6, 10.0),
        (7 * billion, 8, 5.0),
        (7 * billion, 24, 5.0),
    ):
        decide(*case)
    for_all(
        decide,
        parameters=st.integers(1, 10**4).map(lambda millions: millions * 10**6),
        ranks=st.integers(2, 1024),
        seconds=st.integers(1, 400).map(lambda tenths: tenths / 10),
    )


def _reports(kind: str, answer: str) -> list[dict[str, Any]]:
    """Return the probe's report on each rank."""
    ranks: list[dict[str, Any]] = reports(run_answer(RANKS, PROBE, kind, answer, threads=1, timeout=60))
    return ranks


def _trains_as_one_process(rank: int, report: dict[str, Any]) -> None:
    """Compare losses, weights and Adam's states after each step with those of one process on all rows."""
    wrong = report["wrong"]
    for step, (loss, right) in enumerate(zip(report["losses"], report["right"], strict=True), start=1):
        expect(
            isinstance(loss, float) and math.isclose(loss, right, rel_tol=NEAR),
            f"the loss of step {step} on rank {rank} to be {right:.6g}, as for one process on all rows; it is "
            f"{loss if isinstance(loss, str) else f'{loss:.6g}'}",
        )
        if wrong and wrong["step"] == step:
            _report_wrong(rank, **wrong)


def _report_wrong(
    rank: int,
    what: str,
    step: int,
    unchanged: bool,
    differ: list[int],
    sizes: Sequence[int] = (),
    parts: Sequence[str] = (),
    off: float = 0.0,
    scale: float = 0.0,
) -> NoReturn:
    """Reject arrays that differ from one process's: name the first wrong part, the others, and ranks that differ."""
    if sizes:
        refuse(f"{what} on rank {rank} to be {sizes[1]:,} numbers after step {step}; they are {sizes[0]:,}")
    about = f"they differ by up to {100 * off:.3g}% of the largest"
    if unchanged:
        about = "they have not changed since before the step"
    elif math.isclose(scale, RANKS, rel_tol=0.01):
        about = f"they are {RANKS} times too large, like the sum over the ranks instead of the mean"
    others = f". Also off: {', '.join(parts[1:])}" if len(parts) > 1 else ""
    unequal = f". Not all ranks have the same weights: {', '.join(map(str, differ))} differ from 0" if differ else ""
    refuse(f"{what} ({parts[0]}, on rank {rank}) to match one process's after step {step}; {about}{others}{unequal}")


def _check_traffic(rank: int, report: dict[str, Any], which: str) -> None:
    """Check the bytes that a rank sends in a step."""
    expect(
        report["sent"] <= report["least"] + PICKLING * report["pickled"] * RANKS,
        f"rank {rank} to send {report['least']:,.0f} bytes in a step, for {which}; it sent {report['sent']:,.0f}",
    )
