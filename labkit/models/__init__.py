"""The networks of the labs: their registry, their architectures, and the MNIST CNN in Keras."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.models.mnist import mnist_cnn
    from labkit.models.networks import Network

__all__ = ["Network", "mnist_cnn"]

__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"mnist": ["mnist_cnn"], "networks": ["Network"]})
