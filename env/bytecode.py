"""Compile to bytecode what the kit imports of the environment whose Python runs this, and all that these import.

Without it, the first import does so, in each rank at once, or never where the environment is read-only. The whole of an
environment is more than twice as much: tests of libraries, and parts that nothing here needs. What is bytecode already
is left as it is.
"""

import contextlib
import dis
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType

KIT = Path(__file__).resolve().parents[1]
SOURCES = ("labkit*/**/*.py", "solutions/*.py", "tests/**/*.py")
# What is started by its name, or named in somebody's configuration.
STARTED = (
    *("ipykernel_launcher", "ipykernel.kernelapp", "jupyterlab.labapp", "jupyterlab.labhubapp", "jupyterhub.app"),
    *("jupyter_lsp", "jupyter_server_terminals", "notebook_shim", "jupyter_client.provisioning.local_provisioner"),
    *("pytest", "pytest_timeout", "xdist.plugin", "xdist.remote", "nbval.plugin"),
)
IMPORT_NAME, LOAD_CONST = dis.opmap["IMPORT_NAME"], dis.opmap["LOAD_CONST"]


def kit_imports() -> Iterator[str]:
    """Yield the names of modules that the kit's files import, and that it starts."""
    yield from STARTED
    for file in (file for pattern in SOURCES for file in sorted(KIT.glob(pattern))):
        yield from imports(compile(file.read_bytes(), file, "exec"), "")


def imports(code: CodeType, package: str) -> Iterator[str]:
    """Yield the names of modules that a module's code imports, also inside functions; and names that may be modules."""
    if IMPORT_NAME in code.co_code[::2]:
        constants: list = []  # the last two are the import's level and what it takes `from` the module
        for instruction in dis.get_instructions(code):
            if instruction.opcode == IMPORT_NAME:
                level, parts = constants[-2:]
                with contextlib.suppress(ImportError):  # beyond the package
                    name = resolve_name("." * level + instruction.argval, package)
                    yield name
                    yield from (f"{name}.{part}" for part in parts or ())
            elif instruction.opcode == LOAD_CONST:
                constants.append(instruction.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from imports(inner, package)


def compile_imported(names: Iterable[str], site: Path) -> set[str]:
    """Compile modules in `site` and all that they import; return the names of those that are there."""
    todo, seen, found = list(names), set(), set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        place = site.joinpath(*name.split("."))
        is_package = (place / "__init__.py").is_file()
        file = place / "__init__.py" if is_package else place.with_name(f"{place.name}.py")
        parent = name.rpartition(".")[0]
        todo += [parent] if parent else []
        with contextlib.suppress(OSError, SyntaxError, ValueError):  # none, or for another Python
            code = SourceFileLoader(name, str(file)).get_code(name)  # keeps the bytecode
            found.add(name)
            todo += imports(code, name if is_package else parent)
    return found


if __name__ == "__main__":
    sys.dont_write_bytecode = False  # whatever the environment says: it is asked for
    compile_imported(kit_imports(), Path(sysconfig.get_path("purelib")))
