# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 08 · ResNet-50 on a cluster
#
# **You will** read a recipe that trained ResNet-50 on a cluster, submit it to Slurm, watch it, stop it, and resume it.
# You will measure how it scales, use a model to see what can keep a run from scaling beyond 16 GPUs, as a published one
# did not, find two such limits on nodes that are joined by wires, and try three ways to move the first of them.
#
# **Time** {minutes}
#
# **Run, or scale** Sections 1 to 6 are about running, and are the core. Sections 7 to 9 are about scaling: they need
# the cells of sections 1 to 6, but not their exercises.
#
# **Connects to** lab 03, which makes one process of ResNet-50 fast; lab 04, where small gradients vanish in 16 bits and
# loss scaling saves them; lab 06, which builds the all-reduce and its model; and lab 07, which makes a script
# distributed.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
import itertools
import json
import math
import os
import re
import shutil
import time

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Code

from labkit.data import synthetic
from labkit.display import plots
from labkit.display.measured import Measured
from labkit.exercises import open_lab
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

check, results, machine, work = open_lab("08", globals())
cores = machine.usable_cores

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
TRAIN, VALIDATION = (160, 50) if QUICK else (2_000, 500)  # images
READ_BATCHES = 5 if QUICK else 60  # section 4
EPOCHS, BATCH = (2, 64) if QUICK else (10, 64)  # section 5, and images in a step
TRAININGS = 1 if QUICK else 2  # on one node, and on two
LOG_EVERY, EVALUATE_EVERY = (2, 0) if QUICK else (10, 5)  # steps, and epochs
STEPS = 12 if QUICK else 48  # section 6
SCALING_ROUNDS = 1 if QUICK else 3  # section 7; the first is what sections 5 and 6 have measured
STEP_ROUNDS, STEP_SECONDS = (1, 0.2) if QUICK else (3, 0.6)  # section 8, the first wall
STORAGE_TRAINERS = 1 if QUICK else 2 if cores < 4 else 3  # nodes that train, at most: the second wall
STORAGE_ROUNDS = 1 if QUICK else 2
OPTIMIZERS = {} if QUICK else {"momentum": 0.8, "lars": 8}  # and their rates: section 9

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
    print(slurm.network or "What is between the nodes is the cluster's, or this machine's memory.")
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
srun bash -c 'echo "Rank $SLURM_PROCID of $SLURM_NTASKS: node $SLURMD_NODENAME, $(nproc) CPUs for me."'
""")
Code(filename=work / "hello.sbatch", language="bash")

# %% [markdown]
# Slurm has a command for each thing you do with a job: `sbatch` submits it, `squeue` shows its state, `scancel` cancels
# it. The cell below submits the script and waits. If you interrupt a cell that waits for a job, the job is cancelled
# too.


# %%
def submit(script, *args, nodes, name):
    """Submit a job script and return the job. What the job prints goes to work/NAME.log."""
    output = work / f"{name}.log"
    command = ["sbatch", "--parsable", f"--nodes={nodes}", "--time=00:15:00", f"--output={output}"]
    # KIT tells the script where the training program is.
    return submit_job(slurm, *command, os.path.relpath(script), *args, output=output, env={"KIT": ROOT})


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
    held = slurm_command("sbatch", "--parsable", "--hold", work / "hello.sbatch").partition(";")[0]
    print(slurm_command("squeue", f"--jobs={held}"))
    slurm_command("scancel", held)

# %% [markdown]
# ## 2 · The recipe
#
# In 2020, the guide of Bede, a GPU cluster of British universities, showed how to train ResNet-50 on ImageNet. The kit
# has a program that takes all the flags of the guide's command line, written for CPUs and for any number of ranks, that
# is, any [**world size**](../docs/glossary.md#world-size): `labkit/train`. Pasted behind `python -m labkit.train`, the
# guide's flags run here too; only the two folders are others. (256 images of ResNet-50 at a time need a node with much
# memory, so this lab takes smaller values.) Like Bede's program, it uses Horovod, whose last release is of 2023. The
# recipe and the job script would be the same with PyTorch's `DistributedDataParallel`; lab 07 says which call stands
# for which. This is what the flags are for:
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
# | `--label_smoothing` | 0.1 | asks for 90% certainty, not 100%, so that weights don't grow without end | the same |
# | `--momentum` | 0.875 | steps follow a mean of past gradients, which is less noisy than one | the same |
# | `--weight_decay` | 1/32,768 | pulls weights towards 0 | 1/10,000 |
# | `--precision` | `fp16` | half the bytes, and more speed on its GPUs | `fp32` |
# | `--use_static_loss_scaling`, `--loss_scale` | on, 1,024 | gradients times 1,024 don't vanish (lab 04) | off |
# | `--use_xla` | on | XLA compiles forward and backward pass; it cannot compile Horovod's operations | off |
# | `--data_dir` | ImageNet as TFRecords | the images, on a file system that all nodes see | synthetic images |
# | `--results_dir` | `run_results` | log and checkpoints, also where all nodes see them | `work/…` |
#
# The glossary has more about [**batch size**](../docs/glossary.md#batch-size),
# [**warm-up**](../docs/glossary.md#warm-up), [**cosine schedule**](../docs/glossary.md#cosine-schedule), [**label
# smoothing**](../docs/glossary.md#label-smoothing), [**weight decay**](../docs/glossary.md#weight-decay), [**mixed
# precision**](../docs/glossary.md#mixed-precision), [**loss scaling**](../docs/glossary.md#loss-scaling), and [**top-1
# and top-5**](../docs/glossary.md#top-k).
#
# `fp16` is for hardware that computes in it: GPUs, and Intel's server CPUs since 2023 (AVX512-FP16). Other CPUs convert
# the numbers back and forth, at a fraction of the speed, and TensorFlow says so in a red line. `bf16` is what more CPUs
# have. XLA on a CPU is mostly slower than oneDNN's kernels. So both are off here.
#
# The heart of the program is one training step. It is what you wrote in lab 07, plus accumulation, loss scaling and
# compression. Here it is, as the program has it in `labkit/train/loop.py`. Only one line in it talks to other ranks:
# find it. (TensorFlow prints notices in red when it starts. They are not errors.)

# %%
import horovod.tensorflow as hvd
import tensorflow as tf

from labkit.models.losses import cross_entropy


def make_train_step(config, network, optimizer):
    """Return the function that takes one step: `accumulate` batches and a rate in, their cross-entropy out.

    The gradient is that of one batch as large as all of theirs on all ranks; batch norms see one batch at a time.
    """
    scale, share = config.static_loss_scale, 1 / config.accumulate
    compression = getattr(hvd.Compression, config.compression)
    sums = [tf.Variable(tf.zeros(w.shape), trainable=False) for w in network.weights] if config.accumulate > 1 else []

    def backward(images, labels):
        with tf.GradientTape() as tape:
            loss = cross_entropy(network(images, training=True), labels, config.label_smoothing)
            scaled = scale * loss  # otherwise small gradients vanish in 16 bits
        gradients = tape.gradient(scaled, network.weights)
        return loss, [g * (share / scale) for g in gradients]

    if config.use_xla:  # it can compile all but Horovod's operations, so the gradients leave it all at once
        backward = tf.function(backward, autograph=False, jit_compile=True)

    @tf.function(autograph=False)  # it has no loop or if to translate, and would look for them in Horovod for seconds
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
        # Horovod: average each gradient over all ranks, as soon as it is there, while earlier layers' are computed.
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
#   1706.02677](https://arxiv.org/abs/1706.02677)). The result is the *peak*.
# - The **warm-up**: in the first `warmup` steps the rate rises in a straight line, from 0 at step 0 to the peak.
# - The **cosine schedule**: from there the rate falls as half a cosine, to 0 at step `steps`.
#
# As code:


# %%
def learning_rate(step, steps, warmup, batch, lr_init):
    """Return the rate of a step, 0 to steps - 1, with `batch` images a step: the program's, with --use_cosine_lr."""
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
    steps = math.ceil(BEDE_EPOCHS * steps_per_epoch)
    rates = [learning_rate(step, steps, BEDE_WARMUP * steps_per_epoch, batch, 0.256) for step in range(steps)]
    schedules[workers] = np.arange(steps) / steps_per_epoch, rates
    print(f"{workers:>5,} workers: {batch:>7,} images a step, {steps:>6,} steps in all, peak {max(rates):.4g}")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
