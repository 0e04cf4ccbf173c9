"""Skeletons of a new lab and of a new exercise, which pass their tests as they are.

The skeleton's exercise is a real one, the sum of a list, doubled: its author replaces it part by part.
"""

import re
import subprocess
import sysconfig
from pathlib import Path
from string import Template

from labkit.exercises import minutes, sources
from labkit.system import files, paths
from labkit.system.errors import LabError

CLOSING = re.compile(r"^# %% \[markdown\][^\n]*\n# ## (?:Questions|Remember)", re.M)

LAB_SOURCE = Template("""\
# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # $number · $title
#
# **You will** …
#
# **Time** {minutes}
#
# **Connects to** lab 00.

# %%
from labkit.exercises import open_lab

check, results, machine, work, QUICK = open_lab("$number", globals())

# %% [markdown]
# ## 1 · A question that this section answers
#
# Ask before you show.

# %% [markdown]
# ## Remember
#
# - What to remember.
""")

LAB_CHECKS = Template('''\
"""Checks of lab $number: $title."""

from labkit.exercises.core import Lab

lab = Lab("$number")
''')

LAB_TESTS = Template("""\
import pytest
from labs import Student, ThreeWays


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Student("$number", {})  # and what the notebook has imported: {"np": np}


class TestExercises(ThreeWays):
    lab = "$number"
    mistakes = [
    ]
    right = [
    ]
""")

MINUTES = Template("""
[$number]
1 = { read = 10, do = 10 }
""")
AGENDA = Template("| [$number $title](notebooks/$name.ipynb) | … | 20 |\n")
DOCTOR = Template('    Lab("$number $title", needs=NOTEBOOK, better_with=()),\n')

EXERCISE = Template('''\
# %% [markdown]
# ### Exercise $n · Its title
#
# What to do and why. Write `twice_$n(values)`: it takes a list of numbers, and returns twice their sum.


# %%
def twice_$n(values):
    """Return twice the sum of a list of numbers."""
    ### BEGIN SOLUTION
    return 2 * sum(values)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
twice_$n = check($n, twice_$n)

''')

CHECK = Template('''

@lab.exercise($n, hints=("Which function of Python's adds up a list?", "return 2 * sum(values)"))
def twice_$n(answer) -> None:
    """Twice the sum, of generated lists and of the empty one."""

    def decide(values: list[int]) -> None:
        got, right = number(call(answer, values), f"twice_$n({values})"), 2 * sum(values)
        expect(got == right, f"twice_$n({values}) to be {right}; it is {got}")

    for values in ([1, 2, 3], []):
        decide(values)
    for_all(decide, values=st.lists(st.integers(-9, 9), max_size=5))
''')
CHECK_IMPORTS = {
    "st": "from hypothesis import strategies as st",
    "call": "from labkit.exercises.answers import call",
    "for_all": "from labkit.exercises.answers import for_all",
    "number": "from labkit.exercises.values import number",
    "expect": "from labkit.exercises.outcomes import expect",
}

MISTAKE = Template("""\
        ($n, swap("2 * sum(values)", "sum(values)"), "twice_$n([1, 2, 3]) to be 12; it is 6"),
        ($n, swap("return 2 * sum(values)", "pass"), "a number; it is None"),
""")
RIGHT = Template('        ($n, same),\n        ($n, swap("2 * sum(values)", "sum(values + values)")),\n')
TEST_IMPORTS = {name: f"from labs import {name}" for name in ("same", "swap")}


