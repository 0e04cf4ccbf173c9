# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 07 · Horovod on an MNIST CNN
#
# A training run that takes a week on one machine can take a day on ten. It can also take as long as before, or give ten
# networks that each saw a tenth of the data, and nothing in its log says so.
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
from labkit.exercises import open_lab

check, results, machine, work = open_lab("07", globals())

# %%
import inspect
import json
import math
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Code

from labkit.data import load_digits
from labkit.display import ladder, plots
from labkit.display.measured import Measured
from labkit.mpi import RankError, run_ranks
from labkit.system import load, statistics
from labkit.system.paths import ROOT
from labkit.testbed import obstacle

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
n_train, epochs = (512, 2) if QUICK else (6_400, 6)  # digits
RANK_COUNTS = (2,) if QUICK else (1, 2, 4)  # section 5: training
several = max(2, min(4, machine.usable_cores))  # ranks, in sections 5, 7 and 10
SCALING_ROUNDS = 0 if QUICK else 5  # sections 5 and 7
PINNING_ROUNDS = 0 if QUICK else 5  # section 10
WIRE_ROUNDS, PREDICTION_ROUNDS = (1, 0) if QUICK else (5, 5)  # section 11
WIRE_CASES = {"2 nodes, 1 Gbit/s": (2, 2 if QUICK else 8)}  # nodes, steps of a measurement
if not QUICK:
    WIRE_CASES |= {"2 nodes, 100 Mbit/s": (2, 4), "4 nodes, 100 Mbit/s": (4, 3)}

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
plots.show(figure, alt="Twenty digits of the training set, each with its label above it.")

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
# `run_ranks` starts it. It prints the [**mpirun**](../docs/glossary.md#mpirun) command that does the same in a
# terminal. Then it shows the lines of each process with its number, its [**rank**](../docs/glossary.md#rank), in front.
# TensorFlow's own start-up messages are left out. Is the first [**epoch**](../docs/glossary.md#epoch) slower? In it,
# TensorFlow prepares its kernels and touches its memory for the first time.

