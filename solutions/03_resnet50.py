# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: tune TensorFlow step by step, compare it with PyTorch and with the machine's limit
#     needs: [ISA, memory, TensorFlow, MPI]
#     better_with: [cores, PyTorch, numactl]
# ---

# %% [markdown]
# # 03 · ResNet-50, from default to fast
#
# Two published results set the standard for training on CPUs. In 2019, a talk by Intel showed ResNet-50 train **4.6
# times** faster with Intel's library. A walk-through on a rented machine reached **6.2 times**, with another build of
# TensorFlow and its thread settings. Since then the library, oneDNN, has become part of the TensorFlow that pip
# installs. Which settings still matter on your machine, and how close to its limit do they get you?
#
# **You will learn** what the library, threads, batch size and precision each contribute when ResNet-50 trains; how
# TensorFlow compares with PyTorch on your CPU; how to count the operations in a step; and how to show how far each part
# of a step is from the machine's limit.
#
# **Time** {minutes} The longest wait is in section 1, with an exercise to write meanwhile.
#
# **Connects to** lab 02, which reads oneDNN's log on a small network; lab 04, which continues with fewer bits; lab 05,
# in which a program finds the settings; and lab 08, which trains this network on a cluster.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("03", globals())

# %%
import inspect
import json
import os
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow starts: older CPUs would get Eigen

import keras
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tensorflow as tf
from IPython.display import Code, display

from labkit.bench import configurations
from labkit.bench import steps as bench_steps
from labkit.bench.config import LEARNING_RATE, WEIGHT_DECAY, BenchConfig
from labkit.bench.in_process import Step, compare_steps
from labkit.data.synthetic_batch import synthetic_batches
from labkit.display import ladder, onednn, plots
from labkit.display.consistency import Limit, Prediction, repeated, score, total
from labkit.display.measured import Measured
from labkit.models import architectures
from labkit.models.networks import Network
from labkit.roofline import measure, peaks, step_bound
from labkit.system import load
from labkit.system.statistics import interval

cores, nodes = machine.usable_cores, len(machine.numa)
tf.config.threading.set_intra_op_parallelism_threads(cores)  # for what runs in this notebook
tf.config.threading.set_inter_op_parallelism_threads(1)

# %% [markdown]
# ## 1 · From default to fast {read 10, do 8, wait 2.9}
#
# Both published results come from one program, `tf_cnn_benchmarks`, which is no longer maintained. It trains a network
# on random images and prints the [**throughput**](../docs/glossary.md#throughput). `./lab bench` accepts the same flags
# and prints the same lines, for TensorFlow and for PyTorch. In a terminal, in the kit's folder, `tee` keeps a copy of
# what a run prints:
#
# ```bash
# ./lab bench --model=resnet50 --batch_size=16 --num_batches=30 2>&1 | tee default.log
# ```
#
# A *configuration* is an environment with its variables and flags. Each row changes something in the row above it:
#
# | configuration | what changes |
# | --- | --- |
# | `eigen` | oneDNN is off: TensorFlow's own kernels, the default in 2019 |
# | `onednn` | oneDNN is on: what you get from pip |
# | `…-threads` | one intra-op thread for each physical core, and one inter-op thread |
# | `…-bf16` | activations take 16 bits instead of 32, if your CPU can compute with them |
# | `torch-…` | PyTorch, with the same threads and precision |

# %% [markdown]
# [**Intra-op threads**](../docs/glossary.md#intra-op-parallelism) share the work of one operation. [**Inter-op
# threads**](../docs/glossary.md#inter-op-parallelism) run different operations concurrently. In ResNet-50, most layers
# wait for the one before.
#
# The [**batch size**](../docs/glossary.md#batch-size) is the number of images in a step. The published runs used 16,
# and 128 on 18 cores. Here it is 2 for each core, at most 64, and less if memory is short. Section 3 measures what that
# costs. Lab 08 measures whether a disk and a JPEG decoder can keep up with the network.

