"""CPU use per core while a block runs: live in a notebook, then as a picture.

The kernel counts each CPU's busy time (/proc/stat, proc(5)), including other users' work.
"""

import contextlib
import contextvars
import html
import math
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from matplotlib.figure import Figure

from labkit.display import plots
from labkit.system.load import cpu_times
from labkit.system.machine import this_machine

INTERVAL_S = 0.25  # between samples; the counters have a resolution of 0.01 s
BUSY = 0.8  # a core counts as busy in a sample above this share
MAX_NAMED = 16  # cores that texts list one by one
UNKNOWN = "CPU use is unknown: the run was too short, or /proc/stat does not show these cores."


class CoreUse:
    """CPU use per core over time.

    Attributes
    ----------
    cpus : tuple of int
        The CPUs that this process may use, as the kernel numbers them.
    times : list of float
        Seconds from the start to each sample.
    shares : list of ndarray
        For each sample, the share of time that each CPU was busy since the previous one, 0 to 1.
    """

    def __init__(self, cpus: Sequence[int], root: Path = Path("/")):
        self.cpus = tuple(cpus)
        self.times: list[float] = []
        self.shares: list[np.ndarray] = []
        self._root, self._began = root, time.monotonic()
        self._clock, self._busy_s = self._began, self._read()

    @property
    def mean(self) -> np.ndarray:
        """The mean use of each CPU."""
        return np.average(self.shares, axis=0, weights=np.diff([0.0, *self.times]))

    @property
    def all_busy(self) -> float:
        """The share of time with every CPU busy, above `BUSY`; NaN if unknown."""
        if not self.shares:
            return math.nan
        return float(np.average(np.min(self.shares, axis=1) > BUSY, weights=np.diff([0.0, *self.times])))

    def sample(self) -> None:
        """Record the CPU use since the last sample."""
        clock, busy_s = time.monotonic(), self._read()
        if clock > self._clock and len(busy_s):
            self.shares.append(np.clip((busy_s - self._busy_s) / (clock - self._clock), 0, 1))
            self.times.append(clock - self._began)
            self._clock, self._busy_s = clock, busy_s

    def _read(self) -> np.ndarray:
        """Return the busy seconds of each CPU so far; empty if the kernel doesn't show them."""
        times = cpu_times(self._root)
        if not set(self.cpus) <= times.keys():
            return np.array([])
        return np.array([t.user + t.nice + t.system + t.irq + t.softirq for t in map(times.__getitem__, self.cpus)])


@contextlib.contextmanager
def live(what: str = "while it ran", root: Path = Path("/")) -> Iterator[CoreUse]:
    """Show a bar per core while the block runs, then a picture of their use over time.

    Parameters
    ----------
    what : str
        What ran, for the picture's title: "CPU use per core …".
    root : Path
        The folder that contains proc/; tests point it at synthetic trees.
    """
    handle = display({"text/html": "", "text/plain": ""}, raw=True, display_id=True)
    use, done = CoreUse(this_machine().cpus, root), threading.Event()

    def watch() -> None:
        while not done.wait(INTERVAL_S):
            use.sample()
            if use.shares and handle:  # outside notebooks there is nothing to update
                handle.update({"text/html": bars(use), "text/plain": describe(use.cpus, use.shares[-1])}, raw=True)

    # In this context, so that its output belongs to the running cell.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(watch,), daemon=True)
    thread.start()
    try:
        yield use
    finally:
        done.set()
        thread.join()
        use.sample()
    if not use.shares:
        print(UNKNOWN)
        return
    text = f"Mean CPU use per core {what}, {use.times[-1]:.0f} s: {describe(use.cpus, use.mean)}"
    if handle:
        handle.update({"text/plain": text}, raw=True)
    plots.show(draw(use, what), f"{text}.")


def describe(cpus: Sequence[int], shares: Sequence[float] | np.ndarray) -> str:
    """Describe the use of each core in words; for many cores, their mean."""
    if len(cpus) > MAX_NAMED:
        return f"{len(cpus)} cores, {np.mean(shares):.0%} on average"
    return ", ".join(f"core {cpu} {share:.0%}" for cpu, share in zip(cpus, shares, strict=True))


def bars(use: CoreUse) -> str:
    """Return the last sample as HTML, one bar per core."""
    cores = "".join(
        f'<span style="display: inline-block; width: 11em">{cpu:3} '
        f'<progress value="{share:.2f}" style="width: 6em"></progress> {share:4.0%}</span>'
        for cpu, share in zip(use.cpus, use.shares[-1], strict=True)
    )
    label = html.escape(describe(use.cpus, use.shares[-1]))
    return f'<div role="img" aria-label="{label}" style="font-family: monospace; white-space: pre-wrap">{cores}</div>'


def draw(use: CoreUse, what: str) -> Figure:
    """Draw the use of each core over time."""
    plots.use_style()
    figure, axes = plt.subplots(figsize=(10, min(8, 1.6 + 0.45 * len(use.cpus))))
    picture = axes.pcolormesh(
        [0.0, *use.times],
        np.arange(len(use.cpus) + 1),
        100 * np.array(use.shares).T,
        cmap="cividis",
        vmin=0,
        vmax=100,
    )
    axes.invert_yaxis()
    stride = -(-len(use.cpus) // MAX_NAMED)  # so that the numbers don't overlap
    axes.set_yticks(np.arange(len(use.cpus))[::stride] + 0.5, [str(cpu) for cpu in use.cpus[::stride]])
    axes.grid(False)
    axes.set(xlabel="seconds", ylabel="core", title=f"CPU use per core {what}")
    figure.colorbar(picture, label="busy, %")
    return figure
