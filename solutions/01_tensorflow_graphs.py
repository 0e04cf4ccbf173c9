# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 01 · TensorFlow graphs
#
# **You will learn** how TensorFlow describes a computation as a graph, and how to run parts of it. Then you follow the
# same graph to today's TensorFlow: how much faster a training step is as a `tf.function`, what it costs to trace one,
# and what becomes of the Python in it. Optional sections look at threads, and at what TensorFlow rewrites in a graph
# before it runs.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which looks at the operations that a rewritten graph hands to oneDNN; lab 03, which changes
# the two thread settings of section 4 for ResNet-50; and lab 07, whose training step is a `tf.function`.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("01", globals())

# %%
import collections
import json
import sys
import time

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from labkit.display import graphs, ladder, plots
from labkit.display.measured import Measured
from labkit.mpi import run_ranks
from labkit.system import load
from labkit.system.statistics import ratio, ratios

cores = machine.usable_cores
v1 = tf.compat.v1  # TensorFlow's interface from before version 2; it still works

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
LOOP_STEPS = 30 if QUICK else 300  # section 3
BRANCH_SIZES = {"small": (256, 8)}  # section 4: rows of the matrices, products in a branch
BRANCH_SIZES |= {} if QUICK else {"large": (1024, 2)}
BRANCH_THREADS = (1,) if QUICK else sorted({1, cores})  # intra-op
BRANCH_ROUNDS = 2 if QUICK else 5
BATCHES = (32,) if QUICK else (32, 256, 2048)  # section 5
STEP_ROUNDS = 3 if QUICK else 10
TRACED_ROUNDS = 3 if QUICK else 8
BLOCK_ROUNDS = 3 if QUICK else 25  # section 7

# %% [markdown]
# ## 1 · Define: a graph is a description
#
# **Why graphs?** Training repeats the same computation thousands of times. If the framework knows the whole
# computation before it runs, it can prepare it: leave out what nobody needs, compute constants beforehand, merge
# operations, run branches at the same time. So every framework of today has a way to get such a description:
# `tf.function` in TensorFlow, `jax.jit` in JAX, `torch.compile` in PyTorch.
#
# **Why by hand, with sessions?** New programs don't use sessions: TensorFlow 2 hides them. Sections 1 and 2 use the old
# interface, `tf.compat.v1`, because it shows every part. You make the graph, you say what goes in and what comes out,
# and you can look at what ran. Saved models, profiles and error messages still speak of these parts, and so do most
# publications about TensorFlow on CPUs. Section 5 comes back to today's interface.
#
# Multiply two numbers in Python, and you get a number at once. Here, you first **describe** the computation, and run it
# later.
#
# ```mermaid
# flowchart LR
#     accTitle: Define, then run
#     accDescr: Python code defines a graph once. A session runs it many times: values are fed in, results are fetched.
#     code["Python code"] -->|"define, once"| described["graph:<br>operations and tensors"]
#     described --> session["session"]
#     feeds["values to feed"] -->|"at each run"| session
#     session -->|"at each run"| fetches["results you fetch"]
# ```
#
# The description has three kinds of parts.
#
# - An [**operation**](../docs/glossary.md#operation) (`tf.Operation`) is a node of the graph: something to compute.
# - A [**tensor**](../docs/glossary.md#tensor) (`tf.Tensor`) is an edge: the data that flows from one operation to
#   others.
# - A [**graph**](../docs/glossary.md#graph) (`tf.Graph`) holds both.
#
# Where do the numbers come from? There are three sources, and each of them is an operation too. A **constant** always
# gives the same value. A **placeholder** gets a new value for each run. A **variable** keeps its value between runs, as
# the weights of a network must.
#
# Here is a straight line, *y* = slope · *x* + offset.

# %%
graph = tf.Graph()
with graph.as_default():  # operations made in this block go into this graph
    x = v1.placeholder(tf.float32, name="x")
    slope = v1.get_variable("slope", initializer=2.0)
    offset = tf.constant(1.0, name="offset")
    scaled = tf.multiply(slope, x, name="scaled")
    y = tf.add(scaled, offset, name="y")

print(y)

# %% [markdown]
# There is no number. `y` stands for the output of an operation that has never run. Here is the whole graph so far. Data
# flows downwards.

# %% jupyter={"source_hidden": true}
plots.show(
    graphs.draw(graph.as_graph_def(), "y = slope · x + offset"),
    alt=graphs.describe(graph.as_graph_def()),
)

# %% [markdown]
# A variable needs more than one operation. `VarHandleOp` is the place where its value is kept, `ReadVariableOp` reads
# it, and `AssignVariableOp` stores the initial value there, once you run it.
#
# The picture leaves out some internal operations. The full list has everything: each operation with its type, and the
# tensors that it outputs. `y:0` is output number 0 of the operation `y`.

# %% tags=["nbval-check-output"]
print(f"{'type':20} {'operation':40} tensors")
for operation in graph.get_operations():
    tensors = ", ".join(f"{tensor.name} {tensor.dtype.name}" for tensor in operation.outputs)
    print(f"{operation.type:20} {operation.name:40} {tensors or '-'}")

# %% [markdown]
# ### Exercise 1 · Build a graph
#
# Write `make_graph()`. It makes a new `tf.Graph` for *d* = (*a* + *b*) · (*b* − 2), where *a* and *b* are placeholders
# of type `tf.float32`, for numbers or arrays of any shape. Return three things:
#
# - the graph,
# - a dictionary of the placeholders, `{"a": …, "b": …}`,
# - the tensor *d*.


# %%
def make_graph():
    """Describe d = (a + b) * (b - 2); return the graph, its placeholders by name, and d."""
    ### BEGIN SOLUTION
    graph = tf.Graph()
    with graph.as_default():
        a = v1.placeholder(tf.float32, name="a")
        b = v1.placeholder(tf.float32, name="b")
        d = tf.multiply(a + b, b - 2, name="d")
    return graph, {"a": a, "b": b}, d
    ### END SOLUTION


# %% tags=["nbval-check-output"]
make_graph = check(1, make_graph)

# %% jupyter={"source_hidden": true}
built, feeds, d = make_graph()
plots.show(
    graphs.draw(built.as_graph_def(), "d = (a + b) · (b − 2)"),
    alt=graphs.describe(built.as_graph_def()),
)

# %% [markdown]
# Look at the two branches. `a + b` and `b - 2` don't need each other's results. The graph shows this, and a line of
# Python doesn't. So TensorFlow may run both at the same time. In section 4 it does.
#
# ## 2 · Run: feed and fetch
#
# A [**session**](../docs/glossary.md#session) (`tf.compat.v1.Session`) runs the graph that it was made for.
# `session.run(fetches, feed_dict)` takes the tensors that you want, and values for the placeholders. What you **fetch**
# comes back as a NumPy array or as a number.

# %% tags=["nbval-check-output"]
with v1.Session(graph=built) as session:
    print("d =", session.run(d, feed_dict={feeds["a"]: 3.0, feeds["b"]: 4.0}))
    print(
        "d =", session.run(d, feed_dict={feeds["a"]: [1.0, 2.0, 3.0], feeds["b"]: [4.0, 5.0, 6.0]})
    )

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** You open a new session and fetch the straight line's `y`. What happens if you feed a value for `x`?
# And if you don't?
#
# </div>


# %%
def attempt(session, fetches, feed_dict=None):
    """Return the result of a run, or its error in one line."""
    try:
        return session.run(fetches, feed_dict)
    except tf.errors.OpError as error:
        # What follows the traceback of the graph.
        said = error.message.partition("Node: ")[2] or error.message
        line = (said.splitlines()[1:2] or [said])[0]
        return f"{type(error).__name__}: {line.partition('. ')[0]}"


with v1.Session(graph=graph) as session:
    print("x = 3:             ", attempt(session, y, {x: 3.0}))
    session.run(slope.initializer)
    print("slope initialised: ", attempt(session, y, {x: 3.0}))
    print("x missing:         ", attempt(session, y))

