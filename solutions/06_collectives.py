# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 06 · How gradients travel
#
# **You will** write what all distributed training rests on: a sum of [**gradients**](../docs/glossary.md#gradient) over
# all [**ranks**](../docs/glossary.md#rank). First you use
# [**parameter servers**](../docs/glossary.md#parameter-server), then a [**ring**](../docs/glossary.md#ring). You count
# what they send, measure how long they take, in memory and on wires between nodes, fit a model to the times, and draw
# it up to 1,024 ranks. Then you try three ways to send less, or to hide the sending.
#
# **Time** {minutes}
#
# **Connects to** lab 00, where two ranks first add up their numbers; lab 07, where Horovod does all of this for you;
# and lab 08, where it limits how far training scales.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

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
from matplotlib.patches import Patch
from scipy.optimize import least_squares

from labkit.display import plots
from labkit.display.measured import Measured
from labkit.exercises import open_lab
from labkit.mpi import RankError, run_ranks
from labkit.system import load
from labkit.system.statistics import ratio, ratios
from labkit.testbed import Testbed, obstacle

check, results, machine, work = open_lab("06", globals())
cores = machine.usable_cores

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
DEADLOCK_S = 1 if QUICK else 4  # until it is ended: section 1
COUNTED_RANKS = 2 if QUICK else 4  # section 4
POWERS = (3, 9, 13, 16, 19, 20) if QUICK else (3, 6, 9, 11, 13, 14, 15, 16, 18, 20, 22, 24, 25, 26)
MEMORY_SIZES, MEMORY_ROUNDS = [2**power for power in POWERS], 3 if QUICK else 7  # bytes: section 5, in memory
GRADIENT = 4_000_000  # bytes, as in section 4
WIRE_SIZES = (1_000, GRADIENT) if QUICK else (1_000, 30_000, 300_000, GRADIENT)  # the small ones are for section 6
NODES, RATES = ((2,), {"1 Gbit/s": 1e9}) if QUICK else ((2, 4), {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9})
WIRE_ROUNDS = 2 if QUICK else 3
UNSEEN_NODES, UNSEEN_SIZES = 3, (100_000,) if QUICK else (20_000, 150_000, 1_000_000)  # bytes: section 6
OVERLAP_LENGTHS = (2**16, 2**12) if QUICK else (2**20, 2**16)  # numbers in memory and on wires: section 9
OVERLAP_ROUNDS = 1 if QUICK else 7
COMPRESSED_DIGITS, COMPRESSED_EPOCHS = (500, 2) if QUICK else (8_000, 8)  # section 10
COMPRESSION_ROUNDS = 1 if QUICK else 7
LONG, NODES_CHOSEN = (300_000, (2,)) if QUICK else (10_000_000, (3, 4))  # bytes, and nodes: section 11
CHOICES, CHOSEN_ROUNDS = (2, 2) if QUICK else (None, 7)  # settings of MPICH; None: all of them

# %% [markdown]
# ## 1 · What has to travel?
#
# In [**data parallelism**](../docs/glossary.md#data-parallelism), each rank has a copy of the network and a share of
# the [**batch**](../docs/glossary.md#batch). It computes a gradient: one number for each weight. Before any rank takes
# a step, every rank needs the *sum* of all ranks' gradients. (Divide it by the number of ranks, and you have the mean.)
# An operation that gives every rank the sum is an [**all-reduce**](../docs/glossary.md#all-reduce).
#
# How much is sent in one step? Each weight is a float32, 4 bytes.

# %% tags=["nbval-check-output"]
# Weights in millions: https://keras.io/api/applications. Multiplications for one image, forward pass alone, in units of
# 10⁹: what https://docs.pytorch.org/vision/stable/models.html calls GFLOPS.
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
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which of the four is hardest to spread over many machines? Write it down; the questions at the end
# come back to it.
#
# </div>
#
# ### What MPI offers
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

# Isend only starts to send, and returns a request. Don't change the array until you have waited for the request.
request = ranks.Isend(mine, dest=other, tag=7)  # a tag tells apart messages between the same two ranks
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
# **Guess first.** Everybody makes this mistake once: here both ranks **send first, and then receive**. Does it work?
#
# </div>

# %%
# %%writefile work/deadlock.py
"""Both ranks send first. mpirun -n 2 python work/deadlock.py LENGTH"""

import sys

import numpy as np
from mpi4py import MPI

ranks = MPI.COMM_WORLD
other = 1 - ranks.rank
mine = np.ones(int(sys.argv[1]), np.float32)
theirs = np.empty_like(mine)
print(f"sending {mine.nbytes:,} bytes")
ranks.Send(mine, dest=other)
ranks.Recv(theirs, source=other)
print("received")

# %%
run_ranks(2, "work/deadlock.py", 10, threads=1)
try:
    run_ranks(2, "work/deadlock.py", 1_000_000, threads=1, timeout=DEADLOCK_S)
except RankError as error:
    print(f"\nRankError: {error}")

# %% [markdown]
# MPI copies a short message into a buffer, and `Send` returns. A long one doesn't fit there, so `Send` waits until the
# other rank receives. But the other rank is waiting in its own `Send`. This is a
# [**deadlock**](../docs/glossary.md#deadlock), and it appears only with messages of a realistic size. `run_ranks`
# stopped it after the time limit. `Sendrecv` and `Isend` avoid it.
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
    """Return (start, stop) of each chunk; if the length is not divisible, the first chunks are longer by one."""
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
    """Fill `total` with the sum of all ranks' `gradient`; the first `servers` ranks add up a chunk each."""
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
    axis.imshow(counts, cmap="Blues", vmin=0, vmax=n + 2)
    for rank in range(n):
        for chunk in range(n):
            arrived = ((rank - 1) % n, chunk) in sent
            axis.text(
                chunk,
                rank,
                counts[rank, chunk],
                ha="center",
                va="center",
                fontsize=13,
                fontweight="bold" if arrived else "normal",
                color=plots.VERMILION if arrived else plots.BLACK,
            )
    axis.set_title(name, fontsize=12)
    axis.set_xlabel("chunk")
    axis.set_xticks(range(n))
    axis.set_yticks(range(n))
    axis.grid(False)
