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
# **You will** make one matrix multiplication (*matmul*) thousands of times faster than in plain Python, measure how far
# that is from your machine's limit, and split the matmul between two processes. Networks spend most of their time in
# matmuls.
#
# **Why CPUs?** Large networks are mostly trained on GPUs. There are three reasons to know what CPUs can do:
#
# - **Large models.** DeepSeek-R1's 671 billion parameters fit into the memory of one server, whose two Xeon 6 CPUs
#   generated a token every 68 ms, with 8-bit weights ([Intel's figure,
#   2025](https://lmsys.org/blog/2025-07-14-intel-xeon-optimization)).
# - **Classic machine learning.** K-Means took 7.4 s instead of 192.1 s with a faster library ([Intel's own
#   notebook](https://github.com/uxlfoundation/scikit-learn-intelex/blob/main/examples/notebooks/kmeans.ipynb)).
# - **Settings matter.** The same 18 cores trained ResNet-50 at 5.48 images/s, and at 33.62 with a different TensorFlow
#   build and settings, in a published comparison (lab 03).
#
# **Time** {minutes}
#
# **Connects to** every other lab.
#
# Click a cell and press **Shift + Enter** to run it and to select the next one. If a cell hangs, press **■** in the
# toolbar; you lose nothing. If even that does nothing, choose *Restart Kernel* from the *Kernel* menu, and run the lab
# again from the top. If a cell says `No module named 'labkit'`, click the kernel's name at the top right and choose
# **CPU labs**.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("00", globals())
cores = machine.usable_cores

# %%
import time
from dataclasses import replace
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
ROUNDS = 2 if QUICK else 9
RANK_SIZES = (128, 256) if QUICK else (256, 2048)  # of the ranks' matrices, section 5
GFLOP = 2 * N**3 / 1e9  # N×N results, each of N multiplications and N additions

# %% [markdown]
# ## 1 · Is this machine ready? {read 3, wait 0.1}
#
# The doctor prints the machine, what needs attention, and which labs can run. *data* only means that MNIST hasn't been
# downloaded yet.

# %%
print(summary(examine(quick=True)))

# %% [markdown]
# Two facts matter in every lab: the number of [**cores**](../docs/learn/glossary.md#core) that this notebook can
# actually use, and their [**instruction sets**](../docs/learn/glossary.md#instruction-set), such as
# [AVX-512](../docs/learn/glossary.md#avx-512). Two *hardware threads* of one core share its arithmetic units, so they
# count as one core. Some virtual machines show them as two; the doctor warns if two together do hardly any more work
# than one alone.
#
# **In a room with an instructor**, enter the board's address and code. Nothing is sent unless you join, and the cell
# prints everything that will ever be sent. `./lab hand` in a terminal (*File*, *New*, *Terminal*) raises your hand, and
# `./lab leave` deletes your data from the board. If you work alone, skip the cell.

# %%
ADDRESS = ""  # such as "http://192.168.1.5:8500"
CODE = ""  # such as "K7Q2M9"
SEAT = ""  # such as "row 2, left"; left empty, you get a number

if ADDRESS:
    join(ADDRESS, CODE, SEAT)

# %% [markdown]
# ## 2 · Plain Python, and the limit on paper {read 4, do 4}
#
# A matmul in plain Python has three loops. The cell computes one row of the result.


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
row, columns = a[:1].tolist(), b.tolist()
began = time.perf_counter()
first = python_matmul(row, columns)
seconds = time.perf_counter() - began
print(f"Plain Python, one row of {N:,}×{N:,} results: {seconds:.2f} s")
print(f"All {N:,} rows would take {N * seconds / 60:,.0f} min.")
print("NumPy computes the same:", np.allclose(first, (a @ b)[0], rtol=1e-4))