for workers, (epochs, rates) in schedules.items():
    axis.plot(epochs[1:], rates[1:], label=f"{workers:,} workers", markevery=len(rates) // 8)
axis.set(
    xlabel="epoch", ylabel="learning rate", yscale="log", ylim=(1e-3, 1e3), title="One recipe, more and more workers"
)
axis.legend(ncols=2)
plots.show(
    figure,
    alt="Learning rate, logarithmic, against epoch for 4, 16, 32 and 1,024 workers: four curves of one shape, rising "
    "for 8 epochs and falling to 0 at epoch 50. Their peaks are 1.02, 4.1, 8.2 and 262.",
)

# %% [markdown]
# Plotted against epochs, all curves have the same shape. Counted in steps they do not: 1,024 workers take five steps an
# epoch, with a peak of 262.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Can a training run with that peak work? Section 9 returns to this question.
#
# </div>
#
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
# The program multiplies `--lr_init` by `batch / 256`, and counts `--lr_warmup_epochs` in epochs.


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
    print(f"{name:24} --num_iter={epochs:<3} --lr_init={lr_init:.3f} --lr_warmup_epochs={warmup:.1f}{never}")

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
from labkit.models.optimizers import trust_ratio as programs_trust_ratio
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
    alt="Twenty synthetic images, cropped and mirrored as the training sees them, each with its class above it: disc, "
    "ring, square, triangle, cross, star, stripes, chequers, dots, in random colours and with noise.",
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
        taken = [my_images(step, rank, ranks, batch, 10, orders.__getitem__) for rank in range(ranks)]
        print(f"   step {step}:", " | ".join(" ".join(str(int(image)) for image in part) for part in taken))

# %% [markdown]
# The program's own reader, `labkit/data/tfrecords.py`, does this too. And because a rank can enter the stream at any
# place, a training run that was interrupted resumes with exactly the image that would have been next.
#
# How many images a second does it read, decode and crop, with nothing else to do? Training should need fewer.


# %%
def pipeline_speed(folder, size, batch, batches):
    """Return the images/s that this process reads, decodes and crops, with nothing else to do."""
    data = iter(records.training(tfrecords.index(folder, "train"), size, batch, least_area=0.5))
    next(data)
    began = time.perf_counter()
    for _ in range(batches):
        next(data)
    return batch * batches / (time.perf_counter() - began)


with load.watch("section 4") as reading_others:
    small = pipeline_speed(images, 32, 64, READ_BATCHES)
print(f"the pipeline alone, {cores} cores, small images: {small:,.0f} images/s")

# %% [markdown]
# ## 5 · Submit it
#
# The job script for training is `env/slurm/train.sbatch`. Its last lines start the program on every node:

# %%
script = ENV / "slurm" / "train.sbatch"
Code(data=script.read_text(), language="bash")

# %% [markdown]
# `train` submits this script, follows the log of the run, and returns the log's records. Without Slurm, it starts the
# same program by `mpirun`. (`stop_at` and `signal` are for the next section.)

# %%
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
recipe = ["--model", "resnet8", "--data_dir", images, "--lr_init", 0.8, "--lr_warmup_epochs", EPOCHS / 10]
recipe += ["--use_cosine_lr", "--weight_decay", 1e-4, "--least_area", 0.5, "--log_every", LOG_EVERY]

runs = {}
with watch_nodes(slurm, "section 5") as training_others:
    for n in counts[:TRAININGS]:
        each = ["--num_iter", EPOCHS, "--evaluate_every", EVALUATE_EVERY, "--batch_size", BATCH // n]
        runs[n] = train(f"strong-{n}", n, *recipe, *each)
        last = runs[n][-1]
        print(f"   top-1 {last['top1']:.1%}, top-5 {last['top5']:.1%} of {last['images']} held-out images\n")

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 3, figsize=(13, 4.3))
for (n, run), style in zip(runs.items(), ("-", "--")):
    steps = [record for record in run if record["event"] == "train"]
    tests = [record for record in run if record["event"] == "evaluate"]
    epochs = [record["epoch"] for record in steps]
    name = f"{n} {NODE}{'s' * (n > 1)} × {BATCH // n} images"
    axes[0].plot(epochs, [record["cross_entropy"] for record in steps], style, marker="", label=name)
    axes[1].plot(epochs, [record["learning_rate"] for record in steps], style, marker="", label=name)
    per_epoch = steps[-1]["step"] / steps[-1]["epoch"]
    axes[2].plot([r["step"] / per_epoch for r in tests], [100 * r["top1"] for r in tests], linestyle=style)
for axis, what in zip(axes, ("cross entropy", "learning rate", "top-1 (%)")):
    axis.set(xlabel="epoch", ylabel=what)
axes[2].set_ylim(0, 100)
figure.suptitle("The same training, done by one and shared by two")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
plots.show(
    figure,
    alt="Cross entropy, learning rate and top-1 against epoch, a line for each run. The rate rises, and "
    "falls as half a cosine. At the end, "
    + " and ".join(
        f"on {n} the cross entropy is {run[-2]['cross_entropy']:.2f} and top-1 {run[-1]['top1']:.1%}"
        for n, run in runs.items()
    )
    + ".",
    keep=results,
)


def tell_accuracy(name, top1, reference, images):
    """Print how far two shares of right answers are apart, and whether that is more than chance.

    Of so many held-out images, another sample would give other shares: the standard error of each is √(p(1 - p) / n).
    """
    p = (top1 + reference) / 2
    chance = 1.96 * math.sqrt(2 * p * (1 - p) / images)
    verdict = "more than" if abs(top1 - reference) > chance else "no more than"
    print(f"{name}: {100 * (top1 - reference):+.1f} points, {verdict} the {100 * chance:.1f} of chance")


if len(runs) == 2:
    first, second = (run[-1] for run in runs.values())
    tell_accuracy("top-1 of the second run beside the first", second["top1"], first["top1"], first["images"])

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
    # A record tells of the step that was just done: number 10 of them is step 9, as they are counted from 0.
    rate = learning_rate(record["step"] - 1, steps, EPOCHS / 10 * per_epoch, BATCH, 0.8)
    print(f"step {record['step']:>4}: the log says {record['learning_rate']:.6f}, the rules say {rate:.6f}")
    assert math.isclose(rate, record["learning_rate"], rel_tol=1e-4, abs_tol=1e-9)

# %% [markdown]
# ## 6 · Stop it
#
# Jobs end early: the time limit is reached, somebody else needs the nodes, or a node breaks. Slurm then sends
# **SIGTERM** to all ranks, and SIGKILL some time later. The program uses the time in between: the ranks agree on the
# step after which they stop, rank 0 saves a [**checkpoint**](../docs/glossary.md#checkpoint) (weights, momentum, and
# the batch norms' averages), and all ranks exit with status 75, which means "stopped, and all is saved".
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
    first = next(record["step"] for record in resumed if record["event"] == "train" and record["step"] > at)
    print(f"stopped after step {at}; the first step logged after that is {first}, the last one {newest('weak-2')}")
    print(f"from the signal until all was saved: {stopping['weak-2']:.2f} s, of which writing took ", end="")
    print(f"{next(record['seconds'] for record in resumed if record['event'] == 'stop'):.2f} s")
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
# **Guess first.** How many steps are lost?
#
# </div>

# %%
if not QUICK:
    killed = train("killed", 2, *recipe, *weak, stop_at=40, signal="USR2")
    reached = newest("killed")  # the newest that the log knew of
    resumed_at = sorted((work / "killed" / "checkpoints").glob("step-*"))[-1].name.removeprefix("step-")
    train("killed", 2, *recipe, *weak, resume=True)
    print(f"killed when step {reached} was logged; resumed after step {int(resumed_at)}, and reached step ", end="")
    print(f"{newest('killed')}. It had to repeat {reached - int(resumed_at)} steps.")

# %% [markdown]
# A checkpoint is written under a hidden name, and renamed when it is complete. If the power fails while one is being
# written, no harm is done: the incomplete file never gets the checkpoint's name.
#
# Two of the runs had 64 images on each node: one node in section 5, and two here. The [**scaling
# efficiency**](../docs/glossary.md#scaling-efficiency) of two nodes is their images/s, divided by twice those of one.
# One round of each says nothing about chance: section 7 measures more.


# %%
def speed(run):
    """Return the median images/s of a run, without what was measured first."""
    speeds = [r["images_per_second"] for r in run if r["event"] == "train" and r["images_per_second"]]
    return float(np.median(speeds[1:] or speeds))


def efficiency_of(speeds):
    """Return each configuration's efficiency, with its interval, by (way, nodes); one node is 100%."""
    ratios = statistics.ratios(speeds, ("weak", 1))
    return {(way, n): statistics.Ratio(*(part / n for part in ratio)) for (way, n), ratio in ratios.items()}


def in_percent(share):
    """Return a share with its interval, when there is one, as a figure in per cent."""
    return Measured(*(100 * np.array(share)), "%", digits=0)


first_round = {("weak", 1): [speed(runs[1])], ("weak", 2): [speed(resumed)]}
efficiencies = efficiency_of(first_round)
one, two = (found[0] for found in first_round.values())
print(f"images/s of one {NODE}: {one:,.0f}; of two: {two:,.0f}; efficiency {efficiencies['weak', 2].value:.0%}")

# %% [markdown]
# ## 7 · How does it scale?
#
# Two questions are often confused:
#
# - [**Strong scaling**](../docs/glossary.md#strong-scaling): the same 64 images a step, shared among more and more
#   nodes. Each node computes less, and sends as much.
# - [**Weak scaling**](../docs/glossary.md#weak-scaling): 64 images on *each* node. The images in a step grow with the
#   nodes, and each step has to teach more.
#
# All nodes have the same number of cores and threads, and those of the small Slurm send their gradients over the wires
# of section 1. Both ways start from one node, so sections 5 and 6 have measured each once already. But other work, or
# the machine's clock, may have slowed down one of these runs alone. So measure all of them once more, **in turns**.
# What slows down a whole round is then the same for all, and what is left is noise. From it comes the 95% interval of
# each ratio: from the rounds, each a launch of its own, and not from the steps, since a relaunch is another sample.
# Three rounds are enough to begin with. Each takes about half a minute with two nodes, and a minute with four.


# %%
def tell_efficiency(speeds):
    """Print speeds and efficiencies, and what their intervals say, and no more."""
    words = {"slower": "below 100%", "faster": "above 100%", "no difference beyond chance": "not told apart from 100%"}
    for (way, n), found in efficiency_of(speeds).items():
        if n > 1:
            verdict = words.get(found.verdict, found.verdict)
            mean = float(np.exp(np.mean(np.log(speeds[way, n]))))
            print(f"{way:7} {n:>3}{mean:>8,.0f} images/s   efficiency {in_percent(found)}: {verdict}")
    for n in [n for way, n in speeds if way == "strong"]:
        both = statistics.ratios(speeds, ("strong", n))["weak", n]
        print(f"on {n}, weak scaling has {both} times the images/s of strong scaling: {both.verdict}")


# %%
speeds = {configuration: [*found] for configuration, found in first_round.items()}
if 2 in runs:
    speeds["strong", 2] = [speed(runs[2])]
    speeds |= {(way, n): [] for n in counts[2:] for way in ("strong", "weak")}
with watch_nodes(slurm, "section 7") as scaling_others:
    for number in range(SCALING_ROUNDS):
        for (way, n), found in speeds.items():
            if len(found) == number:  # the first round is there, of what ran before
                each = BATCH if way == "weak" else BATCH // n
                flags = ["--num_iter", 40, "--iter_unit", "batch", "--mode", "train", "--batch_size", each]
                found.append(speed(train(f"{way}-{n}-round", n, *recipe, *flags, "--log_every", 5)))
efficiencies.update(efficiency_of(speeds))
print(f"one {NODE}: {np.mean(speeds['weak', 1]):,.0f} images/s")
tell_efficiency(speeds)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
for way, style in (("strong", "-"), ("weak", "--")):
    found = {n: part for (name, n), part in efficiencies.items() if name == way or n == 1}
    half = [[100 * (r.value - r.low) for r in found.values()], [100 * (r.high - r.value) for r in found.values()]]
    percent = [100 * r.value for r in found.values()]
    half = half if SCALING_ROUNDS > 1 else None
    axis.errorbar(list(found), percent, half, linestyle=style, capsize=6, label=f"{way} scaling")
axis.axhline(100, color=plots.BLACK, linewidth=1)
axis.set(xlabel=f"{NODE}s", ylabel="efficiency (%)", title="Strong and weak scaling on this machine")
axis.set_xticks(counts)
axis.set_ylim(0)
axis.legend()
alt = ", ".join(f"{way} on {n}: {100 * found.value:.0f}%" for (way, n), found in efficiencies.items() if n > 1)
plots.show(figure, alt=f"Efficiency against the number of {NODE}s, with 95% intervals. {alt}.", keep=results)
if not slurm or slurm.kind == "own":
    wires = "The wires are held to their rate, but these" if slurm and slurm.network else "These"
    print(f"{wires} {NODE}s share one memory, caches and, as more cores work, a lower clock. A cluster's do not.")


# %% jupyter={"source_hidden": true}
others = {"strong": (training_others, scaling_others), "weak": (training_others, resumed_others, scaling_others)}
results.hand_in(
    "7",  # for the closing table
    *(
        (f"here: {way} scaling, resnet8, {n} {NODE}s", "", in_percent(found), "100%", *others[way])
        for (way, n), found in sorted(efficiencies.items())
        if n > 1
    ),
)

# %% [markdown]
# ## 8 · Why were 32 GPUs no faster than 16?
#
# Bede's guide reports about 4,500 images/s on 4 GPUs and about 18,000 on 16: a scaling efficiency of 100%. About 32
# GPUs it has no figure. It says that this configuration is no faster there, and that the run's *basic parameters* are
# what keeps it from scaling much beyond 16 GPUs. Which parameters, it does not say, nor whether the images/s were no
# higher or the hours of a run no fewer. To do better is left to its readers. There are four possible causes. **Choose
# one before you read on.**
#
# | | possible cause | parameters that bear on it |
# | --- | --- | --- |
# | a | the network: 102 MB of gradients in each step | images in a step, gradients' precision |
# | b | reading: all GPUs read their images from one file system | where the files are, how many threads read |
# | c | the batch: 32 × 256 = 8,192 images a step, and the accuracy suffers | rate, warm-up, optimizer |
# | d | what does not shrink: start, evaluation, checkpoints | how often each is done |
#
# Arithmetic can show what some of them would look like. Here is a model of one step, for n workers:
#
# - **Computing** takes `compute` seconds on each worker, on all of them at the same time.
# - The [**all-reduce**](../docs/glossary.md#all-reduce) is a [**ring**](../docs/glossary.md#ring): 2(n − 1) messages,
#   one after the other, each of `gradient / n` bytes. A message takes `latency` seconds, plus its bytes divided by
#   `bandwidth` (bytes/s). Lab 06 builds this ring.
# - The all-reduce [**overlaps**](../docs/glossary.md#overlap) with the computing in part: the last layers' gradients
#   travel while the first layers' gradients are computed. As long as it takes no more than `hidden × compute` seconds,
#   it costs nothing. Whatever is longer is added to the step.
# - **Reading**: the shared storage needs `reading` seconds for the images of one worker, and n times that for the
#   images of all. It happens while the step is computed and reduced, so a step takes at least as long as the reading.
#
# ### Exercise 3 · Predict the efficiency
#
# Write `efficiency(n, compute, gradient, latency, bandwidth, hidden, reading)`: the time of a step of one worker,
# divided by the time of a step of n workers. Each worker always has the same number of images, so this is weak scaling.
# One worker sends nothing, but it reads.


# %%
def efficiency(n, compute, gradient, latency, bandwidth, hidden=0.0, reading=0.0):
    """Return the weak-scaling efficiency of n workers, 0 to 1; times in s, gradient in bytes, bandwidth in bytes/s."""

    ### BEGIN SOLUTION
    def step(n):
        ring = 2 * (n - 1) * (latency + gradient / n / bandwidth)
        return max(compute + max(0, ring - hidden * compute), n * reading)

    return step(1) / step(n)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
efficiency = check(3, efficiency)

# %% [markdown]
# Now put in Bede's numbers. The speed of a GPU is published. **Everything about the network and the storage is our
# assumption**: change it, and see what happens. The last two scenarios have a limit that many workers share. The
# storage's is set to what 16 GPUs read, so that it *must* be reached there: the model shows what such a limit looks
# like, not that there was one. In the other, 16 workers are at one switch, and the cables between switches carry less
# than their ports together: such a network is called **oversubscribed**.

# %% tags=["nbval-check-output"]
COMPUTE = BEDE_BATCH / (4_500 / 4)  # s a step: 256 images at a quarter of the speed of 4 GPUs
GRADIENT = 25.6e6 * 4  # bytes: ResNet-50's weights in float32
IMAGE = 110e3  # bytes of an average image of ImageNet, as JPEG
FAST, SLOW = (2e-6, 100e9 / 8), (50e-6, 10e9 / 8)  # s, bytes/s: 100 Gbit/s with RDMA, 10 Gbit/s Ethernet
HIDDEN = 0.5  # of the computing, in which gradients travel: all of back-propagation would be about two thirds
STORAGE = 18_000 * IMAGE  # bytes/s of a shared file system: chosen so that 16 GPUs are just not held up
SWITCH, BETWEEN = 16, 5e9 / 8  # workers at one switch; bytes/s of a worker whose messages go to another switch

scenarios = {
    "100 Gbit/s": {"gradient": GRADIENT, "latency": FAST[0], "bandwidth": FAST[1]},
    "10 Gbit/s": {"gradient": GRADIENT, "latency": SLOW[0], "bandwidth": SLOW[1]},
    "10 Gbit/s, FP16 gradients": {"gradient": GRADIENT / 2, "latency": SLOW[0], "bandwidth": SLOW[1]},
    "100 Gbit/s, shared storage": {
        "gradient": GRADIENT,
        "latency": FAST[0],
        "bandwidth": FAST[1],
        "reading": BEDE_BATCH * IMAGE / STORAGE,
    },
    "100 Gbit/s, 5 between switches": {"gradient": GRADIENT, "latency": FAST[0], "bandwidth": FAST[1]},
}


def predict(name, n):
    """Return a scenario's efficiency; a ring is as fast as its slowest link."""
    scenario = scenarios[name]
    if "switches" in name and n > SWITCH:
        scenario = scenario | {"bandwidth": BETWEEN}
    return float(efficiency(n, COMPUTE, hidden=HIDDEN, **scenario))


print(f"{'efficiency':32}" + "".join(f"{n:>8,}" for n in (4, 16, 32, 64, 256, 1024)))
for name in scenarios:
    print(f"{name:32}" + "".join(f"{predict(name, n):>8.0%}" for n in (4, 16, 32, 64, 256, 1024)))

# %% jupyter={"source_hidden": true}
figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.4))
workers, curves = [2**k for k in range(11)], {}
for name, style in zip(scenarios, ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))):
    values = [predict(name, n) for n in workers]
    curves[name] = dict(zip(workers, values))
    left.plot(workers, [100 * value for value in values], linestyle=style, marker="", label=name)
    right.plot(
        workers, [n * value * BEDE_BATCH / COMPUTE for n, value in zip(workers, values)], linestyle=style, marker=""
    )
