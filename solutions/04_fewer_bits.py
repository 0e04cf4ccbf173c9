# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: train in 16 bits, infer in 8, and measure accuracy and speed
#     needs: [ISA, memory, TensorFlow, MPI, OpenVINO, data]
#     better_with: []
# ---

# %% [markdown]
# # 04 · Fewer bits
#
# **You will learn** what 32, 16 and 8 bits can hold, how to train in bfloat16, how to multiply 8-bit integers, how to
# speed up your own network by quantising it, what that costs in accuracy, and how calibration recovers it. Optional
# sections save gradients from vanishing, measure single instruction sets, go below 8 bits, and serve concurrent
# requests.
#
# **Time** {minutes}
#
# **Connects to** lab 02, whose network used 32-bit numbers only; lab 03, which trains ResNet-50 in bfloat16; and lab
# 08, where 16-bit gradients travel between machines.
#
# **Why fewer bits?** There are three reasons:
#
# - More numbers fit into a register, so one instruction multiplies more of them, with less energy for each.
# - A number takes half or a quarter of the memory, of the memory traffic, and of the caches.
# - A trained network tolerates noise, so it rarely needs seven digits.
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
from labkit.display import consistency, ladder, markdown, plots
from labkit.display.consistency import Limit
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
EPOCHS = 2 if QUICK else 6  # section 3
PROCESSES = 1 if QUICK else 6  # for each setting: sections 5 and 7
ROUNDS, RUNS = (2, 1) if QUICK else (4, 10)  # in each process, in each round: sections 5 and 7
LAYER_RUNS = 3 if QUICK else 100  # section 7
WIDTH, LAYERS, WEIGHT_ROUNDS = (256, 2, 2) if QUICK else (4096, 5, 6)  # section 8
STREAM_ROUNDS, STREAM_SECONDS = (1, 0.05) if QUICK else (6, 0.6)  # section 9

digits = load_digits(n_train + n_held_out, n_test)
print(digits.source)

# %% [markdown]
# ## 1 · What a number can hold {read 6, do 8, wait 0.2}
#
# A floating-point number has a sign, an [**exponent**](../docs/glossary.md#exponent) *e* and a fraction *f*, its
# [**mantissa**](../docs/glossary.md#mantissa) without the leading 1. With *E* bits for the exponent and *F* for the
# fraction, its value is
#
# $$\pm \left(1 + \frac{f}{2^F}\right) \cdot 2^{\,e - bias}, \qquad bias = 2^{E-1} - 1$$
#
# Two exponents are special. **All bits 0**: the leading 1 becomes a 0, and the exponent counts as 1. These *subnormal*
# numbers fill the gap down to zero, and include zero. **All bits 1**: infinity if the fraction is 0, otherwise NaN,
# *not a number*.
#
# | format | sign | exponent | fraction |
# | --- | --- | --- | --- |
# | [**FP32**](../docs/glossary.md#fp32), float32, single precision | 1 | 8 | 23 |
# | [**FP16**](../docs/glossary.md#fp16), float16, half precision | 1 | 5 | 10 |
# | BF16, [**bfloat16**](../docs/glossary.md#bfloat16) | 1 | 8 | 7 |
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** FP16 and BF16 both have 16 bits. Which of them can hold 70,000, at least roughly? And which can hold
# 257 exactly? Write the first answer over the three dots, or just run the cell.
#
# </div>

# %%
results.guess(1, "the 16-bit format that holds 70,000", ..., choices=("FP16", "BF16"))

# %% [markdown]
# ### Exercise 1 · Read the bits
#
# Write `decode(pattern, e, f)`. It returns the value of a number whose bits are the integer `pattern`, with `e` bits of
# exponent and `f` bits of fraction. The sign is the highest bit, followed by the exponent and the fraction.


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
# Your function now computes the limits of each format. The table adds 8-bit formats: two of
# [**FP8**](../docs/glossary.md#fp8), named after their bits (E5M2 has 5 of exponent and 2 of mantissa), and
# [**INT8**](../docs/glossary.md#int8), integers.

# %% tags=["nbval-check-output"]
FORMATS = {"FP32": (8, 23), "BF16": (8, 7), "FP16": (5, 10)}
format_rows = []
for name, (e, f) in {**FORMATS, "FP8 E5M2": (5, 2), "FP8 E4M3": (4, 3)}.items():
    infinity, one = (2**e - 1) << f, (2 ** (e - 1) - 1) << f
    patterns = (infinity - 1, 1 << f, 1, one + 1)
    most, normal, least, next_to_one = (float(decode(pattern, e, f)) for pattern in patterns)
    limits_of_it = (f"±{most:.5g}", f"{normal:.3g}", f"{least:.3g}", f"{next_to_one - 1:.3g}")
    format_rows.append((name, *limits_of_it))
format_rows.append(("INT8", "−128 to 127", "1", "1", "1"))
head = ("format", "range", "smallest normal", "smallest above 0", "step at 1")
display(markdown.table(head, format_rows))

# %% [markdown]
# E4M3 in hardware differs from your table: it gives up infinity, and all NaNs but one, for more numbers, up to ±448
# ([Micikevicius et al. 2022](https://arxiv.org/abs/2209.05433)).
#
# What happens to a number in each format? For anything but integers, INT8 needs a **scale**. In the next cell, code 127
# stands for 1.0.

# %% tags=["nbval-check-output"]
BFLOAT16 = tf.bfloat16.as_numpy_dtype
TYPES = {"FP32": np.dtype("float32"), "BF16": np.dtype(BFLOAT16), "FP16": np.dtype("float16")}
print(f"{'':>10}" + "".join(f"{name:>18}" for name in (*TYPES, "INT8, to 1.0")))
for value in (1 / 3, 257.0, 2049.0, 70_000.0, 1e-6, 1e-8):
    with np.errstate(over="ignore"):
        converted = [float(np.array(value).astype(dtype)) for dtype in TYPES.values()]
    converted.append(float(np.clip(np.round(value * 127), -128, 127)) / 127)
    print(f"{value:10.6g}" + "".join(f"{number:18.9g}" for number in converted))

# %% jupyter={"source_hidden": true}
with np.errstate(over="ignore"):
    large = {name: np.array(70_000.0).astype(TYPES[name]) for name in ("FP16", "BF16")}
results.compare_guess(1, next(name for name in large if np.isfinite(large[name])))

# %% [markdown]
# BF16 is the upper half of an FP32: the same range, but only two or three decimal digits, so 257 becomes 256. FP16 has
# three or four digits, ends at 65,504, and rounds 0.00000001 to zero. That is
# [**underflow**](../docs/glossary.md#underflow). INT8 with this scale ends at 1, and rounds anything below 1/254 to
# zero.

# %% jupyter={"source_hidden": true}
exponents = np.arange(-30, 20)
figure, axis = plt.subplots()
for (name, (e, f)), style in zip(FORMATS.items(), ("-", "--", "-.")):
    lowest, highest = 2 - 2 ** (e - 1), 2 ** (e - 1) - 1
    in_range = exponents[(exponents >= lowest - f) & (exponents <= highest)]
    spacing = 2.0 ** (np.maximum(in_range, lowest) - f)
    axis.plot(2.0**in_range, spacing, style, label=name, marker="")
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
    alt="Distance between neighbouring numbers vs their size, both logarithmic. FP32, BF16 "
    "and FP16 are rising lines, BF16 the coarsest; FP16 ends at 65,504 and becomes flat below "
    "0.00006. INT8 is a short flat line at 1/127.",
)

# %% [markdown]
# A rising line means a constant *relative* error: small and large numbers have equally many exact digits. A flat line
# means a constant *absolute* error: the smaller the number, the fewer digits remain. FP16 becomes flat below 0.00006,
# and INT8 is flat from end to end. Each of the two causes a problem, FP16 in section 2 and INT8 in section 6.
#
# ## 2 · A gradient that vanishes {read 7, do 8, optional}
#
# [**Gradients**](../docs/glossary.md#gradient) are small. The [**backward pass**](../docs/glossary.md#backward-pass)
# multiplies small numbers: an error, divided by the batch size, times this loss's weight among other losses. The next
# cell computes gradients by hand for a network of two layers. It rounds after each operation, as a GPU does in FP16:
# multiply in 16 bits, sum in 32, store in 16.

# %%
x = digits.x_train[:512].reshape(512, 14, 2, 14, 2).mean(axis=(2, 4))  # 14 × 14 are enough here
x = x.reshape(512, 196)
y = np.eye(10, dtype="float32")[digits.y_train[:512]]
WEIGHT = 1e-4  # of this loss in a sum of several


def rounded(array, dtype):
    return array.astype(dtype).astype("float32")


def backward(weights, dtype, scale):
    """Return the mean loss, and in `dtype` the gradients of scale × WEIGHT × loss.

    Those with respect to the hidden layer come first, then those with respect to the weights.
    """
    # An overflow is expected: it shows that a scale is too large.
    with np.errstate(over="ignore", invalid="ignore"):
        w1, w2 = (rounded(w, dtype) for w in weights)
        hidden = rounded(np.maximum(x @ w1, 0), dtype)
        logits = rounded(hidden @ w2, dtype)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(np.maximum((p * y).sum(axis=1), 1e-9)).mean()
        error = rounded(scale * WEIGHT * (p - y) / len(x), dtype)
        by_hidden = rounded(error @ w2.T, dtype) * (hidden > 0)
        by_weights = [(x.T @ by_hidden).astype(dtype), (hidden.T @ error).astype(dtype)]
        return loss, by_hidden, by_weights


