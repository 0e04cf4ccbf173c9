"""The labs' exercises: one module a lab decides whether an answer does what it should; `core` is what they share."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.exercises.session import open_lab

__all__ = ["open_lab"]

# `core` takes two seconds to import, which the ranks of a check don't need.
__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"session": ["open_lab"]})
