# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 10 · Language models
#
# **You will learn** how a transformer writes text, what its cache saves, why reading a prompt and writing an answer
# meet different limits of your machine, what fewer bits, more requests at once and a draft gain, and how to predict
# each from two numbers of the machine before you measure it.
#
# **Time** {minutes}
#
# **Connects to** lab 03, which measured the two numbers; lab 04, which quantised a CNN; lab 06, which split a layer
# over ranks.
#
# **No model is downloaded.** How *fast* a model is depends on its sizes, and not on the values of its weights: so speed
# is measured with random weights. How *good* a model is depends on nothing but its values: so quality is measured on a
# small model that you train yourself, in a minute or two, on a text that every Python has with it.

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
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import keras
import matplotlib.pyplot as plt
import nncf
import numpy as np
import openvino
import rich
import tensorflow as tf
from IPython.display import display

from labkit.data import characters
from labkit.display import ladder, markdown, plots
from labkit.display.measured import Measured
from labkit.models.decoder import Decoder, Shape, openvino_model, random_weights
from labkit.mpi import run_ranks
from labkit.roofline import measure, peaks
from labkit.system import load
from labkit.system.statistics import ratio, ratios
from labkit.testbed import obstacle

nncf.set_log_level(logging.ERROR)
rich.reconfigure(quiet=True, force_jupyter=False)  # no progress bars from NNCF

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
CONTEXT = 32 if QUICK else 128  # characters that the trained models look back on
STEPS, BATCH = (12, 4) if QUICK else (1000, 12)  # of training: section 1
LENGTHS, LENGTH_ROUNDS = ((8, 24), 2) if QUICK else ((16, 32, 48, 64, 96, 127), 8)  # section 2
WIDTH = (
    256 if QUICK else 2048 if machine.memory_free > 5e9 else 1280
)  # of the large model: section 3
PROMPT, ROUNDS, PASSES = (16, 2, 2) if QUICK else (256, 6, 6)  # sections 3 and 4
AT_ONCE = (1, 4) if QUICK else (1, 2, 4, 8, 16, 32, 64)  # requests: section 5
BATCH_ROUNDS, BATCH_PASSES = (2, 1) if QUICK else (4, 3)  # section 5
DRAFT_STEPS = 12 if QUICK else 1600  # section 6
TEXTS, WRITTEN, DRAFT_ROUNDS = (4, 8, 2) if QUICK else (12, 80, 5)  # section 6
RANK_ROUNDS = 2 if QUICK else 8  # section 7

text = characters.load_characters()
print(text.source)

# %% [markdown]
# ## 1 · A transformer, small and whole
#
# A language model answers one question: *given the text so far, what comes next?* The text is cut into
# [**tokens**](../docs/glossary.md#token). Here a token is a character, one of 128; in the models that people chat with
# it is a piece of a word, one of some 100,000. The model returns a number for each token that could come next, its
# *logit*. Write one of the likely tokens behind the text, ask again, and the model writes.
#
# All such models of today are [**transformers**](../docs/glossary.md#transformer), a stack of equal blocks:
#
# ```mermaid
# flowchart LR
#     accTitle: A transformer
#     accDescr: Tokens become vectors. Blocks follow. Each adds attention, then two products. At the end are the logits.
#     tokens["tokens"] --> embed["a vector each,<br>plus its position's"]
#     embed --> attend["attention:<br>look up earlier tokens"]
#     subgraph block["block, repeated"]
#         attend --> think["two products<br>with GELU between"]
#     end
#     think --> logits["logits of the<br>next token"]
# ```
#
# In a block, every token's vector is treated alike, by products with the same weights. Only in
# [**attention**](../docs/glossary.md#attention) do tokens look at each other. Each token has three vectors: a *query*,
# what it looks for; a *key*, by which it is found; and a *value*, what it tells whoever finds it. Attention is cut into
# *heads*, which look for different things.
#
# ### Exercise 1 · Attention
#
# Write `attention(q, k, v)` for arrays of `float32`. `q` holds the queries of the last *n* tokens, (heads, n, d). `k`
# and `v` hold the keys and the values of all *m* tokens so far, (heads, m, d); *m* is *n*, or more. In each head, for
# each query:
#
# 1. its scores are its dot products with the keys, divided by √*d*;
# 2. a token must not see later ones: their scores do not count. The last query is the last token's, and sees all keys;
# 3. [**softmax**](../docs/glossary.md#softmax) turns the scores into shares that add up to 1: the exponential of each
#    score, divided by the sum of all. Scores can be large, and `np.exp(1000)` is infinite;
# 4. the result is the sum of the values, each times its share.
#
# Return an array (heads, n, d).


# %%
def attention(q, k, v):
    """Return what each query gathers from the values of the tokens up to its own."""
    ### BEGIN SOLUTION
    n, m, d = q.shape[1], k.shape[1], q.shape[2]
    scores = q @ k.transpose(0, 2, 1) / d**0.5
    later = np.arange(m) > np.arange(m - n, m)[:, None]
    scores = np.where(later, -np.inf, scores)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return shares @ v
    ### END SOLUTION


# %% tags=["nbval-check-output"]
attention = check(1, attention)

# %% [markdown]
# The rest of the model is short. This is all of it, in NumPy: 25 lines, with your attention inside. `norm` keeps the
# vectors at one size (*RMSNorm*), and GELU is a smooth ReLU.


# %%
class Network(NamedTuple):
    shape: Shape  # layers, width, heads
    weights: dict  # arrays (in, out) by name


def norm(x):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978846 * (x + 0.044715 * x * x * x)))


def forward(network, tokens, cache=None):
    """Return the logits (n, 128) of what follows each of n tokens.

    A cache, a dict, has the keys and values of the tokens before them: section 2.
    """
    shape, weights = network
    before = cache[0][0].shape[1] if cache else 0
    x = weights["embed"][tokens] + weights["position"][before : before + len(tokens)]
    for layer in range(shape.layers):
        qkv = norm(x) @ weights[f"{layer}.qkv"]
        q, k, v = qkv.reshape(len(x), 3, shape.heads, -1).transpose(1, 2, 0, 3)
        if cache is not None:
            k, v = cache[layer] = remember(cache.get(layer), k, v)
        heads = np.asarray(attention(q, k, v), np.float32)
        x = x + heads.transpose(1, 0, 2).reshape(x.shape) @ weights[f"{layer}.out"]
        x = x + gelu(norm(x) @ weights[f"{layer}.up"]) @ weights[f"{layer}.down"]
    return norm(x) @ weights["logits"]


SMALL = Shape(layers=4, width=128, heads=4, context=CONTEXT)
untrained = Network(SMALL, random_weights(SMALL))
print(f"{sum(weights.size for weights in untrained.weights.values()):,} weights")

# %% [markdown]
# To train it, you need gradients, and those TensorFlow has. So here is the same model for a batch of texts, by
# TensorFlow. Does your attention agree with TensorFlow's softmax and its products?


# %%
def norm_tf(x):
    return x * tf.math.rsqrt(tf.reduce_mean(x * x, axis=-1, keepdims=True) + 1e-5)


def forward_tf(shape, weights, tokens):
    """Return the logits (batch, n, 128) of what follows each of n tokens, in a batch of texts."""
    n, each_head = tokens.shape[1], shape.width // shape.heads
    hidden = tf.constant(np.where(np.tri(n, dtype=bool), 0, -np.inf), tf.float32)
    x = tf.gather(weights["embed"], tokens) + weights["position"][:n]
    for layer in range(shape.layers):
        qkv = norm_tf(x) @ weights[f"{layer}.qkv"]
        qkv = tf.reshape(qkv, (-1, n, 3, shape.heads, each_head))
        q, k, v = tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))
        shares = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / each_head**0.5 + hidden)
        heads = tf.reshape(tf.transpose(shares @ v, (0, 2, 1, 3)), (-1, n, shape.width))
        x += heads @ weights[f"{layer}.out"]
        x += (
            tf.nn.gelu(norm_tf(x) @ weights[f"{layer}.up"], approximate=True)
            @ weights[f"{layer}.down"]
        )
    return norm_tf(x) @ weights["logits"]


some = text.held_out[:CONTEXT].astype(np.int32)
by_tensorflow = forward_tf(SMALL, untrained.weights, some[None])[0].numpy()
print(
    f"largest difference of a logit: {np.abs(forward(untrained, some) - by_tensorflow).max():.1e}"
)

