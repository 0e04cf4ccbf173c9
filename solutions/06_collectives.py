# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: write a parameter server and a ring all-reduce, and model them up to 1,024 ranks
#     needs: [memory, MPI, data]
#     better_with: [cores, network]
# ---

# %% [markdown]
# # 06 · How gradients travel
#
# Each step of data-parallel training ends with a sum over all processes. How this sum is computed decides how far
# training scales: on 512 GPUs, Horovod reached 90% scaling efficiency with ResNet-101, but only 68% with VGG-16 ([its
# benchmarks](https://horovod.readthedocs.io/en/stable/benchmarks_include.html)).
#
# **You will** write this sum of [**gradients**](../docs/glossary.md#gradient) over all
# [**ranks**](../docs/glossary.md#rank) twice: with [**parameter servers**](../docs/glossary.md#parameter-server) and as
# a [**ring**](../docs/glossary.md#ring). You count what they send, and measure how long they take, in memory and on
# wires. A model with three numbers shows which algorithm is fastest on up to 1,024 ranks.
#
# | part | sections | time |
# | --- | --- | --- |
# | one · in memory | 1 to 6 | {minutes 1–6} |
# | two · on wires | 7 to 13, and the questions | {minutes 7–questions} |
#
# Part two needs the kernel of part one: after a restart, run part one again.
#
# **Time** {minutes}
#
# **Connects to** lab 00, where two ranks first add up numbers; lab 07, where Horovod does all this; and lab 08, where
# it limits scaling.

# %% tags=["parameters"]
QUICK = False  # small runs, for tests

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("06", globals())

# %%
import itertools
import json
import math
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle
from scipy.optimize import least_squares

from labkit.display import ladder, plots
from labkit.display.consistency import Limit, Prediction, score, total
from labkit.display.measured import Measured
from labkit.mpi import RankError, run_ranks
from labkit.system import load
from labkit.system.statistics import interval, ratio, ratios
from labkit.testbed import Testbed, obstacle

cores = machine.usable_cores

# %%
# How much this lab measures: change it here. The first of two sizes is for a small run.
DEADLOCK_S = 1 if QUICK else 3  # section 1: the time limit for a deadlock
COUNTED_RANKS = 2 if QUICK else 4  # section 4
POWERS = (3, 9, 13, 16, 19, 20) if QUICK else (3, 6, 9, 11, 13, 14, 15, 16, 18, 20, 22, 24, 25, 26)
MEMORY_SIZES, MEMORY_ROUNDS = [2**power for power in POWERS], 3 if QUICK else 7  # bytes: 5, 6
GRADIENT = 4_000_000  # bytes, as in section 4
WIRE_SIZES = (1_000, GRADIENT) if QUICK else (1_000, 300_000, GRADIENT)  # section 7
NODES = (2,) if QUICK else (2, 4)
RATES = {"100 Mbit/s": 1e8} if QUICK else {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9}
WIRE_ROUNDS = 2 if QUICK else 6  # sections 7 and 8
UNSEEN_NODES, UNSEEN_SIZES = 3, (100_000,) if QUICK else (20_000, 150_000, 1_000_000)  # section 8
COMPRESSED_DIGITS, COMPRESSED_EPOCHS = (500, 2) if QUICK else (8_000, 8)  # section 12
COMPRESSED_LENGTH, COMPRESSION_ROUNDS = 500_000, 2 if QUICK else 7  # numbers, rounds
RACK_ROUNDS = 2 if QUICK else 7  # section 13

# %% [markdown]
# ## Part one · In memory
#
# **Time** {minutes 1–6}. All ranks are on this machine; messages are copied through its memory.
#
# ## 1 · What has to travel? {read 4.5, wait 0.2}
#
# In [**data parallelism**](../docs/glossary.md#data-parallelism), each rank has a copy of the network and a share of
# the [**batch**](../docs/glossary.md#batch). It computes a gradient: one number for each weight. Before weights are
# updated, every rank needs the *sum* of all gradients, or their mean. This operation is an
# [**all-reduce**](../docs/glossary.md#all-reduce).
#
# How much does one step send? Each weight is a float32, 4 bytes.

# %% tags=["nbval-check-output"]
# Weights in millions: https://keras.io/api/applications. Billions of multiplications in the
# forward pass of one image, which https://docs.pytorch.org/vision/stable/models.html calls GFLOPS.
NETWORKS = {
    "ResNet-50": (25.6, 4.09),
    "Inception V3": (23.9, 5.71),
    "ResNet-101": (44.7, 7.80),
    "VGG-16": (138.4, 15.47),
}
print(f"{'':14}{'gradient':>10}{'10⁹ multiplications/image':>28}{'MB per 10⁹':>13}")
for name, (weights, multiplications) in NETWORKS.items():
    megabytes = 4 * weights
    print(
        f"{name:14}{megabytes:>7.0f} MB{multiplications:>28.2f}{megabytes / multiplications:>13.1f}"
    )

# %% [markdown]
# Which is hardest to spread over many machines? Question 5 asks again.
#
# ### What MPI offers
#
# `mpi4py` lets Python call [**MPI**](../docs/glossary.md#mpi), the Message Passing Interface. Methods with a capital
# letter send numpy arrays as they are in memory, into an array that the receiver provides. (Those in lower case send
# any Python object, and are slower.)

# %%
# %%writefile work/messages.py
"""Send, receive and add up numbers on two ranks: mpirun -n 2 python work/messages.py"""

import numpy as np
from mpi4py import MPI

ranks = MPI.COMM_WORLD
me, other = ranks.rank, 1 - ranks.rank
mine = np.full(3, 10.0 * (me + 1), np.float32)
theirs = np.empty_like(mine)

# A message: one rank sends, the other receives.
if me == 0:
    ranks.Send(mine, dest=other)
else:
    ranks.Recv(theirs, source=other)
    print("Recv:", theirs)

# Both send, and both receive, at the same time.
ranks.Sendrecv(mine, dest=other, recvbuf=theirs, source=other)
print("Sendrecv:", theirs)

# Isend only starts to send, and returns a request. Don't change the array until you have waited
# for the request. A tag distinguishes messages between the same two ranks.
request = ranks.Isend(mine, dest=other, tag=7)
ranks.Recv(theirs, source=other, tag=7)
request.Wait()

# A collective operation: every rank calls it, and waits until it has the result.
total = np.empty_like(mine)
ranks.Allreduce(mine, total)
print("Allreduce:", total)

# %%
messages = run_ranks(2, "work/messages.py", threads=1)

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Many people make this mistake once: both ranks **send first, then receive**. Does it work?
#
# </div>

# %%
results.guess(
    1,
    "both ranks send first",
    ...,
    choices=("it works", "it hangs", "it depends on the length"),
)

# %%
# %%writefile work/deadlock.py
"""Both ranks send first. mpirun -n 2 python work/deadlock.py LENGTH METHOD"""

import sys

import numpy as np
from mpi4py import MPI

ranks = MPI.COMM_WORLD
other = 1 - ranks.rank
mine = np.ones(int(sys.argv[1]), np.float32)
theirs = np.empty_like(mine)
send = getattr(ranks, sys.argv[2])  # Send or Ssend
print(f"sending {mine.nbytes:,} bytes with {sys.argv[2]}")
send(mine, dest=other)
ranks.Recv(theirs, source=other)
print("received")

# %%
print("Three runs, about ten seconds.")
hangs = []
for length, method, limit in (
    (10, "Send", 60),
    (1_000_000, "Send", DEADLOCK_S),
    (10, "Ssend", DEADLOCK_S),
):
    try:
        run_ranks(2, "work/deadlock.py", length, method, threads=1, timeout=limit)
        hangs.append(False)
    except RankError as error:
        hangs.append(True)
        print(f"RankError: {error}")
short, long, _ = hangs
outcome = "it hangs" if long else "it works"
results.compare_guess(1, outcome if short == long else "it depends on the length")

# %% [markdown]
# `Send` may return as soon as you can change the array again: once the message is in a buffer, or the other rank has
# received it. The MPI standard leaves the choice to the library. MPICH buffers a short message. A long one doesn't fit,
# so each rank waits in its `Send` for the other: a [**deadlock**](../docs/glossary.md#deadlock). `run_ranks` ended it
# at the time limit.
#
# A program that relies on these buffers is called *unsafe*, however short its messages are. `Ssend` never uses a
# buffer, so it shows the mistake even with 40 bytes. `Sendrecv` and `Isend` avoid it.

# %% [markdown]
# ## 2 · A parameter server {read 4, do 9}
#
# The classic method: one rank is the **server**. The workers *push* their gradients to it, it adds them up, and they
# *pull* the sum.
#
# ```mermaid
# flowchart LR
#     accTitle: A parameter server
#     accDescr {
#         Ranks 1, 2 and 3 each push their gradient to rank 0, the server.
#         It adds them up, and each of the three pulls the sum from it.
#     }
#     r1["rank 1"] -- push gradient --> s["rank 0, the server: adds up"]
#     r2["rank 2"] -- push gradient --> s
#     r3["rank 3"] -- push gradient --> s
#     s -- pull sum --> t1["rank 1"]
#     s -- pull sum --> t2["rank 2"]
#     s -- pull sum --> t3["rank 3"]
# ```
#
# A single server receives and sends everything, while other links are idle. So take *k* servers, and cut the gradient
# into *k* chunks, one for each server. The length need not be divisible by *k*. This module cuts arrays:

# %%
# %%writefile work/chunks.py
"""Cut an array into chunks."""

import itertools


def bounds(length, parts):
    """Return (start, stop) of each chunk; the first chunks are longer by one if necessary."""
    size, extra = divmod(length, parts)
    starts = [part * size + min(part, extra) for part in range(parts + 1)]
    return list(itertools.pairwise(starts))


if __name__ == "__main__":
    print("10 numbers in 4 chunks:", bounds(10, 4))
    print("2 numbers in 4 chunks: ", bounds(2, 4))

# %% tags=["nbval-check-output"]
# %run work/chunks.py

# %% [markdown]
# ### Exercise 1 · k servers
#
# Write `parameter_server(ranks, gradient, total, buffer, servers)`. Ranks 0 to `servers - 1` are servers, and **workers
# too**: like all ranks, they have a gradient.
#
# - Push: each rank sends each server its chunk of the gradient, and nothing else. **This part is written.** (Why does
#   it use `Isend`, and not `Send`?)
# - Each server adds up the chunks that it receives.
# - Pull: each server sends its sum to every rank.
#
# At the end, `total` contains the sum **on every rank**, and `gradient` is unchanged. Any number of ranks and any
# length must work, even if some chunks are empty. Use messages from rank to rank only, no `Allreduce` or `Bcast`, and
# only the communicator `ranks`: it may have other ranks than `MPI.COMM_WORLD`, in another order. The arrays are
# float32.
#
# `buffer` is there to receive into. It is as long as `gradient`, and what it contains doesn't matter. `buffer[:k]` is a
# view of its first `k` numbers, not a copy. A program that sums gradients in every step allocates its arrays once, so
# don't allocate new ones: receive into `buffer` or `total`, and add in place, with `+=`.

# %%
# %%writefile work/servers.py
"""Sum arrays over all ranks with k parameter servers."""

from chunks import bounds
from mpi4py import MPI

PUSH, PULL = 1, 2  # tags


def parameter_server(ranks, gradient, total, buffer, servers):
    """Fill `total` with the sum of all ranks' `gradient`; each of the servers adds up a chunk.

    `buffer` is as long, to receive into.
    """
    n, me = ranks.size, ranks.rank
    parts = bounds(len(gradient), servers)  # (start, stop) of each server's chunk
    others = [rank for rank in range(n) if rank != me]
    requests = [
        ranks.Isend(gradient[start:stop], dest=server, tag=PUSH)
        for server, (start, stop) in enumerate(parts)
        if server != me
    ]
    ### BEGIN SOLUTION
    if me < servers:
        start, stop = parts[me]
        chunk, incoming = total[start:stop], buffer[: stop - start]
        chunk[:] = gradient[start:stop]
        for worker in others:  # in the same order, so that rounding is the same in each run
            ranks.Recv(incoming, source=worker, tag=PUSH)
            chunk += incoming
        requests += [ranks.Isend(chunk, dest=worker, tag=PULL) for worker in others]
    for server, (start, stop) in enumerate(parts):
        if server != me:
            ranks.Recv(total[start:stop], source=server, tag=PULL)
    MPI.Request.Waitall(requests)
    ### END SOLUTION


# %% [markdown]
# The check uses communicators of 1 to 4 ranks, and lengths from 1 to 300,003. It compares the sums, and counts what
# each rank sends. One call may take 10 s, all together 60 s.

# %% tags=["nbval-check-output"]
servers = check(1, "work/servers.py")

# %% [markdown]
# ## 3 · A ring without a server {read 3, do 12}
#
# With as many servers as ranks, all ranks do the same work, but each talks to all others. The **ring all-reduce**
# balances the work just as well, and each rank talks to two neighbours only. In every step, each rank sends to the next
# one, its right neighbour, and the last rank sends to rank 0.
#
# There are as many chunks as ranks, and two phases:
#
# 1. [**Reduce-scatter**](../docs/glossary.md#reduce-scatter), `n - 1` steps: each rank passes a chunk on, and the next
#    rank adds its numbers to it. Afterwards, each rank has *one* complete chunk.
# 2. [**All-gather**](../docs/glossary.md#all-gather), `n - 1` steps: the complete chunks go round, and replace the
#    incomplete ones.
#
# Baidu brought the ring from scientific computing to deep learning in 2017, and Horovod adopted it (Sergeev and Del
# Balso 2018, [arXiv 1802.05799](https://arxiv.org/abs/1802.05799)). The picture shows how many ranks' numbers have been
# added up in each chunk.

# %% jupyter={"source_hidden": true}
n = 4
held = np.ones((n, n), int)  # [rank, chunk]: how many ranks' numbers are in it
pictures = [("start", held.copy(), [])]
for step in range(n - 1):
    sent = [(rank, (rank - step) % n) for rank in range(n)]
    before = held.copy()
    for rank, chunk in sent:
        held[(rank + 1) % n, chunk] += before[rank, chunk]
    pictures.append((f"reduce-scatter {step}", held.copy(), sent))
