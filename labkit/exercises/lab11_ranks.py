"""Probe for lab 11: train a small network with a student's class. `lab11` starts it on several ranks:

    mpirun -n 3 python lab11_ranks.py ddp|zero1|fsdp SCRIPT

It imports SCRIPT, trains for some steps on this rank's rows, and reports once per rank: how far losses, weights and
states are from one process's on all rows, computed here in double precision, and the traffic.
"""

import contextlib
import importlib
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.exercises.ranks.runner import load, report, watched
from labkit.exercises.ranks.world import World
from labkit.mpi.counting import CountingComm

WORLD = MPI.COMM_WORLD
LAYERS, WIDTH, ROWS, STEPS = 5, 31, 4, 4
BUCKET_LAYERS = 2
WAIT_S = 4.0  # for what a right answer does immediately
RATE, DECAYS, EPSILON = 1e-3, (0.9, 0.999), 1e-8
ALIKE = 1e-4  # tolerance relative to the largest number: float32 sums in any order

State = dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]  # the model's and right arrays, by kind and part


class OneProcess:
    """The same network, trained by one process on all rows, in double precision.

    Attributes
    ----------
    weights, means : list of array
        A layer's weights, and Adam's running mean of its gradient.
    """

    def __init__(self, weights: list[np.ndarray]) -> None:
        self.weights = [weight.astype(float) for weight in weights]
        self.means, self.squares = ([np.zeros_like(weight) for weight in self.weights] for _ in range(2))
        self.steps = 0

    def step(self, x: np.ndarray, target: np.ndarray, ranks: int) -> list[float]:
        """Train by one step, and return the loss of each rank's rows."""
        outputs = [x.astype(float)]
        for weight in self.weights:
            outputs.append(np.maximum(outputs[-1] @ weight, 0))
        error = (outputs[-1] - target) / target.size
        losses = [float((part**2).mean() / 2) for part in np.split(outputs[-1] - target, ranks)]
        self.steps += 1
        for layer in reversed(range(len(self.weights))):
            error = error * (outputs[layer + 1] > 0)
            gradient = outputs[layer].T @ error
            error = error @ self.weights[layer].T
            self.means[layer] += (1 - DECAYS[0]) * (gradient - self.means[layer])
            self.squares[layer] += (1 - DECAYS[1]) * (gradient**2 - self.squares[layer])
            unbiased = [
                moment[layer] / (1 - decay**self.steps)
                for moment, decay in zip((self.means, self.squares), DECAYS, strict=True)
            ]
            self.weights[layer] -= RATE * unbiased[0] / (np.sqrt(unbiased[1]) + EPSILON)
        return losses


class Timed(CountingComm):
    """A counting communicator for one thread at a time, which records whether computing overlaps its calls.

    Answers get a duplicate of WORLD, so that a thread left in a call can't match the probe's own calls.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        super().__init__(comm)
        self.sending = threading.Lock()  # held during a call
        self.held = threading.Event()  # set while calls are held back until the last gradient is computed
        self.begun = threading.Event()  # set when a held call begins
        self.computed = threading.Event()  # set when the last gradient is computed
        self.waited = threading.Event()  # set if computing waited for a held call

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method; a collective operation in one thread at a time."""
        if not re.search("gather|scatter|reduce|toall|bcast", name.lower()):
            return super().call(name, *args, **kwargs)
        if not self.sending.acquire(blocking=False):
            raise RuntimeError(
                f"{name} was called while another thread sends. Ranks may then match different calls: let one thread "
                "send, with self.sender.submit"
            )
        try:
            if self.held.is_set():
                self.begun.set()
                # A nonblocking call needs no second thread: it is in flight.
                if not name.startswith("I") and not self.computed.wait(WAIT_S):
                    self.waited.set()
                    self.computed.set()  # one is enough
            return super().call(name, *args, **kwargs)
        finally:
            self.sending.release()


@contextlib.contextmanager
def calling(script: str, where: str) -> Iterator[None]:
    """Watch a call of a student's class, which must use its own communicator."""
    with watched(script, f"{where} on rank {WORLD.rank} of {WORLD.size}"):
        World.closed = True
        try:
            yield
        finally:
            World.closed = False


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all ranks' inputs and targets of a step; no two ranks have the same."""
    rng = np.random.default_rng([11, step])
    x = rng.standard_normal((ROWS * WORLD.size, WIDTH), np.float32)
    return x, np.abs(x @ rng.standard_normal((WIDTH, WIDTH), np.float32))


def start() -> list[np.ndarray]:
    """Return the initial weights."""
    rng = np.random.default_rng(3)
    return [rng.standard_normal((WIDTH, WIDTH), np.float32) * np.float32((2 / WIDTH) ** 0.5) for _ in range(LAYERS)]


