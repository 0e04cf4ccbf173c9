# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 07 · Horovod on an MNIST CNN
#
# **You will** take a training script that runs in one [**process**](../docs/glossary.md#process), make it run on many
# with [**Horovod**](../docs/glossary.md#horovod), and prove that it really does. You will see how much faster it gets
# on your machine, what stops it from getting faster still, and how a run can look distributed without being so.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which looks inside one process that trains the same network; lab 06, which builds an
# all-reduce by hand; and lab 08, which takes these steps to ResNet-50 on a cluster.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
import inspect
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Code

from labkit.data import load_digits
from labkit.display import plots
from labkit.display.measured import Measured
from labkit.exercises import open_lab
from labkit.mpi import RankError, run_ranks
from labkit.system import load, statistics
from labkit.system.paths import ROOT
from labkit.testbed import obstacle

check, results, machine, work = open_lab("07", globals())

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
n_train, epochs = (512, 2) if QUICK else (8_000, 6)  # digits
RANK_COUNTS = (2,) if QUICK else (1, 2, 4)  # section 5: training
SCALING_ROUNDS = 0 if QUICK else 3  # weak and strong scaling
SETTING_ROUNDS = 0 if QUICK else 2  # section 7
THREAD_ROUNDS = 0 if QUICK else 2  # section 10
LEVERS, WIRE_ROUNDS = (("FP16",), 1) if QUICK else (("FP16", "4 batches"), 2)  # section 11
WIRE_CASES = {"2 nodes, 1 Gbit/s": (2, 2 if QUICK else 16)}  # nodes, and the steps of a measurement
if not QUICK:
    WIRE_CASES |= {"2 nodes, 100 Mbit/s": (2, 5), "4 nodes, 1 Gbit/s": (4, 10), "4 nodes, 100 Mbit/s": (4, 4)}
PREDICTION_ROUNDS = 0 if QUICK else 5

# %% [markdown]
# ## 1 · The task: digits and a small network
#
# The kit takes the real MNIST digits if they are on this machine, and scikit-learn's own handwritten digits otherwise.
# It prints which.

# %%
digits = load_digits(n_train=n_train, n_test=n_train // 4)
print(digits.source)

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(2, 10, figsize=(9, 2.2))
for axis, image, label in zip(axes.flat, digits.x_train, digits.y_train, strict=False):
    axis.imshow(image[..., 0], cmap="gray_r")
    axis.set_title(label, fontsize=11)
    axis.axis("off")
plots.show(figure, alt="Twenty handwritten digits of the training set, each with its label above it.")

# %% [markdown]
# The network is small: two convolutions and two dense layers. All labs that use it import it from one place,
# `labkit/models/mnist.py`:

# %%
Code(filename=ROOT / "labkit" / "models" / "mnist.py")

# %% [markdown]
# ## 2 · One process
#
# This script trains it in one process, with a loop of its own instead of Keras' `fit`, so that you can see each step.
# Read it once; you will turn it into a distributed script line by line.

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

    # A graph, as in lab 01. AutoGraph would look for loops and ifs to translate, in Horovod too; there are none.
    @tf.function(autograph=False)
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    train_step.get_concrete_function(digits.x_train[: args.batch], digits.y_train[: args.batch])  # trace now: not timed
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
        print(
            f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {accuracy:.3f}, {steps * args.batch / seconds:,.0f} images/s"
        )


if __name__ == "__main__":
    main()


# %% [markdown]
# `run_ranks` starts it. It prints the [**mpirun**](../docs/glossary.md#mpirun) command that does the same in a
# terminal. Then it shows the lines of each process with its number, its [**rank**](../docs/glossary.md#rank), in front.
# TensorFlow's own start-up messages are left out. The first [**epoch**](../docs/glossary.md#epoch) is slower:
# TensorFlow prepares its kernels and touches its memory for the first time.

# %%
if not QUICK:
    with load.watch("section 2"):
        run_ranks(1, "work/serial.py", "--digits", n_train, "--epochs", 3)

# %% [markdown]
# ## 3 · What changes with many processes
#
# With Horovod, *every* rank runs the *whole* script, with its own copy of the network and its own share of the digits:
# this is [**data parallelism**](../docs/glossary.md#data-parallelism). One thing makes it one training run and not
# many: after each step the ranks average their [**gradients**](../docs/glossary.md#gradient), so every copy takes the
# same step. The average comes from an [**all-reduce**](../docs/glossary.md#all-reduce), without a
# [**parameter server**](../docs/glossary.md#parameter-server). If the all-reduce is a
# [**ring**](../docs/glossary.md#ring), each rank sends about twice the size of the gradients, however many ranks there
# are.
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
#
# Six steps turn the serial script into a distributed one:
#
# | | step | why |
# | --- | --- | --- |
# | 1 | `hvd.init()` | starts [**MPI**](../docs/glossary.md#mpi); then a process knows `hvd.rank()` and `hvd.size()` |
# | 2 | one device for each rank | ranks that share cores slow each other down; here `mpirun -bind-to` pins them |
# | 3 | a share of the digits; learning rate and steps that follow the size | the global batch grows with the ranks |
# | 4 | `hvd.DistributedGradientTape` | averages the gradients |
# | 5 | [**broadcast**](../docs/glossary.md#broadcast) the start from rank 0 | copies stay equal if they start equal |
# | 6 | [**checkpoints**](../docs/glossary.md#checkpoint) and reports on rank 0 only | two writers destroy a file |
#
# Horovod's last release, 0.28.1, is of June 2023. The lab uses it because its six steps are all there is to see, and
# because they are the same elsewhere: PyTorch's `DistributedDataParallel` does steps 4 and 5 when it wraps the network,
# `init_process_group` is step 1, `DistributedSampler` is step 3's share, and steps 2 and 6 stay yours.
#
# Step 3 is arithmetic. You write it first, as three small functions. The scripts run in processes of their own, so the
# functions will move into a module that they import, `work/plan.py`. There, each function can use `math`, numpy as `np`
# and the functions of the exercises before it, but nothing else from this notebook.

# %% [markdown]
# ### Exercise 1 · Who trains on what?
#
# Write `shard(n, rank, size)`. It returns the indices, out of `range(n)`, that this rank trains on, as a list or an
# array of ints. `size` is the [**world size**](../docs/glossary.md#world-size), the number of ranks. The scripts pick
# digits with them: `digits.x_train[shard(n, rank, size)]`.
#
# - No two ranks share an index.
# - **All ranks get equally many**, so the `n % size` left over are dropped. Before you read the hint, think about the
#   reason: what happens at a rank's next all-reduce when another rank has run out of batches?


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
# single batch's gradient, but no longer. An epoch now has a quarter of the steps, so at the old rate the weights would
# move only a quarter of the way. The **linear scaling rule** makes each step `size` times as long. At the very start
# the gradients change quickly, and such long steps overshoot. So the
# [**learning rate**](../docs/glossary.md#learning-rate) begins with a [**warm-up**](../docs/glossary.md#warm-up): it
# rises from the rate for one rank to the rate for all ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)).
#
# Write `learning_rate(step, base, size, warmup)`: `base` at step 0, then in a straight line to `base * size` at step
# `warmup`, and constant from there. With `warmup = 0` it is `base * size` from the first step. It returns a float.


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
# In one epoch, each digit is seen once, by one of the ranks. Write `steps_per_epoch(n, batch, size)`: how many steps
# each rank takes in one epoch, when each step takes `batch` digits from the rank's share of exercise 1. Only whole
# batches count. It returns an int, for `range`.


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
    per_epoch = steps_per_epoch(8_000, 64, size)
    steps = np.arange(6 * per_epoch)
    rates = [learning_rate(step, 0.01, size, warmup=2 * per_epoch) for step in steps]
    axis.plot(
        steps, rates, markevery=len(steps) // 6, label=f"{size} {'rank' if size == 1 else 'ranks'}: {len(steps)} steps"
    )
axis.set(xlabel="step", ylabel="learning rate", title="Six epochs over 8,000 digits, 64 a rank and step")
axis.legend()
plots.show(
    figure,
    alt="Learning rate against step. One rank: constant 0.01 for 750 steps. Two ranks: a ramp from 0.01 to 0.02, "
    "372 steps in all. Four ranks: a ramp from 0.01 to 0.04, 186 steps in all.",
)

# %% [markdown]
# Now the three functions move into the module that the scripts import.

# %% tags=["nbval-check-output"]
functions = [inspect.getsource(function) for function in (shard, learning_rate, steps_per_epoch)]
(work / "plan.py").write_text("\n\n".join(["import math\n\nimport numpy as np\n", *functions]))
print((work / "plan.py").read_text())

# %% [markdown]
# ## 4 · Trust nothing: compare the weights
#
# If a gradient is not averaged, or the start is not broadcast, nothing crashes. Each rank trains a network of its own,
# the loss falls, the accuracy is fine, and all ranks but one worked for nothing. But one thing can't look right in such
# a run: the **weights of the ranks differ**. So every distributed run in this lab ends with this measurement.

# %%
# %%writefile work/agree.py
"""Measure how far apart the ranks' weights are."""

import horovod.tensorflow as hvd
import tensorflow as tf


def spread(model):
    """Return the largest difference between any two ranks in any weight: 0.0 if all hold the same model."""
    weights = tf.concat([tf.reshape(v.value, [-1]) for v in model.trainable_variables], axis=0)
    highest = hvd.allreduce(weights, op=hvd.Max, name="highest")
    lowest = hvd.allreduce(weights, op=hvd.Min, name="lowest")
    return float(tf.reduce_max(highest - lowest))


# %% [markdown]
# ### Exercise 4 · The distributed script
#
# Here is the serial script once more, with what distribution adds. Each such place starts with `# Horovod:` and says
# what is needed; six are yours to write. The others are done: read them too, they hold answers to the questions below.
# What has nothing to do with the six steps is in a module of its own, which comes first.
#
# Two things are special in Keras 3. Horovod needs TensorFlow's variables, and Keras wraps them: `v.value` unwraps one.
# And `horovod.keras` was written for Keras 2 and does not work here; `horovod.tensorflow` does.

# %%
# %%writefile work/train_helpers.py
"""What train_hvd.py needs besides the six steps: arguments, model, batches, checkpoint, test and log."""

import argparse
import json
from pathlib import Path

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
    parser.add_argument("--digits", type=int, default=8000, help="how many to train on, over all ranks")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64, help="digits in a step, of each rank")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate that suits one rank")
    parser.add_argument("--warmup", type=int, default=2, help="epochs until the full learning rate")
    parser.add_argument("--out", type=Path, default=Path("work/run"), help="folder of log and checkpoint")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out")
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


