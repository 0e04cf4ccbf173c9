# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 02 · oneDNN under an MNIST CNN
#
# **You will learn** where the difference in speed comes from when one small network runs on two libraries, TensorFlow's
# own Eigen and oneDNN: which operations were replaced, which were merged into one, how the numbers lie in memory, and
# which instructions work on them.
#
# **Time** {minutes}
#
# **Connects to** lab 01, which shows how TensorFlow rewrites a graph; lab 03, which asks how far ResNet-50 is from the
# machine's limit; and lab 07, which trains this same network with several processes.
#
# A word on names: the library began as *MKL-DNN*, was called *DNNL* for a year, and has been *oneDNN* since 2020.
# TensorFlow's operations still have `Mkl` in their names.
#
# TensorFlow prints notices in red when it starts. They are not errors.

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
from IPython.display import Code, display

from labkit.display import graphs, markdown, onednn, plots
from labkit.display.measured import Measured
from labkit.exercises import open_lab
from labkit.models import mnist_cnn
from labkit.mpi import run_ranks
from labkit.system import load
from labkit.system.paths import ROOT
from labkit.system.statistics import ratio, ratios

tf.get_logger().setLevel("ERROR")  # section 3 traces many small functions, on purpose
check, results, machine, work = open_lab("02", globals())
cores = machine.usable_cores

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
ROUNDS, STEPS = (1, 5) if QUICK else (3, 60)  # of a comparison, and of a run in it: sections 1 and 8
FOLDING_TURNS = 5 if QUICK else 100  # section 4
LOG_STEPS = 5 if QUICK else 20  # section 5
PRODUCT_ROWS, PRODUCTS = (1024, 4) if QUICK else (3072, 20)  # section 7

# %% [markdown]
# ## 1 · One network, two libraries
#
# A layer of a network is a few nested loops over numbers. TensorFlow says *which* loops to run; a library runs them. On
# CPUs, TensorFlow has two such libraries: **Eigen**, which it has always had, and **oneDNN**. Intel began oneDNN, as
# MKL-DNN; today several companies write it in the open, and it is as much for AMD's CPUs as for Intel's. One variable
# chooses between the two, `TF_ENABLE_ONEDNN_OPTS`, and TensorFlow reads it only when it starts. So each measurement
# needs a process of its own.
#
# All labs use the same network: two convolutions and two dense layers.

# %%
Code(filename=ROOT / "labkit" / "models" / "mnist.py")

# %% [markdown]
# The next script measures it. It times each step as a whole; the result is the median of many steps.

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
    for step in (inference, training):
        name = step.python_function.__name__
        if args.only in (None, name):
            for _ in range(3):  # not timed: tracing, creating kernels, first use of memory
                step()
            print(f"{name}, warm", flush=True)
            seconds = []
            for _ in range(args.steps):
                start = time.perf_counter()
                step().numpy()
                seconds.append(time.perf_counter() - start)
            rate = args.batch / statistics.median(seconds)
            result[name] = {"images/s": rate, "ms in a step": 1000 * statistics.mean(seconds)}
            print(f"{name}: {rate:,.0f} images/s")
    args.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as fast is training with oneDNN, on your machine? And inference?
#
# </div>
#
# `run_ranks(1, …)` starts the script once, on all the cores you have, and ends it if it hangs. To repeat a run in a
# terminal, put the variable in front: `TF_ENABLE_ONEDNN_OPTS=0 python work/cnn.py`. The two libraries take turns, so if
# the machine is busy for a while, it is busy for both. `load.watch` looks at what else used the cores meanwhile. If
# that was a lot, it says so: then run the cell again when the machine is quiet. Six processes take about 40 s.
#
# `tell` prints each ratio with its 95% [**confidence interval**](../docs/glossary.md#confidence-interval), in brackets.
# Each round gives a ratio, and how well the rounds agree gives the interval. A round is a new process for each, since a
# relaunch is another sample: repetitions within a process share the layout of its memory and the places of its threads.
# Only if the interval excludes 1 does it say "faster" or "slower".

