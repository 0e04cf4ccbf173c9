# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 00 · Welcome
#
# **You will learn** whether your machine is ready, how the exercises work, and how to start two processes that exchange
# numbers.
#
# **Time** {minutes}
#
# **Connects to** every other lab. Each lab is a notebook like this one, and each measures on *your* machine.
#
# A notebook is a column of cells. Click on a cell and press **Shift + Enter**: the cell runs, and the next one is
# selected. Do this from the top to the bottom. If a cell gets stuck, press **■** above to interrupt it. You lose
# nothing.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from pathlib import Path

import matplotlib.pyplot as plt

from labkit.display import plots
from labkit.doctor import as_text, examine
from labkit.exercises import open_lab
from labkit.mpi import run_ranks
from labkit_classroom import join

check, results, machine, work = open_lab("00", globals())

# %% [markdown]
# ## 1 · Is this machine ready?
#
# The doctor looks at the processor, the memory, TensorFlow and its oneDNN library. It also lets two processes exchange
# numbers through Horovod and through daal4py. This takes about half a minute. In a terminal, the command is
# `./lab doctor`.

# %%
print(as_text(examine(quick=QUICK)))

# %% [markdown]
# Read the last lines. They say for each lab whether it can run here, and what to do if it can't.
#
# Three of these facts come back in every lab.
#
# - The number of [**cores**](../docs/glossary.md#core) that you can really use. A machine may have 64 cores and give
#   this notebook only 4. Two **hardware threads** of one core share its arithmetic units, so they count as one core.
# - The [**instruction set**](../docs/glossary.md#instruction-set). [**AVX-512**](../docs/glossary.md#avx-512) handles
#   16 single-precision numbers at a time, **AVX2** handles 8. BF16, [**VNNI**](../docs/glossary.md#vnni) and
#   [**AMX**](../docs/glossary.md#amx) work on numbers with fewer bits (lab 04).
# - **oneDNN**, the library that makes TensorFlow fast on CPUs (lab 02).

# %% [markdown]
# ## 2 · How exercises work
#
# An exercise is a function, or a script, with a gap in it. Replace the two lines `YOUR CODE HERE` and
# `raise NotImplementedError()` with your own code and run the cell. Then run the next cell: it **checks** what your
# answer *does*. How you wrote it doesn't matter.
#
# - *not attempted*: the two lines are still there.
# - *not yet*: you see what was expected and what your code returned, or which of your lines failed. An answer that ran
#   also gets a hint, and each other answer the next one. The last hint is nearly the answer: you see it when you ask
#   for it, by `check.hint(1)` in a cell of your own.
# - *passed*: well done.
#
# A function has 20 seconds for everything that the check asks it to do. A script has its own time limit, which the
# exercise states.
#
# Until your answer passes, the lab continues with the solution in its place. So you are never stuck: go on, and come
# back later. In a terminal, `./lab reset 00` gives you a fresh copy of this notebook, and keeps yours beside it.
#
# ### Exercise 1 · Share out the cores
#
# Several [**ranks**](../docs/glossary.md#rank) (processes that work together) run on one machine. Each rank may use
# several [**threads**](../docs/glossary.md#thread). Write `threads_per_rank(cores, ranks)`. It returns a whole number:
# the most threads that each rank can have so that no two threads share a core. A rank has at least one thread.


