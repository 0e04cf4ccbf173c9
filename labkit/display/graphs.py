"""Pictures of TensorFlow graphs, before and after Grappler's rewrites.

Operations are boxes; tensors are arrows from the operation that produces them to those that consume them. Shape and
colour distinguish inputs, constants, variables and operations. Plumbing is left out: control edges, `NoOp`, and
operations that pass results on. A value fed to a Session has its placeholder's name.

Lengths are in points, 72 to an inch, so that boxes fit their text.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import igraph
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from labkit.display import plots

INPUT, CONSTANT, VARIABLE, OPERATION, FUSED = "input", "constant", "variable", "operation", "fused operation"
MERGED, FOLDED, PRUNED, SPARED = "part of a fusion", "constant-folded", "pruned", "simplified away"

FILLS = {
    INPUT: plots.SKY,
    CONSTANT: plots.YELLOW,
    VARIABLE: plots.GREEN,
    OPERATION: "white",
    FUSED: plots.ORANGE,
}
OUTLINES = {
    MERGED: (plots.VERMILION, "solid"),
    FOLDED: (plots.PURPLE, "dashed"),
    PRUNED: (plots.BLACK, "dotted"),
    SPARED: (plots.BLUE, "dashdot"),
}
_KINDS = {"_Arg": INPUT, "_Recv": INPUT, "Const": CONSTANT, "HostConst": CONSTANT}
_KINDS |= dict.fromkeys(["Placeholder", "PlaceholderWithDefault"], INPUT)
_KINDS |= dict.fromkeys(["Variable", "VariableV2", "VarHandleOp"], VARIABLE)
_PLUMBING = {"NoOp", "_Retval", "_Send", "_HostSend", "VarIsInitializedOp"}
_FED = re.compile(r"_arg_(.+)_(\d+)_\d+")  # a Session's name for a value fed in place of an operation's output

_TITLE, _BOLD, _PLAIN = FontProperties(size=14), FontProperties(size=12, weight="bold"), FontProperties(size=11)
_LINE, _PAD, _GAP = 15, 9, 20  # line height, padding, space between boxes
_MAX_NAME_LENGTH = 24  # characters; of longer names, only the last parts are shown


@dataclass(frozen=True)
class Node:
    """An operation.

    Attributes
    ----------
    name, op, kind : str
        Its name, its type, and which of the five kinds it is.
    parts : tuple of str
        The operations that a rewrite fused into this one, such as ("Conv2D", "BiasAdd", "Relu"); usually empty.
    """

    name: str
    op: str
    kind: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Edge:
    """A tensor: output number `output` of one operation, an input of another."""

    source: str
    target: str
    output: int = 0


def read(graph: Any) -> tuple[list[Node], list[Edge]]:
    """Return the operations and tensors of a graph that are worth drawing.

    Parameters
    ----------
    graph : GraphDef or iterable of NodeDef
        The graph, such as `tf.Graph.as_graph_def()` or one of `RunMetadata.partition_graphs`.
    """
    defs = [node for node in getattr(graph, "node", graph) if node.op not in _PLUMBING]
    consumed = {tensor.partition(":")[0] for node in defs for tensor in node.input}
    defs = [node for node in defs if node.op != "ReadVariableOp" or node.name in consumed]  # every variable has one
    names = {node.name: _shown_name(node) for node in defs}
    nodes = [_node(node, names[node.name]) for node in defs]
    edges = []
    for node in defs:
        for tensor in node.input:
            source, _, output = tensor.partition(":")
            if source in names:  # control inputs, such as "^init", aren't
                edges.append(Edge(names[source], names[node.name], int(output or 0)))
    return nodes, edges


def classify_rewrites(before: Any, after: Any) -> dict[str, str]:
    """Return the effect of a rewrite on each operation, by name: MERGED, FOLDED, PRUNED or SPARED.

    Unchanged operations have no entry. For the graphs, see `read`.
    """
    nodes, edges = read(before)
    names = {node.name for node in nodes}
    sources = defaultdict(list)
    for edge in edges:
        sources[edge.target].append(edge.source)
    constant: set[str] = set()  # can be computed without running the graph
    first: dict[str, str] = {}  # the first operation with the same type and inputs
    known: dict[Any, str] = {}
    for node in _topological_order(nodes, edges):
        inputs = [(first.get(edge.source, edge.source), edge.output) for edge in edges if edge.target == node.name]
        first[node.name] = known.setdefault((node.op, *inputs) if inputs else node.name, node.name)
        if node.kind == CONSTANT or (sources[node.name] and constant.issuperset(sources[node.name])):
            constant.add(node.name)
    rewritten = {node.name: node for node in read(after)[0]}
    origins = {name: next((scope for scope in _with_scopes(name) if scope in names), "") for name in rewritten}
    left = {first.get(name) for name in rewritten}
    duplicates = {name for name in names if first[name] in left}
    merged: set[str] = set()
    for name, node in rewritten.items():
        if node.parts:
            within = (names - rewritten.keys() - constant - duplicates) | {origins[name]}
            merged |= _upstream([origins[name]], sources, within=within)
    fed = {name for name, node in rewritten.items() if node.kind == INPUT}  # so nothing upstream is needed
    unfed = {name: inputs for name, inputs in sources.items() if name not in fed}
    needed = _upstream(origins.values(), unfed, within=names)

    rewrites = {}
    for node in nodes:
        if node.name in merged:
            rewrites[node.name] = MERGED
        elif node.name not in rewritten:
            rewrites[node.name] = PRUNED if node.name not in needed else FOLDED if node.name in constant else SPARED
        elif node.kind != CONSTANT and rewritten[node.name].kind == CONSTANT:
            rewrites[node.name] = FOLDED
    rewrites |= {name: FOLDED for name, node in rewritten.items() if node.kind == CONSTANT and name not in names}
    return rewrites | {name: MERGED for name, node in rewritten.items() if node.parts}


def describe(graph: Any) -> str:
    """Describe a graph in words, for readers who can't see its picture."""
    nodes, edges = read(graph)
    texts = []
    for node in nodes:
        inputs = [edge.source for edge in edges if edge.target == node.name]
        op = f"{node.op}: {' + '.join(node.parts)}" if node.parts else node.op
        texts.append(f"{node.name} ({op})" + (f" takes {', '.join(inputs)}" if inputs else ""))
    return "; ".join(texts) or "no operations"


