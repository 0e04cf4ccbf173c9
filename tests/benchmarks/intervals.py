"""Measure the coverage and length of 95% confidence intervals, by estimator.

    python tests/benchmarks/intervals.py [--cases 5000]

Prints for each estimator the lowest and highest coverage of the true ratio, over all noise of `noisy_rounds`, 3 to 8
rounds and 2 to 8 speeds, and the length of its intervals relative to those of `labkit.system.statistics`, the paired
ones. Then, for launches of which some run at a third of the others' speed, the false-positive rates for equal speeds:
by the interval alone, and by the verdict, which is by rank with outliers.
Takes about three minutes with 5,000 comparisons of each kind of noise.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from noisy_rounds import comparisons, launches
from scipy import stats

from labkit.system.statistics import interval, ratio

ROUNDS, SPEEDS = (3, 4, 5, 6, 8), (2, 3, 5, 8)

Estimate = Callable[[np.ndarray, int], np.ndarray]  # half the interval of each case, from (cases, speeds, rounds)


def paired(logs: np.ndarray, other: int) -> np.ndarray:
    """Use each pair's own noise: Student's paired t."""
    return interval(logs[:, other] - logs[:, 0])[1]


def _half(variance: np.ndarray, degrees: np.ndarray | float, rounds: int) -> np.ndarray:
    return stats.t.ppf(0.975, degrees) * np.sqrt(variance / rounds)


def _residuals(logs: np.ndarray) -> np.ndarray:
    centred = logs - logs.mean(axis=2, keepdims=True)
    return centred - centred.mean(axis=1, keepdims=True)


def pooled(logs: np.ndarray, other: int) -> np.ndarray:
    """Assume the same noise for all: two-way analysis of variance without interaction."""
    _, speeds, rounds = logs.shape
    degrees = (speeds - 1) * (rounds - 1)
    return _half(2 * (_residuals(logs) ** 2).sum(axis=(1, 2)) / degrees, degrees, rounds)


ESTIMATORS: dict[str, Estimate] = {
    "paired": paired,
    "pooled": pooled,
}


def main() -> None:
    """Print coverage and length for each estimator, then false-positive rates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=5_000, help="comparisons of each kind (5000)")
    cases, rng = parser.parse_args().cases, np.random.default_rng(0)
    coverage: dict[str, dict[str, float]] = {name: {} for name in ESTIMATORS}
    length: dict[str, dict[str, float]] = {name: {} for name in ESTIMATORS}
    for rounds in ROUNDS:
        for speeds in SPEEDS:
            for noise, logs, others in comparisons(rng, cases, speeds, rounds):
                for other in others:
                    case = f"{rounds} rounds, {speeds} speeds, noise {noise}, of number {other + 1}"
                    distance = np.abs((logs[:, other] - logs[:, 0]).mean(axis=1))
                    paired_length = np.median(paired(logs, other))
                    for name, estimate in ESTIMATORS.items():
                        half = estimate(logs, other)
                        coverage[name][case] = float((distance < half).mean())
                        length[name][case] = float(np.median(half) / paired_length)
    for name, shares in coverage.items():
        lowest, highest = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
        equal = [length[name][case] for case in shares if "noise equal" in case]
        print(f"{name}: coverage {shares[lowest]:.1%} ({lowest}) to {shares[highest]:.1%} ({highest})")
        print(f"  length with equal noise: {min(equal):.2f} to {max(equal):.2f}")
    for slow in (0.0, 0.1, 0.2, 0.3):
        for rounds in ROUNDS:
            ratios = [ratio(*pair) for pair in launches(rng, cases, rounds, slow)]
            by_interval = np.mean([not result.low <= 1 <= result.high for result in ratios])
            by_verdict = np.mean([result.significant for result in ratios])
            print(
                f"{slow:.0%} slow launches, {rounds} rounds: false positives {by_interval:.1%} by the interval, "
                f"{by_verdict:.1%} by the verdict"
            )


if __name__ == "__main__":
    main()
