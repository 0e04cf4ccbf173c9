# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: write attention, forecast a real model's speed, and run it
#     needs: [ISA, memory, TensorFlow, llama.cpp]
#     better_with: [cores, compiler]
# ---

# %% [markdown]
# # 10 · Language models: forecast, then run
#
# How fast will a language model be on your machine? Compute it from two measured numbers and the model's published
# sizes, then run the model and see how wrong you were.
#
# **You will** write attention and its cache, and train a small model. Then you will forecast the speed of Qwen3-0.6B,
# seal the forecast, run the model, find what the forecast lacked, and test a correction on another model.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which explains the limits of arithmetic and memory; lab 04, which computes with 8 bits; and
# lab 11, which trains models that one machine can't hold.
#
# **Nothing is downloaded.** Speed depends on shapes, not on values, so the real models have random weights.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("10", globals())

# %%
import hashlib
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from scipy.optimize import nnls

# %%
from labkit.data import characters
from labkit.display import plots
from labkit.measure import (
    Background,
    Measured,
    alternate,
    compare,
    per_second,
    record,
    recorded,
    share,
)
from labkit.measure.figures import summarize
from labkit.models import llama, published
from labkit.roofline import measure, peaks, readers

# %%
# How much this lab measures: change it here. The first of two values is that of a small run.
CONTEXT = 32 if QUICK else 128  # characters that the trained model looks back on
STEPS, BATCH = (12, 4) if QUICK else (1_000, 12)  # of training, section 1
LENGTHS = (8, 24) if QUICK else (16, 32, 64, 127)  # characters, section 2
ROUNDS = 2 if QUICK else 6  # of each measurement
no_engine = llama.obstacle()
tiny = QUICK and not no_engine  # what is recorded has its full size
SHORT, LONG, DEEP = (16, 32, 48) if tiny else (256, 1_024, 4_096)  # tokens, from section 4
if not no_engine and machine.memory_free < 5e9:
    DEEP = 32 if tiny else 1_536
WRITTEN = 4 if QUICK else 24  # tokens per measurement of decode
text = characters.load_characters()
print(text.source)

# %% [markdown]
# ## 1 · A transformer, small and whole {read 5.5, do 4, wait 0.9}
#
# A language model answers one question: *given the text so far, what comes next?* The text is cut into
# [**tokens**](../docs/learn/glossary.md#token), which are characters here (128 different ones), and pieces of words in
# chat models. The model returns a number for each possible next token, its *logit*. Append a likely token, ask again,
# and the model writes.
#
# Most language models are [**transformers**](../docs/learn/glossary.md#transformer), stacks of identical blocks.
#
# ```mermaid
# flowchart LR
#     accTitle: A transformer
#     accDescr: Tokens become vectors. Blocks follow. Each adds attention, then two matmuls. The logits come last.
#     tokens["tokens"] --> embed["a vector each,<br>plus its position's"]
#     embed --> attend["attention:<br>look up earlier tokens"]
#     subgraph block["block, repeated"]
#         attend --> think["two matmuls<br>with GELU between"]
#     end
#     think --> logits["logits of the<br>next token"]
# ```
#
# Tokens look at each other only in [**attention**](../docs/learn/glossary.md#attention). Each token has three vectors,
# a *query* that describes what it looks for, a *key* by which it is found, and a *value* that it passes on. Each *head*
# looks for different things.

# %% [markdown]
# ### Exercise 1 · What a token may see
#
# `attention(q, k, v)` lacks one line. `q` holds the queries of the last *n* tokens as an array (heads, n, d). `k` and
# `v` hold the keys and values of all *m* ≥ *n* tokens so far, as arrays (heads, m, d). The score of a query and a key
# is their dot product, divided by √*d*. [**Softmax**](../docs/learn/glossary.md#softmax) turns a query's scores into
# shares that sum to 1, and the result is the sum of the values, each times its share.
#
# No token may see a later one. Write the line that computes `later`, an array (n, m) that is `True` where key *j*
# belongs to a later token than query *i*. The last query belongs to the last token, which sees all keys.


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
# Draw random weights for a four-block model.

# %%
LAYERS, WIDTH, HEADS, SYMBOLS = 4, 128, 4, 128


def random_weights(seed=0):
    """Return arrays (in, out) by name, scaled so that sums neither grow nor fade."""
    shapes = {"embed": (SYMBOLS, WIDTH), "position": (CONTEXT, WIDTH), "logits": (WIDTH, SYMBOLS)}
    for layer in range(LAYERS):
        shapes[f"{layer}.qkv"] = WIDTH, 3 * WIDTH  # queries, keys and values
        shapes[f"{layer}.out"] = WIDTH, WIDTH
        shapes[f"{layer}.up"] = WIDTH, 4 * WIDTH
        shapes[f"{layer}.down"] = 4 * WIDTH, WIDTH
    rng, weights = np.random.default_rng(seed), {}
    for name, (rows, columns) in shapes.items():
        size = 0.5 if name in ("embed", "position") else rows**-0.5
        if name.endswith((".out", ".down")):  # added to what other blocks return
            size *= (2 * LAYERS) ** -0.5
        weights[name] = rng.normal(0, size, (rows, columns)).astype("float32")
    return weights


untrained = random_weights()
print(f"{sum(array.size for array in untrained.values()):,} weights")

# %% [markdown]
# Here is the rest in NumPy, with your attention inside. `norm` scales the vectors to the same size (*RMSNorm*), and
# GELU is a smooth ReLU.


# %%
def norm(x):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978846 * (x + 0.044715 * x * x * x)))


def forward(weights, tokens, cache=None):
    """Return the logits (n, 128) after each of n tokens; `cache` holds earlier keys and values."""
    before = cache[0][0].shape[1] if cache else 0
    x = weights["embed"][tokens] + weights["position"][before : before + len(tokens)]
    for layer in range(LAYERS):
        qkv = norm(x) @ weights[f"{layer}.qkv"]
        q, k, v = qkv.reshape(len(x), 3, HEADS, -1).transpose(1, 2, 0, 3)
        if cache is not None:
            k, v = cache[layer] = remember(cache.get(layer), k, v)  # section 2
        heads = np.asarray(attention(q, k, v), np.float32)
        x = x + heads.transpose(1, 0, 2).reshape(x.shape) @ weights[f"{layer}.out"]
        x = x + gelu(norm(x) @ weights[f"{layer}.up"]) @ weights[f"{layer}.down"]
    return norm(x) @ weights["logits"]


# %% [markdown]
# Training needs gradients, so here is the same model in TensorFlow, for a batch of texts.


# %%
def norm_tf(x):
    return x * tf.math.rsqrt(tf.reduce_mean(x * x, axis=-1, keepdims=True) + 1e-5)


