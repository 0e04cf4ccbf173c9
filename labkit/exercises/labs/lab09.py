"""Exercises of lab 09: the quality of a picture, sums of ranks, their spread, a distributed fit, the best start."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from labkit.exercises.engine.on_ranks import OnRanks
from labkit.exercises.engine.reference import Case, Reference, Result
from labkit.exercises.labs import lab09_ranks

EXERCISES: dict[int, Reference | OnRanks] = {}

FORMULA_HINT = (
    "PSNR compares the largest squared error that a number can have, 255², with the mean squared error: ten times the "
    "decimal logarithm of their ratio."
)
ZERO_HINT = "Equal pictures have an error of 0, and only they. Which PSNR do they have, and which has a tiny error?"
FORMULAS = {
    "the factor were 20, as for a root of the squared error": {"10 *": "20 *"},
    "255 were not squared": {"255**2": "255"},
    "the logarithm were natural": {"log10": "log"},
    "error and 255² were exchanged": {"255**2 / error": "error / 255**2"},
}
EQUALS = {
    "equal pictures had a PSNR of 0": {"math.inf": "0"},
    "an error below 1 were none": {"error == 0": "error < 1"},
    "an error below a thousandth were none": {"error == 0": "error < 1e-3"},
}
BLACK = np.zeros((4, 5, 3), np.uint8)
SPOT = np.pad(np.array([[[30, 0, 0]]], np.uint8), ((0, 3), (0, 4), (0, 0)))


def _changed(label: str, height: int, width: int, change: int, *place: int | slice) -> Case:
    grey = np.full((height, width, 3), 100, np.uint8)
    other = grey.copy()
    other[place] += np.uint8(change % 256)
    return Case((grey, other), f"psnr when {label}, in dB,")


EXERCISES[1] = Reference(
    cases=[
        _changed("every number is 10 too large", 4, 5, 10),
        _changed("every number is 10 too small", 4, 5, -10),
        Case((BLACK, BLACK - np.uint8(1)), "psnr when black became white, in dB,"),
        _changed("one channel of one pixel in 20 is 30 too large", 4, 5, 30, 0, 0, 0),
        _changed("one channel of one pixel in 20 is 1 too large", 4, 5, 1, 0, 0, 0),
        _changed("both are equal", 4, 5, 0),
        Case((SPOT, SPOT[::-1]), "psnr when two pixels are swapped, in dB,"),  # errors that add up to 0
        _changed("one channel of one pixel in 10,000 is 1 too large", 100, 100, 1, 99, 99, 2),
    ],
    more=st.tuples(st.integers(1, 4), st.integers(1, 4), st.just(3)).flatmap(
        lambda shape: st.tuples(*[arrays(np.uint8, shape)] * 2)
    ),
    case=lambda original, quantised: f"psnr({original.tolist()}, {quantised.tolist()}), in dB,",
    returns=(Result(rel=1e-5, abs=1e-5),),
    wrong={
        "numbers wrapped around at 0 and 256, as in uint8": {".astype(np.float64)": ""},
        "the errors were not squared": {"np.mean((": "np.mean(abs(", " ** 2": ""},
        "the squared errors were added up, not averaged": {"np.mean": "np.sum"},
        "the errors' mean were subtracted from them": {"np.mean((": "np.var((", " ** 2": ""},
    }
    | FORMULAS
    | EQUALS,
    also=[{"astype(np.float64)": "astype(int)", "10 * math.log10(255**2 / error)": "-10 * math.log10(error / 255**2)"}],
    hints=(
        "The numbers of a uint8 array wrap around at 0 and 256. Which type do they need before you subtract?",
        "np.mean((original.astype(float) - quantised) ** 2) is the mean squared error over pixels and channels.",
        "10 * math.log10(255**2 / error), and math.inf when the error is 0.",
    ),
    hint_for=dict.fromkeys(FORMULAS, FORMULA_HINT) | dict.fromkeys(EQUALS, ZERO_HINT),
)


def _cloud(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3)).astype(float), rng.uniform(0, 255, (k, 3))


TWO = np.array([[10.0, 20.0, 30.0], [12.0, 20.0, 34.0], [200.0, 210.0, 220.0]])
LAST = np.array([[0.0, 0.0, 0.0], [255.0, 255.0, 255.0], [0.0, 255.0, 0.0]])
EMPTY_HINT = "np.bincount(labels, weights, minlength=k) has k results, also where the last centroids have no pixels."

EXERCISES[2] = Reference(
    cases=[
        Case((TWO, LAST[:2]), "partial of 3 pixels, two of them dark, and the centroids black and white"),
        Case((TWO, LAST[[0, 2, 1]]), "partial of 3 pixels and 3 centroids, the second of them without pixels"),
        Case((TWO, LAST), "partial of 3 pixels and 3 centroids, the last of them without pixels"),
        Case(_cloud(50, 5), "partial of 50 random pixels and 5 centroids"),
        Case(_cloud(1, 4), "partial of 1 pixel and 4 centroids"),
    ],
    more=st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(0, 99)).map(lambda sizes: _cloud(*sizes)),
    case=lambda pixels, centroids: f"partial of {len(pixels)} pixels and {len(centroids)} centroids",
    returns=(Result(array=True),),
    wrong={
        "the sums were divided by the number of pixels": {
            "return np.array(": "result = np.array(",
            "in columns]).T": "in columns]).T\n    result[:, :3] /= np.maximum(1, result[:, 3:])\n    return result",
        },
        "centroids without pixels at the end had no row": {"labels, column, len(centroids)": "labels, column"},
        "the number came before the sums": {"[pixels, np.ones(len(pixels))]": "[np.ones(len(pixels)), pixels]"},
        "rows and columns were exchanged": {"in columns]).T": "in columns])"},
        "squares were summed": {"[pixels, np": "[pixels**2, np"},
        "the number were a share of all pixels": {"np.ones(len(pixels))": "np.full(len(pixels), 1 / len(pixels))"},
        "there were no number of pixels": {"[pixels, np.ones(len(pixels))]": "[pixels]"},
    },
    also=[
        {
            "np.array([np.bincount(labels, column, len(centroids)) for column in columns]).T": (
                "np.array([columns[:, labels == k].sum(axis=1) for k in range(len(centroids))])"
            )
        }
    ],
    hints=(
        "`labels` has the number of a centroid for each pixel. Which pixels have the number 0? Add up their rows, and "
        "count them. A loop over centroids is short.",
        "`pixels[labels == 0].sum(axis=0)` has three sums, and `np.sum(labels == 0)` is the number.",
        "return np.array([[*pixels[labels == k].sum(axis=0), np.sum(labels == k)] for k in range(len(centroids))])",
    ),
    hint_for={"centroids without pixels at the end had no row": EMPTY_HINT},
)


def _shifted(*shifts: float) -> Case:
    same = np.random.default_rng(0).integers(-400, 400, (5, 3)) / 4
    centroids = [same + shift * (np.arange(15) == 7).reshape(5, 3) for shift in shifts]
    return Case((centroids,), f"spread when one number is shifted by {', '.join(map(str, shifts))} on the ranks")


def _several() -> Case:
    (centroids,) = _shifted(0.0, 1.5, -2.5, 0.0).args
    centroids[3][4, 2], centroids[1][0, 0] = centroids[3][4, 2] + 3, centroids[1][0, 0] - 2
    return Case((centroids,), "spread when several numbers are shifted, each on other ranks")


def _swapped() -> Case:
    first, second = _shifted(0.0, 0.0).args[0]
    return Case(([first, second[::-1].copy()],), "spread when the second rank has the same centroids in reverse order")


EXERCISES[3] = Reference(
    cases=[
        _shifted(0.0, 0.0, 0.0, 0.0), _shifted(0.0, 1.5, -2.5, 0.0), _shifted(0.0, -2.5, 0.5, 1.5),
        _shifted(-1.0, 0.5, 3.0, 1.0), _shifted(4.25, 0.0), _shifted(0.0, 0.0, 2**-10), _several(), _swapped(),
    ],
    returns=(Result(format=".4g"),),
    wrong={
        "all ranks were compared with rank 0 only": {"all_ranks.min(axis=0)": "all_ranks[0]"},
        "distances from rank 0 were taken": {
            "(all_ranks.max(axis=0) - all_ranks.min(axis=0))": "abs(all_ranks - all_ranks[0])"
        },
        "each rank were compared with the next one only": {
            "(all_ranks.max(axis=0) - all_ranks.min(axis=0)).max()": (
                "max(abs(b - a).max() for a, b in zip(of_ranks, of_ranks[1:]))"
            )
        },
        "the ranks were compared with their mean": {
            "(all_ranks.max(axis=0) - all_ranks.min(axis=0))": "abs(all_ranks - all_ranks.mean(axis=0))"
        },
        "different numbers were compared with each other": {
            "(all_ranks.max(axis=0) - all_ranks.min(axis=0))": "np.ptp(all_ranks)"
        },
        "centroids were sorted before": {"np.stack(of_ranks)": "np.sort(np.stack(of_ranks), axis=1)"},
        "the mean difference were taken": {"axis=0)).max())": "axis=0)).mean())"},
        "the differences were added up": {"axis=0)).max())": "axis=0)).sum())"},
        "the result were rounded": {"return float(": "return int("},
    },
    also=[
        lambda of_ranks: max(np.abs(a - b).max() for a in of_ranks for b in of_ranks),
        {"(all_ranks.max(axis=0) - all_ranks.min(axis=0)).max()": "np.ptp(all_ranks, axis=0).max()"},
    ],
    hints=(
        "Take one number of one centroid. It has a value on each rank. Which two of them differ most?",
        "`np.stack(of_ranks)` is one array, in which the first axis counts the ranks. Take the largest and the "
        "smallest value along this axis.",
        "(all_ranks.max(axis=0) - all_ranks.min(axis=0)).max()",
    ),
)  # fmt: skip

EXERCISES[4] = lab09_ranks.EXERCISES[4]

EXERCISES[5] = Reference(
    cases=[
        ([3.0, 1.0, 2.0], [10.0, 30.0, 25.0], 1), ([3.0, 1.0, 2.0], [10.0, 30.0, 25.0], 2),
        ([3.0, 1.0, 2.0], [10.0, 30.0, 25.0], 3), ([4.0, 1.0, 3.0, 2.0], [27.1, 27.0, 27.4, 27.2], 2),
        ([5.0, 4.0, 1.0, 3.0, 2.0], [26.0, 27.5, 27.0, 27.4, 26.2], 3),
    ],
    more=st.integers(2, 6).flatmap(
        lambda n: st.tuples(
            st.permutations([*map(float, range(n))]), st.lists(st.floats(20, 40), min_size=n, max_size=n),
            st.integers(1, n),
        )
    ),
    wrong={
        "the run with the best PSNR were kept": {"min(group)[1]": "max(run[1] for run in group)"},
        "the run with the largest error were kept": {"min(group)[1]": "max(group)[1]"},
        "the mean of the runs were kept": {"min(group)[1]": "np.mean([run[1] for run in group])"},
        "the errors were returned": {"min(group)[1]": "min(group)[0]"},
        "only the first runs were chosen": {"in groups": "in [next(groups)]"},
        "all runs were made": {"psnrs), starts)": "psnrs), len(errors))"},
        "a run could be chosen twice": {"combinations(": "combinations_with_replacement("},
        "the median were taken": {"np.mean(": "np.median("},
        "the best choice were taken": {"np.mean(": "np.max("},
    },
    also=[{"combinations(": "permutations("}],
    hints=(
        "`itertools.combinations(range(len(errors)), starts)` lists the ways to choose. Which run do you keep in each?",
        "Pairs compare by their first number: `min(zip(errors, psnrs))` is the pair with the smallest error.",
        "np.mean([min(group)[1] for group in itertools.combinations(zip(errors, psnrs), starts)])",
    ),
)  # fmt: skip
