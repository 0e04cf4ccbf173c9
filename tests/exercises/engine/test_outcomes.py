import pytest

from labkit.exercises.engine.outcomes import NotYet, hinting, refuse


@pytest.mark.parametrize(("specific", "hint"), [("", "of the block"), ("specific", "specific")])
def test_mistake_without_a_hint_gets_the_hint_of_the_innermost_block(specific, hint):
    with pytest.raises(NotYet, match=r"^Expected 4\.$") as mistake, hinting("outside"), hinting("of the block"):
        refuse("4", specific)
    assert mistake.value.hint == hint
