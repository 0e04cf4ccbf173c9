"""How do weights follow their averaged gradients? Momentum, with or without LARS."""

import tensorflow as tf

LARS_COEFFICIENT = 0.001  # You et al. 2017, arXiv 1708.03888, section 5


class Momentum:
    """Stochastic gradient descent with momentum: v ← m·v + g + d·w, then w ← w − rate·v.

    The weight decay d is for what multiplies, convolutions' and dense layers' weights, not for biases and batch norms
    (Goyal et al. 2017, arXiv 1706.02677, section 5.3, and He et al. 2018, arXiv 1812.01187, section 3.1).

    Parameters
    ----------
    weights : list of tf.Variable
        What is trained.
    momentum, weight_decay : float
        m and d.
    lars : bool
        Whether each layer's g + d·w is first scaled by its trust ratio.

    Attributes
    ----------
    velocities : list of tf.Variable
        v of each weight; belongs into a checkpoint.
    """

    def __init__(self, weights: list[tf.Variable], momentum: float, weight_decay: float, lars: bool = False):
        self.weights, self.momentum, self.weight_decay, self.lars = weights, momentum, weight_decay, lars
        self.velocities = [tf.Variable(tf.zeros(w.shape), trainable=False, name=f"velocity/{w.name}") for w in weights]

    def apply(self, gradients: list[tf.Tensor], rate: tf.Tensor) -> None:
        """Change the weights, and their velocities, by one step."""
        for w, v, g in zip(self.weights, self.velocities, gradients, strict=True):
            if multiplies(w):
                scale = trust_ratio(w, g, self.weight_decay) if self.lars else 1.0
                g = scale * (g + self.weight_decay * w)
            tf.raw_ops.ResourceApplyMomentum(var=w.handle, accum=v.handle, lr=rate, grad=g, momentum=self.momentum)

    def l2_loss(self) -> tf.Tensor:
        """Return what the decay adds to the loss: d/2 times the sum of squares."""
        return self.weight_decay * tf.add_n([tf.nn.l2_loss(w) for w in self.weights if multiplies(w)])


def multiplies(weight: tf.Variable) -> bool:
    """Whether it is a convolution's or a dense layer's weight; biases and batch norms have one dimension."""
    return len(weight.shape) > 1


def trust_ratio(weight: tf.Tensor, gradient: tf.Tensor, weight_decay: float) -> tf.Tensor:
    """Return LARS' factor for a layer: 0.001·‖w‖ / (‖g‖ + d·‖w‖); 1 where either norm is 0."""
    size, slope = tf.norm(weight), tf.norm(gradient)
    ratio = LARS_COEFFICIENT * size / (slope + weight_decay * size)
    return tf.where((size > 0) & (slope > 0), ratio, 1.0)