# %% [markdown]
# How good is a model? Ask it for the probability that it gave to the character that really came next. The **loss** is
# minus the natural logarithm of that, on average over the text.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** A model that knows nothing gives each of the 128 characters the same probability. What is its loss?
# And after a minute of training?
#
# </div>

# %%
results.guess(1, "loss of the trained model, on text that it has not seen", ..., unit="nats")

# %% [markdown]
# The training loop is that of any network. The text is the documentation behind Python's `help()`; every tenth of its
# topics is held out. As it trains, the model also writes 60 characters by itself.


# %%
def loss_of(logits, tokens):
    """Return minus the logarithm of each token's probability."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[..., 1:], logits[..., :-1, :])


def held_out_texts():
    """Return the held-out text in pieces (n, CONTEXT)."""
    pieces = len(text.held_out) // CONTEXT
    return text.held_out[: pieces * CONTEXT].reshape(pieces, CONTEXT).astype(np.int32)


def write(network, prompt, count, seed=0):
    """Return a text that goes on behind a prompt, each character drawn by its probability."""
    rng, tokens = np.random.default_rng(seed), list(characters.to_tokens(prompt))
    for _ in range(count):
        logits = forward(network, np.array(tokens[-CONTEXT:]))[-1] / 0.7  # less than 1: bolder
        chances = np.exp(logits - logits.max())
        tokens.append(rng.choice(len(chances), p=chances / chances.sum()))
    return characters.to_text(tokens)


def train(shape, steps):
    """Return a network that was trained for so many steps, and the held-out loss on the way."""
    variables = {name: keras.Variable(each) for name, each in random_weights(shape).items()}
    values = {name: variable.value for name, variable in variables.items()}
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, alpha=0.05, warmup_target=4e-3, warmup_steps=max(1, steps // 20)
    )
    optimizer = keras.optimizers.Adam(rate, beta_2=0.99)
    optimizer.build(list(variables.values()))
    rng, seen, held_out = np.random.default_rng(1), text.train.astype(np.int32), held_out_texts()

    @tf.function
    def step(texts):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of(forward_tf(shape, values, texts), texts))
        gradients = [
            tf.convert_to_tensor(each) for each in tape.gradient(loss, list(values.values()))
        ]
        optimizer.apply_gradients(zip(gradients, variables.values()))
        return loss

    @tf.function
    def held_out_loss():
        return tf.reduce_mean(loss_of(forward_tf(shape, values, held_out[:100]), held_out[:100]))

    losses, began = {0: held_out_loss().numpy()}, time.perf_counter()
    for number in range(1, steps + 1):
        first = rng.integers(0, len(seen) - CONTEXT, BATCH)
        step(tf.constant(seen[first[:, None] + np.arange(CONTEXT)]))
        if number % max(1, steps // 8) == 0:
            losses[number] = held_out_loss().numpy()
            network = Network(shape, {name: value.numpy() for name, value in values.items()})
            seconds = time.perf_counter() - began
            print(f"step {number:5}, {seconds:3.0f} s: loss {losses[number]:.2f}", flush=True)
            print(f"    {write(network, 'The ', 60)!r}", flush=True)
    return network, losses


# %%
print("Training: one to two minutes", flush=True)
with load.watch("section 1") as training_others:
    network, losses = train(SMALL, STEPS)
print(
    f"before: {losses[0]:.2f}; the logarithm of 128: {math.log(128):.2f}; "
    f"after: {losses[STEPS]:.2f}"
)
results.compare_guess(1, Measured(losses[STEPS], unit="nats", digits=2))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
axis.plot(list(losses), list(losses.values()), color=plots.BLUE)
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
    + ", ".join(f"{step}: {value:.2f}" for step, value in losses.items()),
    keep=results,
)

# %% [markdown]
# The loss as a probability: e to the power of minus the loss is what the model gave to the right character, as a
# geometric mean. First it learns which characters are frequent, then words, then what a page of documentation looks
# like. That is all that a large model does too, with 100,000 times as many weights and a million times as much text.
# The published anchor for this size is [nanoGPT's recipe for a CPU](https://github.com/karpathy/nanoGPT): 0.8 million
# weights, 2,000 steps, about 3 minutes on a laptop, a loss of 1.88 on Shakespeare. Another text has another loss.
#
# ## 2 · Generating
#
# To write a character, `write` computes the keys and the values of all earlier ones again. But those have not changed:
# no token sees later ones. So keep them: a [**KV cache**](../docs/glossary.md#kv-cache). Then each new token is
# computed once.
#
# ### Exercise 2 · The cache
#
# Write `remember(past, k, v)`. `k` and `v` are the keys and the values of *n* new tokens in one layer, arrays (heads,
# n, d). `past` is a pair of arrays, the keys and the values of the *m* tokens before them, (heads, m, d) each, or
# `None` when there are none. Return the pair of all keys and all values so far, (heads, m + n, d) each, in the order of
# the tokens. Leave `past` as it is.


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
# `forward` takes a cache already. Does the same text, one token at a time, give the same logits as all at once? And
# then: how long does the next token take, behind a text of some length?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Behind 127 characters, how many times as fast is a token with the cache as without it?
#
# </div>

# %%
results.guess(2, "a token with the cache, at the longest text", ..., unit="×")

# %%
cache = {}
one_by_one = np.concatenate(
    [forward(network, some[place : place + 1], cache) for place in range(CONTEXT)]
)
print(f"largest difference of a logit: {np.abs(one_by_one - forward(network, some)).max():.1e}")


def without_cache(length):
    forward(network, some[:length])


def with_cache(length):
    past = {layer: (k[:, : length - 1], v[:, : length - 1]) for layer, (k, v) in cache.items()}
    forward(network, some[length - 1 : length], past)


per_second = {(way, length): [] for way in (without_cache, with_cache) for length in LENGTHS}
with load.watch("section 2") as cache_others:
    for turn in range(-1, LENGTH_ROUNDS):  # the first does not count
        for (way, length), speeds in per_second.items():
            began = time.perf_counter()
            for _ in range(10):
                way(length)
            if turn >= 0:
                speeds.append(10 / (time.perf_counter() - began))
for length in LENGTHS:
    without, with_it = (
        1000 / np.median(per_second[way, length]) for way in (without_cache, with_cache)
    )
    print(f"{length:4} characters: {without:6.2f} ms without, {with_it:5.2f} ms with the cache")
cache_gain = ratio(per_second[with_cache, LENGTHS[-1]], per_second[without_cache, LENGTHS[-1]])
print(f"at {LENGTHS[-1]}: {cache_gain} times as fast: {cache_gain.verdict}")
results.compare_guess(2, Measured(*cache_gain, "×"))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
for way, label, colour, style in (
    (without_cache, "all characters again", plots.ORANGE, "--"),
    (with_cache, "the new one alone", plots.BLUE, "-"),
):
    ms = [1000 / np.median(per_second[way, length]) for length in LENGTHS]
    axis.plot(LENGTHS, ms, style, color=colour, label=label)
axis.set(xlabel="characters so far", ylabel="ms for the next one", ylim=(0, None))
axis.set(title="What the cache saves")
axis.legend()
plots.show(
    figure,
    alt="Milliseconds for the next character, without and with the cache: "
    + "; ".join(
        f"at {length}, {1000 / np.median(per_second[without_cache, length]):.2f} and "
        f"{1000 / np.median(per_second[with_cache, length]):.2f}"
        for length in LENGTHS
    ),
    watched=[cache_others],
)

# %% [markdown]
# Without the cache, a token's time grows with the text. With it, the time is flat, or nearly so: the keys and values to
# read grow, but here they are few. What is left is mostly not arithmetic. The products of one token are
# 2 · 0.8 million operations, some microseconds. But one token takes some 80 calls of NumPy, and each call has its own
# cost. Small models are limited by **overhead**, a third limit beside arithmetic and memory. Large ones are not, and
# those come next.
#
# A cache costs memory. Per token it has 2 · layers · width numbers. A model of 7 billion weights with 32 layers of
# 4,096 keeps 0.5 MB in 16 bits for every token of every user.
#
# ## 3 · Prefill is not decode
#
# When you send a prompt, the model first reads it: all its tokens go through the blocks at once. That is
# [**prefill**](../docs/glossary.md#prefill), and it decides how long you wait for the first word. Then it writes, a
# token a pass: [**decode**](../docs/glossary.md#decode). Both are the same products with the same weights. Which limit
# does each meet? Count first.
#
# ### Exercise 3 · Operations and bytes
#
# Write `cost(tokens, cached, layers, width, weight_bytes)` for one pass: so many new `tokens`, at least one, go through
# `layers` blocks of `width`, and so many others are in the cache already. Return a tuple of the floating-point
# operations and the bytes.
#
# - **Operations.** The four products with weights of a block have 12 · width² weights. In each block, each weight is
#   multiplied and added once for each new token. And in attention, each new token multiplies its query with the keys
#   that it may see, its own among them, and then the shares with as many values: key and value have `width` numbers
#   each, all heads together. A multiplication with its addition is two operations. Leave out all else.
# - **Bytes.** Each weight of the blocks is read once, `weight_bytes` each, whatever the number of tokens. The keys and
#   the values of the cached tokens are read, and those of the new ones written, once each, 4 bytes a number. Leave out
#   all else.


# %%
def cost(tokens, cached, layers, width, weight_bytes):
    """Return the operations and the bytes of one pass of new tokens through all blocks."""
    ### BEGIN SOLUTION
    weights = 12 * width**2
    pairs = tokens * cached + tokens * (tokens + 1) // 2  # of a query and a key that it sees
    operations = layers * (2 * weights * tokens + 4 * width * pairs)
    moved = layers * (weight_bytes * weights + 4 * 2 * width * (cached + tokens))
    return operations, moved
    ### END SOLUTION


# %% tags=["nbval-check-output"]
cost = check(3, cost)

# %% [markdown]
# Now a model that is large enough. Its weights must not fit into the caches, or memory would not be asked for them. The
# next cell makes one with random weights, from the machine's own sizes: at least four times the last cache, if the
# memory allows. It is the model of section 1, wider, and built for OpenVINO, which keeps the KV cache itself.

# %%
cache_bytes = peaks.last_level_cache(machine.cpus)
layer_weights = 12 * WIDTH**2
wanted = math.ceil(4 * cache_bytes / layer_weights)
allowed = int(machine.memory_free / 3 / (20 * layer_weights))  # 20 bytes a weight, in all formats
LARGE = Shape(
    layers=max(2, min(3 if QUICK else max(3, wanted), allowed)),
    width=WIDTH,
    heads=WIDTH // 64,
    context=512,
)
print(
    f"{LARGE.layers} blocks of width {WIDTH:,}: {LARGE.block_weights / 1e6:.0f} million weights, ",
    end="",
)
print(
    f"{4 * LARGE.block_weights / 1e6:,.0f} MB in FP32. The last cache: {cache_bytes / 1e6:.0f} MB",
    flush=True,
)
model = openvino_model(LARGE, random_weights(LARGE))
gc.collect()

# Formats: OpenVINO's model, the bytes of a weight, settings.
formats = {"FP32": (model, 4, {}), "BF16": (model, 2, {"INFERENCE_PRECISION_HINT": "bf16"})}
threads = {"INFERENCE_NUM_THREADS": cores}
decoders = {
    name: Decoder(each, **threads, **settings) for name, (each, _, settings) in formats.items()
}
no_bf16 = decoders["BF16"].compiled.get_property("INFERENCE_PRECISION_HINT") != openvino.Type.bf16
if no_bf16:
    formats["BF16"] = formats["FP32"]
    print("BF16: not here. OpenVINO computes in FP32 on this CPU, so the lines of BF16 are FP32's.")

# %% [markdown]
# The limits are the two numbers of `./lab roofline`: how fast this machine multiplies matrices, and how fast it reads
# memory. On a machine that others use too, even as a guest among guests, the speed of memory changes from minute to
# minute. So the next cell has a function that reads memory with all cores, to take turns with the model.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In FP32, how many times as many tokens per second will prefill do as decode does?
#
# </div>

# %%
results.guess(3, "tokens/s of prefill over those of decode, FP32", ..., unit="×")

# %%
limits = measure.limits(quick=QUICK)
kinds = {"FP32": "float32", "BF16": "float32" if no_bf16 else "bfloat16"}
peak = {name: limits.peak(kind) for name, kind in kinds.items()}
pool = ThreadPoolExecutor(cores)
numbers = int(min(1e9, machine.memory_free / 8)) // 4 // cores
memory = list(pool.map(np.ones, [numbers] * cores, ["float32"] * cores))  # a part for each thread


def read_memory():
    """Return the GB/s at which all cores together read memory, the best of three times."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        list(pool.map(np.maximum.reduce, memory))
        seconds.append(time.perf_counter() - began)
    return 4 * numbers * cores / min(seconds) / 1e9


