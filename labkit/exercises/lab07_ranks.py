"""Probe for lab 07: run a student's training script and report its weights. `lab07` starts it on several ranks:

    mpirun -n 3 python lab07_ranks.py SCRIPT train RATE OUT
    mpirun -n 3 python lab07_ranks.py SCRIPT fit RATE

For each case in `RUNS`, call SCRIPT's main, which returns (model, optimizer), and report the result. With "train", the
last run resumes from the checkpoint of the previous run. Only rank 0 has it: every rank behaves as if it were alone on
a node, with a separate folder and local rank 0.

The order of the digits doesn't matter: if an epoch has several steps, a rank's share repeats a single digit.
"""

import functools
import gc
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI

import labkit.data
from labkit.data.digits import Digits, load_digits
from labkit.exercises.ranks.runner import fail, load, report, watched
from labkit.models.mnist import mnist_cnn

gc.freeze()  # keep imported objects out of the garbage collection that `clear_session` runs each time

RANKS = MPI.COMM_WORLD
# Seconds for one line of the script, and for the whole run. A line that makes TensorFlow trace takes two or three
# seconds on an idle machine, and fit is a single line.
LINE_LIMIT_S, TOTAL_LIMIT_S = {"train": 20.0, "fit": 40.0}, 120.0
EXACT = 1e-3  # tolerance, as a share of the distance that the weights moved: rounding in another order
RESUMED = ", in a run that resumes from the checkpoint, which only rank 0 reads (step 5 must broadcast its contents)"
WRITE = tf.train.Checkpoint.write


class Case(NamedTuple):
    """One run of the script: its range of epochs, the steps per epoch, and the digits per rank in each step."""

    first: int
    last: int
    steps: int
    batch: int
    arguments: tuple[str, ...]
    warmup: int = 0

    @property
    def digits(self) -> int:
        """The number of digits: equal shares for all ranks, plus as many left over as possible."""
        return RANKS.size * (self.steps * self.batch + 1) - 1

    @property
    def multiples(self) -> list[float]:
        """The learning rate of each step, as a multiple of the rate for one rank."""
        until = self.warmup * self.steps
        shares = [
            min(1, step / until) if until else 1 for step in range(self.first * self.steps, self.last * self.steps)
        ]
        return [1 + share * (RANKS.size - 1) for share in shares]


RUNS = {
    "train": (
        Case(0, 2, steps=1, batch=42, arguments=("--warmup", "1"), warmup=1),
        Case(0, 2, steps=3, batch=8, arguments=("--warmup", "4"), warmup=4),
        # The same number of steps per epoch as in the previous run, so that `optimizer.iterations` also continues.
        Case(2, 4, steps=3, batch=8, arguments=("--warmup", "4", "--resume"), warmup=4),
    ),
    "fit": (Case(0, 2, steps=2, batch=8, arguments=()),),
}


REPEATED = {case.digits for cases in RUNS.values() for case in cases if case.steps > 1}
checkpoints: list[str] = []  # paths that the script wrote on this rank in the current run


def shares(n: int) -> list[np.ndarray]:
    """Return the indices of the digits that each rank trains on, from the script's module `plan`."""
    shard = importlib.import_module("plan").shard
    return [np.asarray(shard(n, rank, RANKS.size)) for rank in range(RANKS.size)]


def digits_for_script(n_train: int, n_test: int) -> Digits:
    """Replace `load_digits`: if an epoch has several steps, each share repeats a single digit."""
    digits = load_digits(n_train, n_test)
    if n_train not in REPEATED:
        return digits
    x, y = digits.x_train.copy(), digits.y_train.copy()
    _, firsts = np.unique(y, return_index=True)  # the first digit of each class
    for share, first in zip(shares(n_train), firsts, strict=False):
        x[share], y[share] = digits.x_train[first], digits.y_train[first]
    return replace(digits, x_train=x, y_train=y)


def write(self: tf.train.Checkpoint, *args: Any, **kwargs: Any) -> str:
    """Write a checkpoint and record its path."""
    checkpoints.append(WRITE(self, *args, **kwargs))
    return checkpoints[-1]


def flat(model: keras.Model) -> np.ndarray:
    """Return all trainable weights as one vector."""
    return np.concatenate([weight.numpy().ravel() for weight in model.trainable_variables])


def nearer(weights: np.ndarray, to: np.ndarray, than: np.ndarray) -> bool:
    """Return whether the weights are closer to `to` than to `than`."""
    return bool(np.linalg.norm(weights - to) < np.linalg.norm(weights - than))


