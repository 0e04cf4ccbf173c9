# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: find out how much oneDNN speeds up a network, and how
#     needs: [ISA, memory, TensorFlow, MPI, data]
#     better_with: [cores]
# ---

# %% [markdown]
# # 02 · oneDNN under an MNIST CNN
#
# The same network, the same TensorFlow, the same training but for rounding: one environment variable decides how long
# you wait. It chooses the library that does the arithmetic.
#
# **You will learn** where the difference in speed comes from when one small network runs on two libraries, TensorFlow's
# own Eigen and oneDNN: which operations are replaced, which are merged, how the numbers lie in memory, and how close
# each operation comes to the limit of the machine.
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

from labkit.display import consistency, graphs, ladder, markdown, onednn, plots
from labkit.display.consistency import Limit
from labkit.display.measured import Measured
from labkit.models import mnist_cnn
from labkit.mpi import run_ranks
from labkit.roofline import measure
from labkit.system import load
from labkit.system.paths import ROOT
from labkit.system.statistics import interval, ratio, ratios

tf.get_logger().setLevel("ERROR")  # section 2 traces many small functions, on purpose

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
ROUNDS = 1 if QUICK else 6  # of each comparison, sections 1 and 7: one process each
STEPS, PROFILED = (5, 2) if QUICK else (200, 20)  # in a process of section 1: timed, profiled
FEW_STEPS = 5 if QUICK else 30  # in a process of section 7
LOGGED = 1 if QUICK else 4  # processes of section 4
LOG_STEPS = 5 if QUICK else 20  # in each of them
FOLDING_TURNS = 5 if QUICK else 100  # section 3
CHANNEL_TURNS = 3 if QUICK else 40  # section 6
TARGET = 2.5 if QUICK else 0.5  # the loss to reach: section 1

# %% [markdown]
# ## 1 · One network, two libraries {read 8, wait 2.1}
#
# A layer of a network is a few nested loops over numbers. TensorFlow decides *which* loops to run, and a library runs
# them. On CPUs, TensorFlow has two such libraries: **Eigen**, which it has always had, and **oneDNN**. Intel started
# oneDNN, as MKL-DNN; today several companies develop it in the open, and it runs on AMD and Arm CPUs too. The variable
# `TF_ENABLE_ONEDNN_OPTS` chooses between the two. TensorFlow reads it only when it starts, so each measurement needs a
# new process.
#
# The two are not fully separate: Eigen, too, hands its large matrix products to a oneDNN routine (section 5).
#
# This is the network, for pictures of 28 × 28 pixels.

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
# The next script trains it from the same weights on the same batches with either library. `timed_steps` runs both
# functions on one batch after another, times each step as a whole (the speed is that of the median step), and keeps the
# losses. At the end it runs some more steps under TensorFlow's profiler, for section 5.

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
    gradients = tape.gradient(loss, model.trainable_weights)
    optimizer.apply(gradients, model.trainable_weights)
    return loss


@tf.function
def inference(images, labels):
    return model(images, training=False)


if __name__ == "__main__":
    timed_steps.main({"inference": inference, "training": training}, list(data.batch(BATCH)))


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster is training with oneDNN than with Eigen on your machine? And inference? Write your
# guesses in place of the dots: 2 means twice the speed.
#
# </div>

# %%
results.guess(1, "training with oneDNN vs Eigen", ..., unit="×")

# %%
results.guess(2, "inference with oneDNN vs Eigen", ..., unit="×")

# %% [markdown]
# `run_ranks(1, …)` starts the script once, on all your cores, and ends it if it hangs.
#
# - The two libraries run alternately, so noise from other programs affects both. If other work took more than 5% of the
#   cores, `load.watch` prints a warning: run the cell again later.
# - One [**inter-op**](../docs/glossary.md#inter-op-parallelism) thread runs one operation at a time, so that the times
#   of the operations sum to that of the step. Each operation still uses all cores. In a chain of layers, little else
#   could run concurrently, so this setting should cost little.
#
# `tell` prints each ratio with its 95% [**confidence interval**](../docs/glossary.md#confidence-interval) in brackets.
# Each round starts a new process per library and gives one ratio. The better the rounds agree, the shorter the
# interval. If it excludes 1, `tell` says "faster" or "slower". If a round is far from the others, the number of rounds
# won decides instead.

# %%
ONE_AT_A_TIME = {"TF_NUM_INTEROP_THREADS": 1}
EIGEN = {"TF_ENABLE_ONEDNN_OPTS": 0, **ONE_AT_A_TIME}
ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": 1, **ONE_AT_A_TIME}


def compare(configurations, about_s, *args):
    """Return the results of each configuration in each round: one process each, alternately."""
    seen = {name: [] for name in configurations}
    processes = ROUNDS * len(configurations)
    print(f"{ROUNDS} rounds: {processes} processes, about {processes * about_s} s", flush=True)
    for turn in range(ROUNDS):
        for name, env in configurations.items():
            run_ranks(1, "work/cnn.py", *args, show=False, env=env)
            seen[name].append(result := json.loads((work / "cnn.json").read_text()))
            rates = "".join(
                f"{what:>11} {result[what]['images/s']:7,.0f} images/s"
                for what in ("training", "inference")
                if what in result
            )
            print(f"round {turn + 1} of {ROUNDS}  {name:15}{rates}", flush=True)
    return seen


# %%
def rates_of(seen, what):
    """Return the images/s of each configuration, round by round."""
    return {name: [each[what]["images/s"] for each in runs] for name, runs in seen.items()}


def tell(speeds):
    """Print how each configuration compares with the first one, and the verdict of the rounds."""
    first = next(iter(speeds))
    for name, gain in ratios(speeds, first).items():
        if name != first:
            print(f"{name}: {Measured(*gain, '×')} vs {first}: {gain.verdict_by_rounds}")


with load.watch("section 1") as rate_others:
    runs = compare(
        {"Eigen": EIGEN, "oneDNN": ONEDNN}, 10, *("--steps", STEPS, "--profiled", PROFILED)
    )
rates = {what: rates_of(runs, what) for what in ("training", "inference")}
gains = {}
for what, per_library in rates.items():
    print(what)
    tell(per_library)
    gains[what] = ratios(per_library, "Eigen")["oneDNN"]
results.compare_guess(1, Measured(*gains["training"], "×"))
results.compare_guess(2, Measured(*gains["inference"], "×"))
apart = (
    gains["training"].low > gains["inference"].high
    or gains["inference"].low > gains["training"].high
)
print(
    "The two intervals are apart: training and inference gain differently."
    if apart
    else "These rounds do not show that the two gains differ: their intervals are not apart."
)


# %% jupyter={"source_hidden": true}
def middle(values):
    """Return the geometric mean of rounds, and its 95% confidence interval."""
    mean, half = interval(np.log(np.asarray(values, float)))
    return np.exp([mean, mean - half, mean + half])


