"""Checks of lab 11: buckets, a step that sends while it computes, shares of states and weights, which way to take."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from labkit.exercises.answers import PICKLING, call, for_all, reports, run_answer
from labkit.exercises.core import Lab
from labkit.exercises.outcomes import expect, hinting, refuse
from labkit.exercises.values import describe, parts, same

lab = Lab("11")

PROBE = Path(__file__).with_name("lab11_ranks.py")
RANKS = 3  # neither the sizes of layers nor those of networks are multiples of it, so that there is padding
NEAR = 1e-4  # relative: float32, in any order of sums


@lab.exercise(
    1,
    hints=(
        "The last layer's gradient is ready first. What comes next, and when does it not fit any more?",
        "Go through reversed(range(len(sizes))). Append the layer to the last bucket if that has room; otherwise "
        "begin a bucket with it.",
        "made = []; for layer in reversed(range(len(sizes))): if made and sum(sizes[each] for each in made[-1]) + "
        "sizes[layer] <= limit: made[-1].append(layer); else: made.append([layer]); return made",
    ),
    imports="import math\n\nimport numpy as np",
)
def buckets(answer: Callable[..., Any]) -> None:
    """Layers from the last to the first, each bucket as full as the limit lets it be."""

    def decide(sizes: list[int], limit: int) -> None:
        called = f"buckets({sizes}, {limit})"
        got = call(answer, sizes, limit)
        expect(isinstance(got, list | tuple), f"{called} to be a list of lists; it is {describe(got)}")
        made = []
        for place, bucket in enumerate(got):
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


RESULT_HINT = "Where is .result() called? It waits. Call it after all gradients have been computed."


@lab.exercise(
    2,
    hints=(
        "Two loops, one in the other: over the buckets, and over the layers of a bucket. What do you do with the "
        "gradients at the end of the inner one?",
        "Keep what self.sender.submit(self.average, gradients) returns, in a list. Call .result() on each when all "
        "gradients have been computed, not before.",
        "on_the_way = []; for bucket in self.buckets: gradients = []; for layer in bucket: gradient, error = "
        "backward(self.weights[layer], outputs[layer], outputs[layer + 1], error); gradients.append(gradient); then "
        "on_the_way.append(self.sender.submit(self.average, gradients)). After it: for bucket, averaged in "
        "zip(self.buckets, on_the_way): for layer, mean in zip(bucket, averaged.result()): "
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
            "next bucket" not in found["waited"],
            f"the first gradient of the next bucket to be computed while a bucket is on its way; rank {rank} waited "
            "for the mean first",
            hint=RESULT_HINT,
        )
        expect(
            not found["late"],
            f"a bucket to be on its way as soon as its gradients are there; rank {rank} went on to the next bucket "
            "without having sent it",
            hint="Submit a bucket where its last gradient has been computed, inside the loop over buckets.",
        )
        expect(
            not found["waited"],
            f"all gradients to be computed while the first bucket is on its way; rank {rank} waited for a mean before "
            "the last of them",
            hint=RESULT_HINT,
        )


@lab.exercise(
    3,
    hints=(
        "Three calls, in the order of the text. How long is `mine`? Where does this rank's share of self.flat begin?",
        "mine = np.empty(self.share, np.float32), then Reduce_scatter_block, then divide by self.ranks.size. own = "
        "slice(self.ranks.rank * self.share, (self.ranks.rank + 1) * self.share).",
        "self.ranks.Reduce_scatter_block(self.flat_gradient, mine); mine /= self.ranks.size; "
        "self.state.update(self.flat[own], mine); self.ranks.Allgather(MPI.IN_PLACE, self.flat)",
    ),
)
def zero1(answer: str) -> None:
    """On 3 ranks: one process's training, from shares of the states, with no more bytes than an all-reduce."""
    for rank, found in enumerate(_found("zero1", answer)):
        _trains_as_one_process(rank, found)
        _sends_no_more(rank, found, "a reduce-scatter of the gradients and an all-gather of the weights")


