import pytest

from labkit.models.published import MODELS

STATED = {  # billions of weights as published: all, and those active per token with the embedding
    "Qwen3-0.6B": (0.6, 0.6),
    "Qwen3-1.7B": (1.7, 1.7),
    "Qwen3-4B": (4.0, 4.0),
    "Qwen3-8B": (8.2, 8.2),
    "Qwen3-30B-A3B": (30.5, 3.3),
}


@pytest.mark.parametrize("name", MODELS)
def test_sizes_give_the_published_number_of_weights(name):
    model, (total, active) = MODELS[name], STATED[name]
    embedding = 0 if model.tied else model.width * model.symbols
    assert model.weights / 1e9 == pytest.approx(total, rel=0.02)
    assert (model.active_weights + embedding) / 1e9 == pytest.approx(active, rel=0.02)
