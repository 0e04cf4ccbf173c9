import base64

import nbformat
import pytest

from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import build, picture


def notebook(*pictures: tuple[bytes, str]):
    """Return a notebook that shows these pictures, each with its alternative text."""
    html = [f'<img src="data:image/png;base64,{base64.b64encode(png).decode()}" alt="{alt}">' for png, alt in pictures]
    outputs = [nbformat.v4.new_output("display_data", {"text/html": text}) for text in html]
    cells = [nbformat.v4.new_markdown_cell("## 1"), nbformat.v4.new_code_cell("1", outputs=outputs)]
    return nbformat.v4.new_notebook(cells=cells)


def test_the_readme_shows_the_stored_run():
    shown = (paths.ROOT / picture.FILE).read_bytes()
    assert picture.stored() in (shown, None), f"./lab build copies lab {picture.LAB}'s stored picture to {picture.FILE}"
    assert f"]({picture.FILE})" in (paths.ROOT / "README.md").read_text()


def test_the_picture_is_copied_unless_the_run_has_no_outputs(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    pages = [notebook((b"other", "Speed"), (b"right", f"{picture.ALT} of training: 1 rank")), notebook()]
    monkeypatch.setattr(build, "stored", lambda source: pages.pop(0))
    assert picture.write() == tmp_path / picture.FILE
    assert picture.write() is None
    assert (tmp_path / picture.FILE).read_bytes() == b"right"


def test_a_changed_alternative_text_is_reported(monkeypatch):
    monkeypatch.setattr(build, "stored", lambda source: notebook((b"other", "Speed")))
    with pytest.raises(LabError, match=r"update picture\.ALT"):
        picture.write()
