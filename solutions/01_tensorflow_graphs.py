# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 01 · TensorFlow graphs
#
# **You will learn** how to build a computation as a graph, run parts of it, and run two of its branches at the same
# time. Then you follow the same graph to today's TensorFlow: where `tf.function` hides it, what it costs to make one,
# and what TensorFlow rewrites in it before it runs.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which looks at the operations that a rewritten graph hands to oneDNN; lab 03, which changes
# the two thread settings of section 4 for ResNet-50; and lab 07, whose training step is a `tf.function`.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import: TensorFlow then prints fewer messages

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from labkit.display import graphs, plots
from labkit.display.measured import Measured
from labkit.exercises import open_lab
from labkit.mpi import run_ranks
from labkit.system import load
from labkit.system.statistics import ratio, ratios

check, results, machine, work = open_lab("01", globals())
cores = machine.usable_cores
v1 = tf.compat.v1  # TensorFlow's interface from before version 2; it still works

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
LOOP_STEPS = 30 if QUICK else 300  # section 2
BRANCH_SIZES = {"small": (256, 8)}  # section 4: the products' rows, and how many products a branch has
BRANCH_SIZES |= {} if QUICK else {"large": (1024, 2)}
BRANCH_THREADS = (1,) if QUICK else (1, cores)  # intra-op
BRANCH_ROUNDS = 2 if QUICK else 8
TRACED_CALLS = 5 if QUICK else 20  # section 5
BLOCK_ROUNDS = 3 if QUICK else 25  # section 6

# %% [markdown]
# If you see lines in red above, they are TensorFlow's notice that oneDNN is on. Lab 02 is about that.
#
# ## 1 · Define: a graph is a description
#
# Multiply two numbers in Python, and you get a number at once. TensorFlow was built differently: you first **describe**
# the computation, and run it later.
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
plots.show(graphs.draw(graph.as_graph_def(), "y = slope · x + offset"), alt=graphs.describe(graph.as_graph_def()))

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
# Write `make_graph()`. It makes a new graph for *d* = (*a* + *b*) · (*b* − 2), where *a* and *b* are placeholders of
# type `tf.float32`, for numbers or arrays of any shape. Return three things:
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
plots.show(graphs.draw(built.as_graph_def(), "d = (a + b) · (b − 2)"), alt=graphs.describe(built.as_graph_def()))

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
    print("d =", session.run(d, feed_dict={feeds["a"]: [1.0, 2.0, 3.0], feeds["b"]: [4.0, 5.0, 6.0]}))

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
        said = error.message.partition("Node: ")[2] or error.message  # what follows the traceback of the graph
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
        print("a throw and its double, in one run: {} and {}; in two runs: {} and {}".format(*once, *apart))
    print("the broken operation:", attempt(session, broken))

# %% [markdown]
# The last operation divides by zero. It was in the graph all the time, and did no harm until you fetched it. **A
# session runs what the fetches need, and nothing else.** This is called [**pruning**](../docs/glossary.md#pruning).
# Here is what ran for `double`.

# %% jupyter={"source_hidden": true}
left_out = dict.fromkeys(["broken", "broken/y"], graphs.PRUNED)
picture = graphs.draw(dice.as_graph_def(), "To fetch double, broken need not run", marks=left_out)
plots.show(picture, alt=graphs.describe(dice.as_graph_def()) + ". The operation broken is marked as not needed.")

# %% [markdown]
# ## 3 · The default graph, and how it grows
#
# You never told `tf.multiply` which graph it belongs to. It went into the **default graph**: the graph of the
# `with graph.as_default():` block that you are in. Outside such a block, TensorFlow 1 used one graph for the whole
# program. That is convenient, and it has a trap. The loop below trains nothing; it only doubles a number in each step.


# %%
def watch(loop_body):
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


with load.watch("section 3"):
    grown = {"described in the loop": watch(leaky), "described before it": watch(tight)}

# %% jupyter={"source_hidden": true}
figure, (left, right) = plt.subplots(1, 2)
for (name, (operations, times)), colour, style in zip(grown.items(), plots.PALETTE, ("-", "--")):
    left.plot(operations, style, color=colour, marker="", label=name)
    right.plot(times[1:], style, color=colour, marker="", label=name)
