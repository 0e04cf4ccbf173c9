"""The classroom: lectures, the board of a room, one server for all."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit_classroom.board.seat import hand, join, leave

__all__ = ["hand", "join", "leave"]

__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"board.seat": ["hand", "join", "leave"]})
