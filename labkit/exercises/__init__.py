"""Does a student's answer do what it should? One module a lab; `core` has what all share."""

from typing import Any


def checker(*args: Any, **kwargs: Any) -> Any:
    """Give the `check` of a lab's notebook, as `core.checker` does."""
    from labkit.exercises import core  # takes two seconds, which the ranks of a check don't need

    return core.checker(*args, **kwargs)