left.set(xlabel="step", ylabel="operations in the graph")
right.set(xlabel="step", ylabel="ms a step", yscale="log")
left.legend()
figure.suptitle("The same loop, described in it or before it")
last = "; ".join(
    f"{name}: {ops[-1]} operations, {times[-1]:.2f} ms in the last step" for name, (ops, times) in grown.items()
)
plots.show(figure, alt=f"Operations in the graph, and milliseconds a step, against the step, of two loops. {last}.")

# %%
medians = {name: np.median(times[-LOOP_STEPS // 3 :]) for name, (_, times) in grown.items()}
slow, fast = medians.values()
print(f"In the last third of the steps, describing in the loop takes {slow / fast:.0f} times as long a step.")

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
    """Fit y = w x, a step for each batch (x, y), from w = 0; return the graph and the last w."""
    graph = tf.Graph()
    with graph.as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=0.0)
        session.run(w.initializer)
        for x, y in batches:
            loss = tf.reduce_mean((w * tf.constant(x, tf.float32) - tf.constant(y, tf.float32)) ** 2)
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
    """Fit y = w x, a step for each batch (x, y), from w = 0; return the graph and the last w."""
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
# (In builds where oneDNN uses [**OpenMP**](../docs/glossary.md#openmp), `OMP_NUM_THREADS` takes the place of the first.
# Lab 03 has such a build.)
#
# ```python
# config = v1.ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=4)
# with v1.Session(graph=graph, config=config) as session: …
# ```
#
# There is a trap. The threads belong to the *process*: the first session creates them, and later sessions share them,
# whatever their own config says. For inter-op threads, `use_per_session_threads=True` gives a session its own pool. For
# intra-op threads there is no such option: to change their number, start another process.
#
# ### Exercise 3 · Run with a given number of threads
#
# Write `run(graph, fetches, feeds, inter_op)`. It opens a session on `graph` with exactly `inter_op` inter-op threads
# of its own, runs **once**, and returns what was fetched. `fetches` may be a tensor, a list or a dictionary. `feeds` is
# a dictionary, which may be empty.
#
# The check can tell how many operations run at the same time: it runs a graph whose branches wait for each other.


# %%
def run(graph, fetches, feeds, inter_op):
    """Return the fetches of one run of the graph on inter_op threads of its own."""
    ### BEGIN SOLUTION
    config = v1.ConfigProto(inter_op_parallelism_threads=inter_op, use_per_session_threads=True)
    with v1.Session(graph=graph, config=config) as session:
        return session.run(fetches, feeds)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
run = check(3, run)

# %% [markdown]
# ### What do the threads gain?
#
# Here are four branches. Each is a chain of matrix products, and no branch needs the results of another. The script
# times them with each number of inter-op threads, in a session of its own. TensorFlow also records when each operation
# began and ended: `FULL_TRACE` puts this into the run's metadata.

# %%
# %%writefile work/branches.py
"""Time independent branches: python work/branches.py --intra 1 --inter 1 2 --size 256 --length 8 --out times.json"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def branches(count, length, size):
    """Describe chains of matrix products that need not wait for each other; return graph, input and sum."""
    rng = np.random.default_rng(0)
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [size, size], name="x")
        ends = []
        for branch in range(count):
            # Each branch has weights of its own. Equal branches would be computed only once: see section 6.
            weights = tf.constant(rng.normal(size=(size, size)) / np.sqrt(size), tf.float32)
            y = x
            for _ in range(length):
                y = tf.matmul(y, weights, name=f"branch_{branch}/product")
            ends.append(y)
        return graph, x, tf.add_n(ends)


def clock(session, total, feeds, runs):
    """Return the milliseconds of each run."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(total, feeds)
        times.append(1000 * (time.perf_counter() - start))
    return times


def trace(session, total, feeds):
    """Return branch, start and end in ms of each product, from the fastest (least disturbed) of five runs."""
    traced = []
    for _ in range(5):
        metadata = v1.RunMetadata()
        session.run(total, feeds, v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), metadata)
        nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
        ran = []
        for node in nodes:
            if node.node_name.startswith("branch_"):
                ends = (node.all_start_micros + t for t in (node.op_start_rel_micros, node.op_end_rel_micros))
                ran.append((node.node_name.split("/")[0], *(end / 1000 for end in ends)))
        traced.append(sorted(ran, key=lambda product: product[1]))
    return min(traced, key=lambda ran: max(end for *_, end in ran) - ran[0][1])


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--intra", type=int, required=True)
parser.add_argument("--inter", type=int, nargs="+", required=True)
parser.add_argument("--branches", type=int, default=4)
parser.add_argument("--size", type=int, required=True, help="rows and columns of the matrices")
parser.add_argument("--length", type=int, required=True, help="products in a branch")
parser.add_argument("--rounds", type=int, default=8, help="of five runs each")
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()

graph, x, total = branches(args.branches, args.length, args.size)
feeds = {x: np.random.default_rng(1).normal(size=(args.size, args.size)).astype(np.float32)}
sessions = {}
for inter in args.inter:
    config = v1.ConfigProto(
        inter_op_parallelism_threads=inter, intra_op_parallelism_threads=args.intra, use_per_session_threads=True
    )
    sessions[inter] = v1.Session(graph=graph, config=config)
    clock(sessions[inter], total, feeds, 2)  # the first runs prepare the graph
times = {inter: [] for inter in sessions}
for _ in range(args.rounds):  # in turns, so that a disturbance affects all of them
    for inter, session in sessions.items():
        times[inter] += clock(session, total, feeds, 5)
measured = [
    {
        "inter": inter,
        "intra": args.intra,
        "ms": statistics.median(times[inter]),
        "rounds": [statistics.median(times[inter][start : start + 5]) for start in range(0, len(times[inter]), 5)],
        "ran": trace(session, total, feeds),
    }
    for inter, session in sessions.items()
]
for m in measured:
    print(f"{args.size} × {args.size}, inter-op {m['inter']}, intra-op {m['intra']}: {m['ms']:8.2f} ms")
args.out.write_text(json.dumps(measured))

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** There are small matrices, 256 × 256, and large ones, 1024 × 1024. For which do inter-op threads gain
# more, and for which intra-op threads?
#
# </div>
#
# Each line says how long one run takes. The cell takes about half a minute.

# %%
BRANCHES = 4
inters = sorted({1, 2, min(BRANCHES, cores)})
timed = {}
with load.watch("section 4") as branch_others:
    for case, (size, length) in BRANCH_SIZES.items():
        timed[case] = []
        for intra in BRANCH_THREADS:
            out = work / f"branches-{case}-{intra}.json"
            options = ("--size", size, "--length", length, "--branches", BRANCHES, "--out", out)
            options += ("--rounds", BRANCH_ROUNDS)
            # One process for each number of intra-op threads, with all the cores to use.
            branches = run_ranks(1, "work/branches.py", "--intra", intra, "--inter", *inters, *options, show=False)
            print("\n".join(line for line in branches.lines[0] if "inter-op" in line))
            timed[case] += json.loads(out.read_text())

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, len(timed), sharey=True, squeeze=False)
for axis, (case, measured) in zip(axes[0], timed.items()):
    one = next(m["ms"] for m in measured if m["inter"] == m["intra"] == 1)
    names = [f"inter {m['inter']}, intra {m['intra']}" for m in measured]
    bars = axis.barh(
        names,
        [one / m["ms"] for m in measured],
        color=[plots.BLUE if m["intra"] == 1 else plots.ORANGE for m in measured],
        hatch=["" if m["intra"] == 1 else "//" for m in measured],
    )
    axis.bar_label(bars, fmt="%.2f×", label_type="center", bbox={"facecolor": "white", "edgecolor": "none", "pad": 3})
    axis.axvline(min(BRANCHES, cores), color=plots.BLACK, linestyle="--", linewidth=1.5)
    axis.set(xlabel="speed-up over one thread", title=f"{case}: {BRANCH_SIZES[case][0]} × {BRANCH_SIZES[case][0]}")
    axis.set_xlim(0, 1.1 * max(min(BRANCHES, cores), *(bar.get_width() for bar in bars)))
    axis.grid(visible=False, axis="y")
