"""Graphs of NumPy operations like those of lab 01, which record what runs."""

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.exercises.engine.answers import failure
from labkit.exercises.engine.outcomes import NotYet, expect
from labkit.exercises.engine.values import describe

KERNELS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("add", "subtract", "multiply", "divide", "matmul", "sqrt", "exp")},
    "relu": lambda x: np.maximum(x, 0),
    "dense": lambda x, weights, bias: np.maximum(x @ weights + bias, 0),
}


STAY = "Return nodes without inputs as they are."
_numbers = itertools.count(1)


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """A node as in the lab; `ran` has all operations that its graph computed."""

    op: str
    inputs: tuple[Any, ...]
    value: Any
    name: str
    ran: list[str]

    def compute(self, *values: Any) -> Any:
        """Return the node's result for the values of its inputs."""
        if self.op == "constant":
            return self.value
        expect(self.op != "input", f"no call of {self.name}.compute(): a placeholder is fed, or isn't needed")
        self.ran.append(self.op)
        return KERNELS[self.op](*values)

    def __repr__(self) -> str:
        """Return its name: a shared node's text would appear once for each use."""
        return self.name


def _maker(op: str, ran: list[str]) -> Callable[..., Node]:
    def node(value: Any) -> Node:
        return value if isinstance(value, Node) else make("constant", value=np.asarray(value, float))

    def make(op: str, *inputs: Any, value: Any = None) -> Node:
        return Node(op, tuple(map(node, inputs)), value, f"{op}_{next(_numbers)}", ran)

    return node if op == "constant" else functools.partial(make, op)


for _op, _method in map(str.split, ("add add", "subtract sub", "multiply mul", "divide truediv", "matmul matmul")):
    setattr(Node, f"__{_method}__", lambda self, other, op=_op: _maker(op, self.ran)(self, other))


def graph(text: str, feed: dict[str, Any]) -> tuple[Node, dict[Node, Any], list[str]]:
    """Return the node y of a graph, described by statements, what to feed, and the list of what will have run."""
    ran: list[str] = []
    nodes = {name: Node("input", (), None, name, ran) for name in "xwb"}
    nodes |= {op: _maker(op, ran) for op in ("constant", "sqrt", "exp", "relu")}  # type: ignore[misc]
    exec(text, {"__builtins__": {}}, nodes)
    return nodes["y"], {nodes[name]: value for name, value in feed.items()}, ran


def nodes_of(fetch: Any) -> list[Any]:
    """Return all nodes that an answer's node needs, and itself."""
    nodes, todo = dict[int, Any](), [fetch]
    while todo:
        node = todo.pop()
        expect(hasattr(node, "inputs"), f"the graph to consist of nodes; it contains {describe(node)}")
        todo += [] if id(node) in nodes else node.inputs
        nodes[id(node)] = node
    return list(nodes.values())


def value_of_answer(fetch: Any, feed: dict[Node, Any]) -> Any:
    """Return the value of an answer's node; blame the answer if it can't be computed."""
    values = {id(node): value for node, value in feed.items()}

    def value_of(node: Any) -> Any:
        if id(node) not in values:
            expect(node.op != "input", "placeholders to stay the same objects; the graph contains another one", STAY)
            values[id(node)] = node.compute(*map(value_of, node.inputs))
        return values[id(node)]

    try:
        return value_of(fetch)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise NotYet(f"{failure(error)}. That happens when the graph that you return runs.") from error


def count(nodes: Iterable[Any], *ops: str) -> int:
    """Return the number of nodes with one of these operations; by default, with any."""
    return sum(node.op in (ops or KERNELS) for node in nodes)


def label(call: str) -> Callable[..., str]:
    """Return the function that names a case; `call` is the call of the answer, with {} for what is fed."""

    def name(text: str, feed: dict[str, Any], least: int = 0) -> str:
        fed = ", ".join(f"{key}: {np.asarray(value).tolist()}" for key, value in feed.items())
        return f"{call.format('{' + fed + '}')}, where {text},"

    return name
