"""Exercises of lab 00: the peak on paper, threads per rank, a matmul that ranks share."""

from hypothesis import strategies as st

from labkit.exercises.engine.on_ranks import OnRanks
from labkit.exercises.engine.reference import Reference, Result
from labkit.exercises.labs import lab00_ranks

EXERCISES: dict[int, Reference | OnRanks] = {}

EXERCISES[1] = Reference(
    cases=[(1, 1.0, 4, 1), (2, 2.5, 16, 2), (18, 2.9, 8, 2), (64, 3.1, 16, 1)],
    more=st.tuples(st.integers(1, 200), st.floats(0.5, 6), st.sampled_from((4, 8, 16, 512)), st.integers(1, 4)),
    returns=(Result(format=".0f"),),
    wrong={
        "a multiply-add were one operation": {" * 2": ""},
        "a multiply-add were four operations": {" * 2": " * 4"},
        "there were one core": {"cores * ": ""},
        "the clock were 1 GHz": {"ghz * ": ""},
        "a register had one lane": {"lanes * ": ""},
        "a core started one FMA per cycle": {"fmas * ": ""},
        "the result were in FLOP/s": {" * 2": " * 2e9"},
        "the result were in TFLOP/s": {" * 2": " * 2 / 1000"},
        "the factors were added": {" * ": " + "},
    },
    also=[{"cores * ghz * lanes * fmas * 2": "2.0 * lanes * fmas * (cores * ghz)"}],
    hints=(
        "How many numbers does one core multiply and add in one cycle? How many cycles are there in a second?",
        "A multiply-add is two operations. A clock in GHz gives 10⁹ cycles per second, and GFLOP/s are 10⁹ operations "
        "per second, so the powers of ten cancel.",
        "return cores * ghz * lanes * fmas * 2",
    ),
)

EXERCISES[2] = Reference(
    cases=[(8, 2), (8, 3), (2, 1), (2, 4), (64, 16), (7, 3)],
    more=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    wrong={
        "a rank had no thread when there are more ranks than cores": {"max(1, cores // ranks)": "cores // ranks"},
        "threads could share a core": {"cores // ranks": "cores / ranks"},
        "the share were rounded to the nearest integer": {"cores // ranks": "round(cores / ranks)"},
        "the share were rounded up": {"cores // ranks": "-(-cores // ranks)"},
        "each rank used all cores": {"cores // ranks": "cores"},
        "each rank had one thread": {"cores // ranks": "1"},
        "cores and ranks were exchanged": {"cores // ranks": "ranks // cores"},
        "the cores that are left over were shared": {"max(1, cores // ranks)": "cores % ranks"},
    },
    also=[{"max(1, cores // ranks)": "cores // ranks or 1"}, {"cores // ranks": "int(cores / ranks)"}],
    hints=(
        "Share 8 cores among 2 ranks: how many does each get? And 8 among 3, if a core can't be split?",
        "`//` divides and rounds down. What does it return for more ranks than cores?",
        "return max(1, cores // ranks)",
    ),
    hint_for={"a rank had no thread when there are more ranks than cores": "How many threads does a rank need?"},
)

EXERCISES[3] = lab00_ranks.EXERCISES[3]
