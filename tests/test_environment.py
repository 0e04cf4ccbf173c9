"""Versions named elsewhere agree with the locks, and bytecode is compiled for what the kit imports."""

import re
import runpy
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from labkit.system import paths

SITE = Path(sysconfig.get_path("purelib"))
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


@pytest.mark.weekly
def test_few_imported_modules_are_missed_and_most_others_are_not_compiled():
    bytecode = runpy.run_path(str(paths.ENV / "bytecode.py"))
    names = set(bytecode["kit_imports"]())
    assert {"tensorflow", "horovod.tensorflow", "nncf", "jupyterlab.labapp", "mpi4py.MPI"} <= names
    modules = [SITE.joinpath(*name.split(".")) for name in bytecode["compile_imported"](names, SITE)]
    assert len(modules) < 0.7 * sum(1 for _ in SITE.rglob("*.py"))
    reachable = {str(file) for module in modules for file in (module / "__init__.py", f"{module}.py")}
    imported = "horovod.tensorflow, sklearnex, matplotlib.pyplot, pandas, jupyterlab.labapp, ipykernel.kernelapp"
    listed = "print('LOADED', *[getattr(module, '__file__', '') for module in sys.modules.values()], sep='\\n')"
    command = [sys.executable, "-c", f"import sys, {imported}\n{listed}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    files = run.stdout.partition("LOADED\n")[2].splitlines()
    loaded = {file for file in files if file.endswith(".py") and Path(file).is_relative_to(SITE)}
    assert len(loaded) > 1000
    missed = loaded - reachable
    assert len(missed) < 0.03 * len(loaded), sorted(missed)


def test_no_package_that_sends_usage_data_is_installed():
    # With this package, `import openvino` reports to Google Analytics (openvino/tools/ovc/__init__.py).
    assert "openvino-telemetry" not in locked()
