"""How often intervals that are called 95% hold the true ratio, and how long they are, by how they are made.

    python tests/benchmarks/intervals.py [--cases 5000]

Prints for each estimator the least and the largest share of intervals that hold it, over all noise of
`noisy_rounds`, 3 to 8 rounds and 2 to 8 speeds, and the length of its intervals relative to those of
`labkit.system.statistics`, the paired ones. About two minutes with 5,000 comparisons of each kind of noise.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from noisy_rounds import comparisons
from scipy import special, stats

from labkit.system.statistics import interval

ROUNDS, SPEEDS = (3, 4, 5, 6, 8), (2, 3, 5, 8)
STEPS = 60  # of the likelihood's climb

Estimate = Callable[[np.ndarray, int], np.ndarray]  # half an interval of each case, from (cases, speeds, rounds)


def paired(logs: np.ndarray, other: int) -> np.ndarray:
    """Each pair has its own noise: Student's paired t."""
    return interval(logs[:, other] - logs[:, 0])[1]


def _half(variance: np.ndarray, degrees: np.ndarray | float, rounds: int) -> np.ndarray:
    return stats.t.ppf(0.975, degrees) * np.sqrt(variance / rounds)


def _residuals(logs: np.ndarray) -> np.ndarray:
    centred = logs - logs.mean(axis=2, keepdims=True)
    return centred - centred.mean(axis=1, keepdims=True)


def pooled(logs: np.ndarray, other: int) -> np.ndarray:
    """All have the same noise: two-way analysis of variance without interaction."""
    _, speeds, rounds = logs.shape
    degrees = (speeds - 1) * (rounds - 1)
    return _half(2 * (_residuals(logs) ** 2).sum(axis=(1, 2)) / degrees, degrees, rounds)


def three_fold(logs: np.ndarray) -> np.ndarray:
    """Tell where one standard deviation is more than three times another."""
    spread = _residuals(logs).std(axis=2)
    return spread.max(axis=1) > 3 * spread.min(axis=1)


def bartlett(logs: np.ndarray) -> np.ndarray:
    """Tell where Bartlett's test finds different variances, at 5%."""
    _, speeds, rounds = logs.shape
    found, degrees = _residuals(logs).var(axis=2), rounds - 1
    statistic = degrees * (speeds * np.log(found.mean(axis=1)) - np.log(found).sum(axis=1))
    return statistic / (1 + (speeds + 1) / (3 * speeds * degrees)) > stats.chi2.ppf(0.95, speeds - 1)


def pooled_unless(differ: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    """Test first: pool where nothing is found."""
    return lambda logs, other: np.where(differ(logs), paired(logs, other), pooled(logs, other))


def separate(logs: np.ndarray, other: int) -> np.ndarray:
    """Each speed has its own variance, found from all (REML, by expectation and maximization); Satterthwaite's t."""
    _, speeds, rounds = logs.shape
    if speeds == 2:
        return paired(logs, other)
    own = _residuals(logs)
    found = np.repeat((own**2).sum(axis=(1, 2))[:, None] / ((speeds - 1) * (rounds - 1)), speeds, axis=1)
    for _ in range(STEPS):
        weight = 1 / found
        total = weight.sum(axis=1)[:, None]
        lasting = (weight[:, :, None] * own).sum(axis=1) / total
        found = ((own - lasting[:, None]) ** 2).sum(axis=2) / (rounds - 1) + 1 / total
    one, two = found[:, 0], found[:, other]
    degrees = (rounds - 1) * np.minimum((one + two) ** 2 / (one**2 + two**2), 2 * (speeds - 2) / (speeds - 1))
    return _half(one + two, np.maximum(degrees, rounds - 1), rounds)


def shrunk(logs: np.ndarray, other: int) -> np.ndarray:
    """Variances of pairs are drawn to each other, as far as they look alike (empirical Bayes: Smyth 2004)."""
    _, speeds, rounds = logs.shape
    if speeds == 2:
        return paired(logs, other)
    degrees = rounds - 1
    found = (logs[:, 1:] - logs[:, :1]).var(axis=2, ddof=1)
    shifted = np.log(found) - special.digamma(degrees / 2) + math.log(degrees / 2)
    excess = np.maximum(shifted.var(axis=1, ddof=1) - special.polygamma(1, degrees / 2), 1e-4)
    prior = 1 / excess + 1  # half the degrees: trigamma's inverse, at first
    for _ in range(20):
        slope = special.polygamma(1, prior)
        prior = prior + slope * (1 - slope / excess) / special.polygamma(2, prior)
    common = np.exp(shifted.mean(axis=1) + special.digamma(prior) - np.log(prior))
    weight = np.minimum(2 * prior, (speeds - 2) * degrees)
    return _half((weight * common + degrees * found[:, other - 1]) / (weight + degrees), weight + degrees, rounds)


ESTIMATORS: dict[str, Estimate] = {
    "paired": paired,
    "pooled": pooled,
    "pooled, unless three-fold": pooled_unless(three_fold),
    "pooled, unless Bartlett's": pooled_unless(bartlett),
    "shrunk": shrunk,
    "separate variances": separate,
}


def main() -> None:
    """Print a line for each estimator."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=5_000, help="comparisons of each kind (5000)")
    cases, rng = parser.parse_args().cases, np.random.default_rng(0)
    held: dict[str, dict[str, float]] = {name: {} for name in ESTIMATORS}
    length: dict[str, dict[str, float]] = {name: {} for name in ESTIMATORS}
    for rounds in ROUNDS:
        for speeds in SPEEDS:
            for noise, logs, others in comparisons(rng, cases, speeds, rounds):
                for other in others:
                    case = f"{rounds} rounds, {speeds} speeds, noise {noise}, of number {other + 1}"
                    apart = np.abs((logs[:, other] - logs[:, 0]).mean(axis=1))
                    usual = np.median(paired(logs, other))
                    for name, estimate in ESTIMATORS.items():
                        half = estimate(logs, other)
                        held[name][case] = float((apart < half).mean())
                        length[name][case] = float(np.median(half) / usual)
    for name, shares in held.items():
        least, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
        equal = [length[name][case] for case in shares if "noise equal" in case]
        print(f"{name}: holds it in {shares[least]:.1%} ({least}) to {shares[most]:.1%} ({most})")
        print(f"  length where noise is equal: {min(equal):.2f} to {max(equal):.2f}")


if __name__ == "__main__":
    main()