def forward_tf(weights, tokens):
    """Return the logits (batch, n, 128) after each of n tokens, in a batch of texts."""
    n = tokens.shape[1]
    hidden = tf.constant(np.where(np.tri(n, dtype=bool), 0, -np.inf), tf.float32)
    x = tf.gather(weights["embed"], tokens) + weights["position"][:n]
    for layer in range(LAYERS):
        qkv = tf.reshape(norm_tf(x) @ weights[f"{layer}.qkv"], (-1, n, 3, HEADS, WIDTH // HEADS))
        q, k, v = tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))
        scores = tf.matmul(q, k, transpose_b=True) / (WIDTH // HEADS) ** 0.5
        heads = tf.transpose(tf.nn.softmax(scores + hidden) @ v, (0, 2, 1, 3))
        x += tf.reshape(heads, (-1, n, WIDTH)) @ weights[f"{layer}.out"]
        hidden_layer = tf.nn.gelu(norm_tf(x) @ weights[f"{layer}.up"], approximate=True)
        x += hidden_layer @ weights[f"{layer}.down"]
    return norm_tf(x) @ weights["logits"]


sample = text.held_out[:CONTEXT].astype(np.int32)
gap = forward(untrained, sample) - forward_tf(untrained, sample[None])[0].numpy()
print(f"largest difference of a logit, NumPy vs TensorFlow: {np.abs(gap).max():.1e}")

# %% [markdown]
# How good is a model? Take the probability that it gave to the actual next character. The **loss** is minus the natural
# logarithm of this probability, averaged over a text.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** A model that knows nothing gives each of the 128 characters the same probability. What is its loss,
# and what is the loss after 1,000 training steps?
#
# </div>

# %%
results.guess(1, "loss of the trained model, on text that it has not seen", ..., unit="nats")


# %%
def loss_of(logits, tokens):
    """Return minus the logarithm of each token's probability."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[..., 1:], logits[..., :-1, :])


def write(weights, prompt, count, seed=0):
    """Return a prompt and its continuation, each character drawn by its probability."""
    rng, tokens = np.random.default_rng(seed), list(characters.to_tokens(prompt))
    for _ in range(count):
        logits = forward(weights, np.array(tokens[-CONTEXT:]))[-1] / 0.7  # less than 1: bolder
        chances = np.exp(logits - logits.max())
        tokens.append(rng.choice(len(chances), p=chances / chances.sum()))
    return characters.to_text(tokens)


# %% [markdown]
# The text is the documentation that Python's `help()` shows, and every tenth topic is held out. A training step takes
# `BATCH` pieces of it, computes the loss and its gradients, and lets the optimizer (Adam) update the weights.

# %%
variables = {name: keras.Variable(array) for name, array in random_weights().items()}
values = {name: variable.value for name, variable in variables.items()}
warm_up = max(1, STEPS // 20)
schedule = {"alpha": 0.05, "warmup_target": 4e-3, "warmup_steps": warm_up}
rate = keras.optimizers.schedules.CosineDecay(0.0, STEPS, **schedule)
optimizer = keras.optimizers.Adam(rate, beta_2=0.99)
optimizer.build(list(variables.values()))
pieces = len(text.held_out) // CONTEXT
held_out = text.held_out[: pieces * CONTEXT].reshape(pieces, CONTEXT).astype(np.int32)
held_out = held_out[: 8 if QUICK else None]


@tf.function
def step(texts):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(loss_of(forward_tf(values, texts), texts))
    gradients = map(tf.convert_to_tensor, tape.gradient(loss, list(values.values())))
    optimizer.apply_gradients(zip(gradients, variables.values()))


@tf.function
def held_out_losses(weights):
    return tf.reduce_mean(loss_of(forward_tf(weights, held_out), held_out), axis=1)


# %% [markdown]
# Now train. Each report shows the loss, and 60 characters that the model writes.

# %%
print("Training: about two minutes", flush=True)
losses, rng, began = {}, np.random.default_rng(1), time.perf_counter()
for number in range(STEPS + 1):
    if number % max(1, STEPS // 8) == 0:
        losses[number] = float(tf.reduce_mean(held_out_losses(values)))
        weights = {name: value.numpy() for name, value in values.items()}
        seconds = time.perf_counter() - began
        print(f"step {number:5}, {seconds:3.0f} s: loss {losses[number]:.2f}", flush=True)
        print(f"    {write(weights, 'The ', 60)!r}", flush=True)
    first = rng.integers(0, len(text.train) - CONTEXT, BATCH)
    step(tf.constant(text.train[first[:, None] + np.arange(CONTEXT)], tf.int32))
print(f"equal probabilities: {math.log(SYMBOLS):.2f}")
final_loss = Measured(losses[number], unit="nats")
results.compare_guess(1, final_loss)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
axis.plot(list(losses), list(losses.values()), color=plots.BLUE)
axis.axhline(math.log(SYMBOLS), linestyle="--", color="black", marker="")
note = {"textcoords": "offset points", "ha": "right"}
axis.annotate("all 128 equally likely", (STEPS, math.log(SYMBOLS)), (0, -16), **note)
axis.set(xlabel="training step", ylabel="loss on held-out text (nats)", ylim=(0, None))
axis.set(title="A character model learns Python's documentation")
said = ", ".join(f"{step}: {loss:.2f}" for step, loss in losses.items())
plots.show(figure, alt=f"Loss on held-out text by training step: {said}", keep=results)

# %% [markdown]
# Before training, the loss is higher than for equal probabilities, because random weights strongly prefer some
# characters. [nanoGPT's recipe for a CPU](https://github.com/karpathy/nanoGPT), published for this size, reaches a loss
# of 1.88 on Shakespeare after about 3 minutes on a laptop.
#
# ## 2 · Generating {read 3, do 3, wait 0.1}
#
# For each character, `write` recomputes the keys and values of all earlier ones, although they haven't changed. A [**KV
# cache**](../docs/learn/glossary.md#kv-cache) stores them.
#
# ### Exercise 2 · The cache
#
# Write `remember(past, k, v)`. `k` and `v` are the keys and values of *n* new tokens in one layer, as arrays (heads, n,
# d). `past` is the pair of keys and values of the *m* tokens before them, each an array (heads, m, d), or `None` if
# there are none. Return the pair of all keys and values so far, each an array (heads, m + n, d), in the order of the
# tokens. Don't modify `past`.


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
# Does reading one token at a time give the same logits?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** After 127 characters, how much faster is the next one with the cache than without it?
#
# </div>

# %%
results.guess(2, "a token with the cache vs without, at the longest text", ..., unit="×")

# %%
cache = {}
one_by_one = [forward(weights, sample[place : place + 1], cache) for place in range(CONTEXT)]
gap = np.concatenate(one_by_one) - forward(weights, sample)
print(f"largest difference of a logit: {np.abs(gap).max():.1e}")


def without_cache(length):
    return lambda: forward(weights, sample[:length])


def with_cache(length):
    past = {layer: (k[:, : length - 1], v[:, : length - 1]) for layer, (k, v) in cache.items()}
    return lambda: forward(weights, sample[length - 1 : length], dict(past))


ways = {"all again": without_cache, "cache": with_cache}
variants = {(way, n): per_second(run(n), 1, 0.05) for way, run in ways.items() for n in LENGTHS}
named = {f"{way}, {n}": variant for (way, n), variant in variants.items()}
speeds = alternate(named, 2 if QUICK else 9, "tokens/s", "section 2")
for n in LENGTHS:
    print(f"{n:4} characters: {speeds[f'all again, {n}']}; with the cache {speeds[f'cache, {n}']}")
cache_gain = compare(speeds[f"cache, {n}"], speeds[f"all again, {n}"])
print(f"at {n} characters: {cache_gain}")
results.compare_guess(2, cache_gain)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
labels = {"all again": ("all characters again", "s--"), "cache": ("only the new one", "o-")}
for way, (label, style) in labels.items():
    rates = [speeds[f"{way}, {n}"] for n in LENGTHS]
    middle, low, high = 1000 / np.array([(rate.value, rate.high, rate.low) for rate in rates]).T
    reach = np.nan_to_num([middle - low, high - middle])
    colour = plots.BLUE if way == "cache" else plots.ORANGE
    axis.errorbar(LENGTHS, middle, reach, fmt=style, color=colour, label=label, capsize=4)
axis.set(xlabel="characters so far", ylabel="ms for the next one", ylim=(0, None))
axis.set(title="What the cache saves")
axis.legend()
said = "; ".join(f"{name} characters: {1000 / speed.value:.2f}" for name, speed in speeds.items())
plots.show(
    figure, alt=f"Milliseconds for the next character: {said}", watched=cache_gain.contention
)

# %% [markdown]
# With the cache, the time is nearly constant. Most of it is the fixed cost of about 190 NumPy calls, not arithmetic.
#
# ## 3 · Prefill is not decode {read 4, do 6.5}
#
# First the model reads all tokens of your prompt in one pass. This phase,
# [**prefill**](../docs/learn/glossary.md#prefill), determines the [**time to first
# token**](../docs/learn/glossary.md#time-to-first-token) (TTFT). Then the model writes one token per pass. This phase,
# [**decode**](../docs/learn/glossary.md#decode), determines the time per output token (TPOT). Both run the same matmuls
# with the same weights. Which limit does each hit? Count first.
#
# Two features of real models change the count.
#
# | | what it is | what it changes in the count |
# | --- | --- | --- |
# | [**GQA**](../docs/learn/glossary.md#grouped-query-attention) | heads share keys | the cache, × kv_heads / heads |
# | [**mixture**](../docs/learn/glossary.md#mixture-of-experts) | tokens use 8 of 128 experts | *active* weights only |

# %% [markdown]
# ### Exercise 3 · Operations and bytes
#
# Write `cost(tokens, cached, model, weight_bytes, kv_bytes)` for one pass of one request, with `tokens` new tokens (at
# least one) after `cached` earlier ones. `model` has `layers`, `heads`, `kv_heads`, `head_size` (numbers per head) and
# `active_weights` (of all layers and the logits). Return a tuple of three numbers:
#
# - *operations*: each active weight is multiplied and added once per new token. In attention, in each layer and each
#   head, each new token multiplies its query by the keys that it may see, including its own, and then the shares by as
#   many values. A multiplication and its addition are two operations.
# - *bytes of the weights*: each active weight is read once, at `weight_bytes` each, whatever the number of tokens.
# - *bytes of the cache*: in each layer and each KV head, the keys and values of the cached tokens are read once, and
#   those of the new tokens are written once, at `kv_bytes` per number.
#
# Leave out everything else.


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
# ## 4 · The forecast {read 3.5, do 1, wait 0.4}
#
# The model is Qwen3-0.6B, or Qwen3-1.7B where the CPU's caches would hold much of the smaller one. Its makers [publish
# its sizes](https://huggingface.co/Qwen). Its weights come in two of llama.cpp's formats. In `Q4_0`, 32 adjacent 4-bit
# weights share a 16-bit scale and take 18 bytes. In `Q8_0`, they take 34.

# %%
cache_bytes = peaks.last_level_cache(machine.cpus)
larger = cache_bytes > 100e6 and not no_engine
names = ("Qwen3-1.7B", "Qwen3-4B") if larger else ("Qwen3-0.6B", "Qwen3-1.7B")
SMALL, WIDE = (published.MODELS[name] for name in names)
if tiny:  # two widths
    SMALL, WIDE = (published.PublishedModel(2, w, 4, 2, 64, 2 * w, 512, True) for w in (256, 512))
FORMATS = {"Q4_0": 18 / 32, "Q8_0": 34 / 32}  # bytes per weight
models = {form: (SMALL, weight_bytes) for form, weight_bytes in FORMATS.items()}
MY_FILE = ""  # the path of a GGUF file of yours: it runs as well
if MY_FILE:
    MY_FILE = Path(MY_FILE)
    models[MY_FILE.stem] = llama.sizes_of(MY_FILE)
for name, (model, weight_bytes) in models.items():
    prompt, token = cost(SHORT, 0, model, weight_bytes, 2), cost(1, SHORT, model, weight_bytes, 2)
    print(f"{name}: {model.active_weights / 1e6:,.0f} million weights, {prompt[1] / 1e9:.2f} GB")
    for what, (operations, weights_read, kv) in (("prefill", prompt), ("decode", token)):
        print(f"    {what}: {operations / (weights_read + kv):6.1f} operations per byte")

# %% [markdown]
# `./lab roofline` measures how fast a machine multiplies matrices and how fast it reads memory. The forecast for a pass
# is the time for its arithmetic or for reading its bytes, whichever is longer.

# %%
recording = recorded("10-engine") if no_engine else None
peak = 1e9 * measure.limits(quick=QUICK).peak("float32")  # operations/s
memory = readers.Memory(machine, 3 * peaks.array_bytes(machine, cache_bytes))
bandwidth = 1e9 * max(memory.read() for _ in range(1 if QUICK else 5))  # bytes/s, at best
if no_engine:  # the forecast is for the machine that was recorded
    peak, bandwidth = recording.data["peak"], recording.data["bandwidth"]
print(f"{peak / 1e9:,.0f} GFLOP/s in FP32, reading at {bandwidth / 1e9:.1f} GB/s")
KV_BYTES = 2  # keys and values in 16 bits


def forecast(model, weight_bytes, tokens, cached):
    """Return the seconds of a pass."""
    operations, weights_read, kv_read = cost(tokens, cached, model, weight_bytes, KV_BYTES)
    return max(operations / peak, (weights_read + kv_read) / bandwidth)


PASSES = {  # tokens, and cached ones before them
    f"TTFT, {SHORT:,} tokens": (SHORT, 0),
    f"TTFT, {LONG:,} tokens": (LONG, 0),
    f"a token, {SHORT:,} cached": (1, SHORT),
    f"a token, {DEEP:,} cached": (1, DEEP),
}
forecasts = {
    f"{name}, {what}": forecast(*model, *tokens)
    for name, model in models.items()
    for what, tokens in PASSES.items()
}
for what, seconds in forecasts.items():
    print(f"{what:26} {1000 * seconds:9,.1f} ms")

# %% [markdown]
# Write the forecast to a file, and send its hash to a neighbour. The hash proves that you made the forecast before the
# run.

# %%
sealed = work / "forecast.json"
sealed.write_text(json.dumps(forecasts, indent=1))
seal = hashlib.sha256(sealed.read_bytes()).hexdigest()
print(f"sealed at {time.strftime('%H:%M:%S')}: {seal}")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How long will the real engine take, as a multiple of the forecast?
#
# </div>

# %%
results.guess(3, f"{LONG:,} tokens to read, Q4_0: measured vs forecast", ..., unit="×")
results.guess(4, f"a token after {SHORT:,}, Q4_0: measured vs forecast", ..., unit="×")

# %% [markdown]
# ## 5 · The run {read 2.5, do 4.5, wait 0.2}
#
# The engine, [llama.cpp](https://github.com/ggml-org/llama.cpp), reads GGUF files with about a gigabyte of random
# weights. The run takes a few minutes in the background. Only the first round fills the deep cache, so the first
# estimates are off.

# %%
folder = work / "models"
folder.mkdir(exist_ok=True)


def start(sizes, form, context, name="", **options):
    """Return an engine with random weights of these sizes; `name` if they aren't a model's own."""
    path = folder / f"{sizes.width}{name}-{form}.gguf"
    changed = {key: options.pop(key) for key in ("layers", "symbols", "text") if key in options}
    llama.write_model(path, sizes, form, **changed)
    engine = llama.Engine(path, machine, context, **options)
    path.unlink()  # it is in memory
    return engine


engines = {}
if no_engine:
    print(no_engine)
else:
    print("Writing and loading the files …", flush=True)
    for form in FORMATS:
        engines[form] = start(SMALL, form, DEEP + 2 * WRITTEN, at_once=2)
    if MY_FILE:
        engines[MY_FILE.stem] = llama.Engine(MY_FILE, machine, DEEP + 2 * WRITTEN, at_once=2)
    print(f"This build of llama.cpp uses {engines['Q4_0'].instructions}")


# %%
def read_memory():
    """Return the seconds in which the fastest reader reads a GB."""
    return 1 / memory.read()


def one_pass(name, tokens, cached, times=1):
    """Return a variant: the seconds of a pass in an engine."""
    if cached:  # the deepest cache has a place of its own
        token = range(1, cached + 1), WRITTEN, int(cached == DEEP)
        return lambda: np.median([engines[name].token_s(*token) for _ in range(times)])
    return lambda: engines[name].first_token_s(range(1, tokens + 1), 0)


variants = {"a GB of memory": read_memory}
for name in engines:
    variants |= {f"{name}, {what}": one_pass(name, *tokens) for what, tokens in PASSES.items()}
if not no_engine:
    running = Background(variants, ROUNDS, "s", "section 5")

# %% [markdown]
# ### Exercise 4 · A scale for each group
#
# While it runs, write the heart of `Q4_0`, but with one code fewer than llama.cpp. With one scale for a whole row, the
# largest weight would leave too few of the 16 codes for the others, so small groups share a scale.
#
# Write `in_groups(weights, bits, group)` for an array of weights (rows, columns). The columns are divided into groups
# of `group` neighbours; `bits` is 2 to 8. Each group of each row has its own scale, chosen so that the group's largest
# absolute weight becomes exactly the largest code, 2^(bits − 1) − 1 (7 for 4 bits). A weight's code is the integer
# nearest to weight / scale. Return the codes as an array of integers (rows, columns), and the scales as an array (rows,
# columns / group). An all-zero group has codes of 0 and a scale of 1.


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
# Now break the seal. For a token, the last figure is the share of memory bandwidth reached in the same rounds.

# %% tags=["background"]
run = recording.figures if no_engine else running.figures()
print("unchanged:", hashlib.sha256(sealed.read_bytes()).hexdigest() == seal)
missed, reached = {}, {}
for what, seconds in forecasts.items():
    if what not in run:
        continue  # a file of yours, where there is no engine
    missed[what] = Measured(run[what].value / seconds, unit="×", digits=2)
    name, _, kind = what.partition(", ")
    moved = sum(cost(*PASSES[kind], *models[name], KV_BYTES)[1:]) / 1e9
    gb = run["a GB of memory"]
    limit = summarize([moved * second for second in gb.rounds], "s", gb.source)
    reached[what] = share(run[what], limit)
    print(f"{what:26} forecast {seconds:.3g} s, measured {run[what]}: {missed[what]}", end="")
    print(f"; {reached[what]} of memory" if PASSES[kind][1] else "")
gb = run["a GB of memory"]
print(f"memory: {bandwidth / 1e9:.1f} GB/s in the forecast; {1 / gb.value:.1f} in the run", end="")
print(f" ({1 / max(gb.rounds):.1f} to {1 / min(gb.rounds):.1f})")
results.compare_guess(3, missed[f"Q4_0, TTFT, {LONG:,} tokens"])
results.compare_guess(4, missed[f"Q4_0, a token, {SHORT:,} cached"])

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5.5))
speeds_gb = 1 / np.array(run["a GB of memory"].rounds)
edge = np.array([0.8 * speeds_gb.min(), 1.1 * speeds_gb.max()])
said = []
for (form, weight_bytes), colour in zip(FORMATS.items(), plots.PALETTE):
    for cached, marker in ((SHORT, "o"), (DEEP, "s")):
        rates = 1 / np.array(run[f"{form}, a token, {cached:,} cached"].rounds)
        style = {"linestyle": "", "marker": marker, "color": colour}
        axis.plot(speeds_gb, rates, label=f"{form}, {cached:,} cached", **style)
        moved = sum(cost(1, cached, SMALL, weight_bytes, KV_BYTES)[1:]) / 1e9
        line = "--" if cached == SHORT else ":"
        limit = {"color": colour, "marker": "", "label": f"memory's limit, {cached:,} cached"}
        axis.plot(edge, edge / moved, line, **limit)
        said.append(f"{form}, {cached:,} cached: {rates.min():.1f} to {rates.max():.1f} tokens/s")
axis.set(xlabel="memory bandwidth of the round (GB/s)", ylabel="decode (tokens/s)")
axis.set(title="Does decode follow memory?", ylim=(0, None))
figure.legend(loc="outside lower center", ncols=2)
watched = run["a GB of memory"].contention
alt = f"Tokens per second against each round's bandwidth. {'; '.join(said)}."
plots.show(figure, alt=alt, keep=results, watched=watched)

# %% [markdown]
# Each point is a round, and the lines are the memory limits. Does decode follow the bandwidth?
#
# <details><summary>How to read it</summary>
#
# If points lie on their line, memory is the limit. If they stay level while the bandwidth changes, it isn't. Later
# changes in bandwidth also add to the forecast's error.
#
# </details>
#
# ## 6 · Why were we wrong? {read 4.5, do 2.5, wait 1.5}
#
# The forecast assumed that arithmetic runs at the FP32 peak, that bytes arrive at the measured bandwidth, and that
# nothing else takes time. There are five suspects.
#
# | suspect | the forecast assumed | an experiment to test it |
# | --- | --- | --- |
# | kernels | the FP32 peak of this machine | a prompt's time, all blocks minus half |
# | unpacking | weights cost only their bytes | a block whose weights stay in the CPU's caches |
# | attention | its cache costs only its bytes | the deep cache minus the short one |
# | logits | computed for each token of a prompt | a vocabulary of 1,024 symbols |
# | gaps | nothing between the matmuls | wider blocks show what doesn't grow with the weights |
#
# The model keeps its width, so the same kernels run. A part's time is the round-by-round difference between two
# measurements, shown with its range. The two wide models have two and four of Qwen3-8B's 36 blocks. *Not repacked*
# keeps `Q4_0` in the file's order, which llama.cpp's faster kernels can't read.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In `Q4_0`, how much faster is a block whose weights stay in the caches?
#
# </div>

# %%
results.guess(5, "a block of Q4_0, weights in the caches vs in memory", ..., unit="×")

# %%
BIG = WIDE if tiny else published.MODELS["Qwen3-8B"]
block_weights = (SMALL.active_weights - SMALL.logit_weights) / SMALL.layers
in_caches = [form for form in FORMATS if 2 * FORMATS[form] * block_weights < 0.7 * cache_bytes]
few = {"symbols": 256 if tiny else 1_024}
CHANGES = {  # a model and what is changed; a prompt is measured as well if it is named
    "all, prompt": (SMALL, {}),
    "half, prompt": (SMALL, {"layers": SMALL.layers // 2}),
    "few symbols, prompt": (SMALL, few),
    "not repacked, prompt": (SMALL, {"repack": False}),
    "one block": (SMALL, {"layers": 1} | few),
    "two blocks": (SMALL, {"layers": 2} | few),
    "two wide": (BIG, {"layers": 2} | few),
    "four wide": (BIG, {"layers": 4} | few),
}


# %%
def experiments(form):
    """Return the seconds of each changed model in one format: of a token, and of a prompt."""
    variants = {}
    for name, (sizes, change) in CHANGES.items():
        if name in ("one block", "two blocks") and form not in in_caches:
            continue
        if name.startswith("not") and form != "Q4_0":  # llama.cpp repacks Q4_0
            continue
        engines[name] = start(sizes, form, 2 * SHORT, name.replace(" ", ""), **change)
        if "prompt" in name and form == "Q4_0":
            variants[f"{form}, {name}"] = one_pass(name, SHORT, 0)
        times = 8 if "block" in name else 1  # a small model's token is short
        variants[f"{form}, {name.removesuffix(', prompt')}"] = one_pass(name, 1, SHORT, times)
    measured = alternate(variants, ROUNDS, "s", "section 6")
    for name in [*engines]:
        engines.pop(name).close()
    return measured


for name in [*engines]:
    engines.pop(name).close()
why = run if no_engine else experiments("Q4_0") | experiments("Q8_0")

# %%
half = SMALL.layers - SMALL.layers // 2  # the blocks in the difference
gb_s = run["a GB of memory"].value
more_cache = cost(1, DEEP, SMALL, 0, 2)[2] - cost(1, SHORT, SMALL, 0, 2)[2]  # bytes
wide_weights = (BIG.active_weights - BIG.logit_weights) / BIG.layers  # of a block


def exceeds(a, b, parts=1, digits=2):
    """Return the ms per part by which one measurement takes longer than another."""
    ms = 1000 * (np.array(a.rounds) - b.rounds) / parts
    ends = (ms.min(), ms.max()) if len(ms) > 5 else (math.nan, math.nan)
    return Measured(np.median(ms), *ends, "ms", digits)


# %%
gain = "two blocks don't fit"
for form, weight_bytes in FORMATS.items():
    of = {name: why.get(f"{form}, {name.removesuffix(', prompt')}") for name in CHANGES}
    deep, short = (run[f"{form}, a token, {n:,} cached"] for n in (DEEP, SHORT))
    block = exceeds(of["all, prompt"], of["half, prompt"], half)
    wide = exceeds(of["four wide"], of["two wide"], 2)
    logits = exceeds(of["all, prompt"], of["few symbols, prompt"])
    print(f"{form}, a token")
    for what, ms, moved in (
        ("a block", block, weight_bytes * block_weights),
        ("a wide block", wide, weight_bytes * wide_weights),
        ("the logits", logits, weight_bytes * SMALL.logit_weights),
        (f"{DEEP - SHORT:,} more cached tokens", exceeds(deep, short), more_cache),
    ):
        print(f"    {what:24} {ms}, {1e-6 * gb_s * moved / ms.value:.0%} of memory's speed")
    if of["two blocks"]:
        cached = exceeds(of["two blocks"], of["one block"])
        print(f"    {'a block in the caches':24} {cached}")
        if form == "Q4_0":
            gain = compare(cached, block) if min(cached.low, block.low) > 0 else "undecided"
print(f"Q4_0, not repacked: {exceeds(why['Q4_0, not repacked'], why['Q4_0, all'])} more")
results.compare_guess(5, gain)

# %%
prompt = {name: why[f"Q4_0, {name}"] for name in CHANGES if "prompt" in name}
whole = prompt["all, prompt"]
block = exceeds(whole, prompt["half, prompt"], half)
operations = (cost(SHORT, 0, SMALL, 0, 0)[0] - 2 * SHORT * SMALL.logit_weights) / SMALL.layers
rates = [1e-6 * operations / ms for ms in (block.value, block.high, block.low)]
print(f"A prompt of {SHORT} tokens, Q4_0: {whole}")
print(f"    blocks: {Measured(*rates, 'GFLOP/s', 0)}, {1e9 * rates[0] / peak:.0%} of the FP32 peak")
print(f"    logits: {exceeds(whole, prompt['few symbols, prompt'], digits=0)};", end=" ")
print(f"for each token, at that rate: {2e-6 * SHORT * SMALL.logit_weights / rates[0]:.0f} ms")
print(f"    not repacked: {prompt['not repacked, prompt']}")
long, short = (run[f"Q4_0, TTFT, {n:,} tokens"] for n in (LONG, SHORT))
ratio = summarize([a / b for a, b in zip(long.rounds, short.rounds)], "×")
print(f"{LONG:,} tokens take {ratio} as long as {SHORT}")

# %%
results.answer(1, "What explains the miss of the long prompt?", ...)
results.answer(2, "What explains the miss of a token, and what would help?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# **The prompt.** Two errors partly cancel out. The forecast counted logits for every token, but only the last one's are
# needed. Blocks don't run at the FP32 peak, because this build uses AVX2 or NEON, multiplies integers, and unpacks the
# weights. If 1,024 tokens take more than four times as long as 256, one reason is attention, which takes a larger share
# of longer prompts and may run slower than matmuls (section 7).
#
# **A token.** If a block in the caches takes nearly as long as one from memory, memory isn't the limit, and a better
# kernel or more cores help; if it is much faster, fewer bits help. If the ranges overlap, you can't decide. If a wide
# block reaches a larger share of the memory bandwidth, part of each block's time is fixed, because activations are
# rounded to 8 bits and threads wait for each other after each of some 20 operations. If reading more cached tokens
# reaches only a small share, the attention kernel is the limit.
#
# </details>
#
# ## 7 · The corrected forecast {read 4, do 1.5, wait 1.1}
#
# The time of a pass is a sum of parts, each proportional to something that you can count. In prefill, you count the
# operations of the matmuls and of attention; in decode, the bytes of the weights, the operations of attention, and, for
# the gaps, the blocks. The code finds each part's time per unit. For prefill, it uses two prompts; for decode, it
# minimises the relative error over six measurements.


# %%
def parts(model, weight_bytes, tokens, cached):
    """Return the countable parts of a pass, in 10⁹ operations, GB and blocks."""
    operations, weights_read, _ = cost(tokens, cached, model, weight_bytes, KV_BYTES)
    matmuls = 2 * model.active_weights * tokens
    attention = operations - matmuls
    if tokens > 1:  # the logits of the last token only
        return (matmuls - 2 * model.logit_weights * (tokens - 1)) / 1e9, attention / 1e9
    return weights_read / 1e9, attention / 1e9, model.layers


def fit(seen):
    """Return the seconds per unit of each part, from pairs of parts and measured seconds."""
    counted, seconds = zip(*seen)
    return nnls(np.divide(counted, np.transpose([seconds])), np.ones(len(seconds)))[0]


def changed(name):
    """Return the sizes of a model in an experiment."""
    sizes, change = CHANGES[name]
    return replace(sizes, **{key: change[key] for key in ("layers", "symbols") if key in change})


# %%
units = {}
for form, weight_bytes in FORMATS.items():
    seen = {True: [], False: []}  # prefill, decode
    for what, tokens in PASSES.items():
        counted = parts(SMALL, weight_bytes, *tokens)
        seen[tokens[0] > 1].append((counted, run[f"{form}, {what}"].value))
    for name in ("half, prompt", "few symbols, prompt", "two wide", "four wide"):
        counted = parts(changed(name), weight_bytes, 1, SHORT)
        seen[False].append((counted, why[f"{form}, {name.removesuffix(', prompt')}"].value))
    units[form] = {prefill: fit(pairs) for prefill, pairs in seen.items()}
    (by_matmul, by_score), (by_gb, by_pair, by_block) = units[form].values()
    with np.errstate(divide="ignore"):
        print(
            f"{form}, prefill, GFLOP/s: matmuls {1 / by_matmul:,.0f}, attention {1 / by_score:,.0f}"
        )
        print(
            f"    decode: weights {1 / by_gb:,.1f} GB/s, attention {1 / by_pair:,.0f} GFLOP/s",
            end=", ",
        )
    print(f"{1000 * by_block:.3f} ms per block")
    of_token = 1000 * np.array(parts(SMALL, weight_bytes, 1, SHORT)) * units[form][False]
    print(
        "    a token: weights {:.1f} ms, attention {:.1f}, gaps {:.1f};".format(*of_token), end=" "
    )
    print(f"sum {sum(of_token):.1f}, measured {run[f'{form}, a token, {SHORT:,} cached']}")

# %% [markdown]
# Now test the correction on another model, Qwen3-1.7B (Qwen3-4B with large caches), whose width lies between the two
# that you measured.

# %%
TESTED = {what: PASSES[what] for what in (f"TTFT, {SHORT:,} tokens", f"a token, {SHORT:,} cached")}


def corrected(model, form, tokens, cached):
    """Return the seconds of a pass, with what was learned."""
    return np.dot(parts(model, FORMATS[form], tokens, cached), units[form][tokens > 1])


unseen = {
    f"{form}, {what}": (corrected(WIDE, form, *tokens), forecast(WIDE, weight_bytes, *tokens))
    for form, weight_bytes in FORMATS.items()
    for what, tokens in TESTED.items()
}
for what, (seconds, first) in unseen.items():
    print(f"{what:26} {1000 * seconds:8,.1f} ms; with the first forecast {1000 * first:8,.1f} ms")

# %%
if no_engine:
    other = {what: recording.figures[f"wide, {what}"] for what in unseen}
else:
    print("Writing and loading the files …", flush=True)
    for form in FORMATS:
        engines[form] = start(WIDE, form, 2 * SHORT, "wide")
    variants = {
        f"{form}, {what}": one_pass(form, *tokens)
        for form in FORMATS
        for what, tokens in TESTED.items()
    }
    other = alternate(variants, ROUNDS, "s", "section 7")
    for name in [*engines]:
        engines.pop(name).close()
worst = 0
for what, (seconds, first) in unseen.items():
    error = seconds / other[what].value - 1
    worst = max(worst, abs(error))
    print(f"{what:26} {seconds:.3g} s forecast, {other[what]}: {error:+.0%}", end=" ")
    print(f"(the first forecast {first / other[what].value - 1:+.0%})")
print(f"largest error of the corrected forecast: {worst:.0%}")
if not no_engine:
    figures = run | why | {f"wide, {what}": figure for what, figure in other.items()}
    record("10-engine", figures, QUICK, peak=peak, bandwidth=bandwidth)

# %%
results.answer(3, "Is the largest error above 15%? What does the correction still lack?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# It assumes that an operation or a byte costs the same at any width. Its prefill part was fitted at only one width, and
# ignores bytes and gaps. Where a forecast is above the measured range, wider matrices run faster than assumed, and the
# forecast for Qwen3-8B is probably pessimistic too. If decode follows the bandwidth, the time per byte holds only while
# the bandwidth stays the same.
#
# </details>
#
# ### Models that you haven't run
#
# The next model is Qwen3-8B, which fits into 8 GB with 4-bit weights, but not alongside a browser. Its interval is
# guessed from the largest error, measured at a different width and with 256-token prompts. Nothing like the experts of
# the mixture Qwen3-30B-A3B was measured, so there is only an upper bound.

# %%
margin = max(worst, 0.01)
fastest = max(bandwidth, 1e9 / min(run["a GB of memory"].rounds))  # that memory was read
room = 0.9 * machine.memory
for form, weight_bytes in FORMATS.items():
    model = published.MODELS["Qwen3-8B"]
    ttft, token = (corrected(model, form, *tokens) for tokens in ((1_024, 0), (1, 1_024)))
    size = weight_bytes * model.weights
    print(f"Qwen3-8B in {form}, {size / 1e9:.1f} GB of {room / 1e9:.0f}:", end=" ")
    span = f"{ttft * (1 - margin):.1f} to {ttft * (1 + margin):.1f}"
    print(f"TTFT of 1,024 tokens {ttft:.1f} s ({span})")
    ends = 1 / token, 1 / token / (1 + margin), 1 / token / (1 - margin)
    tokens_s = Measured(*ends, "tokens/s", 1)
    moved = sum(cost(1, 1_024, model, weight_bytes, KV_BYTES)[1:])
    print(f"    decode after 1,024 tokens {tokens_s}; memory alone {fastest / moved:.1f}")
moe = published.MODELS["Qwen3-30B-A3B"]
moved = sum(cost(1, 1_024, moe, FORMATS["Q4_0"], KV_BYTES)[1:])
print(f"Qwen3-30B-A3B in Q4_0, {FORMATS['Q4_0'] * moe.weights / 1e9:.1f} GB:", end=" ")
print(f"{moved / 1e9:.2f} GB per token, at most {fastest / moved:.0f} tokens/s")

# %% [markdown]
# In these published results, *read* is tokens/s times bytes per token, and *share* is *read* divided by the theoretical
# bandwidth.
#
# | machine, model | tokens/s | read | share |
# | --- | --- | --- | --- |
# | EPYC 9554, Phi-4 14.7 B `Q8_0`, [llama.cpp](https://ahelpme.com/?p=6685) | 19.2 | 299 GB/s | 65% |
# | Xeon 8592+, Qwen3-30B-A3B `Q4_0`, [a fork](https://github.com/Gadflyii/llama.cpp/issues/5) | 29.3 | 50 GB/s | 14% |

# %% [markdown]
# ## 8 · Fewer bits, and what they cost {read 2.5, optional}
#
# Random weights say nothing about quality, but your trained model does. Round its blocks' weights with your
# `in_groups`, and compute the loss on the same held-out texts.


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


exact = held_out_losses(weights).numpy()
print(f"FP32: loss {exact.mean():.3f}")
for bits in (8, 4, 3, 2):
    for group in (32, 0):
        more = held_out_losses(rounded(weights, bits, group)).numpy() - exact
        reach = 1.96 * more.std() / len(more) ** 0.5
        scales = f"groups of {group}" if group else "one scale per column"
        print(f"{bits} bits, {scales:20}: {more.mean():+.4f} ± {reach:.4f} nats")

# %% [markdown]
# The intervals are for differences on the same texts. Where do groups help, and where do the intervals overlap? In
# groups of 32, the scale adds half a bit per weight. In large models, a few inputs have outsized activations.
# [GPTQ](https://arxiv.org/abs/2210.17323) (2022), [AWQ](https://arxiv.org/abs/2306.00978) (2023) and llama.cpp's
# [imatrix](https://github.com/ggml-org/llama.cpp/tree/master/tools/imatrix) use a sample text to find what matters, and
# choose scales and codes accordingly.
#
# An 8-bit KV cache takes about half the bytes. In [llama.cpp's 2024
# measurement](https://github.com/ggml-org/llama.cpp/pull/7412), it raised the perplexity from 6.232 to 6.234.
#
# ## 9 · Many requests {read 3, wait 0.8, optional}
#
# With *batching*, a server writes a token for each of several requests in one pass, and reads and unpacks the weights
# once for all of them. But each request reads its own cache, and waits while other prompts are read.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In decode, by what factor do eight requests at once increase the tokens per second?
#
# </div>

# %%
results.guess(6, "tokens/s of 8 requests vs one, decode", ..., unit="×")

# %%
REQUESTS = (1, 2) if tiny else (1, 2, 4, 8)
first_s = {requests: [] for requests in REQUESTS}


def serve(requests):
    """Return a variant: the tokens/s of all requests together, in decode."""
    each = SHORT // 4  # different prompts, each in a cache of its own
    prompts = [range(1 + n * each, 1 + (n + 1) * each) for n in range(requests)]

    def tokens_per_second():
        began = time.perf_counter()
        server.ask(*[(prompt, 1, False) for prompt in prompts])
        first_s[requests].append(time.perf_counter() - began)
        answers = server.ask(*[(prompt, WRITTEN + 1, True) for prompt in prompts])
        return requests / max(answer.wrote_s / answer.wrote for answer in answers)

    return tokens_per_second


# %%
if not no_engine:
    server = start(SMALL, "Q4_0", SHORT, at_once=REQUESTS[-1])
    variants = {f"requests: {requests}": serve(requests) for requests in REQUESTS}
    served = alternate(variants, ROUNDS, "tokens/s", "section 9")
    server.close()
    record("10-requests", served, QUICK, first_s=[*first_s.items()])
else:
    recording = recorded("10-requests")
    served, first_s = recording.figures, dict(recording.data["first_s"])
for requests, seconds in first_s.items():
    rate = served[f"requests: {requests}"]
    print(f"{requests} at once: {rate}; TPOT {1000 * requests / rate.value:.0f} ms,", end=" ")
    print(f"TTFT of the last {1000 * np.median(seconds):,.0f} ms")
batch_gain = compare(rate, served["requests: 1"])
print(f"{requests} requests vs one: {batch_gain}")
results.compare_guess(6, batch_gain)
results.hand_in("9", (f"decode, {requests} requests vs one", "", batch_gain, f"{requests}×"))

# %%
results.answer(4, "Is there a gain? Why is it not 8×?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Requests share the reading and unpacking of weights, and the gaps. Each has its own multiplications, its attention
# over its own cache, and its choice among 151,936 tokens. A server also limits its batch, because TTFT and TPOT grow
# with it. MLPerf Inference v5.1 (2025) allows a TTFT of 450 ms and a TPOT of 40 ms at the 99th percentile for
# interactive Llama 2 70B.
#
# </details>
#
# ## 10 · Speculative decoding {read 4, do 6, wait 1, optional}
#
# A pass over several tokens reads the weights only once, but a request's next tokens are not known yet. In
# [**speculative decoding**](../docs/learn/glossary.md#speculative-decoding), a cheap *draft* proposes a few. The large
# model reads all of them in *one* pass, and returns its own choice after each. The tokens are accepted as long as the
# two agree. If the large model always takes its likeliest token, the text is the same as without a draft.
#
# ### Exercise 5 · What is accepted
#
# Write `accept(proposed, choices)`. `proposed` lists the tokens that the draft proposes. `choices` lists the tokens
# that the large model chooses and is one longer, because `choices[i]` is its choice after the text and the first `i` of
# the proposed tokens. Return the list of tokens by which the text grows. It must be what the large model alone would
# have written, and as long as this pass allows.


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
# the large model. Each is right with probability `alpha`, independently of the others; after the first wrong one, the
# rest are lost. `draft_cost` is the draft's time for one token, and `pass_cost` is the large model's time for a pass of
# `gamma` + 1 tokens, both as multiples of the large model's time for one token. Return how much faster the text grows,
# on average, than with the large model alone.


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
# The cheapest draft is not a model. *Prompt lookup* finds an earlier occurrence of the text's last three tokens, and
# proposes what followed there. It suits answers that repeat their prompt, such as edited code.
#
# The next model imitates an editor. It has Qwen3's shape and speed, but its embedding makes it write two given texts.
# Each is a copy of a source with every 25th or every 5th token replaced. How often is a proposal right? Your `accept`
# can tell without a model.

# %%
GAMMA, LENGTH = 8, 48 if tiny else 128  # proposed tokens; length of a text
fresh = iter(np.random.default_rng(0).permutation(np.arange(1, SMALL.symbols)).tolist())
sources = {every: [next(fresh) for _ in range(LENGTH)] for every in (25, 5)}
edited = {
    every: [
        next(fresh) if place % every == every - 1 else token for place, token in enumerate(source)
    ]
    for every, source in sources.items()
}
START = 3  # tokens of the answer that the request begins with


def look_up(tokens, count, last=3):
    """Propose what followed an earlier occurrence of the last tokens; nothing if they are new."""
    for place in range(len(tokens) - last - 1, -1, -1):
        if tokens[place : place + last] == tokens[-last:]:
            return tokens[place + last : place + last + count]
    return []


# %%
drafts = {}
for every, answer in edited.items():
    tokens, grown, drafted = sources[every] + answer[:START], [], 0
    while START + sum(grown) < LENGTH - GAMMA - 1:
        done, proposed = START + sum(grown), look_up(tokens, GAMMA)
        new = accept(proposed, answer[done : done + len(proposed) + 1])
        tokens, grown, drafted = tokens + list(new), [*grown, len(new)], drafted + bool(proposed)
    drafts[every] = sum(grown), len(grown), drafted
    print(f"every {every}th replaced: {sum(grown)} tokens in {len(grown)} passes", end=", ")
    print(f"{drafted} of them with a proposal")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster does llama.cpp's own prompt lookup write each text?
#
# </div>

# %%
results.guess(7, "prompt lookup vs none, every 25th token replaced", ..., unit="×")
results.guess(8, "prompt lookup vs none, every 5th token replaced", ..., unit="×")


# %%
counts = {}


def write_edited(name, every):
    """Return a variant: the tokens/s with which an engine writes an edited text."""

    def tokens_per_second():
        prompt = sources[every] + edited[every][:START]
        (answer,) = editors[name].ask((prompt, LENGTH - GAMMA, True))
        assert llama.tokens_of(answer.text)[:20] == edited[every][START : START + 20]
        counts[name, every] = answer.proposed, answer.accepted
        return answer.wrote / answer.wrote_s

    return tokens_per_second


# %%
ways = {"none": 0, "lookup": GAMMA}
if not no_engine:
    both = edited[25] + edited[5]
    editors = {
        name: start(SMALL, "Q4_0", 3 * LENGTH, "edit", text=both, proposed=proposed)
        for name, proposed in ways.items()
    }
    variants = {f"{name}, {every}": write_edited(name, every) for name in ways for every in edited}
    drafted = alternate(variants, ROUNDS, "tokens/s", "section 10")
    for engine in editors.values():
        engine.close()
    record("10-drafts", drafted, QUICK, counts=[*counts.items()])
else:
    recording = recorded("10-drafts")
    drafted = recording.figures
    counts = {tuple(key): value for key, value in recording.data["counts"]}

# %%
gains = {n: compare(drafted[f"lookup, {n}"], drafted[f"none, {n}"]) for n in edited}


def alpha_for(gain, pass_cost):
    """Return the alpha with which a draft that costs nothing is this much faster."""
    alphas = np.linspace(0, 1, 1_001)
    return np.interp(gain, [speed_up(alpha, GAMMA, 0, pass_cost) for alpha in alphas], alphas)


for every, gain in gains.items():
    proposed, accepted = counts["lookup", every]
    print(f"every {every}th replaced: {accepted} of {proposed} proposed tokens accepted, {gain}")
    tokens, passes, n = drafts[every]  # n of the passes with a proposal
    each = (tokens - passes + n) / n
    costs = [(tokens / g - passes + n) / n for g in (gain.value, gain.high, gain.low)]
    alpha, least = alpha_for(each, 1), alpha_for(1, costs[0])
    print(f"    a pass with a proposal: {each:.1f} tokens, as if alpha were {alpha:.2f};", end=" ")
    print(f"it costs {Measured(*costs, digits=1)} of one without: worth it from alpha {least:.2f}")
results.compare_guess(7, gains[25])
results.compare_guess(8, gains[5])
rows = [(f"prompt lookup, every {n}th token replaced", "", gains[n], "") for n in gains]
results.hand_in("10", *rows)

# %%
results.answer(5, "When does a draft make writing slower on your machine?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# It does when 1 + alpha + … + alpha^gamma is less than gamma · draft_cost + pass_cost. A pass with a proposal costs
# several times as much as one without, because its tokens share only the work on the weights and the gaps. A draft with
# few correct tokens per proposal therefore loses, and does so more often where the cores are the limit or many requests
# keep them busy. The accepted share isn't alpha, because all tokens after the first wrong one count as rejected. In a
# published measurement, OpenVINO GenAI's prompt lookup was 5% faster for 100 tokens and 81% faster for 300
# ([2024](https://github.com/openvinotoolkit/openvino.genai/pull/1245)).
#
# </details>

# %% [markdown]
# ## Questions {read 1.5}
#
# 1. A colleague says: "This CPU has `2 TFLOP/s`, and the model needs 14 GFLOP per token, so it writes 140 tokens a
#    second." What is missing, and what would you ask?
# 2. Which is the better buy for a chat server with one user, twice the cores or twice the memory channels? What would
#    you measure first?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Answers**
#
# 1. Bytes and kernels are missing. At 14 GFLOP per token, the model has 7 billion weights and, in 16 bits, reads 14 GB
#    per token. Ask for the bits per weight, the *measured* bandwidth, and the engine.
# 2. Measure what share of the bandwidth decode reaches. If it is nearly 100%, channels help; if it is far less, cores
#    or better kernels do.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Timing, and what goes wrong**
#
# Start section 5 by minute 35, because it runs for minutes in the background. In exercise 3, weights "read once per
# token" give decode and prefill the same intensity.
#
# On other machines:
#
# - llama.cpp's wheel uses AVX2 on x86-64 and plain NEON on Arm64, where *not repacked* may show no difference. AVX-512,
#   AMX or Arm's matrix instructions raise the limits, but not the engine's speed.
# - With 16 MB of last-level cache or less, no two blocks fit, so rely on section 5's picture. With more than 100 MB,
#   the models are Qwen3-1.7B and 4B.
# - The lab needs up to 4 GB of memory and 2 GB of disk, or 7 and 4.5 GB with large caches. With less than 5 GB free,
#   the deep cache has 1,536 tokens.
# - Two CPUs on one core can double the waiting time. With two NUMA nodes, figures vary between engine starts.
# - Without llama.cpp or AVX2, sections 5 to 10 show another machine's speeds, and the forecast is for that machine.
# - Other work on the cores hurts decode most, because waiting threads spin.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Arithmetic limits prefill (TTFT), and memory limits decode (TPOT); kernels can keep both far below their limits.
# - A forecast counts only if it was written before the run, and a correction only if it holds for a different model.
# - A KV cache avoids computing earlier tokens again, but costs memory, bandwidth and arithmetic per request.

# %% jupyter={"source_hidden": true}
rows = [
    (
        "loss after training",
        "1.88, on Shakespeare",
        final_loss,
        f"{math.log(SYMBOLS):.2f} if equally likely",
    ),
    ("a token with a KV cache vs without", "", cache_gain, ""),
]
for what, seconds in forecasts.items():
    if what in run:
        rows.append((f"{names[0]}, {what}", "", run[what], f"{seconds:.3g} s"))
for what, (seconds, _) in unseen.items():
    rows.append((f"{names[1]}, {what}", "", other[what], f"{seconds:.3g} s"))
rows += results.handed_in("9", ("decode, requests at once vs one", ""))
rows += results.handed_in("10", ("prompt lookup, an edited text", ""))
results.table("language models", rows)

# %% [markdown]
# **Next:** [lab 11](11_after_the_all_reduce.ipynb), where a network's weights, gradients and optimizer are sharded over
# ranks.
