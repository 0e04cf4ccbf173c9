"""One lock: what else names versions agrees with it."""

import re
import tomllib

import pytest
import yaml

from labkit import paths

PROJECT = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())
LOCK = tomllib.loads((paths.ROOT / "uv.lock").read_text())
LOCKED = {package["name"]: package for package in LOCK["package"]}


def pins() -> dict[str, str]:
    groups = PROJECT["dependency-groups"].values()
    requirements = [*PROJECT["project"]["dependencies"], *(line for group in groups for line in group)]
    return dict(line.split("==") for line in requirements)


@pytest.mark.parametrize("name", pins())
def test_every_dependency_is_pinned_to_what_is_locked(name):
    assert LOCKED[name]["version"] == pins()[name]


def test_everything_that_is_downloaded_has_a_hash():
    files = [
        file
        for package in LOCK["package"]
        if "registry" in package["source"]
        for file in [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
    ]
    assert len(files) > 100
    assert all(file["hash"].startswith("sha256:") for file in files)
    assert re.search(r"uv==\S+ \\\n(\s+--hash=sha256:\w{64}( \\)?\n)+", (paths.ENV / "uv.txt").read_text())


def test_the_conda_route_leads_to_the_same_python_and_lock():
    conda = yaml.safe_load((paths.ROOT / "environment.yml").read_text())
    versions = dict(re.fullmatch(r"([\w-]+)(?:[=><]+(\S+))?", line).groups() for line in conda["dependencies"])
    assert PROJECT["project"]["requires-python"] == f"=={versions['python']}.*"
    assert PROJECT["tool"]["uv"]["required-version"] == f">={versions['uv']}"
    assert set(versions) == {"python", "uv", "make", "cxx-compiler"}, "packages belong into pyproject.toml"


def test_a_horovod_built_for_another_tensorflow_is_not_taken_from_the_cache():
    # uv keys a built wheel by these variables, not by the TensorFlow it was built against.
    variables = PROJECT["tool"]["uv"]["extra-build-variables"]["horovod"]
    built_for = {f"{name}=={LOCKED[name]['version']}" for name in ("tensorflow-cpu", "mpich")}
    assert set(variables["LABKIT_BUILT_FOR"].split()) == built_for
