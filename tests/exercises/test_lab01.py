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
MOST = "max(sum(start <= moment < end for _, start, end in ran) for _, moment, _ in ran)"
GRAPH = "tf.function(run, input_signature=[tf.TensorSpec([None], tf.float32)])"
RELU = "tf.nn.relu(tf.nn.bias_add(tf.matmul(x, scaled), moved))"
MOVED = "bias - tf.linalg.matvec(scaled, mean, transpose_a=True)"

OF_A_FUNCTION = swap(
    "    graph = tf.Graph()",
    """    number = tf.TensorSpec(None, tf.float32)
    made = tf.function(lambda a, b: (a + b) * (b - 2)).get_concrete_function(number, number)
    return made.graph, dict(zip("ab", made.inputs)), made.outputs[0]
    graph = tf.Graph()""",
)
SWEPT = after(
    "    ### BEGIN SOLUTION",
    """    events = sorted([(end, -1) for *_, end in ran] + [(start, 1) for _, start, _ in ran])
    running, most, area, before = 0, 0, 0.0, events[0][0]
    for moment, change in events:
        area += running * (moment - before)
        running, before = running + change, moment
        most = max(most, running)
    return most, area / (events[-1][0] - events[0][0])
""",
)
CONCRETE = after(
    "    ### BEGIN SOLUTION",
    """    count = tf.Variable(0.0)

    def run(x, training):
        return function(x, count + 0.0, training)

    spec = tf.TensorSpec([None], tf.float32)
    made = [tf.function(run).get_concrete_function(spec, training) for training in (False, True)]

    def call(x, training):
        count.assign_add(float(training))
        return made[training](tf.convert_to_tensor(x, tf.float32))

    return call
""",
)
COUNTED_OUTSIDE = after(
    "    ### BEGIN SOLUTION",
    """    count = 0
    signature = [tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)]
    both = [
        tf.function(lambda x, step: function(x, step, False), input_signature=signature),
        tf.function(lambda x, step: function(x, step, True), input_signature=signature),
    ]

    def call(x, training):
        nonlocal count
        count += training
        return both[training](x, count)

    return call
""",
)
PYTHON_COUNTER = swap("step.assign_add(1.0)", "nonlocal step\n                step = step + 1")
ANY_FUNCTION = after(
    "    ### BEGIN SOLUTION",
    """    step = 0
    graph = tf.function(function)

    def call(x, training):
        nonlocal step
        step += training
        return graph(tf.convert_to_tensor(x, tf.float32), step, training)

    return call
""",
)
FLAG_AS_TENSOR = after(
    "    ### BEGIN SOLUTION",
    """    step = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.bool)])
    def call(x, training):
        step.assign_add(tf.cast(training, tf.float32))
        return function(x, step.read_value(), training)

    return call
""",
)
ONE_COUNT_FOR_ALL = swap("step = tf.Variable(0.0)", "step = tf.__dict__.setdefault('counted', tf.Variable(0.0))")
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
        (1, OF_A_FUNCTION, "it is a FuncGraph, which belongs to a tf.function"),
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
        (2, swap("tf.gradients(loss, w)[0]", "tf.clip_by_norm(tf.gradients(loss, w)[0], 20.0)"), "with rate 0.001,"),
        (2, swap("graph, session.run(w)", "graph, abs(session.run(w))"), "with rate 0.001, to be -"),
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
        (3, swap("start <= moment < end", "start <= moment <= end"), "(1, 2.0, 4.0)]), to be 1; it is 2"),
        (3, swap("start <= moment < end", "start < moment < end"), "the most operations at once, the first number"),
        (
            3,
            swap("for _, moment, _ in ran", "for moment in np.linspace(begin, finish, 1000)"),
            "(1, 999.999, 1000.999)",
        ),
        (3, swap("moment < end", "moment < end - 0.01"), "(1, 999.999, 1000.999)]), to be 2; it is 1"),
        (3, swap(MOST, "len(ran)"), "the most operations at once, the first number of concurrency"),
        (3, swap(MOST, "len({branch for branch, *_ in ran})"), "the most operations at once"),
        (3, swap("/ (finish - begin)", "/ finish"), "the average, the second number of"),
        (3, swap("min(start for _, start, _ in ran)", "ran[0][1]"), "the average, the second number of"),
        (3, swap("max(end for _, _, end in ran)", "ran[-1][2]"), "the average, the second number of"),
        (3, swap("most, average\n", "average, most\n"), "the most operations at once, the first number"),
        (3, swap("return most, average", "return average"), "to be two numbers; it is"),
        (3, swap("return most, average", "print(most, average)"), "None: does it return?"),
        (
            3,
            swap("average = ", "ran.sort(key=lambda operation: operation[1])\n    average = "),
            "ran to stay as it was",
        ),
        (4, swap("both[training](x)", "print(x)"), "it returned None"),
        (4, swap("return lambda x, training:", "lambda x, training:"), "to return a function; it returned None"),
        (4, swap(GRAPH, "run"), "the function's Python ran eagerly"),
        (4, swap(GRAPH, "tf.function(run)"), "it was traced 4 and 3 times"),
        (
            4,
            swap(GRAPH, "tf.function(run, reduce_retracing=True)"),
            "at most 1 trace for training and 1 for prediction",
        ),
        (4, ANY_FUNCTION, "at most 1 trace for training and 1 for prediction"),
        (4, FLAG_AS_TENSOR, "True or False; it got a SymbolicTensor"),
        (4, swap("            if training:\n    ", ""), "after 0 training calls, to"),
        (4, swap("tf.TensorSpec([None]", "tf.TensorSpec([2]"), "Can not cast TensorSpec(shape=(5,)"),
        (4, swap("step.read_value()", "0.0"), "after 1 training calls, to"),
        (4, swap("step = tf.Variable(0.0)", "step = tf.Variable(1.0)"), "after 0 training calls, to"),
        (
            4,
            swap("(x, step.read_value(), training)", "(x, step.read_value(), True)"),
            "with False for prediction; it got True for both",
        ),
        (4, swap("both[training](x)", "both[True](x)"), "after 0 training calls, to"),
        (4, ONE_COUNT_FOR_ALL, "training calls, to"),
        (5, swap(RELU, "tf.maximum(tf.nn.bias_add(tf.matmul(x, scaled), moved), 0.0)"), "Maximum"),
        (
            5,
            swap(RELU, "tf.nn.relu(tf.nn.bias_add(tf.matmul((x - mean) / std, weights), bias))"),
            "one operation to run; these did: ",
        ),
        (5, swap(RELU, "tf.nn.relu(tf.nn.bias_add(tf.matmul(x - mean, scaled), bias))"), "one operation to run"),
        (5, swap(RELU, "tf.nn.bias_add(tf.nn.relu(tf.matmul(x, scaled)), moved)"), "the numbers of layer_by_hand"),
        (5, swap(RELU, "tf.nn.bias_add(tf.matmul(x, scaled), moved)"), "there are negative numbers in it"),
        (5, swap(RELU, "tf.nn.relu(tf.matmul(x, scaled))"), "the numbers of layer_by_hand"),
        (5, swap(RELU, "tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weights), bias))"), "are the inputs normalised?"),
        (5, swap(MOVED, "bias"), "is the mean subtracted?"),
        (5, swap("bias - ", "bias + "), "the mean is to be subtracted: look at its sign"),
        (5, swap("matvec(scaled,", "matvec(weights,"), "the mean is to be divided by std, too"),
        (5, swap(RELU, "print(x)"), "to return a tensor; it returned None: does it return?"),
        (5, swap("[:, tf.newaxis]", ""), "ValueError: Dimensions must be equal"),
        (5, swap("tf.matmul(x, scaled)", "np.dot(x, scaled)"), "NotImplementedError: Cannot convert a symbolic"),
        (5, swap(RELU, f"{RELU}.numpy()"), "AttributeError: 'SymbolicTensor'"),
        (5, swap("tf.matmul(x, scaled)", "tf.matmul(x, scaled)[:1]"), "it has (1, 3)"),
    ]
    right = [
        (1, same),
        (1, swap(D, "d = tf.subtract(a * b - 2 * a + b * b, 2 * b)")),
        (2, same),
        (2, OPTIMIZER),
        (2, DATASET),
        (2, AS_A_FUNCTION),
        (3, same),
        (3, SWEPT),
        (4, same),
        (4, CONCRETE),
        (4, COUNTED_OUTSIDE),
        (5, same),
        (5, swap(MOVED, "bias - tf.squeeze(mean[tf.newaxis] @ scaled, 0)")),
    ]


