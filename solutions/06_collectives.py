# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: write a ring all-reduce, watch its messages, and break it
#     needs: [memory, MPI]
#     better_with: [cores, network]
# ---

# %% [markdown]
# # 06 · How gradients travel: watch your messages
#
# Each step of data-parallel training ends with a sum over all processes. How this sum is computed determines how far
# training scales. On 512 GPUs, Horovod reached a scaling efficiency of 90% with ResNet-101, but only 68% with VGG-16
# ([its published benchmarks](https://horovod.readthedocs.io/en/stable/benchmarks_include.html)).
#
# **You will** write this sum of [**gradients**](../docs/learn/glossary.md#gradient) over all
# [**ranks**](../docs/learn/glossary.md#rank) twice, with [**parameter
# servers**](../docs/learn/glossary.md#parameter-server) and as a [**ring**](../docs/learn/glossary.md#ring). You will
# watch your messages, predict their times, and break the network with a slow wire, a switch that drops packets, and two
# racks.
#
# **Time** {minutes}
#
# **Connects to** lab 00, where ranks add up numbers; lab 07, where Horovod does this; and lab 08, where it limits
# scaling.

# %% tags=["parameters"]
QUICK = False  # small runs, for tests

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("06", globals())

# %%
import itertools
import json
import math
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from labkit.display import plots
from labkit.measure import alternate, compare, record, recorded, share
from labkit.mpi import RankError, run_ranks
from labkit.testbed import Testbed, obstacle

# %%
GRADIENT = 200_000 if QUICK else 2_000_000  # bytes
WIRE, SLOW_WIRE, FAST_WIRE = "100 Mbit/s", "50 Mbit/s", "1 Gbit/s"
QUEUE = 12_000  # bytes, section 7
ROUNDS = 1 if QUICK else 6
DEADLOCK_S = 2 if QUICK else 4  # section 1

# %% [markdown]
# ## 1 · What has to travel? {read 4, wait 0.1}
#
# In [**data parallelism**](../docs/learn/glossary.md#data-parallelism), each rank has a copy of the network and a share
# of the [**batch**](../docs/learn/glossary.md#batch). It computes a gradient with one number per weight. Before the
# weights are updated, every rank needs the *sum* of all gradients, or their mean. This operation is an
# [**all-reduce**](../docs/learn/glossary.md#all-reduce). How much does it send? Each weight is a 4-byte float32.

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
    per_multiplication = 4 * weights / multiplications
    print(f"{name:14}{4 * weights:>7.0f} MB{multiplications:>28.2f}{per_multiplication:>13.1f}")

# %% [markdown]
# Per multiplication, VGG-16 sends 1.6 times as many bytes as ResNet-101. `mpi4py` lets Python call
# [**MPI**](../docs/learn/glossary.md#mpi), the Message Passing Interface. Its capitalised methods send NumPy arrays
# straight from memory into an array that the receiver provides.

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
# **Guess first.** Both ranks **send first, then receive**. Does this work?
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
"""Both ranks send first: mpirun -n 2 python work/deadlock.py LENGTH"""

import sys

import numpy as np
from mpi4py import MPI

ranks = MPI.COMM_WORLD
other = 1 - ranks.rank
mine, theirs = np.ones((2, int(sys.argv[1])), np.float32)
print("sending", flush=True)
ranks.Send(mine, dest=other)
ranks.Recv(theirs, source=other)
print(f"received {theirs.nbytes:,} bytes")

# %%
hangs = []
for length, limit in ((10, 60), (1_000_000, DEADLOCK_S)):
    try:
        run_ranks(2, "work/deadlock.py", length, threads=1, timeout=limit)
        hangs.append(False)
    except RankError as error:
        hangs.append("sending" in str(error))
        print(f"RankError: {error}")
outcomes = {(False, False): "it works", (True, True): "it hangs"}
results.compare_guess(1, outcomes.get(tuple(hangs), "it depends on the length"))

# %% [markdown]
# `Send` may return as soon as the array is safe to change. MPICH buffers short messages. For a long one, `Send` waits
# until the other rank receives ([**rendezvous**](../docs/learn/glossary.md#rendezvous)), so both ranks wait for each
# other. This is a [**deadlock**](../docs/learn/glossary.md#deadlock), and waiting longer won't resolve it. A program
# that relies on buffers is *unsafe*, however short its messages are. `Sendrecv` and `Isend` avoid it.

# %% [markdown]
# ## 2 · A parameter server {read 2, do 9}
#
# In the classic method, one rank is the **server**. The workers *push* their gradients to it, it adds them up, and they
# *pull* the sum. A single server receives and sends everything, while the other links are mostly idle. We therefore use
# *k* servers, and cut the gradient into *k* chunks, one for each.

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
# too**, because all ranks have a gradient.
#
# - Push: each rank sends each server its chunk of the gradient, and nothing else. **This part is provided.**
# - Each server adds up its chunks.
# - Pull: each server sends its sum to every rank. Finally, call `MPI.Request.Waitall(requests)`.
#
# At the end, `total` contains the sum **on every rank**, and `gradient` is unchanged. The function must work with any
# number of ranks and any length, even with empty chunks. Use only messages from rank to rank (no `Allreduce` or
# `Bcast`) and only the communicator `ranks`, whose ranks and order may differ from `MPI.COMM_WORLD`'s. The arrays are
# float32.
#
# Don't allocate new arrays. Receive into `buffer`, which is as long as `gradient`, or into `total`, and add in place
# with `+=`. `buffer[:k]` is a view of the first `k` numbers, not a copy.
#
# The check compares the sums, and counts what each rank sends.

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


# %% tags=["nbval-check-output"]
servers = check(1, "work/servers.py")