def draw(graph: Any, title: str) -> Figure:
    """Draw a graph, its inputs on top.

    Parameters
    ----------
    graph : GraphDef or iterable of NodeDef
        The graph, as for `read`.
    title : str
        The picture's title.
    """
    return _figure(title, [("", _Layout(graph, {}))])


def compare(before: Any, after: Any, title: str) -> Figure:
    """Draw a graph as written next to its rewritten form; rewritten operations are outlined in both."""
    marks = classify_rewrites(before, after)
    return _figure(title, [("as written", _Layout(before, marks)), ("as it runs", _Layout(after, marks))])


# Reading


def _shown_name(node: Any) -> str:
    fed = _FED.fullmatch(node.name) if node.op == "_Arg" else None
    if fed is None:
        return str(node.name)
    return fed[1] if fed[2] == "0" else f"{fed[1]}:{fed[2]}"


def _node(node: Any, name: str) -> Node:
    parts = [part.decode() for key in ("fused_ops", "op_names") if key in node.attr for part in node.attr[key].list.s]
    if "activation_mode" in node.attr:  # of _FusedBatchNormEx
        parts += [part for part in [node.attr["activation_mode"].s.decode()] if part not in ("", "Identity")]
    if not parts:
        return Node(name, node.op, _KINDS.get(node.op, OPERATION))
    first = [] if "op_names" in node.attr else [re.sub("^_(Mkl(Native)?)?(Fused)?|Ex$", "", node.op)]
    return Node(name, node.op, FUSED, (*first, *parts))


def _with_scopes(name: str) -> list[str]:
    """Return a name and its scopes, innermost first: rewrites add operations in a node's scope."""
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _topological_order(nodes: list[Node], edges: list[Edge]) -> list[Node]:
    """Return the operations, each after its inputs; in the graph's order if there is a cycle."""
    graph = _graph(nodes, edges)
    return [nodes[index] for index in graph.topological_sorting()] if graph.is_dag() else nodes


def _graph(nodes: list[Node], edges: list[Edge]) -> igraph.Graph:
    number = {node.name: index for index, node in enumerate(nodes)}
    pairs = [(number[edge.source], number[edge.target]) for edge in edges]
    return igraph.Graph(len(nodes), pairs, directed=True)


def _upstream(names: Iterable[str], sources: dict[str, list[str]], within: set[str]) -> set[str]:
    """Return these names and all their direct and indirect inputs, without leaving `within`."""
    visited, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name not in visited and name in within:
            visited.add(name)
            todo += sources.get(name, [])
    return visited


# Drawing


