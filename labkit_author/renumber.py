"""Makes room for an exercise among a lab's: those after it get the next number, wherever the lab's files name them.

In code the numbers are found by the syntax tree: in `check(4, …)`, in `@lab.exercise(4, beside=(2,))`, in a test's
cases, and in what a loop gives to `student.answer(number)`. In prose it is "exercise 4" of the same lab.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from nbformat import NotebookNode

from labkit.exercises import notebooks, sources
from labkit.system import files, paths
from labkit_author import build

EQUIVALENT = Path("tests") / "exercises" / "equivalent.toml"
CHECKED = ("check", "answer", "judge")  # calls whose first argument is an exercise's number
CASES = ("mistakes", "right")  # lists of a test whose tuples begin with it
PARAMETER = "exercise"  # the first of a test's parameters, where its cases begin with it
KEYED = "checks"  # an attribute that is keyed by it
# "exercise 4", "exercise 4 or 5", "exercises 2, 3 and 5", over the end of a line too.
GAP = r"(?:\s|#)+"
PROSE = re.compile(
    rf"(?P<lab>\blab (?P<of>\d\d)['’]s{GAP})?"
    rf"(?P<word>\b[Ee]xercise(?P<many>s)?{GAP})"
    rf"(?P<numbers>\d+\b(?(many)(?:,{GAP}\d+\b)*(?:,?{GAP}(?:and|or|to){GAP}\d+\b)?|(?:{GAP}or{GAP}\d+\b)?))"
    rf"(?P<after>{GAP}of{GAP}lab{GAP}\d\d)?"
)


def make_room(source: Path, after: int) -> tuple[list[Path], list[str]]:
    """Add one to the number of each exercise of a lab that comes after exercise `after`.

    The lab's stored outputs stay, with the new numbers in its verdicts.

    Parameters
    ----------
    source : Path
        The lab's source.
    after : int
        The last exercise that keeps its number.

    Returns
    -------
    tuple of (list of Path, list of str)
        The files that changed, and `file:line` where a loop counts exercises, which only a person can follow.
    """
    lab = source.stem[:2]

    def moved(number: int) -> int:
        return number + (number > after)

    run = build.with_stored_outputs(source)
    changed, counted = [], []
    for path in _files_of(source):
        text = path.read_text()
        new = prose(text, lab, moved, own=True)
        if path.suffix == ".py":
            new = prose(code(text, moved), lab, moved, own=True)
            counted += [f"{paths.shown(path)}:{line}" for line in counting(ast.parse(text))]
        if path.name == EQUIVALENT.name:
            new = re.sub(rf"^\[{lab}\.(\d+)\]$", lambda found: f"[{lab}.{moved(int(found[1]))}]", text, flags=re.M)
        changed += _write(path, text, new)
    for path in _others(source):
        text = path.read_text()
        changed += _write(path, text, prose(text, lab, moved, own=False))
    if (path := notebooks.solution_path(source)).exists():
        now = _with_run(notebooks.solution(source), run, lambda text: prose(text, lab, moved, own=True))
        changed += _write(path, path.read_text(), notebooks.dumps(now))
    return changed, counted


def _with_run(notebook: NotebookNode, run: NotebookNode, renumbered: Callable[[str], str]) -> NotebookNode:
    """Return a notebook with the outputs of its stored run, cell by cell, the numbers in verdicts changed."""
    for cell, ran in zip(notebook.cells, run.cells, strict=True):
        if cell.cell_type != "code":
            continue
        cell.outputs, cell.execution_count, cell.metadata = ran.outputs, ran.execution_count, ran.metadata
        if sources.checks(cell):
            for output in cell.outputs:
                data = output.get("data", {})
                data.update({kind: renumbered(text) for kind, text in data.items() if isinstance(text, str)})
    return notebook


def _write(path: Path, before: str, now: str) -> list[Path]:
    if before != now:
        files.write(path, now)
    return [path] * (before != now)


def _files_of(source: Path) -> list[Path]:
    """Return the files whose numbers are this lab's."""
    lab = source.stem[:2]
    checks, tests = paths.ROOT / "labkit" / "exercises", paths.ROOT / "tests" / "exercises"
    equivalent = paths.ROOT / EQUIVALENT
    return [
        source,
        *sorted(checks.glob(f"lab{lab}*.py")),
        *sorted(tests.glob(f"*lab{lab}*.py")),
        *([equivalent] if equivalent.exists() else []),
    ]