for step in range(n - 1):
    sent = [(rank, (rank + 1 - step) % n) for rank in range(n)]
    for rank, chunk in sent:
        held[(rank + 1) % n, chunk] = n
    pictures.append((f"all-gather {step}", held.copy(), sent))

figure, axes = plt.subplots(1, len(pictures), figsize=(13, 2.9), sharey=True)
for axis, (name, counts, sent) in zip(axes, pictures):
    axis.imshow(counts, cmap="Blues", vmin=0, vmax=n + 4)
    for rank in range(n):
        for chunk in range(n):
            arrived = ((rank - 1) % n, chunk) in sent
            weight = "bold" if arrived else "normal"
            place = {"ha": "center", "va": "center", "fontsize": 13, "fontweight": weight}
            axis.text(chunk, rank, counts[rank, chunk], **place)
            if arrived:
                edge = {"fill": False, "edgecolor": plots.VERMILION, "linewidth": 2.5}
                axis.add_patch(Rectangle((chunk - 0.44, rank - 0.44), 0.88, 0.88, **edge))
    axis.set_title(name, fontsize=12)
    axis.set_xlabel("chunk")
    axis.set_xticks(range(n))
    axis.set_yticks(range(n))
    axis.grid(False)
axes[0].set_ylabel("rank")
figure.suptitle("Ring all-reduce on 4 ranks: how many ranks' numbers are in each chunk")
plots.show(
    figure,
    alt="Seven tables of 4 ranks by 4 chunks; what was just received is bold and framed. At "
    "the start all hold 1. After three steps of reduce-scatter, rank r holds a 4 in chunk r + 1. "
    "After three steps of all-gather all hold 4. In each step, each rank receives one chunk from "
    "the rank above it, and rank 0 from rank 3.",
    keep=results,
)

# %% [markdown]
# ### Exercise 2 · The ring
#
# Write `ring_allreduce(ranks, gradient, total, buffer)`. The rules are those of exercise 1. `chunks` are views: what
# you write into them is written into `total`. In each step, each rank sends **one** chunk to its right neighbour.
# Where does the chunk go that arrives from the left, if its numbers are to be added? Into the first numbers of
# `buffer`.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which chunk does rank *r* send in step 0? And in step 1?
#
# </div>

# %%
# %%writefile work/ring.py
"""Sum arrays over all ranks in a ring."""

from chunks import bounds


def ring_allreduce(ranks, gradient, total, buffer):
    """Fill `total` with the sum of all ranks' `gradient`; `buffer` is as long, to receive into."""
    n, me = ranks.size, ranks.rank
    left, right = (me - 1) % n, (me + 1) % n
    total[:] = gradient
    chunks = [total[start:stop] for start, stop in bounds(len(total), n)]
    ### BEGIN SOLUTION
    for step in range(n - 1):  # reduce-scatter
        out, into = chunks[(me - step) % n], chunks[(me - step - 1) % n]
        incoming = buffer[: len(into)]
        ranks.Sendrecv(out, dest=right, recvbuf=incoming, source=left)
        into += incoming
    for step in range(n - 1):  # all-gather
        out, into = chunks[(me + 1 - step) % n], chunks[(me - step) % n]
        ranks.Sendrecv(out, dest=right, recvbuf=into, source=left)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
ring = check(2, "work/ring.py")

# %% [markdown]
# ## 4 · Count: messages and bytes {read 3}
#
# For *n* ranks, a gradient of *S* bytes and *k* servers, theory says that each rank **sends**:
#
# | | messages | bytes |
# | --- | --- | --- |
# | a server | (n − 1) + (k − 1) | (n − 1) · S/k + (S − S/k) |
# | a rank that is not a server | k | S |
# | ring, each rank | 2(n − 1) | 2(n − 1)/n · S |
#
# `CountingComm` counts. The script also compares your sums with those of `MPI_Allreduce` and numpy, up to rounding:
# adding in another order changes the last bits.

# %% jupyter={"source_hidden": true}
# %%writefile work/count.py
"""Count what each rank sends, and compare the sums: work/count.py SERVERS RING"""

import sys
from importlib import import_module

import numpy as np
from mpi4py import MPI

from labkit.mpi import CountingComm

LENGTH = 1_000_000
parameter_server = import_module(sys.argv[1]).parameter_server
ring_allreduce = import_module(sys.argv[2]).ring_allreduce


def in_theory(n, servers):
    """Return (messages, bytes) of each of n ranks; without servers, in a ring."""
    size = 4 * LENGTH
    if not servers:
        return [(2 * (n - 1), 2 * (n - 1) / n * size)] * n
    server = (n - 1) + (servers - 1), (n - 1) * size / servers + size - size / servers
    return [server if rank < servers else (servers, size) for rank in range(n)]


def count(ranks, servers=0):
    """Run one all-reduce; on rank 0, print what each rank sends, counted and in theory."""
    gradient = np.random.default_rng(ranks.rank).normal(size=LENGTH).astype(np.float32)
    total, mpi_total, buffer = np.empty((3, LENGTH), np.float32)
    counting = CountingComm(ranks)
    if servers:
        parameter_server(counting, gradient, total, buffer, servers)
    else:
        ring_allreduce(counting, gradient, total, buffer)
    sent = ranks.allgather((len(counting.messages), counting.bytes_sent()))
    ranks.Allreduce(gradient, mpi_total)
    numpy_total = np.sum(ranks.allgather(gradient), axis=0)
    correct = (mpi_total, numpy_total)
    equal = all(np.allclose(total, array, rtol=1e-5, atol=1e-5) for array in correct)
    if not ranks.allreduce(equal, op=MPI.LAND):
        raise ValueError("the sum differs from MPI's or numpy's")
    if ranks.rank == 0:
        method = f"{servers} server{'s' * (servers > 1)}" if servers else "ring"
        for name, by_rank in (("counted", sent), ("in theory", in_theory(ranks.size, servers))):
            messages = " ".join(f"{messages}" for messages, _ in by_rank)
            megabytes = " ".join(f"{n_bytes / 1e6:5.2f}" for _, n_bytes in by_rank)
            print(
                f"{ranks.size} ranks, {method:9} {name:9} | messages {messages:7} | MB {megabytes}"
            )


