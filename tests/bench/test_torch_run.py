"""Tests of the benchmark with PyTorch, whose networks and steps are compared with TensorFlow's."""

import json
import sys

import numpy as np
import pytest

from labkit.bench import configurations
from labkit.bench.config import LEARNING_RATE, WEIGHT_DECAY
from labkit.bench.run import make_step
from labkit.data.synthetic_batch import synthetic_batch
from labkit.models.networks import Network
from labkit.system import processes
from labkit.system.errors import LabError

pytestmark = pytest.mark.usefixtures("pytorch_is_here")

SMALL = ("--model=mnist", "--batch_size=4", "--num_batches=6", "--num_warmup_batches=1")


def bench(name: str, *flags: str, **variables: object) -> dict:
    """Return the result of a configuration."""
    configuration = configurations.known()[name]
    return configurations.run_once(configuration + configurations.Configuration(variables), *SMALL, *flags)


def in_torch(script: str) -> str:
    """Run a script with the PyTorch benchmark as `torch_run`, and return its last line."""
    start = "from labkit.bench import __main__\ntorch_run = __main__._torch_run()\nimport torch\n"
    done = processes.run([sys.executable, "-c", start + script], timeout=120)
    assert not done.failure, done.lines
    return done.lines[-1]


def test_the_networks_match_tensorflows():
    script = """
import json
networks = {}
for name in torch_run.NETWORKS:
    networks[name] = sorted(sorted(weight.shape) for weight in torch_run.make_network(name).parameters())
print(json.dumps(networks))
"""
    networks = json.loads(in_torch(script))
    assert "resnet50" in networks
    for name, shapes in networks.items():
        assert shapes == sorted(sorted(weight.shape) for weight in Network(name).weights)


def test_the_layout_changes_the_images_and_not_the_losses():
    first, last = bench("torch", "--data_format=NCHW"), bench("torch")
    assert first["losses"] == pytest.approx(last["losses"], rel=1e-3)
    script = """
from labkit.bench.config import BenchConfig
for layout in ("NHWC", "NCHW"):
    images, labels = torch_run.make_batch(BenchConfig("pytorch", "resnet50", batch_size=2, data_format=layout))
    assert images.is_contiguous() == (layout == "NCHW")
    assert images.is_contiguous(memory_format=torch.channels_last) == (layout == "NHWC")
print("both")
"""
    assert in_torch(script) == "both"


def test_another_network_is_a_one_line_error():
    with pytest.raises(LabError, match=r"--framework=pytorch supports the models resnet50, .*mnist\."):
        bench("torch", "--model=resnet8")


def test_the_same_weights_give_the_same_losses(tmp_path):
    network = Network("mnist")
    conv1, bias1, conv2, bias2, dense1, bias3, dense2, bias4 = (weight.numpy() for weight in network.weights)
    # PyTorch kernels are (out, in, height, width), and PyTorch flattens with channels first.
    dense1 = dense1.reshape(7, 7, 64, 128).transpose(3, 2, 0, 1).reshape(128, -1)
    first, second = (kernel.transpose(3, 2, 0, 1) for kernel in (conv1, conv2))
    np.savez(tmp_path / "weights.npz", first, bias1, second, bias2, dense1, bias3, dense2.T, bias4)
    step = make_step(network, LEARNING_RATE, WEIGHT_DECAY)
    images, labels = synthetic_batch(network.model, 4)
    losses = []
    for _ in range(4):
        decay = WEIGHT_DECAY * sum(float((w.numpy() ** 2).sum()) / 2 for w in network.weights if len(w.shape) > 1)
        losses.append(float(step(images, labels)) - decay)
    script = f"""
import json
import numpy as np
from labkit.bench.config import BenchConfig
config = BenchConfig(model="mnist", batch_size=4)
network = torch_run.make_network("mnist")
stored = np.load({str(tmp_path / "weights.npz")!r})
with torch.no_grad():
    for weight, name in zip(network.parameters(), stored.files, strict=True):
        weight.copy_(torch.from_numpy(stored[name]))
step, (images, labels) = torch_run.make_step(network, config), torch_run.make_batch(config)
print(json.dumps([step(images, labels).item() for _ in range(4)]))
"""
    assert json.loads(in_torch(script)) == pytest.approx(losses, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "library", "settings", "policy"),
    [
        ("torch-sleep", "libgomp", {"OMP_DISPLAY_ENV": "verbose"}, "GOMP_SPINCOUNT = '0'"),
        ("torch-intel-sleep", "libiomp5", {"KMP_SETTINGS": 1}, "KMP_BLOCKTIME=0"),
    ],
)
def test_a_configuration_names_its_openmp_and_sets_whether_threads_spin(name, library, settings, policy):
    configuration = configurations.known()[name]
    if reason := configuration.missing:
        pytest.skip(reason)
    argv = [sys.executable, "-m", "labkit.bench", *configuration.flags, *SMALL]
    lines = processes.run(argv, {**configuration.env, **settings}).lines
    assert any(line.startswith("OpenMP:") and library in line for line in lines)
    assert any(policy in line for line in lines)


@pytest.mark.slow
def test_a_compiled_network_is_cached_for_the_next_run(tmp_path):
    first = bench("torch-compile", TORCHINDUCTOR_CACHE_DIR=tmp_path / "cache")
    assert any((tmp_path / "cache").iterdir())
    assert first["losses"] == pytest.approx(bench("torch")["losses"], rel=0.01)
