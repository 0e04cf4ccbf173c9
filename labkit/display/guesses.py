"""Students' guesses: a number or a choice, made before the cell that measures, then compared with its figure."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from labkit.display import boxes
from labkit.measure.figures import Measured, with_unit


class Guess(NamedTuple):
    """A guess.

    Attributes
    ----------
    text : str
        The guess as shown; empty without a guess.
    value : float or str or None
        The number, or the choice.
    advice : str
        What to do without a valid guess; empty otherwise.
    """

    text: str = ""
    value: float | str | None = None
    advice: str = ""


def parse(answer: object, unit: str = "", choices: Sequence[str] = ()) -> Guess:
    """Parse the guess that a student wrote into a cell.

    Parameters
    ----------
    answer : object
        The cell's value: three dots (`...`) or None without a guess.
    unit : str
        The unit of a number, such as "×".
    choices : sequence of str
        The choices; empty where the guess is a number.
    """
    expected = (
        f"one of {', '.join(map(repr, choices))}" if choices else f"a number{f' ({unit})' * bool(unit)}, such as 2"
    )
    if answer is ... or answer is None:
        return Guess(advice=f"No guess yet: replace the three dots with {expected}, or continue without a guess.")
    if choices:
        for choice in choices:
            if str(answer).strip().casefold() == choice.casefold():
                return Guess(choice, choice)
    else:
        text = answer.strip().removesuffix(unit).rstrip(" x") if isinstance(answer, str) else answer
        try:
            number = float(text)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number) and not isinstance(answer, bool):
            return Guess(with_unit(f"{number:,.12g}", unit), number)
    return Guess(advice=f"A guess is {expected}. Try again, or continue without one.")


def value_of(measured: Measured | str) -> float | str | None:
    """Return the value of a figure that a guess is compared with: its number, or the choice."""
    if isinstance(measured, str):
        return str(measured)
    numbers = measured.numbers()
    return numbers["value"] if numbers else None


def show(number: int, guess: str, advice: str = "") -> None:
    """Show a guess, or what to do without one."""
    if guess:
        boxes.show(f"Guess {number} · you: {guess}")
    else:
        boxes.show(f"Guess {number} · none", lines=[advice])


def show_comparison(number: int, question: str, guess: str, measured: Measured | str) -> None:
    """Show a guess and the figure that it is compared with."""
    you = f"you: {guess}, " if guess else ""
    boxes.show(f"Guess {number} · {f'{question} · ' * bool(question)}{you}measured: {measured}")
