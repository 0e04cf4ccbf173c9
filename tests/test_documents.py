"""What people are told to type leads to nobody else."""

import os
import re
from pathlib import Path

import pytest

from labkit.system import paths

# What people read: documents, labs, pages and messages.
READ = {".md", ".txt", ".html", ".ipynb", ".py", ".yaml", ".toml", ".def", ".sh", ""}
UNREAD = {".venv", "work"}  # what is installed, and what cells write
FOLDERS = (
    "docs",
    "env",
    "labkit",
    "labkit_author",
    "labkit_classroom",
    "notebooks",
    "solutions",
    ".github",
    ".devcontainer",
)


def texts() -> list[Path]:
    found = [*paths.ROOT.glob("*")]
    for start in FOLDERS:
        for folder, below, names in os.walk(paths.ROOT / start):
            below[:] = [name for name in below if name not in UNREAD]  # where it goes on
            found += [Path(folder, name) for name in names]
    return [path for path in found if path.is_file() and path.suffix in READ]


def test_whoever_forwards_a_port_names_the_address_that_jupyterlab_listens_on():
    """`localhost` is ::1 first on many machines, where another user can listen at the same port and gets the token."""
    forwarded = [
        (path.name, *found)
        for path in texts()
        for found in re.findall(r"-L[ =]?(\S*?):([^\s:]+):(\d+|\{\w+\})", path.read_text())
    ]
    assert {"README.md", "machines.md", "teaching.md", "students.py"} <= {name for name, *_ in forwarded}
    assert {host for *_, host, _ in forwarded} == {"127.0.0.1"}


@pytest.mark.parametrize("path", [path for path in texts() if path.suffix == ".md"], ids=lambda path: path.name)
def test_no_document_has_an_address_of_localhost_by_its_name(path):
    assert not re.search(r"https?://localhost\b", path.read_text())
