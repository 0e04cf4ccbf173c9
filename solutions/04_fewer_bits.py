# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 04 · Fewer bits
#
# **You will learn** what 32, 16 and 8 bits can hold, how to train in bfloat16, how to multiply matrices of 8-bit
# numbers, how to make your own trained network faster by quantising it, what that costs in accuracy, and how
# calibration gets the accuracy back. Optional sections save a gradient from vanishing, bound the error of an 8-bit
# product, measure what one instruction is worth, go below 8 bits, and answer many requests at once.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which capped instruction sets one by one on a network that used no 16-bit or 8-bit numbers;
# lab 03, which trains ResNet-50 in bfloat16; and lab 08, where 16-bit gradients travel between machines.
#
# **Why fewer bits?** There are three reasons:
#
# - More numbers fit into a register, so one instruction multiplies more of them, with less energy for each.
# - A number takes half or a quarter of the memory, of the memory traffic, and of the caches.
# - A trained network tolerates noise, so it seldom needs seven digits.
#
# The price is range or precision. This lab measures both sides on your machine.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("04", globals())
cores = machine.usable_cores
for name, what in (("BF16", "bfloat16"), ("VNNI", "sums of 8-bit products")):
    missing = "no instruction; libraries emulate it or leave it out"
    print(f"{what}: {'in hardware' if name in machine.isa else missing}")

# %%
import json
import logging
import os
import re
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

# Before TensorFlow starts; without it, older CPUs would get Eigen.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"

import keras
import matplotlib.pyplot as plt
import nncf
import numpy as np
import openvino
import pandas as pd
import rich
import tensorflow as tf
from IPython.display import display
from nncf.quantization.range_estimator import RangeEstimatorParametersSet
from openvino import opset13 as ops

from labkit.data import load_digits
from labkit.display import ladder, markdown, plots
from labkit.display.measured import Measured
from labkit.models.openvino_core import openvino_core
from labkit.mpi import run_ranks
from labkit.roofline import measure
from labkit.system import load
from labkit.system.statistics import ratios

tf.get_logger().setLevel("ERROR")
nncf.set_log_level(logging.ERROR)
rich.reconfigure(quiet=True, force_jupyter=False)  # no progress bars from NNCF

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
n_train, n_held_out, n_test = (640, 50, 500) if QUICK else (8_000, 500, 4_000)  # digits
SMALL_NET_STEPS = 40 if QUICK else 300  # section 2
EPOCHS = 2 if QUICK else 5  # section 3
PROCESSES = 1 if QUICK else 5  # for each setting: sections 5 and 8
ROUNDS, RUNS = (2, 1) if QUICK else (4, 10)  # in each process, in each round: sections 5 and 8
LAYER_RUNS = 3 if QUICK else 100  # section 8
WIDTH, LAYERS, WEIGHT_ROUNDS = (256, 2, 2) if QUICK else (4096, 5, 6)  # section 9
STREAM_ROUNDS, STREAM_SECONDS = (1, 0.05) if QUICK else (5, 0.8)  # section 10

digits = load_digits(n_train + n_held_out, n_test)
print(digits.source)

# %% [markdown]
# ## 1 · What a number can hold
#
# A floating-point number has three parts: a sign, an [**exponent**](../docs/glossary.md#exponent) *e*, and a fraction
# *f* (its [**mantissa**](../docs/glossary.md#mantissa), without the leading 1). With *E* bits for the exponent and *F*
# for the fraction, its value is
#
# $$\pm \left(1 + \frac{f}{2^F}\right) \cdot 2^{\,e - bias}, \qquad bias = 2^{E-1} - 1$$
#
# Two exponents are special. **All bits 0**: the leading 1 becomes a 0, and the exponent counts as 1. These *subnormal*
# numbers fill the gap down to zero, and zero is one of them. **All bits 1**: infinity if the fraction is 0, otherwise
# NaN, *not a number*.
#
# | format | sign | exponent | fraction |
# | --- | --- | --- | --- |
# | [**FP32**](../docs/glossary.md#fp32), float32, single precision | 1 | 8 | 23 |
# | [**FP16**](../docs/glossary.md#fp16), float16, half precision | 1 | 5 | 10 |
# | BF16, [**bfloat16**](../docs/glossary.md#bfloat16) | 1 | 8 | 7 |
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Both FP16 and BF16 have 16 bits. Which of them can hold 70,000, at least roughly? And which of them
# can hold 257 exactly? Write the first answer over the three dots, or just run the cell.
#
# </div>

# %%
results.guess(1, "the 16-bit format that holds 70,000", ..., choices=("FP16", "BF16"))

# %% [markdown]
# ### Exercise 1 · Read the bits
#
# Write `decode(pattern, e, f)`. It returns the value of a number whose bits are the whole number `pattern`, with `e`
# bits of exponent and `f` bits of fraction. The sign is the highest bit, then come the exponent and the fraction.


# %%
def decode(pattern, e, f):
    """Return the value of a floating-point number from its bits."""
    ### BEGIN SOLUTION
    sign = -1.0 if pattern >> (e + f) else 1.0
    exponent, fraction = (pattern >> f) & (2**e - 1), pattern & (2**f - 1)
    bias = 2 ** (e - 1) - 1
    if exponent == 2**e - 1:
        return sign * np.inf if fraction == 0 else np.nan
    if exponent == 0:
        return sign * fraction / 2**f * 2.0 ** (1 - bias)
    return sign * (1 + fraction / 2**f) * 2.0 ** (exponent - bias)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
decode = check(1, decode)

# %% [markdown]
# Your function now computes the limits of each format. The table also has two formats of 8 bits, with a name that
# counts their bits: [**FP8**](../docs/glossary.md#fp8) E5M2 has 5 of exponent and 2 of mantissa. And it has
# [**INT8**](../docs/glossary.md#int8): whole numbers, all at the same distance from the next.

# %% tags=["nbval-check-output"]
FORMATS = {"FP32": (8, 23), "BF16": (8, 7), "FP16": (5, 10)}
rows = []
for name, (e, f) in {**FORMATS, "FP8 E5M2": (5, 2), "FP8 E4M3": (4, 3)}.items():
    infinity, one = (2**e - 1) << f, (2 ** (e - 1) - 1) << f
    patterns = (infinity - 1, 1 << f, 1, one + 1)
    largest, normal, smallest, next_to_one = (float(decode(x, e, f)) for x in patterns)
    step = next_to_one - 1
    rows.append((name, f"±{largest:.5g}", f"{normal:.3g}", f"{smallest:.3g}", f"{step:.3g}"))
rows.append(("INT8", "−128 to 127", "1", "1", "1"))
head = ("format", "range", "smallest normal", "smallest above 0", "step at 1")
display(markdown.table(head, rows))

# %% [markdown]
# The E4M3 that hardware has differs from your table: it gives up infinity, and all but one of the NaNs, for more
# numbers, and reaches ±448 ([Micikevicius et al. 2022](https://arxiv.org/abs/2209.05433)). With 8 bits, even that
# counts.
#
# What happens to a number in each format? `tf.bfloat16` has its own NumPy type; the others are NumPy's. INT8 needs a
# **scale** to represent anything but whole numbers. Here code 127 stands for 1.0, so its steps are 1/127 wide.

# %% tags=["nbval-check-output"]
BFLOAT16 = tf.bfloat16.as_numpy_dtype
TYPES = {"FP32": np.dtype("float32"), "BF16": np.dtype(BFLOAT16), "FP16": np.dtype("float16")}
print(f"{'':>10}" + "".join(f"{name:>18}" for name in (*TYPES, "INT8, to 1.0")))
for value in (1 / 3, 257.0, 2049.0, 70_000.0, 1e-6, 1e-8):
    with np.errstate(over="ignore"):
        held = [float(np.array(value).astype(kind)) for kind in TYPES.values()]
    held.append(float(np.clip(np.round(value * 127), -128, 127)) / 127)
    print(f"{value:10.6g}" + "".join(f"{number:18.9g}" for number in held))

# %% jupyter={"source_hidden": true}
with np.errstate(over="ignore"):
    held = {name: np.array(70_000.0).astype(TYPES[name]) for name in ("FP16", "BF16")}
results.compare_guess(1, next(name for name in held if np.isfinite(held[name])))

# %% [markdown]
# BF16 is the upper half of an FP32: the same range, but only two or three decimal digits, so 257 becomes 256. FP16
# has three or four digits, ends at 65,504, and rounds 0.00000001 to zero. That is called
# [**underflow**](../docs/glossary.md#underflow). INT8 with this scale ends at 1, and rounds anything below 1/254 to
# zero.

# %% jupyter={"source_hidden": true}
exponents = np.arange(-30, 20)
figure, axis = plt.subplots()
for (name, (e, f)), style in zip(FORMATS.items(), ("-", "--", "-.")):
    lowest, highest = 2 - 2 ** (e - 1), 2 ** (e - 1) - 1
    held = exponents[(exponents >= lowest - f) & (exponents <= highest)]
    axis.plot(2.0**held, 2.0 ** (np.maximum(held, lowest) - f), style, label=name, marker="")
look = dict(marker="", linewidth=5, color=plots.PURPLE)
axis.plot([1 / 127, 1], [1 / 127, 1 / 127], ":", label="INT8, up to 1.0", **look)
axis.set(
    xscale="log",
    yscale="log",
    xlabel="size of the number",
    ylabel="distance to the next one",
    title="Spacing of the numbers that a format can hold",
)
axis.legend()
plots.show(
    figure,
    alt="Distance between neighbouring numbers against their size, both logarithmic. FP32, BF16 "
    "and FP16 are rising lines, BF16 the coarsest; FP16 ends at 65,504 and becomes flat below "
    "0.00006. INT8 is a short flat line at 1/127.",
)

# %% [markdown]
# A rising line means a constant *relative* error: a floating-point number is as exact when it is small as when it is
# large. A flat line means a constant *absolute* error: the smaller the number, the fewer digits remain. FP16 becomes
# flat below 0.00006, and INT8 is flat from end to end. Keep this picture in mind: each of these two causes a problem,
# FP16 in section 2 and INT8 in section 6.
#
# ## 2 · A gradient that vanishes
#
# [**Gradients**](../docs/glossary.md#gradient) are small. The [**backward pass**](../docs/glossary.md#backward-pass)
# multiplies small numbers: an error, divided by the batch size, times the weight of this loss among other losses. The
# next cell computes gradients by hand for a small network of two layers. It rounds after each operation, as a GPU with
# FP16 does: the GPU multiplies in 16 bits, sums in 32, and stores in 16.

# %%
x = digits.x_train[:512].reshape(512, 14, 2, 14, 2).mean(axis=(2, 4))  # 14 × 14 are enough here
x = x.reshape(512, 196)
y = np.eye(10, dtype="float32")[digits.y_train[:512]]
WEIGHT = 1e-4  # of this loss in a sum of several


def rounded(array, kind):
    return array.astype(kind).astype("float32")