def whiskers(intervals):
    """Return how far intervals reach below and above their values, as matplotlib takes it."""
    value, low, high = np.array([*intervals]).T
    return np.nan_to_num([value - low, high - value])


figure, axis = plt.subplots(figsize=(9, 3))
bars = [gain[0] for gain in gains.values()]
axis.barh(list(gains), bars, color=plots.BLUE, height=0.5)
reach = whiskers(gains.values())
axis.errorbar(bars, list(gains), xerr=reach, fmt="none", color="black", capsize=5)
axis.axvline(1, color=plots.ORANGE, linestyle="--")
paces = {
    what: " → ".join(f"{middle(pace)[0]:,.0f}" for pace in per_library.values()) + " images/s"
    for what, per_library in rates.items()
}
axis.set_yticks(range(len(gains)), [f"{what}\n{paces[what]}" for what in gains])
axis.invert_yaxis()
axis.set(xlabel="speed relative to Eigen (dashed: equal)", title="oneDNN vs Eigen")
axis.set_xlim(0, min(axis.get_xlim()[1], 2.5 * max(bars)))  # disturbed rounds have no end
plots.show(
    figure,
    alt="Speed with oneDNN relative to Eigen, with 95% intervals: "
    + "; ".join(f"{what} {gains[what]}, {paces[what]}" for what in gains),
    keep=results,
    watched=[rate_others],
)

# %% [markdown]
# Published: in 2019, Intel showed ResNet-50 training at 3.84 images/s by default and at 17.69 with MKL-DNN, 4.6×.
# TensorFlow's default was then built for older instruction sets. What is left of the difference, and why?
#
# ### Do both learn the same?
#
# When TensorFlow starts with oneDNN, it warns of "slightly different numerical results": sums are added in another
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


print("step   Eigen      oneDNN     difference")
for step in sorted({1, 10, 100, STEPS} & {*range(STEPS + 1)}):
    eigen, fast = (losses[name][0, step - 1] for name in ("Eigen", "oneDNN"))
    print(f"{step:4}  {eigen:.7f}  {fast:.7f}  {abs(fast / eigen - 1):8.1e}")
for name, each in losses.items():
    spread = (np.ptp(each, axis=0) / each[0]).max()
    same = (
        "the same losses in all rounds" if spread == 0 else f"rounds differ by up to {spread:.1e}"
    )
    print(f"{name}: {same}")

needed = {name: np.array([until(TARGET, run) for run in runs[name]]).T for name in runs}
time_to_loss = None
if not np.isnan([*needed.values()]).any():
    for name, (steps, seconds) in needed.items():
        print(f"loss {TARGET}: {name} after {steps[0]:.0f} steps, {middle(seconds)[0]:.2f} s")
    time_to_loss = ratio(*(1 / needed[name][1] for name in ("oneDNN", "Eigen")))
    print(f"time to this loss: {Measured(*time_to_loss, '×')} vs Eigen: {time_to_loss.verdict}")
else:
    print(f"Not every run reached a loss of {TARGET} in {STEPS} steps.")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 3.5))
ends = {}
for name, colour, line in (("Eigen", plots.ORANGE, "--"), ("oneDNN", plots.BLUE, "-")):
    run = runs[name][0]["training"]
    clock = np.cumsum(run["seconds"])
    ends[name] = f"{clock[-1]:.2f} s with {name}"
    axis.plot(clock, smooth(run["losses"]), line, color=colour, marker="", label=name)
axis.axhline(TARGET, color="grey", linewidth=1, linestyle=":")
axis.set(xlabel="seconds of training", ylabel="loss, mean of 20 steps")
axis.set_title("The same training, on two clocks")
axis.legend()
plots.show(
    figure,
    alt=f"Loss against seconds of training in the first round: {STEPS} steps take "
    + ", ".join(ends.values()),
    keep=results,
    watched=[rate_others],
)

# %% [markdown]
# If the first losses agree but for rounding and differ more with each step, neither library is wrong: each step starts
# from the weights of the last, so training amplifies tiny differences. What matters is that both curves have the same
# shape and fall to the same level.
#
# [**Time to accuracy**](../docs/glossary.md#time-to-accuracy) is the number of steps times the time of each. If the
# curves agree, a faster step is worth nearly its whole factor. Labs 04 and 07 make changes that also change the number
# of steps.
#
# ## 2 · Which operations it takes over {read 6}
#
# Before TensorFlow runs a graph, it replaces the operations on its list with oneDNN's. The graph that you wrote does
# not show this: look at the graph that **ran**. `onednn.graph_that_ran` runs a function as a `tf.function` and returns
# both graphs.
#
# The next two cells measure the table of a 2019 talk again, operation by operation, for the [**forward
# pass**](../docs/glossary.md#forward-pass) (which computes the output) and the [**backward
# pass**](../docs/glossary.md#backward-pass) (which computes the [**gradients**](../docs/glossary.md#gradient)). How
# much of it still holds? They run each operation alone on random numbers, and four operations that the old table lacks.

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
# Compare the columns. Is `Transpose`, which computes nothing, taken over? And Relu? The dividing line is not how much
# an operation computes, but probably history. In 2019, oneDNN's convolutions needed tensors in a layout of their own
# (section 4), so every operation *between* two convolutions had to understand that layout, including Relu, LRN and
# concatenation. Today the images keep TensorFlow's layout, and Eigen's Relu reads it as well as oneDNN's. With the move
# to oneDNN 3, Relu, Tanh and LRN left TensorFlow's list (`mkl_layout_pass.cc` in its source).
#
# That does not mean that each Relu costs a pass over memory: look for it in the next table. Here is the real network:
# what was written, and what ran, for one training step.

# %%
keras.utils.set_random_seed(0)
model = mnist_cnn()
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
images, labels = tf.random.normal((64, 28, 28, 1)), tf.zeros(64, tf.int32)


