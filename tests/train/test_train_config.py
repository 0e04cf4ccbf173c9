import pytest
from guide_flags import GUIDE
from lab_error import error_of

from labkit.system import flags
from labkit.train.config import TrainConfig


def parse(args: list[str]) -> TrainConfig:
    return flags.parse(TrainConfig, args, "python -m labkit.train")


def test_the_guides_flags_are_accepted_unchanged(tmp_path):
    config = parse([*GUIDE, f"--data_dir={tmp_path}"])  # only the images are elsewhere
    assert (config.mode, config.iter_unit, config.num_iter, config.batch_size) == (
        "train_and_evaluate",
        "epoch",
        50,
        256,
    )
    assert (config.lr_init, config.lr_warmup_epochs, config.weight_decay) == (0.256, 8, 2**-15)
    assert (config.use_cosine_lr, config.use_xla, config.precision) == (True, True, "fp16")
    assert config.static_loss_scale == 1024


def test_a_loss_scale_needs_both_its_flags():
    assert parse(["--precision=fp16"]).static_loss_scale == 1
    assert parse(["--precision=bf16", "--use_static_loss_scaling", "--loss_scale=8"]).static_loss_scale == 8


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
    assert message in error_of(parse, [args])
