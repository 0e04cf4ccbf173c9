# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 03 · ResNet-50, from default to fast
#
# **You will learn** what each setting changes when one well-known network runs in several configurations, from the
# default of years ago to the fastest that your machine has; how to count the operations in a step; and how to draw how
# far each part of a step is from your machine's limit.
#
# **Time** {minutes} Half of the waiting is in one piece, with an exercise to write meanwhile.
#
# **Connects to** lab 02, which reads oneDNN's log on a small network; lab 04, which continues with fewer bits; lab 05,
# in which a program finds the settings; and lab 08, which takes this network to a cluster.
#
# Two published results set the standard. In 2019, a talk by Intel showed ResNet-50 training **4.6 times** as fast with
# Intel's library as without. In a walk-through on a rented machine, the author reached **6.2 times**. Both name each
# setting. Which of them still matter?
#
# TensorFlow prints notices in red when it starts. They are not errors.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
import json
import os
import re
from collections import Counter
from dataclasses import replace

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow starts; without it, older CPUs would get Eigen

import keras
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tensorflow as tf

from labkit.bench import configurations
from labkit.display import onednn, plots
from labkit.display.measured import Measured
from labkit.exercises import open_lab
from labkit.mpi import run_ranks
from labkit.roofline import measure
from labkit.system import load, processes
from labkit.system.errors import LabError
from labkit.system.statistics import Ratio

check, results, machine, work = open_lab("03", globals())
cores, nodes = machine.usable_cores, len(machine.numa)

# %% [markdown]
# The [**batch size**](../docs/glossary.md#batch-size), the number of images in a step, depends on your machine. The
# published runs had 16 images in a batch, and 128 on 18 cores: about 7 for each core. Here it is 4 for each core, so
# that you wait less, up to 128, and no more than fit into memory.
#
# A run with 16-bit numbers ([**bfloat16**](../docs/glossary.md#bfloat16)) makes sense only where the CPU can compute
# with them, or oneDNN can emulate them.

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
memory_gb = machine.memory_free / 2**30
batch = 8 if QUICK else max(2, min(4 * cores, 128, int((memory_gb - 2) / 0.1)))  # about 2 GB, and 0.1 for each image
network, network_on_ranks = ("mnist", "mnist") if QUICK else ("resnet50", "inception3")
logged_steps = 1 if QUICK else 5  # section 1
rounds, side_rounds, steps = (1, 1, 1) if QUICK else (3, 2, 2)  # of section 2, of sections 5 and 6, of each run
rank_counts = (1,) if QUICK or cores == 1 else (1, 2)  # section 7
RUN = (f"--model={network}", "--num_warmup_batches=1", f"--num_batches={steps}")
whole, half = f"--batch_size={batch}", f"--batch_size={max(2, batch // 2)}"

if {"BF16", "AMX"} & set(machine.isa):
    print("bfloat16: this CPU computes with it.")
elif "AVX-512" in machine.isa:
    print("bfloat16: emulated. This CPU converts to float32 and back, so expect no gain.")
else:
    print("bfloat16: left out. oneDNN has no convolutions in it for this CPU.")
BF16 = bool({"AVX-512", "BF16", "AMX"} & set(machine.isa)) and not QUICK
print(f"batch size {batch}, {memory_gb:.0f} GB of memory free")

# %% [markdown]
# ## 1 · One run
#
# Both published results come from one program, `tf_cnn_benchmarks`. It generates random images (a synthetic data set),
# trains a network on them, and prints the [**throughput**](../docs/glossary.md#throughput): how many images it
# processed in a second. It is no longer maintained. This kit's `./lab bench` takes the same flags and prints the same
# lines.
#
# In a terminal, in the kit's folder, this command starts the run below, apart from a few flags:
#
# ```bash
# ONEDNN_VERBOSE=1 ./lab bench --model=resnet50 --batch_size=16 --num_batches=5
# ```
#
# `ONEDNN_VERBOSE=1` makes oneDNN write one line for everything it does. At the time of the published results, the
# variables were `MKL_VERBOSE=1` and `MKLDNN_VERBOSE=1`, and their lines proved that TensorFlow really used the library.
# In today's TensorFlow, both names have no effect. The cell keeps oneDNN's lines for section 4, and shows you the
# others.
#
# `--trace_file` also writes the timeline of one step, again for section 4. The run takes about 20 s. Meanwhile, `htop`
# in a second terminal shows what each core does.

# %%
NOISE = (onednn.MARK, "WARNING: All log", "I0000 ")  # lines of the log, and of TensorFlow's start


def logged(configuration, *flags):
    """Run a configuration under ONEDNN_VERBOSE=1, one operation at a time: its result, log lines, timeline."""
    out, timeline = work / "run.json", work / "timeline.json"
    argv = [str(configuration.python), "-m", "labkit.bench", *configuration.flags, *flags]
    argv += ["--num_inter_threads=1", f"--json={out}", f"--trace_file={timeline}"]
    ended = processes.run(
        argv,
        env={**configuration.env, "ONEDNN_VERBOSE": 1},
        on_line=lambda line: line.startswith(NOISE) or print(line, flush=True),
    )
    if ended.failure:
        raise LabError(f"{ended.failure}. Its last lines:\n  " + "\n  ".join(ended.lines[-4:]))
    return json.loads(out.read_text()), ended.lines, json.loads(timeline.read_text())["traceEvents"]


known = configurations.known()
many = (RUN[0], whole, "--num_warmup_batches=1", f"--num_batches={logged_steps}", "--display_every=1")
runs, log_others = {}, {}
with load.watch("section 1") as log_others["float32"]:
    runs["float32"] = logged(known["onednn"], *many)

# %%
onednn.describe(runs["float32"][1])

# %% [markdown]
# This is the proof: oneDNN prints its name, its threads, and the best instructions it found.
#
# The walk-through ran 30 batches of 128 images, and kept what was printed:
#
# ```bash
# ./lab bench --device=cpu --data_name=imagenet --model=resnet50 --data_format=NHWC \
#     --batch_size=128 --num_batches=30 2>&1 | tee default.log
# ```
#
# `2>&1` sends errors the same way as the output, and `tee` shows both and writes them to a file: when you compare runs
# next week, you still have them. You can run it later; the cell below says how long it takes here.
#
# Each line has three numbers: `images/sec: 17.3 +/- 0.1 (jitter = 0.4)`. They come from the seconds that each step has
# taken so far: the **mean** of all steps; after `+/-`, the **uncertainty**, which is the standard error of the steps'
# speeds; and the **jitter**, a spread that is taken from medians. This is how `tf_cnn_benchmarks` computes them:


# %%
def speed(images, seconds):
    """(mean, uncertainty, jitter) in images/s, of steps of so many images that took so many seconds."""
    speeds = images / np.array(seconds)
    mean = images * len(speeds) / np.sum(seconds)  # all images by all the time
    uncertainty = np.std(speeds) / np.sqrt(len(speeds))
    jitter = 1.4826 * np.median(np.abs(speeds - np.median(speeds)))  # of normally distributed speeds, their deviation
    return mean, uncertainty, jitter


def printed(images, seconds):
    mean, uncertainty, jitter = speed(images, seconds)
    return f"images/sec: {mean:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f})"


seconds = runs["float32"][0]["seconds"]
print("this run:", printed(batch, seconds))
long_run = (3 + 30) * 128 / runs["float32"][0]["images_per_second"]
print(f"3 + 30 batches of 128 take about {long_run / 60:.0f} minutes at this speed, and about 15 GB of memory")

# %% [markdown]
# ### Exercise 1 · What happened in this run?
#
# A colleague shows you the last line of a run of 10 steps with 16 images each:
# `images/sec: 8.0 +/- 0.8 (jitter = 0.0)`. On the same machine, a step usually reaches 11 images/s. Which times of the
# steps give such a line?
#
# Write `disturbed(images, steps, usual, mean)`. It returns a list with the seconds of that many steps, at least three,
# of `images` images each, for which the line reads so:
#
# - its first number is `mean`, which is not more than `usual`;
# - the jitter is 0;
# - the usual step, which is the median of the steps' speeds, reaches `usual` images/s.