# %%
if not QUICK:
    print("TensorFlow starts, and trains for three epochs: about 8 s.", flush=True)
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
# Six steps turn the serial script into a distributed one. The last column is PyTorch's `DistributedDataParallel` (DDP):
#
# | | step | why | with DDP |
# | --- | --- | --- | --- |
# | 1 | `hvd.init()` | starts [**MPI**](../docs/glossary.md#mpi): then a rank knows its number | `init_process_group` |
# | 2 | one device for each rank | ranks that share cores slow each other down | stays yours |
# | 3 | share of the digits; learning rate, steps | the global batch grows with the ranks | `DistributedSampler` |
# | 4 | `hvd.DistributedGradientTape` | averages the gradients | done by the wrapped network |
# | 5 | [**broadcast**](../docs/glossary.md#broadcast) the start | equal copies stay equal | done by wrapping it |
# | 6 | [**checkpoints**](../docs/glossary.md#checkpoint) on rank 0 | two writers corrupt a file | stays yours |
#
# In step 2, `mpirun -bind-to` pins the ranks to their cores. In step 3, PyTorch's sampler gives the share; the learning
# rate and the number of steps stay yours.
#
# Horovod's last release, 0.28.1, is of June 2023, and libraries such as Ray have [dropped
# it](https://github.com/ray-project/ray/issues/49454) since. The lab uses it because its six steps are all there is to
# see, and because they are the same elsewhere: [lab 11](11_after_the_all_reduce.ipynb) writes what DDP does for you,
# and runs this lab's script in PyTorch. (In older scripts, step 5 is a `BroadcastGlobalVariablesHook`.)
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
# single batch's gradient, and about as long. An epoch now has a quarter of the steps, so at the old rate the weights
# would move about a quarter of the way. The **linear scaling rule** makes each step `size` times as long. At the very
# start the gradients change quickly, and such long steps can overshoot. So the
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
    per_epoch = steps_per_epoch(6_400, 64, size)
    steps = np.arange(6 * per_epoch)
    rates = [learning_rate(step, 0.01, size, warmup=2 * per_epoch) for step in steps]
    label = f"{size} {'rank' if size == 1 else 'ranks'}: {len(steps)} steps"
    axis.plot(steps, rates, markevery=len(steps) // 6, label=label)
axis.set(xlabel="step", ylabel="learning rate")
axis.set(title="Six epochs over 6,400 digits, 64 a rank and step")
axis.legend()
plots.show(
    figure,
    alt="Learning rate against step. One rank: constant 0.01 for 600 steps. Two ranks: a ramp "
    "from 0.01 to 0.02, 300 steps in all. Four ranks: from 0.01 to 0.04, 150 steps in all.",
)

# %% [markdown]
# Now the three functions move into the module that the scripts import.

# %% tags=["nbval-check-output"]
plan = (shard, learning_rate, steps_per_epoch)
functions = [inspect.getsource(function) for function in plan]
(work / "plan.py").write_text("\n\n".join(["import math\n\nimport numpy as np\n", *functions]))
print((work / "plan.py").read_text())

# %% [markdown]
# ### What if one rank has a batch more?
#
# Exercise 1 asked for equally many digits on all ranks. This script does otherwise: rank 0 has three batches, rank 1
# has two. After them, both want to average their accuracy.

# %%
# %%writefile work/uneven.py
"""Rank 0 has one batch more than rank 1: mpirun -n 2 python work/uneven.py"""

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
results.guess(1, "one rank has a batch more", ..., choices=("error", "wrong average", "waits"))

# %% [markdown]
# Horovod watches for tensors that only some ranks have handed in. It warns after 60 s, and waits on. Here it warns
# after 2 s, and gives up after 4.

# %%
impatient = {"HOROVOD_STALL_CHECK_TIME_SECONDS": 2, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 4}
print("Two ranks start, and then wait for each other: about 12 s.", flush=True)
run = run_ranks(2, "work/uneven.py", threads=1, env=impatient, show=False)
for rank, lines in enumerate(run.lines):
    for line in lines:
        said = line.partition("] ")[2] if "stall_inspector" in line else line
        print(textwrap.fill(f"[{rank}] {said}", 96))
results.compare_guess(1, "waits")

# %% [markdown]
# The lines below *Missing ranks* say who lacks what. `0: [accuracy]`: rank 0 has not handed in the accuracy. Is there a
# line `1: [gradient]`, too? Horovod tells of a tensor once it has been waited for that long, and the other rank's may
# come a moment later. Each rank waits for what the other will never send. Without the second limit, both would wait for
# ever, without an error. If a distributed run of yours is silent, look for this warning first.
#
# (Where shares cannot be equal, a rank that has finished calls `hvd.join()`. It then adds zeros to what the others
# average, until all have finished.)

# %% [markdown]
# ## 4 · Trust nothing: compare the weights
#
# If a gradient is not averaged, or the start is not broadcast, nothing crashes. Each rank trains a network of its own,
# the loss falls, the accuracy is fine, and all ranks but one worked for nothing. One thing gives such a run away: the
# **weights of the ranks differ**. So every distributed run in this lab ends with this measurement.

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
# Here is the serial script once more, with what distribution adds. Each such place starts with `# Horovod:` and says
# what is needed; six are yours to write. The others are done: read them too, they hold answers to the questions below.
# What has nothing to do with the six steps is in a module of its own, `work/train_helpers.py`. The next cell writes it;
# it is folded.
#
# Two things are special in Keras 3. Horovod needs TensorFlow's variables, and Keras wraps them: `v.value` unwraps one.
# And `horovod.keras` was written for Keras 2 and does not work here; `horovod.tensorflow` does.

# %% jupyter={"source_hidden": true}
# %%writefile work/train_helpers.py
"""What train_hvd.py needs besides the six steps: arguments, model, batches, test and log."""

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
    add("--digits", type=int, default=8000, help="how many to train on, over all ranks")
    add("--epochs", type=int, default=6)
    add("--batch", type=int, default=64, help="digits in a step, of each rank")
    add("--lr", type=float, default=0.01, help="learning rate that suits one rank")
    add("--warmup", type=int, default=2, help="epochs until the full learning rate")
    add("--out", type=Path, default=Path("work/run"), help="folder of log and checkpoint")
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
    """Return the results of an epoch in which each rank trained on so many images."""
    seconds = perf_counter() - began
    # Horovod: each rank tests its share, and a sum over the ranks gives one result for all.
    tested = shard(len(digits.x_test), hvd.rank(), hvd.size())
    predicted = model.predict_on_batch(digits.x_test[tested]).argmax(axis=1)
    correct = np.sum(predicted == digits.y_test[tested])
    own = tf.constant([correct, len(tested), loss], tf.float64)
    total = hvd.allreduce(own, op=hvd.Sum, name="metrics").numpy()
    speed = {"seconds": seconds, "images_per_second": images * hvd.size() / seconds}
    means = {"accuracy": total[0] / total[1], "loss": total[2] / hvd.size()}
    return {"epoch": epoch + 1} | speed | means


def prove(model, history, out):
    """Compare the weights of all ranks; on rank 0, print the difference and write the log."""
    difference = spread(model)  # Horovod: every rank takes part in it, rank 0 reports
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
    # Horovod: step 2. One device for each rank. Done: `mpirun -bind-to` gives it its cores.
    # Horovod: step 3. Set `x` and `y` to this rank's share of the training digits.
    ### BEGIN SOLUTION
    mine = shard(len(digits.x_train), rank, size)
    x, y = digits.x_train[mine], digits.y_train[mine]
    ### END SOLUTION
    steps = steps_per_epoch(len(digits.x_train), args.batch, size)
    model, optimizer, loss_of = build(args.lr, seed=rank)  # each its own: step 5 mends it

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
    # Horovod: step 5. Give all what rank 0 starts from: variables of model, optimizer; `done`.
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
# The check calls your script's `main` on 3 ranks for a few steps. One step of 3 ranks must be, up to rounding in
# float32, one step of a single process on all their digits. That is the definition of "distributed". A second call
# takes several steps in each epoch, and a third one continues from its checkpoint (`--resume`), which only rank 0 has.
# All of it may take three minutes, and a single line 20 s.

# %% tags=["nbval-check-output"]
train_hvd = check(4, "work/train_hvd.py")

# %% [markdown]
# ## 5 · 1, 2 and 4 ranks
#
# Each rank gets one thread here, so that only the number of ranks changes. `run_ranks` sets `OMP_NUM_THREADS=1`, as job
# scripts of clusters often do, and the two variables that this TensorFlow reads instead.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as many images per second do several ranks give as one? And which run gets to a given
# accuracy first?
#
# </div>

# %%
results.guess(2, f"images per second, {several} ranks against one", ..., unit="×")

# %%
runs = {}
print(f"Ranks, a run each of about 15 s: {', '.join(map(str, RANK_COUNTS))}.", flush=True)
with load.watch("section 5, training") as training_others:
    for ranks in RANK_COUNTS:
        out = work / f"ranks-{ranks}"
        arguments = ("--digits", n_train, "--epochs", epochs, "--out", out)
        run_ranks(ranks, train_hvd, *arguments, threads=1)
        runs[ranks] = json.loads((out / "log.json").read_text())
        assert runs[ranks]["spread"] == 0.0, "the ranks trained different models"

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 2, sharey=True)
said = []
for ranks, run in runs.items():
    history = run["history"]
    seconds = [entry["seconds"] for entry in history]
    accuracy = [100 * entry["accuracy"] for entry in history]
    label = f"{ranks} {'rank' if ranks == 1 else 'ranks'}"
    axes[0].plot([entry["epoch"] for entry in history], accuracy, label=label)
    axes[1].plot(seconds, accuracy)
    said.append(f"on {ranks}, {accuracy[-1]:.1f}% after {seconds[-1]:.1f} s")
worst = 100 * min(run["history"][-1]["accuracy"] for run in runs.values())
axes[0].set_ylim(max(0, 5 * math.floor(worst / 5) - 10), 100)  # the last points
axes[0].set(xlabel="epochs", ylabel="test accuracy (%)", xticks=range(1, epochs + 1))
axes[0].legend(loc="lower right")
axes[1].set(xlabel="seconds of training", xlim=(0, None))
figure.suptitle("Time to accuracy, one thread a rank")
plots.show(
    figure,
    alt="Test accuracy against seconds of training, and beside it against epochs, one line for "
    f"each number of ranks, a point for each epoch: {'; '.join(said)}.",
    keep=results,
    watched=[training_others],
)
if max(runs) > machine.usable_cores:
    print(f"Beyond {machine.usable_cores} ranks, they share this machine's cores, in turns.")