SCATTER_HINT = (
    "Row r of self.cut(gradient) is rank r's share. Which call of exercise 3 adds up what all ranks have, and leaves "
    "each rank its share of the sum? And how does a sum become a mean?"
)


@lab.exercise(
    4,
    hints=(
        "What gather receives is as long as all shares together, and that can be more than the layer has.",
        "gather: whole = np.empty(self.ranks.size * share.size, np.float32), Allgather into it, cut the padding off, "
        "reshape. scatter: the rows of self.cut(gradient) are what Reduce_scatter_block shares out.",
        "gather: self.ranks.Allgather(self.shares[layer], whole); return whole[: math.prod(self.shapes[layer])]"
        ".reshape(self.shapes[layer]). scatter: parts = self.cut(gradient); mine = np.empty(parts.shape[1], np.float32)"
        "; self.ranks.Reduce_scatter_block(parts, mine); return mine / self.ranks.size",
    ),
)
def fsdp(answer: str) -> None:
    """On 3 ranks: whole layers from shares, shares of means, one process's training, no copies kept."""
    ranks = _found("fsdp", answer)
    for rank, found in enumerate(ranks):  # where a rank's shapes are wrong, none of them has trained
        for case in found["gathered"]:
            _is_array(f"gather({case['layer']}) on rank {rank}", case)
        with hinting(SCATTER_HINT):
            for case in found["scattered"]:
                _is_array(f"scatter of a gradient of layer {case['layer']} on rank {rank}", case)
    for rank, found in enumerate(ranks):
        _trains_as_one_process(rank, found)
        _sends_no_more(rank, found, "two gathers and a reduce-scatter of each layer, of the last one a gather less")
        expect(
            found["kept"] <= found["may_keep"],
            f"rank {rank} to hold {found['may_keep']:,} bytes after a step, its shares and their states; it holds "
            f"{found['kept']:,}",
            hint="Is a whole layer kept somewhere, such as in an attribute? Return it, and keep nothing.",
        )


@lab.exercise(
    5,
    hints=(
        "First compute what each way holds, and take the first that fits. Then the seconds of sending, from its bytes: "
        "how many bits has a byte?",
        "sending = passes * (n - 1) / n * 4 * parameters * 8 / rate, with 2 passes or 3. The step lasts "
        "max(seconds, sending).",
        'for way, held, passes in (("DDP", 16, 2), ("ZeRO-1", 8 + 8 / n, 2), ("FSDP", 16 / n, 3)): if parameters * '
        "held <= memory: return way, max(seconds, passes * (n - 1) / n * 4 * parameters * 8 / rate); after the loop: "
        "return None",
    ),
)
def choose(answer: Callable[..., Any]) -> None:
    """The first way that fits, and its step; cases at, below and above each bound."""

    def decide(parameters: int, memory: int, ranks: int, rate: int, seconds: float) -> None:
        called = f"choose({parameters}, {memory}, {ranks}, {rate}, {seconds})"
        got = call(answer, parameters, memory, ranks, rate, seconds)
        n = ranks
        fitting = [
            (way, passes)
            for way, held, passes in (("DDP", 16 * n, 2), ("ZeRO-1", 8 * n + 8, 2), ("FSDP", 16, 3))
            if parameters * held <= memory * n
        ]
        if not fitting:
            expect(got is None, f"{called} to be None, as no way fits; it is {describe(got)}")
            return
        expect(got is not None, f"{called} to be a pair, as {fitting[0][0]} fits; it is None")
        way, step = parts(got, 2, f"{called} to be a pair, (way, seconds)")
        right, passes = fitting[0]
        expect(
            isinstance(way, str) and way == right,
            f"{called} to choose {right!r}; it is {describe(way)}",
        )
        sending = passes * (n - 1) / n * 4 * parameters * 8 / rate
        same(step, max(seconds, sending), f"the seconds of {called}", rel=1e-6)

    billion = 10**9
    for case in (
        (10**6, 16 * 10**6, 2, billion, 0.01),  # DDP fits to the byte
        (10**6, 16 * 10**6 - 1, 2, billion, 0.01),
        (10**6, 12 * 10**6, 2, billion, 0.01),  # ZeRO-1
        (10**6, 12 * 10**6 - 1, 2, billion, 0.5),
        (10**6, 8 * 10**6, 2, billion, 0.01),  # FSDP
        (10**6, 8 * 10**6 - 1, 2, billion, 0.01),
        (10**6, 16 * 10**6, 1, billion, 0.01),  # one rank sends nothing
        (10**6, 16 * 10**6 - 1, 1, billion, 0.01),
        (7 * billion, 24 * billion, 8, 10 * billion, 5.0),
        (7 * billion, 24 * billion, 8, 1000 * billion, 5.0),
        (7 * billion, 64 * billion, 8, 10 * billion, 5.0),
    ):
        decide(*case)
    for_all(
        decide,
        parameters=st.integers(1, 20).map(lambda millions: millions * 8 * 10**6),
        memory=st.integers(1, 40).map(lambda parts: parts * 64 * 10**6),
        ranks=st.sampled_from((1, 2, 4, 8, 64)),
        rate=st.integers(1, 100).map(lambda parts: parts * 10**8),
        seconds=st.integers(1, 400).map(lambda hundredths: hundredths / 100),
    )