def loss_and_gradients(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    return loss, tape.gradient(loss, model.trainable_weights)


written, ran = onednn.graph_that_ran(loss_and_gradients, images, labels)
LAYERS = "Conv2D|MatMul|MaxPool|Relu|BiasAdd"
layers_written, layers_ran = (
    Counter(node.op for node in nodes if re.search(LAYERS, node.op)) for nodes in (written, ran)
)
print(f"{len(written)} nodes were written, {len(ran)} ran. Those of the layers:\n")
print(f"{'written':28}{'ran':48}")
blanks = [("", "")] * len(layers_written)
for (op, n), (op_ran, n_ran) in zip(
    layers_written.most_common(), [*layers_ran.most_common(), *blanks]
):
    print(f"{n:2} {op:25}{n_ran:2} {op_ran}")

# %% [markdown]
# Look for three changes to the layers:
#
# - **Merged**: `Conv2D`, `BiasAdd` and `Relu` were three operations. Now they are one.
# - **Replaced**: names with `_Mkl` are oneDNN's. This step also merges: the gradient of a convolution's bias became
#   part of `…BackpropFilterWithBias`.
# - **Left out**: of two `Conv2DBackpropInput`, only one ran. The other would compute the gradient with respect to the
#   *images*, which nothing needs.
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
# With Eigen, the oneDNN pass is skipped, and `_FusedConv2D` runs.
#
# ## 3 · Fusion {read 4, do 7, optional}
#
# Why merge operations? A convolution ends with its output in the core's registers, where adding the bias and applying
# Relu costs almost nothing. As separate operations, each would read the whole output from memory and write it back.
# Merging them is called [**operator fusion**](../docs/glossary.md#operator-fusion). Here are the convolutions and
# poolings of the forward pass, as written and as they ran.

# %%
written, ran = onednn.graph_that_ran(lambda images: model(images, training=False), images)
before, after = (
    [node for node in nodes if re.search("conv|pool", node.name) and re.search(LAYERS, node.op)]
    for nodes in (written, ran)
)
plots.show(
    graphs.compare(before, after, title="The MNIST CNN, as written and as it runs"),
    alt=f"As written: {graphs.describe(before)}. As it runs: {graphs.describe(after)}.",
    keep=results,
)

# %% [markdown]
# If your own network shows no fusion, think of two traps:
#
# - A bias that is **zero and constant** has no effect: TensorFlow removes the addition first, and then finds nothing to
#   merge. Use trained or random weights.
# - If another operation lies **between** the operations, or something else **uses** the intermediate result, they stay
#   separate.
#
# ### Exercise 1 · Fold a batch norm away
#
# After training, a [**batch normalisation**](../docs/glossary.md#batch-normalisation) (batch norm) is a fixed formula
# for each channel *c*:
#
# $$y_c = \gamma_c \, \frac{x_c - \mu_c}{\sqrt{v_c + \epsilon}} + \beta_c$$
#
# Keras 3 writes it as multiplications and additions, which Grappler does not recognise as a batch norm, so it merges
# nothing. But a convolution with a bias also multiplies and adds, channel by channel. With other weights and another
# bias, it gives the same result without a batch norm. Compilers for inference do this.
#
# Write `fold(w, gamma, beta, mean, variance, epsilon)`. It returns two arrays, the weights and the bias of a
# convolution that equals a convolution (without a bias) followed by the batch norm. `w` has the shape (height, width,
# channels in, channels out). Don't modify the arguments in place.


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
with load.watch("section 3") as folding_others:
    for turn in range(FOLDING_TURNS):
        for function, ms in took.items():
            start = time.perf_counter()
            compiled[function](x)
            if turn:  # the first turn traces the function
                ms.append(1000 * (time.perf_counter() - start))
for function, ms in took.items():
    nodes = onednn.graph_that_ran(function, x)[1]
    kept = [node.op for node in nodes if node.op not in ("Const", "ReadVariableOp")]
    print(f"{function.__name__:16} {np.median(ms):6.2f} ms   {', '.join(kept)}")
saved = ratio(took[with_batch_norm], took[folded])
print(f"folded: {Measured(*saved, '×')} vs batch norm: {saved.verdict} (one process)")
difference = np.abs(with_batch_norm(x) - folded(x)).max()
print(f"largest difference {difference:.1e}, of values up to {np.abs(folded(x)).max():.0f}")
results.hand_in("3", ("batch norm folded vs not", "", Measured(*saved, "×"), "", folding_others))

# %% [markdown]
# ## 4 · How the numbers lie in memory {read 6, do 7, wait 0.45}
#
# A batch of images has four dimensions: *n* the image, *c* the channel, *h* the row, *w* the column. Memory has only
# one. A **layout** maps each element (n, c, h, w) to its *offset*, its place in memory. Its name lists the dimensions
# from the outermost to the innermost:
#
# - **nchw**: each channel is an image of its own. The innermost loop runs over *w*.
# - **nhwc**: the channels of one pixel are neighbours. The innermost loop runs over *c*.
# - **nChw16c**, a [**blocked layout**](../docs/glossary.md#blocked-layout): channels come in blocks of 16. Within a
#   block, the innermost loop runs over *c*; the capital *C* counts blocks.
#
# Why 16? An [**AVX-512**](../docs/glossary.md#avx-512) instruction works on 16 single-precision numbers at once. (AVX2
# works on 8, and its layout is nChw8c.) With nChw16c, it finds 16 channels of a pixel side by side, and the next pixel
# 64 bytes further. With nchw, the channels lie a whole image apart. With nhwc, they are side by side as well, but the
# next pixel is C numbers away.

# %% [markdown]
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
# If the program's layout is not the fastest one, something has to convert the numbers. oneDNN calls this a
# [**reorder**](../docs/glossary.md#reorder). When MKL-DNN came to TensorFlow, its convolutions needed nChw16c. A
# reorder before and after each convolution would have cost more than it gained. So TensorFlow rewrote the graph:
# operations passed blocked tensors to each other, each with a second tensor that described its layout, and reorders
# were needed only at the borders. This was **layout propagation**. It was fragile, and each operation in between had to
# support it.
#
# Since then, oneDNN has added convolutions that work on nhwc directly, about as fast. So today's TensorFlow no longer
# passes blocked tensors on. What is still blocked, then? With `ONEDNN_VERBOSE=1`, oneDNN prints one line for each
# operation (the old name, `MKLDNN_VERBOSE`, no longer works). Here are some training steps in each of several
# processes, and the head of their log.

# %%
print(f"{LOGGED} processes, about {6 * LOGGED} s", flush=True)
logs, log_step_ms = [], []
with load.watch("section 4") as log_others:
    for turn in range(LOGGED):
        args = ("work/cnn.py", "--only", "training", "--steps", LOG_STEPS)
        run = run_ranks(1, *args, env=ONEDNN | {"ONEDNN_VERBOSE": 1}, show=False)
        logs.append(onednn.read_log(run.lines[0], after="training, warm").assign(process=turn))
        log_step_ms += json.loads((work / "cnn.json").read_text())["training"]["seconds"]
        print(f"process {turn + 1} of {LOGGED}: {len(logs[-1])} lines of the log", flush=True)
log, log_step_ms = pd.concat(logs, ignore_index=True), 1000 * np.mean(log_step_ms)
log_head = onednn.describe(run.lines[0])
log_head

# %% [markdown]
# Remember the line `threads`. With **threadpool**, oneDNN works on TensorFlow's own threads. With
# [**OpenMP**](../docs/glossary.md#openmp), as in Intel's builds of 2019 to 2023, it has its own threads besides
# TensorFlow's, and its own settings, `OMP_NUM_THREADS` and `KMP_*`.
#
# In 2019, `ldd` on TensorFlow's library showed `libmklml` and `libiomp5`. Ask the process itself instead: Linux lists
# the libraries that it has loaded in `/proc/self/maps`.

# %%
maps = Path("/proc/self/maps").read_text()
loaded = {"/".join(path.split("/")[-2:]) for path in re.findall(r"/\S+\.so[.\d]*$", maps, re.M)}
sorted(name for name in loaded if re.search("libtensorflow|dnnl|libmkl|libiomp|libgomp", name))

# %% [markdown]
# If none is called oneDNN, it is built *into* TensorFlow's library, and that build also fixes the type of its threads.
# If you see an OpenMP library, the folder before its name says which package loaded it.
#
# The log shows the layout of every tensor. oneDNN writes dimensions as letters in the order (n, c, h, w) or, for
# weights, (out, in, h, w): so `acdb` is n, h, w, c. A **plain** layout has lower-case letters only. A **blocked** one
# has capital letters and numbers. `src` and `dst` are the images, `wei` the weights. Which of the three is blocked?

# %%
convolutions = log[log.primitive == "convolution"]
columns = ["direction", "implementation", "src", "wei", "dst"]
display(convolutions[columns].value_counts().rename("calls").reset_index())
for tensor in ("src", "wei", "dst"):
    layouts = convolutions[tensor].unique()
    blocked_ones = [layout for layout in layouts if onednn.blocks(layout)]
    print(f"{tensor}: {len(blocked_ones)} of {len(layouts)} layouts are blocked")
floats = onednn.floats_per_register(log_head["isa"])
print(f"{log_head['isa']}: a register holds {floats} numbers of 32 bits")
for layout in convolutions.wei.unique():
    sizes = ", ".join(
        f"{'output' if letter == 'a' else 'input'} channels in blocks of {size} "
        f"({size / floats:g} × a register)"
        for letter, size in onednn.blocks(layout).items()
    )
    print(f"{layout:12} {sizes or 'plain'}")

# %% [markdown]
# ## 5 · Where the time goes {read 6, wait 0.2}
#
# Each process of section 1 ended with some training steps under TensorFlow's profiler, which notes when each operation
# starts and ends. So you can compare the two libraries by kinds of operations:

# %%
KINDS = {  # of operations, each with a pattern of their types: the first match counts
    "gradient of the images": "Conv2DBackpropInput",
    "gradient of the weights": "Conv2DBackpropFilter",
    "forward convolution": "Conv2D",
    "matrix products": "MatMul",
    "pooling, backward": "MaxPoolGrad",
    "pooling, forward": "MaxPool",
    "Relu and bias, backward": "ReluGrad|BiasAddGrad",
    "other operations": "",
}
BETWEEN = "between operations"  # TensorFlow's executor, Python, copying the batch

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In which of these kinds does oneDNN save the most milliseconds of a training step?
#
# </div>

# %%
results.guess(3, "where oneDNN saves most", ..., choices=tuple(KINDS))

# %% [markdown]
# A profile is a measurement too, and can be wrong: a profiler slows down what it watches. So each process also ran
# steps *without* the profiler just before, and the next cell compares the sum of the parts (operations and the time
# between them) with those. It draws conclusions, and compares the gain with that of section 1, only if both libraries'
# sums are within 10%.
#
# The two gains may differ. Section 1 timed TensorFlow as it is. For the steps with and without the profiler, each
# process then asked the C library to keep freed memory (`man mallopt`). Otherwise, large temporary arrays may come from
# the kernel again in each step, in some processes but not in others.


# %%
def by_kind(run):
    """Return the milliseconds of a step in each kind of operation, and between operations."""
    ms = dict.fromkeys(KINDS, 0.0)
    for op, op_ms in run["profile"]["operations"].items():
        ms[next(kind for kind, pattern in KINDS.items() if re.search(pattern, op))] += op_ms
    step = 1000 * np.median(run["profile"]["seconds"])
    return ms | {BETWEEN: max(0.001, step - sum(ms.values()))}


spent = {name: pd.DataFrame(map(by_kind, each_run)) for name, each_run in runs.items()}
typical = {name: {kind: middle(each[kind]) for kind in each} for name, each in spent.items()}
saves = pd.Series({kind: typical["Eigen"][kind][0] - typical["oneDNN"][kind][0] for kind in KINDS})
sums = {}
for name, each in typical.items():
    plain = [np.median(run["profile"]["plain_seconds"]) for run in runs[name]]
    step = 1000 * middle(plain)[0]
    sums[name] = consistency.total({kind: value[0] for kind, value in each.items()}, step)
    print(f"{name}: {sums[name]}")
reliable = all(each.reliable for each in sums.values())

print(f"\n{'ms in a training step':25}  Eigen  oneDNN  saves")
for kind in [*saves.sort_values(ascending=False).index, BETWEEN]:
    eigen, fast = (typical[name][kind][0] for name in ("Eigen", "oneDNN"))
    gain = ratio(1 / spent["oneDNN"][kind], 1 / spent["Eigen"][kind])
    faster = f"{Measured(*gain, '×')}, {gain.verdict}" if reliable and kind != BETWEEN else ""
    print(f"{kind:25}{eigen:7.2f} {fast:7.2f} {eigen - fast:6.2f}  {faster}")
if reliable:
    print(f"\noneDNN saves most in: {saves.idxmax()}, {saves.max():.1f} of {saves.sum():.1f} ms")
    saved_ms = (spent["Eigen"] - spent["oneDNN"])[[*KINDS]]
    won = (saved_ms.idxmax(axis=1) == saves.idxmax()).sum()
    print(f"It is first in {won} of {len(saved_ms)} rounds.")
    steps_ms = {name: 1 / each.sum(axis=1) for name, each in spent.items()}
    by_profile = ratio(steps_ms["oneDNN"], steps_ms["Eigen"])
    print(
        consistency.repeated(
            "training, oneDNN vs Eigen",
            ("section 1", Measured(*gains["training"], "×")),
            ("the profile", Measured(*by_profile, "×")),
        )
    )
    results.compare_guess(3, saves.idxmax())

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5))
kinds = [*KINDS, BETWEEN]
looks = (("Eigen", plots.ORANGE, "//"), ("oneDNN", plots.BLUE, ""))
for shift, (name, colour, hatch) in zip((-0.2, 0.2), looks):
    places = np.arange(len(kinds)) + shift
    bars = [typical[name][kind][0] for kind in kinds]
    axis.barh(places, bars, 0.4, color=colour, hatch=hatch, label=name)
    reach = whiskers(typical[name].values())
    axis.errorbar(bars, places, xerr=reach, fmt="none", color="black", capsize=3)
