# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   lab:
#     goal: reduce a photo to a few colours, on one process and on many
#     needs: [memory, MPI, daal4py]
#     better_with: [cores]
# ---

# %% [markdown]
# # 09 · K-Means colour quantisation with daal4py
#
# **Why?** Distributed computing is not only for neural networks. Classical algorithms raise the same questions: which
# process has which data, what travels, and does the result cover all the data? K-Means is simple enough to prove it.
#
# **You will** reduce a photo to a few colours with [**K-Means**](../docs/glossary.md#k-means): first in one
# [**process**](../docs/glossary.md#process), then on several [**ranks**](../docs/glossary.md#rank), each with a share
# of the pixels. You will find a mistake that raises no error, compare [**threads**](../docs/glossary.md#thread) with
# processes, and compare libraries, in time and in quality.
#
# **Time** {minutes}
#
# **Connects to** lab 00, where two ranks first add up their numbers; and lab 07, where ranks share digits and add up
# gradients.

# %% tags=["parameters"]
QUICK = False  # small runs, as the tests make them

# %%
from labkit.exercises import open_lab

check, results, machine, work = open_lab("09", globals())
cores = machine.usable_cores

# %%
import itertools
import json
import math
import time
from pathlib import Path

import daal4py as d4p
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from labkit.data import load_photo
from labkit.display import consistency, ladder, plots
from labkit.display.consistency import Limit, Prediction
from labkit.display.measured import Measured
from labkit.mpi import placement, run_ranks
from labkit.system import load
from labkit.system.errors import LabError
from labkit.system.statistics import interval, ratio, ratios
from labkit.system.words import plural

# %%
# How much this lab measures: change it here. The first of two sizes is for a small run.
PIXELS = 50_000 if QUICK else 2_500_000  # of the photo
ITERATIONS = 5 if QUICK else 24
ROUNDS = 1 if QUICK else 6  # of each measurement: sections 2, 5, 6 and 7
START_STRIDE, START_SEEDS = (1, 3) if QUICK else (25, 8)  # section 2: every 25th pixel, starts
RANK_COUNTS = (1, 2) if QUICK else (1, 2, 3, 4)  # section 5

# %% [markdown]
# ## 1 · A photo in sixteen colours? {read 3, do 6}
#
# A pixel is three numbers from 0 to 255: red, green and blue. That takes 24 bits. With a
# [**palette**](../docs/glossary.md#palette) of 16 colours, a pixel is just the number of its colour: 4 bits. Choosing
# the palette's colours is called [**colour quantisation**](../docs/glossary.md#colour-quantisation).
#
# Signal processing calls it *pixel-wise vector quantisation*: each pixel is a vector of three numbers, and the nearest
# vector of a small code book replaces it.
#
# To use your own photo, put it in this notebook's folder and set `PHOTO` to its name. For the measurements, every photo
# is resized to the same number of pixels, so that you can compare with your neighbour. (The built-in photo is enlarged
# about nine-fold, so most of its pixels are averages of their neighbours. Section 7 comes back to that.)
#
# The built-in photo comes with scikit-learn:
# [a picture by danielbuechele](https://www.flickr.com/photos/danielbuechele/6061409035), licensed
# [CC BY 2.0](https://creativecommons.org/licenses/by/2.0/).

# %%
PHOTO = None  # or "my_photo.jpg"

original = load_photo(PHOTO)  # at its original size
photo = load_photo(PHOTO, pixels=PIXELS)
occurs = np.zeros((256, 256, 256), bool)  # for each possible colour: does a pixel have it?
occurs[tuple(original.reshape(-1, 3).T)] = True
n_colours = np.count_nonzero(occurs)
print(f"{original.shape[1]:,} × {original.shape[0]:,} pixels, {n_colours:,} different colours")
print(f"resized for the measurements: {photo.shape[1]:,} × {photo.shape[0]:,} pixels")
if n_colours < 64:
    raise LabError(f"This picture has only {n_colours} colours: use a photo with 64 or more.")
np.save(work / "photo.npy", photo)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(5, 3.6))
axis.imshow(photo)
axis.set_title("The photo")
axis.axis("off")
plots.show(figure, alt="The photo that this lab works on, in all its colours.")

# %% [markdown]
# ### Exercise 1 · How good is it?
#
# The usual measure is the [**peak signal-to-noise ratio**](../docs/glossary.md#psnr) (PSNR), in decibels. It compares
# the largest possible value, 255, with the mean squared error over all pixels and channels:
#
# $$ \mathrm{PSNR} = 10 \log_{10} \frac{255^2}{\mathrm{MSE}} $$
#
# As a rule of thumb, you hardly see a difference above about 40 dB, and you do see one at 30 dB. Write
# `psnr(original, quantised)` for two `uint8` pictures of the same shape. If they are equal, there is no error: return
# `math.inf`. First, try `np.uint8(3) - np.uint8(5)`.


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
    name = f"{bits} bit{'s' if bits > 1 else ' '} per channel, {8**bits:>9,} colours"
    print(f"{name}: {psnr(photo, with_bits(bits)):5.1f} dB")

# %% [markdown]
# These palettes are the same for every photo. Is an equally small palette better if it is chosen for *this* photo?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What PSNR do 16 colours reach if they are chosen for the photo?
#
# </div>

# %%
results.guess(1, "16 colours chosen for the photo", ..., unit="dB")

# %% [markdown]
# ## 2 · K-Means in one process {read 5, do 6, wait 0.6}
#
# K-Means looks for the *k* colours, the [**centroids**](../docs/glossary.md#centroid), that minimise the sum of the
# squared distances from each pixel to its nearest centroid. This sum is the
# [**objective**](../docs/glossary.md#objective); scikit-learn calls it *inertia*. Finding its minimum is NP-hard in
# general. Lloyd's algorithm is a heuristic that never increases it:
#
# 1. **Assign**: label each pixel with its nearest centroid.
# 2. **Update**: move each centroid to the mean of its pixels.
# 3. **Repeat** for a number of iterations, or until nothing moves.
#
# [**daal4py**](../docs/glossary.md#daal4py) is a Python interface to oneDAL, a library for classical machine learning
# that Intel started and that is now a project of the UXL Foundation. You create an algorithm with its parameters and
# call its `compute` once. For new data, create a new one. (Its documentation warns of crashes otherwise.) Pixels are
# the rows of a matrix with three columns.

# %% [markdown]
# **Should you learn daal4py in 2026?** For new code on one machine: no. [Its
# documentation](https://uxlfoundation.github.io/scikit-learn-intelex/latest/about_daal4py.html) calls it *deprecated in
# favor of the newer sklearnex*, which is in the same package, scikit-learn-intelex, and has scikit-learn's interface.
# Section 7 uses it. But three things in daal4py have no successor there: algorithms that scikit-learn lacks, fast
# prediction with trees from XGBoost and similar libraries, and **distributed algorithms on CPUs**. `sklearnex.spmd` is
# for several GPUs. So for this lab's subject, the package has nothing newer.

# %%
K = 16

d4p.daalinit(cores)  # one thread per core
pixels = photo.reshape(-1, 3).astype(np.float64)
start = d4p.kmeans_init(K, method="plusPlusDense").compute(pixels).centroids


def fit_in_one_process():
    """Return the result of daal4py's K-Means on all pixels."""
    # accuracyThreshold=0: don't stop early, so that every run does the same work.
    return d4p.kmeans(K, ITERATIONS, accuracyThreshold=0).compute(pixels, start)


def seconds_of(times, digits=2):
    """Return the geometric mean of times in seconds, with its 95% confidence interval."""
    mean, half_length = interval(np.log(times))
    ends = mean, mean - half_length, mean + half_length
    return Measured(*np.exp(ends), "s", digits=digits)


one_process_times, one_process_cpu = [], []  # seconds, and CPU seconds of all threads together
with load.watch("section 2"):
    for _ in range(ROUNDS):
        began, cpu_began = time.perf_counter(), time.process_time()
        fitted = fit_in_one_process()
        one_process_times.append(time.perf_counter() - began)
        one_process_cpu.append(time.process_time() - cpu_began)
objective = fitted.objectiveFunction.item()
print(f"{ITERATIONS} iterations, {plural(cores, 'core')}: {seconds_of(one_process_times)}")
mse = objective / pixels.size
print(f"objective {objective:,.0f}: a mean squared error of {mse:.1f} per channel and pixel")

