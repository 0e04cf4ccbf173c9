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
        The part in the lab's table.
    imports : dict of str to str
        The names used by the check, each with the line that imports it.
    """

    name: str
    text: Template
    check: Template
    imports: dict[str, str]


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
        "the sum were not doubled": {"2 * ": ""},
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
# What to do and why. Write `total_$n(ranks, number)`: every rank of the communicator `ranks` calls it with its own
# number, and it returns the sum of all numbers. It may take 10 s.

# %%
# %%writefile work/total_$n.py
from mpi4py import MPI


def total_$n(ranks, number):
    """Return the sum of all ranks' numbers, on every rank."""
    ### BEGIN SOLUTION
    return ranks.allreduce(number)
    ### END SOLUTION


if __name__ == "__main__":
    print(total_$n(MPI.COMM_WORLD, MPI.COMM_WORLD.rank))

# %% tags=["nbval-check-output"]
total_$n = check($n, "work/total_$n.py")

'''),
    check=Template("""

def one_number_each(n: int) -> Iterator[Case]:
    \"""Return a case in which each sum of the ranks' numbers is another.\"""
    yield Case(f"{n} ranks", [(10**rank,) for rank in range(n)])


def all_get_the_sum(case: Case, seen: Sequence[Saw]) -> None:
    \"""Every rank returns the sum of all numbers.\"""
    for saw in seen:
        expect_equal(saw.result, sum(number for (number,) in case.arguments), f"rank {saw.rank}'s sum for {case.text}")


EXERCISES[$n] = OnRanks(
    "total_$n",
    parameters=("number",),
    cases=one_number_each,
    invariants=(all_get_the_sum,),
    hints=("Which collective returns the sum on every rank?", "return ranks.allreduce(number)"),
    wrong=((all_get_the_sum, Script(before="return ranks.allreduce(number)", after="return number")),),
    right=(Script(before="ranks.allreduce(number)", after="sum(ranks.allgather(number))"),),
)
"""),
    imports={
        "Iterator": "from collections.abc import Iterator",
        "Sequence": "from collections.abc import Sequence",
        "Case": "from labkit.exercises.engine.on_ranks import Case",
        "OnRanks": "from labkit.exercises.engine.on_ranks import OnRanks",
        "Saw": "from labkit.exercises.engine.on_ranks import Saw",
        "Script": "from labkit.exercises.engine.on_ranks import Script",
        "expect_equal": "from labkit.exercises.engine.values import expect_equal",
    },
)