# %% [markdown]
# Images per second alone can mislead. A run that is twice as fast but learns half as much per epoch has gained nothing.
# [**Time to accuracy**](../docs/glossary.md#time-to-accuracy) includes both. On a cluster you also pay for it: cores
# times seconds.


# %%
def tell_time_to_accuracy(runs, cores):
    """Print when each run got to the best accuracy that all of them reached."""
    best = min(max(entry["accuracy"] for entry in run["history"]) for run in runs.values())
    target = math.floor(100 * best) / 100
    taken = {}
    print(f"{target:.0%} test accuracy or more for the first time:")
    for ranks, run in runs.items():
        first = next(entry for entry in run["history"] if entry["accuracy"] >= target)
        taken[ranks] = seconds = first["seconds"]
        cost = f"{min(ranks, cores) * seconds:5.1f} core-seconds"
        print(f"  on {ranks}: epoch {first['epoch']}, {seconds:5.1f} s, {cost}")
    first = min(taken, key=taken.get)
    print(f"Fewest seconds: on {first}. One run of each, so there is no interval.")


tell_time_to_accuracy(runs, machine.usable_cores)

# %% [markdown]
# Is the run with the most images per second also the first to get there? More ranks take fewer steps in an epoch, each
# with the average of more digits. And two epochs of the six are warm-up. The left panel shows what that does: accuracy
# by epoch, whatever the speed.
#
# ### Scaling efficiency and its limit
#
# The [**scaling efficiency**](../docs/glossary.md#scaling-efficiency) is the share of the ideal speed-up that was
# reached: the images per second of *n* ranks over *n* times those of one rank. There are two of them, and a published
# figure means little without the word:
#
# - [**Weak scaling**](../docs/glossary.md#weak-scaling): each rank takes 64 digits per step, as above. The global batch
#   grows with the ranks.
# - [**Strong scaling**](../docs/glossary.md#strong-scaling): the global batch stays at 64, and each rank takes its part
#   of it. Each step gets shorter, but the gradients that it averages stay as large.
#
# How much of the missing speed-up is Horovod's? Ranks on one machine share its memory, its caches and its clock, so
# they may slow each other down even if they exchange nothing. That is measured too: the same ranks on the same cores
# train **side by side**, each for itself, without Horovod. Averaging only adds work to that, so it is the limit.
#
# There is a rival, too: *one* process with as many threads as there were ranks, and as many images in a step. A talk of
# 2018 says of this network that more ranks can be faster, since its small convolutions then have to keep fewer threads
# busy.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** On the same cores: many ranks with one thread each, or one process with many threads?
#
# </div>

# %%
results.guess(3, "on the same cores", ..., choices=("ranks", "threads", "no difference"))

# %% [markdown]
# The next cell writes the script that measures, and is folded. It takes a list of ways to take a training step, with or
# without Horovod, and measures them in turns.

