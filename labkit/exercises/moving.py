"""Move functions from a notebook into a module that ranks import, with the helpers and constants that they use."""

import copyreg
import functools
import inspect
import pickle
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
from IPython.core.autocall import ZMQExitAutocall

from labkit.exercises.engine.outcomes import NotYet

HEADER = "Your functions. The bytes below define them, with the helpers, constants and imports that they use.\n\n"

# cloudpickle supports neither a notebook's cached functions nor IPython's exit().
copyreg.pickle(type(functools.cache(len)), lambda cached: (functools.cache, (cached.__wrapped__,)))
copyreg.pickle(ZMQExitAutocall, lambda _: (getattr, (sys, "exit")))


def module_text(functions: Mapping[str, Callable[..., Any]]) -> str:
    """Return the text of a module that defines functions by these names, with their source in comments."""
    texts = []
    for function in functions.values():
        try:
            texts.append(inspect.getsource(function))
        except (OSError, TypeError):  # an object, say
            texts.append(repr(function))
    comments = textwrap.indent(HEADER + "\n\n".join(map(str.strip, texts)), "# ", lambda line: True).replace(
        "# \n", "#\n"
    )
    definitions = [f"{name} = pickle.loads({cloudpickle.dumps(function)!r})" for name, function in functions.items()]
    return "\n".join([comments, "", "import pickle\n", *definitions, ""])


def isolate(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as another process would load it.

    Raises
    ------
    NotYet
        If it uses something that can't move, such as a generator.
    """
    try:
        function: Callable[..., Any] = pickle.loads(cloudpickle.dumps(answer))
    except Exception as error:  # a class can raise anything
        raise NotYet(
            f"{name} can't move to the ranks, which are separate processes: {error}. Create it inside the function."
        ) from error
    return function