# %% [markdown]
# The objective *is* the error: divided by the number of pixels and by 3, it is the mean squared error, except that a
# palette rounds its colours to integers.
#
# ### A good start
#
# Lloyd's algorithm ends in a **local minimum**, and the start decides in which. `randomDense` draws *k* random pixels:
# if a photo is mostly sky, most of them are sky. **k-means++** (`plusPlusDense`) draws one pixel after another, with a
# probability that grows with the squared distance to the pixels already drawn. So rare but distant colours get a
# centroid too. How much does that help?

# %%
sample = pixels[::START_STRIDE]
STARTS = {
    "randomDense": ("16 random pixels", plots.ORANGE, "o"),
    "plusPlusDense": ("k-means++", plots.BLUE, "s"),
}
error_paths = {method: [] for method in STARTS}  # the error of each start, iteration by iteration
for seed in range(START_SEEDS):
    for method, paths in error_paths.items():
        engine = d4p.engines_mt19937(seed=seed)
        position = d4p.kmeans_init(K, method=method, engine=engine).compute(sample).centroids
        errors = [d4p.kmeans(K, 0).compute(sample, position).objectiveFunction.item()]
        for _ in range(ITERATIONS):
            step = d4p.kmeans(K, 1).compute(sample, position)
            position = step.centroids
            errors.append(step.objectiveFunction.item())
        paths.append(np.array(errors) / sample.size)

# %% jupyter={"source_hidden": true}
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5))
half = ITERATIONS // 2  # the later iterations get a picture with a scale of their own
for method, (label, colour, marker) in STARTS.items():
    for seed, errors in enumerate(error_paths[method]):
        style = dict(color=colour, marker=marker, markevery=5, lw=1.2, ms=6)
        left.plot(errors, **style, label=label if seed == 0 else None)
        right.plot(range(half, ITERATIONS + 1), errors[half:], **style)
figure.suptitle(f"Lloyd's algorithm from {START_SEEDS} starts of each kind")
left.set(xlabel="iteration", ylabel="mean squared error", title="all iterations")
right.set(xlabel="iteration", ylabel="mean squared error", title="the second half")
left.legend()
lowest = min(errors[-1] for paths in error_paths.values() for errors in paths)
lines = []
for method, (label, *_) in STARTS.items():
    by_start = np.array(error_paths[method])
    first, last, worst = (
        np.median(by_start[:, 0]),
        np.median(by_start[:, -1]),
        by_start[:, -1].max(),
    )
    higher = np.count_nonzero(by_start[:, -1] > 1.01 * lowest)
    falling = np.count_nonzero(by_start[:, -1] < 0.999 * by_start[:, -2])
    lines.append(
        f"{label}: median {first:.0f} at the start, {last:.0f} at the end, worst {worst:.0f}; "
        f"of {START_SEEDS} starts, {higher} end more than 1% above the lowest error of all, "
        f"and {falling} still fall by more than 0.1% per iteration"
    )
alt = f"Mean squared error against iteration, a line for each start. {'. '.join(lines)}."
plots.show(figure, alt=alt)
medians = {method: np.median(paths, axis=0) for method, paths in error_paths.items()}
caught_up = np.flatnonzero(medians["randomDense"] <= medians["plusPlusDense"][0])
needs = (
    plural(int(caught_up[0]), "iteration")
    if caught_up.size
    else f"more than {ITERATIONS} iterations"
)
print("\n".join(lines))
print(f"Judging by the medians, 16 random pixels need {needs} to get where k-means++ starts.")

# %% [markdown]
# A flat line is close to a local minimum. If it lies above another, it is stuck in a worse one, and more iterations
# won't get it out. A line that still falls hasn't arrived.
#
# ### Exercise 2 · Which colour for which pixel?
#
# The fit returns centroids. A picture needs a **label** for each pixel: the number of its nearest centroid. daal4py has
# no function for that, but a fit with **0 iterations** does it, since it assigns and never updates. With
# `assignFlag=True`, the result has `assignments`, in one column.
#
# Write `labels_of(pixels, centroids)` for `(n, 3)` pixels and `(k, 3)` centroids. It returns an array of `n` integers,
# in one dimension. The photo has 2.5 million pixels, so let numpy or daal4py do the loop.
#
# This function and the next one will move into a module. They take with them what they use: imports, helper functions,
# constants, each other.


# %%
def labels_of(pixels, centroids):
    """Return the number of the nearest centroid for each pixel."""
    ### BEGIN SOLUTION
    result = d4p.kmeans(len(centroids), 0, assignFlag=True).compute(pixels, centroids)
    return result.assignments.ravel()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
labels_of = check(2, labels_of)

# %% [markdown]
# With it, quantising a photo takes three lines. Here are five palettes.

# %%
COLOURS = (4, 8, 16, 32, 64)


def label_photo(centroids):
    """Return every pixel's label, in 20 parts: all at once, NumPy could take gigabytes."""
    return np.concatenate([labels_of(part, centroids) for part in np.array_split(pixels, 20)])


def quantise(k):
    """Return a palette of k colours and the photo's labels, (height, width)."""
    first = d4p.kmeans_init(k, method="plusPlusDense").compute(pixels).centroids
    last = d4p.kmeans(k, ITERATIONS, accuracyThreshold=0).compute(pixels, first).centroids
    return np.rint(last).astype(np.uint8), label_photo(last).reshape(photo.shape[:2])


quantised = {k: quantise(k) for k in COLOURS}
decibels = {k: float(psnr(photo, palette[labels])) for k, (palette, labels) in quantised.items()}
results.compare_guess(1, Measured(decibels[16], unit="dB", digits=1))

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(2, 3, figsize=(10.5, 5.6))
pictured = (4, 8, 16, 64)
axes.flat[0].imshow(photo)
axes.flat[0].set_title("original")
for axis, k in zip(axes.flat[1:5], pictured, strict=True):
    palette, labels = quantised[k]
    axis.imshow(palette[labels])
    axis.set_title(f"{k} colours, {decibels[k]:.1f} dB")
for row, k in enumerate(pictured):
    palette, _ = quantised[k]
    darkest_first = np.argsort(palette @ [0.299, 0.587, 0.114])  # the luma of ITU-R BT.601
    width, height = photo.shape[1], photo.shape[0] / 4
    box = (0, width, (row + 0.8) * height, (row + 0.2) * height)
    axes.flat[5].imshow(palette[darkest_first][None], extent=box)
    axes.flat[5].text(-0.02 * width, (row + 0.5) * height, k, ha="right", va="center")
axes.flat[5].set(xlim=(0, photo.shape[1]), ylim=(photo.shape[0], 0))
axes.flat[5].set_title("palettes, dark to bright")
for axis in axes.flat:
    axis.axis("off")
figure.suptitle("One photo in 4 to 64 colours", weight="bold")
figure.get_layout_engine().set(h_pad=0.1)
plots.show(
    figure,
    alt="The photo, and the same in 4, 8, 16 and 64 colours, with "
    + ", ".join(f"{decibels[k]:.1f}" for k in pictured)
    + " dB; next to them the four palettes, each from dark to bright.",
    keep=results,
)

# %% [markdown]
# Each doubling of the palette costs one bit per pixel before compression. How many decibels does it add? And how do 8
# and 64 colours chosen for the photo compare with the 8 and 64 of section 1?

# %%
megabytes = {}
for k, (palette, labels) in quantised.items():
    picture = Image.fromarray(labels.astype(np.uint8))
    picture.putpalette(palette.tobytes())
    picture.save(work / f"colours-{k}.png")
    megabytes[k] = (work / f"colours-{k}.png").stat().st_size / 1e6
Image.fromarray(photo).save(work / "colours-all.png")
print(f"with all colours: {(work / 'colours-all.png').stat().st_size / 1e6:.2f} MB")
for fewer, more in itertools.pairwise(COLOURS):
    print(f"{fewer:2} → {more:2} colours: {decibels[more] - decibels[fewer]:+.1f} dB")
for bits in (1, 2):
    better = decibels[8**bits] - psnr(photo, with_bits(bits))
    print(f"{8**bits:2} colours, chosen for the photo vs fixed (section 1): {better:+.1f} dB")

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
axis.plot(COLOURS, list(decibels.values()))
for k, value in decibels.items():
    place = dict(xytext=(8, -17), textcoords="offset points")
    axis.annotate(f"{megabytes[k]:.2f} MB", (k, value), **place)
axis.set_xscale("log", base=2)
axis.set_xticks(COLOURS, COLOURS)
axis.set(xlabel="colours in the palette", ylabel="PSNR (dB)")
axis.set_title("Quality by number of colours, and the PNG's size")
axis.set_ylim(min(decibels.values()) - 2.5)
axis.margins(x=0.15)
summary = "; ".join(f"{k} colours {decibels[k]:.1f} dB in {megabytes[k]:.2f} MB" for k in COLOURS)
alt = f"PSNR against the number of colours, with file sizes. {summary}."
plots.show(figure, alt=alt, keep=results)

