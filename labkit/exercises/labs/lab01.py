"""Exercises of lab 01: run a graph, simplify it, fuse it; a layer and its normalisation as one operation."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.display import graphs
from labkit.exercises.dataflow import count, graph, label, nodes_of, value_of_answer
from labkit.exercises.engine.answers import failure
from labkit.exercises.engine.outcomes import NotYet, expect
from labkit.exercises.engine.reference import Case, Reference, Result
from labkit.exercises.engine.values import describe

EXERCISES: dict[int, Reference] = {}

DOUBLED = "; ".join(["y = x", *["y = y + y"] * 12])


def _run(run: Callable[..., Any], text: str, feed: dict[str, Any]) -> tuple[Any, int]:
    fetch, fed, ran = graph(text, feed)
    run(fetch, {node: value + 1 for node, value in fed.items()})  # nothing of this run may be remembered
    ran.clear()
    return run(fetch, fed), len(ran)


ONCE = "Where do you store a value, so that the next node that needs it finds it?"
EXERCISES[1] = Reference(
    cases=[
        ("y = x * 2.0", {"x": 3.0}),
        ("y = (x - 2.0) / x", {"x": 4.0}),
        ("y = constant(2.0)", {}),
        ("y = x", {"x": 3.0}),
        ("a = exp(x); y = a + a * a", {"x": 0.5}),
        ("a = exp(exp(x)) * 2.0; y = a + 1.0", {"x": 0.5, "a": 10.0}),
        ("a = exp(x); y = a + 1.0", {"a": 10.0}),
        ("a = x * w; y = a - b; z = exp(y)", {"x": 3.0, "w": 2.0, "b": 1.0}),
        ("a = x - 3.0; y = a + 1.0", {"x": 5.0, "a": 0.0}),
        ("y = relu(x @ w + b)", {"x": np.eye(2), "w": np.array([[1.0, -2.0], [3.0, 4.0]]), "b": np.ones(2)}),
        (DOUBLED, {"x": 1.0}),
    ],
    use=_run,
    case=label("run(y, {})"),
    returns=(Result("value", rel=1e-5), Result("number of computed operations", rel=0, abs=0, hint=ONCE)),
    wrong={
        "a node that several others need were computed for each of them": {"values[node] = node": "return node"},
        "the inputs of a node were passed in reverse order": {"node.inputs": "node.inputs[::-1]"},
        "what a fed node needs were computed too": {
            "        if node": "        inputs = [value_of(i) for i in node.inputs]\n        if node",
            "map(value_of, node.inputs)": "inputs",
        },
        "a fed 0 counted as no value": {"node not in values": "not values.get(node)"},
        "values of an earlier run were remembered": {"feed):": "feed, values={}):", "= dict(feed)": ".update(feed)"},
    },
    also=[{"if node not in values:": "if node in values:\n            return values[node]\n        else:"}],
    hints=(
        "What are the values of a node's inputs? The same question again, for other nodes: a function that calls "
        "itself. It ends at nodes whose values are known.",
        "Keep all known values in a dictionary by node; it begins as a copy of `feed`. If a node isn't in it, compute "
        "the values of its inputs in the same way, then node.compute(*values), and store the result.",
        "values = dict(feed). def value_of(node): if node not in values: values[node] = node.compute(*map(value_of, "
        "node.inputs)); return values[node]. Then return value_of(fetch).",
    ),
)


def _simplify(simplify: Callable[..., Any], text: str, feed: dict[str, Any], least: int) -> tuple[Any, int]:
    fetch, fed, _ = graph(text, feed)
    nodes = nodes_of(simple := simplify(fetch))
    return value_of_answer(simple, fed), max(least, count(nodes))


X = {"x": 3.0}
KEY = (
    "The key is (node.op, inputs), where `inputs` were simplified. Look for a duplicate first, and fold only if "
    "there is none: two folds of equal nodes give two constants."
)
EXERCISES[2] = Reference(
    cases=[
        ("y = x + constant(2.0) * 3.0", X, 1),
        ("y = x + sqrt(constant(2.0) * 3.0)", X, 1),
        ("y = exp(x) - exp(x)", X, 2),
        ("y = (x - w) * (w - x)", {"x": 3.0, "w": 1.0}, 3),
        ("y = exp(x) + sqrt(x)", X, 3),
        ("y = exp(exp(x)) / exp(exp(x))", {"x": 0.5}, 3),
        ("y = constant(2.0) * 3.0", {}, 0),
        ("y = x", X, 0),
        ("v = constant(4.0); e = constant(1.0); y = exp(x / sqrt(v + e)) - relu(x / sqrt(v + e))", X, 4),
        ("w = constant([1.0, 2.0]); y = x * (w + w)", X, 1),
        (DOUBLED, {"x": 1.0}, 12),
    ],
    use=_simplify,
    case=label("simplify(y)"),
    returns=(Result("value"), Result("number of operations", rel=0, abs=0, hint=KEY)),
    wrong={
        "constants were not folded": {"if len(values) == len(inputs)": "if False"},
        "only operations on the written constants were folded": {"for i in inputs if": "for i in node.inputs if"},
        "duplicates were not removed": {"(node.op, inputs) not in seen": "True"},
        "only the operation decided, not inputs": {"(node.op, inputs)": "node.op", "[node.op, inputs]": "[node.op]"},
        "only the inputs decided, not the operation": {"(node.op, inputs)": "inputs", "[node.op, inputs]": "[inputs]"},
        "the order of the inputs did not matter": {
            "(node.op, inputs)": "(node.op, frozenset(inputs))",
            "[node.op, inputs]": "[node.op, frozenset(inputs)]",
        },
        "nodes were compared by their inputs as written, not as simplified": {
            "(node.op, inputs)": "(node.op, node.inputs)",
            "[node.op, inputs]": "[node.op, node.inputs]",
        },
        "constants that were folded from duplicates were different inputs": {
            "(node.op, inputs) not in seen": "getattr(seen.get((node.op, inputs)), 'op', 'constant') == 'constant'"
        },
    },
    also=[{"new.get(node, node)": "new[node] if node in new else node"}],
    hints=(
        "Walk the graph as in exercise 1, with a dictionary of new nodes instead of values. Simplify a node's inputs "
        "before you look at the node itself.",
        "A second dictionary has the new nodes by (node.op, inputs), where `inputs` is the tuple of the new inputs. If "
        "the key is there, you have a duplicate. Otherwise, make the new node: a constant if all its inputs are.",
        "Constant: replace(node, op='constant', inputs=(), value=node.compute(*[i.value for i in inputs])). Otherwise: "
        "replace(node, inputs=inputs). Store it in both dictionaries. A node without inputs stays as it is.",
    ),
)


def _fuse(fuse: Callable[..., Any], text: str, feed: dict[str, Any], least: int) -> tuple[Any, int, int]:
    fetch, fed, _ = graph(text, feed)
    uses = Counter([fetch, *(node for consumer in nodes_of(fetch) for node in consumer.inputs)])
    fused = fuse(fetch, dict(uses))
    nodes = nodes_of(fused)
    return value_of_answer(fused, fed), count(nodes, "matmul", "dense"), max(least, count(nodes))


MATRIX = np.array([[1.0, -2.0], [3.0, 4.0]])
XWB = {"x": np.array([[1.0, 2.0], [-2.0, 3.0]]), "w": MATRIX, "b": np.array([0.5, -1.0])}
USES = "If another node needs the product or the sum, it stays. `uses` has the number of nodes that need each one."
EXERCISES[3] = Reference(
    cases=[
        ("y = relu(x @ w + b)", XWB, 1),
        ("y = exp(relu(x @ w + b) - b)", XWB, 3),
        ("y = relu(relu(x @ w + b) @ w + b)", XWB, 2),
        ("y = relu(x + b)", XWB, 2),
        ("y = relu(x)", XWB, 1),
        ("y = relu(x @ w - b)", XWB, 3),
        ("y = exp(x @ w + b)", XWB, 3),
        ("y = relu(x * w + b)", XWB, 3),
        ("p = x @ w; y = relu(p + b) * p", XWB, 4),
        ("t = x @ w + b; y = relu(t) * t", XWB, 4),
        ("h = relu(x @ w + b); y = exp(h) * h", XWB, 3),
    ],
    use=_fuse,
    case=label("fuse(y, uses)"),
    returns=(
        Result("value"),
        Result("number of matmuls (in matmul and dense)", rel=0, abs=0, hint=USES),
        Result("number of operations", rel=0, abs=0),
    ),
    wrong={
        "nothing were fused": {'== ("relu", "add", "matmul")': "is None"},
        "a product were fused that another node needs": {"uses[total] == uses[product] == 1": "uses[total] == 1"},
        "a sum were fused that another node needs": {"uses[total] == uses[product] == 1": "uses[product] == 1"},
        "it did not matter what else needs the product or the sum": {" and uses[total] == uses[product] == 1": ""},
        "a difference were a sum": {"(node.op, total.op,": "(node.op, total.op.replace('subtract', 'add'),"},
        "other operations than ReLU were one": {"(node.op, total.op,": "(node.op.replace('exp', 'relu'), total.op,"},
        "other operations than a matmul were one": {"product.op) ==": "product.op.replace('multiply', 'matmul')) =="},
        "only the fetched node were looked at": {"tuple(map(visit, inputs))": "inputs"},
        "a node that several others need had a copy for each of them": {"new[node] = replace": "return replace"},
        "x and the weights were exchanged": {"(*product.inputs,": "(*product.inputs[::-1],"},
    },
    also=[{"new.get(node, node)": "new[node] if node in new else node"}],
    hints=(
        "Walk the graph as in exercise 2. When you reach a ReLU, look back: what is its input, and what is that node's "
        "first input?",
        "For a ReLU: total = node.inputs[0], and product = total.inputs[0] if total has inputs. If their operations "
        "are add and matmul, and `uses` of both is 1, the new node takes x and weights from product, bias from total.",
        "replace(node, op='dense', inputs=(visit(x), visit(weights), visit(bias))), where x, weights = product.inputs "
        "and bias = total.inputs[1]. All others: replace(node, inputs=tuple(map(visit, node.inputs))).",
    ),
)


def _run_layer(layer: Callable[..., Any], x: np.ndarray, *constants: np.ndarray) -> Any:
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


def _layer(batch: int, inputs: int, outputs: int) -> Case:
    rng = np.random.default_rng(5)
    x, mean, std = rng.normal(3, 2, (batch, inputs)), rng.normal(3, 1, inputs), rng.uniform(1, 4, inputs)
    arrays = x, mean, std, rng.normal(size=(inputs, outputs)), np.linspace(-0.4, 0.6, outputs)
    return Case(tuple(array.astype("float32") for array in arrays), f"layer for x of shape {(batch, inputs)}")


EXERCISES[4] = Reference(
    cases=[_layer(4, 6, 3), _layer(2, 5, 8)],
    use=_run_layer,
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
        "a sum and a tf.maximum after a matmul? tf.nn.bias_add and tf.nn.relu are made for the job.",
        "tf.nn.relu(tf.nn.bias_add(tf.matmul(x, W'), b')); b' = bias - tf.linalg.matvec(W', mean, transpose_a=True)",
    ),
)