def backward(weights, kind, scale):
    """Return the mean loss, and in `kind` the gradients of scale × WEIGHT × loss.

    Those with respect to the hidden layer come first, then those with respect to the weights.
    """
    # An overflow is expected: it shows that a scale is too large.
    with np.errstate(over="ignore", invalid="ignore"):
        w1, w2 = (rounded(w, kind) for w in weights)
        hidden = rounded(np.maximum(x @ w1, 0), kind)
        logits = rounded(hidden @ w2, kind)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(np.maximum((p * y).sum(axis=1), 1e-9)).mean()
        error = rounded(scale * WEIGHT * (p - y) / len(x), kind)
        by_hidden = rounded(error @ w2.T, kind) * (hidden > 0)
        by_weights = [(x.T @ by_hidden).astype(kind), (hidden.T @ error).astype(kind)]
        return loss, by_hidden, by_weights


def fresh_weights():
    rng = np.random.default_rng(0)
    sizes = ((196, 64), (64, 10))
    return [rng.normal(0, (2 / n) ** 0.5, (n, m)).astype("float32") for n, m in sizes]


# %% [markdown]
# How many of the gradients vanish? FP16 comes twice: with the loss as it is, and with the loss times 4,096.

# %%
SCALE = 2.0**12
lost = {}
for name, kind, scale in [
    ("FP32", "FP32", 1),
    ("BF16", "BF16", 1),
    ("FP16", "FP16", 1),
    ("FP16, scaled", "FP16", SCALE),
]:
    _, by_hidden, _ = backward(fresh_weights(), TYPES[kind], scale)
    lost[name] = (by_hidden == 0).mean()
reached = lost["FP32"]
for name in lost:
    gone = max(0, lost[name] - reached) / (1 - reached)
    print(f"{name:13} {100 * gone:5.1f}% of the hidden layer's gradients became 0")

# %% jupyter={"source_hidden": true}
_, exact, _ = backward(fresh_weights(), TYPES["FP32"], 1)
sizes = np.log2(np.abs(exact[exact != 0]))
bins = np.arange(np.floor(sizes.min()), 1 + np.ceil(sizes.max()) + np.log2(SCALE))
figure, axis = plt.subplots()
axis.hist(sizes, bins, color=plots.VERMILION, alpha=0.8, label="as they are")
scaled = dict(color=plots.BLUE, alpha=0.8, hatch="//", label=f"loss × {SCALE:,.0f}")
axis.hist(sizes + np.log2(SCALE), bins, **scaled)
# Half of FP16's smallest number: anything below is rounded to 0.
axis.axvline(-25, color="black", linestyle="--")
axis.axvline(-14, color="black", linestyle=":")
axis.annotate("0 in FP16 ← ", (-25, 0.92), xycoords=("data", "axes fraction"), ha="right")
axis.annotate(" → full precision", (-14, 0.92), xycoords=("data", "axes fraction"))
axis.margins(y=0.2)
axis.set(
    xlabel="log2 of the gradient's size",
    ylabel="number of gradients",
    title="Gradients, and what FP16 can hold",
)
axis.set_xlim(-42, -5)
axis.legend(loc="center left")
plots.show(
    figure,
    alt="Histogram of the gradients with respect to the hidden layer. As they are, "
    f"{100 * (sizes < -25).mean():.0f}% lie below 2 to the power of −25, where FP16 rounds "
    "to 0. "
    f"Multiplied by {SCALE:,.0f}, {100 * (sizes + np.log2(SCALE) < -25).mean():.1f}% do.",
)

# %% [markdown]
# The blue histogram shows the remedy: multiply the **loss** by a constant. By the chain rule, this multiplies every
# gradient in the network by the same constant, and moves all of them to where FP16 is precise. At the end, divide the
# gradients with respect to the weights by the same constant, in FP32. Then nothing has changed except the rounding.
# This is [**loss scaling**](../docs/glossary.md#loss-scaling). BF16 has FP32's range and doesn't need it.
#
# ```mermaid
# flowchart LR
#     accTitle: Loss scaling
#     accDescr: The loss is multiplied by the scale, gradients are computed in FP16, then divided by the scale in FP32.
#     loss["loss"] -->|"× scale"| scaled["scaled loss"]
#     scaled -->|"backward pass<br>in FP16"| large["scaled gradients"]
#     large -->|"÷ scale<br>in FP32"| true["true gradients"]
#     true -->|"update"| weights["weights in FP32"]
# ```
#
# Which constant? If it is too small, gradients vanish. If it is too large, one of them overflows. The largest constant
# that works is the best, and it changes during training. So a program searches for it all the time: **dynamic loss
# scaling**. It can detect an overflow. It can't detect a scale that is too small, so every now and then, after
# `patience` steps in a row without an overflow, it tries a scale twice as large, and counts anew. After an overflow it
# takes half.
#
# ### Exercise 2 · Dynamic loss scaling
#
# Write `settle(gradients, scale, calm, patience)`, which runs between the backward pass and the update of the weights.
# `gradients` is a list of FP16 arrays, the gradients of the loss times `scale`. `calm` is the number of steps in a row
# without an overflow, before this one. Return three things:
#
# - what the update gets: the true gradients, as a list of FP32 arrays, or `None` when there must be no update;
# - the scale for the next step;
# - `calm` for the next step.
#
# Think of all that an overflow can leave in a gradient.


# %%
def settle(gradients, scale, calm, patience):
    """Return the true gradients or None, the next scale, and the number of calm steps."""
    ### BEGIN SOLUTION
    if not all(np.isfinite(g).all() for g in gradients):
        return None, scale / 2, 0
    true = [g.astype("float32") / scale for g in gradients]
    if calm + 1 == patience:
        return true, scale * 2, 0
    return true, scale, calm + 1
    ### END SOLUTION


# %% tags=["nbval-check-output"]
settle = check(2, settle)

# %% [markdown]
# Does it matter? The next cell trains the same network from the same start in four ways. The weights themselves stay in
# FP32, because an update is often too small to change a 16-bit number.


# %%
def train(kind, scale=1.0, dynamic=False, steps=SMALL_NET_STEPS):
    """Return the loss and the scale of each step, and how many steps had no update."""
    weights, calm, losses, scales, skipped = fresh_weights(), 0, [], [], 0
    for _ in range(steps):
        loss, _, gradients = backward(weights, TYPES[kind], scale)
        losses.append(loss)
        scales.append(scale)
        if dynamic:
            true, scale, calm = settle(gradients, scale, calm, patience=20)
        else:
            true = [g.astype("float32") / scale for g in gradients]
        if true is None:
            skipped += 1
        else:
            weights = [w - 0.25 / WEIGHT * np.asarray(g) for w, g in zip(weights, true)]
    return losses, scales, skipped


ways = {
    "FP32": train("FP32"),
    "BF16": train("BF16"),
    "FP16": train("FP16"),
    "FP16, dynamic scale": train("FP16", 2.0**40, dynamic=True),
}
for name, (losses, _, skipped) in ways.items():
    times = losses[-1] / ways["FP32"][0][-1]
    print(f"{name:20} loss {losses[-1]:.3f}: {times:.2f} times FP32's; {skipped} steps skipped")

# %% jupyter={"source_hidden": true}
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5))
styles = dict(zip(ways, ("-", "--", "-.", ":")))
for name, (losses, *_) in ways.items():
    width = 5 if styles[name] == ":" else 2.5
    left.plot(losses, styles[name], label=name, marker="", linewidth=width)
left.set(xlabel="step", ylabel="loss", title="the loss", ylim=(0, 5))
figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
right.plot(ways["FP16, dynamic scale"][1], color=plots.VERMILION, marker="")
right.set(xlabel="step", ylabel="scale", title="the dynamic scale")
right.set_yscale("log", base=2)
figure.suptitle("One network, trained in four number formats")
plots.show(
    figure,
    alt="Loss at the end: "
    + ", ".join(f"{name} {losses[-1]:.3f}" for name, (losses, *_) in ways.items())
    + ". The dynamic scale begins at 2 to the power of 40 and ends at "
    f"{ways['FP16, dynamic scale'][1][-1]:,.0f}.",
    keep=results,
)

# %% [markdown]
# How far is FP16 alone from FP32? Its lost gradients change no weight, and those that are left are coarse. Compare it
# with FP16 under a dynamic scale, and with BF16, which has none.
#
# If the scale starts absurdly high, it comes down within a few skipped steps. From then on, it sometimes tries twice
# the value, and goes back. Keras does the same by itself under its policy `mixed_float16`, in
# `keras.optimizers.LossScaleOptimizer`. Lab 08 trains with a *static* scale, one constant for all steps.
#
# ### FP16 on tensor cores
#
# A GPU with tensor cores has instructions that multiply FP16 matrices and sum in FP32. Loss scaling was invented for
# this. These figures were published for it:
#
# | ResNet-50 training on V100 | figure |
# | --- | --- |
# | one GPU, FP32, batch 128 | about 400 images/s |
# | one GPU, FP16, batch 256 | twice that |
# | 8 GPUs, ImageNet, 10 epochs in about 30 minutes | about 5,800 images/s, 48% validation accuracy |
#
# The last line does not quite add up: ten epochs are 12.8 million images, and at 5,800 a second they take 37 minutes.
# One of the figures is rounded, or they are of different runs. And between the first two lines, two things change at
# once: in FP16 the batch is twice as large, because activations take half the memory. To tell them apart, one would
# also measure FP16 with batch 128.
#
# ## 3 · Training in bfloat16
#
# Now you train a real network. First the digits get harder, in a way that cameras know: **each digit has its own
# brightness**, from full light down to 1/64 of it. Nothing else changes. People hardly notice, and floating-point
# numbers lose hardly any precision.

# %%
DIMMEST = 1 / 64
rng = np.random.default_rng(4)


def in_all_lights(images):
    """Return the images, each at its own brightness, and the brightnesses.

    There are as many from 1/2 to 1 as from 1/64 to 1/32.
    """
    light = DIMMEST ** rng.random(len(images))
    return (images * light[:, None, None, None]).astype("float32"), light


x_all, light_all = in_all_lights(digits.x_train)
x_train, y_train = x_all[:n_train], digits.y_train[:n_train]
# For section 5: not used in training or testing.
held_out, light_held_out = x_all[n_train:], light_all[n_train:]
x_test, light_test = in_all_lights(digits.x_test)
y_test = digits.y_test

