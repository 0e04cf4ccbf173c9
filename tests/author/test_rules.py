"""The labs follow the rules with numbers."""

import ast
import math
import re

import pytest
from english import conspicuous

from labkit_author import minutes, notebooks, sources

LABS = [source.stem[:2] for source in sources.labs()]
MAX_FOLDED, MAX_VISIBLE, MAX_FILE = 100, 25, 60  # lines of code: folded per lab, per visible cell, per written file
MAX_COMPARISONS, MAX_WORDS = 8, 3300
MAX_MINUTES = {"core": 60, "all": 90, "core's waiting": 5, "all waiting": 8}
MAX_STRING_WORDS = 4  # of a string that a table or a condition may choose: more is a sentence

pytestmark = pytest.mark.parametrize("lab", LABS)


def cells(lab):
    return sources.solved(sources.read(sources.find(lab))).cells


def code(lab):
    return [cell for cell in cells(lab) if cell.cell_type == "code"]


def is_folded(cell):
    return cell.metadata.get("jupyter", {}).get("source_hidden", False)


def length(cell):
    return sum(1 for line in cell.source.splitlines() if line.strip())


def trees(lab):
    return [notebooks.parse(cell) for cell in code(lab)]


def test_little_code_is_folded(lab):
    assert sum(length(cell) for cell in code(lab) if is_folded(cell)) <= MAX_FOLDED


def test_visible_cells_are_short(lab):
    for cell in code(lab):
        if not is_folded(cell):
            limit = MAX_FILE if cell.source.startswith("%%writefile") else MAX_VISIBLE
            assert length(cell) <= limit, cell.source


def test_few_comparisons_are_measured(lab):
    assert sum(cell.source.count("alternate(") for cell in code(lab)) <= MAX_COMPARISONS


def test_code_does_not_conclude(lab):
    for tree in trees(lab):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert not re.match(r"explain|describe|tell|conclude", node.name)
            choices = {ast.IfExp: ("body", "orelse"), ast.Dict: ("values",)}.get(type(node), ())
            for value in [part for field in choices for part in _several(getattr(node, field))]:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    assert len(value.value.split()) <= MAX_STRING_WORDS, ast.unparse(node)


def _several(value):
    return value if isinstance(value, list) else [value]


def test_questions_are_numbered(lab):
    calls = [re.findall(r"results\.answer\((\d+),", cell.source) for cell in code(lab)]
    numbers = [int(number) for found in calls for number in found]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers, "students conclude nothing"


def test_prose_is_short(lab):
    assert sum(len(cell.source.split()) for cell in cells(lab) if cell.cell_type == "markdown") <= MAX_WORDS


def test_prose_reads_like_a_native_writers(lab):
    assert not conspicuous("\n\n".join(cell.source for cell in cells(lab) if cell.cell_type == "markdown"))


def test_prose_is_true_on_any_machine(lab):
    prose = "\n".join(cell.source for cell in cells(lab) if cell.cell_type == "markdown")
    assert not re.search(r"\bon two cores\b|\bon this machine, it\b|\bmore rounds\b", prose, re.I)


def test_the_ladder_is_shown_in_the_report_only(lab):
    assert not [cell for cell in code(lab) if "ladder" in cell.source]


def test_its_minutes_are_honest_and_few(lab):
    sections = minutes.plan(sources.find(lab))
    core = [section for section in sections if section.core]
    measured = {
        "core": minutes.total(core),
        "all": minutes.total(sections),
        "core's waiting": math.fsum(section.wait for section in core),
        "all waiting": math.fsum(section.wait for section in sections),
    }
    assert {name: value for name, value in measured.items() if value > MAX_MINUTES[name]} == {}
