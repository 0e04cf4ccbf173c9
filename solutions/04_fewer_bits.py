# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 04 · Fewer bits
#
# **You will learn** what 32, 16 and 8 bits can hold, how to save a gradient from vanishing, how to train in bfloat16,
# how to multiply matrices of 8-bit numbers with a bound on the error, and how to make your own trained network several
# times as fast by quantising it. You will also see what that costs, and why calibration matters.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which capped instruction sets one by one on a network that used no 16-bit or 8-bit numbers;
# lab 03, which trains ResNet-50 in bfloat16; and lab 08, where 16-bit gradients travel between machines.
#
# TensorFlow and OpenVINO print notices in red when they start. They are not errors.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
import json
import logging
import os
import re
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow starts; without it, older CPUs would get Eigen

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

from labkit.data import load_digits
from labkit.display import markdown, plots
from labkit.display.measured import Measured
from labkit.exercises import open_lab
from labkit.mpi import run_ranks
from labkit.roofline import measure
from labkit.system import load
from labkit.system.statistics import ratios

tf.get_logger().setLevel("ERROR")
nncf.set_log_level(logging.ERROR)
rich.reconfigure(quiet=True, force_jupyter=False)  # no progress bars from NNCF, whose steps take a second
check, results, machine, work = open_lab("04", globals())
cores = machine.usable_cores
for name, what in (("BF16", "bfloat16"), ("VNNI", "sums of 8-bit products")):
    print(
        f"{what}: {'in hardware' if name in machine.isa else 'no instruction here; libraries emulate it or do without'}"
    )

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
n_train, n_held_out, n_test = (640, 50, 500) if QUICK else (8_000, 500, 4_000)  # digits
SMALL_NET_STEPS = 40 if QUICK else 300  # section 2
EPOCHS = 2 if QUICK else 5  # section 3
FP16_STEPS = 1 if QUICK else 4
ROUNDS, RUNS = (3, 1) if QUICK else (20, 10)  # of inference, and in each round: section 5
CAP_PROCESSES, CAP_ROUNDS = (1, 2) if QUICK else (3, 5)  # for each instruction set, and in each process: section 6
LAYER_RUNS = 3 if QUICK else 100
STREAM_ROUNDS, STREAM_SECONDS = (2, 0.05) if QUICK else (6, 0.8)  # and of each case in a round: section 9

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
# Two exponents are special. **All bits 0**: the leading 1 becomes a 0, and the power of two is that of exponent 1.
# These *subnormal* numbers fill the gap down to zero, and zero is one of them. **All bits 1**: infinity if the fraction
# is 0, otherwise NaN, *not a number*.
#
# | format | sign | exponent | fraction |
# | --- | --- | --- | --- |
# | [**FP32**](../docs/glossary.md#fp32), float32, single precision | 1 | 8 | 23 |
# | [**FP16**](../docs/glossary.md#fp16), float16, half precision | 1 | 5 | 10 |
# | BF16, [**bfloat16**](../docs/glossary.md#bfloat16) | 1 | 8 | 7 |
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Both FP16 and BF16 have 16 bits. Which of them can hold 70,000? And which of them can hold 257?
#
# </div>
#
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
# Your function now computes the limits of each format. The table also has [**INT8**](../docs/glossary.md#int8): whole
# numbers, all at the same distance from the next.

# %% tags=["nbval-check-output"]
FORMATS = {"FP32": (8, 23), "BF16": (8, 7), "FP16": (5, 10)}
rows = []
for name, (e, f) in FORMATS.items():
    infinity, one = (2**e - 1) << f, (2 ** (e - 1) - 1) << f
    largest, normal, smallest, next_to_one = (float(decode(x, e, f)) for x in (infinity - 1, 1 << f, 1, one + 1))
    rows.append((name, f"±{largest:.5g}", f"{normal:.3g}", f"{smallest:.3g}", f"{next_to_one - 1:.3g}"))
rows.append(("INT8", "−128 to 127", "1", "1", "1"))
display(markdown.table(("format", "range", "smallest normal", "smallest above 0", "step at 1"), rows))

# %% [markdown]
# What happens to a number in each format? `tf.bfloat16` has its own NumPy type; the others are NumPy's. INT8 needs a
# **scale** to represent anything but whole numbers. Here code 127 stands for 1.0, so its steps are 1/127 wide.

# %% tags=["nbval-check-output"]
TYPES = {"FP32": np.dtype("float32"), "BF16": np.dtype(tf.bfloat16.as_numpy_dtype), "FP16": np.dtype("float16")}
print(f"{'':>10}" + "".join(f"{name:>18}" for name in (*TYPES, "INT8, to 1.0")))
for value in (1 / 3, 257.0, 2049.0, 70_000.0, 1e-6, 1e-8):
    with np.errstate(over="ignore"):
        held = [float(np.array(value).astype(kind)) for kind in TYPES.values()]
    held.append(float(np.clip(np.round(value * 127), -128, 127)) / 127)
    print(f"{value:10.6g}" + "".join(f"{number:18.9g}" for number in held))

# %% [markdown]
# BF16 is the upper half of an FP32: the same range, but only two or three decimal digits. FP16 has three or four
# digits, ends at 65,504, and rounds 0.00000001 to zero. That is called [**underflow**](../docs/glossary.md#underflow).
# INT8 with this scale ends at 1, and rounds anything below 1/254 to zero.

# %% jupyter={"source_hidden": true}
exponents = np.arange(-30, 20)
figure, axis = plt.subplots()
for (name, (e, f)), style in zip(FORMATS.items(), ("-", "--", "-.")):
    lowest, highest = 2 - 2 ** (e - 1), 2 ** (e - 1) - 1
    held = exponents[(exponents >= lowest - f) & (exponents <= highest)]
    axis.plot(2.0**held, 2.0 ** (np.maximum(held, lowest) - f), style, label=name, marker="")
axis.plot([1 / 127, 1], [1 / 127, 1 / 127], ":", label="INT8, up to 1.0", marker="", linewidth=5, color=plots.PURPLE)
axis.set(
    xscale="log",
    yscale="log",
    xlabel="size of the number",
    ylabel="distance to the next one",
    title="How fine are the numbers?",
)
axis.legend()
plots.show(
    figure,
    alt="Distance between neighbouring numbers against their size, both logarithmic. FP32, BF16 and FP16 are rising "
    "lines, BF16 the coarsest; FP16 ends at 65,504 and becomes level below 0.00006. INT8 is a short level "
    "line at 1/127.",
)

# %% [markdown]
# A rising line means a constant *relative* error: a floating-point number is as exact when it is small as when it is
# large. A level line means a constant *absolute* error: the smaller the number, the fewer digits remain. FP16 becomes
# level below 0.00006, and INT8 is level from end to end. Keep this picture in mind: each of these two causes a problem,
# FP16 in section 2 and INT8 in section 7.
#
# ## 2 · A gradient that vanishes
#
# [**Gradients**](../docs/glossary.md#gradient) are small. The [**backward pass**](../docs/glossary.md#backward-pass)
# multiplies small numbers: an error, divided by the batch size, times the weight of this loss among other losses. The
# next cell computes gradients by hand for a small network of two layers. It rounds after each operation, as a GPU with
# FP16 does: the GPU multiplies in 16 bits, sums in 32, and stores in 16.