# %% jupyter={"source_hidden": true}
shown = np.argsort(light_test)[:: -max(1, n_test // 7)][:7]
figure, axes = plt.subplots(1, len(shown), figsize=(11, 2.2))
for axis, index in zip(axes, shown):
    axis.imshow(x_test[index, ..., 0], cmap="gray", vmin=0, vmax=1)
    light = light_test[index]
    axis.set_title("1" if light > 0.67 else f"1/{1 / light:.0f}", fontsize=12)
    axis.axis("off")
figure.suptitle("The same task at every brightness")
plots.show(
    figure,
    alt=f"{len(shown)} digits, from full light on the left to 1/{1 / light_test[shown[-1]]:.0f} "
    "of it on the right, where you can see next to nothing.",
)

# %% [markdown]
# In Keras, a **policy** chooses the number format. For a whole program, it is one line:
#
# ```python
# keras.config.set_dtype_policy("mixed_bfloat16")
# ```
#
# Then layers compute in BF16 and keep their weights in FP32: that is
# [**mixed precision**](../docs/glossary.md#mixed-precision). Here each layer gets its policy by itself, `dtype=policy`,
# because both networks are in one program. The last layer stays in FP32, as is common, because the loss takes
# exponentials of its output. The network is wider and deeper than that of lab 02, so that its convolutions have enough
# to do.


# %%
def digit_net(policy):
    keras.utils.set_random_seed(0)
    settings = dict(kernel_size=3, padding="same", activation="relu", dtype=policy)
    conv = partial(keras.layers.Conv2D, **settings)
    pool = partial(keras.layers.MaxPooling2D, dtype=policy)
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            *(conv(32), pool()),
            *(conv(64), conv(64), pool()),
            *(conv(128), conv(128), pool()),
            keras.layers.Flatten(dtype=policy),
            keras.layers.Dense(128, activation="relu", dtype=policy),
            keras.layers.Dense(10, dtype="float32"),
        ]
    )


POLICIES = {"FP32": "float32", "BF16": "mixed_bfloat16"}
nets = {name: digit_net(policy) for name, policy in POLICIES.items()}
kinds = {name: (net.layers[0].compute_dtype, net.layers[0].dtype) for name, net in nets.items()}
for name, (computes, keeps) in kinds.items():
    print(f"{name}: the first layer computes in {computes}, and keeps its weights in {keeps}")

# %% [markdown]
# The training step is an ordinary one, as a graph. The function after it trains on all digits once, and returns the
# speed.


# %%
def training_step(model):
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return step


def images_per_second(step, order, batch=64):
    """Train on the digits once, in this order, and return the speed."""
    start = time.perf_counter()
    for first in range(0, len(order) - batch + 1, batch):
        chosen = order[first : first + batch]
        loss = step(x_train[chosen], y_train[chosen])
    loss.numpy()
    return len(order) // batch * batch / (time.perf_counter() - start)


# %% jupyter={"source_hidden": true}
def is_right(model):
    """Return which test digits a network gets right."""
    parts = [x_test[first : first + 500] for first in range(0, n_test, 500)]
    logits = [model(part, training=False).numpy() for part in parts]
    return np.concatenate(logits).argmax(axis=1) == y_test


def compare_answers(correct, reference):
    """Return the difference of two accuracies with its 95% interval, and whether it is one.

    Both answered the same digits, so only those count that exactly one of the two got right
    (Agresti and Min, 2005).
    """
    gained, lost = (correct & ~reference).sum() + 0.5, (~correct & reference).sum() + 0.5
    n = len(correct) + 2
    half = 1.96 * np.sqrt(gained + lost - (gained - lost) ** 2 / n)
    low, high = (100 * (gained - lost + side) / n for side in (-half, half))
    points = 100 * (correct.mean() - reference.mean()) + 0.0  # + 0.0: no minus before a zero
    verdict = "no difference beyond chance"
    if low > 0 or high < 0:
        verdict = "more accurate" if low > 0 else "less accurate"
    return Measured(points, low, high, "points", signed=True), verdict


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** BF16 has half the bits of FP32. How many times as fast will training be, in BF16 against FP32?
#
# </div>

# %%
results.guess(2, "training, BF16 against FP32", ..., unit="×")

# %%
# Without AVX-512, oneDNN leaves BF16 to Eigen, which takes many times as long: then a few digits
# are enough to time it.
few = max(64, n_train // 20)
trained_on = {"FP32": n_train, "BF16": n_train if "AVX-512" in machine.isa else few}
steps = {name: training_step(net) for name, net in nets.items()}
speeds, right = {name: [] for name in nets}, {}
print(f"Training both networks in turns, {EPOCHS} epochs each: about a minute", flush=True)
for step in steps.values():
    images_per_second(step, np.arange(64))  # not timed: tracing, creating kernels
with load.watch("section 3") as training_others:
    for epoch in range(EPOCHS):
        order = rng.permutation(n_train)
        for name, step in steps.items():
            speeds[name].append(images_per_second(step, order[: trained_on[name]]))
            right[name] = is_right(nets[name])
            told = f"{speeds[name][-1]:7,.0f} images/s  accuracy {100 * right[name].mean():.1f}%"
            print(f"epoch {epoch + 1} of {EPOCHS}  {name}  {told}", flush=True)
training_times = ratios(speeds, "FP32")["BF16"]
print(f"\nBF16 against FP32: {training_times} times as fast: {training_times.verdict}")
if trained_on["BF16"] == n_train:
    points, verdict = compare_answers(right["BF16"], right["FP32"])
    print(f"accuracy of these two networks: {points}: {verdict}")
else:
    print("BF16 saw only a few of the digits: compare its speed, not its accuracy.")
results.compare_guess(2, Measured(*training_times, "×"))

# %% [markdown]
# The brackets hold 95% [**confidence intervals**](../docs/glossary.md#confidence-interval). That of the accuracy says
# whether these two *networks* differ, on digits like these. It says less about the two *formats*: training is partly
# luck, and another seed gives two other networks. To compare formats, train several networks in each.
#
# What is the most that fewer bits can gain? On paper, an AVX-512 instruction multiplies 16 FP32 numbers, 32 BF16
# numbers or 64 INT8 numbers: so 2 and 4 times. (AMD's Zen 4 executes such an instruction in two halves, in each of
# the three formats, so the ratios stay.) But [**AMX**](../docs/glossary.md#amx) does many times as much, and a CPU
# without the instructions does less.
#
# So measure it: the next cell multiplies matrices in each format, with each library that is here. The fastest product
# of each format is the yardstick in the rest of the lab. It is the same measurement as in lab 03 and in
# `./lab roofline`. The first time takes about 20 s, then it is kept.


# %%
def explain(times, isa):
    """Return what the measured ratio of BF16 to FP32 in training means on such a CPU."""
    if not {"BF16", "AMX"} & {*isa}:
        return (
            "This CPU has no BF16 instructions: each operation converts to FP32 and back. "
            "That saves memory, not time."
        )
    if times.verdict == "faster":
        return "This CPU multiplies BF16 in hardware, more numbers in one instruction."
    if times.verdict == "slower":
        return (
            "This CPU has BF16 instructions, but here the conversions may have "
            "cost more than they gain: look at small layers."
        )
    return f"This CPU has BF16 instructions. What they gain here is not known: {times.verdict}."


limits = None if QUICK else measure.limits()
limit = {"FP32": 1.0, "BF16": 2.0, "INT8": 4.0}  # on paper, for small runs
if limits:
    kinds = ("float32", "bfloat16", "int8")
    peaks = {name: limits.peak(kind) for name, kind in zip(limit, kinds)}
    limit = {name: peak / peaks["FP32"] for name, peak in peaks.items()}
    best = limits.products["float32"][0].library
    print(f"matrix products: FP32 {peaks['FP32']:,.0f} GFLOP/s by {best}")
    for name, kind in (("BF16", "bfloat16"), ("INT8", "int8")):
        emulated = ", without instructions for it" * limits.emulated(kind)
        print(f"  {name} {limit[name]:4.1f} times that{emulated}")
    if limits.others.busy:
        print(limits.others)
limit_others = [limits.others] if limits else []
print(explain(training_times, machine.isa))

# %% [markdown]
# Expect less of training than of a matrix product: the optimizer, the loss and the weights stay in FP32, and some
# layers are too small to gain.
#
# ### And FP16?
#
# On CPUs, FP16 arithmetic is young. Its [**instruction sets**](../docs/glossary.md#instruction-set) are AVX512-FP16,
# which Intel's Xeons have since Sapphire Rapids (2023) and which GCC 16 and LLVM 23 expect of AMD's Zen 6 (2026); and
# AMX-FP16, since Granite Rapids (2024). Most laptops, and AMD's CPUs up to Zen 5, have neither. Whether a library uses
# them is another question. The next cell trains a few digits under `mixed_float16`, and waits for up to half a minute:

# %%
print("Training 32 digits in FP16: up to half a minute", flush=True)
fp16_step = training_step(digit_net("mixed_float16"))
images_per_second(fp16_step, np.arange(16), batch=16)  # not timed: tracing
fp16_speed = images_per_second(fp16_step, np.arange(16), batch=16)
slower = np.median(speeds["FP32"]) / fp16_speed
print(f"mixed_float16: {fp16_speed:,.0f} images/s; FP32: {slower:.1f} times that")

# %% [markdown]
# If FP32 is much faster, a likely reason is that TensorFlow left FP16 to its own library Eigen, which converts to FP32
# and back in each operation. Then it may also have printed a line: `DT_HALF` is its name for FP16, and the "AVX-512"
# that it misses is AVX512-FP16. This compares one step of 16 digits with many of 64, so it tells an order of magnitude,
# and no more.
#
# ## 4 · Eight bits by hand
#
# Networks are trained in FP32, BF16 or FP16. For inference, even 8 bits can be enough. There are only 256 codes, so you
# have to choose which numbers they represent: this is [**quantisation**](../docs/glossary.md#quantisation). The
# **scale** is the distance between two neighbours, and the **zero point** is the code of 0.0:
#
# $$x \approx scale \cdot (q - zero)$$
#
# Zero gets a code of its own, because it must be exact: padding and Relu produce many zeros.
#
# ### Exercise 3 · Scale and zero point
#
# Write `scale_and_zero(low, high)` for codes from 0 to 255, where `low` is less than `high`. The codes must reach from
# `low` to `high` in the finest steps. If 0 is not between the two, widen the range so that it contains 0. Return both
# as a tuple. `zero` is a whole number, the one nearest to where 0.0 would be.


# %%
def scale_and_zero(low, high):
    """Return the step and the code of 0.0 with which 256 codes reach from low to high."""
    ### BEGIN SOLUTION
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255
    return scale, round(-low / scale)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
scale_and_zero = check(3, scale_and_zero)

# %% [markdown]
# With this, numbers become codes, and codes become numbers again. Weights differ from activations in three ways:
#
# - They get *signed* codes, because the CPU's instruction multiplies unsigned by signed numbers.
# - Their zero point is 0. Otherwise each product would need a correction by a sum of activations, which is known only
#   when the image is there.
# - The code −128 is not used, so that the codes are symmetric: from −127 to 127.


# %%
def to_uint8(array):
    scale, zero = scale_and_zero(float(array.min()), float(array.max()))
    scale, zero = float(scale), int(zero)
    return np.clip(np.round(array / scale) + zero, 0, 255).astype("uint8"), zero, scale


def to_int8(weights, axis=None):
    """Return codes and scale; with axis=0, a scale for each column."""
    scale = np.abs(weights).max(axis=axis) / 127
    return np.round(weights / scale).astype("int8"), scale


# %% [markdown]
# Next, the products. The product of two 8-bit numbers fits into 16 bits. How many products can you add up there?

# %% tags=["nbval-check-output"]
a, b = np.full((1, 3), 255, "uint8"), np.full((3, 1), 127, "int8")
by_numpy = f"numpy, uint8 @ int8: {(a @ b).item():,} as {(a @ b).dtype}"
print(f"one product:     {255 * 127:12,}")
print(f"the sum of {a.shape[1]}:    {3 * 255 * 127:12,}   {by_numpy}")
print(f"largest int16:   {2**15 - 1:12,}   reached after {2**15 // (255 * 127)} product")
print(f"largest int32:   {2**31 - 1:12,}   reached after {2**31 // (255 * 127):,} products")

# %% [markdown]
# NumPy gave no warning. So sums need 32 bits, and those are enough for any layer. Sums in FP32 have no such problem:
# they only lose digits. Sums in FP16 would have it, as they end at 65,504: one reason why GPUs sum FP16 in FP32.
#
# ### Exercise 4 · A product of 8-bit matrices
#
# `a` holds codes of type uint8 with `zero_a` and `scale_a`. `b` holds codes of type int8 with `scale_b`, which is one
# number or one for each column. Write `int8_product(a, b, zero_a, scale_a, scale_b)`. Return two things:
#
# - the **sums** of the products of the codes, as int32: this is all that the fast instruction computes;
# - the **product** of the matrices that the codes stand for, computed *from these sums*. The sums ignore the zero
#   point. Which correction does that need, and which part of it is known before the first image arrives?


# %%
def int8_product(a, b, zero_a, scale_a, scale_b):
    """Return the 32-bit sums of the codes' products, and the product of the true matrices."""
    ### BEGIN SOLUTION
    sums = a.astype("int32") @ b.astype("int32")
    columns = b.astype("int32").sum(axis=0)
    return sums, scale_a * scale_b * (sums - zero_a * columns)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
int8_product = check(4, int8_product)

# %% [markdown]
# There is one more choice: one scale for all weights of a layer, or one for each output channel? The second costs
# nothing, because the scale comes after the sums. The next cell compares both on the weights of your own network:

# %%
with_weights = [layer for layer in nets["FP32"].layers if hasattr(layer, "kernel")]
print(f"{'error of the weights':28}{'per tensor':>12}{'per channel':>13}")
for layer in with_weights:
    name, kernel = layer.name, layer.kernel.numpy()
    flat = kernel.reshape(-1, kernel.shape[-1])
    off = []
    for axis in (None, 0):
        codes, scale = to_int8(flat, axis)
        off.append(np.linalg.norm(codes * scale - flat) / np.linalg.norm(flat))
    print(f"{name:12}{kernel.shape!s:16}{100 * off[0]:11.2f}%{100 * off[1]:12.2f}%")

# %% [markdown]
# The largest weight of all sets the step for all weights. A step for each channel is never coarser, and often finer.
#
# ## 5 · Quantise your network
#
# Nobody writes this by hand for a whole network. **OpenVINO** runs trained networks on CPUs, mostly with kernels of
# oneDNN. **NNCF** converts them to 8-bit codes *after training* (post-training quantisation). It shows the network a
# few hundred images, records the range of each activation, and chooses scales and zero points from that. This is
# [**calibration**](../docs/glossary.md#calibration). The images must look like those that the network will meet later.
# Here they are held-out digits, used neither for training nor for testing.

# %%
core = openvino_core()  # one for all networks of this notebook
nets["FP32"].export(work / "digit_net", verbose=False)
fp32 = openvino.convert_model(work / "digit_net")


def quantise(images, **settings):
    """Return the network in INT8, calibrated on these images."""
    dataset = nncf.Dataset(list(images[:, None]))
    return nncf.quantize(fp32, dataset, subset_size=len(images), **settings)


int8 = quantise(held_out)
for name, model in (("fp32", fp32), ("int8", int8)):
    openvino.save_model(model, work / f"{name}.xml", compress_to_fp16=False)
kilobytes = {name: (work / f"{name}.bin").stat().st_size / 1000 for name in ("fp32", "int8")}
times = kilobytes["fp32"] / kilobytes["int8"]
sizes_kb = [f"{name.upper()} {size:,.0f} kB" for name, size in kilobytes.items()]
print(f"weights: {', '.join(sizes_kb)}: {times:.1f} times as large in FP32")

# %% [markdown]
# `INFERENCE_PRECISION_HINT` chooses the format of everything that is not quantised. Always set it: where the CPU has
# BF16, the default is BF16, and then your "FP32 baseline" is not FP32.


# %%
def answers(model, precision="f32"):
    """Return which test digits the network gets right."""
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})
    parts = [x_test[first : first + 500] for first in range(0, n_test, 500)]
    logits = [compiled([part])[0].copy() for part in parts]
    return np.concatenate(logits).argmax(axis=1) == y_test


