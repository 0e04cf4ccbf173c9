"""Are the answers to lab 01 right: a graph, a loop that doesn't grow it, threads, one trace, one merged operation?"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from labkit import graphs
from labkit.exercises.answers import call
from labkit.exercises.core import Lab
from labkit.exercises.verdicts import NotYet, expect

lab = Lab("01")
v1 = tf.compat.v1


@lab.exercise(
    1,
    hints=(
        "Three steps: make a tf.Graph(), describe the computation inside `with graph.as_default():`, return the three.",
        "v1.placeholder(tf.float32) describes a value that comes later; without a shape it takes any. + - * describe "
        "the rest.",
        'a, b = v1.placeholder(tf.float32), v1.placeholder(tf.float32); return graph, {"a": a, "b": b}, '
        "(a + b) * (b - 2). All but the return inside the `with`.",
    ),
)
def made_graph(answer) -> None:
    """A new graph each time, with two placeholders of any shape and the right d."""
    got = call(answer)
    expect(
        isinstance(got, Sequence) and len(got) == 3,
        f"make_graph() to return three things: graph, placeholders, d; it returned {_short(got)}",
    )
    graph, feeds, d = got
    expect(isinstance(graph, tf.Graph), f"the first thing returned to be a tf.Graph; it is {_short(graph)}")
    expect(
        isinstance(feeds, dict) and set(feeds) == {"a", "b"},
        f'the second thing returned to be a dictionary {{"a": …, "b": …}}; it is {_short(feeds)}',
    )
    for name, tensor in {**feeds, "d": d}.items():
        expect(not _is_eager(tensor), f"{name} to be described in a graph; it is already a number: {_short(tensor)}")
        expect(
            isinstance(tensor, tf.Tensor),
            f"{name} to be a tensor, such as an operation's outputs[0]; it is {_short(tensor)}",
        )
        expect(tensor.graph is graph, f"{name} to be in the graph you return; it is in another one")
    try:
        with v1.Session(graph=graph) as session:
            session.run([feeds["a"], feeds["b"]])
    except tf.errors.InvalidArgumentError:
        pass  # as it must be
    else:
        raise NotYet(
            "Expected a and b to be placeholders, which have no value until fed; yours have one by themselves."
        )
    for a, b, right in [(3.0, 4.0, 14.0), (1.0, 2.0, 0.0), (-1.0, 0.5, 0.75), ([1.0, 2.0], [3.0, 5.0], [4.0, 21.0])]:
        value = _evaluate(graph, d, {feeds["a"]: a, feeds["b"]: b})
        expect(
            _equals(value, right),
            f"d to be {right} for a = {a} and b = {b}; it is {_short(value)}",
        )
    again = call(answer)
    expect(again[0] is not graph, "each call of make_graph() to make a graph of its own; two calls gave the same one")


@lab.exercise(
    2,
    hints=(
        "Which lines of train_growing describe, and which run? Those that describe belong before the loop.",
        "x and y change from step to step: make them placeholders of shape [None], and feed them. Loss, gradient and "
        "w.assign_sub(…) are described once.",
        "step = w.assign_sub(rate * tf.gradients(loss, w)[0]) before the loop, and in it only "
        "session.run(step, {x: batch_x, y: batch_y}).",
    ),
)
def trained(answer) -> None:
    """Gradient descent as NumPy does it, and a graph of one size."""
    rng = np.random.default_rng(3)
    batches = [(x, 2.0 * x + 0.1 * rng.normal(size=len(x))) for x in (rng.normal(size=n) for n in (8, 8, 5, 8, 1, 12))]
    sizes = {}
    for count in (1, 3, len(batches)):
        got = call(answer, batches[:count], 0.1)
        expect(
            isinstance(got, Sequence) and len(got) == 2,
            f"train(batches, rate) to return two things: the graph and w; it returned {_short(got)}",
        )
        graph, w = got
        expect(isinstance(graph, tf.Graph), f"the first thing returned to be a tf.Graph; it is {_short(graph)}")
        expect(
            isinstance(w, float | np.floating | np.ndarray) and np.ndim(w) == 0,
            f"the second thing returned to be w as a number, as session.run(w) gives; it is {_short(w)}",
        )
        right = 0.0
        for x, y in batches[:count]:
            right -= 0.1 * np.mean(2 * (right * x - y) * x)
        steps = f"after {count} {'step' if count == 1 else 'steps'} with rate 0.1"
        expect(_equals(w, right), f"w to be {right:.4f} {steps}; it is {w:.4f}")
        sizes[count] = len(graph.get_operations())
    expect(
        len(set(sizes.values())) == 1,
        "as many operations after many steps as after one; yours has "
        + ", ".join(f"{size} after {count}" for count, size in sizes.items()),
    )
    expect(
        any(operation.type == "Placeholder" for operation in graph.get_operations()),
        f"the steps to run in the graph, fed through placeholders; yours has {sizes[1]} operations and no placeholder",
    )


@lab.exercise(
    3,
    hints=(
        "It is a v1.ConfigProto that has the number of inter-op threads, and a v1.Session that takes it as config.",
        "Sessions share one pool of threads, made by the first, unless the config says use_per_session_threads=True.",
        "config = v1.ConfigProto(inter_op_parallelism_threads=inter_op, use_per_session_threads=True), then "
        "`with v1.Session(graph=graph, config=config) as session:` and return session.run(fetches, feeds).",
    ),
)
def ran(answer) -> None:
    """One run, the right values, and as many operations at once as there are threads."""
    calls = []
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, name="x")
        counted = tf.numpy_function(lambda value: (calls.append(1), value)[1], [x], tf.float32)
        one, two = counted + 1.0, counted + 2.0
    graph.finalize()
    got = call(answer, graph, [one, two], {x: 1.0}, 1)
    expect(got is not None, "run(…) to return what was fetched; it returned None")
    expect(
        _equals(got, [2.0, 3.0]),
        f"[one + 1, one + 2] for one = 1 to be [2.0, 3.0]; it is {_short(got)}",
    )
    expect(
        len(calls) == 1,
        f"both fetches to come from one run of the graph; an operation that both need ran {len(calls)} times",
    )
    got = call(answer, graph, one, {counted: 10.0}, 1)
    expect(_equals(got, 11.0), f"11.0 for a single fetch, fed in between; it is {_short(got)}")

    for threads in (1, 3, 2):
        most = _at_once(lambda *args, threads=threads: call(answer, *args, threads), threads + 1)
        expect(
            most == threads,
            f"{threads} of {threads + 1} independent operations at once, with inter_op = {threads}; there were {most}. "
            "Is it the session's own pool of threads, or one shared with sessions before?",
        )


@lab.exercise(
    4,
    hints=(
        "tf.function(function) traces. Which of the arguments make it trace again, and what would keep the graph open "
        "for all of them?",
        "tf.function takes an input_signature: a list with one tf.TensorSpec(shape, type) for each argument. None "
        "stands for a length that varies, and [] for the shape of a single number.",
        "tf.function(function, input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)])",
    ),
)
def traced(answer) -> None:
    """The function's Python runs once, while tracing, for all lengths and factors."""
    runs: list[bool] = []

    def weigh(x, factor):
        runs.append(tf.executing_eagerly())
        return tf.reduce_sum(x) * factor

    function = call(answer, weigh)
    expect(callable(function), f"traced_once(function) to return a function; it returned {_short(function)}")
    cases: list[tuple[Any, Any]] = [
        ([1.0, 2.0], 2.0),
        ([1.0, 2.0], 3.0),
        (np.arange(5, dtype=np.float32), 0.5),
        (tf.ones([7]), tf.constant(0.25)),
        (tf.ones([1]), 4),
        ([1.0, 2.0, 3.0], tf.constant(2.0)),
    ]
    for x, factor in cases:
        value = call(function, x, factor)
        right = float(np.sum(x) * factor)
        expect(
            value is not None, "the function you return to give what the function it was made of gives; it gave None"
        )
        expect(
            _equals(value, right),
            f"the sum of {np.asarray(x).tolist()} times {float(factor)} to be {right}; it is {_short(value)}",
        )
    expect(not any(runs), "it to run as a graph; the function's Python ran by itself, as if there were no tf.function")
    expect(
        len(runs) == 1,
        f"1 trace for {len(cases)} calls of several lengths and factors; it was traced {len(runs)} times",
    )
    other = call(call(answer, lambda x, factor: tf.reduce_max(x) - factor), [1.0, 5.0], 2.0)
    expect(
        _equals(other, 3.0), f"traced_once to serve any function; for max(x) - factor it gave {_short(other)}, not 3"
    )