axis.set_yticks(range(len(kinds)), kinds)
axis.invert_yaxis()
title = "Time by kind of operation" if reliable else "Unreliable: the parts do not sum to the step"
axis.set(xlabel="ms in a training step", title=title)
largest = max(value[0] for each in typical.values() for value in each.values())
axis.set_xlim(0, min(axis.get_xlim()[1], 2.5 * largest))
axis.legend()
plots.show(
    figure,
    alt=f"{title}. Milliseconds in a training step, Eigen and oneDNN: "
    + "; ".join(
        f"{kind} " + " and ".join(f"{each[kind][0]:.2f}" for each in typical.values())
        for kind in kinds
    ),
    keep=results if reliable else None,
    watched=[rate_others],
)

# %% [markdown]
# If the sums are right, this answers the lab's question, in milliseconds. *Other operations* are the loss, the update
# of the weights and small operations, which are Eigen's in both runs.
#
# ### Who multiplies for Eigen?
#
# Here is a process with oneDNN switched off, which still asks oneDNN for its log. It takes about 10 s.

# %%
args = ("work/cnn.py", "--only", "training", "--steps", LOG_STEPS)
run = run_ranks(1, *args, env=EIGEN | {"ONEDNN_VERBOSE": 1}, show=False)
eigen_log = onednn.read_log(run.lines[0], after="training, warm")
print(f"{len(eigen_log) / LOG_STEPS:.0f} lines per step, although oneDNN is off:")
eigen_log.primitive.value_counts()

