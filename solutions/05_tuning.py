# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: let a search find the settings, and tell luck from speed
#     needs: [ISA, memory, TensorFlow]
#     better_with: [cores, PyTorch]
# ---

# %% [markdown]
# # 05 · Let a program tune it
#
# **Why?** The same training on the same machine can run at half its speed because of a few settings. You get no error
# and no warning. Trying settings by hand takes days.
#
# **You will learn** how a program finds fast settings, and how close to the best it gets in how few trials. You will
# see why the best trial looks better than it is, and how to confirm a gain. Then you tune the TensorFlow that pip
# installs, and take home a tool for commands of your own.
#
# **Time** {minutes}
#
# **Connects to** lab 02, which explains intra-op and inter-op threads; lab 03, which tries a few settings for ResNet-50
# by hand; and lab 04, which explains bfloat16.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("05", globals())

# %%
import itertools
import math
import os
import re
import sys
import time
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Code

from labkit.display import core_use, ladder, plots
from labkit.display.measured import Measured
from labkit.system import files, load, processes
from labkit.system.errors import LabError
from labkit.system.paths import DATA, ROOT
from labkit.system.statistics import interval, ratio
from labkit.tune import report
from labkit.tune import search as tune
from labkit.tune import space as knob_files
from labkit.tune.trial import Command

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
SEEDS = 2 if QUICK else 30  # searches of each type: section 4
SEARCH_SHARE = 0.11 if QUICK else 0.2  # the share of the grid's points that a search tries
DRAWS = 200 if QUICK else 2000  # section 5
STEPS = 5 if QUICK else 40  # section 6: training steps per launch
LIVE_TRIALS, LIVE_REPEATS = (2, 1) if QUICK else (16, 2)  # section 6
CONFIRMATION_ROUNDS = 0 if QUICK else 6  # section 6

# %% [markdown]
# ## 1 · How many settings are there? {read 4}
#
# A **knob** is anything that you can set before a program runs and that may change its speed. In machine learning, such
# a setting is called a [**hyperparameter**](../docs/glossary.md#hyperparameter). All combinations of the knobs' values
# form the [**search space**](../docs/glossary.md#search-space), with one dimension per knob. Training on a CPU has many
# knobs:
#
# | knob | what it sets |
# | --- | --- |
# | intra-op threads | how many threads share one operation |
# | inter-op threads | how many operations run at the same time |
# | batch size | how many images are in a step |
# | precision | float32 or bfloat16 |
# | XLA | whether a compiler fuses the step (`jit_compile=True`) |
# | `GLIBC_TUNABLES` | how `malloc` gets memory: in pages of 4 kB or of 2 MB |
# | `OMP_NUM_THREADS`, `KMP_…` | PyTorch's threads and their cores ([**pinning**](../docs/glossary.md#pinning)) |
# | `numactl` | on which [**NUMA node**](../docs/glossary.md#numa-node) memory is allocated |
#
# The first two set TensorFlow's [**intra-op parallelism**](../docs/glossary.md#intra-op-parallelism) and [**inter-op
# parallelism**](../docs/glossary.md#inter-op-parallelism). PyTorch's CPU kernels run on
# [**OpenMP**](../docs/glossary.md#openmp) threads instead.

# %% [markdown]
# In 2018, engineers at Intel had a program tune the first two knobs for ResNet-50, on a machine with 2 × 28 cores. It
# could choose from 1 to 28 inter-op threads, and an even number of intra-op threads from 10 to 56. After 2 hours and 8
# minutes, it had found intra 28 and inter 2: 1.77× the speed before. `OMP_NUM_THREADS` was always set to the number
# of intra-op threads, so the two were one knob. By hand, they said, this took tens of hours.
#
# Then they gave it the settings of the CPU and of the operating system: 9.13 · 10¹⁷ combinations.

# %% tags=["nbval-check-output"]
two_knobs = len(range(1, 29)) * len(range(10, 57, 2))
system = 9.13e17
print(f"inter-op × intra-op: {two_knobs} settings. At a minute each: {two_knobs / 60:.0f} hours")
print(f"CPU and system: as many combinations as {math.log2(system):.0f} on/off switches have.")
print(f"At a minute each: {system / 525_960:.1e} years")

# %% [markdown]
# They tried 173 of these settings with one network and 156 with another, and gained 8.3% and 8%. How can 173 of 9.13 ·
# 10¹⁷ be enough? That is the question of this lab.
#
# ## 2 · A landscape, measured whole {read 4}
#
# To judge a search, you need to know the best result that is possible. So here is a space small enough to be measured
# **whole**: the training of the MNIST CNN with six knobs, on the TensorFlow that pip installs. The measurements come
# with the kit. Each was a separate launch, and each round took the points in another order.

# %%
GRID = DATA / "tuning-grid-stock.csv"
print(*(line for line in GRID.read_text().splitlines() if line.startswith("#")), sep="\n")
grid = pd.read_csv(GRID, comment="#").dropna(axis="columns")  # complete rounds only
grid["malloc"] = grid.malloc.replace("glibc.malloc.hugetlb=1", "2 MB pages")
KNOBS = list(grid.columns[: grid.columns.get_loc("round1")])
rounds = grid.filter(regex="^round").to_numpy().T  # images/s, by round and point
space = {knob: grid[knob].unique().tolist() for knob in KNOBS}
for knob, values in space.items():
    print(f"{knob:10} {len(values)} values: {', '.join(map(str, values))}")
print(f"{len(grid)} points, each measured {len(rounds)} times")

# %%
# (intra, inter, …): images/s, the median of the rounds
speed = grid.set_index(KNOBS).images_s.to_dict()
top = max(speed.values())
best = dict(zip(KNOBS, max(speed, key=speed.get)))


def look_up(settings):
    """Images/s of a point, without running anything."""
    return speed[tuple(settings.values())]


# Left alone, TensorFlow starts a thread for each core. Batch 64 is what the command says.
default = dict(intra=max(space["intra"]), inter=max(space["inter"]), batch=64)
default |= dict(bfloat16=False, xla=False, malloc="glibc")
share = {
    "the best point": 1.0,
    "the default": look_up(default) / top,
    "the point in the middle": np.median(grid.images_s) / top,
    "the worst": min(speed.values()) / top,
}
for what, value in share.items():
    print(f"{what:26} {value * top:6,.0f} images/s, {value:4.0%} of the best")