left.plot([4, 16], [100, 100], "s", color=plots.BLACK, label="Bede: 4 and 16 GPUs")
left.plot(256, 90, "P", color=plots.VERMILION, markersize=11, label="Goyal et al.: 256 GPUs")
left.plot([512, 512], [90, 68], "D", color=plots.PURPLE, label="Horovod: 512, two networks")
right.plot([4, 16], [4_500, 18_000], "s", color=plots.BLACK)
left.set(xscale="log", xlabel="workers", ylabel="efficiency (%)", ylim=(0, 108))
right.set(xscale="log", yscale="log", xlabel="workers", ylabel="images/s")
for axis in (left, right):
    axis.set_xscale("log", base=2)
    axis.set_xticks(workers[::2], [f"{n:,}" for n in workers[::2]])
figure.suptitle("Predicted from 1 to 1,024 workers, beside what was published")
figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=11)
plots.show(
    figure,
    alt="Left, efficiency against workers from 1 to 1,024 in five scenarios: "
    + "; ".join(f"{name}: {values[32]:.0%} at 32 and {values[1024]:.0%} at 1,024" for name, values in curves.items())
    + ". Published: 100% at 16 GPUs; 90% at 256; 90% and 68% at 512. Right, images per second: the lines of networks "
    "go on rising, that with switches after a step at 16 workers; the storage's stops at 18,000.",
    keep=results,
)

