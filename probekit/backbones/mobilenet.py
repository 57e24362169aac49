"""MobileNetV2 (Sandler et al., 2018) with the names that torchvision's weights have: features only, no classifier."""

from __future__ import annotations

from torch import Tensor, nn

STEM, TOP = 32, 1280
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, stride of the first block."""


def _convolved(given: int, wanted: int, *, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(given, wanted, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(wanted), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """Widen, convolve each channel by itself, narrow; added to its input where the shapes agree."""

    def __init__(self, given: int, wanted: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = given * expansion
        widened = [] if expansion == 1 else [_convolved(given, width, kernel=1)]
        depthwise = _convolved(width, width, stride=stride, groups=width)
        self.conv = nn.Sequential(*widened, depthwise, nn.Conv2d(width, wanted, 1, bias=False), nn.BatchNorm2d(wanted))
        self.added = stride == 1 and given == wanted

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        found: Tensor = self.conv(x)
        return x + found if self.added else found


class MobileNetV2(nn.Module):
    """The features of a picture, (n, 1280, h, w)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolved(3, STEM, stride=2)]
        given = STEM
        for expansion, wanted, blocks, stride in STAGES:
            for number in range(blocks):
                layers.append(InvertedResidual(given, wanted, stride if number == 0 else 1, expansion))
                given = wanted
        self.features = nn.Sequential(*layers, _convolved(given, TOP, kernel=1))

    def extract_features(self, batch: Tensor) -> Tensor:
        """What a classifier would pool."""
        found: Tensor = self.features(batch)
        return found
