"""Trace one step: its timeline for chrome://tracing."""

from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.client import timeline  # no public API

from labkit.bench.steps import Step
from labkit.models.networks import Network

WARM_UP = 3  # steps that are not recorded: the first allocates memory, the second some more


def timeline_of(make_network: Callable[[], Network], make_step: Callable[[Network], Step], batch_size: int) -> str:
    """Return the timeline of a step on random images, for chrome://tracing or https://ui.perfetto.dev.

    The step runs in a session, since a `tf.function` does not record operation times.

    Parameters
    ----------
    make_network : callable
        Makes the network.
    make_step : callable
        Makes a step from the network, like the functions of `labkit.bench.steps`.
    batch_size : int
        Images in the step.
    """
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph, v1.Session() as session:
        network = make_network()
        height, width, channels = network.model.shape
        shape = (height, width, channels) if network.data_format == "NHWC" else (channels, height, width)
        images = tf.Variable(tf.random.normal((batch_size, *shape)), trainable=False)
        labels = tf.Variable(tf.random.uniform((batch_size,), 0, network.model.classes, tf.int32), trainable=False)
        loss = make_step(network)(images.read_value(), labels.read_value())
        with tf.control_dependencies([op for op in graph.get_operations() if op.type.startswith("ResourceApply")]):
            step = tf.identity(loss)  # when all weights are updated
        session.run(v1.global_variables_initializer())
        for _ in range(WARM_UP):
            session.run(step)
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        metadata = v1.RunMetadata()
        session.run(step, options=options, run_metadata=metadata)
    trace: str = timeline.Timeline(metadata.step_stats).generate_chrome_trace_format()
    return trace