# %% [markdown]
# `gemm_api` is a oneDNN matrix product that a program calls directly. Eigen turns its convolutions into matrix
# products, cuts them into blocks that fit into the caches, and passes each block to that routine. So "Eigen" today
# means Eigen's cutting and packing, and oneDNN's instructions in the innermost loop. oneDNN's direct convolutions need
# no such packing.
#
# ### oneDNN's own log
#
# The log of section 4 is a table with a row for each [**primitive**](../docs/glossary.md#primitive) that ran: one
# oneDNN operation, such as a convolution. Each row has the milliseconds, the implementation that oneDNN chose, and the
# layouts. (Not shown: the shapes, the type, and the attributes, which say what was fused into a primitive, such as
# `attr-post-ops:eltwise_relu`.)

# %%
log[["ms", "primitive", "implementation", "src", "wei", "dst"]].head(8)


# %% jupyter={"source_hidden": true}
def ms_per_step(log, column):
    """Return the ms per step of each value of a column, with their intervals, largest first."""
    table = log.pivot_table(index="process", columns=column, values="ms", aggfunc="sum") / LOG_STEPS
    return {name: middle(table[name]) for name in table.mean().sort_values(ascending=False).index}


made = log.implementation.str.replace("+", "\n+ ").replace("", "(not named)")
views = {
    "by primitive": ms_per_step(log, "primitive"),
    "by implementation": ms_per_step(log.assign(made=log.primitive + "\n" + made), "made"),
}
figure, axes = plt.subplots(1, 2, figsize=(11, 4.5))
for axis, (title, view), colour in zip(axes, views.items(), (plots.BLUE, plots.GREEN)):
    names = list(view)[:7]
    bars = [view[name][0] for name in names]
    axis.barh(names, bars, color=colour)
    reach = whiskers(view[name] for name in names)
    axis.errorbar(bars, names, xerr=reach, fmt="none", color="black", capsize=3)
    ends = np.add(bars, reach[1])
    for row, (bar, end) in enumerate(zip(bars, ends)):
        axis.annotate(f"{bar:.2f}", (end, row), (5, 0), textcoords="offset points", va="center")
    axis.set(xlabel="ms in a step", title=title, xlim=(0, 1.25 * max(ends)))
    axis.tick_params(axis="y", labelsize=9)
    axis.invert_yaxis()
figure.suptitle("oneDNN's time in a training step")
plots.show(
    figure,
    alt=f"Milliseconds in one training step of {log_step_ms:.1f} ms. "
    + ". ".join(
        f"{title}: "
        + ", ".join(f"{' '.join(name.split())} {ms[0]:.2f}" for name, ms in view.items())
        for title, view in views.items()
    ),
    keep=results,
    watched=[log_others],
)
logged_steps = LOGGED * LOG_STEPS
mkl_ms = [
    sum(ms for op, ms in run["profile"]["operations"].items() if op.startswith("_Mkl"))
    for run in runs["oneDNN"]
]
print(
    f"Of the {log_step_ms:.1f} ms of a step, {log.ms.sum() / logged_steps:.1f} ms are oneDNN's, "
    f"both as means of {logged_steps} steps.\nThe rest is Eigen, TensorFlow, and writing the log."
)
print(
    consistency.repeated(
        "oneDNN's time in a step",
        ("the profile's _Mkl operations", Measured(*middle(mkl_ms), "ms")),
        ("its log", Measured(*middle(log.groupby("process").ms.sum() / LOG_STEPS), "ms")),
    )
)
reorders = log[log.primitive == "reorder"]
into_blocks = reorders[reorders.dst.map(onednn.blocks).astype(bool)]
per_process = reorders.groupby("process").ms.sum() / log.groupby("process").ms.sum()
share_of_reorders = 100 * middle(per_process)
print(
    f"Reorders: {len(reorders) / logged_steps:.0f} in a step, {share_of_reorders[0]:.1f}% of "
    f"oneDNN's time; {len(into_blocks) / logged_steps:.0f} of them go into blocks."
)

# %% [markdown]
# The name of the implementation says how it was made. `jit` is code that oneDNN generated for exactly these shapes at
# run time. `brg` is built on its *batch-reduce GEMM*: the products of a batch of pairs of blocks, summed into one
# block. `gemm` is a plain matrix product. After the colon comes the instruction set.
#
# If the profile shows more time than the log, that is TensorFlow's part of these operations, such as allocating memory:
# the log times the primitives alone.
#
# The reorders are the price of blocked weights. Each step changes the weights, so each step blocks them again, and
# converts their gradients back to plain. That copies the weights, not the images.
#
# ## 6 · How close are the convolutions to the machine's limit? {read 7, do 12, wait 0.5}
#
# Milliseconds alone don't show whether a convolution is fast. Two limits apply. The cores can do only so many
# operations per second; in practice, a large matrix product shows how many. And memory can deliver only so many bytes
# per second. The kit measures both once on this machine, in about 20 s, and keeps them (in a terminal: `./lab
# roofline`).

# %%
limits = measure.limits(quick=QUICK)
peak = limits.peak("float32")
library = limits.products["float32"][0].library
print(f"cores:  {peak:7,.0f} GFLOP/s in float32: {library}'s fastest matmul")
print(f"memory: {limits.bandwidth:7,.1f} GB/s")
if limits.others.busy:
    print(limits.others)

