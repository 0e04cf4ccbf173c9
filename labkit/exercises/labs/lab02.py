"""Exercise of lab 02: where an element of an image is in memory, in three layouts."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.reference import Reference, Result

EXERCISES: dict[int, Reference] = {}

Dimensions = list[tuple[int, int]]  # index and length, from the outermost to the innermost


def _blocked(
    blocks: Callable[[int], int] = lambda C: -(-C // 16), width: int = 16, inside: int = 16
) -> Callable[..., Dimensions]:
    """Return nChw16c with another number of blocks, another width, or the channel modulo another number in it."""
    return lambda n, c, h, w, N, C, H, W: [(n, N), (c // width, blocks(C)), (h, H), (w, W), (c % inside, width)]


LAYOUTS: dict[str, Callable[..., Dimensions]] = {
    "nchw": lambda n, c, h, w, N, C, H, W: [(n, N), (c, C), (h, H), (w, W)],
    "nhwc": lambda n, c, h, w, N, C, H, W: [(n, N), (h, H), (w, W), (c, C)],
    "nChw16c": _blocked(),
}


def _offset(size: int = 1, **layouts: Callable[..., Dimensions]) -> Callable[..., int]:
    """Return an `offset` with other layouts, or that counts in bytes of an element."""

    def offset(n: int, c: int, h: int, w: int, shape: tuple[int, ...], layout: str) -> int:
        place = 0
        for index, length in (LAYOUTS | layouts)[layout](n, c, h, w, *shape):
            place = place * length + index
        return size * place

    return offset


def _short_block(n: int, c: int, h: int, w: int, shape: tuple[int, ...], layout: str) -> int:
    """Return the offset where the last block has only the channels that remain."""
    (_, C, H, W), first = shape, c // 16 * 16
    if layout != "nChw16c":
        return _offset()(n, c, h, w, shape, layout)
    return (n * C + first) * H * W + (h * W + w) * min(16, C - first) + c % 16


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
        layout=st.sampled_from(list(LAYOUTS)),
    ),
    returns=(Result(rel=0, abs=0, format="5"),),
    wrong={
        "nchw were nhwc": _offset(nchw=LAYOUTS["nhwc"]),
        "nhwc were nchw": _offset(nhwc=LAYOUTS["nchw"]),
        "nChw16c were nchw": _offset(nChw16c=LAYOUTS["nchw"]),
        "nChw16c had only full blocks, C // 16": _offset(nChw16c=_blocked(lambda C: C // 16)),
        "nChw16c had a block more than it needs": _offset(nChw16c=_blocked(lambda C: C // 16 + 1)),
        "nChw16c had a block for each channel": _offset(nChw16c=_blocked(lambda C: C)),
        "nChw16c had blocks of 8 channels": _offset(nChw16c=_blocked(lambda C: -(-C // 8), 8, 8)),
        "the channel, and not its place in the block, came last in nChw16c": _offset(nChw16c=_blocked(inside=10**9)),
        "the last block of nChw16c had only the channels that remain": _short_block,
        "H and W were exchanged": lambda n, c, h, w, shape, layout: _offset()(
            n, c, h, w, (*shape[:2], *shape[:1:-1]), layout
        ),
        "the offset were in bytes": _offset(4),
    },
    also=[_offset()],
    hints=(
        "Start with nchw, and with n only: how many elements does one image have? Then c: how many does a channel "
        "have?",
        "From the outermost to the innermost dimension: multiply the result so far by the next dimension's length, and "
        "add its index. For nhwc that is ((n * H + h) * W + w) * C + c.",
        "nChw16c has five dimensions: n, the block c // 16, h, w, and c % 16 within the block. There are "
        "-(-C // 16) blocks: C / 16 rounded up.",
    ),
)
