"""Checks for lab 07: shards, learning rate, steps, two distributed scripts, pinning, and network rate."""

import itertools
import math
import re
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from labkit.exercises.engine.answers import call, for_all, reports, run_answer
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import expect, refuse
from labkit.exercises.engine.values import array_of_numbers, describe, expect_equal, integer, parts, short
from labkit.exercises.moving import isolate
from labkit.mpi.launch import Run

lab = Lab("07")

PROBE = Path(__file__).with_name("lab07_ranks.py")
RANKS, RATE = 3, 0.02
EXACT = 1e-3  # tolerance, as a share of the distance that the weights moved: rounding in another order
ROUNDED = 2e-2  # the same for rounding to fewer bits
CORES_HINT = "On which cores may a rank run? CPUs 0 and 4 are two CPUs, but here they are one core."
# The sets that `pinning` returns, with a hint for each.
PINNING = {
    "the pairs of ranks that share a core": CORES_HINT,
    "the ranks with more threads than cores": "Count the cores of the rank's mask, not its CPUs. As many "
    "threads as cores is fine, and other ranks don't matter.",
    "the cores without a rank": "All cores except those of any rank. A core's number is its index in "
    "`cores`, not the number of a CPU.",
}
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")
NODES = "`rank` is hvd.rank(): hvd.local_rank() counts the ranks of one node, and here each has a node to itself."
# Reasons why weights that are equal on all ranks differ from those of one process, each with a hint.
MISTAKES = {
    "sum": (
        "Gradients that are summed, not averaged, give this result (step 4)",
        "hvd.DistributedGradientTape(tape) averages, unless you pass another `op`; so does hvd.allreduce.",
    ),
    "share": (
        "Training on rank 0's share alone gives this result: each rank must train on its own share (step 3)",
        NODES,
    ),
    "start": (
        "Starting from rank {rank}'s weights gives this result: all must start from rank 0's (step 5)",
        "root_rank=0",
    ),
    "rounded": (
        "Float32 rounding causes less than that, and other mistakes cause more: are gradients sent in fewer bits, as "
        "with compression=hvd.Compression.fp16?",
        "FP16 saves bytes and loses precision: drop the argument `compression` here.",
    ),
    "other": (
        "Does each rank train on its own share (step 3), with the right learning rate in each step, and are gradients "
        "averaged, not summed, in each step?",
        "",
    ),
}
METRICS = ("epoch", "loss", "accuracy")  # in the line for an epoch
NOISE = re.compile(r"\d{4}-\d\d-\d\d |^[IWEF]\d{4} |^WARNING|^REPORT")  # lines from TensorFlow, Horovod and the probe


@lab.exercise(
    1,
    hints=(
        "How many indices does each rank get, if all must get the same number? Use integer division.",
        "Rank r takes the r-th block of that length: from r * length to (r + 1) * length.",
        "If ranks took different numbers of steps, those with an extra step would wait forever in the last all-reduce.",
    ),
    moves=True,
)
def shards(answer: Callable[..., Any]) -> None:
    """Check that shares are disjoint, equally long and inside range(n), omit fewer than `size`, and index rows."""
    from hypothesis import strategies as st

    def decide(n: int, size: int) -> None:
        case = f"for n = {n:,} and {size} {'rank' if size == 1 else 'ranks'}"
        ranks = [isolate("shard", answer) for _ in range(size)]  # each is a process, without shared state
        shares = [
            _indices(call(shard, n, rank, size), f"rank {rank}'s share {case}") for rank, shard in enumerate(ranks)
        ]
        lengths = [len(share) for share in shares]
        indices = np.concatenate(shares)
        expect(len(set(lengths)) == 1, f"all ranks to get the same number {case}; yours get {short(lengths)}")
        repeated = len(indices) - len(np.unique(indices))
        expect(repeated == 0, f"no index twice, on two ranks or on one, {case}; {repeated:,} are repeated")
        if len(indices):
            least, most = indices.min(), indices.max()
            inside = least >= 0 and most < n
            expect(inside, f"indices from 0 to {n - 1:,} {case}; yours reach from {least:,} to {most:,}")
        few = "none" if size == 1 else f"fewer than {size}"
        expect(n - len(indices) < size, f"{few} to be left out {case}; yours leave out {n - len(indices):,}")

    for n, size in ((12, 1), (12, 4), (10, 4), (1_797, 7), (5, 5), (70_000, 3)):
        decide(n, size)
    for_all(decide, n=st.integers(1, 300), size=st.integers(1, 12), examples=100)