found = {"FP32": answers(fp32), "BF16": answers(fp32, "bf16"), "INT8": answers(int8)}
for name, correct in found.items():
    print(f"{name}: accuracy {100 * correct.mean():.2f}%")
    if name != "FP32":
        changed = (correct != found["FP32"]).sum()
        print("      against FP32: {}: {}".format(*compare_answers(correct, found["FP32"])))
        print(f"      exactly one of the two is right on {changed} of {n_test:,} digits")

# %% [markdown]
# Section 6 goes on from INT8's accuracy. First: what did you gain? The next script measures networks in one process, in
# turns. It also asks OpenVINO which format each layer really uses, because the hint is only a request.

# %%
# %%writefile work/infer.py
"""Measure networks in turns: python work/infer.py BATCH ROUNDS RUNS NAME=FILE,PRECISION …"""

import json
import os
import re
import sys
import time
from pathlib import Path

import numpy as np
import openvino

batch, rounds, runs = map(int, sys.argv[1:4])
threads = int(os.environ.get("OMP_NUM_THREADS", 0))  # run_ranks sets it; 0 lets OpenVINO choose
images = np.random.default_rng(0).random((batch, 28, 28, 1), dtype=np.float32)
core, requests, result = openvino.Core(), {}, {}
for variant in sys.argv[4:]:
    name, file, hint = re.split("[=,]", variant)
    model = core.read_model(file)
    model.reshape([batch, 28, 28, 1])
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    settings["INFERENCE_PRECISION_HINT"] = hint
    compiled = core.compile_model(model, "CPU", settings)
    requests[name] = compiled.create_infer_request()
    nodes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    about = ("layerType", "primitiveType", "runtimePrecision")
    layers = [[node[what].astype(str) for what in about] for node in nodes]
    layers = [layer for layer in layers if layer[0] in ("Convolution", "FullyConnected")]
    result[name] = {"images/s": [], "layers": layers}
    for _ in range(3):  # not timed: creating kernels, first use of memory
        requests[name].infer([images])

for _ in range(rounds):
    for name, request in requests.items():
        start = time.perf_counter()
        for _ in range(runs):
            request.infer([images])
        result[name]["images/s"].append(batch * runs / (time.perf_counter() - start))
Path("work/infer.json").write_text(json.dumps(result))

# %% [markdown]
# Several processes run it, one after the other. Each is a sample of its own, with its memory in another
# place. So each process gives one ratio to FP32, from the medians of its rounds, and the interval comes from the spread
# of these ratios.


# %%
batch = max(64, 16 * cores)
VARIANTS = {
    "FP32": "work/fp32.xml,f32",
    "BF16": "work/fp32.xml,bf16",
    "INT8": "work/int8.xml,f32",
}


def infer(*names, rounds=ROUNDS, runs=RUNS, **env):
    """Run these variants in a process; return images/s by round, layers, and what it printed."""
    wanted = [f"{name}={VARIANTS[name]}" for name in names]
    run = run_ranks(1, "work/infer.py", batch, rounds, runs, *wanted, env=env, show=False)
    measured = json.loads((work / "infer.json").read_text())
    speeds = {name: measured[name]["images/s"] for name in names}
    return speeds, {name: measured[name]["layers"] for name in names}, run.lines[0]


def against_fp32(seen):
    """Return how many times as fast as FP32 each is; a process is a round, by its median."""
    medians = {name: [np.median(one) for one in each] for name, each in seen.items()}
    return ratios(medians, "FP32")


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as many images per second will INT8 do, against FP32?
#
# </div>

# %%
results.guess(3, "inference, INT8 against FP32", ..., unit="×")

# %%
print(f"Measuring three formats in {PROCESSES} processes, about 2 s each", flush=True)
seen = {name: [] for name in VARIANTS}
with load.watch("section 5") as infer_others:
    for turn in range(PROCESSES):
        speeds_here, layers, _ = infer(*VARIANTS)
        for name, each in speeds_here.items():
            seen[name].append(each)
        told = ", ".join(f"{name} {np.median(each):,.0f}" for name, each in speeds_here.items())
        print(f"process {turn + 1} of {PROCESSES}: {told} images/s", flush=True)
rate = {name: np.median(np.concatenate(each)) for name, each in seen.items()}
gain = against_fp32(seen)
for name in ("BF16", "INT8"):
    print(f"{name}: {gain[name]} times FP32: {gain[name].verdict}")
print("\nWhat the layers ran in:")
for name in VARIANTS:
    kernels = pd.Series([f"{kernel} ({precision})" for _, kernel, precision in layers[name]])
    counted = [f"{n} × {kernel}" for kernel, n in kernels.value_counts().items()]
    print(f"{name}: {', '.join(counted)}")
results.compare_guess(3, Measured(*gain["INT8"], "×"))

# %% [markdown]
# The last lines have the kernels of the convolutions and dense layers, each with its input format. Does each network
# run in the format that its name says? Without BF16 in hardware, OpenVINO emulates it where there is AVX-512. Otherwise
# it computes in FP32 and ignores the request. (A name with `mlas` is a kernel of Microsoft's library MLAS, which
# OpenVINO has besides oneDNN.)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
colours = dict(zip(VARIANTS, (plots.ORANGE, plots.SKY, plots.BLUE)))
for place, name in enumerate(VARIANTS):
    value, low, high = gain[name]
    bar = axis.bar(name, value, 0.6, color=colours[name])
    if name != "FP32":
        ends = [[value - low], [high - value]]
        axis.errorbar(place, value, ends, color="black", capsize=6, marker="")
        label = "large matrix products" if name == "BF16" else None
        axis.hlines(limit[name], place - 0.4, place + 0.4, "black", "--", label=label)
    text_colour = "white" if name == "INT8" else "black"
    axis.bar_label(bar, [f"{rate[name]:,.0f} images/s"], label_type="center", color=text_colour)