print(f"within 5% of the best: {np.mean(grid.images_s > 0.95 * top):.1%} of the points")
print("the best:", ", ".join(f"{knob} {value}" for knob, value in best.items()))

# %% jupyter={"source_hidden": true}
rows, columns = ["bfloat16", "batch"], ["malloc", "intra", "inter"]
figure, axes = plt.subplots(1, 2, figsize=(13, 4.8), sharey=True)
for axis, (xla, part) in zip(axes, grid.groupby("xla")):
    table = part.pivot_table(index=rows, columns=columns, values="images_s") / top
    axes_of_map = [pd.MultiIndex.from_product(map(space.get, names)) for names in (rows, columns)]
    table = table.reindex(index=axes_of_map[0], columns=axes_of_map[1])
    image = axis.imshow(table, cmap="cividis", vmin=0, vmax=1, aspect="auto", origin="lower")
    threads = [f"{intra}\n{inter}" for _, intra, inter in table.columns]
    precisions = {False: "float32", True: "bfloat16"}
    axis.set_xticks(range(table.shape[1]), threads, fontsize=11)
    axis.set_yticks(
        range(table.shape[0]), [f"{precisions[bits]}, {size}" for bits, size in table.index]
    )
    axis.grid(False)
    axis.tick_params(length=0)
    width = table.shape[1] // len(space["malloc"])
    for number, name in enumerate(space["malloc"]):
        axis.axvline(number * width - 0.5, color="white")
        axis.text(
            (number + 0.5) * width - 0.5, table.shape[0] - 0.4, name, ha="center", fontsize=11
        )
    axis.axhline(len(space["batch"]) - 0.5, color="white")
    for point, mark in ((default, "D"), (best, "B")):
        if point["xla"] == xla:
            at_point = (tuple(point[knob] for knob in names) for names in (columns, rows))
            place = [
                labels.get_loc(key) for labels, key in zip((table.columns, table.index), at_point)
            ]
            shade = "white" if table.iloc[place[1], place[0]] < 0.5 else plots.BLACK
            style = dict(ha="center", va="center", fontsize=15, fontweight="bold", color=shade)
            axis.annotate(mark, place, **style)
    axis.set_xlabel("intra-op threads (above), inter-op threads (below)")
    axis.set_title("compiled by XLA" if xla else "not compiled", pad=24)
axes[0].set_ylabel("precision, batch size")
figure.colorbar(image, ax=axes, label="share of the best point's images/s")
figure.suptitle(
    "Training the MNIST CNN: every point of the grid (D the default, B the best)", y=1.06
)
by_xla = grid.groupby(["xla", "bfloat16"]).images_s.max() / top
plots.show(
    figure,
    alt=f"Two maps of {len(grid) // 2} cells each, without XLA and with it, coloured by speed. "
    "Best share: "
    + ", ".join(
        f"{precisions[bits]}{' with XLA' if xla else ''} {value:.0%}"
        for (xla, bits), value in by_xla.items()
    )
    + ".",
    keep=results,
)

# %% [markdown]
# Look at the picture before you go on. Which knob matters most? Which one hardly matters? For which knob does the best
# value depend on another knob?
#
# "Which knob matters?" is two questions:
#
# - **Over the whole space:** what share of the speed's variance does a knob explain? *Alone* means averaged over all
#   other knobs. *At all* includes its effects that depend on other knobs.
# - **At the best point:** how much is lost when this knob alone is set back to its default? That is called an
#   [**ablation**](../docs/glossary.md#ablation).

# %%
log_speed = np.log(grid.set_index(KNOBS).images_s)  # logarithms: a factor counts the same anywhere
spread = log_speed.var(ddof=0)
print(f"{'':10}{'alone':>8}{'at all':>8}   the best with it at its default")
matters = {}
for knob in KNOBS:
    others = [other for other in KNOBS if other != knob]
    alone = log_speed.groupby(knob).mean().var(ddof=0) / spread
    at_all = log_speed.groupby(others).var(ddof=0).mean() / spread
    set_back = look_up(best | {knob: default[knob]}) / top
    matters[knob] = at_all, 1 - set_back
    print(f"{knob:10}{alone:8.1%}{at_all:8.1%}   {set_back:.0%}")
explains, loses = (max(matters, key=lambda knob: matters[knob][place]) for place in (0, 1))
print(f"{explains} explains the largest share of the variance.", end=" ")
if best[explains] == default[explains]:
    print("But the best point leaves it at its default.", end=" ")
print(f"The best point loses most when {loses} is set back: {matters[loses][1]:.0%}.")

# %% [markdown]
# Often a few knobs matter, and the others hardly do. Which ones differs from one data set to the next (Bergstra and
# Bengio, 2012). That is their case for random trials: a grid keeps repeating the same few values of the knob that
# matters, while random trials take a new value of *every* knob each time. It helps with a learning rate, which has
# endless values. With two or three values per knob, as here, it helps little.
#
# Now two knobs at a time, all others at their defaults:


# %%
def show_pair(one, other):
    """Print images/s for each pair of values of two knobs, and what the second one is worth."""
    fixed = [knob for knob in KNOBS if knob not in (one, other)]
    part = grid[(grid[fixed] == [default[knob] for knob in fixed]).all(axis="columns")]
    table = part.pivot_table(index=one, columns=other, values="images_s")
    print(table.map("{:,.0f}".format).to_string())
    worth = table.iloc[:, -1] / table.iloc[:, 0]
    change = f"{other} {table.columns[0]} → {table.columns[-1]}"
    print(
        f"{change}: {', '.join(f'{gain:.2f}× with {one} {value}' for value, gain in worth.items())}"
    )
    depends = worth.max() / worth.min() > 1.2  # four noisy medians: less shows nothing
    print(f"Here the effect of {other} {'depends' if depends else 'hardly depends'} on {one}.\n")


show_pair("intra", "inter")
show_pair("xla", "bfloat16")

# %% [markdown]
# When the effect of one knob depends on the value of another, the two have an
# [**interaction**](../docs/glossary.md#interaction). If you tune one knob after the other, the first one decides under
# conditions that the second one changes. You can then miss the best point.

# %% [markdown]
# ## 3 · Search blindly {read 2, do 8}
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** You draw 10 points of the grid at random, which is about 10% of it. You measure them and take the
# best. How close do you get to the best of all, on average?
#
# </div>