# %%
# How much this lab measures: change it here. The first of two sizes is for a small run.
memory_gb = machine.memory_free / 2**30
room_for = int((memory_gb - 2) / 0.1)  # images in a step: it takes about 2 GB, and 0.1 for each
batch = 4 if QUICK else max(2, min(2 * cores, 64, room_for // 2))
sizes = sorted({max(1, batch // 4), batch, max(batch, min(4 * batch, room_for))})  # section 3
network = "mnist" if QUICK else "resnet50"
rounds, steps = (1, 1) if QUICK else (6, 2)  # section 1: processes of each, and steps in each
scan_rounds, step_rounds = (1, 1) if QUICK else (2, 6)  # sections 3 and 6, within this notebook
logged_steps = 1 if QUICK else 5  # section 5
norm_rounds = 2 if QUICK else 15  # section 6
WARM_UP = "--num_warmup_batches=2"  # in the second step, some memory is still new
RUN = (f"--model={network}", WARM_UP, f"--num_batches={steps}")
whole, half = f"--batch_size={batch}", f"--batch_size={max(2, batch // 2)}"

BF16 = bool({"BF16", "AMX"} & set(machine.isa)) and not QUICK
KINDS = ["float32", "bfloat16"] if BF16 else ["float32"]
known, bf16 = configurations.known(), "-bf16" * BF16
fast, pytorch = f"onednn-threads{bf16}", f"torch-threads{bf16}"
asked = list(dict.fromkeys(("eigen", "onednn", "onednn-threads", fast, pytorch)))
print(f"batch size {batch}, {memory_gb:.0f} GB of memory free, on {', '.join(machine.isa)}")
if not BF16:
    print("bfloat16: left out. This CPU has no instructions for it, or the run is small.")
if known[pytorch].missing:
    print(f"{known[pytorch].missing}. For other machines, see docs/other-machines.md.")
for name in ("eigen", fast, pytorch):
    print(f"{name}:\n  {known[name].command(RUN[0], whole)}")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In 2019, the library made training 4.6 times faster. What factor do you expect from `eigen` to
# `onednn` on your machine? And from `onednn`, which pip installs, to the last configuration of TensorFlow in the table?
#
# </div>

# %%
results.guess(1, "oneDNN vs Eigen", ..., unit="×")

# %%
results.guess(2, "all settings vs pip's default", ..., unit="×")

# %% [markdown]
# Each round starts every configuration once, as a new process, and the configurations alternate. This takes about three
# minutes. Write exercise 1 meanwhile. (You can type in one cell while another one runs.)

# %%
training = configurations.compare(asked, *RUN, whole, rounds=rounds, where="section 1")

# %% [markdown]
# ### Exercise 1 · Where should the threads run?
#
# People copy thread settings from one machine to the next, where they no longer fit. Here are four machines. Each row
# of `cpus` is one logical CPU, as `lscpu -p=CPU,CORE,SOCKET,NODE` lists it: its number, its
# [**core**](../docs/glossary.md#core), its socket, its [**NUMA node**](../docs/glossary.md#numa-node). (Each node has
# its own memory; memory on other nodes is slower to reach.) `allowed`, a range or a list, contains the CPUs that *you*
# may use: a batch system or `taskset` can give you fewer than the machine has. `quota` is the CPU time that a container
# may take, in CPUs: with 2.5, two CPUs can be busy all the time, and a third half of the time. It is `None` if there is
# no such limit.


# %%
def box(sockets, cores_each, hardware_threads):
    """The rows of a machine with a NUMA node for each socket."""
    count = sockets * cores_each
    return [
        (thread * count + core, core, core // cores_each, core // cores_each)
        for thread in range(hardware_threads)
        for core in range(count)
    ]


part = [0, 1, *range(32, 36), 64, 65, *range(96, 100)]  # 2 cores of one socket, 4 of the other
MACHINES = {
    "the walk-through's": {"cpus": box(2, 9, 2), "allowed": range(36), "quota": None},
    "a laptop": {"cpus": box(1, 4, 2), "allowed": range(8), "quota": None},
    "a container, quota 2.5": {"cpus": box(2, 28, 2), "allowed": range(112), "quota": 2.5},
    "6 of 64 cores, quota 4": {"cpus": box(2, 32, 2), "allowed": part, "quota": 4},
}
print("the laptop's CPUs (CPU, core, socket, node):", *MACHINES["a laptop"]["cpus"])

# %% [markdown]
# Write `place_threads(cpus, allowed, quota)`. It returns a dict that says where the threads of one process should run:
#
# - `"cpus"`: a list of logical CPUs, one for each thread, in any order. Use as many threads as can be busy all the
#   time, and at least one. Put no two threads on one physical core: they would share its arithmetic units, and a good
#   convolution keeps those busy with one thread. Use **as few NUMA nodes** as possible, so that memory is near.
# - `"interleave"`: True if these threads are on more than one NUMA node, so that spreading the memory over the nodes is
#   worth a measurement; otherwise False.
#
# Keep the names of the parameters: the lab's next cell passes them by name.


# %%
def place_threads(cpus, allowed, quota):
    """The logical CPUs for the threads of one process, and whether its memory could be spread."""
    ### BEGIN SOLUTION
    mine = [row for row in reversed(cpus) if row[0] in allowed]
    places = {core: (cpu, node) for cpu, core, _, node in mine}  # the first CPU of each core
    threads = len(places) if quota is None else max(1, min(len(places), int(quota)))
    cores_on = Counter(node for _, node in places.values())
    best = sorted(places.values(), key=lambda place: (-cores_on[place[1]], place[1]))[:threads]
    return {"cpus": [cpu for cpu, _ in best], "interleave": len({node for _, node in best}) > 1}
    ### END SOLUTION


# %% tags=["nbval-check-output"]
place_threads = check(1, place_threads)

# %%
for name, about in MACHINES.items():
    placed = place_threads(**about)
    on_cpus = ",".join(map(str, sorted(map(int, placed["cpus"]))))
    print(f"{name}: {len(placed['cpus'])} threads, numactl --physcpubind={on_cpus}")
    if placed["interleave"]:
        print("  measure it with and without: numactl --interleave=all")

# %% [markdown]
# In a container or on a login node, `lscpu` shows what the machine has, not what *you* may use. A program that starts a
# thread for each of 112 CPUs under a quota of 2.5 is in trouble (section 7). The kit counts the cores that you may use.
#
# TensorFlow takes the number of threads as `--num_intra_threads`, PyTorch as `OMP_NUM_THREADS`. For two sockets,
# today's advice is mostly one process on each NUMA node, with its own memory (labs 06 and 07).
#
# Now the result of the comparison:


# %%
def tell(comparison, name, reference):
    """Print how much faster one configuration is than another, and how certain that is."""
    if not {name, reference} <= comparison.results.keys():
        print(f"{name} vs {reference}: not measured here")
        return
    times = comparison.ratio(name, reference)
    won = f" (won {times.won} of {times.rounds} rounds)" if times.rounds > 1 else ""
    print(f"{name} vs {reference}: {Measured(*times, '×')}: {times.verdict}{won}")


chain = [name for name in training.results if name != pytorch]  # TensorFlow's, from slow to fast
for slower, faster in pairwise(chain):
    tell(training, faster, slower)
gains = {f"{b} vs {a}": training.ratio(b, a) for a, b in pairwise(chain)}
certain = {pair: gain.value for pair, gain in gains.items() if gain.significant and gain.faster}
print(f"The largest certain gain: {max(certain, key=certain.get) if certain else 'none'}\n")
tell(training, fast, "onednn")
tell(training, pytorch, fast)
results.compare_guess(1, Measured(*training.ratio("onednn", "eigen"), "×"))
results.compare_guess(2, Measured(*training.ratio(fast, "onednn"), "×"))


# %% jupyter={"source_hidden": true}
def draw(comparison, reference, title):
    """Bars of each factor vs a reference, with its interval; grey if it may be chance."""
    times = {
        name: comparison.ratio(name, reference) for name in comparison.results if name != reference
    }
    figure, axis = plt.subplots(figsize=(10, 0.6 * len(times) + 1.5))
    for row, (name, found) in enumerate(times.items()):
        sure = plots.GREEN if found.faster else plots.VERMILION
        axis.barh(row, found.value, height=0.6, color=sure if found.significant else "0.75")
        end = found.value
        if not np.isnan(found.low):
            error = [[found.value - found.low], [found.high - found.value]]
            style = {"fmt": "none", "color": plots.BLACK, "capsize": 5, "linewidth": 1.5}
            axis.errorbar(found.value, row, xerr=error, **style)
            end = found.high
        label = f"{found.value:.2f}×, {comparison.rate(name):,.1f} images/s"
        beside = {"xytext": (9, 0), "textcoords": "offset points", "va": "center", "fontsize": 12}
        over_line = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axis.annotate(label, (end, row), bbox=over_line, **beside)
    axis.axvline(1, color=plots.BLACK, linestyle="--", marker="")
    axis.set_yticks(range(len(times)), times)
    axis.invert_yaxis()
    widest = np.nanmax([[found.value, found.high] for found in times.values()])
    axis.set(
        xlabel=f"factor vs {reference} (line: 95% interval; grey: may be chance)",
        title=title,
        xlim=(0, 1.35 * max(1.2, widest)),
    )
    alt = f"Factor vs {reference}, at {comparison.rate(reference):,.1f} images/s: " + "; ".join(
        f"{name} {Measured(*found, '×')}, {comparison.rate(name):,.1f} images/s"
        for name, found in times.items()
    )
    plots.show(figure, alt=alt, keep=results, watched=[comparison.others])


draw(training, "onednn", "ResNet-50 training, vs what pip installs")

# %% [markdown]
# The numbers in brackets are the 95% [**confidence interval**](../docs/glossary.md#confidence-interval) of the factor.
# If it includes 1, the difference may be chance. Each round gives one factor, so noise that slows a whole round
# cancels. Every run is a new process, because launches differ too: a new process has other memory, and its threads
# start on other cores. More steps in one process would not show that. If one round is far from the others, the interval
# means little. The verdict is then by rank: one configuration has to win all six rounds.
#
# Was the step from `eigen` to `onednn` 4.6×, as in 2019? If not, find out what `eigen` is today. The next cell
# classifies one image with oneDNN switched *off*, and counts what is in oneDNN's log all the same:

# %%
one_image = ("--batch_size=1", "--forward_only", "--num_warmup_batches=1", "--num_batches=1")
verbose = replace(known["eigen"], env=known["eigen"].env | {"ONEDNN_VERBOSE": 1})
lines = configurations.run(verbose, RUN[0], *one_image)
used = Counter(line.split(",exec,cpu,")[1].split(",")[0] for line in lines if ",exec,cpu," in line)
print(dict(used))
if used and set(used) <= {"gemm_api", "matmul"}:
    print("All are matrix products: Eigen calls oneDNN's for the pieces of its convolutions.")

# %% [markdown]
# Eigen splits a convolution into many small matrix products. If the log shows them, their innermost loop is oneDNN's,
# whatever the switch says (TensorFlow's source calls it the *contraction kernel*). The switch then adds whole
# convolutions, with blocked weights, and batch norms.
#
# ## 2 · ResNet-50 in 40 lines {read 6, do 7}
#
# What exactly was trained? This is the benchmark's own source: the blocks of ResNet-50, and its training step.

# %%
shown = (architectures.resnet, bench_steps.make_train_step)
Code("\n\n".join(map(inspect.getsource, shown)), language="python")

# %% [markdown]
# `net.conv_norm` is a convolution, a batch norm, and a ReLU if there is an `activation`. A block reduces the channels
# with a 1×1 convolution, works on them with a 3×3 one, and restores them with another 1×1. `net.add_relu` adds the
# *shortcut*, which is the block's input. The step computes the loss, its gradients, and new weights. With
# `--framework=pytorch`, the same network is in `labkit/models/torch_networks.py`.
#
# To judge a speed, you need to know how much there is to compute. Here are all 53 convolutions, as (kernel side,
# channels in, channels out, output side). The dense layer at the end counts as a 1×1 convolution on one pixel.


# %% tags=["nbval-check-output"]
def resnet50_layers():
    """Its convolutions and its dense layer, in the order in which an image passes them."""
    yield 7, 3, 64, 112
    channels, side = 64, 56
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            if block == 0:
                yield 1, channels, 4 * width, side  # the shortcut, with more channels
            yield 1, channels, width, side
            yield 3, width, width, side
            yield 1, width, 4 * width, side
            channels = 4 * width
        side //= 2
    yield 1, channels, 1001, 1


LAYERS = list(resnet50_layers())
print(f"{len(LAYERS)} layers:", *LAYERS[:5], "…")

# %% [markdown]
# In the [**forward pass**](../docs/glossary.md#forward-pass), each number of a layer's output is a sum over the
# positions of the kernel and the input channels. A multiplication and an addition are two operations:


# %% tags=["nbval-check-output"]
def forward_flops(layers):
    """Floating-point operations of each layer's forward pass, for one image."""
    return [2 * kernel**2 * c_in * c_out * side**2 for kernel, c_in, c_out, side in layers]


FORWARD = forward_flops(LAYERS)
print(f"ResNet-50: {sum(FORWARD) / 1e9:.2f} GFLOP for one image, forward")
for side in (1, 3, 7):
    of_this_side = sum(forward_flops(layer for layer in LAYERS if layer[0] == side))
    print(f"  {side}×{side}: {100 * of_this_side / sum(FORWARD):2.0f}% of it")

# %% [markdown]
# ### Exercise 2 · The operations of training
#
# **Training** adds the [**backward pass**](../docs/glossary.md#backward-pass). It goes from the last layer to the
# first, and computes up to two [**gradients**](../docs/glossary.md#gradient) for each layer. Each takes as many
# operations as that layer's forward pass.
#
# - The gradient with respect to the layer's *weights*: the weights learn from it.
# - The gradient with respect to the layer's *input*: the layer before needs it to compute its own gradients.
#
# A gradient that is not needed is not computed. Treat the layers as a chain, in which each layer's input is the result
# of the layer before. In fine-tuning, often only the last layers learn, and the others keep their weights.
#
# Write `training_flops(each, trained)`. `each` is a list of the forward operations of each layer, in order. `trained`,
# from 0 to the number of layers, is the number of layers that learn, counted from the end. Return how many operations
# one training step takes for one image, including the forward pass.


# %%
def training_flops(each, trained):
    """Floating-point operations of a training step in which only the last layers learn."""
    ### BEGIN SOLUTION
    learning = each[len(each) - trained :]
    return sum(each) + sum(learning) + sum(learning[1:])
    ### END SOLUTION


# %% tags=["nbval-check-output"]
training_flops = check(2, training_flops)

# %% tags=["nbval-check-output"]
in_training = float(training_flops(FORWARD, len(FORWARD)))
print(f"ResNet-50, all layers learn: {in_training / 1e9:.2f} GFLOP for one image")
for trained in (10, 1):
    flop = float(training_flops(FORWARD, trained))
    print(f"  the last {trained}: {flop / 1e9:.2f} GFLOP, {flop / in_training:.0%} of it")

# %% [markdown]
# Papers often say "4 GFLOP" for ResNet-50: they count a multiplication and its addition as one.
# [**Batch norms**](../docs/glossary.md#batch-normalisation), ReLUs and additions are not counted. They compute little.
# Their cost is memory traffic, which section 5 counts.
#
# ## 3 · Batch size and precision {read 5, wait 0.9}
#
# Does a small batch keep the speed down? And what does [**bfloat16**](../docs/glossary.md#bfloat16) gain on its own? It
# halves the bytes to move. A CPU with instructions for it can compute twice as many operations per second, or more with
# AMX. The weights stay in float32.
#
# Two rounds of all sizes choose the best one. Then six fresh rounds compare it with the lab's own size, because the
# best of several in a few rounds may have been lucky.


# %% jupyter={"source_hidden": true}
DTYPES = {"float32": tf.float32, "bfloat16": tf.bfloat16}


def make_steps(sizes, **options):
    """Training steps of one network, by their number of images."""
    net = Network(network, **options)
    train = bench_steps.make_train_step(net, "sgd", LEARNING_RATE, WEIGHT_DECAY)
    batches = {size: next(synthetic_batches(net.model, size, net.data_format)) for size in sizes}
    images, labels = batches[sizes[0]]
    any_number = [tf.TensorSpec((None, *images.shape[1:])), tf.TensorSpec((None,), labels.dtype)]
    graph = tf.function(train, input_signature=any_number)  # one graph for all sizes
    gflop, is_bf16 = net.flops_training / 1e9, net.dtype == tf.bfloat16
    return {
        size: Step(lambda data=data: graph(*data).numpy(), size, gflop, is_bf16)
        for size, data in batches.items()
    }


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What factor does bfloat16 gain over float32, at the same batch size?
#
# </div>

# %%
results.guess(3, "bfloat16 vs float32", ..., unit="×")

# %%
batch_steps = {
    f"{kind}, batch {size}": step
    for kind in KINDS
    for size, step in make_steps(sizes, dtype=DTYPES[kind]).items()
}
scan = compare_steps(batch_steps, scan_rounds, "section 3")
best_size = max(sizes, key=lambda size: scan.rate(f"float32, batch {size}"))
first, best = (f"float32, batch {size}" for size in (batch, best_size))
in_bf16 = best.replace("float32", "bfloat16")
fresh = {name: batch_steps[name] for name in (first, best, in_bf16) if name in batch_steps}
by_batch = compare_steps(fresh, step_rounds, "section 3")
if best == first:
    print(f"No other size was faster than {batch}, the lab's own.")
else:
    tell(by_batch, best, first)
tell(by_batch, in_bf16, best)
gain = Measured(*by_batch.ratio(in_bf16, best), "×") if BF16 else "not here"
results.compare_guess(3, gain)

# %% [markdown]
# Is there a rule for the batch size? Suppose that a step takes a fixed time, whatever the batch, plus some time for
# each image: *seconds = fixed + batch × each*. The next cell fits these two numbers to all sizes but the largest, and
# predicts the speed of that one.


# %%
def rate_of(comparison, name):
    """Images/s of a configuration, with the interval over its rounds."""
    mean, half_length = interval(np.log(comparison.rates(name)))
    return Measured(*np.exp([mean, mean - half_length, mean + half_length]), "images/s", digits=1)


def fit(comparison, kind, sizes):
    """(fixed, each) in s: the line over the batch size that has the smallest relative errors."""
    taken = np.array([size / comparison.rate(f"{kind}, batch {size}") for size in sizes])
    line = np.stack([np.ones(len(sizes)), sizes], axis=1) / taken[:, None]
    return np.linalg.lstsq(line, np.ones(len(sizes)), rcond=None)[0]


fits = {kind: fit(scan, kind, sizes[:-1]) for kind in KINDS}
largest = sizes[-1]
predictions = [
    Prediction(
        f"{kind}, batch {largest}",
        largest / (fixed + largest * each),
        rate_of(scan, f"{kind}, batch {largest}"),
    )
    for kind, (fixed, each) in fits.items()
]
for (kind, (fixed, each)), prediction in zip(fits.items(), predictions, strict=True):
    print(f"{kind}: {1000 * fixed:.0f} ms, and {1000 * each:.0f} ms for each image")
    print(f"  {prediction}")
print(score(predictions))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 4.5))
ends = np.geomspace(sizes[0], sizes[-1], 50)
for kind, colour, marker in zip(KINDS, (plots.BLUE, plots.ORANGE), "os", strict=False):
    measured = [rate_of(scan, f"{kind}, batch {size}") for size in sizes]
    values = [one.value for one in measured]
    error = np.nan_to_num([(one.value - one.low, one.high - one.value) for one in measured]).T
    axis.errorbar(sizes, values, error, fmt=marker, color=colour, capsize=4, label=kind)
    fixed, each = fits[kind]
    axis.plot(ends, ends / (fixed + ends * each), "--", color=colour, marker="", linewidth=1.5)
axis.set(
    xscale="log",
    xlabel="images in a step",
    ylabel="images/s",
    title="Batch size and precision",
)
axis.set_ylim(bottom=0)
axis.set_xticks(sizes, map(str, sizes))
axis.minorticks_off()
axis.legend(title="bars: 95% interval\ndashed: the rule", title_fontsize=11)
plots.show(
    figure,
    alt="Training speed over the batch size, with the fitted rule. "
    + "; ".join(f"{name} {scan.rate(name):.1f} images/s" for name in scan.results),
    keep=results,
    watched=[scan.others],
)

# %% [markdown]
# A large batch spreads the fixed part over more images. Which work is fixed? Section 5 looks for it. More images in a
# step also change the training, not only its speed (labs 05, 07 and 08).
#
# One point was measured in section 1, too, in processes of its own:

# %%
earlier = rate_of(training, "onednn-threads"), rate_of(by_batch, first)
print(repeated(first, ("section 1", earlier[0]), ("section 3", earlier[1])))

# %% [markdown]
# The rounds here share one process and its memory, so their interval leaves out what differs between launches. Section
# 1's includes it.
#
# ## 4 · How far is the limit? {read 4, wait 0.3}
#
# Is the fastest of these really fast? That depends on how much the machine can compute, and how fast it moves numbers
# between memory and cores. The next cell measures both once, in about 20 s, and keeps them (`./lab roofline --again`
# measures again). The limit for computing is the fastest matrix product of any library here. The speed of the
# instruction alone, on numbers that stay in registers, shows how good that product is.

# %%
limits = measure.limits(quick=QUICK)
for kind in KINDS:
    product, alone = limits.products[kind][0], limits.instructions.get(kind)
    on_registers = f"; {alone['instruction']} alone {alone['speed']:,.0f}" if alone else ""
    print(f"{kind:9} {limits.measured(kind)} in {product.library}'s products{on_registers}")
print(f"memory    {limits.measured('memory')}")
if limits.others.busy:
    print(limits.others)


# %%
def limit_of(comparison, name):
    """The limit in images/s: every operation as fast as the fastest matrix product."""
    one = comparison.results[name][0]
    peak = limits.measured("bfloat16" if one["settings"]["use_fp16"] else "float32")
    ends = [value / one["gflop_per_image"] for value in (peak.value, peak.low, peak.high)]
    return Limit(Measured(*ends, "images/s", digits=1))


def share(comparison, name):
    """The share of that limit that a configuration reaches, in percent."""
    return limit_of(comparison, name).share(rate_of(comparison, name)).value


measured_in = dict.fromkeys(training.results, training) | dict.fromkeys(fresh, by_batch)
for name, comparison in measured_in.items():
    rate = rate_of(comparison, name)
    print(f"{name:32} {rate}. Limit: {limit_of(comparison, name).describe(rate)}")


# %% jupyter={"source_hidden": true}
def for_ladder(comparison, name, reference):
    """A step's factor, what else had the cores, and its verdict: the arguments of results.step."""
    gain = comparison.ratio(name, reference)
    verdict = {"share": share(comparison, name), "significant": gain.significant}
    return (Measured(*gain, "×"), comparison.others), verdict


figures, verdict = for_ladder(training, "onednn-threads", "onednn")
results.step("threads", *figures, **verdict)
figures, verdict = for_ladder(by_batch, best, first)
results.step("batch", *figures, **verdict)
if BF16:
    figures, verdict = for_ladder(by_batch, in_bf16, best)
    results.step("precision", *figures, **verdict)
else:
    results.step("precision", "not here: no convolutions in bfloat16")

# %% [markdown]
# The limit assumes that each operation runs as fast as the fastest matrix product. Faster instructions raise the limit,
# so a configuration can be faster and yet further from its limit. Which part of the step holds it back?
#
# ## 5 · Where the time goes {read 12, do 14, wait 0.6}
#
# With `ONEDNN_VERBOSE=1`, oneDNN writes one line for each of its [**primitives**](../docs/glossary.md#primitive), with
# its shapes and its time. (In 2019, the variables were `MKL_VERBOSE` and `MKLDNN_VERBOSE`. Neither affects TensorFlow
# today.) The lines also prove that TensorFlow uses the library. `--trace_file` writes the timeline of one step: every
# TensorFlow operation with its time. The next cell makes both, for each precision, in about half a minute.

# %% jupyter={"source_hidden": true}
logged_run = (RUN[0], whole, WARM_UP, f"--num_batches={logged_steps}")


def logged(name, *flags):
    """Run a configuration under ONEDNN_VERBOSE=1; return its result and its lines."""
    verbose = replace(known[name], env={**known[name].env, "ONEDNN_VERBOSE": 1})
    out = work / "run.json"
    lines = configurations.run(verbose, *logged_run, f"--json={out}", *flags)
    return json.loads(out.read_text()), lines


# %%
runs, timelines, log_others = {}, {}, {}
for kind in KINDS:
    timeline = work / "timeline.json"
    with load.watch("section 5") as log_others[kind]:
        name = "onednn-threads" if kind == "float32" else fast
        runs[kind] = logged(name, f"--trace_file={timeline}")
    timelines[kind] = json.loads(timeline.read_text())["traceEvents"]
logs = {kind: onednn.read_log(lines, after="Done warm up") for kind, (_, lines) in runs.items()}
print(onednn.describe(runs["float32"][1]))
logs["float32"].drop(columns=["direction", "attributes"]).head(6)

# %% [markdown]
# ### Exercise 3 · Three questions to a log
#
# Before you tune anything, check in the log that the run was what you think it was. Write `diagnose(log)`. It returns a
# dict with three shares of the log's **time** (`ms`), each between 0 and 1, not rounded:
#
# - `"bf16"`: time in primitives whose `type` is `bf16`. You requested bfloat16: did you get it?
# - `"reference"`: time in implementations whose name begins with `ref`. This is oneDNN's plain C++ code, for cases in
#   which it has no fast code for this CPU. It is often ten or more times slower.
# - `"reorder"`: time in [**reorder**](../docs/glossary.md#reorder) primitives. They compute nothing; they only convert
#   numbers to another layout.


# %%
def diagnose(log):
    """Shares of a log's time: in bfloat16, in reference code, in reorders."""
    ### BEGIN SOLUTION
    questions = {
        "bf16": log.type == "bf16",
        "reference": log.implementation.str.startswith("ref"),
        "reorder": log.primitive == "reorder",
    }
    return {name: log.ms[rows].sum() / log.ms.sum() for name, rows in questions.items()}
    ### END SOLUTION


# %% tags=["nbval-check-output"]
diagnose = check(3, diagnose)

# %%
for kind, log in logs.items():
    shares = ", ".join(f"{name} {float(part):.1%}" for name, part in diagnose(log).items())
    print(f"{kind}, of oneDNN's time: {shares}")

# %% [markdown]
# Now one ledger of the whole step. The log gives the time of each kind of primitive. (The folded cell parses `problem`,
# such as `mb16_ic64oc64_ih56oh56kh3…`.) Reorders of *weights* get a line of their own. The timeline gives the rest,
# outside oneDNN's primitives: work on weights, which is their decay and update, and TensorFlow's other operations. If
# the parts do not sum to the step, the ledger is wrong, and the cell says so.

# %% jupyter={"source_hidden": true}
BYTES = {"f32": 4, "bf16": 2}  # of a number
# Of a batch norm: operations for each number, and passes over its tensor. Forward: the sum (1),
# the sum of squares (3), the result (2). Backward: two sums (4), the result (5).
PASSES = {"forward_training": (6, 2), "forward_inference": (2, 2), "backward": (9, 3)}
WEIGHT_SHAPES = {(c_out, c_in, side, side) for side, c_in, c_out, _ in LAYERS}
WEIGHT_REORDER, UPDATE = "weight reorder", "weights: decay, update"
OTHER, REST = "TensorFlow's other operations", "the rest: norms, ReLUs, updates"


def work_of(row):
    """Return the type of a primitive, its operations, and the bytes that it moves at least."""
    n = Counter({name: int(value) for name, value in re.findall(r"([a-z]+)(\d+)", row.problem)})
    dims = tuple(int(value) for value in re.findall(r"\d+", row.problem))
    if row.primitive == "convolution":
        places = n["kh"] * n["kw"]
        # A kernel smaller than its stride leaves pixels out.
        height, width = min(n["ih"], n["oh"] * n["kh"]), min(n["iw"], n["ow"] * n["kw"])
        read, weights = n["mb"] * n["ic"] * height * width, n["ic"] * n["oc"] * places
        written = n["mb"] * n["oc"] * n["oh"] * n["ow"]
        what, flop = f"{n['kh']}×{n['kw']} convolution", 2 * written * n["ic"] * places
        numbers = read + weights + written
    elif row.primitive == "batch_normalization":
        each, tensors = PASSES[row.direction]
        numbers = n["mb"] * n["ic"] * n["ih"] * n["iw"]
        what, flop, numbers = "batch norm", each * numbers, tensors * numbers
    elif row.primitive == "pooling":
        read, written = (n["mb"] * n["ic"] * n[f"{end}h"] * n[f"{end}w"] for end in "io")
        what, flop, numbers = "pooling", n["kh"] * n["kw"] * written, read + written
    elif row.primitive in ("inner_product", "matmul", "gemm_api"):
        m, k, n_ = (n["mb"], n["ic"], n["oc"]) if n["mb"] else (dims[0], dims[1], dims[3])
        what, flop, numbers = "matrix product", 2 * m * k * n_, m * k + k * n_ + m * n_
    else:  # a reorder reads and writes each number, and computes nothing
        of_weights = row.primitive == "reorder" and dims in WEIGHT_SHAPES
        what = WEIGHT_REORDER if of_weights else row.primitive
        flop, numbers = 0, 2 * np.prod(dims)
    gbyte = numbers * BYTES.get(row.type, 4) / 1e9
    return pd.Series({"kind": what, "gflop": flop / 1e9, "gbyte": gbyte})


def by_kind(log, steps):
    """A log, summed by kind of work: calls, ms, GFLOP and GB in one of its steps."""
    worked = log.assign(calls=1).join(log.apply(work_of, axis=1))
    sums = worked.groupby("kind")[["calls", "ms", "gflop", "gbyte"]].sum() / steps
    return sums.sort_values("ms", ascending=False)


def outside(kind):
    """The ms of one step in operations that are not oneDNN's, from its timeline."""
    config = BenchConfig(model=network, batch_size=batch, use_fp16=kind == "bfloat16")
    needed = step_bound.operations(config, limits)
    spent = Counter({UPDATE: 0.0, OTHER: 0.0})
    for event in timelines[kind]:
        if event["ph"] == "X" and not event["name"].startswith("_Mkl"):
            operation = needed.get(event["args"]["name"])
            family = operation.family if operation else step_bound.family(event["name"])
            spent[UPDATE if family == step_bound.WEIGHTS else OTHER] += event["dur"] / 1000
    return spent


# %%
step_ms = {kind: 1000 * float(np.mean(run["seconds"])) for kind, (run, _) in runs.items()}
primitives = {kind: by_kind(log, logged_steps) for kind, log in logs.items()}
ledgers = {kind: {**table.ms, **outside(kind)} for kind, table in primitives.items()}
sums = {kind: total(parts, step_ms[kind]) for kind, parts in ledgers.items()}
for kind in KINDS:
    print(f"{kind}: {sums[kind]}")
trusted = [kind for kind in KINDS if sums[kind].reliable]
primitives["float32"].style.format("{:,.2f}")

# %% jupyter={"source_hidden": true}
if trusted:
    names = [name for name, ms in ledgers[trusted[0]].items() if ms >= 0.005 * step_ms[trusted[0]]]
    names.sort(key=ledgers[trusted[0]].get, reverse=True)
    figure, axis = plt.subplots(figsize=(10, 5))
    height = 0.8 / len(trusted)
    for number, kind in enumerate(trusted):
        colour, hatch = ((plots.BLUE, ""), (plots.ORANGE, "//"))[number]
        # One sum for each logged step: their spread gives the intervals of what the log has.
        each = len(logs[kind]) // logged_steps
        starts = range(0, each * logged_steps, each)
        stepwise = [by_kind(logs[kind].iloc[start : start + each], 1).ms for start in starts]
        ms = [ledgers[kind].get(name, 0) for name in names]
        places = np.arange(len(names)) + (number - (len(trusted) - 1) / 2) * height
        style = {"color": colour, "hatch": hatch, "edgecolor": "w", "label": kind}
        axis.barh(places, ms, height, **style)
        for place, name, value in zip(places, names, ms, strict=True):
            end = value
            if logged_steps > 1 and name in primitives[kind].index:
                mean, half_length = interval(np.array([one.get(name, 0.0) for one in stepwise]))
                axis.errorbar(
                    mean, place, xerr=half_length, fmt="none", color=plots.BLACK, capsize=3
                )
                end = max(value, mean + half_length)
            label = f" {value:,.0f} ms ({value / step_ms[kind]:.0%})"
            axis.text(end, place, label, va="center", fontsize=11)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.margins(x=0.2)
    axis.set(
        xlabel="ms in a step, and its share (line: 95% interval over the logged steps)",
        title="Where a training step's time goes",
    )
    axis.legend(loc="lower right")
    plots.show(
        figure,
        alt="Milliseconds in a training step. "
        + " ".join(
            f"{kind}, of {step_ms[kind]:,.0f}: "
            + ", ".join(f"{name} {ledgers[kind].get(name, 0):,.0f}" for name in names)
            + "."
            for kind in trusted
        ),
        keep=results,
        watched=[log_others[kind] for kind in trusted],
    )

# %% [markdown]
# Section 3's rule has a fixed part, whatever the batch. Work on weights is the natural suspect, since there are as many
# weights for one image as for a hundred: their reorders into oneDNN's blocked layout, their decay and their update. How
# much of it do they explain, and which costs more, the reorders or the rest?

# %%
for kind in trusted:
    fixed = {name: ledgers[kind].get(name, 0.0) for name in (WEIGHT_REORDER, UPDATE)}
    rule = Measured(1000 * fits[kind][0], unit="ms", digits=0)
    if rule.value > 0:
        print(Prediction(f"{kind}, fixed part, by the ledger", sum(fixed.values()), rule))
    else:
        print(f"{kind}: the rule has no fixed part here")
    print("  " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in fixed.items()), end="; ")
    print(f"the larger: {max(fixed, key=fixed.get)}")

# %% [markdown]
# ### The roofline
#
# Is a batch norm slow because it is badly written, or because it can't be faster? Divide its operations by its bytes:
# that is its [**arithmetic intensity**](../docs/glossary.md#arithmetic-intensity). If there is little to compute for
# each byte, memory sets the limit: *intensity × bandwidth*. If there is a lot, the cores set it: the peak. The lower of
# the two limits, drawn over the intensity on logarithmic axes, looks like a roof. So this picture is called a
# [**roofline**](../docs/glossary.md#roofline) (Williams, Waterman and Patterson, *Roofline*, Communications of the ACM,
# 2009).
#
# Each kind of work is a point. A larger point takes more time. A point further below the roof could save a larger part
# of its time. Reorders are not in the picture: they compute nothing, so their intensity is 0.

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(10, 5.5))
intensity = np.geomspace(0.1, 1000, 200)
styles = dict(zip(KINDS, ((plots.BLUE, "-", "filled"), (plots.ORANGE, "--", "hollow"))))
for kind, (colour, line, filling) in styles.items():
    limit = [limits.attainable(x, kind) for x in intensity]
    axis.plot(intensity, limit, line, color=colour, marker="", label=f"{kind} ({filling})")
for kind, (colour, _, filling) in styles.items():
    points = primitives[kind][primitives[kind].gflop > 0].sort_index()
    for (name, row), marker in zip(points.iterrows(), plots.MARKERS):
        axis.scatter(
            row.gflop / row.gbyte,
            1000 * row.gflop / row.ms,
            s=60 + 1500 * row.ms / step_ms[kind],
            marker=marker,
            facecolor=colour if filling == "filled" else "none",
            edgecolor=colour,
            linewidth=2,
            label=name if kind == "float32" else None,
        )
axis.set(
    xscale="log",
    yscale="log",
    xlabel="intensity: operations for each byte moved (FLOP/byte)",
    ylabel="GFLOP/s",
    title="A training step under the roofline",
)
axis.xaxis.set_major_formatter("{x:g}")
axis.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5)))
axis.yaxis.set_major_formatter("{x:g}")
axis.yaxis.minorticks_off()
legend = axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=11)
for handle in legend.legend_handles[len(KINDS) :]:  # the points, all of one size here
    handle.set_sizes([80])
