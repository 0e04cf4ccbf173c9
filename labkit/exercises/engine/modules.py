"""Files of functions that students write and ranks import, such as `work/plan.py`: load them, and publish what passed.

`check(1, "work/plan.py")` writes `work/checked/plan.py`, which imports each function: the student's if it passes,
otherwise the kit's. Scripts in `work/` do `from checked.plan import shard`.
"""

import ast
import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labkit.exercises.engine.answers import failure
from labkit.exercises.engine.outcomes import NotYet
from labkit.system import files

CHECKED = "checked"  # the folder of the published modules, next to the student's


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let the block import a folder's modules by name, as a script in the folder does."""
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))


def load(folder: Path, name: str) -> Mapping[str, Any]:
    """Import a folder's module afresh, with the folder's other modules that it imports, and return its names.

    Modules of the same names that were imported from another folder are forgotten, too.

    Raises
    ------
    NotYet
        If it can't be imported.
    """
    inside = f"{folder.resolve()}/"
    for module_name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        namesake = module_name.partition(".")[0] in name.split(".")
        if namesake or any(f"{place}/".startswith(inside) for place in places):
            del sys.modules[module_name]
    importlib.invalidate_caches()
    with importable(folder):
        try:
            return vars(importlib.import_module(name))
        except BaseException as error:  # SystemExit, too
            raise NotYet(f"{failure(error)}. That is in {folder / name}.py or in what it imports.") from error


def publish(path: Path, passed: Mapping[str, bool], solution: str) -> Mapping[str, Any]:
    """Write the module that ranks import, and return its functions.

    Parameters
    ----------
    path : Path
        The student's file.
    passed : mapping of str to bool
        Whether the student's function passes, by name.
    solution : str
        The text of the kit's file.
    """
    folder = path.parent / CHECKED
    folder.mkdir(exist_ok=True)
    kits = f"solution_{path.stem}"
    lines = [
        f"from {path.stem} import {name}  # yours" if yours else f"from {CHECKED}.{kits} import {name}  # the kit's"
        for name, yours in passed.items()
    ]
    title = f"The functions of {path} that pass their check, and the kit's for the others: `check` writes this file."
    files.write(folder / f"{kits}.py", solution)
    files.write(folder / path.name, "\n".join([f'"""{title}"""', "", *lines, ""]))
    return load(path.parent, f"{CHECKED}.{path.stem}")


def function_text(module: str, name: str) -> str:
    """Return the part of a module's text that defines a function."""
    node = next(node for node in ast.parse(module).body if isinstance(node, ast.FunctionDef) and node.name == name)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(module.split("\n")[first - 1 : node.end_lineno])
