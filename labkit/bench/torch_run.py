"""Run one measurement with PyTorch, in this process, without TensorFlow, which has its own threads and memory."""

import math
from collections.abc import Callable

import torch
from torch import nn

from labkit.bench import timing
from labkit.bench.config import LEARNING_RATE, WEIGHT_DECAY, BenchConfig
from labkit.data.synthetic_batch import synthetic_batch
from labkit.models import torch_networks
from labkit.models.registry import MODELS
from labkit.system.errors import LabError

SEED = 1234  # of the weights
LAYOUTS = {"NHWC": torch.channels_last, "NCHW": torch.contiguous_format}
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "resnet50": torch_networks.resnet50,
    "mnist": torch_networks.mnist,
}


def make_step(network: nn.Module, config: BenchConfig) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the step that trains on a batch, and returns the cross-entropy.

    The optimizer applies weight decay; the gradients equal those of the TensorFlow step, whose total loss contains it.
    """
    kernels = [weight for weight in network.parameters() if weight.ndim > 1]
    vectors = [weight for weight in network.parameters() if weight.ndim == 1]
    optimizer = torch.optim.SGD(
        [{"params": kernels, "weight_decay": WEIGHT_DECAY}, {"params": vectors}],
        lr=LEARNING_RATE,
        fused=True,
    )
    network.train()
    forward = torch.compile(network) if config.torch_compile else network

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=config.use_fp16):
            logits = forward(images)
        loss = nn.functional.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_network(name: str, data_format: str = "NHWC") -> nn.Module:
    """Return a network of the registry in this layout, with weights initialised for ReLU, as in TensorFlow."""
    torch.manual_seed(SEED)
    network = NETWORKS[name](MODELS[name].classes)
    for parameter, weight in network.named_parameters():
        if weight.ndim > 1:
            spread = math.sqrt(2 / math.prod(weight.shape[1:]))
            nn.init.trunc_normal_(weight, std=spread, a=-2 * spread, b=2 * spread)
        elif parameter.endswith("bias"):
            nn.init.zeros_(weight)
    return network.to(memory_format=LAYOUTS[data_format])


def make_batch(config: BenchConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same images and labels as in TensorFlow."""
    images, labels = map(torch.from_numpy, synthetic_batch(MODELS[config.model], config.batch_size))
    return images.permute(0, 3, 1, 2).contiguous(memory_format=LAYOUTS[config.data_format]), labels.long()


def measure(config: BenchConfig) -> None:
    """Build the network, warm up and time the steps; print the result, and write it if requested."""
    if config.model not in NETWORKS:
        raise LabError(f"--framework=pytorch supports the models {', '.join(NETWORKS)}.")
    if config.num_intra_threads:
        torch.set_num_threads(config.num_intra_threads)
    if config.num_inter_threads:
        torch.set_num_interop_threads(config.num_inter_threads)
    network = make_network(config.model, config.data_format)
    images, labels = make_batch(config)
    step = make_step(network, config)
    if config.torch_compile:
        print("Compiling: over a minute the first time; later runs reuse the result", flush=True)
    timing.time_steps(config, "PyTorch", torch.__version__, lambda: step(images, labels).item())