# %% [markdown]
# How fast could it be? A core multiplies fastest with **FMA** instructions (fused multiply-add), which multiply two
# registers and add the product to a third. A register has several **lanes** with one number each, and a core starts one
# or more FMAs in each clock cycle. For 32-bit numbers ([FP32](../docs/learn/glossary.md#fp32)):
#
# | core | lanes | FMAs per cycle |
# | --- | ---: | ---: |
# | Intel with AVX2 (since Haswell), AMD Zen 2 and Zen 3 | 8 | 2 |
# | Intel Xeon with AVX-512 (most models) | 16 | 2 |
# | Intel Core with AVX-512, and AMD Zen 4, with 256-bit units | 16 | 1 |
# | AMD Zen 5 in servers and desktops (in most laptops, like Zen 4) | 16 | 2 |
# | Arm Neoverse N1 and N2; V1 and V2 | 4 | 2; 4 |
# | Apple M1 to M4, in a Linux virtual machine | 4 | 4 |
#
# ### Exercise 1 · The paper peak
#
# Write `paper_peak(cores, ghz, lanes, fmas)`. It returns the peak of all cores in GFLOP/s, that is, in 10⁹ operations
# per second. A multiplication and an addition are two operations. The clock, `ghz`, is in 10⁹ cycles per second.
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
# - *not yet*: you see what is wrong, and a hint; each new attempt gets the next one. `check.hint(1)` in a cell of your
#   own prints the last hint, which is nearly the answer.
# - *passed*: the kit's solution follows, folded, for comparison.
#
# Until then, the lab continues with the solution, so you are never stuck. `./lab reset 00` in a terminal gives you a
# fresh copy and keeps yours.
#
# Now enter your machine's numbers. `!lscpu` in a cell of your own prints the CPU's name. It rarely names the
# generation, so search the web for the name, or keep `fmas = 2`, which section 3 checks. The reported clock can be
# wrong, because cores speed up when few are busy, and slow down when hot. Many virtual machines report a nominal clock;
# Arm CPUs report none, so the cell assumes 2.5 GHz.

# %%
lanes = 16 if "AVX-512" in machine.isa else 8 if "AVX2" in machine.isa else 4
fmas = 2  # from the table; if you don't know, keep 2

lines = Path("/proc/cpuinfo").read_text().splitlines()
clocks = [float(line.split(":")[1]) / 1000 for line in lines if line.startswith("cpu MHz")]
ghz = max(clocks, default=2.5)
peak = paper_peak(cores, ghz, lanes, fmas)
print(f"{cores} × {ghz:.3f} GHz × {lanes} lanes × {fmas} FMAs × 2 = {peak:,.0f} GFLOP/s on paper")
print(f"Plain Python reached about {2 * N**2 / seconds / 1e9:.1g} GFLOP/s.")

# %% [markdown]
# ## 3 · NumPy, on one thread and on all cores {read 4.5, do 2, wait 0.4}
#
# NumPy's `a @ b` calls OpenBLAS, a library in C and assembly language. It works on blocks that fit into registers and
# caches, with a [thread](../docs/learn/glossary.md#thread) on each core. The cell also times pure FMAs on registers, on
# all cores. No matmul can be faster, so their speed is called the *limit*. Without a C compiler, and on Arm, the paper
# peak is used instead. Then a share above 100% means that `ghz` or `fmas` is too small.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many GFLOP/s will NumPy reach on all cores? You know the paper peak. Replace the three dots with
# a number, or just run the cell. Your guess appears next to the measured figure.
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


