import numpy as np
import openvino
import openvino_genai
import pytest

from labkit.models.decoder import EPSILON, Decoder, Shape, for_genai, openvino_model, random_weights

SHAPE = Shape(layers=2, width=24, heads=3, symbols=20, context=40)


def logits_of(shape, weights, tokens):
    """Return the logits after each of n tokens of one text, query by query, by a decoder's definition."""

    def norm(x):
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON)

    def gelu(x):
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    d, kv_width = shape.head_size, shape.kv_heads * shape.head_size
    x = np.array([weights["embed"][token] + weights["position"][place] for place, token in enumerate(tokens)], float)
    for layer in range(shape.layers):
        q, k, v = np.split(norm(x) @ weights[f"{layer}.qkv"], (shape.width, shape.width + kv_width), axis=1)
        attended = np.zeros_like(x)
        for place in range(len(x)):
            for number in range(shape.heads):
                head = slice(number * d, number * d + d)
                first = number // shape.shared_by * d
                shared = slice(first, first + d)
                shares = np.exp(k[: place + 1, shared] @ q[place, head] / np.sqrt(d))
                attended[place, head] = shares / shares.sum() @ v[: place + 1, shared]
        x = x + attended @ weights[f"{layer}.out"]
        x = x + gelu(norm(x) @ weights[f"{layer}.up"]) @ weights[f"{layer}.down"]
    return norm(x) @ weights["logits"]


@pytest.fixture(scope="module")
def weights():
    return random_weights(SHAPE)


@pytest.fixture(scope="module")
def texts():
    return np.random.default_rng(0).integers(0, SHAPE.symbols, (3, SHAPE.context))


@pytest.fixture(scope="module")
def logits(weights, texts):
    return np.array([logits_of(SHAPE, weights, text) for text in texts])


@pytest.mark.parametrize(("settings", "error"), [({}, 1e-4), ({"INFERENCE_PRECISION_HINT": "bf16"}, 0.1)])
@pytest.mark.parametrize("passes", [(40,), (1,) * 40, (7, 1, 1, 20, 11)])
def test_each_text_gets_the_logits_of_its_own_tokens_in_passes_of_any_size(
    weights, texts, logits, settings, error, passes
):
    decoder = Decoder(openvino_model(SHAPE, weights), **settings)
    ends = np.cumsum(passes)
    results = [decoder.forward(texts[:, end - count : end]) for end, count in zip(ends, passes, strict=True)]
    assert decoder.length == SHAPE.context
    np.testing.assert_allclose(np.concatenate(results, axis=1), logits, atol=error, rtol=0)


@pytest.mark.parametrize("shape", [Shape(1, 8, 1, symbols=5, context=9), Shape(3, 64, 4, symbols=5, context=9)])
def test_decoders_of_any_size_return_the_right_logits(shape):
    weights, tokens = random_weights(shape), np.array([[0, 4, 4, 1, 2, 3, 0]])
    result = Decoder(openvino_model(shape, weights)).forward(tokens)
    np.testing.assert_allclose(result[0], logits_of(shape, weights, tokens[0]), atol=1e-4)


@pytest.mark.parametrize("shared_by", [2, 4])
def test_heads_can_share_keys_and_values(shared_by):
    shape = Shape(2, 64, 4, symbols=5, context=30, shared_by=shared_by)
    weights, tokens = random_weights(shape), np.arange(30).reshape(1, -1) % 5
    decoder = Decoder(openvino_model(shape, weights), PERF_COUNT=True)
    result = np.concatenate([decoder.forward(tokens[:, :20]), decoder.forward(tokens[:, 20:])], axis=1)
    np.testing.assert_allclose(result[0], logits_of(shape, weights, tokens[0]), atol=1e-4)
    assert "ScaledDotProductAttentionWithKVCache" in decoder.profile()  # fused: no copies of keys and values
    assert shape.block_weights == sum(array.size for name, array in weights.items() if "." in name)


def test_a_filled_cache_has_its_length(weights):
    decoder = Decoder(openvino_model(SHAPE, weights))
    decoder.fill(3, 12)
    assert decoder.length == 12
    assert np.isfinite(decoder.forward(np.zeros((3, 1), int))).all()
    assert decoder.length == 13
    decoder.fill(1, 5)  # another batch, another length
    assert decoder.forward(np.zeros((1, 2), int)).shape == (1, 2, SHAPE.symbols)


def test_reset_clears_the_cache(weights, texts):
    decoder = Decoder(openvino_model(SHAPE, weights))
    first = decoder.forward(texts[:1, :9])
    assert not np.allclose(decoder.forward(texts[:1, :9]), first, atol=1e-3)
    decoder.reset()
    assert decoder.length == 0
    np.testing.assert_allclose(decoder.forward(texts[:1, :9]), first, atol=1e-5)
    decoder.reset()
    assert decoder.forward(texts[:, :9]).shape == (3, 9, SHAPE.symbols)  # another number of texts


def test_a_profile_covers_the_passes_since_the_last_one(weights, texts):
    decoder = Decoder(openvino_model(SHAPE, weights), PERF_COUNT=True)
    decoder.forward(texts[:1, :3])
    assert decoder.profile()["FullyConnected"] > 0
    decoder.forward(texts[:1, :3])
    again = decoder.profile()  # a pass of such a small model can round to 0 microseconds
    assert "FullyConnected" in again
    assert all(ms >= 0 for ms in again.values())
    assert set(decoder.profile().values()) == {0.0}
    without = Decoder(openvino_model(SHAPE, weights))
    without.forward(texts[:1, :3])
    assert set(without.profile().values()) == {0.0}


def test_random_weights_have_their_shapes_and_follow_from_the_seed():
    shapes = SHAPE.weight_shapes()
    first, again, other = random_weights(SHAPE), random_weights(SHAPE), random_weights(SHAPE, seed=1)
    assert {name: array.shape for name, array in first.items()} == shapes
    assert all(array.dtype == np.float32 for array in first.values())
    assert all((first[name] == again[name]).all() and (first[name] != other[name]).any() for name in shapes)
    assert SHAPE.block_weights == sum(rows * columns for name, (rows, columns) in shapes.items() if "." in name)


@pytest.mark.parametrize("backend", ["SDPA", "PA"])
def test_genai_generates_the_decoders_tokens(tmp_path, backend):
    shape = Shape(layers=2, width=128, heads=2, context=40)
    weights = random_weights(shape)
    decoder, prompt = Decoder(openvino_model(shape, weights)), np.arange(9)[None]
    tokens = [int(decoder.forward(prompt)[0, -1].argmax())]
    while len(tokens) < 8:
        tokens.append(int(decoder.forward(np.array([tokens[-1:]]))[0, -1].argmax()))
    openvino.save_model(for_genai(openvino_model(shape, weights)), tmp_path / "openvino_model.xml", False)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 0}')
    precisions = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    pipeline = openvino_genai.LLMPipeline(str(tmp_path), "CPU", ATTENTION_BACKEND=backend, **precisions)
    assert pipeline.generate(openvino.Tensor(prompt), max_new_tokens=8, ignore_eos=True).tokens == [tokens]
