"""Measurements: run variants alternately, get figures with intervals, compare them, and read recorded ones."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.measure.alternation import alternate, per_second
    from labkit.measure.background import Background
    from labkit.measure.comparison import compare, share
    from labkit.measure.figures import Measured, Source
    from labkit.measure.recordings import record, recorded

__all__ = ["Background", "Measured", "Source", "alternate", "compare", "per_second", "record", "recorded", "share"]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "alternation": ["alternate", "per_second"],
        "background": ["Background"],
        "comparison": ["compare", "share"],
        "figures": ["Measured", "Source"],
        "recordings": ["record", "recorded"],
    },
)
