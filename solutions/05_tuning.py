# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 05 · Let a program tune it
#
# **Why?** The same training on the same machine can run at half its speed because of a few settings, and nobody sees
# it: a slow run prints no error. Trying them by hand takes days.
#
# **You will learn** how a program finds the settings that make training fastest. You will see how close to the best
# speed it comes in how few trials, why some settings are not slow but unstable, why the best trial looks better than it
# is, and how to confirm a gain. Then you tune this machine, and a command of your own.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which explains the threads that are tuned here, and lab 03, which tries a few settings for
# ResNet-50 by hand.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("05", globals())

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
from labkit.display import core_use, ladder, plots
from labkit.display.measured import Measured
from labkit.system import load, processes
from labkit.system.errors import LabError
from labkit.system.paths import DATA, ROOT
from labkit.system.statistics import interval, ratio
from labkit.tune import search as tune

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
SEEDS = 2 if QUICK else 15  # searches of each kind: section 4
SEARCH_SHARE = 0.1 if QUICK else 0.2  # of the grid's points, as a search's trials
DRAWS = 200 if QUICK else 2000  # section 5
STEPS = (5, 5, 5) if QUICK else (100, 30, 10)  # section 6: of a run of each network
LIVE_TRIALS, LIVE_REPEATS = (2, 1) if QUICK else (16, 2)  # section 6; of each trial
CONFIRMATION_ROUNDS = 0 if QUICK else 8
LAUNCHES = 2 if QUICK else 6  # section 7: of one and the same command
OWN_TRIALS, OWN_REPEATS, OWN_ROUNDS = (2, 1, 2) if QUICK else (30, 3, 5)  # section 7
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
print(f"inter-op × intra-op: {two_knobs} settings. A minute each: {two_knobs / 60:.0f} hours")
print(f"CPU and system: as many combinations as {math.log2(system):.0f} on/off switches have.")
print(f"A minute each: {system / 525_960:.1e} years")

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
print(*(line for line in GRID.read_text().splitlines() if line.startswith("#")), sep="\n")
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
        place = (number + 0.5) * width - 0.5, table.shape[0] - 0.3
        axis.text(*place, f"intra {threads}", ha="center", fontsize=11)
    for number, threads in enumerate(space["omp"]):
        axis.axhline(number * height - 0.5, color="white")
        place = -2.2 if axis is axes[0] else -1.2, (number + 0.5) * height - 0.5
        axis.text(*place, f"OMP {threads}", ha="center", va="center", rotation=90)
    for point, mark in marks.items():
        omp, intra, inter, blocktime, its_affinity = point
        if its_affinity == affinity:
            place = table.columns.get_loc((intra, inter)), table.index.get_loc((omp, blocktime))
            style = dict(ha="center", va="center", fontsize=15, fontweight="bold")
            axis.annotate(mark, place, color=plots.BLACK, **style)
    axis.set_xlabel("inter-op threads")
    pinned = "threads not pinned" if affinity == "none" else "threads pinned to cores"
    axis.set_title(pinned, pad=22)
axes[0].set_ylabel("KMP_BLOCKTIME, ms", labelpad=34)
figure.colorbar(image, ax=axes, label="share of the best point's images/s")
figure.suptitle("Training the MNIST CNN: every point of the grid (D the default, B the best)")
by_omp = grid.groupby("omp").images_s.max() / top
plots.show(
    figure,
    alt=f"Two maps of {len(grid) // 2} cells each, pinned and not, coloured by speed. The best "
    "with each number of OpenMP threads: "
    + ", ".join(f"{omp} threads {value:.0%}" for omp, value in by_omp.items())
    + " of the best.",
    keep=results,
)

# %% [markdown]
# Look at the picture before you go on. Which knob matters most? Which one hardly matters? And for which knob does the
# best value depend on another knob? Tuning one knob at a time explores one row of this map.
#
# This is the best speed that can be reached with each value of each knob:

# %%
for knob, values in space.items():
    reach = grid.groupby(knob).images_s.max() / top
    print(f"{knob:10}", "   ".join(f"{value!s:.12}: {reach[value]:4.0%}" for value in values))

# %% [markdown]
# One knob decides here, and the others hardly matter. That is common: of many hyperparameters, only a few really
# matter, but which ones differs from one data set to the next (Bergstra and Bengio, 2012). It is why a random search
# wastes less than a grid: each of its trials has a new value of the knob that matters, whichever that is.
#
# Now the same for two knobs together, the best speed for each pair of values:

# %%
pairs = grid.pivot_table(index="omp", columns="inter", values="images_s", aggfunc="max") / top
print("inter-op threads:       ", *(f"{inter:5}" for inter in pairs.columns))
for omp, row in pairs.iterrows():
    print(f"OMP_NUM_THREADS={omp}:      ", *(f"{value:5.0%}" for value in row))

# %% [markdown]
# With one OpenMP thread, a second inter-op thread gains more than a third. With two OpenMP threads, it loses 5%. When
# the effect of one knob depends on the value of another, the two have an
# [**interaction**](../docs/glossary.md#interaction). Somebody who chooses `inter` with one OpenMP thread, and only then
# the number of OpenMP threads, misses the best point.

