# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 08 · ResNet-50 on a cluster
#
# In 2020, a cluster's guide trained ResNet-50 on 4 GPUs in four hours and on 16 in one. On 32 it saw *no speedup*, and
# left the reason to its readers.
#
# **You will** read that recipe, submit it to Slurm, watch it, stop it, and resume it. Then you will put the cluster's
# published figures into a model, to see what can and what cannot have stopped it at 16 GPUs.
#
# **Time** {minutes}
#
# **Two parts** Sections 1 to 7 are the core: run the recipe, and predict its speed. Sections 8 to 12 are optional, for
# another session: measure what scaling costs on nodes that are joined by wires, and what larger steps cost in accuracy.
# They need the cells of sections 1 to 7, but not their exercises.
#
# **Connects to** lab 03, which makes one process of ResNet-50 fast; lab 04, where small gradients vanish in 16 bits and
# loss scaling saves them; lab 06, which builds the all-reduce and its model; and lab 07, which makes a script
# distributed.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("08", globals())

# %%
import itertools
import json
import math
import os
import re
import shlex
import shutil
import time

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Code

from labkit.data import synthetic
from labkit.display import ladder, plots
from labkit.display.measured import Measured
from labkit.mpi import run_ranks
from labkit.slurm import (
    NotStarted,
    RankJob,
    find_slurm,
    slurm_command,
    start_slurm,
    stop_slurm,
    submit_job,
    watch_nodes,
)
from labkit.system import load, statistics
from labkit.system.errors import LabError
from labkit.system.paths import ENV, ROOT
from labkit.testbed import Testbed, obstacle
from labkit.train import log

