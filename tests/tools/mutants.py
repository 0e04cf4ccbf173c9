"""Generate mutants of an answer: its text with one small mistake that a student could make."""

import ast
import copy
from collections.abc import Iterator
from typing import Any

from labkit_author.notebooks import BEGIN, END

OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.FloorDiv, ast.Add),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div, ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv, ast.Mult),
    ast.Pow: (ast.Mult,),
    ast.MatMult: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr, ast.BitAnd),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
COMMUTE = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)
ALIKE = (  # functions, methods and attributes that are easily confused
    *(("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("sum", "mean", "max"), ("mean", "median")),
    *(("ceil", "floor", "round"), ("any", "all"), ("zeros", "ones"), ("rank", "size"), ("std", "var"), ("abs", "sum")),
    *(("sorted", "list"), ("reversed", "list"), ("reduce_sum", "reduce_mean"), ("lower", "upper"), ("log", "log2")),
    *(("startswith", "endswith"), ("stop", "start"), ("sqrt", "square"), ("append", "extend"), ("comb", "perm")),
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def mutants(text: str) -> dict[str, str]:
    """Return the mutants of a solution: each mutant's text, with the changed line as `old → new`."""
    tree = ast.parse(text)
    original = ast.unparse(tree)
    lines: dict[str, str] = {}
    for holder, key, node, names in _places(tree, _solution(text), []):
        for other in _alternatives(node, names):
            holder[key] = other
            try:
                mutant = ast.unparse(ast.fix_missing_locations(tree))
                compile(mutant, "<mutant>", "exec")
            except (SyntaxError, ValueError):  # such as a `return` within a tuple
                continue
            finally:
                holder[key] = node
            if mutant != original:
                lines[mutant] = difference(original, mutant)
    return lines


def difference(before: str, after: str) -> str:
    """Return the lines that differ between two texts, as `old → new`."""
    old, new = before.splitlines(), after.splitlines()
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return " → ".join("; ".join(line.strip() for line in lines) or "(nothing)" for lines in (old, new))


def _solution(text: str) -> set[int]:
    """Return the line numbers of all solution blocks."""
    inside, lines = False, set()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() in (BEGIN, END):
            inside = line.strip() == BEGIN
        elif inside:
            lines.add(number)
    return lines


def _places(node: ast.AST, inside: set[int], names: list[str]) -> Iterator[tuple[Any, Any, ast.AST, list[str]]]:
    """Yield each node of the solution: its parent container, its key there, the node, the names in its function."""
    if isinstance(node, ast.FunctionDef):
        stored = [part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
        names = list(dict.fromkeys([*(arg.arg for arg in node.args.args), *(name.id for name in stored)]))
    for field, value in ast.iter_fields(node):
        holder: Any = value if isinstance(value, list) else vars(node)
        for key in range(len(value)) if isinstance(value, list) else (field,):
            child = holder[key]
            if not isinstance(child, ast.AST) or isinstance(child, ast.expr_context) or _is_docstring(child):
                continue
            stores = isinstance(getattr(child, "ctx", None), ast.Store)
            if getattr(child, "lineno", None) in inside and not stores:
                yield holder, key, child, names
            yield from _places(child, inside, names)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _but(node: Any, **fields: Any) -> Any:
    """Return a copy of a node with other fields."""
    changed = copy.copy(node)
    vars(changed).update(fields)
    return changed


def _without(parts: list[Any]) -> Iterator[list[Any]]:
    """Yield the list without one of its parts, for each part."""
    yield from (parts[:at] + parts[at + 1 :] for at in range(len(parts)))


def _swapped(parts: list[Any]) -> Iterator[list[Any]]:
    """Yield the list with each pair of neighbours swapped."""
    yield from ([*parts[:at], parts[at + 1], parts[at], *parts[at + 2 :]] for at in range(len(parts) - 1))


def _near(node: ast.expr) -> Iterator[ast.expr]:
    """Yield an expression plus one and minus one; constants are changed in place."""
    if not isinstance(node, ast.Constant):
        yield from (ast.BinOp(node, operator, ast.Constant(1)) for operator in (ast.Add(), ast.Sub()))


def _shortened(iterable: ast.expr) -> Iterator[ast.expr]:
    """Yield a loop's iterable without its first element, and without its last."""
    for part in (ast.Slice(lower=ast.Constant(1)), ast.Slice(upper=ast.Constant(-1))):
        yield ast.Subscript(ast.Call(ast.Name("list"), [iterable], []), part)


def _alternatives(node: Any, names: list[str]) -> Iterator[ast.AST]:
    """Yield alternatives to a node."""
    if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef):
        yield ast.Pass()
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            yield from (_but(node, op=other()) for other in OPERATORS[type(op)])
            yield from (left, right)
            if not isinstance(op, COMMUTE):
                yield _but(node, left=right, right=left)
            if isinstance(op, ast.FloorDiv):  # division that rounds up, and to the nearest
                yield ast.UnaryOp(ast.USub(), _but(node, left=ast.UnaryOp(ast.USub(), left)))
                yield ast.Call(ast.Name("round"), [_but(node, op=ast.Div())], [])
        case ast.AugAssign(target=target, op=op, value=value):
            yield from (_but(node, op=other()) for other in OPERATORS[type(op)])
            yield ast.Assign([_but(target, ctx=ast.Store())], value)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.BoolOp(op=op, values=values):
            yield from (_but(node, op=other()) for other in OPERATORS[type(op)])
            yield from (_but(node, values=fewer) if len(fewer) > 1 else fewer[0] for fewer in _without(values))
        case ast.Compare(ops=ops):
            for at, compared in enumerate(ops):
                yield from (_but(node, ops=[*ops[:at], other(), *ops[at + 1 :]]) for other in OPERATORS[type(compared)])
        case ast.Constant(value=value):
            yield from (ast.Constant(other) for other in _other_values(value) if other != value)
        case ast.Name(id=name):
            yield from (ast.Name(other) for alike in ALIKE if name in alike for other in alike)
            if name in names:
                at = names.index(name)
                yield from (ast.Name(other) for other in (names[at - 1], names[(at + 1) % len(names)]))
        case ast.Attribute(value=value, attr=attr):
            yield from (_but(node, attr=other) for alike in ALIKE if attr in alike for other in alike)
            if attr == "T":
                yield value
        case ast.Call(func=function, args=args, keywords=keywords):
            swapped = () if isinstance(function, ast.Name) and function.id in ("min", "max") else _swapped(args)
            yield from (_but(node, args=other) for other in (*_without(args), *swapped))
            yield from (_but(node, keywords=fewer) for fewer in _without(keywords))
            if len(args) == 1 and not keywords:
                yield args[0]
            if isinstance(function, ast.Attribute) and not _is_module(function.value, names):
                yield function.value
            if isinstance(function, ast.Name) and function.id == "range":
                yield from (_but(node, args=[*args[:-1], last]) for last in _near(args[-1]))
        case ast.Subscript(value=value, slice=ast.Slice()) | ast.Subscript(value=value, slice=ast.Tuple()):
            yield value
        case ast.Subscript(value=value, slice=index):
            yield from (_but(node, slice=other) for other in _near(index))
            yield value
        case ast.Slice():
            for bound in ("lower", "upper", "step"):
                if at := getattr(node, bound):
                    yield from (_but(node, **{bound: other}) for other in (None, *_near(at)))
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.If() | ast.While():
            yield _but(node, test=ast.Constant(False))
            if isinstance(node, ast.If):
                yield _but(node, test=ast.Constant(True))
        case ast.For(iter=iterable):
            yield from (_but(node, iter=shorter) for shorter in _shortened(iterable))
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            yield from (_but(node, elts=other) for other in (*_swapped(parts), *_without(parts)))
        case ast.Return(value=ast.AST()):
            yield from (_but(node, value=ast.Name(name)) for name in names)
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
    if isinstance(node, COMPREHENSIONS):
        for at, loop in enumerate(node.generators):
            others = [_but(loop, iter=shorter) for shorter in _shortened(loop.iter)]
            others += [_but(loop, ifs=fewer) for fewer in _without(loop.ifs)]
            for other in others:
                yield _but(node, generators=[*node.generators[:at], other, *node.generators[at + 1 :]])


def _other_values(value: Any) -> tuple[Any, ...]:
    match value:
        case bool():
            return (not value,)
        case int():
            return (value + 1, value - 1, 0, -value)
        case float():
            return (0.0, -value, value / 2, value * 2)
        case str():
            return (f"{value}x",)
    return ()


def _is_module(node: ast.expr, names: list[str]) -> bool:
    """Whether an expression may be a module, such as `np`, whose functions are not methods."""
    return (isinstance(node, ast.Name) and node.id not in names) or (
        isinstance(node, ast.Attribute) and _is_module(node.value, names)
    )
