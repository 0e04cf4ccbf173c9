# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 05 · Let a program tune it
#
# **You will learn** how a program can find the settings that make training fastest. You will see how much of the best
# speed it finds in how few trials, why the best trial always looks better than it is, and how to make sure of a gain.
# Then you tune this machine, and a command of your own.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which explains the threads that are tuned here, and lab 03, which tries a few settings for
# ResNet-50 by hand.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
import itertools
import json
import math
import os
import re
import shlex
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Code, Image, display

from labkit.bench import configurations
from labkit.display import core_use, plots
from labkit.display.measured import Measured
from labkit.exercises import open_lab
from labkit.system import load, processes
from labkit.system.errors import LabError
from labkit.system.paths import DATA, ROOT
from labkit.system.statistics import ratio
from labkit.tune import search as tune

check, results, machine, work = open_lab("05", globals())

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
SEEDS = 2 if QUICK else 15  # searches of each kind: section 4
SEARCH_SHARE = 0.1 if QUICK else 0.2  # of the grid's points, as a search's trials
DRAWS = 200 if QUICK else 2000  # section 5
LIVE_STEPS = {"mnist": 5, "speech": 5, "resnet50": 5} if QUICK else {"mnist": 100, "speech": 30, "resnet50": 10}
LIVE_TRIALS, LIVE_REPEATS = (2, 1) if QUICK else (16, 2)  # section 6, and of each trial
CONFIRMATION_ROUNDS = 0 if QUICK else 5
OWN_TRIALS, OWN_REPEATS, OWN_ROUNDS = (2, 1, 2) if QUICK else (30, 3, 5)  # section 7, and of its confirmation
ABLATION_ROUNDS = 1 if QUICK else 8

# %% [markdown]
# ## 1 · How many settings are there?
#
# A **knob** is anything that you can set before a program runs and that may change its speed. In machine learning, such
# a setting is called a [**hyperparameter**](../docs/glossary.md#hyperparameter). All combinations of the knobs' values
# form the [**search space**](../docs/glossary.md#search-space). It has one dimension for each knob. Training on a CPU
# has many knobs:
#
# | knob | what it sets |
# | --- | --- |
# | intra-op threads | how many threads share one operation |
# | inter-op threads | how many operations run at the same time |
# | `OMP_NUM_THREADS` | the threads of [**OpenMP**](../docs/glossary.md#openmp), in a build that uses it |
# | `KMP_BLOCKTIME` | how many milliseconds an OpenMP thread spins before it sleeps |
# | `KMP_AFFINITY` | on which core a thread stays ([**pinning**](../docs/glossary.md#pinning)) |
# | allocator, huge pages | how memory is allocated |
# | `numactl` | on which [**NUMA node**](../docs/glossary.md#numa-node) memory is allocated |
#
# The first two are TensorFlow's [**intra-op parallelism**](../docs/glossary.md#intra-op-parallelism) and [**inter-op
# parallelism**](../docs/glossary.md#inter-op-parallelism).
#
# In 2018, engineers at Intel had a program tune these two for ResNet-50. The machine had 2 × 28 cores. The program
# could choose inter-op threads from 1 to 28, and intra-op threads from the even numbers from 10 to 56. After 2 hours
# and 8 minutes, it found intra 28 and inter 2: 1.77 times as fast as before. (They also set `OMP_NUM_THREADS` to the
# number of intra-op threads.) By hand, they said, this took tens of hours.
#
# Then they gave it the settings of the CPU and of the operating system: 9.13 · 10¹⁷ combinations.

# %% tags=["nbval-check-output"]
two_knobs = len(range(1, 29)) * len(range(10, 57, 2))
system = 9.13e17
print(f"inter-op × intra-op: {two_knobs} settings. At a minute each: {two_knobs / 60:.0f} hours")
print(
    f"CPU and system: as many as {math.log2(system):.0f} switches have. At a minute each: {system / 525_960:.1e} years"
)

# %% [markdown]
# They tried 173 of these settings with one network and 156 with another, and gained 8.3% and 8%. How can 173 of 9.13 ·
# 10¹⁷ be enough? That is the question of this lab.
#
# ## 2 · A landscape, measured whole
#
# To judge a search, you have to know the best result that is possible. So here is a space that is small enough to be
# measured **whole**: training the MNIST CNN with five knobs, in a build of TensorFlow with OpenMP. It was measured
# once, on another machine, and comes with the kit. Each point was measured twice, in two rounds with different orders.

# %%
GRID = DATA / "tuning-grid.csv"
print("".join(line for line in GRID.read_text().splitlines(keepends=True) if line.startswith("#")))
grid = pd.read_csv(GRID, comment="#")
KNOBS = list(grid.columns[: grid.columns.get_loc("round1")])
space = {knob: grid[knob].unique().tolist() for knob in KNOBS}
for knob, values in space.items():
    print(f"{knob:10} {len(values)} values: {', '.join(map(str, values))}")
print(f"{len(grid)} points")

# %%
speed = grid.set_index(KNOBS).images_s.to_dict()  # (omp, intra, …): images/s
top = max(speed.values())


def look_up(settings):
    """Images/s of a point, without running anything."""
    return speed[tuple(settings.values())]


# What TensorFlow and OpenMP take by themselves on the 2 cores where the grid was measured.
default = {"omp": 2, "intra": 2, "inter": 2, "blocktime": 200, "affinity": "none"}
share = {
    "the best point": 1.0,
    "the default": look_up(default) / top,
    "the point in the middle": np.median(grid.images_s) / top,
    "the worst": min(speed.values()) / top,
}
for what, value in share.items():
    print(f"{what:26} {value * top:6,.0f} images/s, {value:4.0%} of the best")
print(f"within 3% of the best: {np.mean(grid.images_s > 0.97 * top):.1%} of the points")