def _found(kind: str, answer: str) -> list[dict[str, Any]]:
    """Return what the probe found on each rank."""
    found: list[dict[str, Any]] = reports(run_answer(RANKS, PROBE, kind, answer, threads=1, timeout=60))
    return found


def _trains_as_one_process(rank: int, found: dict[str, Any]) -> None:
    """Decide on losses, weights and Adam's states after some steps, against one process's on all rows."""
    for step, (got, right) in enumerate(zip(found["losses"], found["right"], strict=True)):
        expect(
            isinstance(got, float) and math.isclose(got, right, rel_tol=NEAR),
            f"the loss of step {step + 1} on rank {rank} to be {right:.6g}, as one process has it on all rows; it is "
            f"{got if isinstance(got, str) else f'{got:.6g}'}. Are the weights right after the step before?",
        )
    for what, (size, right_size) in found.get("sizes", {}).items():
        refuse(
            f"{what} on rank {rank} to be {right_size:,} numbers after {len(found['right'])} steps; they are {size:,}"
        )
    for what, off in found["off"].items():
        scale = found["scale"][what]
        about = ""
        if math.isclose(scale, RANKS, rel_tol=0.01):
            about = f". They are {RANKS} times too large: is it the mean over the ranks, or the sum?"
        expect(
            off <= NEAR,
            f"{what} on rank {rank} to be one process's after {len(found['right'])} steps; they differ by up to "
            f"{100 * off:.2g}% of the largest{about}",
        )


def _sends_no_more(rank: int, found: dict[str, Any], which: str) -> None:
    """Decide on the bytes that a rank sends in a step."""
    expect(
        found["sent"] <= found["least"] + PICKLING * found["collectives"] * RANKS,
        f"rank {rank} to send {found['least']:,.0f} bytes in a step, for {which}; it sent {found['sent']:,.0f}",
    )


def _is_array(name: str, case: dict[str, Any]) -> None:
    """Decide on an array of a shape, and on its numbers."""
    shape = f"an array of the shape {tuple(case['wanted'])}"
    came = f"of the shape {tuple(case['shape'])}" if isinstance(case["shape"], list) else case["shape"]
    expect(case["shape"] == case["wanted"], f"{name} to be {shape}; it is {came}")
    about = f". They are {RANKS} times too large: is it the mean?" if case["scale"] == RANKS else ""
    expect(case["off"] <= NEAR, f"the right numbers from {name}; they differ by up to {case['off']:.2g}{about}")