# %% [markdown]
# **A network that is the same everywhere bends; a shared limit breaks.** A ring sends 2(n − 1)/n of the gradient: 1.5
# times its size on 4 workers, 1.94 times on 32. So such a network, if it allows 100% on 16 workers, can hardly cost
# half on 32. A shared limit is different: below it nothing is lost, then the step is longer at once. Both the storage
# and the oversubscribed switch look like "no speedup" between 16 and 32. They differ on 64: the storage still gives
# 18,000 images/s, while behind the switch the speed doubles again.
#
# So the model makes (b), and one kind of (a), suspects, and no more: the limits were put in by us. And the model is
# optimistic: every published point at 256 and 512 lies below its best line. It knows no slow rank, no other jobs on the
# network, no pause.
#
# What about the other two?

# %% tags=["nbval-check-output"]
for gpus, images_a_second in ((4, 4_500), (16, 18_000)):
    hours = BEDE_EPOCHS * IMAGENET / images_a_second / 3600
    print(f"{gpus:>2} GPUs: 50 epochs at {images_a_second:,} images/s take {60 * hours:.0f} minutes")
for gpus in (16, 32):
    steps_per_epoch = IMAGENET // (256 * gpus)
    print(
        f"{gpus:>2} GPUs: {256 * gpus:,} images a step, peak rate {0.256 * gpus:.1f}, {steps_per_epoch} steps an epoch"
    )

# %% [markdown]
# - **(d)** The guide gives about four hours on 4 GPUs and just over one hour on 16. Training alone takes that long at
#   these speeds, so little time is left for anything else, and 32 GPUs should have needed a bit more than half an hour.
# - **(c)** would not show in images/s. A step with too many images is as fast as before; it only *teaches less*. And
#   8,192 images a step is the size at which Goyal et al. were still about as accurate as with 256, with a schedule of
#   their own over 90 epochs. If *no speedup* means that the accuracy took as long to reach, this fits the guide's hint
#   best: batch, rate, and warm-up are the basic parameters of such a run.
#
# Which runs would separate the causes on such a cluster, within minutes?
#
# | run | if it is faster on 32, the cause was |
# | --- | --- |
# | without `--data_dir`: one synthetic batch again and again | reading (b) |
# | `--compression fp16`: half the bytes | the network (a) |
# | `--accumulate 4`: four times the images between two all-reduces | the network (a) |
# | none of these, as images/s are twice those of 16 anyway | the batch (c): look at top-1 |
#
# Exercise 5, in section 9, decides by such runs. The program's log also has `seconds_for_data`: how long rank 0 waited
# for images. Does *your* training wait?

# %%
for n, run in runs.items():
    steps = [record for record in run if record["event"] == "train"]
    waited = sum(record["seconds_for_data"] for record in steps[1:])
    took = sum((b["step"] - a["step"]) * BATCH / b["images_per_second"] for a, b in itertools.pairwise(steps))
    print(f"{n} {NODE}{'s' * (n > 1)}: {waited / took:.1%} of the time was spent waiting for images")

# %% [markdown]
# And the network of *this* cluster? Two nodes exchange a tenth of the bytes that ResNet-50's gradients have.

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
    print("SECONDS", json.dumps(medians))

# %%
(work / "allreduce.sbatch").write_text("""\
#!/bin/bash
#SBATCH --job-name=allreduce
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:02:00
srun --mpi=pmi2 "$KIT/.venv/bin/python" work/allreduce.py
""")
with watch_nodes(slurm, "section 8"):
    if slurm:
        job = submit(work / "allreduce.sbatch", nodes=2, name="allreduce")
    else:
        job = RankJob(2, work / "allreduce.py", threads=1)
    job.wait(on_state=lambda state: print("  ", state))
found = re.search(r"SECONDS (.*)", job.read_output())
if not found:
    raise LabError(f"the all-reduce did not run. It printed:\n{job.read_output()}")
seconds = json.loads(found[1])
latency, bandwidth = seconds["8 bytes"] / 2, GRADIENT / 10 / max(seconds["10 MB"] - seconds["8 bytes"], 1e-9)
print(f"all-reduce on 2 {NODE}s: 8 bytes {1e6 * seconds['8 bytes']:,.0f} µs, 10 MB {1e3 * seconds['10 MB']:,.1f} ms")
print(f"so a latency of {1e6 * latency:,.0f} µs and {bandwidth / 1e6:,.0f} MB/s, the additions included")

network = Network("resnet8")
gradient = 4 * sum(int(tf.size(weight)) for weight in network.weights)
predicted = float(efficiency(2, BATCH / np.mean(first_round["weak", 1]), gradient, latency, bandwidth))


def tell_prediction(predicted, found):
    """Print a predicted efficiency beside the measured one, and whether they can be told apart."""
    if math.isnan(found.low):
        print(f"the model predicts {predicted:.0%}; one round measured {found.value:.0%}, so there is no interval")
        return
    verdict = "inside" if found.low <= predicted <= found.high else "outside"
    interval = f"{found.low:.0%} to {found.high:.0%}"
    print(f"the model predicts {predicted:.0%}, which is {verdict} the measured {interval}")


print(f"resnet8, {gradient / 1e3:,.0f} kB, on 2 {NODE}s: ", end="")
tell_prediction(predicted, efficiencies["weak", 2])

