# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: build graphs, run them, and see TensorFlow rewrite them
#     needs: [ISA, memory, TensorFlow, MPI]
#     better_with: [cores]
# ---

# %% [markdown]
# # 01 · TensorFlow graphs
#
# **You will learn** how TensorFlow describes a computation as a graph, and how to run the parts that you ask for. Then
# you follow the same graph to today's TensorFlow: how much faster a training step is as a `tf.function`, what tracing
# costs, and what happens to the Python code inside. Optional sections cover threads, and what TensorFlow rewrites in a
# graph before it runs.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which looks at the operations that a rewritten graph passes to oneDNN; lab 03, which sets the
# threads of section 3 for ResNet-50; and lab 07, whose training step is a `tf.function`.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("01", globals())

# %%
import collections
import functools
import json
import sys
import time

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from labkit.display import graphs, ladder, plots
from labkit.display.consistency import Limit, Prediction, repeated
from labkit.display.measured import Measured
from labkit.exercises.lab01 import without_warnings
from labkit.mpi import run_ranks
from labkit.system import load
from labkit.system.statistics import interval, ratio, ratios

cores = machine.usable_cores
v1 = tf.compat.v1  # TensorFlow's interface from before version 2; it still works

# %%
# Sizes of the measurements: change them here. Before each `else` stands the size of a small run.
BRANCH_SIZES = {"small": (256, 8)}  # section 3: rows of the matrices, matmuls per branch
BRANCH_SIZES |= {} if QUICK else {"large": (1024, 2)}
BRANCH_THREADS = (1,) if QUICK else sorted({1, cores})  # intra-op
BRANCH_ROUNDS = 2 if QUICK else 6
BATCHES = (32,) if QUICK else (32, 256, 2048)  # section 4
STEP_ROUNDS = 3 if QUICK else 10
TRACED_ROUNDS = 3 if QUICK else 8
BLOCK_ROUNDS = 2 if QUICK else 8  # section 6


# %% jupyter={"source_hidden": true}
def summarise(what, gain):
    """Return a speed-up in one line: the ratio, its verdict, and the rounds that agree with it."""
    agree = gain.won if gain.faster else gain.rounds - gain.won
    rounds = f" in {agree} of {gain.rounds} rounds" if gain.significant else ""
    outliers = f" ({gain.outliers})" if gain.significant and gain.outliers else ""
    return f"{what}: {Measured(*gain, '×')}, {gain.verdict}{rounds}{outliers}"


def attempt(session, fetches, feed_dict=None):
    """Return the result of a run, or its error in one line."""
    try:
        return session.run(fetches, feed_dict)
    except tf.errors.OpError as error:
        # The traceback of the graph comes before "Node: ".
        text = error.message.partition("Node: ")[2] or error.message
        line = (text.splitlines()[1:2] or [text])[0]
        return f"{type(error).__name__}: {line.partition('. ')[0]}"


# %% [markdown]
# ## 1 · Define: a graph is a description {read 5, do 5}
#
# **Why graphs?** A framework that sees a whole computation before it runs can prepare it: drop what isn't needed,
# compute constants in advance, merge operations, run branches concurrently. So every framework can capture such a
# description: TensorFlow with `tf.function`, JAX with `jax.jit`, PyTorch with `torch.compile`.
#
# **Why sessions?** New programs don't need them. Sections 1 and 2 still use the old interface, `tf.compat.v1`, because
# it shows every part: you build the graph, say what goes in and what comes out, and look at what ran. Saved models,
# profiles and error messages use the same terms. Section 4 returns to today's interface.
#
# In Python, multiplying two numbers gives you a number at once. Here, you first **describe** the computation and run it
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

# %% [markdown]
# The description has three kinds of parts.
#
# - An [**operation**](../docs/glossary.md#operation) (`tf.Operation`) is a node of the graph: something to compute.
# - A [**tensor**](../docs/glossary.md#tensor) (`tf.Tensor`) is an edge: the data that flows from one operation to
#   others.
# - A [**graph**](../docs/glossary.md#graph) (`tf.Graph`) holds both.
#
# Numbers come from three sources, each of which is also an operation. A **constant** always gives the same value. A
# **placeholder** gets a new value for each run. A **variable** keeps its value between runs, as the weights of a
# network must.
#
# Here is a straight line, *y* = slope · *x* + offset.

# %%
graph = tf.Graph()
with graph.as_default():  # operations created in this block go into this graph
    x = v1.placeholder(tf.float32, name="x")
    slope = v1.get_variable("slope", initializer=2.0)
    offset = tf.constant(1.0, name="offset")
    scaled = tf.multiply(slope, x, name="scaled")
    y = tf.add(scaled, offset, name="y")

print(y)

# %% [markdown]
# This prints no number: `y` is the output of an operation that has not run yet. The picture shows the graph so far.
# Data flows downwards.

# %% jupyter={"source_hidden": true}
plots.show(
    graphs.draw(graph.as_graph_def(), "y = slope · x + offset"),
    alt=graphs.describe(graph.as_graph_def()),
)

# %% [markdown]
# A variable needs several operations. `VarHandleOp` is the place that holds its value, `ReadVariableOp` reads it, and
# `AssignVariableOp` stores the initial value when you run it.
#
# The picture omits some internal operations. The full list shows every operation with its type and its output tensors:
# `y:0` is output number 0 of the operation `y`.

# %% tags=["nbval-check-output"]
print(f"{'type':20} {'operation':40} tensors")
for operation in graph.get_operations():
    tensors = ", ".join(f"{tensor.name} {tensor.dtype.name}" for tensor in operation.outputs)
    print(f"{operation.type:20} {operation.name:40} {tensors or '-'}")