plots.show(
    figure,
    alt="Intensity in FLOP/byte and speed in GFLOP/s of each kind of work, under the limits. "
    + " ".join(
        f"{kind}, at most {limits.peak(kind):,.0f} GFLOP/s and {limits.bandwidth:.1f} GB/s: "
        + ", ".join(
            f"{name} {row.gflop / row.gbyte:.1f} and {1000 * row.gflop / row.ms:,.0f}"
            for name, row in primitives[kind].iterrows()
            if row.gflop
        )
        + "."
        for kind in KINDS
    ),
    keep=results,
    watched=[log_others[kind] for kind in KINDS],
)

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In float32, which kind of primitive could save the most milliseconds, if it ran at its limit?
#
# </div>

# %%
CHOICES = ("1×1 convolution", "3×3 convolution", "batch norm", WEIGHT_REORDER, "another")
results.guess(4, "the kind of work that could save most", ..., choices=CHOICES)

# %% [markdown]
# ### Exercise 4 · What to improve first
#
# The largest bar is not always the one to work on: it may already be at its limit. Write
# `bottleneck(kinds, peak, bandwidth)`. `kinds` is a table like the one of float32 above: the index has the names, and
# the columns `ms`, `gflop` and `gbyte` say what each kind takes in a step. `peak` is in GFLOP/s, `bandwidth` in GB/s.
# Return a dict:
#
# ```python
# {name: (bound, saving), …}  # the largest saving first
# ```
#
# - `bound` is `"memory"` if, at the limit, moving its bytes takes longer than computing its operations; otherwise
#   `"cores"`.
# - `saving` is how many milliseconds it would save if it ran at that limit. It is never less than 0: work that is
#   faster than memory allows has found its numbers in the cache.


