# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: submit a job that outlives its limit, diagnose a sick cluster
#     needs: [ISA, memory, TensorFlow, MPI, Horovod, data]
#     better_with: [cores, network, Slurm, PyTorch]
# ---

# %% [markdown]
# # 08 · ResNet-50 on a cluster: a sick cluster
#
# In 2020, a cluster's guide reported that ResNet-50 trained in four hours on 4 GPUs and in one on 16. On 32 it saw *no
# speedup*, and left the explanation to its readers. How do you find one?
#
# **You will** submit a job to Slurm that survives its own time limit. Then you get a small cluster that trains too
# slowly, and a budget for experiments to find out what is wrong, if anything is.
#
# **Time** {minutes}
#
# **Connects to** lab 03, which makes one process of ResNet-50 fast; lab 06, which builds the ring; and lab 07, which
# makes a script distributed.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("08", globals())

# %%
import json
import math
import os
import re
import shutil
import time

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Code

from labkit.display import plots
from labkit.exercises.sick_cluster import SickCluster, record_cases, two_cpus_per_node
from labkit.measure import Measured, compare, record, recorded
from labkit.mpi import RankError, run_ranks, torch_ranks
from labkit.slurm import Terminal, find_slurm, start_slurm
from labkit.system.errors import LabError
from labkit.system.paths import ENV, ROOT
from labkit.testbed import obstacle

# %%
# How much this lab measures: change it here. The first of two values is that of a small run.
NODES = 1 if QUICK else 2  # of the jobs in sections 1 to 4
STEPS, PAUSE = (8, 0.5) if QUICK else (60, 0.75)  # the job that reaches its limit, and s per step
CASE = 5 if QUICK else None  # the case's number; None: a random one

# %% [markdown]
# ## 1 · Submit a job {read 4, do 2, wait 0.3}
#
# On a cluster you **submit** [**jobs**](../docs/learn/glossary.md#job). A
# [**scheduler**](../docs/learn/glossary.md#scheduler) such as [**Slurm**](../docs/learn/glossary.md#slurm) keeps them
# in a queue, gives each job its [**nodes**](../docs/learn/glossary.md#node) when they are free, and takes them back at
# the job's time limit. The lab uses your cluster's Slurm, or starts a small but real one, whose nodes share this
# machine's cores. Without Slurm, you see recorded output.

# %%
slurm = find_slurm()
if slurm is None:
    try:
        wires = None if obstacle() else "1 Gbit/s"  # between its nodes, where the machine allows it
        slurm = start_slurm(nodes=2, until=os.getpid(), network=wires)  # ends with this notebook
    except LabError as error:
        print(f"No Slurm: {error}")
terminal = Terminal(slurm, "08-slurm", KIT=ROOT)
_ = terminal("sinfo")

# %% [markdown]
# `terminal` runs a command and shows its output. (For a real terminal, `./lab cluster up` prints the variables to set.)
# `srun` starts a program immediately and waits for it, here once on each node.

# %%
_ = terminal(f"srun --nodes={NODES} --ntasks-per-node=1 hostname")

# %% [markdown]
# Most jobs run unattended, as **job scripts**. The `#SBATCH` lines request what a job needs. The script itself runs
# once, on the first of the job's nodes, and its `srun` starts the program on all of them, with one
# [**rank**](../docs/learn/glossary.md#rank) on each.

# %%
# %%writefile work/resumes.sbatch
# #!/bin/bash
# #SBATCH --ntasks-per-node=1
# #SBATCH --time=1                   # minutes
# #SBATCH --signal=TERM@15           # this many seconds before, or earlier
# #SBATCH --open-mode=append         # a second start continues the log
# #SBATCH --output=work/%x.log       # %x is the job's name
# export OMP_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1
# export TF_CPP_MIN_LOG_LEVEL=2 UCX_TLS=${UCX_TLS:-all} PYTHONPATH=$KIT
# srun --mpi=pmi2 "$KIT/.venv/bin/python" work/resumes.py "work/$SLURM_JOB_NAME" "$@"
# status=$?
# if [ $status = 75 ]; then          # stopped by a signal, and everything is saved
#   scontrol requeue "$SLURM_JOB_ID"
# fi
# exit $status

# %% [markdown]
# `sbatch` submits the script, `squeue` shows the queue, and `scancel` removes a job from it. `--hold` keeps this job
# from starting.

# %%
_ = terminal("sbatch --hold --job-name=held work/resumes.sbatch")
_ = terminal('squeue --me --format="%i %j %T %r"')
_ = terminal("scancel --me --name=held")

# %% [markdown]
# **Your turn.** Submit the script again, on hold and under another name. Find its number in the queue, and cancel it by
# that number. What reason does `squeue` show (in the last column) before and afterwards?

# %%
# terminal("sbatch …")

# %% [markdown]
# (Before, it is `JobHeldUser`. A cancelled job has no line.)
#
# ## 2 · A job that outlives its limit {read 6, wait 0.1}
#
# Training often takes longer than a queue allows. Slurm sends **SIGTERM** to all ranks before the time limit, as early
# as `--signal` says or up to a minute earlier. At the limit, it kills them. In between, all ranks must stop after the
# same step, rank 0 must save a [**checkpoint**](../docs/learn/glossary.md#checkpoint), and all must exit with status
# 75, which in Unix means "try again later". Then the job script requeues the job. (On its own, Slurm only requeues jobs
# when a node fails.)
#
# The program trains a small ResNet, `resnet8`, on digits. Find the lines that would be missing from a script that never
# expects to be killed.