# %% jupyter={"source_hidden": true}
rows, columns = ["omp", "blocktime"], ["intra", "inter"]
pictures = grid.groupby("affinity", sort=False)
marks = {tuple(default.values()): "D", max(speed, key=speed.get): "B"}
figure, axes = plt.subplots(1, len(pictures), figsize=(12, 5.5), sharey=True)
for axis, (affinity, part) in zip(axes, pictures):
    table = part.pivot_table(index=rows, columns=columns, values="images_s") / top
    image = axis.imshow(table, cmap="cividis", vmin=0, vmax=1, aspect="auto", origin="lower")
    axis.set_xticks(range(table.shape[1]), [inter for _, inter in table.columns])
    axis.set_yticks(range(table.shape[0]), [blocktime for _, blocktime in table.index])
    axis.grid(False)
    axis.tick_params(length=0)
    width, height = len(space["inter"]), len(space["blocktime"])
    for number, threads in enumerate(space["intra"]):
        axis.axvline(number * width - 0.5, color="white")
        axis.text((number + 0.5) * width - 0.5, table.shape[0] - 0.3, f"intra {threads}", ha="center", fontsize=11)
    for number, threads in enumerate(space["omp"]):
        axis.axhline(number * height - 0.5, color="white")
        if axis is axes[0]:
            axis.text(-2.2, (number + 0.5) * height - 0.5, f"OMP {threads}", ha="center", va="center", rotation=90)
    for point, mark in marks.items():
        omp, intra, inter, blocktime, its_affinity = point
        if its_affinity == affinity:
            place = table.columns.get_loc((intra, inter)), table.index.get_loc((omp, blocktime))
            axis.annotate(mark, place, ha="center", va="center", fontsize=15, fontweight="bold", color=plots.VERMILION)
    axis.set_xlabel("inter-op threads")
    axis.set_title("threads not pinned" if affinity == "none" else "threads pinned to cores", pad=22)
axes[0].set_ylabel("KMP_BLOCKTIME, ms", labelpad=34)
figure.colorbar(image, ax=axes, label="share of the best point's images/s")
figure.suptitle("Training the MNIST CNN: every point of the grid (D the default, B the best)")
by_omp = grid.groupby("omp").images_s.max() / top
plots.show(
    figure,
    alt=f"Two maps of {len(grid) // 2} cells each, pinned and not, coloured by speed. The best with each number of "
    "OpenMP threads: " + ", ".join(f"{omp} threads {value:.0%}" for omp, value in by_omp.items()) + " of the best.",
    keep=results,
)

# %% [markdown]
# Look at the picture before you go on. Which knob matters most? Which one hardly matters? And which one matters only
# when another one has a bad value? Somebody who turns one knob at a time sees only one line of this picture.
#
# This is the best speed that can be reached with each value of each knob:

# %%
for knob, values in space.items():
    reach = grid.groupby(knob).images_s.max() / top
    print(f"{knob:10}", "   ".join(f"{value!s:.12}: {reach[value]:4.0%}" for value in values))

# %% [markdown]
# ## 3 · Search blindly
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** You draw 14 points of the grid at random, which is 5% of it. You measure them and take the best. How
# near do you come to the best of all?
#
# </div>
#
# [**Random search**](../docs/glossary.md#random-search) does just that, and it is better than it sounds. It does not
# depend on the size of the space, nor on the number of knobs. It depends on the *share* of the points that are good.
#
# ### Exercise 1 · What is its chance?
#
# Write `chance(points, good, trials)`. A space has so many `points`, and `good` of them are good enough for you. You
# draw `trials` different points. What is the probability that at least one of them is good?


# %%
def chance(points, good, trials):
    """Probability that one or more of `good` points are among `trials` different ones."""
    ### BEGIN SOLUTION
    return 1 - math.comb(points - good, trials) / math.comb(points, trials)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
chance = check(1, chance)

# %%
for points in (len(grid), two_knobs, 1_000_000):
    needed = next(n for n in itertools.count(1) if chance(points, math.ceil(points / 20), n) >= 0.95)
    print(
        f"{points:9,} points: to draw one of the best 5% with a chance of 95%, {needed} trials ({needed / points:.2%})"
    )
print(f"60 trials, endless space: {1 - 0.95**60:.1%}")

# %% [markdown]
# That answers half of section 1's question. The number of trials depends on how many points are *good*, and hardly on
# how many there *are*. Sixty random trials find one of the best 5% of nearly any space (Bergstra and Bengio, 2012).
#
# The other half: one of the best 5% need not be near the best. Where speed changes gently, it is near, because the best
# 5% are one hilltop. Where one point in a thousand stands out, a blind search will miss it.
#
# ## 4 · Search with a memory
#
# One measured point is called a [**trial**](../docs/glossary.md#trial). After a few trials you know something. A person
# would look at the good ones, see what they have in common, and try more of that. Programs that do so use [**Bayesian
# optimisation**](../docs/glossary.md#bayesian-optimisation). One of its methods is the **tree-structured Parzen
# estimator**, [**TPE**](../docs/glossary.md#tpe) (Bergstra et al., 2011):
#
# 1. Split the trials into the **good** ones, such as the best fifth, and the **rest**.
# 2. For each knob, count how often each value occurs among the good trials, and how often among the rest. These are two
#    densities.
# 3. Draw some points that have not been tried. Take the one whose values are frequent among the good trials **and**
#    rare among the rest. Its ratio of the two densities is the largest.
#
# TPE has no model of speed, only of where to look. So it can work with text as values, with knobs that don't matter,
# and with a trial that failed: that one belongs to the rest.
#
# ### Exercise 2 · How promising is a value?
#
# Write `score(value, values, good, rest)` for one knob. `values` are all values that the knob can have. `good` and
# `rest` are lists of the values that it had in the good trials and in the rest. The score is
#
# $$\frac{\text{share of the value among the good}}{\text{share of the value among the rest}}$$
#
# A value that nobody tried would have a share of 0. So pretend that **every value of the knob was seen once more** than
# it really was, in each of the two lists.


