import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from labkit.bench.op_profile import read_operations, read_profile
from labkit.system.errors import LabError


def write(folder, *threads, plane="/host:CPU"):
    """Write a profile in which each thread has events: (name, milliseconds)."""
    space = xplane_pb2.XSpace()
    host = space.planes.add(name=plane)
    for events in threads:
        line = host.lines.add()
        for name, ms in events:
            number = len(host.event_metadata) + 1
            host.event_metadata[number].name = name
            line.events.add(metadata_id=number, duration_ps=int(1e9 * ms))
    path = folder / "plugins" / "profile" / "today" / "here.xplane.pb"
    path.parent.mkdir(parents=True)
    path.write_bytes(space.SerializeToString())


def test_the_times_of_a_type_are_summed_over_threads(tmp_path):
    write(
        tmp_path,
        [("net/conv1/convolution:Conv2D", 1.5), ("net/conv1/Relu:_MklNativeFusedConv2D", 0.25)],
        [("net/conv2/convolution:Conv2D", 2.0)],
    )
    assert read_profile(tmp_path) == {"Conv2D": 3.5, "_MklNativeFusedConv2D": 0.25}
    assert read_operations(tmp_path)["net/conv1/Relu:_MklNativeFusedConv2D"] == 0.25


def test_one_disturbed_step_of_three_changes_nothing(tmp_path):
    write(
        tmp_path,
        [
            event
            for ms in (2, 90, 2)
            for event in (("conv1:Conv2D", ms), ("conv2:Conv2D", 1.0), ("loop/a:Mul", 0.5), ("loop/a:Mul", 0.5))
        ],
    )
    assert read_profile(tmp_path, steps=3) == {"Conv2D": 3.0, "Mul": 1.0}


def test_events_that_contain_operations_are_not_counted(tmp_path):
    write(
        tmp_path,
        [
            ("ExecutorState::Process", 9.0),
            ("StatefulPartitionedCall:StatefulPartitionedCall", 8.0),
            ("training", 7.0),
            ("a:MatMul", 1.0),
        ],
    )
    assert read_profile(tmp_path) == {"MatMul": 1.0}


def test_a_folder_without_a_profile_is_an_error(tmp_path):
    with pytest.raises(LabError, match="contains no profile"):
        read_profile(tmp_path)
    write(tmp_path, [("a:MatMul", 1.0)], plane="/host:metadata")
    with pytest.raises(LabError, match="contains no profile"):
        read_profile(tmp_path)