# %%
results.guess(1, "the best of 10 random points, of the grid's best", ..., unit="%")

# %% [markdown]
# [**Random search**](../docs/glossary.md#random-search) does just that, and it is better than it sounds. Neither the
# size of the space nor the number of knobs matters. What matters is the *share* of the points that are good.
#
# ### Exercise 1 · What is its chance?
#
# Write `chance(points, good, trials)`. A space has `points` points, and `good` of them are good enough for you. You
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
for size in (len(grid), two_knobs, 1_000_000):
    good = math.ceil(size / 20)
    needed = next(n for n in itertools.count(1) if chance(size, good, n) >= 0.95)
    print(f"{size:9,} points: {needed} trials ({needed / size:.2%})", end=" ")
    print("for one of the best 5%, with a chance of 95%")
print(f"endless space, 60 trials: a chance of {1 - 0.95**60:.1%}")

# %% [markdown]
# That answers half of section 1's question. The number of trials depends on the *share* of good points, and hardly on
# how many points there are. With a chance of 95%, sixty random trials find one of the best 5% of a space of any size.
#
# The other half: one of the best 5% is not near the best unless the landscape is smooth. Where one point in a thousand
# stands out, a random search will most likely miss it.

# %% [markdown]
# ## 4 · Search with a memory {read 6, do 9, wait 0.3}
#
# One measured point is called a [**trial**](../docs/glossary.md#trial). After a few trials you know something. A person
# would look at the good ones, see what they have in common, and try more of that. Programs that do so use [**Bayesian
# optimisation**](../docs/glossary.md#bayesian-optimisation). One method is the **tree-structured Parzen estimator**,
# [**TPE**](../docs/glossary.md#tpe) (Bergstra et al., 2011):
#
# 1. Split the trials into the **good** ones, such as the best fifth, and the **rest**.
# 2. For each knob, count how often each value occurs among the good trials, and how often among the rest. These are two
#    densities.
# 3. Draw some points that have not been tried. Take the one whose values are frequent among the good trials **and**
#    rare among the rest: the one with the largest ratio of the two densities.
#
# TPE has no model of speed, only of where to look. So it can handle text as values, knobs that don't matter, and failed
# trials, which belong to the rest.

# %% [markdown]
# ### Exercise 2 · How promising is a value?
#
# Write `score(value, values, good, rest)` for one knob. `values` are all values that the knob can have. `good` and
# `rest` are lists of the values that it had in the good trials and in the rest. The score is
#
# $$\frac{\text{share of the value among the good}}{\text{share of the value among the rest}}$$
#
# A value that was never tried would have a share of 0. So pretend that **every value of the knob was seen once more**
# than it really was, in each of the two lists. (Statistics calls this add-one or Laplace smoothing.)


# %%
def score(value, values, good, rest):
    """A value's share among the good trials, divided by its share among the rest."""
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
    """The product of the scores of a point's values; `good` and `rest` are lists of points."""
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
# The kit's `lab tune` models the speed itself, with a [**Gaussian process**](../docs/glossary.md#gaussian-process). It
# assumes that neighbours perform similarly: 3 threads are next to 4. For each untried point, it predicts a speed and an
# uncertainty, and tries the point with the largest expected improvement.
#
# Compare it with yours, with random search, with Optuna's TPE, and with a
# [**grid search**](../docs/glossary.md#grid-search), which tries all points in the order in which they are written.
# (That TPE starts with five random trials, looks at all knobs together, and never tries a point twice.)
#
# Each search depends on chance, so each runs 30 times: **about 20 seconds**. No process is started: a trial only looks
# up a point in the table.

# %%
budget = int(SEARCH_SHARE * len(grid))  # trials per search
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
for name, run_search in SEARCHES.items():
    metrics = [run_search(seed) for seed in range(SEEDS)]
    so_far[name] = np.maximum.accumulate(metrics, axis=1) / top
    print(f"{name}: {SEEDS} searches of {budget} trials, {time.monotonic() - began:.0f} s")
in_order = np.maximum.accumulate(grid.images_s) / top  # in the order of nested loops
at = max(1, round(0.1 * len(grid)))  # trials after which the searches are compared

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(10, 5))
trial_numbers = np.arange(1, budget + 1)
lines = {
    "random": (plots.ORANGE, "--", "s"),
    "yours": (plots.GREEN, "-.", "^"),
    "TPE of Optuna": (plots.PURPLE, ":", "D"),
    "lab tune": (plots.BLUE, "-", "o"),
}
for name, (colour, line, marker) in lines.items():
    if name in ("random", "lab tune"):
        band = np.quantile(so_far[name], (0.1, 0.9), axis=0)
        axis.fill_between(trial_numbers, *band, color=colour, alpha=0.15)
    mean = so_far[name].mean(axis=0)
    axis.plot(trial_numbers, mean, color=colour, ls=line, marker=marker, markevery=5, label=name)
