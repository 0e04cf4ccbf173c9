import inspect
import itertools
import math

import lab_cells
import launches
import numpy as np
import pytest
from labs import Student, ThreeWays, same, swap

from labkit.exercises.lab09 import IMPORTS
from labkit.system.statistics import Ratio, ratio, ratios
from labkit_author import sources

PROBED = {4, 5}  # exercises that run on ranks


def make_student(folder):
    """The lab up to its scripts, in a folder: two modules from the solutions, and kmeans_helpers.py from the lab."""
    import daal4py as d4p  # and with it scikit-learn, which takes a second

    student = Student("09", {"np": np, "math": math, "d4p": d4p})
    (folder / "work").mkdir()
    pieces = [inspect.getsource(student.answer(number, same)) for number in (2, 3)]
    (folder / "work" / "pieces.py").write_text("\n".join([IMPORTS, *pieces]))
    (folder / "work" / "spmd.py").write_text((folder / student.answer(4, same)).read_text())
    cells = sources.read(sources.find("09")).cells
    helpers = next(cell.source for cell in cells if cell.source.startswith("%%writefile work/kmeans_helpers.py"))
    (folder / "work" / "kmeans_helpers.py").write_text(helpers.partition("\n")[2])
    return student


@pytest.fixture(scope="module")
def launched(request, tmp_path_factory):
    """What each rank printed, for each answer of exercises 4 and 5 that is tested."""
    return launches.printed(request, tmp_path_factory.mktemp("launched"), make_student, PROBED)


@pytest.fixture
def student(tmp_path, monkeypatch, request):
    return launches.student(request, monkeypatch, tmp_path, make_student)