cores = machine.usable_cores

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
TRAIN, VALIDATION = (160, 50) if QUICK else (2_000, 500)  # images
READ_ROUNDS, READ_BATCHES = (1, 5) if QUICK else (5, 12)  # section 4
EPOCHS, BATCH = (2, 64) if QUICK else (10, 64)  # section 5, and images in a step
TRAININGS = 1 if QUICK else 2  # on one node, and on two
LOG_EVERY, EVALUATE_EVERY = (2, 0) if QUICK else (10, 5)  # steps, and epochs
TOO_FAR_STEPS = 0 if QUICK else 80  # with the rate of 1,024 workers
STEPS = 12 if QUICK else 48  # section 6
SCALING_ROUNDS = 1 if QUICK else 5  # section 8: launches
STEP_ROUNDS, STEP_SECONDS = (1, 0.2) if QUICK else (5, 0.4)
STORAGE_TRAINERS = 1 if QUICK else 2 if cores < 4 else 3  # section 9: nodes that train, at most
STORAGE_ROUNDS = 1 if QUICK else 5
# Section 10: images and batches of each of 2 nodes in a step; how long, and epochs of warm-up.
LARGE_STEPS = {
    "500 images a step, as many epochs": (125, 2, (EPOCHS, "epoch", 4)),
    "control: 64 images, as few steps": (32, 1, (EPOCHS * TRAIN // 500, "batch", 4 * 64 / 500)),
}
LARGE_STEPS = {} if QUICK else LARGE_STEPS

# %% [markdown]
# ## 1 · Which cluster?
#
# On a cluster you do not start programs, you **submit** [**jobs**](../docs/glossary.md#job). A
# [**scheduler**](../docs/glossary.md#scheduler) such as [**Slurm**](../docs/glossary.md#slurm) keeps a queue of them.
# It gives each job its [**nodes**](../docs/glossary.md#node) when they are free, and takes them back when the job's
# time limit is over.
#
# If this machine belongs to such a cluster, the lab uses that cluster. If not, the lab starts a real Slurm here, whose
# *nodes* are shares of this machine's cores. The commands are the same. Where this machine allows it, the nodes are
# joined by wires that carry 1 Gbit/s each, and by nothing else; if not, by the machine's memory. This small Slurm is
# yours alone: other users of this machine cannot submit jobs to it or cancel yours. (In a terminal,
# `./lab cluster up --network "1 Gbit/s"` starts it.)

# %%
RATE = 1e9  # bit/s, of the wires between nodes
MIN_RATE = 1e6  # of wires here
PAYLOAD = 1448 / 1514  # of a packet on Ethernet, what is not headers


def written(rate):
    """Return a rate in bit/s as people write it."""
    return f"{rate / 1e9:.3g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.3g} Mbit/s"


no_wires = obstacle()
if no_wires:
    print(f"No wires between nodes here: {no_wires}")
slurm, started = find_slurm(), False
if slurm is None:
    try:
        slurm = start_slurm(
            nodes=4 if cores >= 4 else 2,
            until=os.getpid(),  # it ends with this notebook's kernel
            network=None if no_wires else RATE,
        )
        started = True
    except LabError as error:
        print(f"No Slurm: {error}")
elif slurm.nodes < 2:
    print("The cluster has one node only.")
    slurm = None
if slurm:
    os.environ.update(slurm.variables)  # where sbatch, squeue and the others find it
    kind = "a cluster" if slurm.kind == "real" else "a small Slurm on this machine"
    print(f"{kind}: {slurm.nodes} nodes with {slurm.cpus_per_node} CPUs each")
    between = "What is between the nodes is the cluster's, or this machine's memory."
    print(slurm.network or between)
    print(slurm_command("sinfo"))
else:
    print("The lab goes on with ranks of this machine in place of nodes.")
nodes = min(slurm.nodes, 4) if slurm and slurm.kind == "own" else 2 if slurm or cores < 4 else 4
NODE = "node" if slurm else "rank"
counts = [n for n in (1, 2, 4) if n <= nodes]

# %% [markdown]
# A **job script** is a shell script. Its `#SBATCH` lines say what the job needs. The script runs once, on the first of
# the job's nodes; `srun` in it starts a command on all of them, as many [**ranks**](../docs/glossary.md#rank) as the
# job asked for.

# %%
(work / "hello.sbatch").write_text("""\
#!/bin/bash
#SBATCH --job-name=hello
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:02:00
echo "This line comes from one node."
srun bash -c 'echo "Rank $SLURM_PROCID of $SLURM_NTASKS: node $SLURMD_NODENAME, $(nproc) CPUs."'
""")
Code(filename=work / "hello.sbatch", language="bash")

# %% [markdown]
# Slurm has a command for each thing you do with a job: `sbatch` submits it, `squeue` shows its state, `scancel` cancels
# it. The cell below submits the script and waits. If you interrupt a cell that waits for a job, the job is cancelled
# too. (The first command with a script is printed in full, later ones without what they have in common with the last.)


# %% jupyter={"source_hidden": true}
def difference(args, last):
    """Return the end of a job's arguments, from the first flag on that the last job's differ in."""
    both = min(len(args), len(last))
    start = next((n for n in range(both) if args[n] != last[n]), both)
    while 0 < start < len(args) and not args[start].startswith("--"):
        start -= 1
    return args[start:]


# %%
submitted = {}  # the last arguments of each script


def submit(script, *args, nodes, name):
    """Submit a job script and return the job. What the job prints goes to work/NAME.log."""
    output, script, args = work / f"{name}.log", os.path.relpath(script), [*map(str, args)]
    command = [
        "sbatch",
        "--parsable",
        f"--nodes={nodes}",
        "--time=00:15:00",
        f"--output={output}",
    ]
    again = script in submitted
    if again:
        new = difference(args, submitted[script])
        print(f"$ sbatch … --nodes={nodes} … {script} …", shlex.join(new), flush=True)
    submitted[script] = args
    # KIT tells the script where the training program is.
    env = {"KIT": ROOT}
    return submit_job(slurm, *command, script, *args, output=output, env=env, show=not again)


if slurm:
    try:
        hello = submit(work / "hello.sbatch", nodes=2, name="hello")
        print(slurm_command("squeue", f"--jobs={hello.number}"))
        hello.wait(on_state=print)
        print(hello.read_output())
    except NotStarted as reason:
        print(reason)
        slurm, NODE = None, "rank"  # the lab continues with ranks of this machine

# %% [markdown]
# And this is how to cancel a job. This one waits in the queue because of `--hold`.

# %%
if slurm:
    held = slurm_command("sbatch", "--parsable", "--hold", work / "hello.sbatch")
    held = held.partition(";")[0]
    print(slurm_command("squeue", f"--jobs={held}"))
    slurm_command("scancel", held)

# %% [markdown]
# ## 2 · The recipe
#
# In 2020, the guide of Bede, a GPU cluster of British universities, showed how to train ResNet-50 on ImageNet. The kit
# has a program that takes all the flags of the guide's command line, written for CPUs and for any number of ranks, that
# is, any [**world size**](../docs/glossary.md#world-size): `labkit/train`. Pasted behind `python -m labkit.train`, the
# guide's flags run here too; only the two paths differ. (256 images of ResNet-50 at a time need a node with much
# memory, so this lab takes smaller values.) On Bede, the program ran under IBM's DDL, which is no longer maintained;
# here it uses Horovod, whose last release is of 2023. The recipe and the job script would be the same with PyTorch's
# `DistributedDataParallel`; lab 07 says which call stands for which, and [lab 11](11_after_the_all_reduce.ipynb) does
# it. This is what the flags are for:
#
# | flag | value on Bede | what it is for | here, on the small set |
# | --- | --- | --- | --- |
# | `--mode` | `train_and_evaluate` | train, then report top-1 and top-5 on held-out images | the same |
# | `--iter_unit`, `--num_iter` | `epoch`, 50 | how long to train | 10 epochs |
# | `--batch_size` | 256 per GPU | images of one rank in a step: what fills its memory | 64 in all |
# | `--warmup_steps` | 100 | first steps that the *speed* leaves out; nothing to do with the rate | 2 |
# | `--lr_init` | 0.256 | learning rate for 256 images a step; grows with the ranks | 0.8 |
# | `--lr_warmup_epochs` | 8 | the rate rises from 0, as the first gradients are large and unsteady | 2 |
# | `--use_cosine_lr` | on | then it falls as half a cosine: large steps first, small ones last | on |
# | `--label_smoothing`, `--momentum`, `--weight_decay` | 0.1; 0.875; 1/32,768 | see below | 0.1; 0.875; 1/10,000 |
# | `--precision` | `fp16` | half the bytes, and more speed on its GPUs | `fp32` |
# | `--use_static_loss_scaling`, `--loss_scale` | on, 1,024 | gradients times 1,024 don't vanish (lab 04) | off |
# | `--use_xla` | on | XLA compiles forward and backward pass; on CPUs it cannot compile Horovod's operations | off |
# | `--data_dir` | ImageNet as TFRecords | the images, on a file system that all nodes see | synthetic images |
# | `--results_dir` | `run_results` | log and checkpoints, also where all nodes see them | `work/…` |
#
# Label smoothing asks for 90% certainty, not 100%; momentum steps along a mean of past gradients; weight decay pulls
# weights towards 0. The glossary has more about [**batch size**](../docs/glossary.md#batch-size),
# [**warm-up**](../docs/glossary.md#warm-up), [**cosine schedule**](../docs/glossary.md#cosine-schedule), [**label
# smoothing**](../docs/glossary.md#label-smoothing), [**weight decay**](../docs/glossary.md#weight-decay), [**mixed
# precision**](../docs/glossary.md#mixed-precision), [**loss scaling**](../docs/glossary.md#loss-scaling), and [**top-1
# and top-5**](../docs/glossary.md#top-k).
#
# `fp16` is for hardware that computes in it: GPUs, and Intel's server CPUs since 2023 (AVX512-FP16). Other CPUs convert
# the numbers back and forth, at a fraction of the speed. `bf16` is what more CPUs have. XLA on a CPU is mostly slower
# than oneDNN's kernels. So both are off here.
#
# The heart of the program is one training step. It is what you wrote in lab 07, plus accumulation, loss scaling and
# compression. Here it is, as the program has it in `labkit/train/loop.py`. Only one line in it talks to other ranks:
# find it.

# %%
import horovod.tensorflow as hvd
import tensorflow as tf

from labkit.models.losses import cross_entropy


def make_train_step(config, network, optimizer):
    """Return the function that takes one step.

    `accumulate` batches and a rate go in, their cross-entropy comes out. The gradient is that of
    one batch as large as all of theirs on all ranks; batch norms see one batch at a time.
    """
    scale, share = config.static_loss_scale, 1 / config.accumulate
    compression = getattr(hvd.Compression, config.compression)
    sums = (
        [tf.Variable(tf.zeros(w.shape), trainable=False) for w in network.weights]
        if config.accumulate > 1
        else []
    )

    def backward(images, labels):
        with tf.GradientTape() as tape:
            loss = cross_entropy(network(images, training=True), labels, config.label_smoothing)
            scaled = scale * loss  # otherwise small gradients vanish in 16 bits
        gradients = tape.gradient(scaled, network.weights)
        return loss, [g * (share / scale) for g in gradients]

    if (
        config.use_xla
    ):  # it compiles all but Horovod's operations: the gradients leave it all at once
        backward = tf.function(backward, autograph=False, jit_compile=True)

    @tf.function(autograph=False)  # no loop or if to translate; it would search Horovod for seconds
    def accumulate(images, labels):
        loss, gradients = backward(images, labels)
        for total, g in zip(sums, gradients, strict=True):
            total.assign_add(g)
        return loss

    @tf.function(autograph=False)
    def update(images, labels, rate):
        loss, gradients = backward(images, labels)
        if sums:
            gradients = [total + g for total, g in zip(sums, gradients, strict=True)]
        # Horovod: average each gradient over all ranks, as soon as it is there, while those of
        # earlier layers are computed.
        gradients = [hvd.allreduce(g, op=hvd.Average, compression=compression) for g in gradients]
        optimizer.apply(gradients, rate)
        for total in sums:
            total.assign(tf.zeros_like(total))
        return loss

    def step(batches, rate):
        losses = [accumulate(*next(batches)) for _ in range(config.accumulate - 1)]
        losses.append(update(*next(batches), tf.constant(rate, tf.float32)))
        return share * tf.add_n(losses)

    return step


# %% [markdown]
# The program marks each place where it has to know about other ranks. The next cell prints them all.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** All ranks have the same weights. Why, then, does the program average the moving averages of the batch
# norms over the ranks before it saves them?
#
# </div>

# %%
program = (ROOT / "labkit" / "train" / "loop.py").read_text()
for line in re.findall(r"# Horovod: .*", program):
    print(line)

# %% [markdown]
# ## 3 · The learning rate
#
# Three rules give the [**learning rate**](../docs/glossary.md#learning-rate) of a step:
#
# - The **linear scaling rule**: `lr_init` is for 256 images a step. With k times as many images, there are k times
#   fewer steps, so each step goes k times as far (Goyal et al. 2017, [arXiv
#   1706.02677](https://arxiv.org/abs/1706.02677)). The result is the *peak*. (Others multiply by the square root of k,
#   which is more cautious. No rule holds for all sizes.)
# - The **warm-up**: in the first `warmup` steps the rate rises in a straight line, from 0 at step 0 to the peak.
# - The **cosine schedule**: from there the rate falls as half a cosine, to 0 at step `steps`.
#
# As code:


# %%
def learning_rate(step, steps, warmup, batch, lr_init):
    """Return the rate of a step, 0 to steps - 1, with `batch` images a step.

    It is the program's, with --use_cosine_lr.
    """
    peak = lr_init * batch / 256
    if step < warmup:
        return peak * step / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


# %% [markdown]
# What happens to the recipe when the number of workers grows? Each worker has 256 images a step, as on Bede.

# %%
IMAGENET, BEDE_EPOCHS, BEDE_WARMUP, BEDE_BATCH = 1_281_167, 50, 8, 256
schedules = {}
for workers in (4, 16, 32, 1024):
    batch = BEDE_BATCH * workers
    steps_per_epoch = IMAGENET / batch
    steps, warmup = math.ceil(BEDE_EPOCHS * steps_per_epoch), BEDE_WARMUP * steps_per_epoch
    rates = [learning_rate(step, steps, warmup, batch, 0.256) for step in range(steps)]
    schedules[workers] = np.arange(steps) / steps_per_epoch, rates
    print(f"{workers:>5,} workers: {batch:>7,} images a step, {steps:>6,} steps, ", end="")
    print(f"peak {max(rates):.4g}")

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 2, figsize=(13, 4.6), sharey=True)
for workers in (4, 16, 32):
    epochs, rates = schedules[workers]
    label, every = f"{workers} workers: peak {max(rates):.3g}", len(rates) // 8
    axes[0].plot(epochs, rates, label=label, markevery=every)
    axes[1].plot(rates, label=label, markevery=every)
axes[0].set(xlabel="epoch", ylabel="learning rate", ylim=(0, None))
axes[1].set(xlabel="step", xlim=(0, 64_000))
axes[0].legend()
figure.suptitle("One recipe, more and more workers")
plots.show(
    figure,
    alt="Learning rate against epoch, left, and against step, right, for 4, 16 and 32 workers. "
    "Each rises in a straight line for 8 epochs and falls as half a cosine to 0 at epoch 50, "
    "with peaks of 1.02, 4.1 and 8.2. Against steps, 32 workers are done after 7,820, and "
    "4 workers after 62,557.",
)

# %% [markdown]
# Plotted against epochs, all curves have the same shape. Counted in steps they do not: the more workers, the fewer
# steps, and the more each one changes. With 1,024 workers there are five steps an epoch, and a peak of 262.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Does the small network of this lab learn anything with that peak, after the same warm-up? Section 5
# tries.
#
# </div>

# %%
results.guess(1, "training with a peak rate of 262", ..., choices=("it learns", "it fails"))

# %% [markdown]
# ### Exercise 1 · Flags that keep the limits
#
# On your cluster, three limits are known. A job may take `hours`. With a rate of more than `max_rate`, this network's
# loss was seen to explode. And it exploded in the warm-up, too, when the rate rose by more than `max_rise` from one
# step to the next. Which flags does the run get?
#
# Write `choose_flags(images, batch, speed, hours, max_rate, max_rise)`. `images` is the size of the training set,
# `batch` the number of images in a step of all ranks, and `speed` is in images/s. Return a tuple of three numbers, ints
# or floats, for `--num_iter` (in epochs), `--lr_init` and `--lr_warmup_epochs`, so that:
#
# - the run has as many whole epochs as fit into its hours, 0 if not one does (count the training alone); the schedule
#   must be over by then, as a cosine that is cut off ends with large steps;
# - the peak is the one of Bede's `--lr_init=0.256` by the linear rule, or `max_rate` where that is less;
# - the warm-up is as short as `max_rise` admits, however long that is. It need not be a whole number of epochs, and no
#   rounding is needed.
#
# The program multiplies `--lr_init` by `batch / 256`, and counts `--lr_warmup_epochs` in epochs. For example,
# `choose_flags(1_000_000, 1024, 4_500, 4, 10, 0.001)` is (64, 0.256, 1.048576): 64.8 epochs fit into 4 hours; the peak
# would be 1.024, below the limit; and to rise so far by 0.001 a step takes 1,024 steps, 1.048576 epochs.


# %%
def choose_flags(images, batch, speed, hours, max_rate, max_rise):
    """Return num_iter, lr_init and lr_warmup_epochs of the run that keeps the three limits."""
    ### BEGIN SOLUTION
    epochs = int(hours * 3600 * speed / images)
    peak = min(0.256 * batch / 256, max_rate)
    warmup_steps = peak / max_rise  # the rate rises by peak / warmup_steps a step
    return epochs, peak * 256 / batch, warmup_steps * batch / images
    ### END SOLUTION


# %% tags=["nbval-check-output"]
choose_flags = check(1, choose_flags)

# %% [markdown]
# The next cell asks for three published runs, and for 1,024 workers with 64 times the speed of 16 GPUs. **The limits of
# the rate are our assumption**: a peak of 10, and a rise of 0.0017 a step, about that of Bede's run on 16 GPUs. So is
# the batch of the third run.

# %% tags=["nbval-check-output"]
for name, batch, speed, hours in (
    ("Bede, 4 GPUs, 4 hours", 4 * BEDE_BATCH, 4_500, 4),
    ("Bede, 16 GPUs, 1 hour", 16 * BEDE_BATCH, 18_000, 1),
    ("8 V100, half an hour", 8 * BEDE_BATCH, 5_800, 0.5),
    ("1,024 workers, 1 minute", 1024 * BEDE_BATCH, 64 * 18_000, 1 / 60),
):
    epochs, lr_init, warmup = choose_flags(IMAGENET, batch, speed, hours, 10, 0.0017)
    never = "   longer than the run" if warmup > epochs else ""
    print(f"{name:24} --num_iter={epochs:<3} --lr_init={lr_init:.3f} ", end="")
    print(f"--lr_warmup_epochs={warmup:.1f}{never}")

# %% [markdown]
# With 1,024 workers, these limits leave no schedule at all: with five steps an epoch, the run is over before the rate
# has risen. That is one reason why adding workers needs more than the linear rule.
#
# And look at the half hour on 8 V100: whoever published 5,800 images/s for it also published ten epochs in those 30
# minutes. Can both be right? Question 8 has more of these figures.
#
# ## 4 · The images, and who reads which
#
# ImageNet does not fit into a workshop: it has 140 GB, and terms to sign. So the kit draws a small set of synthetic
# images in ten classes, and writes it in ImageNet's own layout, as files of
# [**TFRecords**](../docs/glossary.md#tfrecord). A program that reads one can read the other.

# %%
images = work / f"synthetic-{TRAIN}"
synthetic.write(images, train=TRAIN, validation=VALIDATION)
print(*sorted(file.name for file in images.iterdir()), sep=", ")

from labkit.data import tfrecords
from labkit.models import Network
from labkit.models.losses import is_kernel
from labkit.models.optimizers import trust_ratio
from labkit.train import records

index = tfrecords.index(images, "train")
pixels, labels = next(iter(records.training(index, 64, 20, least_area=0.5)))
pixels = np.clip(pixels * records.DEVIATION + records.MEAN, 0, 255).astype("uint8")

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(2, 10, figsize=(13, 3.2))
for axis, image, label in zip(axes.flat, pixels, labels.numpy()):
    axis.imshow(image)
    axis.set_title(synthetic.CLASSES[label - 1].replace(" ", "\n"), fontsize=10)
    axis.axis("off")
plots.show(
    figure,
    alt="Twenty synthetic images, cropped and mirrored as the training sees them, each with its "
    "class above it: disc, ring, square, triangle, cross, star, stripes, chequers, dots, in "
    "random colours and with noise.",
)

# %% [markdown]
# Each rank reads its own images: that is [**data parallelism**](../docs/glossary.md#data-parallelism). In lab 07 each
# rank kept a fixed share, and the remainder of the division was dropped. On a cluster that is a pity, because a
# training run should not depend on how many nodes it got today. Here is another way:
#
# - Each epoch has its own order: `order(epoch)` is a permutation of the image numbers 0 to n − 1, the same on every
#   rank.
# - Write the orders of all epochs one after the other. That is the **stream**. It has no end.
# - A step of all ranks takes the next `ranks × batch` images of the stream, and each rank takes `batch` of those.
#
# Then 2 ranks × 32 see the same images in each step as 1 rank × 64. No image is left out, and none comes twice before
# all have come once. A step may begin in one epoch and end in the next.
#
# ### Exercise 2 · Your part of the stream
#
# Write `my_images(step, rank, ranks, batch, n, order)`: the image numbers that `rank` reads in step `step`. Call
# `order(epoch)`, by position, for the epochs that the step reaches; far beyond them, there may be none yet.


# %%
def my_images(step, rank, ranks, batch, n, order):
    """Return the numbers of the `batch` images, out of n, that a rank reads in a step."""
    ### BEGIN SOLUTION
    first = (step * ranks + rank) * batch
    return [order(place // n)[place % n] for place in range(first, first + batch)]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
my_images = check(2, my_images)

# %%
orders = [np.random.default_rng(epoch).permutation(10) for epoch in range(4)]
for ranks, batch in ((1, 6), (2, 3), (3, 2)):
    print(f"{ranks} × {batch}:")
    for step in range(3):
        order = orders.__getitem__
        taken = [my_images(step, rank, ranks, batch, 10, order) for rank in range(ranks)]
        each = (" ".join(str(int(image)) for image in part) for part in taken)
        print(f"   step {step}:", " | ".join(each))

# %% [markdown]
# The program's own reader, `labkit/data/tfrecords.py`, does this too. And because a rank can enter the stream at any
# place, a training run that was interrupted resumes with exactly the image that would have been next.
#
# How many images a second does it read, decode and crop, with nothing else to do? Training should need fewer.


# %%
def pipeline_speed(folder, size, batch, batches):
    """Return the images/s that this process reads, decodes and crops, and nothing else."""
    data = iter(records.training(tfrecords.index(folder, "train"), size, batch, least_area=0.5))
    next(data)
    began = time.perf_counter()
    for _ in range(batches):
        next(data)
    return batch * batches / (time.perf_counter() - began)


def mean_of(speeds):
    """Return the mean of the speeds of some rounds, with its 95% interval."""
    mean, half = statistics.interval(np.log(np.array(speeds)))
    return tuple(float(end) for end in np.exp([mean, mean - half, mean + half]))


with load.watch("section 4") as reading_others:
    small = mean_of([pipeline_speed(images, 32, 64, READ_BATCHES) for _ in range(READ_ROUNDS)])
measured = Measured(*small, unit="images/s", digits=0)
print(f"the pipeline alone, {cores} cores, small images: {measured}")

# %% [markdown]
# ## 5 · Submit it
#
# The job script for training is `env/slurm/train.sbatch`. Its last lines start the program on every node:

# %%
script = ENV / "slurm" / "train.sbatch"
Code(data=script.read_text(), language="bash")

# %% [markdown]
# `train`, in the next cell, submits this script, follows the log of the run, and returns the log's records. Without
# Slurm, it starts the same program by `mpirun`. (`stop_at` and `signal` are for the next section.)

# %% jupyter={"source_hidden": true}
PROGRAM = ROOT / "labkit" / "train" / "__main__.py"
stopping = {}  # by run: seconds from the signal until the state was saved


def train(name, nodes, *flags, stop_at=None, signal="TERM", resume=False):
    """Train on some nodes, with log and state in work/NAME; return the log's records.

    With `stop_at`, all ranks get the signal once that step is in the log.
    """
    folder, sent, shown = work / name, None, time.time()
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
        (work / f"{name}.log").unlink(missing_ok=True)
        stopping.pop(name, None)
    flags = [*flags, "--results_dir", folder]
    if slurm:
        job = submit(script, *flags, nodes=nodes, name=name)
    else:
        job = RankJob(nodes, PROGRAM, *flags, threads=max(1, cores // max(counts)))

    def on_line(line):
        nonlocal sent, shown
        record = json.loads(line)
        if record["event"] == "train" and record["time"] > shown + 5:
            shown = record["time"]
            print(f"   step {record['step']}, cross entropy {record['cross_entropy']:.2f}")
        if record["event"] == "train" and stop_at and not sent and record["step"] >= stop_at:
            job.signal(signal)
            sent = time.monotonic()
        if record["event"] == "stop" and sent:
            stopping[name] = time.monotonic() - sent

    job.wait(folder / log.FILE_NAME, on_line, on_state=lambda state: print("  ", state))
    return log.read(folder)


def newest(name):
    """Return the newest training step in a run's log."""
    return max(record["step"] for record in log.read(work / name) if record["event"] == "train")


def speed(run):
    """Return the median images/s of a run, without what was measured first."""
    speeds = [
        r["images_per_second"] for r in run if r["event"] == "train" and r["images_per_second"]
    ]
    return float(np.median(speeds[1:] or speeds))


# %% [markdown]
# The first run has one node with 64 images a step. The second has two nodes with 32 each: **the same 64 images a
# step**, so the same training. On two cores, both together take about a minute and a half.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as fast is the run on two nodes? And do both runs reach the same accuracy, to the last
# digit?
#
# </div>

# %%
results.guess(2, "the same training, two nodes against one", ..., unit="×")

# %%
recipe = f"--model resnet8 --data_dir {images} --least_area 0.5 --log_every {LOG_EVERY} ".split()
recipe += (
    f"--lr_init 0.8 --lr_warmup_epochs {EPOCHS / 10} --use_cosine_lr --weight_decay 1e-4".split()
)

runs = {}
with watch_nodes(slurm, "section 5") as training_others:
    for n in counts[:TRAININGS]:
        each = f"--batch_size {BATCH // n} --num_iter {EPOCHS} --evaluate_every {EVALUATE_EVERY}"
        runs[n] = train(f"strong-{n}", n, *recipe, *each.split())
        last = runs[n][-1]
        print(f"   {speed(runs[n]):,.0f} images/s; top-1 {last['top1']:.1%}, ", end="")
        print(f"top-5 {last['top5']:.1%} of {last['images']} held-out images\n")
if 2 in runs:
    gain = speed(runs[2]) / speed(runs[1])
    print(f"two {NODE}s have {gain:.2f} times the images/s of one, in one round of each")
    results.compare_guess(2, Measured(gain, unit="×"))

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 3, figsize=(13, 4.3))
for (n, run), style in zip(runs.items(), ("-", "--")):
    steps = [record for record in run if record["event"] == "train"]
    epochs = [record["epoch"] for record in steps]
    name = f"{n} {NODE}{'s' * (n > 1)} × {BATCH // n} images"
    for axis, what in zip(axes, ("cross_entropy", "learning_rate", "images_per_second")):
        shown = [record[what] or math.nan for record in steps]
        axis.plot(epochs, shown, style, marker="", label=name)
for axis, what in zip(axes, ("cross entropy", "learning rate", "images/s")):
    axis.set(xlabel="epoch", ylabel=what, ylim=(0, None))
figure.suptitle("The same training, done by one and shared by two")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
plots.show(
    figure,
    alt="Cross entropy, learning rate and images/s against epoch, a line for each run. The rate "
    "rises, and falls as half a cosine. At the end, "
    + "; ".join(
        f"on {n} a cross entropy of {run[-2]['cross_entropy']:.2f}, at {speed(run):,.0f} images/s"
        for n, run in runs.items()
    )
    + ".",
    keep=results,
    watched=[training_others],
)


def tell_accuracy(name, top1, reference, images):
    """Print how far two shares of right answers are apart, and whether that is beyond chance.

    Of so many held-out images, another sample would give other shares: the standard error of
    each is √(p(1 - p) / n). Both runs were asked the same images, so this is cautious.
    """
    p = (top1 + reference) / 2
    chance = 1.96 * math.sqrt(2 * p * (1 - p) / images)
    verdict = "more than" if abs(top1 - reference) > chance else "no more than"
    points = f"{100 * (top1 - reference):+.1f} points"
    print(f"{name}: {points}, {verdict} the {100 * chance:.1f} of chance")


if len(runs) == 2:
    first, second = (run[-1] for run in runs.values())
    what = "top-1 of the second run beside the first"
    tell_accuracy(what, second["top1"], first["top1"], first["images"])

# %% [markdown]
# Both runs see the same images in the same steps. But a [**batch norm**](../docs/glossary.md#batch-normalisation) takes
# its mean and variance from the images of *its* rank, 64 or 32 of them, and sums are rounded in a different order. So
# the two cannot be equal to the last digit.
#
# Is the rate in the log the one of section 3's rules?

# %%
run = [record for record in runs[1] if record["event"] == "train"]
steps, per_epoch = run[-1]["step"], run[-1]["step"] / run[-1]["epoch"]
for record in run[:: max(1, len(run) // 6)]:
    # A record tells of the step that was just done: number 10 is step 9, counted from 0.
    rate = learning_rate(record["step"] - 1, steps, EPOCHS / 10 * per_epoch, BATCH, 0.8)
    logged = f"the log says {record['learning_rate']:.6f}"
    print(f"step {record['step']:>4}: {logged}, the rules say {rate:.6f}")
    assert math.isclose(rate, record["learning_rate"], rel_tol=1e-4, abs_tol=1e-9)

# %% [markdown]
# And section 3's question: the peak of 1,024 workers, 262, for this network, with 64 images a step. The rate rises for
# 40 steps, as many as those 8 epochs have. Guessing among ten classes has a cross entropy of ln 10 = 2.30.

# %%
if TOO_FAR_STEPS:
    far = f"--batch_size {BATCH} --num_iter {TOO_FAR_STEPS} --iter_unit batch --mode train"
    warmup = TOO_FAR_STEPS / 2 * BATCH / TRAIN  # epochs
    far += f" --lr_init {262 * 256 / BATCH} --lr_warmup_epochs {warmup}"
    try:
        reached = train("too-far", 1, *recipe, *far.split())[-1]
        print(f"cross entropy after {reached['step']} steps: {reached['cross_entropy']:.2f}")
        fails = not reached["cross_entropy"] < 0.9 * math.log(10)
    except LabError as error:  # the program ends a run whose loss is no number
        told = [line.strip() for line in str(error).splitlines() if "the loss of step" in line]
        print(told[0] if told else error)
        fails = True
    usual = next(r for r in runs[1] if r["event"] == "train" and r["step"] >= TOO_FAR_STEPS)
    print(f"section 5's run after {usual['step']} steps: {usual['cross_entropy']:.2f}")
    results.compare_guess(1, "it fails" if fails else "it learns")

# %% [markdown]
# ## 6 · Stop it
#
# Jobs end early: the time limit is reached, somebody else needs the nodes, or a node breaks. Where there is time left,
# Slurm sends **SIGTERM** to all ranks, and SIGKILL some time later. The program uses the time in between: the ranks
# agree on the step after which they stop, rank 0 saves a [**checkpoint**](../docs/glossary.md#checkpoint) (weights,
# momentum, and the batch norms' averages), and all ranks exit with status 75, which means "stopped, and all is saved".
#
# Start a run on two nodes with 64 images *each*. In the middle of it, `scancel` stops the job. Then submit exactly the
# same line again. Each of the two takes some ten seconds, most of them to start.

# %%
weak = ["--num_iter", STEPS, "--iter_unit", "batch", "--batch_size", BATCH, "--mode", "train"]
weak += ["--log_every", 5, "--checkpoint_every", 15]
with watch_nodes(slurm, "section 6") as stopped_others:
    stopped = train("weak-2", 2, *recipe, *weak, stop_at=STEPS // 3)
print(stopped[-1])

# %%
with watch_nodes(slurm, "section 6") as resumed_others:
    resumed = stopped if QUICK else train("weak-2", 2, *recipe, *weak, resume=True)
if QUICK:
    print("A quick run is not resumed.")
elif "weak-2" in stopping:
    at = next(record["step"] for record in resumed if record["event"] == "stop")
    first = next(r["step"] for r in resumed if r["event"] == "train" and r["step"] > at)
    print(f"stopped after step {at}; the first step logged after that is {first}, ", end="")
    print(f"the last one {newest('weak-2')}")
    print(f"from the signal until all was saved: {stopping['weak-2']:.2f} s, ", end="")
    writing = next(record["seconds"] for record in resumed if record["event"] == "stop")
    print(f"of which writing took {writing:.2f} s")
else:
    print("The run was over before the signal came: choose an earlier stop_at, or a larger STEPS.")

# %% [markdown]
# That was the polite way. When a node loses power, there is no warning, and everything on it is gone. What remains is
# the last checkpoint; here there is one every 15 steps. The next cell takes about 20 seconds.
#
# SIGUSR2 has the same effect as a power cut. The program does not handle this signal, so it ends every rank at once.
# (SIGKILL would do so too, but Slurm takes `scancel --signal=KILL` for a cancellation, and sends SIGTERM first.)
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The signal comes when step 40 is in the log. How many steps are lost?
#
# </div>

# %%
results.guess(3, "steps lost by a kill at step 40", ..., unit="steps")

# %%
if not QUICK:
    killed = train("killed", 2, *recipe, *weak, stop_at=40, signal="USR2")
    reached = newest("killed")  # the newest that the log knew of
    newest_state = sorted((work / "killed" / "checkpoints").glob("step-*"))[-1]
    resumed_at = int(newest_state.name.removeprefix("step-"))
    train("killed", 2, *recipe, *weak, resume=True)
    print(f"killed when step {reached} was logged; resumed after step {resumed_at}, ", end="")
    print(f"and reached step {newest('killed')}. It had to repeat {reached - resumed_at} steps.")
    results.compare_guess(3, Measured(reached - resumed_at, unit="steps", digits=0))

# %% [markdown]
# A checkpoint is written under a hidden name, and renamed when it is complete. If the power fails while one is being
# written, no harm is done: the incomplete file never gets the checkpoint's name.
#
# Two of the runs had 64 images on each node: one node in section 5, and two here. The [**scaling
# efficiency**](../docs/glossary.md#scaling-efficiency) of two nodes is their images/s, divided by twice those of one.
# One round of each says nothing about chance: section 8 measures more.


# %%
def efficiency_of(speeds):
    """Return the efficiencies, with intervals, by (way, nodes); one node is 100%."""
    ratios = statistics.ratios(speeds, ("weak", 1))
    return {
        (way, n): statistics.Ratio(*(part / n for part in ratio))
        for (way, n), ratio in ratios.items()
    }


def in_percent(share):
    """Return a share with its interval, when there is one, as a figure in per cent."""
    return Measured(*(100 * np.array(share)), "%", digits=0)


first_round = {("weak", 1): [speed(runs[1])], ("weak", 2): [speed(resumed)]}
efficiencies = efficiency_of(first_round)
one, two = (found[0] for found in first_round.values())
share = efficiencies["weak", 2].value
print(f"images/s of one {NODE}: {one:,.0f}; of two: {two:,.0f}; efficiency {share:.0%}")

# %% [markdown]
# ## 7 · Why were 32 GPUs no faster than 16?
#
# Bede's guide reports about 4,500 images/s on 4 GPUs and about 18,000 on 16: a scaling efficiency of 100%. It gives no
# figure for 32 GPUs. It says that there is *no speedup with this configuration using 32 GPUs*, and that the run's
# *basic parameters* are the reason. It does not say which ones, nor what failed to improve: images/s, or the hours to
# the result. Finding out is left to its readers, so to you.
#
# There are four possible causes. **Choose one before you read on.**
#
# | | possible cause | parameters that bear on it |
# | --- | --- | --- |
# | a | the network: 102 MB of gradients in each step | images in a step, how often they are exchanged |
# | b | reading: all GPUs read their images from one file system | where the files are, how many threads read |
# | c | the batch: 32 × 256 = 8,192 images a step, and the accuracy suffers | rate, warm-up, optimizer |
# | d | what does not shrink with more GPUs: start, evaluation, checkpoints (Amdahl's law) | how often each is done |
#
# A model of one step tells how large (a) and (b) would be. This is what happens in a step of n workers:
#
# - **Computing** takes each worker `compute` seconds. All workers compute at the same time.
# - The [**all-reduce**](../docs/glossary.md#all-reduce) is the [**ring**](../docs/glossary.md#ring) of lab 06. The
#   gradients have `gradient` bytes. Each worker cuts them into n equal parts and passes on one part at a time: n − 1
#   parts until each sum is complete somewhere, n − 1 more until everybody has all sums. A message takes `latency`
#   seconds, and its bytes travel at `bandwidth` bytes/s.
# - The all-reduce [**overlaps**](../docs/glossary.md#overlap) with computing: the last layers' gradients travel while
#   those of the first layers are still computed. The share `hidden` of the computing time can hide the exchange. The
#   step waits only for the part of the exchange that is left when the computing is over.
# - **Reading**: a shared storage needs `reading` seconds for the images of *one* worker, and serves one worker after
#   the other. Meanwhile, the workers compute and exchange for the images before these. A step cannot be shorter than
#   either.
#
# ### Exercise 3 · Predict the efficiency
#
# Write `efficiency(n, compute, gradient, latency, bandwidth, hidden, reading)`: the time of a step of one worker,
# divided by the time of a step of n workers. Each worker always has the same number of images, so this is weak scaling.
# One worker sends nothing, but it reads.


# %%
def efficiency(n, compute, gradient, latency, bandwidth, hidden=0.0, reading=0.0):
    """Return the weak-scaling efficiency of n workers, 0 to 1.

    Times are in s, the gradient in bytes, the bandwidth in bytes/s.
    """

    ### BEGIN SOLUTION
    def step(n):
        ring = 2 * (n - 1) * (latency + gradient / n / bandwidth)
        return max(compute + max(0, ring - hidden * compute), n * reading)

    return step(1) / step(n)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
efficiency = check(3, efficiency)

# %% [markdown]
# ### Bede's numbers
#
# Bede's [hardware page](https://n8cir.org.uk/bede/bede-hardware/) says what its GPUs share: a node has 4 GPUs and two
# ports of 100 Gbit/s each; between blocks of nodes, the network carries half of what the ports carry (such a network is
# called **oversubscribed**, here 2:1); and the file system reaches 10 GB/s. The first two scenarios below are this
# cluster. They are cautious: each GPU gets a quarter of its node's ports, and only half of that, as if all messages
# went to another block.
#
# The others are **what-ifs**: a slower network, a storage that is just enough for 16 GPUs, and a network of which
# messages between groups of 16 workers get a twentieth. Their limits are our inventions, to show what such a limit
# looks like. Bede's lines end at its 128 GPUs.

# %%
COMPUTE = BEDE_BATCH / (4_500 / 4)  # s a step: 256 images at a quarter of the speed of 4 GPUs
GRADIENT = 25.6e6 * 4  # bytes: ResNet-50's weights in float32
IMAGE = 110e3  # bytes of an average image of ImageNet, as JPEG
HIDDEN = 0.5  # of the computing; all of back-propagation would be about two thirds
PORTS, STORAGE = 2 * 100e9 / 8, 10e9  # bytes/s of a Bede node, and of Bede's file system
BETWEEN = PORTS / 4 / 2  # bytes/s of a GPU whose messages go to another block
BEDE_GPUS = 128  # there are no more
fast = {"gradient": GRADIENT, "latency": 2e-6, "bandwidth": 100e9 / 8, "hidden": HIDDEN}
slow = fast | {"latency": 50e-6, "bandwidth": 10e9 / 8}
bede = fast | {"bandwidth": BETWEEN, "reading": BEDE_BATCH * IMAGE / STORAGE}
scenarios = {
    "Bede as published": bede,
    "Bede, exchange never hidden": bede | {"hidden": 0.0},
    "10 Gbit/s a worker": slow,
    "10 Gbit/s, FP16 added by MPI": slow,
    "storage just enough for 16": fast | {"reading": BEDE_BATCH / 18_000},
    "20:1 beyond 16 workers": fast,
}


# %% tags=["nbval-check-output"]
def fp16_share(n):
    """Return the bytes that a worker sends of FP16 gradients, over the ring's bytes of FP32.

    For MPI: recursive doubling sends all of the array log2(n) times.
    """
    return 0.5 * math.log2(n) / (2 * (n - 1) / n) if n > 1 else 0.5


def predict(name, n):
    """Return a scenario's efficiency; a ring is as fast as its slowest link."""
    scenario = scenarios[name]
    if "FP16" in name:
        scenario = scenario | {"gradient": fp16_share(n) * GRADIENT}
    if "20:1" in name and n > 16:
        scenario = scenario | {"bandwidth": 100e9 / 8 / 20}
    return float(efficiency(n, COMPUTE, **scenario))


sizes = [2**k for k in range(11)]
curves = {
    name: {n: predict(name, n) for n in sizes if n <= BEDE_GPUS or not name.startswith("Bede")}
    for name in scenarios
}
print(f"{'efficiency, by workers':30}" + "".join(f"{n:>7,}" for n in sizes[2:]))
for name, values in curves.items():
    print(f"{name:30}" + "".join(f"{values[n]:>7.0%}" for n in sizes[2:] if n in values))

# %% jupyter={"source_hidden": true}
figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.6))
styles = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
fine = sorted({round(2 ** (k / 4)) for k in range(41)})
for name, style in zip(curves, styles):
    shown = [n for n in fine if n <= max(curves[name])]
    values = [predict(name, n) for n in shown]
    left.plot(shown, [100 * value for value in values], linestyle=style, marker="", label=name)
    speeds = [n * value * BEDE_BATCH / COMPUTE for n, value in zip(shown, values)]
    right.plot(shown, speeds, linestyle=style, marker="")
left.plot([4, 16], [100, 100], "s", color=plots.BLACK, label="published, Bede: 4, 16 GPUs")
left.plot(256, 90, "P", color=plots.BLACK, markersize=11, label="published, Goyal et al.: 256 GPUs")
label = "published, Horovod: 512 GPUs, other CNNs"
left.plot([512, 512], [90, 68], "D", color=plots.BLACK, label=label)
right.plot([4, 16], [4_500, 18_000], "s", color=plots.BLACK)
left.set(xscale="log", xlabel="workers", ylabel="efficiency (%)", ylim=(0, 108))
right.set(xscale="log", yscale="log", xlabel="workers", ylabel="images/s")
for axis in (left, right):
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes[::2], [f"{n:,}" for n in sizes[::2]])
figure.suptitle("Predicted from 1 to 1,024 workers, beside what was published")
figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=11)
listed = "; ".join(
    f"{name}: {values[32]:.0%} at 32, {[*values.values()][-1]:.0%} at {[*values][-1]:,}"
    for name, values in curves.items()
)
plots.show(
    figure,
    alt=f"Left, efficiency against workers from 1 to 1,024 in six scenarios: {listed}. "
    "Published: 100% at 16 GPUs; 90% at 256; 90% and 68% at 512. Right, images per second: the "
    "lines of networks go on rising, that with 20:1 after a step at 16; the small storage's "
    "stops at 18,000.",
    keep=results,
)

# %% [markdown]
# **Two shapes.** With the same network everywhere, efficiency falls slowly: a ring sends 2(n − 1)/n of the gradient,
# 1.5 times its size on 4 workers and 1.94 times on 32. A network that allows 100% on 16 workers can hardly cost half on
# 32. A limit that all share costs nothing up to some size, and much beyond it. (Bede's own storage would be one from 81
#     GPUs on.) Both what-ifs with such a limit look like "no speedup" between 16 and 32. They differ on 64: from the
#     storage there are still 18,000 images/s, while beyond the groups of 16 the speed doubles again.
#
# **FP16 gradients** halve the bytes where NCCL or Gloo adds them, as these have rings for 16-bit numbers. MPI has none.
# Horovod brings an operation of its own, and for such ones MPICH takes [**recursive
# doubling**](../docs/glossary.md#recursive-doubling) (lab 07, section 11, counts the bytes). That sends ½ · log₂ n of
# the FP32 gradients' size: half of the ring's bytes on 2 workers, two thirds on 4, the same on about 13, and *more* on
# 32.
#
# How far is Bede from such limits?

# %% tags=["nbval-check-output"]
needed = 32 * 4_500 / 4 * IMAGE
print(f"reading for 32 GPUs: {needed / 1e9:.1f} GB/s, {needed / STORAGE:.0%} of the storage's 10")
stops = 18_000 * IMAGE
print(f"a storage that stops at 16 GPUs: {stops / 1e9:.1f} GB/s, {stops / STORAGE:.0%} of it")
sent = 2 * 31 / 32 * GRADIENT
halved = sent / ((1 + HIDDEN) * COMPUTE)  # bytes/s at which a step on 32 takes twice as long
print(f"a network that stops at 16 GPUs: {8 * halved / 1e9:.1f} Gbit/s a GPU; ", end="")
print(f"Bede has at least {8 * BETWEEN / 1e9:.0f}")
for name in ("Bede as published", "Bede, exchange never hidden"):
    gain = 2 * predict(name, 32) / predict(name, 16)
    print(f"{name}: 32 GPUs have {gain:.2f} times the images/s of 16")
for gpus, images_a_second in ((4, 4_500), (16, 18_000)):
    minutes = BEDE_EPOCHS * IMAGENET / images_a_second / 60
    print(f"{gpus:>2} GPUs: 50 epochs at {images_a_second:,} images/s take {minutes:.0f} minutes")
for gpus in (16, 32):
    batch = 256 * gpus
    print(f"{gpus:>2} GPUs: {batch:,} images a step, ", end="")
    print(f"peak rate {0.256 * gpus:.1f}, {IMAGENET // batch} steps an epoch")

# %% [markdown]
# - **(a) and (b)** By what is published, neither the network nor the storage is near its limit at 32 GPUs. One of them
#   would have to deliver less than a fifth of that. This can happen on a busy cluster, but it is not what the guide
#   says: a network is not a *basic parameter* of a run.
# - **(d)** The guide gives about four hours on 4 GPUs and just over one hour on 16. Training alone takes that long at
#   these speeds, so little time is left for anything else. 32 GPUs should have needed a bit more than half an hour.
# - **(c)** would not show in images/s. A step with too many images is as fast as before; it only *teaches less*. And
#   8,192 images a step is the size at which Goyal et al. were still about as accurate as with 256, with a schedule of
#   their own over 90 epochs. Bede's 50 epochs have 156 steps each.
#
# So **the batch is the likely reason**: *no speedup* of the time to an accuracy, not of images/s. That is a conclusion
# from a model and published figures; nobody has measured it. And the model is optimistic: it knows no slow rank, no
# other jobs on the network or the storage, no pause.
#
# These runs would separate the causes on such a cluster, within minutes:
#
# | run on 32 GPUs | if it is faster, the cause was |
# | --- | --- |
# | without `--data_dir`: one synthetic batch again and again | reading (b) |
# | `--accumulate 4`: one exchange for four batches | the network (a) |
# | none of these, as images/s are twice those of 16 anyway | the batch (c): look at top-1 |
#
# (`--compression fp16` is no such test: with MPI, 32 workers send more bytes by it, and a network that is too slow
# would seem innocent.) Exercise 5 decides by such runs.
#
# ### This cluster
#
# The program's log has `seconds_for_data`: how long rank 0 waited for images. Did *your* training wait?

# %%
for n, run in runs.items():
    steps = [record for record in run if record["event"] == "train"]
    waited = sum(record["seconds_for_data"] for record in steps[1:])
    took = sum(
        (b["step"] - a["step"]) * BATCH / b["images_per_second"]
        for a, b in itertools.pairwise(steps)
    )
    print(
        f"{n} {NODE}{'s' * (n > 1)}: {waited / took:.1%} of the time was spent waiting for images"
    )

# %% [markdown]
# And the network? Two nodes exchange a tenth of the bytes that ResNet-50's gradients have.

# %%
# %%writefile work/allreduce.py
"""Print how many seconds an all-reduce takes, of 8 bytes and of 10.24 MB; from rank 0."""

import json
import time

import numpy as np
from mpi4py import MPI

ranks = MPI.COMM_WORLD
medians = {}
for name, length, repeats in (("8 bytes", 2, 200), ("10 MB", 2_560_000, 5)):
    mine, total = np.ones(length, np.float32), np.empty(length, np.float32)
    seconds = []
    for _ in range(repeats):
        ranks.Barrier()
        began = time.perf_counter()
        ranks.Allreduce(mine, total)
        seconds.append(ranks.allreduce(time.perf_counter() - began, op=MPI.MAX))
    assert total[0] == ranks.size
    medians[name] = float(np.median(seconds))
if ranks.rank == 0:
    print(json.dumps(medians))

# %% jupyter={"source_hidden": true}
(work / "ranks.sbatch").write_text("""\
#!/bin/bash
#SBATCH --job-name=ranks
#SBATCH --ntasks-per-node=1
export OMP_NUM_THREADS=$SLURM_CPUS_ON_NODE TF_NUM_INTRAOP_THREADS=$SLURM_CPUS_ON_NODE
export PYTHONPATH=$KIT TF_CPP_MIN_LOG_LEVEL=2 UCX_TLS=${UCX_TLS:-all}
srun --mpi=pmi2 --cpus-per-task="$SLURM_CPUS_ON_NODE" "$KIT/.venv/bin/python" "$@"
""")


def on_nodes(n, path, *args, name):
    """Run a script on n nodes, or as ranks of this machine; return the JSON of rank 0."""
    if slurm:
        job = submit(work / "ranks.sbatch", path, *args, nodes=n, name=name)
    else:
        job = RankJob(n, path, *args, threads=max(1, cores // n))
    job.wait()
    output = job.read_output()
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise LabError(f"{path.name} printed no figures, but:\n{output}")
    return json.loads(lines[-1])


def tell_prediction(predicted, found):
    """Print a predicted efficiency beside the measured one, and whether they differ."""
    if math.isnan(found.low):
        print(f"the model predicts {predicted:.0%}; ", end="")
        print(f"one round measured {found.value:.0%}, so there is no interval")
        return
    verdict = "inside" if found.low <= predicted <= found.high else "outside"
    interval = f"{found.low:.0%} to {found.high:.0%}"
    print(f"the model predicts {predicted:.0%}, which is {verdict} the measured {interval}")


# %%
with watch_nodes(slurm, "section 7"):
    seconds = on_nodes(2, work / "allreduce.py", name="allreduce")
latency = seconds["8 bytes"] / 2
bandwidth = GRADIENT / 10 / max(seconds["10 MB"] - seconds["8 bytes"], 1e-9)
print(f"all-reduce on 2 {NODE}s: 8 bytes {1e6 * seconds['8 bytes']:,.0f} µs, ", end="")
print(f"10 MB {1e3 * seconds['10 MB']:,.1f} ms")
print(
    f"so a latency of {1e6 * latency:,.0f} µs and {bandwidth / 1e6:,.0f} MB/s, additions included"
)

network = Network("resnet8")
gradient = 4 * sum(int(tf.size(weight)) for weight in network.weights)
predicted = float(efficiency(2, BATCH / first_round["weak", 1][0], gradient, latency, bandwidth))
print(f"resnet8, {gradient / 1e3:,.0f} kB, on 2 {NODE}s: ", end="")
tell_prediction(predicted, efficiencies["weak", 2])

# %% [markdown]
# Where the two differ, something matters that the model leaves out. Candidates are the dozens of small pieces in which
# Horovod negotiates and reduces the gradients of `resnet8`; the slower of two ranks, on which the step waits; and nodes
# that are shares of one machine, with one memory and one clock. Section 8 measures the last one, and what is left.
#
# **This is the end of the first part.** It was about running a job, and predicting its speed. The second part measures
# what scaling costs on your nodes: sections 8 to 12. Short of time? Answer the questions, and come back later.

# %% [markdown]
# ## 8 · What does the exchange cost here?
#
# Two questions are often confused:
#
# - [**Strong scaling**](../docs/glossary.md#strong-scaling): the same 64 images a step, shared among more and more
#   nodes. Each node computes less, and sends as much.
# - [**Weak scaling**](../docs/glossary.md#weak-scaling): 64 images on *each* node. The images in a step grow with the
#   nodes, and each step averages more of them.
#
# Nodes that are shares of one machine raise a third one: how much of the loss is the exchange, and how much is that
# they share memory, caches and clock? So `steps.py` takes the training step of section 2 in four ways, in turns: on one
# node while the others are idle; on all nodes **side by side**, without exchange; with exchange; and with exchange and
# only a part of the images each. It has one synthetic batch, so nothing is read. Side by side is the limit of what
# exchange can reach here.
#
# Each round is a launch of its own. Its 95% interval is noise within these minutes; tomorrow's figures can be
# elsewhere.

# %% jupyter={"source_hidden": true}
# %%writefile work/steps.py
"""Measure the images/s of ways to take training steps, in turns.

steps.py BATCH ROUNDS SECONDS WAY …
"""

import json
import sys
import time

import horovod.tensorflow as hvd
import tensorflow as tf

from labkit.data.synthetic_batch import synthetic_batches
from labkit.models import Network
from labkit.models.losses import cross_entropy
from labkit.models.optimizers import Momentum
from labkit.train.config import TrainConfig
from labkit.train.loop import make_train_step

hvd.init()
batch, rounds, seconds, names = (
    int(sys.argv[1]),
    int(sys.argv[2]),
    float(sys.argv[3]),
    sys.argv[4:],
)
network = Network("resnet8")
optimizer = Momentum(network.weights)
flags = {
    "alone": {"batch_size": batch},  # on rank 0, while the others wait
    "side by side": {"batch_size": batch},  # without exchange
    "exchange": {"batch_size": batch},
    "strong scaling": {"batch_size": batch // hvd.size()},
    "FP16 gradients": {"batch_size": batch, "compression": "fp16"},
    "4 batches a step": {"batch_size": batch, "accumulate": 4},
    "batches 4 times as large": {"batch_size": 4 * batch},
}
configs = {name: TrainConfig(**flags[name]) for name in names}
workers = {name: 1 if name == "alone" else hvd.size() for name in names}


@tf.function(autograph=False)
def train_alone(images, labels):
    with tf.GradientTape() as tape:
        loss = cross_entropy(network(images, training=True), labels, 0.1)
    optimizer.apply(tape.gradient(loss, network.weights), 0.01)


def make_step(name):
    batches = synthetic_batches(network.model, configs[name].batch_size, rank=hvd.rank())
    if name in ("alone", "side by side"):
        return lambda: train_alone(*next(batches))
    step = make_train_step(configs[name], network, optimizer)  # the program's, of section 2
    return lambda: float(step(batches, 0.01))


def measure(name, times):
    """Return the seconds of a step, the mean of the ranks that take it."""
    works = hvd.rank() < workers[name]
    hvd.allreduce(tf.constant(0.0))  # all begin together
    began = time.perf_counter()
    for _ in range(times if works else 0):
        steps[name]()
    mine = (time.perf_counter() - began) / times if works else 0.0
    return float(hvd.allreduce(tf.constant(mine), op=hvd.Sum)) / workers[name]


steps = {name: make_step(name) for name in names}
times = {name: max(2, round(seconds / min(measure(name, 1) for _ in range(2)))) for name in names}
took = {name: [] for name in names}
for _ in range(rounds):
    for name in names:
        took[name].append(measure(name, times[name]))
if hvd.rank() == 0:
    images = {
        n: workers[n] * config.batch_size * config.accumulate for n, config in configs.items()
    }
    print(json.dumps({n: [images[n] / part for part in took[n]] for n in names}))


# %%
def shares_of(speeds, n):
    """Return each way's images/s over n times those of one node alone, with its interval."""
    ratios = statistics.ratios(speeds, "alone")
    return {
        way: statistics.Ratio(*(part / n for part in ratio))
        for way, ratio in ratios.items()
        if way != "alone"
    }


scaling = {"alone": [], "side by side": [], "exchange": [], "strong scaling": []}
print(f"launches on {nodes} {NODE}s, some 10 s each: {SCALING_ROUNDS}", flush=True)
with watch_nodes(slurm, "section 8") as scaling_others:
    for number in range(SCALING_ROUNDS):
        settings = BATCH, 1, STEP_SECONDS
        found = on_nodes(nodes, work / "steps.py", *settings, *scaling, name="scaling")
        for way, images_per_second in found.items():
            scaling[way] += images_per_second
        each = ", ".join(f"{way} {part[-1]:,.0f}" for way, part in scaling.items())
        print(f"launch {number + 1} of {SCALING_ROUNDS}, images/s: {each}")


# %% jupyter={"source_hidden": true}
def tell_scaling(speeds, n):
    """Print the efficiencies, and what their intervals say, and no more."""
    words = {
        "slower": "below 100%",
        "faster": "above 100%",
        "no difference beyond chance": "not told apart from 100%",
    }
    names = {
        "side by side": "side by side",
        "exchange": "weak scaling",
        "strong scaling": "strong scaling",
    }

    def verdict_of(ratio):
        verdict, semicolon, doubt = ratio.verdict.partition("; ")
        return words.get(verdict, verdict) + semicolon + doubt

    for way, found in shares_of(speeds, n).items():
        verdict = verdict_of(found)
        print(f"{names[way]:15} {in_percent(found)} of {n} × one alone: {verdict}")
    of_limit = statistics.ratios(speeds, "side by side")
    verdict = verdict_of(of_limit["exchange"])
    share = in_percent(of_limit["exchange"])
    print(f"{'weak scaling':15} {share} of side by side, its limit: {verdict}")
    both = statistics.ratios(speeds, "strong scaling")["exchange"]
    print(f"weak scaling has {both} times the images/s of strong scaling: {both.verdict}")


tell_scaling(scaling, nodes)
limit = statistics.ratios(scaling, "side by side")["exchange"]
gain = Measured(*statistics.ratios(scaling, "alone")["exchange"], "×")
results.step("wires", gain, scaling_others, share=100 * limit.value)
beside = BATCH * nodes / np.mean(scaling["side by side"])  # s of computing a step
print("the exchange alone: ", end="")
tell_prediction(float(efficiency(nodes, beside, gradient, latency, bandwidth)), limit)
early = efficiencies["weak", 2].value
print(f"the training runs of sections 5 and 6, one round each on 2 {NODE}s: {early:.0%}")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 4.8))
shown = shares_of(scaling, nodes)
names = [
    "side by side,\nno exchange",
    "with exchange\n(weak scaling)",
    "with exchange\n(strong scaling)",
]
middle = [100 * share.value for share in shown.values()]
half = [
    [100 * (s.value - s.low) for s in shown.values()],
    [100 * (s.high - s.value) for s in shown.values()],
]
axis.errorbar(
    range(3), middle, half if SCALING_ROUNDS > 1 else None, linestyle="", marker="s", capsize=6
)
axis.axhline(100, color=plots.BLACK, linewidth=1)
axis.set_xticks(range(3), names)
axis.set(
    ylabel=f"% of {nodes} times one {NODE} alone",
    title=f"What {nodes} {NODE}s lose, and to what",
)
axis.set_xlim(-0.5, 2.5)
axis.set_ylim(0)
alt = "; ".join(f"{way}: {100 * share.value:.0f}%" for way, share in shown.items())
plots.show(
    figure,
    alt=f"Images/s on {nodes} {NODE}s in percent of {nodes} times one alone, with 95% intervals. "
    f"{alt}.",
    keep=results,
    watched=[scaling_others],
)

# %% [markdown]
# Read it from left to right. What is missing *side by side* is not the network: the nodes only share a machine (on a
# cluster, with nodes of its own each, that part should be gone). From there to *with exchange* is what the exchange
# costs. The training runs of sections 5 and 6 differ from both: they also read and crop images, and were one launch
# each.
#
# ### The half-efficiency rate
#
# How slow may the wires be? Divide the bytes that a node sends in a step by the seconds for which it computes. A wire
# with this rate is busy for as long as the cores. If nothing overlaps, half of each step is exchange, and the
# efficiency is 50%: call it the **half-efficiency rate**. It is no cliff. Ten times the rate gives 91%, a tenth of it
# 9%.
#
# For 32 workers like Bede's it is 2 · 31/32 · 102 MB in 0.23 s, about 7 Gbit/s. `resnet8` is smaller, so slow wires
# show on this machine what fast ones would show there. Nodes of this machine can have wires of any rate.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** At which rate is half of a step of `resnet8` exchange, with 64 images on each node? (It has 312 kB of
# gradients; how long a step computes is in the lines above.)
#
# </div>

# %%
GUESSED_RATES = {"1 Gbit/s": 1e9, "100 Mbit/s": 1e8, "10 Mbit/s": 1e7, "1 Mbit/s": 1e6}
results.guess(4, "where half of a step is exchange", ..., choices=tuple(GUESSED_RATES))


# %% jupyter={"source_hidden": true}
def measure_steps(rate, *names):
    """Return the images/s of each way to take a step, round by round, on wires of this rate."""
    print(f"{', '.join(names)}: rounds in turns {STEP_ROUNDS}, some 20 s", flush=True)
    settings = BATCH, STEP_ROUNDS, STEP_SECONDS
    run = run_ranks(nodes, "work/steps.py", *settings, *names, network=rate, show=False)
    print(f"   {run.network}")
    return json.loads(next(line for line in run.lines[0] if line.startswith("{")))


def predicted_efficiency(rate, compute_factor=1, gradient_factor=1):
    """Return what exercise 3 predicts, for so much computing and so large a gradient."""
    times_compute, bytes_sent = compute_factor * compute, gradient_factor * gradient
    return float(efficiency(nodes, times_compute, bytes_sent, latency, PAYLOAD * rate / 8))


# %%
# By each option: how much more computing between two exchanges, and how many times the bytes.
OPTIONS = {
    "FP16 gradients": (1, fp16_share(nodes)),
    "4 batches a step": (4, 1),
    "batches 4 times as large": (4, 1),
}

wires_watched, compute, steps_at = [], beside, {}
if no_wires:
    print(f"Not measured: {no_wires}")
else:
    with load.watch("section 8") as others:
        steps_at[RATE] = measure_steps(RATE, "side by side", "exchange")
    wires_watched.append(others)
    compute = BATCH * nodes / float(np.mean(steps_at[RATE]["side by side"]))
sent = 2 * (nodes - 1) / nodes * gradient  # bytes of each node a step, by the ring
half_rate = max(MIN_RATE, float(f"{8 * sent / compute / PAYLOAD:.2g}"))
print(
    f"{nodes} nodes, {BATCH} images on each: {1e3 * compute:.0f} ms of computing a step, ",
    end="",
)
print(f"{sent / 1e3:,.0f} kB sent")
print(f"so {sent / compute / 1e6:.1f} MB per second of computing: ", end="")
print(f"the half-efficiency rate is predicted at {written(half_rate)}")
for rate in (RATE, half_rate, half_rate / 4):
    print(f"   {written(rate):>12}: predicted efficiency {predicted_efficiency(rate):.0%}")

# %% [markdown]
# Now at these rates. At the predicted one, three options are measured in the same turns: fewer bytes (`--compression
# fp16`), one exchange for 4 batches (`--accumulate 4`), and batches 4 times as large.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** At this rate, a step computes for half of its time. How many times the images/s does it have with one
# exchange for every 4 batches?
#
# </div>

# %%
results.guess(5, "one exchange for 4 batches", ..., unit="×")

# %%
if no_wires or QUICK:
    print(f"Not measured: {no_wires or 'a quick run has the first rate alone.'}")
else:
    with load.watch("section 8") as others:
        steps_at[half_rate] = measure_steps(half_rate, "side by side", "exchange", *OPTIONS)
        if half_rate / 4 >= MIN_RATE:
            steps_at[half_rate / 4] = measure_steps(half_rate / 4, "side by side", "exchange")
    wires_watched.append(others)


# %% jupyter={"source_hidden": true}
def half_rate_of(rate, found):
    """Return the rate at which half of a step would be exchange, by the efficiency at another.

    The exchange takes 1 / efficiency - 1 times as long as the computing; at half the rate, twice
    that.
    """
    value, low, high = (
        rate * max(1 / part - 1, 0.0) for part in (found.value, found.high, found.low)
    )
    return statistics.Ratio(value, low, high)


def tell_rate(found):
    """Return a rate as text, with its interval."""
    interval = "" if math.isnan(found.low) else f" ({written(found.low)} to {written(found.high)})"
    return written(found.value) + interval


def tell_half_rate(rate, found):
    """Print where an efficiency on wires of some rate puts the half-efficiency rate."""
    there = half_rate_of(rate, found)
    print(
        f"wires of {written(rate)}: efficiency {in_percent(found)}; half of a step is exchange ",
        end="",
    )
    print(f"at {tell_rate(there)}" if there.value else "at no rate that this shows")


def tell_options(found, rate):
    """Print each option's images/s beside the plain exchange's, and the predicted ratio."""
    plain = predicted_efficiency(rate)
    for name, gain in statistics.ratios(found, "exchange").items():
        if name not in OPTIONS:
            continue
        predicted = predicted_efficiency(rate, *OPTIONS[name]) / plain
        verdict = gain.verdict
        if not math.isnan(gain.low):
            place = "inside" if gain.low <= predicted <= gain.high else "outside"
            verdict += f"; predicted {predicted:.2f}, {place}"
        print(f"{name}: {gain} times the images/s of the plain exchange: {verdict}")


at = {rate: statistics.ratios(found, "side by side") for rate, found in steps_at.items()}
for rate, found in at.items():
    tell_half_rate(rate, found["exchange"])
    print("   ", end="")
    tell_prediction(predicted_efficiency(rate), found["exchange"])
if half_rate in at:
    tell_options(steps_at[half_rate], half_rate)
    there = half_rate_of(half_rate, at[half_rate]["exchange"]).value or half_rate
    nearest = min(GUESSED_RATES, key=lambda name: abs(math.log(GUESSED_RATES[name] / there)))
    results.compare_guess(4, nearest)
    gain = statistics.ratio(
        steps_at[half_rate]["4 batches a step"], steps_at[half_rate]["exchange"]
    )
    results.compare_guess(5, Measured(*gain, "×"))
else:
    print(f"Not measured: {no_wires or 'a quick run has one rate alone.'} Predicted:")
    for name, option in OPTIONS.items():
        gain = predicted_efficiency(half_rate, *option) / predicted_efficiency(half_rate)
        print(f"{name}: {gain:.2f} times the images/s of the plain exchange")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5))
rates = np.geomspace(half_rate / 16, 2 * max(RATE, half_rate), 60)
axis.plot(
    rates / 1e6,
    [100 * predicted_efficiency(rate) for rate in rates],
    marker="",
    label="predicted",
)
if at:
    found = [ways["exchange"] for ways in at.values()]
    half = [[100 * (r.value - r.low) for r in found], [100 * (r.high - r.value) for r in found]]
    x, y = [rate / 1e6 for rate in at], [100 * r.value for r in found]
    half = half if STEP_ROUNDS > 1 else None
    marks = {
        "linestyle": "",
        "marker": "s",
        "color": plots.BLACK,
        "capsize": 6,
        "label": "measured",
    }
    axis.errorbar(x, y, half, **marks)
label = "half-efficiency rate, predicted"
axis.axvline(half_rate / 1e6, color=plots.VERMILION, linestyle=":", label=label)
axis.set(xscale="log", xlabel="rate of each wire (Mbit/s)", ylabel="% of side by side")
axis.set_ylim(0)
axis.set_title(f"Slower and slower wires: {nodes} nodes, resnet8, {BATCH} images each")
axis.legend(loc="lower right")
measured = "; ".join(
    f"{ways['exchange'].value:.0%} at {written(rate)}" for rate, ways in at.items()
)
plots.show(
    figure,
    alt="Efficiency against the rate of the wires, logarithmic: the predicted curve rises slowly "
    f"from near 0, is at 50% at {written(half_rate)}, and comes near 100%. "
    f"Measured: {measured or 'nothing'}.",
    keep=None if no_wires else results,
    watched=wires_watched,
)

# %% [markdown]
# The model knows bytes and seconds of computing, and no more. Converting the numbers of a gradient takes time as well,
# and a batch that is 4 times as large may compute each image faster or slower. In the model, the last two options lower
# the half-efficiency rate to a quarter, for any network and any number of nodes; FP16 by MPI halves it on 2 nodes, and
# does nothing on about 13. But 4 batches a step *change the training*: section 10 asks what that costs.
#
# Only the wires are emulated. The exchange also needs the cores: on a real network card, parts of it do not. And there
# is one switch, which is as fast as all of its wires together; large clusters have many, and they are often not.

# %% jupyter={"source_hidden": true}
half_figure = f"not here: {no_wires}" if no_wires else "not in a quick run"
if half_rate in at:
    at_half = half_rate_of(half_rate, at[half_rate]["exchange"])
    half_figure = Measured(*(np.array(at_half) / 1e6), "Mbit/s", digits=1)
share_of_alone = shares_of(scaling, nodes)
side = share_of_alone["side by side"]
results.hand_in(
    "8",  # for the closing table
    (
        f"here: weak scaling, resnet8, {nodes} {NODE}s",
        "",
        in_percent(share_of_alone["exchange"]),
        f"{side.value:.0%}, side by side",
        scaling_others,
    ),
    (
        f"here: strong scaling, resnet8, {nodes} {NODE}s",
        "",
        in_percent(share_of_alone["strong scaling"]),
        "100%",
        scaling_others,
    ),
    (
        "here: the wires on which half of a step is exchange",
        "",
        half_figure,
        f"predicted {written(half_rate)}",
        *wires_watched,
    ),
)

# %% [markdown]
# ## 9 · One storage for all
#
# The other suspect was the storage: a limit that all nodes share. To test it, one extra node holds all images, and the
# nodes that train have none. TensorFlow's [**tf.data service**](../docs/glossary.md#tfdata-service) is one way to serve
# records to other nodes: a dispatcher, which knows who wants what, and workers, which read the files. The trainers get
# the records over gRPC, each record once in an epoch of all. (Most clusters have a parallel file system such as Lustre
# or GPFS in its place, or copies on the nodes' own disks. The bytes on the wire are the same.)
#
# The nodes train `resnet8`, each by itself, without exchange: so the only wire that they share is the storage's. In
# turns, they read the same records from files, as if each node had a copy on its own disk.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The storage's wire carries about what one node needs. How many percent of their images/s from files
# do two nodes keep?
#
# </div>

# %%
results.guess(6, "two nodes that share one storage keep", ..., unit="%")

# %% jupyter={"source_hidden": true}
# %%writefile work/served.py
"""TFRecords from a storage: what its rank serves, and what the others read."""

from pathlib import Path

import tensorflow as tf

PORT = 5050
service = tf.data.experimental.service


def serve(address):
    """Start a dispatcher and a worker; they serve until what is returned is deleted."""
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=PORT))
    at, own = f"{address}:{PORT}", f"{address}:{PORT + 1}"
    config = service.WorkerConfig(dispatcher_address=at, worker_address=own, port=PORT + 1)
    return dispatcher, service.WorkerServer(config)