limit("float32")  # compiles the instructions
variants = {
    "plain Python": per_second(lambda: python_matmul(row, columns), GFLOP / N),
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
# **How to read this.** Each variant ran once per round, in varying order. A figure is the median of its rounds, with an
# interval. *Faster* means that the interval for the ratio lies above 1; [a few of these verdicts will be
# wrong](../docs/learn/glossary.md#confidence-interval).
#
# **Why were we wrong?** The limit helps. Its speed, divided by the paper peak at 1 GHz, is the cores' actual clock.

# %%
python, one, every, top = (fp32[name] for name in variants)
clock = top.value / paper_peak(cores, 1, lanes, fmas)
reached, alone = share(every, top), share(one, top)
if "float32" in peaks.fastest_instructions(machine.isa):
    print(f"Clock: {clock:.2f} GHz according to the limit, {ghz:.2f} GHz reported")
else:
    print("No limit was measured here, so neither the clock nor `fmas` is checked.")
print(f"All cores reach {reached} of the limit.")
ends = {end: cores * getattr(alone, end) for end in ("value", "low", "high")}
print(f"One thread reaches {replace(alone, rounds=(), **ends)} of one core's part.")
cycles = 2 * clock / python.value  # of a core, for one multiply-add in plain Python
print(f"Cycles per multiply-add in plain Python: {cycles:.0f}")
print(f"Multiply-adds per cycle that a core can do: {lanes * fmas}")
print(f"Together, a factor of {cycles * lanes * fmas:,.0f} on one core")

# %% [markdown]
# That factor on one core, times the number of cores and the share they reach, is about the factor for *all cores vs
# plain Python* above.
#
# Is the measured clock plausible? Compare it with the highest clock in your CPU's data sheet. If the measured clock is
# about twice that, `fmas` is too small. If it is about half or less, `fmas` is too large, or your two cores are one,
# which the doctor warns about. Then add `cores = 1` at the top of the cell that sets `lanes`, and rerun the cells from
# there.
#
# **Where do Python's cycles go?** For each `c[i][j] += a[i][k] * b[k][j]`, Python looks up lists, checks types, and
# creates objects for the product and the sum. It also waits for memory, as `b[k][j]` is in a different list for each
# `k`. In a cell of your own, transpose `columns`, change the function to read `b[j][k]`, and see what that saves.

# %%
results.answer(1, "Which three figures explain the gap between the paper peak and NumPy?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# The paper peak, the limit, and NumPy's speed. Divide each by the one before. With 300, 480 and 400, for example, the
# factors are 1.6 and 0.83. The first is the clock. A virtual machine that reports a nominal clock runs faster than
# that. A laptop that reports its turbo clock is slower once all cores are busy. A factor of two comes from `fmas` or
# `cores`.
#
# The second is the matmul, which also loads and stores. One thread's share shows it, unless a single busy core has a
# higher clock. Where all cores are less than *cores* times faster than one thread, sharing costs something, or other
# programs are using them. Finally, the limit is the best of several short bursts, and the matmul's speed is an average.
#
# </details>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Write the range of cores, clocks and factors on the board. Expect guesses near the paper peak
# in section 3, 2 in section 4, and 1 to 2 in section 5. Ask who was furthest off. What changes on other machines:
#
# - One usable core: one thread and all cores are the same, and in section 5 two ranks share the core anyway.
# - No compiler, and Arm: no limit is measured, so the clock and `fmas` stay unchecked.
# - Two NUMA nodes: the matrices may be in one node's memory, and all cores then reach a lower share. NumPy's OpenBLAS
#   starts at most 64 threads.
# - Zen 4: with `fmas = 2`, the clock comes out at half. Let the students find out why.
# - P and E cores: only cores of one type count, but NumPy may also use the others.
# - AMX: the 16-bit limit is much higher, and TensorFlow reaches a much smaller share of it.
# - Neither BF16 nor AMX: recorded 16-bit figures are compared with recorded 32-bit figures only. They all show the same
#   ratio, so don't show guess 2 on the board.
# - Section 5: the loss depends on how threads wait and on the operating system's time slices. With two hardware threads
#   per core, crowded ranks start twice as many threads.
#
# </div>

# %% [markdown]
# ## 4 · Half the bits {read 3, wait 0.6}
#
# A register holds twice as many 16-bit numbers as 32-bit ones. BF16 instructions multiply
# [bfloat16](../docs/learn/glossary.md#bfloat16) numbers in all these lanes, and [AMX](../docs/learn/glossary.md#amx)
# multiplies whole tiles of them. TensorFlow supports this type. It calls **oneDNN**, which computes most layers in this
# workshop. If your CPU lacks such instructions, the 16-bit figures and their ratio are recordings, marked as such.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times faster is a TensorFlow matmul in 16 bits than in 32?
#
# </div>

# %%
results.guess(2, "16 bits vs 32 bits", ..., unit="×")

# %%
import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # not the default on older CPUs
import tensorflow as tf  # takes some seconds

tf.config.threading.set_intra_op_parallelism_threads(cores)

# %%
x, y = tf.constant(a), tf.constant(b)
x16, y16 = tf.cast(x, tf.bfloat16), tf.cast(y, tf.bfloat16)
has_16_bits = bool({"BF16", "AMX"} & {*machine.isa})
variants = {"TensorFlow, 32 bits": per_second(lambda: tf.matmul(x, y), GFLOP)}
variants["limit, 32 bits"] = lambda: limit("float32")
if has_16_bits:
    variants["TensorFlow, 16 bits"] = per_second(lambda: tf.matmul(x16, y16), GFLOP)
    variants["limit, 16 bits"] = lambda: limit("bfloat16")
half = alternate(variants, ROUNDS, "GFLOP/s", "section 4")
tensorflow_32 = half["TensorFlow, 32 bits"]
reached_32 = share(tensorflow_32, half["limit, 32 bits"])  # on this machine
if has_16_bits:
    record("00-half", half, QUICK)
else:
    print(f"TensorFlow, 32 bits, on this machine: {tensorflow_32}")
    half = recorded("00-half").figures

# %%
for name, speed in half.items():
    print(f"{name:23} {speed}")
halved = compare(half["TensorFlow, 16 bits"], half["TensorFlow, 32 bits"])
reached_16 = share(half["TensorFlow, 16 bits"], half["limit, 16 bits"])
print(f"\n16 bits vs 32, TensorFlow: {halved}")
print(f"Share of the 32-bit limit: {reached_32}; of the 16-bit limit: {reached_16}")
results.compare_guess(2, halved)

# %% [markdown]
# **Why not simply twice as fast?** Compare the ratio of the two limits with TensorFlow's gain. Where the gain is
# smaller, the share of the limit is, too. The multiply-adds take half the time, so whatever else a matmul does, such as
# rearranging and storing numbers, takes a larger share of it. That is a likely cause, but nothing here measures it.
#
# In the picture, each step on the axis is a factor of 10, and percentages are shares of the limit.

# %% jupyter={"source_hidden": true}
limit_16 = half["limit, 16 bits"]
way = {
    "plain\nPython": python,
    "NumPy,\n1 thread": one,
    "NumPy,\nall cores": every,
    "TensorFlow,\n32 bits": tensorflow_32,
    "TensorFlow,\n16 bits": half["TensorFlow, 16 bits"],
}
shares = {2: reached, 3: reached_32, 4: reached_16}  # of some places
lines = [
    (f"paper peak, 32 bits, {ghz:.2f} GHz as reported", peak, "0.5", ":"),
    ("limit, 32 bits", top.value, plots.BLUE, "--"),
    (f"limit, 16 bits {limit_16.note}", limit_16.value, plots.VERMILION, "--"),
]
figure, axis = plt.subplots(figsize=(10, 5.5))
for place, (name, speed) in enumerate(way.items()):
    colour = plots.VERMILION if "16" in name else plots.BLUE
    below, above = np.nan_to_num([speed.value - speed.low, speed.high - speed.value])
    axis.errorbar(place, speed.value, [[below], [above]], fmt="o", ms=11, color=colour, capsize=6)
    number = f"{speed.value:,.{speed.digits}f}"
    if place in shares:
        number += f"\n{shares[place].value:.0f}%"
    box = dict(facecolor="white", edgecolor="none", pad=1)
    at = dict(xytext=(0, -12), textcoords="offset points", ha="center", va="top", bbox=box)
    axis.annotate(number, (place, speed.value), **at)
for name, height, colour, style in reversed(lines):
    axis.axhline(height, ls=style, color=colour, marker="", zorder=1, label=name)
axis.legend(loc="lower right")
axis.set(xlim=(-0.5, 4.5), yscale="log", ylabel="GFLOP/s (log scale)", xlabel="")
axis.set_ylim(axis.get_ylim()[0] / 3, max(height for _, height, *_ in lines) * 3)
axis.set_xticks(range(len(way)), [f"{name}\n{speed.note}".rstrip() for name, speed in way.items()])
axis.set_title("One matmul, from plain Python to the limit of the cores")
said = [f"{' '.join(name.split())} {speed}" for name, speed in way.items()]
said += [f"{name} at {height:,.0f} GFLOP/s" for name, height, *_ in lines]
watched = [others for speed in way.values() for others in speed.contention]
plots.show(figure, alt=f"Speeds of a matmul. {'; '.join(said)}.", keep=results, watched=watched)

# %% [markdown]
# ## 5 · Two ranks share one matmul {read 3.5, do 6.5, wait 1.1}
#
# [**mpirun**](../docs/learn/glossary.md#mpirun) starts several copies of a program, which have no variables in common.
# Each has a number, its [**rank**](../docs/learn/glossary.md#rank). They exchange messages through
# [**MPI**](../docs/learn/glossary.md#mpi), and each may use several threads.
#
# ### Exercise 2 · Threads per rank
#
# Write `threads_per_rank(cores, ranks)`. It returns how many threads each rank should start, an integer that is the
# same for all ranks. Use as many cores as possible, without two threads on one core. But a rank needs a thread, even if
# there are more ranks than cores.


# %%
def threads_per_rank(cores, ranks):
    """Return the threads of each rank, when ranks share cores evenly."""
    ### BEGIN SOLUTION
    return max(1, cores // ranks)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
threads_per_rank = check(2, threads_per_rank)

# %% [markdown]
# ### Exercise 3 · One matmul on all ranks
#
# Each result of a matmul is a sum of products, which ranks can share. Each rank has some columns of the first matrix,
# `a`, and the same rows of the second, `b`. Write `product(ranks, a, b)`. Every rank calls it with its own parts, and
# it returns the product of the *whole* matrices on every rank.
#
# `ranks` is a group of ranks, a [communicator](../docs/learn/glossary.md#communicator). Its methods include
# `bcast(value)`, `reduce(value)`, [`allreduce(value)`](../docs/learn/glossary.md#all-reduce) and `allgather(value)`; a
# `value` may be an array. With two ranks and 2×2 matrices, rank 0 has the first column of `a` and the first row of `b`.
#
# `%%writefile` writes its cell to a file. The check calls `product` on 1 to 4 ranks, with parts of different sizes. Use
# only `ranks`, as it isn't always `MPI.COMM_WORLD`. The check takes a few seconds, and each call is allowed 10 s.

# %%
# %%writefile work/product.py
"""Ranks share an n×n matmul: mpirun -n 2 python work/product.py N THREADS parts|product"""

import sys
import time

import numpy as np
from mpi4py import MPI
from threadpoolctl import threadpool_limits


def product(ranks, a, b):
    """Return the product of the whole matrices on every rank; a and b are this rank's parts."""
    ### BEGIN SOLUTION
    return ranks.allreduce(a @ b)
    ### END SOLUTION


def speed(ranks, n, multiply):
    """Return the GFLOP/s of all ranks together, while each calls `multiply`."""
    multiply()  # starts the threads
    calls = 25_600 // n
    ranks.Barrier()  # all ranks begin at the same time
    began = time.perf_counter()
    for _ in range(calls):
        multiply()
    ranks.Barrier()  # all ranks are done
    return 2 * n**3 * calls / (time.perf_counter() - began) / 1e9


if __name__ == "__main__":
    n, threads, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    ranks = MPI.COMM_WORLD
    mine = n // ranks.size + (ranks.rank < n % ranks.size)  # columns of a, and rows of b
    a, b = np.ones((n, mine), np.float32), np.ones((mine, n), np.float32)
    ways = {"parts": lambda: a @ b, "product": lambda: product(ranks, a, b)}
    with threadpool_limits(threads):
        c, gflops = product(ranks, a, b), speed(ranks, n, ways[what])
    print(f"rank {ranks.rank}: c[0, 0] = {c[0, 0]:.0f}; all ranks' GFLOP/s: {gflops:.4g}")

# %% tags=["nbval-check-output"]
product = check(3, "work/product.py")

# %% [markdown]
# `run_ranks` prints the `mpirun` command that does the same in a terminal, then the output in any order, each line
# prefixed with its rank. All numbers in both matrices are 1, so each result counts the products in its sum. Distributed
# training adds up [gradients](../docs/learn/glossary.md#gradient) in this way.

# %%
fair = int(threads_per_rank(cores, 2))
run = run_ranks(2, product, RANK_SIZES[0], fair, "product")

# %% [markdown]
# If the command has `-bind-to`, each rank may use only its half of the cores. But many programs start a thread for each
# CPU in the machine, as `os.cpu_count()` counts all of them, whatever the binding. In the *crowded* variants below,
# each rank starts twice as many threads as its half of the CPUs can run at once.
#
# The *parts* are only each rank's `a @ b`. The *product* is your function, with its messages.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times faster are two ranks with a fair share of the threads than crowded ones? Guess for the
# parts at the smaller size.
#
# </div>

# %%
results.guess(3, "a fair share of threads vs crowded", ..., unit="×")


# %%
def all_ranks(n, threads, what, ranks=2):
    """Return the GFLOP/s of all ranks together, with which each line of theirs ends."""
    run = run_ranks(ranks, product, n, threads, what, show=False)
    return float(run.lines[0][-1].split()[-1])


crowded = 2 * fair * len(machine.cores[0])  # times the hardware threads of a core
variants = {}
for n in RANK_SIZES:
    variants[f"{n}×{n}, parts"] = partial(all_ranks, n, fair, "parts")
    variants[f"{n}×{n}, parts, crowded"] = partial(all_ranks, n, crowded, "parts")
    variants[f"{n}×{n}, product"] = partial(all_ranks, n, fair, "product")
    variants[f"{n}×{n}, one process"] = partial(all_ranks, n, cores, "parts", ranks=1)
together = alternate(variants, 2 if QUICK else 6, "GFLOP/s", "section 5")

# %%
for name, speed in together.items():
    print(f"{name:25} {speed}")
splits, shared = {}, {}
for n in RANK_SIZES:
    names = "parts", "parts, crowded", "product", "one process"
    parts, full, whole, single = (together[f"{n}×{n}, {name}"] for name in names)
    splits[n] = compare(parts, full)
    print(f"\n{n}×{n}: fair share vs crowded {splits[n]}")
    shared[n] = compare(whole, single)
    print(f"    product vs one process {shared[n]}")
results.compare_guess(3, splits[RANK_SIZES[0]])

# %% [markdown]
# **Why were we wrong?** Two threads that take turns on one core should do as much together as one. Look at the time of
# *one* matmul, and at what the extra threads add to it for each size.

# %%
for n in RANK_SIZES:
    ways = "parts", "parts, crowded", "product"
    ms = [2 * n**3 / 1e6 / np.array(together[f"{n}×{n}, {way}"].rounds) for way in ways]
    print(f"{n}×{n}, parts: {np.median(ms[0]):.2f} ms")
    for way, times in zip(ways[1:], ms[1:]):
        more = times - ms[0]
        print(f"    {way}: {np.median(more):.2f} ms more ({min(more):.2f} to {max(more):.2f})")

# %% [markdown]
# The product adds messages. For n×n matrices, each rank performs n³ multiplications and additions, and sends and
# receives n² numbers. So the messages' share of the time shrinks as matrices grow. `allreduce` also packs and copies
# the arrays, and adds them in Python, so messages are only part of its time. Lab 06 measures messages of plain arrays.
#
# Then compare the product with *one process*, which uses all cores and sends nothing. Splitting one matmul between
# processes may cost more than it gains. Programs split it where one process can't have all the cores, or all the
# memory.

# %%
results.answer(2, "What do two waiting threads do to each other on one core?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# In fact, only one waits, but it keeps the other from working. A matmul is done when the last of its threads is. A
# thread that has finished its part keeps its core busy while it waits, so the other gets no turn until the operating
# system's time slice, several milliseconds, is over. A small matmul takes a fraction of a millisecond, and a few such
# waits multiply its time. A large one waits for a few slices too, but it computes for much longer. The loss is small
# where threads sleep while they wait.
#
# </details>

# %% [markdown]
# ## 6 · Before the next lab {read 0.5, wait 0.4}
#
# The doctor now also tries TensorFlow, a kernel, Horovod and daal4py, which takes up to half a minute. It prints what
# needs attention; each `fix:` line says what to do. `./lab doctor` in a terminal prints every check.

# %%
print(as_text(examine(quick=QUICK)))

# %% [markdown]
# ## Remember
#
# - The peak is cores × clock × lanes × FMAs × 2. The clock varies, so measure a limit together with what it limits.
# - Ranks have no variables in common. Together, they should have one thread per core.
# - Splitting one matmul costs messages, so compare it with one process on all cores.
# - Half the bits may double the limit. The share that a matmul reaches shows what you get.
#
# The published figures are for 4,096×4,096 matrices of 64-bit numbers on two nine-core Xeon E5-2666 v3 CPUs ([a 2020
# paper](https://www.science.org/doi/10.1126/science.aam9744)). Its fastest program doesn't use NumPy, but hand-written
# C with AVX instructions.

# %%
small, large = (f"{n}×{n}" for n in RANK_SIZES)
steps = [
    ("all cores vs plain Python", "62,806× (C with AVX, 64 bits)", gain, ""),
    ("NumPy, all cores", "338 GFLOP/s, 40% of the peak (C, 64 bits)", every, f"{top}: {reached}"),
    ("TensorFlow, 16 bits", "", half["TensorFlow, 16 bits"], f"{limit_16}: {reached_16}"),
    (f"two ranks, {small}: fair share vs crowded", "", splits[RANK_SIZES[0]], ""),
    (f"two ranks vs one process, {large}", "", shared[RANK_SIZES[1]], ""),
]
results.table("one matmul", steps)

# %% [markdown]
# At the end of the day, `./lab report` in a terminal puts what you measured, guessed and passed on one page.
#
# Next: [lab 01](01_tensorflow_graphs.ipynb) shows what TensorFlow turns a computation into before running it.