# %% [markdown]
# ## 3 · Search blindly
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** You draw 14 points of the grid at random, which is 5% of it. You measure them and take the best. How
# near do you come to the best of all, on average?
#
# </div>

# %%
results.guess(1, "the best of 14 random points, of the grid's best", ..., unit="%")

# %% [markdown]
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
    good = math.ceil(points / 20)
    needed = next(n for n in itertools.count(1) if chance(points, good, n) >= 0.95)
    print(f"{points:9,} points: {needed} trials ({needed / points:.2%})", end=" ")
    print("for one of the best 5%, with a chance of 95%")
print(f"endless space, 60 trials: a chance of {1 - 0.95**60:.1%}")

# %% [markdown]
# That answers half of section 1's question. The number of trials depends on how many points are *good*, and hardly on
# how many there *are*. With a chance of 95%, sixty random trials find one of the best 5% of a space, however large.
#
# The other half: being among the best 5% is not being near the best, unless the landscape is smooth. Where one point in
# a thousand stands out, a random search will most likely miss it.
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
# it really was, in each of the two lists. (Statistics calls this add-one or Laplace smoothing.)


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
        in_good, in_rest = ([point[knob] for point in points] for points in (good, rest))
        product *= float(score(value, values, in_good, in_rest))
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
# The kit's `lab tune` models the speed itself, by a [**Gaussian process**](../docs/glossary.md#gaussian-process). It
# assumes that neighbouring points perform alike: 3 threads are next to 4. For each untried point, it predicts a speed
# and an uncertainty, and tries the point with the largest expected improvement.
#
# Let it compete with yours, with random search, with Optuna's TPE, and with a
# [**grid search**](../docs/glossary.md#grid-search), which tries all points in the order in which they are written.
# (That TPE is Optuna's with five random trials first; it looks at all knobs together, and never tries a point twice.
# Optuna has a Gaussian process too, `GPSampler`, which needs PyTorch and is not in this race.)
#
# Each search depends on chance, so each runs 15 times: **about 20 seconds**. No process is started: a trial only looks
# up a point in the table.

# %%
budget = int(SEARCH_SHARE * len(grid))  # trials of a search
began = time.monotonic()


def found_by(seed, **options):
    """The metrics of a search of the grid by the kit."""
    return [trial.value for trial in tune.search(space, look_up, budget, seed, **options)]


SEARCHES = {
    "random": partial(found_by, sampler="random"),
    "yours": lambda seed: your_search(space, look_up, budget, seed),
    "TPE of Optuna": partial(found_by, sampler="tpe"),
    "lab tune": found_by,
    "lab tune, default first": partial(found_by, default=default),
}
so_far = {}  # by search: (seeds, trials), the best so far as a share of the grid's best
for name, one in SEARCHES.items():
    so_far[name] = np.maximum.accumulate([one(seed) for seed in range(SEEDS)], axis=1) / top
    print(f"{name}: {SEEDS} searches of {budget} trials, {time.monotonic() - began:.0f} s")
in_order = np.maximum.accumulate(grid.images_s) / top  # in the order of nested loops
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
    if name in ("random", "lab tune"):
        band = np.quantile(so_far[name], (0.1, 0.9), axis=0)
        axis.fill_between(trials, *band, color=colour, alpha=0.15)
    mean = so_far[name].mean(axis=0)
    axis.plot(trials, mean, color=colour, ls=line, marker=marker, markevery=5, label=name)
axis.plot(trials, in_order[:budget], color="black", ls=":", marker="", label="grid, in order")
axis.axhline(0.97, color="grey", linewidth=1, marker="")
axis.text(budget, 0.965, "97%", ha="right", va="top", color="dimgrey")
to_percent = (lambda n: 100 * n / len(grid), lambda percent: percent * len(grid) / 100)
top_axis = axis.secondary_xaxis("top", functions=to_percent)
top_axis.set_xlabel("share of the space tried, %", fontsize=11)
axis.set(xlabel="trials", ylabel="best so far, share of the grid's best", ylim=(None, 1.01))
axis.xaxis.get_major_locator().set_params(integer=True)
axis.legend(loc="lower right")
axis.set_title("How much of the best is found in how many trials (means)")
plots.show(
    figure,
    alt=f"Share of the grid's best so far against trials, mean of {SEEDS} searches; for random "
    "and lab tune with a band of 80% of them. "
    + "; ".join(f"{name}: {so_far[name][:, at - 1].mean():.0%} after {at}" for name in styles)
    + f"; grid in order: {in_order[at - 1]:.0%} after {at}.",
    keep=results,
)


# %%
def trials_to(goal, shares):
    """The median number of trials to a share of the best, as text."""
    reached = (shares >= goal).any(axis=1)
    needed = np.where(reached, 1 + (shares >= goal).argmax(axis=1), budget + 1)
    median = np.median(needed)
    return f"{median:.0f}" if median <= budget else f"more than {budget}"


