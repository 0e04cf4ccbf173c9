"""MNIST on several ranks: a tf.data pipeline, and a gradient tape."""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from checked.plan import learning_rate
from task import BATCH, RATE, WARM_UP, digits

from labkit.models import mnist_cnn

loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def start():
    global model, optimizer, batches
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = mnist_cnn()
    optimizer = keras.optimizers.SGD(momentum=0.9)
    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)
    data = tf.data.Dataset.from_tensor_slices((digits.x_train, digits.y_train))
    batches = iter(data.repeat().batch(BATCH))


def step(number):
    optimizer.learning_rate.assign(learning_rate(number, RATE, hvd.size(), WARM_UP))
    images, labels = next(batches)
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = loss_of(labels, logits)
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    right = tf.equal(tf.argmax(logits, axis=1), labels)
    metrics = tf.stack([loss, tf.reduce_mean(tf.cast(right, tf.float32))])
    loss, accuracy = hvd.allreduce(metrics, name="metrics").numpy()
    return {"loss": loss, "accuracy": accuracy}


def weights():
    return model.get_weights()
