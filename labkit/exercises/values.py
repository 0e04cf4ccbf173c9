"""The values of answers: one rule for numbers, equality within rounding, and how they are shown."""

import inspect
import math
import numbers
import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from labkit.exercises.outcomes import expect, refuse

WIDTH = 80  # characters of a value in a message


def short(value: Any, width: int = WIDTH) -> str:
    """Return a value as one short line; a large array or table by its size alone."""
    if is_table(value):
        return f"<{' × '.join(map(str, value.shape))} {type(value).__name__}>"
    if is_tensor(value):
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"<array of shape {value.shape}, {value.dtype}>"
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, tuple | list) and any(isinstance(part, np.ndarray | np.generic) for part in value):
        inside = ", ".join(short(part, width) for part in value)
        text = f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    elif inspect.isroutine(value) or inspect.isclass(value):
        text = getattr(value, "__name__", repr(value))
    else:
        try:
            text = " ".join(repr(value).split())
        except Exception:  # of a class whose __repr__ is wrong
            text = f"<{type(value).__name__}>"
    return text if len(text) <= width else f"{text[: width - 1]}…"


def describe(value: Any) -> str:
    """Say what an answer is, for an expectation that it is something else: "None: does it return?", "a list"."""
    if value is None:
        return "None: does it return?"
    if value is Ellipsis:
        return "`...`, which stands where something is still to be written"
    if inspect.isgenerator(value):
        return "a generator: return a value instead of yielding parts of it"
    if inspect.iscoroutine(value):
        value.close()  # or Python warns that nobody awaited it
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
    """Whether a value is a table or a column of pandas, which few labs use, and which takes half a second to import."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series)


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of TensorFlow that has a value already."""
    if not (hasattr(value, "numpy") and hasattr(value, "dtype") and hasattr(value, "shape")):
        return False
    try:
        value.numpy()
    except (NotImplementedError, TypeError):  # of a variable in a graph: while it is described, and after
        return False
    return True


def _is_bool(value: Any) -> bool:
    """Whether it is an array, a tensor or a column of True and False."""
    return getattr(getattr(value, "dtype", None), "name", "") == "bool"


# Numbers