# %% [markdown]
# ### Exercise 1 · Build a graph
#
# Write `make_graph()`. It creates a new `tf.Graph` for *d* = (*a* + *b*) · (*b* − 2), where *a* and *b* are
# placeholders of dtype `tf.float32`, for numbers or arrays of any shape. Return three things:
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
# Look at the two branches. `a + b` and `b - 2` don't need each other's results. A line of Python doesn't show this; the
# graph does, so TensorFlow may run both at the same time. Section 3 tries it.
#
# ## 2 · Run: feed and fetch {read 4}
#
# A [**session**](../docs/glossary.md#session) (`tf.compat.v1.Session`) runs one graph. `session.run(fetches,
# feed_dict)` takes the tensors that you want, and values for the placeholders. What you **fetch** comes back as a NumPy
# array or a number.

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
# attempt() is session.run(), with errors in one line.
with v1.Session(graph=graph) as session:
    print("x = 3:             ", attempt(session, y, {x: 3.0}))
    session.run(slope.initializer)
    print("slope initialised: ", attempt(session, y, {x: 3.0}))
    print("x missing:         ", attempt(session, y))

# %% [markdown]
# A variable has no value until you run its **initializer** in this session. The graph only says how to make a value;
# the session holds it. A placeholder has no value until you feed one, and you feed it in each run.
#
# **You can feed any tensor**, not only placeholders. The value that you feed replaces the operation's output for this
# run, and TensorFlow ignores that operation's own inputs. **You can fetch several tensors** at once.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The next cell prints four lines. What will each of them show?
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
# Fetches can be lists and dictionaries, and the results come back in the same structure. One run computes each
# operation **once**, however many fetches need it. A random number shows this.

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
# The last operation divides by zero. It was in the graph all along, and did no harm until you fetched it. **A
# session runs what the fetches need, and nothing else.** This is called [**pruning**](../docs/glossary.md#pruning).
#
# You can see it: on request, a run reports the graph that really ran, in `partition_graphs` of its metadata.


# %%
def what_ran(graph, fetch, feeds=None):
    """Run a graph and return the one that really ran, as a GraphDef."""
    config = v1.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.min_graph_nodes = -1  # Grappler (section 6) skips small graphs otherwise
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
# One warning. Operations go into the **default graph**, here the graph of the `with` block. `number * 2.0` looks like a
# computation, but it adds operations. In a training loop, it makes the graph grow with each step: the results stay
# correct, but the steps get slower. So describe before the loop, and run inside it. After `graph.finalize()`, adding an
# operation is an error. Today's version of this bug is *retracing*, in section 4.

# %% [markdown]
# ## 3 · ConfigProto: two kinds of threads {read 6, do 7, wait 1.5, optional}
#
# A session takes its settings from a `ConfigProto`. Two of them control [**threads**](../docs/glossary.md#thread).
#
# - `intra_op_parallelism_threads` sets [**intra-op parallelism**](../docs/glossary.md#intra-op-parallelism): the number
#   of threads that compute **one** operation. A large matmul can be split among them.
# - `inter_op_parallelism_threads` sets [**inter-op parallelism**](../docs/glossary.md#inter-op-parallelism): the number
#   of operations that may run **at the same time**. That helps if the graph has branches.
#
# (In builds where oneDNN uses [**OpenMP**](../docs/glossary.md#openmp), `OMP_NUM_THREADS` replaces the first setting
# for oneDNN operations.)
#
# There is a trap. The threads belong to the *process*: the first session creates them, and later sessions share them,
# whatever their own config says. For inter-op threads, `use_per_session_threads=True` gives a session its own pool.
# Intra-op threads have no such option: to change their number, start another process.
#
# Here are four branches. Each is a chain of matmuls and needs no results from the others.

# %%
# %%writefile work/branches.py
"""Independent chains of matmuls, and sessions with a number of threads of each kind."""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def describe(count, length, size):
    """Describe independent chains; return the graph, its input and the sum of their ends."""
    rng = np.random.default_rng(0)
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [size, size], name="x")
        ends = []
        for branch in range(count):
            # Each branch has its own weights: equal branches would be computed once (section 6).
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
# The script that times them is folded. With `v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)`, a run also records
# when each operation started and ended.

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
parser.add_argument("--cases", nargs="+", required=True, help="name:rows:matmuls per branch")
parser.add_argument("--runs", type=int, default=7)
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()


def clock(session, total, feeds):
    """Return the milliseconds of a run."""
    start = time.perf_counter()
    session.run(total, feeds)
    return 1000 * (time.perf_counter() - start)


def trace(session, fetch, feeds):
    """Run once; return (branch, start, end) of each matmul, in ms, by start."""
    metadata = v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    session.run(fetch, feeds, options, metadata)
    ran = []
    for node in (node for device in metadata.step_stats.dev_stats for node in device.node_stats):
        if node.node_name.startswith("branch_"):
            offsets = (node.op_start_rel_micros, node.op_end_rel_micros)
            start, end = ((node.all_start_micros + offset) / 1000 for offset in offsets)
            ran.append((int(node.node_name.split("/")[0].removeprefix("branch_")), start, end))
    return sorted(ran, key=lambda matmul: matmul[1])


measured = []
for case in args.cases:
    name, size, length = case.split(":")
    graph, x, total = describe(args.branches, int(length), int(size))
    feeds = {x: np.random.default_rng(1).normal(size=x.shape).astype(np.float32)}
    sessions = {inter: open_session(graph, inter, args.intra) for inter in args.inter}
    times = {inter: [] for inter in sessions}
    for turn in range(args.runs + 2):  # alternately, so that a disturbance affects all of them
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
    1,
    "threads that help more, small matrices",
    ...,
    choices=("inter-op", "intra-op", "no difference"),
)

# %% [markdown]
# Each launch is a process of its own. The cell takes about a minute and a half.

# %%
BRANCHES = 4
inters = sorted({1, 2, min(BRANCHES, cores)})
cases = [f"{case}:{size}:{length}" for case, (size, length) in BRANCH_SIZES.items()]
launches = [intra for _ in range(BRANCH_ROUNDS) for intra in BRANCH_THREADS]
timed = []
with load.watch("section 3") as branch_others:
    for launch, intra in enumerate(launches, 1):
        print(f"launch {launch} of {len(launches)}, intra-op threads: {intra}", flush=True)
        out = work / "branches.json"
        threads = ("--intra", intra, "--inter", *inters)
        options = ("--branches", BRANCHES, "--cases", *cases, "--out", out)
        run_ranks(1, "work/time_branches.py", *threads, *options, show=False)
        timed += json.loads(out.read_text())


