"""Answer values: what counts as a number, equality within tolerances, and how messages show them."""

import inspect
import math
import numbers
import sys
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from labkit.exercises.engine.outcomes import NotYet, expect, refuse

WIDTH = 80  # of a value in a message, in characters


def short(value: Any, width: int = WIDTH) -> str:
    """Return a value as one short line; for a large array or table, its size only."""
    if is_table(value):
        return f"<{' × '.join(map(str, value.shape))} {type(value).__name__}>"
    if is_tensor(value):
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"<array of shape {value.shape}, {value.dtype}>"
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, tuple | list) and any(isinstance(part, np.ndarray | np.generic) for part in value):
        items = ", ".join(short(part, width) for part in value)
        text = f"({items})" if isinstance(value, tuple) else f"[{items}]"
    elif inspect.isroutine(value) or inspect.isclass(value):
        text = getattr(value, "__name__", repr(value))
    else:
        try:
            text = " ".join(repr(value).split())
        except Exception:  # from a class with a broken __repr__
            text = f"<{type(value).__name__}>"
    return text if len(text) <= width else f"{text[: width - 1]}…"


def describe(value: Any) -> str:
    """Describe an answer that is not the expected one: "None: is a return missing?", "a list"."""
    if value is None:
        return "None: is a return missing?"
    if value is Ellipsis:
        return "`...`, a placeholder for code still to be written"
    if inspect.isgenerator(value):
        return "a generator: return a value instead of yielding parts of it"
    if inspect.iscoroutine(value):
        value.close()  # otherwise, Python warns that it was never awaited
        return "a coroutine: write def instead of async def"
    if inspect.isroutine(value):
        return f"the function {value.__name__}: is a call missing its parentheses?"
    if _is_bool(value) and value.shape != ():  # a tensor's shape () counts as true
        return f"a boolean mask of shape {value.shape}: use it as an index, as in data[mask]"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}, {value.dtype}" + f": {short(value)}" * (value.size <= 8)
    if isinstance(value, bool | np.bool_):
        return f"{value}, which is not a number"
    if isinstance(value, str | bytes | numbers.Number):
        return f"{short(value)}, of type {type(value).__name__}"
    name = type(value).__name__
    text = short(value)
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}" + f": {text}" * (not text.startswith("<"))


