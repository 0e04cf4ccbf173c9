# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: write a graph compiler in NumPy, then watch TensorFlow's
#     needs: [ISA, memory, TensorFlow]
#     better_with: [cores]
# ---

# %% [markdown]
# # 01 · TensorFlow graphs: write one
#
# **You will** write a graph compiler. Forty lines of Python describe a computation as a graph, and you write the code
# that runs it, simplifies it, and fuses its operations. Then you will watch TensorFlow do the same, and find out when
# that makes a program faster.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which looks inside the fused operations; lab 03, which shows where a ResNet-50's time goes;
# and lab 07, whose training step is a `tf.function`.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("01", globals())

# %%
import collections
import contextlib
import functools
import itertools
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow starts: older CPUs would get Eigen

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from threadpoolctl import threadpool_limits

from labkit.display import graphs, plots
from labkit.measure import Measured, alternate, compare, per_second, share
from labkit.roofline.peaks import last_level_cache

cores = machine.usable_cores
v1 = tf.compat.v1  # TensorFlow's interface from before version 2; it still works

# %%
# Sizes of the measurements: change them here. Before each `else` stands the size of a small run.
L2_FILE = Path(f"/sys/devices/system/cpu/cpu{machine.cpus[0]}/cache/index2/size")  # such as 1024K
L2 = 1024 * int(L2_FILE.read_text().strip("K\n")) if L2_FILE.exists() else 2**19
COLUMNS = 256
RESULT_BYTES = 2**20 if QUICK else min(last_level_cache(machine.cpus) // 4, 2**25)  # section 3
ROWS = RESULT_BYTES // (4 * COLUMNS)
ROUNDS = 2 if QUICK else 9  # sections 3, 4 and 7
WORKLOADS = (("MLP", 32), ("MLP", 2048), ("CNN", 32), ("CNN", 256))
if QUICK:
    WORKLOADS = (("MLP", 32), ("MLP", 64))
STEP_ROUNDS = 2 if QUICK else 6  # section 5
AT_LEAST_S = 0.05 if QUICK else 0.3  # of one measurement

# %% [markdown]
# ## 1 · A graph is a description {read 5}
#
# A framework that sees a whole computation before it runs can drop what isn't needed, compute constants in advance,
# merge operations, and run independent parts concurrently. So every framework can turn a program into a description, a
# [**graph**](../docs/learn/glossary.md#graph). TensorFlow does it with `tf.function`, JAX with `jax.jit`, and PyTorch
# with `torch.compile`.
#
# Here is a small framework. A `Node` holds an [**operation**](../docs/learn/glossary.md#operation) and its inputs,
# which are nodes. [**Tensors**](../docs/learn/glossary.md#tensor), arrays of numbers, flow between nodes. `compute`
# does the arithmetic, and `ran` counts every operation that it computes.

# %%
names = ("add", "subtract", "multiply", "divide", "matmul", "sqrt", "exp")
KERNELS = {name: getattr(np, name) for name in names}  # what computes each operation
KERNELS["relu"] = lambda x, out=None: np.maximum(x, 0, out=out)
ran = collections.Counter()  # the operations computed so far


@dataclass(frozen=True, eq=False)  # eq=False: two nodes are equal only if they are the same object
class Node:
    op: str  # a key of KERNELS, or "input" or "constant"
    inputs: tuple = ()  # nodes
    value: Any = None  # of a constant
    name: str = ""

    def compute(self, *values):
        """Return the node's result, given the values of its inputs."""
        if self.op == "constant":
            return self.value
        if self.op == "input":
            raise LookupError(f"feed a value for {self.name}")
        ran[self.op] += 1
        return KERNELS[self.op](*values)

    def __repr__(self):
        return f"<{self.op}: {self.name}>"


# %% [markdown]
# Two kinds of nodes have no inputs. A **constant** has the same value in every run. A **placeholder** gets its value
# when you run the graph.
#
# The next cell lets you write graphs as ordinary Python, where `+` makes a node that will add two numbers.

# %%
numbers = itertools.count(1)


def operation(op):
    """Return a function that makes a node instead of computing."""

    def make(*inputs):
        nodes = tuple(i if isinstance(i, Node) else constant(i) for i in inputs)
        return Node(op, nodes, name=f"{op}_{next(numbers)}")

    return make


def constant(value, name=""):
    array = np.asarray(value, "float32")
    return Node("constant", value=array, name=name or f"constant_{next(numbers)}")


def placeholder(name):
    return Node("input", name=name)


Node.__add__, Node.__sub__, Node.__matmul__ = map(operation, ("add", "subtract", "matmul"))
Node.__mul__, Node.__truediv__ = map(operation, ("multiply", "divide"))
ours = SimpleNamespace(sqrt=operation("sqrt"), exp=operation("exp"), relu=operation("relu"))

# %%
a, b = placeholder("a"), placeholder("b")
d = (a + b) * (b - 2)
print(d)


# %% [markdown]
# *d* is a node that has not run yet. In the picture, data flows downwards.


# %% jupyter={"source_hidden": true}
def as_defs(fetch):
    """Yield a graph in TensorFlow's own format, from which the kit draws."""
    types = {"input": "Placeholder", "constant": "Const"}
    for node in count_uses(fetch):
        inputs = [other.name for other in node.inputs]
        made = v1.NodeDef(name=node.name, op=types.get(node.op, node.op), input=inputs)
        if node.op == "dense":
            made.attr["op_names"].list.s.extend([b"matmul", b"add", b"relu"])
        yield made


def count_uses(fetch):
    """Return how many nodes take each node's result; the fetched one counts as taken once more."""
    uses, todo = collections.Counter([fetch]), [fetch]
    while todo:
        for node in todo.pop().inputs:
            todo += [] if node in uses else [node]
            uses[node] += 1
    return uses


def show_graph(before, title, after=None, **options):
    """Draw a graph; or as it was written, next to what it became."""
    defs = [list(as_defs(fetch)) for fetch in (before, after) if fetch]
    alt = " As it became: ".join(map(graphs.describe, defs))
    plots.show((graphs.compare if after else graphs.draw)(*defs, title), alt=alt, **options)


# %%
show_graph(d, "d = (a + b) · (b − 2)")

# %% [markdown]
# `a + b` and `b - 2` don't need each other's results, so both may be computed at the same time (section 7).
#
# ## 2 · Run what is needed, once {read 2, do 7}
#
# To run a graph, you **fetch** the node whose value you want and **feed** values for other nodes. In TensorFlow 1, this
# was `session.run(fetch, feed_dict)`.
#
# ### Exercise 1 · Run a graph
#
# Write `run(fetch, feed)`. `fetch` is a node, and `feed` is a dictionary from nodes to values, such as
# `{a: 3.0, b: 4.0}`. Return the value of `fetch`.
#
# - You can feed any node, not only placeholders. A fed value replaces the node's own, so nodes needed for it alone are
#   not computed.
# - Each node is computed at most **once**, by `node.compute(…)` with the values of its inputs in order, even if several
#   others need it.
# - Nodes that `fetch` doesn't need are not computed. `feed` stays unchanged.
# - Nothing is remembered: a run with a different feed computes everything again.


# %%
def run(fetch, feed):
    """Return the value of a node, given the values of others; compute each node once."""
    ### BEGIN SOLUTION
    values = dict(feed)

    def value_of(node):
        if node not in values:
            values[node] = node.compute(*map(value_of, node.inputs))
        return values[node]

    return value_of(fetch)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
run = check(1, run)

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** `square` takes the same node twice, and `never` takes *d*. What are the next four results, and which
# operations run for each?
#
# </div>

# %% tags=["nbval-check-output"]
square = d * d
never = ours.exp(d)
for text, fetch, feed in (
    ("d       ", d, {a: 3.0, b: 4.0}),
    ("square  ", square, {a: 3.0, b: 4.0}),
    ("d is fed", square, {d: 10.0}),
    ("arrays  ", d, {a: np.array([1.0, 2.0]), b: np.array([4.0, 5.0])}),
):
    ran.clear()
    print(text, run(fetch, feed), dict(ran))

# %% [markdown]
# `exp` never ran, because no fetch needs it. This is called [**pruning**](../docs/learn/glossary.md#pruning). *d* was
# computed once, although `square` takes it twice. When *d* is fed, *a* and *b* need no value.
#
# ## 3 · Compile: simplify and fuse {read 5, do 17, wait 0.4}
#
# A graph is data, so a program can improve it before it runs. Such a program is a compiler. Below, a helper function is
# called twice, and somebody forgot to delete a line. The argument `ops` holds `sqrt`, `exp` and `relu`, so the same
# lines also work with TensorFlow.


# %%
def layer_pair(x, weights, ops):
    """Return the product of two dense layers of the normalised input."""
    mean, variance, epsilon, w1, b1, w2, b2 = weights

    def normalised():
        return (x - mean) / ops.sqrt(variance + epsilon)

    value = ops.relu(normalised() @ w1 + b1)
    gate = ops.relu(normalised() @ w2 + b2)
    ops.exp(value)  # the forgotten line
    return value * gate


rng = np.random.default_rng(0)
INPUTS = 16
shapes = {"w1": (INPUTS, COLUMNS), "b1": COLUMNS, "w2": (INPUTS, COLUMNS), "b2": COLUMNS}
VALUES = {"mean": rng.normal(size=INPUTS), "variance": rng.uniform(1, 2, INPUTS), "epsilon": 1e-5}
VALUES |= {name: rng.normal(size=shape) for name, shape in shapes.items()}
VALUES = {name: np.asarray(value, "float32") for name, value in VALUES.items()}

x = placeholder("x")
written = layer_pair(x, [constant(value, name) for name, value in VALUES.items()], ours)

# %% jupyter={"source_hidden": true}
show_graph(written, "Two layers, as written")


# %%
def operations(fetch):
    """Return the number of operations that a run of this node computes."""
    return sum(bool(node.inputs) for node in count_uses(fetch))


print(operations(written), "operations")

# %% [markdown]
# `count_uses`, in the folded cell of section 1, walks the graph and counts how many nodes take each node's result.
#
# A trained network runs many times with the same weights, so two rules save work.
#
# - [**Constant folding**](../docs/learn/glossary.md#constant-folding): if all inputs of an operation are constants,
#   compute it now and put a constant in its place.
# - **Common subexpression elimination**: of several nodes with the same operation and the same inputs in the same
#   order, keep one.
#
# Both apply again to nodes that become equal or constant along the way.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many of the 15 operations are left?
#
# </div>

# %%
results.guess(1, "operations left, of 15", ..., unit="operations")

# %% [markdown]
# ### Exercise 2 · Simplify a graph
#
# Write `simplify(fetch)`. It returns a node that has the same value as `fetch` for all feeds of placeholders, and needs
# as few operations as the two rules allow.
#
# - Nodes can't be changed. `replace(node, inputs=…)` makes a copy of a node with different inputs, and
#   `replace(node, op="constant", inputs=(), value=…)` makes a constant.
# - Placeholders stay the same objects, so you can still feed them.
# - Equal operations on constants become one constant. Separately made constants may stay separate, even if equal.


# %%
def simplify(fetch):
    """Return a node with the same value, without constant or duplicate operations before it."""
    ### BEGIN SOLUTION
    new, seen = {}, {}

    def visit(node):
        if node.inputs and node not in new:
            inputs = tuple(map(visit, node.inputs))
            if (node.op, inputs) not in seen:
                values = [i.value for i in inputs if i.op == "constant"]
                if len(values) == len(inputs):
                    simpler = replace(node, op="constant", inputs=(), value=node.compute(*values))
                else:
                    simpler = replace(node, inputs=inputs)
                seen[node.op, inputs] = simpler
            new[node] = seen[node.op, inputs]
        return new.get(node, node)

    return visit(fetch)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
simplify = check(2, simplify)

# %%
simple = simplify(written)
results.compare_guess(1, Measured(operations(simple), unit="operations", digits=0))

# %% jupyter={"source_hidden": true}
show_graph(written, "Constants folded, duplicates removed", simple)

# %% [markdown]
# Pink boxes were folded, so √(variance + epsilon) is now a constant.
#
# ### Fuse
#
# For a matmul, a bias and a ReLU, NumPy writes the product to memory, reads it and writes the sum, then reads the sum
# and writes the result. [**Operator fusion**](../docs/learn/glossary.md#operator-fusion) merges the three into one
# operation, which finishes each block of rows while it is still in the cache.

# %%
BLOCK = max(16, L2 // 4 // (4 * COLUMNS))  # rows whose results fill a quarter of the L2 cache


def dense(x, weights, bias, out=None, only_matmul=False):
    """Return relu(x @ weights + bias), block by block."""
    result = np.empty((len(x), len(bias)), "float32") if out is None else out
    for start in range(0, len(x), BLOCK):
        block = result[start : start + BLOCK]
        np.matmul(x[start : start + BLOCK], weights, out=block)
        if not only_matmul:
            block += bias
            np.maximum(block, 0, out=block)
    return result


KERNELS["dense"] = dense

# %% [markdown]
# ### Exercise 3 · Fuse three operations
#
# Write `fuse(fetch, uses)`. It returns a node that has the same value as `fetch` for all feeds of placeholders. In the
# new graph, each `relu(x @ weights + bias)` is **one** node with the operation `"dense"` and the inputs `(x, weights,
# bias)`.
#
# - The matmul is always the first input of the sum, and the bias is a vector.
# - A result inside a fused node is never stored. So if another node needs the product or the sum, leave the three as
#   they are, because no matmul may run twice. `uses[node]` counts how often a node is an input, plus one for the
#   fetched node.
# - Everything else stays, and placeholders remain the same objects.


# %%
def fuse(fetch, uses):
    """Return a node with the same value, with each relu(x @ weights + bias) as one "dense" node."""
    ### BEGIN SOLUTION
    new = {}

    def visit(node):
        if node.inputs and node not in new:
            op, inputs, total = node.op, node.inputs, node.inputs[0]
            product = total.inputs[0] if total.inputs else total
            pattern = (node.op, total.op, product.op) == ("relu", "add", "matmul")
            if pattern and uses[total] == uses[product] == 1:
                op, inputs = "dense", (*product.inputs, total.inputs[1])
            new[node] = replace(node, op=op, inputs=tuple(map(visit, inputs)))
        return new.get(node, node)

    return visit(fetch)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
fuse = check(3, fuse)

# %%
compiled = fuse(simple, count_uses(simple))
show_graph(simple, "Three operations fused into one", compiled, keep=results)
small = {x: np.ones((2, INPUTS), "float32")}
print("operations:", operations(written), "→", operations(simple), "→", operations(compiled))
print("same values:", np.allclose(run(compiled, small), run(written, small), rtol=1e-4))

# %% [markdown]
# ### What is it worth?
#
# Predict first. If memory limits every operation, time is proportional to the bytes that operations read and write.
# `traffic` counts them in one run.


# %%
@contextlib.contextmanager
def wrapped(wrap):
    """Replace the kernel of each operation by wrap(op, kernel) for a while."""
    originals = dict(KERNELS)
    KERNELS.update({op: wrap(op, kernel) for op, kernel in originals.items()})
    try:
        yield
    finally:
        KERNELS.update(originals)


def traffic(fetch, feed):
    """Return the megabytes that the operations of one run read and write."""
    moved = []

    def counted(kernel, *values):
        result = kernel(*values)
        moved.extend(array.nbytes for array in (*values, result))
        return result

    with wrapped(lambda op, kernel: functools.partial(counted, kernel)):
        run(fetch, feed)
    return sum(moved) / 1e6


# %%
feed = {x: rng.normal(size=(ROWS, INPUTS)).astype("float32")}
for name, fetch in (("written", written), ("simple", simple), ("compiled", compiled)):
    print(f"{name:9} {traffic(fetch, feed):4.0f} MB")
predicted = traffic(written, feed) / traffic(compiled, feed)
print(f"predicted speed-up: {predicted:.2f}×")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster is the compiled graph?
#
# </div>

# %%
results.guess(2, "compiled graph vs as written", ..., unit="×")

# %% [markdown]
# Real runtimes plan memory. `planned` stores each result where the last run did, which saves page faults. NumPy splits
# only matmuls across cores, so all runs get one core. `matmuls only` computes the two matmuls in the same blocks. Each
# ratio is the median of the rounds' ratios. The measurement takes about 10 s.


# %%
def planned(fetch):
    """Return a function that runs a graph, and stores each result where the last run stored it."""
    results = []

    def step():
        last, new = iter(results or itertools.repeat(None)), []

        def stored(kernel, *values):
            new.append(kernel(*values, out=next(last)))
            return new[-1]

        with wrapped(lambda op, kernel: functools.partial(stored, kernel)):
            run(fetch, feed)
        results[:] = new

    return step


def matmuls():
    """Compute the two matmuls only."""
    for which, out in zip("12", outs):
        dense(feed[x], VALUES[f"w{which}"], VALUES[f"b{which}"], out, only_matmul=True)


outs = np.zeros((2, ROWS, COLUMNS), "float32")

# %%
runs = {"as written": planned(written), "simplified": planned(simple)}
runs |= {"compiled": planned(compiled), "matmuls only": matmuls}
with threadpool_limits(1):
    variants = {name: per_second(each, ROWS / 1e6, AT_LEAST_S) for name, each in runs.items()}
    row_speeds = alternate(variants, ROUNDS, "million rows/s", "section 3")
for name, speed in row_speeds.items():
    print(f"{name:12} {speed}   {share(speed, row_speeds['matmuls only'])} of matmuls only")
compile_gain = compare(row_speeds["compiled"], row_speeds["as written"])
print(f"compiled vs as written: {compile_gain} (predicted {predicted:.2f}×)")
results.compare_guess(2, compile_gain)

# %% [markdown]
# **Why were we wrong?** To find out, time each operation.


# %%
def profile(step, repeats=2 if QUICK else 20):
    """Return the milliseconds of each operation in a run, the mean of several runs."""
    spent = collections.Counter()

    def timed(op, kernel, *values, **options):
        start = time.perf_counter()
        result = kernel(*values, **options)
        spent[op] += 1000 * (time.perf_counter() - start) / repeats
        return result

    with wrapped(lambda op, kernel: functools.partial(timed, op, kernel)):
        for _ in range(repeats):
            step()
    return {**spent, "in all": spent.total()}


with threadpool_limits(1):
    profiles = {name: profile(runs[name]) for name in ("as written", "compiled")}
print(f"{'ms':10}", *(f"{name:>11}" for name in profiles))
for op in sorted(set().union(*profiles.values()), key=lambda op: (op == "in all", op)):
    print(f"{op:10}", *(f"{spent.get(op, 0):11.2f}" for spent in profiles.values()))

# %%
results.answer(1, "Where did the compiled graph save its time? Why did the prediction miss?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Most of the saving comes from fusion, which merged `matmul`, `add` and `relu` into `dense`. Compare its time with
# their sum. Removing duplicates saved less, because subtractions and divisions are quick. `multiply` got faster,
# perhaps because fewer arrays compete for the caches. Fusion saves the round trip to the last-level cache or memory,
# and the prediction assumed that this took all of the time. But even in the L2 cache, NumPy runs one loop per
# operation, and these loops cost more than the arithmetic of a bias and a ReLU.
#
# </details>

# %% [markdown]
# ## 4 · TensorFlow does the same {read 6, wait 0.1}
#
# `tf.function` calls a Python function **once**, with placeholders for its arguments, and records the operations that
# the function calls. This is [**tracing**](../docs/learn/glossary.md#tracing), and it is how you made a graph of
# `layer_pair`. Each later call runs the recorded graph, a [**concrete
# function**](../docs/learn/glossary.md#concrete-function), and skips your Python code.
# [**Grappler**](../docs/learn/glossary.md#grappler), TensorFlow's graph optimiser, rewrites the graph first. The next
# cells run the same `layer_pair` and ask for the graph that ran.

# %%
theirs = SimpleNamespace(sqrt=tf.sqrt, exp=tf.exp, relu=tf.nn.relu)


@tf.function(input_signature=[tf.TensorSpec((2, INPUTS), name="x")])
def in_tensorflow(x):
    constants = [tf.constant(value, name=name) for name, value in VALUES.items()]
    return layer_pair(x, constants, theirs)


def as_graph(function):
    """Return the graph of a tf.function, and the name of its result."""
    graph, concrete = tf.Graph(), function.get_concrete_function()
    with graph.as_default():
        tf.graph_util.import_graph_def(concrete.graph.as_graph_def(), name="")
    return graph, concrete.outputs[0].op.inputs[0].name  # what comes before Identity


def what_ran(graph, fetch, feeds):
    """Run a graph; return the result, and the graph that really ran."""
    config, metadata = v1.ConfigProto(), v1.RunMetadata()
    config.graph_options.rewrite_options.min_graph_nodes = -1  # Grappler skips small graphs
    options = v1.RunOptions(output_partition_graphs=True)
    with v1.Session(graph=graph, config=config) as session:
        result = session.run(fetch, feeds, options, metadata)
    return result, metadata.partition_graphs[0]


# %%
def show_rewrite(graph, fetch, feeds, title, keep=None):
    """Draw a graph as written and as it ran; return the result and the operations that ran."""
    before, (result, after) = graph.as_graph_def(), what_ran(graph, fetch, feeds)
    alt = f"As written: {graphs.describe(before)}. As it runs: {graphs.describe(after)}."
    plots.show(graphs.compare(before, after, title), alt=alt, keep=keep)
    kinds = (graphs.OPERATION, graphs.FUSED)
    return result, [node.op for node in graphs.read(after)[0] if node.kind in kinds]


graph, fetch = as_graph(in_tensorflow)
their_result, their_ops = show_rewrite(
    graph, fetch, {"x:0": small[x]}, "Two layers in TensorFlow", keep=results
)
print(f"TensorFlow: {len(their_ops)} operations: {', '.join(their_ops)}")
print(f"you:        {operations(compiled)} operations")
print("same values:", np.allclose(their_result, run(compiled, small), rtol=1e-4))

# %% [markdown]
# The orange boxes are fused, and their second lines list what they contain. `_MklNativeFusedMatMul` runs on oneDNN, and
# `_FusedMatMul` on Eigen, TensorFlow's other library. Grappler also replaced the division with a cheaper multiplication
# by the reciprocal, computed in advance.
#
# ### When does TensorFlow trace again?
#
# For new kinds of arguments, TensorFlow traces the function again. This is
# [**retracing**](../docs/learn/glossary.md#retracing).
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** After a first call with two 32-bit numbers and a tensor as the slope, these seven calls follow:
#
# 1. the same shape, different numbers
# 2. three numbers instead of two
# 3. 64-bit numbers
# 4. slope is Python's 2.0
# 5. slope is Python's 3.0
# 6. slope is Python's 2.0, again
# 7. slope is the tensor 3.0
#
# How many of them are traced, and which?
#
# </div>

# %%
results.guess(3, "calls that are traced, of seven", ..., unit="calls")

# %%
tf.get_logger().setLevel("ERROR")  # no warnings about frequent tracing: this lab does it on purpose
pair, slope_of_2 = tf.constant([1.0, 2.0]), tf.constant(2.0)
later_calls = {
    "the same shape, other numbers": (tf.constant([5.0, 6.0]), slope_of_2),
    "three numbers instead of two": (tf.constant([1.0, 2.0, 3.0]), slope_of_2),
    "64-bit numbers": (tf.constant([1.0, 2.0], tf.float64), tf.constant(2.0, tf.float64)),
    "slope is Python's 2.0": (pair, 2.0),
    "slope is Python's 3.0": (pair, 3.0),
    "slope is Python's 2.0, again": (pair, 2.0),
    "slope is the tensor 3.0": (pair, tf.constant(3.0)),
}
line = tf.function(lambda x, slope: slope * x + 1.0)
line(pair, slope_of_2)
traced = []
for number, (what, arguments) in enumerate(later_calls.items(), 1):
    before = line.experimental_get_tracing_count()
    line(*arguments)
    traced.append(line.experimental_get_tracing_count() > before)
    print(f"{number}. {what:32} {'traced' if traced[-1] else '-'}")
results.compare_guess(3, Measured(sum(traced), unit="calls", digits=0))

# %% [markdown]
# By default, each graph is for one shape and one dtype. A Python number becomes a constant, part of the graph, so
# **each new number needs a new graph**. Don't pass a learning rate or a step number as a Python number.
#
# There are two remedies. Pass **tensors** instead of Python numbers, or declare an **input signature**, which gives the
# dtype and shape of each argument, with `None` for a length that may vary.

# %% tags=["nbval-check-output"]
shapes_traced = []


@tf.function(input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)])
def signed(x, slope):
    shapes_traced.append(x.shape)  # Python code: it runs only while tracing
    return slope * x + 1.0


for length in (2, 3, 4, 5):
    signed(np.ones(length, np.float32), length)
print(shapes_traced)

# %% [markdown]
# There was one trace for four calls, because the signature turns Python numbers into tensors.
#
# What does a trace cost? The next function has 40 operations. A new Python number causes a trace, but a new tensor
# doesn't.

# %%
LAYERS = 20


@tf.function
def network(x, scale):
    for _ in range(LAYERS):  # a Python loop: it is unrolled into the graph
        x = tf.tanh(x * scale)
    return x


ones, scale = tf.ones([100]), tf.constant(0.5)
calls = {
    "traced": lambda: network(ones, float(rng.random())),
    "not traced": lambda: network(ones, scale),
}
variants = {name: per_second(call, 1, AT_LEAST_S) for name, call in calls.items()}
call_speeds = alternate(variants, ROUNDS, "calls/s", "section 4")
tracing_cost = compare(call_speeds["not traced"], call_speeds["traced"])
print(*(f"{name:11} {speed}" for name, speed in call_speeds.items()), sep="\n")
print(f"not traced vs traced: {tracing_cost}")

# %% [markdown]
# A trace costs as much as tens or hundreds of calls.
#
# ### In older scripts
#
# TensorFlow 1 had only graphs, and its interface has a name for every part that you have just written. Saved models,
# profiles and error messages still use its terms.
#
# | in older scripts | what it is | in this lab | today |
# | --- | --- | --- | --- |
# | `tf.Graph` | a container of operations and tensors | all nodes that a node needs | a concrete function's `graph` |
# | `tf.Operation`, `tf.Tensor` | a node; an edge, which you feed and fetch | `Node`; its value | the same |
# | `tf.constant` | an operation that returns a fixed value | `constant` | the same |
# | `tf.placeholder` | an operation whose value is fed in each run | `placeholder` | an argument |
# | `tf.Variable` | keeps its value from run to run, in the session | – | the object keeps it |
# | `tf.Session(graph)` | a [**session**](../docs/learn/glossary.md#session) runs one graph | `run` | a call |
# | `session.run(fetches, feed_dict)` | returns NumPy arrays | `run(fetch, feed)` | a call |
# | `tf.ConfigProto` | a session's settings, such as threads | – | `tf.config` |
#
# In TensorFlow 1, `tensor * 2.0` in a training loop added an operation at each step. Today's version of this bug is
# retracing.
#
# ## 5 · Where does the overhead stop mattering? {read 4, wait 1.1}
#
# Outside a `tf.function`, operations run as soon as Python calls them. This is [**eager
# execution**](../docs/learn/glossary.md#eager-execution). It is easier to debug, but Python calls take time. A third
# method is [XLA](https://openxla.org/xla), a compiler that turns a whole graph into machine code.
#
# The next cells define an MLP with two dense layers, the MNIST CNN from labs 02 and 07, and a training step, without
# Keras' own Python code.


# %%
def mlp(images, w1, b1, w2, b2):
    flat = tf.reshape(images, [images.shape[0], -1])
    hidden = tf.nn.relu(tf.nn.bias_add(tf.matmul(flat, w1), b1))
    return tf.nn.bias_add(tf.matmul(hidden, w2), b2)


def cnn(images, kernel1, bias1, kernel2, bias2, *dense_layers):
    for kernel, bias in ((kernel1, bias1), (kernel2, bias2)):
        convolved = tf.nn.conv2d(images, kernel, 1, "SAME")
        images = tf.nn.relu(tf.nn.bias_add(convolved, bias))
        images = tf.nn.max_pool2d(images, 2, 2, "VALID")
    return mlp(images, *dense_layers)


def make_weights(*shapes):
    return [tf.Variable(tf.random.normal(shape, stddev=0.05)) for shape in shapes]


tf.random.set_seed(1)
CONVOLUTIONS = ([3, 3, 1, 32], [32], [3, 3, 32, 64], [64])
MODELS = {
    "MLP": (mlp, make_weights([784, 128], [128], [128, 10], [10])),
    "CNN": (cnn, make_weights(*CONVOLUTIONS, [3136, 128], [128], [128, 10], [10])),
}


# %%
def make_step(name, return_all=False):
    """Return a function that takes one step of gradient descent and returns the loss."""
    model, weights = MODELS[name]

    def step(images, labels):
        with tf.GradientTape() as tape:
            if return_all:
                tape.watch(images)
            logits = model(images, *weights)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        wanted = [*weights, images] if return_all else weights
        gradients = tape.gradient(loss, wanted)
        for weight, gradient in zip(weights, gradients):
            weight.assign_sub(0.01 * gradient)
        return gradients if return_all else loss

    return step


def make_batch(size):
    return tf.random.uniform([size, 28, 28, 1]), tf.zeros([size], tf.int32)


METHODS = {
    "eager": make_step,
    "graph": lambda name: tf.function(make_step(name)),
    "XLA": lambda name: tf.function(make_step(name), jit_compile=True),
}


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** With the CNN and 32 images, how much faster does a step run as a graph than eagerly? The step has
# about 65 operations, and a call from Python takes tens of microseconds. As a graph, the step takes a few milliseconds.
#
# </div>

# %%
results.guess(4, "CNN, 32 images: graph vs eager", ..., unit="×")

# %% [markdown]
# The next cell takes up to a minute, including tracing and compiling.

# %%
variants = {}
for name, batch in WORKLOADS:
    examples = make_batch(batch)
    for method, make in METHODS.items():
        step = functools.partial(make(name), *examples)
        variants[f"{name} {batch}, {method}"] = per_second(step, batch, AT_LEAST_S)
speeds = alternate(variants, STEP_ROUNDS, "images/s", "section 5")

# %%
gains = {}
for name, batch in WORKLOADS:
    of_method = {method: speeds[f"{name} {batch}, {method}"] for method in METHODS}
    gains[name, batch] = compare(of_method["graph"], of_method["eager"])
    ms = (f"{method} {1000 * batch / speed.value:.2f}" for method, speed in of_method.items())
    print(f"{name}, {batch} images, ms per step: {', '.join(ms)}")
    print("   graph vs eager:", gains[name, batch])
    print("   XLA vs graph:  ", compare(of_method["XLA"], of_method["graph"]))
results.step("graph", gains[WORKLOADS[0]])

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
series = {"graph": (plots.BLUE, "o"), "XLA": (plots.ORANGE, "s")}
said = []
for shift, (method, (colour, marker)) in zip((-0.08, 0.08), series.items()):
    ratios = [
        compare(speeds[f"{name} {batch}, {method}"], speeds[f"{name} {batch}, eager"])
        for name, batch in WORKLOADS
    ]
    said += [f"{method}, {name}, {n} images: {r}" for (name, n), r in zip(WORKLOADS, ratios)]
    values = [ratio.value for ratio in ratios]
    spread = [[r.value - r.low for r in ratios], [r.high - r.value for r in ratios]]
    places = np.arange(len(values)) + shift
    look = dict(color=colour, marker=marker, capsize=6, linestyle="", label=method)
    axis.errorbar(places, values, np.nan_to_num(spread), **look)
    for place, value in zip(places, values):
        offset = (-10, 0) if shift < 0 else (10, 0)
        axis.annotate(
            f"{value:.2f}×",
            (place, value),
            xytext=offset,
            textcoords="offset points",
            ha="right" if shift < 0 else "left",
            va="center",
        )
axis.axhline(1, color=plots.BLACK, linestyle="--", linewidth=1.5, marker="")
axis.set_yscale("log")
axis.set_yticks([0.25, 0.5, 1, 2, 5, 10, 20], minor=False)
axis.set_yticks([], minor=True)
axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
axis.set_xticks(range(len(WORKLOADS)), [f"{name}\n{batch} images" for name, batch in WORKLOADS])
axis.set(ylabel="speed-up over eager execution", title="A training step (dashed: eager execution)")
axis.margins(x=0.25, y=0.15)
axis.legend()
alt = f"Speed-up of a training step over eager execution. {'; '.join(said)}."
plots.show(figure, alt=alt, keep=results)


# %% [markdown]
# Now predict. The smallest step's saving, divided by its number of operations, is the time per call. Multiplied by
# another step's number of operations, it should give that step's saving.


# %%
def count_calls(function, *arguments):
    """Return the number of operations that Python calls in a function that runs eagerly."""
    graph = tf.function(function).get_concrete_function(*arguments).graph
    inner = ("Placeholder", "Const", "Identity", "NoOp")
    return sum(op.type not in inner for op in graph.get_operations())


def ms_per_step(name, batch, method):
    """Return the milliseconds of a step in each round."""
    return 1000 * batch / np.array(speeds[f"{name} {batch}, {method}"].rounds)


def median(rounds, unit="", digits=2):
    """Return the median of six rounds; its 95% interval is their range."""
    return Measured(np.median(rounds), min(rounds), max(rounds), unit, digits)


calls = {
    (name, batch): count_calls(make_step(name), *make_batch(batch)) for name, batch in WORKLOADS
}
smallest, *others = WORKLOADS
saved = ms_per_step(*smallest, "eager") - ms_per_step(*smallest, "graph")
call_ms = saved / calls[smallest]
print(f"a call from Python, with the gradient tape: {median(1000 * call_ms, 'µs', 0)}")
predictions = {}
for pair in others:
    predictions[pair] = median(1 + call_ms * calls[pair] / ms_per_step(*pair, "graph"), "×")
    print(f"{pair[0]}, {pair[1]} images, {calls[pair]} calls:", end=" ")
    print(f"predicted {predictions[pair]}, measured {gains[pair]}")
results.compare_guess(4, gains[WORKLOADS[min(2, len(WORKLOADS) - 1)]])

# %% [markdown]
# **Why were we wrong?** A graph saves more than calls, because TensorFlow sees several operations at once.
#
# - Pruning: eagerly, the first convolution's gradient is also computed for its input, the images. No fetch needs it, so
#   a graph drops it. A graph that also returns this gradient can't.
# - Pairs: max-pooling's gradient needs the positions of the maxima. In a graph, TensorFlow hands both operations to
#   oneDNN, which keeps the positions. Eagerly, it sees one operation at a time, and only the first goes to oneDNN.
#
# The next cell measures both, in about 15 s. (Medians don't add up exactly.)


# %%
def pools(first, second):
    """Return the gradients of the CNN's two max-poolings."""
    with tf.GradientTape() as tape:
        tape.watch([first, second])
        pooled = [tf.nn.max_pool2d(images, 2, 2, "VALID") for images in (first, second)]
    return tape.gradient(pooled, [first, second])


inputs_of = {
    batch: [tf.random.normal([batch, n, n, c]) for n, c in ((28, 32), (14, 64))]
    for name, batch in WORKLOADS
    if name == "CNN"
}
variants = {}
for batch, inputs in inputs_of.items():
    returns_more = tf.function(make_step("CNN", return_all=True))
    for what, function, arguments in (
        ("pooling, eager", pools, inputs),
        ("pooling, graph", tf.function(pools), inputs),
        ("step, graph", tf.function(make_step("CNN")), make_batch(batch)),
        ("step, returns more", returns_more, make_batch(batch)),
    ):
        once = functools.partial(function, *arguments)
        variants[f"{what}, {batch} images"] = per_second(once, batch, AT_LEAST_S)
part_speeds = alternate(variants, STEP_ROUNDS, "images/s", "section 5, parts")


# %%
def ms_of(what, batch):
    return 1000 * batch / np.array(part_speeds[f"{what}, {batch} images"].rounds)


print("Milliseconds that a graph saves:")
for name, batch in others:
    left = ms_per_step(name, batch, "eager") - ms_per_step(name, batch, "graph")
    print(f"{name}, {batch} images: {median(left)} in all")
    parts = {"calls, predicted": call_ms * calls[name, batch]}
    if name == "CNN":
        parts["pruning"] = ms_of("step, returns more", batch) - ms_of("step, graph", batch)
        pooling = ms_of("pooling, eager", batch) - ms_of("pooling, graph", batch)
        in_calls = call_ms * count_calls(pools, *inputs_of[batch])  # counted above
        parts["pooling"] = pooling - in_calls
    for part, saved in (parts | {"not explained": left - sum(parts.values())}).items():
        print(f"   {part:17} {median(saved)}")

# %%
results.answer(2, "When is a graph worth it? Where did the prediction miss, and why?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# A graph saves calls from Python, computes less, and uses different kernels. A call takes the same time whatever the
# size of the arrays, so calls matter for small operations, in small networks and with small batches. For large
# operations, the other savings can matter more, because they grow with the batch, and the prediction misses them. For
# the CNN, compare pruning and pooling with what calls don't explain. A graph also fuses operations and computes
# independent gradients at the same time. That may explain the rest, but we didn't measure it. *Not explained* may be
# negative, because a part may save more alone than in a step. XLA has its own kernels, which may be slower than
# oneDNN's.
#
# </details>
#
# **If you use Keras**, `model.fit` turns its training step into a `tf.function`, and `jit_compile` controls XLA.

# %% [markdown]
# ## 6 · One operation {read 2, do 7}
#
# A trained network often begins by subtracting the mean from its inputs and dividing by the standard deviation. Here is
# such code, followed by a dense layer. What runs?


# %%
def layer_by_hand(x, mean, std, weights, bias):
    """Normalise the inputs, then a dense layer with ReLU."""
    normalised = (x - mean) / std
    return tf.maximum(tf.matmul(normalised, weights) + bias, 0.0, name="y")


X = rng.normal(5, 3, size=(2, 6))
constants = {"mean": rng.normal(5, 1, size=6), "std": rng.uniform(1, 4, size=6)}
constants |= {"weights": rng.normal(size=(6, 4)), "bias": rng.normal(size=4)}

by_hand = tf.Graph()
with by_hand.as_default():
    inputs = v1.placeholder(tf.float32, X.shape, name="x")
    arguments = (tf.constant(value, tf.float32, name=name) for name, value in constants.items())
    outputs = layer_by_hand(inputs, *arguments)
_, ops = show_rewrite(by_hand, outputs, {inputs: X}, "A normalised layer, as written by hand")
print(len(ops), "operations:", *ops)

# %% [markdown]
# ### Exercise 4 · A layer and its normalisation, as one operation
#
# Grappler, like your compiler, folds what depends on constants alone and fuses only the patterns that it knows. The
# rest is up to you. Write `layer(x, mean, std, weights, bias)` so that it gives the same numbers, up to rounding, and
# runs as **one** TensorFlow operation (not a Python function), not counting inputs and constants. Only `x` changes from
# run to run; the other four are constants in the graph.


# %%
def layer(x, mean, std, weights, bias):
    """Normalised inputs, a dense layer and ReLU, so that they run as one operation."""
    ### BEGIN SOLUTION
    scaled = weights / std[:, tf.newaxis]
    moved = bias - tf.linalg.matvec(scaled, mean, transpose_a=True)
    return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, scaled), moved))
    ### END SOLUTION


