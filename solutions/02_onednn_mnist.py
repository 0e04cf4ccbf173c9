# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: write a convolution that keeps up with oneDNN, and find out where a network's time goes
#     needs: [ISA, memory, TensorFlow, MPI, data]
#     better_with: [cores]
# ---

# %% [markdown]
# # 02 · oneDNN under an MNIST CNN: race it
#
# TensorFlow hands its convolutions to oneDNN, a library that took a team years to write. How hard is it to match? You
# start from six nested loops in C and change up to ten lines at a time.
#
# **You will learn** what oneDNN takes over from TensorFlow, how memory layout and registers determine a convolution's
# speed, and where a training step's time goes once convolutions are fast.
#
# **Time** {minutes}
#
# **You need** to know only C's loops, arrays and pointers.
#
# **Connects to** lab 01, which shows how TensorFlow rewrites a graph; lab 03, which examines ResNet-50; and lab 07,
# which trains this network with several processes.
#
# The library began as *MKL-DNN*, so TensorFlow's names for its operations contain `Mkl`.

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
import subprocess
import timeit
from collections import Counter
from dataclasses import replace
from pathlib import Path

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # TensorFlow reads it when it is imported

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from IPython.display import Code, display

from labkit import native
from labkit.display import graphs, markdown, onednn, plots
from labkit.measure import alternate, compare, per_second, record, recorded, share
from labkit.models import mnist_cnn
from labkit.mpi import run_ranks
from labkit.roofline import convolution
from labkit.system.paths import ROOT

del os.environ["TF_ENABLE_ONEDNN_OPTS"]  # programs that this notebook starts begin without it
tf.get_logger().setLevel("ERROR")  # section 2 traces many small functions, on purpose