def is_table(value: Any) -> bool:
    """Whether a value is a pandas table or column, without importing pandas, which takes half a second."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series)


def is_tensor(value: Any) -> bool:
    """Whether a value is a TensorFlow tensor that already has a value."""
    if not (hasattr(value, "numpy") and hasattr(value, "dtype") and hasattr(value, "shape")):
        return False
    try:
        value.numpy()
    except (NotImplementedError, TypeError):  # from a graph's variable: while the graph is built, and after
        return False
    return True


def _is_bool(value: Any) -> bool:
    """Whether a value is a Boolean array, tensor or column."""
    return getattr(getattr(value, "dtype", None), "name", "") == "bool"


# Numbers


def as_number(value: Any) -> int | float | None:
    """Return a number as a Python number, or None for anything else.

    Numbers are Python's, NumPy's, a `Fraction`, a `Decimal`, and a zero-dimensional array or tensor. `True`, `False`
    and complex numbers don't count, nor does a list or an array with one number in it.
    """
    if is_tensor(value):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        if value.ndim:
            return None
        value = value[()]
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, int | float) and not isinstance(value, np.generic):  # in a subclass, == may be redefined
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, np.generic) and (value.dtype.kind == "f" or "float" in value.dtype.name):  # bfloat16 as well
        return float(value)
    if isinstance(value, numbers.Real | Decimal):
        real: Any = value  # mypy can't do arithmetic with a Real
        try:
            return int(real) if real == math.floor(real) else float(real)  # 28 - 1e-15 is not 27
        except OverflowError:  # infinity, or a fraction too large for a float
            return math.inf if real > 0 else -math.inf
        except ValueError:
            return math.nan
    return None


def number(value: Any, label: str) -> int | float:
    """Return an answer as a Python number.

    Raises
    ------
    NotYet
        If it is not a number; `label` names it, such as "share(10, 0, 4)".
    """
    simple = as_number(value)
    if simple is None:
        refuse(f"{label} to be a number; it is {describe(value)}")
    return simple


def integer(value: Any, label: str) -> int:
    """Return an answer as a Python int; 3.0 counts as one.

    Raises
    ------
    NotYet
        If it is not an integer.
    """
    simple = number(value, label)
    if isinstance(simple, int):
        return simple
    expect(math.isfinite(simple) and simple == int(simple), f"{label} to be an integer; it is {simple!r}")
    return int(simple)


def has_format(value: Any, spec: str) -> bool:
    """Whether a later cell can format a value, as in `f"{value:.3f}"`: not a fraction or a variable."""
    try:
        return bool(format(value, spec))
    except (TypeError, ValueError):
        return False


def parts(value: Any, count: int, expectation: str) -> list[Any]:
    """Return the parts of an answer of length `count`: a tuple, a list, an array, or another object that unpacks.

    Raises
    ------
    NotYet
        If it is something else, or has a different length; `expectation` completes the sentence "Expected …", such as
        "speed(…) to be three numbers".
    """
    if is_tensor(value):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        unpacks = value.ndim > 0
    elif is_table(value):
        unpacks = value.ndim == 1
    else:
        refused = isinstance(value, str | bytes | Mapping | set | Iterator)  # an iterator would be used up
        unpacks = isinstance(value, Iterable) and not refused
    expect(unpacks, f"{expectation}; it is {describe(value)}")
    results = list(value)
    expect(len(results) == count, f"{expectation}; it has {len(results)}: {short(value)}")
    return results


# Equality


def expect_equal(
    value: Any, expected: Any, label: str, rel: float = 1e-6, abs: float = 1e-9, because: str = ""
) -> None:
    """Raise `NotYet` unless an answer equals the expected value, and show the difference.

    Parameters
    ----------
    value : object
        The answer, or a part of it.
    expected : number, array, text, bool or None
        The right value. An array also matches lists and tensors of its shape, of any numeric type.
    label : str
        The name of the answer, such as "cost('ring', 4)".
    rel, abs : float
        Tolerances for numbers, as in `math.isclose`.
    because : str
        An explanation of the expected value, such as "half of the warm-up".
    """
    because = f" ({because})" if because else ""
    if isinstance(expected, np.ndarray) and expected.ndim:
        _expect_equal_array(value, expected, label, rel, abs, because)
    elif (right := as_number(expected)) is not None:
        simple = number(value, label)
        if not _close(simple, right, rel, abs):
            ours, theirs = distinguish(right, simple)
            refuse(f"{label} to be {ours}{because}; it is {theirs}")
    elif isinstance(expected, bool | np.bool_):
        # NumPy's True is not Python's, and 1 is neither.
        is_bool = isinstance(value, bool) or (_is_bool(value) and value.shape == ())
        text = bool(value) if is_bool else describe(value)
        expect(is_bool and bool(value) == bool(expected), f"{label} to be {expected}{because}; it is {text}")
    else:
        value = plain(value)
        expect(
            type(value) is type(expected) and value == expected,
            f"{label} to be {expected!r}{because}; it is {describe(value)}",
        )


def _expect_equal_array(value: Any, expected: np.ndarray, label: str, rel: float, abs: float, because: str) -> None:
    array = array_of_numbers(value, f"{label} to be an array of shape {expected.shape}{because}")
    expect(
        array.shape == expected.shape,
        f"{label} to have the shape {expected.shape}{because}; it has {array.shape}",
    )
    wide = np.result_type(expected.dtype, np.float64) if expected.dtype.kind == "f" else expected.dtype
    differs = ~np.isclose(array, expected.astype(wide), rtol=rel, atol=abs, equal_nan=True)
    if differs.any():
        index = tuple(map(int, np.argwhere(differs)[0]))
        ours, theirs = distinguish(expected[index], array[index])
        indices = ", ".join(map(str, index))
        others = f", and {differs.sum() - 1:,} more of {differs.size:,} differ" if differs.sum() > 1 else ""
        refuse(f"{label} to have {ours} at [{indices}]{because}; it has {theirs} there{others}")


def equal(first: Any, second: Any, rel: float = 1e-6, abs: float = 1e-9) -> bool:
    """Return whether an answer equals the expected value, as `expect_equal` compares them."""
    try:
        expect_equal(first, second, "", rel, abs)
    except NotYet:
        return False
    return True


def plain(value: Any) -> Any:
    """Return a copy of a number, a text or an array of numbers without its own type; anything else as it is.

    What is compared is then Python's and NumPy's: a subclass can't redefine `==`, nor change later.
    """
    if (simple := as_number(value)) is not None:
        return simple
    if isinstance(value, np.ndarray) and value.shape == ():  # as from np.where(condition, "a", "b")
        value = value.item()
    if isinstance(value, str):
        return str.__str__(value)
    if is_tensor(value) or is_table(value) or isinstance(value, np.ndarray):
        array = numeric_array(value)
        return value if array is None else array.copy()
    return value


def numeric_array(value: Any) -> np.ndarray | None:
    """Return an answer as an array of numbers, or None if it is not one, such as text, a dict or a ragged list.

    Masked numbers become nan.
    """
    if isinstance(value, str | bytes | Mapping | set) or value is None:
        return None
    try:
        if isinstance(value, np.ma.MaskedArray):
            value = np.ma.filled(value.astype(float), math.nan) if np.ma.is_masked(value) else value.data
        array = np.asarray(value)
        if array.dtype == object:  # of Fractions, say
            array = array.astype(float)
    except (TypeError, ValueError, NotImplementedError):  # ragged, or a graph's tensor
        return None
    return None if array.dtype.kind in "bUSOMmcV" and "float" not in array.dtype.name else array


def array_of_numbers(value: Any, expectation: str) -> np.ndarray:
    """Return an answer as an array of numbers.

    Raises
    ------
    NotYet
        If it is not one; `expectation` completes the sentence "Expected …", such as "weights that are numbers".
    """
    array = numeric_array(value)
    if array is None:
        refuse(f"{expectation}; it is {describe(value)}")
    return array


def distinguish(first: Any, second: Any) -> tuple[str, str]:
    """Return two different numbers with just enough digits to show the difference."""
    a, b = (
        int(n) if isinstance(n, float) and n.is_integer() and abs(n) < 1e15 else n
        for n in map(as_number, (first, second))
    )
    if isinstance(a, int) and isinstance(b, int):
        return f"{a:,}", f"{b:,}"
    try:
        pairs = ((f"{float(first):.{digits}g}", f"{float(second):.{digits}g}") for digits in range(4, 18))
        return next((pair for pair in pairs if pair[0] != pair[1]), (str(a), str(b)))
    except OverflowError:  # an int too large for a float
        return short(a), short(b)


def _close(a: float, b: float, rel: float, abs: float) -> bool:
    if isinstance(a, int) and isinstance(b, int) and rel == abs == 0:
        return a == b
    try:
        return math.isclose(a, b, rel_tol=rel, abs_tol=abs) or (math.isnan(a) and math.isnan(b))
    except OverflowError:  # an int too large for a float
        return a == b
