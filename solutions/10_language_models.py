# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: write attention and its cache, and forecast today's models on your machine
#     needs: [ISA, memory, TensorFlow, MPI, OpenVINO]
#     better_with: [cores]
# ---

# %% [markdown]
# # 10 · Language models
#
# **You will learn** how a transformer writes text; why reading a prompt and writing an answer meet different limits of
# your machine; what a cache, fewer bits, larger batches and a draft change; and how to predict the speed of models that
# you have not downloaded.
#
# **Time** {minutes}
#
# **Connects to** lab 03, which measured the two numbers; lab 04, which quantised a CNN; lab 06, which split a layer
# over ranks.
#
# **No model is downloaded.** Speed depends on a model's sizes, not on the values of its weights, so it is measured with
# random weights. Quality depends on the values, so it is measured on a small model that you train in about two minutes,
# on a text that comes with every Python.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("10", globals())
cores = machine.usable_cores

# %%
import gc
import json
import logging
import math
import tempfile
import time
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import keras
import matplotlib.pyplot as plt
import nncf
import numpy as np
import openvino
import rich
import tensorflow as tf
from IPython.display import display
from matplotlib.ticker import LogLocator, NullLocator

from labkit.data import characters
from labkit.display import ladder, markdown, plots
from labkit.display.consistency import Prediction, repeated, score, total
from labkit.display.measured import Measured
from labkit.models import published, serving
from labkit.models.decoder import Decoder, Shape, for_genai, openvino_model, random_weights
from labkit.models.openvino_core import openvino_core
from labkit.mpi import placement, run_ranks
from labkit.roofline import measure, peaks, readers
from labkit.system import load
from labkit.system.statistics import ratio, ratios

nncf.set_log_level(logging.ERROR)
rich.reconfigure(quiet=True, force_jupyter=False)  # no progress bars from NNCF

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
CONTEXT = 32 if QUICK else 128  # characters that the trained model looks back on
STEPS, BATCH = (12, 4) if QUICK else (1000, 12)  # of training: section 1
LENGTHS, LENGTH_ROUNDS = ((8, 24), 2) if QUICK else ((16, 32, 48, 64, 96, 127), 8)  # section 2
WIDTH = 256 if QUICK else 2048 if machine.memory_free > 5e9 else 1280  # of section 3's model
PROMPT, ROUNDS, PASSES = (16, 2, 2) if QUICK else (256, 6, 6)  # sections 3 and 4
AT_ONCE = (1, 4) if QUICK else (1, 2, 4, 8, 16, 32, 64)  # requests: section 5
CONTEXTS = (16, 64) if QUICK else (64, 512, 1536)  # cached tokens: section 5
BATCH_ROUNDS, BATCH_PASSES = (2, 1) if QUICK else (6, 3)  # section 5
TEXTS, WRITTEN, DRAFT_ROUNDS = (4, 8, 2) if QUICK else (12, 64, 6)  # section 7
ARRIVALS = 20 if QUICK else 200  # simulated requests: section 8
RANK_ROUNDS = 2 if QUICK else 6  # section 9
split_shape = (3, 256) if QUICK else (4, 1280)  # layers, width: sections 9 and 10

text = characters.load_characters()
print(text.source)

# %% [markdown]
# ## 1 · A transformer, small and whole {read 7, do 4, wait 1.4}
#
# A language model answers one question: *given the text so far, what comes next?* The text is cut into
# [**tokens**](../docs/glossary.md#token): here one of 128 characters, in chat models a piece of a word. The model
# returns a number for each possible next token, its *logit*. Append a likely token, ask again, and the model writes.
#
# Most language models are [**transformers**](../docs/glossary.md#transformer), stacks of equal blocks:
#
# ```mermaid
# flowchart LR
#     accTitle: A transformer
#     accDescr: Tokens become vectors. Blocks follow. Each adds attention, then two matmuls. At the end are the logits.
#     tokens["tokens"] --> embed["a vector each,<br>plus its position's"]
#     embed --> attend["attention:<br>look up earlier tokens"]
#     subgraph block["block, repeated"]
#         attend --> think["two matmuls<br>with GELU between"]
#     end
#     think --> logits["logits of the<br>next token"]
# ```
#
# The matmuls treat all tokens alike. Only in [**attention**](../docs/glossary.md#attention) do tokens look at each
# other. Each token has three vectors: a *query*, what it looks for; a *key*, by which it is found; and a *value*, what
# it passes on. Its *heads* look for different things.

# %% [markdown]
# ### Exercise 1 · What a token may see
#
# `attention(q, k, v)` lacks one line. `q` holds the queries of the last *n* tokens, an array (heads, n, d). `k` and `v`
# hold the keys and the values of all *m* tokens so far, (heads, m, d); *m* is *n*, or larger. The score of a query and
# a key is their dot product, divided by √*d*. [**Softmax**](../docs/glossary.md#softmax) turns the scores of a query
# into shares that sum to 1, and the result is the sum of the values, each times its share.
#
# No token may see a later one. Write the line that computes `later`: an array (n, m), `True` where key *j* belongs to a
# later token than query *i*. The last query belongs to the last token, which sees all keys.


# %%
def attention(q, k, v):
    """Return the values of the tokens up to each query's own, weighted by attention."""
    n, m, d = q.shape[1], k.shape[1], q.shape[2]
    scores = q @ k.transpose(0, 2, 1) / d**0.5
    ### BEGIN SOLUTION
    later = np.arange(m) > np.arange(m - n, m)[:, None]
    ### END SOLUTION
    scores = np.where(later, -np.inf, scores)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True) @ v


# %% tags=["nbval-check-output"]
attention = check(1, attention)

# %% [markdown]
# This is the rest of the model, in NumPy, with your attention inside. `norm` keeps the vectors at one size (*RMSNorm*),
# and GELU is a smooth ReLU.


# %%
class Network(NamedTuple):
    shape: Shape  # layers, width, heads
    weights: dict  # arrays (in, out) by name


def norm(x):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978846 * (x + 0.044715 * x * x * x)))


def forward(network, tokens, cache=None):
    """Return the logits (n, 128) after each of n tokens; `cache` holds earlier keys and values."""
    shape, weights = network
    before = cache[0][0].shape[1] if cache else 0
    x = weights["embed"][tokens] + weights["position"][before : before + len(tokens)]
    for layer in range(shape.layers):
        qkv = norm(x) @ weights[f"{layer}.qkv"]
        q, k, v = qkv.reshape(len(x), 3, shape.heads, -1).transpose(1, 2, 0, 3)
        if cache is not None:
            k, v = cache[layer] = remember(cache.get(layer), k, v)  # section 2
        heads = np.asarray(attention(q, k, v), np.float32)
        x = x + heads.transpose(1, 0, 2).reshape(x.shape) @ weights[f"{layer}.out"]
        x = x + gelu(norm(x) @ weights[f"{layer}.up"]) @ weights[f"{layer}.down"]
    return norm(x) @ weights["logits"]


SMALL = Shape(layers=4, width=128, heads=4, context=CONTEXT)
untrained = Network(SMALL, random_weights(SMALL))
print(f"{sum(weights.size for weights in untrained.weights.values()):,} weights")

# %% [markdown]
# Training needs gradients, so the next cell (folded) has the same model in TensorFlow. Do both return the same logits?


# %% jupyter={"source_hidden": true}
def norm_tf(x):
    return x * tf.math.rsqrt(tf.reduce_mean(x * x, axis=-1, keepdims=True) + 1e-5)


def forward_tf(shape, weights, tokens):
    """Return the logits (batch, n, 128) after each of n tokens, in a batch of texts."""
    n, head_size = tokens.shape[1], shape.head_size
    hidden = tf.constant(np.where(np.tri(n, dtype=bool), 0, -np.inf), tf.float32)
    x = tf.gather(weights["embed"], tokens) + weights["position"][:n]
    for layer in range(shape.layers):
        qkv = norm_tf(x) @ weights[f"{layer}.qkv"]
        qkv = tf.reshape(qkv, (-1, n, 3, shape.heads, head_size))
        q, k, v = tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))
        shares = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / head_size**0.5 + hidden)
        heads = tf.reshape(tf.transpose(shares @ v, (0, 2, 1, 3)), (-1, n, shape.width))
        x += heads @ weights[f"{layer}.out"]
        x += (
            tf.nn.gelu(norm_tf(x) @ weights[f"{layer}.up"], approximate=True)
            @ weights[f"{layer}.down"]
        )
    return norm_tf(x) @ weights["logits"]


sample = text.held_out[:CONTEXT].astype(np.int32)
logits_tf = forward_tf(SMALL, untrained.weights, sample[None])[0].numpy()
gap = np.abs(forward(untrained, sample) - logits_tf).max()
print(f"largest difference of a logit, NumPy vs TensorFlow: {gap:.1e}")

# %% [markdown]
# How good is a model? Take the probability that it gave to the character that really came next. The **loss** is minus
# the natural logarithm of that, averaged over a text.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** A model that knows nothing gives each of the 128 characters the same probability. What is its loss?
# And after two minutes of training?
#
# </div>

# %%
results.guess(1, "loss of the trained model, on text that it has not seen", ..., unit="nats")

# %% [markdown]
# The text is the documentation behind Python's `help()`; every tenth of its topics is held out. While it trains (loop
# folded), the model also writes 60 characters.


