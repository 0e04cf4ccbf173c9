"""The message of a `LabError`, for all tests."""

import pytest

from labkit.system.errors import LabError


def error_of(call, *args, **options) -> str:
    """Return the message, one line, of the error that a call raises."""
    with pytest.raises(LabError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