# %% jupyter={"source_hidden": true}
# %%writefile work/compare.py
"""Measure ways of taking a training step:

mpirun -n 2 python work/compare.py WAYS.json FOUND.json ROUNDS

WAYS.json has the arguments of `measure` for each way, and "horovod": whether it runs meanwhile.
A fourth argument has the bytes counted that this node sends.
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

WARM_UP = 3  # steps before a measurement
world = MPI.COMM_WORLD
digits = load_digits(n_train=2048, n_test=10)
model = mnist_cnn()
optimizer = keras.optimizers.SGD(0.0, momentum=0.9)  # as much work as any rate, same weights
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
running = False  # whether Horovod runs


@functools.cache
def make_step(averaged, every, fp16):
    """Return a step on `every` batches, whose gradients are added up and then averaged."""
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
    """Return the images and labels of a step: other ones in each."""
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
    own = steps if world.rank < active else 0  # the other ranks sleep meanwhile
    for number in range(min(WARM_UP, own)):
        step(*take(number, every, batch))
    meet()
    start, sent = time.perf_counter(), sent_so_far()
    for number in range(own):
        step(*take(number, every, batch))
    seconds = time.perf_counter() - start
    meet()
    sent = sent_so_far() - sent
    images = active * steps * every * batch
    return images / world.allreduce(seconds, op=MPI.MAX), sent / max(1, own)


def main():
    ways = json.loads(Path(sys.argv[1]).read_text())
    optimizer.build(model.trainable_variables)
    speeds, sent = ({name: [] for name in ways} for _ in range(2))
    for name, way in [*ways.items()] * int(sys.argv[3]):
        switch(way["horovod"])
        keys = ("active", "steps", "batch", "every", "fp16")
        speed, n_bytes = measure(*(way[key] for key in keys))
        speeds[name].append(speed)
        sent[name].append(n_bytes)
    switch(False)
    if world.rank == 0:
        found = {"speeds": speeds, "sent": sent, "gradients": 4 * model.count_params()}
        Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()


# %% [markdown]
# A round has each launch once, so that a slow minute of the machine affects all of them. How well the rounds agree
# gives the 95% confidence interval of each ratio. It covers the noise of these minutes. Another day, with another clock
# rate or other neighbours on the machine, a repetition can be elsewhere.
#
# The same rounds also have the ways that section 7 compares.


# %%
def way(active, batch=64, horovod=True, every=1, fp16=False, steps=None):
    """Return a way to measure: active ranks, the digits of each in a step, with Horovod or not."""
    how = dict(batch=batch, horovod=horovod, every=every, fp16=fp16)
    return how | dict(active=active, steps=steps or 1024 // batch)


def launch(ranks, ways, rounds=2, threads=1, env=None):
    """Return the images per second of each way, the mean of so many rounds in one launch."""
    files = (work / "ways.json", work / "found.json")
    files[0].write_text(json.dumps(ways))
    run_ranks(ranks, "work/compare.py", *files, rounds, threads=threads, env=env, show=False)
    speeds = json.loads(files[1].read_text())["speeds"]
    return {name: np.mean(found) for name, found in speeds.items()}


def compare(launches, rounds):
    """Return the images per second of each way, round by round."""
    speeds = {}
    for number in range(rounds):
        for options in launches:
            for name, speed in launch(**options).items():
                speeds.setdefault(name, []).append(speed)
        print(f"round {number + 1} of {rounds}", flush=True)
    return speeds


# %%
each = 64 // several
alone = {
    "one rank": way(1, horovod=False),
    "one rank, batch 256": way(1, batch=256, horovod=False),
    "weak, side by side": way(several, horovod=False),
    "strong, side by side": way(several, batch=each, horovod=False),
}
averaged = {
    "weak": way(several),
    "strong": way(several, batch=each),
    "batch 256": way(several, batch=256),
}
threads = {"one process": way(1, batch=64 * several, horovod=False)}
unfused = {"no fusion": way(several)}
launches = [
    dict(ranks=several, ways=alone | averaged),
    dict(ranks=1, ways=threads, threads=several),
    dict(ranks=several, ways=unfused, env={"HOROVOD_FUSION_THRESHOLD": "0"}),
]
print(f"{SCALING_ROUNDS} rounds of three launches, about 20 s each.", flush=True)
with load.watch("section 5, scaling") as scaling_others:
    scaling = compare(launches, SCALING_ROUNDS)


# %% jupyter={"source_hidden": true}
def percent(ratio, ranks=1):
    """Return a ratio of so many ranks to one as an efficiency, with its interval."""
    return Measured(*(100 * np.array(ratio) / ranks), "%", digits=0)


def cost_of(reached):
    """Say what averaging costs, by the ratio to the same ranks side by side."""
    words = {
        "slower": f"averaging costs {1 - reached.value:.0%} of the images per second",
        "faster": "averaging can't make ranks faster, so something else changed: measure again",
    }
    says = words.get(reached.verdict, reached.verdict)
    return f"with Horovod they reach {percent(reached)} of that: {says}"


def tell_scaling(speeds, ranks):
    """Print each efficiency, its limit, and what averaging costs."""
    of_one = statistics.ratios(speeds, "one rank")
    for way in ("weak", "strong"):
        limit = f"{way}, side by side"
        print(f"{way} scaling on {ranks} ranks: efficiency {percent(of_one[way], ranks)}")
        print(f"  the same ranks side by side: {percent(of_one[limit], ranks)}")
        print(f"  {cost_of(statistics.ratios(speeds, limit)[way])}")
    strong = statistics.ratios(speeds, "weak")["strong"]
    print(f"strong scaling gives {strong} times the images/s of weak scaling: {strong.verdict}")


def tell_threads(speeds, number):
    """Compare ranks of one thread with one process of many threads; return the winner."""
    ratio = statistics.ratios(speeds, "one process")["weak"]
    talk = {"faster": ", as the talk says", "slower": ", not what the talk says"}
    print(f"{number} ranks × 1 thread against 1 process × {number} threads:")
    print(f"  {ratio} times the images/s: {ratio.verdict}{talk.get(ratio.verdict, '')}")
    return {"faster": "ranks", "slower": "threads"}.get(ratio.verdict, "no difference")


# %%
if scaling:
    print(f"one rank: {np.mean(scaling['one rank']):,.0f} images/s; {SCALING_ROUNDS} rounds")
    tell_scaling(scaling, several)
    winner = tell_threads(scaling, several)
    results.compare_guess(2, Measured(*statistics.ratios(scaling, "one rank")["weak"], "×"))
    results.compare_guess(3, winner)
    faster = Measured(*statistics.ratios(scaling, "one process")["weak"], "×")
    limit = statistics.ratios(scaling, "weak, side by side")["weak"]
    results.step("ranks", faster, scaling_others, share=round(100 * limit.value))

# %% [markdown]
# Between 100% and *side by side* lies what the ranks share: memory, caches, the clock, and the cores themselves where
# there are fewer cores than ranks. No change of Horovod's settings gets that back. Between *side by side* and the
# efficiency lies the averaging: messages, and waiting for the slowest rank.
#
# Ranks with one thread each have their own work, and meet once per step. Threads of one process meet at the end of each
# operation. On the other hand, each rank holds its own copy of the network and of its data.
#
# ## 6 · Where the time goes: the timeline
#
# Horovod writes a [**timeline**](../docs/glossary.md#timeline) of what it does with every tensor, to the file that
# `HOROVOD_TIMELINE` names. Writing it takes time, so it gets a short run of its own: one epoch on 2 ranks.

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
step = median_step(gradients)
figure, axis = plt.subplots()
for row, stages in enumerate(step):
    for stage, start, end in stages:
        if stage in STAGES:
            label, colour = STAGES[stage]
            axis.barh(row, end - start, left=start, color=colour, label=label)
legend = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
figure.legend(legend.values(), legend.keys(), ncols=4, fontsize=11, loc="outside upper center")
shapes = [gradient["shape"] for gradient in gradients]
labels = [f"{' × '.join(map(str, s))}: {4 * math.prod(s):,} bytes" for s in shapes]
axis.set_yticks(range(len(gradients)), labels, fontsize=11)
axis.set(xlabel="ms since the step's first gradient was ready")
axis.set(title="The eight gradients of a median step")
largest = {stage: end - start for stage, start, end in step[-1]}
shown = {STAGES[stage][0]: ms for stage, ms in largest.items() if stage in STAGES}
said = ", ".join(f"{label} {ms:.1f} ms" for label, ms in shown.items())
plots.show(
    figure,
    alt="For each of the eight gradients of a step of median length, from the smallest to the "
    "largest, a bar in time: negotiated, fused where it is, reduced. The largest gradient: "
    f"{said}.",
    keep=results,
)
print(f"The largest gradient in this step: {said}.")

# %% [markdown]
# Each gradient goes through three stages:
#
# - **negotiated**: rank 0 waits until *every* rank has this gradient ready. If one rank is slow, you see it here: the
#   others wait.
# - **fused**: small gradients are copied side by side into one buffer, so that one all-reduce serves many. Afterwards
#   they are copied back. If *reduced* bars begin and end together, one all-reduce carried them all.
# - **reduced**: the all-reduce itself, by MPI.
#
# The rows go from the smallest gradient to the largest. The gradient of the first dense layer has 95% of all bytes.
# Back-propagation computes gradients from the last layer to the first. Do they become ready in that order here, or in
# a bunch?
#
# Negotiation is waiting, for one of three things: for the other rank to get as far; for Horovod's next cycle, since it
# looks for ready gradients once per cycle, 1 ms by default; or for its thread. Horovod has **one thread** for all of
# this. While an all-reduce runs, gradients that become ready meanwhile stay *negotiated*.
#
# (Chrome opens the file too, at `chrome://tracing`. With `HOROVOD_TIMELINE_MARK_CYCLES=1`, it also shows the cycles.)
#
# ## 7 · Improve it
#
# Where does the missing efficiency go, and what can you change?
#
# | setting | what it does | when to change it |
# | --- | --- | --- |
# | `--batch` | more work between two all-reduces | larger, as long as accuracy and cache allow |
# | `HOROVOD_FUSION_THRESHOLD` | most bytes in one fused all-reduce; default 128 MiB | 0, no fusion, for few gradients |
# | `HOROVOD_CYCLE_TIME` | ms between two looks for ready gradients; default 1 | shorter for a small model |
#
# What would help here? Look at the timeline before you run the next cell. The rounds are those of section 5, so the
# efficiency of batch 64 is the one that you know.

# %% jupyter={"source_hidden": true}
CHANGES = ("batch 256", "no fusion")


def tell_settings(speeds, reference, changes):
    """Print what each change is worth."""
    found = statistics.ratios(speeds, reference)
    for name in changes:
        ratio = found[name]
        print(f"{name:14} {ratio} times the default's images/s: {ratio.verdict}")


def tell_batches(speeds, ranks):
    """Print the efficiency at each batch, and whether they differ."""
    pairs = {64: ("weak", "one rank"), 256: ("batch 256", "one rank, batch 256")}
    for batch, (many, one) in pairs.items():
        share = percent(statistics.ratios(speeds, one)[many], ranks)
        print(f"efficiency at batch {batch}: {share}")
    small, large = (np.divide(speeds[many], speeds[one]) for many, one in pairs.values())
    ratio = statistics.ratio(large, small)
    words = {"faster": "higher", "slower": "lower"}.get(ratio.verdict, ratio.verdict)
    print(f"  at batch 256 it is {ratio} times that at batch 64: {words}")


# %%
if scaling:
    tell_settings(scaling, "weak", CHANGES)
    tell_batches(scaling, several)

# %% jupyter={"source_hidden": true}
if scaling:
    changed = {name: statistics.ratios(scaling, "weak")[name] for name in CHANGES}
    value, low, high = np.array(list(changed.values())).T
    figure, axis = plt.subplots(figsize=(9, 2.8))
    axis.errorbar(value, list(changed), xerr=(value - low, high - value), fmt="o", capsize=4)
    axis.axvline(1, color=plots.BLACK, linewidth=1)
    axis.set_ylim(len(changed) - 0.5, -0.5)
    axis.set(xlabel="images/s, as a multiple of the default")
    axis.set(title=f"Settings, on {several} ranks")
    plots.show(
        figure,
        alt="Images per second with 95% intervals, as a multiple of those with Horovod's "
        "defaults and batch 64: "
        + "; ".join(f"{name} {ratio}" for name, ratio in changed.items())
        + ".",
        watched=[scaling_others],
    )

# %% [markdown]
# Compare like with like: a larger batch may speed up one rank, too, so the efficiency at batch 256 is that against *one
# rank at batch 256*. A larger batch means fewer all-reduces for the same digits. But the data of one step may no longer
# fit into a core's cache, and then each rank is slower. Which effect is stronger here?
#
# Fusion saves messages, and costs copies. This network has one gradient with nearly all bytes: there are few messages
# to save, and where that gradient is fused with others, it is copied twice.
#
# Your turn: put settings of your own into `mine`. Horovod can also search for them itself, with `HOROVOD_AUTOTUNE=1`,
# by Bayesian optimisation as in lab 05.

# %%
mine = {}  # such as {"cycle 0.1 ms": {"HOROVOD_CYCLE_TIME": "0.1"}}
if mine:
    print(f"Five rounds of {len(mine) + 1} launches, about 6 s each.", flush=True)
    launches = [dict(ranks=several, ways={"default": way(several)})]
    launches += [dict(ranks=several, ways={n: way(several)}, env=mine[n]) for n in mine]
    with load.watch("section 7"):
        tell_settings(compare(launches, 5), "default", mine)

# %% [markdown]
# ## 8 · The run that looks distributed and is not
#
# Many tutorials make a Keras script distributed in two lines: wrap the optimizer in `hvd.DistributedOptimizer`, and
# call `fit`. With Keras 2 that was right. Here is the same with today's Keras.

# %%
# %%writefile work/silent.py
"""Look distributed, and not be so: mpirun -n 2 python work/silent.py 8000"""

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
# There is no error and no warning, and the loss falls. But the last lines show that there are two different networks.
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
if not QUICK:  # in a quick run, the check that has just run it is enough
    print("Two epochs on 2 ranks: about 8 s.", flush=True)
    run_ranks(2, fit_hvd, "--digits", n_train, "--epochs", 2, threads=1)

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
    print("One more epoch, from the checkpoint of section 5: about 8 s.", flush=True)
    arguments = ("--digits", n_train, "--epochs", epochs + 1, "--out", out, "--resume")
    run_ranks(2, train_hvd, *arguments, threads=1)
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
    fine = "each rank has cores of its own, and none is left over"
    return "; ".join(filter(None, (shared, turns, unused))) or fine


for name, (masks, threads) in reports.items():
    print(f"{name}: {tell_pinning(masks, node, threads)}")

# %% [markdown]
# In (d), nothing is pinned. Each rank alone has cores enough, but together they have twice as many threads as there are
# cores, and nothing keeps them apart. On your machine, the ranks ask the kernel for their own masks. `run_ranks` pins
# them where there is a core for each thread, and leaves them unpinned where there is not.

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
    run = run_ranks(2, "work/masks.py", threads=threads)
    masks = [set(json.loads(lines[-1])) for lines in run.lines]
    said = tell_pinning(masks, machine.cores, threads)
    print(f"2 ranks, threads of each {threads}: {said}\n")

# %% [markdown]
# ### What does the wrong pinning cost?
#
# TensorFlow starts as many threads as there are cores. Where nobody sets `OMP_NUM_THREADS` or pins, each rank does so,
# as in report (d): the cores are [**oversubscribed**](../docs/glossary.md#oversubscription). Here that is measured
# against ranks that share the cores fairly, in turns.
#
# The talk of 2018 ran 2 ranks × 2 threads and 4 ranks × 2 threads. With 8 cores or more, put `(2, 2), (4, 2)` into
# `grid`. On a node with several sockets, a common choice is one rank for each socket, with a thread for each of its
# cores (Open MPI: `-map-by socket`).

# %%
fair = max(1, machine.usable_cores // several)
grid = [(several, fair), (several, machine.usable_cores)]  # ranks, threads of each
launches = [dict(ranks=r, threads=t, ways={f"{r} × {t}": way(r)}) for r, t in grid]
print(f"{PINNING_ROUNDS} rounds of {len(grid)} launches, about 12 s each.", flush=True)
with load.watch("section 10"):
    pinned = compare(launches, PINNING_ROUNDS)


# %% jupyter={"source_hidden": true}
def tell_grid(speeds, cores):
    """Print the speed of each `ranks × threads`, and compare the others with the first."""
    reference = next(iter(speeds))
    for name, ratio in statistics.ratios(speeds, reference).items():
        ranks, threads = map(int, name.split(" × "))
        crowded = f" (oversubscribed: {ranks * threads} threads on {cores} cores)"
        crowded *= ranks * threads > cores
        print(f"{name}: {np.mean(speeds[name]):,.0f} images/s{crowded}")
        if name != reference:
            print(f"  {ratio} times those of {reference}: {ratio.verdict}")


# %%
if pinned:
    tell_grid(pinned, machine.usable_cores)

# %% [markdown]
# Oversubscribed threads take turns, and MPI waits by polling: a rank that waits takes time from one that works.

# %% [markdown]
# ## 11 · On wires
#
# So far, the ranks sent their gradients through this machine's memory. On a cluster they go through cables. The kit can
# put each rank on a [**node**](../docs/glossary.md#node) of its own: here, that is a part of this machine's Linux that
# has nothing but one network interface (a *network namespace*). A cable leads from it to a switch, and carries in each
# direction the rate that you ask for, no more.
#
# **Only the wires are emulated.** The nodes share this machine's cores, caches and memory, and there is one switch. If
# there are more nodes than cores, the nodes take turns and compute more slowly. The limit, the same ranks side by side
# without Horovod, is measured on the same nodes, so it includes this slowdown.

# %%
no_wires = obstacle()
print(f"Not here: {no_wires}" if no_wires else "A network can be made here.")

# %% [markdown]
# Two changes may help where the wire is the limit:
#
# | what is changed | how | what it costs |
# | --- | --- | --- |
# | FP16 | `hvd.Compression.fp16`: gradients travel as 16-bit numbers (lab 04) | conversion time and precision |
# | 4 batches | the gradients of 4 batches are added up, then averaged once | a quarter of the steps in an epoch |
#
# The last is [**gradient accumulation**](../docs/glossary.md#gradient-accumulation). Its steps are those of a batch 4
# times as large.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The gradients are 1.7 MB, a step of a rank has 64 images, and section 5 printed the images per second
# of one rank. On 2 nodes with wires of 100 Mbit/s: what share of the images per second of *side by side* remains?
#
# And on 4 nodes: with FP16, what share of the bytes of FP32 does each node send?
#
# </div>

# %%
results.guess(4, "images/s on 2 nodes, 100 Mbit/s, of those side by side", ..., unit="%")
results.guess(5, "bytes with FP16, of those with FP32, on 4 nodes", ..., unit="%")

# %% [markdown]
# It is `work/compare.py` again, with all rounds in one launch. Each case prints what a transfer got on the wires before
# the training began. A warning that ranks take turns means that there are more nodes than cores.


# %%
LEVERS = ("FP16", "4 batches")


def on_wires(case, nodes, steps, rounds, levers=LEVERS):
    """Return what work/compare.py finds on nodes with wires; `case` ends in the rate."""
    ways = {
        "one rank": way(1, horovod=False, steps=16),
        "side by side": way(nodes, horovod=False, steps=16),
        "default": way(nodes, steps=steps),
        "FP16": way(nodes, steps=steps, fp16=True),
        "4 batches": way(nodes, steps=max(2, steps // 4), every=4),
    }
    chosen = {name: ways[name] for name in ways if name in levers or name not in LEVERS}
    files = (work / "ways.json", work / "found.json")
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
def tell_wires(wired):
    """Print the efficiency in each case, its limit, and what averaging costs."""
    for case, found in wired.items():
        of_one = statistics.ratios(found["speeds"], "one rank")
        reached = statistics.ratios(found["speeds"], "side by side")["default"]
        print(f"{case}: efficiency {percent(of_one['default'], found['nodes'])}")
        limit = percent(of_one["side by side"], found["nodes"])
        print(f"  the same ranks side by side: {limit}")
        print(f"  {cost_of(reached)}")


def tell_levers(wired):
    """Print what each change is worth in each case."""
    print("images/s with each change:")
    for lever in LEVERS:
        for case, found in wired.items():
            ratio = statistics.ratios(found["speeds"], "default")[lever]
            print(f"{lever:9}  {case:19}  {ratio} times the default: {ratio.verdict}")


def wire_rows(wired, others, obstacle):
    """Return this section's rows for the closing table."""
    if not wired:
        return [("weak, on wires", "", f"not here: {obstacle}", "")]
    rows = []
    for case, found in wired.items():
        of_one = statistics.ratios(found["speeds"], "one rank")
        pair = (of_one["default"], of_one["side by side"])
        reached, limit = (percent(ratio, found["nodes"]) for ratio in pair)
        name = f"weak: this CNN, {case}, on {machine.usable_cores} cores"
        rows.append((name, "", reached, str(limit), others))
    return rows