# %%
def bottleneck(kinds, peak, bandwidth):
    """For each kind of work its bound, and the ms that it could save; the largest first."""
    ### BEGIN SOLUTION
    found = {}
    for name, row in kinds.iterrows():
        moving, computing = 1000 * row.gbyte / bandwidth, 1000 * row.gflop / peak
        bound = "memory" if moving > computing else "cores"
        found[name] = bound, max(0.0, row.ms - max(moving, computing))
    return dict(sorted(found.items(), key=lambda item: item[1][1], reverse=True))
    ### END SOLUTION


# %% tags=["nbval-check-output"]
bottleneck = check(4, bottleneck)

# %%
least_ms = {}
for kind, table in primitives.items():
    found = bottleneck(table, limits.peak(kind), limits.bandwidth)
    found = {name: (bound, float(saving)) for name, (bound, saving) in found.items()}
    print(f"{kind}: a step of {step_ms[kind]:,.0f} ms")
    for name, (bound, saving) in found.items():
        ms = table.ms[name]
        could = f"{ms:7,.0f} ms, could save {saving:6,.0f} ({saving / ms:.0%})"
        print(f"  {name:18} nearer limit: {bound:7}{could}")
    least_ms[kind] = table.ms.sum() - sum(saving for _, saving in found.values())
    at_limit = f"oneDNN's part would take {least_ms[kind]:,.0f} of {table.ms.sum():,.0f} ms"
    print(f"  if all ran at their limits, {at_limit}")
    if kind == "float32":
        first_to_improve = next(iter(found))
        results.compare_guess(4, first_to_improve if first_to_improve in CHOICES else "another")

