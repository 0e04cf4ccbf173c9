"""Tests of the image, the Apptainer definition and the dev container, all built by the kit's set-up from its lock."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from test_front_door import Checkout

from labkit.system import paths

FOLDER = paths.ENV / "container"
CONTAINERFILE, DEFINITION = FOLDER / "Containerfile", FOLDER / "lab.def"
DEV_CONTAINER = paths.ROOT / ".devcontainer" / "devcontainer.json"
SHELLCHECK = Path(sysconfig.get_path("scripts")) / "shellcheck"
PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}  # https://packages.debian.org/python3
INSTALLERS = re.compile(r"(?<![\w/])(apt|apt-get|aptitude|dpkg|pip3?|uv|uvx|conda|mamba|npm|curl|wget)\s+\S")


def instructions() -> list[tuple[str, str]]:
    """Return the Containerfile's instructions as pairs of a name and its arguments."""
    lines = (line for line in CONTAINERFILE.read_text().splitlines() if not line.lstrip().startswith("#"))
    text = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def all_of(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def dev_container() -> dict:
    return json.loads(DEV_CONTAINER.read_text())


def scripts() -> list[str]:
    """Return all shell scripts that run while one of these is built."""
    sections = re.split(r"^%\w+\n", DEFINITION.read_text(), flags=re.M)[1:]
    return [*all_of("RUN"), *sections, dev_container()["updateContentCommand"]]


def test_the_base_is_a_debian_with_a_supported_python():
    (base,) = all_of("FROM")
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    suite = re.fullmatch(r"debian:(\w+)-slim", base)[1]
    assert SpecifierSet(project["requires-python"]).contains(PYTHON_OF[suite])
    assert f"Bootstrap: docker\nFrom: {base}\n" in DEFINITION.read_text()


@pytest.mark.parametrize("script", scripts())
def test_build_scripts_are_clean_and_install_only_through_the_kits_set_up(script, tmp_path):
    (tmp_path / "script").write_text(script)
    subprocess.run([SHELLCHECK, "--shell=sh", tmp_path / "script"], check=True, timeout=60)
    assert not INSTALLERS.search(script), "the labs' requirements belong in ./lab, pyproject.toml and uv.lock"


@pytest.fixture
def committed() -> list[str]:
    """Return the kit's files; skip the test, loudly, if git can't list them."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=paths.ROOT, capture_output=True, check=True, text=True)
    except (FileNotFoundError, subprocess.CalledProcessError):  # no git, a kit from a pack, or another account's
        pytest.skip("THE IMAGE'S LAYERS NOT TESTED HERE: git can't list the kit's files")
    return list(filter(None, listed.stdout.split("\0")))


def copy(source: str, target: str, kit: Path, committed: list[str]) -> None:
    """Copy like COPY; `.` stands for all files in git, as with .dockerignore."""
    if source == ".":
        for name in committed:
            if (paths.ROOT / name).exists():
                copy(name, f"{Path(name).parent}/", kit, committed)
    elif (paths.ROOT / source).is_dir():
        shutil.copytree(paths.ROOT / source, kit / target, ignore=shutil.ignore_patterns(".venv"), dirs_exist_ok=True)
    else:
        (kit / target).mkdir(parents=True, exist_ok=True)
        shutil.copy(paths.ROOT / source, kit / target)


@pytest.mark.slow
def test_the_set_up_layer_has_all_its_inputs_and_the_labs_come_later(tmp_path, committed):
    """With a fake uv: set-up works with the files copied so far, and the rest does not trigger another."""
    checkout = Checkout(tmp_path)
    shutil.rmtree(checkout.folder)
    for name, rest in instructions():
        if name == "COPY":
            *sources, target = (word for word in rest.split() if not word.startswith("--"))
            for source in sources:
                copy(source, target, checkout.folder, committed)
        elif name == "RUN" and "./lab setup" in rest:
            assert checkout.run("setup")[::2] == (0, "")
            hand_over = [sys.executable, "-c", "from labkit.cli import main; main()", "setup"]
            subprocess.run(hand_over, cwd=checkout.folder, env={**os.environ, "PYTHONPATH": ""}, check=True, timeout=60)
            made = checkout.made()
            assert not (checkout.folder / "solutions").exists(), "changing a lab would rebuild the environments"
    assert checkout.run("start", "--no-browser")[1] == "labkit start --no-browser\n"
    assert checkout.made() == made


def test_files_ignored_by_git_are_not_in_the_image():
    ignored = [line for line in (paths.ROOT / ".gitignore").read_text().splitlines() if not line.startswith("#")]
    anywhere = {f"**/{line.rstrip('/')}" for line in ignored if "/" not in line.rstrip("/")}
    anchored = {line.strip("/") for line in ignored if "/" in line.rstrip("/")}
    excluded = {line for line in (paths.ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")}
    assert excluded == anywhere | anchored | {".git"}


def test_the_labs_start_without_root_and_jupyterlab_is_not_exposed():
    user = all_of("USER")[-1]
    assert re.search(rf"useradd\b.* --uid [1-9]\d* {user}\b", "\n".join(all_of("RUN")))
    assert dev_container()["remoteUser"] == user
    assert json.loads(all_of("CMD")[0]) == ["start", "--no-browser"]
    for path in (CONTAINERFILE, DEFINITION, DEV_CONTAINER):
        assert not re.search(r"0\.0\.0\.0|token=|password|ServerApp|JUPYTER_|--ip", path.read_text()), path
