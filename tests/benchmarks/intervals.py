"""How often intervals that are called 95% hold the true ratio, and how long they are, by how they are made.

    python tests/benchmarks/intervals.py [--cases 5000]

Prints for each estimator the least and the largest share of intervals that hold it, over all noise of
`noisy_rounds`, 3 to 8 rounds and 2 to 8 speeds, and the length of its intervals relative to those of
`labkit.system.statistics`, the paired ones. Then, for launches of which some are at a third of the others' speed, how
often equal speeds are called different: by the interval alone, and by the verdict, which is by rank with outliers.
About three minutes with 5,000 comparisons of each kind of noise.
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


ESTIMATORS: dict[str, Estimate] = {
    "paired": paired,
    "pooled": pooled,
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
    for slow in (0.0, 0.1, 0.2, 0.3):
        for rounds in ROUNDS:
            found = [ratio(*pair) for pair in launches(rng, cases, rounds, slow)]
            alone = np.mean([not one.low <= 1 <= one.high for one in found])
            verdict = np.mean([one.significant for one in found])
            print(
                f"{slow:.0%} slow launches, {rounds} rounds: {alone:.1%} by the interval, {verdict:.1%} by the verdict"
            )


if __name__ == "__main__":
    main()
