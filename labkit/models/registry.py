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
SYNTHETIC_CLASSES = 11  # ten, also numbered from 1


def _imagenet(layers: Layers, side: int = 224) -> Model:
    return Model(layers, (side, side, 3), IMAGENET_CLASSES)


def _small(layers: Layers) -> Model:
    return Model(layers, (32, 32, 3), SYNTHETIC_CLASSES)


MODELS = {
    "resnet50": _imagenet(architectures.resnet((3, 4, 6, 3), IMAGENET_CLASSES, stride_in_3x3=False)),
    "resnet50_v1.5": _imagenet(architectures.resnet((3, 4, 6, 3), IMAGENET_CLASSES, stride_in_3x3=True)),
    "resnet8": _small(architectures.small_resnet(1, SYNTHETIC_CLASSES)),
    "resnet20": _small(architectures.small_resnet(3, SYNTHETIC_CLASSES)),
    "inception3": _imagenet(architectures.inception3(IMAGENET_CLASSES), side=299),
    "mnist": Model(architectures.mnist(10), (28, 28, 1), 10),
}