def evaluate(model, digits, epoch, loss, seconds, images):
    """Return the results of an epoch, the same on every rank."""
    # Horovod: each rank tests its share, and a sum over the ranks gives one result for all.
    tested = shard(len(digits.x_test), hvd.rank(), hvd.size())
    correct = np.sum(model.predict_on_batch(digits.x_test[tested]).argmax(axis=1) == digits.y_test[tested])
    total = hvd.allreduce(tf.constant([correct, len(tested), loss], tf.float64), op=hvd.Sum, name="metrics").numpy()
    means = {"accuracy": total[0] / total[1], "loss": total[2] / hvd.size()}
    return {"epoch": epoch + 1, "seconds": seconds, "images_per_second": images / seconds} | means


def prove(model, history, out):
    """Compare the weights of all ranks; on rank 0, print the difference and write the log."""
    difference = spread(model)  # Horovod: every rank takes part in it, rank 0 reports
    if hvd.rank() == 0:
        print(f"largest difference between any two ranks' weights: {difference}")
        since_start = np.cumsum([entry["seconds"] for entry in history])
        history = [entry | {"seconds": float(seconds)} for entry, seconds in zip(history, since_start)]
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
    # Horovod: step 1. Start MPI, and ask which of how many processes this one is: set `rank` and `size`.
    ### BEGIN SOLUTION
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    ### END SOLUTION
    # Horovod: step 2. One device for each rank: its cores, bound by `mpirun -bind-to`; or GPU hvd.local_rank().
    # Horovod: step 3. Only this rank's share of the training digits: set `x` and `y`, with shard().
    ### BEGIN SOLUTION
    mine = shard(len(digits.x_train), rank, size)
    x, y = digits.x_train[mine], digits.y_train[mine]
    ### END SOLUTION
    steps = steps_per_epoch(len(digits.x_train), args.batch, size)
    model, optimizer, loss_of = build(args.lr, seed=rank)  # different weights on each rank: step 5 has to mend it

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
    # Horovod: step 5. Give every rank what rank 0 starts from: the model's variables, the optimizer's, and `done`.
    ### BEGIN SOLUTION
    hvd.broadcast_variables([v.value for v in model.variables + optimizer.variables] + [done], root_rank=0)
    ### END SOLUTION
    train_step.get_concrete_function(x[: args.batch], y[: args.batch])  # trace now, so that no epoch pays for it
    history = []
    for epoch in range(int(done), args.epochs):
        start = perf_counter()
        for step, (images, labels) in enumerate(batches(x, y, args.batch, steps, epoch)):
            # Horovod: step 3 again. The learning rate of this step, with learning_rate() and a warm-up of
            # args.warmup * steps steps: assign it to optimizer.learning_rate. It counts steps since the first epoch.
            ### BEGIN SOLUTION
            optimizer.learning_rate.assign(learning_rate(epoch * steps + step, args.lr, size, args.warmup * steps))
            ### END SOLUTION
            loss = train_step(images, labels)
        history.append(evaluate(model, digits, epoch, float(loss), perf_counter() - start, steps * args.batch * size))
        done.assign(epoch + 1)
        # Horovod: step 6. Save and report on rank 0 alone: `checkpoint.write(str(args.out / "checkpoint"))`, and
        # print a line with the epoch, the loss and the accuracy that history[-1] holds.
        ### BEGIN SOLUTION
        if rank == 0:
            checkpoint.write(str(args.out / "checkpoint"))
            print(
                "epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.3f}, {images_per_second:,.0f} images/s".format(
                    **history[-1]
                )
            )
        ### END SOLUTION
    prove(model, history, args.out)
    return model, optimizer


if __name__ == "__main__":
    main()


# %% [markdown]
# The check calls your script's `main` on 3 ranks for a few steps. One step of 3 ranks must be, up to rounding in
# float32, one step of a single process on all their digits. That is the definition of "distributed". A second call
# continues from the checkpoint of the first (`--resume`), which only rank 0 has, with several steps in each epoch. All
# of it may take three minutes, and a single line 20 s.

# %% tags=["nbval-check-output"]
train_hvd = check(4, "work/train_hvd.py")

# %% [markdown]
# ## 5 · 1, 2 and 4 ranks
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as many images per second do 2 ranks give as 1? And 4? Write it down.
#
# </div>
#
# Each rank gets one thread here, so that only the number of ranks changes. `run_ranks` sets `OMP_NUM_THREADS=1`, as job
# scripts of clusters often do, and the two variables that this TensorFlow reads instead. Horovod also records what it
# does, for the next section; that costs about 1%. The three runs take about 45 s.

