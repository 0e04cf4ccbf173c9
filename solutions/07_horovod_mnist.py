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
from labkit.exercises import open_lab
from labkit.mpi import RankError, run_ranks
from labkit.system import load
from labkit.system.paths import ROOT

check, results, machine, work, QUICK = open_lab("07", globals())

# %% [markdown]
# ## 1 · The task: digits and a small network
#
# The kit takes the real MNIST digits if they are on this machine, and scikit-learn's own handwritten digits otherwise.
# It prints which.

# %%
n_train, epochs = (512, 2) if QUICK else (8_000, 6)
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
        run_ranks(1, "work/serial.py", "--digits", n_train, "--epochs", epochs)

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
# The check calls your script's `main` on 2 ranks for a few steps, and each rank's share is one single batch. Then one
# step of 2 ranks must be, up to rounding, one step of a single process on all the digits. That is the definition of
# "distributed". A second call continues from the checkpoint of the first (`--resume`), which only rank 0 has. All of it
# may take three minutes, and a single line 20 s.

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
# Each rank gets one thread here, so that only the number of ranks changes. Horovod also records what it does, for the
# next section; that costs about 1%.

# %%
runs = {}
with load.watch("section 5") as scaling_others:
    for ranks in (1, 2) if QUICK else (1, 2, 4):
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

# %% [markdown]
# Images per second alone can mislead: more ranks take fewer, longer steps. A run that is twice as fast but learns half
# as much per epoch has gained nothing. [**Time to accuracy**](../docs/glossary.md#time-to-accuracy) includes both.
#
# The [**strong-scaling**](../docs/glossary.md#strong-scaling) [**efficiency**](../docs/glossary.md#scaling-efficiency)
# asks how much of the added cores' work arrived: the rate on *n* ranks over *n* times the rate on one. The median
# leaves out the first epoch, which warms up.


# %%
def rate(run):
    """Return the median images per second, without the first epoch."""
    return float(np.median([entry["images_per_second"] for entry in run["history"][1:]]))


print(f"{'ranks':>5} {'images/s':>10} {'efficiency':>10}")
for ranks, run in runs.items():
    print(f"{ranks:>5} {rate(run):>10,.0f} {rate(run) / (ranks * rate(runs[1])):>10.2f}")
if max(runs) > machine.usable_cores:
    print(
        f"\nBeyond {machine.usable_cores} ranks this machine has no more cores: more ranks share them, and take turns."
    )

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


gradients = read_timeline(work / "ranks-2" / "timeline.json")
# The last step begins when the first of its gradients begins to be negotiated.
origin = min(
    max(start for stage, start, _ in gradient["stages"] if stage == "NEGOTIATE_ALLREDUCE") for gradient in gradients
)
figure, axis = plt.subplots()
for row, gradient in enumerate(gradients):
    for stage, start, end in gradient["stages"]:
        if stage in STAGES and start >= origin:
            label, colour = STAGES[stage]
            axis.barh(row, end - start, left=start - origin, color=colour, label=label)
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
# | `threads` | threads of each rank | try fewer ranks with more threads, or the reverse |
#
# Change `settings` and run the cell as often as you like. One rank is measured along with the rest, so if the machine
# is busy for a while, that affects all.

# %%
settings = {
    "1 rank": dict(ranks=1),
    "2 ranks": dict(ranks=2),
    "2 ranks, cycle 0.1 ms": dict(ranks=2, env={"HOROVOD_CYCLE_TIME": "0.1"}),
    "2 ranks, no fusion": dict(ranks=2, env={"HOROVOD_FUSION_THRESHOLD": "0"}),
    "1 rank, batch 256": dict(ranks=1, batch=256),
    "2 ranks, batch 256": dict(ranks=2, batch=256),
    "1 rank, 2 threads": dict(ranks=1, threads=2),
}
if QUICK:
    settings = {}


def measure(ranks, batch=64, threads=1, env=None):
    """Return the images per second of one short run."""
    arguments = ("--digits", 4_000, "--epochs", 3, "--batch", batch, "--out", work / "measure")
    run_ranks(ranks, train_hvd, *arguments, threads=threads, env=env, show=False)
    return rate(json.loads((work / "measure" / "log.json").read_text()))


rates = {"2 ranks, as above": rate(runs[2])}
with load.watch("section 7"):
    for name, setting in settings.items():
        rates[name] = measure(**setting)
        print(f"{name:24} {rates[name]:>8,.0f} images/s")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
colours = [plots.BLUE if name.startswith("2 ranks") else plots.ORANGE for name in rates]
bars = axis.barh(list(rates), list(rates.values()), color=colours)
axis.bar_label(bars, fmt="{:,.0f}", padding=4)
axis.invert_yaxis()
axis.set(xlabel="images/s", title="What each setting is worth here")
axis.margins(x=0.15)
plots.show(figure, alt="Images per second: " + "; ".join(f"{name} {value:,.0f}" for name, value in rates.items()) + ".")

# %% [markdown]
# Compare like with like: 2 ranks at batch 256 with *1 rank at batch 256*. A larger batch means fewer all-reduces for
# the same digits. But the data of one step may no longer fit into a core's cache, and then each rank is slower. Which
# effect is stronger here?

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
# step 5, since the ranks start with different weights here. The check runs it on 2 ranks as before, for three minutes
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
# 7. On 2 cores: 2 ranks with one thread each gave 1.8 to 1.9 times one such rank, while one rank with 2 threads gave
#    1.3 to 1.6 times: small convolutions don't fill two threads, and ranks have separate work. 4 ranks on 2 cores were
#    between a third slower and 5% faster than 2, and need more epochs for the same accuracy: MPI waits by polling, so
#    a waiting rank takes a core from a working one. With enough cores, 4 ranks win.
#
# **Timing** Sections 1 to 3 take 20 minutes. Exercise 4 takes 20, and is where people need help. Anyone still stuck at
# minute 50 should continue with the solution: nobody should miss section 8.
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
#
# What was published, what you measured, and what the machine could do at most:

# %%
measured = rate(runs[2]) / (2 * rate(runs[1]))
limit = f"{min(100, 50 * machine.usable_cores)}%"
results.table(
    "strong-scaling efficiency",
    [
        ("Horovod's benchmarks: ResNet-101, Inception V3 on 512 GPUs", "90%", "", ""),
        ("the same, VGG-16 on 512 GPUs", "68%", "", ""),
        (f"this CNN, 2 ranks on {machine.usable_cores} cores", "", f"{100 * measured:.0f}%", limit, scaling_others),
    ],
)

# %% [markdown]
# Published: [Horovod's documentation, Benchmarks](https://horovod.readthedocs.io/en/stable/benchmarks_include.html).
# Next: lab 08 takes the same six steps to ResNet-50 on a cluster.
