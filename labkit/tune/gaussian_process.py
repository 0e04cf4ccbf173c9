"""A Gaussian process that proposes which point of a space to try next.

A model of the metric for few trials (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, algorithm
2.1): the nearer two points are, the more alike are their metrics. It says for each point which metric is likely, and
how sure that is. The next to try is the point with the largest expected improvement over the best so far (Jones et al.
1998, "Efficient Global Optimization of Expensive Black-Box Functions").

Optuna's own `GPSampler` does the same, and needs PyTorch. scikit-learn's `GaussianProcessRegressor` (1.9) does it with
Matern and WhiteKernel, a length scale for each column; a knob is one column, or one for each of its values. Ours tries
both for each knob, which is why it is bad nowhere. What scikit-learn's found beyond ours with 5% of the points tried,
in points of the best speed's share (95% intervals; 100 to 200 seeds, the same for all):

================================  =====================  ===================
landscape                         a column for a knob    one for each value
================================  =====================  ===================
data/tuning-grid.csv              -0.1 (-0.7 to 0.5)     1.0 (0.3 to 1.8)
… with the default first          -0.4 (-0.9 to 0.1)     0.6 (0.0 to 1.2)
… the slowest is best             1.9 (-0.1 to 4.0)      -1.6 (-3.9 to 0.7)
… each knob's values shuffled     -0.8 (-1.5 to -0.2)    not measured
random effects of knobs, pairs    -7.6 (-10.8 to -4.4)   -2.6 (-5.2 to 0.1)
two knobs, a smooth top; 8 seeds  0.0                    -1.2 (-2.1 to -0.3)
================================  =====================  ===================

It climbs to the likeliest model, for which we take the likeliest of 30: a search of 57 trials takes 1.5 or 1.1 s of
computing with it and 0.3 s with ours, and lab 05 waits for thirty of them.
"""

from collections.abc import Sequence

import numpy as np
from scipy import linalg, special

MODELS = 30  # how many are drawn; the likeliest is taken
UNORDERED_SHARE = 0.5  # share of the models in which a knob's neighbouring values have nothing to do with each other
NOISE = 1e-2  # variance of the measurements, as a share of that of all metrics: within a factor of ten

Points = np.ndarray  # (n, knobs): the place of each knob's value among its values


def most_promising(
    tried: Points, metrics: np.ndarray, candidates: Points, ordered: Sequence[bool], random: np.random.Generator
) -> int:
    """Return which of the candidates has the largest expected improvement.

    Parameters
    ----------
    tried : (n, knobs) ndarray
        The points that were measured.
    metrics : (n,) ndarray
        What each of them gave; large is good.
    candidates : (m, knobs) ndarray
        The points that may be tried next.
    ordered : sequence of bool
        Whether the values of a knob are in an order, so that neighbours may be alike.
    random : numpy Generator
        Draws the models.
    """
    scale = np.maximum(1, np.vstack([tried, candidates]).max(axis=0))
    standard = (metrics - metrics.mean()) / (metrics.std() or 1.0)
    apart = _squared_distances(tried / scale, tried / scale)
    models = [_Model(apart, standard, np.asarray(ordered), random) for _ in range(MODELS)]
    likeliest = max(models, key=lambda model: model.likelihood)
    mean, spread = likeliest.predict(_squared_distances(candidates / scale, tried / scale))
    better = (mean - standard.max()) / spread
    density = np.exp(-0.5 * better**2) / np.sqrt(2 * np.pi)
    improvement = spread * (better * special.ndtr(better) + density)
    return int(np.argmax(improvement))


def _squared_distances(points: Points, others: Points) -> np.ndarray:
    """Return, for each knob, the squares of how far points are from others: (2, knobs, points, others).

    A knob is as wide as the distance from its first to its last value. First for values without an order, any two of
    which are that far apart, then for those in an order.
    """
    apart = np.abs(points.T[:, :, None] - others.T[:, None, :])
    return np.array([np.sign(apart), apart**2])


class _Model:
    """A Gaussian process with a Matérn kernel (ν = 5/2) whose length scales, noise and kinds of knobs are drawn."""

    def __init__(self, apart: np.ndarray, metrics: np.ndarray, ordered: np.ndarray, random: np.random.Generator):
        log_lengths = random.normal(size=len(ordered))  # knobs with a long length scale hardly matter
        self._shares = np.exp(-2 * log_lengths)
        self._kinds = (ordered & (random.random(len(ordered)) >= UNORDERED_SHARE)).astype(int)
        noise = NOISE * 10 ** random.uniform(-1, 1)
        self._factor = linalg.cholesky(self._kernel(apart) + noise * np.eye(len(metrics)), lower=True)
        self._weights = linalg.cho_solve((self._factor, True), metrics)
        fit = -0.5 * np.dot(metrics, self._weights) - np.sum(np.log(np.diag(self._factor)))
        self.likelihood = float(fit - 0.5 * np.sum(log_lengths**2))  # with the lengths' own

    def predict(self, apart: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the standard deviation of each point's metric, from its distances to what was tried."""
        kernel = self._kernel(apart)
        explained = linalg.solve_triangular(self._factor, kernel.T, lower=True)
        return kernel @ self._weights, np.sqrt(np.maximum(1e-9, 1 - (explained**2).sum(axis=0)))

    def _kernel(self, apart: np.ndarray) -> np.ndarray:
        of_knobs = apart[self._kinds, np.arange(len(self._kinds))]
        distance = np.sqrt(5 * np.tensordot(self._shares, of_knobs, axes=1))
        alike: np.ndarray = (1 + distance + distance**2 / 3) * np.exp(-distance)
        return alike