def fresh_weights():
    rng = np.random.default_rng(0)
    shapes = ((196, 64), (64, 10))
    return [rng.normal(0, (2 / n) ** 0.5, (n, m)).astype("float32") for n, m in shapes]


# %% [markdown]
# How many of the gradients vanish? FP16 appears twice: with the loss as it is, and with the loss multiplied by 4,096.

# %%
SCALE = 2.0**12
zeros = {}
for name, format_name, scale in [
    ("FP32", "FP32", 1),
    ("BF16", "BF16", 1),
    ("FP16", "FP16", 1),
    ("FP16, scaled", "FP16", SCALE),
]:
    _, by_hidden, _ = backward(fresh_weights(), TYPES[format_name], scale)
    zeros[name] = (by_hidden == 0).mean()
for name in zeros:  # in FP32, Relu makes the zeros
    vanished = max(0, zeros[name] - zeros["FP32"]) / (1 - zeros["FP32"])
    print(f"{name:13} {100 * vanished:5.1f}% of the hidden layer's gradients became 0")

# %% jupyter={"source_hidden": true}
_, exact, _ = backward(fresh_weights(), TYPES["FP32"], 1)
log_sizes = np.log2(np.abs(exact[exact != 0]))
bins = np.arange(np.floor(log_sizes.min()), 1 + np.ceil(log_sizes.max()) + np.log2(SCALE))
figure, axis = plt.subplots()
axis.hist(log_sizes, bins, color=plots.VERMILION, alpha=0.8, label="as they are")
look = dict(color=plots.BLUE, alpha=0.8, hatch="//", label=f"loss × {SCALE:,.0f}")
axis.hist(log_sizes + np.log2(SCALE), bins, **look)
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
    f"{100 * (log_sizes < -25).mean():.0f}% lie below 2 to the power of −25, where FP16 rounds "
    "to 0. Multiplied by "
    f"{SCALE:,.0f}, {100 * (log_sizes + np.log2(SCALE) < -25).mean():.1f}% do.",
)

# %% [markdown]
# The blue histogram shows the remedy: multiply the **loss** by a constant. By the chain rule, this multiplies every
# gradient by the same constant, and moves them all to where FP16 is precise. At the end, divide the weights' gradients
# by it, in FP32. Only the rounding has changed. This is [**loss scaling**](../docs/glossary.md#loss-scaling). BF16 has
# FP32's range and doesn't need it.
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
# Which constant? The best is the largest that doesn't overflow, and it changes during training. **Dynamic loss
# scaling** searches for it all the time. An overflow is easy to detect, and then the scale is halved. A scale that is
# too small is hard to detect, so after `patience` steps in a row without an overflow, the scale is doubled and the
# count starts again.

# %% [markdown]
# ### Exercise 2 · Dynamic loss scaling
#
# Write `settle(gradients, scale, calm, patience)`, which runs between the backward pass and the update of the weights.
# `gradients` is a list of FP16 arrays, the gradients of the loss times `scale`. `calm` is the number of steps in a row
# without an overflow before this one. Return three values:
#
# - for the update, the true gradients as a list of FP32 arrays, or `None` if the update must be skipped;
# - the scale for the next step;
# - `calm` for the next step.
#
# Think of everything that an overflow can leave in a gradient.


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
def train(format_name, scale=1.0, dynamic=False, steps=SMALL_NET_STEPS):
    """Return the loss and the scale of each step, and the number of skipped updates."""
    weights, calm, losses, scales, skipped = fresh_weights(), 0, [], [], 0
    for _ in range(steps):
        loss, _, gradients = backward(weights, TYPES[format_name], scale)
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


runs = {
    "FP32": train("FP32"),
    "BF16": train("BF16"),
    "FP16": train("FP16"),
    "FP16, dynamic scale": train("FP16", 2.0**40, dynamic=True),
}
for name, (losses, _, skipped) in runs.items():
    relative = losses[-1] / runs["FP32"][0][-1]
    print(f"{name:20} loss {losses[-1]:.3f}, {relative:.2f} × FP32's; {skipped} steps skipped")

# %% jupyter={"source_hidden": true}
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5))
styles = dict(zip(runs, ("-", "--", "-.", ":")))
for name, (losses, *_) in runs.items():
    width = 5 if styles[name] == ":" else 2.5
    left.plot(losses, styles[name], label=name, marker="", linewidth=width)
left.set(xlabel="step", ylabel="loss", title="Loss", ylim=(0, 5))
figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
right.plot(runs["FP16, dynamic scale"][1], color=plots.VERMILION, marker="")
right.set(xlabel="step", ylabel="scale", title="Dynamic scale")
right.set_yscale("log", base=2)
figure.suptitle("One network, trained in four number formats")
plots.show(
    figure,
    alt="Loss at the end: "
    + ", ".join(f"{name} {losses[-1]:.3f}" for name, (losses, *_) in runs.items())
    + ". The dynamic scale begins at 2 to the power of 40 and ends at "
    f"{runs['FP16, dynamic scale'][1][-1]:,.0f}.",
    keep=results,
)

# %% [markdown]
# How far is plain FP16 from FP32? Vanished gradients change no weight, and the remaining ones are coarse. Compare it
# with FP16 under a dynamic scale, and with BF16, which has no scale.
#
# A scale that starts absurdly high falls within a few skipped steps. Keras does the same under its policy
# `mixed_float16`, in `keras.optimizers.LossScaleOptimizer`. Lab 08 trains with a *static* scale.

# %% [markdown]
# ## 3 · Training in bfloat16 {read 7, wait 1.2}
#
# Now you train a real network. First, the digits get harder in a way that cameras know: **each digit has its own
# brightness**, from full light down to 1/64 of it. Nothing else changes. Eyes would adapt, and floating-point numbers
# lose hardly any precision.

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
# Layers then compute in BF16 and keep their weights in FP32: that is
# [**mixed precision**](../docs/glossary.md#mixed-precision). This notebook contains two networks, so it sets the policy
# of each layer. The last layer stays in FP32, as is common, because the loss takes exponentials of its output.


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
for name, net in nets.items():
    first = net.layers[0]
    print(f"{name}: the first layer computes in {first.compute_dtype}, weights in {first.dtype}")
with_weights = [layer for layer in nets["FP32"].layers if hasattr(layer, "kernel")]
# The operations of each layer for one image: 2 for each multiplication and its addition.
operations = [
    2 * layer.kernel.numpy().size * int(np.prod(layer.output.shape[1:-1])) for layer in with_weights
]
print(f"{sum(operations) / 1e6:.1f} million operations per image")

# %% [markdown]
# The training step is an ordinary one, compiled to a graph. The function after it trains on all digits once, and
# returns the speed.


# %%
def training_step(model):
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
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
    """Return the difference of two accuracies with its 95% interval, and whether it is significant.

    Both answered the same digits, so only those count that exactly one of the two got right
    (Agresti and Min, 2005).
    """
    gained, lost = (correct & ~reference).sum() + 0.5, (~correct & reference).sum() + 0.5
    n = len(correct) + 2
    half = 1.96 * np.sqrt(gained + lost - (gained - lost) ** 2 / n)
    low, high = (100 * (gained - lost + side) / n for side in (-half, half))
    points = 100 * (correct.mean() - reference.mean()) + 0.0  # + 0.0: no minus before a zero
    verdict = "significant" if low > 0 or high < 0 else "not significant"
    return Measured(points, low, high, "points", signed=True), verdict


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** BF16 has half the bits of FP32. How much faster will training be, BF16 vs FP32?
#
# </div>

# %%
results.guess(2, "training, BF16 vs FP32", ..., unit="×")