# %% [markdown]
# Where the two differ, something matters that the model leaves out. Candidates:
#
# - `resnet8` has its gradients in some dozen small pieces. Horovod negotiates, gathers and reduces them in cycles of a
#   millisecond.
# - A step takes as long as its slowest rank.
# - Nodes that are shares of one machine share its memory and its clock.
#
# ### The first wall: the network
#
# Divide the bytes that a node sends in a step by the seconds for which it computes: these are the **bytes per second of
# computing**. A wire with this rate is busy for exactly as long as the cores. If nothing overlaps, half of each step is
# exchange, and the efficiency is 50%. Call this rate **the wall**: on faster wires a run scales, on slower ones it does
# not.
#
# On 32 workers like Bede's it is 2 · 31/32 · 102 MB in 0.23 s, about 7 Gbit/s. `resnet8` is smaller, so is its wall,
# and slow wires show on this machine what fast ones would show there. A network of this machine's nodes can have wires
# of any rate. On each node, `steps.py` takes the training step of section 2, on one synthetic batch, so nothing is
# read. In turns with it, it takes steps that compute the same and exchange nothing. The ratio of both is the
# efficiency. Both have the same cores, memory and clock, so what is left is the exchange.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** At which rate is half of a step of `resnet8` exchange, with 64 images on each node: about 1 Gbit/s,
# 100 Mbit/s, 10 Mbit/s, or 1 Mbit/s?
#
# </div>

# %%
# %%writefile work/steps.py
"""Measure the images/s of training steps with and without exchange, in turns: steps.py BATCH ROUNDS SECONDS WAY …"""

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
batch, rounds, seconds, names = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
network = Network("resnet8")
optimizer = Momentum(network.weights)
flags = {
    "no exchange": {"batch_size": batch},
    "exchange": {"batch_size": batch},
    "FP16 gradients": {"batch_size": batch, "compression": "fp16"},
    "4 batches a step": {"batch_size": batch, "accumulate": 4},
    "batches 4 times as large": {"batch_size": 4 * batch},
}
configs = {name: TrainConfig(**flags[name]) for name in names}


@tf.function(autograph=False)
def train_alone(images, labels):
    with tf.GradientTape() as tape:
        loss = cross_entropy(network(images, training=True), labels, 0.1)
    optimizer.apply(tape.gradient(loss, network.weights), 0.01)


def make_step(name):
    batches = synthetic_batches(network.model, configs[name].batch_size, rank=hvd.rank())
    if name == "no exchange":
        return lambda: train_alone(*next(batches))
    step = make_train_step(configs[name], network, optimizer)  # the program's, of section 2
    return lambda: float(step(batches, 0.01))


def measure(step, times):
    """Return the seconds of a step, the mean of all ranks."""
    hvd.allreduce(tf.constant(0.0))  # all begin together
    began = time.perf_counter()
    for _ in range(times):
        step()
    return float(hvd.allreduce(tf.constant((time.perf_counter() - began) / times)))


steps = {name: make_step(name) for name in names}
times = {name: max(2, round(seconds / min(measure(step, 1) for _ in range(2)))) for name, step in steps.items()}
took = {name: [] for name in names}
for _ in range(rounds):
    for name, step in steps.items():
        took[name].append(measure(step, times[name]))
if hvd.rank() == 0:
    images = {name: hvd.size() * config.batch_size * config.accumulate for name, config in configs.items()}
    print(json.dumps({name: [images[name] / part for part in took[name]] for name in names}))


# %%
PAYLOAD = 1448 / 1514  # of a packet on Ethernet, what is not headers
LEVERS = {"FP16 gradients": (1, 1 / 2), "4 batches a step": (4, 1), "batches 4 times as large": (4, 1)}


def measure_steps(rate, *names):
    """Return the images/s of each way to take a step, round by round, on nodes with wires of this rate."""
    options = BATCH, STEP_ROUNDS, STEP_SECONDS
    run = run_ranks(nodes, "work/steps.py", *options, *names, network=rate, show=False)
    print(run.network)
    return json.loads(next(line for line in run.lines[0] if line.startswith("{")))


def predicted_efficiency(rate, compute_factor=1, gradient_factor=1):
    """Return what exercise 3 predicts on wires of this rate, for so much computing and so large a gradient."""
    return float(efficiency(nodes, compute_factor * compute, gradient_factor * gradient, latency, PAYLOAD * rate / 8))


walls_watched, storage_watched = [], []
if no_wires:
    print(f"Not measured: {no_wires}")
    one_node = float(np.mean(first_round["weak", 1]))  # images/s
else:
    with load.watch("section 8") as others:
        steps_at = {RATE: measure_steps(RATE, "no exchange", "exchange")}
    walls_watched.append(others)
    one_node = float(np.mean(steps_at[RATE]["no exchange"])) / nodes
compute = BATCH / one_node  # s of computing a step
sent = 2 * (nodes - 1) / nodes * gradient  # bytes of each node a step, by the ring
wall = float(f"{8 * sent / compute / PAYLOAD:.2g}")
print(f"{nodes} nodes, {BATCH} images on each: {1e3 * compute:.0f} ms of computing a step, {sent / 1e3:,.0f} kB sent")
print(f"so {sent / compute / 1e6:.1f} MB per second of computing: the wall is predicted at {written(wall)}")
for rate in (RATE, wall, wall / 4):
    print(f"   {written(rate):>12}: predicted efficiency {predicted_efficiency(rate):.0%}")

# %% [markdown]
# Now at these rates. At the wall, three further ways to take a step are measured in the same turns; their results come
# below. The two runs take about half a minute.


# %%
def wall_of(rate, found):
    """Return the rate at which half of a step would be exchange, from the efficiency on wires of another rate.

    The exchange takes 1 / efficiency - 1 times as long as the computing, and with wires of half the rate twice that.
    """
    value, low, high = (rate * max(1 / part - 1, 0.0) for part in (found.value, found.high, found.low))
    return statistics.Ratio(value, low, high)


def tell_rate(found):
    """Return a rate as text, with its interval."""
    return written(found.value) + ("" if math.isnan(found.low) else f" ({written(found.low)} to {written(found.high)})")


def tell_wall(rate, found):
    """Print where an efficiency on wires of some rate puts the wall."""
    there = wall_of(rate, found)
    print(f"on wires of {written(rate)}, the efficiency is {found.value:.0%}: ", end="")
    print(f"half of a step is exchange at {tell_rate(there)}" if there.value else "no wall seen")


if no_wires or QUICK:
    print(f"Not measured: {no_wires or 'a quick run has the first rate alone.'}")
else:
    with load.watch("section 8") as others:
        steps_at[wall] = measure_steps(wall, "no exchange", "exchange", *LEVERS)
        steps_at[wall / 4] = measure_steps(wall / 4, "no exchange", "exchange")
    walls_watched.append(others)
at = {} if no_wires else {rate: statistics.ratios(found, "no exchange") for rate, found in steps_at.items()}
for rate, found in at.items():
    tell_wall(rate, found["exchange"])
    print("   ", end="")
    tell_prediction(predicted_efficiency(rate), found["exchange"])

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5))
rates = np.geomspace(wall / 16, 2 * max(RATE, wall), 60)
axis.plot(rates / 1e6, [100 * predicted_efficiency(rate) for rate in rates], marker="", label="predicted")
if at:
    found = [ways["exchange"] for ways in at.values()]
    half = [[100 * (r.value - r.low) for r in found], [100 * (r.high - r.value) for r in found]]
    half = half if STEP_ROUNDS > 1 else None
    x, y = [rate / 1e6 for rate in at], [100 * r.value for r in found]
    axis.errorbar(x, y, half, linestyle="", marker="s", color=plots.BLACK, capsize=6, label="measured")
axis.axvline(wall / 1e6, color=plots.VERMILION, linestyle=":", label="the wall, predicted")
axis.set(xscale="log", xlabel="rate of each wire (Mbit/s)", ylabel="efficiency (%)", ylim=(0, 108))
axis.set_title(f"At which rate {nodes} nodes stop scaling: resnet8, {BATCH} images a node")
axis.legend(loc="lower right")
measured = ", ".join(f"{ways['exchange'].value:.0%} at {written(rate)}" for rate, ways in at.items()) or "nothing"
plots.show(
    figure,
    alt="Efficiency against the rate of the wires, logarithmic: the predicted curve rises from near 0, is at 50% at "
    f"{written(wall)}, and comes near 100%. Measured: {measured}.",
    keep=None if no_wires else results,
)

# %% [markdown]
# Only the wires are emulated. The exchange also needs the cores: on a real network card, parts of it do not. And there
# is one switch, which is as fast as all of its wires together; large clusters have many, and they are often not.
#
# ### What moves the first wall?
#
# There are three ways to move the wall of the network: send fewer bytes (`--compression fp16`), send less often
# (`--accumulate`), or compute longer between two exchanges, by larger batches.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** At the wall, a step computes for half of its time. How many times the images/s does it have with FP16
# gradients? How many with one exchange for every 4 batches?
#
# </div>
#
# All three were measured above, in turns with the plain exchange, on wires with the rate of the wall.