# %%
def threads_per_rank(cores, ranks):
    """Threads of each rank, when ranks share cores evenly."""
    ### BEGIN SOLUTION
    return max(1, cores // ranks)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
threads_per_rank = check(1, threads_per_rank)

# %% [markdown]
# Here is your function's answer for this machine, and for a machine with 64 cores. You can run more ranks than you have
# cores, but it is slow.

# %%
print("ranks  threads each, here  threads each, on 64 cores")
for ranks in (1, 2, 4, 8):
    here, there = (int(threads_per_rank(cores, ranks)) for cores in (machine.usable_cores, 64))
    print(f"{ranks:5}  {here:18}  {there:25}")

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Ask the room how many cores each person has, and write the range on the board. It explains
# later why neighbours measure different speeds. If someone's doctor reports a failure, that person works with a
# neighbour until the break. People who return `cores / ranks` learn from the check that it must be a whole number.
#
# </div>

# %% [markdown]
# ### In a room with an instructor
#
# Your instructor may show the address and the code of a **board**. It says how many people have passed each exercise,
# and who asks for help. Nothing is sent unless you join: write both into the next cell, and run it. It prints all that
# will ever be sent.
#
# In a terminal (File, New, Terminal), `./lab hand` raises your hand, and again takes it down. In any lab, a cell with
# `from labkit_classroom import hand; hand()` does the same. `./lab leave` ends it, and deletes what the board has of
# you.

# %%
ADDRESS = ""  # such as "http://192.168.1.5:8500"
CODE = ""  # such as "K7Q2M9"

if ADDRESS:
    join(ADDRESS, CODE)

# %% [markdown]
# ## 3 · Hello from every rank
#
# [**mpirun**](../docs/glossary.md#mpirun) starts several copies of a program. `mpirun -n 2 python script.py` starts the
# *same* script twice. The two processes share no memory. Only one number is different: the **rank**, 0 or 1. The number
# of ranks is the [**size**](../docs/glossary.md#world-size). Both come from [**MPI**](../docs/glossary.md#mpi), the
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
# `hello from rank 0 of 2`, with its own numbers. `MPI.COMM_WORLD` is the group of all ranks; it has a `rank` and a
# `size`. The check runs the script on 2 and on 3 ranks, for 90 s at most each time.

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
# The labs start ranks with `run_ranks`. It prints the `mpirun` command that does the same in a terminal, after
# `source .venv/bin/activate`. Then it prints each line with the number of its rank in front. Three parts of the command
# are worth a look:
#
# - `-n 2`: the size.
# - `-bind-to`: each rank stays on cores of its own. If another run's ranks already use the first cores, these are
#   different ones.
# - `-genv`: environment variables that tell the libraries how many threads to use. That number comes from your
#   function. `UCX_TLS` makes the ranks communicate through shared memory, not through a network on which others could
#   listen.
#
# `labkit.mpi.rank_runner` runs your script. If one rank fails, it ends the others too, so that they don't wait for it
# forever.

# %%
run = run_ranks(2, hello)

# %% [markdown]
# Run the cell above a few times. The order of the lines may change, because no rank is guaranteed to be first. That is
# why only one rank should report results, and why the labs compare what *all* ranks hold.

# %% tags=["nbval-check-output"]
sorted(line for lines in run.lines for line in lines if line.startswith("hello"))

# %% [markdown]
# ### Exercise 3 · Add up numbers from all ranks
#
# Each rank has a number that the others don't know. `everybody.allreduce(number)` adds up the numbers of all ranks, and
# gives *every* rank the sum. This is an [**all-reduce**](../docs/glossary.md#all-reduce). Distributed training depends
# on it: there, the numbers are [gradients](../docs/glossary.md#gradient).
#
# Complete the script. Each rank's own number is its rank plus 1. Each rank prints `total 3`, with the sum of all
# numbers (1 + 2 = 3 on two ranks), which it gets from the other ranks. The check runs the script on 1, 3 and 4
# ranks, for 90 s at most each time.

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
# ## 4 · Why CPUs, and with which software?
#
# Large networks are mostly trained on GPUs. A lot of other work is done on CPUs:
#
# - [**Inference**](../docs/glossary.md#inference), that is, using a trained network. Requests often come one by one,
#   too few at a time to fill a GPU, and every server has a CPU.
# - The data's way to the network. Files are read, decoded and changed on CPUs, also where a GPU trains.
# - Classic machine learning: decision trees, regression, clustering (lab 09).
# - Whatever needs much memory. A server can have more than a terabyte, many times as much as a GPU.
# - Training on the machines that there are: a cluster without GPUs, or its idle nodes (lab 08).
#
# A framework such as TensorFlow describes *what* to compute. A library below it knows *how* to do so on this processor.
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
#
# Three of the libraries had other names when most of the advice that you find on the web was written.
#
# | then | today | what it is for |
# | --- | --- | --- |
# | MKL-DNN (DNNL for a while) | oneDNN | convolutions, matrix products and other layers |
# | DAAL | oneDAL | classic machine learning |
# | MLSL | oneCCL | collectives for training on several nodes; Horovod can use it in place of MPI's |
#
# People who come from statistics know much of this by other words.
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
# | supervised learning | regression, classification |
# | unsupervised learning | clustering, density estimation |
#
# Each term that is bold in a lab leads to the glossary, with the words to search for.
#
# ### What the processors learned
#
# A network is mostly multiplications and additions. Over the years, processors have got instructions that do more of
# them at a time: first by wider registers, then by numbers with fewer bits, then by whole small matrices. The picture
# shows in which year each came to a server processor, and which ones *this* machine has.

# %% jupyter={"source_hidden": true}
# The first server generation of each maker that has it, and its year. Sources: Intel, Architecture Instruction Set
# Extensions Programming Reference, chapter 1 (which generation has what); AMD, Software Optimization Guide for the
# AMD Zen4 Microarchitecture. AMX and AVX512-FP16 are in no EPYC up to Zen 5 (2024).
CAME = {
    "AVX2": {"Intel": (2014, "Haswell-EP"), "AMD": (2017, "Zen")},
    "AVX-512": {"Intel": (2017, "Skylake-SP"), "AMD": (2022, "Zen 4")},
    "VNNI": {"Intel": (2019, "Cascade Lake"), "AMD": (2022, "Zen 4")},
    "BF16": {"Intel": (2020, "Cooper Lake"), "AMD": (2022, "Zen 4")},
    "AMX": {"Intel": (2023, "Sapphire Rapids")},
    "AVX512-FP16": {"Intel": (2023, "Sapphire Rapids")},
}
fp16 = "avx512_fp16" in Path("/proc/cpuinfo").read_text().split()
present = {*machine.isa} | ({"AVX512-FP16"} if fp16 else set())
figure, axis = plt.subplots(figsize=(10, 4.5))
for maker, colour, marker in (("Intel", plots.BLUE, "o"), ("AMD", plots.ORANGE, "s")):
    rows = [row for row, name in enumerate(CAME) if maker in CAME[name]]
    came = [CAME[name][maker] for name in CAME if maker in CAME[name]]
    axis.plot([year for year, _ in came], rows, ls="", marker=marker, ms=10, color=colour, label=maker)
    for row, (year, generation) in zip(rows, came):
        axis.annotate(generation, (year, row), xytext=(0, 10), textcoords="offset points", ha="center", fontsize=11)
axis.set_yticks(range(len(CAME)), [f"{name} ({'here' if name in present else 'not here'})" for name in CAME])
for tick, name in zip(axis.get_yticklabels(), CAME):
    tick.set_fontweight("bold" if name in present else "normal")
axis.invert_yaxis()
axis.margins(x=0.12, y=0.15)
axis.set(xlabel="year of the first server processor", title="Instruction sets that deep learning uses")
axis.legend(loc="lower left")
summary = "; ".join(
    f"{name}: {', '.join(f'{maker} {year} ({generation})' for maker, (year, generation) in makers.items())}, "
    + ("on this machine" if name in present else "not on this machine")
    for name, makers in CAME.items()
)
plots.show(figure, alt=f"When instruction sets came to server processors. {summary}.", keep=results)

# %% [markdown]
# AVX2 and [AVX-512](../docs/glossary.md#avx-512) widened the registers to 256 and 512 bits.
# [VNNI](../docs/glossary.md#vnni) multiplies 8-bit integers, and BF16 multiplies 16-bit numbers; both add up in 32
# bits. AVX512-FP16 computes in 16 bits throughout. [AMX](../docs/glossary.md#amx) multiplies small matrices of 8-bit
# integers or BF16 numbers. A later processor does not always have all of an earlier one's: Ice Lake-SP (2021) came
# after Cooper Lake, and has no BF16. Lab 04 measures what fewer bits are worth here.

# %% [markdown]
# ## Remember
#
# - Run `./lab doctor` before the workshop, and whenever something looks odd.
# - A check looks at what your answer does. You are never stuck.
# - Every rank runs the same script. `rank` says which one it is, `size` how many there are.
# - An all-reduce gives every rank the sum of all ranks' numbers.
#
# Next: lab 01 shows what TensorFlow makes of a computation before it runs it. At the end of the day, run `./lab report`
# in a terminal. It makes one page of what you measured and passed.
