# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # 09 · K-Means colour quantisation with daal4py
#
# **Why?** Not everything that is distributed is a neural network. Classical algorithms meet the same questions: who has
# which data, what travels, and does the result still belong to all of the data? K-Means is small enough to prove it.
#
# **You will** reduce a photo to a few colours with [**K-Means**](../docs/glossary.md#k-means): first in one
# [**process**](../docs/glossary.md#process), then on several [**ranks**](../docs/glossary.md#rank), each with its own
# share of the pixels. You will find a mistake that raises no error, compare [**threads**](../docs/glossary.md#thread)
# with processes, and compare the library with others, in time and in quality.
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
import inspect
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
from labkit.display import ladder, plots
from labkit.display.measured import Measured
from labkit.mpi import run_ranks
from labkit.system import load
from labkit.system.errors import LabError
from labkit.system.statistics import interval, ratio, ratios

# %%
# How much this lab measures: change it here. The first of two sizes is that of a small run.
PIXELS = 50_000 if QUICK else 2_500_000  # of the photo
ITERATIONS = 5 if QUICK else 24
START_STRIDE, START_SEEDS = (1, 3) if QUICK else (25, 8)  # section 2: every 25th pixel, tries
RANK_COUNTS = (1, 2) if QUICK else (1, 2, 3, 4)  # section 5
FIT_ROUNDS = 1 if QUICK else 5  # of 1 and 2 ranks: section 5
SHARING_ROUNDS = 1 if QUICK else 5  # threads and processes: section 6
LIBRARY_ROUNDS = 1 if QUICK else 5  # section 7
WIDTHS = (3, 32) if QUICK else (3, 8, 32, 64)  # section 8: numbers in a row
HEIGHTS = (2_000,) if QUICK else (10_000, 100_000, 400_000)  # and rows
PUBLISHED = (2_000, 14, 32) if QUICK else (236_930, 14, 128)  # rows, numbers, centroids
TABLE_ROUNDS = 3 if QUICK else 6

# %% [markdown]
# ## 1 · A photo in sixteen colours?
#
# A pixel is three numbers from 0 to 255: red, green and blue. That is 24 bits. With a
# [**palette**](../docs/glossary.md#palette) of 16 colours, a pixel is just the number of its colour, 4 bits. The
# palette itself is a few bytes. Which 16 colours should it hold? Choosing them is called
# [**colour quantisation**](../docs/glossary.md#colour-quantisation).
#
# Signal processing calls it *pixel-wise vector quantisation*: each pixel is a vector of length three, and is replaced
# by the nearest vector of a small code book.
#
# You can use a photo of your own. Put it beside this notebook, and set `PHOTO` to its name. The measurements enlarge or
# shrink every photo to the same size, so that you can compare with your neighbour. (The built-in photo is enlarged
# about nine-fold: most of its pixels are then averages of their neighbours. Section 7 comes back to that.)
#
# The built-in photo comes with scikit-learn:
# [a picture by danielbuechele](https://www.flickr.com/photos/danielbuechele/6061409035), licensed
# [CC BY 2.0](https://creativecommons.org/licenses/by/2.0/).

# %%
PHOTO = None  # or "my_photo.jpg"

whole = load_photo(PHOTO)  # at its own size
photo = load_photo(PHOTO, pixels=PIXELS)
seen = np.zeros((256, 256, 256), bool)  # all the colours there are
seen[tuple(whole.reshape(-1, 3).T)] = True
different = np.count_nonzero(seen)
print(f"{whole.shape[1]:,} × {whole.shape[0]:,} pixels, {different:,} different colours")
print(f"at the size to measure with: {photo.shape[1]:,} × {photo.shape[0]:,}")
if different < 64:
    raise LabError(f"This picture has only {different} colours: take a photo, with 64 or more.")
np.save(work / "photo.npy", photo)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(5, 3.6))
axis.imshow(photo)
axis.set_title("The photo")
axis.axis("off")
plots.show(figure, alt="The photo that this lab works on, as it is.")

# %% [markdown]
# ### Exercise 1 · How good is it?
#
# The usual measure is the [**peak signal-to-noise ratio**](../docs/glossary.md#psnr) (PSNR), in decibels. It compares
# the largest possible value, 255, with the mean squared error over all pixels and channels:
#
# $$ \mathrm{PSNR} = 10 \log_{10} \frac{255^2}{\mathrm{MSE}} $$
#
# As a rule of thumb, above about 40 dB you hardly see a difference, and at 30 dB you do. Write `psnr(original,
# quantised)` for two `uint8` pictures of the same shape. Equal pictures have no error: return `math.inf`. First try
# what `np.uint8(3) - np.uint8(5)` is.


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
# The crudest palettes: the highest bits of each channel, in the middle of their range.
for bits in range(1, 8):
    kept = (photo >> (8 - bits) << (8 - bits)) + (1 << (7 - bits))
    plural = "s" if bits > 1 else " "
    decibel = float(psnr(photo, kept))
    print(f"{bits} bit{plural} of each channel, {8**bits:>9,} colours: {decibel:5.1f} dB")

# %% [markdown]
# These palettes are the same for every photo, whatever it shows. Can an equally small palette do better if it is chosen
# for *this* photo?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** What PSNR do 16 colours reach that are chosen for the photo?
#
# </div>

# %%
results.guess(1, "16 colours chosen for the photo", ..., unit="dB")

# %% [markdown]
# ## 2 · K-Means in one process
#
# K-Means looks for the *k* colours, the [**centroids**](../docs/glossary.md#centroid), for which the sum of squared
# distances from each pixel to its nearest centroid is smallest. That sum is the
# [**objective**](../docs/glossary.md#objective), which scikit-learn calls *inertia*. Finding its minimum is NP-hard.
# Lloyd's algorithm is a heuristic that never increases it:
#
# 1. **Assign**: each pixel gets the label of its nearest centroid.
# 2. **Update**: each centroid moves to the mean of its pixels.
# 3. **Repeat**, for a number of iterations or until nothing moves.
#
# [**daal4py**](../docs/glossary.md#daal4py) exposes to Python the algorithms of oneDAL, a library for classical machine
# learning from Intel, today a project of the UXL Foundation. You create an algorithm with its parameters, and then call
# `compute`, once: for new data, create a new one. (Its documentation warns of crashes otherwise.) Pixels are the rows
# of a matrix with three columns.
#
# **Should you learn daal4py in 2026?** For new code on one machine: no. [Its
# documentation](https://uxlfoundation.github.io/scikit-learn-intelex/latest/about_daal4py.html) calls it *deprecated in
# favor of the newer sklearnex*, which is in the same package, scikit-learn-intelex, and has scikit-learn's interface.
# Section 7 uses it. But three things in daal4py have no successor there: algorithms that scikit-learn doesn't have,
# fast prediction with the trees of XGBoost and the like, and **distributed algorithms on CPUs**. `sklearnex.spmd` is
# for several GPUs. So for this lab's subject, there is nothing newer in this package.

# %%
K = 16

pixels = photo.reshape(-1, 3).astype(np.float64)
with load.watch("section 2"):
    began = time.perf_counter()
    start = d4p.kmeans_init(K, method="plusPlusDense").compute(pixels).centroids
    drawn = time.perf_counter()
    # accuracyThreshold=0: don't stop early, so that every run does the same work.
    fitted = d4p.kmeans(K, ITERATIONS, accuracyThreshold=0).compute(pixels, start)
    done = time.perf_counter()

centroids = fitted.centroids
objective = fitted.objectiveFunction.item()
made = fitted.nIterations.item()
print(f"first centroids: {drawn - began:.2f} s; {made} iterations: {done - drawn:.2f} s")
error = objective / pixels.size
print(f"objective {objective:,.0f}: a mean squared error of {error:.1f} per channel and pixel")