axes[0, 0].invert_yaxis()
figure.suptitle(f"Four branches on {cores} cores; dashed: the most that branches can gain")
figures = "; ".join(
    f"{case}, inter {m['inter']}, intra {m['intra']}: {m['ms']:.1f} ms" for case, ms in timed.items() for m in ms
)
plots.show(figure, alt=f"Speed-up over one thread by inter-op and intra-op threads. {figures}.", keep=results)


# %%
def gain_in_words(more, one):
    """Return how many times as fast a run is with more threads than with one, and whether that is beyond chance."""
    # The median of each round. Runs of two processes were not in turns: then the interval is a little too narrow.
    gain = ratio(1 / np.array(more["rounds"]), 1 / np.array(one["rounds"]))
    return f"{gain} times as fast with {max(more['inter'], more['intra'])} threads: {gain.verdict}"


for case, measured in timed.items():
    one = next(m for m in measured if m["inter"] == m["intra"] == 1)
    # The largest number of threads of each kind, not the fastest: the best of several measurements is partly luck.
    most_inter = next(m for m in measured if m["inter"] == inters[-1] and m["intra"] == 1)
    most_intra = [m for m in measured if m["inter"] == 1][-1]
    print(f"{case} matrices, inter-op: {gain_in_words(most_inter, one)}")
    if most_intra is not one:  # as in a quick run, or on one core
        print(f"{case} matrices, intra-op: {gain_in_words(most_intra, one)}")

