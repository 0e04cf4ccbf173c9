"""Exercise of lab 09: the quality of a picture with fewer colours."""

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
FORMULAS = {
    "the factor were 20, as for a root of the squared error": {"10 *": "20 *"},
    "255 were not squared": {"255**2": "255"},
    "the logarithm were natural": {"log10": "log"},
    "error and 255² were exchanged": {"255**2 / error": "error / 255**2"},
}
EQUALS = {
    "equal pictures had a PSNR of 0": {"math.inf": "0"},
    "an error below 1 were none": {"error == 0": "error < 1"},
    "an error below a thousandth were none": {"error == 0": "error < 1e-3"},
}
BLACK = np.zeros((4, 5, 3), np.uint8)
SPOT = np.pad(np.array([[[30, 0, 0]]], np.uint8), ((0, 3), (0, 4), (0, 0)))


def _changed(label: str, height: int, width: int, change: int, *place: int | slice) -> Case:
    grey = np.full((height, width, 3), 100, np.uint8)
    other = grey.copy()
    other[place] += np.uint8(change % 256)
    return Case((grey, other), f"psnr when {label}, in dB,")


EXERCISES[1] = Reference(
    cases=[
        _changed("every number is 10 too large", 4, 5, 10),
        _changed("every number is 10 too small", 4, 5, -10),
        Case((BLACK, BLACK - np.uint8(1)), "psnr when black became white, in dB,"),
        _changed("one channel of one pixel in 20 is 30 too large", 4, 5, 30, 0, 0, 0),
        _changed("one channel of one pixel in 20 is 1 too large", 4, 5, 1, 0, 0, 0),
        _changed("both are equal", 4, 5, 0),
        Case((SPOT, SPOT[::-1]), "psnr when two pixels are swapped, in dB,"),  # errors that add up to 0
        _changed("one channel of one pixel in 10,000 is 1 too large", 100, 100, 1, 99, 99, 2),
    ],
    more=st.tuples(st.integers(1, 4), st.integers(1, 4), st.just(3)).flatmap(
        lambda shape: st.tuples(*[arrays(np.uint8, shape)] * 2)
    ),
    case=lambda original, quantised: f"psnr({original.tolist()}, {quantised.tolist()}), in dB,",
    returns=(Result(rel=1e-5, abs=1e-5),),
    wrong={
        "numbers wrapped around at 0 and 256, as in uint8": {".astype(np.float64)": ""},
        "the errors were not squared": {"np.mean((": "np.mean(abs(", " ** 2": ""},
        "the squared errors were added up, not averaged": {"np.mean": "np.sum"},
        "the errors' mean were subtracted from them": {"np.mean((": "np.var((", " ** 2": ""},
    }
    | FORMULAS
    | EQUALS,
    also=[{"astype(np.float64)": "astype(int)", "10 * math.log10(255**2 / error)": "-10 * math.log10(error / 255**2)"}],
    hints=(
        "The numbers of a uint8 array wrap around at 0 and 256. Which type do they need before you subtract?",
        "np.mean((original.astype(float) - quantised) ** 2) is the mean squared error over pixels and channels.",
        "10 * math.log10(255**2 / error), and math.inf when the error is 0.",
    ),
    hint_for=dict.fromkeys(FORMULAS, FORMULA_HINT) | dict.fromkeys(EQUALS, ZERO_HINT),
)
