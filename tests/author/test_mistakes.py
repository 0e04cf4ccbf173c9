"""The guide's mistakes are those that the tests plant."""

import ast

import pytest

from labkit_author import mistakes, sources
from labkit_classroom.lecture import guide


def test_the_file_is_what_the_tests_say():
    assert mistakes.FILE.read_text() == mistakes.text(), "run ./lab build"


@pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)
def test_no_planted_mistake_is_missed(source):
    """Whatever a table's entry is made of: those with a computed message would vanish from the guide."""
    tree = ast.parse((mistakes.TESTS / f"test_lab{source.stem[:2]}.py").read_text())
    there = [entry for entry in mistakes._entries(tree) if not isinstance(entry, ast.Starred)]
    assert sum(map(len, guide.mistakes(source.stem[:2]).values())) == len(there) > 0


def test_what_an_edit_takes_away_is_told():
    found = guide.mistakes("06")[1]
    taken_away = next(one for one in found if one.message.startswith("sum over all ranks"))
    assert taken_away.before == "            chunk += incoming"
    assert taken_away.after == ""


def test_a_lab_without_tests_has_no_mistakes(monkeypatch, tmp_path):
    monkeypatch.setattr(mistakes, "TESTS", tmp_path)
    assert mistakes.planted("06") == {}