def test_an_answer_that_waits_in_a_session_is_reported_by_its_line(student, capsys, monkeypatch):
    monkeypatch.setattr(core, "ANSWER_LIMIT_S", 1.0)
    waits = """with tf.Graph().as_default(), v1.Session() as empty:
        empty.run(tf.queue.FIFOQueue(1, tf.float32).dequeue())
    with graph.as_default(), v1.Session()"""
    student.check(2, student.answer(2, swap("with graph.as_default(), v1.Session()", waits)))
    assert 'It was in line 6: "empty.run(tf.queue.FIFOQueue(1, tf.float32).dequeue())".' in capsys.readouterr().out


@pytest.mark.parametrize("spoil", ["v1.disable_eager_execution()", "tf.config.run_functions_eagerly(True)"])
def test_an_answer_that_changes_how_tensorflow_works_is_reported_and_undone(student, capsys, spoil):
    student.check(4, student.answer(4, swap("step = tf.V", f"{spoil}; step = tf.V")))
    assert "Exercise 4 · not yet." in capsys.readouterr().out
    student.check(4, student.answer(4, same))
    assert "Exercise 4 · passed." in capsys.readouterr().out


# What the lab says of its measurements, from invented ones of each kind.

WORDS = lab_cells.functions("01", "thread_speeds", "tell_threads", "tell", np=np, ratio=ratio, ratios=ratios)
KINDS = [(1.8, "faster"), (0.6, "slower"), (1.0, "no difference beyond chance")]


