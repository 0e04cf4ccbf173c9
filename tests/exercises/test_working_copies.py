import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from labkit.exercises import catalogue, working_copies
from labkit.system import files, paths
from labkit.system.errors import LabError

LABS = ("42_made_up", "43_also")


@pytest.fixture
def kit(tmp_path, monkeypatch) -> Path:
    """Make a kit with two labs, and give the student's folder."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(working_copies, "GLOSSARY", tmp_path / "docs" / "glossary.md")
    monkeypatch.setattr(working_copies, "AGENTS", tmp_path / "env" / "AGENTS.md")
    (tmp_path / "notebooks").mkdir()
    write("x = 1", tmp_path)
    return tmp_path / "mine"


def write(code: str, folder: Path, labs=LABS) -> None:
    """Write a version of some labs, as `./lab build` does, whose first code cell is `code`."""
    path = folder / catalogue.FILE
    known = json.loads(path.read_text()) if path.exists() else {}
    for name in labs:
        title = nbformat.v4.new_markdown_cell("# Title\n\nA **[rank](../docs/glossary.md#rank)** is a process.", id="a")
        notebook = nbformat.v4.new_notebook(cells=[title, nbformat.v4.new_code_cell(code, id="b")])
        nbformat.write(notebook, folder / "notebooks" / f"{name}.ipynb")
        known[name] = {"title": name, "sections": [], "exercises": [], "questions": []}
    path.write_text(json.dumps(known))


def lab_of(name: str = LABS[0]) -> catalogue.LabInfo:
    return catalogue.find(name)


def test_every_lab_is_copied_once(kit):
    assert working_copies.update(kit) == working_copies.Update((), ())
    for name in LABS:
        copy = working_copies.copy_path(lab_of(name), kit)
        assert copy.read_text() == working_copies.fresh(lab_of(name))
        copy.write_text("my work")
    assert working_copies.update(kit) == working_copies.Update((), ())
    assert all(working_copies.copy_path(lab_of(name), kit).read_text() == "my work" for name in LABS)


def test_a_new_version_refreshes_what_was_not_edited_and_keeps_what_was(kit):
    working_copies.update(kit)
    edited, untouched = (working_copies.copy_path(lab_of(name), kit) for name in LABS)
    edited.write_text("my work")
    write("x = 2", kit.parent)
    assert working_copies.update(kit) == working_copies.Update(refreshed=("43",), outdated=("42",))
    assert "x = 2" in untouched.read_text()
    assert edited.read_text() == "my work"
    assert working_copies.update(kit) == working_copies.Update(refreshed=(), outdated=("42",))  # until it is reset
    kept = working_copies.reset(lab_of(), kit)
    assert kept.read_text() == "my work"
    assert "x = 2" in edited.read_text()
    assert working_copies.update(kit) == working_copies.Update((), ())


def test_a_copy_that_was_only_opened_counts_as_not_edited(kit):
    working_copies.update(kit)
    opened, ran = (working_copies.copy_path(lab_of(name), kit) for name in LABS)
    notebook = json.loads(opened.read_text())
    notebook["metadata"]["language_info"]["version"] = "3.11.9"  # as JupyterLab saves it
    opened.write_text(json.dumps(notebook))
    notebook["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
    ran.write_text(json.dumps(notebook))
    before = opened.read_bytes()
    assert working_copies.update(kit) == working_copies.Update((), ())
    assert opened.read_bytes() == before, "it may be open in JupyterLab"
    assert working_copies.reset(lab_of(), kit) is None
    write("x = 2", kit.parent)
    assert working_copies.update(kit) == working_copies.Update(refreshed=("42",), outdated=("43",))


def test_a_copy_that_was_deleted_is_made_anew(kit):
    working_copies.update(kit)
    copy = working_copies.copy_path(lab_of(), kit)
    copy.unlink()
    assert working_copies.update(kit) == working_copies.Update((), ())
    assert copy.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", None])
def test_without_its_record_a_copy_counts_as_edited(kit, damage):
    working_copies.update(kit)
    record = kit / working_copies.RECORD
    record.unlink() if damage is None else record.write_text(damage)
    before = working_copies.copy_path(lab_of(), kit).read_text()
    write("x = 2", kit.parent, LABS[:1])
    assert working_copies.update(kit) == working_copies.Update(refreshed=(), outdated=("42",))
    assert working_copies.copy_path(lab_of(), kit).read_text() == before


def test_links_to_the_glossary_lead_to_the_copy_beside(kit):
    working_copies.GLOSSARY.parent.mkdir()
    working_copies.GLOSSARY.write_text("# Glossary\n\n## rank\n")
    working_copies.update(kit)
    assert "(glossary.md#rank)" in working_copies.copy_path(lab_of(), kit).read_text()
    assert (kit / "glossary.md").read_text() == working_copies.GLOSSARY.read_text()


def test_only_the_labs_that_are_taught_are_copied_and_what_is_there_is_kept_up_to_date(kit):
    working_copies.update(kit, ["42"])
    assert [copy.name for copy in kit.glob("*.ipynb")] == ["42_made_up.ipynb"]
    working_copies.update(kit)
    write("x = 2", kit.parent, LABS[1:])
    assert working_copies.update(kit, ["42"]) == working_copies.Update(refreshed=("43",), outdated=())
    assert len(list(kit.glob("*.ipynb"))) == 2


class TestAgents:
    """The rules for coding assistants, which the kit may have or not."""

    @pytest.fixture
    def rules(self, kit):
        """Where the kit of these tests has them."""
        working_copies.AGENTS.parent.mkdir()
        working_copies.AGENTS.write_text("Explain, don't solve.")
        return working_copies.AGENTS

    def test_a_kit_that_has_none_copies_none(self, kit):
        working_copies.update(kit)
        assert not (kit / "AGENTS.md").exists()

    def test_they_are_copied_and_a_new_version_replaces_what_was_not_edited(self, kit, rules):
        working_copies.update(kit)
        assert (kit / "AGENTS.md").read_text() == "Explain, don't solve."
        rules.write_text("Ask first.")
        working_copies.update(kit)
        assert (kit / "AGENTS.md").read_text() == "Ask first."

    @pytest.mark.parametrize("edited", [True, False])
    def test_what_a_student_has_written_is_never_overwritten(self, kit, rules, edited):
        if edited:
            working_copies.update(kit)
        kit.mkdir(exist_ok=True)
        (kit / "AGENTS.md").write_text("Mine.")
        rules.write_text("Ask first.")
        working_copies.update(kit)
        assert (kit / "AGENTS.md").read_text() == "Mine."

    def test_an_instructor_switches_them_off_by_taking_them_away(self, kit, rules):
        working_copies.update(kit)
        (kit / "AGENTS.md").unlink()
        rules.unlink()
        working_copies.update(kit)
        assert not (kit / "AGENTS.md").exists()


def test_reset_keeps_what_the_student_wrote_numbered(kit):
    target = working_copies.copy_path(lab_of(), kit)
    assert working_copies.reset(lab_of(), kit) is None
    for number in (1, 2):
        target.write_text(f"my work, version {number}")
        kept = working_copies.reset(lab_of(), kit)
        assert kept.name == f"42_made_up.backup-{number}.ipynb"
        assert kept.read_text() == f"my work, version {number}"
    assert working_copies.reset(lab_of(), kit) is None
    assert target.read_text() == working_copies.fresh(lab_of())


@pytest.fixture
def full_disk(monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        yield


def test_the_kits_own_folders_are_refused(kit):
    before = lab_of().notebook.read_bytes()
    for folder in (paths.NOTEBOOKS, paths.SOLUTIONS):
        with pytest.raises(LabError, match="which git tracks: name a folder of your own with --folder"):
            working_copies.update(folder)
        with pytest.raises(LabError, match="which git tracks"):
            working_copies.reset(lab_of(), folder)
    assert lab_of().notebook.read_bytes() == before


def test_on_a_full_disk_no_half_copy_is_left(kit, full_disk):
    with pytest.raises(files.NotWritten, match="No space left on device"):
        working_copies.update(kit)
    assert list(kit.iterdir()) == []


def test_reset_on_a_full_disk_leaves_what_was_there(kit, monkeypatch):
    working_copies.update(kit)
    target = working_copies.copy_path(lab_of(), kit)
    target.write_bytes(b"my work \xff, not even UTF-8")
    before = sorted(kit.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(LabError, match=r"No space left on device\. Free some space"):
            working_copies.reset(lab_of(), kit)
    assert target.read_bytes() == b"my work \xff, not even UTF-8"
    assert sorted(kit.iterdir()) == before
    assert working_copies.reset(lab_of(), kit).read_bytes() == b"my work \xff, not even UTF-8"


START = """\
import sys
from unittest.mock import Mock
from jupyterlab.labapp import LabApp
LabApp.initialize_server = Mock()
sys.argv = ["lab", "start", "01"]
from labkit.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("git"), reason="THAT AN UPDATE PULLS CLEANLY NOT TESTED HERE: there is no git")
def test_an_update_pulls_cleanly_over_a_used_checkout(tmp_path):
    """A clone is used, two of its labs change upstream, and it pulls: one copy was edited, one was not."""
    names = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "somebody")
    mails = dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "somebody@example.org")
    own = {**os.environ, **names, **mails, "GIT_CONFIG_GLOBAL": os.devnull}
    own.pop("LAB_FOLDER", None)
    upstream, clone = tmp_path / "upstream", tmp_path / "clone"

    def git(*arguments, cwd):
        ended = subprocess.run(["git", *arguments], cwd=cwd, env=own, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def start():
        command = [sys.executable, "-c", START]
        ended = subprocess.run(
            command, cwd=clone, env={**own, "PYTHONPATH": str(clone)}, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    stems = ("00_welcome", "01_tensorflow_graphs")
    shutil.copytree(paths.ROOT / "labkit", upstream / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("notebooks", "solutions"):
        (upstream / folder).mkdir()
    for stem in stems:
        shutil.copy(paths.ROOT / f"notebooks/{stem}.ipynb", upstream / "notebooks")
    known = json.loads((paths.SOLUTIONS / catalogue.FILE).read_text())
    (upstream / "solutions" / catalogue.FILE).write_text(json.dumps({stem: known[stem] for stem in stems}))
    shutil.copy(paths.ROOT / ".gitignore", upstream)
    git("init", "--quiet", cwd=upstream)
    git("add", ".", cwd=upstream)
    git("commit", "--quiet", "-m", "first", cwd=upstream)
    git("clone", "--quiet", upstream, clone, cwd=tmp_path)

    assert start() == "Your labs are in my-labs\n"
    edited, untouched = (clone / f"my-labs/{stem}.ipynb" for stem in stems)
    mine = edited.read_text().replace("## ", "## My notes on ")
    edited.write_text(mine)
    (clone / "my-labs/work").mkdir()
    (clone / "my-labs/work/results-00.json").write_text("{}")
    assert git("status", "--porcelain", cwd=clone) == ""

    for stem in stems:
        path = upstream / f"notebooks/{stem}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        notebook.cells.append(nbformat.v4.new_markdown_cell("A new last paragraph."))
        nbformat.write(notebook, path)
    git("commit", "--quiet", "-am", "second", cwd=upstream)
    git("pull", "--quiet", "--ff-only", cwd=clone)

    said = start()
    assert "you had not edited yours: 01\n" in said
    assert "Lab 00 has a new version, and yours is kept. To get the new one beside yours: ./lab reset 00\n" in said
    assert edited.read_text() == mine
    assert "A new last paragraph." in untouched.read_text()
    assert (clone / "my-labs/work/results-00.json").exists()
    assert git("status", "--porcelain", cwd=clone) == ""


class TestFrontDoor:
    """`./lab` works in a student's folder as in the kit's, on that folder."""

    @pytest.mark.slow
    def test_it_runs_there_and_works_on_that_folder(self, tmp_path):
        folder = tmp_path / "my own labs"
        working_copies.update(folder)
        environ = {key: value for key, value in os.environ.items() if key != "LAB_FOLDER"}
        done = subprocess.run(["./lab", "report"], cwd=folder, env=environ, capture_output=True, text=True)
        assert done.returncode == 2
        assert f"no lab has left results in {folder}/work" in done.stderr

    @pytest.mark.slow
    def test_a_file_of_that_name_is_left_alone(self, tmp_path):
        (tmp_path / "lab").write_text("mine")
        working_copies.update(tmp_path)
        assert (tmp_path / "lab").read_text() == "mine"

    def test_a_link_to_a_kit_that_was_moved_is_mended(self, tmp_path):
        (tmp_path / "lab").symlink_to(tmp_path / "moved" / "lab")
        working_copies.update(tmp_path)
        assert (tmp_path / "lab").samefile(paths.ROOT / "lab")