PREDICTED = swap(
    "    result = d4p.kmeans(len(centroids), 0, assignFlag=True).compute(pixels, centroids)\n"
    "    return result.assignments.ravel()",
    "    return ((pixels[:, None] - centroids[None]) ** 2).sum(axis=2).argmin(axis=1)",
)
IN_PIECES = swap(
    "    result = d4p.kmeans(len(centroids), 0, assignFlag=True).compute(pixels, centroids)\n"
    "    return result.assignments.ravel()",
    "    model, found = d4p.kmeans(len(centroids), 0, assignFlag=True), np.zeros(len(pixels), np.int32)\n"
    "    size = min(len(pixels), 1000)\n"
    "    for first in range(0, len(pixels) - size + 1, size):\n"
    "        piece = slice(first, first + size)\n"
    "        found[piece] = model.compute(pixels[piece], centroids).assignments.ravel()\n"
    "    return found",
)
ENDS = "    return n * sum(weights[:rank]) // total, n * sum(weights[: rank + 1]) // total\n"
BY_ROUNDING = swap(
    ENDS, "    return [round(n * part / total) for part in (sum(weights[:rank]), sum(weights[:rank + 1]))]\n"
)
LARGEST_REMAINDERS = swap(
    ENDS,
    """\
    sizes = [n * weight // total for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda rank: -(n * weights[rank] % total))
    for other in by_rest[: n - sum(sizes)]:
        sizes[other] += 1
    return sum(sizes[:rank]), sum(sizes[: rank + 1])
""",
)
EMPTY_AT_ZERO = swap(
    ENDS,
    """\
    ends = (n * np.cumsum([0, *weights]) // total)[rank : rank + 2]
    return tuple(ends) if ends[0] < ends[1] else (0, 0)
""",
)
AFTER_THE_LAST_CALL = swap(
    ENDS,
    """\
    start = share.__dict__.get("stop", 0) if rank else 0
    share.stop = n * sum(weights[: rank + 1]) // total
    return start, share.stop
""",
)
LIKE_THE_VENDOR = swap(
    ENDS,
    """\
    start = sum(n * weight // total for weight in weights[:rank])
    return start, start + n * weights[rank] // total
""",
)
REST_TO_THE_LAST = swap(
    ENDS,
    """\
    start = sum(n * weight // total for weight in weights[:rank])
    return start, n if rank == len(weights) - 1 else start + n * weights[rank] // total
""",
)
IN_FLOAT32 = swap(
    "    result = d4p.kmeans(len(centroids), 0, assignFlag=True).compute(pixels, centroids)\n"
    "    return result.assignments.ravel()",
    "    pixels, centroids = pixels.astype(np.float32), centroids.astype(np.float32)\n"
    "    return np.argmin((pixels**2).sum(1)[:, None] + (centroids**2).sum(1) - 2 * pixels @ centroids.T, axis=1)",
)
BY_PAIRS = swap(
    "    every = np.stack(MPI.COMM_WORLD.allgather(centroids))\n"
    "    return float((every.max(axis=0) - every.min(axis=0)).max())",
    "    every = MPI.COMM_WORLD.allgather(centroids)\n"
    "    return max(np.abs(one - other).max() for one in every for other in every)",
)
ONE_KEPT = swap(
    "    every = np.stack(MPI.COMM_WORLD.allgather(centroids))\n"
    "    return float((every.max(axis=0) - every.min(axis=0)).max())",
    "    low = centroids.copy()\n"
    "    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, low, op=MPI.MIN)\n"
    "    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, centroids, op=MPI.MAX)\n"
    "    return float((centroids - low).max())",
)
BY_REDUCTION = swap(
    "    every = np.stack(MPI.COMM_WORLD.allgather(centroids))\n"
    "    return float((every.max(axis=0) - every.min(axis=0)).max())",
    "    high, low = np.empty_like(centroids), np.empty_like(centroids)\n"
    "    MPI.COMM_WORLD.Allreduce(centroids, high, op=MPI.MAX)\n"
    "    MPI.COMM_WORLD.Allreduce(centroids, low, op=MPI.MIN)\n"
    "    return np.max(high - low)",
)
GATHERED = swap(
    "    everybody = np.empty(height * width, np.uint8) if rank == 0 else None\n"
    "    counts = [stop - start for start, stop in shares]\n"
    "    ranks.Gatherv(labels, [everybody, counts], root=0)\n"
    "    if rank == 0:\n"
    "        picture = Image.fromarray(everybody.reshape(height, width))\n"
    "        picture.putpalette(np.rint(centroids).astype(np.uint8).tobytes())\n"
    "        picture.save(",
    "    everybody = ranks.gather(labels)\n"
    "    if rank == 0:\n"
    "        colours = np.rint(centroids).astype(np.uint8)[np.concatenate(everybody)]\n"
    "        Image.fromarray(colours.reshape(height, width, 3)).save(",
)
ALL_ON_RANK_0 = swap(
    "    ranks.Gatherv(labels, [everybody, counts], root=0)\n    if rank == 0:\n",
    "    if rank == 0:\n"
    "        everybody = labels_of(np.array(photo.reshape(-1, 3), float), centroids).astype(np.uint8)\n",
)


