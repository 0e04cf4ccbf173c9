# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 02 · oneDNN under an MNIST CNN
#
# The same network, the same TensorFlow, the same losses: and one environment variable decides how long you wait. It
# chooses the library that does the arithmetic.
#
# **You will learn** where the difference in speed comes from when one small network runs on two libraries, TensorFlow's
# own Eigen and oneDNN: which operations were replaced, which were merged into one, how the numbers lie in memory, and
# how close each operation comes to what the machine can do.
#
# **Time** {minutes}
#
# **Connects to** lab 01, which shows how TensorFlow rewrites a graph; lab 03, which asks how far ResNet-50 is from the
# machine's limit; and lab 07, which trains this same network with several processes.
#
# A word on names: the library began as *MKL-DNN*, was called *DNNL* for a year, and has been *oneDNN* since 2020.
# TensorFlow's operations still have `Mkl` in their names.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("02", globals())
cores = machine.usable_cores

# %%
import json
import os
import re
import time
from collections import Counter
from pathlib import Path

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow starts; older CPUs get Eigen

import keras
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tensorflow as tf
from IPython.display import Code, display

from labkit.display import graphs, ladder, markdown, onednn, plots
from labkit.display.measured import Measured
from labkit.models import mnist_cnn
from labkit.mpi import run_ranks
from labkit.roofline import measure
from labkit.system import load
from labkit.system.paths import ROOT
from labkit.system.statistics import interval, ratio, ratios

tf.get_logger().setLevel("ERROR")  # section 3 traces many small functions, on purpose

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
ROUNDS = 1 if QUICK else 5  # of each comparison, sections 1, 5 and 8: a process each
STEPS, PROFILED = (5, 2) if QUICK else (200, 20)  # in a process of section 1: timed, profiled
FEW_STEPS = 5 if QUICK else 30  # in a process of section 8
LOG_STEPS = 5 if QUICK else 20  # in a process of section 5
FOLDING_TURNS = 5 if QUICK else 100  # section 4
CHANNEL_TURNS = 3 if QUICK else 40  # section 7
TARGET = 2.5 if QUICK else 0.5  # the loss to reach: section 1

# %% [markdown]
# ## 1 · One network, two libraries
#
# A layer of a network is a few nested loops over numbers. TensorFlow says *which* loops to run; a library runs them. On
# CPUs, TensorFlow has two such libraries: **Eigen**, which it has always had, and **oneDNN**. Intel began oneDNN, as
# MKL-DNN; today several companies write it in the open, and it is as much for AMD's CPUs as for Intel's. One variable
# chooses between the two, `TF_ENABLE_ONEDNN_OPTS`, and TensorFlow reads it only when it starts. So each measurement
# needs a process of its own.
#
# The two are not quite apart: Eigen, too, hands its large matrix products to a routine of oneDNN's. Section 6 shows
# that, and section 8 what it is worth.
#
# This is the network, for pictures of 28 × 28 pixels. Lab 07 trains the same one.

# %%
Code(filename=ROOT / "labkit" / "models" / "mnist.py")

# %% [markdown]
# ```mermaid
# flowchart LR
#     accTitle: The MNIST CNN, its tensors and its weights
#     accDescr: Two convolutions, each followed by a pooling, and two dense layers, with the shapes between them.
#     image["image<br>28×28×1"] -->|"conv1<br>320 weights"| c1["28×28×32"] -->|pool1| p1["14×14×32"]
#     p1 -->|"conv2<br>18,496 weights"| c2["14×14×64"] -->|pool2| p2["7×7×64<br>= 3,136"]
#     p2 -->|"dense1<br>401,536 weights"| d1["128"] -->|"dense2<br>1,290 weights"| d2["10<br>digits"]
# ```
#
# The next script trains it from the same weights on the same batches, whichever library computes. `timed_steps` runs
# both functions on one batch after the other. It times each step as a whole (the speed is that of the median step), and
# keeps the losses. In the end it can run some steps more under TensorFlow's profiler, `tf.profiler.experimental`:
# section 6 asks where the time went.

# %%
# %%writefile work/cnn.py
"""Measure the MNIST CNN in one process: TF_ENABLE_ONEDNN_OPTS=0 python work/cnn.py --help"""

import keras
import tensorflow as tf

from labkit.bench import timed_steps
from labkit.data import load_digits
from labkit.models import mnist_cnn

BATCH, BATCHES = 64, 50

digits = load_digits(n_train=BATCH * BATCHES, n_test=10)
data = tf.data.Dataset.from_tensor_slices((digits.x_train, digits.y_train))
keras.utils.set_random_seed(0)
model = mnist_cnn()
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def training(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def inference(images, labels):
    return model(images, training=False)


if __name__ == "__main__":
    timed_steps.main({"inference": inference, "training": training}, list(data.batch(BATCH)))


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as fast as with Eigen is training with oneDNN, on your machine? And inference? Write
# your guesses in place of the dots.
#
# </div>

# %%
results.guess(1, "training with oneDNN against Eigen", ..., unit="×")

# %%
results.guess(2, "inference with oneDNN against Eigen", ..., unit="×")

# %% [markdown]
# `run_ranks(1, …)` starts the script once, on all the cores you have, and ends it if it hangs. To repeat a run in a
# terminal, put the variable in front: `TF_ENABLE_ONEDNN_OPTS=0 python work/cnn.py`.
#
# - The two libraries take turns, so if the machine is busy for a while, it is busy for both. If other work took more
#   than 5% of the cores meanwhile, `load.watch` prints a warning: run the cell again later.
# - One [**inter-op**](../docs/glossary.md#inter-op-parallelism) thread runs one operation at a time, so that the times
#   of operations add up. Each operation is still shared out among all cores. In a chain of layers, there is not much
#   that could run beside it, so this setting may cost a little speed.
#
# `tell` prints each ratio with its 95% [**confidence interval**](../docs/glossary.md#confidence-interval), in brackets.
# Each round starts a new process for each library and gives one ratio; how well the rounds agree gives the interval.
# Only if the interval excludes 1 does it say "faster" or "slower".

# %%
ONE_AT_A_TIME = {"TF_NUM_INTEROP_THREADS": 1}
EIGEN = {"TF_ENABLE_ONEDNN_OPTS": 0, **ONE_AT_A_TIME}
ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": 1, **ONE_AT_A_TIME}


def compare(configurations, about_s, *args):
    """Return the results of each configuration in each round: one process each, in turns."""
    seen = {name: [] for name in configurations}
    processes = ROUNDS * len(configurations)
    print(f"{ROUNDS} rounds: {processes} processes, about {processes * about_s} s", flush=True)
    for turn in range(ROUNDS):
        for name, configuration in configurations.items():
            run_ranks(1, "work/cnn.py", *args, show=False, **configuration)
            seen[name].append(result := json.loads((work / "cnn.json").read_text()))
            rates = "".join(
                f"{what:>11} {result[what]['images/s']:7,.0f} images/s"
                for what in ("training", "inference")
                if what in result
            )
            print(f"round {turn + 1} of {ROUNDS}  {name:28}{rates}", flush=True)
    return seen


# %%
def rates_of(seen, what):
    """Return the images/s of each configuration, round by round."""
    return {name: [each[what]["images/s"] for each in runs] for name, runs in seen.items()}


def tell(speeds):
    """Print how each configuration compares with the first one, and what the interval says."""
    first = next(iter(speeds))
    for name, times in ratios(speeds, first).items():
        if name != first:
            print(f"{name:25} {times} times as fast as {first}: {times.verdict}")


with load.watch("section 1") as rate_others:
    runs = compare(
        {"Eigen": dict(env=EIGEN), "oneDNN": dict(env=ONEDNN)},
        9,
        *("--steps", STEPS, "--profiled", PROFILED),
    )
rates = {what: rates_of(runs, what) for what in ("training", "inference")}
times = {}
for what, speeds in rates.items():
    print(what)
    tell(speeds)
    times[what] = ratios(speeds, "Eigen")["oneDNN"]
results.compare_guess(1, Measured(*times["training"], "×"))
results.compare_guess(2, Measured(*times["inference"], "×"))


# %% jupyter={"source_hidden": true}
def middle(values):
    """Return the geometric mean of rounds, and its 95% confidence interval."""
    mean, half = interval(np.log(np.asarray(values, float)))
    return np.exp([mean, mean - half, mean + half])


def whiskers(values):
    """Return how far intervals reach below and above, as matplotlib takes it."""
    value, low, high = np.array([middle(each) for each in values]).T
    return np.nan_to_num([value - low, high - value])


figure, axis = plt.subplots(figsize=(9, 3))
value, low, high = np.array([*times.values()]).T
reach = np.nan_to_num([value - low, high - value])
axis.barh(list(times), value, color=plots.BLUE, height=0.5)
axis.errorbar(value, list(times), xerr=reach, fmt="none", color="black", capsize=5)
axis.axvline(1, color=plots.ORANGE, linestyle="--")
paces = {
    what: " → ".join(f"{middle(pace)[0]:,.0f}" for pace in speeds.values()) + " images/s"
    for what, speeds in rates.items()
}
axis.set_yticks(range(len(times)), [f"{what}\n{paces[what]}" for what in times])
axis.invert_yaxis()
axis.set(xlabel="times as fast as with Eigen (dashed: as fast)", title="oneDNN against Eigen")
axis.set_xlim(0, min(axis.get_xlim()[1], 2.5 * max(value)))  # disturbed rounds have no end
plots.show(
    figure,
    alt="How many times as fast oneDNN is as Eigen, with 95% intervals: "
    + "; ".join(f"{what} {times[what]}, {paces[what]}" for what in times),
    keep=results,
    watched=[rate_others],
)

# %% [markdown]
# In 2019, Intel showed ResNet-50 training at 3.84 images/s by default and at 17.69 with MKL-DNN: 4.6 times. At that
# time, TensorFlow's default was built for older instruction sets. Since then, the default has moved as well. The rest
# of this lab looks for what is left of the difference, and why.
#
# ### Do both learn the same?
#
# When TensorFlow starts with oneDNN, it warns of "slightly different numerical results": sums are added up in another
# order, and rounding depends on the order. Does that change what the network learns? The same runs kept their losses.

# %% jupyter={"source_hidden": true}
losses = {
    name: np.array([run["training"]["losses"] for run in each_run])
    for name, each_run in runs.items()
}


def smooth(losses):
    """Return the mean of the last 20 losses at each step."""
    return pd.Series(losses).rolling(20, min_periods=1).mean()


def until(target, run):
    """Return steps and seconds until the mean of 20 losses is below a target; or nan."""
    below = np.flatnonzero(smooth(run["training"]["losses"]) < target)
    steps = below[0] + 1 if below.size else np.nan
    return steps, sum(run["training"]["seconds"][:steps]) if below.size else np.nan


print(f"{'step':>4}  {'Eigen':10} {'oneDNN':10} apart by  runs of one library apart by")
for step in sorted({1, 10, 100, STEPS} & {*range(STEPS + 1)}):
    eigen, fast = (each[:, step - 1] for each in losses.values())
    between = abs(fast[0] / eigen[0] - 1)
    within = max(np.ptp(each) / each[0] for each in (eigen, fast))
    print(f"{step:4}  {eigen[0]:.7f}  {fast[0]:.7f}  {between:8.0e}  {within:8.0e}")

needed = {name: np.array([until(TARGET, run) for run in runs[name]]).T for name in runs}
time_to_loss = None
if not np.isnan([*needed.values()]).any():
    for name, (steps, seconds) in needed.items():
        print(f"loss {TARGET}: {name} after {steps[0]:.0f} steps, {middle(seconds)[0]:.2f} s")
    time_to_loss = ratio(*(1 / needed[name][1] for name in ("oneDNN", "Eigen")))
    print(f"oneDNN gets there {time_to_loss} times as fast: {time_to_loss.verdict}")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 3.5))
