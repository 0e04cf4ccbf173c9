"""A lock for each environment: what else names versions agrees with it."""

import importlib.util
import re
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


def test_the_build_of_2023_has_the_python_that_its_code_is_written_for():
    # `labkit.bench` runs there too, and ruff's and mypy's oldest Python is that of the kit.
    openmp = tomllib.loads((paths.ENV / "openmp/pyproject.toml").read_text())
    oldest = re.match(r">=(3\.\d+),", PROJECT["project"]["requires-python"])[1]
    assert openmp["project"]["requires-python"] == f"=={oldest}.*"
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest


def test_the_conda_route_leads_to_the_same_python_and_lock():
    conda = yaml.safe_load((paths.ROOT / "environment.yml").read_text())
    versions = dict(re.fullmatch(r"([\w-]+)(?:[=><]+(\S+))?", line).groups() for line in conda["dependencies"])
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(versions["python"])
    assert PROJECT["tool"]["uv"]["required-version"] == f">={versions['uv']}"
    assert set(versions) == {"python", "uv", "make", "cxx-compiler"}, "packages belong into pyproject.toml"


def test_a_horovod_built_for_another_tensorflow_is_not_taken_from_the_cache():
    # uv keys a built wheel by these variables, not by the TensorFlow it was built against.
    variables = PROJECT["tool"]["uv"]["extra-build-variables"]["horovod"]
    built_for = {f"{name}=={locked()[name]}" for name in ("tensorflow-cpu", "mpich")}
    assert set(variables["LABKIT_BUILT_FOR"].split()) == built_for


@pytest.fixture(scope="module")
def bytecode():
    """The script of that name, as a module."""
    spec = importlib.util.spec_from_file_location("bytecode", paths.ENV / "bytecode.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_imported_is_compiled_and_nothing_else(bytecode, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    files = {
        "used/__init__.py": "def late():\n    from . import deep",
        "used/deep/__init__.py": "from .near import thing\nfrom . import far as other\nimport gone, used.broken",
        "used/deep/near.py": "from .. import sibling\nfrom ...beyond import nothing",
        "used/deep/far.py": "class Late:\n    import used.last as last",
        "used/sibling.py": "",
        "used/last.py": "",
        "used/broken.py": "print 'for another Python'",
        "used/beside.py": "import unused",
        "used/tests/__init__.py": "",
        "unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = bytecode.compile_imported(["used.deep"], tmp_path)
    assert found == {"used", "used.deep", "used.deep.near", "used.deep.far", "used.sibling", "used.last"}
    compiled = {str(file.relative_to(tmp_path)).replace("__pycache__/", "") for file in tmp_path.rglob("*.pyc")}
    assert compiled == {str(Path(name).with_suffix(f".{sys.implementation.cache_tag}.pyc")) for name in list(files)[:6]}


@pytest.mark.slow
def test_little_of_what_a_program_imports_is_missed(bytecode):
    names = set(bytecode.kit_imports())
    assert {"tensorflow", "horovod.tensorflow", "nncf", "jupyterlab.labapp", "mpi4py.MPI"} <= names
    places = [SITE.joinpath(*name.split(".")) for name in bytecode.compile_imported(names, SITE)]
    reachable = {str(file) for place in places for file in (place / "__init__.py", f"{place}.py")}
    imported = (
        "horovod.tensorflow, sklearnex, matplotlib.pyplot, pandas, optuna, jupyterlab.labapp, ipykernel.kernelapp"
    )
    listed = "print('LOADED', *[getattr(module, '__file__', '') for module in sys.modules.values()], sep='\\n')"
    command = [sys.executable, "-c", f"import sys, {imported}\n{listed}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    files = run.stdout.partition("LOADED\n")[2].splitlines()
    loaded = {file for file in files if file.endswith(".py") and Path(file).is_relative_to(SITE)}
    assert len(loaded) > 1000
    missed = loaded - reachable
    assert len(missed) < 0.03 * len(loaded), sorted(missed)


def test_nothing_that_sends_usage_data_is_installed():
    # `import openvino` reports itself to Google Analytics when this package is there (openvino/tools/ovc/__init__.py).
    assert "openvino-telemetry" not in locked()
