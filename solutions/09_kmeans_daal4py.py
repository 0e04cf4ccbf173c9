# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: find out how few pixels a palette needs, and catch two parallel runs that are wrong
#     needs: [memory, MPI]
#     better_with: [cores, daal4py]
# ---

# %% [markdown]
# # 09 · K-Means with daal4py: how little is enough?
#
# Distributed programs raise three questions. Which process has which data? What travels between them? Does the result
# cover all the data? With K-Means, you can prove the answers.
#
# **You will** reduce a photo to a few colours with [**K-Means**](../docs/learn/glossary.md#k-means), let several
# [**ranks**](../docs/learn/glossary.md#rank) share its pixels, and catch two runs that look right but aren't. Then you
# will find out how few pixels would have been enough.
#
# **Time** {minutes}
#
# **Connects to** lab 06, which adds up numbers over ranks, and lab 07, which exposes fakes in distributed training.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("09", globals())

# %%
import itertools
import json
import math
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_info, threadpool_limits

from labkit.data import load_photo
from labkit.display import plots
from labkit.measure import Measured, alternate, compare, per_second, record, recorded
from labkit.mpi import placement, run_ranks
from labkit.system import lacks

no_daal4py = lacks.package("daal4py")
warnings.simplefilter("ignore", ConvergenceWarning)  # we stop K-Means early on purpose

# %%
# How much this lab measures: change it here. The first of two values is that of a small run.
K, ITERATIONS = 16, 5 if QUICK else 24  # colours
STARTS = 2 if QUICK else 8  # of each kind, section 2
SIZES = (111, 1_000) if QUICK else (111, 333, 1_000, 3_000, 9_000, 27_000, 81_000)  # section 5
SAMPLES, STARTS_EACH = (2, 3) if QUICK else (9, 6)  # section 5, for each size
FITS, ROUNDS = (1, 1) if QUICK else (8, 6)  # section 6
RACE_ROUNDS = 1 if QUICK else 9  # section 7

# %% [markdown]
# ## 1 · A photo in sixteen colours? {read 3, do 5}
#
# A pixel has three numbers from 0 to 255 for red, green and blue, which take 24 bits. With a
# [**palette**](../docs/learn/glossary.md#palette) of 16 colours, a pixel stores only the number of its colour, which
# takes 4 bits. Reducing a photo to a palette is called [**colour
# quantisation**](../docs/learn/glossary.md#colour-quantisation). In signal processing, it is *pixel-wise vector
# quantisation*, which replaces each pixel with the nearest vector of a small *code book*.
#
# The photo comes with scikit-learn ([danielbuechele](https://www.flickr.com/photos/danielbuechele/6061409035), [CC BY
# 2.0](https://creativecommons.org/licenses/by/2.0/)). To use your own, put a file next to this notebook and set `PHOTO`
# to its name. It needs at least 64 colours.

# %%
PHOTO = None  # or "my_photo.jpg"

photo = load_photo(PHOTO)
if photo.size > 3_000_000:  # more than a million pixels would take too long in section 5
    photo = load_photo(PHOTO, pixels=1_000_000)
pixels = photo.reshape(-1, 3).astype(np.float64)
colours, counts = np.unique(pixels, axis=0, return_counts=True)
np.save(work / "photo.npy", photo)
print(f"{photo.shape[1]} × {photo.shape[0]} = {len(pixels):,} pixels, {len(colours):,} colours")

# %% [markdown]
# ### Exercise 1 · How good is it?
#
# The usual measure is the [**peak signal-to-noise ratio**](../docs/learn/glossary.md#psnr) (PSNR) in decibels. It
# compares the largest possible value, 255, with the mean squared error over all pixels and channels:
#
# $$ \mathrm{PSNR} = 10 \log_{10} \frac{255^2}{\mathrm{MSE}} $$
#
# As a rule of thumb, a difference is hardly visible above about 40 dB, and visible at 30 dB. Write `psnr(original,
# quantised)` for two `uint8` pictures of the same shape. Return `math.inf` if they are equal. First, try `np.uint8(3) -
# np.uint8(5)`.


# %%
def psnr(original, quantised):
    """Return the peak signal-to-noise ratio of two uint8 pictures in dB."""
    ### BEGIN SOLUTION
    error = np.mean((original.astype(np.float64) - quantised) ** 2)
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
psnr = check(1, psnr)


# %%
def with_bits(bits):
    """Return the photo with only the highest bits of each channel, in the middle of their range."""
    return (photo >> (8 - bits) << (8 - bits)) + (1 << (7 - bits))


for bits in range(1, 8):
    print(f"{8**bits:>9,} fixed colours: {psnr(photo, with_bits(bits)):5.1f} dB")

# %% [markdown]
# These palettes are the same for every photo. How good is a small one that is chosen for *this* photo?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What PSNR do 16 colours reach if they are chosen for the photo?
#
# </div>

# %%
results.guess(1, "16 colours chosen for the photo", ..., unit="dB")

# %% [markdown]
# ## 2 · K-Means, and a good start {read 5, wait 0.35}
#
# K-Means looks for the *k* colours, or [**centroids**](../docs/learn/glossary.md#centroid), with the smallest sum of
# squared distances from each pixel to its nearest centroid. This sum is the
# [**objective**](../docs/learn/glossary.md#objective); scikit-learn calls it *inertia*. Divided by three times the
# number of pixels, it is the mean squared error. Finding the minimum is NP-hard in general. Lloyd's algorithm is a
# heuristic:
#
# 1. **Assign**: label each pixel with its nearest centroid.
# 2. **Update**: move each centroid to the mean of its pixels.
# 3. **Repeat** for a number of iterations, or until nothing moves.
#
# The objective never increases, and the algorithm ends in a **local minimum**. The start determines which one. If the
# photo is mostly sky, so are *k* random pixels. **k-means++** draws one pixel after another, each with a probability
# proportional to its squared distance from the nearest one drawn so far, so that rare but distant colours get a
# centroid. (scikit-learn draws a few candidates each time and takes the best; daal4py draws one.)