axes[0].set_ylabel("rank")
figure.suptitle("Ring all-reduce on 4 ranks: how many ranks' numbers are in each chunk (bold: just received)")
plots.show(
    figure,
    alt="Seven tables of 4 ranks by 4 chunks. At the start all hold 1. After three steps of reduce-scatter, rank r "
    "holds a 4 in chunk r + 1. After three steps of allgather all hold 4. In each step, each rank receives one chunk "
    "from the rank above it, and rank 0 from rank 3.",
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

# %%
# %%writefile work/count.py
"""Count what each rank sends, and compare the sums: mpirun -n 4 python work/count.py SERVERS RING"""

import sys
from importlib import import_module

import numpy as np
from mpi4py import MPI

from labkit.mpi import CountingComm

LENGTH = 1_000_000
parameter_server = import_module(sys.argv[1]).parameter_server
ring_allreduce = import_module(sys.argv[2]).ring_allreduce


def in_theory(n, servers):
    """Return (messages, bytes) that each of n ranks sends; in a ring if there are no servers."""
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
# For each number of ranks, compare the last two ways. With as many servers as ranks, each rank sends as many bytes as
# in the ring. So a *server* isn't slow in itself; the problem is having too few of them. With the ring, nobody talks to
# more than two neighbours, and there is nothing to configure.
#
# ## 5 · How long does it take?
#
# First on two ranks that share this machine's memory, then on nodes with wires between them.
#
# ### In memory
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Your ring is written in Python, `MPI_Allreduce` in C. How many times as long does yours take for 64
# MiB? And for 8 bytes?
#
# </div>
#
# The script measures both, from 8 bytes to 64 MiB, and also the parts they are made of:
#
# - **ping-pong**: a message from rank 0 to rank 1 and back, divided by two,
# - **exchange**: each rank sends and receives at the same time, which is one step of your all-gather; what a rank
#   received, it sends on in the next exchange,
# - **exchange and add**: what a rank received is added to what it sends next, which is one step of your reduce-scatter,
# - **copy**: copying an array within one rank, on all ranks at once.
#
# In each round all of them take turns, so if the machine is busy for a while, that affects them all. The time of a
# round is that of the slowest rank. The script also counts [**page faults**](../docs/glossary.md#page-fault), for
# section 11.

# %%
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


# %%
# %%writefile work/measure.py
"""Time all-reduces and their parts: mpirun -n 2 python work/measure.py SERVERS RING OUT ROUNDS SIZE …"""

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
    """Return the seconds and the page faults of one call of `work`, on the rank that has most of them."""
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
        times[name] = max(1, min(200, int(0.005 / run(way, 1)[0])))  # as many calls as fit into 5 ms
    for _ in range(rounds):
        for name, way in ways.items():
            for what, value in zip(measured, run(way, times[name])):
                value /= 2 if name in ("ping-pong", "exchange") else 1
                measured[what].setdefault(name, {}).setdefault(size, []).append(value)
    if ranks.rank == 0:
        typical = {name: f"{1e6 * np.median(by[size]):,.0f} µs" for name, by in measured["seconds"].items()}
        print(f"{size:>12,} bytes: " + ", ".join(f"{name} {typical[name]}" for name in ("exchange", *list(ways)[-3:])))
if ranks.rank == 0:
    out.write_text(json.dumps(measured))


# %%
def by_way_and_bytes(by_way):
    """Return what JSON made of a dict by way and bytes, with numbers of bytes as its keys again."""
    return {way: {int(n_bytes): value for n_bytes, value in by.items()} for way, by in by_way.items()}


def measure(sizes, env=None):
    """Run the script on 2 ranks; return seconds and page faults of a call: each by way and bytes, of each round."""
    out = work / "allreduce.json"
    modules = Path(servers).stem, Path(ring).stem
    run_ranks(2, "work/measure.py", *modules, out, MEMORY_ROUNDS, *sizes, threads=1, env=env)
    return [by_way_and_bytes(by_way) for by_way in json.loads(out.read_text()).values()]


with load.watch("section 5") as measured_others:
    measured, faults = measure(MEMORY_SIZES)


# %%
def typical(way):
    """Return the seconds for each message size: the median over rounds."""
    return np.array([np.median(measured[way][n_bytes]) for n_bytes in MEMORY_SIZES])


# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(8, 5))
for way in ("MPI_Allreduce", "ring", "1 server"):
    axis.loglog(MEMORY_SIZES, 1e6 * typical(way), label="your ring" if way == "ring" else way)
axis.set(xlabel="bytes of the gradient", ylabel="µs", title="An all-reduce on 2 ranks, in memory")
axis.legend()
plots.show(
    figure,
    alt="Microseconds of an all-reduce on 2 ranks against bytes, both on logarithmic axes: flat for small messages, "
    "then a straight line upwards. "
    + "; ".join(
        f"{way}: {1e6 * typical(way)[0]:,.0f} µs for {MEMORY_SIZES[0]} bytes, "
        f"{1e6 * typical(way)[-1]:,.0f} µs for {MEMORY_SIZES[-1]:,} bytes"
        for way in ("MPI_Allreduce", "ring", "1 server")
    )
    + ".",
)


# %%
def compare(by_way, n_bytes, reference="MPI_Allreduce"):
    """Return your ring's speed over another way's, from the rounds in which both took turns."""
    return ratio(*(1 / np.array(by_way[way][n_bytes]) for way in ("ring", reference)))


apart = np.median([max(spent) / min(spent) for by_size in measured.values() for spent in by_size.values()])
if apart > 2:
    print(f"The rounds of one measurement differ by a factor of {apart:.1f}: look at intervals, not at single values.")
largest = MEMORY_SIZES[-1]
for n_bytes in (MEMORY_SIZES[0], largest):
    against = compare(measured, n_bytes)  # in the end, at the largest size
    print(f"{n_bytes:>11,} bytes: your ring is {against} times as fast as MPI_Allreduce: {against.verdict}")

# %% [markdown]
# Small messages take the **same** time whatever their size: that is [**latency**](../docs/glossary.md#latency), and
# here Python's own time is part of it. For large ones the time grows with the bytes: that is
# [**bandwidth**](../docs/glossary.md#bandwidth), and numpy and mpi4py copy bytes in C. (A ring in Python may even win
# at 64 MiB. Section 11 asks why.)
#
# ### On wires
#
# On a cluster, each [**node**](../docs/glossary.md#node) has memory of its own, and wires join the nodes. Linux can
# make such nodes on one machine, as [**network namespaces**](../docs/glossary.md#network-namespace): each has an
# interface of its own, a cable leads from it to a switch, and no cable carries more than the rate that you ask for.
#
# **Only the wires are emulated.** The nodes share this machine's cores, caches and memory, and there is a single
# switch. Some machines don't allow such nodes. There, the lab goes on in memory, and says what it leaves out.

# %%
no_wires = obstacle()
print(f"No wires here: {no_wires}" if no_wires else "Here, nodes can be joined by wires.")
# MPICH waits by asking again and again. Where nodes share cores, that keeps a core from whoever has something to send:
SLEEP = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": 1, "MPIR_CVAR_POLLS_BEFORE_YIELD": 10}  # so, who waits sleeps for a moment

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** A wire of 100 Mbit/s carries 12.5 MB/s in each direction. For a gradient of 4 MB on 4 nodes, how many
# milliseconds does one server take? And your ring?
#
# </div>
#
# Each rank reads how many bytes its node's interface has sent. `CountingComm` counts the same call, as in section 4.
# The next cell takes about three quarters of a minute.

# %%
# %%writefile work/measure_on_wires.py
"""Time all-reduces on wires, with the interfaces' bytes: measure_on_wires.py SERVERS RING OUT ROUNDS WAYS SIZE …"""

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
out, rounds, names, sizes = Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5].split(","), map(int, sys.argv[6:])
ranks = MPI.COMM_WORLD
WAYS = {
    "1 server": lambda ranks, gradient, total: parameter_server(ranks, gradient, total, 1),
    "n servers": lambda ranks, gradient, total: parameter_server(ranks, gradient, total, ranks.size),
    "ring": ring_allreduce,
    "MPI_Allreduce": lambda ranks, gradient, total: ranks.Allreduce(gradient, total),
}


def run(way, times):
    """Return the seconds of one call, and the bytes that each rank's interface sends in it."""
    ranks.Barrier()
    before, spent = traffic().sent, 0.0
    for _ in range(times):
        ranks.Barrier()  # no rank begins the next call while others are in this one
        start = time.perf_counter()
        WAYS[way](ranks, gradient, total)
        spent += time.perf_counter() - start
    ranks.Barrier()
    sent = traffic().sent - before
    return ranks.allreduce(spent / times, op=MPI.MAX), ranks.allgather(sent / times)


measured = {"seconds": {}, "sent": {}, "counted": {}}  # by way, then by bytes
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
            spent, sent = run(way, times[way])
            measured["seconds"].setdefault(way, {}).setdefault(size, []).append(spent)
            measured["sent"].setdefault(way, {})[size] = sent
if ranks.rank == 0:
    out.write_text(json.dumps(measured))

# %%
ON_WIRES = ("1 server", "n servers", "ring", "MPI_Allreduce")


def measure_on_wires(n, network, sizes, ways=ON_WIRES, env=SLEEP, rounds=WIRE_ROUNDS):
    """Run the script on n nodes; return seconds of each round, bytes sent and bytes counted: each by way and bytes."""
    out, modules = work / "wires.json", (Path(servers).stem, Path(ring).stem)
    arguments = (*modules, out, rounds, ",".join(ways), *sizes)
    run_ranks(n, "work/measure_on_wires.py", *arguments, threads=1, network=network, env=env)
    return {what: by_way_and_bytes(by_way) for what, by_way in json.loads(out.read_text()).items()}


wired = {}  # by rate and nodes
with load.watch("section 5, wires") as wired_others:
    for rate, n in itertools.product([] if no_wires else RATES, NODES):
        wired[rate, n] = measure_on_wires(n, rate, WIRE_SIZES)


# %%
def in_theory(way, n, rate):
    """Return the seconds for which the busiest link has something to carry, and the bytes that its rank sends."""
    sent = (n - 1 if way == "1 server" else 2 * (n - 1) / n) * GRADIENT
    bits = 8 * sent * (2 if way == "1 server" else 1)  # a server sends only when it has received everything
    return bits / RATES[rate], sent


print("ms and MB of the busiest rank: measured on the wire, counted, in theory" if wired else f"Not here: {no_wires}")
for (rate, n), got in wired.items():
    for way in ON_WIRES:
        spent, sent, counted = (got[what][way][GRADIENT] for what in ("seconds", "sent", "counted"))
        seconds, n_bytes = in_theory(way, n, rate)
        print(
            f"{rate:>10}, {n} nodes, {way:13} {1e3 * np.median(spent):7,.0f} ms (theory {1e3 * seconds:5,.0f}) | "
            f"{max(sent) / 1e6:6.2f} MB, counted {max(counted) / 1e6:6.2f}, theory {n_bytes / 1e6:6.2f}: "
            f"{max(sent) / n_bytes - 1:+.1%}"
        )
    for other in ("1 server", "MPI_Allreduce"):
        one = compare(got["seconds"], GRADIENT, other)
        print(f"{'':21} your ring is {one} times as fast as {other}: {one.verdict}")