def tokens_per_second(decoder, batch, tokens, cached, passes):
    """Return how many tokens a second go through a decoder, so many of each text in a pass."""
    rng = np.random.default_rng(0)
    decoder.reset()
    if cached:
        decoder.forward(rng.integers(0, 128, (batch, cached)))
    fed = rng.integers(0, 128, (batch, tokens))
    began = time.perf_counter()
    for _ in range(passes):
        decoder.forward(fed)
    return passes * batch * tokens / (time.perf_counter() - began)


def measure_formats(names, rounds):
    """Return the GB/s of reading, and the tokens/s of each format, round by round."""
    gb_per_second, prefill, decode = [], {name: [] for name in names}, {name: [] for name in names}
    for turn in range(-1, rounds):  # the first does not count
        reading = read_memory()
        for name in names:
            fast = tokens_per_second(decoders[name], 1, PROMPT, 0, 1)
            slow = tokens_per_second(decoders[name], 1, 1, PROMPT, PASSES)
            if turn >= 0:
                prefill[name].append(fast)
                decode[name].append(slow)
        if turn >= 0:
            gb_per_second.append(reading)
            told = ", ".join(
                f"{name} {prefill[name][-1]:,.0f} and {decode[name][-1]:,.0f}" for name in names
            )
            print(
                f"round {turn + 1} of {rounds}: memory {reading:.0f} GB/s; {told} tokens/s",
                flush=True,
            )
    return gb_per_second, prefill, decode


with load.watch("section 3") as speed_others:
    reading, prefill, decode = measure_formats(decoders, ROUNDS)

# %% [markdown]
# A pass takes at least as long as its operations at the peak, and at least as long as its bytes at the memory's speed.
# The larger of the two is the prediction. How far is it from what you measured?


# %%
def predict(name, tokens, cached, gb_per_second, batch=1):
    """Return the tokens/s that the two limits allow, and which of them it is."""
    operations, moved = cost(tokens, cached, LARGE.layers, LARGE.width, formats[name][1])
    weights_moved = formats[name][1] * LARGE.block_weights  # once for the whole batch
    moved = weights_moved + batch * (moved - weights_moved)
    by_cores = batch * operations / (1e9 * peak[name])
    by_memory = moved / (1e9 * gb_per_second)
    limit = "arithmetic" if by_cores > by_memory else "memory"
    return batch * tokens / max(by_cores, by_memory), limit


def spread(values, unit="", scale=1.0):
    """Return the median of what rounds measured, and the range of the middle half of them."""
    low, middle, high = np.percentile(np.array(values) * scale, (25, 50, 75))
    return Measured(middle, low, high, unit)