# %%
# %%writefile work/resumes.py
"""Train resnet8 on any number of nodes: resumes.py FOLDER STEPS PAUSE [STEP to stop after]"""

import hashlib
import os
import signal
import sys
import time

stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))  # before the long imports

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from labkit.data import load_digits
from labkit.models import Network
from labkit.models.losses import cross_entropy
from labkit.models.optimizers import Momentum

folder, steps, pause, *stop_after = sys.argv[1:]
BATCH = 32  # images per rank and step
hvd.init()
rank, size = hvd.rank(), hvd.size()
tf.config.experimental.enable_op_determinism()
digits = load_digits(n_train=4_000, n_test=1)
images = np.pad(digits.x_train, ((0, 0), (2, 2), (2, 2), (0, 0))).repeat(3, axis=3)
network = Network("resnet8")
optimizer = Momentum(network.weights, momentum=0.875, weight_decay=2**-15)
done = tf.Variable(0)
variables = [*network.weights, *network.averages, *optimizer.velocities]
manager = tf.train.CheckpointManager(tf.train.Checkpoint(done=done, of=variables), folder, 2)
manager.restore_or_initialize()
print(f"rank {rank} of {size} starts after step {int(done)}", flush=True)


@tf.function(autograph=False)
def train(images, labels, rate):
    with tf.GradientTape() as tape:
        loss = cross_entropy(network(images, training=True), labels, label_smoothing=0.1)
    gradients = tape.gradient(loss, network.weights)
    optimizer.apply([hvd.allreduce(gradient) for gradient in gradients], rate)
    return loss


while done < int(steps):
    first = (int(done) * size + rank) * BATCH  # of the endless stream of all epochs
    epochs, places = np.divmod(np.arange(first, first + BATCH), len(images))
    chosen = [np.random.default_rng(e).permutation(len(images))[p] for e, p in zip(epochs, places)]
    loss = train(images[chosen], digits.y_train[chosen].astype(np.int32), 0.1)
    done.assign_add(1)
    time.sleep(float(pause))
    if [str(int(done))] == stop_after:
        os.kill(os.getpid(), signal.SIGTERM)  # as at a time limit, where there is no Slurm
    must_stop = hvd.allreduce(tf.constant(float(bool(stop))), op=hvd.Sum, name="stop") > 0
    if must_stop and done < int(steps):
        saved = hvd.broadcast_object(rank == 0 and manager.save(), 0)  # no rank leaves before
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the others' end must not change the status
        print(f"rank {rank} stops after step {int(done)}, saved as {saved}", flush=True)
        sys.exit(75)
if rank == 0:
    state = hashlib.sha256(b"".join(variable.numpy().tobytes() for variable in variables))
    print(f"{steps} steps, loss {float(loss):.4f}, weights {state.hexdigest()[:16]}")


# %% [markdown]
# The next images depend only on the step. The shuffled epochs form one endless stream, and each step takes the next
# `size * BATCH` images.
#
# Now submit it. This job pauses in each step, so it can't finish within its limit of one minute. It runs while you read
# on.

# %%
for name in ("limit", "undisturbed"):
    shutil.rmtree(work / name, ignore_errors=True)
    (work / f"{name}.log").unlink(missing_ok=True)
_ = terminal(
    f"sbatch --nodes={NODES} --job-name=limit --requeue work/resumes.sbatch {STEPS} {PAUSE}"
)

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Another job takes the same steps without ever being stopped. Will both jobs end with weights
# identical to the last bit?
#
# </div>

# %%
results.guess(1, "both jobs' weights are", ..., choices=("equal", "different"))

# %% [markdown]
# ## 3 · The recipe {read 6, do 8}
#
# The guide describes Bede, a GPU cluster shared by British universities. It trains ResNet-50 on ImageNet with [these
# flags](https://bede-documentation.readthedocs.io):
#
# ```text
# --mode=train_and_evaluate --iter_unit=epoch --num_iter=50 --batch_size=256 --warmup_steps=100
# --lr_init=0.256 --lr_warmup_epochs=8 --use_cosine_lr --momentum=0.875
# --label_smoothing 0.1 --weight_decay=3.0517578125e-05
# --precision=fp16 --use_static_loss_scaling --loss_scale=1024 --use_xla
# ```
#
# - **Images** `--batch_size` sets the images per GPU per step. `--warmup_steps` has nothing to do with learning. It is
#   the number of initial steps that the reported *speed* excludes.
# - **Learning** Three rules set the [**learning rate**](../docs/learn/glossary.md#learning-rate). Under the **linear
#   scaling rule**, `lr_init` is for 256 images per step. With k times as many images, there are k times fewer steps, so
#   each goes k times as far ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)). In the
#   [**warm-up**](../docs/learn/glossary.md#warm-up), the rate rises from 0, as the first gradients are large and
#   unsteady. Then it falls along half a [**cosine**](../docs/learn/glossary.md#cosine-schedule).
# - [**Label smoothing**](../docs/learn/glossary.md#label-smoothing) asks for about 90% certainty, [**weight
#   decay**](../docs/learn/glossary.md#weight-decay) pulls weights towards 0, and the last line is for 16-bit training
#   (lab 04).


