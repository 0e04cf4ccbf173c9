# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: distribute training in six steps, and expose the fakes
#     needs: [ISA, memory, TensorFlow, MPI, Horovod, data]
#     better_with: [cores, network, PyTorch]
# ---

# %% [markdown]
# # 07 · Horovod on the MNIST CNN: spot the fake
#
# A training run that takes a week on one machine can take a day on ten. It can also train ten separate networks, or the
# same one ten times, while its log looks perfect.
#
# **You will** distribute a training script with [**Horovod**](../docs/learn/glossary.md#horovod) in six steps. Then you
# will get six scripts, five of them broken, and write a test that finds all five. Finally, you will measure how much
# faster several processes train, and compute what network they need.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which looks inside one process that trains the same network; lab 06, which builds an
# all-reduce by hand; and lab 08, which takes the six steps to a cluster.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("07", globals())

# %%
import json
import textwrap

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Code, display

from labkit.data import load_digits
from labkit.display import markdown, plots
from labkit.measure import alternate, compare, record, recorded, share
from labkit.measure.figures import summarize
from labkit.mpi import RankError, placement, run_ranks, torch_ranks
from labkit.system.paths import DATA
from labkit.testbed import Testbed, obstacle

# %%
# How much this lab measures: change it here. The first of two values is that of a small run.
LINED_UP = "cf" if QUICK else "abcdef"  # sections 4 and 7: scripts
DIGITS, EPOCHS = (512, 2) if QUICK else (4_000, 6)  # sections 1, 3 and 5
RANKS = (2,) if QUICK else (1, 2, 4)  # section 5: trainings
several = max(2, min(4, machine.usable_cores))  # ranks in section 5
STEPS, ROUNDS = (2, 1) if QUICK else (64, 6)  # of a measurement, sections 5 and 6
TIMED = 3 if QUICK else 30  # steps in section 8

# %% [markdown]
# ## 1 · One process {read 3, wait 0.15}
#
# The task is to train a small network, two convolutions and two dense layers, to read handwritten digits. All of this
# lab's scripts import this file:

# %%
# %%writefile work/task.py
"""Digits and numbers that this lab's scripts share."""

from labkit.data import load_digits

BATCH = 64  # digits per rank and step
RATE, WARM_UP = 0.01, 20  # learning rate for one rank; steps until that for all ranks
digits = load_digits(n_train=4_000, n_test=1_000)

# %% jupyter={"source_hidden": true}
digits = load_digits(n_train=4_000, n_test=1_000)
figure, axes = plt.subplots(1, 10, figsize=(9, 1.3))
for axis, image, label in zip(axes.flat, digits.x_train, digits.y_train, strict=False):
    axis.imshow(image[..., 0], cmap="gray_r")
    axis.set_title(label, fontsize=11)
    axis.axis("off")
plots.show(figure, alt="Ten digits of the training set, each with its label above it.")
print(digits.source)

# %% [markdown]
# This script trains in one process. Another program can call its functions `start`, `step` and `weights` to train step
# by step.

# %%
# %%writefile work/serial.py
"""Train the MNIST CNN in one process: python work/serial.py EPOCHS"""

import sys
import time

import keras
import numpy as np
import tensorflow as tf
from task import BATCH, RATE, digits

from labkit.models import mnist_cnn

loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def start(weights=None):
    """Make the network and its optimizer, with random weights unless there are others."""
    global model, optimizer, train
    model = mnist_cnn()
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    if weights is not None:
        model.set_weights(weights)

    @tf.function(autograph=False)  # a graph, as in lab 01
    def train(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = loss_of(labels, logits)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        right = tf.equal(tf.argmax(logits, axis=1), labels)
        return loss, tf.reduce_mean(tf.cast(right, tf.float32))


def step(chosen, rate=RATE):
    """Train on the digits with these indices; return loss and accuracy before the step."""
    optimizer.learning_rate.assign(rate)
    loss, accuracy = train(digits.x_train[chosen], digits.y_train[chosen])
    return {"loss": float(loss), "accuracy": float(accuracy)}


def weights():
    """Return the weights of all layers, as NumPy arrays."""
    return model.get_weights()


def main(epochs):
    start()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(digits.x_train))
        began = time.perf_counter()
        for first in range(0, len(order) - BATCH + 1, BATCH):
            step(order[first : first + BATCH])
        speed = len(order) / (time.perf_counter() - began)
        right = model.predict_on_batch(digits.x_test).argmax(axis=1) == digits.y_test
        print(f"epoch {epoch + 1}: {np.mean(right):.1%} of the test digits, {speed:,.0f} images/s")


if __name__ == "__main__":
    main(int(sys.argv[1]))


# %% [markdown]
# `run_ranks` starts the script and prints the [**mpirun**](../docs/learn/glossary.md#mpirun) command that does the same
# in a terminal. Each line of output begins with the number of its process, the
# [**rank**](../docs/learn/glossary.md#rank).

# %%
if not QUICK:
    print("TensorFlow starts, and trains for three epochs: about 8 s.", flush=True)
    run_ranks(1, "work/serial.py", 3)

