"""Exercise of lab 01: a layer and its normalisation as one operation of the graph that TensorFlow runs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.exercises.engine.answers import failure
from labkit.exercises.engine.outcomes import NotYet, expect
from labkit.exercises.engine.reference import Case, Reference, Result
from labkit.exercises.engine.values import describe, is_tensor

EXERCISES: dict[int, Reference] = {}


def _run(layer: Callable[..., Any], x: np.ndarray, *constants: np.ndarray) -> Any:
    """Return the numbers of a layer in a graph, and the operations that TensorFlow ran for them."""
    import tensorflow as tf  # takes seconds

    from labkit.display import graphs

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        placeholder = v1.placeholder(tf.float32, x.shape, name="x")
        names = ("mean", "std", "weights", "bias")
        y = layer(placeholder, *(tf.constant(value, name=name) for value, name in zip(constants, names, strict=True)))
    expect(isinstance(y, tf.Tensor), f"layer(x, …) to return a tensor; it returned {describe(y)}")
    expect(not is_tensor(y) and y.graph is graph, "layer to build its result in the graph that x belongs to")
    config, metadata = v1.ConfigProto(operation_timeout_in_ms=10_000), v1.RunMetadata()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    try:
        with v1.Session(graph=graph, config=config) as session:
            options = v1.RunOptions(output_partition_graphs=True)
            numbers = session.run(y, {placeholder: x}, options, metadata)
    except (tf.errors.OpError, ValueError, TypeError, RuntimeError) as error:
        raise NotYet(f"{failure(error)}. That happens when your graph runs.") from error
    nodes = [node for graph in metadata.partition_graphs for node in graphs.read(graph)[0]]  # no graph for x itself
    return numbers, [node for node in nodes if node.kind in (graphs.OPERATION, graphs.FUSED)]


def _single(ran: list[Any]) -> None:
    """Check that a single TensorFlow operation ran, and no Python function."""
    names = [f"{node.op} ({' + '.join(node.parts)})" if node.parts else node.op for node in ran]
    expect(
        len(ran) == 1 and "PyFunc" not in names[0],
        f"a single TensorFlow operation to run; these ran: {', '.join(names) or 'none'}",
    )


def _case(batch: int, inputs: int, outputs: int) -> Case:
    rng = np.random.default_rng(5)
    numbers = (
        *(rng.normal(3, 2, (batch, inputs)), rng.normal(3, 1, inputs), rng.uniform(1, 4, inputs)),
        *(rng.normal(size=(inputs, outputs)), np.linspace(-0.4, 0.6, outputs)),
    )
    return Case(tuple(array.astype(np.float32) for array in numbers), f"layer for x of shape {(batch, inputs)}")


def _relu(y: Any) -> Any:
    return (y + abs(y)) / 2


def _folded(x: Any, mean: Any, std: Any, weights: Any, bias: Any) -> Any:
    import tensorflow as tf

    scaled = weights / tf.reshape(std, (-1, 1))
    return tf.nn.relu(tf.nn.bias_add(x @ scaled, bias - tf.squeeze(mean[tf.newaxis] @ scaled, 0)))


EXERCISES[4] = Reference(
    cases=[_case(4, 6, 3), _case(2, 5, 8)],
    use=_run,
    returns=(
        Result(
            "numbers",
            rel=0,
            abs=1e-3,
            hint="Get the numbers right first: normalise, multiply, add the bias, set negative numbers to zero.",
        ),
        Result("operations", holds=_single),
    ),
    wrong={
        "negative numbers were not set to zero": lambda x, mean, std, w, b: (x - mean) / std @ w + b,
        "the inputs were not normalised": lambda x, mean, std, w, b: _relu(x @ w + b),
        "the mean were not subtracted": lambda x, mean, std, w, b: _relu(x / std @ w + b),
        "the inputs were not divided by std": lambda x, mean, std, w, b: _relu((x - mean) @ w + b),
        "the bias were not added": lambda x, mean, std, w, b: _relu((x - mean) / std @ w),
        "the mean were added, not subtracted": lambda x, mean, std, w, b: _relu((x + mean) / std @ w + b),
        "the bias came after the ReLU": lambda x, mean, std, w, b: _relu((x - mean) / std @ w) + b,
        "the bias and the folded mean came after the ReLU": lambda x, mean, std, w, b: (
            _relu(x / std @ w) + ((x - mean) / std - x / std) @ w + b
        ),
        "neither mean nor bias were there": lambda x, mean, std, w, b: _relu(x / std @ w),
        "the mean were not divided by std": lambda x, mean, std, w, b: _relu((x / std - mean) @ w + b),
    },
    hints=(
        "Only x changes from run to run. On paper, write ((x - mean) / std) · W + b as x · W' + b': W' and b' depend "
        "only on constants, so constant folding computes them in advance.",
        "W' = weights / std[:, tf.newaxis], and b' = bias - mean · W'. Then look at the rest: does Grappler recognise "
        "a sum and a tf.maximum after a matmul? tf.nn has operations made for the job.",
        "scaled = weights / std[:, tf.newaxis]; return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, scaled), bias - "
        "tf.linalg.matvec(scaled, mean, transpose_a=True)))",
    ),
    also=[_folded],
)
