"""What did a student's training script really do? Run by `lab07` on 2 ranks:

    mpirun -n 2 python lab07_ranks.py SCRIPT RATE,RATE,… ARGUMENTS…

Imports SCRIPT, calls its main(ARGUMENTS), which gives (model, optimizer), and prints one line of facts per rank.
RATEs are the learning rates of the steps that a single process on all digits would take: what it compares with.
Each rank's share must be one batch, so that the order of the digits doesn't matter.
"""

import json
import runpy
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI

from labkit import datasets
from labkit.models import mnist_cnn


def flat(model: keras.Model) -> np.ndarray:
    """All trainable weights, one after the other."""
    return np.concatenate([weight.numpy().ravel() for weight in model.trainable_variables])


def fresh(seed: int) -> keras.Model:
    """The model as the script's rank `seed` makes it."""
    keras.utils.set_random_seed(seed)
    return mnist_cnn()


def one_process(n_digits: int, rates: list[float]) -> np.ndarray:
    """The weights of one process that takes a step on all digits for each learning rate, from seed 0."""
    digits = datasets.digits(n_train=n_digits, n_test=n_digits // 4)
    model, optimizer = fresh(0), keras.optimizers.SGD(momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for rate in rates:
        with tf.GradientTape() as tape:
            loss = loss_of(digits.y_train, model(digits.x_train, training=True))
        optimizer.learning_rate.assign(rate)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return flat(model)


def main() -> None:
    """Run the script, gather the ranks' weights, print the facts."""
    script, rates, *arguments = sys.argv[1:]
    ranks = MPI.COMM_WORLD
    arguments = [argument.format(rank=ranks.rank) for argument in arguments]
    sys.path.insert(0, str(Path(script).parent))
    model, optimizer = runpy.run_path(script, run_name="answer")["main"](arguments)
    weights = np.stack(ranks.allgather(flat(model)))
    start, other = flat(fresh(0)), flat(fresh(1))
    right = one_process(int(arguments[arguments.index("--digits") + 1]), [float(rate) for rate in rates.split(",")])
    out = Path(arguments[arguments.index("--out") + 1]) if "--out" in arguments else None
    facts = {
        "rank": ranks.rank,
        "size": ranks.size,
        "rate": float(optimizer.learning_rate),
        "spread": float(np.ptp(weights, axis=0).max()),
        "spread_of_seeds": float(np.abs(start - other).max()),
        "error": float(np.abs(weights[0] - right).max() / np.abs(right - start).max()),
        "wrote": bool(out and list(out.glob("*.index"))),
    }
    print("FACTS", json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