# %% tags=["nbval-check-output"]
layer = check(4, layer)

# %% [markdown]
# Tools that prepare a trained network for inference fold batch normalisation in the same way, but into the weights of
# the layer before it.

# %% [markdown]
# ## 7 · Further: two kinds of threads {read 5, wait 0.5, optional}
#
# Two settings control [**threads**](../docs/learn/glossary.md#thread).
#
# - [**Intra-op parallelism**](../docs/learn/glossary.md#intra-op-parallelism): the number of threads that compute
#   **one** operation, such as a large matmul.
# - [**Inter-op parallelism**](../docs/learn/glossary.md#inter-op-parallelism): the number of operations that may run
#   **at the same time**, in different branches of the graph.
#
# (In builds where oneDNN uses [**OpenMP**](../docs/learn/glossary.md#openmp), `OMP_NUM_THREADS` replaces the first
# setting for oneDNN operations.)
#
# When does TensorFlow split a matmul? The rule is in one of its headers.

# %%
header = Path(tf.sysconfig.get_include(), "tensorflow/core/kernels/mkl/mkl_matmul_ops_common.h")
text = header.read_text()
start = text.index("inline bool ExecuteSingleThreadedGemm")
print(text[start : text.index("}", start) + 1])

# %% [markdown]
# An *m* × *k* matrix times a *k* × *n* matrix runs on one thread if all three matrices together need less than 1.01
# times the L2 cache. For square matrices of 32-bit numbers, that is 12 *n*² bytes. The next cell takes one size on each
# side of the limit.