# %%
# How much this lab measures: change it here. The first of two values is that of a small run.
ROUNDS = 1 if QUICK else 6  # sections 1 and 4
STEPS, PROFILED = (5, 2) if QUICK else (100, 20)  # of training: timed, profiled
N = 4 * cores if QUICK else cores * max(8, -(-64 // cores))  # images in the race
WARM_UP, CALLS = (2, 3) if QUICK else (50, 100)  # of TensorFlow's convolution in the race
POOL_ROUNDS = 1 if QUICK else 9  # section 5

# %% [markdown]
# ## 1 · One variable {read 4, wait 2.7}
#
# A network layer is a few nested loops over numbers. TensorFlow decides *which* loops to run. On a CPU, a library runs
# them, either **Eigen**, which TensorFlow has always used, or **oneDNN**, which Intel started and several companies now
# develop in the open. The variable `TF_ENABLE_ONEDNN_OPTS` chooses between them when TensorFlow starts. If it is unset,
# the choice depends on the CPU.

# %%
default = "on" if onednn.is_default() else "off"
print(f"On this CPU, TensorFlow turns oneDNN {default} by default.")

# %% [markdown]
# The next script trains a small CNN in its own process, so it can be measured with the variable unset, 0 and 1.

# %%
Code(filename=ROOT / "labkit" / "models" / "mnist.py")

# %%
# %%writefile work/cnn.py
"""Train the MNIST CNN: python work/cnn.py STEPS PROFILED"""

import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import keras
import tensorflow as tf

from labkit.bench.op_profile import read_profile
from labkit.data import load_digits
from labkit.models import mnist_cnn

STEPS, PROFILED = map(int, sys.argv[1:])
BATCH = 64
digits = load_digits(n_train=50 * BATCH, n_test=10)
data = tf.data.Dataset.from_tensor_slices((digits.x_train, digits.y_train))
batches = list(data.batch(BATCH))
keras.utils.set_random_seed(0)
model = mnist_cnn()
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    gradients = tape.gradient(loss, model.trainable_weights)
    optimizer.apply(gradients, model.trainable_weights)
    return loss


def train(steps):
    """Return the seconds of the median step, the losses, and the page faults per step."""
    seconds, losses = [], []
    faults = -resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(steps):
        began = time.perf_counter()
        losses.append(float(step(*batches[number % len(batches)])))
        seconds.append(time.perf_counter() - began)
    faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return statistics.median(seconds), losses, faults / steps


train(3)  # traces the function, and fills the caches
print("warm", flush=True)
seconds, losses, faults = train(STEPS)
result = {"images/s": BATCH / seconds, "losses": losses, "page faults": faults}
for _ in range(2 if PROFILED else 0):  # the first session is a warm-up
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            result["profiled ms"] = 1000 * train(PROFILED)[0]
        result["ms"] = read_profile(folder, PROFILED)
Path("work/cnn.json").write_text(json.dumps(result))

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster is training with oneDNN than with Eigen on your machine (2 means twice the speed)?
#
# </div>

# %%
results.guess(1, "training with oneDNN vs Eigen", ..., unit="×")

# %% [markdown]
# `run_ranks(1, …)` starts the script once, on all your cores. `alternate` runs all variants in each round, so a slow
# phase of the machine affects them all. `compare` prints the median of the rounds' ratios with its 95% [**confidence
# interval**](../docs/learn/glossary.md#confidence-interval), and calls a difference *faster* only if the interval
# excludes 1.
#
# With one [**inter-op**](../docs/learn/glossary.md#inter-op-parallelism) thread, operations run one by one, so section
# 5 can add up their times. Three variants are for section 5 only. Their `MALLOC_…` variables tell the C library to keep
# freed memory or to give it back.
#
# This takes two or three minutes. Meanwhile, read section 2.

# %%
KEPT = {"MALLOC_MMAP_MAX_": 0, "MALLOC_TRIM_THRESHOLD_": 2**40, "MALLOC_TOP_PAD_": 2**27}
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": 2**17, "MALLOC_TRIM_THRESHOLD_": 2**17}
runs = {}


def training(name, profiled=0, **variables):
    """Return a function that trains in a new process and returns the images/s."""

    def in_new_process():
        env = {"TF_NUM_INTEROP_THREADS": 1, **variables}
        run_ranks(1, "work/cnn.py", STEPS, profiled, env=env, show=False)
        runs.setdefault(name, []).append(json.loads((work / "cnn.json").read_text()))
        return runs[name][-1]["images/s"]

    return in_new_process


variants = {
    "unset": training("unset"),
    "Eigen": training("Eigen", TF_ENABLE_ONEDNN_OPTS=0),
    "oneDNN": training("oneDNN", TF_ENABLE_ONEDNN_OPTS=1),
    "Eigen, kept": training("Eigen, kept", PROFILED, TF_ENABLE_ONEDNN_OPTS=0, **KEPT),
    "Eigen, given back": training("Eigen, given back", TF_ENABLE_ONEDNN_OPTS=0, **GIVEN_BACK),
    "oneDNN, kept": training("oneDNN, kept", PROFILED, TF_ENABLE_ONEDNN_OPTS=1, **KEPT),
}
trained = alternate(variants, ROUNDS, "images/s", "section 1")

# %%
for name in ("unset", "Eigen", "oneDNN"):
    losses = runs[name][0]["losses"]
    print(f"{name:7} {trained[name]}; loss {losses[0]:.4f} → {np.mean(losses[-20:]):.4f}")
gain = compare(trained["oneDNN"], trained["Eigen"])
print(f"oneDNN vs Eigen: {gain}")
library = "oneDNN" if default == "on" else "Eigen"
print(f"unset vs {library}: {compare(trained['unset'], trained[library])}")
results.compare_guess(1, gain)
results.step("onednn", gain)

# %% [markdown]
# The losses may differ by rounding, because each library adds in a different order.
#
# In 2019, Intel published ResNet-50 training speeds of 3.84 images/s by default and 17.69 (4.6×) with MKL-DNN (F.
# Baruffa, *Deep Learning at Scale using Distributed Frameworks*). TensorFlow's default build still targeted older
# instruction sets.

# %%
results.answer(1, "What would you have got without setting anything, and what is it worth?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# *Unset* uses the library that this section's first line names, and the ratio of oneDNN to Eigen is what the default
# gains or gives away. On CPUs without VNNI, BF16 or AMX (the first Xeons with AVX-512, AMD CPUs before Zen 4, many
# laptops), the default is Eigen, so setting the variable is the cheapest speed-up of all.
#
# </details>
#
# ## 2 · What oneDNN takes over {read 5}
#
# Before TensorFlow runs a graph, it replaces the operations on a list with oneDNN's. The graph that you wrote doesn't
# show this; the graph that **ran** does. `onednn.graph_that_ran` runs a function and returns the nodes of both graphs.
# Here are single operations in the [**forward pass**](../docs/learn/glossary.md#forward-pass), and in the [**backward
# pass**](../docs/learn/glossary.md#backward-pass), which computes the
# [**gradients**](../docs/learn/glossary.md#gradient).


# %%
def normal(*shape):
    return tf.random.normal(shape, seed=1)


x, matrix = normal(8, 28, 28, 32), normal(512, 32)
OPERATIONS = {
    "Conv2D": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), x, normal(3, 3, 32, 64)),
    "MatMul": (tf.matmul, matrix, normal(32, 64)),
    "MaxPool": (lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"), x),
    "BatchNorm": (
        lambda x, a, b: tf.compat.v1.nn.fused_batch_norm(x, a, b)[0],
        *(x, normal(32), normal(32)),
    ),
    "Softmax": (tf.nn.softmax, x),
    "Transpose": (lambda x: tf.transpose(x, (0, 3, 1, 2)), x),
    "Relu": (tf.nn.relu, x),
    "Tanh": (tf.nn.tanh, x),
    "LRN": (tf.nn.local_response_normalization, x),
    "Concat": (lambda x, y: tf.concat([x, y], axis=3), x, x + 1),
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


def of_onednn(function, inputs):
    _, ran = onednn.graph_that_ran(function, *inputs)
    return Counter(node.op for node in ran if node.op.startswith("_Mkl"))


rows = []
for name, (function, *inputs) in OPERATIONS.items():
    forward = of_onednn(function, inputs)
    backward = of_onednn(both_ways(function), inputs) - forward
    rows.append((name, *(", ".join(f"`{op}`" for op in ops) or "–" for ops in (forward, backward))))
display(markdown.table(("operation", "forward: oneDNN's", "backward: oneDNN's"), rows))

# %% [markdown]
# Relu, Tanh and LRN were once on the list, because every operation between two convolutions had to understand oneDNN's
# memory layout. Since TensorFlow 2.8, images keep TensorFlow's own layout
# ([#53288](https://github.com/tensorflow/tensorflow/pull/53288), 2021), and these operations have left the list
# ([#65852](https://github.com/tensorflow/tensorflow/pull/65852), 2024). Look for Relu in the forward pass of the MNIST
# CNN, as written and as it ran.

# %%
keras.utils.set_random_seed(0)
model, images = mnist_cnn(), normal(64, 28, 28, 1)
both = onednn.graph_that_ran(lambda images: model(images, training=False), images)
LAYER = "Conv2D|BiasAdd|Relu|MaxPool"
before, after = (
    [n for n in nodes if re.search(LAYER, n.op) and "dense" not in n.name] for nodes in both
)
plots.show(
    graphs.compare(before, after, title="The MNIST CNN, as written and as it runs"),
    alt=f"As written: {graphs.describe(before)}. As it runs: {graphs.describe(after)}.",
    keep=results,
)

# %%
results.answer(2, "Relu left oneDNN's list. What does it cost, forward and backward?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# In the forward pass, it costs hardly anything. `Conv2D`, `BiasAdd` and `Relu` are one oneDNN operation, so Relu needs
# no extra pass over memory. In the backward pass, Relu's gradient is its own operation, whose milliseconds are in
# section 5.
#
# </details>
#
# In 2019, `ldd` on TensorFlow's library listed `libmklml` and `libiomp5`. What does it list today?

# %%
[library] = Path(tf.__file__).parent.glob("libtensorflow_cc.so.*")
linked = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
print(", ".join(re.findall(r"(\S+) =>", linked)))

# %% [markdown]
# oneDNN isn't among them, because it is built into TensorFlow's own library. It uses TensorFlow's threads instead of
# OpenMP's `libiomp5` or `libgomp`.
#
# ## 3 · Count, then lay out {read 4, do 10}
#
# The race is about the network's second convolution, `conv2`, which takes a batch of 14 × 14-pixel images from 32 to 64
# channels. To count its operations, lay the kernel on a pixel, multiply each pair of numbers, and sum the products. A
# multiply-add is two operations. A **tap** is one position in the kernel; a 3 × 3 kernel has nine. At the border of the
# image, some taps lie outside, and *same* padding pretends that they meet zeros. Multiplying by such a zero isn't
# useful work and doesn't count.
#
# ### Exercise 1 · Count the operations
#
# Write `flops(mb, ic, oc, oh, ow, kh, kw)` for a convolution with *same* padding and stride 1. In oneDNN's notation,
# there are `mb` images of `oh × ow` pixels (input and output have the same size), `ic` input and `oc` output channels,
# and `kh × kw` kernels, with both numbers odd. Count only taps that meet a pixel. A kernel may be larger than the
# image. Don't loop over pixels, because images can be large.


# %%
def flops(mb, ic, oc, oh, ow, kh, kw):
    """Return the floating-point operations of a convolution, without taps on padding."""
    ### BEGIN SOLUTION

    def inside(size, kernel):  # pairs of a tap and a pixel that meet, along one side
        return sum(max(0, size - abs(tap - kernel // 2)) for tap in range(kernel))

    return 2 * mb * ic * oc * inside(oh, kh) * inside(ow, kw)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
flops = check(1, flops)

# %%
SIZE = N, 14, 14, 32, 64  # images, height, width, channels in and out
FLOP = flops(N, 32, 64, 14, 14, 3, 3)
moved = 4 * (N * 14 * 14 * (32 + 64) + 9 * 32 * 64)  # bytes: images, results and weights, once each
print(f"conv2: {FLOP / 1e9:.3f} GFLOP, {moved / 1e6:.1f} MB, {FLOP / moved:.0f} FLOP/byte")
padded = 2 * N * 32 * 64 * 14 * 14 * 9
print(f"{100 * FLOP / padded:.0f}% of the taps meet a pixel")

# %% [markdown]
# FLOP/byte is the [**arithmetic intensity**](../docs/learn/glossary.md#arithmetic-intensity).
#
# ### Exercise 2 · Where is element (n, c, h, w)?
#
# A batch of images has four dimensions: image *n*, channel *c*, row *h* and column *w*. Memory has only one. A
# **layout** maps each element (n, c, h, w) to its *offset*, its place in memory. Its name lists the dimensions from
# outermost to innermost.
#
# - **nchw**: each channel is an image of its own. The innermost loop runs over *w*.
# - **nhwc**: the channels of one pixel are neighbours. The innermost loop runs over *c*.
# - **nChw16c**, a [**blocked layout**](../docs/learn/glossary.md#blocked-layout): channels come in blocks of 16. Within
#   a block, the innermost loop runs over *c*; the capital *C* counts blocks.
#
# Why 16? An [**AVX-512**](../docs/learn/glossary.md#avx-512) register holds 16 single-precision numbers, so one
# instruction handles a block.
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

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 2.8))
shape = (2, 32, 6, 8)
for row, (layout, colour) in enumerate(zip(("nchw", "nhwc", "nChw16c"), plots.PALETTE)):
    places = [offset(0, c, 2, 3, shape, layout) for c in range(32)]
    axis.scatter(places, [row] * 32, marker="|", s=500, color=colour)
axis.set_yticks(range(3), ("nchw", "nhwc", "nChw16c"))
axis.set(xlabel="place in memory, in elements", ylim=(2.6, -0.6))
axis.set_title("The 32 channels of one pixel")
plots.show(
    figure,
    alt="Places in memory of one pixel's 32 channels in an image of 6 by 8 pixels. nchw: spread "
    "evenly over all 1,536 places. nhwc: 32 neighbours. nChw16c: two groups of 16 neighbours, half "
    "the memory apart.",
)

# %% [markdown]
# ## 4 · The race {read 6, do 15, wait 1.2}
#
# The kit's program calls your function `convolve` for each image and times it. Each file includes this header, where
# `vec` is a vector register of `LANES` floats.

# %%
print(convolution.PROGRAM.with_suffix(".h").read_text())

# %% [markdown]
# Start with six loops per image, as in a textbook.

# %%
# %%writefile work/conv_1.c
# #include "convolution.h"
#
# // nchw: image (c, h, w), weights (k, c, i, j), result (k, h, w)
# void convolve(const float *in, const float *weights, float *out, int H, int W, int C, int K) {
#     for (int k = 0; k < K; k++)              // output channel
#         for (int h = 0; h < H; h++)          // row
#             for (int w = 0; w < W; w++) {    // column
#                 float sum = 0;
#                 for (int c = 0; c < C; c++)  // input channel
#                     for (int i = 0; i < 3; i++)
#                         for (int j = 0; j < 3; j++) {
#                             int row = h + i - 1, column = w + j - 1;
#                             if (row < 0 || row >= H || column < 0 || column >= W) continue;
#                             float x = in[(c * H + row) * W + column];
#                             sum += x * weights[((k * C + c) * 3 + i) * 3 + j];
#                         }
#                 out[(k * H + h) * W + w] = sum;
#             }
# }


# %%
def speed(*files, threads=1, **tile):
    """Return a function that measures the GFLOP/s of a convolution in C files."""
    program = convolution.build(*files, **tile)
    return lambda: FLOP / 1e9 / convolution.seconds(program, SIZE, threads)


def run(*files, label="", **options):
    """Print the speed of a convolution, measured once."""
    print(label + (native.obstacle() or f"{speed(*files, **options)():.1f} GFLOP/s"))


run("work/conv_1.c")

# %% [markdown]
# The compiler can't vectorise the sum, because floating-point additions must stay in order (unless `-ffast-math`
# permits a different order).
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Two changes follow: a layout that the compiler can vectorise, and sums that stay in registers. How
# much faster than the six loops will your convolution be in the end, on one core?
#
# </div>

# %%
results.guess(2, "your convolution vs six loops, on one core", ..., unit="×")

# %% [markdown]
# ### Exercise 3 · Channels last
#
# If the innermost loop runs over output channels, its iterations are independent, so the compiler can use vector
# instructions. So output channels must be neighbours in memory. The image is (h, w, c), the weights are (i, j, c, k),
# and the result is (h, w, k), each from the outermost to the innermost dimension, as in TensorFlow.
#
# Write the two missing loops, over `c` and `k`. They add this tap's products to `out`, which is all zeros at the start.
# Tap (i, j) of the kernel meets pixel (`row`, `column`) of the image.
#
# The check compares results for several sizes with NumPy's, and stops the program at a wrong index. It accepts either
# loop order. The speed shows which one the compiler vectorises.

# %%
# %%writefile work/conv_2.c
# #include "convolution.h"
#
# // Channels last: image (h, w, c), weights (i, j, c, k), result (h, w, k)
# void convolve(const float *in, const float *weights, float *out, int H, int W, int C, int K) {
#     for (int i = 0; i < H * W * K; i++) out[i] = 0;
#     for (int h = 0; h < H; h++)
#         for (int w = 0; w < W; w++)
#             for (int i = 0; i < 3; i++)
#                 for (int j = 0; j < 3; j++) {
#                     int row = h + i - 1, column = w + j - 1;
#                     if (row < 0 || row >= H || column < 0 || column >= W) continue;
#                     ### BEGIN SOLUTION
#                     for (int c = 0; c < C; c++)
#                         for (int k = 0; k < K; k++)
#                             out[(h * W + w) * K + k] += in[(row * W + column) * C + c]
#                                                         * weights[((i * 3 + j) * C + c) * K + k];
#                     ### END SOLUTION
#                 }
# }

# %% tags=["nbval-check-output"]
conv_2 = check(3, "work/conv_2.c")

# %%
run(conv_2)

# %% [markdown]
# Swap your two loops, run the three cells again, and keep the faster order.

# %% [markdown]
# ### Exercise 4 · Sums in registers
#
# Your second convolution loads and stores a sum in `out` for each multiply-add, but a core can do two vector
# multiply-adds per cycle, though not as many loads and stores. So compute a **tile** of `PIXELS` pixels × `VECTORS`
# registers of output channels at a time, and keep its sums in registers. Each register of weights is then used for
# `PIXELS` pixels, and each pixel for `VECTORS` registers.
#
# A multiply-add takes about four cycles, so at least eight sums must be under way to start two per cycle, and 16 on
# CPUs that start four. The `PIXELS` × `VECTORS` sums must also fit, with `VECTORS` registers of weights and one for the
# pixel. A 6 × 2 tile takes 15 of AVX2's 16 registers, and a 14 × 2 tile 31 of the 32 that AVX-512 and NEON have.
#
# 1. `pack` copies the weights once, before the timing starts, so that a tile reads its weights in order. The layout is
#    (k / BLOCK, i, j, c, k % BLOCK), exercise 2's blocks with the dimensions in a different order. Unused places in the
#    last block stay zero. Write the line that stores `weight`.
# 2. In `tile`, write the multiply-adds of one tap and one input channel, for all `pixels` pixels and `VECTORS`
#    registers. `x` points to this channel of the first pixel, and the next pixel is `C` floats further on. `block`
#    points to the `BLOCK` weights.

# %%
# %%writefile work/conv_3.c
# #include <string.h>
# #include "convolution.h"
#
# // Weights (i, j, c, k) become blocks of output channels: (k / BLOCK, i, j, c, k % BLOCK).
# void pack(const float *weights, float *packed, int C, int K) {
#     for (int tap = 0; tap < 9; tap++)  // i * 3 + j
#         for (int c = 0; c < C; c++)
#             for (int k = 0; k < K; k++) {
#                 float weight = weights[(tap * C + c) * K + k];
#                 ### BEGIN SOLUTION
#                 packed[((k / BLOCK * 9 + tap) * C + c) * BLOCK + k % BLOCK] = weight;
#                 ### END SOLUTION
#             }
# }
#
# // `pixels` neighbours × one block of output channels. The padded image has `row` pixels in a row.
# INLINE void tile(const float *in, const float *block, float *out, int row, int C, int K,
#                  int channels, int pixels) {
#     vec sum[PIXELS][VECTORS] = {0};  // stays in registers
#     for (int i = 0; i < 3; i++)
#         for (int j = 0; j < 3; j++)
#             for (int c = 0; c < C; c++, block += BLOCK) {
#                 const float *x = in + (i * row + j) * C + c;  // of the first pixel
#                 ### BEGIN SOLUTION
#                 for (int p = 0; p < pixels; p++)
#                     for (int v = 0; v < VECTORS; v++)
#                         sum[p][v] += x[p * C] * *(vec *)(block + v * LANES);
#                 ### END SOLUTION
#             }
#     for (int p = 0; p < pixels; p++) memcpy(out + p * K, sum[p], channels * sizeof *out);
# }
#
# void convolve(const float *in, const float *weights, float *out, int H, int W, int C, int K) {
#     int row = W + 2;
#     float padded[(H + 2) * row * C];  // with a border of zeros
#     memset(padded, 0, sizeof padded);
#     for (int h = 0; h < H; h++)
#         memcpy(padded + ((h + 1) * row + 1) * C, in + h * W * C, W * C * sizeof *in);
#     for (int k = 0; k < K; k += BLOCK, weights += 9 * C * BLOCK)
#         for (int h = 0; h < H; h++)
#             for (int w = 0, pixels; w < W; w += pixels) {
#                 const float *from = padded + (h * row + w) * C;
#                 float *to = out + (h * W + w) * K + k;
#                 int channels = K - k < BLOCK ? K - k : BLOCK;
#                 pixels = W - w >= PIXELS ? PIXELS : W - w >= 2 ? 2 : 1;
#                 if (pixels == PIXELS) tile(from, weights, to, row, C, K, channels, PIXELS);
#                 else if (pixels == 2) tile(from, weights, to, row, C, K, channels, 2);
#                 else tile(from, weights, to, row, C, K, channels, 1);
#             }
# }

# %% tags=["nbval-check-output"]
conv_3 = check(4, "work/conv_3.c")

# %%
run(conv_3)

# %% [markdown]
# Does the tile's size matter?

# %%
registers = 32 if {"AVX-512", "NEON"} & {*machine.isa} else 16
for pixels, vectors in ((1, 1), (2, 2), (6, 2), (7, 2), (14, 2), (7, 4), (14, 4)):
    sums = pixels * vectors
    too_many = max(0, sums + vectors + 1 - registers)
    label = f"{pixels:2} × {vectors}: sums under way {sums:2}, registers missing {too_many:2}: "
    run(conv_3, label=label, PIXELS=pixels, VECTORS=vectors)

# %%
results.answer(3, "Which tiles are slow on your machine, and why?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Tiles with few sums under way wait, because each multiply-add needs the result of an earlier one. In tiles that need
# too many registers, the compiler spills some sums to memory, and each makes a round trip of about ten cycles per
# channel. A small tile waits for it (7 × 2 with 16 registers); a larger one stays busy meanwhile (7 × 4 with 32).
# Otherwise, leftover pixels matter (of 14 pixels, 6-pixel tiles leave two, and 7-pixel tiles none).
#
# </details>
#
# ### Exercise 5 · All cores
#
# The images of a batch are independent, so cores can share them. The program calls `convolve_batch`. Add one line of
# [**OpenMP**](../docs/learn/glossary.md#openmp) before its loop, so that all threads take part and each image is
# convolved once.

# %%
# %%writefile work/batch.c
# #include "convolution.h"
#
# void convolve_batch(const float *in, const float *weights, float *out,
#                     int N, int H, int W, int C, int K) {
#     ### BEGIN SOLUTION
#     #pragma omp parallel for
#     ### END SOLUTION
#     for (int n = 0; n < N; n++)
#         convolve(in + n * H * W * C, weights, out + n * H * W * K, H, W, C, K);
# }

# %% tags=["nbval-check-output"]
batch = check(5, "work/batch.c")

# %%
run(conv_3, batch, threads=cores)

# %% [markdown]
# ### Against oneDNN
#
# With `ONEDNN_VERBOSE=1`, oneDNN logs each [**primitive**](../docs/learn/glossary.md#primitive) that it runs, with its
# layouts and milliseconds.

# %%
# %%writefile work/conv2.py
"""Run conv2 alone: ONEDNN_VERBOSE=1 python work/conv2.py IMAGES WARM_UP CALLS"""

import sys

import tensorflow as tf

n, warm_up, calls = map(int, sys.argv[1:])
images, weights = tf.random.normal((n, 14, 14, 32)), tf.random.normal((3, 3, 32, 64))
conv2 = tf.function(lambda images, weights: tf.nn.conv2d(images, weights, 1, "SAME"))
for call in range(-warm_up, calls):
    if call == 0:
        print("warm", flush=True)  # a line between in the log
    conv2(images, weights)

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How fast is your convolution on all cores, compared with the speed in oneDNN's own log (0.5 means
# half of it)?
#
# </div>

# %%
results.guess(3, "your convolution vs oneDNN's log", ..., unit="×")

# %% [markdown]
# Each round measures all variants and two limits, the peaks of one core and of all cores for multiply-adds on values in
# registers.


# %%
def logged():
    """Return the GFLOP/s of conv2 in the log of a new process."""
    env = {"ONEDNN_VERBOSE": 1, "TF_ENABLE_ONEDNN_OPTS": 1}
    lines = run_ranks(1, "work/conv2.py", N, WARM_UP, CALLS, env=env, show=False).lines[0]
    log = onednn.read_log(lines, after="warm")
    logs.append(log)
    return FLOP / 1e6 / log[log.primitive == "convolution"].ms.median()


def called():
    """Return the GFLOP/s of TensorFlow's call; like the others, of the median call."""
    seconds = [timeit.timeit(lambda: conv2(*inputs), number=1) for _ in range(WARM_UP + CALLS)]
    return FLOP / 1e9 / np.median(seconds[WARM_UP:])


conv2 = tf.function(lambda images, weights: tf.nn.conv2d(images, weights, 1, "SAME"))
inputs = normal(N, 14, 14, 32), normal(3, 3, 32, 64)

# %%
logs = []
if native.obstacle():
    recording = recorded("02-race")
    race, bandwidth = recording.figures, recording.data["bandwidth"]
else:
    entries = {
        "six loops": speed("work/conv_1.c"),
        "channels last": speed(conv_2),
        "sums in registers": speed(conv_3),
        "… on all cores": speed(conv_3, batch, threads=cores),
        "oneDNN, TensorFlow's call": called,
        "oneDNN, its log": logged,
        "peak of one core": lambda: convolution.peak(1) / 1e9,
        "peak": lambda: convolution.peak(cores) / 1e9,
    }
    race = alternate(entries, ROUNDS, "GFLOP/s", "section 4")
    bandwidth = convolution.read(cores) / 1e9  # GB/s
record("02-race", race, QUICK, bandwidth=bandwidth)

# %%
yours, theirs, peak = race["… on all cores"], race["oneDNN, its log"], race["peak"]
for name, figure in race.items():
    print(f"{name:26} {figure}")
against = compare(yours, theirs)
print(f"your convolution vs oneDNN's log: {against}")
print(f"of the peak, yours reaches {share(yours, peak)}, oneDNN {share(theirs, peak)}")
results.compare_guess(2, compare(race["sums in registers"], race["six loops"]))
results.compare_guess(3, against)

# %% jupyter={"source_hidden": true}
LOOKS = {
    "six loops": (plots.PURPLE, "o", "full"),
    "channels last": (plots.SKY, "s", "full"),
    "sums in registers": (plots.GREEN, "D", "full"),
    "… on all cores": (plots.VERMILION, "*", "full"),
    "oneDNN, TensorFlow's call": (plots.BLACK, "v", "none"),
    "oneDNN, its log": (plots.BLUE, "^", "none"),
}
figure, axis = plt.subplots(figsize=(9, 5.5))
intensity = np.geomspace(0.5, 1000)
for name, line, side in (("peak", "-", "bottom"), ("peak of one core", "--", "top")):
    limit = race[name].value
    axis.plot(intensity, np.minimum(limit, intensity * bandwidth), line, color="grey", marker="")
    place = 1000, limit * (1.05 if side == "bottom" else 0.93)
    axis.annotate(f"{name}: {limit:,.0f}", place, ha="right", va=side)
axis.annotate(f"reading memory: {bandwidth:.0f} GB/s", (1, 0.75 * bandwidth), va="top")
for name, (colour, marker, fill) in LOOKS.items():
    value = race[name].value
    reach = np.nan_to_num([[value - race[name].low], [race[name].high - value]])
    label = f"{name}: {value:,.1f}"
    look = {"color": colour, "marker": marker, "fillstyle": fill, "linestyle": ""}
    at = FLOP / moved * (1.4 if "oneDNN" in name else 1)
    axis.errorbar(at, value, reach, label=label, markersize=11, capsize=4, **look)
axis.loglog()
axis.set(ylabel="GFLOP/s", title="The race on the roofline")
axis.set_xlabel(f"FLOP/byte ({FLOP / moved:.0f} for all; oneDNN's are drawn further right)")
handles, labels = axis.get_legend_handles_labels()
axis.legend(handles[::-1], labels[::-1], loc="lower left", fontsize=11)
plots.show(
    figure,
    alt=f"GFLOP/s of conv2 at {FLOP / moved:.0f} FLOP/byte, under a roof of {bandwidth:.0f} GB/s "
    f"and {peak.value:,.0f} GFLOP/s: " + "; ".join(f"{name} {race[name]}" for name in LOOKS),
    keep=results,
    watched=peak.contention,
)

# %% [markdown]
# ### Why were we wrong?
#
# With at least eight sums under way, nothing in the tile should wait, so we predict the peak times the share of taps
# that meet a pixel. Larger images have less border, 20 × 20 leaves pixels over after a 14-pixel tile, and with more
# output channels, copying the padded image matters less.

# %%
THREADS = {"one core": 1, "all cores": cores}
variants = {name: lambda n=n: convolution.peak(n) / 1e9 for name, n in THREADS.items()}
predicted = {}
for side, to in ((14, 64), (20, 64), (28, 64), (56, 64), (14, 256)):
    shape = f"{side} × {side}, 32 → {to}"
    n = cores * max(1, N * 14 * 14 * 64 // (side * side * to) // cores)
    flop = flops(n, 32, to, side, side, 3, 3)
    predicted[shape] = flop / (2 * n * 32 * to * side * side * 9)
    for name, threads in THREADS.items():
        variants[f"{shape}, {name}"] = lambda flop=flop, size=(n, side, side, 32, to), n=threads: (
            flop / 1e9 / convolution.seconds(convolution.build(conv_3, batch), size, n)
        )
reached = {} if native.obstacle() else alternate(variants, ROUNDS, "GFLOP/s", "section 4")

# %%
print(f"{'share of the peak':20} predicted  {'one core':18} all cores")
for shape, part in predicted.items():
    shares = [share(reached[f"{shape}, {name}"], reached[name]) for name in THREADS if reached]
    print(f"{shape:20} {part:9.0%} ", *(f"{each!s:18}" for each in shares))

# %%
results.answer(4, "What limits your last step now?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# In the picture, the memory line meets the peak to the left of the markers, so the cores are the limit. From 14 × 14 to
# 56 × 56, the share rises by what the border cost (and leftover pixels, with 6-pixel tiles). After a 14-pixel tile,
# leftover pixels slow 20 × 20 down compared with the sizes around it, because pairs of pixels have only four sums under
# way. The gain with 256 channels, if the intervals show one, is what copying costs. The rest of one core's gap to the
# peak arises in the tile, from loads next to the multiply-adds, or weights evicted from the first-level cache. The
# table can't tell which. Any smaller share on all cores comes from threads that start, wait for the last one, and share
# caches.
#
# </details>
#
# oneDNN's log writes dimensions as letters, in the order (n, c, h, w) for images and (k, c, i, j) for weights, so
# `acdb` is nhwc. A capital letter marks a blocked dimension.

# %%
if not native.obstacle():
    display(logs[-1][["primitive", "implementation", "src", "wei", "dst", "ms"]].tail(4))

# %% [markdown]
# `Acdb64a`, for example, is *(k / 64, i, j, c, k % 64)*, which is your `pack` with a different block size. Images stay
# in nhwc, as in your files. `brg` is a tile computed as a batch of small matmuls, and `jit` is code that oneDNN
# generated at run time for exactly this shape. Yours only handles 3 × 3 kernels with stride 1.

# %%
results.answer(5, "Why is TensorFlow's call slower than oneDNN's log?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# The log times each primitive alone, and the figure above covers only the convolution. A `reorder` in the log is part
# of the call and converts the weights into blocks. TensorFlow also looks up the operation, allocates the output, and
# wakes the threads, all outside the log.
#
# </details>
#
# ## 5 · Where the time goes {read 6, do 4, wait 0.2}
#
# How much does a faster convolution help? Section 1's *kept* variants ended with steps under TensorFlow's profiler.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In which kind of operation does oneDNN save a training step the most time?
#
# </div>

# %%
KINDS = {  # of operations, with a pattern of their types: the first match counts
    "convolution, gradient of images": "Conv2DBackpropInput",
    "convolution, gradient of weights": "Conv2DBackpropFilter",
    "convolution, forward": "Conv2D",
    "matmuls": "MatMul",
    "pooling, backward": "MaxPoolGrad",
    "pooling, forward": "MaxPool",
    "Relu and bias, backward": "ReluGrad|BiasAddGrad",
    "other operations": "",
}
results.guess(4, "where oneDNN saves most", ..., choices=tuple(KINDS))


# %%
def by_kind(run):
    """Return the milliseconds of a step in each kind of operation, and outside all of them."""
    ms = dict.fromkeys([*KINDS, "between operations"], 0.0)
    for op, op_ms in run["ms"].items():
        ms[next(kind for kind, pattern in KINDS.items() if re.search(pattern, op))] += op_ms
    ms["between operations"] = run["profiled ms"] - sum(ms.values())
    return ms


# %%
spent = {
    library: {
        kind: [by_kind(run)[kind] for run in runs[f"{library}, kept"]]
        for kind in by_kind(runs["Eigen, kept"][0])
    }
    for library in ("Eigen", "oneDNN")
}
ms = {
    library: {kind: np.median(rounds) for kind, rounds in kinds.items()}
    for library, kinds in spent.items()
}
saved = {kind: ms["Eigen"][kind] - ms["oneDNN"][kind] for kind in ms["Eigen"]}
order = sorted(saved, key=saved.get, reverse=True)
print(f"{'ms in a training step':34} Eigen  oneDNN   saved (lowest and highest round)")
for kind in order:
    rounds = np.subtract(spent["Eigen"][kind], spent["oneDNN"][kind])
    columns = f"{ms['Eigen'][kind]:6.2f} {ms['oneDNN'][kind]:7.2f} {saved[kind]:7.2f}"
    print(f"{kind:34}{columns} ({min(rounds):.2f} to {max(rounds):.2f})")
for library in ms:
    plain = 64_000 / trained[f"{library}, kept"].value
    print(
        f"{library}: {sum(ms[library].values()):.1f} ms under the profiler, {plain:.1f} ms without"
    )
results.compare_guess(4, order[0] if order[0] in KINDS else order[1])

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5))
for shift, library, colour, hatch in zip((-0.2, 0.2), ms, (plots.ORANGE, plots.BLUE), ("//", "")):
    bars = np.array([ms[library][kind] for kind in order])
    rounds = np.array([spent[library][kind] for kind in order])
    look = {"color": colour, "hatch": hatch, "label": library, "capsize": 3}
    reach = bars - rounds.min(axis=1), rounds.max(axis=1) - bars
    axis.barh(np.arange(len(order)) + shift, bars, 0.4, xerr=reach, **look)
axis.set_yticks(range(len(order)), order)
axis.invert_yaxis()
axis.set_xlabel("ms in a training step (whiskers: all rounds)")
axis.set_title("Where a training step's time goes, ordered by saving")
axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncol=2)
plots.show(
    figure,
    alt="Milliseconds in a training step with Eigen and oneDNN: "
    + "; ".join(f"{kind} {ms['Eigen'][kind]:.2f} and {ms['oneDNN'][kind]:.2f}" for kind in order),
    keep=results,
    watched=trained["oneDNN, kept"].contention,
)

# %% [markdown]
# *Between operations* is the rest of the step, including TensorFlow's executor, Python, and copying the batch. *Other
# operations* are the loss, the weight update and small operations, which Eigen runs in both variants. If a range
# contains 0, the saving isn't certain.
#
# ### A surprise: pooling's backward pass
#
# Pooling takes the maximum of four numbers, and its gradient goes to where that maximum was. Why should that be
# expensive? TensorFlow has two versions of the gradient. `MaxPoolGrad` gets the input of the forward pass.
# `MaxPoolGradWithArgmax` gets the positions of the maxima, from a forward pass that keeps them. This script times both
# with Eigen, and the first also on images of zeros, which need as many comparisons.

# %%
# %%writefile work/pool.py
"""Time max-pooling, with and without positions of the maxima: python work/pool.py ROUNDS"""

import sys

import tensorflow as tf

from labkit.measure import alternate, per_second

x = tf.nn.relu(tf.random.normal((64, 28, 28, 32)))  # as after a convolution
dy = tf.random.normal((64, 14, 14, 32))
window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
ops = tf.raw_ops
y, positions = ops.MaxPoolWithArgmax(input=x, **window)
x_0, y_0 = tf.zeros_like(x), tf.zeros_like(y)
calls = {
    "forward": lambda: ops.MaxPool(input=x, **window),
    "forward, keeps positions": lambda: ops.MaxPoolWithArgmax(input=x, **window),
    "backward": lambda: ops.MaxPoolGrad(orig_input=x, orig_output=y, grad=dy, **window),
    "backward, from positions": lambda: ops.MaxPoolGradWithArgmax(
        input=x, grad=dy, argmax=positions, **window
    ),
    "backward, all zeros": lambda: ops.MaxPoolGrad(
        orig_input=x_0, orig_output=y_0, grad=dy, **window
    ),
}


def ms(call):
    rate = per_second(tf.function(call), at_least_s=0.1)
    return lambda: 1000 / rate()


variants = {name: ms(call) for name, call in calls.items()}
for name, figure in alternate(variants, int(sys.argv[1]), "ms", "section 5").items():
    print(f"{name:25} {figure}")

# %%
lines = run_ranks(
    1, "work/pool.py", POOL_ROUNDS, env={"TF_ENABLE_ONEDNN_OPTS": 0}, show=False
).lines[0]
print(*(line for line in lines if " ms" in line or "⚠" in line), sep="\n")
# %%
results.answer(6, "What does Eigen's backward pooling spend its time on?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# It finds the maxima again. A forward pass that keeps positions takes almost as long, and a backward pass that gets
# them is cheap. In TensorFlow's
# [`maxpooling_op.cc`](https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/kernels/maxpooling_op.cc),
# `MaxPoolingGradOp` first searches for the positions, with an `if` per element. With zeros, the CPU predicts these
# branches, so the time saved is mostly the price of mispredictions. (In training, digits are probably easier to predict
# than these random numbers.) oneDNN's forward pass keeps positions in a workspace (`ws` in the log below) for its
# backward pass, so it searches once, not twice.
#
# </details>
#
# ### A suspect: memory that malloc gives back
#
# The C library can return freed memory to the kernel. The next step then gets new pages, each of which costs a [**page
# fault**](../docs/learn/glossary.md#page-fault) and must be filled with zeros. By default, the library returns large
# arrays, but raises its threshold when one is freed, so processes differ. Section 1's variants *given back* and *kept*
# force one behaviour each, and show the price of a fault.


# %%
def at_median(name):
    """Return the milliseconds and the page faults of a step: medians of the rounds."""
    return 64_000 / trained[name].value, np.median([run["page faults"] for run in runs[name]])


slow, fast = (np.array(at_median(f"Eigen, {how}")) for how in ("given back", "kept"))
more_ms, more_faults = slow - fast
price = more_ms / more_faults
each = f"{1000 * price:.2f} µs each"
print(f"given back vs kept: {more_ms:.1f} ms for {more_faults:,.0f} faults, {each}")
for name in ("Eigen, given back", "Eigen", "Eigen, kept", "oneDNN", "oneDNN, kept"):
    faults = sorted(round(run["page faults"]) for run in runs[name])
    print(f"{name:17} {at_median(name)[0]:5.1f} ms per step; faults by round: {faults}")
    print(f"{'':17} at that price: {price * faults[0]:.1f} to {price * faults[-1]:.1f} ms")
both = compare(trained["oneDNN, kept"], trained["Eigen, kept"])
print(f"oneDNN vs Eigen, memory kept: {both}; by default: {gain}")

# %%
results.answer(7, "How much of oneDNN's gain in section 1 was memory?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# It was what *Eigen* paid for its faults, minus what *oneDNN* paid. If both are a small part of the step, the suspect
# is cleared on your machine, and the last line's two ratios agree within their intervals. A single round with many
# faults is chance.
#
# </details>
#
# ### Exercise 6 · What to improve first?
#
# You have a week. Write `improve_first(ms, share, step_ms)`. `ms` is a dictionary from each part of a step to its
# milliseconds. `share` has the same names in the same order, with the share of its limit that each reaches (0.2 is a
# fifth). `step_ms` is the time of the whole step, which contains more than these parts. Return the name of the part
# that would shorten the step most if it reached its limit, and the factor by which the whole step would then be faster
# (1.25, not 25%).


# %%
def improve_first(ms, share, step_ms):
    """Return the part to improve first, and the step's speed-up if it reached its limit."""
    ### BEGIN SOLUTION
    saves = {name: ms[name] * (1 - share[name]) for name in ms}
    first = max(saves, key=saves.get)
    return first, step_ms / (step_ms - saves[first])
    ### END SOLUTION


# %% tags=["nbval-check-output"]
improve_first = check(6, improve_first)

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Your convolution replaces oneDNN's in conv2's forward pass, and reaches the machine's peak. How much
# faster is a training step?
#
# </div>

# %%
results.guess(5, "training with conv2's forward pass at the peak", ..., unit="×")

# %% [markdown]
# Here is oneDNN's log of a few training steps, and pooling's first line from the warm-up. Each of a convolution's two
# gradients needs as many operations as the forward pass, and moves as many bytes. The limit is the roofline's, with the
# bandwidth for *reading* memory.

# %%
env = {"ONEDNN_VERBOSE": 1, "TF_ENABLE_ONEDNN_OPTS": 1, "TF_NUM_INTEROP_THREADS": 1}
lines = run_ranks(1, "work/cnn.py", STEPS, 0, env=env, show=False).lines[0]
step_ms = 64_000 / json.loads((work / "cnn.json").read_text())["images/s"]
log = onednn.read_log(lines, after="warm")
log_ms = log.ms.groupby(np.arange(len(log)) * STEPS // len(log)).sum().median()
print(f"a training step: {step_ms:.2f} ms, of which {log_ms:.2f} ms are in oneDNN's log")
print(next((line for line in lines if ",pooling" in line and ",forward" in line), ""))

# %%
top, gb_per_s = peak.value, bandwidth
if native.obstacle():  # the recorded limits are another machine's
    a = normal(2048, 2048)
    top, gb_per_s = per_second(lambda: tf.matmul(a, a), 2 * 2048**3 / 1e9)(), np.inf
took, reaches = {}, {}
for (problem, direction), calls in log[log.primitive == "convolution"].groupby(
    ["problem", "direction"]
):
    size = onednn.convolution_size(problem)
    mb, ic, oc, oh, ow, kh, kw = (size[name] for name in ("mb", "ic", "oc", "oh", "ow", "kh", "kw"))
    flop = flops(mb, ic, oc, oh, ow, kh, kw)
    in_and_out = 4 * (mb * (ic + oc) * oh * ow + ic * oc * kh * kw)  # bytes
    name = f"conv{1 + (ic > 1)} {direction.removesuffix('_training').replace('_', ' ')}"
    took[name] = calls.ms.median()
    reaches[name] = flop / 1e6 / took[name] / min(top, gb_per_s * flop / in_and_out)

# %%
ranked = sorted(took, key=took.get, reverse=True) if log_ms < step_ms else []
for name in ranked:
    _, factor = improve_first({name: took[name]}, {name: reaches[name]}, step_ms)
    at = f"{100 * took[name] / step_ms:3.0f}% of the step, {100 * reaches[name]:3.0f}% of its limit"
    valid = "" if reaches[name] <= 1.03 else " (limit not valid)"
    print(f"{name:22} {took[name]:5.2f} ms, {at}{valid}; at the limit, the step: {factor:.3f}×")
    if name == "conv2 forward":
        results.compare_guess(5, f"{factor:.3f}×")
if ranked:
    first, factor = improve_first(took, reaches, step_ms)
    print(f"first: {first}, {factor:.3f}×")
for part, its_ms in (("convolutions", sum(took.values())), ("what oneDNN logs", log_ms)):
    rest = step_ms - its_ms
    print(f"everything but {part}: {rest:.2f} ms, {100 * rest / step_ms:.0f}% of the step")

# %%
results.answer(8, "What would you spend the week on?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# A part can save its share of the step times the share of its limit that it doesn't reach. The last column shows what
# that is worth, and the factor for *conv2 forward* is what your week would buy. Near ties can change places in another
# run. The last line is TensorFlow's time, spent between operations, around oneDNN's, and on Relu and bias gradients and
# weight updates. The line above adds oneDNN's pooling and matmuls. A larger batch spreads fixed costs (lab 03 tries
# that), and compiling the graph merges small operations. conv1 has one input channel and does about 4 FLOP/byte, so
# memory is its limit, and a cache can lift that.
#
# </details>

# %% [markdown]
# ## 6 · Whose instructions? {read 2, do 6, wait 0.6, optional}
#
# oneDNN generates code for the CPU's best [**instruction set**](../docs/learn/glossary.md#instruction-set), and
# `ONEDNN_MAX_CPU_ISA` caps it. Your compiler uses `-march`. What are the instructions worth to each?


# %%
def capped(isa):
    """Return a function that measures conv2 in oneDNN's log, capped to an instruction set."""

    def measure():
        env = {"ONEDNN_VERBOSE": 1, "TF_ENABLE_ONEDNN_OPTS": 1, "ONEDNN_MAX_CPU_ISA": isa}
        log = onednn.read_log(
            run_ranks(1, "work/conv2.py", N, WARM_UP, CALLS, env=env, show=False).lines[0],
            after="warm",
        )
        return FLOP / 1e6 / log[log.primitive == "convolution"].ms.median()

    return measure


# %%
by_isa = {"oneDNN, SSE4.1": capped("SSE41"), "oneDNN, AVX2": capped("AVX2")}
if "AVX2" not in machine.isa:
    print("This CPU has no AVX2, so there is nothing to cap.")
else:
    flags = {"x86-64": ("-march=x86-64",), "AVX2": ("-mavx2", "-mfma")}
    for name, isa in flags.items() if not native.obstacle() else ():
        options = "-O3", *isa, "-ffp-contract=fast", "-fopenmp"
        program = convolution.build(conv_3, batch, flags=options)
        by_isa[f"yours, {name}"] = lambda program=program: (
            FLOP / 1e9 / convolution.seconds(program, SIZE, cores)
        )
    figures = alternate(by_isa, ROUNDS, "GFLOP/s", "section 6")
    if not native.obstacle():
        figures |= {"oneDNN, any": theirs, "yours, any": yours}  # from section 4
    for name, figure in figures.items():
        print(f"{name:16} {figure}")

# %% [markdown]
# On paper, AVX2's registers hold 8 numbers instead of SSE's 4, and FMA multiplies and adds in one instruction, which
# together give up to 4×. AVX-512 doubles that on CPUs with 512-bit units (most Intel Xeons, AMD's Zen 5 servers and
# desktops), but not on Zen 4, whose units are 256 bits wide. *Any* repeats section 4's figures, with all instructions
# of your CPU.
#
# **Finished early?**
#
# - Beat oneDNN by processing two rows at a time.
# - Count `zmm` and `ymm` registers with `objdump -d`, in your program and in the code that `ONEDNN_JIT_DUMP=1` writes.

# %% [markdown]
# ## Questions {read 2}
#
# 1. Why does the compiler vectorise your second convolution but not the six loops?
# 2. Does fusion save arithmetic or memory traffic?
# 3. What is layout propagation, and why does today's TensorFlow not need it? What does it still convert?
# 4. What would you check before you trust a faster library?
# 5. What are intra-op and inter-op threads, and what is `OMP_NUM_THREADS` in a TensorFlow built with OpenMP?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers.
#
# 1. The six loops sum into one number, and floating-point additions may not be reordered. In the second, each iteration
#    of the innermost loop writes a different element.
# 2. It saves memory traffic. All additions and maxima are still computed.
# 3. Operations passed blocked tensors on, so that images were converted only at the ends of a chain. oneDNN's
#    convolutions now read nhwc about as fast. Weights are still blocked, as the log's reorders at each training step
#    show.
# 4. Check the loss over many steps and the accuracy, not individual bits, because training amplifies rounding.
# 5. Intra-op threads share one operation, and inter-op threads run several. With OpenMP, `OMP_NUM_THREADS` sets
#    oneDNN's threads, which are in addition to TensorFlow's.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Other machines, timing, and what goes wrong.
#
# - **No AVX-512**: the tile is 6 × 2 registers of 8 numbers, and 7 × 2 spills one sum, which slows it visibly. **Arm**:
#   the tile is 14 × 2 registers of 4, and oneDNN may call Arm's Compute Library, as its log then shows.
# - **Many cores**: the training step keeps its batch of 64, so fixed costs matter more.
# - **Two hardware threads of one core**: the peak of all "cores" is about that of one.
# - **No compiler**: exercises 3 to 5 can't be attempted, the race is a recording, and section 5 still runs.
# - **Timing**: start section 1's measurement before you talk. In exercise 4, let students draw the tile. If time is
#   short, leave out the tiles.
# - **What goes wrong**: if exercise 5's check finds calls on one thread only, the pragma is misspelt, so the compiler
#   ignored it.
#
# </div>

# %% [markdown]
# ## Remember
#
# - One variable chooses the library when TensorFlow starts. Know your CPU's default.
# - Count useful operations only, and compare speeds with the peak, not only with each other.
# - Layout first, then registers, then cores.
# - A faster library may do less work. Look before you praise its instructions.
# - A loop is worth at most its share of the step. Before you spend a week on one, list what saves most.

# %% jupyter={"source_hidden": true}
speeds = f"{trained['Eigen'].value:,.0f} → {trained['oneDNN'].value:,.0f} images/s"
trains = replace(compare(trained["oneDNN"], trained["Eigen"]), of=speeds)
one, all_cores = (f"{race[name].value:,.0f} GFLOP/s" for name in ("peak of one core", "peak"))
closing = [
    ("training, Eigen → oneDNN", "ResNet-50: 3.84 → 17.69 images/s, 4.6×", trains, ""),
    ("the same, memory kept", "", both, ""),
    ("conv2, six loops", "", race["six loops"], one),
    ("conv2, yours on one core", "", race["sums in registers"], one),
    ("conv2, yours on all cores", "", yours, all_cores),
    ("conv2, oneDNN's log", "", theirs, all_cores),
    ("yours vs oneDNN's log", "", against, ""),
]
results.table("conv2 and the MNIST CNN", closing)

# %% [markdown]
# The published figure is from section 1's source, which doesn't name the machine.
#
# **Next:** [lab 03](03_resnet50.ipynb) asks the same questions about ResNet-50.
