"""Exercises of lab 02: operations and layouts of a convolution, three steps of one in C, and what to improve first."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit import native
from labkit.exercises.engine.in_c import Case, InC
from labkit.exercises.engine.on_ranks import Script
from labkit.exercises.engine.reference import Reference, Result
from labkit.roofline import convolution

EXERCISES: dict[int, Reference | InC] = {}

_SPY = Path(__file__).with_suffix(".c")  # counts how `convolve_batch` calls `convolve`
_SIZES = ("mb", "ic", "oc", "oh", "ow", "kh", "kw")
_odd, _length = st.sampled_from((1, 3, 5, 7)), st.integers(1, 64)
_INSIDE = "max(0, size - abs(tap - kernel // 2))"

EXERCISES[1] = Reference(
    cases=[
        *((1, 1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 3, 3), (1, 1, 1, 5, 5, 3, 3), (2, 3, 5, 7, 11, 1, 5)),
        *((64, 32, 64, 14, 14, 3, 3), (1, 1, 1, 2, 9, 7, 3), (64, 3136, 128, 1, 1, 1, 1), (3, 5, 7, 1001, 1003, 3, 5)),
    ],
    more=st.tuples(st.integers(1, 256), _length, _length, _length, _length, _odd, _odd),
    case=lambda *sizes: f"flops({', '.join(f'{name}={size}' for name, size in zip(_SIZES, sizes, strict=True))})",
    returns=(Result(rel=0, abs=0, format=".3g"),),
    wrong={
        "taps on padding counted": {_INSIDE: "size"},
        "a multiply-add were one operation": {"2 * mb": "mb"},
        "the image had no padding, so that its border had no results": {_INSIDE: "max(0, size - kernel + 1)"},
        "the kernel had one output channel": {"* ic * oc": "* ic"},
        "only rows had padding": {"inside(ow, kw)": "ow * kw"},
        "images were at least as large as the kernel": {_INSIDE: "size - abs(tap - kernel // 2)"},
        "the kernel reached as far as its size, not half of it": {"abs(tap - kernel // 2)": "tap"},
    },
    also=[{_INSIDE: "sum(0 <= at + tap - kernel // 2 < size for at in range(size))"}],
    hints=(
        "Take one row of 5 pixels and a kernel of 3. The middle tap meets all 5 pixels. How many pixels does the left "
        "tap meet, which is one pixel off?",
        "A tap at place i is i - kh // 2 rows off, so it meets oh - abs(i - kh // 2) rows of the image, and never "
        "fewer than 0. Sum that over the kernel's rows. Columns are the same.",
        "rows = sum(max(0, oh - abs(i - kh // 2)) for i in range(kh)); columns likewise, with ow and kw. The result is "
        "2 * mb * ic * oc * rows * columns.",
    ),
)

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


# Convolutions in C


def _reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the 'same' convolution of nhwc images with kernels whose layout is (i, j, c, k)."""
    (_, height, width, _), padded = x.shape, np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [padded[:, i : i + height, j : j + width] @ w[i, j] for i, j in np.ndindex(3, 3)]
    return np.asarray(sum(taps), np.float32)


def cases() -> Iterator[Case]:
    """Yield small images, the lab's own size, sizes that leave parts of tiles and blocks, and single pixels."""
    rng = np.random.default_rng(2)
    sizes = (1, 3, 4, 1, 1), (2, 3, 5, 2, 3), (1, 14, 14, 32, 64), (1, 5, 9, 3, 70), (2, 4, 23, 5, 32), (2, 1, 1, 1, 1)
    for size in sizes:
        n, height, width, c, k = size
        x, w = (rng.integers(-4, 5, shape).astype("f4") for shape in ((n, height, width, c), (3, 3, c, k)))
        yield Case(f"{n} × {height} × {width} pixels, from {c} to {k} channels", (x, w), size, _reference(x, w))


