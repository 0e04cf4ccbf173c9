import time
from fractions import Fraction

import lab_cells
import numpy as np
import pytest
import tensorflow as tf
from labs import Student, ThreeWays, after, same, swap

from labkit.exercises import core
from labkit.system.statistics import ratio, ratios


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Student("01", {"np": np, "tf": tf, "v1": tf.compat.v1, "time": time, "Fraction": Fraction})


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
DATASET = swap(
    """x = v1.placeholder(tf.float32, [None])
        y = v1.placeholder(tf.float32, [None])""",
    """numbers = tf.TensorSpec([None], tf.float32)
        data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=(numbers, numbers))
        x, y = v1.data.make_one_shot_iterator(data).get_next()""",
)
POOL_OF_ITS_OWN = swap(
    f"v1.ConfigProto(inter_op_parallelism_threads=inter_op{POOL})",
    """v1.ConfigProto()
    config.session_inter_op_thread_pool.add().num_threads = inter_op""",
)
A_GRAPH_A_STEP = after(
    "    ### BEGIN SOLUTION",
    """    value = 0.0
    for batch_x, batch_y in batches:
        graph = tf.Graph()
        with graph.as_default(), v1.Session() as session:
            w = v1.get_variable("w", initializer=np.float32(value))
            loss = tf.reduce_mean((w * tf.constant(batch_x, tf.float32) - tf.constant(batch_y, tf.float32)) ** 2)
            session.run(w.initializer)
            value = session.run(w.assign_sub(rate * tf.gradients(loss, w)[0]))
    return graph, value
""",
)
AS_A_FUNCTION = after(
    "    ### BEGIN SOLUTION",
    """    w = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)] * 2)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((w * x - y) ** 2)
        w.assign_sub(rate * tape.gradient(loss, w))

    for batch_x, batch_y in batches:
        step(tf.constant(batch_x, tf.float32), tf.constant(batch_y, tf.float32))
    return step.get_concrete_function().graph, float(w)
""",
)
PADDED = swap(
    f"return {SIGNED}",
    """graph = tf.function(function).get_concrete_function(tf.TensorSpec([2048], tf.float32), signature[1])

    def padded(x, factor):
        x, factor = np.asarray(x, "float32"), tf.constant(factor, tf.float32)
        result = graph(tf.constant(np.pad(x, (0, 2048 - len(x)))), factor)
        return result[: len(x)] if result.shape.rank else result

    return padded""",
)
ONE_GRAPH_FOR_ALL = swap(
    f"return {SIGNED}",
    f"tf.graph_of_all = {SIGNED}\n    return lambda x, factor: tf.graph_of_all(x, factor)",
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
            "to return three things: graph, placeholders, d; it is None: does it return?",
        ),
        (
            1,
            swap("return graph, {", "return v1.Session(graph=graph), {"),
            "the first thing returned to be a tf.Graph; it is",
        ),
        (1, swap('{"a": a, "b": b}', "[a, b]"), 'to be a dictionary {"a": …, "b": …}; it is a list: ['),
        (
            1,
            swap("v1.placeholder(tf.float32", "tf.constant(1.0"),
            "a to be a placeholder, which has no value until fed",
        ),
        (1, swap('v1.placeholder(tf.float32, name="b")', "tf.constant(1.0)"), "b to be a placeholder"),
        (1, swap("tf.float32", "tf.float64"), "a to be of type float32; it is of float64"),
        (1, swap("    with graph.as_default():", "    if True:"), "not compatible with eager execution"),
        (
            1,
            swap("tf.float32, name", "tf.float32, [], name"),
            "ValueError: Cannot feed value of shape (2,) for Tensor a:0, which has shape (). That happens",
        ),
        (1, swap("b - 2", "b + 2"), "d, for a = 3.0 and b = 4.0, to be 14; it is 42"),
        (1, swap("}, d", "}, d.op"), "d to be a tensor, such as an operation's outputs[0]; it is an Operation"),
        (1, swap("}, d", "}, tf.constant(14.0)"), "d to be described in a graph; it is already a number"),
        (1, swap("return graph, {", "return tf.Graph(), {"), "a to be in the graph you return; it is in another one"),
        (1, swap("tf.Graph()", "tf.__dict__.setdefault('g', tf.Graph())"), "two calls gave the same one"),
        (
            2,
            swap(
                "with graph.as_default(), v1.Session() as session:",
                "session = v1.InteractiveSession(graph=graph)\n    if 1:",
            ),
            "they still go into a graph",
        ),
        (
            1,
            swap(D, "d = tf.reshape(a, [3])"),
            'requested shape has 3, in line 8: "d = tf.reshape(a, [3])". That happens',
        ),
        (
            2,
            swap("        return graph, session.run(w)", "        print(session.run(w))"),
            "it is None: does it return?",
        ),
        (2, swap("        session.run(w.initializer)\n", ""), "FailedPreconditionError"),
        (
            2,
            swap("return graph, session.run(w)", "return graph, w"),
            "to be w as a number, as session.run(w) gives; it is a ResourceVariable",
        ),
        (
            2,
            swap("session.run(w)\n    ###", "Fraction(float(session.run(w)))\n    ###"),
            "to be w as a number, as session.run(w) gives; it is",
        ),
        (2, swap("rate * tf", "tf"), "after 1 step with rate 0.1, to be"),
        (2, swap("rate * tf", "0.1 * tf"), "after 3 steps with rate 0.03, to be"),
        (
            2,
            swap("        loss =", "        x = np.sin(x)\n        loss ="),
            "NotImplementedError: Cannot convert a symbolic",
        ),
        (2, swap("        loss =", "        x = np.sin(x)\n        loss ="), 'in line 9: "x = np.sin(x)"'),
        (
            2,
            swap("batch_x, batch_y in batches", "batch_x, batch_y in batches[-1:]"),
            "after 3 steps with rate 0.1, to be",
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
        (2, A_GRAPH_A_STEP, "one graph for all the steps; yours makes 3 for 3 steps, 6 for 6"),
        (2, ALL_IN_NUMPY, "yours has 0 operations, of which none computes anything"),
        (3, swap(POOL, ""), "Is it the session's own pool of threads, or one shared"),
        (
            3,
            swap("=inter_op,", "=max(2, inter_op),"),
            "1 of 2 independent operations at once, with inter_op = 1; there were 2",
        ),
        (3, swap(", config=config", ""), "independent operations at once"),
        (3, swap("return session.run(fetches, feeds)", "session.run(fetches, feeds)"), "it is None: does it return?"),
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
            "one + 1 for one = 1 to be a number; it is a SymbolicTensor",
        ),
        (4, swap(SIGNED, "lambda x, factor: print(x)"), "it returned None"),
        (4, swap(SIGNED, "lambda x, factor: 'two'"), "to be a number; it is 'two', of type str"),
        (4, swap(SIGNED, "function"), "the function's Python ran eagerly"),
        (4, swap(SIGNED, "tf.function(function)"), "it was traced 6 times"),
        (4, swap(SIGNED, "tf.function(function, reduce_retracing=True)"), "1 trace for 6 calls"),
        (
            4,
            swap("tf.TensorSpec([None]", "tf.TensorSpec([2]"),
            "TypeError: Binding inputs to tf.function failed due to `Can not cast TensorSpec(shape=(5,)",
        ),
        (
            4,
            swap("return tf.function(function,", "return tf.function(lambda x, factor: np.sin(function(x, factor)),"),
            "NotImplementedError: Cannot convert a symbolic tf.Tensor (mul:0) to a numpy array",
        ),
        (4, PADDED, "mean(x) - factor for x = [1.0, 2.0] and factor = 2.0, to be -0.5; it is"),
        (4, ONE_GRAPH_FOR_ALL, "sum(x) * factor for x = [0.0, 1.0, 2.0, 3.0] and factor = 5.0, to be 30; it is -3.5"),
        (4, swap("return tf.function", "tf.function"), "to return a function; it returned None: does it return?"),
        (
            4,
            swap(SIGNED, "tf.function(lambda x, factor: tf.reduce_sum(x) * factor, input_signature=signature)"),
            "traced 0 times",
        ),
        (5, swap(RELU, "tf.maximum(tf.nn.bias_add(convolved, bias), 0.0)"), "Maximum"),
        (5, swap(RELU, "tf.nn.bias_add(tf.nn.relu(convolved), bias)"), "the bias must come first, then the ReLU"),
        (5, swap(RELU, "tf.nn.bias_add(convolved, bias)"), "there are negative numbers in it"),
        (
            5,
            swap(RELU, "tf.nn.relu6(tf.nn.bias_add(convolved, bias))"),
            "Hint: First the numbers, as block_by_hand has",
        ),
        (5, swap(RELU, "convolved"), "neither the bias nor the ReLU is in it"),
        (5, swap(RELU, "tf.nn.relu(convolved)"), "the numbers of block_by_hand"),
        (5, swap(RELU, "print(convolved)"), "to return a tensor; it returned None: does it return?"),
        (
            5,
            swap(RELU, "tf.matmul(convolved, bias)"),
            "ValueError: Shape must be at least rank 2 but is rank 1 for 'MatMul'",
        ),
        (5, swap(RELU, "np.maximum(convolved, 0)"), "NotImplementedError: Cannot convert a symbolic tf.Tensor"),
        (5, swap(RELU, "tf.nn.relu(tf.nn.bias_add(convolved, bias)).numpy()"), "AttributeError: 'SymbolicTensor'"),
        (5, swap('"SAME"', '"VALID"'), "and a kernel (3, 3, 3, 4); it has (2, 4, 4, 4)"),
        (5, swap('"SAME"', "[[0, 0], [1, 1], [1, 1], [0, 0]]"), "a result of shape (1, 7, 9, 6)"),
    ]
    right = [
        (1, same),
        (1, swap(D, "d = tf.subtract(a * b - 2 * a + b * b, 2 * b)")),
        (2, same),
        (2, OPTIMIZER),
        (2, DATASET),
        (2, AS_A_FUNCTION),
        (3, same),
        (3, ADAPTED),
        (3, POOL_OF_ITS_OWN),
        (4, same),
        (4, CONVERTED),
        (5, same),
        (5, swap('tf.nn.conv2d(images, kernel, 1, "SAME")', 'tf.nn.convolution(images, kernel, padding="SAME")')),
    ]