world = MPI.COMM_WORLD
for n in range(2, world.size + 1):
    part = world.Split(0 if world.rank < n else MPI.UNDEFINED)  # the first n ranks
    if part != MPI.COMM_NULL:
        for servers in sorted({1, n // 2, n}):
            count(part, servers)
        count(part)

# %%
print("A gradient of 4 MB: what ranks 0, 1, … send")
counts = run_ranks(COUNTED_RANKS, "work/count.py", Path(servers).stem, Path(ring).stem, threads=1)

# %% [markdown]
# For each number of ranks, compare the last two methods. With as many servers as ranks, each rank sends as many
# messages and bytes as in the ring. So servers aren't slow; too few servers are. Counts don't show who sends to whom
# *at the same moment*: section 7 measures whether that matters.
#
# ## 5 · How long does it take in memory? {read 4, wait 0.1}
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Your ring is written in Python, `MPI_Allreduce` in C. How fast is your ring with 64 MiB, relative to
# `MPI_Allreduce`? (Above 1, it is faster.) And with 8 bytes?
#
# </div>

# %%
size = f"{MEMORY_SIZES[-1] / 2**20:.0f} MiB"
results.guess(2, f"your ring vs MPI_Allreduce, {size}", ..., unit="×")

# %% [markdown]
# The script measures both on two ranks, from 8 bytes to 64 MiB, and the operations that they consist of:
#
# - **ping-pong**: a message from rank 0 to rank 1 and back, divided by two,
# - **exchange**: each rank sends and receives at the same time, one step of your all-gather,
# - **exchange and add**: what a rank received is added to what it sends next, one step of your reduce-scatter,
# - **copy**: an array is copied within a rank, on both ranks at once.
#
# They alternate in each round, so that other work affects all of them. A round's time is that of the slowest rank. The
# script also counts [**page faults**](../docs/glossary.md#page-fault), for section 6.

# %% jupyter={"source_hidden": true}
# %%writefile work/parts.py
"""The parts of an all-reduce."""

from mpi4py import MPI

ranks = MPI.COMM_WORLD
left, right = (ranks.rank - 1) % ranks.size, (ranks.rank + 1) % ranks.size


def ping_pong(ball):
    if ranks.rank == 0:
        ranks.Send(ball, dest=1)
        ranks.Recv(ball, source=1)
    elif ranks.rank == 1:
        ranks.Recv(ball, source=0)
        ranks.Send(ball, dest=0)


def exchange(mine, theirs):
    ranks.Sendrecv(mine, dest=right, recvbuf=theirs, source=left)
    ranks.Sendrecv(theirs, dest=right, recvbuf=mine, source=left)


def exchange_and_add(mine, theirs):
    ranks.Sendrecv(mine, dest=right, recvbuf=theirs, source=left)
    mine += theirs


# %% jupyter={"source_hidden": true}
# %%writefile work/measure.py
"""Time all-reduces and their parts: work/measure.py SERVERS RING OUT ROUNDS SIZE …"""

import json
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import numpy as np
from mpi4py import MPI
from parts import exchange, exchange_and_add, ping_pong, ranks

parameter_server = import_module(sys.argv[1]).parameter_server
ring_allreduce = import_module(sys.argv[2]).ring_allreduce
out, rounds, sizes = Path(sys.argv[3]), int(sys.argv[4]), [int(size) for size in sys.argv[5:]]


def run(call, times):
    """Return seconds and page faults per call, each of the rank with the most."""
    ranks.Barrier()
    faults, start = getrusage(RUSAGE_SELF).ru_minflt, time.perf_counter()
    for _ in range(times):
        call()
    spent = time.perf_counter() - start, getrusage(RUSAGE_SELF).ru_minflt - faults
    return [ranks.allreduce(value / times, op=MPI.MAX) for value in spent]


measured = {"seconds": {}, "faults": {}}  # by method, then by bytes: of each round
for size in sizes:
    gradient, total, buffer = np.full((3, size // 4), 0.0, np.float32)  # zeros can be added forever
    halves = gradient[: len(gradient) // 2], total[: len(total) // 2]
    methods = {
        "ping-pong": partial(ping_pong, gradient),
        "exchange": partial(exchange, gradient, total),
        "exchange and add": partial(exchange_and_add, gradient, total),
        "copy": partial(np.copyto, total, gradient),
        "exchange half": partial(exchange, *halves),
        "exchange and add half": partial(exchange_and_add, *halves),
        "MPI_Allreduce": partial(ranks.Allreduce, gradient, total),
        "ring": partial(ring_allreduce, ranks, gradient, total, buffer),
        "1 server": partial(parameter_server, ranks, gradient, total, buffer, 1),
    }
    times = {}  # calls per round: they take about 5 ms
    for name, call in methods.items():
        call()  # touches memory and opens connections
        times[name] = max(1, min(200, int(0.005 / run(call, 1)[0])))
    for _ in range(rounds):
        for name, call in methods.items():
            for what, value in zip(measured, run(call, times[name])):
                value /= 2 if name in ("ping-pong", "exchange", "exchange half") else 1
                measured[what].setdefault(name, {}).setdefault(size, []).append(value)
    if ranks.rank == 0:
        typical = {
            name: f"{1e6 * np.median(by[size]):,.0f} µs" for name, by in measured["seconds"].items()
        }
        shown = ("exchange", *list(methods)[-3:])
        print(f"{size:>12,} bytes: " + ", ".join(f"{name} {typical[name]}" for name in shown))
if ranks.rank == 0:
    out.write_text(json.dumps(measured))


# %%
def by_method_and_bytes(loaded):
    """Return a dict by method and bytes as JSON loaded it, with bytes as integers again."""
    return {
        name: {int(n_bytes): value for n_bytes, value in by_bytes.items()}
        for name, by_bytes in loaded.items()
    }


def measure(sizes, env=None):
    """Run the script on 2 ranks; return seconds and page faults by method and bytes."""
    out = work / "allreduce.json"
    modules = Path(servers).stem, Path(ring).stem
    arguments = (*modules, out, MEMORY_ROUNDS, *sizes)
    run_ranks(2, "work/measure.py", *arguments, threads=1, env=env)
    return [by_method_and_bytes(loaded) for loaded in json.loads(out.read_text()).values()]


print(f"{len(MEMORY_SIZES)} sizes, {MEMORY_ROUNDS} rounds each: about 15 seconds.")
with load.watch("section 5") as measured_others:
    measured, faults = measure(MEMORY_SIZES)


# %%
def over_rounds(seconds):
    """Return the geometric mean over the rounds, and the two ends of its 95% interval."""
    mean, half = interval(np.log(seconds))
    return np.exp([mean, mean - half, mean + half])


def milliseconds(seconds, digits=1):
    """Return the same in ms."""
    return Measured(*(1e3 * over_rounds(seconds)), "ms", digits=digits)


def typical(method):
    """Return the seconds for each message size: the mean, and both ends of its interval."""
    return np.array([over_rounds(measured[method][n_bytes]) for n_bytes in MEMORY_SIZES]).T


# %% jupyter={"source_hidden": true}
figure, (axis, rate_axis) = plt.subplots(1, 2, figsize=(13, 5))
megabytes = np.array(MEMORY_SIZES) / 1e6
for method in ("MPI_Allreduce", "ring", "1 server"):
    mean, low, high = typical(method)
    name = "your ring" if method == "ring" else method
    (line,) = axis.loglog(MEMORY_SIZES, 1e6 * mean, label=name)
    band = {"color": line.get_color(), "alpha": 0.25}
    axis.fill_between(MEMORY_SIZES, 1e6 * low, 1e6 * high, **band)
    look = {"color": line.get_color(), "marker": line.get_marker()}
    rate_axis.semilogx(MEMORY_SIZES, megabytes / mean, **look)
    rate_axis.fill_between(MEMORY_SIZES, megabytes / high, megabytes / low, **band)
axis.set(xlabel="gradient (bytes)", ylabel="time (µs)", title="small gradients: latency limits")
rate_axis.set(
    xlabel="gradient (bytes)",
    ylabel="gradient ÷ time (MB/s)",
    title="large gradients: bandwidth limits",
)
rate_axis.set_ylim(bottom=0)
axis.legend()
figure.suptitle("An all-reduce on 2 ranks, in memory (bands: 95% intervals)")
plots.show(
    figure,
    alt="An all-reduce on 2 ranks against the gradient's bytes. Left: microseconds, both axes "
    "logarithmic. Right: megabytes of the gradient per second. "
    + "; ".join(
        f"{method}: {1e6 * typical(method)[0][0]:,.0f} µs for {MEMORY_SIZES[0]} bytes, "
        f"{1e6 * typical(method)[0][-1]:,.0f} µs for {MEMORY_SIZES[-1]:,} bytes"
        for method in ("MPI_Allreduce", "ring", "1 server")
    )
    + ".",
    watched=[measured_others],
)


# %%
def compare(by_method, n_bytes, reference="MPI_Allreduce"):
    """Return your ring's speed over another method's, from the rounds in which they alternated."""
    return ratio(*(1 / np.array(by_method[name][n_bytes]) for name in ("ring", reference)))


largest = MEMORY_SIZES[-1]
for n_bytes in (MEMORY_SIZES[0], largest):
    ring_gain = compare(measured, n_bytes)  # after the loop, at the largest size
    print(f"{n_bytes:>11,} bytes: your ring vs MPI_Allreduce: {ring_gain}, {ring_gain.verdict}")
results.compare_guess(2, Measured(*ring_gain, "×"))


def ring_parts(seconds):
    """Return each round's seconds of a ring's copy and its two steps."""
    names = "copy", "exchange and add half", "exchange half"
    return [seconds[name][largest] for name in names]


def check_ring(seconds):
    """Return whether the parts of your ring sum to its time."""
    parts = [milliseconds(rounds).value for rounds in ring_parts(seconds)]
    return total(parts, milliseconds(seconds["ring"][largest]).value)


print("Your ring:", check_ring(measured))

# %% [markdown]
# The time of small messages hardly depends on their size: this is [**latency**](../docs/glossary.md#latency), here with
# Python's time. For large ones it grows with the bytes: this is [**bandwidth**](../docs/glossary.md#bandwidth).
#
# The last line is a check. On 2 ranks, your ring copies the gradient, exchanges half of it and adds, then exchanges
# half again. The parts were timed in the same rounds.
#
# Intervals here are 95% intervals over the rounds of *one* launch: another launch may place memory and ranks
# differently.
#
# ## 6 · Why is one faster? {read 3, optional}
#
# `MPI_Allreduce` is C, written by experts. If it isn't faster than your ring with large gradients, change **one** thing
# and measure again.
#
# Your ring gets its buffer from the caller, who allocates it once. `MPI_Allreduce` allocates one in each call. After
# the call it is freed, and the C library returns a large buffer (glibc: any above 32 MiB) to the system. The next call
# gets *fresh* pages, each filled with zeros first, at a page fault. With two variables, glibc keeps freed memory:
# measure the largest size again.

# %%
print("A few seconds.")
KEEP = {"MALLOC_MMAP_MAX_": 0, "MALLOC_TRIM_THRESHOLD_": 2**40}  # man mallopt
with load.watch("section 6") as memory_others:
    with_memory, faults_with_memory = measure([largest], KEEP)


# %% jupyter={"source_hidden": true}
def describe_memory(usual, changed, usual_faults, changed_faults):
    """Return the cost of fresh memory in MPI_Allreduce, from the ratios and its page faults."""
    if usual_faults < 2 * changed_faults + 8:
        few = "Keeping memory saves MPI_Allreduce hardly any page faults here"
        return f"{few}, so fresh memory doesn't explain the ratio."
    saves = f"Keeping memory saves MPI_Allreduce {usual_faults - changed_faults:,.0f} page faults"
    if changed.high < usual.low:
        return f"{saves}, and it gains on your ring."
    if changed.low > usual.high:
        return f"{saves}, but your ring gains more."
    return f"{saves}, but the ratio doesn't change significantly."


memory_gain = compare(with_memory, largest)
for setting, seconds, page_faults, gain in (
    ("as usual", measured, faults, ring_gain),
    ("memory kept", with_memory, faults_with_memory, memory_gain),
):
    for method in ("MPI_Allreduce", "ring"):
        pages = np.median(page_faults[method][largest])
        spent = str(milliseconds(seconds[method][largest]))
        print(f"{setting:12} {method:13} {spent:26} {pages:7,.0f} page faults")
    print(f"{'':12} your ring vs MPI_Allreduce: {gain}, {gain.verdict}")
mpi_faults = [np.median(by["MPI_Allreduce"][largest]) for by in (faults, faults_with_memory)]
print(describe_memory(ring_gain, memory_gain, *mpi_faults))
print("Your ring with memory kept:", check_ring(with_memory))
row = (
    f"the same with memory kept, {largest / 2**20:.0f} MiB",
    "",
    Measured(*memory_gain, "×"),
    "",
    memory_others,
)
results.hand_in("6", row)

# %% [markdown]
# What should a framework do that reduces the same gradients in each step? Keep its buffers: Horovod has a *fusion
# buffer* (lab 07).
#
# ## Part two · On wires
#
# **Time** {minutes 7–questions}. From here on, each rank runs on its own [**node**](../docs/glossary.md#node), and
# wires join the nodes. Your two scripts stay as they are.
#
# ## 7 · How long does it take on wires? {read 4, wait 1}
#
# Linux can make nodes on one machine, as [**network namespaces**](../docs/glossary.md#network-namespace). From each, a
# cable leads to a switch, and carries no more than the rate that you request.
#
# **Only the wires are emulated.** The nodes share this machine's cores, caches and memory. Where nodes share a core, a
# waiting rank sleeps (`MPIR_CVAR_ENABLE_HEAVY_YIELD=1`): otherwise MPICH would poll, and keep the core from a rank that
# has something to send. At 1 Gbit/s, the lab uses no more nodes than cores (but at least 2), or the cores would be the
# limit. Where nodes aren't allowed, the lab continues in memory and says what it leaves out.

# %%
no_wires = obstacle()
print(f"No wires here: {no_wires}" if no_wires else "Here, nodes can be joined by wires.")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** A wire of 100 Mbit/s carries 12.5 MB in a second, each way. For a gradient of 4 MB on 4 nodes, how
# many milliseconds does one server take? Your ring? As many servers as nodes?
#
# </div>

# %%
results.guess(3, "your ring, 4 MB, 4 nodes, wires of 100 Mbit/s", ..., unit="ms")

# %% [markdown]
# Theory is a division: the bytes on the busiest wire, over its rate. *Headers* count too: of the 1,514 bytes of a
# packet, 1,448 are your numbers. For `MPI_Allreduce`, theory is the minimum that any algorithm has to send.
#
# Each rank also reads how many bytes its interface has sent, and how many segments TCP has *retransmitted* because no
# acknowledgement came.

# %% jupyter={"source_hidden": true}
# %%writefile work/measure_on_wires.py
"""Time all-reduces on wires, and count what the interfaces send.

measure_on_wires.py SERVERS RING OUT ROUNDS METHODS SIZE …; with - for OUT, results are printed.
"""

import itertools
import json
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
from mpi4py import MPI

from labkit.mpi import CountingComm
from labkit.testbed import traffic

parameter_server = import_module(sys.argv[1]).parameter_server
ring_allreduce = import_module(sys.argv[2]).ring_allreduce
out, rounds, names = sys.argv[3], int(sys.argv[4]), sys.argv[5].split(",")
sizes = [int(size) for size in sys.argv[6:]]
ranks = MPI.COMM_WORLD
METHODS = {
    "1 server": lambda ranks, *arrays: parameter_server(ranks, *arrays, 1),
    "n servers": lambda ranks, *arrays: parameter_server(ranks, *arrays, ranks.size),
    "ring": ring_allreduce,
    "MPI_Allreduce": lambda ranks, gradient, total, buffer: ranks.Allreduce(gradient, total),
}


def retransmitted():
    """Return the number of segments that TCP on this node has retransmitted so far."""
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def run(method, times):
    """Return seconds, bytes that each rank sends, and segments retransmitted, per call."""
    ranks.Barrier()
    before, again, spent = traffic().sent, retransmitted(), 0.0
    for _ in range(times):
        ranks.Barrier()  # no rank begins the next call while others are in this one
        start = time.perf_counter()
        METHODS[method](ranks, gradient, total, buffer)
        spent += time.perf_counter() - start
    ranks.Barrier()
    sent, again = traffic().sent - before, retransmitted() - again
    return (
        ranks.allreduce(spent / times, op=MPI.MAX),
        ranks.allgather(sent / times),
        ranks.allreduce(again / times),
    )


measured = {"seconds": {}, "sent": {}, "again": {}, "counted": {}}  # by method, then by bytes
for size in sizes:
    gradient, total, buffer = np.zeros((3, size // 4), np.float32)
    times = {}  # calls per round: they take about 50 ms
    for method in names:
        counting = CountingComm(ranks)
        METHODS[method](counting, gradient, total, buffer)  # opens connections too
        counted = ranks.allgather(counting.bytes_sent())
        measured["counted"].setdefault(method, {})[size] = counted
        times[method] = max(1, min(100, int(0.05 / run(method, 1)[0])))
    for _ in range(rounds):
        for method in names:
            spent, sent, again = run(method, times[method])
            measured["seconds"].setdefault(method, {}).setdefault(size, []).append(spent)
            measured["sent"].setdefault(method, {})[size] = sent
            measured["again"].setdefault(method, {}).setdefault(size, []).append(again)
if ranks.rank == 0 and out != "-":
    Path(out).write_text(json.dumps(measured))
elif ranks.rank == 0:
    for size, method in itertools.product(sizes, names):
        milliseconds = 1e3 * np.median(measured["seconds"][method][size])
        sent = " ".join(f"{n_bytes / 1e6:.1f}" for n_bytes in measured["sent"][method][size])
        print(f"{size:,} bytes, {method:13} {milliseconds:,.0f} ms, MB sent by each rank: {sent}")

# %%
ON_WIRES = ("1 server", "n servers", "ring", "MPI_Allreduce")


def measure_on_wires(n, rate, sizes):
    """Run the script on n nodes; return its results, each by method and bytes."""
    out, modules = work / "wires.json", (Path(servers).stem, Path(ring).stem)
    arguments = (*modules, out, WIRE_ROUNDS, ",".join(ON_WIRES), *sizes)
    run_ranks(n, "work/measure_on_wires.py", *arguments, threads=1, network=rate)
    return {what: by_method_and_bytes(by) for what, by in json.loads(out.read_text()).items()}


def keep_up(n, rate):
    """Return whether the wires are the limit of n nodes, and not the cores that they share."""
    return n <= max(2, cores) or RATES[rate] <= 1e8


wired = {}  # by rate and nodes
cases = [(rate, n) for rate in RATES for n in NODES if not no_wires and keep_up(n, rate)]
with load.watch("section 7") as wired_others:
    for place, (rate, n) in enumerate(cases, 1):
        print(f"Run {place} of {len(cases)}: {n} nodes, {rate}. The runs take a minute in total.")
        wired[rate, n] = measure_on_wires(n, rate, WIRE_SIZES)

# %%
HEADERS = 1514 / 1448  # bytes on the wire per byte that is sent: Ethernet, IP and TCP


def in_theory(method, n, rate):
    """Return the seconds for which the busiest wire is in use, and its rank's bytes."""
    sent = (n - 1 if method == "1 server" else 2 * (n - 1) / n) * GRADIENT
    # A server sends only when it has received everything.
    bits = 8 * HEADERS * sent * (2 if method == "1 server" else 1)
    return bits / RATES[rate], sent


print("4 MB on wires; MB of the busiest rank" if wired else f"Not here: {no_wires}")
if wired:
    print(f"{'':34}{'measured':26}{'theory':>10} | {'on the wire':>11}{'counted':>10}{'theory':>8}")
predictions = []
for (rate, n), runs in wired.items():
    for method in ON_WIRES:
        seconds, n_bytes = in_theory(method, n, rate)
        spent = milliseconds(runs["seconds"][method][GRADIENT], 0)
        sent, counted = (max(runs[what][method][GRADIENT]) / 1e6 for what in ("sent", "counted"))
        if method != "MPI_Allreduce":  # for which theory is a lower bound
            predictions.append(Prediction(f"{rate}, {n} nodes, {method}", 1e3 * seconds, spent))
        times = f"{spent!s:26}{1e3 * seconds:7,.0f} ms"
        figures = f"{times} | {sent:8.2f} MB{counted:10.2f}{n_bytes / 1e6:8.2f}"
        print(f"{rate:>10}, {n} nodes, {method:13} {figures}")
    for other in ("1 server", "n servers", "MPI_Allreduce"):
        gain = compare(runs["seconds"], GRADIENT, other)
        print(f"{'':12}your ring vs {other}: {gain}, {gain.verdict}")
if wired:
    print(f"Theory as a prediction, without MPI_Allreduce: {score(predictions)}")
slowest, most = next(iter(RATES)), NODES[-1]
if (slowest, most) == ("100 Mbit/s", 4) and wired:
    results.compare_guess(3, milliseconds(wired[slowest, most]["seconds"]["ring"][GRADIENT], 0))

# %% jupyter={"source_hidden": true}
if wired:
    figure, axes = plt.subplots(
        1, len(RATES), figsize=(6.5 * len(RATES), 5), sharey=True, squeeze=False
    )
    for axis, rate in zip(axes.flat, RATES):
        for place, (n, colour, marker) in enumerate(zip(NODES, (plots.SKY, plots.BLUE), "os")):
            if (rate, n) not in wired:
                continue
            at = np.arange(len(ON_WIRES)) + (place - (len(NODES) - 1) / 2) * 0.4
            rounds = [wired[rate, n]["seconds"][method][GRADIENT] for method in ON_WIRES]
            mean, low, high = 1e3 * np.array([over_rounds(spent) for spent in rounds]).T
            limit = [1e3 * in_theory(method, n, rate)[0] for method in ON_WIRES]
            style = {
                "color": colour,
                "fmt": marker,
                "capsize": 5,
                "label": f"{n} nodes, measured",
            }
            axis.errorbar(at, mean, (mean - low, high - mean), **style)
            for x, value in zip(at, mean):
                axis.text(x + 0.06, value, f"{value:,.0f}", fontsize=11, va="bottom")
            label = "" if place else "theory"
            axis.hlines(
                limit, at - 0.15, at + 0.15, color=plots.VERMILION, linewidth=3, label=label
            )
        axis.set_yscale("log")
        names = ["your ring" if method == "ring" else method for method in ON_WIRES]
        axis.set_xticks(range(len(ON_WIRES)), names, fontsize=11)
        axis.set_title(f"wires of {rate}")
    axes[0, 0].set_ylabel("time (ms)")
    axes[0, 0].legend(fontsize=11, loc="upper right")
    figure.suptitle("An all-reduce of 4 MB on wires: measured (bars: 95% intervals) and in theory")
    plots.show(
        figure,
        alt="Points on a logarithmic axis: milliseconds of an all-reduce of 4 MB, with 95% "
        "intervals, and a line for the theory at each. "
        + "; ".join(
            f"{rate}, {n} nodes: "
            + ", ".join(
                f"{method} {1e3 * over_rounds(runs['seconds'][method][GRADIENT])[0]:,.0f} (theory "
                f"{1e3 * in_theory(method, n, rate)[0]:,.0f})"
                for method in ON_WIRES
            )
            for (rate, n), runs in wired.items()
        )
        + ".",
        keep=results,
        watched=[wired_others],
    )

# %% [markdown]
# Headers and acknowledgements add to the bytes on the wire. (At 1 Gbit/s, Linux forwards packets in bundles, and counts
# one header per bundle.)
#
# ### Equal bytes, equal times?
#
# With as many servers as nodes, each node sends as many bytes as in the ring. But all ranks send to a server at the
# same moment. If the queue before its wire overflows, packets are lost, and TCP retransmits them: this is
# [**incast**](../docs/glossary.md#incast), best known from storage networks ([Phanishayee et al.
# 2008](https://www.usenix.org/events/fast08/tech/phanishayee.html)). In a ring, each node receives from one other only.
# Did incast happen here?


# %% jupyter={"source_hidden": true}
def describe_incast(gain, again_servers, again_ring):
    """Return whether retransmitted segments explain the ring's speed over n servers'."""
    counts = f"segments retransmitted per call: n servers {again_servers:,.1f}, "
    counts += f"ring {again_ring:,.1f}"
    if not (gain.significant and gain.faster):
        return f"the ring is not significantly faster; {counts}"
    if again_servers > 2 * again_ring + 5:
        return f"the ring is faster; {counts}. Incast is a likely reason"
    return f"the ring is faster; {counts}. Incast doesn't explain it"


for (rate, n), runs in wired.items():
    again = [float(np.mean(runs["again"][method][GRADIENT])) for method in ("n servers", "ring")]
    gain = compare(runs["seconds"], GRADIENT, "n servers")
    print(f"{rate:>10}, {n} nodes: {describe_incast(gain, *again)}")
if no_wires:
    print(f"Not here: {no_wires}")

# %% [markdown]
# ## 8 · A model with three numbers {read 4, do 7, wait 0.25}
#
# Describe a machine with three numbers: the latency of a message (s), the bandwidth of a link (bytes/s), and the **rate
# of adding** (bytes/s). This is the [**latency-bandwidth model**](../docs/glossary.md#latency-bandwidth-model), plus a
# term for adding. An all-reduce of *S* bytes takes
#
# $$T = \text{steps} \cdot \text{latency} + \text{traffic} \cdot \frac{S}{\text{bandwidth}} + \text{sums} \cdot
# \frac{S}{\text{rate of adding}}$$
#
# The three factors depend on the algorithm and the number of ranks, but not on the machine. They count what the
# **busiest rank** does, one thing after the other:
#
# - *steps*: its messages; sending and receiving at the same time is one step,
# - *traffic*: the number of gradients that pass through its link, which carries both directions at once,
# - *sums*: the number of gradients that it adds.

# %% [markdown]
# MPI libraries have two more algorithms. For both, the number of ranks has to be a power of two:
#
# - [**Recursive doubling**](../docs/glossary.md#recursive-doubling). In step 0, neighbours exchange their *whole*
#   gradients, and add. In step 1 the partners are 2 apart, then 4, and so on.
# - [**Recursive halving**](../docs/glossary.md#recursive-halving), then doubling. In step 0, partners exchange *half*
#   of the gradient: each gives the half that the other will add up. In step 1 they exchange half of that half with
#   another partner, and so on, until each rank has one complete chunk. Then all these steps run backwards, without
#   adding, to gather the chunks.
#
# ### Exercise 3 · What does each algorithm cost?
#
# Write `cost(algorithm, n, servers=1)`. It returns the tuple `(steps, traffic, sums)` for "server" (with `servers` of
# them), "ring", "doubling" or "halving" on `n` ranks. The line for servers is written: a server receives from all, one
# after the other, then sends to all. What do the others cost? On 1 rank everything costs 0. (Between two powers of two,
# such as 3, any value between theirs will do.)


# %%
def cost(algorithm, n, servers=1):
    """Return (steps, traffic, sums) of the busiest rank, for an all-reduce on n ranks."""
    if algorithm == "server":
        return 2 * (n - 1), 2 * (n - 1) / servers, (n - 1) / servers
    ### BEGIN SOLUTION
    if algorithm == "doubling":
        return (math.log2(n),) * 3
    steps = 2 * (n - 1) if algorithm == "ring" else 2 * math.log2(n)
    return steps, 2 * (n - 1) / n, (n - 1) / n
    ### END SOLUTION


# %% tags=["nbval-check-output"]
cost = check(3, cost)

# %% [markdown]
# Now find the three numbers. In memory, they follow from section 5's exchanges, with and without adding. On wires, they
# follow from your ring and the servers in section 7; the rate of adding is memory's. The fit uses *logarithms* of the
# times: otherwise the largest message alone would decide.


# %% jupyter={"source_hidden": true}
class Machine(NamedTuple):
    """The model's three numbers: latency in seconds, bandwidth and rate of adding in bytes/s."""

    latency: float
    bandwidth: float
    adding: float


def message(n_bytes, machine, added):
    """Return the time of an exchange; `added`: whether the bytes received are added."""
    return machine.latency + n_bytes * (1 / machine.bandwidth + added / machine.adding)


def seconds_of(algorithm, n, n_bytes, machine, servers=1):
    """Return the time of an all-reduce, by the model."""
    steps, traffic, sums = map(float, cost(algorithm, n, servers))
    work = traffic / machine.bandwidth + sums / machine.adding
    return steps * machine.latency + n_bytes * work


LIBRARY = ("doubling", "halving", "ring")  # the model's choices for MPI_Allreduce


def predict(method, n, n_bytes, machine):
    """Return the time of one of section 7's methods, by the model."""
    if method == "MPI_Allreduce":
        return min(seconds_of(algorithm, n, n_bytes, machine) for algorithm in LIBRARY)
    algorithm, servers = method.split()[-1].rstrip("s"), n if method == "n servers" else 1
    return seconds_of(algorithm, n, n_bytes, machine, servers)


def fit(sizes, exchange, exchange_and_add):
    """Return the machine that fits the exchanges best: least squares of logarithms."""
    sizes = np.asarray(sizes, float)

    def errors(logarithms):
        machine = Machine(*np.exp(logarithms))
        plain, adding = (message(sizes, machine, added) for added in (False, True))
        return np.log([plain / exchange, adding / exchange_and_add]).flat

    rate = sizes[-1] / exchange[-1]
    return Machine(*np.exp(least_squares(errors, np.log([exchange[0], rate, rate])).x))


def fit_wires(points, adding):
    """Return the machine that fits all-reduces best, seconds by (method, nodes, bytes)."""

    def errors(logarithms):
        machine = Machine(*np.exp(logarithms), adding)
        return [math.log(predict(*case, machine) / spent) for case, spent in points.items()]

    return Machine(*np.exp(least_squares(errors, np.log([1e-4, 1e8])).x), adding)


def rounds_by_case(runs, n, methods):
    """Return each round's seconds on n nodes, by (method, nodes, bytes)."""
    return {
        (method, n, n_bytes): rounds
        for method in methods
        for n_bytes, rounds in runs["seconds"][method].items()
    }


def show(where, machine, rate=math.inf):
    """Print the model's three numbers, with the wires' rate in bytes/s."""
    adding = f"{machine.adding / 1e9:.1f} GB/s"
    if machine.adding > 1e12:
        adding = "too fast to measure in this noise"
    limit = f"; the wires' rate is {rate / 1e6:,.1f}" if math.isfinite(rate) else ""
    print(f"{where}: latency {1e6 * machine.latency:.1f} µs, adding {adding},")
    print(f"    bandwidth {machine.bandwidth / 1e6:,.1f} MB/s in each direction{limit}")
    if machine.bandwidth > rate:
        print("    (more can't last: small messages may pass in a burst, faster than the rate)")


# %%
fitted = fit(MEMORY_SIZES, typical("exchange")[0], typical("exchange and add")[0])
show("memory", fitted)
fitted_wires = {}  # by rate
for rate, bits in RATES.items() if wired else ():
    points = {}
    for n in (n for n in NODES if (rate, n) in wired):
        rounds = rounds_by_case(wired[rate, n], n, ("ring", "1 server", "n servers"))
        points |= {case: over_rounds(spent)[0] for case, spent in rounds.items()}
    fitted_wires[rate] = fit_wires(points, fitted.adding)
    show(f"wires of {rate}", fitted_wires[rate], bits / 8)

both = typical("exchange")[0] / typical("ping-pong")[0]
print(f"\nIn memory, both ways at once take {both.min():.1f} to {both.max():.1f}× one way's time.")

# %% [markdown]
# The model assumes that the two directions of a link are independent, as on these wires. Between two processes of one
# machine, cores copy through memory, and the directions may compete: shared memory is **not a network**.
#
# How good is the model? Let it predict what it has **not seen**: whole all-reduces in memory; on wires, 3 nodes and
# gradients of other sizes.

# %%
unseen = {}  # by rate: each round's seconds by (method, nodes, bytes)
with load.watch("section 8") as unseen_others:
    for rate in (rate for rate in fitted_wires if keep_up(UNSEEN_NODES, rate)):
        print(f"{UNSEEN_NODES} nodes, {rate}: about 10 seconds.")
        runs = measure_on_wires(UNSEEN_NODES, rate, UNSEEN_SIZES)
        unseen[rate] = rounds_by_case(runs, UNSEEN_NODES, ON_WIRES)
in_memory = {
    (method, 2, n_bytes): measured[method][n_bytes]
    for method in ("ring", "1 server", "MPI_Allreduce")
    for n_bytes in MEMORY_SIZES
}


# %% jupyter={"source_hidden": true}
def predict_all(cases, machine, digits):
    """Return the model's predictions, in ms."""
    return [
        Prediction(
            f"{method}, {n} ranks, {n_bytes:,} bytes",
            1e3 * predict(method, n, n_bytes, machine),
            milliseconds(rounds, digits),
        )
        for (method, n, n_bytes), rounds in cases.items()
    ]


def describe_errors(predictions):
    """Return the model's score, its median error and its worst prediction."""
    median = np.median([abs(prediction.error) for prediction in predictions])
    worst = max(predictions, key=lambda prediction: abs(prediction.error))
    return f"{score(predictions)}; median error {median:.0%}; the worst: {worst}"


def describe_library(predictions):
    """Return how MPI_Allreduce compares with the best algorithm of the model."""
    times = float(np.median([1 / (1 + prediction.error) for prediction in predictions]))
    text = f"MPI_Allreduce takes {times:.1f}× the time of the model's best algorithm"
    return f"{text}: something else takes its time (homework)" if times > 1.5 else text


memory_predictions, wire_predictions = predict_all(in_memory, fitted, 3), []
print(f"in memory: {describe_errors(memory_predictions)}")
for rate, cases in unseen.items():
    library = {case: rounds for case, rounds in cases.items() if case[0] == "MPI_Allreduce"}
    yours = {case: rounds for case, rounds in cases.items() if case not in library}
    on_rate = predict_all(yours, fitted_wires[rate], 2)
    wire_predictions += on_rate
    print(f"\nwires of {rate}: {describe_errors(on_rate)}")
    print("all:", *on_rate, sep="\n   ")
    print(describe_library(predict_all(library, fitted_wires[rate], 2)))
if no_wires:
    print(f"wires: not here. {no_wires}")

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(
    1, 1 + bool(unseen), figsize=(6.5 * (1 + bool(unseen)), 5), squeeze=False
)
looks = {
    "ring": (plots.BLUE, "o"),
    "1 server": (plots.GREEN, "^"),
    "MPI_Allreduce": (plots.BLACK, "D"),
}
panels = [(in_memory, fitted, 2, "-", "memory")]
panels += [
    (unseen[rate], fitted_wires[rate], UNSEEN_NODES, line, rate)
    for rate, line in zip(unseen, ("-", "--"))
]
for place, (cases, machine, n, line, name) in enumerate(panels):
    axis = axes[0, min(place, 1)]
    for method in ("ring", "1 server") if place else looks:
        colour, marker = looks[method]
        rounds = {n_bytes: spent for (other, _, n_bytes), spent in cases.items() if other == method}
        mean, low, high = 1e3 * np.array([over_rounds(spent) for spent in rounds.values()]).T
        style = {
            "marker": marker,
            "color": colour,
            "linestyle": "",
            "capsize": 4,
            "fillstyle": "full" if line == "-" and method != "MPI_Allreduce" else "none",
            "label": f"{method}, {name}" if place else method,
        }
        axis.errorbar([*rounds], mean, (mean - low, high - mean), **style)
        smooth = np.geomspace(min(rounds), max(rounds), 50)
        by_model = [1e3 * predict(method, n, n_bytes, machine) for n_bytes in smooth]
        dashes = ":" if method == "MPI_Allreduce" else line
        axis.loglog(smooth, by_model, dashes, color=colour, marker="")
for axis, title in zip(axes.flat, ("2 ranks in memory", "3 nodes on wires, not seen by the fit")):
    axis.set(title=title, xlabel="gradient (bytes)", ylabel="time (ms)", xscale="log", yscale="log")
    axis.legend(fontsize=11)
figure.suptitle("All-reduces: measured (points, 95% intervals) and predicted (lines)")
plots.show(
    figure,
    alt="Milliseconds of an all-reduce against the gradient's bytes, points and the model's lines. "
    f"In memory on 2 ranks: {describe_errors(memory_predictions)}. On wires with 3 nodes, which "
    "the fit had not seen: "
    + (describe_errors(wire_predictions) if unseen else "not measured here")
    + ".",
    keep=results,
    watched=[measured_others, *([unseen_others] if unseen else [])],
)

# %% [markdown]
# A machine has more than three numbers. MPI sends small messages differently, data may fit into a cache, and each step
# of your ring takes some microseconds of Python. On wires, the first bytes after a pause may pass faster than the rate,
# and a rank may wait for a core. But the model can be right about the *shape*, and the next section needs no more.
#
# ## 9 · To 1,024 ranks {read 5.5}
#
# Here is a network for 1,024 ranks, an **assumption**: 2 µs and 100 Gbit/s in each direction, one link per rank.
# Change it to yours, or to `fitted_wires["1 Gbit/s"]`.

# %% [markdown]
# One more algorithm, for 8 ranks on each node: a **two-level hierarchy**. First, a ring inside each node reduces and
# scatters, so that each rank has an eighth of the gradient. Next, it reduces this eighth in a ring with its partners on
# the *other nodes*. Then the ring inside gathers. Inside a node, the model uses this machine's numbers for memory,
# measured with **2** ranks. 8 share the same memory, so `SHARED` cautiously gives each a quarter of the bandwidth.

# %%
# An assumption: change it.
network = Machine(latency=2e-6, bandwidth=100e9 / 8, adding=fitted.adding)
PER_NODE = 8
SHARED = 4  # ranks that share the memory, relative to section 5's two
node = fitted._replace(bandwidth=fitted.bandwidth / SHARED)


def two_levels(n, n_bytes, node=node):
    """Return the time of a ring in each node, and of a ring between the nodes for each part."""
    inside = seconds_of("ring", min(n, PER_NODE), n_bytes, node)
    return inside + seconds_of("ring", max(1, n // PER_NODE), n_bytes / PER_NODE, network)


ALGORITHMS = {
    "1 server": lambda n, n_bytes: seconds_of("server", n, n_bytes, network),
    "4 servers": lambda n, n_bytes: seconds_of("server", n, n_bytes, network, min(4, n)),
    "ring": lambda n, n_bytes: seconds_of("ring", n, n_bytes, network),  # as n servers
    "doubling": lambda n, n_bytes: seconds_of("doubling", n, n_bytes, network),
    "halving": lambda n, n_bytes: seconds_of("halving", n, n_bytes, network),
    "two levels": two_levels,
}
world_sizes = [2**power for power in range(1, 11)]
gradients = {"ResNet-50's gradient, 102 MB": 102e6, "the gradient of one small layer, 8 KB": 8e3}

# %% jupyter={"source_hidden": true}
STYLES = {
    "1 server": (plots.VERMILION, "s", "-"),
    "4 servers": (plots.ORANGE, "D", "-"),
    "ring": (plots.BLUE, "o", "-"),
    "doubling": (plots.GREEN, "^", "-"),
    "halving": (plots.BLACK, "P", ":"),
    "two levels": (plots.PURPLE, "v", "-"),
}
figure, axes = plt.subplots(1, 2, figsize=(13, 5))
for axis, (name, n_bytes) in zip(axes, gradients.items()):
    for algorithm, (colour, marker, line) in STYLES.items():
        sizes = [n for n in world_sizes if algorithm != "two levels" or n > PER_NODE]
        by_model = [1e3 * ALGORITHMS[algorithm](n, n_bytes) for n in sizes]
        style = {"color": colour, "marker": marker, "linestyle": line, "label": algorithm}
        axis.loglog(sizes, by_model, base=2, **style)
    axis.set_yscale("log", base=10)
    axis.set_xticks(world_sizes[::3], world_sizes[::3])
    axis.set(xlabel="ranks", ylabel="time (ms)", title=name)
axes[0].legend(fontsize=11)
figure.suptitle("An all-reduce on up to 1,024 ranks of a network, by the model")
at_most = world_sizes[-1]
plots.show(
    figure,
    alt="Milliseconds of an all-reduce against the number of ranks, by the model. On 1,024 ranks: "
    + "; ".join(
        f"{name}: "
        + ", ".join(
            f"{algorithm} {1e3 * model(at_most, n_bytes):,.2f} ms"
            for algorithm, model in ALGORITHMS.items()
        )
        for name, n_bytes in gradients.items()
    )
    + ".",
    keep=results,
)

# %% [markdown]
# Look at the ring on the left: the bytes that a rank sends approach twice the gradient, so the number of ranks hardly
# matters until the *steps* begin to count. On the right, steps take nearly all the time.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The next picture maps the fastest algorithm, by the model, for 2 to 1,024 ranks and gradients from 8
# bytes to 1 GiB. Which one wins most often?
#
# </div>

# %%
results.guess(
    4,
    "wins in most of the map",
    ...,
    choices=("ring", "doubling", "halving", "two levels", "4 servers", "1 server"),
)

# %%
message_sizes = [2**power for power in range(3, 31)]
rivals = ["halving", "doubling", "ring", "two levels", "4 servers", "1 server"]


def winner(n, n_bytes):
    """Return the algorithm that takes the least time; of equal ones, the first of the rivals."""
    able = [name for name in rivals if name != "two levels" or n > PER_NODE]
    return min(able, key=lambda name: ALGORITHMS[name](n, n_bytes))


winners = np.array([[winner(n, s) for n in world_sizes] for s in message_sizes])
shares = {name: float(np.mean(winners == name)) for name in rivals}
results.compare_guess(4, max(shares, key=shares.get))

# %% jupyter={"source_hidden": true}
figure, (axis, ring_axis) = plt.subplots(1, 2, figsize=(14, 5.5), sharey=True)
colours = ListedColormap([STYLES[name][0] for name in rivals])
numbers = np.vectorize(rivals.index)(winners)
shape = {"aspect": "auto", "origin": "lower"}
axis.imshow(numbers, cmap=colours, vmin=-0.5, vmax=len(rivals) - 0.5, **shape)
best = [[ALGORITHMS[winner(n, s)](n, s) for n in world_sizes] for s in message_sizes]
factors = np.array([[ALGORITHMS["ring"](n, s) for n in world_sizes] for s in message_sizes]) / best
ring_axis.imshow(np.log(factors), cmap="Blues", vmin=0, vmax=1.8 * np.log(factors.max()), **shape)
place = {"ha": "center", "va": "center", "fontsize": 11}
for row, column in itertools.product(range(0, len(message_sizes), 3), range(len(world_sizes))):
    axis.text(column, row, winners[row, column][0].upper(), color="white", **place)
    factor = factors[row, column]
    ring_axis.text(column, row, f"{factor:.{2 if factor < 9.995 else 0}f}", **place)
names = {3: "8 B", 10: "1 KiB", 15: "32 KiB", 20: "1 MiB", 25: "32 MiB", 30: "1 GiB"}
axis.set_yticks([power - 3 for power in names], names.values())
axis.set(ylabel="size of the gradient", title="the fastest algorithm")
axis.set_ylim(-1.5, len(message_sizes) + 0.5)  # no letter is cut off
ring_axis.set_title("the ring's time ÷ the fastest algorithm's")
for panel in (axis, ring_axis):
    panel.set_xticks(range(len(world_sizes)), world_sizes)
    panel.set_xlabel("ranks")
    panel.grid(False)
present = [name for name in rivals if (winners == name).any()]
legend = [Patch(color=STYLES[name][0], label=f"{name[0].upper()}: {name}") for name in present]
figure.legend(handles=legend, loc="outside right upper")
figure.suptitle("Which algorithm is the fastest, by the model?")
plots.show(
    figure,
    alt="Two maps over ranks and sizes. Left, coloured by the fastest algorithm: "
    + ", ".join(f"{name} wins in {share:.0%}" for name, share in shares.items())
    + f". Right: the ring takes {factors.min():.2f} to {factors.max():.0f} times as long as the "
    f"fastest, with 1 GiB {factors[-1].min():.2f} to {factors[-1].max():.2f} times.",
    keep=results,
)

# %%
from_32_mib = [n_bytes for n_bytes in message_sizes if n_bytes >= 2**25]
for name in rivals:
    factors = [
        ALGORITHMS[name](n, n_bytes) / ALGORITHMS[winner(n, n_bytes)](n, n_bytes)
        for n in world_sizes
        for n_bytes in from_32_mib
        if name != "two levels" or n > PER_NODE
    ]
    print(
        f"{name:11} wins in {shares[name]:4.0%} of the map. From 32 MiB on, it takes "
        f"{min(factors):,.2f} to {max(factors):,.2f}× the winner's time."
    )
cautious, optimistic = (1e3 * two_levels(at_most, 102e6, inside) for inside in (node, fitted))
print(
    f"\ntwo levels, {at_most:,} ranks, 102 MB: {cautious:.1f} ms; "
    f"with SHARED = 1 {optimistic:.1f} ms"
)

# %% [markdown]
# ### Why do rings survive?
#
# In this model, halving is never slower than the ring: it sends the same bytes in fewer steps. But for large gradients,
# training libraries still have rings
# ([NCCL](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo),
# [Gloo](https://github.com/pytorch/gloo/blob/main/docs/algorithms.md); oneCCL's example uses one for the [largest
# messages](https://www.intel.com/content/www/us/en/docs/oneccl/developer-guide-reference/2021-8/environment-variables.html)).
# What does the model leave out?
#
# - **Any number of ranks.** Halving needs a power of two. With 3, MPICH lets one rank send two gradients; in a ring
#   it sends four thirds.
# - **Contention.** The model gives each rank a link of its own. In a real network, racks share *uplinks*.
# - **Pipelining.** A ring's chunks can be cut finer, and sent on while the next ones arrive. This model adds up all
#   times.
#
# Contention can be computed. Two racks of *n*/2 ranks are joined by one uplink, as fast as the link of one rank. How
# much has to pass through the slowest place?


# %%
def through_uplink(algorithm, n):
    """Return an all-reduce's traffic, as `cost`, with an uplink between two racks."""
    if algorithm == "ring":  # in each step, one chunk passes in each direction, as on any link
        return 2 * (n - 1) / n
    # Halving: in one step, all n/2 ranks of a rack exchange with the other rack at once.
    far = 1 / n if algorithm == "halving, far partner last" else 1 / 2  # gradients per rank
    near = 1 - 1 / n - far  # all other steps, on the ranks' links
    return 2 * (near + n / 2 * far)  # twice: reduce-scatter and all-gather


print("Gradients that pass the slowest place:")
for n in (8, 64, 1_024):
    names = ("ring", "halving, far partner last", "halving, far partner first")
    print(f"{n:5,} ranks: " + ", ".join(f"{name} {through_uplink(name, n):.2f}" for name in names))

# %% [markdown]
# A ring asks nothing of the uplink that it doesn't ask of every other link. (Patarasuk and Yuan 2009, [doi
# 10.1016/j.jpdc.2008.09.002](https://doi.org/10.1016/j.jpdc.2008.09.002), prove that a ring needs only a tree of
# links.) MPICH's halving begins with the nearest partner, so that only small chunks travel far, but here the ring
# remains ahead. Over a much slower uplink, only what crosses it counts, and halving sends less: *S*. Section 13
# measures it.
#
# ## 10 · Cut the layer, not the batch {read 3.5, do 9, optional}
#
# A network that is too large for one rank is itself split: [**model
# parallelism**](../docs/glossary.md#model-parallelism). In a dense layer, `x @ weights + bias`, each rank again has
# some *rows* of `x`, but now also only some of the **neurons**: some columns of `weights`, and their part of `bias`.

# %% [markdown]
# ### Exercise 4 · A dense layer on all ranks
#
# Write `split_dense(ranks, x, weights, bias)`. At the end, each rank has its rows of the *whole* layer's output, as an
# unsplit layer would compute them. The weights stay where they are. What has to travel, and to whom?
#
# - Each rank needs all rows, to apply its neurons to them: `ranks.Allgather(mine, everybody)`.
# - Then each rank has results for everybody's rows, and needs the results for its rows from everybody. This exchange is
#   an [**all-to-all**](../docs/glossary.md#all-to-all), `ranks.Alltoall(send, receive)`. It cuts `send` into `n` equal
#   blocks *as they are in memory*, and sends block *r* to rank *r*. `receive` gets one block from each rank, in rank
#   order.
#
# Use any messages and collectives, but send no more bytes than these two exchanges. All ranks have the same number of
# rows, and of neurons, in float32. Use only the communicator `ranks`, and don't change the arrays in place.

# %%
# %%writefile work/dense.py
"""A dense layer whose neurons are spread over the ranks."""

import numpy as np


def split_dense(ranks, x, weights, bias):
    """Return this rank's rows of the whole layer's output, an array (rows, all neurons).

    x is (rows, inputs), this rank's rows of the batch. weights is (inputs, own neurons), bias
    (own neurons,).
    """
    n, rows = ranks.size, len(x)
    ### BEGIN SOLUTION
    batch = np.empty((n * rows, x.shape[1]), x.dtype)
    ranks.Allgather(x, batch)
    mine = batch @ weights + bias  # (all rows, own neurons): block r has the rows of rank r
    blocks = np.empty_like(mine)
    ranks.Alltoall(mine, blocks)  # block r: own rows, neurons of rank r
    return blocks.reshape(n, rows, -1).transpose(1, 0, 2).reshape(rows, -1)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
dense = check(4, "work/dense.py")

# %% [markdown]
# When is it better to cut the layer than the batch? If you cut the batch, a rank sends the gradient of all weights, in
# a ring. If you cut the neurons, it sends rows and results in the forward pass, and the same amount in the backward
# pass.


# %%
def sent_by_data_parallel(n, batch, inputs, neurons):
    """Return the bytes that a rank sends per step: the gradient, in a ring, for any batch."""
    return 2 * (n - 1) / n * 4 * inputs * neurons


def sent_by_model_parallel(n, batch, inputs, neurons):
    """Return the bytes that a rank sends per step: rows to all, results to each; and back."""
    rows = batch / n
    return 2 * (n - 1) * 4 * rows * (inputs + neurons / n)


print(f"{'8 ranks':28}{'batch':>6}{'cut the batch':>16}{'cut the neurons':>17}")
for name, inputs, neurons in (
    ("VGG-16, first dense layer", 25_088, 4_096),
    ("ResNet-50, its only one", 2_048, 1_000),
):
    for batch in (64, 4_096):
        shape = 8, batch, inputs, neurons
        megabytes = [sent_by_data_parallel(*shape) / 1e6, sent_by_model_parallel(*shape) / 1e6]
        print(f"{name:28}{batch:>6}{megabytes[0]:>13,.1f} MB{megabytes[1]:>14,.1f} MB")

# %% [markdown]
# With a wide layer and a small batch, cut the layer. Convolutions have few weights and many activations, so CNNs are
# trained data-parallel.
#
# Language models are too large for that. Training them splits your ring: [**FSDP**](../docs/glossary.md#fsdp)
# (PyTorch) and [**ZeRO**](../docs/glossary.md#zero) (DeepSpeed) reduce-scatter the gradients, so that each rank updates
# only its chunk of the weights, and all-gather the weights layer by layer when they are needed ([lab
# 11](11_after_the_all_reduce.ipynb)). [**Tensor parallelism**](../docs/glossary.md#tensor-parallelism) cuts layers as
# exercise 4 does, and [**pipeline parallelism**](../docs/glossary.md#pipeline-parallelism) gives each rank some layers.

# %% [markdown]
# ## 11 · What to send first {read 4, do 6, optional}
#
# In the [**backward pass**](../docs/glossary.md#backward-pass), the gradient of the *last* layer is ready first. Send
# it while you compute the next: communication and computation [**overlap**](../docs/glossary.md#overlap).
#
# But a network card sends one message after the other, and the next [**forward
# pass**](../docs/glossary.md#forward-pass) begins with the *first* layer, whose gradient is ready last. If the card
# sends in the order of arrival (FIFO: first in, first out), the most urgent message is at the end of the queue. Intel's
# MLSL sent urgent messages first (Sridharan et al. 2018, [arXiv 1801.08030](https://arxiv.org/abs/1801.08030)); its
# successor oneCCL has
# [`CCL_PRIORITY`](https://www.intel.com/content/www/us/en/docs/oneccl/developer-guide-reference/2021-16/prioritization-of-communication-operations.html).
#
# How much does that save? Simulate it, for VGG-16 in eight parts on 64 ranks. All times are integers, in microseconds.

# %% tags=["nbval-check-output"]
# Each part, from the input on: weights in millions; billions of multiplications per image in the
# forward pass.
VGG = {
    "conv1": (0.039, 1.936),
    "conv2": (0.221, 2.775),
    "conv3": (1.475, 4.624),
    "conv4": (5.900, 4.624),
    "conv5": (7.079, 1.387),
    "dense6": (102.765, 0.103),
    "dense7": (16.781, 0.017),
    "dense8": (4.097, 0.004),
}
# A P100 trained 154 images/s, 64 at a time (2017):
# https://www.tensorflow.org/performance/benchmarks. Two thirds of a step are the backward pass.
FORWARD_US = 1e6 * 64 / 154 / 3
in_total = sum(multiplications for _, multiplications in VGG.values())
forward = [round(FORWARD_US * part / in_total) for _, part in VGG.values()]
backward = [2 * spent for spent in forward]
ready = [sum(backward[layer:]) for layer in range(len(VGG))]  # the last layer is ready first


def sending(gigabits, n=64):
    """Return for how long the card sends each gradient, in µs: a ring, by section 8's model."""
    link = Machine(latency=2e-6, bandwidth=1e9 * gigabits / 8, adding=math.inf)
    return [round(1e6 * seconds_of("ring", n, 4e6 * weights, link)) for weights, _ in VGG.values()]


for what, times in (("ready after", ready), ("25 Gbit/s sends it in", sending(25))):
    print(f"{what:22}" + ", ".join(f"{name} {spent:,}" for name, spent in zip(VGG, times)) + " µs")

# %% [markdown]
# ### Exercise 5 · What does the card send next?
#
# Write `next_chunk(now, ready, left, urgent_first, chunk)`. The network card calls it whenever it is free. `left[i]` is
# the time that the rest of layer `i`'s gradient still takes to send (0 if all is sent), and `ready[i]` is when that
# gradient is ready. Layer 0 is the first of the forward pass. Layers can be ready in any order, but no two at the same
# time.
#
# - The card chooses among the layers that are ready and not yet sent: the one that was ready first or, with
#   `urgent_first`, the one that the forward pass needs first.
# - It sends `chunk` of it, or the rest if that is less. Then it chooses again.
# - Return the layer and for how long the card sends, `(layer, spent)`, or `None` if there is nothing to send now.


# %%
def next_chunk(now, ready, left, urgent_first, chunk):
    """Return (layer, spent): what the card sends at the time `now`; None if nothing is waiting."""
    ### BEGIN SOLUTION
    waiting = [layer for layer in range(len(left)) if left[layer] and ready[layer] <= now]
    if not waiting:
        return None
    layer = min(waiting) if urgent_first else min(waiting, key=lambda layer: ready[layer])
    return layer, min(chunk, left[layer])
    ### END SOLUTION


# %% tags=["nbval-check-output"]
next_chunk = check(5, next_chunk)

# %% [markdown]
# Meanwhile, the next forward pass computes a layer once the layer before it is done and its own gradient has arrived.
# (Updating weights takes no time here.)


# %%
def send(ready, needs, urgent_first, chunk):
    """Return everything that the card sends: (layer, start, stop) of each chunk."""
    left, now, sent = list(needs), 0, []
    while any(left):
        choice = next_chunk(now, ready, left, urgent_first, chunk)
        if choice is None:  # idle until the next gradient is ready
            now = min(when for when in ready if when > now)
            continue
        layer, spent = choice
        sent.append((layer, now, now + spent))
        left[layer] -= spent
        now += spent
    return sent


def next_forward(sent):
    """Return (start, stop) of each layer in the next forward pass."""
    arrived = {layer: stop for layer, _, stop in sent}  # the last chunk of each layer counts
    blocks, now = [], 0
    for layer, spent in enumerate(forward):
        start = max(now, arrived[layer])
        now = start + spent
        blocks.append((start, now))
    return blocks


# %% tags=["nbval-check-output"]
WHOLE, CHUNK = 10**9, 1_000
ORDERS = {
    "first ready, first sent": (False, WHOLE),
    "urgent first, whole messages": (True, WHOLE),
    "urgent first, in chunks of 1 ms": (True, CHUNK),
}
LINKS = (10, 25, 100)  # Gbit/s
computing = sum(backward) + sum(forward)
steps = {
    "computing only": [computing] * len(LINKS),
    "sending only": [sum(sending(link)) for link in LINKS],
}
steps["one after the other"] = [computing + spent for spent in steps["sending only"]]
for order, options in ORDERS.items():
    steps[order] = [next_forward(send(ready, sending(link), *options))[-1][1] for link in LINKS]
print(f"{'ms for a step of VGG-16':32}" + "".join(f"{link:>8} Gbit/s" for link in LINKS))
for what, times in steps.items():
    print(f"{what:32}" + "".join(f"{spent / 1e3:>15,.0f}" for spent in times))

# %% jupyter={"source_hidden": true}
needs = sending(25)
# Without overlap, all blocks follow the backward pass, one after the other.
edges = list(itertools.accumulate(needs + forward, initial=sum(backward)))
in_turn = [(layer % len(VGG), *block) for layer, block in enumerate(itertools.pairwise(edges))]
panels = {
    "one after the other": (in_turn[: len(VGG)], [block for _, *block in in_turn[len(VGG) :]])
}
for order in ("first ready, first sent", "urgent first, in chunks of 1 ms"):
    sent = send(ready, needs, *ORDERS[order])
    panels[order] = (sent, next_forward(sent))
colours = plt.get_cmap("viridis")(np.linspace(0, 1, len(VGG)))
figure, axes = plt.subplots(len(panels), 1, figsize=(13, 7), sharex=True)
for axis, (order, (sent, next_pass)) in zip(axes, panels.items()):
    computed = [(layer, ready[layer] - backward[layer], ready[layer]) for layer in range(len(VGG))]
    computed += [(layer, *block) for layer, block in enumerate(next_pass)]
    for (row, blocks), (layer, name) in itertools.product(
        enumerate((sent, computed)), enumerate(VGG)
    ):
        bars = [
            (start / 1e3, (stop - start) / 1e3) for number, start, stop in blocks if number == layer
        ]
        axis.broken_barh(bars, (row - 0.4, 0.8), color=colours[layer])
        for start, spent in bars:
            if spent > 48:
                style = {"ha": "center", "va": "center", "fontsize": 11}
                style["color"] = "white" if layer < len(VGG) / 2 else "black"
                axis.text(start + spent / 2, row, name, **style)
    axis.axvline(next_pass[-1][1] / 1e3, color=plots.BLACK, linewidth=1.5, marker="")
    axis.set_yticks([0, 1], ["card", "computing"])
    axis.set_title(f"{order}: {next_pass[-1][1] / 1e3:.0f} ms", fontsize=12, loc="left")
axes[-1].set_xlabel("time since the backward pass began (ms)")
legend = [Patch(color=colour, label=name) for colour, name in zip(colours, VGG)]
figure.legend(handles=legend, loc="outside right upper")
figure.suptitle("A step of VGG-16 on 64 ranks with 25 Gbit/s, simulated: computing and sending")
plots.show(
    figure,
    alt="Three timelines, each with a row for computing, the backward pass and then the next "
    "forward pass, and a row for the card. "
    + "; ".join(
        f"{order}: the step ends after {next_pass[-1][1] / 1e3:.0f} ms"
        for order, (_, next_pass) in panels.items()
    )
    + ". First ready, first sent: the forward pass waits until the card has sent everything. "
    "Urgent first: dense6 is interrupted for each convolution, and the rest of it is sent during "
    "the forward pass.",
    keep=results,
)

# %% [markdown]
# With 25 Gbit/s, sending takes less time than computing, and the order decides whether it is hidden. First ready, first
# sent: all wait for dense6, which is ready early, is 411 MB long, and is needed late. Urgent first hides everything, if
# a long message can be interrupted. With 10 Gbit/s the card is the limit, and only fewer bytes help (section 12).
#
# ### Who does the sending?
#
# Sending is hidden only if something sends while you compute. In memory, copying and adding take cores. A network card
# works by itself: a core hands it bytes now and then, and computes in between. MPI's `Iallreduce` only **starts** an
# all-reduce. MPICH continues it when you call MPI again, as with `MPI.Request.Testall(requests)`, or in a progress
# thread (`MPIR_CVAR_ASYNC_PROGRESS=1`), which keeps a core busy.

# %% [markdown]
# ## 12 · Send less {read 4.5, do 9, wait 0.35, optional}
#
# There are two kinds of [**gradient compression**](../docs/glossary.md#gradient-compression):
#
# - **Fewer bits**: [**FP16**](../docs/glossary.md#fp16) needs 2 bytes per number instead of 4 (lab 04 shows its
#   limits), and quantised gradients 8 bits or fewer ([QSGD](https://arxiv.org/abs/1610.02132)).
# - **Fewer numbers**: [**top-k**](../docs/glossary.md#top-k) sends only the *k* numbers that are largest in magnitude,
#   each with its index: 4 bytes for the number, 4 for the index.
#
# The top-k numbers are at different positions on each rank, so they can't be added on the way. Each rank sends its
# pairs to *each* of the others, in an all-gather.

# %% [markdown]
# ### Exercise 6 · A budget of bytes
#
# Top-k alone discards nearly everything: a weight whose gradient is small but steady never moves. Write a
# `top_k(gradient, residual, n, budget)` that loses nothing. A rank calls it once per step:
#
# - On `n` ranks, this rank may send `budget` bytes in total. It sends as many numbers as the budget allows, those that
#   are largest in magnitude among all that it *has to send*.
# - What is not sent now is owed to later steps. `residual`, as long as the gradient, is what the previous call
#   returned, zeros at first. After any number of steps, all that was sent plus all that is owed must equal the sum of
#   all gradients.
# - Return three arrays: the positions of what is sent, in any order; these numbers, in the same order; what is owed.
#
# On 1 rank everything is sent, and costs nothing. A budget may be too small for a single pair, or larger than needed.
# All numbers are float32; don't change the arguments in place. (`np.argpartition` finds the largest without sorting.)
# The function moves into a module, with the imports, helper functions and constants that it uses.


# %%
def top_k(gradient, residual, n, budget):
    """Return (indices, values, new residual): what the budget allows, and what is owed."""
    ### BEGIN SOLUTION
    owed = gradient + residual
    pair = 8 * (n - 1)  # bytes for a number and its index, to all others
    k = min(len(owed), budget // pair) if pair else len(owed)
    first = min(k, len(owed) - 1)
    indices = np.argpartition(-np.abs(owed), first)[:k]
    values = owed[indices]
    owed[indices] = 0
    return indices, values, owed
    ### END SOLUTION


# %% tags=["nbval-check-output"]
top_k = check(6, top_k)

# %% [markdown]
# You have written [**error feedback**](../docs/glossary.md#error-feedback) (Lin et al. 2018, [arXiv
# 1712.01887](https://arxiv.org/abs/1712.01887)). What does compression cost in accuracy? Three functions average the
# gradients over the ranks: in float32, in FP16, and with top-k and a budget. (The MPI standard has no 16-bit float, so
# the script registers its own reduction.)

# %% jupyter={"source_hidden": true}
(work / "topk.py").write_text(check.module_text(6))
print("Your top_k is now in work/topk.py, for the next scripts.")

# %% jupyter={"source_hidden": true}
# %%writefile work/averages.py
"""Average gradients over all ranks, compressed or not."""

import numpy as np
from mpi4py import MPI
from topk import top_k

ranks = MPI.COMM_WORLD
n = ranks.size

# Each function returns the average, the residual, and the bytes that this rank sends in theory.


def float32(gradient, residual):
    total = np.empty_like(gradient)
    ranks.Allreduce(gradient, total)
    return total / n, residual, 2 * (n - 1) / n * gradient.nbytes


def add_halves(incoming, inout, _):
    """Add two buffers of bytes, for MPI: the sum goes into the second."""
    total = np.frombuffer(inout, np.float16)
    np.add(total, np.frombuffer(incoming, np.float16), out=total)


SUM_OF_HALVES = MPI.Op.Create(add_halves, commute=True)


def float16(gradient, residual):
    halves = (gradient / n).astype(np.float16)  # divide first: float16 ends at 65,504
    total = np.empty_like(halves)
    ranks.Allreduce([halves, MPI.INT16_T], [total, MPI.INT16_T], op=SUM_OF_HALVES)
    return total.astype(np.float32), residual, 2 * (n - 1) / n * halves.nbytes


def sparse(gradient, residual, share, feedback):
    budget = int(share * 2 * (n - 1) / n * gradient.nbytes)  # a share of what the ring sends
    indices, values, owed = top_k(gradient, residual, n, budget)
    k = len(indices)
    places, numbers = np.empty((n, k), np.int32), np.empty((n, k), np.float32)  # of all ranks
    ranks.Allgather(np.asarray(indices, np.int32), places)
    ranks.Allgather(np.asarray(values, np.float32), numbers)
    total = np.zeros_like(gradient)
    for other in range(n):
        total[places[other]] += numbers[other]
    if feedback:  # otherwise, the residual stays 0
        residual = np.asarray(owed, np.float32)
    return total / n, residual, (n - 1) * 8 * k


# %% [markdown]
# A small network in numpy, with one hidden layer of 64 neurons, learns the digits of the other labs. Each rank has a
# share of them. Top-k gets a fiftieth, or a five-hundredth, of the bytes that a ring sends with float32: once as you
# wrote it, and once with the residual thrown away.

# %% jupyter={"source_hidden": true}
# %%writefile work/network.py
"""A network with one hidden layer, whose weights and gradient are one array each."""

import numpy as np

HIDDEN = 64


def views(flat):
    """Yield the two layers' weights and biases, as views into one array."""
    shapes, place = ((784, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)), 0
    for shape in shapes:
        yield flat[place : place + np.prod(shape)].reshape(shape)
        place += np.prod(shape)


def scores(weights, x):
    w1, b1, w2, b2 = views(weights)
    hidden = np.maximum(x @ w1 + b1, 0)
    return hidden, hidden @ w2 + b2


def gradient_of(weights, x, labels):
    """Return the gradient of the mean cross-entropy of a batch, one number for each weight."""
    hidden, out = scores(weights, x)
    error = np.exp(out - out.max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    gradient = np.empty_like(weights)
    w1, b1, w2, b2 = views(gradient)
    w2[:], b2[:] = hidden.T @ error, error.sum(axis=0)
    back = (error @ list(views(weights))[2].T) * (hidden > 0)
    w1[:], b1[:] = x.T @ back, back.sum(axis=0)
    return gradient


def fresh():
    weights = np.zeros(784 * HIDDEN + HIDDEN + HIDDEN * 10 + 10, np.float32)
    rng = np.random.default_rng(0)  # the same start on every rank
    for layer in list(views(weights))[::2]:
        layer[:] = rng.normal(0, np.sqrt(2 / len(layer)), layer.shape)
    return weights


# %% jupyter={"source_hidden": true}
# %%writefile work/compress.py
"""Train with compressed gradients, and compare the accuracy: work/compress.py OUT DIGITS EPOCHS"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
from averages import float16, float32, n, ranks, sparse
from network import fresh, gradient_of, scores

from labkit.data import load_digits

BATCH, RATE = 64, 0.2  # all ranks together have 64
out, n_digits, epochs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
digits = load_digits(n_train=n_digits, n_test=n_digits // 4)
x, x_test = (images.reshape(len(images), -1) for images in (digits.x_train, digits.x_test))
mine = np.arange(ranks.rank, len(x) - len(x) % n, n)
history = {}
for name, average in {
    "float32": float32,
    "FP16": float16,
    "1/50": partial(sparse, share=1 / 50, feedback=False),
    "1/50, error feedback": partial(sparse, share=1 / 50, feedback=True),
    "1/500": partial(sparse, share=1 / 500, feedback=False),
    "1/500, error feedback": partial(sparse, share=1 / 500, feedback=True),
}.items():
    weights = fresh()
    residual, sent = np.zeros_like(weights), 0.0
    history[name] = {"megabytes": [], "accuracy": []}
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(mine)
        for batch in np.array_split(order, len(order) // (BATCH // n)):
            gradient = gradient_of(weights, x[batch], digits.y_train[batch])
            gradient, residual, n_bytes = average(gradient, residual)
            weights -= RATE * gradient
            sent += n_bytes
        accuracy = np.mean(scores(weights, x_test)[1].argmax(axis=1) == digits.y_test)
        history[name]["megabytes"].append(sent / 1e6)
        history[name]["accuracy"].append(float(accuracy))
    replicas = np.stack(ranks.allgather(weights))
    if ranks.rank == 0:
        last = {key: values[-1] for key, values in history[name].items()}
        print(
            f"{name:26} {last['megabytes']:8.2f} MB sent by each rank, "
            f"accuracy {last['accuracy']:.3f}, "
            f"ranks differ by {np.ptp(replicas, axis=0).max()}"
        )
if ranks.rank == 0:
    out.write_text(json.dumps(history))

# %%
team, out = 4 if cores >= 4 else 2, work / "compress.json"
print("Six training runs, one after the other: about ten seconds.")
run_ranks(team, "work/compress.py", out, COMPRESSED_DIGITS, COMPRESSED_EPOCHS, threads=1)
history = json.loads(out.read_text())

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(11, 5))
for name, run in history.items():
    dashed = name.startswith("1/") and "feedback" not in name
    axis.semilogx(
        run["megabytes"],
        100 * np.array(run["accuracy"]),
        label=name,
        linestyle="--" if dashed else "-",
    )
axis.set(
    xlabel="sent by each rank (MB); one point per epoch",
    ylabel="test accuracy (%)",
    title="Accuracy vs bytes sent",
)
figure.legend(loc="outside right upper", fontsize=11)
plots.show(
    figure,
    alt=f"Test accuracy against megabytes sent by each of {team} ranks, one point per epoch. After "
    f"{COMPRESSED_EPOCHS} epochs: "
    + "; ".join(
        f"{name}: {100 * run['accuracy'][-1]:.1f}% with {run['megabytes'][-1]:.2f} MB"
        for name, run in history.items()
    )
    + ".",
    keep=results,
)

# %%
full = history["float32"]
for name, run in list(history.items())[1:]:
    fewer = full["megabytes"][-1] / run["megabytes"][-1]
    change = 100 * (run["accuracy"][-1] - full["accuracy"][-1])
    print(f"{name:22} 1/{fewer:<6,.1f} of the bytes, accuracy {change:+.1f} points")

# %% [markdown]
# In each pair of top-k lines, error feedback sends no extra bytes; it only remembers. Each accuracy comes from one run,
# on 2,000 held-out digits. Where 95% are right, chance moves it by half a point (one standard error).
#
# ### What does it save in seconds?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Where is top-k's gain over float32 largest: in memory, on wires of 1 Gbit/s, or on wires of 100
# Mbit/s?
#
# </div>

# %%
results.guess(5, "where top-k gains most", ..., choices=("in memory", "1 Gbit/s", "100 Mbit/s"))

# %% [markdown]
# The three functions alternate with a gradient of 2 MB. With at least two cores, each rank has its own, as on a real
# node. The prediction for a wire: the time in memory, plus the bytes over the rate.

# %% jupyter={"source_hidden": true}
# %%writefile work/send_less.py
"""Time the averaging of a gradient, compressed or not: work/send_less.py OUT ROUNDS LENGTH"""

import json
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from averages import float16, float32, ranks, sparse
from mpi4py import MPI

METHODS = {
    "float32": float32,
    "FP16": float16,
    "top-k, 1/50": partial(sparse, share=1 / 50, feedback=True),
}
rounds, length = int(sys.argv[2]), int(sys.argv[3])
gradient = np.random.default_rng(ranks.rank).normal(size=length).astype(np.float32)
residual = np.zeros_like(gradient)
seconds = {method: [] for method in METHODS}
for number in range(1 + rounds):  # the first round warms up
    for method, average in METHODS.items():
        ranks.Barrier()
        start = time.perf_counter()
        average(gradient, residual)
        spent = ranks.allreduce(time.perf_counter() - start, op=MPI.MAX)
        seconds[method] += [spent] * (number > 0)
if ranks.rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(seconds))

# %%
send_less = {}  # by place: each round's seconds by method
rates = (None, *([] if no_wires else RATES))
print(f"Runs: {len(rates)}, about 15 seconds in total.")
with load.watch("section 12") as less_others:
    for rate in rates:
        arguments = work / "less.json", COMPRESSION_ROUNDS, COMPRESSED_LENGTH
        run_ranks(team, "work/send_less.py", *arguments, threads=1, network=rate)
        send_less[rate or "in memory"] = json.loads((work / "less.json").read_text())

# Gradients that a rank sends, from exercise 3. FP16: doubling, with half the bytes.
SENT = {
    "float32": cost("halving", team)[1],
    "FP16": cost("doubling", team)[1] / 2,
    "top-k, 1/50": cost("ring", team)[1] / 50,
}


def bits_of(method):
    """Return the bits that a rank's wire carries."""
    return 8 * HEADERS * 4 * COMPRESSED_LENGTH * SENT[method]


in_memory_s = {method: over_rounds(spent)[0] for method, spent in send_less["in memory"].items()}
predictions, gains = [], {}
for place, seconds in send_less.items():
    gains[place] = ratios(
        {method: 1 / np.array(spent) for method, spent in seconds.items()}, "float32"
    )
    for method, spent in seconds.items():
        gain = gains[place][method]
        verdict = f"; {Measured(*gain, '×')} vs float32: {gain.verdict}"
        print(f"{place:10} {method:12} {milliseconds(spent)}{verdict * (method != 'float32')}")
        if place in RATES:
            expected = 1e3 * (in_memory_s[method] + bits_of(method) / RATES[place])
            predictions.append(Prediction(f"{place}, {method}", expected, milliseconds(spent)))
print(
    *predictions, score(predictions) if predictions else f"On wires: not here. {no_wires}", sep="\n"
)
for method in ("FP16", "top-k, 1/50"):
    extra = in_memory_s[method] - in_memory_s["float32"]
    saved = bits_of("float32") - bits_of(method)
    where = f"on wires below about {saved / extra / 1e9:.1f} Gbit/s" if extra > 0 else "on any wire"
    print(f"{method} should pay {where}, with this code and {team} ranks")

# %% jupyter={"source_hidden": true}
if not no_wires:
    by_place = {place: by_method["top-k, 1/50"].value for place, by_method in gains.items()}
    results.compare_guess(5, max(by_place, key=by_place.get))
rows = [
    (
        f"top-k with 1/50 of the bytes vs float32, {place}",
        "",
        Measured(*by_method["top-k, 1/50"], "×"),
        "",
        less_others,
    )
    for place, by_method in list(gains.items())[:2]
]
results.hand_in("12", *rows)

# %% [markdown]
# Converting, choosing and adding take a core's time, whatever the wire. Where the wire needs less time than that for
# the bytes saved, compression loses.
#
# Half the bits are not always half the bytes. MPICH uses recursive doubling for reductions that are not built in (lab
# 07 measures it). On 4 ranks, FP16 sends log₂ 4 · ½ = 1 gradient, where float32 sends 1.5; on 16 ranks, 2 vs 1.9.

# %% [markdown]
# ## 13 · Two racks {read 4, wait 0.4, optional}
#
# In a data centre, nodes stand in *racks*. Each rack has its own switch, and an
# [**uplink**](../docs/glossary.md#uplink) leads from it to the others. An uplink often carries less than the rack's
# nodes could send at once. Here are two racks:
#
# ```mermaid
# flowchart TB
#     accTitle: Four nodes in two racks
#     accDescr {
#         Nodes 0 and 1 are joined to the switch of rack 0, nodes 2 and 3 to that of rack 1, by wires of 1 Gbit/s.
#         From each rack's switch, an uplink of 100 Mbit/s leads to a switch above.
#     }
#     top["switch"] -- "uplink, 100 Mbit/s" --- r0["switch of rack 0"]
#     top -- "uplink, 100 Mbit/s" --- r1["switch of rack 1"]
#     r0 -- "1 Gbit/s" --- n0(["node 0"])
#     r0 --- n1(["node 1"])
#     r1 --- n2(["node 2"])
#     r1 --- n3(["node 3"])
# ```

# %% [markdown]
# Add up a gradient of *S* bytes in four ways:
#
# - **ring by rack**: your ring, 0 → 1 → 2 → 3. In each step, one message leaves each rack, so 2(n − 1)/n · S = 1.5 S
#   pass an uplink.
# - **ring across**: your ring, 0 → 2 → 1 → 3. Now every message goes to the other rack: 3 S.
# - **two levels**, as in section 9: reduce and scatter in the rack, so that each node has half of the gradient; add up
#   this half with the node of the other rack that has the same half; gather in the rack. Both pairs send half of the
#   gradient: S.
# - **MPI_Allreduce**: MPICH knows nothing of the racks. Its halving begins inside them: S.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster are two levels than the ring by rack? Count what they send inside the racks too, on
# wires ten times faster.
#
# </div>

# %%
results.guess(6, "two levels vs the ring by rack, two racks", ..., unit="×")

# %%
# %%writefile work/two_levels.py
"""An all-reduce in two levels: inside the racks, between them, and inside again."""

import numpy as np
from mpi4py import MPI


def two_levels(within, partners, gradient, total):
    """Fill `total` with the sum over all racks.

    `within` has the ranks of this rack, `partners` those at this place in each rack.
    """
    part = np.empty(len(gradient) // within.size, np.float32)  # is divisible here
    within.Reduce_scatter_block(gradient, part)
    partners.Allreduce(MPI.IN_PLACE, part)
    within.Allgather(part, total)


# %% jupyter={"source_hidden": true}
# %%writefile work/racks.py
"""Time all-reduces on two racks: work/racks.py RING OUT ROUNDS BYTES"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
from mpi4py import MPI
from two_levels import two_levels

ring_allreduce = import_module(sys.argv[1]).ring_allreduce
out, rounds, n_bytes = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
ranks = MPI.COMM_WORLD
rack, place = divmod(ranks.rank, ranks.size // 2)
within = ranks.Split(rack)  # the ranks of this rack
partners = ranks.Split(place)  # those at this place in each rack
across = ranks.Split(0, key=2 * place + rack)  # all ranks: neighbours are in different racks
METHODS = {
    "ring by rack": lambda gradient, total: ring_allreduce(ranks, gradient, total, buffer),
    "ring across": lambda gradient, total: ring_allreduce(across, gradient, total, buffer),
    "two levels": lambda gradient, total: two_levels(within, partners, gradient, total),
    "MPI_Allreduce": ranks.Allreduce,
}
gradient = np.full(n_bytes // 4, ranks.rank + 1, np.float32)
total, buffer = np.empty((2, len(gradient)), np.float32)
measured = {method: [] for method in METHODS}
for repeat in range(1 + rounds):  # the first opens connections
    for method, run in METHODS.items():
        ranks.Barrier()
        start = time.perf_counter()
        run(gradient, total)
        spent = ranks.allreduce(time.perf_counter() - start, op=MPI.MAX)
        assert (total == ranks.size * (ranks.size + 1) / 2).all(), method
        measured[method] += [spent] * (repeat > 0)
if ranks.rank == 0:
    out.write_text(json.dumps(measured))

# %%
WIRE, UPLINK, RACK_NODES = 1e9, 1e8, 4  # bit/s, and nodes in two racks
# Gradients over an uplink, and on a node's wire while the uplinks are idle.
OVER_UPLINK = {"ring by rack": 1.5, "ring across": 3.0, "two levels": 1.0, "MPI_Allreduce": 1.0}
INSIDE = {"two levels": 1.0, "MPI_Allreduce": 1.0}
racks = {}  # by method: each round's seconds
if not no_wires:
    print(f"{RACK_ROUNDS + 1} rounds, about 20 seconds.")
    with (
        load.watch("section 13") as racks_others,
        Testbed(RACK_NODES, WIRE, racks=2, uplink=UPLINK) as wires,
    ):
        arguments = Path(ring).stem, work / "racks.json", RACK_ROUNDS, GRADIENT
        run_ranks(RACK_NODES, "work/racks.py", *arguments, threads=1, network=wires)
        racks = json.loads((work / "racks.json").read_text())

# %%
if racks:
    predictions = [
        Prediction(
            method,
            8e3 * HEADERS * GRADIENT * (gradients / UPLINK + INSIDE.get(method, 0) / WIRE),
            milliseconds(racks[method], 0),
        )
        for method, gradients in OVER_UPLINK.items()
    ]
    print(*predictions, f"{score(predictions)}\n", sep="\n")
    speeds = {method: 1 / np.array(spent) for method, spent in racks.items()}
    rack_gains = ratios(speeds, "ring by rack")
    for method in list(racks)[1:]:
        print(f"{method} vs ring by rack: {rack_gains[method]}, {rack_gains[method].verdict}")
    gain = Measured(*rack_gains["two levels"], "×")
    results.compare_guess(6, gain)
    row = "two levels vs your ring, two racks", "", gain, "", racks_others
    results.hand_in("13", row)
else:
    print(f"Not here: {no_wires}")

# %% [markdown]
# These predictions are bytes divided by rates: no number was fitted. If a time is above its prediction, remember that
# the nodes share this machine's cores.
#
# The order of the ranks is part of an algorithm. If a launcher deals out ranks alternately to the racks, the ring by
# rack becomes the ring across: the same script, the same bytes from each node, twice the bytes on the uplinks. Slurm
# calls these orders `--distribution=block` and `cyclic` ([its
# documentation](https://slurm.schedmd.com/sbatch.html#OPT_distribution)).
#
# ## Questions {read 3.5}
#
# The instructor's notebook has answers.
#
# 1. You can run parameter servers and workers in different ratios. How does the ratio change the time of a step? Is
#    there a best one?
# 2. A ring all-reduce gives the average to every rank, without a server. Who does the server's work?
# 3. Which communication does data parallelism need, and which does model parallelism need? Why does it depend on how
#    the work is split? *(section 10)*
# 4. Horovod replaced TensorFlow's parameter servers with MPI. What did the author of a script gain?

# %% [markdown]
# 5. Why does Horovod reach 90% scaling efficiency on 512 GPUs with ResNet-101 and Inception V3, but only 68% with
#    VGG-16? Section 1 has the numbers.
# 6. By the model, halving needs no more bytes than the ring, and fewer steps. You have 24 nodes in three racks. Which
#    one do you try first for a gradient of 100 MB, and what would you measure before you decide? *(section 13 has two
#    racks)*
# 7. A rank sends 1% of a gradient's numbers with top-k. From how many ranks on is that more than a ring sends in
#    float32? *(section 12)*

# %% [markdown]
# ### Homework · Which algorithm does MPI choose?
#
# On 3 nodes, did `MPI_Allreduce` take longer than the model's best in section 8? Try the others: `ring`,
# `recursive_doubling` and `reduce_scatter_allgather`, which is halving ([tuning
# parameters](https://github.com/pmodels/mpich/blob/main/doc/mpich/tuning_parameters.md)). In a terminal, in this
# notebook's folder:
#
# ```bash
# ../lab testbed --nodes 3 --rate "100 Mbit/s" -- mpirun -n 3 -ppn 1 \
#     -genv MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM ring \
#     python work/measure_on_wires.py servers ring - 6 ring,MPI_Allreduce 1000000
# ```
#
# Compare the bytes with those of the default, without the second line. Which algorithm is it? And on 4 nodes? One layer
# below, UCX asks the receiver before it sends a long message: [**rendezvous**](../docs/glossary.md#rendezvous). Does
# `-genv UCX_RNDV_THRESH inf`, which sends everything at once (*eager*), change the times?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Answers 1 and 2**
#
# 1. A server receives and sends (n − 1) S/k bytes, so with more servers its part takes less time, up to k = n. A
#    dedicated server is a machine that does not compute: with too few, workers wait for them; with too many, machines
#    are wasted. The best ratio depends on the network, the gradient's size and the time of a step, so each job needs
#    its own search. With k = n servers that also work, the question disappears, and the bytes are those of the ring.
# 2. All ranks together. Each adds up one chunk in the reduce-scatter, as a server would, and distributes it in the
#    all-gather. The bottleneck is gone, and so is the server's role.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Answers 3 to 5**
#
# 3. Data parallelism: all-reduce, or reduce-scatter and all-gather, of *gradients*, since all ranks have the same
#    weights. Model parallelism: all-to-all and all-gather of *activations*, since each rank has different weights. What
#    isn't shared doesn't travel. Ask: what travels in exercise 4's backward pass? The gradient of the output goes by
#    Alltoall to the neurons' owners, and that of x through reduce-scatter to the rows' owners.
# 4. No roles, no server addresses and no ratio to tune: the same script runs on any number of ranks.
# 5. Look at bytes per second of computing. A P100 trained 142 images/s of Inception V3, 92 of ResNet-152 (ResNet-101
#    is not in this list) and 154 of VGG-16 (batch 64; [TensorFlow's benchmarks,
#    2017](https://www.tensorflow.org/performance/benchmarks)). So a step takes 0.45, 0.70 and 0.42 s, and sends 96, 241
#    and 554 MB: 212, 346 and 1,333 MB per second. Bytes per multiplication, in section 1's table, point the right way
#    but say too little. VGG-16's multiplications are large, regular convolutions that a GPU computes fast, and 90% of
#    its weights are in three dense layers: section 10.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Answers 6 and 7, homework**
#
# 6. The model can't say: 24 is not a power of two, so halving has an extra step in which some ranks send whole
#    gradients, and three racks share uplinks. A ring in the order of the racks asks nothing extra of them; two levels
#    may send less. Measure bytes per rank, the latency between racks (a ring has 46 steps), and both algorithms at the
#    real size, alternately. Halving with doubling is Rabenseifner's algorithm (Thakur et al. 2005,
#    https://doi.org/10.1177/1094342005051521).
# 7. Ring: 2(n − 1)/n · S. Top-k: (n − 1) · 0.01 · 2 · S, as each number travels with its index. They are equal at n =
#    100.
#
# **Homework.** MPICH 5.0.2 sends what `reduce_scatter_allgather` sends. On 3 nodes one rank sends two gradients, which
# no ring does. On 4 nodes the bytes are the ring's, so if times differ there, bytes don't explain it. Then compare with
# the eager setting: partners in halving send to each other at the same time, and an answer waits behind data. If the
# run says that the cores were the limit, lower the rate.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Timing**
#
# Part one: sections 1 and 2 take 18 minutes, 3 takes 15, 4 and 5 take 7, and 6 takes 3. Part two: 7 takes 5, 8 takes
# 11, 9 takes 6, the questions 4. Anyone still in exercise 2 at minute 35 should continue with the solution. Between the
# parts is a good place for a break. Of the optional sections, 10 and 12 are the longest. Each can be done alone; 11
# uses the model of section 8, and 12 and 13 use the wires of section 7.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · What goes wrong**
#
# **Exercise 1**: a blocking `Send` in place of the push passes with short arrays and hangs with the long one, where two
# servers send to each other. The check ends it and quotes the line. **2**: `chunks[i] = chunks[i] + room` puts a new
# array into the list and leaves `total` unchanged; it has to be `chunks[i] += room`. **3**: the steps of halving send
# 1/2 + 1/4 + … + 1/n = 1 − 1/n, the ring's bytes. **4**: `blocks.reshape(rows, -1)` without the transposition has the
# right shape and the wrong rows. **5**: `ready[layer] < now` lets the card wait for a gradient that is ready at this
# very moment. **6**: a budget counts what goes to *all* others; and with k = 0, `[-k:]` is everything.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · What to look for in memory**
#
# **Section 6.** Most people expect their ring to be several times slower at 64 MiB. Compare the page faults: MPICH's
# buffer of 32 MiB is 8,192 pages of 4 KiB. The ring receives into `buffer`, which the script allocates once, so its
# calls have almost no page faults. glibc never keeps a buffer above 32 MiB by default: `man mallopt`,
# M_MMAP_THRESHOLD. With another C library the variables do nothing, and the cell says so.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · What to look for on wires**
#
# **Theory** has no free parameter. Look for times above it, with wide intervals, where nodes share cores: at
# 100 Mbit/s with more nodes than cores. On a busy machine, latencies are milliseconds.
#
# **Section 12.** If a rank had to share its core, its compression would take longer than on a real node, so there are
# no more nodes than cores (two on a machine with one core). numpy adds FP16 slowly; Horovod uses the CPU's instructions
# for it.
#
# **Section 13.** On 4 nodes, MPICH's halving and the two levels send the same bytes to the same partners, in the same
# order: half of the gradient in the rack, a quarter across, and back. Equal times support both predictions.
#
# </div>

# %% [markdown]
# ## Remember
#
# - All-reduce = reduce-scatter + all-gather. A ring does both with two neighbours, in 2(n − 1) steps. Each rank sends
#   less than twice the gradient, however many ranks there are.
# - Few steps win for small gradients, few bytes for large ones. Halving has both; a ring works with any number of ranks
#   and on shared uplinks.
# - Equal bytes need not be equal times: it matters who sends to whom at the same moment.
# - A program that hangs if messages aren't buffered is unsafe, even while it works.
# - Before you call an algorithm faster, find out what else its time contains.
# - *(Sections 10 to 13)* What isn't shared doesn't travel. Sending is hidden only if something sends while you compute.
#   Top-k needs error feedback; compression pays below some rate of the wire. The order of ranks decides what an uplink
#   carries.
#
# What was published, what you measured, and the most that the machine could do:

# %% jupyter={"source_hidden": true}
message_us = Measured(*(1e6 * typical("ping-pong")[:, 0]), "µs", digits=1)
large = f"{largest / 2**20:.0f} MiB, 2 ranks in memory"
ring_ms, above = milliseconds(measured["ring"][largest]), "its parts ran on their own"
parts_ms = milliseconds(np.sum(ring_parts(measured), axis=0))
parts_limit = Limit(parts_ms, above=above, lower_is_better=True)
ring_limit = parts_limit if check_ring(measured).reliable else "not known (section 5)"
rows = [
    ("scaling efficiency, ResNet-101 and Inception V3, 512 GPUs", "90%", "", ""),
    ("the same, VGG-16", "68%", "", ""),
    ("a message of 8 bytes, 2 ranks in memory", "", message_us, "", measured_others),
    (f"your ring, {large}; limit: its copy and messages", "", ring_ms, ring_limit, measured_others),
    (f"your ring vs MPI_Allreduce, {large}", "", Measured(*ring_gain, "×"), "", measured_others),
    *results.handed_in("6", ("the same with memory kept, 64 MiB", "")),
]
for method, name in (
    ("1 server", "one server"),
    ("n servers", "as many servers as nodes"),
    ("ring", "your ring"),
    ("MPI_Allreduce", "MPI_Allreduce"),
):
    if wired:
        spent = milliseconds(wired[slowest, most]["seconds"][method][GRADIENT], 0)
        theory = Measured(1e3 * in_theory(method, most, slowest)[0], unit="ms", digits=0)
        above = "wires let a first burst pass faster than their rate"
        limit = Limit(theory, above=above, lower_is_better=True)
        rows.append((f"{name}, 4 MB, {most} nodes, {slowest}", "", spent, limit, wired_others))
if wired:
    gain = Measured(*compare(wired[slowest, most]["seconds"], GRADIENT, "n servers"), "×")
    name = f"your ring vs {most} servers, 4 MB, {most} nodes, {slowest}"
    rows.append((name, "", gain, "", wired_others))
for where, errors, others in (
    ("in memory", memory_predictions, [measured_others]),
    ("on wires, nodes and sizes not seen", wire_predictions, [wired_others, unseen_others]),
):
    if errors:
        off = [abs(prediction.error) for prediction in errors]
        error = Measured(100 * np.median(off), unit="%", digits=0, note=f"{max(off):.0%}")
        rows.append((f"the model's error {where}: median, worst", "", error, "", *others))
if no_wires:
    name = "all-reduces of 4 MB on wires, and the model's error there"
    rows.append((name, "", f"not here: {no_wires}", ""))
top_k_name = "top-k with 1/50 of the bytes vs float32"
names = [f"{top_k_name}, {place}" for place in ("in memory", "100 Mbit/s")]
rows += results.handed_in("12", *((name, "") for name in names))
rows += results.handed_in("13", ("two levels vs your ring, two racks", ""))
results.table("how gradients travel", rows)

# %% [markdown]
# Published: [Horovod's documentation, Benchmarks](https://horovod.readthedocs.io/en/stable/benchmarks_include.html).
#
# Where you are between this machine's default and its fastest setting, over all labs that you have run:

# %%
ladder.show(results)

# %% [markdown]
# Next: [lab 07](07_horovod_mnist.ipynb) uses all of this, in six steps.
