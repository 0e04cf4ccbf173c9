"""Everything a student runs works with a student's packages: no module of the `author` group is imported."""

import subprocess
import sys
import warnings

import pytest
from tqdm.notebook import WARN_NOIPYW
from tqdm.std import TqdmWarning

from labkit.display import notices
from labkit.system import paths

# Run what follows as if the packages of the group `author` were not installed.
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


def test_a_library_that_would_like_widgets_does_not_say_so():
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        notices.hide()
        warnings.warn(WARN_NOIPYW, TqdmWarning, stacklevel=1)
    assert heard == []


@pytest.mark.slow
def test_a_student_starts_works_resets_and_reports(tmp_path):
    mine = tmp_path / "mine"
    here = ("--folder", str(mine))
    assert without_author(COMMAND, tmp_path, "start", "00", *here).returncode == 0
    done = without_author(NOTEBOOK, mine)
    assert "Exercise 1 · not yet." in done.stdout, done.stderr
    assert without_author(COMMAND, mine, "reset", "00", *here).returncode == 0
    assert without_author(COMMAND, mine, "report", *here).returncode == 0
    assert (mine / "lab-report.html").exists()
    assert "labs can run" in without_author(COMMAND, mine, "doctor").stdout
