"""The module index, docs/house.md, matches the first lines of the modules' docstrings."""

from labkit_author import house


def test_the_index_matches_the_modules():
    assert house.PAGE.read_text() == house.page(), "run ./lab build"