# %% jupyter={"source_hidden": true}
def thread_speeds(timed):
    """Return for each case and setting, (inter, intra), the runs per second, round by round."""
    speeds = {}
    for m in timed:
        setting = m["inter"], m["intra"]
        speeds.setdefault(m["case"], {}).setdefault(setting, []).append(1000 / m["ms"])
    return speeds


def report_threads(case, speeds):
    """Print each setting's speed-up over one thread, and what both kinds add to the better one."""
    gains = ratios(speeds, (1, 1))
    for (inter, intra), gain in gains.items():
        if (inter, intra) != (1, 1):
            print(summarise(f"{case}, {inter} inter-op, {intra} intra-op", gain))
    most_inter, most_intra = max(speeds)[0], max(intra for _, intra in speeds)
    if most_intra > 1:  # not in a small run, nor on one core
        alone = {"inter-op": (most_inter, 1), "intra-op": (1, most_intra)}
        better = max(alone, key=lambda kind: gains[alone[kind]].value)
        both = ratio(speeds[most_inter, most_intra], speeds[alone[better]])
        print(summarise(f"{case}, both kinds vs {better} alone, the better kind here", both))
    return gains


branch_speeds = thread_speeds(timed)
thread_gains = {case: report_threads(case, speeds) for case, speeds in branch_speeds.items()}

# %% jupyter={"source_hidden": true}
branch_limit = min(BRANCHES, cores)
figure, axes = plt.subplots(1, len(thread_gains), sharey=True, squeeze=False)
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
            bbox=dict(facecolor="white", edgecolor="none", pad=1),  # on top of the dashed line
        )
    axis.axvline(branch_limit, color=plots.BLACK, linestyle="--", linewidth=1.5)
    size = BRANCH_SIZES[case][0]
    axis.set(xlabel="speed-up over one thread (×)", title=f"{case}: {size} × {size}")
    axis.set_xlim(0, 1.15 * max(branch_limit, *(gain.high for gain in gains.values())))
    axis.margins(y=0.2)
names = [f"inter {inter}, intra {intra}" for inter, intra in thread_gains["small"]]
axes[0, 0].set_yticks(range(len(names)), names)
axes[0, 0].invert_yaxis()
figure.suptitle("Four branches by thread setting (dashed: the limit of inter-op threads)")
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
    settings = {
        "inter-op": ((inters[-1], 1), branch_limit, "branches or cores"),
        "intra-op": ((1, max(BRANCH_THREADS)), cores, "cores"),
    }
    for kind, (setting, factor, of) in settings.items():
        if setting != (1, 1):
            limit = Limit(
                Measured(factor, unit="×", digits=0, note=of),
                above="each core also brings its own cache",
            )
            name = f"all {kind} threads vs one, {BRANCHES} branches of {case} matmuls"
            rows.append((name, "", Measured(*gains[setting], "×"), limit, branch_others))
results.hand_in("3", *rows)  # for the closing table

if max(BRANCH_THREADS) > 1:
    helps_more = {}
    for case, of_case in branch_speeds.items():
        kinds = ratio(of_case[inters[-1], 1], of_case[1, max(BRANCH_THREADS)])
        print(summarise(f"{case}, inter-op alone vs intra-op alone", kinds))
        better = "inter-op" if kinds.faster else "intra-op"
        helps_more[case] = better if kinds.significant else "no difference"
    results.compare_guess(1, helps_more["small"])

# %% [markdown]
# An operation that is too small to split leaves intra-op threads idle, so only another branch can use the other cores.
# A large operation can use all cores by itself. A network is mostly one long chain of large operations. So people set
# intra-op threads to the number of cores, and inter-op threads to 1 or 2. Published: intra-op 56, inter-op 2,
# `OMP_NUM_THREADS` 56, for a server (F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019).
#
# With both kinds, there can be more threads than cores. The lines "both kinds vs … alone" show whether that costs
# anything.
#
# Did branches really run concurrently? The next picture shows one run for each number of inter-op threads: the fastest
# of those traced. Each bar is a matmul, and its letter is its branch. TensorFlow doesn't record which thread ran a
# matmul. A matmul that starts before another has ended gets a row of its own.


# %% jupyter={"source_hidden": true}
def rows_of(ran):
    """Yield for each (branch, start, end) the first row in which nothing else is running."""
    ends = []
    for _, start, end in ran:
        row = next((row for row, other in enumerate(ends) if other <= start), len(ends))
        ends[row : row + 1] = [end]
        yield row


def span(ran):
    """Return the time from the first start to the last end."""
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
axes[-1].set(xlabel="time since the first matmul started (ms)")
figure.supylabel("concurrent matmuls", fontsize=11)
figure.suptitle("Which branch ran when")
summary = (f"{inter} inter-op: at most {n} at once" for inter, n in zip(branch_traces, at_once))
plots.show(
    figure,
    alt=f"Bars in time for the matmuls of four branches, A to D. {'; '.join(summary)}.",
    keep=results,
    watched=[branch_others],
)

# %% [markdown]
# ### Exercise 2 · Read the trace
#
# A real network's trace has thousands of operations. Write `concurrency(ran)`. It takes a list of
# `(branch, start, end)`, with times in ms, in any order, and returns two numbers:
#
# - the **maximum** number of operations that ran at the same moment. One that starts exactly when another ends does not
#   overlap with it;
# - the **average** number from the first start to the last end. Moments in which nothing ran count as zero.


# %%
def concurrency(ran):
    """Return how many operations ran at once: the maximum, and the average."""
    ### BEGIN SOLUTION
    begin, finish = min(start for _, start, _ in ran), max(end for _, _, end in ran)
    average = sum(end - start for _, start, end in ran) / (finish - begin)
    most = max(sum(start <= moment < end for _, start, end in ran) for _, moment, _ in ran)
    return most, average
    ### END SOLUTION


# %% tags=["nbval-check-output"]
concurrency = check(2, concurrency)

# %% [markdown]
# If twice as many matmuls run at once and each takes as long as before, the run takes half the time. If each takes
# longer, they compete for something, such as caches or memory. The next cell predicts the
# speed-up from the average and the time per matmul, and compares it with the one measured without tracing.