class _Layout:
    """The layout of a graph: y runs downwards from 0 to `height`, x from 0 to `width`."""

    def __init__(self, graph: Any, marks: dict[str, str]):
        self.nodes, self.edges = read(graph)
        self.marks = marks
        self.sizes = [_size(node) for node in self.nodes]
        self.row = max((height for _, height in self.sizes), default=0)
        pairs = _graph(self.nodes, self.edges)
        layout = pairs.layout_sugiyama(layers=_layers(pairs))
        # Boxes first, then the points where edges cross a row of boxes: none of them overlap.
        points, routes = list(layout.coords), []
        links: list[tuple[int, int]] = []
        for (source, target), route in zip(pairs.get_edgelist(), layout.edge_routing, strict=True):
            first, last = layout.coords[source][1], layout.coords[target][1]
            between = sorted((y, x) for x, y in route if first < y < last)
            routes.append(range(len(points), len(points) + len(between)))
            points += [[x, y] for y, x in between]
            links += pairwise([source, *routes[-1], target])
        widths = [width for width, _ in self.sizes] + [0.0] * (len(points) - len(self.nodes))
        columns = _columns(points, links, widths)
        places = [(x, self.row / 2 + y * (self.row + 2 * _GAP)) for x, (_, y) in zip(columns, points, strict=True)]
        self.places = places[: len(self.nodes)]
        self.bends = [[places[index] for index in route] for route in routes]
        self.width = max((x + width / 2 for (x, _), width in zip(places, widths, strict=True)), default=0)
        self.height = max((y + self.row / 2 for _, y in places), default=0)

    def paint(self, axes: Axes, x0: float, y0: float) -> None:
        """Draw the graph with its upper left corner at (x0, y0)."""
        number = {node.name: index for index, node in enumerate(self.nodes)}
        for index, (edge, bends) in enumerate(zip(self.edges, self.bends, strict=True)):
            offset = 8 * [(other.source, other.target) for other in self.edges[:index]].count(
                (edge.source, edge.target)
            )
            source, target = number[edge.source], number[edge.target]
            (start_x, start_y), (end_x, end_y) = self.places[source], self.places[target]
            start = (x0 + start_x + offset, y0 + start_y + self.sizes[source][1] / 2)
            end = (x0 + end_x + offset, y0 + end_y - self.sizes[target][1] / 2)
            middle = [(x0 + x, y0 + y + half) for x, y in bends for half in (-self.row / 2, self.row / 2)]
            _arrow(axes, [start, *middle, end], f"{edge.source}→{edge.target}")
            if edge.output:
                axes.text(start[0] + 3, start[1] + 3, f":{edge.output}", va="top", fontproperties=_PLAIN)
        for node, (x, y), size in zip(self.nodes, self.places, self.sizes, strict=True):
            _box(axes, node.kind, x0 + x, y0 + y, *size, self.marks.get(node.name), node.name)
            lines = _lines(node)
            for line, (text, font) in enumerate(lines):
                below = (line - (len(lines) - 1) / 2) * _LINE
                axes.text(x0 + x, y0 + y + below, text, fontproperties=font, ha="center", va="center")


def _layers(graph: igraph.Graph) -> list[int] | None:
    """Return each operation's row, as far down as its consumers allow; None if there is a cycle."""
    if not graph.is_dag():
        return None
    below = [0] * graph.vcount()
    for vertex in reversed(graph.topological_sorting()):
        below[vertex] = max((below[consumer] + 1 for consumer in graph.successors(vertex)), default=0)
    return [max(below) - rows for rows in below]


