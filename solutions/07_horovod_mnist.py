# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: distribute a training script in six steps, and find its bottleneck
#     needs: [ISA, memory, TensorFlow, MPI, Horovod, data]
#     better_with: [cores, network]
# ---

# %% [markdown]
# # 07 · Horovod on an MNIST CNN
#
# A training run that takes a week on one machine can take a day on ten. It can also take as long as before, or train
# ten networks that each saw a tenth of the data, and nothing in its log says so.
#
# **You will** take a training script that runs in one [**process**](../docs/glossary.md#process), make it run on many
# with [**Horovod**](../docs/glossary.md#horovod), and prove that it really does. You will measure how much faster it
# gets on your machine, what limits it, and how a run can look distributed without being so.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which looks inside one process that trains the same network; lab 06, which builds an
# all-reduce by hand; and lab 08, which takes these steps to ResNet-50 on a cluster.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("07", globals())

# %%
import json
import math
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Code

from labkit.data import load_digits
from labkit.display import ladder, plots
from labkit.display.consistency import Limit, Prediction
from labkit.display.measured import Measured
from labkit.mpi import RankError, placement, run_ranks
from labkit.system import load, statistics
from labkit.system.paths import ROOT
from labkit.system.words import plural
from labkit.testbed import obstacle

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
n_train, epochs = (512, 2) if QUICK else (6_400, 6)  # digits
RANK_COUNTS = (2,) if QUICK else (1, 2, 4)  # section 5: training
several = max(2, min(4, machine.usable_cores))  # ranks, in sections 5, 7 and 10
SCALING_ROUNDS = 0 if QUICK else 6  # sections 5 and 7
PINNING_ROUNDS = 0 if QUICK else 6  # section 10
WIRE_ROUNDS, PREDICTION_ROUNDS = (1, 0) if QUICK else (6, 8)  # section 11
WIRE_CASES = {"2 nodes, 1 Gbit/s": (2, 2 if QUICK else 8)}  # nodes, steps of a measurement
if not QUICK:
    WIRE_CASES |= {"2 nodes, 100 Mbit/s": (2, 4), "4 nodes, 25 Mbit/s": (4, 3)}

# %% [markdown]
# ## 1 · The task: digits and a small network {read 2}
#
# The kit uses the real MNIST digits if they are on this machine, and scikit-learn's handwritten digits otherwise. The
# next cell prints which.

