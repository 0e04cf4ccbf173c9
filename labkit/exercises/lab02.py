"""Checks of lab 02: a folded batch norm, offsets in three layouts, oneDNN's log, an operation count."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from labkit.exercises.answers import call, for_all
from labkit.exercises.core import Lab
from labkit.exercises.outcomes import expect, hinting, refuse
from labkit.exercises.values import array_of_numbers, describe, has_format, parts, same, whole
from labkit.system.words import plural

lab = Lab("02")


@lab.exercise(
    1,
    hints=(
        "Write the formula as y = s * x + t, with s and t for each channel. What are they?",
        "s = gamma / sqrt(variance + epsilon). A convolution whose weights are s times as large gives s * x.",
        "The weights are w * s, since numpy multiplies along the last dimension, the output channels. The bias is "
        "beta - mean * s.",
    ),
)
def fold(answer: Callable[..., Any]) -> None:
    """One convolution with the folded weights gives what convolution and batch norm give."""
    from hypothesis import strategies as st

    near = 1e-5  # float32 is nearer, however the formula is written; float16 and rounding to 4 digits are not

    def decide(kernel: tuple[int, int], channels: tuple[int, int], epsilon: float, least: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        c_in, c_out = channels
        w = rng.normal(size=(*kernel, c_in, c_out)).astype("float32")
        gamma, beta, mean = (rng.normal(size=c_out).astype("float32") for _ in range(3))
        variance = rng.uniform(least, 2, size=c_out).astype("float32")
        got = call(answer, w, gamma, beta, mean, variance, epsilon)
        given = parts(got, 2, "fold(…) to return two things, the weights and the bias")
        weights = array_of_numbers(given[0], "weights that are numbers")
        bias = array_of_numbers(given[1], "a bias of numbers")
        expect(weights.shape == w.shape, f"weights of the shape {w.shape}, as w has; yours have {weights.shape}")
        expect(bias.shape == (c_out,), f"a bias for each of the {c_out} output channels; its shape is {bias.shape}")
        scale = gamma.astype(float) / np.sqrt(variance.astype(float) + epsilon)
        # With no input, the bias alone is left.
        same(bias, beta - mean * scale, "the bias", near, near, because="what batch norm makes of an input of 0")
        # On a patch as large as the kernel, a convolution is one sum: what it gives for each channel out. Where large
        # terms nearly cancel, their rounding is more than `near`.
        patch = rng.normal(size=w.shape[:3])
        x = np.einsum("hwi,hwio->o", patch, w)
        same(
            np.einsum("hwi,hwio->o", patch, weights) + bias,
            scale * (x - mean) + beta,
            "the convolution with your weights and bias",
            rel=1e-3,
            abs=1e-3,
            because="as with the batch norm",
        )
        same(weights, w * scale, "the weights", near, near)

    decide((1, 1), (3, 5), 0.05, 0.1, 0)
    decide((2, 3), (4, 4), 0.001, 0.0, 1)
    length = st.integers(1, 4)
    for_all(
        decide,
        examples=30,
        kernel=st.tuples(length, length),
        channels=st.tuples(length, length),
        epsilon=st.sampled_from((0.001, 0.5)),
        least=st.sampled_from((0.0, 0.3)),
        seed=st.integers(0, 9),
    )


@lab.exercise(
    2,
    hints=(
        "Begin with nchw, and with n alone: how many elements does one whole picture have? Then c: how many does a "
        "channel have?",
        "From the outermost to the innermost dimension: multiply what you have by the next dimension's length, and add "
        "its index. For nhwc that is ((n * H + h) * W + w) * C + c.",
        "nChw16c has five dimensions: n, the block c // 16, h, w, and c % 16 within the block. There are "
        "-(-C // 16) blocks: C / 16 rounded up.",
    ),
)
def offset(answer: Callable[..., Any]) -> None:
    """Each element is where numpy has it, in pictures whose channels fill blocks or not."""
    from hypothesis import strategies as st

    layouts = ("nchw", "nhwc", "nChw16c")

    def decide(element: tuple[int, ...], shape: tuple[int, ...], layout: str) -> None:
        (n, c, h, w), (N, C, H, W) = element, shape
        place, lengths = {
            "nchw": ((n, c, h, w), (N, C, H, W)),
            "nhwc": ((n, h, w, c), (N, H, W, C)),
            "nChw16c": ((n, c // 16, h, w, c % 16), (N, -(-C // 16), H, W, 16)),
        }[layout]
        called = f'offset({n}, {c}, {h}, {w}, {shape}, "{layout}")'
        got = call(answer, n, c, h, w, shape, layout)
        same(whole(got, called), int(np.ravel_multi_index(place, lengths)), called, rel=0, abs=0)
        expect(has_format(got, "5"), f"{called} to be a plain number, as int(…) gives; it is {describe(got)}")

    for shape in ((2, 32, 3, 5), (2, 20, 3, 3), (3, 16, 2, 4), (2, 3, 4, 2)):
        for layout in layouts:
            for element in list(np.ndindex(*shape))[:: max(1, shape[1] // 4)]:
                decide(element, shape, layout)
    for layout in layouts:  # more elements than 16 bits count
        decide((2, 39, 63, 47), (3, 40, 64, 48), layout)
    index = st.integers(0, 10**6)
    for_all(
        lambda shape, indices, layout: decide(
            tuple(index % length for index, length in zip(indices, shape, strict=True)), shape, layout
        ),
        examples=100,
        shape=st.tuples(st.integers(1, 4), st.integers(1, 70), st.integers(1, 6), st.integers(1, 6)),
        indices=st.tuples(index, index, index, index),
        layout=st.sampled_from(layouts),
    )


# As oneDNN names layouts of weights and pictures: of two to six dimensions, in several orders and sizes of blocks.
PLAIN = ("cdba", "abcd", "acdb", "bacd", "ab", "ba", "a", "abcde", "cdeba", "abcdef", "acdefb")
BLOCKED = (
    *(
        "Acdb16a",
        "Acdb8a",
        "Bcda32b",
        "Acdb64a",
        "aBcd8b",
        "aBcd4b",
        "aBcd16b",
        "ABcd16b16a",
        "ABcd4b16a4b",
        "Ab4a",
        "BA16a64b",
    ),
    *("AB16b64a", "aBcde16b", "ABcde16b16a", "aBCdef16c16b", "Adcb16a", "abCd32c", "aBCde16b16c"),
)
COLUMNS = ["primitive", "implementation", "direction", "type", "src", "wei", "dst", "attributes", "problem", "ms"]


def _row(
    primitive: str, src: str, dst: str, ms: float, wei: str = "", implementation: str = "jit:uni"
) -> tuple[Any, ...]:
    direction = "forward_training" if primitive in ("convolution", "pooling") else "undef"
    problem = f"{2 ** (len(primitive) % 5)}x{len(src)}x3x3"
    return (primitive, implementation, direction, "f32", src, wei, dst, "", problem, ms)


LOG = pd.DataFrame(
    [
        _row("reorder", "cdba", "Acdb16a", 0.0168457),
        _row("convolution", "acdb", "acdb", 1.7451211, "Acdb16a", "jit:avx512_core"),
        _row("reorder", "cdba", "ABcd16b16a", 0.336182),
        _row("convolution", "aBcd8b", "aBcd8b", 4.0620117, "ABcd8b8a", "brg_conv_fwd:avx2"),
        _row("reorder", "ABcd16b16a", "cdba", 1.1308594),
        _row("reorder", "acdb", "abcd", 0.0009766, implementation="simple:any"),
        _row("reorder", "abcd", "aBcd8b", 0.2109375, implementation="simple:any"),
        _row("pooling", "acdb", "acdb", 0.640625, implementation="jit:avx512_core"),
        _row("gemm_api", "ab", "ab", 1.2802734, "ba", ""),
        _row("reorder", "ABcd16b16a", "Acdb16a", 0.1020508, implementation="jit:blk"),
        _row("convolution", "abcd", "aBcd16b", 0.5124512, "Acdb16a", "jit:avx512_core"),
        _row("eltwise", "abcd", "aBcd16b", 0.0458984),
        _row("matmul", "ab", "ab", 0.2558594, "BA16a64b", "brg_matmul:avx512_core"),
        _row("reorder", "abcdef", "acdefb", 0.0031738),
        _row("reorder", "ba", "Ab4a", 0.0078125, implementation="simple:any"),
        _row("convolution", "", "ABcd16b16a", 1.8745117, "acdb", "jit:avx512_core"),
        _row("reorder", "ab", "AB16b64a", 0.0639648),
        _row("reorder", "aBcd16b", "abcd", 0.4096680),
        _row("reorder", "Acdb8a", "Acdb16a", 0.0512695),
        _row("reorder", "Bcda32b", "ABcd16b16a", 0.1259766),
        _row("reorder", "aBcd4b", "Acdb8a", 0.0251465, implementation="simple:any"),
    ],
    columns=COLUMNS,
)
# As the lab's cells have it: of several processes, with many rows, equal ones among them and very short ones.
TWO_PROCESSES = pd.concat(
    [
        LOG.assign(process=0),
        pd.DataFrame(
            [
                _row("reorder", "abcd", "abCd32c", 0.1049805),
                _row("reorder", "abcde", "aBCde16b16c", 0.0004883),
                _row("reorder", "abCd32c", "Acdb16a", 0.0961914),
            ],
            columns=COLUMNS,
        ).assign(process=0),
        LOG.head(8).assign(process=0),
        LOG.assign(process=1),
    ],
    ignore_index=True,
)
SERIES_HINT = 'log.groupby(column)["ms"].sum() is a Series: one column. With [["ms"]] or .to_frame() it is a table.'
ORDER_HINT = "Which method of a Series sorts by its values? And which way round does it sort by itself?"
PROCESSES_HINT = "The log has rows of several processes, and all of them count."
EQUAL_HINT = "Rows of the log can be equal: the same reorder ran again, and took as long. Each of them counts."


@lab.exercise(
    3,
    hints=(
        "pandas: group the rows by the column, and sum their ms.",
        "log.groupby(column).ms.sum() is nearly it. What about the order?",
        "log.groupby(column).ms.sum().sort_values(ascending=False)",
    ),
)
def time_by(answer: Callable[..., Any]) -> None:
    """Sums for columns of the log and for one that was added, the largest first."""
    from hypothesis import strategies as st

    def decide(log: pd.DataFrame, column: str) -> None:
        sums: dict[str, float] = {}
        for value, ms in zip(log[column], log.ms, strict=True):
            sums[value] = sums.get(value, 0) + ms
        called = f'time_by(log, "{column}")'
        got = call(answer, log, column)
        expect(
            isinstance(got, pd.Series | Mapping),
            f"{called} to be a pandas Series or a dict; it is {describe(got)}",
            hint=SERIES_HINT if isinstance(got, pd.DataFrame) else "",
        )
        found = list(got.items())
        names = sorted(str(name) for name, _ in found)
        expect(names == sorted(sums), f"{called} to have {sorted(sums)}; it has {names}")
        for value, ms in found:
            same(ms, sums[value], f"the ms of {value!r} in {called}", rel=1e-6)
        order = [float(ms) for _, ms in found]
        expect(
            order == sorted(order, reverse=True),
            f"{called} to begin with the largest; it gave {order}",
            hint=ORDER_HINT,
        )

    for column in ("primitive", "implementation", "dst"):  # layouts differ by capitals too
        decide(LOG, column)
    decide(LOG.assign(ms=0.5), "primitive")  # equal sums
    decide(pd.concat([LOG, LOG.head(3)], ignore_index=True), "primitive")
    decide(LOG.assign(name=LOG.primitive + "\n" + LOG.implementation), "name")
    with hinting(PROCESSES_HINT):
        decide(TWO_PROCESSES, "primitive")
    row = st.tuples(
        st.sampled_from(("reorder", "convolution", "gemm_api")),
        st.sampled_from(("jit:uni", "", "jit:avx2")),
        st.floats(0.0001, 9).map(lambda ms: round(ms, 6)),
    )
    for_all(
        lambda rows, column: decide(
            pd.DataFrame([_row(name, "a", "a", ms, "", made) for name, made, ms in rows], columns=COLUMNS), column
        ),
        examples=25,
        rows=st.lists(row, min_size=1, max_size=6),
        column=st.sampled_from(("primitive", "implementation", "direction")),
    )


@lab.exercise(
    4,
    hints=(
        "Three conditions on a row: it is a reorder, its src is plain, its dst is blocked. How do you see in its name "
        "that a layout is blocked?",
        'A blocked layout has digits in its name: log.dst.str.contains(r"\\d"). And a plain one has none.',
        'log[(log.primitive == "reorder") & ~log.src.str.contains(r"\\d") & log.dst.str.contains(r"\\d")]',
    ),
)
def blocking(answer: Callable[..., Any]) -> None:
    """The rows that put a plain tensor into blocks, whatever its layouts are."""
    from hypothesis import strategies as st

    def decide(log: pd.DataFrame) -> None:
        got = call(answer, log)
        expect(isinstance(got, pd.DataFrame), f"rows of the log, as log[…] gives; it gave {describe(got)}")
        missing = [column for column in log.columns if column not in got.columns]
        expect(not missing, f"rows of the log with all their columns; missing: {', '.join(missing)}")
        rows = list(got[list(log.columns)].itertuples(index=False))
        of_log: list[Any] = list(log.itertuples(index=False))
        wanted = 0
        for row in of_log:
            into_blocks = row.primitive == "reorder" and row.src in PLAIN and row.dst not in PLAIN
            wanted += into_blocks
            process = f" in process {row.process}" if "process" in log else ""
            shown = f"the {row.primitive} from {row.src or 'nothing'} to {row.dst} ({row.ms} ms{process})"
            many, right = rows.count(row), of_log.count(row)
            expect(many > 0 or not into_blocks, f"every reorder from plain to blocks; missing is {shown}")
            expect(into_blocks or not many, f"only reorders from plain to blocks; there is also {shown}")
            expect(
                not into_blocks or many == right,
                f"each row as often as in the log; {shown} is there {plural(right, 'time')}, and in yours {many}",
                hint=EQUAL_HINT,
            )
        expect(
            len(rows) == wanted, f"rows of the log alone; yours have {plural(len(rows) - wanted, 'row')} beside them"
        )

    decide(LOG)
    decide(TWO_PROCESSES)
    of_any_size = st.builds("{}{}{}".format, st.just("Acdb"), st.integers(2, 99), st.just("a"))
    layout = st.one_of(st.sampled_from(PLAIN), st.sampled_from(BLOCKED), of_any_size)
    first = _row("reorder", "cdba", "Acdb16a", 0.0168457)
    for_all(
        lambda rows: decide(
            pd.DataFrame(
                [first, *(_row(name, src, dst, 1.0 + at) for at, (name, src, dst) in enumerate(rows))], columns=COLUMNS
            )
        ),
        examples=20,
        rows=st.lists(
            st.tuples(st.sampled_from(("reorder", "reorder", "convolution")), layout, layout), min_size=12, max_size=20
        ),
    )


@lab.exercise(
    5,
    hints=(
        "How many elements does the output have? And how many terms does each of them add up?",
        "mb * oc * oh * ow elements; ic * kh * kw terms each; two operations a term.",
        "2 * mb * oc * oh * ow * ic * kh * kw",
    ),
)
def flops(answer: Callable[..., Any]) -> None:
    """Two operations for each term of each element, counted; also where they are more than 32 bits hold."""
    from hypothesis import strategies as st

    def decide(**case: int) -> None:
        called = f"flops({', '.join(f'{name}={value}' for name, value in case.items())})"
        right = 2 * int(np.prod(list(case.values()), dtype=np.int64))
        got = call(answer, *case.values())
        same(got, right, called, rel=1e-12, abs=0)
        try:
            got / 0.5  # as the next cell divides by milliseconds
        except (TypeError, ValueError):
            refuse(f"{called} to be an int or a float, which milliseconds can divide; it is {describe(got)}")

    names = ("mb", "ic", "oc", "oh", "ow", "kh", "kw")
    for case in (
        *((1, 1, 1, 1, 1, 1, 1), (64, 1, 32, 28, 28, 3, 3), (64, 32, 64, 14, 14, 3, 3), (2, 3, 5, 7, 11, 1, 5)),
        *((256, 512, 512, 28, 28, 3, 3), (3, 5, 7, 1001, 1003, 3, 3)),
    ):
        decide(**dict(zip(names, case, strict=True)))
    channels, side, kernel = st.integers(1, 1024), st.integers(1, 64), st.integers(1, 7)
    for_all(
        decide, examples=40, mb=st.integers(1, 256), ic=channels, oc=channels, oh=side, ow=side, kh=kernel, kw=kernel
    )
