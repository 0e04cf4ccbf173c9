# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 00 · Welcome
#
# **You will** see whether your machine is ready, learn how the exercises work, and start your first two processes that
# know of each other.
#
# **Time** about 20 minutes: 10 to read and run, 10 for three exercises. Waiting in all: about half a minute.
#
# **Connects to** every other lab. Each is a notebook like this one, and each measures on *your* machine.
#
# A notebook is a column of cells. Click into one and press **Shift + Enter**: it runs, and the next is selected. Do
# that from the top to the bottom. If something gets stuck, the **■** above interrupts the cell; nothing is lost.

# %%

from labkit.doctor import as_text, examine
from labkit.exercises import open_lab
from labkit.mpi import run_ranks

check, results, machine, work, QUICK = open_lab("00", globals())

# %% [markdown]
# ## 1 · Is this machine ready?
#
# The doctor looks at the processor, the memory, TensorFlow and its oneDNN, and lets two processes exchange numbers by
# Horovod and by daal4py. It takes about half a minute. In a terminal it is `./lab doctor`.

# %%
print(as_text(examine()))

# %% [markdown]
# Read the last lines: they say for each lab whether it can run here, and what to do if not.
#
# Three of these numbers come back in every lab.
#
# - **Cores** really usable. A machine may have 64, and give this notebook 4. Two *hardware threads* of one core share
#   its arithmetic units, so they count once.
# - **Instruction set.** AVX-512 handles 16 single-precision numbers at a time, AVX2 handles 8. BF16, VNNI and AMX are
#   for fewer bits (lab 04).
# - **oneDNN**, the library that makes TensorFlow fast on CPUs (lab 02).

# %%

# %% [markdown]
# ## 2 · How exercises work
#
# An exercise is a function, or a script, in which something is missing. Replace the two lines `# YOUR CODE HERE` and
# `raise NotImplementedError()` by your own, run the cell, and run the one after it: it **checks** what your answer
# *does*. It doesn't matter how you wrote it.
#
# - *not attempted*: the lines are still there.
# - *not yet*: it says what was expected and what came, or which line of yours failed, and gives a hint. Each further
#   try gives a stronger one.
# - *passed*: well done.
#
# A function has 20 seconds for all that the check asks of it. A script has a limit of its own, which its exercise says.
#
# Until it passes, the lab goes on with a solution in its place. So you are never stuck: go on, and come back.
# `./lab reset 00` in a terminal gives you this notebook fresh, and keeps yours beside it.
#
# ### Exercise 1 · Share the cores out
#
# Some **ranks** (processes that work together) run on a machine. Each may use several **threads**. Write
# `threads_per_rank(cores, ranks)`: the most threads each rank can have without two threads sharing a core, a whole
# number. A rank has at least one thread.


# %%
def threads_per_rank(cores, ranks):
    """Threads of each rank, when ranks share cores evenly."""
    ### BEGIN SOLUTION
    return max(1, cores // ranks)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
threads_per_rank = check(1, threads_per_rank)

# %% [markdown]
# Here is what it says for this machine, and for one with 64 cores. More ranks than cores is possible, and slow.

# %%
print("ranks  threads each, here  threads each, on 64 cores")
for ranks in (1, 2, 4, 8):
    here, there = (int(threads_per_rank(cores, ranks)) for cores in (machine.usable_cores, 64))
    print(f"{ranks:5}  {here:18}  {there:25}")

# %% [markdown] tags=["instructor"]
# **For the instructor.** Ask the room who has how many cores, and write the spread on the board: it explains later why
# neighbours measure differently. Whoever's doctor reports a failure works with a neighbour until the break. People who
# return `cores / ranks` find out about whole numbers from the check.

# %% [markdown]
# ## 3 · Hello from every rank
#
# `mpirun -n 2 python script.py` starts the *same* script twice. The two processes share no memory. What differs is one
# number, the **rank**: 0 and 1. How many there are is the **size**. Both come from MPI, the message passing interface.
#
# ### Exercise 2 · The first words
#
# `%%writefile` writes its cell into a file instead of running it. Complete the script: each rank prints one line,
# `hello from rank 0 of 2`, with its own numbers. `MPI.COMM_WORLD` is everybody; it has a `rank` and a `size`. It is
# checked on 2 and on 3 ranks, 90 s at most each.

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
# `run_ranks` is how the labs start ranks. It prints the `mpirun` command that does the same in a terminal, after
# `source .venv/bin/activate`, and then each line with the rank it came from in front. Three things in the command are
# worth a look:
#
# - `-n 2`: the size.
# - `-bind-to`: each rank keeps to cores of its own. They are others when somebody else's ranks have the first ones.
# - `-genv`: variables that tell the libraries how many threads to use. It is your function's number. `UCX_TLS` has the
#   ranks talk through shared memory, and through no network on which somebody could listen.
#
# `labkit.mpi.rank_runner` runs your script and sees to it that a rank that fails ends the others too, instead
# of leaving them waiting for it.

# %%
run = run_ranks(2, hello)

# %% [markdown]
# Run the cell above a few times. The lines may change places: nobody decides which rank is first. That is why only
# one rank should report, and why the labs compare what *all* ranks hold.

# %% tags=["nbval-check-output"]
sorted(line for lines in run.lines for line in lines if line.startswith("hello"))

# %% [markdown]
# ### Exercise 3 · Adding up what nobody has alone
#
# Each rank has a number that the others don't know. `everybody.allreduce(number)` adds up all ranks' numbers, and
# gives *every* rank the sum. It is the operation that distributed training stands on: there, the numbers are
# gradients.
#
# Complete the script: each rank's own number is its rank plus 1, and each rank prints `total 3` with the sum of all
# (1 + 2 = 3 on two ranks), as the others told it. It is checked on 1 to 4 ranks, 90 s at most each.

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
# ## Remember
#
# - `./lab doctor` before the day, and whenever something is odd.
# - A check looks at what your answer does. Nobody is ever stuck.
# - Every rank runs the same script. `rank` tells it who it is, `size` how many there are.
# - An all-reduce gives every rank the sum of what all have.
#
# Next: lab 01 shows what TensorFlow makes of a computation before it runs it. At the end of the day, `./lab report` in
# a terminal makes one page of what you measured and passed.
