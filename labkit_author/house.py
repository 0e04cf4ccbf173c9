"""The catalogue of the house, `docs/house.md`: each package and module by the first line of its docstring."""

import ast
from collections.abc import Iterator
from pathlib import Path

from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author.notebooks import write_changed

PAGE = paths.ROOT / "docs" / "house.md"
PACKAGES = ("labkit", "labkit_author", "labkit_classroom")
HEAD = """\
# The house, module by module

Each line is the first of a module's docstring: `./lab build` writes this page. What may import what stands in
`pyproject.toml` (`tool.importlinter`), and `lint-imports` holds it.
"""


def page() -> str:
    """Return the catalogue.

    Raises
    ------
    LabError
        When a module has no docstring.
    """
    return "\n".join([HEAD, *(line for package in PACKAGES for line in _of_package(paths.ROOT / package, 2))])


def write() -> Path | None:
    """Write the catalogue; return its file when that changed it."""
    return write_changed(PAGE, page())


def _of_package(folder: Path, level: int) -> Iterator[str]:
    """Yield the lines about a package: its own, its modules, its packages."""
    name = ".".join(folder.relative_to(paths.ROOT).parts)
    yield f"{'#' * level} `{name}`\n\n{first_line(folder / '__init__.py')}\n"
    modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    if modules:
        yield "| module | |\n| --- | --- |"
        yield from (f"| `{path.stem}` | {first_line(path)} |" for path in modules)
        yield ""
    for below in sorted(folder.glob("*/__init__.py")):
        yield from _of_package(below.parent, level + 1)


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring, up to its first blank line, as one."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise LabError(f"{paths.shown(path)} has no docstring: what is it for?")
    return " ".join(text.partition("\n\n")[0].split())