to_97 = {name: trials_to(0.97, shares) for name, shares in so_far.items()}
found_at = {}  # by search: its mean share of the best after 5% of the points, with interval
for name, shares in so_far.items():
    mean, half = interval(100 * shares[:, at - 1])
    found_at[name] = Measured(mean, mean - half, mean + half, "%", digits=1)
print(f"{'':24}{f'after {at} trials (5%)':>26}{f'after {budget}':>12}{'trials to 97%':>20}")
for name, shares in so_far.items():
    print(f"{name:24}{found_at[name]!s:>26}{shares[:, -1].mean():12.1%}{to_97[name]:>20}")
results.compare_guess(1, found_at["random"])

# %% [markdown]
# Read the picture from the left. In their first five trials, all searches are blind: where the curves differ there,
# that is the luck of 15 searches, and no merit. After that, a search with a memory looks where the good points were.
# The grid in its order stays in one corner. So don't tune by nested loops unless you can wait for their end.
#
# In brackets is the interval for the mean of 15 searches. Where two overlap, 15 searches can't rank them. With 200
# searches of each kind, made once for the kit, `lab tune` found 95.6% after 14 trials, TPE 93.6%, and random search
# 92.3%, each ± 0.6.
#
# The last line of the table is how `lab tune` really works. It tries the **default first**, because the best has to be
# compared with the default. Whether this also helps the search depends on how good the default is. You saw its share of
# the best in section 2.
#
# **Where you meet this.** Horovod, the library of lab 07, has such a search inside: *autotune* (`HOROVOD_AUTOTUNE=1`).
# During the first steps of a training run, Bayesian optimisation with a Gaussian process chooses how many megabytes of
# gradients are sent at once, how long to wait for more of them, and a few switches. It measures how much is all-reduced
# in a second, and leaves alone what would change the result, such as compression. (Compilers for GPUs tune kernels too:
# `triton.autotune` measures each configuration of a short list.)
#
# ## 5 · Unstable, or just lucky?
#
# So far a trial gave the same result each time. On a real machine it doesn't. Each point of the grid was measured
# twice, in two rounds with different orders. How much do the two measurements of a point differ? And the default's?

# %%
first, second = grid.round1.to_numpy(), grid.round2.to_numpy()
apart = np.expm1(np.abs(np.log(first / second)))
print(f"The two rounds of a point differ by {np.median(apart):.1%} (median),", end=" ")
print(f"{apart.max():.0%} at most.")
at_default = [tuple(point) for point in grid[KNOBS].to_numpy()].index(tuple(default.values()))
both = (first[at_default], second[at_default])
for value in both:
    print(f"the default: {value:,.0f} images/s, {value / top:.0%} of the best")

several, loose, two = grid.inter > 1, grid.affinity == "none", grid.omp == 2
groups = {
    "OMP 2, inter 2 or 3, not pinned": two & several & loose,
    "OMP 2, inter 2 or 3, pinned": two & several & ~loose,
    "OMP 2, inter 1": two & ~several,
    "OMP 1, 3 or 4": ~two,
}
unsteady = {
    name: f"{np.sum(apart[chosen] > 0.2)} of {chosen.sum()} points differ by over 20%"
    for name, chosen in groups.items()
}
for name, text in unsteady.items():
    print(f"{name:32} {text}")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(6.5, 6))
axis.axline((3000, 3000), slope=1, color=plots.BLACK, linewidth=1, linestyle="--", marker="")
for (name, chosen), colour, marker in zip(
    reversed(groups.items()), ("lightgrey", plots.SKY, plots.BLUE, plots.VERMILION), "os^D"
):
    axis.scatter(first[chosen], second[chosen], color=colour, marker=marker, s=36, label=name)
axis.annotate("default", both, xytext=(-10, -18), textcoords="offset points", ha="right")
axis.set(
    xlabel="round 1, images/s",
    ylabel="round 2, images/s",
    title="Each point of the grid, measured twice",
    aspect="equal",
)
axis.legend(loc="lower right", fontsize=11)
plots.show(
    figure,
    alt="Images per second of each point in round 2 against round 1, with a line where they "
    "are equal. " + "; ".join(f"{name}: {text}" for name, text in unsteady.items()),
    keep=results,
)

# %% [markdown]
# Most points lie near the line. The group that strays most often: two OpenMP threads, several inter-op threads, not
# pinned. The **default** is in this group. Section 2 called it "76% of the best". No launch of it ran at 76%: one ran
# at 92%, the other at 59%. Such a setting is not slow but **unstable**, and its mean describes nothing that happens.
#
# A likely reason: each inter-op thread starts a team of two OpenMP threads, so there are more threads than the two
# cores. Where the kernel puts them then differs from launch to launch. But we chose these groups after we had seen the
# data, so this is a guess to be tested. Section 6 starts the default again and again.
#
# For an unstable setting, report the spread, not the mean. Stability is a reason to choose another setting, even one
# that is no faster at its best: on many machines that work together, the slowest one sets the pace (lab 07).
#
# ### The winner's curse
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** You measure a hundred points once each, and take the fastest. Then you measure that point again. Will
# it be as fast as before, faster or slower?
#
# </div>

