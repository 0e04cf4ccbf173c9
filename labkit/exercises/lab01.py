"""Checks of lab 01: a graph, a loop that doesn't grow it, threads, one trace, one merged operation."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from labkit.display import graphs
from labkit.exercises.answers import call, failure
from labkit.exercises.core import Lab
from labkit.exercises.outcomes import NotYet, expect
from labkit.exercises.values import describe, has_format, is_number, is_tensor, parts, same, short

lab = Lab("01")
v1 = tf.compat.v1
# Types of operations that only hold, take in or hand on a value.
STORING = {
    *("Placeholder", "Const", "Identity", "NoOp", "VariableV2", "Assign", "VarHandleOp", "VarIsInitializedOp"),
    *("IsVariableInitialized", "AssignVariableOp", "ReadVariableOp"),
}


@lab.exercise(
    1,
    hints=(
        "Three steps: make a tf.Graph(), describe the computation inside `with graph.as_default():`, return the three.",
        "v1.placeholder(tf.float32) describes a value that comes later; without a shape it takes any. + - * describe "
        "the rest.",
        'a, b = v1.placeholder(tf.float32), v1.placeholder(tf.float32); return graph, {"a": a, "b": b}, '
        "(a + b) * (b - 2). Everything but the return goes inside the `with`.",
    ),
)
def made_graph(answer: Callable[..., Any]) -> None:
    """A new graph each time, with two placeholders of any shape and the right d."""
    graph, feeds, d = _described(answer)
    config = _limited()
    with v1.Session(graph=graph, config=config) as session:
        for name, tensor in feeds.items():
            try:
                session.run(tensor)
            except tf.errors.InvalidArgumentError:
                continue  # as it must be
            raise NotYet(f"Expected {name} to be a placeholder, which has no value until fed; yours already has one.")
    rng = np.random.default_rng(1)
    shaped = [rng.uniform(-9, 9, (2, *shape)).astype(np.float32) for shape in ((), (4,), (2, 3), (2, 1, 3, 2))]
    plain: list[tuple[ArrayLike, ArrayLike]] = [(3.0, 4.0), (1.0, 2.0), (-1.0, 0.5), ([1.0, 2.0], [3.0, 5.0]), (-3, 7)]
    for a, b in [*plain, *((values[0], values[1]) for values in shaped)]:
        value = _ran(graph, d, {feeds["a"]: a, feeds["b"]: b})
        right = (np.float64(a) + np.float64(b)) * (np.float64(b) - 2)
        same(value, right, f"d, for a = {short(a)} and b = {short(b)},", rel=1e-4, abs=1e-3)
    expect(
        _described(answer)[0] is not graph,
        "each call of make_graph() to make a graph of its own; two calls gave the same one",
    )


def _described(answer: Callable[..., Any]) -> tuple[tf.Graph, Mapping[str, tf.Tensor], tf.Tensor]:
    graph, feeds, d = parts(_called(answer), 3, "make_graph() to return three things: graph, placeholders, d")
    expect(isinstance(graph, tf.Graph), f"the first thing returned to be a tf.Graph; it is {describe(graph)}")
    expect(
        isinstance(feeds, Mapping) and set(feeds) == {"a", "b"},
        f'the second thing returned to be a dictionary {{"a": …, "b": …}}; it is {describe(feeds)}',
    )
    for name, tensor in {**feeds, "d": d}.items():
        expect(not is_tensor(tensor), f"{name} to be described in a graph; it is already a number: {short(tensor)}")
        expect(
            isinstance(tensor, tf.Tensor),
            f"{name} to be a tensor, such as an operation's outputs[0]; it is {describe(tensor)}",
        )
        expect(tensor.graph is graph, f"{name} to be in the graph you return; it is in another one")
        expect(tensor.dtype == tf.float32, f"{name} to be of type float32; it is of {tensor.dtype.name}")
    return graph, feeds, d


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
def trained(answer: Callable[..., Any]) -> None:
    """Gradient descent as NumPy does it, and a graph of one size."""
    rng = np.random.default_rng(3)
    batches = [(x, 2.0 * x + 0.1 * rng.normal(size=len(x))) for x in (rng.normal(size=n) for n in (8, 8, 5, 8, 1, 12))]
    sizes, graphs_made = {}, {}
    for count, rate in ((1, 0.1), (3, 0.1), (len(batches), 0.1), (3, 0.03)):
        with _counted_graphs() as made:
            got = _called(answer, batches[:count], rate)
        graph, w = parts(got, 2, "train(batches, rate) to return two things: the graph and w")
        expect(isinstance(graph, tf.Graph), f"the first thing returned to be a tf.Graph; it is {describe(graph)}")
        expect(
            is_number(w) and has_format(w, ".3f"),
            f"the second thing returned to be w as a number, as session.run(w) gives; it is {describe(w)}",
        )
        right = 0.0
        for x, y in batches[:count]:
            right -= rate * float(np.mean(2 * (right * x - y) * x))
        same(w, right, f"w, after {count} {'step' if count == 1 else 'steps'} with rate {rate},", rel=1e-3)
        sizes[count], graphs_made[count] = len(graph.get_operations()), len(made)
    expect(
        len(set(sizes.values())) == 1,
        "as many operations after many steps as after one; yours has "
        + ", ".join(f"{size} after {count}" for count, size in sizes.items()),
    )
    expect(
        graphs_made[3] == graphs_made[len(batches)],  # the first call may make one that TensorFlow keeps
        f"one graph for all the steps; yours makes {graphs_made[3]} for 3 steps, {graphs_made[len(batches)]} for "
        f"{len(batches)}",
        hint="Each graph is prepared before it runs. Describe the step once, before the loop; the session keeps w.",
    )
    expect(
        any(operation.type not in STORING for operation in graph.get_operations()),
        f"the steps to run in the graph; yours has {sizes[1]} operations, of which none computes anything",
    )


@lab.exercise(
    3,
    hints=(
        "A v1.ConfigProto holds the number of inter-op threads, and a v1.Session takes it as config.",
        "Sessions share one pool of threads, made by the first, unless the config says use_per_session_threads=True.",
        "config = v1.ConfigProto(inter_op_parallelism_threads=inter_op, use_per_session_threads=True), then "
        "`with v1.Session(graph=graph, config=config) as session:` and return session.run(fetches, feeds).",
    ),
)
def ran(answer: Callable[..., Any]) -> None:
    """One run, the right values, and as many operations at once as there are threads."""
    calls = []

    def count(value: np.ndarray) -> np.ndarray:
        calls.append(1)
        return value

    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, name="x")
        counted = tf.numpy_function(count, [x], tf.float32)
        one, two = counted + 1.0, counted + 2.0
    graph.finalize()
    got = _called(answer, graph, [one, two], {x: 1.0}, 1)
    got = parts(got, 2, "the fetches [one + 1, one + 2] for one = 1 to be two numbers")
    for value, right in zip(got, (2.0, 3.0), strict=True):
        same(value, right, f"one + {right - 1:.0f} for one = 1")
    expect(
        len(calls) == 1,
        f"both fetches to come from one run of the graph; an operation that both need ran {len(calls)} times",
    )
    same(_called(answer, graph, one, {counted: 10.0}, 1), 11.0, "a single fetch, fed in between,")
    got = _called(answer, graph, {"sums": [one, two]}, {x: np.array([1, 5], np.float32)}, 2)
    fetched = isinstance(got, Mapping) and set(got) == {"sums"}
    expect(fetched, f'a dictionary with "sums", when a dictionary is fetched; it is {describe(got)}')
    same(parts(got["sums"], 2, "the fetched list to be of two")[1], np.array([3.0, 7.0]), "one + 2 for one = [1, 5]")

    for threads in (3, 1):
        most = _at_once(lambda *args, threads=threads: _called(answer, *args, threads), threads)
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
def traced(answer: Callable[..., Any]) -> None:
    """The function's Python runs once, while tracing, for all lengths and factors."""
    runs: list[bool] = []

    def recorded(formula: Callable[..., Any]) -> Callable[..., Any]:
        def function(x: Any, factor: Any) -> Any:
            runs.append(tf.executing_eagerly())
            return formula(x, factor)

        return function

    # Of all numbers; of each by itself; and one that a length of its own would spoil.
    formulas = {
        "sum(x) * factor": lambda x, factor: tf.reduce_sum(x) * factor,
        "factor * x + 1": lambda x, factor: factor * x + 1.0,
        "mean(x) - factor": lambda x, factor: tf.reduce_mean(x) - factor,
    }
    cases: list[tuple[Any, Any]] = [
        ([1.0, 2.0], 2.0),
        ([1.0, 2.0], 3.0),
        (np.arange(5, dtype=np.float32), 0.5),
        (tf.ones([7]), tf.constant(0.25)),
        (tf.ones([1]), 4),
        (np.arange(1000, dtype=np.float32) % 7, -1.5),
    ]
    made: dict[str, Callable[..., Any]] = {}

    def decide(formula: str, x: Any, factor: Any) -> None:
        numbers = np.asarray(x, np.float32)
        called = f"{formula} for x = {short(numbers)} and factor = {float(factor)}"
        got = call(made[formula], x, factor)
        expect(got is not None, f"the function you return to return what its function does, {called}; it returned None")
        same(got, np.asarray(formulas[formula](numbers, np.float32(factor))), f"{called},", rel=1e-5)

    # The second function comes when the first one's graph is there.
    for formula, function in formulas.items():
        runs.clear()
        made[formula] = _called(answer, recorded(function))
        expect(
            callable(made[formula]),
            f"traced_once(function) to return a function; it returned {describe(made[formula])}",
        )
        for x, factor in cases:
            decide(formula, x, factor)
        expect(not any(runs), "it to run as a graph; the function's Python ran eagerly, as if without tf.function")
        expect(
            len(runs) == 1,
            f"1 trace for {len(cases)} calls of several lengths and factors; it was traced {len(runs)} times",
        )
    runs.clear()
    for formula in formulas:  # each still has a graph of its own
        decide(formula, np.arange(4, dtype=np.float32), 5.0)
        decide(formula, [1, 2, 3], tf.constant(2.0))
    expect(
        not runs, f"1 trace of each function; when it was called again after others, it was traced {len(runs)} times"
    )