# %%
def disturbed(images, steps, usual, mean):
    """Seconds of steps whose mean is lower than the usual step's speed, without any jitter."""
    ### BEGIN SOLUTION
    all_steps, each = steps * images / mean, images / usual
    return [each] * (steps - 1) + [all_steps - (steps - 1) * each]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
disturbed = check(1, disturbed)

# %%
found = [float(value) for value in disturbed(16, 10, 11, 8)]
print(printed(16, found), "\nseconds:", *(f"{value:.2f}" for value in found))

# %% [markdown]
# Your list is one explanation. In the solution's, nine steps are as fast as ever, and one takes almost five times as
# long. If the mean is far from the usual step and the jitter is small, something else used the machine for a while. The
# mean alone cannot tell you this; nor can the jitter, which hardly changes when one step is slow.
#
# The uncertainty describes this one run. If you start the program again, the result may differ by more than that: other
# memory, another time, other programs on the machine. So below, each configuration runs several times, taking turns
# with the others.
#
# ## 2 · The configurations
#
# A configuration is a Python environment, some variables, some flags, and perhaps a command in front. These are the
# kit's. All set their [**threads**](../docs/glossary.md#thread) for the [**cores**](../docs/glossary.md#core) that you
# have.

# %%
for name in ("eigen", "onednn", "openmp", "openmp-kmp", "openmp-kmp-numactl"):
    print(f"{name}: {known[name].description}\n  {known[name].command(RUN[0], whole)}\n")

# %% [markdown]
# Line by line, this is what each configuration changes:
#
# - **eigen** is TensorFlow with its own kernels: today's version of the default of those days.
# - **onednn** is today's default on most machines. oneDNN takes over the operations it supports, and works on
#   TensorFlow's own threads.
# - **openmp** is another build of TensorFlow, 2.14 by Intel. It is the last on PyPI in which oneDNN has its own
#   threads, from [**OpenMP**](../docs/glossary.md#openmp). Only there do `OMP_*` and `KMP_*` have an effect.
# - **openmp-kmp** sets those threads:
#   - `OMP_NUM_THREADS`: as many as cores. Two threads on one core share its arithmetic units, and a good convolution
#     keeps those busy with one thread.
#   - [`KMP_AFFINITY`](../docs/glossary.md#kmp_affinity)`=granularity=fine,compact,1,0`: **threads that move** lose what
#     they had in their core's cache. This setting ties each thread to one place
#     ([**pinning**](../docs/glossary.md#pinning)): neighbours on neighbouring cores, the second hardware threads of the
#     cores last.
#   - `KMP_BLOCKTIME=1`: **threads that spin**. Between two pieces of work, a thread waits in a loop. It is ready at
#     once, but it occupies a core. After this many milliseconds it sleeps. OpenMP's default is 200.
#   - `--num_intra_threads`, `--num_inter_threads`: TensorFlow's own threads, for what oneDNN does not do, and the
#     number of operations that may run at the same time.
# - **openmp-kmp-numactl** adds `numactl --interleave=all`: **remote memory**. On a machine with several [**NUMA
#   nodes**](../docs/glossary.md#numa-node), each node has its own memory. Linux puts a page of memory on the node of
#   the thread that touches it first. If one thread fills all the memory, it lies on one node, and the cores of the
#   other nodes must fetch it from there. Interleaving spreads the pages over all nodes.
# - Each also comes with **bfloat16** (the benchmark's flag is `--use_fp16`): half the bytes and, where the CPU has
#   instructions for it, twice the operations in a second, with AMX even more. The weights stay in float32.
#   (`eigen-bf16` is left out: TensorFlow's own kernels convert number by number, and a step takes many seconds.)
#
# ```mermaid
# flowchart LR
#     accTitle: Cores and NUMA nodes
#     accDescr: Two NUMA nodes. Each has cores and memory of its own. Memory on the other node is slower to reach.
#     subgraph n0["NUMA node 0"]
#         c0["cores 0–8"] <-->|"near"| m0["memory"]
#     end
#     subgraph n1["NUMA node 1"]
#         c1["cores 9–17"] <-->|"near"| m1["memory"]
#     end
#     n0 <-.->|"far: slower"| n1
# ```
#
# The walk-through's last step changed two things at once: it added `numactl`, *and* it went from NHWC images to NCHW.
# Section 6 takes them apart, and compares *openmp* as it comes with threads set. These are compared now:

# %%
base = "onednn" if known["openmp-kmp"].missing else "openmp-kmp"  # the best there is here, for all that follows
names = ("eigen", base) if QUICK else ("eigen", "onednn", "openmp-kmp")
asked = {name: known[name] for name in names}
if BF16:
    asked[f"{base}-bf16"] = known[f"{base}-bf16"]
print(f"{len(asked)} configurations: {', '.join(asked)}")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as fast as `eigen` is each of them, on your machine? Write your guesses in the next
# cell, for as many as you like. The picture will show them beside the measurements.
#
# </div>

# %%
guess = {
    "onednn": None,
    "openmp-kmp": None,
    f"{base}-bf16": None,
}

# %% [markdown]
# This takes about a minute and a half, because each run is a new process. While it runs, read on and write exercise 2.
# (You can write in a cell while another runs.)

# %%
training = configurations.compare(asked, *RUN, whole, rounds=rounds, where="section 2")

# %% [markdown]
# ### Exercise 2 · Settings for machines you have never seen
#
# People copy settings from one machine to the next, where they no longer fit. Here are four machines. Each row of
# `cpus` is one logical CPU, as `lscpu -p=CPU,CORE,SOCKET,NODE` lists them: its number, its core, its socket, its NUMA
# node. Linux numbers the first hardware thread of every core first, then the second ones. `allowed`, a range or a list,
# has the CPUs on which *you* may run: a batch system or `taskset` can give you less than the machine has. `quota` is
# the CPU time that a container may take, in CPUs: with 2.5, two CPUs can be busy all the time, and a third half of the
# time. Without such a limit, it is `None`.


