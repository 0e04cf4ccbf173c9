"""Exercise of lab 02: where an element of an image is in memory, in three layouts."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.reference import Reference, Result

EXERCISES: dict[int, Reference] = {}

LAYOUTS = ("nchw", "nhwc", "nChw16c")


def _cases() -> list[Any]:
    """Return elements of images whose channels fill blocks or don't, and of one with more than 16 bits can count."""
    return [
        (*element, shape, layout)
        for shape in ((2, 32, 3, 5), (2, 20, 3, 3), (3, 16, 2, 4), (2, 3, 4, 2))
        for layout in LAYOUTS
        for element in list(np.ndindex(*shape))[:: max(1, shape[1] // 4)]
    ] + [(2, 39, 63, 47, (3, 40, 64, 48), layout) for layout in LAYOUTS]


def _element(shape: tuple[int, ...], indices: tuple[int, ...], layout: str) -> tuple[Any, ...]:
    return (*(index % length for index, length in zip(indices, shape, strict=True)), shape, layout)


EXERCISES[2] = Reference(
    cases=_cases(),
    more=st.builds(
        _element,
        shape=st.tuples(st.integers(1, 4), st.integers(1, 70), st.integers(1, 6), st.integers(1, 6)),
        indices=st.tuples(*[st.integers(0, 10**6)] * 4),
        layout=st.sampled_from(LAYOUTS),
    ),
    returns=(Result(rel=0, abs=0, format="5"),),
    wrong={
        "nchw were nhwc": {"n * C + c) * H + h) * W + w": "n * H + h) * W + w) * C + c"},
        "nhwc were nchw": {"n * H + h) * W + w) * C + c": "n * C + c) * H + h) * W + w"},
        "nChw16c were nchw": {'layout == "nchw"': 'layout != "nhwc"'},
        "nChw16c had only full blocks, C // 16": {"-(-C // 16)": "C // 16"},
        "nChw16c had a block more than it needs": {"-(-C // 16)": "C // 16 + 1"},
        "nChw16c had a block for each channel": {"-(-C // 16)": "C"},
        "nChw16c had blocks of 8 channels": {"16": "8"},
        "the channel, and not its place in the block, came last in nChw16c": {"c % 16": "c"},
        "the last block of nChw16c had only the channels that remain": {
            "(((n * blocks + c // 16) * H + h) * W + w) * 16": "(n * C + c - c % 16) * H * W + (h * W + w) * min(16, "
            "C - c + c % 16)"
        },
        "H and W were exchanged": {"N, C, H, W = shape": "N, C, W, H = shape"},
        "the offset were in bytes": {"def offset(": "def offset(*at):\n    return 4 * place(*at)\n\n\ndef place("},
    },
    also=[{"-(-C // 16)": "(C + 15) // 16", "((n * H + h) * W +": "(n * H * W + h * W +"}],
    hints=(
        "Start with nchw, and with n only: how many elements does one image have? Then c: how many does a channel "
        "have?",
        "From the outermost to the innermost dimension: multiply the result so far by the next dimension's length, and "
        "add its index. For nhwc that is ((n * H + h) * W + w) * C + c.",
        "nChw16c has five dimensions: n, the block c // 16, h, w, and c % 16 within the block. There are "
        "-(-C // 16) blocks: C / 16 rounded up.",
    ),
)
