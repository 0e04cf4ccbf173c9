"""Are the answers to lab 02 right: a folded batch norm, offsets in three layouts, and two readings of oneDNN's log?"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from labkit.exercises.answers import call
from labkit.exercises.core import Lab
from labkit.exercises.values import describe
from labkit.exercises.verdicts import expect

lab = Lab("02")


@lab.exercise(
    1,
    hints=(
        "Write the formula as y = s * x + t, with s and t for each channel. What are they?",
        "s = gamma / sqrt(variance + epsilon). A convolution whose weights are s times as large gives s * x.",
        "The weights are w * s, since numpy multiplies along the last dimension, which is channels out. The bias is "
        "beta - mean * s.",
    ),
)
def fold(answer) -> None:
    """One convolution with the folded weights gives what convolution and batch norm give."""
    rng = np.random.default_rng(0)
    for kernel, c_in, c_out in ((1, 3, 5), (3, 4, 4)):
        w = rng.normal(size=(kernel, kernel, c_in, c_out)).astype("float32")
        gamma, beta, mean = (rng.normal(size=c_out).astype("float32") for _ in range(3))
        variance, epsilon = rng.uniform(0.1, 2, size=c_out).astype("float32"), 0.05
        got = call(answer, *(array.copy() for array in (w, gamma, beta, mean, variance)), epsilon)
        expect(
            isinstance(got, tuple | list) and len(got) == 2,
            f"two things, the weights and the bias; it gave {describe(got)}",
        )
        weights, bias = (np.asarray(part) for part in got)
        expect(weights.shape == w.shape, f"weights of the shape {w.shape}, as w has; yours have {weights.shape}")
        expect(bias.shape in ((c_out,), ()), f"a bias for each of {c_out} channels out; its shape is {bias.shape}")
        # On a patch as large as the kernel, a convolution is one sum: what it gives for each channel out.
        patch = rng.normal(size=w.shape[:3]).astype("float32")
        x = np.einsum("hwi,hwio->o", patch, w)
        right = gamma * (x - mean) / np.sqrt(variance + epsilon) + beta
        # With no input, the bias alone is left.
        empty = beta - gamma * mean / np.sqrt(variance + epsilon)
        expect(
            np.allclose(bias, empty, atol=1e-4),
            f"the bias that batch norm makes of an input of 0, {_short(empty)}; it is {_short(bias)}",
        )
        got = np.einsum("hwi,hwio->o", patch, weights) + bias
        expect(
            np.allclose(got, right, atol=1e-3),
            f"the convolution with your weights and bias to give {_short(right)}, as with the batch norm; it gave "
            f"{_short(got)}",
        )


@lab.exercise(
    2,
    hints=(
        "Begin with nchw, and with n alone: how many elements does one whole picture have? Then c: how many has a "
        "channel?",
        "From the outermost to the innermost dimension: multiply what you have by the next dimension's length, and add "
        "its index. For nhwc that is ((n * H + h) * W + w) * C + c.",
        "nChw16c has five dimensions: n, the block c // 16, h, w, and c % 16 within the block. There are "
        "-(-C // 16) blocks: C / 16 rounded up.",
    ),
)
def offset(answer) -> None:
    """Each element is where numpy has it, in pictures whose channels fill blocks or not."""
    for shape in ((2, 32, 3, 5), (3, 16, 2, 4), (2, 20, 3, 3), (1, 3, 4, 2)):
        memory = _layouts(np.arange(np.prod(shape)).reshape(shape))
        for layout, flat in memory.items():
            places = np.empty(flat.max() + 1, int)  # by element, in the order of nchw
            places[flat[flat >= 0]] = np.flatnonzero(flat >= 0)
            for number, (n, c, h, w) in enumerate(np.ndindex(*shape)):
                got = call(answer, n, c, h, w, shape, layout)
                asked = f'offset({n}, {c}, {h}, {w}, {shape}, "{layout}")'
                expect(isinstance(got, int | np.integer), f"{asked} to be a whole number; it is {got!r}")
                expect(got == places[number], f"{asked} to be {places[number]}; it is {got}")


def _layouts(pictures: np.ndarray) -> dict[str, np.ndarray]:
    """Lay pictures of shape (N, C, H, W) out in memory; -1 where a block is filled up."""
    n, c, h, w = pictures.shape
    blocks = -(-c // 16)
    filled = np.full((n, blocks * 16, h, w), -1)
    filled[:, :c] = pictures
    return {
        "nchw": pictures.ravel(),
        "nhwc": pictures.transpose(0, 2, 3, 1).ravel(),
        "nChw16c": filled.reshape(n, blocks, 16, h, w).transpose(0, 1, 3, 4, 2).ravel(),
    }


# Milliseconds are powers of two, so that each sum tells which rows are in it.
LOG = pd.DataFrame(
    [
        ("reorder", "jit:uni", "undef", "cdba", "", "Acdb16a", 1.0),
        ("convolution", "jit:avx512_core", "forward_training", "acdb", "Acdb16a", "acdb", 16.0),
        ("reorder", "jit:uni", "undef", "cdba", "", "ABcd16b16a", 2.0),
        ("convolution", "brg_conv_fwd:avx2", "forward_training", "aBcd8b", "ABcd8b8a", "aBcd8b", 4.0),
        ("reorder", "jit:uni", "undef", "ABcd16b16a", "", "cdba", 8.0),
        ("reorder", "simple:any", "undef", "acdb", "", "abcd", 32.0),
        ("pooling", "jit:avx512_core", "backward_data", "acdb", "", "acdb", 64.0),
        ("gemm_api", "", "undef", "ab", "ba", "ab", 128.0),
        ("reorder", "jit:blk", "undef", "ABcd16b16a", "", "Acdb16a", 256.0),
    ],
    columns=["primitive", "implementation", "direction", "src", "wei", "dst", "ms"],
).assign(type="f32", attributes="", problem="")


@lab.exercise(
    3,
    hints=(
        "pandas: group the rows by the column, and sum their ms.",
        "log.groupby(column).ms.sum() is nearly it. What about the order?",
        "log.groupby(column).ms.sum().sort_values(ascending=False)",
    ),
)
def time_by(answer) -> None:
    """Sums for two columns, the largest first."""
    for column in ("primitive", "implementation"):
        sums: dict[str, float] = {}
        for value, ms in zip(LOG[column], LOG.ms, strict=True):
            sums[value] = sums.get(value, 0) + ms
        got = call(answer, LOG.copy(), column)
        expect(isinstance(got, pd.Series | Mapping), f"a pandas Series or a dict; it gave {describe(got)}")
        got = dict(got.items())
        asked = f'time_by(log, "{column}")'
        expect(set(got) == set(sums), f"{asked} to have {sorted(sums)}; it has {sorted(map(str, got))}")
        for value, ms in sums.items():
            expect(np.isclose(got[value], ms), f"{asked} to have {ms} ms for {value!r}; it has {got[value]}")
        order = list(got.values())
        expect(order == sorted(order, reverse=True), f"{asked} to begin with the largest; it gave {order}")


@lab.exercise(
    4,
    hints=(
        "Three conditions on a row: it is a reorder, its src is plain, its dst is blocked. How do you see in its name "
        "that a layout is blocked?",
        'A blocked layout has digits in its name: log.dst.str.contains(r"\\d"). And a plain one has none.',
        'log[(log.primitive == "reorder") & ~log.src.str.contains(r"\\d") & log.dst.str.contains(r"\\d")]',
    ),
)
def blocking(answer) -> None:
    """The two rows that put a plain tensor into blocks."""
    got = call(answer, LOG.copy())
    expect(isinstance(got, pd.DataFrame) and "ms" in got, f"rows of the log, as log[…] gives; it gave {describe(got)}")
    rows = set(got.index)
    expect({0, 2} <= rows, f"every reorder from plain to blocks; missing is {_row(min({0, 2} - rows, default=0))}")
    expect(rows == {0, 2}, f"only reorders from plain to blocks; there is also {_row(min(rows - {0, 2}, default=0))}")


def _row(index: int) -> str:
    row = LOG.loc[index]
    return f"the {row.primitive} from {row.src} to {row.dst}"


@lab.exercise(
    5,
    hints=(
        "How many elements has the output? And how many terms does each of them add up?",
        "mb * oc * oh * ow elements; ic * kh * kw terms each; two operations a term.",
        "2 * mb * oc * oh * ow * ic * kh * kw",
    ),
)
def flops(answer) -> None:
    """Two operations for each term of each element, counted."""
    for case in ((1, 1, 1, 1, 1, 1, 1), (64, 1, 32, 28, 28, 3, 3), (64, 32, 64, 14, 14, 3, 3), (2, 3, 5, 7, 11, 1, 5)):
        mb, ic, oc, oh, ow, kh, kw = case
        right = 2 * mb * oc * oh * ow * ic * kh * kw
        got = call(answer, *case)
        asked = f"flops(mb={mb}, ic={ic}, oc={oc}, oh={oh}, ow={ow}, kh={kh}, kw={kw})"
        expect(isinstance(got, int | float | np.number), f"{asked} to be a number; it is {got!r}")
        expect(got == right, f"{asked} to be {right:,}; it is {got:,}")


def _short(values: np.ndarray) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in np.ravel(values)[:3]) + ", …]"
