# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: make one matmul thousands of times faster, and find your machine's limit
#     needs: [MPI, TensorFlow]
#     better_with: [cores, compiler]
# ---

# %% [markdown]
# # 00 · Welcome: how fast is your machine?
#
# **You will** take one matrix multiplication (*matmul*) from plain Python to all cores and 16 bits, which is thousands
# of times faster; find out how far the limit of your machine still is; and see what happens when two processes share
# the cores. A network spends most of its time in matmuls.
#
# **Why deep learning on CPUs?** Large networks are mostly trained on GPUs. CPUs do much of the other work:
#
# - **Memory.** One server can hold models that fill eight GPUs. Two Xeon 6 CPUs wrote a token of DeepSeek-R1, which has
#   671 billion parameters, every 68 ms ([LMSYS, 2025](https://lmsys.org/blog/2025-07-14-intel-xeon-optimization)).
# - **Classic machine learning.** K-Means took 7.4 s instead of 192.1 s with a faster library ([scikit-learn-intelex's
#   notebook](https://github.com/uxlfoundation/scikit-learn-intelex/blob/main/examples/notebooks/kmeans.ipynb)).
# - **Settings decide.** The same 18 cores trained ResNet-50 at 5.48 images/s, and at 33.62 with another build of
#   TensorFlow and its thread settings, in a published comparison (lab 03).
#
# **Time** {minutes}
#
# **Connects to** every other lab.
#
# Each lab is a notebook: a column of cells. Click a cell and press **Shift + Enter**: it runs, and the next one is
# selected. Work from top to bottom. If a cell hangs, press **■** in the toolbar; you lose nothing. If even that does
# nothing, choose *Restart Kernel* from the *Kernel* menu, and run the lab again from the top. If a cell says
# `No module named 'labkit'`, click the kernel's name at the top right and choose **CPU labs**.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("00", globals())
cores = machine.usable_cores

# %%
import time
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from labkit.display import plots
from labkit.doctor import as_text, examine, summary
from labkit.measure import alternate, compare, per_second, record, recorded, share
from labkit.mpi import run_ranks
from labkit.roofline import peaks
from labkit_classroom import join

# %%
N = 256 if QUICK else 2048 if cores <= 8 else 4096  # the matrices are N×N
CORNER = 8 if QUICK else 32  # pure Python computes CORNER×CORNER of the results
ROUNDS = 2 if QUICK else 9
RANK_SIZES = (128, 256) if QUICK else (256, 2048)  # of the ranks' matrices, section 5
GFLOP = 2 * N**3 / 1e9  # N×N results, each of N multiplications and N additions

# %% [markdown]
# ## 1 · Is this machine ready? {read 2.5, wait 0.1}
#
# The doctor prints three lines: the machine, what needs attention, and which labs can run. Its longer tests follow at
# the end of this lab.

# %%
print(summary(examine(quick=True)))

# %% [markdown]
# Two facts matter in every lab:
#
# - The number of [**cores**](../docs/glossary.md#core) that you can really use. A machine may have 64 cores and give
#   this notebook only 4. Two *hardware threads* of one core share its arithmetic units, so they count as one core. Some
#   virtual machines show them as two cores; the doctor compares the speed of two cores with that of one.
# - The [**instruction sets**](../docs/glossary.md#instruction-set), such as [AVX-512](../docs/glossary.md#avx-512). The
#   glossary has a table of the CPUs that have each.
#
# **In a room with an instructor**, enter the address and code of the board, and run the next cell. Nothing is sent
# unless you join, and the cell prints everything that will ever be sent. `SEAT` tells the instructor where you are. To
# raise your hand, run `./lab hand` in a terminal (File, New, Terminal). `./lab leave` leaves the board and deletes your
# data from it. If you work alone, skip the cell.

# %%
ADDRESS = ""  # such as "http://192.168.1.5:8500"
CODE = ""  # such as "K7Q2M9"
SEAT = ""  # such as "row 2, left"; left empty, you get a number