# %%
EIGEN, ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": 0}, {"TF_ENABLE_ONEDNN_OPTS": 1}


def compare(configurations):
    """Return the images/s of each configuration in each round: one process each, in rounds that take turns."""
    seen = {what: {name: [] for name in configurations} for what in ("training", "inference")}
    for turn in range(ROUNDS):
        for name, configuration in configurations.items():
            run_ranks(1, "work/cnn.py", "--steps", STEPS, show=False, **configuration)
            result = json.loads((work / "cnn.json").read_text())
            for what, speeds in seen.items():
                speeds[name].append(result[what]["images/s"])
            rates = "".join(f"{what:>12} {speeds[name][-1]:8,.0f} images/s" for what, speeds in seen.items())
            print(f"round {turn + 1} of {ROUNDS}  {name:24}{rates}", flush=True)
    return seen


def tell(speeds):
    """Print how each configuration compares with the first one, and what the interval says."""
    first = next(iter(speeds))
    for name, times in ratios(speeds, first).items():
        if name != first:
            print(f"{name:22} against {first}: {times} times as fast: {times.verdict}")


with load.watch("section 1") as rate_others:
    rates = compare({"Eigen": dict(env=EIGEN), "oneDNN": dict(env=ONEDNN)})
for what, speeds in rates.items():
    print(what)
    tell(speeds)

# %% jupyter={"source_hidden": true}
times = {what: ratios(speeds, "Eigen")["oneDNN"] for what, speeds in rates.items()}
medians = {what: {name: np.median(each) for name, each in speeds.items()} for what, speeds in rates.items()}
figure, axes = plt.subplots(1, 2)
for axis, what in zip(axes, times):
    bars = axis.bar(list(medians[what]), list(medians[what].values()), color=[plots.ORANGE, plots.BLUE], width=0.6)
    axis.bar_label(bars, fmt="{:,.0f}", padding=3)
    axis.set(title=f"{what}: {times[what]} times", ylabel="images/s")
    axis.margins(y=0.15)
figure.suptitle("The MNIST CNN on two libraries")
plots.show(
    figure,
    alt="; ".join(
        f"{what}: {medians[what]['Eigen']:,.0f} images/s with Eigen, {medians[what]['oneDNN']:,.0f} with oneDNN, "
        f"{times[what]} times"
        for what in times
    ),
    keep=results,
)

# %% [markdown]
# In 2019, Intel showed ResNet-50 training at 3.84 images/s by default and at 17.69 with MKL-DNN: 4.6 times. At that
# time, TensorFlow's default was built for older instruction sets. Eigen has improved since then. The rest of this lab
# looks for what is left of the difference, and why.
#
# ## 2 · Which library is it really?
#
# The old recipe was `ldd`: look for `libmklml` and `libiomp5` among the libraries that TensorFlow is linked with. It is
# better to ask the process itself. Linux lists every library that a process has loaded in `/proc/self/maps`, also those
# that it loaded later.

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
# No library here is called oneDNN: it is built *into* TensorFlow's own library, and that build also fixes the kind of
# threads that it uses. (If you see an OpenMP library, another package loaded it. The folder before its name says
# which.) Section 5 has a better way: there, oneDNN reports about itself.
#
# ## 3 · Which operations it takes over
#
# Before TensorFlow runs a graph, it replaces its own operations with oneDNN's wherever oneDNN has one. So the graph
# that you wrote does not show this. You have to look at the graph that **ran**. `onednn.graph_that_ran` runs a function
# as a `tf.function` and returns both graphs.
#
# The next cell prints the table of a talk from 2019, operation by operation, for the [**forward
# pass**](../docs/glossary.md#forward-pass) (which computes the output) and the [**backward
# pass**](../docs/glossary.md#backward-pass) (which computes the [**gradients**](../docs/glossary.md#gradient)). How
# much of it is still true? The cell runs each operation by itself on random numbers, and also four operations that the
# old table does not have.

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