def _indices(share: Any, what: str) -> np.ndarray:
    """Return as an int array the indices with which the scripts select digits, as in `digits.x_train[share]`."""
    expected = f"{what} to be a list or an array of ints that selects rows of an array"
    expect(not isinstance(share, tuple), f"{expected}; it is a tuple, which numpy takes as one index per axis: x[1, 2]")
    array = array_of_numbers(share, expected)
    selects_rows = array.ndim == 1 and (not len(array) or np.issubdtype(array.dtype, np.integer))
    expect(selects_rows, f"{expected}; it is {describe(share)}")
    return array.astype(np.int64)


@lab.exercise(
    2,
    hints=(
        "Two cases: before `warmup`, and from then on.",
        "The line goes from base to base * size. After `step` steps it has covered step / warmup of that distance.",
        "base * (1 + (size - 1) * step / warmup), and base * size once step >= warmup, which also avoids 0 / 0.",
    ),
    moves=True,
)
def learning_rates(answer: Callable[..., Any]) -> None:
    """Check for a ramp from base to base * size, then a constant rate."""
    from hypothesis import strategies as st

    def decide(step: int, base: float, size: int, warmup: int) -> None:
        right = base * size if step >= warmup else base + base * (size - 1) * step / warmup
        expected = f"learning_rate(step={step}, base={base:g}, size={size}, warmup={warmup})"
        for number in (step, np.int64(step)):  # the scripts pass an int, the plot of the plan an np.int64
            rate = call(answer, number, base, size, warmup=warmup)
            expect_equal(rate, right, expected)
            expect(np.asarray(rate).dtype != object, f"{expected} to be a float; it is {describe(rate)}")

    ramp = ((0, 0.1, 4, 10), (10, 0.1, 4, 10), (5, 0.1, 4, 10), (500, 0.1, 4, 10))
    for step, base, size, warmup in (*ramp, (3, 0.1, 1, 10), (0, 0.1, 4, 0), (25, 0.01, 8, 100), (1, 0.001, 8, 250)):
        decide(step, base, size, warmup)
    for_all(
        decide,
        step=st.integers(0, 2_000),
        base=st.sampled_from((0.01, 0.1, 0.5, 1.0, 1e-4)),
        size=st.integers(1, 64),
        warmup=st.integers(0, 1_000),
        examples=100,
    )


@lab.exercise(
    3,
    hints=(
        "How many digits does one rank have? You worked it out in exercise 1.",
        "How many full batches fit into that share?",
        "n // size // batch",
    ),
    moves=True,
)
def steps(answer: Callable[..., Any]) -> None:
    """Check the number of full batches in a rank's share."""
    from hypothesis import strategies as st

    def decide(n: int, batch: int, size: int) -> None:
        right = n // size // batch
        expected = f"steps_per_epoch(n={n}, batch={batch}, size={size})"
        result = call(answer, n, batch, size)
        number = integer(result, expected, int_only=True)
        expect(hasattr(result, "__index__"), f"{expected} to be an int; it is {describe(result)}")
        expect(number == right, f"{expected} to be {right}; it is {number}")

    for n, batch, size in ((8000, 64, 1), (8000, 64, 2), (8000, 64, 4), (100, 64, 2), (1000, 10, 3), (127, 64, 2)):
        decide(n, batch, size)
    for_all(decide, n=st.integers(1, 5_000), batch=st.integers(1, 200), size=st.integers(1, 16), examples=100)


