"""Static checks: formatting, linting, types, import layers, declared imports, shell scripts, encodings."""

import re
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from labkit.system import paths
from labkit_author.imports import PACKAGES

SCRIPTS = ("lab", ".ci/*", "env/**/*.sh", "env/**/*.sbatch", "labkit/**/*.sh")
INSTALLED = {".venv", "packages"}  # folders of scripts that aren't the kit's
# deptry, package by package, as each has its own dependency groups. DEP001: not installed; DEP002: declared, not
# imported; DEP003: only a dependency of another package; DEP004: in another group (deptry.com).
DECLARED = (
    ("labkit env/jupyter", "", "DEP002"),
    ("labkit_author", "author,execution", "DEP002"),
    ("labkit_classroom", "classroom,execution", "DEP002"),
    ("solutions", "", "DEP001,DEP002"),  # DEP001: a lab's scripts import modules that its other cells write
    ("labkit labkit_author labkit_classroom solutions tests env", None, "DEP001,DEP004"),  # None: all groups
)
# Ruff's PLW1514 sees only paths whose type it can infer; the locale must never affect what the kit reads.
NO_ENCODING = re.compile(r"\.(read_text|write_text)\((?!.*encoding=)|\b(text|universal_newlines)=True")


def problems() -> list[str]:
    """Return the report of each check that failed, with its command."""
    with ThreadPoolExecutor() as pool:
        reports = [*pool.map(_run, commands()), "\n".join(_without_encoding())]
    return [report for report in reports if report]


def commands() -> Iterator[list[str]]:
    """Yield the commands of the checks, relative to the kit."""
    yield ["mypy"]  # the slowest first
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for folders, groups, ignored in DECLARED:
        groups = ",".join(project["dependency-groups"]) if groups is None else groups
        yield ["deptry", *folders.split(), "--non-dev-dependency-groups", groups, "--ignore", ignored]
    yield ["lint-imports"]
    yield ["ruff", "check", "."]
    yield ["ruff", "format", "--check", "."]
    scripts = (path for pattern in SCRIPTS for path in paths.ROOT.glob(pattern) if not INSTALLED & set(path.parts))
    yield ["shellcheck", *map(paths.shown, scripts)]


def _run(command: list[str]) -> str:
    program = Path(sysconfig.get_path("scripts"), command[0])
    done = subprocess.run([program, *command[1:]], cwd=paths.ROOT, capture_output=True, encoding="utf-8")
    return "" if done.returncode == 0 else f"{' '.join(command)}\n{done.stdout}{done.stderr}".rstrip()


def _without_encoding() -> Iterator[str]:
    for package in PACKAGES:
        for file in sorted((paths.ROOT / package).rglob("*.py")):
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
                if NO_ENCODING.search(line):
                    yield f"{paths.shown(file)}:{number}: names no encoding: {line.strip()}"
