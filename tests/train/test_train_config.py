import dataclasses
from pathlib import Path

import pytest
from guide_flags import GUIDE

from labkit.system import flags
from labkit.system.errors import LabError
from labkit.train.config import TrainConfig


def parse(args: list[str]) -> TrainConfig:
    return flags.parse(TrainConfig, args, "python -m labkit.train")


def test_defaults_are_those_of_the_configuration():
    assert parse([]) == TrainConfig()
    assert parse(["--batch_size=64", "--use_cosine_lr"]) == TrainConfig(batch_size=64, use_cosine_lr=True)


def test_the_guides_flags_are_accepted_unchanged(tmp_path):
    config = parse([*GUIDE, f"--data_dir={tmp_path}"])  # only the images are elsewhere
    assert config == TrainConfig(
        mode="train_and_evaluate",
        iter_unit="epoch",
        num_iter=50,
        batch_size=256,
        warmup_steps=100,
        use_cosine_lr=True,
        label_smoothing=0.1,
        lr_init=0.256,
        lr_warmup_epochs=8,
        momentum=0.875,
        weight_decay=2**-15,
        data_dir=tmp_path,
        results_dir=Path("run_results"),
        use_xla=True,
        precision="fp16",
        loss_scale=1024,
        use_static_loss_scaling=True,
    )
    assert config.static_loss_scale == 1024


def test_a_loss_scale_needs_both_its_flags():
    assert parse(["--precision=fp16"]).static_loss_scale == 1
    assert parse(["--precision=bf16", "--use_static_loss_scaling", "--loss_scale=8"]).static_loss_scale == 8


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse([]).batch_size = 64


@pytest.mark.parametrize(
    ("mode", "trains", "evaluates"), [("train", 1, 0), ("evaluate", 0, 1), ("train_and_evaluate", 1, 1)]
)
def test_the_mode_decides_training_and_evaluation(mode, trains, evaluates):
    config = parse(["--mode", mode])
    assert (config.trains, config.evaluates) == (trains, evaluates)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--use_static_loss_scaling", "--use_static_loss_scaling needs 16 bits"),
        ("--loss_scale=128", "--loss_scale has no effect alone: add --use_static_loss_scaling"),
    ],
)
def test_invalid_flags_are_one_line_errors(args, message):
    with pytest.raises(LabError) as error:
        parse([args])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
