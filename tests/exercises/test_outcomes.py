import pytest

from labkit.exercises.outcomes import NotYet, hinting, refuse


@pytest.mark.parametrize(("own", "hint"), [("", "of the block"), ("its own", "its own")])
def test_a_mistake_gets_the_hint_of_the_innermost_block_unless_it_has_one(own, hint):
    with pytest.raises(NotYet, match=r"^Expected 4\.$") as mistake, hinting("outside"), hinting("of the block"):
        refuse("4", own)
    assert mistake.value.hint == hint
