# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 03 · ResNet-50, from default to fast
#
# **You will** run one well-known network in more than five set-ups, from the default of years ago to the fastest your
# machine has; find out what each setting changes; count how many operations a step takes; and draw how far from your
# machine's limit each part of it runs.
#
# **Time** about 100 minutes: 60 to read and run, 40 for five exercises. Waiting in all: about 13 minutes on two
# cores, half of it in one piece, with an exercise to write meanwhile.
#
# **Connects to** lab 02, which reads oneDNN's log on a small network, lab 04, which goes on with fewer bits, lab 05,
# which lets a program find the settings, and lab 08, which takes this network to a cluster.
#
# Two published results are the measure. In 2019, a talk by Intel showed ResNet-50 training **4.6 times** as fast with
# its library as without. A walk-through by a user of a rented machine came to **6.2 times**. Both name each setting.
# Which of them still matter?
#
# TensorFlow prints notices in red when it starts. They are no errors.

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
from IPython.display import display

from labkit.bench import setups
from labkit.display import onednn, plots
from labkit.exercises import open_lab
from labkit.roofline import measure
from labkit.system import load, processes
from labkit.system.errors import LabError

check, results, machine, work, QUICK = open_lab("03", globals())
cores, nodes = machine.usable_cores, len(machine.numa)

# %% [markdown]
# How much work each run gets depends on your machine. The published runs had 16 images in a batch, and 128 on 18 cores:
# about 7 for each core. Here it is 8 for each core, up to 128, and no more than the memory takes.
#
# 16-bit numbers (bfloat16) are worth a run only where the CPU can compute with them, or oneDNN can stand in for it.

# %%
memory_gb = machine.memory_free / 2**30
batch = 8 if QUICK else max(2, min(8 * cores, 128, int((memory_gb - 2) / 0.1)))  # about 2 GB, and 0.1 for each image
rounds, side_rounds, steps = (1, 1, 1) if QUICK else (3, 2, 2)
RUN = (f"--model={'mnist' if QUICK else 'resnet50'}", "--num_warmup_batches=1", f"--num_batches={steps}")
whole, half = f"--batch_size={batch}", f"--batch_size={max(2, batch // 2)}"

if {"BF16", "AMX"} & set(machine.isa):
    print("bfloat16: this CPU computes with it.")
elif "AVX-512" in machine.isa:
    print("bfloat16: emulated. This CPU converts to float32 and back, so expect no gain.")
else:
    print("bfloat16: left out. oneDNN has no convolutions in it for this CPU.")
BF16 = "AVX-512" in machine.isa and not QUICK  # BF16 and AMX come only with AVX-512
print(f"batch size {batch}, {memory_gb:.0f} GB of memory free")

# %% [markdown]
# ## 1 · One run
#
# Both published results come from one program, `tf_cnn_benchmarks`. It makes up random images, trains a network on
# them, and says how many it got through in a second. It is no longer maintained. This kit's `./lab bench` takes the
# same flags and prints the same lines.
#
# In a terminal, at the top of the kit, the run below is, but for some flags,
#
#     ONEDNN_VERBOSE=1 ./lab bench --model=resnet50 --batch_size=16 --num_batches=5
#
# `ONEDNN_VERBOSE=1` makes oneDNN write a line for each thing it does. Then, it was `MKL_VERBOSE=1` and
# `MKLDNN_VERBOSE=1`, and their lines were the proof that the library is really used. Both names are silent in today's
# TensorFlow. The lines are kept for section 4; you see the others.
#
# `--trace_file` also writes the timeline of one step, for section 4 too.

# %%
NOISE = (onednn.MARK, "WARNING: All log", "I0000 ")  # lines of the log, and of TensorFlow's start


def logged(setup, *flags):
    """Run a set-up under ONEDNN_VERBOSE=1, one operation at a time: its result, its log's lines, and its timeline."""
    out, timeline = work / "run.json", work / "timeline.json"
    argv = [str(setup.python), "-m", "labkit.bench", *setup.flags, *flags]
    argv += ["--num_inter_threads=1", f"--json={out}", f"--trace_file={timeline}"]
    ended = processes.run(
        argv,
        env={**setup.env, "ONEDNN_VERBOSE": 1},
        on_line=lambda line: line.startswith(NOISE) or print(line, flush=True),
    )
    if ended.failure:
        raise LabError(f"{ended.failure}. Its last lines:\n  " + "\n  ".join(ended.lines[-4:]))
    return json.loads(out.read_text()), ended.lines, json.loads(timeline.read_text())["traceEvents"]


known = setups.known()
many = (RUN[0], whole, "--num_warmup_batches=1", f"--num_batches={1 if QUICK else 5}", "--display_every=1")
runs, log_others = {}, {}
with load.watch("section 1") as log_others["float32"]:
    runs["float32"] = logged(known["onednn"], *many)

# %%
onednn.describe(runs["float32"][1])