# %% [markdown]
# The *nearer limit* is not proof that memory or the cores are what holds it back: work that could save most of its time
# reaches neither. The bytes are counted once, although a batch norm must read its input twice if the caches do not hold
# it. `./lab roofline --model resnet50`, in a terminal, does the same for *all* operations of a step. One remedy is
# [**operator fusion**](../docs/glossary.md#operator-fusion), because it saves passes over memory.
#
# ### TensorFlow or PyTorch?
#
# Which one is faster here, and why? PyTorch calls oneDNN for its convolutions, too, but has its own batch norms, ReLUs
# and updates. Section 1 decides which is faster. One logged run of each, at the same batch size and precision, shows
# where the time goes. Work that only one of the two logs has counts as the rest of the step.

# %%
why = ""
if pytorch in training.results:
    kind = KINDS[-1]
    with load.watch("section 5") as log_others["PyTorch"]:
        run, lines = logged(pytorch)
    torch_log = onednn.read_log(lines, after="Done warm up")
    torch_ms = by_kind(torch_log, logged_steps).ms
    sides = pd.DataFrame({"TensorFlow": primitives[kind].ms, "PyTorch": torch_ms})
    sides = sides.dropna()  # what both logs have
    sides.loc[REST] = [step_ms[kind], 1000 * float(np.mean(run["seconds"]))] - sides.sum()
    sides["difference"] = sides.PyTorch - sides.TensorFlow
    whole_step = sides.sum()
    print(f"ms in a step, {kind}: TensorFlow {whole_step.TensorFlow:,.0f}, PyTorch", end=" ")
    print(f"{whole_step.PyTorch:,.0f}")
    times = training.ratio(fast, pytorch)
    ahead, behind = ("TensorFlow", "PyTorch") if times.faster else ("PyTorch", "TensorFlow")
    if not times.significant:
        why = "no certain difference"
    elif (whole_step.difference > 0) == times.faster:
        lost_in = sides.difference.mul(np.sign(whole_step.difference)).idxmax()
        why = f"{ahead} is faster; {behind} loses most in {lost_in}"
    else:
        why = f"{ahead} is faster, but not in the logged runs, so they do not show why"
    print(f"By section 1: {why}")
    display(sides.sort_values("difference", key=abs, ascending=False).style.format("{:,.1f}"))
