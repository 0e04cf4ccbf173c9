import numpy as np
import pytest

from labkit import native
from labkit.exercises import catalogue
from labkit.models import integer_net
from labkit.models.integer_net import Layer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(native.obstacle()), reason="NO C COMPILER HERE"),
]


def random_layer(rng, kind, inputs, outputs):
    codes = rng.integers(-127, 128, (inputs, outputs))
    return Layer(kind, codes, rng.integers(-999, 1000, outputs), np.full(outputs, 2.0**-7 / inputs**0.5, np.float32))


def expected(layers, codes):
    """Return the last layer's codes, computed with NumPy."""
    x = codes.astype(float)
    for kind, weights, bias, factor in layers:
        n, side = x.shape[:2]
        if kind == "pool":
            half = side // 2
            x = x[:, : 2 * half, : 2 * half].reshape(n, half, 2, half, 2, -1).max(axis=(2, 4))
            continue
        if kind == "convolution":
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            x = np.concatenate([padded[:, i : i + side, j : j + side] for i, j in np.ndindex(3, 3)], axis=3)
        else:
            x = x.reshape(n, -1)
        x = np.clip(np.floor(np.float32(factor) * (x @ weights + bias) + 0.5), 0, 255)
    return x


@pytest.mark.parametrize("exercise", [5, 6])
@pytest.mark.parametrize("flags", [native.FAST, native.CHECKED])
def test_network_computes_what_numpy_does(tmp_path, exercise, flags):
    file = tmp_path / "layer.c"
    file.write_text(catalogue.find("04").exercises[exercise].solution.partition("\n")[2])
    rng = np.random.default_rng(0)
    layers = [
        random_layer(rng, "convolution", 9 * 2, 5),
        Layer("pool"),  # of 7 × 7 codes: the last row and column are left out
        random_layer(rng, "convolution", 9 * 5, 70),
        random_layer(rng, "dense", 9 * 70, 11),
        random_layer(rng, "dense", 11, 3),
    ]
    images = rng.integers(0, 256, (9, 7, 7, 2))
    try:
        program = integer_net.build(file, flags)
    except native.NoSanitizers:
        pytest.skip("NO SANITIZERS HERE")
    codes, rate = integer_net.run(program, layers, images, threads=2, at_least_s=0)
    wrong = np.abs(codes - expected(layers, images))
    assert wrong.max() <= 1  # where the product of a factor rounds another way
    assert (wrong > 0).mean() < 0.05
    assert rate > 0