found = {}
for name, (function, inputs, *_) in OPERATIONS.items():
    forward = of_onednn(onednn.graph_that_ran(function, *inputs)[1])
    backward = of_onednn(onednn.graph_that_ran(both_ways(function), *inputs)[1]) - forward
    found[name] = forward, backward
rows = [
    (
        name,
        f"{tick(then_forward)} {tick(then_backward)}",
        f"{tick(forward)} {tick(backward)}",
        ", ".join(f"`{op}`" for op in forward | backward),
    )
    for (name, (forward, backward)), (_, _, then_forward, then_backward) in zip(found.items(), OPERATIONS.values())
]
display(markdown.table(("operation", "2019: forward, backward", "today", "what ran"), rows))

# %% [markdown]
# Compare each line with the old column. The operations that stayed do much arithmetic for each number: convolution,
# matrix product, pooling, [**batch normalisation**](../docs/glossary.md#batch-normalisation) (batch norm). Those that
# do little for each number are limited by memory in either library, and several are no longer replaced: Relu, a
# function of one number; LRN, which looks at a few neighbours; Concat, which only copies. That does not mean that Relu
# costs a pass over memory: look for it in the next section.
#
# Now the real network. Here is what was written, and what ran, for one training step:

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
print(f"{len(written)} nodes were written, {len(ran)} ran. Those of the layers:\n")
print(f"{'written':28}{'ran':48}")
for (op, n), (op_ran, n_ran) in zip(before.most_common(), [*after.most_common(), *[("", "")] * len(before)]):
    print(f"{n:2} {op:25}{n_ran:2} {op_ran}")

# %% [markdown]
# Three things happened to the layers:
#
# - **Replaced**: names with `_Mkl` are oneDNN's.
# - **Merged**: `Conv2D`, `BiasAdd` and `Relu` were three operations. `_MklNativeFusedConv2D` is one. In the backward
#   pass, the bias gradient became part of `…BackpropFilterWithBias`.
# - **Left out**: of two `Conv2DBackpropInput`, only one ran. The other would compute the gradient with respect to the
#   *images*, which nobody asked for.
#
# ```mermaid
# flowchart LR
#     accTitle: From a Keras layer to a oneDNN primitive
#     accDescr: A Keras layer becomes three operations; Grappler merges them into one; oneDNN runs it as one primitive.
#     layer["Keras layer<br>Conv2D, relu"] -->|"tf.function traces"| ops["operations<br>Conv2D, BiasAdd, Relu"]
#     ops -->|"Grappler merges"| fused["one operation<br>_MklNativeFusedConv2D"]
#     fused -->|"oneDNN runs"| primitive["one primitive<br>convolution + relu"]
# ```
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
    return [node for node in nodes if re.search(LAYERS, node.op) or re.search("flatten.*/Reshape$", node.name)]


plots.show(
    graphs.compare(layers(written), layers(ran), title="The MNIST CNN, as written and as it runs"),
    alt=f"As written: {graphs.describe(layers(written))}. As it runs: {graphs.describe(layers(ran))}.",
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
# After training, a batch norm is a fixed formula for each channel *c*:
#
# $$y_c = \gamma_c \, \frac{x_c - \mu_c}{\sqrt{v_c + \epsilon}} + \beta_c$$
#
# It stands between convolution and Relu, so it prevents fusion. But it only multiplies and adds, channel by channel,
# and a convolution with a bias does the same. So a convolution with other weights and another bias gives the same
# result without a batch norm. Every compiler for inference does this.
#
# Write `fold(w, gamma, beta, mean, variance, epsilon)`. It returns two arrays, weights and bias. A convolution alone,
# with these, must give the same result as a convolution (without a bias) followed by the batch norm. `w` has the shape
# (height, width, channels in, channels out). Don't change it.


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
for weight, values in zip(norm.weights, ((0.5, 2), (-1, 1), (-1, 1), (0.5, 2))):  # gamma, beta, mean, variance
    weight.assign(rng.uniform(*values, size=64))


def with_batch_norm(x):
    return tf.nn.relu(norm(convolution(x), training=False))


parts = fold(*(weight.numpy() for weight in [*convolution.weights, *norm.weights]), norm.epsilon)
folded_w, folded_b = (tf.Variable(np.asarray(part), dtype="float32") for part in parts)


def folded(x):
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, folded_w, 1, "SAME"), folded_b))