rows, shares = [], {}
gb_per_second = np.median(reading)
for name in ("FP32", "BF16"):
    for what, measured, (tokens, cached) in (
        ("prefill", prefill[name], (PROMPT, 0)),
        ("decode", decode[name], (1, PROMPT + PASSES // 2)),
    ):
        predicted, limit = predict(name, tokens, cached, gb_per_second)
        each = [predict(name, tokens, cached, round_of_it)[0] for round_of_it in reading]
        shares[what, name] = spread(np.divide(measured, each), "%", 100)
        rows.append(
            (
                what,
                name,
                f"{np.median(measured):,.0f}",
                f"{predicted:,.0f}",
                limit,
                str(shares[what, name]),
            )
        )
display(markdown.table(("", "format", "tokens/s", "predicted", "limit", "reached"), rows))
prefill_gain = ratio(prefill["FP32"], decode["FP32"])
print(f"prefill over decode in FP32: {prefill_gain} times: {prefill_gain.verdict}")
results.compare_guess(3, Measured(*prefill_gain, "×"))

# %% [markdown]
# *Reached* is the share of the limit, from each round's own reading of memory, with the range of the middle half of the
# rounds. It can pass 100% by a little: the limits are measured, too, and the memory's speed changed between the two.
# This is the one number by which you can compare any machine and any model: **tokens/s times the bytes read per token,
# over the memory's bandwidth**. Published, in that form:
#
# | machine, model | tokens/s | share of the bandwidth |
# | --- | --- | --- |
# | EPYC 9554, Phi-4 in 8 bits, [llama.cpp][phi] | 19.2 | 65% of the 461 GB/s on paper |
# | the same in 4 bits | 28.7 | 56% |
# | 2 × Xeon 6, DeepSeek-R1 in INT8, [SGLang][lmsys] | 14.7 | 85%, by their count |
#
# [phi]: https://ahelpme.com/?p=6685
# [lmsys]: https://lmsys.org/blog/2025-07-14-intel-xeon-optimization
#
# Two lines above are equally important. In decode, BF16 gains because its weights are half the bytes: that needs no
# instruction for BF16. In prefill it gains only where the CPU multiplies BF16 faster.
#
# Are your caches so large that the weights fit in? Then decode can be faster than memory. Servers with hundreds of MB
# of last-level cache exist; the line above that begins with "blocks" says whether yours is one.
#
# ## 4 · Fewer bits
#
# If decode is bytes, then fewer bytes a weight are more tokens a second. Four bits are 16 codes. Lab 04 gave a scale to
# each channel. With 4 bits, a channel's largest weight leaves too few codes for the others, so neighbours share a
# scale in small groups.
#
# ### Exercise 4 · A scale for each group
#
# Write `in_groups(weights, bits, group)` for an array of weights (rows, columns). The columns divide into groups of
# `group` neighbours; `bits` is 2 to 8. Each group of each row has a scale of its own, by which its largest weight, up
# to the sign, is exactly the largest code: 2^(bits − 1) − 1, which is 7 for 4 bits. A weight's code is the whole
# number nearest to weight / scale; for 4 bits they go from −7 to 7. Return the codes, an array (rows, columns) of type
# `int8`, and the scales, an array (rows, columns / group). A group of zeros has codes 0, and any scale above 0.


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
# What does that cost in quality? The next cell rounds the weights of your trained model, in groups of 64 and with one
# scale a column, and computes the loss on the held-out text. Losses of the same texts are compared, so the interval is
# of the difference.


# %%
GROUP = 64


def rounded(weights, bits, group):
    """Return trained weights, those of the blocks rounded to so many bits."""
    new = dict(weights)
    for name, each in weights.items():
        if "." in name:  # a block's
            width = group or len(each)  # 0: one scale for all that goes into a product
            codes, scales = in_groups(each.T, bits, width)
            new[name] = (codes * np.repeat(scales, width, axis=1)).T.astype("float32")
    return new


def losses_of(decoder):
    """Return the loss of each piece of the held-out text."""
    found = []
    for part in np.array_split(held_out_texts()[: 8 if QUICK else None], 8):
        decoder.reset()
        found.append(loss_of(decoder.forward(part), part).numpy().mean(axis=1))
    return np.concatenate(found)


def against(losses, reference):
    """Return the mean difference of two losses of the same texts, with its 95% interval."""
    gaps = losses - reference
    half = 1.96 * gaps.std(ddof=1) / len(gaps) ** 0.5
    return Measured(
        gaps.mean(), gaps.mean() - half, gaps.mean() + half, "nats", digits=3, signed=True
    )


exact = losses_of(Decoder(openvino_model(*network)))
print(f"FP32: loss {exact.mean():.3f}")
for bits in (8, 4, 3, 2):
    for group in (GROUP, 0):
        found = losses_of(Decoder(openvino_model(SMALL, rounded(network.weights, bits, group))))
        told = f"groups of {group}" if group else "a scale each column"
        print(f"{bits} bits, {told:20}: loss {found.mean():.3f}, {against(found, exact)}")

# %% [markdown]
# In this small model a column has 128 or 512 weights, so groups of 64 are not much finer. In a large one it has
# thousands.
#
# Now the speed, on the large model. NNCF compresses weights as you did, and OpenVINO's kernels unpack them as they
# multiply. Two settings matter:
#
# - `all_layers=True`: NNCF keeps the last layer in 8 bits otherwise;
# - **dynamic quantisation**: by default OpenVINO also rounds the *vectors* to 8 bits, in groups of 32, and multiplies
#   whole numbers. Without it, `DYNAMIC_QUANTIZATION_GROUP_SIZE=0`, each weight is converted to FP32 first.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** FP32 has 7.5 times the bytes of INT4 in groups of 64. How many times as fast will INT4 decode? And in
# prefill, will INT8 be faster than FP32, or slower?
#
# </div>

# %%
results.guess(4, "decode, INT4 against FP32", ..., unit="×")


# %%
def compress(model):
    """Return a model's weights in INT8, a scale for each output; and in INT4, in groups."""
    int8 = nncf.compress_weights(model.clone(), mode=nncf.CompressWeightsMode.INT8_SYM)
    symmetric = {"mode": nncf.CompressWeightsMode.INT4_SYM, "group_size": GROUP}
    return int8, nncf.compress_weights(model.clone(), all_layers=True, **symmetric)


NO_ROUNDING = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
int8, int4 = compress(model)
with_scales = 0.5 + 2 / GROUP  # bytes of a weight: a scale has 16 bits
formats |= {
    "INT8": (int8, 1, {}),
    "INT8, vectors in FP32": (int8, 1, NO_ROUNDING),
    "INT4": (int4, with_scales, {}),
    "INT4, vectors in FP32": (int4, with_scales, NO_ROUNDING),
}
for name, (each, _, settings) in formats.items():
    if name not in decoders:
        decoders[name] = Decoder(each, **threads, **settings)
with load.watch("section 4") as format_others:
    reading, prefill, decode = measure_formats(decoders, ROUNDS)

# %%
small = openvino_model(*network)
small_int8, small_int4 = compress(small)
trained = {"FP32": small, "BF16": small, "INT8": small_int8, "INT4": small_int4}
gains = {what: ratios(each, "FP32") for what, each in (("prefill", prefill), ("decode", decode))}
rows = []
for name, (_, weight_bytes, settings) in formats.items():
    found = losses_of(Decoder(trained[name.partition(",")[0]], **settings))
    moved = [
        cost(1, PROMPT, LARGE.layers, LARGE.width, weight_bytes)[1] * speed / 1e9
        for speed in decode[name]
    ]
    of_memory = spread(np.divide(moved, reading), "%", 100)
    rows.append(
        (
            name,
            f"{weight_bytes:.3g}",
            f"{np.median(prefill[name]):,.0f}",
            f"{gains['prefill'][name]}" if name != "FP32" else "1",
            f"{np.median(decode[name]):,.0f}",
            f"{gains['decode'][name]}" if name != "FP32" else "1",
            str(of_memory),
            f"{found.mean():.3f}",
            str(against(found, exact)) if name != "FP32" else "",
        )
    )
head = (
    "weights",
    "bytes",
    "prefill, tokens/s",
    "× FP32",
    "decode, tokens/s",
    "× FP32",
    "of the bandwidth",
    "loss",
    "more loss",
)
display(markdown.table(head, rows))
results.compare_guess(4, Measured(*gains["decode"]["INT4"], "×"))

# %% [markdown]
# Read the table by columns. *Of the bandwidth* falls as the weights get smaller, if unpacking them, or what a pass does
# besides, begins to count: then bytes are no longer the only limit. *More loss* with its interval says what the bits
# cost. And the two rows *vectors in FP32* show why a model in INT8 can be slower than one in FP32, as people report:
# without whole-number products, each weight is converted first, in prefill as often as in decode.
#
# Don't believe it: look. OpenVINO tells the time of each operation:

# %%
profiles = []
for name, rounding in (("FP32", {}), ("INT8", {}), ("INT8", NO_ROUNDING)):
    decoder = Decoder(formats[name][0], PERF_COUNT=True, **threads, **rounding)
    for what, tokens in (("prefill", PROMPT), ("decode", 1)):
        for passes in (1, 3):  # the first allocates memory, and does not count
            for _ in range(passes):
                if what == "prefill":
                    decoder.reset()
                decoder.forward(np.zeros((1, tokens), int))
            ms = decoder.profile()
        products = sum(each for kind, each in ms.items() if kind.startswith("FullyConnected"))
        attended = sum(each for kind, each in ms.items() if kind.startswith("ScaledDot"))
        vectors = "" if name == "FP32" else ("FP32" if rounding else "8 bits")
        others = sum(ms.values()) - products - attended
        profiles.append(
            (what, name, vectors, *(f"{each:.2f}" for each in (products, attended, others)))
        )
head = ("", "weights", "vectors", "products with weights, ms", "attention, ms", "all else, ms")
display(markdown.table(head, sorted(profiles, reverse=True)))
del decoder

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5.5))
per_weight = np.geomspace(0.4, 5, 50)
middle = np.median(reading)
axis.plot(
    per_weight,
    1e9 * middle / (per_weight * LARGE.block_weights),
    color=plots.BLACK,
    marker="",
    label="roof of memory",
)
roofs = peak | {"INT8": limits.peak("int8")}
for (name, top), style in zip(roofs.items(), ("--", ":", "-.")):
    roof = 1e9 * top / (2 * LARGE.block_weights)
    axis.axhline(
        roof, color=plots.BLACK, linestyle=style, marker="", label=f"roof of {name}'s products"
    )