# %% [markdown]
# ## 3 · SPMD: one program, many shares {read 4, do 7}
#
# *Single program, multiple data*, or [**SPMD**](../docs/glossary.md#spmd): every rank runs the same script on its own
# rows. In daal4py you add one argument to an algorithm, `distributed=True`. Each rank calls `compute` with *its* rows,
# and all of them get the result for *all* rows. Little data travels between the ranks: in each iteration of K-Means,
# each rank sends the sum and the number of its pixels for each centroid. That is about *k* × 4 numbers, however many
# pixels there are.

# %% [markdown]
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
# | daal4py | what it does |
# | --- | --- |
# | `d4p.my_procid()`, `d4p.num_procs()` | return the rank and the size; the first such call starts MPI |
# | `d4p.daalinit(nthreads)` | sets the number of threads of this process |
# | `d4p.daalfini()` | ends MPI: after it, nothing distributed works in this process |
#
# In older versions, `daalinit()` also started [**MPI**](../docs/glossary.md#mpi). After an import of `mpi4py`, MPI is
# already running.

# %% [markdown]
# ### What the vendor's example leaves out
#
# daal4py doesn't divide the data; your script does. The package's own example,
# [kmeans_spmd.py](https://github.com/uxlfoundation/scikit-learn-intelex/blob/main/examples/daal4py/kmeans_spmd.py),
# gives each rank `int(rows / ranks)` rows, one share after the other. Which rows are lost?

# %%
for rows, ranks in ((len(pixels), 2), (len(pixels), 3), (10, 4), (1_999, 1_000)):
    rows_per_rank = int(rows / ranks)  # as in the example
    lost = rows - rows_per_rank * ranks
    line = f"{rows:9,} rows, {ranks:5,} ranks: {rows_per_rank:9,} per rank"
    print(f"{line}, {lost:3} lost ({lost / rows:.3%})")

points = np.array([[0.0], [0.1], [0.2], [0.3], [9.0]])  # in two clusters
for data in (points, points[: 2 * int(len(points) / 2)]):  # all, and what two ranks would get
    clusters = d4p.kmeans(2, 10).compute(data, data[[0, -1]]).centroids
    print(f"K-Means on {len(data)} rows finds", clusters.ravel().round(2))

# %% [markdown]
# The remainder is dropped without an error: the example checks only the numbers of centroids and iterations. With
# millions of rows on a few ranks, you would hardly miss one. But the last rows of a file may be the newest, or a class
# of their own, and a picture with missing pixels can't be put together.

# %% [markdown]
# ### Exercise 3 · Whose pixels?
#
# In each iteration, all ranks wait for the slowest. If a cluster's nodes differ, equal shares make the fast ones wait.
# So a rank with twice the cores should get twice the pixels.
#
# Write `share(n, rank, weights)`. `weights` has an integer of at least 1 for each rank, such as its number of cores.
# Return `(start, stop)`, two ints: this rank's pixels are those from `start` up to, but not including, `stop`.
#
# - No pixel is lost, none is on two ranks, and they stay in order: rank 0 has the first ones.
# - Each rank's number of pixels differs from its exact part, `n` × its weight / the sum of all weights, by at most one.
#
# Each rank calls the function by itself and asks no other rank. In lab 07 all shares had to be equal, because each
# training step had to meet a step on every other rank. Here all ranks do the same number of iterations, whatever the
# size of their shares, so no rank waits forever.


# %%
def share(n, rank, weights):
    """Return where this rank's share of n pixels starts, and where it stops."""
    ### BEGIN SOLUTION
    total = sum(weights)
    # A share ends where the next one starts, by the same formula: nothing can get lost between.
    return n * sum(weights[:rank]) // total, n * sum(weights[: rank + 1]) // total
    ### END SOLUTION


# %% tags=["nbval-check-output"]
share = check(3, share)

# %%
for weights in ([1], [1, 1], [1, 1, 1], [3, 1], [8, 8, 4]):
    print(f"weights {weights}:", *(share(len(pixels), r, weights) for r in range(len(weights))))

# %% [markdown]
# (This lab's ranks share one machine, so all weights are 1 from here on.) Ranks are separate processes: what they need
# moves into a module.

# %% tags=["nbval-check-output"]
module_text = check.module_text(2, 3)
(work / "pieces.py").write_text(module_text)
print(module_text.partition("import pickle")[0])

# %% [markdown]
# ## 4 · It looks distributed {read 3, do 6, wait 0.3}
#
# In this script, each rank reads its share: `mmap_mode="r"` maps the file into memory, so a rank reads only the rows
# that it uses. All ranks together draw the first centroids.

# %%
# %%writefile work/looks.py
"""Find a photo's colours, or seem to: mpirun -n 2 python looks.py PHOTO COLOURS ITERATIONS"""

import sys

import daal4py as d4p
import numpy as np
from pieces import share

colours, iterations = map(int, sys.argv[2:])
rank, size = d4p.my_procid(), d4p.num_procs()
pixels = np.load(sys.argv[1], mmap_mode="r").reshape(-1, 3)
mine = pixels[slice(*share(len(pixels), rank, [1] * size))].astype(np.float64)

start = d4p.kmeans_init(colours, method="plusPlusDense", distributed=True)
begin = start.compute(mine).centroids
result = d4p.kmeans(colours, iterations, accuracyThreshold=0).compute(mine, begin)
if rank == 0:
    objective = result.objectiveFunction.item()
    print(f"{colours} colours found on {size} ranks, objective {objective:,.0f}")
d4p.daalfini()

# %%
run_ranks(2, "work/looks.py", work / "photo.npy", 16, ITERATIONS)
print(f"one process found: objective {objective:,.0f}")

# %% [markdown]
# It started on two ranks, finished, and reported a result. Compare the objectives: if the ranks' is *smaller* than one
# process's, should you be pleased, or suspicious?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Why is it smaller?
#
# </div>

# %%
REASONS = ("a better start", "more exact arithmetic", "it doesn't cover all pixels")
results.guess(2, "why the objective is smaller", ..., choices=REASONS)

# %% [markdown]
# ### Exercise 4 · Find the mistake, and prove it
#
# The result of K-Means is its centroids. If the ranks worked together, **all ranks hold the same ones**. So measure
# that before you believe anything. Complete two functions:
#
# - `spread(centroids)`: the largest difference between any two ranks, in any number of any centroid. Every rank returns
#   the answer. `MPI.COMM_WORLD.allgather(x)`, an [**all-gather**](../docs/glossary.md#all-gather), gives every rank a
#   list with each rank's `x`.
# - `fit(mine, begin, iterations)`: what the script above does after it has drawn `begin`, without its mistake; it
#   returns the centroids.
#
# Begin with the script's own line in `fit`, run it, and see what your `spread` reports. Then correct the line. The
# check runs the script on 4 ranks, for at most 60 s.

# %%
# %%writefile work/fit.py
"""Find a photo's colours on many ranks: mpirun -n 2 python fit.py PHOTO COLOURS ITERATIONS"""

import sys

import daal4py as d4p
import numpy as np
from mpi4py import MPI
from pieces import share


def spread(centroids):
    """Return the largest difference between any two ranks in any centroid; 0.0 if all agree."""
    ### BEGIN SOLUTION
    all_ranks = np.stack(MPI.COMM_WORLD.allgather(centroids))
    return float((all_ranks.max(axis=0) - all_ranks.min(axis=0)).max())
    ### END SOLUTION