else:
    print(f"{pytorch}: {training.failed[pytorch]}")

# %% [markdown]
# `torch.compile` fuses what is outside oneDNN. In TensorFlow, `-fused` uses XLA to fuse the end of
# each block. With `-huge`, memory comes in pages of 2 MB. Compiling takes more than a minute the
# first time, so this is a task for the terminal (without bfloat16, leave out `-bf16`; `--config all` goes from default
# to fast):
#
# ```bash
# ./lab bench --config onednn-threads-bf16-fused-huge,torch-threads-bf16-huge,torch-compile-threads-bf16-huge \
#     --batch_size=32 --num_batches=3 --rounds 6
# ```
#
# ## 6 · One operator {read 5, wait 0.4, optional}
#
# So far each batch norm was one operation. In Keras 3 it is not. Which operations do Keras' layer and the fused
# operation run, forward and backward, and how often do they read or write whole images? Operations on one number for
# each channel are left out.

# %%
# Images, and the gradient of the result:
x, dy = (tf.random.normal((batch, 56, 56, 64)) for _ in range(2))
layer = keras.layers.BatchNormalization()
layer.build(x.shape)
scale, offset = tf.ones(64), tf.zeros(64)


def keras_norm(x, dy):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True)
    return y, tape.gradient(y, x, dy)


def fused_norm(x, dy):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, *_ = tf.compat.v1.nn.fused_batch_norm(x, scale, offset, is_training=True)
    return y, tape.gradient(y, x, dy)


# %% jupyter={"source_hidden": true}
def whole_images(norm):
    """Print the operations that read or write whole images, and return how often they do."""
    graph = tf.function(norm).get_concrete_function(x, dy).graph
    written = {op.name: op for op in graph.get_operations()}
    operations, tensors = Counter(), 0
    for node in onednn.graph_that_ran(norm, x, dy)[1]:
        op = written.get(node.name)
        both = (*op.inputs, *op.outputs) if op else ()
        large = [t for t in both if t.shape.num_elements() == tf.size(x)]
        if large and node.op != "Identity":
            operations[node.op] += 1
            tensors += len(large)
    print(f"{norm.__name__}: {operations.total()} operations read or write {tensors} images:")
    print("  " + ", ".join(f"{name} ×{count}" for name, count in operations.items()))
    return tensors