def read(folder, batch, epochs=None):
    """Return a training set's records, undecoded, a batch at a time; by default, for ever."""
    files = tf.data.Dataset.from_tensor_slices(sorted(map(str, Path(folder).glob("train-*"))))
    return files.repeat(epochs).flat_map(tf.data.TFRecordDataset).batch(batch)


def read_from(address, records, job):
    """Have the storage read these records; each goes to the first trainer that asks."""
    # A JPEG is compressed already.
    how = {"job_name": job, "compression": None, "max_outstanding_requests": 2}
    dynamic = service.ShardingPolicy.DYNAMIC
    return records.apply(service.distribute(dynamic, f"grpc://{address}:{PORT}", **how))


def decode(record):
    """Return the image and the label of a record."""
    types = {"image/encoded": tf.string, "image/class/label": tf.int64}
    fields = {name: tf.io.FixedLenFeature([], of) for name, of in types.items()}
    found = tf.io.parse_single_example(record, fields)
    image = tf.image.resize(tf.io.decode_jpeg(found["image/encoded"], channels=3), (32, 32))
    return image / 128 - 1, tf.cast(found["image/class/label"], tf.int32)


# %% jupyter={"source_hidden": true}
# %%writefile work/storage.py
"""Rank 0 serves TFRecords; 1, 2 … others train from it, or from files.

storage.py ADDRESS FOLDER BATCH ROUNDS
"""

