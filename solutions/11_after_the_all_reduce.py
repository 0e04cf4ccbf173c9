# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: write DDP, ZeRO and FSDP, count their bytes and memory, and compare with PyTorch
#     needs: [memory, MPI]
#     better_with: [cores, network, PyTorch]
# ---

# %% [markdown]
# # 11 · After the all-reduce
#
# "And in PyTorch?" is what every class asks. Most of what labs 06 to 08 taught carries over: this lab is the bridge.
#
# **You will** write the core of PyTorch's DDP, of ZeRO and of FSDP over MPI, in a few lines each. You count the bytes
# they send and the memory they take, predict when sending stops being hidden behind computing, and measure it. Finally
# you run the same network in PyTorch.
#
# **Time** {minutes}
#
# **Connects to** lab 06, whose all-reduce this lab takes apart; lab 07, whose script it translates; lab 10, which
# splits a layer over ranks.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("11", globals())

# %%
import json
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
from labkit.system.words import plural
from labkit.testbed import Testbed, obstacle
from labkit.testbed.units import show_rate

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
LAYERS, WIDTH = (4, 64) if QUICK else (16, 512)  # of the network
ROWS = 4 if QUICK else 384  # of each rank in a step, where speed is measured
COUNTED = (2,) if QUICK else (1, 2, 4)  # ranks whose memory and bytes are counted
ROUNDS, STEPS = (2, 1) if QUICK else (6, 2)  # launches in sections 2 and 4; steps in each
PER_BUCKET = (
    (1, LAYERS // 2, LAYERS) if QUICK else (1, 2, 4, 8, 16)
)  # layers in a bucket: section 2
DELAYS_MS = (0.0, 4.0)  # by which each all-reduce starts later: section 2
RATE_FACTORS = (1,) if QUICK else (0.25, 1, 4)  # of the rate that hides FSDP's sending: section 4
MAX_RATE = 5e9  # bits/s of a wire here: beyond, the cores that send are the limit
CHECKPOINTS = (1, 2) if QUICK else (1, 2, 4, 8)  # layers from a stored output to the next
TORCH_ROUNDS, TORCH_STEPS = (2, 1) if QUICK else (6, 2)  # section 7
MNIST_DIGITS, SCRIPT_ROUNDS = (512, 2) if QUICK else (2_560, 6)  # section 7

LAYER_BYTES = 4 * WIDTH**2
BYTES = LAYERS * LAYER_BYTES  # of all weights, and of all gradients
HEADERS = 1514 / 1448  # bytes on the wire for a byte of payload: Ethernet, IP, TCP (lab 06)
no_wires = obstacle()  # why this machine can't emulate wires; empty if it can
if no_wires:
    print(f"Nothing is sent over wires here: {no_wires}")

# %% [markdown]
# ## 1 · Three APIs for the same steps {read 6}
#
# What became of Horovod? Release 0.28.1 of [June 2023](https://pypi.org/project/horovod/#history) was the last.
# [Lightning](https://github.com/Lightning-AI/pytorch-lightning/pull/16150) removed its support at the end of 2022,
# [Ray](https://github.com/ray-project/ray/issues/49454) in 2025. With TensorFlow after 2.16 it needs
# [patches](https://github.com/horovod/horovod/pull/4302) that were never merged; this kit applies them. New projects
# use PyTorch or JAX.

# %% [markdown]
# The six steps of lab 07 exist in all three (the learning rate of step 3 stays yours):
#
# | step | Horovod, TensorFlow | PyTorch, DDP | JAX |
# | --- | --- | --- | --- |
# | 1 rank and size | `hvd.init()` | `init_process_group("gloo")` | `jax.distributed.initialize()` |
# | 2 cores or a GPU each | `mpirun -bind-to` | `torchrun`, `set_num_threads` | one process per host |
# | 3 the rank's data | yours | `DistributedSampler` | `make_array_from_process_local_data` |
# | 4 average the gradients | `DistributedGradientTape` | the wrapped network | the compiler |
# | 5 equal start | `broadcast_variables` | wrapping the network | `device_put`, replicated |
# | 6 one writer | `if rank == 0` | `if rank == 0` | `if process_index() == 0` |
#
# This lab is about step 4. Horovod and DDP average gradients with an
# [**all-reduce**](../docs/glossary.md#all-reduce). You will write what they do around it, and what came after it.

# %% [markdown]
# This is the network: square layers with ReLU, gradients by hand, and Adam. Adam stores two numbers per weight, so a
# weight needs 16 bytes: 4 for itself, 4 for its gradient, 8 for Adam.

# %%
# %%writefile work/mlp.py
"""A network of square layers with ReLU, its gradients by hand, and Adam."""

import numpy as np

PIECE = 65_536  # weights that Adam updates at a time, so that its temporary arrays stay small


def random_weights(layers, width):
    """Return the weights before training, the same on every rank: arrays (width, width)."""
    rng, size = np.random.default_rng(0), np.float32((2 / width) ** 0.5)
    return [size * rng.standard_normal((width, width), np.float32) for _ in range(layers)]


def share_of_batch(rows, width, step, rank, size):
    """Return a rank's own inputs and targets for a step, (rows, width) each."""
    inputs = np.random.default_rng([1, step]).standard_normal((rows * size, width), np.float32)
    mine = inputs[rank * rows : (rank + 1) * rows]
    return mine, np.abs(mine[:, ::-1])


def forward(weight, x):
    """Return a layer's output (rows, width) for its input."""
    return np.maximum(x @ weight, 0)


def backward(weight, x, output, error):
    """Return the gradient of a layer's weights and the error at its input, from its output's."""
    error = error * (output > 0)
    return x.T @ error, error @ weight.T


def loss_and_error(output, target):
    """Return half the mean squared error of these rows, and the error at the last output."""
    difference = output - target
    return float((difference**2).mean()) / 2, difference / difference.size


class Adam:
    """Adam's state for `size` weights: two numbers for each."""

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
# `backward` handles one layer. A training step calls `forward` from the first layer to the last, and `backward` from
# the last to the first. So the gradient of the *last* layer is ready first.
#
# ## 2 · DDP: send while you compute {read 7, do 11, wait 1}
#
# PyTorch's [**DDP**](../docs/glossary.md#ddp), `DistributedDataParallel`, does
# [**data parallelism**](../docs/glossary.md#data-parallelism) as Horovod does: each rank has all weights and a share of
# the batch. It averages gradients in [**buckets**](../docs/glossary.md#bucket): when the gradients of a few layers are
# ready, one all-reduce starts for all of them, while the [**backward pass**](../docs/glossary.md#backward-pass)
# continues.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Two nodes are 200 km apart: a message arrives 1 ms later, and an all-reduce, which waits for about
# four in a row, 4 ms later. Which buckets make a step fastest?
#
# </div>

# %%
results.guess(
    1, "the fastest buckets", ..., choices=("a layer each", "one for all", "something in between")
)

# %% [markdown]
# ### Exercise 1 · Buckets
#
# Write `buckets(sizes, limit)`. `sizes` lists the bytes of each layer's gradient, from the first layer to the last.
# `limit` is the number of bytes that a bucket may hold. Return a list of buckets; a bucket is a list of layer numbers.
#
# - Layers come in the order in which their gradients become ready.
# - Each bucket takes the next layers as long as it stays within `limit`. No bucket is empty.
# - A layer larger than `limit` gets a bucket of its own.
#
# With `sizes` of `[3, 3, 4, 9]` and a limit of 7, the result is `[[3], [2, 1], [0]]`.
#
# The ranks of exercise 2 import the function from a module, with the imports and helper functions that it uses.


# %%
def buckets(sizes, limit):
    """Return lists of layer numbers, from the last layer to the first."""
    ### BEGIN SOLUTION
    full = []
    for layer in reversed(range(len(sizes))):
        if full and sum(sizes[other] for other in full[-1]) + sizes[layer] <= limit:
            full[-1].append(layer)
        else:
            full.append([layer])
    return full
    ### END SOLUTION


# %% tags=["nbval-check-output"]
buckets = check(1, buckets)

# %%
(work / "buckets.py").write_text(check.module_text(1))
print(buckets([LAYER_BYTES] * LAYERS, 4 * LAYER_BYTES))

# %% [markdown]
# ### Exercise 2 · A DDP step
#
# `average` blocks until the sum has arrived. Run in a second thread, it leaves the first free to compute:
# `future = self.sender.submit(self.average, gradients)` returns at once, and `future.result()` waits for the result.
# The thread runs the calls in the order of `submit`. (NumPy and mpi4py let other threads run meanwhile.)
#
# Complete `step`:
#
# 1. Compute the gradients, layer by layer, in the order of `self.buckets`. The input of layer *k* is `outputs[k]`, its
#    output `outputs[k + 1]`. `backward` also returns the `error` that the layer before it needs.
# 2. When a bucket is complete, submit it to `self.average` in the other thread, its gradients in the order of the
#    bucket. Don't wait.
# 3. At the end, wait for the means. Change each layer's weights with `self.states[layer].update(weights, mean)`.
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
    """A network that every rank holds in full: weights, gradients, Adam's states."""

    def __init__(self, ranks, weights, limit):
        self.ranks, self.weights = ranks, weights
        self.buckets = buckets([weight.nbytes for weight in weights], limit)
        self.states = [Adam(weight.size) for weight in weights]
        self.sender = ThreadPoolExecutor(1)  # a second thread, which waits for the network

    def average(self, gradients):
        """Return the mean over all ranks of each gradient, with one all-reduce."""
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
        futures = []
        for bucket in self.buckets:
            gradients = []
            for layer in bucket:
                place = self.weights[layer], outputs[layer], outputs[layer + 1]
                gradient, error = backward(*place, error)
                gradients.append(gradient)
            futures.append(self.sender.submit(self.average, gradients))
        for bucket, future in zip(self.buckets, futures):
            for layer, mean in zip(bucket, future.result()):
                self.states[layer].update(self.weights[layer], mean)
        ### END SOLUTION
        return loss


# %% tags=["nbval-check-output"]
ddp = check(2, "work/ddp.py")

# %%
# What the next sections import: your script, or the kit's until yours passes.
_ = (work / "own_ddp.py").write_text(Path(ddp).read_text())

# %% [markdown]
# ### Predict it
#
# How long does a step take? `ddp_plan` lists what the computing thread does: compute, send, wait. One send runs at a
# time. Two sets of numbers go into it:
#
# - **The wire alone**: `start` seconds per all-reduce, and 2(n − 1)/n times its bytes at the wire's rate, headers
#   included (lab 06, section 5). Computing continues as if nothing were sent.
# - **Wire and core**: sending also costs the core, which copies gradients, hands them to the kernel and adds up what
#   arrives. So each call is timed outside training: alone, and while the rank computes. The third number is what
#   computing loses to it. (A network card that reads memory itself costs the core less.)


# %%
def ddp_plan(parts, layers):
    """Yield the actions of a DDP step with this number of layers in a bucket."""
    sizes = [len(bucket) for bucket in buckets([1] * LAYERS, layers)]
    yield "compute", parts["forward"]
    for number, size in enumerate(sizes):
        yield "compute", size * parts["backward"] / LAYERS
        yield "send", number, "average", size
    for number, size in enumerate(sizes):
        yield "wait", number
        yield "compute", size * parts["update"] / LAYERS


# What a call sends, in units of (n - 1)/n of its layers' bytes.
WIRE_PASSES = {"average": 2, "exchange": 2, "gather": 1, "scatter": 1}


def by_the_wire(rate, start, n=2):
    """Return the wire-alone times of a send: alone, while computing, and taken from computing."""

    def times(send, size):
        on_wire = WIRE_PASSES[send] * (n - 1) / n * size * LAYER_BYTES * HEADERS * 8 / rate
        return start + on_wire, start + on_wire, 0.0

    return times


# %% [markdown]
# Folded: `step_seconds`, which goes through a plan, and the script that measures. Each round is a fresh launch.


# %% jupyter={"source_hidden": true}
def step_seconds(plan, times, delay=0.0):
    """Return the seconds of a plan whose sends take `times(send, size)`, each after a delay."""
    now, queue = 0.0, []  # sends that are not done: handle, share that is left, three times
    for action, what, *send in plan:
        if action == "send":
            alone, together, taken = times(*send)
            queue.append([what, 1.0, (alone + delay, together + delay, taken)])
        left = what if action == "compute" else 0.0
        while left > 0 or (action == "wait" and any(entry[0] == what for entry in queue)):
            if not queue:
                now, left = now + left, 0.0
                continue
            _, share, (alone, together, taken) = queue[0]
            span = together if left > 0 else alone
            speed = max(0.05, 1 - taken / together)  # of computing
            passed = min(share * span, left / speed) if left > 0 else share * span
            now += passed
            left = left - passed * speed if left > passed * speed * (1 + 1e-9) else 0.0
            queue[0][1] -= passed / span
            if queue[0][1] < 1e-9:
                queue.pop(0)
    return now


# %% jupyter={"source_hidden": true}
# %%writefile work/sharded_steps.py
"""Time training steps of several schemes: python work/sharded_steps.py --help"""

import argparse
import json
import time
import tracemalloc
from functools import partial
from importlib import import_module
from itertools import cycle
from pathlib import Path

import numpy as np
from mlp import Adam, backward, forward, loss_and_error, random_weights, share_of_batch
from mpi4py import MPI

from labkit.testbed import traffic

RANKS = MPI.COMM_WORLD
CLASSES = {"DDP": "own_ddp.DDP", "ZeRO-1": "own_zero1.ZeRO1", "FSDP": "own_fsdp.FSDP"}
CLASSES["ZeRO-2"] = "zero2.ZeRO2"
SENDS = 16  # of a layer each, to measure what one takes


class Distant(MPI.Intracomm):
    """A communicator whose all-reduces start later, as if its nodes were far apart."""

    delay_s = 0.0

    def Allreduce(self, *args, **kwargs):
        time.sleep(self.delay_s)
        super().Allreduce(*args, **kwargs)


class Alone:
    """The network on one rank: nothing is sent, and the parts of a step are timed."""

    def __init__(self, weights):
        self.weights, self.states = weights, [Adam(weight.size) for weight in weights]

    def step(self, x, target):
        """Train by one step; return the loss. `parts` then has forward, backward and update."""
        marks, outputs, gradients = [time.perf_counter()], [x], []
        for weight in self.weights:
            outputs.append(forward(weight, outputs[-1]))
        loss, error = loss_and_error(outputs[-1], target)
        marks.append(time.perf_counter())
        for layer in reversed(range(len(self.weights))):
            place = self.weights[layer], outputs[layer], outputs[layer + 1]
            gradient, error = backward(*place, error)
            gradients.append(gradient)
        marks.append(time.perf_counter())
        for weight, state, gradient in zip(self.weights, self.states, gradients[::-1]):
            state.update(weight, gradient)
        self.parts = np.diff([*marks, time.perf_counter()])
        return loss


def make(scheme, weights, limit=0):
    """Return the trainer of a scheme."""
    if scheme == "alone":
        return Alone(weights)
    module, name = CLASSES[scheme].split(".")
    more = [limit] if scheme == "DDP" else []
    return getattr(import_module(module), name)(Distant(RANKS), weights, *more)


def slowest(seconds):
    """Return the seconds of the slowest rank."""
    return RANKS.allreduce(float(seconds), MPI.MAX)


def in_a_row(function, count):
    """Return the seconds of a call, on ranks that begin together."""
    function()
    RANKS.Barrier()
    begin = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - begin) / count


