"""Checks of lab 02: a folded batch norm, offsets in three layouts, an operation count, what to improve first."""

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.exercises.answers import call, for_all
from labkit.exercises.core import Lab
from labkit.exercises.outcomes import expect, refuse
from labkit.exercises.values import array_of_numbers, describe, has_format, parts, same, whole

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


@lab.exercise(
    3,
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


@lab.exercise(
    4,
    hints=(
        "At its roof, a convolution would take its milliseconds times its share. How many would that save?",
        "It saves ms[name] * (1 - share[name]). max(ms, key=…) gives the name for which that is largest.",
        "name = max(ms, key=lambda name: ms[name] * (1 - share[name])); the step takes step_ms without what it saves.",
    ),
)
def improve_first(answer: Callable[..., Any]) -> None:
    """The layer that would save most, which is neither always the slowest nor always the furthest from its roof."""
    from hypothesis import strategies as st

    def decide(ms: dict[str, float], share: dict[str, float], rest: float) -> None:
        step_ms = sum(ms.values()) + rest
        called = f"improve_first({ms}, {share}, {step_ms:g})"
        saves = {name: ms[name] * (1 - share[name]) for name in ms}
        best = max(saves.values())
        given = parts(call(answer, ms, share, step_ms), 2, f"{called} to return two things, a name and a factor")
        expect(
            isinstance(given[0], str) and given[0] in ms,
            f"{called} to begin with one of the names {', '.join(ms)}; it is {describe(given[0])}",
        )
        name = given[0]
        expect(
            saves[name] >= best - 1e-9,
            f"{called} to choose the convolution that saves most at its roof, {best:.2f} ms; {name} saves "
            f"{saves[name]:.2f}",
        )
        same(given[1], step_ms / (step_ms - best), f"the factor of {called}", rel=1e-6, abs=0)

    for ms, share, rest in (
        ({"a": 1.0, "b": 4.0, "c": 5.0}, {"a": 0.1, "b": 0.5, "c": 0.9}, 2.0),
        ({"a": 0.5, "b": 0.25}, {"a": 0.8, "b": 0.1}, 0.0),
        ({"a": 2.0, "b": 3.0}, {"a": 1.2, "b": 0.9}, 1.0),  # above its roof: nothing to save
    ):
        decide(ms, share, rest)
    layer = st.tuples(st.integers(1, 80).map(lambda ms: ms / 8), st.integers(1, 15).map(lambda share: share / 16))
    for_all(
        lambda layers, rest: decide(
            {f"conv{at}": ms for at, (ms, _) in enumerate(layers, 1)},
            {f"conv{at}": share for at, (_, share) in enumerate(layers, 1)},
            rest,
        ),
        examples=40,
        layers=st.lists(layer, min_size=1, max_size=5),
        rest=st.sampled_from((0.0, 2.0, 20.0)),
    )