# %% [markdown]
# A variable has no value until you run its **initializer** in this very session. The graph only says how to make a
# value; the session keeps it. A placeholder has no value until you feed one, in each run again.
#
# **You can feed any tensor**, not only placeholders. The value that you feed replaces the operation's output for this
# run, and TensorFlow ignores that operation's own inputs. **You can fetch several tensors** at once.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The next cell prints the answers to four questions. Guess each answer before you read it.
#
# </div>

# %% tags=["nbval-check-output"]
with v1.Session(graph=graph) as session:
    session.run(slope.initializer)
    print("1.", session.run([scaled, y], {x: [1.0, 2.0]}))
    print("2.", session.run(y, {scaled: 100.0}), "and x was not fed")
    print("3.", session.run({"line": y, "twice": [y, y]}, {x: 1.0}))
    session.run(slope.assign(10.0))
    print("4.", session.run(y, {x: 1.0}))

# %% [markdown]
# Fetches can be lists and dictionaries, and the results come back in the same form. One run computes each operation
# **once**, however many fetches need it. A random number shows it.

# %%
dice = tf.Graph()
with dice.as_default():
    throw = tf.random.uniform([], 1, 7, dtype=tf.int32, name="throw")
    double = tf.multiply(throw, 2, name="double")
    broken = tf.math.floordiv(throw, 0, name="broken")

with v1.Session(graph=dice) as session:
    for _ in range(3):
        once = session.run([throw, double])
        apart = session.run(throw), session.run(double)
        print("a throw and its double, in one run:", *once, "  in two runs:", *apart)
    print("the broken operation:", attempt(session, broken))

# %% [markdown]
# The last operation divides by zero. It was in the graph all the time, and did no harm until you fetched it. **A
# session runs what the fetches need, and nothing else.** This is called [**pruning**](../docs/glossary.md#pruning).
#
# You can look at it: on request, a run reports the graph that it really ran, in `partition_graphs` of its metadata.


# %%
def what_ran(graph, fetch, feeds=None):
    """Run a graph and return the one that really ran, as a GraphDef."""
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1  # small graphs too: section 7
    metadata = v1.RunMetadata()
    with v1.Session(graph=graph, config=config) as session:
        session.run(fetch, feeds, v1.RunOptions(output_partition_graphs=True), metadata)
    return metadata.partition_graphs[0]


def show_rewrite(graph, fetch, feeds, title, keep=None):
    """Draw a graph as it was written and as it ran."""
    before, after = graph.as_graph_def(), what_ran(graph, fetch, feeds)
    alt = f"As written: {graphs.describe(before)}. As it runs: {graphs.describe(after)}."
    plots.show(graphs.compare(before, after, title), alt=alt, keep=keep)


show_rewrite(dice, double, None, "What ran to fetch double")

# %% [markdown]
# ## 3 · The default graph, and how it grows
#
# You never told `tf.multiply` which graph it belongs to. It went into the **default graph**: the graph of the
# `with graph.as_default():` block that you are in. Outside such a block, TensorFlow 1 used one graph for the whole
# program. That is convenient, and it has a trap. The loop below trains nothing; it only doubles a number in each step.
# (Programs of today fall into the same trap in another place: section 5 calls it *retracing*.)


# %%
def watch_steps(loop_body):
    """Run a body in a loop; return the graph's operations and the milliseconds of each step."""
    grown, times = [], []
    with tf.Graph().as_default() as graph, v1.Session() as session:
        step_of = loop_body(session)
        for step in range(LOOP_STEPS):
            start = time.perf_counter()
            step_of(step)
            times.append(1000 * (time.perf_counter() - start))
            grown.append(len(graph.get_operations()))
    return grown, times


def leaky(session):
    number = v1.placeholder(tf.float32)
    return lambda step: session.run(number * 2.0, {number: step})


def tight(session):
    number = v1.placeholder(tf.float32)
    doubled = number * 2.0
    return lambda step: session.run(doubled, {number: step})


with load.watch("section 3") as loop_others:
    grown = {"in the loop": watch_steps(leaky), "before the loop": watch_steps(tight)}

# %% jupyter={"source_hidden": true}
figure, (left, right) = plt.subplots(1, 2)
for (name, (operations, times)), colour in zip(grown.items(), plots.PALETTE):
    left.plot(operations, color=colour, marker="", label=name)
    right.plot(times[1:], color=colour, marker="", label=name)
left.set(xlabel="step", ylabel="operations in the graph")
right.set(xlabel="step", ylabel="ms a step (log scale)", yscale="log")
left.legend(title="operation created")
figure.suptitle("Creating the operation inside the loop, or once before it")
last = "; ".join(
    f"created {name}: {operations[-1]} operations, {times[-1]:.2f} ms in the last step"
    for name, (operations, times) in grown.items()
)
plots.show(
    figure,
    alt=f"Operations in the graph, and milliseconds a step, against the step. {last}.",
    watched=[loop_others],
)

# %%
print("median of the last third of the steps:")
for name, (_, times) in grown.items():
    print(f"operation created {name}: {np.median(times[-LOOP_STEPS // 3 :]):.2f} ms a step")

# %% [markdown]
# `number * 2.0` looks like a computation, but it is a description. It adds two operations in each step: the product and
# its constant. Each new product is also a fetch that the session has not seen before, so the session prepares the graph
# again. The larger the graph, the longer a step takes, yet the numbers are right. That is why people often find this
# mistake late.
#
# There is a guard: after `graph.finalize()`, adding an operation is an error.

# %% tags=["nbval-check-output"]
with tf.Graph().as_default() as sealed:
    number = v1.placeholder(tf.float32)
    sealed.finalize()
    try:
        number * 2.0
    except RuntimeError as error:
        print(f"RuntimeError: {error}")

# %% [markdown]
# ### Exercise 2 · A training loop that doesn't grow
#
# This loop fits *y* ≈ *w* · *x* by gradient descent, with one step for each batch. It makes the mistake three times.


# %%
def train_growing(batches, rate):
    """Fit y = w x from w = 0, a step for each batch (x, y); return the graph and w."""
    graph = tf.Graph()
    with graph.as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=0.0)
        session.run(w.initializer)
        for x, y in batches:
            x, y = tf.constant(x, tf.float32), tf.constant(y, tf.float32)
            loss = tf.reduce_mean((w * x - y) ** 2)
            gradient = tf.gradients(loss, w)[0]
            session.run(w.assign_sub(rate * gradient))
        return graph, session.run(w)


rng = np.random.default_rng(1)
batches = [(x, 3.0 * x) for x in rng.normal(size=(20, 8))]
for count in (1, 5, 20):
    grown_graph, w = train_growing(batches[:count], 0.1)
    print(f"{count:3} steps: {len(grown_graph.get_operations()):5} operations, w = {w:.3f}")

# %% [markdown]
# Write `train(batches, rate)`. It does the same, but with one graph for all steps, which has as many operations after
# 20 steps as after one. Return the graph and the last *w*, a number. Batches may differ in length: a placeholder of
# shape `[None]` takes any length.


# %%
def train(batches, rate):
    """Fit y = w x from w = 0, a step for each batch (x, y); return the graph and w."""
    ### BEGIN SOLUTION
    graph = tf.Graph()
    with graph.as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None])
        y = v1.placeholder(tf.float32, [None])
        w = v1.get_variable("w", initializer=0.0)
        loss = tf.reduce_mean((w * x - y) ** 2)
        step = w.assign_sub(rate * tf.gradients(loss, w)[0])
        graph.finalize()
        session.run(w.initializer)
        for batch_x, batch_y in batches:
            session.run(step, {x: batch_x, y: batch_y})
        return graph, session.run(w)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
train = check(2, train)

# %%
for count in (1, 5, 20):
    steady, w = train(batches[:count], 0.1)
    print(f"{count:3} steps: {len(steady.get_operations()):5} operations, w = {w:.3f}")