axis.plot(
    trial_numbers, in_order[:budget], color="black", ls=":", marker="", label="grid, in order"
)
axis.axvline(tune.STARTUP_TRIALS, color="grey", linewidth=1, marker="")
axis.text(tune.STARTUP_TRIALS + 0.3, 0.03, "until here, all are blind", color="dimgrey")
to_percent = (lambda n: 100 * n / len(grid), lambda percent: percent * len(grid) / 100)
top_axis = axis.secondary_xaxis("top", functions=to_percent)
top_axis.set_xlabel("share of the space tried, %", fontsize=11)
axis.set(xlabel="trials", ylabel="best so far, share of the grid's best", ylim=(0, 1.02))
axis.xaxis.get_major_locator().set_params(integer=True)
axis.legend(loc="lower right")
axis.set_title("How close to the best after how many trials (means)")
plots.show(
    figure,
    alt=f"Share of the grid's best so far by trial, mean of {SEEDS} searches; for random "
    "and lab tune with a band of 80% of them. "
    + "; ".join(f"{name}: {so_far[name][:, at - 1].mean():.0%} after {at}" for name in lines)
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


def compare_searches(name, other):
    """Which of two searches got closer to the best, if these seeds show it."""
    more, less = sorted((name, other), key=lambda which: -found_at[which].value)
    if found_at[more].low > found_at[less].high:
        return f"{more} got closer to the best than {less}"
    return f"{SEEDS} searches don't show whether {name} or {other} gets closer"


found_at = {}  # by search: its mean share of the best after 10% of the points, with interval
for name, shares in so_far.items():
    mean, half = interval(100 * shares[:, at - 1])
    found_at[name] = Measured(mean, mean - half, mean + half, "%", digits=1)
print(f"{'':24}{f'after {at} trials (10%)':>26}{f'after {budget}':>12}{'trials to 97%':>20}")
for name, shares in so_far.items():
    to_97 = trials_to(0.97, shares)
    print(f"{name:24}{found_at[name]!s:>26}{shares[:, -1].mean():12.1%}{to_97:>20}")
for name, other in (("yours", "random"), ("lab tune", "random"), ("lab tune", "TPE of Optuna")):
    print(f"After {at} trials, {compare_searches(name, other)}.")
results.compare_guess(1, found_at["random"])

# %% [markdown]
# Read the picture from the left. In their first five trials, all searches are blind: where the curves differ there,
# that is chance, not skill. After that, a search with a memory looks where the good points were. A grid in its order
# stays in one corner. So don't tune with nested loops unless you can wait for their end.
#
# In brackets is the 95% interval of the mean over the searches. The last line of the table is how `lab tune` really
# works. It tries the **default first**, because the best has to be compared with the default.
#
# **Where you meet this.** Libraries tune themselves, too. Horovod (lab 07) has `HOROVOD_AUTOTUNE=1`: in the first steps
# of a training run, Bayesian optimisation chooses how many megabytes of gradients are sent at once, and how long to
# wait for more of them. MXNet had `MXNET_CUDNN_AUTOTUNE_DEFAULT=2`: for each convolution, it timed cuDNN's algorithms
# and took the fastest, however much memory that one needed ([its
# documentation](https://mxnet.apache.org/versions/1.9.1/api/faq/env_var)). Triton's `triton.autotune` times each
# configuration of a short list.

# %% [markdown]
# ## 5 · Unstable, or just lucky? {read 5, do 9}
#
# So far a trial gave the same result each time. On a real machine it doesn't. Each point of the grid was launched
# several times. How much do the launches of a point differ, and for which values of the knobs most?

# %%
apart = rounds.max(axis=0) / rounds.min(axis=0) - 1  # fastest over slowest launch of a point
print(f"The launches of a point differ by {np.median(apart):.1%} (median),", end=" ")
print(f"{apart.max():.0%} at most.")
at_default = list(speed).index(tuple(default.values()))
launches = ", ".join(f"{launch:,.0f} ({launch / top:.0%})" for launch in rounds[:, at_default])
print(f"The default, images/s (share of the best): {launches}.")
medians = {
    (knob, value): np.median(apart[grid[knob] == value]) for knob in KNOBS for value in space[knob]
}
knob, value = max(medians, key=medians.get)
print(f"They differ most with {knob} {value}: {medians[knob, value]:.1%} (median).")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(6.5, 6))
axis.axline((top / 2, top / 2), slope=1, color=plots.BLACK, linewidth=1, ls="--", marker="")
looks = (("lightgrey", "o"), (plots.SKY, "s"), (plots.VERMILION, "D"), (plots.BLUE, "^"))
for each, (colour, marker) in zip(space[knob], itertools.cycle(looks)):
    chosen = grid[knob] == each
    look = dict(color=colour, marker=marker, s=36, edgecolor="dimgrey", linewidth=0.5)
    axis.scatter(rounds[0, chosen], rounds[1, chosen], label=f"{knob} {each}", **look)
ring = dict(s=200, facecolor="none", edgecolor=plots.BLACK, linewidth=2)
axis.scatter(*rounds[:2, at_default], label="the default", **ring)
axis.set(
    xlabel="round 1, images/s",
    ylabel="round 2, images/s",
    title="Two launches of each point of the grid",
    xlim=(0, None),
    ylim=(0, None),
    aspect="equal",
)
axis.legend(loc="upper left", fontsize=11)
plots.show(
    figure,
    alt="Images per second of each point in round 2 by round 1, with a line where they are "
    f"equal. The launches of a point differ by {np.median(apart):.1%} in the median and by "
    f"{apart.max():.0%} at most.",
    keep=results,
)

# %% [markdown]
# Points near the line are stable. How bad can it get? The kit has a second grid, of TensorFlow with OpenMP, a build of
# 2023. Here are the two launches of *its* default:

# %%
openmp = pd.read_csv(DATA / "tuning-grid.csv", comment="#")
its_default = openmp[(openmp[["omp", "intra", "inter"]] == 2).all(axis="columns")]
its_default = its_default.query("blocktime == 200 and affinity == 'none'").iloc[0]
for launch in its_default[["round1", "round2"]]:
    print(f"{launch:6,.0f} images/s, {launch / openmp.images_s.max():.0%} of that grid's best")

# %% [markdown]
# Such a setting is not slow but **unstable**. Its mean describes nothing that happens. Report the spread instead.
# Stability is a reason to choose another setting, even one that is no faster at its best: of many machines that work
# together, the slowest one sets the pace (lab 07).
#
# A likely reason: there, each inter-op thread starts a team of OpenMP threads, so there are more threads than cores,
# and where the kernel puts them differs from launch to launch. If so, a build without OpenMP should have a stable
# default. The one that pip installs is such a build. Section 6 tests this: it launches its default again and again.

# %% [markdown]
# ### The winner's curse
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** You measure fifty points once each, and take the fastest. Then you measure that point again. Will
# it be as fast as before, faster or slower?
#
# </div>

# %%
results.guess(
    2, "the winner of fifty, measured again", ..., choices=("faster", "as fast", "slower")
)

# %% [markdown]
# ### Exercise 3 · An honest gain
#
# You have measured some points in two rounds, the default among them. You recommend one point, which may be the
# default. By what factor is it faster than the default?
#
# Write `gain(first, second, default)`. `first` and `second` are numpy arrays: images/s of the same points in the two
# rounds. `default` is the default's place in them. Return one number. You decide which point to choose, and how to use
# the two rounds. The number must be honest:
#
# - If all points are equally fast, and the measurements differ by chance alone, it is 1 **on average** over many such
#   pairs of rounds.
# - If some point really is faster, by far more than chance, it is that point's factor.
# - The machine may be slower in one round than in the other, for all points alike. That must not matter.


