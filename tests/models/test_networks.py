import numpy as np
import pytest
import tensorflow as tf

from labkit.bench.run import make_step
from labkit.data.synthetic_batch import synthetic_batch
from labkit.models.losses import cross_entropy
from labkit.models.mnist import mnist_cnn
from labkit.models.networks import Network
from labkit.models.registry import MODELS


def batch(name="mnist", n=8):
    return synthetic_batch(MODELS[name], n)


def test_resnet50_has_the_published_number_of_weights():
    # for 1,000 classes, with the scales and offsets of batch norms: https://pytorch.org/vision/stable/models.html
    weights = sum(w.shape.num_elements() for w in Network("resnet50").weights)
    assert weights == 25_557_032 + 2048 + 1  # one class more


def test_the_small_resnet_has_eight_layers_and_two_convolutions_in_shortcuts():
    dimensions = [len(w.shape) for w in Network("resnet8").weights]
    assert (dimensions.count(4), dimensions.count(2)) == (7 + 2, 1)


def test_the_mnist_network_equals_the_keras_model():
    network, model = Network("mnist"), mnist_cnn()
    assert [tuple(w.shape) for w in network.weights] == [tuple(w.shape) for w in model.weights]
    for ours, theirs in zip(network.weights, model.weights, strict=True):
        theirs.assign(ours)
    x, _ = batch()
    np.testing.assert_allclose(network(x, training=False), model(x), rtol=1e-4, atol=1e-4)


def test_batch_norm_is_one_operation_and_blocks_have_shortcuts():
    network = Network("resnet50")
    function = tf.function(lambda x: network(x, training=True))
    graph = function.get_concrete_function(tf.TensorSpec((2, *network.model.shape))).graph
    operations = [op.type for op in graph.get_operations()]
    assert operations.count("FusedBatchNormV3") == 53
    assert operations.count("AddV2") == 16


def test_bfloat16_gives_nearly_the_same_logits():
    x, _ = batch()
    wide, narrow = Network("mnist"), Network("mnist", dtype=tf.bfloat16)
    assert all(w.dtype == tf.float32 for w in narrow.weights)
    full = wide(x, training=False)
    difference = np.abs(full - narrow(x, training=False)).max()
    assert 0 < difference < 0.03 * np.abs(full).max()


def test_training_lowers_the_loss():
    x, labels = batch()
    network = Network("mnist")
    step = tf.function(make_step(network, 0.01, 1e-4))
    losses = [float(step(x, labels)) for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0]


def test_the_loss_is_cross_entropy_plus_the_decay_of_kernels():
    x, labels = batch()
    network = Network("mnist")
    plain = cross_entropy(network(x, training=False), labels)
    squares = sum(float(tf.reduce_sum(w**2)) for w in network.weights if len(w.shape) > 1)
    total = make_step(network, 0.0, 0.1)(x, labels)
    assert float(total) == pytest.approx(float(plain) + 0.1 * squares / 2, rel=1e-4)
    chance = tf.nn.log_softmax(network(x, training=False)).numpy()[np.arange(len(labels)), labels]
    assert float(plain) == pytest.approx(-chance.mean(), rel=1e-5)