for what, speeds, colour, marker in (
    ("prefill", prefill, plots.ORANGE, "s"),
    ("decode", decode, plots.BLUE, "o"),
):
    for name in ("FP32", "BF16", "INT8", "INT4"):
        place = formats[name][1], np.median(speeds[name])
        label = what if name == "FP32" else None
        axis.plot(*place, marker, color=colour, markersize=10, linestyle="", label=label)
        axis.annotate(name, place, (-8, -14), textcoords="offset points", ha="right")
axis.set(xscale="log", yscale="log", xlabel="bytes per weight", ylabel="tokens/s")
axis.set(title="Prefill meets the cores, decode the memory")
axis.set_xticks((0.5, 1, 2, 4), ("0.5", "1", "2", "4"))
axis.minorticks_off()
figure.legend(loc="outside lower center", ncols=3)
plots.show(
    figure,
    alt="Tokens per second over bytes per weight, under the roofs of memory and of products. "
    + "; ".join(
        f"{name}: prefill {np.median(prefill[name]):,.0f}, decode {np.median(decode[name]):,.0f}"
        for name in ("FP32", "BF16", "INT8", "INT4")
    ),
    keep=results,
    watched=[format_others],
)

# %% [markdown]
# Keep this picture. The points of decode follow the sloping roof: fewer bytes, more tokens. The points of prefill stay
# under the flat ones, whatever the weights weigh.
#
# ## 5 · Many requests at once
#
# In decode, each weight is read, used once, and thrown out of the cache. If 8 people wait for an answer, one pass can
# make a token for each of them: the weights are read once for all. That is what servers do. With *B* requests, a pass
# does *B* times the operations, and moves hardly more bytes. So tokens per second grow with *B*, until the cores are
# busy. Where do the two limits meet? A weight takes `bytes / bandwidth` seconds to arrive, and
# 2 · *B* / `peak` seconds to be used:
#
# $$B^* = \frac{peak}{bandwidth} \cdot \frac{bytes\ per\ weight}{2}$$

# %%
middle = np.median(reading)
meeting = {name: peak[name] / middle * formats[name][1] / 2 for name in ("FP32", "BF16")}
for name, requests in meeting.items():
    print(f"{name}: the limits meet at {requests:.0f} requests at once")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** With the most requests of the next cell at once, how many times the tokens per second of a single
# request will FP32 reach? And how much longer does each of them wait for its next token?
#
# </div>

# %%
results.guess(5, "tokens/s of the most requests at once, of those of one, FP32", ..., unit="×")

# %%
NAMES = ("FP32", "BF16", "INT8")
at_once = {(name, batch): [] for name in NAMES for batch in AT_ONCE}
with load.watch("section 5") as batch_others:
    for turn in range(-1, BATCH_ROUNDS):  # the first does not count
        for (name, batch), speeds in at_once.items():
            speed = tokens_per_second(decoders[name], batch, 1, 8, BATCH_PASSES)
            if turn >= 0:
                speeds.append(speed)
        print(f"round {max(turn + 1, 0)} of {BATCH_ROUNDS}", flush=True)
print(f"{'requests':>9}" + "".join(f"{name + ': tokens/s, ms':>26}" for name in NAMES))
for batch in AT_ONCE:
    told = [np.median(at_once[name, batch]) for name in NAMES]
    print(f"{batch:9}" + "".join(f"{speed:16,.0f}{1000 * batch / speed:10.1f}" for speed in told))
batch_gain = ratio(at_once["FP32", AT_ONCE[-1]], at_once["FP32", 1])
print(f"{AT_ONCE[-1]} requests over one, FP32: {batch_gain} times: {batch_gain.verdict}")
results.compare_guess(5, Measured(*batch_gain, "×"))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5.5))
for name, colour, marker in zip(NAMES, plots.PALETTE, plots.MARKERS):
    speeds = [np.median(at_once[name, batch]) for batch in AT_ONCE]
    axis.plot(AT_ONCE, speeds, color=colour, marker=marker, label=name)
    if name in meeting:
        roof = [predict(name, 1, 8, middle, batch)[0] for batch in AT_ONCE]
        axis.plot(AT_ONCE, roof, "--", color=colour, marker="", label=f"{name}, predicted")
axis.set_xscale("log", base=2)
axis.set_yscale("log")
axis.set_xticks(AT_ONCE, AT_ONCE)
axis.set(xlabel="requests at once", ylabel="tokens/s of all together")
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
# Compare each curve with its dashed prediction. Near the bend both limits work at the same time, and neither is reached
# in full. And look at the milliseconds: up to the bend, more requests cost each of them little; beyond it, they wait
# for each other. So a server that promises a time per token, such as the 40 ms of MLPerf's interactive Llama 2 70B,
# can't take as many as it likes.
#
# Requests don't come and go together. *Continuous batching* lets a new one in at any pass, and one that is done out.
# Then prefill and decode share passes, and a long prompt makes all others wait, unless it is cut into chunks. What
# would you do with a prompt of 10,000 tokens?
#
# ## 6 · Speculative decoding
#
# For one request alone, decode leaves the cores idle: section 5 showed how cheap more tokens in a pass are. But the
# next tokens are not known yet. So **guess** them. A small *draft* model writes a few tokens. The large model then
# reads all of them in *one* pass, and says after each what it would have written itself. As long as they agree, the
# tokens stand. This is [**speculative decoding**](../docs/glossary.md#speculative-decoding). The text is the same as
# without it, token for token, if the large model always takes its most likely token.
#
# ### Exercise 5 · What stands
#
# Write `accept(proposed, choices)`. `proposed` is a list of tokens that the draft proposes. `choices` is a list of the
# tokens that the large model chooses itself, one more: `choices[i]` is what it writes after the text and the first `i`
# of the proposed tokens. Return the list of tokens by which the text grows. It must be what the large model alone would
# have written, and as long as this one pass allows.


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
# Is that worth it? It depends on how often the draft is right, on what the draft costs, and on what a pass of several
# tokens costs.
#
# ### Exercise 6 · Is it worth it?
#
# Write `speed_up(alpha, gamma, draft_cost, pass_cost)`. The draft proposes `gamma` tokens, a whole number of 1 or more,
# for each pass of the large model. Each is right with the chance `alpha`, from 0 to 1, whatever the others are; after
# the first wrong one, the rest is lost. `draft_cost` is the draft's time for one token, and `pass_cost` is the large
# model's time for a pass of `gamma` + 1 tokens, both as multiples of its time for one token. Return how many times as
# fast the text grows, on average, as with the large model alone.


# %%
def speed_up(alpha, gamma, draft_cost, pass_cost):
    """Return how many times as fast a text grows with a draft."""
    ### BEGIN SOLUTION
    grown = sum(alpha**right for right in range(gamma + 1))
    return grown / (gamma * draft_cost + pass_cost)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
speed_up = check(6, speed_up)