passes = {"Keras'": whole_images(keras_norm), "fused": whole_images(fused_norm)}

# %% [markdown]
# Keras 3 builds its batch norm from small operations. Each reads whole images, and often writes them. If memory alone
# were the limit, the times would have the ratio of these counts.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much longer does Keras' batch norm take than the fused one, forward and backward, as a factor?
#
# </div>

# %%
results.guess(5, "Keras' batch norm vs the fused one, in time", ..., unit="×")

# %%
graphs = {"fused": tf.function(fused_norm), "Keras'": tf.function(keras_norm)}
norms = compare_steps(
    {name: Step(lambda graph=graph: graph(x, dy)[1].numpy()) for name, graph in graphs.items()},
    norm_rounds,
    "section 6",
    turn_s=0.05,
)
longer = Measured(*norms.ratio("fused", "Keras'"), "×", note="as long")
by_passes = Prediction("Keras' vs fused, by passes", passes["Keras'"] / passes["fused"], longer)
print(by_passes)
results.compare_guess(5, longer)

# The same question to memory: how long would the passes of the fused one take at its bandwidth?
tensor_mb = 4 * int(tf.size(x)) / 1e6
cache_mb = peaks.last_level_cache(machine.cpus) / 1e6
memory_ms = Measured(passes["fused"] * tensor_mb / limits.bandwidth, unit="ms")
rate = rate_of(norms, "fused")
fused_ms = Measured(*(1000 / value for value in (rate.value, rate.high, rate.low)), "ms")
by_memory = Limit(memory_ms, "the caches hold its tensors", lower_is_better=True)
print(f"one tensor: {tensor_mb:.1f} MB; the last cache: {cache_mb:.0f} MB")
print(f"fused: {fused_ms}. Memory alone: {by_memory.describe(fused_ms)}")
if 2 * tensor_mb < cache_mb or by_memory.share(fused_ms).value < 50:
    print("Memory need not limit this loop, so its passes alone may not explain its time.")

# %% [markdown]
# Now the whole network. With `fused_batch_norm=False` it computes its batch norms as Keras 3 does, and nothing else
# changes. The batch norms' share of a step is known from section 5, and the factor for one of them from above. Together
# they predict the whole. Another old piece of advice comes along: in 2018, the **layout** NCHW (channels first) was
# recommended for CPUs, and the walk-through used it. Today oneDNN has convolutions that work on NHWC directly.

# %%
networks = {
    "training": {},
    "unfused batch norm": {"fused_batch_norm": False},
    "NCHW": {"data_format": "NCHW"},
}
operators = compare_steps(
    {name: make_steps([batch], **options)[batch] for name, options in networks.items()},
    step_rounds,
    "section 6",
)
for name in ("unfused batch norm", "NCHW"):
    tell(operators, name, "training")
unfused = Measured(*operators.ratio("unfused batch norm", "training"), "×")
norm_share = ledgers["float32"].get("batch norm", 0.0) / step_ms["float32"]
expected = 1 / (1 + norm_share * (longer.value - 1))
of_network = Prediction("the network, unfused, by one batch norm", expected, unfused)
if "float32" in trusted:
    print(of_network, score([by_passes, of_network]), sep="\n")
else:
    print("The ledger of section 5 is unreliable, so it predicts nothing for the network.")

# %% jupyter={"source_hidden": true}
draw(operators, "training", "Batch norm in small operations, and the layout")
norm_row = ("batch norm alone, fused → Keras'", "", longer, "", norms.others)
results.hand_in("6", norm_row)

# %% [markdown]
# If a prediction is outside: within the network, the images have other sizes, and the caches hold other data. The log
# of a run with `--nofused_batch_norm` shows where the time goes.

# %% [markdown]
# ## 7 · Threads and memory that hurt {read 3, wait 0.9, optional}
#
# A classic mistake is [**oversubscription**](../docs/glossary.md#oversubscription): more threads than cores. Each
# thread computes a piece of an operation, and all wait for the slowest. With
# [**OpenMP**](../docs/glossary.md#openmp), which PyTorch uses, the waiting threads *spin* for a while
# (`KMP_BLOCKTIME`, in ms): each keeps its core busy with nothing, and the last thread may have no core to run on.
# TensorFlow's threads sleep instead, and take small pieces from a queue. The same happens with two jobs on one node, or
# in a container whose quota is below its number of cores. [**Pinning**](../docs/glossary.md#pinning) by
# [`KMP_AFFINITY`](../docs/glossary.md#kmp_affinity) ties each thread to one core. PyTorch's own launcher,
# `python -m torch.backends.xeon.run_cpu`, sets these variables: it is today's form of the old scripts.
#
# **NUMA.** Linux puts a page of memory on the node of the thread that touches it first. If one thread fills all the
# memory, the cores of the other nodes have to fetch it from there. `numactl --interleave=all` spreads the pages over
# all nodes. That can help in this case, and hurt if each thread already had its part nearby.

# %%
framework = "PyTorch" if pytorch in training.results else "TensorFlow"
settled = known["torch-threads" if framework == "PyTorch" else "onednn-threads"]
twice, double = f"{2 * cores} threads", {"OMP_NUM_THREADS": 2 * cores}
more = replace(settled, flags=(*settled.flags, f"--num_intra_threads={2 * cores}"))
hurting = {"a thread per core": settled, twice: more}
if framework == "PyTorch":
    hurting[twice] = replace(settled, env={**settled.env, **double})
if nodes > 1:
    interleave = ("numactl", "--interleave=all")
    hurting["memory spread"] = replace(settled, prefix=interleave)
else:
    print("memory spread: not here. This machine has one NUMA node, so all memory is equally near.")
print(f"{framework}, {twice}:\n  {hurting[twice].command(RUN[0], half)}")

# %% [markdown]
# This takes about a minute.

# %%
thread_runs = configurations.compare(hurting, *RUN, half, rounds=rounds, where="section 7")
for name in list(hurting)[1:]:
    tell(thread_runs, name, "a thread per core")

# %% jupyter={"source_hidden": true}
draw(thread_runs, "a thread per core", "Threads and memory, vs a thread per core")
PUBLISHED = {"memory spread": "33.62 → 34.18 images/s: 1.02×, with NCHW"}
changed = [name for name in list(hurting)[1:] if name in thread_runs.results]
results.hand_in(
    "7",
    *(
        (
            f"{framework}: a thread per core → {name}",
            PUBLISHED.get(name, ""),
            Measured(*thread_runs.ratio(name, "a thread per core"), "×"),
            "",
            thread_runs.others,
        )
        for name in changed
    ),
)

# %% [markdown]
# If too many threads do no harm here, ask why. With PyTorch and `KMP_BLOCKTIME=1`, a waiting thread gives its core back
# after 1 ms: run the printed command again with 200, which is Intel's default, and with `infinite`.

# %% [markdown]
# ## 8 · A build of 2023, and open tasks {read 5, optional}
#
# **History.** Until 2023, Intel published a TensorFlow in which oneDNN ran on OpenMP threads. `OMP_NUM_THREADS` and
# the intra-op threads were then two settings for one number, so they were mostly equal: the talk of 2019 showed 56 and
# 56, with 2 inter-op threads. The walk-through's published table, on 18 cores with 2 NUMA nodes:
#
# | published setting | images/s |
# | --- | --- |
# | default, NHWC | 5.48 |
# | Intel's build, 18 threads, pinned, `KMP_BLOCKTIME=1` | 33.62 (6.14×) |
# | the same with `numactl -i all`, and NCHW | 34.18 (6.24×) |
# | memory on one node | about 23.6 |
#
# So the library and its threads gave nearly everything. The last 2% came from two changes at once, in one run each, so
# no one can separate them. All memory on one node was the expensive mistake.
#
# Its cores had AVX2: 16 multiplications and 16 additions per cycle, at 2.9 GHz. *On paper*, that is `18 × 32 × 2.9` in
# GFLOP/s:

# %% tags=["nbval-check-output"]
paper = 18 * 32 * 2.9
for what, images in {"default": 5.48, "Intel's build, threads set": 33.62}.items():
    reached = images * in_training / 1e9
    print(f"{what}: {reached:.0f} of {paper:,.0f} GFLOP/s on paper, {reached / paper:.0%}")