# %%
# Without AVX-512, oneDNN leaves BF16 to Eigen, which is many times slower: then a few digits are
# enough to time it.
few = max(64, n_train // 20)
trained_on = {"FP32": n_train, "BF16": n_train if "AVX-512" in machine.isa else few}
steps = {name: training_step(net) for name, net in nets.items()}
training_speeds, right = {name: [] for name in nets}, {}
print(f"Training both networks alternately, {EPOCHS} epochs each: about a minute", flush=True)
for step in steps.values():
    images_per_second(step, np.arange(64))  # not timed: tracing, creating kernels
with load.watch("section 3") as training_others:
    for epoch in range(EPOCHS):
        order = rng.permutation(n_train)
        for name, step in steps.items():
            training_speeds[name].append(images_per_second(step, order[: trained_on[name]]))
            line = f"{training_speeds[name][-1]:7,.0f} images/s"
            if trained_on[name] == n_train:
                right[name] = is_right(nets[name])
                line += f"  accuracy {100 * right[name].mean():.1f}%"
            print(f"epoch {epoch + 1} of {EPOCHS}  {name}  {line}", flush=True)
training_gain = ratios(training_speeds, "FP32")["BF16"]
print(f"\nBF16 vs FP32: {Measured(*training_gain, '×')}: {training_gain.verdict}")
if trained_on["BF16"] == n_train:
    points, verdict = compare_answers(right["BF16"], right["FP32"])
    print(f"accuracy: {points}, {verdict} for these two networks; other seeds make other networks")
else:
    print("BF16 trained on only a few of the digits: compare its speed, not its accuracy.")
results.compare_guess(2, Measured(*training_gain, "×"))

# %% [markdown]
# The brackets contain 95% [**confidence intervals**](../docs/glossary.md#confidence-interval). The interval of the
# accuracy is about these two *networks*. It says little about the two *formats*: training is partly chance, and another
# seed makes two other networks. To compare formats, train several networks in each.
#
# What is the most that fewer bits can bring? An AVX-512 instruction multiplies 16 FP32, 32 BF16 or 64 INT8 numbers:
# factors of 2 and 4. [**AMX**](../docs/glossary.md#amx) does many times more, and a CPU without these instructions does
# less.
#
# So measure it. The next cell runs the instruction of each format alone, on numbers in registers, and the matmuls of
# the installed libraries, as lab 03 does. The faster of the two is **the format's limit** in the rest of this lab. The
# first time takes about 20 s, then the result is kept.


# %%
DTYPES = {"FP32": "float32", "BF16": "bfloat16", "INT8": "int8"}
limits = measure.limits(quick=QUICK)


def limit_of(name, limits=limits):
    """Return a format's limit, and what reached it: an instruction alone, or a library's matmul."""
    dtype = DTYPES[name]
    found = [(limits.measured(dtype), f"{limits.products[dtype][0].library}'s matmul")]
    if alone := limits.instructions.get(dtype):
        unit = "GOP/s" if name == "INT8" else "GFLOP/s"
        found.append((Measured(alone["speed"], unit=unit, digits=0), alone["instruction"]))
    if name != "FP32" and limits.emulated(dtype):
        found.append(limit_of("FP32", limits))  # software may convert, and compute in FP32
    return max(found, key=lambda each: each[0].value)


# %% jupyter={"source_hidden": true}
def explain(gain, isa):
    """Return the meaning of the measured BF16 speed-up in training on such a CPU."""
    if not {"BF16", "AMX"} & {*isa}:
        return (
            "This CPU has no BF16 instructions: each operation converts to FP32 and back. "
            "That saves memory, not time."
        )
    if gain.verdict == "faster":
        return "This CPU multiplies BF16 in hardware, more numbers per instruction."
    if gain.verdict == "slower":
        return (
            "This CPU has BF16 instructions, but conversions may cost more than they save: "
            "look at small layers."
        )
    return f"This CPU has BF16 instructions. What they save here is not known: {gain.verdict}."


def speedup_limit(name, fp32_speed, limits=limits):
    """Return the limit of a speed-up vs FP32: the format's limit ÷ FP32's speed here.

    `fp32_speed` is in GFLOP/s.
    """
    limit, reached_by = limit_of(name, limits)
    scaled = (each / fp32_speed for each in (limit.value, limit.low, limit.high))
    return Limit(Measured(*scaled, "×"), f"faster than {reached_by} when the limits were measured")


# %%
limit_others = [limits.others]
for name in DTYPES:
    fastest, reached_by = limit_of(name)
    relative = f"{fastest.value / limit_of('FP32')[0].value:.1f} × FP32's"
    print(f"{name}: {fastest}, {relative}, by {reached_by}")
if limits.others.busy:
    print(limits.others)
# The backward pass takes twice as many, but the images need no gradient.
training_operations = 3 * sum(operations) - operations[0]
training_gflops = {
    name: np.median(each) * training_operations / 1e9 for name, each in training_speeds.items()
}
for name, speed in training_gflops.items():
    share = 100 * speed / limit_of(name)[0].value
    print(f"training in {name}: {speed:,.0f} GFLOP/s, {share:.0f}% of its limit")
print(explain(training_gain, machine.isa))

# %% [markdown]
# If BF16 reaches a smaller share of its limit than FP32, one reason is known: the optimizer, the loss and the weights
# stay in FP32. Small layers are another.

# %% [markdown]
# ### Published: FP16 on a GPU
#
# GPUs with tensor cores multiply FP16 matrices and sum in FP32. Loss scaling was invented for them. A walk-through for
# V100s published these figures:
#
# | training ResNet-50 on V100, published | figure |
# | --- | --- |
# | one GPU, FP32, batch 128 | about 400 images/s |
# | one GPU, FP16, batch 256 | twice that |
# | one GPU, FP16, one epoch of 1,000,000 images | about 30 minutes |
# | 8 GPUs, the same epoch | about 5 minutes, at about 5,800 images/s |
# | 8 GPUs, 10 epochs | about 30 minutes, 48% validation accuracy |
#
# Check such figures: 10 × 1,000,000 images at the published 5,800 images/s take 29 minutes. And two things change at
# once between the first two lines: in FP16 the batch is twice as large, because activations take half the memory.
#
# **At home.** What is the scaling efficiency of the 8 GPUs, by their minutes for one epoch? Lab 07 measures it for
# ranks.

# %% [markdown]
# **At home.** FP16 on CPUs: train `digit_net("mixed_float16")` on 32 digits, and compare its images/s with FP32's. Few
# CPUs have instructions for FP16. Without them, TensorFlow may leave it to Eigen, which converts to FP32 and back.

# %% [markdown]
# ## 4 · Eight bits by hand {read 5, do 13}
#
# For inference, even 8 bits can be enough. There are only 256 codes, so you have to choose which numbers they
# represent: this is [**quantisation**](../docs/glossary.md#quantisation). The **scale** is the distance between two
# neighbours, and the **zero point** is the code of 0.0:
#
# $$x \approx scale \cdot (q - zero)$$
#
# Zero gets a code of its own, because it must be exact: padding and Relu produce many zeros.

# %% [markdown]
# ### Exercise 3 · How far should the codes reach?
#
# If they reach up to the largest value, nothing is clipped, but the steps are wide for all values. A shorter range has
# finer steps, and clips the largest values. Decide by the error.
#
# Write `choose_high(values, bits)`. `values` is an array of activations after Relu: none is negative, and some are
# above 0. The codes from 0 to `2**bits - 1` stand for 0 to `high` in equal steps. Each value gets the nearest code, and
# values above `high` get the last code. Return the `high` with the smallest mean squared error between the values and
# what their codes stand for. Within 10% of the smallest error is close enough, so you can try a hundred values.


# %%
def choose_high(values, bits):
    """Return the upper end of the range of codes that has the smallest mean squared error."""
    ### BEGIN SOLUTION
    last = 2**bits - 1

    def error(high):
        scale = high / last
        codes = np.clip(np.round(values / scale), 0, last)
        return np.mean((codes * scale - values) ** 2)

    return min(values.max() * np.arange(1, 101) / 100, key=error)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
choose_high = check(3, choose_high)

# %% [markdown]
# What does it choose for your own network? The next cell uses the activations of the second convolution, for the
# held-out digits.


# %% jupyter={"source_hidden": true}
def clipping_error(values, high, bits):
    """Return the root mean square error of codes that reach up to `high`."""
    scale = high / (2**bits - 1)
    return np.sqrt(
        np.mean((np.clip(np.round(values / scale), 0, 2**bits - 1) * scale - values) ** 2)
    )


# %%
second = keras.Model(nets["FP32"].inputs, nets["FP32"].layers[2].output)
activations = rng.choice(second.predict(held_out, verbose=0).ravel(), 20_000)
saved = {}
for bits in (8, 4, 3, 2):
    most = activations.max()
    high = float(choose_high(activations, bits))
    saved[bits] = 1 - clipping_error(activations, high, bits) / clipping_error(
        activations, most, bits
    )
    print(
        f"{bits} bits: best up to {high / most:4.0%} of the largest; error {saved[bits]:.0%} less"
    )
fewer_saves = "more" if saved[2] > saved[8] else "not more"
print(f"Clipping saves {fewer_saves} with 2 bits than with 8.")

# %% [markdown]
# Section 6 makes this decision for the whole network.
#
# Weights differ from activations in three ways:
#
# - They get *signed* codes, because the CPU's instruction multiplies unsigned by signed numbers.
# - Their zero point is 0. Otherwise each product would need a correction by a sum of activations, which is known only
#   when the image has arrived.
# - The code −128 is not used, so that the codes are symmetric: from −127 to 127.


# %%
def to_uint8(array):
    """Return codes, the code of 0.0, and the scale."""
    low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
    scale = (high - low) / 255
    zero = round(-low / scale)
    return np.clip(np.round(array / scale) + zero, 0, 255).astype("uint8"), zero, scale


def to_int8(weights, axis=None):
    """Return codes and scale; with axis=0, a scale for each column."""
    scale = np.abs(weights).max(axis=axis) / 127
    return np.round(weights / scale).astype("int8"), scale


# %% [markdown]
# Next, the products. The product of two 8-bit numbers fits into 16 bits. How many products can you sum there?

# %% tags=["nbval-check-output"]
a, b = np.full((1, 3), 255, "uint8"), np.full((3, 1), 127, "int8")
by_numpy = f"numpy, uint8 @ int8: {(a @ b).item():,} as {(a @ b).dtype}"
print(f"one product:     {255 * 127:12,}")
print(f"the sum of {a.shape[1]}:    {3 * 255 * 127:12,}   {by_numpy}")
print(f"largest int16:   {2**15 - 1:12,}   room for {2**15 // (255 * 127)} product")
print(f"largest int32:   {2**31 - 1:12,}   room for {2**31 // (255 * 127):,} products")
longest = max(layer.kernel.numpy()[..., 0].size for layer in with_weights)
print(f"longest sum in your network: {longest:,} products")

# %% [markdown]
# NumPy gave no warning. These sums need 32 bits. In FP32, they have no such limit and only lose digits. In FP16, they
# end at 65,504, which is one reason why GPUs sum FP16 in FP32.
#
# ### Exercise 4 · A product of 8-bit matrices
#
# `a` holds codes of type uint8 with `zero_a` and `scale_a`. `b` holds codes of type int8 with `scale_b`, which is one
# number or one for each column. Write `int8_product(a, b, zero_a, scale_a, scale_b)`. Return two arrays:
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
# nothing, because the scale is applied after the sums. The next cell compares both on the weights of your own network,
# and then multiplies one layer with your function:

# %%
print(f"{'error of the weights':28}{'per tensor':>12}{'per channel':>13}")
for layer in with_weights:
    kernel = layer.kernel.numpy()
    flat = kernel.reshape(-1, kernel.shape[-1])
    off = []
    for axis in (None, 0):
        codes, scale = to_int8(flat, axis)
        off.append(np.linalg.norm(codes * scale - flat) / np.linalg.norm(flat))
    print(f"{layer.name:12}{kernel.shape!s:16}{100 * off[0]:11.2f}%{100 * off[1]:12.2f}%")

dense = with_weights[-2]
inputs = keras.Model(nets["FP32"].inputs, dense.input).predict(held_out, verbose=0)
(codes_a, zero, scale_a), (codes_b, scale_b) = to_uint8(inputs), to_int8(dense.kernel.numpy(), 0)
_, product = int8_product(codes_a, codes_b, zero, scale_a, scale_b)
true_product = inputs @ dense.kernel.numpy()
off = np.linalg.norm(product - true_product) / np.linalg.norm(true_product)
print(f"\n{dense.name} in INT8: {100 * off:.1f}% from its product in FP32")

# %% [markdown]
# The largest weight sets the step for all weights that share its scale. A step for each channel is never coarser, and
# often finer.
#
# **At home.** Bound the error of such a product. Rounding moves a number by half a step at most. By how much can one
# term be off, and a sum of *k* terms? Then measure the largest error for random matrices with *k* from 8 to 4,096. The
# bound grows like *k*. Why does the error grow more slowly?
#
# ## 5 · Quantise your network {read 6, wait 0.3}
#
# **OpenVINO** runs trained networks on CPUs, mostly with oneDNN kernels. **NNCF** converts them to 8-bit codes *after
# training* (post-training quantisation). It runs a few hundred images through the network, records the range of each
# activation, and chooses scales and zero points from that. This is [**calibration**](../docs/glossary.md#calibration).
# Here the images are held-out digits, used neither for training nor for testing.

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
weight_sizes = f"FP32 {kilobytes['fp32']:,.0f} kB, INT8 {kilobytes['int8']:,.0f} kB"
print(f"weights: {weight_sizes}, {kilobytes['int8'] / kilobytes['fp32']:.0%} of it")

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


correct_by = {"FP32": answers(fp32), "BF16": answers(fp32, "bf16"), "INT8": answers(int8)}
for name, correct in correct_by.items():
    print(f"{name}: accuracy {100 * correct.mean():.2f}%")
    if name != "FP32":
        differ = (correct != correct_by["FP32"]).sum()
        print("      vs FP32: {}: {}".format(*compare_answers(correct, correct_by["FP32"])))
        print(f"      exactly one of the two is right on {differ} of {n_test:,} digits")

# %% [markdown]
# Section 6 returns to INT8's accuracy. First: how much faster is it? The next script measures networks in one process,
# alternately. It also asks OpenVINO which format each layer really uses, because the hint is only a request.

# %%
# %%writefile work/infer.py
"""Measure networks alternately: python work/infer.py BATCH ROUNDS RUNS NAME=FILE,PRECISION …"""

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
# Several processes run it, one after the other. Each is a separate sample, with its memory in another place. Each
# gives one ratio to FP32, from the medians of its rounds, and the spread of these ratios gives the interval.


# %%
batch = max(64, 16 * cores)
VARIANTS = {
    "FP32": "work/fp32.xml,f32",
    "BF16": "work/fp32.xml,bf16",
    "INT8": "work/int8.xml,f32",
}


def infer(*names, rounds=ROUNDS, runs=RUNS, **env):
    """Run these variants in a process; return images/s by round, kernels, and its output."""
    variants = [f"{name}={VARIANTS[name]}" for name in names]
    run = run_ranks(1, "work/infer.py", batch, rounds, runs, *variants, env=env, show=False)
    measured = json.loads((work / "infer.json").read_text())
    speeds = {name: measured[name]["images/s"] for name in names}
    return speeds, {name: measured[name]["layers"] for name in names}, run.lines[0]


def describe(ratio):
    """Return a ratio with its verdict, and the rounds that the faster one won."""
    return f"{Measured(*ratio, '×')}: {ratio.verdict_by_rounds}"


def relative_to_fp32(speeds):
    """Return each format's ratio to FP32; a process is a round, represented by its median."""
    medians = {name: [np.median(one) for one in each] for name, each in speeds.items()}
    return ratios(medians, "FP32")


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster will inference be, INT8 vs FP32, in images per second?
#
# </div>

# %%
results.guess(3, "inference, INT8 vs FP32", ..., unit="×")

# %%
print(f"Measuring three formats in {PROCESSES} processes, about 2 s each", flush=True)
inference_speeds = {name: [] for name in VARIANTS}
with load.watch("section 5") as infer_others:
    for turn in range(PROCESSES):
        in_process, kernels_by, _ = infer(*VARIANTS)
        for name, each in in_process.items():
            inference_speeds[name].append(each)
        line = ", ".join(f"{name} {np.median(each):,.0f}" for name, each in in_process.items())
        print(f"process {turn + 1} of {PROCESSES}: {line} images/s", flush=True)
rate = {name: np.median(np.concatenate(each)) for name, each in inference_speeds.items()}
gain = relative_to_fp32(inference_speeds)
for name in ("BF16", "INT8"):
    print(f"{name} vs FP32: {describe(gain[name])}")
print("\nWhat the layers ran in:")
for name in VARIANTS:
    used = pd.Series([f"{kernel} ({precision})" for _, kernel, precision in kernels_by[name]])
    counted = [f"{n} × {kernel}" for kernel, n in used.value_counts().items()]
    print(f"{name}: {', '.join(counted)}")
results.compare_guess(3, Measured(*gain["INT8"], "×"))

# %% [markdown]
# The last lines list the kernels of the convolutions and dense layers, each with its input format. Does each network
# run in the format that its name says? Without BF16 in hardware, OpenVINO emulates it where there is AVX-512. Otherwise
# it computes in FP32 and ignores the request; on Arm cores, in FP16. (`mlas` is Microsoft's library, which OpenVINO
# contains besides oneDNN.)
#
# How much more would be possible? Section 3 measured each format's limit. The next cell divides it by what FP32 reached
# here. The result is the most that the format could bring, drawn as dashed lines.

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
colours = dict(zip(VARIANTS, (plots.ORANGE, plots.SKY, plots.BLUE)))
fp32_gflops = rate["FP32"] * sum(operations) / 1e9
# OpenVINO may run in FP32 what was requested in BF16: then FP32's limit holds.
in_fp32 = {name: all(kind == "f32" for *_, kind in kernels_by[name]) for name in VARIANTS}
limit_names = {name: "FP32" if in_fp32[name] else name for name in VARIANTS}
limit = {name: speedup_limit(limit_names[name], fp32_gflops) for name in VARIANTS}
for place, name in enumerate(VARIANTS):
    value, low, high = gain[name]
    bar = axis.bar(name, value, 0.6, color=colours[name])
    if name != "FP32":
        ends = [[value - low], [high - value]]
        axis.errorbar(place, value, ends, color="black", capsize=6, marker="")
    label = "limit of the format" if name == "FP32" else None
    top = limit[name].measured.value
    axis.hlines(top, place - 0.4, place + 0.4, "black", "--", label=label)
    text_colour = "white" if name == "INT8" else "black"
    axis.bar_label(bar, [f"{rate[name]:,.0f}\nimages/s"], label_type="center", color=text_colour)
axis.set(ylabel="speed (× FP32)", title="Inference in fewer bits")
axis.margins(y=0.15)
axis.legend(loc="upper left")
plots.show(
    figure,
    alt="; ".join(
        f"{name} {rate[name]:,.0f} images/s, {gain[name]} × FP32, limit "
        f"{limit[name].measured.value:.1f} ×"
        for name in VARIANTS
    ),
    keep=results,
    watched=[infer_others, *limit_others],
)
bf16_kb = kilobytes["fp32"] / (1 if in_fp32["BF16"] else 2)
weights_kb = dict(zip(VARIANTS, (kilobytes["fp32"], bf16_kb, kilobytes["int8"])))
shares = {name: limit[name].share(Measured(*gain[name], "×")) for name in VARIANTS}
display(
    markdown.table(
        ("", "images/s", "share of its limit", "accuracy", "weights in memory"),
        [
            (
                name,
                f"{rate[name]:,.0f}",
                str(shares[name]),
                f"{100 * correct_by[name].mean():.2f}%",
                f"{weights_kb[name]:,.0f} kB",
            )
            for name in VARIANTS
        ],
    )
)
for name in VARIANTS:
    if shares[name].value > 100 * consistency.ABOVE:
        print(f"{name} exceeds its limit: {limit[name].describe(Measured(*gain[name], '×'))}")
furthest = min(VARIANTS, key=lambda name: shares[name].value)
print(f"Furthest from its limit: {furthest}, at {shares[furthest].value:.0f}%.")
results.step(
    "bits",
    Measured(*gain["INT8"], "×"),
    *(infer_others, *limit_others),
    share=shares["INT8"].value,
    significant=gain["INT8"].significant,
)

# %% [markdown]
# A format that stays further from its limit than FP32 gains less than the limits promise. Memory, conversions or small
# layers may be the reason: section 7 looks at the layers one by one.

# %% [markdown]
# ## 6 · Where INT8 loses accuracy, and how to get it back {read 5}
#
# Section 5 compared the accuracy of INT8 and FP32. On which digits does each go wrong? Sort the test digits by their
# brightness:

# %%
edges = DIMMEST ** np.linspace(1, 0, 6)
group = np.digitize(light_test, edges[1:-1])
lights = [f"1/{1 / edge:.0f}" if edge < 0.99 else "1" for edge in edges]
groups = [f"{low} to {high}" for low, high in pairwise(lights)]


def by_light(correct):
    return np.array([100 * correct[group == number].mean() for number in range(5)])


pd.DataFrame({name: by_light(each).round(1) for name, each in correct_by.items()}, index=groups)

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
# - **0 to 255**: these digits too, but someone forgot that the network expects pixels from 0 to 1.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which of these four is the worst, and on which digits?
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
calibrated = {name: answers(model) for name, model in zip(CALIBRATIONS, models)}
lost = {name: compare_answers(each, correct_by["FP32"]) for name, each in calibrated.items()}
print(f"{'FP32':22} {100 * correct_by['FP32'].mean():6.2f}%")
for name, correct in calibrated.items():
    print(f"{name:22} {100 * correct.mean():6.2f}%   {lost[name][0]}: {lost[name][1]}")
worst, next_worst = sorted(calibrated, key=lambda name: calibrated[name].mean())[:2]
apart, verdict = compare_answers(calibrated[worst], calibrated[next_worst])
print(f"\n{worst} vs {next_worst}: {apart}: {verdict}")
if verdict == "significant":  # else these digits don't decide which is the worst
    results.compare_guess(4, worst)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(10, 4.5))
