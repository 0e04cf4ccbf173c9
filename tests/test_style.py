"""Static checks: formatting, linting, types, declared imports, import layers, and shell scripts."""

import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import classroom_group
import pytest

from labkit.system import paths

BIN = Path(sysconfig.get_path("scripts"))
EVERY_GROUP = ",".join(tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["dependency-groups"])
SCRIPTS = ("lab", ".ci/*", "env/**/*.sh", "env/**/*.sbatch", "labkit/**/*.sh")


def check(*command: str) -> None:
    completed = subprocess.run([BIN / command[0], *command[1:]], cwd=paths.ROOT, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "lint-imports"])
def test_code_is_clean(command):
    check(*command.split())


def test_types_are_correct():
    packages = ["labkit", "labkit_author", *(["labkit_classroom"] if classroom_group.INSTALLED else [])]
    check("mypy", *(f"--package={package}" for package in packages))


def test_shell_scripts_are_clean():
    matches = (path for pattern in SCRIPTS for path in paths.ROOT.glob(pattern))
    scripts = [str(path) for path in matches if not {".venv", "packages"} & set(path.parts)]  # installed files
    check("shellcheck", *scripts)


@pytest.mark.parametrize(
    ("folders", "groups", "ignored"),
    [
        ("labkit env/jupyter", "", "DEP002"),
        ("labkit_author", "author,execution", "DEP002"),
        pytest.param("labkit_classroom", "classroom,execution", "DEP002", marks=classroom_group.with_classroom),
        ("solutions", "", "DEP001,DEP002"),  # DEP001: a lab's scripts import modules that its other cells write
        # All together: no package is declared but unused (DEP002), or used but undeclared (DEP003).
        pytest.param(
            "labkit labkit_author labkit_classroom solutions tests env",
            EVERY_GROUP,
            "DEP001,DEP004",
            marks=classroom_group.with_classroom,
        ),
    ],
)
def test_imports_are_declared_in_their_packages_group(folders, groups, ignored):
    """DEP001: not installed; DEP003: only a dependency of another package; DEP004: in another group (deptry.com)."""
    check("deptry", *folders.split(), "--non-dev-dependency-groups", groups, "--ignore", ignored)


def test_text_has_an_encoding():
    """Ruff's PLW1514 sees only paths whose type it can infer; the locale must never affect what the kit reads."""
    implicit = re.compile(r"\.(read_text|write_text)\((?!.*encoding=)|\b(text|universal_newlines)=True")
    files = [
        file
        for package in ("labkit", "labkit_author", "labkit_classroom")
        for file in (paths.ROOT / package).rglob("*.py")
    ]
    lines = ((file.name, line) for file in files for line in file.read_text().splitlines())
    assert [line for line in lines if implicit.search(line[1])] == []
