"""Exercise of lab 09: the quality of a picture with fewer colours."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from labkit.exercises.engine.reference import Case, Reference, Result

EXERCISES: dict[int, Reference] = {}

FORMULA_HINT = (
    "PSNR compares the largest squared error that a number can have, 255², with the mean squared error: ten times the "
    "decimal logarithm of their ratio."
)
ZERO_HINT = "Equal pictures have an error of 0, and only they. Which PSNR do they have, and which has a tiny error?"


def _psnr(
    error: Callable[[np.ndarray], Any] = lambda difference: (difference**2).mean(),
    decibels: Callable[[float], float] = lambda error: 10 * math.log10(255**2 / error),
    equal: float = math.inf,
    least: float = 0,
) -> Callable[..., float]:
    """Return a PSNR in which one of these differs from the right one."""

    def psnr(original: np.ndarray, quantised: np.ndarray) -> float:
        mean = float(error(original.astype(float) - quantised))
        return decibels(mean) if mean > least else equal

    return psnr


FORMULAS = {
    "the factor were 20, as for a root of the squared error": _psnr(decibels=lambda e: 20 * math.log10(255**2 / e)),
    "255 were not squared": _psnr(decibels=lambda e: 10 * math.log10(255 / e)),
    "the logarithm were natural": _psnr(decibels=lambda e: 10 * math.log(255**2 / e)),
    "error and 255² were exchanged": _psnr(decibels=lambda e: 10 * math.log10(e / 255**2)),
}
EQUALS = {
    "equal pictures had a PSNR of 0": _psnr(equal=0),
    "an error below 1 were none": _psnr(least=1),
    "an error below a thousandth were none": _psnr(least=1e-3),
}


def _changed(label: str, height: int, width: int, change: int, *place: int | slice) -> Case:
    grey = np.full((height, width, 3), 100, np.uint8)
    other = grey.copy()
    other[place] += np.uint8(change % 256)
    return Case((grey, other), f"psnr when {label}, in dB,")


def _swapped() -> Case:
    args = np.full((4, 5, 3), 100, np.uint8)
    args[0, 0, 0] = 130
    return Case((args, args[::-1].copy()), "psnr when two pixels are swapped, in dB,")  # errors that add up to 0


BLACK = np.zeros((4, 5, 3), np.uint8)
EXERCISES[1] = Reference(
    cases=[
        _changed("every number is 10 too large", 4, 5, 10),
        _changed("every number is 10 too small", 4, 5, -10),
        Case((BLACK, BLACK - np.uint8(1)), "psnr when black became white, in dB,"),
        _changed("one channel of one pixel in 20 is 30 too large", 4, 5, 30, 0, 0, 0),
        _changed("one channel of one pixel in 20 is 1 too large", 4, 5, 1, 0, 0, 0),
        _changed("both are equal", 4, 5, 0),
        _swapped(),
        _changed("one channel of one pixel in 10,000 is 1 too large", 100, 100, 1, 99, 99, 2),
    ],
    more=st.tuples(st.integers(1, 4), st.integers(1, 4), st.just(3)).flatmap(
        lambda shape: st.tuples(*[arrays(np.uint8, shape)] * 2)
    ),
    case=lambda original, quantised: f"psnr({original.tolist()}, {quantised.tolist()}), in dB,",
    returns=(Result(rel=1e-5, abs=1e-5),),
    wrong={
        "numbers wrapped around at 0 and 256, as in uint8": _psnr(lambda d: (d.astype(int) ** 2 % 256).mean()),
        "the errors were not squared": _psnr(lambda d: np.abs(d).mean()),
        "the squared errors were added up, not averaged": _psnr(lambda d: (d**2).sum()),
        "the errors' mean were subtracted from them": _psnr(np.var),
    }
    | FORMULAS
    | EQUALS,
    also=[_psnr()],
    hints=(
        "The numbers of a uint8 array wrap around at 0 and 256. Which type do they need before you subtract?",
        "np.mean((original.astype(float) - quantised) ** 2) is the mean squared error over pixels and channels.",
        "10 * math.log10(255**2 / error), and math.inf when the error is 0.",
    ),
    hint_for=dict.fromkeys(FORMULAS, FORMULA_HINT) | dict.fromkeys(EQUALS, ZERO_HINT),
)
