"""Errors that users can fix: every package raises them; commands and notebooks show a single line."""

import re

# Internals in TensorFlow's messages: a graph's nodes, operations, iterators.
_INTERNALS = re.compile(
    r"\{\{(?:function_)?node .*?\}\}\s*|\s*\[\[.*?\]\]|\s*\[Op:.*?\]( name:.*)?"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)


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


def reason(error: Exception) -> str:
    """Return the message of a TensorFlow or Horovod error in one line, without the names of internals."""
    text = _INTERNALS.sub("", str(error)).strip()
    if text.startswith("Graph execution error"):  # then where the node was made, then the cause
        text = text.split("\n\n")[-1]
    return text.strip().partition("\n")[0]