_LAST = np.eye(9)[8].reshape(3, 3, 1, 1)  # of the kernel's taps

_CONVOLUTION = functools.partial(
    InC,
    build=convolution.build,
    cases=cases,
    names={
        "only the last channel of the last tap counted": lambda x, w: _reference(x[..., -1:], w[:, :, -1:] * _LAST),
        "the kernel were turned by 180°": lambda x, w: _reference(x, w[::-1, ::-1]),
        "rows and columns of the kernel were exchanged": lambda x, w: _reference(x, w.transpose(1, 0, 2, 3)),
    },
)
_PACKED = "((k / BLOCK * 9 + tap) * C + c) * BLOCK + k % BLOCK"

EXERCISES[3] = _CONVOLUTION(
    hints=(
        "In which of the three arrays are the elements for k and k + 1 neighbours? The innermost loop runs over these.",
        "Image and result are nhwc, so pixel (row, column) begins at in + (row * W + column) * C. The weights are "
        "(i, j, c, k): the index is built as in exercise 2, from the outermost dimension to the innermost.",
        "for (int c = 0; c < C; c++) for (int k = 0; k < K; k++) out[(h * W + w) * K + k] += "
        "in[(row * W + column) * C + c] * weights[((i * 3 + j) * C + c) * K + k];",
    ),
    wrong=(
        ("to have ", Script(before="K + k] +=", after="K + k] =")),
        ("to have ", Script(before="(row * W + column) * C + c", after="(c * H + row) * W + column")),
        ("rows and columns", Script(before="(i * 3 + j)", after="(j * 3 + i)")),
        ("turned by 180°", Script(before="((i * 3 + j)", after="((8 - i * 3 - j)")),
        ("heap-buffer-overflow", Script(before="k < K; k++)\n ", after="k <= K; k++)\n ")),
        ("it does not compile", Script(before="int c = 0", after="c = 0")),
    ),
    right=(Script(before="for (int c = 0; c < C; c++)", after="for (int c = C; c--;)"),),
)

EXERCISES[4] = _CONVOLUTION(
    hints=(
        "pack: a block has 9 taps, a tap has C channels, and a channel has BLOCK places; count them as in exercise 2. "
        "tile: each sum[p][v] needs one product, of a pixel's channel and a register of weights.",
        "pack: the place within the block is k % BLOCK, and the index begins with (k / BLOCK * 9 + tap) * C. tile: the "
        "pixel's channel is the float x[p * C], and the v-th register of weights is *(vec *)(block + v * LANES).",
        "pack: packed[((k / BLOCK * 9 + tap) * C + c) * BLOCK + k % BLOCK] = weight; tile: for (int p = 0; p < pixels; "
        "p++) for (int v = 0; v < VECTORS; v++) sum[p][v] += x[p * C] * *(vec *)(block + v * LANES);",
    ),
    wrong=(
        ("only the last channel of the last tap", Script(before="sum[p][v] +=", after="sum[p][v] =")),
        ("to have ", Script(before="v < VECTORS", after="v < 1")),
        ("to have ", Script(before="block + v * LANES", after="block")),
        ("heap-buffer-overflow", Script(before="block + v * LANES", after="block + v * BLOCK")),
        ("to have ", Script(before="p < pixels; p++)\n     ", after="p < 1; p++)\n     ")),
        ("rows and columns", Script(before=_PACKED, after=_PACKED.replace("tap)", "tap % 3 * 3 + tap / 3)"))),
        ("to have ", Script(before=_PACKED, after="((k / BLOCK * C + c) * 9 + tap) * BLOCK + k % BLOCK")),
        ("it does not compile", Script(before="*(vec *)(block", after="(vec *)(block")),
    ),
    right=(Script(before="for (int v = 0; v < VECTORS; v++)", after="for (int v = VECTORS; v--;)"),),
)


