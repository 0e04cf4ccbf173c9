"""A rank's two lanes for lab 11's checks: layers and a slow sender, which note the order of what happens."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np


class Notes:
    """The notes of a rank's layers and sender during a call.

    Attributes
    ----------
    events : list of (str, int)
        Each "compute" and "update" of a layer, each "submit" and "wait" of the sender's n-th call, "send" if that used
        the communicator, and "gather" if it returned whole weights.
    means : dict of int to array
        What each layer was updated with.
    mixed : list of str
        Arguments of `backward` that were another layer's.
    peaks : dict of str to int
        The most whole gradients, and whole weights, that existed at the same time.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.means: dict[int, np.ndarray] = {}
        self.mixed: list[str] = []
        self.peaks = {"gradients": 0, "weights": 0}
        self._alive: dict[str, list[weakref.ref[np.ndarray]]] = {"gradients": [], "weights": []}

    def see(self, what: str, array: np.ndarray) -> None:
        """Count an array until it is freed."""
        self._alive[what] = [ref for ref in self._alive[what] if ref() is not None] + [weakref.ref(array)]
        self.peaks[what] = max(self.peaks[what], len(self._alive[what]))

    def of(self, *kinds: str) -> list[int]:
        """Return the numbers of all events of some kinds, in order."""
        return [number for kind, number in self.events if kind in kinds]

    def at(self, kind: str, number: int) -> int:
        """Return the position of the last such event."""
        return max(at for at, event in enumerate(self.events) if event == (kind, number))

    def __getstate__(self) -> dict[str, Any]:
        """Return the content of copies and messages, without references to arrays that are counted."""
        return vars(self) | {"_alive": {"gradients": [], "weights": []}}


class Layer:
    """A layer whose gradient is known, unless it gets another layer's error or weights."""

    def __init__(self, number: int, gradient: np.ndarray, whole: np.ndarray, mine: np.ndarray, notes: Notes):
        self.number, self.weights, self.notes, self.gradient, self._whole = number, mine, notes, gradient, whole

    def backward(self, error: np.ndarray, whole: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return a new gradient, and the error of the layer before."""
        if not np.array_equal(error, np.full(2, self.number + 1, np.float32)):
            self.notes.mixed.append(f"the error of layer {self.number}")
        if whole is not None and not np.array_equal(np.ravel(whole), self._whole.ravel()):
            self.notes.mixed.append(f"the weights of layer {self.number}")
        gradient = self.gradient.copy()
        self.notes.see("gradients", gradient)
        self.notes.events.append(("compute", self.number))
        return gradient, np.full(2, self.number, np.float32)

    def update(self, mean: np.ndarray) -> None:
        """Note the mean."""
        if not isinstance(mean, np.ndarray):
            raise TypeError(f"update needs an array, not a {type(mean).__name__}")
        self.notes.events.append(("update", self.number))
        self.notes.means[self.number] = np.array(mean, np.float32).ravel()


class Future:
    """The result of a call that is made only when something waits for it."""

    def __init__(self, sender: "Sender", number: int):
        self._sender, self._number = sender, number
        self.results: list[Any] = []  # one, once the call has been made

    def result(self) -> Any:
        """Let the sender make all calls up to this one, and return its result."""
        self._sender.notes.events.append(("wait", self._number))
        while not self.results:
            self._sender.call_next()
        return self.results[0]


class Sender:
    """The slowest possible sender: it makes a call only when something waits for it or a later one."""

    def __init__(self, notes: Notes, weights: np.ndarray):
        self.notes, self._weights, self._submitted = notes, weights, 0
        self._queue: list[tuple[weakref.ref[Future], int, Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Put a call into the queue."""
        future, self._submitted = Future(self, self._submitted), self._submitted + 1
        self.notes.events.append(("submit", self._submitted - 1))
        self._queue.append((weakref.ref(future), self._submitted - 1, function, arguments))
        return future

    def call_next(self) -> None:
        """Make the next call."""
        future, number, function, arguments = self._queue.pop(0)
        result = function(*arguments)
        captured = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        if any(hasattr(part, "collectives") for part in (*arguments, *captured)):
            self.notes.events.append(("send", number))
        if isinstance(result, np.ndarray) and any(np.array_equal(result, whole.ravel()) for whole in self._weights):
            self.notes.events.append(("gather", number))
            self.notes.see("weights", result)
        if waiting := future():  # without its future, a result is dropped
            waiting.results.append(result)

    def __getstate__(self) -> dict[str, Any]:
        """Return the content of copies and messages, without calls."""
        return vars(self) | {"_submitted": 0, "_queue": []}