# %%
def decibels(centroids):
    """Return the PSNR of the photo with this palette, from its colours and their counts."""
    palette = np.rint(centroids)
    squares = (colours**2).sum(axis=1), (palette**2).sum(axis=1)
    nearest = (squares[1] - 2 * colours @ palette.T).min(axis=1) + squares[0]  # squared distances
    return 10 * math.log10(255**2 * pixels.size / (nearest @ counts))


def path(start):
    """Return the PSNR at the start, and after each iteration on 5% of the pixels."""
    reached = [decibels(start)]
    for _ in range(ITERATIONS):
        step = KMeans(K, init=start, n_init=1, max_iter=1, tol=0).fit(few)
        start = step.cluster_centers_
        reached.append(decibels(start))
    return reached


few = np.random.default_rng(0).choice(pixels, len(pixels) // 20, replace=False)  # for short waits


def random_start(seed):
    return np.random.default_rng(seed).choice(pixels, K, replace=False)


def plus_plus(seed):
    return kmeans_plusplus(few, K, random_state=seed)[0]


kinds = {"random pixels": random_start, "k-means++": plus_plus}
paths = {kind: [path(start(seed)) for seed in range(STARTS)] for kind, start in kinds.items()}

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(8, 4.5))
rows = []
for (kind, lines), colour, marker in zip(paths.items(), (plots.ORANGE, plots.BLUE), "os"):
    style = dict(color=colour, marker=marker, markevery=4, lw=1.2, ms=6)
    drawn = [axis.plot(line, **style)[0] for line in lines]
    drawn[0].set_label(kind)
    for iteration in sorted({0, 1, 5, ITERATIONS}):
        some = sorted(line[iteration] for line in lines)
        row = f"{kind:13} after {iteration:2} iterations: {np.median(some):5.2f} dB"
        rows.append(f"{row} ({some[0]:.2f} to {some[-1]:.2f})")
axis.set(xlabel="iteration", ylabel="PSNR (dB)", title=f"Lloyd's algorithm, {K} colours")
best = max(line[-1] for lines in paths.values() for line in lines)
axis.set_ylim(best - 4, best + 0.2)  # some random starts begin below
axis.legend(loc="lower right")
alt = f"PSNR against iteration, a line per start. {'; '.join(rows)}."
plots.show(figure, alt=alt, keep=results)
print("Medians, with their ranges:", *rows, sep="\n")

