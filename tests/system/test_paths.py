"""The folder of a user's state, in their own checkout and in someone else's."""

import os
from pathlib import Path

import pytest

from labkit.system import paths


@pytest.fixture
def someone_elses(monkeypatch):
    """Make nothing writable, even for root."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)


def test_a_writable_folder_of_the_checkout_is_used(tmp_path):
    assert paths.writable(tmp_path / ".lab") == tmp_path / ".lab"
    (tmp_path / ".lab").mkdir()
    assert paths.writable(tmp_path / ".lab") == tmp_path / ".lab"


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("", "home/.local/state/labkit"), ("here/", "home/.local/state/labkit"), ("/x/y", "/x/y/labkit")],
)
def test_otherwise_a_folder_in_the_users_state_is_used(someone_elses, monkeypatch, tmp_path, variable, expected):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", variable)
    assert paths.writable(Path("/opt/kit/.lab")) == tmp_path / expected / "lab"
    assert paths.writable(Path("/opt/kit/data")) == tmp_path / expected / "data"


def test_without_a_home_directory_the_checkouts_folder_is_used(someone_elses, monkeypatch):
    def no_home(path: Path) -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert paths.writable(Path("/opt/kit/.lab")) == Path("/opt/kit/.lab")
