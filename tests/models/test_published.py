import pytest

from labkit.models.published import MODELS, PublishedModel

STATED = {  # billions of weights as published: all, and those active per token with the embedding
    "Qwen3-0.6B": (0.6, 0.6),
    "Gemma-3-1B": (1.0, 1.0),
    "Qwen3-4B": (4.0, 4.0),
    "Gemma-3-4B": (3.88, 3.88),
    "Llama-3.1-8B": (8.03, 8.03),
    "Qwen3-30B-A3B": (30.5, 3.3),
    "Llama-3.3-70B": (70.6, 70.6),
}


@pytest.mark.parametrize("name", MODELS)
def test_sizes_give_the_published_number_of_weights(name):
    model, (total, active) = MODELS[name], STATED[name]
    embedding = 0 if model.tied else model.width * model.symbols
    assert model.weights / 1e9 == pytest.approx(total, rel=0.02)
    assert (model.active_weights + embedding) / 1e9 == pytest.approx(active, rel=0.02)


def test_a_sliding_window_caps_the_context_of_most_blocks():
    dense = PublishedModel(6, 8, 2, 1, 4, 16, 10)
    sliding = PublishedModel(6, 8, 2, 1, 4, 16, 10, window=100, every=6)
    assert dense.cached(4096) == 4096
    assert sliding.cached(4096) == (4096 + 5 * 100) / 6
    assert sliding.cached(60) == 60
