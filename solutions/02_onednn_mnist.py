# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 02 · oneDNN under an MNIST CNN
#
# **You will** train one small network on two libraries, TensorFlow's own Eigen and oneDNN, and find out where the
# difference comes from: which operations were replaced, which were merged into one, how the numbers lie in memory, and
# which instructions work on them.
#
# **Time** about 75 minutes: 40 to read and run, 35 for five exercises. Waiting in all: about 3 minutes.
#
# **Connects to** lab 01, which shows how TensorFlow rewrites a graph, lab 03, which asks how far ResNet-50 is from the
# machine's limit, and lab 07, which puts several processes to work on this same network.
#
# A word on names: the library began as *MKL-DNN*, was *DNNL* for a year, and is *oneDNN* since 2020. TensorFlow's
# operations still have `Mkl` in their names.

# TensorFlow prints notices in red when it starts. They are no errors.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
import json
import os
import re
import time
from collections import Counter
from pathlib import Path

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow starts; without it, older CPUs would get Eigen

import keras
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tensorflow as tf
from IPython.display import Code, Markdown, display

from labkit.display import graphs, onednn, plots
from labkit.exercises import open_lab
from labkit.models import mnist_cnn
from labkit.mpi import run_ranks
from labkit.system import load
from labkit.system.paths import ROOT

tf.get_logger().setLevel("ERROR")  # section 3 traces many small functions, on purpose
check, results, machine, work, QUICK = open_lab("02", globals())
cores = machine.usable_cores

# %% [markdown]
# ## 1 · One network, two libraries
#
# A layer of a network is a few nested loops over numbers. TensorFlow says *which* loops; a library runs them.
# TensorFlow has two on CPUs: **Eigen**, which it always had, and **oneDNN**, written by Intel for its CPUs and open to
# all. One variable chooses, `TF_ENABLE_ONEDNN_OPTS`, and only when TensorFlow starts. So each measurement is a process
# of its own.
#
# The network is the same in all labs: two convolutions, two dense layers.

# %%
Code(filename=ROOT / "labkit" / "models" / "mnist.py")

# %% [markdown]
# This script measures it. A step is timed as a whole; the median of many steps is what counts.

# %%
# %%writefile work/cnn.py
"""Measure the MNIST CNN in one process: TF_ENABLE_ONEDNN_OPTS=0 python work/cnn.py --help"""

import argparse
import json
import statistics
import time
from pathlib import Path

import keras
import tensorflow as tf

from labkit.data import load_digits
from labkit.models import mnist_cnn


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64, help="digits in a step")
    parser.add_argument("--steps", type=int, default=60, help="steps that are timed")
    parser.add_argument("--only", choices=["training", "inference"], help="measure one of the two")
    parser.add_argument("--out", type=Path, default=Path("work/cnn.json"), help="file for the result")
    args = parser.parse_args(argv)

    digits = load_digits(n_train=args.batch, n_test=10)
    images, labels = tf.constant(digits.x_train), tf.constant(digits.y_train)
    keras.utils.set_random_seed(0)
    model = mnist_cnn()
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def training():
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def inference():
        return model(images, training=False)

    result = {}
    for step in (training, inference):
        name = step.python_function.__name__
        if args.only in (None, name):
            for _ in range(3):  # traced, kernels made, memory touched: not timed
                step()
            print(f"{name}, warm", flush=True)
            seconds = []
            for _ in range(args.steps):
                start = time.perf_counter()
                step().numpy()
                seconds.append(time.perf_counter() - start)
            result[name] = args.batch / statistics.median(seconds)
            print(f"{name}: {result[name]:,.0f} images/s")
    args.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()


# %% [markdown]
# **Guess first**: how many times as fast is training with oneDNN, on your machine? And inference?
#
# `run_ranks(1, …)` starts the script once, on all the cores you have, and ends it if it hangs. To repeat a run in a
# terminal, put the variable in front: `TF_ENABLE_ONEDNN_OPTS=0 python work/cnn.py`. The two libraries take turns, so
# that a machine that is busy for a while is busy for both. `load.watch` looks at what else had the cores meanwhile, and
# says so when that was much: then run the cell again when it is quiet.

# %%
rounds, steps = (1, 15) if QUICK else (3, 60)


