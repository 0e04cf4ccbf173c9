# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: hide communication behind computing, see it happen, and see what it costs
#     needs: [memory, MPI, data]
#     better_with: [cores, network, PyTorch]
# ---

# %% [markdown]
# # 11 · After the all-reduce: show the overlap
#
# In PyTorch, no one calls an all-reduce. A wrapper sends gradients while the backward pass is still running, shards the
# weights across the ranks, and makes the network look free.
#
# **You will** write the core of PyTorch's DDP and FSDP, each in about ten lines. You will record two lanes, *computing*
# and *sending*, watch one hide behind the other, and predict the picture with a 15-line simulator. You will find what
# hiding costs, and a leak that no loss reveals. Finally, you will send 64 times fewer bytes.
#
# **Time** {minutes}
#
# **Connects to** lab 06, whose all-reduce this lab takes apart, and lab 07, whose six steps PyTorch hides.

# %% tags=["parameters"]
QUICK = False  # small runs, for tests

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("11", globals())

# %%
import json
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from matplotlib.patches import Patch

from labkit.display import markdown, plots
from labkit.measure import Measured, alternate, compare, record, recorded
from labkit.mpi import run_ranks, torch_ranks
from labkit.testbed import Testbed, obstacle
from labkit.testbed.units import show_rate

# %%
# How much this lab measures. The first of two values is that of a small run.
LAYERS, WIDTH = (4, 64) if QUICK else (16, 512)  # of the network
IN_BUCKET = 2  # layers
COMPUTE_MS = 10 if QUICK else 200  # in a step on wires, sections 3 and 5
ROUNDS, STEPS = (1, 1) if QUICK else (6, 3)  # launches, and steps in each
LOCAL_STEPS = 32 if QUICK else 256  # section 6
TORCH_ROUNDS = 1 if QUICK else 6  # section 8

# %% [markdown]
# ## 1 · Three APIs, the same steps {read 3.5}
#
# Horovod's last release was in [June 2023](https://pypi.org/project/horovod/#history), and new projects use PyTorch or
# JAX. All three cover lab 07's six steps:
#
# | step | Horovod | PyTorch, DDP | JAX |
# | --- | --- | --- | --- |
# | rank and size | `hvd.init()` | `init_process_group("gloo")` | `jax.distributed.initialize()` |
# | one device each | `mpirun -bind-to` | `torchrun`, `set_num_threads` | one process per host |
# | own share of data | yours | `DistributedSampler` | `make_array_from_process_local_data` |
# | averaged gradients | `DistributedGradientTape` | wrapping the network | the compiler |
# | equal start | `broadcast_variables` | wrapping the network | `device_put`, replicated |
# | one writer | `if rank == 0` | `if rank == 0` | `if process_index() == 0` |
#
# This lab opens up the fourth row. Its network is a stack of square layers, and its optimizer is Adam, which stores two
# numbers for each weight. So each weight needs 16 bytes: 4 for itself, 4 for its gradient and 8 for Adam.

# %%
# %%writefile work/mlp.py
"""A network of square layers with ReLU, its gradients by hand, and Adam."""

import numpy as np
from lanes import noted

PIECE = 65_536  # weights that Adam updates at a time, so that its temporary arrays stay small


def random_weights(layers, width):
    """Yield the weights of each layer before training, the same on every rank."""
    rng, size = np.random.default_rng(0), np.float32((2 / width) ** 0.5)
    for _ in range(layers):
        yield size * rng.standard_normal((width, width), np.float32)


class Layer:
    """A layer: the weights that this rank holds, and those of them that it updates."""

    computes = True  # a rank that only answers computes nothing

    def __init__(self, number, weights, mine):
        self.number, self.weights, self.mine, self.steps = number, weights, mine, 0
        self.mean, self.square = np.zeros((2, mine.size), np.float32)

    def forward(self, x, whole=None):
        """Return the layer's output for its input; `whole` are its weights if it is sharded."""
        whole = (self.weights if whole is None else whole).reshape(x.shape[1], -1)
        with noted("compute", f"F{self.number}"):
            self.input, self.output = x, np.maximum(x @ whole, 0) if self.computes else x
        return self.output

    def backward(self, error, whole=None):
        """Return the gradient of the weights, and the error of the layer before."""
        whole = (self.weights if whole is None else whole).reshape(error.shape[1], -1)
        with noted("compute", f"B{self.number}"):
            if not self.computes:
                return np.zeros_like(whole), error
            error = error * (self.output > 0)
            return self.input.T @ error, error @ whole.T

    def update(self, gradient):
        """Change `mine` by one step of Adam."""
        with noted("compute", f"U{self.number}"):
            weights, gradient = self.mine.reshape(-1), gradient.reshape(-1)
            self.steps += 1
            unbias = 1 - 0.9**self.steps, 1 - 0.999**self.steps
            for first in range(0, weights.size * self.computes, PIECE):
                piece = slice(first, first + PIECE)
                self.mean[piece] += 0.1 * (gradient[piece] - self.mean[piece])
                self.square[piece] += 0.001 * (gradient[piece] ** 2 - self.square[piece])
                root = np.sqrt(self.square[piece] / np.float32(unbias[1])) + np.float32(1e-8)
                weights[piece] -= np.float32(1e-3 / unbias[0]) * self.mean[piece] / root


# %% [markdown]
# A training step calls `forward` from the first layer to the last, and `backward` from the last to the first. So the
# gradient of the *last* layer is ready first.
#
# A second thread sends. `submit` hands it a call and returns a *future* at once. The thread makes the calls one after
# another. The future's `result()` waits for its call, and returns what the call returned. While one thread is in NumPy
# or MPI, Python lets the other one run. Both lanes log what they do, and when.

# %%
# %%writefile work/lanes.py
"""A rank's two lanes: one thread computes, and another one sends. Both note what they do when."""

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

log = []  # (lane, name, began, ended, seconds that the thread had a core)


@contextlib.contextmanager
def noted(lane, name):
    """Note the block in the log."""
    began, on_core = time.monotonic(), time.thread_time()
    yield
    log.append((lane, name, began, time.monotonic(), time.thread_time() - on_core))


class Future:
    """The result of a call that may not have been made yet."""

    def __init__(self, future, name):
        self.future, self.name = future, name

    def result(self):
        with noted("wait", self.name):
            return self.future.result()


class Sender:
    """A thread on a CPU of its own, or on that of the thread that computes."""

    def __init__(self, cpu, overlap=True):
        self.overlap, self.calls = overlap, 0
        self.thread = ThreadPoolExecutor(1, initializer=self.move_to, initargs=(cpu,))

    def move_to(self, cpu):
        os.sched_setaffinity(threading.get_native_id(), {cpu})

    def submit(self, function, *arguments):
        """Let the thread call a function; without overlap, wait for it."""
        name, self.calls = self.calls, self.calls + 1
        now = time.monotonic()
        log.append(("send", name, now, now, 0.0))
        future = self.thread.submit(self.call, name, function, arguments)
        if not self.overlap:
            wait([future])
        return Future(future, name)

    def call(self, name, function, arguments):
        with noted("wire", name):
            return function(*arguments)


# %% [markdown]
# With `overlap=False`, `submit` waits. This is the control. The next file contains the calls that send. An
# [**all-reduce**](../docs/learn/glossary.md#all-reduce) has two halves (lab 06, section 3), and its successors use the
# halves separately.

# %%
# %%writefile work/sending.py
"""The calls that send: the mean of gradients, and the two halves of an all-reduce."""

import numpy as np
from mpi4py import MPI


def average(ranks, gradients):
    """Return the mean over all ranks of each gradient, in a list: one all-reduce for all."""
    flat = np.concatenate([gradient.ravel() for gradient in gradients])
    ranks.Allreduce(MPI.IN_PLACE, flat)
    flat /= ranks.size
    return np.split(flat, np.cumsum([gradient.size for gradient in gradients])[:-1])