import json
import sys
import time

import tensorflow as tf
from mpi4py import MPI
from served import decode, read, read_from, serve

from labkit.models import Network
from labkit.models.losses import cross_entropy
from labkit.models.optimizers import Momentum

ranks = MPI.COMM_WORLD
address, folder, batch, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
network = Network("resnet8")
optimizer = Momentum(network.weights)


@tf.function(autograph=False)
def train(images, labels):
    with tf.GradientTape() as tape:
        loss = cross_entropy(network(images, training=True), labels, 0.1)
    optimizer.apply(tape.gradient(loss, network.weights), 0.01)


def wait_for_all():
    """Wait for all ranks, asleep: MPI's barrier polls, and would take a core from workers."""
    request = ranks.Ibarrier()
    while not request.Test():
        time.sleep(0.005)


def measure(where, job, seconds):
    """Return the images/s of this trainer, from empty buffers on."""
    records = read(folder, batch)
    if where == "storage":
        records = read_from(address, records, job)
    images = iter(records.unbatch().map(decode, num_parallel_calls=1).batch(batch).prefetch(1))
    for _ in range(3):  # what was on its way at the start does not count
        train(*next(images))
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        train(*next(images))
        count += batch
    return count / (time.perf_counter() - began)


servers = serve(address) if ranks.rank == 0 else None
speeds = {}
# The first one traces.
for number, seconds in [("first", 0.1), *((str(number), 1.2) for number in range(rounds))]:
    for trainers in range(1, ranks.size):
        for where in ("files", "storage"):
            wait_for_all()
            works = 1 <= ranks.rank <= trainers
            mine = measure(where, f"{number}-{trainers}", seconds) if works else 0.0
            wait_for_all()
            if (total := ranks.reduce(mine)) and number != "first":
                speeds.setdefault(f"{where} {trainers}", []).append(total)
