# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: write an 8-bit network that races 32 bits
#     needs: [ISA, memory, TensorFlow, MPI, OpenVINO, data]
#     better_with: [compiler]
# ---

# %% [markdown]
# # 04 · Fewer bits: from the bits to the instruction
#
# You train a digit classifier in 32 bits, convert it to 8-bit integers, write its layers in ten lines of C, and race it
# against the fastest 32-bit network on your machine.
#
# **You will learn** what 32, 16 and 8 bits can hold, how a network computes with integers alone, which instruction
# makes that fast, and what it costs in accuracy. In optional sections, you save gradients from vanishing in 16 bits,
# and store weights in 4.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which timed a 32-bit convolution; lab 03, which trains ResNet-50 in bfloat16; and lab 10,
# where language models have 4-bit weights.
#
# **Why fewer bits?** An instruction multiplies more numbers at once, memory and caches hold more of them, and trained
# networks tolerate noise. The price is range or precision.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("04", globals())
cores = machine.usable_cores

# %%
import json
import logging
import os
import subprocess
from functools import partial

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow starts; older CPUs would get Eigen

# %%
import keras
import matplotlib.pyplot as plt
import nncf
import numpy as np
import openvino
import rich
import tensorflow as tf
from IPython.display import display
from openvino import opset13 as ops
from scipy.stats import binomtest

from labkit import native
from labkit.data import load_digits
from labkit.display import markdown, plots
from labkit.measure import Measured, alternate, compare, per_second, record, recorded, share
from labkit.models import integer_net
from labkit.models.integer_net import Layer
from labkit.models.openvino_core import openvino_core
from labkit.mpi import run_ranks
from labkit.roofline import convolution, peaks

tf.get_logger().setLevel("ERROR")
nncf.set_log_level(logging.ERROR)
rich.reconfigure(quiet=True, force_jupyter=False)  # no progress bars from NNCF

# %%
# How much this lab measures: change it here. The first of two values is that of a small run.
N_TRAIN, N_TEST, EPOCHS = (500, 200, 2) if QUICK else (4000, 1000, 6)
SMALL_NET_STEPS = 40 if QUICK else 300  # section 2
BATCH = 32 if QUICK else max(64, 32 * cores)  # images at once
ROUNDS, SECONDS = (1, 0.05) if QUICK else (6, 0.5)  # section 4
WIDTH, MAX_LAYERS, WEIGHT_ROUNDS = (256, 2, 1) if QUICK else (4096, 40, 9)  # section 6

digits = load_digits(N_TRAIN, N_TEST)
print(digits.source)

# %% [markdown]
# ## 1 · What a number can hold {read 5, do 7}
#
# A floating-point number has a sign, an [**exponent**](../docs/learn/glossary.md#exponent) *e* and a fraction *f*, its
# [**mantissa**](../docs/learn/glossary.md#mantissa) without the leading 1. With *E* bits for the exponent and *F* for
# the fraction, its value is
#
# $$\pm \left(1 + \frac{f}{2^F}\right) \cdot 2^{\,e - bias}, \qquad bias = 2^{E-1} - 1$$
#
# Two exponents are special. If **all bits of the exponent are 0**, the leading 1 becomes a 0, and *e* counts as 1. The
# resulting *subnormal* numbers fill the gap down to zero, and include it. If **all the bits are 1**, a fraction of 0
# means infinity, and any other NaN, *not a number*.
#
# | format | sign | exponent | fraction |
# | --- | --- | --- | --- |
# | [**FP32**](../docs/learn/glossary.md#fp32), float32, single precision | 1 | 8 | 23 |
# | [**FP16**](../docs/learn/glossary.md#fp16), float16, half precision | 1 | 5 | 10 |
# | BF16, [**bfloat16**](../docs/learn/glossary.md#bfloat16) | 1 | 8 | 7 |
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** FP16 and BF16 both have 16 bits. Which of them can hold 70,000, at least roughly?
#
# </div>

# %%
results.guess(1, "the 16-bit format that holds 70,000", ..., choices=("FP16", "BF16"))

# %% [markdown]
# ### Exercise 1 · Read the bits
#
# Write `decode(pattern, e, f)`. It returns the value of the number whose bits form the integer `pattern`, with `e`
# exponent bits and `f` fraction bits. The sign is the highest bit, followed by the exponent and the fraction. Handle
# both special exponents.


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
# Your function computes the limits of each format. The table adds two [**FP8**](../docs/learn/glossary.md#fp8) formats,
# named after their bits (E5M2 has 5 exponent bits and 2 mantissa bits), and 8-bit integers,
# [**INT8**](../docs/learn/glossary.md#int8).

# %% tags=["nbval-check-output"]
FORMATS = {"FP32": (8, 23), "BF16": (8, 7), "FP16": (5, 10), "FP8 E5M2": (5, 2), "FP8 E4M3": (4, 3)}
format_rows = []
for name, (e, f) in FORMATS.items():
    infinity, one = (2**e - 1) << f, (2 ** (e - 1) - 1) << f
    patterns = (infinity - 1, 1 << f, 1, one + 1)
    most, normal, least, next_to_one = (float(decode(pattern, e, f)) for pattern in patterns)
    limits = (f"±{most:.5g}", f"{normal:.3g}", f"{least:.3g}", f"{next_to_one - 1:.3g}")
    format_rows.append((name, *limits))
format_rows.append(("INT8", "−128 to 127", "1", "1", "1"))
head = ("format", "range", "smallest normal", "smallest above 0", "step at 1")
display(markdown.table(head, format_rows))

# %% [markdown]
# In hardware, E4M3 gives up infinity and all but one NaN to reach ±448 ([Micikevicius et al.
# 2022](https://arxiv.org/abs/2209.05433)). What happens to a number in each format? For anything but integers, INT8
# needs a **scale**. In the next cell, 127 stands for 1.0.

# %% tags=["nbval-check-output"]
BFLOAT16 = tf.bfloat16.as_numpy_dtype
TYPES = {"FP32": np.dtype("float32"), "BF16": np.dtype(BFLOAT16), "FP16": np.dtype("float16")}
print(f"{'':>10}" + "".join(f"{name:>18}" for name in (*TYPES, "INT8, to 1.0")))
for value in (1 / 3, 257.0, 70_000.0, 1e-6, 1e-8):
    with np.errstate(over="ignore"):
        converted = [float(np.array(value).astype(dtype)) for dtype in TYPES.values()]
    converted.append(float(np.clip(np.round(value * 127), -128, 127)) / 127)
    print(f"{value:10.6g}" + "".join(f"{number:18.9g}" for number in converted))

# %%
with np.errstate(over="ignore"):
    in_fp16 = np.float16(70_000.0)
results.compare_guess(1, "FP16" if np.isfinite(in_fp16) else "BF16")

