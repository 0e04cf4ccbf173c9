# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 01 · TensorFlow graphs
#
# **You will** build a computation as a graph, run parts of it, and watch two of its branches run at once. Then you
# follow the same graph to today's TensorFlow: where `tf.function` hides it, what it costs to make one, and what
# TensorFlow rewrites in it before it runs.
#
# **Time** about 60 minutes: 30 to read and run, 30 for five exercises. Waiting in all: under a minute.
#
# **Connects to** lab 02, which looks at the operations that a rewritten graph hands to oneDNN, lab 03, which turns the
# two thread settings of section 4 on ResNet-50, and lab 07, whose training step is a `tf.function`.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
import json
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import: less of TensorFlow's own remarks

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from labkit.display import graphs, plots
from labkit.exercises import open_lab
from labkit.mpi import run_ranks
from labkit.system import load

check, results, machine, work, QUICK = open_lab("01", globals())
v1 = tf.compat.v1  # TensorFlow as it was before version 2; it is all still there

# %% [markdown]
# If there are lines in red above, they are TensorFlow's notice that oneDNN is on. Lab 02 is about that.
#
# ## 1 · Define: a graph is a description
#
# Multiply two numbers in Python, and you have a number. TensorFlow was built differently: you first **describe** the
# computation, and run it later. The description has three kinds of parts.
#
# - An **Operation** is a node of the graph: something to be computed.
# - A **Tensor** is an edge: the data that goes from one operation to others.
# - A **Graph** holds both.
#
# Where do numbers come from? There are three sources, and each is an operation too. A **constant** gives the same value
# always. A **placeholder** gets its value anew for each run. A **variable** keeps its value between runs, as the
# weights of a network must.
#
# Here is a straight line, *y* = slope · *x* + offset.

# %%
graph = tf.Graph()
with graph.as_default():  # operations made in here go into this graph
    x = v1.placeholder(tf.float32, name="x")
    slope = v1.get_variable("slope", initializer=2.0)
    offset = tf.constant(1.0, name="offset")
    scaled = tf.multiply(slope, x, name="scaled")
    y = tf.add(scaled, offset, name="y")

print(y)

# %% [markdown]
# No number. `y` stands for the output of an operation that has never run. Here is all that there is so far. Data flows
# downwards.

# %%
plots.show(graphs.draw(graph.as_graph_def(), "y = slope · x + offset"), alt=graphs.describe(graph.as_graph_def()))

# %% [markdown]
# A variable takes more than one operation. `VarHandleOp` is the place where its value is kept, `ReadVariableOp` looks
# it up, and `AssignVariableOp` puts the initial value there, once somebody runs it.
#
# The picture leaves out what only serves the machinery. The full list has everything: each operation with its type,
# and the tensors that it puts out. `y:0` is output number 0 of the operation `y`.

# %% tags=["nbval-check-output"]
print(f"{'type':20} {'operation':40} tensors")
for operation in graph.get_operations():
    tensors = ", ".join(f"{tensor.name} {tensor.dtype.name}" for tensor in operation.outputs)
    print(f"{operation.type:20} {operation.name:40} {tensors or '-'}")

# %% [markdown]
# ### Exercise 1 · Build a graph
#
# Write `make_graph()`: a new graph for *d* = (*a* + *b*) · (*b* − 2), where *a* and *b* are placeholders of type
# `tf.float32`, for numbers or arrays of any shape. Return three things:
#
# - the graph,
# - a dictionary of the placeholders, `{"a": …, "b": …}`,
# - the tensor *d*.


# %%
def make_graph():
    """Describe d = (a + b) * (b - 2); give the graph, its placeholders by name, and d."""
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

# %%
built, feeds, d = make_graph()
plots.show(graphs.draw(built.as_graph_def(), "d = (a + b) · (b − 2)"), alt=graphs.describe(built.as_graph_def()))

# %% [markdown]
# Look at the two branches. `a + b` and `b - 2` need nothing from each other. A graph shows that, and a line of Python
# doesn't: whoever runs the graph may run both at once. Section 4 does.
#
# ## 2 · Run: feed and fetch
#
# A **Session** runs a graph, the one it was made for. `session.run(fetches, feed_dict)` takes the tensors that you
# want, and values for placeholders. What you **fetch** comes back as a NumPy array, or as a number.

