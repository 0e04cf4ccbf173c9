"""oneDNN's default in TensorFlow, its log as a table, and a graph's operations as written and as executed."""

import gzip
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd

from labkit.system import paths, processes
from labkit.system.errors import LabError

MARK = "onednn_verbose"
# Field names in the log's template, and the table's names for them.
_FIELDS = {
    "primitive": "primitive",
    "implementation": "implementation",
    "prop_kind": "direction",
    "attributes": "attributes",
    "problem_desc": "problem",
}
_TENSORS = ("src", "wei", "dst")
# Such as `wei:f32:a:blocked:Adcb16a::f0` (oneDNN 3.7) or `wei_f32:a:blocked:Adcb16a::f0` (3.2): name, type, layout.
_DESCRIPTOR = re.compile(r"(\w+?)[:_]([a-z]+\d+):[a-z]*:blocked:(\w+)")


# The module has no public API.
_ASK = "from tensorflow.python.util import _pywrap_util_port as port; print('on' if port.IsMklEnabled() else 'off')"


def is_default() -> bool:
    """Return whether TensorFlow uses oneDNN on this CPU if TF_ENABLE_ONEDNN_OPTS is unset.

    TensorFlow decides when it starts, so a new process asks it, in about 3 s.

    Raises
    ------
    LabError
        If TensorFlow can't be imported.
    """
    # Without Keras, which takes half of the time.
    variables = {"TF_ENABLE_ONEDNN_OPTS": None, "TF_USE_LEGACY_KERAS": 1, "TF_CPP_MIN_LOG_LEVEL": 3}
    done = processes.run([sys.executable, "-c", _ASK], variables, separate_errors=True)
    if done.failure or not done.lines:
        raise LabError(f"can't import TensorFlow ({done.failure}). To find out why: ./lab doctor")
    return done.lines[-1] == "on"


def read_log(lines: Iterable[str], after: str | None = None) -> pd.DataFrame:
    """Parse the output of a run under `ONEDNN_VERBOSE=1` into one row per executed primitive, in order.

    The format differs between oneDNN versions (3.2, 3.7 and 3.12 are tested); the log's template line names its fields.

    Parameters
    ----------
    lines : iterable of str
        The run's output. Other lines may come between; truncated lines are left out.
    after : str, optional
        A line printed by the run: only primitives after it count, to leave out a warm-up.

    Returns
    -------
    pandas.DataFrame
        Columns `primitive`, `implementation`, `direction` (forward_training, backward_data …), `type`, `src`, `wei`,
        `dst` (layouts such as `acdb`; empty where a primitive has no such tensor), `attributes`, `problem` (the
        shapes), `ms`.

    Raises
    ------
    LabError
        When the lines contain no such log.
    """
    lines = [line.strip() for line in lines]
    names = next((names for line in lines if (names := _field_names(line))), None)
    if names is None:
        raise LabError(
            "these lines contain no oneDNN log: run with ONEDNN_VERBOSE=1 and TF_ENABLE_ONEDNN_OPTS=1, on a network "
            "with operations that oneDNN supports."
        )
    if after is not None:
        if after not in lines:
            raise LabError(f"the log has no line {after!r} to start after.")
        lines = lines[lines.index(after) + 1 :]
    return pd.DataFrame(
        _rows(lines, names),
        columns=["primitive", "implementation", "direction", "type", *_TENSORS, "attributes", "problem", "ms"],
    )


def stored_log(name: str) -> list[str]:
    """Return the lines of a log in `data/onednn`, whose README states where it is from."""
    return gzip.decompress((paths.DATA / "onednn" / f"{name}.log.gz").read_bytes()).decode().splitlines()


def describe(lines: Iterable[str]) -> dict[str, str]:
    """Return oneDNN's `version`, `threads` and instruction sets (`isa`) from the log's header."""
    details: dict[str, str] = {}
    for line in lines:
        for key, pattern in (
            ("version", r"oneDNN v([\d.]+)"),
            ("threads", r"cpu,runtime:(.+)"),
            ("isa", r"cpu,isa:(.+)"),
        ):
            if match := re.search(f"^{MARK},.*{pattern}", line):
                details.setdefault(key, match[1].strip())
    return details


def convolution_size(problem: str) -> dict[str, int]:
    """Return the sizes in a convolution's `problem`: `{"mb": 64, "ic": 1, "oc": 32, "ih": 28, …}`."""
    return {name: int(value) for name, value in re.findall(r"([a-z]+)(\d+)", problem)}


def graph_that_ran(function: Callable[..., object], *args: Any) -> tuple[list[Any], list[Any]]:
    """Run a function as a `tf.function`, and return its nodes as written and as executed.

    Returns
    -------
    written, executed : list of NodeDef
        Of the largest graph: Keras also makes small ones, to set up variables. Arguments and results are left out.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context  # no public API

    traced = tf.function(function)
    context.enable_run_metadata()
    try:
        context.export_run_metadata()  # discards earlier runs
        traced(*args)
        graphs = context.export_run_metadata().function_graphs
    finally:
        context.disable_run_metadata()
    largest = max(graphs, key=lambda graph: len(graph.pre_optimization_graph.node))
    executed = [node for part in largest.partition_graphs for node in part.node]
    return _operations(largest.pre_optimization_graph.node), _operations(executed)


def _operations(nodes: Iterable[Any]) -> list[Any]:
    return [node for node in nodes if node.op not in ("_Arg", "_Retval", "NoOp")]


def _field_names(line: str) -> list[str] | None:
    """Return the field names, if this is the template line for primitives."""
    match = re.match(rf"{MARK},.*?(?:primitive,info,|info,prim_)template:(.*)", line)
    return match[1].split(",") if match else None


def _rows(lines: list[str], names: list[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        head, _, rest = line.partition(",exec,")
        values = ["exec", *rest.split(",")]
        if not head.startswith(MARK) or len(values) != len(names):
            continue
        fields = dict(zip(names, values, strict=True))
        tensors = {name: (kind, layout) for name, kind, layout in _DESCRIPTOR.findall(fields["memory_descriptors"])}
        yield {
            **{column: fields[field].strip() for field, column in _FIELDS.items()},
            "type": next(iter(tensors.values()), ("", ""))[0],
            **{name: tensors.get(name, ("", ""))[1] for name in _TENSORS},
            "ms": float(fields["exec_time"]),
        }