# %%
largest = int((1.01 * L2 / 12) ** 0.5)
below = largest // 16 * 16
SIZES = (below, below + 16)
print(f"L2 cache: {L2 / 1024:,.0f} KiB. Not split up to {largest} × {largest}.")
for n in SIZES:
    print(f"{n} × {n}: {12 * n * n / L2:.2f} of the L2 cache")


# %%
def open_chains(n, count, inter, length=20):
    """Return a function that runs independent chains of matmuls with some inter-op threads."""
    graph, ends = tf.Graph(), []
    with graph.as_default():
        x = v1.placeholder(tf.float32, [n, n])
        for _ in range(count):  # each with its own weights: equal chains would be merged
            weights = tf.constant(rng.normal(size=(n, n)) / n**0.5, tf.float32)
            y = x
            for _ in range(length):
                y = tf.matmul(y, weights)
            ends.append(y)
        total = tf.add_n(ends).op  # fetching an operation copies nothing to NumPy
    config = v1.ConfigProto(inter_op_parallelism_threads=inter, use_per_session_threads=True)
    session, fed = v1.Session(graph=graph, config=config), rng.normal(size=(n, n))
    return functools.partial(session.run, total, {x: fed})


def busy_cores(run, seconds=AT_LEAST_S):
    """Return the number of cores that a function keeps busy: CPU time divided by elapsed time."""
    start, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        run()
    return (time.process_time() - cpu) / (time.perf_counter() - start)