# %%
runs = {}
with load.watch("section 5, training"):
    for ranks in RANK_COUNTS:
        out = work / f"ranks-{ranks}"
        out.mkdir(exist_ok=True)
        timeline = {"HOROVOD_TIMELINE": str(out / "timeline.json")}
        run_ranks(ranks, train_hvd, "--digits", n_train, "--epochs", epochs, "--out", out, threads=1, env=timeline)
        runs[ranks] = json.loads((out / "log.json").read_text())
        assert runs[ranks]["spread"] == 0.0, "the ranks trained different models"

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
for ranks, run in runs.items():
    seconds = [entry["seconds"] for entry in run["history"]]
    accuracy = [100 * entry["accuracy"] for entry in run["history"]]
    axis.plot([0, *seconds], [10, *accuracy], label=f"{ranks} {'rank' if ranks == 1 else 'ranks'}")  # 10%: guessing
axis.set(xlabel="seconds of training", ylabel="test accuracy (%)", title="Time to accuracy, one thread a rank")
axis.legend()
last = "; ".join(
    f"on {ranks}, {100 * run['history'][-1]['accuracy']:.1f}% after {run['history'][-1]['seconds']:.1f} s"
    for ranks, run in runs.items()
)
plots.show(
    figure,
    alt=f"Test accuracy against seconds of training, one line for each number of ranks: {last}.",
    keep=results,
)
if max(runs) > machine.usable_cores:
    print(f"Beyond {machine.usable_cores} ranks this machine has no more cores: more ranks share them, and take turns.")

# %% [markdown]
# Images per second alone can mislead: more ranks take fewer, longer steps. A run that is twice as fast but learns half
# as much per epoch has gained nothing. [**Time to accuracy**](../docs/glossary.md#time-to-accuracy) includes both.
#
# ### Weak and strong scaling, and their limit
#
# The [**scaling efficiency**](../docs/glossary.md#scaling-efficiency) asks how much of the added cores' work arrived:
# the images per second of *n* ranks over *n* times those of one rank. There are two of them, and a published figure
# means little without the word:
#
# - [**Weak scaling**](../docs/glossary.md#weak-scaling): each rank takes 64 digits per step, as above. The global batch
#   grows with the ranks.
# - [**Strong scaling**](../docs/glossary.md#strong-scaling): the global batch stays at 64, and each rank takes its part
#   of it. Each step gets shorter, but the gradients that it averages stay as large.
#
# Which part of the loss is Horovod's? Ranks on one machine share its memory, its caches and its clock, so they slow
# each other down even if they exchange nothing. That is measured too: the same ranks on the same cores train **side by
# side**, each for itself, without Horovod. This is the limit: no averaging, however good, gets beyond it.
#
# The next script measures one launch: some ways of taking a training step, with or without Horovod. You need not read
# all of it; `measure` is its heart.

# %%
# %%writefile work/compare.py
"""Measure ways of taking a training step: mpirun -n 2 python work/compare.py WAYS.json SPEEDS.json"""

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

IMAGES, WARM_UP, TIMES = 2048, 3, 2  # of each rank in a measurement; steps before it; measurements of each way
world = MPI.COMM_WORLD
digits = load_digits(n_train=IMAGES, n_test=10)
model = mnist_cnn()
optimizer = keras.optimizers.SGD(0.0, momentum=0.9)  # as much work as at any rate, and the weights stay as they are
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_step(horovod):
    @tf.function(autograph=False)
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape) if horovod else tape
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    return step