if ADDRESS:
    join(ADDRESS, CODE, SEAT)

# %% [markdown]
# ## 2 · Plain Python, and the limit on paper {read 3.5, do 3.5}
#
# A matmul in plain Python has three loops. The cell computes only one corner of the result, as all of it would take too
# long.


# %%
def python_matmul(a, b):
    """Multiply two matrices, which are lists of rows."""
    c = [[0.0] * len(b[0]) for _ in a]
    for i in range(len(a)):
        for j in range(len(b[0])):
            for k in range(len(b)):
                c[i][j] += a[i][k] * b[k][j]
    return c


a, b = np.random.default_rng(0).random((2, N, N), np.float32)
rows, columns = a[:CORNER].tolist(), b[:, :CORNER].tolist()
began = time.perf_counter()
corner = python_matmul(rows, columns)
seconds = time.perf_counter() - began
print(f"Plain Python, {CORNER}×{CORNER} of {N:,}×{N:,} results: {seconds:.2f} s")
print(f"All of them would take at least {seconds * (N / CORNER) ** 2 / 60:,.0f} min.")
print("NumPy computes the same:", np.allclose(corner, (a @ b)[:CORNER, :CORNER], rtol=1e-4))

# %% [markdown]
# *At least*, because this corner's columns stay in the cache, and all columns as Python lists would not.
#
# How fast could it be? A core does most of its arithmetic with **FMA** instructions (fused multiply-add), which
# multiply two registers and add the product to a third. A register has several **lanes** with one number each, and a
# core starts one or more FMAs in each cycle of its clock. The number of cores, the clock, lanes and FMAs give the
# *paper peak*. This table is for numbers of 32 bits ([FP32](../docs/glossary.md#fp32)).
#
# | core | lanes | FMAs per cycle |
# | --- | ---: | ---: |
# | Intel with AVX2 (from Haswell), AMD Zen 2 and Zen 3 | 8 | 2 |
# | Intel Xeon with AVX-512 (most models) | 16 | 2 |
# | Intel Core with AVX-512 | 16 | 1 |
# | AMD Zen 4, whose units have 256 bits | 16 | 1 |
# | AMD Zen 5 in servers and desktops (in laptops, as Zen 4) | 16 | 2 |
# | Arm Neoverse N1 and N2, Neoverse V2 | 4 | 2, 4 |
#
# ### Exercise 1 · The paper peak
#
# Write `paper_peak(cores, ghz, lanes, fmas)`. It returns the peak of all cores in GFLOP/s, that is, in 10⁹ operations
# per second. A multiplication and an addition are two operations. `ghz` is the clock in 10⁹ cycles per second, and
# `fmas` counts the FMA instructions that a core starts in each cycle.
#
# First run both cells unchanged. Then replace the two lines `YOUR CODE HERE` and `raise NotImplementedError()` with
# your answer, and run both again.


# %%
def paper_peak(cores, ghz, lanes, fmas):
    """Return the peak of all cores in GFLOP/s."""
    ### BEGIN SOLUTION
    return cores * ghz * lanes * fmas * 2
    ### END SOLUTION


# %% tags=["nbval-check-output"]
paper_peak = check(1, paper_peak)

# %% [markdown]
# The check looks at what your answer does, not at how you wrote it.
#
# - *not attempted*: the two lines are still there.
# - *not yet*: you see what was expected and what your code returned, or which of your lines failed. A wrong answer gets
#   a hint; each new attempt gets the next one. For the last hint, which is nearly the answer, run `check.hint(1)` in a
#   cell of your own.
# - *passed*: the kit's solution follows, folded, for comparison.
#
# Until your answer passes, the lab continues with the solution, so you are never stuck. `./lab reset 00` in a terminal
# gives you a fresh copy and keeps yours.
#
# The next cell enters the numbers of your machine. `lanes` follows from the instruction sets. Look up `fmas` in the
# table; if you don't know your CPU's kind, keep 2, and section 3 will tell. The clock comes from `/proc/cpuinfo`. A
# real clock isn't constant. Cores speed up while few of them work (turbo), and slow down when they get hot. A virtual
# machine often reports only a nominal clock, and Arm CPUs report none, for which the cell assumes 2.5 GHz.