took = {}
for name, colour, line in (("Eigen", plots.ORANGE, "--"), ("oneDNN", plots.BLUE, "-")):
    run = runs[name][0]["training"]
    clock = np.cumsum(run["seconds"])
    took[name] = f"{clock[-1]:.2f} s with {name}"
    axis.plot(clock, smooth(run["losses"]), line, color=colour, marker="", label=name)
axis.axhline(TARGET, color="grey", linewidth=1, linestyle=":")
axis.set(xlabel="seconds of training", ylabel="loss, mean of 20 steps")
axis.set_title("The same training, on two clocks")
axis.legend()
plots.show(
    figure,
    alt=f"Loss against seconds of training in the first round: {STEPS} steps take "
    + ", ".join(took.values()),
    keep=results,
    watched=[rate_others],
)

# %% [markdown]
# The first losses are the same but for rounding. Then the difference grows from step to step, since each step starts
# from the weights of the last: training amplifies tiny differences. Neither library is the wrong one. What matters is
# that the curves have the same shape and fall to the same level. Does a library repeat its own losses? The last column
# says so.
#
# [**Time to accuracy**](../docs/glossary.md#time-to-accuracy) is the number of steps times the time of each. If the
# curves agree, a faster step is worth nearly its whole factor. Labs 04 and 07 have changes after which the number of
# steps is another.
#
# ## 2 · Which library is it really?
#
# The old recipe was `ldd`: look for `libmklml` and `libiomp5` among the libraries that TensorFlow is linked with. It is
# better to ask the process itself. Linux lists every library that a process has loaded in `/proc/self/maps`, also those
# that it loaded later.

# %%
maps = Path("/proc/self/maps").read_text()
paths = re.findall(r"/\S+\.so[.\d]*$", maps, flags=re.M)
loaded = {"/".join(Path(path).parts[-2:]) for path in paths}
known = {
    "TensorFlow": "libtensorflow",
    "oneDNN": "dnnl|mkldnn",
    "MKL": "libmkl",
    "Intel's OpenMP": "libiomp",
    "GNU's OpenMP": "libgomp",
}
for library, pattern in known.items():
    found = sorted(name for name in loaded if re.search(pattern, name))
    print(f"{library + ':':16}", ", ".join(found) or "none")

# %% [markdown]
# No library here is called oneDNN: it is built *into* TensorFlow's own library, and that build also fixes the kind of
# threads that it uses. (If you see an OpenMP library, another package loaded it. The folder before its name says
# which.) Section 5 has a better way: there, oneDNN reports about itself.
#
# ## 3 · Which operations it takes over
#
# Before TensorFlow runs a graph, it replaces the operations on a list of its own with oneDNN's. So the graph that you
# wrote does not show this. You have to look at the graph that **ran**. `onednn.graph_that_ran` runs a function as a
# `tf.function` and returns both graphs.
#
# The next two cells print the table of a talk from 2019, operation by operation, for the [**forward
# pass**](../docs/glossary.md#forward-pass) (which computes the output) and the [**backward
# pass**](../docs/glossary.md#backward-pass) (which computes the [**gradients**](../docs/glossary.md#gradient)). How
# much of it is still true? They run each operation by itself on random numbers, and also four operations that the old
# table does not have.

# %%
rng = np.random.default_rng(0)
x = tf.constant(rng.normal(size=(8, 28, 28, 32)).astype("float32"))
matrix = tf.reshape(x, (-1, 32))


def weights(*shape):
    return tf.constant(rng.normal(size=shape).astype("float32"))


def batch_norm(x, gamma, beta):
    return tf.compat.v1.nn.fused_batch_norm(x, gamma, beta, is_training=True)[0]


def depthwise(x, w):
    return tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME")