# %% [markdown]
# ## 3 · A ring without a server {read 3, do 20}
#
# With as many servers as ranks, all ranks do the same work, but each talks to all others. The **ring all-reduce**
# balances the work just as well, but each rank talks to only two neighbours. In every step, each rank sends to the next
# one, its right neighbour, and the last rank sends to rank 0. There are as many chunks as ranks, and two phases:
#
# 1. The [**reduce-scatter**](../docs/learn/glossary.md#reduce-scatter) takes `n - 1` steps. In each, every rank passes
#    a chunk on, and the next rank adds its numbers to it. Afterwards, each rank has *one* complete chunk.
# 2. The [**all-gather**](../docs/learn/glossary.md#all-gather) takes another `n - 1` steps, in which the complete
#    chunks go round and replace the incomplete ones.
#
# Baidu brought the ring from scientific computing to deep learning in 2017, and Horovod adopted it (Sergeev and Del
# Balso 2018, [arXiv 1802.05799](https://arxiv.org/abs/1802.05799)).

# %% jupyter={"source_hidden": true}
n = 4
held = np.ones((n, n), int)  # [rank, chunk]: how many ranks' numbers are in it
pictures = [("start", held.copy(), [])]
for step in range(2 * (n - 1)):
    scatters = step < n - 1
    sent = [(rank, (rank - step) % n) for rank in range(n)]
    before = held.copy()
    for rank, chunk in sent:
        held[(rank + 1) % n, chunk] = before[rank, chunk] + before[(rank + 1) % n, chunk] * scatters
    name = f"reduce-scatter {step}" if scatters else f"all-gather {step - n + 1}"
    pictures.append((name, held.copy(), sent))
figure, axes = plt.subplots(1, len(pictures), figsize=(13, 2.9), sharey=True)
for axis, (name, counts, sent) in zip(axes, pictures):
    axis.imshow(counts, cmap="Blues", vmin=0, vmax=n + 4)
    for rank, chunk in itertools.product(range(n), range(n)):
        arrived = ((rank - 1) % n, chunk) in sent
        style = {"ha": "center", "va": "center", "weight": "bold" if arrived else "normal"}
        axis.text(chunk, rank, counts[rank, chunk], **style)
        if arrived:
            edge = {"fill": False, "edgecolor": plots.VERMILION, "linewidth": 2.5}
            axis.add_patch(Rectangle((chunk - 0.44, rank - 0.44), 0.88, 0.88, **edge))
    axis.set_title(name, fontsize=12)
    axis.set(xlabel="chunk", xticks=range(n), yticks=range(n))
    axis.grid(False)
axes[0].set_ylabel("rank")
figure.suptitle("Ring all-reduce on 4 ranks: how many ranks' numbers are in each chunk")
plots.show(
    figure,
    alt="Seven tables of 4 ranks by 4 chunks; what was just received is bold and framed. At the "
    "start all hold 1. After three steps of reduce-scatter, rank r holds a 4 in chunk r + 1. "
    "After three steps of all-gather all hold 4. In each step, each rank receives one chunk from "
    "the rank above it, and rank 0 from rank 3.",
)

# %% [markdown]
# ### Exercise 2 · The ring
#
# Write `ring_allreduce(ranks, gradient, total, buffer)`. The rules of exercise 1 apply. `chunks` holds views of
# `total`, so writing to a chunk changes `total`. In each step, each rank sends **one** chunk to its right neighbour. In
# the reduce-scatter, receive each chunk into the start of `buffer`, then add it.
#
# Begin on paper with three ranks. Which chunk does rank *r* send in steps 0 and 1?

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
# ## 4 · Watch your messages {read 4.5, wait 0.1}
#
# Now each rank gets its own [**node**](../docs/learn/glossary.md#node), which Linux creates as a [**network
# namespace**](../docs/learn/glossary.md#network-namespace). A 100 Mbit/s wire connects each node to a switch. **Only
# the wires are emulated.** The nodes share the machine's cores and memory, which is why the wires are slow. If your
# machine doesn't allow this, your ring runs in memory, and the wire figures are from a recording.

# %%
no_wires = obstacle()
print("Wires:", no_wires or "possible")
stored = recorded("06-wires") if no_wires else None
switch = None if no_wires else Testbed(4, WIRE)

# %% [markdown]
# The script runs one method on four ranks. Its communicator, `CountingComm`, records each message, from the sender's
# call until the receive returns.