def _threads() -> tuple[Case, ...]:
    """Return a batch on one thread and on three, as the calls of `convolve` show it."""
    x, on_3 = [np.arange(1, 9, dtype=np.float32)], "8 images on 3 threads"
    repeated = "`parallel` alone lets each thread run the whole loop. What shares it?"
    return (
        Case("8 images on 1 thread", x, ("results", 8), 2 * x[0], threads=1),
        Case(on_3, x, ("calls", 8), np.ones(8), repeated, what="the calls per image", threads=3),
        Case(on_3, x, ("results", 8), 2 * x[0], threads=3),
        Case(on_3, x, ("threads", 8), np.full(1, 3), what="the threads that call", threads=3),
    )


EXERCISES[5] = InC(
    build=lambda file, flags: native.build(file, _SPY, flags=(*flags, f"-I{convolution.PROGRAM.parent}")),
    cases=_threads,
    hints=(
        "OpenMP's line begins with #pragma omp. One word starts the threads, another shares the loop's iterations "
        "among them. Which two?",
        "`parallel` alone lets each thread run the whole loop. `for` alone shares the loop among threads, but none "
        "was started. You need both, in one line.",
        "#pragma omp parallel for",
    ),
    wrong=(
        ("calls per image for 8 images on 3 threads to have 1 at [0]; it has 3", Script("parallel", "parallel for")),
        ("the threads that call for 8 images on 3 threads", Script(" for", " parallel for")),
        ("the threads that call for 8 images on 3 threads", Script("parallel", "omp parallel")),
        ("belongs to no image", Script("H * W * K,", "H * W * C,")),
        ("it does not compile", Script("parallel four", "parallel for")),
    ),
    right=(
        Script("parallel for schedule(dynamic)", "parallel for"),
        Script("#pragma omp parallel\n    #pragma omp for", "#pragma omp parallel for"),
    ),
)

_FACTOR = "step_ms / (step_ms - saves[first])"

EXERCISES[6] = Reference(
    cases=[
        ({"a": 1.0, "b": 4.0, "c": 5.0}, {"a": 0.1, "b": 0.5, "c": 0.9}, 12.0),
        ({"a": 0.5, "b": 0.25}, {"a": 0.8, "b": 0.1}, 0.75),
        ({"a": 2.0, "b": 3.0}, {"a": 1.2, "b": 0.9}, 6.0),  # above its limit: nothing to save
        ({"a": 3.0, "b": 1.0, "c": 2.0}, {"a": 0.5, "b": 0.25, "c": 0.75}, 20.0),
    ],
    returns=(Result("name"), Result("factor", format=".3f")),
    wrong={
        "the slowest part were the first to improve": {
            "ms[name] * (1 - share[name]) for": "ms[name] for",
            "- saves[first]": "- ms[first] * (1 - share[first])",
        },
        "the part furthest from its limit were the first": {"key=saves.get": "key=lambda name: -share[name]"},
        "the improved part took no time": {"(step_ms - saves[first])": "(step_ms - ms[first])"},
        "the factor were the part's own": {_FACTOR: "1 / share[first]"},
        "the factor were the new time's share of the old": {_FACTOR: "(step_ms - saves[first]) / step_ms"},
        "the factor were the milliseconds that are saved": {_FACTOR: "saves[first]"},
        "the factor were a percentage": {_FACTOR: f"100 * ({_FACTOR} - 1)"},
        "the step had no other parts": {_FACTOR: _FACTOR.replace("step_ms", "sum(ms.values())")},
        "being above the limit saved time, too": {"(1 - share[name])": "abs(1 - share[name])"},
    },
    also=[{_FACTOR: "1 / (1 - max(saves.values()) / step_ms)"}],
    hints=(
        "At its limit, a part would take its milliseconds times its share. How much time would that save?",
        "It saves ms[name] * (1 - share[name]). max(ms, key=…) returns the name with the largest saving.",
        "name = max(ms, key=lambda name: ms[name] * (1 - share[name])); the step then takes step_ms minus the saving.",
    ),
)