# %% [markdown]
# This is the proof: oneDNN names itself, its threads, and the best instructions it found.
#
# ### Exercise 1 · The three numbers of a line
#
# Each line has three numbers: `images/sec: 17.3 +/- 0.1 (jitter = 0.4)`. They come from the seconds that each step
# took so far:
#
# - the **mean**: all images of all steps, by the time they all took together;
# - after `+/-`, the **uncertainty**: the standard error of the steps' speeds. A step's speed is its images by its
#   seconds. The standard error is their standard deviation (numpy's own, which divides by *n*) by the root of their
#   number;
# - the **jitter**: 1.4826 times the median distance of the steps' speeds from their median. For speeds that are
#   normally distributed this is the standard deviation again, but one slow step hardly changes it.
#
# Write `speed(images, seconds)` for steps of `images` images each; `seconds` is a list. Give the three numbers as a
# tuple, not rounded.


# %%
def speed(images, seconds):
    """(mean, uncertainty, jitter) in images/s, as tf_cnn_benchmarks prints them."""
    ### BEGIN SOLUTION
    speeds = images / np.array(seconds)
    jitter = 1.4826 * np.median(np.abs(speeds - np.median(speeds)))
    return images * len(speeds) / np.sum(seconds), np.std(speeds) / np.sqrt(len(speeds)), jitter
    ### END SOLUTION


# %% tags=["nbval-check-output"]
speed = check(1, speed)

# %%
seconds = runs["float32"][0]["seconds"]
mean, uncertainty, jitter = map(float, speed(batch, seconds))
print(f"yours, from the steps' seconds: images/sec: {mean:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f})")
mean, uncertainty, jitter = map(float, speed(batch, [*seconds, 3 * max(seconds)]))
print(f"with one more, very slow step:  images/sec: {mean:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f})")

# %% [markdown]
# The first is the benchmark's last line. The second shows what the jitter is for: it tells how much the *usual* step
# varies. A mean far from the usual step, with a small jitter, means that something else had the machine for a while.
#
# The uncertainty is about this one run. Start the program again, and it may differ by more than that: other memory,
# another time, another neighbour on the machine. So below each set-up is run several times, in turns with the others.
#
# ## 2 · The set-ups
#
# A set-up is a Python environment, some variables, some flags, and perhaps a command in front. These are the kit's.
# All threads are set for the cores you have.

# %%
PLAIN = ("eigen", "onednn", "openmp", "openmp-kmp", "openmp-kmp-numactl")
for name in PLAIN:
    print(f"{name}: {known[name].text}\n  {known[name].command(RUN[0], whole)}\n")

# %% [markdown]
# Line by line, what each changes:
#
# - **eigen** is TensorFlow with its own kernels: today's version of the default of those days.
# - **onednn** is today's default on most machines. oneDNN takes over the operations it has, and works on TensorFlow's
#   own threads.
# - **openmp** is another build of TensorFlow, 2.14 by Intel, the last on PyPI in which oneDNN has threads of its own,
#   from OpenMP. Only there do `OMP_*` and `KMP_*` act.
# - **openmp-kmp** sets those threads:
#   - `OMP_NUM_THREADS`: as many as cores. Two threads on one core share its arithmetic units, which a good convolution
#     keeps busy alone.
#   - `KMP_AFFINITY=granularity=fine,compact,1,0`: **threads that move** lose what they had in their core's cache. This
#     ties each to one place: neighbours on neighbouring cores, second hardware threads of a core last.
#   - `KMP_BLOCKTIME=1`: **threads that spin**. Between two pieces of work a thread waits in a loop, ready at once, but
#     at the cost of a core. After this many milliseconds it sleeps. OpenMP's own value is 200.
#   - `--num_intra_threads`, `--num_inter_threads`: TensorFlow's own threads, for what oneDNN does not do, and how many
#     operations may run side by side.
# - **openmp-kmp-numactl** adds `numactl --interleave=all`: **remote memory**. On a machine with several NUMA nodes,
#   each has its own memory. Linux puts a page where the thread is that touches it first. What one thread has filled
#   lies on one node, and all cores of the others must fetch it from there. Interleaving spreads the pages over all
#   nodes.
# - Each also with **bfloat16** (`--use_fp16`, in this program's words): half the bytes, and where the CPU has
#   instructions for it, twice the operations. The weights stay in float32.
#   (`eigen-bf16` is left out here: TensorFlow's own kernels convert number by number, and a step takes many seconds.)
#
# The walk-through's last step changed two things at once: it added `numactl`, *and* it went from NHWC images to NCHW.
# What was each of them worth? Two more set-ups take them apart.

# %%
base = "onednn" if known["openmp-kmp"].missing else "openmp-kmp"  # the best there is here, for all that follows
interleaved = replace(known[base], text=f"{base}, memory spread", prefix=("numactl", "--interleave=all"))
nchw = (*known[base].flags, "--data_format=NCHW")
asked = {name: known[name] for name in PLAIN} | {
    f"{base}-numactl": interleaved,
    f"{base}-nchw": replace(known[base], text=f"{base}, NCHW", flags=nchw),
    f"{base}-numactl-nchw": replace(interleaved, text=f"{base}, both", flags=nchw),
}
if nodes > 1:
    asked[f"{base}-one-node"] = replace(known[base], text="all memory on one node", prefix=("numactl", "--membind=0"))
