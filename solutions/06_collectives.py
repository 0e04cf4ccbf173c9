# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 06 · How gradients travel
#
# Each step of data-parallel training ends with a sum over all processes. How this sum is made decides how far training
# scales: on 512 GPUs, Horovod reached 90% scaling efficiency with ResNet-101, but only 68% with VGG-16
# ([its benchmarks](https://horovod.readthedocs.io/en/stable/benchmarks_include.html)).
#
# **You will** write this sum of [**gradients**](../docs/glossary.md#gradient) over all
# [**ranks**](../docs/glossary.md#rank) twice: with [**parameter servers**](../docs/glossary.md#parameter-server) and as
# a [**ring**](../docs/glossary.md#ring). You count what they send, and measure how long they take, in memory and on
# wires. You fit a model to the times, draw it up to 1,024 ranks, and find out where a ring wins, where it doesn't, and
# why it is used all the same.
#
# | part | sections | time |
# | --- | --- | --- |
# | one · in memory | 1 to 6 | {minutes 1–6} |
# | two · on wires | 7 to 15, and the questions | {minutes 7–questions} |
#
# Part two needs the kernel of part one: after a restart, run part one again.
#
# **Time** {minutes}
#
# **Connects to** lab 00, where two ranks first add up their numbers; lab 07, where Horovod does all of this for you;
# and lab 08, where it limits how far training scales.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("06", globals())

# %%
import contextlib
import inspect
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
from labkit.display.measured import Measured
from labkit.mpi import RankError, run_ranks
from labkit.system import load
from labkit.system.statistics import interval, ratio, ratios
from labkit.testbed import Testbed, obstacle

cores = machine.usable_cores

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
DEADLOCK_S = 1 if QUICK else 3  # until it is ended: section 1
COUNTED_RANKS = 2 if QUICK else 4  # section 4
POWERS = (3, 9, 13, 16, 19, 20) if QUICK else (3, 6, 9, 11, 13, 14, 15, 16, 18, 20, 22, 24, 25, 26)
MEMORY_SIZES, MEMORY_ROUNDS = [2**power for power in POWERS], 3 if QUICK else 7  # bytes: 5, 6
GRADIENT = 4_000_000  # bytes, as in section 4
# Bytes on wires; the small ones are for the model of section 8.
WIRE_SIZES = (1_000, GRADIENT) if QUICK else (1_000, 30_000, 300_000, GRADIENT)
NODES = (2,) if QUICK else (2, 4)
RATES = {"1 Gbit/s": 1e9} if QUICK else {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9}
WIRE_ROUNDS = 2 if QUICK else 5  # section 7
UNSEEN_NODES, UNSEEN_SIZES = (
    3,
    (100_000,) if QUICK else (20_000, 150_000, 1_000_000),
)  # section 8
OVERLAP_LENGTHS = (2**16, 2**12) if QUICK else (2**20, 2**16)  # numbers, memory and wires: 12
OVERLAP_ROUNDS = 1 if QUICK else 7
COMPRESSED_DIGITS, COMPRESSED_EPOCHS = (500, 2) if QUICK else (8_000, 8)  # section 13
COMPRESSION_ROUNDS = 1 if QUICK else 7
LONG, NODES_CHOSEN = (300_000, (2,)) if QUICK else (10_000_000, (3, 4))  # bytes, nodes: section 14
CHOICES, CHOSEN_ROUNDS = (2, 2) if QUICK else (None, 7)  # settings of MPICH; None: all of them
RACK_ROUNDS = 2 if QUICK else 7  # section 15

# %% [markdown]
# ## Part one · In memory
#
# **Time** {minutes 1–6}. All ranks are on this machine: what one rank sends is copied through its memory.
#
# ## 1 · What has to travel?
#
# In [**data parallelism**](../docs/glossary.md#data-parallelism), each rank has a copy of the network and a share of
# the [**batch**](../docs/glossary.md#batch). It computes a gradient: one number for each weight. Before any rank takes
# a step, every rank needs the *sum* of all ranks' gradients. (Divide it by the number of ranks, and you have the mean.)
# An operation that gives every rank the sum is an [**all-reduce**](../docs/glossary.md#all-reduce).
#
# How much is sent in one step? Each weight is a float32, 4 bytes.

# %% tags=["nbval-check-output"]
# Weights in millions: https://keras.io/api/applications. Multiplications for one image, forward
# pass alone, in 10⁹: what https://docs.pytorch.org/vision/stable/models.html calls GFLOPS.
NETWORKS = {
    "ResNet-50": (25.6, 4.09),
    "Inception V3": (23.9, 5.71),
    "ResNet-101": (44.7, 7.80),
    "VGG-16": (138.4, 15.47),
}
print(f"{'':14}{'gradient':>10}{'computation':>26}{'gradient per computation':>34}")
for name, (weights, products) in NETWORKS.items():
    print(
        f"{name:14}{4 * weights:>7.0f} MB{products:>8.2f}·10⁹ products/image"
        f"{4 * weights / products:>15.1f} MB per 10⁹ products"
    )

# %% [markdown]
# Which of the four is hardest to spread over many machines? The questions at the end come back to it.
#
# ### What MPI offers
#
#
# `mpi4py` lets Python call [**MPI**](../docs/glossary.md#mpi), the Message Passing Interface. You need only a few of
# its methods. Those with a capital letter send numpy arrays as they are stored in memory, and the receiver provides an
# array to write into. (Those in lower case send any Python object, and are slower.)

# %%
# %%writefile work/messages.py
"""Send, receive and add up numbers on two ranks: mpirun -n 2 python work/messages.py"""

import numpy as np
from mpi4py import MPI

ranks = MPI.COMM_WORLD
me, other = ranks.rank, 1 - ranks.rank
mine = np.full(3, 10.0 * (me + 1), np.float32)
theirs = np.empty_like(mine)

# A message: one sends, the other receives.
if me == 0:
    ranks.Send(mine, dest=other)
else:
    ranks.Recv(theirs, source=other)
    print("Recv:", theirs)

# Both send, and both receive, at the same time.
ranks.Sendrecv(mine, dest=other, recvbuf=theirs, source=other)
print("Sendrecv:", theirs)

# Isend only starts to send, and returns a request. Don't change the array until you have
# waited for the request.
request = ranks.Isend(
    mine, dest=other, tag=7
)  # a tag tells apart messages between the same two ranks
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
# **Guess first.** Many people make this mistake once: both ranks **send first, and then receive**. Does it work?
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
print(f"sending {mine.nbytes:,} bytes by {sys.argv[2]}")
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
# `Send` may return as soon as you can change the array again: when the message is in a buffer, or when the other rank
# receives it. The MPI standard leaves the choice to the library. MPICH copies a short message into a buffer. A long one
# doesn't fit there, so each rank waits in its own `Send` for the other: a
# [**deadlock**](../docs/glossary.md#deadlock). `run_ranks` stopped it after the time limit.
#
# A program that needs these buffers is called *unsafe*, however short its messages are. `Ssend` never uses a buffer, so
# it shows the mistake with 40 bytes. `Sendrecv` and `Isend` avoid it.
#
# ## 2 · A parameter server
#
# This is the oldest way. One rank is the **server**. The workers *push* their gradients to it, it adds them up, and
# they *pull* the sum.
#
# ```mermaid
# flowchart LR
#     accTitle: A parameter server
#     accDescr {
#         Ranks 1, 2 and 3 each push their gradient to rank 0, the server.
#         It adds them up, and each of the three pulls the sum back from it.
#     }
#     r1["rank 1"] -- push gradient --> s["rank 0, the server: adds up"]
#     r2["rank 2"] -- push gradient --> s
#     r3["rank 3"] -- push gradient --> s
#     s -- pull sum --> t1["rank 1"]
#     s -- pull sum --> t2["rank 2"]
#     s -- pull sum --> t3["rank 3"]
# ```
#
# A single server has to receive and send everything, while the links of the others are idle. So take *k* servers, and
# cut the gradient into *k* chunks: each server adds up one chunk. The length need not be divisible by *k*. This module
# cuts an array into chunks, here and in everything that follows:

# %%
# %%writefile work/chunks.py
"""Cut an array into chunks: where each begins and ends."""

import itertools


def bounds(length, parts):
    """Return (start, stop) of each chunk; the first are longer by one where it is not divisible."""
    each, left = divmod(length, parts)
    starts = [part * each + min(part, left) for part in range(parts + 1)]
    return list(itertools.pairwise(starts))


if __name__ == "__main__":
    print("10 numbers in 4 chunks:", bounds(10, 4))
    print("2 numbers in 4 chunks: ", bounds(2, 4))


# %% tags=["nbval-check-output"]
# %run work/chunks.py

# %% [markdown]
# ### Exercise 1 · k servers
#
# Write `parameter_server(ranks, gradient, total, servers)`. Ranks 0 to `servers - 1` are servers, and they are
# **workers too**: like all others, they have a gradient of their own.
#
# - Push: each rank sends each server its chunk of the gradient, and nothing else. **This round is written.**
# - Each server adds up the chunks it gets.
# - Pull: each server sends its sum to every rank.
#
# (You may replace what is written. Why does it use `Isend`, and not `Send`?)
#
# In the end, `total` holds the sum **on every rank**, and `gradient` is unchanged. It has to work with any number of
# ranks and any length, even if some chunks are empty. Send messages from rank to rank only: no `Allreduce`, no `Bcast`.
# And send them only through the communicator `ranks` that the function is given: it may have other ranks than
# `MPI.COMM_WORLD`, in another order. The arrays are float32.

# %%
# %%writefile work/servers.py
"""Sum arrays over all ranks with k parameter servers."""

import numpy as np
from chunks import bounds
from mpi4py import MPI

PUSH, PULL = 1, 2  # tags


def parameter_server(ranks, gradient, total, servers):
    """Fill `total` with the sum of all ranks' `gradient`; each of the servers adds up a chunk."""
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
        chunk, incoming = total[start:stop], np.empty(stop - start, gradient.dtype)
        chunk[:] = gradient[start:stop]
        for worker in others:  # always in the same order, so that rounding is the same each time
            ranks.Recv(incoming, source=worker, tag=PUSH)
            chunk += incoming
        requests += [ranks.Isend(chunk, dest=worker, tag=PULL) for worker in others]
    for server, (start, stop) in enumerate(parts):
        if server != me:
            ranks.Recv(total[start:stop], source=server, tag=PULL)
    MPI.Request.Waitall(requests)
    ### END SOLUTION


# %% [markdown]
# The check runs your script on 4 ranks, and makes communicators of 1, 2, 3 and 4 of them, with lengths from 1 to
# 300,003. It looks at the sums, and counts what each rank sends to others. One call may take 10 s, all of them together
# 60 s.

# %% tags=["nbval-check-output"]
servers = check(1, "work/servers.py")

# %% [markdown]
# ## 3 · A ring without a server
#
# With as many servers as ranks, all ranks do the same work. But each talks to all others. The **ring all-reduce**
# balances the work just as well, and each rank talks to two neighbours only: in every step it sends to the right and
# receives from the left.
#
# ```mermaid
# flowchart LR
#     accTitle: A ring of four ranks
#     accDescr {
#         Rank 0 sends to rank 1, rank 1 to rank 2, rank 2 to rank 3, and rank 3 sends back to rank 0.
#         All send at the same time.
#     }
#     r0(("rank 0")) --> r1(("rank 1")) --> r2(("rank 2")) --> r3(("rank 3")) --> r0
# ```
#
# There are as many chunks as ranks, and two rounds:
#
# 1. [**Reduce-scatter**](../docs/glossary.md#reduce-scatter), `n - 1` steps: each rank passes a chunk on, and the next
#    rank adds its own numbers to it. A chunk that has come all the way round is complete. Now each rank has *one*
#    complete chunk.
# 2. [**All-gather**](../docs/glossary.md#all-gather), `n - 1` steps: the complete chunks go round, and replace the
#    incomplete ones.
#
# Baidu brought the ring from scientific computing to deep learning in 2017, and Horovod adopted it (Sergeev and Del
# Balso 2018, [arXiv 1802.05799](https://arxiv.org/abs/1802.05799)). The picture below shows, for each rank and chunk,
# how many ranks' numbers have been added up in it.

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
    pictures.append((f"allgather {step}", held.copy(), sent))

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
# Write `ring_allreduce(ranks, gradient, total)`. As before, `total` holds the sum in the end, on every rank, and
# `gradient` is unchanged. `chunks` are views: what you write into them is written into `total`.
#
# In each step, each rank sends **one** chunk to its right neighbour. As before, send messages from rank to rank, and
# only through `ranks`.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which chunk does rank *r* send in step 0? And in step 1?
#
# </div>

# %%
# %%writefile work/ring.py
"""Sum arrays over all ranks by a ring."""

import numpy as np
from chunks import bounds


