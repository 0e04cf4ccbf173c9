import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from labkit.exercises import catalogue, working_copies
from labkit.system import kernels, paths
from labkit.system.errors import LabError

LABS = ("42_made_up", "43_also")


@pytest.fixture
def kit(tmp_path, monkeypatch) -> Path:
    """Make a kit with two labs, and return the student's folder."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(working_copies, "GLOSSARY", tmp_path / "docs" / "glossary.md")
    monkeypatch.setattr(working_copies, "AGENTS", tmp_path / "env" / "AGENTS.md")
    (tmp_path / "notebooks").mkdir()
    write("x = 1", tmp_path)
    return tmp_path / "mine"


def write(code: str, folder: Path, labs=LABS) -> None:
    """Write a version of some labs with the first code cell `code`, as `./lab build` would."""
    path = folder / catalogue.FILE
    catalog = json.loads(path.read_text()) if path.exists() else {}
    for name in labs:
        text = "# Title\n\nA **[rank](../docs/learn/glossary.md#rank)** is a process."
        title = nbformat.v4.new_markdown_cell(text, id="a")
        notebook = nbformat.v4.new_notebook(cells=[title, nbformat.v4.new_code_cell(code, id="b")])
        nbformat.write(notebook, folder / "notebooks" / f"{name}.ipynb")
        parts = ("sections", "exercises", "questions", "needs", "better_with")
        catalog[name] = {"title": name} | {part: [] for part in parts}
    path.write_text(json.dumps(catalog))


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


def test_new_version_refreshes_unedited_copies_and_keeps_edited_ones(kit):
    working_copies.update(kit)
    edited, untouched = (working_copies.copy_path(lab_of(name), kit) for name in LABS)
    edited.write_text("my work")
    write("x = 2", kit.parent)
    assert working_copies.update(kit) == working_copies.Update(refreshed=("43",), outdated=("42",))
    assert "x = 2" in untouched.read_text()
    assert edited.read_text() == "my work"
    assert working_copies.update(kit) == working_copies.Update(refreshed=(), outdated=("42",))  # until it is reset
    backup = working_copies.reset(lab_of(), kit)
    assert backup.read_text() == "my work"
    assert "x = 2" in edited.read_text()
    assert working_copies.update(kit) == working_copies.Update((), ())


def test_copy_that_was_only_opened_counts_as_unedited(kit):
    working_copies.update(kit)
    opened, ran = (working_copies.copy_path(lab_of(name), kit) for name in LABS)
    notebook = json.loads(opened.read_text())
    notebook["metadata"]["language_info"] = {"version": "3.11.9"}  # as JupyterLab saves it
    opened.write_text(json.dumps(notebook))
    notebook["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
    ran.write_text(json.dumps(notebook))
    before = opened.read_bytes()
    assert working_copies.update(kit) == working_copies.Update((), ())
    assert opened.read_bytes() == before, "it may be open in JupyterLab"
    assert working_copies.reset(lab_of(), kit) is None
    write("x = 2", kit.parent)
    assert working_copies.update(kit) == working_copies.Update(refreshed=("42",), outdated=("43",))


@pytest.mark.parametrize("damage", ["", "{", "[]", None])
def test_copy_without_a_record_counts_as_edited(kit, damage):
    working_copies.update(kit)
    record = kit / working_copies.RECORD
    record.unlink() if damage is None else record.write_text(damage)
    before = working_copies.copy_path(lab_of(), kit).read_text()
    write("x = 2", kit.parent, LABS[:1])
    assert working_copies.update(kit) == working_copies.Update(refreshed=(), outdated=("42",))
    assert working_copies.copy_path(lab_of(), kit).read_text() == before


def test_copy_links_to_the_copied_glossary_and_names_the_labs_kernel_and_no_language(kit):
    """Otherwise a server would silently use its `python3`, or its only kernel for the language."""
    working_copies.GLOSSARY.parent.mkdir()
    working_copies.GLOSSARY.write_text("# Glossary\n\n## rank\n")
    notebook = kit.parent / "notebooks" / f"{LABS[0]}.ipynb"
    content = json.loads(notebook.read_text())
    content["metadata"] = {"kernelspec": {"name": "python3"}, "language_info": {"name": "python"}, "title": "é"}
    notebook.write_text(json.dumps(content))
    working_copies.update(kit)
    copy = nbformat.read(working_copies.copy_path(lab_of(), kit), as_version=4)
    assert copy.metadata == {"kernelspec": kernels.KERNEL, "title": "é"}
    assert "(glossary.md#rank)" in working_copies.copy_path(lab_of(), kit).read_text()
    assert (kit / "glossary.md").read_text() == working_copies.GLOSSARY.read_text()


def test_only_selected_labs_are_copied_and_existing_copies_are_updated(kit):
    working_copies.update(kit, ["42"])
    assert [copy.name for copy in kit.glob("*.ipynb")] == ["42_made_up.ipynb"]
    working_copies.update(kit)
    write("x = 2", kit.parent, LABS[1:])
    assert working_copies.update(kit, ["42"]) == working_copies.Update(refreshed=("43",), outdated=())
    assert len(list(kit.glob("*.ipynb"))) == 2


def test_reset_keeps_numbered_backups(kit):
    target = working_copies.copy_path(lab_of(), kit)
    assert working_copies.reset(lab_of(), kit) is None
    for number in (1, 2):
        target.write_text(f"my work, version {number}")
        backup = working_copies.reset(lab_of(), kit)
        assert backup.name == f"42_made_up.backup-{number}.ipynb"
        assert backup.read_text() == f"my work, version {number}"
    assert working_copies.reset(lab_of(), kit) is None
    assert target.read_text() == working_copies.fresh(lab_of())


def test_the_kits_folders_are_refused(kit):
    before = lab_of().notebook.read_bytes()
    for folder in (paths.NOTEBOOKS, paths.SOLUTIONS):
        with pytest.raises(LabError, match="which git tracks: choose a folder of your own with --folder"):
            working_copies.update(folder)
        with pytest.raises(LabError, match="which git tracks"):
            working_copies.reset(lab_of(), folder)
    assert lab_of().notebook.read_bytes() == before


def test_reset_on_a_full_disk_changes_nothing(kit, monkeypatch):
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


def test_rules_for_assistants_are_copied_but_never_overwrite_a_students_file(kit):
    working_copies.update(kit)  # this kit has none
    assert not (kit / "AGENTS.md").exists()
    working_copies.AGENTS.parent.mkdir()
    for version in ("Explain, don't solve.", "Ask first."):
        working_copies.AGENTS.write_text(version)
        working_copies.update(kit)
        assert (kit / "AGENTS.md").read_text() == version
    (kit / "AGENTS.md").write_text("Mine.")
    working_copies.AGENTS.write_text("Another version.")
    working_copies.update(kit)
    assert (kit / "AGENTS.md").read_text() == "Mine."


@pytest.mark.parametrize("before", ["nothing", "a link to a kit that was moved", "a file"])
def test_folder_gets_a_link_to_lab_unless_the_student_has_such_a_file(tmp_path, before):
    if before == "a file":
        (tmp_path / "lab").write_text("mine")
    elif before != "nothing":
        (tmp_path / "lab").symlink_to(tmp_path / "moved" / "lab")
    working_copies.update(tmp_path)
    assert (tmp_path / "lab").samefile(paths.ROOT / "lab") == (before != "a file")


def test_copies_are_utf8_whatever_the_locale(tmp_path):
    """Even in Python without UTF-8 mode, not started by `./lab` (https://peps.python.org/pep-0540/)."""
    script = f"import pathlib, labkit.exercises.working_copies as w; w.update(pathlib.Path({str(tmp_path)!r}))"
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", script], env=os.environ | locale, check=True)
    for original in (paths.ROOT / "docs" / "learn" / "glossary.md", paths.ENV / "AGENTS.md"):
        assert (tmp_path / original.name).read_bytes() == original.read_bytes()
    for lab in catalogue.labs():
        assert (tmp_path / lab.notebook.name).read_text() == working_copies.fresh(lab)