drawn = {"FP32": correct_by["FP32"]} | calibrated
palette = (plots.ORANGE, plots.VERMILION, plots.SKY, plots.BLUE, plots.PURPLE)
looks = zip(drawn.items(), palette, ("", "..", "//", "", "xx"))
in_group = np.array([(group == number).sum() for number in range(5)])
for shift, ((name, correct), colour, hatch) in enumerate(looks):
    heights = by_light(correct)
    # Wilson's 95% interval of a share.
    p, z = heights / 100, 1.96**2 / in_group
    middle, half = (p + z / 2) / (1 + z), np.sqrt(z * p * (1 - p) + z**2 / 4) / (1 + z)
    ends = 100 * np.array([p - middle + half, middle + half - p])
    look = dict(error_kw=dict(elinewidth=1, capsize=2), color=colour, hatch=hatch, label=name)
    axis.bar(np.arange(5) + 0.17 * (shift - 2), heights, 0.17, yerr=ends.clip(0), **look)
axis.set_xticks(range(5), [name.replace(" to ", "\nto ") for name in groups])
axis.set(
    xlabel="brightness of the digit",
    ylabel="accuracy (%)",
    title="INT8 by brightness, and by calibration",
    ylim=(0, 105),
)
figure.legend(*axis.get_legend_handles_labels(), loc="outside right center", fontsize=11)
percent = {name: [f"{value:.0f}" for value in by_light(each)] for name, each in drawn.items()}
plots.show(
    figure,
    alt="Accuracy in percent with 95% intervals for five groups of digits, from dim to bright. "
    + "; ".join(f"{name}: {', '.join(values)}" for name, values in percent.items()),
    keep=results,
)
for name in CALIBRATIONS:
    change = by_light(calibrated[name]) - by_light(correct_by["FP32"])
    if lost[name][1] == "significant" and lost[name][0].value < 0:
        print(f"{name}: largest loss {min(change):+.1f} points, at {groups[change.argmin()]}")