# %% [markdown]
# ## 4 · ConfigProto: two kinds of threads
#
# A session takes settings in a `ConfigProto`. Two of them control [**threads**](../docs/glossary.md#thread).
#
# - `intra_op_parallelism_threads` sets [**intra-op parallelism**](../docs/glossary.md#intra-op-parallelism): how many
#   threads compute **one** operation. A large matrix product can be split among them.
# - `inter_op_parallelism_threads` sets [**inter-op parallelism**](../docs/glossary.md#inter-op-parallelism): how many
#   operations may run **at the same time**. That helps if the graph has branches.
#
# (In builds where oneDNN uses [**OpenMP**](../docs/glossary.md#openmp), `OMP_NUM_THREADS` takes the place of the first
# for oneDNN's operations. Lab 03 has such a build.)
#
# There is a trap. The threads belong to the *process*: the first session creates them, and later sessions share them,
# whatever their own config says. For inter-op threads, `use_per_session_threads=True` gives a session its own pool. For
# intra-op threads there is no such option: to change their number, start another process.
#
# Here are four branches. Each is a chain of matrix products, and no branch needs another's results.

# %%
# %%writefile work/branches.py
"""Chains of matrix products side by side, and sessions with a number of threads of each kind."""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def describe(count, length, size):
    """Describe chains that need not wait for each other; return graph, input and sum."""
    rng = np.random.default_rng(0)
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [size, size], name="x")
        ends = []
        for branch in range(count):
            # Each branch has its own weights: equal branches would be computed once (section 7).
            weights = tf.constant(rng.normal(size=(size, size)) / np.sqrt(size), tf.float32)
            y = x
            for _ in range(length):
                y = tf.matmul(y, weights, name=f"branch_{branch}/product")
            ends.append(y)
        return graph, x, tf.add_n(ends)


def open_session(graph, inter, intra):
    """Open a session with its own inter-op threads; intra-op threads are the process's."""
    return v1.Session(
        graph=graph,
        config=v1.ConfigProto(
            inter_op_parallelism_threads=inter,
            use_per_session_threads=True,
            intra_op_parallelism_threads=intra,
        ),
    )


# %% [markdown]
# The script that times them is folded. It opens a session for each number of inter-op threads, and takes them in turns.
# With `v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)`, a run also records when each operation began and ended.