# %% [markdown]
# An operation that is too small to be split leaves intra-op threads idle: only another branch can then use the other
# cores. A large operation can use all cores by itself. A network is mostly one long chain of large operations. So
# people set intra-op threads to the number of cores, and inter-op threads to a small number, often 1 or 2. If you set
# both to the number of cores, there can be more threads than cores, and they take turns. Do the last bars lose speed
# because of that?
#
# Did branches really run at the same time? The next picture shows one run for each number of inter-op threads. Each bar
# is one product, and its letter is its branch. TensorFlow doesn't record which thread ran a product. A product that
# began before another had ended gets a row of its own.


# %% jupyter={"source_hidden": true}
def rows(ran):
    """Yield for each operation, (branch, start, end), the first row in which nothing else is running."""
    ends = []
    for _, start, end in ran:
        row = next((row for row, other in enumerate(ends) if other <= start), len(ends))
        ends[row : row + 1] = [end]
        yield row


COLOURS = (plots.SKY, plots.ORANGE, plots.PURPLE, plots.YELLOW)  # letters stay readable on these
one_thread = [m for m in timed["small"] if m["intra"] == 1]
figure, axes = plt.subplots(len(one_thread), 1, sharex=True, figsize=(9, 1.2 + 1.3 * len(one_thread)))
at_once = []
for axis, m in zip(axes, one_thread):
    begin = m["ran"][0][1]
    for (branch, start, end), row in zip(m["ran"], rows(m["ran"])):
        number = int(branch.removeprefix("branch_"))
        axis.barh(row, end - start, left=start - begin, color=COLOURS[number], edgecolor="white", height=0.8)
        axis.text((start + end) / 2 - begin, row, "ABCD"[number], ha="center", va="center", fontsize=10)
    at_once.append(1 + max(rows(m["ran"])))
    axis.set(title=f"{m['inter']} inter-op {'thread' if m['inter'] == 1 else 'threads'}", ylabel="at once")
    axis.set_yticks(range(at_once[-1]), range(1, at_once[-1] + 1))
    axis.grid(visible=False)
axes[-1].set(xlabel="ms since the first product began")
figure.suptitle("Which branch ran when")
plots.show(
    figure,
    alt="Bars in time for the products of four branches, A to D. "
    + "; ".join(f"inter-op threads: {m['inter']}, at most {n} at once" for m, n in zip(one_thread, at_once)),
    keep=results,
)

# %% jupyter={"source_hidden": true}
one = next(m["ms"] for m in timed["small"] if m["inter"] == m["intra"] == 1)
most = next(m for m in timed["small"] if m["inter"] == inters[-1] and m["intra"] == 1)
results.hand_in(
    "4",  # for the closing table
    (
        "thread settings. Published: what a tuner found for whole networks, TensorFlow with Eigen and with MKL. "
        f"Here: {inters[-1]} inter-op threads instead of 1, for {BRANCHES} branches of small products",
        "2–123% faster; 1.5–28% faster",
        Measured(one / most["ms"], unit="×"),
        f"{min(BRANCHES, cores)}×: branches or cores",
        branch_others,
    ),
)