def draw(mine, colours):
    """Return the first centroids by k-means++, the same on every rank."""
    # SPMD: drawn from the pixels of all ranks. Without distributed=True, each rank would draw
    # from its own. Drawing takes 80 bytes a pixel, so from a large photo take every 2nd, 3rd …:
    # no more than 5 million. Copy them: distributed daal4py 2026.2 hangs on rows that are not
    # contiguous.
    sample = mine[:: 1 + len(mine) // 5_000_000].copy()
    start = d4p.kmeans_init(colours, method="plusPlusDense", distributed=True)
    return start.compute(sample).centroids


def fit(mine, begin, iterations):
    """Return the centroids after `iterations` over all ranks' pixels, the same on each."""
    # SPMD: in each iteration the sums of all ranks are added up. Which argument does that?
    ### BEGIN SOLUTION
    model = d4p.kmeans(len(begin), iterations, accuracyThreshold=0, distributed=True)
    return model.compute(mine, begin).centroids
    ### END SOLUTION


def main(argv):
    photo, colours, iterations = argv[0], int(argv[1]), int(argv[2])
    # SPMD: this rank's number, how many there are, and this rank's share of the pixels.
    rank, size = d4p.my_procid(), d4p.num_procs()
    pixels = np.load(photo, mmap_mode="r").reshape(-1, 3)
    mine = pixels[slice(*share(len(pixels), rank, [1] * size))].astype(np.float64)
    begin = draw(mine, colours)
    centroids = fit(mine, begin, iterations)
    # SPMD: every rank takes part in the measurement, rank 0 reports.
    before, after = spread(begin), spread(centroids)
    if rank == 0:
        print("largest difference between any two ranks:", end=" ")
        print(f"{before} at the start, {after} at the end")


if __name__ == "__main__":
    main(sys.argv[1:])
    d4p.daalfini()

# %%
try:
    run = run_ranks(2, "work/fit.py", work / "photo.npy", 16, ITERATIONS, show=False)
    print(*run.lines[0], sep="\n")
except LabError as error:  # while something is missing, print what, and continue
    print(error)

# %% [markdown]
# The check compares the ranks with each other, and with one process that has all pixels and the same start: from
# another start, Lloyd's algorithm may end in another local minimum.

# %% tags=["nbval-check-output"]
fit = check(4, "work/fit.py")

# %% [markdown]
# So `distributed=True` was missing on the *fit* alone. The ranks shared the start, so everything looked shared. From
# there, each rank continued alone on its own pixels, and the objective that rank 0 reported covered only *its share*.
# That is why it was smaller.
#
# The corrected script becomes a module for the next ones.

# %%
_ = (work / "spmd.py").write_text(Path(fit).read_text())

# %%
# %%writefile work/proof.py
"""Measure how far apart ranks end: mpirun -n 2 python work/proof.py PHOTO COLOURS ITERATIONS"""

import sys

import daal4py as d4p
import numpy as np
from pieces import share
from spmd import draw, fit, spread

colours, iterations = map(int, sys.argv[2:])
rank, size = d4p.my_procid(), d4p.num_procs()
pixels = np.load(sys.argv[1], mmap_mode="r").reshape(-1, 3)
mine = pixels[slice(*share(len(pixels), rank, [1] * size))].astype(np.float64)
begin = draw(mine, colours)
# As in looks.py:
alone = d4p.kmeans(colours, iterations, accuracyThreshold=0).compute(mine, begin)
together = fit(mine, begin, iterations)

print(f"objective as rank {rank} of looks.py sees it: {alone.objectiveFunction.item():,.0f}")
# SPMD: every rank takes part, rank 0 reports.
spreads = [float(spread(centroids)) for centroids in (begin, alone.centroids, together)]
if rank == 0:
    print("largest difference between any two ranks:", end=" ")
    print("{:g} at the start, {:.3g} by looks.py, {:g} by fit".format(*spreads))
d4p.daalfini()

# %%
proof = run_ranks(2, "work/proof.py", work / "photo.npy", 16, ITERATIONS)
results.compare_guess(2, REASONS[2])

# %% [markdown]
# ## 5 · The whole picture {read 4, do 6, wait 1}
#
# The centroids are the same on all ranks, but each rank can label only its own pixels. One rank must put the picture
# together, and that rank alone must write it.
#
# `Gatherv` collects arrays of *different* lengths on one rank, the root (the *v* is for "varying"). The root specifies
# how many come from each rank: `ranks.Gatherv(mine, [all_labels, counts], root=0)`, where `all_labels` is an array
# large enough for all, of the same type as `mine`. On the other ranks `all_labels` is `None`.
#
# ### Exercise 5 · Labels, picture, file
#
# Complete the script in two places. (The folded module before it contains the rest: arguments, times, the log.)
#
# - `labels`: the labels of this rank's pixels, as `np.uint8`, from exercise 2's `labels_of`. Then only one byte per
#   pixel travels.
# - The picture: gather the labels on rank 0. Only there, make a picture of `height` rows and `width` columns, give it
#   the palette, which is the centroids rounded to integers, and save it as `args.out / "photo.png"`. Section 2 has the
#   lines for a picture with a palette.
#
# The check runs it on 3 ranks, for at most 60 s.

# %% jupyter={"source_hidden": true}
# %%writefile work/kmeans_helpers.py
"""Plumbing of kmeans.py: arguments, a check of the photo, times, the log."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import daal4py as d4p
import numpy as np
import psutil
from mpi4py import MPI
from spmd import fit, spread

RANKS = MPI.COMM_WORLD


def parse_arguments(description, argv):
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--photo", type=Path, default=Path("work/photo.npy"), help="array (height, width, 3)")
    add("--colours", type=int, default=16, help="1 to 256")
    add("--iterations", type=int, default=30)
    add("--threads", type=int, default=0, help="per rank; 0: the library's default")
    add("--out", type=Path, default=Path("work/kmeans"), help="folder for picture and log")
    return parser.parse_args(argv)


def require_colours(mine, n_pixels, colours):
    """End all ranks if the photo has too few colours, or a rank has too few pixels."""
    # k-means++ searches forever if there are fewer colours than it should draw, and needs that
    # many pixels on each rank. All ranks reach the same answer, so all of them exit.
    if not 1 <= colours <= 256 or n_pixels // RANKS.size < colours:
        problem = f"{colours} colours, {n_pixels} pixels, {RANKS.size} ranks"
        sys.exit(f"{problem}: choose 1 to 256 colours; each rank needs a pixel for each colour")
    # SPMD: a colour may be on several ranks, so they count together.
    occurs = np.zeros((256, 256, 256), bool)
    occurs[tuple(mine.T)] = True
    first_colours = RANKS.allgather(np.flatnonzero(occurs)[:colours])
    if len(np.unique(np.concatenate(first_colours))) < colours:
        sys.exit(f"the photo has fewer than {colours} different colours: choose fewer")


def cpu_seconds():
    """Return the CPU time of each thread of this process."""
    threads = psutil.Process().threads()
    return {thread.id: thread.user_time + thread.system_time for thread in threads}


def timed_fit(mine, first, iterations):
    """Return the centroids, the seconds of the fit, and the number of busy threads."""
    before = cpu_seconds()
    RANKS.Barrier()  # SPMD: begin together, or waiting for the last rank would count too
    began = time.perf_counter()
    centroids = fit(mine, first, iterations)
    seconds = time.perf_counter() - began
    used = [after - before.get(thread, 0) for thread, after in cpu_seconds().items()]
    busy = sum(cpu > 0.1 * max(used) for cpu in used if cpu > 0)
    return centroids, seconds, busy


def write_log(args, mine, centroids, labels, seconds, busy):
    """Collect what all ranks measured; on rank 0, write the log and report."""
    # SPMD: the objective is each rank's own, added up. A pass of 0 iterations gives it for the
    # last centroids.
    mine_only = d4p.kmeans(args.colours, 0).compute(mine, centroids).objectiveFunction.item()
    slowest = {part: RANKS.reduce(value, MPI.MAX) for part, value in seconds.items()}
    log = {
        "ranks": RANKS.size,
        "objective": RANKS.allreduce(mine_only),
        "spread": float(spread(centroids)),
        "pixels": RANKS.gather(len(labels)),
        "seconds": slowest,  # on the slowest rank
        "threads": RANKS.gather(d4p.num_threads()),  # that the library would use
        "busy": RANKS.gather(busy),  # threads that worked during the fit
        "cpus": len(set().union(*RANKS.allgather(os.sched_getaffinity(0)))),  # of all ranks
    }
    if RANKS.rank == 0:
        (args.out / "log.json").write_text(json.dumps(log))
        print(f"ranks: {RANKS.size}, fit: {slowest['fit']:.2f} s,", end=" ")
        print(f"objective: {log['objective']:.10g}")


# %%
# %%writefile work/kmeans.py
"""Reduce a photo to a few colours on many ranks: mpirun -n 2 python work/kmeans.py --help"""

import time

import daal4py as d4p
import numpy as np
from kmeans_helpers import parse_arguments, require_colours, timed_fit, write_log
from mpi4py import MPI
from pieces import labels_of, share
from PIL import Image
from spmd import draw


def main(argv=None):
    args = parse_arguments(__doc__, argv)
    d4p.daalinit(args.threads)  # changes nothing when it is 0
    # SPMD: this rank's number, how many there are, and this rank's share of the pixels.
    ranks = MPI.COMM_WORLD
    rank, size = d4p.my_procid(), d4p.num_procs()
    photo = np.load(args.photo, mmap_mode="r")
    height, width, _ = photo.shape
    shares = [share(height * width, other, [1] * size) for other in range(size)]
    mine = np.array(photo.reshape(-1, 3)[slice(*shares[rank])])
    require_colours(mine, height * width, args.colours)
    mine = mine.astype(np.float64)

    seconds = {}
    first = draw(mine, args.colours)
    centroids, seconds["fit"], busy = timed_fit(mine, first, args.iterations)

    began = time.perf_counter()
    # SPMD: each rank labels its own pixels and no others.
    ### BEGIN SOLUTION
    labels = labels_of(mine, centroids).astype(np.uint8)
    ### END SOLUTION
    seconds["labels"] = time.perf_counter() - began

    # SPMD: put the picture together on rank 0, and write it there alone.
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
    ### BEGIN SOLUTION
    all_labels = np.empty(height * width, np.uint8) if rank == 0 else None
    counts = [stop - start for start, stop in shares]
    ranks.Gatherv(labels, [all_labels, counts], root=0)
    if rank == 0:
        picture = Image.fromarray(all_labels.reshape(height, width))
        picture.putpalette(np.rint(centroids).astype(np.uint8).tobytes())
        picture.save(args.out / "photo.png")
    ### END SOLUTION

    write_log(args, mine, centroids, labels, seconds, busy)
    return first, centroids, labels


if __name__ == "__main__":
    main()
    d4p.daalfini()

# %% tags=["nbval-check-output"]
kmeans = check(5, "work/kmeans.py")

# %% [markdown]
# Now run it on your photo at its original size. Each rank holds only its share: 24 bytes per pixel in double precision,
# so 480 MB for 20 million pixels, over all ranks together. The libraries come on top on each rank, and for a moment up
# to 400 MB while it draws the first centroids (80 bytes for each of at most 5 million pixels).

# %%
np.save(work / "original.npy", original)
arguments = ("--photo", work / "original.npy", "--iterations", ITERATIONS)
run_ranks(2, kmeans, *arguments, "--out", work / "kmeans-original")
log = json.loads((work / "kmeans-original" / "log.json").read_text())
with Image.open(work / "kmeans-original" / "photo.png") as file:
    sixteen_colours = file.convert("RGB")
sixteen_colours.thumbnail((1000, 1000))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(5, 3.6))
axis.imshow(sixteen_colours)
decibel = 10 * math.log10(255**2 * original.size / log["objective"])
size = (work / "kmeans-original" / "photo.png").stat().st_size / 1e6
axis.set_title(f"By two ranks: 16 colours, {decibel:.1f} dB, {size:.2f} MB", fontsize=12)
axis.axis("off")
plots.show(figure, alt="The photo in 16 colours, found by two ranks and written by rank 0.")

# %% [markdown]
# Is the result the same on any number of ranks? And how much time do two ranks save? Each rank gets one core, while
# there are enough. One and two ranks alternate, six times; three and four run once. This takes **about a minute**.
# Every pixel must be labelled once, and all ranks must hold the same centroids.


# %%
def measure(ranks, threads):
    """Return the log of a run, and the run itself."""
    out = work / "kmeans-measure"
    arguments = ("--iterations", ITERATIONS, "--out", out)
    run = run_ranks(ranks, kmeans, *arguments, threads=threads, show=False)
    return json.loads((out / "log.json").read_text()) | {"run": run}


rank_logs = {ranks: [] for ranks in RANK_COUNTS}
with load.watch("section 5") as fit_others:
    for turn in range(ROUNDS):
        for ranks in RANK_COUNTS if turn == 0 else RANK_COUNTS[:2]:
            log = measure(ranks=ranks, threads=1)
            assert sum(log["pixels"]) == len(pixels), "a pixel was lost, or doubled"
            assert log["spread"] == 0.0, "the ranks hold different centroids"
            rank_logs[ranks].append(log)
            line = f"fit {log['seconds']['fit']:.2f} s, objective {log['objective']:.10g}"
            print(f"round {turn + 1} of {ROUNDS}, ranks: {ranks}, {line}", flush=True)


# %% [markdown]
# On two cores or more, perfect sharing would halve the time on two ranks. Does it? And do the objectives agree, with
# each other and with section 2's?


# %%
def times_of(ranks, part):
    """Return the seconds of a part of the work, round by round."""
    return np.array([log["seconds"][part] for log in rank_logs[ranks]])


def half_of_one(part, digits):
    """Return half of one rank's seconds: the least that two ranks on two cores can need."""
    half_time = seconds_of(times_of(1, part) / min(2, cores), digits)
    return Limit(half_time, above="half of the pixels may fit into a cache", lower_is_better=True)


def say(name, gain, reference):
    """Return in words how a speed compares with a reference, with the verdict of the rounds."""
    return f"{name}: {Measured(*gain, '×')} vs {reference}: {gain.verdict_by_rounds}"


objectives = [objective, *(log["objective"] for runs in rank_logs.values() for log in runs)]
apart = np.ptp(objectives) / objective
agree = "they agree" if apart < 1e-9 else "they differ: did all draw the same start?"
print(f"The largest relative difference between objectives is {apart:.1e}: {agree}.")
two_ranks = ratio(*(1 / times_of(ranks, "fit") for ranks in (2, 1)))
print(say("the fit on two ranks", two_ranks, "one"))
predictions = [
    Prediction(
        f"{part} on two ranks",
        half_of_one(part, 3).measured.value,
        seconds_of(times_of(2, part), 3),
    )
    for part in ("fit", "labels")
]
print(*predictions, consistency.score(predictions), sep="\n")

# %% [markdown]
# From the same start, only the order of the additions differs. So on any number of ranks, the objectives agree to about
# as many digits as double precision has.
#
# One trap is left. The objective that a *distributed* fit reports, `objectiveFunction`, is that of the centroids
# *before* the last update; a fit in one process reports it for the centroids that it returns. That is why the script
# computes it in a separate pass with 0 iterations.
#
# ## 6 · Threads or processes? {read 3, wait 1.6, optional}
#
# daal4py can also use several *threads* in one process. They share one memory, so there are no shares, nothing to
# gather, and no MPI. Which is faster? And can threads and processes get in each other's way?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How much faster are ranks than threads on the same cores? (1 means equally fast.)
#
# </div>

# %%
results.guess(3, "ranks vs threads, same cores", ..., unit="×")

# %% [markdown]
# A demo from 2019 claims that nothing is oversubscribed, since the library sees only the cores that its rank owns.
# Whether a rank *owns* cores depends on [**mpirun**](../docs/glossary.md#mpirun). `-bind-to`
# [**pins**](../docs/glossary.md#pinning) each rank to its own cores: that demo's two ranks were pinned to the CPUs
# {0, 2} and {1, 3}. A plain `mpirun -n 2 python work/kmeans.py`, with this MPI, pins nothing.
#
# `run_ranks` pins the ranks if ranks × threads fit on the cores, and doesn't if you request more. So if you request all
# cores for each rank, you get what the plain `mpirun` does. Each rank reports how many threads the library would use,
# and how many were busy during the fit.
#
# To compare like with like, ranks and threads use the same cores: at most eight, and those of one
# [**NUMA node**](../docs/glossary.md#numa-node) if it has that many. Ranks that are pinned and ranks that aren't are
# compared on all cores. The settings alternate, six times: on two cores, **about a minute and a half**.


# %% jupyter={"source_hidden": true}
def cores_each(n):
    """Return a number of cores per rank in words."""
    return f"{n} core{'s' * (n > 1)} each"


w = min(cores, 8)  # enough cores to see the effect, and few enough for a short run
few = next((n for n in range(2, w + 1) if cores % n == 0), 2)  # ranks that divide all cores
ALONE, THREADS = "1 rank, 1 core", f"1 rank, {w} cores"
PROCESSES = f"{w} ranks, {cores_each(1)}"
DIVIDED, PLAIN = f"{few} ranks, {cores_each(cores // few)}", f"{few} ranks, plain mpirun"
settings = {
    ALONE: dict(ranks=1, threads=1),
    THREADS: dict(ranks=1, threads=w),
    PROCESSES: dict(ranks=w, threads=1),
    DIVIDED: dict(ranks=few, threads=cores // few),  # on two cores, the same as before
    PLAIN: dict(ranks=few, threads=cores),
}
if cores == 1:  # there are no cores to divide
    settings = {name: settings[name] for name in (ALONE, PLAIN)}
elif QUICK:
    settings = {name: settings[name] for name in settings if name in (ALONE, PROCESSES)}

# %%
print(f"The fits of: {'; '.join(settings)}")
sharing_logs = {name: [] for name in settings}
with load.watch("section 6") as sharing_others:
    for turn in range(ROUNDS):
        for name, setting in settings.items():
            sharing_logs[name].append(measure(**setting))
        line = ", ".join(f"{runs[-1]['seconds']['fit']:.2f} s" for runs in sharing_logs.values())
        print(f"round {turn + 1} of {ROUNDS}: {line}", flush=True)


# %%
def span(numbers):
    """Return the numbers as text: lowest–highest if they differ."""
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low}–{high}"


fit_times = {name: [log["seconds"]["fit"] for log in runs] for name, runs in sharing_logs.items()}
print(f"{'setting':30} {'pinned':7} {'threads per rank':17} {'busy':6} fit")
for name, runs in sharing_logs.items():
    log = runs[-1]
    pinned = "yes" if log["run"].bound else "no"
    busy = span(log["busy"]) if min(log["busy"]) else "?"  # too short to be counted
    row = f"{name:30} {pinned:7} {span(log['threads']):17} {busy:6}"
    print(row, seconds_of(fit_times[name]))

# %% jupyter={"source_hidden": true}
speeds = {name: 1 / np.array(times) for name, times in fit_times.items()}
vs_alone = ratios(speeds, ALONE)
figure, axis = plt.subplots(figsize=(10, 3.6))
names = [name for name in vs_alone if name != ALONE]
bound = {name: sharing_logs[name][-1]["run"].bound for name in names}
for place, name in enumerate(names):
    value, low, high = vs_alone[name]
    colour, marker = (plots.BLUE, "o") if bound[name] else (plots.ORANGE, "^")
    style = dict(color=colour, marker=marker)
    reach = np.nan_to_num([[value - low], [high - value]])
    axis.errorbar(value, place, xerr=reach, capsize=5, ms=10, ls="", **style)
tick_labels = [f"{name}{'' if bound[name] else ' (not pinned)'}" for name in names]
axis.set_yticks(range(len(names)), tick_labels)
axis.axvline(1, color=plots.BLACK, lw=1.5, ls="--")
axis.set_ylim(len(names) - 0.5, -0.5)
highest = max(vs_alone.values(), key=lambda gain: gain.value).value
axis.set_xlim(0, min(1.05 * axis.get_xlim()[1], 2 * highest))  # disturbed rounds have no end
axis.set_xlabel(f"speed relative to {ALONE} (×), with 95% intervals")
axis.set_title(f"Threads and processes: {ITERATIONS} iterations, {K} colours")
summary = "; ".join(f"{name} {Measured(*vs_alone[name], '×')}" for name in names)
plots.show(
    figure,
    alt=f"Speed of the fit by setting, relative to {ALONE}; triangles: not pinned. {summary}.",
    keep=results,
    watched=[sharing_others],
)

# %% [markdown]
# Each line below compares two settings. And did each thread have a CPU, as the old claim says?


# %%
def crowding(threads_of_ranks, cpus):
    """Return in words whether there is a CPU for each thread of these ranks."""
    threads = sum(threads_of_ranks)
    verdict = "a CPU for each" if threads <= cpus else "oversubscribed"
    return f"{threads} threads on {cpus} CPU{'s' * (cpus > 1)}: {verdict}"


pairs = [(THREADS, ALONE), (PROCESSES, ALONE), (PROCESSES, THREADS), (PLAIN, DIVIDED)]
for name, reference in pairs if cores > 1 else [(PLAIN, ALONE)]:
    if {name, reference} <= speeds.keys():
        print(say(name, ratios(speeds, reference)[name], reference))
if {PROCESSES, THREADS} <= speeds.keys():
    on_same_cores = [log["run"] for name in (PROCESSES, THREADS) for log in sharing_logs[name]]
    print(f"Ranks vs threads: {placement(on_same_cores)}")
    results.compare_guess(3, Measured(*ratios(speeds, THREADS)[PROCESSES], "×"))
for name, runs in sharing_logs.items():
    if runs[-1]["ranks"] > 1:
        print(f"{name}: {crowding(runs[-1]['threads'], runs[-1]['cpus'])}")
if cores == 2 and PROCESSES in speeds:
    section_5 = Measured(*two_ranks, "×")
    section_6 = Measured(*vs_alone[PROCESSES], "×")
    print(consistency.repeated("2 ranks vs 1", ("section 5", section_5), ("section 6", section_6)))

# %% [markdown]
# The library starts a thread for each CPU that its process may use, unless `daalinit` sets another number. It is
# `mpirun` that gives a rank its own CPUs, or doesn't. So the old claim is about pinning. Does
# [**oversubscription**](../docs/glossary.md#oversubscription), more threads than CPUs, cost much? The comparison with
# plain `mpirun` answers that. If it costs little, a likely reason is that no rank waits long for another: in K-Means
# the ranks meet only once per iteration, to add up a few numbers. In lab 07 they meet many times a second, and MPI
# *polls* while it waits.
#
# Why use processes at all, even where threads are as fast? Because threads can't leave their machine. The script runs
# unchanged on several machines, and each needs memory only for its share: with [1.12 TB on 32
# nodes](https://uxlfoundation.github.io/scikit-learn-intelex/latest/distributed_daal4py.html), 35 GB per node.

# %% [markdown]
# ## 7 · With others, on the same pixels {read 4, wait 1.1, optional}
#
# A library that claims to be fast should be compared with others. To be fair, keep these the same: the pixels in double
# precision, the number of colours, the first centroids, the threads, and, if the algorithm is Lloyd's, the number of
# iterations. (Elkan's gives the same result, but skips distances by the triangle inequality.) And report time *and*
# error: another algorithm may be faster and worse, or slower and better.
#
# Check a published figure with this list. [The notebook of
# scikit-learn-intelex](https://github.com/uxlfoundation/scikit-learn-intelex/blob/main/examples/notebooks/kmeans.ipynb)
# reports 192.1 s for scikit-learn and 7.4 s for its own K-Means, "26.1 times". Both fit 128 clusters to the same
# 236,930 × 14 numbers. But they share only the random seed, not the start, and each stopped when it had converged:
# scikit-learn after **212** iterations, the other after **274**. So the terms were unequal, in favour of scikit-learn:
# per iteration, the factor is about 34. The processor and the threads are not stated.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** On the photo and on equal terms, how much faster is `sklearnex` than scikit-learn's Lloyd? (0.5 means
# half the speed.)
#
# </div>

# %%
results.guess(4, "sklearnex vs scikit-learn's Lloyd", ..., unit="×")

# %% [markdown]
# `sklearnex` gives the same oneDAL scikit-learn's interface. Three contenders do different work:
#
# - **mini-batch**: 65,536 pixels per step, one pass over the photo;
# - **Lloyd on a hundredth** of the pixels, drawn at random; the time includes the drawing;
# - Pillow's **median cut**, which splits the box of all colours in two, again and again.
#
# Each is a function that returns a palette or a picture.

# %%
import warnings

from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearnex.cluster import KMeans as ExtensionKMeans

warnings.simplefilter("ignore", ConvergenceWarning)  # stopping before convergence is intended
pillow_photo = Image.fromarray(photo)
choose = np.random.default_rng(0).choice
same_terms = dict(n_clusters=K, init=start, n_init=1, max_iter=ITERATIONS, tol=0)


def centroids_by(model, rows=pixels):
    """Fit a model and return its centroids; warn if it made another number of iterations."""
    model.fit(rows)
    if model.n_iter_ != ITERATIONS and not isinstance(model, MiniBatchKMeans):
        print(f"  (ended after {model.n_iter_} iterations)")
    return model.cluster_centers_


def from_a_hundredth(rows):
    """Return the centroids of a hundredth of the rows, drawn at random."""
    chosen = choose(len(rows), min(len(rows), max(1000, len(rows) // 100)), replace=False)
    return centroids_by(KMeans(**same_terms, algorithm="lloyd"), rows[chosen])


def median_cut():
    """Return the picture as Pillow quantises it."""
    options = dict(method=Image.Quantize.MEDIANCUT, kmeans=0, dither=Image.Dither.NONE)
    return np.asarray(pillow_photo.quantize(K, **options).convert("RGB"))


mini_batch = same_terms | dict(max_iter=1, batch_size=1 << 16, random_state=0)
contenders = {
    "daal4py": lambda: fit_in_one_process().centroids,
    "sklearnex (oneDAL)": lambda: centroids_by(ExtensionKMeans(**same_terms, algorithm="lloyd")),
    "scikit-learn, Lloyd": lambda: centroids_by(KMeans(**same_terms, algorithm="lloyd")),
    "scikit-learn, Elkan": lambda: centroids_by(KMeans(**same_terms, algorithm="elkan")),
    "scikit-learn, mini-batch": lambda: centroids_by(MiniBatchKMeans(**mini_batch)),
    "scikit-learn, a hundredth": lambda: from_a_hundredth(pixels),
    "Pillow, median cut": median_cut,
}

# %% [markdown]
# They alternate, six times. The cell takes **about a minute**.


# %%
def quality(answer):
    """Return the PSNR of a picture, or of the photo in the colours of a palette."""
    if answer.ndim == 2:
        palette = np.clip(np.rint(answer), 0, 255).astype(np.uint8)
        answer = palette[label_photo(answer)].reshape(photo.shape)
    return float(psnr(photo, answer))


race_times, race_cpu = ({name: [] for name in contenders} for _ in range(2))
race_decibels = {}
with threadpool_limits(cores), load.watch("section 7") as library_others:
    for turn in range(ROUNDS):
        for name, contender in contenders.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            answer = contender()
            race_times[name].append(time.perf_counter() - began)
            race_cpu[name].append(time.process_time() - cpu_began)
            if turn == 0:
                race_decibels[name] = quality(answer)
        line = "; ".join(f"{name} {times[-1]:.2f} s" for name, times in race_times.items())
        print(f"round {turn + 1} of {ROUNDS}: {line}", flush=True)


# %%
def judge(gain, decibels):
    """Return in words whether a library is faster, and better."""
    better = f"{abs(decibels):.1f} dB {'better' if decibels > 0 else 'worse'}"
    return f"{gain.verdict}; {better if abs(decibels) >= 0.1 else 'as good'}"


race_speeds = {name: 1 / np.array(times) for name, times in race_times.items()}
vs_daal4py = ratios(race_speeds, "daal4py")
by_speed = sorted(vs_daal4py, key=lambda name: -vs_daal4py[name].value)
print("Compared with daal4py, the fastest first:")
for name in by_speed:
    if name != "daal4py":
        verdict = judge(vs_daal4py[name], race_decibels[name] - race_decibels["daal4py"])
        print(f"{name:26} {Measured(*vs_daal4py[name], '×')}: {verdict}")
extension = ratios(race_speeds, "scikit-learn, Lloyd")["sklearnex (oneDAL)"]
results.compare_guess(4, Measured(*extension, "×"))

# %% [markdown]
# Section 2 ran the same fit on the same data. Did it take as long there, and as much CPU time?

# %%
for what, earlier, later in (
    ("daal4py's fit", one_process_times, race_times["daal4py"]),
    ("its CPU time", one_process_cpu, race_cpu["daal4py"]),
):
    sections = ("section 2", seconds_of(earlier)), ("this race", seconds_of(later))
    print(consistency.repeated(what, *sections))

# %% [markdown]
# If the CPU time differs as well, the cores needed longer for the same work. Clock rates change, a virtual machine
# shares caches and memory with its neighbours, and libraries can suffer differently. So compare what alternates within
# one race, never seconds from two sections.

# %% jupyter={"source_hidden": true}
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), sharey=True, width_ratios=(3, 2))
LLOYD = ("daal4py", "sklearnex (oneDAL)", "scikit-learn, Lloyd", "scikit-learn, Elkan")
for group, colour, marker, legend in (
    ([name for name in by_speed if name in LLOYD], plots.BLUE, "o", "same start, same iterations"),
    ([name for name in by_speed if name not in LLOYD], plots.ORANGE, "^", "different work"),
):
    rows = [by_speed.index(name) for name in group]
    values, lows, highs = np.array([vs_daal4py[name] for name in group]).T
    style = dict(ls="", color=colour, marker=marker, ms=9)
    reach = np.nan_to_num([values - lows, highs - values])
    left.errorbar(values, rows, xerr=reach, capsize=4, label=legend, **style)
    right.plot([race_decibels[name] for name in group], rows, **style)
tick_labels = []
for name in by_speed:
    mean = seconds_of(race_times[name]).value
    tick_labels.append(f"{name}\n{mean:.2f} s" if mean >= 0.1 else f"{name}\n{1000 * mean:.1f} ms")
left.axvline(1, color=plots.BLACK, lw=1.5, ls="--")
left.set_xscale("log")
left.xaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5), numticks=99))
left.xaxis.set_major_formatter("{x:g}")
left.xaxis.set_minor_formatter("")
left.set(xlabel="speed relative to daal4py (×, logarithmic), with 95% intervals")
left.set_title(f"Speed, {K} colours, {plural(cores, 'core')}")
left.set_yticks(range(len(by_speed)), tick_labels)
left.invert_yaxis()
right.set(xlabel="PSNR (dB)", title="Quality (higher is better)")
right.margins(x=0.15)
figure.legend(*left.get_legend_handles_labels(), ncols=2, loc="outside lower center")
summary = "; ".join(
    f"{name} {Measured(*vs_daal4py[name], '×')}, {race_decibels[name]:.1f} dB" for name in by_speed
)
plots.show(
    figure,
    alt=f"Speed relative to daal4py and PSNR of each contender, the fastest first. {summary}.",
    keep=results,
    watched=[library_others],
)