def as_number(value: Any) -> int | float | None:
    """Return a number as Python's own; None for what is no number.

    Numbers are Python's, numpy's, a `Fraction`, a `Decimal`, and an array or a tensor of dimension 0. `True` and
    `False` are none, nor are complex numbers, and a list or an array that holds one number is not that number.
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
    if isinstance(value, int | float) and not isinstance(value, np.generic):  # of a subclass too, which may compare
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, np.generic) and (value.dtype.kind == "f" or "float" in value.dtype.name):  # bfloat16 as well
        return float(value)
    if isinstance(value, numbers.Real | Decimal):
        real: Any = value  # mypy knows little of a Real
        try:
            return int(real) if real == math.floor(real) else float(real)  # 28 - 1e-15 is not 27
        except OverflowError:  # infinity, and a fraction of more than a float holds
            return math.inf if real > 0 else -math.inf
        except ValueError:
            return math.nan
    return None


def is_number(value: Any) -> bool:
    """Whether an answer is a number."""
    return as_number(value) is not None


def number(value: Any, what: str) -> int | float:
    """Return an answer as a plain number.

    Raises
    ------
    NotYet
        When it is none; `what` names it, such as "share(10, 0, 4)".
    """
    found = as_number(value)
    if found is None:
        refuse(f"{what} to be a number; it is {describe(value)}")
    return found


def whole(value: Any, what: str, int_only: bool = False) -> int:
    """Return an answer as a plain whole number; 3.0 is one too, unless the text asks for an `int`.

    Raises
    ------
    NotYet
        When it is none.
    """
    found = number(value, what)
    if isinstance(found, int):
        return found
    expect(math.isfinite(found) and found == int(found), f"{what} to be a whole number; it is {found!r}")
    expect(not int_only, f"{what} to be an int; it is {found!r}, a float. Does it come from / instead of //?")
    return int(found)


def has_format(value: Any, spec: str) -> bool:
    """Whether `f"{value:.3f}"`, say, shows it, as a cell after the exercise does: no fraction, and no variable."""
    try:
        return bool(format(value, spec))
    except (TypeError, ValueError):
        return False


def parts(value: Any, count: int, what: str) -> list[Any]:
    """Return the parts of an answer that has `count` of them: of a tuple, a list or an array.

    Raises
    ------
    NotYet
        When it is something else, or has another number of parts; `what` completes the sentence "Expected …", such as
        "speed(…) to be three numbers".
    """
    if is_tensor(value):
        value = value.numpy()
    several = isinstance(value, tuple | list)
    if isinstance(value, np.ndarray):
        several = value.ndim > 0
    elif is_table(value):
        several = value.ndim == 1
    expect(several, f"{what}; it is {describe(value)}")
    expect(len(value) == count, f"{what}; it has {len(value)}: {short(value)}")
    return list(value)


# Equality


def same(got: Any, right: Any, what: str, rel: float = 1e-6, abs: float = 1e-9, because: str = "") -> None:
    """Raise `NotYet` unless an answer equals what is right, and show what differs.

    Parameters
    ----------
    got : object
        The answer, or a part of it.
    right : number, array, text, bool or None
        What it should be. An array also admits lists and tensors of its shape, of any type of number.
    what : str
        What it is called, such as "cost('ring', 4)".
    rel, abs : float
        Tolerances of numbers, as for `math.isclose`.
    because : str
        What to add to the expected value, such as "half of the warm-up".
    """
    because = f" ({because})" if because else ""
    if isinstance(right, np.ndarray) and right.ndim:
        _same_array(got, right, what, rel, abs, because)
    elif (wanted := as_number(right)) is not None:
        found = number(got, what)
        if not _close(found, wanted, rel, abs):
            ours, theirs = distinguish(wanted, found)
            refuse(f"{what} to be {ours}{because}; it is {theirs}")
    elif isinstance(right, bool | np.bool_):
        # numpy's True is not Python's, and 1 is neither.
        is_bool = isinstance(got, bool) or (_is_bool(got) and got.shape == ())
        shown = bool(got) if is_bool else describe(got)
        expect(is_bool and bool(got) == bool(right), f"{what} to be {right}{because}; it is {shown}")
    else:
        if isinstance(got, np.ndarray) and got.shape == ():  # such as np.where(condition, "a", "b") gives
            got = got.item()
        expect(isinstance(got, type(right)) and got == right, f"{what} to be {right!r}{because}; it is {describe(got)}")


def _same_array(got: Any, right: np.ndarray, what: str, rel: float, abs: float, because: str) -> None:
    array = array_of_numbers(got, f"{what} to be an array of shape {right.shape}{because}")
    expect(array.shape == right.shape, f"{what} to have the shape {right.shape}{because}; it has {array.shape}")
    wide = np.result_type(right.dtype, np.float64) if right.dtype.kind == "f" else right.dtype
    differs = ~np.isclose(array, right.astype(wide), rtol=rel, atol=abs, equal_nan=True)
    if differs.any():
        place = tuple(map(int, np.argwhere(differs)[0]))
        ours, theirs = distinguish(right[place], array[place])
        index = ", ".join(map(str, place))
        others = f", and {differs.sum() - 1:,} more of {differs.size:,} differ" if differs.sum() > 1 else ""
        refuse(f"{what} to have {ours} at [{index}]{because}; it has {theirs} there{others}")


def numeric_array(value: Any) -> np.ndarray | None:
    """Return an answer as an array of numbers; None for what is none, such as a text, a dict or a ragged list."""
    if isinstance(value, str | bytes | Mapping | set) or value is None:
        return None
    try:
        array = np.asarray(value)
        if array.dtype == object:  # of Fractions, say
            array = array.astype(float)
    except (TypeError, ValueError, NotImplementedError):  # ragged, or a tensor of a graph
        return None
    return None if array.dtype.kind in "bUSOMmcV" and "float" not in array.dtype.name else array


def array_of_numbers(value: Any, what: str) -> np.ndarray:
    """Return an answer as an array of numbers.

    Raises
    ------
    NotYet
        When it is none; `what` completes the sentence "Expected …", such as "weights that are numbers".
    """
    array = numeric_array(value)
    if array is None:
        refuse(f"{what}; it is {describe(value)}")
    return array


def distinguish(right: Any, got: Any) -> tuple[str, str]:
    """Return two different numbers in as few digits as show the difference."""
    wanted, found = as_number(right), as_number(got)
    if isinstance(wanted, int) and isinstance(found, int):
        return f"{wanted:,}", f"{found:,}"
    try:
        pairs = ((f"{float(right):.{digits}g}", f"{float(got):.{digits}g}") for digits in range(4, 18))
        return next((pair for pair in pairs if pair[0] != pair[1]), (str(wanted), str(found)))
    except OverflowError:  # an int that is no float
        return short(wanted), short(found)


def _close(found: float, wanted: float, rel: float, abs: float) -> bool:
    if isinstance(found, int) and isinstance(wanted, int) and rel == abs == 0:
        return found == wanted
    try:
        return math.isclose(found, wanted, rel_tol=rel, abs_tol=abs) or (math.isnan(wanted) and math.isnan(found))
    except OverflowError:  # an int that is no float
        return found == wanted
