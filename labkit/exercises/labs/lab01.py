"""Exercise of lab 01: a layer and its normalisation as one operation of the graph that TensorFlow runs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.display import graphs
from labkit.exercises.engine.answers import failure
from labkit.exercises.engine.outcomes import NotYet, expect
from labkit.exercises.engine.reference import Case, Reference, Result
from labkit.exercises.engine.values import describe

EXERCISES: dict[int, Reference] = {}


def _run(layer: Callable[..., Any], x: np.ndarray, *constants: np.ndarray) -> Any:
    """Return the numbers of a layer in a graph, and the operations that TensorFlow ran for them."""
    from tensorflow.compat import v1  # takes seconds

    with v1.Graph().as_default() as graph:
        placeholder = v1.placeholder(v1.float32, x.shape, name="x")
        y = layer(placeholder, *map(v1.constant, constants))
    in_graph = isinstance(y, v1.Tensor) and getattr(y, "graph", None) is graph  # an eager tensor has none
    expect(in_graph, f"layer(x, …) to return a tensor of the graph that x belongs to; it returned {describe(y)}")
    config, metadata = v1.ConfigProto(operation_timeout_in_ms=10_000), v1.RunMetadata()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    try:
        with v1.Session(graph=graph, config=config) as session:
            numbers = session.run(y, {placeholder: x}, v1.RunOptions(output_partition_graphs=True), metadata)
    except (v1.errors.OpError, ValueError, TypeError, RuntimeError) as error:
        raise NotYet(f"{failure(error)}. That happens when your graph runs.") from error
    nodes = [node for graph in metadata.partition_graphs for node in graphs.read(graph)[0]]  # no graph for x itself
    return numbers, [node for node in nodes if node.kind in (graphs.OPERATION, graphs.FUSED)]


def _single(ran: list[Any]) -> None:
    """Check that a single TensorFlow operation ran, and no Python function."""
    names = ", ".join(f"{node.op} ({' + '.join(node.parts)})" if node.parts else node.op for node in ran)
    expect(len(ran) == 1 and "PyFunc" not in names, f"a single TensorFlow operation; these ran: {names or 'none'}")


def _case(batch: int, inputs: int, outputs: int) -> Case:
    rng = np.random.default_rng(5)
    x, mean, std = rng.normal(3, 2, (batch, inputs)), rng.normal(3, 1, inputs), rng.uniform(1, 4, inputs)
    arrays = x, mean, std, rng.normal(size=(inputs, outputs)), np.linspace(-0.4, 0.6, outputs)
    return Case(tuple(array.astype("float32") for array in arrays), f"layer for x of shape {(batch, inputs)}")


EXERCISES[4] = Reference(
    cases=[_case(4, 6, 3), _case(2, 5, 8)],
    use=_run,
    returns=(
        Result("numbers", rel=0, abs=1e-3, hint="Get these right first: normalise, multiply, add the bias, ReLU."),
        Result("operations", holds=_single),
    ),
    wrong={
        "negative numbers were not set to zero": {"tf.nn.relu": ""},
        "the inputs were not normalised": {"tf.matmul(x, scaled), moved": "tf.matmul(x, weights), bias"},
        "the mean were not subtracted": {"scaled), moved": "scaled), bias"},
        "the inputs were not divided by std": {" / std[:, tf.newaxis]": ""},
        "the bias were not added": {"bias - ": "-"},
        "the mean were added, not subtracted": {"bias - ": "bias + "},
        "the bias came after the ReLU": {"scaled), moved))": "scaled), moved - bias)) + bias"},
        "the bias and the folded mean came after the ReLU": {"scaled), moved))": "scaled), 0 * bias)) + moved"},
        "neither mean nor bias were there": {"scaled), moved": "scaled), 0 * bias"},
        "the mean were not divided by std": {"matvec(scaled": "matvec(weights"},
    },
    also=[{"tf.linalg.matvec(scaled, mean, transpose_a=True)": "tf.squeeze(mean[tf.newaxis] @ scaled, 0)"}],
    hints=(
        "Write ((x - mean) / std) · W + b as x · W' + b'. Only x varies: constant folding computes W' and b' first.",
        "W' = weights / std[:, tf.newaxis], and b' = bias - mean · W'. Then look at the rest: does Grappler recognise "
        "a sum and a tf.maximum after a matmul? tf.nn has operations made for the job.",
        "tf.nn.relu(tf.nn.bias_add(tf.matmul(x, W'), b')); b' = bias - tf.linalg.matvec(W', mean, transpose_a=True)",
    ),
)
