"""A small residual network of one's own.

    probekit train packaged:digits -b pixels:8 --clients 5 --server-share 0.2 \
        --network py:residual:network:width=8 --run runs/own
    probekit unlearn runs/own --client 3 --network py:residual:network:width=8

What it takes is what `pixels` gives: pictures (channels, height, width) between 0 and 1.
"""

from torch import nn


class Block(nn.Module):
    """x + two convolutions of it. Group norm, not batch norm: a row must not depend on others."""

    def __init__(self, width):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(1, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, maps):
        return maps + self.branch(maps)


def network(num_classes, width=8, channels=1):
    """`num_classes` is passed by probekit; what else it takes is typed behind its name."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        Block(width),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width, num_classes),
    )