# %%
# %%writefile work/travel.py
"""Time and record a method on 4 ranks: work/travel.py SERVERS RING METHOD NUMBERS OUT"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
from mpi4py import MPI

from labkit.mpi import CountingComm

parameter_server = import_module(sys.argv[1]).parameter_server
ring_allreduce = import_module(sys.argv[2]).ring_allreduce
method, length, out = sys.argv[3], int(sys.argv[4]), Path(sys.argv[5])
world = MPI.COMM_WORLD
n, me = world.size, world.rank
rack, place = divmod(me, 2)
within, partners = world.Split(rack), world.Split(place)  # section 8
across = world.Split(0, key=2 * place + rack)  # neighbours are in different racks
gradient, total = (np.arange(length) % 7 + me).astype(np.float32), np.zeros(length, np.float32)
buffer, longer = np.zeros(length, np.float32), np.zeros((2, length * 3 // 2), np.float32)
arrays = gradient, total, buffer


def to_next(ranks, mine, theirs, senders=range(4)):
    dest = (me + 1) % n if me in senders else MPI.PROC_NULL  # no rank
    source = (me - 1) % n if (me - 1) % n in senders else MPI.PROC_NULL
    ranks.Sendrecv(mine, dest=dest, recvbuf=theirs, source=source)


def two_levels(ranks):
    part = buffer[: length // 2]
    within.Reduce_scatter_block(gradient, part)
    partners.Allreduce(MPI.IN_PLACE, part)
    within.Allgather(part, total)


run = {
    "message": lambda ranks: to_next(ranks, longer[0, :2], longer[1, :2]),
    "1.5 gradients": lambda ranks: to_next(ranks, *longer),
    "one way": lambda ranks: to_next(ranks, *longer, senders=[2]),
    "sum": lambda ranks: np.add(buffer, gradient, out=buffer),
    "1 server": lambda ranks: parameter_server(ranks, *arrays, 1),
    "n servers": lambda ranks: parameter_server(ranks, *arrays, n),
    "ring": lambda ranks: ring_allreduce(ranks, *arrays),
    "ring across": lambda _: ring_allreduce(across, *arrays),
    "two levels": two_levels,
    "MPI_Allreduce": lambda ranks: ranks.Allreduce(gradient, total),
}[method]
run(world)  # opens connections


def resent():  # the segments that TCP has sent again, on all nodes
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return world.allreduce(int(values[names.index("RetransSegs")]))


before, times, counting = resent(), [], CountingComm(world)
while sum(times) < 1 and len(times) < 20:
    counting.reset()
    world.Barrier()
    began = time.perf_counter()
    run(counting)
    times.append(world.allreduce(time.perf_counter() - began, op=MPI.MAX))
again, messages = (resent() - before) / len(times), counting.timeline()
wrong = world.allreduce(bool((total != n * (gradient - me + (n - 1) / 2)).any()))
if me == 0:
    rows = [(*m[:3], n * m.offset // total.nbytes, m.began, m.ended) for m in messages]
    result = {"ms": 1e3 * np.mean(times), "resent": again, "wrong": wrong}
    out.write_text(json.dumps(result | {"messages": rows}))


# %%
sleepy = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": 1, "MPIR_CVAR_POLLS_BEFORE_YIELD": 10}
seen, resent = {}, {}  # of each name: the last run; segments sent again in each run


def travel(name, method, network, module=None):
    """Run a method on four ranks, and return its milliseconds."""
    modules, out = (Path(servers).stem, Path(module or ring).stem), work / "travel.json"
    arguments = *modules, method, GRADIENT // 4, out
    env = sleepy if machine.usable_cores < 4 else {}  # waiting ranks leave shared cores to others
    options = {"threads": 1, "env": env, "network": network, "timeout": 60, "show": not seen}
    run_ranks(4, "work/travel.py", *arguments, **options)
    seen[name] = json.loads(out.read_text())
    resent.setdefault(name, []).append(seen[name]["resent"])
    return seen[name]["ms"]


travel("your ring", "ring", switch)
mine = seen["your ring"]["messages"]
for source, dest, n_bytes, chunk, *_ in mine[:6]:
    print(f"rank {source} sends chunk {chunk} to rank {dest}: {n_bytes:,} bytes")

# %% jupyter={"source_hidden": true}
LIGHT = (plots.SKY, plots.ORANGE, plots.YELLOW, "#B5E3D4")


def draw(panels):
    """Draw the messages of some runs, each on its sender's row."""
    figure, axes = plt.subplots(len(panels), figsize=(12, 3.2 * len(panels)), sharex=True)
    said = []
    for axis, (title, messages) in zip(np.atleast_1d(axes), panels.items()):
        first, last = min(m[4] for m in messages), max(m[5] for m in messages)
        for source, dest, _, chunk, began, ended in messages:
            lanes = sorted({m[1] for m in messages if m[0] == source})
            height = 0.8 / len(lanes)
            low, left = source - 0.4 + height * lanes.index(dest), 1e3 * (began - first)
            bar = [(left, 1e3 * (ended - began))]
            color = LIGHT[chunk % len(LIGHT)]
            axis.broken_barh(bar, (low, height), color=color, edgecolor="black", linewidth=0.7)
            after = [m[4] for m in messages if m[:2] == [source, dest] and m[4] > began]
            shown = min([ended, *after]) - began  # the next bar may cover the end
            if shown > 0.026 * (last - first):
                place = {"ha": "center", "va": "center", "fontsize": 11 if height > 0.5 else 9}
                axis.text(left + 500 * shown, low + height / 2, f"{chunk}→{dest}", **place)
        axis.set(title=title, ylabel="sender", yticks=range(4), ylim=(3.5, -0.5))
        axis.set_yticks(range(4), [f"rank {rank}" for rank in range(4)])
        said.append(f"{title}: {len(messages)} messages in {1e3 * (last - first):.1f} ms")
    axis.set_xlabel("time (ms)")
    alt = f"Each message as a bar on its sender's row. {'; '.join(said)}."
    plots.show(figure, alt=alt, keep=results)


# %%
draw({"Your ring: chunk → receiver": mine})

# %% [markdown]
# Each row is a sender, and each bar a message, labelled *chunk → receiver*. Follow chunk 0. When is its sum complete?
# (When its third message arrives.)
#
# ### A ring that passes every check
#
# A colleague's ring does without `Sendrecv`. To avoid section 1's deadlock, rank 0 sends first, and all the others
# receive first. The sums, messages and byte counts are right.

# %%
# %%writefile work/colleague.py
"""A ring all-reduce without Sendrecv."""

from chunks import bounds


def ring_allreduce(ranks, gradient, total, buffer):
    n, me = ranks.size, ranks.rank
    left, right = (me - 1) % n, (me + 1) % n
    total[:] = gradient
    chunks = [total[start:stop] for start, stop in bounds(len(total), n)]

    def exchange(out, into):
        if me == 0:
            ranks.Send(out, dest=right)
        ranks.Recv(into, source=left)
        if me != 0:
            ranks.Send(out, dest=right)

    for step in range(n - 1):  # reduce-scatter
        into = chunks[(me - step - 1) % n]
        exchange(chunks[(me - step) % n], buffer[: len(into)])
        into += buffer[: len(into)]
    for step in range(n - 1):  # all-gather
        exchange(chunks[(me + 1 - step) % n], chunks[(me - step) % n])


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times faster is your ring than the colleague's, on four ranks?
#
# </div>

# %%
results.guess(2, "your ring vs the colleague's", ..., unit="×")

# %%
travel("colleague", "ring", switch, "work/colleague.py")
theirs = seen["colleague"]["messages"]
print("The sum is wrong." if seen["colleague"]["wrong"] else "The sum is right.")
draw({"Your ring": mine, "A colleague's ring": theirs})