# %% jupyter={"source_hidden": true}
# %%writefile work/time_branches.py
"""Time branches: time_branches.py --intra 1 --inter 1 2 --cases small:256:8 --out a.json"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from branches import describe, open_session

v1 = tf.compat.v1

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--intra", type=int, required=True)
parser.add_argument("--inter", type=int, nargs="+", required=True)
parser.add_argument("--branches", type=int, default=4)
parser.add_argument("--cases", nargs="+", required=True, help="name:rows:products in a branch")
parser.add_argument("--runs", type=int, default=7)
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()


def clock(session, total, feeds):
    """Return the milliseconds of a run."""
    start = time.perf_counter()
    session.run(total, feeds)
    return 1000 * (time.perf_counter() - start)


def trace(session, fetch, feeds):
    """Run once; return (branch, start, end) of each product, in ms, by start."""
    metadata = v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    session.run(fetch, feeds, options, metadata)
    ran = []
    for node in (node for device in metadata.step_stats.dev_stats for node in device.node_stats):
        if node.node_name.startswith("branch_"):
            offsets = (node.op_start_rel_micros, node.op_end_rel_micros)
            start, end = ((node.all_start_micros + offset) / 1000 for offset in offsets)
            ran.append((int(node.node_name.split("/")[0].removeprefix("branch_")), start, end))
    return sorted(ran, key=lambda product: product[1])


measured = []
for case in args.cases:
    name, size, length = case.split(":")
    graph, x, total = describe(args.branches, int(length), int(size))
    feeds = {x: np.random.default_rng(1).normal(size=x.shape).astype(np.float32)}
    sessions = {inter: open_session(graph, inter, args.intra) for inter in args.inter}
    times = {inter: [] for inter in sessions}
    for turn in range(args.runs + 2):  # in turns, so that a disturbance affects all of them
        for inter, session in sessions.items():
            ms = clock(session, total.op, feeds)  # an operation's result is not copied to NumPy
            times[inter] += [ms] if turn > 1 else []  # the first runs prepare the graph
    for inter, session in sessions.items():
        traces = [trace(session, total.op, feeds) for _ in range(3)]
        fastest = min(traces, key=lambda ran: max(end for *_, end in ran) - ran[0][1])
        ms = statistics.median(times[inter])
        setting = {"case": name, "inter": inter, "intra": args.intra}
        measured.append({**setting, "ms": ms, "ran": fastest})
args.out.write_text(json.dumps(measured))

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** There are small matrices, 256 × 256, and large ones, 1024 × 1024. Which kind of threads makes the
# small ones faster, and which the large ones? Write your guess for the *small* ones over the three dots, in quotes.
#
# </div>

# %%
results.guess(
    1, "threads that gain more, small matrices", ..., choices=("inter-op", "intra-op", "neither")
)

# %% [markdown]
# Each launch is a process of its own, and a round has one launch for each number of intra-op threads. The cell takes
# about a minute.

# %%
BRANCHES = 4
inters = sorted({1, 2, min(BRANCHES, cores)})
cases = [f"{case}:{size}:{length}" for case, (size, length) in BRANCH_SIZES.items()]
launches = [intra for _ in range(BRANCH_ROUNDS) for intra in BRANCH_THREADS]
timed = []
with load.watch("section 4") as branch_others:
    for launch, intra in enumerate(launches, 1):
        print(f"launch {launch} of {len(launches)}, intra-op threads: {intra}", flush=True)
        out = work / "branches.json"
        threads = ("--intra", intra, "--inter", *inters)
        options = ("--branches", BRANCHES, "--cases", *cases, "--out", out)
        run_ranks(1, "work/time_branches.py", *threads, *options, show=False)
        timed += json.loads(out.read_text())


# %%
def thread_speeds(timed):
    """Return for each case and setting, (inter, intra), the runs a second, round by round."""
    speeds = {}
    for m in timed:
        setting = m["inter"], m["intra"]
        speeds.setdefault(m["case"], {}).setdefault(setting, []).append(1000 / m["ms"])
    return speeds


def tell_threads(case, speeds):
    """Print what each setting gains over one thread of each kind, and return these ratios."""
    gains = ratios(speeds, (1, 1))
    for (inter, intra), gain in gains.items():
        if (inter, intra) != (1, 1):
            threads = f"{inter} inter-op, {intra} intra-op"
            print(f"{case}, {threads}: {gain} times as fast: {gain.verdict}")
    most_inter, most_intra = max(speeds)[0], max(intra for _, intra in speeds)
    if most_intra > 1:  # not in a small run, nor on one core
        both = ratio(speeds[most_inter, most_intra], speeds[1, most_intra])
        print(f"{case}, both kinds against intra-op alone: {both} times as fast: {both.verdict}")
    return gains


speeds = thread_speeds(timed)
thread_gains = {case: tell_threads(case, of_case) for case, of_case in speeds.items()}

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, len(thread_gains), sharey=True, squeeze=False)
most = min(BRANCHES, cores)
for axis, (case, gains) in zip(axes[0], thread_gains.items()):
    for row, ((_, intra), gain) in enumerate(gains.items()):
        spread = [[gain.value - gain.low], [gain.high - gain.value]]
        colour, marker = (plots.BLUE, "o") if intra == 1 else (plots.ORANGE, "s")
        axis.errorbar(gain.value, row, xerr=spread, fmt=marker, color=colour, capsize=5)
        axis.annotate(
            f"{gain.value:.2f}×",
            (gain.value, row),
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            bbox=dict(facecolor="white", edgecolor="none", pad=1),  # before the dashed line
        )
    axis.axvline(most, color=plots.BLACK, linestyle="--", linewidth=1.5)
    size = BRANCH_SIZES[case][0]
    axis.set(xlabel="speed-up over one thread", title=f"{case}: {size} × {size}")
    axis.set_xlim(0, 1.15 * max(most, *(gain.high for gain in gains.values())))
    axis.margins(y=0.2)
names = [f"inter {inter}, intra {intra}" for inter, intra in thread_gains["small"]]
axes[0, 0].set_yticks(range(len(names)), names)
axes[0, 0].invert_yaxis()
figure.suptitle("Four branches by thread setting; dashed: the most that branches can gain")
figures = "; ".join(
    f"{case}, inter {inter}, intra {intra}: {gain}"
    for case, gains in thread_gains.items()
    for (inter, intra), gain in gains.items()
)
plots.show(
    figure,
    alt=f"Speed-up over one thread, with its 95% interval, by thread setting. {figures}.",
    keep=results,
    watched=[branch_others],
)

# %% jupyter={"source_hidden": true}
rows = []
for case, gains in thread_gains.items():
    settings = {"inter-op": (inters[-1], 1), "intra-op": (1, max(BRANCH_THREADS))}
    for kind, setting in settings.items():
        if setting != (1, 1):
            name = f"all {kind} threads instead of one, {BRANCHES} branches of {case} products"
            limit = f"{most}×: branches or cores" if kind == "inter-op" else f"{cores}×: cores"
            rows.append((name, "", Measured(*gains[setting], "×"), limit, branch_others))
results.hand_in("4", *rows)  # for the closing table

if max(BRANCH_THREADS) > 1:
    kinds = ratio(speeds["small"][inters[-1], 1], speeds["small"][1, max(BRANCH_THREADS)])
    better = "inter-op" if kinds.value > 1 else "intra-op"
    results.compare_guess(1, better if kinds.significant else "neither")

# %% [markdown]
# An operation that is too small to be split leaves intra-op threads idle: only another branch can then use the other
# cores. A large operation can use all cores by itself. A network is mostly one long chain of large operations. So
# people set intra-op threads to the number of cores, and inter-op threads to a small number, often 1 or 2.
#
# With both kinds, there can be more threads than cores, and they take turns. The line "both kinds against intra-op
# alone" says whether that cost anything here.
#
# Did branches really run at the same time? The next picture shows one run for each number of inter-op threads: the
# fastest of those traced. Each bar is one product, and its letter is its branch. TensorFlow doesn't record which thread
# ran a product. A product that began before another had ended gets a row of its own.


# %% jupyter={"source_hidden": true}
def rows_of(ran):
    """Yield for each (branch, start, end) the first row in which nothing else is running."""
    ends = []
    for _, start, end in ran:
        row = next((row for row, other in enumerate(ends) if other <= start), len(ends))
        ends[row : row + 1] = [end]
        yield row


def span(ran):
    return max(end for *_, end in ran) - ran[0][1]


COLOURS = (plots.SKY, plots.ORANGE, plots.PURPLE, plots.YELLOW)  # letters are readable on them
branch_traces = {}
for m in timed:
    if m["case"] == "small" and m["intra"] == 1:
        slower = branch_traces.get(m["inter"], m["ran"])
        branch_traces[m["inter"]] = min(slower, m["ran"], key=span)
figure, axes = plt.subplots(
    len(branch_traces), 1, sharex=True, figsize=(9, 1.4 + 1.3 * len(branch_traces))
)
at_once = []
for axis, (inter, ran) in zip(axes, branch_traces.items()):
    begin = ran[0][1]
    for (branch, start, end), row in zip(ran, rows_of(ran)):
        axis.barh(
            row,
            end - start,
            left=start - begin,
            color=COLOURS[branch],
            edgecolor="white",
            height=0.8,
        )
        middle = (start + end) / 2 - begin
        axis.text(middle, row, "ABCD"[branch], ha="center", va="center", fontsize=10)
    at_once.append(1 + max(rows_of(ran)))
    axis.set(title=f"{inter} inter-op {'thread' if inter == 1 else 'threads'}")
    axis.set_yticks(range(at_once[-1]), range(1, at_once[-1] + 1))
    axis.grid(visible=False)
axes[-1].set(xlabel="ms since the first product began")
figure.supylabel("products running concurrently", fontsize=11)
figure.suptitle("Which branch ran when")
told = (f"{inter} inter-op: at most {most} at once" for inter, most in zip(branch_traces, at_once))
plots.show(
    figure,
    alt=f"Bars in time for the products of four branches, A to D. {'; '.join(told)}.",
    keep=results,
    watched=[branch_others],
)

# %% [markdown]
# ### Exercise 3 · Read the trace
#
# A real network's trace has thousands of operations, too many to look at. Write `concurrency(ran)`. It takes a list of
# `(branch, start, end)`, with times in ms, in any order, and returns two numbers:
#
# - the **most** operations that were running at the same moment. One that begins exactly when another ends does not
#   overlap with it;
# - how many were running **on average**, from the first start to the last end. Moments in which none ran count, too.


# %%
def concurrency(ran):
    """Return how many operations ran at once: the most, and the average."""
    ### BEGIN SOLUTION
    begin, finish = min(start for _, start, _ in ran), max(end for _, _, end in ran)
    average = sum(end - start for _, start, end in ran) / (finish - begin)
    most = max(sum(start <= moment < end for _, start, end in ran) for _, moment, _ in ran)
    return most, average
    ### END SOLUTION


# %% tags=["nbval-check-output"]
concurrency = check(3, concurrency)

# %% [markdown]
# Here is your function's answer for the traces above, beside the median time of a product.

# %%
print("inter-op threads   most at once   on average   ms a product   ms in all")
for inter, ran in branch_traces.items():
    most_at_once, average = concurrency(ran)
    ms = np.median([end - start for _, start, end in ran])
    print(f"{inter:16} {most_at_once:14} {average:12.2f} {ms:14.3f} {span(ran):11.2f}")

# %% [markdown]
# If twice as many products run at once, and each takes as long as before, the whole run takes half the time. Look at
# the fourth column. Where products take longer side by side than one after the other, they share something that one
# alone had to itself; the caches and the memory are likely candidates. So the concurrency of a trace says what threads
# could gain at most, and not what they do gain.

# %% [markdown]
# ## 5 · Today: `tf.function`
#
# Since TensorFlow 2, operations run immediately, as Python's do. This is
# [**eager execution**](../docs/glossary.md#eager-execution). It is easier to debug, but there is no graph.
# `tf.function` brings the graph back. It runs your Python function **once**, with placeholders for the arguments, and
# records which operations the function calls. This is [**tracing**](../docs/glossary.md#tracing). Later calls run the
# recorded graph and don't run your Python code any more. You still define first and run later, but TensorFlow decides
# when.


# %%
@tf.function
def line(x, slope):
    # Python: it runs only while tracing.
    print(f"   tracing: x is {x.dtype.name}{x.shape}, slope is {slope}")
    return slope * x + 1.0


for call in (1, 2, 3):
    print(f"call {call}: {line(tf.constant([1.0, 2.0]), tf.constant(2.0))}")

# %% [markdown]
# There is one `print` for three calls.
#
# ### What does a graph gain?
#
# Here is one training step of a small network with two dense layers, as the next labs have it in their loops.

# %%
rng = np.random.default_rng(0)
shapes = ((784, 128), (128,), (128, 10), (10,))
weights = [tf.Variable(0.05 * rng.normal(size=shape), dtype=tf.float32) for shape in shapes]


def training_step(images, labels):
    """Take one step of gradient descent; return the loss."""
    with tf.GradientTape() as tape:
        hidden = tf.nn.relu(images @ weights[0] + weights[1])
        logits = hidden @ weights[2] + weights[3]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
    for weight, gradient in zip(weights, tape.gradient(loss, weights)):
        weight.assign_sub(0.01 * gradient)
    return loss


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as fast is this step as a `tf.function`, with a batch of 32 images? Write a number
# over the three dots. And with 2,048 images: is the factor larger or smaller?
#
# </div>

# %%
results.guess(2, "a training step as a graph, against eagerly, batch 32", ..., unit="×")

# %% [markdown]
# The next cell takes about ten seconds.


# %%
def steps_per_second(step, images, labels, count=10):
    start = time.perf_counter()
    for _ in range(count):
        step(images, labels)
    return count / (time.perf_counter() - start)


step_speeds = {}
with load.watch("section 5") as step_others:
    for batch in BATCHES:
        print(f"batch {batch}: {STEP_ROUNDS} rounds", flush=True)
        images, labels = tf.random.normal([batch, 784]), tf.zeros([batch], tf.int32)
        ways = {"eager": training_step, "graph": tf.function(training_step)}
        rounds = {way: [] for way in ways}
        for turn in range(STEP_ROUNDS + 1):  # in turns, so that a disturbance affects both
            for way, step in ways.items():
                speed = steps_per_second(step, images, labels)
                rounds[way] += [speed] if turn else []  # the first round has the tracing in it
        step_speeds[batch] = rounds

# %%
step_gains = {batch: ratios(speeds, "eager")["graph"] for batch, speeds in step_speeds.items()}
print("batch   eager, ms   graph, ms   saved, ms   graph against eager")
for batch, gain in step_gains.items():
    eager, graph_ms = (1000 / np.median(step_speeds[batch][way]) for way in ("eager", "graph"))
    saved = eager - graph_ms
    times = f"{gain} times as fast: {gain.verdict}"
    print(f"{batch:5} {eager:11.2f} {graph_ms:11.2f} {saved:11.2f}   {times}")

headline = Measured(*step_gains[BATCHES[0]], "×")
results.step("graph", headline, step_others)
results.compare_guess(2, headline)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
values = np.array([gain[:3] for gain in step_gains.values()])
spread = np.abs(values[:, 1:] - values[:, :1]).T
axis.errorbar([str(batch) for batch in BATCHES], values[:, 0], yerr=spread, capsize=6, lw=2)
for place, value in enumerate(values[:, 0]):
    axis.annotate(f"{value:.2f}×", (place, value), xytext=(10, 6), textcoords="offset points")
axis.axhline(1, color=plots.BLACK, linestyle="--", linewidth=1.5)
axis.set(xlabel="images in a batch", ylabel="times as fast as eagerly")
axis.set_title("A training step as a graph")
axis.set_ylim(0, 1.15 * values.max())
axis.margins(x=0.15)
told = "; ".join(f"batch {batch}: {gain}" for batch, gain in step_gains.items())
plots.show(
    figure,
    alt=f"How many times as fast a training step is as a graph, with its 95% interval. {told}.",
    keep=results,
    watched=[step_others],
)

# %% [markdown]
# Eagerly, Python calls one operation after the other, and records each for the gradient. These calls should cost the
# same whatever the batch. The column *saved* tests it: if the saved time hardly grows while the step does, then it is
# the calls that the graph saves, and the arithmetic takes about as long as before. A factor that falls towards 1 with
# the batch says the same: the larger the operations, the less their calls matter. What a graph can do for large
# operations is the subject of section 7 and lab 02.
#
# ### When does TensorFlow trace again?
#
# This is called [**retracing**](../docs/glossary.md#retracing).
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** After a first call with two 32-bit numbers and a tensor as slope, these seven calls follow:
#
# 1. the same shape, other numbers
# 2. three numbers instead of two
# 3. 64-bit numbers
# 4. slope is Python's 2.0
# 5. slope is Python's 3.0
# 6. slope is Python's 2.0, again
# 7. slope is the tensor 3.0
#
# Which of them are traced? How many?
#
# </div>

# %%
results.guess(3, "calls that are traced, of seven", ..., unit="calls")

# %%
two = tf.constant(2.0)
arguments = {
    "the same shape, other numbers": (tf.constant([5.0, 6.0]), two),
    "three numbers instead of two": (tf.constant([1.0, 2.0, 3.0]), two),
    "64-bit numbers": (tf.constant([1.0, 2.0], tf.float64), tf.constant(2.0, tf.float64)),
    "slope is Python's 2.0": (tf.constant([1.0, 2.0]), 2.0),
    "slope is Python's 3.0": (tf.constant([1.0, 2.0]), 3.0),
    "slope is Python's 2.0, again": (tf.constant([1.0, 2.0]), 2.0),
    "slope is the tensor 3.0": (tf.constant([1.0, 2.0]), tf.constant(3.0)),
}
tf.get_logger().setLevel("ERROR")
fresh = tf.function(lambda x, slope: slope * x + 1.0)
fresh(tf.constant([1.0, 2.0]), two)
traced = []
for number, (what, (numbers, factor)) in enumerate(arguments.items(), 1):
    before = fresh.experimental_get_tracing_count()
    fresh(numbers, factor)
    traced.append(fresh.experimental_get_tracing_count() > before)
    print(f"{number}. {what:32} {'traced' if traced[-1] else '-'}")

results.compare_guess(3, Measured(sum(traced), unit="calls", digits=0))

# %% [markdown]
# In a program, TensorFlow prints long warnings about a function that it traces so often. This cell turned the warnings
# off, to keep the list readable.
#
# By default, TensorFlow records a graph for one shape and one type. Other shapes and types need another graph. A Python
# number is not data: it becomes a constant, part of the graph, so **each new number is a new graph**. If you pass a
# learning rate or a step number as a Python number, each new value causes a new trace.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The next function calls 40 operations. How many times as long does a call take that traces it, as one
# that doesn't?
#
# </div>

# %%
results.guess(4, "a call that traces, against one that doesn't: time", ..., unit="×")

# %%
LAYERS = 20


@tf.function
def network(x, scale):
    for _ in range(LAYERS):  # a Python loop: it is unrolled into the graph
        x = tf.tanh(x * scale)
    return x


numbers = tf.ones([100])
network(numbers, tf.constant(1.0))


def milliseconds(scales):
    """Return the mean time of a call."""
    start = time.perf_counter()
    for scale in scales:
        network(numbers, scale)
    return 1000 * (time.perf_counter() - start) / len(scales)


tracing, calling = [], []
with load.watch("section 5") as tracing_others:
    for _ in range(TRACED_ROUNDS):  # in turns; new Python numbers are traced
        tracing.append(milliseconds(np.random.default_rng().random(3).tolist()))
        calling.append(milliseconds(tf.unstack(tf.random.uniform([100]))))
tracing_cost = ratio(tracing, calling)
print(f"a call that traces: {np.median(tracing):.1f} ms")
print(f"one that doesn't:   {np.median(calling):.3f} ms")
print(f"It takes {tracing_cost} times as long.")
results.compare_guess(4, Measured(*tracing_cost, "×", digits=0))

# %% [markdown]
# There are two remedies. Pass **tensors** instead of Python numbers. And declare what the function accepts: an **input
# signature** gives the type and shape of each argument, with `None` where a length may vary.

# %% tags=["nbval-check-output"]
traces = []


@tf.function(input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)])
def signed(x, slope):
    traces.append(f"x has shape {x.shape}")
    return slope * x + 1.0


for length in (2, 3, 4, 5):
    signed(np.ones(length, np.float32), length)
print(traces)


@tf.function(reduce_retracing=True)
def relaxed(x):
    traces.append(f"x has shape {x.shape}")
    return 2 * x


traces.clear()
for length in (2, 3, 4, 5):
    relaxed(tf.ones([length]))
print(traces)

# %% [markdown]
# `reduce_retracing=True` finds out by itself that the length varies, after the first new length.
#
# ### Exercise 4 · Two graphs and a counter
#
# A program calls a function with batches of every length, sometimes to train and sometimes to predict. The function
# gets three arguments: the batch `x`; `step`, the number of training calls so far, with the present one; and
# `training`, Python's `True` or `False`, as Keras hands it to a layer. Here is the program without graphs.


# %%
def count_eagerly(function):
    """Return call(x, training), which counts training calls for function(x, step, training)."""
    step = 0

    def call(x, training):
        nonlocal step
        if training:
            step += 1
        return function(tf.convert_to_tensor(x, tf.float32), step, training)

    return call


decay = count_eagerly(lambda x, step, training: x * 0.5**step)
for training in (False, True, True, False):
    print(f"training is {training!s:5}: {decay([8.0, 16.0], training)}")

# %% [markdown]
# Write `count_in_graphs(function)`. It returns a function that does the same, but runs `function` as a graph. Whatever
# the lengths of the batches, and however often it is called, `function` is traced at most **twice**: once for training
# and once for prediction. Each call of `count_in_graphs` begins a count of its own.
#
# `x` is a list of numbers, or an array or a tensor of float32, of any length. `function` gets it as a tensor. It gets
# `step` as a number or a tensor of float32, and `training` as Python's `True` or `False`: it may have an `if training`.


# %%
def count_in_graphs(function):
    """Return call(x, training), which runs function(x, step, training) as one of two graphs."""
    ### BEGIN SOLUTION
    step = tf.Variable(0.0)

    def graph_for(training):
        def run(x):
            if training:
                step.assign_add(1.0)
            return function(x, step.read_value(), training)

        return tf.function(run, input_signature=[tf.TensorSpec([None], tf.float32)])

    both = {training: graph_for(training) for training in (False, True)}
    return lambda x, training: both[training](x)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
count_in_graphs = check(4, count_in_graphs)

# %% [markdown]
# ## 6 · What becomes of the Python in a function
#
# Everything in the function that is not TensorFlow happens during tracing, and never again.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What does the next cell print?
#
# </div>

# %%
calls = 0
rng = np.random.default_rng()


@tf.function
def noisy(x):
    global calls
    calls += 1  # Python
    return x + rng.random(), x + tf.random.uniform([])  # NumPy's, and TensorFlow's


for _ in range(3):
    by_numpy, by_tensorflow = noisy(tf.constant(0.0))
    print(f"NumPy's {by_numpy:.4f}   TensorFlow's {by_tensorflow:.4f}")
print(f"calls counted: {calls}")

# %% [markdown]
# NumPy's number was drawn once, and is now a constant in the graph. The same happens to a Python counter, a list that
# you append to, a file that you read, and `time.time()`. There is no error message. Keep state in a `tf.Variable`, and
# use `tf.random` for random numbers.
#
# ### Loops and conditions: AutoGraph
#
# You saw above that a Python loop is unrolled. Then how does a graph repeat something as often as the data say?
# [**AutoGraph**](../docs/glossary.md#autograph), a part of `tf.function`, rewrites your Python code before it is
# traced. A `for`, `while` or `if` that depends on a **tensor** becomes an operation. All others stay Python.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many `Tanh` has each of these graphs?
#
# </div>


# %%
def python_loop(x):
    for _ in range(3):
        x = tf.tanh(x)
    return x


def tensor_loop(x):
    while tf.reduce_max(x) > 0.5:
        x = tf.tanh(x)
    return x


def tensor_if(x):
    if tf.reduce_sum(x) > 1.0:
        x = tf.tanh(x)
    return x


concretes = {}
for what, function in (
    ("for … in range(3)", python_loop),
    ("while tf.reduce_max(x) > 0.5", tensor_loop),
    ("if tf.reduce_sum(x) > 1.0", tensor_if),
):
    concretes[what] = tf.function(function).get_concrete_function(tf.ones([2]))
    types = [operation.type for operation in concretes[what].graph.get_operations()]
    kinds = collections.Counter(kind for kind in types if kind != "Const")
    print(f"{what:29}", ", ".join(f"{count} {kind}" for kind, count in kinds.items()))

# %% jupyter={"source_hidden": true}
for what, title in (
    ("for … in range(3)", "A loop over Python's range: unrolled"),
    ("while tf.reduce_max(x) > 0.5", "A loop on a tensor: one operation"),
):
    described = concretes[what].graph.as_graph_def()
    plots.show(graphs.draw(described, title), alt=graphs.describe(described))

# %% [markdown]
# The `while` is one operation, `StatelessWhile` (or `While`). Its condition and its body, with one `Tanh`, are graphs
# of their own inside that operation. So the graph has the same size for three repetitions and for three million. A loop
# over `tf.range(n)` works in the same way. The `if` is one operation as well.
#
# AutoGraph also looks into the functions that yours calls, and that takes time. `@tf.function(autograph=False)`
# switches it off, as labs 07 and 08 do: their steps have no loop or condition on tensors. A function that has one fails
# then:

# %%
try:
    tf.function(tensor_if, autograph=False)(tf.ones([2]))
except TypeError as error:
    print(f"{type(error).__name__}: {str(error).partition('. ')[0]}.")

# %% [markdown]
# ### When something is wrong
#
# `print` and a debugger work while the function is traced, when tensors have no values yet. There are two ways to look
# at the values: `tf.print` is an operation in the graph, and `tf.config.run_functions_eagerly(True)` runs your Python
# code in each call, as if there were no `tf.function`.


# %%
@tf.function
def suspicious(x):
    y = tf.math.log(x)
    print("   print:   ", y)
    tf.print("   tf.print:", y, output_stream=sys.stdout)
    return tf.sqrt(y)


for call in (1, 2):
    print(f"call {call}")
    suspicious(tf.constant([4.0, 0.5]))

tf.config.run_functions_eagerly(True)
print("run eagerly")
print("   result:  ", suspicious(tf.constant([4.0, 0.5])))
tf.config.run_functions_eagerly(False)

# %% [markdown]
# `print` showed a tensor without a value, once. `tf.print` showed the values in each call, and so you find where the
# `nan` of the result comes from: the logarithm of 0.5 is negative. Eagerly, `print` shows them too, and you could stop
# in the function with `breakpoint()`. Switch it back to `False` afterwards: it is slow, and it holds for all functions.
#
# ### The graph inside
#
# A [**concrete function**](../docs/glossary.md#concrete-function) is one of the graphs that a `tf.function` holds. Ask
# for the one that fits some arguments, and you get a graph like the one that you built by hand in section 1, with
# placeholders for the arguments. `Identity` hands the result over to the caller.

# %%
formula = tf.function(lambda x, factor: factor * x + 1.0)
concrete = formula.get_concrete_function(tf.ones([3]), tf.constant(2.0))
plots.show(
    graphs.draw(concrete.graph.as_graph_def(), "factor · x + 1, traced"),
    alt=graphs.describe(concrete.graph.as_graph_def()),
)

# %% [markdown]
# ## 7 · What runs is not what you wrote
#
# TensorFlow knows the whole graph before it runs, so it can improve it. [**Grappler**](../docs/glossary.md#grappler),
# TensorFlow's graph optimiser, does most of this. `what_ran` of section 2 shows the result.
#
# (Grappler skips graphs that are too small to be worth the effort. `min_graph_nodes = -1` makes it take any graph.)
#
# **Constant folding and pruning.** A part of the graph that is the same in each run can be computed beforehand: that is
# [**constant folding**](../docs/glossary.md#constant-folding). The two sides of the picture show the same graph, before
# and after.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What does this graph still have to compute once *x* is fed?
#
# </div>

# %%
folding = tf.Graph()
with folding.as_default():
    number = v1.placeholder(tf.float32, [None], name="x")
    two, three = tf.constant(2.0, name="two"), tf.constant(3.0, name="three")
    product = tf.multiply(two, three, name="product")
    root = tf.sqrt(product, name="root")
    result = tf.multiply(number, root, name="y")
    never = tf.exp(result, name="never_fetched")
show_rewrite(folding, result, {number: [1.0, 2.0]}, "Constant folding and pruning")

# %% [markdown]
# The box *fed* is the value that replaced the placeholder. √(2 · 3) is the same in each run. So it is computed once,
# when the graph is prepared, and what remains is a constant: the dashed boxes on the left become the dashed box on the
# right. `never_fetched` is pruned, as in section 2.
#
# **Common subexpression elimination.** Two operations of the same type with the same inputs give the same result, so
# one is enough.

# %%
twice = tf.Graph()
with twice.as_default():
    number = v1.placeholder(tf.float32, [None], name="x")
    first, second = tf.exp(number, name="first"), tf.exp(number, name="second")
    result = tf.add(tf.sin(first, name="sine"), tf.cos(second, name="cosine"), name="y")
show_rewrite(twice, result, {number: [1.0, 2.0]}, "One exponential instead of two")

# %% [markdown]
# **Fusion.** A convolution, its bias and its activation are three operations. If they run one after the other, the
# second and the third read from memory everything that the one before has just written there, and compute very little.
# [**Operator fusion**](../docs/glossary.md#operator-fusion) merges them into one operation, which works on each number
# while it is still in a register. Here is such a block, as most networks have it.

# %%
rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(2, 16, 16, 3)).astype(np.float32)
KERNEL = rng.normal(size=(3, 3, 3, 8)).astype(np.float32)
BIAS = rng.normal(size=8).astype(np.float32)  # zeros would be folded away: nothing to merge


@tf.function(input_signature=[tf.TensorSpec(IMAGES.shape, tf.float32, name="images")])
def conv_block(images):
    kernel, bias = tf.constant(KERNEL, name="kernel"), tf.constant(BIAS, name="bias")
    convolved = tf.nn.conv2d(images, kernel, 1, "SAME", name="convolution")
    with_bias = tf.nn.bias_add(convolved, bias, name="with_bias")
    return tf.nn.relu(with_bias, name="activation")


def as_graph(function):
    """Return a tf.function's graph as one that a Session can run."""
    graph, described = tf.Graph(), function.get_concrete_function().graph.as_graph_def()
    with graph.as_default():
        tf.graph_util.import_graph_def(described, name="")
    return graph