# %% [markdown]
# To compare that build with today's, install it with `./lab setup --openmp` (1.2 GB). It takes a Python 3.11, and where
# set-up finds none, it says so and leaves the build out. Then, in a terminal:
#
# ```bash
# ./lab bench --config openmp,openmp-threads,onednn-threads --num_batches=3 --rounds 6
# ```
#
# **Open tasks**, also for a terminal. Compare two configurations at a time in six rounds, and write down the result
# with the version, even if nothing helps.
#
# - *Compilers.* `onednn-threads,onednn-threads-xla`: XLA compiles the whole step. Does oneDNN's log still show
#   convolutions?
# - *Memory.* A program's addresses are looked up page by page. With `-huge`, the C library asks for [**pages of 2
#   MB**](../docs/glossary.md#huge-page) instead of 4 kB, so a CPU needs fewer lookups. Which part of
#   `onednn-threads-bf16-fused-huge` is due to the pages, and which to fusion? Does another `malloc` do as well? Preload
#   it in a run without `--config`, which clears the variable: `LD_PRELOAD=…/libtcmalloc.so.4 ./lab bench …`.
# - *NUMA.* With two nodes: `onednn-threads,onednn-threads-interleave`.
#
# ```bash
# ./lab bench --config onednn-threads,onednn-threads-xla --num_batches=3 --rounds 6
# ```

# %% [markdown]
# ## Questions {read 4}
#
# Answer each in a sentence or two, with what you saw above. The instructor's notebook has answers.
#
# 1. Does oneDNN gain as much over `eigen` here as in 2019? Name two reasons why it need not.
# 2. How do you prove that TensorFlow uses oneDNN at all?
# 3. A colleague reports a gain of 2% from one run of 100 steps each. What do you ask for, and why not for more steps?
# 4. What does a larger batch spread over more images? Why does the gain end?
# 5. Which part of the step could save the most time? Is it the one that takes the most time?
# 6. Where the peak of bfloat16 is twice that of float32, why need training not be twice as fast? Why may a batch of 4
#    understate the gain?
# 7. The walk-through's machine had 36 logical CPUs. Why did it set 18 threads?
# 8. Which framework is faster here, and where does the other lose its time?
# 9. What is the trade-off of `KMP_BLOCKTIME`? When would you set it to 0? *(section 7)*

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Answers 1 to 5**
#
# 1. Today's `eigen` can call oneDNN's matmul, with the newest instructions: see section 1's log. The machines
#    of 2019 had other cores. The walk-through compares two builds.
# 2. `ONEDNN_VERBOSE=1`: one line for each primitive, and the head names version, threads and instructions. Or the
#    operations with `_Mkl` in the graph that ran (lab 02).
# 3. Several launches of each, alternating, and the interval. More steps of one launch average out what differs between
#    steps, never what differs between launches.
# 4. What a step costs whatever the batch: section 5 names it. Once that is a small part of the step, a larger batch
#    spreads nothing more.
# 5. See exercise 4. The convolutions mostly take the most time, and are nearer to their limit. Batch norms and reorders
#    could save most of a smaller time.
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Answers 6 to 9**
#
# 6. Only work that the cores limit gains from the higher peak. Work that memory limits gains from half the bytes, at
#    best. Weights, their gradients and updates stay in float32; conversions come on top. Work on weights costs
#    the same whatever the batch. So with 4 images it is a larger part of the step, and bfloat16 need not shorten it.
#    Compare section 3's rule in both precisions: the time per image can fall while the fixed part does not. A small
#    batch also gives the faster instructions, above all AMX, less work for each weight that they load.
# 7. Two hardware threads share a core's arithmetic units. A convolution that keeps them busy gains nothing from a
#    second thread, which halves the cache for each.
# 8. See the closing table's note, and section 5's last table. Both frameworks call oneDNN for convolutions, each in the
#    version that it was built with. The rest is their own.
# 9. A waiting thread is ready at once, but keeps a core busy. Use 0 if several ranks share the cores of a node.
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Timing**
#
# Sections 1 to 3 take 40 minutes, 4 and 5 take 30. All waiting together is about 6 minutes on 2 idle cores. Start the
# comparison of section 1 before you explain the settings: students write exercise 1 during that wait. Short of time?
# Skip sections 6 to 8, which nothing else needs.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · What goes wrong**
#
# **PyTorch** is installed with `./lab setup --torch`, the build of 2023 with `./lab setup --openmp`. Without them, the
# cells say so, and the lab continues.
#
# **XLA** replaces TensorFlow's operations, so its convolutions need not be oneDNN's: the log shows it. If it has none,
# that may explain a loss.
#
# **Noise.** On a busy machine (the cells say so), spinning threads suffer first: one launch at a third of the
# others is a typical picture. The verdict is then by rank. If the ledger of section 5 is unreliable, run it again on a
# quiet machine; the picture is left out until it adds up. If a share of the limit is over 103%, run
# `./lab roofline --again`.
#
# Published figures: F. Baruffa's talk *Deep Learning at Scale using Distributed Frameworks* (Intel, 2019); the
# walk-through *6x training speedup using intel-tensorflow, OMP-settings and numactl*.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Alternate the configurations, in several launches, and report the interval. Change one thing at a time.
# - Look for the large steps first: library, precision, batch size. Then set the threads, above all to avoid wrong ones.
# - Use as many threads as physical cores that *you* may use. Never use more, above all with OpenMP.
# - Count operations and bytes. Only then do you know whether something is slow, or at its limit.
# - Check that the parts sum to the whole before you conclude anything from them.
# - Advice gets old: measure it again.
#
# The closing table shows what was published, what you measured, and the most that the machine could do:


# %% jupyter={"source_hidden": true}
def gained(comparison, name, reference, note=""):
    """The factor between two configurations, with both rates; a text where one was not measured."""
    if not {name, reference} <= comparison.results.keys():
        return "not measured here"
    rates = f"{comparison.rate(reference):.1f} → {comparison.rate(name):.1f} images/s"
    return Measured(*comparison.ratio(name, reference), "×", of=rates, note=note)


def trained(what, comparison, name):
    """The row of a configuration's speed, and its limit."""
    if name not in comparison.results:
        return what, "", "not measured here", ""
    rate, limit = rate_of(comparison, name), limit_of(comparison, name)
    return what, "", rate, limit, comparison.others, limits.others


rows = [
    (what, published, gained(training, name, reference, note), "", training.others)
    for what, published, name, reference, note in (
        ("Eigen → oneDNN", "3.84 → 17.69 images/s: 4.6× (batch 16)", "onednn", "eigen", ""),
        ("oneDNN: default threads → set", "", "onednn-threads", "onednn", ""),
        (
            "Eigen → threads and precision set",
            "5.48 → 34.18 images/s: 6.24× (batch 128)",
            fast,
            "eigen",
            "",
        ),
        ("PyTorch → TensorFlow, same settings", "", fast, pytorch, why),
    )
]
rows.append(
    (f"batch {batch} → {best_size}", "", gained(by_batch, best, first), "", by_batch.others)
)
if BF16:
    precision_gain = gained(by_batch, in_bf16, best)
    rows.append((f"float32 → bfloat16, batch {best_size}", "", precision_gain, "", by_batch.others))
rows.append(trained("training, TensorFlow", training, fast))
rows.append(trained("training, PyTorch", training, pytorch))
rows += results.handed_in("6", ("batch norm alone, fused → Keras'", ""))
rows += results.handed_in("7", ("a thread per core → twice as many", ""))
results.table("ResNet-50", rows)

# %% [markdown]
# Published: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (the source does not name
# the machine), and the walk-through *6x training speedup using intel-tensorflow, OMP-settings and numactl*, on a rented
# machine with 18 cores and 2 NUMA nodes. The limit is the speed of the fastest matrix product of any library here, in
# the same precision, divided by the operations of an image.
#
# Where you are on the way from this machine's default to its fastest, over all labs that you have run:

# %%
ladder.show(results)

# %% [markdown]
# Next: [lab 04](04_fewer_bits.ipynb), with fewer bits.