# %%
def box(sockets, cores_each, hardware_threads):
    """The rows of a machine with a NUMA node for each socket."""
    total = sockets * cores_each
    return [
        (thread * total + core, core, core // cores_each, core // cores_each)
        for thread in range(hardware_threads)
        for core in range(total)
    ]


MACHINES = {
    "the walk-through's": {"cpus": box(2, 9, 2), "allowed": range(36), "quota": None},
    "a laptop": {"cpus": box(1, 4, 2), "allowed": range(8), "quota": None},
    "a container, quota 2.5": {"cpus": box(2, 28, 2), "allowed": range(112), "quota": 2.5},
    "a login node, 4 of 64 cores": {"cpus": box(2, 32, 2), "allowed": [0, 1, 2, 3, 64, 65, 66, 67], "quota": None},
}
print("the laptop's CPUs (CPU, core, socket, node):", *MACHINES["a laptop"]["cpus"])

# %% [markdown]
# Write `settings_for(cpus, allowed, quota)`. It returns a dict: the walk-through's settings, for what you may use of
# such a machine.
#
# - `"OMP_NUM_THREADS"` and `"num_intra_threads"`: one thread for each **physical core** that you may use. Two hardware
#   threads of a core count once. Start no more threads than the quota can keep busy all the time, and at least one.
# - `"num_inter_threads"`: the number of sockets on which you may use a core, as people advised at that time;
# - `"interleave"`: True if your cores are on more than one NUMA node, so that there is memory to spread over; otherwise
#   False.
#
# The three numbers are of type `int`. Keep the names of the parameters: the lab's next cell gives them by name.


# %%
def settings_for(cpus, allowed, quota):
    """The settings for what one may use of a machine."""
    ### BEGIN SOLUTION
    mine = [row for row in cpus if row[0] in allowed]
    physical = len({core for _, core, _, _ in mine})
    busy = physical if quota is None else max(1, min(physical, int(quota)))
    return {
        "OMP_NUM_THREADS": busy,
        "num_intra_threads": busy,
        "num_inter_threads": len({socket for _, _, socket, _ in mine}),
        "interleave": len({node for _, _, _, node in mine}) > 1,
    }
    ### END SOLUTION


# %% tags=["nbval-check-output"]
settings_for = check(2, settings_for)

# %%
for name, about in MACHINES.items():
    print(f"{name + ':':30}{settings_for(**about)}")
print(f"{'the kit, on this machine:':30}{cores} threads, 1 inter-op")

# %% [markdown]
# The walk-through's machine shows 36 CPUs and gets 18 threads. `lscpu` in a container or on a login node shows what the
# machine has, not what *you* may use: a program that starts a thread for each of 112 CPUs under a quota of 2.5 is in
# trouble (section 6). The kit uses what you may use. It also sets one inter-op thread: ResNet-50's layers wait for each
# other, so few operations can run at the same time.
#
# Now the result of the comparison. (In a terminal: `./lab bench --config eigen,onednn,openmp-kmp --rounds 3`.)


# %%
def tell(comparison, name, reference):
    """Say how many times as fast as the reference a configuration is, as sure as that is."""
    if not {name, reference} <= comparison.results.keys():
        print(f"{name} against {reference}: not measured here")
        return
    times = comparison.ratio(name, reference)
    print(f"{name:26} {times} times {reference}: {times.verdict}")


for name in list(training.results)[1:]:
    tell(training, name, "eigen")
print()
for name, reference in (("openmp-kmp", "onednn"), (f"{base}-bf16", base)):
    tell(training, name, reference)

# %% jupyter={"source_hidden": true}
names = list(training.results)
figure, axis = plt.subplots(figsize=(10, 0.55 * len(names) + 1.6))
for row, name in enumerate(names):
    colour, hatch = (plots.ORANGE, "//") if name.endswith("bf16") else (plots.BLUE, "")
    bar = axis.barh(row, training.rate(name), color=colour, hatch=hatch, edgecolor="white", height=0.7)
    times = "" if name == "eigen" else f" = {training.ratio(name, 'eigen')}×"
    axis.bar_label(bar, [f"{training.rate(name):.1f}{times}"], padding=6)
    if guess.get(name):
        axis.plot(guess[name] * training.rate("eigen"), row, "D", color=plots.BLACK, markersize=9)
axis.set_yticks(range(len(names)), names)
axis.invert_yaxis()
axis.margins(x=0.45)
axis.set(
    xlabel="images/s = times eigen (95% interval); black: your guess",
    title="ResNet-50 training, configuration by configuration",
)
plots.show(
    figure,
    alt=f"Training at batch {batch}: "
    + "; ".join(
        f"{name} {training.rate(name):.1f} images/s, {training.ratio(name, 'eigen')} times eigen" for name in names
    ),
    keep=results,
)


# %% jupyter={"source_hidden": true}
def draw(comparison, references, title, keep=None):
    """Bars of how many times as fast as its reference each configuration is, for sections 5 and 6."""
    has = comparison.results.keys()
    times = {name: comparison.ratio(name, ref) for name, ref in references.items() if {name, ref} <= has}
    figure, axis = plt.subplots(figsize=(10, 0.6 * len(times) + 1.5))
    for row, ratio in enumerate(times.values()):
        colour = (plots.GREEN if ratio.value > 1 else plots.VERMILION) if ratio.significant else plots.SKY
        axis.barh(row, ratio.value, height=0.7, color=colour)
        axis.text(0.02, row - 0.14, f"{ratio.value:.2f}", va="center", weight="bold")
        if not np.isnan(ratio.low):
            axis.plot([ratio.low, ratio.high], [row + 0.2] * 2, color=plots.BLACK, marker="|", linewidth=1.5)
    largest = max([1.2, *(ratio.value for ratio in times.values())])
    widest = max([largest, *(np.nanmax(ratio) for ratio in times.values())])
    axis.axvline(1, color=plots.BLACK, linestyle="--")
    axis.set_yticks(range(len(times)), [f"{name}\nagainst {references[name]}" for name in times], fontsize=11)
    axis.invert_yaxis()
    axis.set(
        xlabel="times as fast (line: 95% interval; light blue: may be chance)",
        title=title,
        xlim=(0, 1.1 * min(widest, 3 * largest)),  # an interval that is wider runs out of the picture
    )
    alt = "Times as fast: " + "; ".join(f"{name} {ratio} times {references[name]}" for name, ratio in times.items())
    plots.show(figure, alt=alt, keep=keep)


# %% [markdown]
# The numbers in brackets are the 95% [**confidence interval**](../docs/glossary.md#confidence-interval) of the ratio.
# If it contains 1, the result may be chance. It comes from the rounds: each gives a ratio, in which what made the round
# slow for both alike cancels, and how well these ratios agree gives the interval. Each pair has its own. The noise of
# all configurations is not pooled, because one can vary ten times as much as another; the comparison says so where it
# does. A relaunch is another sample: the steps of one process share the layout of its memory and the places of its
# threads, so a round is a process, and the spread of the steps is not used. Three rounds are enough to say something;
# two more make the intervals half as wide.
#
# Whether the OpenMP build is faster than the stock one has changed with the versions, and differs between machines. The
# last two lines say what the other build and bfloat16 are worth on yours.
#
# Was the step from `eigen` to `onednn` 4.6 times, as in 2019? If not, ask the log what `eigen` is today. The next cell
# classifies one image with oneDNN switched *off*, and counts what the log has:

# %%
one_image = ("--batch_size=1", "--forward_only", "--num_warmup_batches=1", "--num_batches=1")
verbose = replace(known["eigen"], env=known["eigen"].env | {"ONEDNN_VERBOSE": 1})
lines = runs["float32"][1] if QUICK else configurations.run(verbose, RUN[0], *one_image)
print(Counter(line.split(",exec,cpu,")[1].split(",")[0] for line in lines if ",exec,cpu," in line))

# %% [markdown]
# If you see `gemm_api` (or `matmul`) alone, these are oneDNN's matrix products. Eigen splits a convolution into many
# small ones. Their innermost loop has been oneDNN's for some years, whatever the switch says. (TensorFlow's source
# calls it the *contraction kernel*.) So the default has caught up with a part of the gain. What the switch still adds
# is whole convolutions, with blocked weights, and batch norms.
#
# ## 3 · How far is the limit?
#
# Is the fastest configuration really fast? To answer, you need two numbers: how much a step has to compute, and how
# much the machine can compute.
#
# ResNet-50 is 53 convolutions and one matrix product. Here they all are, as (kernel side, channels in, channels out,
# output side). A `1` as the kernel side is a 1×1 convolution; the dense layer at the end is one too, on one pixel.


# %% tags=["nbval-check-output"]
def resnet50():
    """Its convolutions and its dense layer, in the order in which an image goes through them."""
    yield 7, 3, 64, 112
    channels, side = 64, 56
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            if block == 0:
                yield 1, channels, 4 * width, side  # the shortcut, where the number of channels changes
            yield 1, channels, width, side
            yield 3, width, width, side
            yield 1, width, 4 * width, side
            channels = 4 * width
        side //= 2
    yield 1, channels, 1001, 1


LAYERS = list(resnet50())
print(f"{len(LAYERS)} layers:", *LAYERS[:5], "…")

# %% [markdown]
# ### Exercise 3 · The operations of an image
#
# Write `flops(layers)`. It returns how many floating-point operations such layers need for one image, as a tuple
# (forward, training). A multiplication and an addition are two operations.
#
# - In the [**forward pass**](../docs/glossary.md#forward-pass), each number of a layer's output is a sum over the
#   positions of the kernel and the input channels.
# - **Training** adds the [**backward pass**](../docs/glossary.md#backward-pass): two
#   [**gradients**](../docs/glossary.md#gradient) for each layer, one with respect to its weights and one with respect
#   to its input. Each takes as many operations as the forward pass. One of them is never computed: nobody needs the
#   gradient with respect to the *images*.


# %%
def flops(layers):
    """Floating-point operations for one image: (forward, training)."""
    ### BEGIN SOLUTION
    each = [2 * kernel**2 * channels_in * channels_out * side**2 for kernel, channels_in, channels_out, side in layers]
    return sum(each), 3 * sum(each) - each[0]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
flops = check(3, flops)

# %% tags=["nbval-check-output"]
forward, in_training = map(float, flops(LAYERS))
print(f"ResNet-50: {forward / 1e9:.2f} GFLOP for one image forward, {in_training / 1e9:.2f} in training")
for side in (1, 3, 7):
    share = float(flops([layer for layer in LAYERS if layer[0] == side])[0]) / forward
    print(f"  {side}×{side}: {100 * share:2.0f}% of the forward pass")

# %% [markdown]
# Papers often say "4 GFLOP" for ResNet-50: they count a multiplication and its addition as one.
#
# [**Batch norms**](../docs/glossary.md#batch-normalisation), Relus and additions are not counted. They compute little.
# Their cost is memory traffic, and that is the other half of the limit: a core can only compute with numbers that have
# come from memory. The next cell shows both limits. They are measured once on this machine, in about 20 s, and then
# kept (in a terminal: `./lab roofline`; add `--again` to measure anew). The limit in computing is the fastest matrix
# product of any library here. *On paper* is what the instruction alone reaches, on numbers that stay in registers:

# %%
limits = measure.limits(quick=QUICK)
KINDS = ["float32", "bfloat16"] if BF16 else ["float32"]
for kind in KINDS:
    best, paper = limits.products[kind][0], limits.instructions.get(kind)
    emulated = ", emulated" if limits.emulated(kind) else ""
    on_paper = f"; on paper {paper['speed']:,.0f}, by {paper['instruction']}" if paper else ""
    print(f"{kind:9} {best.speed:7,.0f} GFLOP/s in matrix products of {best.library}{emulated}{on_paper}")
print(f"memory    {limits.bandwidth:7,.1f} GB/s")
print(f"AMX, which multiplies small matrices: {'in the figure of bfloat16' if 'AMX' in machine.isa else 'not here'}")
if limits.others.busy:
    print(limits.others)


# %%
def kind_of(result):
    """The numbers that a run computed with."""
    return "bfloat16" if result["settings"]["use_fp16"] else "float32"


def shares(comparison):
    """A row for each configuration: its speed, and what share of the matrix product's speed that is."""
    rows = {}
    for name, seen in comparison.results.items():
        peak = limits.peak(kind_of(seen[0]))
        rows[name] = {
            "images/s": comparison.rate(name),
            "GFLOP/s": comparison.gflops(name),
            "at most, images/s": peak / seen[0]["gflop_per_image"],
            "share of the limit": comparison.gflops(name) / peak,
        }
    return pd.DataFrame(rows).T


FORMATS = {"images/s": "{:,.1f}", "GFLOP/s": "{:,.0f}", "at most, images/s": "{:,.1f}", "share of the limit": "{:.0%}"}
for name in shares(training).query("`share of the limit` > 1").index:
    print(f"{name} is above the limit: the machine was busier when that was measured. ./lab roofline --again")
shares(training).style.format(FORMATS)

# %% [markdown]
# *At most* is how many images a second you could train if each operation ran as fast as the fastest matrix product.
#
# Nobody published the limit of the walk-through's machine. But its cores had AVX2: 16 multiplications and 16 additions
# in each cycle, at 2.9 GHz, or less when all cores are busy. So on paper:

# %% tags=["nbval-check-output"]
paper = 18 * 32 * 2.9
for what, rate in {"default": 5.48, "Intel's build, threads set": 33.62}.items():
    reached = rate * in_training / 1e9
    print(f"{what:27}{rate:6.2f} images/s ={reached:4.0f} of {paper:,.0f} GFLOP/s on paper: {reached / paper:.0%}")

# %% [markdown]
# ## 4 · Where the time goes
#
# There is a gap to the limit. Which part of the step causes it? The log of section 1 has the answer. The next cell
# makes one more log like it, in bfloat16, if that makes sense on your CPU (about 15 s).

# %%
if BF16:
    with load.watch("section 4") as log_others["bfloat16"]:
        runs["bfloat16"] = logged(known["onednn-bf16"], *many)
logs = {kind: onednn.read_log(lines, after="Done warm up") for kind, (_, lines, _) in runs.items()}
step_ms = {kind: 1000 * float(np.mean(run["seconds"])) for kind, (run, _, _) in runs.items()}
timed = {kind: len(run["seconds"]) for kind, (run, _, _) in runs.items()}
logs["float32"].drop(columns=["attributes"]).head(6)

# %% [markdown]
# ### Exercise 4 · Three questions to a log
#
# Before you tune anything, check in the log that the run was what you think it was. Write `diagnose(log)`. It returns a
# dict with three shares of the log's **time** (`ms`), each between 0 and 1, not rounded:
#
# - `"bf16"`: time in [**primitives**](../docs/glossary.md#primitive) whose `type` is `bf16`. You asked for bfloat16:
#   did you get it?
# - `"reference"`: time in implementations whose name begins with `ref`. This is oneDNN's plain C++ code, for cases in
#   which it has no fast code for this CPU. It takes ten to a hundred times as long.
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
diagnose = check(4, diagnose)

# %%
pd.DataFrame({kind: diagnose(log) for kind, log in logs.items()}).map(float).style.format("{:.1%}")

# %% [markdown]
# Now the time by kind of work. The function in the next cell parses a line of the log. The column `problem`, such as
# `mb16_ic64oc64_ih56oh56kh3…`, contains all sizes. You know from exercise 3 how much a convolution computes. What it
# must move, **at least**, is each of its tensors once: the input, the weights, the output.

# %%
BYTES = {"f32": 4, "bf16": 2}  # of a number
PASSES = {"forward_training": (6, 2), "forward_inference": (2, 2), "backward": (9, 3)}  # of a batch norm, counted below


def work_of(row):
    """What a primitive in the log is, how many operations it takes, and how many bytes it moves at least."""
    n = Counter({name: int(value) for name, value in re.findall(r"([a-z]+)(\d+)", row.problem)})
    dims = [int(value) for value in re.findall(r"\d+", row.problem)]
    if row.primitive == "convolution":
        places = n["kh"] * n["kw"]
        # A kernel smaller than its stride leaves pixels out.
        read = n["mb"] * n["ic"] * min(n["ih"], n["oh"] * n["kh"]) * min(n["iw"], n["ow"] * n["kw"])
        written, weights = n["mb"] * n["oc"] * n["oh"] * n["ow"], n["ic"] * n["oc"] * places
        what, flop, numbers = (
            f"{n['kh']}×{n['kw']} convolution",
            2 * written * n["ic"] * places,
            read + weights + written,
        )
    elif row.primitive == "batch_normalization":
        # Forward: the sum (1), the sum of squares (3), the result (2). Backward: two sums (4), the result (5).
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
        what, flop, numbers = row.primitive, 0, 2 * np.prod(dims)
    return pd.Series({"kind": what, "gflop": flop / 1e9, "gbyte": numbers * BYTES.get(row.type, 4) / 1e9})


def by_kind(kind):
    """The log of one precision, summed by kind of work: calls, ms, GFLOP and GB in a step."""
    log = logs[kind]
    worked = log.assign(calls=1).join(log.apply(work_of, axis=1))
    sums = worked.groupby("kind")[["calls", "ms", "gflop", "gbyte"]].sum() / timed[kind]
    return sums.sort_values("ms", ascending=False)


kinds = {kind: by_kind(kind) for kind in KINDS}
for kind, table in kinds.items():
    rest = step_ms[kind] - table.ms.sum()
    print(
        f"{kind}: a step takes {step_ms[kind]:,.0f} ms, {table.ms.sum():,.0f} of them in oneDNN. "
        f"The rest, {rest / step_ms[kind]:.0%}, is Eigen's and TensorFlow's."
    )
kinds["float32"].style.format("{:,.2f}")

# %% [markdown]
# oneDNN's log doesn't show what the rest is. The timeline does: it has each operation of one step, with its time. An
# operation whose name begins with `_Mkl` is oneDNN's. Of the others, `ResourceApplyGradientDescent` updates the
# weights, `L2Loss` and most of `Mul` are the weight decay, `AddN` adds up gradients, and `AddV2` are the shortcuts.
# `Cast` is what bfloat16 costs: it converts the weights to bfloat16 and their gradients back.

# %%
for kind, (_, _, timeline) in runs.items():
    spent, calls = Counter(), Counter()
    for event in timeline:
        if event["ph"] == "X" and not event["name"].startswith("_Mkl"):
            spent[event["name"]] += event["dur"] / 1000
            calls[event["name"]] += 1
    shown = ", ".join(f"{name} {ms:.0f} ms ({calls[name]})" for name, ms in spent.most_common(6))
    print(f"{kind}, without oneDNN: {shown}")

# %% jupyter={"source_hidden": true}
rows = list(kinds["float32"].index)
figure, axis = plt.subplots(figsize=(10, 5))
for shift, kind, colour, hatch in zip((-0.2, 0.2), KINDS, (plots.BLUE, plots.ORANGE), ("", "//")):
    ms = kinds[kind].ms.reindex(rows).fillna(0)
    ms["Eigen and TensorFlow"] = step_ms[kind] - ms.sum()
    height = 0.8 / len(KINDS)
    bars = axis.barh(
        np.arange(len(ms)) + shift * (len(KINDS) - 1), ms, height, color=colour, hatch=hatch, edgecolor="w", label=kind
    )
    axis.bar_label(bars, [f"{value:,.0f} = {value / step_ms[kind]:.0%}" for value in ms], padding=4, fontsize=11)
axis.set_yticks(range(len(ms)), ms.index)
axis.invert_yaxis()
axis.margins(x=0.18)
axis.set(xlabel="ms in a step, and its share of the step", title="Where a training step's time goes")
axis.legend(loc="lower right")
plots.show(
    figure,
    alt="Milliseconds in a training step. "
    + " ".join(
        f"{kind}, of {step_ms[kind]:,.0f}: "
        + ", ".join(f"{name} {ms:,.0f}" for name, ms in kinds[kind].ms.items())
        + f", Eigen and TensorFlow {step_ms[kind] - kinds[kind].ms.sum():,.0f}."
        for kind in KINDS
    ),
    keep=results,
)

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
# Each kind of work is a point under the roof. A larger point takes more time. A point further below the roof could save
# a larger part of its time.

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(10, 5.5))
intensity = np.geomspace(0.1, 1000, 200)
styles = dict(zip(KINDS, ((plots.BLUE, "-", "filled"), (plots.ORANGE, "--", "hollow"))))
for kind, (colour, line, filling) in styles.items():
    limit = [limits.attainable(x, kind) for x in intensity]
    axis.plot(intensity, limit, line, color=colour, marker="", label=f"{kind} ({filling})")