# %% jupyter={"source_hidden": true}
if wired:
    figure, axes = plt.subplots(1, len(RATES), figsize=(6.5 * len(RATES), 5), sharey=True, squeeze=False)
    shades = dict(zip(NODES, (plots.SKY, plots.BLUE)))
    for axis, rate in zip(axes.flat, RATES):
        for place, n in enumerate(NODES):
            at = np.arange(len(ON_WIRES)) + (place - (len(NODES) - 1) / 2) * 0.4
            spent = [1e3 * np.median(wired[rate, n]["seconds"][way][GRADIENT]) for way in ON_WIRES]
            limit = [1e3 * in_theory(way, n, rate)[0] for way in ON_WIRES]
            bars = axis.bar(at, spent, 0.38, color=shades[n], label=f"{n} nodes, measured")
            axis.bar_label(bars, [f"{value:,.0f}" for value in spent], fontsize=11, padding=2)
            axis.hlines(limit, at - 0.19, at + 0.19, color=plots.VERMILION, linewidth=3, label="theory" * (not place))
        axis.set_yscale("log")
        axis.set_xticks(range(len(ON_WIRES)), ["your ring" if way == "ring" else way for way in ON_WIRES])
        axis.set_title(f"wires of {rate}")
        axis.grid(False, axis="x")
    axes[0, 0].set_ylabel("ms")
    axes[0, -1].legend(fontsize=11)
    figure.suptitle("An all-reduce of 4 MB on nodes with wires between them, and what the wires allow")
    plots.show(
        figure,
        alt="Bars on a logarithmic axis: milliseconds of an all-reduce of 4 MB, with a line for the theory in each. "
        + "; ".join(
            f"{rate}, {n} nodes: "
            + ", ".join(
                f"{way} {1e3 * np.median(got['seconds'][way][GRADIENT]):,.0f} (theory "
                f"{1e3 * in_theory(way, n, rate)[0]:,.0f})"
                for way in ON_WIRES
            )
            for (rate, n), got in wired.items()
        )
        + ".",
        keep=results,
    )

# %% [markdown]
# Why do the wires carry more than you send? On wires of 100 Mbit/s, a packet has 1,448 bytes of your numbers and 66 of
# *headers*: 52 of IP and TCP, 14 of Ethernet. Short answers come back for what arrives. Together they are some percent,
# and they take time too. (On fast wires, Linux hands on several packets as one, up to 64 KiB, and its counter sees the
# headers once.)
#
# In theory, the ring sends one gradient on 2 nodes, and on any number of nodes less than two. One server's time grows
# with every node. For `MPI_Allreduce`, "theory" is the least that any algorithm has to send. Section 11 asks what it
# takes where it takes longer.
#
# ## 6 · A model with three numbers
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
# The model can also describe a third algorithm, beside the two that you wrote:
# [**recursive doubling**](../docs/glossary.md#recursive-doubling). In step 0, neighbours exchange their whole gradients
# in pairs, and add. In step 1 the partners are 2 apart, then 4, and so on. It needs few steps, and a number of ranks
# that is a power of two.
#
# ### Exercise 3 · What does each algorithm cost?
#
# Write `cost(way, n, servers=1)`. It returns the three factors as a tuple `(steps, traffic, sums)`, for `way` "server"
# (with `servers` of them), "ring" or "doubling", on `n` ranks. The line for servers is written: a server receives from
# all, one after the other, and then sends to all. How is it for the other two? On 1 rank everything costs 0. (The later
# cells also ask what "doubling" costs on 3 ranks. Let its formula go on between the powers of two.)


# %%
def cost(way, n, servers=1):
    """Return (steps, traffic, sums) of the busiest rank, for an all-reduce on n ranks."""
    if way == "server":
        return 2 * (n - 1), 2 * (n - 1) / servers, (n - 1) / servers
    ### BEGIN SOLUTION
    if way == "ring":
        return 2 * (n - 1), 2 * (n - 1) / n, (n - 1) / n
    return (math.log2(n),) * 3
    ### END SOLUTION


# %% tags=["nbval-check-output"]
cost = check(3, cost)


# %% [markdown]
# Now find the three numbers. In memory, an exchange takes one latency, plus its bytes divided by the bandwidth. The
# exchange that adds takes, on top, its bytes divided by the rate of adding. The fit looks for the three numbers that
# come nearest to all points, on a *logarithmic* scale: otherwise the largest message alone would decide.
#
# For wires, the fit takes whole all-reduces: your ring's and the servers', on all numbers of nodes in section 5. The
# rate of adding is that of memory, as the cores are the same.


# %%
class Machine(NamedTuple):
    """What the model knows of a machine: latency in seconds, bandwidth and adding in bytes/s."""

    latency: float
    bandwidth: float
    adding: float


def message(n_bytes, machine, added):
    """Return the time of an exchange, by the model; `added` says whether what was received is added."""
    return machine.latency + n_bytes * (1 / machine.bandwidth + added / machine.adding)


def fit(sizes, exchange, exchange_and_add):
    """Return the machine whose exchanges are nearest to those measured: least squares of their logarithms."""
    sizes = np.asarray(sizes, float)

    def off(logarithms):
        machine = Machine(*np.exp(logarithms))
        return np.log(
            [message(sizes, machine, False) / exchange, message(sizes, machine, True) / exchange_and_add]
        ).flat

    rate = sizes[-1] / exchange[-1]
    return Machine(*np.exp(least_squares(off, np.log([exchange[0], rate, rate])).x))


def seconds_of(way, n, n_bytes, machine, servers=1):
    """Return the time of an all-reduce, by the model."""
    steps, traffic, sums = map(float, cost(way, n, servers))
    return steps * machine.latency + n_bytes * (traffic / machine.bandwidth + sums / machine.adding)


def predict(way, n, n_bytes, machine):
    """Return the same for the ways of section 5; of doubling and ring, a library may choose the quicker."""
    if way == "MPI_Allreduce":
        return min(seconds_of(one, n, n_bytes, machine) for one in ("doubling", "ring"))
    return seconds_of(way.split()[-1].rstrip("s"), n, n_bytes, machine, servers=n if way == "n servers" else 1)


# %%
def fit_wires(points, adding):
    """Return the machine whose all-reduces are nearest to those measured, seconds by (way, nodes, bytes)."""

    def off(logarithms):
        machine = Machine(*np.exp(logarithms), adding)
        return [math.log(predict(*case, machine) / spent) for case, spent in points.items()]

    return Machine(*np.exp(least_squares(off, np.log([1e-4, 1e8])).x), adding)


def points(got, n, ways):
    """Return the seconds of the fastest round on n nodes, by (way, nodes, bytes): other work only adds to them."""
    return {(way, n, n_bytes): min(spent) for way in ways for n_bytes, spent in got["seconds"][way].items()}


def show(where, machine):
    """Print the model's numbers."""
    adding = f"{machine.adding / 1e9:.1f} GB/s" if machine.adding < 1e12 else "too fast to be seen in this noise"
    print(
        f"{where}: latency {1e6 * machine.latency:.1f} µs, bandwidth {machine.bandwidth / 1e6:,.1f} MB/s in each "
        f"direction, adding {adding}"
    )


YOURS = ("ring", "1 server", "n servers")
fitted = fit(MEMORY_SIZES, typical("exchange"), typical("exchange and add"))
show("memory", fitted)
fitted_wires = {}  # by rate
for rate in RATES if wired else ():
    seen = {case: spent for n in NODES for case, spent in points(wired[rate, n], n, YOURS).items()}
    fitted_wires[rate] = fit_wires(seen, fitted.adding)
    show(f"wires of {rate}", fitted_wires[rate])

both = typical("exchange") / typical("ping-pong")
print(f"\nIn memory, sending both ways at once takes {both.min():.1f} to {both.max():.1f} times as long as one way.")

# %% [markdown]
# On a wire, sending both ways at once takes as long as sending one way. Between two processes of one machine, cores
# copy through memory, and the two directions may compete: shared memory is **not a network**.
#
# How good is the model? Let it predict what it has **not seen**: in memory whole all-reduces, on wires 3 nodes, and
# gradients of other sizes. That takes about 20 seconds.