# %%
def gain(first, second, default):
    """The best point's speed divided by the default's, without the luck of the draw."""
    ### BEGIN SOLUTION
    winner = np.argmax(first)  # one round chooses, the other one judges
    return second[winner] / second[default]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
gain = check(3, gain)

# %%
rng = np.random.default_rng(0)
counts = [1, 2, 5, 10, 20, 50]
drawn = {n: [rng.permutation(len(grid))[: n + 1] for _ in range(DRAWS)] for n in counts}
orders = list(itertools.permutations(rounds, 2))  # each round chooses, each other one judges


def mean_factor(factor, n):
    """The mean of a factor over all draws of n points and a first one, a stand-in default."""
    logs = [np.log(float(factor(a[draw], b[draw], 0))) for draw in drawn[n] for a, b in orders]
    return np.exp(np.mean(logs))


promised = [mean_factor(lambda a, b, default: a.max() / a[default], n) for n in counts]
kept = [mean_factor(gain, n) for n in counts]
too_high = [100 * (promise / truth - 1) for promise, truth in zip(promised, kept)]
for n, claim, truth, excess in zip(counts, promised, kept, too_high):
    print(f"best of {n:3}: {claim:.2f}× when chosen, {truth:.2f}× when measured again:", end=" ")
    print(f"{excess:.1f}% too high")
results.compare_guess(2, "slower" if too_high[-1] > 0.5 else "as fast")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
axis.plot(counts, promised, ls="--", color=plots.VERMILION, marker="s", label="when chosen")
axis.plot(counts, kept, color=plots.BLUE, marker="o", label="when measured again: your gain")
for n, claim, excess in zip(counts, promised, too_high):
    over = dict(xytext=(0, 8), textcoords="offset points", ha="center", fontsize=11)
    axis.annotate(f"{excess:+.1f}%", (n, claim), **over)
axis.set(
    xscale="log",
    xlabel="points measured besides the first one",
    ylabel="best point vs first point, ×",
    title="The winner's curse",
    ylim=(0, None),
)
axis.set_xticks(counts, map(str, counts))
axis.minorticks_off()
axis.margins(y=0.15)
axis.legend(loc="lower right")
plots.show(
    figure,
    alt="Speed of the best of some points vs the first one, in the round that chose it and in "
    "another round: "
    + ", ".join(f"{n} points {p:.2f} and {k:.2f}" for n, p, k in zip(counts, promised, kept)),
    keep=results,
)

# %% [markdown]
# The **best** of many points was chosen for its result, and good luck is part of that result. So it looks faster than
# it is, by the percentages above. This is the *winner's curse*, a form of [**selection
# bias**](../docs/glossary.md#selection-bias). Every report of a best trial suffers from it twice: the winner was lucky,
# and the default may have been unlucky. (The "100%" of section 2 is such a winner, too.) A gain of a few percent, found
# among 173 settings, needs a second look before you believe it.
#
# There are two remedies, and you want both:
#
# - **Repeats.** Measure a point several times, and take the median.
# - **A confirmation.** When the search is over, measure the best and the default again, alternately. Report *that*
#   ratio, with its interval.
#
# Repeats cost time. But a point that is far behind in its first measurement needs no second one. Ending such a trial
# early is called [**pruning**](../docs/glossary.md#pruning). `lab tune` prunes trials that are far behind the best so
# far. Here it searches the grid with one measurement per point, then with two:


# %%
def launched_again():
    """An objective that gives each point's rounds one after the other."""
    unused = {point: list(launches) for point, launches in zip(speed, rounds.T)}
    return lambda settings: unused[tuple(settings.values())].pop(0)


print(f"A trial is pruned when it is more than {tune.PRUNING_MARGIN:.0%} behind the best.")
for repeats in (1, 2):
    trials = tune.search(space, launched_again(), 2 * at, seed=1, repeats=repeats)
    chosen = tune.best(trials)
    pruned = sum(trial.state == "pruned" for trial in trials)
    runs = sum(len(trial.values) for trial in trials)
    print(
        f"repeats {repeats}: {len(trials)} trials, {pruned} pruned; {runs} measurements;", end=" "
    )
    print(f"{chosen.value:,.0f} images/s when chosen, median {look_up(chosen.settings):,.0f}")

# %% [markdown]
# A table has no new launches to confirm a winner with. A real machine does: the end of section 6
# confirms its winner.

# %% [markdown]
# ## 6 · This machine, live {read 5, do 9, wait 3}
#
# Now without a table: a trial runs a command and reads the number that it prints, its **metric**. The command is the
# kit's benchmark, which trains the MNIST CNN. The knobs are those of the grid, in a small file. For each knob, it says
# which values are possible and where the value goes: into a variable (`env`), after the command (`flag`), or before it
# (`prefix`, for `numactl`). A knob at its `default` is left alone. For thread counts, `log` means all hardware
# threads, three quarters, half, and so on down to 1: so 64 cores get trials with few threads, too.

# %%
NETWORK = "mnist"  # or "speech": see the end of this section

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # without it, older CPUs would get Eigen
train = [sys.executable, "-m", "labkit.bench", f"--model={NETWORK}", "--batch_size=64"]
train += [f"--num_batches={STEPS}"]
knobs = knob_files.read(knob_files.MNIST_KNOBS, machine)
command = Command(train, knobs, cwd=ROOT)  # adds a trial's flags and variables
live_space, live_default = knob_files.space_of(knobs), knob_files.default_settings(knobs)
live_points = tune.size(live_space)
print(f"{live_points} points on {machine.usable_cores} cores")
Code(filename=knob_files.MNIST_KNOBS, language="toml")

# %%
done = processes.run(train, timeout=300)
print(*done.lines[-8:], sep="\n")

# %% [markdown]
# The first trial is always the **default**: what the programs choose when you set nothing. You compare every other
# trial with it, and it is often hard to beat.
#
# ### Exercise 4 · An objective
#
# A search calls a function, the [**objective**](../docs/glossary.md#objective), which takes the settings and returns
# the metric. Write `throughput(argv, settings, timeout)`. It runs a command with the settings in its environment, and
# returns the number after `total images/sec: ` as a float. (Not the number of a line such as `10  images/sec: 4321.0`.)
#
# With some settings, a command will crash, hang, or print nothing. Then raise a `LabError` that says why. The search
# records it and continues. A command that prints its metric and **then** crashes has failed, too.
#
# Use `processes.run(argv, env=…, timeout=…)`. It starts a command with these variables added to the environment, and
# ends it after `timeout` seconds. Its result has `lines`, which the command printed, and `failure`, which is empty
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
# two minutes**. Meanwhile, the bars show how busy each of your cores is, as the kernel counts it. (In a terminal, `top`
# shows the same when you press 1.)
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** For what share of the search will all cores be busy?
#
# </div>