# %%
x = digits.x_train[:512].reshape(512, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(512, 196)  # 14 × 14 are enough here
y = np.eye(10, dtype="float32")[digits.y_train[:512]]
WEIGHT = 1e-4  # of this loss in a sum of several


def rounded(array, kind):
    return array.astype(kind).astype("float32")


def backward(weights, kind, scale):
    """Return the mean loss, and in `kind` the gradients of scale × WEIGHT × loss: hidden layer's and weights'."""
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is expected: it shows that a scale is too large
        w1, w2 = (rounded(w, kind) for w in weights)
        hidden = rounded(np.maximum(x @ w1, 0), kind)
        logits = rounded(hidden @ w2, kind)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(np.maximum((p * y).sum(axis=1), 1e-9)).mean()
        error = rounded(scale * WEIGHT * (p - y) / len(x), kind)
        by_hidden = rounded(error @ w2.T, kind) * (hidden > 0)
        return loss, by_hidden, [(x.T @ by_hidden).astype(kind), (hidden.T @ error).astype(kind)]


def fresh_weights():
    rng = np.random.default_rng(0)
    return [rng.normal(0, (2 / n) ** 0.5, (n, m)).astype("float32") for n, m in ((196, 64), (64, 10))]


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
axis.hist(sizes + np.log2(SCALE), bins, color=plots.BLUE, alpha=0.8, hatch="//", label=f"loss × {SCALE:,.0f}")
axis.axvline(-25, color="black", linestyle="--")  # half of FP16's smallest number: anything below is rounded to 0
axis.axvline(-14, color="black", linestyle=":")
axis.annotate("0 in FP16 ← ", (-25, 0.92), xycoords=("data", "axes fraction"), ha="right")
axis.annotate(" → full precision", (-14, 0.92), xycoords=("data", "axes fraction"))
axis.margins(y=0.2)
axis.set(xlabel="log2 of the gradient's size", ylabel="gradients", title="Gradients, and what FP16 can hold")
axis.set_xlim(-42, -5)
axis.legend(loc="center left")
plots.show(
    figure,
    alt="Histogram of the gradients with respect to the hidden layer. As they are, "
    f"{100 * (sizes < -25).mean():.0f}% lie below 2 to the power of −25, where FP16 rounds to 0. "
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
# Which constant? If it is too small, gradients vanish. If it is too large, one of them overflows to infinity. A program
# can detect that, so it can search for the largest constant that works: **dynamic loss scaling**.
#
# - If any gradient is not finite: skip this step, and halve the scale.
# - After a number of steps in a row without that (*calm* steps, as many as `patience`): double the scale, and start
#   counting again.
#
# ### Exercise 2 · Dynamic loss scaling
#
# Write `settle(gradients, scale, calm, patience)`. `gradients` is a list of FP16 arrays, the gradients of the loss
# times `scale`; `calm` counts the calm steps before this one. Return three things: the true gradients, as a list of
# FP32 arrays, or None when the step must be skipped; the next scale; the new count of calm steps.


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
    """Return the loss and the scale of each step."""
    weights, calm, losses, scales = fresh_weights(), 0, [], []
    for _ in range(steps):
        loss, _, gradients = backward(weights, TYPES[kind], scale)
        losses.append(loss)
        scales.append(scale)
        if dynamic:
            true, scale, calm = settle(gradients, scale, calm, patience=20)
        else:
            true = [g.astype("float32") / scale for g in gradients]
        if true is not None:
            weights = [w - 0.25 / WEIGHT * np.asarray(g) for w, g in zip(weights, true)]
    return losses, scales


ways = {
    "FP32": train("FP32"),
    "BF16": train("BF16"),
    "FP16": train("FP16"),
    "FP16, dynamic scale": train("FP16", 2.0**40, dynamic=True),
}

# %% jupyter={"source_hidden": true}
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5))
styles = dict(zip(ways, ("-", "--", "-.", ":")))
for name, (losses, _) in ways.items():
    left.plot(losses, styles[name], label=name, marker="", linewidth=5 if styles[name] == ":" else 2.5)
left.set(xlabel="step", ylabel="loss", title="the loss", ylim=(0, 5))
figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
right.plot(ways["FP16, dynamic scale"][1], color=plots.VERMILION, marker="")
right.set(xlabel="step", ylabel="scale", title="the dynamic scale")
right.set_yscale("log", base=2)
figure.suptitle("One network, trained in four number formats")
plots.show(
    figure,
    alt="Loss at the end: "
    + ", ".join(f"{name} {losses[-1]:.3f}" for name, (losses, _) in ways.items())
    + f". The dynamic scale begins at 2 to the power of 40 and ends at {ways['FP16, dynamic scale'][1][-1]:,.0f}.",
    keep=results,
)

# %% [markdown]
# FP16 alone does not get far. Most of the first layer's gradients are lost, and the rest come in a few coarse steps.
# With the scale it learns like FP32, and BF16 needs no scale at all.
#
# If the scale starts absurdly high, it comes down within a few skipped steps. From then on, it sometimes tries twice
# the value, and goes back. Keras does the same by itself under its policy `mixed_float16`, in
# `keras.optimizers.LossScaleOptimizer`. Lab 08 trains with a *static* scale, one constant for all steps.
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
    """Return the images, each at its own brightness, and those: as many from 1/2 to 1 as from 1/64 to 1/32."""
    light = DIMMEST ** rng.random(len(images))
    return (images * light[:, None, None, None]).astype("float32"), light


x_all, light_all = in_all_lights(digits.x_train)
x_train, y_train = x_all[:n_train], digits.y_train[:n_train]
held_out, light_held_out = x_all[n_train:], light_all[n_train:]  # for section 5: not used in training or testing
x_test, light_test = in_all_lights(digits.x_test)
y_test = digits.y_test