# %% jupyter={"source_hidden": true}
def loss_of(logits, tokens):
    """Return minus the logarithm of each token's probability."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[..., 1:], logits[..., :-1, :])


def held_out_texts():
    """Return the held-out text in pieces (n, CONTEXT)."""
    pieces = len(text.held_out) // CONTEXT
    return text.held_out[: pieces * CONTEXT].reshape(pieces, CONTEXT).astype(np.int32)


def write(network, prompt, count, seed=0):
    """Return a prompt and its continuation, each character drawn by its probability."""
    rng, tokens = np.random.default_rng(seed), list(characters.to_tokens(prompt))
    for _ in range(count):
        logits = forward(network, np.array(tokens[-CONTEXT:]))[-1] / 0.7  # less than 1: bolder
        chances = np.exp(logits - logits.max())
        tokens.append(rng.choice(len(chances), p=chances / chances.sum()))
    return characters.to_text(tokens)


def train(shape, steps):
    """Return a network after `steps` steps of training, and its held-out loss on the way."""
    variables = {name: keras.Variable(array) for name, array in random_weights(shape).items()}
    values = {name: variable.value for name, variable in variables.items()}
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, alpha=0.05, warmup_target=4e-3, warmup_steps=max(1, steps // 20)
    )
    optimizer = keras.optimizers.Adam(rate, beta_2=0.99)
    optimizer.build(list(variables.values()))
    rng, seen = np.random.default_rng(1), text.train.astype(np.int32)
    pieces = held_out_texts()[: 8 if QUICK else None]

    @tf.function
    def step(texts):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of(forward_tf(shape, values, texts), texts))
        gradients = map(tf.convert_to_tensor, tape.gradient(loss, list(values.values())))
        optimizer.apply_gradients(zip(gradients, variables.values()))
        return loss

    @tf.function
    def loss_on(texts):
        return tf.reduce_mean(loss_of(forward_tf(shape, values, texts), texts), axis=1)

    def held_out_loss():
        parts = np.array_split(pieces, 4)
        return np.concatenate([loss_on(part).numpy() for part in parts]).mean()

    losses, began = {0: held_out_loss()}, time.perf_counter()
    for number in range(1, steps + 1):
        first = rng.integers(0, len(seen) - CONTEXT, BATCH)
        step(tf.constant(seen[first[:, None] + np.arange(CONTEXT)]))
        if number % max(1, steps // 8) == 0:
            losses[number] = held_out_loss()
            network = Network(shape, {name: value.numpy() for name, value in values.items()})
            seconds = time.perf_counter() - began
            print(f"step {number:5}, {seconds:3.0f} s: loss {losses[number]:.2f}", flush=True)
            print(f"    {write(network, 'The ', 60)!r}", flush=True)
    return network, losses


# %%
print("Training: about two minutes", flush=True)
with load.watch("section 1") as training_others:
    network, training_losses = train(SMALL, STEPS)
print(f"before: {training_losses[0]:.2f}; equal probabilities: {math.log(128):.2f}", end="; ")
final_loss = training_losses[max(training_losses)]
print(f"after: {final_loss:.2f}")
results.compare_guess(1, Measured(final_loss, unit="nats", digits=2))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
axis.plot(list(training_losses), list(training_losses.values()), color=plots.BLUE)
axis.axhline(math.log(128), linestyle="--", color="black", marker="")
axis.annotate(
    "all 128 equally likely",
    (STEPS, math.log(128)),
    (0, -16),
    textcoords="offset points",
    ha="right",
)
axis.set(xlabel="training step", ylabel="loss on held-out text (nats)", ylim=(0, None))
axis.set(title="A character model learns Python's documentation")
plots.show(
    figure,
    alt="Loss on held-out text by training step: "
    + ", ".join(f"{step}: {loss:.2f}" for step, loss in training_losses.items()),
    keep=results,
)

# %% [markdown]
# Before training, the loss is above that of equal probabilities: random weights prefer some characters strongly.
# *e* to the power of minus the loss is the probability that the model gave the right character, as a geometric
# mean. Large models learn the same way, with 10,000 to a million times as many weights, and more than a million times
# as much text.
#
# Published for this size: [nanoGPT's recipe for a CPU](https://github.com/karpathy/nanoGPT), 0.8 million weights, about
# 3 minutes on a laptop, a loss of 1.88 on Shakespeare.

# %% [markdown]
# ## 2 · Generating {read 4, do 4, wait 0.1}
#
# To write a character, `write` computes the keys and values of all earlier ones again, although they have not changed:
# no token sees later ones. So store them in a [**KV cache**](../docs/glossary.md#kv-cache). Then each token is computed
# once.
#
# ### Exercise 2 · The cache
#
# Write `remember(past, k, v)`. `k` and `v` are the keys and the values of *n* new tokens in one layer, arrays (heads,
# n, d). `past` is a pair of arrays, the keys and the values of the *m* tokens before them, (heads, m, d) each, or
# `None` if there are none. Return the pair of all keys and all values so far, (heads, m + n, d) each, in the order of
# the tokens. Don't modify `past`.


# %%
def remember(past, k, v):
    """Return all keys and all values so far."""
    ### BEGIN SOLUTION
    if past is None:
        return k, v
    keys, values = past
    return np.concatenate([keys, k], axis=1), np.concatenate([values, v], axis=1)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
remember = check(2, remember)

# %% [markdown]
# Does reading one token at a time give the same logits? And how long does the next token take?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** After 127 characters, how much faster is the next one with the cache than without it?
#
# </div>

# %%
results.guess(2, "a token with the cache vs without, at the longest text", ..., unit="×")

# %%
sample_cache = {}
one_by_one = np.concatenate(
    [forward(network, sample[place : place + 1], sample_cache) for place in range(CONTEXT)]
)
print(f"largest difference of a logit: {np.abs(one_by_one - forward(network, sample)).max():.1e}")


def without_cache(length):
    forward(network, sample[:length])


def with_cache(length):
    end = length - 1
    past = {layer: (k[:, :end], v[:, :end]) for layer, (k, v) in sample_cache.items()}
    forward(network, sample[length - 1 : length], past)


# %% jupyter={"source_hidden": true}
def seconds_of(function, *arguments, calls=10):
    """Return the mean seconds of a call."""
    began = time.perf_counter()
    for _ in range(calls):
        function(*arguments)
    return (time.perf_counter() - began) / calls


def spread(values, unit="", scale=1.0, digits=2):
    """Return the median of what rounds measured, and the range of the middle half of them."""
    low, middle, high = np.percentile(np.array(values) * scale, (25, 50, 75))
    return Measured(middle, low, high, unit, digits=digits)


token_rates = {
    (function, length): [] for function in (without_cache, with_cache) for length in LENGTHS
}
with load.watch("section 2") as cache_others:
    for turn in range(-1, LENGTH_ROUNDS):  # the first does not count
        for (function, length), rates in token_rates.items():
            seconds = seconds_of(function, length)
            if turn >= 0:
                rates.append(1 / seconds)
cache_ms = {
    key: spread(1 / np.array(rates), "ms", 1000) for key, rates in token_rates.items()
}  # median and middle half
for length in LENGTHS:
    print(f"{length:4} characters: without the cache {cache_ms[without_cache, length]}", end="; ")
    print(f"with it {cache_ms[with_cache, length]}")
cache_gain = ratio(
    *(token_rates[function, LENGTHS[-1]] for function in (with_cache, without_cache))
)
print(f"at {LENGTHS[-1]} characters: {Measured(*cache_gain, '×')}: {cache_gain.verdict}")
results.compare_guess(2, Measured(*cache_gain, "×"))


def log_ticks(axis):
    """Label a logarithmic axis 1, 2, 5, 10 and so on."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_locator(NullLocator())


def bars(figures):
    """Return the values of several figures, and their intervals as matplotlib takes them."""
    value, low, high = np.array(
        [(measured.value, measured.low, measured.high) for measured in figures]
    ).T
    return value, np.nan_to_num([value - low, high - value]).clip(0)


figure, axis = plt.subplots()
for function, label, colour, style in (
    (without_cache, "all characters again", plots.ORANGE, "s--"),
    (with_cache, "only the new one", plots.BLUE, "o-"),
):
    middle, reach = bars([cache_ms[function, length] for length in LENGTHS])
    axis.errorbar(LENGTHS, middle, reach, fmt=style, color=colour, label=label, capsize=4)
axis.set(xlabel="characters so far", ylabel="ms for the next one", ylim=(0, None))
axis.set(title="What the cache saves")
axis.legend()
plots.show(
    figure,
    alt="Milliseconds for the next character, without and with the cache: "
    + "; ".join(
        f"at {length}, {cache_ms[without_cache, length].value:.2f} and "
        f"{cache_ms[with_cache, length].value:.2f}"
        for length in LENGTHS
    ),
    watched=[cache_others],
)

# %% [markdown]
# With the cache, the time is nearly flat: there are more keys and values to read, but here they are few. What remains
# is mostly not arithmetic. The matmuls of one token are 2 · 0.8 million operations, tens of microseconds. But a token
# takes about 190 calls of NumPy, and each has a fixed cost. This **overhead** limits small models, a third limit
# besides arithmetic and memory.
#
# A cache costs memory: 2 · layers · width numbers per token of every request.

# %% [markdown]
# ## 3 · Prefill is not decode {read 7, do 7, wait 0.65}
#
# First the model reads your prompt: all its tokens go through the blocks at once. That is
# [**prefill**](../docs/glossary.md#prefill), and it determines the [**time to first
# token**](../docs/glossary.md#time-to-first-token) (TTFT). Then the model writes, one token per pass:
# [**decode**](../docs/glossary.md#decode), which determines the time per output token (TPOT). Both are the same matmuls
# with the same weights. Which limit does each meet? Count first.

# %% [markdown]
# ### What real models change
#
# In [**grouped-query attention**](../docs/glossary.md#grouped-query-attention) (GQA), several heads share one head of
# keys and values. In a [**mixture of experts**](../docs/glossary.md#mixture-of-experts) (MoE), a router sends each
# token through a few of many experts per block.
#
# | | what it is | what it changes in the count |
# | --- | --- | --- |
# | RoPE | rotates queries and keys by their positions | nothing |
# | SwiGLU | three matmuls in place of the two around GELU | 3 · width · *inner* weights, not 8 · width² |
# | GQA | `kv_heads` is less than `heads` | the cache, and reading it: × kv_heads / heads |
# | tokenisers | 128,000 to 262,000 pieces of words | fewer tokens per text; a large matmul for logits |
# | MoE | a token passes 8 of 128 experts, say | it reads the *active* weights; memory holds *all* |
# | hybrids | most blocks look back on a short window, or keep a fixed state | the cache grows in few blocks |
#
# Hybrids: Gemma 3 has windows, Qwen3-Next states.

# %% [markdown]
# ### Exercise 3 · Operations and bytes
#
# Write `cost(tokens, cached, model, weight_bytes, kv_bytes)` for one pass of one request: `tokens` new ones, at least
# one, after `cached` others. `model` has `layers`, `heads`, `kv_heads`, `head_size` (numbers per head) and
# `active_weights` (of all layers together). Return a tuple of three numbers:
#
# - *operations*: each active weight is multiplied and added once per new token. In attention, in each layer and each
#   head, each new token multiplies its query by the keys that it may see, including its own, and then the shares by as
#   many values. A multiplication with its addition is two operations.
# - *bytes of the weights*: each active weight is read once, `weight_bytes` each, whatever the number of tokens.
# - *bytes of the cache*: in each layer and each KV head, the keys and values of the cached tokens are read and those
#   of the new ones written, once each, `kv_bytes` per number.
#
# Leave out all else.


# %%
def cost(tokens, cached, model, weight_bytes, kv_bytes):
    """Return the operations, the bytes of the weights and the bytes of the KV cache of one pass."""
    ### BEGIN SOLUTION
    pairs = tokens * cached + tokens * (tokens + 1) // 2  # of a query and a key that it sees
    attended = 4 * model.layers * model.heads * model.head_size * pairs
    operations = 2 * model.active_weights * tokens + attended
    per_token = 2 * model.layers * model.kv_heads * model.head_size  # numbers in the cache
    return operations, weight_bytes * model.active_weights, kv_bytes * per_token * (cached + tokens)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
cost = check(3, cost)

# %% [markdown]
# Now a larger model, or DRAM would never be read. The next cell
# (folded) makes one with random weights, of at least four times the last cache if the memory allows: the model of
# section 1, wider, in OpenVINO, which keeps the KV cache itself.

# %% jupyter={"source_hidden": true}
cache_bytes = peaks.last_level_cache(machine.cpus)
layer_weights = 12 * WIDTH**2
needed = math.ceil(4 * cache_bytes / layer_weights)
allowed = int(machine.memory_free / 3 / (32 * layer_weights))  # 32 bytes a weight, in all formats
LARGE = Shape(
    layers=max(2, min(3 if QUICK else max(3, needed), allowed)),
    width=WIDTH,
    heads=WIDTH // 64,
    context=max(512, CONTEXTS[-1] + 64),
)
print(
    f"{LARGE.layers} blocks of width {WIDTH:,}: {LARGE.block_weights / 1e6:.0f} million weights, ",
    end="",
)
print(f"{4 * LARGE.block_weights / 1e6:,.0f} MB in FP32. Last cache: {cache_bytes / 1e6:.0f} MB.")
if 4 * LARGE.block_weights < 2 * cache_bytes:
    print("The weights may fit into the caches: decode can then be faster than memory.")
large_weights = random_weights(LARGE)
model = openvino_model(LARGE, large_weights)
gc.collect()

# Formats: OpenVINO's model, the bytes of a weight, settings.
formats = {"FP32": (model, 4, {}), "BF16": (model, 2, {"INFERENCE_PRECISION_HINT": "bf16"})}
threads = {"INFERENCE_NUM_THREADS": cores}
decoders = {
    name: Decoder(graph, **threads, **settings) for name, (graph, _, settings) in formats.items()
}
no_bf16 = decoders["BF16"].compiled.get_property("INFERENCE_PRECISION_HINT") != openvino.Type.bf16
if no_bf16:
    formats["BF16"], decoders["BF16"] = formats["FP32"], decoders["FP32"]
    print("BF16: not here. OpenVINO has no BF16 on this CPU, so the lines of BF16 are FP32's.")

# %% [markdown]
# The limits are the two numbers of `./lab roofline`: how fast this machine multiplies matrices, and how fast it reads
# memory. No program is the fastest reader everywhere, so several read here: a loop in C if there is a compiler, NumPy's
# maximum and its matmul. **The fastest of them is the limit.** On a shared machine it can change from minute to minute,
# so the next cell reads memory before and after each round of the model, and the round's limit is the higher of both.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In FP32, how many times the tokens/s of decode will prefill reach?
#
# </div>

# %%
results.guess(3, "tokens/s, prefill vs decode, FP32", ..., unit="×")

# %%
limits = measure.limits(quick=QUICK)
kinds = {"FP32": "float32", "BF16": "float32" if no_bf16 else "bfloat16"}
peak = {name: limits.peak(kind) for name, kind in kinds.items()}
memory = readers.Memory(machine, 3 * peaks.array_bytes(machine, cache_bytes))
read_memory = memory.read  # GB/s of the fastest reader


def tokens_per_second(decoder, batch, tokens, cached, passes):
    """Return the tokens/s of passes of `tokens` for each text of a batch, after `cached` ones."""
    rng = np.random.default_rng(0)
    if decoder.length != cached:
        decoder.reset()
        if cached:
            decoder.forward(rng.integers(0, 128, (batch, cached)))
    new = rng.integers(0, 128, (batch, tokens))
    if cached:  # another shape than before: this pass chooses kernels, and does not count
        decoder.forward(new)
    return batch * tokens / seconds_of(decoder.forward, new, calls=passes)