# %% [markdown]
# The large model here is the one that you trained, in NumPy, with your cache. There are two drafts:
#
# - **one block**: a transformer of one block, half as wide, trained now on the same text;
# - **a table**: after each three characters of the training text, which one came most often. It knows less, and costs
#   next to nothing.

# %%
print("Training the draft: up to half a minute", flush=True)
with load.watch("section 6") as draft_others:
    draft, _ = train(Shape(layers=1, width=64, heads=2, context=CONTEXT), DRAFT_STEPS)

counts = {}
seen = bytes(text.train)
for place in range(3, len(seen)):
    after = counts.setdefault(seen[place - 3 : place], {})
    after[seen[place]] = after.get(seen[place], 0) + 1
most_often = {before: max(after, key=after.get) for before, after in counts.items()}


# %%
def cut(cache, length):
    """Leave the first tokens in a cache."""
    for layer, (k, v) in cache.items():
        cache[layer] = k[:, :length], v[:, :length]


def go_on(network, tokens, cache):
    """Return the likeliest token after each one that is not in the cache yet; put those into it."""
    length = cache[0][0].shape[1] if cache else 0
    return forward(network, np.array(tokens[length:]), cache).argmax(axis=-1).tolist()


def by_one_block(tokens, gamma, cache):
    """Propose gamma tokens by the small transformer."""
    if cache:
        cut(cache, min(cache[0][0].shape[1], len(tokens) - 1))
    proposed = []
    for _ in range(gamma):
        proposed.append(go_on(draft, tokens + proposed, cache)[-1])
    return proposed


def by_table(tokens, gamma, cache):
    """Propose gamma tokens by the table."""
    end = bytes(tokens[-3:])
    for _ in range(gamma):
        end += bytes([most_often.get(end[-3:], 32)])
    return list(end[3:])


def write_greedily(prompt, count):
    """Return the tokens that the large model writes behind a prompt, one a pass."""
    tokens, cache = list(prompt), {}
    while len(tokens) < len(prompt) + count:
        tokens.append(go_on(network, tokens, cache)[-1])
    return tokens[len(prompt) :]


def write_speculatively(prompt, count, propose, gamma):
    """Return the same tokens; the draft's that were looked at, and were right; and the passes."""
    tokens, cache, draft_cache, looked_at, right, passes = list(prompt), {}, {}, 0, 0, 0
    while len(tokens) < len(prompt) + count:
        proposed = propose(tokens, gamma, draft_cache)
        choices = go_on(network, tokens + proposed, cache)[-gamma - 1 :]
        grown = [int(each) for each in accept(proposed, choices)]
        right += len(grown) - 1
        looked_at += min(len(grown), gamma)
        passes += 1
        tokens += grown
        cut(cache, len(tokens) - 1)
    return tokens[len(prompt) : len(prompt) + count], looked_at, right, passes


# %% [markdown]
# First measure what the formula needs, on some texts: how often each draft is right, and the two costs. Then predict.
# Then write *other* texts, and compare.

# %%
GAMMAS = (1, 2, 4, 6)
PREFIX = CONTEXT - WRITTEN - max(GAMMAS) - 2
starts = np.linspace(0, len(text.held_out) - CONTEXT, 2 * TEXTS).astype(int)
prompts = [text.held_out[start : start + PREFIX].tolist() for start in starts]
known, new = prompts[::2], prompts[1::2]  # to measure on, and to try


def seconds_of(function, *arguments):
    """Return the seconds of ten calls."""
    began = time.perf_counter()
    for _ in range(10):
        function(*arguments)
    return time.perf_counter() - began


def one_pass(network, tokens):
    """Let so many tokens follow PREFIX others."""
    past = {
        layer: (k[:, :PREFIX], v[:, :PREFIX]) for layer, (k, v) in caches[network.shape].items()
    }
    forward(network, some[PREFIX : PREFIX + tokens], past)


caches = {}
for each in (network, draft):
    forward(each, some, caches.setdefault(each.shape, {}))
costs = {gamma: [] for gamma in (0, *GAMMAS)}
draft_costs = {by_one_block: [], by_table: []}
alphas = {}
with load.watch("section 6") as cost_others:
    for propose in draft_costs:
        found = [write_speculatively(prompt, WRITTEN, propose, 4)[1:] for prompt in known]
        looked_at, right, _ = np.sum(found, axis=0)
        alphas[propose] = right / looked_at
    for _ in range(DRAFT_ROUNDS):
        for gamma, each in costs.items():
            each.append(seconds_of(one_pass, network, gamma + 1))
        draft_costs[by_one_block].append(seconds_of(one_pass, draft, 1))
        draft_costs[by_table].append(seconds_of(by_table, known[0], 1, {}))
one = np.median(costs[0])
print(f"one token of the large model: {100 * one:.2f} ms")
print(
    "a pass of several: "
    + ", ".join(f"{g + 1} tokens {np.median(costs[g]) / one:.2f}" for g in GAMMAS)
    + " times that"
)
predicted = {}
for propose, seconds in draft_costs.items():
    draft_cost = np.median(seconds) / one
    print(
        f"{propose.__name__}: right {100 * alphas[propose]:.0f}% of the time, "
        f"costs {draft_cost:.2f}"
    )
    for gamma in GAMMAS:
        pass_cost = np.median(costs[gamma]) / one
        predicted[propose, gamma] = float(
            speed_up(float(alphas[propose]), gamma, draft_cost, pass_cost)
        )
    told = ", ".join(f"{predicted[propose, gamma]:.2f} with {gamma}" for gamma in GAMMAS)
    print(f"    predicted: {told} proposed")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which draft will be the better one, and will it be worth it at all? Write the number of times as
# fast that you expect of the better draft.
#
# </div>

# %%
results.guess(6, "speculative decoding with the better draft, against none", ..., unit="×")

# %%
chosen = {
    propose: max(GAMMAS, key=lambda gamma: predicted[propose, gamma]) for propose in draft_costs
}
written = {"none": [], **{propose: [] for propose in chosen}}
texts_of, passes = {}, {}
with load.watch("section 6") as spoken_others:
    for turn in range(-1, DRAFT_ROUNDS):  # the first does not count
        for way, speeds in written.items():
            began = time.perf_counter()
            if way == "none":
                found = [write_greedily(prompt, WRITTEN) for prompt in new]
            else:
                grown = [write_speculatively(prompt, WRITTEN, way, chosen[way]) for prompt in new]
                found = [tokens for tokens, *_ in grown]
                passes[way] = sum(each for *_, each in grown)
            if turn >= 0:
                speeds.append(len(new) * WRITTEN / (time.perf_counter() - began))
            texts_of[way] = found
speculative = ratios(written, "none")
print(f"none: {np.median(written['none']):,.0f} tokens/s")
for way, gamma in chosen.items():
    same = texts_of[way] == texts_of["none"]
    print(
        f"{way.__name__}, {gamma} proposed: "
        f"{speculative[way]} times as fast: {speculative[way].verdict}; "
        f"predicted {predicted[way, gamma]:.2f}; the same text: {same}"
    )
    a_pass = len(new) * WRITTEN / passes[way]  # tokens by which the text grows in it
    expected = speed_up(float(alphas[way]), gamma, 0, 1)  # as if passes cost nothing more
    took, predicted_cost = a_pass / speculative[way].value, expected / predicted[way, gamma]
    print(
        f"    a pass: {a_pass:.2f} tokens, predicted {expected:.2f}; "
        f"the time of {took:.2f} tokens, predicted {predicted_cost:.2f}"
    )
better = max(chosen, key=lambda way: speculative[way].value)
results.compare_guess(6, Measured(*speculative[better], "×"))

# %% [markdown]
# Where prediction and measurement differ, the lines of *a pass* say in which of the two parts. If the tokens of a pass
# are fewer, the chance of being right differs from text to text and from place to place, while the formula has one
# `alpha`. If its time is longer, it has work that the formula leaves out: the draft reads the tokens that it had not
# proposed, and the caches are cut.
#
# Published results contradict each other, and the formula explains both. On CPUs, somebody found 2.03 times as fast,
# with mathematics, which a draft guesses well; somebody else found 1.48 times *slower*, with a draft of a fifth of the
# large model's weights. Put their numbers in: with `draft_cost` 0.2, a pass of 5 tokens that costs 1.5, because a CPU
# of 6 cores is near its ridge, and `alpha` 0.4, what does your function say? And what does it say with 0.9 and 0.05?