# %%
results.guess(
    2, "the winner of a hundred, measured again", ..., choices=("faster", "as fast", "slower")
)

# %% [markdown]
# ### Exercise 3 · An honest gain
#
# You have measured some points in two rounds, the default among them. You recommend one point. By what factor is it
# faster than the default?
#
# Write `gain(first, second, default)`. `first` and `second` are numpy arrays: images/s of the same points in the two
# rounds. `default` is the default's place in them. Return one number. Which point you choose, and how you use the two
# rounds, is up to you. The number must be honest:
#
# - If all points are equally fast, and the measurements differ by luck alone, it is 1 **on average** over many such
#   pairs of rounds.
# - If some point really is faster, by far more than luck, it is that point's factor.
# - The machine may be slower in one round than in the other, for all points alike. That must not matter.


# %%
def gain(first, second, default):
    """How many times as fast as the default the best point is, without the luck of the draw."""
    ### BEGIN SOLUTION
    winner = np.argmax(first)  # one round chooses, the other one judges
    return second[winner] / second[default]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
gain = check(3, gain)

# %%
rng = np.random.default_rng(0)
counts = [1, 2, 5, 10, 20, 50, 100]
drawn = {n: [rng.permutation(len(grid))[: n + 1] for _ in range(DRAWS)] for n in counts}
orders = ((first, second), (second, first))  # each round chooses once


def mean_factor(factor, n):
    """The mean of a factor over all draws of n points and a first one, a stand-in default."""
    logs = [np.log(float(factor(a[draw], b[draw], 0))) for draw in drawn[n] for a, b in orders]
    return np.exp(np.mean(logs))


promised = [mean_factor(lambda a, b, default: a.max() / a[default], n) for n in counts]
kept = [mean_factor(gain, n) for n in counts]
too_high = [100 * (promise / truth - 1) for promise, truth in zip(promised, kept)]
for n, promise, truth, excess in zip(counts, promised, kept, too_high):
    print(f"best of {n:3}: promised {promise:.2f}×, kept {truth:.2f}×: {excess:.1f}% too high")
results.compare_guess(2, "slower" if too_high[-1] > 0.5 else "as fast")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
style = dict(linestyle="--", color=plots.VERMILION, marker="s")
axis.plot(counts, promised, **style, label="promised by the round that chose it")
axis.plot(counts, kept, color=plots.BLUE, marker="o", label="kept: your gain")
for n, promise, excess in zip(counts, promised, too_high):
    place = dict(xytext=(0, 8), textcoords="offset points", ha="center", fontsize=11)
    axis.annotate(f"{excess:+.1f}%", (n, promise), **place)
axis.set(
    xscale="log",
    xlabel="points measured besides the first one",
    ylabel="the best, over the first point, ×",
    title="The winner's curse",
)
axis.set_xticks(counts, map(str, counts))
axis.minorticks_off()
axis.margins(y=0.15)
axis.legend(loc="lower right")
plots.show(
    figure,
    alt="How many times as fast the best of some points looks as the first one, as promised by "
    "the round that chose it, and as kept in the other round: "
    + ", ".join(f"{n} points {p:.2f} and {k:.2f}" for n, p, k in zip(counts, promised, kept)),
    keep=results,
)

# %% [markdown]
# The **best** of many points was chosen for its result, and good luck is part of that result: it looks faster than it
# is, by the per cent above. This is the *winner's curse*, a kind of [**selection
# bias**](../docs/glossary.md#selection-bias). It is in every report of a best trial, in two halves: the winner was
# lucky, and the default may have been unlucky. (The "100%" of section 2 is such a winner too: the best of 288 points.)
# So a gain of a few per cent, found among 173 settings, needs a second look before you believe it.
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
    kept_speed = look_up(chosen.settings)
    print(f"repeats {repeats}: {len(tried)} trials, {pruned} pruned; {runs} measurements")
    print(f"   promised {chosen.value:,.0f} images/s; both rounds: {kept_speed:,.0f}")

# %% [markdown]
# With two repeats, the trial has used both measurements of the table, and nothing is left to confirm it with. A real
# machine can be asked again. That is the confirmation, at the end of the next section.
#
# ## 6 · This machine, live
#
# Now without a table: a trial runs a command and reads the number that it prints, its **metric**. The command is the
# kit's benchmark, which trains the MNIST CNN. Every setting is an environment variable here, and a search needs to know
# nothing else about a program. The search of 2018 worked in the same way: a script got both knobs as variables, ran a
# few batches, and left its result in a file.

# %%
NETWORK = "mnist"  # or "speech" or "resnet50": see the end of this section

# The commands started below find the kit's Python and its package, wherever this runs.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
os.environ["PYTHONPATH"] = str(ROOT)
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # without it, older CPUs would get Eigen

