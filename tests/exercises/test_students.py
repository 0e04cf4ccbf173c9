"""Everything that a student runs works without the packages of the `author` group."""

import subprocess
import sys
import warnings

import pytest
from tqdm.notebook import WARN_NOIPYW
from tqdm.std import TqdmWarning

from labkit.display import notices
from labkit.system import paths

# Run the following code as if the packages of the group `author` were not installed.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jupytext", "nbgrader", "papermill"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
COMMAND = """
from unittest.mock import Mock
from jupyterlab.labapp import LabApp
LabApp.initialize_server = Mock()
from labkit.cli import main
sys.argv[0] = "lab"
main()
"""
NOTEBOOK = """
from labkit.exercises import open_lab
check, results, machine, work = open_lab("00", globals())
threads_per_rank = check(1, lambda cores, ranks: cores)
assert threads_per_rank(2, 4) == 1
"""


def without_author(code, folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + code, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(paths.ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert "ModuleNotFoundError" not in done.stderr, done.stderr
    return done


def test_request_for_widgets_is_hidden():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        notices.hide()
        warnings.warn(WARN_NOIPYW, TqdmWarning, stacklevel=1)
    assert caught == []


@pytest.mark.slow
def test_student_starts_works_resets_and_reports(tmp_path):
    folder = tmp_path / "mine"
    options = ("--folder", str(folder))
    assert without_author(COMMAND, tmp_path, "start", "00", *options).returncode == 0
    done = without_author(NOTEBOOK, folder)
    assert "Exercise 1 · not yet." in done.stdout, done.stderr
    assert without_author(COMMAND, folder, "reset", "00", *options).returncode == 0
    assert without_author(COMMAND, folder, "report", *options).returncode == 0
    assert (folder / "lab-report.html").exists()
    assert "labs can run" in without_author(COMMAND, folder, "doctor").stdout