def new_lab(number: str, topic: str) -> list[Path]:
    """Make a lab with one exercise: source, checks, tests, and its lines in plan, agenda and the doctor's table.

    Parameters
    ----------
    number : str
        Two digits that no lab has yet, such as "10".
    topic : str
        Lower-case words joined by `_`, for the files' names; the title is made from it.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    LabError
        For a number or a topic of another form, or a number that is taken.
    """
    if not re.fullmatch(r"\d\d", number):
        raise LabError(f"a lab's number has two digits, such as 10; {number!r} has not.")
    if not re.fullmatch(r"[a-z]\w*", topic):
        raise LabError(f"a topic is lower-case words joined by _, such as data_pipelines; {topic!r} is not.")
    if taken := [source.stem for source in sources.labs() if source.stem.startswith(number)]:
        raise LabError(f"number {number} is taken by {taken[0]}: take the next free one.")
    names = {"number": number, "name": f"{number}_{topic}", "title": topic.replace("_", " ").capitalize()}
    source = paths.SOLUTIONS / f"{names['name']}.py"
    made = {source: LAB_SOURCE, _checks_of(number): LAB_CHECKS, _tests_of(number): LAB_TESTS}
    for path, template in made.items():
        files.write(path, template.substitute(names))
    plan = paths.SOLUTIONS / minutes.FILE
    files.write(plan, plan.read_text() + MINUTES.substitute(names))
    readme = paths.ROOT / "README.md"
    _insert(readme, r"(?:^\| \[\d\d .*\n)+", AGENDA.substitute(names), "the agenda's table")
    doctor = paths.ROOT / "labkit" / "doctor" / "labs.py"
    _insert(doctor, r"^LABS = \(\n(?:[ ].*\n)+", DOCTOR.substitute(names), "the table LABS")
    new_exercise(source)
    return [*made, plan, readme, doctor]


def new_exercise(source: Path) -> tuple[int, list[Path]]:
    """Add a lab's next exercise to its source, before the closing questions, to its checks, and to its tests.

    Returns
    -------
    tuple of (int, list of Path)
        The exercise's number, and the three files.
    """
    number = len(sources.exercises(sources.read(source))) + 1
    checks, tests = _checks_of(source.stem[:2]), _tests_of(source.stem[:2])
    text = source.read_text()
    at = found.start() if (found := CLOSING.search(text)) else len(text)
    files.write(source, f"{text[:at]}{EXERCISE.substitute(n=number)}{text[at:]}")
    files.write(checks, _importing(CHECK_IMPORTS, checks.read_text() + CHECK.substitute(n=number)))
    _insert(tests, r"^    mistakes = \[\n(?:(?!    \]).*\n)*", MISTAKE.substitute(n=number), "the list `mistakes`")
    _insert(tests, r"^    right = \[\n(?:(?!    \]).*\n)*", RIGHT.substitute(n=number), "the list `right`")
    files.write(tests, _importing(TEST_IMPORTS, tests.read_text()))
    _format(source, checks, tests)
    return number, [source, checks, tests]


def _checks_of(number: str) -> Path:
    return paths.ROOT / "labkit" / "exercises" / f"lab{number}.py"


def _tests_of(number: str) -> Path:
    return paths.ROOT / "tests" / "exercises" / f"test_lab{number}.py"


def _insert(path: Path, after: str, line: str, what: str) -> None:
    """Put a line below what the expression `after` finds."""
    text = path.read_text()
    if not (found := re.search(after, text, re.M)):
        raise LabError(f"{paths.shown(path)} has lost {what}: bring it back, and add there {line.strip()}")
    files.write(path, text[: found.end()] + line + text[found.end() :])


def _importing(imports: dict[str, str], text: str) -> str:
    """Return a module's text with those of the imports that it lacks, for ruff to put in order."""
    imported = " ".join(re.findall(r"^(?:from|import) .*(?:\([^)]*\))?", text, re.M))
    missing = [line for name, line in imports.items() if not re.search(rf"\b{name}\b", imported)]
    first = re.search(r"^(?:from|import) ", text, re.M)
    return text if first is None else "\n".join([text[: first.start()] + "\n".join(missing), text[first.start() :]])


def _format(*changed: Path) -> None:
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    for command in (("check", "--quiet", "--fix", "--select=I"), ("format", "--quiet")):
        subprocess.run([ruff, *command, *changed], cwd=paths.ROOT, check=True)
