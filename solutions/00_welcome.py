# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: check your machine, pass an exercise, start two ranks
#     needs: [MPI]
#     better_with: [cores]
# ---

# %% [markdown]
# # 00 · Welcome
#
# **You will learn** whether your machine is ready, how exercises work, and how two processes exchange numbers.
#
# **Why deep learning on CPUs?** Large networks are mostly trained on GPUs. CPUs do much of the other work:
#
# - [**Inference**](../docs/glossary.md#inference) (using a trained network): every server has a CPU, and often
#   too few requests arrive at once to fill a GPU.
# - The input pipeline: even when a GPU trains, CPUs read, decode and augment the data.
# - Classic machine learning, such as clustering (lab 09).
# - Work that needs a lot of memory: a server can have far more than a GPU.
# - Training on machines you already own: a cluster without GPUs, or its idle nodes (lab 08).
#
# Speed on a CPU depends on settings: which library computes, on how many threads, with how many bits. The labs measure
# what each is worth on *your* machine.
#
# **Time** {minutes}
#
# **Connects to** every other lab.
#
# Each lab is a notebook: a column of cells. Click a cell and press **Shift + Enter**: it runs, and the next one is
# selected. Work from top to bottom. If a cell hangs, press **■** in the toolbar. You lose nothing. If one says
# `No module named 'labkit'`, click the kernel's name at the top right and choose **CPU labs**.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("00", globals())

# %%
from pathlib import Path

import matplotlib.pyplot as plt

from labkit.display import plots
from labkit.display.measured import Measured
from labkit.doctor import as_text, examine
from labkit.mpi import run_ranks
from labkit_classroom import join

# %% [markdown]
# ## 1 · Is this machine ready? {read 3, wait 0.4}
#
# The doctor looks at the processor, the memory, TensorFlow and its oneDNN library. It also lets two processes exchange
# numbers through Horovod and daal4py, which takes about half a minute. It prints only what needs attention;
# `./lab doctor` in a terminal prints every check.

# %%
print(as_text(examine(quick=QUICK)))

# %% [markdown]
# The last lines name any labs that cannot run here or lack something. Each `fix:` line says what to do.
#
# Three facts matter in every lab:
#
# - The number of [**cores**](../docs/glossary.md#core) that you can really use. A machine may have 64 cores and give
#   this notebook only 4. Two **hardware threads** of one core share its arithmetic units, so they count as one core.
# - The [**instruction sets**](../docs/glossary.md#instruction-set). [**AVX-512**](../docs/glossary.md#avx-512)
#   processes 16 single-precision numbers at a time, **AVX2** processes 8. BF16, [**VNNI**](../docs/glossary.md#vnni)
#   and [**AMX**](../docs/glossary.md#amx) compute with fewer bits per number (lab 04).
# - **oneDNN**, the library that TensorFlow uses for most layers on CPUs (lab 02).

# %% [markdown]
# ### In a room with an instructor
#
# Working alone? Skip this. Your instructor may show the address and code of a **board**. It shows how many people have
# passed each exercise, and who needs help. Nothing is sent unless you join: enter both in the next cell and run it. It
# prints everything that will ever be sent. `SEAT` tells the instructor where you are.
#
# To raise your hand, or to lower it, run `./lab hand` in a terminal (File, New, Terminal), or in a cell:
# `from labkit_classroom import hand; hand()`. `./lab leave` leaves the board and deletes your data from it.

# %%
ADDRESS = ""  # such as "http://192.168.1.5:8500"
CODE = ""  # such as "K7Q2M9"
SEAT = ""  # such as "row 2, left"; left empty, you get a number

if ADDRESS:
    join(ADDRESS, CODE, SEAT)

# %% [markdown]
# ## 2 · Try an exercise {read 3, do 3}
#
# An exercise is a function or a script with a gap. The cell below it **checks** what your answer does. Try it first,
# and read how it works afterwards:
#
# 1. Run both cells unchanged: the function with its gap, and the check.
# 2. Replace the two lines `YOUR CODE HERE` and `raise NotImplementedError()` with `return 1`, and run both cells again.
# 3. Now write the answer that you think is right, and run both until the check passes.
#
# ### Exercise 1 · Share out the cores
#
# Several [**ranks**](../docs/glossary.md#rank) (processes that work together) run on one machine. Each rank may use
# several [**threads**](../docs/glossary.md#thread). Write `threads_per_rank(cores, ranks)`. It returns an integer: the
# largest number of threads per rank with which no two threads share a core. If there are more ranks than cores, each
# rank has one thread.