# %% [markdown]
# The objective *is* the error: divide it by the number of pixels and by 3, and you have the mean squared error, up to
# the rounding of the centroids to whole numbers.
#
# ### A good start
#
# Lloyd's algorithm ends in a **local minimum**, and the start decides in which. `randomDense` draws any *k* pixels: if
# a photo is mostly sky, most of them are sky. **k-means++** (`plusPlusDense`) draws one pixel after another, with a
# probability that grows with the squared distance to those already drawn. So rare but distant colours get a centroid
# too. How much does that gain?

# %%
some = pixels[::START_STRIDE]
STARTS = {
    "randomDense": ("any 16 pixels", plots.ORANGE, "o"),
    "plusPlusDense": ("k-means++", plots.BLUE, "s"),
}
paths = {method: [] for method in STARTS}
for seed in range(START_SEEDS):
    for method, path in paths.items():
        engine = d4p.engines_mt19937(seed=seed)
        now = d4p.kmeans_init(K, method=method, engine=engine).compute(some).centroids
        path.append([d4p.kmeans(K, 0).compute(some, now).objectiveFunction.item() / some.size])
        for _ in range(ITERATIONS):
            step = d4p.kmeans(K, 1).compute(some, now)
            now = step.centroids
            path[-1].append(step.objectiveFunction.item() / some.size)

# %% jupyter={"source_hidden": true}
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5))
half = ITERATIONS // 2  # the later iterations get a picture with a scale of their own
for method, (label, colour, marker) in STARTS.items():
    for seed, path in enumerate(paths[method]):
        style = dict(color=colour, marker=marker, markevery=5, lw=1.2, ms=6)
        left.plot(path, **style, label=label if seed == 0 else None)
        right.plot(range(half, ITERATIONS + 1), path[half:], **style)
figure.suptitle(f"Lloyd's algorithm from {len(paths['randomDense'])} starts of each kind")
left.set(xlabel="iteration", ylabel="mean squared error", title="all iterations")
right.set(xlabel="iteration", ylabel="mean squared error", title="the second half")
left.legend()
ends = {method: np.array(path)[:, -1] for method, path in paths.items()}
summary = "; ".join(
    f"{STARTS[method][0]}: median {np.median(np.array(paths[method])[:, 0]):.0f} at the start, "
    f"{np.median(end):.0f} at the end, worst {end.max():.0f}"
    for method, end in ends.items()
)
alt = f"Mean squared error against iteration, a line for each start. {summary}."
plots.show(figure, alt=alt)
print(summary.replace("; ", "\n"))

# %% [markdown]
# Look at three things: how far apart the lines begin, how many iterations the worse start needs to catch up, and
# whether all lines end at the same height. A line that ends higher is stuck in a worse local minimum, and more
# iterations don't get it out.
#
# ### Exercise 2 · Which colour for which pixel?
#
# The fit returns centroids. A picture needs a **label** for each pixel: the number of its nearest centroid. daal4py
# offers no function for that; a fit with **0 iterations** does it, since it assigns and never updates. With
# `assignFlag=True` the result has `assignments`, in one column.
#
# Write `labels_of(pixels, centroids)` for `(n, 3)` pixels and `(k, 3)` centroids. It returns an array of `n` whole
# numbers, of an integer type, in one dimension. The photo has 2.5 million pixels, so let numpy or daal4py loop over
# them.
#
# This function and the next one will move into a module. There they have `import math`, `import numpy as np`,
# `import daal4py as d4p` and each other, and nothing else from this notebook.


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
# With it, showing a photo in any number of colours takes three lines. Here are some.

# %%
COLOURS = (4, 8, 16, 32, 64)


def label(found):
    """Return every pixel's label; some at a time, so that no labels_of takes gigabytes."""
    return np.concatenate([labels_of(part, found) for part in np.array_split(pixels, 20)])


def quantise(k):
    """Return the palette of k colours and the photo's labels, (height, width)."""
    begin = d4p.kmeans_init(k, method="plusPlusDense").compute(pixels).centroids
    found = d4p.kmeans(k, ITERATIONS, accuracyThreshold=0).compute(pixels, begin).centroids
    return np.rint(found).astype(np.uint8), label(found).reshape(photo.shape[:2])


quantised = {k: quantise(k) for k in COLOURS}
decibels = {}
for k, (palette, labels) in quantised.items():
    decibels[k] = float(psnr(photo, palette[labels]))
results.compare_guess(1, Measured(decibels[16], unit="dB", digits=1))

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(2, 3, figsize=(10.5, 5.6))
shown = (4, 8, 16, 64)
axes.flat[0].imshow(photo)
axes.flat[0].set_title("original")
for axis, k in zip(axes.flat[1:5], shown, strict=True):
    palette, labels = quantised[k]
    axis.imshow(palette[labels])
    axis.set_title(f"{k} colours, {decibels[k]:.1f} dB")
for row, k in enumerate(shown):
    palette, _ = quantised[k]
    darkest_first = np.argsort(palette @ [0.299, 0.587, 0.114])  # the luma of ITU-R BT.601
    right, high = photo.shape[1], photo.shape[0] / 4
    box = (0, right, (row + 0.8) * high, (row + 0.2) * high)
    axes.flat[5].imshow(palette[darkest_first][None], extent=box)
    axes.flat[5].text(-0.02 * right, (row + 0.5) * high, k, ha="right", va="center")
axes.flat[5].set(xlim=(0, photo.shape[1]), ylim=(photo.shape[0], 0))
axes.flat[5].set_title("palettes, dark to bright")
for axis in axes.flat:
    axis.axis("off")
figure.suptitle("One photo in 4 to 64 colours", weight="bold")
figure.get_layout_engine().set(h_pad=0.1)
plots.show(
    figure,
    alt="The photo, and the same in 4, 8, 16 and 64 colours, with "
    + ", ".join(f"{decibels[k]:.1f}" for k in shown)
    + " dB; beside them the four palettes, each from dark to bright.",
    keep=results,
)

# %%
sizes = {}
for k, (palette, labels) in quantised.items():
    picture = Image.fromarray(labels.astype(np.uint8))
    picture.putpalette(palette.tobytes())
    picture.save(work / f"colours-{k}.png")
    sizes[k] = (work / f"colours-{k}.png").stat().st_size / 1e6
Image.fromarray(photo).save(work / "colours-all.png")
sizes["original"] = (work / "colours-all.png").stat().st_size / 1e6

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
axis.plot(COLOURS, list(decibels.values()))
for k, value in decibels.items():
    axis.annotate(f"{sizes[k]:.2f} MB", (k, value), xytext=(8, -17), textcoords="offset points")
axis.set_xscale("log", base=2)
axis.set_xticks(COLOURS, COLOURS)
axis.set(xlabel="colours in the palette", ylabel="PSNR (dB)")
axis.set_title("Error by number of colours, and the PNG's size")
axis.set_ylim(min(decibels.values()) - 2.5)
axis.margins(x=0.15)
summary = "; ".join(f"{k} colours {decibels[k]:.1f} dB in {sizes[k]:.2f} MB" for k in COLOURS)
alt = f"PSNR against the number of colours, with sizes on disk. {summary}."
plots.show(figure, alt=alt, keep=results)
print(f"The original as a PNG: {sizes['original']:.2f} MB")