axis.set(ylabel="speed, times FP32", title="Inference in fewer bits")
axis.margins(y=0.15)
axis.legend(loc="upper left")
plots.show(
    figure,
    alt="; ".join(
        f"{name} {rate[name]:,.0f} images/s, {gain[name]} times FP32" for name in VARIANTS
    )
    + f". The dashed lines, of large matrix products, are at {limit['BF16']:.1f} and "
    f"{limit['INT8']:.1f} times.",
    keep=results,
    watched=[infer_others, *limit_others],
)
weights_kb = dict(zip(VARIANTS, (kilobytes["fp32"], kilobytes["fp32"] / 2, kilobytes["int8"])))
operations = 2 * sum(
    layer.kernel.numpy().size * np.prod(layer.output.shape[1:-1]) for layer in with_weights
)  # of an image
share = {name: rate[name] * operations / peaks[name] / 1e7 for name in VARIANTS} if limits else {}
shares = {name: f"{share[name]:.0f}%" if limits else "not measured" for name in VARIANTS}
accuracy = {name: f"{100 * correct.mean():.2f}%" for name, correct in found.items()}
display(
    pd.DataFrame(
        {
            "images/s": {name: f"{rate[name]:,.0f}" for name in VARIANTS},
            "share of the peak": shares,
            "accuracy": accuracy,
            "weights in memory": {name: f"{size:,.0f} kB" for name, size in weights_kb.items()},
        }
    )
)
if limits and max(share.values()) > 100:
    print("More than the peak: it was measured while the machine was busy. ./lab roofline --again")
results.step(
    "bits", Measured(*gain["INT8"], "×"), infer_others, *limit_others, share=share.get("INT8")
)

# %% [markdown]
# The peak is the speed of large matrix products in the same format; the dashed lines are what these products gain over
# FP32. A bar above its line means that the network comes nearer to the peak in that format than in FP32. A bar below
# its line means that it stays further away: memory, conversions or small layers may be the reason. Section 8 looks at
# the layers one by one.

# %% [markdown]
# ## 6 · Where INT8 loses accuracy, and how to get it back
#
# Section 5 said whether INT8 is as accurate as FP32 here. On which digits does each go wrong? Sort the test digits by
# their brightness:

# %%
edges = DIMMEST ** np.linspace(1, 0, 6)
group = np.digitize(light_test, edges[1:-1])
lights = [f"1/{1 / edge:.0f}" if edge < 0.99 else "1" for edge in edges]
groups = [f"{low} to {high}" for low, high in pairwise(lights)]


def by_light(correct):
    return np.array([100 * correct[group == number].mean() for number in range(5)])


pd.DataFrame({name: by_light(correct).round(1) for name, correct in found.items()}, index=groups)

# %% [markdown]
# Remember the flat line of section 1: INT8 has the same steps for dim and for bright digits. Some digits are 64 times
# as bright as others, so its range is a compromise, and calibration decides on it. By default, NNCF takes the largest
# value of *each* image, and then the **mean** of those. Anything brighter is clipped.
#
# The next cell compares four calibrations:
#
# - **dusk only**: images from the dimmer half, as if all photos had been taken in the evening.
# - **all lights, mean**: the held-out digits, as in section 5.
# - **all lights, largest**: the same digits, but the brightest one sets the range.
# - **0 to 255**: these digits too, but somebody forgot that the network needs its pixels from 0 to 1.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which of these four is the worst, and on which digits? Which one is the best?
#
# </div>

# %%
CALIBRATIONS = ("dusk only", "all lights, mean", "all lights, largest", "0 to 255")
results.guess(4, "the worst calibration", ..., choices=CALIBRATIONS)

# %%
minmax = RangeEstimatorParametersSet.MINMAX
largest = nncf.AdvancedQuantizationParameters(activations_range_estimator_params=minmax)
dusk = held_out[light_held_out < np.median(light_held_out)]
models = (
    quantise(dusk),
    int8,
    quantise(held_out, advanced_parameters=largest),
    quantise(255 * held_out),
)
mended = {name: answers(model) for name, model in zip(CALIBRATIONS, models)}
points = {name: compare_answers(correct, found["FP32"]) for name, correct in mended.items()}
print(f"{'FP32':22} {100 * found['FP32'].mean():6.2f}%")
for name, correct in mended.items():
    print(f"{name:22} {100 * correct.mean():6.2f}%   {points[name][0]}: {points[name][1]}")
results.compare_guess(4, min(mended, key=lambda name: mended[name].mean()))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(10, 4.5))
drawn = {"FP32": found["FP32"]} | mended
palette = (plots.ORANGE, plots.VERMILION, plots.SKY, plots.BLUE, plots.PURPLE)
looks = zip(drawn.items(), palette, ("", "..", "//", "", "xx"))
for shift, ((name, correct), colour, hatch) in enumerate(looks):
    at = np.arange(5) + 0.17 * (shift - 2)
    axis.bar(at, by_light(correct), 0.17, color=colour, hatch=hatch, label=name)
axis.set_xticks(range(5), [name.replace(" to ", "\nto ") for name in groups])
axis.set(
    xlabel="brightness of the digit",
    ylabel="accuracy (%)",
    title="INT8 by brightness, and by calibration",
    ylim=(0, 105),
)
figure.legend(*axis.get_legend_handles_labels(), loc="outside right center", fontsize=11)
by_group = {name: [f"{value:.0f}" for value in by_light(each)] for name, each in drawn.items()}
plots.show(
    figure,
    alt="Accuracy in percent for five groups of digits, from dim to bright. "
    + "; ".join(f"{name}: {', '.join(values)}" for name, values in by_group.items()),
    keep=results,
)

# %% [markdown]
# Look where each calibration loses accuracy. A range that is too narrow clips (*saturates*) bright values, in every
# layer. A range that is too wide leaves few codes for each digit: with pixels from 0 to 255, whole digits become one
# code, the dim ones first. The range has to fit the images that the network will meet, with their extremes if these
# matter, and without them if they are faults.
#
# None of these four needed any training. All of them have the same weights. So before you blame INT8, look at the
# calibration.
#
# **Finished early?** An open task: with how few calibration images, and which ones, is INT8 as accurate as FP32 beyond
# doubt? Try 1, 10 and 100 images, digits of one class, `RangeEstimatorParametersSet.MEDIAN_MINMAX`. Judge by the
# confidence interval, not by the point estimate. When no calibration is good enough, NNCF has
# `quantize_with_accuracy_control`: it returns the layers that lose most to FP32, until the loss of accuracy is as small
# as you require.
#
# ## 7 · How large the error can be
#
# How far is a product of 8-bit matrices (exercise 4) from the product in FP32? There is a bound. Rounding a number to
# the nearest code moves it by half a step at most.
#
# ### Exercise 5 · Bound the error
#
# Write `error_bound(a, b, scale_a, scale_b)` for the *true* matrices `a` (m, k) and `b` (k, n). It returns an array (m,
# n) that the error of the product can't exceed, and no larger than it needs to be: for some numbers within half a step,
# the error is as large as that. `scale_b` is one number, or one for each column. Begin with a single term: by how much
# can it be off at most?


# %%
def error_bound(a, b, scale_a, scale_b):
    """Return the largest error of each element of a @ b with each number rounded to a step."""
    ### BEGIN SOLUTION
    half_a, half_b = scale_a / 2, scale_b / 2
    from_b = np.abs(a).sum(axis=1, keepdims=True) * half_b
    from_a = np.abs(b).sum(axis=0) * half_a
    return from_b + from_a + a.shape[1] * half_a * half_b
    ### END SOLUTION


# %% tags=["nbval-check-output"]
error_bound = check(5, error_bound)

# %%
ks = 2 ** np.arange(3, 13)
errors, bounds = [], []
for k in ks:
    a, b = rng.normal(size=(32, k)), rng.normal(size=(k, 32))
    (codes_a, zero, scale_a), (codes_b, scale_b) = to_uint8(a), to_int8(b, axis=0)
    _, product = int8_product(codes_a, codes_b, zero, scale_a, scale_b)
    errors.append(np.abs(np.asarray(product) - a @ b).max())
    bounds.append(np.max(error_bound(a, b, scale_a, scale_b)))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
axis.plot(ks, bounds, "--", color=plots.ORANGE, marker="s", label="your bound")
axis.plot(ks, errors, color=plots.BLUE, marker="o", label="largest error")
axis.set(xscale="log", yscale="log", xlabel="terms in each sum, k", ylabel="error")
axis.set(title="A product of 8-bit matrices")
axis.set_xscale("log", base=2)
axis.legend()
plots.show(
    figure,
    alt=f"Error against the number of terms. With {ks[0]} terms the largest error is "
    f"{errors[0]:.2f} and the bound {bounds[0]:.2f}; with {ks[-1]:,}, {errors[-1]:.1f} and "
    f"{bounds[-1]:.0f}.",
)
slopes = [np.polyfit(np.log(ks), np.log(each), 1)[0] for each in (bounds, errors)]
print(f"Here the bound grows like k to the power of {slopes[0]:.2f}, the error {slopes[1]:.2f}.")

# %% [markdown]
# Why do they differ? The bound allows for all errors having the same sign. If the errors of the terms are independent,
# some up and others down, they partly cancel, and their sum grows like the square root of *k*: the power is near 0.5.
# The sum itself, of products of random signs, also grows like the square root of *k*. Then the *relative* error stays
# the same, however wide the layer is. That is one reason why 8 bits work at all.

# %% [markdown]
# ## 8 · What VNNI is worth
#
# A 512-bit register holds 64 numbers of 8 bits, or 16 of 32. So each instruction can do 4 times as many products. But
# the sums need 32 bits, and before VNNI that took three instructions: multiply 8-bit pairs and add neighbours into 16
# bits; widen those to 32 bits; add them up. 64 products in 3 instructions are 21 per instruction: 1.33 times FP32's 16.
# [**VNNI**](../docs/glossary.md#vnni) does all of it in one instruction, `vpdpbusd`: unsigned 8 bits times signed 8
# bits, summed in 32. Then it is 4 times. (The same for 16 bits, `vpdpwssd`, is 2 times, in half of FP32's memory.)
#
# The first of the three old instructions also *saturates*: two products of 255 × 127 are 64,770, and 16 bits end at
# 32,767. So, unless you change it (`OverflowFix`), NNCF uses only half of the codes for the weights of a network's
# first layer.
#
# CPUs without AVX-512 can have VNNI too, as AVX-VNNI in 256 bits: laptops since Alder Lake (2021), and the Xeon 6 of
# small cores, Sierra Forest (2024). AMD's Zen 5 (2024) has both.
#
# Which of your layers ran on VNNI? Ask oneDNN inside OpenVINO which kernels it made:

# %%
_, _, lines = infer("INT8", rounds=1, runs=1, ONEDNN_VERBOSE="profile_create")
pattern = r"onednn_verbose,.*?,create\S*?,cpu,(\w+),([^,]+),[^,]*,src:(\w+)"
made = [match.groups() for match in (re.match(pattern, line) for line in lines) if match]
kernels = pd.DataFrame(made, columns=["primitive", "kernel", "source"])
compute = kernels[kernels.primitive.isin(["convolution", "inner_product", "matmul"])]
on_vnni = compute.kernel.str.contains("vnni|amx")
print(f"{on_vnni.sum()} of {len(compute)} convolutions and products run on VNNI or AMX")
compute.value_counts(["primitive", "kernel", "source"]).rename("made").reset_index()

