import numpy as np
import tensorflow as tf

from labkit.models.optimizers import Momentum

RATE, MOMENTUM, DECAY = 0.1, 0.9, 0.01


def weights():
    rng = np.random.default_rng(0)
    return [tf.Variable(rng.normal(size=shape).astype("float32")) for shape in ((3, 3, 2, 4), (4, 5), (5,))]


def after(steps, decay=DECAY):
    """Return the weights after `steps` steps with gradients of ones, from the optimizer and from numpy."""
    variables = weights()
    optimizer = Momentum(variables, MOMENTUM, decay)
    expected = [w.numpy().astype("float64") for w in variables]
    velocities = [0.0 * w for w in expected]
    for _ in range(steps):
        optimizer.apply([tf.ones(w.shape) for w in variables], tf.constant(RATE))
        for w, v in zip(expected, velocities, strict=True):
            g = np.ones(w.shape)
            if w.ndim > 1:
                g = g + decay * w
            v[:] = MOMENTUM * v + g
            w -= RATE * v
    return [w.numpy() for w in variables], expected


def test_optimizer_steps_match_the_formulas():
    for result, expected in zip(*after(3), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_decay_leaves_biases_and_batch_norms_alone():
    (plain, _), (decayed, _) = after(2, decay=0.0), after(2, decay=0.5)
    np.testing.assert_array_equal(plain[2], decayed[2])
    assert not np.allclose(plain[0], decayed[0])