if BF16:
    asked |= {name: known[name] for name in ("onednn-bf16", "openmp-kmp-bf16")}
if QUICK:
    asked = {name: asked[name] for name in ("eigen", base)}
print(f"{len(asked)} set-ups: {', '.join(asked)}")

# %% [markdown]
# **Guess first**: how many times as fast as `eigen` is each of them, on your machine? Write your guesses here, for as
# many as you like. They will be drawn beside what was measured.

# %%
guess = {
    "onednn": None,
    "openmp": None,
    "openmp-kmp": None,
    f"{base}-numactl": None,
    f"{base}-nchw": None,
    "onednn-bf16": None,
    "openmp-kmp-bf16": None,
}

# %% [markdown]
# This takes seven minutes or so: each turn is a process that starts anew. While it runs, go on reading and write
# exercise 2. (You can write in a cell while another runs.)

# %%
training = setups.compare(asked, *RUN, whole, rounds=rounds, where="section 2")

# %% [markdown]
# ### Exercise 2 · The set-up for a machine you have never seen
#
# Settings are copied from one machine to the next, and stop fitting. `lscpu` tells what they should be. This is what
# it says on a machine like that of the walk-through, 18 cores with 2 hardware threads each:

# %%
RENTED = """\
Architecture:        x86_64
CPU(s):              36
On-line CPU(s) list: 0-35
Thread(s) per core:  2
Core(s) per socket:  9
Socket(s):           2
NUMA node(s):        2
Model name:          Intel(R) Xeon(R) CPU E5-2666 v3 @ 2.90GHz
NUMA node0 CPU(s):   0-8,18-26
NUMA node1 CPU(s):   9-17,27-35
"""

# %% [markdown]
# Write `setup_for(lscpu)`, which takes such a text and gives a dict with the walk-through's settings for that machine:
#
# - `"OMP_NUM_THREADS"` and `"num_intra_threads"`: the number of **physical cores**, an `int`;
# - `"num_inter_threads"`: the number of sockets, an `int` too, the advice of those days;
# - `"interleave"`: True if there is memory to spread over, that is more than one NUMA node, else False.
#
# Newer versions of `lscpu` indent some of these lines, and list more of them, in another order. In some of those,
# nothing comes after the colon, or a second colon does: `!lscpu` in a cell shows yours.


# %%
def setup_for(lscpu):
    """The settings for the machine that a text of lscpu tells of."""
    ### BEGIN SOLUTION
    found = dict(re.findall(r"^\s*(.+?):\s+(\d+)$", lscpu, flags=re.M))
    sockets = int(found["Socket(s)"])
    physical = int(found["Core(s) per socket"]) * sockets
    return {
        "OMP_NUM_THREADS": physical,
        "num_intra_threads": physical,
        "num_inter_threads": sockets,
        "interleave": int(found["NUMA node(s)"]) > 1,
    }
    ### END SOLUTION


# %% tags=["nbval-check-output"]
setup_for = check(2, setup_for)

# %%
print("the walk-through's machine:", setup_for(RENTED))
try:
    here = processes.run(["lscpu"], env={"LC_ALL": "C"}).lines
    print("this machine:              ", setup_for("\n".join(here)))
except Exception as problem:  # some virtual machines and containers hide what they are made of
    print(f"this machine: its lscpu does not tell ({problem!r})")
print(f"the kit's own set-up here:  {cores} threads, 1 inter-op")

# %% [markdown]
# If the last two lines differ in the threads, you are in a container, a job, or under a quota: `lscpu` tells what the
# machine has, and not what *you* may use. The kit asks for the latter. And it sets one inter-op thread: ResNet-50's
# layers wait for each other, so there is little to run side by side. Section 6 measures what a second one does.
#
# Now what the race showed. (In a terminal: `./lab bench --setup eigen,onednn,openmp-kmp --rounds 3`.)


# %%
def tell(comparison, name, reference):
    """Say how many times as fast as the reference a set-up is, as sure as that is."""
    if not {name, reference} <= comparison.results.keys():
        print(f"{name} against {reference}: not measured here")
        return
    times = comparison.ratio(name, reference)
    if np.isnan(times.low):
        verdict = "one round, so nobody knows how sure that is"
    elif times.significant:
        verdict = "faster" if times.value > 1 else "slower"
    else:
        verdict = "no difference that can be told from chance"
    print(f"{name:26} {times} times {reference}: {verdict}")


for name in list(training.results)[1:]:
    tell(training, name, "eigen")