# %%
def score(value, values, good, rest):
    """How many times as frequent a value is among the good trials as among the rest."""
    ### BEGIN SOLUTION
    in_good = (good.count(value) + 1) / (len(good) + len(values))
    in_rest = (rest.count(value) + 1) / (len(rest) + len(values))
    return in_good / in_rest
    ### END SOLUTION


# %% tags=["nbval-check-output"]
score = check(2, score)


# %% [markdown]
# With it, a search is a few lines long. This one is yours. It looks at each knob separately:


# %%
def promise(point, space, good, rest):
    """The product of its values' scores; `good` and `rest` are lists of points."""
    product = 1.0
    for knob, (value, values) in enumerate(zip(point, space.values())):
        product *= float(score(value, values, [point[knob] for point in good], [point[knob] for point in rest]))
    return product


def your_search(space, objective, trials, seed):
    """A small TPE: the metrics of the points that it tried, in their order."""
    rng = np.random.default_rng(seed)
    untried = list(itertools.product(*space.values()))
    tried, metrics = [], []
    for number in range(trials):
        candidates = [untried[place] for place in rng.permutation(len(untried))[:24]]
        point = candidates[0]
        if number >= 5:  # enough to learn from
            ranked = [tried[place] for place in np.argsort(metrics)[::-1]]
            good, rest = ranked[: number // 5], ranked[number // 5 :]
            point = max(candidates, key=partial(promise, space=space, good=good, rest=rest))
        untried.remove(point)
        tried.append(point)
        metrics.append(objective(dict(zip(space, point))))
    return metrics


# %% [markdown]
# The kit's `lab tune` has a model of speed itself, a [**Gaussian process**](../docs/glossary.md#gaussian-process). It
# takes it that points near each other are alike: 3 threads are next to 4. For each untried point, it tells a likely
# speed, and how sure that is. It tries the point where most can be gained. Optuna's TPE looks at all knobs together
# too. Let them compete with yours, with random search, and with a [**grid search**](../docs/glossary.md#grid-search),
# which tries all points in the order in which they are written. Each search depends on chance, so each runs 15 times:
# **about 20 seconds**. No process is started: a trial only looks up a point in the table.

# %%
budget = int(SEARCH_SHARE * len(grid))  # trials of a search
began = time.monotonic()


def values_of(trials):
    return [trial.value for trial in trials]


SEARCHES = {
    "random": lambda seed: values_of(tune.search(space, look_up, budget, seed, sampler="random")),
    "yours": lambda seed: your_search(space, look_up, budget, seed),
    "TPE of Optuna": lambda seed: values_of(tune.search(space, look_up, budget, seed, sampler="tpe")),
    "lab tune": lambda seed: values_of(tune.search(space, look_up, budget, seed)),
    "lab tune, default first": lambda seed: values_of(tune.search(space, look_up, budget, seed, default=default)),
}
so_far = {}  # by search: (seeds, trials), the best so far as a share of the grid's best
for name, one in SEARCHES.items():
    so_far[name] = np.maximum.accumulate([one(seed) for seed in range(SEEDS)], axis=1) / top
    print(f"{name}: {SEEDS} searches of {budget} trials, {time.monotonic() - began:.0f} s")
in_order = np.maximum.accumulate(grid.images_s) / top  # the table has the points in the order of nested loops
at = max(1, round(0.05 * len(grid)))  # trials after which the searches are compared

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(10, 5))
trials = np.arange(1, budget + 1)
styles = {
    "random": (plots.ORANGE, "--", "s"),
    "yours": (plots.GREEN, "-.", "^"),
    "TPE of Optuna": (plots.PURPLE, ":", "D"),
    "lab tune": (plots.BLUE, "-", "o"),
}
for name, (colour, line, marker) in styles.items():
    axis.fill_between(trials, *np.quantile(so_far[name], (0.1, 0.9), axis=0), color=colour, alpha=0.15)
    mean = so_far[name].mean(axis=0)
    axis.plot(trials, mean, color=colour, linestyle=line, marker=marker, markevery=5, label=name)
axis.plot(trials, in_order[:budget], color=plots.BLACK, linestyle=":", marker="", label="grid, in order")
axis.axhline(0.97, color="grey", linewidth=1, marker="")
axis.text(budget, 0.965, "97%", ha="right", va="top", color="dimgrey")
axis.secondary_xaxis("top", functions=(lambda n: 100 * n / len(grid), lambda p: p * len(grid) / 100)).set_xlabel(
    "share of the space tried, %", fontsize=11
)
axis.set(xlabel="trials", ylabel="best so far, share of the grid's best", ylim=(None, 1.01))
axis.xaxis.get_major_locator().set_params(integer=True)
axis.legend(loc="lower right")
axis.set_title("How much of the best is found in how many trials")
plots.show(
    figure,
    alt=f"Share of the grid's best so far against trials, mean of {SEEDS} searches with a band of 80% of them. "
    + "; ".join(f"{name}: {so_far[name][:, at - 1].mean():.0%} after {at}" for name in styles)
    + f"; grid in order: {in_order[at - 1]:.0%} after {at} trials and {in_order[budget - 1]:.0%} after {budget}.",
    keep=results,
)


# %%
def trials_to(goal, shares):
    """The median number of trials to a share of the best; more than the budget where they did not come to it."""
    reached = (shares >= goal).any(axis=1)
    needed = np.where(reached, 1 + (shares >= goal).argmax(axis=1), budget + 1)
    median = np.median(needed)
    return f"{median:.0f}" if median <= budget else f"more than {budget}"