# %%
print(f"a good case: {speed_up(0.9, 4, 0.05, 1.1):.2f} times as fast")
print(f"a bad case:  {speed_up(0.4, 4, 0.2, 1.5):.2f}")
on_large = {}
for tokens in (1, 5):
    speeds = [tokens_per_second(decoders["FP32"], 1, tokens, 32, 2) for _ in range(3)]
    on_large[tokens] = tokens / np.median(speeds)
pass_of_five = on_large[5] / on_large[1]
print(
    f"on the large model of section 3, a pass of 5 tokens costs {pass_of_five:.2f} times one of 1."
)
print(
    f"With this draft's {100 * alphas[by_one_block]:.0f}% and a cost of 0.1, that would be "
    f"{speed_up(float(alphas[by_one_block]), 4, 0.1, pass_of_five):.2f} times as fast."
)

# %% [markdown]
# Read *with 1* as: the draft proposes one token for each pass. On a small model in NumPy, a pass of several tokens
# costs little more than a pass of one, since both are mostly overhead. On a large one, it is memory that makes them
# cost the same, up to the bend of section 5. The last line above is a forecast from those numbers, and not a
# measurement.
#
# ## 7 · Split over ranks *(optional)*
#
# A server with two sockets has two memories. A core reads its own memory faster than the other one. If one process
# computes on both sockets, many of its reads go to the far one. [**Tensor
# parallelism**](../docs/glossary.md#tensor-parallelism) starts a rank on each socket and gives it a part of every
# product's weights, as you split a dense layer in lab 06. In a block, the weights of the queries, keys and values and
# of the first product behind attention are cut by columns: each rank has some heads and some of the numbers behind
# GELU, and needs nobody else. The two other products are cut by rows. Each rank then has a part of each sum, and an
# all-reduce adds them: two all-reduces of `width` numbers for each block and token.
#
# Published: [vLLM on an Arm server with two NUMA nodes][vllm] answers 1.96 times the requests of one node, with a rank
# on each; while each rank's memory could be on the other node, it answered 0.6 times as many. Your machine may have one
# node only. Then there is no far memory to avoid, and what is left is the price: the all-reduces.
#
# [vllm]: https://github.com/vllm-project/vllm/pull/32792
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** One rank with all threads, or a rank on each core with one thread each: how many times as fast will
# the ranks be on your machine?
#
# </div>

# %%
results.guess(7, "a rank on each core, against one rank with all threads", ..., unit="×")

# %% [markdown]
# The script lets one token, the first of a text, go through all blocks. It sees only itself, so attention returns its
# value as it is, and the products with weights are all that is left.

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


def add_up(x):
    """Return the sum of all ranks' x."""
    total = np.empty_like(x)
    ranks.Allreduce(x, total)
    return total


def forward(x):
    for weights in blocks:
        y = norm(x)
        query, key, value = (y @ each for each in weights["qkv"])
        x = x + add_up(value @ weights["out"])
        x = x + add_up(gelu(norm(x) @ weights["up"]) @ weights["down"])
    return x


def all_reduces(x):
    for _ in range(2 * layers):
        add_up(x)
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
    told = {what: each[1:] for what, each in seconds.items()}  # the first warms up
    Path(sys.argv[1]).write_text(json.dumps(told | {"result": result.tolist()}))


# %%
N = 2 ** int(math.log2(min(cores, 8)))  # ranks: the heads and all widths divide by it
split_shape = (3, 256) if QUICK else (4, 1280)  # layers and width: 79 million weights
ways = {"1 rank": (1, N), f"{N} ranks": (N, 1)}  # ranks and threads of each


def run_split(n, rank_threads, **options):
    """Return what the script measured."""
    arguments = (work / "split.json", 2 if QUICK else 20, *split_shape)
    run_ranks(n, "work/tensor_parallel.py", *arguments, threads=rank_threads, **options)
    return json.loads((work / "split.json").read_text())


split = {way: [] for way in ways}  # tokens per second
communication, split_results = {way: [] for way in ways}, {}
no_ranks = "" if N > 1 else "one core"
if not no_ranks:
    print(f"{2 * RANK_ROUNDS} runs, about half a minute", flush=True)
with load.watch("section 7") as split_others:
    for _ in range(0 if no_ranks else RANK_ROUNDS):
        for way, (n, rank_threads) in ways.items():
            got = run_split(n, rank_threads)
            split[way].append(1 / np.median(got["token"]))
            communication[way].append(np.median(got["all-reduces"]))
            split_results[way] = np.array(got["result"])
if no_ranks:
    print(f"Not here: {no_ranks}")
else:
    one_rank, many_ranks = split_results.values()
    error = np.abs(one_rank - many_ranks).max() / np.abs(one_rank).max()
    print(f"largest difference of the results, of the largest number: {error:.0e}")
    for way, speeds in split.items():
        ms, within = 1000 / np.median(speeds), 1000 * np.median(communication[way])
        print(f"{way:8}: {ms:.2f} ms a token; its all-reduces alone {within:.3f} ms")
    split_gain = ratio(*[*split.values()][::-1])
    print(f"{N} ranks over 1: {split_gain} times as fast: {split_gain.verdict}")
    results.compare_guess(7, Measured(*split_gain, "×"))
    name = "tensor parallelism, a rank on each core over one rank"
    results.hand_in("7", (name, "", Measured(*split_gain, "×"), "", split_others))

# %% [markdown]
# And between machines? Two ranks, each on a node of its own, with a wire of 1 Gbit/s between them. Predict first: the
# bytes of one all-reduce are 4 · width, its latency is that of lab 06's wires, some 30 to 100 µs, and there are two in
# each block.

# %%
no_wires = obstacle()
if no_wires or no_ranks:
    print(f"Not here: {no_wires or no_ranks}")
else:
    with load.watch("section 7"):
        on_wires = run_split(2, 1, network="1 Gbit/s")
    per_token = 1000 * np.median(on_wires["token"])
    sent = 1000 * np.median(on_wires["all-reduces"])
    times, of_bytes = 2 * split_shape[0], 8 * 4 * split_shape[1] / 1e9
    print(
        f"2 nodes: {per_token:.2f} ms a token; its {times} all-reduces alone take {sent:.2f} ms,",
        end=" ",
    )
    print(f"each {1000 * sent / times:.0f} µs. Its bytes alone would take {1e6 * of_bytes:.0f} µs.")

# %% [markdown]
# Did the ranks gain in memory, although there is one memory? Then not by reading it faster. A guess: each product of
# NumPy's ends with its threads waiting for each other, and what is between the products runs on one thread, where ranks
# wait for each other twice a block, and share the rest too.
#
# The all-reduces are small: it is latency that counts, and there are two in each block, whatever the number of ranks. A
# model of 70 billion weights has 80 blocks, so 160 all-reduces for each token. That is why tensor parallelism stays
# within a machine, or on a network with microseconds of latency; and between machines one splits by layers, so that a
# token crosses each wire once (*pipeline parallelism*).
#
# ## 8 · What to set in practice *(optional)*
#
# You have measured what the settings of the usual programs do. Their names in autumn 2026, from the help of
# [llama.cpp's server](https://github.com/ggml-org/llama.cpp/tree/master/tools/server) and
# [OpenVINO's documentation](https://docs.openvino.ai/2026/openvino-workflow-generative.html):
#
# | what | llama.cpp | OpenVINO, and OpenVINO GenAI |
# | --- | --- | --- |
# | threads of decode, of prefill | `--threads`, `--threads-batch` | `INFERENCE_NUM_THREADS` |
# | memory of two sockets | `--numa distribute` | one process a socket: `numactl` |
# | bits of the weights | the file: `Q8_0`, `Q4_K_M` | NNCF's, or `optimum-cli --weight-format int4` |
# | bits of the KV cache | `--cache-type-k q8_0` | `KV_CACHE_PRECISION` |
# | requests at once | `--parallel` | `SchedulerConfig.max_num_seqs` |
# | a draft | `--model-draft`, `--spec-draft-n-max` | `draft_model`, `num_assistant_tokens` |
#
# `Q4_K_M` has groups of 32 with scales of scales, and 6 bits for some weights: about 4.8 bits a weight, all told.
# `./lab roofline` and your `cost` tell the most that any of them can reach. Decode wants as many threads as it takes to
# fill the memory's bandwidth, and more gain nothing; prefill wants all cores. Does your machine need all of its cores
# for decode?