# %%
results.answer(1, "How much does a good start gain at first, and how much in the end?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Compare the medians of the two kinds before the first iteration and after the last. The initial difference is large,
# but the iterations remove most of it, so a good start mainly saves iterations. The rest is due partly to too few
# iterations, and partly to other local minima. With the kit's photo, it is a little larger than the range of the
# k-means++ starts, and the worst random start remains a decibel below the median random start. A few tenths of a
# decibel are hard to see.
#
# </details>
#
# Here are three palettes chosen for the photo. Compare 8 and 64 colours with section 1's fixed ones.


# %%
def quantise(k):
    """Return the photo in k colours of its own."""
    model = KMeans(k, n_init=1, max_iter=ITERATIONS, random_state=0).fit(few)
    palette = np.rint(model.cluster_centers_).astype(np.uint8)
    return palette[model.predict(pixels)].reshape(photo.shape)


pictures = {k: quantise(k) for k in (8, 16, 64)}
chosen = {k: psnr(photo, picture) for k, picture in pictures.items()}
for k in (8, 64):
    fixed = psnr(photo, with_bits(round(math.log(k, 8))))
    print(f"{k:2} colours: {fixed:.1f} dB fixed, {chosen[k]:.1f} dB chosen for the photo")
results.compare_guess(1, Measured(chosen[16], unit="dB", digits=1))

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(2, 2, figsize=(9, 6.4))
for axis, (k, picture) in zip(axes.flat, {"all": photo, **pictures}.items(), strict=True):
    axis.imshow(picture)
    axis.set_title(f"{k} colours")
    axis.axis("off")
seen = ", ".join(f"{k} colours {chosen[k]:.1f} dB" for k in pictures)
alt = f"The photo, and the same in 8, 16 and 64 colours of its own: {seen}."
plots.show(figure, alt=alt, keep=results)

# %% [markdown]
# ## 3 · What has to travel? {read 4.5, do 8}
#
# Now several ranks share the pixels. *Single program, multiple data*, or [**SPMD**](../docs/learn/glossary.md#spmd),
# means that every rank runs the same script on its own rows. In each iteration, the ranks need the mean of each
# centroid's pixels over all ranks. So each rank sends the *sums* and *counts* of its pixels, and these are added up.
#
# ```mermaid
# flowchart LR
#     accTitle: K-Means as SPMD on three ranks
#     accDescr {
#         The photo is cut into three shares. Each of three ranks runs the same script on its own share.
#         In each iteration they add up their sums and counts, and so all hold the same centroids.
#     }
#     photo["photo"] --> r0["rank 0: first share"] & r1["rank 1: second share"] & r2["rank 2: third share"]
#     r0 & r1 & r2 --> sum(["in each iteration: add up sums and counts"])
#     sum --> same["the same centroids on every rank"]
# ```
#
# Dividing the photo is the script's job. [daal4py's
# example](https://github.com/uxlfoundation/scikit-learn-intelex/blob/main/examples/daal4py/kmeans_spmd.py) gives each
# rank `int(rows / ranks)` rows, so the last `rows % ranks` rows are lost. In the file below, each share ends where the
# next starts.

# %%
# %%writefile work/share.py
"""The pixels of this rank, which this lab's scripts share."""

import numpy as np
from mpi4py import MPI

ranks = MPI.COMM_WORLD
pixels = np.load("work/photo.npy", mmap_mode="r").reshape(-1, 3)  # in the file until it is used


def share(n, rank, size):
    """Return where this rank's share of n rows starts, and where it stops."""
    return n * rank // size, n * (rank + 1) // size


start, stop = share(len(pixels), ranks.rank, ranks.size)
mine = pixels[start:stop].astype(np.float64)

# %% [markdown]
# ### Exercise 2 · What a rank sends
#
# Write `partial(pixels, centroids)`, which returns one rank's contribution to an iteration. `pixels` has *n* ≥ 1 rows
# of three numbers, and `centroids` has *k*. The result is a NumPy array with *k* rows and **four** columns. Row *i*
# contains the sums of red, green and blue over the pixels nearest to centroid *i*, and their count. A centroid without
# pixels gets a row of zeros. The pixels' `labels` are provided. A loop over centroids is fast enough.
#
# ### Exercise 3 · Do all ranks have the same centroids?
#
# If ranks work together, **all of them hold the same centroids**. Write `spread(of_ranks)` to measure how far apart
# they are. `of_ranks` is a list of the ranks' centroids, arrays of the same shape. Return one number, the largest
# difference between any two ranks in any component of any centroid.

# %%
# %%writefile work/sums.py
"""Sums of a rank's pixels for an iteration of K-Means, and the spread between ranks."""

import numpy as np


def partial(pixels, centroids):
    """Return for each centroid the sums of its pixels' red, green and blue, and their number."""
    # Nearest: |p - c|² = |p|² - 2 p·c + |c|², and |p|² is the same for all centroids c.
    labels = ((centroids**2).sum(axis=1) - 2 * pixels @ centroids.T).argmin(axis=1)
    ### BEGIN SOLUTION
    columns = np.column_stack([pixels, np.ones(len(pixels))]).T
    return np.array([np.bincount(labels, column, len(centroids)) for column in columns]).T
    ### END SOLUTION


def spread(of_ranks):
    """Return the largest difference between any two ranks in any centroid."""
    ### BEGIN SOLUTION
    all_ranks = np.stack(of_ranks)
    return float((all_ranks.max(axis=0) - all_ranks.min(axis=0)).max())
    ### END SOLUTION


# %% tags=["nbval-check-output"]
partial = check(2, "work/sums.py")

# %% tags=["nbval-check-output"]
spread = check(3, "work/sums.py")

# %% [markdown]
# The checks wrote `work/checked/sums.py`, from which the scripts import your functions. In an iteration, each rank
# sends at least *k* × 4 numbers, however many pixels there are. But floating-point sums depend on the order of
# additions.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** In double precision, how much do the sums over all pixels differ from seven shares' sums, added up?
#
# </div>

# %%
results.guess(
    2, "sums of 7 shares vs one process", ..., choices=("exactly equal", "last digits", "visible")
)


# %%
def apart(pixels, centroids):
    """Return the largest relative difference between the sums of 7 shares and of one process."""
    whole = partial(pixels, centroids)
    added = sum(partial(part, centroids) for part in np.array_split(pixels, 7))
    some = whole > 0  # black centroids have sums of 0
    return np.abs(added[some] / whole[some] - 1).max()


centroids = plus_plus(0)
for name, factor in {"pixels from 0 to 255": 1, "the same, divided by 255": 1 / 255}.items():
    print(f"{name:25}: {apart(factor * pixels, factor * centroids):.1e}")
print(f"largest sum: {partial(pixels, centroids).max():,.0f}; 2**53 = {2**53:,}")
results.compare_guess(2, "last digits" if apart(pixels, centroids) else "exactly equal")

# %%
results.answer(2, "Why is one of the two exactly 0?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Pixels are integers, so every intermediate sum is an integer. Double precision represents all integers up to 2**53
# exactly. Below that, nothing is rounded, and the order of additions doesn't matter. After the division by 255, nearly
# every addition is rounded, and a different order rounds differently. With float32, the limit is 2**24, the sum of
# about 65,800 white pixels. So with integers, ranks must agree *exactly* on these sums.
#
# </details>
#
# ## 4 · It looks distributed {read 5.5, do 4, wait 0.6}
#
# [**daal4py**](../docs/learn/glossary.md#daal4py) is a Python interface to oneDAL, a library for classical machine
# learning that Intel started. You create an algorithm with its parameters and call its `compute` once. With
# `distributed=True`, each rank passes *its* rows and gets the result for *all* rows.
#
# | daal4py | what it does |
# | --- | --- |
# | `d4p.my_procid()`, `d4p.num_procs()` | return the rank and the number of ranks; the first call starts MPI |
# | `d4p.kmeans_init(k, method=…)` | draws the first centroids; `plusPlusDense` is k-means++ |
# | `d4p.kmeans(k, iterations)` | fits; with `accuracyThreshold=0`, it doesn't stop early |
# | `d4p.kmeans(k, 0, assignFlag=True)` | labels pixels; without iterations, nothing moves |
# | `d4p.daalinit(n)`, `d4p.daalfini()` | sets the number of threads; ends MPI |
#
# [Its documentation](https://uxlfoundation.github.io/scikit-learn-intelex/latest/about_daal4py.html) calls it
# *deprecated in favor of the newer sklearnex*, which is in the same package. But sklearnex has no distributed
# algorithms for CPUs, as `sklearnex.spmd` is for several GPUs. On Arm, without daal4py, you see recorded results.
#
# A colleague has written this script:

# %%
# %%writefile work/looks.py
"""Find the photo's colours on many ranks: mpirun -n 2 python work/looks.py COLOURS ITERATIONS"""

import sys

import daal4py as d4p
from share import mine


def run(mine, colours, iterations):
    """Return the first centroids, the last ones, and the reported objective."""
    first = d4p.kmeans_init(colours, method="plusPlusDense", distributed=True)
    begin = first.compute(mine).centroids
    model = d4p.kmeans(colours, iterations, accuracyThreshold=0)
    result = model.compute(mine, begin)
    return begin, result.centroids, result.objectiveFunction.item()


if __name__ == "__main__":
    begin, end, objective = run(mine, *map(int, sys.argv[1:]))
    if d4p.my_procid() == 0:
        print(f"found on {d4p.num_procs()} ranks, with the objective {objective:,.0f}")

# %% [markdown]
# The next script examines such runs. How far apart are the ranks at the start and at the end? How far is rank 0's
# result from that of one process with all pixels and the same start? The script calls `run` several times; daal4py's
# default seed makes each start the same.

# %%
# %%writefile work/prove.py
"""Examine a run: mpirun -n 2 python work/prove.py COLOURS ITERATIONS work/looks.py"""

import importlib
import json
import sys
from pathlib import Path

import daal4py as d4p
import numpy as np
from checked.sums import spread
from share import mine, pixels, ranks

colours, iterations, file = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
sys.path.insert(0, str(file.parent))
run = importlib.import_module(file.stem).run
everything = pixels.astype(np.float64)


def error(centroids):
    """Return the mean squared error of the whole photo in these colours."""
    labelled = d4p.kmeans(colours, 0).compute(everything, centroids)
    return labelled.objectiveFunction.item() / everything.size


begin, end, objective = run(mine, colours, iterations)
begins, ends = ranks.allgather(begin), ranks.allgather(end)
path = [begin, *(run(mine, colours, n)[1] for n in range(1, iterations + 1))]
alone = d4p.kmeans(colours, iterations, accuracyThreshold=0).compute(everything, begins[0])
proof = {
    "objective": objective,
    "of one process": alone.objectiveFunction.item(),
    "of its own pixels": d4p.kmeans(colours, 0).compute(mine, end).objectiveFunction.item(),
    "ranks, at the start": float(spread(begins)),
    "ranks, at the end": float(spread(ends)),
    "vs one process": float(np.abs(alone.centroids - ends[0]).max()),
    "errors": [error(centroids) for centroids in path],  # of rank 0, as it writes the file
}
if ranks.rank == 0:
    Path("work/proof.json").write_text(json.dumps(proof))


# %%
def prove(name, file):
    """Return the findings of work/prove.py about this script on 2 ranks."""
    if no_daal4py:
        print(no_daal4py)
        return recorded("09-fakes").data[name]
    run_ranks(2, "work/prove.py", K, ITERATIONS, file, threads=1, show=False)
    return json.loads((work / "proof.json").read_text())


if not no_daal4py:
    run_ranks(2, "work/looks.py", K, ITERATIONS)
looks = prove("looks", "work/looks.py")
print(f"objective of one process from the same start: {looks['of one process']:,.0f}")

# %% [markdown]
# The colleague's script ran on two ranks and reported a result. From the same start, its objective is *smaller* than
# one process's. Should you be pleased, or suspicious?

# %%
REASONS = ("a better minimum", "more exact arithmetic", "it doesn't cover all pixels")
results.guess(3, "why the objective is smaller", ..., choices=REASONS)

# %%
print(f"largest difference between ranks at the end: {looks['ranks, at the end']:.4g}")
print(f"objective that rank 0 reported:           {looks['objective']:,.0f}")
print(f"the same, computed from its pixels alone: {looks['of its own pixels']:,.0f}")
only_its_own = math.isclose(looks["objective"], looks["of its own pixels"], rel_tol=1e-9)
results.compare_guess(3, REASONS[2] if only_its_own else REASONS[0])

# %% [markdown]
# Your `spread` catches this, because the ranks hold different centroids, fitted to their own shares.

# %% [markdown]
# The colleague reads the documentation again, and moves one argument:

# %%
# %%writefile work/again.py
"""The same, corrected."""

import daal4py as d4p


def run(mine, colours, iterations):
    """Return the first centroids, the last ones, and the reported objective."""
    first = d4p.kmeans_init(colours, method="plusPlusDense")
    begin = first.compute(mine).centroids
    model = d4p.kmeans(colours, iterations, accuracyThreshold=0, distributed=True)
    result = model.compute(mine, begin)
    return begin, result.centroids, result.objectiveFunction.item()


# %% [markdown]
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Does `spread` at the *end* catch this version too?
#
# </div>

# %%
results.guess(4, "spread of the second version, at the end", ..., choices=("zero", "not zero"))

# %%
again = prove("again", "work/again.py")
print(f"largest difference between ranks at the end: {again['ranks, at the end']:.4g}")
print(f"objective: two ranks {again['objective']:,.0f}, one process {again['of one process']:,.0f}")
results.compare_guess(4, "not zero" if again["ranks, at the end"] else "zero")

# %% [markdown]
# All ranks agree, and the objective covers all pixels. Is the script right now? Look at two more rows of the same
# results.

# %%
for row in ("ranks, at the start", "vs one process"):
    print(f"{row}: {again[row]:.4g}")

# %%
results.answer(3, "Each rank has a start of its own. What does the first iteration add up?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# Each rank draws its first centroids from its own pixels. Centroid 3 may be a blue on rank 0 and a brown on rank 1. The
# first iteration adds up their sums and counts, and divides them, so it takes the mean of pixels that don't belong
# together. From then on, all ranks hold the same centroids, so agreement at the *end* proves nothing. The run is
# K-Means, but from a start that no rank drew.
#
# </details>
#
# ### Exercise 4 · The right version
#
# Write `run(mine, colours, iterations)`, which returns the first centroids, the last ones after exactly this number of
# iterations, and the objective that the fit reports. All ranks get the same first and last centroids. The first have
# one row per colour, and the last equal those of one process that fits all pixels from the same start. Begin with
# either script. The check runs on 4 ranks for a few seconds.

# %%
# %%writefile work/fit.py
"""The same, right."""

import daal4py as d4p


def run(mine, colours, iterations):
    """Return the first centroids, the last ones, and the reported objective."""
    ### BEGIN SOLUTION
    first = d4p.kmeans_init(colours, method="plusPlusDense", distributed=True)
    begin = first.compute(mine).centroids
    model = d4p.kmeans(colours, iterations, accuracyThreshold=0, distributed=True)
    result = model.compute(mine, begin)
    return begin, result.centroids, result.objectiveFunction.item()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
fit = check(4, "work/fit.py")

# %%
proven = prove("fit", fit)
runs = {"looks": looks, "again": again, "fit": proven}
record("09-fakes", {}, QUICK, **runs)
print(f"{'':20}", *(f"{name:>11}" for name in runs))
for row in ("ranks, at the start", "ranks, at the end", "vs one process"):
    print(f"{row:20}", *(f"{proof[row]:11.3g}" for proof in runs.values()))
for row in ("objective", "of one process"):
    print(f"{row:20}", *(f"{proof[row]:11,.0f}" for proof in runs.values()))
for n in sorted({0, 1, 2, 5, ITERATIONS}):
    reached = (10 * math.log10(255**2 / proof["errors"][n]) for proof in runs.values())
    print(f"dB, {n:2} iterations   ", *(f"{value:11.2f}" for value in reached))

# %% [markdown]
# The last rows show the quality of rank 0's centroids on the whole photo.

# %%
results.answer(4, "What did each mistake cost, and would you have seen it in the picture?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# In the last row, compare both with `fit`. Rank 0 of `looks.py` fits only half of the photo, which costs more than half
# a decibel with the kit's photo. `again.py` covers all pixels. Its first iteration throws the start away, but the next
# ones repair nearly all the damage. It loses less than the range of k-means++ in section 2 (a rough yardstick, from 5%
# of the pixels and a different k-means++). You would hardly have seen either mistake. But neither script does what it
# claims, and other data may fare worse. As in lab 07, the proof is that *n ranks equal one process on all the data,
# from the same start*. It proves the result, not that the work was divided. Ranks that each fit all pixels would pass,
# too.
#
# </details>
#
# One trap remains. In the last column, the objectives differ, though the centroids agree. A distributed fit reports the
# objective *before* its last update, and a fit in one process reports the objective after it.
#
# ## 5 · How little is enough? {read 5, do 5, wait 1}
#
# Now the pixels could go to many machines. Do they need to? scikit-learn's [example of colour
# quantisation](https://scikit-learn.org/stable/auto_examples/cluster/plot_color_quantization.html) fits 64 colours to
# **1,000** of this photo's pixels, without saying what that costs.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** At what sample size does the best of three starts begin to beat one start on three times the pixels?
#
# </div>

# %%
results.guess(5, "sample size from which starts matter more", ..., unit="pixels")

# %% [markdown]
# We draw random samples of several sizes and fit each from several starts. Each run has an error on its *own sample*,
# which you know, and a PSNR on the *whole* photo, which is what matters. Smaller samples are subsets of larger ones.


# %%
def runs_on(n, number, k=K, starts=STARTS_EACH):
    """Return the errors on a sample of n pixels, and the PSNRs of the photo, one per start."""
    order = np.random.default_rng(number).permutation(len(pixels))
    sample, errors, reached = pixels[order[:n]], [], []
    for start in range(starts):
        seed = STARTS_EACH * number + start
        model = KMeans(k, n_init=1, max_iter=100, random_state=seed).fit(sample)
        iterations.setdefault((k, n), []).append(model.n_iter_)
        errors.append(model.inertia_ / n)
        reached.append(decibels(model.cluster_centers_))
    return errors, reached


iterations = {}  # of each fit, by number of colours and pixels
print(f"{SAMPLES} samples × {STARTS_EACH} starts of each size: about 40 s.", flush=True)
sizes = [*(size for size in SIZES if 2 * size < len(pixels)), len(pixels)]
fitted = {n: [runs_on(n, number) for number in range(SAMPLES)] for n in sizes}

# %% [markdown]
# ### Exercise 5 · The best of several starts
#
# You fit several times and keep the run with the **smallest error on the sample**, as that is all you know. How much
# does that gain on the whole photo? Write `best_of(errors, psnrs, starts)`. The first two arguments are lists with one
# entry per run, and all errors are different. Imagine that you had done only `starts` of these runs. Return the mean
# PSNR of the run that you would keep, over *all* ways to choose them, which `itertools.combinations` lists. With errors
# 3, 1, 2, PSNRs 10, 30, 25 and two starts, you would keep 30, 25 or 30, which is 28.3 on average.


# %%
def best_of(errors, psnrs, starts):
    """Return the mean PSNR of the run with the smallest error among `starts` runs."""
    ### BEGIN SOLUTION
    groups = itertools.combinations(zip(errors, psnrs), starts)
    return float(np.mean([min(group)[1] for group in groups]))
    ### END SOLUTION


# %% tags=["nbval-check-output"]
best_of = check(5, best_of)

# %% [markdown]
# Three starts take three times the work of one. Three times the pixels, the next size, take three times the work *per
# iteration*, and often more iterations. Which gains more? Each figure is a median over nine samples, and its 95%
# interval leaves out the smallest and largest.


# %%
def gain(after, before):
    """Return the median gain over the samples in dB, with its interval."""
    gains = np.sort(np.subtract(after, before))
    low, high = gains[[1, -2]] if len(gains) == 9 else gains[[0, -1]]
    return Measured(np.median(gains), low, high, "dB", signed=True)


once = {n: [best_of(*runs, 1) for runs in fitted[n]] for n in sizes}
thrice = {n: [best_of(*runs, 3) for runs in fitted[n]] for n in sizes}
starts, more, between = {}, {}, {}
heads = "3 starts", "3× pixels", "3 starts − 3× pixels"
print(" " * 39, *(f"  {head:23}" for head in heads))
for n, larger in itertools.pairwise(sizes):
    starts[n], more[n] = gain(thrice[n], once[n]), gain(once[larger], once[n])
    between[n] = gain(thrice[n], once[larger])
    counted = f"{np.median(iterations[K, n]):2.0f} iterations"
    print(f"{n:7,} pixels, {counted}, {np.median(once[n]):.2f} dB", end="")
    print(*(f"  {each!s:23}" for each in (starts[n], more[n], between[n])))

# %% jupyter={"source_hidden": true}
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5))
for n in sizes:
    every = np.array([reached for _, reached in fitted[n]])
    places = n * np.exp(np.linspace(-0.25, 0.25, every.size))
    left.plot(places, every.ravel(), "o", color=plots.BLUE, ms=4, alpha=0.6)
for label, of, style in ("one start", once, "-"), ("best of 3", thrice, "--"):
    medians = [np.median(of[n]) for n in sizes]
    left.plot(sizes, medians, color=plots.BLACK, marker="", ls=style, label=f"{label}, median")
left.set(xscale="log", xlabel="pixels in the sample", ylabel="PSNR of the whole photo (dB)")
left.set_title(f"{SAMPLES} samples × {STARTS_EACH} starts of each size")
left.legend(loc="lower right")
for name, of, colour, marker, shift in (
    ("3 starts", starts, plots.ORANGE, "o", 0.94),
    ("3× pixels", more, plots.BLUE, "s", 1.06),
):
    values = [each.value for each in of.values()]
    reach = [[e.value - e.low for e in of.values()], [e.high - e.value for e in of.values()]]
    places = [shift * n for n in of]
    right.errorbar(places, values, yerr=reach, color=colour, marker=marker, capsize=4, label=name)
right.axhline(0, color=plots.BLACK, lw=1)
right.set(xscale="log", xlabel="pixels in the sample", ylabel="gain (dB)")
right.set_title("What gains more?")
right.legend()
summary = "; ".join(f"{n:,} pixels {np.median(once[n]):.2f} dB" for n in sizes)
plots.show(
    figure,
    alt=f"Left: PSNR of every run against the sample's size; medians: {summary}. Right: gain of "
    "three starts and of three times the pixels, with intervals; the values are printed above.",
    keep=results,
)

# %%
sizes_of = {"3× pixels gain more": [], "undecided": [], "3 starts gain more": []}
for n, each in between.items():
    pixels_win, undecided, starts_win = sizes_of.values()
    (pixels_win if each.high < 0 else starts_win if each.low > 0 else undecided).append(f"{n:,}")
for verdict, of in sizes_of.items():
    print(f"{verdict:20} {'; '.join(of) or 'at none of the sizes'}")
ahead = itertools.takewhile(lambda n: between[n].value > 0, reversed(between))
first = Measured(min(ahead, default=len(pixels)), unit="pixels", digits=0, note="by the medians")
results.compare_guess(5, first)

# %% [markdown]
# What about the 64 colours of scikit-learn's example?

# %%
loss = {n: gain(once[n], once[len(pixels)]) for n in sizes}
some, many = 1_000 if 1_000 in loss else sizes[0], sizes[-2]
of_64 = {n: [runs_on(n, s, 64, 1)[1][0] for s in range(SAMPLES)] for n in (some, many)}
loss_64 = gain(of_64[some], of_64[many])
print(f"{K} colours, {some:,} pixels vs all, one start each: {loss[some]}")
print(f"64 colours, {some:,} pixels vs {many:,}, one start each: {loss_64}")

# %%
results.answer(5, "How many pixels, and how many starts, would you use? What is not decided?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# With the kit's photo, 9,000 pixels and three starts are enough for 16 colours. Up to 1,000 pixels, tripling them gains
# more. At 9,000 and above, more pixels show no gain, while three starts still do. For 3,000 and 27,000 pixels, the
# comparison is undecided, as the interval in the last column contains 0. Starts may win earlier at equal work, since
# tripling the pixels takes more iterations. With 64 colours, taking only 1,000 pixels costs more than twice as much as
# with 16, as each centroid needs its own pixels.
#
# </details>
#
# ## 6 · Threads or processes? {read 3, wait 1.4, optional}
#
# daal4py can also use several [threads](../docs/learn/glossary.md#thread) in one
# [**process**](../docs/learn/glossary.md#process), without shares or messages. Which is faster on the same cores?
#
# - **First touch.** Linux places a page of memory on the [**NUMA node**](../docs/learn/glossary.md#numa-node) of the
#   thread that first writes to it. If one thread loads the pixels, they are all on one node, and threads on the other
#   node fetch them from there. Pinned ranks load their own shares, each on its own node. This matters for data larger
#   than the caches; this photo is smaller.
# - **Pinning.** `mpirun -bind-to` [**pins**](../docs/learn/glossary.md#pinning) each rank to its own cores. By default,
#   this MPI's `mpirun` pins nothing, so each rank may start a thread for every core, which is
#   [**oversubscription**](../docs/learn/glossary.md#oversubscription). A demo from 2019 states that nothing is
#   oversubscribed, as the library sees only the cores that a rank owns. Its log shows ranks pinned to CPUs {0, 2} and
#   {1, 3}.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** On the same cores, how much faster are ranks with one thread each than one process with threads?
#
# </div>

# %%
results.guess(6, "ranks vs threads, same cores", ..., unit="×")

# %%
# %%writefile work/fit_speed.py
"""Measure some fits on these ranks: mpirun -n 2 python work/fit_speed.py THREADS FITS"""

import os
import sys
import time
from pathlib import Path

import daal4py as d4p
import numpy as np
from mpi4py import MPI
from share import mine, pixels, ranks

threads, fits = map(int, sys.argv[1:])
if threads > 1:  # not pinned: each rank may use all ranks' cores
    os.sched_setaffinity(0, set().union(*ranks.allgather(os.sched_getaffinity(0))))
d4p.daalinit(threads)
begin = pixels[:: len(pixels) // 16][:16].astype(np.float64)  # the same for any number of ranks


def fit(iterations):
    options = dict(accuracyThreshold=0, distributed=ranks.size > 1)
    d4p.kmeans(16, iterations, **options).compute(mine, begin)


fit(1)  # starts the threads
ranks.Barrier()
began = time.perf_counter()
for _ in range(fits):
    fit(24)
seconds = ranks.allreduce(time.perf_counter() - began, op=MPI.MAX)  # of the slowest rank
if ranks.rank == 0:
    Path("work/seconds.txt").write_text(str(seconds / fits))

# %%
cores = min(machine.usable_cores, 8)
ranks_used = max(2, cores)  # with one core, two ranks share it
SETTINGS = {  # ranks, threads of each, and cores for each
    "1 rank, 1 thread": (1, 1, 1),
    f"1 rank, {cores} threads": (1, cores, cores),
    f"{ranks_used} ranks, 1 thread each": (ranks_used, 1, 1),
    f"{ranks_used} ranks, {cores} each, not pinned": (ranks_used, cores, 1),
}
launches = {}


# %%
def seconds_of(name):
    """Return a variant: a launch with this setting."""

    def seconds():
        ranks, threads, own = SETTINGS[name]
        script = "work/fit_speed.py", threads, FITS
        launches[name] = run_ranks(ranks, *script, threads=own, show=False)
        return float((work / "seconds.txt").read_text())

    return seconds


if no_daal4py:
    print(no_daal4py)
    times = recorded("09-ranks").figures
else:
    print("Four settings, six rounds: about 80 s.", flush=True)
    times = alternate({name: seconds_of(name) for name in SETTINGS}, ROUNDS, "s", "section 6")
    record("09-ranks", times, QUICK)

# %%
alone, threaded, ranked, unpinned = times.values()
names = [*times]
for name, seconds in times.items():
    against = f"; vs {names[0]}: {compare(seconds, alone)}" if seconds is not alone else ""
    print(f"{name:26} {seconds}{against}")
print(f"\nranks vs threads: {compare(ranked, threaded)}")
if launches:
    print(f"  {placement([*launches.values()][1:])}")
print(f"not pinned vs pinned ranks: {compare(unpinned, ranked)}")
results.compare_guess(6, compare(ranked, threaded))
published = ("a fit on ranks (published: 2 ranks, 17.5 megapixels)", "1.72 s")
results.hand_in("6", (*published, ranked, ""))

# %%
results.answer(6, "Who is responsible for a rank's cores: the library, the script, or mpirun?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# `mpirun` is, because it pins the ranks. The library starts a thread for each CPU that its process may use, unless
# `daalinit` sets a different number, so the demo's statement is about its `mpirun`. The last line shows what
# oversubscription costs on the same cores. The script is responsible for the shares, and for letting only rank 0
# report. These figures don't say why ranks and threads differ on one NUMA node.
#
# Threads can't leave their machine, but ranks can. With [1.12 TB on 32
# nodes](https://uxlfoundation.github.io/scikit-learn-intelex/latest/distributed_daal4py.html), each node holds 35 GB.
#
# </details>
#
# ## 7 · Which library? {read 3.5, wait 1.1, optional}
#
# `sklearnex` provides the same oneDAL through scikit-learn's interface. [Its
# notebook](https://github.com/uxlfoundation/scikit-learn-intelex/blob/main/examples/notebooks/kmeans.ipynb) reports
# 192.1 s for scikit-learn and 7.4 s for its own K-Means, "26.1 times", both for 128 clusters in 236,930 rows of 14
# numbers. From different starts, scikit-learn converged after **212** iterations, and sklearnex after **274**, so
# sklearnex was about 34 times faster per iteration.
#
# A fair race needs equal data, precision, start, iterations and threads. The next cell prints the iterations and the
# PSNR. (Elkan's algorithm gives Lloyd's result, but keeps bounds for each pixel and centroid to skip distances with the
# triangle inequality.)
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** On the photo and on equal terms, how much faster is `sklearnex` than scikit-learn's Lloyd?
#
# </div>

# %%
results.guess(7, "sklearnex vs scikit-learn's Lloyd", ..., unit="×")

# %%
begin = plus_plus(0)
terms = dict(n_clusters=K, init=begin, n_init=1, max_iter=ITERATIONS, tol=0)
fits = {
    "scikit-learn, Lloyd": lambda: KMeans(**terms, algorithm="lloyd").fit(pixels),
    "scikit-learn, Elkan": lambda: KMeans(**terms, algorithm="elkan").fit(pixels),
}
if not no_daal4py:
    import daal4py as d4p
    from sklearnex.cluster import KMeans as ExtensionKMeans

    d4p.daalinit(machine.usable_cores)
    model = dict(nClusters=K, maxIterations=ITERATIONS, accuracyThreshold=0, assignFlag=True)
    fits |= {
        "sklearnex": lambda: ExtensionKMeans(**terms, algorithm="lloyd").fit(pixels),
        "daal4py": lambda: d4p.kmeans(**model).compute(pixels, begin),
    }
for name, fit in fits.items():
    made = fit()
    if name == "daal4py":
        done, centroids = made.nIterations.item(), made.centroids
    else:
        done, centroids = made.n_iter_, made.cluster_centers_
    print(f"{name:20} {done} iterations, {decibels(centroids):.2f} dB")

# %%
if no_daal4py:
    print(no_daal4py)
    speeds = recorded("09-race").figures
else:
    with threadpool_limits(machine.usable_cores):
        race = {name: per_second(fit) for name, fit in fits.items()}
        speeds = alternate(race, RACE_ROUNDS, "fits/s", "section 7")
    record("09-race", speeds, QUICK)

# %%
lloyd = speeds["scikit-learn, Lloyd"]
for name, speed in speeds.items():
    against = f"; vs Lloyd: {compare(speed, lloyd)}" if speed is not lloyd else ""
    print(f"{name:20} {speed}{against}")
extension = compare(speeds["sklearnex"], lloyd)
results.compare_guess(7, extension)
results.hand_in("7", ("scikit-learn → sklearnex (published: 14 columns)", "26×", extension, ""))

# %% [markdown]
# Which instructions do the libraries use? oneDAL contains a version of its code for each instruction set, and chooses
# one at start-up. The next cell calls the function that chooses.

# %%
LEVELS = {0: "SSE2", 2: "SSE4.2", 4: "AVX2", 6: "AVX-512"}
if not no_daal4py:
    import ctypes
    import sys

    onedal = ctypes.CDLL(f"{sys.prefix}/lib/libonedal_core.so.4")
    # daal_check_is_intel_cpu() and __daal_serv_cpu_detect(int), as the C++ compiler names them
    onedal._Z23daal_check_is_intel_cpuv.restype = ctypes.c_bool
    print("oneDAL:", LEVELS[onedal._Z22__daal_serv_cpu_detecti(0)], end=", ")
    print("an Intel CPU:", onedal._Z23daal_check_is_intel_cpuv())
print("CPU:", ", ".join(machine.isa))
print(
    "NumPy's and SciPy's BLAS:", {pool.get("architecture") for pool in threadpool_info()} - {None}
)

# %% [markdown]
# oneDAL 2026.2 uses its AVX-512 code only if the CPU's vendor is `GenuineIntel`, as the installed library's machine
# code shows. On an AMD CPU with AVX-512, it uses AVX2, while scikit-learn's OpenBLAS uses AVX-512. Is that the reason
# for the difference? Deny AVX-512 to OpenBLAS, and see.

# %%
# %%writefile work/lloyd.py
"""Measure scikit-learn's Lloyd in a process of its own: python work/lloyd.py THREADS"""

import sys
import time
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

pixels = np.load("work/photo.npy").reshape(-1, 3).astype(np.float64)
begin = pixels[:: len(pixels) // 16][:16]
model = KMeans(16, init=begin, n_init=1, max_iter=24, tol=0)
with threadpool_limits(int(sys.argv[1])):
    model.fit(pixels)
    began = time.perf_counter()
    for _ in range(8):
        model.fit(pixels)
Path("work/seconds.txt").write_text(str((time.perf_counter() - began) / 8))


# %%
def with_core_type(core_type):
    """Return a variant: a process whose OpenBLAS uses this CPU's instructions."""

    def seconds():
        options = dict(threads=machine.usable_cores, show=False)
        env = {"OPENBLAS_CORETYPE": core_type} if core_type else {}
        run_ranks(1, "work/lloyd.py", machine.usable_cores, env=env, **options)
        return float((work / "seconds.txt").read_text())

    return seconds


if "AVX-512" in machine.isa:
    core_types = {"AVX-512": with_core_type(""), "AVX2": with_core_type("Haswell")}
    denied = alternate(core_types, ROUNDS, "s", "section 7")
    for name, seconds in denied.items():
        print(f"scikit-learn, Lloyd, {name:7} in OpenBLAS: {seconds}")
    print(f"AVX-512 vs AVX2: {compare(*denied.values())}")

# %%
results.answer(7, "Does the instruction set explain the race? And what of the published 26×?", ...)

# %% [markdown]
# <details><summary>A model answer</summary>
#
# If the last comparison shows no difference, AVX-512 in the matmuls is not the reason. With three columns, matmuls are
# a small part of the work. Whether oneDAL would gain from AVX-512 isn't tested. If Elkan's algorithm is slower than
# Lloyd's, its bounds cost more than the distances that they save, which are cheap here. The published factor is for a
# different problem, with 14 columns, 128 clusters, and unequal starts and iterations. Its machine, threads and versions
# aren't stated.
#
# </details>

# %% [markdown]
# ## Questions {read 2.5}
#
# Answer each in a sentence or two. The instructor's notebook has answers.
#
# 1. What is pixel-wise vector quantisation, and what is its code book?
# 2. How do `d4p.my_procid()` and `d4p.num_procs()` decide who works on what? Which rows does the vendor's example drop?
# 3. What does `distributed=True` do in `kmeans_init` and in `kmeans`?
# 4. What do `d4p.daalinit()` and `d4p.daalfini()` do?
# 5. A demo makes four claims: each process gets its own chunk of data; only process 0 reports; labels come from the
#    training routine with 0 iterations; nothing is oversubscribed. For each, is the library, the script or `mpirun`
#    responsible?
# 6. How do threads compare with processes? *(section 6)*
# 7. When would you use daal4py today, and when sklearnex?

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions.
#
# 1. Each pixel is a vector of three numbers, and the nearest of *k* vectors replaces it. The code book is the palette.
# 2. They decide nothing. They return numbers that a script can use to divide its data; ours gets them from mpi4py.
#    daal4py treats what each rank passes as a part of the whole. The vendor's example drops the last `rows % ranks`
#    rows.
# 3. In `kmeans_init`, all ranks draw one start from all pixels. In `kmeans`, each iteration adds up sums and counts
#    over all ranks.
# 4. `daalinit(n)` sets the number of threads, and `daalfini()` ends MPI. In older versions, the pair started and ended
#    MPI.
# 5. The script is responsible for the chunks, and for letting only rank 0 report. Labels come with 0 iterations because
#    the library has no other method. `mpirun` prevents oversubscription by pinning.
# 6. See your figures in section 6. In the stored run, on one NUMA node, ranks were faster.
# 7. Use daal4py for distributed algorithms on CPUs, for algorithms that scikit-learn lacks, and for fast prediction
#    with trees from XGBoost and others. Use sklearnex where you measure a gain.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** **Timing** Sections 1 and 2 take {minutes 1–2}, and 3 and 4 take {minutes 3–4}. No one should
# miss section 4. Let people vote on the smaller objective, and on `again.py`.
#
# **Other machines** Sections 1, 2, 3 and 5 need only NumPy and scikit-learn, and their dB figures hardly depend on the
# machine. On Arm, sections 4, 6 and 7 show recorded results, and exercise 4 isn't checked. With fast and slow cores,
# ranks with equal shares wait for the slowest one, so threads may win. With 64 cores, section 6 uses eight. AMX makes
# no difference, as everything is in double precision. A one-megapixel photo takes four times as long in section 5.
#
# **What goes wrong** `(original - quantised) ** 2` on `uint8` wraps around. HEIC files can't be read, so export JPEGs.
# In exercise 2, most people forget centroids without pixels; `np.bincount` needs `minlength`.
#
# </div>

# %% [markdown]
# ## Remember
#
# - K-Means assigns, updates and repeats. The objective measures the error. The start determines which minimum you
#   reach.
# - Ranks send sums and counts, not pixels. With integers, these sums are exact in any order.
# - Both the start *and* the fit need `distributed=True`. Agreement at the end proves neither.
# - The proof is that *n* ranks equal one process on all the data, from the same start.
# - Before you distribute data over machines, ask how much of it you need.


# %%
off = Measured(proven["vs one process"], digits=15)
results.table(
    "K-Means",
    [
        (f"{K} colours chosen for the photo", "", Measured(chosen[16], unit="dB", digits=1), ""),
        (f"{K} colours: {some:,} pixels vs all", "", loss[some], ""),
        (f"64 colours: {some:,} pixels vs {many:,}", "1,000, in an example", loss_64, ""),
        ("largest difference, 2 ranks vs one process", "", off, "0"),
        *results.handed_in("6", ("a fit on ranks (published: 2 ranks, 17.5 megapixels)", "1.72 s")),
        *results.handed_in("7", ("scikit-learn → sklearnex (published: 14 columns)", "26×")),
    ],
)

# %% [markdown]
# Published: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (two ranks on a cloud
# machine, pinned to two CPUs each; 1.72 s for the fit and 0.20 s for the labels of about 5,000 × 3,500 pixels, where
# colours and iterations aren't stated), and scikit-learn-intelex's notebook.
#
# **Next:** [lab 10](10_language_models.ipynb) turns to language models, and to the limits on their speed.
