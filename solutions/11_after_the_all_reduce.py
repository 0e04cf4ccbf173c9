# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 11 · After the all-reduce
#
# Horovod's last release is of June 2023. "And in PyTorch?" is what every room asks. What labs 06 to 08 taught carries
# over; this lab is the bridge.
#
# **You will** write what PyTorch's DDP, ZeRO and FSDP do, a few lines each, over MPI. You count the bytes that each of
# them sends on wires, and the memory that it takes. You predict when sending is no longer hidden, and measure it. Then
# you run the same in PyTorch, and compare it with your own.
#
# **Time** {minutes}
#
# **Connects to** lab 06, whose all-reduce it takes apart; lab 07, whose script it translates; lab 10, which splits a
# layer over ranks.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("11", globals())

# %%
import inspect
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown, display

from labkit.display import ladder, markdown, plots
from labkit.display.consistency import Prediction, score
from labkit.display.machines import table as table_of_machines
from labkit.display.measured import Measured
from labkit.exercises import catalogue
from labkit.mpi import run_ranks, torch_ranks
from labkit.system import load
from labkit.system.statistics import interval, ratio
from labkit.testbed import Testbed, obstacle
from labkit.testbed.units import show_rate

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
LAYERS, WIDTH = (4, 64) if QUICK else (16, 512)  # of the network
ROWS = 4 if QUICK else 384  # of a rank in a step, where speed is measured
COUNTED = (2,) if QUICK else (1, 2, 4)  # ranks whose memory and bytes are counted
ROUNDS, STEPS = (2, 1) if QUICK else (6, 3)  # sections 2 and 4; steps in each round
PER_BUCKET = (1, LAYERS) if QUICK else (1, 2, 4, 8, 16)  # layers in a bucket: section 2
MAX_RATE = 5e9  # bits/s of a wire here: beyond, the cores that send are the limit
STAGES, STAGE_S = ((2,), 0.002) if QUICK else ((2, 4), 0.01)  # section 6
MICRO_BATCHES, PIPELINE_ROUNDS = ((1, 4), 2) if QUICK else ((1, 2, 4, 8, 16), 5)
TORCH_ROUNDS, TORCH_STEPS = (2, 1) if QUICK else (6, 2)  # section 7
MNIST_DIGITS, SCRIPT_ROUNDS = (512, 2) if QUICK else (2_560, 6)  # section 7

LAYER_BYTES = 4 * WIDTH**2
BYTES = LAYERS * LAYER_BYTES  # of all weights, and of all gradients
no_wires = obstacle()  # why this machine can make no wires; empty if it can
if no_wires:
    print(f"Nothing is sent over wires here: {no_wires}")

# %% [markdown]
# ## 1 · One thing in three dialects
#
# What became of Horovod? Release 0.28.1 of [June 2023](https://pypi.org/project/horovod/#history) was the last. Its
# repository got about nine changes a year in 2024 and 2025.
# [Lightning](https://github.com/Lightning-AI/pytorch-lightning/pull/16150) took its support out at the end of 2022,
# [Ray](https://github.com/ray-project/ray/issues/49454) in 2025. With TensorFlow after 2.16 it runs only with
# [changes](https://github.com/horovod/horovod/pull/4302) that nobody merged; this kit makes them when it compiles it.
# Who starts today takes PyTorch, or JAX.
#
# The six steps of lab 07 are the same in each:
#
# | step | Horovod, TensorFlow | PyTorch, DDP | JAX |
# | --- | --- | --- | --- |
# | 1 who am I? | `hvd.init()` | `init_process_group("gloo")` | `jax.distributed.initialize()` |
# | 2 one device a rank | `mpirun -bind-to` | `torchrun`, `set_num_threads` | `jax.make_mesh` |
# | 3 my share of the data | yours | `DistributedSampler` | `make_array_from_process_local_data` |
# | 3 learning rate, steps | yours | yours | yours |
# | 4 average the gradients | `DistributedGradientTape` | done by the wrapped network | the compiler does |
# | 5 equal start | `broadcast_variables` | done by wrapping it | `device_put`, replicated |
# | 6 one writer | `if rank == 0` | `if rank == 0` | `if process_index() == 0` |
#
# One line of the table is the subject of this lab: step 4. Horovod and DDP average gradients by an
# [**all-reduce**](../docs/glossary.md#all-reduce). What they do around it, and what came after it, you can write
# yourself: with NumPy, so that nothing is hidden.
#
# This is the network: square layers with ReLU, gradients by hand, and Adam. Adam keeps two numbers for each weight. So
# a weight has 16 bytes: 4 for itself, 4 for its gradient, 8 for Adam. Keep that sum in mind.

# %%
# %%writefile work/mlp.py
"""A network of square layers with ReLU, its gradients by hand, and Adam."""

import numpy as np

PIECE = 65_536  # weights that Adam updates at a time, so that what it computes with stays small


def random_weights(layers, width):
    """Return the weights before training, the same on every rank: arrays (width, width)."""
    rng, size = np.random.default_rng(0), np.float32((2 / width) ** 0.5)
    return [size * rng.standard_normal((width, width), np.float32) for _ in range(layers)]


def share_of_batch(rows, width, step, rank, size):
    """Return a rank's inputs and targets for a step, (rows, width) each; no two have the same."""
    inputs = np.random.default_rng([1, step]).standard_normal((rows * size, width), np.float32)
    mine = inputs[rank * rows : (rank + 1) * rows]
    return mine, np.abs(mine[:, ::-1])


def forward(weight, x):
    """Return a layer's output (rows, width) for its input."""
    return np.maximum(x @ weight, 0)


def backward(weight, x, output, error):
    """Return the gradient of a layer's weights, and the error at its input, from its output's."""
    error = error * (output > 0)
    return x.T @ error, error @ weight.T


def loss_and_error(output, target):
    """Return half the mean squared error of these rows, and the error at the last output."""
    difference = output - target
    return float((difference**2).mean()) / 2, difference / difference.size


class Adam:
    """The state of Adam for so many weights: two more numbers for each."""

    def __init__(self, size, rate=1e-3):
        self.rate, self.steps = rate, 0
        self.mean, self.square = np.zeros((2, size), np.float32)

    def update(self, weights, gradient):
        """Change weights, an array of any shape, by one step."""
        self.steps += 1
        weights, gradient = weights.reshape(-1), gradient.reshape(-1)
        unbias = 1 - 0.9**self.steps, 1 - 0.999**self.steps
        for first in range(0, weights.size, PIECE):
            piece = slice(first, first + PIECE)
            self.mean[piece] += 0.1 * (gradient[piece] - self.mean[piece])
            self.square[piece] += 0.001 * (gradient[piece] ** 2 - self.square[piece])
            root = np.sqrt(self.square[piece] / np.float32(unbias[1])) + np.float32(1e-8)
            weights[piece] -= np.float32(self.rate / unbias[0]) * self.mean[piece] / root


# %% [markdown]
# `backward` works on one layer. A training step calls `forward` from the first layer to the last, and `backward` from
# the last to the first. So the gradient of the *last* layer is ready first.
#
# ## 2 · DDP: send while you compute
#
# PyTorch's [**DDP**](../docs/glossary.md#ddp), `DistributedDataParallel`, is
# [**data parallelism**](../docs/glossary.md#data-parallelism) as Horovod's: each rank has all weights, and a share of
# the batch. Gradients are averaged in [**buckets**](../docs/glossary.md#bucket): as soon as the gradients of a few
# layers are ready, one all-reduce starts for all of them, while the
# [**backward pass**](../docs/glossary.md#backward-pass) goes on. Horovod's name for it is *fusion*.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which buckets make a step the fastest on a wire: one for each layer, or one for all layers? And how
# many times as fast is it as the other?
#
# </div>

# %%
results.guess(
    1, "the faster buckets", ..., choices=("a layer each", "one for all", "no difference")
)

# %% [markdown]
# ### Exercise 1 · Buckets
#
# Write `buckets(sizes, limit)`. `sizes` has the bytes of each layer's gradient, from the first layer to the last, and
# `limit` the bytes that a bucket may hold. Return a list of buckets; a bucket is a list of layers' numbers.
#
# - Layers stand in the order in which their gradients become ready.
# - Each bucket is filled with what comes next, as long as it stays within `limit`.
# - A layer that is larger than `limit` has a bucket of its own. No bucket is empty.
#
# With `sizes` of `[3, 3, 4, 9]` and a limit of 7, it is `[[3], [2, 1], [0]]`.


# %%
def buckets(sizes, limit):
    """Return lists of layer numbers, from the last layer to the first."""
    ### BEGIN SOLUTION
    made = []
    for layer in reversed(range(len(sizes))):
        if made and sum(sizes[each] for each in made[-1]) + sizes[layer] <= limit:
            made[-1].append(layer)
        else:
            made.append([layer])
    return made
    ### END SOLUTION


# %% tags=["nbval-check-output"]
buckets = check(1, buckets)

# %%
(work / "buckets.py").write_text(inspect.getsource(buckets))
print(buckets([LAYER_BYTES] * LAYERS, 4 * LAYER_BYTES))

# %% [markdown]
# ### Exercise 2 · A step of DDP
#
# `average` waits until the sum is there. Called in a second thread, the first can go on computing:
# `future = self.sender.submit(self.average, gradients)` returns at once, and `future.result()` waits for what `average`
# returns. The thread takes one call after the other, in the order of `submit`. (NumPy and mpi4py let other threads run
# while they compute and wait.)
#
# Complete `step`:
#
# 1. Compute the gradients, layer by layer, in the order of `self.buckets`. The input of layer *k* is `outputs[k]`, its
#    output `outputs[k + 1]`. `backward` gives the `error` that the layer before it needs.
# 2. As soon as the gradients of a bucket are there, hand them to `self.average` in the other thread, in the order of
#    the bucket. Don't wait.
# 3. In the end, wait for the means. Change each layer's weights by `self.states[layer].update(weights, mean)`.
#
# The check runs it on 3 ranks, for at most 60 s.