IN_2019, LATER = (True, True), (False, False)
OPERATIONS = {  # name: (function, its inputs, forward and backward in the 2019 table)
    "Conv2D": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), [x, weights(3, 3, 32, 64)], IN_2019),
    "Relu": (tf.nn.relu, [x], IN_2019),
    "Tanh": (tf.nn.tanh, [x], IN_2019),
    "Elu": (tf.nn.elu, [x], IN_2019),
    "MaxPool": (lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"), [x], IN_2019),
    "AvgPool": (lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME"), [x], IN_2019),
    "BatchNorm": (batch_norm, [x, weights(32), weights(32)], IN_2019),
    "LRN": (tf.nn.local_response_normalization, [x], IN_2019),
    "MatMul": (tf.matmul, [matrix, weights(32, 64)], (True, False)),
    "Concat": (lambda x, y: tf.concat([x, y], axis=3), [x, x + 1], (True, False)),
    "Depthwise conv": (depthwise, [x, weights(3, 3, 32, 1)], LATER),
    "Softmax": (tf.nn.softmax, [x], LATER),
    "Einsum": (lambda x, w: tf.einsum("nhwc,cd->nhwd", x, w), [x, weights(32, 64)], LATER),
    "Transpose": (lambda x: tf.transpose(x, (0, 3, 1, 2)), [x], LATER),
}


# %%
def both_ways(function):
    """Return a function that also computes the gradient with respect to each input."""

    def with_gradient(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = function(*inputs)
            loss = tf.reduce_sum(y**2)
        return y, tape.gradient(loss, inputs)

    return with_gradient


def of_onednn(nodes):
    return Counter(node.op for node in nodes if node.op.startswith("_Mkl"))


def tick(yes):
    return "✓" if yes else "–"


rows = []
for name, (function, inputs, in_2019) in OPERATIONS.items():
    forward = of_onednn(onednn.graph_that_ran(function, *inputs)[1])
    backward = of_onednn(onednn.graph_that_ran(both_ways(function), *inputs)[1]) - forward
    ticks = map(tick, (*in_2019, forward, backward))
    rows.append((name, *ticks, ", ".join(f"`{op}`" for op in forward | backward)))
head = ("operation", "2019: forward", "backward", "today: forward", "backward", "what ran")
display(markdown.table(head, rows))

# %% [markdown]
# Compare the columns. The dividing line is not how much an operation computes: transposing computes nothing, and is
# taken over; Relu is not. A likely reason is history. In 2019, oneDNN's convolutions wanted tensors in a layout of
# their own (section 5). So every operation *between* two convolutions had to understand that layout, Relu, LRN and
# concatenation among them. Today the images keep TensorFlow's layout, and Eigen's Relu reads it as well as oneDNN's.
# With the move to oneDNN 3, Relu, Tanh and LRN left TensorFlow's list (`mkl_layout_pass.cc` in its source).
#
# That does not mean that each Relu costs a pass over memory: look for it in the next table.
#
# Here is the real network: what was written, and what ran, for one training step.

# %%
keras.utils.set_random_seed(0)
model = mnist_cnn()
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
images, labels = tf.random.normal((64, 28, 28, 1)), tf.zeros(64, tf.int32)


def loss_and_gradients(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    return loss, tape.gradient(loss, [v.value for v in model.trainable_variables])


written, ran = onednn.graph_that_ran(loss_and_gradients, images, labels)
LAYERS = "Conv2D|MatMul|MaxPool|Relu|BiasAdd"
before, after = (
    Counter(node.op for node in nodes if re.search(LAYERS, node.op)) for nodes in (written, ran)
)
print(f"{len(written)} nodes were written, {len(ran)} ran. Those of the layers:\n")
print(f"{'written':28}{'ran':48}")
blanks = [("", "")] * len(before)
for (op, n), (op_ran, n_ran) in zip(before.most_common(), [*after.most_common(), *blanks]):
    print(f"{n:2} {op:25}{n_ran:2} {op_ran}")

# %% [markdown]
# Three things happened to the layers:
#
# - **Merged**: `Conv2D`, `BiasAdd` and `Relu` were three operations. Now they are one.
# - **Replaced**: names with `_Mkl` are oneDNN's. This step also merges: the gradient of a convolution's bias became
#   part of `…BackpropFilterWithBias`.
# - **Left out**: of two `Conv2DBackpropInput`, only one ran. The other would compute the gradient with respect to the
#   *images*, which nobody asked for.
#
# ```mermaid
# flowchart LR
#     accTitle: From a Keras layer to a oneDNN primitive
#     accDescr: Keras' layer becomes three operations, Grappler's merged one, oneDNN's in its place, and one primitive.
#     layer["Keras layer<br>Conv2D, relu"] -->|"tf.function<br>traces"| ops["Conv2D,<br>BiasAdd, Relu"]
#     ops -->|"Grappler<br>merges"| fused["_FusedConv2D"]
#     fused -->|"oneDNN pass<br>replaces"| mkl["_MklNative-<br>FusedConv2D"]
#     mkl -->|"oneDNN<br>runs"| primitive["one primitive:<br>convolution + relu"]
# ```
#
# With Eigen, the oneDNN pass is left out, and `_FusedConv2D` runs.
#
# ## 4 · Fusion
#
# Why merge operations? A convolution ends with its output in the core's registers. To add the bias and apply Relu there
# costs almost nothing. As separate operations, each would read the whole output from memory and write it back. Merging
# them is called [**operator fusion**](../docs/glossary.md#operator-fusion). Here is the forward pass through the
# network, its layers alone: what was written, and what ran.

# %%
written, ran = onednn.graph_that_ran(lambda images: model(images, training=False), images)


def layers(nodes):
    return [
        node
        for node in nodes
        if re.search(LAYERS, node.op) or re.search("flatten.*/Reshape$", node.name)
    ]


before, after = layers(written), layers(ran)
plots.show(
    graphs.compare(before, after, title="The MNIST CNN, as written and as it runs"),
    alt=f"As written: {graphs.describe(before)}. As it runs: {graphs.describe(after)}.",
    keep=results,
)

# %% [markdown]
# If you look for fusion in your own network and find none, think of two traps:
#
# - A bias that is **zero and constant** has no effect: TensorFlow removes the addition first, and then finds nothing to
#   merge. Use trained weights, or random ones.
# - If another operation stands **between** the operations, or something else also **uses** the result from the middle,
#   they stay apart.
#
# ### Exercise 1 · Fold a batch norm away
#
# After training, a [**batch normalisation**](../docs/glossary.md#batch-normalisation) (batch norm) is a fixed formula
# for each channel *c*:
#
# $$y_c = \gamma_c \, \frac{x_c - \mu_c}{\sqrt{v_c + \epsilon}} + \beta_c$$
#
# It stands between convolution and Relu. Grappler can merge a batch norm, if it is *one* operation. Keras 3 writes it
# as multiplications and additions, which Grappler does not recognise, so nothing is merged. But a batch norm only
# multiplies and adds, channel by channel, and a convolution with a bias does the same. So a convolution with other
# weights and another bias gives the same result without a batch norm. Compilers for inference do this.
#
# Write `fold(w, gamma, beta, mean, variance, epsilon)`. It returns two arrays, weights and bias. A convolution alone,
# with these, must give the same result as a convolution (without a bias) followed by the batch norm. `w` has the shape
# (height, width, channels in, channels out). Leave all arrays that you are given as they are.


# %%
def fold(w, gamma, beta, mean, variance, epsilon):
    """Return weights and bias of the one convolution that equals convolution and batch norm."""
    ### BEGIN SOLUTION
    scale = gamma / np.sqrt(variance + epsilon)
    return w * scale, beta - mean * scale
    ### END SOLUTION


# %% tags=["nbval-check-output"]
fold = check(1, fold)

# %% [markdown]
# The next cell runs both versions, with Keras' own batch norm as it would be after training. What runs, and how long
# does it take?

# %%
convolution = keras.layers.Conv2D(64, 3, padding="same", use_bias=False)
norm = keras.layers.BatchNormalization()
norm(convolution(x))  # makes their weights
trained = ((0.5, 2), (-1, 1), (-1, 1), (0.5, 2))  # gamma, beta, mean, variance: from … to …
for weight, (least, most) in zip(norm.weights, trained):
    weight.assign(rng.uniform(least, most, size=64))


def with_batch_norm(x):
    return tf.nn.relu(norm(convolution(x), training=False))


both = [*convolution.weights, *norm.weights]
parts = fold(*(weight.numpy() for weight in both), norm.epsilon)
folded_w, folded_b = (tf.Variable(np.asarray(part), dtype="float32") for part in parts)


def folded(x):
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, folded_w, 1, "SAME"), folded_b))


# %%
took = {with_batch_norm: [], folded: []}
compiled = {function: tf.function(function) for function in took}
with load.watch("section 4") as folding_others:
    for turn in range(FOLDING_TURNS):
        for function, ms in took.items():
            start = time.perf_counter()
            compiled[function](x)
            if turn:  # the first turn traces the function
                ms.append(1000 * (time.perf_counter() - start))
