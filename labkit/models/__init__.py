"""The networks of the labs, each once."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.models.mnist import mnist_cnn

__all__ = ["mnist_cnn"]

__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"mnist": ["mnist_cnn"]})