# %%
rows, thread_speeds = [], {}
counts_of_threads = sorted({1, max(1, cores // 2), cores})
fewer = {count: Decoder(model, INFERENCE_NUM_THREADS=count) for count in counts_of_threads}
print(f"{len(fewer)} numbers of threads", flush=True)
with load.watch("section 8"):
    for turn in range(-1, ROUNDS):  # the first does not count
        for count, decoder in fewer.items():
            fast = tokens_per_second(decoder, 1, PROMPT, 0, 1)
            slow = tokens_per_second(decoder, 1, 1, PROMPT, PASSES)
            if turn >= 0:
                thread_speeds.setdefault(("prefill", count), []).append(fast)
                thread_speeds.setdefault(("decode", count), []).append(slow)
for (what, count), speeds in sorted(thread_speeds.items()):
    over_one = ratio(speeds, thread_speeds[what, 1])
    rows.append(
        (what, str(count), f"{np.median(speeds):,.0f}", f"{over_one}" if count > 1 else "1")
    )
display(markdown.table(("", "threads", "tokens/s, FP32", "× one thread"), rows))
del fewer, decoder

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. The instructor's notebook has answers.
#
# 1. A colleague says: "This CPU has 2 TFLOP/s, and the model needs 14 GFLOP a token, so it writes 140 tokens a second."
#    What is missing, and what would you ask?
# 2. Which is the better buy for a chat server with one user, twice the cores or twice the memory channels? And for one
#    that summarises long documents?
# 3. Weights in INT4 are an eighth of FP32's bytes. Why was decode not 8 times as fast on your machine? Section 4's
#    table has the evidence.
# 4. Why may a KV cache limit the number of requests at once before the cores do? Compute: 8 billion weights in 4 bits,
#    32 layers of width 4,096, 16 bits a number, 4,000 tokens a request, 64 GB of memory.
# 5. When does a draft make writing slower? Say it with `alpha`, `draft_cost` and `pass_cost`.
#
# **Time left?** Draw `speed_up` over `gamma`, from 1 to 12, for the costs that you measured. Why is there a best one?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions, timing, and what goes wrong.
#
# ### Answers
#
# 1. Bytes are missing: 14 GFLOP a token are 7 billion weights, and each must be read for each token. In 16 bits that is
#    14 GB a token; at 200 GB/s it is 14 tokens a second. Ask for the bits of a weight, for the *measured* bandwidth,
#    and whether he means prefill.
# 2. Channels for the chat, as decode is bytes over bandwidth. Cores, or instructions for products such as AMX, for
#    documents: prefill is arithmetic, and a summary is mostly reading.
# 3. Scales make it 0.53 bytes, so at most 7.5 times. Then *of the bandwidth*: if INT4 reaches less of it than FP32
#    does, unpacking the weights, or overhead, has become the limit. With more cores to each GB/s it is less so.
# 4. 2 · 32 · 4,096 · 2 bytes = 0.52 MB a token, 2.1 GB a request. The weights take 4.5 GB, so some 28 requests fill the
#    memory. Models share keys and values among heads (*grouped-query attention*) for this reason: with a quarter of the
#    heads it is a quarter of the bytes.
# 5. When what it proposes costs more than what stands is worth: (1 + alpha + … + alpha^gamma) is less than gamma ·
#    draft_cost + pass_cost. A pass that costs more, as on a CPU near its ridge or with many requests at once, makes it
#    so for good drafts too.
#
# **Timing** Section 1 takes 20 minutes, 2 takes 8, 3 takes 13, 4 takes 12, 5 takes 5 and 6 takes 13. Let the training
# of section 1 run while you draw attention on the board. Whoever is not done with exercise 1 after 12 minutes should
# take the solution: the rest does not depend on who wrote it. Exercises 3 and 4 can be done in pairs.
#
# **What goes wrong** Exercise 1: a mask by `np.tri(n, m)` is right only when *m* is *n*; with a cache the last query
# has to see all keys, so it is `np.tri(n, m, m - n)`. Softmax over the wrong axis gives rows that don't add up to 1.
# Exercise 2: `np.concatenate` along the first axis joins heads. Exercise 3: "each weight once for each token" in the
# bytes gives decode and prefill the same intensity, which is the misconception that the lab is about. Exercise 4: one
# scale a row passes for a single group. `astype` before `round` cuts the digits off. Exercise 5: the token after the
# first wrong one is the large model's, and free; whoever drops it loses a token a pass, and whoever forgets the last
# one when all are right, too. Exercise 6: the sum has gamma + 1 terms.
#
# **Where the figures don't fit** A guest among other guests shares memory with neighbours that it does not see, and the
# bandwidth can halve within a minute. That is why rounds read memory and run the model in turns. With a last cache of
# hundreds of MB (EPYC with 3D V-Cache, Xeon Max's memory on the package) raise `WIDTH`. With 4 GB of memory the model
# is narrower, and the large one's part of overhead is larger.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Prefill is arithmetic, decode is bytes. Tokens/s of decode ≤ bandwidth / bytes of the weights, for one request.
# - A KV cache saves a product for each earlier token, and costs memory for each.
# - Fewer bits help decode by bytes, until unpacking or overhead is the limit. They help prefill only where the CPU
#   multiplies them as they are.
# - More requests at once share one reading of the weights, up to peak / bandwidth · bytes per weight / 2.
# - A draft uses the same gap, for one request. It pays if it is cheap, and often right.
# - Compare machines and programs by the share of the measured bandwidth.
#
# What was published, what you measured, and what the machine could do at most:

# %% jupyter={"source_hidden": true}
rows = [
    (
        "decode, 14 billion weights in 8 bits, EPYC 9554, llama.cpp",
        "65% of the bandwidth on paper",
        "",
        "",
    ),
    ("the same in 4 bits", "56%", "", ""),
]
rows.append(("memory, read by all cores", "", spread(reading, "GB/s"), "", format_others))
for what, name in shares:
    rows.append(
        (
            f"{what}, {name}, of what the two limits predict",
            "",
            shares[what, name],
            "100%",
            speed_others,
        )
    )
rows.append(
    ("prefill over decode, FP32, tokens/s", "", Measured(*prefill_gain, "×"), "", speed_others)
)
for name in ("BF16", "INT8", "INT4"):
    at_most = formats["FP32"][1] / formats[name][1]
    own = Measured(*gains["decode"][name], "×")
    rows.append((f"decode, {name} over FP32", "", own, f"{at_most:.1f}× by bytes", format_others))
rows.append(
    (
        f"decode, {AT_ONCE[-1]} requests over one, FP32",
        "",
        Measured(*batch_gain, "×"),
        "",
        batch_others,
    )
)
own = Measured(*speculative[better], "×")
limit = f"{predicted[better, chosen[better]]:.2f}× predicted"
rows.append(
    ("speculative decoding, the better draft", "2.03× and 0.68×", own, limit, spoken_others)
)
rows.append(
    ("a token with a KV cache, the longest text", "", Measured(*cache_gain, "×"), "", cache_others)
)
rows += results.handed_in(
    "7", ("tensor parallelism, a rank on each core over one rank", "2 NUMA nodes: 1.96×")
)
results.table("language models", rows)

# %% [markdown]
# Published: [llama.cpp on an EPYC 9554][phi]; [vLLM's two ranks on Arm][vllm]; speculative decoding on CPUs, 2.03 times
# as fast (InventiveHQ, 2026, a model of 3 billion weights, mathematics) and [1.48 times slower][slower] (a draft of 0.8
# billion for a model of 4 billion, Xeon E-2176G).
#
# Where you are on the way from the default to this machine's fastest setting, over all labs:
#
# [phi]: https://ahelpme.com/?p=6685
# [vllm]: https://github.com/vllm-project/vllm/pull/32792
# [slower]: https://github.com/deemwar/llama-cpp-benchmarks

# %%
ladder.show(results)

# %% [markdown]
# **Next:** [lab 11](11_after_the_all_reduce.ipynb), where a network's weights, gradients and optimizer are shared out
# over ranks.