# %% [markdown]
# ## 5 · Today: `tf.function`
#
# Since TensorFlow 2, operations run immediately, as Python's do. This is **eager execution**. It is easier to debug,
# but there is no graph, and none of a graph's advantages. `tf.function` brings the graph back. It runs your Python
# function **once**, with placeholders for the arguments, and records which operations the function calls. This is
# [**tracing**](../docs/glossary.md#tracing). Later calls run the recorded graph and don't run your Python code any
# more. You still define first and run later, but TensorFlow decides when.


# %%
@tf.function
def line(x, slope):
    print(f"   tracing: x is {x.dtype.name}{x.shape}, slope is {slope}")  # Python: it runs while tracing only
    return slope * x + 1.0


for call in (1, 2, 3):
    print(f"call {call}: {line(tf.constant([1.0, 2.0]), tf.constant(2.0))}")

# %% [markdown]
# There is one `print` for three calls. When does TensorFlow trace **again**? This is called
# [**retracing**](../docs/glossary.md#retracing).
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which of these calls are traced? Guess for each before you run the cell.
#
# </div>

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
fresh = tf.function(line.python_function)
print("the first call")
fresh(tf.constant([1.0, 2.0]), two)
for what, (numbers, factor) in arguments.items():
    before = fresh.experimental_get_tracing_count()
    fresh(numbers, factor)
    print(f"{what:32} {'traced' if fresh.experimental_get_tracing_count() > before else '-'}")

# %% [markdown]
# In a program, TensorFlow prints long warnings about a function that it traces so often. This cell turned the warnings
# off, to keep the list readable.
#
# TensorFlow records a graph for one shape and one type. Other shapes and types need another graph. A Python number is
# not data: it becomes a constant, part of the graph, so **each new number is a new graph**. If you pass a learning rate
# or a step number as a Python number, each new value causes a new trace.
#
# What does that cost? The next function is a little longer, so that there is something to trace.

# %%
LAYERS = 20


@tf.function
def network(x, scale):
    for _ in range(LAYERS):  # a Python loop: it is unrolled into the graph
        x = tf.tanh(x * scale)
    return x


numbers = tf.ones([100])
network(numbers, tf.constant(1.0))


def milliseconds(arguments):
    """Return the median time of a call."""
    times = []
    for argument in arguments:
        start = time.perf_counter()
        network(numbers, argument)
        times.append(1000 * (time.perf_counter() - start))
    return float(np.median(times))


with load.watch("section 5") as tracing_others:
    tracing = milliseconds(np.random.default_rng().random(TRACED_CALLS).tolist())  # numbers never seen before
    calling = milliseconds([tf.constant(value) for value in np.linspace(1, 2, 200, dtype=np.float32)])
print(
    f"a call that traces: {tracing:.1f} ms; one that doesn't: {calling:.3f} ms; {tracing / calling:.0f} times as long"
)

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

relaxed = tf.function(lambda x: traces.append(f"x has shape {x.shape}") or 2 * x, reduce_retracing=True)
traces.clear()
for length in (2, 3, 4, 5):
    relaxed(tf.ones([length]))
print(traces)

# %% [markdown]
# `reduce_retracing=True` finds out by itself that the length varies, after the first new length.
#
# ### The graph contains only what was traced
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
    return x + rng.random(), x + tf.random.uniform([])  # NumPy's random number, and TensorFlow's


for _ in range(3):
    by_numpy, by_tensorflow = noisy(tf.constant(0.0))
    print(f"NumPy's {by_numpy:.4f}   TensorFlow's {by_tensorflow:.4f}")
print(f"calls counted: {calls}")

# %% [markdown]
# NumPy's number was drawn once, and is now a constant in the graph. The same happens to a Python counter, a list that
# you append to, a file that you read, and `time.time()`. There is no error message. Keep state in a `tf.Variable`, and
# use `tf.random` for random numbers.
#
# ### Exercise 4 · Trace once
#
# A program calls a function with batches of every length, and with a factor that changes in each step. Write
# `traced_once(function)`. It takes a function of `(x, factor)` and returns one that does the same as a graph, and is
# **traced exactly once**, whatever you call it with. `x` is a list of numbers, or an array or a tensor of float32, of
# any length. `factor` is a Python number or a tensor of float32.


