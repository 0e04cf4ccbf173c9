"""Names followed from cell to cell: a lab must run to its closing table with any of its optional sections left out.

A cell takes a name from the section that bound it last before. What a function uses is taken where the function is
used, since it may be called there. A script that a cell writes counts as a name, which its path and its import use.
A loop is taken to run, and a `match` to bind what any of its cases binds. What an optional section puts *into* an
object of a core section is not followed: the object is there without it.
"""

import ast
import functools
import symtable
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nbformat import NotebookNode

from labkit.exercises import sources
from labkit.exercises.minutes import Section, section_of

WRITES = "%%writefile "


class Dependency(NamedTuple):
    """A name that a cell takes from an optional section: its line in the cell's Python, the name, the section."""

    cell: int
    line: int
    name: str
    section: str


@dataclass(frozen=True)
class _Binding:
    """A binding of a name: the section that bound it, and the names that it may use when it is used."""

    section: str
    uses: frozenset[str]


_Names = dict[str, frozenset[_Binding]]  # the bindings of each name: several where a condition decides
_Scripts = Mapping[str, frozenset[str]]  # the names at the top of each script that the lab writes


class Uses(NamedTuple):
    """The global names in a piece of code: used at once, used when a function in it is called, bound."""

    now: frozenset[str]
    later: frozenset[str]
    bound: frozenset[str]


NOTHING = Uses(frozenset(), frozenset(), frozenset())


def dependencies(notebook: NotebookNode, plan: Iterable[Section]) -> list[Dependency]:
    """Return the names that cells take from optional sections other than their own, in the cells' order.

    Raises
    ------
    SyntaxError
        When a cell has no syntax tree.
    """
    optional = frozenset(section.name for section in plan if not section.core)
    scripts = {name: uses_of(_python(cell)).bound for cell in notebook.cells if (name := script_of(cell))}
    names: _Names = {}
    result: list[Dependency] = []
    for index, (cell, section) in enumerate(zip(notebook.cells, section_of(notebook), strict=True)):
        if cell.cell_type == "code":
            follower = _Follower(section, optional - {section}, scripts, names)
            follower.follow(cell)
            result += [Dependency(index, line, name, maker) for (name, maker), line in follower.found.items()]
            names = follower.names
    return result


def script_of(cell: NotebookNode) -> str:
    """Return the script that a cell writes, `work/x.py`; an empty text when it writes none."""
    first = cell.source.partition("\n")[0]
    return first.removeprefix(WRITES).strip() if first.startswith(WRITES) else ""


def _python(cell: NotebookNode) -> str:
    return ast.unparse(sources.parse(cell))


