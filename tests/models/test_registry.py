import sys

import pytest

from labkit.bench.config import BenchConfig
from labkit.models.registry import MODELS
from labkit.system import flags, processes


@pytest.mark.parametrize("name", MODELS)
def test_the_benchmark_knows_every_network_of_the_registry(name):
    assert flags.parse(BenchConfig, [f"--model={name}"], "bench").dataset == MODELS[name].dataset


def test_images_and_classes_match_the_dataset():
    for model in MODELS.values():
        assert {"imagenet": 1001, "synthetic": 11, "mnist": 10}[model.dataset] == model.classes
        assert model.shape[-1] == (1 if model.dataset == "mnist" else 3)


def test_names_can_be_listed_without_tensorflow():
    code = "import labkit.bench.__main__, sys; print('tensorflow' in sys.modules)"
    assert processes.run([sys.executable, "-c", code]).lines[-1] == "False"