# %%
def traced_once(function):
    """Return function(x, factor) as a graph that serves any length of x and any factor."""
    ### BEGIN SOLUTION
    signature = [tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)]
    return tf.function(function, input_signature=signature)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
traced_once = check(4, traced_once)

# %% [markdown]
# ### The graph inside
#
# A [**concrete function**](../docs/glossary.md#concrete-function) is one of the graphs that a `tf.function` holds. Ask
# for the one that fits some arguments, and you get a graph like the one that you built by hand in section 1, with
# placeholders for the arguments.

# %%
concrete = tf.function(lambda x, factor: factor * x + 1.0).get_concrete_function(tf.ones([3]), tf.constant(2.0))
plots.show(
    graphs.draw(concrete.graph.as_graph_def(), "factor · x + 1, traced"),
    alt=graphs.describe(concrete.graph.as_graph_def()),
)

# %% [markdown]
# ## 6 · What runs is not what you wrote
#
# TensorFlow knows the whole graph before it runs, so it can improve it. [**Grappler**](../docs/glossary.md#grappler),
# TensorFlow's graph optimiser, does this. You can look at the result: on request, a run reports the graph that it
# really ran, in `partition_graphs` of its metadata.
#
# (Grappler skips graphs that are too small to be worth the effort. `min_graph_nodes = -1` makes it take any graph.)


# %%
def what_ran(graph, fetch, feeds):
    """Run a graph and return the one that really ran, as a GraphDef."""
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    metadata = v1.RunMetadata()
    with v1.Session(graph=graph, config=config) as session:
        session.run(fetch, feeds, v1.RunOptions(output_partition_graphs=True), metadata)
    return metadata.partition_graphs[0]


def show_rewrite(graph, fetch, feeds, title, keep=None):
    """Draw a graph as it was written and as it ran."""
    before, after = graph.as_graph_def(), what_ran(graph, fetch, feeds)
    alt = f"As written: {graphs.describe(before)}. As it runs: {graphs.describe(after)}."
    plots.show(graphs.compare(before, after, title), alt=alt, keep=keep)


# %% [markdown]
# **Constant folding and pruning.** A part of the graph that is the same in each run can be computed beforehand: that is
# [**constant folding**](../docs/glossary.md#constant-folding). The two sides of the picture show the same graph, before
# and after.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What does this graph still have to compute when *x* comes?
#
# </div>

# %%
folding = tf.Graph()
with folding.as_default():
    number = v1.placeholder(tf.float32, [None], name="x")
    product = tf.multiply(tf.constant(2.0, name="two"), tf.constant(3.0, name="three"), name="product")
    root = tf.sqrt(product, name="root")
    result = tf.multiply(number, root, name="y")
    never = tf.exp(result, name="never_fetched")
show_rewrite(folding, result, {number: [1.0, 2.0]}, "Computed beforehand, and left out")

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
BIAS = rng.normal(size=8).astype(np.float32)  # TensorFlow would fold zeros away and have nothing to merge


@tf.function(input_signature=[tf.TensorSpec(IMAGES.shape, tf.float32, name="images")])
def conv_block(images):
    convolved = tf.nn.conv2d(images, tf.constant(KERNEL, name="kernel"), 1, "SAME", name="convolution")
    return tf.nn.relu(tf.nn.bias_add(convolved, tf.constant(BIAS, name="bias"), name="with_bias"), name="activation")


def as_graph(function):
    """Return a tf.function's graph as one that a Session can run."""
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(function.get_concrete_function().graph.as_graph_def(), name="")
    return graph


fusing = as_graph(conv_block)
show_rewrite(fusing, "activation:0", {"images:0": IMAGES}, "Three operations merged into one", keep=results)

# %% [markdown]
# The orange box is one operation, and its second line says what is in it. Its name says which library does the work:
# `_MklNative…` is oneDNN; `_Fused…` alone is Eigen, TensorFlow's own library. The block was a `tf.function`. We took
# its graph out to look at it, but Grappler also optimises it when you call it as a function.
#
# Is fusion worth anything? The next cell times two blocks, with Grappler and without. One is like the first block of a
# network: it reads few channels and writes large images. The other is like a block from the middle, with many channels.
# Beside them it times the convolution alone, which a merged block still has to do.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which of the two blocks gains more?
#
# </div>


