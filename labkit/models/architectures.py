"""Network architectures: their layers, in order.

Each function returns a network's layers: a function that takes a `Pass` and the images, and returns the logits. Nothing
here imports TensorFlow, so programs can list their models before they load it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.models.layers import Pass

Layers = Callable[["Pass", Any], Any]


def resnet(blocks: Sequence[int], classes: int, stride_in_3x3: bool) -> Layers:
    """Return ResNet with bottleneck blocks (He et al. 2015, arXiv 1512.03385).

    `blocks` is the number of blocks in each stage; (3, 4, 6, 3) is ResNet-50. The first block of stages 2 to 4 halves
    height and width: in its first 1×1 convolution (v1), or in its 3×3 convolution (v1.5).
    """

    def bottleneck(net: "Pass", x, filters, stride):
        """Return the sum of a block's output, 4 × filters channels, and its input."""
        first, second = (1, stride) if stride_in_3x3 else (stride, 1)
        shortcut = x
        if stride > 1 or x.shape[net.channel_axis] != 4 * filters:  # the shapes of input and output differ
            shortcut = net.conv_norm(shortcut, 4 * filters, 1, stride, activation=None)
        x = net.conv_norm(x, filters, 1, first)  # convolution, batch norm, ReLU
        x = net.conv_norm(x, filters, 3, second)
        x = net.conv_norm(x, 4 * filters, 1, activation=None)
        return net.relu(x + shortcut)

    def layers(net: "Pass", images):
        """Return the logits of a batch of images."""
        x = net.max_pool(net.conv_norm(images, 64, 7, 2), 3, 2)
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                x = bottleneck(net, x, 64 * 2**stage, stride)
        return net.dense(net.average(x), classes)

    return layers


def small_resnet(blocks: int, classes: int) -> Layers:
    """Return the ResNet of section 4.2 of the same paper, for 32×32 images: 3 stages of pairs of 3×3 convolutions.

    The shortcut of a strided block is also a convolution; the paper's has no weights.
    """

    def layers(p: "Pass", x):
        x = p.conv_norm(x, 16, 3)
        for filters in (16, 32, 64):
            for _ in range(blocks):
                shortcut = x
                stride = 2 if filters > x.shape[p.channel_axis] else 1
                if stride > 1:
                    shortcut = p.conv_norm(shortcut, filters, 1, stride, activation=None)
                x = p.conv_norm(p.conv_norm(x, filters, 3, stride), filters, 3, activation=None)
                x = p.relu(x + shortcut)
        return p.dense(p.average(x), classes)

    return layers


def inception3(classes: int) -> Layers:
    """Return Inception v3 (Szegedy et al. 2015, arXiv 1512.00567), without the auxiliary head."""

    def first(p: "Pass", x, pooled):
        return p.join(
            [
                p.conv_norm(x, 64, 1),
                p.conv_norm(p.conv_norm(x, 48, 1), 64, 5),
                p.conv_norm(p.conv_norm(p.conv_norm(x, 64, 1), 96, 3), 96, 3),
                p.conv_norm(p.average_pool(x, 3, 1), pooled, 1),
            ]
        )

    def second(p: "Pass", x, filters):
        one = p.conv_norm(x, 192, 1)
        two = p.conv_norm(p.conv_norm(p.conv_norm(x, filters, 1), filters, (1, 7)), 192, (7, 1))
        three = p.conv_norm(p.conv_norm(p.conv_norm(x, filters, 1), filters, (7, 1)), filters, (1, 7))
        three = p.conv_norm(p.conv_norm(three, filters, (7, 1)), 192, (1, 7))
        return p.join([one, two, three, p.conv_norm(p.average_pool(x, 3, 1), 192, 1)])

    def third(p: "Pass", x):
        two = p.conv_norm(x, 384, 1)
        three = p.conv_norm(p.conv_norm(x, 448, 1), 384, 3)
        return p.join(
            [
                p.conv_norm(x, 320, 1),
                *(p.conv_norm(part, 384, kernel) for part in (two, three) for kernel in ((1, 3), (3, 1))),
                p.conv_norm(p.average_pool(x, 3, 1), 192, 1),
            ]
        )

    def layers(p: "Pass", x):
        x = p.conv_norm(x, 32, 3, 2, "VALID")
        x = p.conv_norm(p.conv_norm(x, 32, 3, 1, "VALID"), 64, 3)
        x = p.conv_norm(p.max_pool(x, 3, 2, "VALID"), 80, 1, 1, "VALID")
        x = p.max_pool(p.conv_norm(x, 192, 3, 1, "VALID"), 3, 2, "VALID")
        for pooled in (32, 64, 64):
            x = first(p, x, pooled)
        narrow = p.conv_norm(p.conv_norm(p.conv_norm(x, 64, 1), 96, 3), 96, 3, 2, "VALID")
        x = p.join([p.conv_norm(x, 384, 3, 2, "VALID"), narrow, p.max_pool(x, 3, 2, "VALID")])
        for filters in (128, 160, 160, 192):
            x = second(p, x, filters)
        narrow = p.conv_norm(p.conv_norm(p.conv_norm(x, 192, 1), 192, (1, 7)), 192, (7, 1))
        wide = p.conv_norm(p.conv_norm(x, 192, 1), 320, 3, 2, "VALID")
        x = p.join([wide, p.conv_norm(narrow, 192, 3, 2, "VALID"), p.max_pool(x, 3, 2, "VALID")])
        for _ in range(2):
            x = third(p, x)
        return p.dense(p.average(x), classes)

    return layers


def mnist(classes: int) -> Layers:
    """Return the MNIST CNN of the labs, the same as in Keras in labkit/models/mnist.py."""

    def layers(p: "Pass", x):
        for filters in (32, 64):
            x = p.max_pool(p.relu(p.conv(x, filters, 3, bias=True)), 2, 2)
        return p.dense(p.relu(p.dense(p.flatten(x), 128)), classes)

    return layers
