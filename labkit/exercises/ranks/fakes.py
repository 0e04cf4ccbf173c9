"""A small training in NumPy, in one process and on ranks, right or with one of the faults that lab 07 is about.

Its objects have the functions of lab 07's scripts: `start`, `step` and `weights`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

FAULTS = {
    "averages no gradients": "the weights of *every* rank",
    "broadcasts no start": "the weights of *every* rank",
    "trains on rank 0's digits on every rank": "one process that takes the digits of *all* ranks",
    "sums gradients": "the learning rate that you get",
    "reports the metrics of this rank only": "loss and accuracy, as every rank reports them",
    "skips the step on the last rank": "the weights of *every* rank",
}
RATE, INPUTS, CLASSES = 0.05, 20, 10


class Network:
    """A layer in NumPy that learns synthetic digits: `start`, `step` and `weights` as in the lab's scripts."""

    def __init__(self, digits: int) -> None:
        rng = np.random.default_rng(1)
        self._x = rng.standard_normal((digits, INPUTS)).astype(np.float32)
        self._y = rng.integers(0, CLASSES, digits)

    def _own(self, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [rng.normal(0, 0.3, shape).astype(np.float32) for shape in ((INPUTS, CLASSES), (CLASSES,))]

    def _gradients(self, weights: list[np.ndarray], chosen: np.ndarray) -> tuple[list[np.ndarray], list[float]]:
        """Return the gradients, and loss and accuracy."""
        x, y = self._x[chosen], self._y[chosen]
        logits = x @ weights[0] + weights[1]
        right = float((logits.argmax(axis=1) == y).mean())
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = float(-np.log(p[np.arange(len(y)), y]).mean())
        p[np.arange(len(y)), y] -= 1
        return [x.T @ p / np.float32(len(y)), p.mean(axis=0)], [loss, right]

    def weights(self) -> list[np.ndarray]:
        """Return a copy of the weights."""
        return [layer.copy() for layer in self._weights]

    _weights: list[np.ndarray]


class OneProcess(Network):
    """The training in one process."""

    def start(self, weights: Sequence[np.ndarray] | None = None) -> None:
        """Begin with these weights, or with random ones."""
        self._weights = self._own(99) if weights is None else [np.array(layer, np.float32) for layer in weights]

    def step(self, chosen: Any, rate: float = RATE) -> dict[str, float]:
        """Train on these digits, and return the metrics."""
        gradients, metrics = self._gradients(self._weights, np.asarray(chosen))
        for layer, gradient in zip(self._weights, gradients, strict=True):
            layer -= np.float32(rate) * gradient
        return dict(zip(("loss", "accuracy"), metrics, strict=True))


class Ranks(Network):
    """One rank's view of a run on several, which it computes without messages; `fault` is one of FAULTS, or empty."""

    def __init__(self, fault: str, rank: int, shares: Sequence[np.ndarray], digits: int) -> None:
        super().__init__(digits)
        self.fault, self._rank, self._shares = fault, rank, shares

    def start(self) -> None:
        """Begin with this rank's weights, or with those of rank 0."""
        seeds = [rank if self.fault == "broadcasts no start" else 0 for rank in range(len(self._shares))]
        self._all = [self._own(seed) for seed in seeds]
        self._weights = self._all[self._rank]

    def step(self, number: int) -> dict[str, float]:
        """Take the first step, and return the metrics."""
        if number != 0:
            raise ValueError("this run of the check has step 0 only")
        shares = self._shares if "digits" not in self.fault else [self._shares[0]] * len(self._shares)
        steps = [self._gradients(*of_rank) for of_rank in zip(self._all, shares, strict=True)]
        gradients = [
            np.asarray(sum(layer) / np.float32(len(layer))) for layer in zip(*(step[0] for step in steps), strict=True)
        ]
        if "averages" in self.fault:
            gradients = steps[self._rank][0]
        factor = RATE * (len(shares) if "sums" in self.fault else 1.0)
        if "skips" in self.fault and self._rank == len(shares) - 1:
            factor = 0.0
        self._weights = [
            layer - np.float32(factor) * gradient for layer, gradient in zip(self._weights, gradients, strict=True)
        ]
        metrics = steps[self._rank][1] if "metrics" in self.fault else np.mean([step[1] for step in steps], axis=0)
        return dict(zip(("loss", "accuracy"), map(float, metrics), strict=True))
