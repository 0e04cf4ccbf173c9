"""The labs' exercises: the engine that checks answers, and one module per lab."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.exercises.session import open_lab

__all__ = ["open_lab"]

# The checker takes two seconds to import, and a check's ranks don't need it.
__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"session": ["open_lab"]})