fusing = as_graph(conv_block)
show_rewrite(
    fusing, "activation:0", {"images:0": IMAGES}, "Three operations merged into one", keep=results
)

# %% [markdown]
# The orange box is one operation, and its second line says what is in it. Its name says which library does the work:
# `_MklNative…` is oneDNN; `_Fused…` alone is Eigen, TensorFlow's own library. Two steps lead there. Grappler merges the
# three operations into `_FusedConv2D`; then, where oneDNN is on, another pass of TensorFlow's puts oneDNN's operation
# in its place. `Identity` only hands a function's result over, and this run fetched what comes before it.
#
# The block was a `tf.function`. We took its graph out to look at it, but Grappler also optimises it when you call it as
# a function.
#
# Is fusion worth anything? The next cell times two blocks, with Grappler and without. One is like the first block of a
# network: it reads few channels and writes large images. The other is like a block from the middle, with many channels.
# For comparison it also times the convolution alone, the least that a fused block must do.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which of the two blocks gains more?
#
# </div>

# %%
results.guess(
    5, "block that gains more from fusion", ..., choices=("first", "middle", "no difference")
)

# %% [markdown]
# The next cell takes about ten seconds.


# %%
def block_speeds(images, filters, rounds=BLOCK_ROUNDS):
    """Return runs a second by round: operations apart, merged, the convolution alone."""
    block = tf.Graph()
    with block.as_default():
        x = v1.placeholder(tf.float32, images)
        kernel = tf.constant(rng.normal(size=(3, 3, images[-1], filters)), tf.float32)
        convolved = tf.nn.conv2d(x, kernel, 1, "SAME")
        bias = tf.constant(rng.normal(size=filters), tf.float32)
        y = tf.nn.relu(tf.nn.bias_add(convolved, bias))
    runs, speeds = {}, {"apart": [], "merged": [], "convolution alone": []}
    for name, fetch in zip(speeds, (y, y, convolved)):
        config = v1.ConfigProto()
        config.graph_options.rewrite_options.min_graph_nodes = -1
        config.graph_options.rewrite_options.disable_meta_optimizer = name == "apart"
        # An operation is fetched, not its tensor: then nothing is copied to NumPy.
        runs[name] = v1.Session(graph=block, config=config), fetch.op
    fed = {x: rng.normal(size=images).astype(np.float32)}
    for turn in range(rounds + 2):  # in turns, so that a disturbance affects all
        for name, (session, operation) in runs.items():
            start = time.perf_counter()
            session.run(operation, fed)
            if turn > 1:  # the first runs prepare the graph
                speeds[name].append(1 / (time.perf_counter() - start))
    for session, _ in runs.values():
        session.close()
    return speeds


