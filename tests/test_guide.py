"""CONTRIBUTING.md names the rooms and commands that there are."""

import re
import tomllib

import typer.main

from labkit import cli
from labkit.system import paths

GUIDE = (paths.ROOT / "CONTRIBUTING.md").read_text()


def test_its_layers_are_those_that_imports_are_held_to():
    contract = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    held = [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    table = GUIDE.partition("| layer | rooms |\n| --- | --- |\n")[2].partition("\n\n")[0]
    assert [set(re.findall(r"`(\w+)(?:\.py)?`", row)) for row in table.splitlines()] == held


def test_each_room_has_a_line():
    rooms = {path.parent.name for path in (paths.ROOT / "labkit").glob("*/__init__.py")}
    assert set(re.findall(r"^\*\*`(\w+)`\*\* ", GUIDE, re.M)) == rooms


def test_the_commands_it_names_exist():
    assert set(re.findall(r"`\./lab ([a-z-]+)", GUIDE)) <= set(typer.main.get_command(cli.application()).commands)