to_97 = {name: trials_to(0.97, shares) for name, shares in so_far.items()}
head = f"{'':24}{f'after {at} trials (5%)':>24}{f'after {budget}':>12}{'trials to 97% of the best':>30}"
print(head)
for name, shares in so_far.items():
    print(f"{name:24}{shares[:, at - 1].mean():24.1%}{shares[:, -1].mean():12.1%}{to_97[name]:>30}")

# %% [markdown]
# Read the picture from the left. As long as nothing is known, all searches are blind, and alike. After some trials, a
# search with a memory looks where the good points were. The grid in its order stays in one corner. So don't tune by
# nested loops unless you can wait for their end.
#
# The last line of the table is how `lab tune` really works. It tries the **default first**, because the best has to be
# compared with the default. Whether this also helps the search depends on how good the default is. You saw its share of
# the best in section 2.
#
# ## 5 · Luck looks like speed
#
# So far a trial gave the same result each time. On a real machine it doesn't: other programs, the clock rate and the
# place of data in memory change it. Each point of the grid was measured twice. How much do the two measurements differ?

# %%
first, second = grid.round1.to_numpy(), grid.round2.to_numpy()
apart = np.expm1(np.abs(np.log(first / second)))
print(f"the two rounds of a point differ by {np.median(apart):.1%} (median), {apart.max():.0%} at most")
for number, speeds in enumerate((first, second), 1):
    print(f"the best of round {number}: point {np.argmax(speeds)}, {speeds.max():,.0f} images/s")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** You measure a hundred points once each, and look at the best result. Then you measure that point
# again. Will it be as fast, faster or slower?
#
# </div>
#
# ### Exercise 3 · How much does the winner flatter itself?
#
# Write `flattery(first, second)`. Both are numpy arrays of images/s, for two rounds of the same points. The first round
# chooses its winner; if several points are equally fast, take any one of them. How many times as fast did that point
# look in the first round as in the second?


# %%
def flattery(first, second):
    """The speed of the first round's winner in that round, divided by its speed in the second round."""
    ### BEGIN SOLUTION
    winner = np.argmax(first)
    return first[winner] / second[winner]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
flattery = check(3, flattery)

# %%
rng = np.random.default_rng(0)
counts = [1, 2, 5, 10, 20, 50, 100]
promised = []
for n in counts:
    draws = [rng.permutation(len(grid))[:n] for _ in range(DRAWS)]
    both_ways = [float(flattery(a[draw], b[draw])) for draw in draws for a, b in ((first, second), (second, first))]
    promised.append(100 * (np.exp(np.mean(np.log(both_ways))) - 1))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
axis.plot(counts, promised, color=plots.VERMILION, marker="o")
for n, percent in zip(counts, promised):
    axis.annotate(f"{percent:+.1f}%", (n, percent), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=11)
axis.axhline(0, color=plots.BLACK, linewidth=1, marker="")
axis.set(
    xscale="log",
    xlabel="points measured once each",
    ylabel="the best, over its second measurement, %",
    title="The winner's curse",
)
axis.set_xticks(counts, map(str, counts))
axis.minorticks_off()
axis.margins(y=0.2)
plots.show(
    figure,
    alt="By how much the best of n points, measured once, looks faster than the same point measured again: "
    + ", ".join(f"{n} points {percent:+.1f}%" for n, percent in zip(counts, promised)),
    keep=results,
)

# %% [markdown]
# A single point is too fast as often as it is too slow. But the **best** of many points was chosen for its result, and
# good luck is part of that result: the best of a hundred promises far more than it keeps. This is called the **winner's
# curse**. It is in every report of a best trial. So a gain of a few per cent, found among 173 settings, needs a second
# look before you believe it.
#
# There are two remedies, and you want both:
#
# - **Repeats.** Measure a point several times, and take the median.
# - **A confirmation.** When the search is over, measure the best and the default again, in turns. Report *that* ratio,
#   with its interval.
#
# Repeats cost time. But a point that is far behind in its first measurement needs no second one. To end such a trial
# early is called [**pruning**](../docs/glossary.md#pruning). `lab tune` prunes a trial that is far behind the best so
# far. Here each point has two measurements, one from each round:


# %%
def measured_anew(rounds):
    """An objective that gives each point's rounds one after the other."""
    unused = {point: list(speeds) for point, speeds in zip(speed, zip(*rounds))}
    return lambda settings: unused[tuple(settings.values())].pop(0)


print(f"A trial is pruned when it is more than {tune.PRUNING_MARGIN:.0%} behind the best.")
for repeats in (1, 2):
    tried = tune.search(space, measured_anew((first, second)), 2 * at, seed=1, repeats=repeats)
    chosen = tune.best(tried)
    pruned = sum(trial.state == "pruned" for trial in tried)
    runs = sum(len(trial.values) for trial in tried)
    print(f"repeats {repeats}: {len(tried)} trials, {pruned} of them pruned; {runs} measurements")
    print(f"   promised {chosen.value:,.0f} images/s; both rounds say {look_up(chosen.settings):,.0f}")

# %% [markdown]
# With two repeats, the promise is all that the table knows about a point, so it has to be true. A real machine can be
# asked a third time. That is the confirmation, at the end of the next section.
#
# ## 6 · This machine, live
#
# Now without a table: a trial runs a command and reads the number that it prints, its **metric**. The command is the
# kit's benchmark, which trains the MNIST CNN. Every setting is an environment variable here, and a search needs to know
# nothing else about a program. The search of 2018 worked in the same way: a script got both knobs as variables, ran a
# few batches, and left its result in a file.

# %%
NETWORK = "mnist"  # or "speech" or "resnet50": see the end of this section

# The commands that are started below find the kit's Python and its package, wherever this notebook runs.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
os.environ["PYTHONPATH"] = str(ROOT)
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # without it, older CPUs would get Eigen