block_shapes = {"first": ((16, 112, 112, 3), 32), "middle": ((16, 56, 56, 64), 64)}
measured = {}
with load.watch("section 7") as block_others:
    for where, shape in block_shapes.items():
        print(f"{where} block: {BLOCK_ROUNDS} rounds", flush=True)
        measured[where] = block_speeds(*shape)


# %%
def tell(where, speeds):
    """Print what merging gains, and the most that it could; return both ratios."""
    times_as_fast = ratios(speeds, "apart")
    gain, most = times_as_fast["merged"], times_as_fast["convolution alone"]
    print(f"{where} block: merged {gain} times as fast: {gain.verdict}")
    share = 1 / most.value
    print(f"   the convolution alone: {most} times as fast, so it takes {share:.0%} of the time")
    return gain, most


gains = {where: tell(where, speeds) for where, speeds in measured.items()}

# The blocks were not measured in turns, so their gains are compared by their intervals alone.
first, middle = (gains[where][0] for where in ("first", "middle"))
more = "first" if first.low > middle.high else "no difference"
more = "middle" if middle.low > first.high else more
results.compare_guess(5, more)

# %% jupyter={"source_hidden": true}
results.hand_in(
    "7",  # for the closing table
    *(
        (
            f"convolution, bias and ReLU merged, {where} block",
            "",
            Measured(*gain, "×"),
            f"{most.value:.2f}×: convolution alone",
            block_others,
        )
        for where, (gain, most) in gains.items()
    ),
)