class TestExercises(ThreeWays):
    lab = "09"
    mistakes = [
        (
            1,
            swap("original.astype(np.float64) - quantised", "original - quantised"),
            "when black became white, in dB, to be 0",
        ),
        (1, swap("return math", "math"), "None: does it return?"),
        (1, swap("if error == 0", "if error < 1"), "1 too large, in dB, to be 65.91; it is inf"),
        (
            1,
            swap("if error == 0", "if error < 1e-3"),
            "of one pixel in 10,000 is 1 too large, in dB, to be 92.9; it is inf",
        ),
        (
            1,
            swap("if error == 0", "if original.sum() == quantised.sum()"),
            "psnr when two pixels have changed places, in dB, to be ",
        ),
        (1, swap("return math.inf", "return 0"), "psnr when both are equal, in dB, to be inf; it is 0."),
        (1, swap("255**2 / error", "255 / error"), "psnr when every number is 10 too large, in dB, to be 28.13; it is"),
        (1, swap("math.inf if error == 0 else 10 *", "math.inf if error == 0 else 20 *"), "it is 56.26"),
        (1, swap("    return", "    quantised[:] = 0\n    return"), "quantised to stay as it was"),
        (1, swap("np.mean(", "np.atleast_1d("), "ValueError: The truth value"),
        (2, swap("len(centroids), 0,", "len(centroids), 5,"), "has no iteration moved the centroids?"),
        (
            2,
            swap(".ravel()", ""),
            "an array of the shape (500,) for 500 pixels and 7 centroids; it is an array of shape (500, 1)",
        ),
        (2, swap("return result", "result"), "None: does it return?"),
        (2, swap(".ravel()", ".ravel().tolist()"), "an array of the shape (500,)"),
        (
            2,
            swap(".ravel()", ".ravel().astype(float)"),
            "an integer type for 500 pixels and 7 centroids; it is float64",
        ),
        (2, swap(".ravel()", ".ravel() + 1"), "labels from 0 to 6"),
        (2, swap("len(centroids), 0", "3, 0"), "RuntimeError"),
        (
            2,
            swap(".ravel()", ".ravel().astype(np.uint8)"),
            "a type that holds labels up to 299 for 10007 pixels and 300 centroids; uint8 holds them up to 255",
        ),
        (2, IN_PIECES, "for 10007 pixels and 300 centroids; "),
        (
            2,
            swap("    result", "    centroids.sort(axis=0)\n    result"),
            "centroids to stay as it was; labels_of changed it",
        ),
        (
            3,
            LIKE_THE_VENDOR,
            "the shares to reach from 0 to 10 for n = 10 and weights [1, 1, 1, 1]; they reach from 0 to 8",
        ),
        (3, REST_TO_THE_LAST, "for rank 3 for n = 10 and weights [1, 1, 1, 1], give or take one; it gets 4"),
        (3, AFTER_THE_LAST_CALL, "to be (1738, 2173) for rank 2 for n = 2,173 and weights [8, 8, 4], called without"),
        (3, swap("weights[:rank])", "weights[1:rank])"), "leave pixels on two ranks"),
        (3, swap("n * sum(weights[:rank]) // total", "1 + n * sum(weights[:rank]) // total"), "reach from 0 to 12"),
        (3, swap("// total, n", "// total, 1 + n"), "0 <= start <= stop <= n"),
        (
            3,
            swap(ENDS, "    size = len(weights)\n    return n * rank // size, n * (rank + 1) // size\n"),
            "9 pixels for rank 0 for n = 12 and weights [3, 1], give or take one; it gets 6",
        ),
        (3, swap("// total, n", "/ total, n"), "to be an int; it is 0.0, a float"),
        (3, swap("total = sum(weights)", "total = np.float32(sum(weights))"), "to be an int"),
        (3, swap("return n", "n"), "None: does it return?"),
        (3, swap("    total", "    weights.sort()\n    total"), "weights to stay as it was; share changed it"),
        (
            4,
            swap("accuracyThreshold=0, distributed=True)", "accuracyThreshold=0)"),
            "each rank fitted its own share alone",
        ),
        (
            4,
            swap("return model.compute(mine, begin).centroids", "return model.compute(mine, begin)"),
            "on rank 0 it is of type kmeans_result",
        ),
        (4, swap("return model", "model"), "on rank 0 it is None: does it return?"),
        (4, swap("return model.compute(mine, begin).centroids", "return begin"), "these are still the first ones"),
        (4, swap("iterations, accuracyThreshold", "iterations // 2, accuracyThreshold"), "It takes all iterations"),
        (4, swap("MPI.COMM_WORLD.allgather(centroids)", "[centroids, centroids]"), "spread to be 4.0 on every rank"),
        (
            4,
            swap("return float(", "print("),
            "spread to be a number on every rank; on rank 0 it is None: does it return?",
        ),
        (4, swap("MPI.COMM_WORLD.allgather", "MPI.COMM_WORLD.gather"), "in spread, on rank "),
        (
            4,
            swap(
                "every.max(axis=0) - every.min(axis=0)).max()", "every.max(axis=0) - every.min(axis=0)).max().round(2)"
            ),
            "is shifted by 0.0, 0.0, 0.0009765625, 0.0 on ranks 0 to 3; on rank 0 it is 0.",
        ),
        (
            4,
            swap("every.max(axis=0) - every.min(axis=0)", "every - every.mean(axis=0)"),
            "every rank returns the largest",
        ),
        (
            4,
            swap("every.max(axis=0) - every.min(axis=0)", "every - every[0]"),
            "shifted by 0.0, 1.5, -2.5, 0.0 on ranks 0 to 3",
        ),
        (
            4,
            swap("every.max(axis=0) - every.min(axis=0)", "abs(every - np.roll(every, 1, axis=0))"),
            "when one number of a centroid is shifted by 0.0, -2.5, 0.5, 1.5 on ranks 0 to 3",
        ),
        (
            4,
            swap("(every.max(axis=0) - every.min(axis=0)).max()", "np.linalg.norm(np.ptp(every, axis=0))"),
            "on every rank when several numbers are shifted, each on other ranks",
        ),
        (4, swap("return float(", "return int("), "spread to be 3.5 on every rank when one number"),
        (
            4,
            swap("allgather(centroids)", "allgather(np.sort(centroids, axis=0))"),
            "on every rank when a centroid has the opposite signs on rank 1",
        ),
        (4, ONE_KEPT, "centroids to stay as before; spread changed it on rank 0"),
        (4, swap("every.max(axis=0) - every.min(axis=0)", "abs(every - every[0])"), "to be 4.0 on every rank"),
        (4, swap("every.max(axis=0) - every.min(axis=0)", "abs(np.diff(every, axis=0))"), "to be 4.0 on every rank"),
        (
            4,
            swap("return float((every.max(axis=0) - every.min(axis=0)).max())", "return every.max() - every.min()"),
            "to be 0.0",
        ),
        (4, swap("    return model", "    begin *= 2\n    return model"), "begin to stay as before; fit changed it"),
        (4, swap("(mine, begin).centroids", "(mine, begin).centroidz"), "That was in fit, on rank"),
        (
            4,
            swap("    return model", "    while MPI.COMM_WORLD.rank == 0:\n        pass\n    return model"),
            "after 10 s",
        ),
        (
            4,
            swap("distributed=True)\n    return", "distributed=True)\n    raise NotImplementedError\n    return"),
            "still says",
        ),
        (5, swap("labels_of(mine, centroids)", "labels_of(mine, first)"), "the label of its nearest centroid"),
        (
            5,
            swap(".astype(np.uint8)\n    ###", ".astype(np.uint8) + np.uint8(1)\n    ###"),
            "of its nearest centroid; on rank",
        ),
        (
            5,
            swap("np.rint(centroids).astype(np.uint8).tobytes", "centroids.astype(np.uint8).tobytes"),
            "numbers of yours are 1 off",
        ),
        (5, swap(".astype(np.uint8)\n    ###", "\n    ###"), "ranks.Gatherv(labels, [everybody, counts], root=0)"),
        (5, swap("    if rank == 0:\n        picture =", "    if True:\n        picture ="), "That was on rank"),
        (
            5,
            swap(
                "    if rank == 0:\n        picture =",
                "    everybody = ranks.bcast(everybody)\n    if True:\n        args.out.mkdir(exist_ok=True)\n"
                "        picture =",
            ),
            "from rank 0 alone; it came from ranks [0, 1, 2]",
        ),
        (5, swap('        picture.save(args.out / "photo.png")\n', ""), "it came from no rank"),
        (
            5,
            swap('picture.save(args.out / "photo.png")', '(args.out / "photo.png").write_bytes(everybody.tobytes())'),
            "photo.png to be a picture; what is in the file is no PNG",
        ),
        (5, ALL_ON_RANK_0, "labels_of to get the 724 pixels of rank 0 there, and nobody else's; it got 2173"),
        (5, swap("reshape(height, width)", "reshape(width, height)"), "a picture of 41 rows and 53 columns"),
        (5, swap("        picture.putpalette(np.rint(centroids).astype(np.uint8).tobytes())\n", ""), "and the palette"),
        (
            5,
            swap(
                "    if rank == 0:\n        picture =",
                "    if rank == 0:\n        everybody = everybody[::-1]\n        picture =",
            ),
            "in the ranks' order",
        ),
    ]
    right = [
        (1, same),
        (
            1,
            swap(
                "np.mean((original.astype(np.float64) - quantised) ** 2)",
                "np.square(original - quantised * 1.0).mean()",
            ),
        ),
        (2, same),
        (2, PREDICTED),
        (2, IN_FLOAT32),
        (3, same),
        (3, BY_ROUNDING),
        (3, LARGEST_REMAINDERS),
        (3, EMPTY_AT_ZERO),
        (4, same),
        (4, BY_REDUCTION),
        (4, BY_PAIRS),
        (5, same),
        (5, GATHERED),
    ]