if ranks.rank == 0:
    print(json.dumps(speeds))


# %% jupyter={"source_hidden": true}
def from_storage(found, n):
    """Return n nodes' images/s from the storage over those from files."""
    return statistics.ratios(found, f"files {n}")[f"storage {n}"]


def predicted_share(files):
    """Return the share of their images/s from files that the wire leaves to nodes."""
    return min(1.0, BATCH / reading / files)


def tell_storage(found, trainers):
    """Print each number of nodes' images/s from files and storage, beside the predicted share."""
    for n in trainers:
        ratio = from_storage(found, n)
        files, storage = (np.mean(found[f"{where} {n}"]) for where in ("files", "storage"))
        print(f"{n} trained {files:,.0f} images/s from files, ", end="")
        print(f"{storage:,.0f} from the storage: {ratio.verdict}")
        print("   ", end="")
        tell_prediction(predicted_share(files), ratio)


# %% [markdown]
# The next cell predicts and measures, in about 45 seconds. The prediction is the `reading` of exercise 3: the wire's
# images/s, divided by what the nodes train from files.

# %%
size = float(np.mean(index.length))  # bytes of an image
one_node = first_round["weak", 1][0]  # images/s
storage_rate = max(MIN_RATE, float(f"{8 * one_node * size / PAYLOAD:.2g}"))
trainers = [*range(1, STORAGE_TRAINERS + 1)]
reading = BATCH * size / (PAYLOAD * storage_rate / 8)  # s of the storage's wire for a batch
print(f"{size:,.0f} bytes an image, {one_node:,.0f} images/s a node; ", end="")
print(
    f"the storage's wire has {written(storage_rate)}, so it carries {BATCH / reading:,.0f} images/s"
)
served, storage_watched = {}, []
if no_wires:
    print(f"Not measured: {no_wires}")
