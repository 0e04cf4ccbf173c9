"""What `--fast` leaves out, it finds by itself."""

import os
import subprocess
import sys

import pytest

from labkit.system import paths

TESTS = """
import subprocess, sys
import pytest

def test_quick():
    pass

def test_imports():
    import tensorflow

def test_starts():
    subprocess.run(["mpirun", "-n", "2", "true"])

def test_starts_ranks(tmp_path):
    from labkit.mpi import run_ranks
    (tmp_path / "ranks.py").touch()
    run_ranks(1, tmp_path / "ranks.py", show=False)

@pytest.mark.slow
def test_marked():
    pass
"""


@pytest.mark.slow
def test_what_imports_tensorflow_or_starts_ranks_is_left_out(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text("import tensorflow as tf\n\n\ndef test_it():\n    tf.zeros(1)\n")
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", os.devnull, "--rootdir", tmp_path, "-rs", "-q"]
    searched = os.pathsep.join([str(paths.ROOT / "tests"), str(paths.ROOT)])
    out = subprocess.run(
        [*command, "--fast", tmp_path], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": searched}
    ).stdout
    assert "1 passed, 4 skipped, 1 deselected" in out, out
    assert "left out by --fast: imports tensorflow" in out
    assert "left out by --fast: starts mpirun" in out
    assert "left out by --fast: starts mpiexec.hydra" in out
