"""Root is told whether other accounts can use an environment: here, made-up ones beside this one."""

import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from labkit.system import account_access

if os.geteuid() != 0:
    pytest.skip("WHETHER OTHER ACCOUNTS CAN USE PYTHON WAS NOT TESTED HERE: it takes root", allow_module_level=True)


@pytest.fixture
def place():
    """Make a folder that all can enter: pytest's own are below closed ones."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def python(place, monkeypatch):
    """Have a program in Python's place; give what writes it, and returns its folder."""
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


def test_one_that_runs_from_the_same_place_will_do(python, place):
    python(f"echo {place}")
    assert account_access.problem() == ""


def test_it_is_tried_without_any_of_roots_rights(python, place):
    python(f"grep -q 'CapEff:.0*$' /proc/self/status && [ $(id -u) = 65534 ] && echo {place}")
    assert account_access.problem() == ""


def test_a_closed_folder_is_named(python, place):
    python(f"echo {place}").chmod(0o700)
    assert account_access.problem() == f"{place}/closed/python is below {place}/closed, whose mode is 0700"
    (place / "closed").chmod(0o755)
    (place / "closed" / "python").chmod(0o700)
    assert "Permission denied" in account_access.problem()


def test_a_python_that_goes_on_with_anothers_files_will_not_do(python):
    python("echo /usr")
    assert account_access.problem().endswith("closed/python can't be used")


def test_what_python_says_is_told(python):
    python("echo 'ModuleNotFoundError: labkit' >&2; exit 1")
    assert account_access.problem() == "ModuleNotFoundError: labkit"


def test_this_environment_is_judged_by_the_folders_above_it():
    above = [*Path(os.path.realpath(sys.executable)).parents, *account_access.ROOT.parents]
    if account_access.problem() == "":
        assert all(folder.stat().st_mode & stat.S_IXOTH for folder in above)