# %%
digits = load_digits(n_train=n_train, n_test=n_train // 4)
print(digits.source)

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(2, 10, figsize=(9, 2.2))
for axis, image, label in zip(axes.flat, digits.x_train, digits.y_train, strict=False):
    axis.imshow(image[..., 0], cmap="gray_r")
    axis.set_title(label, fontsize=11)
    axis.axis("off")
plots.show(figure, alt="Twenty digits of the training set, each with its label above it.")

# %% [markdown]
# The network is small: two convolutions and two dense layers. All labs that use it import it from
# `labkit/models/mnist.py`:

# %%
Code(filename=ROOT / "labkit" / "models" / "mnist.py")

# %% [markdown]
# ## 2 · One process {read 2.5, wait 0.15}
#
# This script trains it in one process, with its own loop instead of Keras' `fit`, so that you can see each step. You
# will turn it into a distributed script line by line.

# %%
# %%writefile work/serial.py
"""Train the MNIST CNN in one process: python work/serial.py --help"""

import argparse
import time

import keras
import numpy as np
import tensorflow as tf

from labkit.data import load_digits
from labkit.models import mnist_cnn


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--digits", type=int, default=8000, help="how many to train on")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64, help="digits in a step")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate")
    args = parser.parse_args(argv)

    digits = load_digits(n_train=args.digits, n_test=args.digits // 4)
    keras.utils.set_random_seed(0)
    model = mnist_cnn()
    optimizer = keras.optimizers.SGD(args.lr, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    # A graph, as in lab 01. AutoGraph would look for loops to translate, and there are none.
    @tf.function(autograph=False)
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    first = slice(args.batch)
    train_step.get_concrete_function(digits.x_train[first], digits.y_train[first])  # trace now
    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(len(digits.x_train))
        steps = len(order) // args.batch
        start = time.perf_counter()
        for step in range(steps):
            batch = order[step * args.batch : (step + 1) * args.batch]
            loss = train_step(digits.x_train[batch], digits.y_train[batch])
        loss, seconds = float(loss), time.perf_counter() - start
        predicted = model.predict_on_batch(digits.x_test).argmax(axis=1)
        accuracy = np.mean(predicted == digits.y_test)
        speed = steps * args.batch / seconds
        about = f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {accuracy:.3f}"
        print(f"{about}, {speed:,.0f} images/s")


if __name__ == "__main__":
    main()


# %% [markdown]
# `run_ranks` starts it and prints the [**mpirun**](../docs/glossary.md#mpirun) command that does the same in a
# terminal. Each line of output begins with the number of its process, the [**rank**](../docs/glossary.md#rank). In the
# first [**epoch**](../docs/glossary.md#epoch), TensorFlow also prepares its kernels and touches its memory for the
# first time, so that epoch may be slower.

# %%
if not QUICK:
    print("TensorFlow starts, and trains for three epochs: about 8 s.", flush=True)
    with load.watch("section 2"):
        run_ranks(1, "work/serial.py", "--digits", n_train, "--epochs", 3)

# %% [markdown]
# ## 3 · What changes with many processes {read 7, do 20, wait 0.2}
#
# With Horovod, *every* rank runs the *whole* script, with its own copy of the network and its own share of the digits.
# This is [**data parallelism**](../docs/glossary.md#data-parallelism). One thing makes it a single training run: after
# each step the ranks average their [**gradients**](../docs/glossary.md#gradient), so every copy takes the same step.
# The average comes from an [**all-reduce**](../docs/glossary.md#all-reduce), without a [**parameter
# server**](../docs/glossary.md#parameter-server). In a [**ring**](../docs/glossary.md#ring) all-reduce, each rank sends
# less than twice the bytes of the gradients, for any number of ranks.
#
# ```mermaid
# flowchart LR
#     accTitle: Data parallelism with Horovod
#     accDescr {
#         Two ranks. Each takes its own share of the digits and computes a gradient with its own copy of the network.
#         One all-reduce averages the two gradients. Then each rank changes its copy by the same average.
#     }
#     x0["rank 0: its share of the digits"] --> g0["gradient on copy 0"] --> a(["all-reduce: average"])
#     x1["rank 1: its share of the digits"] --> g1["gradient on copy 1"] --> a
#     a --> w0["copy 0 takes the step"]
#     a --> w1["copy 1 takes the same step"]
# ```

# %% [markdown]
# Six steps turn the serial script into a distributed one. The last column is PyTorch's `DistributedDataParallel` (DDP):
#
# | | step | why | with DDP |
# | --- | --- | --- | --- |
# | 1 | `hvd.init()` | starts [**MPI**](../docs/glossary.md#mpi): then a rank knows its number | `init_process_group` |
# | 2 | one device per rank | ranks that share cores slow each other down | you, or the launcher |
# | 3 | share of the digits; learning rate, steps | the global batch grows | `DistributedSampler`, and you |
# | 4 | `hvd.DistributedGradientTape` | averages the gradients | the wrapped network does it |
# | 5 | [**broadcast**](../docs/glossary.md#broadcast) the start | equal copies stay equal | wrapping does it |
# | 6 | [**checkpoints**](../docs/glossary.md#checkpoint) on rank 0 | two writers corrupt a file | you |
#
# In step 2, `mpirun -bind-to` pins the ranks to their cores.

# %% [markdown]
# Horovod's last release, 0.28.1, dates from June 2023, and libraries such as Ray have [dropped
# it](https://github.com/ray-project/ray/issues/49454) since. This lab uses it because all six steps are visible, and
# they are the same elsewhere: [lab 11](11_after_the_all_reduce.ipynb) runs this lab's script in PyTorch. (In older
# scripts, step 5 is a `BroadcastGlobalVariablesHook`.)
#
# Step 3 is arithmetic. You write it first, as three small functions. The scripts run in separate processes, so the
# functions then move into a module that the scripts import, `work/plan.py`. They take with them what they use: imports,
# helper functions, constants, and the functions of earlier exercises.

# %% [markdown]
# ### Exercise 1 · Who trains on what?
#
# Write `shard(n, rank, size)`. It returns the indices, out of `range(n)`, that this rank trains on, as a list or an
# array of ints. `size` is the [**world size**](../docs/glossary.md#world-size), the number of ranks. The scripts select
# digits with them: `digits.x_train[shard(n, rank, size)]`.
#
# - No two ranks share an index.
# - **All ranks get the same number of indices**, so the `n % size` left over are dropped. Why? What happens at a rank's
#   next all-reduce if another rank has run out of batches?


# %%
def shard(n, rank, size):
    """Return the indices of the samples, out of n, that belong to this rank of size."""
    ### BEGIN SOLUTION
    share = n // size
    return np.arange(rank * share, (rank + 1) * share)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
shard = check(1, shard)

# %% [markdown]
# ### Exercise 2 · A learning rate that follows the size
#
# One step on 4 ranks looks at four batches and takes the *average* of their gradients. The average is less noisy than a
# single batch's gradient, and about as large. An epoch now has a quarter of the steps, so at the old rate the weights
# would move about a quarter of the distance. The **linear scaling rule** multiplies the [**learning
# rate**](../docs/glossary.md#learning-rate) by `size`. At the start the gradients change quickly, and long steps can
# overshoot. So training begins with a [**warm-up**](../docs/glossary.md#warm-up): the rate rises from one rank's to
# the full one ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)).
#
# Write `learning_rate(step, base, size, warmup)`. It returns a float: `base` at step 0, then in a straight line to
# `base * size` at step `warmup`, and constant from there. With `warmup = 0` it is `base * size` from the first step.


# %%
def learning_rate(step, base, size, warmup):
    """Return the learning rate of a step, for a base rate that suits one rank."""
    ### BEGIN SOLUTION
    if step >= warmup:
        return base * size
    return base * (1 + (size - 1) * step / warmup)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
learning_rate = check(2, learning_rate)

# %% [markdown]
# ### Exercise 3 · A number of steps that follows the size
#
# In one epoch, each digit is used once, by one of the ranks. Write `steps_per_epoch(n, batch, size)`: the number of
# steps that each rank takes in one epoch, if each step takes `batch` digits from the rank's share of exercise 1. Only
# full batches count. It returns an int, for `range`.


# %%
def steps_per_epoch(n, batch, size):
    """Return the steps of each rank in one epoch over n samples."""
    ### BEGIN SOLUTION
    return n // size // batch
    ### END SOLUTION


# %% tags=["nbval-check-output"]
steps_per_epoch = check(3, steps_per_epoch)

# %% [markdown]
# How do rate and steps follow the size? Here is your plan for 1, 2 and 4 ranks.

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
for size in (1, 2, 4):
    per_epoch = steps_per_epoch(6_400, 64, size)
    steps = np.arange(6 * per_epoch)
    rates = [learning_rate(step, 0.01, size, warmup=2 * per_epoch) for step in steps]
    label = f"{plural(size, 'rank')}: {len(steps)} steps"
    axis.plot(steps, rates, markevery=len(steps) // 6, label=label)
axis.set(xlabel="step", ylabel="learning rate")
axis.set(title="Six epochs over 6,400 digits, 64 per rank in each step")
axis.legend()
plots.show(
    figure,
    alt="Learning rate against step. One rank: constant 0.01 for 600 steps. Two ranks: a ramp "
    "from 0.01 to 0.02, 300 steps in all. Four ranks: from 0.01 to 0.04, 150 steps in all.",
)

# %% [markdown]
# Now the three functions move into the module that the scripts import.

# %% tags=["nbval-check-output"]
plan = check.module_text(1, 2, 3)
(work / "plan.py").write_text(plan)
print(plan.partition("import pickle")[0])

# %% [markdown]
# ### What if one rank has an extra batch?
#
# Exercise 1 asked for the same number of digits on all ranks. This script breaks that rule: rank 0 has three batches,
# rank 1 has two. After them, both want to average their accuracy.

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


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What happens when rank 1 asks for the accuracy, and rank 0 for its third gradient?
#
# </div>

# %%
results.guess(1, "one rank has an extra batch", ..., choices=("error", "wrong average", "waits"))

# %% [markdown]
# Horovod warns about tensors that only some ranks have submitted, by default after 60 s, and keeps waiting. Here it
# warns after 2 s and gives up after 4.

# %%
impatient = {"HOROVOD_STALL_CHECK_TIME_SECONDS": 2, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 4}
print("Two ranks start: about 12 s.", flush=True)
stalled = run_ranks(2, "work/uneven.py", threads=1, env=impatient, show=False)
for rank, lines in enumerate(stalled.lines):
    for line in lines:
        text = line.partition("] ")[2] if "stall_inspector" in line else line
        print(textwrap.fill(f"[{rank}] {text}", 96))
results.compare_guess(1, "waits")

# %% [markdown]
# Below *Missing ranks*, `0: [accuracy]` means that rank 0 has not submitted the accuracy. A line `1: [gradient]` may
# follow a moment later. Each rank waits for what the other will never send. Without the second limit, both would wait
# forever, without an error. If a distributed run of yours goes silent, look for this warning first.
#
# (If shares cannot be equal, a rank that has finished calls `hvd.join()`, which contributes zeros until all have.)

# %% [markdown]
# ## 4 · Trust nothing: compare the weights {read 5, do 12, wait 0.15}
#
# If a gradient is not averaged, or the start is not broadcast, nothing crashes. Each rank trains its own network, the
# loss falls, the accuracy looks fine, and all ranks but one worked for nothing. Only one thing gives such a run away:
# the **weights of the ranks differ**. So every distributed training in this lab ends with this measurement.

# %%
# %%writefile work/agree.py
"""Measure how far apart the ranks' weights are."""

import horovod.tensorflow as hvd
import tensorflow as tf


def spread(model):
    """Return the largest difference between two ranks in any weight: 0.0 if there is none."""
    flat = [tf.reshape(v.value, [-1]) for v in model.trainable_variables]
    weights = tf.concat(flat, axis=0)
    highest = hvd.allreduce(weights, op=hvd.Max, name="highest")
    lowest = hvd.allreduce(weights, op=hvd.Min, name="lowest")
    return float(tf.reduce_max(highest - lowest))


# %% [markdown]
# ### Exercise 4 · The distributed script
#
# Here is the serial script again, with what distribution adds. Each such place starts with `# Horovod:` and says what
# is needed. Six of them are yours to write. Read the others too: they answer some of the questions below. Everything
# outside the six steps is in `work/train_helpers.py`, which the next cell, folded, writes.
#
# Two things are special in Keras 3. Horovod needs TensorFlow's variables, and Keras wraps them: `v.value` unwraps one.
# And `horovod.keras` was written for Keras 2 and does not work here; `horovod.tensorflow` does.

# %% jupyter={"source_hidden": true}
# %%writefile work/train_helpers.py
"""The parts of train_hvd.py outside the six steps: arguments, model, batches, test, log."""

import argparse
import json
from pathlib import Path
from time import perf_counter

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from agree import spread
from plan import shard

from labkit.data import load_digits
from labkit.models import mnist_cnn


def start_up(description, argv):
    """Return the arguments of the command line, and the digits."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--digits", type=int, default=8000, help="number to train on, over all ranks")
    add("--epochs", type=int, default=6)
    add("--batch", type=int, default=64, help="digits per step, on each rank")
    add("--lr", type=float, default=0.01, help="learning rate for one rank")
    add("--warmup", type=int, default=2, help="epochs until the full learning rate")
    add("--out", type=Path, default=Path("work/run"), help="folder for log and checkpoint")
    add("--resume", action="store_true", help="continue from the checkpoint in --out")
    args = parser.parse_args(argv)
    return args, load_digits(n_train=args.digits, n_test=args.digits // 4)


def build(lr, seed):
    """Return the model, its optimizer and its loss function."""
    keras.utils.set_random_seed(seed)
    model = mnist_cnn()
    optimizer = keras.optimizers.SGD(lr, momentum=0.9)
    optimizer.build(model.trainable_variables)
    return model, optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def open_checkpoint(args, model, optimizer):
    """Return the checkpoint, and `done`: a variable in it with the number of epochs so far."""
    done = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    # Horovod: only rank 0 reads the checkpoint. The others get its contents by the broadcast.
    if hvd.rank() == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        if args.resume:
            checkpoint.read(str(args.out / "checkpoint")).assert_consumed()
    return checkpoint, done


def batches(x, y, batch, steps, epoch):
    """Yield the images and labels of each step of an epoch, in a new order in each epoch."""
    order = np.random.default_rng(epoch).permutation(len(x))
    for step in range(steps):
        chosen = order[step * batch : (step + 1) * batch]
        yield x[chosen], y[chosen]


def evaluate(model, digits, epoch, loss, began, images):
    """Return the results of an epoch in which each rank trained on `images` images."""
    seconds = perf_counter() - began
    # Horovod: each rank tests its share, and a sum over the ranks gives the overall result.
    tested = shard(len(digits.x_test), hvd.rank(), hvd.size())
    predicted = model.predict_on_batch(digits.x_test[tested]).argmax(axis=1)
    correct = np.sum(predicted == digits.y_test[tested])
    of_this_rank = tf.constant([correct, len(tested), loss], tf.float64)
    total = hvd.allreduce(of_this_rank, op=hvd.Sum, name="metrics").numpy()
    speed = {"seconds": seconds, "images_per_second": images * hvd.size() / seconds}
    means = {"accuracy": total[0] / total[1], "loss": total[2] / hvd.size()}
    return {"epoch": epoch + 1} | speed | means


def prove(model, history, out):
    """Compare the weights of all ranks; on rank 0, print the difference and write the log."""
    difference = spread(model)  # Horovod: every rank takes part, rank 0 reports
    if hvd.rank() == 0:
        print(f"largest difference between any two ranks' weights: {difference}")
        since_start = np.cumsum([entry["seconds"] for entry in history])
        pairs = zip(history, since_start, strict=True)
        history = [entry | {"seconds": float(seconds)} for entry, seconds in pairs]
        log = {"ranks": hvd.size(), "spread": difference, "history": history}
        (out / "log.json").write_text(json.dumps(log))


# %%
# %%writefile work/train_hvd.py
"""Train the MNIST CNN on any number of ranks: mpirun -n 2 python work/train_hvd.py --help"""

from time import perf_counter

import horovod.tensorflow as hvd
import tensorflow as tf
from plan import learning_rate, shard, steps_per_epoch
from train_helpers import batches, build, evaluate, open_checkpoint, prove, start_up


def main(argv=None):
    args, digits = start_up(__doc__, argv)
    # Horovod: step 1. Start MPI; set `rank` and `size`: which process is this, of how many?
    ### BEGIN SOLUTION
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    ### END SOLUTION
    # Horovod: step 2. One device per rank. Done: `mpirun -bind-to` gives it its cores.
    # Horovod: step 3. Set `x` and `y` to this rank's share of the training digits.
    ### BEGIN SOLUTION
    mine = shard(len(digits.x_train), rank, size)
    x, y = digits.x_train[mine], digits.y_train[mine]
    ### END SOLUTION
    steps = steps_per_epoch(len(digits.x_train), args.batch, size)
    model, optimizer, loss_of = build(args.lr, seed=rank)  # different starts: step 5 fixes that

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

    checkpoint, done = open_checkpoint(args, model, optimizer)
    # Horovod: step 5. Give all ranks the start of rank 0: variables of model, optimizer; `done`.
    ### BEGIN SOLUTION
    start = [v.value for v in model.variables + optimizer.variables] + [done]
    hvd.broadcast_variables(start, root_rank=0)
    ### END SOLUTION
    train_step.get_concrete_function(x[: args.batch], y[: args.batch])  # trace now: not timed
    history = []
    for epoch in range(int(done), args.epochs):
        began = perf_counter()
        for step, (images, labels) in enumerate(batches(x, y, args.batch, steps, epoch)):
            # Horovod: step 3 again. Assign this step's rate to optimizer.learning_rate.
            # Steps count from the first epoch; the warm-up takes args.warmup epochs.
            ### BEGIN SOLUTION
            rate = learning_rate(epoch * steps + step, args.lr, size, args.warmup * steps)
            optimizer.learning_rate.assign(rate)
            ### END SOLUTION
            loss = train_step(images, labels)
        history.append(evaluate(model, digits, epoch, float(loss), began, steps * args.batch))
        done.assign(epoch + 1)
        # Horovod: step 6. On rank 0 alone: `checkpoint.write(str(args.out / "checkpoint"))`,
        # and print a line with the epoch, the loss and the accuracy that history[-1] holds.
        ### BEGIN SOLUTION
        if rank == 0:
            checkpoint.write(str(args.out / "checkpoint"))
            print(
                "epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.3f}, "
                "{images_per_second:,.0f} images/s".format(**history[-1])
            )
        ### END SOLUTION
    prove(model, history, args.out)
    return model, optimizer


if __name__ == "__main__":
    main()


# %% [markdown]
# The check runs `main` on 3 ranks. One step of 3 ranks must equal, except for rounding in float32, one step of a single
# process on all their digits. That is the definition of "distributed". A second call takes several steps in each epoch,
# and a third one continues from its checkpoint (`--resume`), which only rank 0 has. The whole check may take three
# minutes, and a single line 20 s.

# %% tags=["nbval-check-output"]
train_hvd = check(4, "work/train_hvd.py")

# %% [markdown]
# ## 5 · 1, 2 and 4 ranks {read 7, wait 2.05}
#
# Each rank gets one thread here, so that only the number of ranks changes: `run_ranks` sets `OMP_NUM_THREADS=1` and the
# two variables that TensorFlow reads instead.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** By what factor do several ranks raise the images per second of one rank? And which run reaches a
# given accuracy first?
#
# </div>

# %%
results.guess(2, f"images per second, {several} ranks vs one", ..., unit="×")

# %%
logs = {}
print(f"Training on {', '.join(map(str, RANK_COUNTS))} ranks: about 15 s each.", flush=True)
with load.watch("section 5, training") as training_others:
    for ranks in RANK_COUNTS:
        out = work / f"ranks-{ranks}"
        arguments = ("--digits", n_train, "--epochs", epochs, "--out", out)
        run_ranks(ranks, train_hvd, *arguments, threads=1)
        logs[ranks] = json.loads((out / "log.json").read_text())
        assert logs[ranks]["spread"] == 0.0, "the ranks trained different models"

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 2, sharey=True)
ends = []
for ranks, log in logs.items():
    history = log["history"]
    seconds = [entry["seconds"] for entry in history]
    accuracy = [100 * entry["accuracy"] for entry in history]
    axes[0].plot([entry["epoch"] for entry in history], accuracy, label=plural(ranks, "rank"))
    axes[1].plot(seconds, accuracy)
    ends.append(f"on {plural(ranks, 'rank')}, {accuracy[-1]:.1f}% after {seconds[-1]:.1f} s")
worst = 100 * min(log["history"][-1]["accuracy"] for log in logs.values())
axes[0].set_ylim(max(0, 5 * math.floor(worst / 5) - 10), 100)  # the last points
axes[0].set(xlabel="epoch", ylabel="test accuracy (%)", xticks=range(1, epochs + 1))
axes[0].legend(loc="lower right")
axes[1].set(xlabel="seconds of training", xlim=(0, None))
figure.suptitle("Time to accuracy, one thread per rank")
plots.show(
    figure,
    alt="Test accuracy against epochs and against seconds of training, a line per number of "
    f"ranks, a point per epoch: {'; '.join(ends)}.",
    keep=results,
    watched=[training_others],
)
if max(logs) > machine.usable_cores:
    print(f"With more ranks than cores (here {machine.usable_cores}), the ranks take turns.")

# %% [markdown]
# A run that is twice as fast but learns half as much per epoch has gained nothing. [**Time to
# accuracy**](../docs/glossary.md#time-to-accuracy) includes both. On a cluster you also pay for it: cores times
# seconds.


# %% jupyter={"source_hidden": true}
def median_speed(log):
    """Return the images per second of a training run: the median of its epochs."""
    return np.median([entry["images_per_second"] for entry in log["history"]])


def show_time_to_accuracy(logs, cores):
    """Print when each run reached the best accuracy that all of them reached, and its speed."""
    best = min(max(entry["accuracy"] for entry in log["history"]) for log in logs.values())
    target = math.floor(100 * best) / 100
    print(f"First epoch with {target:.0%} test accuracy or more, and images/s of the median epoch:")
    taken, speeds = {}, {}
    reference = min(logs)
    for ranks, log in logs.items():
        first = next(entry for entry in log["history"] if entry["accuracy"] >= target)
        taken[ranks], speeds[ranks] = first["seconds"], median_speed(log)
        cost = f"{min(ranks, cores) * taken[ranks]:5.1f} core-seconds"
        gain = speeds[ranks] / speeds[reference]
        print(
            f"  {plural(ranks, 'rank'):8} epoch {first['epoch']}, {taken[ranks]:5.1f} s, {cost}; "
            f"{speeds[ranks]:7,.0f} images/s, {gain:.2f}×"
        )
        if gain > 1.03 * ranks / reference:
            print(f"    More than {ranks / reference:.0f}×: something else changed in between.")
    first, fastest = min(taken, key=taken.get), max(speeds, key=speeds.get)
    first, fastest = plural(first, "rank"), plural(fastest, "rank")
    print(f"Fewest seconds: {first}; most images/s: {fastest}. One run each, so no intervals.")


# %%
show_time_to_accuracy(logs, machine.usable_cores)

# %% [markdown]
# More ranks take fewer steps in an epoch, each with the average of more digits, and two of the six epochs are warm-up.
# The left panel shows the effect, independently of speed. Each ran once, so the machine may have changed in between.
# The next measurement alternates.
#
# ### Scaling efficiency and its limit
#
# The [**scaling efficiency**](../docs/glossary.md#scaling-efficiency) is the share of the ideal speed-up that a run
# reaches: the images per second of *n* ranks over *n* times those of one rank. Each rank takes 64 digits per step, as
# above, so the global batch grows with the ranks. That is [**weak scaling**](../docs/glossary.md#weak-scaling). In
# [**strong scaling**](../docs/glossary.md#strong-scaling) the global batch stays the same (section 7). A published
# efficiency means little unless it says which of the two it is.

# %% [markdown]
# How much of the missing speed-up is due to Horovod? Ranks on one machine share its memory, caches and clock, so they
# may slow each other down even if they exchange nothing. So the same ranks also train **side by side**, on the same
# cores but without Horovod. Averaging only adds work to that, so it is the limit.
#
# There is also a rival: *one* process on the same cores, with one thread per rank and the same images per step. A talk
# from 2018 said that more ranks can be faster, as small convolutions are hard to thread.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** On the same cores: several ranks with one thread each, or one process with several threads?
#
# </div>

# %%
results.guess(3, "on the same cores", ..., choices=("ranks", "threads", "no clear difference"))

# %% [markdown]
# The next cell, folded, writes the script that measures variants of a training step, with or without Horovod.

# %% jupyter={"source_hidden": true}
# %%writefile work/compare.py
"""Measure variants of a training step:

mpirun -n 2 python work/compare.py VARIANTS.json SPEEDS.json ROUNDS

VARIANTS.json has the arguments of `measure` for each variant, and "horovod": whether it runs
at that time. With a fourth argument, the script counts the bytes that this node sends.
"""

import functools
import json
import sys
import time
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from mpi4py import MPI

from labkit.data import load_digits
from labkit.models import mnist_cnn
from labkit.testbed import traffic

WARM_UP = 2  # steps before a measurement
world = MPI.COMM_WORLD
digits = load_digits(n_train=2048, n_test=10)
model = mnist_cnn()
optimizer = keras.optimizers.SGD(0.0, momentum=0.9)  # as much work as any rate, same weights
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
running = False  # whether Horovod runs


@functools.cache
def make_step(averaged, every, fp16):
    """Return a step on `every` batches, whose gradients are summed and then averaged."""
    compression = hvd.Compression.fp16 if fp16 else hvd.Compression.none

    @tf.function(autograph=False)
    def step(images, labels):
        with tf.GradientTape() as tape:
            outputs = [model(images[i], training=True) for i in range(every)]
            losses = [loss_of(labels[i], outputs[i]) / every for i in range(every)]
        if averaged:
            tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(losses, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    return step


def take(number, every, batch):
    """Return the images and labels of a step, different in each."""
    first = number * every * batch % (len(digits.x_train) - every * batch + 1)
    chosen = slice(first, first + every * batch)
    images = digits.x_train[chosen].reshape(every, batch, 28, 28, 1)
    return images, digits.y_train[chosen].reshape(every, batch)


def switch(horovod):
    """Start or stop Horovod, whose thread takes some of the cores' time."""
    global running
    if horovod and not running:
        hvd.init()
    elif running and not horovod:
        hvd.shutdown()
    running = horovod


def meet():
    """Wait for all ranks, asleep: MPI's barrier would keep the core of a waiting rank busy."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)


def measure(active, steps, batch, every, fp16):
    """Return the images/s of all active ranks, and the bytes that this node sends in a step."""
    sent_so_far = (lambda: traffic().sent) if len(sys.argv) > 4 else (lambda: 0)
    step = make_step(running, every, fp16)
    n_steps = steps if world.rank < active else 0  # the other ranks sleep
    for number in range(min(WARM_UP, n_steps)):
        step(*take(number, every, batch))
    meet()
    start, sent = time.perf_counter(), sent_so_far()
    for number in range(n_steps):
        step(*take(number, every, batch))
    seconds = time.perf_counter() - start
    meet()
    sent = sent_so_far() - sent
    images = active * steps * every * batch
    return images / world.allreduce(seconds, op=MPI.MAX), sent / max(1, n_steps)


def main():
    variants = json.loads(Path(sys.argv[1]).read_text())
    optimizer.build(model.trainable_variables)
    speeds, sent = ({name: [] for name in variants} for _ in range(2))
    for name, variant in [*variants.items()] * int(sys.argv[3]):
        switch(variant["horovod"])
        keys = ("active", "steps", "batch", "every", "fp16")
        speed, n_bytes = measure(*(variant[key] for key in keys))
        speeds[name].append(speed)
        sent[name].append(n_bytes)
    switch(False)
    if world.rank == 0:
        measured = {"speeds": speeds, "sent": sent, "gradients": 4 * model.count_params()}
        Path(sys.argv[2]).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()


# %% [markdown]
# Each round contains each launch once, so a slow minute affects all of them. The spread of the rounds gives the 95%
# confidence interval of each ratio. It covers the noise of these minutes: on another day, a repetition can fall
# outside. The rounds also contain the variants that section 7 compares.


# %%
def variant(active, batch=64, horovod=True, every=1, fp16=False, steps=None):
    """Return a variant: active ranks, the digits of each in a step, with Horovod or without."""
    options = dict(batch=batch, horovod=horovod, every=every, fp16=fp16)
    return options | dict(active=active, steps=steps or 1024 // batch)


def launch(ranks, variants, rounds=2, threads=1, env=None):
    """Return the images per second of each variant, the mean of `rounds`, and the run."""
    files = (work / "variants.json", work / "speeds.json")
    files[0].write_text(json.dumps(variants))
    options = dict(threads=threads, env=env, show=False)
    run = run_ranks(ranks, "work/compare.py", *files, rounds, **options)
    speeds = json.loads(files[1].read_text())["speeds"]
    return {name: np.mean(speed) for name, speed in speeds.items()}, run


def alternate(launches, rounds):
    """Return the images per second of each variant, round by round, and all runs."""
    speeds, runs = {}, []
    for number in range(rounds):
        for options in launches:
            means, run = launch(**options)
            runs.append(run)
            for name, mean in means.items():
                speeds.setdefault(name, []).append(mean)
        print(f"round {number + 1} of {rounds}", flush=True)
    return speeds, runs


# %%
part = 64 // several
without_horovod = {
    "one rank": variant(1, horovod=False),
    "one rank, batch 256": variant(1, batch=256, horovod=False),
    "weak, side by side": variant(several, horovod=False),
    "strong, side by side": variant(several, batch=part, horovod=False),
}
with_horovod = {
    "weak": variant(several),
    "strong": variant(several, batch=part),
    "batch 256": variant(several, batch=256),
}
one_process = {"one process": variant(1, batch=64 * several, horovod=False)}
launches = [
    dict(ranks=several, variants=without_horovod | with_horovod),
    dict(ranks=1, variants=one_process, threads=several),
]
print(f"{SCALING_ROUNDS} rounds of two launches, about 10 s each.", flush=True)
with load.watch("section 5, scaling") as scaling_others:
    scaling, scaling_runs = alternate(launches, SCALING_ROUNDS)


# %% jupyter={"source_hidden": true}
def percent(ratio, ranks=1):
    """Return a ratio of several ranks to one as an efficiency, with its interval."""
    share = 100 * np.array(ratio) / ranks
    return Measured(*share, "%", digits=0 if share[0] >= 10 else 1)


def cost_of(reached):
    """Return a phrase on the cost of averaging, from the ratio to the same ranks side by side."""
    words = {
        "slower": f"averaging costs {1 - reached.value:.0%} of the images per second",
        "faster": "averaging can't make ranks faster, so something else changed: measure again",
    }
    verdict = words.get(reached.verdict, reached.verdict)
    return f"with Horovod they reach {percent(reached)} of that: {verdict}"


def show_scaling(kind, speeds, ranks):
    """Print the efficiency of weak or strong scaling, its limit, and what averaging costs."""
    of_one = statistics.ratios(speeds, "one rank")
    limit = f"{kind}, side by side"
    print(f"{kind} scaling on {ranks} ranks: efficiency {percent(of_one[kind], ranks)}")
    print(f"  the same ranks side by side: {percent(of_one[limit], ranks)}")
    print(f"  {cost_of(statistics.ratios(speeds, limit)[kind])}")


def show_training_runs(logs, of_one, ranks):
    """Compare the speed-up of the training runs with that of the rounds."""
    gain = median_speed(logs[ranks]) / median_speed(logs[1])
    if math.isnan(of_one.low):
        place = of_one.verdict
    elif of_one.low <= gain <= of_one.high:
        place = "inside the interval"
    else:
        place = "outside the interval: they ran once, one after the other, so trust the rounds"
    print(f"  the training runs gave {gain:.2f}×, {place}")


def show_threads(speeds, number):
    """Compare ranks of one thread with one process of many threads; return the winner."""
    ratio = statistics.ratios(speeds, "one process")["weak"]
    print(f"{number} ranks × 1 thread vs 1 process × {number} threads:")
    print(f"  {Measured(*ratio, '×')} the images/s: {ratio.verdict}")
    if not ratio.significant:
        return "no clear difference"
    return "ranks" if ratio.faster else "threads"


def scaling_row(kind, speeds, ranks, cores, others):
    """Return a row of the closing table: weak or strong scaling, and its limit."""
    name = f"{kind}: this CNN, {ranks} ranks on {plural(min(ranks, cores), 'core')}"
    if not speeds:
        return (name, "", "", "")
    of_one = statistics.ratios(speeds, "one rank")
    reached, limit = (percent(of_one[key], ranks) for key in (kind, f"{kind}, side by side"))
    above = "averaging can't make ranks faster, so run section 5 again"
    return (name, "", reached, Limit(limit, above), others)


# %%
if scaling:
    of_one = statistics.ratios(scaling, "one rank")["weak"]
    of_process = statistics.ratios(scaling, "one process")["weak"]
    of_limit = statistics.ratios(scaling, "weak, side by side")["weak"]
    print(f"one rank: {np.mean(scaling['one rank']):,.0f} images/s; {SCALING_ROUNDS} rounds")
    print(f"{several} ranks vs one rank, alternating: {Measured(*of_one, '×')} the images/s")
    if several in logs:
        show_training_runs(logs, of_one, several)
    show_scaling("weak", scaling, several)
    winner = show_threads(scaling, several)
    print(f"  {placement(scaling_runs)}")
    results.compare_guess(2, Measured(*of_one, "×"))
    results.compare_guess(3, winner)
    results.step(
        "ranks",
        Measured(*of_process, "×"),
        scaling_others,
        share=round(100 * of_limit.value),
        significant=of_process.significant,
    )

# %% [markdown]
# The gap between 100% and *side by side* comes from what the ranks share: memory, caches, the clock, and the cores if
# there are fewer cores than ranks. No Horovod setting can close it. The gap between *side by side* and the efficiency
# comes from averaging: messages, and waiting for the slowest rank.
#
# Ranks meet once per step, threads of one process at the end of every operation. In exchange, each rank needs its own
# copy of the network.

# %% [markdown]
# ## 6 · Where the time goes: the timeline {read 3, wait 0.15, optional}
#
# Horovod writes a [**timeline**](../docs/glossary.md#timeline) of every tensor to the file that `HOROVOD_TIMELINE`
# names. Writing it takes time, so it gets a short run of its own: one epoch on 2 ranks.

# %%
timeline = work / "horovod-timeline.json"
print("One epoch on 2 ranks: about 8 s.", flush=True)
arguments = ("--digits", n_train, "--epochs", 1, "--out", work / "timeline")
recorded = run_ranks(2, train_hvd, *arguments, threads=1, env={"HOROVOD_TIMELINE": str(timeline)})

# %% jupyter={"source_hidden": true}
STAGES = {
    "NEGOTIATE_ALLREDUCE": ("negotiated", plots.ORANGE),
    "MEMCPY_IN_FUSION_BUFFER": ("fused: copied in", plots.SKY),
    "MPI_ALLREDUCE": ("reduced", plots.BLUE),
    "MEMCPY_OUT_FUSION_BUFFER": ("fused: copied out", plots.GREEN),
}


def read_timeline(path):
    """Return each gradient's shape and, for each step, its stages: (stage, start, end) in ms.

    The file is in Chrome's trace format: a "process" for each tensor, in which a B event begins
    a stage, an E event ends the one begun last, and the end of the whole all-reduce holds the
    shape. A step begins with negotiation.
    """
    events = json.loads(Path(path).read_text())
    named = [e for e in events if e.get("name") == "process_name" and "name" in e["args"]]
    averaged = [e["pid"] for e in named if "DistributedGradientTape" in e["args"]["name"]]
    gradients = {pid: {"steps": []} for pid in averaged}
    begun = {pid: [] for pid in gradients}
    for event in events:
        pid = event["pid"]
        if pid in gradients and event["ph"] == "B":
            begun[pid].append(event)
            if event["name"] == "NEGOTIATE_ALLREDUCE":
                gradients[pid]["steps"].append([])
        elif pid in gradients and event["ph"] == "E":
            begin = begun[pid].pop()
            stage = (begin["name"], begin["ts"] / 1000, event["ts"] / 1000)
            gradients[pid]["steps"][-1].append(stage)
            if "args" in event:
                gradients[pid]["shape"] = json.loads(event["args"]["shape"])
    return sorted(gradients.values(), key=lambda gradient: math.prod(gradient["shape"]))


def median_step(gradients):
    """Return each gradient's stages in the step of median length, in ms since its start."""

    def times(step):
        return [time for stages in step for stage in stages for time in stage[1:]]

    steps = [*zip(*(gradient["steps"] for gradient in gradients), strict=False)]
    steps.sort(key=lambda step: max(times(step)) - min(times(step)))
    middle = steps[len(steps) // 2]
    origin = min(times(middle))
    return [[(stage, a - origin, b - origin) for stage, a, b in stages] for stages in middle]


gradients = read_timeline(timeline)
median_stages = median_step(gradients)  # of each gradient
figure, axis = plt.subplots()
for row, stages in enumerate(median_stages):
    for stage, start, end in stages:
        if stage in STAGES:
            label, colour = STAGES[stage]
            axis.barh(row, end - start, left=start, color=colour, label=label)
legend = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
figure.legend(legend.values(), legend.keys(), ncols=4, fontsize=11, loc="outside upper center")
shapes = [gradient["shape"] for gradient in gradients]
labels = [f"{' × '.join(map(str, s))}: {4 * math.prod(s):,} bytes" for s in shapes]
axis.set_yticks(range(len(gradients)), labels, fontsize=11)
axis.set(xlabel="ms since Horovod saw the step's first gradient")
axis.set(title="The eight gradients in a step of median length")
largest = {name: end - start for name, start, end in median_stages[-1] if name in STAGES}
summary = ", ".join(f"{STAGES[name][0]} {ms:.1f} ms" for name, ms in largest.items())
seen_at = max(stages[0][1] for stages in median_stages)
averaged_at = max(stages[-1][2] for stages in median_stages)
plots.show(
    figure,
    alt="For each of the eight gradients in a step of median length, from the smallest (bottom) "
    "to the largest, bars in time: negotiated, fused if it is, reduced. The largest gradient: "
    f"{summary}.",
    keep=results,
)
print(f"The largest gradient in this step: {summary}.")
print(f"Horovod saw the last gradient {seen_at:.1f} ms after the first.", end=" ")
print(f"After {averaged_at:.1f} ms, all were averaged.")

# %% [markdown]
# Each gradient goes through three stages:
#
# - **negotiated**: rank 0 waits until *every* rank has this gradient ready. If one rank is slow, you see it here: the
#   others wait.
# - **fused**: gradients that are ready together are copied into one buffer, so that one all-reduce serves them all, and
#   then copied back. If *reduced* bars begin and end together, one all-reduce carried them.
# - **reduced**: the all-reduce itself, in MPI.
#
# The largest gradient, that of the first dense layer, is at the top. It has 95% of all bytes. Back-propagation computes
# the gradients from the last layer to the first. If they become ready one by one, the first all-reduces overlap with
# the rest of it. If all become ready at almost the same time, nothing can.

# %% [markdown]
# Negotiation is waiting: for the other rank; for Horovod's next cycle, as it looks for ready gradients once per cycle,
# 1 ms by default; or for its thread. Horovod has **one thread** for all of this. During an all-reduce, other gradients
# stay *negotiated*, or unseen. (Chrome opens the file too, at `chrome://tracing`.)
#
# ## 7 · Improve it {read 3.5, optional}
#
# What can you change?
#
# | setting | what it does | when to change it |
# | --- | --- | --- |
# | `--batch` | more work between two all-reduces | larger, as long as accuracy and cache allow |
# | `HOROVOD_FUSION_THRESHOLD` | most bytes in one fused all-reduce; default 128 MiB | 0, no fusion, for few gradients |
# | `HOROVOD_CYCLE_TIME` | ms between two looks for ready gradients; default 1 | shorter for a small model |
#
# The rounds of section 5 also ran 256 digits per rank, and strong scaling: a global batch of 64, divided among the
# ranks. There, each step is shorter, but the gradients are the same size. What do you expect of each?


# %% jupyter={"source_hidden": true}
def show_settings(speeds, reference, changes):
    """Print the effect of each change."""
    of_reference = statistics.ratios(speeds, reference)
    for name in changes:
        ratio = of_reference[name]
        print(f"{name}: {Measured(*ratio, '×')} the images/s of the default: {ratio.verdict}")


def show_batches(speeds, ranks):
    """Print the efficiency at each batch size, and whether they differ."""
    pairs = {64: ("weak", "one rank"), 256: ("batch 256", "one rank, batch 256")}
    for batch, (many, single) in pairs.items():
        share = percent(statistics.ratios(speeds, single)[many], ranks)
        print(f"  efficiency at batch {batch}: {share}")
    small, large = (np.divide(speeds[many], speeds[single]) for many, single in pairs.values())
    ratio = statistics.ratio(large, small)
    words = {"faster": "higher", "slower": "lower"}.get(ratio.verdict, ratio.verdict)
    print(f"  the second is {Measured(*ratio, '×')} the first: {words}")


def show_averaging(speeds):
    """Print whether averaging costs more in strong scaling than in weak scaling."""
    kinds = ("strong", "weak")
    shares = (np.divide(speeds[kind], speeds[f"{kind}, side by side"]) for kind in kinds)
    ratio = statistics.ratio(*shares)
    words = {"faster": "averaging costs less here", "slower": "averaging costs more here"}
    verdict = words.get(ratio.verdict, ratio.verdict)
    print(f"  that share vs the share in weak scaling: {Measured(*ratio, '×')}, {verdict}")


# %%
if scaling:
    show_settings(scaling, "weak", ["batch 256"])
    show_batches(scaling, several)
    show_scaling("strong", scaling, several)
    show_averaging(scaling)
strong_row = scaling_row("strong", scaling, several, machine.usable_cores, scaling_others)
results.hand_in("7", strong_row)

# %% [markdown]
# A larger batch needs fewer all-reduces for the same digits. But if the data of one step no longer fit into a core's
# cache, each rank is slower. The speed of one rank may change too, so the efficiency at batch 256 is relative to *one
# rank at batch 256*.
#
# Fusion saves messages and costs copies. Here, one gradient has nearly all the bytes, so there is little to save.
#
# Your turn: put your own settings into `mine`. Horovod can also search for them, as lab 05 does, with
# `HOROVOD_AUTOTUNE=1`.

# %%
mine = {}  # such as {"no fusion": {"HOROVOD_FUSION_THRESHOLD": "0"}}
if mine:
    print(f"Six rounds of {len(mine) + 1} launches, about 6 s each.", flush=True)
    launches = [dict(ranks=several, variants={"default": variant(several)})]
    launches += [dict(ranks=several, variants={n: variant(several)}, env=mine[n]) for n in mine]
    with load.watch("section 7"):
        show_settings(alternate(launches, 6)[0], "default", mine)

# %% [markdown]
# ## 8 · The run that looks distributed but isn't {read 3, do 8, wait 0.35}
#
# Many tutorials make a Keras script distributed in two lines: wrap the optimizer in `hvd.DistributedOptimizer`, and
# call `fit`. With Keras 2 that was right. Here is the same with today's Keras.

# %%
# %%writefile work/silent.py
"""Look distributed, but train separate networks: mpirun -n 2 python work/silent.py 8000"""

import sys

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import keras
from agree import spread
from plan import shard

from labkit.data import load_digits
from labkit.models import mnist_cnn

hvd.init()
digits = load_digits(n_train=int(sys.argv[1]), n_test=500)
mine = shard(len(digits.x_train), hvd.rank(), hvd.size())

keras.utils.set_random_seed(0)  # the same start on every rank
model = mnist_cnn()
model.compile(
    optimizer=hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.02, momentum=0.9)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
past = model.fit(digits.x_train[mine], digits.y_train[mine], batch_size=64, epochs=2, verbose=0)
print("loss by epoch:", *(f"{loss:.3f}" for loss in past.history["loss"]))
print(f"largest difference between any two ranks' weights: {spread(model)}")

# %%
if not QUICK:
    print("Two epochs on 2 ranks: about 8 s.", flush=True)
    run_ranks(2, "work/silent.py", n_train, threads=1)

# %% [markdown]
# There is no error and no warning, and the loss falls. But the last lines show two different networks. Horovod's
# optimizer does its all-reduce in `_compute_gradients`, which Keras 2 called; Keras 3 calls only `apply_gradients`, so
# nothing is ever reduced. Each rank learned from half of the digits.
#
# ### Exercise 5 · Repair it, and keep `fit`
#
# Keras lets you replace what `fit` does in a step: a model's `train_step`. Write it with the tape of step 4. Do step 5
# as well, since the ranks start with different weights here. The check runs it on 3 ranks, for at most three minutes.

# %%
# %%writefile work/fit_hvd.py
"""Keras' fit, really distributed: mpirun -n 2 python work/fit_hvd.py"""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from agree import spread
from plan import shard
from train_helpers import start_up

from labkit.models import mnist_cnn


class DistributedModel(keras.Model):
    """A model that averages its gradients over all ranks in fit."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        # Horovod: average this step's gradients over all ranks; apply them: self.optimizer.
        ### BEGIN SOLUTION
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [v.value for v in self.trainable_variables])
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        ### END SOLUTION
        for metric in self.metrics:
            metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


def main(argv=None):
    args, digits = start_up(__doc__, argv)
    hvd.init()
    mine = shard(len(digits.x_train), hvd.rank(), hvd.size())

    keras.utils.set_random_seed(hvd.rank())  # different weights on each rank, on purpose
    cnn = mnist_cnn()
    model = DistributedModel(cnn.inputs, cnn.outputs)
    optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss)
    # Horovod: give every rank the weights of rank 0.
    ### BEGIN SOLUTION
    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)
    ### END SOLUTION

    data = (digits.x_train[mine], digits.y_train[mine])
    past = model.fit(*data, batch_size=args.batch, epochs=args.epochs, verbose=0)
    difference = spread(model)
    if hvd.rank() == 0:
        print("loss by epoch:", *(f"{loss:.3f}" for loss in past.history["loss"]))
        print(f"largest difference between any two ranks' weights: {difference}")
    return model, optimizer


if __name__ == "__main__":
    main()


# %% tags=["nbval-check-output"]
fit_hvd = check(5, "work/fit_hvd.py")

# %%
if not QUICK:  # a small run leaves it to the check
    print("Two epochs on 2 ranks: about 8 s.", flush=True)
    run_ranks(2, fit_hvd, "--digits", n_train, "--epochs", 2, threads=1)

# %% [markdown]
# ## 9 · When a rank dies {read 2, wait 0.15, optional}
#
# On a cluster, ranks die: they run out of memory, or a node fails. The others then wait in their next all-reduce for a
# rank that will never come. `run_ranks` ends them all, and shows the last lines of the one that died.

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

# %%
try:
    run_ranks(2, "work/dies.py", threads=1)
except RankError as error:
    print(f"RankError: {error}")

# %% [markdown]
# So a long training run saves its state regularly. Yours does, on rank 0, and `--resume` continues from there, on any
# number of ranks: rank 0 reads the file, and step 5 sends its contents to all.

# %%
out = work / "ranks-2"
if not QUICK:
    print("One more epoch, from the checkpoint of section 5: about 8 s.", flush=True)
    arguments = ("--digits", n_train, "--epochs", epochs + 1, "--out", out, "--resume")
    run_ranks(2, train_hvd, *arguments, threads=1)
    assert json.loads((out / "log.json").read_text())["spread"] == 0.0

# %% [markdown]
# ## 10 · Ranks, threads and cores {read 6, do 8, wait 0.8, optional}
#
# Step 2 gives each rank its own cores. This is [**pinning**](../docs/glossary.md#pinning), and it goes wrong without an
# error: two ranks on one core just make a run slow. Here are four reports from a node with four cores. Each core has
# two [**hyperthreads**](../docs/glossary.md#core), which the kernel counts as two CPUs: 0 and 4 are core 0, 1 and 5
# core 1, and so on. Which runs would you stop?
#
# | | launcher, and how to ask it | report | threads per rank |
# | --- | --- | --- | --- |
# | a | Intel MPI: `I_MPI_DEBUG=5` | `0 20411 node1 {0,4}`, `1 20412 node1 {1,5}` (rank, process, node, CPUs) | 2 |
# | b | Open MPI 4: `--report-bindings` | rank 0 `[BB/../../..]`, rank 1 `[../BB/../..]`, and so on for 4 ranks | 1 |
# | c | MPICH's Hydra: `HYDRA_TOPO_DEBUG=1` | `process 0 binding: 10000000`, `process 1 binding: 00001000` | 1 |
# | d | the kernel: `/proc/self/status` | `Cpus_allowed_list: 0-7` on each of 2 ranks | 4 |
#
# In (b), a B is a hyperthread on which the rank may run. In (c), each digit is a CPU.

# %% [markdown]
# ### Exercise 6 · Who shares a core?
#
# Formats differ, but all report the same: a **mask** for each rank, the set of CPUs on which it may run. Write
# `pinning(masks, cores, threads)`. `masks[r]` is the set of CPUs of rank `r`. `cores[c]` is a tuple of the CPUs of core
# `c`; each CPU in a mask belongs to one of them. `threads` is the number of busy threads per rank. It returns three
# sets:
#
# - the pairs of ranks `(a, b)`, with `a < b`, that may run on the same **core**;
# - the ranks that have more threads than their mask has **cores**: their threads take turns;
# - the numbers of the cores on which no rank may run.


# %%
def pinning(masks, cores, threads):
    """Return pairs of ranks that share a core, ranks with too many threads, and idle cores."""
    ### BEGIN SOLUTION
    used = [{c for c, cpus in enumerate(cores) if mask & set(cpus)} for mask in masks]
    ranks = range(len(masks))
    sharing = {(a, b) for a in ranks for b in ranks if a < b and used[a] & used[b]}
    crowded = {rank for rank in ranks if threads > len(used[rank])}
    return sharing, crowded, set(range(len(cores))) - set().union(*used)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
pinning = check(6, pinning)

# %% [markdown]
# What does your function find in the four reports?

# %% tags=["nbval-check-output"]
node = [(0, 4), (1, 5), (2, 6), (3, 7)]
reports = {
    "a": ([{0, 4}, {1, 5}], 2),
    "b": ([{0, 4}, {1, 5}, {2, 6}, {3, 7}], 1),
    "c": ([{0}, {4}], 1),
    "d": ([set(range(8)), set(range(8))], 4),
}


def describe_pinning(masks, cores, threads):
    """Return one line on the problems of a pinning."""
    sharing, crowded, idle = pinning(masks, cores, threads)
    shared = f"pairs of ranks that may share a core: {len(sharing)}" if sharing else ""
    turns = f"ranks whose threads take turns: {len(crowded)}" if crowded else ""
    unused = f"idle cores: {len(idle)} of {len(cores)}" if idle else ""
    fine = "each rank has its own cores, and none is idle"
    return "; ".join(filter(None, (shared, turns, unused))) or fine


for name, (masks, threads) in reports.items():
    print(f"{name}: {describe_pinning(masks, node, threads)}")

# %% [markdown]
# In (d), each rank alone has enough cores, but together they have twice as many threads as there are cores, and nothing
# keeps them apart. On your machine, the ranks ask the kernel for their masks. `run_ranks` pins them if there is a core
# for each thread.

# %%
# %%writefile work/masks.py
"""Print the CPUs on which this rank may run.

`grep Cpus_allowed_list /proc/PID/status` shows those of any process.
"""

import json
import os

print(json.dumps(sorted(os.sched_getaffinity(0))))

# %%
for threads in (1, machine.usable_cores):
    masks_run = run_ranks(2, "work/masks.py", threads=threads)
    masks = [set(json.loads(lines[-1])) for lines in masks_run.lines]
    verdict = describe_pinning(masks, machine.cores, threads)
    print(f"2 ranks × {plural(threads, 'thread')}: {verdict}\n")

# %% [markdown]
# ### What does the wrong pinning cost?
#
# TensorFlow starts at least one thread per core. If no one sets the number of threads or pins, each rank does so, as in
# report (d): the cores are [**oversubscribed**](../docs/glossary.md#oversubscription). The next cell alternates that
# with ranks that share the cores fairly.
#
# The talk from 2018 compared 4 ranks × 2 threads with 2 × 2. If you have 8 cores or more, set `grid` to
# `[(2, 2), (4, 2)]`: do twice the cores reach twice the images per second?

# %%
fair = max(1, machine.usable_cores // several)
grid = [(several, fair), (several, machine.usable_cores)]  # ranks, threads per rank
settings = dict.fromkeys(grid)  # without repetitions: on one core, both are the same
launches = [dict(ranks=r, threads=t, variants={f"{r} × {t}": variant(r)}) for r, t in settings]
print(f"{PINNING_ROUNDS * len(launches)} launches, about 12 s each.", flush=True)
with load.watch("section 10"):
    pinned, _ = alternate(launches, PINNING_ROUNDS)


# %% jupyter={"source_hidden": true}
def show_grid(speeds, cores):
    """Print the speed of each `ranks × threads`, and compare the others with the first."""
    reference = next(iter(speeds))
    for name, ratio in statistics.ratios(speeds, reference).items():
        ranks, threads = map(int, name.split(" × "))
        crowded = f" (oversubscribed: {ranks * threads} threads on {plural(cores, 'core')})"
        crowded *= ranks * threads > cores
        print(f"{name}: {np.mean(speeds[name]):,.0f} images/s{crowded}")
        if name != reference:
            print(f"  {Measured(*ratio, '×')} vs {reference}: {ratio.verdict}")


# %%
if pinned:
    show_grid(pinned, machine.usable_cores)

# %% [markdown]
# If the ranks that share fairly are faster, there are two reasons. Oversubscribed threads take turns on the cores, and
# MPI waits by polling, so a rank that waits takes time from one that works.
#
# ### The same on a cluster
#
# The talk started Horovod with Open MPI, on 4 ranks of 10 cores. Here are its options, for two nodes, and MPICH's:
#
# | Open MPI | MPICH | meaning |
# | --- | --- | --- |
# | `-np 4` | `-n 4` | ranks in all |
# | `-H node1:2,node2:2` | `-hosts node1,node2 -ppn 2` | nodes, and ranks on each |
# | `-cpus-per-proc 10 -map-by socket` | `-bind-to core:10 -map-by socket` | cores per rank, sockets in turn |
# | `-x LD_LIBRARY_PATH` | `-genvlist LD_LIBRARY_PATH` | pass a variable to all nodes |
# | `--report-bindings` | `HYDRA_TOPO_DEBUG=1` | print the masks |
#
# Open MPI 5 spells the third row `--map-by socket:PE=10`. With one rank per socket and a thread for each of its cores,
# a common choice, each rank reads its own socket's memory. Under Slurm (lab 08), the job provides the nodes.

# %% [markdown]
# ## 11 · On wires {read 7.5, do 6, wait 1.5, optional}
#
# So far, the gradients went through this machine's memory. On a cluster they go through cables. The kit can put each
# rank on a [**node**](../docs/glossary.md#node) of its own: here, a part of this machine's Linux that has only one
# network interface (a *network namespace*). A cable leads from it to a switch, and carries at most the rate that you
# ask for, in each direction.
#
# **Only the wires are emulated.** The nodes share this machine's cores, caches and memory. If there are more nodes than
# cores, they take turns and compute more slowly. The limit, the same ranks side by side without Horovod, is measured on
# the same nodes, so it includes this slowdown.

# %%
no_wires = obstacle()
print(f"Not here: {no_wires}" if no_wires else "A network can be made here.")

# %% [markdown]
# Two changes may help:
#
# | change | how | what it costs |
# | --- | --- | --- |
# | FP16 | `hvd.Compression.fp16`: gradients travel as 16-bit numbers (lab 04) | conversion time and precision |
# | 4 batches | the gradients of 4 batches are added up, then averaged once | a quarter of the steps in an epoch |
#
# The second is [**gradient accumulation**](../docs/glossary.md#gradient-accumulation).
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The gradients are 1.7 MB, each step of a rank has 64 images, and section 5 printed the images per
# second of one rank. On 2 nodes with wires of 100 Mbit/s, what share of the images per second of *side by side*
# remains?
#
# And on 4 nodes: with FP16, what share of the bytes of FP32 does each node send?
#
# </div>

# %%
results.guess(4, "images/s on 2 nodes, 100 Mbit/s, vs side by side", ..., unit="%")
results.guess(5, "bytes with FP16 vs FP32, on 4 nodes", ..., unit="%")

# %% [markdown]
# `work/compare.py` runs again, with all rounds in one launch. Each case first prints the rate that a transfer reached.

# %%
CHANGES = ("FP16", "4 batches")


def on_wires(case, nodes, steps, rounds, changes=CHANGES):
    """Return the results of work/compare.py on nodes with wires; `case` ends in the rate."""
    if nodes > machine.usable_cores:  # compute little, so that the wire stays the limit
        changes = set(changes) - {"4 batches"}
    alone = 16 if nodes <= machine.usable_cores else 4  # steps
    variants = {
        "one rank": variant(1, horovod=False, steps=alone),
        "side by side": variant(nodes, horovod=False, steps=alone),
        "default": variant(nodes, steps=steps),
        "FP16": variant(nodes, steps=steps, fp16=True),
        "4 batches": variant(nodes, steps=max(2, steps // 4), every=4),
    }
    left_out = set(CHANGES) - set(changes)
    chosen = {name: variants[name] for name in variants if name not in left_out}
    files = (work / "variants.json", work / "speeds.json")
    files[0].write_text(json.dumps(chosen))
    options = {"threads": 1, "network": case.partition(", ")[2], "show": False}
    run = run_ranks(nodes, "work/compare.py", *files, rounds, "bytes", **options)
    print("\n".join(filter(None, [run.network, run.warning])), flush=True)
    return json.loads(files[1].read_text()) | {"nodes": nodes}


wired = {}
with load.watch("section 11") as wired_others:
    for case, size in ({} if no_wires else WIRE_CASES).items():
        print(f"{case}: up to 40 s.", flush=True)
        wired[case] = on_wires(case, *size, WIRE_ROUNDS)


# %% jupyter={"source_hidden": true}
def show_wires(wired):
    """Print the efficiency in each case, its limit, and what averaging costs."""
    for case, outcome in wired.items():
        of_one = statistics.ratios(outcome["speeds"], "one rank")
        reached = statistics.ratios(outcome["speeds"], "side by side")["default"]
        print(f"{case}: efficiency {percent(of_one['default'], outcome['nodes'])}")
        limit = percent(of_one["side by side"], outcome["nodes"])
        print(f"  the same ranks side by side: {limit}")
        print(f"  {cost_of(reached)}")


def show_changes(wired):
    """Print the effect of each change in each case."""
    print("images/s with each change:")
    for change in CHANGES:
        for case, outcome in wired.items():
            if change in outcome["speeds"]:
                ratio = statistics.ratios(outcome["speeds"], "default")[change]
                gain = Measured(*ratio, "×")
                print(f"{change:9}  {case:19}  {gain} vs the default: {ratio.verdict}")


def wire_rows(wired, others, obstacle):
    """Return this section's rows for the closing table."""
    if not wired:
        return [("weak, on wires", "", f"not here: {obstacle}", "")]
    rows = []
    for case, outcome in wired.items():
        of_one = statistics.ratios(outcome["speeds"], "one rank")
        pair = (of_one["default"], of_one["side by side"])
        reached, limit = (percent(ratio, outcome["nodes"]) for ratio in pair)
        in_use = min(outcome["nodes"], machine.usable_cores)
        name = f"weak: this CNN, {case}, on {plural(in_use, 'core')}"
        above = "averaging can't make ranks faster, so run section 11 again"
        rows.append((name, "", reached, Limit(limit, above), others))
    return rows


# %%
if wired:
    show_wires(wired)
    show_changes(wired)
else:
    print(f"Not measured, as there are no wires here: {no_wires}")
results.hand_in("11", *wire_rows(wired, wired_others, no_wires))
if slow := wired.get("2 nodes, 100 Mbit/s"):
    remains = statistics.ratios(slow["speeds"], "side by side")["default"]
    results.compare_guess(4, percent(remains))

# %% jupyter={"source_hidden": true}
if wired:
    figure, axis = plt.subplots(figsize=(8, 4.5))
    summary = []
    for shift, name in enumerate(("default", *CHANGES)):
        shares = {
            place: statistics.ratios(outcome["speeds"], "side by side")[name]
            for place, outcome in enumerate(wired.values())
            if name in outcome["speeds"]
        }
        value, low, high = 100 * np.array([*shares.values()]).T
        errors = np.nan_to_num([value - low, high - value])
        places = np.array([*shares]) + 0.16 * (shift - 1)
        axis.errorbar(places, value, yerr=errors, fmt="osD"[shift], capsize=4, label=name)
        summary += [f"{name}, {[*wired][place]}: {percent(shares[place])}" for place in shares]
    axis.set_xticks(range(len(wired)), [case.replace(", ", "\n") for case in wired])
    axis.set(ylabel="images/s (% of side by side)", ylim=(0, None), title="Horovod on wires")
    axis.set(xlabel="nodes, and rate of their wires")
    axis.legend()
    plots.show(
        figure,
        alt="Images per second as a share of those of the same ranks side by side, with 95% "
        f"intervals if there are several rounds: {'; '.join(summary)}.",
        keep=results,
        watched=[wired_others],
    )

# %% [markdown]
# ### What is on the wire
#
# Each node's interface counts the bytes that it sends. They show which kind of algorithm MPI used. For gradients of *S*
# bytes on *n* nodes, there are two candidates:
#
# - a **ring** sends `2 × (n - 1) / n × S`, less than twice *S*; recursive halving (lab 06) sends the same;
# - [**recursive doubling**](../docs/glossary.md#recursive-doubling) sends *S* in each of its `log2(n)` steps.
#
# In FP16, *S* is half. Packet headers add about 5%. (Fast wires carry many packets at once here, and count only the
# first header.)


# %% jupyter={"source_hidden": true}
def ring(nodes):
    """Return the bytes that a node sends in a ring, as a multiple of the gradients'."""
    return 2 * (nodes - 1) / nodes


def show_bytes(wired):
    """Print a node's bytes per step, and those of a ring and of recursive doubling."""
    print(f"{'MB per node and step':29} {'sent':>6} {'ring':>6} {'doubling':>9}")
    for case, outcome in wired.items():
        for name, share in (("default", 1), ("FP16", 1 / 2)):
            size = share * outcome["gradients"] / 1e6
            sent = np.mean(outcome["sent"][name]) / 1e6
            in_ring, doubling = ring(outcome["nodes"]) * size, math.log2(outcome["nodes"]) * size
            nearer = "ring" if abs(sent - in_ring) < abs(sent - doubling) else "doubling"
            verdict = f"nearer to {nearer}" if outcome["nodes"] > 2 else "on 2 nodes, the same"
            print(f"{case:19} {name:9} {sent:6.2f} {in_ring:6.2f} {doubling:9.2f}  {verdict}")


def share_of_bytes(outcome):
    """Return the bytes that a node sends with FP16, as a ratio to those without."""
    return statistics.ratio(*(outcome["sent"][name] for name in ("FP16", "default")))


# %%
if wired:
    show_bytes(wired)
if four := wired.get("4 nodes, 25 Mbit/s"):
    results.compare_guess(5, percent(share_of_bytes(four)))

# %% [markdown]
# MPI's standard has no 16-bit floating-point numbers, so Horovod defines its own operation that adds them. For
# operations that are not MPI's own, MPICH uses recursive doubling. So FP16 sends `½ × log2(n)` times the FP32 bytes of
# the gradients, and FP32 sends `2 × (n - 1) / n` times. The next picture draws both up to 64 nodes.

# %% jupyter={"source_hidden": true}
numbers = np.array([2, 4, 8, 16, 32, 64])
figure, axis = plt.subplots(figsize=(8, 4))
for label, sends in (
    ("FP32, ring", ring(numbers)),
    ("FP16, doubling: MPICH", np.log2(numbers) / 2),
    ("FP16, ring", ring(numbers) / 2),
):
    axis.plot(numbers, sends, label=label)
summary = []
for name, label, marker in (("default", "FP32", "P"), ("FP16", "FP16", "X")):
    points = [(o["nodes"], np.mean(o["sent"][name]) / o["gradients"]) for o in wired.values()]
    if points:
        style = dict(color=plots.BLACK, label=f"measured: {label}", zorder=3)
        axis.plot(*zip(*points, strict=True), marker, **style)
    summary += [f" Measured: {label}, {nodes} nodes: {sent:.2f}." for nodes, sent in points]
axis.set_xscale("log", base=2)
axis.set_xticks(numbers, numbers)
axis.set(xlabel="nodes", ylabel="bytes a node sends\n(× the FP32 gradients)", ylim=(0, None))
axis.set_title("What FP16 saves")
axis.legend(fontsize=10)
plots.show(
    figure,
    alt="Bytes that a node sends in a step against the number of nodes, 2 to 64, as a multiple "
    "of the FP32 gradients. FP32 in a ring rises from 1 towards 2. FP16 by recursive doubling "
    "rises from 0.5 to 3 and crosses it between 8 and 16 nodes. FP16 in a ring is half of FP32's."
    + "".join(summary),
)

# %% [markdown]
# By these formulas, FP16 halves the bytes on 2 nodes. On 4 it saves a third, on 8 a seventh, and from 16 nodes on it
# sends *more* than FP32. The library causes that, not FP16: NCCL, on GPUs, adds 16-bit numbers itself, so it sends half
# on any number.
#
# ### Exercise 7 · Which network does this training need?
#
# Before you buy a network, you can calculate what it has to carry. Write `half_rate(n_bytes, ranks, seconds)`. It
# returns the **half-efficiency rate** of the wires in **bit/s**: at this rate, half of a step is communication, because
# the all-reduce takes as long as computing the step.
#
# - `n_bytes` are the bytes of the gradients, and `ranks` (2 or more) share them in a ring.
# - `seconds` is the time that each rank needs to compute one step.
# - In a ring, each rank sends a chunk, one rank's share of the gradients, `2 × (ranks - 1)` times in sequence. Its wire
#   carries the rate in each direction, so receiving at the same time costs nothing. Nothing else overlaps, and there is
#   no latency.


# %%
def half_rate(n_bytes, ranks, seconds):
    """Return the bit/s at which the ring all-reduce of a step takes as long as computing it."""
    ### BEGIN SOLUTION
    sent = 2 * (ranks - 1) / ranks * n_bytes
    return 8 * sent / seconds
    ### END SOLUTION


# %% tags=["nbval-check-output"]
half_rate = check(7, half_rate)

# %% [markdown]
# Now test the formula. The seconds come from *side by side* on 2 nodes, and the wires get the rate that you calculated.


# %% jupyter={"source_hidden": true}
def show_prediction(speeds):
    """Print communication's share of a step, predicted and measured."""
    reached = statistics.ratios(speeds, "side by side")["default"]
    share = 100 * (1 - np.array([reached.value, reached.high, reached.low]))
    measured = Measured(*share, "%", digits=0)
    print(Prediction("communication's share of a step", 50, measured))


# %%
if wired:
    outcome = wired["2 nodes, 1 Gbit/s"]
    seconds = 2 * 64 / np.mean(outcome["speeds"]["side by side"])
    rate = half_rate(outcome["gradients"], 2, seconds)
    print(f"{1000 * seconds:.1f} ms of computing in a step: half efficiency", end=" ")
    print(f"at {rate / 1e6:,.0f} Mbit/s")
if wired and PREDICTION_ROUNDS:
    print("Measuring at that rate: about 15 s.", flush=True)
    with load.watch("section 11, the prediction"):
        case = f"2 nodes, {rate / 1e6:.0f} Mbit/s"
        at_rate = on_wires(case, 2, 12, PREDICTION_ROUNDS, changes=())
    show_prediction(at_rate["speeds"])

# %% [markdown]
# Communication can take longer than calculated: headers, the negotiation, waiting for the slower rank, and the cores'
# work for sending are left out. Overlap can make it shorter: the gradients of the last layers can travel while those of
# the first are still being computed. The formula works for any network.
#
# ### Open · If you have time
#
# `run_ranks(4, "work/compare.py", …, nodes=2, network="25 Mbit/s")` puts two ranks on each of 2 nodes. How many bytes
# does a node's wire carry per step now? Is it faster than 4 nodes, and why? Clusters with many ranks per node work like
# this.

# %% [markdown]
# ## Questions {read 2}
#
# Answer each in a sentence or two, from what you saw above. The instructor's notebook has answers.
#
# 1. How do you initialise Horovod, and why is it necessary?
# 2. Why does the learning rate have to change with larger batches?
# 3. How can the learning rate follow the batch size automatically?
# 4. How does a process find out that it is rank 0, or rank 1?
# 5. Why does the number of training steps change with the number of workers, or with larger batches?
# 6. How can the number of steps follow automatically?
# 7. How does one process compare with 2 and with 4 ranks on your machine?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions.
#
# 1. `hvd.init()`. It starts MPI and Horovod's background thread. Before it, a process knows neither its rank nor the
#    size, and has no one to reduce with; `hvd.rank()` raises an error.
# 2. The averaged gradient of *n* batches is about as large as one batch's, only less noisy, and there are 1/*n* as many
#    steps. At the old rate the network would move 1/*n* as far in an epoch. Ask: does the rule hold for any *n*? No:
#    beyond a certain batch size, noise is no longer the limit (lab 08, LARS).
# 3. Make it a function of the step and of `hvd.size()`, and assign it before each step, with a warm-up: exercise 2. In
#    Keras' `fit` it would be a callback or a `LearningRateSchedule`.
# 4. `hvd.rank()` returns it: 0 to `hvd.size() - 1`. By convention, rank 0 writes. `hvd.local_rank()` counts on one
#    machine, and selects its GPU.
# 5. An epoch is a fixed number of digits, and each step now uses `size` batches. With the serial number of steps, 4
#    ranks would train four times as long.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers, continued.
#
# 6. `n // size // batch`, from `hvd.size()`: exercise 3. All ranks must get the same number; otherwise those with an
#    extra step wait forever.
# 7. Section 5 has the answer for your machine. Look at three things: whether ranks beat threads on the same cores,
#    whether more ranks than cores help or hurt, and how many more epochs they need for the same accuracy. Ask: what did
#    it cost in core-seconds?
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** **Timing** Sections 1 to 3 take half an hour, section 4 another 20 minutes: exercise 4 is
# where people need help. Anyone still stuck at minute 55 should continue with the solution: no one should miss section
# 8.
#
# The optional sections 6, 7, 9, 10 and 11 take 40 minutes more. Section 7 needs section 5's rounds.
#
# **Section 5** If the training runs show more than *n* times one rank, let the room find the reason: single runs, one
# after the other. The rounds alternate, and their reference has no Horovod.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** The optional sections, and what goes wrong.
#
# **Exercise 6** Most students compare CPUs, not cores. Report (c) shows the difference: the masks have nothing in
# common, yet the two ranks share core 0. (d) is what you see if no launcher pins.
#
# **Section 11** Nodes share the cores: with 4 nodes on 2 cores, *side by side* cannot exceed half of four times one
# rank, and the wires are not the reason. Ask: how could FP16 halve the bytes on 4 nodes too? With a ring for any
# operation, as in lab 06. If no network can be made, the section's first code cell prints why and what an administrator
# can set; exercise 7 works without one.
#
# **Exercise 7** Students forget that a byte has 8 bits, and that a ring is a reduce-scatter and then an all-gather,
# hence the 2. The error depends on the machine: if a transfer stays below the requested rate, the wire is part of it.
#
# **What goes wrong** A student runs exercise 4 without `plan.py`: the cell after exercise 3's picture writes it. A
# second notebook on the same cores can halve every result.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Six steps: initialise, one device per rank, share and scale, average the gradients, broadcast the start, write on
#   rank 0 only.
# - Learning rate and number of steps follow the size. Begin with a warm-up.
# - All ranks take the same number of steps, or the run hangs. Look for Horovod's *Missing ranks*.
# - Only the weights show that a run is not distributed. Compare them.
# - Bytes of gradients, ranks and seconds of computing determine which network a training run needs.
# - Compare scaling with the same ranks side by side: no library can be faster than those.
# - FP16 halves the bytes on 2 nodes. On more, count them.
#
# What was published, what you measured, and the most that the machine could do:


# %%
same_cores = f"{several} ranks × 1 thread vs 1 process × {several} threads, same cores"
on_threads = Measured(*statistics.ratios(scaling, "one process")["weak"], "×") if scaling else ""
results.table(
    "scaling efficiency",
    [
        ("weak: Horovod's benchmarks, ResNet-101 and Inception V3 on 512 GPUs", "90%", "", ""),
        ("weak: the same, VGG-16 on 512 GPUs", "68%", "", ""),
        scaling_row("weak", scaling, several, machine.usable_cores, scaling_others),
        (same_cores, "", on_threads, "", scaling_others),
        *results.handed_in("7", ("strong: the same ranks", "")),
        *results.handed_in("11", ("weak, on wires", "")),
    ],
)

# %% [markdown]
# Published: [Horovod's documentation, Benchmarks](https://horovod.readthedocs.io/en/stable/benchmarks_include.html),
# with a fixed batch on each GPU, in images per second: weak scaling. The limit is the same ranks side by side, without
# Horovod.
#
# The steps so far, over all labs that you have run:

# %%
ladder.show(results)

# %% [markdown]
# **Next:** [lab 08](08_cluster.ipynb) takes the same six steps to ResNet-50 on a cluster. For long runs, *elastic*
# Horovod continues when ranks come and go.