@lab.exercise(
    5,
    hints=(
        "Which operations are still separate in the picture? Is there one that is made for the job?",
        "tf.nn has an operation for adding a bias, and one for setting negative numbers to zero.",
        "tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, kernel, 1, 'SAME'), bias))",
    ),
)
def merged(answer: Callable[..., Any]) -> None:
    """The right numbers, by one operation of the graph that ran, for kernels of two sizes."""
    _merges(answer, (2, 6, 6, 3), (3, 3, 3, 4))
    _merges(answer, (1, 7, 9, 2), (5, 1, 2, 6))


def _merges(answer: Callable[..., Any], of_images: tuple[int, ...], of_kernel: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    images, kernel = (rng.normal(size=shape).astype(np.float32) for shape in (of_images, of_kernel))
    bias = np.linspace(-0.5, 0.5, of_kernel[-1], dtype=np.float32) + 0.1
    with tf.Graph().as_default() as graph:
        fed = v1.placeholder(tf.float32, images.shape, name="images")
        y = call(answer, fed, tf.constant(kernel, name="kernel"), tf.constant(bias, name="bias"))
    expect(isinstance(y, tf.Tensor), f"block(images, kernel, bias) to return a tensor; it returned {describe(y)}")
    expect(not is_tensor(y) and y.graph is graph, "block to describe its result in the graph that images belong to")
    config, metadata = _limited(), v1.RunMetadata()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    options = v1.RunOptions(output_partition_graphs=True)
    value = _ran(graph, y, {fed: images}, config, options, metadata)

    convolved = tf.nn.conv2d(images, kernel, 1, "SAME").numpy()
    right = np.maximum(convolved + bias, 0)
    hint = (
        "First the numbers, as block_by_hand has them: the convolution, then the bias, then negative numbers to zero."
    )
    expect(
        value.shape == right.shape,
        f"a result of shape {right.shape} for images {of_images} and a kernel {of_kernel}; it has {value.shape}",
        hint,
    )
    for mistake, what in (
        (convolved + bias, "there are negative numbers in it"),
        (np.maximum(convolved, 0) + bias, "the bias must come first, then the ReLU"),
        (np.maximum(convolved, 0), "is the bias in it?"),
        (convolved, "neither the bias nor the ReLU is in it"),
        (np.maximum(convolved - bias, 0), "the bias is to be added"),
    ):
        expect(not np.allclose(value, mistake, atol=1e-4), f"the numbers of block_by_hand; {what}", hint)
    off = float(np.abs(value - right).max())
    expect(off < 1e-4, f"the numbers of block_by_hand; yours are off by up to {off:.3g}", hint)
    ran = [
        node for node in graphs.read(metadata.partition_graphs[0])[0] if node.kind in (graphs.OPERATION, graphs.FUSED)
    ]
    expect(
        len(ran) == 1,
        "one operation to run; these did: "
        + ", ".join(f"{node.op} ({' + '.join(node.parts)})" if node.parts else node.op for node in ran),
    )


@contextlib.contextmanager
def _counted_graphs() -> Iterator[list[str]]:
    """Yield a list with an entry for each graph that is made meanwhile: not itself, which must not live for longer."""
    made: list[str] = []
    make = tf.Graph.__init__

    def count(graph: tf.Graph, *args: Any, **kwargs: Any) -> None:
        made.append(type(graph).__name__)
        make(graph, *args, **kwargs)

    tf.Graph.__init__ = count
    try:
        yield made
    finally:
        tf.Graph.__init__ = make


def _called(answer: Callable[..., Any], *args: Any) -> Any:
    """Call an answer, after which TensorFlow must work as before: the cells that follow need it."""
    got = call(answer, *args)
    name = getattr(answer, "__name__", "your function")
    if not tf.executing_eagerly():
        # Should it be off for all threads, TensorFlow lets only one that has no graph yet switch it on again.
        fresh = threading.Thread(target=v1.enable_eager_execution)
        fresh.start()
        fresh.join()
        raise NotYet(
            f"Expected operations to run at once again when {name} has returned; they still go into a graph. `with "
            "graph.as_default():` and `with v1.Session(…):` end by themselves what they began."
        )
    if tf.config.functions_run_eagerly():
        tf.config.run_functions_eagerly(False)
        raise NotYet(f"Expected tf.function to work when {name} has returned; run_functions_eagerly(True) disables it.")
    return got


def _limited() -> Any:
    return v1.ConfigProto(operation_timeout_in_ms=10_000)


def _ran(graph: tf.Graph, fetch: tf.Tensor, feeds: dict[str, Any], config: Any = None, *options: Any) -> Any:
    """Run a graph that the answer described; what fails then is the answer's failure."""
    try:
        with v1.Session(graph=graph, config=config or _limited()) as session:
            return session.run(fetch, feeds, *options)
    except (tf.errors.OpError, ValueError, TypeError, RuntimeError) as error:
        raise NotYet(f"{failure(error)}. That happens when your graph is run.") from error


def _at_once(run: Callable[..., Any], enough: int) -> int:
    """Return how many operations were under way at once, at most, when `run` ran one more than is enough."""
    changed, waiting, most, over = threading.Condition(), 0, 0, False

    def meet() -> np.float32:
        nonlocal waiting, most, over
        with changed:
            waiting += 1
            most = max(most, waiting)
            changed.notify_all()
            # Threads need a while to come on a busy machine. One too many comes with them.
            changed.wait_for(lambda: over or most >= enough, timeout=3)
            changed.wait_for(lambda: over or most > enough or most < enough, timeout=0.3)
            over = True
            changed.notify_all()
            waiting -= 1
        return np.float32(1)

    with tf.Graph().as_default() as graph:
        total = tf.add_n([tf.numpy_function(meet, [], tf.float32) for _ in range(enough + 1)])
    run(graph, total, {})
    return most
