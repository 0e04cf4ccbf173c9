import sys

import pytest

from labkit.bench.config import BenchConfig
from labkit.models.registry import MODELS
from labkit.system import flags, processes
from labkit.train.config import TrainConfig


@pytest.mark.parametrize("name", MODELS)
def test_the_programs_know_every_network_of_the_registry(name):
    assert flags.parse(BenchConfig, [f"--model={name}"], "bench").dataset == MODELS[name].dataset
    if MODELS[name].recipe:
        assert flags.parse(TrainConfig, ["--model", name], "train").model == name


def test_the_recipe_is_for_residual_networks_and_resnet50_by_default():
    assert [name for name, model in MODELS.items() if model.recipe] == ["resnet50_v1.5", "resnet8", "resnet20"]
    assert TrainConfig().model == "resnet50_v1.5"


def test_images_and_classes_match_the_dataset():
    for model in MODELS.values():
        assert {"imagenet": 1001, "synthetic": 11, "mnist": 10}[model.dataset] == model.classes
        assert model.shape[-1] == (1 if model.dataset == "mnist" else 3)


def test_names_can_be_listed_without_tensorflow():
    code = "import labkit.bench.__main__, labkit.train.__main__, sys; print('tensorflow' in sys.modules)"
    assert processes.run([sys.executable, "-c", code]).lines[-1] == "False"
