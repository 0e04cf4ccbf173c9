# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: find the causes of a slow ResNet-50 one by one, and see how far it still is from the machine's limit
#     needs: [ISA, memory, TensorFlow]
#     better_with: [cores, PyTorch, numactl]
# ---

# %% [markdown]
# # 03 · ResNet-50: the case of the slow network
#
# A colleague trains ResNet-50 in a container, with Keras and `fit`. Nothing is wrong, but it is slow. You have seven
# suspects and one number to push up: **the share of your machine's limit** that the training reaches.
#
# **You will learn** how to account for the time of a training step; what normalisation, layout, threads, precision,
# memory and batch size each cost; and what oneDNN's log shows when something is wrong.
#
# **Time** {minutes}
#
# **Connects to** labs 01 and 02, which fuse operators and time one convolution, lab 05, which searches for settings,
# and lab 08, which trains this network on a cluster.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("03", globals())

# %%
import json
import math
import shutil
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from statistics import median

import keras
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from labkit.bench import configurations
from labkit.bench.op_profile import read_operations
from labkit.display import onednn, plots
from labkit.measure import Background, compare, record, recorded, share
from labkit.system import cores as shared_server
from labkit.system import processes
from labkit.system.errors import LabError

# %%
# How much this lab measures: change it here. The first of two sizes is for a small run.
cores = machine.usable_cores
room_for = int((machine.memory_free / 2**30 - 2) / 0.1)  # images: 2 GB, and 0.1 for each
batch = 2 if QUICK else max(2, min(max(16, 2 * cores), 128, room_for))
large = max(batch, min(2 * batch, room_for))  # section 6
SMALL = ("--side=32", "--steps=1") if QUICK else ()
rounds, profiled_steps = 6, 3

BF16 = bool({"BF16", "AMX"} & set(machine.isa))
fastest = "bfloat16" if BF16 else "float32"
RECORDED = QUICK or room_for < 8 or bool(shared_server.slots())  # too small, or shared by a class
print(f"batch {batch}, and {large}; the fastest precision of this CPU: {fastest}")
if RECORDED:
    print("The long measurements are not made here: the lab shows recorded ones.")

# %% [markdown]
# ## 1 · The case {read 7, wait 1.1}
#
# This is the colleague's script, with Keras' own ResNet-50, trained by `fit` on random images. Each option is a
# suspect, and by default nothing is changed.

# %%
# %%writefile work/train.py
"""Train Keras' ResNet-50 with `fit`, and print what a step takes. Each option is a suspect."""

import argparse
import json
import resource
import time

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=0, help="of an operation; 0: automatic")
parser.add_argument("--at_once", type=int, default=0, help="operations; 0: automatic")
parser.add_argument("--norm", choices=("keras", "fused"), default="keras")
parser.add_argument("--layout", choices=("NHWC", "NCHW"), default="NHWC")
parser.add_argument("--dtype", choices=("float32", "mixed_bfloat16"), default="float32")
parser.add_argument("--batch", type=int, default=16, help="images in a step")
parser.add_argument("--eager", action="store_true", help="call each operation from Python")
parser.add_argument("--side", type=int, default=224, help="of an image, in pixels")
parser.add_argument("--steps", type=int, default=3, help="timed, after two to warm up")
parser.add_argument("--profile", help="a folder for TensorFlow's profile of further steps")
args = parser.parse_args()

import keras
import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(args.threads)
tf.config.threading.set_inter_op_parallelism_threads(args.at_once)
keras.config.set_image_data_format({"NHWC": "channels_last", "NCHW": "channels_first"}[args.layout])
keras.config.set_dtype_policy(args.dtype)


class FusedNorm(keras.layers.BatchNormalization):
    def call(self, x, training=None, mask=None):  # one operation, as in Keras 2
        inputs = zip(("scale", "offset", "mean", "variance"), (w.value for w in self.weights))
        options = {"is_training": bool(training and self.trainable), "epsilon": self.epsilon}
        options |= {"exponential_avg_factor": 1 - self.momentum, "data_format": args.layout}
        y = tf.raw_ops.FusedBatchNormV3(x=x, **options, **dict(inputs))
        self.moving_mean.assign(y.batch_mean)
        self.moving_variance.assign(y.batch_variance)
        return y.y


def chosen(layer):
    if args.norm == "fused" and isinstance(layer, keras.layers.BatchNormalization):
        return FusedNorm.from_config(layer.get_config() | {"autocast": False})
    return type(layer).from_config(layer.get_config())


steps = []  # of each: seconds, user and system time, page faults, thread switches and more


class Clock(keras.callbacks.Callback):
    def read(self):
        return np.array([time.perf_counter(), *resource.getrusage(resource.RUSAGE_SELF)])

    def on_train_batch_begin(self, batch, logs=None):
        self.began = self.read()

    def on_train_batch_end(self, batch, logs=None):
        steps.append(self.read() - self.began)


shape = (args.side, args.side, 3) if args.layout == "NHWC" else (3, args.side, args.side)
model = keras.applications.ResNet50(weights=None, input_shape=shape)
model = keras.models.clone_model(model, clone_function=chosen)
model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=args.eager)
one = tf.random.normal((args.batch, *shape)), tf.range(args.batch)  # images and labels
data = tf.data.Dataset.from_tensors(one).repeat()
model.fit(data, steps_per_epoch=2 + args.steps, verbose=0, callbacks=[Clock()])
if args.profile:
    with tf.profiler.experimental.Profile(args.profile):
        model.fit(data, steps_per_epoch=args.steps, verbose=0, callbacks=[Clock()])
seconds, user, system, *use = np.median(steps[-args.steps :], axis=0)
report = {"images/s": args.batch / seconds, "cores busy": (user + system) / seconds}
report |= {"ms": 1000 * seconds, "page faults": use[4], "thread switches": use[12] + use[13]}
print(json.dumps(report))

# %% [markdown]
# Each run is a separate process. It reports what the kernel counted in a step: busy cores, memory pages that the
# process had to request, and switches between threads. The next cell profiles four runs, in about a minute. They use
# oneDNN, and run one operation at a time, so that the times of all operations add up. You can skip the code up to
# section 2.

