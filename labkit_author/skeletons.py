"""Skeletons of a new exercise: a function, or a script that runs on ranks.

A skeleton is a working exercise that passes its tests; its author replaces it part by part. `./lab lint` lists the
parts that remain.
"""

import re
from string import Template
from typing import NamedTuple

# Parts of a skeleton that remain in a lab's source.
LEFT = re.compile(r"Exercise \d+ · Its title|What to do and why\.|\b(?:twice|total)_\d+\b")


TABLES = Template('''"""Exercises of lab $lab."""

from labkit.exercises.engine.reference import Reference

EXERCISES: dict[int, Reference] = {}
''')  # a lab's first table


class Exercise(NamedTuple):
    """Templates of an exercise's parts in its lab's files; `n` is its number, `lab` the lab's number.

    Attributes
    ----------
    name : str
        The name of its answer, without its number.
    text : Template
        The part in the lab's source.
    check : Template
        The part in the lab's checks.
    imports : dict of str to str
        The names used by the check, each with the line that imports it.
    mistakes : Template or None
        The part of a script in the lab's planted mistakes, with an alternative right answer.
    probe : Template or None
        A script's separate module that runs on the ranks.
    """

    name: str
    text: Template
    check: Template
    imports: dict[str, str]
    mistakes: Template | None = None
    probe: Template | None = None


FUNCTION = Exercise(
    name="twice",
    text=Template('''\
# %% [markdown]
# ### Exercise $n · Its title
#
# What to do and why. Write `twice_$n(values)`: it takes a list of numbers and returns twice their sum.


# %%
def twice_$n(values):
    """Return twice the sum of a list of numbers."""
    ### BEGIN SOLUTION
    return 2 * sum(values)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
twice_$n = check($n, twice_$n)

'''),
    check=Template("""
EXERCISES[$n] = Reference(
    cases=[([1, 2, 3],), ([],)],
    more=st.tuples(st.lists(st.integers(-9, 9), max_size=5)),
    wrong={
        "the sum were not doubled": sum,
        "the numbers were squared, not doubled": lambda values: sum(value**2 for value in values),
    },
    also=[lambda values: sum(values + values)],
    hints=("Which Python function adds up a list?", "return 2 * sum(values)"),
)
"""),
    imports={
        "st": "from hypothesis import strategies as st",
        "Reference": "from labkit.exercises.engine.reference import Reference",
    },
)

SCRIPT = Exercise(
    name="total",
    text=Template('''\
# %% [markdown]
# ### Exercise $n · Its title
#
# What to do and why. Write `total_$n(number)`: every rank calls it with its own number, and it returns the sum of all
# ranks' numbers. It may take 10 s.

# %%
# %%writefile work/total_$n.py
from mpi4py import MPI


def total_$n(number):
    """Return the sum of all ranks' numbers, on every rank."""
    ### BEGIN SOLUTION
    return MPI.COMM_WORLD.allreduce(number)
    ### END SOLUTION


if __name__ == "__main__":
    print(total_$n(MPI.COMM_WORLD.rank))

# %% tags=["nbval-check-output"]
total_$n = check($n, "work/total_$n.py")

'''),
    check=Template('''

@lab.exercise(
    $n,
    hints=("Which collective returns the sum on every rank?", "return MPI.COMM_WORLD.allreduce(number)"),
)
def total_$n(answer) -> None:
    """Check that each of 3 ranks gets the sum of all ranks' numbers."""
    probe = Path(__file__).with_name("lab${lab}_total_$n.py")
    for rank, result in enumerate(reports(run_answer(3, probe, answer, threads=1, timeout=60))):
        expect_equal(result, 111, f"total_$n({10**rank}) on rank {rank} of 3")
'''),
    imports={
        "Path": "from pathlib import Path",
        "reports": "from labkit.exercises.engine.answers import reports",
        "run_answer": "from labkit.exercises.engine.answers import run_answer",
        "expect_equal": "from labkit.exercises.engine.values import expect_equal",
    },
    mistakes=Template("""
[[$n.mistakes]]
before = "MPI.COMM_WORLD.allreduce(number)"
after = "number"
message = "total_$n(1) on rank 0 of 3 to be 111; it is 1"

[[$n.mistakes]]
before = "return MPI"
after = "MPI"
message = "a number; it is None"

[[$n.right]]
before = "MPI.COMM_WORLD.allreduce(number)"
after = "sum(MPI.COMM_WORLD.allgather(number))"
"""),
    probe=Template('''\
"""Probe of lab $lab: report the result of a script's `total_$n` on each rank. The lab's checks start it:

mpirun -n 3 python lab${lab}_total_$n.py SCRIPT
"""

import sys

from mpi4py import MPI

from labkit.exercises.ranks.runner import load, report, watched

if __name__ == "__main__":
    script, rank = sys.argv[1], MPI.COMM_WORLD.rank
    (total,) = load(script, "total_$n")
    with watched(script, f"in total_$n, on rank {rank}"):
        result = total(10**rank)
        report(result if result is None else float(result))
'''),
)
