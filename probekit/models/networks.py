"""Whole networks by name: the paper's, a few others as proof of generality, and anybody's by `py:module:factory`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from probekit.errors import CorruptError, InputError, MismatchError, NotFoundError, ProbekitError
from probekit.jacobian.inspection import first_line
from probekit.jacobian.linearize import Linearized, linearize, tensor_of
from probekit.models.heads import Network, NetworkHead
from probekit.registry import imported, nearest

SLOPE = 0.01
"""Of LeakyReLU below zero, as the paper has it."""

CANARY_ROWS, CANARY_SEED = 2, 12
ALIKE = 1e-3
"""How far, relatively, the same code may be off on another machine."""

Shape = tuple[int, ...]
Factory = Callable[[Shape, int], nn.Module]


def mlp(shape: Shape, classes: int, *, hidden: Shape = (100, 50)) -> nn.Module:
    """The paper's perceptron: 784-100-50-10 on pictures of 28 x 28."""
    sizes = [int(torch.Size(shape).numel()), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise(sizes):
        layers += [nn.Linear(width, following), nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def mlp_large(shape: Shape, classes: int) -> nn.Module:
    """The perceptron of the paper's text: 784-500-100-10."""
    return mlp(shape, classes, hidden=(500, 100))


def cnn(shape: Shape, classes: int) -> nn.Module:
    """The paper's network for CIFAR: two 5 x 5 convolutions (6, 16) with max pooling, then 256 and 128."""
    channels, height, width = _picture(shape, least=16)
    left = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        *(nn.Conv2d(channels, 6, 5), nn.LeakyReLU(SLOPE), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.LeakyReLU(SLOPE), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(left, 256), nn.LeakyReLU(SLOPE), nn.Linear(256, 128), nn.LeakyReLU(SLOPE)),
        nn.Linear(128, classes),
    )


def lenet(shape: Shape, classes: int) -> nn.Module:
    """LeNet-5: two convolutions with mean pooling and tanh, then 120 and 84."""
    channels, height, width = _picture(shape, least=12)
    left = 16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
    return nn.Sequential(
        *(nn.Conv2d(channels, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(left, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, classes)),
    )


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.shortcut = nn.Conv2d(channels, width, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(inner)) + self.shortcut(x))


def resnet(shape: Shape, classes: int, *, widths: Shape = (16, 32, 64)) -> nn.Module:
    """A residual network of one block per width, with batch norm."""
    channels, _, _ = _picture(shape, least=4)
    blocks: list[nn.Module] = [nn.Conv2d(channels, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0])]
    for number, (before, width) in enumerate(zip((widths[0], *widths), widths, strict=False)):
        blocks.append(ResidualBlock(before, width, 1 if number == 0 else 2))
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