def ring_allreduce(ranks, gradient, total):
    """Fill `total` with the sum of all ranks' `gradient`."""
    n, me = ranks.size, ranks.rank
    left, right = (me - 1) % n, (me + 1) % n
    total[:] = gradient
    chunks = [total[start:stop] for start, stop in bounds(len(total), n)]
    incoming = np.empty_like(chunks[0])  # the first chunk is the longest
    ### BEGIN SOLUTION
    for step in range(n - 1):  # reduce-scatter
        out, into = chunks[(me - step) % n], chunks[(me - step - 1) % n]
        room = incoming[: len(into)]
        ranks.Sendrecv(out, dest=right, recvbuf=room, source=left)
        into += room
    for step in range(n - 1):  # allgather
        out, into = chunks[(me + 1 - step) % n], chunks[(me - step) % n]
        ranks.Sendrecv(out, dest=right, recvbuf=into, source=left)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
ring = check(2, "work/ring.py")

# %% [markdown]
# ## 4 · Count: messages and bytes
#
# For *n* ranks, a gradient of *S* bytes and *k* servers, theory says that each rank **sends**:
#
# | | messages | bytes |
# | --- | --- | --- |
# | a server | (n − 1) + (k − 1) | (n − 1) · S/k + (S − S/k) |
# | a rank that is not a server | k | S |
# | ring, each rank | 2(n − 1) | 2(n − 1)/n · S |
#
# `CountingComm` is a communicator that counts. The script compares your sums with those of `MPI_Allreduce` and of
# numpy, up to rounding: adding in another order changes the last bits.

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
    """Return (messages, bytes) of each of n ranks; in a ring if there are no servers."""
    size = 4 * LENGTH
    if not servers:
        return [(2 * (n - 1), 2 * (n - 1) / n * size)] * n
    server = (n - 1) + (servers - 1), (n - 1) * size / servers + size - size / servers
    return [server if rank < servers else (servers, size) for rank in range(n)]


def count(ranks, servers=0):
    """Run one all-reduce, and let rank 0 print what each rank sends, counted and in theory."""
    gradient = np.random.default_rng(ranks.rank).normal(size=LENGTH).astype(np.float32)
    total, by_mpi = np.empty_like(gradient), np.empty_like(gradient)
    CountingComm.reset()
    if servers:
        parameter_server(ranks, gradient, total, servers)
    else:
        ring_allreduce(ranks, gradient, total)
    sent = ranks.allgather((len(CountingComm.messages), CountingComm.bytes_sent()))
    ranks.Allreduce(gradient, by_mpi)
    by_numpy = np.sum(ranks.allgather(gradient), axis=0)
    equal = all(np.allclose(total, right, rtol=1e-5, atol=1e-5) for right in (by_mpi, by_numpy))
    if not ranks.allreduce(equal, op=MPI.LAND):
        raise ValueError("the sum differs from MPI's or numpy's")
    if ranks.rank == 0:
        way = f"{servers} server{'s' * (servers > 1)}" if servers else "ring"
        for name, by_rank in (("counted", sent), ("in theory", in_theory(ranks.size, servers))):
            messages = " ".join(f"{messages}" for messages, _ in by_rank)
            megabytes = " ".join(f"{n_bytes / 1e6:5.2f}" for _, n_bytes in by_rank)
            print(f"{ranks.size} ranks, {way:9} {name:9} | messages {messages:7} | MB {megabytes}")


