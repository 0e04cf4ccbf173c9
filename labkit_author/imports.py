"""Find imports of names that the kit doesn't have. Modules are read as text: nothing is imported."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from labkit.system import paths

PACKAGES = ("labkit", "labkit_author", "labkit_classroom")


def missing(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of each import of a name that the kit doesn't have."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(str(module), names, 0) if module.partition(".")[0] in PACKAGES:
                known = names_of(module)
                if known is None:
                    yield node.lineno, module
                else:
                    yield from ((node.lineno, f"{module}.{name.name}") for name in names if name.name not in known)
            case ast.Import(names):
                for name in names:
                    if name.name.partition(".")[0] in PACKAGES and names_of(name.name) is None:
                        yield node.lineno, name.name


def names_of(module: str) -> set[str] | None:
    """Return the names that can be imported from a module, such as "labkit.mpi"; None if it doesn't exist."""
    path = paths.ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return None
    names, lazy = _read(file.read_text(encoding="utf-8"))
    loaded = {name for below in lazy for name in lazy[below] if name in (names_of(f"{module}.{below}") or ())}
    return {*names, *loaded, *_below(path)}


def _below(package: Path) -> set[str]:
    """Return the modules and packages in a package."""
    return {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}


@functools.cache
def _read(text: str) -> tuple[frozenset[str], dict[str, list[str]]]:
    """Return a module's top-level names, and the names that `lazy_loader` loads from its submodules."""
    names: set[str] = set()
    lazy: dict[str, list[str]] = {}
    for node in _top(ast.parse(text)):
        match node:
            case ast.FunctionDef(name) | ast.ClassDef(name) | ast.Name(name, ast.Store()):
                names.add(name)
            case ast.alias(name, other):
                names.add(other or name.partition(".")[0])
            case ast.keyword("submod_attrs", value):
                lazy = ast.literal_eval(value)
    return frozenset(names), lazy


def _top(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module outside functions, classes and `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        if not isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            yield from _top(child)
