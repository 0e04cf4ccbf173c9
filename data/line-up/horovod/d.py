"""MNIST on several ranks: a training step in a graph."""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from checked.plan import learning_rate, shard
from task import BATCH, RATE, WARM_UP, digits

from labkit.models import mnist_cnn

loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def start():
    global model, optimizer, mine, train
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = mnist_cnn()
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(model.trainable_variables)
    mine = shard(len(digits.x_train), hvd.rank(), hvd.size())

    @tf.function(autograph=False)
    def train(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = loss_of(labels, logits)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        right = tf.equal(tf.argmax(logits, axis=1), labels)
        metrics = tf.stack([loss, tf.reduce_mean(tf.cast(right, tf.float32))])
        return hvd.allreduce(metrics, name="metrics")


def step(number):
    optimizer.learning_rate.assign(learning_rate(number, RATE, hvd.size(), WARM_UP))
    batch = mine[number * BATCH : (number + 1) * BATCH]
    loss, accuracy = train(digits.x_train[batch], digits.y_train[batch]).numpy()
    return {"loss": loss, "accuracy": accuracy}


def weights():
    return model.get_weights()