# %% [markdown]
# Before you choose a library, look at the row of the *hundredth*: how much time does it save, and how many decibels
# does it cost? Two things flatter it. It finds only the palette, and labelling the picture takes the same time for all.
# And if your photo was enlarged, a hundredth of its pixels is a larger part of the original ones. So measure again,
# with one library: a finished picture, at the photo's original size.

# %%
original_pixels = original.reshape(-1, 3).astype(np.float64)
lloyd = KMeans(**same_terms, algorithm="lloyd")
finishers = {
    "all pixels": lambda: centroids_by(lloyd, original_pixels),
    "a hundredth": lambda: from_a_hundredth(original_pixels),
}
finish_times, squared_errors = {name: [] for name in finishers}, {}
with threadpool_limits(cores), load.watch("section 7") as finish_others:
    for turn in range(1 + ROUNDS):
        for name, find_centroids in finishers.items():
            began = time.perf_counter()
            last = find_centroids()
            labels = d4p.kmeans(K, 0, assignFlag=True).compute(original_pixels, last).assignments
            if turn:  # the first turn warms up
                finish_times[name].append(time.perf_counter() - began)
            else:
                squared_errors[name] = np.mean((original_pixels - last[labels.ravel()]) ** 2)
finished = ratio(*(1 / np.array(finish_times[name]) for name in ("a hundredth", "all pixels")))
lost = 10 * math.log10(squared_errors["a hundredth"] / squared_errors["all pixels"])
print(f"A picture of {len(original_pixels):,} pixels, its colours from a hundredth of them:")
print(f"{Measured(*finished, '×')} vs scikit-learn's Lloyd on all: {judge(finished, -lost)}")
results.hand_in(
    "7",  # for the closing table
    (
        "scikit-learn → oneDAL. Published: 128 clusters, 212 → 274 iterations. Here: the photo",
        "192.1 → 7.4 s: 26×",
        Measured(*extension, "×"),
        "",
        library_others,
    ),
    (
        "all pixels → a hundredth, a finished picture",
        "",
        Measured(*finished, "×", note=f"{0 - round(lost, 1):+.1f} dB"),
        "",
        finish_others,
    ),
)