cores = machine.usable_cores
openmp = configurations.OPENMP.exists()  # the Python of the build with OpenMP
seen = len(machine.cpus)  # hardware threads: by default TensorFlow and OpenMP start as many
inter = 2 if openmp else seen  # NumInterOpThreadsFromSessionOptions in process_util.cc
threads = sorted({max(1, cores // 2), cores, 3 * cores // 2, 2 * cores, seen})
INTRA, INTER = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"
live_space = {INTRA: threads, INTER: sorted({1, 2, inter})}
live_default = {INTRA: seen, INTER: inter}
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

batch, steps = dict(zip(("mnist", "speech", "resnet50"), zip((64, 64, 16), STEPS)))[NETWORK]
train = [str(python), "-m", "labkit.bench", f"--model={NETWORK}", f"--batch_size={batch}"]
train += [f"--num_batches={steps}"]
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
# 100 seconds**. Meanwhile, watch the cores: the bars show how busy each of your cores is, as the kernel counts it. (In
# a terminal, `top` shows the same when you press 1.)
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** For what share of the search will all cores be busy?
#
# </div>

# %%
results.guess(3, "all cores busy, of the search's time", ..., unit="%")

# %%
began = time.monotonic()


def print_trial(trial, so_far):
    """Print a line for each trial."""
    best = tune.best(so_far)
    marks = " (pruned)" * (trial.state == "pruned") + f" {load.BUSY_MARK}" * trial.busy
    what = f"{trial.value:8,.0f} images/s{marks}"
    settings = trial.settings.items()
    changed = {knob: value for knob, value in settings if value != live_default[knob]}
    print(
        f"{len(so_far):2} of {LIVE_TRIALS}  {time.monotonic() - began:3.0f} s ",
        f"failed: {trial.failure}" if trial.state == "failed" else f"{what:28}",
        f"best {best.value if best else math.nan:8,.0f} ",
        " ".join(f"{knob}={value}" for knob, value in changed.items()) or "the default",
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
results.compare_guess(3, Measured(100 * use.all_busy, unit="%", digits=0))

# %% [markdown]
# The picture has one row for each core. TensorFlow starts mostly on one core: it loads its libraries and builds the
# graph. Only then does it train. A search pays for that start with each measurement, and learns nothing from it.

# %% jupyter={"source_hidden": true}
values = np.array([trial.value for trial in tried])
states = np.array([trial.state for trial in tried])
numbers = np.arange(1, len(tried) + 1)
figure, axis = plt.subplots()
finished = np.where(states == "done", values, -np.inf)
best_so_far = np.maximum.accumulate(finished)
axis.step(numbers, best_so_far, where="post", color=plots.BLUE, marker="", label="best so far")
for state, colour, marker, label in (
    ("done", plots.BLUE, "o", "a trial, median"),
    ("pruned", plots.VERMILION, "X", "pruned"),
):
    shown = states == state
    axis.scatter(numbers[shown], values[shown], color=colour, marker=marker, s=70, label=label)
axis.axhline(values[0], color=plots.BLACK, ls="--", lw=1.5, marker="", label="default, trial 1")
axis.set(xlabel="trial", ylabel="images/s", title="A search, live", ylim=(0, None))
axis.xaxis.get_major_locator().set_params(integer=True)
axis.legend()
plots.show(
    figure,
    alt=f"Images per second of {len(tried)} trials, in order: "
    + ", ".join(
        f"{trial.value:,.0f}" + f" ({trial.state})" * (trial.state != "done") for trial in tried
    )
    + f". The default, the first, has {values[0]:,.0f}; the best {winner.value:,.0f}.",
    keep=results,
    watched=[search_others],
)

# %% [markdown]
# The best trial has a result, and by now you know what that result is worth. So the default and the best are measured
# again, in turns, each time in a new process: **about 50 seconds**. Each round gives a ratio. How well the rounds agree
# gives the 95% [**confidence interval**](../docs/glossary.md#confidence-interval). It holds for these minutes: on
# another day, or after a restart of the machine, the ratio may be outside.


# %% jupyter={"source_hidden": true}
def tell_gain(promised, gain):
    """Say what the confirmation shows of the best settings, and no more than that."""
    print(f"The search promised {promised:.2f} times the default.", end=" ")
    if gain is None:
        print("That is not confirmed: nothing was measured again.")
        return
    print(f"Measured again: {gain} times, {gain.verdict}.")
    if round(promised, 2) > round(gain.high, 2):
        print("The promise is above the interval: think of the winner's curse.")
    if gain.verdict == "faster":
        print("Use these settings.")
    elif gain.high < 1.03:
        print(f"Keep the default: no more than {max(0, gain.high - 1):.0%} is to be gained.")
    else:
        print("A gain is not shown. That is not the same as no gain: the noise would hide one.")
        print("Four times as many rounds make the interval about half as wide.")


def tell_luck(name, promised, again):
    """Say how lucky a setting was in the search, and how steady its launches are since."""
    luck = promised / np.exp(np.mean(np.log(again))) - 1
    spread = np.std(again, ddof=1) / np.mean(again) if len(again) > 1 else 0
    print(f"{name:7} in the search {promised:8,.0f} images/s (luck {luck:+.0%});", end=" ")
    print(f"later {min(again):,.0f} to {max(again):,.0f} (standard deviation {spread:.0%})")


def tell_stability(default, best):
    """Say whether the default is slow or unstable, by the spread of its launches."""
    if len(default) < 5:
        return
    noise, of_best = (np.std(np.log(speeds), ddof=1) for speeds in (default, best))
    fastest = max(default) / np.median(best)
    unstable = noise > max(0.05, 2.5 * of_best)  # beyond chance: F(4, 4) > 6.4, one-sided 5%
    reach = f"its fastest launch came to {fastest:.0%} of the best's median"
    if unstable and fastest > 0.95:
        print(f"The default is not slow but unstable: {reach}, others stay far below.")
    elif unstable:
        print(f"The default is both slow and unstable: {reach}.")
    else:
        print("These rounds don't show that the default's launches vary more than the best's.")


# %%
won_by_default = winner.settings == live_default
# The best of the others, of those that had all their repeats.
challenger = tune.best([trial for trial in tried if trial.settings != live_default])
tuner_gain = None
if won_by_default:
    print(
        "The default won the search.",
        "The best of the others:" if challenger else "All others were pruned or failed.",
    )
if challenger:
    again = {"default": [], "best": []}
    with load.watch("section 6") as gain_others:
        for number in range(1, CONFIRMATION_ROUNDS + 1):
            for name, settings in (("default", live_default), ("best", challenger.settings)):
                again[name].append(throughput(train, settings))
            measured = ", ".join(f"{name} {speeds[-1]:8,.0f}" for name, speeds in again.items())
            print(f"round {number} of {CONFIRMATION_ROUNDS}: {measured} images/s", flush=True)
    promise = challenger.value / tried[0].value
    if CONFIRMATION_ROUNDS:
        tuner_gain = ratio(again["best"], again["default"])
        results.step("tuner", Measured(*tuner_gain, "×"), gain_others)
        tell_luck("default", tried[0].value, again["default"])
        tell_luck("best", challenger.value, again["best"])
    tell_gain(promise, tuner_gain)
    tell_stability(*again.values())

# %% jupyter={"source_hidden": true}
if tuner_gain:
    figure, axis = plt.subplots(figsize=(9, 3.2))
    for row, (name, colour, marker) in enumerate(
        (("default", plots.BLACK, "o"), ("best", plots.BLUE, "D"))
    ):
        style = dict(ls="", marker=marker, ms=10, alpha=0.6, color=colour)
        axis.plot(again[name], [row] * len(again[name]), **style)
        axis.plot(np.median(again[name]), row, marker="|", ms=34, mew=3, color=colour)
    axis.set_yticks([0, 1], ["default", "best"])
    axis.set(xlabel="images/s", xlim=(0, None), ylim=(-0.6, 1.6))
    axis.set_title("Each launch of the default and of the best, and their medians")
    plots.show(
        figure,
        alt="Images per second of each launch. "
        + "; ".join(
            f"{name}: {', '.join(f'{value:,.0f}' for value in sorted(speeds))}"
            for name, speeds in again.items()
        ),
        keep=results,
        watched=[gain_others],
    )

# %% [markdown]
# No gain is a result, too. By default, TensorFlow and OpenMP start one thread for each *hardware thread* that they see.
# Where each core has one hardware thread, that may already be the best. The machine of 2018 had 112 of them on 56
# cores. And in a container that may use two of many cores, they may see all of the cores. In both cases, the default
# starts more threads than there are cores to run them.
#
# **A gain is a statement about two settings: the best, and the one that you started from.** Another tuner of 2018,
# TensorTuner, reports gains of 2 to 123% with TensorFlow's own kernels and 1.5 to 28% with MKL. Those are gains over
# the best settings known before, not over the default.
#
# Ask the same of the 8.3%. The settings that mattered there were the caches' *prefetchers* (they load what a program
# will probably read next), the clock rate of the *uncore* (the part of the chip outside the cores: last cache and
# memory controller), and how soon a woken task may interrupt the running one (the scheduler's wakeup granularity).
# Afterwards it turned out that the L2 prefetcher of the server had been switched off before the search began. The
# search switched it on, as it is by default. It repaired the machine.
#
# **Finished early? Tune another network.** The 8.3% and the 8% are those of two recurrent networks, one for translation
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
# does. It works on some pixels at a time. It also prints how often it had to ask the kernel for a page of memory: its
# *page faults*.

# %%
# %%writefile work/nearest.py
"""Find the nearest of 64 colours for each pixel, and print pixels per second."""

import argparse
import resource
import time

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--chunk", type=int, default=1_000_000, help="pixels at a time")
chunk = parser.parse_args().chunk

rng = np.random.default_rng(0)
pixels, colours = rng.random((500_000, 3), "float32"), rng.random((64, 3), "float32")
nearest = np.empty(len(pixels), int)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
start = time.perf_counter()
for first in range(0, len(pixels), chunk):
    part = slice(first, first + chunk)
    # Squared distances, without the term that is the same for all colours.
    distances = np.square(colours).sum(axis=1) - 2 * pixels[part] @ colours.T
    nearest[part] = distances.argmin(axis=1)
seconds = time.perf_counter() - start
print(f"page faults: {resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before}")
print(f"pixels/s: {len(pixels) / seconds:.0f}")

# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** By default, the script takes all 500,000 pixels at a time. How many at a time are best? And can a
# setting of the memory allocator matter in a program that only multiplies?
#
# </div>

# %%
results.guess(4, "the best number of pixels at a time", ..., unit="pixels")

# %% [markdown]
# First the script alone, with no knob set, a few times in a row. It is the same command on the same machine. Are the
# times the same?


# %%
def launch(settings=None):
    """Run the script; of its settings, an empty text is a knob that is left alone."""
    settings = settings or dict(chunk="", threads="", memory_kept="")
    flags = [f"--chunk={settings['chunk']}"] if settings["chunk"] else []
    names = {"threads": "OPENBLAS_NUM_THREADS", "memory_kept": "MALLOC_TOP_PAD_"}
    env = {variable: settings[knob] or None for knob, variable in names.items()}
    done = processes.run(["python", "work/nearest.py", *flags], env=env, timeout=60)
    if done.failure:
        raise LabError(done.failure)
    faults, pixels = (float(line.split(": ")[1]) for line in done.lines[-2:])
    return pixels, faults


launches = [launch() for _ in range(LAUNCHES)]
for pixels, faults in sorted(launches):
    print(f"{pixels:12,.0f} pixels/s with {faults:8,.0f} page faults")
fastest, slowest = max(launches), min(launches)
print(f"The fastest launch is {fastest[0] / slowest[0]:.1f} times as fast as the slowest,")
print(f"with {fastest[1] / max(1, slowest[1]):.1f} times as many page faults.")

# %% [markdown]
# If the times differ much, look at the page faults. The kernel hands out memory in pages of 4 kB, or, if it has them
# free and in one piece, in *huge pages* of 2 MB. One huge page saves 511 faults. Whether a launch gets them is not up
# to the program. If the faults are the same in all launches, that is not what makes yours differ.
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
text = "extra bytes that malloc requests whenever the heap grows: M_TOP_PAD"
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
sizes = {"--trials": OWN_TRIALS, "--repeats": OWN_REPEATS, "--rounds": OWN_ROUNDS}
tool += [str(part) for option in sizes.items() for part in option]
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
# For the closing table:
results.hand_in("7", ("your own command (nearest colours)", "", own_gain, "", own_others))

# %% jupyter={"source_hidden": true}
for name in ("search.png", "importance.png"):
    told = f"{out / name}: "
    captions = [line.removeprefix(told) for line in done.lines if line.startswith(told)]
    if captions:  # the importance of knobs needs a few trials
        display(Image(out / name, alt=captions[0]))

# %% [markdown]
# You take a file along, which you can `source`. It contains the verdict, too:

# %%
Code(filename=out / "best.env", language="bash")

# %% [markdown]
# Several knobs were turned at once. **What is each of them worth?** Take the best settings, and put back one knob at a
# time. How much is lost? That is called an [**ablation**](../docs/glossary.md#ablation). Again, all are measured in
# turns: **about 15 seconds**.


# %%
def tell_worth(knob, lost):
    """Say what the rounds show of one knob, and no more than that."""
    meaning = {
        "slower": ": with it, the script is faster",
        "faster": ": the script is better off without it",
    }.get(lost.verdict, "")
    print(f"the best, but {knob} left alone: {lost} times as fast: {lost.verdict}{meaning}")


table = pd.read_csv(out / "trials.csv", dtype=str, keep_default_na=False)
table = table[table.state == "done"]
best_row = table.loc[table.metric.astype(float).idxmax()]
found = best_row[["chunk", "threads", "memory_kept"]].to_dict()
variants = {"best": found} | {knob: found | {knob: ""} for knob in found if found[knob]}
pixels = {name: [] for name in variants}
with load.watch("section 7") as ablation_others:
    for _ in range(ABLATION_ROUNDS):
        for name, settings in variants.items():
            pixels[name].append(launch(settings)[0])
for knob, speeds in list(pixels.items())[1:]:
    tell_worth(knob, ratio(speeds, pixels["best"]))
results.compare_guess(4, Measured(float(found["chunk"] or 500_000), unit="pixels", digits=0))

# %% [markdown]
# (Each knob has an interval of its own, from its rounds and those of the best: one setting can vary far more than the
# others. And each measurement is a new process, since a relaunch is another sample.)
#
# Can you explain what you see? These may be the reasons:
#
# - The default works on all pixels at once: 500,000 × 64 distances, 128 MB, more than most caches hold.
# - With chunks of 64 pixels, Python's loop takes more time than the work.
# - In between, each chunk's arrays are freed and allocated again, over and over. An allocator that returns freed memory
#   to the kernel gets it back page by page, by page faults. `memory_kept` makes it keep some.
#
# You can test the last one: call `launch` with the best settings, then with `memory_kept` 0, and compare the page
# faults.
#
# **Now yours.** Take a program that you often run and that prints a metric, or make it print one. Write down three
# knobs, and guess which of them matters. Then run `lab tune` in a terminal, with `--minutes 10`. If you interrupt it,
# the same command continues from there. If you change the knobs, name another folder with `--out`. `--help` lists the
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
# 10. The grid's default ran at 92% of the best in one launch and at 59% in another. A colleague reports "76%, ± 30%".
#     What is wrong with that, and what would you report?

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
# 6. It was chosen for its metric, and luck is part of that. More trials make it worse, up to a point: on the grid, from
#    20 points on the excess stays about the same. Repeats and a confirmation with new measurements help.
# 7. When many points are good, when knobs don't depend on what was learnt, when noise is larger than the differences,
#    and for the first trials. It is also easy to run on many machines at the same time.
# 8. Choose the knobs and their values, a workload that represents the real one, and a metric that measures what
#    matters. (Images/s says nothing about accuracy, and batch size changes both.) Then understand the result, to know
#    when it will stop being true.
# 9. Neither. Larger operations keep more threads busy, and another machine has other cores, caches, and defaults. Tune
#    again, with the old best as one of the first trials.
# 10. "76% ± 30%" describes a bell curve around a speed that no launch has. Report the launches themselves, or their
#     range and how many there were: "from 59 to 92%, two launches". And say that the setting is unstable, which is a
#     finding.
#
# **Exercise 3** The winner must be judged by measurements that had no part in choosing it: choose in one round, judge
# in the other. That is the same idea as a test set. Both rounds may swap roles, and the two factors be averaged. The
# mean of both rounds does not help: the winner of the means is judged by the luck that chose it. The default needs no
# such care as long as it is one point among many, but it must be measured in the round that judges the winner, or a
# slower machine looks like a slower setting.
#
# **Another network** (end of section 6) The forward and the backward LSTM of `speech` don't depend on each other, so
# two operations can run at the same time: inter-op 2 can help. The product of each step is small (64 × 128 by 128 ×
# 512), and the next step waits for it, so many intra-op threads can cost more than they bring. Compare the best
# settings of both networks, and confirm one network's best on the other before anybody says that they differ.
#
# **Timing** Sections 1 and 2 take 8 minutes, section 3 takes 10, section 4 takes 15, section 5 takes 14, and section 6
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
# - The best of many trials was also lucky. Confirm it against the default, in turns, with an interval.
# - A setting can be unstable rather than slow. Then report the spread: no mean describes it.
# - A gain is a statement about two settings. Say which one was the baseline.
# - A failed trial is a result: record it and go on.
#
# Here is what was published, what you measured, and what the machine could do at most:

# %% jupyter={"source_hidden": true}
after = f"after {minutes:.1f} min"
tuned, tuned_others, chosen = f"not measured again {after}", search_others, live_default
if tuner_gain:
    tuned = Measured(*tuner_gain, "×", note=f"{tuner_gain.verdict} {after}")
    tuned_others = gain_others
    chosen = challenger.settings if tuner_gain.verdict == "faster" else live_default
settings_text = " ".join(f"{knob}={value}" for knob, value in chosen.items())
points_here = f"{points}, {len(live_space)} knobs"
results.table(
    "tuning",
    [
        ("inter-op × intra-op on 2 × 28 cores, points", f"{two_knobs}", points_here, ""),
        (
            f"ResNet-50 (here: {NETWORK}), best over default",
            "1.77× after 2 h 8 min",
            tuned,
            "",
            tuned_others,
        ),
        (
            "the settings to use",
            "intra 28, inter 2",
            "the default" if chosen == live_default else settings_text,
            "",
            tuned_others,
        ),
        (
            "GNMT, DeepSpeech: CPU and system, 173, 156 trials",
            "+8.3%, +8%",
            "not tried: needs root",
            "",
        ),
        (
            "TensorTuner, over the best settings known before: Eigen; MKL",
            "+2–123%; +1.5–28%",
            "",
            "",
        ),
        *results.handed_in("7", ("your own command (nearest colours)", "")),
        (f"share of the grid's best, {at} trials: random", "", found_at["random"], "100%"),
        ("the same: TPE of Optuna", "", found_at["TPE of Optuna"], "100%"),
        ("the same: lab tune, blind start", "", found_at["lab tune"], "100%"),
        ("the same: lab tune, default first", "", found_at["lab tune, default first"], "100%"),
    ],
)

# %% [markdown]
# Where you are on the way from this machine's default to its fastest, over all labs:

# %%
ladder.show(results)

# %% [markdown]
# Published: Concertio with Intel, 2018: Optimizer Studio on 2 × Xeon Platinum 8180 (ResNet-50, GNMT and DeepSpeech).
# TensorTuner: Hasabnis, 2018, arXiv 1812.01665. Random search: Bergstra and Bengio, *Random Search for Hyper-Parameter
# Optimization*, JMLR 13 (2012). TPE: Bergstra et al., *Algorithms for Hyper-Parameter Optimization*, NeurIPS 2011;
# Optuna: Akiba et al., 2019, arXiv 1907.10902. Horovod's autotune:
# [its documentation](https://horovod.readthedocs.io/en/stable/autotune_include.html).
#
# **Next:** [lab 06](06_collectives.ipynb) leaves the single process, and sends gradients between many.