def compare(settings):
    """Median images/s for each setting: a process for each, in rounds that take turns."""
    seen = {name: [] for name in settings}
    for round in range(rounds):
        for name, setting in settings.items():
            run_ranks(1, "work/cnn.py", "--steps", steps, show=False, **setting)
            seen[name].append(json.loads((work / "cnn.json").read_text()))
            rates = "".join(f"{what:>12} {rate:8,.0f} images/s" for what, rate in seen[name][-1].items())
            print(f"round {round + 1} of {rounds}  {name:24}{rates}", flush=True)
    return pd.DataFrame({name: pd.DataFrame(measured).median() for name, measured in seen.items()})


EIGEN, ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": 0}, {"TF_ENABLE_ONEDNN_OPTS": 1}
with load.watch("section 1") as rate_others:
    rates = compare({"Eigen": dict(env=EIGEN), "oneDNN": dict(env=ONEDNN)})

# %%
ratio = rates["oneDNN"] / rates["Eigen"]
figure, axes = plt.subplots(1, 2)
for axis, what in zip(axes, ratio.index):
    bars = axis.bar(rates.columns, rates.loc[what], color=[plots.ORANGE, plots.BLUE], width=0.6)
    axis.bar_label(bars, fmt="{:,.0f}", padding=3)
    axis.set(title=f"{what}: {ratio[what]:.1f} times", ylabel="images/s")
    axis.margins(y=0.15)
figure.suptitle("The MNIST CNN on two libraries")
plots.show(
    figure,
    alt="; ".join(
        f"{what}: {rates['Eigen'][what]:,.0f} images/s with Eigen, {rates['oneDNN'][what]:,.0f} with oneDNN, "
        f"{ratio[what]:.1f} times"
        for what in ratio.index
    ),
    keep=results,
)

# %% [markdown]
# In 2019, Intel showed ResNet-50 training at 3.84 images/s by default and at 17.69 with MKL-DNN: 4.6 times.
# TensorFlow's default was built for older instruction sets then. Eigen has learned since; the rest of this lab looks
# for what is left of the difference, and why.
#
# ## 2 · Which library is it really?
#
# The old recipe was `ldd`: look for `libmklml` and `libiomp5` among the libraries that TensorFlow is linked with. Ask
# the process itself instead. Linux lists every library it has loaded in `/proc/self/maps`, also those that were loaded
# later.

# %%
maps = Path("/proc/self/maps").read_text()
loaded = {"/".join(Path(path).parts[-2:]) for path in re.findall(r"/\S+\.so[.\d]*$", maps, flags=re.M)}
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
# No library is called oneDNN: it is built *into* TensorFlow's own, and so is the choice of its threads. (An OpenMP
# that is there belongs to somebody else. The folder before its name tells to whom.) oneDNN says so itself.
# `ONEDNN_VERBOSE=1` makes oneDNN write a line for everything it does (`MKLDNN_VERBOSE`, its old name, does nothing
# any more). Here are some steps of training, and the head of their log. With one inter-op thread, no two operations
# run at the same time, and their times add up.

# %%
log_steps = 3 if QUICK else 20
verbose = ONEDNN | {"ONEDNN_VERBOSE": 1, "TF_NUM_INTEROP_THREADS": 1}
with load.watch("section 2") as log_others:
    run = run_ranks(1, "work/cnn.py", "--only", "training", "--steps", log_steps, env=verbose, show=False)
lines = run.lines[0]
step_ms = 64_000 / json.loads((work / "cnn.json").read_text())["training"]
onednn.describe(lines)

# %% [markdown]
# `threads` is the line to remember: with **threadpool**, oneDNN works on TensorFlow's own threads. With **OpenMP**, as
# in Intel's builds of those days, it has threads of its own beside TensorFlow's, and a second set of settings,
# `OMP_NUM_THREADS` and `KMP_*`. Section 8 measures what those do here.
#
# ## 3 · Which operations it takes over
#
# When TensorFlow is about to run a graph, it puts oneDNN's operations in place of its own where it has them. So the
# graph that you wrote does not tell. You have to look at the graph that **ran**. `onednn.graph_that_ran` runs a
# function as a `tf.function` and gives both.
#
# This is the table of a talk from 2019, operation by operation, forward and backward. Which of it is true today? Each
# is run here by itself on random numbers, and so are four that the old table does not have.

# %%
rng = np.random.default_rng(0)
x = tf.constant(rng.normal(size=(8, 28, 28, 32)).astype("float32"))
matrix = tf.reshape(x, (-1, 32))


def weights(*shape):
    return tf.constant(rng.normal(size=shape).astype("float32"))


