"""The files that `lab test` regards as changed, in real repositories."""

import os
import shutil
import subprocess

import pytest

from labkit_author import changed

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
SOURCE, NOTEBOOK = "solutions/07_horovod_mnist.py", "solutions/07_horovod_mnist.ipynb"


@pytest.fixture
def git(monkeypatch):
    """Return a function that runs git without the user's settings."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@example.org")

    def run(folder, *arguments):
        subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)

    return run


@pytest.fixture
def commit(git):
    """Return a function that writes files and commits them."""

    def write(folder, *names):
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{path.read_text()}more\n" if path.exists() else "")
        git(folder, "add", ".")
        git(folder, "commit", "-m", "Add files")

    return write


@pytest.fixture
def kit(tmp_path, git, commit):
    """A repository with two commits on its main branch."""
    root = tmp_path / "kit with a space"
    root.mkdir()
    git(root, "init", "-b", "main")
    commit(root, "lab", SOURCE)
    commit(root, "docs/é.md")
    return root


def test_on_the_main_branch_it_is_the_last_commit(kit, git, commit, tmp_path):
    assert changed.files(kit) == {"docs/é.md"}
    commit(kit, SOURCE)
    assert changed.files(kit) == {SOURCE}
    git(tmp_path, "clone", kit, "fresh")
    assert changed.files(tmp_path / "fresh") == {SOURCE}


def test_on_another_branch_it_is_all_since_the_main_branch(kit, git, commit, tmp_path):
    git(kit, "switch", "-c", "change")
    assert changed.files(kit) == set()
    commit(kit, SOURCE)
    commit(kit, NOTEBOOK)
    git(kit, "switch", "main")
    commit(kit, "labkit/new.py")
    git(kit, "switch", "change")
    assert changed.files(kit) == {SOURCE, NOTEBOOK}
    git(tmp_path, "clone", "--branch=change", kit, "fork")  # has no main branch of its own
    assert changed.files(tmp_path / "fork") == {SOURCE, NOTEBOOK}


def test_work_without_a_commit_counts_but_ignored_files_do_not(kit, git):
    git(kit, "switch", "-c", "change")
    (kit / "lab").write_text("changed")
    (kit / ".git" / "info" / "exclude").write_text("ignored\n")
    for name in ("new file", "ignored"):
        (kit / name).write_text("")
    assert changed.files(kit) == {"lab", "new file"}


@pytest.mark.parametrize(
    "state", ["no repository", "part of another", "first commit", "shallow", "detached", "no main"]
)
def test_git_may_be_unable_to_tell(kit, git, commit, tmp_path, state):
    root = kit
    if state == "no repository":
        shutil.rmtree(kit / ".git")
    elif state == "part of another":
        root = kit / "docs"
    elif state == "first commit":
        shutil.rmtree(kit / ".git")
        git(kit, "init", "-b", "main")
        commit(kit, "lab")
    elif state == "shallow":
        root = tmp_path / "shallow"
        git(tmp_path, "clone", "--depth=1", kit.as_uri(), root)
    elif state == "detached":
        git(kit, "switch", "--detach")
    elif state == "no main":
        git(kit, "branch", "-m", "trunk")
        git(kit, "switch", "-c", "change")
    assert changed.files(root) is None
    assert changed.has_lab("07", root)


@pytest.mark.parametrize(
    ("path", "labs"),
    [
        (SOURCE, ["07"]),
        (NOTEBOOK, ["07"]),
        ("labkit/exercises/labs/lab11.py", ["11"]),
        ("tests/exercises/test_lab07.py", ["07"]),
        ("labkit/exercises/engine/values.py", []),
        ("notebooks/07_horovod_mnist.ipynb", []),
    ],
)
def test_labs_change_with_their_files(monkeypatch, path, labs):
    monkeypatch.setattr(changed, "files", lambda root: {path})
    assert [lab for lab in ("07", "11") if changed.has_lab(lab)] == labs