# %% [markdown]
# Often the fastest computation is the one you don't need. Measure on your own data what skipping it costs.

# %% [markdown]
# ## 8 · Homework: does it depend on the data's shape? {read 1, optional}
#
# A pixel has three numbers; a patch of 4 × 4 pixels has 48, an embedding has hundreds. An AVX2 unit processes 4 doubles
# at a time, an AVX-512 unit 8, so longer rows may suit one library better. The next cell writes a race on random rows,
# on equal terms. Run it in a terminal, in this notebook's folder, after
# `source ../.venv/bin/activate`:
#
# ```bash
# python work/shapes.py 236930 14 128   # rows, width, centroids: the published shape
# ```
#
# 1. Does the published shape explain the published factor?
# 2. Vary the width, the rows and the centroids. Which of them decides? (The largest of many ratios is partly luck.)

# %%
# %%writefile work/shapes.py
"""Compare daal4py with scikit-learn on random rows: python work/shapes.py ROWS WIDTH CENTROIDS"""

import sys
import time

import daal4py as d4p
import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from labkit.system.lease import usable_machine
from labkit.system.statistics import ratio

rows, width, k = map(int, sys.argv[1:])
data = np.random.default_rng(0).normal(size=(rows, width))
start, cores = data[:k].copy(), usable_machine().usable_cores
d4p.daalinit(cores)
lloyd = dict(n_clusters=k, init=start, n_init=1, max_iter=10, tol=0, algorithm="lloyd")
contenders = {
    "daal4py": lambda: d4p.kmeans(k, 10, accuracyThreshold=0).compute(data, start),
    "scikit-learn": lambda: KMeans(**lloyd).fit(data),
}
speeds = {name: [] for name in contenders}
with threadpool_limits(cores):
    for turn in range(7):
        for name, contender in contenders.items():
            began = time.perf_counter()
            contender()
            if turn:  # the first turn touches memory and starts threads
                speeds[name].append(1 / (time.perf_counter() - began))
