"""The MNIST CNN of the labs, in Keras."""

import keras


def mnist_cnn() -> keras.Model:
    """Return a CNN of two convolutions and two dense layers: (n, 28, 28, 1) in 0..1 → (n, 10) logits.

    421,642 weights in 8 tensors. No dropout, so that the result does not depend on how the digits are sharded: the same
    digits give the same weights on any number of ranks.
    """
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="conv1"),
            keras.layers.MaxPooling2D(name="pool1"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu", name="conv2"),
            keras.layers.MaxPooling2D(name="pool2"),
            keras.layers.Flatten(name="flatten"),
            keras.layers.Dense(128, activation="relu", name="dense1"),
            keras.layers.Dense(10, name="dense2"),
        ],
        name="mnist_cnn",
    )