# What the lab says of its measurements, from invented ones of each kind.

NOISE = np.array([1.0, 1.03, 0.98, 1.02, 0.97])  # of five rounds, in which a width has its own order of them
WORDS = lab_cells.functions(
    "09",
    *("compare", "crowding", "times_as_fast", "judge", "advantage", "trend"),
    np=np,
    itertools=itertools,
    ratio=ratio,
    ratios=ratios,
)


def rounds(*values):
    """Return rounds of these values, with noise that is not the same in any two."""
    return [value * np.roll(NOISE, shift) for shift, value in enumerate(values)]


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((1, 1.3, 1.6, 2), "rises with the width"),
        ((2, 1.6, 1.3, 1), "falls with the width"),
        ((1.4, 1.4, 1.4, 1.4), "no difference beyond chance"),
        ((1, 1, 3, 1), "neither rises nor falls all the way"),  # one width that is far off
        ((1, 1, 1, 3), "rises with the width"),
    ],
)
def test_a_trend_is_one_beyond_chance(gains, words):
    by_width = dict(zip((3, 8, 32, 64), rounds(*gains), strict=True))
    assert words in WORDS["trend"](by_width)


def test_one_disturbed_round_makes_no_trend():
    by_width = dict(zip((3, 8, 32, 64), rounds(1.4, 1.4, 1.4, 1.4), strict=True))
    by_width[64][2] *= 5
    assert WORDS["trend"](by_width).startswith("no difference beyond chance")
    assert WORDS["trend"]({3: [1.0], 64: [2.0]}).startswith("one round only, so there is no interval")