# %%
def block_speeds(images, filters, rounds=BLOCK_ROUNDS):
    """Return runs a second, round by round: the operations apart, merged, and the convolution alone."""
    block = tf.Graph()
    with block.as_default():
        x = v1.placeholder(tf.float32, images)
        kernel = tf.constant(rng.normal(size=(3, 3, images[-1], filters)), tf.float32)
        convolved = tf.nn.conv2d(x, kernel, 1, "SAME")
        y = tf.nn.relu(tf.nn.bias_add(convolved, tf.constant(rng.normal(size=filters), tf.float32)))
    runs, speeds = {}, {"apart": [], "merged": [], "convolution alone": []}
    for name, fetch in zip(speeds, (y, y, convolved)):
        config = v1.ConfigProto()
        config.graph_options.rewrite_options.min_graph_nodes = -1
        config.graph_options.rewrite_options.disable_meta_optimizer = name == "apart"
        runs[name] = v1.Session(graph=block, config=config), fetch.op  # an operation's result is not copied to NumPy
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


def tell(where, speeds):
    """Print what merging gains, and the most that it could; return both, as times as fast as the operations apart."""
    times_as_fast = ratios(speeds, "apart")
    gain, most = times_as_fast["merged"], times_as_fast["convolution alone"]
    print(f"{where}: merged {gain} times as fast: {gain.verdict}; the convolution alone {most} times as fast")
    return gain, most


gains = {}
shapes = {"first block": ((16, 112, 112, 3), 32), "middle block": ((16, 56, 56, 64), 64)}
with load.watch("section 6") as block_others:
    measured = {where: block_speeds(*shape) for where, shape in shapes.items()}
for where, speeds in measured.items():
    gains[where] = tell(where, speeds)

# %% jupyter={"source_hidden": true}
results.hand_in(
    "6",  # for the closing table
    *(
        (
            f"convolution, bias and ReLU merged, {where}",
            "",
            Measured(*gain, "×"),
            f"{most.value:.2f}×: convolution alone",
            block_others,
        )
        for where, (gain, most) in gains.items()
    ),
)

# %% [markdown]
# Fusion saves memory traffic, not arithmetic. Where the convolution itself takes most of the time, there is little to
# gain. Where the convolution is quick, you mostly wait for memory.
#
# ### Exercise 5 · One operation
#
# Somebody wrote the block like this. It gives the same numbers. What runs?


# %%
def block_by_hand(images, kernel, bias):
    """Convolution, bias, and negative numbers set to zero."""
    convolved = tf.nn.conv2d(images, kernel, 1, "SAME", name="convolution")
    with_bias = tf.add(convolved, tf.reshape(bias, [1, 1, 1, -1]), name="with_bias")
    return tf.maximum(with_bias, 0.0, name="y")


by_hand = tf.Graph()
with by_hand.as_default():
    images = v1.placeholder(tf.float32, IMAGES.shape, name="images")
    result = block_by_hand(images, tf.constant(KERNEL, name="kernel"), tf.constant(BIAS, name="bias"))
show_rewrite(by_hand, result, {images: IMAGES}, "The same numbers, written differently")

# %% [markdown]
# Grappler merges only the patterns that it knows, and it recognises them by their operations. Write
# `block(images, kernel, bias)` so that it gives the same numbers and runs as **one** operation, not counting images,
# kernel and bias.


# %%
def block(images, kernel, bias):
    """Convolution (stride 1, padding SAME), bias and ReLU, so that they run as one operation."""
    ### BEGIN SOLUTION
    convolved = tf.nn.conv2d(images, kernel, 1, "SAME")
    return tf.nn.relu(tf.nn.bias_add(convolved, bias))
    ### END SOLUTION


# %% tags=["nbval-check-output"]
block = check(5, block)

# %% [markdown]
# ### When fusion is not possible
#
# One thing always prevents fusion: asking for a result from the middle. The next cell runs the same graph again, and
# fetches the convolution's output as well.