# %%
def learning_rate(step, steps, warmup, batch, lr_init=0.256):
    """Return the rate of a step, 0 to steps - 1, with `batch` images per step."""
    peak = lr_init * batch / 256
    if step < warmup:
        return peak * step / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


IMAGENET, EPOCHS, WARM_UP, GPU_BATCH = 1_281_167, 50, 8, 256
schedules = {}
for gpus in (4, 16, 32):
    per_epoch = IMAGENET / (gpus * GPU_BATCH)
    steps, warmup = round(EPOCHS * per_epoch), WARM_UP * per_epoch
    rates = [learning_rate(step, steps, warmup, gpus * GPU_BATCH) for step in range(steps)]
    schedules[gpus] = np.arange(steps) / per_epoch, rates
    print(f"{gpus:>2} GPUs: {gpus * GPU_BATCH:>5,} images per step, {steps:>6,} steps, ", end="")
    print(f"{warmup:>6,.0f} of warm-up, peak {max(rates):.3g}")

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 2, figsize=(13, 4.3), sharey=True)
for (gpus, (epochs, rates)), style in zip(schedules.items(), ("-", "--", "-.")):
    axes[0].plot(epochs, rates, style, marker="", label=f"{gpus} GPUs")
    axes[1].plot(rates, style, marker="")
axes[0].set(xlabel="epoch", ylabel="learning rate", ylim=(0, None))
axes[1].set(xlabel="step")
axes[1].xaxis.set_major_formatter("{x:,.0f}")
axes[0].legend()
figure.suptitle("One recipe on 4, 16 and 32 GPUs")
plots.show(
    figure,
    alt="Learning rate against epoch, left, and against step, right, for 4, 16 and 32 GPUs. Each "
    "rises in a straight line for 8 epochs and falls as half a cosine to 0 at epoch 50, with "
    "peaks of 1.02, 4.1 and 8.2. In steps, 32 GPUs finish after 7,820, and 4 after 62,557.",
)

# %% [markdown]
# By epoch, all curves have the same shape. By step, they don't, so warm-ups are given in epochs. The rule has a limit.
# Goyal et al. maintained ResNet-50's accuracy up to 8,192 images per step, and lost it beyond that. This **largest
# batch** depends on the network and its images. Others went further with a rate per layer
# ([**LARS**](../docs/learn/glossary.md#lars)).
#
# | published | images per step | time | epochs | top-1 |
# | --- | ---: | ---: | ---: | ---: |
# | Bede's guide, 2020, 4 GPUs | 1,024 | 4 hours | 50 | 75.9% |
# | Goyal et al., 2017, 256 GPUs | 8,192 | 1 hour | 90 | 76.3% |
# | [Yamazaki et al.](https://arxiv.org/abs/1903.12650), 2019, 2,048 GPUs | 81,920 | 75 s | – | 75.1% |
#
# ### Exercise 1 · Flags for your cluster
#
# Write `choose_flags(images, workers, batch, speed, hours, warmup, largest)`. It returns four numbers for a run on
# `workers` GPUs or nodes, which together process `speed` images/s, on a set of `images` images:
#
# - `num_iter`, the number of complete epochs that fit into `hours`;
# - `batch_size`, the images per worker per step. It is the largest integer, up to `batch` (which fits into memory),
#   that keeps all workers together within `largest` images. (`largest` is at least `workers`.)
# - `peak`, the highest learning rate, from the linear rule with `lr_init=0.256`;
# - `warmup_steps`, the steps in `warmup` epochs, rounded up to an integer.
#
# For example, `choose_flags(1_000_000, 32, 256, 32_000, 0.5, 5, 4096)` is `(57, 128, 4.096, 1221)`.