# %% jupyter={"source_hidden": true}
shown = np.argsort(light_test)[:: -max(1, n_test // 7)][:7]
figure, axes = plt.subplots(1, len(shown), figsize=(11, 2.2))
for axis, index in zip(axes, shown):
    axis.imshow(x_test[index, ..., 0], cmap="gray", vmin=0, vmax=1)
    axis.set_title("1" if light_test[index] > 0.67 else f"1/{1 / light_test[index]:.0f}", fontsize=12)
    axis.axis("off")
figure.suptitle("The same task at every brightness")
plots.show(
    figure, alt="Seven digits, from full light on the left to 1/64 of it on the right, where you can see nothing."
)

# %% [markdown]
# The network is wider and deeper than that of lab 02, so that its convolutions have enough to do. In Keras, a
# **policy** chooses the number format. Under `mixed_bfloat16`, layers compute in BF16 and keep their weights in FP32:
# that is [**mixed precision**](../docs/glossary.md#mixed-precision). The last layer stays in FP32, as is common,
# because the loss takes exponentials of its output. Training both networks takes about 40 s.


# %%
def digit_net(policy):
    keras.utils.set_random_seed(0)
    conv = partial(keras.layers.Conv2D, kernel_size=3, padding="same", activation="relu", dtype=policy)
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


def is_right(model):
    """Return which test digits a network gets right."""
    logits = [model(x_test[first : first + 500], training=False).numpy() for first in range(0, n_test, 500)]
    return np.concatenate(logits).argmax(axis=1) == y_test


def compare_answers(correct, reference):
    """Return the difference of two accuracies with its 95% interval, and whether it is one.

    Both answered the same digits, so only those count that one of the two alone got right (Agresti and Min, 2005).
    """
    gained, lost, n = (correct & ~reference).sum() + 0.5, (~correct & reference).sum() + 0.5, len(correct) + 2
    half = 1.96 * np.sqrt(gained + lost - (gained - lost) ** 2 / n)
    low, high = (100 * (gained - lost + side) / n for side in (-half, half))
    points = 100 * (correct.mean() - reference.mean()) + 0.0  # + 0.0: no minus before a zero
    verdict = "more accurate" if low > 0 else "less accurate" if high < 0 else "no difference beyond chance"
    return Measured(points, low, high, "points", signed=True), verdict


# Without AVX-512, oneDNN leaves BF16 to Eigen, which takes many times as long: then a few digits are enough to time it.
trained_on = {"FP32": n_train, "BF16": n_train if "AVX-512" in machine.isa else max(64, n_train // 20)}
POLICIES = {"FP32": "float32", "BF16": "mixed_bfloat16"}
nets = {name: digit_net(policy) for name, policy in POLICIES.items()}
steps = {name: training_step(net) for name, net in nets.items()}
speeds, right = {name: [] for name in nets}, {}
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
    print("accuracy: {}: {}".format(*compare_answers(right["BF16"], right["FP32"])))
else:
    print("BF16 saw only a few of the digits, as it takes so long here: compare its speed, not its accuracy.")

# %% [markdown]
# The brackets hold 95% [**confidence intervals**](../docs/glossary.md#confidence-interval). That of the accuracy says
# whether these two *networks* differ, on digits like these. It says less about the two *formats*: training is partly
# luck, and another seed gives two other networks. To compare formats, train several networks in each.
#
# What is the most that fewer bits can gain? On paper, an AVX-512 instruction multiplies 16 FP32 numbers, 32 BF16
# numbers or 64 INT8 numbers: so 2 and 4 times. But [**AMX**](../docs/glossary.md#amx) does many times as much, and a
# CPU without the instructions does less. So measure it: the next cell multiplies matrices in each format, with each
# library that is here, and the fastest is the limit in the rest of the lab. It is the same measurement as in lab 03 and
# in `./lab roofline`. The first time takes about 20 s, then it is kept.


# %%
def explain(times, isa):
    """Return what the measured ratio of BF16 to FP32 in training means on a CPU with these instruction sets."""
    if not {"BF16", "AMX"} & {*isa}:
        return (
            "This CPU has no BF16 instructions: each operation converts to FP32 and back. That saves memory, not time."
        )
    if times.verdict == "faster":
        return "This CPU multiplies BF16 in hardware, more numbers in one instruction, and moves half the bytes."
    if times.verdict == "slower":
        return (
            "This CPU has BF16 instructions, but here the conversions cost more than they gain: look at small layers."
        )
    return f"This CPU has BF16 instructions. Whether they gain anything here is not known: {times.verdict}."


limits = None if QUICK else measure.limits()
limit = {"FP32": 1.0, "BF16": 2.0, "INT8": 4.0}  # on paper, for small runs
if limits:
    peaks = {name: limits.peak(kind) for name, kind in zip(limit, ("float32", "bfloat16", "int8"))}
    limit = {name: peak / peaks["FP32"] for name, peak in peaks.items()}
    print(f"matrix products: FP32 {peaks['FP32']:,.0f} GFLOP/s by {limits.products['float32'][0].library}")
    for name, kind in (("BF16", "bfloat16"), ("INT8", "int8")):
        print(f"  {name} {limit[name]:4.1f} times that{', without instructions for it' * limits.emulated(kind)}")
    if limits.others.busy:
        print(limits.others)
limit_others = [limits.others] if limits else []
print(explain(training_times, machine.isa))

# %% [markdown]
# Expect less of training than of a matrix product: the optimizer, the loss and the weights stay in FP32, and some
# layers are too small to gain.
#
# And FP16? Its [**instruction set**](../docs/glossary.md#instruction-set) is AVX512-FP16. Intel's Xeons have it since
# Sapphire Rapids (2023); most laptops and AMD's CPUs up to Zen 5 don't. Without it, oneDNN refuses, and TensorFlow's
# own Eigen converts to FP32 and back in each operation. A line in red then says so: `DT_HALF` is TensorFlow's name for
# FP16, and the "AVX-512" that it misses is AVX512-FP16. A few steps show the speed:

# %%
fp16_step, order = training_step(digit_net("mixed_float16")), np.arange(64 * FP16_STEPS)
with load.watch("section 3"):
    images_per_second(fp16_step, order[:64])
    fp16_speed = images_per_second(fp16_step, order)
print(f"mixed_float16: {fp16_speed:,.0f} images/s, against {np.median(speeds['FP32']):,.0f} of FP32")

# %% [markdown]
# FP16 is made for GPUs. Section 8 has figures for them.
#
# ## 4 · Eight bits by hand
#
# Networks are trained in FP32, BF16 or FP16. For inference, even 8 bits can be enough. What do you gain?
#
# - More numbers fit into a register, so one instruction multiplies more of them, with less energy for each.
# - A number takes a quarter of the memory, of the memory traffic, and of the caches.
# - A trained network's numbers need little precision, because the network has learned to tolerate noise.
#
# The difference is the range. There are 256 codes, so you have to choose which numbers they represent: this is
# [**quantisation**](../docs/glossary.md#quantisation). The **scale** is the distance between two neighbours, and the
# **zero point** is the code of 0.0:
#
# $$x \approx scale \cdot (q - zero)$$
#
# Zero gets a code of its own, because it must be exact: padding and Relu produce many zeros.
#
# ### Exercise 3 · Scale and zero point
#
# Write `scale_and_zero(low, high)` for codes from 0 to 255. The codes must reach from `low` to `high` in the finest
# steps. If 0 is not between the two, widen the range so that it contains 0. Return both as a tuple. `zero` is a whole
# number, the one nearest to where 0.0 would be.


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
# With this, numbers become codes, and codes become numbers again. The weights get codes from −127 to 127, with 0 as the
# code of 0.0, because the CPU's instruction multiplies unsigned by signed numbers.


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
print(f"one product:     {255 * 127:12,}")
print(f"the sum of {a.shape[1]}:    {3 * 255 * 127:12,}   numpy, uint8 @ int8: {(a @ b).item():,} as {(a @ b).dtype}")
print(f"largest int16:   {2**15 - 1:12,}   reached after {2**15 // (255 * 127)} product")
print(f"largest int32:   {2**31 - 1:12,}   reached after {2**31 // (255 * 127):,} products")

# %% [markdown]
# NumPy gave no warning. So sums need 32 bits, and those are enough for any layer. Floating-point sums have no such
# problem: they only lose digits.
#
# ### Exercise 4 · A product of 8-bit matrices
#
# `a` holds codes of type uint8 with `zero_a` and `scale_a`. `b` holds codes of type int8 with `scale_b`, which is one
# number or one for each column. Write `int8_product(a, b, zero_a, scale_a, scale_b)`. Return two things: the **sums**
# of the products of the codes, as int32, which is all that the fast instruction computes; and the **product** of the
# true matrices, computed from these sums. The sums ignore the zero point: to correct for it, expand $(a - zero)\,b$.


# %%
def int8_product(a, b, zero_a, scale_a, scale_b):
    """Return the 32-bit sums of the codes' products, and the product of the matrices that the codes stand for."""
    ### BEGIN SOLUTION
    sums = a.astype("int32") @ b.astype("int32")
    columns = b.astype("int32").sum(axis=0)
    return sums, scale_a * scale_b * (sums - zero_a * columns)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
int8_product = check(4, int8_product)

# %% [markdown]
# How far is it from the product in FP32? There is a bound. Rounding a number to the nearest code moves it by half a
# step at most.
#
# ### Exercise 5 · Bound the error
#
# Write `error_bound(a, b, scale_a, scale_b)` for the *true* matrices `a` (m, k) and `b` (k, n). It returns an array (m,
# n) that the error of the product can't exceed. Find the largest possible error of a single term, from its two numbers
# and half of each step. The bound is the sum of this over the k terms. `scale_b` is one number, or one for each column.


# %%
def error_bound(a, b, scale_a, scale_b):
    """Return the largest error of each element of a @ b when each number is rounded to the nearest step."""
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
axis.set(xscale="log", yscale="log", xlabel="terms in each sum", ylabel="error", title="A product of 8-bit matrices")
axis.set_xscale("log", base=2)
axis.legend()
plots.show(
    figure,
    alt=f"Error against the number of terms. With {ks[0]} terms the largest error is {errors[0]:.2f} and the bound "
    f"{bounds[0]:.2f}; with {ks[-1]:,}, {errors[-1]:.1f} and {bounds[-1]:.0f}. The bound rises more steeply.",
)

# %% [markdown]
# The bound grows like *k*, the error like the square root of *k*: some numbers are rounded up, others down, and these
# errors partly cancel. The sum itself also grows like the square root of *k*. So the *relative* error stays the same,
# however wide the layer is. That is why 8 bits work at all.
#
# There is one more choice: one scale for all weights of a layer, or one for each output channel? The second costs
# nothing, because the scale comes after the sums. The next cell compares both on the weights of your own network:

# %%
layers = {layer.name: layer.kernel.numpy() for layer in nets["FP32"].layers if hasattr(layer, "kernel")}
print(f"{'error of the weights':28}{'per tensor':>12}{'per channel':>13}")
for name, kernel in layers.items():
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
# Nobody writes this by hand for a whole network. **OpenVINO** runs trained networks on CPUs, with oneDNN underneath.
# **NNCF** converts them to 8-bit codes *after training* (post-training quantisation). It shows the network a few
# hundred images, records the range of each activation, and chooses scales and zero points from that. This is
# [**calibration**](../docs/glossary.md#calibration). The images must look like those that the network will meet later.
# Here they are held-out digits, used neither for training nor for testing.

# %%
nets["FP32"].export(work / "digit_net", verbose=False)
fp32 = openvino.convert_model(work / "digit_net")


def quantise(images, **settings):
    """Return the network in INT8, calibrated on these images."""
    return nncf.quantize(fp32, nncf.Dataset(list(images[:, None])), subset_size=len(images), **settings)


int8 = quantise(held_out)
for name, model in (("fp32", fp32), ("int8", int8)):
    openvino.save_model(model, work / f"{name}.xml", compress_to_fp16=False)
kilobytes = {name: (work / f"{name}.bin").stat().st_size / 1000 for name in ("fp32", "int8")}
smaller = kilobytes["fp32"] / kilobytes["int8"]
print(f"weights: FP32 {kilobytes['fp32']:,.0f} kB, INT8 {kilobytes['int8']:,.0f} kB: {smaller:.1f} times smaller")

# %% [markdown]
# `INFERENCE_PRECISION_HINT` chooses the format of everything that is not quantised. Always set it: where the CPU has
# BF16, the default is BF16, and then your "FP32 baseline" is not FP32.


# %%
def answers(model, precision="f32"):
    """Return which test digits the network gets right."""
    compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})
    logits = [compiled([x_test[first : first + 500]])[0].copy() for first in range(0, n_test, 500)]
    return np.concatenate(logits).argmax(axis=1) == y_test


found = {"FP32": answers(fp32), "BF16": answers(fp32, "bf16"), "INT8": answers(int8)}
for name, correct in found.items():
    print(f"{name}: accuracy {100 * correct.mean():.2f}%")
    if name != "FP32":
        changed = (correct != found["FP32"]).sum()
        print("      against FP32: {}: {}".format(*compare_answers(correct, found["FP32"])))
        print(f"      one is right and the other wrong on {changed} of {n_test:,} digits")

# %% [markdown]
# Section 7 goes on from INT8's accuracy. First: what did you gain? The next script measures the three formats in
# one process, in rounds that take turns. It also asks OpenVINO which format each layer really uses, because the hint is
# only a request.

# %%
# %%writefile work/infer.py
"""Measure networks in OpenVINO: python work/infer.py --variant INT8 work/int8.xml f32 --batch 64"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import openvino


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", nargs=3, action="append", required=True, metavar=("NAME", "FILE", "PRECISION"))
    parser.add_argument("--batch", type=int, default=64, help="images in a run")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=10, help="runs of each variant in a round")
    parser.add_argument("--out", type=Path, default=Path("work/infer.json"), help="file for the result")
    args = parser.parse_args()

    threads = int(os.environ.get("OMP_NUM_THREADS", 0))  # run_ranks sets it; 0 lets OpenVINO choose
    core, requests, result = openvino.Core(), {}, {}
    for name, file, precision in args.variant:
        model = core.read_model(file)
        model.reshape([args.batch, 28, 28, 1])
        settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
        compiled = core.compile_model(model, "CPU", settings)
        requests[name] = compiled.create_infer_request()
        about = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
        layers = [
            [info[key].astype(str) for key in ("layerType", "primitiveType", "runtimePrecision")]
            for info in about
            if info["layerType"].astype(str) in ("Convolution", "FullyConnected")
        ]
        result[name] = {"images/s": [], "layers": layers}

    images = np.random.default_rng(0).random((args.batch, 28, 28, 1), dtype=np.float32)
    for request in requests.values():
        for _ in range(3):  # not timed: creating kernels, first use of memory
            request.infer([images])
    for _ in range(args.rounds):
        for name, request in requests.items():
            start = time.perf_counter()
            for _ in range(args.runs):
                request.infer([images])
            result[name]["images/s"].append(args.batch * args.runs / (time.perf_counter() - start))
    args.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()


# %%
batch = max(64, 16 * cores)
VARIANTS = {"FP32": ("work/fp32.xml", "f32"), "BF16": ("work/fp32.xml", "bf16"), "INT8": ("work/int8.xml", "f32")}


def infer(*names, rounds=ROUNDS, runs=RUNS, **env):
    """Run these variants in one process; return the images/s of each round with the layers, and what it printed."""
    wanted = [part for name in names for part in ("--variant", name, *VARIANTS[name])]
    counts = ("--batch", batch, "--rounds", rounds, "--runs", runs)
    run = run_ranks(1, "work/infer.py", *wanted, *counts, env=env, show=False)
    return json.loads((work / "infer.json").read_text()), run.lines[0]


with load.watch("section 5") as infer_others:
    measured, _ = infer(*VARIANTS)
rates = {name: measured[name]["images/s"] for name in VARIANTS}
gain = ratios(rates, "FP32")
for name in VARIANTS:
    against = "" if name == "FP32" else f"   {gain[name]} times FP32: {gain[name].verdict}"
    print(f"{name}: {np.median(rates[name]):8,.0f} images/s{against}")
pd.DataFrame(
    {name: [f"{kernel}, {precision}" for _, kernel, precision in measured[name]["layers"]] for name in VARIANTS}
)

# %% [markdown]
# Each row is a convolution or a dense layer: the kernel, and its input format. Does each column run in the format that
# its heading names? Without BF16 in hardware, OpenVINO emulates it where there is AVX-512. Otherwise it computes in
# FP32 and ignores the request.

# %% jupyter={"source_hidden": true}
runs_in = {name: {precision for *_, precision in measured[name]["layers"]} for name in VARIANTS}
figure, axis = plt.subplots()
colours = dict(zip(VARIANTS, (plots.ORANGE, plots.SKY, plots.BLUE)))
for name in VARIANTS:
    bar = axis.bar(name, gain[name].value, 0.6, color=colours[name])
    label = f"{np.median(rates[name]):,.0f} images/s"
    axis.bar_label(bar, [label], label_type="center", color="white" if name == "INT8" else "black")
    if name != "FP32":
        axis.hlines(limit[name], list(VARIANTS).index(name) - 0.4, list(VARIANTS).index(name) + 0.4, "black", "--")
axis.set(ylabel="times FP32", title="Inference in fewer bits (dashed: large matrix products)")
axis.margins(y=0.15)
plots.show(
    figure,
    alt="; ".join(
        f"{name} {np.median(rates[name]):,.0f} images/s, {gain[name].value:.2f} times FP32" for name in VARIANTS
    )
    + f". The dashed limits are at {limit['BF16']:.1f} and {limit['INT8']:.1f} times.",
    keep=results,
)
share = {name: f"{100 * gain[name].value / limit[name]:.0f}% of {limit[name]:.1f}×" for name in VARIANTS}
weights_kb = {"FP32": kilobytes["fp32"], "BF16": kilobytes["fp32"] / 2, "INT8": kilobytes["int8"]}
pd.DataFrame(
    {
        "images/s": {name: f"{np.median(rates[name]):,.0f}" for name in VARIANTS},
        "share of the limit": share,
        "accuracy": {name: f"{100 * correct.mean():.2f}%" for name, correct in found.items()},
        "weights in memory": {name: f"{size:,.0f} kB" for name, size in weights_kb.items()},
    }
)

# %% [markdown]
# ## 6 · What VNNI is worth
#
# A 512-bit register holds 64 numbers of 8 bits, or 16 of 32. So each instruction can do 4 times as many products. But
# the sums need 32 bits, and before VNNI that took three instructions: multiply 8-bit pairs and add neighbours into 16
# bits; widen those to 32 bits; add them up. Per instruction, 64 products in 3 are 1.33 times as many as 16 in one.
# [**VNNI**](../docs/glossary.md#vnni) does all of it in one instruction, `vpdpbusd`: unsigned 8 bits times signed 8
# bits, summed in 32. Then it is 4 times. (The same for 16 bits, `vpdpwssd`, is 2 times, in half of FP32's memory.)
#
# The first of the three old instructions also *saturates*: two products of 255 × 127 are 64,770, and 16 bits end at
# 32,767. So, unless you change it (`OverflowFix`), NNCF uses only half of the codes for the weights of a network's
# first layer.
#
# Which of your layers ran on VNNI? Ask oneDNN inside OpenVINO which kernels it made:

# %%
_, lines = infer("INT8", rounds=1, runs=1, ONEDNN_VERBOSE="profile_create")
made = [re.match(r"onednn_verbose,.*?,create\S*?,cpu,(\w+),([^,]+),[^,]*,src:(\w+)", line) for line in lines]
kernels = pd.DataFrame([match.groups() for match in made if match], columns=["primitive", "kernel", "source"])
compute = kernels[kernels.primitive.isin(["convolution", "inner_product", "matmul"])]
on_vnni = compute.kernel.str.contains("vnni|amx")
print(f"{on_vnni.sum()} of {len(compute)} convolutions and products run on VNNI or AMX")
compute.value_counts(["primitive", "kernel", "source"]).rename("made").reset_index()

# %% [markdown]
# The end of a kernel's name is its instruction set. To see what VNNI is worth, take it away: `ONEDNN_MAX_CPU_ISA`
# limits what oneDNN may use, and nothing else changes. oneDNN reads it when it starts, so each setting needs a process
# of its own. The processes run in rounds that take turns, for about 20 s. Then the matrix products are measured without
# VNNI too, 15 s the first time.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Without VNNI, is INT8 still faster than FP32?
#
# </div>

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
with load.watch("section 6") as capped_others:
    for turn in range(CAP_PROCESSES):
        for cap, seen in capped.items():
            result, _ = infer(*seen, rounds=CAP_ROUNDS, ONEDNN_MAX_CPU_ISA=cap)
            for name, each in seen.items():
                each.append(result[name]["images/s"])
            told = ", ".join(f"{name} {np.median(each[-1]):,.0f}" for name, each in seen.items())
            print(f"round {turn + 1} of {CAP_PROCESSES}  {cap:20} {told} images/s", flush=True)


# %%
def against_fp32(seen):
    """Return how many times as fast as FP32 each format is; each process is one round, by the medians of its turns."""
    return ratios({name: [np.median(one) for one in each] for name, each in seen.items()}, "FP32")


def between_caps(capped, name, cap, reference):
    """Return what a format gains from one cap to another, each process against its own FP32.

    The cap does not change FP32, so what made a whole process slow falls out.
    """
    own = {
        (which, one): [np.median(each) / np.median(fp32) for each, fp32 in zip(seen[one], seen["FP32"])]
        for which, seen in capped.items()
        for one in seen
        if one != "FP32"
    }
    return ratios(own, (reference, name))[cap, name]


without = against_fp32(capped[family])["INT8"]
print(f"INT8 without VNNI: {without} times FP32: {without.verdict}")
limit_without = limit_vnni = ""
cap_others = [capped_others]
if "VNNI" in machine.isa:
    with_vnni = against_fp32(capped[f"{family}_VNNI"])["INT8"]
    print(f"INT8 with VNNI:    {with_vnni} times FP32: {with_vnni.verdict}")
    vnni = between_caps(capped, "INT8", f"{family}_VNNI", family)
    print(f"VNNI itself:       {vnni} times: {vnni.verdict}")
    if limits and family == "AVX512_CORE":
        no_amx = measure.limits(cap="AVX512_CORE_BF16") if "AMX" in machine.isa else limits
        no_vnni = measure.limits(cap=family)
        limit_without = f"{no_vnni.peak('int8') / no_vnni.peak('float32'):.1f}×"
        limit_vnni = f"{no_amx.peak('int8') / no_vnni.peak('int8'):.1f}×"
        cap_others += no_amx.others, no_vnni.others
        print(f"Matrix products: INT8 without VNNI {limit_without} FP32, VNNI itself {limit_vnni}")
else:
    print("This CPU has no VNNI: the speed above is all there is here.")

# %% jupyter={"source_hidden": true}
results.hand_in(
    "6",  # for the closing table
    ("INT8 without VNNI, against FP32", "1.33×, in theory", Measured(*without, "×"), limit_without, *cap_others),
    *(
        [("VNNI itself, INT8", "1.33× → 4×: 3×, in theory", Measured(*vnni, "×"), limit_vnni, *cap_others)]
        if "VNNI" in machine.isa
        else []
    ),
)

# %% jupyter={"source_hidden": true}
bars = {f"FP32\n{family}": capped[family]["FP32"]}
for cap, names in caps.items():
    for name in names:
        emulated = " emulated" if name == "BF16" and cap == family else ""
        bars[f"{name}{emulated}\n{cap}"] = capped[cap][name]
bars = {name: np.median(np.concatenate(each)) for name, each in bars.items()}
figure, axis = plt.subplots(figsize=(9, 1.2 + 0.75 * len(bars)))
drawn = axis.barh(
    list(bars),
    list(bars.values()),
    color=[{"F": plots.ORANGE, "B": plots.SKY, "I": plots.BLUE}[name[0]] for name in bars],
)
axis.bar_label(drawn, fmt="{:,.0f}", padding=4)
axis.invert_yaxis()
axis.margins(x=0.15)
axis.set(xlabel="images/s", title="The same network, instruction sets capped")
plots.show(
    figure,
    alt="Images per second: " + "; ".join(f"{' '.join(name.split())} {rate:,.0f}" for name, rate in bars.items()),
    keep=results,
)

# %% [markdown]
# Instructions are not everything. Without VNNI, INT8 can gain more than 1.33 times, because it moves a quarter of the
# bytes, and because some CPUs run the three instructions in parallel. And with VNNI, which layers reach the limit?
# OpenVINO counts the time of each layer when you ask for it (`PERF_COUNT`):


# %%
def layer_times(file):
    """Return the milliseconds of each convolution, pooling and dense layer, the median of several runs, in order."""
    model = openvino.Core().read_model(file)
    model.reshape([batch, 28, 28, 1])
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": cores, "PERF_COUNT": True}
    request = openvino.compile_model(model, "CPU", settings).create_infer_request()
    images, ms = np.resize(x_test, (batch, 28, 28, 1)), {}
    for _ in range(LAYER_RUNS):
        request.infer([images])
        for layer in request.get_profiling_info():
            kind = re.match("Convolution|MaxPool|FullyConnected", layer.node_type)
            if kind:
                ms.setdefault((layer.node_name, kind[0]), []).append(1000 * layer.real_time.total_seconds())
    return [(kind, np.median(each)) for (_, kind), each in ms.items()]


def tell_layers(layers, limit):
    """Print how much of the time is spent in layers that come near the limit, and in the others."""
    near = layers.gain >= 0.8 * limit
    share = 100 * layers[near].sum() / layers.sum()
    print(f"{near.sum()} of {len(layers)} layers reach 80% of the limit of {limit:.1f} times, or more.")
    print(f"They take {share.FP32:.0f}% of FP32's time and {share.INT8:.0f}% of INT8's. The others take the rest.")


with load.watch("section 6"):
    pairs = list(zip(layer_times("work/fp32.xml"), layer_times("work/int8.xml"), strict=True))
by_layer = pd.DataFrame({"layer": kind, "FP32": fp32, "INT8": int8_ms} for (kind, fp32), (_, int8_ms) in pairs)
by_layer["gain"] = by_layer.FP32 / by_layer.INT8
tell_layers(by_layer.drop(columns="layer"), limit["INT8"])
by_layer.style.format({"FP32": "{:.2f} ms", "INT8": "{:.2f} ms", "gain": "{:.1f} times"})

# %% [markdown]
# A layer gains less than the limit when it does little for each number that it reads: pooling, a convolution with one
# input channel, a dense layer, whose weights serve only once for each image. In ResNet-50, convolutions with many
# channels take nearly all of the time, so it gains more: 3.6 times on 2 cores with VNNI (AMD Zen 5).
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
# cycle, then, AMX does 16 times as many in BF16 and 32 times as many in INT8. Is it here?


# %%
def find_amx(cpuinfo):
    """Return whether /proc/cpuinfo lists AMX, and a sentence that says why it is here or not."""
    flags = {*" ".join(re.findall(r"^flags\s*:(.*)", cpuinfo, flags=re.M)).split()}
    missing = [flag for flag in ("amx_tile", "amx_bf16", "amx_int8") if flag not in flags]
    if not missing:
        return True, "/proc/cpuinfo lists amx_tile, amx_bf16 and amx_int8."
    why = f"/proc/cpuinfo does not list {', '.join(missing)}. "
    if "AuthenticAMD" in cpuinfo:
        return False, why + "AMD's CPUs up to Zen 5 have no AMX."
    if "avx512_fp16" in flags:
        why += "It lists AVX512-FP16, and Intel's Xeons with that have AMX too. So something hides it: "
        return False, why + "a virtual machine, or a Linux kernel before 5.16."
    return False, why + "Intel's Xeons have AMX since Sapphire Rapids (2023). This CPU is older, or of another kind."


def tell_amx(here, why, own, no_amx):
    """Print what large matrix products gain from AMX, or that there is none."""
    if not here:
        print(f"⚠ AMX IS NOT HERE, and nothing in this lab is measured with it.\n{why}")
        return
    print(f"AMX is here. {why}")
    for kind in ("bfloat16", "int8"):
        with_amx, without_amx = own.peak(kind), no_amx.peak(kind)
        print(
            f"{kind:9}{without_amx:9,.0f} without it, {with_amx:9,.0f} with it: {with_amx / without_amx:.1f} times. "
            f"Against FP32: {with_amx / own.peak('float32'):.1f} times."
        )


amx_here, why = find_amx(Path("/proc/cpuinfo").read_text())
if not amx_here:
    tell_amx(amx_here, why, None, None)
elif limits:
    tell_amx(amx_here, why, limits, no_amx)
    for name in ("INT8", "BF16"):
        times = between_caps(capped, name, "AVX512_CORE_AMX", "AVX512_CORE_BF16")
        print(f"this network, {name}: AMX itself {times} times: {times.verdict}")

# %% [markdown]
# A small layer does not fill the tiles, and memory is as slow as before. So a network gains less from AMX than a matrix
# product does: the more so, the smaller its layers.
#
# ## 7 · Where INT8 loses accuracy, and how to get it back
#
# Section 5 said whether INT8 is as accurate as FP32 here. On which digits does each go wrong? Sort the test digits by
# their brightness:

# %%
edges = DIMMEST ** np.linspace(1, 0, 6)
group = np.digitize(light_test, edges[1:-1])
groups = [f"1/{1 / low:.0f} to {'1' if high > 0.99 else f'1/{1 / high:.0f}'}" for low, high in pairwise(edges)]


def by_light(correct):
    return np.array([100 * correct[group == number].mean() for number in range(5)])


pd.DataFrame({name: by_light(correct).round(1) for name, correct in found.items()}, index=groups)

# %% [markdown]
# Remember the level line of section 1: INT8 has the same steps for dim and for bright digits. Some digits are 64 times
# as bright as others, so its range is a compromise, and calibration decides on it. By default, NNCF takes the largest
# value of *each* image, and then the **mean** of those. Anything brighter is cut off.
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
# **Guess first.** Which of these four is the best, and which is the worst?
#
# </div>

# %%
largest = nncf.AdvancedQuantizationParameters(activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX)
dusk = held_out[light_held_out < np.median(light_held_out)]
calibrated = {
    "dusk only": quantise(dusk),
    "all lights, mean": int8,
    "all lights, largest": quantise(held_out, advanced_parameters=largest),
    "0 to 255": quantise(255 * held_out),
}
mended = {name: answers(model) for name, model in calibrated.items()}
points = {name: compare_answers(correct, found["FP32"]) for name, correct in mended.items()}
print(f"{'FP32':22} {100 * found['FP32'].mean():6.2f}%")
for name, correct in mended.items():
    print(f"{name:22} {100 * correct.mean():6.2f}%   {points[name][0]}: {points[name][1]}")

# for the closing table
results.hand_in("7", ("the same, range of the brightest", "", points["all lights, largest"][0], "0"))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
drawn = {"FP32": found["FP32"]} | mended
for shift, ((name, correct), colour, hatch) in enumerate(
    zip(drawn.items(), (plots.ORANGE, plots.VERMILION, plots.SKY, plots.BLUE, plots.PURPLE), ("", "..", "//", "", "xx"))
):
    axis.bar(np.arange(5) + 0.17 * (shift - 2), by_light(correct), 0.17, color=colour, hatch=hatch, label=name)
axis.set_xticks(range(5), groups)
axis.set(
    xlabel="brightness of the digit",
    ylabel="accuracy (%)",
    title="INT8 by brightness, and by calibration",
    ylim=(0, 105),
)
figure.legend(*axis.get_legend_handles_labels(), loc="outside right center", fontsize=11)
plots.show(
    figure,
    alt="Accuracy in percent for five groups of digits, from dim to bright. "
    + "; ".join(
        f"{name}: {', '.join(f'{value:.0f}' for value in by_light(correct))}" for name, correct in drawn.items()
    ),
    keep=results,
)

# %% [markdown]
# Look where each calibration loses accuracy. A range that is too narrow cuts off bright values, in every layer. A range
# that is too wide leaves few codes for each digit: with pixels from 0 to 255, whole digits become one code, the dim
# ones first. The range has to fit the images that the network will meet, with their extremes if these matter, and
# without them if they are faults.
#
# None of these four needed any training. All of them have the same weights. So before you blame INT8, look at the
# calibration.
#
# **Finished early?** An open task: with how few calibration images, and which ones, is INT8 as accurate as FP32 beyond
# doubt? Try 1, 10 and 100 images, digits of one class, `RangeEstimatorParametersSet.MEDIAN_MINMAX`. Judge by the
# interval, not by the points. When no calibration is good enough, NNCF has `quantize_with_accuracy_control`: it returns
# the layers that lose most to FP32, until the loss of accuracy is as small as you require.
#
# ## 8 · Where FP16 belongs: tensor cores
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
# One of the figures is rounded, or they are of different runs.
#
# In FP16 the batch is twice as large, because activations take half the memory. So two things change at once. To tell
# them apart, also measure FP16 with batch 128. If TensorFlow sees a GPU, the next cell does so.

# %%
gpus = tf.config.list_physical_devices("GPU")


def resnet50_speed(policy, batch, steps=30):
    """Return the images/s of ResNet-50 in training, on random images of 224 × 224."""
    keras.config.set_dtype_policy(policy)
    try:
        model = keras.applications.ResNet50(weights=None)
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", jit_compile=False)
    images, labels = tf.random.normal((batch, 224, 224, 3)), tf.zeros(batch, tf.int32)
    for _ in range(5):  # not timed: tracing, first use of memory
        model.train_on_batch(images, labels)
    start = time.perf_counter()
    for _ in range(steps):
        model.train_on_batch(images, labels)
    return batch * steps / (time.perf_counter() - start)


gpu_speed = {}
if gpus:
    for policy, images in (("float32", 128), ("mixed_float16", 128), ("mixed_float16", 256)):
        gpu_speed[policy, images] = resnet50_speed(policy, images)
        print(f"{policy:14} batch {images}: {gpu_speed[policy, images]:,.0f} images/s", flush=True)
else:
    print("TensorFlow sees no GPU here. Section 2 shows, without a GPU, what FP16 does to gradients.")

results.hand_in(
    "8",  # for the closing table
    (
        "ResNet-50 training on a V100, FP32 → FP16",
        "400 → 800 images/s, batch 128 → 256",
        " → ".join(f"{speed:,.0f}" for speed in gpu_speed.values()) + " images/s" if gpu_speed else "no GPU here",
        "",
    ),
)

# %% [markdown]
# The kit's own TensorFlow is built for CPUs. If you have an environment with TensorFlow for GPUs, you need only this
# cell there, after `import time, keras, tensorflow as tf`.

# %% [markdown]
# ## 9 · Many requests at once
#
# So far, one batch came after the other, and all cores worked on it. A server gets requests from many clients. It can
# still give all cores to one request at a time. Or it works on several requests side by side, each with a share of the
# cores: this is [**multi-stream inference**](../docs/glossary.md#multi-stream-inference). Then the cores seldom wait
# for each other, but each request takes longer. So there are two figures: the
# [**throughput**](../docs/glossary.md#throughput) in images/s, and the [**latency**](../docs/glossary.md#latency) of a
# request. Its p50 is the median; its p99 is what 99 of 100 requests stay below. Users notice the p99.
#
# `NUM_STREAMS` is the number of streams. In the next script, each client sends a request, waits for the answer, and
# sends the next one.

# %%
# %%writefile work/streams.py
"""Throughput and latency by streams and clients: python work/streams.py work/int8.xml 1:1 2:2 2:4"""

import argparse
import json
import os
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
    return {"images/s": rate, "p50 ms": np.percentile(latencies, 50), "p99 ms": np.percentile(latencies, 99)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="the network")
    parser.add_argument("cases", nargs="+", metavar="STREAMS:CLIENTS")
    parser.add_argument("--images", type=int, default=16, help="images in a request")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.8, help="for each case in a round")
    parser.add_argument("--out", type=Path, default=Path("work/streams.json"), help="file for the result")
    args = parser.parse_args()

    core, requests = openvino.Core(), {}
    model = core.read_model(args.file)
    model.reshape([args.images, 28, 28, 1])
    about = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": int(os.environ.get("OMP_NUM_THREADS", 0))}
    for case in args.cases:
        streams, clients = map(int, case.split(":"))
        compiled = core.compile_model(model, "CPU", about | {"NUM_STREAMS": streams})
        requests[case] = [compiled.create_infer_request() for _ in range(clients)]
    images = np.random.default_rng(0).random((args.images, 28, 28, 1), dtype=np.float32)
    for case in args.cases:
        serve(requests[case], images, 0.1)  # does not count: creating kernels, first use of memory
    rounds = [{case: serve(requests[case], images, args.seconds) for case in args.cases} for _ in range(args.rounds)]
    args.out.write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()


# %% [markdown]
# The last case has twice as many clients as streams, so requests wait for each other. All cases take turns. On two
# cores, the cell takes about 20 s.


# %%
def tell_streams(rounds):
    """Print what each case does to throughput and latency, against the first one; return that of throughput."""
    first, *others = rounds[0]
    figures = {what: {case: [each[case][what] for each in rounds] for case in rounds[0]} for what in rounds[0][first]}
    rate, latency = (ratios(figures[what], first) for what in ("images/s", "p99 ms"))
    words = {"faster": "longer", "slower": "shorter"}
    for case in others:
        streams, clients = case.split(":")
        print(f"{streams} stream{'s' * (streams != '1')}, {clients} clients, against one of each:")
        print(f"  throughput  {rate[case]} times: {rate[case].verdict}")
        print(f"  p99 latency {latency[case]} times: {words.get(latency[case].verdict, latency[case].verdict)}")
    return rate


counts = sorted({cores, *(2**k for k in range(cores.bit_length()))})
cases = [*(f"{n}:{n}" for n in counts), f"{cores}:{2 * cores}"]
often = ("--rounds", STREAM_ROUNDS, "--seconds", STREAM_SECONDS)
with load.watch("section 9") as stream_others:
    run_ranks(1, "work/streams.py", "work/int8.xml", *cases, *often, show=False)
served = json.loads((work / "streams.json").read_text())
served_faster = tell_streams(served)
by_case = pd.DataFrame({case: pd.DataFrame([each[case] for each in served]).median() for case in cases}).T
by_case.rename_axis("streams:clients").style.format({"images/s": "{:,.0f}", "p50 ms": "{:.2f}", "p99 ms": "{:.2f}"})

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
axis.vlines(by_case["images/s"], by_case["p50 ms"], by_case["p99 ms"], color="gray")
axis.plot(by_case["images/s"], by_case["p50 ms"], "o", color=plots.BLUE, label="p50")
axis.plot(by_case["images/s"], by_case["p99 ms"], "s", color=plots.VERMILION, label="p99")
for case, row in by_case.iterrows():
    axis.annotate(f"  {case}", (row["images/s"], row["p99 ms"]))
axis.set(
    xlabel="throughput (images/s)",
    ylabel="latency of a request (ms)",
    title="Throughput and latency, by streams:clients",
)
axis.set_ylim(bottom=0)
axis.margins(x=0.15)
axis.legend()
plots.show(
    figure,
    alt="Latency against throughput. "
    + "; ".join(
        f"streams:clients {case}: {row['images/s']:,.0f} images/s, p50 {row['p50 ms']:.2f} ms, p99 {row['p99 ms']:.2f}"
        for case, row in by_case.iterrows()
    ),
    keep=results,
)

# %% jupyter={"source_hidden": true}
results.hand_in(
    "9",  # for the closing table
    (
        f"INT8 throughput, streams:clients {cores}:{cores} against 1:1",
        "",
        Measured(*served_faster[f"{cores}:{cores}"], "×"),
        "",
        stream_others,
    ),
)

# %% [markdown]
# Clients beyond the streams make a queue. It can fill the gaps between two requests, but each request also waits for
# its turn. OpenVINO chooses the number of streams itself when you state what you want: `PERFORMANCE_HINT` is `LATENCY`
# or `THROUGHPUT`. Several processes on a machine, each with its own cores, are the same idea one level up. In training,
# these are [**ranks**](../docs/glossary.md#rank): lab 07 has them.

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. Those that name an optional section are for whoever did it.
# The instructor's notebook has answers.
#
# 1. FP16 and BF16 are the same size. Which of them needs loss scaling, and why? *(section 2)*
# 2. Why is INT8 used for inference and not for training?
# 3. What is different about INT8: what takes the place of the exponent?
# 4. Why do sums of 8-bit products need 32 bits, and why do floating-point sums seem not to?
# 5. What does VNNI change? Where do 1.33 and 4 times come from, and why did you measure neither? *(section 6)*
# 6. What else does INT8 save, besides time to compute?
# 7. Why must the calibration images look like the images that the network meets later? What do you see when they don't?
#    *(section 7)*
# 8. INT8's error in a sum of *k* terms: how does your bound grow, how does the error grow, and why do they differ?
# 9. When do you choose many streams, when one? And why is a limit on paper, such as 4 times, not enough? *(section 9)*

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions, timing, what to expect, and what goes wrong.
#
# ### Answers
#
# 1. FP16. Its range ends at 2⁻²⁴ below and at 65,504 above. BF16 has FP32's exponent, and has fewer digits instead.
# 2. In inference, the ranges are known beforehand and a little noise is harmless. In training, gradients spread over
#    many powers of ten and change from step to step, and updates are smaller than one 8-bit step.
# 3. The scale: one for a whole tensor or channel, instead of an exponent for each number. So the absolute error is
#    constant, not the relative one.
# 4. 255 × 127 is 32,385: 16 bits hold one such product. 32 bits hold 66,311 of them. Floating-point numbers move the
#    point, and lose the last digits instead.
# 5. One instruction instead of three, for 64 products. 64 / (3 × 16) is 1.33, 64 / 16 is 4. This calculation leaves out
#    memory, layers that are not compute-bound, and conversions, which act in both directions.
# 6. A quarter of the memory and of its traffic, and energy. The model file gets smaller as well.
# 7. They decide on the ranges. With dusk only, bright digits are cut off; with pixels up to 255, there are too few
#    codes.
# 8. Like *k*, and like √*k*: errors of opposite signs partly cancel. A bound must allow for all errors having the same
#    sign.
# 9. Many when only the images per second count, as in a job over a whole archive; one when a user waits for each
#    answer. Paper counts one kind of instruction. AMX has others, with 16 and 32 times; without VNNI it is less.
#
# **What to expect** On 2 cores with AVX-512, VNNI and BF16 (AMD EPYC), with the built-in digits: INT8 3.2 to 3.3 times
# FP32, BF16 1.9 times; INT8 without VNNI 1.9 to 2.0 times, so VNNI itself 1.6 to 1.7 times; emulated BF16 0.3 to 0.4
# times. Large matrix products: BF16 1.9 times FP32, INT8 4.1 times. Training in BF16 1.4 to 1.6 times. Accuracy after 5
# epochs: FP32 97.1%, BF16 97.9%; INT8 95.9% by default, 97.1% with the largest range, 91.1% with dusk only, 49.5% with
# 0 to 255. ResNet-50 in OpenVINO on 2 cores of Zen 5: FP32 70, BF16 151, INT8 256 images/s, which is 3.6 times; capped
# at AVX512_CORE, INT8 129, with VNNI 230.
#
# **Why not 4 times?** In INT8, the layers with many channels run at about 3.7 times FP32, near the limit. The first
# convolution, the first pooling and the first dense layer gain 1.3 to 2.1 times, and take a quarter of INT8's time.
# Section 6 shows this layer by layer.
#
# **Timing** Section 1 takes 14 minutes, 2 takes 15, 3 takes 7, 4 takes 30, 5 takes 7, 6 to 9 take 20 together, and the
# questions 4. Exercise 1 is the longest. Short of time? Skip it: the lab continues with its solution. Sections 2 and 6
# to 9 are optional. Don't skip exercise 4.
#
# **What goes wrong** NumPy's `uint8 @ int8` is int16 and overflows without a warning: students are meant to find that.
# An FP16 array divided by a Python number stays FP16, so small gradients vanish again in exercise 2. On a CPU without
# AVX-512, BF16 training is slow. On one without VNNI, section 6 has one bar less, and INT8 gains less.
#
# </div>

# %% [markdown]
# ## Remember
#
# - FP16 has digits, BF16 has range, and INT8 has neither, only a scale.
# - Loss scaling moves gradients to where FP16 is precise. BF16 doesn't need it.
# - 8-bit products are summed in 32 bits. VNNI does this in one instruction.
# - State the precision of your baseline, and look at what really ran.
# - Measure the limit. Paper says 2 and 4 times; AMX, or the lack of VNNI, makes it something else.
# - Calibrate with images like those that the network will meet. Then look at which answers it lost.
#
# The closing table shows what was published, what you measured, and the most that the machine could do:

# %% jupyter={"source_hidden": true}
results.table(
    "Fewer bits",
    [
        *(
            (
                f"{name} against FP32, inference",
                {"BF16": "2×, in theory", "INT8": "4× with VNNI, in theory"}[name],
                Measured(*gain[name], "×"),
                f"{limit[name]:.1f}×, matrix products",
                *(infer_others, *limit_others),
            )
            for name in ("BF16", "INT8")
        ),
        *results.handed_in(
            "6",
            ("INT8 without VNNI, against FP32", "1.33×, in theory"),
            ("VNNI itself, INT8", "1.33× → 4×: 3×, in theory"),
        ),
        (
            "BF16 training against FP32",
            "",
            Measured(*training_times, "×"),
            f"{limit['BF16']:.1f}×, matrix products",
            *(training_others, *limit_others),
        ),
        ("INT8's accuracy against FP32's, by default", "", compare_answers(found["INT8"], found["FP32"])[0], "0"),
        *results.handed_in("7", ("the same, range of the brightest", "")),
        *results.handed_in("9", (f"INT8 throughput, streams:clients {cores}:{cores} against 1:1", "")),
        ("weights, FP32 → INT8", "¼", f"{kilobytes['fp32']:,.0f} → {kilobytes['int8']:,.0f} kB", "¼"),
        *results.handed_in("8", ("ResNet-50 training on a V100, FP32 → FP16", "400 → 800 images/s, batch 128 → 256")),
    ],
)

# %% [markdown]
# Published: VNNI: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (theoretical peaks,
# not measured). V100: a lab for AWS' P3 instances. Loss scaling: Micikevicius et al., *Mixed Precision Training*, arXiv
# 1710.03740. AMX's cycles: Intel's optimization reference manual. Next: in lab 05, a program searches for the best
# settings.
