"""Lab 07's exercises on ranks: a distributed training script, and a test that convicts those that aren't."""

import functools
import itertools
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from labkit.exercises.engine.on_ranks import Case, OnRanks, Saw, Script
from labkit.exercises.engine.outcomes import expect
from labkit.exercises.ranks.fakes import FAULTS, RATE, OneProcess, Ranks
from labkit.system.words import plural

EXERCISES: dict[int, OnRanks] = {}

# A training script: exercise 4

BATCH, STEPS, EPOCHS, LR, WARM_UP = 8, 3, 2, 0.02, 1  # each rank's batch and steps in an epoch; epochs, also of warm-up
EXACT = 0.02  # tolerance, as a share of the distance that the weights moved: rounding in another order


def folder(rank: int) -> Path:
    """Return a rank's folder for checkpoint and log, as if each rank were on a node of its own."""
    return Path("work/check") / f"rank-{rank}"


def a_training(n: int) -> Iterator[Case]:
    """Return one training, with one digit fewer than an even number of batches would leave over."""
    digits = n * (STEPS * BATCH + 1) - 1
    words = f"--digits {digits} --batch {BATCH} --epochs {EPOCHS} --warmup {WARM_UP} --lr {LR}".split()
    for rank in range(n):
        shutil.rmtree(folder(rank), ignore_errors=True)
    if keras := sys.modules.get("keras"):  # number layers from 0 on all ranks: Horovod pairs gradients by these names
        keras.backend.clear_session()
    yield Case(f"{EPOCHS} epochs on {n} ranks", [([*words, "--out", str(folder(rank))],) for rank in range(n)])