# %%
def tell_levers(found, rate):
    """Print how many times the images/s of the plain exchange each lever has, and where it puts the wall."""
    plain = predicted_efficiency(rate)
    for name, gain in statistics.ratios(found, "exchange").items():
        if name not in LEVERS:
            continue
        predicted = predicted_efficiency(rate, *LEVERS[name]) / plain
        verdict = gain.verdict
        if not math.isnan(gain.low):
            verdict += f"; predicted {predicted:.2f}, {'in' if gain.low <= predicted <= gain.high else 'out'}side"
        print(f"{name}: {gain} times the images/s of the plain exchange: {verdict}")
        print("   ", end="")
        tell_wall(rate, statistics.ratios(found, "no exchange")[name])


if wall in at:
    tell_levers(steps_at[wall], wall)
else:
    print(f"Not measured: {no_wires or 'a quick run has one rate alone.'} Predicted, at the wall:")
    for name, lever in LEVERS.items():
        gain = predicted_efficiency(wall, *lever) / predicted_efficiency(wall)
        print(f"{name}: {gain:.2f} times the images/s of the plain exchange")

# %% [markdown]
# The model knows bytes and seconds of computing, and no more. Halving the numbers of a gradient takes time as well,
# and a batch that is 4 times as large may compute each image faster or slower. In the model, FP16 gradients move the
# wall to half the rate, and the other two move it to a quarter, for any network and any number of nodes. But the last
# two *change the training*: its steps have 4 times the images, which must still learn. Section 9 is about that.
#
# ### The second wall: one storage for all
#
# The other suspect was the storage. Here one more node has the images, and the others have none. The field's way to
# serve records to many nodes is TensorFlow's [**tf.data service**](../docs/glossary.md#tfdata-service): a dispatcher,
# which knows who wants what, and workers, which read the files. The trainers get the records over gRPC, each record
# once in an epoch of all. (A file system like Lustre or GPFS serves parts of files instead; the bytes are the same.)
#
# The nodes train `resnet8` as before, but each by itself, without exchange: so the only limit that they share is the
# wire of the storage. In turns, they read the same records from files, as if each node had a copy on its own disk.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The storage's wire carries half as much again as one node needs. How many percent does one node that
# trains from it lose? And two, or three?
#
# </div>

# %%
# %%writefile work/served.py
"""TFRecords from a storage: what its rank serves, and what the others read."""

from pathlib import Path

import tensorflow as tf

PORT = 5050
service = tf.data.experimental.service


def serve(address):
    """Start a dispatcher and a worker; they serve until what is returned is deleted."""
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=PORT))
    config = {"dispatcher_address": f"{address}:{PORT}", "worker_address": f"{address}:{PORT + 1}", "port": PORT + 1}
    return dispatcher, service.WorkerServer(service.WorkerConfig(**config))


def read(folder, batch, epochs=None):
    """Return the records of a training set, undecoded, a batch at a time; without `epochs`, for ever."""
    files = tf.data.Dataset.from_tensor_slices(sorted(map(str, Path(folder).glob("train-*"))))
    return files.repeat(epochs).flat_map(tf.data.TFRecordDataset).batch(batch)


def read_from(address, records, job):
    """Have the storage read these records: each goes to one of the trainers of a job, the first that asks."""
    how = {"job_name": job, "compression": None, "max_outstanding_requests": 2}  # a JPEG is compressed already
    return records.apply(service.distribute(service.ShardingPolicy.DYNAMIC, f"grpc://{address}:{PORT}", **how))


def decode(record):
    """Return the image and the label of a record."""
    fields = {"image/encoded": tf.string, "image/class/label": tf.int64}
    found = tf.io.parse_single_example(record, {name: tf.io.FixedLenFeature([], of) for name, of in fields.items()})
    image = tf.image.resize(tf.io.decode_jpeg(found["image/encoded"], channels=3), (32, 32))
    return image / 128 - 1, tf.cast(found["image/class/label"], tf.int32)


# %%
# %%writefile work/storage.py
"""Rank 0 serves TFRecords; 1, 2 … others train from it, or from files: storage.py ADDRESS FOLDER BATCH ROUNDS."""

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
    """Wait for all ranks, asleep: MPI's barrier polls, and would take a core from those who work."""
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
for number, seconds in [("first", 0.1), *((str(number), 1.2) for number in range(rounds))]:  # the first one traces
    for trainers in range(1, ranks.size):
        for where in ("files", "storage"):
            wait_for_all()
            mine = measure(where, f"{number}-{trainers}", seconds) if 1 <= ranks.rank <= trainers else 0.0
            wait_for_all()
            if (total := ranks.reduce(mine)) and number != "first":
                speeds.setdefault(f"{where} {trainers}", []).append(total)
if ranks.rank == 0:
    print(json.dumps(speeds))

# %% [markdown]
# The next cell predicts, by exercise 3 without a gradient, and measures. From files, nodes decode as well as train, so
# they need fewer images/s than above; the final prediction takes what they do from files, and adds the wire alone. The
# cell takes about 25 seconds.


# %%
def from_storage(found, n):
    """Return how many times the images/s of training from files n nodes have that train from the storage."""
    return statistics.ratios(found, f"files {n}")[f"storage {n}"]


def predicted_share(n, files):
    """Return what n nodes keep from the storage, as exercise 3 predicts it from their images/s from files."""
    return float(efficiency(n, n * BATCH / files, 0, 0.0, 1.0, reading=reading))


def tell_storage(found, trainers):
    """Print what each number of nodes trains from files and from the storage, beside what was predicted."""
    for n in trainers:
        ratio = from_storage(found, n)
        files, storage = (np.mean(found[f"{where} {n}"]) for where in ("files", "storage"))
        print(f"{n} trained {files:,.0f} images/s from files, {storage:,.0f} from the storage: {ratio.verdict}")
        print("   ", end="")
        tell_prediction(predicted_share(n, files), ratio)


size = float(np.mean(index.length))  # bytes of an image
storage_rate = float(f"{1.5 * 8 * one_node * size / PAYLOAD:.2g}")
trainers = [*range(1, STORAGE_TRAINERS + 1)]
reading = BATCH * size / (PAYLOAD * storage_rate / 8)  # s that the storage's wire needs for a batch
print(
    f"{size:,.0f} bytes an image, {one_node:,.0f} images/s a node; the storage's wire has {written(storage_rate)}, ",
    end="",
)
print(f"so it carries {BATCH / reading:,.0f} images/s")
for n in trainers:
    print(f"{n} training from the storage: predicted {predicted_share(n, n * one_node):.0%} of training from files")
served = {}
if no_wires:
    print(f"Not measured: {no_wires}")
else:
    with load.watch("section 8") as others, Testbed(1 + len(trainers), storage_rate) as wires:
        print(wires)
        options = wires.nodes[0].address, images, BATCH, STORAGE_ROUNDS
        run = run_ranks(len(wires.nodes), "work/storage.py", *options, network=wires, show=False)
    storage_watched.append(others)
    served = json.loads(next(line for line in run.lines[0] if line.startswith("{")))
    tell_storage(served, trainers)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5))
for where, name, style in (("files", "each from its own files", "-"), ("storage", "from one storage", "--")):
    if served:
        values = [np.mean(served[f"{where} {n}"]) for n in trainers]
        axis.plot(trainers, values, linestyle=style, label=name)
axis.axhline(BATCH / reading, color=plots.VERMILION, linestyle=":", label="the storage's wire")
axis.set(xlabel="nodes that train", ylabel="images/s", ylim=(0, None), title="Training from one shared storage")
axis.set_xticks(trainers)
axis.legend()
alt = "; ".join(f"{run}: {np.mean(found):,.0f}" for run, found in served.items()) or "nothing measured"
plots.show(
    figure,
    alt="Images/s against the number of nodes that train, from their own files and from one storage, beside a line for "
    f"what the storage's wire carries, {BATCH / reading:,.0f}. {alt}.",
    keep=results if served else None,
)

# %% jupyter={"source_hidden": true}
wall_figure = storage_figure = f"not here: {no_wires}" if no_wires else "not in a quick run"
most = trainers[-1]
from_files = np.mean(served[f"files {most}"]) if served else most * one_node
if wall in at:
    wall_figure = Measured(*(np.array(wall_of(wall, at[wall]["exchange"])) / 1e6), "Mbit/s", digits=1)
if served:
    storage_figure = in_percent(from_storage(served, most))
results.hand_in(
    "8",  # for the closing table
    (
        "here: the wires on which half of a step is exchange",
        "",
        wall_figure,
        f"predicted {written(wall)}",
        *walls_watched,
    ),
    (
        f"here: {most} node{'s' * (most > 1)} from one storage, of the images/s from files",
        "",
        storage_figure,
        f"its wire: {predicted_share(most, from_files):.0%}",
        *storage_watched,
    ),
)

