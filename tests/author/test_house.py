"""The catalogue of modules, docs/house.md, is what their first lines say."""

from labkit_author import house


def test_the_catalogue_is_what_the_modules_say():
    assert house.PAGE.read_text() == house.page(), "run ./lab build"