cores = machine.usable_cores
openmp = configurations.OPENMP.exists()  # the Python of the build with OpenMP
seen = len(machine.cpus)  # hardware threads: as many threads TensorFlow and OpenMP take by default
inter = 2 if openmp else seen  # TensorFlow's source: NumInterOpThreadsFromSessionOptions in process_util.cc
threads = sorted({max(1, cores // 2), cores, 3 * cores // 2, 2 * cores, seen})
live_space = {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": sorted({1, 2, inter})}
live_default = {"TF_NUM_INTRAOP_THREADS": seen, "TF_NUM_INTEROP_THREADS": inter}
if openmp:
    live_space |= {
        "OMP_NUM_THREADS": threads,
        "KMP_BLOCKTIME": [0, 1, 200],
        "KMP_AFFINITY": ["none", "granularity=fine,compact,1,0"],
    }
    live_default |= {"OMP_NUM_THREADS": seen, "KMP_BLOCKTIME": 200, "KMP_AFFINITY": "none"}
    python = configurations.OPENMP
else:
    print("The build with OpenMP is not here (./lab setup makes it), so there are fewer knobs.")
    live_space |= {"TF_ENABLE_ONEDNN_OPTS": [0, 1]}
    live_default |= {"TF_ENABLE_ONEDNN_OPTS": 1}
    python = Path(sys.executable)
points = tune.size(live_space)
print(f"{points} points on {cores} cores:")
for knob, values in live_space.items():
    print(f"{knob:24} {', '.join(map(str, values))}")

batch = {"mnist": 64, "speech": 64, "resnet50": 16}[NETWORK]
train = [str(python), "-m", "labkit.bench", f"--model={NETWORK}", f"--batch_size={batch}"]
train += [f"--num_batches={LIVE_STEPS[NETWORK]}"]
done = processes.run(train, env=live_default, timeout=300)
print(*done.lines[-8:], sep="\n")

# %% [markdown]
# The first trial is always the **default**: what the programs choose when nobody sets anything. It is what you compare
# with, and it is often hard to beat.
#
# ### Exercise 4 · An objective
#
# A search calls a function, the [**objective**](../docs/glossary.md#objective), which takes the settings and returns
# the metric. Write `throughput(argv, settings, timeout)`. It runs a command with the settings in its environment, and
# returns the number after `total images/sec: ` as a float. (Not the number of a line such as `10  images/sec: 4321.0`.)
#
# With some settings, a command will crash, hang, or print nothing. Then raise a `LabError` that says why. The search
# records it and goes on. A command that prints its metric and **then** crashes has failed, too.
#
# Use `processes.run(argv, env=…, timeout=…)`. It starts a command with these variables added to the environment, and
# ends it after `timeout` seconds. What it returns has `lines`, which the command printed, and `failure`, which is empty
# unless the command failed.


# %%
def throughput(argv, settings, timeout=300):
    """Images/s of a command with these settings in its environment; LabError when it fails."""
    ### BEGIN SOLUTION
    done = processes.run(argv, env=settings, timeout=timeout)
    if done.failure:
        raise LabError(done.failure)
    for line in done.lines:
        found = re.search(r"total images/sec: ([\d.]+)", line)
        if found:
            return float(found.group(1))
    raise LabError("it printed no total")
    ### END SOLUTION


# %% tags=["nbval-check-output"]
throughput = check(4, throughput)

# %% [markdown]
# The search is the one of section 4, with your objective. It measures each trial twice, unless it prunes it after the
# first measurement. Each measurement needs a few seconds to start TensorFlow: on two cores, the next cell takes **about
# 100 seconds**. Meanwhile, watch the cores: the bars show how busy each core is that you may use. The kernel counts it.
# (In a terminal, `top` shows the same when you press 1.)
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** For what share of the search will all cores be busy?
#
# </div>

# %%
began = time.monotonic()


def print_trial(trial, so_far):
    """Print a line for each trial."""
    best = tune.best(so_far)
    what = f"{trial.value:8,.0f} images/s" + " (pruned)" * (trial.state == "pruned") + f" {load.BUSY_MARK}" * trial.busy
    changed = [f"{knob}={value}" for knob, value in trial.settings.items() if value != live_default[knob]]
    print(
        f"{len(so_far):2} of {LIVE_TRIALS}  {time.monotonic() - began:3.0f} s ",
        f"failed: {trial.failure}" if trial.state == "failed" else f"{what:28}",
        f"best {best.value if best else math.nan:8,.0f} ",
        " ".join(changed) or "the default",
        flush=True,
    )


with load.watch("section 6") as search_others, core_use.live("during the search") as use:
    tried = tune.search(
        live_space,
        lambda settings: throughput(train, settings),
        trials=LIVE_TRIALS,
        repeats=LIVE_REPEATS,
        default=live_default,
        on_trial=print_trial,
    )
winner = tune.best(tried)
minutes = (time.monotonic() - began) / 60
print(f"All cores were busy for {use.all_busy:.0%} of the time.")

# %% [markdown]
# The picture is one row for each core. TensorFlow starts mostly on one core: it reads its libraries and builds the
# graph. Only then does it train. A search pays for the start with each measurement, and learns nothing from it.

# %% jupyter={"source_hidden": true}
values = np.array([trial.value for trial in tried])
states = np.array([trial.state for trial in tried])
numbers = np.arange(1, len(tried) + 1)
figure, axis = plt.subplots()
finished = np.where(states == "done", values, -np.inf)
axis.step(numbers, np.maximum.accumulate(finished), where="post", color=plots.BLUE, marker="", label="best so far")
for state, colour, marker, label in (
    ("done", plots.BLUE, "o", "a trial, median"),
    ("pruned", plots.VERMILION, "X", "pruned"),
):
    axis.scatter(numbers[states == state], values[states == state], color=colour, marker=marker, s=70, label=label)
axis.axhline(values[0], color=plots.BLACK, linestyle="--", linewidth=1.5, marker="", label="default")
axis.set(xlabel="trial", ylabel="images/s", title="A search, live", ylim=(0, None))
axis.xaxis.get_major_locator().set_params(integer=True)
axis.legend()
plots.show(
    figure,
    alt=f"Images per second of {len(tried)} trials, in order: "
    + ", ".join(f"{value:,.0f}{f' ({state})' * (state != 'done')}" for value, state in zip(values, states))
    + f". The default, the first, has {values[0]:,.0f}; the best {winner.value:,.0f}.",
    keep=results,
)

# %% [markdown]
# The best trial has a result, and by now you know what that result is worth. So the default and the best are measured
# again, in turns, each time in a new process, which takes **about half a minute**. Each round gives a ratio. How well
# the rounds agree gives the 95% [**confidence interval**](../docs/glossary.md#confidence-interval).


# %%
def tell_gain(promised, gain):
    """Say what the confirmation shows of the best settings, and no more than that."""
    if gain is None:
        print(
            f"The search promised {promised:.2f} times the default. That is not confirmed: nothing was measured again."
        )
        return
    print(f"The search promised {promised:.2f} times the default. Measured again: {gain} times, {gain.verdict}.")
    if promised > gain.high:
        print("The promise is above the interval: think of the winner's curse.")
    print("Use these settings." if gain.verdict == "faster" else "Keep the default.")


won_by_default = winner.settings == live_default
challenger = tune.best([trial for trial in tried if trial.settings != live_default])  # which had all its repeats
gain = None
if won_by_default:
    print(
        "The default won the search.",
        "Here is the best of the others against it:" if challenger else "All others were pruned or failed.",
    )
if challenger:
    again = {"default": [], "best": []}
    with load.watch("section 6") as gain_others:
        for number in range(1, CONFIRMATION_ROUNDS + 1):
            for name, settings in (("default", live_default), ("best", challenger.settings)):
                again[name].append(throughput(train, settings))
            measured = ", ".join(f"{name} {speeds[-1]:8,.0f}" for name, speeds in again.items())
            print(f"round {number} of {CONFIRMATION_ROUNDS}: {measured} images/s", flush=True)
    if CONFIRMATION_ROUNDS:
        gain = ratio(again["best"], again["default"])
    tell_gain(challenger.value / tried[0].value, gain)

# %% [markdown]
# No gain is a result, too. By default, TensorFlow and OpenMP start one thread for each *hardware thread* that they see.
# Where each core has one hardware thread, that may already be the hilltop. The machine of 2018 had 112 of them on 56
# cores. And in a container that may use two of many cores, they may see all of the cores. In both cases, the default
# starts more threads than there are cores to run them.
#
# **A gain is a statement about two settings: the best, and the one that you started from.** Those 8.3% are no
# exception. The settings that mattered there were the prefetchers of the caches, the clock rate of the uncore, and how
# readily the kernel wakes a process. Afterwards it turned out that the L2 prefetcher of the server had been switched
# off before the search began. The search switched it on, as it is by default. It repaired the machine.
#
# **Ready early? Tune another network.** The 8.3% and the 8% are those of two recurrent networks, one for translation
# (GNMT) and one for speech (DeepSpeech). `speech` is a small relative of the second. It goes through a sequence of 40
# frames twice, forwards and backwards, frame by frame. (The benchmark calls a sequence an image.) Look at `speech` in
# `labkit/models/architectures.py`. Which of its operations can run at the same time? Which numbers of inter-op and
# intra-op threads should be best for it? Write your guess down. Then set `NETWORK = "speech"` above, and run this
# section again: on two cores, about 4 minutes. Is the best point of one network good for the other? `"resnet50"` is the
# long version, as in 2018: about a quarter of an hour on two cores.
#
# ## 7 · A command of your own
#
# All of that is one command: `lab tune -- COMMAND`. It tunes any program that prints a metric. Let it tune one that has
# nothing to do with TensorFlow. This script finds the nearest of 64 colours for each pixel, as the K-Means of lab 09
# does. It works on some pixels at a time.

# %%
# %%writefile work/nearest.py
"""Find the nearest of 64 colours for each pixel, and print how many pixels that makes in a second."""

import argparse
import time

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--chunk", type=int, default=1_000_000, help="pixels at a time")
chunk = parser.parse_args().chunk

rng = np.random.default_rng(0)
pixels, colours = rng.random((500_000, 3), "float32"), rng.random((64, 3), "float32")
nearest = np.empty(len(pixels), int)
start = time.perf_counter()
for first in range(0, len(pixels), chunk):
    part = slice(first, first + chunk)
    distances = np.square(colours).sum(axis=1) - 2 * pixels[part] @ colours.T  # without the term that all colours share
    nearest[part] = distances.argmin(axis=1)
print(f"pixels/s: {len(pixels) / (time.perf_counter() - start):.0f}")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many pixels at a time are best? And can a setting of the memory allocator matter in a program
# that only multiplies?
#
# </div>
#
# The knobs are in a small file. For each knob, it says which values are possible and where the value goes: into a
# variable (`env`), after the command (`flag`), or before it (`prefix`, as for `numactl`).

# %%
knobs = """\
[chunk]
text = "pixels at a time"
type = "choice"
values = [64, 256, 1024, 4096, 16384, 65536, 262144]
flag = "--chunk={value}"

[threads]
text = "threads of OpenBLAS, for the product"
type = "integer"
low = 1
high = "cpus"
env = "OPENBLAS_NUM_THREADS"

[memory_kept]
text = "bytes that malloc asks for in advance, and keeps: mallopt's M_TOP_PAD"
type = "choice"
values = [0, 1048576, 67108864]
env = "MALLOC_TOP_PAD_"
"""
(work / "knobs.toml").write_text(knobs)
Code(knobs, language="toml")

# %% [markdown]
# The next cell prints the command, and runs it: **about half a minute**. To type it yourself, open a terminal in
# JupyterLab: it starts in the folder of your notebooks. `lab tune` runs each point three times, and confirms the best
# at the end.

# %%
out = work / "tune-nearest"
tool = ["tune", "--knobs", "work/knobs.toml", "--metric", r"pixels/s: (\d+)", "--out", str(out)]
tool += ["--trials", str(OWN_TRIALS), "--repeats", str(OWN_REPEATS), "--rounds", str(OWN_ROUNDS)]
tool += ["--", "python", "work/nearest.py"]
print(shlex.join([os.path.relpath(ROOT / "lab"), *tool]), end="\n\n")
shutil.rmtree(out, ignore_errors=True)  # else it would go on with the trials of the last time
with load.watch("section 7") as own_others:
    no_colours = {"FORCE_COLOR": None}  # Jupyter asks for them
    done = processes.run(["labkit", *tool], env=no_colours, timeout=300, on_line=print)
if done.failure:
    raise LabError(f"lab tune: {done.failure}. Its last lines are above.")
own_gain = "the default was the best"
if (out / "confirmation.json").exists():
    in_turns = json.loads((out / "confirmation.json").read_text())  # pixels/s, round by round
    times = ratio(in_turns["best"], in_turns["default"])
    own_gain = Measured(*times, "×", note=times.verdict)
results.hand_in("7", ("your own command (nearest colours)", "", own_gain, "", own_others))  # for the closing table

# %% jupyter={"source_hidden": true}
for name in ("search.png", "importance.png"):
    captions = [line.split(": ", 1)[1] for line in done.lines if line.startswith(f"{out / name}: ")]
    if captions:  # the importance of knobs needs a few trials
        display(Image(out / name, alt=captions[0]))

# %% [markdown]
# You take a file along, which you can `source`. It contains the verdict, too:

# %%
Code(filename=out / "best.env", language="bash")

# %% [markdown]
# Several knobs were turned at once. **What is each of them worth?** Take the best settings, and put back one knob at a
# time. How much is lost? That is called an [**ablation**](../docs/glossary.md#ablation). Again, all are measured in
# turns.


# %%
def pixels_per_second(settings):
    """Run the script with settings as in the table of trials, where an empty text is a knob that is left alone."""
    flags = [f"--chunk={settings['chunk']}"] if settings["chunk"] else []
    names = {"threads": "OPENBLAS_NUM_THREADS", "memory_kept": "MALLOC_TOP_PAD_"}
    env = {variable: settings[knob] or None for knob, variable in names.items()}
    done = processes.run(["python", "work/nearest.py", *flags], env=env, timeout=60)
    if done.failure:
        raise LabError(done.failure)
    return float(done.lines[-1].removeprefix("pixels/s: "))


def tell_worth(knob, lost):
    """Say what the rounds show of one knob, and no more than that."""
    meaning = {"slower": ": with it, the script is faster", "faster": ": the script is better off without it"}
    print(f"the best, but {knob} left alone: {lost} times as fast: {lost.verdict}{meaning.get(lost.verdict, '')}")


trials = pd.read_csv(out / "trials.csv", dtype=str, keep_default_na=False).query("state == 'done'")
found = trials.loc[trials.metric.astype(float).idxmax(), ["chunk", "threads", "memory_kept"]].to_dict()
variants = {"best": found} | {knob: found | {knob: ""} for knob, value in found.items() if value}
pixels = {name: [] for name in variants}
with load.watch("section 7") as ablation_others:
    for _ in range(ABLATION_ROUNDS):
        for name, settings in variants.items():
            pixels[name].append(pixels_per_second(settings))
for knob, speeds in list(pixels.items())[1:]:
    tell_worth(knob, ratio(speeds, pixels["best"]))

# %% [markdown]
# (Each knob has an interval of its own, from its rounds and those of the best: one setting can vary far more than the
# others. And each measurement is a new process, since a relaunch is another sample.)
#
# Can you explain what you see? The default works on all pixels at once: 500,000 × 64 distances, 128 MB, which is more
# than most caches hold. With chunks of 64 pixels, Python's loop takes more time than the work. In between, each chunk's
# arrays are freed and allocated again, over and over. An allocator that gives freed memory back to the system has to
# ask for it again, page by page. `memory_kept` changes that. So a setting of the *allocator* can matter to a program
# that only multiplies. Whether it does here, the lines above say.
#
# **Now yours.** Take a program that you often run and that prints a metric, or make it print one. Write down three
# knobs, and guess which of them matters. Then run `lab tune` in a terminal, with `--minutes 10`. When you interrupt it,
# the same command goes on from there. When you change the knobs, name another folder with `--out`. `--help` lists the
# other options. Without a command, `lab tune` tunes the kit's ResNet-50.

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. The instructor's notebook has answers.
#
# 1. What do inter-op and intra-op threads set, and why are their best values hard to know beforehand?
# 2. Why did 173 trials of 9.13 · 10¹⁷ settings find something? What would they have missed?
# 3. Intra 28, inter 2, on 2 × 28 cores with two hardware threads each: how are these numbers related to the machine?
# 4. "1.77 times": times what? What was changed besides the two knobs?
# 5. The L2 prefetcher was off before the search began. What does that say about the 8.3%?
# 6. Why is the best trial's metric too good? Does it help to run more trials?
# 7. When does random search do as well as a search with a memory?
# 8. Two hours of a program replace tens of hours of an engineer. What does the engineer still have to do?
# 9. You tuned with batch size 64. Would you trust the result for 256? For another machine?

# %% [markdown] tags=["instructor"]
# ### Answers
#
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions:
#
# 1. Inter-op: how many independent operations run at the same time. Intra-op: how many threads share one operation. The
#    number of cores is known, but not how many operations of a graph can run at the same time at each moment. And more
#    threads also mean more contention for caches and memory.
# 2. Many settings hardly matter, so a large share of all combinations is good. What counts is the share of good points,
#    not their number. A rare combination, one in a thousand or fewer, would have been missed, and nobody would know.
# 3. 28 is the number of one socket's cores. The threads of one operation stay within one socket's memory, and don't
#    share a core with another hardware thread. Two operations at the same time then use both sockets. So a person could
#    have guessed it. That is typical: most optima can be explained afterwards.
# 4. Times a baseline that the report does not describe. If it was TensorFlow's default, it had an intra-op thread for
#    each of 112 hardware threads. `OMP_NUM_THREADS` was set as well, to the number of intra-op threads. This is a third
#    knob, and nobody can tell what each knob contributed. The report also does not say how many trials there were, or
#    how much the metric varied.
# 5. Part of the gain was the repair of a machine that was set wrongly. On a server with its prefetcher on, the same
#    settings would have gained less. The baseline belongs in every report. It is also the best argument for a search:
#    nobody had noticed.
# 6. It was chosen for its metric, and luck is part of that. More trials make it worse. Repeats and a confirmation with
#    new measurements help.
# 7. When many points are good, when knobs don't depend on what was learnt, when noise is larger than the differences,
#    and for the first trials. It is also easy to run on many machines at the same time.
# 8. Choose the knobs and their values, a workload that represents the real one, and a metric that measures what
#    matters. (Images/s says nothing about accuracy, and batch size changes both.) Then understand the result, to know
#    when it will stop being true.
# 9. Neither. Larger operations keep more threads busy, and another machine has other cores, caches, and defaults. Tune
#    again, with the old best as one of the first trials.
#
# **Another network** (end of section 6) The forward and the backward LSTM of `speech` don't depend on each other, so
# two operations can run at the same time: inter-op 2 can help. The product of each step is small (64 × 128 by 128 ×
# 512), and the next step waits for it, so many intra-op threads can cost more than they bring. Compare the best
# settings of both networks, and confirm one network's best on the other before anybody says that they differ.
#
# **Timing** Sections 1 and 2 take 7 minutes, section 3 takes 10, section 4 takes 15, section 5 takes 12, and section 6
# takes 17. The live search runs for about 2 minutes, and the confirmation for 1. Start it, and discuss question 4 or 5
# meanwhile. Section 7 is optional and takes 8. Short of time? Skip it. Students can run it at home with a program of
# their own, which is the better exercise anyway. ResNet-50 in section 6 is for home too.
#
# **Goes wrong** Two notebooks that tune at the same time on the same cores tune each other. In a room with one machine
# for all, run section 6 once, for everyone to see. A laptop that runs on battery, or that gets warm, drifts. That is
# why the confirmation takes turns: its interval is honest, but wide. To measure the grid of section 2 on a machine of
# your own, see `data/README.md`; it takes 20 minutes.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Count the points of the space before you search it. Then think of the share of good points, not of their number.
# - Random search is never a bad idea. A search with a memory needs fewer trials, once it has seen a few.
# - The best of many trials is also the luckiest. Confirm it against the default, in turns, with an interval.
# - A gain is a statement about two settings. Say which one was the baseline.
# - A failed trial is a result: record it and go on.
#
# Here is what was published, what you measured, and what the machine could do at most:

# %%
after = f"after {minutes:.1f} min"
tuned = Measured(*gain, "×", note=f"{gain.verdict} {after}") if gain else f"not measured again {after}"
tuned_others = gain_others if gain else search_others
chosen = challenger.settings if gain and gain.verdict == "faster" else live_default


def share_of_best(name):
    """Return which share of the grid's best a search has found after so many trials, on average."""
    return Measured(100 * so_far[name][:, at - 1].mean(), unit="%", digits=0)


results.table(
    "tuning",
    [
        ("inter-op × intra-op on 2 × 28 cores, points", f"{two_knobs}", f"{points}, {len(live_space)} knobs", ""),
        (
            f"ResNet-50 (here: {NETWORK}), best over default",
            "1.77× after 2 h 8 min",
            tuned,
            "",
            tuned_others,
        ),
        (
            "its best settings",
            "intra 28, inter 2",
            "the default" if chosen == live_default else " ".join(f"{k}={v}" for k, v in chosen.items()),
            "",
            tuned_others,
        ),
        ("GNMT, DeepSpeech: CPU and system, 173, 156 trials", "+8.3%, +8%", "not tried: needs root", ""),
        ("TensorFlow's threads by TensorTuner: Eigen; MKL", "2–123%; 1.5–28%", "", ""),
        *results.handed_in("7", ("your own command (nearest colours)", "")),
        (
            f"share of the shipped grid's best, {at} trials: random",
            "",
            share_of_best("random"),
            "100%",
        ),
        ("the same: TPE of Optuna", "", share_of_best("TPE of Optuna"), "100%"),
        ("the same: lab tune, blind start", "", share_of_best("lab tune"), "100%"),
        ("the same: lab tune, default first", "", share_of_best("lab tune, default first"), "100%"),
        ("trials to 97% of it: random, lab tune", "", f"{to_97['random']}, {to_97['lab tune']}", f"{len(grid)} points"),
    ],
)

# %% [markdown]
# Published: Concertio with Intel, 2018: Optimizer Studio on 2 × Xeon Platinum 8180 (ResNet-50, GNMT and DeepSpeech).
# TensorTuner: Hasabnis, 2018, arXiv 1812.01665. Random search: Bergstra and Bengio, *Random Search for Hyper-Parameter
# Optimization*, JMLR 13 (2012). TPE: Bergstra et al., *Algorithms for Hyper-Parameter Optimization*, NeurIPS 2011;
# Optuna: Akiba et al., 2019, arXiv 1907.10902. Next: lab 06 leaves the single process, and sends gradients between
# many.