# %% [markdown]
# Look where each calibration loses accuracy. A range that is too narrow clips (*saturates*) bright values, in every
# layer. A range that is too wide leaves few codes for each digit: with pixels from 0 to 255, whole digits become one
# code, the dim ones first. The range has to fit the images that the network will meet, with their extremes if these
# matter, and without them if they are faults.
#
# All four have the same weights. So before you blame INT8, look at the calibration.
#
# **Finished early?** An open task: with how few calibration images, and which ones, is INT8 not significantly worse
# than FP32? Try 1, 10 and 100 images, digits of one class, `RangeEstimatorParametersSet.MEDIAN_MINMAX`. When no
# calibration is good enough, `nncf.quantize_with_accuracy_control` switches the layers that lose most back to FP32,
# until the loss of accuracy is as small as you require.

# %% [markdown]
# ## 7 · What VNNI is worth {read 6, wait 1.1, optional}
#
# A 512-bit register holds 64 numbers of 8 bits, or 16 of 32. So each instruction can multiply 4 times as many. But the
# sums need 32 bits, and before VNNI that took three instructions: multiply 8-bit pairs and add neighbours into 16 bits;
# widen the sums to 32 bits; add them up. 64 products in 3 instructions are 21 per instruction: 1.33 × FP32's 16.
# [**VNNI**](../docs/glossary.md#vnni) does everything in one instruction, `vpdpbusd`: 4 ×.
#
# The first of the three old instructions also *saturates*: two products of 255 × 127 are 64,770, and 16 bits end at
# 32,767. So NNCF uses only half of the codes for the weights of a network's first layer (`OverflowFix`).
#
# Which of your layers ran on VNNI? Ask oneDNN inside OpenVINO which kernels it created:

# %%
_, _, log = infer("INT8", rounds=1, runs=1, ONEDNN_VERBOSE="profile_create")
pattern = r"onednn_verbose,.*?,create\S*?,cpu,(\w+),([^,]+),[^,]*,src:(\w+)"
created = [match.groups() for match in (re.match(pattern, line) for line in log) if match]
kernels = pd.DataFrame(created, columns=["primitive", "kernel", "source"])
matmuls = kernels[kernels.primitive.isin(["convolution", "inner_product", "matmul"])]
on_vnni = matmuls.kernel.str.contains("vnni|amx")
print(f"{on_vnni.sum()} of {len(matmuls)} convolutions and matmuls run on VNNI or AMX")
matmuls.value_counts(["primitive", "kernel", "source"]).rename("created").reset_index()

# %% [markdown]
# The end of a kernel's name is its instruction set. To see what VNNI is worth, take it away: `ONEDNN_MAX_CPU_ISA` caps
# what oneDNN may use, and changes nothing else. oneDNN reads it when it starts, so each cap needs a process of its own.
# The processes alternate. (On Arm cores, which have no VNNI, oneDNN doesn't know this cap.)
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster than FP32 will INT8 be without VNNI? Will it be faster at all?
#
# </div>

# %%
results.guess(5, "inference without VNNI, INT8 vs FP32", ..., unit="×")


# %% jupyter={"source_hidden": true}
def caps_for(isa):
    """Return the caps to compare on such a CPU, from the lowest to none, and each one's formats."""
    base = "AVX512_CORE" if "AVX-512" in isa else "AVX2"
    caps = {base: ["INT8"]}
    if {"AVX-512", "BF16"} <= {*isa}:
        caps[base] = ["INT8", "BF16"]  # there, BF16 is emulated: what does that cost?
    if "VNNI" in isa:
        caps[f"{base}_VNNI"] = ["INT8"]
    if "AMX" in isa:
        caps |= {cap: ["INT8", "BF16"] for cap in ("AVX512_CORE_BF16", "AVX512_CORE_AMX")}
    return caps


def measure_caps(caps):
    """Return the images/s by cap, format and process."""
    capped = {cap: {name: [] for name in ("FP32", *names)} for cap, names in caps.items()}
    print(
        f"Measuring {len(caps)} caps, {PROCESSES} processes each, about 2 s a process", flush=True
    )
    for turn in range(PROCESSES):
        for cap, each in capped.items():
            in_process, *_ = infer(*each, ONEDNN_MAX_CPU_ISA=cap)
            for name in each:
                each[name].append(in_process[name])
            line = ", ".join(f"{name} {np.median(one[-1]):,.0f}" for name, one in each.items())
            print(f"turn {turn + 1} of {PROCESSES}  {cap:20} {line} images/s", flush=True)
    return capped


def between_caps(capped, name, cap, reference):
    """Return a format's ratio between two caps, each process relative to its own FP32."""
    own = {}
    for which in (cap, reference):
        pairs = zip(capped[which][name], capped[which]["FP32"])
        own[which] = [np.median(each) / np.median(fp32) for each, fp32 in pairs]
    return ratios(own, reference)[cap]


def gflops(capped, cap, name):
    """Return the median speed of the network under a cap, in GFLOP/s or GOP/s."""
    return np.median(np.concatenate(capped[cap][name])) * sum(operations) / 1e9


# %%
with load.watch("section 7") as capped_others:
    capped = measure_caps(caps_for(machine.isa))