took = {with_batch_norm: [], folded: []}
compiled = {function: tf.function(function) for function in took}
with load.watch("section 4"):
    for turn in range(FOLDING_TURNS):
        for function, ms in took.items():
            start = time.perf_counter()
            compiled[function](x)
            if turn:  # the first turn traces the function
                ms.append(1000 * (time.perf_counter() - start))
for function, ms in took.items():
    ops = [node.op for node in onednn.graph_that_ran(function, x)[1] if node.op not in ("Const", "ReadVariableOp")]
    print(f"{function.__name__:16} {np.median(ms):6.2f} ms   {', '.join(ops)}")
saved = ratio(took[with_batch_norm], took[folded])
print(f"folded is {saved} times as fast: {saved.verdict}")
difference = np.abs(with_batch_norm(x) - folded(x)).max()
print(f"largest difference of the results: {difference:.1e}, of values up to {np.abs(folded(x)).max():.0f}")

# %% [markdown]
# ## 5 · How the numbers lie in memory
#
# A batch of images has four dimensions: *n* the image, *c* the channel, *h* the row, *w* the column. Memory has only
# one. A **layout** says at which place, its *offset*, each element lies. Its name lists the dimensions from the
# outermost to the innermost:
#
# - **nchw**: each channel is an image of its own. The innermost loop runs over *w*.
# - **nhwc**: the channels of one pixel lie side by side. The innermost loop runs over *c*.
# - **nChw16c**, a [**blocked layout**](../docs/glossary.md#blocked-layout): channels come in blocks of 16. Within a
#   block, the innermost loop runs over *c*; the capital *C* counts blocks.
#
# Why 16? An [**AVX-512**](../docs/glossary.md#avx-512) instruction works on 16 single-precision numbers at once. With
# nChw16c, one instruction always finds a full block of 16 channels side by side, and each block of channels still holds
# a complete image. With nchw, the channels of one pixel lie a whole image apart.
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
    alt="Places in memory of one pixel's 32 channels in an image of 6 by 8 pixels. nchw: spread evenly over all 1,536 "
    "places. nhwc: 32 neighbours. nChw16c: two groups of 16 neighbours, half the memory apart.",
)

# %% [markdown]
# ### What layout propagation was, and what is left of it
#
# The layout of the program is not the fastest one, so something has to convert the numbers from one to the other.
# oneDNN calls this a [**reorder**](../docs/glossary.md#reorder). When MKL-DNN came to TensorFlow, its convolutions
# needed nChw16c. A reorder before and after each convolution would have cost more than it gained. So TensorFlow rewrote
# the graph: operations passed blocked tensors to each other, each with a second tensor that described its layout, and
# reorders stood only at the borders. This was **layout propagation**. It was fragile, and each operation in between had
# to support it.
#
# Since then, oneDNN has got convolutions that work on nhwc directly, just as fast. So today's TensorFlow leaves the
# images as they are, and blocks only the **weights**, which are small.
#
# You can verify this, because oneDNN reports what it does: `ONEDNN_VERBOSE=1` makes it write one line for everything
# (`MKLDNN_VERBOSE`, the old name, has no effect any more). Here are some steps of training, and the head of their log.
# With one [**inter-op**](../docs/glossary.md#inter-op-parallelism) thread, operations run one at a time, so you can add
# up their times.

# %%
verbose = ONEDNN | {"ONEDNN_VERBOSE": 1, "TF_NUM_INTEROP_THREADS": 1}
with load.watch("section 5") as log_others:
    run = run_ranks(1, "work/cnn.py", "--only", "training", "--steps", LOG_STEPS, env=verbose, show=False)
