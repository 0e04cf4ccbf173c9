import os

import pytest

from labkit.bench.config import BenchConfig
from labkit.system import flags
from labkit.system.errors import LabError


def parse(args: list[str]) -> BenchConfig:
    return flags.parse(BenchConfig, args, "./lab bench")


def test_onednn_is_tensorflows_choice_unless_set():
    assert parse([]) == BenchConfig()
    assert parse([]).mkl is None
    assert parse(["--mkl=True"]).mkl is True
    assert parse(["--nomkl"]).mkl is False


def test_the_command_of_2018_is_understood():
    command = (
        "--device=CPU --data_name=imagenet --batch_size=128 --num_batches=30 --model=resnet50 --data_format=NHWC "
        "--mkl=True --kmp_blocktime 1 --num_intra_threads 18 --num_inter_threads 2"
    )
    config = parse(command.split())
    assert (config.model, config.batch_size, config.kmp_blocktime, config.num_intra_threads) == (
        "resnet50",
        128,
        "1",
        18,
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--device=gpu", "'gpu' is not one of 'cpu'"),
        ("--model=mnist --data_name=imagenet", "--model=mnist needs --data_name=mnist, not imagenet"),
        ("--json no/such/folder/x.json", "no folder no/such/folder to write x.json to"),
        ("--nomkl --data_format=NCHW", "NCHW needs oneDNN"),
        ("--framework=pytorch --optimizer=rmsprop", "doesn't support --optimizer"),
        ("--torch_compile", "--torch_compile needs --framework=pytorch"),
    ],
)
def test_invalid_flags_are_one_line_errors(args, message):
    with pytest.raises(LabError) as error:
        parse(args.split())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_configuration_survives_a_round_trip_through_flags(tmp_path):
    config = parse(["--model=mnist", "--xla_compile", "--use_fp16", "--mkl=false", f"--json={tmp_path}/x"])
    again = parse(config.as_flags())
    assert again == config
    assert config.as_flags(without=("json", "mkl")) == [
        "--model=mnist",
        "--use_fp16=True",
        "--xla_compile=True",
    ]


def test_library_flags_become_environment_variables(monkeypatch):
    environ = {"OMP_NUM_THREADS": "7", "TORCHINDUCTOR_CACHE_DIR": "/cache"}
    monkeypatch.setattr(os, "environ", environ)
    parse(["--num_intra_threads=3", "--kmp_blocktime=1"]).set_variables()
    common = {
        "KMP_BLOCKTIME": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/cache",
    }
    assert environ == {"OMP_NUM_THREADS": "7", **common}
    parse(["--mkl", "--num_intra_threads=3"]).set_variables()
    assert environ == {"OMP_NUM_THREADS": "3", "TF_ENABLE_ONEDNN_OPTS": "1", **common}
    parse(["--nomkl"]).set_variables()
    assert environ["TF_ENABLE_ONEDNN_OPTS"] == "0"


def test_keras_is_imported_only_for_horovod(monkeypatch):
    monkeypatch.setattr(os, "environ", environ := {})
    parse(["--variable_update=horovod"]).set_variables()
    assert "TF_USE_LEGACY_KERAS" not in environ
