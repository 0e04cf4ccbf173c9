"""Functions that move from a notebook into a module that ranks import: their text, and that of all that they use."""

import ast
import functools
import inspect
import linecache
import pickle
import symtable
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from labkit.exercises.answers import failure, is_student_code, remember_lines
from labkit.exercises.outcomes import NotYet
from labkit.exercises.values import describe

MAX_DATA = 100_000  # bytes of a constant that has no literal


def module_text(functions: Mapping[str, Any]) -> str:
    """Return the text of a module that defines functions of the notebook, by these names."""
    texts = [text for text, _ in _Module(functions).statements]
    imports = dict.fromkeys(text for text in texts if text.startswith(("import ", "from ")))
    return "\n\n\n".join(["\n".join(imports), *(text for text in texts if text not in imports)]).strip() + "\n"


def isolate(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as a module defines it, in which only what `module_text` found is defined.

    Raises
    ------
    NotYet
        When it can't move, or the module can't be imported.
    """
    namespace: dict[str, Any] = {"__name__": "module"}
    try:
        for number, (text, line) in enumerate(_Module({name: answer}).statements):
            filename, text = f"<statement {number} of {name}>", "\n" * (line - 1) + text  # lines keep their numbers
            remember_lines(filename, text)
            exec(compile(text, filename, "exec"), namespace)
    except NotYet:
        raise
    except Exception as error:
        raise NotYet(f"{failure(error)}. That happens when {name} moves into a module.") from error
    function: Callable[..., Any] = namespace[name]
    return function


class _Definition(NamedTuple):
    """Where a cell defines a function or a class: its name there, "" of a lambda; text, first line, the globals."""

    name: str
    text: str
    line: int
    variables: Mapping[str, Any]


class _Module:
    """The statements that define some values by name, each after those that define what it uses.

    Attributes
    ----------
    statements : list of (str, int)
        The text of each, and its first line in its cell.
    """

    def __init__(self, values: Mapping[str, Any]):
        self.statements: list[tuple[str, int]] = []
        self._names: set[str] = set()
        for name, value in values.items():
            self._add(name, value)

    def _add(self, name: str, value: Any) -> str:
        if name not in self._names:
            self._names.add(name)
            found = _definition(value)
            self.statements.append(self._of_a_cell(name, value, found) if found else (self._statement(name, value), 1))
        return name

    def _of_a_cell(self, name: str, value: Any, found: _Definition) -> tuple[str, int]:
        """Return the statement that defines a name as a function or a class of a cell."""
        for used in _global_names(found.text):
            if used != found.name and used in found.variables:
                self._add(used, found.variables[used])
        if not found.name:
            return f"{name} = ({found.text})", found.line
        if found.name == name:
            return found.text, found.line
        if found.variables.get(found.name) is value:
            return f"{name} = {self._add(found.name, value)}", 1
        self.statements.append((found.text, found.line))  # another function has taken its name since
        return f"{name} = {found.name}", 1

    def _statement(self, name: str, value: Any) -> str:
        """Return the statement that defines a name as a value that no cell has the text of."""
        if inspect.ismodule(value):
            return f"import {value.__name__}" + f" as {name}" * (name != value.__name__)
        if isinstance(value, functools.partial):
            parts = {"": value.func} | {f"{place}": part for place, part in enumerate(value.args)} | value.keywords
            names = {key: self._add(f"{name}_{key}", part) for key, part in parts.items()}
            given = [f"{key}={own}" if key in value.keywords else own for key, own in names.items()]
            return f"{name} = {self._add('functools', functools)}.partial({', '.join(given)})"
        if inspect.ismethod(value):
            return f"{name} = {self._add(f'{name}_object', value.__self__)}.{value.__name__}"
        if _definition(type(value)):
            kind, state = self._add(type(value).__name__, type(value)), self._add(f"{name}_state", vars(value))
            return f"{name} = object.__new__({kind})\n{name}.__dict__.update({state})"
        if callable(value) and (own := getattr(value, "__qualname__", getattr(value, "__name__", ""))):
            home = str(getattr(value, "__module__", ""))
            if getattr(sys.modules.get(home), own, None) is value and home != "__main__":
                return f"from {home} import {own}" + f" as {name}" * (name != own)
        try:
            if ast.literal_eval(repr(value)) == value:
                return f"{name} = {value!r}"
        except Exception:  # no literal
            pass
        try:
            data = pickle.dumps(value)
        except Exception:  # whatever a class raises
            data = b"__main__"
        if b"__main__" in data or len(data) > MAX_DATA:
            raise NotYet(
                f"Expected a function that can move into a module; it uses {name}, which can't: it is "
                f"{describe(value)}. Make it inside the function."
            )
        return f"{name} = {self._add('pickle', pickle)}.loads({data!r})"


def _definition(value: Any) -> _Definition | None:
    """Return where a cell defines a function or a class; None for other values.

    Raises
    ------
    NotYet
        When another function defines it, or its text is unknown.
    """
    if inspect.ismethod(value):
        return None
    function = inspect.unwrap(value) if callable(value) else value
    is_class = inspect.isclass(function)
    if is_class:  # any of its functions tells where it is
        function = next(filter(inspect.isfunction, map(inspect.unwrap, vars(function).values())), None)
    code = getattr(function, "__code__", None)
    if code is None or not is_student_code(code.co_filename):
        return None
    lines = linecache.getlines(code.co_filename)
    name = value.__name__ if is_class else code.co_name
    definitions = (ast.ClassDef,) if is_class else (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse("".join(lines))):
        if name == "<lambda>" and isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            if [argument.arg for argument in node.args.args] == [*code.co_varnames[: code.co_argcount]]:
                text = ast.get_source_segment("".join(lines), node) or ""
                return _Definition("", text, node.lineno, function.__globals__)
        elif isinstance(node, definitions) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            holds = first <= code.co_firstlineno <= (node.end_lineno or first)
            if holds if is_class else first == code.co_firstlineno and not code.co_freevars:
                text = textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip()
                return _Definition(name, text, first, function.__globals__)
    raise NotYet(
        "Expected a function that a cell defines by `def name(…):`, not inside another one, since its text moves into "
        "a module."
    )


def _global_names(text: str) -> list[str]:
    """Return the names that statements take from outside."""
    tables = [symtable.symtable(text, "<cell>", "exec")]
    for table in tables:
        tables += table.get_children()
    symbols = [symbol for table in tables for symbol in table.get_symbols() if symbol.is_referenced()]
    return [symbol.get_name() for symbol in symbols if symbol.is_global()]