# %% [markdown]
# Each doubling of the palette costs one bit per pixel before compression. How many decibels does it gain? And how do 8
# and 64 colours chosen for the photo compare with the 8 and 64 of section 1?
#
# ## 3 · SPMD: one program, many shares
#
# *Single program, multiple data*, or [**SPMD**](../docs/glossary.md#spmd): every rank runs the same script, on its own
# rows. In daal4py you add one argument to an algorithm, `distributed=True`. Each rank calls `compute` with *its* rows,
# and all get the result of *all* rows. Only a little data travels between the ranks. In each iteration of K-Means, each
# rank sends, for each centroid, the sum and the number of its own pixels: *k* × 4 numbers, however many pixels there
# are.
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
# | daal4py | what it does |
# | --- | --- |
# | `d4p.my_procid()`, `d4p.num_procs()` | return the rank and the size; the first such call starts MPI |
# | `d4p.daalinit(nthreads)` | sets the number of threads of this process |
# | `d4p.daalfini()` | ends MPI: after it, nothing distributed works in this process |
#
# In older versions `daalinit()` also started [**MPI**](../docs/glossary.md#mpi). Today the first call that needs MPI
# does, unless `mpi4py` was imported before: then MPI is already running.
#
# ### What the vendor's example leaves out
#
# daal4py doesn't cut the data, your script does. The package's own example of distributed K-Means,
# [kmeans_spmd.py](https://github.com/uxlfoundation/scikit-learn-intelex/blob/main/examples/daal4py/kmeans_spmd.py),
# takes `int(rows / ranks)` rows for each rank, one share after the other. Let us see which rows nobody has:

# %%
for rows, ranks in ((len(pixels), 2), (len(pixels), 3), (10, 4), (1_999, 1_000)):
    each = int(rows / ranks)  # as in the example
    lost = rows - each * ranks
    part = lost / rows
    print(f"{rows:9,} rows, {ranks:5,} ranks: {each:9,} each, {lost:3} lost ({part:.3%})")

five = np.array([[0.0], [0.1], [0.2], [0.3], [9.0]])  # five rows, two clusters
for kept in (five, five[: 2 * int(len(five) / 2)]):
    fitted_rows = d4p.kmeans(2, 10).compute(kept, kept[[0, -1]])
    print(f"K-Means of {len(kept)} rows finds", fitted_rows.centroids.ravel().round(2))

# %% [markdown]
# The remainder is dropped, and no error says so: the example checks only that it gets as many centroids as it asked
# for. Of millions of rows on a few ranks, nobody misses one. But the last rows of a file may be the newest ones, or a
# class of their own, and a picture with pixels missing can't be put together.
#
# ### Exercise 3 · Whose pixels?
#
# Do better, and more. In each iteration all ranks wait for the slowest. On a cluster whose nodes differ, equal shares
# make the fast ones wait. So a rank with twice the cores should get twice the pixels.
#
# Write `share(n, rank, weights)`. `weights` has a whole number of at least 1 for each rank, such as its cores. Return
# `(start, stop)`, two ints: this rank's pixels are those from `start` up to, but not including, `stop`.
#
# - No pixel is lost, none is on two ranks, and they stay in order: rank 0 has the first ones.
# - Each rank's number of pixels differs from its exact part, `n` × its weight / all weights, by at most one.
#
# Each rank calls the function by itself, and asks nobody. In lab 07 all shares had to be equal, because every rank's
# training step had to meet a step of all the others. Here all ranks do the same number of iterations, whatever the size
# of their shares, so nobody waits for ever.


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
    shares = [share(len(pixels), rank, weights) for rank in range(len(weights))]
    print(f"weights {weights}:", *shares)

# %% [markdown]
# (The ranks of this lab are on one machine, so from here on all weights are 1.) Ranks are processes of their own, so
# what they need moves into a module that they can import.

# %% tags=["nbval-check-output"]
imports = "import math\n\nimport daal4py as d4p\nimport numpy as np\n"
pieces = "\n\n".join([imports, *map(inspect.getsource, (labels_of, share))])
(work / "pieces.py").write_text(pieces)
print(pieces)

# %% [markdown]
# ## 4 · It looks distributed
#
# Many people have copied a script like this one. Each rank reads its share: `mmap_mode="r"` maps the file into memory,
# so a rank really reads only the rows that it touches. All ranks together draw the first centroids.

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
# It started on two ranks, it ended, and it reported a result. The objective is even *smaller* than that of one process.
# Should you be glad, or suspicious?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** Why is it smaller?
#
# </div>

# %%
REASONS = ("a better start", "more exact arithmetic", "it is not of all pixels")
results.guess(2, "why the objective is smaller", ..., choices=REASONS)

# %% [markdown]
# ### Exercise 4 · Find the mistake, and prove it
#
# The result of K-Means is its centroids. If the ranks worked together, **all ranks hold the same ones**. So measure
# that before you believe anything. Complete two functions:
#
# - `spread(centroids)`: the largest difference between any two ranks, in any number of any centroid. Every rank gets
#   the answer. `MPI.COMM_WORLD.allgather(x)`, an [**all-gather**](../docs/glossary.md#all-gather), gives every rank a
#   list of what each rank has.
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
    every = np.stack(MPI.COMM_WORLD.allgather(centroids))
    return float((every.max(axis=0) - every.min(axis=0)).max())
    ### END SOLUTION


