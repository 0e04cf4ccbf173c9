"""Read TensorFlow profiles: the time of each operation type in a step."""

import re
import statistics
from collections import defaultdict
from pathlib import Path

from labkit.system.errors import LabError

# The profiler's names for operations: the name in the graph, and the type.
_OPERATION = re.compile(r"([^:]+):(_?[A-Z]\w*)(?:#.*)?")
# Types whose events contain those of other operations.
_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If", "StatelessIf"}


def read_profile(folder: str | Path, steps: int = 1) -> dict[str, float]:
    """Return the milliseconds of each operation type in a step, such as `{"Conv2D": 12.3, …}` (`read_operations`)."""
    ms: dict[str, float] = defaultdict(float)
    for operation, duration in read_operations(folder, steps).items():
        ms[operation.partition(":")[2]] += duration
    return dict(ms)


def read_operations(folder: str | Path, steps: int = 1) -> dict[str, float]:
    """Return the milliseconds of each operation in a step, such as `{"model/conv1/convolution:Conv2D": 12.3, …}`.

    Each operation in the graph counts with its median time, so that one disturbed step changes nothing. They sum to the
    time of a step only if operations ran one at a time: `TF_NUM_INTEROP_THREADS=1`.

    Parameters
    ----------
    folder : path
        The argument of `tf.profiler.experimental.Profile`.
    steps : int
        The number of steps that ran under the profiler.

    Raises
    ------
    LabError
        When the folder contains no profile, or none of operations on CPUs.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    times: dict[str, list[float]] = defaultdict(list)
    for file in Path(folder).rglob("*.xplane.pb"):
        for plane in xplane_pb2.XSpace.FromString(file.read_bytes()).planes:
            if plane.name != "/host:CPU":
                continue
            for line in plane.lines:
                for event in line.events:
                    match = _OPERATION.fullmatch(plane.event_metadata[event.metadata_id].name)
                    if match and match[2] not in _CALLS:
                        times[":".join(match.groups())].append(event.duration_ps / 1e9)
    if not times:
        raise LabError(f"{folder} contains no profile of CPU operations: run some in tf.profiler.experimental.Profile.")
    return {name: statistics.median(durations) * len(durations) / steps for name, durations in times.items()}
