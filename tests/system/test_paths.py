"""Where a user's state is, in a checkout that is theirs and in one that is not."""

import os
from pathlib import Path

import pytest

from labkit.system import paths


@pytest.fixture
def someone_elses(monkeypatch):
    """Have nothing be writable, as root may write anything."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)


def test_the_checkouts_own_folder_is_used_where_it_can_be_written(tmp_path):
    assert paths.own(tmp_path / ".lab") == tmp_path / ".lab"
    (tmp_path / ".lab").mkdir()
    assert paths.own(tmp_path / ".lab") == tmp_path / ".lab"


@pytest.mark.parametrize(
    ("variable", "found"),
    [("", "home/.local/state/labkit"), ("here/", "home/.local/state/labkit"), ("/x/y", "/x/y/labkit")],
)
def test_elsewhere_it_is_among_the_users_state(someone_elses, monkeypatch, tmp_path, variable, found):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", variable)
    assert paths.own(Path("/opt/kit/.lab")) == tmp_path / found / "lab"
    assert paths.own(Path("/opt/kit/data")) == tmp_path / found / "data"


def test_a_user_without_a_home_is_told_by_what_cannot_be_written(someone_elses, monkeypatch):
    def no_home(path: Path) -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert paths.own(Path("/opt/kit/.lab")) == Path("/opt/kit/.lab")