# %%
unseen = {}  # by rate: seconds by (way, nodes, bytes)
with load.watch("section 6, wires") as unseen_others:
    for rate in fitted_wires:
        unseen[rate] = points(measure_on_wires(UNSEEN_NODES, rate, UNSEEN_SIZES), UNSEEN_NODES, ON_WIRES)
in_memory = {
    (way, 2, n_bytes): spent
    for way in ("ring", "1 server", "MPI_Allreduce")
    for n_bytes, spent in zip(MEMORY_SIZES, typical(way))
}


def errors_of(cases, machine):
    """Return the model's relative error in each case."""
    return {case: predict(*case, machine) / spent - 1 for case, spent in cases.items()}


def tell_model(where, errors):
    """Say how good the model is, from its relative errors."""
    off = np.abs(list(errors.values()))
    word = "close" if np.median(off) <= 0.15 else "rough" if np.median(off) <= 0.4 else "of little use"
    way, n, n_bytes = max(errors, key=lambda case: abs(errors[case]))
    return (
        f"{where}: off by {np.median(off):.0%} in the median, {word}; worst {errors[way, n, n_bytes]:+.0%} "
        f"({way}, {n} ranks, {n_bytes:,} bytes)"
    )


def tell_library(n, errors):
    """Say whether MPI_Allreduce takes what the model says of the better of ring and doubling."""
    times = float(np.median([1 / (1 + error) for error in errors.values()]))
    said = f"MPI_Allreduce on {n} nodes takes {times:.1f} times as long as the better of ring and doubling would"
    return f"{said}: MPI must be doing something else there" if times > 1.5 else f"{said}, by the model"


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
figure, axes = plt.subplots(1, 1 + bool(unseen), figsize=(6.5 * (1 + bool(unseen)), 5), squeeze=False)
looks = {"ring": (plots.BLUE, "o"), "1 server": (plots.GREEN, "^"), "MPI_Allreduce": (plots.BLACK, "D")}
panels = [(in_memory, fitted, 2, "-", "memory")]
panels += [(unseen[rate], fitted_wires[rate], UNSEEN_NODES, line, rate) for rate, line in zip(unseen, ("-", "--"))]
for place, (cases, machine, n, line, name) in enumerate(panels):
    axis = axes[0, min(place, 1)]
    for way in ("ring", "1 server") if place else looks:
        colour, marker = looks[way]
        known = {n_bytes: spent for (of_way, _, n_bytes), spent in cases.items() if of_way == way}
        smooth = np.geomspace(min(known), max(known), 50)
        label = f"{way}, {name}" if place else way
        fill = "none" if line == "--" else "full"
        axis.loglog(
            [*known],
            1e3 * np.array([*known.values()]),
            marker=marker,
            color=colour,
            linestyle="",
            fillstyle=fill,
            label=label,
        )
        axis.loglog(smooth, [1e3 * predict(way, n, s, machine) for s in smooth], line, color=colour, marker="")
for axis, title in zip(axes.flat, ("2 ranks in memory", "3 nodes on wires, not seen by the fit")):
    axis.set_title(title)
axes[0, 0].set_ylabel("ms")
for axis in axes.flat:
    axis.set_xlabel("bytes of the gradient")
    axis.legend(fontsize=11)
figure.suptitle("All-reduces: measured (points), and predicted from three numbers (lines)")
plots.show(
    figure,
    alt="Milliseconds of an all-reduce against its bytes, points and the model's lines. In memory on 2 ranks: "
    f"{tell_model('all ways', memory_errors)}. On wires with 3 nodes, which the fit had not seen: "
    + (f"{np.median(np.abs([*wire_errors.values()])):.0%} off in the median." if unseen else "not measured here."),
    keep=results,
)

# %% [markdown]
# Where do points leave their line? A machine has more than three numbers. MPI sends small messages in another way than
# large ones. In memory, it matters whether the data fits into a cache, and into which core's; in each step of your
# ring, Python takes some microseconds that no message needs; and before the first step, your ring copies the whole
# gradient into `total`. For long messages on slow wires, all of that hardly counts. There, the first bytes after a
# pause may pass faster than the rate, and a rank may wait for a core. A model of three numbers can be right about the
# *shape*, and that is all the next section needs.
#
# ## 7 · To 1,024 ranks
#
# You don't have 1,024 ranks, and if you had, they would talk through a network. So here is one, and it is an
# **assumption**: 2 µs and 100 Gbit/s in each direction, one link for each rank. Change it to the network you have, or
# to `fitted_wires["1 Gbit/s"]`.
#
# One more algorithm, for clusters with 8 ranks on each node: a **two-level hierarchy**.
# First, a ring inside each node reduces and scatters, so each rank has an eighth of the gradient. Next, it reduces this
# eighth in a ring with its partners in the *other nodes*. Then the ring inside gathers. In the model, that is a ring of
# 8 with this machine's numbers for the whole gradient, and a ring of n/8 with the network's numbers for an eighth.

# %%
network = Machine(latency=2e-6, bandwidth=100e9 / 8, adding=fitted.adding)  # an assumption: change it
PER_NODE = 8