for kind, (colour, _, filling) in styles.items():
    points = kinds[kind][kinds[kind].gflop > 0].sort_index()
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
for ticks in (axis.xaxis, axis.yaxis):
    ticks.set_major_formatter("{x:g}")
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
            for name, row in kinds[kind].iterrows()
            if row.gflop
        )
        + "."
        for kind in KINDS
    ),
    keep=results,
)

# %% [markdown]
# ### Exercise 5 · What to improve first
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
    """For each kind of work what limits it, and the ms in a step that it could save at most; the largest first."""
    ### BEGIN SOLUTION
    found = {}
    for name, row in kinds.iterrows():
        moving, computing = 1000 * row.gbyte / bandwidth, 1000 * row.gflop / peak
        bound = "memory" if moving > computing else "cores"
        found[name] = bound, max(0.0, row.ms - max(moving, computing))
    return dict(sorted(found.items(), key=lambda item: item[1][1], reverse=True))
    ### END SOLUTION


# %% tags=["nbval-check-output"]
bottleneck = check(5, bottleneck)

# %%
least_ms = {}
for kind, table in kinds.items():
    found = bottleneck(table, limits.peak(kind), limits.bandwidth)
    found = {name: (bound, float(saving)) for name, (bound, saving) in found.items()}
    print(f"{kind}: a step of {step_ms[kind]:,.0f} ms")
    for name, (bound, saving) in found.items():
        ms = table.ms[name]
        print(f"  {name:18} limited by {bound:7}{ms:7,.0f} ms, could save {saving:6,.0f} ({saving / ms:.0%})")
    least_ms[kind] = table.ms.sum() - sum(saving for _, saving in found.values())
    images = 1000 * batch / least_ms[kind]
    print(f"  at the limit, all of oneDNN's part would take {least_ms[kind]:,.0f} ms: {images:,.1f} images/s\n")

