"""Compile to bytecode the modules that the kit imports, directly or indirectly, in this Python's environment.

Otherwise they are compiled at their first import, by all ranks at once, or never if the environment is read-only. The
whole environment would be more than twice as much: libraries' tests, and parts that nothing here needs. Existing
bytecode is kept.
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
# Modules that are started by name, or named in a program's configuration.
ENTRY_POINTS = (
    *("ipykernel_launcher", "ipykernel.kernelapp", "jupyterlab.labapp", "jupyterlab.labhubapp", "jupyterhub.app"),
    *("jupyter_lsp", "jupyter_server_terminals", "notebook_shim", "jupyter_client.provisioning.local_provisioner"),
    *("pytest", "pytest_timeout", "xdist.plugin", "xdist.remote", "nbval.plugin"),
)
IMPORT_NAME, LOAD_CONST = dis.opmap["IMPORT_NAME"], dis.opmap["LOAD_CONST"]


def kit_imports() -> Iterator[str]:
    """Yield the names of modules that the kit imports or starts."""
    yield from ENTRY_POINTS
    for file in (file for pattern in SOURCES for file in sorted(KIT.glob(pattern))):
        yield from imports(compile(file.read_bytes(), file, "exec"), "")


def imports(code: CodeType, package: str) -> Iterator[str]:
    """Yield the modules that code imports, also inside functions, and the imported names that may be modules."""
    if IMPORT_NAME in code.co_code[::2]:
        constants: list = []  # before IMPORT_NAME, the last two are the import's level and its `from` list
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
    """Compile modules in `site` and all their imports; return the names of those that exist."""
    pending, visited, compiled = list(names), set(), set()
    while pending:
        name = pending.pop()
        if name in visited:
            continue
        visited.add(name)
        path = site.joinpath(*name.split("."))
        is_package = (path / "__init__.py").is_file()
        file = path / "__init__.py" if is_package else path.with_name(f"{path.name}.py")
        parent = name.rpartition(".")[0]
        pending += [parent] if parent else []
        with contextlib.suppress(OSError, SyntaxError, ValueError):  # not a module, or for another Python
            code = SourceFileLoader(name, str(file)).get_code(name)  # writes the bytecode
            compiled.add(name)
            pending += imports(code, name if is_package else parent)
    return compiled


if __name__ == "__main__":
    sys.dont_write_bytecode = False  # overrides PYTHONDONTWRITEBYTECODE
    compile_imported(kit_imports(), Path(sysconfig.get_path("purelib")))
