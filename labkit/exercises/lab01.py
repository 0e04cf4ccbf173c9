"""Checks for lab 01: a graph, a trace's concurrency, two graphs."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from labkit.exercises.engine.answers import call, failure, for_all
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import NotYet, expect
from labkit.exercises.engine.values import describe, expect_equal, is_tensor, parts, short
from labkit.system.words import plural

lab = Lab("01")
v1 = tf.compat.v1


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Silence TensorFlow's warnings inside a block, such as the one about frequent retracing."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


@lab.exercise(
    1,
    hints=(
        "Three steps: create a tf.Graph(), describe the computation inside `with graph.as_default():`, return them.",
        "v1.placeholder(tf.float32) describes a value that is fed later; without a shape, it accepts any. + - * "
        "describe the rest.",
        'a, b = v1.placeholder(tf.float32), v1.placeholder(tf.float32); return graph, {"a": a, "b": b}, '
        "(a + b) * (b - 2). Everything except the return goes inside the `with`.",
    ),
)
def made_graph(answer: Callable[..., Any]) -> None:
    """Check for a new graph each time, with two placeholders of any shape and the right d."""
    graph, feeds, d = _unpack_graph(answer)
    config = _config_with_timeout()
    with v1.Session(graph=graph, config=config) as session:
        for name, tensor in feeds.items():
            try:
                session.run(tensor)
            except tf.errors.InvalidArgumentError:
                continue  # as expected
            raise NotYet(f"Expected {name} to be a placeholder, which has no value until fed; yours already has one.")
    rng = np.random.default_rng(1)
    random_pairs = [rng.uniform(-9, 9, (2, *shape)).astype(np.float32) for shape in ((), (4,), (2, 3), (2, 1, 3, 2))]
    fixed_pairs: list[tuple[ArrayLike, ArrayLike]] = [
        (3.0, 4.0),
        (1.0, 2.0),
        (-1.0, 0.5),
        ([1.0, 2.0], [3.0, 5.0]),
        (-3, 7),
    ]
    for a, b in [*fixed_pairs, *((pair[0], pair[1]) for pair in random_pairs)]:
        value = _run_graph(graph, d, {feeds["a"]: a, feeds["b"]: b})
        expected = (np.float64(a) + np.float64(b)) * (np.float64(b) - 2)
        expect_equal(value, expected, f"d, for a = {short(a)} and b = {short(b)},", rel=1e-4, abs=1e-3)
    expect(
        _unpack_graph(answer)[0] is not graph,
        "each call of make_graph() to create a new graph; two calls returned the same one",
    )


def _unpack_graph(answer: Callable[..., Any]) -> tuple[tf.Graph, Mapping[str, tf.Tensor], tf.Tensor]:
    graph, feeds, d = parts(_call_safely(answer), 3, "make_graph() to return three things: graph, placeholders, d")
    expect(isinstance(graph, tf.Graph), f"the first returned value to be a tf.Graph; it is {describe(graph)}")
    expect(
        not graph.building_function,
        "the graph to come from tf.Graph(), so that the next cells can feed its placeholders in a session; it is a "
        "FuncGraph, which belongs to a tf.function",
    )
    expect(
        isinstance(feeds, Mapping) and set(feeds) == {"a", "b"},
        f'the second returned value to be a dictionary {{"a": …, "b": …}}; it is {describe(feeds)}',
    )
    for name, tensor in {**feeds, "d": d}.items():
        expect(not is_tensor(tensor), f"{name} to be a tensor in a graph; it is already a number: {short(tensor)}")
        expect(
            isinstance(tensor, tf.Tensor),
            f"{name} to be a tensor, such as an operation's outputs[0]; it is {describe(tensor)}",
        )
        expect(tensor.graph is graph, f"{name} to be in the graph that you return; it is in another one")
        expect(tensor.dtype == tf.float32, f"{name} to have dtype float32; it has {tensor.dtype.name}")
    return graph, feeds, d


@lab.exercise(
    2,
    hints=(
        "The average is the sum of all operations' times, divided by the time from the first start to the last end.",
        "The number of running operations increases only when one starts. So check only those moments: which "
        "operations have start <= moment < end?",
        "average = sum(end - start for _, start, end in ran) / (finish - begin), where begin is the smallest start and "
        "finish the largest end; most = max(sum(start <= moment < end for _, start, end in ran) for _, moment, _ in "
        "ran).",
    ),
)
def read_trace(answer: Callable[..., Any]) -> None:
    """Check the maximum and the average over the whole time, for fixed and generated traces."""
    from hypothesis import strategies as st

    def decide(operations: Sequence[tuple[float, float]]) -> None:
        ran = [(index % 4, float(start), float(start + duration)) for index, (start, duration) in enumerate(operations)]
        label = f"concurrency({[(branch, round(start, 3), round(end, 3)) for branch, start, end in ran]})"
        most, average = parts(call(answer, ran), 2, f"{label} to be two numbers")
        times = sorted({time for _, *ends in ran for time in ends})
        running = [sum(start <= time < end for _, start, end in ran) for time in times]
        busy = sum(count * (end - start) for count, start, end in zip(running, times, times[1:], strict=False))
        expect_equal(most, max(running), f"the maximum, the first number of {label},", rel=0)
        expect_equal(average, busy / (times[-1] - times[0]), f"the average, the second number of {label},", rel=1e-4)

    for operations in (
        [(0, 2)],
        [(0, 2), (2, 2)],
        [(0, 4), (1, 2)],
        [(5, 1), (0, 1), (1, 1)],
        [(0, 9), (1, 1), (3, 1)],
        [(100.5, 0.25), (100.625, 0.5)],
        [(0, 1000), (1000 - 1 / 1024, 1)],  # concurrent for 1 µs
    ):
        decide(operations)
    for_all(decide, operations=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), min_size=1, max_size=8))


@lab.exercise(
    3,
    hints=(
        "Which of the three arguments is a Python value that may have one graph per value, and which must be tensors? "
        "And where can you store a count that a graph changes?",
        "Create a tf.Variable for the count outside the traced function, and let the training graph add 1 with "
        "assign_add. Create two tf.functions, one for each value of training, with input_signature="
        "[tf.TensorSpec([None], tf.float32)].",
        "step = tf.Variable(0.0); def graph_for(training): def run(x): (if training: step.assign_add(1.0)) and return "
        "function(x, step.read_value(), training); return tf.function(run, input_signature=[tf.TensorSpec([None], "
        "tf.float32)]). Then both = {flag: graph_for(flag) for flag in (False, True)}, and return lambda x, training: "
        "both[training](x).",
    ),
)
@without_warnings()
def two_graphs(answer: Callable[..., Any]) -> None:
    """Check for the right count in the right graph, and at most one run of the Python code for each graph."""
    runs: list[tuple[bool, Any]] = []

    def recording(formula: Callable[..., Any]) -> Callable[..., Any]:
        def function(x: Any, step: Any, training: Any) -> Any:
            runs.append((tf.executing_eagerly(), training))
            return formula(x, step, training is True)

        return function

    # Elementwise; a reduction; and one in which the two graphs differ by more than the count.
    formulas = {
        "x * 0.5**step": lambda x, step, training: x * 0.5**step,
        "sum(x) + step": lambda x, step, training: tf.reduce_sum(x) + step,
        "-x if training else x + step": lambda x, step, training: -x if training else x + step,
    }
    # Each call's x and training.
    calls = [
        ([8.0, 16.0], False),
        ([8.0, 16.0], True),
        (np.arange(5, dtype=np.float32), True),
        ([1, 2, 3], False),
        (tf.ones([7]), True),
        (tf.ones([1]), False),
        (np.arange(1000, dtype=np.float32) % 7, True),
    ]
    functions: dict[str, Callable[..., Any]] = {}
    counts = dict.fromkeys(formulas, 0)

    def decide(formula: str, x: Any, training: bool) -> None:
        counts[formula] += training
        numbers = np.asarray(x, np.float32)
        history = f"after {plural(counts[formula], 'training call')}"
        label = f"{formula} for x = {short(numbers)}, training = {training}, {history}"
        result = call(functions[formula], x, training)
        for flag in (flag for _, flag in runs if flag is not True and flag is not False):
            expect(
                False,
                f"function to get Python's True or False for training; it got {describe(flag)}",
                hint="`if training` needs a value during tracing: make a graph for each of the two values.",
            )
        expect(result is not None, f"the function that you return to return {label}; it returned None")
        expected = formulas[formula](tf.constant(numbers), np.float32(counts[formula]), training)
        expect_equal(result, expected.numpy(), f"{label},", rel=1e-5)

    def expect_two_traces(done: int) -> None:
        expect(
            not any(eager for eager, _ in runs),
            "a graph to run; the function's Python ran eagerly, as without tf.function",
        )
        times = [sum(training is flag for _, training in runs) for flag in (True, False)]
        expect(
            max(times) <= 1,
            f"at most 1 trace for training and 1 for prediction in {done} calls of several lengths; there were "
            f"{times[0]} and {times[1]}",
        )

    for formula, function in formulas.items():
        runs.clear()
        functions[formula] = _call_safely(answer, recording(function))
        expect(
            callable(functions[formula]),
            f"count_in_graphs(function) to return a function; it returned {describe(functions[formula])}",
        )
        for x, training in calls:
            decide(formula, x, training)
        flags = {training for _, training in runs}
        expect(
            flags == {True, False},
            "function to be called with True for training and with False for prediction; it got "
            + (f"{flags.pop()} for both" if flags else "neither, since it was never called"),
        )
        expect_two_traces(len(calls))
    runs.clear()
    for formula in formulas:  # each still has its own count and graphs
        decide(formula, [1.0, 2.0, 3.0, 4.0], True)
        decide(formula, [2.0], False)
    expect(not runs, f"no new traces when functions are called again after others; there were {len(runs)}")


def _call_safely(answer: Callable[..., Any], *args: Any) -> Any:
    """Call an answer and check that TensorFlow then works as before, since the following cells need it."""
    result = call(answer, *args)
    name = getattr(answer, "__name__", "your function")
    if not tf.executing_eagerly():
        # If it is off for all threads, only a thread without a graph can switch it on again.
        thread = threading.Thread(target=v1.enable_eager_execution)
        thread.start()
        thread.join()
        raise NotYet(
            f"Expected eager execution again after {name} returns; operations still go into a graph. `with "
            "graph.as_default():` and `with v1.Session(…):` restore it when their block ends."
        )
    if tf.config.functions_run_eagerly():
        tf.config.run_functions_eagerly(False)
        raise NotYet(f"Expected tf.function to work after {name} returns; run_functions_eagerly(True) disables it.")
    return result


def _config_with_timeout() -> Any:
    return v1.ConfigProto(operation_timeout_in_ms=10_000)


def _run_graph(graph: tf.Graph, fetch: tf.Tensor, feeds: dict[str, Any], config: Any = None, *options: Any) -> Any:
    """Run the answer's graph; blame the answer if that fails."""
    try:
        with v1.Session(graph=graph, config=config or _config_with_timeout()) as session:
            return session.run(fetch, feeds, *options)
    except (tf.errors.OpError, ValueError, TypeError, RuntimeError) as error:
        raise NotYet(f"{failure(error)}. That happens when your graph runs.") from error