# %% jupyter={"source_hidden": true}
exponents = np.arange(-30, 20)
figure, axis = plt.subplots()
for (name, (e, f)), style in zip([*FORMATS.items()][:3], ("-", "--", "-.")):
    lowest, highest = 2 - 2 ** (e - 1), 2 ** (e - 1) - 1
    in_range = exponents[(exponents >= lowest - f) & (exponents <= highest)]
    spacing = 2.0 ** (np.maximum(in_range, lowest) - f)
    axis.plot(2.0**in_range, spacing, style, label=name, marker="")
look = dict(marker="", linewidth=5, color=plots.PURPLE)
axis.plot([1 / 127, 1], [1 / 127, 1 / 127], ":", label="INT8, up to 1.0", **look)
axis.set(xscale="log", yscale="log", xlabel="size of the number")
axis.set(ylabel="distance to the next one", title="Spacing of the numbers that a format can hold")
axis.legend()
plots.show(
    figure,
    alt="Distance between neighbouring numbers vs their size, both logarithmic. FP32, BF16 "
    "and FP16 are rising lines, BF16 the coarsest; FP16 ends at 65,504 and becomes flat below "
    "0.00006. INT8 is a short flat line at 1/127.",
)

# %% [markdown]
# A rising line means a constant *relative* error. A flat line means a constant *absolute* error, so small numbers keep
# few digits. FP16 becomes flat below 0.00006, and INT8 is flat from end to end. Both cause a problem, FP16 in section 2
# and INT8 in section 5.
#
# ## 2 · A gradient that vanishes {read 6, do 8, optional}
#
# [**Gradients**](../docs/learn/glossary.md#gradient) are small, because the [**backward
# pass**](../docs/learn/glossary.md#backward-pass) multiplies small numbers. Each error is divided by the batch size and
# multiplied by the weight of its loss. The next cells compute gradients by hand for a two-layer network. They round
# what they store, like a GPU that multiplies 16-bit numbers and sums in 32 bits.