# %%
if wired:
    tell_wires(wired)
    tell_levers(wired)
else:
    print(f"Not measured, as there are no wires here: {no_wires}")
results.hand_in("11", *wire_rows(wired, wired_others, no_wires))
if slow := wired.get("2 nodes, 100 Mbit/s"):
    remains = statistics.ratios(slow["speeds"], "side by side")["default"]
    results.compare_guess(4, percent(remains))

# %% jupyter={"source_hidden": true}
if wired:
    figure, axis = plt.subplots(figsize=(8, 4.5))
    said = []
    for shift, name in enumerate(("default", *LEVERS)):
        speeds = [found["speeds"] for found in wired.values()]
        shares = [statistics.ratios(each, "side by side")[name] for each in speeds]
        value, low, high = 100 * np.array(shares).T
        errors = np.nan_to_num([value - low, high - value])
        places = np.arange(len(shares)) + 0.16 * (shift - 1)
        axis.errorbar(places, value, yerr=errors, fmt="o", capsize=4, label=name)
        pairs = zip(wired, shares, strict=True)
        said += [f"{name}, {case}: {percent(share)}" for case, share in pairs]
    axis.set_xticks(range(len(wired)), [case.replace(", ", "\n") for case in wired])
    axis.set(ylabel="images/s (% of side by side)", ylim=(0, None), title="Horovod on wires")
    axis.legend()
    plots.show(
        figure,
        alt="Images per second as a share of those of the same ranks side by side, with 95% "
        f"intervals where there are several rounds: {'; '.join(said)}.",
        keep=results,
        watched=[wired_others],
    )

