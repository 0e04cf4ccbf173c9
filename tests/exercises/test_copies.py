import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.exercises import copies, notebooks
from labkit.system import files, paths
from labkit.system.errors import LabError
from labkit_author import build

LABS = ("42_made_up.py", "43_also.py")


@pytest.fixture
def kit(write_source, tmp_path, monkeypatch) -> Path:
    """Make a kit with two labs, and give the student's folder."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(copies, "GLOSSARY", tmp_path / "docs" / "glossary.md")
    monkeypatch.setattr(copies, "AGENTS", tmp_path / "env" / "AGENTS.md")
    (tmp_path / "notebooks").mkdir()
    for name in LABS:
        build.build(write_source("[markdown]\n# # Title", "x = 1", name=name))
    return tmp_path / "mine"


def source_of(kit: Path, name: str = LABS[0]) -> Path:
    return kit.parent / name


def test_every_lab_is_copied_once(kit):
    assert copies.update(kit) == copies.Update((), ())
    for name in LABS:
        copy = copies.copy_path(source_of(kit, name), kit)
        assert copy.read_text() == notebooks.dumps(notebooks.student(source_of(kit, name)))
        copy.write_text("my work")
    assert copies.update(kit) == copies.Update((), ())
    assert all(copies.copy_path(source_of(kit, name), kit).read_text() == "my work" for name in LABS)


def test_a_new_version_refreshes_what_was_not_edited_and_keeps_what_was(kit, write_source):
    copies.update(kit)
    edited, untouched = (copies.copy_path(source_of(kit, name), kit) for name in LABS)
    edited.write_text("my work")
    for name in LABS:
        write_source("[markdown]\n# # Title", "x = 2", name=name)
    assert copies.update(kit) == copies.Update(refreshed=("43",), outdated=("42",))
    assert "x = 2" in untouched.read_text()
    assert edited.read_text() == "my work"
    assert copies.update(kit) == copies.Update(refreshed=(), outdated=("42",))  # until it is reset
    kept = copies.reset(source_of(kit), kit)
    assert kept.read_text() == "my work"
    assert "x = 2" in edited.read_text()
    assert copies.update(kit) == copies.Update((), ())


def test_a_copy_that_was_only_opened_counts_as_not_edited(kit, write_source):
    copies.update(kit)
    opened, ran = (copies.copy_path(source_of(kit, name), kit) for name in LABS)
    notebook = json.loads(opened.read_text())
    notebook["metadata"]["language_info"]["version"] = "3.11.9"  # as JupyterLab saves it
    opened.write_text(json.dumps(notebook))
    notebook["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
    ran.write_text(json.dumps(notebook))
    before = opened.read_bytes()
    assert copies.update(kit) == copies.Update((), ())
    assert opened.read_bytes() == before, "it may be open in JupyterLab"
    assert copies.reset(source_of(kit), kit) is None
    for name in LABS:
        write_source("[markdown]\n# # Title", "x = 2", name=name)
    assert copies.update(kit) == copies.Update(refreshed=("42",), outdated=("43",))


def test_a_copy_that_was_deleted_is_made_anew(kit):
    copies.update(kit)
    copy = copies.copy_path(source_of(kit), kit)
    copy.unlink()
    assert copies.update(kit) == copies.Update((), ())
    assert copy.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", None])
def test_without_its_record_a_copy_counts_as_edited(kit, write_source, damage):
    copies.update(kit)
    record = kit / copies.RECORD
    record.unlink() if damage is None else record.write_text(damage)
    before = copies.copy_path(source_of(kit), kit).read_text()
    write_source("[markdown]\n# # Title", "x = 2")
    assert copies.update(kit) == copies.Update(refreshed=(), outdated=("42",))
    assert copies.copy_path(source_of(kit), kit).read_text() == before


def test_links_to_the_glossary_lead_to_the_copy_beside(kit, write_source):
    write_source("[markdown]\n# # Title\n#\n# A **[rank](../docs/glossary.md#rank)** is a process.")
    copies.GLOSSARY.parent.mkdir()
    copies.GLOSSARY.write_text("# Glossary\n\n## rank\n")
    copies.update(kit)
    assert "(glossary.md#rank)" in copies.copy_path(source_of(kit), kit).read_text()
    assert (kit / "glossary.md").read_text() == copies.GLOSSARY.read_text()


def test_only_the_labs_that_are_taught_are_copied_and_what_is_there_is_kept_up_to_date(kit, write_source):
    copies.update(kit, ["42"])
    assert [copy.name for copy in kit.glob("*.ipynb")] == ["42_made_up.ipynb"]
    copies.update(kit)
    write_source("[markdown]\n# # Title", "x = 2", name=LABS[1])
    assert copies.update(kit, ["42"]) == copies.Update(refreshed=("43",), outdated=())
    assert len(list(kit.glob("*.ipynb"))) == 2


class TestAgents:
    """The rules for coding assistants, which the kit may have or not."""

    @pytest.fixture
    def rules(self, kit):
        """Where the kit of these tests has them."""
        copies.AGENTS.parent.mkdir()
        copies.AGENTS.write_text("Explain, don't solve.")
        return copies.AGENTS

    def test_a_kit_that_has_none_copies_none(self, kit):
        copies.update(kit)
        assert not (kit / "AGENTS.md").exists()

    def test_they_are_copied_and_a_new_version_replaces_what_was_not_edited(self, kit, rules):
        copies.update(kit)
        assert (kit / "AGENTS.md").read_text() == "Explain, don't solve."
        rules.write_text("Ask first.")
        copies.update(kit)
        assert (kit / "AGENTS.md").read_text() == "Ask first."

    @pytest.mark.parametrize("edited", [True, False])
    def test_what_a_student_has_written_is_never_overwritten(self, kit, rules, edited):
        if edited:
            copies.update(kit)
        kit.mkdir(exist_ok=True)
        (kit / "AGENTS.md").write_text("Mine.")
        rules.write_text("Ask first.")
        copies.update(kit)
        assert (kit / "AGENTS.md").read_text() == "Mine."

    def test_an_instructor_switches_them_off_by_taking_them_away(self, kit, rules):
        copies.update(kit)
        (kit / "AGENTS.md").unlink()
        rules.unlink()
        copies.update(kit)
        assert not (kit / "AGENTS.md").exists()


def test_reset_keeps_what_the_student_wrote_numbered(kit):
    target = copies.copy_path(source_of(kit), kit)
    assert copies.reset(source_of(kit), kit) is None
    for number in (1, 2):
        target.write_text(f"my work, version {number}")
        kept = copies.reset(source_of(kit), kit)
        assert kept.name == f"42_made_up.backup-{number}.ipynb"
        assert kept.read_text() == f"my work, version {number}"
    assert copies.reset(source_of(kit), kit) is None
    assert target.read_text() == copies.fresh(source_of(kit))


@pytest.fixture
def full_disk(monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        yield


def test_the_kits_own_folders_are_refused(kit):
    before = notebooks.student_path(source_of(kit)).read_bytes()
    for folder in (paths.NOTEBOOKS, paths.SOLUTIONS):
        with pytest.raises(LabError, match="which git tracks: name a folder of your own with --folder"):
            copies.update(folder)
        with pytest.raises(LabError, match="which git tracks"):
            copies.reset(source_of(kit), folder)
    assert notebooks.student_path(source_of(kit)).read_bytes() == before


def test_on_a_full_disk_no_half_copy_is_left(kit, full_disk):
    with pytest.raises(files.NotWritten, match="No space left on device"):
        copies.update(kit)
    assert list(kit.iterdir()) == []


def test_reset_on_a_full_disk_leaves_what_was_there(kit, monkeypatch):
    copies.update(kit)
    target = copies.copy_path(source_of(kit), kit)
    target.write_bytes(b"my work \xff, not even UTF-8")
    before = sorted(kit.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(LabError, match=r"No space left on device\. Free some space"):
            copies.reset(source_of(kit), kit)
    assert target.read_bytes() == b"my work \xff, not even UTF-8"
    assert sorted(kit.iterdir()) == before
    assert copies.reset(source_of(kit), kit).read_bytes() == b"my work \xff, not even UTF-8"


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
def test_an_update_pulls_cleanly_over_a_used_checkout(tmp_path, monkeypatch):
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
    for stem in stems:
        for file in (f"solutions/{stem}.py", f"notebooks/{stem}.ipynb"):
            (upstream / file).parent.mkdir(exist_ok=True)
            shutil.copy(paths.ROOT / file, upstream / file)
    shutil.copy(paths.SOLUTIONS / "minutes.toml", upstream / "solutions")
    monkeypatch.setattr(paths, "NOTEBOOKS", upstream / "notebooks")
    for stem in stems:  # whatever is stored: the notebooks are what their sources give
        text = notebooks.dumps(notebooks.student(upstream / f"solutions/{stem}.py"))
        (upstream / f"notebooks/{stem}.ipynb").write_text(text)
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
        source = upstream / f"solutions/{stem}.py"
        source.write_text(source.read_text() + "\n# %% [markdown]\n# A new last paragraph.\n")
        text = notebooks.dumps(notebooks.student(source))
        (upstream / f"notebooks/{stem}.ipynb").write_text(text)
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
        copies.update(folder)
        environ = {key: value for key, value in os.environ.items() if key != "LAB_FOLDER"}
        done = subprocess.run(["./lab", "report"], cwd=folder, env=environ, capture_output=True, text=True)
        assert done.returncode == 2
        assert f"no lab has left results in {folder}/work" in done.stderr

    @pytest.mark.slow
    def test_a_file_of_that_name_is_left_alone(self, tmp_path):
        (tmp_path / "lab").write_text("mine")
        copies.update(tmp_path)
        assert (tmp_path / "lab").read_text() == "mine"

    def test_a_link_to_a_kit_that_was_moved_is_mended(self, tmp_path):
        (tmp_path / "lab").symlink_to(tmp_path / "moved" / "lab")
        copies.update(tmp_path)
        assert (tmp_path / "lab").samefile(paths.ROOT / "lab")
