"""Generate the module index, `docs/house.md`, from the first lines of all module docstrings."""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author.notebooks import write_changed

PAGE = paths.ROOT / "docs" / "house.md"
PACKAGES = ("labkit", "labkit_author", "labkit_classroom")
HEAD = """\
# Module index

What each module is for, from the first line of its docstring; `./lab build` writes this page. The
allowed imports are defined in `pyproject.toml` (`tool.importlinter`) and checked by `lint-imports`.
"""


def page() -> str:
    """Return the index.

    Raises
    ------
    LabError
        If a module has no docstring.
    """
    return "\n".join([HEAD, *(line for package in PACKAGES for line in _of_package(paths.ROOT / package, 2))])


def write() -> Path | None:
    """Write the index; return its path if it changed."""
    return write_changed(PAGE, page())


def _of_package(folder: Path, level: int) -> Iterator[str]:
    """Yield the lines about a package, its modules and its subpackages."""
    name = ".".join(folder.relative_to(paths.ROOT).parts)
    text = textwrap.fill(first_line(folder / "__init__.py"), 100, break_on_hyphens=False)
    yield f"{'#' * level} `{name}`\n\n{text}\n"
    modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    if modules:
        yield "| module | |\n| --- | --- |"
        yield from (f"| `{path.stem}` | {first_line(path)} |" for path in modules)
        yield ""
    for below in sorted(folder.glob("*/__init__.py")):
        yield from _of_package(below.parent, level + 1)


def first_line(path: Path) -> str:
    """Return the first paragraph of a module's docstring, as one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise LabError(f"{paths.shown(path)} has no docstring: say what the module is for.")
    return " ".join(text.partition("\n\n")[0].split())