# %% [markdown]
# This is a better limit than the one of section 3, because it takes into account that memory limits some of the work.
# The rest of the step, which is not oneDNN's, comes on top: additions, the gradients of Relus, the update of the
# weights. Memory limits all of that too. `./lab roofline --model resnet50`, in a terminal, adds up the limits of *all*
# operations, and shows which kind of work loses the rest of the time. The remedy is [**operator
# fusion**](../docs/glossary.md#operator-fusion), because it avoids passes over memory.
#
# If you have bfloat16, look at what it changes in the picture. Half the bytes mean twice the intensity, and the peak
# goes up. The memory-bound work gains only from the first. So the faster the cores, the larger the share of the time
# that is not convolution.
#
# ## 5 · What one operator is worth, and what training costs
#
# So far each batch norm was one operation. Keras does not do that. The next cell compares Keras' layer with the fused
# operation. Which operations did each run, forward and backward, and how often did they read or write whole images? The
# cell leaves out operations that work on one number for each channel: they cost almost nothing.

# %%
x, dy = (tf.random.normal((2, 14, 14, 64)) for _ in range(2))  # images, and the gradient with respect to the result
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


for norm in (keras_norm, fused_norm):
    written = {op.name: op for op in tf.function(norm).get_concrete_function(x, dy).graph.get_operations()}
    operations, tensors = Counter(), 0
    for node in onednn.graph_that_ran(norm, x, dy)[1]:
        op = written.get(node.name)
        large = [t for t in (*op.inputs, *op.outputs) if t.shape.num_elements() == tf.size(x)] if op else []
        if large and node.op != "Identity":
            operations[node.op] += 1
            tensors += len(large)
    names = ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in operations.items())
    print(f"{norm.__name__}: {operations.total()} operations read or write {tensors} whole images: {names}")

# %% [markdown]
# Keras 3 is written for several libraries at once, and builds its batch norm from small operations. oneDNN has no
# kernels for the single steps, such as one mean or one multiplication. Each step reads the whole image again, and often
# writes it. Keras 2 used the fused operation.
#
# The benchmark can do both. With `--nofused_batch_norm` it computes as Keras 3 does, and nothing else changes.
#
# The same comparison answers a second question. To classify images you need only the forward pass (`--forward_only`): a
# third of the operations, no gradients, and a batch norm that is a fixed formula. Does it get nearer to the limit?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What does a batch norm in small operations cost, in float32 and in bfloat16? Does the forward pass
# reach more GFLOP/s than training, or fewer?
#
# </div>
#
# The next cell takes about a minute.

