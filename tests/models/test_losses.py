import numpy as np
import pytest
import tensorflow as tf

from labkit.models.losses import cross_entropy, l2_loss

DECAY = 0.01


def test_the_l2_loss_has_the_decay_as_its_gradient():
    rng = np.random.default_rng(0)
    variables = [tf.Variable(rng.normal(size=shape).astype("float32")) for shape in ((3, 3, 2, 4), (4, 5), (5,))]
    with tf.GradientTape() as tape:
        loss = l2_loss(variables, DECAY)
    kernel, dense, bias = tape.gradient(loss, variables)
    np.testing.assert_allclose(kernel, DECAY * variables[0], rtol=1e-6)
    np.testing.assert_allclose(dense, DECAY * variables[1], rtol=1e-6)
    assert bias is None


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_smoothing_spreads_a_share_of_the_target_over_all_classes(smoothing):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(6, 5)).astype("float32"), rng.integers(5, size=6)
    targets = (1 - smoothing) * np.eye(5)[labels] + smoothing / 5
    expected = -(targets * tf.nn.log_softmax(logits).numpy()).sum(1).mean()
    assert float(cross_entropy(tf.constant(logits), tf.constant(labels), smoothing)) == pytest.approx(
        expected, rel=1e-5
    )