gain = ratio(speeds["daal4py"], speeds["scikit-learn"])
print(f"{rows:,} × {width}, {k} centroids, daal4py vs scikit-learn: {gain}: {gain.verdict}")

# %% [markdown]
# ## Questions {read 3}
#
# Answer each in a sentence or two, with what you saw above. The instructor's notebook has answers.
#
# 1. What is pixel-wise vector quantisation, and what is its code book here?
# 2. How do `d4p.my_procid()` and `d4p.num_procs()` decide who works on what? Which rows does the vendor's example drop?
# 3. What does `distributed=True` do on `kmeans_init`, and what on `kmeans`? What happens if one of them is missing?
# 4. What do `d4p.daalinit()` and `d4p.daalfini()` do?
# 5. How do threads compare with processes here? *(section 6)*
# 6. Four claims: each process gets its own chunk of data; only process 0 reports; labels come from the training routine
#    with 0 iterations; nothing is oversubscribed, because the library sees only the cores of its rank. Which of them is
#    the library responsible for, which the script, and which `mpirun`?
# 7. Is daal4py faster than scikit-learn? What would you have to know to compare with the published 26×? *(section 7)*
# 8. For which work would you use daal4py in 2026, and for which sklearnex?

# %% [markdown]
# **Open extension.** How few pixels are enough? Fit 4 and 64 colours to random samples of 300 to 50,000 pixels, several
# of each size, and plot the PSNR on the whole photo against the sample's size. From which size on does a larger sample
# help less than another start? (`label_photo` and `psnr` are still there. A sample needs more different colours than
# the palette, or k-means++ searches forever.)

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Answers 1 and 2**
#
# 1. Each pixel is a vector of three numbers and is replaced by the nearest of *k* vectors. The code book is the
#    palette: the centroids. The picture is then *k* colours and log2(*k*) bits per pixel.
# 2. Through `share`: rank *r* takes the *r*-th block of rows. daal4py doesn't distribute data; it treats what each rank
#    passes in as a part of the whole. Two ranks with the same pixels would get the same centroids, and twice the
#    objective. The vendor's example drops the last `rows % ranks` rows.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Answers 3 and 4**
#
# 3. On `kmeans_init`, all ranks draw one start from all pixels. On `kmeans`, the sums and counts of all ranks are added
#    up in each iteration. Without it on the fit, the ranks diverge at the first iteration. Without it on the start,
#    every rank begins elsewhere, and the first iteration adds up sums that belong to different centroids. From then on
#    all agree, so the spread at the *end* is 0 and reveals nothing: that is why `fit.py` measures the start as well.
# 4. Today `daalinit(n)` sets the number of threads and nothing else; MPI starts with the first call that needs it.
#    `daalfini()` calls `MPI_Finalize`; after it, `num_procs()` and everything distributed raise an error. In older
#    versions the pair started and ended MPI, and many scripts still put it around everything they do.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Answers 5 to 8**
#
# 5. See section 6's verdicts: ranks vs threads, then plain `mpirun` vs pinned ranks. With plain `mpirun`, section 6
#    counts several threads per CPU, so the old claim is wrong there. The verdict shows whether that costs time.
# 6. Own chunk: the script (exercise 3). Only rank 0 reports: the script (exercise 5). Labels by 0 iterations: the
#    library has no other way. No oversubscription: `mpirun`, by pinning. With an MPI that pins by default, it looks as
#    if the library did it.
# 7. It depends on the width, the number of rows and centroids, the threads, the versions and the machine. Compare the
#    race of section 7 with the homework: do wider rows favour daal4py more than pixels do? The published figure lacks
#    the processor and the threads, and its two runs had different starts and numbers of iterations.
# 8. daal4py: distributed work on CPUs, algorithms that scikit-learn lacks, prediction with other libraries' trees.
#    sklearnex: everything else, since daal4py is deprecated in its favour.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · Timing, and what goes wrong**
#
# **Timing** {minutes 1–2} for sections 1 and 2, {minutes 3–5} for sections 3 to 5. If someone is still stuck in
# exercise 5 at minute 45, let them continue with the solution. No one should miss exercise 4: first let people say
# whether a *smaller* objective is good.
#
# **What goes wrong** `(original - quantised) ** 2` on `uint8` wraps around: the PSNR is then too good to be true. If a
# picture has fewer colours than requested, as a logo may, k-means++ searches forever; notebook and script refuse it. A
# rank without pixels, or with fewer pixels than colours, ends a daal4py run with an error or a crash; the script
# refuses that, too. A photo from a phone may be HEIC, which Pillow cannot read: export it as JPEG.
#
# </div>

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor · The exercises**
#
# **Exercise 3** Printed shares of equal size are in lab 06; the weights are new. The trap is to round each rank's share
# by itself: `int(n * weight / total)` loses pixels, as the vendor's example does. Rounding the *ends* loses none.
#
# **The homework** Look for a trend in the width and in the number of rows: does it hold in several runs?
#
# **The extension** A few colours need few pixels: compare the gain from a larger sample with the spread between starts.
#
# </div>