# %%
after = what_ran(fusing, ["activation:0", "convolution:0"], {"images:0": IMAGES})
plots.show(
    graphs.draw(
        after, "With the convolution fetched too", marks=graphs.classify_rewrites(fusing.as_graph_def(), after)
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
# 5. For which graphs do you raise the inter-op threads, and for which the intra-op threads? *(section 4)*
# 6. A training run with `tf.function` gets slower, the more different batch lengths there are. Why, and what do you do?
# 7. Which of Grappler's rewrites change how much is computed, and which only change how it is computed? *(section 6)*
#
# **Open extension.** Grappler knows more rewrites than these. Describe graphs that you would simplify by hand, guess
# what runs, and look at it with `show_rewrite` of section 6: adding zero, *x* + *x* + *x*, two transpositions in a row,
# a product with a constant behind a convolution, a division by a constant. Find one rewrite that nobody around you has,
# and one that you expected and that doesn't come. Do the results stay the same to the last digit? There is no check.

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
# 5. Inter-op: independent branches of small operations, as in section 4. Intra-op: a chain of large ones. Two branches
#    are also needed when a graph has an input pipeline next to the computation. Ask why not both: when there are more
#    threads than cores, they take turns and evict each other's data from the cache.
# 6. Each new length is a new shape, so the function is traced again. Use `input_signature` with `None`,
#    `reduce_retracing=True`, or padding to a few lengths. A shorter last batch is a frequent cause:
#    `drop_remainder=True`.
# 7. Folding, pruning and removing duplicates leave less to compute. Fusion computes the same, with less memory traffic
#    and fewer operations to start.
#
# **Timing** The core, graphs in 25 minutes: sections 1 and 2 take 13 with exercise 1, section 5 takes 12 with exercise
# 4; then 3 for the questions. Sections 3, 4 and 6 are optional and take 10 to 12 each. Of these, skip exercise 3 first:
# its trap matters, but its code doesn't come back.
#
# **What to expect** On a 2-core machine (AVX-512, oneDNN on), two inter-op threads made four branches of small products
# 1.8 to 1.9 times as fast. Intra-op threads made no difference to them: a 256 × 256 product was not split. For the
# large ones, either kind made the run 1.7 to 2 times as fast, and both together no more than that. With many cores, the
# dashed line is at 4, because there are only four branches. A call that traces took 70 to 130 times as long as one that
# doesn't. The merged first block was 1.2 to 1.3 times as fast, the middle one about as fast as before (1.05 times, if
# at all); with Eigen instead of oneDNN, 1.2 to 2 times and 1.1.
#
# **What goes wrong** `tf.placeholder() is not compatible with eager execution` means that a line is outside the
# `with graph.as_default():` block. In exercise 3, a config without `use_per_session_threads` may pass one case and fail
# the other, depending on what ran before in the kernel. That is the trap, not a fault of the check. On machines without
# oneDNN, or with `TF_ENABLE_ONEDNN_OPTS=0`, `convolution + bias` is not merged in exercise 5, but `tf.nn.bias_add` is;
# with oneDNN, both are merged.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Define first, run later. An operation is a node, a tensor is an edge, and a session runs what the fetches need.
# - Describe the computation before the loop, never in it.
# - Inter-op threads are for branches, intra-op threads for large operations. The first session in a process decides how
#   many there are.
# - `tf.function` traces for each shape, type and Python number. Python code in it runs during tracing, and never again.
# - What runs is not what you wrote. Look at the graph that ran before you ask why it is fast or slow.
#
# The closing table shows what was published, what you measured, and the most that the machine could do:

# %% jupyter={"source_hidden": true}
results.table(
    "what it brings or costs",
    [
        *results.handed_in("4", ("thread settings", "2–123% faster; 1.5–28% faster")),
        (
            f"time of a call that traces {LAYERS} layers, against one that doesn't",
            "",
            Measured(tracing / calling, unit="×", digits=0),
            "1: traced once",
            tracing_others,
        ),
        *results.handed_in("6", ("convolution, bias and ReLU merged", "")),
    ],
)

# %% [markdown]
# Published: TensorTuner, [Hasabnis 2018](https://arxiv.org/abs/1812.01665). Next: lab 02 looks inside the merged
# operations: which library computes them, in which layout, and with which instructions.
