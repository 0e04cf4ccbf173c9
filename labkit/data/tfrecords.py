"""What is in a record of ImageNet's TFRecords, and is it sound?

Each is a `tf.train.Example` with `image/encoded`, a JPEG, and `image/class/label`, from 1 (tensorflow/models,
research/inception/inception/data, build_imagenet_data.py).
"""

from collections.abc import Callable

import tensorflow as tf

from labkit.system.errors import reason

LAYOUT = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
FAILURES = tf.errors.OpError, UnicodeDecodeError  # the latter where the former would quote a record
LABELS = 2**31  # as many as int32 tells apart


def parsed(records: tf.Tensor, classes: int = LABELS) -> tuple[tf.Tensor, tf.Tensor]:
    """Return JPEGs, (n,) string, and labels, (n,) int32 from 0 to `classes` - 1, of records, (n,) string."""
    found = tf.io.parse_example(records, LAYOUT)
    labels = found["image/class/label"]
    # Before they become int32: 2**40 + 3 would become 3.
    known = tf.debugging.Assert(tf.reduce_all((labels >= 0) & (labels < classes)), ["label out of range", labels])
    with tf.control_dependencies([known]):
        return tf.identity(found["image/encoded"]), tf.cast(labels, tf.int32)


def fault(record: bytes, decode: Callable[[tf.Tensor], object], classes: int = LABELS) -> str:
    """Say what is wrong with a record, and what to do; an empty text when nothing is.

    Parameters
    ----------
    record : bytes
        The `tf.train.Example`.
    decode : callable
        Takes the JPEG, and raises TensorFlow's error when it can't be decoded.
    classes : int
        How many the network tells apart.
    """
    try:
        found = tf.io.parse_single_example(record, LAYOUT)
    except FAILURES:
        return "has no image/encoded or no image/class/label: write the set anew, in ImageNet's layout."
    label = int(found["image/class/label"])
    if not 0 <= label < classes:
        known = f"and the network tells 0 to {classes - 1} apart: name the --model for these images, or other images."
        return f"has label {label}, {known if classes < LABELS else 'which is none: write the set anew.'}"
    try:
        decode(found["image/encoded"])
    except tf.errors.OpError as error:
        return f"has no JPEG, or a part of one ({reason(error).rstrip('.')}): write the set anew."
    return ""