def meet():
    """Wait for all ranks, asleep: MPI's own barrier would keep the core of a waiting rank busy."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)


def measure(step, batch, active):
    """Return the images per second of the active ranks together; the other ranks sleep meanwhile."""
    steps = IMAGES // batch
    batches = [slice(i * batch, (i + 1) * batch) for i in range(steps if world.rank < active else 0)]
    for mine in batches[:WARM_UP]:
        step(digits.x_train[mine], digits.y_train[mine])
    meet()
    start = time.perf_counter()
    for mine in batches:
        step(digits.x_train[mine], digits.y_train[mine])
    seconds = time.perf_counter() - start
    meet()
    return active * steps * batch / world.allreduce(seconds, op=MPI.MAX)


def main():
    horovod, ways = json.loads(Path(sys.argv[1]).read_text())
    if horovod:  # otherwise not even started, since its thread would take time
        hvd.init()
    optimizer.build(model.trainable_variables)
    step = make_step(horovod)
    speeds = {name: [] for name in ways}
    for _ in range(TIMES):
        for name, (active, batch) in ways.items():
            speeds[name].append(measure(step, batch, active))
    if world.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps({name: sum(found) / TIMES for name, found in speeds.items()}))


if __name__ == "__main__":
    main()


# %% [markdown]
# A round has each launch once, so that a slow minute of the machine affects all of them. A relaunch is another sample
# (the steps of one share its memory and the places of its threads), so how well the rounds agree gives the 95%
# confidence interval of each ratio. This takes about 45 s.

# %%
several = max(2, min(4, machine.usable_cores))


def launch(ranks, ways, horovod=True, threads=1, env=None):
    """Return the images per second of each way, {name: (active ranks, batch of each)}, from one launch."""
    files = (work / "ways.json", work / "speeds.json")
    files[0].write_text(json.dumps([horovod, ways]))
    run_ranks(ranks, "work/compare.py", *files, threads=threads, env=env, show=False)
    return json.loads(files[1].read_text())


def compare(launches, rounds):
    """Return the images per second of each way, round by round."""
    speeds = {}
    for options in launches * rounds:
        for name, speed in launch(**options).items():
            speeds.setdefault(name, []).append(speed)
    return speeds


each = 64 // several
alone = {"one rank": (1, 64), "weak, side by side": (several, 64), "strong, side by side": (several, each)}
averaged = {"weak": (several, 64), "strong": (several, each)}
with load.watch("section 5, weak and strong") as scaling_others:
    launches = [dict(ranks=several, ways=alone, horovod=False), dict(ranks=several, ways=averaged)]
    scaling = compare(launches, SCALING_ROUNDS)


# %%
def percent(ratio, ranks=1):
    """Return a ratio of so many ranks to one as an efficiency, with its interval when there is one."""
    return Measured(*(100 * np.array(ratio) / ranks), "%", digits=0)


def cost_of(reached):
    """Say what averaging costs, by the ratio to the same ranks side by side."""
    words = {
        "slower": f"averaging costs {1 - reached.value:.0%} of the images per second",
        "faster": "averaging cannot make ranks faster, so something else changed: measure again",
    }
    return f"with Horovod they reach {percent(reached)} of that: {words.get(reached.verdict, reached.verdict)}"


def tell_scaling(speeds, ranks):
    """Print each efficiency, its limit, and what averaging costs."""
    of_one = statistics.ratios(speeds, "one rank")
    for way in ("weak", "strong"):
        limit = f"{way}, side by side"
        print(f"{way} scaling on {ranks} ranks: efficiency {percent(of_one[way], ranks)}")
        print(f"  the same ranks side by side: {percent(of_one[limit], ranks)}")
        print(f"  {cost_of(statistics.ratios(speeds, limit)[way])}")
    strong = statistics.ratios(speeds, "weak")["strong"]
    print(f"strong scaling gives {strong} times the images per second of weak scaling: {strong.verdict}")


if scaling:
    print(f"one rank: {np.mean(scaling['one rank']):,.0f} images/s, {len(scaling['one rank'])} rounds")
    tell_scaling(scaling, several)

# %% [markdown]
# Between 100% and *side by side* lies what the ranks share: memory, caches, the clock, and the cores themselves where
# there are fewer cores than ranks. No change of Horovod's settings gets that back. Between *side by side* and the
# efficiency lies the averaging: messages, and waiting for the slowest rank.
#
# The next cell, which is folded, has what sections 6 and 11 draw Horovod's timeline with.

# %% jupyter={"source_hidden": true}
STAGES = {
    "NEGOTIATE_ALLREDUCE": ("negotiated", plots.ORANGE),
    "MEMCPY_IN_FUSION_BUFFER": ("fused: copied in", plots.SKY),
    "MPI_ALLREDUCE": ("reduced", plots.BLUE),
    "MEMCPY_OUT_FUSION_BUFFER": ("fused: copied out", plots.GREEN),
}


def read_timeline(path):
    """Return every gradient's shape and stages, as (stage, start, end) in ms, from a Horovod timeline.

    The file is in Chrome's trace format: a "process" for each tensor, in which a B event begins a stage, an E event
    ends the one begun last, and the end of the whole all-reduce holds the shape.
    """
    events = json.loads(Path(path).read_text())
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name" and "name" in e["args"]}
    gradients = {pid: {"stages": []} for pid, name in names.items() if "DistributedGradientTape" in name}
    begun = {pid: [] for pid in gradients}
    for event in events:
        pid = event["pid"]
        if pid in gradients and event["ph"] == "B":
            begun[pid].append(event)
        elif pid in gradients and event["ph"] == "E":
            begin = begun[pid].pop()
            gradients[pid]["stages"].append((begin["name"], begin["ts"] / 1000, event["ts"] / 1000))
            if "args" in event:
                gradients[pid]["shape"] = json.loads(event["args"]["shape"])
    return sorted(gradients.values(), key=lambda gradient: math.prod(gradient["shape"]))


def draw_last_step(axis, gradients):
    """Draw the stages of each gradient in the last step."""
    # It begins when the first of its gradients begins to be negotiated.
    origin = min(
        max(start for stage, start, _ in gradient["stages"] if stage == "NEGOTIATE_ALLREDUCE") for gradient in gradients
    )
    for row, gradient in enumerate(gradients):
        for stage, start, end in gradient["stages"]:
            if stage in STAGES and start >= origin:
                label, colour = STAGES[stage]
                axis.barh(row, end - start, left=start - origin, color=colour, label=label)


# %% [markdown]
# ## 6 · Where the time goes: the timeline
#
# In the runs above, Horovod wrote a [**timeline**](../docs/glossary.md#timeline) of what it did with every tensor, to
# the file that `HOROVOD_TIMELINE` names. Here is the one of 2 ranks. Each gradient goes through three stages:
#
# - **negotiated**: rank 0 waits until *every* rank has this gradient ready. If one rank is slow, you see it here: the
#   others wait.
# - **fused**: small gradients are copied side by side into one buffer, so that one all-reduce serves many. Afterwards
#   they are copied back.
# - **reduced**: the all-reduce itself, by MPI.

# %% jupyter={"source_hidden": true}
gradients = read_timeline(work / "ranks-2" / "timeline.json")
figure, axis = plt.subplots()
draw_last_step(axis, gradients)
legend = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
figure.legend(legend.values(), legend.keys(), ncols=4, fontsize=11, loc="outside upper center")
labels = [f"{' × '.join(map(str, g['shape']))}: {4 * math.prod(g['shape']):,} bytes" for g in gradients]
axis.set_yticks(range(len(gradients)), labels, fontsize=11)
axis.set(xlabel="ms since the step's first gradient was ready", title="The eight gradients of the last step")
total = {
    name: sum(end - start for gradient in gradients for stage, start, end in gradient["stages"] if stage == name)
    for name in STAGES
}
plots.show(
    figure,
    alt="For each of the eight gradients of the last step, from the smallest to the largest, a bar in time: "
    "negotiated, then fused, reduced and copied back. Over the whole run, negotiation took "
    f"{total['NEGOTIATE_ALLREDUCE']:,.0f} ms summed over gradients, the all-reduce {total['MPI_ALLREDUCE']:,.0f} ms.",
    keep=results,
)

# %% [markdown]
# Read it from the left. The rows go from the smallest gradient to the largest; the gradient of the first dense layer
# has 95% of all bytes. Gradients become ready from the last layer to the first, because back-propagation runs in that
# direction. If the *reduced* bars of several gradients begin and end together, **one** all-reduce carried them all:
# that is fusion. Much of the time is negotiation, and negotiation is waiting: for the other rank to get as far, and for
# Horovod's next cycle, since it looks for ready gradients only once per cycle.
#
# ## 7 · Improve it
#
# Where does the missing efficiency go, and what can you change?
#
# | setting | what it does | when to change it |
# | --- | --- | --- |
# | `--batch` | more work between two all-reduces | make it larger, as long as accuracy and cache allow |
# | `HOROVOD_FUSION_THRESHOLD` | bytes in one fused all-reduce (0: no fusion) | fuse many small gradients |
# | `HOROVOD_CYCLE_TIME` | ms between two looks for ready gradients | for a small model, make it short: less waiting |
#
# Change `settings` and run the cell as often as you like; two rounds of these three launches take about 40 s. For the
# cycle time, add `"cycle 0.1 ms": {"HOROVOD_CYCLE_TIME": "0.1"}`.

# %%
settings = {"no fusion": {"HOROVOD_FUSION_THRESHOLD": "0"}}
launches = [
    dict(ranks=several, ways={"one rank, batch 64": (1, 64), "one rank, batch 256": (1, 256)}, horovod=False),
    dict(ranks=several, ways={"as it is": (several, 64), "batch 256": (several, 256)}),
    *(dict(ranks=several, ways={name: (several, 64)}, env=env) for name, env in settings.items()),
]
with load.watch("section 7"):
    tried = compare(launches, SETTING_ROUNDS)


# %%
def tell_settings(speeds, ranks):
    """Print what each setting is worth, and the efficiency at each batch."""
    for name, ratio in statistics.ratios(speeds, "as it is").items():
        if name != "as it is" and not name.startswith("one rank"):
            print(f"{name:14} {ratio} times as many images per second as it is: {ratio.verdict}")
    small = statistics.ratios(speeds, "one rank, batch 64")["as it is"]
    large = statistics.ratios(speeds, "one rank, batch 256")["batch 256"]
    same = "one round only" if math.isnan(small.low) else "the intervals overlap, so it may be chance"
    words = "higher" if large.low > small.high else "lower" if large.high < small.low else same
    print(f"efficiency at batch 256: {percent(large, ranks)}; at batch 64: {percent(small, ranks)}: {words}")


if tried:
    tell_settings(tried, several)

# %% jupyter={"source_hidden": true}
if tried:
    found = {name: r for name, r in statistics.ratios(tried, "as it is").items() if not name.startswith("one rank")}
    value, low, high = np.array(list(found.values())).T
    figure, axis = plt.subplots()
    axis.errorbar(value, list(found), xerr=(value - low, high - value), fmt="o", capsize=4)
    axis.axvline(1, color=plots.BLACK, linewidth=1)
    axis.invert_yaxis()
    axis.set(xlabel="images/s, as a multiple of those without a change", title=f"Settings, on {several} ranks")
    plots.show(
        figure,
        alt="Images per second with 95% intervals, as a multiple of those without a change: "
        + "; ".join(f"{name} {ratio}" for name, ratio in found.items())
        + ".",
    )

# %% [markdown]
# Compare like with like: a larger batch speeds up one rank, too, so its efficiency is compared with *one rank at batch
# 256*. A larger batch means fewer all-reduces for the same digits. But the data of one step may no longer fit into a
# core's cache, and then each rank is slower. Which effect is stronger here?

# %% [markdown]
# ## 8 · The run that looks distributed and is not
#
# Many tutorials make a Keras script distributed in two lines: wrap the optimizer in `hvd.DistributedOptimizer`, and
# call `fit`. With Keras 2 that was right. Here is the same with today's Keras. It starts, both ranks report, the loss
# falls.

# %%
# %%writefile work/silent.py
"""Look distributed, and not be so: Keras' fit with Horovod's optimizer. mpirun -n 2 python work/silent.py"""

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
    run_ranks(2, "work/silent.py", n_train, threads=1)

# %% [markdown]
# There is no error and no warning, and the loss falls. But the last line shows that there are two different networks.
# Horovod's optimizer does its all-reduce in `_compute_gradients`, which Keras 2 called; Keras 3 calls only
# `apply_gradients`, so nothing is ever reduced. Each rank learned from half of the digits only, and a checkpoint of
# rank 0 would hold half of the work.
#
# ### Exercise 5 · Repair it, and keep `fit`
#
# Keras lets you replace what `fit` does in a step: a model's `train_step`. Write it with the tape of step 4. And do
# step 5, since the ranks start with different weights here. The check runs it on 3 ranks as before, for three minutes
# at most.

# %%
# %%writefile work/fit_hvd.py
"""Keras' fit, really distributed: mpirun -n 2 python work/fit_hvd.py"""