def two_levels(n, n_bytes):
    """Return the time of a ring in each node, and of a ring between the nodes for each part."""
    inside = seconds_of("ring", min(n, PER_NODE), n_bytes, fitted)
    return inside + seconds_of("ring", max(1, n // PER_NODE), n_bytes / PER_NODE, network)


WAYS = {
    "1 server": lambda n, n_bytes: seconds_of("server", n, n_bytes, network),
    "4 servers": lambda n, n_bytes: seconds_of("server", n, n_bytes, network, min(4, n)),
    "n servers": lambda n, n_bytes: seconds_of("server", n, n_bytes, network, n),
    "ring": lambda n, n_bytes: seconds_of("ring", n, n_bytes, network),
    "doubling": lambda n, n_bytes: seconds_of("doubling", n, n_bytes, network),
    "two levels": two_levels,
}
STYLES = {
    "1 server": (plots.VERMILION, "s", "-"),
    "4 servers": (plots.ORANGE, "D", "-"),
    "ring": (plots.BLUE, "o", "-"),
    "n servers": (plots.BLACK, "", ":"),
    "doubling": (plots.GREEN, "^", "-"),
    "two levels": (plots.PURPLE, "v", "-"),
}
world_sizes = [2**power for power in range(1, 11)]
gradients = {"ResNet-50's gradient, 102 MB": 102e6, "one of its small ones, 8 KB": 8e3}

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 2, figsize=(13, 5))
for axis, (name, n_bytes) in zip(axes, gradients.items()):
    for way, (colour, marker, line) in STYLES.items():
        shown = [n for n in world_sizes if way != "two levels" or n > PER_NODE]
        milliseconds = [1e3 * WAYS[way](n, n_bytes) for n in shown]
        axis.loglog(shown, milliseconds, color=colour, marker=marker, linestyle=line, label=way, base=2)
    axis.set_yscale("log", base=10)
    axis.set_xticks(world_sizes[::3], world_sizes[::3])
    axis.set(xlabel="ranks", title=name)
axes[0].set_ylabel("ms")
axes[0].legend(fontsize=11)
figure.suptitle("An all-reduce on up to 1,024 ranks of a network, by the model")
at_most = world_sizes[-1]
plots.show(
    figure,
    alt="Milliseconds of an all-reduce against the number of ranks, by the model. On 1,024 ranks: "
    + "; ".join(
        f"{name}: " + ", ".join(f"{way} {1e3 * WAYS[way](at_most, n_bytes):,.2f} ms" for way in WAYS)
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
# So which algorithm wins where?

# %%
message_sizes = [2**power for power in range(3, 31)]
rivals = ["ring", "doubling", "two levels", "4 servers", "1 server"]  # n servers cost what the ring costs
winners = np.array(
    [
        [
            min(rivals, key=lambda way: math.inf if way == "two levels" and n <= PER_NODE else WAYS[way](n, s))
            for n in world_sizes
        ]
        for s in message_sizes
    ]
)
shares = {way: float(np.mean(winners == way)) for way in rivals}

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(9, 5.5))
colours = ListedColormap([STYLES[way][0] for way in rivals])
numbers = np.vectorize(rivals.index)(winners)
axis.imshow(numbers, cmap=colours, vmin=-0.5, vmax=len(rivals) - 0.5, aspect="auto", origin="lower")
for row in range(0, len(message_sizes), 3):
    for column in range(len(world_sizes)):
        axis.text(column, row, winners[row, column][0].upper(), ha="center", va="center", color="white", fontsize=11)
axis.set_xticks(range(len(world_sizes)), world_sizes)
names = {3: "8 B", 10: "1 KiB", 15: "32 KiB", 20: "1 MiB", 25: "32 MiB", 30: "1 GiB"}
axis.set_yticks([power - 3 for power in names], names.values())
axis.set(xlabel="ranks", ylabel="size of the gradient", title="Which way is the quickest, by the model?")
axis.grid(False)
present = [way for way in rivals if (winners == way).any()]
legend = [Patch(color=STYLES[way][0], label=f"{way[0].upper()}: {way}") for way in present]
figure.legend(handles=legend, loc="outside right upper")
plots.show(
    figure,
    alt="A map over ranks and sizes, coloured by the quickest way. "
    + ", ".join(f"{way} wins in {share:.0%} of it" for way, share in shares.items())
    + ".",
    keep=results,
)

# %%
for way in rivals:
    won = [(n, s) for s, row in zip(message_sizes, winners) for n, winner in zip(world_sizes, row) if winner == way]
    if won:
        least, most = min(s for _, s in won), max(s for _, s in won)
        print(f"{way:11} wins in {shares[way]:4.0%} of the map, with gradients from {least:,} to {most:,} bytes")
    else:
        print(f"{way:11} wins nowhere")

# %% [markdown]
# An MPI library has several algorithms and chooses one by the size of the message, as this map does. And frameworks
# combine small messages into large ones before they call MPI: that is *tensor fusion*, in lab 07.
#
# ## 8 · Cut the layer, not the batch
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

    x is (rows, inputs), this rank's rows of the batch. weights is (inputs, own neurons), bias (own neurons,).
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
    """Return the bytes that a rank sends in a step: the gradient, in a ring. They don't depend on the batch."""
    return 2 * (n - 1) / n * 4 * inputs * neurons


def sent_by_model_parallel(n, batch, inputs, neurons):
    """Return the bytes that a rank sends in a step: rows to all, results to each; the reverse for gradients."""
    rows = batch / n
    return 2 * (n - 1) * 4 * rows * (inputs + neurons / n)


print(f"{'8 ranks':28}{'batch':>6}{'cut the batch':>16}{'cut the neurons':>17}")
for name, inputs, neurons in (("VGG-16, first dense layer", 25_088, 4_096), ("ResNet-50, its only one", 2_048, 1_000)):
    for batch in (64, 4_096):
        by_data, by_model = (
            sent(8, batch, inputs, neurons) for sent in (sent_by_data_parallel, sent_by_model_parallel)
        )
        print(f"{name:28}{batch:>6}{by_data / 1e6:>13,.1f} MB{by_model / 1e6:>14,.1f} MB")

# %% [markdown]
# Compare the bytes of the *weights* with those of the *activations*: with a wide layer and a small batch, cut the
# layer. Convolutions have few weights and many activations, and so everybody cuts the batch.
#
# ## 9 · Send while you compute
#
# In the [**backward pass**](../docs/glossary.md#backward-pass), the gradient of the *last* layer is ready first. Why
# wait for the others? Send it while you compute the next: communication and computation
# [**overlap**](../docs/glossary.md#overlap). On a network, the card does the sending, and needs no core for it.
#
# But a card sends one message after the other, and the next [**forward pass**](../docs/glossary.md#forward-pass) begins
# with the *first* layer, whose gradient is ready last. If the card sends what was ready first (FIFO: first in, first
# out), the most urgent message stands at the end of the queue. Intel's MLSL, the Machine Learning Scaling Library, put
# messages that matter first, first (Sridharan et al. 2018, [arXiv 1801.08030](https://arxiv.org/abs/1801.08030)).
# Its successor oneCCL has this as
# [`CCL_PRIORITY`](https://oneapi-src.github.io/oneCCL/advanced-configuration/operation-prioritization.html).
#
# What is that worth? Simulate it, for VGG-16 in eight parts on 64 ranks. All times are whole microseconds.


# %% tags=["nbval-check-output"]
# Of each part, from the input on: weights in millions; multiplications for an image in 10⁹, forward pass alone.
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
# A P100 trained 154 images/s, 64 at a time: https://www.tensorflow.org/performance/benchmarks, 2017. Two thirds of a
# step's multiplications are the backward pass.
FORWARD_US = 1e6 * 64 / 154 / 3
forward = [round(FORWARD_US * products / sum(p for _, p in VGG.values())) for _, products in VGG.values()]
backward = [2 * spent for spent in forward]
ready = [sum(backward[layer:]) for layer in range(len(VGG))]  # when each gradient is ready: the last layer's first


def sending(gigabits, n=64):
    """Return for how long the card is busy with each gradient, in µs: a ring of n ranks, by the model of section 6."""
    link = Machine(latency=2e-6, bandwidth=1e9 * gigabits / 8, adding=math.inf)
    return [round(1e6 * seconds_of("ring", n, 4e6 * weights, link)) for weights, _ in VGG.values()]


print("gradient ready after:", ", ".join(f"{name} {when / 1e3:.0f} ms" for name, when in zip(VGG, ready)))
print("sent by 25 Gbit/s in:", ", ".join(f"{name} {spent / 1e3:.0f} ms" for name, spent in zip(VGG, sending(25))))

# %% [markdown]
# ### Exercise 5 · What does the card send next?
#
# Write `next_chunk(now, ready, left, urgent_first, chunk)`. Of layer `i`'s gradient, `left[i]` is still to be sent (the
# time that takes; 0 if all is sent), and it is ready at `ready[i]`. Layer 0 is the first of the forward pass. Layers
# can be ready in any order, but no two at the same time.
#
# - The card chooses among the layers that are ready and not yet sent: the one that was ready first or, with
#   `urgent_first`, the one that the forward pass needs first.
# - It sends `chunk` of it, or what is left of it if that is less. Then it chooses again.
# - Return the layer, and for how long the card sends: `(layer, spent)`; or `None` if there is nothing to send now.


# %%
def next_chunk(now, ready, left, urgent_first, chunk):
    """Return (layer, spent) of what the card sends at the time `now`; None if nothing is waiting."""
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


# %% tags=["nbval-check-output"]
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


WHOLE, CHUNK = 10**9, 1_000
ORDERS = {
    "first ready, first sent": (False, WHOLE),
    "urgent first, whole messages": (True, WHOLE),
    "urgent first, in chunks of 1 ms": (True, CHUNK),
}
LINKS = (10, 25, 100)  # Gbit/s
alone = sum(backward) + sum(forward)
steps = {"computing alone": [alone] * len(LINKS), "sending alone": [sum(sending(link)) for link in LINKS]}
steps["one after the other"] = [alone + spent for spent in steps["sending alone"]]
for order, options in ORDERS.items():
    steps[order] = [next_forward(send(ready, sending(link), *options))[-1][1] for link in LINKS]
print(f"{'ms for a step of VGG-16':32}" + "".join(f"{link:>8} Gbit/s" for link in LINKS))
for what, times in steps.items():
    print(f"{what:32}" + "".join(f"{spent / 1e3:>15,.0f}" for spent in times))

# %% jupyter={"source_hidden": true}
needs = sending(25)
edges = list(itertools.accumulate(needs + forward, initial=sum(backward)))  # of all blocks after the backward pass
in_turn = [(layer % len(VGG), *block) for layer, block in enumerate(itertools.pairwise(edges))]
panels = {"one after the other": (in_turn[: len(VGG)], [block for _, *block in in_turn[len(VGG) :]])}
for order in ("first ready, first sent", "urgent first, in chunks of 1 ms"):
    sent = send(ready, needs, *ORDERS[order])
    panels[order] = (sent, next_forward(sent))
colours = plt.get_cmap("viridis")(np.linspace(0, 1, len(VGG)))
figure, axes = plt.subplots(len(panels), 1, figsize=(13, 7), sharex=True)
for axis, (order, (sent, ahead)) in zip(axes, panels.items()):
    computed = [(layer, ready[layer] - backward[layer], ready[layer]) for layer in range(len(VGG))]
    computed += [(layer, *block) for layer, block in enumerate(ahead)]
    for (row, blocks), (layer, name) in itertools.product(enumerate((sent, computed)), enumerate(VGG)):
        own = [(start / 1e3, (stop - start) / 1e3) for of_layer, start, stop in blocks if of_layer == layer]
        axis.broken_barh(own, (row - 0.4, 0.8), color=colours[layer])
        for start, spent in own:
            if spent > 30:
                ink = "white" if layer < len(VGG) / 2 else "black"
                axis.text(start + spent / 2, row, name, ha="center", va="center", color=ink, fontsize=11)
    axis.axvline(ahead[-1][1] / 1e3, color=plots.BLACK, linewidth=1.5, marker="")
    axis.set_yticks([0, 1], ["card", "computing"])
    axis.set_title(f"{order}: {ahead[-1][1] / 1e3:.0f} ms", fontsize=12, loc="left")
axes[-1].set_xlabel("ms since the backward pass began")
legend = [Patch(color=colour, label=name) for colour, name in zip(colours, VGG)]
figure.legend(handles=legend, loc="outside right upper")
figure.suptitle("A step of VGG-16 on 64 ranks with 25 Gbit/s, simulated: computing and sending")
plots.show(
    figure,
    alt="Three timelines, each with a row for computing, the backward pass and then the next forward pass, and a row "
    "for the card. "
    + "; ".join(f"{order}: the step ends after {ahead[-1][1] / 1e3:.0f} ms" for order, (_, ahead) in panels.items())
    + ". First ready, first sent: the forward pass waits until the card has sent everything. Urgent first: dense6 is "
    "interrupted for each convolution, and the rest of it is sent beside the forward pass.",
    keep=results,
)

# %% [markdown]
# With 25 Gbit/s, all sending *fits* beside the computing. Whether it is hidden depends on the order. First ready, first
# sent: all wait for dense6, which is ready early, is 411 MB long, and is needed late. Urgent first hides everything, if
# a long message can be interrupted. With 10 Gbit/s, the card is the limit: from there on, only fewer bytes help
# (section 10). With 100 Gbit/s, any order will do.
#
# ### On wires
#
# `Iallreduce` only **starts** an all-reduce, and returns a request. When does MPI work on it? In MPICH: **when you call
# MPI**. In between, the system goes on sending what MPI has handed it, and no more. So call MPI again and again while
# you compute: `MPI.Request.Testall(requests)` returns at once, and hands on the next piece. Or let MPI have a thread
# of its own: `MPIR_CVAR_ASYNC_PROGRESS=1` starts one in each rank. This thread polls while it waits, so it keeps a core
# busy, if there is one.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What share of the sending can be hidden: on 2 nodes with wires of 100 Mbit/s? And in memory, where
# sending is copying?
#
# </div>
#
# The script has 8 layers. Each computes for a while (a matrix product, again and again), and then has a gradient to
# reduce. The computing is made as long as the sending. Five variants take turns:
#
# - **compute**: no sending,
# - **send**: no computing,
# - **after**: compute all layers, then reduce all gradients,
# - **started**: start each layer's `Iallreduce` when its gradient is ready, and wait for all at the end,
# - **tested**: the same, and call `Testall` after each product.
#
# The next cell takes about 20 seconds.

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


# %%
# %%writefile work/overlap.py
"""Hide all-reduces behind computing: mpirun -n 2 python work/overlap.py OUT ROUNDS LENGTH PRODUCTS (0: find out)"""

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
PLACES = {"in memory": (None, OVERLAP_LENGTHS[0])}  # the rate of the wires, and the length of a gradient
if not no_wires:
    PLACES["on wires of 100 Mbit/s"] = "100 Mbit/s", OVERLAP_LENGTHS[1]
SETTINGS = {"no progress thread": 0, "a progress thread": 1}
overlap = {}  # by place and setting, then by way: seconds of each round
with load.watch("section 9"):
    for place, (rate, length) in PLACES.items():
        products = 0
        with Testbed(2, rate) if rate else contextlib.nullcontext() as wires:
            for setting, progress in SETTINGS.items():
                out = work / "overlap.json"
                env = {"OMP_NUM_THREADS": 1, "MPIR_CVAR_ASYNC_PROGRESS": progress}
                # Two cores for each rank if there are enough: one computes, the other is for the progress thread.
                options = {"threads": 2 if cores >= 4 else 1, "env": env, "network": wires}
                run_ranks(2, "work/overlap.py", out, OVERLAP_ROUNDS, length, products, **options)
                got = json.loads(out.read_text())
                overlap[place, setting], products = got["seconds"], got["products"]


def tell_overlap(seconds, way="started"):
    """Say how much of the sending is hidden, as far as the rounds can tell."""
    compute, after, overlapped = (1e3 * np.median(seconds[one]) for one in ("compute", "after", way))
    speeds = {one: 1 / np.array(spent) for one, spent in seconds.items()}
    one = ratios(speeds, "after")[way]
    said = f"{way} {overlapped:.0f} ms, {one} times as fast as after ({after:.0f} ms): {one.verdict}"
    if not (one.significant and one.value > 1):
        return f"{said}; no sending is seen to be hidden"
    if after <= compute:
        return f"{said}, but its share can't be told: after is as short as compute"
    return f"{said}; {min(1, (after - overlapped) / (after - compute)):.0%} of the sending is hidden"


for (place, setting), seconds in overlap.items():
    alone = ", ".join(f"{way} {1e3 * np.median(seconds[way]):.0f} ms" for way in ("compute", "send"))
    print(f"{place}, {setting}: {alone}")
    for way in ("started", "tested"):
        print(f"   {tell_overlap(seconds, way)}")
for place in PLACES:
    medians = {
        (setting, way): 1e3 * np.median(overlap[place, setting][way])
        for setting in SETTINGS
        for way in ("after", "started", "tested")
    }
    setting, way = min(medians, key=medians.get)
    print(f"The shortest {place}: {way} with {setting}, {medians[setting, way]:.0f} ms")
if no_wires:
    print(f"On wires: not here. {no_wires}")

# %% [markdown]
# The last lines decide. A setting that hides much of the sending, but slows down computing, has gained nothing.
#
# To hide sending, somebody has to send while you compute. In memory, sending *is* work for the cores: copying and
# adding. While a core does that for MPI, it does not compute for you. A wire works by itself: the core hands it bytes
# now and then, and computes in between. (Here, the cores also do the work of the network card and of the switch, the
# more the faster the wires are.)
#
# ## 10 · Send less
#
# Here are two kinds of [**gradient compression**](../docs/glossary.md#gradient-compression):
#
# - [**FP16**](../docs/glossary.md#fp16): 2 bytes a number instead of 4. You know its limits from lab 04.
# - [**top-k**](../docs/glossary.md#top-k): send only the 1% of the numbers that are largest in magnitude, each with its
#   index. That is 8 bytes for each of them, but only a hundredth of the numbers.
#
# Top-k throws 99% away in each step. With [**error feedback**](../docs/glossary.md#error-feedback), nothing is thrown
# away: what was not sent is kept, and added to the next step's gradient. So a weight whose gradient is small but steady
# gets its turn in the end (Lin et al. 2018, [arXiv 1712.01887](https://arxiv.org/abs/1712.01887)).
#
# ### Exercise 6 · Top-k with error feedback
#
# Write `top_k(gradient, residual, k)`, where `residual` is what earlier steps did not send. Return three arrays:
#
# - `indices`: the positions of the `k` numbers that are sent, as whole numbers in any order,
# - `values`: these numbers, in the order of `indices`,
# - the new residual: all that is not sent, an array as long as the gradient.
#
# `gradient` and `residual` are float32, and so are `values` and the new residual. Don't change the arrays that you are
# given. `np.argpartition` finds the largest numbers without sorting them all.
#
# The function moves into a module, which the ranks import. So it can use `math`, numpy as `np` and what it imports or
# defines itself, but nothing else from this notebook.


# %%
def top_k(gradient, residual, k):
    """Return (indices, values, new residual): the k largest of what is to be sent, and what is left."""
    ### BEGIN SOLUTION
    wanted = gradient + residual
    indices = np.argpartition(np.abs(wanted), -k)[-k:]
    values = wanted[indices]
    wanted[indices] = 0
    return indices, values, wanted
    ### END SOLUTION


# %% tags=["nbval-check-output"]
top_k = check(6, top_k)

# %% [markdown]
# What does compression cost in accuracy? Three functions average the gradients over the ranks. FP16 needs a sum of its
# own, as MPI has none for it. The top-k numbers have different positions on each rank, so they can't be added on the
# way: an `Allgather` gives each rank those of all ranks.

# %%
text = "import math\n\nimport numpy as np\n\n\n" + inspect.getsource(top_k)
print(f"work/topk.py: {(work / 'topk.py').write_text(text)} characters, for the next script to import")

# %%
# %%writefile work/averages.py
"""Average gradients over all ranks, compressed or not."""

import numpy as np
from mpi4py import MPI
from topk import top_k

ranks = MPI.COMM_WORLD
n = ranks.size

# Each function returns the average, the residual, and the bytes that this rank sends, by the theory of section 4.


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
    k = int(share * len(gradient))
    indices, values, left = top_k(gradient, residual, k)
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
# Each rank has a share of the digits and computes its gradient. All six runs together take about ten seconds.

# %%
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


# %%
# %%writefile work/compress.py
"""Train with compressed gradients, and compare the accuracy: mpirun -n 2 python work/compress.py OUT DIGITS EPOCHS"""

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
    "top 1%": partial(sparse, share=0.01, feedback=False),
    "top 1%, error feedback": partial(sparse, share=0.01, feedback=True),
    "top 0.1%": partial(sparse, share=0.001, feedback=False),
    "top 0.1%, error feedback": partial(sparse, share=0.001, feedback=True),
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
            f"{name:26} {last['megabytes']:8.2f} MB sent by each rank, accuracy {last['accuracy']:.3f}, "
            f"ranks differ by {np.ptp(every, axis=0).max()}"
        )
if ranks.rank == 0:
    out.write_text(json.dumps(history))

# %%
team, out = min(4, max(2, cores)), work / "compress.json"
run_ranks(team, "work/compress.py", out, COMPRESSED_DIGITS, COMPRESSED_EPOCHS, threads=1)
history = json.loads(out.read_text())

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(11, 5))
for name, run in history.items():
    dashed = name.startswith("top") and "feedback" not in name
    axis.semilogx(run["megabytes"], 100 * np.array(run["accuracy"]), label=name, linestyle="--" if dashed else "-")