# %%
names = list(training.results)
figure, axis = plt.subplots(figsize=(10, 0.55 * len(names) + 1.6))
for row, name in enumerate(names):
    colour, hatch = (plots.ORANGE, "//") if name.endswith("bf16") else (plots.BLUE, "")
    bar = axis.barh(row, training.rate(name), color=colour, hatch=hatch, edgecolor="white", height=0.7)
    axis.bar_label(bar, [f"{training.rate(name):.1f} = {training.ratio(name, 'eigen').value:.1f}×"], padding=6)
    if guess.get(name):
        axis.plot(guess[name] * training.rate("eigen"), row, "D", color=plots.BLACK, markersize=9)
axis.set_yticks(range(len(names)), names)
axis.invert_yaxis()
axis.margins(x=0.22)
axis.set(xlabel="images/s (black: your guess)", title="ResNet-50 training, set-up by set-up")
plots.show(
    figure,
    alt=f"Training at batch {batch}: "
    + "; ".join(
        f"{name} {training.rate(name):.1f} images/s, {training.ratio(name, 'eigen').value:.1f} times Eigen"
        for name in names
    ),
    keep=results,
)

# %% [markdown]
# The numbers in brackets are the interval in which the ratio lies, with 95% confidence. It comes from the rounds: each
# gives one ratio. An interval that has 1 in it says: this may have been luck. Three rounds are few; `rounds = 9` makes
# the intervals much narrower, if you have the time.
#
# Whether the OpenMP build beats the stock one has changed with the versions, and differs between machines. What rarely
# differs: oneDNN is a large step, and so is bfloat16 where the CPU has it.
#
# Was the step from `eigen` to `onednn` 4.6 times, as in 2019? If not, ask the log what `eigen` is today. Here is one
# image, classified with oneDNN switched *off*:

# %%
one_image = ("--batch_size=1", "--forward_only", "--num_warmup_batches=1", "--num_batches=1")
off = processes.run(
    [str(known["eigen"].python), "-m", "labkit.bench", RUN[0], *one_image],
    env={**known["eigen"].env, "ONEDNN_VERBOSE": 1},
)
print(Counter(line.split(",exec,cpu,")[1].split(",")[0] for line in off.lines if ",exec,cpu," in line))

# %% [markdown]
# Matrix products of oneDNN's, and nothing else. Eigen cuts a convolution into many small matrix products. Their
# innermost loop has been oneDNN's own for some years, whatever the switch says. (In TensorFlow's source it is called
# the *contraction kernel*.) So the default has caught up with a part of the gain. What the switch still adds is whole
# convolutions, with blocked weights, and batch norms.
#
# ## 3 · How far is the limit?
#
# Is the fastest one fast? That needs two numbers: what a step has to compute, and what the machine can.
#
# ResNet-50 is 53 convolutions and one matrix product. Here they all are, as (kernel's side, channels in, channels out,
# output's side). A `1` as the kernel's side is a 1×1 convolution; the dense layer at the end is one too, on one pixel.


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
# Write `flops(layers)`: how many floating-point operations an image takes in such layers, as a tuple
# (forward, training). A multiplication and an addition are two.
#
# - **Forward**, each number of a layer's output is a sum over the kernel's places and the channels in.
# - **Training** also computes two gradients for each layer, by its weights and by its input. Each takes as many
#   operations as the way forward. One of them is never computed: nobody asks for the gradient by the *images*.


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
print(f"ResNet-50: {forward / 1e9:.2f} GFLOP for an image forward, {in_training / 1e9:.2f} in training")
for side in (1, 3, 7):
    share = float(flops([layer for layer in LAYERS if layer[0] == side])[0]) / forward
    print(f"  {side}×{side}: {100 * share:2.0f}% of the way forward")

# %% [markdown]
# Papers often say "4 GFLOP" for ResNet-50: they count a multiplication with its addition as one.
#
# Batch norms, Relus and additions are not counted. They have little to compute. What they cost is memory traffic, which
# is the other half of the limit: a core can only compute with what has come from memory. Both limits, as measured
# here once and kept (`./lab roofline` in a terminal; with `--again`, anew):

# %%
limits = measure.limits()
KINDS = ["float32", "bfloat16"] if BF16 else ["float32"]
for kind in KINDS:
    emulated = " (emulated)" if limits.emulated(kind) else ""
    print(f"{kind:9} {limits.peak(kind):7,.0f} GFLOP/s in large matrix products{emulated}")
print(f"memory    {limits.bandwidth:7,.1f} GB/s")
if limits.others.busy:
    print(limits.others)


# %%
def kind_of(result):
    """The numbers that a run computed with."""
    return "bfloat16" if result["settings"]["use_fp16"] else "float32"


def shares(comparison):
    """A row for each set-up: its speed, and what share of the matrix product's speed that is."""
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
shares(training).style.format(FORMATS)

# %% [markdown]
# *At most* is how many images a second would be trained if each operation ran as fast as a large matrix product. (A
# share of more than 100% means that the limit was measured while the machine had other things to do.)
#
# For the machine of the walk-through, nobody published the limit. But its cores had AVX2: 16 multiplications and 16
# additions in each cycle, at 2.9 GHz, or less when all are at it. So on paper:

# %% tags=["nbval-check-output"]
paper = 18 * 32 * 2.9
for what, rate in {"default": 5.48, "Intel's build, threads set": 33.62}.items():
    reached = rate * in_training / 1e9
    print(f"{what:27}{rate:6.2f} images/s ={reached:4.0f} of {paper:,.0f} GFLOP/s on paper: {reached / paper:.0%}")

# %% [markdown]
# ## 4 · Where the time goes
#
# There is a gap to the limit. Which part of the step makes it? The log of section 1 knows. Here is one more like it, in
# bfloat16, if that is worth it on your CPU.

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
# Before you tune anything, ask the log whether the run was what you think it was. Write `diagnose(log)`, which gives a
# dict with three shares of the log's **time** (`ms`), each between 0 and 1, not rounded:
#
# - `"bf16"`: in primitives whose `type` is `bf16`. You asked for bfloat16: did you get it?
# - `"reference"`: in implementations whose name begins with `ref`. This is oneDNN's plain C++, for what it has no fast
#   code for on this CPU. It is slower by one or two orders of magnitude.
# - `"reorder"`: in `reorder` primitives, which compute nothing and only put numbers into another layout.


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
# Now by kind of work. This function takes a line of the log apart. Its problem, such as
# `mb16_ic64oc64_ih56oh56kh3…`, has all sizes in it. What a convolution computes you know from exercise 3. What it must
# move, **at least**, is each of its tensors once: the input, the weights, the output.

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
# What is in the rest, no log of oneDNN tells. The timeline does: it has each operation of one step, with its time. An
# operation whose name begins with `_Mkl` is oneDNN's. Of the others, `ResourceApplyGradientDescent` updates the
# weights, `L2Loss` and most of `Mul` are the weight decay, `AddN` adds gradients up, `AddV2` are the shortcuts, and
# `Cast` is what bfloat16 costs: weights there, gradients back.

# %%
for kind, (_, _, timeline) in runs.items():
    spent, calls = Counter(), Counter()
    for event in timeline:
        if event["ph"] == "X" and not event["name"].startswith("_Mkl"):
            spent[event["name"]] += event["dur"] / 1000
            calls[event["name"]] += 1
    shown = ", ".join(f"{name} {ms:.0f} ms ({calls[name]})" for name, ms in spent.most_common(6))
    print(f"{kind}, without oneDNN: {shown}")

# %%
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
# that is its **intensity**. With little to compute for each byte, memory sets the limit: *intensity × bandwidth*. With
# much, the cores do: the peak. Drawn over the intensity, on logarithmic axes, the lower of both looks like a roof
# (Williams, Waterman and Patterson, *Roofline*, Communications of the ACM, 2009).
#
# Each kind of work is a point under it. The larger the point, the more time it takes. The further below the roof, the
# more of that time could be saved.

# %%
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
# ### Exercise 5 · What to mend first
#
# The largest bar is not always the one to work on: it may be at its limit already. Write
# `bottleneck(kinds, peak, bandwidth)`. `kinds` is a table like that of float32 above: the index has the names; `ms`,
# `gflop` and `gbyte` are the columns of what each takes in a step. `peak` is in GFLOP/s, `bandwidth` in GB/s. Give a
# dict:
#
#     {name: (bound, saving), …}, the largest saving first
#
# - `bound` is `"memory"` if moving its bytes takes longer, at the limit, than computing its operations; else `"cores"`.
# - `saving` is how many milliseconds fewer it would take if it ran at that limit. Never less than 0: what is faster
#   than memory allows has found its numbers in the cache.


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
# That is a better limit than the one of section 3. It knows that some of the work is for the memory and not for the
# cores. The rest of the step, which is not oneDNN's, comes on top: additions, the gradients of Relus, the weights'
# update. All of that is limited by memory too. Fusion is what helps against it: the pass over memory that never
# happens.
#
# Look at what bfloat16 does to the picture, if you have it. Half the bytes double each intensity, and the peak goes up.
# The memory-bound work gains from the first alone. So the faster the cores, the larger the share of what is not
# convolution.
#
# ## 5 · One operator's worth
#
# So far each batch norm was one operation. Keras does not do that. Here is its layer, and the fused operation beside
# it. What ran of each, forward and backward, and how often did it go over whole pictures? Operations that work on one
# number for each channel are left out: they cost next to nothing.

# %%
x, dy = (tf.random.normal((2, 14, 14, 64)) for _ in range(2))  # pictures, and the gradient by the result
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
    print(f"{norm.__name__}: {operations.total()} operations read or write {tensors} whole pictures: {names}")

