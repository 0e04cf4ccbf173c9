import dataclasses

import pytest

from labkit.system.errors import LabError
from labkit.train import flags
from labkit.train.config import TrainConfig


def test_each_flag_is_a_field_of_the_configuration():
    found = {action.dest for action in flags.parser()._actions} - {"help"}
    assert found == {field.name for field in dataclasses.fields(TrainConfig)}


def test_what_is_not_given_is_as_the_configuration_has_it():
    assert flags.parse([]) == TrainConfig()
    assert flags.parse(["--batch_size=64", "--cosine_lr"]) == TrainConfig(batch_size=64, cosine_lr=True)


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        flags.parse([]).batch_size = 64


@pytest.mark.parametrize(
    ("mode", "trains", "evaluates"), [("train", 1, 0), ("evaluate", 0, 1), ("train_and_evaluate", 1, 1)]
)
def test_a_mode_says_what_is_done(mode, trains, evaluates):
    config = flags.parse(["--mode", mode])
    assert (config.trains, config.evaluates) == (trains, evaluates)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--num_iter=0", "--num_iter: 0 is less than 1"),
        ("--label_smoothing=1.5", "--label_smoothing: 1.5 is more than 1"),
        ("--least_area=nan", "--least_area: nan is more than 1"),
        ("--model=vgg16", "invalid choice: 'vgg16'"),
        ("--static_loss_scale=128", "--static_loss_scale is for 16 bits"),
    ],
)
def test_what_makes_no_sense_is_one_line(args, message):
    with pytest.raises(LabError) as error:
        flags.parse([args])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
