"""Lint the labs' sources: report each broken rule with file and line.

Everything is read as text, including the kit's modules: nothing is imported, so it takes seconds.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import glossary, imports, minutes, sources
from labkit_author.notebooks import INSTRUCTOR, by_section, checks, parse, script_of

CHECKED = "nbval-check-output"  # the tag of cells whose output nbval compares with the stored one
MAX_COLUMNS = 100  # of code, the width of a cell in JupyterLab at 1280 pixels
MAX_GAP_LINES = 60  # in a cell with a gap for students to fill
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<-])(?:/(?:home|root|Users|tmp|work|opt|mnt|usr|srv)\b|[A-Z]:\\|~/)")
MARKER = re.compile(r"^# %%(?!%|\w)")

# Measured figures, and their sources. docs/contribute/writing-labs.md lists the figures that don't need one.
_NUMBER = r"(?<![\w.,×])\d[\d,.]*(?:\s(?:to|or|and)\s\d[\d,.]*)?"
RATE = re.compile(
    rf"{_NUMBER}\s(?:(?:batches|files|images?|messages|pixels|records|requests|samples|steps|tokens|updates"
    r"|[kMGT]?(?:FL)?OPs?|[kMGT]?i?B)/s\b|times\s(?:as\s(?:fast|long|slow)|faster|longer|slower))"
    rf"|{_NUMBER}×\s(?:as\s(?:fast|long|slow)|faster|longer|slower)"
)
NOTES = re.compile(  # in instructor's notes, also times, all factors, and intervals
    rf"{RATE.pattern}|(?<!\babout\s){_NUMBER}\s(?:[mµn]?s|seconds)\b|{_NUMBER}×(?![\s(]*\w*\d)"
    r"|\d\.\d+\stimes\b|\(\d+\.\d+ to \d+\.\d+\)"
)
PARAGRAPH = re.compile(r"\S.*?(?=\n\s*\n|\n\s*(?:[-*]|\d+\.)\s|\Z)", re.S)  # or an item of a list
SOURCE = re.compile(r"\]\(http|\]\[|<http|\((?:[^()]*\s)?20[0-3]\d\)|\bIn 20[0-3]\d\b|\bpublished\b", re.I)
QUOTED = re.compile(r"^```.*?^```$|`[^`\n]*`|\$[^$\n]*\$", re.M | re.S)  # an exercise's inputs, as code or a formula

OPENS = re.compile(r"^check, .+ = open_lab\(\"\d\d\", globals\(\)\)$", re.M)

Problem = tuple[int, str]  # line of the source, message


def lint(source: Path) -> list[str]:
    """Return the problems in a lab's source, as lines `file:line: problem`."""
    notebook = sources.read(source)
    starts = [
        number for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1) if MARKER.match(line)
    ]
    elsewhere = {name: other.name for other in sources.labs() if other.name != source.name for name in _written(other)}
    problems = [*_lint_headings(notebook, starts), *glossary.problems(source.read_text(encoding="utf-8"))]
    for cell, start in zip(notebook.cells, starts, strict=True):
        problems += _lint_prose(cell, start) if cell.cell_type == "markdown" else _lint_code(cell, start)
        problems += _lint_paths(cell, start)
        if cell.cell_type == "markdown":
            problems += _lint_figures(cell, start)
        problems += _lint_file(cell, start, elsewhere)
    if not any("syntax" in problem for _, problem in problems):  # exercises are read from the cells' syntax trees
        problems += _lint_exercises(source, notebook, starts)
        problems += _lint_minutes(source, notebook)
        problems += [*_lint_opening(notebook, starts), *_lint_guesses(notebook, starts)]
    return [f"{paths.shown(source)}:{line}: {problem}" for line, problem in sorted(problems)]


def _lint_paths(cell: NotebookNode, start: int) -> Iterator[Problem]:
    for number, line in enumerate(cell.source.splitlines(), start + 1):
        if match := ABSOLUTE_PATH.search(line):
            yield number, f"absolute path '{match.group()}…' exists on one machine only"


