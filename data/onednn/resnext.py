"""Classify four images with ResNeXt-50 in INT8, with random weights and PyTorch's own quantisation, three times."""

import torch
from torch import nn
from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx

GROUPS, WIDTH = 8, 14  # ResNeXt-50 (8×14d) of Xie et al. 2016, arXiv 1611.05431, table 3


def conv_norm(inputs: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution and its batch norm."""
    convolution = nn.Conv2d(inputs, filters, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(filters))


class Block(nn.Module):
    """A residual block, whose 3×3 convolution works on groups of channels."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int):
        super().__init__()
        self.narrow = conv_norm(inputs, width, 1)
        self.square = conv_norm(width, width, 3, stride, GROUPS)
        self.wide = conv_norm(width, outputs, 1)
        self.shortcut = nn.Identity() if inputs == outputs else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        y = self.square(self.narrow(x).relu()).relu()
        return (self.wide(y) + self.shortcut(x)).relu()


def resnext50() -> nn.Sequential:
    """Return the network."""
    layers, inputs = [conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for number in range(blocks):
            outputs, stride = 256 * 2**stage, 2 if stage and not number else 1
            layers.append(Block(inputs, GROUPS * WIDTH * 2**stage, outputs, stride))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)).eval()


if __name__ == "__main__":
    torch.manual_seed(1)
    images = torch.randn(4, 3, 224, 224).to(memory_format=torch.channels_last)
    network = quantize_fx.prepare_fx(resnext50(), get_default_qconfig_mapping("x86"), (images,))
    network(images[:2])  # calibrates the ranges
    network = quantize_fx.convert_fx(network)
    with torch.no_grad():
        for step in range(3):
            print("step", step, flush=True)
            network(images)
