"""The code is formatted and clean, shell scripts too; its types fit; imports are declared, and go down the layers."""

import os
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

from labkit.system import paths

BIN = Path(sysconfig.get_path("scripts"))
EVERY_GROUP = ",".join(tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["dependency-groups"])


def shell_scripts() -> list[str]:
    """Return the kit's files whose first line names bash or sh, or says so to shellcheck; git may not be there."""
    ignored = {line.strip("/") for line in (paths.ROOT / ".gitignore").read_text().splitlines()} | {".git"}
    found = []
    for folder, folders, names in os.walk(paths.ROOT):
        inside = Path(folder).relative_to(paths.ROOT)
        folders[:] = [name for name in folders if not {name, str(inside / name)} & ignored]
        found += [str(inside / name) for name in names if is_shell(Path(folder, name))]
    return found


def is_shell(file: Path) -> bool:
    if not file.is_file():  # a socket, or a link that leads nowhere
        return False
    with file.open("rb") as opened:
        first = opened.readline(80)
    return first.startswith((b"#!/bin/sh", b"#!/bin/bash", b"#!/usr/bin/env bash", b"# shellcheck shell="))


def clean(*command: str) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("lint-imports",),
        ("mypy",),
    ],
    ids=" ".join,
)
def test_clean(command):
    clean(*command)


def test_shell_scripts_are_clean():
    scripts = shell_scripts()
    assert {"lab", ".ci/run", "labkit/testbed/enter.sh", "env/slurm/train.sbatch"} <= set(scripts)
    clean("shellcheck", *scripts)


@pytest.mark.parametrize(
    ("folders", "groups", "ignored"),
    [
        ("labkit env/jupyter", "", "DEP002"),
        ("labkit_author", "author,execution", "DEP002"),
        ("labkit_classroom", "classroom,execution", "DEP002"),
        ("solutions", "", "DEP001,DEP002"),  # DEP001: a lab's scripts import those that its other cells write
        # All together: no package is declared for nobody (DEP002), or used without being declared (DEP003).
        ("labkit labkit_author labkit_classroom solutions tests env", EVERY_GROUP, "DEP001,DEP004"),
    ],
)
def test_imports_are_declared_in_their_packages_group(folders, groups, ignored):
    """DEP001: installed by nobody; DEP003: by another package alone; DEP004: in another group. deptry.com has all."""
    clean("deptry", *folders.split(), "--non-dev-dependency-groups", groups, "--ignore", ignored)