# %%
side = {"onednn, forward": replace(known["onednn"], flags=("--forward_only",))}
for kind in KINDS:
    name, flags = ("onednn", ()) if kind == "float32" else ("onednn-bf16", ("--use_fp16",))
    side[name] = replace(known["onednn"], flags=flags)
    side[f"{name}, unfused"] = replace(known["onednn"], flags=(*flags, "--nofused_batch_norm"))
if QUICK:  # the runs of section 2 stand in for these
    operators = training._replace(results=dict(zip(("onednn", "onednn, unfused"), training.results.values())))
else:
    operators = configurations.compare(side, *RUN, half, rounds=side_rounds, where="section 5")


# %%
def quotient(first, second):
    """The ratio of two ratios that have no speed in common, with its interval."""
    times = first.value / second.value
    if np.isnan([first.low, second.low]).any():
        return Ratio(times)
    spread = np.exp(np.hypot(np.log(first.high / first.value), np.log(second.high / second.value)))
    return Ratio(times, times / spread, times * spread)


def reached(comparison, name, reference):
    """How many times the GFLOP/s of the reference a configuration reaches: its images/s, by what an image takes."""
    work = [comparison.results[each][0]["gflop_per_image"] for each in (name, reference)]
    return Ratio(*(work[0] / work[1] * value for value in comparison.ratio(name, reference)))


def conclude(comparison):
    """Print what the rounds say of the batch norm, of what bfloat16 changes in it, and of the forward pass."""
    has = comparison.results.keys()
    for plain in ("onednn", "onednn-bf16"):
        tell(comparison, f"{plain}, unfused", plain)
    pairs = [("onednn-bf16, unfused", "onednn-bf16"), ("onednn, unfused", "onednn")]
    if all({*pair} <= has for pair in pairs):
        times = quotient(*(comparison.ratio(*pair) for pair in pairs))
        costs = {"slower": "it costs more in bfloat16", "faster": "it costs less in bfloat16"}
        print(f"unfused, in bfloat16 against in float32: {times}: {costs.get(times.verdict, times.verdict)}")
    if {"onednn, forward", "onednn"} <= has:
        times = reached(comparison, "onednn, forward", "onednn")
        amount = {"faster": "more", "slower": "fewer"}.get(times.verdict, times.verdict)
        print(f"the forward pass reaches {times} times the GFLOP/s of training: {amount}")


conclude(operators)

# %% jupyter={"source_hidden": true}
references = {f"{plain}, unfused": plain for plain in ("onednn", "onednn-bf16")}
draw(operators, references, "Batch norm in small operations, against fused", keep=results)

# %% jupyter={"source_hidden": true}
references = {name: name.partition(",")[0] for name in operators.results if "," in name}
results.hand_in(
    "5",  # for the closing table
    *(
        (f"{plain} → {name}", "", Measured(*operators.ratio(name, plain), "×"), "", operators.others)
        for name, plain in references.items()
        if plain in operators.results
    ),
)

# %% [markdown]
# The lines above are as sure as their intervals: "no difference beyond chance" means "measure again", and not "no
# effect". Set `side_rounds` at the top higher, if you have the time: with three rounds, intervals are about a quarter
# as wide as with two, and with five a seventh.
#
# Why can an unfused batch norm cost a larger share in bfloat16? The convolutions get faster, and the passes over memory
# are as many as before. Keras 3 also computes its batch norm in float32 and converts before and after.
#
# And the forward pass: what is left of it besides the convolutions, and which part of that could you fold away (lab 02,
# exercise 1)? Lab 04 does that, with a compiler for inference, and goes down to 8 bits.
#
# ## 6 · Threads, layout, memory
#
# The configuration *openmp-kmp* sets four things. Did they arrive? With `KMP_SETTINGS=1` (or the flag
# `--kmp_settings=1`) Intel's OpenMP prints, as it starts, which variables it found (*User settings*) and what it works
# with (*Effective settings*). Read it for one run before you believe in a setting: a misspelt name is not an error. It
# stands among the user settings, and changes nothing among the effective ones.

# %%
if known["openmp-kmp"].missing:
    print(known["openmp-kmp"].missing)
else:
    small = ("--model=mnist", "--num_warmup_batches=1", "--num_batches=1")
    told = replace(known["openmp-kmp"], env=known["openmp-kmp"].env | {"KMP_SETTINGS": 1})
    wanted = ("User", "Effective", "KMP_AFFINITY=", "KMP_BLOCKTIME=", "OMP_NUM_THREADS=")
    print(*(text for text in configurations.run(told, *small) if text.strip().startswith(wanted)), sep="\n")

# %% [markdown]
# Do these settings matter? First undo all of them: *as it comes*. Only if that makes a difference, it is worth asking
# which one it was. Then try the classic mistake: twice as many threads as cores
# ([**oversubscription**](../docs/glossary.md#oversubscription)).
#
# The published results did not try one setting: the size of a **page**. A program's addresses are looked up page by
# page, and Linux gives pages of 4 kB: half a million of them for the 2 GB of a step here. A CPU keeps only a few
# thousand lookups at hand. With `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`, the C library asks for [**pages of 2
# MB**](../docs/glossary.md#huge-page). Guess: what does that gain?
#
# The walk-through's last step, which gained 2%, changed the layout from NHWC to NCHW *and* spread the memory over two
# nodes. On a machine with several NUMA nodes, all four combinations are measured here, and what the walk-through tried
# too: all memory on one node. With one node, all memory is equally far from all cores: there is nothing to spread.

# %%
good = known[base]
side = {"as set": good}
if base == "openmp-kmp":
    side["as it comes"] = known["openmp"]
    side[f"{2 * cores} threads"] = replace(good, env=good.env | {"OMP_NUM_THREADS": 2 * cores})
else:
    print("Without the OpenMP build there are only TensorFlow's own threads to change.\n")
    side[f"{2 * cores} threads"] = replace(good, flags=(*good.flags, f"--num_intra_threads={2 * cores}"))
if BF16:
    side["bfloat16"] = known[f"{base}-bf16"]
side["pages of 2 MB"] = known[f"{base}-bf16-huge" if BF16 else f"{base}-huge"]
nchw = (*good.flags, "--data_format=NCHW")
side["NCHW"] = replace(good, flags=nchw)
if nodes > 1:
    spread = ("numactl", "--interleave=all")
    side["memory spread"] = replace(good, prefix=spread)
    side["memory spread, NCHW"] = replace(good, prefix=spread, flags=nchw)
    side["memory on one node"] = replace(good, prefix=("numactl", "--membind=0"))
else:
    print("This machine has one NUMA node, so spreading the memory is not measured.\n")
against = {name: "as set" for name in side if name not in ("as set", "bfloat16")}
if BF16:
    against["pages of 2 MB"] = "bfloat16"
for name, configuration in side.items():
    print(f"{name}:\n  {configuration.command(RUN[0], half)}")

# %% [markdown]
# This takes about a minute and a half, and about 40 s more with several NUMA nodes.

# %%
if QUICK:  # the runs of section 2 stand in for these
    threads = training._replace(results=dict(zip(side, training.results.values())))
else:
    threads = configurations.compare(side, *RUN, half, rounds=side_rounds, where="section 6")


# %%
def advise(comparison, name, reference):
    """Say what a changed setting does, and what follows from it, as far as the interval reaches."""
    tell(comparison, name, reference)
    if not {name, reference} <= comparison.results.keys():
        return
    times = comparison.ratio(name, reference)
    if np.isnan(times.low):
        advice = "measure in rounds before you decide"
    elif times.significant and times.value < 1:
        advice = f"stay with what is set: this loses {1 - times.high:.0%} at least"
    elif times.significant:
        advice = f"change it on this machine: this gains {times.low - 1:.0%} at least"
    else:
        advice = f"less than a factor of {times.high / times.value:.2f} cannot be seen in these rounds"
    print(f"  → {advice}")


