"""The lower bound of a network's step on this machine, the time that it takes, and the operations that lose the rest.

An operation takes at least as long as its arithmetic at the machine's peak, and at least as long as its tensors, each
moved once, at the memory's bandwidth. The slower of both, summed over all operations, is the step's limit: nearer to
what can be reached than the peak alone, because batch norms and additions wait for memory while the cores could
compute. A program that keeps a tensor in the caches between two operations can be faster.
"""

import json
import math
import re
import statistics
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf
from rich.console import Console
from rich.table import Column

from labkit.bench import configurations, run
from labkit.bench.config import BenchConfig
from labkit.bench.flags import as_flags
from labkit.bench.trace import StepGraph
from labkit.display.consistency import ABOVE, Total, total
from labkit.roofline.measure import Kind, Limits
from labkit.system import load, scratch
from labkit.system.tables import plain_table

STEPS = 5
REASON = (
    "tensors stayed in cache from one operation to the next, or the machine was slower when its limits were measured"
)
NORMS = "batch norms, Relus, additions"  # together, since oneDNN may fuse them
WEIGHTS = "decay, update of weights"
# Beginnings of the types of operations, and what they are together. What is fused or oneDNN's has the same family.
FAMILIES = {
    "convolutions": ("Conv2D", "DepthwiseConv2d"),
    "matrix products": ("MatMul", "BatchMatMul"),
    NORMS: ("FusedBatchNorm", "Relu", "Add", "BiasAdd", "PartitionedCall"),  # of --fused_shortcuts
    "pooling": ("MaxPool", "AvgPool"),
    WEIGHTS: ("ResourceApply", "L2Loss"),
}
OTHER = "other operations"
# They name a tensor, make one or look at its shape, and move nothing.
_MOVE_NOTHING = {
    *("Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Shape"),
    *("Const", "VarHandleOp", "ReadVariableOp", "NoOp", "Placeholder"),
}


@dataclass(frozen=True)
class Work:
    """An operation, or several of a family: what it has to do, and how long that takes.

    Attributes
    ----------
    family : str
        One of `FAMILIES`, or `OTHER`.
    flop, moved : float
        Operations in convolutions and matrix products; bytes of its tensors, each counted once.
    least, took : float
        Seconds: what this machine needs at least, and what a step took.
    by_memory : float
        The part of `least` in which memory is the limit, in seconds.
    """

    family: str
    flop: float = 0.0
    moved: float = 0.0
    least: float = 0.0
    took: float = 0.0
    by_memory: float = 0.0