else:
    print(f"training on 1 to {trainers[-1]} nodes: rounds {STORAGE_ROUNDS}, some 40 s", flush=True)
    with load.watch("section 9") as others, Testbed(1 + len(trainers), storage_rate) as wires:
        print(wires)
        settings = wires.nodes[0].address, images, BATCH, STORAGE_ROUNDS
        run = run_ranks(len(wires.nodes), "work/storage.py", *settings, network=wires, show=False)
    storage_watched.append(others)
    served = json.loads(next(line for line in run.lines[0] if line.startswith("{")))
    tell_storage(served, trainers)
    if 2 in trainers:
        results.compare_guess(6, in_percent(from_storage(served, 2)))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 4.8))
if served:
    kept = [from_storage(served, n) for n in trainers]
    half = [[100 * (r.value - r.low) for r in kept], [100 * (r.high - r.value) for r in kept]]
    half = half if STORAGE_ROUNDS > 1 else None
    y = [100 * r.value for r in kept]
    axis.errorbar(trainers, y, half, linestyle="", marker="s", capsize=6, label="measured")
    wire = [100 * predicted_share(np.mean(served[f"files {n}"])) for n in trainers]
    axis.plot(
        trainers, wire, linestyle="--", marker="", color=plots.VERMILION, label="the wire alone"
    )
    axis.legend()