# %%
def threads_per_rank(cores, ranks):
    """Threads of each rank, when ranks share cores evenly."""
    ### BEGIN SOLUTION
    return max(1, cores // ranks)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
threads_per_rank = check(1, threads_per_rank)

# %% [markdown]
# The check has three outcomes.
#
# - *not attempted*: the two lines are still there.
# - *not yet*: you see what was expected and what your code returned, or which of your lines failed. A wrong answer gets
#   a hint; each new attempt gets the next one. For the last hint, which is nearly the answer, run `check.hint(1)` in a
#   cell of your own.
# - *passed*: well done. The kit's solution follows, folded, for comparison.
#
# The check looks at what your answer does, not at how you wrote it. Don't modify arguments in place: later cells use
# those arrays, lists and tables too. A function has 20 seconds in total. A script has its own time limit, which the
# exercise states.
#
# Until your answer passes, the lab continues with the solution instead. You are never stuck: go on, and come back
# later. `./lab reset 00` in a terminal gives you a fresh copy and keeps yours next to it.
#
# Here is what the function returns for this machine, and for one with 64 cores. Ranks that outnumber the cores take
# turns.

# %%
print("ranks  threads each, here  threads each, on 64 cores")
for ranks in (1, 2, 4, 8):
    here, there = (int(threads_per_rank(cores, ranks)) for cores in (machine.usable_cores, 64))
    print(f"{ranks:5}  {here:18}  {there:25}")

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Ask how many cores each person has, and write the range on the board: it explains later why
# neighbours measure different speeds. If the doctor reports a failure, that person works with a neighbour until the
# break. If you see `cores / ranks`, let the check explain that the result must be an integer.
#
# </div>

# %% [markdown]
# ## 3 · Hello from every rank {read 4, do 6.5}
#
# [**mpirun**](../docs/glossary.md#mpirun) starts several copies of a program. `mpirun -n 2 python script.py` starts the
# *same* script twice. The two processes share no memory. They differ in one number, the **rank**: 0 or 1. The number of
# ranks is the [**size**](../docs/glossary.md#world-size). Both come from [**MPI**](../docs/glossary.md#mpi), the
# Message Passing Interface.
#
# ```mermaid
# flowchart LR
#     accTitle: One script, two ranks
#     accDescr: mpirun starts one script twice, as ranks 0 and 1, each with its own memory; they exchange messages.
#     mpirun["mpirun -n 2<br>python work/hello.py"] --> r0["rank 0 of 2<br>own memory"]
#     mpirun --> r1["rank 1 of 2<br>own memory"]
#     r0 <--> mpi["MPI<br>messages"]
#     r1 <--> mpi
# ```
#
# ### Exercise 2 · Say hello
#
# `%%writefile` writes its cell to a file instead of running it. Complete the script: each rank prints one line,
# `hello from rank 0 of 2`, with its own numbers. `MPI.COMM_WORLD` is the group of all ranks; it has the attributes
# `rank` and `size`. The check runs the script on 2 and 3 ranks, for at most 90 s each.

# %%
# %%writefile work/hello.py
"""Each rank says hello: mpirun -n 2 python work/hello.py"""

from mpi4py import MPI

everybody = MPI.COMM_WORLD
### BEGIN SOLUTION
print(f"hello from rank {everybody.rank} of {everybody.size}")
### END SOLUTION

# %% tags=["nbval-check-output"]
hello = check(2, "work/hello.py")

# %% [markdown]
# The labs start ranks with `run_ranks`. It prints the `mpirun` command that does the same in a terminal (after
# `source .venv/bin/activate`), and then each line of output with its rank in front.
#
# <details><summary>The rest of the command (lab 06 comes back to it)</summary>
#
# - `-bind-to` keeps each rank on its own cores, away from those that another run's ranks use.
# - `-genv` sets environment variables. Some set the number of threads for the libraries, by the rule of your
#   function. `UCX_TLS` makes the ranks communicate through shared memory instead of a network on which others could
#   listen.
# - `labkit.mpi.rank_runner` runs your script. If one rank fails, it ends the others too, so that they don't wait for it
#   forever.
#
# </details>
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Boxes like this one ask what you expect before you measure it. How many seconds does it take to start
# two processes that say hello? Replace the three dots with a number, or just run the cell. You see your guess again
# next to the measured time, here and in your report.
#
# </div>

# %%
results.guess(1, "two processes say hello", ..., unit="s")

# %%
run = run_ranks(2, hello)
results.compare_guess(1, Measured(run.seconds, unit="s", digits=2))

# %% [markdown]
# Before the first line appears, two Python interpreters start, load MPI and find each other. That is why the labs give
# their ranks more than one thing to do per start.
#
# Run the cell above a few times. The order of the lines may change, because no rank is guaranteed to be first. So only
# one rank should report results, and the labs compare what *all* ranks hold.

# %% tags=["nbval-check-output"]
sorted(line for lines in run.lines for line in lines if line.startswith("hello"))

# %% [markdown]
# ### Exercise 3 · Add up numbers from all ranks
#
# Each rank has a number that the others don't know. `everybody.allreduce(number)` adds up the numbers of all ranks and
# gives *every* rank the sum. This is an [**all-reduce**](../docs/glossary.md#all-reduce). Distributed training depends
# on it: there, the numbers are [gradients](../docs/glossary.md#gradient).
#
# Complete the script. Each rank's own number is its rank plus 1. Each rank prints `total 3`, with the sum of all
# numbers (1 + 2 = 3 on two ranks), which it must get from the other ranks. The check runs the script on 1, 3 and 4
# ranks, for at most 90 s each.

# %%
# %%writefile work/total.py
"""Every rank learns the sum of all ranks' numbers: mpirun -n 2 python work/total.py"""

from mpi4py import MPI

everybody = MPI.COMM_WORLD
number = everybody.rank + 1
### BEGIN SOLUTION
total = everybody.allreduce(number)
### END SOLUTION
print(f"total {total}")

# %% tags=["nbval-check-output"]
total = check(3, "work/total.py")

# %%
for ranks in (1, 2, 3):
    run_ranks(ranks, total)

# %% [markdown]
# ## 4 · Networks, software and instruction sets {read 4, optional}
#
# **What a network computes.** A network is a chain of layers. A *dense* layer multiplies its inputs by a matrix of
# weights; a *convolution* moves a small window of weights over an image. Both add a bias, and many set negative results
# to zero.
#
# In **training**, a forward pass computes the loss: how wrong the network is. A backward pass computes, for each
# weight, how the loss depends on it: the [gradient](../docs/glossary.md#gradient). Then all weights change by a small
# step. This repeats for thousands of batches, mostly in numbers of 32 or 16 bits. **Inference** is the forward pass
# alone, with fixed weights. Fewer bits often suffice for it, for example 8 (lab 04).

# %% [markdown]
# **Software.** A framework such as TensorFlow describes *what* to compute. A library below it knows *how* to do so on
# this processor.
#
# ```mermaid
# flowchart TB
#     accTitle: The software stack of the labs
#     accDescr {
#         TensorFlow calls oneDNN for its layers, scikit-learn's extension and daal4py call oneDAL,
#         and Horovod calls MPI to exchange gradients. oneDNN and oneDAL run threads that use the CPU's
#         instruction sets; MPI uses shared memory and the network.
#     }
#     tensorflow["TensorFlow<br>labs 01 to 05"] --> onednn["oneDNN<br>layers of networks"]
#     sklearn["scikit-learn-intelex, daal4py<br>lab 09"] --> onedal["oneDAL<br>classic machine learning"]
#     horovod["Horovod<br>labs 07 and 08"] --> mpi["MPI<br>messages between ranks (lab 06)"]
#     onednn & onedal --> cpu["threads and instruction sets of the CPU"]
#     mpi --> net["shared memory and network"]
# ```

# %% [markdown]
# Older advice on the web uses earlier names for three libraries.
#
# | then | today | what it is for |
# | --- | --- | --- |
# | MKL-DNN (DNNL for a while) | oneDNN | convolutions, matmuls and other layers |
# | DAAL | oneDAL | classic machine learning |
# | MLSL | oneCCL | collectives for training on several nodes; Horovod can use it instead of MPI |
#
# <details><summary>Coming from statistics? You know much of this by other names.</summary>
#
# | machine learning | statistics |
# | --- | --- |
# | feature, input | predictor, independent variable |
# | label, target | response, dependent variable |
# | weights | parameters, coefficients |
# | bias (of a layer) | intercept |
# | training, learning | fitting, estimation |
# | inference | prediction. In statistics, *inference* is what you conclude about a population from a sample |
# | loss | such as the negative log-likelihood |
#
# </details>
#
# Bold terms link to the glossary, which also suggests search terms.

# %% [markdown]
# ### How CPU instruction sets for deep learning evolved
#
# A network is mostly multiplications and additions. Over the years, processors have gained instructions that do more of
# them at a time: first with wider registers, then with fewer bits per number, then on small matrices. The picture shows
# the year in which each reached a general-purpose server processor, and which ones *this* machine has. A hollow mark is
# an announced processor.

# %% jupyter={"source_hidden": true}
# The first general-purpose server generation of each maker that has it, and its year. Sources:
# Intel, Architecture Instruction Set Extensions Programming Reference, chapter 1 (which generation
# has what); AMD, Software Optimization Guides for Zen 4 and Zen 5; for Zen 6, GCC's -march=znver6.
# Servers with Zen 6 were announced for 2026. The Xeon Phi of 2016, which had AVX-512 first, is no
# general-purpose processor.
CAME = {
    "AVX2": ("avx2", {"Intel": (2014, "Haswell-EP"), "AMD": (2017, "Zen")}),
    "AVX-512": ("avx512f", {"Intel": (2017, "Skylake-SP"), "AMD": (2022, "Zen 4")}),
    "AVX512-VNNI": ("avx512_vnni", {"Intel": (2019, "Cascade Lake"), "AMD": (2022, "Zen 4")}),
    "AVX512-BF16": ("avx512_bf16", {"Intel": (2020, "Cooper Lake"), "AMD": (2022, "Zen 4")}),
    "AMX": ("amx_tile", {"Intel": (2023, "Sapphire Rapids")}),
    "AVX512-FP16": ("avx512_fp16", {"Intel": (2023, "Sapphire Rapids"), "AMD": (2026, "Zen 6")}),
    "AVX-VNNI": ("avx_vnni", {"Intel": (2023, "Sapphire Rapids"), "AMD": (2024, "Zen 5")}),
    "AMX-FP16": ("amx_fp16", {"Intel": (2024, "Granite Rapids")}),
}
ANNOUNCED = {"Zen 6"}
flags = Path("/proc/cpuinfo").read_text().split()
present = {name for name, (flag, _) in CAME.items() if flag in flags}
figure, axis = plt.subplots(figsize=(10, 6))
for maker, colour, marker in (("Intel", plots.BLUE, "o"), ("AMD", plots.ORANGE, "s")):
    axis.plot([], [], ls="", marker=marker, ms=10, color=colour, label=maker)
    for row, (_, makers) in enumerate(CAME.values()):
        if maker in makers:
            year, generation = makers[maker]
            filled = "none" if generation in ANNOUNCED else colour
            axis.plot(year, row, marker=marker, ms=10, color=colour, markerfacecolor=filled)
            side, shift = ("right", 8) if maker == "Intel" else ("left", -8)
            place = dict(xytext=(shift, 9), textcoords="offset points", ha=side)
            axis.annotate(generation, (year, row), fontsize=11, **place)
names = [f"{name} ({'here' if name in present else 'not here'})" for name in CAME]
axis.set_yticks(range(len(CAME)), names)
for tick, name in zip(axis.get_yticklabels(), CAME):
    tick.set_fontweight("bold" if name in present else "normal")
axis.invert_yaxis()
axis.margins(y=0.15)
axis.set_xlim(2012, 2027.5)
axis.set(
    xlabel="year of the first server processor", title="Instruction sets that deep learning uses"
)
axis.legend(loc="lower left")
summary = "; ".join(
    f"{name}: "
    + ", ".join(
        f"{maker} {year} ({generation}{', announced' if generation in ANNOUNCED else ''})"
        for maker, (year, generation) in makers.items()
    )
    + (", on this machine" if name in present else ", not on this machine")
    for name, (_, makers) in CAME.items()
)
plots.show(figure, alt=f"When instruction sets came to servers. {summary}.", keep=results)

# %% [markdown]
# AVX2 and [AVX-512](../docs/glossary.md#avx-512) have registers of 256 and 512 bits. [VNNI](../docs/glossary.md#vnni)
# multiplies 8-bit integers and BF16 multiplies 16-bit numbers; both accumulate in 32 bits. AVX-VNNI is AVX512-VNNI in
# 256-bit registers. [AMX](../docs/glossary.md#amx) multiplies small matrices
# of 8-bit integers or BF16 numbers; AMX-FP16 does so with FP16 numbers.
#
# Arm cores have other instruction sets, which the picture leaves out: NEON with registers of 128 bits, SVE with a width
# that depends on the CPU, and instructions for BF16 and 8-bit integers in both. If you have Arm cores, some parts of
# labs 02 to 04 and 10 are about other CPUs than yours ([which](../docs/machines.md#arm64)).
#
# Two warnings before you rent a server:
#
# - **Newer does not mean more.** Intel's Xeon 6 with E-cores (Sierra Forest, 2024) has neither AVX-512 nor AMX, which
#   Sapphire Rapids had in 2023.
# - **An instruction set is not yet a speed.** Zen 4 computes AVX-512 in 256-bit units: its single-precision peak is
#   the same as with AVX2. So the labs measure.
#
# Intel and AMD have agreed on common matrix instructions, ACE ([specification](https://x86ecosystem.org), June 2026).

# %% [markdown]
# ## Remember
#
# - Run `./lab doctor` before the workshop, and whenever something looks odd.
# - A check looks at what your answer does. You are never stuck.
# - Every rank runs the same script. `rank` says which one it is, `size` how many there are.
# - An all-reduce gives every rank the sum of all ranks' numbers.
#
# At the end of the day, `./lab report` in a terminal makes one page of what you measured, guessed and passed.
#
# Next: [lab 01](01_tensorflow_graphs.ipynb) shows what TensorFlow makes of a computation before it runs it.