for name, reference in against.items():
    advise(threads, name, reference)
if nodes > 1:
    print()
    tell(threads, "memory spread, NCHW", "NCHW")
    tell(threads, "memory spread, NCHW", "memory spread")
draw(threads, against, "Threads, layout, memory: one thing changed at a time", keep=results)

# %% jupyter={"source_hidden": true}
published = {
    "memory spread, NCHW": "33.62 → 34.18 images/s: 1.02×",
    "memory on one node": "34.18 → about 23.6 images/s: 0.69×, there from spread",
}
changed = [name for name in threads.results if name in against]
results.hand_in(
    "6",  # for the closing table
    *((f"as set → {name}", text, "not run here", "") for name, text in published.items() if name not in changed),
    *(
        (f"{ref} → {name}", published.get(name, ""), Measured(*threads.ratio(name, ref), "×"), "", threads.others)
        for name, ref in against.items()
        if name in changed
    ),
)

# %% [markdown]
# **Too many threads.** How can they be worse than useless? With OpenMP, at the end of each piece of work, all threads
# wait for the last one. A thread that waits spins, and keeps its core busy with nothing. The last thread may have no
# core, because the others use it to wait for that thread. This continues until the operating system takes the core away
# from a spinning thread. Then the next piece of work starts, and a training step has many hundreds of them. The same
# can happen when *another program* runs on your cores: two jobs on one node, two ranks that each start a thread for
# each core (lab 07), or a container with a quota below its number of cores.
#
# **Spinning and moving** can matter on machines with many cores and several sockets, and when other programs run. On
# two cores that have nothing else to do, a thread has hardly anywhere to move. If *as it comes* differs on your
# machine, undo one setting at a time: copy `good`, take `KMP_AFFINITY` or `KMP_BLOCKTIME` out of its `env`, and compare
# again.
#
# **The layout.** In 2018, the advice for CPUs was NCHW: it was closer to the [**blocked
# layout**](../docs/glossary.md#blocked-layout) that the library needed (lab 02). Today TensorFlow leaves images as they
# are, and oneDNN has convolutions that work on NHWC directly. NCHW can cost twice: in the convolutions, which must
# gather the channels of a pixel from far apart; and in the operations that oneDNN does not do, because TensorFlow's own
# work best with NHWC. Advice gets old.
#
# **The memory.** With one node, `numactl` runs and changes nothing. With several nodes, it can help if one thread has
# filled the memory that all threads use. It can harm if each thread had its own part on its own node, because then a
# part of the near memory becomes far. The opposite was the expensive mistake: with all memory on *one* node (`numactl
# -m 1`), the walk-through fell from 34 to about 23.6 images/s. Half of the cores fetched everything from the far node,
# and one node's memory had to serve all cores.
#
# **Pages.** Pages of 2 MB save lookups, and Linux clears one of them faster than the 512 small ones. They cost memory:
# a program that uses a few bytes of a page has all of it. What they gain depends on the machine, and on what else has
# used its memory: measure it again after a day. `./lab start --huge-pages` gives them to all your kernels, and to what
# they start. If the line above says that they are left out here, it also says why.
#
# So of the walk-through's 6.24 times, the library and its threads gave 6.14. The rest came from two changes whose
# effects nobody can tell apart. Report what you see, with its interval, and not what the advice says.
#
# ## 7 · The same program on several ranks
#
# Intel's talk ended with a benchmark on four [**ranks**](../docs/glossary.md#rank): processes that train together, each
# on its own cores (labs 06 and 07 show how). All its flags have their place here:
#
# | the talk's command | here |
# | --- | --- |
# | `mpirun -np 4 -cpus-per-proc 10 map-by socket` | `run_ranks(4, …, threads=10)`: each on cores of its own |
# | `--report-bindings` | lab 07 reads the masks |
# | `--model inception3 --batch_size 64 --optimizer rmsprop` | the same; the batch is that of each rank |
# | `--variable_update horovod` | the same |
# | `--horovod_device cpu --local_parameter_device cpu` | nothing: here all is on the CPU |
# | `--num_intra_threads 10 --num_inter_threads 2` | the same |
# | `--mkl=True --kmp_blocktime 1` | the same; `KMP_*` acts only in the OpenMP build, which has no Horovod here |
# | `--data_format NCHW` | NHWC, see section 6 |
# | `--distortions=True --data_dir … --data_name imagenet` | synthetic images, which need no random crops and colours |
#
# In a terminal, on a machine with 40 cores: `mpirun -n 4 -bind-to core:10 -map-by socket ./lab bench --model=inception3
# --batch_size=64 --optimizer=rmsprop --variable_update=horovod --num_intra_threads=10 --num_inter_threads=2`. The next
# cell runs it small: all your cores in one rank, then the same images and the same cores in two (about half a minute).

# %%
script = work / "bench_rank.py"
script.write_text("from labkit.bench.__main__ import main\n\nmain()\n")
images = min(2 * cores, 32)  # a step, of all ranks together
talk = ("--optimizer=rmsprop", "--variable_update=horovod", "--num_warmup_batches=1", f"--num_batches={steps}")
seen = {}
with load.watch("section 7") as rank_others:
    for ranks in rank_counts:
        each, out = cores // ranks, work / "ranks.json"
        sizes = (f"--model={network_on_ranks}", f"--batch_size={images // ranks}")
        own = (f"--num_intra_threads={each}", "--num_inter_threads=1", f"--json={out.resolve()}")
        done = run_ranks(ranks, script, *sizes, *talk, *own, threads=each, show=False)
        print(done.warning, end="\n" * bool(done.warning))
        seen[f"{ranks} × {each} threads"] = [json.loads(out.read_text())]
ranked = configurations.Comparison(seen, {}, rank_others)
for name in seen:
    print(f"{name:14} {images} images a step, {ranked.rate(name):.2f} images/s of all ranks together")
if len(seen) > 1:
    tell(ranked, *reversed(seen))

results.hand_in(
    "7",  # for the closing table
    *(
        (
            f"Inception v3, ranks: {name}",
            "",
            Measured(ranked.rate(name), unit="images/s", note="one run"),
            "",
            rank_others,
        )
        for name in seen
    ),
)

