"""Where a machine is there to test all, a test that is skipped is a failure."""

import os
import subprocess
import sys

import pytest

from labkit.system import paths

ONE_TEST = """
import pytest

def test_wires():
    pytest.skip("WIRES NOT TESTED HERE: there are none")
"""
WHOLE_MODULE = "import pytest\n\npytest.skip('USERS NOT TESTED HERE: it takes root', allow_module_level=True)\n"
PASSES = "def test_passes():\n    pass\n"


def run(folder, *options: str) -> subprocess.CompletedProcess:
    """Run a folder's tests with the options of these, and with none of their settings."""
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", os.devnull, "--rootdir", folder, folder]
    searched = os.pathsep.join([str(paths.ROOT / "tests"), str(paths.ROOT)])
    environ = {**os.environ, "PYTHONPATH": searched}
    return subprocess.run([*command, *options], capture_output=True, text=True, env=environ, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize("skipping", [ONE_TEST, WHOLE_MODULE], ids=["a test", "a module"])
def test_a_skip_fails_where_nothing_may_be_skipped(tmp_path, skipping, processes):
    (tmp_path / "test_skips.py").write_text(skipping)
    (tmp_path / "test_passes.py").write_text(PASSES)
    assert run(tmp_path, "-n", processes).returncode == 0
    strict = run(tmp_path, "-n", processes, "--nothing-skipped")
    assert strict.returncode == 1, strict.stdout
    assert "1 SKIPPED, AND --nothing-skipped" in strict.stdout
    assert "NOT TESTED HERE" in strict.stdout


@pytest.mark.slow
def test_without_a_skip_all_is_well(tmp_path):
    (tmp_path / "test_passes.py").write_text(PASSES)
    assert run(tmp_path, "--nothing-skipped").returncode == 0