# %% [markdown]
# Keras 3 is written for several libraries at once, and builds its batch norm from small operations. oneDNN has no
# kernel for a mean here and a multiplication there. Each goes over the whole picture again: a read, and often a write.
# Keras 2 used the fused operation.
#
# The benchmark can do it both ways. `--nofused_batch_norm` computes as Keras 3 does, and changes nothing else.
#
# One more thing is often proposed at this point: let a compiler merge what the library does not. TensorFlow's is XLA,
# and `--xla_compile` has it compile the whole step. **Guess first**: what is each worth?

# %%
side = {"onednn": known["onednn"], "unfused": replace(known["onednn"], flags=("--nofused_batch_norm",))}
if not QUICK:
    side["xla"] = replace(known["onednn"], flags=("--xla_compile",))
if BF16:
    side["onednn-bf16"] = known["onednn-bf16"]
    side["unfused-bf16"] = replace(known["onednn"], flags=("--use_fp16", "--nofused_batch_norm"))
operators = setups.compare(side, *RUN, half, rounds=side_rounds, where="section 5")


# %%
def draw(comparison, references, title, keep=None):
    """Bars of how many times as fast as its reference each set-up is."""
    times = {name: comparison.ratio(name, ref) for name, ref in references.items() if name in comparison.results}
    figure, axis = plt.subplots(figsize=(10, 0.6 * len(times) + 1.5))
    for row, ratio in enumerate(times.values()):
        colour = (plots.GREEN if ratio.value > 1 else plots.VERMILION) if ratio.significant else plots.SKY
        axis.barh(row, ratio.value, height=0.7, color=colour)
        axis.text(0.02, row - 0.14, f"{ratio.value:.2f}", va="center", weight="bold")
        if not np.isnan(ratio.low):
            axis.plot([ratio.low, ratio.high], [row + 0.2] * 2, color=plots.BLACK, marker="|", linewidth=1.5)
    axis.axvline(1, color=plots.BLACK, linestyle="--")
    axis.set_yticks(range(len(times)), [f"{name}\nagainst {references[name]}" for name in times], fontsize=11)
    axis.invert_yaxis()
    axis.set(
        xlabel="times as fast (line: 95% interval; light blue: may be chance)",
        title=title,
        xlim=(0, 1.3 * max([1, *(ratio.value for ratio in times.values())])),
    )
    alt = "Times as fast: " + "; ".join(f"{name} {ratio} times {references[name]}" for name, ratio in times.items())
    plots.show(figure, alt=alt, keep=keep)


references = {"unfused": "onednn", "unfused-bf16": "onednn-bf16", "xla": "onednn"}
for name in references:
    tell(operators, name, references[name])
draw(operators, references, "Batch norm in small operations, and XLA", keep=results)

# %% [markdown]
# Two rounds are quick, and their interval is very wide: 12.7 standard errors to each side. With three rounds it is 4.3,
# with nine 2.3. So a bar far from 1 with an interval that reaches it does not say "no effect". It says "measure
# again": set `side_rounds` at the top to 4 or more, for this section and the next, if you have the time.
#
# An unfused batch norm costs more in bfloat16 than in float32, where both were measured: the convolutions have become
# faster, and the passes over memory have not. Keras 3 also computes its batch norm in float32 and converts before and
# after.
#
# XLA merges small operations well. But on a CPU it does not use oneDNN's convolutions: under `ONEDNN_VERBOSE=1` you
# find none in its log, and thousands of small matrix products instead. What that does to a network that is mostly
# convolutions, you have measured. An optimisation that does not help is a result too: write it down, with the version,
# and try it again in a year.
#
# ## 6 · Threads: too many, spinning, moving
#
# The set-up *openmp-kmp* sets four things. Which of them matters? Take one back at a time, and leave the others. Then
# the classical mistake: twice as many threads as cores.

# %%
good = known[base]
side = {"as set": good}
if base == "openmp-kmp":
    without = {name: {key: value for key, value in good.env.items() if key != name} for name in good.env}
    side |= {
        f"{2 * cores} threads": replace(good, env=good.env | {"OMP_NUM_THREADS": 2 * cores}),
        "threads move": replace(good, env=without["KMP_AFFINITY"]),
        "threads spin 200 ms": replace(good, env=without["KMP_BLOCKTIME"]),
    }
else:
    print("Without the OpenMP build there are only TensorFlow's own threads to change.\n")
    side[f"{2 * cores} threads"] = replace(good, flags=(*good.flags, f"--num_intra_threads={2 * cores}"))
side["2 inter-op threads"] = replace(good, flags=(*good.flags, "--num_inter_threads=2"))
if QUICK:
    side = dict(list(side.items())[:2])
for name, setup in side.items():
    print(f"{name}:\n  {setup.command(RUN[0], half)}")

# %%
threads = setups.compare(side, *RUN, half, rounds=side_rounds, where="section 6")

# %%
for name in list(side)[1:]:
    tell(threads, name, "as set")
draw(threads, dict.fromkeys(list(side)[1:], "as set"), "Threads: one setting changed at a time", keep=results)