@functools.cache
def one_process(
    cases: tuple[Case, ...] = (), rate: float = 0.0, seed: int = 0, ranks: int | None = None
) -> list[np.ndarray]:
    """Return the weights of a single process at the start and after each case.

    It starts with the weights of the script's rank `seed`, and trains on the digits of all ranks, or of the first
    `ranks`.
    """
    keras.utils.set_random_seed(seed)
    model, optimizer = mnist_cnn(), keras.optimizers.SGD(momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = [flat(model)]
    for case in cases:
        digits = digits_for_script(case.digits, case.digits // 4)
        mine = np.concatenate([share[: case.batch] for share in shares(case.digits)[:ranks]])
        for multiple in case.multiples:
            with tf.GradientTape() as tape:
                loss = loss_of(digits.y_train[mine], model(digits.x_train[mine], training=True))
            optimizer.learning_rate.assign(rate * multiple)
            gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        weights.append(flat(model))
    return weights


def mistake_weights(case: Case, rate: float) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each known mistake's name, and its weights after the first run."""
    yield "sum", one_process((case,), RANKS.size * rate)[-1]
    yield "share", one_process((case,), rate, ranks=1)[-1]
    for seed in range(1, RANKS.size):
        yield f"start {seed}", one_process((case,), rate, seed)[-1]


def compare_first_steps(learning_rate: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `learning_rate` so that ranks compare their first step: if they differ, the run would hang later."""
    is_first = True

    @functools.wraps(learning_rate)
    def compared(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            first, *others = RANKS.allgather(int(args[0] if args else kwargs["step"]))
            if any(step != first for step in others):
                steps = ", ".join(f"rank {rank} at step {step}" for rank, step in enumerate(others, start=1))
                fail(
                    f"Expected all ranks to continue from the same step after --resume; rank 0 starts at step {first}, "
                    f"{steps}. Only rank 0 reads the checkpoint, so step 5 must broadcast `done` too"
                )
        return learning_rate(*args, **kwargs)

    return compared


def run(
    main: Callable[..., Any], script: str, arguments: list[str], line_limit_s: float, resumed: bool
) -> tuple[keras.Model, Any]:
    """Call the script's main and return its model and optimizer."""
    where = f"on rank {RANKS.rank} of {RANKS.size}{RESUMED * resumed}"
    variables = main.__globals__
    if resumed and callable(variables.get("learning_rate")):
        variables["learning_rate"] = compare_first_steps(variables["learning_rate"])
    # Number layers from the start, as in a fresh process: Horovod matches gradients by names that contain the numbers.
    keras.backend.clear_session()
    with watched(script, where, line_limit_s=line_limit_s, total_limit_s=TOTAL_LIMIT_S):
        result = main(arguments)
    match result:
        case (keras.Model() as model, keras.optimizers.Optimizer() as optimizer):
            return model, optimizer
    what = ", ".join(type(part).__name__ for part in result) if isinstance(result, tuple) else type(result).__name__
    fail(f"Expected main to return model and optimizer, as the original script does; it returned {what}", where)


def main() -> None:
    """Run the script for each case, gather the weights of all ranks, and report."""
    script, kind, rate, *out = sys.argv[1:]
    labkit.data.load_digits = digits_for_script  # type: ignore[assignment]
    tf.train.Checkpoint.write = write
    hvd.local_rank, hvd.local_size = lambda: 0, lambda: 1
    (student_main,) = load(script, "main")
    folder = Path(*out, f"rank-{RANKS.rank}") if out else None
    (own_start,), (start,) = one_process(seed=RANKS.rank), one_process()
    runs: list[dict[str, Any]] = []
    chain: tuple[Case, ...] = ()
    for case in RUNS[kind]:
        chain = (*chain, case) if case.first else (case,)  # this run and those that it continues
        checkpoints.clear()
        sizes = {"--digits": case.digits, "--batch": case.batch, "--epochs": case.last, "--lr": rate}
        arguments = [*(str(word) for pair in sizes.items() for word in pair), *case.arguments]
        arguments += ["--out", str(folder)] if folder else []
        model, optimizer = run(student_main, script, arguments, LINE_LIMIT_S[kind], resumed=case.first > 0)
        weights = np.stack(RANKS.allgather(flat(model)))
        findings: dict[str, Any] = {
            "rank": RANKS.rank,
            "rate": float(optimizer.learning_rate),
            "right_rate": float(rate) * case.multiples[-1],
            "spread": float(np.ptp(weights, axis=0).max()),
            "own_start": nearer(flat(model), own_start, start),
            "wrote": bool(folder and list(folder.glob("*.index"))),
            "checkpoints": len(checkpoints),
        }
        if RANKS.rank == 0:
            right = one_process(chain, float(rate))[-1]
            moved = np.abs(right - start).max()
            findings["error"] = float(np.abs(weights[0] - right).max() / moved)
            if findings["spread"] == 0 and findings["error"] >= EXACT and not runs:
                mistakes = mistake_weights(case, float(rate))
                matches = (name for name, wrong in mistakes if np.abs(weights[0] - wrong).max() < EXACT * moved)
                findings["mistake"] = next(matches, "")
            log = folder / "log.json" if folder else None
            findings["history"] = json.loads(log.read_bytes())["history"] if log and log.is_file() else []
        runs.append(findings)
        # A run can resume from a checkpoint only if the previous run was right.
        if not all(RANKS.allgather(findings["spread"] == 0 and findings["wrote"] == (RANKS.rank == 0))):
            break
    report(runs)


if __name__ == "__main__":
    main()
