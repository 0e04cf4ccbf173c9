"""A probe of lab 07: runs a student's training script. Started by `lab07` on 2 ranks:

    mpirun -n 2 python lab07_ranks.py SCRIPT train DIGITS RATE OUT
    mpirun -n 2 python lab07_ranks.py SCRIPT fit DIGITS RATE

Calls SCRIPT's main, which gives (model, optimizer), for each of `RUNS`, and hands back a report of each run. With
"train", the second run goes on from the checkpoint of the first, which rank 0 alone has: each rank has a folder of its
own. Each rank's share is one batch, so that the order of the digits doesn't matter, and an epoch is one step.
"""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI

from labkit.data import load_digits
from labkit.exercises.ranks import fail, load, report, watched
from labkit.models.mnist import mnist_cnn

RANKS = MPI.COMM_WORLD
# Seconds in one line, which takes two or three when TensorFlow traces it on a machine that is not busy, and in all. All
# of fit is one line.
LINE_LIMIT_S, TOTAL_LIMIT_S = {"train": 20.0, "fit": 40.0}, 120.0
# By kind: the arguments of each run, and the learning rates of all its steps in multiples of one rank's.
RUNS = {
    "train": (
        (("--epochs", 2, "--warmup", 1), (1, RANKS.size)),
        (("--epochs", 3, "--warmup", 1, "--resume"), (1, RANKS.size, RANKS.size)),
    ),
    "fit": ((("--epochs", 3), (RANKS.size,) * 3),),
}
RESUMED = ", in a run that goes on from the checkpoint, which rank 0 alone reads (step 5 has to give it to all)"


def flat(model: keras.Model) -> np.ndarray:
    """All trainable weights, one after the other."""
    return np.concatenate([weight.numpy().ravel() for weight in model.trainable_variables])


def fresh(seed: int) -> keras.Model:
    """The model as the script's rank `seed` makes it."""
    keras.utils.set_random_seed(seed)
    return mnist_cnn()


@functools.cache
def one_process(n_digits: int, rates: tuple[float, ...]) -> list[np.ndarray]:
    """The weights after each step of one process that takes one on all digits for each learning rate, from seed 0."""
    digits = load_digits(n_train=n_digits, n_test=n_digits // 4)
    model, optimizer = fresh(0), keras.optimizers.SGD(momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = []
    for rate in rates:
        with tf.GradientTape() as tape:
            loss = loss_of(digits.y_train, model(digits.x_train, training=True))
        optimizer.learning_rate.assign(rate)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        weights.append(flat(model))
    return weights


def begun_alike(learning_rate: Callable) -> Callable:
    """Have all ranks compare the first step of which each asks the learning rate: otherwise they wait in vain later."""
    begun = False

    @functools.wraps(learning_rate)
    def compared(*args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        if not begun:
            begun = True
            first = RANKS.allgather(int(args[0] if args else kwargs["step"]))
            if len(set(first)) > 1:
                steps = ", ".join(f"rank {rank} begins with step {step}" for rank, step in enumerate(first))
                fail(
                    f"Expected all ranks to go on with the same step after --resume; {steps}. Rank 0 alone reads "
                    "the checkpoint: step 5 has to give `done` to all"
                )
        return learning_rate(*args, **kwargs)

    return compared


def run(
    main: Callable, script: str, arguments: list[str], line_limit_s: float, resumed: bool
) -> tuple[keras.Model, Any]:
    """Call the script's main, and return the model and the optimizer that it gives."""
    where = f"on rank {RANKS.rank} of {RANKS.size}{RESUMED * resumed}"
    variables = main.__globals__
    if resumed and callable(variables.get("learning_rate")):
        variables["learning_rate"] = begun_alike(variables["learning_rate"])
    # As in a fresh process, layers are numbered from the start: they are in the names by which Horovod pairs gradients.
    keras.backend.clear_session()
    with watched(script, where, line_limit_s=line_limit_s, total_limit_s=TOTAL_LIMIT_S):
        got = main(arguments)
    match got:
        case (keras.Model() as model, keras.optimizers.Optimizer() as optimizer):
            return model, optimizer
    what = ", ".join(type(part).__name__ for part in got) if isinstance(got, tuple) else type(got).__name__
    fail(f"Expected main to return model and optimizer, as it does in the cell; it returned {what}", where)


def main() -> None:
    """Run the script as often as it takes, gather the ranks' weights, hand back what came."""
    script, kind, n_digits, rate, *out = sys.argv[1:]
    (student_main,) = load(script, "main")
    common = ["--digits", n_digits, "--batch", str(int(n_digits) // RANKS.size), "--lr", rate]
    folder = Path(*out, f"rank-{RANKS.rank}") if out else None
    start = flat(fresh(0))
    seeds = float(np.abs(start - flat(fresh(1))).max())
    runs = []
    for number, (options, multiples) in enumerate(RUNS[kind]):
        arguments = [*common, *map(str, options), *(["--out", str(folder)] if folder else [])]
        model, optimizer = run(student_main, script, arguments, LINE_LIMIT_S[kind], resumed=number > 0)
        weights = np.stack(RANKS.allgather(flat(model)))
        findings = {
            "rank": RANKS.rank,
            "rate": float(optimizer.learning_rate),
            "spread": float(np.ptp(weights, axis=0).max()),
            "spread_of_seeds": seeds,
            "wrote": bool(folder and list(folder.glob("*.index"))),
        }
        if RANKS.rank == 0:
            every = one_process(int(n_digits), tuple(float(rate) * multiple for multiple in RUNS[kind][-1][1]))
            right = every[len(multiples) - 1]
            findings["error"] = float(np.abs(weights[0] - right).max() / np.abs(right - start).max())
            log = folder / "log.json" if folder else None
            findings["history"] = json.loads(log.read_text())["history"] if log and log.is_file() else []
        runs.append(findings)
        # A run can go on from a checkpoint, and tells more, only when the one before was right.
        if not all(RANKS.allgather(findings["spread"] == 0 and findings["wrote"] == (RANKS.rank == 0))):
            break
    report(runs)


if __name__ == "__main__":
    main()
