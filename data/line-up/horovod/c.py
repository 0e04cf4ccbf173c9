"""MNIST on several ranks: Keras' fit, with a model that has its own training step."""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from checked.plan import learning_rate, shard
from task import BATCH, RATE, WARM_UP, digits

from labkit.models import mnist_cnn


class DistributedModel(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=logits)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [v.value for v in self.trainable_variables])
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        right = tf.cast(tf.equal(tf.argmax(logits, axis=1), y), tf.float32)
        loss, accuracy = tf.unstack(hvd.allreduce(tf.stack([loss, tf.reduce_mean(right)])))
        return {"loss": loss, "accuracy": accuracy}


def start():
    global model, x, y
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    cnn = mnist_cnn()
    model = DistributedModel(cnn.inputs, cnn.outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(momentum=0.9), loss=loss)
    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)
    mine = shard(len(digits.x_train), hvd.rank(), hvd.size())
    x, y = digits.x_train[mine], digits.y_train[mine]


def step(number):
    model.optimizer.learning_rate.assign(learning_rate(number, RATE, hvd.size(), WARM_UP))
    batch = slice(number * BATCH, (number + 1) * BATCH)
    history = model.fit(x[batch], y[batch], batch_size=BATCH, verbose=0).history
    return {name: history[name][-1] for name in ("loss", "accuracy")}


def weights():
    return model.get_weights()