@lab.exercise(
    5,
    hints=(
        "Which of the operations stayed by themselves in the picture? Is there one that is made for its job?",
        "tf.nn has an operation for adding a bias, and one for setting negative numbers to zero.",
        "tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, kernel, 1, 'SAME'), bias))",
    ),
)
def merged(answer) -> None:
    """The right numbers, by one operation of the graph that ran."""
    rng = np.random.default_rng(5)
    images, kernel = (rng.normal(size=shape).astype(np.float32) for shape in [(2, 6, 6, 3), (3, 3, 3, 4)])
    bias = np.linspace(-0.5, 0.5, 4, dtype=np.float32) + 0.1
    with tf.Graph().as_default() as graph:
        fed = v1.placeholder(tf.float32, images.shape, name="images")
        y = call(answer, fed, tf.constant(kernel, name="kernel"), tf.constant(bias, name="bias"))
    expect(isinstance(y, tf.Tensor), f"block(images, kernel, bias) to return a tensor; it returned {_short(y)}")
    expect(not _is_eager(y) and y.graph is graph, "block to describe its result in the graph that images belong to")
    config, metadata = v1.ConfigProto(), v1.RunMetadata()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    options = v1.RunOptions(output_partition_graphs=True)
    value = _evaluate(graph, y, {fed: images}, config, options, metadata)

    with_bias = tf.nn.conv2d(images, kernel, 1, "SAME").numpy() + bias
    right = np.maximum(with_bias, 0)
    expect(value.shape == right.shape, f"a result of shape {right.shape}; it has {value.shape}")
    for mistake, what in [(with_bias, "there are negative numbers in it"), (right - bias, "is the bias in it?")]:
        expect(not np.allclose(value, mistake, atol=1e-4), f"the numbers of block_by_hand; {what}")
    off = float(np.abs(value - right).max())
    expect(off < 1e-4, f"the numbers of block_by_hand; yours are off by up to {off:.3g}. Bias first, then the ReLU?")
    ran = [
        node for node in graphs.read(metadata.partition_graphs[0])[0] if node.kind in (graphs.OPERATION, graphs.FUSED)
    ]
    expect(
        len(ran) == 1,
        "one operation to run; these did: "
        + ", ".join(f"{node.op} ({' + '.join(node.parts)})" if node.parts else node.op for node in ran),
    )


