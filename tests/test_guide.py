"""CONTRIBUTING.md names the layers that there are, and the catalogue of modules is what their first lines say."""

import re
import tomllib

import pytest

from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import house

GUIDE = (paths.ROOT / "CONTRIBUTING.md").read_text()


def test_its_layers_are_those_that_imports_are_held_to():
    contracts = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (of_labs,) = (contract for contract in contracts if contract.get("containers") == ["labkit"])
    held = [set(re.findall(r"\w+", layer)) for layer in of_labs["layers"]]
    table = GUIDE.partition("| layer | rooms |\n| --- | --- |\n")[2].partition("\n\n")[0]
    assert [set(re.findall(r"`(\w+)(?:\.py)?`", row)) for row in table.splitlines()] == held


def test_the_catalogue_is_what_the_modules_say():
    assert house.PAGE.read_text() == house.page(), "run ./lab build"


def test_the_catalogue_has_every_module():
    page = house.page()
    for package in house.PACKAGES:
        for path in (paths.ROOT / package).rglob("*.py"):
            folder = ".".join(path.parent.relative_to(paths.ROOT).parts)
            section = re.search(rf"^#+ `{re.escape(folder)}`\n.*?(?=^#|\Z)", page, re.M | re.S)
            assert section, f"docs/house.md has no {folder}: has it an __init__.py?"
            assert path.name == "__init__.py" or f"| `{path.stem}` | " in section[0]


def test_a_module_without_a_docstring_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labkit" / "__init__.py").write_text('"""What it is."""')
    (tmp_path / "labkit" / "mute.py").write_text("x = 1\n")
    with pytest.raises(LabError, match=r"mute\.py has no docstring: what is it for"):
        house.page()