# %% [markdown]
# ## Remember
#
# - K-Means: assign, update, repeat. The objective is the error. The start decides which minimum you reach.
# - SPMD: every rank runs the same script on its own rows and gets the same result. `distributed=True` belongs on the
#   initialisation *and* on the fit.
# - Cut the data at ends that two ranks share, or rows get lost, as in the vendor's example.
# - Compare what all ranks hold. Distrust an objective that is too good.
# - Compare time and quality together, on equal terms, and ask whether you need all the data.
# - daal4py is deprecated in favour of sklearnex, except for what has no successor: distributed algorithms on CPUs.
#
# What was published, what you measured, and what the machine could do at most:


# %% jupyter={"source_hidden": true}
photo_size = f"{photo.shape[1]:,} × {photo.shape[0]:,} pixels, {K} colours"
results.table(
    "K-Means",
    [
        (
            f"fit, 2 ranks. Published: 5,000 × 3,500. Here: {photo_size}, {ITERATIONS} iterations",
            "1.72 s",
            seconds_of(times_of(2, "fit")),
            half_of_one("fit", 2),
            fit_others,
        ),
        ("fit, 2 ranks vs 1", "", Measured(*two_ranks, "×"), f"{min(2, cores)}×", fit_others),
        (
            "labels of the same pixels, 2 ranks",
            "0.20 s",
            seconds_of(times_of(2, "labels"), 3),
            half_of_one("labels", 3),
            fit_others,
        ),
        ("fit, 32 nodes, 1,280 cores: 10 clusters of 1.12 TB", "107.4 s", "", ""),
        *results.handed_in(
            "7",
            (
                "scikit-learn → oneDAL. Published: 128 clusters, 212 → 274 iterations",
                "192.1 → 7.4 s: 26×",
            ),
            ("all pixels → a hundredth, a finished picture", ""),
        ),
    ],
)

# %% [markdown]
# Published: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (two ranks on a cloud
# machine, pinned to two CPUs each; the photo's size is read off its axes, colours and iterations are not stated);
# [scikit-learn-intelex's notebook](https://github.com/uxlfoundation/scikit-learn-intelex/blob/main/examples/notebooks/kmeans.ipynb);
# and [daal4py's
# documentation](https://uxlfoundation.github.io/scikit-learn-intelex/latest/distributed_daal4py.html) (32 nodes). The
# limit of two ranks is half the time of one. Your pixels and colours are different, so compare ratios, not seconds.
#
# K-Means adds no step to the ladder. So far, over all labs that you have run:

# %%
ladder.show(results)

# %% [markdown]
# **Next:** [lab 10](10_language_models.ipynb) turns to language models, and to the limits that decide their speed.