def measure_formats(names, rounds):
    """Return the limit of reading in GB/s, and the tokens/s of each format, round by round."""
    limit, prefill, decode = [], {name: [] for name in names}, {name: [] for name in names}
    for turn in range(-1, rounds):  # the first does not count
        limit.append(read_memory())
        for name in names:
            fast = tokens_per_second(decoders[name], 1, PROMPT, 0, 1)
            slow = tokens_per_second(decoders[name], 1, 1, PROMPT, PASSES)
            if turn >= 0:
                prefill[name].append(fast)
                decode[name].append(slow)
        print(f"round {max(turn + 1, 0)} of {rounds}: memory {limit[-1]:.0f} GB/s", flush=True)
    limit.append(read_memory())
    return [max(pair) for pair in pairwise(limit[1:])], prefill, decode


with load.watch("section 3") as speed_others:
    reading, prefill, decode = measure_formats(decoders, ROUNDS)
print(f"The fastest reader in most rounds: {memory.fastest}")

# %% [markdown]
# A pass takes at least as long as its operations at the peak, and at least as long as its bytes at the memory's speed.
# The larger of the two is the prediction. How far is it from what you measured?


# %%
def predict(name, tokens, cached, gb_per_second, requests=1, model=LARGE):
    """Return the tokens/s that the two limits allow, and which of them applies."""
    operations, weights, cache = cost(tokens, cached, model, formats[name][1], 4)
    by_cores = requests * operations / (1e9 * peak[name])
    by_memory = (weights + requests * cache) / (1e9 * gb_per_second)  # the weights once for all
    limit = "arithmetic" if by_cores > by_memory else "memory"
    return requests * tokens / max(by_cores, by_memory), limit