# %%
results.guess(3, "all cores busy, of the search's time", ..., unit="%")


# %% jupyter={"source_hidden": true}
def print_trial(trial, so_far):
    """Print a line for each trial."""
    leader = tune.best(so_far)
    marks = " (pruned)" * (trial.state == "pruned") + f" {load.BUSY_MARK}" * trial.busy
    outcome = f"{trial.value:8,.0f} images/s{marks}"
    print(
        f"{len(so_far):2} of {LIVE_TRIALS}  {time.monotonic() - began:3.0f} s ",
        f"failed: {trial.failure}" if trial.state == "failed" else f"{outcome:28}",
        f"best {leader.value if leader else math.nan:8,.0f} ",
        report.format_settings(trial.settings),
        flush=True,
    )


# %%
def objective(settings):
    """Images/s of the benchmark with these settings."""
    return throughput(command.full(settings), command.variables(settings))


began = time.monotonic()
with load.watch("section 6") as search_others, core_use.live("during the search") as use:
    tried = tune.search(
        live_space,
        objective,
        trials=LIVE_TRIALS,
        repeats=LIVE_REPEATS,
        default=live_default,
        on_trial=print_trial,
    )
minutes = (time.monotonic() - began) / 60
print(f"All cores were busy for {use.all_busy:.0%} of the time.")
results.compare_guess(3, Measured(100 * use.all_busy, unit="%", digits=0))

# %% [markdown]
# The picture has one row for each core. TensorFlow starts mostly on one core: it loads its libraries and builds the
# graph. Only then does it train. A search pays for that start with each measurement, and learns nothing from it.

# %% jupyter={"source_hidden": true}
metrics = np.array([trial.value for trial in tried])
states = np.array([trial.state for trial in tried])
numbers = np.arange(1, len(tried) + 1)
figure, axis = plt.subplots()
best_so_far = np.maximum.accumulate(np.where(states == "done", metrics, -np.inf))
axis.step(numbers, best_so_far, where="post", color=plots.BLUE, marker="", label="best so far")
for state, colour, marker, label in (
    ("done", plots.BLUE, "o", "a trial, median"),
    ("pruned", plots.VERMILION, "X", "pruned"),
):
    shown = states == state
    axis.scatter(numbers[shown], metrics[shown], color=colour, marker=marker, s=70, label=label)
axis.axhline(metrics[0], color=plots.BLACK, ls="--", lw=1.5, marker="", label="default, trial 1")
axis.set(xlabel="trial", ylabel="images/s", title="A search, live", ylim=(0, None))
axis.xaxis.get_major_locator().set_params(integer=True)
axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
plots.show(
    figure,
    alt=f"Images per second of {len(tried)} trials, in order: "
    + ", ".join(
        f"{trial.value:,.0f}" + f" ({trial.state})" * (trial.state != "done") for trial in tried
    )
    + f". The default, the first, has {metrics[0]:,.0f}.",
    keep=results,
    watched=[search_others],
)

# %% [markdown]
# By now you know what the best trial's result is worth. So the default and the best are measured again, alternately,
# each time in a new process: **about one minute**. Six rounds are enough to decide by rank: winning all six by chance
# is as likely as six heads in a row. Each round also gives a ratio, and how well the rounds agree gives the 95%
# [**confidence interval**](../docs/glossary.md#confidence-interval).
#
# If the search changed the batch size, a third setting runs with them: the best, but with the batch size of the
# default. Batch size is a special knob. It changes the training and not only its speed, so images/s alone may not
# decide it. Only the same batch size compares two ways of doing *the same* training.


# %% jupyter={"source_hidden": true}
def tell_gain(promised, gain):
    """Print what the confirmation shows of the best settings, and no more than that."""
    print(f"When chosen, it was {promised:.2f} times the default.", end=" ")
    if gain is None:
        print("That is not confirmed: nothing was measured again.")
        return
    print(f"Measured again: {gain}: {gain.verdict_by_rounds}.")
    if round(promised, 2) > round(gain.high, 2):
        print("The promise is above the interval: think of the winner's curse.")
    if gain.verdict == "faster":
        print("Use these settings.")
    elif gain.verdict == "slower":
        print("Keep the default: it is faster.")
    elif gain.high < 1.03:
        print(f"Keep the default: the gain is {max(0, gain.high - 1):.0%} at most.")
    else:
        print("A gain is not shown. That is not the same as no gain: the noise may hide one.")
        print("Four times as many rounds make the interval about half as wide.")


def tell_luck(name, promised, again):
    """Print how lucky a setting was in the search, and how much its launches vary since."""
    luck = promised / np.exp(np.mean(np.log(again))) - 1
    spread = np.std(again, ddof=1) / np.mean(again) if len(again) > 1 else 0
    print(f"{name:7} in the search {promised:8,.0f} images/s (luck {luck:+.0%});", end=" ")
    print(f"later {min(again):,.0f} to {max(again):,.0f} (standard deviation {spread:.0%})")


def tell_stability(default, best):
    """Print whether the default is slow or unstable, from the spread of its launches."""
    if len(default) < 5:
        return
    noise, of_best = (np.std(np.log(speeds), ddof=1) for speeds in (default, best))
    fastest = max(default) / np.median(best)
    unstable = noise > max(0.05, 2.5 * of_best)  # beyond chance: P(F(5, 5) > 6.25) = 3%
    reach = f"its fastest launch reached {fastest:.0%} of the best's median"
    if unstable and fastest > 0.95:
        print(f"The default is not slow but unstable: {reach}, others stay far below.")
    elif unstable:
        print(f"The default is both slow and unstable: {reach}.")
    elif noise > 0.05:
        print(f"The default's launches vary by {noise:.0%}, the best's by {of_best:.0%}:", end=" ")
        print("both vary too much to test section 5's guess.")
    else:
        print("The default is stable, as section 5's guess says of a build without OpenMP.")
    if unstable:
        print("So OpenMP is not the only reason: this build has none, and its default varies.")