def _evaluate(graph: tf.Graph, fetch: tf.Tensor, feeds: dict, config: Any = None, *options: Any) -> Any:
    """Run a graph that the answer described; what fails then is the answer's failure."""
    try:
        with v1.Session(graph=graph, config=config) as session:
            return session.run(fetch, feeds, *options)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        said = error.message if isinstance(error, tf.errors.OpError) else str(error)
        line = (said.partition("Node: ")[2] or said).splitlines()
        raise NotYet(f"Running your graph raised {type(error).__name__}: {' '.join(line[:2])}") from error


def _at_once(run: Callable[..., Any], branches: int) -> int:
    """Give how many of so many independent operations were under way at once, at most, when `run` ran them.

    Each waits until all are there, or until no other has come for a while.
    """
    changed, here, most = threading.Condition(), 0, 0

    def meet() -> np.float32:
        nonlocal here, most
        with changed:
            here += 1
            most = max(most, here)
            changed.notify_all()
            seen = most
            while seen < branches and changed.wait_for(lambda: most > seen, timeout=0.3):  # noqa: B023
                seen = most
            here -= 1
        return np.float32(1)

    with tf.Graph().as_default() as graph:
        total = tf.add_n([tf.numpy_function(meet, [], tf.float32) for _ in range(branches)])
    run(graph, total, {})
    return most


def _equals(value: Any, right: Any) -> bool:
    """Tell whether a value, whatever it is, is this number or these."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, NotImplementedError):  # such as a tensor of a graph
        return False
    return array.shape == np.shape(right) and np.allclose(array, right, rtol=1e-3)


def _is_eager(value: Any) -> bool:
    return tf.is_tensor(value) and hasattr(value, "numpy")


def _short(value: Any) -> str:
    """Give a value in one short line."""
    text = " ".join(repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value).split())
    return text if len(text) <= 80 else f"{text[:77]}…"
