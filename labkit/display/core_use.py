"""How busy each core is while something runs: live in a notebook, then as a picture.

The kernel counts for each CPU how long it has worked (/proc/stat, proc(5)); other people's work is counted too.
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

INTERVAL_S = 0.25  # between two looks; the counters have a resolution of 0.01 s
BUSY = 0.8  # the share of a look from which a core counts as busy
MAX_NAMED = 16  # cores that texts name one by one
UNKNOWN = "The use of the cores is not known: it was over too soon, or /proc/stat does not show them here."


class CoreUse:
    """The use of each core over time.

    Attributes
    ----------
    cpus : tuple of int
        The CPUs that this process may use, by the kernel's numbers.
    times : list of float
        Seconds from the start, at the end of each look.
    shares : list of ndarray
        For each look, the share of the time since the one before for which each CPU worked, 0 to 1.
    """

    def __init__(self, cpus: Sequence[int], root: Path = Path("/")):
        self.cpus = tuple(cpus)
        self.times: list[float] = []
        self.shares: list[np.ndarray] = []
        self._root, self._began = root, time.monotonic()
        self._clock, self._worked = self._began, self._read()

    @property
    def mean(self) -> np.ndarray:
        """The use of each CPU over the whole time."""
        return np.average(self.shares, axis=0, weights=np.diff([0.0, *self.times]))

    @property
    def all_busy(self) -> float:
        """The share of the time for which every CPU was busy, for more than `BUSY` of it; not a number when unknown."""
        if not self.shares:
            return math.nan
        return float(np.average(np.min(self.shares, axis=1) > BUSY, weights=np.diff([0.0, *self.times])))

    def look(self) -> None:
        """Add what the CPUs have done since the last look."""
        clock, worked = time.monotonic(), self._read()
        if clock > self._clock and len(worked):
            self.shares.append(np.clip((worked - self._worked) / (clock - self._clock), 0, 1))
            self.times.append(clock - self._began)
            self._clock, self._worked = clock, worked

    def _read(self) -> np.ndarray:
        """Return the seconds for which each CPU has worked so far; none where they aren't shown."""
        times = cpu_times(self._root)
        if not set(self.cpus) <= times.keys():
            return np.array([])
        mine = [times[cpu] for cpu in self.cpus]
        return np.array([t.user + t.nice + t.system + t.irq + t.softirq for t in mine])


@contextlib.contextmanager
def live(what: str = "while it ran", root: Path = Path("/")) -> Iterator[CoreUse]:
    """Show a bar for each core while the block runs, and at its end a picture of their use over time.

    Parameters
    ----------
    what : str
        What ran, for the picture's title: "Use of each core …".
    root : Path
        Where proc/ is; tests point it at synthetic trees.
    """
    shown = display({"text/html": "", "text/plain": ""}, raw=True, display_id=True)
    seen, over = CoreUse(this_machine().cpus, root), threading.Event()

    def watch() -> None:
        while not over.wait(INTERVAL_S):
            seen.look()
            if seen.shares and shown:  # outside of notebooks there is nothing to update
                shown.update({"text/html": bars(seen), "text/plain": describe(seen.cpus, seen.shares[-1])}, raw=True)

    # In this context, so that what it shows belongs to the cell that is running.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(watch,), daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        seen.look()
    if not seen.shares:
        print(UNKNOWN)
        return
    text = f"Mean use of each core {what}, {seen.times[-1]:.0f} s: {describe(seen.cpus, seen.mean)}"
    if shown:
        shown.update({"text/plain": text}, raw=True)
    plots.show(draw(seen, what), f"{text}.")


def describe(cpus: Sequence[int], shares: Sequence[float] | np.ndarray) -> str:
    """Return the use of each core in words; of many, their mean."""
    if len(cpus) > MAX_NAMED:
        return f"{len(cpus)} cores, {np.mean(shares):.0%} on average"
    return ", ".join(f"core {cpu} {share:.0%}" for cpu, share in zip(cpus, shares, strict=True))


def bars(seen: CoreUse) -> str:
    """Return a bar for each core, as HTML, of the last look."""
    each = "".join(
        f'<span style="display: inline-block; width: 11em">{cpu:3} '
        f'<progress value="{share:.2f}" style="width: 6em"></progress> {share:4.0%}</span>'
        for cpu, share in zip(seen.cpus, seen.shares[-1], strict=True)
    )
    label = html.escape(describe(seen.cpus, seen.shares[-1]))
    return f'<div role="img" aria-label="{label}" style="font-family: monospace; white-space: pre-wrap">{each}</div>'


def draw(seen: CoreUse, what: str) -> Figure:
    """Draw the use of each core over time."""
    plots.use_style()
    figure, axes = plt.subplots(figsize=(10, min(8, 1.6 + 0.45 * len(seen.cpus))))
    picture = axes.pcolormesh(
        [0.0, *seen.times],
        np.arange(len(seen.cpus) + 1),
        100 * np.array(seen.shares).T,
        cmap="cividis",
        vmin=0,
        vmax=100,
    )
    axes.invert_yaxis()
    every = -(-len(seen.cpus) // MAX_NAMED)  # so that the numbers don't overlap
    axes.set_yticks(np.arange(len(seen.cpus))[::every] + 0.5, [str(cpu) for cpu in seen.cpus[::every]])
    axes.grid(False)
    axes.set(xlabel="seconds", ylabel="core", title=f"Use of each core {what}")
    figure.colorbar(picture, label="busy, %")
    return figure