def _columns(points: list[list[float]], links: list[tuple[int, int]], widths: list[float]) -> list[float]:
    """Return the x of each point, given as (column, row), with the left edge at 0.

    Nothing overlaps within a row. Each row is shifted as a whole to make its links to the rows above as vertical as
    possible.
    """
    boxes = sorted(width for width in widths if width)
    column = (boxes[len(boxes) // 2] if boxes else 0) + _GAP
    xs = [column * x for x, _ in points]
    for row in sorted({y for _, y in points}):
        members = sorted((index for index, (_, y) in enumerate(points) if y == row), key=xs.__getitem__)
        for left, right in pairwise(members):
            xs[right] = max(xs[right], xs[left] + (widths[left] + widths[right]) / 2 + _GAP)
        shift = median([xs[above] - xs[below] for above, below in links if points[below][1] == row] or [0.0])
        for index in members:
            xs[index] += shift
    leftmost = min((x - width / 2 for x, width in zip(xs, widths, strict=True)), default=0)
    return [x - leftmost for x in xs]


def _lines(node: Node) -> list[tuple[str, FontProperties]]:
    name = node.name
    while len(name) > _MAX_NAME_LENGTH and "/" in name.removeprefix("…/"):
        name = "…/" + name.removeprefix("…/").partition("/")[2]
    inside = [(" + ".join(node.parts), _PLAIN)] if node.parts else []
    return [("fed" if node.op == "_Arg" else node.op, _BOLD), *inside, (name, _PLAIN)]


def _size(node: Node) -> tuple[float, float]:
    lines = _lines(node)
    ends = _PAD if node.kind in (INPUT, VARIABLE) else 0  # these shapes taper at the sides
    return max(_text_width(text, font) for text, font in lines) + 2 * (_PAD + ends), len(lines) * _LINE + _PAD


def _text_width(text: str, font: FontProperties) -> float:
    return TextPath((0, 0), text, prop=font).get_extents().width


def _box(
    axes: Axes, kind: str, x: float, y: float, width: float, height: float, mark: str | None, name: str | None = None
) -> None:
    """Draw the box of an operation around (x, y); `name` identifies it in the figure."""
    colour, line = OUTLINES[mark] if mark else (plots.BLACK, "solid")
    fill = [0.5 + 0.5 * part for part in to_rgb(FILLS[kind])]  # paler, to keep text legible
    style: dict[str, Any] = {
        "facecolor": fill,
        "edgecolor": colour,
        "linestyle": line,
        "linewidth": 3 if mark else 1,
        "zorder": 2,
    }
    left, top = x - width / 2, y - height / 2
    if kind == VARIABLE:
        slant = height / 3
        corners = [(left, y), (left + slant, top), (left + width - slant, top), (left + width, y)]
        corners += [(left + width - slant, top + height), (left + slant, top + height)]
        axes.add_patch(Polygon(corners, closed=True, gid=name, **style))
    else:
        rounding = {INPUT: height / 2, CONSTANT: 0.01}.get(kind, 6)
        shape = f"round,pad=0,rounding_size={rounding}"
        axes.add_patch(FancyBboxPatch((left, top), width, height, boxstyle=shape, gid=name, **style))


def _arrow(axes: Axes, points: list[tuple[float, float]], name: str) -> None:
    """Draw an arrow through the points: curved from the 1st to the 2nd, the 3rd to the 4th …, straight in between."""
    path, codes = [points[0]], [Path.MOVETO]
    for index, ((x1, y1), (x2, y2)) in enumerate(pairwise(points)):
        if index % 2 == 0:
            path += [(x1, (y1 + y2) / 2), (x2, (y1 + y2) / 2)]
        path.append((x2, y2))
        codes += [Path.LINETO] if index % 2 else [Path.CURVE4] * 3
    style = "-|>,head_length=6,head_width=3"
    whole = Path(path, codes)
    axes.add_patch(FancyArrowPatch(path=whole, arrowstyle=style, color="0.25", linewidth=1.3, zorder=1, gid=name))


def _figure(title: str, panels: list[tuple[str, _Layout]]) -> Figure:
    """Put drawings side by side under one title, with a legend below."""
    drawn = [(node.kind, drawing.marks.get(node.name)) for _, drawing in panels for node in drawing.nodes]
    meanings: list[tuple[str, str | None, str]] = [
        (kind, None, kind) for kind in FILLS if kind in {kind for kind, _ in drawn}
    ]
    meanings += [(OPERATION, mark, mark) for mark in OUTLINES if mark in {mark for _, mark in drawn}]
    content = sum(drawing.width for _, drawing in panels) + 3 * _GAP * (len(panels) - 1)
    width = max(content, _text_width(title, _TITLE), 420) + 2 * _GAP

    legend, x, row = [], float(_GAP), 0
    for kind, mark, meaning in meanings:
        entry_width = 50 + _text_width(meaning, _PLAIN)
        if x + entry_width > width:
            x, row = float(_GAP), row + 1
        legend.append((kind, mark, meaning, x, row))
        x += entry_width
    head = 30 + 26 * any(name for name, _ in panels)
    foot = head + max(drawing.height for _, drawing in panels) + 2 * _GAP
    height = foot + 22 * (row + 1) - 6

    figure = plt.figure(figsize=(width / 72, height / 72), layout="none")
    figure.suptitle(title, fontproperties=_TITLE, y=1 - 6 / height, va="top")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    x = (width - content) / 2
    for name, drawing in panels:
        if name:
            axes.text(x + drawing.width / 2, 42, name, ha="center", va="center", fontproperties=_TITLE, style="italic")
        drawing.paint(axes, x, head + _GAP / 2)
        x += drawing.width + 3 * _GAP
    for kind, mark, meaning, x, row in legend:
        _box(axes, kind, x + 12, foot + 22 * row, 24, 13, mark)
        axes.text(x + 30, foot + 22 * row, meaning, va="center", fontproperties=_PLAIN)
    return figure
