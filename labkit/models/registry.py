"""Registry of networks: their names, inputs, and numbers of classes.

It doesn't import TensorFlow: programs read their choices of `--model` from it before they import anything slow.
"""

from typing import NamedTuple

from labkit.models import architectures
from labkit.models.architectures import Layers


class Model(NamedTuple):
    """A network that can be built by name.

    Attributes
    ----------
    layers : callable
        Takes a `layers.Pass` and the images, returns the logits.
    shape : tuple of int
        (height, width, channels) of an image.
    classes : int
        The number of classes.
    """

    layers: Layers
    shape: tuple[int, int, int]
    classes: int


IMAGENET_CLASSES = 1001  # ImageNet's TFRecords number them from 1 to 1,000
SMALL_CLASSES = 11  # ten, also numbered from 1

MODELS = {
    "resnet50": Model(architectures.resnet50(IMAGENET_CLASSES), (224, 224, 3), IMAGENET_CLASSES),
    "resnet8": Model(architectures.resnet8(SMALL_CLASSES), (32, 32, 3), SMALL_CLASSES),
    "mnist": Model(architectures.mnist(10), (28, 28, 1), 10),
}