# %% [markdown]
# Fusion does the same arithmetic. What it can save is the time beside the convolution: that in which bias and ReLU read
# from memory what was just written, and write it again. The smaller the convolution's share of the time, the more there
# is to gain.
#
# ### Exercise 5 · A layer and its normalisation, as one operation
#
# A trained network often begins by normalising its inputs: the mean is subtracted, and the rest is divided by the
# standard deviation. Somebody wrote it like this, with a dense layer behind it. What runs?


# %%
def layer_by_hand(x, mean, std, weights, bias):
    """Normalise the inputs, then a dense layer with ReLU."""
    normalised = (x - mean) / std
    return tf.maximum(tf.matmul(normalised, weights) + bias, 0.0, name="y")


X = rng.normal(5, 3, size=(2, 6))
MEAN, STD = rng.normal(5, 1, size=6), rng.uniform(1, 4, size=6)
WEIGHTS, OFFSETS = rng.normal(size=(6, 4)), rng.normal(size=4)
constants = {"mean": MEAN, "std": STD, "weights": WEIGHTS, "bias": OFFSETS}

by_hand = tf.Graph()
with by_hand.as_default():
    x = v1.placeholder(tf.float32, X.shape, name="x")
    result = layer_by_hand(
        x, *(tf.constant(value, tf.float32, name=name) for name, value in constants.items())
    )
show_rewrite(by_hand, result, {x: X}, "A normalised layer, as written by hand")

# %% [markdown]
# Grappler folds what depends on constants alone, and it merges only the patterns that it knows. The rest is up to you.
# Write `layer(x, mean, std, weights, bias)` so that it gives the same numbers and runs as **one** operation, not
# counting inputs and constants. Only `x` changes from run to run; the other four are constants in the graph.


# %%
def layer(x, mean, std, weights, bias):
    """Normalised inputs, a dense layer and ReLU, so that they run as one operation."""
    ### BEGIN SOLUTION
    scaled = weights / std[:, tf.newaxis]
    moved = bias - tf.linalg.matvec(scaled, mean, transpose_a=True)
    return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, scaled), moved))
    ### END SOLUTION