def _others(source: Path) -> list[Path]:
    """Return the files that name an exercise of this lab as "lab 07's exercise 4", if they do."""
    guides = [*sorted((paths.ROOT / "docs").glob("*.md")), paths.ROOT / "CONTRIBUTING.md"]
    return [path for path in [*sources.labs(), *guides] if path != source and path.exists()]


def prose(text: str, lab: str, moved: Callable[[int], int], own: bool) -> str:
    """Return a text with the exercises of a lab that its sentences name renumbered.

    Parameters
    ----------
    text : str
        The text of a lab, comments and strings included, or of a document.
    lab : str
        The lab, such as "09".
    moved : callable
        The function from a number to the new one.
    own : bool
        Whether an exercise without a lab is this lab's.
    """

    def renumbered(found: re.Match[str]) -> str:
        of = found["of"] or (found["after"] and found["after"][-2:])
        if of != lab if of else not own:
            return found[0]
        numbers = re.sub(r"\d+", lambda number: str(moved(int(number[0]))), found["numbers"])
        return f"{found['lab'] or ''}{found['word']}{numbers}{found['after'] or ''}"

    return PROSE.sub(renumbered, text)


def code(text: str, moved: Callable[[int], int]) -> str:
    """Return a module's text with its exercises' numbers changed, and nothing else."""
    lines = text.encode().split(b"\n")  # a tree's columns are bytes
    places = {(node.lineno, node.col_offset): node for node in numbers(ast.parse(text))}
    for (line, column), node in sorted(places.items(), reverse=True):
        before = lines[line - 1]
        lines[line - 1] = before[:column] + str(moved(ast.literal_eval(node))).encode() + before[node.end_col_offset :]
    return b"\n".join(lines).decode()