# %%
lanes = 16 if "AVX-512" in machine.isa else 8 if "AVX2" in machine.isa else 4
fmas = 2  # see the table

lines = Path("/proc/cpuinfo").read_text().splitlines()
clocks = [float(line.split(":")[1]) / 1000 for line in lines if line.startswith("cpu MHz")]
ghz = max(clocks, default=2.5)
peak = paper_peak(cores, ghz, lanes, fmas)
print(f"{cores} × {ghz:.2f} GHz × {lanes} lanes × {fmas} FMAs × 2 = {peak:,.0f} GFLOP/s on paper")
print(f"Plain Python reached {2 * CORNER**2 * N / seconds / 1e9:.3f} GFLOP/s.")

# %% [markdown]
# ## 3 · NumPy, on one thread and on all cores {read 2.5, wait 0.4}
#
# NumPy's `a @ b` calls OpenBLAS, a library in C and assembly language. It computes blocks of the result that fit into
# registers and caches, and starts a [thread](../docs/glossary.md#thread) on each core. The same measurement also runs
# nothing but multiply-adds on registers, on all cores. No matmul can be faster, so this is called the *limit*. Without
# a C compiler, and on Arm, the paper peak stands in for it.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Boxes like this one ask what you expect before you measure it. How many GFLOP/s will NumPy reach on
# all cores? You know the paper peak. Replace the three dots with a number, or just run the cell. Your guess appears
# next to the measured figure, in the notebook and in your report.
#
# </div>

# %%
results.guess(1, "NumPy on all cores", ..., unit="GFLOP/s")


# %%
def limit(dtype):
    """Return the GFLOP/s of multiply-adds on registers, on all cores, or else the paper peak."""
    wider = 1 if dtype == "float32" else 16 if "AMX" in machine.isa else 2
    measured = peaks.fastest_instructions(machine.isa).get(dtype, {})
    return measured.get("speed", paper_peak(cores, ghz, wider * lanes, fmas))


def with_threads(threads):
    """Multiply with a number of NumPy threads."""
    with threadpool_limits(threads):
        a @ b


python_gflop = 2 * CORNER**2 * N / 1e9
limit("float32")  # compiles the instructions
variants = {
    "plain Python": per_second(lambda: python_matmul(rows, columns), python_gflop),
    "NumPy, 1 thread": per_second(lambda: with_threads(1), GFLOP),
    "NumPy, all cores": per_second(lambda: with_threads(cores), GFLOP),
    "limit": lambda: limit("float32"),
}
fp32 = alternate(variants, ROUNDS, "GFLOP/s", "section 3")

# %%
for name, speed in fp32.items():
    print(f"{name:17} {speed}")
gain = compare(fp32["NumPy, all cores"], fp32["plain Python"])
print(f"\nAll cores vs plain Python: {gain}")
print("All cores vs 1 thread:", compare(fp32["NumPy, all cores"], fp32["NumPy, 1 thread"]))
results.compare_guess(1, fp32["NumPy, all cores"])

# %% [markdown]
# **How to read this.** Each variant ran once per round, in changing order, so a slow phase of the machine affects all
# of them. A figure is the median of its rounds, with an interval that contains the true median in at least 95% of
# cases. Ratios are taken within each round. *Faster* means that the interval of the ratio lies above 1. Such verdicts
# can err: of comparisons between two *equal* variants, 1 in 32 with six rounds, and 1 in 26 with nine, comes out as
# faster or slower. In a lab with eight comparisons and six rounds, that happens at least once in 22% of labs.
#
# **Why were we wrong?** A guess that is off by more than 10% has two possible reasons. The clock isn't the reported
# one, or the matmul doesn't keep the arithmetic units busy. The limit tells them apart. It runs nothing but FMAs, so
# its speed divided by the paper peak at 1 GHz is the clock.