def _written(source: Path) -> list[str]:
    return re.findall(r"^# %%writefile (\S+)", source.read_text(encoding="utf-8"), flags=re.M)


def _lint_file(cell: NotebookNode, start: int, elsewhere: dict[str, str]) -> Iterator[Problem]:
    """Find a file that another lab also writes: labs share `work`, so each could run the other's script."""
    name = cell.source.partition("\n")[0].removeprefix("%%writefile ")
    if name in elsewhere:
        yield start + 1, f"{elsewhere[name]} also writes {name}: labs share that folder, so choose another name"


def _lint_prose(cell: NotebookNode, start: int) -> Iterator[Problem]:
    for number, line in enumerate(cell.source.splitlines(), start + 1):
        if re.search(r"!\[\s*\]\(", line):
            yield number, "image without alternative text: ![description](file)"
    for image in re.finditer(r"<img(?![^>]*\balt=\"[^\"]+\")", cell.source):
        line = start + 1 + cell.source.count("\n", 0, image.start())
        yield line, 'image without alternative text: <img alt="description" …>'


def _lint_figures(cell: NotebookNode, start: int) -> Iterator[Problem]:
    """Find results without a source: rates and factors in prose; in instructor's notes, also times and all factors."""
    notes = INSTRUCTOR in cell.metadata.get("tags", [])
    text = cell.source if notes else QUOTED.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), cell.source)
    for paragraph in PARAGRAPH.finditer(text):
        if SOURCE.search(paragraph[0]):
            continue
        for figure in (NOTES if notes else RATE).finditer(paragraph[0]):
            line = start + 1 + text.count("\n", 0, paragraph.start() + figure.start())
            yield line, f"'{' '.join(figure[0].split())}' has no source: results belong in an output"


def _lint_code(cell: NotebookNode, start: int) -> Iterator[Problem]:
    try:
        tree = parse(cell)
    except SyntaxError as error:
        yield start + (error.lineno or 1), f"syntax error: {error.msg}"
        return
    first = _first(cell, start)
    for number, line in enumerate(cell.source.splitlines(), start + 1):
        if len(line) > MAX_COLUMNS:
            yield (
                number,
                f"a line of code has {len(line)} columns: at most {MAX_COLUMNS} fit without scrolling",
            )
    for place, name in imports.missing(tree):
        yield first + place, f"the kit has no {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield first + node.lineno, "import * hides the names it imports: list them"
        if not isinstance(node, ast.Call):
            continue
        line, function = first + node.lineno, ast.unparse(node.func)
        if function in ("get_ipython().system", "get_ipython().getoutput"):
            yield line, "bare !command ignores failures: use run_ranks, subprocess or %%bash"
        if function == "plt.show":
            yield line, "plt.show() has no alternative text: use plots.show(figure, alt=…)"
        if function == "plots.show":
            alt = [keyword.value for keyword in node.keywords if keyword.arg == "alt"]
            if not alt:
                yield line, "plots.show without alt=…, the text for people who can't see the picture"
            elif isinstance(alt[0], ast.Constant) and not str(alt[0].value).strip():
                yield line, "plots.show with an empty alt=…, the text for people who can't see the picture"


def _first(cell: NotebookNode, start: int) -> int:
    """Return the line number before a cell's Python code."""
    return start + bool(script_of(cell))


def _lint_minutes(source: Path, notebook: NotebookNode) -> Iterator[Problem]:
    """Find sections with an exercise but no minutes for it."""
    try:
        to_do = {section.name for section in minutes.plan(source) if section.do}
    except LabError as error:
        yield 1, str(error)
        return
    for part in by_section(notebook):
        if part.exercises and part.name and part.name not in to_do:
            exercises = ", ".join(map(str, part.exercises))
            yield 1, f"section {part.name} has exercise {exercises}, but no minutes to do it: `do` after its heading"


def _lint_opening(notebook: NotebookNode, starts: list[int]) -> Iterator[Problem]:
    """Find imports of TensorFlow before `open_lab`: the cell would print its notices in red."""
    for cell, start in zip(notebook.cells, starts, strict=True):
        if OPENS.search(cell.source):
            return
        if cell.cell_type == "code" and re.search(r"^(?:import|from) tensorflow\b", cell.source, re.M):
            yield start, "TensorFlow is imported before open_lab, which silences its notices"