# %% [markdown]
# How much does a convolution compute? Only multiply-adds. Lay the kernel on the image, multiply each pair of numbers,
# sum the products, and move on by one place. By hand, on an image of 5 × 5 with a kernel of 3 × 3 that finds vertical
# edges:

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
# ### Exercise 3 · Count the operations
#
# A multiply-add is two operations. Now there is a batch of images, each with several channels, and several kernels, one
# for each output channel. Each kernel covers all input channels, and sums over them too. Which loops must be added to
# the four above? Write `flops(mb, ic, oc, oh, ow, kh, kw)`. The names are oneDNN's: `mb` images in the batch, `ic`
# input channels, `oc` output channels, `oh × ow` the size of the output, `kh × kw` the size of the kernel. Use a
# formula, not loops: a layer has millions of operations.


# %%
def flops(mb, ic, oc, oh, ow, kh, kw):
    """Return the floating-point operations of one convolution."""
    ### BEGIN SOLUTION
    return 2 * mb * oc * oh * ow * ic * kh * kw
    ### END SOLUTION


# %% tags=["nbval-check-output"]
flops = check(3, flops)

# %% [markdown]
# Each of the two gradients of a convolution needs as many operations as the forward pass. So your formula gives GFLOP/s
# for every convolution in the log. It also gives the [**arithmetic
# intensity**](../docs/glossary.md#arithmetic-intensity): operations per byte, if images, weights and result pass memory
# once. Intensity times bandwidth is the speed at which memory could feed the convolution. The lower of that and the
# peak of the cores is its **roof**: this is the [**roofline**](../docs/glossary.md#roofline) model, which lab 03
# continues.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The first convolution (conv1, forward) has one input channel, so it computes little per byte. Which
# limit holds it back? Choose "neither" if you expect less than half of its roof.
#
# </div>

# %%
results.guess(4, "what limits conv1, forward", ..., choices=("arithmetic", "memory", "neither"))

# %% jupyter={"source_hidden": true}
PASS = {
    "forward_training": "forward",
    "backward_data": "gradient of the images",
    "backward_weights": "gradient of the weights",
}
IN_CACHE = "part of its data came from a cache, not from memory"


def work_of(row):
    """Return the name, floating-point operations and bytes of a convolution in the log."""
    size = onednn.convolution_size(row.problem)
    read = size["mb"] * size["ic"] * size["ih"] * size["iw"]
    outputs = size["mb"] * size["oc"] * size["oh"] * size["ow"]
    kernels = size["oc"] * size["ic"] * size["kh"] * size["kw"]
    name = f"{'conv1' if size['ic'] == 1 else 'conv2'}, {PASS[row.direction]}"
    sizes = [size[name] for name in ("mb", "ic", "oc", "oh", "ow", "kh", "kw")]
    return name, flops(*sizes), 4 * (read + outputs + kernels)


convolutions = log[log.primitive == "convolution"].copy()
convolutions[["what", "flop", "bytes"]] = [work_of(row) for row in convolutions.itertuples()]
reached, roofs, conv_ms, made_by = {}, {}, {}, {}
for what, calls in convolutions.groupby("what", sort=False):
    ms = calls.groupby("process").ms.median()
    flop, moved = calls.flop.iloc[0], calls.bytes.iloc[0]
    reached[what] = Measured(*middle(flop / ms / 1e6), "GFLOP/s", digits=0)
    roof = Measured(limits.attainable(flop / moved), unit="GFLOP/s", digits=0)
    roofs[what] = Limit(roof, above=IN_CACHE)
    conv_ms[what] = float(middle(ms)[0])
    made_by[what] = calls.implementation.iloc[0].partition("+")[0]
shares = {what: reached[what].value / roofs[what].measured.value for what in reached}

# %%
for what, speed in reached.items():
    print(f"{what}: {conv_ms[what]:.2f} ms, {speed}; its roof {roofs[what].describe(speed)}")
first = "conv1, forward"
held_back_by = "memory" if roofs[first].measured.value < peak else "arithmetic"
limited_by = held_back_by if shares[first] > 0.5 else "neither"
print(f"{first} reaches {100 * shares[first]:.0f}% of its roof. What limits it: {limited_by}")
results.compare_guess(4, limited_by)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(10, 4.5))
rows = np.arange(len(reached))
bars = [speed.value for speed in reached.values()]
reach = whiskers((speed.value, speed.low, speed.high) for speed in reached.values())
axis.barh(rows, bars, color=plots.BLUE, height=0.55)
axis.errorbar(bars, rows, xerr=reach, fmt="none", color="black", capsize=3)
for row, roof in zip(rows, roofs.values()):
    ends = [roof.measured.value] * 2
    axis.plot(ends, [row - 0.38, row + 0.38], color=plots.VERMILION, marker="")
axis.plot([], [], color=plots.VERMILION, marker="", label="roof: memory or cores")
axis.axvline(peak, color="black", linestyle="--", linewidth=1.5, label="peak of the cores")
widest = max(peak, *np.add(bars, reach[1]))
for row, what in zip(rows, reached):
    of_roof = f"{reached[what].value:,.0f}: {100 * shares[what]:.0f}% of its roof"
    axis.text(1.03 * widest, row, of_roof, va="center", fontsize=11)
axis.set_yticks(rows, [f"{what}\n{made_by[what]}" for what in reached], fontsize=11)
axis.invert_yaxis()
axis.set(xlabel="GFLOP/s", xlim=(0, 1.5 * widest))
axis.set_title("oneDNN's convolutions under their roofs")
axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=2)
plots.show(
    figure,
    alt=f"GFLOP/s of each convolution and its roof; the peak of the cores is {peak:,.0f}: "
    + "; ".join(f"{what} {reached[what].value:,.0f}, {shares[what]:.0%}" for what in reached),
    keep=results,
    watched=[log_others, limits.others],
)

# %% [markdown]
# Work at its roof can't get faster: only less work would help. Work far below its roof is limited by something that
# this model lacks. Compare the names of the implementations: do the same operations run equally fast in each?
#
# ### Exercise 4 · Which convolution first?
#
# You have a week to speed up one of these convolutions. The one furthest from its roof? The slowest? Write
# `improve_first(ms, share, step_ms)`. `ms` is a dictionary of the milliseconds of each convolution in a step. `share`
# has the same names in the same order, with the share of its roof that each reaches (0.2 is a fifth). `step_ms` is the
# time of the whole step. Return the name of the convolution that would shorten the step most if it reached its roof,
# and the factor by which the whole step would then be faster (1.25, not 25%).


# %%
def improve_first(ms, share, step_ms):
    """Return the convolution to improve first, and the step's speedup at its roof."""
    ### BEGIN SOLUTION
    saves = {name: ms[name] * (1 - share[name]) for name in ms}
    first = max(saves, key=saves.get)
    return first, step_ms / (step_ms - saves[first])
    ### END SOLUTION