world = MPI.COMM_WORLD
for n in range(2, world.size + 1):
    part = world.Split(0 if world.rank < n else MPI.UNDEFINED)  # the first n ranks
    if part != MPI.COMM_NULL:
        for servers in sorted({1, n // 2, n}):
            count(CountingComm(part), servers)
        count(CountingComm(part))

# %%
print("A gradient of 4 MB: what ranks 0, 1, … send")
counts = run_ranks(COUNTED_RANKS, "work/count.py", Path(servers).stem, Path(ring).stem, threads=1)

# %% [markdown]
# For each number of ranks, compare the last two ways. With as many servers as ranks, each rank sends as many messages
# and bytes as in the ring. By these counts, a *server* isn't slow in itself: too few of them are. What counts don't
# tell is who sends *at the same moment* to whom. Section 7 measures whether that matters.
#
# ## 5 · How long does it take in memory?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Your ring is written in Python, `MPI_Allreduce` in C. How many times as fast as `MPI_Allreduce` is
# your ring with 64 MiB? (Below 1: it is slower.) And with 8 bytes?
#
# </div>

# %%
size = f"{MEMORY_SIZES[-1] / 2**20:.0f} MiB"
results.guess(2, f"your ring's speed over MPI_Allreduce's, {size}", ..., unit="×")

# %% [markdown]
# The script measures both on two ranks, from 8 bytes to 64 MiB, and also the parts they are made of:
#
# - **ping-pong**: a message from rank 0 to rank 1 and back, divided by two,
# - **exchange**: each rank sends and receives at the same time, which is one step of your all-gather,
# - **exchange and add**: what a rank received is added to what it sends next, which is one step of your reduce-scatter,
# - **copy**: copying an array within one rank, on all ranks at once.
#
# In each round all of them take turns, so other work on the machine affects them all. The time of a round is that of
# the slowest rank. The script also counts [**page faults**](../docs/glossary.md#page-fault), for section 6. (Both
# scripts are folded: click on the three dots to read them.)

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


def run(work, times):
    """Return seconds and page faults of one call, on the rank that has most of them."""
    ranks.Barrier()
    faults, start = getrusage(RUSAGE_SELF).ru_minflt, time.perf_counter()
    for _ in range(times):
        work()
    spent = time.perf_counter() - start, getrusage(RUSAGE_SELF).ru_minflt - faults
    return [ranks.allreduce(value / times, op=MPI.MAX) for value in spent]


measured = {"seconds": {}, "faults": {}}  # by way, then by bytes: of each round
for size in sizes:
    gradient, total = np.full((2, size // 4), 0.0, np.float32)  # zeros can be added for ever
    ways = {
        "ping-pong": partial(ping_pong, gradient),
        "exchange": partial(exchange, gradient, total),
        "exchange and add": partial(exchange_and_add, gradient, total),
        "copy": partial(np.copyto, total, gradient),
        "MPI_Allreduce": partial(ranks.Allreduce, gradient, total),
        "ring": partial(ring_allreduce, ranks, gradient, total),
        "1 server": partial(parameter_server, ranks, gradient, total, 1),
    }
    times = {}
    for name, way in ways.items():
        way()  # touches memory and opens connections
        times[name] = max(
            1, min(200, int(0.005 / run(way, 1)[0]))
        )  # as many calls as fit into 5 ms
    for _ in range(rounds):
        for name, way in ways.items():
            for what, value in zip(measured, run(way, times[name])):
                value /= 2 if name in ("ping-pong", "exchange") else 1
                measured[what].setdefault(name, {}).setdefault(size, []).append(value)
    if ranks.rank == 0:
        typical = {
            name: f"{1e6 * np.median(by[size]):,.0f} µs" for name, by in measured["seconds"].items()
        }
        print(
            f"{size:>12,} bytes: "
            + ", ".join(f"{name} {typical[name]}" for name in ("exchange", *list(ways)[-3:]))
        )
if ranks.rank == 0:
    out.write_text(json.dumps(measured))


# %%
def by_way_and_bytes(by_way):
    """Return what JSON made of a dict by way and bytes, with bytes as numbers again."""
    return {
        way: {int(n_bytes): value for n_bytes, value in by.items()} for way, by in by_way.items()
    }


def measure(sizes, env=None):
    """Run the script on 2 ranks; return seconds and page faults by way and bytes."""
    out = work / "allreduce.json"
    modules = Path(servers).stem, Path(ring).stem
    arguments = (*modules, out, MEMORY_ROUNDS, *sizes)
    run_ranks(2, "work/measure.py", *arguments, threads=1, env=env)
    return [by_way_and_bytes(by_way) for by_way in json.loads(out.read_text()).values()]


print(f"All ways with {len(MEMORY_SIZES)} sizes, {MEMORY_ROUNDS} rounds each: about 15 seconds.")
with load.watch("section 5") as measured_others:
    measured, faults = measure(MEMORY_SIZES)


# %%
def over_rounds(seconds):
    """Return the geometric mean of some rounds, and the two ends of its 95% interval."""
    mean, half = interval(np.log(seconds))
    return np.exp([mean, mean - half, mean + half])


def milliseconds(seconds, digits=1):
    """Return the same as a figure in ms."""
    return Measured(*(1e3 * over_rounds(seconds)), "ms", digits=digits)


def typical(way):
    """Return the seconds for each message size: the mean, and both ends of its interval."""
    return np.array([over_rounds(measured[way][n_bytes]) for n_bytes in MEMORY_SIZES]).T


# %% jupyter={"source_hidden": true}
figure, (axis, rates) = plt.subplots(1, 2, figsize=(13, 5))
megabytes = np.array(MEMORY_SIZES) / 1e6
for way in ("MPI_Allreduce", "ring", "1 server"):
    mean, low, high = typical(way)
    name = "your ring" if way == "ring" else way
    (line,) = axis.loglog(MEMORY_SIZES, 1e6 * mean, label=name)
    axis.fill_between(MEMORY_SIZES, 1e6 * low, 1e6 * high, color=line.get_color(), alpha=0.25)
    rates.semilogx(MEMORY_SIZES, megabytes / mean, color=line.get_color(), marker=line.get_marker())
    rates.fill_between(
        MEMORY_SIZES, megabytes / high, megabytes / low, color=line.get_color(), alpha=0.25
    )
axis.set(xlabel="bytes of the gradient", ylabel="µs", title="time: flat where latency counts")
rates.set(
    xlabel="bytes of the gradient",
    ylabel="MB/s",
    title="gradient ÷ time: where bandwidth counts",
)
rates.set_ylim(bottom=0)
axis.legend()
figure.suptitle("An all-reduce on 2 ranks, in memory (bands: 95% intervals)")
plots.show(
    figure,
    alt="An all-reduce on 2 ranks against bytes. Left: microseconds, both axes logarithmic. "
    "Right: megabytes of the gradient per second. "
    + "; ".join(
        f"{way}: {1e6 * typical(way)[0][0]:,.0f} µs for {MEMORY_SIZES[0]} bytes, "
        f"{1e6 * typical(way)[0][-1]:,.0f} µs for {MEMORY_SIZES[-1]:,} bytes"
        for way in ("MPI_Allreduce", "ring", "1 server")
    )
    + ".",
    watched=[measured_others],
)


# %%
def compare(by_way, n_bytes, reference="MPI_Allreduce"):
    """Return your ring's speed over another way's, from the rounds in which both took turns."""
    return ratio(*(1 / np.array(by_way[way][n_bytes]) for way in ("ring", reference)))


largest = MEMORY_SIZES[-1]
for n_bytes in (MEMORY_SIZES[0], largest):
    against = compare(measured, n_bytes)  # in the end, at the largest size
    print(f"{n_bytes:>11,} bytes: your ring over MPI_Allreduce: {against}, {against.verdict}")
results.compare_guess(2, Measured(*against, "×"))

# %% [markdown]
# Small messages take about the **same** time whatever their size: that is [**latency**](../docs/glossary.md#latency),
# and here Python's own time is part of it. For large ones the time grows with the bytes: that is
# [**bandwidth**](../docs/glossary.md#bandwidth), and numpy and mpi4py copy bytes in C.
#
# "Your ring over MPI_Allreduce: 1.39" means: your ring is 1.39 times as fast. Intervals in this lab are 95% intervals
# over the rounds of *one* launch: another launch may place memory and ranks differently.
#
# ## 6 · Why is one faster?
#
# `MPI_Allreduce` is written by experts, in C. If it is no faster than your ring with large gradients, there is a
# reason. Find it: change **one** thing, and measure again.
#
# An all-reduce needs a buffer for what it receives. At the end of the call it is freed, and the C library gives a large
# one (with glibc, always one of more than 32 MiB) back to the system. So the next call gets *fresh* pages, and the
# system fills each page with zeros first, at a page fault. Two variables tell glibc to keep what is freed. The next
# cell measures the largest size again, with them.

# %%
print("A few seconds.")
KEEP = {"MALLOC_MMAP_MAX_": 0, "MALLOC_TRIM_THRESHOLD_": 2**40}  # man mallopt
with load.watch("section 6") as kept_others:
    kept, kept_faults = measure([largest], KEEP)

# %% jupyter={"source_hidden": true}


def tell_memory(usual, kept, usual_faults, kept_faults):
    """Say what fresh memory costs MPI_Allreduce, from the ratios and its page faults."""
    saved = usual_faults - kept_faults
    if usual_faults < 2 * kept_faults + 8:
        few = "Keeping memory saves MPI_Allreduce hardly a page fault here"
        return f"{few}, so fresh memory doesn't explain the ratio."
    saves = f"Keeping memory saves MPI_Allreduce {saved:,.0f} page faults"
    if kept.high < usual.low:
        return f"{saves}, and it gains on your ring."
    if kept.low > usual.high:
        return f"{saves}, but your ring gains more by it."
    return f"{saves}; no change of the ratio is seen beyond chance."


against_kept = compare(kept, largest)
for setting, seconds, by_way, one in (
    ("as usual", measured, faults, against),
    ("memory kept", kept, kept_faults, against_kept),
):
    for way in ("MPI_Allreduce", "ring"):
        pages = np.median(by_way[way][largest])
        spent = str(milliseconds(seconds[way][largest]))
        print(f"{setting:12} {way:13} {spent:26} {pages:7,.0f} page faults")
    print(f"{'':12} your ring over MPI_Allreduce: {one}, {one.verdict}")
mpi_faults = [np.median(by_way["MPI_Allreduce"][largest]) for by_way in (faults, kept_faults)]
print(tell_memory(against, against_kept, *mpi_faults))
row = (
    f"the same with memory kept, {largest / 2**20:.0f} MiB",
    "",
    Measured(*against_kept, "×"),
    "",
    kept_others,
)
results.hand_in("6", row)

# %% [markdown]
# What should a framework do that reduces the same gradients in each step? Keep its buffers: Horovod has a *fusion
# buffer*, in lab 07.
#
# ## Part two · On wires
#
# **Time** {minutes 7–questions}. From here on, each rank has a [**node**](../docs/glossary.md#node) of its own, and
# wires join the nodes. Your two scripts stay as they are.
#
# ## 7 · How long does it take on wires?
#
# Linux can make nodes on one machine, as [**network namespaces**](../docs/glossary.md#network-namespace): each has an
# interface of its own, a cable leads from it to a switch, and no cable carries more than the rate that you ask for.
#
# **Only the wires are emulated.** The nodes share this machine's cores, caches and memory, and there is a single
# switch. Where nodes share a core, a rank that waits sleeps (`MPIR_CVAR_ENABLE_HEAVY_YIELD=1`): MPICH would poll, and
# keep the core from a rank that has something to send. Some machines don't allow such nodes. There, the lab goes on in
# memory, and says what it leaves out.

# %%
no_wires = obstacle()
print(f"No wires here: {no_wires}" if no_wires else "Here, nodes can be joined by wires.")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** A wire of 100 Mbit/s carries 12.5 MB/s in each direction. For a gradient of 4 MB on 4 nodes, how many
# milliseconds does one server take? And your ring? And as many servers as nodes, which send as many bytes as the ring?
#
# </div>

# %%
results.guess(3, "your ring, 4 MB, 4 nodes, wires of 100 Mbit/s", ..., unit="ms")

# %% [markdown]
# Each rank reads how many bytes its node's interface has sent, and how many segments TCP has *retransmitted*: sent
# again, because an answer was missing. `CountingComm` counts the same call, as in section 4.

# %% jupyter={"source_hidden": true}
# %%writefile work/measure_on_wires.py
"""Time all-reduces on wires, with what the interfaces send.

measure_on_wires.py SERVERS RING OUT ROUNDS WAYS SIZE …
"""

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
out, rounds, names = Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5].split(",")
sizes = [int(size) for size in sys.argv[6:]]
ranks = MPI.COMM_WORLD
WAYS = {
    "1 server": lambda ranks, gradient, total: parameter_server(ranks, gradient, total, 1),
    "n servers": lambda ranks, gradient, total: parameter_server(
        ranks, gradient, total, ranks.size
    ),
    "ring": ring_allreduce,
    "MPI_Allreduce": lambda ranks, gradient, total: ranks.Allreduce(gradient, total),
}


def retransmitted():
    """Return how many segments TCP on this node has sent again so far."""
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def run(way, times):
    """Return one call's seconds, bytes that each rank sends, and all segments sent again."""
    ranks.Barrier()
    before, again, spent = traffic().sent, retransmitted(), 0.0
    for _ in range(times):
        ranks.Barrier()  # no rank begins the next call while others are in this one
        start = time.perf_counter()
        WAYS[way](ranks, gradient, total)
        spent += time.perf_counter() - start
    ranks.Barrier()
    sent, again = traffic().sent - before, retransmitted() - again
    return (
        ranks.allreduce(spent / times, op=MPI.MAX),
        ranks.allgather(sent / times),
        ranks.allreduce(again / times),
    )


measured = {"seconds": {}, "sent": {}, "again": {}, "counted": {}}  # by way, then by bytes
for size in sizes:
    gradient, total = np.zeros((2, size // 4), np.float32)
    times = {}
    for way in names:
        CountingComm.reset()
        WAYS[way](CountingComm(ranks), gradient, total)  # opens connections too
        measured["counted"].setdefault(way, {})[size] = ranks.allgather(CountingComm.bytes_sent())
        times[way] = max(1, min(100, int(0.05 / run(way, 1)[0])))  # as many calls as fit into 50 ms
    for _ in range(rounds):
        for way in names:
            spent, sent, again = run(way, times[way])
            measured["seconds"].setdefault(way, {}).setdefault(size, []).append(spent)
            measured["sent"].setdefault(way, {})[size] = sent
            measured["again"].setdefault(way, {}).setdefault(size, []).append(again)
if ranks.rank == 0:
    out.write_text(json.dumps(measured))

# %%
ON_WIRES = ("1 server", "n servers", "ring", "MPI_Allreduce")


def measure_on_wires(n, network, sizes, ways=ON_WIRES, env=None, rounds=WIRE_ROUNDS):
    """Run the script on n nodes; return what it measured, each by way and bytes."""
    out, modules = work / "wires.json", (Path(servers).stem, Path(ring).stem)
    arguments = (*modules, out, rounds, ",".join(ways), *sizes)
    run_ranks(n, "work/measure_on_wires.py", *arguments, threads=1, network=network, env=env)
    return {what: by_way_and_bytes(by) for what, by in json.loads(out.read_text()).items()}


wired = {}  # by rate and nodes
cases = [] if no_wires else list(itertools.product(RATES, NODES))
with load.watch("section 7") as wired_others:
    for place, (rate, n) in enumerate(cases, 1):
        print(f"Run {place} of {len(cases)}: {n} nodes, {rate}. All of them take about a minute.")
        wired[rate, n] = measure_on_wires(n, rate, WIRE_SIZES)


# %%
def in_theory(way, n, rate):
    """Return the seconds that the busiest link carries something, and its rank's bytes."""
    sent = (n - 1 if way == "1 server" else 2 * (n - 1) / n) * GRADIENT
    # A server sends only when it has received everything.
    bits = 8 * sent * (2 if way == "1 server" else 1)
    return bits / RATES[rate], sent


print("4 MB on wires; MB of the busiest rank" if wired else f"Not here: {no_wires}")
if wired:
    print(f"{'':34}{'measured':26}{'theory':>10} | {'on the wire':>11}{'counted':>10}{'theory':>8}")
for (rate, n), got in wired.items():
    for way in ON_WIRES:
        spent, sent, counted = (got[what][way][GRADIENT] for what in ("seconds", "sent", "counted"))
        seconds, n_bytes = in_theory(way, n, rate)
        figures = (
            f"{milliseconds(spent, 0)!s:26}{1e3 * seconds:7,.0f} ms | {max(sent) / 1e6:8.2f} MB"
        )
        figures += f"{max(counted) / 1e6:10.2f}{n_bytes / 1e6:8.2f}"
        print(f"{rate:>10}, {n} nodes, {way:13} {figures}")
    for other in ("1 server", "n servers", "MPI_Allreduce"):
        one = compare(got["seconds"], GRADIENT, other)
        print(f"{'':12}your ring over {other}: {one}, {one.verdict}")
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
            at = np.arange(len(ON_WIRES)) + (place - (len(NODES) - 1) / 2) * 0.4
            rounds = [wired[rate, n]["seconds"][way][GRADIENT] for way in ON_WIRES]
            mean, low, high = 1e3 * np.array([over_rounds(spent) for spent in rounds]).T
            limit = [1e3 * in_theory(way, n, rate)[0] for way in ON_WIRES]
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
        names = ["your ring" if way == "ring" else way for way in ON_WIRES]
        axis.set_xticks(range(len(ON_WIRES)), names, fontsize=11)
        axis.set_title(f"wires of {rate}")
    axes[0, 0].set_ylabel("ms")
    axes[0, -1].legend(fontsize=11)
    figure.suptitle("An all-reduce of 4 MB on nodes with wires, and what the wires allow")
    plots.show(
        figure,
        alt="Points on a logarithmic axis: milliseconds of an all-reduce of 4 MB, with 95% "
        "intervals, and a line for the theory at each. "
        + "; ".join(
            f"{rate}, {n} nodes: "
            + ", ".join(
                f"{way} {1e3 * over_rounds(got['seconds'][way][GRADIENT])[0]:,.0f} (theory "
                f"{1e3 * in_theory(way, n, rate)[0]:,.0f})"
                for way in ON_WIRES
            )
            for (rate, n), got in wired.items()
        )
        + ".",
        keep=results,
        watched=[wired_others],
    )

# %% [markdown]
# Why do the wires carry more than you send? On wires of 100 Mbit/s, a packet has 1,448 bytes of your numbers and 66 of
# *headers*: 52 of IP and TCP, 14 of Ethernet. Short answers come back for what arrives. Together they are some percent,
# and they take time too. (At 1 Gbit/s, Linux passes packets on in bundles of up to 64 KiB, and its counter sees one
# header for each bundle.)
#
# In theory, the ring sends one gradient on 2 nodes, and on any number of nodes less than two. One server's time grows
# with every node. For `MPI_Allreduce`, "theory" is the least that any algorithm has to send.
#
# ### Equal bytes, equal times?
#
# As many servers as nodes send as many bytes as the ring. But all ranks send to a server at the same moment, and their
# messages meet at its wire. If the queue in front of the wire overflows, packets are lost, and TCP sends them again.
# This is [**incast**](../docs/glossary.md#incast). In a ring, one node alone sends to each node. Did it happen here?

# %% jupyter={"source_hidden": true}


def tell_incast(one, again_servers, again_ring):
    """Say what segments sent again explain, beside the ring's speed over n servers'."""
    lost = f"a call of n servers sends {again_servers:,.0f} segments again, "
    lost += f"one of the ring {again_ring:,.0f}"
    more = again_servers > 2 * again_ring + 5
    if not (one.significant and one.value > 1):
        return f"the ring is not seen to be faster; {lost}"
    if more:
        return f"the ring is faster; {lost}: incast is a likely reason"
    return f"the ring is faster, but {lost}: incast as loss doesn't explain it"


for (rate, n), got in wired.items():
    again = [float(np.mean(got["again"][way][GRADIENT])) for way in ("n servers", "ring")]
    one = compare(got["seconds"], GRADIENT, "n servers")
    print(f"{rate:>10}, {n} nodes: {tell_incast(one, *again)}")
if no_wires:
    print(f"Not here: {no_wires}")

# %% [markdown]
# On a large cluster, thousands of ranks would meet at a server. The effect is best known from storage networks
# ([Phanishayee et al. 2008](https://www.usenix.org/events/fast08/tech/phanishayee.html)).
#
# ## 8 · A model with three numbers
#
# Let us describe a machine by three numbers: the latency of a message (s), the bandwidth of a link (bytes/s), and the
# **rate of adding** (bytes/s). This is the [**latency-bandwidth model**](../docs/glossary.md#latency-bandwidth-model),
# with a term for adding. The time of an all-reduce of *S* bytes is then
#
# $$T = \text{steps} \cdot \text{latency} + \text{traffic} \cdot \frac{S}{\text{bandwidth}} + \text{sums} \cdot
# \frac{S}{\text{rate of adding}}$$
#
# Its three factors depend on the algorithm and on the number of ranks, but not on the machine. They count what the
# **busiest rank** does, one thing after the other:
#
# - *steps*: how many messages, one after the other; sending and receiving at the same time is one step,
# - *traffic*: how many times a whole gradient passes through its link; a link carries both directions at once,
# - *sums*: how many whole gradients it adds.
#
# Beside the two algorithms that you wrote, MPI libraries have these two. Both need a number of ranks that is a power of
# two:
#
# - [**Recursive doubling**](../docs/glossary.md#recursive-doubling). In step 0, neighbours exchange their *whole*
#   gradients in pairs, and add. In step 1 the partners are 2 apart, then 4, and so on.
# - [**Recursive halving**](../docs/glossary.md#recursive-halving), and then doubling. In step 0, partners exchange
#   *half* of the gradient: each gives the half that the other one will add up. In step 1 they do so with half of that
#   half and another partner, then with a quarter of it, until each rank has one complete chunk. Then all these steps
#   are done backwards, without adding: the chunks are gathered.
#
# ### Exercise 3 · What does each algorithm cost?
#
# Write `cost(way, n, servers=1)`. It returns the three factors as a tuple `(steps, traffic, sums)`, for `way` "server"
# (with `servers` of them), "ring", "doubling" or "halving", on `n` ranks. The line for servers is written: a server
# receives from all, one after the other, and then sends to all. How is it for the others? On 1 rank everything costs 0.
# (Later cells also ask what "doubling" and "halving" cost on 3 ranks. Between two powers of two, any value between
# theirs will do: let your formulas go on, or take the next power.)


# %%
def cost(way, n, servers=1):
    """Return (steps, traffic, sums) of the busiest rank, for an all-reduce on n ranks."""
    if way == "server":
        return 2 * (n - 1), 2 * (n - 1) / servers, (n - 1) / servers
    ### BEGIN SOLUTION
    if way == "doubling":
        return (math.log2(n),) * 3
    steps = 2 * (n - 1) if way == "ring" else 2 * math.log2(n)
    return steps, 2 * (n - 1) / n, (n - 1) / n
    ### END SOLUTION


# %% tags=["nbval-check-output"]
cost = check(3, cost)


# %% [markdown]
# Now find the three numbers. In memory, an exchange takes one latency, plus its bytes divided by the bandwidth. The
# exchange that adds takes, on top, its bytes divided by the rate of adding. The fit looks for the three numbers that
# come nearest to all points, on a *logarithmic* scale: otherwise the largest message alone would decide.
#
# For wires, the fit takes whole all-reduces: your ring's and the servers', on all numbers of nodes in section 7. The
# rate of adding is that of memory, as the cores are the same. (The fit itself is folded.)


# %%
class Machine(NamedTuple):
    """What the model knows of a machine: latency in seconds, bandwidth and adding in bytes/s."""

    latency: float
    bandwidth: float
    adding: float


def message(n_bytes, machine, added):
    """Return the time of an exchange; `added`: whether what was received is added."""
    return machine.latency + n_bytes * (1 / machine.bandwidth + added / machine.adding)


def seconds_of(way, n, n_bytes, machine, servers=1):
    """Return the time of an all-reduce, by the model."""
    steps, traffic, sums = map(float, cost(way, n, servers))
    work = traffic / machine.bandwidth + sums / machine.adding
    return steps * machine.latency + n_bytes * work


LIBRARY = ("doubling", "halving", "ring")  # among which MPI_Allreduce may choose, for the model


def predict(way, n, n_bytes, machine):
    """Return the time of a way of section 7, by the model."""
    if way == "MPI_Allreduce":
        return min(seconds_of(one, n, n_bytes, machine) for one in LIBRARY)
    name, many = way.split()[-1].rstrip("s"), n if way == "n servers" else 1
    return seconds_of(name, n, n_bytes, machine, many)


# %% jupyter={"source_hidden": true}
def fit(sizes, exchange, exchange_and_add):
    """Return the machine nearest to the exchanges: least squares of their logarithms."""
    sizes = np.asarray(sizes, float)

    def off(logarithms):
        machine = Machine(*np.exp(logarithms))
        plain, adding = (message(sizes, machine, added) for added in (False, True))
        return np.log([plain / exchange, adding / exchange_and_add]).flat

    rate = sizes[-1] / exchange[-1]
    return Machine(*np.exp(least_squares(off, np.log([exchange[0], rate, rate])).x))


def fit_wires(points, adding):
    """Return the machine nearest to all-reduces, seconds by (way, nodes, bytes)."""

    def off(logarithms):
        machine = Machine(*np.exp(logarithms), adding)
        return [math.log(predict(*case, machine) / spent) for case, spent in points.items()]

    return Machine(*np.exp(least_squares(off, np.log([1e-4, 1e8])).x), adding)


# %%
def points(got, n, ways):
    """Return the mean seconds on n nodes, by (way, nodes, bytes)."""
    return {
        (way, n, n_bytes): float(over_rounds(spent)[0])
        for way in ways
        for n_bytes, spent in got["seconds"][way].items()
    }


def show(where, machine, limit=""):
    """Print the model's numbers."""
    adding = f"{machine.adding / 1e9:.1f} GB/s"
    if machine.adding > 1e12:
        adding = "too fast to be seen in this noise"
    print(f"{where}: latency {1e6 * machine.latency:.1f} µs, adding {adding},")
    print(f"    bandwidth {machine.bandwidth / 1e6:,.1f} MB/s in each direction{limit}")


YOURS = ("ring", "1 server", "n servers")
fitted = fit(MEMORY_SIZES, typical("exchange")[0], typical("exchange and add")[0])
show("memory", fitted)
fitted_wires = {}  # by rate
for rate, bits in RATES.items() if wired else ():
    seen = [points(wired[rate, n], n, YOURS).items() for n in NODES]
    fitted_wires[rate] = one = fit_wires(dict(itertools.chain(*seen)), fitted.adding)
    limit = f"; the wires' rate is {bits / 8e6:,.1f}"
    if one.bandwidth > bits / 8:
        limit += (
            "\n    (more cannot last: small messages may pass in a burst, faster than the rate)"
        )
    show(f"wires of {rate}", one, limit)

both = typical("exchange")[0] / typical("ping-pong")[0]
times = f"{both.min():.1f} to {both.max():.1f} times"
print(f"\nIn memory, both ways at once take {times} as long as one way.")

# %% [markdown]
# The model takes it that both directions of a link are independent. Each end of a wire here has a rate of its own, so
# on wires this should hold. Between two processes of one machine, cores copy through memory, and the two directions may
# compete: shared memory is **not a network**.
#
# How good is the model? Let it predict what it has **not seen**: in memory whole all-reduces, on wires 3 nodes, and
# gradients of other sizes.

# %%
unseen = {}  # by rate: seconds by (way, nodes, bytes)
with load.watch("section 8") as unseen_others:
    for rate in fitted_wires:
        print(f"{UNSEEN_NODES} nodes, {rate}: two such runs take about 20 seconds.")
        got = measure_on_wires(UNSEEN_NODES, rate, UNSEEN_SIZES)
        unseen[rate] = points(got, UNSEEN_NODES, ON_WIRES)
in_memory = {
    (way, 2, n_bytes): spent
    for way in ("ring", "1 server", "MPI_Allreduce")
    for n_bytes, spent in zip(MEMORY_SIZES, typical(way)[0])
}

# %% jupyter={"source_hidden": true}


def errors_of(cases, machine):
    """Return the model's relative error in each case."""
    return {case: predict(*case, machine) / spent - 1 for case, spent in cases.items()}


def tell_model(where, errors):
    """Say how good the model is, from its relative errors."""
    off = np.abs(list(errors.values()))
    word = (
        "close" if np.median(off) <= 0.15 else "rough" if np.median(off) <= 0.4 else "of little use"
    )
    way, n, n_bytes = max(errors, key=lambda case: abs(errors[case]))
    worst = f"{errors[way, n, n_bytes]:+.0%} ({way}, {n} ranks, {n_bytes:,} bytes)"
    return f"{where}: off by {np.median(off):.0%} in the median, {word}; worst {worst}"


def tell_library(n, errors):
    """Say whether MPI_Allreduce takes as long as the best algorithm of the model."""
    times = float(np.median([1 / (1 + error) for error in errors.values()]))
    said = f"MPI_Allreduce on {n} nodes takes {times:.1f} times as long as the model's best"
    said += " of ring,\n    doubling and halving"
    return f"{said}: something else is in its time (section 14)" if times > 1.5 else said


memory_errors, wire_errors, library_errors = errors_of(in_memory, fitted), {}, {}
for rate, cases in unseen.items():
    for case, error in errors_of(cases, fitted_wires[rate]).items():
        (library_errors if case[0] == "MPI_Allreduce" else wire_errors)[rate, case] = error
print(tell_model("in memory", memory_errors))
if unseen:
    for rate in unseen:
        own = {case: error for (of_rate, case), error in wire_errors.items() if of_rate == rate}
        print(tell_model(f"wires of {rate}, unseen", own))
    print(tell_library(UNSEEN_NODES, library_errors))
else:
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
    for way in ("ring", "1 server") if place else looks:
        colour, marker = looks[way]
        known = {n_bytes: spent for (of_way, _, n_bytes), spent in cases.items() if of_way == way}
        smooth = np.geomspace(min(known), max(known), 50)
        style = {
            "marker": marker,
            "color": colour,
            "linestyle": "",
            "fillstyle": "full" if line == "-" and way != "MPI_Allreduce" else "none",
            "label": f"{way}, {name}" if place else way,
        }
        axis.loglog([*known], 1e3 * np.array([*known.values()]), **style)
        by_model = [1e3 * predict(way, n, s, machine) for s in smooth]
        dashes = ":" if way == "MPI_Allreduce" else line
        axis.loglog(smooth, by_model, dashes, color=colour, marker="")
for axis, title in zip(axes.flat, ("2 ranks in memory", "3 nodes on wires, not seen by the fit")):
    axis.set_title(title)
for axis in axes.flat:
    axis.set_ylabel("ms")
    axis.set_xlabel("bytes of the gradient")
    axis.legend(fontsize=11)
figure.suptitle("All-reduces: measured (points), and predicted from three numbers (lines)")
plots.show(
    figure,
    alt="Milliseconds of an all-reduce against its bytes, points and the model's lines. In memory "
    f"on 2 ranks: {tell_model('all ways', memory_errors)}. On wires with 3 nodes, which the fit "
    "had not seen: "
    + (
        f"{np.median(np.abs([*wire_errors.values()])):.0%} off in the median."
        if unseen
        else "not measured here."
    ),
    keep=results,
    watched=[measured_others, *([unseen_others] if unseen else [])],
)

# %% [markdown]
# Where do measurements leave the model, and why? A machine has more than three numbers. Likely reasons in memory: MPI
# sends small messages in another way than large ones; it matters whether the data fits into a cache; each step of your
# ring has some microseconds of Python; and before the first step, it copies the gradient into `total`. On wires, the
# first bytes after a pause may pass faster than the rate, and a rank may wait for a core. A model of three numbers can
# be right about the *shape*, and that is all the next section needs.
#
# ## 9 · To 1,024 ranks
#
# You don't have 1,024 ranks, and if you had, they would talk through a network. So here is one, and it is an
# **assumption**: 2 µs and 100 Gbit/s in each direction, one link for each rank. Change it to the network you have, or
# to `fitted_wires["1 Gbit/s"]`.
#
# One more algorithm, for clusters with 8 ranks on each node: a **two-level hierarchy**. First, a ring inside each node
# reduces and scatters, so each rank has an eighth of the gradient. Next, it reduces this eighth in a ring with its
# partners in the *other nodes*. Then the ring inside gathers. Inside a node, the model takes this machine's numbers for
# memory. You measured them with **2** ranks; 8 share the same memory, so `SHARED` gives each of them a quarter of the
# bandwidth. That is cautious: set it to 1 for a node whose memory is never the limit.

# %%
network = Machine(
    latency=2e-6, bandwidth=100e9 / 8, adding=fitted.adding
)  # an assumption: change it
PER_NODE = 8
SHARED = 4  # as many times as many ranks share the memory as when you measured it
node = fitted._replace(bandwidth=fitted.bandwidth / SHARED)


def two_levels(n, n_bytes, node=node):
    """Return the time of a ring in each node, and of a ring between the nodes for each part."""
    inside = seconds_of("ring", min(n, PER_NODE), n_bytes, node)
    return inside + seconds_of("ring", max(1, n // PER_NODE), n_bytes / PER_NODE, network)


WAYS = {
    "1 server": lambda n, n_bytes: seconds_of("server", n, n_bytes, network),
    "4 servers": lambda n, n_bytes: seconds_of("server", n, n_bytes, network, min(4, n)),
    "ring": lambda n, n_bytes: seconds_of("ring", n, n_bytes, network),  # as n servers
    "doubling": lambda n, n_bytes: seconds_of("doubling", n, n_bytes, network),
    "halving": lambda n, n_bytes: seconds_of("halving", n, n_bytes, network),
    "two levels": two_levels,
}
STYLES = {
    "1 server": (plots.VERMILION, "s", "-"),
    "4 servers": (plots.ORANGE, "D", "-"),
    "ring": (plots.BLUE, "o", "-"),
    "doubling": (plots.GREEN, "^", "-"),
    "halving": (plots.BLACK, "P", ":"),
    "two levels": (plots.PURPLE, "v", "-"),
}
world_sizes = [2**power for power in range(1, 11)]
gradients = {"ResNet-50's gradient, 102 MB": 102e6, "one of its small ones, 8 KB": 8e3}

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 2, figsize=(13, 5))
for axis, (name, n_bytes) in zip(axes, gradients.items()):
    for way, (colour, marker, line) in STYLES.items():
        shown = [n for n in world_sizes if way != "two levels" or n > PER_NODE]
        by_model = [1e3 * WAYS[way](n, n_bytes) for n in shown]
        axis.loglog(shown, by_model, color=colour, marker=marker, linestyle=line, label=way, base=2)
    axis.set_yscale("log", base=10)
    axis.set_xticks(world_sizes[::3], world_sizes[::3])
    axis.set(xlabel="ranks", ylabel="ms", title=name)
axes[0].legend(fontsize=11)
figure.suptitle("An all-reduce on up to 1,024 ranks of a network, by the model")
at_most = world_sizes[-1]
plots.show(
    figure,
    alt="Milliseconds of an all-reduce against the number of ranks, by the model. On 1,024 ranks: "
    + "; ".join(
        f"{name}: "
        + ", ".join(f"{way} {1e3 * WAYS[way](at_most, n_bytes):,.2f} ms" for way in WAYS)
        for name, n_bytes in gradients.items()
    )
    + ".",
    keep=results,
)

# %% [markdown]
# Look at the ring on the left. The bytes that a rank sends approach twice the gradient and grow no further: from 16
# ranks on, the number of ranks hardly matters, until the *steps* begin to count. On the right, the steps take nearly
# all the time.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The next picture is a map: for 2 to 1,024 ranks and gradients from 8 bytes to 1 GiB, which algorithm
# takes the least time, by the model? Which one wins in the largest part of the map?
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
    """Return the way that takes the least time; of equal ones, the first of the rivals."""
    able = [way for way in rivals if way != "two levels" or n > PER_NODE]
    return min(able, key=lambda way: WAYS[way](n, n_bytes))


winners = np.array([[winner(n, s) for n in world_sizes] for s in message_sizes])
shares = {way: float(np.mean(winners == way)) for way in rivals}
results.compare_guess(4, max(shares, key=shares.get))

# %% jupyter={"source_hidden": true}
figure, (axis, beside) = plt.subplots(1, 2, figsize=(14, 5.5), sharey=True)
colours = ListedColormap([STYLES[way][0] for way in rivals])
numbers = np.vectorize(rivals.index)(winners)
shape = {"aspect": "auto", "origin": "lower"}
axis.imshow(numbers, cmap=colours, vmin=-0.5, vmax=len(rivals) - 0.5, **shape)
best = [[WAYS[winner(n, s)](n, s) for n in world_sizes] for s in message_sizes]
behind = np.array([[WAYS["ring"](n, s) for n in world_sizes] for s in message_sizes]) / best
beside.imshow(np.log(behind), cmap="Blues", vmin=0, vmax=1.8 * np.log(behind.max()), **shape)
place = {"ha": "center", "va": "center", "fontsize": 11}
for row, column in itertools.product(range(0, len(message_sizes), 3), range(len(world_sizes))):
    axis.text(column, row, winners[row, column][0].upper(), color="white", **place)
    times = behind[row, column]
    beside.text(column, row, f"{times:.{2 if times < 9.995 else 0}f}", **place)
names = {3: "8 B", 10: "1 KiB", 15: "32 KiB", 20: "1 MiB", 25: "32 MiB", 30: "1 GiB"}
axis.set_yticks([power - 3 for power in names], names.values())
axis.set(ylabel="size of the gradient", title="the quickest way")
axis.set_ylim(-1.5, len(message_sizes) + 0.5)  # the letters of the first and the last row are whole
beside.set_title("the ring's time over the quickest way's")
for each in (axis, beside):
    each.set_xticks(range(len(world_sizes)), world_sizes)
    each.set_xlabel("ranks")
    each.grid(False)
present = [way for way in rivals if (winners == way).any()]
legend = [Patch(color=STYLES[way][0], label=f"{way[0].upper()}: {way}") for way in present]
figure.legend(handles=legend, loc="outside right upper")
figure.suptitle("Which way is the quickest, by the model?")
plots.show(
    figure,
    alt="Two maps over ranks and sizes. Left, coloured by the quickest way: "
    + ", ".join(f"{way} wins in {share:.0%}" for way, share in shares.items())
    + f". Right: the ring takes {behind.min():.2f} to {behind.max():.0f} times as long as the "
    f"quickest way, with 1 GiB {behind[-1].min():.2f} to {behind[-1].max():.2f} times.",
    keep=results,
)

# %%
for way in rivals:
    lost = np.array(
        [[WAYS[way](n, s) / WAYS[winner(n, s)](n, s) for n in world_sizes] for s in message_sizes]
    )
    if way == "two levels":
        lost = lost[:, [n > PER_NODE for n in world_sizes]]
    large = lost[[s >= 2**25 for s in message_sizes]]  # from 32 MiB
    print(
        f"{way:11} wins in {shares[way]:4.0%} of the map. With 32 MiB and more it takes "
        f"{large.min():,.2f} to {large.max():,.2f} times as long as the winner."
    )
optimistic = 1e3 * two_levels(at_most, 102e6, fitted)
print(
    f"\ntwo levels, {at_most:,} ranks, 102 MB: {1e3 * two_levels(at_most, 102e6):.1f} ms; "
    f"if 8 ranks found as much bandwidth as 2: {optimistic:.1f} ms"
)

# %% [markdown]
# ### Why do rings survive?
#
# In this model, halving is never slower than the ring: it sends the same bytes in fewer steps. But with large gradients
# the ring is hardly behind, and the libraries for training have rings to this day
# ([NCCL](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo),
# [Gloo](https://github.com/pytorch/gloo/blob/main/docs/algorithms.md)). oneCCL's documentation has as its example
# doubling for small messages, halving for middle ones, and a *ring* for the largest
# ([environment variables](https://www.intel.com/content/www/us/en/docs/oneccl/developer-guide-reference/2021-8/environment-variables.html)).
# So what does the model leave out? Three things:
#
# - **Any number of ranks.** Halving needs a power of two. With 3, one rank sends two whole gradients, as MPICH does it,
#   and four thirds in a ring (section 14).
# - **Contention.** The model gives each rank a link that nobody else uses. In a real network, racks share *uplinks*.
# - **Pipelining.** A ring's chunks can be cut finer, and sent on while the next ones arrive; this model adds up all
#   times, one after the other.
#
# Contention can be computed. Two racks of *n*/2 ranks are joined by one uplink, which is as fast as the link of one
# rank. How much has to pass through the slowest place?


# %%
def through_uplink(way, n):
    """Return an all-reduce's traffic, as `cost`, with an uplink between two racks."""
    if way == "ring":  # in each step, one chunk passes each way: no more than on any other link
        return 2 * (n - 1) / n
    # Halving: in one step all n/2 ranks of a rack exchange with the other rack, at once.
    far = 1 / n if way == "halving, far partner last" else 1 / 2  # of the gradient, for each rank
    near = 1 - 1 / n - far  # all other steps, on the ranks' own links
    return 2 * (near + n / 2 * far)  # twice: reduce-scatter and all-gather


print("Gradients that pass the slowest place:")
for n in (8, 64, 1_024):
    ways = ("ring", "halving, far partner last", "halving, far partner first")
    print(f"{n:5,} ranks: " + ", ".join(f"{way} {through_uplink(way, n):.2f}" for way in ways))

# %% [markdown]
# A ring asks nothing of the uplink that it doesn't ask of every other link. MPICH's halving begins with the nearest
# partner, when halves are exchanged, so that only small chunks go far. This keeps its cost within bounds, but the ring
# is ahead. (Patarasuk and Yuan 2009, [doi 10.1016/j.jpdc.2008.09.002](https://doi.org/10.1016/j.jpdc.2008.09.002),
# prove that a ring needs no more than a tree of links, and measure it.) Section 15 measures two racks.
#
# An MPI library has several algorithms, and chooses by the size of the message and the number of ranks. And frameworks
# combine small messages into large ones before they call MPI: that is *tensor fusion*, in lab 07.
#
# ## 10 · Cut the layer, not the batch
#
# A network that is too large for one rank is split itself:
# [**model parallelism**](../docs/glossary.md#model-parallelism). Take a dense layer, `x @ weights + bias`. As before,
# the batch is spread over the ranks: each has some *rows* of `x`. But now each rank also has only some of the
# **neurons**: some columns of `weights`, and their part of `bias`.
#
# ### Exercise 4 · A dense layer on all ranks
#
# Write `split_dense(ranks, x, weights, bias)`. In the end, each rank has its own rows of the *whole* layer's output, as
# an unsplit layer would compute them. The weights stay where they are. What has to travel, and to whom?
#
# - Each rank needs all rows, to apply its neurons to them: `ranks.Allgather(mine, everybody)`.
# - Then each rank has results for everybody's rows, and needs the results for its own rows from everybody. This
#   exchange is an [**all-to-all**](../docs/glossary.md#all-to-all), `ranks.Alltoall(send, receive)`: it cuts `send`
#   into `n` equal blocks *as they are stored in memory*, and sends block *r* to rank *r*. `receive` gets one block from
#   each rank, in rank order.
#
# Use whichever messages and collectives you like, but let each rank send no more bytes than these two exchanges do: to
# each other rank its rows, and that rank's results. All ranks have equally many rows, and equally many neurons, in
# float32. Use only the communicator `ranks`, and don't change the arrays that you are given. The check runs your script
# as before.

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
# When is it better to cut the layer than the batch? Compare what a rank sends in one training step. If you cut the
# batch, it sends the gradient of all weights, in a ring. If you cut the neurons, it sends rows and results in the
# forward pass, and as much again in the backward pass, where the same exchanges run in reverse.


# %%
def sent_by_data_parallel(n, batch, inputs, neurons):
    """Return the bytes that a rank sends in a step: the gradient, in a ring, for any batch."""
    return 2 * (n - 1) / n * 4 * inputs * neurons


def sent_by_model_parallel(n, batch, inputs, neurons):
    """Return the bytes that a rank sends in a step: rows to all, results to each; and back."""
    rows = batch / n
    return 2 * (n - 1) * 4 * rows * (inputs + neurons / n)


print(f"{'8 ranks':28}{'batch':>6}{'cut the batch':>16}{'cut the neurons':>17}")
for name, inputs, neurons in (
    ("VGG-16, first dense layer", 25_088, 4_096),
    ("ResNet-50, its only one", 2_048, 1_000),
):
    for batch in (64, 4_096):
        by_data, by_model = (
            sent(8, batch, inputs, neurons)
            for sent in (sent_by_data_parallel, sent_by_model_parallel)
        )
        print(f"{name:28}{batch:>6}{by_data / 1e6:>13,.1f} MB{by_model / 1e6:>14,.1f} MB")

# %% [markdown]
# With a wide layer and a small batch, cut the layer. Convolutions have few weights and many activations, so CNNs are
# trained data-parallel.
#
# Language models are too large for that. Their training takes your ring apart: [**FSDP**](../docs/glossary.md#fsdp)
# (PyTorch) and [**ZeRO**](../docs/glossary.md#zero) (DeepSpeed) reduce-scatter the gradients, so that each rank keeps
# and updates only its chunk of the weights, and all-gather the weights layer by layer when they are needed. You write
# both in [lab 11](11_after_the_all_reduce.ipynb), and measure what they cost. [**Tensor
# parallelism**](../docs/glossary.md#tensor-parallelism) cuts layers as exercise 4 does, [**pipeline
# parallelism**](../docs/glossary.md#pipeline-parallelism) gives each rank some layers. On GPUs NCCL does the sending,
# on CPUs Gloo, oneCCL or MPI.
#
# ## 11 · What to send first
#
# In the [**backward pass**](../docs/glossary.md#backward-pass), the gradient of the *last* layer is ready first. Why
# wait for the others? Send it while you compute the next: communication and computation
# [**overlap**](../docs/glossary.md#overlap). On a network, the network card (NIC) does the sending, and needs no core
# for it.
#
# But a card sends one message after the other, and the next [**forward pass**](../docs/glossary.md#forward-pass) begins
# with the *first* layer, whose gradient is ready last. If the card sends what was ready first (FIFO: first in, first
# out), the most urgent message stands at the end of the queue. Intel's MLSL, the Machine Learning Scaling Library, sent
# urgent messages first (Sridharan et al. 2018, [arXiv 1801.08030](https://arxiv.org/abs/1801.08030)). Its successor
# oneCCL has this as
# [`CCL_PRIORITY`](https://www.intel.com/content/www/us/en/docs/oneccl/developer-guide-reference/2021-16/prioritization-of-communication-operations.html).
#
# What is that worth? Simulate it, for VGG-16 in eight parts on 64 ranks. All times are whole microseconds.


# %% tags=["nbval-check-output"]
# Of each part, from the input on: weights in millions; multiplications for an image in 10⁹,
# forward pass alone.
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
forward = [
    round(FORWARD_US * products / sum(p for _, p in VGG.values())) for _, products in VGG.values()
]
backward = [2 * spent for spent in forward]
ready = [
    sum(backward[layer:]) for layer in range(len(VGG))
]  # when each gradient is ready: the last layer's first


def sending(gigabits, n=64):
    """Return how long the card sends each gradient, in µs: a ring, by section 8's model."""
    link = Machine(latency=2e-6, bandwidth=1e9 * gigabits / 8, adding=math.inf)
    return [round(1e6 * seconds_of("ring", n, 4e6 * weights, link)) for weights, _ in VGG.values()]


for what, times in (("ready after", ready), ("sent by 25 Gbit/s in", sending(25))):
    print(f"{what:21}" + ", ".join(f"{name} {spent:,}" for name, spent in zip(VGG, times)) + " µs")

# %% [markdown]
# ### Exercise 5 · What does the card send next?
#
# Write `next_chunk(now, ready, left, urgent_first, chunk)`, which the network card asks whenever it is free. Of layer
# `i`'s gradient, `left[i]` is still to be sent (the time that takes; 0 if all is sent), and it is ready at `ready[i]`.
# Layer 0 is the first of the forward pass. Layers can be ready in any order, but no two at the same time.
#
# - The card chooses among the layers that are ready and not yet sent: the one that was ready first or, with
#   `urgent_first`, the one that the forward pass needs first.
# - It sends `chunk` of it, or what is left of it if that is less. Then it chooses again.
# - Return the layer, and for how long the card sends: `(layer, spent)`; or `None` if there is nothing to send now.


# %%
def next_chunk(now, ready, left, urgent_first, chunk):
    """Return (layer, spent): what the card sends at the time `now`; None if nothing waits."""
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
# Beside the card, the next forward pass computes a layer when the layer before it is through and its own gradient is
# there. (The step of its weights takes no time here.)


# %%
def send(ready, needs, urgent_first, chunk):
    """Return all that the card sends: (layer, start, stop) of each chunk."""
    left, now, sent = list(needs), 0, []
    while any(left):
        found = next_chunk(now, ready, left, urgent_first, chunk)
        if found is None:  # idle until the next gradient is ready
            now = min(when for when in ready if when > now)
            continue
        layer, spent = found
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
alone = sum(backward) + sum(forward)
steps = {
    "computing alone": [alone] * len(LINKS),
    "sending alone": [sum(sending(link)) for link in LINKS],
}
steps["one after the other"] = [alone + spent for spent in steps["sending alone"]]
for order, options in ORDERS.items():
    steps[order] = [next_forward(send(ready, sending(link), *options))[-1][1] for link in LINKS]
print(f"{'ms for a step of VGG-16':32}" + "".join(f"{link:>8} Gbit/s" for link in LINKS))
for what, times in steps.items():
    print(f"{what:32}" + "".join(f"{spent / 1e3:>15,.0f}" for spent in times))

# %% jupyter={"source_hidden": true}
needs = sending(25)
edges = list(
    itertools.accumulate(needs + forward, initial=sum(backward))
)  # of all blocks after the backward pass
in_turn = [(layer % len(VGG), *block) for layer, block in enumerate(itertools.pairwise(edges))]
panels = {
    "one after the other": (in_turn[: len(VGG)], [block for _, *block in in_turn[len(VGG) :]])
}
for order in ("first ready, first sent", "urgent first, in chunks of 1 ms"):
    sent = send(ready, needs, *ORDERS[order])
    panels[order] = (sent, next_forward(sent))
colours = plt.get_cmap("viridis")(np.linspace(0, 1, len(VGG)))
figure, axes = plt.subplots(len(panels), 1, figsize=(13, 7), sharex=True)
for axis, (order, (sent, ahead)) in zip(axes, panels.items()):
    computed = [(layer, ready[layer] - backward[layer], ready[layer]) for layer in range(len(VGG))]
    computed += [(layer, *block) for layer, block in enumerate(ahead)]
    for (row, blocks), (layer, name) in itertools.product(
        enumerate((sent, computed)), enumerate(VGG)
    ):
        own = [
            (start / 1e3, (stop - start) / 1e3)
            for of_layer, start, stop in blocks
            if of_layer == layer
        ]
        axis.broken_barh(own, (row - 0.4, 0.8), color=colours[layer])
        for start, spent in own:
            if spent > 48:
                ink = "white" if layer < len(VGG) / 2 else "black"
                axis.text(
                    start + spent / 2,
                    row,
                    name,
                    ha="center",
                    va="center",
                    color=ink,
                    fontsize=11,
                )
    axis.axvline(ahead[-1][1] / 1e3, color=plots.BLACK, linewidth=1.5, marker="")
    axis.set_yticks([0, 1], ["card", "computing"])
    axis.set_title(f"{order}: {ahead[-1][1] / 1e3:.0f} ms", fontsize=12, loc="left")
axes[-1].set_xlabel("ms since the backward pass began")
legend = [Patch(color=colour, label=name) for colour, name in zip(colours, VGG)]
figure.legend(handles=legend, loc="outside right upper")
figure.suptitle("A step of VGG-16 on 64 ranks with 25 Gbit/s, simulated: computing and sending")
plots.show(
    figure,
    alt="Three timelines, each with a row for computing, the backward pass and then the next "
    "forward pass, and a row for the card. "
    + "; ".join(
        f"{order}: the step ends after {ahead[-1][1] / 1e3:.0f} ms"
        for order, (_, ahead) in panels.items()
    )
    + ". First ready, first sent: the forward pass waits until the card has sent everything. "
    "Urgent first: dense6 is interrupted for each convolution, and the rest of it is sent beside "
    "the forward pass.",
    keep=results,
)

# %% [markdown]
# With 25 Gbit/s, all sending *fits* beside the computing. Whether it is hidden depends on the order. First ready, first
# sent: all wait for dense6, which is ready early, is 411 MB long, and is needed late. Urgent first hides everything, if
# a long message can be interrupted. With 10 Gbit/s, the card is the limit: from there on, only fewer bytes help
# (section 13). With 100 Gbit/s, any order will do.
#
# ## 12 · Who does the sending?
#
# `Iallreduce` only **starts** an all-reduce, and returns a request. When does MPI work on it? In MPICH: **when you call
# MPI**. In between, the system goes on sending what MPI has handed it, and no more. So call MPI again and again while
# you compute: `MPI.Request.Testall(requests)` returns at once, and hands on the next piece. Or let MPI have a thread
# of its own: `MPIR_CVAR_ASYNC_PROGRESS=1` starts one in each rank. This thread polls while it waits, so it keeps a core
# busy, if there is one.
#
# What share of the sending can be hidden on wires? And in memory, where sending is copying? The script has 8 layers.
# Each computes for a while (a matrix product, again and again), and then has a gradient to reduce. The computing is
# made as long as the sending. Five variants take turns:
#
# - **compute**: no sending,
# - **send**: no computing,
# - **after**: compute all layers, then reduce all gradients,
# - **started**: start each layer's `Iallreduce` when its gradient is ready, and wait for all at the end,
# - **tested**: the same, and call `Testall` after each product.

# %%
# %%writefile work/layers.py
"""Layers that compute, and then have a gradient to reduce."""

import numpy as np
from mpi4py import MPI

LAYERS = 8
ranks = MPI.COMM_WORLD
a = np.random.default_rng(0).random((128, 128), np.float32)
product = np.empty_like(a)


def compute(products, requests=()):
    """Compute for as long as one layer takes; in between, let MPI go on with the requests."""
    for _ in range(products):
        np.matmul(a, a, out=product)
        if requests:
            MPI.Request.Testall(requests)


def after(products, gradients, totals):
    for _ in range(LAYERS):
        compute(products)
    for gradient, total in zip(gradients, totals):
        ranks.Allreduce(gradient, total)


def started(products, gradients, totals, test=False):
    requests = []
    for gradient, total in zip(gradients, totals):
        compute(products, requests if test else ())
        requests.append(ranks.Iallreduce(gradient, total))
    MPI.Request.Waitall(requests)


# %% jupyter={"source_hidden": true}
# %%writefile work/overlap.py
"""Hide all-reduces behind computing: work/overlap.py OUT ROUNDS LENGTH PRODUCTS (0: find out)"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from layers import LAYERS, after, ranks, started
from mpi4py import MPI

out, rounds, length, products = Path(sys.argv[1]), *map(int, sys.argv[2:5])
gradients = np.ones((LAYERS, length), np.float32)
totals = np.empty_like(gradients)
WAYS = {
    "compute": lambda: after(products, [], []),
    "send": lambda: after(0, gradients, totals),
    "after": lambda: after(products, gradients, totals),
    "started": lambda: started(products, gradients, totals),
    "tested": lambda: started(products, gradients, totals, test=True),
}


def run(way):
    """Return the seconds of the slowest rank."""
    ranks.Barrier()
    start = time.perf_counter()
    WAYS[way]()
    return ranks.allreduce(time.perf_counter() - start, op=MPI.MAX)


if not products:  # as many as take as long as the sending
    products = 50
    spent = {way: [run(way) for _ in range(3)][-1] for way in ("send", "compute")}
    products = max(1, round(products * spent["send"] / spent["compute"]))
measured = [{way: run(way) for way in WAYS} for _ in range(1 + rounds)][1:]  # the first warms up
seconds = {way: [one[way] for one in measured] for way in WAYS}
if ranks.rank == 0:
    out.write_text(json.dumps({"seconds": seconds, "products": products}))

# %%
PLACES = {"in memory": (None, OVERLAP_LENGTHS[0])}  # the rate of the wires, a gradient's length
if not no_wires:
    PLACES["on wires of 100 Mbit/s"] = "100 Mbit/s", OVERLAP_LENGTHS[1]
SETTINGS = {"no progress thread": 0, "a progress thread": 1}
overlap = {}  # by place and setting, then by way: seconds of each round
print(f"{2 * len(PLACES)} runs, about 20 seconds.")
with load.watch("section 12"):
    for place, (rate, length) in PLACES.items():
        products = 0
        with Testbed(2, rate) if rate else contextlib.nullcontext() as wires:
            for setting, progress in SETTINGS.items():
                out = work / "overlap.json"
                env = {"OMP_NUM_THREADS": 1, "MPIR_CVAR_ASYNC_PROGRESS": progress}
                # Two cores for each rank if there are enough: one is for the progress thread.
                options = {"threads": 2 if cores >= 4 else 1, "env": env, "network": wires}
                arguments = out, OVERLAP_ROUNDS, length, products
                run_ranks(2, "work/overlap.py", *arguments, **options)
                got = json.loads(out.read_text())
                overlap[place, setting], products = got["seconds"], got["products"]

# %% jupyter={"source_hidden": true}


def tell_overlap(seconds, way="started", plain=None):
    """Say how much of the sending is hidden, as far as the rounds can tell.

    `plain` is the time of "after" without a progress thread, in ms: where the thread makes that
    longer, a share of it says nothing.
    """
    compute, after, overlapped = (
        1e3 * over_rounds(seconds[one])[0] for one in ("compute", "after", way)
    )
    speeds = {one: 1 / np.array(spent) for one, spent in seconds.items()}
    one = ratios(speeds, "after")[way]
    said = f"{way} {overlapped:.0f} ms, {one} times as fast as after ({after:.0f} ms)"
    said += f": {one.verdict}"
    if not (one.significant and one.value > 1):
        return f"{said}; no sending is seen to be hidden"
    if after <= compute:
        return f"{said}, but its share can't be told: after is as short as compute"
    if plain and after > 1.1 * plain:
        return f"{said}; but without the thread, after takes {plain:.0f} ms"
    hidden = min(1, (after - overlapped) / (after - compute))
    return f"{said}; {hidden:.0%} of the sending is hidden"


for (place, setting), seconds in overlap.items():
    alone = ", ".join(f"{way} {milliseconds(seconds[way], 0)}" for way in ("compute", "send"))
    plain = 1e3 * over_rounds(overlap[place, "no progress thread"]["after"])[0]
    print(f"{place}, {setting}: {alone}")
    for way in ("started", "tested"):
        print(f"   {tell_overlap(seconds, way, plain)}")
for place in PLACES:
    shortest = {
        (setting, way): over_rounds(overlap[place, setting][way])[0]
        for setting in SETTINGS
        for way in ("after", "started", "tested")
    }
    setting, way = min(shortest, key=shortest.get)
    spent = milliseconds(overlap[place, setting][way], 0)
    print(f"The shortest {place}: {way} with {setting}, {spent}")
if no_wires:
    print(f"On wires: not here. {no_wires}")

# %% [markdown]
# The last lines decide. A setting that hides much of the sending, but slows down computing, has gained nothing.
#
# To hide sending, somebody has to send while you compute. In memory, sending *is* work for the cores: copying and
# adding. A wire works by itself: the core hands it bytes now and then, and computes in between. (Here, the cores also
# do the work of the network card and of the switch.)
#
# ## 13 · Send less
#
# Two kinds of [**gradient compression**](../docs/glossary.md#gradient-compression):
#
# - **Fewer bits**: [**FP16**](../docs/glossary.md#fp16) is 2 bytes a number instead of 4. You know its limits from
#   lab 04. Some go down to 8 bits or even 1.
# - **Fewer numbers**: [**top-k**](../docs/glossary.md#top-k) sends only the *k* numbers that are largest in magnitude,
#   each with its index: 4 bytes for the number, 4 for the index.
#
# The top-k numbers have different positions on each rank, so they can't be added on the way. Each rank sends its pairs
# to *each* of the others, by an all-gather.
#
# ### Exercise 6 · A budget of bytes
#
# Top-k alone throws nearly everything away, in every step: a weight whose gradient is small but steady never moves.
# Write a `top_k(gradient, residual, n, budget)` that loses nothing. A rank calls it once a step:
#
# - On `n` ranks, this rank may send `budget` bytes in all. It sends as many numbers as that allows, of those that are
#   largest in magnitude among all that it *has to send*.
# - Whatever is not sent now is owed to later steps. `residual` is an array as long as the gradient: what the call of
#   the step before returned, all zeros at first. After any number of steps, all that was sent, plus what is still owed,
#   must be the sum of all gradients.
# - Return three arrays: the positions of what is sent, in any order; these numbers, in the same order; what is owed.
#
# On 1 rank, all is sent: to nobody, which costs nothing. A budget may be too small for a single pair, or larger than
# needed. Both arrays given are float32, and so are the numbers sent and the residual; don't change the arrays given.
# (`np.argpartition` finds the largest numbers without sorting them all.)
#
# The function moves into a module, which the ranks import. So it can use `math`, numpy as `np` and what it imports or
# defines itself, but nothing else from this notebook.


# %%
def top_k(gradient, residual, n, budget):
    """Return (indices, values, new residual): what the budget allows, and what is owed."""
    ### BEGIN SOLUTION
    owed = gradient + residual
    pair = 8 * (n - 1)  # bytes that a number and its index cost, to all others
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
# You have written [**error feedback**](../docs/glossary.md#error-feedback) (Lin et al. 2018,
# [arXiv 1712.01887](https://arxiv.org/abs/1712.01887)). What does compression cost in accuracy? Three functions average
# the gradients over the ranks: in float32, in FP16, and by top-k with a budget. (The MPI standard has no 16-bit float,
# so the script registers a reduction of its own.)

# %%
text = "import math\n\nimport numpy as np\n\n\n" + inspect.getsource(top_k)
written = (work / "topk.py").write_text(text)
print(f"work/topk.py: {written} characters, for the next script to import")

# %% jupyter={"source_hidden": true}
# %%writefile work/averages.py
"""Average gradients over all ranks, compressed or not."""

import numpy as np
from mpi4py import MPI
from topk import top_k

ranks = MPI.COMM_WORLD
n = ranks.size

# Each function returns the average, the residual, and the bytes that this rank sends, by theory.


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
    indices, values, left = top_k(gradient, residual, n, budget)
    k = len(indices)
    places, numbers = np.empty((n, k), np.int32), np.empty((n, k), np.float32)  # of all ranks
    ranks.Allgather(np.asarray(indices, np.int32), places)
    ranks.Allgather(np.asarray(values, np.float32), numbers)
    total = np.zeros_like(gradient)
    for of_rank in range(n):
        total[places[of_rank]] += numbers[of_rank]
    if feedback:  # otherwise, the residual stays 0
        residual = np.asarray(left, np.float32)
    return total / n, residual, (n - 1) * 8 * k


# %% [markdown]
# To train, here is a network in numpy alone, with one hidden layer of 64 neurons, for the digits of the other labs.
# Each rank has a share of the digits and computes its gradient. Top-k gets a fiftieth, or a five-hundredth, of the
# bytes that a ring sends with float32: once as you wrote it, and once with the residual thrown away.

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

BATCH, RATE = 64, 0.2  # the batch is that of all ranks together
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
    every = np.stack(ranks.allgather(weights))
    if ranks.rank == 0:
        last = {key: values[-1] for key, values in history[name].items()}
        print(
            f"{name:26} {last['megabytes']:8.2f} MB sent by each rank, "
            f"accuracy {last['accuracy']:.3f}, "
            f"ranks differ by {np.ptp(every, axis=0).max()}"
        )
if ranks.rank == 0:
    out.write_text(json.dumps(history))

# %%
team, out = min(4, max(2, cores)), work / "compress.json"
print("Six runs of training, one after the other: about ten seconds.")
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
    xlabel="MB that each rank has sent; a point is an epoch",
    ylabel="test accuracy (%)",
    title="Accuracy against bytes sent",
)
figure.legend(loc="outside right upper", fontsize=11)
plots.show(
    figure,
    alt=f"Test accuracy against megabytes sent by each of {team} ranks, a point an epoch. After "
    f"{COMPRESSED_EPOCHS} epochs: "
    + "; ".join(
        f"{name}: {100 * r['accuracy'][-1]:.1f}% with {r['megabytes'][-1]:.2f} MB"
        for name, r in history.items()
    )
    + ".",
    keep=results,
)

# %%
full = history["float32"]
for name, run in list(history.items())[1:]:
    fewer = full["megabytes"][-1] / run["megabytes"][-1]
    change = 100 * (run["accuracy"][-1] - full["accuracy"][-1])
    print(f"{name:26} {fewer:6.1f} times fewer bytes than float32, accuracy {change:+.1f} points")

# %% [markdown]
# Look at the two pairs of lines of top-k. Whatever error feedback gains, it sends not a single byte more: it only
# remembers.
#
# The accuracy is that of a single run, on 2,000 held-out digits. Where 95% are right, chance alone moves that by half a
# point (one standard error), and the order in which the digits come moves it too.
#
# ### What does it save in seconds?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Where does top-k gain most over float32: in memory, on wires of 1 Gbit/s, or on wires of 100 Mbit/s?
#
# </div>

# %%
results.guess(5, "where top-k gains most", ..., choices=("in memory", "1 Gbit/s", "100 Mbit/s"))

# %% [markdown]
# The three functions average a gradient of 2 MB in turns. Finding the largest numbers takes time, too.

# %% jupyter={"source_hidden": true}
# %%writefile work/send_less.py
"""Time the averaging of a gradient, compressed or not: work/send_less.py OUT ROUNDS"""

import json
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from averages import float16, float32, ranks, sparse
from mpi4py import MPI

WAYS = {
    "float32": float32,
    "FP16": float16,
    "top-k, 1/50": partial(sparse, share=1 / 50, feedback=True),
}
gradient = np.random.default_rng(ranks.rank).normal(size=500_000).astype(np.float32)
residual = np.zeros_like(gradient)
seconds = {way: [] for way in WAYS}
for _ in range(1 + int(sys.argv[2])):
    for way, average in WAYS.items():
        ranks.Barrier()
        start = time.perf_counter()
        average(gradient, residual)
        seconds[way].append(ranks.allreduce(time.perf_counter() - start, op=MPI.MAX))
if ranks.rank == 0:
    Path(sys.argv[1]).write_text(
        json.dumps({way: spent[1:] for way, spent in seconds.items()})
    )  # the first warms up


# %%
def tell_compression(seconds):
    """Say how long each kind of compression takes, and whether it is faster than none."""
    one = ratios({way: 1 / np.array(spent) for way, spent in seconds.items()}, "float32")
    plain, *rest = (f"{way} {milliseconds(spent)}" for way, spent in seconds.items())
    ways = [*seconds][1:]
    told = [
        f"{text}, {one[way]} times as fast: {one[way].verdict}" for way, text in zip(ways, rest)
    ]
    return "\n   ".join([plain, *told])


send_less = {}
rates = (None, *([] if no_wires else RATES))
print(f"{len(rates)} runs, about 15 seconds.")
with load.watch("section 13") as less_others:
    for rate in rates:
        arguments = work / "less.json", COMPRESSION_ROUNDS
        options = {"threads": 1, "network": rate}
        run_ranks(NODES[-1], "work/send_less.py", *arguments, **options)
        send_less[rate or "in memory"] = json.loads((work / "less.json").read_text())
gains = {}  # top-k's speed over that of float32
for place, seconds in send_less.items():
    print(f"{place}: {tell_compression(seconds)}")
    gains[place] = ratio(*(1 / np.array(seconds[way]) for way in ("top-k, 1/50", "float32")))
if no_wires:
    print(f"On wires: not here. {no_wires}")
else:
    results.compare_guess(5, max(gains, key=lambda place: gains[place].value))
rows = [
    (f"top-k with 1/50 of the bytes, speed over float32's, {NODES[-1]} ranks, {place}", gain)
    for place, gain in list(gains.items())[:2]
]
results.hand_in("13", *((name, "", Measured(*gain, "×"), "", less_others) for name, gain in rows))

# %% [markdown]
# Converting, choosing and adding take the cores' time, whatever the wire. Where sending takes less than that,
# compression costs more than it saves.
#
# Half the bits are not always half the bytes. MPICH adds by a reduction of your own with recursive doubling, as its
# halving admits built-in reductions alone (lab 07 measures it). So on 4 ranks FP16 sends log₂ 4 · ½ = 1.0 gradients,
# where float32 sends 1.5: two thirds. On 16 ranks that would be 2.0 against 1.9. A ring for any reduction, such as
# yours, would send half.
#
# ## 14 · Which algorithm does MPI choose?
#
# MPICH has several algorithms, and chooses. `MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM` chooses in its place: `ring`,
# `recursive_doubling`, `reduce_scatter_allgather` and others. The last one is the halving of section 8. If the number
# of ranks is not a power of two, some ranks first give a partner their whole gradient, and get the whole sum back in
# the end. (MPICH's [tuning parameters](https://github.com/pmodels/mpich/blob/main/doc/mpich/tuning_parameters.md).)
#
# And there is a layer below. MPICH sends by UCX, which sends a short message at once (*eager*), and asks the receiver
# before it sends a long one: [**rendezvous**](../docs/glossary.md#rendezvous). `UCX_RNDV_THRESH=inf` sends every
# message eagerly.
#
# Your ring runs in turns with each setting, so compare its speed over `MPI_Allreduce`'s. And look at the bytes that
# each rank sends with the algorithm chosen for you: which one is it?

# %%
CHOSEN = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"
ALGORITHMS = {
    "default": {},
    "ring": {CHOSEN: "ring"},
    "reduce_scatter_allgather": {CHOSEN: "reduce_scatter_allgather"},
    "recursive_doubling": {CHOSEN: "recursive_doubling"},
    "default, no rendezvous": {"UCX_RNDV_THRESH": "inf"},
}
chosen = {}  # by nodes and setting
if not no_wires:
    print(f"{len(NODES_CHOSEN)} × {len(ALGORITHMS)} runs, three quarters of a minute.")
with load.watch("section 14"):
    for n in () if no_wires else NODES_CHOSEN:
        with Testbed(n, "1 Gbit/s") as wires:
            for setting, env in itertools.islice(ALGORITHMS.items(), CHOICES):
                arguments = ("ring", "MPI_Allreduce"), env, CHOSEN_ROUNDS
                chosen[n, setting] = measure_on_wires(n, wires, [LONG], *arguments)

# %% jupyter={"source_hidden": true}


def tell_setting(usual, changed):
    """Say what a setting does for MPI_Allreduce, from your ring's speed over its speed."""
    if math.isnan(usual.low) or math.isnan(changed.low):
        return "one round only, so nothing can be said"
    if changed.high < usual.low:
        return "with it, MPI_Allreduce gains on your ring"
    if changed.low > usual.high:
        return "with it, MPI_Allreduce falls back"
    return "no change of the ratio is seen beyond chance"


speeds = {}  # your ring's over MPI_Allreduce's
for (n, setting), got in chosen.items():
    speeds[n, setting] = one = compare(got["seconds"], LONG)
    sent = " ".join(f"{n_bytes / 1e6:.1f}" for n_bytes in got["sent"]["MPI_Allreduce"][LONG])
    spent = milliseconds(got["seconds"]["MPI_Allreduce"][LONG], 0)
    print(f"{n} nodes, {setting:24} {spent!s:22} MB sent by each rank: {sent}")
    print(f"   your ring over it: {one}, {one.verdict}.")
    if ALGORITHMS[setting]:
        print(f"   Against the default: {tell_setting(speeds[n, 'default'], one)}.")
if no_wires:
    print(f"Not here: {no_wires}")

# %% [markdown]
# The interface tells algorithms apart that the time alone does not: in recursive doubling on 4 nodes each rank sends
# two whole gradients, in the ring and in halving one and a half. On 3 nodes, look for a rank that sends more than the
# others. Where bytes are equal and times are not, the reason is elsewhere: in what waits for what, or in the layer
# below.
#
# ## 15 · Two racks
#
# So far, all nodes hang on one switch, and each wire is as fast as any other. In a data centre, nodes stand in *racks*.
# Each rack has a switch of its own, and an [**uplink**](../docs/glossary.md#uplink) leads from it to the others. An
# uplink often carries less than the rack's nodes could send at once. Here are four nodes in two racks, and the uplinks
# have a tenth of the wires' rate:
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
#
# Four ways to add up a gradient of *S* bytes:
#
# - **ring by rack**: your ring, 0 → 1 → 2 → 3. One of its messages leaves each rack in each step, so 2(n − 1)/n · S =
#   1.5 S pass an uplink.
# - **ring across**: your ring too, 0 → 2 → 1 → 3. Now every message goes to the other rack: 3 S.
# - **two levels**, as in section 9: reduce and scatter in the rack, so that each node has half of the gradient; add up
#   this half with the node of the other rack that has the same half; gather in the rack. Each of the two pairs sends
#   half of the gradient: S.
# - **MPI_Allreduce**: MPICH knows nothing of the racks.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as fast as the ring by rack are two levels? Don't forget what they send inside the
# racks, on wires that are ten times as fast.
#
# </div>

# %%
results.guess(6, "two levels' speed over the ring's, two racks", ..., unit="×")

# %%
# %%writefile work/racks.py
"""Time all-reduces on two racks: work/racks.py RING OUT ROUNDS BYTES"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
from mpi4py import MPI

ring_allreduce = import_module(sys.argv[1]).ring_allreduce
out, rounds, n_bytes = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
ranks = MPI.COMM_WORLD
in_a_rack = ranks.size // 2
rack, place = divmod(ranks.rank, in_a_rack)
within = ranks.Split(rack)  # the ranks of this rack
partners = ranks.Split(place)  # those with this place in all racks
across = ranks.Split(0, key=2 * place + rack)  # all ranks: neighbours are in different racks


def two_levels(gradient, total):
    """Fill `total` with the sum: inside the racks, then between them, then inside."""
    part = np.empty(len(gradient) // in_a_rack, np.float32)  # is divisible here
    within.Reduce_scatter_block(gradient, part)
    partners.Allreduce(MPI.IN_PLACE, part)
    within.Allgather(part, total)


WAYS = {
    "ring by rack": lambda gradient, total: ring_allreduce(ranks, gradient, total),
    "ring across": lambda gradient, total: ring_allreduce(across, gradient, total),
    "two levels": two_levels,
    "MPI_Allreduce": ranks.Allreduce,
}
gradient = np.full(n_bytes // 4, ranks.rank + 1, np.float32)
total = np.empty_like(gradient)
measured = {way: [] for way in WAYS}
for repeat in range(1 + rounds):  # the first opens connections
    for way, run in WAYS.items():
        ranks.Barrier()
        start = time.perf_counter()
        run(gradient, total)
        spent = ranks.allreduce(time.perf_counter() - start, op=MPI.MAX)
        assert (total == ranks.size * (ranks.size + 1) / 2).all(), way
        measured[way] += [spent] * (repeat > 0)
if ranks.rank == 0:
    out.write_text(json.dumps(measured))

# %%
WIRE, UPLINK, RACK_NODES = 1e9, 1e8, 4  # bit/s, and nodes in two racks
HEADERS = 1514 / 1448  # bytes on the wire for a byte that is sent, with those of Ethernet, IP, TCP
over_uplink = {"ring by rack": 1.5, "ring across": 3.0, "two levels": 1.0}  # gradients
inside = {"two levels": 1.0}  # gradients on a node's own wire, while the uplinks are idle
racks = {}  # seconds of each round, by way
if not no_wires:
    print(f"{RACK_ROUNDS + 1} rounds, about 20 seconds.")
    with (
        load.watch("section 15") as racks_others,
        Testbed(RACK_NODES, WIRE, racks=2, uplink=UPLINK) as wires,
    ):
        arguments = Path(ring).stem, work / "racks.json", RACK_ROUNDS, GRADIENT
        run_ranks(RACK_NODES, "work/racks.py", *arguments, threads=1, network=wires)
        racks = json.loads((work / "racks.json").read_text())

# %%
print(f"4 MB, {'predicted':>18}   measured" if racks else f"Not here: {no_wires}")
for way, spent in racks.items():
    said = "not known"
    if way in over_uplink:
        seconds = over_uplink[way] / UPLINK + inside.get(way, 0) / WIRE
        said = f"{8e3 * HEADERS * GRADIENT * seconds:,.0f} ms"
    print(f"{way:15}{said:>9}   {milliseconds(spent, 0)}")
if racks:
    speeds = {way: 1 / np.array(spent) for way, spent in racks.items()}
    over_ring = ratios(speeds, "ring by rack")
    for way in list(racks)[1:]:
        print(f"{way} over ring by rack: {over_ring[way]}, {over_ring[way].verdict}")
    gain = Measured(*over_ring["two levels"], "×")
    results.compare_guess(6, gain)
    row = "two levels' speed over your ring's, two racks", "", gain, "", racks_others
    results.hand_in("15", row)

# %% [markdown]
# The three predictions are sums of bytes, divided by rates, as in section 7, and no figure was fitted. Where a measured
# time is above its prediction, remember what these nodes share: this machine's cores.
#
# The order of the ranks is part of an algorithm. A launcher that deals out ranks in turns, one to each rack, makes the
# ring across out of the ring by rack: the same script, the same bytes from each node, and twice the bytes on the
# uplinks. Slurm calls these orders `--distribution=block` and `cyclic`
# ([its documentation](https://slurm.schedmd.com/sbatch.html#OPT_distribution)).
#
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. Those that name an optional section are for whoever did it.
# The instructor's notebook has answers.
#
# 1. You can run parameter servers and workers in different ratios. How does the ratio change the time of a step? Is
#    there a best one?
# 2. A ring all-reduce averages gradients and gives the average to every rank, without a server. Who does the server's
#    work?
# 3. Which communication does data parallelism need, and which does model parallelism need? Why does it depend on how
#    the work is split? *(section 10)*
# 4. Horovod replaced TensorFlow's parameter servers with MPI. What did that gain for the author of a script?
# 5. Why does Horovod reach 90% scaling efficiency on 512 GPUs with ResNet-101 and Inception V3, but only 68% with
#    VGG-16? Section 1 has the numbers.
# 6. By the model, halving needs no more bytes than the ring, and fewer steps. You have 24 nodes in three racks. Which
#    one do you try first for a gradient of 100 MB, and what would you measure before you decide? *(section 15 has two
#    racks)*
# 7. A rank sends 1% of a gradient's numbers by top-k. From how many ranks on is that more than a ring sends with
#    float32? *(section 13)*
#
# **Time left?** Write `doubling_allreduce(ranks, gradient, total)`, by recursive doubling, and add it to the `ways` of
# `work/measure.py`. From which size on does your ring win? Does the map of section 9 say so, if you give it this
# machine's numbers?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions, timing, and what goes wrong.
#
# ### Answers
#
# 1. A server receives and sends (n − 1) S/k bytes, so with more servers its part takes less time, up to k = n. A
#    dedicated server is a machine that does not compute: with too few, workers wait for them; with too many, machines
#    are wasted. The best ratio depends on the network, the gradient's size and the time of a step, so it has to be
#    found again for each job. With k = n servers that also work, the question disappears, and the bytes are those of
#    the ring.
# 2. All ranks together. Each adds up one chunk in the reduce-scatter, as a server would, and hands it out in the
#    all-gather. The bottleneck is gone, and so is the server's role.
# 3. Data parallelism: all-reduce, or reduce-scatter and all-gather, of *gradients*, since all ranks have the same
#    weights. Model parallelism: all-to-all (and all-gather) of *activations*, since each rank has different weights,
#    and needs other ranks' results. What isn't shared doesn't travel. Ask: what travels in exercise 4's backward pass?
#    The gradient of the output travels by Alltoall to the neurons' owners, and that of x by reduce-scatter to the rows'
#    owners.
# 4. There are no roles, no addresses of servers and workers in the script, and no ratio to tune. The same script runs
#    on any number of ranks, started by mpirun. And it uses collectives that libraries have been tuning for decades.
# 5. Look at bytes for each second of computing. A P100 trained 142 images/s of Inception V3, 92 of ResNet-152 and 154
#    of VGG-16 (batch 64; [TensorFlow's benchmarks, 2017](https://www.tensorflow.org/performance/benchmarks)). So a step
#    takes 0.45, 0.70 and 0.42 s, and sends 96, 241 and 554 MB: 212, 346 and 1,333 MB for each second. Bytes for each
#    multiplication, in the table of section 1, point the right way, but say too little: VGG-16 has 36 MB for 10⁹,
#    ResNet-101 23 and Inception V3 17, yet the latter two both reach 90%. VGG-16's multiplications are large, regular
#    convolutions that a GPU computes quickly. 90% of its weights are in three dense layers: section 10.
# 6. Neither can be known from the model: 24 is no power of two, so halving has an extra step in which some ranks send
#    whole gradients, and three racks share uplinks. A ring in the order of the racks asks nothing extra of the uplinks.
#    Measure the bytes that each rank sends, the latency between racks (46 steps of a ring count if it is high), and
#    both algorithms at the real size, in turns. Halving with doubling is Rabenseifner's algorithm (Thakur et al. 2005,
#    https://doi.org/10.1177/1094342005051521).
# 7. Ring: 2(n − 1)/n · S. Top-k: (n − 1) · 0.01 · 2 · S, as each number goes with its index. They are equal at n = 100.
#
# **Timing** Part one: sections 1 and 2 take 18 minutes, 3 takes 15, 4 and 5 take 7: 40, and 3 more with section 6. Part
# two: 7 takes 6, 8 takes 12, 9 takes 7, the questions 3. Anyone still in exercise 2 at minute 35 should continue with
# the solution. The seam between the parts is a good place for a break, or for a second day. Of the optional sections,
# 10 and 13 are the longest. Each stands by itself; 11 uses the model of section 8, and 12 to 15 the wires of section 7.
# "Time left?" has no solution here; a hint for it: in each step, `Sendrecv` with the partner `me ^ distance`, then add,
# and double the distance.
#
# **What goes wrong** Exercise 1: whoever puts a blocking `Send` in place of the push passes with short arrays, and
# hangs with the long one, where two servers send to each other; the check stops it after 10 s and quotes the line.
# Exercise 2: `chunks[i] = chunks[i] + room` puts a new array into the list and leaves `total` unchanged; it has to be
# `chunks[i] += room`. Exercise 3: whoever adds up halving's steps gets 1/2 + 1/4 + … + 1/n = 1 − 1/n, the ring's bytes.
# Exercise 4: `blocks.reshape(rows, -1)` without the transposition has the right shape and the wrong rows. Exercise 5:
# `ready[layer] < now` lets the card wait for a gradient that is ready at this very moment. Exercise 6: a budget counts
# what goes to *all* others; and with k = 0, `[-k:]` is everything.
#
# **Guesses** Most people expect their ring to be several times slower at 64 MiB. Where this was written, on 2 cores, it
# was the faster one at that size, and the slower one below a few kilobytes. That is not because of the ring: in each
# call, MPICH 5.0 had 8,193 page faults, which are 32 MiB in pages of 4 KiB, and with memory kept none. Your ring's
# `incoming` is 32 MiB of fresh memory too. But numpy asks Linux for pages of 2 MiB (`NUMPY_MADVISE_HUGEPAGE`), so it
# has few page faults, each of which brings 512 times as much. glibc never keeps a buffer of more than 32 MiB unless it
# is told to: `man mallopt`, M_MMAP_THRESHOLD. With a C library other than glibc the variables do nothing, and the cell
# says so.
#
# **On wires** Where this was written, MPICH 5.0.2 sent what `reduce_scatter_allgather` sends, on 3 nodes and on 4. On 3
# nodes one rank sends two whole gradients, which no ring does. On 4 nodes the bytes are the ring's. Why times differ
# there, we don't know. The nodes share this machine's cores: on a busy machine, latencies are milliseconds, and little
# overlaps.
#
# </div>

# %% [markdown]
# ## Remember
#
# - All-reduce = reduce-scatter + all-gather. A ring does both with two neighbours, in 2(n − 1) steps. Each rank sends
#   less than twice the gradient, however many ranks there are.
# - Small messages are limited by latency, large ones by bandwidth. So few steps win for small gradients, and few bytes
#   for large ones. Halving has both, and rings are used all the same: for any number of ranks, and for shared uplinks.
# - Equal bytes need not be equal times: it matters who sends to whom at the same moment.
# - A program that hangs if messages aren't buffered is unsafe, even while it works.
# - Before you call an algorithm faster, look at what else is in its time.
# - *(Sections 10 to 13)* What isn't shared doesn't travel. Sending is hidden only if somebody else does it. Gradients
#   tolerate a lot of compression, if what is left out is remembered.
#
# What was published, what you measured, and what the machine could do at most:

# %% jupyter={"source_hidden": true}
rows = [
    ("scaling efficiency, ResNet-101 and Inception V3, 512 GPUs", "90%", "", ""),
    ("the same, VGG-16", "68%", "", ""),
]
message_us = Measured(*(1e6 * typical("ping-pong")[:, 0]), "µs", digits=1)
rows.append(("a message of 8 bytes, 2 ranks in memory", "", message_us, "", measured_others))
# On 2 ranks, a ring copies the gradient, exchanges half and adds, and exchanges half.
half_way = [over_rounds(measured[way][largest // 2])[0] for way in ("exchange", "exchange and add")]
at_best = 1e3 * (typical("copy")[0, -1] + sum(half_way))
large = f"{largest / 2**20:.0f} MiB, 2 ranks in memory"
own = milliseconds(measured["ring"][largest])
at_best = f"{at_best:.1f} ms, its copy and its messages alone"
rows.append((f"your ring, {large}", "", own, at_best, measured_others))
own = Measured(*against, "×")
rows.append((f"your ring's speed over MPI_Allreduce's, {large}", "", own, "", measured_others))
rows += results.handed_in("6", ("the same with memory kept, 64 MiB", ""))
for way, name in (
    ("1 server", "one server"),
    ("n servers", "as many servers as nodes"),
    ("ring", "your ring"),
    ("MPI_Allreduce", "MPI_Allreduce"),
):
    if wired:
        spent = milliseconds(wired[slowest, most]["seconds"][way][GRADIENT], 0)
        limit = f"{1e3 * in_theory(way, most, slowest)[0]:,.0f} ms on the wire"
        rows.append((f"{name}, 4 MB, {most} nodes, {slowest}", "", spent, limit, wired_others))
if wired:
    own = Measured(*compare(wired[slowest, most]["seconds"], GRADIENT, "n servers"), "×")
    name = f"your ring's speed over {most} servers', 4 MB, {most} nodes, {slowest}"
    rows.append((name, "", own, "", wired_others))
for where, errors, others in (
    ("in memory", memory_errors, [measured_others]),
    ("on wires, nodes and sizes not seen", wire_errors, [wired_others, unseen_others]),
):
    if errors:
        off = np.abs(list(errors.values()))
        error = Measured(100 * np.median(off), unit="%", digits=0, note=f"{off.max():.0%}")
        rows.append((f"the model's error {where}: median, worst", "", error, "", *others))
if no_wires:
    name = "all-reduces of 4 MB on wires, and the model's error there"
    rows.append((name, "", f"not here: {no_wires}", ""))
topk = f"top-k with 1/50 of the bytes, speed over float32's, {NODES[-1]} ranks"
names = [f"{topk}, {place}" for place in ("in memory", "100 Mbit/s")]
rows += results.handed_in("13", *((name, "") for name in names))
rows += results.handed_in("15", ("two levels' speed over your ring's, two racks", ""))
results.table("how gradients travel", rows)

# %% [markdown]
# Published: [Horovod's documentation, Benchmarks](https://horovod.readthedocs.io/en/stable/benchmarks_include.html).
#
# Where you are on the way from the default to this machine's fastest setting, over all labs:

# %%
ladder.show(results)

# %% [markdown]
# Next: [lab 07](07_horovod_mnist.ipynb) uses all of this, in six steps.