# %%
busy = {}
for n in SIZES:
    one_chain = open_chains(n, count=1, inter=1)
    one_chain()  # the first run prepares the graph
    busy[n] = f"one chain keeps {busy_cores(one_chain):.2f} of {cores} cores busy"
    print(f"{n} × {n}: {busy[n]}")

# %% [markdown]
# Now take two independent chains. The longest path through the graph, its **critical path**, is one chain, which is
# half of the work. So two inter-op threads can halve the time, as long as no matmul is split. If one matmul keeps all
# cores busy, another can only take cores away from it.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster do two chains run with two inter-op threads than with one, below the limit?
#
# </div>

# %%
results.guess(5, "two chains below the limit: 2 inter-op threads vs 1", ..., unit="×")

# %% [markdown]
# The next cell takes about 10 s.

# %%
variants = {}
for n in SIZES:
    for inter in (1, 2):
        work_done = 2 * 20 * 2 * n**3 / 1e9
        chains = open_chains(n, count=2, inter=inter)
        variants[f"{n}, inter-op {inter}"] = per_second(chains, work_done, AT_LEAST_S)
chain_speeds = alternate(variants, ROUNDS, "GFLOP/s", "section 7")
print(*(f"{name:20} {speed}" for name, speed in chain_speeds.items()), sep="\n")
inter_gains = {
    n: compare(chain_speeds[f"{n}, inter-op 2"], chain_speeds[f"{n}, inter-op 1"]) for n in SIZES
}
split_gain = compare(*(chain_speeds[f"{n}, inter-op 1"] for n in reversed(SIZES)))
for n, gain in inter_gains.items():
    print(f"{n} × {n}, 2 inter-op threads vs 1: {gain}")