# %% tags=["nbval-check-output"]
with v1.Session(graph=built) as session:
    print("d =", session.run(d, feed_dict={feeds["a"]: 3.0, feeds["b"]: 4.0}))
    print("d =", session.run(d, feed_dict={feeds["a"]: [1.0, 2.0, 3.0], feeds["b"]: [4.0, 5.0, 6.0]}))

# %% [markdown]
# **Guess first.** In a new session, what happens if you fetch the straight line's `y` with a value for `x`? And
# without?


# %%
def attempt(session, fetches, feed_dict=None):
    """Give what a run brings, or its error in one line."""
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
# A variable has no value until its **initializer** has run, in this very session: the graph only says how to make a
# value, the session keeps it. A placeholder has none until it is fed, in each run anew.
#
# **You can feed any tensor**, not only placeholders. What you feed replaces the operation's output for this run, and
# what the operation would have needed is not looked at any more. **You can fetch several** at once. Four questions;
# guess each before you read the answer.

# %% tags=["nbval-check-output"]
with v1.Session(graph=graph) as session:
    session.run(slope.initializer)
    print("1.", session.run([scaled, y], {x: [1.0, 2.0]}))
    print("2.", session.run(y, {scaled: 100.0}), "and x was not fed")
    print("3.", session.run({"line": y, "twice": [y, y]}, {x: 1.0}))
    session.run(slope.assign(10.0))
    print("4.", session.run(y, {x: 1.0}))

# %% [markdown]
# Fetches can be lists and dictionaries, and come back as the same. One run computes each operation **once**, however
# many fetches need it. With a random number you can see that.

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
# The last operation divides by zero. It was in the graph all the time, and did no harm before somebody fetched it. **A
# session runs what the fetches need, and nothing else.** That is called pruning: here is what ran for `double`.

# %%
left_out = dict.fromkeys(["broken", "broken/y"], graphs.PRUNED)
picture = graphs.draw(dice.as_graph_def(), "To fetch double, broken need not run", marks=left_out)
plots.show(picture, alt=graphs.describe(dice.as_graph_def()) + ". The operation broken is marked as not needed.")

# %% [markdown]
# ## 3 · The default graph, and how it grows
#
# You never told `tf.multiply` which graph it belongs to. It went to the **default graph**: the one whose `with
# graph.as_default():` you are in. Without any, TensorFlow 1 had one for the whole program. That is convenient, and it
# has a trap. This loop trains nothing; it only doubles a number in each step.

# %%
steps = 60 if QUICK else 300


def watch(loop_body):
    """Run a body in a loop; give the graph's operations and the milliseconds of each step."""
    grown, times = [], []
    with tf.Graph().as_default() as graph, v1.Session() as session:
        step_of = loop_body(session)
        for step in range(steps):
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