# %% [markdown]
# ### What is on the wire
#
# Each node's interface counts the bytes that it sends. For gradients of *S* bytes on *n* nodes, there are two
# candidates:
#
# - a **ring** sends `2 × (n - 1) / n × S`: never more than twice *S*;
# - [**recursive doubling**](../docs/glossary.md#recursive-doubling) sends *S* in each of its `log2(n)` steps.
#
# In FP16, *S* is half. Packets' headers add some 5%. (Fast wires take many packets at once here, and count the header
# of the first only.) The byte count reveals which algorithm MPI used.


# %% jupyter={"source_hidden": true}
def ring(nodes):
    """Return the bytes that a node sends in a ring, as a multiple of the gradients'."""
    return 2 * (nodes - 1) / nodes


def tell_bytes(wired):
    """Print what a node sends for a step, and what a ring and recursive doubling would send."""
    print(f"{'MB a node and step':29} {'sent':>6} {'ring':>6} {'doubling':>9}")
    for case, found in wired.items():
        for name, share in (("default", 1), ("FP16", 1 / 2)):
            size = share * found["gradients"] / 1e6
            sent = np.mean(found["sent"][name]) / 1e6
            in_ring, doubling = ring(found["nodes"]) * size, math.log2(found["nodes"]) * size
            nearer = "ring" if abs(sent - in_ring) < abs(sent - doubling) else "doubling"
            says = f"nearer to {nearer}" if found["nodes"] > 2 else "on 2 nodes, the same"
            print(f"{case:19} {name:9} {sent:6.2f} {in_ring:6.2f} {doubling:9.2f}  {says}")


