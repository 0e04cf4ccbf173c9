"""The classroom tools: lectures, the room's board, and one server for the class."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit_classroom.board.seat import hand, join, leave

__all__ = ["hand", "join", "leave"]

__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"board.seat": ["hand", "join", "leave"]})