# %%
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
medians = {name: np.median(times[-steps // 3 :]) for name, (_, times) in grown.items()}
slow, fast = medians.values()
print(f"In the last third of the steps, the loop that describes anew takes {slow / fast:.0f} times as long a step.")

# %% [markdown]
# `number * 2.0` looks like a computation and is a description: two more operations in each step, the product and its
# constant. And each new product is a fetch that the session has not seen, for which it prepares the graph again. It
# gets slower with every step, and gives the right numbers. So it is often found late.
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
# This one fits *y* ≈ *w* · *x* by gradient descent, one step for each batch, and has the mistake, three times over.


# %%
def train_growing(batches, rate):
    """Fit y = w x, a step for each batch (x, y), from w = 0; give the graph and the last w."""
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
# Write `train(batches, rate)` that does the same and whose graph has as many operations after 20 steps as after one.
# Return the graph and the last *w*, a number. Batches may differ in length: a placeholder of shape `[None]` takes any.


# %%
def train(batches, rate):
    """Fit y = w x, a step for each batch (x, y), from w = 0; give the graph and the last w."""
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
# A session takes settings, in a `ConfigProto`. Two of them decide on threads.
#
# - `intra_op_parallelism_threads`: with how many threads **one** operation computes. A large matrix product can be
#   split.
# - `inter_op_parallelism_threads`: how many operations may run **at once**. That helps if the graph has branches.
#
# (Where oneDNN was built with OpenMP, `OMP_NUM_THREADS` takes the place of the first. Lab 03 has such a build.)
#
# ```python
# config = v1.ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=4)
# with v1.Session(graph=graph, config=config) as session: …
# ```
#
# There is a trap. The threads belong to the *process*: the first session makes them, and later sessions share what they
# find, whatever their config says. For inter-op threads, `use_per_session_threads=True` gives a session a pool of its
# own. For intra-op threads there is no such way: another number takes another process.
#
# ### Exercise 3 · Run it with so many threads
#
# Write `run(graph, fetches, feeds, inter_op)`: in a session on `graph`, with exactly `inter_op` inter-op threads of its
# own, run **once**, and return what was fetched. `fetches` may be a tensor, a list or a dictionary, `feeds` is a
# dictionary, perhaps empty.
#
# The check can tell how many operations are under way at once: it runs a graph whose branches wait for each other.


# %%
def run(graph, fetches, feeds, inter_op):
    """Give what fetches are, from one run of the graph on inter_op threads of its own."""
    ### BEGIN SOLUTION
    config = v1.ConfigProto(inter_op_parallelism_threads=inter_op, use_per_session_threads=True)
    with v1.Session(graph=graph, config=config) as session:
        return session.run(fetches, feeds)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
run = check(3, run)

# %% [markdown]
# ### What do they bring?
#
# Four branches, each a chain of matrix products, none of which needs anything of another. The script times them with
# each number of inter-op threads, in a session of its own. And TensorFlow writes down when each operation began and
# ended: `FULL_TRACE` puts that into the run's metadata.

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
    """Describe chains of matrix products that need not wait for each other; give graph, input and sum."""
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
    """Give the milliseconds of each of some runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(total, feeds)
        times.append(1000 * (time.perf_counter() - start))
    return times


def trace(session, total, feeds):
    """Give branch, start and end in ms of each product of a run: the fastest, so least disturbed, of five."""
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
for _ in range(args.rounds):  # in turns, so that what disturbs one disturbs all
    for inter, session in sessions.items():
        times[inter] += clock(session, total, feeds, 5)
measured = [
    {"inter": inter, "intra": args.intra, "ms": statistics.median(times[inter]), "ran": trace(session, total, feeds)}
    for inter, session in sessions.items()
]
for m in measured:
    print(f"{args.size} × {args.size}, inter-op {m['inter']}, intra-op {m['intra']}: {m['ms']:8.2f} ms")
args.out.write_text(json.dumps(measured))

# %% [markdown]
# **Guess first.** Small matrices, 256 × 256, and large ones, 1024 × 1024. For which do inter-op threads bring more, and
# for which intra-op threads? Each line says how long one run takes.

# %%
BRANCHES = 4
cores = machine.usable_cores
inters = sorted({1, 2, min(BRANCHES, cores)})
cases = {"small": (256, 8)} if QUICK else {"small": (256, 8), "large": (1024, 2)}
timed = {}
with load.watch("section 4") as branch_others:
    for case, (size, length) in cases.items():
        timed[case] = []
        for intra in (1,) if QUICK else (1, cores):
            out = work / f"branches-{case}-{intra}.json"
            options = ("--size", size, "--length", length, "--branches", BRANCHES, "--out", out)
            # One process for each number of intra-op threads, with all the cores to use.
            branches = run_ranks(1, "work/branches.py", "--intra", intra, "--inter", *inters, *options, show=False)
            print("\n".join(line for line in branches.lines[0] if "inter-op" in line))
            timed[case] += json.loads(out.read_text())

# %%
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
    axis.set(xlabel="speed-up over one thread", title=f"{case}: {cases[case][0]} × {cases[case][0]}")
    axis.set_xlim(0, 1.1 * max(min(BRANCHES, cores), *(bar.get_width() for bar in bars)))
    axis.grid(visible=False, axis="y")
axes[0, 0].invert_yaxis()
figure.suptitle(f"Four branches on {cores} cores; dashed: the most that branches can bring")
figures = "; ".join(
    f"{case}, inter {m['inter']}, intra {m['intra']}: {m['ms']:.1f} ms" for case, ms in timed.items() for m in ms
)
plots.show(figure, alt=f"Speed-up over one thread by inter-op and intra-op threads. {figures}.", keep=results)

# %%
for case, measured in timed.items():
    one = next(m["ms"] for m in measured if m["inter"] == m["intra"] == 1)
    # The most threads of each kind, not those that did best: the best of several figures is in part the luckiest.
    most_inter = next(m for m in measured if m["inter"] == inters[-1] and m["intra"] == 1)
    most_intra = [m for m in measured if m["inter"] == 1][-1]
    for kind, most in (("inter-op", most_inter), ("intra-op", most_intra)):
        gain, threads = one / most["ms"], max(most["inter"], most["intra"])
        verdict = f"{gain:.2f}× with {threads} threads" if gain > 1.1 else f"no gain worth the name ({gain:.2f}×)"
        if QUICK and kind == "intra-op":
            verdict = "not measured in a quick run"
        print(f"{case} matrices, more {kind} threads: {verdict}")
if cores > 1 and one / most_inter["ms"] < 1.1:
    print("Not even branches gained from a second thread.")

# %% [markdown]
# An operation that is too small to be split leaves intra-op threads idle: then only another branch can use the other
# cores. A large one can use all cores by itself. A network is mostly one long chain of large operations. So intra-op
# threads are set to the number of cores, and inter-op threads to a few, often 1 or 2. With both at the number of cores
# there can be more threads than cores, and they take turns. Do the last bars lose by it?
#
# Did branches really run at the same time? Here is one run for each number of inter-op threads: each bar is one
# product, and its letter is its branch. TensorFlow doesn't record which thread ran it; an operation that began before
# another had ended gets a row of its own.


# %%
def rows(ran):
    """Give each operation, (branch, start, end), the first row in which nothing else is under way."""
    ends = []
    for _, start, end in ran:
        row = next((row for row, other in enumerate(ends) if other <= start), len(ends))
        ends[row : row + 1] = [end]
        yield row


COLOURS = (plots.SKY, plots.ORANGE, plots.PURPLE, plots.YELLOW)  # letters can be read on these
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
    + "; ".join(f"with {m['inter']} inter-op threads, at most {n} at once" for m, n in zip(one_thread, at_once)),
    keep=results,
)

# %% [markdown]
# ## 5 · Today: `tf.function`
#
# Since TensorFlow 2, operations run immediately, as Python's do: that is **eager** execution. It is easier to debug,
# and the graph is gone, with all that could be done with it. `tf.function` brings it back. It runs your Python function
# **once**, with placeholders for arguments, and records what operations it calls: it **traces** it. Later calls run the
# recorded graph and don't look at your Python any more. You still define first and run later. TensorFlow decides when.


# %%
@tf.function
def line(x, slope):
    print(f"   tracing: x is {x.dtype.name}{x.shape}, slope is {slope}")  # Python: it runs while tracing only
    return slope * x + 1.0


for call in (1, 2, 3):
    print(f"call {call}: {line(tf.constant([1.0, 2.0]), tf.constant(2.0))}")

# %% [markdown]
# One `print`, three calls. When does it trace **again**? **Guess** for each of these calls before you run the cell.

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
# In a program, TensorFlow would have warned you, at length, of a function that it has to trace so often. This cell
# turned the warnings off, to keep the list readable.
#
# A graph is recorded for a shape and a type. Others need another graph. And a Python number is no data: it is part of
# the program, as a constant, so **each new number is a new graph**. A learning rate or a step number handed over like
# that traces in every call.
#
# What does that cost? This function is a little longer, so that there is something to trace.

# %%
LAYERS = 20


@tf.function
def network(x, scale):
    for _ in range(LAYERS):  # Python's loop: it is unrolled into the graph
        x = tf.tanh(x * scale)
    return x


numbers = tf.ones([100])
network(numbers, tf.constant(1.0))


def milliseconds(arguments):
    """Give the median time of a call."""
    times = []
    for argument in arguments:
        start = time.perf_counter()
        network(numbers, argument)
        times.append(1000 * (time.perf_counter() - start))
    return float(np.median(times))


with load.watch("section 5") as tracing_others:
    tracing = milliseconds(np.random.default_rng().random(5 if QUICK else 20).tolist())  # numbers never seen before
    calling = milliseconds([tf.constant(value) for value in np.linspace(1, 2, 200, dtype=np.float32)])
print(
    f"a call that traces: {tracing:.1f} ms; one that doesn't: {calling:.3f} ms; {tracing / calling:.0f} times as long"
)

# %% [markdown]
# Two remedies. Hand over **tensors** instead of Python numbers. And say what the function is for: an **input
# signature** names the type and shape of each argument once and for all, with `None` where a length is free.

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
# `reduce_retracing=True` finds out for itself, after the first surprise, that the length varies.
#
# ### The graph sees only what was traced
#
# Everything in the function that is not TensorFlow happens while tracing, and never again. **Guess** what this prints.

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
# NumPy's number was drawn once, and is a constant of the graph. The same befalls a Python counter, a list that is
# appended to, a file that is read, `time.time()`. No error tells you. State that must live on belongs into a
# `tf.Variable`, randomness into `tf.random`.
#
# ### Exercise 4 · Trace once
#
# Somebody calls a function with batches of every length, and with a factor that changes in each step. Write
# `traced_once(function)`: it takes a function of `(x, factor)` and gives one that does the same, as a graph, and is
# **traced exactly once**, whatever it is called with: `x` a list of numbers, or an array or a tensor of float32, of any
# length; `factor` a Python number or a tensor of float32.


# %%
def traced_once(function):
    """Give function(x, factor) as a graph that serves any length of x and any factor."""
    ### BEGIN SOLUTION
    signature = [tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)]
    return tf.function(function, input_signature=signature)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
traced_once = check(4, traced_once)

# %% [markdown]
# ### The graph inside
#
# A **concrete function** is one of the graphs that a `tf.function` holds. Ask for the one for some arguments, and you
# have a graph like the one you built by hand in section 1, with placeholders for the arguments.

# %%
concrete = tf.function(lambda x, factor: factor * x + 1.0).get_concrete_function(tf.ones([3]), tf.constant(2.0))
plots.show(
    graphs.draw(concrete.graph.as_graph_def(), "factor · x + 1, traced"),
    alt=graphs.describe(concrete.graph.as_graph_def()),
)

# %% [markdown]
# ## 6 · What runs is not what you wrote
#
# Because the graph is known before it runs, TensorFlow can improve it. The part that does is called **Grappler**. You
# can look at its work: a run tells on request which graph it really ran, in `partition_graphs` of its metadata.
#
# (Grappler skips graphs that are too small to be worth it. `min_graph_nodes = -1` tells it to take any.)


# %%
def what_ran(graph, fetch, feeds):
    """Run a graph and give the one that really ran, as a GraphDef."""
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
# **Constant folding, and pruning.** What does this graph have to compute when *x* comes? The two sides show the same
# graph, before and after.

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
# The box *fed* is the value that took the placeholder's place. √(2 · 3) is the same in each run. So it is computed
# once, when the graph is prepared, and what remains is a constant: the dashed boxes on the left become the dashed box
# on the right. `never_fetched` is pruned, as in section 2.
#
# **The same thing twice.** Two operations of one type with the same inputs give the same result, so one is enough.

# %%
twice = tf.Graph()
with twice.as_default():
    number = v1.placeholder(tf.float32, [None], name="x")
    first, second = tf.exp(number, name="first"), tf.exp(number, name="second")
    result = tf.add(tf.sin(first, name="sine"), tf.cos(second, name="cosine"), name="y")
show_rewrite(twice, result, {number: [1.0, 2.0]}, "One exponential instead of two")

# %% [markdown]
# **Fusion.** A convolution, its bias and its activation are three operations. Done one after the other, the second and
# the third read everything from memory that the one before has just written there, and compute next to nothing. Merged
# into one, they work on each number while it is still in a register. This is a block as it is in most networks.

# %%
rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(2, 16, 16, 3)).astype(np.float32)
KERNEL = rng.normal(size=(3, 3, 3, 8)).astype(np.float32)
BIAS = rng.normal(size=8).astype(np.float32)  # zeros would be folded away, and there would be nothing to merge


@tf.function(input_signature=[tf.TensorSpec(IMAGES.shape, tf.float32, name="images")])
def conv_block(images):
    convolved = tf.nn.conv2d(images, tf.constant(KERNEL, name="kernel"), 1, "SAME", name="convolution")
    return tf.nn.relu(tf.nn.bias_add(convolved, tf.constant(BIAS, name="bias"), name="with_bias"), name="activation")


def as_graph(function):
    """Give a tf.function's graph as one that a Session can run."""
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(function.get_concrete_function().graph.as_graph_def(), name="")
    return graph


fusing = as_graph(conv_block)
show_rewrite(fusing, "activation:0", {"images:0": IMAGES}, "Three operations merged into one", keep=results)

# %% [markdown]
# The orange box is one operation, and its second line says what is in it. Its name says who does the work:
# `_MklNative…` is oneDNN, `_Fused…` without it is Eigen, TensorFlow's own library. This one was a `tf.function`, of
# which the graph was taken out to be looked at; called as a function, it goes through Grappler just the same.
#
# Is it worth anything? Two blocks, with Grappler and without: one like a network's first, with few channels to compute
# from and large pictures to write, and one from its middle, with many channels. **Guess** which gains more.


# %%
def block_milliseconds(images, filters, rounds=3 if QUICK else 25):
    """Give the median time of a run of the block, its operations apart and merged, for images of that shape."""
    block = tf.Graph()
    with block.as_default():
        x = v1.placeholder(tf.float32, images)
        kernel = tf.constant(rng.normal(size=(3, 3, images[-1], filters)), tf.float32)
        y = tf.nn.relu(
            tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), tf.constant(rng.normal(size=filters), tf.float32))
        )
    sessions, times = [], ([], [])
    for grappler in (False, True):
        config = v1.ConfigProto()
        config.graph_options.rewrite_options.min_graph_nodes = -1
        config.graph_options.rewrite_options.disable_meta_optimizer = not grappler
        sessions.append(v1.Session(graph=block, config=config))
    fed = {x: rng.normal(size=images).astype(np.float32)}
    for _ in range(rounds + 2):  # in turns, so that what disturbs one disturbs both
        for session, taken in zip(sessions, times):
            start = time.perf_counter()
            session.run(y.op, fed)  # the operation: it runs, and nothing is copied to NumPy
            taken.append(1000 * (time.perf_counter() - start))
    for session in sessions:
        session.close()
    return [float(np.median(taken[2:])) for taken in times]


gains = {}
shapes = {"first block": ((16, 112, 112, 3), 32), "middle block": ((16, 56, 56, 64), 64)}
with load.watch("section 6") as block_others:
    for where, (images, filters) in shapes.items():
        apart, merged = block_milliseconds(images, filters)
        gains[where] = apart / merged
        verdict = f"{gains[where]:.2f} times as fast" if gains[where] > 1.05 else f"no gain here ({gains[where]:.2f}×)"
        print(f"{where}, {images[-1]} to {filters} channels: apart {apart:.2f} ms, merged {merged:.2f} ms: {verdict}")

# %% [markdown]
# Merging spares memory traffic, not arithmetic. Where the convolution itself takes most of the time, there is little to
# gain. Where it is quickly done, the trips to memory are what you wait for.
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
show_rewrite(by_hand, result, {images: IMAGES}, "The same numbers, written otherwise")

# %% [markdown]
# Grappler merges patterns that it knows, and knows them by their operations. Write `block(images, kernel, bias)` that
# gives the same numbers and of which **one** operation runs, images, kernel and bias aside.


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
# ### When it can't
#
# One thing undoes a merger for certain: to ask for what is inside. Here the same graph is run again, and this time the
# convolution's output is fetched as well.

# %%
after = what_ran(fusing, ["activation:0", "convolution:0"], {"images:0": IMAGES})
plots.show(
    graphs.draw(
        after, "With the convolution fetched too", marks=graphs.classify_rewrites(fusing.as_graph_def(), after)
    ),
    alt=graphs.describe(after),
)

# %% [markdown]
# What is inside a merged operation exists nowhere, so it can't be fetched. If you fetch it, it has to be kept apart.
# The same goes for a network that hands out its inner layers, for looking at them, say: that alone can make it slower.
#
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. The instructor's notebook has answers.
#
# 1. What is an Operation, what a Tensor, and which of the two do you feed and fetch?
# 2. What are the two steps of a TensorFlow program, and what does one gain by keeping them apart?
# 3. How do constant, placeholder and variable differ? Which of them outlives a run?
# 4. You fetch `y` and did not feed a placeholder, and no error comes. How can that be?
# 5. For what graphs do you raise the inter-op threads, for what others the intra-op threads?
# 6. A training with `tf.function` gets slower, the more different batch lengths there are. Why, and what do you do?
# 7. Which of Grappler's rewrites changes how much is computed, and which only how it is computed?

# %% [markdown] tags=["instructor"]
# ### Answers, for the instructor
#
# 1. An Operation is a node, a computation; a Tensor is an edge, one of its outputs. Both feeding and fetching are about
#    tensors; fetching an operation runs it and gives None, as with an initializer.
# 2. Define the graph, then run it. As the whole is known before the first number is computed, it can be pruned, folded,
#    fused, run in parallel, put on another device, saved, and differentiated.
# 3. A constant's value is part of the graph. A placeholder's comes with each run and is forgotten after it. A
#    variable's is kept by the session from run to run, and it alone outlives one. In TensorFlow 2 it is kept by the
#    Python object.
# 4. What is fetched does not depend on that placeholder: either by the graph, or because a tensor between the two was
#    fed.
# 5. Inter-op: independent branches of small operations, as in section 4. Intra-op: a chain of large ones. Two branches
#    are also needed when a graph has an input pipeline next to the computation. Ask why not both: threads above the
#    number of cores take turns, and evict each other's cache.
# 6. Each new length is a new shape, so it is traced again. `input_signature` with `None`, `reduce_retracing=True`, or
#    padding to a few lengths. Last batches that are shorter are a frequent cause: `drop_remainder=True`.
# 7. Folding, pruning and removing duplicates leave less to compute. Fusion computes the same, with less traffic to
#    memory and fewer operations to be started.
#
# **Timing** Sections 1 and 2 take 20 minutes with exercise 1, section 3 takes 10, section 4 takes 10, sections 5 and 6
# take 10 each. Who is behind skips exercise 3: its trap matters, its code doesn't come back.
#
# **What to expect** On a 2-core machine (AVX-512, oneDNN on), two inter-op threads made four branches of small products
# 1.8 to 1.9 times as fast, and intra-op threads did nothing for them: a 256 × 256 product was not split. For the large
# ones either kind brought 1.7 to 2 times, and both together no more. With many cores the dashed line is at 4, however
# many there are: no more than the branches. A call that traces took 70 to 130 times as long as one that doesn't. The
# merged first block was 1.2 to 1.3 times as fast, the middle one as fast as before; with Eigen instead of oneDNN, 1.2
# to 2 times and 1.1.
#
# **Goes wrong** `tf.placeholder() is not compatible with eager execution` means that a cell's line is outside `with
# graph.as_default():`. In exercise 3, a config without `use_per_session_threads` may pass the one case and fail the
# other, by what ran before in the kernel: that is the trap, not a flaw of the check. On machines without oneDNN, or
# with `TF_ENABLE_ONEDNN_OPTS=0`, `convolution + bias` is not merged in exercise 5, where `tf.nn.bias_add` is; with
# oneDNN both are.

# %% [markdown]
# ## Remember
#
# - Define first, run later. An Operation is a node, a Tensor an edge, and a Session runs what the fetches need.
# - Describe before the loop, never in it.
# - Inter-op threads are for branches, intra-op threads for large operations. The first session in a process decides.
# - `tf.function` traces for each shape, type and Python number. Python in it runs while tracing, and never again.
# - What runs is not what you wrote. Look at it before you wonder about its speed.
#
# What was published, what you measured, and what the machine could do at most:

# %%
one = next(m["ms"] for m in timed["small"] if m["inter"] == m["intra"] == 1)
most = next(m for m in timed["small"] if m["inter"] == inters[-1] and m["intra"] == 1)
results.table(
    "what it brings or costs",
    [
        ("thread settings found by a tuner, TensorFlow with Eigen", "2–123% faster", "", ""),
        ("the same, with MKL", "1.5–28% faster", "", ""),
        (
            f"{inters[-1]} inter-op threads instead of 1, {BRANCHES} branches of small products",
            "",
            f"{one / most['ms']:.2f}×",
            f"{min(BRANCHES, cores)}×: branches or cores",
            branch_others,
        ),
        (
            f"a call that traces {LAYERS} layers, against one that doesn't",
            "",
            f"{tracing / calling:.0f} times as long",
            "",
            tracing_others,
        ),
        *(
            (f"convolution, bias and ReLU merged, {where}", "", f"{gain:.2f}×", "", block_others)
            for where, gain in gains.items()
        ),
    ],
)

# %% [markdown]
# Published: TensorTuner, [Hasabnis 2018](https://arxiv.org/abs/1812.01665). Next: lab 02 looks inside the merged
# operations: who computes them, in which layout, and with which instructions.