import argparse

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from agree import spread
from plan import shard

from labkit.data import load_digits
from labkit.models import mnist_cnn


class DistributedModel(keras.Model):
    """A model that averages its gradients over all ranks in fit."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        # Horovod: average the gradients of this step over all ranks, and apply them with self.optimizer.
        ### BEGIN SOLUTION
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [v.value for v in self.trainable_variables])
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        ### END SOLUTION
        for metric in self.metrics:
            metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"--digits": 8000, "--epochs": 2, "--batch": 64, "--lr": 0.01}.items():
        parser.add_argument(name, type=type(default), default=default)
    args = parser.parse_args(argv)

    hvd.init()
    digits = load_digits(n_train=args.digits, n_test=args.digits // 4)
    mine = shard(len(digits.x_train), hvd.rank(), hvd.size())

    keras.utils.set_random_seed(hvd.rank())  # different weights on each rank, on purpose
    cnn = mnist_cnn()
    model = DistributedModel(cnn.inputs, cnn.outputs)
    optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # Horovod: give every rank the weights of rank 0.
    ### BEGIN SOLUTION
    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)
    ### END SOLUTION

    past = model.fit(digits.x_train[mine], digits.y_train[mine], batch_size=args.batch, epochs=args.epochs, verbose=0)
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
if not QUICK:  # in a quick run, the check that has just run it is enough
    run_ranks(2, fit_hvd, "--digits", n_train, threads=1)

# %% [markdown]
# ## 9 · When a rank dies
#
# On a cluster, ranks die: they run out of memory, or a node breaks. The others then wait in their next all-reduce for a
# rank that will never come. `run_ranks` ends them all, and shows you the last lines of the one that died. Try it with a
# rank that dies in the middle.

# %%
# %%writefile work/dies.py
"""Rank 1 dies while rank 0 waits for it in an all-reduce."""

import os
import signal

from mpi4py import MPI

ranks = MPI.COMM_WORLD
if ranks.rank == 1:
    print("rank 1 asks for more memory than there is", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # what Linux does to it then
print("the sum is", ranks.allreduce(1))

# %%
try:
    run_ranks(2, "work/dies.py", threads=1)
except RankError as error:
    print(f"RankError: {error}")

# %% [markdown]
# So a long training run saves its state regularly. Yours does, on rank 0, and `--resume` continues from there, on any
# number of ranks: rank 0 reads the file, and step 5 gives its contents to all.

# %%
out = work / "ranks-2"
if not QUICK:
    run_ranks(2, train_hvd, "--digits", n_train, "--epochs", epochs + 1, "--out", out, "--resume", threads=1)
    assert json.loads((out / "log.json").read_text())["spread"] == 0.0

# %% [markdown]
# ## 10 · Ranks, threads and cores
#
# Step 2 gives each rank its own device, here its own cores. This is [**pinning**](../docs/glossary.md#pinning), and it
# goes wrong without an error: two ranks on one core, or eight threads on four cores, only make a run slow. Launchers
# report what they did. Here are four reports of a node with four cores. Each core has two
# [**hyperthreads**](../docs/glossary.md#core), which the kernel counts as two CPUs: CPUs 0 and 4 are core 0, CPUs 1 and
# 5 core 1, and so on. Which runs would you stop at once?
#
# | | launcher, and how to ask it | report | threads of each rank |
# | --- | --- | --- | --- |
# | a | Intel MPI: `I_MPI_DEBUG=5` | `0 20411 node1 {0,4}`, `1 20412 node1 {1,5}` (rank, process, node, CPUs) | 2 |
# | b | Open MPI 4: `--report-bindings` | rank 0 `[BB/../../..]`, rank 1 `[../BB/../..]`, and so on for 4 ranks | 1 |
# | c | MPICH's Hydra: `HYDRA_TOPO_DEBUG=1` | `process 0 binding: 10000000`, `process 1 binding: 00001000` | 1 |
# | d | the kernel: `/proc/self/status` | `Cpus_allowed_list: 0-7` on each of 2 ranks | 4 |
#
# In (b), a slash separates two cores, and a B is a hyperthread on which the rank may run. In (c), each digit is a CPU.
#
# ### Exercise 6 · Who shares a core?
#
# Formats differ, but all say the same: a **mask** for each rank, the set of CPUs on which it may run. Write
# `pinning(masks, cores, threads)`. `masks[r]` is the set of CPUs of rank `r`. `cores[c]` is a tuple of the CPUs that
# are core `c`; each CPU in a mask belongs to one of them. `threads` is how many busy threads each rank has. It returns
# three sets:
#
# - the pairs of ranks `(a, b)`, with `a < b`, that may run on the same **core**;
# - the ranks that have more threads than **cores** of their own mask: their threads take turns;
# - the numbers of the cores on which no rank may run.


# %%
def pinning(masks, cores, threads):
    """Return pairs of ranks that share a core, ranks with too many threads, and cores that nobody may use."""
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
# What does it say of the four reports?

# %% tags=["nbval-check-output"]
node = [(0, 4), (1, 5), (2, 6), (3, 7)]
reports = {
    "a": ([{0, 4}, {1, 5}], 2),
    "b": ([{0, 4}, {1, 5}, {2, 6}, {3, 7}], 1),
    "c": ([{0}, {4}], 1),
    "d": ([set(range(8)), set(range(8))], 4),
}


def tell_pinning(masks, cores, threads):
    """Say in one line what is wrong with a pinning."""
    sharing, crowded, idle = (sorted(found) for found in pinning(masks, cores, threads))
    shared = f"pairs of ranks that may share a core: {len(sharing)}" if sharing else ""
    turns = f"ranks whose threads take turns: {len(crowded)}" if crowded else ""
    unused = f"cores with nothing to do: {len(idle)} of {len(cores)}" if idle else ""
    return "; ".join(filter(None, (shared, turns, unused))) or "each rank has cores of its own, and none is left over"


for name, (masks, threads) in reports.items():
    print(f"{name}: {tell_pinning(masks, node, threads)}")

# %% [markdown]
# In (d), nothing is pinned. Each rank alone has cores enough, but together they have twice as many threads as there are
# cores, and nothing keeps them apart. On your machine, the ranks ask the kernel for their own masks. `run_ranks` pins
# them where there is a core for each thread, and leaves them unpinned where there is not.

# %%
# %%writefile work/masks.py
"""Print the CPUs on which this rank may run. `grep Cpus_allowed_list /proc/PID/status` shows those of any process."""

import json
import os

print(json.dumps(sorted(os.sched_getaffinity(0))))

# %%
for threads in (1, machine.usable_cores):
    masks = [set(json.loads(lines[-1])) for lines in run_ranks(2, "work/masks.py", threads=threads).lines]
    print(f"2 ranks, threads of each {threads}: {tell_pinning(masks, machine.cores, threads)}\n")

# %% [markdown]
# ### More ranks, or more threads?
#
# The same number of threads can be one process with many, or many ranks with few. A talk of 2018 ran this network with
# 2 ranks × 2 threads and 4 ranks × 2 threads. It says that 4 ranks can be faster, since small convolutions then have to
# keep fewer threads busy. Here are these two, and 2 ranks × 1 thread against 1 × 2, in turns: about 70 s. With more
# threads than cores, they are [**oversubscribed**](../docs/glossary.md#oversubscription).

# %%
grid = [(1, 2), (2, 1), (2, 2), (4, 2)]  # ranks, threads of each
launches = [dict(ranks=r, threads=t, ways={f"{r} × {t}": (r, 64)}) for r, t in grid]
with load.watch("section 10"):
    threaded = compare(launches, THREAD_ROUNDS)


# %%
def tell_threads(speeds, cores):
    """Print each speed, and compare more ranks with more threads."""
    for name, values in speeds.items():
        ranks, threads = map(int, name.split(" × "))
        crowded = f"oversubscribed: {ranks * threads} threads on {cores} cores" if ranks * threads > cores else ""
        print(f"{name}: {np.mean(values):>8,.0f} images/s  {crowded}")
    for more, fewer in (("2 × 1", "1 × 2"), ("4 × 2", "2 × 2")):
        ratio = statistics.ratios(speeds, fewer)[more]
        claim = {"faster": "as the talk says", "slower": "not what the talk says"}.get(ratio.verdict, "undecided here")
        print(f"{more} gives {ratio} times as much as {fewer}: {ratio.verdict}, {claim}")


if threaded:
    tell_threads(threaded, machine.usable_cores)

# %% [markdown]
# Ranks with one thread each have their own work, and meet once per step. Threads of one rank meet at the end of each
# operation. On the other hand, each rank holds its own copy of the network and of its data, and MPI waits by polling:
# where ranks have to share cores, one that waits takes time from one that works.

# %% [markdown]
# ## 11 · On wires
#
# Until here, the ranks sent their gradients through this machine's memory. On a cluster they go through cables. The kit
# can put each rank on a [**node**](../docs/glossary.md#node) of its own: here, that is a part of this machine's Linux
# that has nothing but one network interface (a *network namespace*). A cable leads from it to a switch, and carries in
# each direction the rate that you ask for, no more.
#
# **Only the wires are emulated.** The nodes share this machine's cores, caches and memory, and there is one switch. If
# there are more nodes than cores, the nodes take turns and compute more slowly. The limit, the same ranks side by side
# without Horovod, is measured on the same nodes, so it has that in it.

# %%
no_wires = obstacle()
print(f"Not here: {no_wires}" if no_wires else "A network can be made here.")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The gradients of this network are 1.7 MB, a step of a rank has 64 images, and section 5 printed the
# images per second of one rank. 2 or 4 nodes, on wires of 1 Gbit/s or 100 Mbit/s: what share of the images per second
# of *side by side* remains, in each of the four cases? Which change in the table below helps more, and on which wire?
#
# </div>
#
# | what is changed | how | what it costs |
# | --- | --- | --- |
# | FP16 | `hvd.Compression.fp16`: gradients travel as 16-bit numbers (lab 04) | conversion, and digits |
# | 4 batches | the gradients of 4 batches are added up, then averaged once | a quarter of the steps in an epoch |
#
# The last is [**gradient accumulation**](../docs/glossary.md#gradient-accumulation). Its steps are those of a batch 4
# times as large.
#
# The script takes the model, the digits and `meet` from `work/compare.py`. It measures several rounds without Horovod,
# then starts Horovod, whose thread takes some of the cores' time from then on, and measures the ways with it in turns.

# %%
# %%writefile work/wires.py
"""Measure ways of training on the nodes of a network: work/wires.py RESULTS.json STEPS ROUNDS WAY …"""

import json
import os
import sys
import time
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf
from compare import digits, loss_of, meet, model, optimizer, world
from mpi4py import MPI

from labkit.testbed import traffic

BATCH, WARM_UP = 64, 2
AVERAGED = {"as it is": {}, "FP16": {"compression": hvd.Compression.fp16}, "4 batches": {"every": 4}}


def make_step(horovod=True, every=1, compression=hvd.Compression.none):
    @tf.function(autograph=False)
    def step(images, labels):
        with tf.GradientTape() as tape:
            losses = [loss_of(labels[i], model(images[i], training=True)) / every for i in range(every)]
        tape = hvd.DistributedGradientTape(tape, compression=compression) if horovod else tape
        gradients = tape.gradient(losses, [v.value for v in model.trainable_variables])  # of several losses: their sum
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    return step


def measure(step, times, every=1, active=world.size):
    """Return the images per second of the active ranks together, and the bytes that this node sends for a step."""
    images = digits.x_train[: every * BATCH].reshape(every, BATCH, 28, 28, 1)
    labels = digits.y_train[: every * BATCH].reshape(every, BATCH)
    times = times if world.rank < active else 0
    for _ in range(min(WARM_UP, times)):
        step(images, labels)
    meet()
    start, sent = time.perf_counter(), traffic().sent
    for _ in range(times):
        step(images, labels)
    seconds = time.perf_counter() - start
    meet()
    sent = traffic().sent - sent
    return active * times * every * BATCH / world.allreduce(seconds, op=MPI.MAX), sent / max(1, times)


def main():
    out, steps, rounds, names = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    optimizer.build(model.trainable_variables)
    found = {"one rank": [], "side by side": []} | {name: [] for name in names}
    alone = make_step(horovod=False)
    for _ in range(rounds):
        found["one rank"].append(measure(alone, 2 * steps, active=1))
        found["side by side"].append(measure(alone, 2 * steps))
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # not from the start, but when start_timeline asks for it
    hvd.init()
    ways = {name: make_step(**AVERAGED[name]) for name in names}
    for name in names * rounds:
        every = AVERAGED[name].get("every", 1)
        found[name].append(measure(ways[name], max(2, steps // every), every))
    hvd.start_timeline(str(out.with_suffix(".timeline.json")))
    measure(ways["as it is"], 2)
    hvd.stop_timeline()
    if world.rank == 0:
        speeds, sent = ({name: [pair[i] for pair in pairs] for name, pairs in found.items()} for i in (0, 1))
        out.write_text(json.dumps({"speeds": speeds, "sent": sent, "gradients": 4 * model.count_params()}))


if __name__ == "__main__":
    main()


# %% [markdown]
# The four cases take about 80 s. Each prints what a transfer got on the wires before the training began. A warning that
# ranks take turns means that there are more nodes than cores.


# %%
def wires_file(case, suffix=".json"):
    """Return the file of a case's results, or of its timeline."""
    return work / f"wires {case.removesuffix('/s')}{suffix}"


