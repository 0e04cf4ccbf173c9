"""MNIST on several ranks: gradients are reduced by hand."""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from checked.plan import learning_rate, shard
from task import BATCH, RATE, WARM_UP, digits

from labkit.models import mnist_cnn

loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def start():
    global model, optimizer, x, y
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = mnist_cnn()
    optimizer = keras.optimizers.SGD(momentum=0.9)
    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)
    mine = shard(len(digits.x_train), hvd.rank(), hvd.size())
    x, y = digits.x_train[mine], digits.y_train[mine]


@tf.function(autograph=False)
def reduce(tensors):
    return [hvd.allreduce(tensor, op=hvd.Sum) for tensor in tensors]


def step(number):
    optimizer.learning_rate.assign(learning_rate(number, RATE, hvd.size(), WARM_UP))
    batch = slice(number * BATCH, (number + 1) * BATCH)
    with tf.GradientTape() as tape:
        logits = model(x[batch], training=True)
        loss = loss_of(y[batch], logits)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    optimizer.apply_gradients(zip(reduce(gradients), model.trainable_variables))
    right = tf.argmax(logits, axis=1).numpy() == y[batch]
    loss, accuracy = hvd.allreduce(tf.constant([float(loss), right.mean()]), name="metrics").numpy()
    return {"loss": loss, "accuracy": accuracy}


def weights():
    return model.get_weights()