lowest, highest = next(iter(capped)), [*capped][-1]
worth = {cap: relative_to_fp32(each) for cap, each in capped.items()}
for cap in capped:
    print(f"INT8 vs FP32, {cap}: {describe(worth[cap]['INT8'])}")
earlier, later = (Measured(*each["INT8"], "×") for each in (gain, worth[highest]))
print(consistency.repeated("INT8 vs FP32", ("section 5", earlier), ("section 7", later)))
results.compare_guess(5, Measured(*worth[lowest]["INT8"], "×"))

# %% [markdown]
# A cap does not change FP32. So each process is compared with its own FP32, and per-process slowdowns cancel. The last
# cap removes nothing that INT8 needs: compared with section 5, it shows how far two runs of the same thing differ. The
# next cell measures the limit of INT8 without VNNI too, which takes about 20 s the first time.

# %%
lowest_limits = limits
if "VNNI" in machine.isa and lowest in measure.BEYOND:
    lowest_limits = measure.limits(cap=lowest, quick=QUICK)
without = speedup_limit("INT8", gflops(capped, lowest, "FP32"), lowest_limits)
if lowest_limits is limits and "VNNI" in machine.isa:
    without = ""  # no limits can be measured under this cap
cap_others = [capped_others, lowest_limits.others]
name, by_count = "INT8 without VNNI vs FP32", "1.33×, by instructions"
rows_of_7 = [(name, by_count, Measured(*worth[lowest]["INT8"], "×"), without, *cap_others)]
if "VNNI" in machine.isa:
    vnni = between_caps(capped, "INT8", f"{lowest}_VNNI", lowest)
    within = speedup_limit("INT8", gflops(capped, lowest, "INT8"))
    rows_of_7.append(
        ("INT8, VNNI vs none", "3×, by instructions", Measured(*vnni, "×"), within, *cap_others)
    )
    print(f"VNNI itself: {describe(vnni)}")
else:
    print("This CPU has no VNNI, so there is nothing to compare with.")
print(consistency.Prediction("INT8 without VNNI, by instructions", 4 / 3, rows_of_7[0][2]))
results.hand_in("7", *rows_of_7)  # for the closing table

# %% jupyter={"source_hidden": true}
bars = {f"FP32\n{lowest}": (worth[lowest]["FP32"], capped[lowest]["FP32"])}
for cap, each in capped.items():
    for name in [*each][1:]:
        emulated = " emulated" if name == "BF16" and cap == lowest else ""
        bars[f"{name}{emulated}\n{cap}"] = (worth[cap][name], each[name])
figure, axis = plt.subplots(figsize=(9, 1.2 + 0.75 * len(bars)))
colours = {"F": plots.ORANGE, "B": plots.SKY, "I": plots.BLUE}
for place, (name, (relative, each)) in enumerate(bars.items()):
    value, low, high = relative
    axis.barh(name, value, color=colours[name[0]])
    if not name.startswith("FP32"):
        ends = [[value - low], [high - value]]
        axis.errorbar(value, place, xerr=ends, color="black", capsize=5, marker="")
    label = f"   {np.median(np.concatenate(each)):,.0f} images/s"
    axis.annotate(label, (np.nanmax([value, high]), place), va="center")
axis.invert_yaxis()
axis.set_xlim(0, 1.35 * np.nanmax([[one.value, one.high] for one, _ in bars.values()]))
axis.set(
    xlabel="speed (× FP32 of the same process)",
    title="The same network, instruction sets capped",
)
plots.show(
    figure,
    alt="Speed relative to FP32 of the same process: "
    + "; ".join(f"{' '.join(name.split())} {relative} ×" for name, (relative, _) in bars.items()),
    keep=results,
    watched=[capped_others],
)

# %% [markdown]
# If INT8 without VNNI is far from 1.33 ×, what does the count of instructions leave out? INT8 moves a quarter of the
# bytes, and a CPU may execute some of the three instructions in parallel. Which layers gain most from INT8? OpenVINO
# measures the time of each layer on request (`PERF_COUNT`):


# %% jupyter={"source_hidden": true}
def layer_times(file):
    """Return each layer's kind, kernel and median ms; the others' sum; the whole's median ms."""
    model = core.read_model(file)
    model.reshape([batch, 28, 28, 1])
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": cores}
    settings["PERF_COUNT"] = True
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    request.set_input_tensor(openvino.Tensor(np.resize(x_test, (batch, 28, 28, 1))))
    ms, rest, whole = {}, [], []
    for _ in range(LAYER_RUNS):
        start = time.perf_counter()
        request.start_async()  # infer() would also copy images and results
        request.wait()
        whole.append(1000 * (time.perf_counter() - start))
        rest.append(0.0)
        for layer in request.get_profiling_info():
            took = 1000 * layer.real_time.total_seconds()
            kind = re.match("Convolution|MaxPool|FullyConnected", layer.node_type)
            if kind:
                ms.setdefault((layer.node_name, kind[0], layer.exec_type), []).append(took)
            else:
                rest[-1] += took
    each = [(kind, kernel, np.median(one)) for (_, kind, kernel), one in ms.items()]
    return each, np.median(rest), np.median(whole)


def layer_table(fp32_layers, int8_layers, counts, tops):
    """Return a row for each layer: times, gain, and the share of each format's limit in percent."""
    rows, remaining = [], iter(counts)
    for (kind, _, fp32_ms), (_, kernel, int8_ms) in zip(fp32_layers, int8_layers, strict=True):
        count = batch * next(remaining) / 1e6 if kind != "MaxPool" else np.nan  # ÷ ms: GOP/s
        shares = [100 * count / ms / top for ms, top in zip((fp32_ms, int8_ms), tops)]
        rows.append((kind, fp32_ms, int8_ms, fp32_ms / int8_ms, *shares, kernel))
    columns = ["layer", "FP32", "INT8", "gain", "FP32 share", "INT8 share", "INT8 kernel"]
    return pd.DataFrame(rows, columns=columns)


def describe_layers(table, limits_ratio):
    """Print which layers come near INT8's limit, gain more than the limits' ratio, or lose."""
    near = table["INT8 share"] >= 80
    of_time = 100 * table[near][["FP32", "INT8"]].sum() / table[["FP32", "INT8"]].sum()
    print(f"{near.sum()} of {len(table)} layers reach 80% of INT8's limit. They take")
    print(f"  {of_time.FP32:.0f}% of FP32's time and {of_time.INT8:.0f}% of INT8's.")
    for place, layer in table.iterrows():
        name = f"Layer {place}, {layer.layer}"
        shares = (
            f"{layer['FP32 share']:.0f}% of the limit in FP32, {layer['INT8 share']:.0f}% in INT8"
        )
        if layer.gain < 1:
            print(f"{name}: slower in INT8, by {layer['INT8 kernel']}")
        elif layer.gain > limits_ratio and layer.layer == "MaxPool":
            print(f"{name}: multiplies nothing, so bytes decide, not the instructions")
        elif layer.gain > limits_ratio:
            print(f"{name}: more than the limits' {limits_ratio:.1f} ×, as it reaches {shares}")
        if max(layer["FP32 share"], layer["INT8 share"]) > 100 * consistency.ABOVE:
            print(f"{name}: above a limit ({shares}),")
            print("  which was measured in a slower phase or with a slower kernel")


# %%
with load.watch("section 7"):
    (fp32_layers, fp32_rest, fp32_ms), (int8_layers, int8_rest, int8_ms) = (
        layer_times(f"work/{name}.xml") for name in ("fp32", "int8")
    )
tops = [limit_of(name)[0].value for name in ("FP32", "INT8")]
by_layer = layer_table(fp32_layers, int8_layers, operations, tops)
sums = (
    consistency.total([*by_layer.FP32, fp32_rest], fp32_ms),
    consistency.total([*by_layer.INT8, int8_rest], int8_ms),
)
print(f"FP32: {sums[0]}\nINT8: {sums[1]}")
if all(each.reliable for each in sums):
    describe_layers(by_layer, tops[1] / tops[0])
form = dict.fromkeys(("FP32", "INT8"), "{:.2f} ms") | {"gain": "{:.1f} ×"}
form |= dict.fromkeys(("FP32 share", "INT8 share"), "{:.0f}%")
by_layer.style.format(form, na_rep="")

# %% [markdown]
# Which layers gain least? Pooling multiplies nothing. A convolution with one input channel does few operations per byte
# that it moves: a likely reason, which lab 02 measures with a roofline.
#
# ### AMX: tiles
#
# AMX has eight **tiles**, registers of 16 rows of 64 bytes. One instruction, `tdpbusd`, multiplies two tiles of INT8 as
# matrices, (16 × 64) · (64 × 16): 16,384 multiply-adds in 16 cycles. In BF16, `tdpbf16ps` does 8,192. Two AVX-512 units
# do 512 in FP32 in that time: a sixteenth of BF16's, a thirty-second of INT8's. Is AMX here?


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
    why += "Intel's Xeons have had AMX since Sapphire Rapids (2023). "
    return False, why + "This CPU is older, or of another kind."


# %%
amx_here, why = find_amx(Path("/proc/cpuinfo").read_text())
print(f"AMX is {'' if amx_here else 'not '}here: {why}")
for name in ("INT8", "BF16") if "AVX512_CORE_AMX" in capped else ():
    amx = between_caps(capped, name, "AVX512_CORE_AMX", "AVX512_CORE_BF16")
    within = speedup_limit(name, gflops(capped, "AVX512_CORE_BF16", name))
    limit_text = within.describe(Measured(*amx, "×"))
    print(f"{name}, AMX vs none: {describe(amx)}; limit {limit_text}")