class Attention(nn.Module):
    """Self-attention and a perceptron, each behind a layer norm and around a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mixing = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.joining = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, (n, tokens, width)."""
        rows, tokens, width = x.shape
        parts = self.mixing(self.norm(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.joining(mixed.transpose(1, 2).reshape(rows, tokens, width))
        result: Tensor = x + self.perceptron(x)
        return result


class VisionTransformer(nn.Module):
    """Patches of 4 x 4, a class token, positions, two attention blocks of width 64 and a linear head."""

    def __init__(self, shape: Shape, classes: int, *, patch: int = 4, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        channels, height, breadth = _picture(shape, least=patch)
        tokens = (height // patch) * (breadth // patch)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, tokens + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Attention(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """One score per class."""
        seen = self.patches(x).flatten(2).transpose(1, 2)
        whole = torch.cat([self.token.expand(len(x), -1, -1), seen], dim=1) + self.positions
        result: Tensor = self.head(self.norm(self.blocks(whole))[:, 0])
        return result


NETWORKS: dict[str, Factory] = {
    "mlp": mlp,
    "mlp-large": mlp_large,
    "cnn": cnn,
    "lenet": lenet,
    "resnet": resnet,
    "vit": VisionTransformer,
}
"""By name: from the shape of one input (channels, height, width) and the number of classes."""


def network(name: str, shape: Shape, classes: int, *, seed: int = 0) -> nn.Module:
    """A fresh network in eval mode; the same seed gives the same weights. `py:module:factory` calls
    factory(shape, classes), or factory() where it takes nothing."""
    factory = _factory(name) if name.startswith("py:") else NETWORKS.get(name)
    if factory is None:
        raise NotFoundError(f"There is no network {name!r}. {nearest(name, [*NETWORKS, 'py:module:factory'])}")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made: Any = factory(shape, classes)
    except ProbekitError:
        raise
    except Exception as error:  # of somebody's own code
        raise InputError(
            f"{name} could not make a network for inputs of shape {shape} and {classes} classes: "
            f"{type(error).__name__}: {first_line(error)} Mend it."
        ) from error
    if not isinstance(made, nn.Module):
        raise InputError(f"{name} must make a torch.nn.Module; found {type(made).__name__}.")
    return made.eval()


def _factory(name: str) -> Factory:
    found: Any = imported(name)
    if isinstance(found, nn.Module) or not callable(found):
        raise InputError(f"{name} must be a function that makes a torch.nn.Module; found {type(found).__name__}.")
    if getattr(getattr(found, "__code__", None), "co_argcount", 2) == 0:
        return lambda shape, classes: found()
    return found  # type: ignore[no-any-return]


def _picture(shape: Shape, *, least: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InputError(f"This network takes (channels, height, width), each side at least {least}; found {shape}.")
    return shape[0], shape[1], shape[2]


_MADE: WeakKeyDictionary[Network, dict[str, Linearized]] = WeakKeyDictionary()
_LOADED: WeakKeyDictionary[Network, dict[str, nn.Module]] = WeakKeyDictionary()


def described(
    module: nn.Module, name: str, shape: Shape, classes: int, *, subset: str | int | None = None, precision: str
) -> Network:
    """A module's weights as they are, and which of them are to move, as a value that can be kept."""
    found = linearize(module, subset=subset, dtype=getattr(torch, precision))
    weights = {key: np.array(value.detach().cpu().numpy()) for key, value in module.state_dict().items()}
    seen = tuple(_canary(module, shape)) if name.startswith("py:") else ()
    made = Network(name, tuple(shape), classes, weights, found.names, precision, seen)
    _MADE[made] = {precision: found}
    return made


def linearized(given: Network, *, precision: str | None = None) -> Linearized:
    """The network linearized around its weights, in its own precision or another; each is made once."""
    made, wanted = _MADE.setdefault(given, {}), precision or given.precision
    if wanted not in made:
        made[wanted] = linearize(loaded(given), subset=list(given.moving), dtype=getattr(torch, wanted))
    return made[wanted]


def module_at(given: Network, *, precision: str | None = None) -> nn.Module:
    """The network itself at its weights, a copy in eval mode that may be changed."""
    made, wanted = _LOADED.setdefault(given, {}), precision or given.precision
    if wanted not in made:
        made[wanted] = loaded(given).to(getattr(torch, wanted)).requires_grad_(False)
    return copy.deepcopy(made[wanted])


def loaded(given: Network) -> nn.Module:
    """The network made anew, at the weights kept; code that is another than it was is refused."""
    module = network(given.name, given.shape, given.classes)
    try:
        module.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in given.weights.items()})
    except RuntimeError as error:
        raise CorruptError(
            f"The weights kept do not fit the network {given.name} as it is made now: "
            f"{str(error).splitlines()[-1].strip()} Give the code that it was trained with."
        ) from error
    if given.canary:
        found, known = _canary(module, given.shape), np.array(given.canary)
        if found.shape != known.shape or not np.allclose(found, known, rtol=ALIKE, atol=ALIKE * np.abs(known).max()):
            raise MismatchError(
                f"The code of the network {given.name} is not the one it was trained with: at the same weights it "
                "gives other outputs. Give the code that it was trained with."
            )
    return module


def _canary(module: nn.Module, shape: Shape) -> NDArray[np.float64]:
    """What a network gives for fixed inputs, to six digits."""
    drawn = np.random.Generator(np.random.PCG64(CANARY_SEED)).standard_normal((CANARY_ROWS, *shape))
    with torch.no_grad():
        found = module(torch.from_numpy(drawn).to(next(module.parameters()))).cpu().numpy().ravel()
    return np.array([float(f"{one:.6g}") for one in found])


def inputs_of(given: Network, rows: NDArray[Any]) -> Tensor:
    """Rows of numbers as the network's inputs."""
    if len(rows.shape) != 2 or rows.shape[1] != given.dimension:
        raise InputError(f"This network takes rows of {given.dimension} numbers, {given.shape}; found {rows.shape}.")
    return tensor_of(np.asarray(rows)).reshape(-1, *given.shape)


def pretrained(head: NetworkHead) -> NetworkHead:
    """The network at w_p itself, before any client trained it."""
    start = np.zeros_like(head.params) if head.centre == "wp" else linearized(head.network).weights
    return replace(head, params=start)