lines = run.lines[0]
step_ms = json.loads((work / "cnn.json").read_text())["training"]["ms in a step"]
onednn.describe(lines)

# %% [markdown]
# Remember the line `threads`. With **threadpool**, oneDNN works on TensorFlow's own threads. With
# [**OpenMP**](../docs/glossary.md#openmp), as in Intel's builds of that time, it has its own threads besides
# TensorFlow's, and its own settings, `OMP_NUM_THREADS` and `KMP_*`. Section 8 measures what these do here.
#
# The log shows the layout of every tensor. oneDNN writes dimensions as letters in the order (n, c, h, w) or, for
# weights, (out, in, h, w): so `acdb` is n, h, w, c. A capital letter together with a number is a block: in `Acdb16a`,
# output channels come in blocks of 16.

# %%
log = onednn.read_log(lines, after="training, warm")
convolutions = log[log.primitive == "convolution"]
convolutions[["direction", "implementation", "src", "wei", "dst"]].value_counts().rename("calls").reset_index()

# %% [markdown]
# `src` and `dst` are the images, `wei` the weights. Which of the three is blocked?
#
# ## 6 · Where the time goes
#
# The log is now a table. It has a row for each [**primitive**](../docs/glossary.md#primitive) that ran: a primitive is
# one operation of oneDNN's, such as a convolution. The row has its kind, the implementation that oneDNN chose, the
# layouts, the shapes, and the milliseconds. (Two more columns are left out here: the type, and the attributes, which
# say what was fused into a primitive, such as `attr-post-ops:eltwise_relu`.)

# %%
log.drop(columns=["type", "attributes"]).head(8)

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
by_primitive = pd.Series(time_by(log, "primitive")) / LOG_STEPS
figure, axes = plt.subplots(1, 2, figsize=(11, 4.5))
bars = axes[0].barh(list(by_primitive.index), by_primitive, color=plots.BLUE)
axes[0].set(xlabel="ms in a step", title="by primitive")
named = log.assign(name=log.primitive + "\n" + log.implementation.str.replace("+", "\n+ ").replace("", "(not named)"))
by_implementation = (pd.Series(time_by(named, "name")) / LOG_STEPS).head(7)
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
    f"Of the {step_ms:.1f} ms of a step, {inside:.1f} ms are oneDNN's, both as means of the same {LOG_STEPS} steps. "
    "The rest is Eigen, TensorFlow, and writing the log."
)

# %% [markdown]
# The name of the implementation says how it was made. `jit` is code that oneDNN generated for exactly these shapes
# while the program ran. `brg` is its newer method, one small matrix product repeated over a batch of blocks. `gemm` is
# a plain matrix product. After the colon comes the instruction set.
#
# `gemm_api` means that TensorFlow called oneDNN's matrix product directly.
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
share_of_reorders = reorders.ms.sum() / log.ms.sum()
print(f"reorders: {len(reorders) / LOG_STEPS:.0f} in a step, {100 * share_of_reorders:.1f}% of oneDNN's time")
print(f"of them into blocks: {len(into_blocks) / LOG_STEPS:.0f} in a step, {into_blocks.ms.sum() / LOG_STEPS:.3f} ms")
into_blocks[["src", "dst", "problem"]].value_counts().rename("calls").reset_index()

# %% [markdown]
# That is the price of blocked weights: a copy of the weights, but not of the images, which are many times as large.
#
# ## 7 · How near is it to the machine's limit?
#
# Milliseconds alone don't tell you whether a convolution is fast. Compare the number of operations that it does in a
# second with the number that your cores *can* do. In practice, a large matrix product shows the most they can do:

# %%
a, b = (tf.random.normal((PRODUCT_ROWS, PRODUCT_ROWS)) for _ in range(2))
seconds = []
with load.watch("section 7") as peak_others:
    for _ in range(PRODUCTS):
        start = time.perf_counter()
        tf.matmul(a, b)  # done when it returns; .numpy() would add the time of a copy
        seconds.append(time.perf_counter() - start)