class _Follower:
    """Follows the names through one cell."""

    def __init__(self, section: str, others: frozenset[str], scripts: _Scripts, names: _Names):
        self.section, self.others, self.scripts, self.names = section, others, scripts, names
        self.found: dict[tuple[str, str], int] = {}  # the first line that takes a name, by name and section

    def follow(self, cell: NotebookNode) -> None:
        """Follow the names through the cell; of a script, only which others it uses: its names are its own."""
        tree = sources.parse(cell)
        if script := script_of(cell):
            self._bind(script, NOTHING, {other for other in self.scripts if _mentions(tree, other)} - {script})
        else:
            self._block(tree.body)

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                self._piece(test)
                self._branches([body, orelse])
            case ast.For(target=target, iter=iterable, body=body, orelse=orelse):
                self._piece(ast.Assign([target], iterable), statement)
                self._block(body)
                self._block(orelse)
            case ast.While(test=test, body=body, orelse=orelse):
                self._piece(test)
                self._block(body)
                self._block(orelse)
            case ast.With(items=items, body=body):
                for item in items:
                    entered = item.context_expr
                    self._piece(ast.Assign([item.optional_vars], entered) if item.optional_vars else entered, statement)
                self._block(body)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                for handler in handlers:
                    if handler.type:
                        self._piece(handler.type)
                self._branches([body + orelse, *(handler.body for handler in handlers)])
                self._block(finalbody)
            case _:
                self._piece(statement)

    def _branches(self, bodies: list[list[ast.stmt]]) -> None:
        """Follow each branch from the same beginning; afterwards a name has the bindings of all of them."""
        before, ends = self.names, []
        for body in bodies:
            self.names = dict(before)
            self._block(body)
            if not body or not isinstance(body[-1], ast.Raise):
                ends.append(self.names)
        every = {name for end in ends for name in end}
        self.names = {name: frozenset().union(*(end.get(name, ()) for end in ends)) for name in every}

    def _piece(self, piece: ast.stmt | ast.expr, at: ast.stmt | None = None) -> None:
        """Follow a statement without a block, or an expression."""
        uses = uses_of(ast.unparse(ast.fix_missing_locations(piece)))
        files = {name for name in self.scripts if _mentions(piece, name)}
        now = self._closure(uses.now | files)
        for name in sorted(now):
            for section in sorted({binding.section for binding in self.names.get(name, ())} & self.others):
                self.found.setdefault((name, section), _line(piece, name) or (at or piece).lineno)
        run = {name for file in files for name in self.scripts[file] if _is_run(piece)}  # %run brings a script's names
        for name in uses.bound | run:
            self._bind(name, uses, files)

    def _bind(self, name: str, uses: Uses, files: set[str]) -> None:
        """Bind a name, which may use the names used in its own functions and in functions that it is made of."""
        inherited = (binding.uses for use in uses.now for binding in self.names.get(use, ()))
        self.names[name] = frozenset({_Binding(self.section, uses.later.union(files, *inherited))})

    def _closure(self, names: frozenset[str]) -> set[str]:
        """Return the names, and those that they may use, and so on."""
        every, new = set(), set(names)
        while new:
            every |= new
            new = {use for name in new for binding in self.names.get(name, ()) for use in binding.uses} - every
        return every


@functools.cache
def uses_of(code: str) -> Uses:
    """Return the global names that a piece of code uses, and those that it binds."""
    table = symtable.symtable(code, "cell", "exec")
    now, later, bound = set[str](), set[str](), set[str]()
    for symbol in table.get_symbols():
        if symbol.is_referenced():
            now.add(symbol.get_name())
        if symbol.is_assigned() or symbol.is_imported():
            bound.add(symbol.get_name())
    for child in table.get_children():
        _inside(child, now, later, bound)
    match ast.parse(code).body:
        case [ast.AugAssign(target=ast.Name(name))]:
            now.add(name)
    return Uses(frozenset(now), frozenset(later), frozenset(bound))


def _inside(table: symtable.SymbolTable, now: set[str], later: set[str], bound: set[str]) -> None:
    """Collect the global names in an inner scope: a comprehension and a class run at once, a function later."""
    at_once = table.get_type() == "class" or table.get_name() in ("listcomp", "setcomp", "dictcomp", "genexpr")
    for symbol in table.get_symbols():
        if symbol.is_global() and symbol.is_referenced():
            (now if at_once else later).add(symbol.get_name())
        if symbol.is_declared_global() and symbol.is_assigned():
            bound.add(symbol.get_name())
    for child in table.get_children():
        _inside(child, now if at_once else later, later, bound)


def _imported(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module)):
            yield module


def _mentions(piece: ast.AST, script: str) -> bool:
    """Whether code has a script's path in a text, or imports it."""
    name = script.removeprefix("work/")
    return any(
        (isinstance(node, ast.Constant) and isinstance(node.value, str) and name in node.value)
        or name.removesuffix(".py") in _imported(node)
        for node in ast.walk(piece)
    )


def _is_run(piece: ast.AST) -> bool:
    """Whether a piece of code is the line `%run …`, as IPython translates it."""
    match piece:
        case ast.Expr(ast.Call(ast.Attribute(attr="run_line_magic"), [ast.Constant("run"), *_])):
            return True
    return False


def _line(piece: ast.AST, name: str) -> int:
    """Return the first line with a name; 0 where a function that is called there uses it."""
    return min((node.lineno for node in ast.walk(piece) if isinstance(node, ast.Name) and node.id == name), default=0)
