"""A student's guess: a number or a choice, given before the cell that measures, and shown beside its figure."""

import math
from collections.abc import Sequence
from typing import Any

from labkit.display import boxes
from labkit.display.measured import Measured, with_unit

MAX_LETTERS = 40  # of a guess, as it is kept and shown


def parse(answer: object, unit: str = "", choices: Sequence[str] = ()) -> tuple[str, str]:
    """Return a guess as text, and what to do when it is none; one of the two is empty.

    Parameters
    ----------
    answer : object
        What stands in the cell: three dots (`...`) or None where nobody has guessed.
    unit : str
        Of a number, such as "×".
    choices : sequence of str
        The choices; none where the guess is a number.
    """
    wanted = f"one of {', '.join(map(repr, choices))}" if choices else f"a number{f' ({unit})' * bool(unit)}, such as 2"
    if answer is ... or answer is None:
        return "", f"No guess yet: write {wanted}, in place of the three dots. Or run on without."
    if choices:
        for choice in choices:
            if str(answer).strip().casefold() == choice.casefold():
                return choice, ""
    else:
        text = answer.strip().removesuffix(unit).rstrip(" x") if isinstance(answer, str) else answer
        try:
            number = float(text)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number) and not isinstance(answer, bool):
            return with_unit(f"{number:,.12g}", unit), ""
    return "", f"A guess is {wanted}. Run on without one, or try again."


def show(number: int, guess: str, what_to_do: str = "") -> None:
    """Show a guess that was just given, or that there is none."""
    if guess:
        boxes.show(f"Guess {number} · you: {guess}")
    else:
        boxes.show(f"Guess {number} · none", lines=[what_to_do])


def show_beside(number: int, question: str, guess: str, measured: Measured | str) -> None:
    """Show a guess beside the figure."""
    you = f"you: {guess}, " if guess else ""
    boxes.show(f"Guess {number} · {f'{question} · ' * bool(question)}{you}here: {measured}")


def is_guess(value: Any) -> bool:
    """Whether it is a guess as it is kept: a question, the guess and the figure, which are texts."""
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("question", "guess", "here"))