def mine(rows: np.ndarray) -> np.ndarray:
    """Return this rank's rows."""
    return rows[WORLD.rank * ROWS : (WORLD.rank + 1) * ROWS].copy()


def far(array: np.ndarray, right: np.ndarray) -> float:
    """Return the largest difference, as a share of the largest number."""
    if array.shape != right.shape:
        return np.inf
    with np.errstate(all="ignore"):
        return float(np.nan_to_num(np.abs(array - right).max() / np.abs(right).max(), nan=np.inf, posinf=1e9))


def scale(array: np.ndarray, right: np.ndarray) -> float:
    """Return the factor by which an array is closest to the right one."""
    return float(np.nan_to_num((array * right).sum() / (right * right).sum()))


def train(
    script: str, model: Any, comm: CountingComm, state_of: Callable[[OneProcess], State], replicas: Callable[[], Any]
) -> dict[str, Any]:
    """Train for some steps; return the losses, one process's, the first array that is off, and a step's traffic.

    Parameters
    ----------
    state_of : callable
        Returns pairs of the model's and the right array, by kind ("the weights") and by part ("layer 3").
    replicas : callable
        Returns a list of the arrays that all ranks hold; it may be empty.
    """
    reference = OneProcess(start())
    findings: dict[str, Any] = {"losses": [], "right": [], "wrong": None}
    for step in range(1, STEPS + 1):
        x, target = batch(step - 1)
        comm.reset()
        with calling(script, f"in step {step} of training,"):
            loss = model.step(mine(x), mine(target))
        WORLD.Barrier()
        findings["sent"], findings["collectives"] = comm.bytes_sent(), len(comm.collectives)
        findings["pickled"] = sum(name.islower() for name, _ in comm.collectives)
        before = {
            (what, part): far(*pair) for what, pairs in state_of(reference).items() for part, pair in pairs.items()
        }
        is_number = np.ndim(loss) == 0 and loss is not None
        findings["losses"].append(float(loss) if is_number else f"of type {type(loss).__name__}")
        findings["right"].append(reference.step(x, target, WORLD.size)[WORLD.rank])
        first, *others = WORLD.allgather(flat([*replicas(), np.ones(1)]))
        if findings["wrong"] is None and (wrong := first_off(state_of(reference))):
            differ = [rank for rank, other in enumerate(others, 1) if far(other, first) > ALIKE]
            unchanged = before.get((wrong["what"], wrong.get("parts", [""])[0]), 1) < ALIKE
            findings["wrong"] = wrong | {"step": step, "unchanged": unchanged, "differ": differ}
    return findings


def first_off(state: State) -> dict[str, Any] | None:
    """Return the first of the model's arrays that is off, by how much, and the other parts that are off."""
    for what, pairs in state.items():
        sizes = [sum(np.size(pair[side]) for pair in pairs.values()) for side in (0, 1)]
        if sizes[0] != sizes[1]:
            return {"what": what, "sizes": sizes}
        off = {part: far(*pair) for part, pair in pairs.items()}
        if parts := [part for part in off if off[part] > ALIKE]:
            first = parts[0]
            return {"what": what, "parts": parts, "off": off[first], "scale": scale(*pairs[first])}
    return None


