"""What do the benchmark's networks compute? In TensorFlow's own operations, so that each is the one that was meant.

Keras 3 computes batch norm in eight operations, for which oneDNN has no kernel; here it is `FusedBatchNormV3`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

# torchvision and Keras agree on these two for ResNet; the others' differ by too little to show in images a second.
EPSILON, MOMENTUM = 1e-5, 0.9
SEED = 1234


class Network:
    """A network, its weights made at once, the same in every process.

    Parameters
    ----------
    model : str
        A key of `MODELS`.
    data_format : {"NHWC", "NCHW"}
        The layout of its images.
    dtype : tf.DType
        Of its activations; weights are float32.
    fused_batch_norm : bool
        Whether a batch norm is one operation, or several as in Keras 3.

    Attributes
    ----------
    weights, averages : list of tf.Variable
        What is trained; the moving averages of batch norms.
    flops : int
        Floating-point operations for one image forward, in convolutions and matrix products; a multiplication and an
        addition are two.
    flops_training : int
        The same for a training step: both gradients of each, but for that by the images, which nobody asks for.
    """

    def __init__(
        self, model: str, data_format: str = "NHWC", dtype: tf.DType = tf.float32, fused_batch_norm: bool = True
    ):
        self.model, self.data_format, self.dtype = MODELS[model], data_format, dtype
        self.fused_batch_norm = fused_batch_norm
        self.weights: list[tf.Variable] = []
        self.averages: list[tf.Variable] = []
        self._made: dict[str, tf.Variable] = {}
        counting = _Pass(self, training=False, data_format="NHWC", dtype=tf.float32)
        self.model.layers(counting, tf.zeros((1, *self.model.shape)))
        self.flops = sum(counting.flops)
        self.flops_training = 3 * self.flops - counting.flops[0]

    def __call__(self, images: tf.Tensor, training: bool) -> tf.Tensor:
        """Return the logits, (n, classes) float32, of images (n, height, width, channels), or of NCHW."""
        one_pass = _Pass(self, training, self.data_format, self.dtype)
        return tf.cast(self.model.layers(one_pass, tf.cast(images, self.dtype)), tf.float32)

    def variable(self, name: str, make: Callable[[], tf.Tensor], trained: bool = True) -> tf.Variable:
        """Return the variable of this name; in the first pass, it is made."""
        if name not in self._made:
            self._made[name] = tf.Variable(make(), trainable=trained, name=name)
            (self.weights if trained else self.averages).append(self._made[name])
        return self._made[name]


class _Pass:
    """One pass through a network: its layers, in the order in which they come."""

    def __init__(self, network: Network, training: bool, data_format: str, dtype: tf.DType):
        self.network, self.training, self.data_format, self.dtype = network, training, data_format, dtype
        self.flops: list[int] = []
        self._layer = 0

    @property
    def channel_axis(self) -> int:
        return 3 if self.data_format == "NHWC" else 1

    @property
    def _places(self) -> list[int]:
        return [1, 2] if self.data_format == "NHWC" else [2, 3]

    def conv(self, x, filters, kernel, stride=1, padding="SAME", bias=False):
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        w = self._kernel((height, width, x.shape[self.channel_axis], filters))
        y = tf.nn.conv2d(x, w, self._strides(stride), padding, self.data_format)
        self._count(2 * height * width * x.shape[self.channel_axis], y)
        return self._add_bias(y) if bias else y

    def depthwise_conv(self, x, kernel, stride=1):
        channels = x.shape[self.channel_axis]
        w = self._kernel((kernel, kernel, channels, 1))
        y = tf.nn.depthwise_conv2d(x, w, self._strides(stride, square=True), "SAME", self.data_format)
        self._count(2 * kernel * kernel, y)
        return y

    def dense(self, x, units):
        w = self._kernel((x.shape[1], units))
        y = tf.matmul(x, w)
        self._count(2 * x.shape[1], y)
        return self._add_bias(y, "N...C")

    def batch_norm(self, x):
        network, shape = self.network, (x.shape[self.channel_axis],)
        scale, offset = (
            network.variable(f"{self._layer}/{name}", lambda make=make: make(shape))
            for name, make in (("scale", tf.ones), ("offset", tf.zeros))
        )
        mean, variance = (
            network.variable(f"{self._layer}/{name}", lambda make=make: make(shape), trained=False)
            for name, make in (("mean", tf.zeros), ("variance", tf.ones))
        )
        if not network.fused_batch_norm:
            return self._unfused(x, scale, offset, mean, variance)
        y, new_mean, new_variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=offset,
            mean=mean,
            variance=variance,
            epsilon=EPSILON,
            exponential_avg_factor=1 - MOMENTUM if self.training else 1.0,
            data_format=self.data_format,
            is_training=self.training,
        )
        if self.training:  # the operation gives the moving averages, moved
            mean.assign(new_mean)
            variance.assign(new_variance)
        return y

    def _unfused(self, x, scale, offset, mean, variance):
        """As Keras 3 computes it: in float32, one small operation after the other."""
        wide = tf.cast(x, tf.float32)
        broadcast = [1, -1, 1, 1] if self.data_format == "NCHW" else [1, 1, 1, -1]
        now_mean, now_variance = mean, variance
        if self.training:
            now_mean, now_variance = tf.nn.moments(wide, [0, *self._places])
            for average, now in ((mean, now_mean), (variance, now_variance)):
                average.assign(MOMENTUM * average + (1 - MOMENTUM) * now)
        parts = [tf.reshape(part, broadcast) for part in (now_mean, now_variance, offset, scale)]
        return tf.cast(tf.nn.batch_normalization(wide, *parts, EPSILON), x.dtype)

    def conv_norm(self, x, filters, kernel, stride=1, padding="SAME", activation=tf.nn.relu):
        """Convolution, batch norm, activation."""
        return activation(self.batch_norm(self.conv(x, filters, kernel, stride, padding)))

    def max_pool(self, x, size, stride, padding="SAME"):
        return tf.nn.max_pool2d(x, size, stride, padding, self.data_format)

    def average_pool(self, x, size, stride, padding="SAME"):
        return tf.nn.avg_pool2d(x, size, stride, padding, self.data_format)

    def average(self, x):
        """The mean over all places: (n, channels)."""
        return tf.reduce_mean(x, self._places)

    def join(self, parts):
        return tf.concat(parts, self.channel_axis)

    def flatten(self, x):
        return tf.reshape(x, (-1, math.prod(x.shape[1:])))

    def _kernel(self, shape):
        """Weights for Relu: He et al. 2015, arXiv 1502.01852."""
        self._layer += 1
        spread = math.sqrt(2 / math.prod(shape[:-1]))
        seed = (SEED, self._layer)
        w = self.network.variable(
            f"{self._layer}/weights", lambda: spread * tf.random.stateless_truncated_normal(shape, seed)
        )
        return tf.cast(w, self.dtype)

    def _add_bias(self, y, data_format=None):
        channels = y.shape[1 if data_format else self.channel_axis]
        bias = self.network.variable(f"{self._layer}/bias", lambda: tf.zeros(channels))
        return tf.nn.bias_add(y, tf.cast(bias, self.dtype), data_format or self.data_format)

    def _strides(self, stride, square=False):
        if stride == 1 and not square:
            return 1
        return [1, stride, stride, 1] if self.data_format == "NHWC" else [1, 1, stride, stride]

    def _count(self, flops_an_element, y):
        self.flops.append(flops_an_element * math.prod(y.shape[1:]))


# The networks. Each takes a pass and the images, and gives the logits.


def _resnet(blocks, classes, stride_in_3x3):
    """He et al. 2015, arXiv 1512.03385. In v1 the first 1×1 convolution of a stage strides, in v1.5 its 3×3 one."""

    def block(p, x, filters, stride):
        strides = (1, stride) if stride_in_3x3 else (stride, 1)
        shortcut = x
        if stride > 1 or x.shape[p.channel_axis] != 4 * filters:
            shortcut = p.conv_norm(x, 4 * filters, 1, stride, activation=tf.identity)
        x = p.conv_norm(x, filters, 1, strides[0])
        x = p.conv_norm(x, filters, 3, strides[1])
        x = p.conv_norm(x, 4 * filters, 1, activation=tf.identity)
        return tf.nn.relu(x + shortcut)

    def layers(p, x):
        x = p.max_pool(p.conv_norm(x, 64, 7, 2), 3, 2)
        for stage, count in enumerate(blocks):
            for number in range(count):
                x = block(p, x, 64 * 2**stage, 2 if stage and not number else 1)
        return p.dense(p.average(x), classes)

    return layers


def _small_resnet(blocks, classes):
    """The same paper's section 4.2, for images of 32×32: 3 stages of pairs of 3×3 convolutions; here, as in v1.5, the
    shortcut of a block that strides is a convolution too."""

    def layers(p, x):
        x = p.conv_norm(x, 16, 3)
        for filters in (16, 32, 64):
            for _ in range(blocks):
                stride = 2 if filters > x.shape[p.channel_axis] else 1
                shortcut = p.conv_norm(x, filters, 1, stride, activation=tf.identity) if stride > 1 else x
                x = p.conv_norm(p.conv_norm(x, filters, 3, stride), filters, 3, activation=tf.identity)
                x = tf.nn.relu(x + shortcut)
        return p.dense(p.average(x), classes)

    return layers


def _vgg16(classes):
    """Simonyan and Zisserman 2014, arXiv 1409.1556, configuration D."""

    def layers(p, x):
        for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(count):
                x = tf.nn.relu(p.conv(x, filters, 3, bias=True))
            x = p.max_pool(x, 2, 2)
        x = p.flatten(x)
        for _ in range(2):
            x = tf.nn.relu(p.dense(x, 4096))
        return p.dense(x, classes)

    return layers


def _inception3(classes):
    """Szegedy et al. 2015, arXiv 1512.00567, without the auxiliary head."""

    def first(p, x, pooled):
        return p.join(
            [
                p.conv_norm(x, 64, 1),
                p.conv_norm(p.conv_norm(x, 48, 1), 64, 5),
                p.conv_norm(p.conv_norm(p.conv_norm(x, 64, 1), 96, 3), 96, 3),
                p.conv_norm(p.average_pool(x, 3, 1), pooled, 1),
            ]
        )

    def second(p, x, filters):
        one = p.conv_norm(x, 192, 1)
        two = p.conv_norm(p.conv_norm(p.conv_norm(x, filters, 1), filters, (1, 7)), 192, (7, 1))
        three = p.conv_norm(p.conv_norm(p.conv_norm(x, filters, 1), filters, (7, 1)), filters, (1, 7))
        three = p.conv_norm(p.conv_norm(three, filters, (7, 1)), 192, (1, 7))
        return p.join([one, two, three, p.conv_norm(p.average_pool(x, 3, 1), 192, 1)])

    def third(p, x):
        two = p.conv_norm(x, 384, 1)
        three = p.conv_norm(p.conv_norm(x, 448, 1), 384, 3)
        return p.join(
            [
                p.conv_norm(x, 320, 1),
                *(p.conv_norm(part, 384, kernel) for part in (two, three) for kernel in ((1, 3), (3, 1))),
                p.conv_norm(p.average_pool(x, 3, 1), 192, 1),
            ]
        )

    def layers(p, x):
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


def _mobilenet(classes):
    """Sandler et al. 2018, arXiv 1801.04381: MobileNet v2, width 1."""

    def block(p, x, filters, stride, expansion):
        narrow = x
        if expansion > 1:
            x = p.conv_norm(x, expansion * x.shape[p.channel_axis], 1, activation=tf.nn.relu6)
        x = tf.nn.relu6(p.batch_norm(p.depthwise_conv(x, 3, stride)))
        x = p.conv_norm(x, filters, 1, activation=tf.identity)
        return narrow + x if narrow.shape == x.shape else x

    def layers(p, x):
        x = p.conv_norm(x, 32, 3, 2, activation=tf.nn.relu6)
        stages = (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        )
        for expansion, filters, count, stride in stages:
            for number in range(count):
                x = block(p, x, filters, 1 if number else stride, expansion)
        return p.dense(p.average(p.conv_norm(x, 1280, 1, activation=tf.nn.relu6)), classes)

    return layers


def _mnist(classes):
    """The MNIST CNN of the labs, as in labkit/models/mnist.py."""

    def layers(p, x):
        for filters in (32, 64):
            x = p.max_pool(tf.nn.relu(p.conv(x, filters, 3, bias=True)), 2, 2)
        return p.dense(tf.nn.relu(p.dense(p.flatten(x), 128)), classes)

    return layers


class Model(NamedTuple):
    """A network's layers, what it takes and what it tells apart.

    Attributes
    ----------
    layers : callable
        Takes a pass and the images, gives the logits.
    shape : tuple of int
        (height, width, channels) of an image.
    classes : int
        How many it tells apart.
    """

    layers: Callable
    shape: tuple[int, int, int]
    classes: int


CLASSES = 1001  # ImageNet's TFRecords number them from 1 to 1,000
DRAWN_CLASSES = 11  # those of `lab data tfrecords`, numbered from 1 too
IMAGE = (224, 224, 3)
MODELS = {
    "resnet50": Model(_resnet((3, 4, 6, 3), CLASSES, stride_in_3x3=False), IMAGE, CLASSES),
    "resnet50_v1.5": Model(_resnet((3, 4, 6, 3), CLASSES, stride_in_3x3=True), IMAGE, CLASSES),
    "resnet101": Model(_resnet((3, 4, 23, 3), CLASSES, stride_in_3x3=False), IMAGE, CLASSES),
    "resnet8": Model(_small_resnet(1, DRAWN_CLASSES), (32, 32, 3), DRAWN_CLASSES),
    "resnet20": Model(_small_resnet(3, DRAWN_CLASSES), (32, 32, 3), DRAWN_CLASSES),
    "vgg16": Model(_vgg16(CLASSES), IMAGE, CLASSES),
    "inception3": Model(_inception3(CLASSES), (299, 299, 3), CLASSES),
    "mobilenet": Model(_mobilenet(CLASSES), IMAGE, CLASSES),
    "mnist": Model(_mnist(10), (28, 28, 1), 10),
}