def on_wires(case, nodes, steps, rounds, *levers):
    """Return what work/wires.py finds on nodes with wires, as it is and with each lever; `case` ends in the rate."""
    out = wires_file(case)
    options = {"threads": 1, "network": case.partition(", ")[2], "show": False}
    run = run_ranks(nodes, "work/wires.py", out, steps, rounds, "as it is", *levers, **options)
    print("\n".join(filter(None, [run.network, run.warning])), flush=True)
    return json.loads(out.read_text()) | {"nodes": nodes}


with load.watch("section 11") as wired_others:
    cases = {} if no_wires else WIRE_CASES
    wired = {case: on_wires(case, *size, WIRE_ROUNDS, *LEVERS) for case, size in cases.items()}


# %%
def tell_wires(wired):
    """Print the efficiency in each case, its limit, and what averaging costs."""
    for case, found in wired.items():
        of_one = statistics.ratios(found["speeds"], "one rank")
        reached = statistics.ratios(found["speeds"], "side by side")["as it is"]
        print(f"{case}: efficiency {percent(of_one['as it is'], found['nodes'])}")
        print(f"  the same ranks side by side: {percent(of_one['side by side'], found['nodes'])}")
        print(f"  {cost_of(reached)}")


def tell_levers(wired):
    """Print what each change is worth in each case."""
    for lever in LEVERS:
        for case, found in wired.items():
            ratio = statistics.ratios(found["speeds"], "as it is")[lever]
            print(f"{lever:9}  {case:19}  {ratio} times as many images per second as it is: {ratio.verdict}")