for function, ms in took.items():
    nodes = onednn.graph_that_ran(function, x)[1]
    ops = [node.op for node in nodes if node.op not in ("Const", "ReadVariableOp")]
    print(f"{function.__name__:16} {np.median(ms):6.2f} ms   {', '.join(ops)}")
saved = ratio(took[with_batch_norm], took[folded])
print(f"folded is {saved} times as fast: {saved.verdict} (in this process; see section 1)")
difference = np.abs(with_batch_norm(x) - folded(x)).max()
print(f"largest difference {difference:.1e}, of values up to {np.abs(folded(x)).max():.0f}")
results.hand_in(
    "4", ("batch norm folded away, against not", "", Measured(*saved, "×"), "", folding_others)
)

# %% [markdown]
# ## 5 · How the numbers lie in memory
#
# A batch of images has four dimensions: *n* the image, *c* the channel, *h* the row, *w* the column. Memory has only
# one. A **layout** maps each element (n, c, h, w) to its *offset*, its place in memory. Its name lists the dimensions
# from the outermost to the innermost:
#
# - **nchw**: each channel is an image of its own. The innermost loop runs over *w*.
# - **nhwc**: the channels of one pixel lie side by side. The innermost loop runs over *c*.
# - **nChw16c**, a [**blocked layout**](../docs/glossary.md#blocked-layout): channels come in blocks of 16. Within a
#   block, the innermost loop runs over *c*; the capital *C* counts blocks.
#
# Why 16? An [**AVX-512**](../docs/glossary.md#avx-512) instruction works on 16 single-precision numbers at once. With
# nChw16c, one instruction always finds 16 channels of a pixel side by side. With nchw, they lie a whole image apart.
# With nhwc, they are side by side as well, but the next pixel is C numbers away, and C differs from layer to layer.
# With nChw16c, it is always 64 bytes away, and a block of channels of the whole image is one piece of memory, which may
# fit into a cache.
#
# ### Exercise 2 · Where is element (n, c, h, w)?
#
# Write `offset(n, c, h, w, shape, layout)` for the three layouts. `shape` is always (N, C, H, W). In `nChw16c`, when C
# is not a multiple of 16, unused places fill the last block.


