"""MNIST on several ranks: Keras' fit, with Horovod's optimizer for Keras."""

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import keras
import tensorflow as tf
from checked.plan import learning_rate, shard
from task import BATCH, RATE, WARM_UP, digits

from labkit.models import mnist_cnn


def start():
    global model, x, y
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = mnist_cnn()
    model.compile(
        optimizer=hvd_keras.DistributedOptimizer(keras.optimizers.SGD(momentum=0.9)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)
    mine = shard(len(digits.x_train), hvd.rank(), hvd.size())
    x, y = digits.x_train[mine], digits.y_train[mine]


def step(number):
    model.optimizer.learning_rate.assign(learning_rate(number, RATE, hvd.size(), WARM_UP))
    batch = slice(number * BATCH, (number + 1) * BATCH)
    history = model.fit(x[batch], y[batch], batch_size=BATCH, verbose=0).history
    metrics = tf.constant([history[name][-1] for name in ("loss", "accuracy")])
    loss, accuracy = hvd.allreduce(metrics, name="metrics").numpy()
    return {"loss": loss, "accuracy": accuracy}


def weights():
    return model.get_weights()