tell_wires(wired)
tell_levers(wired)
if no_wires:
    print(f"Not measured, as there are no wires here: {no_wires}")


# %% jupyter={"source_hidden": true}
def wire_rows(wired, others, obstacle):
    """Return this section's rows for the closing table."""
    if not wired:
        return [("weak, on wires", "", f"not here: {obstacle}", "")]
    rows = []
    for case, found in wired.items():
        of_one = statistics.ratios(found["speeds"], "one rank")
        reached, limit = (percent(of_one[way], found["nodes"]) for way in ("as it is", "side by side"))
        rows.append((f"weak: this CNN, {case}, on {machine.usable_cores} cores", "", reached, str(limit), others))
    return rows


results.hand_in("11", *wire_rows(wired, wired_others, no_wires))

# %% jupyter={"source_hidden": true}
if wired:
    figure, axis = plt.subplots(figsize=(8, 4.5))
    said = []
    for shift, way in enumerate(("as it is", *LEVERS)):
        shares = [statistics.ratios(found["speeds"], "side by side")[way] for found in wired.values()]
        value, low, high = 100 * np.array(shares).T
        places = np.arange(len(shares)) + 0.16 * (shift - 1)
        axis.errorbar(places, value, yerr=np.nan_to_num([value - low, high - value]), fmt="o", capsize=4, label=way)
        said += [f"{way}, {case}: {percent(share)}" for case, share in zip(wired, shares, strict=True)]
    axis.set_xticks(range(len(wired)), [case.replace(", ", "\n") for case in wired])
    axis.set(ylabel="images/s (% of side by side)", ylim=(0, None), title="Horovod on wires")
    axis.legend()
    plots.show(
        figure,
        alt="Images per second as a share of those of the same ranks side by side, with 95% intervals where there are "
        f"several rounds: {'; '.join(said)}.",
        keep=results,
    )

# %% [markdown]
# ### What is on the wire
#
# Each node's interface counts the bytes that it sends. A ring would send `2 × (n - 1) / n` times the gradients, half of
# that in FP16, and the packets' headers add some 5%. Fast wires take many packets at once here, and count the header of
# the first only. What is counted tells which algorithm MPI really took.


# %%
def tell_bytes(wired):
    """Print what a node sends for a step, beside what a ring would send."""
    for case, found in wired.items():
        ring = 2 * (found["nodes"] - 1) / found["nodes"] * found["gradients"]
        for way, theory in (("as it is", ring), ("FP16", ring / 2)):
            sent = np.mean(found["sent"][way])
            print(f"{case:19}  {way:8}  {sent / 1e6:.2f} MB sent, {sent / theory:.2f} times the {theory / 1e6:.2f} MB")


tell_bytes(wired)

# %% [markdown]
# On 4 nodes, look at FP16: is it half of *as it is*? MPI has no 16-bit floating-point numbers, so Horovod brings an
# operation of its own that adds them. For operations that are not MPI's own, MPICH takes
# [**recursive doubling**](../docs/glossary.md#recursive-doubling), which sends the whole buffer `log2(n)` times: once
# on 2 nodes, as a ring does, but twice on 4, where a ring sends it 1.5 times.
#
# The timeline shows the wire as well. Here are the largest gradient's stages, and the last step through memory (section
# 6) and on 2 nodes. The scales differ. Horovod has one thread for all of this: while an all-reduce is on the wire, the
# gradients after it are still *negotiated*, and that bar is waiting too.

# %% jupyter={"source_hidden": true}
paths = {"memory": work / "ranks-2" / "timeline.json"}
paths |= {case: wires_file(case, ".timeline.json") for case in wired if case.startswith("2 nodes")}
seen = {name: read_timeline(path) for name, path in paths.items()}


def stage_ms(gradients, stage):
    """Return the median length of a stage of the largest gradient, in ms."""
    return np.median([end - start for name, start, end in gradients[-1]["stages"] if name == stage])


for name, gradients in seen.items():
    waited, reduced = (stage_ms(gradients, stage) for stage in ("NEGOTIATE_ALLREDUCE", "MPI_ALLREDUCE"))
    print(f"{name:20} median of a step: negotiated {waited:6.1f} ms, reduced {reduced:6.1f} ms")
name = list(seen)[-1]
if wired:
    figure, axes = plt.subplots(2, 1, figsize=(8, 6))
    for axis, one in zip(axes, ("memory", name), strict=True):
        draw_last_step(axis, seen[one])
        axis.set_yticks(range(8), [f"{4 * math.prod(g['shape']):,} bytes" for g in seen[one]], fontsize=10)
        axis.set(xlabel="ms since the step's first gradient was ready", title=one)
    entries = [axis.get_legend_handles_labels() for axis in axes]
    legend = {label: handle for handles, labels in entries for handle, label in zip(handles, labels, strict=True)}
    figure.legend(legend.values(), legend.keys(), ncols=4, fontsize=11, loc="outside upper center")
    plots.show(
        figure,
        alt="The eight gradients of the last step as bars in time, negotiated, fused, reduced and copied back: above "
        f"through memory, below on {name}. The largest gradient's all-reduce takes "
        f"{stage_ms(seen['memory'], 'MPI_ALLREDUCE'):.1f} ms above and {stage_ms(seen[name], 'MPI_ALLREDUCE'):.1f} ms "
        "below, in the median of all steps.",
    )

# %% [markdown]
# ### Exercise 7 · Which network does this training need?
#
# Before you buy a network, you can calculate what it has to carry. Write `half_rate(n_bytes, ranks, seconds)`. It
# returns the rate of the wires, in **bit/s**, at which half of a step is communication: the all-reduce takes as long as
# computing the step.
#
# - `n_bytes` are the bytes of the gradients, and `ranks` (2 or more) share them by a ring.
# - `seconds` is what computing one step takes on each rank.
# - In a ring, each rank sends its share of the gradients `2 × (ranks - 1)` times, one after the other. Its wire carries
#   the rate in each direction, so what it receives meanwhile costs nothing. Nothing overlaps, and there is no latency.


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
# Now test the prediction. The seconds come from *side by side* on 2 nodes, and the wires get the rate that you
# calculated: about 15 s.


