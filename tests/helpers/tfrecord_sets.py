"""Small TFRecord sets in ImageNet's layout, for tests of their readers."""

import io
import itertools
import threading

import numpy as np
import tensorflow as tf
from PIL import Image

from labkit.system.errors import LabError


def jpeg(pixels: np.ndarray, form: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    options = {"quality": 100, "subsampling": 0} if form == "JPEG" else {}
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, form, **options)
    return buffer.getvalue()


def example(encoded: bytes | None, label: int | None) -> bytes:
    features = {}
    if encoded is not None:
        features["image/encoded"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded]))
    if label is not None:
        features["image/class/label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_set(folder, examples, kind="train", files=4):
    """Write the examples to the files of a set, round-robin."""
    folder.mkdir(exist_ok=True)
    for number in range(files):
        with tf.io.TFRecordWriter(str(folder / f"{kind}-{number:05}-of-{files:05}")) as writer:
            for record in examples[number::files]:
                writer.write(record)
    return folder


def take(n, batches):
    """Return the first n batches of images and labels, as arrays."""
    taken = [(images.numpy(), labels.numpy()) for images, labels in itertools.islice(batches, n)]
    assert len(taken) == n
    return taken


def together(ranks, function):
    """Run `function(rank, allgather)` on all ranks, and return what each returned or raised."""
    results, gathered, barrier = [None] * ranks, [None] * ranks, threading.Barrier(ranks, timeout=20)

    def run(rank):
        def allgather(value):
            gathered[rank] = value
            barrier.wait()
            return list(gathered)

        try:
            results[rank] = function(rank, allgather)
        except (LabError, threading.BrokenBarrierError) as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
