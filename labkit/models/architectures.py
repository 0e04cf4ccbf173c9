"""Network architectures: their layers, in order.

Each function returns a network's layers: a function that takes a `Pass` and the images, and returns the logits. Nothing
here imports TensorFlow, so programs can list their models before they load it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.models.layers import Pass

Layers = Callable[["Pass", Any], Any]


def resnet50(classes: int) -> Layers:
    """Return ResNet-50, with bottleneck blocks (He et al. 2015, arXiv 1512.03385).

    The first block of stages 2 to 4 halves height and width in its first 1×1 convolution.
    """

    def bottleneck(net: "Pass", x: Any, filters: int, stride: int) -> Any:
        """Return the sum of a block's output, 4 × filters channels, and its input."""
        shortcut = x
        if stride > 1 or x.shape[-1] != 4 * filters:  # the shapes of input and output differ
            shortcut = net.conv_norm(shortcut, 4 * filters, 1, stride, relu=False)
        x = net.conv_norm(x, filters, 1, stride)  # convolution, batch norm, ReLU
        x = net.conv_norm(x, filters, 3)
        x = net.conv_norm(x, 4 * filters, 1, relu=False)
        return net.relu(x + shortcut)

    def layers(net: "Pass", images: Any) -> Any:
        """Return the logits of a batch of images."""
        x = net.max_pool(net.conv_norm(images, 64, 7, 2), 3, 2)
        for stage, count in enumerate((3, 4, 6, 3)):
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                x = bottleneck(net, x, 64 * 2**stage, stride)
        return net.dense(net.average(x), classes)

    return layers


def resnet8(classes: int) -> Layers:
    """Return the smallest ResNet of section 4.2 of the same paper, for 32×32 images: 3 blocks of two 3×3 convolutions.

    The shortcut of a strided block is also a convolution; the paper's has no weights.
    """

    def layers(net: "Pass", images: Any) -> Any:
        x = net.conv_norm(images, 16, 3)
        for filters in (16, 32, 64):
            shortcut = x
            stride = 2 if filters > x.shape[-1] else 1
            if stride > 1:
                shortcut = net.conv_norm(shortcut, filters, 1, stride, relu=False)
            x = net.conv_norm(net.conv_norm(x, filters, 3, stride), filters, 3, relu=False)
            x = net.relu(x + shortcut)
        return net.dense(net.average(x), classes)

    return layers


def mnist(classes: int) -> Layers:
    """Return the MNIST CNN of the labs, the same as in Keras in labkit/models/mnist.py."""

    def layers(net: "Pass", images: Any) -> Any:
        x = images
        for filters in (32, 64):
            x = net.max_pool(net.relu(net.conv(x, filters, 3, bias=True)), 2, 2)
        return net.dense(net.relu(net.dense(net.flatten(x), 128)), classes)

    return layers