# %%
clock = fp32["limit"].value / paper_peak(cores, 1, lanes, fmas)
print(f"Clock: {clock:.2f} GHz according to the limit, {ghz:.2f} GHz reported")
reached = share(fp32["NumPy, all cores"], fp32["limit"])
print(f"NumPy on all cores reaches {reached} of the limit.")
cycles = 2 * clock / fp32["plain Python"].value  # a multiply-add is two operations
print(f"Plain Python takes {cycles:.0f} cycles for a multiply-add.")
print(f"A core can do {lanes * fmas} multiply-adds in one cycle.")

# %% [markdown]
# Is that clock plausible? Servers run at 2 to 5 GHz, and laptops at up to 6. If it is about half of what you expect,
# and the doctor warned about cores, then your two cores are one: set `cores = 1` in section 2. Otherwise a clock that
# is half or twice the expected one means that `fmas` is wrong. Change it, and run the cells from there. Without a C
# compiler, and on Arm, the clock was not measured: a share above 100% means that the real one is higher than `ghz`.
#
# The last two lines explain the largest step. Python interprets each multiply-add: it looks up three lists, makes a new
# number, and stores it. The library multiplies all lanes of a register with one instruction.

# %%
results.answer(1, "What explains the gap between your guess and the measured speed?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# It depends on the machine. A virtual machine that reports a nominal clock runs faster than that, so the paper peak is
# too low by the same factor. A laptop that reports its turbo clock runs slower once all cores are busy, so the paper
# peak is too high. Some Intel CPUs lower the clock further for AVX-512. The rest is the matmul itself: part of the
# cycles goes to loading and storing, and the threads wait for each other. The limit is also the best of short bursts,
# while a matmul is a mean over a longer time, in which a laptop gets warm. Where all cores are hardly faster than one
# thread, other programs use the cores, or the cores are hardware threads of one core.
#
# </details>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Ask for cores, clock and the factor between Python and all cores, and write the ranges on the
# board: they explain later why neighbours measure different speeds. What changes on other machines:
#
# - Without a C compiler or AVX2, and on Arm, the limit is the paper peak with the reported clock. Shares above 100%
#   then mean that the clock is higher than assumed; students enter a better one for `ghz`.
# - One usable core: "all cores" is one thread, and the two ranks of section 5 share it.
# - More than 64 cores: NumPy's OpenBLAS starts at most 64 threads.
# - No 16-bit instructions: section 4 shows recorded figures, marked as such in lines and picture.
# - AMX: its limit is many times that of FP32, and TensorFlow's matmul reaches a small share of it.
# - 64 cores with two NUMA nodes: the matrices are 4,096×4,096, and lie in the memory of one node, so all cores reach a
#   lower share of the limit than on one node.
# - Zen 4: with `fmas = 2`, the clock comes out at half. Let the students find out why.
# - P and E cores: only cores of one type count, but NumPy's threads may also run on the others.
#
# </div>

# %% [markdown]
# ## 4 · Half the bits {read 2, wait 0.5}
#
# A register holds twice as many numbers of 16 bits as of 32. CPUs with BF16 instructions multiply
# [bfloat16](../docs/glossary.md#bfloat16) numbers in all these lanes, and CPUs with [AMX](../docs/glossary.md#amx)
# multiply whole tiles of them. NumPy has no such type, but TensorFlow does. It calls **oneDNN**, the library that
# computes most layers in this workshop. For a CPU without such instructions, the cell shows figures that were recorded
# on another machine.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times faster is a TensorFlow matmul in 16 bits than in 32?
#
# </div>

# %%
results.guess(2, "16 bits vs 32 bits", ..., unit="×")

# %%
import tensorflow as tf  # takes some seconds

tf.config.threading.set_intra_op_parallelism_threads(cores)

# %%
if {"BF16", "AMX"} & {*machine.isa}:
    x, y = tf.constant(a), tf.constant(b)
    x16, y16 = tf.cast(x, tf.bfloat16), tf.cast(y, tf.bfloat16)
    variants = {
        "TensorFlow, 32 bits": per_second(lambda: tf.matmul(x, y), GFLOP),
        "TensorFlow, 16 bits": per_second(lambda: tf.matmul(x16, y16), GFLOP),
        "limit, 16 bits": lambda: limit("bfloat16"),
    }
    half = alternate(variants, ROUNDS, "GFLOP/s", "section 4")
    record("00-half", half, QUICK)
else:
    half = recorded("00-half").figures

# %%
for name, speed in half.items():
    print(f"{name:23} {speed}")
halved = compare(half["TensorFlow, 16 bits"], half["TensorFlow, 32 bits"])
print(f"\n16 bits vs 32, TensorFlow: {halved}")
print(f"Share of the 16-bit limit: {share(half['TensorFlow, 16 bits'], half['limit, 16 bits'])}")
results.compare_guess(2, halved)

# %% [markdown]
# The picture shows the whole way. Each step of the axis is a factor of 10, and a percentage is the share of the limit
# in the same precision.

# %% jupyter={"source_hidden": true}
way = {
    "plain\nPython": fp32["plain Python"],
    "NumPy,\n1 thread": fp32["NumPy, 1 thread"],
    "NumPy,\nall cores": fp32["NumPy, all cores"],
    "TensorFlow,\n32 bits": half["TensorFlow, 32 bits"],
    "TensorFlow,\n16 bits": half["TensorFlow, 16 bits"],
}
lines = [
    (f"paper peak, 32 bits, {ghz:.2f} GHz", peak, "grey"),
    ("limit, 32 bits", fp32["limit"].value, plots.BLUE),
    ("limit, 16 bits", half["limit, 16 bits"].value, plots.VERMILION),
]
figure, axis = plt.subplots(figsize=(10, 5.5))
for place, (name, speed) in enumerate(way.items()):
    colour = plots.VERMILION if "16" in name else plots.BLUE
    below, above = np.nan_to_num([speed.value - speed.low, speed.high - speed.value])
    axis.errorbar(place, speed.value, [[below], [above]], fmt="o", ms=11, color=colour, capsize=6)
    most = half["limit, 16 bits"] if "16" in name else fp32["limit"]
    number = f"{speed.value:,.{speed.digits}f}\n({100 * speed.value / most.value:.2g}%)"
    box = dict(facecolor="white", edgecolor="none", pad=1)
    at = dict(xytext=(0, -44), textcoords="offset points", ha="center", bbox=box)
    axis.annotate(number, (place, speed.value), **at)
for name, height, colour in reversed(lines):
    axis.axhline(height, ls="--", color=colour, marker="", zorder=1, label=name)
axis.legend(loc="lower right")
axis.set(xlim=(-0.5, 4.5), yscale="log", ylabel="GFLOP/s (log scale)", xlabel="")
axis.set_ylim(axis.get_ylim()[0] / 3, max(height for _, height, _ in lines) * 3)
axis.set_xticks(range(len(way)), [f"{name}\n{speed.note}".rstrip() for name, speed in way.items()])
axis.set_title("One matmul, from plain Python to the limit of the cores")
said = [f"{' '.join(name.split())} {speed}" for name, speed in way.items()]
said += [f"{name} at {height:,.0f} GFLOP/s" for name, height, _ in lines]
watched = [others for speed in way.values() for others in speed.contention]
plots.show(figure, alt=f"Speeds of a matmul. {'; '.join(said)}.", keep=results, watched=watched)

# %% [markdown]
# With BF16 instructions, the limit in 16 bits is about twice that in 32; with AMX, it is many times as high. A matmul
# reaches less of it, for one part because oneDNN first copies the second matrix into the blocks that these instructions
# need. The faster the multiplication, the larger the share of such work. Labs 02 to 04 continue there.

# %% [markdown]
# ## 5 · Two ranks share the cores {read 2.5, do 5, wait 0.6}
#
# [**mpirun**](../docs/glossary.md#mpirun) starts several copies of a program. They share no memory, and differ in one
# number, the [**rank**](../docs/glossary.md#rank), such as 0 and 1. They exchange messages through
# [**MPI**](../docs/glossary.md#mpi), the Message Passing Interface. Each rank may use several threads.
#
# ### Exercise 2 · Threads per rank
#
# Write `threads_per_rank(cores, ranks)`. It returns an integer: the largest number of threads per rank with which no
# two threads share a core. If there are more ranks than cores, each rank has one thread.


# %%
def threads_per_rank(cores, ranks):
    """Return the threads of each rank, when ranks share cores evenly."""
    ### BEGIN SOLUTION
    return max(1, cores // ranks)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
threads_per_rank = check(2, threads_per_rank)

# %% [markdown]
# ### Exercise 3 · Add up over all ranks
#
# `%%writefile` writes its cell to a file instead of running it. In this script, each rank multiplies matrices for a
# moment, and then the ranks add up their speeds. Write `total(ranks, number)`. Every rank calls it with a `number` that
# the others don't know, and it returns the sum of all these numbers on every rank.
#
# `ranks` is a group of ranks, a [communicator](../docs/glossary.md#communicator), with `ranks.rank` and `ranks.size`.
# `ranks.allreduce(value)` is an [**all-reduce**](../docs/glossary.md#all-reduce), which adds up the values of all ranks
# and gives every rank the sum. Distributed training adds up [gradients](../docs/glossary.md#gradient) this way.
#
# The check calls `total` on 1 to 4 ranks with random numbers. Use only `ranks`, as it isn't always `MPI.COMM_WORLD`.
# The check takes a few seconds, and each call may take 10 s.

# %%
# %%writefile work/total.py
"""Ranks multiply matrices: mpirun -n 2 python work/total.py SIZE THREADS"""

import sys
import time

import numpy as np
from mpi4py import MPI
from threadpoolctl import threadpool_limits


def total(ranks, number):
    """Return the sum of all ranks' numbers, on every rank."""
    ### BEGIN SOLUTION
    return ranks.allreduce(number)
    ### END SOLUTION


def speed(n, threads, seconds=0.5):
    """Return the GFLOP/s of this rank in n×n matmuls."""
    a = np.ones((n, n), np.float32)
    with threadpool_limits(threads):
        a @ a  # starts the threads
        MPI.COMM_WORLD.Barrier()  # all ranks begin at the same time
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            a @ a
            done += 1
    return 2 * n**3 * done / (time.perf_counter() - began) / 1e9


if __name__ == "__main__":
    everybody = MPI.COMM_WORLD
    mine = speed(*map(int, sys.argv[1:]))
    everyone = total(everybody, mine)
    print(f"rank {everybody.rank} of {everybody.size}: {mine:.1f} of {everyone:.1f} GFLOP/s")

# %% tags=["nbval-check-output"]
total = check(3, "work/total.py")

# %% [markdown]
# `run_ranks` starts the ranks. It prints the `mpirun` command that does the same in a terminal, and then each line of
# output after the number of its rank. Run the cell several times: the order of the lines may change.

# %%
fair = int(threads_per_rank(cores, 2))
run = run_ranks(2, total, RANK_SIZES[0], fair)

# %% [markdown]
# `-bind-to` gives each rank half of the cores. But a library that doesn't know about the other rank may start a thread
# for every core of the machine, which is twice as many as the rank has. This happens often in containers and on
# clusters.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times faster are two ranks with a fair share of the threads than two ranks with twice as
# many? The cell measures matrices of two sizes. Guess for the smaller one.
#
# </div>

# %%
results.guess(3, "a fair share of threads vs twice as many", ..., unit="×")


# %%
def both_ranks(n, threads):
    """Return the GFLOP/s of two ranks together."""
    run = run_ranks(2, total, n, threads, show=False)
    return float(run.lines[0][-1].split()[-2])  # of rank 0's line "… of 455.3 GFLOP/s"


threads = {"fair share": fair, "twice the threads": 2 * fair}
variants = {
    f"{n}×{n}, {name}": partial(both_ranks, n, count)
    for n in RANK_SIZES
    for name, count in threads.items()
}
ranks = alternate(variants, 2 if QUICK else 6, "GFLOP/s", "section 5")

# %%
small, crowded, large, crowded_large = ranks.values()  # in the order above
split = compare(small, crowded)
for name, speed in ranks.items():
    print(f"{name:28} {speed}")
print(f"\nFair share vs twice the threads: {split}; larger: {compare(large, crowded_large)}")
results.compare_guess(3, split)

# %% [markdown]
# **Why were we wrong?** Two threads that take turns on one core should do as much together as one thread. To see what
# happens instead, look at the time of *one* matmul, and at what the extra threads add to it for each size.

# %%
for n, fast, slow in ((RANK_SIZES[0], small, crowded), (RANK_SIZES[1], large, crowded_large)):
    fair_ms, twice_ms = (2 * 2 * n**3 / 1e6 / speed.value for speed in (fast, slow))
    added = f"{twice_ms - fair_ms:+.1f} ms"
    print(f"{n}×{n}: {fair_ms:.2f} ms; with twice the threads, {twice_ms:.2f} ms: {added}")

# %%
results.answer(2, "What do two threads do to each other on one core?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# They wait for each other. The threads divide a matmul, which is done when the last of them is. A thread that has
# finished its part keeps its core busy while it waits. The thread that it waits for gets no turn until the time slice
# of the operating system, often several milliseconds, is over. So each call loses about the same time, whatever its
# size, and small matmuls lose most of their speed. Networks consist of many small operations. The loss is small where
# the library's threads sleep while they wait, or where the operating system gives each thread shorter slices.
#
# </details>

# %% [markdown]
# ## 6 · Before the next lab {read 0.5, wait 0.4}
#
# The doctor now also starts TensorFlow, a kernel, and two ranks that exchange numbers through Horovod and daal4py. This
# takes about half a minute. It prints only what needs attention, and each `fix:` line says what to do. `./lab doctor`
# in a terminal prints every check.

# %%
print(as_text(examine(quick=QUICK)))

# %% [markdown]
# ## Remember
#
# - The peak is cores × clock × lanes × FMAs × 2. The clock varies, so measure a limit together with what it limits.
# - Compare variants alternately, and state the interval.
# - Ranks share no variables. Together, they should have one thread per core.
# - A check looks at what your answer does, and you are never stuck.
#
# The published figures are from [a paper of 2020](https://www.science.org/doi/10.1126/science.aam9744). Its authors
# multiplied 4,096×4,096 matrices of 64-bit numbers on 18 cores of a Xeon E5-2666 v3. Their fastest program was C with
# vector instructions, written for this matmul.

# %%
closing = [
    ("all cores vs plain Python", "62,806×", gain, ""),
    ("all cores", "338 GFLOP/s, 40% of peak", fp32["NumPy, all cores"], str(fp32["limit"])),
    ("TensorFlow, 16 bits", "", half["TensorFlow, 16 bits"], str(half["limit, 16 bits"])),
    ("two ranks: fair share vs twice the threads", "", split, ""),
]
results.table("one matmul", closing)

# %% [markdown]
# At the end of the day, `./lab report` in a terminal makes one page of what you measured, guessed and passed.
#
# Next: [lab 01](01_tensorflow_graphs.ipynb) shows what TensorFlow makes of a computation before it runs it.