# %% jupyter={"source_hidden": true}
rows, shares = [], {}
for name in ("FP32", "BF16"):
    for what, measured, (tokens, cached) in (
        ("prefill", prefill[name], (PROMPT, 0)),
        ("decode", decode[name], (1, PROMPT + PASSES // 2)),
    ):
        possible, limit = predict(name, tokens, cached, np.median(reading))
        by_round = [predict(name, tokens, cached, read)[0] for read in reading]
        shares[what, name] = spread(np.divide(measured, by_round), "%", 100, digits=0)
        speeds = (f"{np.median(measured):,.0f}", f"{possible:,.0f}")
        rows.append((what, name, *speeds, limit, str(shares[what, name])))
display(markdown.table(("", "format", "tokens/s", "predicted", "limit", "reached"), rows))
prefill_gain = ratio(prefill["FP32"], decode["FP32"])
print(f"prefill vs decode in FP32: {Measured(*prefill_gain, '×')}: {prefill_gain.verdict}")
results.compare_guess(3, Measured(*prefill_gain, "×"))
for name in ("FP32", "BF16"):
    ttft, tpot = PROMPT / np.median(prefill[name]), 1 / np.median(decode[name])
    print(f"{name}: TTFT of {PROMPT} tokens {1000 * ttft:,.0f} ms, TPOT {1000 * tpot:.0f} ms")

# %% [markdown]
# *Reached* is the share of the limit in each round, with the range of the middle half of the rounds. In decode it
# compares any machine and any model: **tokens/s times the bytes read per token, over the bandwidth of memory**.
#
# BF16 helps decode by halving the bytes, and prefill by instructions that multiply BF16 faster. Without such
# instructions, the table shows FP32 twice.

# %% [markdown]
# ## 4 · Fewer bits {read 6, do 7, wait 1.05}
#
# If bytes limit decode, then fewer bytes per weight mean more tokens per second. Four bits are 16 codes. Lab 04 gave
# each channel one scale. With 4 bits, a channel's largest weight would leave too few codes for the others, so small
# groups of neighbours share a scale.
#
# ### Exercise 4 · A scale for each group
#
# Write `in_groups(weights, bits, group)` for an array of weights (rows, columns). The columns divide into groups of
# `group` neighbours; `bits` is 2 to 8. Each group of each row has its own scale, such that its largest absolute weight
# becomes exactly the largest code, 2^(bits − 1) − 1: that is 7 for 4 bits. A weight's code is the integer nearest to
# weight / scale, from −7 to 7 for 4 bits. Return the codes, an array (rows, columns) of type `int8`, and the scales, an
# array (rows, columns / group). A group of zeros has codes 0 and any scale above 0.


# %%
def in_groups(weights, bits, group):
    """Return the codes and the scales of weights that share a scale in groups."""
    ### BEGIN SOLUTION
    groups = weights.reshape(len(weights), -1, group)
    scales = np.abs(groups).max(axis=-1) / (2 ** (bits - 1) - 1)
    scales = np.where(scales == 0, 1, scales)
    codes = np.round(groups / scales[..., None]).astype("int8")
    return codes.reshape(weights.shape), scales
    ### END SOLUTION


# %% tags=["nbval-check-output"]
in_groups = check(4, in_groups)

# %% [markdown]
# What does that cost in quality? The next cell rounds the block weights of your trained model, in groups of 64 and with
# one scale per column, and computes the loss on the held-out text. All formats are compared on the same texts, so the
# intervals are of the differences.

# %% jupyter={"source_hidden": true}
GROUP = 64


def losses_of(decoder):
    """Return the loss of each piece of the held-out text."""
    losses = []
    for part in np.array_split(held_out_texts()[: 8 if QUICK else None], 8):
        decoder.reset()
        losses.append(loss_of(decoder.forward(part), part).numpy().mean(axis=1))
    return np.concatenate(losses)


def against(losses, reference):
    """Return the mean difference of two losses of the same texts, with its 95% interval."""
    gaps = losses - reference
    half = 1.96 * gaps.std(ddof=1) / len(gaps) ** 0.5
    ends = gaps.mean() - half, gaps.mean() + half
    return Measured(gaps.mean(), *ends, "nats", digits=4, signed=True)


# %%
def rounded(weights, bits, group):
    """Return a model's weights, those of the blocks rounded to a number of bits."""
    new = dict(weights)
    for name, matrix in weights.items():
        if "." in name:  # a block's
            width = group or len(matrix)  # 0: one scale for all weights of an output
            codes, scales = in_groups(matrix.T, bits, width)
            new[name] = (codes * np.repeat(scales, width, axis=1)).T.astype("float32")
    return new


exact = losses_of(Decoder(openvino_model(*network)))
print(f"FP32: loss {exact.mean():.3f}")
more_loss = {}
for bits in (8, 4, 3, 2):
    for group in (GROUP, 0):
        losses = losses_of(Decoder(openvino_model(SMALL, rounded(network.weights, bits, group))))
        more_loss[bits, group] = against(losses, exact)
        scales = f"groups of {group}" if group else "one scale per column"
        print(f"{bits} bits, {scales:20}: {more_loss[bits, group]}")

# %% [markdown]
# In this small model a column has 128 or 512 weights, so groups of 64 are not much finer. In a large model it has
# thousands.

# %% [markdown]
# Now speed, on the large model. OpenVINO's kernels unpack compressed weights as they multiply. What they do with the
# *activations*, the vectors between the layers, depends on the CPU and the precision (OpenVINO 2026.4):
#
# | CPU | inference precision | activations |
# | --- | --- | --- |
# | VNNI | FP32 | **rounded to 8 bits**, then integer products: *dynamic quantisation* |
# | VNNI and BF16, no AMX | BF16 | the same, [since 2026](https://github.com/openvinotoolkit/openvino/pull/35726) |
# | AMX | BF16 | stay in BF16; weights are converted to BF16 |
# | AVX2 without VNNI | FP32 | stay in FP32; weights are converted to FP32 |

# %% [markdown]
# `DYNAMIC_QUANTIZATION_GROUP_SIZE` is how many activations share a scale: 32 by default. At 0 they stay as they are.
# The row *INT8* uses the width of the model, since fewer scales are less work.
#
# By default, OpenVINO computes in BF16 where the CPU can, and keeps the KV cache in 8 bits. To compare only weights,
# this lab sets `INFERENCE_PRECISION_HINT="f32"` and `KV_CACHE_PRECISION="f32"`, except in rows called *defaults*. FP16
# is the format in which OpenVINO stores models. With these settings it computes in FP32, so half the bytes need no
# BF16 instructions.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** FP32 has 7.5 times the bytes of INT4 in groups of 64. How much faster will INT4 decode?
#
# </div>

# %%
results.guess(4, "decode, INT4 vs FP32", ..., unit="×")


# %%
class NumPyEngine:
    """Your `forward`, on the large model, with the interface of a `Decoder`."""

    def __init__(self, network):
        self.network = network
        self.reset()

    def reset(self):
        self.cache, self.length = {}, 0

    def forward(self, tokens):
        self.length += tokens.shape[1]
        return forward(self.network, tokens[0], self.cache)


def compress(model):
    """Return a model in FP16, in INT8 with a scale per output, and in INT4 in groups."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        openvino.save_model(model, f"{folder}/model.xml")  # in FP16, its default
        fp16 = openvino_core().read_model(f"{folder}/model.xml")
    int8 = nncf.compress_weights(model.clone(), mode=nncf.CompressWeightsMode.INT8_SYM)
    settings = {"group_size": GROUP, "backup_mode": nncf.BackupMode.NONE}  # the blocks alone
    int4 = nncf.compress_weights(model.clone(), mode=nncf.CompressWeightsMode.INT4_SYM, **settings)
    return fp16, int8, int4


fp16, int8, int4 = compress(model)
INT4_BYTES = 0.5 + 2 / GROUP  # with its part of a scale of 16 bits
UNROUNDED = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
DEFAULTS = {"INFERENCE_PRECISION_HINT": None, "KV_CACHE_PRECISION": None}  # OpenVINO chooses
formats |= {
    "FP16": (fp16, 2, {}),
    "INT8": (int8, 1, {"DYNAMIC_QUANTIZATION_GROUP_SIZE": WIDTH}),
    "INT8, groups of 32": (int8, 1, {}),
    "INT8, FP32 activations": (int8, 1, UNROUNDED),
    "INT8, defaults": (int8, 1, DEFAULTS),
    "INT4": (int4, INT4_BYTES, {}),
    "INT4, FP32 activations": (int4, INT4_BYTES, UNROUNDED),
    "INT4, defaults": (int4, INT4_BYTES, DEFAULTS),
}
for name, (graph, _, settings) in formats.items():
    if name not in decoders:
        decoders[name] = Decoder(graph, **threads, **settings)
formats["FP32, NumPy"] = (None, 4, {})
decoders["FP32, NumPy"] = NumPyEngine(Network(LARGE, large_weights))  # last: its threads linger
print("Less than a minute", flush=True)
with load.watch("section 4") as format_others:
    reading, prefill, decode = measure_formats(decoders, ROUNDS)


# %% jupyter={"source_hidden": true}
def kv_bytes(decoder):
    """Return the bytes of a number in a decoder's cache."""
    if isinstance(decoder, NumPyEngine):
        return 4
    return decoder.compiled.get_property("KV_CACHE_PRECISION").size


def for_width(settings, width):
    """Return settings for a narrower model: longer groups of activations would not be rounded."""
    group = settings.get("DYNAMIC_QUANTIZATION_GROUP_SIZE", 0)
    return settings | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": width} if group > width else settings


def rounds_activations(settings):
    """Return whether OpenVINO rounds activations with these settings: whether the logits change."""
    tokens = held_out_texts()[:1]
    engines = (Decoder(small_int4, **settings | off) for off in ({}, UNROUNDED))
    return not np.array_equal(*(engine.forward(tokens) for engine in engines))


def describe_engine(name):
    """Return the precision OpenVINO computes in, and whether it rounds activations."""
    properties = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")
    compiled = decoders[name].compiled
    precision, cache = (compiled.get_property(key).get_type_name() for key in properties)
    rounding = "rounds activations to 8 bits" if rounded_by[name] else "leaves activations alone"
    return f"computes in {precision}, keeps keys and values in {cache}, {rounding}"


small_fp16, small_int8, small_int4 = compress(openvino_model(*network))
rounded_by = {name: rounds_activations(formats[name][2]) for name in ("INT4", "INT4, defaults")}
for name in rounded_by:
    print(f"{name}: OpenVINO {describe_engine(name)}")
trained = dict.fromkeys(("FP32", "BF16"), openvino_model(*network))
trained |= {"FP16": small_fp16, "INT8": small_int8, "INT4": small_int4}
gains = {"prefill": ratios(prefill, "FP32"), "decode": ratios(decode, "FP32")}
rows, decode_share = [], {}
for name, (_, weight_bytes, settings) in formats.items():
    if name not in ("FP32", "FP32, NumPy"):
        packed = trained[name.partition(",")[0]]
        losses = losses_of(Decoder(packed, **for_width(settings, SMALL.width)))
        more_loss[name] = against(losses, exact)
    moved = sum(cost(1, PROMPT + PASSES // 2, LARGE, weight_bytes, kv_bytes(decoders[name]))[1:])
    decode_share[name] = spread(
        np.array(decode[name]) * moved / np.array(reading), "%", 1e-7, digits=0
    )
    speeds = []
    for what, measured in (("prefill", prefill), ("decode", decode)):
        gain = "1" if name == "FP32" else str(gains[what][name])
        speeds += [f"{np.median(measured[name]):,.0f}", gain]
    share = str(decode_share[name])
    rows.append((name, f"{weight_bytes:.3g}", *speeds, share, str(more_loss.get(name, ""))))
head = ("weights", "bytes", "prefill, tokens/s", "vs FP32", "decode, tokens/s", "vs FP32")
display(markdown.table((*head, "decode, of the limit", "more loss"), rows))
results.compare_guess(4, Measured(*gains["decode"]["INT4"], "×"))
yours = gains["decode"]["FP32, NumPy"]
print(f"Your NumPy engine vs OpenVINO, decode in FP32: {yours}: {yours.verdict}")
for what in ("prefill", "decode"):
    slower = [name for name, gain in gains[what].items() if gain.significant and not gain.faster]
    print(f"Slower than FP32 in OpenVINO, in {what}: {', '.join(slower) or 'none'}.")
by_you = ("your rounding, FP32", more_loss[4, GROUP])
by_nncf = ("NNCF, FP32 activations", more_loss["INT4, FP32 activations"])
print(repeated("more loss of 4 bits in groups of 64", by_you, by_nncf))

# %% [markdown]
# Can a few lines of NumPy keep up with an engine? With one request, a decoder in FP32 is mostly a loop of `x @ W`, and
# OpenBLAS reads memory well. What an engine adds is the rest of the table. As for the losses, both 4-bit models round
# the same layers. NNCF has 16 codes, from −8 to 7, and scales in 16 bits; you have 15 codes.
#
# Where does a format lose the rest of the limit? A pass reads weights, and it also unpacks and multiplies them. If both
# overlapped in full (100%), a matmul would take the longer of the two times; without overlap (0%), their sum. Memory's
# time follows from the bytes. The kernels' own time is measured on a block so small that its weights stay in cache.
# OpenVINO reports the time of each operation.


# %%
def in_cache(weight_bytes):
    """Return the widest block whose weights take a quarter of the last cache."""
    fitting = (cache_bytes / 4 / weight_bytes / 12) ** 0.5
    width = min(WIDTH, max(1, int(fitting) // 128) * 128)
    return Shape(1, width, width // 64, context=LARGE.context)


def time_of_pass(decoder):
    """Return the mean ms of a pass of one token, and of its operations by type; also GB/s."""
    token, seconds, gb_per_second = np.zeros((1, 1), int), [], []
    for turn in range(max(2, ROUNDS // 2)):
        gb_per_second.append(read_memory())
        decoder.fill(1, PROMPT)
        decoder.forward(token)  # chooses kernels
        if turn == 0:
            decoder.profile()  # what ran so far does not count
        seconds.append(seconds_of(decoder.forward, token, calls=PASSES))
    return 1000 * np.mean(seconds), decoder.profile(), np.mean(gb_per_second)


pass_times = {}
with load.watch("section 4") as part_others:
    for name in ("FP32", "FP16", "BF16", "INT8", "INT4"):
        large, weight_bytes, settings = formats[name]
        shape = in_cache(weight_bytes)
        small = openvino_model(shape, random_weights(shape))
        small = dict(zip(("FP16", "INT8", "INT4"), compress(small))).get(name, small)
        of_large, of_small = (
            time_of_pass(Decoder(graph, PERF_COUNT=True, **threads, **for_width(settings, width)))
            for graph, width in ((large, WIDTH), (small, shape.width))
        )
        pass_times[name] = of_large, of_small, weight_bytes, shape.block_weights
del large, small


# %% jupyter={"source_hidden": true}
def time_in(operations, kind):
    """Return the ms of all operations of a kind."""
    return sum(ms for name, ms in operations.items() if name.startswith(kind))


rows = []
for name, (of_large, (_, in_small, _), weight_bytes, weights) in pass_times.items():
    pass_ms, operations, gb_per_second = of_large
    alone = LARGE.block_weights * weight_bytes / gb_per_second / 1e6
    kernels = time_in(in_small, "FullyConnected") * LARGE.block_weights / weights
    matmuls, attended = (time_in(operations, kind) for kind in ("FullyConnected", "ScaledDot"))
    overlap = f"{(alone + kernels - matmuls) / min(alone, kernels):.0%}"
    parts_ms = (alone, kernels, matmuls, attended, pass_ms - matmuls - attended, pass_ms)
    cells = [f"{ms:.2f}" for ms in parts_ms]
    rows.append((name, *cells[:3], overlap, *cells[3:]))
head = ("weights", "memory alone", "kernels alone", "matmuls", "overlap", "attention", "all else")
display(markdown.table((*head, "a pass"), rows, ["Times in ms, means."]))
breakdown = total(operations, pass_ms)  # of INT4, the last
print(f"INT4, all operations: {breakdown}")
if breakdown.reliable:
    print(
        f"INT4: memory alone would take {alone / pass_ms:.0%} of the pass. Lost: "
        f"{(matmuls - alone) / pass_ms:.0%} to matmuls that take longer than their bytes, "
        f"{attended / pass_ms:.0%} to attention, "
        f"{(pass_ms - matmuls - attended) / pass_ms:.0%} to all else."
    )
    if 0.9 < kernels / alone < 1.1:
        print("Unpacking and multiplying INT4 takes about as long as reading it.")
    else:
        longer = "longer" if kernels > alone else "less time"
        print(f"Unpacking and multiplying INT4 takes {longer} than reading it.")
if no_bf16:
    print("BF16 is FP32 here.")

# %% jupyter={"source_hidden": true}
SHOWN = ("FP32, NumPy", "FP32", "FP16", "BF16", "INT8", "INT4")
roofs = peak | {"INT8": limits.peak("int8")}
integers = "INT8" if rounded_by["INT4"] else "FP32"  # what compressed weights are multiplied in
roof_of = {"FP32, NumPy": "FP32", "FP16": "FP32", "INT8": integers, "INT4": integers}
prefill_share = {
    name: 2 * LARGE.block_weights * np.median(prefill[name]) / 1e7 / roofs[roof_of.get(name, name)]
    for name in SHOWN
}
figure, axis = plt.subplots(figsize=(9, 6))
per_weight = np.geomspace(0.4, 4.8, 50)
low, middle, high = (
    1e9 * np.percentile(reading, rank) / (per_weight * LARGE.block_weights) for rank in (0, 50, 100)
)
axis.fill_between(per_weight, low, high, color=plots.BLACK, alpha=0.15, label="memory, all rounds")
axis.plot(per_weight, middle, color=plots.BLACK, marker="", label="memory, median")
for (name, top), style in zip(roofs.items(), ("--", ":", "-.")):
    roof = 1e9 * top / (2 * LARGE.block_weights)
    axis.axhline(
        roof, color=plots.BLACK, linestyle=style, marker="", label=f"peak of {name} products"
    )
for what, rates, colour, marker in (
    ("prefill", prefill, plots.ORANGE, "s"),
    ("decode", decode, plots.BLUE, "o"),
):
    for name in SHOWN:
        by_numpy, in_fp16 = name == "FP32, NumPy", name == "FP16"
        to_right = by_numpy or (in_fp16 and what == "decode")
        weight_bytes = formats[name][1]
        value, reach = bars([spread(rates[name])])
        axis.errorbar(
            weight_bytes,
            value,
            reach,
            fmt=marker,
            color=colour,
            fillstyle="none" if by_numpy else "left" if in_fp16 else "full",
            capsize=4,
            label=what if name == "FP32" else None,
        )
        share = decode_share[name].value if what == "decode" else prefill_share[name]
        label = f"{'NumPy' if by_numpy else name} {share:.0f}%"
        axis.annotate(
            label,
            (weight_bytes, value[0]),
            (8 if to_right else -8, -15),
            textcoords="offset points",
            ha="left" if to_right else "right",
            fontsize=11,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
axis.set(xscale="log", yscale="log", xlabel="bytes per weight", ylabel="tokens/s", xlim=(0.3, 9))
axis.set(title="Prefill meets the cores, decode the memory")
axis.set_xticks((0.5, 1, 2, 4), ("0.5", "1", "2", "4"))
axis.minorticks_off()
axis.margins(y=0.12)  # room for the labels below the lowest points
figure.legend(loc="outside lower center", ncols=3)
plots.show(
    figure,
    alt="Tokens per second over bytes per weight, with the limits of memory and of products. "
    + "; ".join(
        f"{name}: prefill {np.median(prefill[name]):,.0f} ({prefill_share[name]:.0f}% of its "
        f"limit), decode {np.median(decode[name]):,.0f} ({decode_share[name].value:.0f}%)"
        for name in SHOWN
    ),
    keep=results,
    watched=[format_others],
)

# %% [markdown]
# The percentages are shares of each point's own limit: the sloping band, memory over all rounds, for decode; the flat
# line of the products that it computes with for prefill. FP16 computes in FP32. INT8 and INT4 do so too, unless
# activations are rounded.
#
# A decode point far below the band loses its time to the kernels, to attention or to the rest: see the last table.
# Prefill does not depend on the bytes of a weight, only on the products. If INT8 and INT4 reach less of their line than
# FP32 does, remember what the line is: `./lab roofline` multiplies matrices that are in 8 bits already. Here, each pass
# also rounds activations, and scales a sum for each group.

# %% [markdown]
# ## 5 · Many requests, long contexts {read 5.5, wait 1}
#
# In decode, each weight is read and used once. If 8 people wait for an answer, a server writes a token for each of them
# in one pass, and reads the weights once for all. With *B* requests, a pass does *B* times the operations, and moves
# hardly more bytes while contexts are short. So tokens/s grow with *B* until the cores are busy, at
#
# $$B^* = \frac{peak}{bandwidth} \cdot \frac{bytes\ per\ weight}{2}$$
#
# But each request also reads its own KV cache. `ridge` solves for *B* with the caches. If reading a request's cache
# takes longer than computing its token, no number of requests makes the pass arithmetic-bound. GQA shrinks the cache,
# and little of the arithmetic.


# %%
GROUPED = Shape(LARGE.layers, LARGE.width, LARGE.heads, context=LARGE.context, shared_by=4)  # GQA


def ridge(name, cached, gb_per_second, model=LARGE):
    """Return the requests at which a pass computes for as long as it reads; infinite if never."""
    operations, weights, cache = cost(1, cached, model, formats[name][1], 4)
    per_request = operations / peak[name] - cache / gb_per_second
    return weights / gb_per_second / per_request if per_request > 0 else math.inf


# %% jupyter={"source_hidden": true}
def describe_ridge(requests):
    return "never" if math.isinf(requests) else f"{requests:,.0f}"


middle = np.median(reading)
meeting = {name: ridge(name, 8, middle) for name in ("FP32", "BF16")}
rows = [
    (
        f"{cached:,}",
        *(
            describe_ridge(ridge(name, cached, middle, shape))
            for name in ("FP32", "BF16")
            for shape in (LARGE, GROUPED)
        ),
    )
    for cached in (8, *CONTEXTS)
]
head = ("cached tokens per request", "B*, FP32", "FP32, GQA", "BF16", "BF16, GQA")
display(markdown.table(head, rows))
if no_bf16:
    print("BF16 is FP32 here.")
elif abs(meeting["BF16"] / meeting["FP32"] - 1) < 0.15:
    print(
        "With few cached tokens, FP32 and BF16 meet at about the same B*: BF16 halves the bytes of "
        "a weight\nand doubles the peak, and the two cancel. B* depends on the machine, not on the "
        "format."
    )
else:
    print(
        f"BF16 has {peak['BF16'] / peak['FP32']:.1f}× the peak of FP32 and half the bytes, so its "
        "B* differs."
    )

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** With hardly any context, how many times the tokens/s of one request will the largest batch reach in
# FP32? And how much longer does each request wait for a token?
#
# </div>

# %%
results.guess(5, "tokens/s of the largest batch vs one request, FP32", ..., unit="×")


# %% jupyter={"source_hidden": true}
def decode_rate(decoder, requests, cached):
    """Return the tokens/s of all requests together, each after `cached` tokens."""
    decoder.fill(requests, cached)
    token = np.zeros((requests, 1), int)
    decoder.forward(token)  # the first pass after filling does not count
    return requests / seconds_of(decoder.forward, token, calls=BATCH_PASSES)


NAMES = ("FP32", "BF16", "INT8")
at_once = {(name, requests): [] for name in NAMES for requests in AT_ONCE}
batch_reading = []
print("About 20 s", flush=True)
with load.watch("section 5") as batch_others:
    for turn in range(-1, BATCH_ROUNDS):  # the first does not count
        read = read_memory()
        batch_reading += [read] * (turn >= 0)
        for (name, requests), speeds in at_once.items():
            speed = decode_rate(decoders[name], requests, 8)
            if turn >= 0:
                speeds.append(speed)
print(f"{'requests':>9}" + "".join(f"{name + ': tokens/s, TPOT in ms':>28}" for name in NAMES))
for requests in AT_ONCE:
    speeds = [np.median(at_once[name, requests]) for name in NAMES]
    print(
        f"{requests:9}" + "".join(f"{rate:16,.0f}{1000 * requests / rate:12.1f}" for rate in speeds)
    )
batch_gain = ratio(at_once["FP32", AT_ONCE[-1]], at_once["FP32", 1])
print(f"{AT_ONCE[-1]} requests vs one, FP32: {Measured(*batch_gain, '×')}: {batch_gain.verdict}")
results.compare_guess(5, Measured(*batch_gain, "×"))

# %% jupyter={"source_hidden": true}
middle = np.median(batch_reading)
figure, axis = plt.subplots(figsize=(9, 5.5))
for name, colour, marker in zip(NAMES, plots.PALETTE, plots.MARKERS):
    speed, reach = bars([spread(at_once[name, requests]) for requests in AT_ONCE])
    axis.errorbar(AT_ONCE, speed, reach, fmt=f"{marker}-", color=colour, label=name, capsize=4)
    if name in peak:
        roof = [predict(name, 1, 8, middle, requests)[0] for requests in AT_ONCE]
        axis.plot(AT_ONCE, roof, "--", color=colour, marker="", label=f"{name}, the two limits")
axis.set_xscale("log", base=2)
axis.set_yscale("log")
log_ticks(axis.yaxis)
axis.set_xticks(AT_ONCE, AT_ONCE)
axis.set(xlabel="requests at once", ylabel="tokens/s, all together")
axis.set(title="Many requests share one reading of the weights")
axis.legend()
plots.show(
    figure,
    alt="Tokens per second of all requests together: "
    + "; ".join(
        f"{name}: "
        + ", ".join(f"{np.median(at_once[name, batch]):,.0f} at {batch}" for batch in AT_ONCE)
        for name in NAMES
    ),
    watched=[batch_others],
)

# %% [markdown]
# Look at the milliseconds too: up to the bend, more requests cost each of them little; beyond it, they wait for each
# other. MLPerf Inference v5.1 (2025) allows 40 ms per token at the 99th percentile for its interactive Llama 2 70B, so
# a server limits its batch.
#
# Now with context. The next cell puts tokens into the cache without reading a prompt, and measures decode after more
# and more of them, without GQA and with it. The predictions need two measured numbers: the time of a pass without
# context, and the rate at which attention reads the cache, from the point with the most of it.

# %% jupyter={"source_hidden": true}
kv_token = 8 * LARGE.layers * LARGE.width  # bytes per cached token, without GQA
contexts = [count for count in CONTEXTS if 48 * kv_token * count < machine.memory_free / 3]
grouped = Decoder(openvino_model(GROUPED, random_weights(GROUPED)), **threads)
models = {"": (decoders["FP32"], LARGE), ", GQA": (grouped, GROUPED)}
after = {
    (requests, name, cached): []
    for requests in (1, AT_ONCE[-1] if QUICK else 16)
    for name in models
    for cached in contexts
}
context_reading = []
print("About a minute", flush=True)
with load.watch("section 5") as context_others:
    for _ in range(BATCH_ROUNDS):
        context_reading.append(read_memory())
        for (requests, name, cached), speeds in after.items():
            speeds.append(decode_rate(models[name][0], requests, cached))
many, longest = max(requests for requests, _, _ in after), contexts[-1]
alone_s = {requests: requests / np.median(at_once["FP32", requests]) for requests in (1, many)}
with_caches = many / np.median(after[many, "", longest])
cache_rate = many * longest * kv_token / max(with_caches - alone_s[many], 1e-5)  # bytes/s


def describe_batch(requests, name):
    return f"{requests} request{'s' if requests > 1 else ''}{name}"


def context_rate(requests, name, cached):
    """Return the predicted tokens/s: a pass without context, and then reading the caches."""
    shape = models[name][1]
    matmuls = alone_s[requests] * shape.block_weights / LARGE.block_weights
    return requests / (matmuls + requests * cost(0, cached, shape, 0, 4)[2] / cache_rate)


predictions = {
    batch: Prediction(
        f"{describe_batch(*batch[:2])}, {batch[2]:,} cached",
        context_rate(*batch),
        spread(speeds, "tokens/s", digits=0),
    )
    for batch, speeds in after.items()
}
to_score = [predictions[batch] for batch in predictions if batch != (many, "", longest)]
print(*to_score, sep="\n")
print(score(to_score))
cache_share = 100 * cache_rate / 1e9 / np.median(context_reading)
print(f"Attention reads at {cache_rate / 1e9:.0f} GB/s, {cache_share:.0f}% of memory's speed.")
gqa_gain = ratio(after[many, ", GQA", longest], after[many, "", longest])
print(f"{many} requests, {longest:,} cached: GQA {Measured(*gqa_gain, '×')}: {gqa_gain.verdict}")
if cache_share < 80:
    print("So this engine's attention does not reach the limit, and B* above is too optimistic.")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5.5))
styles = zip(dict.fromkeys(key[:2] for key in after), plots.PALETTE, plots.MARKERS)
for (requests, name), colour, marker in styles:
    points = [predictions[requests, name, cached] for cached in contexts]
    speed, reach = bars([point.measured for point in points])
    style = dict(color=colour, label=describe_batch(requests, name), capsize=4)
    axis.errorbar(contexts, speed, reach, fmt=f"{marker}-", **style)
    axis.plot(contexts, [point.predicted for point in points], "--", color=colour, marker="")
axis.set(yscale="log", xlabel="cached tokens per request", ylabel="tokens/s, all together, FP32")
axis.set(title="Long contexts: the cache is read for each request (dashed: predicted)")
log_ticks(axis.yaxis)
figure.legend(loc="outside lower center", ncols=4, fontsize=12)
plots.show(
    figure,
    alt="Tokens per second over cached tokens, measured. "
    + "; ".join(
        f"{describe_batch(*batch)}: "
        + ", ".join(f"{predictions[*batch, n].measured.value:,.0f} at {n}" for n in contexts)
        for batch in dict.fromkeys(key[:2] for key in after)
    ),
    keep=results,
    watched=[context_others],
)

# %% [markdown]
# Sixteen requests read sixteen caches, but the weights once, so their curve falls earlier. GQA moves the fall to longer
# contexts, and so do the caches of 16 or 8 bits that production uses.

# %% [markdown]
# ## 6 · Your machine, these models {read 6}
#
# Now predict models that are not here. Their sizes come from the configuration files that their
# makers publish ([Llama](https://huggingface.co/meta-llama), [Qwen](https://huggingface.co/Qwen),
# [Gemma](https://huggingface.co/google)). The weights are in llama.cpp's `Q4_K_M`, which takes [4.89 bits per
# weight](https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md) on Llama-3.1-8B, and the cache has
# 16 bits per number.
#
# - **Decode**, after 4,096 cached tokens: the bandwidth over the bytes of active weights and cache; the next column
#   multiplies that by INT4's share here.
# - **TTFT** of a prompt of 1,024 tokens: its operations, with logits for the last token only, at the rate of your INT4
#   prefill.
# - **Requests at 4k**: how many caches fit into 90% of this machine's memory, next to the weights.
#
# Gemma 3's windows let most blocks look back on 512 or 1,024 tokens only; `cached` returns the average over the blocks.

# %%
Q4, KV_BYTES = 4.89 / 8, 2  # bytes per weight, and per number in the cache
room, bandwidth = 0.9 * machine.memory, 1e9 * np.median(reading)
prefill_rate = cost(PROMPT, 0, LARGE, 0, 0)[0] / PROMPT * np.median(prefill["INT4"])  # operations/s


def forecast(model):
    """Return the decode limit (tokens/s), the TTFT (s), and the most requests at 4k."""
    _, weights, cache = cost(1, model.cached(4096), model, Q4, KV_BYTES)
    unneeded = 2 * 1023 * model.logit_weights  # only the last token needs logits
    first_s = (cost(1024, 0, model, 0, 0)[0] - unneeded) / prefill_rate
    requests = int((room - Q4 * model.weights) // cache)
    return bandwidth / (weights + cache), first_s, max(0, requests)


# %% jupyter={"source_hidden": true}
int4_share = decode_share["INT4"]
forecasts = {name: forecast(sizes) for name, sizes in published.MODELS.items()}
fitting = {name: numbers for name, numbers in forecasts.items() if numbers[2]}  # requests > 0
expected = {
    name: Measured(
        *(most / 100 * part for part in (int4_share.value, int4_share.low, int4_share.high)),
        digits=1,
    )
    for name, (most, _, _) in fitting.items()
}
rows = []
for name, sizes in published.MODELS.items():
    cache_gb = cost(1, sizes.cached(4096), sizes, Q4, KV_BYTES)[2] / 1e9
    about = (name, f"{Q4 * sizes.weights / 1e9:.1f} GB", f"{cache_gb:.2f} GB")
    if name in fitting:
        most, first_s, requests = fitting[name]
        speeds = (f"{most:.1f}", str(expected[name]), f"{first_s:.1f} s", f"{requests:,}")
    else:
        speeds = ("does not fit", "", "", "0")
    rows.append((*about, *speeds))
head = ("Q4", "weights", "cache at 4k", "tokens/s at most", "at INT4's share here")
display(markdown.table((*head, "TTFT, 1,024 tokens", "requests at 4k"), rows))
print(
    f"From {bandwidth / 1e9:.0f} GB/s of reading, {prefill_rate / 1e9:,.0f} GFLOP/s in prefill,",
    end=" ",
)
print(f"and {room / 1e9:.0f} GB of memory. INT4 reached {int4_share} of the bandwidth.")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9.5, 5.5))
places = {name: place for place, name in enumerate(reversed(forecasts))}
edge = max((most for most, _, _ in fitting.values()), default=10)
right_end = 0.1 * (11.5 * edge) ** (1 / 0.6)  # two fifths of a logarithmic axis are for the notes
for name, (most, first_s, requests) in forecasts.items():
    if name not in fitting:
        size = Q4 * published.MODELS[name].weights / 1e9
        note = f"does not fit: {size:.0f} GB of weights, {room / 1e9:.0f} GB of memory"
        axis.text(0.12, places[name], note, va="center", fontsize=12)
        continue
    axis.barh(places[name], most, color=plots.SKY, alpha=0.45, height=0.6)
    speed, reach = bars([expected[name]])
    axis.errorbar(speed, [places[name]], xerr=reach, fmt="o", color=plots.BLUE, capsize=5)
    note = f"{speed[0]:.1f} tokens/s · TTFT {first_s:.1f} s · {requests:,}"
    axis.text(1.15 * most, places[name], note, va="center", fontsize=12)
axis.set_yticks(list(places.values()), list(places))
axis.set(xscale="log", xlim=(0.1, right_end), ylim=(-0.6, len(places) - 0.4))
axis.set(xlabel="decode, tokens/s of one request after 4,096 cached tokens")
log_ticks(axis.xaxis)
axis.xaxis.set_major_locator(LogLocator())
axis.set_title("Your machine, these models (Q4): decode · TTFT · requests at 4k")
axis.plot([], [], "s", color=plots.SKY, alpha=0.45, markersize=12, label="the limit of memory")
axis.plot([], [], "o", color=plots.BLUE, label="at the share that INT4 reaches here")
figure.legend(loc="outside lower center", ncols=2)
plots.show(
    figure,
    alt="Predicted for this machine, in Q4: "
    + "; ".join(
        f"{name} {expected[name]} tokens/s, TTFT {first_s:.1f} s, {requests:,} requests"
        if name in fitting
        else f"{name} does not fit"
        for name, (_, first_s, requests) in forecasts.items()
    ),
    keep=results,
    watched=[format_others],
)

# %% [markdown]
# Take this picture home: run one of these models, and compare. Published results, as bandwidth:
#
# | machine, model (year) | tokens/s | bytes per token | read | share |
# | --- | --- | --- | --- | --- |
# | EPYC 9554, Phi-4 14.7 B `Q8_0`, [llama.cpp][phi] | 19.2 | 15.6 GB | 299 GB/s | 65% of 461 on paper |
# | the same in `Q4_K_M` | 28.7 | 9.1 GB | 260 GB/s | 56% |
# | Ryzen 7950X, Llama-3.1-8B `IQ3_S`, [ik_llama.cpp][ik] (2025) | 15.5 | 3.7 GB | 57 GB/s | 69% of 83 on paper |
# | Xeon 8592+, Qwen3-30B-A3B `Q4_0`, [llama.cpp][moe] | 29.3 | 1.7 GB | 50 GB/s | 14% of 358 on paper |
# | 2 × Xeon 6, DeepSeek-R1 INT8, [SGLang][lmsys] (2025) | 14.7 | 37 GB | 544 GB/s | see below |
#
# [phi]: https://ahelpme.com/?p=6685
# [ik]: https://github.com/ikawrakow/ik_llama.cpp/pull/518
# [moe]: https://github.com/Gadflyii/llama.cpp/issues/5
# [lmsys]: https://lmsys.org/blog/2025-07-14-intel-xeon-optimization

# %% [markdown]
# These dense models reach more than half of the bandwidth, the mixture less: each expert is a small matmul. Of
# DeepSeek-R1's 671 billion weights, 37 billion are active; reading all would take eighteen times that bandwidth.
# SGLang's 85% is reached by its expert kernels alone.
#
# With several requests, a mixture's tokens use different experts, so a pass reads more of them.

# %% [markdown]
# ## 7 · Speculative decoding {read 5, do 5, wait 0.1}
#
# More tokens in a pass are cheap (section 5), but one request's next tokens are not known yet. So guess them.
# A cheap *draft* proposes a few tokens. The large model reads all of them in *one* pass, and returns its own choice
# after each. As long as the two agree, the tokens are accepted. This is [**speculative
# decoding**](../docs/glossary.md#speculative-decoding). The text is the same as without a draft, token for token, if
# the large model always takes its likeliest token.
#
# ### Exercise 5 · What is accepted
#
# Write `accept(proposed, choices)`. `proposed` is a list of tokens that the draft proposes. `choices` is a list of the
# tokens that the large model chooses, one more: `choices[i]` is what it writes after the text and the first `i` of the
# proposed tokens. Return the list of tokens by which the text grows. It must be what the large model alone would have
# written, and as long as this pass allows.


# %%
def accept(proposed, choices):
    """Return the tokens by which the text grows in one pass."""
    ### BEGIN SOLUTION
    right = 0
    while right < len(proposed) and proposed[right] == choices[right]:
        right += 1
    return [*proposed[:right], choices[right]]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
accept = check(5, accept)

# %% [markdown]
# ### Exercise 6 · Is it worth it?
#
# Write `speed_up(alpha, gamma, draft_cost, pass_cost)`. The draft proposes `gamma` tokens, at least 1, for each pass of
# the large model. Each is right with probability `alpha`, whatever the others are; after the first wrong one, the rest
# is lost. `draft_cost` is the draft's time for one token, and `pass_cost` is the large model's time for a pass of
# `gamma` + 1 tokens, both as multiples of its time for one token. Return how much faster the text grows, on average,
# than with the large model alone.


# %%
def speed_up(alpha, gamma, draft_cost, pass_cost):
    """Return how much faster a text grows with a draft."""
    ### BEGIN SOLUTION
    grown = sum(alpha**right for right in range(gamma + 1))
    return grown / (gamma * draft_cost + pass_cost)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
speed_up = check(6, speed_up)

# %% [markdown]
# Published results with their acceptance rate: T5-XXL translating, with three drafts ([Leviathan et
# al. 2023](https://arxiv.org/abs/2211.17192), table 4, on a TPU, where a pass of several tokens costs one).

# %%
for draft, alpha, cost_of_draft, stated in (
    ("T5-small", 0.75, 0.02, 3.4),
    ("T5-base", 0.80, 0.04, 2.8),
    ("T5-large", 0.82, 0.11, 1.7),
):
    faster = speed_up(alpha, 7, cost_of_draft, 1)
    print(f"{draft}: acceptance {alpha:.0%}, predicted {faster:.1f}×, published {stated}×")

# %% [markdown]
# The draft that is most often right is not the best: its own time counts. The cheapest draft is not a model. *Prompt
# lookup* finds the first place where the text had its last few tokens, and proposes what followed there. It suits
# answers that repeat their prompt, such as edited code and summaries.
#
# Here your trained model, in NumPy with your cache, continues Python's documentation.


# %%
def look_up(tokens, count, last=4):
    """Propose what followed the first occurrence of the last tokens; nothing if they are new."""
    place = bytes(tokens).find(bytes(tokens[-last:]), 0, len(tokens) - 1)
    return tokens[place + last : place + last + count] if place >= 0 else []


def write_greedily(prompt, count, gamma=0):
    """Return the tokens written after a prompt, those proposed per pass, and those accepted."""
    tokens, cache, proposals, accepted = list(prompt), {}, [], []
    while len(tokens) < len(prompt) + count:
        proposed = look_up(tokens, gamma) if gamma else []
        length = cache[0][0].shape[1] if cache else 0
        logits = forward(network, np.array((tokens + proposed)[length:]), cache)
        choices = logits[-len(proposed) - 1 :].argmax(axis=-1).tolist()
        grown = accept(proposed, choices)
        tokens += map(int, grown)
        proposals.append(len(proposed))
        accepted.append(len(grown) - 1)
        for layer, (k, v) in cache.items():  # forget what was not accepted
            cache[layer] = k[:, : len(tokens) - 1], v[:, : len(tokens) - 1]
    return tokens[len(prompt) : len(prompt) + count], proposals, accepted


# %% [markdown]
# The next cell (folded) measures what the formula needs on some texts: how often a proposal is right, how many passes
# have one, and what a pass of several tokens costs compared with one. Then it predicts, and writes *other* texts.
# Accepted tokens are underlined.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster will prompt lookup write? 1 means no gain.
#
# </div>

# %%
results.guess(6, "prompt lookup vs no draft", ..., unit="×")

# %% jupyter={"source_hidden": true}
GAMMAS = (1, 2) if QUICK else (2, 4, 8)
prefix = CONTEXT - WRITTEN - max(GAMMAS) - 1
starts = np.linspace(0, len(text.held_out) - CONTEXT, 2 * TEXTS).astype(int)
prompts = [text.held_out[start : start + prefix].tolist() for start in starts]
measured_on, written_after = prompts[::2], prompts[1::2]


def one_pass(count):
    """Run a pass of `count` tokens after `prefix` others."""
    past = {layer: (k[:, :prefix], v[:, :prefix]) for layer, (k, v) in sample_cache.items()}
    forward(network, sample[prefix : prefix + count], past)


def expect(proposals, accepted, gamma, draft_cost, pass_cost):
    """Return the speed-up predicted from passes: a share of them has a proposal, the rest don't."""
    drafted = [count > 0 for count in proposals]
    tried = sum(min(right + 1, count) for right, count in zip(accepted, proposals))
    alpha = sum(accepted) / max(1, tried)
    part = np.mean(drafted)
    grown = part * speed_up(alpha, gamma, 0, 1) + 1 - part  # tokens per pass
    return alpha, part, grown, grown / (part * (gamma * draft_cost + pass_cost) + 1 - part)


pass_rates = {gamma: [] for gamma in (0, *GAMMAS)}
lookup_s = []
with load.watch("section 7") as cost_others:
    for _ in range(DRAFT_ROUNDS):
        for gamma, rates in pass_rates.items():
            rates.append(1 / seconds_of(one_pass, gamma + 1))
        lookup_s.append(seconds_of(look_up, measured_on[0], max(GAMMAS)))
draft_cost = np.median(lookup_s) * np.median(pass_rates[0])  # once per pass
pass_cost = {gamma: ratio(pass_rates[0], pass_rates[gamma]) for gamma in GAMMAS}
predicted, growth = {}, {}
for gamma in GAMMAS:
    passes = [write_greedily(prompt, WRITTEN, gamma)[1:] for prompt in measured_on]
    proposals, accepted = ([*chain(*parts)] for parts in zip(*passes))
    alpha, part, growth[gamma], predicted[gamma] = expect(
        proposals, accepted, gamma, draft_cost / gamma, pass_cost[gamma].value
    )
    print(
        f"{gamma} proposed: {part:.0%} of the passes have a proposal, {alpha:.0%} of it is "
        f"right;\n    a pass costs {Measured(*pass_cost[gamma], '×')}: "
        f"predicted {predicted[gamma]:.2f}×"
    )
print(f"A lookup costs {draft_cost:.3f} of a token.")
chosen = max(predicted, key=predicted.get)
draft_rates, texts_by = {"none": [], "lookup": []}, {}
with load.watch("section 7") as draft_others:
    for turn in range(-1, DRAFT_ROUNDS):  # the first does not count
        for name, gamma in (("none", 0), ("lookup", chosen)):
            began = time.perf_counter()
            texts_by[name] = [write_greedily(prompt, WRITTEN, gamma) for prompt in written_after]
            if turn >= 0:
                draft_rates[name].append(TEXTS * WRITTEN / (time.perf_counter() - began))
speculative = ratio(draft_rates["lookup"], draft_rates["none"])
prediction = Prediction(f"{chosen} proposed", predicted[chosen], Measured(*speculative, "×"))
print(f"{prediction}; {speculative.verdict}")
passes = sum(len(accepted) for *_, accepted in texts_by["lookup"])
tokens_per_pass = TEXTS * WRITTEN / passes
print(
    f"Tokens per pass: predicted {growth[chosen]:.2f}, measured {tokens_per_pass:.2f};",
    end=" time of a pass: ",
)
pass_cost_predicted = growth[chosen] / predicted[chosen]
pass_cost_measured = tokens_per_pass / speculative.value
print(f"predicted {pass_cost_predicted:.2f}, measured {pass_cost_measured:.2f} times one token's.")
without, with_lookup = ([tokens for tokens, *_ in texts_by[name]] for name in ("none", "lookup"))
print(f"the same texts: {without == with_lookup}")
texts = list(zip(written_after, texts_by["lookup"]))
for prompt, (tokens, _, accepted) in texts[: 1 if QUICK else 4]:
    marks = "".join("─" * right + " " for right in accepted)[: len(tokens)]
    shown = characters.to_text(tokens).replace("\n", "↵")
    print(f"\n…{characters.to_text(prompt[-20:])!r} →\n{shown}\n{marks.rstrip()}")
repeats = np.mean([len({*zip(*(t[i:] for i in range(4)))}) for t, *_ in texts_by["none"]])
repeats = 1 - repeats / (WRITTEN - 3)
print(f"\n{repeats:.0%} of all sequences of 4 characters repeat an earlier one of the same text.")
results.compare_guess(6, Measured(*speculative, "×"))

# %% [markdown]
# Read the texts. A small model without sampling soon repeats itself, and lookup is then right for a poor reason.
#
# In a small NumPy model, the tokens of a pass share its overhead; in a large model, one reading of the weights. What
# acceptance rate would pay there?

# %%
for gamma in (count - 1 for count in AT_ONCE if 2 < count <= 16):
    several = ratio(at_once["FP32", 1], np.array(at_once["FP32", gamma + 1]) / (gamma + 1))
    pays = [a for a in np.linspace(0, 1, 101) if speed_up(a, gamma, 0, several.high) > 1]
    least = f"pays from {pays[0]:.0%} accepted" if pays else "never pays"
    print(f"FP32, {gamma} proposed: a pass costs {Measured(*several, '×')} that of one: {least}")

# %% [markdown]
# Published with acceptance, on CPUs: OpenVINO GenAI's prompt lookup accepted 10.8% of the proposed tokens and was 5%
# faster over 100 tokens ([2024](https://github.com/openvinotoolkit/openvino.genai/pull/1245)). SGLang's EAGLE-2 wrote
# 2.8 tokens per pass and was 1.5 times as fast ([Llama-2-7B, two Xeons,
# 2026](https://github.com/sgl-project/sglang/pull/27862)). With many requests at once the cores are busy, and a draft
# can slow all of them down.

# %% [markdown]
# ## 8 · Under load: TTFT and TPOT {read 5, wait 0.3, optional}
#
# With *continuous batching*, a server admits a new request at any pass. But a long prompt occupies a pass of its own,
# and all others wait. With *chunked prefill*, a pass reads a part of the prompt and also writes a token for each other
# request.
#
# `serving.serve` simulates both, with the times of passes that you measured. Before you believe a simulator, compare it
# with the real decoder at points that it was not built from: a request alone, and 8 at once.

# %%
measured_s = {count: count / np.median(at_once["FP32", count]) for count in AT_ONCE}
measured_s[PROMPT] = PROMPT / np.median(prefill["FP32"])  # tokens in a pass: seconds


def pass_seconds(tokens, cached):
    """Return the seconds of a pass: by its tokens, as measured, and by the caches that it reads."""
    beyond = max(1, tokens / PROMPT)  # longer prompts take proportionally longer
    by_tokens = beyond * np.interp(tokens, sorted(measured_s), sorted(measured_s.values()))
    return by_tokens + cached * kv_token / cache_rate


# %% jupyter={"source_hidden": true}
LENGTH, ANSWER = (8, 4) if QUICK else (96, 24)
checks = {1: {"TTFT": [], "TPOT": []}, 8: {"TTFT": [], "TPOT": []}}
with load.watch("section 8") as serving_others:
    for turn in range(-1, BATCH_ROUNDS):  # the first does not count
        for requests, seconds in checks.items():
            decoders["FP32"].reset()
            first_s = seconds_of(
                decoders["FP32"].forward, np.zeros((requests, LENGTH), int), calls=1
            )
            token_s = seconds_of(
                decoders["FP32"].forward, np.zeros((requests, 1), int), calls=ANSWER - 1
            )
            if turn >= 0:
                seconds["TTFT"].append(first_s)
                seconds["TPOT"].append(token_s)
scores = []
for requests, seconds in checks.items():
    together = [serving.Request(0.0, LENGTH, ANSWER)] * requests
    answers = serving.serve(together, pass_seconds, slots=requests, chunk=requests * LENGTH)
    for what, value in (
        ("TTFT", max(answer.first_s for answer in answers)),
        ("TPOT", answers[-1].token_s),
    ):
        measured = spread(seconds[what], "ms", 1000, 1)
        scores.append(Prediction(f"{what}, {requests} at once", 1000 * value, measured))
print(*scores, sep="\n")
print(score(scores))

# %% jupyter={"source_hidden": true}
LONG, REPLY, SLOTS, CHUNK = (64, 8, 4, 16) if QUICK else (512, 64, 16, 64)
lone_answer = serving.serve([serving.Request(0.0, LONG, REPLY)], pass_seconds, 1)[0]
loads = np.array([0.25, 0.5, 0.75, 1, 1.25, 1.5, 2]) / lone_answer.times[-1]  # requests/s
policies = {"prompts in one pass": 0, f"in chunks of {CHUNK} tokens": CHUNK}
quantities = {
    "TTFT, s": lambda answer: answer.first_s,
    "TPOT, ms": lambda answer: 1000 * answer.token_s,
    "longest pause, ms": lambda answer: 1000 * answer.longest_gap_s,
}
simulated = {
    (policy, rate): serving.serve(
        serving.poisson(rate, ARRIVALS, LONG, REPLY), pass_seconds, SLOTS, chunk
    )
    for policy, chunk in policies.items()
    for rate in loads
}
figure, axes = plt.subplots(1, 3, figsize=(11.5, 4.8))
for axis, (what, value) in zip(axes, quantities.items()):
    for (policy, _), colour, marker in zip(policies.items(), plots.PALETTE, plots.MARKERS):
        tail = [np.percentile([*map(value, simulated[policy, rate])], 95) for rate in loads]
        typical = [np.median([*map(value, simulated[policy, rate])]) for rate in loads]
        axis.plot(loads, tail, f"{marker}-", color=colour, label=f"{policy}, p95")
        axis.plot(loads, typical, f"{marker}:", color=colour, label=f"{policy}, median")
    axis.set(xlabel="requests/s", ylabel=what, yscale="log")
    log_ticks(axis.yaxis)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
figure.suptitle(f"Simulated: prompts of {LONG} tokens, answers of {REPLY}, {SLOTS} slots, FP32")
at_load = loads[3]
p95 = {
    (policy, what): np.percentile([*map(value, simulated[policy, at_load])], 95)
    for policy in policies
    for what, value in quantities.items()
}
alt = "; ".join(f"{policy}: p95 of {what} {value:,.2f}" for (policy, what), value in p95.items())
plots.show(figure, alt=f"At {at_load:.2f} requests/s: {alt}", watched=[serving_others])
print(f"At {at_load:.2f} requests/s, which would keep a server busy one at a time, p95:")
for (policy, what), value in p95.items():
    print(f"    {policy:26} {what:18} {value:10,.2f}")
results.hand_in(
    "8",
    *(
        (point.name, "", point.measured, f"{point.predicted:,.1f} ms predicted", serving_others)
        for point in scores
    ),
)

# %% [markdown]
# Compare the pauses, then TTFT: chunks keep answers flowing, and a new request's own prompt takes more passes. Choose
# a p95 that users accept, and read off the load.

# %% [markdown]
# ## 9 · Split over ranks {read 4, wait 0.4, optional}
#
# On a server with two sockets, a core reads its own memory faster than the other socket's. [**Tensor
# parallelism**](../docs/glossary.md#tensor-parallelism) starts a rank per socket and gives each rank a part of every
# matmul's weights, as you split a dense layer in lab 06. The weights of queries, keys, values and the first matmul
# after attention are cut by columns, the others by rows; an all-reduce adds the partial sums, twice per block. Each
# carries `width` numbers, a few kB, so on a network latency would count as much as bytes: a 70B model has 80 blocks,
# 160 all-reduces per token.
#
# Published: [vLLM on an Arm server with two NUMA nodes](https://github.com/vllm-project/vllm/pull/32792) answers 1.96
# times the requests of one node with a rank on each. Before its all-reduce used shared memory, it was 0.6 times (2026).
#
# The script (folded) sends one token through a model of 79 million weights: as one rank with N threads, and as N ranks
# with one thread, on the same cores.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster are N ranks than one rank with N threads on your machine?
#
# </div>

# %%
results.guess(7, "ranks vs threads, same cores", ..., unit="×")

# %% jupyter={"source_hidden": true}
# %%writefile work/tensor_parallel.py
"""One token through split blocks: work/tensor_parallel.py OUT ROUNDS LAYERS WIDTH"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

ranks = MPI.COMM_WORLD
rounds, layers, width = map(int, sys.argv[2:])


def part(seed, rows, columns, axis):
    """Return this rank's rows (0) or columns (1) of weights that all ranks agree on."""
    rng = np.random.default_rng(seed)
    whole = rng.standard_normal((rows, columns), np.float32) / np.float32(rows**0.5)
    return np.ascontiguousarray(np.split(whole, ranks.size, axis=axis)[ranks.rank])


def norm(x):
    return x / np.sqrt((x * x).mean() + np.float32(1e-5))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978846 * (x + 0.044715 * x * x * x)))


blocks = [
    {
        "qkv": [part((layer, which), width, width, 1) for which in range(3)],
        "out": part((layer, 3), width, width, 0),
        "up": part((layer, 4), width, 4 * width, 1),
        "down": part((layer, 5), 4 * width, width, 0),
    }
    for layer in range(layers)
]


def all_reduce(x):
    """Return the sum of all ranks' x."""
    total = np.empty_like(x)
    ranks.Allreduce(x, total)
    return total


def forward(x):
    """Return a token's vector after all blocks; alone, attention returns its value."""
    for weights in blocks:
        y = norm(x)
        query, key, value = (y @ matrix for matrix in weights["qkv"])
        x = x + all_reduce(value @ weights["out"])
        x = x + all_reduce(gelu(norm(x) @ weights["up"]) @ weights["down"])
    return x


def all_reduces(x):
    for _ in range(2 * layers):
        all_reduce(x)
    return x


token = np.random.default_rng(0).standard_normal(width, np.float32)
seconds = {"token": [], "all-reduces": []}
for _ in range(1 + rounds):
    for what, run in (("token", forward), ("all-reduces", all_reduces)):
        ranks.Barrier()
        began = time.perf_counter()
        result = run(token)
        spent = time.perf_counter() - began
        seconds[what].append(ranks.allreduce(spent, op=MPI.MAX))
result = forward(token)
if ranks.rank == 0:
    measured = {what: spent[1:] for what, spent in seconds.items()}  # the first warms up
    Path(sys.argv[1]).write_text(json.dumps(measured | {"result": result.tolist()}))


# %% jupyter={"source_hidden": true}
def compare_ranks(name, configurations):
    """Run the configurations (ranks, threads each) alternately; return the last vs the first."""
    rates, waits, outputs, runs = {}, {}, {}, []
    for _ in range(RANK_ROUNDS):
        for label, (n, rank_threads) in configurations.items():
            arguments = (work / "split.json", 2 if QUICK else 20, *split_shape)
            options = {"threads": rank_threads, "show": False}
            runs.append(run_ranks(n, "work/tensor_parallel.py", *arguments, **options))
            measured = json.loads((work / "split.json").read_text())
            rates.setdefault(label, []).append(1 / np.median(measured["token"]))
            waits.setdefault(label, []).append(np.median(measured["all-reduces"]))
            outputs[label] = np.array(measured["result"])
    first, second = outputs.values()
    print(f"{name}. {placement(runs)}")
    print(f"largest relative difference: {np.abs(first - second).max() / np.abs(first).max():.0e}")
    for label, speeds in rates.items():
        ms, within = 1000 / np.median(speeds), 1000 * np.median(waits[label])
        print(f"{label:22}: {ms:.2f} ms per token; its all-reduces alone {within:.3f} ms")
    gain = ratio(*reversed(rates.values()))
    print(f"{label} vs {next(iter(rates))}: {Measured(*gain, '×')}: {gain.verdict}")
    return gain


# %%
N = 2 ** int(math.log2(min(cores, 8)))  # the heads and all widths divide by it
one_memory = {f"1 rank, {N} threads": (1, N), f"{N} ranks, 1 thread": (N, 1)}
if N == 1:
    print("Not here: one core")
else:
    print(f"{2 * RANK_ROUNDS} runs, about half a minute", flush=True)
    with load.watch("section 9") as split_others:
        split_gain = compare_ranks("The same cores", one_memory)
    results.compare_guess(7, Measured(*split_gain, "×"))
    results.hand_in(
        "9", ("ranks vs threads, same cores", "", Measured(*split_gain, "×"), "", split_others)
    )

# %% [markdown]
# If ranks gain although they share one memory, a likely reason is that NumPy's threads wait for each other after each
# matmul, and the code between matmuls is single-threaded. Ranks synchronise twice per block.
#
# With several sockets, compare one rank on all cores with a rank per socket.

# %%
sockets = len(machine.numa)
per_socket = cores // sockets
if sockets in (2, 4, 8) and per_socket:
    across = {f"1 rank, {sockets * per_socket} threads": (1, sockets * per_socket)}
    with load.watch("section 9"):
        compare_ranks("Across the sockets", across | {"a rank per socket": (sockets, per_socket)})
else:
    print(f"Not here: {sockets} NUMA node{'s' if sockets > 1 else ''}. Published, above: 1.96×.")

# %% [markdown]
# ## 10 · The same in tools {read 5, wait 0.6, optional}
#
# The options that matter on CPUs, according to [llama.cpp's server][lc], [OpenVINO GenAI][ov],
# [vLLM on CPU][vl] and [SGLang on CPU][sg] (autumn 2026):
#
# | | llama.cpp | OpenVINO GenAI | vLLM | SGLang |
# | --- | --- | --- | --- | --- |
# | threads, pinning | `--threads` (decode), `--threads-batch`, `--cpu-range` | `INFERENCE_NUM_THREADS` | (1) | (2) |
# | NUMA | `--numa distribute` | a process per node, `numactl` | `-tp`: a rank per node | `--tp`: the same |
# | KV precision | `--cache-type-k`, `--cache-type-v` | `KV_CACHE_PRECISION` | `--kv-cache-dtype` | the same |
# | KV memory | `--ctx-size` | `cache_size` | `VLLM_CPU_KVCACHE_SPACE` | `--max-total-tokens` |
# | requests at once | `--parallel` | `max_num_seqs` | `--max-num-seqs` | `--max-running-requests` |
# | prefill chunk | `--ubatch-size` | `max_num_batched_tokens` | (3) | `--chunked-prefill-size` |
# | prompt lookup | `--spec-type ngram-simple` | `prompt_lookup` | `--speculative-config` | (4) |
# | draft model | `--spec-draft-model` | `draft_model` | the same | (4) |
# | prefix cache | `--cache-prompt` (default) | `enable_prefix_caching` | on by default | on by default |
#
# [lc]: https://github.com/ggml-org/llama.cpp/tree/master/tools/server
# [ov]: https://openvinotoolkit.github.io/openvino.genai
# [vl]: https://docs.vllm.ai/en/stable/getting_started/installation/cpu.html
# [sg]: https://docs.sglang.io/docs/hardware-platforms/cpu_server

# %% [markdown]
# (1) `VLLM_CPU_OMP_THREADS_BIND="0-31|32-63"`: a list of cores per rank. (2) `SGLANG_CPU_OMP_THREADS_BIND`, likewise.
# (3) `--max-num-batched-tokens`. (4) `--speculative-algorithm NGRAM` or `STANDALONE`, on CPUs since 2026, like FP8 for
# keys and values ([vLLM](https://github.com/vllm-project/vllm/pull/39445),
# [SGLang](https://github.com/sgl-project/sglang/pull/32733)).
#
# A *prefix cache* keeps the keys and values of earlier prompts. Requests that begin alike, with the same system prompt
# or the chat so far, read only what is new, so their TTFT falls.
#
# Hyperthreads share a core's matmul units, so use one thread per core. Decode needs as many threads as it takes to
# saturate memory. Does that take all of yours?

# %% jupyter={"source_hidden": true}
thread_rates, rows = {}, []
counts_of_threads = sorted({1, max(1, cores // 2), cores})
by_threads = {count: Decoder(model, INFERENCE_NUM_THREADS=count) for count in counts_of_threads}
with load.watch("section 10"):
    for turn in range(-1, ROUNDS):  # the first does not count
        for count, decoder in by_threads.items():
            fast = tokens_per_second(decoder, 1, PROMPT // 4, 0, 1)
            slow = tokens_per_second(decoder, 1, 1, PROMPT // 4, PASSES)
            if turn >= 0:
                thread_rates.setdefault(("prefill", count), []).append(fast)
                thread_rates.setdefault(("decode", count), []).append(slow)
for (what, count), speeds in sorted(thread_rates.items()):
    gain = ratio(speeds, thread_rates[what, 1]) if count > 1 else ""
    times = f"{Measured(*gain, '×')}: {gain.verdict}" if gain else ""
    rows.append((what, str(count), f"{np.median(speeds):,.0f}", times))
display(markdown.table(("FP32", "threads", "tokens/s", "vs one thread"), rows))
if len(counts_of_threads) > 2:
    fewer = counts_of_threads[-2]
    gain = ratio(thread_rates["decode", cores], thread_rates["decode", fewer])
    print(f"decode, {cores} threads vs {fewer}: {Measured(*gain, '×')}: {gain.verdict}")
del by_threads, decoder

# %% [markdown]
# ### Your model in OpenVINO GenAI
#
# The tool runs any decoder that has the inputs it expects; `for_genai` gives yours those. It accepts tokens, so no
# tokeniser is needed. It keeps keys and values in one of two ways: as the model's own state, like your decoder, or in
# [pages](https://arxiv.org/abs/2309.06180) that many requests share (its default). Does that cost anything for a single
# request? All three write the likeliest token each time.

# %%
import openvino_genai

served = Shape(*split_shape, split_shape[1] // 64, context=PROMPT + WRITTEN)
served_weights = random_weights(served)
own = Decoder(openvino_model(served, served_weights))
prompt = np.random.default_rng(0).integers(0, served.symbols, (1, PROMPT))
precisions = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}

with tempfile.TemporaryDirectory() as folder:
    exported = for_genai(openvino_model(served, served_weights))
    openvino.save_model(exported, f"{folder}/openvino_model.xml", compress_to_fp16=False)
    Path(folder, "config.json").write_text('{"model_type": "gpt2"}')
    Path(folder, "generation_config.json").write_text('{"eos_token_id": 0}')
    state = openvino_genai.LLMPipeline(folder, "CPU", ATTENTION_BACKEND="SDPA", **precisions)
    pages = openvino_genai.LLMPipeline(folder, "CPU", ATTENTION_BACKEND="PA", **precisions)


def write_own():
    """Return the tokens that your decoder writes."""
    own.reset()
    tokens = [int(own.forward(prompt)[0, -1].argmax())]
    while len(tokens) < WRITTEN:
        tokens.append(int(own.forward(np.array([tokens[-1:]]))[0, -1].argmax()))
    return tokens


def write_by(pipeline):
    """Return the tokens that GenAI writes."""
    request = openvino.Tensor(prompt)
    return pipeline.generate(request, max_new_tokens=WRITTEN, ignore_eos=True).tokens[0]


# %% jupyter={"source_hidden": true}
writers = {
    "your decoder": write_own,
    "GenAI, state": lambda: write_by(state),
    "GenAI, pages": lambda: write_by(pages),
}
written, writing = {}, {name: [] for name in writers}
with load.watch("section 10, GenAI"):
    for turn in range(-1, ROUNDS):  # the first does not count
        for name, write in writers.items():
            began = time.perf_counter()
            written[name] = write()
            if turn >= 0:
                writing[name].append(WRITTEN / (time.perf_counter() - began))
for name, gain in ratios(writing, "your decoder").items():
    same = "the same tokens" if written[name] == written["your decoder"] else "other tokens"
    compared = (
        ""
        if name == "your decoder"
        else f", {Measured(*gain, '×')}: {gain.verdict_by_rounds}; {same}"
    )
    print(f"{name}: {np.median(writing[name]):,.0f} tokens/s{compared}")

# %% [markdown]
# The rate counts the prompt and all tokens after it. With pages, another attention kernel runs than under your decoder.
# A tool that is at least as fast costs nothing here, and what it adds is in the table: many requests at once, prefix
# caches, drafts. If it writes other tokens, two were about equally likely, and each kernel adds up in another order.

# %% [markdown]
# ## Questions {read 3}
#
# Answer each in a sentence or two.
#
# 1. A colleague says: "This CPU has `2 TFLOP/s`, and the model needs 14 GFLOP per token, so it writes 140 tokens a
#    second." What is missing, and what would you ask?
# 2. Which is the better buy for a chat server with one user, twice the cores or twice the memory channels? And for
#    summaries of long documents?
# 3. Weights in INT4 are an eighth of FP32's bytes. Why was decode not eight times as fast here? Section 4 has the
#    evidence.
# 4. Llama-3.1-8B has 32 layers and 32 heads of 128 numbers, of which 8 are cached, in 16 bits. How large is the cache
#    of a request of 4,000 tokens, and how many requests' caches are as large as 4.5 GB of weights? And without GQA?
# 5. When does a draft make writing slower? Say it with `alpha`, `draft_cost` and `pass_cost`.
# 6. Your p95 of TTFT is too high, your TPOT is fine. Which settings would you try, and what do they cost?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions.
#
# 1. Bytes are missing: 14 GFLOP per token are 7 billion weights, and each must be read for each token. In 16 bits that
#    is 14 GB per token, so the bandwidth divided by 14 GB is the limit. Ask for the bits per weight, for the *measured*
#    bandwidth, and whether they mean prefill.
# 2. Channels for the chat, as decode is bytes over bandwidth. Cores, or instructions for matmuls such as AMX, for
#    documents: prefill is arithmetic, and a summary is mostly reading.
# 3. With scales it is 0.53 bytes, so the most is 4 / 0.53. Then the table of times. Where the kernels alone take as
#    long as memory alone, and the two overlap only in part, a matmul takes longer than its bytes. Attention and the
#    rest do not shrink with the weights. More cores per GB/s shorten the kernels' time, but not memory's.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **Answers, continued**
#
# 4. Per token 2 · 32 · 8 · 128 · 2 bytes = 0.13 MB, per request 0.52 GB; the caches equal the weights at 8 or 9
#    requests. Without GQA four times as much: 0.52 MB and 2.1 GB, equal at 2 requests. So what a batch reads is soon
#    its caches, not the weights.
# 5. When proposing costs more than what is accepted is worth: (1 + alpha + … + alpha^gamma) is less than gamma ·
#    draft_cost + pass_cost. A pass that costs more, as on a CPU near its ridge or with many requests at once, makes it
#    so for good drafts too.
# 6. A prefix cache, if prompts begin alike (costs memory). Fewer slots or larger prefill chunks (cost TPOT). Less load
#    per server (costs servers).
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **Timing** Let the training of section 1 run while you draw attention on the board. A student who is not done with
# exercise 1 after 5 minutes should take the solution. Exercises 3 and 4 can be done in pairs. Sections 8 to 10 are
# homework for a group that trains models rather than serves them.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **What goes wrong** Exercise 1: a mask by `np.tri(n, m)` is right only when *m* is *n*; with a cache the last query
# has to see all keys. Exercise 2: `np.concatenate` along the first axis joins heads. Exercise 3: "each weight once per
# token" in the bytes gives decode and prefill the same intensity, which is the misconception that the lab is about;
# `heads` in place of `kv_heads` gives a cache without GQA. Exercise 4: one scale per row passes for a single group;
# `astype` before `round` truncates. Exercise 5: the token after the first wrong one is the large model's, and free;
# dropping it loses a token per pass, also when all are right. Exercise 6: the sum has gamma + 1 terms.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **Where the figures don't fit** A VM shares memory with neighbours that it does not see, and the bandwidth can halve
# within a minute. That is why rounds read memory and run the model alternately. With a last cache of hundreds of MB
# (EPYC with 3D V-Cache, Xeon Max) raise `WIDTH`. With 4 GB of memory the model is narrower, and overhead matters more.
# Section 6 needs no memory for the models: it forecasts on any machine.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Prefill is arithmetic (TTFT), decode is bytes (TPOT). For one request, tokens/s of decode ≤ bandwidth / bytes of the
#   active weights and the cache.
# - A KV cache saves computing earlier tokens again, and costs memory and reading per request. GQA shrinks both.
# - Fewer bits help decode by bytes, until unpacking or overhead is the limit. They help prefill only where the CPU
#   multiplies them directly.
# - Requests in a batch share one reading of the weights, not of their caches.
# - A draft pays for one request, if it is cheap and often right.
# - Compare machines and programs by the share of the measured bandwidth.
#
# Published, measured, and the most that the machine could do:

# %% jupyter={"source_hidden": true}
rows = [
    ("decode, Phi-4 in 8 bits, EPYC 9554, llama.cpp", "65% of the bandwidth on paper", "", ""),
    ("the same in 4 bits", "56%", "", ""),
]
for (what, name), reached in shares.items():
    of_limit = f"{what}, {name}, of what the two limits predict"
    rows.append((of_limit, "", reached, "100%", speed_others))
gain = Measured(*prefill_gain, "×")
rows.append(("prefill vs decode, FP32, tokens/s", "", gain, "", speed_others))
# section 4
rows.append((f"reading memory: {memory.fastest}", "", spread(reading, "GB/s"), "", format_others))
for name in ("FP32, NumPy", "INT8", "INT4"):
    rows.append((f"decode, {name}, of that", "", decode_share[name], "100%", format_others))
for name in ("BF16", "INT8", "INT4"):
    at_most = formats["FP32"][1] / formats[name][1]
    gain = Measured(*gains["decode"][name], "×")
    rows.append((f"decode, {name} vs FP32", "", gain, f"{at_most:.1f}× by bytes", format_others))
# end of section 4
what = f"decode, {AT_ONCE[-1]} requests vs one, FP32"
rows.append((what, "", Measured(*batch_gain, "×"), "", batch_others))
what = f"GQA (heads share keys by 4) at {many} requests, {longest:,} cached tokens"
rows.append((what, "", Measured(*gqa_gain, "×"), "4× fewer bytes of cache", context_others))
for name in ("Llama-3.1-8B", "Qwen3-30B-A3B"):
    forecast_here = str(expected.get(name, "does not fit")) + " tokens/s" * (name in expected)
    rows.append((f"forecast: decode, {name}, Q4, after 4,096 tokens", "", forecast_here, ""))
predicted_text = f"{predicted[chosen]:.2f}× predicted"
gain = Measured(*speculative, "×")
rows.append(
    ("prompt lookup vs no draft", "1.05× (accepts 10.8%)", gain, predicted_text, draft_others)
)
gain = Measured(*cache_gain, "×")
rows.append(("a token with a KV cache, the longest text", "", gain, "", cache_others))
names = (f"{what}, {count} at once" for count in (1, 8) for what in ("TTFT", "TPOT"))
rows += results.handed_in("8", *((name, "") for name in names))
rows += results.handed_in("9", ("ranks vs threads, same cores", "2 NUMA nodes: 1.96×"))
results.table("language models", rows)

# %% [markdown]
# Published: [llama.cpp on an EPYC 9554](https://ahelpme.com/?p=6685);
# [OpenVINO GenAI's prompt lookup](https://github.com/openvinotoolkit/openvino.genai/pull/1245);
# [vLLM's two ranks on Arm](https://github.com/vllm-project/vllm/pull/32792).
#
# Your way to this machine's fastest setting, over all labs:

# %%
ladder.show(results)

# %% [markdown]
# **Next:** [lab 11](11_after_the_all_reduce.ipynb), where a network's weights, gradients and optimizer are sharded over
# ranks.