# %% [markdown]
# Why too many threads are a disaster with OpenMP, and not just no gain: at the end of each piece of work, all threads
# wait for the last one. A thread that waits spins, and keeps its core busy with nothing. If the last one has no core,
# it can't finish, because others use its core to wait for it. That goes on until the operating system takes the core
# away from one that spins. Then the next piece comes, and a training step has many hundreds of them.
#
# The same happens when *somebody else* runs on your cores: two jobs on one node, two ranks that each start a thread for
# each core (lab 07), or a container with a quota below its cores.
#
# Spinning and moving matter on machines with many cores and several sockets, and when there is something else to run.
# On two cores that have nothing else to do, a thread has hardly anywhere to move. Say what you see, with its interval,
# and not what the advice says.
#
# ## 7 · Two changes at once, taken apart
#
# The walk-through's third set-up gained 2%. It changed the layout from NHWC to NCHW *and* spread the memory over two
# nodes. Here are all four combinations, from the race of section 2.

# %%
grid = {
    ("NHWC", "as it comes"): base,
    ("NHWC", "spread over nodes"): f"{base}-numactl",
    ("NCHW", "as it comes"): f"{base}-nchw",
    ("NCHW", "spread over nodes"): f"{base}-numactl-nchw",
}
rates = {place: training.rate(name) if name in training.results else np.nan for place, name in grid.items()}
display(pd.Series(rates).unstack().style.format("{:.1f} images/s", na_rep="not run"))
for name in [*list(grid.values())[1:], *[f"{base}-one-node"] * (nodes > 1)]:
    tell(training, name, base)
if nodes == 1:
    print(
        "\nThis machine has one NUMA node. There is nothing to spread over: all memory is equally far from all cores."
    )
else:
    print(f"\nThis machine has {nodes} NUMA nodes, so a spread can change something.")

# %% [markdown]
# **The layout.** In 2018, NCHW was the advice for CPUs: it came nearer to the blocks that the library wanted (lab 02).
# Today TensorFlow keeps images as they are, and oneDNN has convolutions that work on NHWC directly. NCHW can cost
# twice: in the convolutions, which must gather the channels of a pixel from far apart, and in what oneDNN does not do,
# where TensorFlow is at home in NHWC. Good advice has a date.
#
# **The memory.** With one node, `numactl` runs and changes nothing. With more, it helps if one thread has filled the
# memory that all use. It harms if each thread had its own part on its own node, because then a part of what was near
# becomes far. The opposite is the expensive mistake: with all memory on *one* node (`numactl -m 1`), the walk-through
# fell from 34 to about 23.6 images/s. Half of the cores fetched everything from afar, and one node's memory had to
# serve all.
#
# So of 6.24 times, 6.14 were the library and its threads. The rest were two changes whose effects nobody can tell
# apart. Change one thing at a time.
#
# ## 8 · Without training
#
# Classifying images is the way forward alone: a third of the operations, no gradients, and a batch norm that is a
# fixed formula.

# %%
forward_only = ["eigen", "onednn", "openmp-kmp"] + ["onednn-bf16", "openmp-kmp-bf16"] * BF16
if QUICK:
    forward_only = ["onednn"]
flags = ("--forward_only", f"--num_batches={3 * steps}")
inference = setups.compare(forward_only, RUN[0], whole, *flags, rounds=1, where="section 8")

# %%
shares(inference).style.format(FORMATS)

# %% [markdown]
# One round each, so read large differences only. Is the share of the limit larger or smaller than in training? What is
# left beside the convolutions, and which part of that could be folded away (lab 02, exercise 1)? Lab 04 does that, with
# a compiler for inference, and goes down to 8 bits.

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. The instructor's notebook has answers.
#
# 1. Is what oneDNN gains over `eigen` here as large as the published gains? Name two reasons why it need not be.
# 2. How do you prove that the library is used at all?
# 3. Which part of the step could save the most time? Is it the one that takes the most time?
# 4. Why does bfloat16 not double the speed of training, even where its peak is twice that of float32?
# 5. Why do more threads than cores cost so much with OpenMP, and less with TensorFlow's own threads?
# 6. What does `KMP_BLOCKTIME` trade for what? When would you set it to 0?
# 7. The walk-through's machine had 36 logical CPUs. Why did it set 18 threads?
# 8. What would you measure to find out what the interleaved memory alone was worth there?
# 9. Somebody shows you a gain of 2% from one run each. What do you ask for?

