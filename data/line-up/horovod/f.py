"""MNIST on several ranks: a gradient tape, and metrics from Keras."""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from checked.plan import learning_rate, shard
from task import BATCH, RATE, WARM_UP, digits

from labkit.models import mnist_cnn

loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy_of = keras.metrics.SparseCategoricalAccuracy()


def start():
    global model, optimizer, x, y
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = mnist_cnn()
    optimizer = keras.optimizers.SGD(momentum=0.9)
    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)
    mine = shard(len(digits.x_train), hvd.rank(), hvd.size())
    x, y = digits.x_train[mine], digits.y_train[mine]


def step(number):
    optimizer.learning_rate.assign(learning_rate(number, RATE, hvd.size(), WARM_UP))
    batch = slice(number * BATCH, (number + 1) * BATCH)
    accuracy_of.reset_state()
    with tf.GradientTape() as tape:
        logits = model(x[batch], training=True)
        loss = loss_of(y[batch], logits)
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    accuracy_of.update_state(y[batch], logits)
    return {"loss": float(loss), "accuracy": float(accuracy_of.result())}


def weights():
    return model.get_weights()
