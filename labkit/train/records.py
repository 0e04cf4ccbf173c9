"""The recipe's images: random crops for training, centre crops for evaluation, normalised for ImageNet.

`labkit.data.tfrecords` decides the order of images, and which rank reads them.
"""

import tensorflow as tf

from labkit.data import tfrecords
from labkit.data.tfrecords import LABELS, Batches, Records

# Means and standard deviations of ImageNet's pixels, red, green and blue in 0..255: torchvision's 0.485, 0.456, 0.406
# and 0.229, 0.224, 0.225 (https://docs.pytorch.org/vision/stable/models.html), times 255.
MEAN = 123.675, 116.28, 103.53
DEVIATION = 58.395, 57.12, 57.375
ASPECT_RATIOS = 3 / 4, 4 / 3  # the smallest and largest ratio of a crop's width to its height
EVALUATED_SHARE = 224 / 256  # the share of a picture's shorter side used in evaluation, as usual for ImageNet


def training(
    records: Records,
    image_size: int,
    batch_size: int,
    rank: int = 0,
    ranks: int = 1,
    seed: int = 0,
    start: int = 0,
    least_area: float = 0.08,
    classes: int = LABELS,
) -> Batches:
    """Return an endless iterator over a rank's part of global batch `start`, and of all that follow.

    Each image is a random crop, mirrored or not; both depend only on `seed` and the image's position in the stream. So
    a stream from `start` has the same images, to the bit, as one that began at 0.

    Parameters
    ----------
    records, batch_size, rank, ranks, start, classes
        As in `tfrecords.shuffled_batches`.
    image_size : int
        Height and width of an image, in pixels.
    seed : int
        The seed of the order, the crops and the mirroring; the same on every rank.
    least_area : float
        The smallest share of a picture in a crop. 0.08 is usual for ImageNet (Szegedy et al. 2014, arXiv 1409.4842);
        small pictures need more.

    Returns
    -------
    Batches
        Images (batch_size, image_size, image_size, 3) float32, less `MEAN` and divided by `DEVIATION`, and labels
        (batch_size,) int32 as in the files.
    """

    def decode(jpeg: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(jpeg),
            bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed=(seed, 2 * position),
            min_object_covered=0.0,
            aspect_ratio_range=ASPECT_RATIOS,
            area_range=(least_area, 1.0),
        )
        image = _crop(jpeg, tf.concat((begin[:2], size[:2]), 0), image_size)
        return _normalise(tf.image.stateless_random_flip_left_right(image, seed=(seed, 2 * position + 1)))

    return tfrecords.shuffled_batches(
        records, decode, batch_size, rank=rank, ranks=ranks, seed=seed, start=start, classes=classes
    )


def evaluation(
    records: Records, image_size: int, batch_size: int, rank: int = 0, ranks: int = 1, classes: int = LABELS
) -> Batches:
    """Return a rank's share of a set, each image once: a centre crop of seven eighths of its shorter side.

    Returns
    -------
    Batches
        As from `training`; the last may be smaller.
    """

    def decode(jpeg: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        shape = tf.io.extract_jpeg_shape(jpeg)
        side = tf.cast(tf.round(tf.cast(tf.reduce_min(shape[:2]), tf.float32) * EVALUATED_SHARE), tf.int32)
        middle = tf.stack(((shape[0] - side) // 2, (shape[1] - side) // 2, side, side))
        return _normalise(_crop(jpeg, middle, image_size))

    return tfrecords.ordered_batches(records, decode, batch_size, rank=rank, ranks=ranks, classes=classes)


def _crop(jpeg: tf.Tensor, window: tf.Tensor, image_size: int) -> tf.Tensor:
    """Return a part of a JPEG, (y, x, height, width), resized; only the necessary part is decoded."""
    return tf.image.resize(tf.io.decode_and_crop_jpeg(jpeg, window, channels=3), (image_size, image_size))


def _normalise(image: tf.Tensor) -> tf.Tensor:
    return (image - tf.constant(MEAN)) / tf.constant(DEVIATION)
