"""Checks for lab 10: quantisation in groups, and speculative decoding."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.answers import call, for_all
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import NotYet, expect, hinting, refuse
from labkit.exercises.engine.values import (
    describe,
    expect_equal,
    has_format,
    integer,
    number,
    numeric_array,
    parts,
    short,
)

lab = Lab("10")


GROUPS_HINT, SCALE_HINT, CODES_HINT = (
    "First make a three-dimensional array, weights.reshape(rows, -1, group): its last axis is one group.",
    "The scale is the value of one code step: np.abs(groups).max(axis=-1) / (2 ** (bits - 1) - 1). What is it for a "
    "group of zeros, and what happens when you divide by it?",
    "scales = np.where(scales == 0, 1, scales); codes = np.round(groups / scales[..., None]).astype('int8'); return "
    "codes.reshape(weights.shape), scales",
)

FLOOR_HINT = (
    "A trained model has many groups of such small weights. Do you set a minimum scale, or add something to each? "
    "Only a group of zeros needs that; for any other it must be far below the scale, such as 1e-8."
)
ROUND_HINT = "np.round gives the nearest integer; astype alone truncates."


@lab.exercise(4, hints=(GROUPS_HINT, SCALE_HINT, CODES_HINT))
def in_groups(answer: Callable[..., Any]) -> None:
    """Check that the largest weight of a group gets the largest code, the others the nearest one, and zeros stay 0."""

    def decide(weights: np.ndarray, bits: int, group: int) -> None:
        called = f"in_groups({short(weights.tolist())}, {bits}, {group})"
        pair = parts(call(answer, weights, bits, group), 2, f"{called} to return two arrays, the codes and the scales")
        codes, scales = (
            _array(part, f"an array as the {name} of {called}")
            for name, part in zip(("codes", "scales"), pair, strict=True)
        )
        rows, columns = weights.shape
        for name, array, shape in (("codes", codes, (rows, columns)), ("scales", scales, (rows, columns // group))):
            expect(
                array.shape == shape,
                f"the {name} of {called} to have the shape {shape}; it is {array.shape}",
                GROUPS_HINT,
            )
        expect(codes.dtype == np.int8, f"the codes of {called} to be of type int8; their type is {codes.dtype}")
        split, codes = (array.reshape(rows, -1, group).astype(float) for array in (weights, codes))
        for row, place in np.ndindex(scales.shape):
            _decide_on_group(split, row, place, codes[row, place], scales[row, place], bits)

    def decide_on_list(values: list[float], bits: int, group: int) -> None:
        decide(np.array([values], "float32"), bits, group)

    decide_on_list([7, -3.25, 1.75, 0.25], 4, 4)
    decide_on_list([-14, 5, 3, 0.75], 4, 4)
    decide_on_list([3.5, -7, -14, 5, 0.5, 0.25], 4, 2)
    decide_on_list([3, -1, -7, 0.5, 2, 14], 4, 3)
    decide_on_list([0, 0, 0.5, -0.25], 4, 2)
    decide_on_list([0.5, -4, 0], 3, 1)
    decide_on_list([1, -0.75, 0.25, 0.125], 2, 4)
    decide_on_list([1, -0.75, 0.25, 0.125], 8, 4)
    decide_on_list([0.0125, -0.005, 0, 0.0025], 8, 4)  # as small as the groups of a small trained model
    decide_on_list([0.003, -0.0012, 0, 0.0006], 8, 4)
    decide(np.array([[3.5, -7, 1, 2], [0.5, -14, 3, 28]], "float32"), 4, 2)

    def decide_on_repeated(values: list[int], rows: int, groups: int, group: int, bits: int) -> None:
        # Multiples of 1/4, repeated until they fill the array.
        decide(np.resize(np.array(values, "float32") / 4, (rows, groups * group)), bits, group)

    for_all(
        decide_on_repeated,
        values=st.lists(st.integers(-40, 40), min_size=1, max_size=12),
        rows=st.integers(1, 3),
        groups=st.integers(1, 3),
        group=st.integers(1, 5),
        bits=st.integers(2, 8),
    )


def _decide_on_group(split: np.ndarray, row: int, place: int, codes: np.ndarray, scale: Any, bits: int) -> None:
    """Check the codes and the scale of one group; `split` has the weights as (rows, groups, weights)."""
    weights, largest = split[row, place], 2 ** (bits - 1) - 1
    shown = short([float(f"{weight:.6g}") for weight in weights])  # 0.0125, which float32 cannot represent exactly
    group = f"group {place} of row {row}, {shown} in {bits} bits,"
    if not weights.any():
        with hinting(SCALE_HINT):
            expect(not codes.any(), f"{group} to have codes 0; they are {_codes(codes)}")
            expect(math.isfinite(scale) and scale > 0, f"{group} to have a finite scale above 0; it is {scale}")
        return
    right = float(np.abs(weights).max()) / largest
    wrong = {
        "it were the largest code divided by the largest weight": 1 / right,
        "it were the largest weight": right * largest,
        "each row had one scale": float(np.abs(split[row]).max()) / largest,
        "all rows shared one scale per group of columns": float(np.abs(split[:, place]).max()) / largest,
        "all weights had one scale": float(np.abs(split).max()) / largest,
        f"the largest code were {largest + 1}": right * largest / (largest + 1),
        f"the codes went up to {2 * largest + 1}": right * largest / (2 * largest + 1),
        "the absolute value had not been taken": float(weights.max()) / largest,
        "the codes went from the smallest to the largest weight": float(np.ptp(weights)) / (2 * largest),
    }
    because = f"so that its largest weight is ±{largest} times the scale"
    with hinting(FLOOR_HINT if right < 1e-3 else SCALE_HINT):
        # A guard against a scale of 0, such as an added 1e-8, must not show in any scale of a trained model.
        _same(scale, right, f"the scale of {group}", wrong, rel=1e-5, abs=2e-8, because=because)
    for weight, code in zip(weights, codes, strict=True):
        expect(
            abs(code) <= largest,
            f"{group} to have codes from {-largest} to {largest}; they are {_codes(codes)}",
        )
        expect(
            abs(code - weight / right) <= 0.5 * (1 + 1e-4),
            f"{weight:g} in {group} to have the code nearest to {weight / right:.2f}; it has {code:.0f}",
            hint=ROUND_HINT if abs(code - weight / right) < 1 else "",
        )


def _codes(codes: np.ndarray) -> str:
    return short(codes.astype(int).tolist())


FIRST_HINT, OWN_HINT, VERIFY_HINT = (
    "Go through the proposed tokens in order. Which is the first that the large model would not have written?",
    "After the right tokens, the large model's own choice is known as well, choices[right]: it is right by definition. "
    "That also holds if all of the proposed tokens are right, or none.",
    "right = 0; while right < len(proposed) and proposed[right] == choices[right]: right += 1; return "
    "choices[: right + 1]",
)
EQUAL_HINT = "Are tokens compared with ==? Equal numbers need not be the same object, which is what `is` tests."


@lab.exercise(5, hints=(FIRST_HINT, OWN_HINT, VERIFY_HINT))
def accept(answer: Callable[..., Any]) -> None:
    """Check for the large model's choices up to and including the draft's first wrong token; all if none is wrong."""

    def decide(proposed: list[int], choices: list[int], hint: str = "") -> None:
        called = f"accept({proposed}, {choices})"
        returned = call(answer, proposed, choices)
        right = next((place for place, token in enumerate(proposed) if token != choices[place]), len(proposed))
        accepted = choices[: right + 1]
        is_sequence = isinstance(returned, list | tuple) or (isinstance(returned, np.ndarray) and returned.ndim == 1)
        expect(is_sequence, f"{called} to be a list of tokens; it is {describe(returned)}")
        tokens = [integer(token, f"token {place} of {called}", int_only=True) for place, token in enumerate(returned)]
        known = "all" if right == len(proposed) else f"the first {right}" if right else "none"
        why = f"{known} of the proposed tokens can be kept"
        hint = hint or (OWN_HINT if tokens == accepted[:-1] else FIRST_HINT)
        expect(tokens == accepted, f"{called} to be {accepted} ({why}); it is {tokens}", hint)

    for proposed, choices in (
        ([5, 6, 7], [5, 9, 8, 4]),
        ([5, 6, 7], [5, 6, 7, 8]),
        ([5, 6, 7], [9, 8, 4, 3]),
        ([5, 6, 7], [9, 6, 7, 8]),
        ([5, 6, 7], [6, 5, 7, 8]),
        ([5, 6, 7], [5, 6, 9, 8]),
        ([5, 6, 7, 7], [5, 9, 7, 7, 7]),
        ([5, 6, 7, 8, 9, 10, 11, 12], [5, 6, 7, 8, 9, 10, 11, 12, 13]),  # as many as the lab proposes
        ([], [4]),
        ([0], [0, 0]),
        ([300], [301, 302]),
    ):
        decide(proposed, choices)
    decide(list(range(50_000, 50_003)), list(range(50_000, 50_004)), EQUAL_HINT)  # equal, but different objects

    def decide_on_some(proposed: list[int], choices: list[int]) -> None:
        decide(proposed, choices[: len(proposed) + 1])

    token = st.integers(0, 2)  # few, so that many are the same
    for_all(
        decide_on_some,
        proposed=st.lists(token, max_size=6),
        choices=st.lists(token, min_size=7, max_size=7),
        examples=200,
    )


GROWN_HINT, TIME_HINT, SPEED_HINT = (
    "By how many tokens does the text grow in one pass, on average? At least one, the large model's own. A second with "
    "probability alpha. A third?",
    "Token i counts only if all before it were right: the probability is alpha**i, for i from 0 to gamma. The time of "
    "one pass is the draft's time for all of its tokens, plus the large model's.",
    "sum(alpha**i for i in range(gamma + 1)) / (gamma * draft_cost + pass_cost)",
)
CERTAIN_HINT = (
    "The sum 1 + alpha + … + alpha**gamma is (1 - alpha ** (gamma + 1)) / (1 - alpha) for all alpha except 1, where "
    "it is gamma + 1. Add up the terms, or handle alpha = 1 separately."
)


@lab.exercise(6, hints=(GROWN_HINT, TIME_HINT, SPEED_HINT))
def speed_up(answer: Callable[..., Any]) -> None:
    """Check the tokens per pass divided by its time, for a draft that is always, never or sometimes right."""

    def decide(alpha: float, gamma: int, draft_cost: float, pass_cost: float) -> None:
        called = f"speed_up({alpha:g}, {gamma}, {draft_cost:g}, {pass_cost:g})"
        with hinting(CERTAIN_HINT if alpha == 1 else ""):
            returned = call(answer, alpha, gamma, draft_cost, pass_cost)
        grown, spent = sum(alpha**right for right in range(gamma + 1)), gamma * draft_cost + pass_cost
        wrong = {
            "the large model's own token did not count": (grown - 1) / spent,
            "the large model wrote none after gamma right tokens": (grown - alpha**gamma) / spent,
            "tokens after a wrong one counted too": (1 + alpha * gamma) / spent,
            "tokens after a wrong one counted too, and the large model's own did not": alpha * gamma / spent,
            "the text grew by all tokens or by one": (1 + gamma * alpha**gamma) / spent,
            "the text grew by gamma + 1 tokens in each pass": (gamma + 1) / spent,
            "the draft took no time": grown / pass_cost,
            "the draft wrote one token per pass": grown / (draft_cost + pass_cost),
            "the draft wrote gamma + 1 tokens per pass": grown / (spent + draft_cost),
            "the large model took no time": grown / (spent - pass_cost) if draft_cost else None,
            "the large model's pass took as long as for one token": grown / (spent - pass_cost + 1),
            "pass_cost were the time for each of gamma + 1 tokens": grown / (spent + gamma * pass_cost),
            "it were the time of a token, as a share of the time without a draft": spent / grown,
            "it were the tokens of one pass, whatever its time": grown,
        }
        with hinting(CERTAIN_HINT if alpha == 1 and not math.isfinite(number(returned, called)) else ""):
            _same(returned, grown / spent, called, wrong)
        expect(
            has_format(returned, ".2f"),
            f"{called} to be an int or a float, for the next cells to show; it is {describe(returned)}",
        )

    for case in (
        (0.6, 3, 0.1, 1.7),
        (0.5, 1, 0.25, 1.5),
        (0.8, 4, 0.1, 1.2),
        (0.0, 2, 0.25, 1.5),
        (1.0, 4, 0.1, 1.6),
        (0.9, 5, 0.0, 2.0),
        (0.995, 9, 0.05, 1.5),  # nearly 1, but not 1
    ):
        decide(*case)

    def decide_on_steps(twentieths: int, gamma: int, draft: int, large: int) -> None:
        decide(twentieths / 20, gamma, draft / 20, large / 20)

    for_all(
        decide_on_steps,
        twentieths=st.integers(0, 20),
        gamma=st.integers(1, 12),
        draft=st.integers(0, 20),
        large=st.integers(20, 200),
    )


# Shared by several checks


def _array(value: Any, what: str) -> np.ndarray:
    """Return an answer that later cells use as an array, a tensor's too; a list lacks its methods.

    Raises
    ------
    NotYet
        When it is something else; `what` completes the sentence "Expected …", such as "an array as the codes".
    """
    array = None if isinstance(value, list | tuple) else numeric_array(value)
    if array is None:
        refuse(f"{what}; it is {describe(value)}")
    return array


def _same(
    returned: Any,
    right: Any,
    what: str,
    wrong: Mapping[str, Any],
    hints: Mapping[str, str] = MappingProxyType({}),
    rel: float = 1e-6,
    **how: Any,
) -> None:
    """Raise `NotYet` unless an answer is right, as `expect_equal` does; name the common mistake with this result.

    Parameters
    ----------
    returned, right, what, rel, **how
        As for `expect_equal`.
    wrong : mapping of str to number, array or None
        The results of mistakes, keyed by the end of the sentence "It is as if …".
    hints : mapping of str to str
        Hints for some of these mistakes.
    """
    try:
        expect_equal(returned, right, what, rel=rel, **how)
    except NotYet as mistake:
        numbers = _numbers(returned)
        guesses = (why for why, value in wrong.items() if _agree(numbers, value, rel) and not _agree(right, value, rel))
        rounded = np.ndim(right) and _agree(numbers, right, 2e-3)
        why = next(guesses, "numbers were rounded to float16, and not float32" if rounded else "")
        raise NotYet(f"{mistake} It is as if {why}." if why else str(mistake), hints.get(why, mistake.hint)) from None


def _numbers(value: Any) -> np.ndarray | None:
    """Return an answer as an array of floats; None if it isn't one, such as an int too large for a float."""
    try:
        array = numeric_array(value)
        return None if array is None else array.astype(float)
    except (OverflowError, TypeError, ValueError):
        return None


def _agree(first: Any, second: Any, rel: float) -> bool:
    if first is None or second is None or np.shape(first) != np.shape(second):
        return False
    first, second = np.asarray(first, float), np.asarray(second, float)
    return bool(np.allclose(first, second, rtol=rel, atol=rel / 10, equal_nan=True))