# The limit is the fastest run, which nothing slowed down. What is compared with it is a median.
peak = 2 * PRODUCT_ROWS**3 / min(seconds) / 1e9
print(f"a product of {PRODUCT_ROWS} × {PRODUCT_ROWS} matrices: {peak:,.0f} GFLOP/s on {cores} cores")

# %% [markdown]
# How much does a convolution compute? It is nothing but multiply-adds. Lay the kernel on the image, multiply each pair
# of numbers, add up the products, and move on by one place. By hand, on an image of 5 × 5 with a kernel of 3 × 3 that
# finds vertical edges:

# %% tags=["nbval-check-output"]
picture = np.array([[0, 0, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 1, 1, 1, 0]], "float32")
kernel = np.array([[-1, 0, 1], [-1, 0, 1], [-1, 0, 1]], "float32")
by_hand, multiply_adds = np.zeros((3, 3), "float32"), 0
for row, column in np.ndindex(3, 3):  # of the output
    for i, j in np.ndindex(3, 3):  # of the kernel
        by_hand[row, column] += picture[row + i, column + j] * kernel[i, j]
        multiply_adds += 1
by_tensorflow = tf.nn.conv2d(picture[None, :, :, None], kernel[:, :, None, None], 1, "VALID")[0, :, :, 0]
print(by_hand)
print(f"{multiply_adds} multiply-adds. The same as TensorFlow's: {np.array_equal(by_hand, by_tensorflow)}")

# %% [markdown]
# ### Exercise 5 · Count the operations
#
# A multiply-add is two operations. Now there is a batch of images, each with several channels, and several kernels, one
# for each output channel. Each kernel covers all input channels, and adds up over them too. Which loops come on top of
# the four above? Write `flops(mb, ic, oc, oh, ow, kh, kw)`. The names are oneDNN's: `mb` images in the batch, `ic`
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
# for every convolution in the log:


# %%
def gflops(row):
    """Return the GFLOP/s of a convolution in the log."""
    numbers = {name: int(value) for name, value in re.findall(r"([a-z]+)(\d+)", row.problem)}
    return flops(*(numbers[name] for name in ("mb", "ic", "oc", "oh", "ow", "kh", "kw"))) / row.ms / 1e6


speed = convolutions.assign(gflops=convolutions.apply(gflops, axis=1))
speed["what"] = speed.problem.str.extract(r"(ic\d+oc\d+)")[0] + " " + speed.direction
median = speed.groupby("what", sort=False).gflops.median()

# %% jupyter={"source_hidden": true}
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
# The first convolution, with one input channel, does 18 operations for each number that it writes. The second does 32
# times as many. The fewer they are, the sooner memory is the limit, not the cores. Do your bars fit this? Lab 03 draws
# exactly this, as a roofline.
#
# ## 8 · Instruction sets and threads
#
# oneDNN generates its code for the best [**instruction set**](../docs/glossary.md#instruction-set) that the CPU has.
# `ONEDNN_MAX_CPU_ISA` sets an upper limit, as if the CPU were older. It affects oneDNN only; Eigen was compiled once
# for all CPUs. With four instruction sets, the cell takes about 80 s.

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
    # A small run shows section 1's figures instead.
    capped = rates if QUICK else compare({cap: dict(env=ONEDNN | {"ONEDNN_MAX_CPU_ISA": cap}) for cap in here})
tell(capped["training"])

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
for shift, (what, colour, hatch) in zip((-0.2, 0.2), (("training", plots.BLUE, ""), ("inference", plots.ORANGE, "//"))):
    medians = [np.median(each) for each in capped[what].values()]
    bars = axis.bar(np.arange(len(medians)) + shift, medians, 0.4, color=colour, hatch=hatch, label=what)
    axis.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=10)
