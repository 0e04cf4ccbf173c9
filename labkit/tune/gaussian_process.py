"""A Gaussian process that proposes the next point of a space to try.

It models the metric from few trials (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, algorithm
2.1), assuming that nearby points have similar metrics. For each point it predicts a metric and its uncertainty. The
point with the largest expected improvement over the best so far is tried next (Jones et al. 1998, "Efficient Global
Optimization of Expensive Black-Box Functions").

Optuna's `GPSampler` does the same but needs PyTorch. scikit-learn's `GaussianProcessRegressor` (1.9) does it with
Matern and WhiteKernel and a length scale per column; a knob is one column, or one column per value. Ours tries both
for each knob, which is why it does badly nowhere. Advantage of scikit-learn's over ours with 5% of the points tried,
in percentage points of the best speed (95% intervals; 100 to 200 seeds, the same for all):

================================  =====================  ===================
landscape                         one column per knob    one per value
================================  =====================  ===================
data/tuning-grid.csv              -0.1 (-0.7 to 0.5)     1.0 (0.3 to 1.8)
… with the default first          -0.4 (-0.9 to 0.1)     0.6 (0.0 to 1.2)
… the slowest is best             1.9 (-0.1 to 4.0)      -1.6 (-3.9 to 0.7)
… each knob's values shuffled     -0.8 (-1.5 to -0.2)    not measured
random effects of knobs, pairs    -7.6 (-10.8 to -4.4)   -2.6 (-5.2 to 0.1)
two knobs, a smooth top; 8 seeds  0.0                    -1.2 (-2.1 to -0.3)
================================  =====================  ===================

scikit-learn optimises the model's likelihood, while we take the likeliest of 30 random models: a search of 57 trials
takes 1.5 or 1.1 s of compute with it and 0.3 s with ours, and lab 05 runs thirty of them.
"""

from collections.abc import Sequence

import numpy as np
from scipy import linalg, special

MODELS = 30  # number of random models, of which the likeliest is used
UNORDERED_SHARE = 0.5  # share of the models in which a knob's neighbouring values are unrelated
NOISE = 1e-2  # noise variance as a share of the metrics' variance, to within a factor of ten

Points = np.ndarray  # (n, knobs): the index of each knob's value


def most_promising(
    tried: Points, metrics: np.ndarray, candidates: Points, ordered: Sequence[bool], random: np.random.Generator
) -> int:
    """Return the index of the candidate with the largest expected improvement.

    Parameters
    ----------
    tried : (n, knobs) ndarray
        The measured points.
    metrics : (n,) ndarray
        Their metrics; higher is better.
    candidates : (m, knobs) ndarray
        The points that may be tried next.
    ordered : sequence of bool
        Whether a knob's values are ordered, so that neighbours may be similar.
    random : numpy Generator
        Source of the random models.
    """
    scale = np.maximum(1, np.vstack([tried, candidates]).max(axis=0))
    standard = (metrics - metrics.mean()) / (metrics.std() or 1.0)
    distances = _squared_distances(tried / scale, tried / scale)
    models = [_Model(distances, standard, np.asarray(ordered), random) for _ in range(MODELS)]
    likeliest = max(models, key=lambda model: model.likelihood)
    mean, spread = likeliest.predict(_squared_distances(candidates / scale, tried / scale))
    better = (mean - standard.max()) / spread
    density = np.exp(-0.5 * better**2) / np.sqrt(2 * np.pi)
    improvement = spread * (better * special.ndtr(better) + density)
    return int(np.argmax(improvement))


def _squared_distances(points: Points, others: Points) -> np.ndarray:
    """Return the squared distance in each knob between points and others: (2, knobs, points, others).

    A knob's width is the distance from its first to its last value. The first array is for unordered values, any two of
    which are one width apart, the second for ordered ones.
    """
    distances = np.abs(points.T[:, :, None] - others.T[:, None, :])
    return np.array([np.sign(distances), distances**2])


class _Model:
    """A Gaussian process with a Matérn kernel (ν = 5/2) and random length scales, noise and knob types."""

    def __init__(self, distances: np.ndarray, metrics: np.ndarray, ordered: np.ndarray, random: np.random.Generator):
        log_lengths = random.normal(size=len(ordered))  # knobs with long length scales hardly matter
        self._shares = np.exp(-2 * log_lengths)
        self._kinds = (ordered & (random.random(len(ordered)) >= UNORDERED_SHARE)).astype(int)
        noise = NOISE * 10 ** random.uniform(-1, 1)
        self._factor = linalg.cholesky(self._kernel(distances) + noise * np.eye(len(metrics)), lower=True)
        self._weights = linalg.cho_solve((self._factor, True), metrics)
        fit = -0.5 * np.dot(metrics, self._weights) - np.sum(np.log(np.diag(self._factor)))
        self.likelihood = float(fit - 0.5 * np.sum(log_lengths**2))  # including their prior

    def predict(self, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and standard deviation of each point's metric, from its distances to the tried points."""
        kernel = self._kernel(distances)
        explained = linalg.solve_triangular(self._factor, kernel.T, lower=True)
        return kernel @ self._weights, np.sqrt(np.maximum(1e-9, 1 - (explained**2).sum(axis=0)))

    def _kernel(self, distances: np.ndarray) -> np.ndarray:
        of_knobs = distances[self._kinds, np.arange(len(self._kinds))]
        distance = np.sqrt(5 * np.tensordot(self._shares, of_knobs, axes=1))
        similarity: np.ndarray = (1 + distance + distance**2 / 3) * np.exp(-distance)
        return similarity