def share_of_bytes(found):
    """Return the bytes that a node sends with FP16, as a ratio to those without."""
    return statistics.ratio(*(found["sent"][name] for name in ("FP16", "default")))


# %%
if wired:
    tell_bytes(wired)
if four := wired.get("4 nodes, 100 Mbit/s"):
    results.compare_guess(5, percent(share_of_bytes(four)))

# %% [markdown]
# MPI's standard has no 16-bit floating-point numbers, so Horovod brings an operation of its own that adds them. For
# operations that are not MPI's own, MPICH takes recursive doubling. So FP16 sends `½ × log2(n)` times the gradients'
# FP32 bytes, where FP32 sends `2 × (n - 1) / n`. The next picture goes on from the nodes that you measured.

# %% jupyter={"source_hidden": true}
numbers = np.array([2, 4, 8, 16, 32, 64])
figure, axis = plt.subplots(figsize=(8, 4))
for label, sends in (
    ("FP32, ring", ring(numbers)),
    ("FP16, doubling: MPICH", np.log2(numbers) / 2),
    ("FP16, ring", ring(numbers) / 2),
):
    axis.plot(numbers, sends, label=label)
for name, marker in (("default", "P"), ("FP16", "X")):
    places = [found["nodes"] for found in wired.values()]
    sends = [np.mean(found["sent"][name]) / found["gradients"] for found in wired.values()]
    label = f"measured: {name if name == 'FP16' else 'FP32'}"
    axis.plot(places, sends, marker, color=plots.BLACK, label=label, zorder=3)
axis.set_xscale("log", base=2)
axis.set_xticks(numbers, numbers)
axis.set(xlabel="nodes", ylabel="bytes a node sends\n(× the FP32 gradients)", ylim=(0, None))
axis.set_title("What FP16 saves")
axis.legend(fontsize=10)
plots.show(
    figure,
    alt="Bytes that a node sends in a step against the number of nodes, 2 to 64, as a multiple "
    "of the FP32 gradients. FP32 in a ring rises from 1 towards 2. FP16 by recursive doubling "
    "rises from 0.5 to 3 and crosses it between 8 and 16 nodes. FP16 in a ring would be half.",
)

# %% [markdown]
# On 2 nodes, FP16 halves the bytes. On 4 it saves a third, on 8 a seventh, and from 16 nodes on it sends *more* than
# FP32. That comes from the library, not from FP16: NCCL, on GPUs, adds 16-bit numbers itself and always sends half.
# Lab 08 counts with these formulas on a cluster.
#
# ### Exercise 7 · Which network does this training need?
#
# Before you buy a network, you can calculate what it has to carry. Write `half_rate(n_bytes, ranks, seconds)`. It
# returns the **half-efficiency rate** of the wires, in **bit/s**: at it, half of a step is communication, because the
# all-reduce takes as long as computing the step.
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
# calculated.