# %%
def choose_flags(images, workers, batch, speed, hours, warmup, largest):
    """Return num_iter, batch_size, the peak rate and the steps of warm-up."""
    ### BEGIN SOLUTION
    num_iter = int(hours * 3600 * speed / images)
    batch_size = min(batch, largest // workers)
    together = workers * batch_size
    return num_iter, batch_size, 0.256 * together / 256, math.ceil(warmup * images / together)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
choose_flags = check(1, choose_flags)

# %% tags=["nbval-check-output"]
for gpus, speed, hours in ((4, 4_500, 4), (16, 18_000, 1), (32, 18_000, 1), (1_024, 1e6, 0.03)):
    flags = choose_flags(IMAGENET, gpus, GPU_BATCH, speed, hours, WARM_UP, 8192)
    print(f"{gpus:>5,} GPUs: num_iter {flags[0]}, batch_size {flags[1]}, ", end="")
    print(f"peak {flags[2]:.2f}, {flags[3]:,} steps of warm-up")

# %% [markdown]
# (The speed on 1,024 GPUs is invented.) Up to the largest batch, each GPU keeps its 256 images. Beyond that, more GPUs
# share the same number of images ([**strong scaling**](../docs/learn/glossary.md#strong-scaling)), and with 8 each they
# would actually be far slower.
#
# ## 4 · Did it survive? {read 3, wait 1.4}
#
# Submit the job's twin without pauses, and wait until both are done.


# %%
def wait_for(name):
    """Wait until no job of this name is in the queue; print each new state and reason."""
    seen = ""
    while state := terminal.output(f'squeue --me --noheader --format="%T %r" --name={name}'):
        if state != seen:
            print(f"  {time.strftime('%T')} {name}: {state}", flush=True)
        seen = state
        time.sleep(1)


def train_on_ranks(name, *arguments):
    """Train without Slurm, with the log in the same place."""
    try:
        output = run_ranks(2, "work/resumes.py", work / name, STEPS, 0, *arguments, show=False)
        text = "\n".join(output.lines[0])
    except RankError as error:  # status 75
        text = str(error)
    with (work / f"{name}.log").open("a") as log:
        log.write(f"{text}\n")


# %%
if slurm and QUICK:
    terminal.read(work / "limit.log", until="starts")
    terminal.output("scancel --me --name=limit --signal=TERM")
if slurm:
    _ = terminal(
        f"sbatch --nodes={NODES} --job-name=undisturbed --time=10 work/resumes.sbatch {STEPS} 0"
    )
    wait_for("undisturbed")
    wait_for("limit")
else:
    train_on_ranks("limit", STEPS // 2)
    train_on_ranks("limit")
    train_on_ranks("undisturbed")

# %%
weights = {}
for name in ("limit", "undisturbed"):
    log = terminal.read(work / f"{name}.log")
    print(f"work/{name}.log\n  " + "\n  ".join(re.findall(r"rank 0 .*|.*steps, loss.*", log)))
    weights[name] = re.findall(r"weights (\w+)", log)
equal = weights["limit"] == weights["undisturbed"] != []
results.compare_guess(1, "equal" if equal else "different")

# %% [markdown]
# (`BeginTime` means that Slurm makes a requeued job wait.) What remains of a finished job? On most clusters, `sacct`
# reads it from a database. The small Slurm only keeps a file, which `sacct -c` reads. It has a line for each start,
# with `PENDING` if the job was requeued.

# %%
_ = terminal("sacct -c --format=jobid,jobname,state,nnodes,elapsed")

# %%
results.answer(1, "Which lines of resumes.py and resumes.sbatch made the weights equal?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# The job *continues* thanks to the signal before the limit, the exit status and the requeue. It continues *exactly*
# thanks to the handler, which only notes the signal; the all-reduce, after which all ranks stop at the same step; the
# checkpoint with momentum, averages and step; the images as a function of the step; identical initial weights; and
# determinism, with one thread per rank. With more than two ranks, the order of additions may change, so the last digits
# may differ.
#
# </details>
#
# For real use, `env/slurm/train.sbatch` starts any program with the right number of threads per rank, and marks the
# lines that depend on your site.

# %%
Code(filename=ENV / "slurm" / "train.sbatch", language="bash")

# %% [markdown]
# ## 5 · The case {read 8, do 15, wait 1.2}
#
# In 2020, Bede's guide reported 4,500 images/s on 4 GPUs, 18,000 on 16, and *no speedup* on 32. The suspects are the
# network, the storage and a slow node. Or nothing is broken, and the missing speed is the cost of working together.
#
# You can't use Bede, but this machine can act as a small cluster with the same problem. Three nodes train, a fourth is
# the storage, and each has a 150 Mbit/s wire to a switch. The job is a **proxy**, a program that moves bytes and takes
# time like a real one (here scaled down), but computes nothing of value. In each step, each node reads 140 kB of images
# in advance, computes for 50 ms (by sleeping, so that your cores don't matter), and exchanges 510 kB of gradients in a
# ring.

# %%
# %%writefile work/storage.py
"""A storage that sends images over the network, and its readers."""

import queue
import socket
import socketserver
import threading

BATCH_BYTES = 140_000
PORT = 5050


class Sender(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            self.request.sendall(bytes(BATCH_BYTES))


def serve(address):
    """Send images to every node that connects."""
    server = socketserver.ThreadingTCPServer((address, PORT), Sender)
    server.daemon_threads, server.handle_error = True, lambda *_: None  # readers just leave
    threading.Thread(target=server.serve_forever, daemon=True).start()


def read_ahead(address):
    """Return a queue of two batches, which a thread fills."""
    batches = queue.Queue(2)

    def read():
        images = socket.create_connection((address, PORT)).makefile("rb")
        while True:
            batches.put(images.read(BATCH_BYTES))

    threading.Thread(target=read, daemon=True).start()
    return batches


# %%
# %%writefile work/job.py
"""A proxy of ResNet-50's training: some nodes train, and node 4 is the storage.

job.py CASE ADDRESS NODES [local] [no-exchange] [every-4th] [half] [two-cpus]
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI
from storage import read_ahead, serve

from labkit.testbed.processors import processor

BATCH, COMPUTE = 32, 0.05  # images per node and step; seconds of computing
GRADIENTS = 510_000  # bytes
BLOCKS, STEPS = 9, 4
case, address, nodes, *options = sys.argv[1:]
every = 0 if "no-exchange" in options else 4 if "every-4th" in options else 1  # steps
world = MPI.COMM_WORLD
node = world.rank + 1
ranks = world.Split(str(node) in nodes, node)  # those that train
compute = processor(int(case), node, cpus=1 + ("two-cpus" in options))


def exchange():
    """Send what a ring all-reduce sends, as in lab 06, without adding."""
    n, rank = ranks.size, ranks.rank
    chunk = np.zeros(GRADIENTS // n // (1 + ("half" in options)), np.uint8)
    for _ in range(2 * (n - 1)):
        ranks.Sendrecv(chunk, (rank + 1) % n, recvbuf=chunk.copy(), source=(rank - 1) % n)


def train():
    """Return the images/s of each block of steps; the first is not timed."""
    batches, speeds = None if "local" in options else read_ahead(address), []
    for block in range(BLOCKS + 1):
        ranks.Barrier()
        began = time.perf_counter()
        for step in range(block * STEPS, (block + 1) * STEPS):
            if batches:
                batches.get()
            compute(COMPUTE)
            if every and step % every == 0:
                exchange()
        seconds = ranks.allreduce(time.perf_counter() - began, op=MPI.MAX)
        speeds.append(ranks.size * BATCH * STEPS / seconds)
    return speeds[1:]


def wait_for_all():
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.005)  # MPI's own barrier would keep a core busy


if node == 4:
    serve(address)
wait_for_all()
if str(node) in nodes and (speeds := train()) and ranks.rank == 0:
    print(json.dumps(speeds))
wait_for_all()

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** One node alone takes 50 ms for 32 images. How many images per second should three healthy nodes
# process? In lab 06's ring, each node sends 2 · 2/3 of the gradients per step over a 150 Mbit/s wire (18 million bytes
# per second without headers). None of this is hidden behind computing. In a healthy cluster, reading is.
#
# </div>

# %%
results.guess(2, "three healthy nodes", ..., unit="images/s")

# %% [markdown]
# ### Exercise 2 · The missing time
#
# A run that is 3% faster with a different network "proves" nothing if half of the speed is missing. So ask **which
# share of the missing time a run recovers**. A step of n nodes with 32 images each takes n · 32 / speed seconds. The
# missing time is today's step minus a healthy node's step. A run that leaves something out (a wire, a node, the
# exchange) has a shorter step, and recovers part of this time.
#
# The missing time includes the cost of a healthy exchange, so even the right run recovers well under 100%. A ring of
# two nodes sends less than a ring of three, so leaving out any node recovers something.
#
# Write `recovered(healthy, today, run)`. Each argument is a pair `(speed, nodes)`, the combined images/s and the number
# of nodes. It returns the percentage of the missing time that `run` recovers. This is 0 if its step takes as long as
# today's, 100 if as long as the healthy node's, and negative if longer than today's. The images per node per step are
# the same in all three.


# %%
def recovered(healthy, today, run):
    """Return the share of today's missing time that a run recovers, in percent."""
    ### BEGIN SOLUTION
    healthy_s, today_s, run_s = (nodes / speed for speed, nodes in (healthy, today, run))
    return 100 * (today_s - run_s) / (today_s - healthy_s)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
recovered = check(2, recovered)

# %% [markdown]
# First, consider Bede. On 32 GPUs, "no speedup" means that a step takes twice as long as on 16, so half of it is
# missing. How much could we recover without the exchange of 102 MB in FP32, if its wires are healthy and none of it is
# hidden? In a ring that visits one node after another, one GPU per node sends to the next node through two 100 Gbit/s
# ports, or half of that where they are [shared 2:1](https://n8cir.org.uk/bede/bede-hardware/). And how much could we
# recover without reading 110 kB per image at the published 10 GB/s?

# %% tags=["nbval-check-output"]
step = 2 * GPU_BATCH / (4_500 / 4)  # s: twice as long as on 4 or 16 GPUs
unhidden = {
    "network": 2 * 31 / 32 * 25.6e6 * 4 / (2 * 100e9 / 8 / 2),
    "storage": 32 * GPU_BATCH * 110e3 / 10e9,
}
for part, seconds in unhidden.items():
    run = 32 * GPU_BATCH / (step - seconds), 32
    print(f"{part}: {recovered((1_125, 1), (18_000, 32), run):.0f}% of the missing time")

# %% [markdown]
# Each healthy part explains less than half. But storage that delivers 2 GB/s instead of 10 would explain everything, as
# it feeds 18,000 images/s, just enough for 16 GPUs. So would one added node at half speed. The published figures don't
# reveal the cause, but runs would. On your cluster, a run costs one **node-hour** for each node that trains.

# %%
RUNS = {  # nodes that train, and options of job.py
    "local copies": "123 local",  # each node reads from its own disk
    "no exchange": "123 no-exchange",  # each node trains a network of its own
    "exchange every 4th step": "123 every-4th",
    "half the bytes": "123 half",  # of gradients, as in FP16
    "without node 1": "23",  # the other two train: sbatch --exclude=n1
    "without node 2": "13",
    "without node 3": "12",
    "alone on node 1": "1",  # reads from the storage, and exchanges nothing
    "alone on node 2": "2",
    "alone on node 3": "3",
}
if two_cpus_per_node():
    RUNS["two CPUs per rank"] = "123 two-cpus"
BUDGET = 10  # node-hours
for name, arguments in RUNS.items():
    print(f"{name:24} {len(arguments.split()[0])} of {BUDGET} node-hours")

# %% [markdown]
# **At most one part**, drawn at random, **is at fault**:
#
# - `"storage's wire"`: it carries much less than the others;
# - `"node 1's wire"`, `"node 2's wire"` or `"node 3's wire"`: this wire carries much less;
# - `"slow node 1"`, `"slow node 2"` or `"slow node 3"`: this node computes more slowly;
# - `"too few CPUs"` (only if `RUNS` has a run with two CPUs per rank): all nodes use only one of their two CPUs;
# - `"no fault"`: all parts are healthy, and the missing time is the cost of the exchange.
#
# The budget is enough for every case, but not for every run. **Write down what you will run first, and what you would
# conclude from each outcome.** `cluster.run("local copies")` starts a run. Each figure is the median of nine blocks of
# steps, with its interval.

# %%
cluster = SickCluster("work/job.py", RUNS, BUDGET, recovered, CASE)
print(f"Case {cluster.case}")
print(f"one healthy node, when the cluster was bought: {cluster.healthy}")
print(f"three nodes, today: {cluster.today}")

# %%
# cluster.run("…")

if QUICK:  # a small run, as the tests make it
    cluster.run("alone on node 1")

# %%
for name, speed in cluster.done.items():
    nodes = cluster.nodes(name)
    share = recovered((cluster.healthy.value, 1), (cluster.today.value, 3), (speed.value, nodes))
    print(f"{name:24} {nodes * 32_000 / speed.value:6.0f} ms per step, recovers {share:4.0f}%")

# %% [markdown]
# Name the cause, the **decisive run**, and the percentage that this run recovers (±15 points). If a part is at fault,
# the decisive run is the one without this part but with everything else. Others may recover more, because they leave
# out the exchange as well. If there is no fault, name any of your runs.

# %%
cluster.answer(cause=..., run=..., share=...)

# %%
results.answer(2, "Which runs did you choose, and what would you choose next time?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Predict first. In a healthy step, a node computes for 50 ms and sends 680 kB in 38 ms, so three nodes process 96
# images in 88 ms. A cluster near this figure has **no fault**. Then only exchanging less helps, and leaving out any
# node recovers a quarter.
#
# Otherwise, run **alone on each node**, without exchange (3 node-hours).
#
# - If one node takes 150 ms and the others 50, it is **slow**, and the decisive run leaves it out (2).
# - If all take 70 ms, even one node waits for the **storage**, and local copies (3) recover everything except the
#   exchange.
# - If all take 100 ms, there are **too few CPUs**, so give each rank two (3).
# - If all take 50 ms, a node's **wire** is at fault. Leave out each node in turn (up to 6). One of these recovers the
#   most.
#
# Leaving out each node first (6) costs more, except for a wire. If all three runs recover the same share, about 43%
# points to the storage, and about 11% to too few CPUs.
#
# Running without exchange (3) finds the kind of fault but never the node. It recovers nothing with slow storage, a
# quarter with a slow node, for which the others wait *in the exchange*, and everything with a slow wire or no fault.
#
# </details>

# %%
print(cluster.reveal())

# %% [markdown]
# The table shows recordings of all runs on four such clusters, as shares of their missing time. Which columns does each
# run tell apart?

# %%
cases = recorded("08-cases").figures
faults = ("storage's wire", "node 2's wire", "slow node 3", "no fault")
print(" " * 24, *(f"{fault:>15}" for fault in faults))
for name in [name for name in RUNS if f"no fault: {name}" in cases]:
    print(f"{name:24}", end="")
    for fault in faults:
        of = [cases[f"{fault}: {n}"].value for n in ("one healthy node", "as today", name)]
        speeds = zip(of, (1, 3, cluster.nodes(name)))
        print(f"{round(recovered(*speeds)):15d}%", end="")
    print()
results.compare_guess(2, cases["no fault: as today"])  # three healthy nodes

# %%
results.answer(3, "Back to Bede: which two runs would you submit first, and why?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Run on each half of the 32 GPUs, first one at a time and then both together. If one half is slow, it contains the
# cause, and halving it again finds the node. If both reach 18,000 alone but not together, something shared is at fault.
# Then try local copies on 32, and one exchange every four steps. If the images/s do double, the guide's *no speedup*
# was about something else, such as the start, the evaluation, or the accuracy after 50 epochs, which suffers beyond the
# largest batch. Its 32 × 256 images are exactly at this limit.
#
# </details>
#
# ## 6 · How many nodes do you request? {read 4, do 7, optional}
#
# A job on more nodes finishes earlier once it runs, but it costs more
# [**node-hours**](../docs/learn/glossary.md#node-hour) where it doesn't scale, and it waits longer. What counts is the
# time *from submission to result*. `sbatch --test-only` prints when a job would start, without submitting it.

# %%
_ = terminal(f"sbatch --test-only --nodes={NODES} work/resumes.sbatch")

# %% [markdown]
# ### Exercise 3 · The first result
#
# Write `choose_nodes(seconds_of, wait_of, images, batch, fixed, budget, largest)`:
#
# - On n nodes, a step takes `seconds_of(n)` seconds, each node processes `batch` images per step, and the run needs
#   `images` images in total. (Don't round the steps.)
# - `fixed` hours of the job go on the start, evaluation and checkpoints, not on steps.
# - A job on n nodes waits `wait_of(n)` hours in the queue, which costs nothing. Each hour from its start to its end
#   costs n node-hours, of which you have `budget`.
# - On more than `largest` nodes, steps are so large that accuracy suffers.
#
# Return the number of nodes, from 1 to `largest`, that gives the earliest result within the budget. If several are
# equally early, return the fewest. If none is within budget, return 0.


# %%
def choose_nodes(seconds_of, wait_of, images, batch, fixed, budget, largest):
    """Return the nodes whose result comes first within the budget; 0 if there is no such number."""
    ### BEGIN SOLUTION
    best, earliest = 0, math.inf
    for n in range(1, largest + 1):
        hours = fixed + images / (n * batch) * seconds_of(n) / 3600
        if n * hours <= budget and wait_of(n) + hours < earliest:
            best, earliest = n, wait_of(n) + hours
    return best
    ### END SOLUTION


# %% tags=["nbval-check-output"]
choose_nodes = check(3, choose_nodes)

# %% [markdown]
# Take Bede's 50 epochs, with 4 GPUs per node and 3 fixed minutes. On 8 nodes there was *no speedup* over 4, so a step
# takes twice as long. We assume that it doesn't on fewer than 8. The queues and a budget of 4.3 node-hours are
# invented.

# %% tags=["nbval-check-output"]
QUEUES = {"empty": 0.0, "on a normal day": 0.25, "before a deadline": 1.0}  # hours per node


def seconds_of(n):
    """Return the seconds of a step on n of Bede's nodes."""
    return 0.228 if n < 8 else 0.455


for name, per_node in QUEUES.items():
    wait_of = per_node.__mul__
    n = choose_nodes(seconds_of, wait_of, EPOCHS * IMAGENET, 4 * GPU_BATCH, 0.05, 4.3, 8)
    hours = 0.05 + EPOCHS * IMAGENET / (n * 4 * GPU_BATCH) * seconds_of(n) / 3600
    print(f"queue {name}: {n} nodes, {wait_of(n):.1f} h of waiting, ", end="")
    print(f"{hours:.1f} h of training, {n * hours:.2f} node-hours")

# %% [markdown]
# With an empty queue, the budget is the limit, as 7 nodes would cost 4.31. What about your machine? Lab 03 found the
# fastest way to train ResNet-50 on it.

# %%
file = work / "results-03.json"
if file.exists() and not json.loads(file.read_text())["quick"]:
    rows = json.loads(file.read_text())["table"]["rows"]
    rates = [row["numbers"]["value"] for row in rows if "images/s" in row["texts"][2]]
else:
    rates = [figure.value for figure in (recorded("03-fixes").figures["larger batch"],)]
    print("Lab 03 has not run here: the figure is that of the recorded machine.")
weeks = EPOCHS * IMAGENET / max(rates) / 3600 / 24 / 7
print(f"50 epochs at {max(rates):,.1f} images/s: {weeks:.1f} weeks on one such machine.")
name, published = "ResNet-50, 50 epochs of ImageNet", "4 hours on 4 GPUs (Bede, 2020)"
weeks = Measured(weeks, unit="weeks", digits=1, note="computed")
results.hand_in("6", (name, published, weeks, ""))  # for the closing table

# %% [markdown]
# ## 7 · The same with PyTorch {read 3, wait 0.4, optional}
#
# PyTorch has its own launcher. `srun` starts one `torchrun` per node, and these meet at the first node's address.
# Horovod's ranks get the same information from Slurm through PMI, MPI's interface to a launcher.

# %%
# %%writefile work/torchrun.sbatch
# #!/bin/bash
# #SBATCH --ntasks-per-node=1
# #SBATCH --time=5
# #SBATCH --output=work/%x.log
# export PYTHONPATH=$KIT/env/torch/packages OMP_NUM_THREADS=1 TORCH_CPP_LOG_LEVEL=ERROR
# export PORT=$((20000 + SLURM_JOB_ID % 10000))
# if [ -e "/sys/class/net/${UCX_NET_DEVICES:-none}" ]; then
#   export GLOO_SOCKET_IFNAME=$UCX_NET_DEVICES
# fi
# first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# export ADDRESS=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
# srun bash -c '"$KIT/.venv/bin/python" -m torch.distributed.run --nproc-per-node=1 \
#   --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" \
#   --master-addr="$ADDRESS" --master-port="$PORT" work/one_step.py'

# %%
# %%writefile work/one_step.py
"""One step of DDP: started by torchrun, on any number of nodes."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
network = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
before = network.module.weight.item()
loss = network(torch.tensor([[float(dist.get_rank())]])).sum()  # its gradient is the rank
loss.backward()
torch.optim.SGD(network.parameters(), lr=1.0).step()
moved = before - network.module.weight.item()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: moved by {moved:.2f}", flush=True)
dist.destroy_process_group()

# %%
if not QUICK:
    (work / "torch.log").unlink(missing_ok=True)
    # PyTorch's store listens on all addresses: not on a machine's own, which others can reach.
    runs_here = slurm and not torch_ranks.obstacle() and (slurm.network or slurm.kind == "real")
    with_torch = terminal if runs_here else Terminal(None, "08-slurm")
    _ = with_torch("sbatch --wait --nodes=2 --job-name=torch work/torchrun.sbatch")
    _ = with_torch("cat work/torch.log")

# %% [markdown]
# Each rank's gradient is its number, so the average of 0 and 1 moves the weight by 0.50 on both. This is one training
# run, not two.
#
# ## 8 · ImageNet's layout {read 4, optional}
#
# ImageNet has 1.28 million JPEG files. On a parallel file system, each needs a request to the metadata server in every
# epoch. In the [**TFRecord**](../docs/learn/glossary.md#tfrecord) format, they become 1,024 files for training and 128
# for validation. A training file holds about 1,250 records, each with a length, a checksum and an `Example` with named
# fields. The next cell writes and reads one.

# %% tags=["nbval-check-output"]
import tensorflow as tf


def feature(value):
    """Return a field with one value: bytes or an integer."""
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


file = str(work / "train-00000-of-00001")
with tf.io.TFRecordWriter(file) as writer:
    for label in (3, 7):
        jpeg = tf.io.encode_jpeg(np.full((8, 8, 3), label, np.uint8)).numpy()
        fields = {"image/encoded": feature(jpeg), "image/class/label": feature(label)}
        example = tf.train.Example(features=tf.train.Features(feature=fields))
        writer.write(example.SerializeToString())
for stored in tf.data.TFRecordDataset(file):
    example = tf.train.Example.FromString(stored.numpy())
    fields = sorted(example.features.feature.items())
    print({name: field.WhichOneof("kind") for name, field in fields})

# %% [markdown]
# - *Who reads what.* Each rank takes some of the files (`dataset.shard`), or a part of one stream, as `resumes.py`
#   does. MXNet's **RecordIO** adds an index, so reading can begin anywhere.
# - *Storage.* On Lustre, `lfs setstripe -c` spreads a file over several servers. With object storage such as S3, copy
#   files to the nodes' disks first (`aws configure set default.s3.max_concurrent_requests 20`).
# - *Results.* `--results_dir` must be a folder that all nodes see, as the next run may get different nodes.

# %% [markdown]
# ## Questions {read 3}
#
# Answer each in a sentence or two.
#
# 1. What changes in a job script between 4 and 16 GPUs? What changes in the training?
# 2. Why are warm-ups given in epochs, and what does `--warmup_steps=100` have to do with it?
# 3. In Bede's published log, the first line reports 38 images/s, and the second 4,527. Why?
# 4. A profile shows that all ranks but one spend 60% of a step in all-reduce. Is the network slow?
# 5. According to figures for V100 GPUs published in 2018, an epoch of ImageNet takes 30 minutes on one and 5 on eight,
#    at around 5,800 images/s. Ten epochs take roughly 30 minutes and reach 48% accuracy. What is the scaling
#    efficiency? Do the figures agree?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers.
#
# 1. In the script, only the number of nodes changes; in the training, the images per step, the peak rate and the number
#    of steps.
# 2. Epochs measure what the network has seen, whatever the batch. `--warmup_steps` only leaves the first steps out of
#    the reported speed.
# 3. The first step includes tracing, compilation by XLA, and opening files.
# 4. No. In the all-reduce, they wait for the one that doesn't. Leave that node out.
# 5. The speedup is 30 / 5 = 6 on 8 GPUs, an efficiency of 75%. The figures contradict each other. At the published
#    5,800 images/s, an epoch takes 3.7 minutes (102% of eight times one GPU). According to the ten epochs it takes 3
#    minutes, and according to the first figures 5.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** To give everyone the same case, set `CASE` in the cell after the imports to 1 or 3 (node 3's
# wire), 2 (the storage's wire), 4 (node 2's wire), 5 (no fault) or 7 (slow node 1). With None, neighbours have
# different cases, and can talk. The model answer's plan costs at most 9 of 10 node-hours. Let pairs write their plan on
# paper first.
#
# **Timing** Be at section 5 by minute 30. Section 2's job takes about two minutes in the background, and section 4
# waits for it. Anyone running behind should skip exercise 1.
#
# **Other machines** The case emulates its processors, so its figures hardly depend on the machine. On fewer than 8
# cores, "too few CPUs" is not drawn. Without user namespaces (Ubuntu 24.04 restricts them), the case uses recorded
# runs, in which the sick node is always 2 (its wire) or 3 (slow), so choose 2, 4 or 5 for a mixed room. Without Slurm,
# commands show recorded output, and the job runs on ranks, stopped and restarted in the middle. On a real cluster, the
# lab submits its jobs there, so `work` must be on a shared file system, and section 4 waits for the queue.
#
# </div>

# %% [markdown]
# ## Remember
#
# - A job that saves on SIGTERM, exits with its own status and requeues itself outlives any limit. Test it once.
# - Ask what share of the missing time each run recovers. A small gain explains nothing.
# - The run without the suspect convicts it. A run that makes everything easier convicts no one.

# %%
of_three = compare(cluster.today, cluster.healthy)
results.table(
    "training on a cluster",
    [
        (
            "the case: three nodes vs one",
            "16 GPUs vs 4: 4.0× (Bede)",
            of_three,
            f"{3 * 50 / (50 + 38):.1f}× if healthy",
        ),
        *results.handed_in(
            "6", ("ResNet-50, 50 epochs of ImageNet", "4 hours on 4 GPUs (Bede, 2020)")
        ),
    ],
)

# %% tags=["background"]
record_cases("work/job.py", RUNS, QUICK)  # only where recordings are made
if slurm:
    record("08-slurm", {}, QUICK, lines=terminal.lines)

# %% [markdown]
# Published figures are from [Bede's guide](https://bede-documentation.readthedocs.io), its 2020 ResNet-50 benchmark,
# and [its hardware page](https://n8cir.org.uk/bede/bede-hardware/).
#
# **Next:** [lab 09](09_kmeans_daal4py.ipynb) turns from neural networks to distributed clustering.
