"""The kit stays within its budgets of lines, `[tool.lab.budget]` in pyproject.toml."""

import shutil
import subprocess
import tomllib

import pytest

from labkit.system import paths

BUDGET = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["tool"]["lab"]["budget"]


def tracked_lines(folder: str) -> int:
    """Return the number of lines in a file, or in the tracked Python files below a folder."""
    pattern = folder if (paths.ROOT / folder).is_file() else f"{folder}/*.py"
    if not shutil.which("git") or not (paths.ROOT / ".git").exists():
        pytest.skip("the budget needs git's list of files, and this is not a git checkout, or there is no git")
    listed = subprocess.run(["git", "ls-files", "-z", pattern], cwd=paths.ROOT, capture_output=True, check=True)
    files = [paths.ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return sum(len(file.read_bytes().splitlines()) for file in files if file.exists())


@pytest.mark.parametrize("folder", BUDGET)
def test_lines_are_within_the_budget(folder):
    lines = tracked_lines(folder)
    assert lines <= BUDGET[folder], (
        f"{folder} has {lines} lines, but a budget of {BUDGET[folder]}. The budget keeps the kit small enough for its "
        "maintainers: remove something that no one would miss, or raise the budget in a separate commit, with the "
        "reason. Moving lines into TOML, JavaScript, C or bash is not a cut."
    )
