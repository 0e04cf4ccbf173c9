"""Versions named elsewhere agree with the locks."""

import re
import tomllib

import yaml
from packaging.specifiers import SpecifierSet

from labkit.system import paths

PROJECT = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())


def locked() -> dict[str, str]:
    packages = tomllib.loads((paths.ROOT / "uv.lock").read_text())["package"]
    return {package["name"]: package["version"] for package in packages}


def test_types_are_checked_for_the_oldest_python_of_the_kit():
    oldest = re.match(r">=(3\.\d+),", PROJECT["project"]["requires-python"])[1]
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest


def test_the_conda_environment_has_a_supported_python_and_uv():
    conda = yaml.safe_load((paths.ROOT / "environment.yml").read_text())
    versions = dict(re.fullmatch(r"([\w-]+)(?:[=><]+(\S+))?", line).groups() for line in conda["dependencies"])
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(versions["python"])
    assert PROJECT["tool"]["uv"]["required-version"] == f">={versions['uv']}"
    assert set(versions) == {"python", "uv", "make", "cxx-compiler"}, "packages belong in pyproject.toml"


def test_a_horovod_built_for_another_tensorflow_is_not_reused():
    # uv's cache key of a built wheel includes these variables, not the TensorFlow it was built against.
    variables = PROJECT["tool"]["uv"]["extra-build-variables"]["horovod"]
    built_for = {f"{name}=={locked()[name]}" for name in ("tensorflow-cpu", "mpich")}
    assert set(variables["LABKIT_BUILT_FOR"].split()) == built_for


def test_no_package_that_sends_usage_data_is_installed():
    # With this package, `import openvino` reports to Google Analytics (openvino/tools/ovc/__init__.py).
    assert "openvino-telemetry" not in locked()