# %%
def offset(n, c, h, w, shape, layout):
    """Return the place of an element in memory, counted in elements from the start."""
    N, C, H, W = shape
    ### BEGIN SOLUTION
    if layout == "nchw":
        return ((n * C + c) * H + h) * W + w
    if layout == "nhwc":
        return ((n * H + h) * W + w) * C + c
    blocks = -(-C // 16)
    return (((n * blocks + c // 16) * H + h) * W + w) * 16 + c % 16
    ### END SOLUTION


# %% tags=["nbval-check-output"]
offset = check(2, offset)

# %% [markdown]
# NumPy describes a layout by its **strides**: the distance in bytes between two neighbours in each dimension. The next
# cell stores the same images in three layouts, and compares your formula with NumPy's strides:

# %% tags=["nbval-check-output"]
N, C, H, W = shape = (2, 32, 6, 8)
nchw = np.zeros((N, C, H, W), "float32")
nhwc = np.zeros((N, H, W, C), "float32")
blocked = np.zeros((N, C // 16, H, W, 16), "float32")
print(
    f"stride along c, in bytes: nchw {nchw.strides[1]}, nhwc {nhwc.strides[3]}, "
    f"within a block {blocked.strides[4]}"
)
for element in [(0, 1, 0, 0), (0, 16, 0, 0), (1, 31, 5, 7)]:
    n, c, h, w_ = element
    strides = {
        "nchw": np.dot(nchw.strides, (n, c, h, w_)) // 4,
        "nhwc": np.dot(nhwc.strides, (n, h, w_, c)) // 4,
        "nChw16c": np.dot(blocked.strides, (n, c // 16, h, w_, c % 16)) // 4,
    }
    for layout, right in strides.items():
        yours = offset(*element, shape, layout)
        print(f"(n, c, h, w) = {element} in {layout:8} yours {yours:5}, numpy's {right:5}")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 3))
for row, (layout, colour) in enumerate(zip(("nchw", "nhwc", "nChw16c"), plots.PALETTE)):
    places = [offset(0, c, 2, 3, shape, layout) for c in range(C)]
    axis.scatter(places, [row] * C, marker="|", s=500, color=colour)
axis.set_yticks(range(3), ("nchw", "nhwc", "nChw16c"))
axis.set(
    xlabel="place in memory (elements)",
    title="The 32 channels of one pixel",
    xlim=(-20, C * H * W + 20),
    ylim=(2.6, -0.6),
)
plots.show(
    figure,
    alt="Places in memory of one pixel's 32 channels in an image of 6 by 8 pixels. nchw: "
    "spread evenly over all 1,536 places. nhwc: 32 neighbours. nChw16c: two groups of 16 "
    "neighbours, half the memory apart.",
)

# %% [markdown]
# ### Layout propagation, then and now
#
# The layout of the program is not the fastest one, so something has to convert the numbers from one to the other.
# oneDNN calls this a [**reorder**](../docs/glossary.md#reorder). When MKL-DNN came to TensorFlow, its convolutions
# needed nChw16c. A reorder before and after each convolution would have cost more than it gained. So TensorFlow rewrote
# the graph: operations passed blocked tensors to each other, each with a second tensor that described its layout, and
# reorders stood only at the borders. This was **layout propagation**. It was fragile, and each operation in between had
# to support it.
#
# Since then, oneDNN has got convolutions that work on nhwc directly, about as fast. So today's TensorFlow no longer
# passes blocked tensors on. What is still blocked, then? oneDNN reports what it does: `ONEDNN_VERBOSE=1` makes it write
# one line for everything (`MKLDNN_VERBOSE`, the old name, has no effect any more). Here are some steps of training in
# each of several processes, and the head of their log.

# %%
print(f"{ROUNDS} processes, about {6 * ROUNDS} s", flush=True)
logs, step_ms = [], []
with load.watch("section 5") as log_others:
    for turn in range(ROUNDS):
        args = ("work/cnn.py", "--only", "training", "--steps", LOG_STEPS)
        run = run_ranks(1, *args, env=ONEDNN | {"ONEDNN_VERBOSE": 1}, show=False)
        logs.append(onednn.read_log(run.lines[0], after="training, warm").assign(process=turn))
        step_ms += json.loads((work / "cnn.json").read_text())["training"]["seconds"]
        print(f"process {turn + 1} of {ROUNDS}: {len(logs[-1])} lines of the log", flush=True)
log, step_ms = pd.concat(logs, ignore_index=True), 1000 * np.mean(step_ms)
onednn.describe(run.lines[0])

# %% [markdown]
# Remember the line `threads`. With **threadpool**, oneDNN works on TensorFlow's own threads. With
# [**OpenMP**](../docs/glossary.md#openmp), as in Intel's builds of that time, it has its own threads besides
# TensorFlow's, and its own settings, `OMP_NUM_THREADS` and `KMP_*`.
#
# The log shows the layout of every tensor. oneDNN writes dimensions as letters in the order (n, c, h, w) or, for
# weights, (out, in, h, w): so `acdb` is n, h, w, c. A **plain** layout has lower-case letters only. A **blocked** one
# has a capital letter and a number: in `Acdb16a`, output channels come in blocks of 16, and in `Acdb64a` in blocks of
# 64, which fill four registers of AVX-512.

# %%
convolutions = log[log.primitive == "convolution"]
columns = ["direction", "implementation", "src", "wei", "dst"]
convolutions[columns].value_counts().rename("calls").reset_index()

# %% [markdown]
# `src` and `dst` are the images, `wei` the weights. Which of the three is blocked? And how large is it, compared with
# the other two?
#
# ## 6 · Where the time goes
#
# Each process of section 1 ended with some training steps under TensorFlow's profiler, which notes when each operation
# begins and ends. So you can compare the two libraries operation by operation, or here, kind by kind:

# %%
KINDS = {  # of operations, each by a pattern of their types: the first that fits
    "gradient of the images": "Conv2DBackpropInput",
    "gradient of the weights": "Conv2DBackpropFilter",
    "forward convolution": "Conv2D",
    "matrix products": "MatMul",
    "pooling, backward": "MaxPoolGrad",
    "pooling, forward": "MaxPool",
    "Relu and bias, backward": "ReluGrad|BiasAddGrad",
    "all else": "",
}

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In which of these kinds does oneDNN save the most milliseconds of a training step?
#
# </div>

# %%
results.guess(3, "where oneDNN saves most", ..., choices=tuple(KINDS))


# %%
def by_kind(run):
    """Return the milliseconds of a training step in each kind of operation."""
    ms = dict.fromkeys(KINDS, 0.0)
    for op, took in run["operations"].items():
        ms[next(kind for kind, pattern in KINDS.items() if re.search(pattern, op))] += took
    return ms


spent = {name: pd.DataFrame(map(by_kind, each_run)) for name, each_run in runs.items()}
saves = (spent["Eigen"] - spent["oneDNN"]).mean()
print(f"{'ms in a training step':25}  Eigen  oneDNN  saves  times as fast")
for kind in saves.sort_values(ascending=False).index:
    eigen, fast = spent["Eigen"][kind], spent["oneDNN"][kind]
    medium = f"{middle(eigen)[0]:7.2f} {middle(fast)[0]:7.2f}"
    print(f"{kind:25}{medium} {saves[kind]:6.2f}  {ratio(1 / fast, 1 / eigen)}")
totals = [f"{name} {each.sum(axis=1).mean():.2f} ms" for name, each in spent.items()]
print(f"All operations: {', '.join(totals)}")
results.compare_guess(3, saves.idxmax())

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5))
looks = (("Eigen", plots.ORANGE, "//"), ("oneDNN", plots.BLUE, ""))
for shift, (name, colour, hatch) in zip((-0.2, 0.2), looks):
    each = [spent[name][kind] for kind in KINDS]
    places = np.arange(len(KINDS)) + shift
    values = [middle(ms)[0] for ms in each]
    axis.barh(places, values, 0.4, color=colour, hatch=hatch, label=name)
    axis.errorbar(values, places, xerr=whiskers(each), fmt="none", color="black", capsize=3)
axis.set_yticks(range(len(KINDS)), list(KINDS))
axis.invert_yaxis()
axis.set(xlabel="ms in a training step", title="Time by kind of operation")
largest = max(middle(each[kind])[0] for each in spent.values() for kind in KINDS)
axis.set_xlim(0, min(axis.get_xlim()[1], 2.5 * largest))
axis.legend()
plots.show(
    figure,
    alt="Milliseconds in a training step, Eigen and oneDNN: "
    + "; ".join(
        f"{kind} " + " and ".join(f"{middle(each[kind])[0]:.2f}" for each in spent.values())
        for kind in KINDS
    ),
    keep=results,
    watched=[rate_others],
)

# %% [markdown]
# This is the answer to the lab's question, in milliseconds. Where the bars are alike, oneDNN brings nothing, and for
# some kinds it may even lose. *All else* is the loss, the update of the weights and small operations, which are Eigen's
# in both runs.
#
# ### Who multiplies for Eigen?
#
# Here is a process in which oneDNN is switched off, and which still asks oneDNN for its log. It takes about 10 s.

# %%
args = ("work/cnn.py", "--only", "training", "--steps", LOG_STEPS)
run = run_ranks(1, *args, env=EIGEN | {"ONEDNN_VERBOSE": 1}, show=False)
eigen_log = onednn.read_log(run.lines[0], after="training, warm")
print(f"{len(eigen_log) / LOG_STEPS:.0f} lines for each step, although oneDNN is off:")
eigen_log.primitive.value_counts()

# %% [markdown]
# `gemm_api` is a matrix product of oneDNN's that a program calls directly. Eigen makes matrix products of its
# convolutions, cuts them into blocks that fit into the caches, and gives each block to that routine. So "Eigen" today
# means: Eigen's way of cutting and packing, and oneDNN's instructions in the innermost loop. That may be one reason why
# oneDNN's lead is smaller than in 2019. oneDNN's own convolutions need no such packing.
#
# ### oneDNN's own log
#
# The log of section 5 is a table. It has a row for each [**primitive**](../docs/glossary.md#primitive) that ran: a
# primitive is one operation of oneDNN's, such as a convolution. The row has its milliseconds, its kind, the
# implementation that oneDNN chose, and the layouts. (Not shown here: the shapes, the type, the process, and the
# attributes, which say what was fused into a primitive, such as `attr-post-ops:eltwise_relu`.)

# %%
log[["ms", "primitive", "implementation", "src", "wei", "dst"]].head(8)

# %% [markdown]
# ### Exercise 3 · Time by kind
#
# Write `time_by(log, column)`. For each value of a column, such as `"primitive"`, it adds up the milliseconds in the
# table, not rounded. The largest sum comes first. Return a pandas Series or a dict.


# %%
def time_by(log, column):
    """Return the milliseconds for each value of a column, the largest first."""
    ### BEGIN SOLUTION
    return log.groupby(column).ms.sum().sort_values(ascending=False)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
time_by = check(3, time_by)

# %% jupyter={"source_hidden": true}
logged_steps = ROUNDS * LOG_STEPS
by_primitive = pd.Series(time_by(log, "primitive")) / logged_steps
figure, axes = plt.subplots(1, 2, figsize=(11, 4.5))
axes[0].barh(list(by_primitive.index), by_primitive, color=plots.BLUE)
axes[0].set(xlabel="ms in a step", title="by primitive")
made = log.implementation.str.replace("+", "\n+ ").replace("", "(not named)")
by_implementation = pd.Series(time_by(log.assign(name=log.primitive + "\n" + made), "name"))
by_implementation = (by_implementation / logged_steps).head(7)
axes[1].barh(list(by_implementation.index), by_implementation, color=plots.GREEN)
axes[1].set(xlabel="ms in a step", title="by implementation")
axes[1].tick_params(axis="y", labelsize=9)
for axis in axes:
    axis.invert_yaxis()
    axis.bar_label(axis.containers[0], fmt="{:.2f}", padding=3)
    axis.margins(x=0.18)
figure.suptitle("oneDNN's time in a training step")
plots.show(
    figure,
    alt=f"Milliseconds in one training step of {step_ms:.1f} ms. By primitive: "
    + ", ".join(f"{name} {ms:.2f}" for name, ms in by_primitive.items())
    + ". By implementation: "
    + ", ".join(f"{' '.join(name.split())} {ms:.2f}" for name, ms in by_implementation.items()),
    keep=results,
    watched=[log_others],
)
print(
    f"Of the {step_ms:.1f} ms of a step, {by_primitive.sum():.1f} ms are oneDNN's, both as "
    f"means of {logged_steps} steps.\nThe rest is Eigen, TensorFlow, and writing the log."
)

# %% [markdown]
# The name of the implementation says how it was made. `jit` is code that oneDNN generated for exactly these shapes
# while the program ran. `brg` is built on its *batch-reduce GEMM*: the products of a batch of pairs of blocks, summed
# into one block. `gemm` is a plain matrix product; `gemm_api` you have just met. After the colon comes the instruction
# set.
#
# ### Exercise 4 · What do the reorders cost?
#
# Each step changes the weights, so they are blocked again in each step. The gradients with respect to the weights come
# out blocked, and are converted back to plain. Write `blocking(log)`. It returns the rows of the log, with all their
# columns, in which a reorder converts a plain tensor (`src`) to a blocked one (`dst`), with blocks of any size. Leave
# out reorders from blocked to plain, and from plain to plain.


# %%
def blocking(log):
    """Return the rows of the log in which a reorder puts a plain tensor into blocks."""
    ### BEGIN SOLUTION
    plain = log.src.str.islower() & ~log.src.str.contains(r"\d")
    return log[(log.primitive == "reorder") & plain & log.dst.str.contains(r"\d")]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
blocking = check(4, blocking)

# %%
reorders = log[log.primitive == "reorder"]
into_blocks = blocking(log)
per_process = reorders.groupby("process").ms.sum() / log.groupby("process").ms.sum()
share_of_reorders = 100 * middle(per_process)
print(
    f"reorders: {len(reorders) / logged_steps:.0f} in a step, "
    f"{share_of_reorders[0]:.1f}% of oneDNN's time"
)
print(
    f"into blocks: {len(into_blocks) / logged_steps:.0f} in a step, "
    f"{into_blocks.ms.sum() / logged_steps:.3f} ms"
)
into_blocks[["src", "dst", "problem"]].value_counts().rename("calls").reset_index()

# %% [markdown]
# That is the price of blocked weights: a copy of the weights, but not of the images, which are many times as large.
#
# ## 7 · How close are the convolutions to the machine's limit?
#
# Milliseconds alone don't tell you whether a convolution is fast. Two limits hold for it. The cores can do so many
# operations in a second; in practice, a large matrix product shows how many. And memory can bring so many bytes in a
# second. Both are measured once on this machine, in about 20 s, and then kept (in a terminal: `./lab roofline`).

# %%
limits = measure.limits(quick=QUICK)
peak = limits.peak("float32")
library = limits.products["float32"][0].library
print(f"cores:  {peak:7,.0f} GFLOP/s in float32, by a matrix product of {library}'s")
print(f"memory: {limits.bandwidth:7,.1f} GB/s")
if limits.others.busy:
    print(limits.others)

# %% [markdown]
# How much does a convolution compute? It is nothing but multiply-adds. Lay the kernel on the image, multiply each pair
# of numbers, add up the products, and move on by one place. By hand, on an image of 5 × 5 with a kernel of 3 × 3 that
# finds vertical edges:

# %% tags=["nbval-check-output"]
picture = np.array(
    [
        [0, 0, 1, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 1, 1, 1, 0],
    ],
    "float32",
)
kernel = np.array([[-1, 0, 1], [-1, 0, 1], [-1, 0, 1]], "float32")
by_hand, multiply_adds = np.zeros((3, 3), "float32"), 0
for row, column in np.ndindex(3, 3):  # of the output
    for i, j in np.ndindex(3, 3):  # of the kernel
        by_hand[row, column] += picture[row + i, column + j] * kernel[i, j]
        multiply_adds += 1
by_tensorflow = tf.nn.conv2d(picture[None, :, :, None], kernel[:, :, None, None], 1, "VALID")
print(by_hand)
same = np.array_equal(by_hand, by_tensorflow[0, :, :, 0])
print(f"{multiply_adds} multiply-adds. The same as TensorFlow's: {same}")

# %% [markdown]
# ### Exercise 5 · Count the operations
#
# A multiply-add is two operations. Now there is a batch of images, each with several channels, and several kernels, one
# for each output channel. Each kernel covers all input channels, and adds up over them too. Which loops must be added
# to the four above? Write `flops(mb, ic, oc, oh, ow, kh, kw)`. The names are oneDNN's: `mb` images in the batch, `ic`
# input channels, `oc` output channels, `oh × ow` the size of the output, `kh × kw` the size of the kernel. Don't count
# in loops: a layer has billions of operations, and your function is called for each convolution in the log.


# %%
def flops(mb, ic, oc, oh, ow, kh, kw):
    """Return the floating-point operations of one convolution."""
    ### BEGIN SOLUTION
    return 2 * mb * oc * oh * ow * ic * kh * kw
    ### END SOLUTION


# %% tags=["nbval-check-output"]
flops = check(5, flops)

# %% [markdown]
# Each of the two gradients of a convolution takes as many operations as the forward pass. So your formula gives GFLOP/s
# for every convolution in the log. It also gives the [**arithmetic
# intensity**](../docs/glossary.md#arithmetic-intensity): operations for each byte, if images, weights and result pass
# memory once. Intensity times bandwidth is the speed at which memory could feed the convolution. The lower of that and
# the peak of the cores is its **roof**: this is the [**roofline**](../docs/glossary.md#roofline) model, of which lab 03
# has more.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The first convolution (conv1, forward) has one input channel, so it computes little for each byte.
# Which limit holds it back? Say "neither" if you expect less than half of its roof.
#
# </div>

# %%
results.guess(4, "what limits conv1, forward", ..., choices=("arithmetic", "memory", "neither"))

# %%
SHAPE = ("mb", "ic", "oc", "oh", "ow", "kh", "kw")
LAYER = {"ic1oc32": "conv1", "ic32oc64": "conv2"}
PASS = {
    "forward_training": "forward",
    "backward_data": "gradient of the images",
    "backward_weights": "gradient of the weights",
}


def work_of(row):
    """Return name, floating-point operations and bytes of a convolution in the log."""
    size = {name: int(value) for name, value in re.findall(r"([a-z]+)(\d+)", row.problem)}
    before = size["mb"] * size["ic"] * size["ih"] * size["iw"]
    after = size["mb"] * size["oc"] * size["oh"] * size["ow"]
    kernels = size["oc"] * size["ic"] * size["kh"] * size["kw"]
    layer = LAYER[f"ic{size['ic']}oc{size['oc']}"]
    name = f"{layer}, {PASS[row.direction]}"
    return name, flops(*(size[name] for name in SHAPE)), 4 * (before + after + kernels)


convolutions = log[log.primitive == "convolution"].copy()
convolutions[["what", "flop", "bytes"]] = [work_of(row) for row in convolutions.itertuples()]
speeds, roofs, made_by = {}, {}, {}
for what, calls in convolutions.groupby("what", sort=False):
    ms = calls.groupby("process").ms.median()
    flop, moved = calls.flop.iloc[0], calls.bytes.iloc[0]
    speeds[what] = middle(flop / ms / 1e6)  # GFLOP/s
    roofs[what] = limits.attainable(flop / moved)
    made_by[what] = calls.implementation.iloc[0].partition("+")[0]
    print(
        f"{what:31}{flop / moved:6.1f} FLOP/byte{speeds[what][0]:6,.0f} GFLOP/s ="
        f"{100 * speeds[what][0] / roofs[what]:4.0f}% of its roof of {roofs[what]:5,.0f}"
    )
first = "conv1, forward"
held_back_by = "memory" if roofs[first] < peak else "arithmetic"
results.compare_guess(4, held_back_by if speeds[first][0] > roofs[first] / 2 else "neither")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(10, 4.5))
rows = np.arange(len(speeds))
value, low, high = np.array([*speeds.values()]).T
reach = np.nan_to_num([value - low, high - value])
axis.barh(rows, value, color=plots.BLUE, height=0.55)
axis.errorbar(value, rows, xerr=reach, fmt="none", color="black", capsize=3)
for row, roof in zip(rows, roofs.values()):
    axis.plot([roof, roof], [row - 0.38, row + 0.38], color=plots.VERMILION, marker="")
axis.plot([], [], color=plots.VERMILION, marker="", label="roof: memory or cores")
axis.axvline(peak, color="black", linestyle="--", linewidth=1.5, label="peak of the cores")
widest = min(max(peak, *np.nan_to_num(high), *value), 2.5 * max(peak, *value))
for row, what in zip(rows, speeds):
    of_roof = f"{speeds[what][0]:,.0f}: {100 * speeds[what][0] / roofs[what]:.0f}% of its roof"
    axis.text(1.04 * widest, row, of_roof, va="center", fontsize=11)
axis.set_yticks(rows, [f"{what}\n{made_by[what]}" for what in speeds], fontsize=11)
axis.invert_yaxis()
axis.set(xlabel="GFLOP/s", xlim=(0, 1.5 * widest))
axis.set_title("oneDNN's convolutions under their roofs")
axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=2)
plots.show(
    figure,
    alt=f"GFLOP/s of each convolution beside its roof; the peak of the cores is {peak:,.0f}: "
    + "; ".join(f"{what} {speeds[what][0]:,.0f} of {roofs[what]:,.0f}" for what in speeds),
    keep=results,
    watched=[log_others, limits.others],
)

# %% [markdown]
# A bar at its roof can't become longer: only less work would help. A bar far below it is limited by something that this
# model does not have. Look at the names of the implementations under the convolutions: do the same operations run
# equally fast in each of them? (A share above 100% means that a cache did what the model expects of memory, or that the
# limits were measured while the machine was busy.)
#
# Is the single input channel what holds conv1 back? The next cell changes only that: the same convolution, in this
# process, with more and more input channels.

# %%
timed = {channels: [] for channels in (1, 2, 4, 8, 16, 32)}
tensors = {
    channels: (tf.random.normal((64, 28, 28, channels)), tf.random.normal((3, 3, channels, 32)))
    for channels in timed
}
convolve = tf.function(lambda images, kernels: tf.nn.conv2d(images, kernels, 1, "SAME"))
with load.watch("section 7"):
    for turn in range(CHANNEL_TURNS):
        for channels, seconds in timed.items():
            start = time.perf_counter()
            convolve(*tensors[channels])
            if turn:  # the first turn traces the function
                seconds.append(time.perf_counter() - start)
for channels, seconds in timed.items():
    flop, pixels = flops(64, channels, 32, 28, 28, 3, 3), 64 * 28 * 28
    roof = limits.attainable(flop / 4 / (pixels * (channels + 32) + 9 * channels * 32))
    reached = flop / np.median(seconds) / 1e9
    share = f"{100 * reached / roof:4.0f}% of its roof of {roof:5,.0f}"
    print(f"{channels:2} input channels: {reached:6,.0f} GFLOP/s, {share}")

# %% [markdown]
# If the share of the roof grows with the channels, memory is not what held the first line back. A likely reason is the
# inner loop: with one input channel, there are nine multiply-adds for each result, and around them the loads, the
# stores and the call itself, for which the model has no limit.
#
# Last, the whole step: what share of the peak does it reach? A dense layer counts as a convolution with a kernel of
# 1 × 1 on an image of one pixel, and has two gradients too.

# %%
dense = 3 * (flops(64, 3136, 128, 1, 1, 1, 1) + flops(64, 128, 10, 1, 1, 1, 1))
flop_of_step = convolutions.flop.sum() / logged_steps + dense
of_peak = 100 * flop_of_step / 64 / 1e9 / peak
step_share = of_peak * middle(rates["training"]["oneDNN"])
eigen_share = of_peak * middle(rates["training"]["Eigen"])[0]
print(f"a training step: {flop_of_step / 1e9:.2f} GFLOP")
print(f"share of the peak: Eigen {eigen_share:.0f}%, oneDNN {step_share[0]:.0f}%")
results.step(
    "onednn", Measured(*times["training"], "×"), rate_others, share=round(float(step_share[0]))
)

# %% [markdown]
# ## 8 · Instruction sets and threads
#
# oneDNN generates its code for the best [**instruction set**](../docs/glossary.md#instruction-set) that the CPU has.
# `ONEDNN_MAX_CPU_ISA` sets an upper limit, as if the CPU were older. Eigen's own code was compiled once for all CPUs.
# Below, "oneDNN, AVX2" may use AVX2 and what is older.
#
# The same runs compare one thread with one for each core.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The cap is oneDNN's. Does it make the *Eigen* runs slower too? And how many times as fast is this
# small network with a thread on each core as with one thread?
#
# </div>

# %%
results.guess(5, "does a cap on oneDNN slow Eigen down", ..., choices=("yes", "no"))

# %%
results.guess(6, "all threads against one", ..., unit="×")

# %%
OLDEST = {"ONEDNN_MAX_CPU_ISA": "SSE41"}
capped = {
    "oneDNN": dict(env=ONEDNN),
    "oneDNN, AVX2": dict(env=ONEDNN | {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "oneDNN, SSE4.1": dict(env=ONEDNN | OLDEST),
    "Eigen": dict(env=EIGEN),
    "Eigen, SSE4.1": dict(env=EIGEN | OLDEST),
}
if "AVX-512" not in machine.isa:
    del capped["oneDNN, AVX2"]  # that is what it does without a cap
threaded = {"one thread": dict(threads=1, env=ONEDNN)}
few = ("--only", "training", "--steps", FEW_STEPS)
with load.watch("section 8") as side_others:
    # A small run shows section 1's figures instead.
    side = rates_of(runs if QUICK else compare(capped | threaded, 6, *few), "training")

# %% jupyter={"source_hidden": true}
by_cap = {name: speeds for name, speeds in side.items() if name in capped}
side_rows = []
for newer, older in (
    ("oneDNN, AVX2", "oneDNN, SSE4.1"),
    ("oneDNN", "oneDNN, AVX2"),
    ("oneDNN", "oneDNN, SSE4.1"),
    ("Eigen", "Eigen, SSE4.1"),
):
    if newer in by_cap and older in by_cap:
        gain = ratio(by_cap[newer], by_cap[older])
        print(f"{newer} against {older}: {gain} times as fast: {gain.verdict}")
        if newer == "Eigen" and (gain.low > 1 or gain.high < 1.1):  # else nobody knows
            results.compare_guess(5, "yes" if gain.low > 1 else "no")
        if older.endswith("SSE4.1") and newer in ("oneDNN", "Eigen"):
            name = f"training with {newer}, all instruction sets against SSE4.1"
            side_rows.append((name, "", Measured(*gain, "×"), "", side_others))


# %% jupyter={"source_hidden": true}
def show_rates(speeds, title):
    """Draw the images/s of training of each configuration, with intervals."""
    figure, axis = plt.subplots(figsize=(9, 1.2 + 0.65 * len(speeds)))
    rows = range(len(speeds))
    each = [middle(rounds)[0] for rounds in speeds.values()]
    colours = [plots.ORANGE if name.startswith("Eigen") else plots.BLUE for name in speeds]
    axis.barh(rows, each, color=colours, height=0.6)
    reach = whiskers(speeds.values())
    axis.errorbar(each, rows, xerr=reach, fmt="none", color="black", capsize=4)
    labels = [f"{name}: {value:,.0f}" for name, value in zip(speeds, each)]
    axis.set_yticks(rows, labels)
    axis.invert_yaxis()
    axis.set(xlabel="images/s", title=title, xlim=(0, min(axis.get_xlim()[1], 2.5 * max(each))))
    alt = "Training, images per second: " + "; ".join(labels)
    plots.show(figure, alt=alt, watched=[side_others])


show_rates(by_cap, "Training with oneDNN's instruction sets capped")

# %% [markdown]
# What you may expect on paper, for arithmetic alone:
#
# - **SSE4.1 to AVX2**: registers hold 8 numbers instead of 4. And AVX2 comes with FMA, which multiplies and adds in one
#   instruction. Together, up to 4 times.
# - **AVX2 to AVX-512**: 16 numbers instead of 8, so twice, on CPUs whose arithmetic units are 512 bits wide: most of
#   Intel's Xeons, and AMD's Zen 5. Zen 4 has the instructions, but units of 256 bits. Each instruction keeps one busy
#   for two cycles, so on paper nothing is gained.
#
# Memory does not get faster by any of this, so what waits for it gains less. It can also gain more, where oneDNN has
# its newer algorithms for the newer instruction set only. BF16 and [**AMX**](../docs/glossary.md#amx), where your CPU
# has them, work on numbers of 16 and 8 bits. This network's numbers have 32 bits; lab 04 uses fewer.
#
# And Eigen? Section 6 showed who multiplies for it. If the cap made it slower, you have now measured what that is
# worth.
#
# ### Threads
#
# These settings control the threads within one operation ([**intra-op
# parallelism**](../docs/glossary.md#intra-op-parallelism)) and across operations:
#
# | setting | whose threads | in this build |
# | --- | --- | --- |
# | intra-op (`TF_NUM_INTRAOP_THREADS`) | share one operation's work | TensorFlow's and oneDNN's: one pool |
# | inter-op (`TF_NUM_INTEROP_THREADS`) | run independent operations at the same time | TensorFlow's |
# | `OMP_NUM_THREADS`, `KMP_AFFINITY`, `KMP_BLOCKTIME` | OpenMP's | are there any? |

# %% jupyter={"source_hidden": true}
threads = {name: side[name] for name in ("oneDNN", *threaded) if name in side}
tell(threads)
if "one thread" in threads:
    gain = ratio(threads["oneDNN"], threads["one thread"])
    print(f"{cores} threads are {gain} times as fast as one: {gain.verdict}")
    if cores > 1 and gain.significant:
        parallel = (1 - 1 / gain.value) / (1 - 1 / cores)
        print(f"as if {100 * parallel:.0f}% of the step were shared out, the rest not (Amdahl)")
    results.compare_guess(6, Measured(*gain, "×"))
    name = f"training with oneDNN, one thread → all, on {cores} cores"
    side_rows.append((name, "", Measured(*gain, "×"), f"{cores}×", side_others))
results.hand_in("8", *side_rows)

# %% jupyter={"source_hidden": true}
show_rates(threads, f"Training with other threads, on {cores} cores")

# %% [markdown]
# Amdahl's law: if a share *p* of the work is shared out perfectly among *n* cores and the rest not at all, all of them
# are 1 / (1 − p + p/n) times as fast as one. The kinds of operations in section 6 need not all be shared out equally
# well: for small ones, it may not be worth it.
#
# `OMP_NUM_THREADS`, `KMP_AFFINITY` and `KMP_BLOCKTIME` are not in this comparison: the build has no OpenMP, as the head
# of the log said, so nothing reads them. Lab 03 has a build in which they work.
#
# **Finished early?** Two open tasks.
#
# - Make the training step of this network as fast as you can, without a smaller network. Section 6 shows where the time
#   goes. Some ideas: the batch size, Keras' policy `mixed_bfloat16`, other numbers of channels, `jit_compile`. Change a
#   copy of `work/cnn.py`, measure it and the original in turns, and report the gain with its interval. What did each
#   idea gain, and which one made it slower?
# - See the instructions. `ONEDNN_JIT_DUMP=1` makes oneDNN write the code that it generates to files;
#   `objdump -D -b binary -mi386:x86-64` shows it. Count `zmm` and `ymm` registers, with a cap and without.

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. Those that name an optional section are for whoever did it.
# The instructor's notebook has answers.
#
# 1. What does oneDNN gain in training, and in inference? Do the intervals show that the two gains differ? Which
#    operations explain your answer?
# 2. Do both libraries learn the same? What would you check before you trust a faster library?
# 3. Which operations does it take over, and which operations of the old table does it leave to Eigen today? Why?
# 4. What does fusion save: arithmetic or memory traffic? *(section 4)*
# 5. Converting the layout can cost less than the better layout gains. Where do you see the conversion, and what does it
#    cost here?
# 6. What is layout propagation, and why does this TensorFlow not need it?
# 7. Which convolution is furthest below its roof? Is memory the reason?
# 8. What are intra-op and inter-op threads, and what is `OMP_NUM_THREADS` in a build with OpenMP? *(section 8)*

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions, timing, and what goes wrong.
#
# ### Answers
#
# 1. In the stored run, on 2 cores of an Intel Xeon with AMX, training gained 2.11 times (1.92 to 2.32) and inference
#    1.40 times (1.35 to 1.46): the intervals are apart, so the two gains differ. On 2 cores of an AMD EPYC (Zen 4) they
#    were 1.88 (1.38 to 2.57) and 1.36 (1.23 to 1.50), which overlap: that run alone did not show it. Section 6's
#    table explains why training may gain more: the three kinds that save most, the gradients of the weights and of
#    the images and pooling's, are in the backward pass alone. conv2 has one kernel forward and two backward, conv1
#    one and one: nobody needs the gradient of the digits.
# 2. Up to rounding. Section 1 prints the largest difference of the losses, and beside it that between runs of one
#    library: what a program does not reproduce with itself, it can't with another. Check the loss curve over many steps
#    and the accuracy, not single bits.
# 3. Convolution, matrix product, pooling and batch norm, forward and backward; softmax, transpose, einsum and depthwise
#    convolution came later. Eigen runs Relu, Tanh, Elu, LRN and Concat again. Arithmetic intensity is not the reason:
#    pooling, batch norm and transpose have a low one too. Relu and LRN had to understand blocked tensors while these
#    were passed on; since images stay nhwc, that is no longer needed, and fusion saves Relu's pass over memory.
# 4. Memory traffic. All the additions and maxima are still computed.
# 5. In the `reorder` rows: the weights into blocks, their gradients back. A few per cent here, because the weights are
#    small compared with the images. In a frozen graph, the weights are constants and are blocked only once.
# 6. Blocked tensors pass from operation to operation, and reorders stand only at the borders. oneDNN's nhwc
#    convolutions became about as fast as the blocked ones, so only the weights need blocks, and no other operation
#    reads those.
# 7. conv1, in both passes: in the stored run (Intel Xeon with AMX), its gradient of the weights reached 12% of its roof
#    and its forward pass 29%. Its intensity is low, 4.4 FLOP/byte, so its roof is memory's. But memory could feed 3 to
#    8 times what it does, so memory is not the reason. conv2's gradient of the weights (72%) has the same operations
#    and bytes as its sisters (93% and 95%), and another implementation.
# 8. Intra-op: threads that share one operation. Inter-op: operations that run at the same time. With OpenMP,
#    `OMP_NUM_THREADS` sets oneDNN's intra-op threads, and TensorFlow's own intra-op threads come on top: if both are
#    the number of cores, there are twice as many threads as cores.
#
# Blocks of 16 channels fill a register of AVX-512: 512 bits hold 16 numbers of 32 bits. AVX2 has 256 bits, so blocks of
# 8: cap the instruction set and look at the log.
#
# **Timing** Sections 1 to 4 take 29 minutes, 5 and 6 take 32, the rest 26. Exercise 2 is where people need help: let
# them draw the loops. Short of time? Skip sections 2, 4 and 8.
#
# **What goes wrong** By default, TensorFlow uses oneDNN where the CPU has VNNI, BF16 or AMX, and Eigen elsewhere: the
# first Xeons with AVX-512 get Eigen. So the lab sets `TF_ENABLE_ONEDNN_OPTS=1`. If `ONEDNN_VERBOSE=1` is set in the
# environment of the *notebook*, it fills JupyterLab's terminal, not the cell.
#
# </div>

# %% [markdown]
# ## Remember
#
# - One variable chooses the library when TensorFlow starts: `TF_ENABLE_ONEDNN_OPTS`. Even "Eigen" multiplies by oneDNN.
# - A faster library must learn the same. Compare losses before you compare times.
# - Look at the graph that ran, not at the one you wrote, and at the time of each operation.
# - Fusion saves passes over memory. For inference, you can fold a batch norm away.
# - Images stay nhwc today. Weights are blocked, and the reorders are the cost.
# - `ONEDNN_VERBOSE=1` shows everything: what ran, how, in which layout, how long.
# - Compare with the roof, not only with the other library.
# - `OMP_NUM_THREADS` works only in a build with OpenMP. The head of the log says which build you have.
#
# The closing table shows what was published, what you measured, and the most that the machine could do:

# %% jupyter={"source_hidden": true}
best = max(speeds, key=lambda what: speeds[what][0])
rows = [
    (
        "ResNet-50 training, default → MKL-DNN, batch 16",
        "3.84 → 17.69 images/s: 4.6×",
        "lab 03",
        "",
    ),
    *(
        (
            f"this CNN, {what}, Eigen → oneDNN, batch 64",
            "",
            Measured(*times[what], "×", of=paces[what]),
            "",
            rate_others,
        )
        for what in times
    ),
]
if time_to_loss:
    name = f"this CNN, training to a loss of {TARGET}, Eigen → oneDNN"
    rows.append((name, "", Measured(*time_to_loss, "×"), "", rate_others))
rows += [
    (
        "its training step's share of the peak, with oneDNN",
        "",
        Measured(*step_share, "%", digits=0),
        "100%",
        rate_others,
        limits.others,
    ),
    (
        f"its fastest convolution ({best})",
        "",
        Measured(*speeds[best], "GFLOP/s", digits=0),
        f"{roofs[best]:,.0f} GFLOP/s",
        log_others,
        limits.others,
    ),
    (
        "reorders' share of oneDNN's time",
        "",
        Measured(*share_of_reorders, "%", digits=1),
        "",
        log_others,
    ),
    *results.handed_in("4", ("batch norm folded away, against not", "")),
    *results.handed_in(
        "8",
        ("training with oneDNN, all instruction sets against SSE4.1", ""),
        ("training with Eigen, all instruction sets against SSE4.1", ""),
        (f"training with oneDNN, one thread → all, on {cores} cores", ""),
    ),
]
results.table("oneDNN", rows)

# %% [markdown]
# Published: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (the source does not name
# the machine). The limit is the roof: the fastest matrix product in single precision on the same cores, or what memory
# can feed.
#
# Where you are on the way from the default to the fastest that this machine can do:

# %%
ladder.show(results)

# %% [markdown]
# **Next:** [lab 03](03_resnet50.ipynb) asks the same questions about ResNet-50.
