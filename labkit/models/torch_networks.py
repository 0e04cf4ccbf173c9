"""ResNet-50 and the MNIST CNN in PyTorch, with the layers, weights and arithmetic of `labkit.models.architectures`."""

import torch
from torch import nn


def conv_norm(inputs: int, filters: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution and its batch norm."""
    convolution = nn.Conv2d(inputs, filters, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(filters))


class Bottleneck(nn.Module):  # type: ignore[misc]  # PyTorch is not in this environment
    """A residual block: 1×1, 3×3 and 1×1 convolutions, and a shortcut around them."""

    def __init__(self, inputs: int, filters: int, stride: int):
        super().__init__()
        self.narrow = conv_norm(inputs, filters, 1, stride)
        self.square = conv_norm(filters, filters, 3)
        self.wide = conv_norm(filters, 4 * filters, 1)
        same_shape = stride == 1 and inputs == 4 * filters
        self.shortcut = nn.Identity() if same_shape else conv_norm(inputs, 4 * filters, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        y = self.square(self.narrow(x).relu_()).relu_()
        return (self.wide(y) + self.shortcut(x)).relu_()


def resnet50(classes: int) -> nn.Sequential:
    """Return ResNet-50."""
    layers = [conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for number in range(count):
            stride = 2 if stage and not number else 1
            layers.append(Bottleneck(inputs, 64 * 2**stage, stride))
            inputs = 4 * 64 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def mnist(classes: int) -> nn.Sequential:
    """Return the MNIST CNN of the labs."""
    layers: list[nn.Module] = []
    for inputs, filters in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(7 * 7 * 64, 128), nn.ReLU(), nn.Linear(128, classes))
