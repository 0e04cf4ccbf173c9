"""The image, the Apptainer definition and the dev container: made by the kit's set-up, from its lock, without root."""

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
    """Return the Containerfile's instructions, each as its name and the rest."""
    lines = (line for line in CONTAINERFILE.read_text().splitlines() if not line.lstrip().startswith("#"))
    text = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def all_of(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def dev_container() -> dict:
    return json.loads(DEV_CONTAINER.read_text())


def scripts() -> list[str]:
    """Return all that a shell runs as one of these is made."""
    sections = re.split(r"^%\w+\n", DEFINITION.read_text(), flags=re.M)[1:]
    return [*all_of("RUN"), *sections, dev_container()["updateContentCommand"]]


def test_the_base_is_a_debian_with_a_python_of_the_lock():
    (base,) = all_of("FROM")
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    suite = re.fullmatch(r"debian:(\w+)-slim", base)[1]
    assert SpecifierSet(project["requires-python"]).contains(PYTHON_OF[suite])
    assert f"Bootstrap: docker\nFrom: {base}\n" in DEFINITION.read_text()


@pytest.mark.parametrize("script", scripts())
def test_what_runs_is_sound_and_installs_by_the_kits_set_up_alone(script, tmp_path):
    (tmp_path / "script").write_text(script)
    subprocess.run([SHELLCHECK, "--shell=sh", tmp_path / "script"], check=True, timeout=60)
    assert not INSTALLERS.search(script), "what the labs need belongs into ./lab, pyproject.toml and uv.lock"


@pytest.fixture
def committed() -> list[str]:
    """The files of the kit; the test is skipped, and that is said loudly, where git can't name them."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=paths.ROOT, capture_output=True, check=True, text=True)
    except (FileNotFoundError, subprocess.CalledProcessError):  # no git, a kit from a pack, or another account's
        pytest.skip("THE IMAGE'S LAYERS NOT TESTED HERE: git can't list the kit's files")
    return list(filter(None, listed.stdout.split("\0")))


def copy(source: str, target: str, kit: Path, committed: list[str]) -> None:
    """Do as COPY does with these: `.` is all that is in git, as .dockerignore leaves it."""
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
def test_the_layer_of_the_set_up_has_all_it_is_made_from_and_the_labs_come_later(tmp_path, committed):
    """With a stand-in for uv: the set-up works with what was copied until then, and the rest makes no other."""
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
            assert not (checkout.folder / "solutions").exists(), "a change of a lab would make the environments again"
    assert checkout.run("start", "--no-browser")[1] == "labkit start --no-browser\n"
    assert checkout.made() == made


def test_what_git_ignores_stays_out_of_the_image():
    ignored = [line for line in (paths.ROOT / ".gitignore").read_text().splitlines() if not line.startswith("#")]
    anywhere = {f"**/{line.rstrip('/')}" for line in ignored if "/" not in line.rstrip("/")}
    anchored = {line.strip("/") for line in ignored if "/" in line.rstrip("/")}
    kept_out = {line for line in (paths.ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")}
    assert kept_out == anywhere | anchored | {".git"}


def test_it_starts_the_labs_as_everywhere_without_root_and_nothing_opens_jupyterlab_to_others():
    user = all_of("USER")[-1]
    assert re.search(rf"useradd\b.* --uid [1-9]\d* {user}\b", "\n".join(all_of("RUN")))
    assert dev_container()["remoteUser"] == user
    assert json.loads(all_of("CMD")[0]) == ["start", "--no-browser"]
    for path in (CONTAINERFILE, DEFINITION, DEV_CONTAINER):
        assert not re.search(r"0\.0\.0\.0|token=|password|ServerApp|JUPYTER_|--ip", path.read_text()), path