@lab.exercise(
    4,
    hints=(
        "Go through the table of six steps and the comments that start with `# Horovod:`. Which names does the rest of "
        "the script use that your lines must set?",
        "hvd.init(), then hvd.rank() and hvd.size(); shard() for the digits; hvd.DistributedGradientTape(tape); "
        "hvd.broadcast_variables(list, root_rank=0); if rank == 0: …",
        "The list to broadcast is [v.value for v in model.variables + optimizer.variables] + [done]. The step for "
        "learning_rate() is epoch * steps + step.",
    ),
)
def train_hvd(answer: str) -> None:
    """Check that ranks agree with each other and with one process, also after --resume, and only rank 0 writes."""
    out = Path(answer).parent / "check"
    shutil.rmtree(out, ignore_errors=True)
    run, ranks = _distributed(answer, "train", out)
    first = [rank[0] for rank in ranks]
    wrong = _wrong_rate(first)
    expect(
        wrong is None,
        f"the learning rate to be {RANKS * RATE:g} after the warm-up, {RANKS} times the {RATE} of one rank; it is "
        f"{wrong}",
    )
    _equals_one_process(first)
    writers = [rank["rank"] for rank in first if rank["wrote"]]
    expect(
        writers == [0],
        f"a checkpoint from rank 0 only (step 6); checkpoints came from ranks {writers}",
        hint=f"if rank == 0: … {NODES}" if len(writers) > 1 else "",
    )
    expect(first[0]["checkpoints"] != 1, "a checkpoint after each epoch (step 6); in two epochs, rank 0 wrote only one")
    second = [rank[1] for rank in ranks]
    _expect_rate(second, "the last of 2 epochs of 3 steps each")
    _equals_one_process(second)
    resumed = [rank[2] for rank in ranks]
    expect(
        resumed[0]["spread"] == 0,
        "all ranks to hold the same weights in a run that continues from the checkpoint (--resume); they differ by "
        f"{resumed[0]['spread']:.3g}. Only rank 0 reads it, so step 5 must broadcast all of the optimizer's variables "
        "too",
    )
    _expect_rate(resumed, "the last of 4 epochs of 3 steps each, after --resume in the third")
    expect(
        resumed[0]["error"] < EXACT,
        "two epochs of 3 steps each, and two more after --resume, to give the weights of four epochs in a row; they "
        f"are off by {_percent(resumed[0]['error'])} of the distance they moved. Is the learning rate assigned before "
        "each step, and are gradients averaged in each step?",
    )
    _check_reports([*second[0]["history"], *resumed[0]["history"]], run)


@lab.exercise(
    5,
    hints=(
        "Do what train_step in work/train_hvd.py does, with self instead of model, and self.optimizer.",
        "Wrap the tape with hvd.DistributedGradientTape, take the gradients for [v.value for v in "
        "self.trainable_variables], and pass pairs of gradient and variable to self.optimizer.apply_gradients.",
        "Before fit: hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)",
    ),
)
def fit_hvd(answer: str) -> None:
    """Check that ranks in fit agree with each other and with one process on all digits."""
    _equals_one_process([rank[0] for rank in _distributed(answer, "fit")[1]])


@lab.exercise(
    6,
    hints=(
        CORES_HINT,
        "First make the set of core numbers for each rank. All three results follow from these sets.",
        "used = [{c for c, cpus in enumerate(cores) if mask & set(cpus)} for mask in masks]. Two ranks share a core "
        "when used[a] & used[b] is not empty; a rank has too many threads when threads > len(used[rank]).",
    ),
)
def pinnings(answer: Callable[..., Any]) -> None:
    """Check ranks that share cores, ranks with more threads than cores, and idle cores, by core and not by CPU."""
    from hypothesis import strategies as st

    def decide(masks: list[set[int]], cores: list[tuple[int, ...]], threads: int) -> None:
        case = f"for masks {masks}, cores {cores} and {threads} {'thread' if threads == 1 else 'threads'}"
        used = [{number for number, cpus in enumerate(cores) if mask & set(cpus)} for mask in masks]
        right = (
            {(a, b) for a, b in itertools.combinations(range(len(masks)), 2) if used[a] & used[b]},
            {rank for rank, numbers in enumerate(used) if threads > len(numbers)},
            set(range(len(cores))).difference(*used),
        )
        sharing, crowded, idle = parts(call(answer, masks, cores, threads), 3, f"three sets {case}")
        results = (_pairs(sharing, case), _numbers(crowded, "ranks", case), _numbers(idle, "cores", case))
        for (what, hint), result, expected in zip(PINNING.items(), results, right, strict=True):
            expect(result == expected, f"{what} to be {_show(expected)} {case}; yours are {_show(result)}", hint)

    large = [{rank} for rank in range(12)]  # more than 10 ranks: as strings, "10" sorts before "2"
    large[0], large[10] = {64}, {2 + 64}
    node: list[tuple[int, ...]] = [(0, 4), (1, 5), (2, 6), (3, 7)]
    fixed: tuple[tuple[list[set[int]], list[tuple[int, ...]], int], ...] = (
        ([{0, 4}, {1, 5}], node, 1),
        ([{0, 4}, {1, 5}], node, 2),
        ([{0}, {4}], node, 1),
        ([set(range(8)), set(range(8))], node, 4),
        ([{0, 1}, {2, 3}, {1, 2}], node, 2),
        ([{2, 3}], [(0, 1), (2, 3)], 2),
        ([{0}, {1}], [(0,), (1,)], 1),
        ([{0}, {64}], [(0,), (64,)], 1),  # the same CPU in a mask of 64 bits
        (large, [(core, core + 64) for core in range(12)], 1),
    )
    for case in fixed:
        decide(*case)

    @st.composite
    def nodes(draw: st.DrawFn) -> tuple[list[set[int]], list[tuple[int, ...]]]:
        counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))  # CPUs per core: hybrid machines mix them
        numbers = draw(st.lists(st.integers(0, 99), min_size=sum(counts), max_size=sum(counts), unique=True))
        cpus = iter(numbers)
        cores = [tuple(itertools.islice(cpus, count)) for count in counts]
        mask = st.sets(st.sampled_from(numbers), min_size=1)
        return draw(st.lists(mask, min_size=1, max_size=5)), cores

    def decide_node(node: tuple[list[set[int]], list[tuple[int, ...]]], threads: int) -> None:
        decide(*node, threads)

    for_all(decide_node, node=nodes(), threads=st.integers(1, 4))