# %%
OWN = () if machine.quota is None else (f"--threads={cores}", f"--at_once={cores}")
UNSET, ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": None}, {"TF_ENABLE_ONEDNN_OPTS": 1}
FUSED = "--norm=fused"
HALF = "--dtype=mixed_bfloat16" if BF16 else "--dtype=float32"  # of activations
runs = defaultdict(list)  # the reports, by variant


def train(name, *options, **variables):
    """Run work/train.py once, keep its report, and return the images/s."""
    command = [sys.executable, "work/train.py", f"--batch={batch}", *SMALL, *options]
    done = processes.run(command, env=variables, timeout=1200, separate_errors=True)
    if done.failure:
        raise LabError("\n".join([f"{name}: {done.failure}", *done.errors[-5:]]))
    runs[name].append(json.loads(done.lines[-1]))
    return runs[name][-1]["images/s"]


PROFILED = {"as found": [], "fused norm": [FUSED], "best": [FUSED, HALF]}
PROFILED["best, batch 1"] = [FUSED, HALF, "--batch=1", "--steps=8"]
for name in ["as found"] if RECORDED else PROFILED:
    shutil.rmtree(work / name, ignore_errors=True)  # an earlier profile
    alone = *OWN, "--at_once=1", f"--profile={work / name}"
    speed = train(f"{name}, profiled", *alone, *PROFILED[name], **ONEDNN)
    print(f"profiled: {name}" + f", {speed:.1f} images/s" * (name == "as found"), flush=True)

# %% [markdown]
# Now the long measurement. Every row of `SUSPECTS` adds one change to an earlier row. All variants and two limits are
# measured in turn, six times each, **in the background**. This takes about 13 minutes, during which you should run only
# this notebook's cells.
#
# - `many threads` is what a container can do to you. TensorFlow starts a thread for each CPU that it *sees*, and a
#   quota doesn't hide any. This row starts 16 per core that you may use, up to 256.
# - `default` sets nothing, except the number of threads under a quota, where `many threads` is what you get by default.
# - `oneDNN` has a row only where TensorFlow's default is Eigen.

# %%
# %%writefile work/limit.py
"""Print the GFLOP/s of this machine's fastest matmul in a precision, or the GB/s of its memory."""

import sys

from labkit.roofline import peaks
from labkit.system.cores import usable_machine

what, machine = sys.argv[1], usable_machine()
if what == "memory":
    print(max(map(max, peaks.bandwidth(machine).values())))
else:
    libraries = [make(what, machine) for make in (peaks.openvino_matmuls, peaks.tensorflow_matmuls)]
    print(max(max(peaks.peak(make, machine, (1024, 2048))[0]) for make in libraries if make))


# %%
def limit(what):
    """Run work/limit.py once, and return what it prints."""
    fast_start = {"TF_USE_LEGACY_KERAS": 1}  # TensorFlow then doesn't import Keras
    command = [sys.executable, "work/limit.py", what]
    done = processes.run(command, fast_start, separate_errors=True)
    return float(done.lines[-1])


# %%
many = min(16 * cores, 256)
# The C library keeps freed memory, and uses pages of 2 MB.
KEEP = {"hugetlb": 1, "mmap_max": 0, "trim_threshold": 2**40, "top_pad": 2**28}
PAGES = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in KEEP.items())}
ASIDE = ("many threads", "NCHW", "one at a time")  # later rows don't keep these changes
SUSPECTS = {
    "many threads": ([f"--threads={many}", f"--at_once={many}"], UNSET),
    "default": (OWN, UNSET),
    "oneDNN": (OWN, ONEDNN),
    "fused norm": ([*OWN, FUSED], ONEDNN),
    "NCHW": ([*OWN, FUSED, "--layout=NCHW"], ONEDNN),
    "one at a time": ([*OWN, FUSED, "--at_once=1"], ONEDNN),
    "bfloat16": ([*OWN, FUSED, HALF], ONEDNN),
    "pages": ([*OWN, FUSED, HALF], ONEDNN | PAGES),
    "larger batch": ([*OWN, FUSED, HALF, f"--batch={large}"], ONEDNN | PAGES),
}
if not BF16:
    del SUSPECTS["bfloat16"]
if RECORDED or onednn.is_default():
    del SUSPECTS["oneDNN"]

# %%
variants = {
    name: partial(train, name, *options, **env) for name, (options, env) in SUSPECTS.items()
}
variants |= {"limit": partial(limit, fastest), "memory": partial(limit, "memory")}
if not RECORDED:
    fixing = Background(variants, rounds, "images/s", "section 1")

# %% [markdown]
# A second measurement then compares TensorFlow with PyTorch (section 8), taking another 13 minutes.

# %%
pytorch, half = configurations.known(), "-bf16" * BF16
PYTORCH = {
    "PyTorch, default": ("torch", batch, "--data_format=NCHW"),  # its own default
    "PyTorch, eager": (f"torch-threads{half}", batch),
    "PyTorch, eager, larger batch": (f"torch-threads{half}", large),
    "PyTorch, compiled": (f"torch-compile-threads{half}", batch),
    "PyTorch, compiled, larger batch": (f"torch-compile-threads{half}", large),
    "PyTorch, compiled, sleep": (f"torch-compile-threads-sleep{half}", batch),
}
openmp = set()  # the libraries that PyTorch used


def bench(name, size, *flags):
    """Run ResNet-50 once in a configuration of `lab bench`, and return the images/s."""
    steps = "--num_warmup_batches=2", "--num_batches=2"
    result = configurations.run_once(pytorch[name], f"--batch_size={size}", *steps, *flags)
    openmp.add(result["openmp"])
    return result["images_per_second"]


why_not = next(filter(None, (pytorch[name].missing for name, *_ in PYTORCH.values())), "")
NO_TORCH = RECORDED or bool(why_not)
print(why_not or "PyTorch is installed.")

# %%
others = {name: partial(bench, *arguments) for name, arguments in PYTORCH.items()}
for name, option in {"TensorFlow, eager": ["--eager"], "TensorFlow, graph": []}.items():
    for ending, size in {"": batch, ", larger batch": large}.items():
        options = *OWN, FUSED, HALF, f"--batch={size}", *option
        others[name + ending] = partial(train, name + ending, *options, **ONEDNN)
others["limit"] = variants["limit"]
if not NO_TORCH:
    comparing = Background(others, rounds, "images/s", "section 1")