# %%
# The best of the trials that had all their repeats, except the default.
challenger = tune.best([trial for trial in tried if trial.settings != live_default])
tuner_gain, same_batch_gain = None, None
if tune.best(tried).settings == live_default:
    print(
        "The default won the search.",
        "Next is the best of the others." if challenger else "All others were pruned or failed.",
    )
if challenger:
    contenders = {"default": live_default, "best": challenger.settings}
    if challenger.settings["batch"] is not None:
        contenders["same batch"] = challenger.settings | {"batch": None}
    again = {name: [] for name in contenders}
    with load.watch("section 6") as gain_others:
        for number in range(1, CONFIRMATION_ROUNDS + 1):
            for name, settings in contenders.items():
                again[name].append(objective(settings))
            in_round = ", ".join(f"{name} {speeds[-1]:8,.0f}" for name, speeds in again.items())
            print(f"round {number} of {CONFIRMATION_ROUNDS}: {in_round} images/s", flush=True)
    print("the best:", report.format_settings(challenger.settings))
    if CONFIRMATION_ROUNDS:
        tuner_gain = ratio(again["best"], again["default"])
        same_batch_gain = ratio(again.get("same batch", again["best"]), again["default"])
        same_batch = Measured(*same_batch_gain, "×")
        results.step("tuner", same_batch, gain_others, significant=same_batch_gain.significant)
        tell_luck("default", metrics[0], again["default"])
        tell_luck("best", challenger.value, again["best"])
    tell_gain(challenger.value / metrics[0], tuner_gain)
    if "same batch" in again and CONFIRMATION_ROUNDS:
        print(
            f"At the default's batch size: {same_batch_gain}: {same_batch_gain.verdict_by_rounds}."
        )
        if tuner_gain.verdict == "faster" and same_batch_gain.verdict != "faster":
            print("So no gain is shown without the new batch size.")
    tell_stability(again["default"], again["best"])

# %% jupyter={"source_hidden": true}
if tuner_gain:
    figure, axis = plt.subplots(figsize=(9, 3.2))
    looks = ((plots.BLACK, "o"), (plots.BLUE, "D"), (plots.GREEN, "s"))
    for row, (name, (colour, marker)) in enumerate(zip(again, looks)):
        look = dict(ls="", marker=marker, ms=10, alpha=0.6, color=colour)
        axis.plot(again[name], [row] * len(again[name]), **look)
        axis.plot(np.median(again[name]), row, marker="|", ms=34, mew=3, color=colour)
    names = {"same batch": "best, batch\nof the default"}
    axis.set_yticks(range(len(again)), [names.get(name, name) for name in again])
    axis.set(xlabel="images/s", xlim=(0, None), ylim=(-0.6, len(again) - 0.4))
    axis.set_title("Each launch of the default and of the best, with medians")
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
# Take the result home. This file sets the variables for your terminal, and lists the flags:

# %%
if challenger:
    verdict = "not confirmed"
    if same_batch_gain:
        verdict = f"{same_batch_gain} times the default's speed: {same_batch_gain.verdict}"
    kept_settings = contenders.get("same batch", challenger.settings)
    files.write(work / "best.env", report.env_file(command, kept_settings, verdict))
    print((work / "best.env").read_text())

# %% [markdown]
# No gain is a result, too. By default, TensorFlow starts one thread for each *hardware thread* that it sees. Where each
# core has one, that may already be the best. The machine of 2018 had 112 on 56 cores. And a container that may use two
# of many cores may still see all of them. In both cases, the default starts more threads than there are cores.
#
# **A gain is a statement about two settings: the best, and the one that you started from.** Another tuner, TensorTuner,
# reports gains of 2 to 123% with TensorFlow's own kernels and of 1.5 to 28% with MKL (Hasabnis, 2018). Those are gains
# over the best settings known before, not over the default.
#
# Ask the same of the 8.3%. The settings that mattered there were the caches' *prefetchers* (they load what a program
# will probably read next), the clock rate of the *uncore* (the chip outside the cores), and how soon a woken task
# interrupts the running one. Afterwards it turned out that the server's L2 prefetcher had been off before the search
# began. The search switched it on, as it is by default. It repaired the machine.

# %% [markdown]
# **Finished early? Tune another network.** The 8.3% and the 8% are those of two recurrent networks, one for translation
# (GNMT) and one for speech (DeepSpeech). `speech` is a small relative of the second. It goes through a sequence of 40
# frames twice, forwards and backwards, frame by frame. (The benchmark calls a sequence an image.) Look at `speech` in
# `labkit/models/architectures.py`. Which of its operations can run at the same time? Which numbers of inter-op and
# intra-op threads should be best for it? Write your guess down. Then set `NETWORK = "speech"` above, and run this
# section again: on two cores, about 4 minutes. Is the best point of one network good for the other?

# %% [markdown]
# ## 7 · Homework: a command of your own {read 2, optional}
#
# All of that is one command, `lab tune`. It tunes any program that prints a metric, confirms the best settings in fresh
# rounds, and writes them to a file that you can `source`. If you interrupt it, the same command continues. Type it in a
# terminal, in the kit's folder:
#
# ```bash
# ./lab tune --minutes 20                       # ResNet-50 on TensorFlow
# ./lab tune --help
# ./lab tune --minutes 10 --knobs mine.toml --metric 'images/s: ([\d.]+)' -- python train.py
# ```
#
# 1. **ResNet-50.** Guess first: which knob will be worth most, and is it the one that was worth most for the MNIST CNN?
# 2. **PyTorch**, after `./lab setup --torch`. `labkit/tune/knobs-torch.toml` has its knobs, and the command in its
#    first lines. One knob sets its threads: OpenMP's threads are also its intra-op threads. Is its best number of
#    threads the same as TensorFlow's?
# 3. **Yours.** Take a program that you often run, and make it print a metric. Copy the file of section 6, write down
#    three knobs, and guess which of them matters. Does the picture `importance.png` agree with you? Set one knob of the
#    best settings back: does that agree, too?