axis.set(xlabel="MB that each rank has sent", ylabel="test accuracy (%)", title="Accuracy against bytes sent")
figure.legend(loc="outside right upper", fontsize=11)
plots.show(
    figure,
    alt=f"Test accuracy against megabytes sent by each of {team} ranks, a point an epoch. After {COMPRESSED_EPOCHS} "
    "epochs: "
    + "; ".join(
        f"{name}: {100 * r['accuracy'][-1]:.1f}% with {r['megabytes'][-1]:.2f} MB" for name, r in history.items()
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
# Look at the two pairs of top-k lines. Whatever error feedback gains, it sends not a single byte more: it only
# remembers.
#
# The accuracy is that of a single run, on 2,000 held-out digits. Where 95% are right, chance alone moves that by half a
# point (one standard error), and the order in which the digits come moves it too.
#
# There is a catch. Each rank sends its pairs to all others, so the bytes of top-k **grow with the number of ranks**,
# while those of the ring don't. And finding the largest numbers takes time as well.
#
# ### What does it save in seconds?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Where does compression save time: in memory, on wires of 1 Gbit/s, or on wires of 100 Mbit/s?
#
# </div>
#
# The three functions average a gradient of 2 MB in turns.

# %%
# %%writefile work/send_less.py
"""Time the averaging of a gradient, compressed or not: mpirun -n 2 python work/send_less.py OUT ROUNDS"""

import json
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from averages import float16, float32, ranks, sparse
from mpi4py import MPI

WAYS = {"float32": float32, "FP16": float16, "top 1%": partial(sparse, share=0.01, feedback=True)}
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
    Path(sys.argv[1]).write_text(json.dumps({way: spent[1:] for way, spent in seconds.items()}))  # the first warms up


# %%
def tell_compression(seconds):
    """Say of each kind of compression how long it takes, and what the interval says about its speed."""
    one = ratios({way: 1 / np.array(spent) for way, spent in seconds.items()}, "float32")
    plain, *rest = (f"{way} {1e3 * np.median(spent):.1f} ms" for way, spent in seconds.items())
    told = (f"{text}, {one[way]} times as fast: {one[way].verdict}" for way, text in zip([*seconds][1:], rest))
    return "; ".join([plain, *told])


send_less = {}
with load.watch("section 10"):
    for rate in (None, *([] if no_wires else RATES)):
        run_ranks(
            NODES[-1], "work/send_less.py", work / "less.json", COMPRESSION_ROUNDS, threads=1, network=rate, env=SLEEP
        )
        send_less[f"{NODES[-1]} nodes, {rate}" if rate else "in memory"] = json.loads((work / "less.json").read_text())
for place, seconds in send_less.items():
    print(f"{place}: {tell_compression(seconds)}")
if no_wires:
    print(f"On wires: not here. {no_wires}")

# %% [markdown]
# FP16 halves the bytes, and top 1% sends far fewer still. But converting, choosing and adding take the cores' time,
# whatever the wire. Where sending takes less than that, compression costs more than it saves.
#
# ## 11 · Why is one faster?
#
# `MPI_Allreduce` is made by experts, and written in C. Where it is no faster than your ring, there is a reason. Find
# it: change **one** thing, and measure again.
#
# ### In memory: fresh memory
#
# An all-reduce needs a buffer for what it receives. At the end of the call it is freed, and the C library gives a large
# one (with glibc, always one of more than 32 MiB) back to the system. So the next call gets *fresh* pages, and the
# system has to fill each page with zeros first, at a page fault. Two variables tell glibc to keep what is freed. The
# next cell measures the largest size again, with them, in a few seconds.

# %%
KEEP = {"MALLOC_MMAP_MAX_": 0, "MALLOC_TRIM_THRESHOLD_": 2**40}  # man mallopt
with load.watch("section 11, memory kept"):
    kept, kept_faults = measure([largest], KEEP)


def tell_memory(usual, kept, usual_faults, kept_faults):
    """Say what fresh memory costs MPI_Allreduce, from your ring's speed over its speed and its page faults."""
    saved = usual_faults - kept_faults
    if usual_faults < 2 * kept_faults + 8:
        return "Keeping memory saves MPI_Allreduce hardly a page fault here, so fresh memory doesn't explain the ratio."
    if kept.high < usual.low:
        return f"Keeping memory saves MPI_Allreduce {saved:,.0f} page faults, and it gains on your ring."
    if kept.low > usual.high:
        return f"Keeping memory saves MPI_Allreduce {saved:,.0f} page faults, but your ring gains more by it."
    return f"Keeping memory saves MPI_Allreduce {saved:,.0f} page faults; that changes the ratio no more than chance."


against_kept = compare(kept, largest)
by_setting = {"as usual": (measured, faults, against), "memory kept": (kept, kept_faults, against_kept)}
for setting, (seconds, by_way, one) in by_setting.items():
    of_each = ", ".join(
        f"{way} {1e3 * np.median(seconds[way][largest]):.1f} ms with {np.median(by_way[way][largest]):,.0f} page faults"
        for way in ("MPI_Allreduce", "ring")
    )
    print(f"{setting + ':':12} {of_each}; your ring is {one} times as fast: {one.verdict}")
mpi_faults = [np.median(by_way["MPI_Allreduce"][largest]) for by_way in (faults, kept_faults)]
print(tell_memory(against, against_kept, *mpi_faults))

# %% [markdown]
# What should a framework do that reduces the same gradients in each step? Keep its buffers: Horovod has a *fusion
# buffer*, in lab 07.
#
# ### On wires: which algorithm?
#
# MPICH has several algorithms, and chooses. `MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM` chooses in its place: `ring`,
# `recursive_doubling`, `reduce_scatter_allgather` and others. The last one is recursive *halving*, and then doubling:
# partners exchange half the gradient, then a quarter, and so on, and gather in reverse. It needs a number of ranks that
# is a power of two; if it is not, some ranks first give a partner their whole gradient, and get the whole sum back in
# the end. (MPICH's [tuning parameters](https://github.com/pmodels/mpich/blob/main/doc/mpich/tuning_parameters.md).)
#
# And there is a layer below. MPICH sends by UCX, which sends a short message at once (*eager*), and asks the receiver
# before it sends a long one: [**rendezvous**](../docs/glossary.md#rendezvous). `UCX_RNDV_THRESH=inf` leaves the asking
# out.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Look at the bytes that each rank sends with the algorithm chosen for you. Which one is it?
#
# </div>
#
# Your ring runs in turns with each setting, so compare its speed over `MPI_Allreduce`'s. The next cell takes about
# three quarters of a minute.

# %%
CHOSEN = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"
ALGORITHMS = {
    "as it comes": {},
    "ring": {CHOSEN: "ring"},
    "reduce_scatter_allgather": {CHOSEN: "reduce_scatter_allgather"},
    "recursive_doubling": {CHOSEN: "recursive_doubling"},
    "as it comes, no rendezvous": {"UCX_RNDV_THRESH": "inf"},
}
chosen = {}  # by nodes and setting
with load.watch("section 11, wires"):
    for n in () if no_wires else NODES_CHOSEN:
        with Testbed(n, "1 Gbit/s") as wires:
            for setting, env in itertools.islice(ALGORITHMS.items(), CHOICES):
                ways = ("ring", "MPI_Allreduce")
                chosen[n, setting] = measure_on_wires(n, wires, [LONG], ways, SLEEP | env, CHOSEN_ROUNDS)


def tell_setting(usual, changed):
    """Say what a setting does for MPI_Allreduce, from your ring's speed over its speed, without it and with it."""
    if math.isnan(usual.low) or math.isnan(changed.low):
        return "one round only, so nothing can be said"
    if changed.high < usual.low:
        return "with it, MPI_Allreduce gains on your ring"
    if changed.low > usual.high:
        return "with it, MPI_Allreduce falls back"
    return "it changes the ratio no more than chance"


speeds = {}  # your ring's over MPI_Allreduce's
for (n, setting), got in chosen.items():
    by_setting = {way: 1 / np.array(got["seconds"][way][LONG]) for way in ("MPI_Allreduce", "ring")}
    speeds[n, setting] = one = ratios(by_setting, "MPI_Allreduce")["ring"]
    sent = " ".join(f"{n_bytes / 1e6:.1f}" for n_bytes in got["sent"]["MPI_Allreduce"][LONG])
    spent = 1e3 * np.median(got["seconds"]["MPI_Allreduce"][LONG])
    print(f"{n} nodes, {setting:26} {spent:5.0f} ms, MB sent by each rank: {sent}")
    effect = f" Against as it comes: {tell_setting(speeds[n, 'as it comes'], one)}." if ALGORITHMS[setting] else ""
    print(f"   your ring is {one} times as fast: {one.verdict}.{effect}")
if no_wires:
    print(f"Not here: {no_wires}")

# %% [markdown]
# The interface tells algorithms apart that the time alone does not: in recursive doubling on 4 nodes each rank sends
# two whole gradients, in the ring one and a half. On 3 nodes, look for a rank that sends more than the others. Where
# bytes are equal and times are not, the reason is elsewhere: in what waits for what, or in the layer below.
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
#    the work is split? *(section 8)*
# 4. Horovod replaced TensorFlow's parameter servers with MPI. What did that gain for the author of a script?
# 5. Why does Horovod reach 90% scaling efficiency on 512 GPUs with ResNet-101 and Inception V3, but only 68% with
#    VGG-16? Section 1 has the numbers.
# 6. Is there an algorithm with the bytes of the ring and the steps of recursive doubling?
# 7. From how many ranks on does top-k with 1% send more than a ring with float32? *(section 10)*
#
# **Time left?** Write `doubling_allreduce(ranks, gradient, total)`, by recursive doubling, and add it to the `ways` of
# `work/measure.py`. From which size on does your ring win? Does the map of section 7 say so, if you give it this
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
#    convolutions that a GPU computes quickly. 90% of its weights are in three dense layers: section 8.
# 6. Yes: reduce-scatter by recursive *halving* (exchange half the gradient with the partner n/2 away, then a quarter
#    with the one n/4 away, …), and all-gather by recursive doubling: 2 log₂ n steps, 2(n − 1)/n of traffic. It is
#    Rabenseifner's algorithm, and MPICH uses it for large messages (Thakur et al. 2005,
#    https://doi.org/10.1177/1094342005051521). Why use rings, then? They work for any n, and talk to neighbours only,
#    so no two messages share a cable. Partners n/2 apart may all meet in one switch.
# 7. Ring: 2(n − 1)/n · S. Top-k: (n − 1) · 0.01 · 2 · S, as each number goes with its index. They are equal at n = 100.
#
# **Timing** By the plan, sections 1 and 2 take 18 minutes, section 3 takes 15, 4 and 5 take 9, 6 takes 10, 7 takes 4,
# and the questions 3: an hour, if nobody gets stuck. Anyone still in exercise 2 at minute 35 should continue with the
# solution: nobody should miss sections 5 to 7. Of the optional sections, 8 and 9 take 12 minutes each, 10 takes 16, and
# 11 takes 5. Each stands by itself, but for the model of section 6, which 9 uses, and the wires of section 5. "Time
# left?" has no solution here; a hint for it: in each step, `Sendrecv` with the partner `me ^ distance`, then add, and
# double the distance.
#
# **What goes wrong** Exercise 1: whoever puts a blocking `Send` in place of the push passes with short arrays, and
# hangs with the long one, where two servers send to each other; the check stops it after 10 s and quotes the line.
# Exercise 2: `chunks[i] = chunks[i] + room` puts a new array into the list and leaves `total` unchanged; it has to be
# `chunks[i] += room`. Exercise 4: `blocks.reshape(rows, -1)` without the transposition has the right shape and the
# wrong rows. Exercise 5: `ready[layer] < now` lets the card wait for a gradient that is ready at this very moment.
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
# nodes one rank sends two whole gradients, which no ring does: the algorithm costs time (2 MB, 100 Mbit/s: 600 ms
# against 280 for your ring). On 4 nodes the bytes are the ring's. With 10 MB at 100 Mbit/s it took 2.1 s, with `ring`
# chosen 1.6 s, without rendezvous 1.3 s, and your ring 1.3 s. So it is the way in which long messages are
# sent; why that costs so much with these partners, we don't know. With 2 and 4 MB, it took as long as your ring. The
# nodes share this machine's cores: on a busy machine, latencies are milliseconds, and little overlaps.
#
# </div>

# %% [markdown]
# ## Remember
#
# - All-reduce = reduce-scatter + all-gather. A ring does both with two neighbours, in 2(n − 1) steps. Each rank sends
#   less than twice the gradient, however many ranks there are.
# - Small messages are limited by latency, large ones by bandwidth. So few steps win for small gradients, and few bytes
#   for large ones.
# - How many bytes a network sends for each second of computing decides how well it scales.
# - Sending is hidden only if somebody else does it: a network card, or another core.
# - Gradients tolerate a lot of compression: 16 bits, or 1% of the numbers, if what is left out is remembered.
# - Before you call an algorithm faster, look at what else is in its time, such as fresh memory.
#
# What was published, what you measured, and what the machine could do at most:

# %%
rows = [
    ("scaling efficiency, ResNet-101 and Inception V3, 512 GPUs", "90%", "", ""),
    ("the same, VGG-16", "68%", "", ""),
    (
        "a message of 8 bytes, 2 ranks in memory",
        "",
        Measured(1e6 * typical("ping-pong")[0], unit="µs", digits=1),
        "",
        measured_others,
    ),
]
large = f"{largest / 2**20:.0f} MiB"
# On 2 ranks, a ring copies the gradient, exchanges half of it and adds, and exchanges half of it. So at best:
halves = sum(np.median(measured[way][largest // 2]) for way in ("exchange", "exchange and add"))
at_best = f"{1e3 * (typical('copy')[-1] + halves):.1f} ms, its copy and its messages alone"
own = Measured(1e3 * typical("ring")[-1], unit="ms", digits=1)
rows.append((f"your ring, {large}, 2 ranks", "", own, at_best, measured_others))
own = Measured(*against, "×")
rows.append((f"your ring's speed over MPI_Allreduce's, {large}, 2 ranks", "", own, "", measured_others))
slowest, most = next(iter(RATES)), NODES[-1]
for way, name in (("1 server", "one server"), ("ring", "your ring"), ("MPI_Allreduce", "MPI_Allreduce")):
    if wired:
        seconds = np.median(wired[slowest, most]["seconds"][way][GRADIENT])
        spent = Measured(1e3 * seconds, unit="ms", digits=0)
        limit = f"{1e3 * in_theory(way, most, slowest)[0]:,.0f} ms on the wire"
        rows.append((f"{name}, 4 MB, {most} nodes, {slowest}", "", spent, limit, wired_others))
for where, errors, others in (
    ("in memory", memory_errors, [measured_others]),
    ("on wires, nodes and sizes not seen", wire_errors, [wired_others, unseen_others]),
):
    if errors:
        off = np.abs(list(errors.values()))
        error = Measured(100 * np.median(off), unit="%", digits=0, note=f"{off.max():.0%}")
        rows.append((f"the model's error {where}: median, worst", "", error, "", *others))
if no_wires:
    rows.append(("all-reduces of 4 MB on wires, and the model's error there", "", f"not here: {no_wires}", ""))
results.table("how gradients travel", rows)

# %% [markdown]
# Published: [Horovod's documentation, Benchmarks](https://horovod.readthedocs.io/en/stable/benchmarks_include.html).
# Next: lab 07 uses all of this, in six steps.
