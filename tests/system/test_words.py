"""Counts in words."""

import pytest

from labkit.system.words import plural


@pytest.mark.parametrize(("count", "words"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks"), (1024, "1,024 ranks")])
def test_only_one_is_singular(count, words):
    assert plural(count, "rank") == words