# %%
def tell_prediction(speeds):
    """Print the share of a step that is communication, and how far off the prediction of a half was."""
    reached = statistics.ratios(speeds, "side by side")["as it is"]
    share = statistics.Ratio(1 - reached.value, 1 - reached.high, 1 - reached.low)
    print(f"communication: {percent(share)} of a step; predicted: 50%")
    times = statistics.Ratio(*np.maximum(0, 1 / np.array([reached.value, reached.high, reached.low]) - 1))
    off = {"faster": "the prediction was too low", "slower": "the prediction was too high"}
    print(f"it takes {times} times as long as predicted: {off.get(times.verdict, times.verdict)}")


predicted = {}
if wired:
    found = wired["2 nodes, 1 Gbit/s"]
    seconds = 2 * 64 / np.mean(found["speeds"]["side by side"])
    rate = half_rate(found["gradients"], 2, seconds)
    print(f"{1000 * seconds:.1f} ms of computing in a step: predicted {rate / 1e6:,.0f} Mbit/s")
if wired and PREDICTION_ROUNDS:
    with load.watch("section 11, the prediction"):
        predicted = on_wires(f"2 nodes, {rate / 1e6:.0f} Mbit/s", 2, 12, PREDICTION_ROUNDS)
    tell_prediction(predicted["speeds"])

# %% [markdown]
# What the calculation leaves out makes communication longer: headers, the negotiation, waiting for the slower rank, and
# the cores' work for sending. What makes it shorter is overlap: the last layers' gradients travel while the first
# layers' are still computed. The same line tells about any network. A batch of 16 images of ResNet-50 takes more
# arithmetic for each byte of its gradients than this step does; lab 08 trains it.
#
# ### Open · For fast students
#
# `run_ranks(4, "work/wires.py", …, nodes=2, network="100 Mbit/s")` puts two ranks on each of 2 nodes. How many bytes
# does a node's wire carry for a step now? Is it faster than 4 nodes, and why? Clusters with many ranks on a node are
# like this. And fusion: in `on_wires`, start one launch with `env={"HOROVOD_FUSION_THRESHOLD": "0"}` as in section 7,
# and one without, in turns. On which wire is fusion worth more than in memory?

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. The instructor's notebook has answers.
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
# **For the instructor.** Answers to the questions, timing, and what goes wrong.
#
# ### Answers
#
# 1. `hvd.init()`. It starts MPI and Horovod's background thread. Before it, a process knows neither its rank nor the
#    size, and there is nobody to reduce with; `hvd.rank()` raises an error.
# 2. The averaged gradient of *n* batches is as long as that of one, only less noisy, and there are *n* times fewer
#    steps. At the old rate the network would move *n* times less in an epoch. Ask: does the rule hold for any *n*? It
#    does not: beyond some batch size, noise is no longer the limit (lab 08, LARS).
# 3. Make it a function of the step and of `hvd.size()`, and assign it before each step, with a warm-up: exercise 2. In
#    Keras' `fit` it would be a callback or a `LearningRateSchedule`.
# 4. `hvd.rank()` returns it: 0 to `hvd.size() - 1`. Rank 0 is the first, and by convention the one that writes.
#    `hvd.local_rank()` counts on one machine, and picks its GPU.
# 5. An epoch is a fixed number of digits, and each step now uses `size` batches. With the serial number of steps, 4
#    ranks would train four times as long.
# 6. `n // size // batch`, from `hvd.size()`: exercise 3. All ranks must get the same number; otherwise those with one
#    more wait for ever.
# 7. Section 5 has the answer for your machine, and section 10 with intervals. In runs on 2 cores, 2 ranks with one
#    thread each gave 1.6 to 1.9 times as much as one such rank: the efficiency moves with the machine. It was 0.86 to
#    0.94 of the same ranks side by side. One rank with 2 threads gave 1.3 to 1.6 times as much:
#    small convolutions don't fill two threads, and ranks have separate work. 4 ranks on 2 cores were between a third
#    slower and 5% faster than 2, and need more epochs for the same accuracy: MPI waits by polling, so a waiting rank
#    takes a core from a working one. With a core for each rank, measure again.
#
# **Timing** Sections 1 to 3 take 20 minutes. Exercise 4 takes 20, and is where people need help. Anyone still stuck at
# minute 50 should continue with the solution: nobody should miss section 8.
#
# The optional sections 6, 7, 9, 10 and 11 take three quarters of an hour more. Short of time? Skip the strong half of
# section 5, and read section 10's table of reports aloud: which runs would the room stop?
#
# **Exercise 6** Most compare CPUs instead of cores. Report (c) shows it: the masks have nothing in common, and yet the
# two ranks share core 0. (a) wastes two cores, while each rank's two threads share one. (d) is the usual default
# without a launcher's pinning.
#
# **Section 11** It needs section 5 (`work/compare.py`) and section 6's functions. Nodes share the cores: with 4 nodes
# on 2 cores, *side by side* cannot pass half of four times one rank, and that is not the wire's doing. On 2 nodes,
# FP16 halves the bytes. On 4 nodes only a third of them goes, since MPICH adds 16-bit numbers by recursive doubling.
# Ask: what would halve them? A ring for any operation, as in lab 06. Where no network can be made, the section's
# first cell says why and what an administrator can set; exercise 7 works without one.
#
# **Exercise 7** What is easily forgotten: a byte has 8 bits; a ring is a reduce-scatter and then an all-gather, hence
# the 2. How far off the prediction is depends on the machine. Look at what a transfer got: below the rate that was
# asked for, the wire itself is part of the error.
#
# **What goes wrong** A student runs exercise 4 without `plan.py`: the cell before section 4 writes it. A second
# notebook that uses the same cores halves every result. The cells say so when other work used the cores.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Six steps: initialise, one device for each rank, share and scale, average the gradients, broadcast the start, write
#   on rank 0 only.
# - Learning rate and number of steps follow the size. Begin with a warm-up.
# - All ranks take the same number of steps, or the run hangs.
# - Only the weights show that a run is not distributed. Compare them.
# - Bytes of gradients, ranks and seconds of computing tell which network a training run needs. Fewer bytes and fewer
#   exchanges help where the wire is the limit.
# - Weak and strong scaling are two questions. Measure both against the same ranks side by side: what is missing there,
#   no library can give back.
#
# What was published, what you measured, and what the machine could do at most:

# %%
of_one = (
    {name: percent(ratio, several) for name, ratio in statistics.ratios(scaling, "one rank").items()} if scaling else {}
)
results.table(
    "scaling efficiency",
    [
        ("weak: Horovod's benchmarks, ResNet-101 and Inception V3 on 512 GPUs", "90%", "", ""),
        ("weak: the same, VGG-16 on 512 GPUs", "68%", "", ""),
        *(
            (
                f"{way}: this CNN, {several} ranks on {machine.usable_cores} cores",
                "",
                of_one.get(way, ""),
                str(of_one.get(f"{way}, side by side", "")),
                scaling_others,
            )
            for way in ("weak", "strong")
        ),
        *results.handed_in("11", ("weak, on wires", "")),
    ],
)

# %% [markdown]
# Published: [Horovod's documentation, Benchmarks](https://horovod.readthedocs.io/en/stable/benchmarks_include.html),
# with a fixed batch on each GPU, in images per second: weak scaling. The limit is the same ranks side by side, without
# Horovod.
# Next: lab 08 takes the same six steps to ResNet-50 on a cluster.