def draw(mine, colours):
    """Return the first centroids by k-means++, the same on every rank."""
    # SPMD: drawn from the pixels of all ranks. Without distributed=True, each rank would draw
    # from its own. Drawing takes 80 bytes a pixel, so from a large photo take every 2nd, 3rd …:
    # no more than 5 million. Copy them: distributed daal4py 2026.2 hangs on rows that are not
    # contiguous.
    some = mine[:: 1 + len(mine) // 5_000_000].copy()
    start = d4p.kmeans_init(colours, method="plusPlusDense", distributed=True)
    return start.compute(some).centroids


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
        print(f"{before} in the start, {after} in the end")


if __name__ == "__main__":
    main(sys.argv[1:])
    d4p.daalfini()

# %%
try:
    run = run_ranks(2, "work/fit.py", work / "photo.npy", 16, ITERATIONS, show=False)
    print(*run.lines[0], sep="\n")
except LabError as error:  # while something is missing, say what, and continue
    print(error)

# %% [markdown]
# The check compares two things: the ranks with each other, and the ranks together with one process that has all pixels
# and begins at the same place. The start must be the same: from another, Lloyd's algorithm may end in another local
# minimum.

# %% tags=["nbval-check-output"]
fit = check(4, "work/fit.py")

# %% [markdown]
# So `distributed=True` was missing on the *fit* alone. The ranks shared the start, which makes it worse: everything
# looks as if it were shared. From there each rank continued alone, over its own pixels, and the objective that rank 0
# reports is that of *its share*. That is why it was smaller.
#
# The script that works becomes a module, for the next scripts.

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
apart = [float(spread(each)) for each in (begin, alone.centroids, together)]  # on every rank
if rank == 0:
    print("largest difference between any two ranks:", end=" ")
    print("{:g} at the start, {:.3g} by looks.py, {:g} by fit".format(*apart))
d4p.daalfini()

# %%
proof = run_ranks(2, "work/proof.py", work / "photo.npy", 16, ITERATIONS)
results.compare_guess(2, "it is not of all pixels")

# %% [markdown]
# ## 5 · The whole picture
#
# The centroids are the same on all ranks, but each rank can label only its own pixels. Somebody must put the picture
# together, and only one rank must write it.
#
# `Gatherv` collects arrays of *different* lengths on one rank, the root (the *v* is for "varying"). The root says how
# many come from each rank: `ranks.Gatherv(mine, [everybody, counts], root=0)`, where `everybody` is an array large
# enough for all, of the same type as `mine`. On the other ranks `everybody` is `None`.
#
# ### Exercise 5 · Labels, picture, file
#
# Complete the script in two places. (The module that comes first, folded, holds what is not the lesson: arguments,
# times, the log.)
#
# - `labels`: those of this rank's pixels, as `np.uint8`, with `labels_of` from exercise 2. Then only one byte per pixel
#   travels.
# - The picture: gather the labels on rank 0. Only there, make a picture of `height` rows and `width` columns, give it
#   the palette, which is the centroids rounded to whole numbers, and save it as `args.out / "photo.png"`. Section 2 has
#   the lines for a picture with a palette.
#
# The check runs it on 3 ranks, for at most 60 s.

# %% jupyter={"source_hidden": true}
# %%writefile work/kmeans_helpers.py
"""What kmeans.py needs besides the lesson: arguments, a check of the photo, times, the log."""

import argparse
import json
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
    add("--threads", type=int, default=0, help="of each rank; 0: the library's default")
    add("--repeat", type=int, default=1, help="fits to time; their median counts")
    add("--out", type=Path, default=Path("work/kmeans"), help="folder of picture and log")
    return parser.parse_args(argv)


def require_colours(mine, n_pixels, colours):
    """End all ranks if the photo has too few colours, or a rank has too few pixels."""
    # k-means++ looks for ever when there are fewer colours to draw than it should, and wants
    # that many pixels on each rank. All ranks come to the same answer, so all leave.
    if not 1 <= colours <= 256 or n_pixels // RANKS.size < colours:
        what = f"{colours} colours, {n_pixels} pixels, {RANKS.size} ranks"
        sys.exit(f"{what}: each rank needs a pixel for each colour")
    # SPMD: a colour may be on several ranks, so they count together.
    seen = np.zeros((256, 256, 256), bool)
    seen[tuple(mine.T)] = True
    some = RANKS.allgather(np.flatnonzero(seen)[:colours])
    if len(np.unique(np.concatenate(some))) < colours:
        sys.exit(f"the photo has fewer than {colours} different colours: choose fewer")


def cpu_seconds():
    """Return the CPU time of each thread of this process."""
    threads = psutil.Process().threads()
    return {thread.id: thread.user_time + thread.system_time for thread in threads}


def timed_fit(mine, first, args):
    """Return the centroids, the median seconds of a fit, and how many threads were busy."""
    seconds, before = [], cpu_seconds()
    for _ in range(args.repeat):
        RANKS.Barrier()  # SPMD: begin together, or the wait for the last would count too
        begin = time.perf_counter()
        centroids = fit(mine, first, args.iterations)
        seconds.append(time.perf_counter() - begin)
    busy = [after - before.get(thread, 0) for thread, after in cpu_seconds().items()]
    working = sum(each > 0.1 * max(busy) for each in busy if each > 0)
    return centroids, float(np.median(seconds)), working


def write_log(args, mine, centroids, labels, seconds, working):
    """Collect what all ranks measured; on rank 0, write the log and report."""
    # SPMD: the objective is each rank's own, added up. A pass of 0 iterations gives it for the
    # last centroids.
    own = d4p.kmeans(args.colours, 0).compute(mine, centroids).objectiveFunction.item()
    slowest = {what: RANKS.reduce(value, MPI.MAX) for what, value in seconds.items()}
    log = {
        "ranks": RANKS.size,
        "objective": RANKS.allreduce(own),
        "spread": float(spread(centroids)),
        "pixels": RANKS.gather(len(labels)),
        "seconds": slowest,  # the slowest rank's
        "allowed": RANKS.gather(d4p.num_threads()),  # threads that the library would use
        "working": RANKS.gather(working),  # threads that were busy
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
    ranks.Barrier()
    begin = time.perf_counter()
    first = draw(mine, args.colours)
    seconds["start"] = time.perf_counter() - begin
    centroids, seconds["fit"], working = timed_fit(mine, first, args)

    begin = time.perf_counter()
    # SPMD: each rank labels its own pixels, nobody else's.
    ### BEGIN SOLUTION
    labels = labels_of(mine, centroids).astype(np.uint8)
    ### END SOLUTION
    seconds["labels"] = time.perf_counter() - begin

    # SPMD: put the picture together on rank 0, and write it there alone.
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
    ### BEGIN SOLUTION
    everybody = np.empty(height * width, np.uint8) if rank == 0 else None
    counts = [stop - start for start, stop in shares]
    ranks.Gatherv(labels, [everybody, counts], root=0)
    if rank == 0:
        picture = Image.fromarray(everybody.reshape(height, width))
        picture.putpalette(np.rint(centroids).astype(np.uint8).tobytes())
        picture.save(args.out / "photo.png")
    ### END SOLUTION

    write_log(args, mine, centroids, labels, seconds, working)
    return first, centroids, labels


if __name__ == "__main__":
    main()
    d4p.daalfini()

# %% tags=["nbval-check-output"]
kmeans = check(5, "work/kmeans.py")

# %% [markdown]
# Now run it on your photo, at its own size. Each rank holds only its share: 24 bytes per pixel in double precision, so
# 480 MB for 20 million pixels, over all ranks together. On top of that, each rank needs about 200 MB for libraries, and
# for a moment up to 500 MB while the first centroids are drawn.

# %%
np.save(work / "whole.npy", whole)
arguments = ("--photo", work / "whole.npy", "--iterations", ITERATIONS)
run_ranks(2, kmeans, *arguments, "--out", work / "kmeans-whole")
error = json.loads((work / "kmeans-whole" / "log.json").read_text())["objective"] / whole.size
megabytes = (work / "kmeans-whole" / "photo.png").stat().st_size / 1e6
with Image.open(work / "kmeans-whole" / "photo.png") as sixteen:
    picture = sixteen.convert("RGB")
picture.thumbnail((1000, 1000))

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots(figsize=(5, 3.6))
axis.imshow(picture)
decibel = 10 * math.log10(255**2 / error)
axis.set_title(f"By two ranks: 16 colours, {decibel:.1f} dB, {megabytes:.2f} MB", fontsize=12)
axis.axis("off")
plots.show(figure, alt="The photo in 16 colours, found by two ranks and written by rank 0.")

# %% [markdown]
# (The file's size is not that of 16 colours in section 2: there, the photo had another size.)
#
# Is the result the same on any number of ranks? And how much time do two ranks save? Each line below is a run of its
# own, with one thread per rank. One and two ranks take turns, five times: all takes **about 45 seconds**. Every pixel
# must be labelled once, and all ranks must hold the same centroids. Compare the objectives too.


# %%
def measure(ranks, threads, nthreads=0):
    """Return the log of a run, and whether its ranks were pinned."""
    out = work / "kmeans-measure"
    arguments = ("--iterations", ITERATIONS, "--threads", nthreads, "--out", out)
    run = run_ranks(ranks, kmeans, *arguments, threads=threads, show=False)
    return json.loads((out / "log.json").read_text()) | {"pinned": run.bound}


seconds = {ranks: {"fit": [], "labels": []} for ranks in RANK_COUNTS}  # by ranks and part
with load.watch("section 5") as fit_others:
    for turn in range(FIT_ROUNDS):
        for ranks in RANK_COUNTS if turn == 0 else RANK_COUNTS[:2]:
            log = measure(ranks=ranks, threads=1)
            assert sum(log["pixels"]) == len(pixels), "a pixel was lost, or doubled"
            assert log["spread"] == 0.0, "the ranks hold different centroids"
            for part, of_part in seconds[ranks].items():
                of_part.append(log["seconds"][part])
            told = f"fit {log['seconds']['fit']:.2f} s, objective {log['objective']:.10g}"
            print(f"round {turn + 1} of {FIT_ROUNDS}, ranks: {ranks}, {told}", flush=True)
print(f"in section 2, without distributed=True: objective {objective:.10g}")


def times_as_fast_on_two(part):
    """Return how many times as fast two ranks are as one at a part of the work."""
    return ratio(*(1 / np.array(seconds[ranks][part]) for ranks in (2, 1)))


def typical(values, digits):
    """Return the geometric mean of seconds, with its interval."""
    mean, half = interval(np.log(values))
    return Measured(*np.exp([mean, mean - half, mean + half]), "s", digits=digits)


two_ranks = times_as_fast_on_two("fit")
print(f"The fit on two ranks is {two_ranks} times as fast as on one: {two_ranks.verdict}.")

# %% [markdown]
# If the start is the same, the objectives agree to about as many digits as double precision has, on any number of
# ranks: only the order of the additions differs.
#
# One trap is left. The objective that a *distributed* fit reports, `objectiveFunction`, is that of the centroids
# *before* the last update; a fit in one process reports it for the centroids that it returns. That is why the script
# computes it in a separate pass with 0 iterations before it compares. Such a pass is good for more than labels.
#
# ## 6 · Threads or processes?
#
# daal4py can also use several *threads* in one process. They share one memory, so there are no shares, nothing to
# gather, and no MPI. Which is faster? And can threads and processes get in each other's way?
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many times as fast are processes as threads, as many of the one as of the other, one for each
# core?
#
# </div>

# %%
results.guess(3, "processes, over as many threads", ..., unit="×")

# %% [markdown]
# The summary of a demo from 2019 says that there is no oversubscription, since the library sees only the cores that its
# rank owns. Whether a rank *owns* cores depends on [**mpirun**](../docs/glossary.md#mpirun). `-bind-to`
# [**pins**](../docs/glossary.md#pinning) each rank to its own cores: that demo's two ranks were pinned to the CPUs
# {0, 2} and {1, 3}. A plain `mpirun -n 2 python work/kmeans.py`, with this MPI, pins nothing.
#
# `run_ranks` pins the ranks if ranks × threads fit on the cores, and does not if you ask for more. So if you ask for
# all cores in each rank, you get what the plain `mpirun` gives. It also sets `OMP_NUM_THREADS`, but that is for other
# libraries: daal4py's threads come from TBB. Each rank reports how many threads the library would use, and how many
# were busy during the fit.
#
# Each setting runs five times, in turns. On two cores, this takes **about a minute and a half**.

# %%
w = min(cores, 8)  # enough cores to see the effect, and few enough for a short run
ALONE, THREADS = "1 rank, 1 core", f"1 rank, {w} cores"
PROCESSES = f"{w} ranks, 1 core each, pinned"
UNPINNED, DOUBLE = f"{w} ranks, not pinned", f"{2 * w} ranks, not pinned"
settings = {
    ALONE: dict(ranks=1, threads=1),
    THREADS: dict(ranks=1, threads=w),
    f"2 ranks, {w // 2} cores each, pinned": dict(ranks=2, threads=w // 2),
    PROCESSES: dict(ranks=w, threads=1),
    UNPINNED: dict(ranks=w, threads=cores),
    DOUBLE: dict(ranks=2 * w, threads=cores),
}
if w < 4:  # each rank would have 1 core, and those settings are there
    del settings[f"2 ranks, {w // 2} cores each, pinned"]
if w == 1:  # there are no cores to share out
    settings = {name: settings[name] for name in (ALONE, DOUBLE)}
if QUICK:
    settings = {name: settings[name] for name in settings if name in (ALONE, PROCESSES)}

table, fits = {}, {name: [] for name in settings}
with load.watch("section 6") as sharing_others:
    for turn in range(SHARING_ROUNDS):  # in turns, so that lasting noise affects all
        for name, setting in settings.items():
            table[name] = measure(**setting)
            fits[name].append(table[name]["seconds"]["fit"])
            told = f"{name:36} {fits[name][-1]:.2f} s"
            print(f"round {turn + 1} of {SHARING_ROUNDS}: {told}", flush=True)


# %%
def span(numbers):
    """Return the numbers as text: lowest–highest if they differ."""
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low}–{high}"


print(f"{'setting':36} {'pinned':7} {'threads a rank':15} {'busy':6} {'fit':>8}")
for name, row in table.items():
    pinned = "yes" if row["pinned"] else "no"
    working = span(row["working"]) if min(row["working"]) else "?"  # too short to be counted
    middle = typical(fits[name], 2).value
    print(f"{name:36} {pinned:7} {span(row['allowed']):15} {working:6} {middle:>6.2f} s")

# %% jupyter={"source_hidden": true}
gains_of = ratios({name: 1 / np.array(times) for name, times in fits.items()}, ALONE)
figure, axis = plt.subplots(figsize=(10, 4))
for place, (name, gain) in enumerate(gains_of.items()):
    pinned = table[name]["pinned"]
    low, high = np.nan_to_num([gain.value - gain.low, gain.high - gain.value])
    style = dict(capsize=5, ms=10, ls="", color=plots.BLUE if pinned else plots.ORANGE)
    marker = "o" if pinned else "^"
    axis.errorbar(gain.value, place, xerr=[[low], [high]], marker=marker, **style)
    threads_in_all = sum(table[name]["allowed"])
    note = f"  {typical(fits[name], 2).value:.2f} s, threads in all: {threads_in_all}"
    axis.annotate(note, (gain.value, place - 0.2), va="bottom", fontsize=11)
axis.set_yticks(range(len(gains_of)), gains_of)
fastest = max(gain.value for gain in gains_of.values())
axis.set(xlim=(0, 1.5 * fastest), ylim=(len(gains_of) - 0.4, -0.7))
axis.set_xlabel(f"times as fast as {ALONE}, with 95% intervals")
axis.set_title(f"Threads and processes: {ITERATIONS} iterations, {K} colours")
summary = "; ".join(f"{name} {gain} times" for name, gain in gains_of.items())
plots.show(
    figure,
    alt=f"Speed of the fit by setting, over that of {ALONE}; triangles: not pinned. {summary}.",
    keep=results,
    watched=[sharing_others],
)


# %% [markdown]
# What do these times say? Each line below compares two settings. The interval says what chance alone could do; it
# comes from how well their rounds agree. Each round started them anew, since a relaunch is another sample.


# %%
def compare(fits, name, other):
    """Return in words how many times as fast one setting is as another."""
    gain = ratios({each: 1 / np.array(seconds) for each, seconds in fits.items()}, other)[name]
    return f"{name}: {gain} times as fast as {other}: {gain.verdict}"


pairs = [(THREADS, ALONE), (PROCESSES, ALONE), (PROCESSES, THREADS)]
pairs += [(UNPINNED, PROCESSES), (DOUBLE, PROCESSES)]
for name, other in pairs if w > 1 else [(DOUBLE, ALONE)]:
    if name in fits and other in fits:
        print(compare(fits, name, other))
if THREADS in fits and PROCESSES in fits:
    against_threads = ratio(*(1 / np.array(fits[name]) for name in (PROCESSES, THREADS)))
    results.compare_guess(3, Measured(*against_threads, "×"))

# %% [markdown]
# And was there a CPU for each thread, as the old claim says?


# %%
def crowding(allowed, cpus):
    """Return in words whether there is a CPU for each thread of these ranks."""
    threads = sum(allowed)
    verdict = "a CPU for each" if threads <= cpus else "oversubscribed"
    return f"{threads} threads on {cpus} CPU{'s' * (cpus > 1)}: {verdict}"


for name, row in table.items():
    if row["ranks"] > 1:
        print(f"{name}: {crowding(row['allowed'], len(machine.cpus))}")

# %% [markdown]
# The library starts a thread for each CPU that its process may use, unless `daalinit` tells it how many. It is `mpirun`
# that gives a rank CPUs of its own, or doesn't. So the claim is about pinning. Is it expensive to have more threads
# than cores, that is, [**oversubscription**](../docs/glossary.md#oversubscription)? The last comparisons above say so
# or not. Where it costs little, a likely reason is that nobody waits long for anybody: in K-Means the ranks meet only
# once an iteration, to add up a few numbers. In lab 07 they meet many times a second, and MPI *polls* while it waits.
#
# Why use processes at all, even where threads are as fast? Because threads can't leave their machine. The script runs
# unchanged on several machines, and each needs memory only for its share. daal4py's documentation reports
# 10 clusters of 1.12 TB of data in 107.4 s, on 32 nodes with 1,280 cores: 35 GB a node, where one node would need all.
#
# ## 7 · Against others, on the same pixels
#
# A library that claims to be fast should be compared with others. To be fair, keep these the same:
#
# - The pixels in double precision, the number of colours, the first centroids, and the number of iterations, if the
#   algorithm is Lloyd's. Elkan's gives the same result, and saves distances by the triangle inequality.
# - The number of threads, for all that have threads.
#
# And report time *and* error. Another algorithm may be faster and worse, or slower and better.
#
# Test a published figure by this list. The notebook of scikit-learn-intelex reports 192.1 s for scikit-learn and 7.4 s
# for its own K-Means, "26.1 times". Both fit 128 clusters to the same 236,930 × 14 numbers. But only the random seed is
# the same, not the start, and each stopped when it had converged: scikit-learn after **212** iterations, at an inertia
# of 13,353, the other after **274**, at 13,347. So the terms were unequal, in favour of scikit-learn: per iteration, it
# is about 34 times. The processor, its cores and the threads are not stated. Your photo has other rows, and fewer
# centroids.
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** On the photo and on equal terms, how many times as fast is `sklearnex` as scikit-learn's Lloyd?
#
# </div>

# %%
results.guess(4, "sklearnex over scikit-learn's Lloyd", ..., unit="×")

# %% [markdown]
# `sklearnex` is scikit-learn's interface to the same oneDAL that daal4py uses. Four rows use another algorithm:
#
# - **mini-batch**: 65,536 pixels a step, and one pass over the photo;
# - **Lloyd on a hundredth** of the pixels, drawn at random; the time includes the drawing;
# - Pillow's **median cut**, which cuts the box of all colours in two, again and again, alone and followed by Pillow's
#   own K-Means.

# %%
import warnings

from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearnex.cluster import KMeans as ExtensionKMeans

d4p.daalinit(cores)
warnings.simplefilter("ignore", ConvergenceWarning)  # stopping before convergence is intended
picture = Image.fromarray(photo)
draw = np.random.default_rng(0).choice
same = dict(n_clusters=K, init=start, n_init=1, max_iter=ITERATIONS, tol=0)


def scikit(model, rows=pixels):
    """Fit a model and return its centroids; all must make the same number of iterations."""
    model.fit(rows)
    if model.n_iter_ != same["max_iter"] and not isinstance(model, MiniBatchKMeans):
        print(f"  (ended after {model.n_iter_} iterations)")
    return model.cluster_centers_


def hundredth(rows):
    """Return the centroids of a hundredth of the rows, drawn at random."""
    some = rows[draw(len(rows), max(1000, len(rows) // 100), replace=False)]
    return scikit(KMeans(**same, algorithm="lloyd"), some)


def pillow(kmeans):
    """Return the picture as Pillow quantises it: kmeans=0 is median cut alone."""
    method = Image.Quantize.MEDIANCUT
    found = picture.quantize(K, method=method, kmeans=kmeans, dither=Image.Dither.NONE)
    return np.asarray(found.convert("RGB"))


# %% [markdown]
# Each contender is a function that returns a palette or a picture. They run in turns, five times; what takes over 4 s
# runs once. The cell takes **about a minute**.

# %%
mini_batch = dict(same, max_iter=1, batch_size=1 << 16, random_state=0)
contenders = {
    "daal4py": lambda: (
        d4p.kmeans(K, ITERATIONS, accuracyThreshold=0).compute(pixels, start).centroids
    ),
    "sklearnex (oneDAL)": lambda: scikit(ExtensionKMeans(**same, algorithm="lloyd")),
    "scikit-learn, Lloyd": lambda: scikit(KMeans(**same, algorithm="lloyd")),
    "scikit-learn, Elkan": lambda: scikit(KMeans(**same, algorithm="elkan")),
    "scikit-learn, mini-batch": lambda: scikit(MiniBatchKMeans(**mini_batch)),
    "scikit-learn, a hundredth": lambda: hundredth(pixels),
    "Pillow, median cut": lambda: pillow(0),
    "Pillow, median cut, K-Means": lambda: pillow(1),
}


def quality(answer):
    """Return the PSNR of a picture, or of the photo in the colours of a palette."""
    if answer.ndim == 2:
        palette = np.clip(np.rint(answer), 0, 255).astype(np.uint8)
        answer = palette[label(answer)].reshape(photo.shape)
    return float(psnr(photo, answer))


walls, decibels_of = {name: [] for name in contenders}, {}
with threadpool_limits(cores), load.watch("section 7") as library_others:
    for turn in range(LIBRARY_ROUNDS):  # in turns, so that lasting noise affects all
        for name, function in contenders.items():
            if turn and walls[name][0] > 4:
                continue
            began, cpu = time.perf_counter(), time.process_time()
            answer = function()
            seconds_taken, cpu = time.perf_counter() - began, time.process_time() - cpu
            walls[name].append(seconds_taken)
            decibels_of[name] = quality(answer) if turn == 0 else decibels_of[name]
            told = f"{name:28} {seconds_taken:7.3f} s, {cpu / seconds_taken:4.1f} cores busy"
            print(f"round {turn + 1} of {LIBRARY_ROUNDS}: {told}", flush=True)


# %%
def times_as_fast(walls, name, other):
    """Return how many times as fast one is as the other, from the rounds that both were in."""
    rounds = min(len(walls[name]), len(walls[other]))
    return ratio(*(1 / np.array(walls[each][:rounds]) for each in (name, other)))


def judge(gain, decibels):
    """Return in words what a library gains, in speed and in decibels."""
    near = f"{abs(decibels):.1f} dB {'better' if decibels > 0 else 'worse'}"
    near = "as good" if abs(decibels) < 0.1 else near
    return f"{gain} times as fast: {gain.verdict}; {near}"


against = {name: times_as_fast(walls, name, "daal4py") for name in contenders}
print("Against daal4py, the fastest first:")
for name in sorted(against, key=lambda name: -against[name].value):
    if name != "daal4py":
        verdict = judge(against[name], decibels_of[name] - decibels_of["daal4py"])
        print(f"{name:28} {verdict}")

extension = times_as_fast(walls, "sklearnex (oneDAL)", "scikit-learn, Lloyd")
results.compare_guess(4, Measured(*extension, "×"))
results.hand_in(
    "7",  # for the closing table
    (
        "scikit-learn → oneDAL. Published: 128 clusters, 212 → 274 iterations. Here: the photo",
        "192.1 → 7.4 s: 26×",
        Measured(*extension, "×"),
        "",
        library_others,
    ),
)

# %% jupyter={"source_hidden": true}
LLOYD = ("daal4py", "sklearnex (oneDAL)", "scikit-learn, Lloyd", "scikit-learn, Elkan")
names = sorted(against, key=lambda name: -against[name].value)
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), sharey=True, width_ratios=(3, 2))
for group, colour, marker, label_text in (
    ([name for name in names if name in LLOYD], plots.BLUE, "o", "same start, same iterations"),
    ([name for name in names if name not in LLOYD], plots.ORANGE, "^", "something else"),
):
    rows = [names.index(name) for name in group]
    speeds = np.array([against[name] for name in group])
    errors = np.nan_to_num(np.abs(speeds[:, 1:] - speeds[:, :1]).T)
    style = dict(ls="", color=colour, marker=marker, ms=10)
    left.errorbar(speeds[:, 0], rows, xerr=errors, capsize=4, label=label_text, **style)
    right.plot([decibels_of[name] for name in group], rows, **style)
    for name, row in zip(group, rows):
        note = f"{typical(walls[name], 3).value:.3g} s"
        place = dict(xytext=(0, 8), textcoords="offset points", ha="center", fontsize=11)
        ground = dict(facecolor="white", edgecolor="none", pad=1)  # before the dashed line
        left.annotate(note, (against[name].value, row), bbox=ground, **place)
left.axvline(1, color=plots.BLACK, lw=1.5, ls="--")
left.set(xscale="log", xlabel="times as fast as daal4py (logarithmic), with 95% intervals")
left.set_title(f"Speed, {K} colours, {cores} cores")
left.set_yticks(range(len(names)), names)
left.invert_yaxis()
left.margins(x=0.15, y=0.12)
right.set(xlabel="PSNR, dB", title="Quality (more is better)")
right.margins(x=0.15)
figure.legend(*left.get_legend_handles_labels(), ncols=2, loc="outside lower center")
summary = "; ".join(f"{name} {against[name]} ×, {decibels_of[name]:.1f} dB" for name in names)
plots.show(
    figure,
    alt=f"Speed over daal4py's and PSNR of each, the fastest first. {summary}.",
    keep=results,
    watched=[library_others],
)

# %% [markdown]
# Before you choose a library, look at the row of the *hundredth*: how much time does it save, and how many decibels
# does it cost? Two things flatter it. It finds only the palette, and a picture needs all its labels, which takes
# everybody the same time. And if your photo was enlarged, a hundredth of its pixels is a larger part of those that were
# photographed. So ask again: a finished picture, at the photo's own size.

# %%
own = whole.reshape(-1, 3).astype(np.float64)
finished = {
    "daal4py": lambda: d4p.kmeans(K, ITERATIONS, accuracyThreshold=0).compute(own, start).centroids,
    "scikit-learn, a hundredth": lambda: hundredth(own),
}
with_labels, error_of = {name: [] for name in finished}, {}
with threadpool_limits(cores), load.watch("section 7"):
    for _ in range(LIBRARY_ROUNDS):
        for name, function in finished.items():
            began = time.perf_counter()
            palette = function()
            chosen = d4p.kmeans(K, 0, assignFlag=True).compute(own, palette).assignments.ravel()
            with_labels[name].append(time.perf_counter() - began)
            error_of[name] = np.mean((own - palette[chosen]) ** 2)
saved = times_as_fast(with_labels, "scikit-learn, a hundredth", "daal4py")
cost = 10 * math.log10(error_of["scikit-learn, a hundredth"] / error_of["daal4py"])
print(f"A picture from a hundredth of {len(own):,} pixels: {judge(saved, -cost)}")

# %% [markdown]
# Often the best way to make a computation fast is to find that you need less of it. Then measure how much less takes
# how much time, on the data as they are.
#
# ## 8 · Does it depend on the data's shape?
#
# A pixel has three numbers. Vectors elsewhere are longer: a patch of 4 × 4 pixels has 48 numbers, an embedding has
# hundreds. A vector unit with AVX-512 processes 8 doubles at a time, so a longer row may suit one library better than
# the other. Vary the width and the number of rows, with random data, and compare daal4py with scikit-learn's Lloyd:
# same rows, same start, same iterations, same threads. And try the shape of the publisher's data, with its 128
# centroids: the most obvious way in which your photo differs. This takes **about a minute**.

# %%
d4p.daalinit(cores)
rng = np.random.default_rng(0)


def race(rows, k):
    """Return daal4py's and scikit-learn's fits a second, of the same rows and start."""
    first = rows[:k].copy()
    one_dal = d4p.kmeans(k, 10, accuracyThreshold=0)
    scikit_learn = KMeans(k, init=first, n_init=1, max_iter=10, tol=0, algorithm="lloyd")
    began = time.perf_counter()
    one_dal.compute(rows, first)
    between = time.perf_counter()
    scikit_learn.fit(rows)
    return 1 / (between - began), 1 / (time.perf_counter() - between)


ours, theirs = {}, {}  # by height and width, round by round
with threadpool_limits(cores), load.watch("section 8") as gain_others:
    for height in HEIGHTS:
        data = {width: rng.normal(size=(height, width)) for width in WIDTHS}
        for turn in range(TABLE_ROUNDS):  # in turns
            for width, rows in data.items():
                speeds = race(rows, K)
                if turn:  # the first round touches memory and starts threads
                    for runs_a_second, one in zip((ours, theirs), speeds):
                        runs_a_second.setdefault(height, {}).setdefault(width, []).append(one)
        print(f"{height:,} rows measured", flush=True)
    *shape, k = PUBLISHED
    rows = rng.normal(size=shape)
    published_shape = ratio(*zip(*[race(rows, k) for _ in range(TABLE_ROUNDS)][1:]))


# %%
def advantage(ours, theirs, width):
    """Return how many times as fast daal4py is at a width."""
    return ratio(ours[width], theirs[width])


gains = {
    (height, width): advantage(ours[height], theirs[height], width)
    for height in HEIGHTS
    for width in WIDTHS
}
print(f"daal4py against scikit-learn, with {K} centroids:")
for (height, width), gain in gains.items():
    print(f"{height:>7,} × {width:<2}: {gain} times as fast: {gain.verdict}")
print(f"{shape[0]:,} × {shape[1]}, with {k}: {published_shape} times as fast:", end=" ")
print(published_shape.verdict)

# %% jupyter={"source_hidden": true}
figure, axis = plt.subplots()
for height, colour, marker in zip(HEIGHTS, plots.PALETTE, plots.MARKERS):
    values, low, high = np.array([gains[height, width] for width in WIDTHS]).T
    style = dict(color=colour, marker=marker, capsize=4, label=f"{height:,} rows")
    axis.errorbar(WIDTHS, values, (values - low, high - values), **style)
axis.axhline(1, color=plots.BLACK, lw=1.5, ls="--", marker="")
axis.set_xscale("log", base=2)
axis.set_xticks(WIDTHS, WIDTHS)
axis.set_yscale("log", base=2)  # twice and half as fast are equally far from the line
axis.yaxis.set_major_formatter("{x:g}")
axis.yaxis.set_minor_locator(plt.LogLocator(base=2, subs=[1.5]))
axis.yaxis.set_minor_formatter("{x:g}")
axis.set(xlabel="numbers in a row", ylabel="scikit-learn's time / daal4py's")
axis.set_title(f"Above the line daal4py is faster: Lloyd, {K} centroids, {cores} cores")
axis.legend()
summary = "; ".join(f"{height:,} × {width}: {gain}" for (height, width), gain in gains.items())
plots.show(
    figure,
    alt=f"scikit-learn's time over daal4py's, by width and rows, with intervals. {summary}.",
    keep=results,
    watched=[gain_others],
)


# %% [markdown]
# Does daal4py gain with the width? A curve that goes up and down proves nothing: what counts is whether a step is
# larger than chance.


# %%
def trend(gains):
    """Return in words how a gain changes with the width; gains has the rounds of each width."""
    widths = list(gains)
    steps = [ratios(gains, before)[after] for before, after in itertools.pairwise(widths)]
    if any(step.low > 1 for step in steps) and any(step.high < 1 for step in steps):
        return "changes with the width, but neither rises nor falls all the way"
    whole = ratios(gains, widths[0])[widths[-1]]
    verdicts = {"faster": "rises with the width", "slower": "falls with the width"}
    return f"{verdicts.get(whole.verdict, whole.verdict)}: widest against narrowest {whole}"


for height in HEIGHTS:
    rounds = {width: np.divide(ours[height][width], theirs[height][width]) for width in WIDTHS}
    print(f"{height:>7,} rows, daal4py's advantage: {trend(rounds)}")

# The largest of many ratios is partly luck: count those beyond chance, and take the median.
faster = sum(gain.verdict == "faster" for gain in gains.values())
slower = sum(gain.verdict == "slower" for gain in gains.values())
middle = np.median([gain.value for gain in gains.values()])
sizes_text = f"faster at {faster} of {len(gains)} sizes and slower at {slower}"
print(f"daal4py is {sizes_text}, by more than chance.")
print(f"Its median speed over all sizes is {middle:.2f} times scikit-learn's.")

results.hand_in(
    "8",  # for the closing table
    (
        f"scikit-learn → daal4py, median of {len(gains)} sizes of random rows",
        "",
        Measured(middle, unit="×", note=f"faster at {faster}, slower at {slower}"),
        "",
        gain_others,
    ),
    (
        f"scikit-learn → daal4py, {shape[0]:,} × {shape[1]} random numbers, {k} centroids",
        "",
        Measured(*published_shape, "×"),
        "",
        gain_others,
    ),
)

# %% [markdown]
# ## Questions
#
# Answer each in a sentence or two, with what you saw above. Those that name an optional section are for whoever did it.
# The instructor's notebook has answers.
#
# 1. What is pixel-wise vector quantisation, and what is its code book here?
# 2. How do `d4p.my_procid()` and `d4p.num_procs()` decide who works on what? Which rows does the vendor's example drop?
# 3. What does `distributed=True` do on `kmeans_init`, and what on `kmeans`? What happens when one of them is missing?
# 4. What do `d4p.daalinit()` and `d4p.daalfini()` do?
# 5. How do threads compare with processes here? *(section 6)*
# 6. Here are four claims: each process gets its own chunk of data; only process 0 reports; labels come from the
#    training routine with 0 iterations; nothing is oversubscribed, because the library sees only the cores of its rank.
#    For which of them is the library responsible, for which the script, and for which `mpirun`?
# 7. Is daal4py faster than scikit-learn? What would you have to know to compare with the published 26 times? *(sections
#    7 and 8)*
# 8. For which work would you use daal4py in 2026, and for which sklearnex?
#
# **Open extension.** How few pixels are enough? Take random samples of 300 to 50,000 pixels, several of each size, fit
# 4 and 64 colours to each, and draw the PSNR on the whole photo against the sample's size, with its spread. From which
# size on does a larger sample gain less than another start does? `label` and `psnr` are still there. (A sample needs
# more different colours than the palette: k-means++ would look for them for ever.) There is no check.

# %% [markdown] tags=["instructor"]
# <div class="alert alert-block alert-warning" style="color: black">
#
# **For the instructor.** Answers to the questions, timing, and what goes wrong.
#
# ### Answers
#
# 1. Each pixel is a vector of three and is replaced by the nearest of *k* vectors. The code book is the palette: the
#    centroids. The picture is then *k* colours and log2(*k*) bits a pixel.
# 2. Through `share`: rank *r* takes the *r*-th block of rows. daal4py doesn't distribute data; it treats what each rank
#    passes in as a part of the whole. Two ranks with the same pixels would give the same centroids, and twice the
#    objective. The vendor's example drops the last `rows % ranks` rows.
# 3. On `kmeans_init`, all ranks draw one start from all pixels. On `kmeans`, the sums and counts of all ranks are added
#    up in each iteration. Without it on the fit, the ranks diverge at the first iteration. Without it on the start,
#    every rank begins elsewhere, and the first iteration adds up sums that belong to different centroids. From then on
#    all agree, so the spread of the *end* is 0 and reveals nothing: that is why `fit.py` measures the start as well.
# 4. Today `daalinit(n)` sets the number of threads and nothing else; MPI starts with the first call that needs it.
#    `daalfini()` calls `MPI_Finalize`. After it, `num_procs()` and everything distributed raise an error. In older
#    versions the pair started and ended MPI, and many scripts still put it around everything they do.
# 5. As the comparisons of section 6 say. On 2 quiet cores, 2 threads and 2 ranks, pinned or not, were equally fast
#    within some per cent, and nearly twice as fast as one thread. There were up to four times as many threads as cores,
#    so without pinning, the old claim is wrong; but it cost little.
# 6. Own chunk: the script (exercise 3). Only rank 0 reports: the script (exercise 5). Labels by 0 iterations: the
#    library has no other way. No oversubscription: `mpirun`, by pinning. With an MPI that pins by default, it looks as
#    if the library did it.
# 7. It depends on width, size, number of centroids, threads, versions and machine. On 2 cores it was 0.6 to 1.4 times
#    as fast as scikit-learn's Lloyd on the photo, and 0.7 to 2.1 times at the sizes of section 8: far from 26. The
#    published figure does not say the processor or the threads, and its two runs had other starts and other numbers of
#    iterations. The *hundredth* was 70 to 110 times as fast for the palette, and much less for a finished picture.
# 8. daal4py: distributed work on CPUs, algorithms outside scikit-learn, prediction with trees of other libraries.
#    sklearnex: all else, since daal4py is deprecated in its favour.
#
# **Exercise 3** Printed shares of equal size are in lab 06; the weights are new. The trap is to round each rank's share
# by itself: `int(n * weight / total)` loses pixels, as the vendor's example does. Rounding the *ends* loses none.
#
# The extension: on the built-in photo, medians of a few samples. For 4 colours, 300 pixels gave 21.4 dB, 10,000 and all
# of them 21.5. For 64 colours, 300 gave 31.2 dB, 3,000 gave 32.0, 50,000 and all of them 32.3; starts differ by 0.1.
#
# **Timing** Sections 1 and 2 take 20 minutes, 3 to 5 take 31, the rest 16. Anyone still stuck in exercise 5 at minute
# 45 should continue with the solution. Nobody should miss exercise 4: first let people say whether a *smaller*
# objective is good.
#
# **What goes wrong** `(original - quantised) ** 2` on `uint8` wraps around: the PSNR is then too good to be true. A
# picture with fewer colours than requested, such as a logo, makes k-means++ search for ever; notebook and script refuse
# it. A rank without pixels, or with fewer pixels than colours, ends a daal4py run with an error or a crash; the script
# refuses that too. A photo from a phone may be HEIC, which Pillow cannot read: export it as JPEG.
#
# </div>

# %% [markdown]
# ## Remember
#
# - K-Means: assign, update, repeat. The objective is the error. A good start can be worth many iterations.
# - SPMD: every rank runs the same script on its own rows, and gets one result. `distributed=True` belongs on the
#   initialisation *and* on the fit.
# - Cut the data by ends that two ranks share, or rows get lost, as in the vendor's example.
# - Compare what all ranks hold. Distrust an objective that is too good.
# - Labels are a fit of 0 iterations. Gather them on rank 0, and write only there.
# - Compare time and quality together, on equal terms, and ask whether you need all the data.
# - daal4py is deprecated in favour of sklearnex, except for what has no successor: distributed algorithms on CPUs.
#
# What was published, what you measured, and what the machine could do at most:


# %% jupyter={"source_hidden": true}
def half_of_one(part, digits):
    """Return the least that two ranks can need: half of one rank's seconds."""
    return f"{typical(seconds[1][part], digits).value / 2:.{digits}f} s: half of 1 rank's"


size = f"{photo.shape[1]:,} × {photo.shape[0]:,} pixels, {K} colours"
results.table(
    "K-Means",
    [
        (
            f"fit, 2 ranks. Published: 5,000 × 3,500. Here: {size}, {ITERATIONS} iterations",
            "1.72 s",
            typical(seconds[2]["fit"], 2),
            half_of_one("fit", 2),
            fit_others,
        ),
        ("fit, 2 ranks over 1", "", Measured(*two_ranks, "×"), "2×", fit_others),
        (
            "labels of the same pixels",
            "0.20 s",
            typical(seconds[2]["labels"], 3),
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
        ),
        *results.handed_in(
            "8",
            ("scikit-learn → daal4py, random rows", ""),
            ("scikit-learn → daal4py, the published shape", ""),
        ),
    ],
)

# %% [markdown]
# K-Means adds no step to it, but it ends the labs on training. So here is the whole way of this machine, from the
# default to the fastest, over all labs:

# %%
ladder.show(results)

# %% [markdown]
# Published: F. Baruffa, *Deep Learning at Scale using Distributed Frameworks*, Intel, 2019 (two ranks on a cloud
# machine, pinned to two CPUs each; the photo's size is read off its axes, colours and iterations are not stated), and
# the K-Means notebook of
# [scikit-learn-intelex](https://github.com/uxlfoundation/scikit-learn-intelex/blob/main/examples/notebooks/kmeans.ipynb)
# (its own data, its own machine), and [daal4py's
# documentation](https://uxlfoundation.github.io/scikit-learn-intelex/latest/distributed_daal4py.html) (32 nodes). Your
# pixels and colours are different, so compare ratios, not seconds.
#
# **Next:** [lab 10](10_language_models.ipynb) turns to what most people run on CPUs: language models.