# %%
print("inter-op threads   max at once   average   ms per matmul   predicted speed-up")
alone, predictions = None, []
for inter, ran in branch_traces.items():
    most_at_once, average = concurrency(ran)
    ms = np.mean([end - start for _, start, end in ran])
    alone = alone or (average, ms)
    predicted = (average / alone[0]) / (ms / alone[1])
    print(f"{inter:16} {most_at_once:13} {average:9.2f} {ms:15.3f} {predicted:19.2f}×")
    if inter > 1:
        speedup = Measured(*thread_gains["small"][inter, 1], "×")
        predictions.append(Prediction(f"small, {inter} inter-op threads", predicted, speedup))
print(*predictions, sep="\n")

# %% [markdown]
# ## 4 · Today: `tf.function` {read 7, do 8, wait 0.2}
#
# Since TensorFlow 2, operations run immediately, as Python's do. This is [**eager
# execution**](../docs/glossary.md#eager-execution). It is easier to debug, but there is no graph. `tf.function` brings
# the graph back. It runs your Python function **once**, with placeholders for the arguments, and records the operations
# that the function calls. This is [**tracing**](../docs/glossary.md#tracing). Later calls run the recorded graph and
# skip your Python code. You still define first and run later, but TensorFlow decides when.


# %%
@tf.function
def line(x, slope):
    # Python: it runs only while tracing.
    print(f"   tracing: x is {x.dtype.name}{x.shape}, slope is {slope}")
    return slope * x + 1.0


for call in (1, 2, 3):
    print(f"call {call}: {line(tf.constant([1.0, 2.0]), tf.constant(2.0))}")

# %% [markdown]
# Three calls, one `print`.
#
# ### How much faster is a graph?
#
# Here is one training step of a small network with two dense layers.

# %%
initial = np.random.default_rng(0)
shapes = ((784, 128), (128,), (128, 10), (10,))
weights = [tf.Variable(0.05 * initial.normal(size=shape), dtype=tf.float32) for shape in shapes]


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
# `tf.function(jit_compile=True)` compiles the graph with [XLA](https://openxla.org/xla), which merges operations and
# makes machine code for the shapes at hand. The lab times that, too.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** With a batch of 32 images, how much faster is this step as a `tf.function` than in eager execution?
# Write a number over the three dots. With 2,048 images, is the factor larger or smaller?
#
# </div>

# %%
results.guess(2, "a training step, graph vs eager, batch 32", ..., unit="×")

# %% [markdown]
# The next cell takes about five seconds.


# %%
def steps_per_second(step, images, labels, count=10):
    """Return the speed of a training step."""
    start = time.perf_counter()
    for _ in range(count):
        step(images, labels)
    return count / (time.perf_counter() - start)


step_speeds = {}
with load.watch("section 4") as step_others:
    for batch in BATCHES:
        print(f"batch {batch}: {STEP_ROUNDS} rounds", flush=True)
        images, labels = tf.random.normal([batch, 784]), tf.zeros([batch], tf.int32)
        methods = {
            "eager": training_step,
            "graph": tf.function(training_step),
            "graph, XLA": tf.function(training_step, jit_compile=True),
        }
        rounds = {method: [] for method in methods}
        for turn in range(STEP_ROUNDS + 1):  # alternately, so that a disturbance affects all
            for method, step in methods.items():
                speed = steps_per_second(step, images, labels)
                rounds[method] += [speed] if turn else []  # the first round traces and compiles
        step_speeds[batch] = rounds

# %%
step_gains = {batch: ratios(speeds, "eager") for batch, speeds in step_speeds.items()}
xla_gains = {
    batch: ratio(speeds["graph, XLA"], speeds["graph"]) for batch, speeds in step_speeds.items()
}
for batch, speeds in step_speeds.items():
    medians = ", ".join(
        f"{method} {1000 / np.median(speed):.2f} ms" for method, speed in speeds.items()
    )
    print(f"batch {batch}: {medians}")
    print(summarise("   graph vs eager", step_gains[batch]["graph"]))
    print(summarise("   XLA vs graph", xla_gains[batch]))
if len(BATCHES) > 1:
    ends = BATCHES[0], BATCHES[-1]
    at_first, at_last = (
        np.divide(step_speeds[batch]["graph"], step_speeds[batch]["eager"]) for batch in ends
    )
    change = ratio(at_last, at_first)
    grew = ("larger" if change.faster else "smaller") if change.significant else change.verdict
    print(f"factor at batch {ends[1]} vs batch {ends[0]}: {Measured(*change, '×')}, {grew}")

graph_gain = step_gains[BATCHES[0]]["graph"]
headline = Measured(*graph_gain, "×")
results.step("graph", headline, step_others, significant=graph_gain.significant)
results.compare_guess(2, headline)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
series = {"graph": (plots.BLUE, "o", -0.06), "graph, XLA": (plots.ORANGE, "s", 0.06)}
for method, (colour, marker, shift) in series.items():
    gains = [of_batch[method] for of_batch in step_gains.values()]
    values = np.array([gain.value for gain in gains])
    spread = [
        [gain.value - gain.low for gain in gains],
        [gain.high - gain.value for gain in gains],
    ]
    places = np.arange(len(gains)) + shift
    axis.errorbar(places, values, spread, color=colour, marker=marker, capsize=6, label=method)
    for place, value in zip(places, values):
        axis.annotate(
            f"{value:.2f}×",
            (place, value),
            xytext=(10, 6) if shift > 0 else (-10, -18),
            textcoords="offset points",
            ha="left" if shift > 0 else "right",
            bbox=dict(facecolor="white", edgecolor="none", pad=1),  # on top of the lines
        )
axis.axhline(1, color=plots.BLACK, linestyle="--", linewidth=1.5, marker="")
axis.set_xticks(range(len(BATCHES)), BATCHES)
axis.set(xlabel="images per batch", ylabel="speed-up over eager execution (×)")
axis.set_title("A training step as a graph (dashed: eager execution)")
highest = np.nanmax(  # of a single round, there is no interval
    [(gain.value, gain.high) for of_batch in step_gains.values() for gain in of_batch.values()]
)
axis.set_ylim(0, 1.2 * highest)
axis.margins(x=0.2)
axis.legend(loc="upper right")
figures = "; ".join(
    f"batch {batch}: graph {gains['graph']}, with XLA {gains['graph, XLA']}"
    for batch, gains in step_gains.items()
)
plots.show(
    figure,
    alt=f"Speed-up of a training step over eager execution, with its 95% interval. {figures}.",
    keep=results,
    watched=[step_others],
)