# %% tags=["nbval-check-output"]
improve_first = check(4, improve_first)

# %%
step_ms = 1000 * 64 / middle(rates["training"]["oneDNN"])[0]
name, factor = improve_first(conv_ms, shares, step_ms)
print(f"slowest: {max(conv_ms, key=conv_ms.get)}")
print(f"furthest from its roof: {min(shares, key=shares.get)}")
print(f"worth most: {name}; at its roof, the step would be {factor:.2f}× as fast")

# %% [markdown]
# Is the single input channel what holds conv1 back? The next cell changes only that: the same convolution, in this
# process, with more and more input channels.

# %%
timed = {channels: [] for channels in (1, 2, 4, 8, 16, 32)}
tensors = {
    channels: (tf.random.normal((64, 28, 28, channels)), tf.random.normal((3, 3, channels, 32)))
    for channels in timed
}
convolve = tf.function(lambda images, kernels: tf.nn.conv2d(images, kernels, 1, "SAME"))
with load.watch("section 6"):
    for turn in range(CHANNEL_TURNS):
        for channels, seconds in timed.items():
            start = time.perf_counter()
            convolve(*tensors[channels])
            if turn:  # the first turn traces the function
                seconds.append(time.perf_counter() - start)
swept = {}
for channels, seconds in timed.items():
    flop, pixels = flops(64, channels, 32, 28, 28, 3, 3), 64 * 28 * 28
    roof = limits.attainable(flop / 4 / (pixels * (channels + 32) + 9 * channels * 32))
    roof = Limit(Measured(roof, unit="GFLOP/s", digits=0), above=IN_CACHE)
    speed = Measured(*(flop / 1e9 / middle(seconds)[[0, 2, 1]]), "GFLOP/s", digits=0)
    swept[channels] = roof.share(speed).value
    print(f"{channels:2} input channels: {speed}; its roof {roof.describe(speed)}")
    if channels == 1:
        here = speed
grows = swept[32] > 1.5 * swept[1]
print(
    "With 32 channels, the share is clearly higher: the single channel holds conv1 back."
    if grows
    else "With 32 channels, the share is not clearly higher: the single channel is not the reason."
)
print(consistency.repeated(first, ("oneDNN's log", reached[first]), ("this process", here)))

# %% [markdown]
# If the share grows, a likely reason is the inner loop: with one input channel, there are nine multiply-adds per
# result, and around them the loads, the stores and the call itself, for which the model has no limit. If this process
# is slower than the log, look at what is timed: the log times the primitive alone, this cell the whole call, with
# TensorFlow's dispatch and new memory for the result.
#
# Last, the whole step: what share of the peak does it reach? A dense layer counts as a convolution with a kernel of
# 1 × 1 on an image of one pixel, and has two gradients too.

# %%
dense = 3 * (flops(64, 3136, 128, 1, 1, 1, 1) + flops(64, 128, 10, 1, 1, 1, 1))
flop_of_step = convolutions.flop.sum() / logged_steps + dense
print(f"a training step: {flop_of_step / 1e9:.2f} GFLOP")
peak_limit = Limit(Measured(peak, unit="GFLOP/s", digits=0))
step_speed = {}
for name, speeds in rates["training"].items():
    per_s = middle(speeds) * flop_of_step / 64 / 1e9
    step_speed[name] = Measured(*per_s, "GFLOP/s", digits=0)
    print(f"{name}: {step_speed[name]}; the peak {peak_limit.describe(step_speed[name])}")
results.step(
    "onednn",
    Measured(*gains["training"], "×"),
    rate_others,
    significant=gains["training"].significant,
    share=round(peak_limit.share(step_speed["oneDNN"]).value),
)

# %% [markdown]
# ## 7 · What oneDNN's instructions are worth to Eigen {read 4, wait 1.2, optional}
#
# oneDNN generates its code for the best [**instruction set**](../docs/glossary.md#instruction-set) of the CPU.
# `ONEDNN_MAX_CPU_ISA` caps it, as if the CPU were older. On paper, for arithmetic alone:
#
# - **SSE4.1 to AVX2**: registers hold 8 numbers instead of 4, and FMA multiplies and adds in one instruction. Together,
#   up to 4×.
# - **AVX2 to AVX-512**: 16 numbers instead of 8, up to 2×, on CPUs whose arithmetic units are 512 bits wide: most Intel
#   Xeons, and AMD's Zen 5. Zen 4 has the instructions, but units of 256 bits, so on paper it gains nothing.
#
# Memory gets no faster, so work that waits for it gains less. Eigen's own code was compiled once for all CPUs. (On Arm
# cores, oneDNN doesn't know this cap, and the two runs of this section are the same.)
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The cap is oneDNN's. Does it make the *Eigen* run slower too?
#
# </div>

# %%
results.guess(5, "does a cap on oneDNN slow Eigen down", ..., choices=("yes", "no"))

# %%
capped = {"Eigen, SSE4.1": EIGEN | {"ONEDNN_MAX_CPU_ISA": "SSE41"}, "Eigen": EIGEN}
few = ("--only", "training", "--steps", FEW_STEPS)
with load.watch("section 7") as cap_others:
    by_cap = rates_of(compare(capped, 6, *few), "training")
tell(by_cap)
cap_gain = ratio(by_cap["Eigen"], by_cap["Eigen, SSE4.1"])
if cap_gain.significant or cap_gain.high < 1.1:  # else these rounds cannot answer it
    results.compare_guess(5, "yes" if cap_gain.significant and cap_gain.faster else "no")
both_rates = (
    (section, Measured(*middle(speeds), "images/s", digits=0))
    for section, speeds in (
        ("section 1", rates["training"]["Eigen"]),
        ("section 7", by_cap["Eigen"]),
    )
)
print(consistency.repeated("training with Eigen", *both_rates))
results.hand_in(
    "7",
    (
        "training with Eigen, all instructions vs SSE4.1",
        "",
        Measured(*cap_gain, "×"),
        "",
        cap_others,
    ),
)