def _lint_guesses(notebook: NotebookNode, starts: list[int]) -> Iterator[Problem]:
    """Find guesses that are misnumbered, or never compared with a figure."""
    guesses, comparisons = (list(_guess_calls(notebook, starts, method)) for method in ("guess", "compare_guess"))
    for place, (line, number) in enumerate(guesses, 1):
        if number != place:
            yield line, f"guess {number} is the lab's guess {place}: they are numbered 1, 2, 3 …"
        if number not in {other for _, other in comparisons}:
            yield line, f"guess {number} is never compared with a figure (results.compare_guess)"
    for line, number in comparisons:
        if number not in {other for _, other in guesses}:
            yield line, f"guess {number} is compared, but never asked for (results.guess)"


def _guess_calls(notebook: NotebookNode, starts: list[int], method: str) -> Iterator[tuple[int, int]]:
    """Yield line and number of each `results.method(4, …)`, in order."""
    for cell, start in zip(notebook.cells, starts, strict=True):
        if cell.cell_type == "code" and f"results.{method}(" in cell.source:
            for node in ast.walk(parse(cell)):
                match node:
                    case ast.Call(ast.Attribute(attr=name), [ast.Constant(int(number)), *_]) if name == method:
                        yield _first(cell, start) + node.lineno, number


def _lint_headings(notebook: NotebookNode, starts: list[int]) -> Iterator[Problem]:
    level = 0
    for cell, start in zip(notebook.cells, starts, strict=True):
        if cell.cell_type != "markdown":
            continue
        prose = re.sub(r"^```.*?^```", lambda block: "\n" * block.group().count("\n"), cell.source, flags=re.M | re.S)
        for heading in re.finditer(r"^(#+) ", prose, flags=re.M):
            line, depth = start + 1 + prose.count("\n", 0, heading.start()), len(heading.group(1))
            if level == 0 and depth != 1:
                yield line, "the first heading is the title, with one #"
            if level and depth == 1:
                yield line, "a second title"
            if depth > level + 1:
                yield line, f"heading jumps from level {level} to {depth}"
            level = depth
    if level == 0:
        yield 1, "no title"


def _lint_exercises(source: Path, notebook: NotebookNode, starts: list[int]) -> Iterator[Problem]:
    try:
        exercises = sources.exercises(notebook)
        blank = sources.blank(notebook)
    except LabError as error:
        index = re.search(r"cell (\d+)", str(error))
        yield starts[int(index.group(1))] if index else 1, str(error).partition("\n")[0]
        return
    module = paths.ROOT / "labkit" / "exercises" / "labs" / f"lab{source.stem[:2]}.py"
    checked = _checked(ast.parse(module.read_text(encoding="utf-8") if module.exists() else ""))
    if list(exercises) != list(range(1, len(exercises) + 1)):
        yield 1, f"exercises are numbered {list(exercises)}, not 1, 2, 3 …"
    for cell, start in zip(notebook.cells, starts, strict=True):
        if checks(cell) and CHECKED not in cell.metadata.get("tags", []):
            yield start, f"an exercise is checked without the tag {CHECKED}: a failing solution would go unnoticed"
    for number, exercise in exercises.items():
        line, length = starts[exercise.cell], blank.cells[exercise.cell].source.count("\n") + 1
        if number not in checked:
            yield line, f"exercise {number} has no check in {paths.shown(module)}"
        if length > MAX_GAP_LINES:
            yield line, f"exercise {number} hides its gap in {length} lines: use at most {MAX_GAP_LINES}"
    for number in checked - exercises.keys():
        yield 1, f"{paths.shown(module)} checks exercise {number}, which is not in the source"


def _checked(module: ast.Module) -> set[int]:
    """Return the exercises in a lab's table."""
    numbers = set()
    for node in ast.walk(module):
        match node:
            case ast.Assign([ast.Subscript(ast.Name("EXERCISES"), ast.Constant(int(number)))]):
                numbers.add(number)
    return numbers
