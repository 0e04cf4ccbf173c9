import time

import numpy as np
import pytest
import tensorflow as tf
from labs import Bench, ThreeWays, same, swap


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Bench("01", {"np": np, "tf": tf, "v1": tf.compat.v1, "time": time})


D = 'd = tf.multiply(a + b, b - 2, name="d")'
TRAIN_RUN = "session.run(step, {x: batch_x, y: batch_y})"
POOL = ", use_per_session_threads=True"
SIGNED = "tf.function(function, input_signature=signature)"
RELU = "tf.nn.relu(tf.nn.bias_add(convolved, bias))"

CONVERTED = swap(
    f"return {SIGNED}",
    """graph = tf.function(function).get_concrete_function(*signature)
    return lambda x, factor: graph(*(tf.convert_to_tensor(value, tf.float32) for value in (x, factor)))""",
)
ADAPTED = swap(
    """with v1.Session(graph=graph, config=config) as session:
        return session.run(fetches, feeds)""",
    """session = v1.Session(graph=graph, config=config)
    try:
        return session.run(fetches, feed_dict=feeds)
    finally:
        session.close()""",
)
OPTIMIZER = swap(
    "step = w.assign_sub(rate * tf.gradients(loss, w)[0])",
    "step = v1.train.GradientDescentOptimizer(rate).minimize(loss)",
)
ALL_IN_NUMPY = swap(
    TRAIN_RUN,
    """pass
        value = 0.0
        for u, v in batches:
            value -= rate * np.mean(2 * (value * u - v) * u)
        return tf.Graph(), value""",
)


class TestExercises(ThreeWays):
    lab = "01"
    mistakes = [
        (
            1,
            swap("    return graph,", "    print(graph) #"),
            "to return three things: graph, placeholders, d; it returned None",
        ),
        (
            1,
            swap("return graph, {", "return v1.Session(graph=graph), {"),
            "the first thing returned to be a tf.Graph; it is",
        ),
        (1, swap('{"a": a, "b": b}', "[a, b]"), 'to be a dictionary {"a": …, "b": …}; it is ['),
        (1, swap("v1.placeholder(tf.float32", "tf.constant(1.0"), "yours have one by themselves"),
        (1, swap("    with graph.as_default():", "    if True:"), "not compatible with eager execution"),
        (
            1,
            swap("tf.float32, name", "tf.float32, [], name"),
            "Running your graph raised ValueError: Cannot feed value of shape",
        ),
        (1, swap("b - 2", "b + 2"), "d to be 14.0 for a = 3.0 and b = 4.0; it is 42.0"),
        (1, swap("}, d", "}, d.op"), "d to be a tensor, such as an operation's outputs[0]; it is <tf.Operation 'd'"),
        (1, swap("}, d", "}, tf.constant(14.0)"), "d to be described in a graph; it is already a number"),
        (1, swap("return graph, {", "return tf.Graph(), {"), "a to be in the graph you return; it is in another one"),
        (1, swap("tf.Graph()", "tf.__dict__.setdefault('g', tf.Graph())"), "two calls gave the same one"),
        (2, swap("        return graph, session.run(w)", "        print(session.run(w))"), "it returned None"),
        (2, swap("        session.run(w.initializer)\n", ""), "FailedPreconditionError"),
        (
            2,
            swap("return graph, session.run(w)", "return graph, w"),
            "to be w as a number, as session.run(w) gives; it is <tf.V",
        ),
        (2, swap("rate * tf", "tf"), "after 1 step with rate 0.1; it is"),
        (
            2,
            swap("batch_x, batch_y in batches", "batch_x, batch_y in batches[-1:]"),
            "after 3 steps with rate 0.1; it is",
        ),
        (2, swap("[None]", "[8]"), "ValueError: Cannot feed value of shape (5,)"),
        (
            2,
            lambda text: text.replace("        graph.finalize()\n", "").replace(
                TRAIN_RUN, "session.run(w.assign_sub(rate * tf.gradients(loss, w)[0]), {x: batch_x, y: batch_y})"
            ),
            "as many operations after many steps as after one; yours has",
        ),
        (2, swap("        for batch_x", "        w.assign(0.0)\n        for batch_x"), "Graph is finalized"),
        (2, ALL_IN_NUMPY, "yours has 0 operations and no placeholder"),
        (3, swap(POOL, ""), "Is it the session's own pool of threads, or one shared"),
        (3, swap("=inter_op,", "=2,"), "1 of 2 independent operations at once, with inter_op = 1; there were 2"),
        (3, swap(", config=config", ""), "independent operations at once"),
        (3, swap("return session.run(fetches, feeds)", "session.run(fetches, feeds)"), "it returned None"),
        (
            3,
            swap("session.run(fetches, feeds)", "[session.run(fetch, feeds) for fetch in tf.nest.flatten(fetches)]"),
            "an operation that both need ran 2 times",
        ),
        (
            3,
            swap("session.run(fetches, feeds)", "session.run(fetches)"),
            "You must feed a value for placeholder tensor",
        ),
        (
            3,
            swap("return session.run(fetches, feeds)", "return fetches"),
            "to be [2.0, 3.0]; it is [<tf.Tensor 'add:0'",
        ),
        (4, swap(SIGNED, "lambda x, factor: print(x)"), "it gave None"),
        (4, swap(SIGNED, "lambda x, factor: 'two'"), "to be 6.0; it is 'two'"),
        (4, swap(SIGNED, "function"), "the function's Python ran by itself"),
        (4, swap(SIGNED, "tf.function(function)"), "it was traced 6 times"),
        (4, swap(SIGNED, "tf.function(function, reduce_retracing=True)"), "1 trace for 6 calls"),
        (4, swap("tf.TensorSpec([None]", "tf.TensorSpec([2]"), "raised"),
        (4, swap("return tf.function", "tf.function"), "to return a function; it returned None"),
        (
            4,
            swap(SIGNED, "tf.function(lambda x, factor: tf.reduce_sum(x) * factor, input_signature=signature)"),
            "traced 0 times",
        ),
        (5, swap(RELU, "tf.maximum(tf.nn.bias_add(convolved, bias), 0.0)"), "Maximum"),
        (5, swap(RELU, "tf.nn.bias_add(tf.nn.relu(convolved), bias)"), "Bias first, then the ReLU?"),
        (5, swap(RELU, "tf.nn.bias_add(convolved, bias)"), "there are negative numbers in it"),
        (5, swap(RELU, "tf.nn.relu(convolved)"), "the numbers of block_by_hand"),
        (5, swap(RELU, "print(convolved)"), "to return a tensor; it returned None"),
        (5, swap(RELU, "tf.nn.relu(tf.nn.bias_add(convolved, bias)).numpy()"), "raised"),
        (5, swap('"SAME"', '"VALID"'), "a result of shape (2, 6, 6, 4); it has (2, 4, 4, 4)"),
    ]
    right = [
        (1, same),
        (1, swap(D, "d = tf.subtract(a * b - 2 * a + b * b, 2 * b)")),
        (2, same),
        (2, OPTIMIZER),
        (3, same),
        (3, ADAPTED),
        (4, same),
        (4, CONVERTED),
        (5, same),
        (5, swap('tf.nn.conv2d(images, kernel, 1, "SAME")', 'tf.nn.convolution(images, kernel, padding="SAME")')),
    ]