# %%
# %%writefile work/ddp.py
"""Data parallelism with buckets: each rank holds all weights, and computes while it sends."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from buckets import buckets
from mlp import Adam, backward, forward, loss_and_error
from mpi4py import MPI


class DDP:
    """A network of which every rank holds all: weights, gradients, Adam's states."""

    def __init__(self, ranks, weights, limit):
        self.ranks, self.weights = ranks, weights
        self.buckets = buckets([weight.nbytes for weight in weights], limit)
        self.states = [Adam(weight.size) for weight in weights]
        self.sender = ThreadPoolExecutor(1)  # a second thread, which waits for the network

    def average(self, gradients):
        """Return the mean over all ranks of each of some gradients, by one all-reduce."""
        flat = np.concatenate([gradient.ravel() for gradient in gradients])
        self.ranks.Allreduce(MPI.IN_PLACE, flat)
        flat /= self.ranks.size
        ends = np.cumsum([gradient.size for gradient in gradients])
        return np.split(flat, ends[:-1])

    def step(self, x, target):
        """Train by one step on this rank's rows; return their loss."""
        outputs = [x]
        for weight in self.weights:
            outputs.append(forward(weight, outputs[-1]))
        loss, error = loss_and_error(outputs[-1], target)
        ### BEGIN SOLUTION
        on_the_way = []
        for bucket in self.buckets:
            gradients = []
            for layer in bucket:
                place = self.weights[layer], outputs[layer], outputs[layer + 1]
                gradient, error = backward(*place, error)
                gradients.append(gradient)
            on_the_way.append(self.sender.submit(self.average, gradients))
        for bucket, averaged in zip(self.buckets, on_the_way):
            for layer, mean in zip(bucket, averaged.result()):
                self.states[layer].update(self.weights[layer], mean)
        ### END SOLUTION
        return loss


# %% tags=["nbval-check-output"]
ddp = check(2, "work/ddp.py")

# %%
# What the next sections import: your script, or the kit's until yours passes.
_ = (work / "own_ddp.py").write_text(Path(ddp).read_text())

# %% [markdown]
# How long will a step take, with which buckets? The script that measures is plumbing, and folded: it trains in several
# ways, in turns, on the same data, and counts seconds, bytes and memory.

# %% jupyter={"source_hidden": true}
# %%writefile work/sharded_steps.py
"""Train some steps in several ways, in turns, and measure: python work/sharded_steps.py --help"""

import argparse
import json
import os
import time
import tracemalloc
from importlib import import_module
from pathlib import Path

import numpy as np
from mlp import Adam, random_weights, share_of_batch
from mpi4py import MPI

from labkit.testbed import traffic

RANKS = MPI.COMM_WORLD


def make(way, weights, ranks=RANKS):
    """Return what trains the network in a way, such as "DDP:1e6", which has buckets of 1 MB."""
    name, _, limit = way.partition(":")
    if name == "alone":  # nothing travels
        return import_module("own_ddp").DDP(MPI.COMM_SELF, weights, 0)
    if name == "DDP":
        return import_module("own_ddp").DDP(ranks, weights, float(limit))
    if name == "ZeRO-1":
        return import_module("own_zero1").ZeRO1(ranks, weights)
    return import_module("own_fsdp").FSDP(ranks, weights)


def timed(function, count, clock=time.perf_counter):
    """Return the median seconds of so many calls, on the slowest rank, which begin together."""
    seconds = []
    for _ in range(count):
        RANKS.Barrier()
        begin = clock()
        function()
        seconds.append(clock() - begin)
    return RANKS.allreduce(float(np.median(seconds)), MPI.MAX)


def senders(model, gradient):
    """Return the functions that send a layer, by name."""
    if hasattr(model, "average"):
        return {"average": lambda: model.average([gradient])}
    return {"gather": lambda: model.gather(0), "scatter": lambda: model.scatter(gradient)}