# %% [markdown]
# The end of a kernel's name is its instruction set. To see what VNNI is worth, take it away: `ONEDNN_MAX_CPU_ISA`
# limits what oneDNN may use, and nothing else changes. oneDNN reads it when it starts, so each setting needs a process
# of its own. The processes take turns.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Without VNNI, how many times as fast as FP32 will INT8 be? Is it still faster at all?
#
# </div>

# %%
results.guess(5, "inference without VNNI, INT8 against FP32", ..., unit="×")

# %%
family = "AVX512_CORE" if "AVX-512" in machine.isa else "AVX2"
caps = {family: ["INT8"]}
if "AVX-512" in machine.isa and "BF16" in machine.isa:
    caps[family] = ["INT8", "BF16"]  # there, BF16 is emulated: what does that cost?
if "VNNI" in machine.isa:
    caps[f"{family}_VNNI"] = ["INT8"]
if "AMX" in machine.isa:
    caps |= {cap: ["INT8", "BF16"] for cap in ("AVX512_CORE_BF16", "AVX512_CORE_AMX")}
capped = {cap: {name: [] for name in ("FP32", *names)} for cap, names in caps.items()}
print(f"Measuring {len(caps)} caps, {PROCESSES} processes each, about 2 s a process", flush=True)
with load.watch("section 8") as capped_others:
    for turn in range(PROCESSES):
        for cap, each in capped.items():
            speeds_here, *_ = infer(*each, ONEDNN_MAX_CPU_ISA=cap)
            for name in each:
                each[name].append(speeds_here[name])
            told = ", ".join(f"{name} {np.median(one[-1]):,.0f}" for name, one in each.items())
            print(f"turn {turn + 1} of {PROCESSES}  {cap:20} {told} images/s", flush=True)


# %% [markdown]
# A cap does not change FP32. So each process is compared with its own FP32, and what made a whole process slow falls
# out. Then the matrix products are measured without VNNI too, which takes 15 s the first time.


# %%
def between_caps(capped, name, cap, reference):
    """Return what a format gains from one cap to another, each process against its own FP32."""
    own = {}
    for which in (cap, reference):
        pairs = zip(capped[which][name], capped[which]["FP32"])
        own[which] = [np.median(each) / np.median(fp32) for each, fp32 in pairs]
    return ratios(own, reference)[cap]


worth = {cap: against_fp32(each) for cap, each in capped.items()}
without = worth[family]["INT8"]
print(f"INT8 without VNNI: {without} times FP32: {without.verdict}")
limit_without = limit_vnni = ""
cap_others = [capped_others]
if "VNNI" in machine.isa:
    with_vnni = worth[f"{family}_VNNI"]["INT8"]
    print(f"INT8 with VNNI:    {with_vnni} times FP32: {with_vnni.verdict}")
    vnni = between_caps(capped, "INT8", f"{family}_VNNI", family)
    print(f"VNNI itself:       {vnni} times: {vnni.verdict}", flush=True)
    if limits and family == "AVX512_CORE":
        no_amx = measure.limits(cap="AVX512_CORE_BF16") if "AMX" in machine.isa else limits
        no_vnni = measure.limits(cap=family)
        limit_without = f"{no_vnni.peak('int8') / no_vnni.peak('float32'):.1f}×"
        limit_vnni = f"{no_amx.peak('int8') / no_vnni.peak('int8'):.1f}×"
        cap_others += no_amx.others, no_vnni.others
        print(f"Matrix products: without VNNI {limit_without} FP32, VNNI itself {limit_vnni}")
else:
    print("This CPU has no VNNI: the speed above is all there is here.")
results.compare_guess(5, Measured(*without, "×"))

# %% jupyter={"source_hidden": true}
name, theory = "INT8 without VNNI, against FP32", "1.33×, in theory"
rows_of_8 = [(name, theory, Measured(*without, "×"), limit_without, *cap_others)]
if "VNNI" in machine.isa:
    name, theory = "VNNI itself, INT8", "1.33× → 4×: 3×, in theory"
    rows_of_8.append((name, theory, Measured(*vnni, "×"), limit_vnni, *cap_others))
results.hand_in("8", *rows_of_8)  # for the closing table

bars = {f"FP32\n{family}": (worth[family]["FP32"], capped[family]["FP32"])}
for cap, names in caps.items():
    for name in names:
        emulated = " emulated" if name == "BF16" and cap == family else ""
        bars[f"{name}{emulated}\n{cap}"] = (worth[cap][name], capped[cap][name])
figure, axis = plt.subplots(figsize=(9, 1.2 + 0.75 * len(bars)))
colours = {"F": plots.ORANGE, "B": plots.SKY, "I": plots.BLUE}
for place, (name, (times, each)) in enumerate(bars.items()):
    value, low, high = times
    axis.barh(name, value, color=colours[name[0]])
    ends = [[value - low], [high - value]]
    axis.errorbar(value, place, xerr=ends, color="black", capsize=5, marker="")
    label = f"   {np.median(np.concatenate(each)):,.0f} images/s"
    axis.annotate(label, (np.nanmax([value, high]), place), va="center")
axis.invert_yaxis()
axis.set_xlim(0, 1.35 * np.nanmax([[times.value, times.high] for times, _ in bars.values()]))
axis.set(
    xlabel="speed, times FP32 of the same process",
    title="The same network, instruction sets capped",
)
plots.show(
    figure,
    alt="Speed against FP32 of the same process: "
    + "; ".join(f"{' '.join(name.split())} {times}" for name, (times, _) in bars.items()),
    keep=results,
    watched=cap_others[:1],
)

# %% [markdown]
# The bars are the printed ratios, with their intervals. "VNNI itself" is the quotient of two of them. Where the CPU has
# no AMX, INT8 with VNNI is what section 5 measured, in other processes: do the two intervals overlap?
#
# Is INT8 without VNNI further from FP32 than 1.33 times? The count of instructions leaves out that INT8 moves a quarter
# of the bytes, and that a CPU may execute some of the three instructions in parallel. And with VNNI, which layers gain
# most? OpenVINO counts the time of each layer when you ask for it (`PERF_COUNT`):


# %% jupyter={"source_hidden": true}
def layer_times(file):
    """Return the median milliseconds of each convolution, pooling and dense layer, in order."""
    model = core.read_model(file)
    model.reshape([batch, 28, 28, 1])
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": cores}
    settings["PERF_COUNT"] = True
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    images, ms = np.resize(x_test, (batch, 28, 28, 1)), {}
    for _ in range(LAYER_RUNS):
        request.infer([images])
        for layer in request.get_profiling_info():
            kind = re.match("Convolution|MaxPool|FullyConnected", layer.node_type)
            if kind:
                seconds = layer.real_time.total_seconds()
                ms.setdefault((layer.node_name, kind[0]), []).append(1000 * seconds)
    return [(kind, np.median(each)) for (_, kind), each in ms.items()]


def tell_layers(layers, limit):
    """Print how much of the time is spent in layers that come near the limit."""
    near = layers.gain >= 0.8 * limit
    share = 100 * layers[near].sum() / layers.sum()
    print(f"{near.sum()} of {len(layers)} layers reach 80% of the products' {limit:.1f} times.")
    print(f"They take {share.FP32:.0f}% of FP32's time and {share.INT8:.0f}% of INT8's.")


# %%
with load.watch("section 8"):
    files = ("work/fp32.xml", "work/int8.xml")
    pairs = list(zip(*(layer_times(file) for file in files), strict=True))
by_layer = pd.DataFrame(
    {"layer": kind, "FP32": fp32_ms, "INT8": int8_ms} for (kind, fp32_ms), (_, int8_ms) in pairs
)
by_layer["gain"] = by_layer.FP32 / by_layer.INT8
tell_layers(by_layer.drop(columns="layer"), limit["INT8"])
by_layer.style.format({"FP32": "{:.2f} ms", "INT8": "{:.2f} ms", "gain": "{:.1f} times"})

# %% [markdown]
# Which layers gain least? Pooling, a convolution with one input channel, and a dense layer, whose weights serve only
# once for each image, do few operations for each byte that they move. That is a likely reason for a small gain; lab 03
# measures it, with a roofline.
#
# ### AMX: tiles
#
# AMX has eight registers of another kind, **tiles**: each holds 16 rows of 64 bytes. One instruction multiplies two
# tiles, as small matrices, and adds the product to a third one:
#
# | instruction | what it multiplies | multiply-adds |
# | --- | --- | --- |
# | AVX-512, `vfmadd` | 16 pairs of FP32 | 16 |
# | BF16, `vdpbf16ps` | 32 pairs of BF16 | 32 |
# | VNNI, `vpdpbusd` | 64 pairs of INT8 | 64 |
# | AMX, `tdpbf16ps` | (16 × 32) · (32 × 16), BF16 | 8,192 |
# | AMX, `tdpbusd` | (16 × 64) · (64 × 16), INT8 | 16,384 |
#
# A tile instruction takes 16 cycles. In those, two AVX-512 units do 32 instructions, so 512 multiply-adds in FP32. Per
# cycle, then, AMX does 16 times as many in BF16 and 32 times as many in INT8. AMX-FP16 (Granite Rapids, 2024) does as
# many as BF16's. Is AMX here?


# %% jupyter={"source_hidden": true}
def find_amx(cpuinfo):
    """Return whether /proc/cpuinfo lists AMX, and a sentence that says why it is here or not."""
    flags = {*" ".join(re.findall(r"^flags\s*:(.*)", cpuinfo, flags=re.M)).split()}
    missing = [flag for flag in ("amx_tile", "amx_bf16", "amx_int8") if flag not in flags]
    if not missing:
        return True, "/proc/cpuinfo lists amx_tile, amx_bf16 and amx_int8."
    why = f"/proc/cpuinfo does not list {', '.join(missing)}. "
    if "AuthenticAMD" in cpuinfo:
        return False, why + "AMD's CPUs up to Zen 6 have no AMX."
    if "avx512_fp16" in flags:
        why += "It lists AVX512-FP16, and Intel's Xeons with that have AMX too. "
        return False, why + "So something hides it: a virtual machine, or a kernel before 5.16."
    why += "Intel's Xeons have AMX since Sapphire Rapids (2023). "
    return False, why + "This CPU is older, or of another kind."


def tell_amx(here, why, own, no_amx):
    """Print what large matrix products gain from AMX, or that there is none."""
    if not here:
        print(f"⚠ AMX IS NOT HERE, and nothing in this lab is measured with it.\n{why}")
        return
    print(f"AMX is here. {why}")
    for kind in ("bfloat16", "int8"):
        with_amx, without_amx = own.peak(kind), no_amx.peak(kind)
        print(
            f"{kind:9}{without_amx:9,.0f} without it, {with_amx:9,.0f} with it: "
            f"{with_amx / without_amx:.1f} times. "
            f"Against FP32: {with_amx / own.peak('float32'):.1f} times."
        )