# %% jupyter={"source_hidden": true}
def tell_prediction(speeds):
    """Print the share of a step that is communication, and how far off the prediction was."""
    reached = statistics.ratios(speeds, "side by side")["default"]
    share = statistics.Ratio(1 - reached.value, 1 - reached.high, 1 - reached.low)
    print(f"communication: {percent(share)} of a step; predicted: 50%")
    ends = np.array([reached.value, reached.high, reached.low])
    times = statistics.Ratio(*np.maximum(0, 1 / ends - 1))
    off = {"faster": "the prediction was too low", "slower": "the prediction was too high"}
    says = off.get(times.verdict, times.verdict)
    print(f"it takes {times} times as long as predicted: {says}")


# %%
if wired:
    found = wired["2 nodes, 1 Gbit/s"]
    seconds = 2 * 64 / np.mean(found["speeds"]["side by side"])
    rate = half_rate(found["gradients"], 2, seconds)
    print(f"{1000 * seconds:.1f} ms of computing in a step: predicted {rate / 1e6:,.0f} Mbit/s")
if wired and PREDICTION_ROUNDS:
    print("Measuring at that rate: about 15 s.", flush=True)
    with load.watch("section 11, the prediction"):
        case = f"2 nodes, {rate / 1e6:.0f} Mbit/s"
        predicted = on_wires(case, 2, 12, PREDICTION_ROUNDS, levers=())
    tell_prediction(predicted["speeds"])

# %% [markdown]
# What the calculation leaves out can make communication longer: headers, the negotiation, waiting for the slower rank,
# and the cores' work for sending. Overlap can make it shorter: the last layers' gradients travel while the first
# layers' are still computed. The same formula answers this for any network. A batch of 16 images of ResNet-50 takes
# more arithmetic for each byte of its gradients than this step does; lab 08 trains it.
#
# ### Open · For fast students
#
# `run_ranks(4, "work/compare.py", …, nodes=2, network="100 Mbit/s")` puts two ranks on each of 2 nodes. How many bytes
# does a node's wire carry for a step now? Is it faster than 4 nodes, and why? Clusters with many ranks on a node are
# like this. And fusion: start one launch with `env={"HOROVOD_FUSION_THRESHOLD": "0"}` and one without, in turns. On
# which wire is fusion worth more than in memory?

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
# 7. Section 5 has the answer for your machine. In runs on 2 cores, 2 ranks with one thread each gave 1.6 to 1.9 times
#    as many images/s as one such rank. One process with 2 threads gave 1.3 to 1.6 times as many; a likely reason is
#    that small convolutions don't fill two threads. 4 ranks on 2 cores were between a third slower and 5% faster than
#    2, and needed more epochs for the same accuracy. Ask: what did it cost in core-seconds?
#
# **Timing** Sections 1 to 3 take 25 minutes. Exercise 4 takes 20, and is where people need help. Anyone still stuck at
# minute 55 should continue with the solution: nobody should miss section 8.
#
# The optional sections 6, 7, 9, 10 and 11 take three quarters of an hour more. Section 7 measures nothing of its own:
# it needs section 5's rounds. Short of time? Read section 10's table of reports aloud: which runs would the room stop?
#
# **Exercise 6** Most compare CPUs instead of cores. Report (c) shows it: the masks have nothing in common, and yet the
# two ranks share core 0. (a) wastes two cores, while each rank's two threads share one. (d) is the usual default
# without a launcher's pinning.
#
# **Section 11** Nodes share the cores: with 4 nodes on 2 cores, *side by side* cannot pass half of four times one rank,
# and that is not the wire's doing. Ask: what would halve FP16's bytes on 4 nodes? A ring for any operation, as in lab
# 06. Where no network can be made, the section's first cell says why and what an administrator can set; exercise 7
# works without one.
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
# - All ranks take the same number of steps, or the run hangs. Horovod's *Missing ranks* tells who waits for what.
# - Only the weights show that a run is not distributed. Compare them.
# - Bytes of gradients, ranks and seconds of computing tell which network a training run needs. Fewer bytes and fewer
#   exchanges help where the wire is the limit.
# - Weak and strong scaling are two questions. Measure both against the same ranks side by side: what is missing there,
#   no library can give back.
# - FP16 halves the bytes on 2 nodes. On more, count them: it depends on the algorithm that adds 16-bit numbers.
#
# What was published, what you measured, and what the machine could do at most:


# %% jupyter={"source_hidden": true}
def scaling_rows(speeds, ranks, cores, others):
    """Return section 5's rows for the closing table."""
    of_one = statistics.ratios(speeds, "one rank") if speeds else {}
    percents = {name: percent(ratio, ranks) for name, ratio in of_one.items()}
    rows = []
    for way in ("weak", "strong"):
        name, limit = f"{way}: this CNN, {ranks} ranks on {cores} cores", f"{way}, side by side"
        rows.append((name, "", percents.get(way, ""), str(percents.get(limit, "")), others))
    ratio = Measured(*statistics.ratios(speeds, "one process")["weak"], "×") if speeds else ""
    name = f"{ranks} ranks × 1 thread over 1 process × {ranks} threads, on {cores} cores"
    return [*rows, (name, "", ratio, "", others)]


# %%
results.table(
    "scaling efficiency",
    [
        ("weak: Horovod's benchmarks, ResNet-101 and Inception V3 on 512 GPUs", "90%", "", ""),
        ("weak: the same, VGG-16 on 512 GPUs", "68%", "", ""),
        *scaling_rows(scaling, several, machine.usable_cores, scaling_others),
        *results.handed_in("11", ("weak, on wires", "")),
    ],
)

# %% [markdown]
# Published: [Horovod's documentation, Benchmarks](https://horovod.readthedocs.io/en/stable/benchmarks_include.html),
# with a fixed batch on each GPU, in images per second: weak scaling. The limit is the same ranks side by side, without
# Horovod.
#
# Where you are on the way from this machine's default to its fastest:

# %%
ladder.show(results)

# %% [markdown]
# **Next:** [lab 08](08_cluster.ipynb) takes the same six steps to ResNet-50 on a cluster. Horovod has more for long
# runs: *elastic* Horovod goes on when ranks come and go, and *process sets* average over some of the ranks.
