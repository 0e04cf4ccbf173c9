"""Errors that the person at the keyboard can mend: every room raises them, and commands and notebooks show one line."""

import re

# What TensorFlow's messages say of its internals: a graph's nodes, operations, iterators.
_INTERNALS = re.compile(
    r"\{\{(?:function_)?node .*?\}\}\s*|\s*\[\[.*?\]\]|\s*\[Op:.*?\]( name:.*)?"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)


class LabError(Exception):
    """One line: what is wrong and what to do. Commands print it and exit with 2; a notebook shows it alone."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this in place of a traceback, which would be all of the kit's own frames.
        return [f"{type(self).__name__}: {self}"]


def first_cause(error: BaseException) -> str:
    """Return the reason for a failure of the network: the library's error, and the one that it began with."""
    name = type(error).__name__
    while error.__context__:
        error = error.__context__
    return f"{name}, {getattr(error, 'strerror', None) or error}".removesuffix(".")


def reason(error: Exception) -> str:
    """Return an error's message from TensorFlow or Horovod in one line, without the names of their internals."""
    text = _INTERNALS.sub("", str(error)).strip()
    if text.startswith("Graph execution error"):  # and where in the program that node was made, and then what happened
        text = text.split("\n\n")[-1]
    return text.strip().partition("\n")[0]
