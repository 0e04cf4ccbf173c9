# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 03 · ResNet-50, from default to fast
#
# Two published results set the standard for training on CPUs. In 2019, a talk by Intel showed ResNet-50 training **4.6
# times** as fast with Intel's library as without. In a walk-through on a rented machine, the author reached **6.2
# times**, by settings alone: on the same machine, for the same money. The walk-through names each of its settings; the
# talk calls its two runs only "Default" and "Optimized". Which settings still matter, and how far from the machine's
# limit do they take you?
#
# **You will learn** what library, threads, batch size and kind of number each change when one well-known network
# trains, from the default of years ago to a fast setting of today; how to count the operations in a step; and how to
# draw how far each part of a step is from your machine's limit.
#
# **Time** {minutes} The longest wait is in section 2, with an exercise to write meanwhile.
#
# **Connects to** lab 02, which reads oneDNN's log on a small network; lab 04, which continues with fewer bits; lab 05,
# in which a program finds the settings; and lab 08, which takes this network to a cluster.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("03", globals())

# %%
import json
import os
import re
import time
from collections import Counter
from dataclasses import replace

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow starts: older CPUs would get Eigen

import keras
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tensorflow as tf

from labkit.bench import configurations
from labkit.bench.in_process import Step, compare_steps
from labkit.bench.run import LEARNING_RATE, WEIGHT_DECAY
from labkit.bench.steps import make_forward_step, make_train_step
from labkit.data.synthetic_batch import synthetic_batches
from labkit.display import ladder, onednn, plots
from labkit.display.measured import Measured
from labkit.models.networks import Network
from labkit.roofline import measure
from labkit.system import load, processes
from labkit.system.errors import LabError
from labkit.system.statistics import Ratio, interval

cores, nodes = machine.usable_cores, len(machine.numa)
tf.config.threading.set_intra_op_parallelism_threads(cores)  # for what runs in this notebook
tf.config.threading.set_inter_op_parallelism_threads(1)