# %% [markdown]
# Eagerly, Python calls one operation after another, and records each for the gradient. A call takes the same time
# for every batch size. **So if a graph saves only these calls, it saves the same time per step for every batch.** The
# next cell tests that.


# %% jupyter={"source_hidden": true}
def saved_per_step(speeds):
    """Return the milliseconds per step that a graph saves, with their 95% interval."""
    saved = 1000 / np.array(speeds["eager"]) - 1000 / np.array(speeds["graph"])
    mean, half = interval(saved)
    return Measured(mean, mean - half, mean + half, "ms")


def explain_saving(saved):
    """Say whether the time saved, a Measured for each batch size, is a fixed time per step."""
    (small, least), *_, (large, most) = saved.items()
    compared = repeated("time saved", (f"batches of {small}", least), (f"batches of {large}", most))
    if most.low > least.high:
        extra = f"{most.value - least.value:.2f} ms"
        return (
            f"{compared}.\nThe time saved grows {most.value / least.value:.1f}× with the batch. "
            f"{least.value:.2f} ms can be calls; {extra} depend on the batch, so they are not."
        )
    shrinks = most.high < least.low
    return f"{compared}.\n" + (
        "The time saved shrinks with the batch, which calls do not explain."
        if shrinks
        else "That fits a fixed time per step, the calls; no growth is proven."
    )


saved = {batch: saved_per_step(speeds) for batch, speeds in step_speeds.items()}
for batch, ms in saved.items():
    print(f"batch {batch}: a graph saves {ms} per step")
if len(saved) > 1:
    print(explain_saving(saved))

# %% [markdown]
# What else could a graph save? It knows when a tensor is no longer needed and can reuse its memory, and it can merge
# operations, which section 6 shows. Neither is measured here.
#
# **If you use Keras**, `model.fit` makes a `tf.function` of its training step for you. The argument `jit_compile` of
# `model.compile` decides whether to add XLA, which compiles again for each new shape. The lines "XLA vs graph" above
# show whether it is faster for a network this small.

# %%
example = tf.keras.Sequential([tf.keras.layers.Dense(10)])
example.compile("sgd", "mse")
print("By default, Keras compiles fit with XLA on this machine:", example.jit_compile)

# %% [markdown]
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
# How many of them are traced, and which?
#
# </div>

# %%
results.guess(3, "calls that are traced, of seven", ..., unit="calls")

# %%
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
fresh = tf.function(lambda x, slope: slope * x + 1.0)
fresh(pair, slope_of_2)
traced = []
with without_warnings():
    for number, (what, arguments) in enumerate(later_calls.items(), 1):
        before = fresh.experimental_get_tracing_count()
        fresh(*arguments)
        traced.append(fresh.experimental_get_tracing_count() > before)
        print(f"{number}. {what:32} {'traced' if traced[-1] else '-'}")

results.compare_guess(3, Measured(sum(traced), unit="calls", digits=0))

# %% [markdown]
# In a program, TensorFlow prints long warnings if it traces a function this often. This cell silenced them.
#
# By default, each graph is for one shape and one dtype. A Python number is not data: it becomes a constant, part of the
# graph, so **each new number is a new graph**. If you pass a learning rate or a step number as a Python number, each
# new value causes a new trace.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** The next function calls 40 operations. How much longer does a call take when it traces?
#
# </div>

# %%
results.guess(4, "time of a call that traces vs one that doesn't", ..., unit="×")

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
with load.watch("section 4") as tracing_others, without_warnings():
    for _ in range(TRACED_ROUNDS):  # alternately; new Python numbers are traced
        tracing.append(milliseconds(np.random.default_rng().random(3).tolist()))
        calling.append(milliseconds(tf.unstack(tf.random.uniform([100]))))
tracing_cost = Measured(*ratio(tracing, calling), "×", digits=0)
print(f"a call that traces: {np.median(tracing):.1f} ms")
print(f"one that doesn't:   {np.median(calling):.3f} ms")
print(f"ratio of the times: {tracing_cost}")
results.compare_guess(4, tracing_cost)

# %% [markdown]
# There are two remedies. Pass **tensors** instead of Python numbers. And declare what the function accepts: an **input
# signature** gives the dtype and shape of each argument, with `None` for a length that may vary.

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
# With `reduce_retracing=True`, TensorFlow detects at the first new length that the length varies.
#
# ### Exercise 3 · Two graphs and a counter
#
# A program calls a function with batches of any length, sometimes to train and sometimes to predict. The function gets
# three arguments: the batch `x`; `step`, the number of training calls so far, including this one; and `training`,
# Python's `True` or `False`, as Keras passes it to a layer. Here is the program without graphs.


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
# Write `count_in_graphs(function)`. It returns a function that does the same but runs `function` as a graph. Whatever
# the lengths of the batches and however often it is called, `function` is traced at most **twice**: once for training
# and once for prediction. Each call of `count_in_graphs` starts its own count.
#
# `x` is a list of numbers, or an array or tensor of float32, of any length. `function` receives it as a tensor. It
# receives `step` as a number or a float32 tensor, and `training` as Python's `True` or `False`, so it may contain `if
# training`.


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
count_in_graphs = check(3, count_in_graphs)

# %% [markdown]
# ## 5 · What happens to the Python code in a function {read 5}
#
# Everything in the function that is not TensorFlow runs during tracing and never again.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What does the next cell print?
#
# </div>

# %%
python_calls = 0
noise = np.random.default_rng()


@tf.function
def noisy(x):
    global python_calls
    python_calls += 1  # Python
    return x + noise.random(), x + tf.random.uniform([])  # NumPy's, and TensorFlow's


for _ in range(3):
    by_numpy, by_tensorflow = noisy(tf.constant(0.0))
    print(f"NumPy {by_numpy:.4f}   TensorFlow {by_tensorflow:.4f}")
print(f"calls counted: {python_calls}")