@dataclass(frozen=True)
class Step:
    """A step of a network, compared with its limit.

    Attributes
    ----------
    config : BenchConfig
        What was measured.
    seconds : float
        What a step took, on average over some steps.
    work : tuple of Work
        One for each family. The one that loses the most time comes first, unless the breakdown is unreliable.
    others : load.Others
        What else had the cores meanwhile.
    """

    config: BenchConfig
    seconds: float
    work: tuple[Work, ...]
    others: load.Others = field(default_factory=load.Others)

    @property
    def least(self) -> float:
        """The seconds that all operations take at least, one after the other."""
        return sum(each.least for each in self.work)

    @property
    def share(self) -> float:
        """The share of the limit's speed that the step reached."""
        return self.least / self.seconds

    @property
    def breakdown(self) -> Total:
        """What the traced operations took, compared with the step, in ms."""
        return total((1000 * each.took for each in self.work), 1000 * self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return it as `json.dumps` takes it, in seconds, operations and bytes."""
        return {
            "model": self.config.model,
            "batch_size": self.config.batch_size,
            "seconds": self.seconds,
            "least_seconds": self.least,
            "share": self.share,
            "reliable": self.breakdown.reliable,
            "work": [vars(each) for each in self.work],
            "others": self.others.as_dict(),
        }


def measure_step(config: BenchConfig, limits: Limits, configuration: configurations.Configuration) -> Step:
    """Measure a step of a network in a process of its own, and compare each operation with its lower bound.

    Parameters
    ----------
    config : BenchConfig
        Network, batch size, kind of number, training or not.
    configuration : Configuration
        What it runs in.
    limits : Limits
        The machine's peaks and bandwidth.

    Raises
    ------
    LabError
        When the benchmark fails.
    """
    with scratch.folder() as folder:
        # One operation at a time, so that their times add up.
        measured = replace(config, num_batches=STEPS, num_inter_threads=1, trace_file=folder / "timeline.json")
        with load.watch(show=False) as others:
            result = configurations.run_once(configuration, *as_flags(measured))
        timeline = json.loads((folder / "timeline.json").read_text(encoding="utf-8"))["traceEvents"]
    step = by_family(config, operations(config, limits), timeline, statistics.fmean(result["seconds"]))
    return replace(step, others=others)


def by_family(config: BenchConfig, needed: dict[str, Work], timeline: list[dict[str, Any]], seconds: float) -> Step:
    """Return a step's work by family: what its operations need, and what the timeline's events of their names took."""
    found = list(needed.values())
    for event in timeline:
        if event["ph"] == "X" and "dur" in event:
            operation = needed.get(event["args"]["name"])
            kind = operation.family if operation else family(event["name"])
            found.append(Work(kind, took=event["dur"] / 1e6))
    sums: dict[str, Work] = defaultdict(lambda: Work(""))
    for each in found:
        so_far = sums[each.family]
        added = {name: getattr(so_far, name) + value for name, value in vars(each).items() if name != "family"}
        sums[each.family] = Work(each.family, **added)
    step = Step(config, seconds, tuple(sums[name] for name in (*FAMILIES, OTHER) if name in sums))
    if not step.breakdown.reliable:
        return step
    return replace(step, work=tuple(sorted(step.work, key=lambda each: each.least - each.took)))


def operations(config: BenchConfig, limits: Limits) -> dict[str, Work]:
    """Return what each operation of a step needs at least, by its name in the graph."""
    whole = run.graph_for(config)
    weights = {tuple(weight.shape) for weight in whole.network.weights}
    return {operation.name: _least(operation, weights, limits) for operation in _of_a_step(whole)}


def _of_a_step(whole: StepGraph) -> list[tf.Operation]:
    """Return the operations that the step needs, without those that only make variables."""
    needed, waiting = set(), [whole.step.op]
    while waiting:
        operation = waiting.pop()
        if operation not in needed:
            needed.add(operation)
            waiting += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return list(needed)


def family(kind: str) -> str:
    """Return the family of a type of operation, such as `_MklNativeConv2DBackpropInput`."""
    plain = re.sub(r"^_(Mkl)?(Native)?(Fused(?!Batch))?", "", kind)
    return next((name for name, beginnings in FAMILIES.items() if plain.startswith(beginnings)), OTHER)


def _least(operation: tf.Operation, weights: set[tuple[int, ...]], limits: Limits) -> Work:
    """Return the work of an operation of a graph in which all shapes are known."""
    tensors = [*operation.inputs, *operation.outputs]
    shapes = [tuple(tensor.shape) for tensor in tensors if tensor.dtype.is_floating and tensor.shape.rank]
    kind = family(operation.type)
    if kind in (NORMS, OTHER) and shapes and all(shape in weights for shape in shapes):
        kind = WEIGHTS
    if operation.type in _MOVE_NOTHING:
        return Work(kind)
    moved = float(sum(_bytes(tensor) for tensor in tensors))
    if operation.type.startswith("ResourceApply"):  # each variable is read and written; a gradient is as large
        moved += 2 * moved * sum(tensor.dtype == tf.resource for tensor in operation.inputs)
    flop = _flop(operation)
    precision: Kind = "bfloat16" if tf.bfloat16 in {tensor.dtype for tensor in tensors} else "float32"
    computing, moving = flop / limits.peak(precision) / 1e9, moved / limits.bandwidth / 1e9
    return Work(kind, flop, moved, max(computing, moving), by_memory=moving * (moving > computing))


def _bytes(tensor: tf.Tensor) -> int:
    if not tensor.dtype.is_floating or not tensor.shape.is_fully_defined():
        return 0
    return math.prod(tensor.shape) * tensor.dtype.size


def _flop(operation: tf.Operation) -> int:
    """Return the operations of a convolution, of a gradient of one, or of a matrix product; of others, 0."""
    kind, inputs = operation.type, operation.inputs
    if kind == "MatMul":
        inner = inputs[0].shape[0 if operation.get_attr("transpose_a") else 1]
        return 2 * inner * math.prod(operation.outputs[0].shape)
    if family(kind) != "convolutions":
        return 0
    depthwise = kind.startswith("Depthwise")
    if kind.endswith("BackpropFilter"):
        kernel, result = operation.outputs[0].shape, inputs[2].shape
    elif kind.endswith("BackpropInput"):
        kernel, result = inputs[1].shape, inputs[2].shape
    else:
        kernel, result = inputs[1].shape, operation.outputs[0].shape
    height, width, channels, _ = kernel
    return 2 * height * width * (1 if depthwise else channels) * math.prod(result)


def render(step: Step, console: Console) -> None:
    """Show a step next to its limit, in a table by family and a few sentences."""
    columns = ("GFLOP", "GB", "at least, ms", "of it memory", "took, ms", "lost, ms")
    table = plain_table(Column("work"), *(Column(name, justify="right") for name in columns), header=True)
    for each in step.work:
        by_memory = f"{each.by_memory / each.least:.0%}" if each.least else ""
        times = (f"{1000 * each.least:,.1f}", by_memory, f"{1000 * each.took:,.1f}")
        lost = f"{1000 * (each.took - each.least):,.1f}" if step.breakdown.reliable else ""
        table.add_row(each.family, f"{each.flop / 1e9:,.1f}", f"{each.moved / 1e9:,.2f}", *times, lost)
    console.print(table)
    size = step.config.batch_size
    shares = {each.family: each.least / each.took for each in step.work if each.took} | {"the step": step.share}
    above = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share > ABOVE)
    lines = (
        "",
        f"A step of {size} takes {1000 * step.seconds:,.0f} ms ({size / step.seconds:,.1f} images/s), and at least "
        f"{1000 * step.least:,.0f} ms ({size / step.least:,.1f} images/s): it reaches {step.share:.0%} of this limit.",
        *([f"Above their limit: {above}. Either {REASON}."] if above else []),
        f"The operations' times are from a single traced step. {step.breakdown}",
        *([str(step.others)] if step.others.busy else []),
    )
    console.print("\n".join(lines), highlight=False, markup=False)
