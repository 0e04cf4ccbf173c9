"""The kit stays within its budgets of lines, `[tool.lab.budget]` in pyproject.toml."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from labkit.exercises import labs
from labkit.system import paths

BUDGET = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["tool"]["lab"]["budget"]


PATTERNS = {"lab": ["lab"], "toml_and_json": ["*.toml", "*.json", ":!solutions/labs.json", ":!data/recorded"]}


def tracked_lines(what: str) -> int:
    """Return the number of lines in the tracked files of a budget: by default, the Python files below a folder."""
    patterns = PATTERNS.get(what, [f"{what}/*.py"])
    if not shutil.which("git") or not (paths.ROOT / ".git").exists():
        pytest.skip("the budget needs git's list of files, and this is not a git checkout, or there is no git")
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=paths.ROOT, capture_output=True, check=True)
    files = [paths.ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return sum(len(file.read_bytes().splitlines()) for file in files if file.exists())


@pytest.mark.parametrize("what", BUDGET)
def test_lines_are_within_the_budget(what):
    lines = tracked_lines(what)
    assert lines <= BUDGET[what], (
        f"{what} has {lines} lines, but a budget of {BUDGET[what]}. The budget keeps the kit small enough for its "
        "maintainers: remove something that no one would miss, or raise the budget in a separate commit, with the "
        "reason. Moving lines into TOML, JavaScript, C or bash is not a cut."
    )


@pytest.mark.parametrize("table", sorted(Path(labs.__file__).parent.glob("lab*.py")), ids=lambda table: table.stem)
def test_tables_of_exercises_are_short(table):
    """Apart from the header: 40 lines, two more for each mistake with a name or in C, 120 for a script on ranks."""
    number = table.stem.removeprefix("lab")
    functions, scripts = [*labs.references(number).values(), *labs.in_c(number).values()], labs.on_ranks(number)
    lines = table.read_text().partition("] = {}\n")[2].strip().splitlines()
    most = sum(40 + 2 * len(function.wrong) for function in functions) + 120 * len(scripts)
    assert 0 < len(lines) <= most, f"{table.name} has {len(lines)} lines, but at most {most} are allowed"