# %% [markdown]
# NumPy's number was drawn once and is now a constant in the graph. The same happens to a Python counter, a list that
# you append to, a file that you read, and `time.time()`. There is no error message. Keep state in a `tf.Variable`, and
# draw random numbers with `tf.random`.
#
# ### Loops and conditions: AutoGraph
#
# Above, a Python loop was unrolled. So how does a graph repeat something as often as the data require?
# [**AutoGraph**](../docs/glossary.md#autograph), a part of `tf.function`, rewrites your Python code before it is
# traced. A `for`, `while` or `if` that depends on a **tensor** becomes an operation. All others stay Python.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many `Tanh` operations does each of these graphs contain?
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
    counts = collections.Counter(kind for kind in types if kind != "Const")
    print(f"{what:29}", ", ".join(f"{count} {kind}" for kind, count in counts.items()))

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
# over `tf.range(n)` works the same way. The `if` is one operation as well.
#
# AutoGraph also rewrites the functions that yours calls, which takes time. `@tf.function(autograph=False)` turns it
# off, as in labs 07 and 08. A function with a loop or condition on tensors then fails:

# %%
try:
    tf.function(tensor_if, autograph=False)(tf.ones([2]))
except TypeError as error:
    print(f"{type(error).__name__}: {str(error).partition('. ')[0]}.")

# %% [markdown]
# ### When something is wrong
#
# `print` and a debugger work while the function is traced, when tensors have no values yet. There are two ways to see
# the values: `tf.print` is an operation in the graph, and `tf.config.run_functions_eagerly(True)` runs your Python code
# in each call, as if there were no `tf.function`.


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

print("run eagerly")
tf.config.run_functions_eagerly(True)
try:
    print("   result:  ", suspicious(tf.constant([4.0, 0.5])))
finally:
    tf.config.run_functions_eagerly(False)  # it holds for all functions

# %% [markdown]
# `print` showed a tensor without a value, once. `tf.print` showed the values in each call, and they reveal where the
# `nan` in the result comes from: the logarithm of 0.5 is negative, so its square root is not a number. Eagerly, `print`
# shows the values too, and you could stop in the function with `breakpoint()`. Always switch back to `False`: running
# eagerly is slow.
#
# ### The graph inside
#
# A [**concrete function**](../docs/glossary.md#concrete-function) is one of the graphs that a `tf.function` holds. Ask
# for the one that fits some arguments, and you get a graph like the one that you built by hand in section 1, with
# placeholders for the arguments. `Identity` returns the result to the caller.

# %%
formula = tf.function(lambda x, factor: factor * x + 1.0)
concrete = formula.get_concrete_function(tf.ones([3]), tf.constant(2.0))
plots.show(
    graphs.draw(concrete.graph.as_graph_def(), "factor · x + 1, traced"),
    alt=graphs.describe(concrete.graph.as_graph_def()),
)

# %% [markdown]
# ## 6 · What runs is not what you wrote {read 5.5, do 8, wait 0.1, optional}
#
# TensorFlow knows the whole graph before it runs, so it can improve it. Most of this is done by
# [**Grappler**](../docs/glossary.md#grappler), TensorFlow's graph optimiser. `show_rewrite` from section 2 draws the
# result.
#
# **Constant folding and pruning.** A part of the graph that is the same in each run can be computed in advance. This is
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
    unknown = v1.placeholder(tf.float32, [None], name="x")
    two, three = tf.constant(2.0, name="two"), tf.constant(3.0, name="three")
    root = tf.sqrt(tf.multiply(two, three, name="product"), name="root")
    folded = tf.multiply(unknown, root, name="y")
    never = tf.exp(folded, name="never_fetched")
show_rewrite(folding, folded, {unknown: [1.0, 2.0]}, "Constant folding and pruning")

# %% [markdown]
# The box *fed* is the value that replaced the placeholder. √(2 · 3) is the same in each run, so it is computed once,
# when the graph is prepared: the dashed boxes on the left become the dashed constant on the right. `never_fetched` is
# pruned.
#
# **Common subexpression elimination.** Two operations of the same type with the same inputs give the same result, so
# one is enough, unless they draw random numbers.

# %%
duplicates = tf.Graph()
with duplicates.as_default():
    angle = v1.placeholder(tf.float32, [None], name="x")
    first_exp, second_exp = tf.exp(angle, name="first"), tf.exp(angle, name="second")
    total = tf.add(tf.sin(first_exp, name="sine"), tf.cos(second_exp, name="cosine"), name="y")
show_rewrite(duplicates, total, {angle: [1.0, 2.0]}, "One exponential instead of two")

# %% [markdown]
# **Fusion.** A convolution, its bias and its activation are three operations. Run one after another, the second and the
# third read back everything that the one before has just written, and compute very little. [**Operator
# fusion**](../docs/glossary.md#operator-fusion) merges them into one operation, which works on each number while it is
# still in a register. Most networks contain such blocks.

# %%
seeded = np.random.default_rng(0)
IMAGES = seeded.normal(size=(2, 16, 16, 3)).astype(np.float32)
KERNEL = seeded.normal(size=(3, 3, 3, 8)).astype(np.float32)
BIAS = seeded.normal(size=8).astype(np.float32)  # zeros would be folded away: nothing to merge


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
# The orange box is one operation, and its second line lists what it contains. Grappler merged the three operations into
# `_FusedConv2D`, which runs on Eigen, TensorFlow's own library. If oneDNN is on, a later pass replaces it with
# `_MklNativeFusedConv2D`, which runs on oneDNN. `Identity` only returns a function's result, and this run fetched the
# tensor before it.
#
# Grappler also optimises the graph when you simply call the `tf.function`.
#
# Is fusion worth anything? The next cell times two blocks, with Grappler and without. One is like the first block of a
# network: few input channels, large images. The other is like a block from the middle, with many channels. The
# convolution alone is the limit: a merged block must at least do that.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Which of the two blocks gets more from fusion?
#
# </div>

# %%
results.guess(
    5, "block that gets more from fusion", ..., choices=("first", "middle", "no difference")
)

# %% [markdown]
# The next cell takes about five seconds.


