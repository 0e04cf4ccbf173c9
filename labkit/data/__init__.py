"""The labs' data: handwritten digits and photos."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.data.digits import load_digits
    from labkit.data.photos import load_photo

__all__ = ["load_digits", "load_photo"]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__, submod_attrs={"digits": ["load_digits"], "photos": ["load_photo"]}
)
