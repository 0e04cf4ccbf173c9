"""Measure in the background: one cell starts an alternation, and a later cell waits for its figures."""

import threading
from collections.abc import Callable, Mapping

from labkit.measure.alternation import alternate
from labkit.measure.figures import Measured
from labkit.system.terminal import progress

SHOW_PROGRESS_S = 5.0


class Background:
    """An alternation that runs in a thread, while its notebook continues.

    Its variants start processes: work of this process on the cores isn't noticed as contention. Another alternation
    waits until this one is done.

    Parameters
    ----------
    variants, rounds, unit, where
        As for `alternate`.
    """

    def __init__(self, variants: Mapping[str, Callable[[], float]], rounds: int, unit: str = "", where: str = ""):
        self._figures: dict[str, Measured] = {}
        self._error: BaseException | None = None
        self._line = "another measurement is still running"
        self._arguments = dict(variants), rounds, unit, where
        self._thread = threading.Thread(target=self._measure, name="background", daemon=True)
        self._thread.start()

    def figures(self) -> dict[str, Measured]:
        """Wait for the figures, showing the progress, and return them.

        Raises
        ------
        LabError
            If a variant failed.
        """
        shown = ""
        with progress("Waiting …") as report:
            self._thread.join(SHOW_PROGRESS_S)
            while self._thread.is_alive():
                if self._line != shown:
                    report(shown := self._line)
                self._thread.join(SHOW_PROGRESS_S)
        if self._error:
            raise self._error
        return self._figures

    def _measure(self) -> None:
        try:
            self._figures = alternate(*self._arguments, on_progress=self._report)
        except BaseException as error:  # raised in the cell that waits
            self._error = error

    def _report(self, line: str) -> None:
        self._line = line