# %% [markdown]
# ## Questions {read 3}
#
# Answer each in a sentence or two, with what you saw above. The instructor's notebook has answers.
#
# 1. What do inter-op and intra-op threads set, and why are their best values hard to know beforehand?
# 2. Why did 173 trials of 9.13 · 10¹⁷ settings find something? What would they have missed?
# 3. Intra 28, inter 2, on 2 × 28 cores with two hardware threads each: how do these numbers fit the machine?
# 4. "1.77 times": times what? What else was changed?
# 5. The L2 prefetcher was off before the search began. What does that say about the 8.3%?
# 6. Why is the best trial's metric too good? Does it help to run more trials?
# 7. When does random search do as well as a search with a memory?
# 8. A knob explains the largest share of the variance, yet the best point leaves it at its default. How can that be?
# 9. You tuned with batch size 64. Would you trust the result for 256? For another machine?
# 10. A setting ran at 90% of the best in one launch, at 60% in the next. A colleague reports "75%, ± 30%". What would
#     you report?

# %% [markdown] tags=["instructor"]
# ### Answers
#
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to questions 1 to 3:
#
# 1. Inter-op: how many independent operations run at the same time. Intra-op: how many threads share one operation. The
#    number of cores is known, but not how many operations of a graph can run at the same time at each moment. And more
#    threads also mean more contention for caches and memory.
# 2. Many settings hardly matter, so a large share of all combinations is good. What counts is the share of good points,
#    not their number. A rare combination, one in a thousand or fewer, would have been missed without a trace.
# 3. 28 is the number of cores in a socket. The threads of one operation can stay within one socket's memory, and
#    none has to share a core. Two operations at the same time can then use both sockets. So a person could
#    have guessed it. That is typical: most optima can be explained afterwards.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to questions 4 to 6:
#
# 4. Times a baseline that the report does not describe. TensorFlow's default would have been an intra-op thread for
#    each of 112 hardware threads. `OMP_NUM_THREADS` was set as well, so it is unknown what each of them contributed.
#    The report also omits the number of trials and how much the metric varied.
# 5. Part of the gain was the repair of a machine that was set wrongly. On a server with its prefetcher on, the same
#    settings would have gained less. Every report needs its baseline. It is also the best argument for a search: the
#    fault had gone unnoticed.
# 6. It was chosen for its metric, and luck is part of that. More trials don't help: the best of more
#    trials is luckier. Repeats and a confirmation with new measurements do.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to questions 7 to 10:
#
# 7. When many points are good, when what was learnt says nothing about the points that are left, when noise is larger
#    than the differences, and for the first trials. It is also easy to run on many machines at the same time.
# 8. The default may already be the good value, and the other values do harm: then the knob explains the variance of the
#    space, and the best has it at its default. Section 2 prints whether that is so.
# 9. Neither. Larger operations keep more threads busy, and another machine has other cores, caches, and defaults. Tune
#    again, with the old best as one of the first trials.
# 10. "75% ± 30%" describes a bell curve around a speed that no launch has. Report the launches themselves, or their
#     range and how many there were. And say that the setting is unstable, which is a finding.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** **Exercise 3** The winner must be judged by measurements that had no part in choosing it:
# choose in one round, judge in the other, as with a test set. Both rounds may swap roles, and the two factors be
# averaged. The mean of both rounds does not help: the luck that chose the winner would also judge it. The default must
# be measured in the round that judges, or a slower machine looks like a slower setting.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** **What to look for.** In section 2, the two tables of pairs: is a thread knob worth the same
# whatever the other one is? Where the CPU has bfloat16 instructions, does XLA use them, or is bfloat16 worth less with
# it? In section 6, compare the order of the trials with the ablation of section 2: does the search find first what the
# best point loses most without? Without bfloat16 instructions, that knob probably does harm.
#
# **Another network** (end of section 6) The forward and the backward LSTM of `speech` don't depend on each other, so
# two operations can run at the same time: inter-op 2 can help. The matmul of each step is small (64 × 128 by 128 ×
# 512), and the next step waits for it, so many intra-op threads can cost more than they gain. Confirm one network's
# best on the other before you say that they differ.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** **Timing** {minutes 1–5} for sections 1 to 5. Start the live search, and discuss question 4 or
# 5 meanwhile. Section 7 is homework.
#
# **Goes wrong** Two notebooks that tune at the same time on the same cores tune each other. In a classroom with one
# machine for all, run section 6 once, for everyone to see. A laptop on battery, or one that gets warm, drifts. That is
# why the confirmation alternates. To measure the grid of section 2 on a machine of your own, see `data/README.md`.
#
# </div>

# %% [markdown]
# ## Remember
#
# - Count the points of the space before you search it. Then think of the share of good points, not of their number.
# - Random search is a good start. A search with a memory usually needs fewer trials, once it has seen a few.
# - "Which knob matters?" has two answers: for the whole space, and at the best point.
# - The best of many trials was also lucky. Confirm it against the default, alternately, in fresh rounds.
# - A setting can be unstable rather than slow. Then report the spread: no mean describes it.
# - A gain is a statement about two settings. Say which one was the baseline.
# - A failed trial is a result: record it and continue.
#
# Here is what was published, what you measured, and what the machine could do at most:

# %% jupyter={"source_hidden": true}
after = f"after {minutes:.1f} min"
tuned, at_batch_64, gain_watch = f"not measured again {after}", "not measured", search_others
chosen_text = "the default"
if tuner_gain:
    tuned = Measured(*tuner_gain, "×", note=f"{tuner_gain.verdict} {after}")
    at_batch_64 = Measured(*same_batch_gain, "×", note=same_batch_gain.verdict)
    gain_watch = gain_others
    if same_batch_gain.verdict == "faster":
        chosen_text = report.format_settings(kept_settings)
results.table(
    "tuning",
    [
        (
            "inter-op × intra-op on 2 × 28 cores, points",
            f"{two_knobs}",
            f"{live_points}, {len(live_space)} knobs",
            "",
        ),
        (
            f"ResNet-50 (here: {NETWORK}), best vs default",
            "1.77× after 2 h 8 min",
            tuned,
            "",
            gain_watch,
        ),
        ("the same, at the default's batch size", "", at_batch_64, "", gain_watch),
        ("the settings to use", "intra 28, inter 2", chosen_text, "", gain_watch),
        (
            "GNMT, DeepSpeech: CPU and system, 173, 156 trials",
            "+8.3%, +8%",
            "not tried: needs root",
            "",
        ),
        ("TensorTuner vs best known settings: Eigen; MKL", "+2–123%; +1.5–28%", "", ""),
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