axis.set_xticks(range(len(medians)), [cap.replace("_", "\n", 1) for cap in capped["training"]])
axis.set(ylabel="images/s", xlabel="ONEDNN_MAX_CPU_ISA", title="The same network, instruction sets capped")
axis.legend()
plots.show(
    figure,
    alt="Images per second, training and inference: "
    + "; ".join(
        f"{cap} {np.median(each):,.0f} and {np.median(capped['inference'][cap]):,.0f}"
        for cap, each in capped["training"].items()
    ),
)

# %% [markdown]
# From SSE4.1 to AVX2 to AVX-512, a register holds 4, 8 and 16 numbers. Twice the width is seldom twice the speed,
# because memory does not get faster. The gain can also be more than double, where oneDNN has its newer methods only for
# newer instruction sets. BF16 and [**AMX**](../docs/glossary.md#amx), where your CPU has them, work on numbers of 16
# and 8 bits. This network's numbers have 32 bits; lab 04 uses fewer.
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
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which of these settings matter for this small network, whose layers wait for each other?
#
# </div>
#
# Fifteen processes take about 100 s.

# %%
TWO = ONEDNN | {"TF_NUM_INTEROP_THREADS": 2}
settings = {
    f"intra {cores}": dict(threads=cores, env=TWO),
    "intra 1": dict(threads=1, env=TWO),
    f"intra {cores}, inter 1": dict(threads=cores, env=ONEDNN | {"TF_NUM_INTEROP_THREADS": 1}),
    f"intra {cores}, OMP 1": dict(threads=cores, env=TWO | {"OMP_NUM_THREADS": 1}),
    f"intra {2 * cores}": dict(threads=2 * cores, env=TWO),
}
if cores >= 4:
    settings[f"intra {cores // 2}"] = dict(threads=cores // 2, env=TWO)
with load.watch("section 8"):
    threads = (rates if QUICK else compare(settings))["training"]
tell(threads)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
bars = axis.barh(list(threads), [np.median(each) for each in threads.values()], color=plots.BLUE)
axis.bar_label(bars, fmt="{:,.0f}", padding=4)
axis.invert_yaxis()
axis.margins(x=0.15)
axis.set(xlabel="images/s", title=f"Training with other threads, on {cores} cores")
plots.show(
    figure,
    alt="Images per second: " + "; ".join(f"{name} {np.median(each):,.0f}" for name, each in threads.items()),
)

# %% [markdown]
# All runs have two inter-op threads, except the one whose name says otherwise. Compare the two bars that differ only in
# `OMP_NUM_THREADS`. If the setting had an effect, the run would be as slow as *intra 1*. In this build it can't have
# one, and neither can `KMP_AFFINITY` or `KMP_BLOCKTIME`: the build has no OpenMP, as the head of the log said. So a
# difference between these two is chance: about 1 interval in 20 misses the truth. Lab 03 has a build in which they
# work.
#
# If there are more threads than cores, the threads take turns. That need not cost much as long as no thread waits for
# another. It costs a lot in a build with OpenMP, whose threads spin while they wait.
#
# **Finished early?** An open task: make the training step of this network as fast as you can, without a smaller
# network. Section 6 shows where the time goes. Some ideas: the batch size, Keras' policy `mixed_bfloat16`, other
# numbers of channels, `jit_compile`. Change a copy of `work/cnn.py`, measure it and the original in turns, and report
# the gain with its interval. What did each idea gain, and which one made it slower?

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. Those that name an optional section are for whoever did it.
# The instructor's notebook has answers.
#
# 1. What does oneDNN gain in training, and in inference? Why is it not the same?
# 2. Which operations does it take over, and which operations of the old table does it leave to Eigen today? Why?
# 3. What does fusion save: arithmetic or memory traffic? *(section 4)*
# 4. Converting the layout can cost less than the better layout gains. Where do you see the conversion, and what does it
#    cost here?
# 5. What is layout propagation, and why does this TensorFlow not need it?
# 6. Why are there 16 channels in a block, and what would it be with AVX2?
# 7. What are intra-op and inter-op threads, and what is `OMP_NUM_THREADS` in a build with OpenMP? *(section 8)*

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions, timing, and what goes wrong.
#
# ### Answers
#
# 1. Measured above. In several runs on 2 AVX-512 cores, training gained 1.7 to 2.5 times and inference 1.3 to 1.7
#    times. The backward pass has two convolutions for each one in the forward pass, and Eigen's are further from the
#    limit there.
# 2. Convolution, matrix product, pooling and batch norm, forward and backward; softmax, transpose, einsum and depthwise
#    convolution came later. Eigen runs Relu, Tanh, Elu, LRN and Concat again. For a function of one number, such as the
#    first three, the only thing left to save is the pass over memory, and fusion saves that.
# 3. Memory traffic. All the additions and maxima are still computed.
# 4. In the `reorder` rows: the weights into blocks, their gradients back. A few per cent here, because the weights are
#    small compared with the images. In a frozen graph, the weights are constants and are blocked only once.
# 5. Blocked tensors pass from operation to operation, and reorders stand only at the borders. oneDNN's nhwc
#    convolutions became as fast as the blocked ones, so only the weights need blocks, and no other operation reads
#    those.
# 6. 512 bits hold 16 numbers of 32 bits. AVX2 has 256 bits, so 8 numbers, and the layout is nChw8c. Cap the instruction
#    set at AVX2 and look at the log.
# 7. Intra-op: threads that share one operation. Inter-op: operations that run at the same time. With OpenMP,
#    `OMP_NUM_THREADS` sets oneDNN's intra-op threads, and TensorFlow's own intra-op threads come on top: if both are
#    the number of cores, there are twice as many threads as cores.
#
# **Timing** Sections 1 to 4 take 28 minutes, 5 and 6 take 27, the rest 21. Exercise 2 is where people need help: let
# them draw the loops. Short of time? Skip sections 2, 4 and 8.
#
# **What goes wrong** On a CPU without AVX-512, TensorFlow uses Eigen unless `TF_ENABLE_ONEDNN_OPTS=1`: the lab sets it.
# If `ONEDNN_VERBOSE=1` is set in the environment of the *notebook*, it fills JupyterLab's terminal, not the cell.
#
# </div>

# %% [markdown]
# ## Remember
#
# - One variable chooses the library when TensorFlow starts: `TF_ENABLE_ONEDNN_OPTS`.
# - Look at the graph that ran, not at the one you wrote.
# - Fusion saves passes over memory. For inference, you can fold a batch norm away.
# - Images stay nhwc today. Weights are blocked, and the reorders are the cost.
# - `ONEDNN_VERBOSE=1` shows everything: what ran, how, in which layout, how long.
# - `OMP_NUM_THREADS` works only in a build with OpenMP. The head of the log says which build you have.
#
# The closing table shows what was published, what you measured, and the most that the machine could do:

# %% jupyter={"source_hidden": true}
best = median.idxmax()
results.table(
    "oneDNN",
    [
        ("ResNet-50 training, default → MKL-DNN, batch 16", "3.84 → 17.69 images/s: 4.6×", "lab 03", ""),
        *(
            (
                f"this CNN, {what}, Eigen → oneDNN, batch 64",
                "",
                Measured(
                    *times[what],
                    "×",
                    of=" → ".join(f"{np.median(each):,.0f}" for each in rates[what].values()) + " images/s",
                ),
                "",
                rate_others,
            )
            for what in times
        ),
        (
            f"its fastest convolution ({best})",
            "",
            Measured(median[best], unit="GFLOP/s", digits=0),
            f"{peak:,.0f} GFLOP/s",
            log_others,
            peak_others,
        ),
        (
            "reorders' share of oneDNN's time",
            "",
            Measured(100 * share_of_reorders, unit="%", digits=1),
            "0%",
            log_others,
        ),
    ],
)

# %% [markdown]
# Published: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (the source does not name
# the machine). The limit is a large matrix product in single precision on the same cores. Next: lab 03 asks the same
# questions about ResNet-50.
