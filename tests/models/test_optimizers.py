import numpy as np
import pytest
import tensorflow as tf

from labkit.models.optimizers import LARS_COEFFICIENT, Momentum, trust_ratio

RATE, MOMENTUM, DECAY = 0.1, 0.9, 0.01


def weights():
    rng = np.random.default_rng(0)
    return [tf.Variable(rng.normal(size=shape).astype("float32")) for shape in ((3, 3, 2, 4), (4, 5), (5,))]


def after(steps, lars=False, decay=DECAY):
    """Return the weights after `steps` steps with gradients of ones, from the optimizer and from numpy."""
    variables = weights()
    optimizer = Momentum(variables, MOMENTUM, decay, lars)
    expected = [w.numpy().astype("float64") for w in variables]
    velocities = [0.0 * w for w in expected]
    for _ in range(steps):
        optimizer.apply([tf.ones(w.shape) for w in variables], tf.constant(RATE))
        for w, v in zip(expected, velocities, strict=True):
            g = np.ones(w.shape)
            if w.ndim > 1:
                size, slope = np.linalg.norm(w), np.linalg.norm(g)
                g = (g + decay * w) * (LARS_COEFFICIENT * size / (slope + decay * size) if lars else 1)
            v[:] = MOMENTUM * v + g
            w -= RATE * v
    return [w.numpy() for w in variables], expected


@pytest.mark.parametrize("lars", [False, True])
def test_optimizer_steps_match_the_formulas(lars):
    for result, expected in zip(*after(3, lars), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_decay_and_trust_leave_biases_and_batch_norms_alone():
    plain, (lars, _) = after(2, decay=0.0)[0], after(2, lars=True, decay=0.5)
    np.testing.assert_array_equal(plain[2], lars[2])
    assert not np.allclose(plain[0], lars[0])


def test_lars_step_sizes_depend_on_weights_but_not_on_gradients():
    w = weights()[0]
    g = tf.ones(w.shape)
    for factor in (1e-3, 1.0, 1e3):
        step = trust_ratio(w, factor * g, 0.0) * factor * g
        assert float(tf.norm(step) / tf.norm(w)) == pytest.approx(LARS_COEFFICIENT, rel=1e-4)


def test_without_weights_or_gradient_the_trust_ratio_is_one():
    assert float(trust_ratio(tf.zeros((2, 2)), tf.ones((2, 2)), DECAY)) == 1
    assert float(trust_ratio(tf.ones((2, 2)), tf.zeros((2, 2)), DECAY)) == 1
    assert float(trust_ratio(tf.zeros((2, 2)), tf.zeros((2, 2)), 0.0)) == 1