# %% [markdown]
# ## 2 · What the limit is {read 4, do 6}
#
# How many operations does an image take? In the [**forward pass**](../docs/learn/glossary.md#forward-pass), each number
# that a convolution writes is a sum over the kernel's positions and the input's channels, and a multiplication and an
# addition count as two operations. As in most publications, positions in the padding count too.


# %% tags=["nbval-check-output"]
def forward_flops(layer):
    """The floating-point operations of a layer's forward pass, for one image."""
    if not hasattr(layer, "kernel"):
        return 0  # normalisations, ReLUs and sums compute little: memory is their limit
    return 2 * math.prod(layer.kernel.shape[:-1]) * math.prod(layer.output.shape[1:])


model = keras.applications.ResNet50(weights=None)
FORWARD = {layer.name: forward_flops(layer) for layer in model.layers if forward_flops(layer)}
print(f"{len(FORWARD)} layers, {sum(FORWARD.values()) / 1e9:.2f} GFLOP for one image, forward")
print(*list(FORWARD.items())[:4], sep="\n")

# %% [markdown]
# ### Exercise 1 · The operations of training
#
# **Training** adds the [**backward pass**](../docs/learn/glossary.md#backward-pass). It goes from the last layer to the
# first, and computes up to two [**gradients**](../docs/learn/glossary.md#gradient) for each layer. Each takes as many
# operations as that layer's forward pass.
#
# - The gradient with respect to the layer's *weights* updates them.
# - The previous layer needs the gradient with respect to this layer's *input* for its own gradients.
#
# A gradient that is not needed is not computed. Treat the layers as a chain, each fed by the one before. In
# fine-tuning, often only the last layers learn.
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
training_flops = check(1, training_flops)

# %% tags=["nbval-check-output"]
each = list(FORWARD.values())
gflop = float(training_flops(each, len(each))) / 1e9
print(f"All layers learn: {gflop:.2f} GFLOP for one image")
print(f"The last ten: {float(training_flops(each, 10)) / 1e9:.2f} GFLOP")

# %% [markdown]
# Papers say "4 GFLOP", counting a multiply-add as one operation and leaving out the backward pass.
#
# Training is hardly ever faster than the machine's fastest matmul, in the fastest training precision. (Only code that
# skips the padding, about 4%, might be.) So *that speed divided by the operations per image* is the limit for training,
# in images/s. It is measured in the same rounds, and is the same for all suspects, whatever their precision.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What share of this limit does the script reach with no options set and a machine to itself?
#
# </div>

# %%
results.guess(1, "the default's share of the limit", ..., unit="%")

# %% [markdown]
# ## 3 · Where does the time go? {read 4}
#
# TensorFlow's profiler reports the time of each operation in a step. A name such as
# `gradient_tape/resnet50/conv2_block1_1_conv/convolution/Conv2DBackpropInput` contains the layer's name, which gives
# the kind of work. The ledger below has one bar for each kind. One more bar shows what the profile can't account for,
# which is the time of a step minus the sum of its operations' times, and includes the profiler's own work. If that bar
# is long, the ledger explains nothing.


# %%
# oneDNN computes many norms together with the ReLU after them.
OF_LAYER = {"BatchNormalization": "norm, ReLU", "Activation": "norm, ReLU", "Add": "sum"}
OF_LAYER["Conv2D"] = "convolution"
KIND = {layer.name: OF_LAYER.get(type(layer).__name__, "other layers") for layer in model.layers}
PASSES = {"BackpropFilter": "gradient of weights", "BackpropInput": "gradient of input"}


def kind_of(operation):
    """The kind of work of an operation in the profile, `path/in/graph:Type`."""
    path, _, kind = operation.partition(":")
    if kind == "Cast":
        return "conversion"
    if "sgd" in path.lower():
        return "update"
    parts = (part.removesuffix("_1") for part in reversed(path.split("/")))
    found = next(
        (KIND[part] for part in parts if part in KIND), "sum" if kind == "AddN" else "other"
    )
    if found != "convolution":
        return found
    in_type = [name for name in PASSES if name in kind]
    return f"convolution: {PASSES[in_type[0]] if in_type else 'forward'}"


# %%
recording = recorded("03-fixes") if RECORDED else None
ledgers = recording.data["ledgers"] if RECORDED else {}
for name in ["as found"] if RECORDED else PROFILED:
    report, ledger = runs[f"{name}, profiled"][0], Counter()
    steps = 8 if "batch 1" in name else profiled_steps
    for operation, ms in read_operations(work / name, steps).items():
        ledger[kind_of(operation)] += ms
    ledger["unaccounted"] = report["ms"] - sum(ledger.values())
    if not RECORDED:
        ledgers[name] = dict(ledger)
steps_ms = {name: sum(ledger.values()) for name, ledger in ledgers.items()}
for name, ms in steps_ms.items():
    print(f"{name:14} unaccounted {ledgers[name]['unaccounted'] / ms:+.1%} of the step")


# %% jupyter={"source_hidden": true}
def draw_ledgers(names, title):
    """Draw a bar for each kind of work, in the order of the first ledger."""
    first = ledgers[names[0]]
    kinds = [kind for kind in sorted(first, key=first.get, reverse=True) if kind != "unaccounted"]
    kinds = [kind for kind in kinds if max(ledgers[name].get(kind, 0) for name in names) > 5]
    kinds.append("unaccounted")
    figure, axis = plt.subplots(figsize=(10, 0.45 * len(kinds) * len(names) ** 0.5 + 1.5))
    height = 0.8 / len(names)
    for number, (name, colour) in enumerate(zip(names, (plots.BLUE, plots.ORANGE, plots.GREEN))):
        places = np.arange(len(kinds)) + (number - (len(names) - 1) / 2) * height
        ms = [ledgers[name].get(kind, 0) for kind in kinds]
        label = f"{name}: {steps_ms[name]:,.0f} ms"
        axis.barh(
            places,
            ms,
            height,
            color=colour,
            label=label,
            hatch=("", "//", "..")[number],
            edgecolor="w",
        )
        for place, value in zip(places, ms):
            axis.text(max(value, 0), place, f" {value:,.0f}", va="center", fontsize=11)
    axis.set_yticks(range(len(kinds)), kinds)
    axis.invert_yaxis()
    axis.margins(x=0.1)
    axis.axvline(0, color=plots.BLACK, marker="", linewidth=1)
    axis.set(xlabel="ms in a step", title=title)
    axis.legend(loc="lower right")
    alt = ". ".join(
        f"{n}: " + ", ".join(f"{k} {ledgers[n].get(k, 0):,.0f} ms" for k in kinds) for n in names
    )
    plots.show(figure, alt=alt, keep=results)