OPERATIONS = {  # name: (function, its inputs, forward in the 2019 table, backward in it)
    "Conv2D": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), [x, weights(3, 3, 32, 64)], True, True),
    "Relu": (tf.nn.relu, [x], True, True),
    "Tanh": (tf.nn.tanh, [x], True, True),
    "Elu": (tf.nn.elu, [x], True, True),
    "MaxPool": (lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"), [x], True, True),
    "AvgPool": (lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME"), [x], True, True),
    "BatchNorm": (
        lambda x, g, b: tf.compat.v1.nn.fused_batch_norm(x, g, b, is_training=True)[0],
        [x, weights(32), weights(32)],
        True,
        True,
    ),
    "LRN": (tf.nn.local_response_normalization, [x], True, True),
    "MatMul": (tf.matmul, [matrix, weights(32, 64)], True, False),
    "Concat": (lambda x, y: tf.concat([x, y], axis=3), [x, x + 1], True, False),
    "Depthwise conv": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"),
        [x, weights(3, 3, 32, 1)],
        False,
        False,
    ),
    "Softmax": (tf.nn.softmax, [x], False, False),
    "Einsum": (lambda x, w: tf.einsum("nhwc,cd->nhwd", x, w), [x, weights(32, 64)], False, False),
    "Transpose": (lambda x: tf.transpose(x, (0, 3, 1, 2)), [x], False, False),
}


def both_ways(function):
    """The function that also computes the gradient by each of its inputs."""

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


found = {}
for name, (function, inputs, *_) in OPERATIONS.items():
    forward = of_onednn(onednn.graph_that_ran(function, *inputs)[1])
    backward = of_onednn(onednn.graph_that_ran(both_ways(function), *inputs)[1]) - forward
    found[name] = forward, backward
rows = [
    f"| {name} | {tick(then_forward)} {tick(then_backward)} | {tick(forward)} {tick(backward)} "
    f"| {', '.join(f'`{op}`' for op in forward | backward)} |"
    for (name, (forward, backward)), (_, _, then_forward, then_backward) in zip(found.items(), OPERATIONS.values())
]
head = "| operation | 2019: forward, backward | today | what ran |\n| --- | --- | --- | --- |"
display(Markdown("\n".join([head, *rows])))

# %% [markdown]
# Read it line by line against the old column. What stayed are the operations with much arithmetic per number:
# convolution, matrix product, pooling, normalisation. Simple functions of one number, such as Relu, are as fast in
# Eigen and are no longer replaced. That does not mean that they cost a pass over memory: look for them in the next
# section.
#
# Now the real network. What was written, and what ran, for one training step:

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
before, after = (Counter(node.op for node in nodes if re.search(LAYERS, node.op)) for nodes in (written, ran))
print(f"{len(written)} nodes were written, {len(ran)} ran. Of them, the layers':\n")
print(f"{'written':28}{'ran':48}")
for (op, n), (op_ran, n_ran) in zip(before.most_common(), [*after.most_common(), *[("", "")] * len(before)]):
    print(f"{n:2} {op:25}{n_ran:2} {op_ran}")

# %% [markdown]
# Three things happened to the layers:
#
# - **Replaced**: names with `_Mkl` are oneDNN's.
# - **Merged**: `Conv2D`, `BiasAdd` and `Relu` were three operations. `_MklNativeFusedConv2D` is one. Backward, the
#   bias' gradient went into `…BackpropFilterWithBias`.
# - **Left out**: of two `Conv2DBackpropInput` one ran. The other would be the gradient by the *images*, which nobody
#   asked for.
#
# ## 4 · Fusion
#
# Why merge? A convolution ends with its output in the core's registers. Adding the bias and taking the Relu there costs
# next to nothing. As operations of their own, each would read the whole output from memory and write it back. Here is
# the way forward through the network, its layers alone: what was written, and what ran.

# %%
written, ran = onednn.graph_that_ran(lambda images: model(images, training=False), images)


def layers(nodes):
    return [node for node in nodes if re.search(LAYERS, node.op) or re.search("flatten.*/Reshape$", node.name)]


plots.show(
    graphs.compare(layers(written), layers(ran), title="The MNIST CNN, as written and as it runs"),
    alt=f"As written: {graphs.describe(layers(written))}. As it runs: {graphs.describe(layers(ran))}.",
    keep=results,
)