# %%
amx_here, why = find_amx(Path("/proc/cpuinfo").read_text())
if not amx_here:
    tell_amx(amx_here, why, None, None)
elif limits:
    tell_amx(amx_here, why, limits, no_amx)
    for name in ("INT8", "BF16"):
        times = between_caps(capped, name, "AVX512_CORE_AMX", "AVX512_CORE_BF16")
        print(f"this network, {name}: AMX itself {times} times: {times.verdict}")

# %% [markdown]
# A network gains less from AMX than a large matrix product does when its layers don't fill the tiles, or when memory
# limits them.
#
# ## 9 · Below 8 bits, and weights alone
#
# In 2026, "fewer bits" mostly means language models. Three things are new there:
#
# - **FP8**, the floating-point numbers of section 1. GPUs multiply them since 2022. For CPUs, GCC 15 has AMX-FP8, of
#   Intel's Diamond Rapids, and [vLLM](https://github.com/vllm-project/vllm/pull/49410) uses it since July 2026.
# - **MX formats**, such as MXFP4: 32 numbers of 4 to 8 bits share a scale of 8 bits. OpenVINO's CPU plugin reads MXFP4.
# - **INT4, weights alone**: 32 to 128 weights share a scale of 16 bits. llama.cpp, OpenVINO, ONNX Runtime and PyTorch
#   have it for CPUs. This one you can try here.
#
# [**Weight-only quantisation**](../docs/glossary.md#weight-only-quantisation) stores the weights in few bits. They are
# unpacked just before they are multiplied, in FP32 or BF16. So it saves no arithmetic, but it moves fewer bytes. A
# language model that writes one word (*token*) after the other reads *all* its weights for each token, and multiplies
# each of them once: memory limits that. Published:
#
# | CPU, model | weights | tokens per second |
# | --- | --- | --- |
# | 64 threads, Llama 2 of 7 billion weights, [llama2.c][l2] | FP32 → INT8, 26 → 6.7 GB | 4.6 → 14: 3.0 times |
# | EPYC 9554, Phi-4 of 14.7 billion weights, [llama.cpp][phi] | 8 → 4 bits, 14.5 → 8.4 GiB | 19.2 → 28.7: 1.5 times |
#
# [l2]: https://github.com/karpathy/llama2.c
# [phi]: https://ahelpme.com/?p=6685
#
# (Both programs also round the vectors to 8 bits. That changes the arithmetic, not the bytes of the weights.)
#
# How few bits can the weights of your own network have? The next cell rounds only its weights, with a scale for each
# channel, and computes in FP32:


# %%
def with_weights_in(bits):
    """Return the trained network, its weights rounded to codes of so many bits."""
    net = keras.models.clone_model(nets["FP32"])
    net.set_weights(nets["FP32"].get_weights())
    for layer in net.layers:
        if hasattr(layer, "kernel"):
            kernel = layer.kernel.numpy()
            largest_weight = np.abs(kernel).max(axis=tuple(range(kernel.ndim - 1)))
            scale = largest_weight / (2 ** (bits - 1) - 1)
            layer.kernel.assign(np.round(kernel / scale) * scale)
    return net


in_fp32 = is_right(nets["FP32"])
print(f"FP32    accuracy {100 * in_fp32.mean():.2f}%")
few_bits = {}
for bits in (8, 4, 3, 2):
    correct = is_right(with_weights_in(bits))
    few_bits[bits] = compare_answers(correct, in_fp32)
    told = "{}: {}".format(*few_bits[bits])
    print(f"{bits} bits  accuracy {100 * correct.mean():.2f}%   {told}")

# %% [markdown]
# And speed? It depends on how often each weight that was read is used. The next cell makes dense layers that are too
# large for most caches, with random weights, since their values don't matter for the speed. It multiplies first one
# vector, as a language model does for one reader, then 64 vectors at once.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** FP32 takes 7.5 times as many bytes as INT4 with a scale for each 64 weights. How many times as fast
# is INT4 with one vector? And with 64?
#
# </div>

# %%
results.guess(6, "one vector, weights in INT4 against FP32", ..., unit="×")

# %%
print(
    f"Making {LAYERS} layers of {WIDTH:,} × {WIDTH:,} in three formats: up to a minute", flush=True
)
layer = vectors = ops.parameter([-1, WIDTH], np.float32)
for _ in range(LAYERS):
    weights = rng.standard_normal((WIDTH, WIDTH), dtype="float32") / WIDTH**0.5
    layer = ops.relu(ops.matmul(layer, ops.constant(weights), False, True))
dense = openvino.Model([layer], [vectors], "dense")
MODES = {
    "INT8": dict(mode=nncf.CompressWeightsMode.INT8_SYM),
    "INT4": dict(mode=nncf.CompressWeightsMode.INT4_SYM, group_size=64, all_layers=True),
}
settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": cores, "NUM_STREAMS": 1}
settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0  # or OpenVINO would quantise the vectors too
requests = {"FP32": core.compile_model(dense, "CPU", settings).create_infer_request()}
for name, mode in MODES.items():
    compressed = nncf.compress_weights(dense.clone(), **mode)
    requests[name] = core.compile_model(compressed, "CPU", settings).create_infer_request()
del dense, compressed, weights, layer

# %%
# Of a weight, with its share of a scale in FP16.
BYTES = {"FP32": 4, "INT8": 1, "INT4": 0.5 + 2 / 64}
AT_ONCE = (1, 64)
passes = {count: {name: [] for name in BYTES} for count in AT_ONCE}
with load.watch("section 9") as weight_others:
    for count in AT_ONCE:
        print(f"Measuring {count} vector{'s' * (count > 1)} at once …", flush=True)
        inputs = rng.standard_normal((count, WIDTH), dtype="float32")
        for turn in range(-1, WEIGHT_ROUNDS):  # the first does not count: first use of memory
            for name, request in requests.items():
                start = time.perf_counter()
                for _ in range(3):
                    request.infer([inputs])
                if turn >= 0:
                    passes[count][name].append(3 / (time.perf_counter() - start))
weight_gain = {count: ratios(each, "FP32") for count, each in passes.items()}
for count, each in passes.items():
    print(f"\n{count} vector{'s' * (count > 1)} at once:")
    for name, speed in each.items():
        gigabytes = np.median(speed) * LAYERS * WIDTH**2 * BYTES[name] / 1e9
        told = "" if name == "FP32" else f"   {weight_gain[count][name]} times FP32"
        ms = 1000 / np.median(speed)
        print(f"{name}: {ms:7.2f} ms, {gigabytes:6.1f} GB/s of weights{told}")
if limits:
    print(f"\nThe memory's bandwidth: {limits.bandwidth:.1f} GB/s")
results.compare_guess(6, Measured(*weight_gain[1]["INT4"], "×"))

# %% jupyter={"source_hidden": true}
requests.clear()  # and their memory
results.hand_in(
    "9",  # for the closing table
    *(
        (
            f"dense layers, {count} vector{'s' * (count > 1)}, weights in {name}, against FP32",
            "3.0×, Llama 2 7B" if (count, name) == (1, "INT8") else "",
            Measured(*weight_gain[count][name], "×"),
            f"{4 / BYTES[name]:.1f}×, the bytes" if count == 1 else "1×, the arithmetic",
            weight_others,
        )
        for count, name in ((1, "INT8"), (1, "INT4"), (64, "INT4"))
    ),
    ("accuracy, weights in 4 bits, against FP32", "", few_bits[4][0], "0"),
)

# %% [markdown]
# With one vector, each weight that is read is used once. Compare the GB/s with the memory's bandwidth: the nearer, the
# more memory is the limit, and the more fewer bytes help. Where INT4's GB/s are far below it, unpacking the codes is a
# likely limit, or the weights fit into a cache. With 64 vectors, each weight is used 64 times. Then the arithmetic
# takes longer than reading, and that is the same in all three.
#
# So the two kinds of quantisation serve different purposes. Weights *and* activations in INT8, as in section 5: for
# layers that the cores limit, as in image networks and large batches. Weights alone: for layers that memory limits.
#
# ## 10 · Many requests at once
#
# So far, one batch came after the other, and all cores worked on it. A server gets requests from many clients. It can
# still give all cores to one request at a time. Or it works on several requests side by side, each with a share of the
# cores: this is [**multi-stream inference**](../docs/glossary.md#multi-stream-inference). Then the cores wait for each
# other less often, but each request takes longer. So there are two figures: the
# [**throughput**](../docs/glossary.md#throughput) in images/s, and the [**latency**](../docs/glossary.md#latency) of a
# request. Its p50 is the median; its p99 is what 99 of 100 requests stay below. Users notice the p99.
#
# `NUM_STREAMS` is the number of streams. In the next script, each client sends a request, waits for the answer, and
# sends the next one.

# %%
# %%writefile work/streams.py
"""Throughput and latency: python work/streams.py FILE SECONDS STREAMS:CLIENTS …"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openvino


def serve(requests, images, seconds):
    """Let a client for each request object send one request after the other."""

    def client(request):
        latencies = []
        while (start := time.perf_counter()) < end:
            request.infer([images])
            latencies.append(1000 * (time.perf_counter() - start))
        return latencies

    with ThreadPoolExecutor(len(requests)) as pool:
        start = time.perf_counter()
        end = start + seconds
        latencies = np.concatenate(list(pool.map(client, requests)))
        rate = len(images) * len(latencies) / (time.perf_counter() - start)
    p50, p99 = np.percentile(latencies, [50, 99])
    return {"images/s": rate, "p50 ms": p50, "p99 ms": p99}


file, seconds, cases = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
images = np.random.default_rng(0).random((16, 28, 28, 1), dtype=np.float32)
model = openvino.Core().read_model(file)
model.reshape(list(images.shape))
threads = int(os.environ.get("OMP_NUM_THREADS", 0))  # run_ranks sets it; 0 lets OpenVINO choose
settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
served = {}
for case in cases:
    streams, clients = map(int, case.split(":"))
    compiled = openvino.compile_model(model, "CPU", settings | {"NUM_STREAMS": streams})
    requests = [compiled.create_infer_request() for _ in range(clients)]
    serve(requests, images, 0.1)  # not timed: creating kernels, first use of memory
    served[case] = serve(requests, images, seconds)
Path("work/streams.json").write_text(json.dumps(served))

# %% [markdown]
# The last case has twice as many clients as streams, so requests wait for each other. Each round is a process of its
# own, in which the cases take turns.


# %% jupyter={"source_hidden": true}
def tell_streams(rounds):
    """Print each case's throughput and latency against the first's; return the throughput's."""
    first, *others = rounds[0]
    rate, latency = (
        ratios({case: [each[case][what] for each in rounds] for case in rounds[0]}, first)
        for what in ("images/s", "p99 ms")
    )
    words = {"faster": "longer", "slower": "shorter"}
    for case in others:
        streams, clients = case.split(":")
        verdict = latency[case].verdict
        print(f"{streams} stream{'s' * (streams != '1')}, {clients} clients, against 1 of each:")
        print(f"  throughput  {rate[case]} times: {rate[case].verdict}")
        print(f"  p99 latency {latency[case]} times: {words.get(verdict, verdict)}")
    return rate


