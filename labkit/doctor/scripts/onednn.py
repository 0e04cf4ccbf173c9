# python labkit/doctor/scripts/onednn.py
"""Run a TensorFlow convolution; the oneDNN log shows whether oneDNN executed it."""

import os

os.environ["ONEDNN_VERBOSE"] = "1"  # read once, when the library is loaded

import tensorflow as tf


def main() -> None:
    """Print TensorFlow's version, then run one convolution on 32×32 pixels and 16 channels."""
    print(tf.__version__, flush=True)
    images = tf.random.normal([1, 32, 32, 16])
    filters = tf.random.normal([3, 3, 16, 16])
    tf.nn.conv2d(images, filters, strides=1, padding="SAME")


if __name__ == "__main__":
    main()