@lab.exercise(
    7,
    hints=(
        "How many bytes does a rank send? Its share is n_bytes / ranks, and it sends a share 2 * (ranks - 1) times.",
        "Half of a step is communication when sending these bytes takes `seconds`, as long as computing. A byte has 8 "
        "bits.",
        "8 * 2 * (ranks - 1) / ranks * n_bytes / seconds",
    ),
)
def half_rates(answer: Callable[..., Any]) -> None:
    """Check the rate, in bit/s, at which sending a ring's bytes takes as long as computing."""
    from hypothesis import strategies as st

    def decide(n_bytes: int, ranks: int, seconds: float) -> None:
        expected = f"half_rate(n_bytes={n_bytes:,}, ranks={ranks}, seconds={seconds:g})"
        rate = call(answer, n_bytes, ranks, seconds)
        expect_equal(rate, 16 * (ranks - 1) / ranks * n_bytes / seconds, expected)
        expect(not isinstance(rate, Decimal), f"{expected} to be a float; it is {describe(rate)}")

    for n_bytes, ranks, seconds in ((1_000_000, 5, 2.0), (1_000_000, 2, 1.0), (1_686_568, 2, 0.02), (100, 64, 8.0)):
        decide(n_bytes, ranks, seconds)
    for_all(decide, n_bytes=st.integers(1, 10**9), ranks=st.integers(2, 1_024), seconds=st.floats(1e-3, 10))


def _pairs(result: Any, case: str) -> set[tuple[int, int]]:
    """Return pairs of ranks, the smaller first."""
    pairs = [
        parts(pair, 2, f"each pair of ranks to be two numbers {case}")
        for pair in _members(result, "pairs of ranks", case)
    ]
    ranks = [tuple(integer(rank, f"each rank in a pair {case}") for rank in pair) for pair in pairs]
    once = {(a, b) for a, b in ranks}
    right = len(once) == len(ranks) and all(a < b for a, b in once)
    expect(
        right,
        f"each pair of ranks once, as (a, b) with a < b, {case}; yours are {_show(ranks)}",
        hint="Keep a pair only if a < b, compared as numbers: then no pair appears twice, and no rank twice in a pair.",
    )
    return once


def _numbers(result: Any, what: str, case: str) -> set[int]:
    numbers = [integer(member, f"each of the {what} {case}") for member in _members(result, what, case)]
    once = set(numbers)
    expect(len(once) == len(numbers), f"each of the {what} once {case}; yours are {short(sorted(numbers))}")
    return once


def _members(result: Any, what: str, case: str) -> list[Any]:
    is_group = isinstance(result, set | frozenset | list | tuple)
    expect(is_group, f"a set of {what} {case}; it is {describe(result)}")
    return list(result)


def _show(members: Any) -> str:
    """Format members in order, as Python prints a set."""
    return f"{{{', '.join(map(str, sorted(members)))}}}" if members else "set()"


def _distributed(answer: str, *args: object) -> tuple[Run, list[list[dict[str, Any]]]]:
    """Run a script on ranks; return each rank's reports, one per run of its main."""
    run = run_answer(RANKS, PROBE, answer, args[0], RATE, *args[1:], timeout=180)
    return run, reports(run)


