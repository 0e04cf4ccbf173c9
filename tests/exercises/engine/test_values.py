import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from ml_dtypes import bfloat16

from labkit.exercises.engine.outcomes import NotYet
from labkit.exercises.engine.values import as_number, describe, expect_equal, integer, number, parts, short


def label(value: object) -> str:
    """Return a name for a case that is the same in every process: without memory addresses."""
    return re.sub(" at 0x[0-9a-f]+", "", str(value))


NUMBERS = [
    (3, 3),
    (2.5, 2.5),
    (np.int32(3), 3),
    (np.float32(2.5), 2.5),
    (bfloat16(2.5), 2.5),
    (np.array(3), 3),
    (np.array(2.5), 2.5),
    (Fraction(5, 2), 2.5),
    (Fraction(6, 2), 3),
    (Fraction(28) - Fraction(1, 10**15), 28.0),
    (Fraction(-28) + Fraction(1, 10**15), -28.0),
    (Fraction(10**30), 10**30),
    (-Fraction(10**400, 3), -float("inf")),
    (Decimal("6.0"), 6),
    (Decimal(28) - Decimal("1e-16"), 28.0),
    (np.float64(28 - 4e-15), 28 - 4e-15),
    (np.longdouble(2.5), 2.5),
    (np.array(28 - 4e-15), 28 - 4e-15),
    (Decimal("2.5"), 2.5),
    (Decimal("Infinity"), float("inf")),
]
EQUAL_TO_ALL = {"__eq__": lambda self, other: True}
NUMBERS += [(type("Whole", (int,), EQUAL_TO_ALL)(3), 3), (type("Real", (float,), EQUAL_TO_ALL)(2.5), 2.5)]
NOT_NUMBERS = [True, np.True_, np.array(True), "3", None, [3], np.array([3]), 3j, {}, pd.Series([3]), lambda: 3, ...]


@pytest.mark.parametrize(("value", "plain"), NUMBERS)
def test_numbers_of_any_type_become_python_numbers(value, plain):
    assert as_number(value) == plain
    assert type(as_number(value)) is type(plain)


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=label)
def test_other_values_are_not_numbers(value):
    with pytest.raises(NotYet, match="Expected the share to be a number; it is "):
        number(value, "the share")


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), Fraction(3), np.array(3)])
def test_integers_of_any_type_become_ints(value):
    assert integer(value, "n") == 3
    assert type(integer(value, "n")) is int


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2, 3], "it has 3: [1, 2, 3]"),
        ((), "it has 0: ()"),
        (np.zeros(9), "it has 9: <array"),
        (3, "it is 3, of type int"),
    ],
)
def test_wrong_number_of_parts_is_reported(value, message):
    with pytest.raises(NotYet, match=re.escape(f"Expected the share to be two numbers; {message}")):
        parts(value, 2, "the share to be two numbers")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1 + 0.2, 0.3),
        (float("nan"), float("nan")),
        (float("inf"), float("inf")),
        ([1, 2], np.array([1, 2])),
        (tf.constant([1.0, 2.0]), np.array([1, 2])),
        ([Fraction(1, 2)], np.array([0.5])),
        (np.array([1.0], bfloat16), np.array([1.0])),
        (np.True_, True),
        ("memory", "memory"),
        (np.zeros((0, 3)), np.zeros((0, 3))),
    ],
    ids=label,
)
def test_equal_values_pass(value, expected):
    expect_equal(value, expected, "it")


@pytest.mark.parametrize(
    ("value", "expected", "message"),
    [
        (2, 3, "Expected it to be 3; it is 2."),
        (1, True, "Expected it to be True; it is 1, of type int."),
        (True, 1, "it is True, which is not a number"),
        (float("nan"), 1, "it is nan"),
        (1.0000017, 1.0, "to be 1; it is 1.000002"),  # as many digits as show the difference
        (2**40, 2**40 + 2**30, "1,100,585,369,600; it is 1,099,511,627,776"),
        ([1, 2, 4], np.array([1, 2, 3]), "to have 3 at [2]; it has 4 there."),
        ([[0, 2], [0, 4]], np.array([[1, 2], [3, 4]]), "to have 1 at [0, 0]; it has 0 there, and 1 more of 4 differ."),
        ([1, 2], np.array([1, 2, 3]), "to have the shape (3,); it has (2,)"),
        ([[1], [2, 3]], np.array([1, 2]), "to be an array of shape (2,); it is a list"),
        ([True, False], np.array([1, 0]), "to be an array of shape (2,)"),
        ("cores", "memory", "to be 'memory'; it is 'cores', of type str"),
        (None, "memory", "None: is a return missing?"),
    ],
    ids=label,
)
def test_difference_is_shown(value, expected, message):
    with pytest.raises(NotYet) as error:
        expect_equal(value, expected, "it")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "is a return missing?"),
        (..., "still to be written"),
        ((n for n in [1]), "instead of yielding"),
        (np.array([True, False]), "a boolean mask of shape (2,): use it as an index"),
        (pd.Series([True, False]), "a boolean mask of shape (2,)"),
        (tf.constant([True, False]), "a boolean mask of shape (2,)"),
        (tf.constant(True), "an EagerTensor: True"),
        (np.zeros((3, 4)), "an array of shape (3, 4), float64"),
        ([1, 2], "a list: [1, 2]"),
        ("3", "'3', of type str"),
        (print, "is a call missing its parentheses?"),
    ],
    ids=label,
)
def test_unexpected_values_are_described(value, text):
    assert text in describe(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.arange(1000.0), "<array of shape (1000,), float64>"),
        (np.array([1, 2]), "[1, 2]"),
        ((np.float64(1.5), np.int64(2)), "(1.5, 2)"),
        (pd.DataFrame({"a": [1, 2]}), "<2 × 1 DataFrame>"),
    ],
    ids=label,
)
def test_values_are_shortened(value, text):
    assert short(value) == text