def cost_of(send, model, compute, count=SENDS):
    """Return the seconds of a send: alone, while this rank computes, and taken from computing."""
    alone, busy = in_a_row(send, count), in_a_row(compute, SENDS)
    RANKS.Barrier()
    begin, ends, calls = time.perf_counter(), [], 0
    futures = [model.sender.submit(send) for _ in range(count)]
    futures[-1].add_done_callback(lambda _: ends.append(time.perf_counter()))
    while not futures[-1].done():
        compute()
        calls += 1
    lost = time.perf_counter() - begin - calls * busy
    while not ends:
        time.sleep(0)
    return [slowest(alone), slowest((ends[0] - begin) / count), slowest(lost / count)]


def costs_of_sending(models, args):
    """Return the costs of a send by name and layers in it, and the seconds of a short one."""
    rng = np.random.default_rng(RANKS.rank)
    gradients = list(rng.standard_normal((args.layers, args.width, args.width), np.float32))
    x, output, error = rng.standard_normal((3, args.rows, args.width), np.float32)
    weight, costs = gradients[0].copy(), {}
    numbers, which = cycle(range(args.layers)), cycle(gradients)

    def compute():
        backward(weight, x, output, error)

    if model := models.get("DDP"):
        model.ranks.delay_s, costs["average"] = 0.0, {}
        sizes = {in_bucket for scheme, in_bucket, _ in args.runs if scheme == "DDP"}
        for size in sorted(sizes):
            batches = cycle([gradients[i : i + size] for i in range(0, args.layers, size)])
            average = partial(lambda batches: model.average(next(batches)), batches)
            costs["average"][size] = cost_of(average, model, compute, max(3, SENDS // size))
    if model := models.get("FSDP"):
        gather, scatter = (
            (lambda: model.gather(next(numbers))),
            (lambda: model.scatter(next(which))),
        )
        costs["gather"] = {1: cost_of(gather, model, compute)}
        costs["scatter"] = {1: cost_of(scatter, model, compute)}
    if model := models.get("ZeRO-1"):
        mine = np.empty(model.share, np.float32)

        def exchange():
            RANKS.Reduce_scatter_block(model.flat_gradient, mine)
            RANKS.Allgather(MPI.IN_PLACE, model.flat)

        seconds = slowest(in_a_row(exchange, 3))  # the rank computes nothing meanwhile
        costs["exchange"] = {args.layers: [seconds, seconds, 0.0]}
    number = np.zeros(1, np.float32)
    start = slowest(in_a_row(lambda: RANKS.Allreduce(MPI.IN_PLACE, number), SENDS))
    return {"costs": costs, "start": start}


def train(model, args, number):
    """Return seconds, bytes sent and mean loss of a step."""
    batch = share_of_batch(args.rows, args.width, number, RANKS.rank, RANKS.size)
    RANKS.Barrier()
    before, begin = traffic().sent if args.wires else 0, time.perf_counter()
    loss = model.step(*batch)
    seconds = time.perf_counter() - begin
    RANKS.Barrier()
    sent = traffic().sent - before if args.wires else 0
    return slowest(seconds), RANKS.allreduce(sent) / RANKS.size, RANKS.allreduce(loss) / RANKS.size


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--runs", type=json.loads, help="JSON: [[scheme, layers in a bucket, delay in ms], …]")
    add("--layers", type=int)
    add("--width", type=int)
    add("--rows", type=int, help="of each rank, in a step")
    add("--steps", type=int, help="of each run, alternately")
    add("--wires", action="store_true", help="count what the node's interface sends")
    add("--memory", action="store_true", help="count what NumPy holds: give one run")
    add("--costs", action="store_true", help="measure what sending costs")
    add("--out", default="work/sharded_steps.json")
    args = parser.parse_args()

    if args.memory:
        import_module(CLASSES[args.runs[0][0]].split(".")[0])  # first: it has memory of its own
        tracemalloc.start()
    layer_bytes = 4 * args.width**2
    models = {}
    for scheme, in_bucket, _ in args.runs:
        if scheme not in models:
            models[scheme] = make(
                scheme, random_weights(args.layers, args.width), in_bucket * layer_bytes
            )
    steps = [[] for _ in args.runs]
    parts = []
    for number in range(args.steps + 1):  # the first does not count: first use of all
        if number == 1 and args.memory:
            tracemalloc.reset_peak()
        for run, (scheme, in_bucket, delay_ms) in enumerate(args.runs):
            model = models[scheme]
            if scheme == "DDP":
                make_buckets = import_module("buckets").buckets
                model.buckets = make_buckets([layer_bytes] * args.layers, in_bucket * layer_bytes)
            if scheme != "alone":
                model.ranks.delay_s = delay_ms / 1e3
            steps[run].append(train(model, args, number))
            if scheme == "alone":
                parts.append([slowest(part) for part in model.parts])
    columns = [list(zip(*run)) for run in steps]
    report = {
        "seconds": [float(np.mean(seconds[1:])) for seconds, _, _ in columns],
        "sent": [float(np.mean(sent[1:])) for _, sent, _ in columns],
        "losses": [losses for _, _, losses in columns],
    }
    if parts:
        report["parts"] = np.mean(parts[1:], axis=0).tolist()
    if args.memory:
        report["memory"] = np.max(RANKS.allgather(tracemalloc.get_traced_memory()), axis=0).tolist()
    if args.costs:
        report |= costs_of_sending(models, args)
    if RANKS.rank == 0:
        Path(args.out).write_text(json.dumps(report))


if __name__ == "__main__":
    main()


# %%
class Run(NamedTuple):
    """A launch: its scheme, the layers in a bucket, the delay of each all-reduce."""

    scheme: str
    layers: int = 4
    delay_ms: float = 0.0


# By default, MPICH polls without a pause while it waits. With one core per rank, that keeps the
# core from the thread that computes. With these, it yields after 10 polls: the timings change.
YIELD_WHILE_WAITING = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": 1, "MPIR_CVAR_POLLS_BEFORE_YIELD": 10}


def measure(n, runs, *options, wires=None, rows=ROWS, steps=STEPS):
    """Launch n ranks that train each run for some steps; return the script's report."""
    sizes = {"layers": LAYERS, "width": WIDTH, "rows": rows, "steps": steps}
    arguments = ["--runs", json.dumps(runs), *(f"--{name}={size}" for name, size in sizes.items())]
    where = {"threads": 1, "env": YIELD_WHILE_WAITING, "network": wires, "show": False}
    run_ranks(n, "work/sharded_steps.py", *arguments, *options, **where)
    return json.loads((work / "sharded_steps.json").read_text())


# %% jupyter={"source_hidden": true}
def parts_of(report):
    """Return the seconds of a step's parts, from the run in which nothing is sent."""
    return dict(zip(("forward", "backward", "update"), report["parts"]))


def with_the_core(report):
    """Return the measured times of a send: alone, while computing, and taken from computing."""

    def times(send, size):
        costs = {int(known): three for known, three in report["costs"][send].items()}
        return tuple(np.interp(size, sorted(costs), three) for three in zip(*costs.values()))

    return times


def milliseconds(seconds):
    """Return the geometric mean of rounds in ms, with its 95% interval."""
    mean, half = interval(np.log(seconds))
    return Measured(*(1e3 * np.exp([mean, mean - half, mean + half])), "ms", digits=0)


def rounds_of(reports, runs, run):
    """Return the seconds of a run's steps, round by round."""
    return np.array([report["seconds"][runs.index(run)] for report in reports])


def predict(name, plan, reports, rate, measured, delay=0.0):
    """Return the predictions of a step by the wire alone, and by wire and core.

    Each launch gives a prediction, from what was measured in it; this is their geometric mean.
    """
    logs = []
    for report in reports:
        costs = by_the_wire(rate, report["start"]), with_the_core(report)
        steps = [step_seconds(plan(parts_of(report)), times, delay) for times in costs]
        logs.append(np.log(steps))
    predicted = 1e3 * np.exp(np.mean(logs, axis=0))
    return tuple(Prediction(name, float(ms), measured) for ms in predicted)


def print_predictions(predictions):
    """Print predictions by wire and core, the score of both, and what that score allows."""
    wire, core = zip(*predictions)
    print(*core, sep="\n")
    print(f"by the wire alone: {score(wire)}")
    print(f"by wire and core:  {score(core)}")
    worst_by_wire, worst = (max(abs(p.error) for p in both) for both in (wire, core))
    print(
        f"largest errors: {worst_by_wire:.0%} by the wire alone, {worst:.0%} by wire and core;",
        end="",
    )
    print(" neither ranks steps that differ by less")
    if worst > 0.1:
        print("Even with the core, not all are within 10%.")
    elif worst_by_wire > 0.1:
        print("With the core, all are within 10%. By the wire alone, they are not.")
    else:
        print("Both predict all of these steps within 10%.")


def draw_steps(axis, names, measured, wire, core, alone):
    """Draw the ms of steps by name: measured, with intervals, and both predictions."""
    place, values = np.arange(len(names)), np.array([(m.value, m.low, m.high) for m in measured])
    reach = np.nan_to_num(np.abs(values[:, 1:] - values[:, :1]).T)
    style = {"ls": "", "mfc": "none", "ms": 11}
    axis.plot(
        place, wire, marker="D", color=plots.ORANGE, label="predicted: the wire alone", **style
    )
    axis.plot(place, core, marker="s", color=plots.GREEN, label="predicted: wire and core", **style)
    bars = {"ls": "", "marker": "o", "color": plots.BLUE, "capsize": 4, "ms": 6}
    axis.errorbar(place, values[:, 0], yerr=reach, label="measured", **bars)
    label = {"ls": "--", "lw": 1.5, "marker": "", "label": "nothing sent"}
    axis.axhline(alone.value, color=plots.BLACK, **label)
    axis.set_xticks(place, names)
    axis.set_xlim(-0.5, len(names) - 0.5)
    axis.set_ylim(0, 1.25 * max(*values[:, 0], *wire, *core))  # disturbed rounds have no end


# %% [markdown]
# First the parts of a step, from ranks that run concurrently and send nothing. The wires below have the printed rate.

# %%
hidden = {}  # bits/s at which sending takes as long as what can hide it, by scheme
if not no_wires:
    print("The parts of a step: about 5 s", flush=True)
    with Testbed(2, "1 Gbit/s") as wires:
        parts = parts_of(measure(2, [Run("alone")], wires=wires))
    print(", ".join(f"{part} {1e3 * seconds:.1f} ms" for part, seconds in parts.items()))
    hidden["DDP"] = 8 * HEADERS * BYTES / parts["backward"]  # 2(n - 1)/n is 1 on two nodes
    print(
        f"Sending {BYTES / 1e6:.1f} MB takes as long as that backward pass at "
        f"{show_rate(hidden['DDP'])}."
    )

# %%
bucket_runs = [Run("alone")]
for sizes, ms in zip((PER_BUCKET[::2], PER_BUCKET), DELAYS_MS):
    bucket_runs += [Run("DDP", size, ms) for size in sizes]
bucket_ms, bucket_predictions, bucket_rounds = {}, {}, {}
with load.watch("section 2") as bucket_others:
    if hidden:
        rate = min(hidden["DDP"], MAX_RATE)
        print(f"Wires of {show_rate(rate)}, {ROUNDS} launches: about a minute", flush=True)
        with Testbed(2, rate) as wires:
            reports = [measure(2, bucket_runs, "--costs", wires=wires) for _ in range(ROUNDS)]
if hidden:
    alone_ms = milliseconds(rounds_of(reports, bucket_runs, Run("alone")))
    for run in bucket_runs[1:]:
        bucket_rounds[run] = rounds_of(reports, bucket_runs, run)
        bucket_ms[run] = milliseconds(bucket_rounds[run])
        name = f"{run.layers} in a bucket, {run.delay_ms:.0f} ms of delay"
        plan = partial(ddp_plan, layers=run.layers)
        bucket_predictions[run] = predict(
            name, plan, reports, rate, bucket_ms[run], run.delay_ms / 1e3
        )
    each_launch = [with_the_core(report)("average", 1) for report in reports]
    alone, together, taken = 1e3 * np.median(each_launch, axis=0)
    on_wire = 1e3 * by_the_wire(rate, 0.0)("average", 1)[0]
    print(f"The all-reduce of a layer: {on_wire:.1f} ms on the wire by its rate. Measured:")
    print(f"{alone:.1f} ms alone, {together:.1f} while computing, which loses {taken:.1f} to it.")
    print(f"A step with nothing sent: {alone_ms}")
    print_predictions(bucket_predictions.values())


# %% jupyter={"source_hidden": true}
def wins(speeds, others):
    """Return whether speeds are higher than others, beyond chance."""
    both = ratio(speeds, others)
    return both.significant and both.faster


def best_buckets(rounds):
    """Return the layers in the fastest buckets, and the sizes that these beat beyond chance."""
    speeds = {run.layers: 1 / seconds for run, seconds in rounds.items()}
    best = max(speeds, key=lambda layers: np.log(speeds[layers]).mean())
    return best, [size for size in speeds if size != best and wins(speeds[best], speeds[size])]


def kind_of_buckets(layers):
    """Return which of the guess's choices a number of layers in a bucket is."""
    ends = {PER_BUCKET[0]: "a layer each", PER_BUCKET[-1]: "one for all"}
    return ends.get(layers, "something in between")


if hidden:
    for ms in DELAYS_MS:
        here = {run: seconds for run, seconds in bucket_rounds.items() if run.delay_ms == ms}
        foreseen = min(here, key=lambda run: bucket_predictions[run][1].predicted).layers
        best, beaten = best_buckets(here)
        undecided = {run.layers for run in here} - {*beaten}  # the best, and what it doesn't beat
        kinds = {kind_of_buckets(layers) for layers in undecided}
        print(f"{ms:.0f} ms of delay: fastest with {best} layers in a bucket, ", end="")
        print(f"predicted with {foreseen}; significantly slower: ", end="")
        print(", ".join(map(str, beaten)) or "none")
    if len(kinds) == 1:  # of the last delay
        results.compare_guess(1, kinds.pop())

# %% jupyter={"source_hidden": true}
if hidden:
    figure, axes = plt.subplots(1, len(DELAYS_MS), figsize=(11, 4.2), sharey=True)
    descriptions = []
    for axis, ms in zip(axes, DELAYS_MS):
        here = [run for run in bucket_runs[1:] if run.delay_ms == ms]
        wire, core = ([bucket_predictions[run][i].predicted for run in here] for i in (0, 1))
        draw_steps(
            axis,
            [run.layers for run in here],
            [bucket_ms[run] for run in here],
            wire,
            core,
            alone_ms,
        )
        axis.set(xlabel="layers in a bucket", title=f"{ms:.0f} ms of delay")
        descriptions += [
            f"{both[1]}; by the wire alone {both[0].predicted:.0f} ms"
            for both in map(bucket_predictions.get, here)
        ]
    axes[0].set_ylabel("time of a step (ms)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle("DDP steps on two nodes, with 95% intervals")
    plots.show(
        figure,
        alt=f"Time of a step. {'. '.join(descriptions)}. Nothing sent: {alone_ms}.",
        keep=results,
        watched=[bucket_others],
    )

# %% [markdown]
# One bucket for all layers can't leave before the last gradient is ready, so it hides nothing. A bucket for each layer
# pays for `start` every time, which a delay makes expensive. PyTorch's `bucket_cap_mb` is your `limit`.

# %% [markdown]
# ## 3 · ZeRO-1: shard the optimizer {read 4, do 5}
#
# With DDP, every rank stores Adam's numbers for all weights and computes the same update. Both are wasteful. In
# [**ZeRO**](../docs/glossary.md#zero), stage 1 ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)), a rank
# stores the states of its shard of the weights, updates that shard and gathers the others.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** With DDP, a rank holds 16 bytes per weight. How many are left with ZeRO-1 on 4 ranks? And does it
# send less than DDP, the same, or more?
#
# </div>

# %%
results.guess(2, "ZeRO-1 on 4 ranks, bytes per weight after a step", ..., unit="bytes")

# %%
results.guess(3, "ZeRO-1 sends, compared with DDP", ..., choices=("less", "the same", "more"))

# %% [markdown]
# ### Exercise 3 · Update a shard
#
# All weights are in one long array, `self.flat`, and this rank's gradients in another, `self.flat_gradient`. Both are
# padded with zeros: each rank has `self.share` numbers, and the shard of rank *r* starts at `r * self.share`.
#
# Complete `update`. After it, all ranks have the same new weights. Each has computed its shard's update only, with
# `self.state`, from the *mean* gradient, and has sent no more bytes than one all-reduce. Which collectives do you need,
# and where does the update go? These are mpi4py's for arrays, with the bytes that a rank of *n* sends:
#
# | call on `self.ranks` | afterwards | bytes sent |
# | --- | --- | --- |
# | `Allgather(mine, x)` | in `x`, all ranks' `mine` (`MPI.IN_PLACE` for a `mine` that is in `x`) | (n − 1)/n of `x` |
# | `Allreduce(MPI.IN_PLACE, x)` | in `x`, the sum of all ranks' `x` | 2(n − 1)/n of `x` |
# | `Bcast(x, root)` | in `x`, the root's `x` | n − 1 times `x` |
# | `Reduce(x, y, root=r)` | in `y`, on rank *r* alone, the sum | `x` |
# | `Reduce_scatter_block(x, mine)` | in `mine`, this rank's shard of the sum | (n − 1)/n of `x` |
#
# The check runs it on 3 ranks, for at most 60 s.

# %%
# %%writefile work/zero1.py
"""ZeRO-1: each rank holds all weights and gradients, and its shard of Adam's states."""

import math

import numpy as np
from mlp import Adam, backward, forward, loss_and_error
from mpi4py import MPI


class ZeRO1:
    """A network whose optimizer is sharded: each rank updates its part of the weights."""

    def __init__(self, ranks, weights):
        self.ranks = ranks
        sizes = [weight.size for weight in weights]
        self.share = math.ceil(sum(sizes) / ranks.size)  # numbers of each rank; some are padding
        self.flat, self.flat_gradient = np.zeros((2, self.share * ranks.size), np.float32)
        # The layers' weights and gradients are views of two long arrays: no copy is made.
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
        shard = slice(self.ranks.rank * self.share, (self.ranks.rank + 1) * self.share)
        self.state.update(self.flat[shard], mine)
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
# An all-reduce is a [**reduce-scatter**](../docs/glossary.md#reduce-scatter) and an
# [**all-gather**](../docs/glossary.md#all-gather) (lab 06, section 3). ZeRO-1 puts the update between the two.
#
# ## 4 · FSDP: shard everything {read 8, do 6, wait 2.2}
#
# [**FSDP**](../docs/glossary.md#fsdp), fully sharded data parallel, is PyTorch's name for ZeRO's third stage. Each rank
# stores a shard of each layer: weights, gradients, states. Before a layer computes, its weights are gathered; after it,
# they are dropped. In the backward pass they are gathered again, and the gradients are reduce-scattered.
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
# FSDP sends 3(n − 1)/n of the weights' bytes, an all-reduce 2(n − 1)/n.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** As the wire gets slower, which stops being hidden behind computing first: DDP's sending, or FSDP's,
# which is half as much again?
#
# </div>

# %%
results.guess(
    4,
    "stops being hidden first, by the wire alone",
    ...,
    choices=("DDP's", "FSDP's", "both at the same rate"),
)

# %% [markdown]
# ### Exercise 4 · When to gather, and when to drop
#
# `gather(layer)` returns a layer's whole weights, and `scatter(gradient)` this rank's shard of the *mean* gradient: the
# two collectives of exercise 3. The forward pass of `step` is complete. While a layer computes, the next one's weights
# travel, in the other thread. When no variable and no future refers to weights any more, Python frees them.
#
# Write the backward pass, and update this rank's shards, `self.shares`. For each layer, decide whether you gather it
# again, when you ask for it, and when you let go of it:
#
# - At any time, a rank holds the whole weights of at most three layers, and the whole gradients of at most three.
# - While a layer computes, the weights of the next one travel.
# - A rank sends no more than it must: the weights of one layer are still there.
# - Only one thread may send: call `scatter` with `self.sender.submit` too.
#
# The check runs it on 3 ranks, for at most 60 s.

# %%
# %%writefile work/fsdp.py
"""Fully sharded data parallelism: each rank holds its shard of each layer, and gathers the rest."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from mlp import Adam, backward, forward, loss_and_error


class FSDP:
    """A network of which each rank holds a shard: of weights, gradients, Adam's states."""

    def __init__(self, ranks, weights):
        self.ranks, self.shapes = ranks, [weight.shape for weight in weights]
        self.shares = [np.array(self.cut(weight)[ranks.rank]) for weight in weights]
        self.states = [Adam(share.size) for share in self.shares]
        self.sender = ThreadPoolExecutor(1)  # a second thread, which waits for the network

    def cut(self, whole):
        """Return an array as rows of equal length, one for each rank, padded with zeros."""
        share = math.ceil(whole.size / self.ranks.size)
        padded = np.zeros((self.ranks.size, share), np.float32)
        padded.reshape(-1)[: whole.size] = whole.reshape(-1)
        return padded

    def gather(self, layer):
        """Return the whole weights of a layer, of which every rank has `self.shares[layer]`."""
        share, shape = self.shares[layer], self.shapes[layer]
        whole = np.empty(self.ranks.size * share.size, np.float32)
        self.ranks.Allgather(share, whole)
        return whole[: math.prod(shape)].reshape(shape)

    def scatter(self, gradient):
        """Return this rank's shard of the mean over all ranks of a layer's gradient."""
        parts = self.cut(gradient)
        mine = np.empty(parts.shape[1], np.float32)
        self.ranks.Reduce_scatter_block(parts, mine)
        return mine / self.ranks.size

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
        ### BEGIN SOLUTION
        scattered = {}
        for layer in reversed(range(last + 1)):
            if layer < last:  # the last one's weights are still there
                weight = coming.result()
            if layer > 0:
                coming = self.sender.submit(self.gather, layer - 1)
            gradient, error = backward(weight, outputs[layer], outputs[layer + 1], error)
            scattered[layer] = self.sender.submit(self.scatter, gradient)
        for layer, share in scattered.items():
            self.states[layer].update(self.shares[layer], share.result())
        ### END SOLUTION
        return loss


# %% tags=["nbval-check-output"]
fsdp = check(4, "work/fsdp.py")

# %%
_ = (work / "own_fsdp.py").write_text(Path(fsdp).read_text())

# %% [markdown]
# Between ZeRO-1 and FSDP lies **ZeRO-2**: all weights on each rank, but each layer's gradient is reduce-scattered when
# it is ready, and dropped. `gather` and `scatter` are all it needs (folded).

# %% jupyter={"source_hidden": true}
# %%writefile work/zero2.py
"""ZeRO-2: each rank holds all weights, and its shard of gradients and of Adam's states."""

from mlp import backward, forward, loss_and_error
from own_fsdp import FSDP


class ZeRO2(FSDP):
    """A network with all weights on each rank; this rank updates its shard of each layer."""

    def __init__(self, ranks, weights):
        super().__init__(ranks, weights)
        self.rows = [self.cut(weight) for weight in weights]
        self.shares = [rows[ranks.rank] for rows in self.rows]  # views: an update changes the rows

    def step(self, x, target):
        """Train by one step on this rank's rows; return their loss."""
        outputs, scattered = [x], {}
        weights = [
            rows.reshape(-1)[: a * b].reshape(a, b) for rows, (a, b) in zip(self.rows, self.shapes)
        ]
        for weight in weights:
            outputs.append(forward(weight, outputs[-1]))
        loss, error = loss_and_error(outputs[-1], target)
        for layer in reversed(range(len(weights))):
            place = weights[layer], outputs[layer], outputs[layer + 1]
            gradient, error = backward(*place, error)
            scattered[layer] = self.sender.submit(self.scatter, gradient)
        for layer, share in scattered.items():
            self.states[layer].update(self.shares[layer], share.result())
        for layer, weight in enumerate(weights):
            weight[:] = self.gather(layer)
        return loss


# %% [markdown]
# ### Do all four learn the same?
#
# And what does each rank hold? The ZeRO paper counts for mixed precision: 2 bytes for FP16 weights, 2 for FP16
# gradients, and 12 for the optimizer: FP32 weights and Adam's two numbers. This lab's FP32 has 4 + 4 + 8. Both sum to
# 16, but the optimizer's part differs:
#
# | bytes per weight | DDP | ZeRO-1 | ZeRO-2 | FSDP (ZeRO-3) |
# | --- | --- | --- | --- | --- |
# | the paper: 2 + 2 + 12 | 16 | 4 + 12/n | 2 + 14/n | 16/n |
# | this lab: 4 + 4 + 8 | 16 | 8 + 8/n | 4 + 12/n | 16/n |
#
# NumPy reports each array to Python's `tracemalloc`, so memory can be counted to the byte. All runs have the same
# batch, however many ranks share it.

# %%
SCHEMES = ("DDP", "ZeRO-1", "ZeRO-2", "FSDP")
memory, losses = {}, {}
print(f"The memory of {len(SCHEMES)} schemes: about 3 s each", flush=True)
for n in COUNTED:
    for scheme in SCHEMES:
        report = measure(n, [Run(scheme)], "--memory", rows=8 // n, steps=5)
        memory[scheme, n] = [part / (BYTES / 4) for part in report["memory"]]
        losses[scheme, n] = report["losses"][0]

# %%
FP32 = {  # bytes per weight on n ranks: weights, gradients, Adam's states
    "DDP": lambda n: 4 + 4 + 8,
    "ZeRO-1": lambda n: 4 + 4 + 8 / n,
    "ZeRO-2": lambda n: 4 + 4 / n + 8 / n,
    "FSDP": lambda n: 4 / n + 4 / n + 8 / n,
}
reference = losses["DDP", COUNTED[0]]
apart = max(abs(a / b - 1) for run in losses.values() for a, b in zip(run, reference))
alike = "all learn the same, up to rounding" if apart < 1e-4 else "they do not learn the same"
print(f"losses of all schemes, on {COUNTED} ranks: at most {apart:.0e} apart, relative: {alike}")
rows = [
    (scheme, str(n), f"{FP32[scheme](n):.1f}", *(f"{part:.1f}" for part in memory[scheme, n]))
    for scheme in SCHEMES
    for n in COUNTED
]
display(markdown.table(("", "ranks", "formula, FP32", "after a step", "peak"), rows))
results.compare_guess(2, Measured(memory["ZeRO-1", COUNTED[-1]][0], unit="bytes", digits=1))

# %% [markdown]
# After a step, gradients are dropped, except in ZeRO-1, which has an array for them: DDP holds 4 bytes less than the
# formula, ZeRO-2 and FSDP 4/n. The peak adds what lasts for a moment: DDP's buckets on their way, ZeRO-1's shard of the
# means, whole layers of FSDP, which take the same bytes on any number of ranks.
#
# ### What is on the wire?
#
# The bytes that a node's interface sends in a step, with one header per bundle of packets. FSDP
# gathers the last layer once: its weights are still there when the backward pass begins.

# %% jupyter={"source_hidden": true}
SENT = {
    "DDP": lambda n: 2 * (n - 1) / n,
    "ZeRO-1": lambda n: 2 * (n - 1) / n,
    "ZeRO-2": lambda n: 2 * (n - 1) / n,
    "FSDP": lambda n: (3 - 1 / LAYERS) * (n - 1) / n,
}
sent = {}
for n in () if no_wires else [n for n in COUNTED if n > 1]:
    print(f"{n} nodes: about 10 s", flush=True)
    with Testbed(n, "1 Gbit/s") as wires:
        runs = [Run(scheme) for scheme in SCHEMES]
        report = measure(n, runs, "--wires", wires=wires, rows=8 // n, steps=3)
    sent |= {(scheme, n): part / BYTES for scheme, part in zip(SCHEMES, report["sent"])}
rows = [
    (
        scheme,
        str(n),
        f"{SENT[scheme](n):.3f}",
        f"{times:.3f}",
        f"{times / SENT[scheme](n) - 1:+.1%}",
    )
    for (scheme, n), times in sorted(sent.items(), key=lambda item: SCHEMES.index(item[0][0]))
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
# DDP sends behind the backward pass, about two thirds of the computing; FSDP behind all of it. Your ZeRO-1 hides
# nothing.


# %%
def zero1_plan(parts, n=2):
    """Yield the actions of a ZeRO-1 step: "exchange" is a reduce-scatter and an all-gather."""
    yield "compute", parts["forward"] + parts["backward"]
    yield "send", 0, "exchange", LAYERS
    yield "wait", 0
    yield "compute", parts["update"] / n


def fsdp_plan(parts, n=2):
    """Yield the actions of an FSDP step: `step` of exercise 4."""
    last = LAYERS - 1
    yield "send", ("forward", 0), "gather", 1
    for layer in range(LAYERS):
        yield "wait", ("forward", layer)
        if layer < last:
            yield "send", ("forward", layer + 1), "gather", 1
        yield "compute", parts["forward"] / LAYERS
    for layer in reversed(range(LAYERS)):
        if layer < last:
            yield "wait", ("backward", layer)
        if layer > 0:
            yield "send", ("backward", layer - 1), "gather", 1
        yield "compute", parts["backward"] / LAYERS
        yield "send", ("scatter", layer), "scatter", 1
    for layer in reversed(range(LAYERS)):
        yield "wait", ("scatter", layer)
        yield "compute", parts["update"] / n / LAYERS


if hidden:
    computing = parts["forward"] + parts["backward"]
    hidden["FSDP"] = 8 * HEADERS * SENT["FSDP"](2) * BYTES / computing
    for scheme, rate in hidden.items():
        print(f"{show_rate(rate)}: {scheme}'s sending takes as long as what can hide it")
    same = abs(hidden["DDP"] / hidden["FSDP"] - 1) < 0.05
    first = "DDP's" if hidden["DDP"] > hidden["FSDP"] else "FSDP's"
    results.compare_guess(4, "both at the same rate" if same else first)

# %% [markdown]
# All three, at FSDP's rate, a quarter of it, and up to four times it:

# %%
PLANS = {"DDP": partial(ddp_plan, layers=4), "ZeRO-1": zero1_plan, "FSDP": fsdp_plan}
step_runs = [Run("alone"), *(Run(scheme) for scheme in PLANS)]
rates = [min(factor * hidden["FSDP"], MAX_RATE) for factor in RATE_FACTORS] if hidden else []
rates = list(dict.fromkeys(rates))  # MAX_RATE once
step_reports = {}
with load.watch("section 4") as step_others:
    for rate in rates:
        print(f"Wires of {show_rate(rate)}, {ROUNDS} launches: about 40 s", flush=True)
        with Testbed(2, rate) as wires:
            step_reports[rate] = [
                measure(2, step_runs, "--costs", wires=wires) for _ in range(ROUNDS)
            ]

# %%
step_ms, step_predictions = {}, {}
for rate, reports in step_reports.items():
    for run in step_runs:
        step_ms[rate, run.scheme] = milliseconds(rounds_of(reports, step_runs, run))
    for scheme, plan in PLANS.items():
        name = f"{show_rate(rate)}, {scheme}"
        step_predictions[rate, scheme] = predict(name, plan, reports, rate, step_ms[rate, scheme])
if step_predictions:
    print_predictions(step_predictions.values())

# %% jupyter={"source_hidden": true}
COMPARED = (("FSDP", "DDP"), ("FSDP", "ZeRO-1"))
speedups, expected = {}, {}
for rate, reports in step_reports.items():
    for scheme, rival in COMPARED:
        speeds = (1 / rounds_of(reports, step_runs, Run(name)) for name in (scheme, rival))
        speedups[rate, scheme, rival] = gain = ratio(*speeds)
        wire, core = (
            step_predictions[rate, rival][i].predicted / step_predictions[rate, scheme][i].predicted
            for i in (0, 1)
        )
        expected[rate, scheme, rival] = core
        print(f"{show_rate(rate)}, {scheme} vs {rival}: {Measured(*gain, '×')}, {gain.verdict}")
        print(f"    predicted {wire:.2f}× by the wire alone, {core:.2f}× by wire and core")
decided = [case for case, gain in speedups.items() if gain.significant]
if speedups:
    print(f"{len(decided)} of {len(speedups)} comparisons are significant.")
if decided:
    right = sum(speedups[case].faster == (expected[case] > 1) for case in decided)
    print(f"Of these, wire and core predict the faster scheme in {right}.")

# %% jupyter={"source_hidden": true}
if step_reports:
    figure, axes = plt.subplots(1, len(rates), figsize=(11, 4.2), squeeze=False)
    for axis, rate in zip(axes[0], rates):
        both = [step_predictions[rate, scheme] for scheme in PLANS]
        wire, core = ([pair[i].predicted for pair in both] for i in (0, 1))
        measured = [step_ms[rate, scheme] for scheme in PLANS]
        draw_steps(axis, list(PLANS), measured, wire, core, step_ms[rate, "alone"])
        axis.set_title(show_rate(rate))
    axes[0][0].set_ylabel("time of a step (ms)")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle("Steps on two nodes, by the rate of the wire, with 95% intervals")
    descriptions = [
        f"{core}; by the wire alone {wire.predicted:.0f} ms"
        for wire, core in step_predictions.values()
    ]
    plots.show(
        figure,
        alt=f"Time of a step. {'. '.join(descriptions)}.",
        keep=results,
        watched=[step_others],
    )

# %% [markdown]
# If the forward pass takes about a third of the computing, DDP and FSDP stop being hidden at nearly the same rate, by
# the wire alone: FSDP sends half as much again, and has half as much again to hide it behind. So on a fast network its
# memory saving would be free. With the core, that can change: FSDP makes three calls per layer, and where a rank has
# only one core, that core does it all.

# %% [markdown]
# ## 5 · Which one? {read 5, do 5}
#
# ### Above which rate?
#
# Let *S* be the seconds to send (n − 1)/n of the FP32 weights. By the wire alone, without headers, with *c* seconds of
# computing, a third of it forward:
#
# | | bytes held per weight | a step takes |
# | --- | --- | --- |
# | DDP | 16 | c/3 + the longer of 2c/3 and 2S |
# | ZeRO-1, as yours | 8 + 8/n | c + 2S |
# | FSDP | 16/n | the longer of c and 3S |
#
# ### Exercise 5 · The crossover
#
# A network fits with the last two only. ZeRO-1 sends less, FSDP hides more: which is faster depends on the wire. Write
# `crossover(parameters, ranks, seconds)`: return the rate, in bits/s, at which both take equally long, for this many
# FP32 weights and seconds of computing. First decide: at that rate, is FSDP's step computing or sending?


# %%
def crossover(parameters, ranks, seconds):
    """Return the rate in bits/s of a rank's wire at which ZeRO-1 and FSDP are equally fast."""
    ### BEGIN SOLUTION
    # FSDP is sending there: hidden behind computing, it would be faster. So 3S = c + 2S, or S = c.
    return (ranks - 1) / ranks * 4 * parameters * 8 / seconds
    ### END SOLUTION


# %% tags=["nbval-check-output"]
crossover = check(5, crossover)

# %%
if speedups:
    turn = crossover(LAYERS * WIDTH**2, 2, computing)
    print(f"This lab's network, 2 nodes: by the wire, FSDP is faster above {show_rate(turn)}.")
    for rate in rates:
        gain = speedups[rate, "FSDP", "ZeRO-1"]
        winners = [
            "FSDP" if fsdp_wins else "ZeRO-1"
            for fsdp_wins in (rate > turn, expected[rate, "FSDP", "ZeRO-1"] > 1, gain.faster)
        ]
        print(
            f"{show_rate(rate)}: {winners[0]} by the wire, {winners[1]} by wire and core; ", end=""
        )
        print(f"measured: {winners[2] if gain.significant else gain.verdict}")

# %% tags=["nbval-check-output"]
# What, parameters, bytes of memory per rank, ranks, bits/s, seconds of computing in a step.
CASES = (
    ("ResNet-50, 4 nodes, 10 Gbit/s", 25.6e6, 16e9, 4, 10e9, 2),
    ("1 billion, 4 nodes of 12 GB, 10 Gbit/s", 1e9, 12e9, 4, 10e9, 10),
    ("1 billion, 4 nodes of 12 GB, 1 Gbit/s", 1e9, 12e9, 4, 1e9, 10),
    ("7 billion, 8 ranks of 24 GB, 100 Gbit/s", 7e9, 24e9, 8, 100e9, 5),
    ("7 billion, 8 ranks of 24 GB, 10 Gbit/s", 7e9, 24e9, 8, 10e9, 5),
    ("70 billion, 8 ranks of 80 GB, 400 Gbit/s", 70e9, 80e9, 8, 400e9, 10),
)
for what, parameters, room, n, rate, seconds in CASES:
    S = (n - 1) / n * 4 * parameters * 8 / rate
    takes = {
        "DDP": seconds / 3 + max(2 * seconds / 3, 2 * S),
        "ZeRO-1": seconds + 2 * S,
        "FSDP": max(seconds, 3 * S),
    }
    fits = [scheme for scheme in takes if parameters * FP32[scheme](n) <= room]
    steps = ", ".join(f"{scheme} {takes[scheme]:.1f} s" for scheme in fits) or "nothing fits"
    print(f"{what:42}{steps}")

# %% [markdown]
# On a slow wire, more computing per gather helps, or BF16 on the wire, which halves the bytes.
#
# ### Micro-batches
#
# [**Gradient accumulation**](../docs/glossary.md#gradient-accumulation) sums the gradients of *k* micro-batches before
# an update. With DDP, only the last one has to send. Under FSDP it saves far less: each micro-batch gathers the weights
# twice. Sent per micro-batch, in units of (n − 1)/n of the weights' bytes:
#
# | | by default | gradients once per *k* |
# | --- | --- | --- |
# | DDP | 2 | 2/k, with `no_sync` |
# | FSDP | 3 | 2 + 1/k, with `set_requires_gradient_sync(False)` until the last |
# | FSDP, `reshard_after_forward=False` | 2 | 1 + 1/k |
#
# The price: whole gradients on each rank until the last micro-batch; with `reshard_after_forward=False`, all weights
# from the forward to the backward pass. Larger micro-batches cost activations instead.

# %% [markdown]
# ### Activations
#
# The backward pass needs the output of every layer. That memory grows with the micro-batch, and no scheme above shards
# it. [**Activation checkpointing**](../docs/glossary.md#activation-checkpointing) stores every *k*-th output only, and
# computes the others again, *k* layers at a time: up to a third more computing. Counted (folded), on one rank:

# %% jupyter={"source_hidden": true}
sys.path.insert(0, str(work.resolve()))
import mlp


def peak_outputs(every):
    """Return the peak memory of a step that stores every n-th output, in outputs of a layer."""
    weights = mlp.random_weights(LAYERS, WIDTH)
    x, target = mlp.share_of_batch(4 * ROWS, WIDTH, 0, 0, 1)
    tracemalloc.start()
    stored, output = {0: x}, x
    for layer, weight in enumerate(weights, start=1):
        output = mlp.forward(weight, output)
        if layer % every == 0:
            stored[layer] = output
    _, error = mlp.loss_and_error(output, target)
    del output
    for first in range(LAYERS - every, -1, -every):
        outputs, segment = [stored[first]], weights[first : first + every]
        for weight in segment[:-1]:  # again
            outputs.append(mlp.forward(weight, outputs[-1]))
        outputs.append(stored.pop(first + every))
        for weight, inputs in zip(reversed(segment), outputs[-2::-1]):
            _, error = mlp.backward(weight, inputs, outputs.pop(), error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / x.nbytes


rows = [
    (str(every), str(LAYERS // every + every - 1), f"{peak_outputs(every):.1f}")
    for every in CHECKPOINTS
]
display(markdown.table(("stored: every …", "outputs, by formula", "peak, in outputs"), rows))

# %% [markdown]
# The formula: of L layers, L/k outputs stored and k − 1 computed again, with a minimum near k = √L. The peak also holds
# errors and a layer's gradient.
#
# Larger runs also use *hybrid* sharding (HSDP: shards within a node, replicas across nodes) and *sharded checkpoints*
# (each rank writes its shards). Where nothing fits, add ranks,
# [**tensor parallelism**](../docs/glossary.md#tensor-parallelism) (lab 10) or a pipeline.
#
# ## 6 · A pipeline, in one picture {read 2}
#
# In [**pipeline parallelism**](../docs/glossary.md#pipeline-parallelism), each rank has some of the layers and passes
# its outputs on. Only activations travel. But while the first rank computes, the others wait. So the batch is cut into
# *m* micro-batches ([GPipe, Huang et al. 2019](https://arxiv.org/abs/1811.06965)). With *p* ranks, a rank idles for
# (p − 1)/(m + p − 1) of the step: the *bubble*.

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(2, 1, figsize=(10, 4.6), sharex=True)
p, bubbles = 4, []
for axis, m in zip(axes, (1, 4)):
    free = [0.0] * p  # when each rank is done with what it has
    for order, spent, color in ((range(p), 1, plots.SKY), (range(p)[::-1], 2, plots.ORANGE)):
        for batch in range(m):
            arrives = 0.0
            for rank in order:
                begin = max(free[rank], arrives)
                arrives = free[rank] = begin + spent / m
                label = ("forward" if spent == 1 else "backward") if rank + batch == 0 else None
                axis.barh(rank, spent / m, left=begin, color=color, edgecolor="black", label=label)
    bubbles.append(f"{m} micro-batch{'es' if m > 1 else ''}: {1 - 3 / max(free):.0%} idle")
    axis.set(title=bubbles[-1], ylabel="rank", yticks=range(p))
    axis.invert_yaxis()
    axis.grid(visible=False)
axes[1].legend(loc="lower right", ncols=2)
axes[1].set_xlabel("time, in forward passes of a whole batch through one rank")
figure.suptitle(f"A pipeline of {p} ranks, calculated")
plots.show(
    figure,
    alt=f"When {p} ranks compute, backward twice as long as forward: {', '.join(bubbles)}.",
)

# %% [markdown]
# More micro-batches shrink the bubble, at the price of smaller matmuls and of all their outputs, stored until the
# backward pass. The *1F1B* order starts backward passes earlier: the same bubble, fewer outputs.

# %% [markdown]
# ## 7 · The same in PyTorch {read 10, wait 1.3}
#
# Now train the same network, on the same data, in PyTorch. `DistributedDataParallel` wraps the whole network.
# `fully_shard`, the second version of FSDP, wraps each layer. Both send through *Gloo*, PyTorch's library for CPUs; on
# GPUs they would use NCCL. Read `wrap` and `train_step`: where are your buckets, your gathers and your scatters?
#
# | option | what it changes |
# | --- | --- |
# | `bucket_cap_mb=4` | DDP's buckets hold 4 MiB; the default is 25 |
# | `no_sync()` | DDP adds up the gradients of several micro-batches and averages the sum once |
# | `set_requires_gradient_sync(False)` | the same for FSDP |
# | `reshard_after_forward=False` | FSDP keeps the gathered weights until the backward pass |
# | `MixedPrecisionPolicy` | FSDP computes and sends in bfloat16; its shards stay in float32 |
#
# `./lab setup --torch` installs PyTorch for CPUs (1 GB). If it is missing, this section has no results.

# %% jupyter={"source_hidden": true}
BYTES_ROWS = {
    variant: f"PyTorch, {variant}, 2 nodes: sent per step, × the weights"
    for variant in ("DDP", "FSDP")
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
    """Return a line with a ratio, the verdict, and its record."""
    return f"{what}: {Measured(*times, '×')}: {times.verdict_by_rounds}"


no_torch = torch_ranks.obstacle()
if no_torch:
    print(f"Not here: {no_torch}")
    elsewhere = table_of_machines("11", about="PyTorch")
    display(Markdown(elsewhere or "docs/other-machines.md has no results of other machines yet."))

# %%
# %%writefile work/in_torch.py
"""The network of mlp.py in PyTorch, wrapped in several variants, and a training step."""

import contextlib

import torch
from mlp import random_weights
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
VARIANTS = {  # the wrapper, its options, micro-batches in a step, whether every one is averaged
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


def averaging(model, enabled):
    """Return a context in which `backward` averages gradients, or only adds them up."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
    elif isinstance(model, DistributedDataParallel) and not enabled:
        return model.no_sync()
    return contextlib.nullcontext()


def train_step(model, optimizer, x, target, count, average_all):
    """Train by one step of `count` micro-batches; return this rank's loss."""
    total = 0.0
    for number in range(count):
        rows = slice(number, None, count)
        with averaging(model, average_all or number == count - 1):
            loss = ((model(x[rows]) - target[rows]) ** 2).mean() / 2 / count
            loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return total


# %% jupyter={"source_hidden": true}
# %%writefile work/torch_steps.py
"""Count bytes and memory of each variant, then time steps: python work/torch_steps.py --help"""

import argparse
import ctypes
import gc
import json
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from in_torch import VARIANTS, network, train_step, wrap
from mlp import share_of_batch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from labkit.testbed import traffic


class Mallinfo(ctypes.Structure):
    """The memory that the C library has allocated: mallinfo2(3)."""

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


def build(args, variant):
    """Return the wrapped network and its optimizer."""
    model = wrap(network(args.layers, args.width), *VARIANTS[variant][:2])
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def batch(args, rows, number):
    """Return this rank's inputs and targets for a step."""
    place = dist.get_rank(), dist.get_world_size()
    return map(torch.from_numpy, share_of_batch(rows, args.width, number, *place))


def count(args, variant):
    """Return the losses, and of the last step the bytes sent, DDP's buckets, the peak of memory."""
    bucket_bytes, losses = [], []

    def average_and_note(group, bucket):
        bucket_bytes.append(bucket.buffer().nbytes)
        return allreduce_hook(group, bucket)

    gc.collect()
    empty = allocated()
    model, optimizer = build(args, variant)
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(dist.group.WORLD, average_and_note)
    for number in range(args.count):
        bucket_bytes.clear()
        dist.barrier()
        before = traffic().sent if args.wires else 0
        with Peak() as peak:
            loss = train_step(
                model, optimizer, *batch(args, args.few, number), *VARIANTS[variant][2:]
            )
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
    """Return the seconds of a step in each round, on the slowest rank, by variant."""
    models = {variant: build(args, variant) for variant in args.timed}
    seconds = {variant: [] for variant in models}
    x, target = batch(args, args.rows, 0)
    for turn in range(-1, args.rounds):  # the first does not count
        for variant, (model, optimizer) in models.items():
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(args.steps):
                train_step(model, optimizer, x, target, *VARIANTS[variant][2:])
            slowest = reduce((time.perf_counter() - begin) / args.steps, dist.ReduceOp.MAX)
            seconds[variant] += [slowest] * (turn >= 0)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--layers", type=int)
    add("--width", type=int)
    add("--few", type=int, help="rows of each rank, in a step that is counted")
    add("--count", type=int, help="steps that are counted")
    add("--rows", type=int, help="rows of each rank, in a step that is timed")
    add("--rounds", type=int, help="of all variants, alternating")
    add("--steps", type=int, help="of a variant in a round")
    add("--timed", nargs="*", default=[], help="the variants to time")
    add("--wires", action="store_true", help="count what the node's interface sends")
    add("--out", default="work/torch_steps.json")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    counted = {variant: count(args, variant) for variant in VARIANTS}
    results = {"counted": counted, "seconds": time_steps(args)}
    if dist.get_rank() == 0:
        Path(args.out).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()


# %% [markdown]
# ### What each variant sends
#
# Count first, on paper. In a step, how often is each weight gathered, and how often is its gradient averaged? With
# Gloo, an average costs 2(n − 1)/n of the bytes even under FSDP: PyTorch implements reduce-scatter on Gloo as an
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
        print("PyTorch on 2 nodes, ten variants: about 35 s", flush=True)
        torch_rate = min(hidden["DDP"], MAX_RATE)
        flags = [f"--{name}={value}" for name, value in sizes.items()]
        flags += ["--few=4", "--count=2", "--wires", "--timed", *TIMED]
        with Testbed(2, torch_rate) as wires:
            env = torch_ranks.variables(wires)
            program = ("work/torch_steps.py", *flags)
            run_ranks(2, *program, threads=1, env=env, network=wires, show=False)
        in_torch = json.loads((work / "torch_steps.json").read_text())

# %% jupyter={"source_hidden": true}
sent_in_torch, sent_by_formula = {}, {}
if in_torch:
    rows, byte_predictions = [], []
    for variant, (gathers, averages, size) in PASSES.items():
        count = in_torch["counted"][variant]
        mine = losses[variant.partition(",")[0], 2]
        apart = max(abs(a / b - 1) for a, b in zip(count["losses"], mine))
        sent_in_torch[variant] = Measured(count["sent"] / BYTES, unit="×")
        by_formula = (gathers + 2 * averages) / 2 * size / 4  # (n - 1)/n is a half
        sent_by_formula[variant] = by_formula
        byte_predictions.append(Prediction(variant, by_formula, sent_in_torch[variant]))
        most = f"{count['most'] / (BYTES / 4):.1f}"
        rows.append(
            (variant, f"{by_formula:.2f}", f"{sent_in_torch[variant]}", most, f"{apart:.0e}")
        )
        if variant in BYTES_ROWS:
            torch_rows[BYTES_ROWS[variant]] = (
                sent_in_torch[variant],
                f"{by_formula:.2f}× by the formula",
            )
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
# DDP's buckets hold 25 MiB by default. (They are a second copy of the gradients, 4 bytes per weight, unless you set
# `gradient_as_bucket_view=True`.) What would your function of exercise 1 make of that, and what did PyTorch make?

# %%
if in_torch:
    your_buckets = buckets([LAYER_BYTES] * LAYERS, 25 * 2**20)
    print(f"your buckets at 25 MiB: {[len(bucket) for bucket in your_buckets]} layers")
    for variant in ("DDP", "DDP, bucket_cap_mb=4"):
        megabytes = [f"{size / 1e6:.1f}" for size in in_torch["counted"][variant]["buckets"]]
        print(f"{variant}: {', '.join(megabytes)} MB")

# %% [markdown]
# Unless you set the size, DDP makes one exception: its first bucket holds 1 MiB. All other gradients of this network
# fit into one bucket, complete only when the backward pass is over, as in section 2. So first of all, divide a
# network's gradients by 25 MiB. How long do the steps take?


# %% jupyter={"source_hidden": true}
def mean_ms(seconds):
    """Return the mean of rounds in ms, with its 95% interval."""
    mean, half = interval(np.asarray(seconds))
    return Measured(1e3 * mean, 1e3 * (mean - half), 1e3 * (mean + half), "ms", digits=0)


if in_torch:
    torch_seconds = {
        variant: np.array(by_round) for variant, by_round in in_torch["seconds"].items()
    }
    rows = []
    for variant, seconds in torch_seconds.items():
        texts = "–", "–", "–"
        if variant in sent_by_formula:
            on_wire = 8e3 * HEADERS * sent_by_formula[variant] * BYTES / torch_rate
            added = mean_ms(seconds - torch_seconds["nothing sent"])
            hides = "nothing" if added.low >= on_wire else "not certain"
            if added.high < on_wire:
                hides = f"{1 - added.value / on_wire:.0%} of it"
            texts = f"{on_wire:.0f} ms", str(added), hides
        rows.append((variant, str(mean_ms(seconds)), *texts))
    heads = (
        f"two nodes, {show_rate(torch_rate)}",
        "step",
        "on the wire, by its rate",
        "adds to a step",
        "hides",
    )
    display(markdown.table(heads, rows))
    for name, faster, slower in (
        (BUCKET_ROW, "DDP, bucket_cap_mb=4", "DDP"),
        (FSDP_ROW, "FSDP", "DDP"),
    ):
        times = ratio(1 / torch_seconds[faster], 1 / torch_seconds[slower])
        print(conclude(f"{faster} vs {slower}", times))
        torch_rows[name] = (Measured(*times, "×"), "", torch_others)

# %% [markdown]
# What a variant adds to the step in which nothing is sent includes what sending costs the core. If that is less than
# the time on the wire, the rest is hidden.
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
        for threads, by_round in seconds.items():
            torch.set_num_threads(threads)
            begin = time.perf_counter()
            train_step(model, optimizer, x, target, 1, True)
            by_round.append(time.perf_counter() - begin)
    rounds = {threads: by_round[1:] for threads, by_round in seconds.items()}
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
    print(f"With {plural(cores, 'core')}, 2 ranks could use {max(1, cores // 2)} each.")
if not no_torch and cores > 1:
    by_threads = json.loads((work / "torch_threads.json").read_text())
    times = ratio(*(1 / np.array(by_threads[str(number)]) for number in (cores, 1)))
    print(conclude(f"a rank that owns them all, {cores} threads vs 1", times))
    torch_rows[THREADS_ROW] = (Measured(*times, "×"), f"{cores}×: the cores", torchrun_others)

# %% [markdown]
# If torchrun's default fits the ranks and cores above, it costs nothing here. A rank with more than one core, such as a
# rank per socket, can lose up to the factor of a rank that owns all cores. So write `OMP_NUM_THREADS=…` before
# `torchrun`: physical cores over ranks.
#
# ### Horovod or DDP?
#
# Finally, lab 07's script. The next cell, folded, is its `train_hvd.py` in PyTorch: the same arguments, network,
# digits, warm-up, checkpoints. Comments that begin with `# DDP:` mark the six steps: compare them with yours.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The same network on two ranks with one thread each: which script trains faster?
#
# </div>

# %%
results.guess(5, "lab 07's script", ..., choices=("Horovod", "DDP", "no clear difference"))

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
    # DDP: step 2. One device per rank. Done: `run_ranks` binds each rank to its cores.
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
# digits, from the same first weights. If both do the same work, their losses agree at first; rounding errors grow with
# each step. There is no warm-up: while the rate changes, Keras and PyTorch define momentum differently.

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


def epochs_of(out):
    """Return the results of a run's epochs, from its log."""
    return json.loads((Path(out) / "log.json").read_text())["history"]


def main():
    rounds, *arguments = sys.argv[1:]
    outs = {"Horovod": "work/digits-hvd", "DDP": "work/digits-ddp"}
    histories = {name: [] for name in outs}
    dist.init_process_group("gloo")
    place = dist.get_rank(), dist.get_world_size()
    for _ in range(int(rounds)):
        train_hvd.main([*arguments, "--out", outs["Horovod"]])
        hvd.shutdown()  # its thread would take some of the core's time
        args, digits = mnist_ddp.start_up("", [*arguments, "--out", outs["DDP"]])
        mnist_ddp.train(args, digits, *place, make_model=like_keras)
        dist.barrier()
        for name, out in outs.items():
            histories[name].append(epochs_of(out))
    if MPI.COMM_WORLD.rank == 0:
        Path("work/two_scripts.json").write_text(json.dumps(histories))
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
def write_lab_07(folder, write=write_lab_07):
    """Write lab 07's scripts with the functions that they import, for this lab's digits."""
    write(folder)
    plan = catalogue.find("07").exercises[1].solution
    (folder / "checked").mkdir(exist_ok=True)
    (folder / "checked" / "plan.py").write_text(plan.removeprefix(f"{MAGIC}plan.py\n"))
    for file in folder.glob("*.py"):
        file.write_text(file.read_text().replace(", real=True", ""))


# %%
if not no_torch:
    write_lab_07(work / "lab-07")
    print("Both scripts on 2 ranks: about 30 s", flush=True)
    env = torch_ranks.variables()
    env["PYTHONPATH"] = f"{work / 'lab-07'}:{env['PYTHONPATH']}"
    flags = (SCRIPT_ROUNDS, "--digits", MNIST_DIGITS, "--epochs", 3, "--warmup", 0)
    with load.watch("section 7, Horovod and DDP") as script_others:
        run_ranks(2, "work/two_scripts.py", *flags, threads=1, env=env, show=False)

# %% jupyter={"source_hidden": true}
if not no_torch:
    runs = json.loads((work / "two_scripts.json").read_text())
    speeds, script_losses = {}, {}
    for name, histories in runs.items():
        speeds[name] = [history[-1]["images_per_second"] for history in histories]
        script_losses[name] = np.array([epoch["loss"] for epoch in histories[0]])
        after = ", ".join(f"{loss:.3f}" for loss in script_losses[name])
        print(f"{name}: {np.median(speeds[name]):,.0f} images/s; loss after each epoch: {after}")
    differ = np.abs(script_losses["DDP"] / script_losses["Horovod"] - 1)
    shares = ", ".join(f"{share:.0e}" for share in differ)
    print(f"The losses differ by {shares}, relative. ", end="")
    if differ[0] > 1e-3:
        print("Already the first epochs differ: the scripts do not do the same work.")
    elif differ[-1] > 10 * differ[0]:
        print("They agree after the first epoch: both do the same work. Then rounding errors grow.")
    else:
        print("They agree: both do the same work.")
    times = ratio(speeds["DDP"], speeds["Horovod"])
    print(conclude("DDP vs Horovod, images/s", times))
    torch_rows[SCRIPT_ROW] = (Measured(*times, "×"), "", script_others)
    winner = "DDP" if times.faster else "Horovod"
    results.compare_guess(5, winner if times.significant else "no clear difference")

# %% jupyter={"source_hidden": true}
missing = (f"not here: {no_torch or no_wires or 'a single core'}", "")
results.hand_in("7", *((*row, *torch_rows.get(row[0], missing)) for row in TORCH_ROWS))

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor: section 7.**
#
# **What to look for.** Counted bytes are the formula's plus headers. DDP's default makes two buckets of this network, 4
# MiB makes four; whether that shows in the time depends on the wire and on who has the core. With FSDP, compare "adds
# to a step" with the wire's time. "No sync" saves FSDP's averages only, and its memory rises: whole gradients replace
# shards, at most 4 − 4/n bytes per weight. DDP's hardly changes.
#
# **What not to conclude.** The last comparison is one of scripts: TensorFlow's graph and oneDNN against eager PyTorch,
# MPI's shared memory against Gloo's TCP. It does not say which library averages faster. Ask how to separate them:
# train with DDP within `no_sync`, and Horovod's ranks side by side as in lab 07, section 5. The losses drift apart
# without any mistake: change one first weight by 1e-7, and one script drifts from itself likewise.
#
# **What goes wrong.** A `torchrun` typed in a terminal listens on all addresses: on a shared server let students run
# the cell only. If PyTorch is missing, the section prints other machines' rows, if there are any.
#
# </div>

# %% [markdown]
# ## Questions {read 3}
#
# Answer each in a sentence or two, with what you saw above.
#
# 1. ZeRO-1 holds fewer bytes than DDP, sends as many, and computes fewer updates. What does it give up?
# 2. Which of these would you choose for ResNet-50 on four nodes, and why do many choose FSDP anyway?
# 3. Why doesn't FSDP's peak memory fall to 16/n on your machine? What would you change about the network?
# 4. A colleague puts each bias into a bucket of its own. What does it cost, by which part of the prediction?
# 5. On two nodes, an all-reduce sends the bytes of the weights once. On 64?
# 6. `no_sync` divides DDP's bytes by *k*. Why doesn't its counterpart do that for FSDP?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers.
#
# 1. Overlap: this ZeRO-1 begins to send when all gradients are ready, and its all-gather must be done before the next
#    forward pass. Production versions reduce-scatter in buckets during the backward pass, and gather layer by layer.
# 2. DDP: it fits many times over, and is the simplest. FSDP is chosen when the network will grow, or because one script
#    serves both. Its sending can be hidden on fast networks.
# 3. Whole layers: two of weights and some of gradients exist at the same time, whatever the number of ranks. More and
#    smaller layers help: the same weights, cut finer.
# 4. `start` for each of them; their bytes are negligible.
# 5. Nearly twice: 2(n − 1)/n of them.
# 6. Each micro-batch still gathers all weights twice; only the averages are saved. In return, gradients stay whole on
#    every rank until the last one: 4 bytes per weight instead of 4/n.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Timing, and what goes wrong.
#
# **Timing** Exercise 2 is where people need help: let them write the loop without a thread first, and only then replace
# the call by `submit`. Exercise 3 leaves the collectives to the student; ask for the bytes of each choice. Exercise 4
# leaves the schedule: let them draw gathers, computing and scatters of three layers on two lines first. Short of time?
# Section 6 is a picture, and the micro-batches of section 5 can be homework.
#
# **What goes wrong** Exercise 1: from the first layer to the last. Exercise 2: `result()` straight after `submit`
# passes all tests of numbers, and hides nothing; the check sees it. Exercise 3: the sum instead of the mean hardly
# changes what Adam does, as Adam divides by the gradient's size; the check looks at Adam's state. An all-reduce gives
# the right weights and too many bytes. Exercise 4: the last layer is gathered twice; futures in a dict keep all weights
# alive; `scatter` is called in the main thread while the other one gathers. Exercise 5: FSDP taken as hidden at the
# crossover (3S = c): then ZeRO-1 is still slower there.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** The predictions. Look at the score that sections 2 and 4 print, not at single rows. If all are
# off by the same share, the machine changed speed between the parts and the steps: run the section again. With more
# cores than ranks, the two kinds of prediction should agree.
#
# </div>

# %% [markdown]
# ## Remember
#
# - DDP is an all-reduce in buckets, overlapped with the backward pass. The best size depends on the network.
# - All-reduce = reduce-scatter + all-gather. ZeRO-1 updates between the two: the same bytes, a sharded optimizer.
# - FSDP shards everything: 16/n bytes per weight and a few whole layers, for half as many bytes again on the wire.
#   Larger micro-batches help to hide them, accumulation hardly does.
# - What the wire takes, you can calculate before you buy a network. What the cores spend on it, you have to measure.
# - The API changes; the arithmetic doesn't.
#
# What was published, what you measured, and what the formulas say:

# %% jupyter={"source_hidden": true}
PAPER = {"DDP": "16", "ZeRO-1": "4 + 12/n", "ZeRO-2": "2 + 14/n", "FSDP": "16/n"}
rows = []
for scheme in SCHEMES:
    n = COUNTED[-1]
    limit = f"{FP32[scheme](n):.1f} by the formula for FP32"
    peak = Measured(memory[scheme, n][1], unit="bytes", digits=1)
    published = f"{PAPER[scheme]}, mixed precision"
    rows.append((f"{scheme}, {n} ranks: peak bytes per weight", published, peak, limit))
for scheme in SCHEMES:
    share = Measured(sent[scheme, 2], unit="×") if sent else "not here: no wires"
    limit = f"{SENT[scheme](2):.2f}× by the formula"
    rows.append((f"{scheme}, 2 nodes: sent in a step, × the weights", "", share, limit))
if bucket_rounds:
    far = {run.layers: run for run in bucket_rounds if run.delay_ms == DELAYS_MS[-1]}
    best, _ = best_buckets({run: bucket_rounds[run] for run in far.values()})
    for end in sorted({PER_BUCKET[0], PER_BUCKET[-1]} - {best}):
        gain = ratio(*(1 / bucket_rounds[far[layers]] for layers in (best, end)))
        foreseen = (
            bucket_predictions[far[end]][1].predicted / bucket_predictions[far[best]][1].predicted
        )
        name = f"DDP, {DELAYS_MS[-1]:.0f} ms of delay, {best} layers in a bucket vs {end}"
        limit = f"{foreseen:.2f}× predicted"
        rows.append((name, "", Measured(*gain, "×"), limit, bucket_others))
for (rate, scheme, rival), gain in speedups.items():
    name = f"{scheme} vs {rival}, 2 nodes, {show_rate(rate)}"
    limit = f"{expected[rate, scheme, rival]:.2f}× predicted"
    rows.append((name, "", Measured(*gain, "×"), limit, step_others))
rows += results.handed_in("7", *TORCH_ROWS)
results.table("after the all-reduce", rows)

# %% [markdown]
# Published: [the ZeRO paper](https://arxiv.org/abs/1910.02054). Where you are on the way from the default to this
# machine's fastest setting, over all labs:

# %%
ladder.show(results)

# %% [markdown]
# **Next:** this is the last lab. `./lab report` makes one page of all that you measured. Then start the
# [welcome](00_welcome.ipynb) again on another machine, and compare.