@pytest.mark.parametrize(
    ("speed", "words"),
    [(1.5, ": faster"), (0.7, ": slower"), (1.0, ": no difference beyond chance")],
)
def test_settings_and_libraries_are_compared_beyond_chance(speed, words):
    one, other, third = rounds(1 / speed, 1, 1.2)
    fits = {"ranks": one, "threads": other, "more": third}
    assert words in WORDS["compare"](fits, "ranks", "threads")
    gain = WORDS["times_as_fast"](fits | {"long": [9.0]}, "ranks", "threads")
    assert words in WORDS["judge"](gain, 0.0)
    both = {3: 1 / one, 64: 1 / third}, {3: 1 / other, 64: 1 / third}
    assert WORDS["advantage"](*both, 3).verdict.startswith(words.removeprefix(": "))


def test_a_long_run_that_was_made_once_has_no_interval():
    fits = dict(zip(("a", "b"), rounds(1, 2), strict=True)) | {"long": [9.0]}
    assert WORDS["times_as_fast"](fits, "long", "a").verdict == "one round only, so there is no interval"
    assert WORDS["compare"]({"a": [1.0], "b": [2.0]}, "a", "b").endswith("so there is no interval")


@pytest.mark.parametrize(("decibels", "words"), [(0.04, "as good"), (-1.7, "1.7 dB worse"), (0.2, "0.2 dB better")])
def test_quality_is_said_with_the_speed(decibels, words):
    assert WORDS["judge"](Ratio(1.5, 1.4, 1.6), decibels) == f"1.50 (1.40 to 1.60) times as fast: faster; {words}"


@pytest.mark.parametrize(("cpus", "words"), [(4, "a CPU for each"), (3, "oversubscribed")])
def test_threads_are_counted_against_cpus(cpus, words):
    assert WORDS["crowding"]([2, 2], cpus) == f"4 threads on {cpus} CPUs: {words}"