def numbers(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the constants of a module that are exercises' numbers."""
    keyed = _keyed(tree)
    for scope in tree.body:
        variables = _variables(scope, keyed)
        for node in ast.walk(scope):
            match node:
                case ast.Call(function, [ast.Constant(int()) as number, *_]) if _name(function) in CHECKED:
                    yield number
                case ast.Call(ast.Attribute(attr="exercise"), arguments, keywords):
                    yield from (constant for constant in arguments[:1] if _whole(constant))
                    yield from (
                        constant for word in keywords if word.arg == "beside" for constant in _members(word.value)
                    )
                case ast.Subscript(value, ast.Constant(int()) as number) if _name(value) in keyed:
                    yield number
                case ast.Assign([ast.Name(name)], value) if name in CASES:
                    yield from _first_of_tuples(value)
                case ast.Call(ast.Attribute(attr="parametrize"), [names, cases, *_]) if _first_name(names) == PARAMETER:
                    yield from _first_of_tuples(cases)
                case ast.Assign([ast.Name("slow")], ast.Call(ast.Name("frozenset"), [values])):
                    yield from _members(values)
                case ast.comprehension(target, values) | ast.For(target, values) if _bound(target) in variables:
                    yield from _members(_defined(values, tree))
                case ast.Compare(left, [ast.Eq() | ast.In() | ast.NotIn()], [right]) if _means(left, variables):
                    yield from [right] if _whole(right) else _members(_defined(right, tree))


def counting(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of loops over exercises that are counted by `enumerate` or `range`, not written."""
    keyed = _keyed(tree)
    for scope in tree.body:
        variables = _variables(scope, keyed)
        for node in ast.walk(scope):
            match node:
                case ast.comprehension(target, ast.Call(ast.Name("enumerate" | "range")) as values) | ast.For(
                    target, ast.Call(ast.Name("enumerate" | "range")) as values
                ) if _bound(target) in variables:
                    yield values.lineno


def _keyed(tree: ast.Module) -> set[str]:
    """Return the names of mappings with exercises' numbers as keys, such as those made from `sources.exercises(…)`."""
    assignments = (
        (node.targets[0].id, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    )
    return {KEYED} | {
        name
        for name, value in assignments
        if any(isinstance(node, ast.Call) and _name(node.func) == "exercises" for node in ast.walk(value))
    }


def _variables(scope: ast.AST, keyed: set[str]) -> set[str]:
    """Return the variables that hold an exercise's number: they are checked, answered, or a key."""
    variables = set()
    for node in ast.walk(scope):
        match node:
            case ast.Call(function, [ast.Name(name), *_]) if _name(function) in CHECKED:
                variables.add(name)
            case ast.Subscript(value, ast.Name(name)) if _name(value) in keyed:
                variables.add(name)
    return variables


def _means(node: ast.AST, variables: set[str]) -> bool:
    """Tell whether an expression is an exercise's number: a variable of them, or `params["exercise"]`."""
    match node:
        case ast.Name(name):
            return name in variables
        case ast.Subscript(_, ast.Constant("exercise")):
            return True
        case ast.Call(ast.Attribute(attr="get"), [ast.Constant("exercise"), *_]):
            return True
    return False


def _defined(values: ast.expr, tree: ast.Module) -> ast.expr:
    """Return the literal that a loop or a comparison takes: itself, or the one that this module gave its name."""
    match values:
        case ast.Call(ast.Attribute(inner, "items" | "keys"), []):
            return _defined(inner, tree)
        case ast.Name(name):
            definitions = [
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Assign) and any(_name(target) == name for target in node.targets)
            ]
            return definitions[0] if len(definitions) == 1 else values
    return values


def _members(values: ast.expr) -> Iterator[ast.expr]:
    """Yield the whole numbers of a literal collection: its elements, its keys."""
    match values:
        case ast.Tuple(parts) | ast.List(parts) | ast.Set(parts) | ast.Dict(parts):
            yield from (part for part in parts if part and _whole(part))
        case ast.Call(ast.Name("frozenset" | "set" | "tuple" | "sorted"), [inner]):
            yield from _members(inner)


def _first_of_tuples(values: ast.expr) -> Iterator[ast.expr]:
    """Yield the first elements of a test's cases."""
    match values:
        case ast.List(cases):
            for case in cases:
                yield from _first_of_tuples(case)
        case ast.Tuple([first, *_]) if _whole(first):
            yield first
        case ast.Starred(inner):
            yield from _first_of_tuples(inner)
        case ast.ListComp(case) | ast.GeneratorExp(case):
            yield from _first_of_tuples(case)
        case ast.BinOp(left, ast.Add(), right):
            yield from _first_of_tuples(left)
            yield from _first_of_tuples(right)


def first_number(case: ast.expr) -> int | None:
    """Return the number of the exercise that a case of a test is about; None where it is not written."""
    return next((ast.literal_eval(number) for number in _first_of_tuples(case)), None)


def _first_name(names: ast.expr) -> str:
    """Return the first of the parameters that `pytest.mark.parametrize` names: in a sequence, or in one string."""
    match names:
        case ast.Tuple([ast.Constant(str(name)), *_]) | ast.List([ast.Constant(str(name)), *_]):
            return name
        case ast.Constant(str(name)):
            return name.split(",")[0].strip()
    return ""


def _whole(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _bound(target: ast.AST) -> str:
    """Return the first name that a loop binds."""
    return _name(target.elts[0]) if isinstance(target, ast.Tuple) else _name(target)


def _name(node: ast.AST) -> str:
    """Return a name, or the last part of a dotted one; empty for anything else."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
    return ""