def _wrong_rate(ranks: list[dict[str, Any]]) -> str | None:
    """Return the last learning rate of the first rank where it is wrong."""
    wrong = (rank for rank in ranks if not math.isclose(rank["rate"], rank["right_rate"], rel_tol=1e-5))
    return next((f"{rank['rate']:.4g} on rank {rank['rank']}" for rank in wrong), None)


def _expect_rate(ranks: list[dict[str, Any]], when: str) -> None:
    """Check the last learning rate of a run with several steps in each epoch."""
    wrong = _wrong_rate(ranks)
    expect(
        wrong is None,
        f"the learning rate to be {ranks[0]['right_rate']:.4g} in {when}, with a warm-up of 4 epochs; it is {wrong}. "
        "Is the warm-up given in steps, and are steps counted from the first epoch?",
        hint="The step for learning_rate() is epoch * steps + step, and its warm-up is args.warmup * steps.",
    )


def _check_reports(history: list[dict[str, Any]], run: Run) -> None:
    """Check that rank 0, and no other, prints a line for each epoch."""
    printed = [[line for line in lines if line and not NOISE.search(line)] for lines in run.lines]
    forms = set()
    expect(len(history) == 4, f"an entry in {{out}}/log.json for each of 4 epochs; there are {len(history)}")
    for entry in history:
        lacking = {line: _lacking(line, entry) for line in printed[0] if not line.startswith("largest difference")}
        least = min(lacking.values(), key=len, default=METRICS)
        lines = [line for line, lacks in lacking.items() if lacks == least]
        about = f"epoch {entry['epoch']}, with loss {entry['loss']:.3f} and accuracy {entry['accuracy']:.3f},"
        problem = f"{short(lines[-1])} lacks the {' and the '.join(least)}" if len(least) < 2 else "there is none"
        expect(
            not least,
            f"a line from rank 0 for each epoch, with epoch, loss and accuracy (step 6). For {about} {problem}",
            hint="history[-1] is a dict: history[-1]['epoch'], history[-1]['loss'] and history[-1]['accuracy'].",
        )
        forms |= {NUMBER.sub("#", line) for line in lines}
    for rank, lines in enumerate(printed[1:], start=1):
        match = next((line for line in lines if NUMBER.sub("#", line) in forms), "")
        expect(not match, f"reports from rank 0 only (step 6); rank {rank} also printed {short(match)}")


def _lacking(line: str, entry: dict[str, Any]) -> tuple[str, ...]:
    """Return the metrics of an epoch that a line lacks; rounding is allowed."""
    texts = [Decimal(text) for text in NUMBER.findall(line)]

    def contains(metric: float, digits: int = 0) -> bool:
        """Return whether the line contains it, with at least `digits` decimals: a bare 2 may be the epoch."""
        places = [(float(text), int(text.as_tuple().exponent)) for text in texts]
        return any(abs(number - metric) <= 0.51 * 10.0**last for number, last in places if last <= -digits)

    epoch, loss, accuracy = entry["epoch"], entry["loss"], entry["accuracy"]
    present = (epoch in texts, contains(loss, 1), contains(accuracy, 1) or contains(100 * accuracy))
    return tuple(name for name, is_present in zip(METRICS, present, strict=True) if not is_present)


def _equals_one_process(ranks: list[dict[str, Any]]) -> None:
    """Check that the weights are equal on all ranks, and equal those of one process on all digits."""
    first = ranks[0]
    expect(
        first["spread"] == 0 or not any(rank["own_start"] for rank in ranks),
        f"all ranks to hold the same weights; they differ by {first['spread']:.3g}, as each rank kept its own initial "
        "weights. Not all of them came from rank 0 (step 5)",
        hint="hvd.broadcast_variables(list, root_rank=0), with [v.value for v in …] in the list.",
    )
    expect(
        first["spread"] == 0,
        f"all ranks to hold the same weights; they started equal and drifted apart by {first['spread']:.3g}. Their "
        "gradients are not averaged (step 4)",
        hint="Wrap the tape: tape = hvd.DistributedGradientTape(tape). Then tape.gradient(…) returns averages.",
    )
    if first["error"] < EXACT:
        return
    mistake, _, rank = first.get("mistake", "").partition(" ")
    why, hint = MISTAKES[mistake or ("rounded" if first["error"] < ROUNDED else "other")]
    refuse(
        f"{RANKS} ranks to take the same steps as one process on all digits; the weights are off by "
        f"{_percent(first['error'])} of the distance they moved. {why.format(rank=rank)}",
        hint,
    )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.2%}"