def test_an_answer_that_waits_in_a_session_is_reported_by_its_line(student, capsys, monkeypatch):
    monkeypatch.setattr(core, "ANSWER_LIMIT_S", 1.0)
    waits = """with tf.Graph().as_default(), v1.Session() as empty:
        empty.run(tf.queue.FIFOQueue(1, tf.float32).dequeue())
    with v1.Session("""
    student.check(3, student.answer(3, swap("with v1.Session(", waits)))
    assert 'It was in line 6: "empty.run(tf.queue.FIFOQueue(1, tf.float32).dequeue())".' in capsys.readouterr().out


@pytest.mark.parametrize("spoil", ["v1.disable_eager_execution()", "tf.config.run_functions_eagerly(True)"])
def test_an_answer_that_changes_how_tensorflow_works_is_reported_and_undone(student, capsys, spoil):
    student.check(4, student.answer(4, swap("signature =", f"{spoil}; signature =")))
    assert "Exercise 4 · not yet." in capsys.readouterr().out
    student.check(4, student.answer(4, same))
    assert "Exercise 4 · passed." in capsys.readouterr().out


# What the lab says of its measurements, from invented ones of each kind.

WORDS = lab_cells.functions("01", "gain_in_words", "tell", np=np, ratio=ratio, ratios=ratios)
KINDS = [(1.8, "faster"), (0.6, "slower"), (1.0, "no difference beyond chance")]


@pytest.mark.parametrize(("speed", "verdict"), KINDS)
def test_threads_gain_what_the_rounds_show(speed, verdict):
    one = {"inter": 1, "intra": 1, "rounds": [5.0, 5.1, 4.9, 5.0]}
    more = {"inter": 4, "intra": 1, "rounds": [ms / speed for ms in (5.0, 4.9, 5.1, 5.1)]}
    assert WORDS["gain_in_words"](more, one).endswith(f"times as fast with 4 threads: {verdict}")
    more["rounds"][1] *= 9  # one disturbed round
    assert WORDS["gain_in_words"](more, one).endswith("no difference beyond chance")


@pytest.mark.parametrize(("speed", "verdict"), KINDS)
def test_merging_gains_what_the_rounds_show(speed, verdict, capsys):
    rounds = [1.0, 1.02, 0.99]
    speeds = {"apart": rounds, "merged": [speed * each for each in rounds[::-1]], "convolution alone": [2.0] * 3}
    gain, most = WORDS["tell"]("first block", speeds)
    assert f" times as fast: {verdict}; the convolution alone 1.99 (" in capsys.readouterr().out
    assert gain.verdict == verdict
    assert most.verdict == "faster"