# %% [markdown]
# ## 2 · A plan for many processes {read 4.5, do 6}
#
# With Horovod, *every* rank runs the *whole* script, with its own copy of the network and its own share of the digits.
# This is [**data parallelism**](../docs/learn/glossary.md#data-parallelism). In each step, the ranks average their
# [**gradients**](../docs/learn/glossary.md#gradient) with an [**all-reduce**](../docs/learn/glossary.md#all-reduce),
# without a [**parameter server**](../docs/learn/glossary.md#parameter-server). Every copy takes the same step, so this
# is a single training run.
#
# ```mermaid
# flowchart LR
#     accTitle: Data parallelism with Horovod
#     accDescr {
#         Two ranks. Each takes its own share of the digits and computes a gradient with its own copy of the network.
#         One all-reduce averages the two gradients. Then each rank updates its copy with the same average.
#     }
#     x0["rank 0: its share of the digits"] --> g0["gradient on copy 0"] --> a(["all-reduce: average"])
#     x1["rank 1: its share of the digits"] --> g1["gradient on copy 1"] --> a
#     a --> w0["copy 0 takes the step"]
#     a --> w1["copy 1 takes the same step"]
# ```
#
# Six steps turn the script into a distributed one. The last column shows PyTorch's equivalent,
# `DistributedDataParallel` (DDP).
#
# | | step | why | with DDP |
# | --- | --- | --- | --- |
# | 1 | `hvd.init()` | starts [**MPI**](../docs/learn/glossary.md#mpi), and numbers the ranks | `init_process_group` |
# | 2 | one device per rank | ranks that share cores slow each other down | you, or the launcher |
# | 3 | share of the digits; learning rate, steps | the global batch grows | `DistributedSampler`, and you |
# | 4 | `hvd.DistributedGradientTape` | averages the gradients | the wrapped network does it |
# | 5 | [**broadcast**](../docs/learn/glossary.md#broadcast) the initial state | equal copies stay equal | wrapping |
# | 6 | [**checkpoints**](../docs/learn/glossary.md#checkpoint) on rank 0 | two writers corrupt a file | you |
#
# Horovod's last release, 0.28.1, dates from June 2023, and libraries such as Ray have since [dropped
# it](https://github.com/ray-project/ray/issues/49454). We use it because it makes all six steps visible. Section 7 runs
# your test on PyTorch.

# %% [markdown]
# Step 3 is arithmetic, in three short functions that all ranks import.
#
# ### Exercise 1 · Who trains on what?
#
# Write `shard(n, rank, size)`, which returns the indices from `range(n)` that this rank trains on, as a list or array
# of ints. `size` is the [**world size**](../docs/learn/glossary.md#world-size), the number of ranks. No index is used
# twice. **All ranks get the same number of indices**, so the `n % size` indices left over are dropped. Otherwise, a
# rank with an extra batch would wait forever.
#
# ### Exercise 2 · A learning rate that follows the size
#
# A step on 4 ranks processes four batches and takes the *average* of their gradients, which is less noisy than one
# batch's gradient, and about as large. An epoch now has a quarter of the steps, so at the old rate, the weights would
# move about a quarter as far. The **linear scaling rule** multiplies the [**learning
# rate**](../docs/learn/glossary.md#learning-rate) by `size`, after a [**warm-up**](../docs/learn/glossary.md#warm-up),
# as large steps can overshoot at the start ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)).
#
# Write `learning_rate(step, base, size, warmup)`. The rate is `base` at step 0, rises linearly to `base * size` at step
# `warmup`, and stays there. With `warmup = 0`, it is `base * size` from the first step.
#
# ### Exercise 3 · A number of steps that follows the size
#
# In one epoch, each digit is used at most once. Write `steps_per_epoch(n, batch, size)`, which returns each rank's
# steps per epoch, as an int. Each step takes `batch` digits from the rank's share, and only full batches count.

# %%
# %%writefile work/plan.py
"""The plan: the digits, the learning rate and the number of steps of each rank."""

import numpy as np


def shard(n, rank, size):
    """Return the indices of the samples, out of n, that belong to this rank of size."""
    ### BEGIN SOLUTION
    share = n // size
    return np.arange(rank * share, (rank + 1) * share)
    ### END SOLUTION


def learning_rate(step, base, size, warmup):
    """Return the learning rate of a step, for a base rate that suits one rank."""
    ### BEGIN SOLUTION
    if step >= warmup:
        return base * size
    return base * (1 + (size - 1) * step / warmup)
    ### END SOLUTION


def steps_per_epoch(n, batch, size):
    """Return the steps of each rank in one epoch over n samples."""
    ### BEGIN SOLUTION
    return n // size // batch
    ### END SOLUTION


# %% tags=["nbval-check-output"]
shard = check(1, "work/plan.py")

# %% tags=["nbval-check-output"]
learning_rate = check(2, "work/plan.py")

# %% tags=["nbval-check-output"]
steps_per_epoch = check(3, "work/plan.py")

