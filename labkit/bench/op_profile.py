"""TensorFlow's profile of a run: the time of each type of operation."""

import re
from collections import defaultdict
from pathlib import Path

from labkit.system.errors import LabError

# How the profiler names the event of an operation: its name in the graph, and its type.
_OPERATION = re.compile(r"[^:]+:(_?[A-Z]\w*)(?:#.*)?")
# Types whose events hold those of the operations inside.
_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If", "StatelessIf"}


def read_profile(folder: str | Path) -> dict[str, float]:
    """Return the milliseconds of each type of operation in a profile, such as `{"Conv2D": 12.3, …}`.

    They add up to the time of the run only where operations ran one at a time: `TF_NUM_INTEROP_THREADS=1`.

    Parameters
    ----------
    folder : path
        The folder given to `tf.profiler.experimental.Profile`.

    Raises
    ------
    LabError
        When there is no profile in it, or none of operations on CPUs.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    ms: dict[str, float] = defaultdict(float)
    for file in Path(folder).rglob("*.xplane.pb"):
        for plane in xplane_pb2.XSpace.FromString(file.read_bytes()).planes:
            if plane.name != "/host:CPU":
                continue
            for line in plane.lines:
                for event in line.events:
                    found = _OPERATION.fullmatch(plane.event_metadata[event.metadata_id].name)
                    if found and found[1] not in _CALLS:
                        ms[found[1]] += event.duration_ps / 1e9
    if not ms:
        raise LabError(
            f"{folder} holds no profile of operations on CPUs: run some in tf.profiler.experimental.Profile."
        )
    return dict(ms)