axis.axhline(100, color=plots.BLACK, linewidth=1)
axis.set(xlabel="nodes that train", ylabel="% of the images/s from files", ylim=(0, None))
axis.set_title("Training from one shared storage")
axis.set_xticks(trainers)
alt = (
    "; ".join(f"{n}: {100 * r.value:.0f}%" for n, r in zip(trainers, kept)) if served else "nothing"
)
plots.show(
    figure,
    alt="Images/s from one storage, in percent of those from files, against the number of nodes "
    "that train, with 95% intervals, beside what the storage's wire alone allows. "
    f"Measured: {alt}.",
    keep=results if served else None,
    watched=storage_watched,
)

# %% jupyter={"source_hidden": true}
most = trainers[-1]
storage_figure = f"not here: {no_wires}" if no_wires else in_percent(from_storage(served, most))
from_files = np.mean(served[f"files {most}"]) if served else most * one_node
results.hand_in(
    "9",  # for the closing table
    (
        f"here: {most} node{'s' * (most > 1)} from one storage, of the images/s from files",
        "",
        storage_figure,
        f"its wire: {predicted_share(from_files):.0%}",
        *storage_watched,
    ),
)

# %% [markdown]
# What to do about such a limit? More storages, each with a wire of its own, or the files on the nodes' own disks, or
# smaller images. Fewer bytes of *gradients* change nothing here, and a faster *storage* nothing in section 8. That is
# why exercise 5 asks for runs that tell the two apart.
#
# Again, only the wire is emulated. This storage has its files in memory after the first epoch, while one with disks has
# a limit of its own. And it shares the machine's cores with the nodes that it serves, which takes from their images/s.
#
# ## 10 · Larger steps
#
# Training that waits for the network can exchange its gradients less often, or take larger batches. Either way, a step
# has more images, and the network must *still learn*. This section first takes such a step within the memory of a
# smaller one, and then trains with it.
#
# ### Exercise 4 · Accumulate
#
# You want 500 images a step, and there is memory for 100. [**Gradient
# accumulation**](../docs/glossary.md#gradient-accumulation) makes this possible: compute the gradient of 100 images,
# keep it, take the next 100, and only then reduce and step. For one all-reduce you get the computing of five.
#
# Write `accumulate(gradient_of, x, y, most)`. `gradient_of(images, labels)`, called by position, returns a list of
# arrays, one for each of a network's weights: the gradients of the **mean** loss over these images. It takes at most
# `most` images at a time. Return the gradients of the mean loss over *all* of `x` and `y`, as such a list. The number
# of images need not be a multiple of `most`.


# %%
def accumulate(gradient_of, x, y, most):
    """Return the mean loss's gradients over all of x and y, by `most` images at a time."""
    ### BEGIN SOLUTION
    total = None
    for start in range(0, len(x), most):
        images, labels = x[start : start + most], y[start : start + most]
        parts = [len(images) / len(x) * g for g in gradient_of(images, labels)]
        total = parts if total is None else [sum_ + part for sum_, part in zip(total, parts)]
    return total
    ### END SOLUTION


# %% tags=["nbval-check-output"]
accumulate = check(4, accumulate)

# %% [markdown]
# The check's model has no batch norms. ResNet has them. The next cell compares twice: once the batch norms use their
# stored averages; once, as in training, they take mean and variance from the images they see.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In which of the two do 4 × 16 images give the same gradient as 64?
#
# </div>

# %%
network = Network("resnet8")
sample, truth = (
    part.numpy() for part in next(iter(records.training(index, 32, 64, least_area=0.5)))
)


def gradients_by(training):
    """Return the function that computes the gradients of resnet8's mean loss."""

    def gradient_of(x, y):
        with tf.GradientTape() as tape:
            logits = network(x, training=training)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        return [np.array(g) for g in tape.gradient(loss, network.weights)]

    return gradient_of


for training in (False, True):
    whole = gradients_by(training)(sample, truth)
    pieces = accumulate(gradients_by(training), sample, truth, 16)
    source = "the images' own" if training else "stored"
    apart = [
        tf.norm(a - b) / (tf.norm(a) + 1e-12) for a, b in zip(whole, pieces) if len(a.shape) > 1
    ]
    print(
        f"batch norms with {source} averages: 4 × 16 images ",
        end="",
    )
    print(f"differ from 64 by up to {float(max(apart)):.4%} of a layer's gradient")

# %% [markdown]
# With stored averages the difference is rounding. With the images' own averages, a batch norm sees 16 images, not 64,
# and computes another function. The same happens on 4 ranks with 16 images each, so accumulation is not at fault. It
# only means: **the batch norm's batch is what one rank has at a time**. Keep that at 32 or more (Goyal et al. kept it
# at 32 per GPU while the global batch grew).
#
# ### What does a larger step cost?
#
# Now a real run: 500 images a step in place of 64, with the rate of the linear rule, for as many epochs. That is as
# many images and only an eighth of the steps. A control has as few steps, with 64 images each: it shows how much is
# lost by that alone. Both together take about 40 seconds.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What does the larger batch cost in accuracy? And how much of that is lost because there are fewer
# steps?
#
# </div>

# %%
last = runs[max(runs)][-1]
reference = f"{BATCH} images a step, {EPOCHS} epochs"
print(f"{reference}: top-1 {last['top1']:.1%} of {last['images']} held-out images")
large = {}
for name, (images_each, batches, epochs) in LARGE_STEPS.items():
    flags = ["--batch_size", images_each, "--accumulate", batches, "--num_iter", epochs[0]]
    flags += ["--iter_unit", epochs[1], "--lr_warmup_epochs", epochs[2]]
    large[name] = train(f"large-{len(large)}", 2, *recipe, *flags)[-1]
    tell_accuracy(
        f"{name}: {large[name]['top1']:.1%}", large[name]["top1"], last["top1"], last["images"]
    )
if large:
    (name, big), (control, few) = large.items()
    tell_accuracy("the control beside the larger step", few["top1"], big["top1"], last["images"])

# %% [markdown]
# Read the last line. If the control is no better than the run with 500 images, then the missing *steps* cost the
# accuracy, and more epochs are the remedy. If the control is better, the larger step itself does harm: its rate, or its
# warm-up.
#
# These are single runs, and "chance" is that of the held-out images alone: another `--seed` would move each result too.
# And ten epochs are few here. On ImageNet the same race went on for years:
#
# | who | machines | time | epochs | top-1 |
# | --- | --- | --- | --- | --- |
# | Bede's guide, 2020 | 4 GPUs, 1,024 images a step | about 4 hours | 50 | 75.863% |
# | [Goyal et al. 2017](https://arxiv.org/abs/1706.02677) | 256 GPUs, 8,192 images a step | 1 hour | 90 | 76.3% |
# | [You et al. 2017](https://arxiv.org/abs/1709.05011) | 2,048 Xeon Phi | 20 minutes | 90 | "without losing accuracy" |
# | [Yamazaki et al. 2019](https://arxiv.org/abs/1903.12650) | 2,048 GPUs, 1.73 million images/s | 74.7 s | – | 75.08% |
#
# (You et al. used LARS, the last part of this section.) With 256 images a step, Goyal et al. reached 76.4%. Bede's 50
# epochs end half a point below these 90.
#
# ### LARS, a rate for each layer
#
# Why not raise the rate with the batch without end? A step changes layer w by `rate × ‖g‖`. In a network, some layers
# have large weights and small gradients, others the reverse. One rate for all must suit the most sensitive layer.
# [**LARS**](../docs/glossary.md#lars) (You et al. 2017, [arXiv 1708.03888](https://arxiv.org/abs/1708.03888)) gives
# each layer a factor of its own, the **trust ratio**, so that a step changes every layer by about the same *share* of
# itself:
#
# $$\lambda = c \cdot \frac{\lVert w \rVert}{\lVert g \rVert + d \cdot \lVert w \rVert}$$
#
# Here d is the weight decay and c the coefficient. Where a norm is 0, the factor is 1: a layer of zeros must be able to
# leave zero. The next cell takes it from `labkit/models/optimizers.py`, for each layer of `resnet8`.

# %%
ratios = {}
for weight, slope in zip(network.weights, whole):
    if is_kernel(weight):
        layer = f"{weight.name.split('/')[0]}: {' × '.join(map(str, weight.shape))}"
        ratios[layer] = float(trust_ratio(weight, tf.constant(slope), 1e-4))
apart = max(ratios.values()) / min(ratios.values())
print(f"{len(ratios)} layers; the largest ratio is {apart:,.0f} times the smallest")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5))
axis.plot(list(ratios.values()), list(ratios), "o", color=plots.BLUE)
axis.invert_yaxis()
axis.set(xlabel="trust ratio", ylabel="layer: its weights' shape", xlim=(0, None))
axis.set_title("LARS: the factor of each layer at the start")
axis.tick_params(axis="y", labelsize=11)
plots.show(
    figure,
    alt="Trust ratio of each layer of resnet8 with its fresh weights: "
    + ", ".join(f"{name} {value:.4f}" for name, value in ratios.items())
    + ".",
)

# %% [markdown]
# The factors differ between layers, and that is all that this shows. What LARS is worth shows at tens of thousands of
# images a step, in the table above. A set of 2,000 images has no room for such steps, so this lab does not race it.
#
# ## 11 · Which cause is it?
#
# ### Exercise 5 · Diagnose
#
# Back to the question of section 7. On a cluster, 32 workers are perhaps no faster than 16, and somebody has made the
# runs that can tell why: three rounds, in turns. What should be changed first?
#
# Write `diagnose(speeds)`. `speeds` has the images/s of each round for `"16"` and `"32"` workers, for `"32, no
# reading"` (one synthetic batch again and again), and for `"32, accumulate 4"` (one exchange for four batches). Return
# one word:
#
# - `"reading"` or `"network"`, when a run *shows* that this is what holds up 32 workers; if both do, the one whose run
#   has the larger ratio;
# - `"batch"`, when neither is shown, but 32 workers are shown to be faster than 16: the images/s are there, so look at
#   the accuracy;
# - `"measure"`, when the rounds show none of these: change nothing yet.
#
# A higher mean shows nothing by itself. `statistics.ratio(measured, reference)` compares two runs by the speeds of the
# same rounds, and returns the ratio as `.value`, with its 95% interval from `.low` to `.high`.


# %%
def diagnose(speeds):
    """Return what the rounds show: "reading", "network", "batch", or "measure"."""
    ### BEGIN SOLUTION
    suspects = {"reading": "32, no reading", "network": "32, accumulate 4"}
    gains = {word: statistics.ratio(speeds[run], speeds["32"]) for word, run in suspects.items()}
    shown = [word for word, gain in gains.items() if gain.low > 1]
    if shown:
        return max(shown, key=lambda word: gains[word].value)
    return "batch" if statistics.ratio(speeds["32"], speeds["16"]).low > 1 else "measure"
    ### END SOLUTION


# %% tags=["nbval-check-output"]
diagnose = check(5, diagnose)

# %% [markdown]
# Three invented clusters. Decide for each by eye before you run the cell.

# %% tags=["nbval-check-output"]
clusters = {
    "A": {
        "16": [18_000, 17_900, 18_050],
        "32": [18_100, 17_950, 18_000],
        "32, no reading": [34_800, 34_500, 34_900],
        "32, accumulate 4": [18_050, 18_000, 17_900],
    },
    "B": {
        "16": [18_000, 12_100, 15_000],
        "32": [24_000, 16_200, 20_100],
        "32, no reading": [24_100, 16_100, 20_050],
        "32, accumulate 4": [28_700, 19_500, 24_000],
    },
    "C": {
        "16": [18_000, 17_000, 19_000],
        "32": [18_500, 24_000, 17_500],
        "32, no reading": [27_000, 19_000, 25_500],
        "32, accumulate 4": [19_000, 21_500, 20_000],
    },
}
for name, table in clusters.items():
    print(f"{name}: {diagnose(table)}")
    for run in table:
        ratio = statistics.ratio(table[run], table["32"])
        print(f"   {run:20}{np.mean(table[run]):>8,.0f} images/s,", ratio, "of 32")

