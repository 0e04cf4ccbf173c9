"""The room: what an instructor needs before the day, and what joins students and instructor on it."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.room.seat import hand, join, leave

__all__ = ["hand", "join", "leave"]

__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"seat": ["hand", "join", "leave"]})