# %% [markdown]
# What to do about such a wall? More storages, each with a wire of its own, or the files on the nodes' own disks; or
# smaller images. Fewer bytes of *gradients* change nothing here, and more bytes/s of *storage* nothing at the first
# wall. That is why exercise 5 asks for runs that tell the two apart.
#
# Again, only the wire is emulated. This storage has its files in memory after the first epoch, while one with disks has
# a limit of its own. And it shares the machine's cores with the nodes that it serves, which takes from their images/s.
#
# ## 9 · Move the limit
#
# Training that waits for the network can exchange its gradients less often, or take larger batches. Either way, a step
# has more images, and must *still learn*. This section first takes such a step within the memory of a smaller one, and
# then trains with it.
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
    """Return the gradients of the mean loss over all of x and y, from at most `most` images at a time."""
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
# That model had no batch norms. ResNet has them. The next cell compares twice: once the batch norms use their stored
# averages; once, as in training, they take mean and variance from the images they see.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In which of the two do 4 × 16 images give the same gradient as 64?
#
# </div>

# %%
network = Network("resnet8")
sample, truth = (part.numpy() for part in next(iter(records.training(index, 32, 64, least_area=0.5))))


def gradients_by(training):
    """Return the function that computes resnet8's gradients of the mean loss over some images."""

    def gradient_of(x, y):
        with tf.GradientTape() as tape:
            logits = network(x, training=training)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        return [np.array(g) for g in tape.gradient(loss, network.weights)]

    return gradient_of


for training in (False, True):
    whole = gradients_by(training)(sample, truth)
    pieces = accumulate(gradients_by(training), sample, truth, 16)
    difference = max(float(tf.norm(a - b) / (tf.norm(a) + 1e-12)) for a, b in zip(whole, pieces) if len(a.shape) > 1)
    how = "the images' own" if training else "stored"
    print(
        f"batch norms with {how} averages: 4 × 16 images differ from 64 by up to {difference:.4%} of a layer's gradient"
    )

# %% [markdown]
# With stored averages the difference is rounding. With the images' own averages, a batch norm sees 16 images, not 64,
# and computes another function. The same happens on 4 ranks with 16 images each, so accumulation is not at fault. It
# only means: **the batch norm's batch is what one rank has at a time**. Keep that at 32 or more (Goyal et al. kept it
# at 32 per GPU while the global batch grew).
#
# ### LARS: a rate for each layer
#
# Why not raise the rate with the batch without end? A step changes layer w by `rate × ‖g‖`. In a network, some layers
# have large weights and small gradients, others the reverse. One rate for all must suit the most sensitive layer.
# [**LARS**](../docs/glossary.md#lars) (You et al. 2017, [arXiv 1708.03888](https://arxiv.org/abs/1708.03888)) gives
# each layer a factor of its own, the **trust ratio**, so that a step changes every layer by about the same *share* of
# itself:
#
# $$\lambda = c \cdot \frac{\lVert w \rVert}{\lVert g \rVert + d \cdot \lVert w \rVert}$$
#
# Here d is the weight decay and c the coefficient. A norm goes over all numbers of the layer, whatever its shape. Where
# a norm is 0, the factor is 1: a layer of zeros must be able to leave zero. The program's own version is in
# `labkit/models/optimizers.py`. Do the two agree on the layers of `resnet8`?


# %%
def trust_ratio(weight, gradient, decay, coefficient=0.001):
    """Return LARS' factor for a layer's step."""
    size, slope = np.linalg.norm(weight), np.linalg.norm(gradient)
    if size == 0 or slope == 0:
        return 1.0
    return float(coefficient * size / (slope + decay * size))


layers = [
    (f"{weight.name.split('/')[0]}: {' × '.join(map(str, weight.shape))}", weight.numpy(), gradient)
    for weight, gradient in zip(network.weights, whole)
    if is_kernel(weight)
]
ratios = {}
for name, weight, slope in layers:
    ratios[name] = trust_ratio(weight, slope, 1e-4)
    theirs = float(programs_trust_ratio(tf.constant(weight), tf.constant(slope), 1e-4))
    assert math.isclose(ratios[name], theirs, rel_tol=1e-4), f"{name}: {ratios[name]}, the program's {theirs}"
apart = max(ratios.values()) / min(ratios.values())
print(f"all {len(ratios)} layers agree; the largest ratio is {apart:,.0f} times the smallest")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5))
axis.barh(list(ratios), list(ratios.values()), color=plots.BLUE)
axis.invert_yaxis()
axis.set(xlabel="trust ratio", ylabel="layer: its weights' shape", title="LARS: the factor of each layer at the start")
axis.tick_params(axis="y", labelsize=11)
plots.show(
    figure,
    alt="Trust ratio of each layer of resnet8 with its fresh weights: "
    + ", ".join(f"{name} {value:.4f}" for name, value in ratios.items())
    + ".",
)

# %% [markdown]
# Now a real run: 500 images a step in place of 64, so only 4 steps an epoch. One run has momentum and the rate of the
# linear rule, the other has LARS. LARS needs a different rate, because its trust ratio already scales the step. The two
# runs take less than a minute.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What does the larger batch cost in accuracy?
#
# </div>

# %%
last = runs[max(runs)][-1]
print(f"64 images, momentum: top-1 {last['top1']:.1%} of {last['images']} held-out images after {EPOCHS} epochs")
for optimizer, rate in OPTIMIZERS.items():
    flags = ["--optimizer", optimizer, "--lr_init", rate, "--batch_size", 125, "--accumulate", 2]
    flags += ["--num_iter", EPOCHS, "--lr_warmup_epochs", 4]
    run = train(f"large-{optimizer}", 2, *recipe, *flags)
    tell_accuracy(f"500 images, {optimizer}: {run[-1]['top1']:.1%}", run[-1]["top1"], last["top1"], last["images"])

# %% [markdown]
# These are single runs, and "chance" is that of the held-out images alone: another `--seed` would move each result too,
# and each may do better with another rate. Change it and see. Ten epochs are few here, only 40 steps. On ImageNet
# the same race went on for years:
#
# | who | machines | time | epochs | top-1 |
# | --- | --- | --- | --- | --- |
# | Bede's guide, 2020 | 4 GPUs, 1,024 images a step | about 4 hours | 50 | 75.863% |
# | [Goyal et al. 2017](https://arxiv.org/abs/1706.02677) | 256 GPUs, 8,192 images a step | 1 hour | 90 | 76.3% |
# | [You et al. 2017](https://arxiv.org/abs/1709.05011), LARS | 2,048 Xeon Phi | 20 minutes | | |
# | [Yamazaki et al. 2019](https://arxiv.org/abs/1903.12650) | 2,048 GPUs, 1.73 million images/s | 74.7 s | | 75.08% |
#
# With 256 images a step, Goyal et al. reached 76.4%. Bede's 50 epochs end half a point below these 90.
#
# ### Exercise 5 · What next?
#
# Back to the question of section 8. On a cluster, 32 workers are perhaps no faster than 16, and somebody has made the
# runs that can tell why: three rounds, in turns. What should be changed first?
#
# Write `what_next(speeds)`. `speeds` has the images/s of each round for `"16"` and `"32"` workers, for `"32, no
# reading"` (one synthetic batch again and again), and for `"32, fp16 gradients"`. Return one word:
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
def what_next(speeds):
    """Return what the rounds show: "reading", "network", "batch", or "measure"."""
    ### BEGIN SOLUTION
    suspects = {"reading": "32, no reading", "network": "32, fp16 gradients"}
    gains = {word: statistics.ratio(speeds[run], speeds["32"]) for word, run in suspects.items()}
    shown = [word for word, gain in gains.items() if gain.low > 1]
    if shown:
        return max(shown, key=lambda word: gains[word].value)
    return "batch" if statistics.ratio(speeds["32"], speeds["16"]).low > 1 else "measure"
    ### END SOLUTION


# %% tags=["nbval-check-output"]
what_next = check(5, what_next)

# %% [markdown]
# Three clusters that we made up. Decide for each by eye before you run the cell.

# %% tags=["nbval-check-output"]
clusters = {
    "A": {
        "16": [18_000, 17_900, 18_050],
        "32": [18_100, 17_950, 18_000],
        "32, no reading": [34_800, 34_500, 34_900],
        "32, fp16 gradients": [18_050, 18_000, 17_900],
    },
    "B": {
        "16": [18_000, 12_100, 15_000],
        "32": [24_000, 16_200, 20_100],
        "32, no reading": [24_100, 16_100, 20_050],
        "32, fp16 gradients": [28_700, 19_500, 24_000],
    },
    "C": {
        "16": [18_000, 17_000, 19_000],
        "32": [18_500, 24_000, 17_500],
        "32, no reading": [27_000, 19_000, 25_500],
        "32, fp16 gradients": [19_000, 21_500, 20_000],
    },
}
for name, table in clusters.items():
    print(f"{name}: {what_next(table)}")
    for run in table:
        print(f"   {run:20}{np.mean(table[run]):>8,.0f} images/s,", statistics.ratio(table[run], table["32"]), "of 32")

