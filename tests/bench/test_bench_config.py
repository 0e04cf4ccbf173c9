import os

import pytest

from labkit.bench.config import BenchConfig
from labkit.system import flags
from labkit.system.errors import LabError


def parse(args: list[str]) -> BenchConfig:
    return flags.parse(BenchConfig, args, "./lab bench")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--framework=jax", "'jax' is not one of 'tensorflow'"),
        ("--json no/such/folder/x.json", "no folder no/such/folder to write x.json to"),
        ("--framework=pytorch --xla_compile", "doesn't support --xla_compile"),
        ("--data_format=NCHW", "--data_format=NCHW needs --framework=pytorch"),
        ("--torch_compile", "--torch_compile needs --framework=pytorch"),
    ],
)
def test_invalid_flags_are_one_line_errors(args, message):
    with pytest.raises(LabError) as error:
        parse(args.split())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_configuration_survives_a_round_trip_through_flags(tmp_path):
    config = parse(["--model=mnist", "--xla_compile", "--use_fp16", f"--json={tmp_path}/x"])
    again = parse(config.as_flags())
    assert again == config
    assert config.as_flags(without=("json",)) == [
        "--model=mnist",
        "--use_fp16",
        "--xla_compile",
    ]


def test_a_run_imports_no_keras_and_keeps_the_users_cache_of_compiled_code(monkeypatch):
    monkeypatch.setattr(os, "environ", environ := {"TORCHINDUCTOR_CACHE_DIR": "/cache"})
    parse([]).set_variables()
    assert environ == {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/cache",
    }
