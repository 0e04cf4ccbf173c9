"""Compare a network's step with its lower bound on this machine, and rank the operations by lost time.

An operation takes at least the time of its arithmetic at the machine's peak, and at least the time to move its tensors
once at memory bandwidth. The larger of the two, summed over all operations, is the step's limit. It is closer to what
is attainable than the peak alone, because batch norms and additions wait for memory while the cores are idle. A program
that keeps tensors in cache between operations can be faster.
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
from labkit.bench.trace import StepGraph
from labkit.display.consistency import ABOVE, Total, total
from labkit.roofline.measure import DType, Limits
from labkit.system import files, load
from labkit.system.terminal import plain_table

STEPS = 5
REASON = "tensors stayed in cache between operations, or the machine was slower when its limits were measured"
NORMS = "batch norms, ReLUs, additions"  # together, since oneDNN may fuse them
WEIGHTS = "weight decay and update"
# Operation types by family, as prefixes. Fused and oneDNN operations belong to the same families.
FAMILIES = {
    "convolutions": ("Conv2D",),
    "matmuls": ("MatMul", "BatchMatMul"),
    NORMS: ("FusedBatchNorm", "Relu", "Add", "BiasAdd", "PartitionedCall"),  # the last with --fused_shortcuts
    "pooling": ("MaxPool", "AvgPool"),
    WEIGHTS: ("ResourceApply", "L2Loss"),
}
OTHER = "other operations"
# These name a tensor, create it or read its shape; they move nothing.
_MOVE_NOTHING = {
    *("Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Shape"),
    *("Const", "VarHandleOp", "ReadVariableOp", "NoOp", "Placeholder"),
}


@dataclass(frozen=True)
class Work:
    """The work of an operation, or of a family of them, and its time.

    Attributes
    ----------
    family : str
        One of `FAMILIES`, or `OTHER`.
    flop, moved : float
        Operations in convolutions and matmuls; bytes of its tensors, each counted once.
    least, took : float
        The lower bound on this machine, and the time in a step, in seconds.
    by_memory : float
        The memory-bound part of `least`, in seconds.
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
        The configuration that was measured.
    seconds : float
        The mean time of a step.
    work : tuple of Work
        One for each family. The family that loses the most time comes first, unless the breakdown is unreliable.
    others : load.Contention
        Other work on the cores meanwhile.
    """

    config: BenchConfig
    seconds: float
    work: tuple[Work, ...]
    others: load.Contention = field(default_factory=load.Contention)

    @property
    def least(self) -> float:
        """The lower bound in seconds: all operations, one after the other."""
        return sum(work.least for work in self.work)

    @property
    def share(self) -> float:
        """The share of the limit's speed that the step reached."""
        return self.least / self.seconds

    @property
    def breakdown(self) -> Total:
        """The time of the traced operations, compared with the step, in ms."""
        return total((1000 * work.took for work in self.work), 1000 * self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return the step in a form for `json.dumps`, in seconds, operations and bytes."""
        return {
            "model": self.config.model,
            "batch_size": self.config.batch_size,
            "seconds": self.seconds,
            "least_seconds": self.least,
            "share": self.share,
            "reliable": self.breakdown.reliable,
            "work": [vars(work) for work in self.work],
            "others": self.others.as_dict(),
        }


def measure_step(config: BenchConfig, limits: Limits, configuration: configurations.Configuration) -> Step:
    """Measure a step of a network in a separate process, and compare each operation with its lower bound.

    Parameters
    ----------
    config : BenchConfig
        Network, batch size, precision, training or not.
    configuration : Configuration
        The configuration to run it in.
    limits : Limits
        The machine's peaks and bandwidth.

    Raises
    ------
    LabError
        When the benchmark fails.
    """
    with files.temporary_folder() as folder:
        # One operation at a time, so that times add up.
        measured = replace(config, num_batches=STEPS, num_inter_threads=1, trace_file=folder / "timeline.json")
        with load.watch(show=False) as others:
            result = configurations.run_once(configuration, *measured.as_flags())
        timeline = json.loads((folder / "timeline.json").read_text(encoding="utf-8"))["traceEvents"]
    step = by_family(config, operations(config, limits), timeline, statistics.fmean(result["seconds"]))
    return replace(step, others=others)


def by_family(config: BenchConfig, needed: dict[str, Work], timeline: list[dict[str, Any]], seconds: float) -> Step:
    """Return a step's work by family: the operations' lower bounds, and their times in the timeline by name."""
    items = list(needed.values())
    for event in timeline:
        if event["ph"] == "X" and "dur" in event:
            operation = needed.get(event["args"]["name"])
            group = operation.family if operation else family(event["name"])
            items.append(Work(group, took=event["dur"] / 1e6))
    sums: dict[str, Work] = defaultdict(lambda: Work(""))
    for work in items:
        subtotal = sums[work.family]
        added = {name: getattr(subtotal, name) + value for name, value in vars(work).items() if name != "family"}
        sums[work.family] = Work(work.family, **added)
    step = Step(config, seconds, tuple(sums[name] for name in (*FAMILIES, OTHER) if name in sums))
    if not step.breakdown.reliable:
        return step
    return replace(step, work=tuple(sorted(step.work, key=lambda work: work.least - work.took)))


def operations(config: BenchConfig, limits: Limits) -> dict[str, Work]:
    """Return the lower bound of each operation in a step, by its name in the graph."""
    step_graph = run.graph_for(config)
    weights = {tuple(weight.shape) for weight in step_graph.network.weights}
    return {operation.name: _lower_bound(operation, weights, limits) for operation in _step_operations(step_graph)}


def _step_operations(step_graph: StepGraph) -> list[tf.Operation]:
    """Return the operations that the step needs, without those that only create variables."""
    needed, waiting = set(), [step_graph.step.op]
    while waiting:
        operation = waiting.pop()
        if operation not in needed:
            needed.add(operation)
            waiting += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return list(needed)


def family(op_type: str) -> str:
    """Return the family of an operation type, such as `_MklNativeConv2DBackpropInput`."""
    plain = re.sub(r"^_(Mkl)?(Native)?(Fused(?!Batch))?", "", op_type)
    return next((name for name, prefixes in FAMILIES.items() if plain.startswith(prefixes)), OTHER)


def _lower_bound(operation: tf.Operation, weights: set[tuple[int, ...]], limits: Limits) -> Work:
    """Return the work of an operation of a graph in which all shapes are known."""
    tensors = [*operation.inputs, *operation.outputs]
    shapes = [tuple(tensor.shape) for tensor in tensors if tensor.dtype.is_floating and tensor.shape.rank]
    group = family(operation.type)
    if group in (NORMS, OTHER) and shapes and all(shape in weights for shape in shapes):
        group = WEIGHTS
    if operation.type in _MOVE_NOTHING:
        return Work(group)
    moved = float(sum(_bytes(tensor) for tensor in tensors))
    if operation.type.startswith("ResourceApply"):  # each variable is read and written; a gradient is as large
        moved += 2 * moved * sum(tensor.dtype == tf.resource for tensor in operation.inputs)
    flop = _flop(operation)
    precision: DType = "bfloat16" if tf.bfloat16 in {tensor.dtype for tensor in tensors} else "float32"
    computing, moving = flop / limits.peak(precision) / 1e9, moved / limits.bandwidth / 1e9
    return Work(group, flop, moved, max(computing, moving), by_memory=moving * (moving > computing))


def _bytes(tensor: tf.Tensor) -> int:
    if not tensor.dtype.is_floating or not tensor.shape.is_fully_defined():
        return 0
    return math.prod(tensor.shape) * tensor.dtype.size


def _flop(operation: tf.Operation) -> int:
    """Return the operation count of a convolution, a convolution's gradient or a matmul; 0 for others."""
    op_type, inputs = operation.type, operation.inputs
    if op_type == "MatMul":
        inner = inputs[0].shape[0 if operation.get_attr("transpose_a") else 1]
        return 2 * inner * math.prod(operation.outputs[0].shape)
    if family(op_type) != "convolutions":
        return 0
    if op_type.endswith("BackpropFilter"):
        kernel, result = operation.outputs[0].shape, inputs[2].shape
    elif op_type.endswith("BackpropInput"):
        kernel, result = inputs[1].shape, inputs[2].shape
    else:
        kernel, result = inputs[1].shape, operation.outputs[0].shape
    height, width, channels, _ = kernel
    return 2 * height * width * channels * math.prod(result)


def render(step: Step, console: Console) -> None:
    """Show a step next to its limit, in a table by family and a few sentences."""
    columns = ("GFLOP", "GB", "bound, ms", "memory-bound", "took, ms", "lost, ms")
    table = plain_table(Column("work"), *(Column(name, justify="right") for name in columns), header=True)
    for work in step.work:
        by_memory = f"{work.by_memory / work.least:.0%}" if work.least else ""
        times = (f"{1000 * work.least:,.1f}", by_memory, f"{1000 * work.took:,.1f}")
        lost = f"{1000 * (work.took - work.least):,.1f}" if step.breakdown.reliable else ""
        table.add_row(work.family, f"{work.flop / 1e9:,.1f}", f"{work.moved / 1e9:,.2f}", *times, lost)
    console.print(table)
    size = step.config.batch_size
    shares = {work.family: work.least / work.took for work in step.work if work.took} | {"the step": step.share}
    above = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share > ABOVE)
    lines = (
        "",
        f"A step of {size} takes {1000 * step.seconds:,.0f} ms ({size / step.seconds:,.1f} images/s) and reaches "
        f"{step.share:.0%} of its limit, {1000 * step.least:,.0f} ms ({size / step.least:,.1f} images/s).",
        *([f"Above the limit: {above}. Either {REASON}."] if above else []),
        f"Operation times are from a single traced step. {step.breakdown}",
        *([str(step.others)] if step.others.busy else []),
    )
    console.print("\n".join(lines), highlight=False, markup=False)