# %%
def block_runs(images, filters):
    """Return functions that run a block: its operations apart, merged, the convolution alone."""
    block = tf.Graph()
    with block.as_default():
        x = v1.placeholder(tf.float32, images)
        kernel = tf.constant(seeded.normal(size=(3, 3, images[-1], filters)), tf.float32)
        convolved = tf.nn.conv2d(x, kernel, 1, "SAME")
        bias = tf.constant(seeded.normal(size=filters), tf.float32)
        y = tf.nn.relu(tf.nn.bias_add(convolved, bias))
    runs, fed = {}, {x: seeded.normal(size=images).astype(np.float32)}
    for method, fetch in {"apart": y, "merged": y, "convolution alone": convolved}.items():
        config = v1.ConfigProto()
        config.graph_options.rewrite_options.min_graph_nodes = -1
        config.graph_options.rewrite_options.disable_meta_optimizer = method == "apart"
        # Fetching an operation instead of its tensor copies nothing to NumPy.
        runs[method] = functools.partial(v1.Session(graph=block, config=config).run, fetch.op, fed)
    return runs


def runs_per_second(run, count=5):
    """Return the speed of the median run."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1 / np.median(times)


blocks = {
    "first": block_runs((16, 112, 112, 3), 32),
    "middle": block_runs((16, 56, 56, 64), 64),
}
block_speeds = {where: {method: [] for method in runs} for where, runs in blocks.items()}
with load.watch("section 6") as block_others:
    for turn in range(BLOCK_ROUNDS + 1):  # alternately, so that a disturbance affects all
        for where, runs in blocks.items():
            for method, run in runs.items():
                speed = runs_per_second(run)
                if turn:  # the first round prepares the graph
                    block_speeds[where][method].append(speed)


# %% jupyter={"source_hidden": true}
def report_fusion(where, speeds):
    """Print the speed-up of a merged block and its limit; return both."""
    gains = ratios(speeds, "apart")
    merged = Measured(*gains["merged"], "×")
    limit = Limit(
        Measured(*gains["convolution alone"], "×", note="convolution alone"),
        above="the merged operation may use a faster kernel than the convolution alone",
    )
    print(summarise(f"{where} block, merged vs apart", gains["merged"]))
    print(f"   its limit: {limit.describe(merged)}")
    share = 1 / limit.measured.value
    print(f"   the convolution takes {share:.0%} of the time of the separate operations")
    return merged, limit


def compare_fusion(block_speeds):
    """Print which block fusion speeds up more; return its name."""
    factors = {
        where: np.divide(speeds["merged"], speeds["apart"])
        for where, speeds in block_speeds.items()
    }
    between = ratio(factors["first"], factors["middle"])
    print(summarise("speed-up of the first block vs that of the middle block", between))
    if not between.significant:
        return "no difference"
    return "first" if between.faster else "middle"


fused = {where: report_fusion(where, speeds) for where, speeds in block_speeds.items()}
more = compare_fusion(block_speeds)
lower, higher = sorted(fused, key=lambda where: fused[where][1].measured.value)
if fused[higher][1].measured.low > fused[lower][1].measured.high:
    agrees = {higher: "it does", "no difference": "that is not proven"}.get(more, "it does not")
    print(f"The {higher} block has the larger limit, so it should get more from fusion: {agrees}.")
else:
    print("The intervals of the two limits overlap, so they don't predict which block gets more.")
results.compare_guess(5, more)

# %% jupyter={"source_hidden": true}
results.hand_in(
    "6",  # for the closing table
    *(
        (f"convolution, bias and ReLU merged, {where} block", "", merged, limit, block_others)
        for where, (merged, limit) in fused.items()
    ),
)

# %% [markdown]
# Fusion does the same arithmetic. What it can save is the time outside the convolution, in which bias and ReLU read
# back what was just written and write it again. The smaller the convolution's share of the time, the more there
# is to save.
#
# ### Exercise 4 · A layer and its normalisation, as one operation
#
# A trained network often begins by normalising its inputs: it subtracts the mean and divides by the standard deviation.
# Here is such code, followed by a dense layer. What runs?


# %%
def layer_by_hand(x, mean, std, weights, bias):
    """Normalise the inputs, then a dense layer with ReLU."""
    normalised = (x - mean) / std
    return tf.maximum(tf.matmul(normalised, weights) + bias, 0.0, name="y")


X = seeded.normal(5, 3, size=(2, 6))
MEAN, STD = seeded.normal(5, 1, size=6), seeded.uniform(1, 4, size=6)
WEIGHTS, OFFSETS = seeded.normal(size=(6, 4)), seeded.normal(size=4)

by_hand = tf.Graph()
with by_hand.as_default():
    inputs = v1.placeholder(tf.float32, X.shape, name="x")
    named = {"mean": MEAN, "std": STD, "weights": WEIGHTS, "bias": OFFSETS}
    outputs = layer_by_hand(
        inputs, *(tf.constant(value, tf.float32, name=name) for name, value in named.items())
    )
show_rewrite(by_hand, outputs, {inputs: X}, "A normalised layer, as written by hand")

# %% [markdown]
# Grappler folds what depends on constants alone, and it merges only the patterns that it knows. The rest is up to you.
# Write `layer(x, mean, std, weights, bias)` so that it gives the same numbers and runs as **one** operation of
# TensorFlow's own (not a Python function), not counting inputs and constants. Only `x` changes from run to run; the
# other four are constants in the graph.


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
# Tools that prepare a trained network for inference do this with batch normalisation. By then its numbers are
# constants, so they move into the weights of the layer before it.
#
# ### When fusion is not possible
#
# One thing always prevents this fusion: asking for a result from the middle. The next cell runs the block of
# convolution, bias and ReLU again, and fetches the convolution's output as well.

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
# A result inside a merged operation is never stored. If you fetch it, TensorFlow has to keep the operations apart. The
# same happens in a network that returns the outputs of its inner layers, which can make it slower.

# %% [markdown]
# ## Questions {read 3}
#
# Answer each in a sentence or two, with what you saw above. The instructor's notebook has answers.
#
# 1. What is an operation, what is a tensor, and which of the two do you feed and fetch?
# 2. What are the two steps of a TensorFlow program, and why keep them apart?
# 3. How do constant, placeholder and variable differ? Which of them keeps its value after a run?
# 4. You fetch `y` without feeding a placeholder, and there is no error. How is that possible?
# 5. For which batches was a graph's advantage over eager execution largest, and why?
# 6. A training run with `tf.function` gets slower as the number of different batch sizes grows. Why, and what do you
#    do?
# 7. Which loops become one operation in a graph, and which are unrolled?
# 8. For which graphs do you raise the inter-op threads, and for which the intra-op threads? *(section 3)*
# 9. Which of Grappler's rewrites change how much is computed, and which only change how it is computed? *(section 6)*

# %% [markdown]
# **At home: a graph that grows.** Repeat the bug at the end of section 2. In one graph and session, run
# `session.run(number * 2.0, {number: 1.0})` 300 times, with a placeholder `number`. Plot the time of each step, and
# print `len(graph.get_operations())`. Then create the operation before the loop, call `graph.finalize()`, and compare.
#
# **Open extension.** Grappler knows more rewrites than these. Describe graphs that you would simplify by hand, guess
# what runs, and look at it with `show_rewrite`: adding zero, *x* + *x* + *x*, two transpositions in a row, a division
# by a constant. Find one rewrite that you expected and Grappler does not make. Do the results stay the same to the last
# digit?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions.
#
# 1. An operation is a node, a computation; a tensor is an edge, one of its outputs. You feed and fetch tensors.
#    Fetching an operation runs it and returns None, as with an initializer.
# 2. Define the graph, then run it. TensorFlow knows the whole graph before it computes the first number, so it can
#    prune, fold and fuse it, run it in parallel, place it on another device, save it, and differentiate it.
# 3. A constant's value is part of the graph. A placeholder's value comes with each run and is forgotten afterwards. The
#    session holds a variable's value, so only a variable keeps it after a run. In TensorFlow 2, the Python object holds
#    it.
# 4. The fetch does not depend on that placeholder: either the graph has no path between them, or you fed a tensor on
#    that path.
# 5. Usually for small ones: calls from Python take a fixed time per step, and the arithmetic grows with the batch. If
#    the saving grows with the batch, only the part that is there at the smallest batch can be calls.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions, continued.
#
# 6. Each new batch size is a new shape, so the function is traced again. Use `input_signature` with `None`,
#    `reduce_retracing=True`, or padding to a few lengths. A shorter last batch is a common cause:
#    `drop_remainder=True`.
# 7. Loops over a tensor become one operation, by AutoGraph; loops over Python values are unrolled during tracing. The
#    first can depend on data; the second gives Grappler more to work with.
# 8. Inter-op: independent branches of small operations, as in section 3. Intra-op: a chain of large ones. An input
#    pipeline next to the computation is a branch, too. Ask why not both: with more threads than cores, threads take
#    turns and can evict each other's data from the cache.
# 9. Folding, pruning and removing duplicates leave less to compute. Fusion computes the same, with less memory traffic
#    and fewer operations to start.
#
# **The graph that grows** Each `number * 2.0` adds two operations, the product and its constant. Each product is also a
# fetch that the session has not seen, so it prepares the whole graph again: the time of a step grows with the graph.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Timing, and what to look for.
#
# **Timing** Sections 1 and 2: {minutes 1–2}. Sections 4 and 5: {minutes 4–5}. Sections 3 and 6 are optional; skip 3
# first. Exercise 3 is the hardest: students without a right answer after ten minutes should read the second hint.
#
# **What to look for** In section 3, splitting a 256 × 256 matmul costs much of what it saves, so inter-op threads may
# help the small ones more; for the large ones, either kind can fill up to four cores. With more cores, the dashed line
# is at 4, because there are only four branches. In section 4, look at whether the time saved grows with the batch, and
# whether XLA is worth its compilation. In section 6, the block with the larger limit should get more from fusion; an
# interval of the limit that includes 1 means that there may be nothing to save.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** What goes wrong.
#
# `tf.placeholder() is not compatible with eager execution` means that a line is outside the `with graph.as_default():`
# block. In exercise 3, a Python counter inside the graph stays at its first value, and one that is passed in as a
# Python number causes a new trace for each value; TensorFlow refuses a `tf.Variable` created inside the traced function
# from the second trace on. In exercise 4, people write `tf.nn.relu` and stop: ask what `x - mean` needs `x` for, and
# have them write the formula on paper.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Define first, run later. An operation is a node, a tensor is an edge, and a session runs what the fetches need.
# - Describe the computation before the loop, never inside it.
# - A graph saves calls from Python. The smaller the operations, the more that matters.
# - `tf.function` traces once for each shape, dtype and Python number. Python code in it runs only during tracing.
# - Loops and conditions on tensors become operations; those on Python values are unrolled.
# - Inter-op threads are for branches, intra-op threads for large operations.
# - What runs is not what you wrote. Before you ask why it is fast or slow, look at the graph that ran.
#
# The closing table sets your figures next to published ones and limits:

# %% jupyter={"source_hidden": true}
published = {BATCHES[0]: "5.1×: 100 matmuls of 10 × 10 matrices"}
results.table(
    "speed-up or cost",
    [
        *results.handed_in("3", ("all threads of a kind vs one, branches", "")),
        *(
            (
                f"a training step as a graph vs eager, batch {batch}",
                published.get(batch, ""),
                Measured(*gains["graph"], "×"),
                "",
                step_others,
            )
            for batch, gains in step_gains.items()
        ),
        *(
            (
                f"the same graph compiled by XLA vs not, batch {batch}",
                "",
                Measured(*xla_gains[batch], "×"),
                "",
                step_others,
            )
            for batch in dict.fromkeys((BATCHES[0], BATCHES[-1]))
        ),
        (
            f"time of a call that traces {LAYERS} layers vs one that doesn't",
            "",
            tracing_cost,
            "",
            tracing_others,
        ),
        *results.handed_in("6", ("convolution, bias and ReLU merged", "")),
    ],
)

# %% [markdown]
# Published: TensorFlow's guide [Introduction to graphs and
# tf.function](https://www.tensorflow.org/guide/intro_to_graphs), 4.1 s vs 0.8 s.
#
# Your speed-ups so far, in all labs:

# %%
ladder.show(results)

# %% [markdown]
# Next: [lab 02](02_onednn_mnist.ipynb) looks inside the merged operations: which library computes them, in which
# layout, and with which instructions.