# %% [markdown]
# A network gains less from AMX than the tiles promise if its layers don't fill them, or if memory limits them.

# %% [markdown]
# ## 8 · Below 8 bits, and weights alone {read 5, wait 0.3, optional}
#
# In 2026, "fewer bits" mostly means language models, with **weights alone** in INT4: 32 to 128 weights share a scale of
# 16 bits. llama.cpp, OpenVINO, ONNX Runtime and PyTorch support it on CPUs.
#
# [**Weight-only quantisation**](../docs/glossary.md#weight-only-quantisation) unpacks the weights just before they are
# multiplied, in FP32 or BF16. So it saves no arithmetic, but it moves fewer bytes. A language model that writes one
# word (*token*) after the other reads *all* its weights for each token, and uses each of them once: memory limits that.
#
# | CPU, model (published) | weights | tokens/s |
# | --- | --- | --- |
# | 64 threads, Llama 2 of 7 billion weights, [llama2.c][l2] | FP32 → INT8, 26 → 6.7 GB | 4.6 → 14: 3.0 × |
# | EPYC 9554, Phi-4 of 14.7 billion weights, [llama.cpp][phi] | 8 → 4 bits, 14.5 → 8.4 GiB | 19.2 → 28.7: 1.5 × |
#
# [l2]: https://github.com/karpathy/llama2.c
# [phi]: https://ahelpme.com/?p=6685
#
# How few bits can the weights of your own network have? The next cell rounds only its weights, with a scale for each
# channel, and computes in FP32:


# %%
def with_weights_in(bits):
    """Return the trained network, its weights rounded to codes of this number of bits."""
    net = keras.models.clone_model(nets["FP32"])
    net.set_weights(nets["FP32"].get_weights())
    for layer in net.layers:
        if hasattr(layer, "kernel"):
            kernel = layer.kernel.numpy()
            largest_weight = np.abs(kernel).max(axis=tuple(range(kernel.ndim - 1)))
            scale = largest_weight / (2 ** (bits - 1) - 1)
            layer.kernel.assign(np.round(kernel / scale) * scale)
    return net


right_in_fp32 = is_right(nets["FP32"])
print(f"FP32    accuracy {100 * right_in_fp32.mean():.2f}%")
few_bits = {}
for bits in (8, 4, 3, 2):
    correct = is_right(with_weights_in(bits))
    few_bits[bits] = compare_answers(correct, right_in_fp32)
    line = "{}: {}".format(*few_bits[bits])
    print(f"{bits} bits  accuracy {100 * correct.mean():.2f}%   {line}")
enough = 32
for bits, (difference, verdict) in few_bits.items():
    if verdict == "significant" and difference.value < 0:
        break
    enough = bits
print(f"Without a significant loss: down to {enough} bits.")

# %% [markdown]
# And speed? It depends on how often each weight that was read is used. The next cell makes dense layers that are too
# large for most caches, with random weights, since their values don't matter for the speed.


# %%
def dense_requests():
    """Return an OpenVINO request for the dense layers in each format."""
    signal = vectors = ops.parameter([-1, WIDTH], np.float32)
    for _ in range(LAYERS):
        weights = rng.standard_normal((WIDTH, WIDTH), dtype="float32") / WIDTH**0.5
        signal = ops.relu(ops.matmul(signal, ops.constant(weights), False, True))
    model = openvino.Model([signal], [vectors], "dense")
    modes = {
        "INT8": dict(mode=nncf.CompressWeightsMode.INT8_SYM),
        "INT4": dict(mode=nncf.CompressWeightsMode.INT4_SYM, group_size=64, all_layers=True),
    }
    models = {"FP32": model}
    models |= {name: nncf.compress_weights(model.clone(), **mode) for name, mode in modes.items()}
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": cores}
    settings |= {"NUM_STREAMS": 1}
    settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0  # or OpenVINO would quantise the vectors too
    return {
        name: core.compile_model(each, "CPU", settings).create_infer_request()
        for name, each in models.items()
    }


def passes_per_second(requests, count):
    """Return the passes/s of each format, round by round, for this number of vectors at once."""
    inputs = rng.standard_normal((count, WIDTH), dtype="float32")
    passes = {name: [] for name in requests}
    for turn in range(-1, WEIGHT_ROUNDS):  # the first does not count: first use of memory
        for name, request in requests.items():
            start = time.perf_counter()
            for _ in range(3):
                request.infer([inputs])
            if turn >= 0:
                passes[name].append(3 / (time.perf_counter() - start))
    return passes


# %% [markdown]
# The next cell multiplies one vector, as a language model does for one reader, then 64 vectors at once. If bytes
# decide, the ratio of the bytes is the speed-up; if arithmetic decides, there is none. The cell scores both
# predictions.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** FP32 takes 7.5 × the bytes of INT4 with a scale for each 64 weights. How much faster is INT4
# with one vector? And with 64?
#
# </div>

# %%
results.guess(6, "one vector, weights in INT4 vs FP32", ..., unit="×")

# %%
BYTES = {"FP32": 4, "INT8": 1, "INT4": 0.5 + 2 / 64}  # of a weight, with its share of a scale
print(
    f"Making {LAYERS} layers of {WIDTH:,} × {WIDTH:,} in three formats: up to a minute", flush=True
)
requests = dense_requests()
with load.watch("section 8") as weight_others:
    passes = {count: passes_per_second(requests, count) for count in (1, 64)}
del requests  # and their memory
weight_gain = {count: ratios(each, "FP32") for count, each in passes.items()}
predictions = []
for count, each in passes.items():
    print(f"{count} vector{'s' * (count > 1)} at once:")
    for name, speed in each.items():
        gigabytes = np.median(speed) * LAYERS * WIDTH**2 * BYTES[name] / 1e9
        print(
            f"{name}: {1000 / np.median(speed):7.2f} ms, {gigabytes:6.1f} GB/s of weights", end=""
        )
        share = 100 * gigabytes / limits.bandwidth
        print(f", {share:.0f}% of the memory's bandwidth")
        if name != "FP32":
            measured = Measured(*weight_gain[count][name], "×")
            predicted = 4 / BYTES[name] if count == 1 else 1.0
            label = f"  {name} vs FP32, by {'bytes' if count == 1 else 'arithmetic'}"
            predictions.append(consistency.Prediction(label, predicted, measured))
            print(predictions[-1])
print(f"\n{consistency.score(predictions)}")
results.compare_guess(6, Measured(*weight_gain[1]["INT4"], "×"))

# %% jupyter={"source_hidden": true}
fp32_speed = {count: np.median(each["FP32"]) for count, each in passes.items()}
rows_of_8 = []
for count, name in ((1, "INT8"), (1, "INT4"), (64, "INT4")):
    label = f"{count} vector{'s' * (count > 1)}, weights in {name} vs FP32"
    if count == 1:  # the most is to read the weights at the memory's bandwidth
        read = fp32_speed[1] * LAYERS * WIDTH**2 * BYTES[name] / 1e9
        memory = limits.measured("memory")
        scaled = Measured(memory.value / read, memory.low / read, memory.high / read, "×")
        top = Limit(scaled, "some of the weights stay in cache")
    else:
        top = speedup_limit("FP32", fp32_speed[64] * 2 * 64 * LAYERS * WIDTH**2 / 1e9)
    published = "3.0×, Llama 2 7B" if (count, name) == (1, "INT8") else ""
    measured = Measured(*weight_gain[count][name], "×")
    rows_of_8.append((label, published, measured, top, weight_others, limits.others))
rows_of_8.append(("accuracy, weights in 4 bits vs FP32", "", few_bits[4][0], ""))
results.hand_in("8", *rows_of_8)  # for the closing table

# %% [markdown]
# With one vector, each weight that is read is used once. The nearer the GB/s are to the memory's bandwidth, the more
# memory is the limit. Where INT4's GB/s are far below it, unpacking the codes is a likely limit. With 64 vectors, each
# weight is used 64 times. If the arithmetic then takes longer than reading, all three take about the same time, because
# they do the same arithmetic.
#
# So the two kinds of quantisation serve different purposes. Weights *and* activations in INT8, as in section 5, help
# layers that are limited by the cores. Weights alone help layers that are limited by memory.

# %% [markdown]
# ## 9 · Many requests at once {read 3, wait 0.35, optional}
#
# So far, one batch came after the other, and all cores worked on it. A server gets requests from many clients. It can
# still give all cores to one request at a time. Or it serves several requests concurrently, each with a share of the
# cores: this is [**multi-stream inference**](../docs/glossary.md#multi-stream-inference). Then the cores wait for each
# other less often, but each request takes longer. So there are two metrics: the
# [**throughput**](../docs/glossary.md#throughput) in images/s, and the [**latency**](../docs/glossary.md#latency) of a
# request. Its p50 is the median; 99 of 100 requests stay below its p99, which is what users notice.
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
# own, in which the cases alternate.