draw_ledgers(["as found"], "A training step as found, one operation at a time")

# %%
results.answer(1, "Which bar would you question first, and why?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# The convolutions do nearly all of the arithmetic, so their bars may be long. Their three passes take the same number
# of operations, so ask why one takes longer. Normalisation does next to no arithmetic, a few operations per number. If
# its bar is as long as a convolution's, something is wrong with it.
#
# </details>
#
# ## 4 · Threads in a container {read 4, do 8, optional}
#
# [**Intra-op threads**](../docs/learn/glossary.md#intra-op-parallelism) share the work of one operation. [**Inter-op
# threads**](../docs/learn/glossary.md#inter-op-parallelism) run different operations at the same time. Both numbers
# default to the number of CPUs that TensorFlow sees.
#
# - Two [**hardware threads**](../docs/learn/glossary.md#core) share a core's arithmetic units, and a good convolution
#   keeps the units busy with one thread.
# - A batch system or `taskset` gives you certain CPUs, a *mask*. A container's *quota* is CPU time on any of them. With
#   a quota of 2.5, two threads can run all the time. Never pin threads under a quota, as their CPUs may be busy while
#   others are idle.
# - Memory on another [**NUMA node**](../docs/learn/glossary.md#numa-node) is slower to reach. With two sockets, the
#   usual advice is one process per node, as in `numactl --cpunodebind=0 --membind=0 python train.py`.
#
# ### Exercise 2 · Where should the threads run?
#
# Write `place_threads(cpus, quota)`. `cpus` is a list of the logical CPUs that *you* may use, in any order, as tuples
# `(cpu, core, node)` of three numbers. Cores of different nodes have different numbers. `quota` is in CPUs, or `None`
# if there is none. Return two values:
#
# - the number of threads, which is one per core. Under a quota, use only as many as can be busy all the time, but at
#   least one;
# - a dict with the CPUs to pin them to: for each NUMA node, a list of the lowest CPU of each of its cores, in any
#   order. Under a quota, return an empty dict.

# %% tags=["nbval-check-output"]
SOCKETS = [(cpu, cpu % 18, cpu % 18 // 9) for cpu in range(36)]  # 2 × 9 cores, 2 threads each
print("The published walk-through's machine:", *SOCKETS[:3], "…", *SOCKETS[-2:])


# %%
def place_threads(cpus, quota):
    """The number of threads, and the CPUs to pin them to by NUMA node."""
    ### BEGIN SOLUTION
    cores = {core: (cpu, node) for cpu, core, node in sorted(cpus, reverse=True)}
    if quota is not None:
        return max(1, min(len(cores), int(quota))), {}
    nodes = {}
    for cpu, node in sorted(cores.values()):
        nodes.setdefault(node, []).append(cpu)
    return len(cores), nodes
    ### END SOLUTION


# %% tags=["nbval-check-output"]
place_threads = check(2, place_threads)

# %% tags=["nbval-check-output"]
for quota in (None, 2.5):
    threads, nodes = place_threads(SOCKETS, quota)
    print(f"quota {quota}: {threads} threads;", nodes)

# %% [markdown]
# ## 5 · Three sick logs {read 3, do 8}
#
# With `ONEDNN_VERBOSE=1`, oneDNN writes a line for each of its [**primitives**](../docs/learn/glossary.md#primitive),
# whichever program calls it. In 2026, a build of PyTorch 2.14 computed FP16 matmuls [more than 1,000 times
# slower](https://github.com/pytorch/pytorch/issues/193951) than 2.13, and one word in this log gave the cause away.
#
# ### Exercise 3 · Three sick logs
#
# These three one-step logs are from real PyTorch runs that were far too slow, on a two-core AMD EPYC. Each comes with a
# healthy log of the same work. `training` is a ResNet-50 step on 16 images. In `int8`, ResNeXt-50, a relative whose
# convolutions here have 8 channel groups, classifies four images in INT8.

# %%
NAMES = ("training", "training-a", "training-b", "int8", "int8-c")
heads = {name: onednn.describe(onednn.stored_log(name)) for name in NAMES}
logs = {name: onednn.read_log(onednn.stored_log(name)) for name in NAMES}
for name, log in logs.items():
    print(f"{name:10}  {len(log)} primitives, {log.ms.sum():6,.0f} ms in oneDNN")
logs["training"].drop(columns=["type", "attributes"]).head(4)

# %% [markdown]
# Each row is a primitive. The columns `primitive`, `direction` and `problem` name its work. `implementation` is the
# code that did it, such as `brg_conv_fwd:avx512_core`. The same work by the same code can appear in several rows.
#
# Write `lost(healthy, sick)`. Both are tables with at least these four columns and `ms`. Return three numbers, the
# extra milliseconds of the sick log (below 0 if it was faster):
#
# 1. in *reorders*, the rows whose `primitive` is `"reorder"`, which only copy numbers to a different layout;
# 2. in all the other rows with *other code*, which means that the work, or this implementation of it, is in only one of
#    the two logs;
# 3. in the remaining rows with *the same code*, which means that both logs have this work in this implementation.
#
# The three numbers add up to the difference between the two logs.


# %%
def lost(healthy, sick):
    """The ms that a sick log took longer: in reorders, in other code, in the same code."""
    ### BEGIN SOLUTION
    work = ["primitive", "direction", "problem", "implementation"]
    before, after = (log.groupby(work).ms.sum() for log in (healthy, sick))
    change = after.sub(before, fill_value=0)
    reorder = change.index.get_level_values("primitive") == "reorder"
    same = change.index.isin(before.index) & change.index.isin(after.index)
    return change[reorder].sum(), change[~reorder & ~same].sum(), change[~reorder & same].sum()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
lost = check(3, lost)

# %%
for sick in ("training-a", "training-b", "int8-c"):
    healthy = sick.partition("-")[0]
    parts = dict(
        zip(("reorders", "other code", "same code"), map(float, lost(logs[healthy], logs[sick])))
    )
    print(f"{sick:10}  " + ", ".join(f"{name} {ms:+6,.0f} ms" for name, ms in parts.items()))

# %% [markdown]
# Which column shows the cause? Look at the rows that lost the most, and at the headers. `src` and `dst` are layouts.
# `acdb` keeps the channels last, `abcd` keeps them first, and `aBcd16b` is blocked.

# %%
columns = ["primitive", "implementation", "direction", "src", "dst", "problem"]
for name in NAMES:
    print(name, heads[name])
sick = "training-b"  # change the name
before, after = (logs[name].groupby(columns).ms.sum() for name in (sick.partition("-")[0], sick))
after.sub(before, fill_value=0).nlargest(3).reset_index()

# %%
results.answer(2, "What is wrong in a, b and c, and what would you change?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# - **a**: the same code takes nearly twice as long for the same work. The header shows why: `nthr:1`, one thread.
#   `torchrun` sets `OMP_NUM_THREADS=1` for each of several ranks unless you set it.
# - **b**: the reorders take longer. Images come as `abcd`, PyTorch's own layout. The convolutions want them blocked
#   (`aBcd16b`), and their results go back to `abcd` each time. `memory_format=torch.channels_last` ends that.
# - **c**: other code takes longer. Three of the 53 rows, all for the same work, take most of the time. They use
#   `ref:any`, oneDNN's plain C++ reference implementation for cases without a better one. The header says `Intel AVX2`,
#   although the CPU has AVX-512, because `ONEDNN_MAX_CPU_ISA=AVX2` was set. With AVX2, oneDNN has no INT8 kernel for 8
#   groups of 14 channels.
#
# </details>

# %% [markdown]
# ## 6 · The suspects {read 11, wait 0.3}
#
# For each suspect, write your guess first. The row then shows its speed, its share of the limit, and its speed-up over
# the variant that it changes, with 95% [**confidence intervals**](../docs/learn/glossary.md#confidence-interval).

# %% tags=["background"]
if RECORDED:
    fixes, runs, (batch, large) = recording.figures, recording.data["runs"], recording.data["sizes"]
else:
    fixes = fixing.figures()
    record("03-fixes", fixes, QUICK, runs=runs, ledgers=ledgers, sizes=(batch, large))


# %%
def per_image(figure):
    """A limit in GFLOP/s as one in images/s."""
    ends = {name: getattr(figure, name) / gflop for name in ("value", "low", "high")}
    return replace(figure, **ends, digits=1, rounds=tuple(speed / gflop for speed in figure.rounds))


def reveal(name, before, figures):
    """Print a suspect's row, and return its factor."""
    reached = share(figures[name], per_image(figures["limit"]))
    print(f"{name}: {figures[name]}, {reached} of the limit")
    gain = compare(figures[name], figures[before])
    print(f"  vs {before}: {gain}")
    return gain


def evidence(what, *names):
    """Print what the kernel counted in a step: the median of the runs."""
    for name in names:
        counted = median(run[what] for run in runs[name])
        print(f"  {what}, {name}: {counted:,.{2 * (what == 'cores busy')}f}")


print(f"The limit: {per_image(fixes['limit'])}")
reached = share(fixes["default"], per_image(fixes["limit"]))
results.compare_guess(1, reached)
half_name = "bfloat16" if "bfloat16" in fixes else "fused norm"  # in what was measured or recorded

# %% [markdown]
# ### Too many threads
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How fast is training with 16 threads per core, compared with the default? (Below 1 is slower.)
#
# </div>

# %%
results.guess(2, "16 threads per core vs the default", ..., unit="×")

# %%
results.compare_guess(2, reveal("many threads", "default", fixes))
evidence("thread switches", "default", "many threads")
evidence("cores busy", "default", "many threads")

# %% [markdown]
# **What explains it?** TensorFlow's waiting threads sleep, so they don't block the cores. But each operation is cut
# into more pieces, and each thread brings its own data into the caches. The thread switches reflect this. A real quota
# is worse, as all threads together use it up early in each period. Then all of them stop until the next one.
#
# ### The normalisation
#
# Keras 2 called one operation, `FusedBatchNormV3`. Keras 3 supports several frameworks, and writes a normalisation as a
# chain of small operations (`keras/src/backend/tensorflow/nn.py`). Each reads whole images, and most write them,
# forward and backward. Together, the two ledgers forecast the speed-up.

# %%
as_found, fused = ledgers["as found"], ledgers["fused norm"]
saved = as_found["norm, ReLU"] - fused["norm, ReLU"]
print(f"The bar of norms: {as_found['norm, ReLU']:,.0f} → {fused['norm, ReLU']:,.0f} ms")
print(f"Forecast: {steps_ms['as found'] / (steps_ms['as found'] - saved):.2f}×")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster is training with one operation for each normalisation?
#
# </div>

# %%
results.guess(3, "fused normalisation vs Keras 3's", ..., unit="×")

# %%
if "oneDNN" in fixes:
    reveal("oneDNN", "default", fixes)
norm_gain = reveal("fused norm", "oneDNN" if "oneDNN" in fixes else "default", fixes)
print(f"The whole ledgers: {steps_ms['as found'] / steps_ms['fused norm']:.2f}×")
results.compare_guess(3, norm_gain)
draw_ledgers(["as found", "fused norm"], "The same step, with normalisations as one operation")

# %% [markdown]
# **What explains it?** The forecast replaced one bar. Others may also have become shorter, such as the sums of
# gradients. But the convolutions did the same work in both profiles. If their change exceeds the other bars' savings,
# the ledgers' totals explain nothing.
#
# ### The layout
#
# In 2018, the advice for CPUs was NCHW (channels first), and both published runs used it. oneDNN's convolutions worked
# on blocks of channels, which are closer to NCHW. Today they work on NHWC directly (lab 02).
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How fast is training with NCHW, compared with NHWC?
#
# </div>

# %%
results.guess(4, "NCHW vs NHWC", ..., unit="×")

# %%
results.compare_guess(4, reveal("NCHW", "fused norm", fixes))
evidence("page faults", "fused norm", "NCHW")

# %% [markdown]
# **What explains it?** Section 5 has the log of such a run. Whole images are reordered around convolutions. Each copy
# needs memory, which shows up as [*page faults*](../docs/learn/glossary.md#page-fault). Each takes the kernel about a
# microsecond, so you can compute their share of the slowdown. The next rows use NHWC.
#
# ### One operation at a time
#
# "One inter-op thread, because the layers wait for each other" is old advice too.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How fast is training with one operation at a time, compared with TensorFlow's choice?
#
# </div>

# %%
results.guess(5, "one operation at a time vs TensorFlow's choice", ..., unit="×")

# %%
threads_gain = reveal("one at a time", "fused norm", fixes)
results.compare_guess(5, threads_gain)
evidence("cores busy", "fused norm", "one at a time")

# %% [markdown]
# **What explains it?** The forward pass is nearly a chain, but the backward pass isn't. A layer's two gradients don't
# depend on each other, and neither do the updates. While one operation finishes on a single core, another can use the
# rest. The ratio of busy cores shows how much this explains.
#
# ### Precision
#
# [**bfloat16**](../docs/learn/glossary.md#bfloat16) halves the bytes of all activations. CPUs with AVX-512 BF16
# multiply pairs of them, which doubles the peak; with AMX, it is up to 16 times as high. Weights stay in float32.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster is training with bfloat16?
#
# </div>

# %%
results.guess(6, "bfloat16 vs float32", ..., unit="×")

# %%
seen = fixes if "bfloat16" in fixes else recorded("03-fixes").figures
precision_gain = reveal("bfloat16", "fused norm", seen)
results.compare_guess(6, precision_gain)
bars = pd.DataFrame({"float32": ledgers["fused norm"], half_name: ledgers["best"]}).fillna(0)
bars["factor"] = bars["float32"] / bars[half_name]
bars[bars.max(axis=1) > 5].round(2)

# %% [markdown]
# **What explains it?** Arithmetic may speed up by the same factor as the peak. Memory-bound work gains a factor of two
# at most, and the update of the weights, which stay in float32, gains nothing. Conversions add time. A bar outside
# these bounds means a different kernel, or noise.
#
# ### Memory and its pages
#
# Every step allocates and frees gigabytes. If the C library returns freed memory to the kernel, the next step requests
# it again, at the price of a page fault for every 4 kB. The variant `pages` keeps freed memory, and asks for [**2 MB
# pages**](../docs/learn/glossary.md#huge-page). How many faults could it save, and how many milliseconds?

# %%
evidence("page faults", half_name)
evidence("ms", half_name)

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster is training if freed memory is kept, in large pages?
#
# </div>

# %%
results.guess(7, "memory kept, in large pages", ..., unit="×")

# %%
results.compare_guess(7, reveal("pages", half_name, fixes))
evidence("page faults", "pages")

# %% [markdown]
# **What explains it?** A thousand faults take about a millisecond, so they can't explain a larger gain. Large pages
# also save address look-ups. Hundreds of thousands of faults, as in the NCHW row, make this variant worthwhile.
#
# ### The batch
#
# Suppose that a step takes a fixed time plus some time per image. Two ledgers, for one image and for many, give both
# parts for each kind of work.

# %%
parts = pd.DataFrame(
    {"one image": ledgers["best, batch 1"], f"{batch} images": ledgers["best"]}
).fillna(0)
parts["each"] = (parts[f"{batch} images"] - parts["one image"]) / (batch - 1)
parts["fixed"] = parts["one image"] - parts["each"]
each_ms, fixed_ms = parts["each"].sum(), parts["fixed"].sum()
speeds = {size: 1000 * size / (fixed_ms + size * each_ms) for size in (batch, large)}
print(f"{fixed_ms:.0f} ms and {each_ms:.1f} ms for each image")
print(f"Forecast: batch {large} vs {batch}: {speeds[large] / speeds[batch]:.2f}×")
parts.sort_values("fixed", ascending=False).round(1).head(6)

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster is the larger batch?
#
# </div>

# %%
results.guess(8, "the larger batch", ..., unit="×")

# %%
batch_gain = reveal("larger batch", "pages", fixes)
results.compare_guess(8, batch_gain)

# %% [markdown]
# **What explains it?** A line fits any two points, and the larger batch is the third. The fixed part is work on
# *weights* (the same for one image as for a hundred), the overhead of each operation, and kernels that use the cores
# poorly with one image.
#
# ### The verdict


# %% jupyter={"source_hidden": true}
def draw_shares(names, figures, title):
    """Draw the share of the limit that each variant reaches, with its interval."""
    shares = [share(figures[name], per_image(figures["limit"])) for name in names]
    figure, axis = plt.subplots(figsize=(10, 0.5 * len(names) + 1.5))
    for place, reached in enumerate(shares):
        axis.barh(place, reached.value, 0.6, color="0.6" if names[place] in ASIDE else plots.BLUE)
        error = [[reached.value - reached.low], [reached.high - reached.value]]
        axis.errorbar(reached.value, place, xerr=error, fmt="none", color=plots.BLACK, capsize=4)
        axis.text(
            max(reached.value, reached.high) + 1.5, place, f"{reached.value:.0f}%", va="center"
        )
    grey = "; grey: not kept" * bool(set(ASIDE) & set(names))
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.axvline(100, color=plots.BLACK, linestyle="--", marker="")
    axis.set(
        xlabel="share of the machine's limit, % (lines: 95% intervals)" + grey,
        title=title,
        xlim=(0, 105),
    )
    alt = "; ".join(f"{name} {reached}" for name, reached in zip(names, shares))
    plots.show(figure, alt=alt, keep=results, watched=figures[names[0]].contention)


draw_shares([name for name in SUSPECTS if name in fixes], fixes, "One suspect at a time")

# %%
results.answer(3, "Which suspects were guilty on your machine, and which were not?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# A suspect is guilty if changing it gains speed, with an interval that excludes 1. Normalisation and precision usually
# gain the most. The batch and the pages are judged by the same test, even if they gain little. NCHW costs time only if
# somebody set it, too many threads mainly under a quota, and the number of concurrent operations only if the default
# loses.
#
# </details>
#
# ## 7 · How close is the limit? {read 4, do 7}
#
# The best step still falls short of the limit. Which kind of work should be improved next? Each needs a minimum number
# of operations, and must move each of its tensors at least once. A normalisation with its ReLU moves five tensors of
# its size, since it reads one and writes one forward, and reads two and writes one backward. But the statistics come
# first, so a tensor larger than the cache is read again. Then up to eight are moved, and the saving is smaller.


# %%
def passes(layer):
    """How many tensors of its output's size a layer moves in a training step, at least."""
    if isinstance(layer, keras.layers.BatchNormalization) or layer.name.endswith("_out"):
        return 5  # "_out" is the ReLU after a sum; other ReLUs are computed with their norm
    return 6 if isinstance(layer, keras.layers.Add) else 0


needed = defaultdict(lambda: np.zeros(2))  # GFLOP and GB, by kind of work
BYTES = 2 if half_name == "bfloat16" else 4  # of a number in the best step
for layer in model.layers:
    numbers = batch * math.prod(layer.output.shape[1:])
    if not isinstance(layer, keras.layers.Conv2D):
        needed[KIND[layer.name]] += 0, passes(layer) * numbers * BYTES / 1e9
        continue
    for name in ("forward", *PASSES.values()):  # each pass moves an input and an output
        if name != "gradient of input" or layer.name != "conv1_conv":  # exercise 1
            moved = numbers + batch * math.prod(layer.input.shape[1:])
            work_done = batch * FORWARD[layer.name] / 1e9, moved * BYTES / 1e9
            needed[f"convolution: {name}"] += work_done
needed["update"] += 0, 12 * model.count_params() / 1e9  # weight and gradient read, weight written
if half_name == "bfloat16":  # 4 bytes to 2, and gradients back
    needed["conversion"] += 0, 12 * model.count_params() / 1e9

best = {name: ms for name, ms in ledgers["best"].items() if name != "unaccounted"}
kinds = {name: (ms, *map(float, needed[name])) for name, ms in best.items()}
pd.DataFrame(kinds, index=["ms", "GFLOP", "GB"]).T.round(2)

# %% [markdown]
# ### Exercise 4 · What to improve first
#
# Write `what_first(kinds, step_ms, peak, bandwidth)`. `kinds` is a dict as above. For each kind of work, it holds the
# milliseconds, the GFLOP and the GB. `step_ms` is the time of the whole step, `peak` is in GFLOP/s, and `bandwidth` in
# GB/s. Return a list of tuples `(name, ms)`, the largest first:
#
# - for each kind, the milliseconds that it would save at its limit. The limit is the longer of its operations' time at
#   the peak and its bytes' time at the bandwidth;
# - `("unaccounted", ms)`, the absolute difference between the step's time and the sum of the kinds' times.
#
# **Leave out what comes after** `"unaccounted"`, because you can't rank a saving that is smaller than what you can't
# explain.


# %%
def what_first(kinds, step_ms, peak, bandwidth):
    """The ms that each kind could save, the largest first, down to what is unaccounted for."""
    ### BEGIN SOLUTION
    savings = {
        name: ms - 1000 * max(gflop / peak, gbyte / bandwidth)
        for name, (ms, gflop, gbyte) in kinds.items()
    }
    unaccounted = abs(step_ms - sum(ms for ms, _, _ in kinds.values()))
    larger = {name: saving for name, saving in savings.items() if saving > unaccounted}
    ranked = sorted(larger.items(), key=lambda item: item[1], reverse=True)
    return [*ranked, ("unaccounted", unaccounted)]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
what_first = check(4, what_first)

# %%
peak, memory = fixes["limit"].value, replace(fixes["memory"], unit="GB/s")
print(f"The step: {steps_ms['best']:,.0f} ms in the profile, ", end="")
print(f"{median(run['ms'] for run in runs[half_name]):,.0f} ms in section 6.")
print(f"Peak: {peak:,.0f} GFLOP/s. Memory: {memory}")
for bandwidth in (memory.low, memory.high):  # both ends of its interval
    least = sum(1000 * max(flop / peak, gbyte / bandwidth) for _, flop, gbyte in kinds.values())
    print(f"With {bandwidth:.0f} GB/s, all kinds at their limits would take {least:.0f} ms.")
    for name, ms in what_first(kinds, steps_ms["best"], peak, bandwidth):
        print(f"  {name:32} {float(ms):6.0f} ms")

# %%
results.answer(4, "What would you work on next, and how much could it bring?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# The row that comes first in both lists, unless memory varied too much to decide. But a second profile can move a row
# by more than *unaccounted*. The profiled step runs one operation at a time, so its time differs from section 6's. To
# see a row's effect, subtract its saving from the step, and divide the step by the result. Fusion can do more, as it
# lowers the limit itself.
#
# </details>
#
# ## 8 · TensorFlow or PyTorch? {read 5, wait 0.1}
#
# PyTorch calls oneDNN for its convolutions too. By default, it runs each operation as Python reaches it (*eager*), and
# `torch.compile` combines many into larger ones. So compare eager with eager, and compiled with compiled, each in its
# fastest precision and with the better of two batch sizes.
#
# PyTorch uses [**OpenMP**](../docs/learn/glossary.md#openmp) threads. Installed with pip, it comes with GNU's library,
# `libgomp`. Its waiting threads *spin* for a while, so that they can continue immediately, and keep their cores busy.
# `OMP_WAIT_POLICY=passive` makes them sleep. `KMP_BLOCKTIME` and `KMP_AFFINITY` belong to Intel's `libiomp5`, and do
# nothing unless it is preloaded.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How fast is compiled PyTorch, compared with TensorFlow's graph? And how fast is it if waiting threads
# sleep instead of spinning?
#
# </div>

# %%
results.guess(9, "PyTorch vs TensorFlow, both compiled", ..., unit="×")

# %%
results.guess(10, "sleeping threads vs spinning ones", ..., unit="×")

# %% tags=["background"]
if NO_TORCH:
    race = recorded("03-torch").figures
else:
    race = comparing.figures()
    print("PyTorch's OpenMP:", *openmp)
    record("03-torch", race, QUICK)


def faster(*names):
    """The fastest of these names in the race, each with two sizes of the batch."""
    return max(
        (n + end for n in names for end in ("", ", larger batch")), key=lambda n: race[n].value
    )


eager, compiled = faster("PyTorch, eager"), faster("PyTorch, compiled")
eager_ratio = reveal(eager, faster("TensorFlow, eager"), race)
compiled_ratio = reveal(compiled, faster("TensorFlow, graph"), race)
results.compare_guess(9, compiled_ratio)
reveal(compiled, eager, race)
reveal(faster("PyTorch, eager", "PyTorch, compiled"), faster("TensorFlow, graph"), race)
results.compare_guess(10, reveal("PyTorch, compiled, sleep", "PyTorch, compiled", race))

# %%
draw_shares([name for name in race if name != "limit"], race, "Two frameworks on the same cores")

# %% [markdown]
# **What explains it?** `torch.compile` removes Python's calls, and fuses the operations between convolutions. oneDNN
# still computes the convolutions, and the compiler writes the fused code, which isn't always faster than the kernels
# that it replaces.
#
# Waking a thread takes tens of microseconds, and section 5's log has a few hundred primitives in a step. Multiply the
# two, and compare the result with the time of a step. A larger difference has a different cause. Threads should sleep
# where other work needs the cores, as with several ranks on a node.
#
# Don't trust a ratio close to 1, as the faster batch size was chosen in the same rounds. A wide interval shows that
# launches differ.
#
# The next lines compare the default with the best.

# %%
kept = [name for name in fixes if name not in (*ASIDE, "limit", "memory")]
best_of = {
    "TensorFlow": max(kept, key=lambda name: fixes[name].value),
    "PyTorch": faster("PyTorch, eager", "PyTorch, compiled"),
}
start = "many threads" if machine.quota else "default"
rows = {
    "TensorFlow": (fixes, start, best_of["TensorFlow"]),
    "PyTorch": (race, "PyTorch, default", best_of["PyTorch"]),
}
gains = {}
for framework, (figures, first, last) in rows.items():
    gains[framework] = replace(
        compare(figures[last], figures[first]),
        of=f"{figures[first].value:.1f} → {figures[last].value:.1f} images/s",
    )
    ends = [share(figures[name], per_image(figures["limit"])) for name in (first, last)]
    print(f"{framework}: {gains[framework]}; from {ends[0]} to {ends[1]} of the limit")

# %%
results.answer(5, "What would you change in your own training script tomorrow?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# The changes whose rows were significant on the machine that you train on, usually the precision and, in Keras 3, the
# normalisation. Check that your loss falls as before, which random images can't show. Set the number of threads in a
# container.
#
# </details>
#
# ## 9 · What was published {read 5, optional}
#
# Two reports prompted this lab. In 2019, an Intel talk showed `tf_cnn_benchmarks` with batch 16 at 3.84 images/s by
# default and 17.69 with Intel's library (4.6×). A walk-through on a rented machine (two nine-core sockets, batch 128)
# gave these figures in 2018:
#
# | setting, published 2018 | images/s |
# | --- | --- |
# | default, NHWC | 5.48 |
# | Intel's build, `KMP_AFFINITY`, `KMP_BLOCKTIME=1`, 18 OpenMP and intra-op threads, 2 inter-op | 33.62 (6.14×) |
# | the same with `numactl -i all`, and NCHW | 34.18 (6.24×) |
# | memory bound to one node (`-p 1` or `-m 1`) | about 23.6 |
#
# Those cores had AVX2, with 16 multiplications and 16 additions per cycle, at 2.9 GHz.

# %% tags=["nbval-check-output"]
paper = 18 * 32 * 2.9
for what, images in {"default": 5.48, "Intel's build": 33.62}.items():
    done = images * gflop
    print(f"{what}: {done:.0f} of {paper:,.0f} GFLOP/s on paper, {done / paper:.0%}")

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Timing and what goes wrong**
#
# Start both background measurements in the first minute, then explain. They need a quiet machine, and about 27 minutes.
# With measuring slots or little memory, the lab shows recorded figures instead. PyTorch is optional (`./lab setup
# --torch`, 1 GB). Without it, section 8 shows recorded figures, too. If time is short, skip sections 4 and 9.
#
# *Busy.* If a row is marked, restart section 1's measurements after the lesson.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Other machines**
#
# - *AVX2 only, or AVX-512 without BF16.* The precision row shows a recording, and the limit is float32's.
# - *AMX.* The limit is many times float32's. Shares are small, and section 7 ranks norms and sums first.
# - *Many cores, two nodes.* The batch grows with the cores. Fixed work and single-threaded parts matter more.
#   TensorFlow's threads don't know about nodes, so expect a lower share.
# - *Arm.* There is no bfloat16 row.
#
# </div>

# %% [markdown]
# ## Questions {read 1}
#
# 1. How do you prove that TensorFlow uses oneDNN?
# 2. When would you set `KMP_BLOCKTIME` to 0?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **Answers.** 1. With `ONEDNN_VERBOSE=1`, or `_Mkl` in the profile. 2. If several ranks share a node's cores.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Ask for the share of the limit.
# - Keep a ledger that balances, and rank nothing below what it can't explain.
# - Change one thing at a time, forecast it, and explain each miss.
# - Advice has a date and a library. Measure it again.


# %% jupyter={"source_hidden": true}
def closing(name, figures, published=""):
    """The row of a variant: its speed, its limit, and the published figure."""
    reached = share(figures[name], per_image(figures["limit"]))
    label = name if "PyTorch" in name else f"TensorFlow, {name}"
    return label, published, figures[name], f"{per_image(figures['limit'])}: {reached}"


results.step("norm", norm_gain, share=share(fixes["fused norm"], per_image(fixes["limit"])).value)
results.step(
    "threads", threads_gain, share=share(fixes["one at a time"], per_image(fixes["limit"])).value
)
results.step(
    "batch", batch_gain, share=share(fixes["larger batch"], per_image(fixes["limit"])).value
)
if BF16:
    results.step(
        "precision", precision_gain, share=share(fixes["bfloat16"], per_image(fixes["limit"])).value
    )
else:
    results.step("precision", "not here: no convolutions in bfloat16")
results.table(
    "ResNet-50, training",
    [
        closing(start, fixes, "3.84 images/s (2019, batch 16)"),
        closing(best_of["TensorFlow"], fixes, "17.69 images/s (2019, batch 16)"),
        ("TensorFlow, default → best", "6.24× (2018, batch 128)", gains["TensorFlow"], ""),
        closing(best_of["PyTorch"], race),
        ("PyTorch, default → best", "", gains["PyTorch"], ""),
        ("PyTorch vs TensorFlow, eager", "", eager_ratio, ""),
        ("PyTorch vs TensorFlow, compiled", "", compiled_ratio, ""),
    ],
)

# %% [markdown]
# Published: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (the source does not name
# the machine); *6x training speedup using intel-tensorflow, OMP-settings and numactl*, 2018, on an E5-2666 v3.
#
# Next: [lab 04](04_fewer_bits.ipynb) uses fewer bits.