# %% [markdown]
# The [**batch size**](../docs/glossary.md#batch-size) is the number of images in a step. The published runs had 16, and
# 128 on 18 cores: about 7 for each core. Here it is 2 for each core, so that you wait less. Section 3 measures what
# that costs.
#
# The images are synthetic: random numbers, made once. So this lab measures the network alone. Whether the disk and the
# decoding of JPEGs keep up with it is another question, which lab 08 measures.

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
memory_gb = machine.memory_free / 2**30
room_for = int((memory_gb - 2) / 0.1)  # images in a step: it takes about 2 GB, and 0.1 for each
batch = 4 if QUICK else max(2, min(2 * cores, 64, room_for))
sizes = sorted({max(1, batch * part // 4) for part in (1, 2, 4, 16)})  # section 3
sizes = [size for size in sizes if size <= max(batch, room_for)]
network = "mnist" if QUICK else "resnet50"
logged_steps = 1 if QUICK else 5  # sections 1 and 5
rounds, steps = (1, 1) if QUICK else (5, 2)  # section 2: processes of each, and steps in each
step_rounds = 1 if QUICK else 5  # sections 3 and 6, within this notebook
norm_rounds = 2 if QUICK else 15  # section 6
thread_rounds = 1 if QUICK else 5  # section 7
RUN = (f"--model={network}", "--num_warmup_batches=1", f"--num_batches={steps}")
whole, half = f"--batch_size={batch}", f"--batch_size={max(2, batch // 2)}"

BF16 = bool({"AVX-512", "BF16", "AMX"} & set(machine.isa)) and not QUICK
KINDS = ["float32", "bfloat16"] if BF16 else ["float32"]
print(f"batch size {batch}, {memory_gb:.0f} GB of memory free")
if {"BF16", "AMX"} & set(machine.isa):
    print("bfloat16: this CPU computes with it.")
elif BF16:
    print("bfloat16: emulated. oneDNN converts to float32 and back, so do not expect a gain.")
else:
    print("bfloat16: left out. oneDNN has no convolutions in it for this CPU, or the run is small.")

# %% [markdown]
# ## 1 · One run
#
# Both published results come from one program, `tf_cnn_benchmarks`. It trains a network on random images, and prints
# the [**throughput**](../docs/glossary.md#throughput): how many images it processed in a second. It is no longer
# maintained. This kit's `./lab bench` takes the same flags and prints the same lines.
#
# In a terminal, in the kit's folder, this command starts the run below, apart from a few flags:
#
# ```bash
# ONEDNN_VERBOSE=1 ./lab bench --model=resnet50 --batch_size=16 --num_batches=5
# ```
#
# `ONEDNN_VERBOSE=1` makes oneDNN write one line for everything it does. At the time of the published results, the
# variables were `MKL_VERBOSE=1` and `MKLDNN_VERBOSE=1`, and their lines proved that TensorFlow really used the library.
# In today's TensorFlow, both names have no effect. The cell keeps oneDNN's lines for section 5, and shows you the
# others.
#
# `--trace_file` also writes the timeline of one step, again for section 5. The run takes about 20 s. Meanwhile, `htop`
# in a second terminal shows what each core does.

# %%
NOISE = (onednn.MARK, "WARNING: All log", "I0000 ")  # lines of the log, and of TensorFlow's start


def logged(configuration, *flags):
    """Run under ONEDNN_VERBOSE=1, one operation at a time: its result, log lines, timeline."""
    out, timeline = work / "run.json", work / "timeline.json"
    argv = [str(configuration.python), "-m", "labkit.bench", *configuration.flags, *flags]
    argv += ["--num_inter_threads=1", f"--json={out}", f"--trace_file={timeline}"]
    ended = processes.run(
        argv,
        env={**configuration.env, "ONEDNN_VERBOSE": 1},
        on_line=lambda line: line.startswith(NOISE) or print(line, flush=True),
    )
    if ended.failure:
        raise LabError("\n  ".join([f"{ended.failure}. Its last lines:", *ended.lines[-4:]]))
    return (
        json.loads(out.read_text()),
        ended.lines,
        json.loads(timeline.read_text())["traceEvents"],
    )


known = configurations.known()
many = (
    RUN[0],
    whole,
    "--num_warmup_batches=1",
    f"--num_batches={logged_steps}",
    "--display_every=1",
)
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
# next week, you still have them. You can run it later:

# %%
long_run = (3 + 30) * 128 / runs["float32"][0]["images_per_second"]
print(
    f"33 batches of 128 take about {long_run / 60:.0f} minutes at this speed, and 15 GB of memory"
)

# %% [markdown]
# Each line has three numbers: `images/sec: 17.3 +/- 0.1 (jitter = 0.4)`. They come from the seconds that each step has
# taken so far: the **mean** of all steps; after `+/-`, the **uncertainty**, which is the standard error of the steps'
# speeds; and the **jitter**, a spread that is taken from medians, so that one slow step hardly changes it.
#
# ### Exercise 1 · One long run, or several short ones?
#
# The `+/-` describes this one run. If you start the program again, its mean may differ by more than that: other memory,
# other places for its threads. So a speed has two kinds of noise:
#
# - Launches differ, with a standard deviation of `between` (a share: 0.02 is 2%).
# - The steps of one launch differ too, with a standard deviation of `within`.
#
# All deviations are independent of each other. You may measure for `budget` seconds. A launch takes `start` seconds
# until its first timed step, and `step` seconds for each timed step. All launches have the same number of steps, and
# you report the mean of all steps of all launches.
#
# Write `plan(budget, start, step, between, within)`. It returns (launches, steps of each launch), two whole numbers of
# at least 1, such that the reported mean has the smallest standard error that the budget allows. The budget is enough
# for one launch with one step. If several plans are equally good, return any of them.


# %%
def plan(budget, start, step, between, within):
    """(launches, steps of each) within the budget whose mean has the smallest error."""
    ### BEGIN SOLUTION
    plans = []
    for launches in range(1, int(budget / (start + step)) + 1):
        each = int((budget / launches - start) / step)
        plans.append((between**2 / launches + within**2 / (launches * each), launches, each))
    return min(plans)[1:]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
plan = check(1, plan)

# %%
for between, within in ((0.0, 0.02), (0.02, 0.02), (0.002, 0.02)):
    launches, each = map(int, plan(60, 5, 1, between, within))
    print(f"launches ±{between:.1%}, steps ±{within:.1%}: in 60 s {launches} × {each} steps")

# %% [markdown]
# A long run does not average out what differs between launches. The lab's own plan is five launches of two steps each,
# in turns with the other configurations. After section 2, your function will say whether that was a good plan here.
#
# ## 2 · Library and threads
#
# A configuration is a Python environment, some variables, some flags, and perhaps a command in front. Each row changes
# something in the row above it:
#
# | configuration | who computes the convolutions | how many threads | how they wait |
# | --- | --- | --- | --- |
# | `eigen` | TensorFlow's own kernels, the default of those days | one for each core | they sleep |
# | `onednn` | oneDNN, on TensorFlow's threads: today's default | the same | the same |
# | `openmp` | oneDNN, on OpenMP's threads (Intel's TensorFlow 2.14) | that build's default | they *spin* for 200 ms |
# | `openmp-kmp` | the same | one, pinned to each core | they spin for 1 ms |
#
# A [**thread**](../docs/glossary.md#thread) that *spins* waits in a loop: it is ready at once, but it occupies a
# [**core**](../docs/glossary.md#core). A thread that sleeps frees the core and takes longer to start again.
# [**Pinning**](../docs/glossary.md#pinning) ties a thread to one core, so that it does not lose what it has in that
# core's cache.
#
# Intel's TensorFlow 2.14 is the last on PyPI in which oneDNN has threads of
# [**OpenMP**](../docs/glossary.md#openmp). Only there do `OMP_*` and `KMP_*` have an effect: `OMP_NUM_THREADS` sets the
# number, `KMP_BLOCKTIME` says for how many milliseconds a thread spins, and
# [`KMP_AFFINITY`](../docs/glossary.md#kmp_affinity)`=granularity=fine,compact,1,0` pins neighbours to neighbouring
# cores, and uses the second hardware threads of the cores last.
#
# TensorFlow has threads of its own, too. *Intra-op* threads share the work of one operation. *Inter-op* threads each
# run an operation of their own. Here `eigen`, `onednn` and `openmp-kmp` have one inter-op thread: most layers of
# ResNet-50 wait for the one before, so few operations could run at the same time.

# %%
threads_set = (f"--num_intra_threads={cores}", "--num_inter_threads=1")
asked = {name: replace(known[name], flags=threads_set) for name in ("eigen", "onednn")}
default, tuned = "openmp", "openmp-kmp"
if known[tuned].missing:
    print(f"{known[tuned].missing}. Until then, threads are compared in the stock build.")
    default, tuned = "onednn, default threads", "onednn"
    asked[default] = known["onednn"]
else:
    asked |= {name: known[name] for name in (default, tuned)}
for name, configuration in asked.items():
    print(f"{name}:\n  {configuration.command(RUN[0], whole)}")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In 2019, the library made training 4.6 times as fast. How many times as fast as `eigen` is `onednn`
# on your machine? And how many times as fast are tuned threads (`openmp-kmp`) as that build's default (`openmp`)? Write
# a number in place of the three dots.
#
# </div>

# %%
results.guess(1, "onednn against eigen", ..., unit="×")

# %%
results.guess(2, "tuned threads against the default", ..., unit="×")

# %% [markdown]
# This takes more than two minutes, because each run is a new process. While it runs, read on and write exercise
# 2. (You can write in a cell while another runs.)

# %%
began = time.perf_counter()
training = configurations.compare(asked, *RUN, whole, rounds=rounds, where="section 2")
took = time.perf_counter() - began

# %% [markdown]
# ### Exercise 2 · Where should the threads run?
#
# People copy settings from one machine to the next, where they no longer fit. Here are four machines. Each row of
# `cpus` is one logical CPU, as `lscpu -p=CPU,CORE,SOCKET,NODE` lists them: its number, its core, its socket, its
# [**NUMA node**](../docs/glossary.md#numa-node). (Each node has its own memory; that of others is slower to reach.)
# `allowed`, a range or a list, has the CPUs on which *you* may run: a batch system or `taskset` can give you less than
# the machine has. `quota` is the CPU time that a container may take, in CPUs: with 2.5, two CPUs can be busy all the
# time, and a third half of the time. Without such a limit, it is `None`.


# %%
def box(sockets, cores_each, hardware_threads):
    """The rows of a machine with a NUMA node for each socket."""
    total = sockets * cores_each
    return [
        (thread * total + core, core, core // cores_each, core // cores_each)
        for thread in range(hardware_threads)
        for core in range(total)
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
# - `"cpus"`: a list of logical CPUs, one for each thread, in any order. As many threads as can be busy all the time,
#   and at least one. No two threads on one physical **core**: they would share its arithmetic units, and a good
#   convolution keeps those busy with one thread. And all of them on **as few NUMA nodes** as possible, so that memory
#   is near.
# - `"interleave"`: True if these threads are on more than one NUMA node, so that there is memory to spread over;
#   otherwise False.
#
# Keep the names of the parameters: the lab's next cell gives them by name.


# %%
def place_threads(cpus, allowed, quota):
    """The logical CPUs for the threads of one process, and whether to spread its memory."""
    ### BEGIN SOLUTION
    mine = [row for row in reversed(cpus) if row[0] in allowed]
    places = {core: (cpu, node) for cpu, core, _, node in mine}  # the first CPU of each core
    threads = len(places) if quota is None else max(1, min(len(places), int(quota)))
    cores_on = Counter(node for _, node in places.values())
    best = sorted(places.values(), key=lambda place: (-cores_on[place[1]], place[1]))[:threads]
    return {"cpus": [cpu for cpu, _ in best], "interleave": len({node for _, node in best}) > 1}
    ### END SOLUTION


# %% tags=["nbval-check-output"]
place_threads = check(2, place_threads)

# %%
for name, about in MACHINES.items():
    placed = place_threads(**about)
    where = sorted(map(int, placed["cpus"]))
    spread = "numactl --interleave=all " if placed["interleave"] else ""
    print(f"{name}: {spread}OMP_NUM_THREADS={len(where)}")
    print(f"  KMP_AFFINITY=granularity=fine,explicit,proclist={where}")

# %% [markdown]
# `lscpu` in a container or on a login node shows what the machine has, not what *you* may use: a program that starts a
# thread for each of 112 CPUs under a quota of 2.5 is in trouble (section 7). The kit uses what you may use.
#
# The walk-through set 18 threads on its 36 logical CPUs, and two inter-op threads, one for each socket, as people
# advised at that time. Today's advice for two sockets is mostly one process for each NUMA node, with its own memory
# (labs 06 and 07): then there is nothing to interleave.
#
# Now the result of the comparison. (In a terminal: `./lab bench --config eigen,onednn,openmp,openmp-kmp --rounds 5`.)


# %%
def tell(comparison, name, reference):
    """Say how many times as fast as the reference a configuration is, as sure as that is."""
    if not {name, reference} <= comparison.results.keys():
        print(f"{name} against {reference}: not measured here")
        return
    times = comparison.ratio(name, reference)
    between = "" if np.isnan(times.low) else f" ({times.low:.2f} to {times.high:.2f})"
    print(f"{name}: {times.value:.2f}×{between} as fast as {reference}: {times.verdict}")


for name in list(training.results)[1:]:
    tell(training, name, "eigen")
print()
tell(training, tuned, default)
if tuned != "onednn":
    tell(training, tuned, "onednn")
if {"eigen", "onednn"} <= training.results.keys():
    results.compare_guess(1, Measured(*training.ratio("onednn", "eigen"), "×"))
if {default, tuned} <= training.results.keys():
    results.compare_guess(2, Measured(*training.ratio(tuned, default), "×"))


# %% jupyter={"source_hidden": true}
def draw(comparison, references, title):
    """Bars of how many times as fast as its reference each configuration is, with intervals."""
    has = comparison.results.keys()
    times = {
        name: comparison.ratio(name, ref) for name, ref in references.items() if {name, ref} <= has
    }
    figure, axis = plt.subplots(figsize=(10, 0.65 * len(times) + 1.5))
    for row, (name, found) in enumerate(times.items()):
        colour = (
            (plots.GREEN if found.value > 1 else plots.VERMILION)
            if found.significant
            else plots.SKY
        )
        axis.barh(row, found.value, height=0.7, color=colour)
        if not np.isnan(found.low):
            error = [[found.value - found.low], [found.high - found.value]]
            axis.errorbar(
                found.value, row + 0.2, xerr=error, color=plots.BLACK, capsize=4, linewidth=1.5
            )
        label = f"{found.value:.2f}×, {comparison.rate(name):,.1f} images/s"
        axis.text(0.02, row - 0.12, label, va="center", weight="bold", fontsize=11)
    largest = max([1.6, *(found.value for found in times.values())])
    widest = max([largest, *(np.nanmax(found) for found in times.values())])
    axis.axvline(1, color=plots.BLACK, linestyle="--", marker="")
    axis.set_yticks(
        range(len(times)), [f"{name}\nagainst {references[name]}" for name in times], fontsize=11
    )
    axis.invert_yaxis()
    axis.set(
        xlabel="times as fast (line: 95% interval; light blue: may be chance)",
        title=title,
        xlim=(0, 1.1 * min(widest, 3 * largest)),  # a wider interval runs out of the picture
    )
    alt = "Times as fast: " + "; ".join(
        f"{name} {found} times {references[name]}" for name, found in times.items()
    )
    plots.show(figure, alt=alt, keep=results, watched=[comparison.others])


references = {name: "eigen" for name in training.results if name != "eigen"}
if tuned != "onednn":
    references[tuned] = default
draw(training, references, "ResNet-50 training: library and threads")

# %% [markdown]
# The numbers in brackets are the 95% [**confidence interval**](../docs/glossary.md#confidence-interval) of the ratio.
# If it contains 1, the result may be chance. Each round gives a ratio, in which what made the round slow for both
# configurations cancels. How well these ratios agree gives the interval. A round is a process of its own, so that the
# interval includes what differs between launches.
#
# Was that a good plan? This cell takes the noise of your runs, and asks your function:

# %%
measured_s = [result["seconds"] for found in training.results.values() for result in found]
starting = (took - np.sum(measured_s)) / len(measured_s)  # s of a launch, but for its timed steps
for name, found in training.results.items():
    log_s = np.log([result["seconds"] for result in found])  # launches × steps
    if min(log_s.shape) < 2:
        print("one launch or one step: no noise can be seen")
        break
    step = np.exp(log_s.mean())
    within = np.sqrt(log_s.var(axis=1, ddof=1).mean())
    between = np.sqrt(max(0, log_s.mean(axis=1).var(ddof=1) - within**2 / steps))
    launches, each = map(int, plan(60, starting, step, between, within))
    noise = f"launches ±{between:.1%}, steps ±{within:.1%}"
    print(f"{name:24} {noise}: in 60 s best {launches} × {each} steps")

# %% [markdown]
# These standard deviations are rough: they come from five launches. A `between` of 0 means that the launches differ by
# no more than their steps explain.
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
# ## 3 · Batch size and kind of number
#
# Two more settings need no other library. The published runs had 16 and 128 images in a step: are the rates above low
# because yours has fewer? And a run with 16-bit numbers ([**bfloat16**](../docs/glossary.md#bfloat16)) has half the
# bytes to move and, where the CPU has instructions for it, twice the operations in a second, with AMX even more. Its
# weights stay in float32.
#
# Both can be compared within this notebook: the network's training step is a TensorFlow function that takes any number
# of images.


# %%
def make_steps(sizes, training=True, **options):
    """Training steps (or forward passes) of one network, by their number of images."""
    net = Network(network, **options)
    train = make_train_step(net, "sgd", LEARNING_RATE, WEIGHT_DECAY)
    step, flop = (train, net.flops_training) if training else (make_forward_step(net), net.flops)
    batches = {size: next(synthetic_batches(net.model, size, net.data_format)) for size in sizes}
    images, labels = batches[sizes[0]]
    any_number = [tf.TensorSpec((None, *images.shape[1:])), tf.TensorSpec((None,), labels.dtype)]
    graph = tf.function(step, input_signature=any_number)  # one graph for all sizes
    return {
        size: Step(
            lambda batch=batch: graph(*batch).numpy(), size, flop / 1e9, net.dtype == tf.bfloat16
        )
        for size, batch in batches.items()
    }


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as many images a second does the largest batch train as the smallest? (The next cell
# prints both.) And what does bfloat16 gain?
#
# </div>

# %%
print(f"batches of {sizes[0]} to {sizes[-1]} images, on a CPU with {', '.join(machine.isa)}")

# %%
results.guess(3, "the largest batch against the smallest", ..., unit="×")

# %%
results.guess(4, "bfloat16 against float32", ..., unit="×")

# %% [markdown]
# The next cell takes about a minute.

# %%
DTYPES = {"float32": tf.float32, "bfloat16": tf.bfloat16}
by_batch = compare_steps(
    {
        f"{kind}, batch {size}": step
        for kind in KINDS
        for size, step in make_steps(sizes, dtype=DTYPES[kind]).items()
    },
    step_rounds,
    "section 3",
)
smallest, largest = (f"float32, batch {size}" for size in (sizes[0], sizes[-1]))
tell(by_batch, largest, smallest)
results.compare_guess(3, Measured(*by_batch.ratio(largest, smallest), "×"))
in_bf16 = largest.replace("float32", "bfloat16")
if BF16:
    tell(by_batch, in_bf16, largest)
    results.compare_guess(4, Measured(*by_batch.ratio(in_bf16, largest), "×"))

# %% [markdown]
# Is there a rule behind it? Suppose that a step takes a fixed time, whatever the batch, and some time for each image:
# *seconds = fixed + batch × each*. Two numbers for each curve, fitted to the measured steps:


# %%
def fit(kind):
    """(fixed, each) in s: the line over the batch that has the least relative errors."""
    taken = np.array([size / by_batch.rate(f"{kind}, batch {size}") for size in sizes])
    line = np.stack([np.ones(len(sizes)), sizes], axis=1) / taken[:, None]
    return np.linalg.lstsq(line, np.ones(len(sizes)), rcond=None)[0]


fits = {kind: fit(kind) for kind in KINDS}
for kind, (fixed, each) in fits.items():
    off = [
        (fixed + size * each) * by_batch.rate(f"{kind}, batch {size}") / size - 1 for size in sizes
    ]
    print(
        f"{kind}: {1000 * fixed:.0f} ms, and {1000 * each:.0f} ms for each image "
        f"(off by {max(map(abs, off)):.0%} at most). "
        f"At batch 128, this would be {128 / (fixed + 128 * each):.1f} images/s."
    )

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 4.5))
ends = np.geomspace(sizes[0], sizes[-1], 50)
for kind, colour, marker in zip(KINDS, (plots.BLUE, plots.ORANGE), "os"):
    rounds_of = [by_batch.rates(f"{kind}, batch {size}") for size in sizes]
    mean, half_length = interval(np.log(rounds_of))
    low, high = (np.exp(mean + sign * half_length) for sign in (-1, 1))
    error = np.nan_to_num([np.exp(mean) - low, high - np.exp(mean)])
    axis.errorbar(sizes, np.exp(mean), error, fmt=marker, color=colour, capsize=4, label=kind)
    fixed, each = fits[kind]
    axis.plot(ends, ends / (fixed + ends * each), "--", color=colour, marker="", linewidth=1.5)
axis.set(
    xscale="log",
    xlabel="images in a step",
    ylabel="images/s",
    title="Batch size and kind of number",
)
axis.set_ylim(bottom=0)
axis.set_xticks(sizes, map(str, sizes))
axis.minorticks_off()
axis.legend(title="bars: 95% interval\ndashed: the fitted rule", title_fontsize=11)
plots.show(
    figure,
    alt="Training speed over the batch size, with the fitted rule. "
    + "; ".join(f"{name} {by_batch.rate(name):.1f} images/s" for name in by_batch.results),
    keep=results,
    watched=[by_batch.others],
)

# %% [markdown]
# A part of each step does not depend on the batch: the update of 25 million weights, for example. A large batch spreads
# it over more images. Where the rule's error is large, it misses something, and its value for 128 images is no more
# than a guess. The value also assumes that the machine has the memory.
#
# More images in a step change the training, too, not only its speed (labs 05, 07 and 08).
#
# One of these points has the same library, threads and batch as `onednn` in section 2. Do both sections agree?

# %%
here, there = by_batch.rates(f"float32, batch {batch}"), training.rates("onednn")
for where, rates in (("section 2, a process each", there), ("here, all in one process", here)):
    shown = " ".join(f"{rate:6.1f}" for rate in rates)
    print(f"{where:26}{shown} images/s, round by round")

# %% [markdown]
# The rounds here share one process and its memory, so their interval does not include what differs between launches.
# Section 2's does. Its runs also have only one step to warm up, and a process still gets new memory in its second step:
# this may make them slower.
#
# ## 4 · How far is the limit?
#
# Is the fastest of these really fast? To answer, you need two numbers: how much a step has to compute, and how much the
# machine can compute.
#
# ResNet-50 is 53 convolutions and one matrix product. Here they all are, as (kernel side, channels in, channels out,
# output side). A `1` as the kernel side is a 1×1 convolution; the dense layer at the end is one too, on one pixel.


# %% tags=["nbval-check-output"]
def resnet50():
    """Its convolutions and its dense layer, in the order in which an image takes them."""
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


LAYERS = list(resnet50())
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
    part = sum(forward_flops(layer for layer in LAYERS if layer[0] == side))
    print(f"  {side}×{side}: {100 * part / sum(FORWARD):2.0f}% of it")

# %% [markdown]
# ### Exercise 3 · The operations of training
#
# **Training** adds the [**backward pass**](../docs/glossary.md#backward-pass). It goes from the last layer to the
# first, and computes up to two [**gradients**](../docs/glossary.md#gradient) for a layer. Each takes as many operations
# as that layer's forward pass.
#
# - The gradient with respect to the layer's *weights*: by it, the weights learn.
# - The gradient with respect to the layer's *input*: it is what the layer before needs to compute its own gradients.
#
# A gradient that nobody needs is not computed. Take the layers as a chain, in which each one's input is the result of
# the one before. In fine-tuning, often only the last layers learn, and the others keep their weights.
#
# Write `training_flops(each, trained)`. `each` is a list of the forward operations of each layer, in order. `trained`,
# from 0 to the number of layers, says how many layers learn, counted from the end. Return how many operations one
# training step takes for one image, the forward pass included.


# %%
def training_flops(each, trained):
    """Floating-point operations of a training step in which only the last layers learn."""
    ### BEGIN SOLUTION
    learning = each[len(each) - trained :]
    return sum(each) + sum(learning) + sum(learning[1:])
    ### END SOLUTION


# %% tags=["nbval-check-output"]
training_flops = check(3, training_flops)

# %% tags=["nbval-check-output"]
in_training = float(training_flops(FORWARD, len(FORWARD)))
print(f"ResNet-50, all layers learn: {in_training / 1e9:.2f} GFLOP for one image")
for trained in (10, 1):
    flop = float(training_flops(FORWARD, trained))
    print(f"  the last {trained}: {flop / 1e9:.2f} GFLOP, {flop / in_training:.0%} of it")

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
for kind in KINDS:
    best, paper = limits.products[kind][0], limits.instructions.get(kind)
    emulated = ", emulated" if limits.emulated(kind) else ""
    on_paper = f"; on paper {paper['speed']:,.0f}, by {paper['instruction']}" if paper else ""
    matrices = f"in matrix products of {best.library}{emulated}"
    print(f"{kind:9} {best.speed:7,.0f} GFLOP/s {matrices}{on_paper}")
print(f"memory    {limits.bandwidth:7,.1f} GB/s")
in_amx = "in the figure of bfloat16" if "AMX" in machine.isa else "not here"
print(f"AMX, which multiplies small matrices: {in_amx}")
if limits.others.busy:
    print(limits.others)


# %%
def kind_of(result):
    """The numbers that a run computed with."""
    return "bfloat16" if result["settings"]["use_fp16"] else "float32"


def at_most(comparison, name):
    """Images/s, if each operation ran as fast as the fastest matrix product."""
    first = comparison.results[name][0]
    return limits.peak(kind_of(first)) / first["gflop_per_image"]


def share(comparison, name):
    """The share of that limit that a configuration reaches, in percent."""
    return 100 * comparison.rate(name) / at_most(comparison, name)


measured_in = dict.fromkeys(training.results, training)
measured_in |= dict.fromkeys((smallest, largest, *[in_bf16] * BF16), by_batch)
steps_taken = pd.DataFrame(
    {
        name: {
            "images/s": comparison.rate(name),
            "at most, images/s": at_most(comparison, name),
            "share of the limit, %": share(comparison, name),
        }
        for name, comparison in measured_in.items()
    }
).T
for name in steps_taken.query("`share of the limit, %` > 100").index:
    print(f"{name} is above the limit: the machine was busier then. ./lab roofline --again")
if {default, tuned} <= training.results.keys():
    gain = Measured(*training.ratio(tuned, default), "×")
    results.step("threads", gain, training.others, share=share(training, tuned))
best = max((f"float32, batch {size}" for size in sizes), key=by_batch.rate)
gain = Measured(*by_batch.ratio(best, smallest), "×")
results.step("batch", gain, by_batch.others, share=share(by_batch, best))
steps_taken.style.format("{:,.1f}")

# %% [markdown]
# *At most* is how many images a second you could train if each operation ran as fast as the fastest matrix product.
# Which step along this table gained most? And which kind of number is nearer to its own limit?
#
# Nobody published the limit of the walk-through's machine. But its cores had AVX2: 16 multiplications and 16 additions
# in each cycle, at 2.9 GHz, or less when all cores are busy. So on paper:

# %% tags=["nbval-check-output"]
paper = 18 * 32 * 2.9
for what, rate in {"default": 5.48, "Intel's build, threads set": 33.62}.items():
    reached = rate * in_training / 1e9
    of_paper = f"{reached:.0f} of {paper:,.0f} GFLOP/s on paper: {reached / paper:.0%}"
    print(f"{what:27}{rate:6.2f} images/s, {of_paper}")

# %% [markdown]
# ## 5 · Where the time goes
#
# There is a gap to the limit. Which part of the step causes it? The log of section 1 has the answer. The next cell
# makes one more log like it, in bfloat16, if your CPU has that (about 15 s). Both are of the stock build: `onednn`.

# %%
if BF16:
    with load.watch("section 5") as log_others["bfloat16"]:
        runs["bfloat16"] = logged(known["onednn-bf16"], *many)
logs = {kind: onednn.read_log(lines, after="Done warm up") for kind, (_, lines, _) in runs.items()}
step_ms = {kind: 1000 * float(np.mean(run["seconds"])) for kind, (run, _, _) in runs.items()}
timed = {kind: len(run["seconds"]) for kind, (run, _, _) in runs.items()}
logs["float32"].drop(columns=["direction", "attributes"]).head(6)

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
# (These are shares of the log's time, which is oneDNN's. Below, shares are of the whole step.)
#
# Now the time by kind of work. The function `work_of`, in the folded cell, parses a line of the log. The column
# `problem`, such as `mb16_ic64oc64_ih56oh56kh3…`, contains all sizes. You know from section 4 how much a convolution
# computes. What it must move, **at least**, is each of its tensors once: the input, the weights, the output.

# %% jupyter={"source_hidden": true}
BYTES = {"f32": 4, "bf16": 2}  # of a number
# Of a batch norm: operations for each number, and passes over its tensor. Forward: the sum (1),
# the sum of squares (3), the result (2). Backward: two sums (4), the result (5).
PASSES = {"forward_training": (6, 2), "forward_inference": (2, 2), "backward": (9, 3)}


def work_of(row):
    """What a primitive is, its operations, and the bytes that it moves at least."""
    n = Counter({name: int(value) for name, value in re.findall(r"([a-z]+)(\d+)", row.problem)})
    dims = [int(value) for value in re.findall(r"\d+", row.problem)]
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
        what, flop, numbers = row.primitive, 0, 2 * np.prod(dims)
    gbyte = numbers * BYTES.get(row.type, 4) / 1e9
    return pd.Series({"kind": what, "gflop": flop / 1e9, "gbyte": gbyte})


# %%
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
        f"{kind}: a step takes {step_ms[kind]:,.0f} ms, {table.ms.sum():,.0f} in oneDNN. "
        f"The rest is {rest:,.0f} ms, {rest / step_ms[kind]:.0%} of the step."
    )
kinds["float32"].style.format("{:,.2f}")

# %% [markdown]
# oneDNN's log doesn't show what the rest is. The timeline does: it has each operation of one step, with its time. An
# operation whose name begins with `_Mkl` is oneDNN's. Of the others, `ResourceApplyGradientDescent` updates the
# weights, `L2Loss` and most of `Mul` are the weight decay, `AddN` adds up gradients, and `AddV2` are the shortcuts.
# `Cast` is what bfloat16 costs: it converts the weights to bfloat16 and their gradients back.

# %%
for kind, (_, _, timeline) in runs.items():
    spent, calls, ends = Counter(), Counter(), []
    for event in timeline:
        if event["ph"] == "X":
            name = "oneDNN" if event["name"].startswith("_Mkl") else event["name"]
            spent[name] += event["dur"] / 1000
            calls[name] += 1
            ends += [event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000]
    in_onednn = spent.pop("oneDNN", 0)
    shown = ", ".join(f"{name} {ms:.0f} ({calls[name]})" for name, ms in spent.most_common(6))
    print(f"{kind}: from the first operation to the last, {max(ends) - min(ends):.0f} ms")
    print(f"  in oneDNN's operations {in_onednn:.0f} ms, in all others {spent.total():.0f} ms")
    print(f"  the longest of the others, in ms (and how many): {shown}")

# %% jupyter={"source_hidden": true}
rows = list(kinds["float32"].index)
figure, axis = plt.subplots(figsize=(10, 5))
for shift, kind, colour, hatch in zip((-0.2, 0.2), KINDS, (plots.BLUE, plots.ORANGE), ("", "//")):
    ms = kinds[kind].ms.reindex(rows).fillna(0)
    ms["Eigen and TensorFlow"] = step_ms[kind] - ms.sum()
    where = np.arange(len(ms)) + shift * (len(KINDS) - 1)
    style = {"color": colour, "hatch": hatch, "edgecolor": "w", "label": kind}
    bars = axis.barh(where, ms, 0.8 / len(KINDS), **style)
    labels = [f"{value:,.0f} ms ({value / step_ms[kind]:.0%})" for value in ms]
    axis.bar_label(bars, labels, padding=4, fontsize=11)
axis.set_yticks(range(len(ms)), ms.index)
axis.invert_yaxis()
axis.margins(x=0.18)
axis.set(
    xlabel="ms in a step (and its share of the step), mean of its steps",
    title="Where a training step's time goes",
)
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
    watched=[log_others[kind] for kind in KINDS],
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
# a larger part of its time. Reorders are not in the picture: they compute nothing, so their intensity is 0.

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
            for name, row in kinds[kind].iterrows()
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
# **Guess first.** In float32, which kind of work could save the most milliseconds, if it ran at its limit?
#
# </div>

# %%
KIND_NAMES = ("1×1 convolution", "3×3 convolution", "batch norm", "reorder", "another")
results.guess(5, "the kind of work that could save most", ..., choices=KIND_NAMES)

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
bottleneck = check(5, bottleneck)

# %%
least_ms = {}
for kind, table in kinds.items():
    found = bottleneck(table, limits.peak(kind), limits.bandwidth)
    found = {name: (bound, float(saving)) for name, (bound, saving) in found.items()}
    print(f"{kind}: a step of {step_ms[kind]:,.0f} ms")
    for name, (bound, saving) in found.items():
        ms = table.ms[name]
        could = f"{ms:7,.0f} ms, could save {saving:6,.0f} ({saving / ms:.0%})"
        print(f"  {name:18} limited by {bound:7}{could}")
    least_ms[kind] = table.ms.sum() - sum(saving for _, saving in found.values())
    images = 1000 * batch / least_ms[kind]
    print(f"  at its limit, oneDNN's part takes {least_ms[kind]:,.0f} ms: {images:,.1f} images/s")
    if kind == "float32":
        first = next(iter(found))
        results.compare_guess(5, first if first in KIND_NAMES else "another")

# %% [markdown]
# This is a better limit than the one of section 4, because it takes into account that memory limits some of the work.
# It is still a bound: the bytes are counted once, and a batch norm must read its input twice when the caches do not
# hold it.
#
# The rest of the step, which is not oneDNN's, comes on top. `./lab roofline --model resnet50`, in a terminal, adds up
# the limits of *all* operations, and shows which kind of work loses the rest of the time. One remedy is [**operator
# fusion**](../docs/glossary.md#operator-fusion), because it avoids passes over memory.
#
# If you have bfloat16, look at what it changes in the picture. Half the bytes mean twice the intensity, and the peak
# goes up. The memory-bound work gains only from the first. So where the peak rises more than twofold, a larger share of
# the time at the limit is memory-bound.

# %% [markdown]
# ## 6 · One operator, and what training costs
#
# So far each batch norm was one operation. Keras does not do that. The next cell compares Keras' layer with the fused
# operation. Which operations did each run, forward and backward, and how often did they read or write whole images? The
# cell leaves out operations that work on one number for each channel: they cost almost nothing.

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


by_passes = whole_images(keras_norm) / whole_images(fused_norm)

# %% [markdown]
# Keras 3 is written for several libraries at once, and builds its batch norm from small operations. oneDNN has no
# kernels for the single steps, such as one mean or one multiplication. Each step reads the whole image again, and often
# writes it. Keras 2 used the fused operation.
#
# If memory were the only limit, the times would be to each other as these counts.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as long does Keras' batch norm take as the fused one, forward and backward?
#
# </div>

# %%
results.guess(6, "Keras' batch norm against the fused one, in time", ..., unit="×")


# %%
graphs = {"fused": tf.function(fused_norm), "Keras'": tf.function(keras_norm)}
norms = compare_steps(
    {name: Step(lambda graph=graph: graph(x, dy)[1].numpy()) for name, graph in graphs.items()},
    norm_rounds,
    "section 6",
    turn_s=0.05,
)
norm_times = norms.ratio("fused", "Keras'")
for name in graphs:
    print(f"{name} batch norm: {1000 / norms.rate(name):.1f} ms")
print(f"Keras' takes {norm_times} times as long; by whole images alone, {by_passes:.1f} times")
results.compare_guess(6, Measured(*norm_times, "×"))

# %% [markdown]
# Now the whole network. With `fused_batch_norm=False` it computes its batch norms as Keras 3 does, and nothing else
# changes. What should that cost? The batch norms' share of a step is known from section 5, and now you know how many
# times as long they take.
#
# The same comparison answers two more questions. To classify images you need only the forward pass: a third of the
# operations, no gradients, and a batch norm that is a fixed formula. Does it get nearer to the limit than training? And
# the walk-through changed the **layout** of its images from NHWC to NCHW (channels first). Was that good advice? The
# next cell takes about half a minute.

# %%
networks = {
    "training": {},
    "training, unfused": {"fused_batch_norm": False},
    "training, NCHW": {"data_format": "NCHW"},
    "forward": {"training": False},
}
operators = compare_steps(
    {name: make_steps([batch], **options)[batch] for name, options in networks.items()},
    step_rounds,
    "section 6",
)


# %%
def reached(comparison, name, reference):
    """How many times the GFLOP/s of the reference a configuration reaches."""
    gflop = [comparison.results[each][0]["gflop_per_image"] for each in (name, reference)]
    return Ratio(*(gflop[0] / gflop[1] * value for value in comparison.ratio(name, reference)))


def conclude(comparison):
    """Print what the rounds say of batch norm, layout and forward pass."""
    for name in ("training, unfused", "training, NCHW"):
        tell(comparison, name, "training")
    times = reached(comparison, "forward", "training")
    amount = {"faster": "more", "slower": "fewer"}.get(times.verdict, times.verdict)
    print(f"the forward pass reaches {times} times the GFLOP/s of training: {amount}")


conclude(operators)
if "batch norm" in kinds["float32"].index:
    part = kinds["float32"].ms["batch norm"] / step_ms["float32"]
    expected = 1 / (1 + part * (norm_times.value - 1))
    print(f"batch norms are {part:.0%} of a step: unfused, expect {expected:.2f}×")

# %% jupyter={"source_hidden": true}
references = {name: name.partition(",")[0] for name in operators.results if "," in name}
draw(operators, references, "Batch norm in small operations, and the layout")

# %% jupyter={"source_hidden": true}
norm_row = Measured(*norm_times, "×", note="as long")
forward_row = Measured(*reached(operators, "forward", "training"), "×", note="in GFLOP/s")
results.hand_in(
    "6",  # for the closing table
    ("batch norm alone, fused → Keras'", "", norm_row, f"{by_passes:.1f}× by passes", norms.others),
    ("training → forward pass", "", forward_row, "", operators.others),
    *(
        (
            f"{plain} → {name}",
            "",
            Measured(*operators.ratio(name, plain), "×"),
            "",
            operators.others,
        )
        for name, plain in references.items()
    ),
)

# %% [markdown]
# Does the whole network lose what the batch norm alone predicts? If not: within the network, a batch norm finds other
# things in the caches than in a loop of its own, and its images have other sizes. These are guesses; the log of section
# 5 for a run with `--nofused_batch_norm` would show where the time goes.
#
# And the forward pass: what is left of it besides the convolutions, and which part of that could you fold away (lab 02,
# exercise 1)? Lab 04 does that, with a compiler for inference, and goes down to 8 bits.
#
# ### Why the layout matters
#
# In 2018, the advice for CPUs was NCHW: it was closer to the [**blocked
# layout**](../docs/glossary.md#blocked-layout) that the library needed (lab 02). Today oneDNN has convolutions that
# work on NHWC directly. What does it do with NCHW? Ask the log (about 10 s):

# %%
nchw = replace(known["onednn"], env=known["onednn"].env | {"ONEDNN_VERBOSE": 1})
nchw_flags = (RUN[0], whole, "--num_warmup_batches=1", "--num_batches=1")
nchw_log = onednn.read_log(
    configurations.run(nchw, *nchw_flags, "--data_format=NCHW"), "Done warm up"
)
for name, log in (("NHWC", logs["float32"]), ("NCHW", nchw_log)):
    print(f"{name}, of the log's time: reorders {float(diagnose(log)['reorder']):.0%}, and in")
    convolutions = log[log.primitive == "convolution"]
    by_implementation = convolutions.groupby("implementation").ms.sum().sort_values()[::-1]
    for implementation, ms in by_implementation.items():
        print(f"  {ms / log.ms.sum():4.0%} {implementation}")

# %% [markdown]
# An implementation whose name begins with `jit_uni_ncsp_convolution:conv+` first copies its images with the channels
# last, runs the convolution named behind the plus sign, and copies the result back. With `:matmul+` it is a matrix
# product on the images as they are, which works for some 1×1 convolutions. (oneDNN's source has them in
# `jit_uni_ncsp_convolution.cpp`; they need AVX-512.) Which do you see? The operations that oneDNN does not do can
# suffer, too: TensorFlow's own are mostly written for NHWC. Advice gets old: measure it again.
#
# ## 7 · Which thread setting does it?
#
# Section 2 changed several settings at once: number of threads, inter-op threads, pinning, waiting. First: did they
# take effect? With `KMP_SETTINGS=1` (or the flag `--kmp_settings=1`) Intel's OpenMP prints, as it starts, which
# variables it found (*User settings*) and what it works with (*Effective settings*). Read it for one run before you
# believe in a setting: a misspelt name is not an error. It stands among the user settings, and changes nothing among
# the effective ones.

# %%
if known["openmp-kmp"].missing:
    print(known["openmp-kmp"].missing)
else:
    small = ("--model=mnist", "--num_warmup_batches=1", "--num_batches=1")
    told = replace(known["openmp-kmp"], env=known["openmp-kmp"].env | {"KMP_SETTINGS": 1})
    wanted = ("User", "Effective", "KMP_AFFINITY=", "KMP_BLOCKTIME=", "OMP_NUM_THREADS=")
    lines = configurations.run(told, *small)
    print(*(text for text in lines if text.strip().startswith(wanted)), sep="\n")

# %% [markdown]
# Now take one setting alone. Is the default with a single inter-op thread already as fast as all the tuned settings
# together, or is something left for the `KMP` variables? Then the classic mistake: twice as many threads as cores
# ([**oversubscription**](../docs/glossary.md#oversubscription)).
#
# On a machine with several NUMA nodes, two more: the memory spread over all nodes, as in the walk-through, and all
# memory on one node. (The walk-through spread its memory and changed the layout in one step. Here they are apart.)

# %%
twice = 2 * cores
good = asked[tuned]
side = {"tuned": good}
if tuned == "openmp-kmp":
    side["1 inter-op thread"] = replace(known["openmp"], flags=("--num_inter_threads=1",))
    side[f"{twice} threads"] = replace(good, env=good.env | {"OMP_NUM_THREADS": twice})
else:
    print("Without the OpenMP build there are only TensorFlow's own threads to change.\n")
    more = (*good.flags, f"--num_intra_threads={twice}")
    side[f"{twice} threads"] = replace(good, flags=more)
if nodes > 1:
    side["memory spread"] = replace(good, prefix=("numactl", "--interleave=all"))
    side["memory on one node"] = replace(good, prefix=("numactl", "--membind=0"))
else:
    print("This machine has one NUMA node, so where the memory lies is not compared.\n")
against = {name: "tuned" for name in side if name != "tuned"}
for name, configuration in side.items():
    print(f"{name}:\n  {configuration.command(RUN[0], half)}")

# %% [markdown]
# This takes a bit more than a minute, and about a minute more with several NUMA nodes.

# %%
if QUICK:  # the runs of section 2 stand in for these
    threads = training._replace(results=dict(zip(side, training.results.values())))
else:
    threads = configurations.compare(side, *RUN, half, rounds=thread_rounds, where="section 7")


# %%
def advise(comparison, name, reference):
    """Say what a changed setting does, and what follows from it."""
    tell(comparison, name, reference)
    if not {name, reference} <= comparison.results.keys():
        return
    times = comparison.ratio(name, reference)
    if np.isnan(times.low):
        advice = "measure in rounds before you decide"
    elif times.significant and times.value < 1:
        advice = f"stay with what is tuned: this costs at least {1 - times.high:.0%}"
    elif times.significant:
        advice = f"change it on this machine: this gains at least {times.low - 1:.0%}"
    else:
        factor = times.high / times.value
        advice = f"these rounds cannot resolve differences below a factor of {factor:.2f}"
    print(f"  → {advice}")


for name, reference in against.items():
    advise(threads, name, reference)
draw(threads, against, "One thread setting at a time, against the tuned ones")

# %% jupyter={"source_hidden": true}
published = {
    "memory spread": "33.62 → 34.18 images/s: 1.02×, with NCHW",
    "memory on one node": "34.18 → about 23.6 images/s: 0.69×, there from spread",
}
changed = [name for name in threads.results if name in against]
results.hand_in(
    "7",  # for the closing table
    *(
        (f"tuned → {name}", text, "not run here", "")
        for name, text in published.items()
        if name not in changed
    ),
    *(
        (
            f"tuned → {name}",
            published.get(name, ""),
            Measured(*threads.ratio(name, "tuned"), "×"),
            "",
            threads.others,
        )
        for name in changed
    ),
)

# %% [markdown]
# ### Two teams, or one
#
# With OpenMP, each inter-op thread starts a team of threads of its own, and Intel's build has at least two inter-op
# threads by default (`max(…, 2)` in TensorFlow's `process_util.cc`). Two teams on the same cores can hinder each other,
# above all while one spins for 200 ms after its work. If *1 inter-op thread* is as fast as *tuned* on your machine,
# this is a likely reason. If not, undo one setting of `good` at a time, and compare again.
#
# ### Too many threads
#
# At the end of each piece of work, all threads wait for the last one. A thread that waits spins, and keeps its core
# busy with nothing. The last thread may have no core, because the others use it to wait for that thread, until the
# operating system takes the core away from one of them. Then the next piece of work starts, and a training step has
# many hundreds of them. The same can happen when *another program* runs on your cores: two jobs on one node, two ranks
# that each start a thread for each core (lab 07), or a container with a quota below its number of cores.
#
# ### Memory on several nodes
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
# Linux puts a page of memory on the node of the thread that touches it first. If one thread fills all the memory, the
# cores of the other nodes fetch it from there. `numactl --interleave=all` spreads the pages over all nodes: that helps
# in this case, and harms where each thread had its own part near by. With one node, it changes nothing. (`numactl
# --hardware` shows your nodes.)
#
# The expensive mistake was the opposite: with all memory on *one* node (`numactl -m 1`), the walk-through fell from 34
# to about 23.6 images/s. And of its 6.24 times, the library and its threads gave 6.14. The rest, 2%, came from two
# changes at once, in one run each: nobody can tell them apart.
#
# ## 8 · If you have time
#
# Three open tasks, without a check.
#
# ### Pages of 2 MB, and a compiler
#
# A program's addresses are looked up page by page, and Linux gives pages of 4 kB: half a million of them for 2 GB. A
# CPU keeps only a few thousand lookups at hand. With `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`, the C library asks for
# [**pages of 2 MB**](../docs/glossary.md#huge-page). (`./lab start --huge-pages` gives them to all your kernels.)
#
# A compiler can merge what the library does not. With `--fused_shortcuts`, TensorFlow's XLA compiles the end of each
# block: the sum with the shortcut and its Relu become one pass over memory, and so do their gradients. What does each
# of the two gain, and is it beyond chance? In a terminal, in about two minutes:
#
# ```bash
# ./lab bench --config onednn-bf16,onednn-bf16-fused,onednn-bf16-fused-huge --num_batches=3 --rounds 5
# ```
#
# `--xla_compile` makes XLA compile the whole step. Compare it with `onednn`, by `configurations.compare` as in section
# 2. Then explain the result: count the primitives in the log of both (`logged` in section 1 gives it). An optimisation
# that does not help is a result too: write it down, with the version.
#
# ### Two builds in 16 bits
#
# The OpenMP build is two and a half years older than the stock one here. In bfloat16, which one is faster, by how much,
# and in which kind of work? `./lab bench --config onednn-bf16,openmp-kmp-bf16 --rounds 5` measures it, and section 5's
# cells, with another configuration in `logged`, show where.
#
# ### The same program on several ranks
#
# Intel's talk ended with a benchmark on four [**ranks**](../docs/glossary.md#rank): processes that train together, each
# on its own cores (labs 06 and 07 show how). All its flags have their place here:
#
# | the talk's command | here |
# | --- | --- |
# | `mpirun -np 4 -cpus-per-proc 10 map-by socket` | `mpirun -n 4 -bind-to core:10 -map-by socket` |
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
# --batch_size=64 --optimizer=rmsprop --variable_update=horovod --num_intra_threads=10 --num_inter_threads=2`. With
# fewer cores, change three numbers: ranks, cores of each, images of each. Is one rank with all cores faster than two
# with half of them each, for the same images in a step? Measure five times, in turns.
#
# More ranks on the same cores have advantages: each has small work for few threads, and only gradients cross from
# socket to socket. Drawbacks: each keeps its own weights in memory, and every step waits for the slowest. And 64 images
# *a rank* means that with four ranks a step has 256: that changes the training, not only its speed.

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. Those that name an optional section are for whoever did it.
# The instructor's notebook has answers.
#
# 1. Does oneDNN gain as much over `eigen` here as in the published results? Name two reasons why it need not.
# 2. How do you prove that TensorFlow uses the library at all?
# 3. A colleague reports a gain of 2% from one run of 100 steps each. What do you ask for, and why not for more steps?
# 4. What does a larger batch spread over more images? Why does the gain end?
# 5. Which part of the step could save the most time? Is it the one that takes the most time?
# 6. Where the peak of bfloat16 is twice that of float32, why need training not be twice as fast?
# 7. The walk-through's machine had 36 logical CPUs. Why did it set 18 threads?
# 8. Why can more threads than cores cost so much with OpenMP, and less with TensorFlow's own threads? *(section 7)*
# 9. What does `KMP_BLOCKTIME` trade for what? When would you set it to 0? *(section 7)*
# 10. What would you measure on the walk-through's machine to find out how much the interleaved memory alone gained?
#     *(section 7)*

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
# 3. Several launches of each, in turns, and the interval. More steps of one launch average out what differs between
#    steps, and never what differs between launches: exercise 1. The walk-through's step from 33.62 to 34.18 is one run
#    each.
# 4. What a step costs whatever the batch: the update and the decay of the weights, starting its operations. Once that
#    is a small part of the step, a larger batch spreads nothing more.
# 5. See exercise 5. The convolutions mostly take the most time, and are nearer to their limit: they could save a
#    smaller share of a larger time. Batch norms and reorders could save most of a smaller time. The list shows which is
#    larger here.
# 6. Only the work that the cores limit gains from the higher peak. The work that memory limits gains from half the
#    bytes, at best; weights, their gradients and updates stay in float32; conversions come on top.
# 7. Two hardware threads share a core's arithmetic units. A convolution that keeps them busy gains nothing from a
#    second thread, and then each thread has only half the cache.
# 8. OpenMP splits the work evenly, and waits by spinning. TensorFlow's threads take pieces from a queue and sleep when
#    there are none, so a slow thread only does fewer pieces.
# 9. A waiting thread is ready at once, but it keeps a core busy with nothing. Use small values when other threads need
#    the cores: TensorFlow's own, a second process, an input pipeline. Use 0 when several ranks share the cores of a
#    node.
# 10. NHWC with `numactl --interleave=all`, and NHWC without, in turns, several times.
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
# **XLA** (an open task): on a CPU it does not use oneDNN's convolutions, so the log has none of them. On one machine
# with 2 cores it trained 5.6 images/s where oneDNN trained 11.4.
#
# **Timing** Sections 1 to 3 take 45 minutes with both comparisons, 4 and 5 take 40, the rest 20. All waiting together
# is under 6 minutes on 2 idle cores. Start the comparison of section 2 before you explain the settings: its wait is
# that of exercise 2. Short of time? Skip sections 6 to 8, which nothing else needs.
#
# **What goes wrong** The OpenMP build is a second environment, made by `./lab setup`; without it the lab compares
# threads in the stock build, and section 7 has less to show. On a busy machine (the cells say so), the OpenMP
# configurations suffer first, sometimes by a factor of ten: that is section 7, live. If a share of the limit is over
# 100%, run `./lab roofline --again` on a quiet machine.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Measure in turns, in several launches, and report the interval. Change one thing at a time.
# - Look for the large steps first: library, batch size, kind of number. Then set the threads, above all to avoid wrong
#   ones.
# - Use as many threads as physical cores that *you* may use. Never use more, above all with OpenMP.
# - Count operations and bytes. Only then do you know whether something is slow, or at its limit.
# - Much to compute for each byte, as in most convolutions: the cores are the limit. Little, as in batch norms and
#   additions: memory is. Fused operations save passes over memory.
# - Advice gets old: measure it again.
#
# The closing table shows what was published, what you measured, and the most that the machine could do:


# %% jupyter={"source_hidden": true}
def gained(comparison, name, reference):
    """How many times as fast it trains, and both rates."""
    rates = f"{comparison.rate(reference):.1f} → {comparison.rate(name):.1f} images/s"
    return Measured(*comparison.ratio(name, reference), "×", of=rates)


def reached_here(comparison, name):
    """The speed of a configuration with its interval, and its limit."""
    mean, half_length = interval(np.log(comparison.rates(name)))
    speed = Measured(*np.exp([mean, mean - half_length, mean + half_length]), "images/s", digits=1)
    percent = share(comparison, name)
    busier = ", measured while busier" * (percent > 100)
    return speed, f"{at_most(comparison, name):.1f} images/s; {percent:.0f}% of it{busier}"


def onednn_ms(kind):
    """oneDNN's ms in a step: the mean of the logged steps, with its interval."""
    log = logs[kind]
    ms = log.ms.groupby(np.arange(len(log)) * timed[kind] // len(log)).sum()
    mean, half_length = interval(ms.to_numpy())
    return Measured(mean, mean - half_length, mean + half_length, "ms", digits=0)


BUILDS = "default → Intel's build, threads set (batch 128)"
steps_of_2 = (
    ("default → MKL-DNN (Intel, batch 16)", "3.84 → 17.69 images/s: 4.6×", "onednn", "eigen"),
    (BUILDS, "5.48 → 33.62 images/s: 6.14×", "openmp-kmp", "eigen"),
    (f"threads: {default} → {tuned}", "", tuned, default),
)
rows = [
    (
        what,
        text,
        *(
            (gained(training, name, reference), "", training.others)
            if {name, reference} <= training.results.keys()
            else ("not run here", "")
        ),
    )
    for what, text, name, reference in steps_of_2
]
steps_of_3 = [(f"batch {sizes[0]} → {sizes[-1]}", largest, smallest)]
steps_of_3 += [(f"float32 → bfloat16, batch {sizes[-1]}", in_bf16, largest)] * BF16
rows += [
    (what, "", gained(by_batch, name, reference), "", by_batch.others)
    for what, name, reference in steps_of_3
]
rows += [
    (f"training, {name}", "", *reached_here(comparison, name), comparison.others, limits.others)
    for name, comparison in measured_in.items()
]
rows += [
    (
        f"oneDNN's part of a step, {kind}",
        "",
        onednn_ms(kind),
        f"{least_ms[kind]:,.0f} ms, by kind of work",
        log_others[kind],
        limits.others,
    )
    for kind in kinds
]
rows += results.handed_in(
    "6", ("batch norm alone, fused → Keras'", ""), ("training → forward pass", "")
)
rows += results.handed_in(
    "7",
    ("tuned → memory spread", "33.62 → 34.18 images/s: 1.02×, with NCHW"),
    ("tuned → memory on one node", "34.18 → about 23.6 images/s: 0.69×, there from spread"),
    ("tuned → too many threads", ""),
)
results.table("ResNet-50", rows)

# %% [markdown]
# Published: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (the source does not name
# the machine), and the walk-through *6x training speedup using intel-tensorflow, OMP-settings and numactl*, on a rented
# machine with 18 cores and 2 NUMA nodes. The limit is the speed of the fastest matrix product of any library here, in
# the same kind of number, divided by the operations of an image.
#
# Where you are on the way from this machine's default to its fastest, over all labs that you have run:

# %%
ladder.show(results)

# %% [markdown]
# Next: [lab 04](04_fewer_bits.ipynb), with fewer bits.
