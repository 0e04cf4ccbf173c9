"""Root can check whether other accounts can use an environment: tested with synthetic environments."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from labkit.system import account_access

if os.geteuid() != 0:
    pytest.skip("WHETHER OTHER ACCOUNTS CAN USE PYTHON WAS NOT TESTED HERE: it takes root", allow_module_level=True)


@pytest.fixture
def place():
    """Make a folder that everyone can enter: pytest's folders are below closed ones."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def python(place, monkeypatch):
    """Replace Python with a program; return a function that writes the program and returns its folder."""
    program = place / "closed" / "python"
    program.parent.mkdir()
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "base_prefix", str(place))
    monkeypatch.setattr(account_access, "ROOT", place)

    def write(script: str) -> Path:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program.parent

    return write


def test_python_with_the_same_prefix_is_accepted_without_roots_capabilities(python, place):
    python(f"grep -q 'CapEff:.0*$' /proc/self/status && [ $(id -u) = 65534 ] && echo {place}")
    assert account_access.problem() == ""


def test_a_closed_folder_is_named(python, place):
    python(f"echo {place}").chmod(0o700)
    assert account_access.problem() == f"{place}/closed/python is below {place}/closed, whose mode is 0700"
    (place / "closed").chmod(0o755)
    (place / "closed" / "python").chmod(0o700)
    assert "Permission denied" in account_access.problem()


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo /usr", "closed/python can't be used"),  # it falls back to another Python's files
        ("echo 'ModuleNotFoundError: labkit' >&2; exit 1", "ModuleNotFoundError: labkit"),
    ],
)
def test_a_python_that_fails_or_is_another_is_reported(python, script, problem):
    python(script)
    assert account_access.problem().endswith(problem)