print(f"1 inter-op thread, {SIZES[1]} vs {SIZES[0]}: {split_gain}")
results.compare_guess(5, inter_gains[below])
results.hand_in(
    "7",
    *(
        (f"two chains of {n} × {n} matmuls, 2 inter-op threads vs 1", "", gain, limit)
        for (n, gain), limit in zip(
            inter_gains.items(), (f"{min(2, cores)}× (critical path)", busy[SIZES[1]])
        )
    ),
)

# %%
results.answer(
    3, "For which graphs do you raise inter-op threads, for which intra-op threads?", ...
)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Inter-op threads are for independent branches of operations that don't use all cores, and intra-op threads are for
# large operations. A network is mostly one long chain of large operations, so people set intra-op threads to the number
# of cores, and inter-op threads to 1 or 2. If the lines above section 7's guess show that a split matmul leaves cores
# idle, inter-op threads also help.
#
# </details>
#
# The published settings for a 56-core server are 56 intra-op and 2 inter-op threads, and an `OMP_NUM_THREADS` of 56 (F.
# Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019). Today, you set them with
# `tf.config.threading.set_…`, before the first operation.
#
# ## 8 · Further: the Python code in a function {read 4, optional}
#
# Everything in a `tf.function` that is not TensorFlow runs only during tracing. What does the next cell print?

