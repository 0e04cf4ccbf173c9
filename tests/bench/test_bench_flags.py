import dataclasses
import os

import pytest

from labkit.bench import flags
from labkit.bench.config import BenchConfig
from labkit.system.errors import LabError


def test_each_flag_is_a_field_of_the_configuration():
    names = {action.dest for action in flags.parser()._actions} - {"help", "data_name"}
    assert names == {field.name for field in dataclasses.fields(BenchConfig)}
    assert flags.parse([]) == BenchConfig()


def test_onednn_is_tensorflows_choice_unless_set():
    assert flags.parse([]).mkl is None
    assert flags.parse(["--mkl=True"]).mkl is True
    assert flags.parse(["--nomkl"]).mkl is False


def test_the_command_of_2018_is_understood():
    command = (
        "--device=CPU --data_name=imagenet --batch_size=128 --num_batches=30 --model=resnet50 --data_format=NHWC "
        "--mkl=True --kmp_blocktime 1 --num_intra_threads 18 --num_inter_threads 2"
    )
    config = flags.parse(command.split())
    assert (config.model, config.batch_size, config.kmp_blocktime, config.num_intra_threads) == (
        "resnet50",
        128,
        "1",
        18,
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--modle=resnet50", "unrecognized arguments: --modle=resnet50"),
        ("--batch=16", "unrecognized arguments: --batch=16"),  # no abbreviations
        ("--batch_size=0", "--batch_size: 0 is less than 1"),
        ("--batch_size=many", "invalid integer value: 'many'"),
        ("--forward_only=maybe", "'maybe' is neither true nor false"),
        ("--model=alexnet", "invalid choice: 'alexnet'"),
        ("--device=gpu", "invalid choice: 'gpu'"),
        ("--model=mnist --data_name=imagenet", "--model=mnist needs --data_name=mnist, not imagenet"),
        ("--json no/such/folder/x.json", "no folder no/such/folder to write x.json to"),
        ("--nomkl --data_format=NCHW", "NCHW needs oneDNN"),
        ("--framework=pytorch --model=vgg16", "--framework=pytorch supports the models resnet50, "),
        ("--framework=pytorch --optimizer=rmsprop", "doesn't support --optimizer"),
        ("--framework=pytorch --trace_file=trace.json", "doesn't support --trace_file"),
        ("--torch_compile", "--torch_compile needs --framework=pytorch"),
    ],
)
def test_invalid_flags_are_one_line_errors(args, message):
    with pytest.raises(LabError) as error:
        flags.parse(args.split())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_configuration_survives_a_round_trip_through_flags(tmp_path):
    config = flags.parse(["--model=mnist", "--nofused_batch_norm", "--use_fp16", "--mkl=false", f"--json={tmp_path}/x"])
    again = flags.parse(flags.as_flags(config))
    assert again == config
    assert flags.as_flags(config, without=("json", "mkl")) == [
        "--model=mnist",
        "--use_fp16=True",
        "--fused_batch_norm=False",
    ]


def test_library_flags_become_environment_variables(monkeypatch):
    environ = {"OMP_NUM_THREADS": "7", "TORCHINDUCTOR_CACHE_DIR": "/cache"}
    monkeypatch.setattr(os, "environ", environ)
    flags.set_variables(flags.parse(["--num_intra_threads=3", "--kmp_blocktime=1"]))
    common = {
        "KMP_BLOCKTIME": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/cache",
    }
    assert environ == {"OMP_NUM_THREADS": "7", **common}
    flags.set_variables(flags.parse(["--mkl", "--num_intra_threads=3"]))
    assert environ == {"OMP_NUM_THREADS": "3", "TF_ENABLE_ONEDNN_OPTS": "1", **common}
    flags.set_variables(flags.parse(["--nomkl"]))
    assert environ["TF_ENABLE_ONEDNN_OPTS"] == "0"


def test_keras_is_imported_only_for_horovod(monkeypatch):
    monkeypatch.setattr(os, "environ", environ := {})
    flags.set_variables(flags.parse(["--variable_update=horovod"]))
    assert "TF_USE_LEGACY_KERAS" not in environ