# %%
results.answer(1, "What do the colleague's ranks wait for?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Every rank except rank 0 must receive before it may send. So in each step, permission to send goes around the ring
# once, and only one message travels at a time instead of four.
#
# </details>
#
# **Break it yourself.** In a new cell, write your ring to `work/broken.py`, but swap `left` and `right`, or leave out a
# step. Then call `travel("broken", "ring", switch, "work/broken.py")` and `draw({"broken":
# seen["broken"]["messages"]})`. What changes?

# %% [markdown]
# ## 5 · A 15-line model {read 4, wait 1.4}
#
# The [**latency-bandwidth model**](../docs/learn/glossary.md#latency-bandwidth-model) describes a network with two
# numbers, the [**latency**](../docs/learn/glossary.md#latency) of a message and the
# [**bandwidth**](../docs/learn/glossary.md#bandwidth) of a wire in each direction. The speed of *addition* is a third
# number. To measure them, we send a short and a long message to the next rank, and compute a sum. The long one is 1.5
# gradients, exactly what each rank of your ring sends. Its time is the ring's limit, so the ring is the model's easiest
# test.


# %%
figures = {}


def measure(section, cases):
    """Measure milliseconds alternately on wires; without wires, return the recorded figures."""
    if no_wires:
        return {name: stored.figures[f"{section}: {name}"] for name in cases}
    calls = {name: lambda name=name, case=case: travel(name, *case) for name, case in cases.items()}
    found = alternate(calls, ROUNDS, "ms", f"section {section}")
    figures.update({f"{section}: {name}": figure for name, figure in found.items()})
    return found


numbers = measure(5, {name: (name, switch) for name in ("message", "1.5 gradients", "sum")})
for name, figure in numbers.items():
    print(f"{name:13} {figure}")
latency = numbers["message"].value  # ms
bandwidth = 1.5 * GRADIENT / numbers["1.5 gradients"].value  # bytes per ms
adding = GRADIENT / numbers["sum"].value  # bytes per ms
print(f"latency {latency:.2f} ms, bandwidth {bandwidth / 1e3:.1f} MB/s", end=", ")
print(f"adding {adding / 1e6:.1f} GB/s")

# %% [markdown]
# The model needs to know who sends what to whom, and what must wait for what. Your recording contains both. A message
# belongs to the round after the latest one from which its sender had already received a message.


# %%
def rounds_of(messages):
    """Return the rounds of a recording, each a list of (source, dest, bytes)."""
    rounds, place = [], []
    for source, dest, n_bytes, _, began, _ in messages:  # in the order of their calls
        received = [at for at, m in zip(place, messages) if m[1] == source and m[5] <= began]
        place.append(max(received, default=-1) + 1)
        rounds += [[] for _ in range(place[-1] + 1 - len(rounds))]
        rounds[place[-1]].append((source, dest, n_bytes))
    return rounds


my_rounds, their_rounds = rounds_of(mine), rounds_of(theirs)
for whose, rounds in {"yours": my_rounds, "the colleague's": their_rounds}.items():
    print(f"{whose}: {len(rounds)} rounds; messages: {', '.join(str(len(r)) for r in rounds)}")

# %% [markdown]
# In the model, the busiest cable determines how long a round takes. A wire counts as two cables, *from* its node and
# *to* it.


# %%
def predict(rounds, added, other=None, racks=None):
    """Return ms: the bytes that a rank adds, the latencies, and the busiest cable of each round."""
    ms = added / adding
    for messages in rounds:
        busy = Counter()  # for how many ms each cable is in use
        for source, dest, n_bytes in messages:
            cables = [f"from {source}", f"to {dest}"]
            if racks and racks[source] != racks[dest]:
                cables += [f"up {racks[source]}", f"down {racks[dest]}"]
            for cable in cables:
                busy[cable] += n_bytes / (other or {}).get(cable, bandwidth)
        ms += latency + max(busy.values())
    return ms


# %%
push = [(rank, 0, GRADIENT) for rank in (1, 2, 3)]
pull = [(0, rank, GRADIENT) for rank in (1, 2, 3)]
once = 3 / 4 * GRADIENT  # what each rank adds if all share the work
predictions = {
    "1 server": predict([push, pull], 3 * GRADIENT),
    "your ring": predict(my_rounds, once),
    "colleague's ring": predict(their_rounds, once),
}
for name, ms in predictions.items():
    print(f"{name:17} predicted: {ms:7.1f} ms")


# %%
def against(figures, predictions):
    """Print each figure, and how far its prediction is off."""
    for name, figure in figures.items():
        miss = f"predicted {predictions[name]:7.1f}, off by " if name in predictions else ""
        miss += f"{predictions[name] / figure.value - 1:+.0%}" if miss else ""
        print(f"{name:26} {figure!s:32} {miss}")


cases = {
    "1 server": ("1 server", switch),
    "your ring": ("ring", switch),
    "colleague's ring": ("ring", switch, "work/colleague.py"),
    "MPI_Allreduce": ("MPI_Allreduce", switch),
    "1.5 gradients, one message": ("1.5 gradients", switch),
}
wired = measure(5, cases)

# %%
against(wired, predictions)
print("Your ring vs 1 server:", compare(wired["your ring"], wired["1 server"]))
print("Your ring vs MPI_Allreduce:", compare(wired["your ring"], wired["MPI_Allreduce"]))
reached = share(wired["your ring"], wired["1.5 gradients, one message"])
print(f"Your ring reaches {reached} of its limit.")
longer = compare(wired["your ring"], wired["colleague's ring"])
results.compare_guess(2, longer)

# %% [markdown]
# After a pause, an emulated wire sends 16 kB at once, so the colleague's ring, with its pauses, can beat its
# prediction.
#
# ## 6 · A slow wire {read 2.5, wait 1.3}
#
# Now rank 2's node gets a wire at half the rate.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times slower does this wire make your ring?
#
# </div>

# %%
results.guess(3, "your ring without a slow wire vs with", ..., unit="×")

# %%
half = {"from 2": bandwidth / 2, "to 2": bandwidth / 2}  # the cables that differ
predictions = {
    "your ring": predict(my_rounds, once),
    "your ring, slow wire": predict(my_rounds, once, half),
    "1 server": predict([push, pull], 3 * GRADIENT),
    "1 server, slow wire": predict([push, pull], 3 * GRADIENT, half),
}
limit = predict([[(2, 3, 1.5 * GRADIENT)]], 0, half)
predictions |= {"1.5 gradients, both ways": limit, "1.5 gradients, one way": limit}
limping = None if no_wires else Testbed(4, WIRE, wires={3: SLOW_WIRE})  # nodes count from 1
cases = {
    "your ring": ("ring", switch),
    "your ring, slow wire": ("ring", limping),
    "1 server": ("1 server", switch),
    "1 server, slow wire": ("1 server", limping),
    "1.5 gradients, both ways": ("1.5 gradients", limping),
    "1.5 gradients, one way": ("one way", limping),
}
slowed = measure(6, cases)

# %%
against(slowed, predictions)
for name in ("your ring", "1 server"):
    print(f"{name}, slow wire vs none:", compare(slowed[f"{name}, slow wire"], slowed[name]))
reached = share(slowed["your ring, slow wire"], slowed["1.5 gradients, both ways"])
print(f"Your ring reaches {reached} of the limit of the slow wire.")
results.compare_guess(3, compare(slowed["your ring"], slowed["your ring, slow wire"]))
slow_messages = stored.data["slow"] if no_wires else seen["your ring, slow wire"]["messages"]
draw({"Your ring, with a slow wire at rank 2": slow_messages})

# %% [markdown]
# Find a bar that is *not* long, and the gap after it. A bar includes the time until its receiver is ready, so a long
# bar need not be on the slow wire.
#
# **Why were we wrong?** Compare the last two rows. (In *one way*, only rank 2 sends.) If they differ, two-way traffic
# explains part of the error, probably because acknowledgements for one neighbour wait behind data for the other in the
# slow wire's queue. The rest remains unexplained.

# %%
results.answer(2, "Why does one slow wire slow all ranks, and why not the server's workers?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# In each step, every rank needs a chunk from its left neighbour, so a delay reaches the next rank one step later, and
# all ranks after n − 1 steps. From then on, the ring runs at the pace of its slowest link. A single server's wire is
# busy with three gradients. A slow worker sends only one, which takes less time even at half the rate. The server would
# be slower if *its* wire were slow.
#
# </details>

# %% [markdown]
# ## 7 · A switch with a shallow queue {read 3, wait 1.1}
#
# With as many servers as ranks, each rank sends as many bytes as in your ring, so the model predicts almost equal
# times.

# %%
ranks4 = range(4)
pushes = [(a, b, GRADIENT / 4) for a in ranks4 for b in ranks4 if a != b]
predictions = {
    "your ring": predict(my_rounds, once),
    "n servers": predict([pushes, pushes], once),
}
for name, ms in predictions.items():
    print(f"{name} predicted: {ms:.1f} ms")

# %% [markdown]
# Until now, the switch could store packets for up to 100 ms. Real switches often store far less. The next one stores 12
# kB per wire, about 8 packets, and drops what doesn't fit.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which of the two suffers?
#
# </div>

# %%
CHOICES = ("your ring", "n servers", "your ring, n servers", "neither")
results.guess(4, "who takes significantly longer with a shallow queue", ..., choices=CHOICES)

# %%
shallow = None if no_wires else Testbed(4, WIRE, queue=QUEUE)
cases = {}
for name, method in {"your ring": "ring", "n servers": "n servers", "MPI": "MPI_Allreduce"}.items():
    cases[name], cases[f"{name}, shallow"] = (method, switch), (method, shallow)
queued = measure(7, cases)

# %%
predictions |= {f"{name}, shallow": ms for name, ms in predictions.items()}
against(queued, predictions)
suffers, segments = [], 4 * 1.5 * GRADIENT / 1448  # of 1,448 bytes
for name in ("your ring", "n servers", "MPI"):
    effect = compare(queued[f"{name}, shallow"], queued[name])
    suffers += [name] if effect.verdict == "slower" and name != "MPI" else []
    print(f"{name}, shallow vs deep: {effect}")
    counts = (stored.data["resent"] if no_wires else resent)[f"{name}, shallow"]
    again = ", ".join(f"{count:.0f}" for count in counts)
    print(f"    of {segments:,.0f} segments, sent again per all-reduce:", again)
results.compare_guess(4, ", ".join(suffers) or "neither")
server_messages = stored.data["shallow"] if no_wires else seen["n servers, shallow"]["messages"]
draw({"n servers, shallow queue: chunk → receiver": server_messages})

# %% [markdown]
# **Why were we wrong?** The model has cables but no queues. On average, three senders share a server's wire evenly. But
# their bursts meet in its queue. In a deep queue they wait, and a shallow one overflows. This is
# [**incast**](../docs/learn/glossary.md#incast), first described for storage ([Phanishayee et al.
# 2008](https://www.usenix.org/events/fast08/tech/phanishayee.html)). TCP sends a lost packet again when later ones
# reveal the loss, or after a timeout of at least 200 ms in Linux. Which pushes ended late, and by how much? A server
# receives in rank order, so some late pushes only waited their turn.

# %%
results.answer(3, "Why do rings survive where n servers don't, with equal bytes?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# In a ring, only one rank ever sends to a given rank. If all wires have the same rate, it sends no faster than the
# receiver's wire empties the queue. Servers receive from all ranks at once, so bursts meet. In `MPI_Allreduce`, ranks
# keep changing partners. The next partner may start to send before a pair has finished, which is probably why MPI loses
# a few packets, sometimes enough to matter.
#
# </details>

# %% [markdown]
# ## 8 · Two racks {read 3.5, wait 0.9}
#
# In a data centre, nodes are mounted in *racks*, each with a switch. An [**uplink**](../docs/learn/glossary.md#uplink)
# connects it to the other racks, and often carries less than the rack's nodes could send at once.
#
# ```mermaid
# flowchart TB
#     accTitle: Four nodes in two racks
#     accDescr: 1 Gbit/s wires lead to a switch in each rack, and 100 Mbit/s uplinks to a switch above.
#     top["switch"] -- "uplink, 100 Mbit/s" --- r0["rack 0 switch"]
#     top -- "uplink, 100 Mbit/s" --- r1["rack 1 switch"]
#     r0 -- "1 Gbit/s" --- n0(["node 0"])
#     r0 --- n1(["node 1"])
#     r1 --- n2(["node 2"])
#     r1 --- n3(["node 3"])
# ```
#
# Compare four ways to add up a gradient:
#
# - **ring by rack**: your ring, in the order 0, 1, 2, 3.
# - **ring across**: your ring, but in the order 0, 2, 1, 3.
# - **two levels** (`two_levels` in `work/travel.py`): a reduce-scatter in the rack, after which each node has half of
#   the gradient; an all-reduce of each half between the racks; and an all-gather in the rack.
# - **MPI_Allreduce**, which knows nothing about racks.

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Count the bytes that cross an uplink in one direction. How many times faster is *two levels* than the
# ring by rack?
#
# </div>

# %%
results.guess(5, "two levels vs the ring by rack", ..., unit="×")

# %%
RACKS = (0, 0, 1, 1)  # of each rank
wires = [f"{side} {rank}" for side in ("from", "to") for rank in ranks4]
racked = {"other": dict.fromkeys(wires, 10 * bandwidth), "racks": RACKS}
seat = (0, 2, 1, 3)  # the node of each rank in the ring across
crossing = [[(seat[a], seat[b], size) for a, b, size in messages] for messages in my_rounds]
near = [(rank, rank ^ 1, GRADIENT / 2) for rank in ranks4]  # 0 with 1, 2 with 3
far = [(rank, rank ^ 2, GRADIENT / 4) for rank in ranks4]  # 0 with 2, 1 with 3
predictions = {
    "ring by rack": predict(my_rounds, once, **racked),
    "ring across": predict(crossing, once, **racked),
    "two levels": predict([near, far, far, near], once, **racked),
}
for name, ms in predictions.items():
    print(f"{name:14} predicted: {ms:7.1f} ms")

# %%
uplinks = None if no_wires else Testbed(4, FAST_WIRE, racks=2, uplink=WIRE)
cases = {
    "ring by rack": ("ring", uplinks),
    "ring across": ("ring across", uplinks),
    "two levels": ("two levels", uplinks),
    "MPI_Allreduce": ("MPI_Allreduce", uplinks),
    "1.5 gradients, one message": ("1.5 gradients", uplinks),
}
divided = measure(8, cases)

# %%
against(divided, predictions)
across = compare(divided["ring across"], divided["ring by rack"])
levels = compare(divided["two levels"], divided["ring by rack"])
print("ring across vs by rack:", across)
print("two levels vs ring by rack:", levels)
crossed = share(divided["ring by rack"], divided["1.5 gradients, one message"])
print(f"The ring by rack reaches {crossed} of its limit, the uplinks.")
results.compare_guess(5, levels)

# %% [markdown]
# The order of the ranks is part of the algorithm. If a launcher alternates between the racks, the same script sends
# twice as many bytes over the uplinks. Slurm's `--distribution=block` and `cyclic`
# ([documentation](https://slurm.schedmd.com/sbatch.html#OPT_distribution)) make the same difference one level down,
# where a node's ranks share its wire. Like *two levels*, MPI exchanges data with nearby ranks first (section 9).

# %%
results.answer(4, "Your cluster has racks. What do you check before you blame the network?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# First check the order of the ranks. Neighbours in the ring belong in the same rack, so that each uplink carries one
# chunk each way per step. Then consider the algorithm. *Two levels* sends one gradient over an uplink, and the ring by
# rack sends 1.5. Finally, look for a slow wire (section 6) and retransmitted packets (section 7).
#
# </details>

# %% [markdown]
# ## 9 · Which algorithm does MPI use? {read 4, do 7, optional}
#
# MPI libraries have two more algorithms, for power-of-two rank counts:
#
# - [**Recursive doubling**](../docs/learn/glossary.md#recursive-doubling). In round 0, neighbours exchange their
#   *whole* gradients and add them. In round 1, the partners are 2 apart, then 4, and so on.
# - [**Recursive halving**](../docs/learn/glossary.md#recursive-halving). In round 0, neighbours exchange *half* of the
#   gradient, and each gets the half that it will add up. In round 1, they exchange half of that half with the rank at a
#   distance of 2, and so on, until each rank has one complete chunk. Then these rounds run backwards, without adding,
#   to gather the chunks.
#
# ### Exercise 3 · Recursive halving
#
# Write `halving(n, n_bytes)`. It returns the rounds of the first phase, until each of `n` ranks has one complete chunk.
# As in `predict`, a round is a list of messages, which are tuples `(source, dest, bytes)`, in any order. The partner at
# a `distance` from a rank is `rank ^ distance`, the exclusive or (5 ^ 1 is 4, 4 ^ 1 is 5). `n` is a power of two, and a
# single rank has no rounds.


# %%
def halving(n, n_bytes):
    """Return the rounds of a reduce-scatter by recursive halving on n ranks."""
    ### BEGIN SOLUTION
    rounds, distance = [], 1
    while distance < n:
        n_bytes = n_bytes / 2
        rounds.append([(rank, rank ^ distance, n_bytes) for rank in range(n)])
        distance *= 2
    return rounds
    ### END SOLUTION


# %% tags=["nbval-check-output"]
halving = check(3, halving)

# %% [markdown]
# Which prediction fits `MPI_Allreduce` on four nodes? On one switch, two algorithms send the same number of bytes, but
# two racks show which is which.

# %%
doubling = [[(rank, rank ^ distance, GRADIENT) for rank in ranks4] for distance in (1, 2)]
there = halving(4, GRADIENT)
candidates = {
    "ring": (my_rounds, once),
    "doubling": (doubling, 2 * GRADIENT),
    "halving": (there + there[::-1], once),
}
print("ms                one switch   two racks")
for name, (rounds, added) in candidates.items():
    one, two = predict(rounds, added), predict(rounds, added, **racked)
    print(f"{name + ', predicted':18}{one:8.1f}{two:12.1f}")
print("MPI_Allreduce on one switch:", wired["MPI_Allreduce"])
print("MPI_Allreduce on two racks:", divided["MPI_Allreduce"])

# %%
results.answer(5, "Which algorithm does MPI_Allreduce use?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# MPICH 5 uses halving for large gradients on four ranks. On one switch, it takes almost as long as a ring, because both
# send 1.5 gradients. On two racks, only the prediction for halving fits.
#
# </details>
#
# ### Beyond this machine
#
# This is a model, not a measurement. It assumes one rank per node and ignores the sums.
#
# $$T = \text{rounds} \cdot \text{latency} + \text{gradients} \cdot \frac{S}{\text{bandwidth}}$$
#
# Latency and bandwidth are published for two networks in one cluster ([OSU benchmarks,
# 2021](https://gist.github.com/jfgrimm/3af692a5475bdd4ed836b5a18197a209)).

# %% tags=["nbval-check-output"]
PUBLISHED = {"Gigabit Ethernet": (24.59e-6, 116.19e6), "InfiniBand": (0.98e-6, 10.32e9)}
FORMULAS = {  # rounds, and gradients through the busiest wire, on n ranks
    "1 server": lambda n: (2, 2 * (n - 1)),
    "ring": lambda n: (2 * (n - 1), 2 * (n - 1) / n),
    "doubling": lambda n: (math.log2(n), math.log2(n)),
    "halving": lambda n: (2 * math.log2(n), 2 * (n - 1) / n),
}
for network, (seconds, rate) in PUBLISHED.items():
    heads = ("8 ranks, 8 kB", "8, 102 MB", "512 ranks, 8 kB", "512, 102 MB")
    print(f"{network + ', ms':20}" + "".join(f"{head:>17}" for head in heads))
    for name, formula in FORMULAS.items():
        cells = ""
        for n, size in itertools.product((8, 512), (8e3, 102e6)):
            rounds, gradients = formula(n)
            ms = 1e3 * (rounds * seconds + gradients * size / rate)
            cells += f"{float(f'{ms:.3g}'):17,g}"
        print(f"{name:20}{cells}")

# %% [markdown]
# Sending fewer bytes wins for large gradients. For small ones, fewer rounds can win, as doubling does on InfiniBand. On
# Gigabit Ethernet, halving wins even with 8 kB. Rings are among the algorithms that training libraries choose from
# ([NCCL](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo),
# [Gloo](https://github.com/pytorch/gloo/blob/main/docs/algorithms.md)). They work with any number of ranks, and on any
# tree of links (Patarasuk and Yuan 2009, [doi 10.1016/j.jpdc.2008.09.002](https://doi.org/10.1016/j.jpdc.2008.09.002)).

# %% [markdown]
# ## 10 · Cut the layer, not the batch {read 3, do 9, optional}
#
# A network that is too large for one rank is itself split, which is called [**model
# parallelism**](../docs/learn/glossary.md#model-parallelism). In a dense layer, `x @ weights + bias`, each rank again
# has some *rows* of `x`, but now only some of the **neurons**, which are columns of `weights` and entries of `bias`.
#
# ### Exercise 4 · A dense layer on all ranks
#
# Write `split_dense(ranks, x, weights, bias)`. It returns the rank's rows of the *whole* layer's output, as an unsplit
# layer would compute them.
#
# - With `ranks.Allgather(mine, everybody)`, each rank gets all rows, and applies its neurons to them.
# - Then each rank has its neurons' results for all rows, and needs all neurons' results for its own rows. This exchange
#   is an [**all-to-all**](../docs/learn/glossary.md#all-to-all), `ranks.Alltoall(send, receive)`. It cuts `send` into
#   `n` equal blocks *as laid out in memory*, and sends block *r* to rank *r*. `receive` gets one block from each rank,
#   in rank order.
#
# Use any messages and collectives, but send no more bytes than these two exchanges. All ranks have the same number of
# rows and the same number of neurons, in float32. Use only `ranks`, and don't change the arrays in place.

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
# The batch column gives the number of images on all ranks together. If you cut the batch, each rank sends the gradient
# of all weights in a ring. If you cut the neurons, it sends rows and results in the forward pass, and as much again in
# the backward pass. Which is less?

# %%
n = 8  # ranks
print(f"{'MB sent by a rank':28}{'batch':>6}{'cut the batch':>16}{'cut the neurons':>17}")
for name, inputs, neurons in (
    ("VGG-16, first dense layer", 25_088, 4_096),
    ("ResNet-50, its only one", 2_048, 1_000),
):
    for batch in (64, 4_096):
        by_batch = 2 * (n - 1) / n * 4 * inputs * neurons
        by_neurons = 2 * (n - 1) * 4 * batch / n * (inputs + neurons / n)
        print(f"{name:28}{batch:>6}{by_batch / 1e6:>16,.1f}{by_neurons / 1e6:>17,.1f}")

# %% [markdown]
# With a wide layer and a small batch, cut the layer. Convolutions have few weights and many activations, so CNNs use
# data parallelism. For language models, [**tensor parallelism**](../docs/learn/glossary.md#tensor-parallelism) cuts
# layers too, but all ranks have the same rows and all-reduce the results. [**FSDP**](../docs/learn/glossary.md#fsdp)
# and [**ZeRO**](../docs/learn/glossary.md#zero) split your ring into its two phases (lab 11), and [**pipeline
# parallelism**](../docs/learn/glossary.md#pipeline-parallelism) gives each rank some layers.

# %% [markdown]
# ## 11 · Send less, and send it in time {read 3, optional}
#
# **Send less.** [**Gradient compression**](../docs/learn/glossary.md#gradient-compression) sends numbers with fewer
# bits, such as [**FP16**](../docs/learn/glossary.md#fp16) (lab 07), or fewer numbers. For example,
# [**top-k**](../docs/learn/glossary.md#top-k) sends the *k* numbers that are largest in magnitude, each with its index.
# They can't be added on the way, so each rank sends its pairs to every other rank. The numbers that aren't sent are
# added to the next gradient. Without this [**error feedback**](../docs/learn/glossary.md#error-feedback), weights with
# small but steady gradients never move (Lin et al. 2018, [arXiv 1712.01887](https://arxiv.org/abs/1712.01887)).
#
# **Send it in time.** In the [**backward pass**](../docs/learn/glossary.md#backward-pass), the gradient of the *last*
# layer is ready first. If it is sent while the next one is being computed, communication and computation
# [**overlap**](../docs/learn/glossary.md#overlap) (lab 11). But the next [**forward
# pass**](../docs/learn/glossary.md#forward-pass) begins with the *first* layer. In a first-in, first-out queue, its
# gradient waits behind the largest one (411 of 554 MB in VGG-16's first dense layer). Intel's MLSL, now oneCCL,
# therefore cut long messages into chunks and sent urgent ones first (Sridharan et al. 2018, [arXiv
# 1801.08030](https://arxiv.org/abs/1801.08030)).

# %% [markdown]
# ## Questions {read 1.5}
#
# 1. Is there a best ratio of parameter servers to workers?
# 2. A ring gives the average to every rank. Who does the server's work?
# 3. What communication do data parallelism and model parallelism (section 10) need?
# 4. What did script authors gain when Horovod replaced TensorFlow's parameter servers with MPI?
# 5. Why is Horovod's efficiency on 512 GPUs 90% with ResNet-101, but only 68% with VGG-16?
# 6. With top-k (section 11), a rank sends 1% of the numbers. Beyond how many ranks does it send more than a ring would
#    in float32?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Answers**
#
# 1. For a gradient of S bytes, a server receives and sends (n − 1) S/k, so more servers take less time, up to k = n. If
#    all n ranks are workers and servers, there is no ratio to choose, and they send as many bytes as a ring.
# 2. All ranks do. Each adds up one chunk and distributes it.
# 3. Data parallelism needs an all-reduce, or a reduce-scatter and an all-gather, of *gradients*. Model parallelism
#    needs an all-to-all and an all-gather of *activations*. Unshared weights don't travel.
# 4. The script needs no roles, no server addresses and no ratio to tune.
# 5. VGG-16 sends more bytes per multiplication (section 1), and GPUs multiply faster in its large, regular
#    convolutions.
# 6. A ring sends 2(n − 1)/n · S. Top-k sends 0.02(n − 1) · S, as each number travels with its index. They are equal at
#    n = 100.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Timing, and what goes wrong**
#
# At minute 40, anyone still on exercise 2 should use the solution.
#
# In exercise 1, blocking pulls hang with the long array, where two servers send to each other. In exercise 2,
# `chunks[i] = chunks[i] + buffer` leaves `total` unchanged. In exercise 3, halve `n_bytes` before the first round. In
# exercise 4, `blocks.reshape(rows, -1)` without the transposition has the right shape but the wrong rows.
#
# On other machines:
#
# - With one core, figures may be marked as not valid. Don't use them to test the model.
# - On other CPUs, only the speed of addition differs, as the wires are the limit.
# - How many packets a shallow queue drops, and whether MPI suffers, is down to chance.
#
# </div>

# %% [markdown]
# ## Remember
#
# - An all-reduce is a reduce-scatter followed by an all-gather. A ring does both in 2(n − 1) steps, and each rank sends
#   less than two gradients, whatever n is.
# - Correct sums and byte counts don't make a fast ring. Look at who waits for whom.
# - A ring is as slow as its slowest link. It avoids incast, as each rank receives from one rank only.
# - The order of the ranks determines what an uplink carries.
# - A model with three measured numbers predicts times until something that it lacks, such as a queue, matters.

# %% jupyter={"source_hidden": true}
if not no_wires:
    extra = {"slow": slow_messages, "shallow": server_messages, "resent": resent}
    record("06-wires", figures, QUICK, **extra)
rows = [
    ("1 server, 4 nodes", wired["1 server"], predict([push, pull], 3 * GRADIENT)),
    ("your ring", wired["your ring"], predict(my_rounds, once)),
    ("the colleague's ring", wired["colleague's ring"], predict(their_rounds, once)),
    ("MPI_Allreduce", wired["MPI_Allreduce"], predict([near, far, far, near], once)),
    ("your ring, one slow wire", slowed["your ring, slow wire"], predict(my_rounds, once, half)),
    ("your ring, shallow queue", queued["your ring, shallow"], predict(my_rounds, once)),
    ("n servers", queued["n servers"], predict([pushes, pushes], once)),
    ("n servers, shallow queue", queued["n servers, shallow"], predict([pushes, pushes], once)),
    ("your ring by rack", divided["ring by rack"], predict(my_rounds, once, **racked)),
    ("your ring across racks", divided["ring across"], predict(crossing, once, **racked)),
    ("two levels", divided["two levels"], predict([near, far, far, near], once, **racked)),
]
picture, axis = plt.subplots(figsize=(10, 5))
for place, (_, figure, ms) in enumerate(rows):
    error = [[figure.value - figure.low], [figure.high - figure.value]]
    style = {"fmt": "o", "color": plots.BLUE, "capsize": 5}
    axis.errorbar(figure.value, place, xerr=np.nan_to_num(error), **style)
    axis.plot([ms, ms], [place - 0.35, place + 0.35], color=plots.VERMILION, marker="")
axis.set_yticks(range(len(rows)), [name for name, *_ in rows])
axis.invert_yaxis()
title = "All-reduces on 4 nodes: predicted (lines) and measured (points, 95% intervals)"
axis.set(xlabel="time (ms)", title=title, xlim=(0, None))
said = [f"{name}: {figure}, predicted {ms:.0f} ms" for name, figure, ms in rows]
watched = [others for _, figure, _ in rows for others in figure.contention]
plots.show(picture, alt=f"{title}. {'; '.join(said)}.", keep=results, watched=watched)
table = [(name, "", figure, f"{ms:.0f} ms") for name, figure, ms in rows]
results.table(f"an all-reduce of {GRADIENT / 1e6:g} MB", table)

# %% [markdown]
# **Next:** [lab 07](07_horovod_mnist.ipynb) uses all of this in six steps.