# %% [markdown]
# One round each, so do not rank them: put a loop of three rounds around it, as in section 2, if you want to know. What
# can speak for more ranks on the same cores? Each rank's work is small enough for fewer threads, and nothing crosses
# from socket to socket but gradients. Against them: each rank keeps its own weights in memory, and every step waits for
# the slowest rank. And 64 images *a rank* means that with four ranks a step has 256: that changes the training, not
# only its speed (labs 07 and 08).
#
# ### If you have time: a compiler
#
# An open task, without a check. People often propose to let a compiler merge what the library does not. TensorFlow's
# compiler is XLA, and `--xla_compile` makes it compile the whole step. Guess, then measure it against `onednn`, in
# turns:
#
# ```python
# xla = {"onednn": known["onednn"], "xla": replace(known["onednn"], flags=("--xla_compile",))}
# tell(configurations.compare(xla, *RUN, half, rounds=3), "xla", "onednn")  # about a minute
# ```
#
# Then explain it: count the primitives in the log of both (`logged` in section 1 gives it). Which convolutions does
# oneDNN still do? Is the answer the same for `--model=mnist`? An optimisation that does not help is a result too: write
# it down, with the version, and try it again in a year.
#
# A compiler need not have all of the step. oneDNN has no kernel for the end of a block, the sum with the shortcut and
# its Relu: those are Eigen's, in two passes over memory, and their gradients in two more. With `--fused_shortcuts`, XLA
# compiles these alone, and each becomes one pass. The kit's fastest configuration has both, and your best type of
# number; in a terminal, in about two minutes:
#
# ```bash
# ./lab bench --config onednn-bf16,onednn-bf16-fused,onednn-bf16-fused-huge --num_batches=3 --rounds 5
# ```
#
# Does it gain as much in float32? Section 4's timeline, made with that flag, shows where the time was.

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. Those that name an optional section are for whoever did it.
# The instructor's notebook has answers.
#
# 1. Does oneDNN gain as much over `eigen` here as in the published results? Name two reasons why it need not.
# 2. How do you prove that TensorFlow uses the library at all?
# 3. Which part of the step could save the most time? Is it the one that takes the most time?
# 4. Where the peak of bfloat16 is twice that of float32, why need training not be twice as fast?
# 5. Why can more threads than cores cost so much with OpenMP, and less with TensorFlow's own threads? *(section 6)*
# 6. What does `KMP_BLOCKTIME` trade for what? When would you set it to 0? *(section 6)*
# 7. The walk-through's machine had 36 logical CPUs. Why did it set 18 threads?
# 8. What would you measure there to find out how much the interleaved memory alone gained? *(section 6)*
# 9. Somebody shows you a gain of 2% from one run each. What do you ask for?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions, timing, and what goes wrong.
#
# ### Answers
#
# 1. Today's `eigen` uses oneDNN's matrix product inside, generated at run time for the newest instructions; their
#    machines had more cores, and different ones; the walk-through compares two different builds.
# 2. `ONEDNN_VERBOSE=1`: one line for each primitive, and the head names version, threads and instructions. At that time
#    it was `MKL_VERBOSE` and `MKLDNN_VERBOSE`. Or the operations with `_Mkl` in the graph that ran (lab 02).
# 3. See exercise 5. The convolutions mostly take the most time, and are nearer to their limit: they could save a
#    smaller share of a larger time. Batch norms and reorders could save most of a smaller time. The list shows which is
#    larger here.
# 4. Only the work that the cores limit gains from the higher peak. The work that memory limits gains from half the
#    bytes, at best; weights, their gradients and updates stay in float32; conversions come on top.
# 5. OpenMP splits the work evenly, and waits by spinning. TensorFlow's threads take pieces from a queue and sleep when
#    there are none, so a slow thread only does fewer pieces.
# 6. A waiting thread is ready at once, but it keeps a core busy with nothing. Use small values when other threads need
#    the cores: TensorFlow's own, a second process, an input pipeline. Use 0 when several ranks share the cores of a
#    node.
# 7. Two hardware threads share a core's arithmetic units. A convolution that keeps them busy gains nothing from a
#    second thread, and then each thread has only half the cache.
# 8. NHWC with `numactl --interleave=all`, and NHWC without, in turns, several times. That is the 2 × 2 of section 6.
# 9. More runs, in turns, and the interval. The walk-through's step from 33.62 to 34.18 is one run each.
#
# Published figures: F. Baruffa's talk *Deep Learning at Scale using Distributed Frameworks* (Intel, 2019) for 3.84 and
# 17.69; the walk-through *6x training speedup using intel-tensorflow* for the others.
#
# **What is left, and why** (a machine with AMX, 2 cores, ResNet-50 at batch 64 in bfloat16, OpenMP build, with fused
# shortcuts and large pages: `./lab roofline --model resnet50 --batch_size 64 --config openmp-kmp-bf16-fused-huge`). A
# step took 2.5 s where the limit is 0.94 s, 37% of it. Batch norms, Relus and additions lost 0.80 s: the gradients of a
# batch norm read two tensors twice, which the limit counts once, and the forward pass reads its input twice.
# Convolutions lost 0.75 s, of which 0.45 s are gradients of weights: those of 1×1 convolutions with stride 2, and of
# the 7×7 one, reached a fifth of the peak, and nobody has looked why. What would help is a batch norm that is fused
# into its neighbours, for training too.
#
# **XLA** (the open task): on a CPU it does not use oneDNN's convolutions, so the log has none of them. On one machine
# with 2 cores it trained 5.6 images/s where oneDNN trained 11.4.
#
# **Timing** Sections 1 and 2 take 35 minutes with the comparison, 3 and 4 take 40, the rest 20. All waiting together is
# under 6 minutes on 2 idle cores. Start the comparison of section 2 before you explain the settings: its two minutes
# are those of exercise 2. Short of time? Skip sections 5 to 7, which nothing else needs.
#
# **What goes wrong** The OpenMP build is a second environment, made by `./lab setup`; without it the lab continues with
# the stock build, and section 6 has little to show. On a busy machine (the cells say so), the OpenMP configurations
# suffer first, sometimes by a factor of ten: that is section 6, live. If a share of the limit is over 100%, run
# `./lab roofline --again` on a quiet machine.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Measure in turns, several times, and report the interval. Change one thing at a time.
# - Look for the large steps first: the library, the type of number, fused operations. Then set the threads, above all
#   to avoid wrong ones.
# - Use as many threads as physical cores that *you* may use. Never use more, above all with OpenMP.
# - Count operations and bytes. Only then do you know whether something is slow, or at its limit.
# - Much to compute for each byte, as in most convolutions: the cores are the limit. Little, as in batch norms and
#   additions: memory is. Fused operations save passes over memory.
# - Advice gets old: measure it again.
#
# The closing table shows what was published, what you measured, and the most that the machine could do:


# %% jupyter={"source_hidden": true}
def at_most(comparison, name):
    """The limit's images/s for a configuration that ran."""
    first = comparison.results[name][0]
    return limits.peak(kind_of(first)) / first["gflop_per_image"]


def gained(name):
    """Images/s in training, from Eigen's to this configuration's, and how many times that is."""
    if not {"eigen", name} <= training.results.keys():
        return "not run here"
    rates = f"{training.rate('eigen'):.1f} → {training.rate(name):.1f} images/s"
    return Measured(*training.ratio(name, "eigen"), "×", of=rates)


most = f"{at_most(training, 'eigen'):.1f} images/s"
rows = [
    (what, published, gained(name), most, *((training.others, limits.others) if name in training.results else ()))
    for what, published, name in (
        ("default → MKL-DNN (Intel, batch 16)", "3.84 → 17.69 images/s: 4.6×", "onednn"),
        ("default → Intel's build, threads set (batch 128)", "5.48 → 33.62 images/s: 6.14×", "openmp-kmp"),
    )
]
for name in training.results:
    share = training.rate(name) / at_most(training, name)
    rows.append(
        (
            f"training, {name}, batch {batch}",
            "",
            Measured(training.rate(name), unit="images/s", digits=1),
            f"{at_most(training, name):.1f} images/s; {share:.0%} of it{', measured while busier' * (share > 1)}",
            training.others,
            limits.others,
        )
    )
rows += [
    (
        f"oneDNN's part of a step, {kind}",
        "",
        Measured(table.ms.sum(), unit="ms", digits=0),
        f"{least_ms[kind]:,.0f} ms, by kind of work",
        log_others[kind],
        limits.others,
    )
    for kind, table in kinds.items()
]
rows += results.handed_in("5", ("onednn → onednn, forward", ""), ("onednn → onednn, unfused", ""))
rows += results.handed_in(
    "6",
    ("as set → memory spread, NCHW", "33.62 → 34.18 images/s: 1.02×"),
    ("as set → memory on one node", "34.18 → about 23.6 images/s: 0.69×, there from spread"),
    (f"{'bfloat16' if BF16 else 'as set'} → pages of 2 MB", ""),
)
rows += results.handed_in("7", ("Inception v3, on 1 and 2 ranks", ""))
results.table("ResNet-50", rows)

# %% [markdown]
# Published: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (the source does not name
# the machine), and the walk-through *6x training speedup using intel-tensorflow, OMP-settings and numactl*, on a rented
# machine with 18 cores and 2 NUMA nodes. The limit is the speed of the fastest matrix product of any library here, in
# the same kind of number, divided by the operations of an image. Next: lab 04, with fewer bits.