# %% [markdown]
# ## 12 · And on a real cluster?
#
# How long would 50 epochs of ImageNet take on *your* cluster? A few steps of the real ResNet-50 give the answer, in
# about half a minute.

# %%
if QUICK:
    duration = "not measured in a quick run"
    print(duration)
else:
    flags = "--model resnet50_v1.5 --batch_size 8 --num_iter 4 --iter_unit batch --mode train"
    rate = speed(train("resnet50", 2, *flags.split(), "--log_every", 2))
    shutil.rmtree(work / "resnet50" / "checkpoints")  # 200 MB
    duration = f"not here: it would take {BEDE_EPOCHS * IMAGENET / rate / 86_400:,.0f} days"
    where = "cluster" if slurm else "machine"
    print(f"ResNet-50 v1.5 on 2 {NODE}s of this {where}: {rate:,.1f} images/s")
    print(f"50 epochs of ImageNet: {duration}. There, on 4 GPUs: about 4 hours; on one: about 16.")

    photos = work / "large"
    synthetic.write(photos, train=96, validation=16, size=400)
    read = pipeline_speed(photos, 224, 16, 16)
    size = np.mean(tfrecords.index(photos, "train").length) / 1e3
    print(
        f"the pipeline at that size ({size:.0f} kB an image): {read:,.0f} images/s alone, ",
        end="",
    )
    print(f"{read / rate:.0f} times what the training takes")

# for the closing table
name = "ResNet-50 on ImageNet after 50 epochs: top-1; top-5"
results.hand_in("12", (name, "75.863%; 92.823%", duration, ""))

# %% [markdown]
# So a workshop cannot reach the published 75.863% and 92.823%, and this lab does not pretend to. But you have used the
# same program, the same script and the same flags. To take them to a cluster, change in `env/slurm/train.sbatch`:
#
# - the `##SBATCH` lines: your site's partition and account, and the time. For GPUs, Bede's guide has `-p gpu
#   --gres=gpu:4 -N1`;
# - `--ntasks-per-node`: on CPUs, one rank per socket is a good start. The script gives each rank its share of the
#   node's CPUs by `OMP_NUM_THREADS`. On Bede that was 1: there, GPUs did the computing;
# - `--hint=nomultithread`, and `THREADS`, where Slurm counts the two hardware threads of a core as two CPUs (`lscpu` in
#   a job says so). For this kind of work a thread on each core is a good start: lab 03;
# - the `module load` lines, if you must use the site's own MPI, with a Horovod built for that MPI;
# - `srun`, where a site has a command of its own that starts ranks on a job's nodes. Bede had `bede-ddlrun`, as the
#   `ddlrun` of its software did not know Slurm;
# - `--data_dir` and `--results_dir`: on a file system that all nodes see, the results on one that they can write to. A
#   login node's folder for temporary files is not. Ask for the space, too: the guide says up to 1.2 GB of results; here
#   a checkpoint of ResNet-50 has 200 MB, and two are kept.
#
# Then submit it with `sbatch --nodes=16 …`. Everything else stays as it is.
#
# **What else differs from site to site**
#
# - *Storage.* ImageNet becomes 1,024 TFRecord files for training and 128 for validation, about 140 GB, once; then
#   everybody reads them from one place. On Lustre, `lfs setstripe -c` spreads a large file over several servers before
#   it is written. Millions of small JPEGs would ask the metadata server for each. MXNet's **RecordIO** has the same
#   idea as TFRecord, with an index file of the records' places, so that reading can begin anywhere.
# - *S3.* Object storage answers late but many at a time: copy the files to the nodes' own disks once, with some 20
#   requests side by side (`aws configure set default.s3.max_concurrent_requests 20`), and train from there.
# - *Augmentation* costs a CPU's time: crop, scale and mirror, as here; shear, rotation and colours in some recipes. One
#   published run on 8 GPUs had 40 threads for it. `seconds_for_data` says whether yours has enough.
# - *Containers.* Clusters have Apptainer (once Singularity), not Docker: `srun apptainer exec image.sif python …`. The
#   MPI in the image must fit the site's, by its ABI.
#
# **To go further**
#
# - Paste the flags of Bede's guide behind a run of `resnet8`: the right-hand column of section 2's table, with
#   `--iter_unit batch --num_iter 24 --batch_size 64` after them, as the last value of a flag counts. Which of
#   `--precision=fp16`, `--precision=bf16` and `--use_xla` makes a step faster on this machine, and which slower? Write
#   the rounds in turns, and let `statistics.ratios` decide.
# - `--optimizer lars --lr_init 8` for the larger step of section 10, with five values of `--seed` for LARS and for
#   momentum: can you tell the two apart?

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, from what you saw above. Those that name an optional section are for whoever did it.
# The instructor's notebook has answers.
#
# 1. Which single thing changes in the script between 4 and 16 GPUs? And what changes by itself?
# 2. Where must `--results_dir` be? Why is the login node's folder for temporary files no good?
# 3. Why does the recipe warm the rate up over 8 epochs? And what has `--warmup_steps=100` to do with it?
# 4. Why does the first line of the log in Bede's guide say 38 images/s, and the second 4,527?
# 5. Strong or weak scaling: which of the two is 4 → 16 GPUs with 256 images each? Which of the two is [**time to
#    accuracy**](../docs/glossary.md#time-to-accuracy)? *(section 8)*
# 6. Why might 32 GPUs have been no faster than 16, and which two runs would you do first to find out?
# 7. Yesterday you got 8 nodes and used `--accumulate 2`. Today you get 16 nodes and do not accumulate. What stays the
#    same? *(section 10)*
# 8. Another published run on GPUs of 2018: an epoch of ImageNet takes about 30 minutes on one GPU, about 5 minutes on
#    eight, at around 5,800 images/s. Ten epochs take roughly 30 minutes, to 48% accuracy. What is the scaling
#    efficiency? Do these figures agree with each other?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** The answers:
#
# 1. The number of nodes. By themselves: the images in a step, the peak rate (linear rule), the steps in an epoch, and
#    the warm-up counted in steps.
# 2. Rank 0 writes it, and rank 0 of the next job reads it. Both run on whichever nodes Slurm gives. A login node's
#    temporary files are on that node alone.
# 3. At the start, gradients are large and change quickly, and large-batch rates would overshoot. `--warmup_steps` is
#    about measuring: in the first steps, kernels are made and caches filled, so they are left out of images/s. Two
#    things with one name.
# 4. The first record includes tracing, compilation by XLA, and opening files. Speed is measured after that.
# 5. Weak: each GPU keeps its 256 images. Time to accuracy is neither: with the larger step it needs the same epochs at
#    best, and more when the batch is too large.
# 6. The guide names "basic parameters" of this configuration, and not which. By Bede's published network and storage,
#    32 GPUs should have had nearly twice the images/s of 16, so batch and rate are likely, which images/s do not show
#    at all: hours to an accuracy do. If images/s did stay at 18,000, such a sharp bend points to a limit that all
#    share. First run without `--data_dir`, then with `--accumulate 4`. Not with `--compression fp16`: by MPI it sends
#    2.5 times the gradient on 32 ranks, where FP32 sends 1.94 times.
# 7. The images in a step, and with them the order, the rate, the schedule, the number of steps, and what a batch norm
#    sees at a time. Today's run can resume from yesterday's checkpoint: the global batch is the same.
# 8. 30 / 5 = 6 times as fast on 8 GPUs: 75%. They do not agree: 1,281,167 images in 5 minutes are 4,300 images/s, not
#    5,800, at which an epoch takes 3.7 minutes, and ten epochs 37. And ten epochs of 5 minutes would take 50. "About"
#    hides a third. Perhaps the 5 minutes include the start and the validation, and the speed does not.
#
# **The guess in section 2** The weights are equal because the gradients were averaged. Nothing averages what a batch
# norm keeps of its images: each rank's averages come from its own images. A checkpoint of rank 0 alone would lose the
# others'.
#
# **What students see** Section 8: side by side is mostly below 100%, as nodes of one machine share its memory and its
# clock. Strong scaling should be the worse of the two: half the images per rank, the same all-reduce. If somebody's
# intervals show the reverse, something disturbed more than one launch: run the cell again. Exercise 1 shows before
# question 8 that 5,800 images/s make 8 epochs in half an hour, not 10.
#
# **The rates of section 8** 312 kB in, say, 50 ms of computing are 50 Mbit/s, so of the four rates 100 Mbit/s comes
# next. A machine with faster nodes needs a higher rate; the lab chooses the rates that it measures by its own
# prediction. If nothing overlaps, one exchange for four batches gives 1.6 times the images/s at the half-efficiency
# rate. FP16 gradients give 1.33 times on 2 nodes, and 1.2 times on 4, where MPI's recursive doubling sends two thirds
# of the bytes. Where measured efficiencies are higher than predicted, part of the exchange went on while cores
# computed, or waited for other work anyway. `labkit.testbed` has the wires: packets wait at each node's interface until
# its rate admits them. Without the right to make networks, the cells print the predictions alone, and the table says
# why.
#
# **The storage of section 9** One node notices little, two get about half, three a third. A machine whose nodes read
# from files faster than they train in section 5 gets less.
#
# **Timing** The first part, sections 1 to 7 and the questions, takes about an hour, and the second, sections 8 to 12,
# about 50 minutes: a break fits between them. All cells wait about 6 minutes on two cores, 1½ of them in section 5.
# Short of time? Leave the second part out, or its sections 9 and 10. The fast ones take "To go further" in section 12.
#
# **If they ask** about *launchers*: Bede's `ddlrun` found the topology: its log has `-mode p:4x1x1x1`, sizes of levels
# from the inside to the outside, here 4 GPUs in one node and one of each level above. Gradients are then summed inside
# a node first.
#
# **What goes wrong** A real cluster's queue is full: after two minutes the job is cancelled, and the cell says what to
# set to continue with ranks of this machine. A job is FAILED: the last lines of its log are in the error. Two notebooks
# at the same time share the small Slurm, and wait for each other's jobs.
#
# </div>

# %% [markdown]
# ## Remember
#
# - A job script says what it needs. Between 1 and 16 nodes, only the number of nodes changes.
# - The rate follows the batch, with a warm-up. The stream of images does not depend on the number of ranks.
# - A run that is told to stop saves its state and exits. A run that is killed resumes from its last checkpoint. Try
#   both before you need them.
# - Images/s can double while the network learns nothing more. Look at accuracy, and at time to accuracy.
# - Before you measure, put the published figures into a model: it can rule out a network or a storage in a minute.
# - A network costs half where it carries a step's gradients in just the time that the step computes. Half the bytes, or
#   twice the computing between two exchanges, halve that rate. FP16 halves the bytes only where its sums do not go by
#   MPI.
# - A network that is the same everywhere costs more and more, slowly. A limit that all share costs at once. Which one
#   it is, only runs can tell: in turns, with an interval. Measure before you buy.
#
# What was published, what you measured, and what the machine could do at most:

# %% jupyter={"source_hidden": true}
saved = ""
if "weak-2" in stopping:
    saved = Measured(stopping["weak-2"], unit="s", digits=1, note="one run")
final = runs[max(runs)][-1]
chance = 1.96 * math.sqrt(final["top1"] * (1 - final["top1"]) / final["images"])
top1 = [100 * min(1.0, max(0.0, final["top1"] + way * chance)) for way in (0, -1, 1)]
results.table(
    "training on a cluster",
    [
        (
            "Bede: weak scaling, 4 → 16 GPUs",
            '100%; "no speedup" with 32 (of what, is not said)',
            "",
            "100%",
        ),
        ("Goyal et al.: weak scaling on 256 GPUs", "90%", "", "100%"),
        *results.handed_in(
            "8",
            (f"here: weak scaling, resnet8, {NODE}s", ""),
            (f"here: strong scaling, resnet8, {NODE}s", ""),
            ("here: the wires on which half of a step is exchange", ""),
        ),
        *results.handed_in("9", ("here: nodes from one storage, of the images/s from files", "")),
        (
            "from the stop signal to saved state",
            "",
            saved,
            "30 s, Slurm's default KillWait",
            stopped_others,
        ),
        *results.handed_in(
            "12", ("ResNet-50 on ImageNet after 50 epochs: top-1; top-5", "75.863%; 92.823%")
        ),
        (
            f"resnet8 on synthetic images, {EPOCHS} epochs: top-1",
            "",
            Measured(*top1, "%", digits=1, note=f"one run, {final['images']} images"),
            "100%",
        ),
        (
            "reading images, small set",
            "",
            Measured(*small, unit="images/s", digits=0),
            f"needed: {first_round['weak', 2][0]:,.0f} images/s",
            reading_others,
            resumed_others,
        ),
    ],
)

# %% [markdown]
# Published: [Bede's guide](https://bede-documentation.readthedocs.io), its ResNet-50 benchmark, and [its
# hardware](https://n8cir.org.uk/bede/bede-hardware/); Goyal et al. 2017.
#
# Where you are on the way from this machine's default to the fastest it can do, over all labs:

# %%
ladder.show(results)

# %%
if started:  # by this notebook, so nobody else needs it
    stop_slurm()
    print("The small Slurm has ended. Section 1 starts it again.")

# %% [markdown]
# Next: [lab 09](09_kmeans_daal4py.ipynb) leaves neural networks, and distributes a clustering.
