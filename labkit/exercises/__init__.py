"""The labs' exercises: one module per lab checks its answers; `core` is what they share."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.exercises.session import open_lab

__all__ = ["open_lab"]

# `core` takes two seconds to import, and a check's ranks don't need it.
__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"session": ["open_lab"]})
