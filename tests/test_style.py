"""The code is formatted and clean, its types fit, imports are declared and go down the layers; shell scripts too."""

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


def clean(*command: str) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "lint-imports"])
def test_code_is_clean(command):
    clean(*command.split())


def test_types_fit():
    packages = ["labkit", "labkit_author", *(["labkit_classroom"] if classroom_group.INSTALLED else [])]
    clean("mypy", *(f"--package={package}" for package in packages))


def test_shell_scripts_are_clean():
    found = (path for pattern in SCRIPTS for path in paths.ROOT.glob(pattern))
    scripts = [str(path) for path in found if not {".venv", "packages"} & set(path.parts)]  # what is installed
    clean("shellcheck", *scripts)


@pytest.mark.parametrize(
    ("folders", "groups", "ignored"),
    [
        ("labkit env/jupyter", "", "DEP002"),
        ("labkit_author", "author,execution", "DEP002"),
        pytest.param("labkit_classroom", "classroom,execution", "DEP002", marks=classroom_group.with_classroom),
        ("solutions", "", "DEP001,DEP002"),  # DEP001: a lab's scripts import those that its other cells write
        # All together: no package is declared without being used (DEP002), or used without being declared (DEP003).
        pytest.param(
            "labkit labkit_author labkit_classroom solutions tests env",
            EVERY_GROUP,
            "DEP001,DEP004",
            marks=classroom_group.with_classroom,
        ),
    ],
)
def test_imports_are_declared_in_their_packages_group(folders, groups, ignored):
    """DEP001: installed by nobody; DEP003: by another package alone; DEP004: in another group. deptry.com has all."""
    clean("deptry", *folders.split(), "--non-dev-dependency-groups", groups, "--ignore", ignored)


def test_text_has_an_encoding():
    """Ruff's PLW1514 sees only paths whose type it can infer; a locale never decides what the kit reads and writes."""
    implicit = re.compile(r"\.(read_text|write_text)\((?!.*encoding=)|\b(text|universal_newlines)=True")
    files = [
        file
        for package in ("labkit", "labkit_author", "labkit_classroom")
        for file in (paths.ROOT / package).rglob("*.py")
    ]
    lines = ((file.name, line) for file in files for line in file.read_text().splitlines())
    assert [line for line in lines if implicit.search(line[1])] == []
