import html
import re

import nbformat
import pytest

from labkit.display import verdict
from labkit.display.results import CHECK_FAILED, NOT_ATTEMPTED, NOT_YET, PASSED
from labkit_author import execution

MESSAGE = ["Expected double(3) to be < 6; it is 3.", "Hint 1 of 3: think & try"]
TEXT = "Exercise 1 · not yet.\n   Expected double(3) to be < 6; it is 3.\n   Hint 1 of 3: think & try"


def test_outside_a_notebook_a_verdict_is_plain_text(capsys):
    verdict.show(1, NOT_YET, MESSAGE)
    verdict.show(2, PASSED, [])
    assert capsys.readouterr().out == f"{TEXT}\nExercise 2 · passed.\n"


def test_in_a_notebook_the_same_words_are_coloured_and_a_passed_exercise_shows_the_solution_collapsed(tmp_path):
    code = f"from labkit.display import verdict\nverdict.show(1, {NOT_YET!r}, {MESSAGE}, solution='return a < b')"
    code += "".join(
        f"\nverdict.show(2, {outcome!r}, [], solution='return a < b')" for outcome in (PASSED, NOT_ATTEMPTED)
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    outputs = execution.execute(notebook, "verdict", tmp_path).cells[0].outputs
    assert [output.data["text/plain"] for output in outputs] == [
        TEXT,
        "Exercise 2 · passed.",
        "Exercise 2 · not attempted.",
    ]
    pages = [output.data["text/html"] for output in outputs]
    assert re.search(r'<span style="background-color: #E69F00; [^"]*">not yet</span>', pages[0])
    assert html.unescape(re.sub("<.*?>", "", pages[0])) == TEXT
    assert ["return a &lt; b" in page for page in pages] == [False, True, False]
    assert "<details><summary>" in pages[1]


@pytest.mark.parametrize("outcome", [PASSED, NOT_YET, NOT_ATTEMPTED, CHECK_FAILED])
def test_words_are_legible_on_their_colour(outcome):
    """WCAG 2.2 requires a contrast of at least 4.5 to 1, https://www.w3.org/TR/WCAG22/#contrast-minimum."""
    channels = [int(verdict.COLOURS[outcome][place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    luminance = sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    assert (luminance + 0.05) / 0.05 >= 4.5


def test_outcomes_have_different_colours():
    assert len(set(verdict.COLOURS.values())) == 4