# %% tags=["nbval-check-output"]
layer = check(5, layer)

# %% [markdown]
# Whoever prepares a trained network for inference does this with each batch normalisation: its numbers are constants
# by then, and go into the weights of the layer before it.
#
# ### When fusion is not possible
#
# One thing always prevents fusion: asking for a result from the middle. The next cell runs the block of convolution,
# bias and ReLU again, and fetches the convolution's output as well.

# %%
after = what_ran(fusing, ["activation:0", "convolution:0"], {"images:0": IMAGES})
plots.show(
    graphs.draw(
        after,
        "With the convolution fetched too",
        marks=graphs.classify_rewrites(fusing.as_graph_def(), after),
    ),
    alt=graphs.describe(after),
)

# %% [markdown]
# A result inside a merged operation is never stored, so nobody can fetch it. If you fetch it, TensorFlow has to keep
# the operations apart. The same happens in a network that returns the outputs of its inner layers, for example to
# inspect them. That alone can make it slower.
#
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. Those that name an optional section are for whoever did it.
# The instructor's notebook has answers.
#
# 1. What is an operation, what is a tensor, and which of the two do you feed and fetch?
# 2. What are the two steps of a TensorFlow program, and what do you gain by keeping them apart?
# 3. How do constant, placeholder and variable differ? Which of them keeps its value after a run?
# 4. You fetch `y` without feeding a placeholder, and no error comes. How is that possible?
# 5. For which batches did the graph gain most over eager execution, and why?
# 6. A training run with `tf.function` gets slower as the number of different batch sizes grows. Why, and what do you
#    do?
# 7. Which loops become one operation in a graph, and which are unrolled?
# 8. For which graphs do you raise the inter-op threads, and for which the intra-op threads? *(section 4)*
# 9. Which of Grappler's rewrites change how much is computed, and which only change how it is computed? *(section 7)*
#
# **Open extension.** Grappler knows more rewrites than these. Describe graphs that you would simplify by hand, guess
# what runs, and look at it with `show_rewrite` of section 2: adding zero, *x* + *x* + *x*, two transpositions in a row,
# multiplying a convolution's output by a constant, a division by a constant. Find one rewrite that nobody around you
# has, and one that you expected and that Grappler does not make. Do the results stay the same to the last digit? There
# is no check.

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions, timing, what to expect, and what goes wrong.
#
# ### Answers
#
# 1. An operation is a node, a computation; a tensor is an edge, one of its outputs. You feed and fetch tensors.
#    Fetching an operation runs it and returns None, as with an initializer.
# 2. Define the graph, then run it. TensorFlow knows the whole graph before it computes the first number, so it can
#    prune, fold and fuse it, run it in parallel, place it on another device, save it, and differentiate it.
# 3. A constant's value is part of the graph. A placeholder's value comes with each run and is forgotten after it. The
#    session keeps a variable's value from run to run; only a variable keeps its value after a run. In TensorFlow 2, the
#    Python object keeps it.
# 4. The fetch does not depend on that placeholder: either the graph has no path between them, or you fed a tensor on
#    that path.
# 5. For small ones: the calls of operations from Python cost the same for each batch, and the arithmetic grows with it.
#    The column *saved* shows it.
# 6. Each new length is a new shape, so the function is traced again. Use `input_signature` with `None`,
#    `reduce_retracing=True`, or padding to a few lengths. A shorter last batch is a frequent cause:
#    `drop_remainder=True`.
# 7. Those over a tensor, by AutoGraph; those over anything of Python's are unrolled while tracing. The first can depend
#    on data; the second gives Grappler more to work with.
# 8. Inter-op: independent branches of small operations, as in section 4. Intra-op: a chain of large ones. Two branches
#    are also needed when a graph has an input pipeline next to the computation. Ask why not both: when there are more
#    threads than cores, they take turns and evict each other's data from the cache.
# 9. Folding, pruning and removing duplicates leave less to compute. Fusion computes the same, with less memory traffic
#    and fewer operations to start.
#
# **Timing** The core, graphs in less than 40 minutes: sections 1 and 2 take 14 with exercise 1, section 5 takes 15 with
# exercise 4, section 6 takes 5; then 3 for the questions. Sections 3, 4 and 7 are optional and take 10 to 15 each. Of
# these, skip section 3 first. Exercise 4 is the hardest: whoever has no right answer after ten minutes should read the
# second hint.
#
# **What to expect** In the stored run, on 2 cores of an Intel Xeon with AMX (oneDNN on), two inter-op threads made four
# branches of small products 1.7 times as fast (1.5 to 2.0). Intra-op threads made them 2% slower (1 to 3%): a 256 × 256
# product is hardly split. For the large ones, intra-op threads and inter-op threads each made the run 1.9 times as
# fast, and both together gained 1% at most over intra-op threads alone. With many cores, the dashed line is at 4,
# because there are only four branches. A training step as a graph was 3.7 times as fast as eagerly (3.3 to 4.0) for a
# batch of 32, 2.5 times for 256 and 1.8 times for 2048; it saved 2.5 to 4.2 ms for each. A call that traces took 81
# times as long as one that doesn't (78 to 85). The merged first block was 1.3 times as fast (1.3 to 1.4), the middle
# one as fast as before, within chance (0.98 to 1.07). On 2 cores of an AMD EPYC (Zen 4), the step as a graph was 5.2,
# 3.4 and 1.7 times as fast. With Eigen instead of oneDNN, on a machine of 2 cores with AVX-512, the merged blocks were
# 1.2 to 2 times and 1.1 times as fast.
#
# **What goes wrong** `tf.placeholder() is not compatible with eager execution` means that a line is outside the
# `with graph.as_default():` block. In exercise 4, a Python counter inside the graph stays at its first value, and one
# that is passed in as a Python number is traced again for each value; `tf.Variable` inside the traced function is
# refused by TensorFlow from the second trace on. In exercise 5, people write `tf.nn.relu` and stop: ask what `x - mean`
# needs `x` for, and let them write the formula on paper.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Define first, run later. An operation is a node, a tensor is an edge, and a session runs what the fetches need.
# - Describe the computation before the loop, never in it.
# - A graph saves the calls of single operations from Python. The smaller the operations, the more that matters.
# - `tf.function` traces for each shape, type and Python number. Python code in it runs during tracing, and never again.
# - Loops and conditions on tensors become operations; those on Python's values are gone when the graph runs.
# - Inter-op threads are for branches, intra-op threads for large operations. The first session in a process decides how
#   many there are.
# - What runs is not what you wrote. Look at the graph that ran before you ask why it is fast or slow.
#
# The closing table shows what was published, what you measured, and the most that the machine could do:

# %% jupyter={"source_hidden": true}
published = {BATCHES[0]: "5.2×: 100 products of 10 × 10 matrices"}
results.table(
    "what it brings or costs",
    [
        *results.handed_in("4", ("all threads of a kind instead of one, branches", "")),
        *(
            (
                f"a training step as a graph instead of eagerly, batch {batch}",
                published.get(batch, ""),
                Measured(*gain, "×"),
                "",
                step_others,
            )
            for batch, gain in step_gains.items()
        ),
        (
            f"time of a call that traces {LAYERS} layers, against one that doesn't",
            "",
            Measured(*tracing_cost, "×", digits=0),
            "1: traced once",
            tracing_others,
        ),
        *results.handed_in("7", ("convolution, bias and ReLU merged", "")),
    ],
)

# %% [markdown]
# Published: TensorFlow's guide [Introduction to graphs and
# tf.function](https://www.tensorflow.org/guide/intro_to_graphs), 4.1 s against 0.8 s.
#
# Where you are on the way from this machine's default to the fastest, over all labs:

# %%
ladder.show(results)

# %% [markdown]
# Next: [lab 02](02_onednn_mnist.ipynb) looks inside the merged operations: which library computes them, in which
# layout, and with which instructions.