# %% [markdown]
# If the cap made Eigen slower, you have now measured what the instructions of section 5 are worth to it. BF16 and
# [**AMX**](../docs/glossary.md#amx) are for numbers of 16 and 8 bits, which lab 04 uses.
#
# ### Whose threads?
#
# These settings control the threads within one operation ([**intra-op
# parallelism**](../docs/glossary.md#intra-op-parallelism)) and across operations. Lab 03 measures them.
#
# | setting | whose threads | in this build |
# | --- | --- | --- |
# | intra-op (`TF_NUM_INTRAOP_THREADS`) | share one operation's work | TensorFlow's and oneDNN's: one pool |
# | inter-op (`TF_NUM_INTEROP_THREADS`) | run independent operations concurrently | TensorFlow's |
# | `OMP_NUM_THREADS`, `KMP_AFFINITY`, `KMP_BLOCKTIME` | OpenMP's | used only if the log's head says OpenMP |
#
# **Finished early?**
#
# - Make the training step as fast as you can, without a smaller network: the batch size, Keras' policy
#   `mixed_bfloat16`, other numbers of channels, `jit_compile`. Measure a copy of `work/cnn.py` and the original
#   alternately, and report each gain with its interval. Which idea made it slower?
# - Cap oneDNN instead of Eigen, with AVX2 and SSE41. Then see the instructions: `ONEDNN_JIT_DUMP=1` makes oneDNN write
#   its code to files, and `objdump -D -b binary -mi386:x86-64` shows it. Count `zmm` and `ymm` registers.

# %% [markdown]
# ## Questions {read 4}
#
# Answer each in a sentence or two, with what you saw above. Skip those that name a section you left out.
#
# 1. How much faster is oneDNN in training, and in inference? Do the intervals show that the two gains differ? Which
#    operations explain your answer?
# 2. Do both libraries learn the same? What would you check before you trust a faster library?
# 3. Which operations does it take over, and which operations of the old table does it leave to Eigen today? Why?
# 4. What does fusion save: arithmetic or memory traffic? *(section 3)*
# 5. Converting the layout can cost less than the better layout gains. Where do you see the conversion, and what does it
#    cost here?
# 6. What is layout propagation, and why does this TensorFlow not need it?
# 7. Which convolution is furthest below its roof? Is memory the reason?
# 8. What are intra-op and inter-op threads, and what is `OMP_NUM_THREADS` in a build with OpenMP? *(section 7)*

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers 1 to 4.
#
# 1. Section 1 prints both gains with intervals, and whether they are apart. Training may gain more because the
#    gradients of the weights, of the images and of pooling are in the backward pass alone, and section 5 shows whether
#    they save most. conv2 has one kernel forward and two backward, conv1 one and one: the gradient of the digits is
#    not needed.
# 2. Up to rounding. Section 1 prints how far the losses are apart, and whether each library repeats its own. Compare
#    the loss curve over many steps and the accuracy, not single bits.
# 3. Convolution, matrix product, pooling and batch norm, forward and backward; softmax, transpose, einsum and depthwise
#    convolution came later. Relu, Tanh, Elu, LRN and Concat run on Eigen again. Arithmetic intensity is not the reason:
#    pooling, batch norm and transpose have a low one too. Relu and LRN had to understand blocked tensors while these
#    were passed on; images are nhwc now, and fusion saves Relu's pass over memory.
# 4. Memory traffic. All additions and maxima are still computed.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers 5 to 8.
#
# 5. In the `reorder` rows: the weights into blocks, their gradients back. If the share is small, it is because the
#    weights are small compared with the images. In a frozen graph, the weights are constants and are blocked only once.
# 6. Blocked tensors pass from operation to operation, and reorders are needed only at the borders. oneDNN's nhwc
#    convolutions became about as fast as the blocked ones, so only the weights need blocks, and no other operation
#    reads those.
# 7. Mostly conv1, whose intensity is low, so its roof is memory's. If its share of that roof is far below 100%, memory
#    is not the reason, and the channel sweep shows whether the single channel is. Compare conv2's three: they have the
#    same operations and bytes; do the implementations differ?
# 8. Intra-op: threads that share one operation. Inter-op: operations that run concurrently. With OpenMP,
#    `OMP_NUM_THREADS` sets oneDNN's intra-op threads, and TensorFlow's own intra-op threads come on top: if both equal
#    the number of cores, there are twice as many threads as cores.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Timing, and what goes wrong.
#
# **Timing** Exercise 2 is where students need help: let them draw the loops. In exercise 4, ask for a show of hands
# first: furthest from the roof, or slowest? Short of time? Skip sections 3 and 7.
#
# **What goes wrong** "The breakdown is unreliable" in section 5: other work had the cores while the profiler ran, or
# malloc gave memory back in each step (another C library than glibc). Run section 1 again. A profile needs a warm-up
# session: in the first one, the profiler's buffers displace Eigen's arrays, and the kernel hands out new pages in each
# step. `ps -o min_flt` shows it.
#
# If the gain in the profile differs from that of section 1: the headline has malloc's defaults, as users get them, and
# only the profiled part keeps freed memory (`labkit/bench/timed_steps.py`), from which Eigen may gain more.
#
# By default, TensorFlow uses oneDNN where the CPU has VNNI, BF16 or AMX, and Eigen elsewhere: the first Xeons with
# AVX-512 get Eigen. So the lab sets `TF_ENABLE_ONEDNN_OPTS=1`. If `ONEDNN_VERBOSE=1` is set in the environment of the
# *notebook*, it fills JupyterLab's terminal, not the cell.
#
# </div>

# %% [markdown]
# ## Remember
#
# - One variable chooses the library when TensorFlow starts: `TF_ENABLE_ONEDNN_OPTS`. Even "Eigen" multiplies with
#   oneDNN.
# - A faster library must learn the same. Compare losses before you compare times.
# - Look at the graph that ran, not at the one you wrote, and at the time of each operation.
# - A profile is evidence only if its parts sum to the step without the profiler.
# - Fusion saves passes over memory. For inference, you can fold a batch norm away.
# - Images stay nhwc today. Weights are blocked, and the reorders are the cost.
# - `ONEDNN_VERBOSE=1` shows everything: what ran, how, in which layout, how long.
# - Compare with the roof, not only with the other library. Improve first what saves most of the step.
#
# The closing table shows what was published, what you measured, and the limit of the machine:

# %% jupyter={"source_hidden": true}
best = max(reached, key=lambda what: reached[what].value)
closing = [
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
            Measured(*gains[what], "×", of=paces[what]),
            "",
            rate_others,
        )
        for what in gains
    ),
]
if time_to_loss:
    name = f"this CNN, training to a loss of {TARGET}, Eigen → oneDNN"
    closing.append((name, "", Measured(*time_to_loss, "×"), "", rate_others))
closing += [
    (
        "its training step, with oneDNN",
        "",
        step_speed["oneDNN"],
        peak_limit,
        rate_others,
        limits.others,
    ),
    (
        f"its fastest convolution ({best})",
        "",
        reached[best],
        roofs[best],
        log_others,
        limits.others,
    ),
    (
        "share of reorders in oneDNN's time",
        "",
        Measured(*share_of_reorders, "%", digits=1),
        "",
        log_others,
    ),
    *results.handed_in("3", ("batch norm folded vs not", "")),
    *results.handed_in("7", ("training with Eigen, all instructions vs SSE4.1", "")),
]
results.table("oneDNN", closing)

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