# %%
counts = sorted({cores, *(2**k for k in range(cores.bit_length()))})
cases = [*(f"{n}:{n}" for n in counts), f"{cores}:{2 * cores}"]
about = 2 + len(cases) * (STREAM_SECONDS + 0.3)
print(f"{STREAM_ROUNDS} rounds of {len(cases)} cases, about {about:.0f} s a round", flush=True)
served = []
with load.watch("section 10") as stream_others:
    for turn in range(STREAM_ROUNDS):
        run_ranks(1, "work/streams.py", "work/int8.xml", STREAM_SECONDS, *cases, show=False)
        served.append(json.loads((work / "streams.json").read_text()))
        print(f"round {turn + 1} of {STREAM_ROUNDS}", flush=True)
served_faster = tell_streams(served)
tables = {case: pd.DataFrame([each[case] for each in served]) for case in cases}
by_case = pd.DataFrame({case: table.median() for case, table in tables.items()}).T
form = {"images/s": "{:,.0f}", "p50 ms": "{:.2f}", "p99 ms": "{:.2f}"}
by_case.rename_axis("streams:clients").style.format(form)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
lowest, highest = (
    pd.DataFrame({case: getattr(table, end)() for case, table in tables.items()}).T
    for end in ("min", "max")
)
below, above = by_case - lowest, highest - by_case
for what, mark, colour in (("p50 ms", "o", plots.BLUE), ("p99 ms", "s", plots.VERMILION)):
    axis.errorbar(
        by_case["images/s"],
        by_case[what],
        xerr=[below["images/s"], above["images/s"]],
        yerr=[below[what], above[what]],
        fmt=mark,
        color=colour,
        label=what.removesuffix(" ms"),
        elinewidth=1,
    )
for case, row in by_case.iterrows():
    axis.annotate(f"  {case}", (row["images/s"], row["p99 ms"]), va="bottom")
axis.set(
    xlabel="throughput (images/s)",
    ylabel="latency of a request (ms)",
    title="Throughput and latency, by streams:clients",
)
axis.set_xlim(0, 1.15 * highest["images/s"].max())
axis.set_ylim(0, 1.1 * highest["p99 ms"].max())
axis.legend(loc="upper left")
plots.show(
    figure,
    alt="Latency against throughput, medians with the range of the rounds. "
    + "; ".join(
        f"streams:clients {case}: {row['images/s']:,.0f} images/s, "
        f"p50 {row['p50 ms']:.2f} ms, p99 {row['p99 ms']:.2f} ms"
        for case, row in by_case.iterrows()
    ),
    keep=results,
    watched=[stream_others],
)
results.hand_in(
    "10",  # for the closing table
    (
        f"INT8 throughput, streams:clients {cores}:{cores} against 1:1",
        "",
        Measured(*served_faster[f"{cores}:{cores}"], "×"),
        "",
        stream_others,
    ),
)

# %% [markdown]
# The lines through the marks are the range of the rounds. Clients in excess of the streams wait in a queue. A queue can
# fill the gaps between two requests, but each request also waits for its turn. OpenVINO chooses the number of streams
# itself when you state what you want: `PERFORMANCE_HINT` is `LATENCY` or `THROUGHPUT`. Several processes on a machine,
# each with its own cores, are the same idea one level up. In training, these are
# [**ranks**](../docs/glossary.md#rank): lab 07 has them.

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. Those that name an optional section are for whoever did it.
# The instructor's notebook has answers.
#
# 1. Why is INT8 used for inference and not for training?
# 2. What is different about INT8: what takes the place of the exponent?
# 3. Why do sums of 8-bit products need 32 bits, and why do sums in FP32 seem not to?
# 4. What else does INT8 save, besides time to compute?
# 5. Why must the calibration images look like the images that the network meets later? What do you see when they don't?
# 6. FP16 and BF16 are the same size. Which of them needs loss scaling, and why? *(section 2)*
# 7. INT8's error in a sum of *k* terms: how does your bound grow, how does the error grow, and why do they differ?
#    *(section 7)*
# 8. What does VNNI change? Where do 1.33 and 4 times come from, and what do they leave out? *(section 8)*
# 9. You serve a language model to one user, and later to 100 at once. When are weights in 4 bits worth most?
#    *(section 9)*
# 10. When do you choose many streams, when one? *(section 10)*

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions, timing, what to expect, and what goes wrong.
#
# ### Answers
#
# 1. In inference, the ranges are known beforehand and a little noise is harmless. In training, gradients spread over
#    many powers of ten and change from step to step, and updates are smaller than one 8-bit step.
# 2. The scale: one for a whole tensor or channel, instead of an exponent for each number. So the absolute error is
#    constant, not the relative one.
# 3. 255 × 127 is 32,385: 16 bits hold one such product. 32 bits hold 66,311 of them. FP32 moves the point, and loses
#    the last digits instead.
# 4. A quarter of the memory and of its traffic, and energy. The model file gets smaller as well.
# 5. They decide on the ranges. With dusk only, bright digits are clipped; with pixels up to 255, there are too few
#    codes.
# 6. FP16. Its range ends at 2⁻²⁴ below and at 65,504 above. BF16 has FP32's exponent, and has fewer digits instead.
# 7. Like *k*, and like √*k*: errors of opposite signs partly cancel. A bound must allow for all errors having the same
#    sign.
# 8. One instruction instead of three, for 64 products. 64 / (3 × 16) is 1.33, 64 / 16 is 4. This calculation leaves out
#    memory, layers that are not compute-bound, and conversions, which act in both directions.
# 9. For one user: each weight that is read serves one multiplication, so memory limits, and fewer bytes help. With 100
#    users in a batch, it serves 100, and the arithmetic is the same.
# 10. Many when only the images per second count, as in a job over a whole archive; one when a user waits for each
#     answer.
#
# **What to expect** The stored outputs are of one machine. These are from others, all with 2 cores and the built-in
# digits:
#
# - Xeon with AMX (Sapphire Rapids): training in BF16 2.3×, inference in BF16 5.0×, in INT8 7.6×, and in INT8 without
#   VNNI 1.65×.
# - EPYC with AVX-512, VNNI and BF16: 1.4 to 1.6×, 1.9×, 3.1 to 3.3×, and 1.9 to 2.0×.
#
# Accuracy after 5 epochs is about 97%. INT8 loses about a point by default, next to nothing with the largest range, 6
# points with dusk only, and half of all with 0 to 255.
#
# **Why not 4 times?** Layers with many channels come nearest to it. The first convolution, pooling and the dense layers
# gain less. Section 8 shows this layer by layer.
#
# **Timing** Section 1 takes 14 minutes, 4 takes 25, 3, 5 and 6 take 7 each. Of the optional ones, 2 takes 16, 7 takes
# 10, and 8, 9 and 10 take 7 each. Short of time? Skip exercise 1: the lab continues with its solution. Don't skip
# exercise 4, nor section 6.
#
# **What goes wrong** NumPy's `uint8 @ int8` is int16 and overflows without a warning: students are meant to find that.
# An FP16 array divided by a Python number stays FP16, so small gradients vanish again in exercise 2. On a CPU without
# AVX-512, BF16 training is slow. On one without VNNI, section 8 has one bar less, and INT8 gains less. Section 9 needs
# about 1.5 GB of memory.
#
# </div>

# %% [markdown]
# ## Remember
#
# - FP16 has digits, BF16 has range, and INT8 has neither, only a scale.
# - Loss scaling moves gradients to where FP16 is precise. BF16 doesn't need it.
# - 8-bit products are summed in 32 bits. VNNI does this in one instruction.
# - State the precision of your baseline, and look at what really ran.
# - Measure the yardstick. Paper says 2 and 4 times; AMX, or the lack of VNNI, makes it something else.
# - Calibrate with images like those that the network will meet. Then look at which answers it lost.
# - Weights alone in 4 bits save bytes, not arithmetic: they help where memory is the limit.
#
# The closing table shows what was published, what you measured, and the most that the machine could do:

# %% jupyter={"source_hidden": true}
weights_shrink = f"{kilobytes['fp32']:,.0f} → {kilobytes['int8']:,.0f} kB"
THEORY = {"BF16": "", "INT8": "4× with VNNI, in theory"}
results.table(
    "Fewer bits",
    [
        *(
            (
                f"{name} against FP32, inference",
                THEORY[name],
                Measured(*gain[name], "×"),
                f"{limit[name]:.1f}×, matrix products",
                *(infer_others, *limit_others),
            )
            for name in ("BF16", "INT8")
        ),
        (
            "BF16 training against FP32",
            "",
            Measured(*training_times, "×"),
            f"{limit['BF16']:.1f}×, matrix products",
            *(training_others, *limit_others),
        ),
        ("INT8's accuracy against FP32's, by default", "", points["all lights, mean"][0], "0"),
        ("the same, range of the brightest", "", points["all lights, largest"][0], "0"),
        ("weights, FP32 → INT8", "¼", weights_shrink, "¼"),
        *results.handed_in(
            "8",
            ("INT8 without VNNI, against FP32", "1.33×, in theory"),
            ("VNNI itself, INT8", "1.33× → 4×: 3×, in theory"),
        ),
        *results.handed_in(
            "9",
            ("dense layers, 1 vector, weights in INT8, against FP32", "3.0×, Llama 2 7B"),
            ("dense layers, 1 vector, weights in INT4, against FP32", ""),
            ("dense layers, 64 vectors, weights in INT4, against FP32", ""),
            ("accuracy, weights in 4 bits, against FP32", ""),
        ),
        *results.handed_in(
            "10", (f"INT8 throughput, streams:clients {cores}:{cores} against 1:1", "")
        ),
    ],
)

# %% [markdown]
# Where you are on the way from the default to the fastest, with all labs that you have done so far:

# %%
ladder.show(results)

# %% [markdown]
# Published: VNNI: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (theoretical peaks,
# not measured). V100: a lab for AWS' P3 instances. Loss scaling: Micikevicius et al., *Mixed Precision Training*, arXiv
# 1710.03740. AMX's cycles: Intel's optimization reference manual. FP8: Micikevicius et al., *FP8 Formats for Deep
# Learning*, arXiv 2209.05433. MX formats: Rouhani et al., arXiv 2310.10537. Weights alone: Frantar et al., *GPTQ*,
# arXiv 2210.17323. Zen 6: the feature lists of `-march=znver6` in GCC 16 and in
# [LLVM](https://github.com/llvm/llvm-project/pull/179150).
#
# Next: in [lab 05](05_tuning.ipynb), a program searches for the best settings.