def by_layer(arrays: list[np.ndarray], right: list[np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return each layer's array, flat, and the right one."""
    return {
        f"layer {layer}": (np.ravel(array), np.ravel(expected))
        for layer, (array, expected) in enumerate(zip(arrays, right, strict=True))
    }


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    """Return arrays as one vector."""
    return np.concatenate([np.ravel(array) for array in arrays])


def ddp_findings(script: str) -> dict[str, Any]:
    """Return findings about the class `DDP`; the last step is watched for sending while computing."""
    mlp: Any = importlib.import_module("mlp")
    computed, compute = [0], mlp.backward
    late = []
    comm = Timed(WORLD.Dup())

    def watched_backward(*args: Any, **kwargs: Any) -> Any:
        if comm.held.is_set():
            if computed[0] == BUCKET_LAYERS and not comm.begun.wait(WAIT_S):
                late.append(computed[0])
            computed[0] += 1
            if computed[0] == LAYERS:
                comm.computed.set()
        return compute(*args, **kwargs)

    mlp.backward = watched_backward
    (student_class,) = load(script, "DDP")
    limit = BUCKET_LAYERS * 4 * WIDTH**2
    with calling(script, "in __init__"):
        model = student_class(comm, start(), limit)

    def state_of(reference: OneProcess) -> State:
        return {
            "the weights": by_layer(model.weights, reference.weights),
            "Adam's means of the gradients": by_layer([state.mean for state in model.states], reference.means),
        }

    findings = train(script, model, comm, state_of, lambda: model.weights)
    findings["buckets"] = -(-LAYERS // BUCKET_LAYERS)
    x, target = batch(STEPS)
    comm.held.set()
    with calling(script, "in a step of training,"):
        model.step(mine(x), mine(target))
    WORLD.Barrier()
    return findings | {"waited": comm.waited.is_set(), "late": bool(late)}


def zero1_findings(script: str) -> dict[str, Any]:
    """Return findings about the class `ZeRO1`."""
    (student_class,) = load(script, "ZeRO1")
    comm = Timed(WORLD.Dup())
    with calling(script, "in __init__"):
        model = student_class(comm, start())
    share = -(-LAYERS * WIDTH**2 // WORLD.size)

    def shards(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return np.split(np.pad(flat(arrays), (0, share * WORLD.size - LAYERS * WIDTH**2)), WORLD.size)

    def state_of(reference: OneProcess) -> State:
        actual, right = shards(model.weights), shards(reference.weights)
        return {
            "the weights": {f"rank {rank}'s shard": (actual[rank], right[rank]) for rank in range(WORLD.size)},
            "Adam's means of the gradients": {
                f"rank {WORLD.rank}'s shard": (model.state.mean, shards(reference.means)[WORLD.rank])
            },
        }

    findings = train(script, model, comm, state_of, lambda: model.weights)
    return findings | {"least": 2 * (WORLD.size - 1) * 4 * share}


class Alive:
    """Counts the arrays it has seen that exist at the same time."""

    def __init__(self) -> None:
        self.peak = 0
        self._arrays: list[weakref.ref[np.ndarray]] = []

    def see(self, array: np.ndarray) -> None:
        """Count an array until it is freed."""
        self._arrays.append(weakref.ref(array))
        self.peak = max(self.peak, self.count())

    def count(self) -> int:
        """Return the number of arrays that exist."""
        return sum(ref() is not None for ref in self._arrays)


def fsdp_findings(script: str) -> dict[str, Any]:
    """Return findings about the class `FSDP`: its peak memory, and whether weights are gathered during computing."""
    mlp: Any = importlib.import_module("mlp")
    backward, loss_and_error = mlp.backward, mlp.loss_and_error
    gathering, computing = ([threading.Event() for _ in range(LAYERS + 1)] for _ in range(2))  # by layer
    weights, gradients = Alive(), Alive()
    alone: list[int] = []  # layers whose weights were not gathered while the one above computed
    in_backward, computed = [False], [0]

    def meet(event: threading.Event, other: threading.Event, layer: int) -> None:
        event.set()
        if in_backward[0] and not alone and not other.wait(WAIT_S):
            alone.append(layer)

    def watched_backward(*args: Any, **kwargs: Any) -> Any:
        layer, computed[0] = LAYERS - 1 - computed[0], computed[0] + 1
        if layer > 0:
            meet(computing[layer], gathering[layer - 1], layer - 1)
        gradient, error = backward(*args, **kwargs)
        gradients.see(gradient)
        return gradient, error

    def watched_loss(*args: Any, **kwargs: Any) -> Any:
        for event in (*gathering, *computing):
            event.clear()
        in_backward[0], computed[0] = True, 0
        return loss_and_error(*args, **kwargs)

    mlp.backward, mlp.loss_and_error = watched_backward, watched_loss
    (student_class,) = load(script, "FSDP")
    gather = student_class.gather  # type: ignore[attr-defined]

    def watched_gather(self: Any, layer: int) -> Any:
        meet(gathering[layer], computing[layer + 1], layer)
        whole = gather(self, layer)
        weights.see(whole)
        return whole

    student_class.gather = watched_gather  # type: ignore[attr-defined]
    comm = Timed(WORLD.Dup())
    with calling(script, "in __init__"):
        model = student_class(comm, start())
    share = -(-(WIDTH**2) // WORLD.size)

    def shards(layers: list[np.ndarray]) -> list[np.ndarray]:
        padded = [np.pad(layer.ravel(), (0, share * WORLD.size - WIDTH**2)) for layer in layers]
        return [layer[WORLD.rank * share : (WORLD.rank + 1) * share] for layer in padded]

    def state_of(reference: OneProcess) -> State:
        in_backward[0] = False  # after each step
        return {
            "this rank's shard of the weights": by_layer(model.shares, shards(reference.weights)),
            "Adam's means of the gradients": by_layer([state.mean for state in model.states], shards(reference.means)),
        }

    findings = train(script, model, comm, state_of, list)
    findings |= {"weights": weights.peak, "gradients": gradients.peak, "stored": weights.count(), "alone": alone}
    return findings | {"least": (3 * LAYERS - 1) * (WORLD.size - 1) * 4 * share}


KINDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "ddp": ddp_findings,
    "zero1": zero1_findings,
    "fsdp": fsdp_findings,
}


def main() -> None:
    """Run the script, and report the findings."""
    kind, script = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    MPI.COMM_WORLD = World(WORLD)  # type: ignore[misc]  # for the script, which gets its own communicator
    report(KINDS[kind](script))


if __name__ == "__main__":
    main()