# %%
x = digits.x_train[:500].reshape(500, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(500, 196)
y = np.eye(10, dtype="float32")[digits.y_train[:500]]
WEIGHT = 1e-5  # of this loss in a sum of several


def rounded(array, dtype):
    return array.astype(dtype).astype("float32")


def fresh_weights():
    rng = np.random.default_rng(0)
    shapes = ((196, 64), (64, 10))
    return [rng.normal(0, (2 / n) ** 0.5, (n, m)).astype("float32") for n, m in shapes]


# %%
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


# %%
exact = backward(fresh_weights(), TYPES["FP32"], 1)[1]
for name, scale in (("BF16", 1), ("FP16", 1), ("FP16", 2.0**12)):
    by_hidden = backward(fresh_weights(), TYPES[name], scale)[1]
    vanished = 100 * (by_hidden[exact != 0] == 0).mean()
    print(f"{name}, loss × {scale:5,.0f}: {vanished:5.1f}% of the hidden gradients became 0")

# %% [markdown]
# The remedy is to multiply the **loss** by a constant. By the chain rule, this multiplies every gradient by the same
# constant, and moves them all to where FP16 is precise. At the end, divide the weights' gradients by it, in FP32. This
# is [**loss scaling**](../docs/learn/glossary.md#loss-scaling). BF16 has FP32's range and doesn't need it.
#
# The best constant is the largest that causes no overflow, and it changes during training. **Dynamic loss scaling**
# keeps searching for it. After an overflow, it halves this *scale*. After `patience` steps in a row without one, it
# doubles the scale and restarts the count.
#
# ### Exercise 2 · Dynamic loss scaling
#
# Write `settle(gradients, scale, calm, patience)`, which runs between the backward pass and the update of the weights.
# `gradients` is a list of FP16 arrays, the gradients of the loss times `scale`. An overflow leaves infinities or NaNs
# in some of them. `calm` is the number of consecutive steps without an overflow before this step, and is below
# `patience`. Return three values:
#
# - for the update, the true gradients as a list of FP32 arrays, or `None` if the update must be skipped;
# - the scale for the next step;
# - `calm` for the next step.


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
# Does scaling matter? The same network trains from the same initial weights in four ways. The weights themselves stay
# in FP32, because an update is often too small to change a 16-bit number.


# %%
def train(format_name, scale=1.0, dynamic=False, steps=SMALL_NET_STEPS):
    """Return the losses and the scales of all steps, and the number of skipped updates."""
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


runs = {name: train(name) for name in TYPES}
runs["FP16, dynamic scale"] = train("FP16", 2.0**50, dynamic=True)
for name, (losses, scales, skipped) in runs.items():
    at_the_end = f"loss {np.median(losses[-50:]):.3f}, scale {scales[-1]:,.0f}"
    print(f"{name:20} {at_the_end}, {skipped} steps skipped")

# %%
results.answer(1, "Why does plain FP16 learn less than BF16, with as many bits?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Its exponent has 5 bits, so gradients below 2⁻²⁵ become 0 and change no weight, and other small ones have few digits.
# BF16 has fewer digits but FP32's range. With a dynamic scale, FP16 has enough of both. A scale that starts absurdly
# high comes down quickly, as each skipped step halves it.
#
# </details>
#
# GPUs with tensor cores multiply FP16 matrices and sum in FP32. A walk-through for AWS's P3 instances with V100 GPUs
# (2018) reported ResNet-50 training at about 400 images/s in FP32 with a batch of 128, and twice that in FP16 with a
# batch of 256. One GPU took about 30 minutes for 1,000,000 images. Eight GPUs took about 5, at around 5,800 images/s,
# and about 30 minutes for ten epochs.

# %%
results.answer(2, "What changed besides the format between 400 and 800 images/s?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# The batch doubled, which FP16's smaller activations allowed. A larger batch is often faster by itself (lab 03), so the
# format alone doesn't explain the speed-up. Other figures deserve a check, too. At the published 5,800 images/s,
# 1,000,000 images take 2.9 minutes, not 5. One epoch takes 30 minutes on one GPU and 5 on eight, an efficiency of 75%.
# Ten epochs in 30 minutes on eight would mean 125%.
#
# </details>

# %% [markdown]
# ## 3 · A network in integers {read 6, do 11, wait 0.3}
#
# First, an FP32 network with five convolutions:


# %%
def digit_net():
    keras.utils.set_random_seed(0)
    conv = partial(keras.layers.Conv2D, kernel_size=3, padding="same", activation="relu")
    pool = keras.layers.MaxPooling2D
    hidden = [conv(32), pool(), conv(64), conv(64), pool(), conv(128), conv(128), pool()]
    dense = [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((28, 28, 1)), *hidden, keras.layers.Flatten(), *dense])


net = digit_net()
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
net.compile(keras.optimizers.Adam(1e-3), loss)
print(f"Training for {EPOCHS} epochs, about 10 s", flush=True)
net.fit(digits.x_train, digits.y_train, batch_size=64, epochs=EPOCHS, verbose=0)


def right(logits):
    """Return which test digits are right."""
    return logits.argmax(axis=1) == digits.y_test


fp32 = right(net.predict(digits.x_test, batch_size=100, verbose=0))
print(f"FP32: {100 * fp32.mean():.1f}% of {len(fp32):,} test digits are right")

# %% [markdown]
# Eight bits give only 256 codes. Choosing the numbers that they stand for is called
# [**quantisation**](../docs/learn/glossary.md#quantisation). In most libraries, a number is *scale · (code − zero
# point)*. Our zero point is 0, because pixels and the outputs of Relu are never negative. Their codes go from 0 to 255.
# Weights can have either sign, and their codes go from −127 to 127.
#
# ### Exercise 3 · How far should the codes reach?
#
# If the codes reach up to the largest value, nothing is clipped, but all steps are wide. A shorter range has finer
# steps, but clips the largest values. Decide by the error.
#
# Write `choose_high(values, bits)`. `values` is an array of activations after Relu, none of them negative and some
# above 0. The codes from 0 to `2**bits - 1` stand for 0 to `high` in equal steps. Each value gets the nearest code, and
# values above `high` get the last code. Return the `high` with the smallest mean squared error between the values and
# what their codes stand for. Within 10% of the smallest error is close enough, so you can try a hundred candidates.


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
# [**Calibration**](../docs/learn/glossary.md#calibration) runs some images through the network, and chooses the range
# of each layer's output. Which range does it choose for your network, in 8, 4 and 2 bits?

# %%
with_weights = [layer for layer in net.layers if hasattr(layer, "kernel")]
observed = keras.Model(net.inputs, [layer.output for layer in with_weights])
calibration_images = digits.x_train[:200]
for layer, values in zip(with_weights, observed.predict(calibration_images, verbose=0)[:-1]):
    most, sample = values.max(), np.random.default_rng(0).choice(values.ravel(), 20_000)
    best = [float(choose_high(sample, bits)) / most for bits in (8, 4, 2)]
    parts = ", ".join(f"{part:4.0%}" for part in best)
    print(f"{layer.name:10} 8, 4 and 2 bits: {parts} of the largest")

# %% [markdown]
# ### Exercise 4 · A layer's integers
#
# A layer receives codes, which stand for *scale_in · code*. It multiplies them by weight codes, adds a bias, and
# returns codes that stand for *scale_out · code*. All that it computes is
#
# $$code_{out} = factor \cdot \left(\sum_k code_k \cdot weight_k + bias\right)$$
#
# rounded, and clipped to 0 … 255, which also takes care of Relu. The sum is an integer. The factor, which *requantises*
# it, is the only fractional number.
#
# Write `to_integers(weights, bias, scale_in, scale_out)`. `weights` has the shape (inputs, outputs), and `bias` has a
# number for each output. Each column of weights has its own step. The weight furthest from 0 gets the code 127 or −127,
# and the others get their nearest codes. No column is all zeros. Return three arrays:
#
# - the codes of the weights;
# - the biases, rounded to whole steps of the *sum*;
# - the factor of each output.


# %%
def to_integers(weights, bias, scale_in, scale_out):
    """Return a layer's codes, its biases in steps of the sums, and its factors."""
    ### BEGIN SOLUTION
    scale = np.abs(weights).max(axis=0) / 127
    codes = np.round(weights / scale)
    return codes, np.round(bias / (scale_in * scale)), scale_in * scale / scale_out
    ### END SOLUTION


# %% tags=["nbval-check-output"]
to_integers = check(4, to_integers)

# %% [markdown]
# The next cell turns the whole network into integers. `highs` holds the upper end of the range for the pixels and for
# each layer's output. Here the codes reach up to the largest value. Section 5 tries your `choose_high`. Logits can be
# negative, so the last layer's biases are shifted. Adding the same number to all logits changes no decision.


# %%
def integer_network(highs, lowest_logit):
    """Return the layers in integers, and the step of the pixels."""
    layers, steps = [], [high / 255 for high in highs]
    after = iter(steps[1:])
    step = steps[0]
    for layer in net.layers:
        if isinstance(layer, keras.layers.MaxPooling2D):
            layers.append(Layer("pool"))  # the largest code stands for the largest number
        elif layer in with_weights:
            kernel, bias = (weights.numpy() for weights in (layer.kernel, layer.bias))
            kind = "convolution" if kernel.ndim == 4 else "dense"
            shift = lowest_logit if layer is with_weights[-1] else 0
            rows, step_in, step = kernel.reshape(-1, len(bias)), step, next(after)
            layers.append(Layer(kind, *to_integers(rows, bias - shift, step_in, step)))
    return layers, steps[0]


def calibrate(images, choose=np.max):
    """Return the network in integers, its ranges chosen for these images."""
    *hidden, logits = observed.predict(images, verbose=0)
    highs = [float(choose(values)) for values in (images, *hidden)]
    return integer_network([*highs, float(np.ptp(logits))], float(logits.min()))


def codes_of(images, step):
    return np.clip(np.round(images / step), 0, 255).astype(np.uint8)


layers, step = calibrate(calibration_images)
size = sum(layer.codes.size + 4 * layer.bias.size + 4 * layer.factor.size for layer in layers)
print(f"{4 * net.count_params() / 1000:,.0f} kB in FP32, {size / 1000:,.0f} kB in integers")

# %% [markdown]
# Here is the integer network in NumPy. It multiplies in double precision, which holds all these integers exactly.


# %%
def inputs_of(kind, codes):
    """Return the rows that a layer multiplies: for a convolution, all codes under the kernel."""
    if kind == "dense":
        return codes.reshape(len(codes), -1)
    side, padded = codes.shape[1], np.pad(codes, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [padded[:, i : i + side, j : j + side] for i, j in np.ndindex(3, 3)]
    return np.concatenate(taps, axis=3)


def in_numpy(layers, codes):
    """Return the codes of the last layer."""
    codes = codes.astype(float)
    for kind, weights, bias, factor in layers:
        if kind == "pool":
            half = codes.shape[1] // 2
            pairs = codes[:, : 2 * half, : 2 * half].reshape(len(codes), half, 2, half, 2, -1)
            codes = pairs.max(axis=(2, 4))
        else:
            sums = inputs_of(kind, codes) @ weights + bias
            codes = np.clip(np.floor(factor * sums + 0.5), 0, 255)
    return codes


# %%
def changed(name, correct, reference=fp32):
    """Print an accuracy, and on how many digits it is better and worse than a reference."""
    lost, gained = (reference & ~correct).sum(), (correct & ~reference).sum()
    chance = binomtest(lost, lost + gained).pvalue if lost + gained else 1
    verdict = "no difference shown" if chance > 0.05 else "worse" if lost > gained else "better"
    print(f"{name:34} {100 * correct.mean():5.1f}%; {lost:3} lost, {gained:3} gained: {verdict}")


test_codes = codes_of(digits.x_test, step)
by_numpy = np.concatenate(
    [in_numpy(layers, part) for part in np.split(test_codes, len(fp32) // 50)]
)
changed("integers", right(by_numpy))

# %% [markdown]
# *Lost* digits were right in FP32 and aren't now, and *gained* ones are the reverse. *Worse* and *better* are verdicts
# of a sign test, at the 5% level.
#
# ## 4 · Ten lines of C, and an instruction {read 7, do 13, wait 1}
#
# The product of two 8-bit codes fits into 16 bits. How many products can you sum in 16 bits?

# %% tags=["nbval-check-output"]
a, b = np.full((1, 3), 255, "uint8"), np.full((3, 1), 127, "int8")
print(f"the sum of 3 products: {3 * 255 * 127:,}; NumPy: {(a @ b).item():,} as {(a @ b).dtype}")
for bits in (16, 32):
    room = (2 ** (bits - 1) - 1) // (255 * 127)
    print(f"int{bits} ends at {2 ** (bits - 1) - 1:,}: room for {room:,} of the largest products")
print(f"the longest sum in your network: {max(len(layer.codes) for layer in layers):,} products")

# %% [markdown]
# NumPy gave no warning. These sums need 32 bits.
#
# ### Exercise 5 · The layer in C
#
# Write the body of the loop over rows. A row holds all K inputs of a pixel side by side, and `in` and `out` already
# point to the row. `in` has `rows` × K codes, `weights` has N × K, with an output's weights adjacent, and `out` gets
# `rows` × N codes. For each output, add its bias and K products, multiply the sum by its factor, round to the nearest
# integer (halves may go either way), and clip to 0 … 255. All sums fit into 32 bits.
#
# For speed, help the compiler to vectorise both loops. Keep the loop over *k* innermost and simple. Finish a row's
# sums, then requantise them in a second loop without `if` or calls. `sums` has room for them.

# %%
# %%writefile work/layer.c
# #include "integer_net.h"
#
# void layer(const uint8_t *in, const int8_t *weights, const int32_t *bias, const float *factor,
#            uint8_t *out, int rows, int K, int N) {
#     for (int row = 0; row < rows; row++, in += K, out += N) {
#         int32_t sums[N];
#         ### BEGIN SOLUTION
#         for (int n = 0; n < N; n++) {
#             sums[n] = bias[n];
#             for (int k = 0; k < K; k++) sums[n] += in[k] * weights[n * K + k];
#         }
#         for (int n = 0; n < N; n++) {
#             float y = factor[n] * sums[n] + 0.5f;
#             y = y < 0 ? 0 : y > 255 ? 255 : y;
#             out[n] = (int)y;
#         }
#         ### END SOLUTION
#     }
# }

# %% tags=["nbval-check-output"]
layer_c = check(5, "work/layer.c")

# %% [markdown]
# What did the compiler turn your C into? `objdump` lists the program's instructions. The
# [**VNNI**](../docs/learn/glossary.md#vnni) instruction is `vpdpbusd`. It multiplies 64 unsigned by 64 signed codes in
# 512-bit registers (32 in 256-bit ones), and adds groups of four products to 32-bit sums. Arm's counterpart is `usdot`.

# %%
NO_VNNI = ("-mno-avx512vnni", "-mno-avxvnni")
has_vnni = "VNNI" in machine.isa


def build(file, flags=()):
    return integer_net.build(file, flags=(*native.FAST, *flags))


def count_instructions(file, flags=()):
    """Return how often a compiled program contains some instructions."""
    listing = subprocess.run(["objdump", "-d", build(file, flags)], capture_output=True, text=True)
    return {name: listing.stdout.count(name) for name in ("vpdpbusd", "usdot")}


found = {} if native.obstacle() else count_instructions(layer_c)
uses_vnni = any(found.values())
print("your layer:  ", found or native.obstacle())
if has_vnni and uses_vnni:
    print("without VNNI:", count_instructions(layer_c, NO_VNNI))
elif has_vnni and found:
    print("This CPU has VNNI, but this compiler didn't use it.")

# %% [markdown]
# ### Exercise 6 · Eight outputs at a time
#
# The ten lines reload all weights for each row, and each code of a row for each output. So for all rows, take eight
# outputs at a time. Their weights stay in the L1 cache, and each code, once loaded, is multiplied eight times. Write
# the body of the loop over *n*, which adds the product for input *k* and output *n* to `s[n]`. The weights of output
# *n* begin at `w + n * K`.

# %%
# %%writefile work/layer_8.c
# #include "integer_net.h"
#
# static void eight(const uint8_t *x, const int8_t *w, int32_t *sums, int K) {
#     int32_t s[8] = {0};
#     for (int k = 0; k < K; k++)
#         #pragma GCC unroll 8
#         for (int n = 0; n < 8; n++) {
#             ### BEGIN SOLUTION
#             s[n] += x[k] * w[n * K + k];
#             ### END SOLUTION
#         }
#     for (int n = 0; n < 8; n++) sums[n] = s[n];
# }
#
# void layer(const uint8_t *in, const int8_t *weights, const int32_t *bias, const float *factor,
#            uint8_t *out, int rows, int K, int N) {
#     int32_t sums[rows * N];
#     int n = 0;
#     for (; n + 8 <= N; n += 8)
#         for (int row = 0; row < rows; row++)
#             eight(in + row * K, weights + n * K, sums + row * N + n, K);
#     for (; n < N; n++)
#         for (int row = 0; row < rows; row++) {
#             int32_t s = 0;
#             for (int k = 0; k < K; k++) s += in[row * K + k] * weights[n * K + k];
#             sums[row * N + n] = s;
#         }
#     for (int row = 0; row < rows; row++)
#         for (int n = 0; n < N; n++) {
#             float y = factor[n] * (sums[row * N + n] + bias[n]) + 0.5f;
#             y = y < 0 ? 0 : y > 255 ? 255 : y;
#             out[row * N + n] = (int)y;
#         }
# }

# %% tags=["nbval-check-output"]
layer_8 = check(6, "work/layer_8.c")

# %% [markdown]
# Both programs classify all test digits. Do they agree with NumPy? In FP32, C may round differently, and later layers
# pass the difference on.

# %%
if not native.obstacle():
    for name, file in {"C": layer_c, "C, eight at a time": layer_8}.items():
        codes, rate = integer_net.run(build(file), layers, test_codes, at_least_s=0.01)
        off = np.abs(codes - by_numpy)
        print(f"{name}: {(off > 0).sum()} of {off.size:,} codes differ, by at most {off.max():.0f}")
        changed(name, right(codes))

# %% [markdown]
# Now the opponents. **OpenVINO** runs trained networks on CPUs, mostly with oneDNN's kernels. **NNCF** quantises them
# after training. A script measures each network in its own process, because `ONEDNN_MAX_CPU_ISA`, which stops oneDNN
# from using some instructions, is read at start-up. `INFERENCE_PRECISION_HINT` sets the format of everything that isn't
# quantised; the default may be BF16.

# %%
core = openvino_core()
net.export(work / "digit_net", verbose=False)
exported = openvino.convert_model(work / "digit_net")
quantised = nncf.quantize(exported, nncf.Dataset([*calibration_images[:, None]]), subset_size=200)
for name, model in (("fp32", exported), ("int8", quantised)):
    openvino.save_model(model, work / f"{name}.xml", compress_to_fp16=False)


def answers(model, images=digits.x_test, hint="f32"):
    """Return which test digits OpenVINO gets right."""
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint})
    return right(np.concatenate([compiled([part])[0].copy() for part in np.split(images, 4)]))


correct = {"BF16, OpenVINO": answers(exported, hint="bf16"), "INT8, OpenVINO": answers(quantised)}
for name, each in correct.items():
    changed(name, each)

# %%
# %%writefile work/infer.py
"""Measure a network: python work/infer.py FILE HINT BATCH SECONDS"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import openvino

file, hint, batch, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
images = np.random.default_rng(0).random((batch, 28, 28, 1), dtype=np.float32)
model = openvino.Core().read_model(file)
model.reshape([batch, 28, 28, 1])
settings = {"INFERENCE_NUM_THREADS": int(os.environ["OMP_NUM_THREADS"]), "NUM_STREAMS": 1}
compiled = openvino.compile_model(model, "CPU", settings | {"INFERENCE_PRECISION_HINT": hint})
request = compiled.create_infer_request()
for _ in range(3):  # not timed: first use of memory
    request.infer([images])
times = []
while sum(times) < seconds:
    began = time.perf_counter()
    request.infer([images])
    times.append(time.perf_counter() - began)
nodes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
convolutions = [node for node in nodes if node["layerType"].astype(str) == "Convolution"]
kernels = [node["primitiveType"].astype(str) for node in convolutions]
result = {"images/s": batch / np.median(times), "kernels": kernels}
Path("work/infer.json").write_text(json.dumps(result))

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How fast will your integer network with eight outputs at a time be, compared with the fastest FP32
# network on your machine? A `vpdpbusd` multiplies four times as many numbers as an FP32 instruction.
#
# </div>

# %%
results.guess(2, "your integers vs the fastest FP32", ..., unit="×")

# %% [markdown]
# Each round runs all networks, on all cores and with the same batch, and measures the limits, with FP32, BF16 and INT8
# instructions on values in registers. Your network starts from codes, the others from FP32 numbers.

# %%
kernels = {}


def openvino_rate(name, file, hint="f32", **env):
    """Return a function that measures a network in a new process, in images/s."""

    def measure():
        run_ranks(1, "work/infer.py", f"work/{file}.xml", hint, BATCH, SECONDS, env=env, show=False)
        result = json.loads((work / "infer.json").read_text())
        kernels[name] = {*result["kernels"]}
        return result["images/s"]

    return measure


def your_rate(file, flags=()):
    program, images = build(file, flags), np.resize(test_codes, (BATCH, 28, 28, 1))
    return lambda: integer_net.run(program, layers, images, cores, SECONDS)[1]


batch = tf.constant(np.resize(digits.x_test, (BATCH, 28, 28, 1)))
in_graph = tf.function(lambda images: net(images, training=False))


# %%
def useful_operations():
    """Return the operations for an image, 2 for each product; without taps on padding."""
    side, total = 28, 0
    for layer in layers:
        if layer.kind == "pool":
            side //= 2
        else:  # a side of the kernel meets a pixel 3 · side − 2 times
            places = (3 * side - 2) ** 2 / 9 if layer.kind == "convolution" else 1
            total += 2 * places * layer.codes.size
    return total


def limit(dtype):
    """Return a function that measures the images/s that the best instruction would allow."""
    return lambda: peaks.fastest_instructions(machine.isa)[dtype]["speed"] * 1e9 / operations


operations = useful_operations()
limits = {"float32": "limit, FP32", "bfloat16": "limit, BF16", "int8": "limit, INT8"}
measurable = peaks.fastest_instructions(machine.isa)  # nothing without a compiler, and on Arm
print(f"{operations / 1e6:.1f} million operations for an image; limits by {[*measurable]}")

# %%
floor = "AVX512_CORE" if "AVX-512" in machine.isa else "AVX2"
entries = {
    "FP32, TensorFlow": per_second(lambda: in_graph(batch), BATCH, SECONDS),
    "FP32, OpenVINO": openvino_rate("FP32", "fp32"),
    "BF16, OpenVINO": openvino_rate("BF16", "fp32", "bf16"),
    "INT8, OpenVINO": openvino_rate("INT8", "int8"),
}
if has_vnni:
    capped = openvino_rate("INT8, no VNNI", "int8", ONEDNN_MAX_CPU_ISA=floor)
    entries["INT8, OpenVINO, no VNNI"] = capped
if not native.obstacle():
    entries["INT8, yours, ten lines"] = your_rate(layer_c)
    entries["INT8, yours"] = your_rate(layer_8)
if has_vnni and uses_vnni:
    entries["INT8, yours, no VNNI"] = your_rate(layer_8, NO_VNNI)
entries |= {name: limit(dtype) for dtype, name in limits.items() if dtype in measurable}
here = alternate(entries, ROUNDS, "images/s", "section 4")


# %%
def fastest_of(figures):
    return max(("FP32, TensorFlow", "FP32, OpenVINO"), key=lambda name: figures[name].value)


def show(figures):
    """Print a race, and the ratios that matter in it."""
    best = fastest_of(figures)
    for name, figure in figures.items():
        print(f"{name:24} {figure}")
    for name in ("INT8, yours, ten lines", "INT8, yours", "INT8, yours, no VNNI"):
        if name in figures:
            print(f"{name} vs {best}: {compare(figures[name], figures[best])}")
    if "INT8, yours" in figures:
        eight = compare(figures["INT8, yours"], figures["INT8, yours, ten lines"])
        print(f"eight at a time vs ten lines: {eight}")
    for name in ("INT8, OpenVINO", "INT8, yours"):
        if (capped := f"{name}, no VNNI") in figures:
            print(f"{name}, VNNI vs none: {compare(figures[name], figures[capped])}")


# %%
show(here)
race = here
if not uses_vnni:  # another machine's race, to compare with
    elsewhere = recorded("04-race")
    show(elsewhere.figures)
    if native.obstacle():
        race = elsewhere.figures
fastest = fastest_of(race)
yours, ten_lines = race["INT8, yours"], race["INT8, yours, ten lines"]
against = compare(yours, race[fastest])
results.compare_guess(2, against)
print(f"OpenVINO's kernels for convolutions: {kernels}")

# %%
tops = {fastest: "limit, FP32", "INT8, OpenVINO": "limit, INT8", "INT8, yours": "limit, INT8"}
reached = {name: share(race[name], race[top]) for name, top in tops.items() if top in race}
for name, part in reached.items():
    print(f"{name} reaches {part} of the limit")
gain = compare(here["INT8, OpenVINO"], here[fastest_of(here)])
of_limit = reached["INT8, OpenVINO"].value if "limit, INT8" in here else None
results.step("bits", gain, share=of_limit)

# %% [markdown]
# ### Why were we wrong?
#
# Four times the products per instruction don't give four times the speed. Are the products slow, or is the work around
# them? A layer with more inputs has more products for each sum that it finishes and stores. So measure single
# convolutions with 64 outputs and K inputs. The kit pads K with zeros to a multiple of 64.

# %%
CHANNELS = (1, 8, 32, 128)  # of 14 × 14 pixels; K is 9 times that


def giga_ops(file, channels):
    """Return a function that measures the GOP/s of a convolution to 64 channels, on all cores."""
    constants = np.ones((9 * channels, 64)), np.zeros(64), np.full(64, 1e-3)
    images = np.ones((BATCH, 14, 14, channels), np.uint8)
    case = build(file), [Layer("convolution", *constants)], images, cores, SECONDS / 5
    useful = 2 * (3 * 14 - 2) ** 2 * channels * 64  # without taps on padding, as above
    return lambda: useful * integer_net.run(*case)[1] / 1e9


# %%
names = [f"{way}, K = {9 * c:,}" for way in ("ten lines", "eight at a time") for c in CHANNELS]
if native.obstacle():
    values = [value for way in elsewhere.data["by_inputs"].values() for value in way]
    by_inputs = {name: Measured(value, unit="GOP/s") for name, value in zip(names, values)}
else:
    cases = [giga_ops(file, channels) for file in (layer_c, layer_8) for channels in CHANNELS]
    by_inputs = alternate(dict(zip(names, cases)), ROUNDS, "GOP/s", "section 4, by inputs")
    if uses_vnni:
        values = [figure.value for figure in by_inputs.values()]
        record("04-race", here, QUICK, by_inputs={"ten lines": values[:4], "eight": values[4:]})
for name, figure in by_inputs.items():
    print(f"{name:26} {figure}")
for ten, eight in zip(names[:4], names[4:]):
    print(f"{eight} vs ten lines: {compare(by_inputs[eight], by_inputs[ten])}")
if "limit, INT8" in race:
    print(f"limit: {race['limit, INT8'].value * operations / 1e9:,.0f} GOP/s")

# %%
results.answer(3, "What do your integers spend their time on, besides products?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# If the GOP/s grow with K, each output has a fixed cost for adding up the lanes of a vector of sums, requantising and
# storing. For small K, padding adds to it. At K = 9, only 9 of 64 products are useful. Libraries avoid some of that by
# arranging the weights so that each lane sums a different output. Copying the codes under a kernel side by side takes
# time, too.
#
# For each `vpdpbusd`, the ten lines load a vector of codes and one of weights. *Eight at a time* loads nine vectors for
# eight instructions. That can help even at K = 288, whose 18 kB of weights fit into the L1 cache. At K = 1,152, there
# are 74 kB, which the ten lines reload for each row.
#
# **With VNNI**, your integers may still beat the fastest FP32 network, but lose to OpenVINO's INT8. **Without it**, the
# program widens codes to 16 or 32 bits before it multiplies, and your integers lose to FP32. OpenVINO can still win,
# with three instructions that multiply and add pairs in 16 bits (where the sums may saturate), widen the sums, and add
# them up. Intel put their gain at 1.33×, and VNNI's at 4×. This assumes that all three compete for the same units. On
# AMD's Zen 4, additions have units of their own. The other two instructions compute 64 products, and two FP32
# multiply-adds 32, a factor of 2. With [**AMX**](../docs/learn/glossary.md#amx), OpenVINO multiplies whole tiles, and
# is further ahead.
#
# </details>
#
# ## 5 · In a different light {read 6, wait 0.3}
#
# On ordinary digits, the integers lose next to no accuracy. Now the light changes, and each pixel is multiplied by the
# same number, from 1/64 to 64. Floating-point formats represent it exactly, as it is a power of 4.
#
# INT8 needs a range. Three calibrations of your integers compete. One sees ordinary digits. Two see digits in all
# lights; in one, the codes reach up to the largest value, in the other, to the value that `choose_high` finds. NNCF's
# codes reach up to the mean of the images' largest values.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Does FP32 lose more digits in a light of 1/64, or of 64?
#
# </div>

# %%
results.guess(3, "the light in which FP32 loses most", ..., choices=("1/64", "64", "neither"))

# %%
LIGHTS = 2.0 ** np.arange(-6, 7, 2)
LABELS = [f"1/{1 / light:.0f}" if light < 1 else f"{light:.0f}" for light in LIGHTS]
random = np.random.default_rng(4)


def least_error(values):
    return choose_high(random.choice(values.ravel(), 20_000), 8)


def in_fp32(images):
    return right(net.predict(images, batch_size=100, verbose=0))


def in_integers(network, images):
    """Return which test digits the integer network gets right."""
    layers, step = network
    codes = codes_of(images, step)
    if native.obstacle():
        return right(np.concatenate([in_numpy(layers, part) for part in np.split(codes, 20)]))
    return right(integer_net.run(build(layer_8), layers, codes, at_least_s=0)[0])


all_lights = np.concatenate([light * calibration_images[::7] for light in LIGHTS]).astype("float32")
networks = {
    "ordinary light": calibrate(calibration_images),
    "all lights, largest": calibrate(all_lights),
    "all lights, least error": calibrate(all_lights, least_error),
}

# %%
ways = {"FP32": in_fp32} | {
    f"INT8: {name}": partial(in_integers, n) for name, n in networks.items()
}
by_light = {
    name: [100 * way(digits.x_test * np.float32(light)).mean() for light in LIGHTS]
    for name, way in ways.items()
}
print(" " * 30 + "".join(f"{label:>7}" for label in LABELS))
for name, shares in by_light.items():
    print(f"{name:30}" + "".join(f"{each:6.1f}%" for each in shares))
loses = by_light["FP32"][3] - by_light["FP32"][0], by_light["FP32"][3] - by_light["FP32"][-1]
worst = "neither" if max(loses) < 1 else LABELS[0] if loses[0] > loses[1] else LABELS[-1]
results.compare_guess(3, worst)

# %% [markdown]
# ### Why does FP32 lose?
#
# The cause isn't rounding. Convolutions, Relu and max pooling preserve proportions, so twice the input gives twice the
# output. Only the network's biases don't grow with the light. If they are to blame, multiplying them by the light
# restores all decisions:

# %%
adapted = digit_net()
for label, light in zip(LABELS, LIGHTS):
    adapted.set_weights([w * light if w.ndim == 1 else w for w in net.get_weights()])
    logits = adapted.predict(digits.x_test * np.float32(light), batch_size=100, verbose=0)
    changed(f"light {label}, biases × {label}", right(logits))

# %% [markdown]
# No one knows the light in advance. But dividing each image by its brightest pixel removes the light's effect before
# the first layer. This is **input normalisation**:


# %%
def normalised(images):
    return images / images.max(axis=(1, 2, 3), keepdims=True)


# %%
chosen = random.choice(LIGHTS, len(fp32)).astype("float32")
mixed = digits.x_test * chosen[:, None, None, None]  # each test digit in another light
plain, even = normalised(digits.x_test), normalised(mixed)
ordinary = networks["ordinary light"]
lights = nncf.Dataset([*all_lights[:, None]])
others = nncf.quantize(exported, lights, subset_size=len(all_lights))
bf16, library = race["BF16, OpenVINO"], race["INT8, OpenVINO"]
in_bf16, in_int8 = correct["BF16, OpenVINO"], correct["INT8, OpenVINO"]
points = {  # speed, and correct answers in ordinary and in mixed light
    "FP32": (race[fastest], fp32, in_fp32(mixed)),
    "FP32, normalised": (race[fastest], in_fp32(plain), in_fp32(even)),
    "BF16": (bf16, in_bf16, answers(exported, mixed, "bf16")),
    "BF16, normalised": (bf16, *(answers(exported, x, "bf16") for x in (plain, even))),
    "OpenVINO: ordinary light": (library, in_int8, answers(quantised, mixed)),
    "OpenVINO: all lights": (library, answers(others), answers(others, mixed)),
    "OpenVINO: normalised": (library, answers(quantised, plain), answers(quantised, even)),
}
for name, network in networks.items():
    points[f"yours: {name}"] = yours, *(in_integers(network, x) for x in (digits.x_test, mixed))
points["yours: normalised"] = yours, in_integers(ordinary, plain), in_integers(ordinary, even)

# %%
for place, light in ((1, "ordinary light"), (2, "mixed light")):
    print(f"{light}, vs FP32 in ordinary light:")
    for name, point in points.items():
        changed(f"  {name}", point[place])

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 2, figsize=(12, 5.5), sharex=True)
colors = {"F": plots.BLACK, "B": plots.SKY, "O": plots.BLUE, "y": plots.VERMILION}
for axis, place, title in zip(axes, (1, 2), ("ordinary light", "each digit in another light")):
    for (name, point), marker in zip(points.items(), "o*o*o^*o^v*"):
        rate, p, n = point[0], point[place].mean(), len(fp32)
        half = 1.96 * np.sqrt(p * (1 - p) / n + 1 / n**2)
        reach = np.nan_to_num([[rate.value - rate.low], [rate.high - rate.value]])
        color, size = colors[name[0]], {"o": 15, "*": 13}.get(marker, 11)
        line = dict(color=color, marker="", linestyle="", elinewidth=1.5, capsize=3)
        axis.errorbar(rate.value, 100 * p, 100 * half, reach, **line)
        look = dict(color=color, markersize=size, fillstyle="none", mew=2, linestyle="")
        axis.plot(rate.value, 100 * p, marker, label=name, **look)
    axis.set(xlabel="images/s", ylabel="accuracy (%)", title=title)
    axis.set_xlim(left=0)
figure.suptitle("Accuracy and speed, by format and calibration")
figure.legend(
    *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=11
)
plots.show(
    figure,
    alt="Accuracy in ordinary and in mixed light, and images/s: "
    + "; ".join(
        f"{name} {100 * a.mean():.1f}% and {100 * b.mean():.1f}%, {rate}"
        for name, (rate, a, b) in points.items()
    ),
    keep=results,
    watched=yours.contention,
)

# %%
results.answer(4, "Which format and calibration would you ship, and why?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# In ordinary light, all formats calibrated for it are about equally accurate, so the fastest wins, often a library's
# INT8. In a different light, even FP32 loses digits. The biases drown out dim images, but merely vanish in bright ones.
# Integers inherit this loss, and the wrong range costs more than the format. If the range reaches up to the brightest
# values, its steps swallow dim and even some ordinary digits. Choosing it by the least error changes little, because
# bright images dominate the squared errors. With normalised images, one calibration fits all, and every format regains
# its accuracy. (The speeds in the picture leave out the division.) So look at FP32 first, and fix the input.
#
# </details>
#
# **Finished early?** How few calibration images suffice for your integers to be no worse than FP32? Try 1, 10, and
# digits of one class.
#
# ## 6 · Weights alone in 4 bits {read 5, wait 1, optional}
#
# Language models keep **only their weights** in INT4, where 32 to 128 weights share a 16-bit scale. They are unpacked
# just before the multiplication, so this [**weight-only
# quantisation**](../docs/learn/glossary.md#weight-only-quantisation) saves no arithmetic, but it moves fewer bytes. How
# few bits do your own network's weights need?


# %%
def with_weights_in(bits):
    """Return the trained network, its weights rounded to codes of this number of bits."""
    few = digit_net()
    few.set_weights(net.get_weights())
    for layer in few.layers:
        if hasattr(layer, "kernel"):
            kernel = layer.kernel.numpy()
            scale = np.abs(kernel).max(axis=tuple(range(kernel.ndim - 1))) / (2 ** (bits - 1) - 1)
            layer.kernel.assign(np.round(kernel / scale) * scale)
    return few


for bits in (8, 4, 3, 2):
    logits = with_weights_in(bits).predict(digits.x_test, batch_size=100, verbose=0)
    changed(f"weights in {bits} bits", right(logits))

# %% [markdown]
# The next cell creates dense layers with random weights. In INT4, they are over twice the size of the last-level cache,
# if memory allows.

# %%
BYTES = {"FP32": 4, "INT8": 1, "INT4": 0.5 + 2 / 64}  # of a weight, with its share of a scale
cache = peaks.last_level_cache(machine.cpus) or 2**26  # bytes, if the kernel reports none
room = int(machine.memory_free / 8 / (4 * WIDTH**2))
LAYERS = max(2, min(MAX_LAYERS, room, int(2 * cache / (BYTES["INT4"] * WIDTH**2)) + 1))
print(f"{LAYERS} layers: {LAYERS * WIDTH**2 * BYTES['INT4'] / cache:.1f} × the cache in INT4")


def dense_requests():
    """Return an OpenVINO request for the dense layers in each format."""
    signal = vectors = ops.parameter([-1, WIDTH], np.float32)
    for _ in range(LAYERS):
        weights = random.standard_normal((WIDTH, WIDTH), dtype="float32") / WIDTH**0.5
        signal = ops.relu(ops.matmul(signal, ops.constant(weights), False, True))
    model = openvino.Model([signal], [vectors], "dense")
    int4 = dict(mode=nncf.CompressWeightsMode.INT4_SYM, group_size=64, all_layers=True)
    modes = {"INT8": dict(mode=nncf.CompressWeightsMode.INT8_SYM), "INT4": int4}
    models = {name: nncf.compress_weights(model.clone(), **mode) for name, mode in modes.items()}
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": cores}
    settings |= {"NUM_STREAMS": 1, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}  # 0: vectors stay FP32
    return {
        name: core.compile_model(each, "CPU", settings).create_infer_request()
        for name, each in ({"FP32": model} | models).items()
    }


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** FP32 takes 7.5× the bytes of INT4. How much faster is INT4 with one vector, as when a model writes
# for one reader?
#
# </div>

# %%
results.guess(4, "one vector, weights in INT4 vs FP32", ..., unit="×")

# %%
requests = dense_requests()
inputs = {n: random.standard_normal((n, WIDTH), dtype="float32") for n in (1, 64)}
entries = {
    f"{n} at once, {name}": per_second(lambda n=n, one=one: one.infer([inputs[n]]))
    for n in inputs
    for name, one in requests.items()
}
if not native.obstacle():
    for name in ("FP32", "INT4"):
        size = LAYERS * WIDTH**2 * BYTES[name]
        entries[f"reading {name}"] = lambda size=size: convolution.read(cores) / size
dense = alternate(entries, WEIGHT_ROUNDS, "passes/s", "section 6")
del requests, entries  # and their memory
for name, figure in dense.items():
    print(f"{name:18} {figure}")
one_reader, many = (
    compare(dense[f"{n} at once, INT4"], dense[f"{n} at once, FP32"]) for n in (1, 64)
)
print(f"INT4 vs FP32, one vector: {one_reader}\nINT4 vs FP32, 64 vectors: {many}")
for name in ("FP32", "INT4") if "reading INT4" in dense else ():
    part = share(dense[f"1 at once, {name}"], dense[f"reading {name}"])
    print(f"1 at once, {name}: {part} of reading")
results.compare_guess(4, one_reader)
results.hand_in("6", ("1 vector, weights in INT4 vs FP32", "", one_reader, "7.5×, by bytes"))

# %%
results.answer(5, "For whom are weights in 4 bits worth most?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# For one reader. With one vector, each weight that is read is used once, so the bytes determine the speed. If INT4
# reaches a smaller share of the reading speed than FP32 does, unpacking limits it. With 64 vectors, each weight is used
# 64 times, so arithmetic dominates. It is the same in all formats, and little of the gain is left.
#
# </details>
#
# ## Questions {read 2}
#
# 1. Why is INT8 used for inference and not for training?
# 2. What is different about INT8, and what replaces the exponent?
# 3. Why do sums of 8-bit products need 32 bits?
# 4. What does INT8 save besides computing time?
# 5. What would a zero point other than 0 cost, for activations and for weights?
# 6. Why must calibration images look like those that the network meets later?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers.
#
# 1. In inference, ranges are known and a little noise is harmless. In training, gradients span many powers of ten, and
#    updates are smaller than one 8-bit step.
# 2. A scale replaces the exponent, one for a whole tensor or channel. So the absolute error is constant, not the
#    relative one.
# 3. A product can reach 255 × 127 = 32,385. A 16-bit sum has room for one of these, and a 32-bit sum for 66,311.
# 4. It saves three quarters of memory and memory traffic, and some energy.
# 5. For activations, it costs a correction by the sum of each output's weights, which is known in advance and belongs
#    in the bias. For weights, it needs the sum of each row's codes, which is known only once the image has arrived.
# 6. They determine the ranges. Values beyond them are clipped, and a range that is too wide leaves few codes.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Other machines, timing, and what goes wrong.
#
# - **No VNNI, or GCC before 12**: students' integers lose to FP32, and a recorded race shows them winning. AVX2 with
#   VNNI multiplies 32 codes at once. With AMX, the limits are for tiles, which the students' C doesn't use. Without
#   BF16 instructions, BF16 is emulated, or runs in FP32.
# - **Arm**: with i8mm, the compiler emits `usdot`. oneDNN can't be capped and no limit is measured, so these rows are
#   missing.
# - **Many cores**: the batch grows with the core count.
# - **No compiler**: exercises 5 and 6 can't be attempted, NumPy runs the integer network, and the race is a recording.
# - **Timing**: start the race before you talk about section 5.
# - **What goes wrong**: an `if` in the loop that requantises makes it several times slower, as the compiler then
#   doesn't vectorise it.
#
# </div>

# %% [markdown]
# ## Remember
#
# - FP16 has digits, BF16 has range, and INT8 has a scale and one step for all sizes.
# - An integer layer is 8-bit products, a 32-bit sum that starts with the bias, and one factor.
# - Simple innermost loops let a compiler use VNNI.
# - Compare with the fastest baseline, and state its format.
# - Normalise the input before you blame the format, and calibrate with images like those to come.
#
# The closing table:

# %% jupyter={"source_hidden": true}
top_fp32, top_bf16, top_int8 = (race.get(f"limit, {name}") for name in ("FP32", "BF16", "INT8"))


def times_fp32(top):
    return f"{top.value / top_fp32.value:.2f}×, by instructions" if top and top_fp32 else ""


rows = [
    ("fastest FP32", "", race[fastest], str(top_fp32 or "")),
    ("INT8, yours, ten lines", "", ten_lines, str(top_int8 or "")),
    ("INT8, yours, eight at a time", "", yours, str(top_int8 or "")),
    ("yours vs the fastest FP32", "", against, ""),
    (
        "BF16, OpenVINO, vs FP32",
        "2×, FP16 on a V100 (2018)",
        compare(race["BF16, OpenVINO"], race[fastest]),
        times_fp32(top_bf16),
    ),
    ("INT8, OpenVINO, vs FP32", "4×, by VNNI instructions", gain, times_fp32(top_int8)),
]
if "INT8, OpenVINO, no VNNI" in race:
    none = compare(race["INT8, OpenVINO, no VNNI"], race[fastest])
    rows.append(("INT8, OpenVINO, no VNNI, vs FP32", "1.33×, by instructions", none, ""))
int4 = ("1 vector, weights in INT4 vs FP32", "")
results.table("Fewer bits", [*rows, *results.handed_in("6", int4)])

# %% [markdown]
# The V100 trained ResNet-50; section 2 asks what else changed. The published instruction counts are from F. Baruffa,
# *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019. Loss scaling: Micikevicius et al., *Mixed
# Precision Training*, arXiv 1710.03740.
#
# **Next:** in [lab 05](05_tuning.ipynb), a program searches for the best settings.