def costs_of_sending(way, width):
    """Return two times of each function that sends a layer: on a rank alone, and of its core."""
    layer, found = np.zeros((width, width), np.float32), {}
    for ranks, clock in ((MPI.COMM_SELF, time.perf_counter), (RANKS, time.process_time)):
        for name, send in senders(make(way, [layer], ranks), layer).items():
            found.setdefault(name, []).append(timed(send, 20, clock))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--ways", nargs="+", help="alone, DDP:BYTES-OF-A-BUCKET, ZeRO-1, FSDP")
    add("--layers", type=int)
    add("--width", type=int)
    add("--rows", type=int, help="of each rank, in a step")
    add("--rounds", type=int, help="of all ways, in turns")
    add("--steps", type=int, help="of a way in a round")
    add("--wires", action="store_true", help="count what the node's interface sends")
    add("--memory", action="store_true", help="count what NumPy holds: give one way")
    add("--out", default="work/sharded_steps.json")
    args = parser.parse_args()

    if args.memory:
        tracemalloc.start()
    models = {way: make(way, random_weights(args.layers, args.width)) for way in args.ways}
    found = {way: {"seconds": [], "sent": [], "losses": []} for way in models}
    for turn in range(-1, args.rounds):  # the first does not count: first use of all
        for way, model in models.items():
            seconds = sent = 0.0
            if turn == 0 and args.memory:
                tracemalloc.reset_peak()
            for step in range(args.steps):
                number = (turn + 1) * args.steps + step
                batch = share_of_batch(args.rows, args.width, number, RANKS.rank, RANKS.size)
                RANKS.Barrier()
                before, begin = traffic().sent if args.wires else 0, time.perf_counter()
                loss = model.step(*batch)
                seconds += time.perf_counter() - begin
                RANKS.Barrier()
                sent += traffic().sent - before if args.wires else 0
                found[way]["losses"].append(RANKS.allreduce(loss) / RANKS.size)
            if turn >= 0:
                found[way]["seconds"].append(RANKS.allreduce(seconds / args.steps, MPI.MAX))
                found[way]["sent"].append(RANKS.allgather(sent / args.steps))
    for way in models:  # bytes of a rank in a step, the mean over ranks and rounds
        found[way]["sent"] = float(np.mean(found[way]["sent"] or 0))
    if args.memory:  # bytes of a rank: after a step, and at the most within one
        memory = RANKS.allgather(tracemalloc.get_traced_memory())
        found["held"], found["most"] = np.max(memory, axis=0).tolist()
    else:
        number, zeros = np.zeros(1, np.float32), np.zeros(args.width**2, np.float32)
        state = Adam(zeros.size)
        found["start"] = timed(lambda: RANKS.Allreduce(MPI.IN_PLACE, number), 30)
        found["update"] = timed(lambda: state.update(zeros, zeros), 10)
        found["cores"] = len(os.sched_getaffinity(0))
        found["sending"] = {}
        for way in models:
            if way.startswith(("DDP", "FSDP")):
                found["sending"] |= costs_of_sending(way, args.width)
    if RANKS.rank == 0:
        Path(args.out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()


# %% jupyter={"source_hidden": true}
def measure(n, *ways, **options):
    """Train in each way on n ranks, and return what was found, by way."""
    flags = {"layers": LAYERS, "width": WIDTH, "rows": ROWS, "rounds": ROUNDS, "steps": STEPS}
    flags |= {name: value for name, value in options.items() if name in flags}
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    arguments += ["--memory"] * options.get("memory", False) + ["--wires"] * ("wires" in options)
    # Ranks that wait for each other sleep meanwhile: there may be more of them than cores.
    env = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": 1, "MPIR_CVAR_POLLS_BEFORE_YIELD": 10}
    run_ranks(
        n,
        "work/sharded_steps.py",
        *arguments,
        *("--ways", *ways),
        threads=1,
        env=env,
        network=options.get("wires"),
        show=False,
    )
    return json.loads((work / "sharded_steps.json").read_text())


# %% [markdown]
# The parts of a step are measured first, by ranks that compute beside each other and send nothing: the whole step, the
# updates of Adam in it, and an all-reduce of a single number, `start`. Of the computing, the forward pass takes a
# third: one product for each layer, against two.


# %%
def parts_of(found):
    """Return the seconds of a step's parts, from a rank that is alone."""
    update = LAYERS * found["update"]
    computing = float(np.median(found["alone"]["seconds"])) - update
    forward, backward = computing / 3, 2 * computing / 3
    return dict(forward=forward, backward=backward, update=update, start=found["start"])


def core_of(found):
    """Return, by what sends a layer: seconds of copies, of the core, and taken from computing."""
    slows = found["cores"] == 1  # with more of them, another one sends
    return {name: (copies, core, slows * core) for name, (copies, core) in found["sending"].items()}


hidden = {}  # bits/s from which on all sending can be hidden, by way
if not no_wires:
    print("The parts of a step: about 10 s", flush=True)
    with Testbed(2, "1 Gbit/s") as wires:
        parts = parts_of(measure(2, "alone", wires=wires))
    print(", ".join(f"{part} {1e3 * seconds:.1f} ms" for part, seconds in parts.items()))
    hidden["DDP"] = 8 * BYTES / parts["backward"]  # 2(n - 1)/n is 1 on two nodes
    print(f"{BYTES / 1e6:.1f} MB fit behind the backward pass at {show_rate(hidden['DDP'])}")

# %% [markdown]
# On a wire of that rate, sending takes as long as the backward pass. Can it be hidden there? `ddp_seconds` goes through
# a step: gradients become ready one by one, and an all-reduce begins when its bucket is full and the one before it is
# done. It takes `start`, and the time for 2(n − 1)/n times its bytes (lab 06, sections 4 and 8).
#
# That is the wire's part. The core has one too: it copies gradients into the bucket and out of it, and it sends and
# receives. So two more times of a layer's all-reduce are measured: what the copies take, and what the core spends in
# all. Where a rank has one core for everything, its computing ends that much later. (A network card that reads memory
# itself takes less of the core.)


# %%
NOTHING = (0.0, 0.0, 0.0)  # where `parts` has nothing of the core: the wire alone


def ddp_seconds(per_bucket, rate, parts, n=2):
    """Return the predicted seconds of a step: layers in a bucket, bits/s, measured parts."""
    copies, core, slows = parts.get("average", NOTHING)
    travel = max(copies + 2 * (n - 1) / n * LAYER_BYTES * 8 / rate, core)  # of a layer
    now, wire_free, sent = parts["forward"], 0.0, 0
    for bucket in buckets([LAYER_BYTES] * LAYERS, per_bucket * LAYER_BYTES):
        now += len(bucket) * parts["backward"] / LAYERS + sent * slows
        wire_free = max(wire_free, now) + parts["start"] + len(bucket) * travel
        sent = len(bucket)  # on its way while the next bucket is computed
    return max(now, wire_free) + parts["update"]


def milliseconds(seconds):
    """Return the geometric mean of rounds in ms, with its 95% interval."""
    mean, half = interval(np.log(seconds))
    return Measured(*(1e3 * np.exp([mean, mean - half, mean + half])), "ms", digits=0)


# %%
ways = {per: f"DDP:{per * LAYER_BYTES}" for per in PER_BUCKET}
of_buckets, rows = None, []
with load.watch("section 2") as bucket_others:
    if hidden:
        rate = min(hidden["DDP"], MAX_RATE)
        print(f"wires of {show_rate(rate)}: about half a minute", flush=True)
        with Testbed(2, rate) as wires:
            found = measure(2, "alone", *ways.values(), wires=wires)
if hidden:
    by_wire = parts_of(found)  # of the same minute
    with_core = by_wire | core_of(found)
    bucket_ms = {per: milliseconds(found[way]["seconds"]) for per, way in ways.items()}
    foreseen = {
        name: {per: 1e3 * ddp_seconds(per, rate, known) for per in ways}
        for name, known in (("the wire", by_wire), ("wire and core", with_core))
    }
    alone_ms = milliseconds(found["alone"]["seconds"])
    of_buckets = ratio(
        *(1 / np.array(found[ways[per]]["seconds"]) for per in PER_BUCKET[:: len(ways) - 1])
    )
    copies, core, _ = with_core["average"]
    print(f"a layer's all-reduce: copies {1e3 * copies:.1f} ms, of the core {1e3 * core:.1f} ms")
    rows = [
        (str(per), *(f"{predicted[per]:.0f}" for predicted in foreseen.values()), str(ms))
        for per, ms in bucket_ms.items()
    ]
    heads = ("layers in a bucket", "by the wire, ms", "wire and core, ms", "measured")
    display(markdown.table(heads, rows))
    slowest, fastest = (foreseen["wire and core"][per] for per in (PER_BUCKET[-1], PER_BUCKET[0]))
    predicted_buckets = slowest / fastest
    print(f"nothing sent: {alone_ms}")
    print(f"a bucket a layer is {of_buckets} times as fast as one for all: {of_buckets.verdict}")
    better = "a layer each" if of_buckets.value > 1 else "one for all"
    results.compare_guess(1, better if of_buckets.significant else "no difference")


# %% jupyter={"source_hidden": true}
def draw_steps(axis, names, measured, predicted, alone):
    """Draw milliseconds of steps, a name each: measured, with intervals, and two predictions."""
    got = np.array([(each.value, each.low, each.high) for each in measured])
    reach = np.nan_to_num(np.abs(got[:, 1:] - got[:, :1]).T)
    place = np.arange(len(names))
    style = dict(ls="", marker="o", color=plots.BLUE, capsize=4)
    axis.errorbar(place, got[:, 0], yerr=reach, label="measured", **style)
    for (name, ms), marker, color in zip(predicted.items(), "Ds", (plots.ORANGE, plots.GREEN)):
        style = dict(ls="", marker=marker, color=color, mfc="none", ms=11)
        axis.plot(place, ms, label=f"predicted: {name}", **style)
    axis.axhline(alone.value, color=plots.BLACK, ls="--", lw=1.5, label="nothing sent")
    axis.set_xticks(place, names)
    axis.set_xlim(-0.5, len(names) - 0.5)
    axis.set_ylim(bottom=0)


if hidden:
    figure, axis = plt.subplots(figsize=(9, 4))
    by_bucket = {name: list(predicted.values()) for name, predicted in foreseen.items()}
    draw_steps(axis, list(ways), bucket_ms.values(), by_bucket, alone_ms)
    axis.set(xlabel="layers in a bucket", ylabel="time of a step (ms)")
    axis.set_title("Steps of DDP on two nodes, with 95% intervals")
    axis.legend()
    told = ", ".join(
        f"{per} layers {ms}, predicted {foreseen['the wire'][per]:.0f} by the wire"
        f" and {foreseen['wire and core'][per]:.0f} by wire and core"
        for per, ms in bucket_ms.items()
    )
    plots.show(
        figure,
        alt=f"Time of a step by layers in a bucket: {told}. Nothing sent: {alone_ms}.",
        keep=results,
        watched=[bucket_others],
    )

# %% [markdown]
# One bucket for all layers can't be sent before the last gradient is there, so nothing is hidden. A bucket for each
# layer pays for `start` each time. Is the best one where the predictions have it? And how much of the distance between
# the wire's prediction and the measured step is the core's?

# %% [markdown]
# ## 3 · ZeRO-1: share out the optimizer
#
# With DDP, every rank keeps Adam's numbers for all weights, and all ranks compute the same update. Both are waste. In
# [**ZeRO**](../docs/glossary.md#zero), stage 1 (Rajbhandari et al. 2020,
# [arXiv 1910.02054](https://arxiv.org/abs/1910.02054)), a rank keeps the states of its share of the weights only,
# updates those, and gets the others' from the other ranks.
#
# An all-reduce is a [**reduce-scatter**](../docs/glossary.md#reduce-scatter), after which each rank has its share of
# the sum, and an [**all-gather**](../docs/glossary.md#all-gather), after which each rank has everybody's (lab 06,
# section 2). ZeRO-1 puts the update between the two.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** A rank with DDP holds 16 bytes for each weight. How many are left with ZeRO-1, on 4 ranks? And does
# it send more than DDP, less, or the same?
#
# </div>

# %%
results.guess(2, "ZeRO-1 on 4 ranks, bytes of a weight", ..., unit="bytes")

# %%
results.guess(3, "ZeRO-1 sends, against DDP", ..., choices=("less", "the same", "more"))

# %% [markdown]
# ### Exercise 3 · Update a share
#
# All weights stand in one long array, `self.flat`, and all gradients of this rank in another, `self.flat_gradient`. The
# arrays `self.weights` and `self.gradients` are parts of them, so what you write into one is in the other. Both are
# padded with zeros: each rank has `self.share` numbers, rank *r* those from `r * self.share` on.
#
# Complete `update`:
#
# 1. `self.ranks.Reduce_scatter_block(all, mine)` adds up the arrays `all` of the ranks, and writes this rank's share of
#    the sum into `mine`. Make the mean of it.
# 2. `self.state.update(weights, gradient)`, for this rank's share of the weights.
# 3. `self.ranks.Allgather(MPI.IN_PLACE, array)` fills an array: each rank gives its share, where it stands.
#
# The check runs it on 3 ranks, for at most 60 s.

# %%
# %%writefile work/zero1.py
"""ZeRO-1: each rank holds all weights and gradients, and its share of Adam's states."""

import math

import numpy as np
from mlp import Adam, backward, forward, loss_and_error
from mpi4py import MPI


class ZeRO1:
    """A network whose optimizer is shared out: each rank updates its part of the weights."""

    def __init__(self, ranks, weights):
        self.ranks = ranks
        sizes = [weight.size for weight in weights]
        self.share = math.ceil(sum(sizes) / ranks.size)  # numbers of each rank; some are padding
        self.flat, self.flat_gradient = np.zeros((2, self.share * ranks.size), np.float32)
        # The layers' weights and gradients are parts of two long arrays: no copy is made.
        ends = np.cumsum(sizes)
        self.weights, self.gradients = (
            [part.reshape(w.shape) for part, w in zip(np.split(flat, ends), weights)]
            for flat in (self.flat, self.flat_gradient)
        )
        for mine, weight in zip(self.weights, weights):
            mine[:] = weight
        self.state = Adam(self.share)

    def update(self):
        """Change all weights by one step, from every rank's own `flat_gradient`."""
        ### BEGIN SOLUTION
        mine = np.empty(self.share, np.float32)
        self.ranks.Reduce_scatter_block(self.flat_gradient, mine)
        mine /= self.ranks.size
        own = slice(self.ranks.rank * self.share, (self.ranks.rank + 1) * self.share)
        self.state.update(self.flat[own], mine)
        self.ranks.Allgather(MPI.IN_PLACE, self.flat)
        ### END SOLUTION

    def step(self, x, target):
        """Train by one step on this rank's rows; return their loss."""
        outputs = [x]
        for weight in self.weights:
            outputs.append(forward(weight, outputs[-1]))
        loss, error = loss_and_error(outputs[-1], target)
        for layer in reversed(range(len(self.weights))):
            place = self.weights[layer], outputs[layer], outputs[layer + 1]
            self.gradients[layer][:], error = backward(*place, error)
        self.update()
        return loss


# %% tags=["nbval-check-output"]
zero1 = check(3, "work/zero1.py")

# %%
_ = (work / "own_zero1.py").write_text(Path(zero1).read_text())

# %% [markdown]
# ## 4 · FSDP: share out everything
#
# Why keep weights that you don't need now? [**FSDP**](../docs/glossary.md#fsdp), fully sharded data parallel, is
# PyTorch's name for ZeRO's third stage. Each rank keeps a share of each layer: weights, gradients, states. Before a
# layer computes, its weights are gathered from all ranks; after it, they are dropped. In the backward pass, they are
# gathered again, and the gradients reduce-scattered.
#
# ```mermaid
# flowchart LR
#     accTitle: A layer under FSDP
#     accDescr: Forward: gather the weights, compute, drop them. Backward: gather, compute, reduce-scatter, drop.
#     subgraph forward
#         g1["gather weights"] --> c1["compute"] --> d1["drop weights"]
#     end
#     subgraph backward
#         g2["gather weights"] --> c2["compute"] --> s2["reduce-scatter gradient"] --> d2["drop both"]
#     end
#     d1 --> g2
# ```
#
# That is three times (n − 1)/n of the weights' bytes on the wire, where an all-reduce has two: half as much again.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Sending is hidden behind computing, up to a point. When the wire gets slower, is FSDP's sending the
# first that no longer is, since it sends half as much again?
#
# </div>

# %%
results.guess(
    4,
    "no longer hidden first, by the sums",
    ...,
    choices=("DDP's", "FSDP's", "both at the same rate"),
)

# %% [markdown]
# ### Exercise 4 · Gather, and scatter
#
# `self.shares[layer]` is this rank's share of a layer's weights, in one dimension. `self.cut(array)` cuts an array into
# rows of equal length, one for each rank, with zeros behind its end; row *r* is rank *r*'s share. Write
#
# - `gather(layer)`: return the layer's whole weights, in their shape, `self.shapes[layer]`.
#   `self.ranks.Allgather(mine, all)` writes every rank's `mine` into `all`, one after the other. Keep no copy of it;
# - `scatter(gradient)`: return this rank's share of the *mean* over all ranks of a layer's gradient, in one dimension.
#
# `step`, below them, is done. Read it: the weights of the next layer travel while this one computes.
#
# The check runs it on 3 ranks, for at most 60 s.

# %%
# %%writefile work/fsdp.py
"""Fully sharded data parallelism: each rank holds its share of each layer, and gathers the rest."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from mlp import Adam, backward, forward, loss_and_error


class FSDP:
    """A network of which each rank holds a share: of weights, gradients, Adam's states."""

    def __init__(self, ranks, weights):
        self.ranks, self.shapes = ranks, [weight.shape for weight in weights]
        self.shares = [np.array(self.cut(weight)[ranks.rank]) for weight in weights]
        self.states = [Adam(share.size) for share in self.shares]
        self.sender = ThreadPoolExecutor(1)  # a second thread, which waits for the network

    def cut(self, whole):
        """Return an array as rows of equal length, one for each rank, with zeros behind its end."""
        share = math.ceil(whole.size / self.ranks.size)
        padded = np.zeros((self.ranks.size, share), np.float32)
        padded.reshape(-1)[: whole.size] = whole.reshape(-1)
        return padded

    def gather(self, layer):
        """Return the whole weights of a layer, of which every rank has `self.shares[layer]`."""
        ### BEGIN SOLUTION
        share, shape = self.shares[layer], self.shapes[layer]
        whole = np.empty(self.ranks.size * share.size, np.float32)
        self.ranks.Allgather(share, whole)
        return whole[: math.prod(shape)].reshape(shape)
        ### END SOLUTION

    def scatter(self, gradient):
        """Return this rank's share of the mean over all ranks of a layer's gradient."""
        ### BEGIN SOLUTION
        parts = self.cut(gradient)
        mine = np.empty(parts.shape[1], np.float32)
        self.ranks.Reduce_scatter_block(parts, mine)
        return mine / self.ranks.size
        ### END SOLUTION

    def step(self, x, target):
        """Train by one step on this rank's rows; return their loss."""
        outputs, last = [x], len(self.shapes) - 1
        coming = self.sender.submit(self.gather, 0)
        for layer in range(last + 1):
            weight = coming.result()
            if layer < last:  # the next one travels while this one computes
                coming = self.sender.submit(self.gather, layer + 1)
            outputs.append(forward(weight, outputs[-1]))
        loss, error = loss_and_error(outputs[-1], target)
        scattered = {}
        for layer in reversed(range(last + 1)):
            if layer < last:
                weight = coming.result()
            if layer > 0:
                coming = self.sender.submit(self.gather, layer - 1)
            gradient, error = backward(weight, outputs[layer], outputs[layer + 1], error)
            scattered[layer] = self.sender.submit(self.scatter, gradient)
        for layer, share in scattered.items():
            self.states[layer].update(self.shares[layer], share.result())
        return loss


# %% tags=["nbval-check-output"]
fsdp = check(4, "work/fsdp.py")

# %%
_ = (work / "own_fsdp.py").write_text(Path(fsdp).read_text())

# %% [markdown]
# ### Do all three learn the same?
#
# And what does each rank hold? NumPy tells Python's `tracemalloc` of each array, so it can be counted to the byte: "at
# the most" is the largest sum within a step. The batch is the same in all runs, however many ranks share it.

# %%
DDP = f"DDP:{4 * LAYER_BYTES}"  # four layers in a bucket
WAYS = {"DDP": DDP, "ZeRO-1": "ZeRO-1", "FSDP": "FSDP"}
memory, losses = {}, {}
print("The memory of three ways: about 3 s each", flush=True)
for n in COUNTED:
    for name, way in WAYS.items():
        found = measure(n, way, memory=True, rows=8 // n, rounds=1)
        memory[name, n] = [found[what] / (BYTES / 4) for what in ("held", "most")]
        losses[name, n] = found[way]["losses"]

# %%
reference = losses["DDP", COUNTED[0]]
apart = max(abs(a / b - 1) for each in losses.values() for a, b in zip(each, reference))
print(f"losses of all ways, on {COUNTED} ranks: apart by {apart:.0e} at most, relative")
FORMULAS = {
    "DDP": (lambda n: 16.0, "16"),
    "ZeRO-1": (lambda n: 8 + 8 / n, "8 + 8/n"),
    "FSDP": (lambda n: 16 / n, "16/n"),
}
rows = [
    (name, str(n), f"{formula}", f"{held:.1f}", f"{FORMULAS[name][0](n):.1f}", f"{most:.1f}")
    for name, (_, formula) in FORMULAS.items()
    for n in COUNTED
    for held, most in [memory[name, n]]
]
heads = ("", "ranks", "formula", "after a step", "formula's bytes", "at the most")
display(markdown.table(heads, rows))
results.compare_guess(2, Measured(memory["ZeRO-1", COUNTED[-1]][1], unit="bytes", digits=1))

# %% [markdown]
# Bytes for each weight. "After a step", ZeRO-1 holds what the formula says. DDP and FSDP have dropped their gradients
# by then, 4 and 4/n bytes. "At the most" has what lasts for a moment only, which the formulas leave out: DDP's buckets
# on their way, ZeRO-1's share of the means (4/n), and FSDP's whole layers, up to two of weights and a few of gradients.
# These are as many bytes on any number of ranks; this network has few layers, so that they count.
#
# ### What is on the wire?
#
# The bytes that a node's interface sends in a step, against the formulas. (FSDP gathers the last layer once: its
# weights are still there when the backward pass begins.)

# %%
SENT = {
    "DDP": lambda n: 2 * (n - 1) / n,
    "ZeRO-1": lambda n: 2 * (n - 1) / n,
    "FSDP": lambda n: (3 - 1 / LAYERS) * (n - 1) / n,
}
sent = {}
for n in () if no_wires else [n for n in COUNTED if n > 1]:
    print(f"{n} nodes: about 10 s", flush=True)
    with Testbed(n, "1 Gbit/s") as wires:
        found = measure(n, *WAYS.values(), wires=wires, rows=8 // n, rounds=2)
    sent |= {(name, n): found[way]["sent"] / BYTES for name, way in WAYS.items()}
rows = [
    (name, str(n), f"{SENT[name](n):.3f}", f"{times:.3f}", f"{times / SENT[name](n) - 1:+.1%}")
    for name in WAYS
    for n, times in ((n, times) for (way, n), times in sent.items() if way == name)
]
if rows:
    heads = ("", "nodes", "formula, × the weights", "measured", "headers and the rest")
    display(markdown.table(heads, rows))
    same = abs(sent["ZeRO-1", 2] / sent["DDP", 2] - 1) < 0.03
    less = "less" if sent["ZeRO-1", 2] < sent["DDP", 2] else "more"
    results.compare_guess(3, "the same" if same else less)

# %% [markdown]
# ### When is it hidden?
#
# DDP sends two times (n − 1)/n of the bytes, and hides them behind the backward pass, two thirds of the computing. FSDP
# sends three times as much, and hides it behind all of it. Two over two thirds, and three over one: what do you expect?
#
# `fsdp_seconds` goes through a step as `ddp_seconds` did, with the core's part of a gather and of a scatter. One thread
# sends and receives, in the order in which `step` asks for it.


# %%
def fsdp_seconds(rate, parts, n=2):
    """Return the predicted seconds of a step of FSDP."""
    costs = {what: parts.get(what, NOTHING) for what in ("gather", "scatter")}
    on_wire = parts["start"] + (n - 1) / n * LAYER_BYTES * 8 / rate
    travel = {what: max(copies + on_wire, core) for what, (copies, core, _) in costs.items()}
    slows = {what: taken for what, (_, _, taken) in costs.items()}
    forward, backward = parts["forward"] / LAYERS, parts["backward"] / LAYERS
    now, last = 0.0, LAYERS - 1
    wire_free = here = travel["gather"]  # `here`: when the weights that come next are there
    for layer in range(LAYERS):
        now = max(now, here)
        if layer < last:
            wire_free = here = max(wire_free, now) + travel["gather"]
            now += slows["gather"]
        now += forward
    for layer in reversed(range(LAYERS)):
        if layer < last:
            now = max(now, here) + slows["scatter"]  # of the layer behind it
        if layer > 0:
            wire_free = here = max(wire_free, now) + travel["gather"]
            now += slows["gather"]
        now += backward
        wire_free = max(wire_free, now) + travel["scatter"]  # its gradient
    return max(now, wire_free) + parts["update"] / n


if hidden:
    computing = parts["forward"] + parts["backward"]
    hidden["FSDP"] = 8 * SENT["FSDP"](2) * BYTES / computing
    for name, rate in hidden.items():
        print(f"{name}'s sending takes as long as what can hide it at {show_rate(rate)}")
    same = abs(hidden["DDP"] / hidden["FSDP"] - 1) < 0.05
    first = "DDP's" if hidden["DDP"] > hidden["FSDP"] else "FSDP's"
    results.compare_guess(4, "both at the same rate" if same else first)

# %% [markdown]
# Both ways on wires of half that rate, of that rate, and of four times as much:

# %%
factors = (1,) if QUICK else (0.5, 1, 4)
rates = [min(factor * hidden["FSDP"], MAX_RATE) for factor in factors] if hidden else []
found_at = {}
with load.watch("section 4") as step_others:
    for rate in rates:
        print(f"wires of {show_rate(rate)}: about 20 s", flush=True)
        with Testbed(2, rate) as wires:
            found_at[rate] = measure(2, "alone", DDP, "FSDP", wires=wires)

# %%
step_ms, foreseen = {}, {}  # by rate and way; predictions by the wire, and with the core
for rate, found in found_at.items():
    known = (parts_of(found), parts_of(found) | core_of(found))
    foreseen[rate, "DDP"] = [1e3 * ddp_seconds(4, rate, parts) for parts in known]
    foreseen[rate, "FSDP"] = [1e3 * fsdp_seconds(rate, parts) for parts in known]
    for name, way in (("nothing sent", "alone"), ("DDP", DDP), ("FSDP", "FSDP")):
        step_ms[rate, name] = milliseconds(found[way]["seconds"])
rows = [
    (show_rate(rate), name, *(f"{ms:.0f}" for ms in predicted), str(step_ms[rate, name]))
    for (rate, name), predicted in foreseen.items()
]
of_fsdp = {}  # how many times as fast FSDP's steps are as DDP's, by rate
if found_at:
    heads = ("wire", "way", "by the wire, ms", "wire and core, ms", "measured")
    display(markdown.table(heads, rows))
for rate, found in found_at.items():
    of_fsdp[rate] = ratio(*(1 / np.array(found[way]["seconds"]) for way in ("FSDP", DDP)))
    by_wire, with_core = np.divide(foreseen[rate, "DDP"], foreseen[rate, "FSDP"])
    print(f"{show_rate(rate)}: FSDP {of_fsdp[rate]} times as fast as DDP")
    print(f"    predicted: {by_wire:.2f} by the wire, {with_core:.2f} by wire and core")

# %% jupyter={"source_hidden": true}
if found_at:
    figure, axes = plt.subplots(
        1, len(rates), figsize=(4.5 * len(rates), 4), sharey=True, squeeze=False
    )
    for axis, rate in zip(axes[0], rates):
        both = [(rate, name) for name in ("DDP", "FSDP")]
        alone = step_ms[rate, "nothing sent"]
        predicted = zip(*(foreseen[each] for each in both))
        by_name = dict(zip(("the wire", "wire and core"), predicted))
        draw_steps(axis, ("DDP", "FSDP"), [step_ms[each] for each in both], by_name, alone)
        axis.set_title(show_rate(rate))
    axes[0][0].set_ylabel("time of a step (ms)")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle("Steps of DDP and FSDP on two nodes, with 95% intervals")
    told = "; ".join(
        f"{show_rate(rate)}, {name}: {step_ms[rate, name]}, predicted {wire:.0f} by the wire"
        f" and {both:.0f} by wire and core"
        for (rate, name), (wire, both) in foreseen.items()
    )
    plots.show(figure, alt=f"Time of a step. {told}.", keep=results, watched=[step_others])

# %% [markdown]
# By the wire alone, both ways stop hiding at the same rate, nearly: FSDP sends half as much again, and has half as much
# again to hide it behind. So on a fast network its memory would cost nothing, and on a wire so slow that hardly
# anything is hidden, the price would be the half more.
#
# With the core, that may change. FSDP sends more messages and copies whole layers twice, and where a rank has one core,
# that core does it. Which of the two predictions do your intervals agree with?

# %% [markdown]
# ## 5 · Which one?
#
# ### Exercise 5 · Choose
#
# Write `choose(parameters, memory, ranks, rate, seconds)`: for a network of so many parameters in float32 with Adam, on
# ranks with `memory` bytes each, wires of `rate` bits/s for each rank, and `seconds` of computing in a step. Leave out
# what lasts for a moment only, and activations. The bytes that a rank holds, and sends in a step, for each parameter:
#
# | | holds | sends |
# | --- | --- | --- |
# | `"DDP"` | 16 | 2(n − 1)/n · 4 |
# | `"ZeRO-1"` | 8 + 8/n | 2(n − 1)/n · 4 |
# | `"FSDP"` | 16/n | 3(n − 1)/n · 4 |
#
# Take a step to last as long as the longer of the two, computing and sending. Return a pair: the first way of the table
# that fits into the memory, and the seconds of its step. If none fits, return `None`.


# %%
def choose(parameters, memory, ranks, rate, seconds):
    """Return the first way that fits and the seconds of its step, or None."""
    ### BEGIN SOLUTION
    n = ranks
    for way, held, passes in (("DDP", 16, 2), ("ZeRO-1", 8 + 8 / n, 2), ("FSDP", 16 / n, 3)):
        if parameters * held <= memory:
            sending = passes * (n - 1) / n * 4 * parameters * 8 / rate
            return way, max(seconds, sending)
    return None
    ### END SOLUTION


# %% tags=["nbval-check-output"]
choose = check(5, choose)

# %% tags=["nbval-check-output"]
# What, parameters, bytes of memory a rank, ranks, bits/s, seconds of computing in a step.
CASES = (
    ("ResNet-50, 4 nodes, 10 Gbit/s", 25.6e6, 16e9, 4, 10e9, 2),
    ("1 billion, 4 nodes, 10 Gbit/s", 1e9, 16e9, 4, 10e9, 10),
    ("1 billion, 4 nodes of 12 GB", 1e9, 12e9, 4, 10e9, 10),
    ("7 billion, 8 ranks of 24 GB, 100 Gbit/s", 7e9, 24e9, 8, 100e9, 5),
    ("7 billion, 8 ranks of 24 GB, 10 Gbit/s", 7e9, 24e9, 8, 10e9, 5),
    ("70 billion, 8 ranks of 80 GB, 400 Gbit/s", 70e9, 80e9, 8, 400e9, 10),
)
for what, *case in CASES:
    chosen = choose(*case)
    told = f"{chosen[0]}, {chosen[1]:.1f} s a step" if chosen else "does not fit"
    print(f"{what:42}{told}")

# %% [markdown]
# Seven billion parameters on 8 ranks of 24 GB, as a sum on paper: DDP holds 112 GB on each rank, ZeRO-1 63, FSDP 14.
# With 10 Gbit/s, FSDP sends for nearly a minute: then larger batches or
# [**gradient accumulation**](../docs/glossary.md#gradient-accumulation) give the wire more computing to hide behind
# (lab 08, section 8), or weights travel in bfloat16. Seventy billion don't fit even so: more ranks,
# [**tensor parallelism**](../docs/glossary.md#tensor-parallelism) (lab 10, section 7), or a pipeline.
#
# ## 6 · A pipeline
#
# In [**pipeline parallelism**](../docs/glossary.md#pipeline-parallelism), each rank has some of the layers, and passes
# its outputs on. Only activations travel, and those are few bytes. But while the first rank computes, the others wait.
# So the batch is cut into *m* micro-batches that follow each other (GPipe, Huang et al. 2019,
# [arXiv 1811.06965](https://arxiv.org/abs/1811.06965)). With *p* ranks, the share of the time in which a rank waits,
# the *bubble*, is (p − 1)/(m + p − 1).
#
# Stages sleep here instead of computing, so that four of them need no four cores. What is measured is the waiting.

# %%
# %%writefile work/pipeline.py
"""Time a pipeline whose stages sleep in place of computing: python work/pipeline.py --help"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

RANKS = MPI.COMM_WORLD
BEFORE, AFTER = RANKS.rank - 1, RANKS.rank + 1


def stage(source, goal, seconds):
    """Receive a micro-batch, compute, send on; the first stage takes none, the last sends none."""
    rows = np.zeros(1000, np.float32)
    if 0 <= source < RANKS.size:
        RANKS.Recv(rows, source)
    time.sleep(seconds)
    if 0 <= goal < RANKS.size:
        RANKS.Send(rows, goal)


def step(count, forward_s):
    """Train one step of so many micro-batches: all forward, then all backward (GPipe)."""
    for _ in range(count):
        stage(BEFORE, AFTER, forward_s)
    for _ in range(count):
        stage(AFTER, BEFORE, 2 * forward_s)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", help="micro-batches in a step")
    parser.add_argument("--forward", type=float, help="seconds of a stage, forward")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", default="work/pipeline.json")
    args = parser.parse_args()
    seconds = {count: [] for count in args.counts}
    for _ in range(args.rounds):
        for count in args.counts:
            RANKS.Barrier()
            begin = time.perf_counter()
            step(count, args.forward)
            seconds[count].append(RANKS.allreduce(time.perf_counter() - begin, MPI.MAX))
    if RANKS.rank == 0:
        Path(args.out).write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()


# %%
bubbles = {}
print(f"{len(STAGES)} pipelines, about 10 s each", flush=True)
for p in STAGES:
    run_ranks(
        p,
        "work/pipeline.py",
        *("--counts", *MICRO_BATCHES, "--forward", STAGE_S, "--rounds", PIPELINE_ROUNDS),
        env={"MPIR_CVAR_ENABLE_HEAVY_YIELD": 1, "MPIR_CVAR_POLLS_BEFORE_YIELD": 10},
        threads=1,
        show=False,
    )
    for count, seconds in json.loads((work / "pipeline.json").read_text()).items():
        busy = 3 * STAGE_S * int(count)  # forward and backward of all micro-batches
        bubbles[p, int(count)] = 1 - busy / float(np.median(seconds))


def simulated_bubble(p, m):
    """Return the share of the time that a rank waits, micro-batch by micro-batch."""
    free = [0.0] * p  # when each stage is done with what it has
    for order, spent in ((range(p), 1), (range(p)[::-1], 2)):
        for _ in range(m):
            arrives = 0.0
            for stage in order:
                arrives = free[stage] = max(free[stage], arrives) + spent
    return 1 - 3 * m / max(free)


rows = [
    (str(p), str(m), f"{(p - 1) / (m + p - 1):.0%}", f"{simulated_bubble(p, m):.0%}", f"{got:.0%}")
    for (p, m), got in bubbles.items()
]
display(markdown.table(("ranks", "micro-batches", "formula", "simulated", "measured"), rows))

# %% [markdown]
# The measured bubble has what the formula leaves out: messages, and that a sleep ends late. Many micro-batches make the
# bubble small. What do they cost? (Each is a smaller product: lab 02 shows what that does to speed. And the outputs of
# all of them are kept until the backward pass.)

# %% [markdown]
# ## 7 · The same in PyTorch
#
# Now train the same network, on the same data, in PyTorch. `DistributedDataParallel` wraps the whole network.
# `fully_shard`, the second version of FSDP, wraps each layer. Both send through *Gloo*, PyTorch's library for CPUs; on
# GPUs they would use NCCL. Read `wrap` and `train_step`: where are your buckets, your `gather` and your `scatter`?
#
# | option | what it changes |
# | --- | --- |
# | `bucket_cap_mb=4` | DDP's buckets hold 4 MiB; the default is 25 |
# | `no_sync()` | DDP adds up the gradients of several micro-batches and averages the sum once |
# | `set_requires_gradient_sync(False)` | the same for FSDP |
# | `reshard_after_forward=False` | FSDP keeps the gathered weights until the backward pass |
# | `MixedPrecisionPolicy` | FSDP computes and sends in bfloat16; its shards stay in float32 |
#
# PyTorch is not one of the labs' packages. `./lab setup --torch` installs its build for CPUs (1 GB). If it is missing,
# this section shows what other machines measured.

# %% jupyter={"source_hidden": true}
BYTES_ROWS = {
    way: f"PyTorch, {way}, 2 nodes: sent per step, × the weights" for way in ("DDP", "FSDP")
}
BUCKET_ROW = "PyTorch, DDP: buckets of 4 vs 25 MiB, steps per second"
FSDP_ROW = "PyTorch, FSDP vs DDP, steps per second"
THREADS_ROW = "PyTorch, one rank: all cores vs torchrun's 1 thread"
SCRIPT_ROW = "PyTorch's DDP vs Horovod, lab 07's script, images/s"
TORCH_ROWS = [
    (name, "") for name in (*BYTES_ROWS.values(), BUCKET_ROW, FSDP_ROW, THREADS_ROW, SCRIPT_ROW)
]
torch_rows = {}  # by name: figure, limit, watches


def conclude(what, times):
    """Return a line with a ratio, its record by rank, and the verdict."""
    record = f", {times.record}" if times.record else ""
    return f"{what}: {times}×{record}: {times.verdict}"


no_torch = torch_ranks.obstacle()
if no_torch:
    print(f"Not here: {no_torch}")
    elsewhere = table_of_machines("11", about="PyTorch")
    display(Markdown(elsewhere or "docs/other-machines.md has no results of other machines yet."))

# %%
# %%writefile work/in_torch.py
"""The network of mlp.py in PyTorch, wrapped in several ways, and a training step."""

import contextlib

import torch
from mlp import random_weights
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
WAYS = {  # the wrapper, its options, micro-batches in a step, whether each of them is averaged
    "nothing sent": (None, {}, 1, True),
    "DDP": ("DDP", {}, 1, True),
    "DDP, bucket_cap_mb=4": ("DDP", {"bucket_cap_mb": 4}, 1, True),
    "DDP, 4 micro-batches": ("DDP", {}, 4, True),
    "DDP, 4 micro-batches, no_sync": ("DDP", {}, 4, False),
    "FSDP": ("FSDP", {}, 1, True),
    "FSDP, reshard_after_forward=False": ("FSDP", {"reshard_after_forward": False}, 1, True),
    "FSDP, bfloat16": ("FSDP", {"mp_policy": BF16}, 1, True),
    "FSDP, 4 micro-batches": ("FSDP", {}, 4, True),
    "FSDP, 4 micro-batches, no sync": ("FSDP", {}, 4, False),
}


def network(layers, width):
    """Return the network of mlp.py; PyTorch stores a layer's weights as (out, in)."""
    parts = []
    for weight in random_weights(layers, width):
        linear = nn.Linear(width, width, bias=False)
        linear.weight.data.copy_(torch.from_numpy(weight.T))
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts)


def wrap(model, wrapper, options):
    """Return the model as a rank trains it."""
    if wrapper == "DDP":
        return DistributedDataParallel(model, **options)
    if wrapper == "FSDP":
        for part in model:
            if isinstance(part, nn.Linear):
                fully_shard(part, **options)
        fully_shard(model, **options)
    return model


def averaging(model, wanted):
    """Return a context in which `backward` averages gradients, or only adds them up."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(wanted)
    elif isinstance(model, DistributedDataParallel) and not wanted:
        return model.no_sync()
    return contextlib.nullcontext()


def train_step(model, optimizer, x, target, count, each):
    """Train by one step of `count` micro-batches; return this rank's loss."""
    total = 0.0
    for number in range(count):
        rows = slice(number, None, count)
        with averaging(model, each or number == count - 1):
            loss = ((model(x[rows]) - target[rows]) ** 2).mean() / 2 / count
            loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return total


# %% jupyter={"source_hidden": true}
# %%writefile work/torch_steps.py
"""Count the bytes and the memory of each way, then time steps: python work/torch_steps.py --help"""

import argparse
import ctypes
import gc
import json
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from in_torch import WAYS, network, train_step, wrap
from mlp import share_of_batch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from labkit.testbed import traffic


class Mallinfo(ctypes.Structure):
    """What the C library has allocated: mallinfo2(3)."""

    _fields_ = [(f"field{number}", ctypes.c_size_t) for number in range(10)]


LIBC = ctypes.CDLL(None)
LIBC.mallinfo2.restype = Mallinfo


def allocated():
    """Return the bytes in use: of malloc's heap, and of large blocks with mappings of their own."""
    info = LIBC.mallinfo2()
    return info.field7 + info.field4


class Peak:
    """The most bytes in use within a `with` block, sampled every tenth of a millisecond."""

    def __enter__(self):
        self.bytes, self.open = allocated(), True
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while self.open:
            self.bytes = max(self.bytes, allocated())
            time.sleep(1e-4)

    def __exit__(self, *_):
        self.open = False
        self.thread.join()


def reduce(value, operation=dist.ReduceOp.SUM):
    """Return the sum of the ranks' values, or what else the operation makes of them."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total, op=operation)
    return total.item()


def build(args, way):
    """Return the wrapped network and its optimizer."""
    model = wrap(network(args.layers, args.width), *WAYS[way][:2])
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def batch(args, rows, number):
    """Return this rank's inputs and targets for a step."""
    place = dist.get_rank(), dist.get_world_size()
    return map(torch.from_numpy, share_of_batch(rows, args.width, number, *place))


def count(args, way):
    """Return the losses, and of the last step the bytes sent, DDP's buckets, the peak of memory."""
    bucket_bytes, losses = [], []

    def average_and_note(group, bucket):
        bucket_bytes.append(bucket.buffer().nbytes)
        return allreduce_hook(group, bucket)

    gc.collect()
    empty = allocated()
    model, optimizer = build(args, way)
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(dist.group.WORLD, average_and_note)
    for number in range(args.count):
        bucket_bytes.clear()
        dist.barrier()
        before = traffic().sent if args.wires else 0
        with Peak() as peak:
            loss = train_step(model, optimizer, *batch(args, args.few, number), *WAYS[way][2:])
        dist.barrier()
        sent = traffic().sent - before if args.wires else 0
        losses.append(reduce(loss) / dist.get_world_size())
    return {
        "losses": losses,
        "sent": reduce(sent) / dist.get_world_size(),  # bytes per rank
        "most": reduce(peak.bytes - empty, dist.ReduceOp.MAX),
        "buckets": bucket_bytes,
    }


def time_steps(args):
    """Return the seconds of a step in each round, on the slowest rank, by way."""
    models = {way: build(args, way) for way in args.timed}
    seconds = {way: [] for way in models}
    x, target = batch(args, args.rows, 0)
    for turn in range(-1, args.rounds):  # the first does not count
        for way, (model, optimizer) in models.items():
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(args.steps):
                train_step(model, optimizer, x, target, *WAYS[way][2:])
            slowest = reduce((time.perf_counter() - begin) / args.steps, dist.ReduceOp.MAX)
            seconds[way] += [slowest] * (turn >= 0)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--layers", type=int)
    add("--width", type=int)
    add("--few", type=int, help="rows of each rank, in a step that is counted")
    add("--count", type=int, help="steps that are counted")
    add("--rows", type=int, help="rows of each rank, in a step that is timed")
    add("--rounds", type=int, help="of all ways, alternating")
    add("--steps", type=int, help="of a way in a round")
    add("--timed", nargs="*", default=[], help="the ways to time")
    add("--wires", action="store_true", help="count what the node's interface sends")
    add("--out", default="work/torch_steps.json")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    counted = {way: count(args, way) for way in WAYS}
    results = {"counted": counted, "seconds": time_steps(args)}
    if dist.get_rank() == 0:
        Path(args.out).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()


# %% [markdown]
# ### What each way sends
#
# Count first, on paper. In a step, how often is each weight gathered, and how often is its gradient averaged? With
# Gloo, an average costs 2(n − 1)/n of the bytes also under FSDP: PyTorch implements reduce-scatter on Gloo as an
# all-reduce (`ProcessGroupGloo.cpp`). With NCCL it would be half of that.

# %%
PASSES = {  # how often a weight is gathered and its gradient averaged in a step; bytes of each
    "DDP": (0, 1, 4),
    "DDP, bucket_cap_mb=4": (0, 1, 4),
    "DDP, 4 micro-batches": (0, 4, 4),
    "DDP, 4 micro-batches, no_sync": (0, 1, 4),
    "FSDP": (2, 1, 4),
    "FSDP, reshard_after_forward=False": (1, 1, 4),
    "FSDP, bfloat16": (2, 1, 2),
    "FSDP, 4 micro-batches": (8, 4, 4),
    "FSDP, 4 micro-batches, no sync": (8, 1, 4),
}
TIMED = ["nothing sent", "DDP", "DDP, bucket_cap_mb=4", "FSDP"]
if {"BF16", "AMX"} & set(machine.isa):  # other CPUs emulate bfloat16, slowly
    TIMED.append("FSDP, bfloat16")
sizes = dict(layers=LAYERS, width=WIDTH, rows=ROWS, rounds=TORCH_ROUNDS, steps=TORCH_STEPS)
in_torch = None
with load.watch("section 7, PyTorch") as torch_others:
    if not no_torch and not no_wires:
        print("PyTorch on 2 nodes, ten ways: about 35 s", flush=True)
        torch_rate = min(hidden["DDP"], MAX_RATE)
        flags = [f"--{name}={value}" for name, value in sizes.items()]
        flags += ["--few=4", "--count=2", "--wires", "--timed", *TIMED]
        with Testbed(2, torch_rate) as wires:
            env = torch_ranks.variables(wires)
            program = ("work/torch_steps.py", *flags)
            run_ranks(2, *program, threads=1, env=env, network=wires, show=False)
        in_torch = json.loads((work / "torch_steps.json").read_text())

# %% jupyter={"source_hidden": true}
sent_in_torch = {}
if in_torch:
    rows, byte_predictions = [], []
    for way, (gathers, averages, size) in PASSES.items():
        count = in_torch["counted"][way]
        mine = losses[way.partition(",")[0], 2]
        apart = max(abs(a / b - 1) for a, b in zip(count["losses"], mine))
        sent_in_torch[way] = Measured(count["sent"] / BYTES, unit="×")
        by_formula = (gathers + 2 * averages) / 2 * size / 4  # (n - 1)/n is a half
        byte_predictions.append(Prediction(way, by_formula, sent_in_torch[way]))
        most = f"{count['most'] / (BYTES / 4):.1f}"
        rows.append((way, f"{by_formula:.2f}", f"{sent_in_torch[way]}", most, f"{apart:.0e}"))
        if way in BYTES_ROWS:
            torch_rows[BYTES_ROWS[way]] = (sent_in_torch[way], f"{by_formula:.2f}× by the formula")
    heads = ("", "sent, × the weights: formula", "counted", "bytes per weight, at most")
    display(markdown.table((*heads, "losses differ from yours by"), rows))
    print(f"Bytes: {score(byte_predictions)}.")

# %% [markdown]
# If the last column stays near the rounding of float32, 1e-7, PyTorch learns what yours learns; bfloat16 rounds more.
# Three pairs of rows matter when you train large models:
#
# - **FSDP and `reshard_after_forward=False`.** One gather less, for all weights in memory during the backward pass. It
#   suits models that fit.
# - **DDP with and without `no_sync`.** Micro-batches that are only added up send nothing.
# - **FSDP with and without its "no sync".** Only averages are saved: each micro-batch still gathers twice. And until
#   the last one, each rank holds *whole* gradients. Compare the memory.
#
# ### Does DDP hide anything?
#
# DDP's buckets hold 25 MiB by default. What would your function of exercise 1 make of that, and what did PyTorch make?

# %%
if in_torch:
    own_buckets = buckets([LAYER_BYTES] * LAYERS, 25 * 2**20)
    print(f"your buckets at 25 MiB: {[len(each) for each in own_buckets]} layers")
    for way in ("DDP", "DDP, bucket_cap_mb=4"):
        megabytes = [f"{size / 1e6:.1f}" for size in in_torch["counted"][way]["buckets"]]
        print(f"{way}: {', '.join(megabytes)} MB")

# %% [markdown]
# Unless you set the size, DDP makes one exception: its first bucket holds 1 MiB. All other gradients of this network
# fit into one bucket, which is complete only when the backward pass is over, as in section 2. So before you change
# anything else in a DDP script, divide its gradients' bytes by 25 MiB. How long do the steps take?


# %% jupyter={"source_hidden": true}
def mean_ms(seconds):
    """Return the mean of rounds in ms, with its 95% interval."""
    mean, half = interval(np.asarray(seconds))
    return Measured(1e3 * mean, 1e3 * (mean - half), 1e3 * (mean + half), "ms", digits=0)


if in_torch:
    step_seconds = {way: np.array(each) for way, each in in_torch["seconds"].items()}
    rows = []
    for way, each in step_seconds.items():
        texts = "–", "–", "–"
        if way in sent_in_torch:
            on_wire = 8e3 * sent_in_torch[way].value * BYTES / torch_rate
            added = mean_ms(each - step_seconds["nothing sent"])
            hides = "nothing" if added.low >= on_wire else "not certain"
            if added.high < on_wire:
                hides = f"{1 - added.value / on_wire:.0%} of it"
            texts = f"{on_wire:.0f} ms", str(added), hides
        rows.append((way, str(mean_ms(each)), *texts))
    heads = (
        f"two nodes, {show_rate(torch_rate)}",
        "step",
        "on the wire",
        "adds to a step",
        "hides",
    )
    display(markdown.table(heads, rows))
    for name, faster, slower in (
        (BUCKET_ROW, "DDP, bucket_cap_mb=4", "DDP"),
        (FSDP_ROW, "FSDP", "DDP"),
    ):
        times = ratio(1 / step_seconds[faster], 1 / step_seconds[slower])
        print(conclude(f"{faster} vs {slower}", times))
        torch_rows[name] = (Measured(*times, "×"), "", torch_others)

# %% [markdown]
# What a way adds to a step, beyond the step in which nothing is sent, includes what the core spends on sending. If that
# is less than the time on the wire, the rest is hidden.
#
# PyTorch's FSDP overlaps its transfers on the streams of a GPU. On a CPU it calls Gloo and waits, for each gather and
# each reduce-scatter. Yours, with a second thread, does not wait. So FSDP's row says little about its speed on GPUs.
#
# ### torchrun, and its one thread
#
# So far, `run_ranks` started the ranks and set their `RANK` and `WORLD_SIZE`. Elsewhere
# [**torchrun**](../docs/glossary.md#torchrun) does that. With two or more ranks on a node, it also sets
# `OMP_NUM_THREADS` to 1, unless you set it, and prints a warning that is easily missed. (Its store listens on *all*
# addresses of a machine, without asking who connects. Here the kit keeps it on loopback.)

# %% jupyter={"source_hidden": true}
# %%writefile work/torch_threads.py
"""Report each rank's threads; on rank 0, time steps with 1 thread and with --threads."""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from in_torch import network, train_step
from mlp import share_of_batch

parser = argparse.ArgumentParser(description=__doc__)
for name in ("layers", "width", "rows", "rounds", "threads"):
    parser.add_argument(f"--{name}", type=int)
args = parser.parse_args()
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {size}: torch.get_num_threads() is {torch.get_num_threads()}")
if rank == 0:
    model = network(args.layers, args.width)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x, target = map(torch.from_numpy, share_of_batch(args.rows, args.width, 0, 0, 1))
    seconds = {1: [], args.threads: []}
    for _ in range(args.rounds + 1):  # the first does not count
        for threads, each in seconds.items():
            torch.set_num_threads(threads)
            begin = time.perf_counter()
            train_step(model, optimizer, x, target, 1, True)
            each.append(time.perf_counter() - begin)
    rounds = {threads: each[1:] for threads, each in seconds.items()}
    Path("work/torch_threads.json").write_text(json.dumps(rounds))
dist.barrier()
dist.destroy_process_group()

# %%
if not no_torch:
    cores = machine.usable_cores
    flags = [f"--{name}={sizes[name]}" for name in ("layers", "width", "rows", "rounds")]
    print("torchrun --nproc-per-node=2 work/torch_threads.py …: about 10 s", flush=True)
    with load.watch("section 7, torchrun") as torchrun_others:
        program = ("work/torch_threads.py", *flags, f"--threads={cores}")
        lines = torch_ranks.torchrun(2, *program).lines
    print(*sorted(filter(None, lines)), sep="\n")
    print(f"With {cores} cores, 2 ranks could use {max(1, cores // 2)} each.")
if not no_torch and cores > 1:
    by_threads = json.loads((work / "torch_threads.json").read_text())
    times = ratio(*(1 / np.array(by_threads[str(number)]) for number in (cores, 1)))
    print(conclude(f"a rank that owns them all, {cores} threads vs 1", times))
    torch_rows[THREADS_ROW] = (Measured(*times, "×"), f"{cores}×: the cores", torchrun_others)

# %% [markdown]
# If torchrun's default fits the ranks and cores above, it costs nothing here. A rank with more than one core, such as a
# rank per socket, loses up to the factor in the last line. So write `OMP_NUM_THREADS=…` before `torchrun`: physical
# cores over ranks.
#
# ### Horovod or DDP?
#
# Finally, lab 07's script. The next cell, folded, is its `train_hvd.py` in PyTorch: the same arguments, network,
# digits, warm-up, checkpoints. Comments that begin with `# DDP:` mark the six steps. Compare the two: which of your
# lines became shorter, and which remain?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The same network on two ranks with one thread each: which script trains faster?
#
# </div>

# %%
results.guess(5, "lab 07's script", ..., choices=("Horovod", "DDP", "no difference"))

# %% jupyter={"source_hidden": true}
# %%writefile work/mnist_ddp.py
"""Train the MNIST CNN on some ranks: torchrun --nproc-per-node 2 work/mnist_ddp.py --help"""

import argparse
import json
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit.data import load_digits


def start_up(description, argv):
    """Return the arguments of the command line, and the digits."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--digits", type=int, default=8000, help="how many to train on, over all ranks")
    add("--epochs", type=int, default=6)
    add("--batch", type=int, default=64, help="digits in a step, of each rank")
    add("--lr", type=float, default=0.01, help="learning rate that suits one rank")
    add("--warmup", type=int, default=2, help="epochs until the full learning rate")
    add("--out", type=Path, default=Path("work/run"), help="folder of log and checkpoint")
    add("--resume", action="store_true", help="continue from the checkpoint in --out")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    return args, load_digits(n_train=args.digits, n_test=args.digits // 4)


def mnist_cnn(seed):
    """Return the CNN of lab 07: (n, 1, 28, 28) in 0..1 → (n, 10) logits; 421,642 weights."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    for weights in model.parameters():  # start as Keras does
        if weights.ndim > 1:
            nn.init.xavier_uniform_(weights)
        else:
            nn.init.zeros_(weights)
    return model


def own_share(images, labels, rank, size):
    """Return this rank's images and labels: equally many on each rank."""
    share = len(labels) // size
    mine = slice(rank * share, (rank + 1) * share)
    images = images[mine].transpose(0, 3, 1, 2)  # (n, 28, 28, 1) to PyTorch's (n, 1, 28, 28)
    return torch.from_numpy(images.copy()), torch.from_numpy(labels[mine])


def learning_rate(step, base, size, warmup):
    """Return the learning rate of a step, for a base rate that suits one rank."""
    if step >= warmup:
        return base * size
    return base * (1 + (size - 1) * step / warmup)


def batches(x, y, batch, steps, epoch):
    """Yield the images and labels of each step of an epoch, in a new order in each epoch."""
    order = np.random.default_rng(epoch).permutation(len(x))
    for step in range(steps):
        chosen = order[step * batch : (step + 1) * batch]
        yield x[chosen], y[chosen]


def load_checkpoint(args, rank, model, optimizer):
    """Load the checkpoint that rank 0 reads on all ranks; return the number of finished epochs."""
    if not args.resume:
        return 0
    # DDP: only rank 0 reads the checkpoint. The others get its contents by a broadcast.
    read = [torch.load(args.out / "checkpoint.pt") if rank == 0 else None]
    dist.broadcast_object_list(read, src=0)
    model.load_state_dict(read[0]["model"])
    optimizer.load_state_dict(read[0]["optimizer"])
    return read[0]["done"]


def save_checkpoint(args, model, optimizer, done):
    """Write the checkpoint atomically: if the run is killed meanwhile, the previous one is left."""
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
    torch.save(states, args.out / "checkpoint.part")
    (args.out / "checkpoint.part").replace(args.out / "checkpoint.pt")


def evaluate(model, x, y, loss):
    """Return the accuracy over all ranks' test digits, and the mean of their losses."""
    with torch.inference_mode():
        correct = (model(x).argmax(dim=1) == y).sum().item()
    # DDP: each rank tests its share, and a sum over the ranks gives one result for all.
    total = torch.tensor([correct, len(x), loss, 1.0], dtype=torch.float64)
    dist.all_reduce(total)
    return {"accuracy": (total[0] / total[1]).item(), "loss": (total[2] / total[3]).item()}


def spread(model):
    """Return the largest difference between two ranks in any weight: 0.0 if there is none."""
    highest = nn.utils.parameters_to_vector(model.parameters()).detach()
    lowest = highest.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    return (highest - lowest).max().item()


def train(args, digits, rank, size, make_model=mnist_cnn):
    """Train on all ranks; on rank 0, print and write the log."""
    # DDP: step 2. One device per rank: done by the launcher, which binds each rank to its cores.
    # DDP: step 3. This rank's share of the digits.
    x, y = own_share(digits.x_train, digits.y_train, rank, size)
    x_test, y_test = own_share(digits.x_test, digits.y_test, rank, size)
    steps = len(x) // args.batch

    model = make_model(seed=rank)  # different on each rank: step 5 fixes it
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    done = load_checkpoint(args, rank, model, optimizer)
    # DDP: steps 4 and 5. All start from rank 0's weights; `backward` averages the gradients.
    parallel = DistributedDataParallel(model)
    history = []
    for epoch in range(done, args.epochs):
        began = perf_counter()
        for step, (images, labels) in enumerate(batches(x, y, args.batch, steps, epoch)):
            # DDP: step 3 again. The learning rate follows the number of ranks.
            rate = learning_rate(epoch * steps + step, args.lr, size, args.warmup * steps)
            optimizer.param_groups[0]["lr"] = rate
            loss = nn.functional.cross_entropy(parallel(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds = perf_counter() - began
        speed = {"seconds": seconds, "images_per_second": steps * args.batch * size / seconds}
        means = evaluate(model, x_test, y_test, loss.item())
        history.append({"epoch": epoch + 1} | speed | means)
        # DDP: step 6. On rank 0 alone: the checkpoint, and a line.
        if rank == 0:
            save_checkpoint(args, model, optimizer, epoch + 1)
            line = "epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.3f}"
            print((line + ", {images_per_second:,.0f} images/s").format(**history[-1]))

    difference = spread(model)  # every rank takes part in it, rank 0 reports
    if rank == 0:
        print(f"largest difference between any two ranks' weights: {difference}")
        since_start = np.cumsum([entry["seconds"] for entry in history]).tolist()
        for entry, seconds in zip(history, since_start, strict=True):
            entry["seconds"] = seconds
        log = {"ranks": size, "spread": difference, "history": history}
        (args.out / "log.json").write_text(json.dumps(log))


def main(argv=None):
    """Read the command line, join the other ranks, train, and leave."""
    args, digits = start_up(__doc__, argv)
    # DDP: step 1. RANK and WORLD_SIZE, set by the launcher, number the processes.
    dist.init_process_group("gloo")
    train(args, digits, dist.get_rank(), dist.get_world_size())
    # Only now, when no model uses the process group any more: PyTorch may hang otherwise.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()


# %% [markdown]
# One more program, folded, starts both frameworks once on two ranks. It calls the two scripts alternately, on the same
# digits, from the same first weights, so their losses should agree. There is no warm-up: while the rate changes, Keras
# and PyTorch define momentum differently.

# %% jupyter={"source_hidden": true}
# %%writefile work/two_scripts.py
"""Call lab 07's script and its twin alternately: python work/two_scripts.py ROUNDS ARGUMENTS…"""

import json
import sys
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import mnist_ddp
import torch
import torch.distributed as dist
import train_hvd
from mpi4py import MPI  # starts MPI: otherwise the first hvd.shutdown() would end it for good

from labkit.models import mnist_cnn


def like_keras(seed):
    """Return the network of PyTorch with the weights that Keras draws on rank 0."""
    keras.utils.set_random_seed(0)
    model = mnist_ddp.mnist_cnn(seed)
    for parameter, weights in zip(model.parameters(), mnist_cnn().get_weights(), strict=True):
        if weights.shape == (7 * 7 * 64, 128):  # PyTorch flattens (64, 7, 7), Keras (7, 7, 64)
            weights = weights.reshape(7, 7, 64, 128).transpose(3, 2, 0, 1).reshape(128, -1)
        elif weights.ndim == 4:  # Keras: (height, width, in, out)
            weights = weights.transpose(3, 2, 0, 1)
        else:
            weights = weights.T
        parameter.data.copy_(torch.from_numpy(weights.copy()))
    return model


def last_epoch(out):
    """Return the last line of a run's log."""
    return json.loads((Path(out) / "log.json").read_text())["history"][-1]


def main():
    rounds, *arguments = sys.argv[1:]
    outs = {"Horovod": "work/digits-hvd", "DDP": "work/digits-ddp"}
    ends = {name: [] for name in outs}
    dist.init_process_group("gloo")
    place = dist.get_rank(), dist.get_world_size()
    for _ in range(int(rounds)):
        train_hvd.main([*arguments, "--out", outs["Horovod"]])
        hvd.shutdown()  # its thread would take some of the core's time
        args, digits = mnist_ddp.start_up("", [*arguments, "--out", outs["DDP"]])
        mnist_ddp.train(args, digits, *place, make_model=like_keras)
        dist.barrier()
        for name, out in outs.items():
            ends[name].append(last_epoch(out))
    if MPI.COMM_WORLD.rank == 0:
        Path("work/two_scripts.json").write_text(json.dumps(ends))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()


# %% jupyter={"source_hidden": true}
MAGIC = "%%writefile work/"


def write_lab_07(folder):
    """Write lab 07's scripts, with the kit's solutions, as its notebook does."""
    lab = catalogue.find("07")
    cells = json.loads(lab.notebook.read_text())["cells"]
    answers = [exercise.solution for _, exercise in sorted(lab.exercises.items())]
    folder.mkdir(exist_ok=True)
    for source in (*("".join(cell["source"]) for cell in cells), *answers):
        first, _, text = source.partition("\n")
        if first.startswith(MAGIC):
            (folder / first.removeprefix(MAGIC)).write_text(text)
    functions = [answer for answer in answers if not answer.startswith(MAGIC)]
    imports = "import math\n\nimport numpy as np\n"
    (folder / "plan.py").write_text("\n\n".join([imports, *functions]))


# %%
if not no_torch:
    write_lab_07(work / "lab-07")
    print("Both scripts on 2 ranks: about 30 s", flush=True)
    env = torch_ranks.variables()
    env["PYTHONPATH"] = f"{work / 'lab-07'}:{env['PYTHONPATH']}"
    flags = (SCRIPT_ROUNDS, "--digits", MNIST_DIGITS, "--epochs", 3, "--warmup", 0)
    with load.watch("section 7, Horovod and DDP") as script_others:
        run_ranks(2, "work/two_scripts.py", *flags, threads=1, env=env, show=False)
    ends = json.loads((work / "two_scripts.json").read_text())
    for name, each in ends.items():
        speed = np.median([end["images_per_second"] for end in each])
        end = each[-1]
        print(
            f"{name}: loss {end['loss']:.3f}, accuracy {end['accuracy']:.1%}, {speed:,.0f} images/s"
        )
    times = ratio(
        *([end["images_per_second"] for end in ends[name]] for name in ("DDP", "Horovod"))
    )
    print(conclude("DDP vs Horovod, images/s", times))
    torch_rows[SCRIPT_ROW] = (Measured(*times, "×"), "", script_others)
    winner = "DDP" if times.faster else "Horovod"
    results.compare_guess(5, winner if times.significant else "no difference")

# %% jupyter={"source_hidden": true}
missing = (f"not here: {no_torch or no_wires}", "")
results.hand_in("7", *((*row, *torch_rows.get(row[0], missing)) for row in TORCH_ROWS))

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor: section 7.**
#
# **What to look for.** Counted bytes are the formula's plus headers. DDP's default makes two buckets of this network, 4
# MiB makes four; whether that shows in the time depends on the wire and on who has the core. With FSDP, compare "not
# hidden" with the wire's time. "No sync" saves FSDP's averages only, and its memory rises by the whole gradients, 4
# bytes per weight, where DDP's hardly changes.
#
# **What not to conclude.** The last comparison is one of scripts: TensorFlow's graph and oneDNN against eager PyTorch,
# MPI's shared memory against Gloo's TCP. It does not say which library averages faster. Ask how to separate them:
# train with DDP within `no_sync`, and Horovod's ranks side by side as in lab 07, section 5.
#
# **What goes wrong.** A `torchrun` typed in a terminal listens on all addresses: on a shared server let students run
# the cell only. If PyTorch is missing, the section prints other machines' rows, if there are any.
#
# </div>

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. The instructor's notebook has answers.
#
# 1. ZeRO-1 holds fewer bytes than DDP, sends as many, and computes fewer updates. What does it give up for that? Look
#    at when its sending can begin.
# 2. Which of the three would you take for ResNet-50 on four nodes, and why do many take FSDP all the same?
# 3. Why does FSDP's memory not fall to 16/n on your machine? What would you change about the network to get nearer?
# 4. A colleague puts each bias and each batch norm into a bucket of its own. What does it cost, by which part of the
#    prediction?
# 5. With two nodes, an all-reduce sends the bytes of the weights once. With 64?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions, timing, and what goes wrong.
#
# ### Answers
#
# 1. Overlap: this ZeRO-1 begins to send when all gradients are there, and its all-gather must be done before the next
#    forward pass. Real ones reduce-scatter in buckets during the backward pass, and gather layer by layer.
# 2. DDP: it fits many times over, and is the simplest. FSDP is taken when the network will grow, or because one script
#    serves both: its sending is hidden on fast networks.
# 3. Whole layers: two of weights and some of gradients are there at the same time. More and smaller layers, or more
#    ranks with the same layers, where the share of whole layers in the sum *grows*.
# 4. `start` for each of them. Their bytes are nothing.
# 5. Nearly twice: 2(n − 1)/n of them.
#
# **Timing** Section 1 takes 8 minutes, 2 takes 22, 3 takes 12, 4 takes 26, 5 takes 10. Section 6 is for those who are
# early, section 7 for rooms that have PyTorch. Exercise 2 is where people need help: let them write the loop without a
# thread first, and only then replace the call by `submit`.
#
# **What goes wrong** Exercise 1: from the first layer to the last. Exercise 2: `result()` straight after `submit`
# passes all tests of numbers, and hides nothing; the check sees it. Exercise 3: the sum instead of the mean hardly
# changes what Adam does, as Adam divides by the gradient's size; the check looks at Adam's state. Exercise 4: the
# padding stays in the result, or the rows of `cut` are mistaken for the layer's rows.
#
# </div>

# %% [markdown]
# ## Remember
#
# - DDP is Horovod's all-reduce in buckets, while the backward pass goes on.
# - All-reduce = reduce-scatter + all-gather. ZeRO-1 updates between the two: same bytes, 8 + 8/n instead of 16.
# - FSDP keeps shares of everything, 16/n and a few layers, for half as many bytes again on the wire.
# - Sending can hide behind computing. How much of it, can be counted before you buy a network; what the cores spend on
#   it, has to be measured.
# - The dialect changes, the sums stay.
#
# What was published, what you measured, and what the sums say:

# %% jupyter={"source_hidden": true}
rows = []
for name in WAYS:
    n = COUNTED[-1]
    limit = f"{FORMULAS[name][0](n):.1f} by the formula"
    own = Measured(memory[name, n][1], unit="bytes", digits=1)
    rows.append(
        (f"{name}, {n} ranks: bytes of a weight, at the most", FORMULAS[name][1], own, limit)
    )
for name in WAYS:
    own = Measured(sent[name, 2], unit="×") if sent else "not here: no wires"
    limit = f"{SENT[name](2):.2f}× by the formula"
    rows.append((f"{name}, 2 nodes: sent in a step, of the weights", "", own, limit))
if of_buckets:
    own = Measured(*of_buckets, "×")
    limit = f"{predicted_buckets:.2f}× predicted"
    rows.append(
        ("steps a second, a bucket a layer over one for all", "", own, limit, bucket_others)
    )
for rate, times in of_fsdp.items():
    limit = f"{foreseen[rate, 'DDP'][1] / foreseen[rate, 'FSDP'][1]:.2f}× predicted"
    name = f"steps a second, FSDP over DDP, 2 nodes, {show_rate(rate)}"
    rows.append((name, "", Measured(*times, "×"), limit, step_others))
rows += results.handed_in("7", *TORCH_ROWS)
results.table("after the all-reduce", rows)

# %% [markdown]
# The formulas are those of [the ZeRO paper](https://arxiv.org/abs/1910.02054) for float32.
#
# Where you are on the way from the default to this machine's fastest setting, over all labs:

# %%
ladder.show(results)

# %% [markdown]
# **Next:** this is the last lab. In a terminal, `./lab report` makes one page of all that you measured. Then start the
# [welcome](00_welcome.ipynb) again on another machine, and compare.