# %%
python_calls = 0


@tf.function
def noisy(x):
    global python_calls
    python_calls += 1  # Python
    return x + rng.random(), x + tf.random.uniform([])  # NumPy's, and TensorFlow's


for _ in range(3):
    by_numpy, by_tensorflow = noisy(tf.constant(0.0))
    print(f"NumPy {by_numpy:.4f}   TensorFlow {by_tensorflow:.4f}")
print(f"calls counted: {python_calls}")

# %% [markdown]
# NumPy's number was drawn once and is now a constant in the graph. The same happens to a Python counter and to
# `time.time()`, without an error message. Keep state in a `tf.Variable`, draw random numbers with `tf.random`, and
# print values with `tf.print`. To debug with `breakpoint()`, call `tf.config.run_functions_eagerly(True)`.
#
# [**AutoGraph**](../docs/learn/glossary.md#autograph), a part of `tf.function`, turns a `for`, `while` or `if` that
# depends on a **tensor** into an operation. All others stay Python. How many `Tanh` operations does each of these
# graphs contain?


# %%
def python_loop(x):
    for _ in range(3):
        x = tf.tanh(x)
    return x


def tensor_loop(x):
    while tf.reduce_max(x) > 0.5:
        x = tf.tanh(x)
    return x


concretes = {}
for function in (python_loop, tensor_loop):
    concrete = tf.function(function).get_concrete_function(tf.ones([2]))
    concretes[function.__name__] = concrete.graph
    types = (op.type for op in concrete.graph.get_operations() if op.type != "Const")
    counts = collections.Counter(types)
    print(f"{function.__name__:12}", ", ".join(f"{n} {op}" for op, n in counts.items()))