# %% jupyter={"source_hidden": true}
def compare_streams(rounds):
    """Print each case's throughput and latency vs the first's; return the throughput's ratios."""
    first, *rest = rounds[0]
    rate, latency = (
        ratios({case: [each[case][what] for each in rounds] for case in rounds[0]}, first)
        for what in ("images/s", "p99 ms")
    )
    words = {"faster": "longer", "slower": "shorter"}
    for case in rest:
        streams, clients = case.split(":")
        verdict = words.get(latency[case].verdict, latency[case].verdict)
        print(f"{streams} stream{'s' * (streams != '1')}, {clients} clients vs 1 of each:")
        # Three digits: an end of 1.003 must not look like 1.
        print(f"  throughput  {Measured(*rate[case], '×', digits=3)}: {rate[case].verdict}")
        print(f"  p99 latency {Measured(*latency[case], '×', digits=3)}: {verdict}")
    return rate


def stream_rows(rounds):
    """Return a row for each case: the median of each metric, and its range over the rounds."""
    rows = []
    for case in rounds[0]:
        row = [case]
        for what, digits in (("images/s", 0), ("p50 ms", 2), ("p99 ms", 2)):
            each = [one[case][what] for one in rounds]
            least, most = min(each), max(each)
            row.append(f"{np.median(each):,.{digits}f} ({least:,.{digits}f} to {most:,.{digits}f})")
        rows.append(row)
    return rows


# %%
counts = sorted({cores, *(2**k for k in range(cores.bit_length()))})
cases = [*(f"{n}:{n}" for n in counts), f"{cores}:{2 * cores}"]
about = 2 + len(cases) * (STREAM_SECONDS + 0.3)
print(f"{STREAM_ROUNDS} rounds of {len(cases)} cases, about {about:.0f} s a round", flush=True)
served = []
with load.watch("section 9") as stream_others:
    for _ in range(STREAM_ROUNDS):
        run_ranks(1, "work/streams.py", "work/int8.xml", STREAM_SECONDS, *cases, show=False)
        served.append(json.loads((work / "streams.json").read_text()))
stream_gain = compare_streams(served)
head = ("streams:clients", "images/s", "p50 (ms)", "p99 (ms)")
note = f"Medians, and in brackets the range of {STREAM_ROUNDS} rounds."
display(markdown.table(head, stream_rows(served), [note]))
most_streams = f"{cores}:{cores}"
results.hand_in(
    "9",  # for the closing table
    (
        f"INT8 throughput, streams:clients {most_streams} vs 1:1",
        "",
        Measured(*stream_gain[most_streams], "×"),
        "",
        stream_others,
    ),
)

# %% [markdown]
# Clients in excess of the streams wait in a queue. A queue can fill the gaps between two requests, but each request
# also waits for its turn. OpenVINO chooses the number of streams itself when you state what you want:
# `PERFORMANCE_HINT` is `LATENCY` or `THROUGHPUT`. Several processes on a machine, each with its own cores, are the same
# idea one level up. In training, these are [**ranks**](../docs/glossary.md#rank): see lab 07.

# %% [markdown]
# ## Questions {read 5}
#
# Answer each in a sentence or two, with what you saw above. Skip those that name an optional section that you left out.
# The instructor's notebook has answers.
#
# 1. Why is INT8 used for inference and not for training?
# 2. What is different about INT8: what replaces the exponent?
# 3. Why do sums of 8-bit products need 32 bits, and why do sums in FP32 seem not to?
# 4. What else does INT8 save, besides computing time?
# 5. Why must the calibration images look like the images that the network meets later? What do you see when they don't?
# 6. FP16 and BF16 are the same size. Which of them needs loss scaling, and why? *(section 2)*
# 7. What does VNNI change? Where do 1.33 and 4 come from, and what do they leave out? *(section 7)*
# 8. You serve a language model to one user, and later to 100 at once. When are weights in 4 bits worth most?
#    *(section 8)*
# 9. When do you choose many streams, when one? *(section 9)*

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions.
#
# 1. In inference, the ranges are known and a little noise is harmless. In training, gradients spread over many powers
#    of ten, and updates are smaller than one 8-bit step.
# 2. The scale: one for a whole tensor or channel, instead of an exponent for each number. So the absolute error is
#    constant, not the relative one.
# 3. 255 × 127 is 32,385: 16 bits hold one such product, 32 bits hold 66,311 of them. FP32 loses the last digits
#    instead.
# 4. Three quarters of the memory and of its traffic, and energy.
# 5. They decide on the ranges. With dusk only, bright digits are clipped; with pixels up to 255, there are too few
#    codes.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions on optional sections.
#
# 6. FP16. Its range ends at 2⁻²⁴ below and at 65,504 above. BF16 has FP32's exponent, and fewer digits instead.
# 7. One instruction replaces three, for 64 products. 64 / (3 × 16) is 1.33, 64 / 16 is 4. That leaves out memory,
#    layers that are not compute-bound, and conversions.
# 8. For one user: each weight that is read serves one multiplication, so fewer bytes help. In a batch of 100, it serves
#    100.
# 9. Many when only throughput counts, as in a job over an archive; one when a user waits for each answer.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** The two calculations to do at home.
#
# 8 GPUs: 30 / (8 × 5) is 75%. By ten epochs in 30 minutes it would be 30 / (8 × 3), or 125%, which can't be. A single
# epoch probably includes starting up and the first reading of the data, or the figures come from different runs.
#
# The error bound of a product: each term can be off by `|a|·scale_b/2 + |b|·scale_a/2 + scale_a·scale_b/4`; sum that
# over *k*. The bound allows for all errors having the same sign. Independent errors partly cancel, so their sum grows
# like √*k*.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** What to look for, and timing.
#
# **What to look for.** The limits of section 3 decide: with AMX they are far apart, without BF16 or VNNI close
# together. A speed-up's limit is the format's limit divided by what FP32 reached on the same network. A layer that
# gains more than the limits' ratio was further from its limit in FP32 than in INT8. In section 6, compare the order of
# the four calibrations, not the points.
#
# **Timing.** Sections 1 to 6 take {minutes 1–6}. Short of time? Skip exercise 1: the lab continues with its solution.
# Don't skip exercise 4 or section 6.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** What goes wrong.
#
# NumPy's `uint8 @ int8` is int16 and overflows without a warning: students are meant to find that.
# An FP16 array divided by a Python number stays FP16, so small gradients vanish again in exercise 2. On a CPU without
# AVX-512, BF16 training is slow. On one without VNNI, section 7 has one bar fewer, and INT8 gains less. Section 8 needs
# about 1.5 GB of memory.
#
# </div>

# %% [markdown]
# ## Remember
#
# - FP16 has digits, BF16 has range, and INT8 has neither, only a scale.
# - Loss scaling moves gradients to where FP16 is precise. BF16 doesn't need it.
# - 8-bit products are summed in 32 bits. VNNI does this in one instruction.
# - State the precision of your baseline, and check what really ran.
# - Measure the limit: AMX, or a CPU without VNNI, changes the 2 and 4 × of register width.
# - Calibrate with images like those that the network will meet.
# - Weights alone in 4 bits save bytes, not arithmetic: they help where memory is the limit.
#
# The closing table shows what was published, what you measured, and the most that the machine could do:

# %% jupyter={"source_hidden": true}
kb = f"{kilobytes['fp32']:,.0f} → {kilobytes['int8']:,.0f} kB"
BY_COUNT = {"BF16": "2×, by instructions", "INT8": "4× with VNNI, by instructions"}
results.table(
    "Fewer bits",
    [
        *(
            (
                f"{name} vs FP32, inference",
                BY_COUNT[name],
                Measured(*gain[name], "×"),
                limit[name],
                *(infer_others, *limit_others),
            )
            for name in ("BF16", "INT8")
        ),
        (
            "BF16 vs FP32, training",
            BY_COUNT["BF16"],
            Measured(*training_gain, "×"),
            speedup_limit("BF16", training_gflops["FP32"]),
            *(training_others, *limit_others),
        ),
        ("INT8's accuracy vs FP32's, by default", "", lost["all lights, mean"][0], ""),
        ("the same, range of the brightest", "", lost["all lights, largest"][0], ""),
        ("weights, FP32 → INT8", "¼", kb, ""),
        *results.handed_in(
            "7",
            ("INT8 without VNNI vs FP32", "1.33×, by instructions"),
            ("INT8, VNNI vs none", "3×, by instructions"),
        ),
        *results.handed_in(
            "8",
            ("1 vector, weights in INT8 vs FP32", "3.0×, Llama 2 7B"),
            ("1 vector, weights in INT4 vs FP32", ""),
            ("64 vectors, weights in INT4 vs FP32", ""),
            ("accuracy, weights in 4 bits vs FP32", ""),
        ),
        *results.handed_in("9", (f"INT8 throughput, streams:clients {cores}:{cores} vs 1:1", "")),
    ],
)

# %% [markdown]
# Your steps from the default to the fastest, with all labs that you have done so far:

# %%
ladder.show(results)

# %% [markdown]
# Published: VNNI: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (counts of
# instructions, not measured). V100: a walk-through for AWS' P3 instances (2018). Loss scaling: Micikevicius et al.,
# *Mixed Precision Training*, arXiv 1710.03740. AMX cycles: Intel's optimization reference manual. Weights alone:
# Frantar et al., *GPTQ*, arXiv 2210.17323. Zen 6: `-march=znver6` in GCC 16 and in
# [LLVM](https://github.com/llvm/llvm-project/pull/179150).
#
# Next: in [lab 05](05_tuning.ipynb), a program searches for the best settings.
