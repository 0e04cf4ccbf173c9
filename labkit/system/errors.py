"""Errors that users can fix: every package raises them; commands and notebooks show a single line."""


class LabError(Exception):
    """An error in one line: the problem and the fix. Commands print it and exit with 2; a notebook shows only it."""

    def _render_traceback_(self) -> list[str]:
        # IPython shows this instead of a traceback, which would have only the kit's own frames.
        return [f"{type(self).__name__}: {self}"]


def first_cause(error: BaseException) -> str:
    """Return the reason for a network failure: the library's error and its root cause."""
    name = type(error).__name__
    while error.__context__:
        error = error.__context__
    return f"{name}, {getattr(error, 'strerror', None) or error}".removesuffix(".")