# %% jupyter={"source_hidden": true}
for name, title in (
    ("python_loop", "A loop over Python's range: unrolled"),
    ("tensor_loop", "A loop on a tensor: one operation"),
):
    drawn = concretes[name].as_graph_def()
    plots.show(graphs.draw(drawn, title), alt=graphs.describe(drawn))

# %% [markdown]
# The `while` is one operation, `StatelessWhile` (or `While`), which contains its condition and its body (one `Tanh`) as
# graphs.
#
# **PyTorch** works differently. Where `torch.compile` can't capture Python code, such as `print`, `.item()` or an `if`
# on a tensor's value, it ends the graph, runs that line in Python, and begins another graph. Such a **graph break**
# prevents fusion across it. `torch._dynamo.explain(function)(x)` lists all breaks, and `fullgraph=True` turns them into
# errors ([documentation](https://docs.pytorch.org/docs/stable/torch.compiler_faq.html)).
#
# ## Questions {read 2}
#
# 1. What is an operation, what is a tensor, and which of the two do you feed and fetch?
# 2. What are the two steps of a graph program, and why keep them apart?
# 3. How do constants, placeholders and variables differ? Which of them keeps its value after a run?
# 4. You fetch `y` without feeding a placeholder, and there is no error. How is that possible?
# 5. Why can't a compiler fuse three operations if you fetch a result from the middle?
# 6. A training run with `tf.function` gets slower as the number of different batch sizes grows. Why, and what can you
#    do?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions.
#
# 1. An operation is a node, which computes; a tensor is an edge, one of its outputs. You feed and fetch tensors. In
#    this lab, a node has one output and stands for both.
# 2. Define the graph, then run it. The framework knows the whole graph before it computes the first number, so it can
#    prune, fold and fuse it, run it in parallel, save it, and differentiate it.
# 3. A constant's value is part of the graph. A placeholder's value comes with each run and is forgotten afterwards. A
#    variable keeps its value. In TensorFlow 1, the session held it; today, the Python object does.
# 4. The fetch does not depend on that placeholder. Either the graph has no path between them, or you fed a node on
#    every such path.
# 5. A result inside a fused operation is never stored.
# 6. Each new batch size is a new shape, so the function is traced again. Use `input_signature` with `None`,
#    `reduce_retracing=True`, or padding. A shorter last batch is a common cause, which `drop_remainder=True` removes.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Timing, and other machines.
#
# **Timing** Sections 1 to 3: {minutes 1–3}. Sections 4 to 6: {minutes 4–6}. Sections 7 and 8 are optional. If time is
# short, read exercise 3's solution; don't skip exercise 4.
#
# **With many cores**, calls in section 5 matter up to larger batch sizes. In section 7, a split matmul may leave cores
# idle, even with two, and then inter-op threads help on both sides of the limit. **With one core**, section 7 shows no
# difference. **Without AVX-512, or with AMX**, the rule and all counts stay the same. **On Arm64**, Eigen assumes a
# fixed L2 cache size; take sizes further apart if both behave alike. **Without oneDNN** (`TF_ENABLE_ONEDNN_OPTS=0`),
# Grappler fuses `tf.nn.bias_add` instead of `+`, and Eigen splits matmuls by cost.
#
# **What goes wrong** In exercise 1, `if values.get(node)` treats a fed 0 as missing. In exercise 2, people fold first
# and compare afterwards, but two equal constants are two objects. In exercise 3, `inputs[0]` of a placeholder raises an
# IndexError. In exercise 4, people write `tf.nn.relu` and stop. Ask what `x - mean` needs `x` for.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Define first, run later. A run computes what its fetches need, each operation once, and nothing else.
# - A graph compiler folds constants, removes duplicates and fuses operations.
# - `tf.function` traces once for each shape, dtype and Python number. Python code in it runs only during tracing.
# - A graph saves calls, which matter for small operations. It also drops work and chooses different kernels, which can
#   matter more for large ones.
# - What runs is not what you wrote. Before you ask why it is fast or slow, look at the graph that ran.

# %% jupyter={"source_hidden": true}
matmul_limit = compare(row_speeds["matmuls only"], row_speeds["as written"]).value
results.table(
    "speed-up or cost",
    [
        (
            "your compiled graph vs as written",
            "",
            compile_gain,
            f"predicted {predicted:.2f}×; matmuls only {matmul_limit:.2f}×",
        ),
        *(
            (
                f"a step as a graph vs eager, {pair[0]}, {pair[1]} images",
                "",
                gain,
                f"predicted {predictions[pair]}" if pair in predictions else "",
            )
            for pair, gain in gains.items()
        ),
        ("a call that is not traced vs one that is", "", tracing_cost, ""),
        *results.handed_in("7", ("two chains of matmuls, 2 inter-op threads vs 1", "")),
    ],
)

# %% [markdown]
# Next: [lab 02](02_onednn_mnist.ipynb) looks inside the fused operations.