# %% [markdown]
# Two traps, in case you look for fusion in a network of your own and find none:
#
# - A bias that is **zero and constant** is no bias: TensorFlow removes the addition first, and then finds nothing to
#   merge. Look at trained weights, or random ones.
# - What stands **between** the operations, or **takes** the result in the middle as well, keeps them apart.
#
# ### Exercise 1 · Fold a batch norm away
#
# After training, a batch norm is a fixed formula for each channel *c*:
#
# $$y_c = \gamma_c \, \frac{x_c - \mu_c}{\sqrt{v_c + \epsilon}} + \beta_c$$
#
# It stands between convolution and Relu, so it is in the way of fusion. But it only multiplies and adds, for each
# channel, and so does a convolution with its bias. Other weights and another bias give the same result without a batch
# norm. Every compiler for inference does this.
#
# Write `fold(w, gamma, beta, mean, variance, epsilon)`: the weights and the bias, two arrays, with which a convolution
# alone gives what convolution (without a bias) and batch norm give. `w` has the shape (height, width, channels in,
# channels out) and stays as it is.


# %%
def fold(w, gamma, beta, mean, variance, epsilon):
    """Weights and bias of the one convolution that equals convolution and batch norm."""
    ### BEGIN SOLUTION
    scale = gamma / np.sqrt(variance + epsilon)
    return w * scale, beta - mean * scale
    ### END SOLUTION


# %% tags=["nbval-check-output"]
fold = check(1, fold)

# %% [markdown]
# Now both ways, with Keras' own batch norm as it would be after training. What runs, and how long?

# %%
convolution = keras.layers.Conv2D(64, 3, padding="same", use_bias=False)
norm = keras.layers.BatchNormalization()
norm(convolution(x))  # makes their weights
for weight, values in zip(norm.weights, ((0.5, 2), (-1, 1), (-1, 1), (0.5, 2))):  # gamma, beta, mean, variance
    weight.assign(rng.uniform(*values, size=64))


def with_batch_norm(x):
    return tf.nn.relu(norm(convolution(x), training=False))


parts = fold(*(weight.numpy() for weight in [*convolution.weights, *norm.weights]), norm.epsilon)
folded_w, folded_b = (tf.Variable(np.asarray(part), dtype="float32") for part in parts)


def folded(x):
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, folded_w, 1, "SAME"), folded_b))


with load.watch("section 4"):
    for function in (with_batch_norm, folded):
        ops = [node.op for node in onednn.graph_that_ran(function, x)[1] if node.op not in ("Const", "ReadVariableOp")]
        compiled, times = tf.function(function), []
        for _ in range(5 if QUICK else 100):
            start = time.perf_counter()
            compiled(x)
            times.append(1000 * (time.perf_counter() - start))
        print(f"{function.__name__:16} {np.median(times):6.2f} ms   {', '.join(ops)}")
difference = np.abs(with_batch_norm(x) - folded(x)).max()
print(f"largest difference of the results: {difference:.1e}, of values up to {np.abs(folded(x)).max():.0f}")

# %% [markdown]
# ## 5 · How the numbers lie in memory
#
# A batch of pictures has four dimensions: *n* the picture, *c* the channel, *h* the row, *w* the column. Memory has
# one. A **layout** says which place, its *offset*, each element gets. Its name lists the dimensions from the
# outermost to the innermost:
#
# - **nchw**: each channel is a picture of its own. In the innermost loop, *w* runs.
# - **nhwc**: the channels of one pixel lie side by side. *c* runs.
# - **nChw16c**, a **blocked** layout: channels come in blocks of 16. Within a block *c* runs innermost; the capital *C*
#   counts blocks.
#
# Why 16? An AVX-512 instruction works on 16 single-precision numbers at once. With nChw16c, one instruction always
# finds its 16 channels side by side and complete, while the picture stays together for each block of channels. With
# nchw the channels of one pixel are a whole picture apart.
#
# ### Exercise 2 · Where is element (n, c, h, w)?
#
# Write `offset(n, c, h, w, shape, layout)` for the three layouts. `shape` is always (N, C, H, W). In `nChw16c`, when
# C is no multiple of 16, the last block is filled up with unused places.


# %%
def offset(n, c, h, w, shape, layout):
    """Place of an element in memory, counted in elements from the start."""
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
# numpy knows layouts as **strides**: how many bytes apart two neighbours in each dimension are. The same pictures, laid
# out in three ways, and your formula against numpy's strides:

# %% tags=["nbval-check-output"]
N, C, H, W = shape = (2, 32, 6, 8)
nchw = np.zeros((N, C, H, W), "float32")
nhwc = np.zeros((N, H, W, C), "float32")
blocked = np.zeros((N, C // 16, H, W, 16), "float32")
print(
    f"one step in c is, in bytes: nchw {nchw.strides[1]}, nhwc {nhwc.strides[3]}, within a block {blocked.strides[4]}"
)
for element in [(0, 1, 0, 0), (0, 16, 0, 0), (1, 31, 5, 7)]:
    n, c, h, w_ = element
    strides = {
        "nchw": np.dot(nchw.strides, (n, c, h, w_)) // 4,
        "nhwc": np.dot(nhwc.strides, (n, h, w_, c)) // 4,
        "nChw16c": np.dot(blocked.strides, (n, c // 16, h, w_, c % 16)) // 4,
    }
    for layout, right in strides.items():
        print(f"(n, c, h, w) = {element} in {layout:8} yours {offset(*element, shape, layout):5}, numpy's {right:5}")

# %%
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
    alt="Places in memory of one pixel's 32 channels in a picture of 6 by 8 pixels. nchw: spread evenly over all 1,536 "
    "places. nhwc: 32 neighbours. nChw16c: two groups of 16 neighbours, half the memory apart.",
)

# %% [markdown]
# ### What layout propagation was, and what is left of it
#
# The fast layout and the layout of the program are not the same, so somebody has to **reorder**. When MKL-DNN came to
# TensorFlow, its convolutions wanted nChw16c. Reordering before and after each would have eaten the gain. So the
# graph was rewritten to pass blocked tensors from one operation to the next, each with a second tensor that described
# its layout, and to reorder only at the borders: **layout propagation**. It was fragile, and each operation in
# between had to understand it.
#
# oneDNN has since got convolutions that work on nhwc directly, as fast. So today's TensorFlow keeps the pictures as
# they are, and blocks only the **weights**, which are small. You need not believe it: the log has every tensor's
# layout. oneDNN writes dimensions as letters in the order (n, c, h, w) or, for weights, (out, in, h, w): so `acdb` is
# n, h, w, c. A capital with a number is a block: in `Acdb16a`, output channels come in blocks of 16.

# %%
log = onednn.read_log(lines, after="training, warm")
convolutions = log[log.primitive == "convolution"]
convolutions[["direction", "implementation", "src", "wei", "dst"]].value_counts().rename("calls").reset_index()

# %% [markdown]
# `src` and `dst` are the pictures, `wei` the weights. Which of the three is blocked?
#
# ## 6 · Where the time goes
#
# The log is a table now: a row for each primitive that ran, with its kind, the implementation that oneDNN chose, the
# layouts, the shapes, and the milliseconds. (Two more columns are left out here: the type, and the attributes, which
# tell what was fused into a primitive, such as `attr-post-ops:eltwise_relu`.)

# %%
log.drop(columns=["type", "attributes"]).head(8)

# %% [markdown]
# ### Exercise 3 · Time by kind
#
# Write `time_by(log, column)`: the sum of the milliseconds in the table, not rounded, for each value of a column, such
# as `"primitive"`, the largest first. Give a pandas Series or a dict.


# %%
def time_by(log, column):
    """Milliseconds for each value of a column, the largest first."""
    ### BEGIN SOLUTION
    return log.groupby(column).ms.sum().sort_values(ascending=False)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
time_by = check(3, time_by)

# %%
by_primitive = pd.Series(time_by(log, "primitive")) / log_steps
figure, axes = plt.subplots(1, 2, figsize=(11, 4.5))
bars = axes[0].barh(list(by_primitive.index), by_primitive, color=plots.BLUE)
axes[0].set(xlabel="ms in a step", title="by primitive")
named = log.assign(name=log.primitive + "\n" + log.implementation.str.replace("+", "\n+ ").replace("", "(not told)"))
by_implementation = (pd.Series(time_by(named, "name")) / log_steps).head(7)
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
)
inside = by_primitive.sum()
print(
    f"oneDNN accounts for {inside:.1f} of {step_ms:.1f} ms in a step. The rest is Eigen, the optimizer, and TensorFlow."
)

# %% [markdown]
# The implementation's name tells how it was made. `jit` is code that oneDNN wrote for exactly these shapes while the
# program ran; `brg` is its newer way, one small matrix product repeated over a batch of blocks; `gemm` is a plain
# matrix product. After the colon comes the instruction set.
#
# `gemm_api` is TensorFlow calling oneDNN's matrix product directly.
#
# ### Exercise 4 · What do the reorders cost?
#
# The weights are blocked anew in each step, since each step changes them; and the gradients by the weights come out
# blocked, and are put back. Write `blocking(log)`: the rows of the log, with all their columns, in which a reorder puts
# a plain tensor (`src`) into blocks (`dst`), of whatever size. Not the way back, and not a reorder from plain to plain.


# %%
def blocking(log):
    """The rows of the log that put plain tensors into blocks."""
    ### BEGIN SOLUTION
    plain = log.src.str.islower() & ~log.src.str.contains(r"\d")
    return log[(log.primitive == "reorder") & plain & log.dst.str.contains(r"\d")]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
blocking = check(4, blocking)

# %%
reorders = log[log.primitive == "reorder"]
into_blocks = blocking(log)
share_of_reorders = reorders.ms.sum() / log.ms.sum()
print(f"reorders: {len(reorders) / log_steps:.0f} in a step, {100 * share_of_reorders:.1f}% of oneDNN's time")
print(f"of them into blocks: {len(into_blocks) / log_steps:.0f} in a step, {into_blocks.ms.sum() / log_steps:.3f} ms")
into_blocks[["src", "dst", "problem"]].value_counts().rename("calls").reset_index()

# %% [markdown]
# That is the price of blocked weights: a copy of the weights, not of the pictures, which are many times as large.
#
# ## 7 · How near is it to the machine's limit?
#
# Milliseconds alone don't say whether a convolution is fast. The question is how many of the operations that your cores
# *can* do in a second it really does. The most they can do, in practice, is a large matrix product:

# %%
size = 1024 if QUICK else 3072
a, b = (tf.random.normal((size, size)) for _ in range(2))
seconds = []
with load.watch("section 7") as peak_others:
    for _ in range(4 if QUICK else 20):
        start = time.perf_counter()
        tf.matmul(a, b)  # done when it returns; .numpy() would add the time of a copy
        seconds.append(time.perf_counter() - start)
# A limit is what a run comes to that nothing slows down: the fastest. What is compared has to be a median.
peak = 2 * size**3 / min(seconds) / 1e9
print(f"a product of {size} × {size} matrices: {peak:,.0f} GFLOP/s on {cores} cores")

# %% [markdown]
# ### Exercise 5 · Count the operations
#
# Each element of a convolution's output is a sum over `kh × kw` places and `ic` channels of the input. Each term is a
# multiplication and an addition: two operations. Write `flops(mb, ic, oc, oh, ow, kh, kw)`, with oneDNN's names: `mb`
# pictures in the batch, `ic` channels in, `oc` channels out, `oh × ow` the output's size, `kh × kw` the kernel's.


# %%
def flops(mb, ic, oc, oh, ow, kh, kw):
    """Floating-point operations of one convolution."""
    ### BEGIN SOLUTION
    return 2 * mb * oc * oh * ow * ic * kh * kw
    ### END SOLUTION


# %% tags=["nbval-check-output"]
flops = check(5, flops)


# %% [markdown]
# Both gradients of a convolution take as many operations as the way forward. So your formula gives GFLOP/s for every
# convolution in the log:


# %%
def gflops(row):
    """GFLOP/s of a convolution in the log."""
    numbers = {name: int(value) for name, value in re.findall(r"([a-z]+)(\d+)", row.problem)}
    return flops(*(numbers[name] for name in ("mb", "ic", "oc", "oh", "ow", "kh", "kw"))) / row.ms / 1e6


speed = convolutions.assign(gflops=convolutions.apply(gflops, axis=1))
speed["what"] = speed.problem.str.extract(r"(ic\d+oc\d+)")[0] + " " + speed.direction
median = speed.groupby("what", sort=False).gflops.median()

figure, axis = plt.subplots()
bars = axis.barh(list(median.index), median, color=plots.BLUE)
axis.bar_label(bars, [f"{value:,.0f} = {100 * value / peak:.0f}%" for value in median], padding=4)
axis.axvline(peak, color=plots.VERMILION, linestyle="--")
axis.invert_yaxis()
axis.set(
    xlabel="GFLOP/s",
    title="Convolutions, and a large matrix product (dashed)",
    xlim=(0, 1.25 * max(peak, median.max())),
)
plots.show(
    figure,
    alt=f"GFLOP/s of each convolution beside the {peak:,.0f} of a large matrix product: "
    + ", ".join(f"{name} {value:,.0f}" for name, value in median.items()),
    keep=results,
)

# %% [markdown]
# The first convolution, with one channel in, has little to do for each number it writes: it is limited by memory. The
# second has 32 times as much to do for each number, and comes nearer to the limit. Lab 03 makes a picture of exactly
# this, the roofline.
#
# ## 8 · Instruction sets and threads
#
# oneDNN writes its code for the best instruction set the CPU has. `ONEDNN_MAX_CPU_ISA` caps that, as if the CPU were
# older. It acts on oneDNN alone; Eigen was compiled once for all.

# %%
CAPS = {
    "SSE41": "SSE4.1",
    "AVX2": "AVX2",
    "AVX512_CORE": "AVX-512",
    "AVX512_CORE_BF16": "BF16",
    "AVX512_CORE_AMX": "AMX",
}
here = [cap for cap, name in CAPS.items() if name == "SSE4.1" or name in machine.isa]
with load.watch("section 8"):
    capped = compare({cap: dict(env=ONEDNN | {"ONEDNN_MAX_CPU_ISA": cap}) for cap in (here[-1:] if QUICK else here)})

# %%
figure, axis = plt.subplots()
for shift, (what, colour, hatch) in zip((-0.2, 0.2), (("training", plots.BLUE, ""), ("inference", plots.ORANGE, "//"))):
    bars = axis.bar(
        np.arange(len(capped.columns)) + shift, capped.loc[what], 0.4, color=colour, hatch=hatch, label=what
    )
    axis.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=10)
axis.set_xticks(range(len(capped.columns)), [cap.replace("_", "\n", 1) for cap in capped])
axis.set(ylabel="images/s", xlabel="ONEDNN_MAX_CPU_ISA", title="The same network, instruction sets capped")
axis.legend()
plots.show(
    figure,
    alt="Images per second, training and inference: "
    + "; ".join(f"{cap} {rate['training']:,.0f} and {rate['inference']:,.0f}" for cap, rate in capped.items()),
)

# %% [markdown]
# From SSE4.1 to AVX2 to AVX-512, the registers hold 4, 8 and 16 numbers. Twice the width is seldom twice the speed:
# memory does not get faster with it. It can also be more than twice, where oneDNN has its newer ways only for newer
# instruction sets. BF16 and AMX, where your CPU has them, are for numbers of 16 and 8 bits, and this network's have 32:
# lab 04 gives them something to do.
#
# ### Threads
#
# | setting | whose threads | in this build |
# | --- | --- | --- |
# | intra-op (`TF_NUM_INTRAOP_THREADS`) | share one operation's work | TensorFlow's and oneDNN's: one pool |
# | inter-op (`TF_NUM_INTEROP_THREADS`) | run independent operations side by side | TensorFlow's |
# | `OMP_NUM_THREADS`, `KMP_AFFINITY`, `KMP_BLOCKTIME` | OpenMP's | are there any? |
#
# **Guess first**: which of these will matter for this small network, whose layers wait for each other?

# %%
TWO = ONEDNN | {"TF_NUM_INTEROP_THREADS": 2}
settings = {
    "intra 1": dict(threads=1, env=TWO),
    f"intra {cores}": dict(threads=cores, env=TWO),
    f"intra {cores}, inter 1": dict(threads=cores, env=ONEDNN | {"TF_NUM_INTEROP_THREADS": 1}),
    f"intra {cores}, OMP 1": dict(threads=cores, env=TWO | {"OMP_NUM_THREADS": 1}),
    f"intra {2 * cores}": dict(threads=2 * cores, env=TWO),
}
if cores >= 4:
    settings[f"intra {cores // 2}"] = dict(threads=cores // 2, env=TWO)
if QUICK:
    settings = {"intra 1": settings["intra 1"]}
with load.watch("section 8"):
    threads = compare(settings).loc["training"]

# %%
figure, axis = plt.subplots()
bars = axis.barh(threads.index, threads, color=plots.BLUE)
axis.bar_label(bars, fmt="{:,.0f}", padding=4)
axis.invert_yaxis()
axis.margins(x=0.15)
axis.set(xlabel="images/s", title=f"Training with other threads, on {cores} cores")
plots.show(figure, alt="Images per second: " + "; ".join(f"{name} {rate:,.0f}" for name, rate in threads.items()))

# %% [markdown]
# Each has two inter-op threads, but the one that says otherwise. Compare the two bars that differ in
# `OMP_NUM_THREADS` alone. If it acted, it would be as slow as *intra 1*. In this build it can't, and neither can
# `KMP_AFFINITY` or `KMP_BLOCKTIME`: there is no OpenMP in it, as the log's head said. Lab 03 has a build in which
# they act.
#
# More threads than cores take turns. That costs little while nobody waits for anybody, and much in a build with
# OpenMP, whose threads spin while they wait.

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. The instructor's notebook has answers.
#
# 1. What does oneDNN gain in training, and in inference? Why is it not the same?
# 2. Which operations does it take over, and which of the old table does it leave to Eigen today? Why?
# 3. What does fusion save: arithmetic or memory traffic?
# 4. Overhead of layout conversion can be less than what the better layout gains. Where do you see the conversion, and
#    what does it cost here?
# 5. What is layout propagation, and why does this TensorFlow do without it?
# 6. Why are there 16 channels in a block, and what would it be with AVX2?
# 7. What are intra-op and inter-op threads, and what is `OMP_NUM_THREADS` in a build with OpenMP?

# %% [markdown] tags=["instructor"]
# ### Answers, for the instructor
#
# 1. Measured above. On 2 AVX-512 cores, training gained 2.0 to 2.5 times and inference 1.4 to 1.7 times. Backward has
#    two convolutions for each one forward, and Eigen's are further from the limit there.
# 2. Convolution, matrix product, pooling, batch norm, forward and backward; softmax, transpose, einsum and depthwise
#    convolution came later. Relu, Tanh, Elu, LRN and Concat are Eigen's again: nothing is left to gain on a function of
#    one number but the pass over memory, and fusion saves that.
# 3. Memory traffic. The additions and maxima are all still done.
# 4. In the `reorder` rows: the weights into blocks, their gradients back. A few per cent here, since the weights are
#    small beside the pictures. A frozen graph, whose weights are constants, blocks them once.
# 5. Passing blocked tensors from operation to operation and reordering only at the borders. oneDNN's nhwc convolutions
#    became as fast as the blocked ones, so that only weights need blocks, which nobody else reads.
# 6. 512 bits are 16 numbers of 32 bits. AVX2 has 256 bits: 8, and the layout is nChw8c. Cap the instruction set at AVX2
#    and look at the log.
# 7. Intra-op: threads that share one operation. Inter-op: operations that run side by side. With OpenMP,
#    `OMP_NUM_THREADS` is oneDNN's intra-op, and TensorFlow's own intra-op threads come on top: with both at the
#    number of cores, there are twice as many threads as cores.
#
# **Timing** Sections 1 to 4 take 30 minutes, 5 and 6 take 30, the rest 15. Exercise 2 is where people need help: let
# them draw the loops. Who is late skips section 8.
#
# **Goes wrong** On a CPU without AVX-512, TensorFlow keeps Eigen unless `TF_ENABLE_ONEDNN_OPTS=1`: the lab sets it.
# `ONEDNN_VERBOSE=1` in the environment of the *notebook* fills the terminal of JupyterLab, not the cell.

# %% [markdown]
# ## Remember
#
# - One variable chooses the library, at start: `TF_ENABLE_ONEDNN_OPTS`.
# - Look at the graph that ran, not at the one you wrote.
# - Fusion saves passes over memory. A batch norm can be folded away for inference.
# - Pictures stay nhwc today; weights are blocked, and reorders are what that costs.
# - `ONEDNN_VERBOSE=1` tells everything: what ran, how, in which layout, how long.
# - `OMP_NUM_THREADS` acts only in a build with OpenMP. The log's head says which build it is.
#
# What was published, what you measured, and what the machine could do at most:

# %%
best = median.idxmax()
results.table(
    "oneDNN",
    [
        ("ResNet-50 training, default → MKL-DNN, batch 16", "3.84 → 17.69 images/s: 4.6×", "lab 03", ""),
        *(
            (
                f"this CNN, {what}, Eigen → oneDNN, batch 64",
                "",
                f"{rates['Eigen'][what]:,.0f} → {rates['oneDNN'][what]:,.0f} images/s: {ratio[what]:.1f}×",
                "",
                rate_others,
            )
            for what in ratio.index
        ),
        (
            f"its fastest convolution ({best})",
            "",
            f"{median[best]:,.0f} GFLOP/s",
            f"{peak:,.0f} GFLOP/s",
            log_others,
            peak_others,
        ),
        ("reorders' share of oneDNN's time", "", f"{100 * share_of_reorders:.1f}%", "0%", log_others),
    ],
)

# %% [markdown]
# Published: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (machine not told).
# The limit is a large matrix product in single precision on the same cores. Next: lab 03 takes the same questions to
# ResNet-50.
