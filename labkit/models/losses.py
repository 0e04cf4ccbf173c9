"""The loss of the training recipe: cross-entropy with label smoothing, and the weights' L2 penalty."""

from collections.abc import Sequence

import tensorflow as tf


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """Return the mean cross-entropy of a batch.

    Parameters
    ----------
    logits : (n, classes) tf.Tensor
        The network's output.
    labels : (n,) tf.Tensor
        The classes, as integers.
    label_smoothing : float
        The share of the target that is spread evenly over all classes (Szegedy et al. 2015, arXiv 1512.00567).
    """
    if not label_smoothing:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    classes = logits.shape[-1]
    off = label_smoothing / classes
    targets = tf.one_hot(labels, classes, on_value=1 - label_smoothing + off, off_value=off)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, logits))


def l2_loss(weights: Sequence[tf.Variable], weight_decay: float) -> tf.Tensor:
    """Return the loss whose gradient is the weight decay: half the sum of the kernels' squares, times the decay."""
    return weight_decay * tf.add_n([tf.nn.l2_loss(w) for w in weights if is_kernel(w)])


def is_kernel(weight: tf.Variable) -> bool:
    """Return whether a weight is the kernel of a convolution or dense layer; biases and batch norms have one dimension.

    Only kernels are decayed (Goyal et al. 2017, arXiv 1706.02677, section 5.3, and He et al. 2018, arXiv 1812.01187,
    section 3.1).
    """
    return len(weight.shape) > 1
