"""The planted mistakes of all exercises, `solutions/mistakes.json`, as the tests have them: for the instructor's guide.

An edit of a solution is a function; the text that it replaces, and the new text, are read off the test's source.
"""

import ast
import json
from collections.abc import Mapping
from pathlib import Path

from labkit.system import files, paths
from labkit_author import sources
from labkit_author.notebooks import has_text

FILE = paths.SOLUTIONS / "mistakes.json"
TESTS = paths.ROOT / "tests" / "exercises"


def text() -> str:
    """Return the file: by lab and exercise, each mistake's change and its student's message."""
    return json.dumps({source.stem[:2]: planted(source.stem[:2]) for source in sources.labs()}, indent=1) + "\n"


def write() -> Path | None:
    """Write the file; return it when that changed it."""
    new = text()
    if has_text(FILE, new):
        return None
    files.write(FILE, new)
    return FILE


def planted(number: str) -> dict[int, list[dict[str, str]]]:
    """Return the mistakes of a lab's exercises; none of a lab without tests."""
    path = TESTS / f"test_lab{number}.py"
    if not path.exists():
        return {}
    tree = ast.parse(path.read_text())
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: dict[int, list[dict[str, str]]] = {}
    for entry in _entries(tree):
        match entry:
            case ast.Tuple([ast.Constant(int(exercise)), edit, ast.Constant(str(message))]):
                before, after = _edit(edit, constants)
                found.setdefault(exercise, []).append({"before": before, "after": after, "message": message})
    return found


def _entries(tree: ast.Module) -> list[ast.expr]:
    """Return the elements of the lists that are called `mistakes`."""
    return [
        entry
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
        if any(isinstance(target, ast.Name) and target.id == "mistakes" for target in node.targets)
        for entry in node.value.elts
    ]


def _edit(node: ast.expr, constants: Mapping[str, ast.expr]) -> tuple[str, str]:
    """Return the text that an edit of a solution replaces, and the new one, as far as the tests have them as texts."""
    node = constants.get(node.id, node) if isinstance(node, ast.Name) else node
    texts: list[str] = []
    if isinstance(node, ast.Call):
        for argument in node.args:
            argument = constants.get(argument.id, argument) if isinstance(argument, ast.Name) else argument
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                texts.append(argument.value)
    *before, after = texts[:2] or [""]
    return "".join(before).strip("\n"), after.strip("\n")