def launches(case, of_settings):
    """What the script has written: the milliseconds of each setting, launch by launch."""
    times = {setting: list(ms) for setting, ms in of_settings.items()}
    return [
        {"case": case, "inter": inter, "intra": intra, "ms": times[inter, intra][launch]}
        for launch in range(4)
        for inter, intra in times
    ]


@pytest.mark.parametrize(("speed", "verdict"), KINDS)
def test_threads_gain_what_the_rounds_show(speed, verdict, capsys):
    one, more = [5.0, 5.1, 4.9, 5.0], [ms / speed for ms in (5.0, 4.9, 5.1, 5.1)]
    timed = launches("small", {(1, 1): one, (4, 1): more, (1, 2): one[::-1], (4, 2): more[::-1]})
    speeds = WORDS["thread_speeds"](timed)
    assert speeds["small"][1, 1] == [1000 / ms for ms in one]
    gains = WORDS["tell_threads"]("small", speeds["small"])
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"small, 4 inter-op, 1 intra-op: {gains[4, 1]} times as fast: {verdict}")
    assert told[-1].startswith("small, both kinds against intra-op alone: ")
    assert f"times as fast: {verdict}" in told[-1]
    more[1] *= 9  # one disturbed round
    speeds = WORDS["thread_speeds"](launches("small", {(1, 1): one, (4, 1): more}))
    assert "no difference beyond chance" in WORDS["tell_threads"]("small", speeds["small"])[4, 1].verdict
    assert "both kinds" not in capsys.readouterr().out


@pytest.mark.parametrize(("speed", "verdict"), KINDS)
def test_merging_gains_what_the_rounds_show(speed, verdict, capsys):
    rounds = [1.0, 1.02, 0.99]
    speeds = {"apart": rounds, "merged": [speed * each for each in rounds[::-1]], "convolution alone": [2.0] * 3}
    gain, most = WORDS["tell"]("first", speeds)
    told = capsys.readouterr().out
    assert told.startswith(f"first block: merged {gain} times as fast: {verdict}")
    assert "the convolution alone: 1.99 (" in told
    assert gain.verdict.startswith(verdict)
    assert most.verdict == "faster"