# %% [markdown]
# ## 10 · And on a real cluster?
#
# How long would 50 epochs of ImageNet take on *your* cluster? A few steps of the real ResNet-50 give the answer, in
# about half a minute.

# %%
if QUICK:
    duration = "not measured in a quick run"
    print(duration)
else:
    flags = ["--model", "resnet50_v1.5", "--batch_size", 8, "--num_iter", 6, "--iter_unit", "batch", "--mode", "train"]
    rate = speed(train("resnet50", 2, *flags, "--log_every", 2))
    shutil.rmtree(work / "resnet50" / "checkpoints")  # 200 MB
    duration = f"not here: it would take {BEDE_EPOCHS * IMAGENET / rate / 86_400:,.0f} days"
    print(f"ResNet-50 v1.5 on 2 {NODE}s of this {'cluster' if slurm else 'machine'}: {rate:,.1f} images/s")
    print(f"50 epochs of ImageNet: {duration}. There, on 4 GPUs: about 4 hours; on one: about 16.")

    photos = work / "large"
    synthetic.write(photos, train=96, validation=16, size=400)
    read = pipeline_speed(photos, 224, 16, 16)
    size = np.mean(tfrecords.index(photos, "train").length) / 1e3
    print(f"the pipeline at that size ({size:.0f} kB an image): {read:,.0f} images/s alone, ", end="")
    print(f"{read / rate:.0f} times what the training takes")

# for the closing table
results.hand_in("10", ("ResNet-50 on ImageNet after 50 epochs: top-1; top-5", "75.863%; 92.823%", duration, ""))

# %% [markdown]
# So a workshop cannot reach the published 75.863% and 92.823%, and this lab does not pretend to. But you have used the
# same program, the same script and the same flags. To take them to a cluster, change in `env/slurm/train.sbatch`:
#
# - the `##SBATCH` lines: your site's partition and account, and the time;
# - `--ntasks-per-node`: on CPUs, one rank per socket is a good start. The script gives each rank its share of the cores
#   by `OMP_NUM_THREADS`. On Bede that was 1: there, GPUs did the computing;
# - the `module load` lines, if you must use the site's own MPI, with a Horovod built for that MPI;
# - `srun`, where a site has a command of its own that starts ranks on a job's nodes. Bede had `bede-ddlrun`, as the
#   `ddlrun` of its software did not know Slurm;
# - `--data_dir` and `--results_dir`: on a file system that all nodes see, the results on one that they can write to. A
#   login node's folder for temporary files is not. Ask for the space, too: the guide says up to 1.2 GB of results; here
#   a checkpoint of ResNet-50 has 200 MB, and two are kept.
#
# Then submit it with `sbatch --nodes=16 …`. Everything else stays as it is.

# %% [markdown]
# **To go further** Paste the flags of Bede's guide behind a run of `resnet8`: the right-hand column of section 2's
# table, with `--iter_unit batch --num_iter 24 --batch_size 64` after them, as the last value of a flag counts. Which of
# `--precision=fp16`, `--precision=bf16` and `--use_xla` makes a step faster on this machine, and which slower? Write
# the rounds in turns as in section 7, and let `statistics.ratios` decide.

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
#    accuracy**](../docs/glossary.md#time-to-accuracy)? *(section 7)*
# 6. Why might 32 GPUs have been no faster than 16, and which two runs would you do first to find out? *(section 8)*
# 7. Yesterday you got 8 nodes and used `--accumulate 2`. Today you get 16 nodes and do not accumulate. What stays the
#    same? *(section 9)*
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
# 6. The guide names "basic parameters" of this configuration, and not which. If images/s stayed at 18,000, such a sharp
#    bend points to a shared limit, of the storage or of an oversubscribed switch, rather than to a network that is the
#    same everywhere. If the hours to an accuracy stayed, it points to batch and rate, which images/s do not show at
#    all. First run without `--data_dir`, then with `--compression fp16`.
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
# **What students see** Strong scaling should be the worse of the two: half the images per rank, the same all-reduce. If
# somebody's intervals show the reverse, or an efficiency above 100%, something disturbed more than one round: run the
# cells of sections 5 to 7 again. Exercise 1 shows before question 8 that 5,800 images/s make 8 epochs in half an hour,
# not 10.
#
# **The walls of section 8** `steps.py` prints what the guess needs: 312 kB in, say, 50 ms of computing are 50 Mbit/s,
# so of the four rates 100 Mbit/s comes next. A machine with faster nodes has its wall at a higher rate; the lab
# chooses the rates that it measures by its own prediction. If nothing overlaps, FP16 gradients give 1.33 times the
# images/s at the wall, and four times the images between two exchanges 1.6 times. Of the storage, one node should
# notice nothing, two get 75% and three 50%. Where measured efficiencies are higher than predicted, part of the
# exchange went on while cores computed, or waited for other work anyway. `labkit.testbed` has the wires: packets wait
# at each node's interface until its rate admits them. Without the right to make networks, the cells print the
# predictions alone, and the table says why.
#
# **Timing** Sections 1 to 6 and the questions take 45 minutes, and sections 7 to 10 take 55 more. All cells wait about
# 5½ minutes on two cores, 1½ of them in section 5. Short of time? Leave sections 7 to 10 out, or in section 9 exercise
# 4 and the large-batch runs. The fast ones take "To go further" in section 10.
#
# **If they ask** On other clusters:
#
# - *Storage.* ImageNet becomes 1,024 TFRecord files for training and 128 for validation, about 140 GB, once, by a
#   script of TensorFlow's; then everybody reads them from one place. On Lustre, `lfs setstripe -c` spreads a large file
#   over several servers before it is written; many middle-sized files spread by themselves. Millions of small JPEGs
#   would ask the metadata server for each. MXNet's **RecordIO** has the same idea as TFRecord, one file with one record
#   after another, and an index file of the records' places, so that reading can begin anywhere. The kit's reader makes
#   its index when it starts.
# - *S3.* Object storage answers late but many at a time: copy the files to the nodes' own disks once, with some 20
#   requests side by side (`aws configure set default.s3.max_concurrent_requests 20`), and train from there.
# - *Augmentation* costs a CPU's time: crop, scale and mirror, as here; shear, rotation and colours in some recipes. A
#   run on 8 GPUs had 40 threads for it. `seconds_for_data` says whether yours has enough.
# - *Containers.* Clusters have Apptainer (once Singularity), not Docker: `srun apptainer exec image.sif python …`. The
#   MPI in the image must fit the site's, by its ABI.
# - *Launchers.* Bede's `ddlrun` found the topology: its log has `-mode p:4x1x1x1`, sizes of levels from the inside to
#   the outside, here 4 GPUs in one node and one of each level above. Gradients are then summed inside a node first.
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
# - A network's wall is at the rate that carries a step's gradients in the time the step computes. Half the bytes halve
#   that rate, and so do twice the images between two exchanges.
# - A network that is the same everywhere costs more and more, slowly. A shared limit, of storage or of a switch, costs
#   at once. Which one it is, only runs can tell: in turns, with an interval. Measure before you buy.
#
# What was published, what you measured, and what the machine could do at most:

# %%
saved = Measured(stopping["weak-2"], unit="s", digits=1) if "weak-2" in stopping else ""
small_top1 = Measured(100 * runs[max(runs)][-1]["top1"], unit="%", digits=1)
results.table(
    "training on a cluster",
    [
        ("Bede: weak scaling, 4 → 16 GPUs", "100%; no speedup with 32, in what is not said", "", "100%"),
        ("Goyal et al.: weak scaling on 256 GPUs", "90%", "", "100%"),
        *results.handed_in(
            "7", (f"here: strong scaling, resnet8, {NODE}s", ""), (f"here: weak scaling, resnet8, {NODE}s", "")
        ),
        *results.handed_in(
            "8",
            ("here: the wires on which half of a step is exchange", ""),
            ("here: nodes from one storage, of the images/s from files", ""),
        ),
        ("from the stop signal to saved state", "", saved, "30 s, Slurm's default KillWait", stopped_others),
        *results.handed_in("10", ("ResNet-50 on ImageNet after 50 epochs: top-1; top-5", "75.863%; 92.823%")),
        (f"resnet8 on synthetic images, {EPOCHS} epochs: top-1", "", small_top1, "100%"),
        (
            "reading images, small set",
            "",
            Measured(small, unit="images/s", digits=0),
            f"needed: {np.mean(first_round['weak', 2]):,.0f} images/s",
            reading_others,
            resumed_others,
        ),
    ],
)

# %% [markdown]
# Published: [Bede's guide](https://bede-documentation.readthedocs.io), its ResNet-50 benchmark; Goyal et al. 2017.
# Next: lab 09 leaves neural networks, and distributes a clustering.

# %%
if started:  # by this notebook, so nobody else needs it
    stop_slurm()
    print("The small Slurm has ended. Section 1 starts it again.")