# %% [markdown] tags=["instructor"]
# ### Answers, for the instructor
#
# 1. Today's `eigen` uses oneDNN's matrix product inside, made at run time for the newest instructions; their machines
#    had more cores, and other ones; the walk-through compares two different builds.
# 2. `ONEDNN_VERBOSE=1`: a line for each primitive, and the head names version, threads and instructions. Then it was
#    `MKL_VERBOSE` and `MKLDNN_VERBOSE`. Or the operations with `_Mkl` in the graph that ran (lab 02).
# 3. By exercise 5. The convolutions take the most time, and are nearer to their limit: they could save a smaller share
#    of more. Batch norms and reorders could save most of what they take, which is less. The list tells who wins here.
# 4. Only the work that is limited by the cores gains from the higher peak. What is limited by memory gains by half the
#    bytes, at best; weights, their gradients and updates stay in float32; conversions come on top.
# 5. OpenMP splits the work evenly, and waits by spinning. TensorFlow's pool takes pieces from a queue and sleeps, so a
#    slow thread only does fewer pieces.
# 6. Ready at once, for a core that is busy with nothing. Small values when other threads need the cores: TensorFlow's
#    own, a second process, an input pipeline. 0 when several ranks share a node's cores.
# 7. Two hardware threads share a core's arithmetic units. A convolution that keeps them busy gains nothing from a
#    second thread, and has half the cache for each.
# 8. NHWC with `numactl --interleave=all`, and NHWC without, in turns, several times. That is the 2 × 2 of section 7.
# 9. More runs, in turns, and the interval. The walk-through's step from 33.62 to 34.18 is one run each.
#
# Published figures: F. Baruffa's talk *Deep Learning at Scale using Distributed Frameworks* (Intel, 2019) for 3.84 and
# 17.69; the walk-through *6x training speedup using intel-tensorflow* for the others.
#
# **Timing** Sections 1 and 2 take 35 minutes with the race, 3 and 4 take 40, the rest 25. Start the race of section 2
# before you explain the settings. Who is late skips sections 6 and 8.
#
# **Goes wrong** The OpenMP build is a second environment, made by `./lab setup`; without it the lab goes on with the
# stock one, and section 6 has little to show. On a busy machine, which the cells tell, the OpenMP set-ups suffer first,
# by a factor of ten and more: that is section 6, live. A share of the limit over 100%: `./lab roofline --again` on a
# quiet machine.

# %% [markdown]
# ## Remember
#
# - Measure in turns, several times, and give the interval. Change one thing at a time.
# - The library and the type of number are the large steps; threads can cost everything, and rarely gain much.
# - As many threads as physical cores that *you* may use. Never more, least of all with OpenMP.
# - Count operations and bytes. Only then do you know whether something is slow, or at its limit.
# - Convolutions are limited by the cores, batch norms and additions by memory. Fused operations save passes over it.
# - Advice has a date. NCHW was right once.
#
# What was published, what you measured, and what the machine could do at most:


# %%
def at_most(comparison, name):
    """The limit's images/s for a set-up that ran."""
    first = comparison.results[name][0]
    return limits.peak(kind_of(first)) / first["gflop_per_image"]


def gained(name):
    """Images/s in training, from Eigen's to this set-up's, and how many times that is."""
    if not {"eigen", name} <= training.results.keys():
        return "not run here"
    times = training.ratio(name, "eigen")
    return f"{training.rate('eigen'):.1f} → {training.rate(name):.1f} images/s: {times} times"


most = f"{at_most(training, 'eigen'):.1f} images/s"
rows = [
    (what, published, gained(name), most, *((training.others, limits.others) if name in training.results else ()))
    for what, published, name in (
        ("default → MKL-DNN (Intel, batch 16)", "3.84 → 17.69 images/s: 4.6×", "onednn"),
        ("default → Intel's build, threads set (batch 128)", "5.48 → 33.62 images/s: 6.14×", "openmp-kmp"),
        ("… and memory spread, and NCHW", "34.18 images/s: 6.24×", f"{base}-numactl-nchw"),
        ("… and all memory on one of the two nodes", "about 23.6 images/s", f"{base}-one-node"),
    )
]
for what, comparison in (("training", training), ("classifying", inference)):
    for name in comparison.results:
        share = comparison.rate(name) / at_most(comparison, name)
        rows.append(
            (
                f"{what}, {name}, batch {batch}",
                "",
                f"{comparison.rate(name):.1f} images/s",
                f"{at_most(comparison, name):.1f} images/s; {share:.0%} of it",
                comparison.others,
                limits.others,
            )
        )
rows += [
    (
        f"oneDNN's part of a step, {kind}",
        "",
        f"{table.ms.sum():,.0f} ms",
        f"{least_ms[kind]:,.0f} ms, by kind of work",
        log_others[kind],
        limits.others,
    )
    for kind, table in kinds.items()
]
rows += [
    (f"{name} against {reference}", "", f"{operators.ratio(name, reference)} times", "", operators.others)
    for name, reference in references.items()
    if name in operators.results
]
rows += [
    (f"{name} against as set", "", f"{threads.ratio(name, 'as set')} times", "", threads.others)
    for name in list(threads.results)[1:]
]
results.table("ResNet-50", rows)

# %% [markdown]
# Published: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (machine not told), and the
# walk-through *6x training speedup using intel-tensorflow, OMP-settings and numactl*, on a rented machine with 18 cores
# and 2 NUMA nodes. The limit is a large matrix product in the same kind of number, by the operations of an image.
# Next: lab 04, with fewer bits.
