"""Checks of lab 11: buckets, a step that sends while it computes, shards of states and weights, a crossover."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hypothesis import strategies as st

from labkit.exercises.answers import PICKLING, call, for_all, reports, run_answer
from labkit.exercises.core import Lab
from labkit.exercises.outcomes import expect, refuse
from labkit.exercises.values import describe, number
from labkit.system.words import plural

lab = Lab("11")

PROBE = Path(__file__).with_name("lab11_ranks.py")
RANKS = 3  # neither the sizes of layers nor those of networks are multiples of it, so that there is padding
WHOLE_LAYERS = 3  # that a rank may hold at a time in exercise 4
NEAR = 1e-4  # relative: float32, in any order of sums


@lab.exercise(
    1,
    hints=(
        "The last layer's gradient is ready first. Which comes next, and when does it no longer fit?",
        "Go through reversed(range(len(sizes))). Append the layer to the last bucket if that has room; otherwise "
        "begin a bucket with it.",
        "full = []; for layer in reversed(range(len(sizes))): if full and sum(sizes[other] for other in full[-1]) + "
        "sizes[layer] <= limit: full[-1].append(layer); else: full.append([layer]); return full",
    ),
    moves=True,
)
def buckets(answer: Callable[..., Any]) -> None:
    """Layers from the last to the first, each bucket as full as the limit lets it be."""

    def decide(sizes: list[int], limit: int) -> None:
        called = f"buckets({sizes}, {limit})"
        result = call(answer, sizes, limit)
        expect(isinstance(result, list | tuple), f"{called} to be a list of lists; it is {describe(result)}")
        made = []
        for place, bucket in enumerate(result):
            name = f"bucket {place} of {called}"
            expect(
                isinstance(bucket, list | tuple), f"{name} to be a list of layers' numbers; it is {describe(bucket)}"
            )
            expect(len(bucket) > 0, f"{name} to hold a layer; it is empty")
            for layer in bucket:
                expect(hasattr(layer, "__index__"), f"the layers in {name} to be ints; one is {describe(layer)}")
            made.append([int(layer) for layer in bucket])
        order = [layer for bucket in made for layer in bucket]
        backward = list(reversed(range(len(sizes))))
        wrong_way = order == backward[::-1] and len(order) > 1
        expect(
            order == backward,
            f"{called} to hold each layer once, in the order in which gradients become ready: {backward}; they are in "
            f"the order {order}",
            hint="In which order does a backward pass go through the layers?" if wrong_way else "",
        )
        for place, bucket in enumerate(made):
            size = sum(sizes[layer] for layer in bucket)
            expect(
                size <= limit or len(bucket) == 1,
                f"bucket {place} of {called} to hold {limit} bytes at most; {bucket} has {size}",
            )
            if place + 1 < len(made):
                following = made[place + 1][0]
                expect(
                    size + sizes[following] > limit,
                    f"bucket {place} of {called} to be filled: layer {following} has room in it, {size} + "
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
        "Two loops, one in the other: over the buckets, and over the layers of a bucket. What do you do with the "
        "gradients at the end of the inner one?",
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
    """On 3 ranks: one process's training, an all-reduce a bucket, each begun before the next gradient is computed."""
    for rank, found in enumerate(_found("ddp", answer)):
        _trains_as_one_process(rank, found)
        expect(
            found["collectives"] == found["buckets"],
            f"one all-reduce for each of the {found['buckets']} buckets in a step; rank {rank} took part in "
            f"{found['collectives']}",
        )
        expect(
            not found["late"],
            f"a bucket to be submitted when its gradients are complete; rank {rank} continued with the next bucket "
            "without having sent it",
            hint="Submit a bucket where its last gradient has been computed, inside the loop over buckets.",
        )
        expect(
            not found["waited"],
            f"all gradients to be computed while the first bucket is on its way; rank {rank} waited for a mean before "
            "the last of them",
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
    """On 3 ranks: one process's training, from shards of the states, with no more bytes than an all-reduce."""
    for rank, found in enumerate(_found("zero1", answer)):
        _trains_as_one_process(rank, found)
        _sends_no_more(rank, found, "a reduce-scatter of the gradients and an all-gather of the weights")


@lab.exercise(
    4,
    hints=(
        "Draw three layers, from the last to the first: when does each compute, and what travels meanwhile? Which "
        "weights does the forward pass leave in `weight`?",
        "Take the weights from `coming.result()`, except for the last layer. Before you call backward, submit "
        "self.gather for the layer before, into the same variable `coming`. After it, submit self.scatter.",
        "scattered = {}; for layer in reversed(range(last + 1)): if layer < last: weight = coming.result(); if layer > "
        "0: coming = self.sender.submit(self.gather, layer - 1); gradient, error = backward(weight, outputs[layer], "
        "outputs[layer + 1], error); scattered[layer] = self.sender.submit(self.scatter, gradient). Then, for layer, "
        "share in scattered.items(): self.states[layer].update(self.shares[layer], share.result())",
    ),
)
def fsdp(answer: str) -> None:
    """On 3 ranks: one process's training; few whole layers at a time, the next on its way, none stored."""
    for rank, found in enumerate(_found("fsdp", answer)):
        _trains_as_one_process(rank, found)
        _sends_no_more(rank, found, "two gathers and a reduce-scatter of each layer, of the last one a gather less")
        for what in ("weights", "gradients"):
            expect(
                found[what] <= WHOLE_LAYERS,
                f"rank {rank} to hold the whole {what} of at most {WHOLE_LAYERS} layers at a time; it held "
                f"{found[what]}",
                hint="A variable, a list and a future keep what they refer to. Which ones do you still need?",
            )
        for layer in found["alone"]:
            refuse(
                f"the weights of layer {layer} to travel while layer {layer + 1} computes; rank {rank} did one after "
                "the other",
                hint="Call self.sender.submit(self.gather, layer - 1) before backward, and .result() after it.",
            )
        expect(
            not found["stored"],
            f"rank {rank} to hold no whole weights after a step; it holds those of {plural(found['stored'], 'layer')}",
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
    """The rate at which both steps last equally long, to a thousandth, however it is computed."""

    def decide(parameters: int, ranks: int, seconds: float) -> None:
        called = f"crossover({parameters}, {ranks}, {seconds})"
        rate = number(call(answer, parameters, ranks, seconds), called)
        expect(rate > 0, f"{called} to be a rate above 0; it is {rate:.4g}")
        once = (ranks - 1) / ranks * 4 * parameters * 8 / rate  # seconds to send the weights once
        zero1, fsdp = seconds + 2 * once, max(seconds, 3 * once)
        hint = ""
        if math.isclose(3 * once, seconds, rel_tol=0.01):
            hint = "There, FSDP's sending is just hidden, and ZeRO-1 still sends after computing."
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


def _found(kind: str, answer: str) -> list[dict[str, Any]]:
    """Return what the probe found on each rank."""
    found: list[dict[str, Any]] = reports(run_answer(RANKS, PROBE, kind, answer, threads=1, timeout=60))
    return found


def _trains_as_one_process(rank: int, found: dict[str, Any]) -> None:
    """Decide on losses, weights and Adam's states after each step, compared with one process's on all rows."""
    wrong = found["wrong"]
    for step, (loss, right) in enumerate(zip(found["losses"], found["right"], strict=True), start=1):
        expect(
            isinstance(loss, float) and math.isclose(loss, right, rel_tol=NEAR),
            f"the loss of step {step} on rank {rank} to be {right:.6g}, as one process has it on all rows; it is "
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
    """Refuse arrays that are not one process's: name the first part that is off, the others, and ranks that differ."""
    if sizes:
        refuse(f"{what} on rank {rank} to be {sizes[1]:,} numbers after step {step}; they are {sizes[0]:,}")
    about = f"they differ by up to {100 * off:.2g}% of the largest"
    if unchanged:
        about = "they are still those of before the step"
    elif math.isclose(scale, RANKS, rel_tol=0.01):
        about = f"they are {RANKS} times too large, as the sum over the ranks is instead of the mean"
    others = f". Also off: {', '.join(parts[1:])}" if len(parts) > 1 else ""
    unequal = f". Not all ranks have the same weights: {', '.join(map(str, differ))} differ from 0" if differ else ""
    refuse(f"{what} ({parts[0]}, on rank {rank}) to be one process's after step {step}; {about}{others}{unequal}")


def _sends_no_more(rank: int, found: dict[str, Any], which: str) -> None:
    """Decide on the bytes that a rank sends in a step."""
    expect(
        found["sent"] <= found["least"] + PICKLING * found["pickled"] * RANKS,
        f"rank {rank} to send {found['least']:,.0f} bytes in a step, for {which}; it sent {found['sent']:,.0f}",
    )