def scatter(ranks, gradient):
    """Return this rank's shard of the mean gradient: a reduce-scatter."""
    mine = np.empty(gradient.size // ranks.size, np.float32)
    ranks.Reduce_scatter_block(gradient, mine)
    mine /= ranks.size
    return mine


def gather(ranks, mine):
    """Return a layer's whole weights, of which each rank has a shard: an all-gather."""
    whole = np.empty(mine.size * ranks.size, np.float32)
    ranks.Allgather(mine, whole)
    return whole


def refresh(ranks, weights):
    """Replace the other ranks' shards in a layer's whole weights: an all-gather, too."""
    ranks.Allgather(MPI.IN_PLACE, weights)


# %% [markdown]
# ## 2 · DDP: send while you compute {read 2.5, do 13}
#
# PyTorch's [**DDP**](../docs/learn/glossary.md#ddp), `DistributedDataParallel`, uses [**data
# parallelism**](../docs/learn/glossary.md#data-parallelism), as Horovod does. Each rank has all the weights, and a
# share of the batch. DDP averages gradients in [**buckets**](../docs/learn/glossary.md#bucket) of a few layers. When a
# bucket is complete, its all-reduce starts, while the [**backward pass**](../docs/learn/glossary.md#backward-pass)
# continues.
#
# ### Exercise 1 · Buckets
#
# Write `buckets(sizes, limit)`. `sizes` lists the bytes in each layer's gradient, from the first layer to the last, and
# a bucket may hold up to `limit` bytes. Return a list of buckets, each a list of layer numbers.
#
# - Layers come in the order in which their gradients become ready.
# - Each bucket takes the next layers as long as it stays within `limit`. No bucket is empty.
# - A layer larger than `limit` gets a bucket of its own.
#
# With `sizes` of `[3, 3, 4, 9]` and a limit of 7, the result is `[[3], [2, 1], [0]]`.

# %%
# %%writefile work/ddp_plan.py
"""The plan of a DDP step: which gradients travel together."""


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
buckets = check(1, "work/ddp_plan.py")

# %% [markdown]
# ### Exercise 2 · A backward pass that sends
#
# Write `ddp_backward(ranks, layers, buckets, error, sender)`. It computes the gradients of all layers, from the last to
# the first, and updates the weights with their means.
#
# - `gradient, error = layers[number].backward(error)` needs the error that the following layer returned. The last layer
#   needs the `error` passed to your function.
# - When a bucket is complete, submit its gradients as one new list, in the order of the bucket, with
#   `sender.submit(average, ranks, gradients)`. Continue with the next bucket at once.
# - After the last gradient, wait for the means, and give each layer its own with `layers[number].update(mean)`.
#
# The check calls your function on 1 to 4 ranks, with layers and a sender that record the order of calls. This takes a
# few seconds.

# %%
# %%writefile work/ddp.py
"""DDP: gradients travel in buckets while others are computed."""

from sending import average


def ddp_backward(ranks, layers, buckets, error, sender):
    """Compute all gradients, average them over the ranks, and update the layers."""
    ### BEGIN SOLUTION
    futures = []
    for bucket in buckets:
        gradients = []
        for number in bucket:
            gradient, error = layers[number].backward(error)
            gradients.append(gradient)
        futures.append(sender.submit(average, ranks, gradients))
    for bucket, future in zip(buckets, futures):
        for number, mean in zip(bucket, future.result()):
            layers[number].update(mean)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
ddp = check(2, "work/ddp.py")

# %% [markdown]
# ## 3 · Watch it hide {read 7.5, wait 0.8}
#
# The next file builds each scheme's layers, and runs a training step. The schemes other than DDP come later. You can
# skip the files that only measure, `timed.py`, `counted.py` and `tcp.py`.

# %%
# %%writefile work/schemes.py
"""A training step of each scheme."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
from checked.ddp_plan import buckets
from lanes import noted
from mlp import Layer, random_weights
from sending import gather, refresh


def load(path, function):
    """Return a function of a file."""
    sys.path.append(str(Path(path).parent))
    return getattr(import_module(Path(path).stem), function)


def make(scheme, ranks, layers, width):
    """Return the layers as a rank of this scheme holds them."""
    made = []
    for number, weights in enumerate(random_weights(layers, width)):
        mine = weights.reshape(ranks.size, -1)[ranks.rank]  # this rank's shard: a view
        if scheme == "FSDP":
            weights = mine = mine.copy()
        made.append(Layer(number, weights, weights if scheme == "DDP" else mine))
    return made


def sharded_forward(ranks, layers, x, sender):
    """Return the output, and the last layer's whole weights."""
    coming = sender.submit(gather, ranks, layers[0].weights)
    for number, layer in enumerate(layers):
        whole = coming.result()
        if number + 1 < len(layers):  # the next one travels while this one computes
            coming = sender.submit(gather, ranks, layers[number + 1].weights)
        x = layer.forward(x, whole)
    return x, whole


def step(scheme, backward, ranks, layers, rows, sender, in_bucket=2):
    """Train by a step on this rank's rows; return their loss."""
    output = rows
    if scheme == "FSDP":
        output, *last = sharded_forward(ranks, layers, rows, sender)
    else:
        for layer in layers:
            output = layer.forward(output)
    with noted("compute", "loss"):
        difference = output - np.abs(rows)
        loss, error = float((difference**2).mean()) / 2, difference / difference.size
    if scheme == "DDP":
        backward(ranks, layers, buckets([1] * len(layers), in_bucket), error, sender)
    elif scheme == "FSDP":
        backward(ranks, layers, last.pop(), error, sender)  # now only `backward` holds it
    else:
        backward(ranks, layers, error, sender)
        for future in [sender.submit(refresh, ranks, layer.weights) for layer in layers]:
            future.result()
    return loss


# %%
# %%writefile work/timed.py
"""Time steps of some schemes on 2 ranks: work/timed.py OPTIONS, in JSON"""

import json
import os
import sys
import time
from pathlib import Path

import lanes
import numpy as np
from mlp import Layer
from mpi4py import MPI
from schemes import load, make, step

options = json.loads(sys.argv[1])
world = MPI.COMM_WORLD
me, n = world.rank, world.size
everyone = world.allgather(sorted(os.sched_getaffinity(0)))
cpus = everyone[me]
if everyone[0] == everyone[-1]:  # not bound to cores of their own: divide them
    everyone = [cpus[len(cpus) * rank // n :] or cpus for rank in range(n)]
    cpus = everyone[me]
computes = sends = cpus[0]
if options["spare"] == "own":  # this rank's other core
    sends = cpus[-1]
elif options["spare"] == "other's":  # the core of the other rank, which only answers
    sends, Layer.computes = everyone[1][0], me == 0
os.sched_setaffinity(0, {computes})

rows = np.random.default_rng(me).standard_normal((options["rows"], options["width"]), np.float32)
senders = {overlap: lanes.Sender(sends, overlap) for overlap in (True, False)}
results = {}
for name, scheme, path, function, overlap in options["runs"]:
    backward = load(path, function)
    layers = make(scheme, world, options["layers"], options["width"])
    logs = []
    for _ in range(options["steps"] + 1):  # the first doesn't count
        lanes.log.clear()
        senders[overlap].calls = 0
        world.Barrier()
        began = time.monotonic()
        step(scheme, backward, world, layers, rows, senders[overlap], options["in_bucket"])
        logs.append(
            [
                (lane, what, *(round(1e3 * part, 3) for part in (start - began, end - began, core)))
                for lane, what, start, end, core in lanes.log
            ]
        )
    results[name] = logs[1:]
if me == 0:
    Path("work/timed.json").write_text(json.dumps(results))

# %% [markdown]
# There are four settings. The ranks are connected either by a **wire** or by this machine's **memory**, where sending
# means copying. A rank's two threads either share **one core**, or the sending thread has a **spare core**. With fewer
# than four cores, rank 1 computes nothing in *spare core* and only answers, on the core that rank 0's sender uses. In
# memory, calls without overlap take longer there.
#
# A step on wires uses as many rows as this machine processes in about 200 ms. At the wire's rate, sending all gradients
# takes as long as the backward pass, so nearly all of them *could* hide. In memory, a step uses fewer rows.

# %%
no_wires, few = obstacle(), machine.usable_cores < 4
print("Wires:", no_wires or "possible")
SLEEPY = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": 1, "MPIR_CVAR_POLLS_BEFORE_YIELD": 10}  # waiting ranks


def launch(runs, spare, network, rows):
    """Return rank 0's log of each step, by run."""
    where = ("other's" if few else "own") if spare else ""
    options = {"runs": runs, "spare": where, "rows": rows, "steps": STEPS}
    options |= {"layers": LAYERS, "width": WIDTH, "in_bucket": IN_BUCKET}
    env = SLEEPY | {"OPENBLAS_NUM_THREADS": 1}
    cores = {"threads": 2 if spare and not few else 1}
    run_ranks(
        2, "work/timed.py", json.dumps(options), env=env, network=network, show=False, **cores
    )
    return json.loads((work / "timed.json").read_text())


# %%
IN_TURN, OVERLAPPED = "in turn", "overlapped"
DDP_RUNS = [
    (name, "DDP", ddp, "ddp_backward", name == OVERLAPPED) for name in (IN_TURN, OVERLAPPED)
]


def total(log, lane, names=""):
    """Return the ms of a lane's bars, or of those whose name begins with some letter."""
    return sum(bar[3] - bar[2] for bar in log if bar[0] == lane and str(bar[1]).startswith(names))


def ends(bars):
    """Return the ms at which the last bar ends."""
    return max(bar[3] for bar in bars)


trial = launch(DDP_RUNS, False, None, 256)[IN_TURN][-1]
updates = total(trial, "compute", "U")  # their time doesn't depend on the rows
per_row = (total(trial, "compute") - updates) / 256
ROWS = 64 * max(1, round((COMPUTE_MS - updates) / per_row / 64))
backward_ms = total(trial, "compute", "B") * ROWS / 256
n_bytes = 4 * LAYERS * WIDTH**2
rate = min(5e9, max(1e7, 8e3 * n_bytes / backward_ms))
print(f"{ROWS} rows; {n_bytes / 1e6:.1f} MB of gradients, {backward_ms:.0f} ms of backward pass")
print(f"The wire: {show_rate(rate)}")

# %%
wires = None if no_wires else Testbed(2, rate)
SETTINGS = {  # whether there is a spare core, the network, a rank's rows
    "wire, one core": (False, wires, ROWS),
    "wire, spare core": (True, wires, ROWS),
    "memory, one core": (False, None, max(8, ROWS // 8)),
    "memory, spare core": (True, None, max(8, ROWS // 8)),
}
possible = {  # others are recorded
    "wire, one core": not no_wires,
    "wire, spare core": not no_wires and machine.usable_cores > 1,
    "memory, one core": True,
    "memory, spare core": machine.usable_cores > 1,
}


# %% jupyter={"source_hidden": true}
def typical(steps):
    """Return the log of the step whose time is closest to the median."""
    middle = np.median([ends(log) for log in steps])
    return min(steps, key=lambda log: abs(ends(log) - middle))


def measure(section, name, runs):
    """Measure runs alternately in each setting; return their figures in ms, and all logs."""
    waiting, logs = {}, {}

    def ms(setting, run):  # the first run of a round launches all runs of a setting
        if run not in waiting.get(setting, {}):
            waiting[setting] = launch(runs, *SETTINGS[setting])
        steps = waiting[setting].pop(run)
        logs.setdefault(f"{setting}, {run}", []).extend(steps)
        return float(np.median([ends(log) for log in steps]))

    pairs = [(setting, run[0]) for setting in SETTINGS if possible[setting] for run in runs]
    variants = {f"{setting}, {run}": partial(ms, setting, run) for setting, run in pairs}
    figures = alternate(
        variants,
        ROUNDS,
        "ms",
        f"section {section}",
        lambda line: print(line) if "round" in line else None,
    )
    if all(possible.values()):
        shown = {key: [typical(steps)] for key, steps in logs.items()}
        record(f"11-{name}", figures, QUICK, logs=shown)
        return figures, logs
    stored = recorded(f"11-{name}")
    return stored.figures | figures, stored.data["logs"] | logs


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** With one core per rank, by what factor does overlap speed up a step on the wire? And in memory?
#
# </div>

# %%
results.guess(1, "wire, one core: overlapped vs in turn", ..., unit="×")
results.guess(2, "memory, one core: overlapped vs in turn", ..., unit="×")

# %%
steps, logs = measure(3, "ddp", DDP_RUNS)
for setting in SETTINGS:
    print(f"{setting:20} in turn: {steps[f'{setting}, {IN_TURN}']}")

# %% [markdown]
# ### A 15-line simulator
#
# The *in turn* run shows how long each bar is on its own. Your program determines which call comes after which, and its
# log contains every `compute`, `send` (a call to `submit`) and `wait`. The simulator rearranges the bars, assuming that
# **sending needs no core**.


# %%
def simulate(actions, ms, on_core):
    """Return the bars (lane, name, began, ended) of a step whose sending overlaps."""
    bars, now, sender, arrives = [], 0.0, 0.0, {}
    for action, name in actions:
        if action == "compute":
            bars.append((action, name, now, now + ms[action, name]))
            now = bars[-1][3]
        elif action == "send":
            begins = max(now, sender)  # the thread makes one call after the other
            sender = arrives[name] = begins + ms["wire", name]
            bars.append(("wire", name, begins, sender))
            now += on_core.get(name, 0.0)  # section 3, at the end; at first, no core is needed
        else:
            now = max(now, arrives[name])
    return bars


# %%
def rearranged(setting, in_turn=IN_TURN, overlapped=OVERLAPPED, core=False):
    """Return the predicted bars of an overlapped run, from the bars of the run in turn."""
    parts, on_core = {}, {}
    for log in logs[f"{setting}, {in_turn}"]:
        for lane, name, began, ended, seconds in log:
            parts.setdefault((lane, name), []).append(ended - began)
            if lane == "wire":
                on_core.setdefault(name, []).append(seconds)
    ms = {key: float(np.median(of)) for key, of in parts.items()}
    needed = {name: float(np.median(of)) for name, of in on_core.items()} if core else {}
    log = typical(logs[f"{setting}, {overlapped}"])
    actions = [bar[:2] for bar in log if bar[0] != "wire"]
    return simulate(actions, ms, needed)


predicted = {setting: rearranged(setting) for setting in SETTINGS}
for setting, bars in predicted.items():
    in_turn = steps[f"{setting}, {IN_TURN}"].value
    print(f"{setting:20} in turn {in_turn:6.1f} ms, overlapped: predicted", end="")
    print(f" {ends(bars):6.1f} ms, {in_turn / ends(bars):.2f}×")

# %% jupyter={"source_hidden": true}
COLORS = {"F": plots.SKY, "B": plots.ORANGE, "U": plots.YELLOW, "l": "white"}
KINDS = {"forward": plots.SKY, "backward": plots.ORANGE, "update": plots.YELLOW}


def draw(title, panels, figures):
    """Draw the two lanes of some steps; their figures know whether other work disturbed them."""
    figure, axes = plt.subplots(len(panels), figsize=(12, 1.5 * len(panels) + 0.9), sharex=True)
    for axis, (name, bars) in zip(np.atleast_1d(axes), panels.items()):
        for lane, what, began, ended, *_ in bars:
            if lane in ("compute", "wire"):
                color = plots.GREEN if lane == "wire" else COLORS[what[0]]
                place = (0.55, 0.8) if lane == "compute" else (-0.4, 0.8)
                edge = 0.0 if color == plots.YELLOW else 0.5  # updates are narrow
                style = {"color": color, "edgecolor": "black", "linewidth": edge}
                axis.broken_barh([(began, ended - began)], place, **style)
        axis.set_yticks([0.95, 0.0], ["compute", "send"])
        mark = "" if possible[", ".join(name.split(", ")[:2])] else ", recorded"
        axis.set_title(f"{name}{mark}: {ends(bars):.0f} ms", fontsize=12, loc="left")
        axis.grid(False)
    axis.set_xlabel("time (ms)")
    patches = [Patch(color=color, label=kind) for kind, color in KINDS.items()]
    patches.append(Patch(color=plots.GREEN, label="a call that sends"))
    figure.legend(handles=patches, loc="outside lower center", ncols=4)
    figure.suptitle(title)
    said = "; ".join(f"{name}: {ends(bars):.0f} ms" for name, bars in panels.items())
    watched = next(iter(figures.values())).contention
    alt = f"Two lanes of rank 0, computing and sending. {said}."
    plots.show(figure, alt=alt, keep=results, watched=watched)


# %%
def overlapped_vs_in_turn(setting):
    """Print how far the prediction is off, and return the speed-up."""
    step, in_turn = (steps[f"{setting}, {run}"] for run in (OVERLAPPED, IN_TURN))
    miss = ends(predicted[setting]) / step.value - 1
    print(f"{setting:20} {step!s:28} predicted {ends(predicted[setting]):6.1f}, {miss:+.0%}")
    return compare(step, in_turn)


gains = {setting: overlapped_vs_in_turn(setting) for setting in SETTINGS}
for setting, gain in gains.items():
    print(f"{setting:20} overlapped vs in turn: {gain}")
for network in ("wire", "memory"):
    spare, shared = (steps[f"{network}, {cores} core, {OVERLAPPED}"] for cores in ("spare", "one"))
    print(f"{network:20} spare core vs one core:  {compare(spare, shared)}")
if few:
    print("With a spare core, only rank 0 computes, so such a step trains on half as many rows.")
results.compare_guess(1, gains["wire, one core"])
results.compare_guess(2, gains["memory, one core"])

# %%
for network in ("wire", "memory"):
    setting = f"{network}, one core"
    panels = {
        f"{setting}, in turn": typical(logs[f"{setting}, {IN_TURN}"]),
        f"{setting}, overlapped, predicted": predicted[setting],
        f"{setting}, overlapped": typical(logs[f"{setting}, {OVERLAPPED}"]),
        f"{network}, spare core, overlapped": typical(logs[f"{network}, spare core, {OVERLAPPED}"]),
    }
    draw(f"Two lanes of DDP: {network}", panels, steps)
print("Spare core:", "rank 1 only answers" if few else "both ranks compute")

# %% [markdown]
# **Why were we wrong?** The sending thread has to copy the gradients, hand them to the kernel, and add up what arrives.
# The log contains the time that each thread spent on a core. If both threads share a core, the computing lane loses the
# time that sending needs:


# %%
def on_a_core(log, lane):
    """Return the ms that a lane's thread had a core, in its bars."""
    return sum(bar[4] for bar in log if bar[0] == lane)


def lanes(key):
    """Return the median ms in a step of the two lanes, and of their threads on a core."""
    pairs = [(part, lane) for part in (total, on_a_core) for lane in ("compute", "wire")]
    return np.median([[part(log, lane) for part, lane in pairs] for log in logs[key]], axis=0)


print("Milliseconds in a step, in turn → overlapped:")
heads = "compute lane", "send lane", "compute, core", "send, core"
print(" " * 20, *(f"{head:>15}  " for head in heads))
for setting in SETTINGS:
    before, after = lanes(f"{setting}, {IN_TURN}"), lanes(f"{setting}, {OVERLAPPED}")
    print(f"{setting:20}", *(f"{a:6.1f} → {b:6.1f}  " for a, b in zip(before, after)))

# %%
for setting in SETTINGS:
    with_core = ends(rearranged(setting, core="one core" in setting))
    step = steps[f"{setting}, {OVERLAPPED}"]
    print(f"{setting:20} {step!s:28} predicted {with_core:6.1f}, {with_core / step.value - 1:+.0%}")

# %%
results.answer(1, "When does sending hide on a rank with one core? What does it cost?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# A call that sends consists of waiting and work. While bytes are on a slow wire, the sending thread sleeps, and the
# core computes, so this waiting is hidden. That works because `SLEEPY` lets MPI sleep. MPI libraries usually poll, so
# waiting takes the core, too. Work doesn't hide on a single core. In memory, the compute lane grows by about the time
# that sending needs. On the wire, it grows by more, because computing itself needs more core time, probably due to the
# kernel's packet handling and data evicted from the cache. So overlap wins where a call mostly waits for a wire, and
# gains little or loses where it mostly copies and adds. A spare core also takes over the work. On a GPU, overlap looks
# free because only the network card and a few of the multiprocessors do the sending.
#
# </details>

# %% [markdown]
# ## 4 · A leak in ZeRO-2 {read 3.5, do 6, wait 0.2}
#
# With DDP, every rank stores Adam's numbers for all weights, and computes the same update.
# [**ZeRO**](../docs/learn/glossary.md#zero) ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)) shards these
# numbers. Each rank has all the weights, but updates only its shard, and then gathers the others with `refresh`. On *n*
# ranks, a weight needs this many bytes in FP32, for itself, its gradient and Adam:
#
# | DDP | ZeRO-1 | ZeRO-2 | FSDP, or ZeRO-3 |
# | --- | --- | --- | --- |
# | 4 + 4 + 8 | 4 + 4 + 8/n | 4 + 4/n + 8/n | 4/n + 4/n + 8/n |
#
# ZeRO-1 keeps whole gradients. ZeRO-2 drops a layer's gradient as soon as the rank's shard of the mean has arrived.
# This is a colleague's ZeRO-2:

# %%
# %%writefile work/leaky.py
"""ZeRO-2: each rank updates its shard of each layer, and keeps its shard of the gradient only."""

from sending import scatter


def zero2_backward(ranks, layers, error, sender):
    """Compute all gradients, and update this rank's shard of each layer with the mean."""
    futures = []
    for layer in reversed(layers):
        gradient, error = layer.backward(error)
        futures.append(sender.submit(scatter, ranks, gradient))
    for layer, future in zip(reversed(layers), futures):
        layer.update(future.result())


# %% [markdown]
# NumPy reports its arrays to Python's `tracemalloc`, so memory can be counted to the byte. Linux counts the bytes that
# each socket has sent (`tcp_info`).

# %%
# %%writefile work/tcp.py
"""Count the bytes that this process has sent."""

import contextlib
import os
import socket
import stat
import struct
from pathlib import Path


def bytes_sent():
    """Return the bytes that this process's TCP connections have sent: tcp_info in tcp(7)."""
    total = 0
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # not TCP, or closed meanwhile
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as copy:
                    info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
                    total += struct.unpack_from("Q", info, 120)[0]  # tcpi_bytes_acked
    return total


# %%
# %%writefile work/counted.py
"""Count memory and bytes of a scheme: work/counted.py LAYERS WIDTH ROWS SCHEME PATH FUNCTION"""

import json
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
from lanes import Sender
from mpi4py import MPI
from schemes import load, make, step
from tcp import bytes_sent

world = MPI.COMM_WORLD
layers, width, rows = map(int, sys.argv[1:4])
scheme, path, function = sys.argv[4:]
backward, losses = load(path, function), []
tracemalloc.start()
held = make(scheme, world, layers, width)
sender = Sender(min(os.sched_getaffinity(0)))
for number in range(4):
    world.Barrier()
    if number == 2:  # from now on, everything exists
        tracemalloc.reset_peak()
        before = bytes_sent()
    mine = np.random.default_rng([number, world.rank]).standard_normal((rows, width), np.float32)
    loss = step(scheme, backward, world, held, mine, sender)
    losses.append(world.allreduce(loss) / world.size)
sent = (bytes_sent() - before) / 2
peak = tracemalloc.get_traced_memory()[1]
everyone = world.allgather(float(sum(np.abs(layer.weights).sum() for layer in held)))
if world.rank == 0:
    weights = layers * width**2
    apart = None if scheme == "FSDP" else max(everyone) - min(everyone)  # of whole weights only
    report = {"sent": sent / weights / 4, "peak": peak / weights, "losses": losses, "apart": apart}
    Path("work/counted.json").write_text(json.dumps(report))

# %%
counts = {}
RANKS = 4
FORMULAS = {  # on n ranks: bytes per weight, and bytes sent in a step, in multiples of the weights
    "DDP": (lambda n: 16, lambda n: 2 * (n - 1) / n),
    "ZeRO-1": (lambda n: 8 + 8 / n, lambda n: 2 * (n - 1) / n),
    "ZeRO-2": (lambda n: 4 + 12 / n, lambda n: 2 * (n - 1) / n),
    "FSDP": (lambda n: 16 / n, lambda n: (3 - 1 / LAYERS) * (n - 1) / n),
}


def count(name, path, function):
    """Count a scheme's memory and bytes on four nodes, or without wires in memory."""
    network = None if no_wires else Testbed(RANKS, "1 Gbit/s")
    scheme = name.partition(",")[0]
    arguments = LAYERS, WIDTH, 2, scheme, path, function
    run_ranks(
        RANKS, "work/counted.py", *arguments, threads=1, env=SLEEPY, network=network, show=False
    )
    if network:
        network.close()
    counts[name] = json.loads((work / "counted.json").read_text())
    print(f"{name}: at most {counts[name]['peak']:.1f} bytes per weight")


for scheme, (memory, _) in FORMULAS.items():
    print(f"{scheme} on {RANKS} ranks, by formula: {memory(RANKS):.1f} bytes per weight")
count("DDP", ddp, "ddp_backward")
count("ZeRO-2, the colleague's", "work/leaky.py", "zero2_backward")

# %% [markdown]
# The program trains correctly, and none of lab 07's tests would complain. But its peak is not ZeRO-2's.
#
# ### Exercise 3 · Find the leak
#
# What still refers to the gradients? Write `zero2_backward` so that **at any time, at most two whole gradients exist**,
# however slow the wire is. But keep the overlap. While a gradient is being computed, the one before it must be able to
# travel.
#
# The check's sender is as slow as possible. It makes a call only when your code waits for it, or for a later one.

# %%
# %%writefile work/zero2.py
"""ZeRO-2: each rank updates its shard of each layer, and keeps its shard of the gradient only."""

from sending import scatter


def zero2_backward(ranks, layers, error, sender):
    """Compute all gradients, and update this rank's shard of each layer with the mean."""
    ### BEGIN SOLUTION
    futures = []
    for layer in reversed(layers):
        if len(futures) > 1:
            futures[-2].result()  # the gradient of two layers ago has left
        gradient, error = layer.backward(error)
        futures.append(sender.submit(scatter, ranks, gradient))
    for layer, future in zip(reversed(layers), futures):
        layer.update(future.result())
    ### END SOLUTION


# %% tags=["nbval-check-output"]
zero2 = check(3, "work/zero2.py")

# %%
count("ZeRO-2", zero2, "zero2_backward")

# %%
results.answer(2, "Where were the gradients, and why does no loss and no byte count show it?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# The gradients were in the sender's queue, which holds the arguments of each call until it is made. If computing is
# faster than the wire, nearly all gradients wait there, and the peak is ZeRO-1's. The same numbers arrive, but the
# gradients' memory is freed later. The cure is backpressure, a limit on what may be in flight. PyTorch's first FSDP has
# such a limit for gathered weights (`limit_all_gathers`).
#
# </details>

# %% [markdown]
# ## 5 · FSDP: shard everything {read 4, do 10.5, wait 1.2}
#
# [**FSDP**](../docs/learn/glossary.md#fsdp), fully sharded data parallel, is PyTorch's name for ZeRO's third stage. A
# rank stores a shard of each layer's weights, gradient and Adam numbers. Before a layer computes, its weights are
# gathered, and afterwards they are dropped. The backward pass gathers them again, and scatters the gradient.
#
# ### Exercise 4 · When to gather, when to drop
#
# The forward pass is `sharded_forward` in `work/schemes.py`. While a layer computes, the next one's weights travel.
# Write the backward pass, `fsdp_backward(ranks, layers, whole, error, sender)`:
#
# - `gradient, error = layers[number].backward(error, whole)` needs the layer's whole weights. You get the last layer's
#   as `whole`, left over from the forward pass.
# - `sender.submit(gather, ranks, layers[number].weights)` returns a future of a layer's whole weights. While a layer
#   computes, the previous layer's weights travel.
# - `sender.submit(scatter, ranks, gradient)` returns a future of this rank's shard of the mean. At the end, each layer
#   gets its own with `layers[number].update(shard)`.
# - At any time, at most two layers' whole weights and two whole gradients exist. Python frees an array when no variable
#   or future refers to it.
# - Send no more than necessary, and only with `submit`.
#
# Draw three layers in two lanes first. The check uses exercise 3's slow sender.

# %%
# %%writefile work/fsdp.py
"""FSDP: each rank has a shard of each layer, and gathers whole weights just in time."""

from sending import gather, scatter


def fsdp_backward(ranks, layers, whole, error, sender):
    """Compute all gradients, and update this rank's shard of each layer with the mean."""
    ### BEGIN SOLUTION
    last, futures, coming = len(layers) - 1, [], None
    for number in reversed(range(last + 1)):
        if number < last:
            whole = coming.result()
        if number > 0:
            coming = sender.submit(gather, ranks, layers[number - 1].weights)
        gradient, error = layers[number].backward(error, whole)
        futures.append(sender.submit(scatter, ranks, gradient))
    for number, future in zip(reversed(range(last + 1)), futures):
        layers[number].update(future.result())
    ### END SOLUTION


# %% tags=["nbval-check-output"]
fsdp = check(4, "work/fsdp.py")

# %%
results.answer(3, "fsdp_backward has no limit like exercise 3's. Why doesn't it leak?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# The sender makes its calls in order. So when `coming.result()` returns, the scatters submitted before its gather are
# done, and their gradients are freed.
#
# </details>

# %%
count("FSDP", fsdp, "fsdp_backward")
if no_wires:
    for name, sent in recorded("11-counts").data["sent"].items():
        counts[name]["sent"] = sent
else:
    record("11-counts", {}, QUICK, sent={name: of["sent"] for name, of in counts.items()})
rows = []
for name, of in counts.items():
    memory, sent = (formula(RANKS) for formula in FORMULAS[name.partition(",")[0]])
    row = f"{memory:.1f}", f"{of['peak']:.1f}", f"{sent:.3f}", f"{of['sent']:.3f}"
    off = max(abs(a / b - 1) for a, b in zip(of["losses"], counts["DDP"]["losses"]))
    apart = "–" if of["apart"] is None else f"{of['apart']:.0g}"
    rows.append((name, *row, f"{off:.0e}", apart))
heads = f"{RANKS} ranks", "bytes per weight: formula", "peak", "sent, × weights: formula", "sent"
display(markdown.table((*heads, "losses differ from DDP's by", "ranks' weights differ by"), rows))

# %% [markdown]
# Besides the formula's bytes, the peak includes short-lived data, such as buckets in flight and FSDP's whole layers.
# **All ranks with whole weights agree**, and all schemes learn equally well.
#
# Now all schemes run. DDP runs a second time, as an interval covers only one session. *ZeRO-1* is the colleague's
# program under its proper name. It scatters during the backward pass, and gathers at the end.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** FSDP sends half as much again as DDP. How many times faster is it than DDP on the wire, with one core
# per rank?
#
# </div>

# %%
results.guess(3, "wire, one core: FSDP vs DDP", ..., unit="×")

# %%
SCHEME_RUNS = [
    ("DDP", "DDP", ddp, "ddp_backward", True),
    ("ZeRO-1", "ZeRO-1", "work/leaky.py", "zero2_backward", True),
    ("FSDP in turn", "FSDP", fsdp, "fsdp_backward", False),
    ("FSDP", "FSDP", fsdp, "fsdp_backward", True),
]
schemes, more = measure(5, "schemes", SCHEME_RUNS)
logs |= more
for setting in SETTINGS:
    bars = rearranged(setting, "FSDP in turn", "FSDP", core="one core" in setting)
    step, miss = schemes[f"{setting}, FSDP"], ends(bars) / schemes[f"{setting}, FSDP"].value - 1
    print(f"{setting:20} FSDP {step!s:28} predicted {ends(bars):6.1f}, {miss:+.0%}")
for setting in SETTINGS:
    again, before = schemes[f"{setting}, DDP"], steps[f"{setting}, {OVERLAPPED}"]
    print(f"{setting:20} DDP {again!s:28} in section 3: {before}")
for setting in SETTINGS:
    for other in ("FSDP in turn", "DDP", "ZeRO-1"):
        gain = compare(schemes[f"{setting}, FSDP"], schemes[f"{setting}, {other}"])
        print(f"{setting:20} FSDP vs {other:12} {gain}")
results.compare_guess(3, compare(schemes["wire, one core, FSDP"], schemes["wire, one core, DDP"]))

# %%
print("On one core, ms:      computing     sending     neither     a step")
for setting in ("wire, one core", "memory, one core"):
    for name in ("DDP", "ZeRO-1", "FSDP"):
        *_, computes, sends = lanes(f"{setting}, {name}")
        step = np.median([ends(log) for log in logs[f"{setting}, {name}"]])
        parts = computes, sends, step - computes - sends, step
        print(f"{setting:17} {name:6}", *(f"{part:9.1f}  " for part in parts))

# %%
for network in ("wire", "memory"):
    names = [f"{network}, one core, FSDP in turn", f"{network}, one core, FSDP"]
    names += [f"{network}, spare core, FSDP"]
    draw(f"Two lanes of FSDP: {network}", {name: typical(logs[name]) for name in names}, schemes)

# %%
results.answer(4, "What do three calls per layer cost on one core?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# FSDP's calls take more work (column *sending*). On the wire, FSDP's computing takes more time on the core, too, as
# DDP's did in section 3. In the wire rows, column *neither* includes waiting for bytes, above all for ZeRO-1's gathers
# at the end. In memory, no bytes are in flight, so the wait is probably for the other rank's thread, which first has to
# get its core. The simulator includes neither this waiting nor the additional computing. In memory, DDP's computing
# takes longest, partly because each rank updates all weights.
#
# </details>

# %% [markdown]
# ## 6 · After the all-reduce: send less often {read 3.5, wait 0.5}
#
# Hiding has a limit: the wire. Models are now trained across data centres, where no schedule can hide the gradients of
# each step. [**Local SGD**](../docs/learn/glossary.md#local-sgd) gives up the all-reduce of gradients. Each rank trains
# alone for *k* steps, and then all ranks average their *weights* ([Stich 2018](https://arxiv.org/abs/1805.09767); for
# phones, [McMahan et al. 2016](https://arxiv.org/abs/1602.05629)). DiLoCo trained language models with an outer
# optimizer and 500 times less communication ([Douillard et al. 2023](https://arxiv.org/abs/2311.08105)).
#
# Four ranks train a small network on real digits, over 100 Mbit/s wires. Each rank has a quarter of the digits, either
# *shuffled*, or *by class*, so that rank 0 has the zeros, the ones and some twos.

# %%
# %%writefile work/local.py
"""Local SGD on all ranks, which average their weights every k steps: work/local.py STEPS K…"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI
from tcp import bytes_sent

from labkit.data import load_digits

world = MPI.COMM_WORLD
steps, *intervals = map(int, sys.argv[1:])
digits = load_digits(n_train=4_000, n_test=1_000)
x, x_test = (images.reshape(len(images), -1) for images in (digits.x_train, digits.x_test))
orders = {
    "shuffled": np.random.default_rng(0).permutation(len(x)),
    "by class": np.argsort(digits.y_train, kind="stable"),
}


def forward(layers, images):
    hidden = np.maximum(images @ layers[0] + layers[1], 0)
    scores = np.exp(hidden @ layers[2] + layers[3])
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def train(layers, images, labels, rate=0.1):
    hidden, error = forward(layers, images)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    below = error @ layers[2].T * (hidden > 0)
    gradients = images.T @ below, below.sum(axis=0), hidden.T @ error, error.sum(axis=0)
    for layer, gradient in zip(layers, gradients):
        layer -= np.float32(rate) * gradient


results = []
for (order, chosen), k in [(item, k) for item in orders.items() for k in intervals]:
    mine, rng = np.array_split(chosen, world.size)[world.rank], np.random.default_rng(world.rank)
    same = np.random.default_rng(0).normal(0, 0.1, 785 * 64 + 65 * 10).astype(np.float32)
    parts = np.split(same, np.cumsum([784 * 64, 64, 640]))  # views
    layers = parts[0].reshape(784, 64), parts[1], parts[2].reshape(64, 10), parts[3]
    world.Barrier()
    before, began = bytes_sent(), time.perf_counter()
    for step in range(1, steps + 1):
        batch = rng.choice(mine, 32, replace=False)
        train(layers, x[batch], digits.y_train[batch])
        if step % k == 0:
            world.Allreduce(MPI.IN_PLACE, same)  # weights, not gradients
            same /= world.size
    seconds, megabytes = time.perf_counter() - began, (bytes_sent() - before) / 1e6
    p = forward(layers, x_test)[1]
    right = 100 * np.mean(p.argmax(axis=1) == digits.y_test)
    loss = -np.log(p[np.arange(len(p)), digits.y_test]).mean()
    results.append((order, k, megabytes, seconds, float(loss), float(right)))
if world.rank == 0:
    Path("work/local.json").write_text(json.dumps(results))

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** With *k* = 1, this network reaches a test accuracy of about 88%. What does it reach with *k* = 64, if
# the digits are shuffled? And if each rank has its own classes?
#
# </div>

# %%
results.guess(4, "test accuracy, k = 64, shuffled", ..., unit="%")
results.guess(5, "test accuracy, k = 64, by class", ..., unit="%")

# %%
EVERY = (1, 4, 16, LOCAL_STEPS // 4)
print(f"Eight trainings of {LOCAL_STEPS} steps on 4 ranks: about 25 s", flush=True)
slow = None if no_wires else Testbed(4, "100 Mbit/s")
run_ranks(4, "work/local.py", LOCAL_STEPS, *EVERY, threads=1, env=SLEEPY, network=slow, show=False)
local = json.loads((work / "local.json").read_text())
if no_wires:  # losses are this machine's, bytes and seconds are recorded
    wired = recorded("11-local").data["local"]
    local = [[*own[:2], *there[2:4], *own[4:]] for there, own in zip(wired, local)]
else:
    record("11-local", {}, QUICK, local=local)
heads = "digits", "k", "MB sent by a rank", "seconds", "test loss", "test accuracy"
formats = "{}", "{}", "{:.2f}", "{:.1f}", "{:.3f}", "{:.1f}%"
display(markdown.table(heads, [[f.format(v) for f, v in zip(formats, row)] for row in local]))
shuffled, by_class = (
    {row[1]: row for row in local if row[0] == name} for name in ("shuffled", "by class")
)
results.compare_guess(4, Measured(shuffled[EVERY[-1]][5], unit="%", digits=1))
results.compare_guess(5, Measured(by_class[EVERY[-1]][5], unit="%", digits=1))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 4.5))
said = []
for name, of, below in (("shuffled", shuffled, -22), ("by class", by_class, 9)):
    megabytes, losses = ([row[at] for row in of.values()] for at in (2, 4))
    axis.plot(megabytes, losses, label=f"digits {name}")
    for k, x, y in zip(of, megabytes, losses):
        place = {"xytext": (0, below), "textcoords": "offset points", "ha": "center"}
        axis.annotate(f"k = {k}", (x, y), **place)
    said.append(f"digits {name}: " + ", ".join(f"k = {k} {y:.2f}" for k, y in zip(of, losses)))
axis.set_xscale("log")
axis.set(xlabel="MB that a rank sends in the training", ylabel="test loss", ylim=(0, None))
axis.legend()
figure.suptitle("Local SGD: bytes against loss")
plots.show(figure, alt=f"Test loss against megabytes sent. {'; '.join(said)}.", keep=results)

# %%
results.answer(5, "When would you train with k = 64, and when not?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# If all ranks see the same kind of data, their networks drift in similar directions, and the mean of their weights is
# nearly what averaged gradients would have given. Traffic falls by a factor of *k*, and the loss hardly moves. (With
# 1,000 test digits, a point of accuracy may be chance.) If each rank sees different classes, it forgets the others
# between averages, and more so with a larger *k*. So shuffle, if you can. Where data can't move, *k* is a compromise.
# The time saved can also pay for more steps, so compare losses at equal time, too.
#
# </details>

# %% [markdown]
# ## 7 · Which one, above which rate? {read 3, do 5, optional}
#
# Let *S* be the seconds to send (n − 1)/n of the FP32 weights, and *c* the seconds of computing, a third of them in the
# forward pass. **Assume that sending needs no core.** A step then takes:
#
# | | bytes held per weight | seconds |
# | --- | --- | --- |
# | DDP | 16 | c/3 + the longer of 2c/3 and 2S |
# | ZeRO-1, as measured above | 8 + 8/n | c/3 + the longer of 2c/3 and S, + S |
# | FSDP | 16/n | the longer of c and 3S |
#
# ### Exercise 5 · The crossover
#
# A network fits into memory only with ZeRO-1 or FSDP. Write `crossover(parameters, ranks, seconds)`. It returns the
# rate of a rank's wire, in bits/s, at which both take the same time, for `parameters` FP32 weights and *c* = `seconds`.
# First work out which time in each "longer of" is the longer one at that rate.


# %%
def crossover(parameters, ranks, seconds):
    """Return the rate in bits/s of a rank's wire at which ZeRO-1 and FSDP are equally fast."""
    ### BEGIN SOLUTION
    # ZeRO-1 hides its scatters there, and FSDP is sending: c + S = 3S, so S = c/2.
    return (ranks - 1) / ranks * 4 * parameters * 8 / (seconds / 2)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
crossover = check(5, crossover)

# %% [markdown]
# Now test the assumption. If the rate is above the crossover, FSDP should win.

# %%
for setting in SETTINGS:
    computing, sending, *_ = lanes(f"{setting}, FSDP in turn")
    turn = crossover(LAYERS * WIDTH**2, 2, computing / 1e3)
    there = rate if "wire" in setting else 1.5 * 8e3 * n_bytes / sending  # FSDP: 3(n - 1)/n
    print(f"{setting:20} crossover {show_rate(turn):14} rate {show_rate(there):14}", end="")
    c, S = computing, sending / 3
    zero1, both = c / 3 + max(2 * c / 3, S) + S, max(c, 3 * S)
    gain = compare(schemes[f"{setting}, FSDP"], schemes[f"{setting}, ZeRO-1"])
    print(f"FSDP vs ZeRO-1: {zero1 / both:.2f}× by formula, {gain}")

# %%
results.answer(6, "Where does the formula name the wrong winner, and which terms are missing?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# With one core, the formula predicts that FSDP wins, but ZeRO-1 is faster. Two terms are missing. The first is the
# core's work on sending, three parts for FSDP and two for ZeRO-1. The second is waiting for other ranks' threads, once
# per call (section 5). With a spare core, the gain may still be smaller than predicted, probably because calls take
# longer while their rank computes. FSDP's first gather and last scatter can't be hidden either, but the pictures show
# that they are short.
#
# </details>

# %% [markdown]
# ## 8 · The same in PyTorch {read 5, wait 0.4, optional}
#
# `DistributedDataParallel` wraps the whole network, and `fully_shard`, the second version of FSDP, wraps each layer.
# Both send through *Gloo*, PyTorch's communication library for CPUs.

# %%
# %%writefile work/wrapped.py
"""The network in PyTorch, wrapped in several ways, and a training step."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

bucket_bytes = []


def ddp(model, **options):
    def note(group, bucket):
        bucket_bytes.append(bucket.buffer().nbytes)
        return allreduce_hook(group, bucket)

    model = DistributedDataParallel(model, **options)
    model.register_comm_hook(dist.group.WORLD, note)
    return model


def fsdp(model, **options):
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
VARIANTS = {  # how the network is wrapped, micro-batches, how many of them are averaged
    "nothing sent": (lambda model: model, 1, 1),
    "DDP": (ddp, 1, 1),
    "DDP, bucket_cap_mb=4": (lambda model: ddp(model, bucket_cap_mb=4), 1, 1),
    "DDP, 4 micro-batches": (ddp, 4, 4),
    "DDP, 4 micro-batches, no_sync": (ddp, 4, 1),
    "FSDP": (fsdp, 1, 1),
    "FSDP, reshard_after_forward=False": (lambda m: fsdp(m, reshard_after_forward=False), 1, 1),
    "FSDP, bfloat16": (lambda model: fsdp(model, mp_policy=HALF), 1, 1),
}


def network(layers, width):
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*parts)


def step(model, optimizer, x, parts, averaged):
    for number, part in enumerate(x.chunk(parts), 1):
        with nullcontext() if number > parts - averaged else model.no_sync():
            (((model(part) - part.abs()) ** 2).mean() / 2 / parts).backward()
    optimizer.step()
    optimizer.zero_grad()


# %%
# %%writefile work/in_torch.py
"""Count and time PyTorch's DDP and FSDP: work/in_torch.py LAYERS WIDTH ROWS ROUNDS"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from tcp import bytes_sent
from wrapped import VARIANTS, bucket_bytes, network, step

layers, width, rows, rounds = map(int, sys.argv[1:])
dist.init_process_group("gloo")
found = {}
for name, (wrap, *batches) in VARIANTS.items():
    model = wrap(network(layers, width))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    seed = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(rows, width, generator=seed)
    step(model, optimizer, x, *batches)
    before, times = bytes_sent(), []
    for _ in range(rounds):
        bucket_bytes.clear()
        dist.barrier()
        began = time.perf_counter()
        step(model, optimizer, x, *batches)
        times.append(1e3 * (time.perf_counter() - began))
    dist.barrier()
    time.sleep(0.05)  # until all is acknowledged
    sent = (bytes_sent() - before) / rounds / (4 * layers * width**2)
    whole = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]
    sums = [None] * dist.get_world_size()
    dist.all_gather_object(sums, float(sum(weights.abs().sum() for weights in whole)))
    apart = max(sums) - min(sums)
    found[name] = {"sent": sent, "ms": times, "buckets": [*bucket_bytes], "apart": apart}
if dist.get_rank() == 0:
    Path("work/in_torch.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()

# %% [markdown]
# Count on paper first. In a step, how many times is each weight gathered, and its gradient averaged? On Gloo, PyTorch
# implements a reduce-scatter as an all-reduce (`ProcessGroupGloo.cpp`), so FSDP's average sends 2(n − 1)/n of the
# gradients' bytes. With NCCL on GPUs, it sends half of that. The counts come from one rank's loopback sockets.

# %%
PASSES = {  # in a step: gathers of a weight, averages of its gradient, bytes of a number
    "nothing sent": (0, 0, 4),
    "DDP": (0, 1, 4),
    "DDP, bucket_cap_mb=4": (0, 1, 4),
    "DDP, 4 micro-batches": (0, 4, 4),
    "DDP, 4 micro-batches, no_sync": (0, 1, 4),
    "FSDP": (2, 1, 4),
    "FSDP, reshard_after_forward=False": (1, 1, 4),
    "FSDP, bfloat16": (2, 1, 2),
}
no_torch = torch_ranks.obstacle()
if no_torch:
    print(no_torch)
    in_torch = recorded("11-torch").data["found"]
else:
    print("PyTorch on 2 ranks, eight variants: about 15 s", flush=True)
    options = {"threads": 1, "env": torch_ranks.variables(), "show": False}
    run_ranks(2, "work/in_torch.py", LAYERS, WIDTH, ROWS, TORCH_ROUNDS, **options)
    in_torch = json.loads((work / "in_torch.json").read_text())
    record("11-torch", {}, QUICK, found=in_torch)

# %%
rows = []
for name, (gathers, averages, size) in PASSES.items():
    of, formula = in_torch[name], (gathers + 2 * averages) / 2 * size / 4  # (n - 1)/n is a half
    megabytes = ", ".join(f"{size / 1e6:.1f}" for size in of["buckets"][:4])
    row = f"{formula:.2f}", f"{of['sent']:.3f}", f"{np.median(of['ms']):.0f}", megabytes
    rows.append((name, *row, f"{of['apart']:.0g}"))
heads = "2 ranks", "sent, × weights: formula", "counted", "ms per step", "DDP's buckets, MB"
display(markdown.table((*heads, "ranks' weights differ by"), rows))
print("Your buckets at 25 MiB:", [len(b) for b in buckets([4 * WIDTH**2] * LAYERS, 25 * 2**20)])

# %% [markdown]
# - **Buckets.** DDP's default limit is 25 MiB, and 1 MiB for the first bucket, which leaves early. If all gradients fit
#   into 25 MiB, hardly anything can overlap, unless you set `bucket_cap_mb`. Unlike your buckets, DDP's close only once
#   they reach the limit.
# - **`no_sync`** adds up the micro-batches' gradients, and averages once. FSDP's counterpart,
#   `set_requires_gradient_sync(False)`, saves only the averaging. By default, each micro-batch still gathers the
#   weights twice, and whole gradients stay on every rank.
# - **`reshard_after_forward=False`** keeps the gathered weights for the backward pass. This saves a gather, but needs
#   memory for all the weights.
# - **`reduce_dtype=torch.bfloat16`** adds up gradients in numbers with 8 significant bits. With many ranks, small
#   contributions vanish. With `param_dtype=torch.bfloat16`, computing and gathering use bfloat16, as does averaging
#   unless you set `reduce_dtype=torch.float32`.
#
# The times include computing, which bfloat16 makes faster on CPUs with BF16 units, and slower on others. On a CPU, FSDP
# waits for each Gloo call, so its time says little about GPUs. In a terminal,
# [**torchrun**](../docs/learn/glossary.md#torchrun) starts the ranks. It sets `OMP_NUM_THREADS=1` unless you set it,
# and its store listens on all the machine's addresses.

# %% [markdown]
# ## 9 · What else grows with the model {read 3, optional}
#
# **Checkpoints.** With FSDP, all ranks write their shards in parallel. Such a *sharded checkpoint* can be read by a
# different number of ranks (`torch.distributed.checkpoint`).
#
# **Activations.** The backward pass needs every layer's outputs, which no scheme above shards. [**Activation
# checkpointing**](../docs/learn/glossary.md#activation-checkpointing) stores every *k*-th output and recomputes the
# others, which costs up to a third more computing.
#
# **Pipelines.** In [**pipeline parallelism**](../docs/learn/glossary.md#pipeline-parallelism), each rank has some of
# the layers, and only outputs travel. The batch is cut into *m* micro-batches. On *p* ranks, (p − 1)/(m + p − 1) of a
# step is idle time, the *bubble*. GPipe ([Huang et al. 2019](https://arxiv.org/abs/1811.06965)) runs all forward passes
# first, and keeps the outputs of all *m*. 1F1B starts each backward pass as early as possible. Its bubble is the same,
# but a rank keeps the outputs of at most *p* micro-batches.

# %% [markdown]
# ## Questions {read 1}
#
# Answer each in a sentence or two, from what you saw.
#
# 1. Which scheme would you choose for ResNet-50 on four nodes, and why?
# 2. Why doesn't FSDP's peak fall to 16/n? What would you change about the network?
# 3. With SGD and *k* = 1, is averaging weights the same as averaging gradients?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers.
#
# 1. Choose DDP, as the network fits many times over, and DDP is simplest.
# 2. At any time, some layers are whole, whatever the number of ranks. More and smaller layers help.
# 3. Yes, if all start from equal weights, as the mean of w − r·g is w − r times the mean of g. Momentum changes
#    nothing, because it is linear. With Adam, it isn't the same.
#
# **Timing** Reach section 3 by minute 25. Sections 3 and 5 need two idle cores per student. In exercise 2, let people
# write the loop with `average(ranks, gradients)` first, and then replace the call with `submit`. In exercise 4, give
# them the kit's solution after 12 minutes, as the pictures don't need their answers.
#
# **Other machines** With four or more cores, both ranks compute in *spare core*. Each lane has one logical CPU, which
# is half a core if two CPUs are threads of one core. With a single core, or without user namespaces (Ubuntu 24.04), the
# missing settings come from recordings. Without BF16, PyTorch's last row is slow. Two NUMA nodes and Arm are untested.
#
# **What goes wrong** In exercise 2, `result()` right after `submit` gives the right numbers, but hides nothing. In
# exercise 3, `futures[-1].result()` before each gradient prevents any overlap. In exercise 4, some keep all weights
# alive in a dict of futures, or call `scatter` directly. On a shared server, let students run only PyTorch's cell, and
# not `torchrun`.
#
# </div>

# %% [markdown]
# ## Remember
#
# - DDP is an all-reduce in buckets that overlaps with the backward pass. FSDP gathers and scatters each layer. It sends
#   half as much again, and needs 16/n bytes per weight, plus a few whole layers.
# - Waiting for a wire hides behind computing. Work doesn't, unless it has a core of its own. Waiting for another rank's
#   thread may not hide either.
# - A queue without a limit is a leak. Count memory, not only losses and bytes.
# - A formula that assumes free sending can name the wrong winner (section 7).
# - When nothing more can be hidden, send less often. How often is enough depends on how similar the ranks' data are.

# %%
rows = []
for setting, gain in gains.items():
    foreseen = steps[f"{setting}, {IN_TURN}"].value / ends(predicted[setting])
    name = f"DDP, {setting}: overlapped vs in turn"
    rows.append((name, "", gain, f"{foreseen:.2f}× if sending needed no core"))
PAPER = {"DDP": "16", "ZeRO-2": "2 + 14/n", "FSDP": "16/n"}
for name in ("DDP", "ZeRO-2, the colleague's", "ZeRO-2", "FSDP"):
    scheme = name.partition(",")[0]
    peak = Measured(counts[name]["peak"], unit="bytes", digits=1)
    limit = f"{FORMULAS[scheme][0](RANKS):.1f} by formula"
    published = f"{PAPER[scheme]}, mixed precision"
    rows.append((f"{name}, {RANKS} ranks: peak per weight", published, peak, limit))
saved = Measured(shuffled[1][2] / shuffled[EVERY[-1]][2], unit="×", digits=0)
rows.append((f"local SGD, k = {EVERY[-1]}: fewer bytes", "500× (DiLoCo)", saved, f"{EVERY[-1]}×"))
results.table("after the all-reduce", rows)

# %% [markdown]
# Published: [the ZeRO paper](https://arxiv.org/abs/1910.02054), with FP16 weights and gradients, and
# [DiLoCo](https://arxiv.org/abs/2311.08105), with 8 workers.
#
# **Next:** this is the last lab. `./lab report` puts everything that you measured on one page. Then start again with
# the [welcome](00_welcome.ipynb) on another machine, and compare.