@functools.cache
def one_process(n: int, seed: int = 0, epochs: int = EPOCHS, factor: int = 1, ranks: int | None = None) -> np.ndarray:
    """Return the weights after training in one process on the digits of all ranks, or of the first `ranks`.

    It starts with the weights of rank `seed`, and multiplies the learning rate by `factor`.
    """
    import importlib

    import keras
    import tensorflow as tf

    from labkit.data.digits import load_digits
    from labkit.models.mnist import mnist_cnn

    plan = importlib.import_module("checked.plan")
    number = n * (STEPS * BATCH + 1) - 1
    digits = load_digits(number, number // 4)
    keras.utils.set_random_seed(seed)
    model, optimizer = mnist_cnn(), keras.optimizers.SGD(momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    shares = [np.asarray(plan.shard(number, rank, n)) for rank in range(ranks or n)]
    for epoch, step in itertools.product(range(epochs), range(STEPS)):
        order = np.random.default_rng(epoch).permutation(len(shares[0]))[step * BATCH : (step + 1) * BATCH]
        chosen = np.concatenate([share[order] for share in shares])
        optimizer.learning_rate.assign(factor * plan.learning_rate(epoch * STEPS + step, LR, n, WARM_UP * STEPS))
        with tf.GradientTape() as tape:
            loss = loss_of(digits.y_train[chosen], model(digits.x_train[chosen], training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return flat(model.get_weights())


def flat(weights: Sequence[np.ndarray]) -> np.ndarray:
    """Return all weights as one vector."""
    return np.concatenate([np.ravel(layer) for layer in weights])


def results_are_returned(case: Case, seen: Sequence[Saw]) -> None:
    """`main` returns the weights and the last learning rate, as in the lab."""
    for saw in seen:
        is_pair = isinstance(saw.result, tuple) and len(saw.result) == 2
        what = f"main to end with `return model.get_weights(), rate`; on rank {saw.rank}, it returned"
        expect(is_pair, f"{what} {saw.result!r:.40}")


def the_rate_follows_the_plan(case: Case, seen: Sequence[Saw]) -> None:
    """The last step's learning rate is that of all ranks."""
    for saw in seen:
        right, rate = LR * len(seen), saw.result[1]
        expect(
            np.isclose(rate, right),
            f"the learning rate to be {right:g} after the warm-up of {plural(WARM_UP, 'epoch')}, {len(seen)} times the "
            f"{LR} of one rank; it is {rate:.4g} in the last step. Is it assigned in each step (step 3), with a "
            "warm-up in steps, and steps counted from the first epoch?",
        )


def weights_are_equal(case: Case, seen: Sequence[Saw]) -> None:
    """All ranks have the same weights."""
    spread = np.ptp(np.stack([flat(saw.result[0]) for saw in seen]), axis=0).max()
    apart = np.ptp(np.stack([one_process(len(seen), saw.rank, epochs=0) for saw in seen]), axis=0).max()
    expect(
        spread < apart / 2,
        f"all ranks to have the same weights; they differ by {spread:.3g}, as each rank kept its own start. Not all of "
        "it came from rank 0 (step 5)",
        hint="hvd.broadcast_variables([v.value for v in model.variables + optimizer.variables], root_rank=0)",
    )
    expect(
        spread == 0,
        f"all ranks to have the same weights; they started equal and drifted apart by {spread:.3g}. Their gradients "
        "are not averaged (step 4)",
        hint="tape = hvd.DistributedGradientTape(tape). Then tape.gradient(…) returns averages.",
    )


def weights_are_those_of_one_process(case: Case, seen: Sequence[Saw]) -> None:
    """The weights equal those of one process that trains on the digits of all ranks."""
    n, weights = len(seen), flat(seen[0].result[0])
    right, start = one_process(n), one_process(n, epochs=0)
    moved, off = np.abs(right - start).max(), np.abs(weights - right).max()
    if off < EXACT * moved:
        return
    causes = {
        "Gradients that are summed, not averaged, give this result (step 4)": {"factor": n},
        "Training on rank 0's share alone gives this result: each rank must train on its own share (step 3)": {
            "ranks": 1
        },
        **{f"Rank {r}'s start gives this result: all must have rank 0's (step 5)": {"seed": r} for r in range(1, n)},
    }
    close = (
        why for why, options in causes.items() if np.abs(weights - one_process(n, **options)).max() < EXACT * moved
    )
    why = next(close, "Does each rank train on its own share (step 3), and are gradients averaged in each step (4)?")
    expect(
        False,
        f"{n} ranks to have the weights of one process that trained on all their digits; they are off by "
        f"{off / moved:.0%} of the distance that the weights moved. {why}",
    )


def only_rank_0_writes(case: Case, seen: Sequence[Saw]) -> None:
    """Rank 0, and no other, has written a checkpoint."""
    writers = [saw.rank for saw in seen if (folder(saw.rank) / "checkpoint.weights.h5").exists()]
    expect(writers == [0], f"a checkpoint from rank 0 only (step 6); ranks {writers} wrote one", hint="if rank == 0: …")


TAPE, ASSIGNED = "        tape = hvd.DistributedGradientTape(tape)\n", "epoch * steps + step, args.lr"
BROADCAST = "    hvd.broadcast_variables(start, root_rank=0)\n"

EXERCISES[4] = OnRanks(
    "main",
    parameters=("argv",),
    world=True,
    cases=a_training,
    invariants=(results_are_returned, the_rate_follows_the_plan, weights_are_equal, weights_are_those_of_one_process,
                only_rank_0_writes),
    hints=(
        "Go through the table of six steps and the comments. Which names does the rest of the script need?",
        "hvd.init(), then hvd.rank() and hvd.size(); shard() for the digits; hvd.DistributedGradientTape(tape); "
        "hvd.broadcast_variables(list, root_rank=0); if rank == 0: …",
        "Broadcast [v.value for v in model.variables + optimizer.variables]. The step for learning_rate() is epoch * "
        "steps + step.",
    ),
    wrong=(
        (results_are_returned, Script(before="return model.get_weights(), rate", after="return model.get_weights()")),
        (the_rate_follows_the_plan, Script(before=ASSIGNED, after="step, args.lr")),
        (the_rate_follows_the_plan, Script(before=ASSIGNED, after="epoch * steps + step, args.lr / size")),
        (weights_are_equal, Script(before=TAPE, after="")),
        (weights_are_equal, Script(before=BROADCAST, after="")),
        (weights_are_those_of_one_process, Script(before=TAPE, after=TAPE.replace("(tape)", "(tape, op=hvd.Sum)"))),
        (weights_are_those_of_one_process, Script(before="rank, size)\n    x", after="0, size)\n    x")),
        (weights_are_those_of_one_process, Script(before="root_rank=0", after="root_rank=1")),
        (only_rank_0_writes, Script(before="if rank == 0:", after="if True:")),
        (only_rank_0_writes, Script(before="if rank == 0:", after="if rank < 0:")),
    ),
    right=(
        Script(before=TAPE, after=TAPE.replace("tape = ", "tape = averaged = ")),
        Script(before="rank, size = hvd.rank(), hvd.size()", after="size, rank = hvd.size(), hvd.rank()"),
    ),
)  # fmt: skip

# A test of such scripts, on runs of a small network in NumPy: exercise 5


def runs(n: int) -> Iterator[Case]:
    """Return the right run on n ranks, and then each fake, which needs several."""
    digits, batch = 40 * n, 16
    shares = [np.arange(rank, digits, n)[:batch] for rank in range(n)]
    for fault in ("", *FAULTS) if n > 1 else ("",):
        text = f"a run on {plural(n, 'rank')} that {fault or 'is right'}"
        arguments = [(Ranks(fault, r, shares, digits), OneProcess(digits), shares, RATE) for r in range(n)]
        yield Case(text, arguments)


def verdicts_are_bools(case: Case, seen: Sequence[Saw]) -> None:
    """Each rank returns True or False."""
    for saw in seen:
        is_bool = isinstance(saw.result, bool | np.bool_)
        expect(is_bool, f"True or False for {case.text}; rank {saw.rank} returned {saw.result!r:.60}")


def ranks_return_the_same(case: Case, seen: Sequence[Saw]) -> None:
    """All ranks return the same verdict."""
    verdicts = [bool(saw.result) for saw in seen]
    what = f"every rank to return the same for {case.text}; by rank, yours are {verdicts}. A run is right if it is so"
    expect(len(set(verdicts)) == 1, f"{what} on every rank: all(ranks.allgather(…))")


def right_runs_are_acquitted(case: Case, seen: Sequence[Saw]) -> None:
    """A run that is distributed gives True."""
    expect(
        case.arguments[0][0].fault != "" or bool(seen[0].result),
        f"True for {case.text}; yours returned False. Its numbers equal those of one process except for rounding",
        hint="Does one process start with rank 0's weights, and take the digits of all shares in one step, at `rate`? "
        "Numbers in float32 that are summed in another order differ a little.",
    )


def fakes_are_convicted(case: Case, seen: Sequence[Saw]) -> None:
    """A run that isn't distributed gives False."""
    fault = case.arguments[0][0].fault
    convicted, hint = not seen[0].result, f"Compare {FAULTS.get(fault, '')}."
    expect(convicted or not fault, f"False for {case.text}; yours returned True", hint)


EXERCISES[5] = OnRanks(
    "same_step",
    parameters=("run", "one_process", "shares", "rate"),
    cases=runs,
    invariants=(verdicts_are_bools, ranks_return_the_same, right_runs_are_acquitted, fakes_are_convicted),
    hints=(
        "Both trainings have to begin alike and see the same digits. With which weights, and which digits?",
        "run.start(), and one_process.start(…) with rank 0's weights, which all ranks get by ranks.bcast(…). Then "
        "run.step(0), and one_process.step(np.concatenate(shares), rate). Compare weights and metrics on each rank, "
        "with a tolerance, and let all ranks agree.",
        "close = lambda a, b: np.allclose(a, b, rtol=1e-3, atol=1e-3 * moved), where `moved` is the largest change of "
        "a weight of one process. Return all(ranks.allgather(same)), where `same` is whether all weights and both "
        "metrics are close.",
    ),
    wrong=(
        (verdicts_are_bools, Script(after="    return None")),
        (verdicts_are_bools, Script(before="return all(ranks.allgather(same))", after="return ranks.allgather(same)")),
        (ranks_return_the_same, Script(before="all(ranks.allgather(same))", after="bool(same)")),
        (right_runs_are_acquitted, Script(before="off < 0.01 * moved", after="off == 0")),
        (right_runs_are_acquitted, Script(before="np.concatenate(shares)", after="shares[ranks.rank]")),
        (right_runs_are_acquitted, Script(before="one_process.start(start)", after="one_process.start()")),
        (right_runs_are_acquitted, Script(before="(shares), rate)", after="(shares), 1.1 * rate)")),
        (fakes_are_convicted, Script(before="off < 0.01 * moved and ", after="")),
        (fakes_are_convicted, Script(before="off < 0.01 * moved", after="off < 0.1")),
        (fakes_are_convicted, Script(before=" and all(", after=" or all(")),
        (fakes_are_convicted, Script(before='("loss", "accuracy")', after="()")),
        (fakes_are_convicted, Script(before="all(ranks.allgather(same))", after="ranks.bcast(same)")),
    ),
    right=(
        Script(before="ranks.bcast(run.weights())", after="ranks.allgather(run.weights())[0]"),
        Script(before="all(ranks.allgather(same))", after="bool(min(ranks.allgather(int(same))))"),
    ),
)  # fmt: skip