# %% [markdown]
# The checks wrote `work/checked/plan.py`, from which the scripts import each function, yours if it passed, otherwise
# the kit's. Here is the plan for 1, 2 and 4 ranks.

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(8, 4))
for size in (1, 2, 4):
    per_epoch = steps_per_epoch(4_000, 64, size)
    steps = np.arange(6 * per_epoch)
    rates = [learning_rate(step, 0.01, size, warmup=2 * per_epoch) for step in steps]
    axis.plot(steps, rates, markevery=len(steps) // 6, label=f"ranks: {size}; steps: {len(steps)}")
axis.set(xlabel="step", ylabel="learning rate")
axis.set(title="Six epochs over 4,000 digits, 64 per rank in each step")
axis.legend()
plots.show(
    figure,
    alt="Learning rate against step. One rank: constant 0.01, the most steps. Two ranks: a ramp "
    "from 0.01 to 0.02, half of the steps. Four ranks: from 0.01 to 0.04, a quarter of them.",
)

# %% [markdown]
# ## 3 · Six steps {read 2.5, do 10, wait 0.1}
#
# Besides the table's calls, you need `hvd.rank()`, `hvd.size()` and `hvd.broadcast_variables(list, root_rank=0)`. Keras
# 3 wraps the TensorFlow variables that Horovod needs, so put the `.value` of each into the list.
#
# This file contains everything outside the six steps.

# %%
# %%writefile work/train_helpers.py
"""The parts of train_hvd.py outside the six steps: arguments, batches, test, checkpoint, log."""

import argparse
import json
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
from checked.plan import shard

from labkit.data import load_digits
from labkit.models import mnist_cnn

loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def start_up(description, argv):
    """Return the arguments of the command line, and the digits."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--digits", type=int, default=4000, help="number to train on, over all ranks")
    add("--epochs", type=int, default=6)
    add("--batch", type=int, default=64, help="digits per step, on each rank")
    add("--lr", type=float, default=0.01, help="learning rate for one rank")
    add("--warmup", type=int, default=2, help="epochs until the full learning rate")
    add("--out", type=Path, default=Path("work/run"), help="folder for log and checkpoint")
    args = parser.parse_args(argv)
    return args, load_digits(n_train=args.digits, n_test=args.digits // 4)


def build(lr, seed):
    """Return the network and its optimizer."""
    keras.utils.set_random_seed(seed)
    model, optimizer = mnist_cnn(), keras.optimizers.SGD(lr, momentum=0.9)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def batches(x, y, batch, steps, epoch):
    """Yield the images and labels of each step of an epoch, in a new order in each epoch."""
    order = np.random.default_rng(epoch).permutation(len(x))
    for step in range(steps):
        chosen = order[step * batch : (step + 1) * batch]
        yield x[chosen], y[chosen]


def evaluate(model, digits, loss, images, seconds):
    """Return an epoch's results over all ranks, each of which tests its share of the digits."""
    tested = shard(len(digits.x_test), hvd.rank(), hvd.size())
    right = model.predict_on_batch(digits.x_test[tested]).argmax(axis=1) == digits.y_test[tested]
    # Horovod: each rank has a part of the result, so average the parts.
    means = hvd.allreduce(np.array([np.mean(right), float(loss)]), name="metrics").numpy()
    speed = {"seconds": seconds, "images_per_second": images * hvd.size() / seconds}
    return dict(zip(("accuracy", "loss"), means.tolist())) | speed


def save(model, history, out):
    """Write a checkpoint and the log, and print the last epoch's results."""
    out.mkdir(parents=True, exist_ok=True)
    model.save_weights(out / "checkpoint.weights.h5")
    (out / "log.json").write_text(json.dumps({"ranks": hvd.size(), "history": history}))
    line = "loss {loss:.3f}, accuracy {accuracy:.3f}, {images_per_second:,.0f} images/s"
    print(f"epoch {len(history)}: {line.format(**history[-1])}")


# %% [markdown]
# ### Exercise 4 · The distributed script
#
# In this training script, six comments that start with `# Horovod:` say what a distributed run needs. Write the code
# for each.

# %%
# %%writefile work/train_hvd.py
"""Train the MNIST CNN on any number of ranks: mpirun -n 2 python work/train_hvd.py --help"""

from time import perf_counter

import horovod.tensorflow as hvd
import tensorflow as tf
from checked.plan import learning_rate, shard, steps_per_epoch
from train_helpers import batches, build, evaluate, loss_of, save, start_up


def main(argv=None):
    args, digits = start_up(__doc__, argv)
    # Horovod: step 1. Start MPI; set `rank` and `size`.
    ### BEGIN SOLUTION
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    ### END SOLUTION
    # Step 2, one device per rank, is done: `mpirun -bind-to` gives each its cores.
    # Horovod: step 3. Set `x` and `y` to this rank's share of the training digits.
    ### BEGIN SOLUTION
    mine = shard(len(digits.x_train), rank, size)
    x, y = digits.x_train[mine], digits.y_train[mine]
    ### END SOLUTION
    steps = steps_per_epoch(len(digits.x_train), args.batch, size)
    model, optimizer = build(args.lr, seed=rank)  # different starts: step 5 fixes that

    @tf.function(autograph=False)
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        # Horovod: step 4. Wrap the tape, so that its gradients are averaged over all ranks.
        ### BEGIN SOLUTION
        tape = hvd.DistributedGradientTape(tape)
        ### END SOLUTION
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    # Horovod: step 5. Give all ranks the start of rank 0: variables of model and optimizer.
    ### BEGIN SOLUTION
    start = [v.value for v in model.variables + optimizer.variables]
    hvd.broadcast_variables(start, root_rank=0)
    ### END SOLUTION
    train_step.get_concrete_function(x[: args.batch], y[: args.batch])  # trace now: not timed
    history = []
    for epoch in range(args.epochs):
        began = perf_counter()
        for step, (images, labels) in enumerate(batches(x, y, args.batch, steps, epoch)):
            # Horovod: step 3 again. Set `rate`, and assign it to optimizer.learning_rate. Steps
            # count from the first epoch; the warm-up takes args.warmup epochs.
            ### BEGIN SOLUTION
            rate = learning_rate(epoch * steps + step, args.lr, size, args.warmup * steps)
            optimizer.learning_rate.assign(rate)
            ### END SOLUTION
            loss = train_step(images, labels)
        history.append(evaluate(model, digits, loss, steps * args.batch, perf_counter() - began))
        # Horovod: step 6. On rank 0 alone: save(model, history, args.out)
        ### BEGIN SOLUTION
        if rank == 0:
            save(model, history, args.out)
        ### END SOLUTION
    return model.get_weights(), rate


if __name__ == "__main__":
    main()


# %% [markdown]
# The check trains on 4 ranks, each with its own folder, and in one process on all their digits. Both must give the same
# weights, apart from rounding in float32. The check compares the results of `main`, looks for the checkpoints, and
# takes about 20 s.

# %% tags=["nbval-check-output"]
train_hvd = check(4, "work/train_hvd.py")

# %% [markdown]
# ## 4 · Spot the fake {read 5.5, do 11, wait 0.75}
#
# Six colleagues have each written a distributed script. All six scripts run and report a loss, but only one is right.
# The others each contain a fault from a public issue or a tutorial. Every script has three functions: `start()`;
# `step(number)`, which trains on batch `number` and returns `{"loss": …, "accuracy": …}`; and `weights()`, which
# returns a list of NumPy arrays. Here is one; change the letter, `a` to `f`, to read the others.

# %%
LINE_UP = DATA / "line-up" / "horovod"
Code(filename=LINE_UP / "d.py")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which one is right?
#
# </div>

# %%
results.guess(1, "the script that is right", ..., choices=tuple("abcdef"))

# %% [markdown]
# Three tests come to mind. In them, `ranks` is the MPI communicator.

# %%
# %%writefile work/tempting.py
"""Three tempting tests: is this run distributed?"""

import numpy as np


def flat(run):
    """Return all weights of this rank as one vector."""
    return np.concatenate([layer.ravel() for layer in run.weights()])


def weights_agree(ranks, run):
    """All ranks have the same weights after a step."""
    run.start()
    run.step(0)
    return np.ptp(ranks.allgather(flat(run)), axis=0).max() == 0


def loss_falls(ranks, run):
    """The reported loss is lower in the last steps than in the first."""
    run.start()
    losses = [run.step(number)["loss"] for number in range(20)]
    return np.mean(losses[-5:]) < np.mean(losses[:5])


def gradient_norms_agree(ranks, run):
    """All ranks change their weights equally much: by the rate times the gradient."""
    run.start()
    before = flat(run)
    run.step(0)
    norms = ranks.allgather(np.linalg.norm(flat(run) - before))
    return max(norms) < 1.0001 * min(norms)


TESTS = weights_agree, loss_falls, gradient_norms_agree


# %% [markdown]
# ### Exercise 5 · The test that convicts
#
# What *is* a distributed run? **One step of n ranks equals one step of one process on all the digits that the plan
# gives them.** Turn this sentence into a test. Write `same_step(ranks, run, one_process, shares, rate)`, which returns
# `True` or `False`, the same on every rank.
#
# - `run` is one of the six scripts. Test its step 0.
# - `one_process` is `work/serial.py`, with `start(weights)`, `step(chosen, rate)` and `weights()`.
# - `shares` contains, for each rank, the indices of the digits that the plan gives it in step 0, and `rate` is the
#   plan's learning rate.
# - Compare the weights of **every** rank, and the loss and accuracy that it reports.
# - In float32, the order of addition affects rounding. Allow errors of 1% of the largest change in any weight, and 0.1%
#   of the loss and accuracy.
# - With the communicator `ranks`, as in lab 00, `ranks.allgather(x)` returns the `x` of all ranks, and `ranks.bcast(x)`
#   returns rank 0's `x`.

# %%
# %%writefile work/same_step.py
"""A test that a run is distributed."""

import numpy as np


def same_step(ranks, run, one_process, shares, rate):
    """Return whether a step of these ranks equals a step of one process on all their digits."""
    ### BEGIN SOLUTION
    run.start()
    start = ranks.bcast(run.weights())
    metrics = run.step(0)
    one_process.start(start)
    expected = one_process.step(np.concatenate(shares), rate)
    moved = max(np.abs(a - b).max() for a, b in zip(one_process.weights(), start))
    off = max(np.abs(a - b).max() for a, b in zip(run.weights(), one_process.weights()))
    same = off < 0.01 * moved and all(
        abs(metrics[name] - expected[name]) <= 0.001 * abs(expected[name])
        for name in ("loss", "accuracy")
    )
    return all(ranks.allgather(same))
    ### END SOLUTION


# %% [markdown]
# The check tries your test on runs of a small NumPy network on 1 to 4 ranks. One run is correct, five have the scripts'
# faults, and in another, a single rank skips its step.

# %% tags=["nbval-check-output"]
same_step = check(5, "work/same_step.py")

# %% [markdown]
# One launch on 2 ranks runs all four tests on the six real scripts.

# %%
# %%writefile work/line_up.py
"""Test runs in a folder: mpirun -n 2 python work/line_up.py FOLDER ONE_PROCESS TEST LETTERS"""

import importlib
import json
import sys
from pathlib import Path

from checked.plan import learning_rate, shard
from mpi4py import MPI
from task import BATCH, RATE, WARM_UP, digits
from tempting import TESTS

ranks = MPI.COMM_WORLD
folder, one_process, test = map(Path, sys.argv[1:4])
sys.path += [str(folder), str(test.parent)]
same_step = importlib.import_module(test.stem).same_step  # yours, or the kit's
one_process = importlib.import_module(one_process.stem)
shares = [shard(len(digits.x_train), rank, ranks.size)[:BATCH] for rank in range(ranks.size)]
rate = learning_rate(0, RATE, ranks.size, WARM_UP)

verdicts = {}
for name in sys.argv[4]:
    run = importlib.import_module(name)
    verdicts[name] = {test.__name__: bool(test(ranks, run)) for test in TESTS}
    verdicts[name]["same_step"] = bool(same_step(ranks, run, one_process, shares, rate))
if ranks.rank == 0:
    Path("work/verdicts.json").write_text(json.dumps(verdicts))

# %%
SEEN = {True: "passes", False: "**fails**"}


def show_verdicts(verdicts):
    """Show each script's verdicts, and return the scripts that pass the last test."""
    tests = [*verdicts["c"]]
    rows = [(f"`{name}.py`", *map(SEEN.get, seen.values())) for name, seen in verdicts.items()]
    display(markdown.table(("script", *(test.replace("_", " ") for test in tests)), rows))
    for test in tests:
        acquitted = sum(seen[test] for seen in verdicts.values())
        print(f"{test.replace('_', ' '):21} acquits {acquitted} of {len(verdicts)}")
    return [name for name, seen in verdicts.items() if seen[tests[-1]]]


print("Six scripts, four tests each, on 2 ranks: about 40 s.", flush=True)
run_ranks(2, "work/line_up.py", LINE_UP, "serial", same_step, LINED_UP, threads=1, show=False)
verdicts = json.loads((work / "verdicts.json").read_text())
acquitted = show_verdicts(verdicts)
results.compare_guess(1, acquitted[0])

# %% [markdown]
# Reread the five broken scripts.

# %%
results.answer(1, "Which fault does each of the five have, and which test finds it?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# - `a`: **no sharding**. Its `tf.data` pipeline has no `shard`, so every rank trains on the same digits. Two ranks do
#   the work of one ([a 2018 issue](https://github.com/horovod/horovod/issues/223)). Shuffling with a fixed seed, as in
#   [TensorFlow's own benchmarks](https://github.com/tensorflow/benchmarks/pull/151), doesn't help.
# - `b`: **sum instead of mean**, which multiplies the learning rate by the number of ranks
#   ([2019](https://github.com/horovod/horovod/issues/843)).
# - `d`: **no broadcast**. Equal gradients move different networks, so the ranks never agree
#   ([2018](https://github.com/horovod/horovod/issues/672)).
# - `e`: **no averaging**. Two lines come from [Horovod's guide for
#   Keras](https://horovod.readthedocs.io/en/stable/keras.html) and were correct with Keras 2. Horovod's optimizer
#   averages in a method that Keras 3 never calls, so each rank silently trains its own network. `c` shows the fix, a
#   training step with a wrapped tape.
# - `f`: **one rank's metrics**. The training is correct, but the reported numbers describe only half of it ([the same
#   in TRL, 2024](https://github.com/huggingface/trl/issues/2468)).
#
# Comparing weights, the usual advice, finds `d` and `e`. Comparing gradient norms finds only `e`, and a falling loss
# exposes none. `a`, `b` and `f` pass all three.
#
# Your test has a gap, too. At step 0, the warm-up's rate is the same for any number of ranks, so a script that never
# scales its rate passes, as does one without momentum. A few more steps would expose both.
#
# </details>

# %%
results.answer(2, "Why does the test use SGD? What would Adam's first step hide?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Adam divides a gradient by its own size, so its first step is as long for a sum as for a mean, and the test would
# acquit `b`. With SGD, a step is proportional to the gradient. Dropout and augmentation must be off in this test, and
# batch normalisation sees different statistics on each rank. Test without all three, then add them.
#
# </details>

# %% [markdown]
# ## 5 · Is it faster? {read 4, wait 2}
#
# Now run your script, or the kit's, on 1, 2 and 4 ranks with one thread each.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** By what factor do several ranks increase the images per second, compared with one? And on the same
# cores, is it faster to use several ranks with one thread each, or one process with several threads?
#
# </div>

# %%
results.guess(2, f"images per second, {several} ranks vs one", ..., unit="×")
results.guess(3, "on the same cores", ..., choices=("ranks", "threads", "no clear difference"))

# %%
logs = {}
print(f"Training on {', '.join(map(str, RANKS))} ranks: about 12 s each.", flush=True)
for ranks in RANKS:
    out = work / f"ranks-{ranks}"
    arguments = ("--digits", DIGITS, "--epochs", EPOCHS, "--out", out)
    trained = run_ranks(ranks, train_hvd, *arguments, threads=1, show=False)
    logs[ranks] = json.loads((out / "log.json").read_text())["history"]

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 2, sharey=True)
ends = []
for ranks, history in logs.items():
    seconds = np.cumsum([entry["seconds"] for entry in history])
    accuracy = [100 * entry["accuracy"] for entry in history]
    axes[0].plot(range(1, EPOCHS + 1), accuracy, label=f"ranks: {ranks}")
    axes[1].plot(seconds, accuracy)
    ends.append(f"{ranks} ranks, {accuracy[-1]:.1f}% after {seconds[-1]:.1f} s")
axes[0].set(xlabel="epoch", ylabel="test accuracy (%)", xticks=range(1, EPOCHS + 1))
axes[0].legend(loc="lower right")
axes[1].set(xlabel="seconds of training", xlim=(0, None))
figure.suptitle("Time to accuracy, one thread per rank")
plots.show(
    figure,
    alt="Test accuracy against epochs and against seconds of training, a line per number of "
    f"ranks, a point per epoch: {'; '.join(ends)}.",
    keep=results,
    watched=[trained.others],
)
print(f"Cores for these ranks: {machine.usable_cores}")

# %% [markdown]
# When does each line on the right cross 90%? A run that is twice as fast but learns half as much per epoch gains
# nothing. [**Time to accuracy**](../docs/learn/glossary.md#time-to-accuracy) includes both. These are single runs, so
# compare the line for one rank with section 1, where only the random start and the threads differ. For a ratio,
# alternate the runs.
#
# Each rank takes 64 digits per step, so the global batch grows with the number of ranks ([**weak
# scaling**](../docs/learn/glossary.md#weak-scaling)). The [**scaling
# efficiency**](../docs/learn/glossary.md#scaling-efficiency) is the images per second of *n* ranks divided by *n* times
# one rank's. How much of the shortfall is due to Horovod? Ranks on one machine share its memory, caches and clock, so
# they slow each other down even if they send nothing. The limit is therefore the speed of the same ranks **side by
# side**, without Horovod.

# %%
# %%writefile work/speed.py
"""Measure alone, side by side, with Horovod: mpirun -n 2 python work/speed.py STEPS BATCH"""

import json
import sys
import time
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from mpi4py import MPI
from task import digits

from labkit.models import mnist_cnn

STEPS, BATCH = map(int, sys.argv[1:])
world = MPI.COMM_WORLD
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_step(averaged):
    model, optimizer = mnist_cnn(), keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        if averaged:
            tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    return step


def meet():
    """Wait for all ranks, asleep: MPI's barrier would keep the core of a waiting rank busy."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)


def measure(active, averaged=False):
    """Return the images/s of the first `active` ranks; the others sleep."""
    step, steps = make_step(averaged), STEPS if world.rank < active else 0

    def train():
        for number in range(steps):
            chosen = slice(number * BATCH % 3_000, number * BATCH % 3_000 + BATCH)
            step(digits.x_train[chosen], digits.y_train[chosen])

    train()  # a whole measurement, to warm up
    meet()
    began = time.perf_counter()
    train()
    seconds = time.perf_counter() - began
    meet()
    return active * STEPS * BATCH / world.allreduce(seconds, op=MPI.MAX)


speeds = {"one rank": measure(1), "side by side": measure(world.size)}
hvd.init()  # only now: its thread takes some of the core's time
speeds["Horovod"] = measure(world.size, averaged=True)
if world.rank == 0:
    Path("work/speeds.json").write_text(json.dumps(speeds))

# %% [markdown]
# One launch measures one rank, all ranks side by side, and all ranks with Horovod. Another measures a single process
# with as many threads, on the whole global batch.


# %%
def launch(ranks, batch=64, **options):
    """Return the images/s that a launch measures."""
    run = run_ranks(ranks, "work/speed.py", STEPS, batch, show=False, **options)
    return json.loads((work / "speeds.json").read_text()) | {"run": run}


seen = []  # the launches


def of_ranks(name):
    """Return a variant; the first of each round launches the ranks, for all three."""

    def speed():
        if not seen or name not in seen[-1]:
            seen.append(launch(several, threads=1))
        return seen[-1].pop(name)

    return speed


def of_threads():
    """Return the images/s of one process with several threads."""
    return launch(1, 64 * several, threads=several)["one rank"]


variants = {name: of_ranks(name) for name in ("one rank", "side by side", "Horovod")}
speeds = alternate({"threads": of_threads} | variants, ROUNDS, "images/s", "section 5")

# %%
threads, one, beside, with_horovod = speeds.values()
ideal = summarize([several * speed for speed in one.rounds], "images/s", one.source)
for name, speed in speeds.items():
    print(f"{name:13} {speed}")
gain, limit = compare(with_horovod, one), compare(beside, one)
efficiency, possible = share(with_horovod, ideal), share(beside, ideal)
print(f"\n{several} ranks vs one: {gain}")
print(f"  the same side by side: {limit}")
print(f"  scaling efficiency: {efficiency}; side by side: {possible}")
print(f"  with Horovod, share of side by side: {share(with_horovod, beside)}")
versus = compare(with_horovod, threads)
print(f"{several} ranks × 1 thread vs 1 process × {several} threads: {versus}")
print(f"  {placement([launched['run'] for launched in seen])}")
results.compare_guess(2, gain)
WINNER = {"faster": "ranks", "slower": "threads"}
results.compare_guess(3, WINNER.get(versus.verdict, "no clear difference"))
results.step("ranks", versus, share=round(share(with_horovod, beside).value))

# %% [markdown]
# The gap between *n* and *side by side* comes from what the ranks share, and no Horovod setting can close it. The gap
# between *side by side* and *with Horovod* is the cost of averaging, which includes messages, waits for the slowest
# rank, and core time for Horovod's thread. Ranks meet once per step, but the threads of one process meet after every
# operation.

# %%
results.answer(3, "What limits the scaling on your machine, and would another library help?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Compare the two gaps. If *side by side* is far below *n*, the machine is the limit, because of its memory, a shared
# cache, a lower clock with all cores busy, or more ranks than cores. Another library can't help, but fewer ranks can,
# or ranks on more nodes. If *with Horovod* is far below *side by side*, averaging is the limit. Then a larger batch per
# rank helps, as does an all-reduce that overlaps with computing (section 8).
#
# </details>
#
# ## 6 · Which network does it need? {read 2.5, do 4, wait 0.9}
#
# On a cluster, gradients travel through cables. Before you buy a network, you can compute what it has to carry.
#
# ### Exercise 6 · The half-efficiency rate
#
# Write `half_rate(n_bytes, ranks, seconds)`, which returns the wires' rate in **bit/s** at which half of a step is
# communication, because the all-reduce takes as long as computing the step.
#
# - `n_bytes` is the size of the gradients, which `ranks` ranks (2 or more) add up in a
#   [**ring**](../docs/learn/glossary.md#ring).
# - `seconds` is each rank's time to compute one step.
# - In a ring, each rank sends one rank's share of the gradients `2 × (ranks - 1)` times in sequence. The rate applies
#   in each direction, so receiving at the same time costs nothing. Nothing else overlaps, and there is no latency.


# %%
def half_rate(n_bytes, ranks, seconds):
    """Return the bit/s at which the ring all-reduce of a step takes as long as computing it."""
    ### BEGIN SOLUTION
    sent = 2 * (ranks - 1) / ranks * n_bytes
    return 8 * sent / seconds
    ### END SOLUTION


# %% tags=["nbval-check-output"]
half_rate = check(6, half_rate)

# %% [markdown]
# Now test the formula with `seconds` from section 5's *side by side*. The kit puts each rank on its own
# [**node**](../docs/learn/glossary.md#node), a part of this machine's Linux with one network interface, and connects
# the nodes with wires at the rate that you computed. **Only the wires are emulated**; the nodes share this machine's
# cores and memory. Where emulation isn't allowed, you see recorded figures.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** At that rate, what share of the *side by side* images per second remains? Your formula predicts 50%.
#
# </div>

# %%
results.guess(4, "images/s at the half-efficiency rate, vs side by side", ..., unit="%")

# %%
n_bytes, nodes = 4 * 421_642, several  # gradients of 421,642 weights; a rank on each node
no_wires = obstacle()


def remains(wires):
    """Return the share of side by side that is left on wires, in %."""
    on_wires = launch(nodes, threads=1, network=wires)
    return 100 * on_wires["Horovod"] / on_wires["side by side"]


if no_wires:
    print(f"No wires: {no_wires}")
    wires = recorded("07-wires")
    nodes, seconds = wires.data.get("nodes", 2), wires.data["seconds"]
    left = wires.figures["left"]
else:
    seconds = nodes * 64 / beside.value
    with Testbed(nodes, half_rate(n_bytes, nodes, seconds)) as wires:
        figures = alternate({"left": lambda: remains(wires)}, ROUNDS, "%", "section 6")
    record("07-wires", figures, QUICK, seconds=seconds, nodes=nodes)
    left = figures["left"]
print(f"{1000 * seconds:.1f} ms of computing in a step, {n_bytes / 1e6:.1f} MB of gradients:")
print(f"half efficiency at {half_rate(n_bytes, nodes, seconds) / 1e6:,.0f} Mbit/s on {nodes} nodes")
print(f"At that rate, the share of side by side: 50% predicted, measured {left}")
results.compare_guess(4, left)

# %%
results.answer(4, "Does it differ from half? Why can it?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# If the interval contains 50%, no difference is shown. Less can remain because packets have headers, and ranks
# negotiate which gradient comes next, wait for the slowest, and use their cores to send. More can remain because the
# last layers' gradients can travel while the first layers' are computed, if the core has time for both.
#
# </details>
#
# ## 7 · The same with PyTorch {read 2.5, wait 0.4, optional}
#
# New projects use PyTorch's DDP, or JAX. Your test knows nothing about Horovod. It needs only three functions and an
# MPI communicator. Here are six PyTorch scripts with the same five faults in a different order.

# %%
no_torch = torch_ranks.obstacle()
DDP = DATA / "line-up" / "ddp"
Code(filename=DDP / "b.py")

# %%
if no_torch:
    print(no_torch)
    verdicts = recorded("07-ddp").data["verdicts"]
else:
    print("Six scripts, four tests each, on 2 ranks: about 20 s.", flush=True)
    env = torch_ranks.variables()
    options = {"threads": 1, "env": env, "show": False}
    run_ranks(2, "work/line_up.py", DDP, "serial_torch", same_step, LINED_UP, **options)
    verdicts = json.loads((work / "verdicts.json").read_text())
    record("07-ddp", {}, QUICK, verdicts=verdicts)
print("passes same step:", *show_verdicts(verdicts))

# %% [markdown]
# `b.py` contains a common mistake. It wraps the network in DDP, and then calls the network *inside* it,
# `model.module(…)`, so DDP never learns that there is a backward pass. `init_sync=False` turns off DDP's broadcast.
# Which letter has which fault?
#
# <details><summary>A model answer</summary>
#
# `a` reports one rank's metrics, `b` doesn't average, `c` doesn't broadcast, `d` sums, `e` doesn't shard, and `f` is
# right.
#
# </details>
#
# ## 8 · When do gradients travel? {read 4, wait 0.5, optional}
#
# Horovod writes a [**timeline**](../docs/learn/glossary.md#timeline) of every tensor to the file that
# `HOROVOD_TIMELINE` names. Back-propagation computes the gradients from the last layer to the first, so the first
# all-reduces could overlap with the rest of it. Horovod has one [thread](../docs/learn/glossary.md#thread) for all
# messages. Does it get a core?
#
# To keep the picture simple, rank 1 computes nothing, and only answers with zeros (`hvd.join()`). Rank 0 computes on
# one thread, and may use one core or all.

# %%
# %%writefile work/overlap.py
"""Rank 0 trains while rank 1 only answers: mpirun -n 2 python work/overlap.py STEPS CPU…"""

import os
import sys

steps, *cpus = map(int, sys.argv[1:])
if cpus and os.environ["PMI_RANK"] == "0":
    os.sched_setaffinity(0, cpus)  # before any library starts its threads

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from task import BATCH, digits

from labkit.models import mnist_cnn

hvd.init()
model, optimizer = mnist_cnn(), keras.optimizers.SGD(0.01)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function(autograph=False)
def step(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


if hvd.rank() == 0:
    for _ in range(steps):
        step(digits.x_train[:BATCH], digits.y_train[:BATCH])
hvd.join()  # answers with zeros until all ranks have called it


# %%
def read_timeline(path):
    """Return each gradient's bytes, and for each step its stages: (name, start, end) in ms."""
    gradients, open_stages = {}, {}
    for event in json.loads(path.read_text()):
        pid, kind = event["pid"], event["ph"]
        if event.get("name") == "process_name":
            if "DistributedGradientTape" in event["args"].get("name", ""):
                gradients[pid], open_stages[pid] = {"bytes": 0, "steps": []}, []
        elif pid in gradients and kind == "B":
            open_stages[pid].append(event)
            if event["name"] == "NEGOTIATE_ALLREDUCE":
                gradients[pid]["steps"].append([])
        elif pid in gradients and kind == "E":
            begun = open_stages[pid].pop()
            stage = begun["name"], begun["ts"] / 1000, event["ts"] / 1000
            gradients[pid]["steps"][-1].append(stage)
            if "args" in event:
                shape = json.loads(event["args"]["shape"])
                gradients[pid]["bytes"] = 4 * int(np.prod(shape))
    return sorted(gradients.values(), key=lambda gradient: gradient["bytes"])


# %%
everywhere = sorted(cpu for core in machine.cores for cpu in core)
timelines = {}
for name, cpus in {"one core for both": (), "all cores": everywhere}.items():
    file = work / "timeline.json"
    env = {"HOROVOD_TIMELINE": file}
    run_ranks(2, "work/overlap.py", TIMED, *cpus, threads=1, env=env, show=False)
    timelines[name] = read_timeline(file)

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(2, 1, sharex=True, figsize=(9, 7))
summary = []
for axis, (name, gradients) in zip(axes, timelines.items(), strict=True):
    steps = [*zip(*(gradient["steps"] for gradient in gradients))]
    times = [[time for of in step for stage in of for time in stage[1:]] for step in steps]
    middle = sorted(range(len(steps)), key=lambda n: max(times[n]) - min(times[n]))[len(steps) // 2]
    origin = min(times[middle])
    for row, stages in enumerate(steps[middle]):
        there = stages[0][1] - origin
        [(start, end)] = [stage[1:] for stage in stages if stage[0] == "MPI_ALLREDUCE"]
        axis.barh(row, start - origin - there, left=there, color=plots.ORANGE, label="waits")
        axis.barh(row, end - start, left=start - origin, color=plots.BLUE, label="is reduced")
    axis.set_yticks(range(len(gradients)), [f"{g['bytes']:,}" for g in gradients], fontsize=10)
    axis.set(title=f"Horovod's thread and training: {name}", ylabel="bytes of the gradient")
    lasts = [max(stages[0][1] for stages in step) for step in steps]  # the last one is there
    ends = [max(stage[2] for stage in step[-1]) for step in steps]  # the largest one is reduced
    early = sum(end <= last for end, last in zip(ends, lasts, strict=True))
    low, took, high = np.percentile([max(each) - min(each) for each in times], (25, 50, 75))
    summary.append(
        f"{name}: the largest gradient was reduced before the last one was there in {early} of "
        f"{len(steps)} steps; all took {took:.1f} ms ({low:.1f} to {high:.1f} in half of the steps)"
    )
axes[-1].set_xlabel("ms since Horovod saw the step's first gradient")
handles = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
figure.legend(handles.values(), handles.keys(), ncols=2, loc="outside upper center")
plots.show(
    figure,
    alt="For each gradient in a step of median length, bars in time: it waits, and is reduced. "
    + "; ".join(summary),
    keep=results,
)
print(*summary, sep="\n")
print(f"Cores: {machine.usable_cores}. Rank 1, which only answers, runs on one of them.")

# %%
results.answer(5, "What changes when Horovod's thread has a core of its own?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# On one core, the backward pass waits while Horovod's thread works. With another core, both can run at the same time. A
# blue bar that ends before the last gradient arrives shows overlap, as the largest gradient's does in the counted
# steps. But overlap is a gain only if steps get shorter. With two cores, they may not, as rank 1 answers on the second.
# In training, one rank per core leaves no core for Horovod's threads.
#
# </details>
#
# ## 9 · When a rank is missing {read 2, wait 0.35, optional}
#
# Exercise 1 asked for equal shares. Here, rank 1 has one batch fewer than rank 0, and then asks for the average
# accuracy.

# %%
# %%writefile work/uneven.py
"""Rank 0 has one more batch than rank 1: mpirun -n 2 python work/uneven.py"""

import horovod.tensorflow as hvd
import tensorflow as tf


@tf.function(autograph=False)
def average(value, name):
    return hvd.allreduce(value, name=name)


hvd.init()
try:
    for batch in range(3 - hvd.rank()):
        average(tf.ones(4), "gradient")
        print(f"batch {batch + 1}: averaged")
    average(tf.constant(0.9), "accuracy")
    print("end of the epoch")
except tf.errors.UnknownError:
    print("Horovod has shut down.")

# %%
# %%writefile work/dies.py
"""Rank 1 dies while rank 0 waits for it in an all-reduce."""

import os
import signal

from mpi4py import MPI

ranks = MPI.COMM_WORLD
if ranks.rank == 1:
    print("rank 1 requests more memory than there is", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # as Linux does when memory runs out
print("the sum is", ranks.allreduce(1))

# %% [markdown]
# By default, Horovod warns after 60 s, but waits forever. In this run, it warns after 2 s and gives up after 4. In the
# second script, a rank dies as if memory had run out, and `run_ranks` ends the others.

# %%
impatient = {"HOROVOD_STALL_CHECK_TIME_SECONDS": 2, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 4}
if not QUICK:
    print("Two ranks start: about 12 s.", flush=True)
    stalled = run_ranks(2, "work/uneven.py", threads=1, env=impatient, show=False)
    for rank, lines in enumerate(stalled.lines):
        for line in lines:
            text = line.partition("] ")[2] if "stall_inspector" in line else line
            print(textwrap.fill(f"[{rank}] {text}", 96))
try:
    run_ranks(2, "work/dies.py", threads=1)
except RankError as error:
    print(f"RankError: {error}")

# %% [markdown]
# If a distributed run goes silent, look for *Missing ranks*. Below it, `0: [accuracy]` means that rank 0 has not
# submitted the accuracy. If shares can't be equal, `hvd.join()` lets a rank finish early. In case a rank dies, write
# checkpoints. After a restart, rank 0 reads the latest one, and step 5 sends it to any number of ranks.
#
# **On a cluster**, a launcher places the ranks. Two ranks on one core slow a run down without any error, so have the
# launcher print the placement. Older versions of Open MPI take `-np 4 -cpus-per-proc 10 -map-by socket
# --report-bindings` (Open MPI 5, `--map-by socket:PE=10`); MPICH takes `-n 4 -bind-to core:10 -map-by socket` and
# `HYDRA_TOPO_DEBUG=1`, and Intel MPI takes `I_MPI_DEBUG=5`. With one rank per socket and one thread per core, each rank
# reads local memory.

# %% [markdown]
# ## Questions {read 2}
#
# Answer each in a sentence or two, from what you saw. The instructor's notebook has answers.
#
# 1. How do you initialise Horovod, and why is it necessary?
# 2. Why does the learning rate have to change with larger batches?
# 3. How can the learning rate follow the batch size automatically?
# 4. How does a process find out that it is rank 0, or rank 1?
# 5. Why does the number of training steps change with the number of workers, or with larger batches?
# 6. How can the number of steps adapt automatically?
# 7. How does one process compare with 2 and with 4 ranks on your machine?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions.
#
# 1. Call `hvd.init()`, which starts MPI and Horovod's thread. Before that, a process knows neither its rank nor the
#    size, and `hvd.rank()` raises an error.
# 2. The averaged gradient of *n* batches is about as large as one batch's, but less noisy, and an epoch has 1/*n* as
#    many steps. Beyond a certain batch size, the rule fails, as noise is no longer the limit (lab 08).
# 3. Make it a function of the step and `hvd.size()`, with a warm-up, as in exercise 2.
# 4. `hvd.rank()` returns the rank, from 0 to `hvd.size() - 1`. By convention, rank 0 writes files. `hvd.local_rank()`
#    returns the process's number on its machine, which selects its GPU.
# 5. An epoch is a fixed number of digits, and each step now uses `size` batches.
# 6. Compute `n // size // batch`, as in exercise 3. All ranks must get the same number.
# 7. See section 5. Ask what the speed-up cost in core-seconds, and how many extra epochs larger batches need for the
#    same accuracy.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** **Timing** Section 4 matters most, so reach it by minute 28. Anyone still on exercise 4 should
# then use the kit's solution. Don't reveal the faults. Let the room vote by letter (guess 1) before the launch.
#
# **Exercise 5** Most people start the one process with random weights, or compare only rank 0. A common half-solution
# ignores the metrics, which acquits `f`.
#
# **Other machines** On one core, two ranks take turns, so *side by side* is about one rank's speed, or a little more
# with two hardware threads, as on most servers with 2 vCPUs. Section 8's pictures then look alike. With 64 cores,
# `several` stays 4, so set it to 16 and watch the batch grow. With P and E cores, the slowest rank sets the pace. With
# two NUMA nodes, ask for one rank per socket. On Arm, everything runs. Without user namespaces, section 6 shows
# recorded figures, as does section 7 without PyTorch.
#
# **What goes wrong** Without exercises 1 to 3, exercise 4 fails with `No module named 'checked'`. Run their checks
# once.
#
# </div>

# %% [markdown]
# ## Remember
#
# - The six steps are to initialise, use one device per rank, shard and scale, average the gradients, broadcast the
#   initial state, and write on rank 0 only.
# - A run is distributed if each step of all ranks equals a step of one process on all their digits. Falling losses,
#   equal weights and equal norms prove less.
# - If ranks take different numbers of steps, the run hangs.
# - Compare scaling with the same ranks side by side, which no library can beat.
# - The gradients' size, the number of ranks and the computing time determine which network you need.


# %%
PUBLISHED = "90% of ideal on 512 GPUs (ResNet-101), 68% (VGG-16)"
results.table(
    "scaling efficiency",
    [
        (f"weak: {several} ranks", PUBLISHED, efficiency, f"{possible.value:.0f}% side by side"),
        (f"{several} ranks × 1 thread vs 1 process × {several} threads", "", versus, ""),
        (f"{nodes} nodes at the half-efficiency rate, of side by side", "", left, "50% predicted"),
    ],
)

# %% [markdown]
# Published: [Horovod's documentation, Benchmarks](https://horovod.readthedocs.io/en/stable/benchmarks_include.html),
# with a fixed batch size on each GPU.
#
# **Next:** [lab 08](08_cluster.ipynb) applies the same six steps to ResNet-50 on a cluster.
