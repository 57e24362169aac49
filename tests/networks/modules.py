"""Modules as people write them, and such as no derivative can be had of; named by `py:`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from probekit.backbones.module import declare_operators
from probekit.embeddings import EmbeddingSet
from probekit.networks.architectures import architecture, trust
from probekit.networks.network import Network
from probekit.networks.pretraining import network_model
from probekit.objective import Loss, Squares

CLASSES = 3


class Residual(nn.Module):
    """Convolutions and batch norm beside a shortcut; the statistics are those of some pictures."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.first = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ELU())
        self.last = nn.Linear(4, classes)
        with torch.no_grad():
            self(torch.randn(20, 2, 5, 5) * 2 + 1)

    def forward(self, pictures: Tensor) -> Tensor:
        maps = self.stem(pictures)
        scores: Tensor = self.last((maps + self.first(maps)).mean(dim=(2, 3)))
        return scores


class Pooled(nn.Module):
    """Convolutions between the largest and the mean of their neighbors."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3)
        self.second = nn.Conv2d(3, 4, 2)
        self.last = nn.Linear(4, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        maps = functional.max_pool2d(functional.leaky_relu(self.first(pictures), 0.1), 2)
        scores: Tensor = self.last(torch.tanh(self.second(maps)).mean(dim=(2, 3)))
        return scores


class Attention(nn.Module):
    """torch's own layer for several heads."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Linear(4, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        scores: Tensor = self.last(attended.mean(dim=1))
        return scores


class DotProduct(nn.Module):
    """Attention by its function, for which torch has kernels without second derivatives."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.project = nn.Linear(4, 12)
        self.last = nn.Linear(4, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.project(tokens).chunk(3, dim=-1)
        scores: Tensor = self.last(
            functional.scaled_dot_product_attention(query, key, value).mean(dim=1)
        )
        return scores


class Recurrent(nn.Module):
    """The last state of two layers that read in both directions."""

    def __init__(self, kind: type[nn.RNNBase], classes: int) -> None:
        super().__init__()
        self.cells: Any = kind(4, 3, num_layers=2, batch_first=True, bidirectional=True)
        self.last = nn.Linear(6, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.last(self.cells(tokens)[0][:, -1])
        return scores


class Tied(nn.Module):
    """One weight at two places, and a third layer that is used twice."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = nn.Linear(4, classes)

    def forward(self, rows: Tensor) -> Tensor:
        states = torch.tanh(self.second(torch.tanh(self.first(rows))))
        scores: Tensor = self.last(states) * self.last(rows)
        return scores


def residual(num_classes: int) -> nn.Module:
    return Residual(num_classes)


def pooled(num_classes: int) -> nn.Module:
    return Pooled(num_classes)


def attention(num_classes: int) -> nn.Module:
    return Attention(num_classes)


def dot_product(num_classes: int) -> nn.Module:
    return DotProduct(num_classes)


def encoder(num_classes: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(12, num_classes))


def gru(num_classes: int) -> nn.Module:
    return Recurrent(nn.GRU, num_classes)


def lstm(num_classes: int) -> nn.Module:
    return Recurrent(nn.LSTM, num_classes)


def tied(num_classes: int) -> nn.Module:
    return Tied(num_classes)


def linear(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, num_classes))


def resnet18(num_classes: int) -> nn.Module:
    declare_operators()
    from torchvision import models

    network: nn.Module = models.resnet18(num_classes=num_classes)
    return network


def vision_transformer(num_classes: int) -> nn.Module:
    import timm

    network: nn.Module = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=16,
        patch_size=8,
        embed_dim=12,
        depth=2,
        num_heads=2,
        num_classes=num_classes,
    )
    return network


class BackwardOnly(torch.autograd.Function):
    """sin, as functions were written before forward mode."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return rows.sin()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.saved_tensors[0].cos()


class Disagreeing(torch.autograd.Function):
    """Its forward mode is not its reverse mode."""

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        return rows.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        return tangents[0] * 2


class Broken(torch.autograd.Function):
    """Without any derivative."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.sin()


class Layer(nn.Module):
    """A function of rows behind a linear layer."""

    def __init__(
        self, classes: int, function: Callable[[Tensor], Any], change: Callable[[Tensor], Any] = id
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(4, classes)
        self.function = function
        self.change = change

    def forward(self, rows: Tensor) -> Any:
        self.change(rows)
        return self.function(self.linear(rows))


class Stubborn(nn.Dropout):
    """Draws in eval mode, too."""

    def train(self, mode: bool = True) -> Stubborn:
        super().train(True)
        return self


def backward_only(num_classes: int) -> nn.Module:
    return Layer(num_classes, BackwardOnly.apply)


def sine(num_classes: int) -> nn.Module:
    return Layer(num_classes, torch.sin)


def disagreeing(num_classes: int) -> nn.Module:
    return Layer(num_classes, Disagreeing.apply)


def broken(num_classes: int) -> nn.Module:
    return Layer(num_classes, Broken.apply)


def train_mode(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, num_classes), Stubborn())


def random(num_classes: int) -> nn.Module:
    return Layer(num_classes, lambda scores: scores + torch.rand_like(scores))


def batch_statistics(num_classes: int) -> nn.Module:
    norm = nn.BatchNorm1d(num_classes, track_running_stats=False)
    return nn.Sequential(nn.Linear(4, num_classes), norm)


def map_statistics(num_classes: int) -> nn.Module:
    """Also of one picture: its places have a variance."""
    norm = nn.BatchNorm2d(2, track_running_stats=False)
    head = nn.Linear(8, num_classes)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 1), norm, nn.Flatten(), head)


def centered(num_classes: int) -> nn.Module:
    return Layer(num_classes, lambda scores: scores - scores.mean(dim=0))


def dictionary(num_classes: int) -> nn.Module:
    return Layer(num_classes, lambda scores: {"logits": scores})


def maps(num_classes: int) -> nn.Module:
    return Layer(num_classes, lambda scores: scores[:, :, None])


def writing(num_classes: int) -> nn.Module:
    return Layer(num_classes, lambda scores: scores, lambda rows: rows.mul_(2))


def infinite(num_classes: int) -> nn.Module:
    return Layer(num_classes, lambda scores: scores / 0)


def constant(num_classes: int) -> nn.Module:
    return Layer(num_classes, lambda scores: scores.detach())


def many_outputs() -> nn.Module:
    return nn.Linear(4, 7)


def few_outputs() -> nn.Module:
    return nn.Linear(4, 2)


def other_samples(num_classes: int) -> nn.Module:
    return nn.Linear(5, num_classes)


def no_parameters() -> nn.Module:
    return nn.Flatten()


def lazy(num_classes: int) -> nn.Module:
    return nn.LazyLinear(num_classes)


def complex_numbers(num_classes: int) -> nn.Module:
    return nn.Linear(4, num_classes, dtype=torch.complex64)


def frozen(num_classes: int) -> nn.Module:
    return nn.Linear(4, num_classes).requires_grad_(False)


def frozen_trunk(num_classes: int) -> nn.Module:
    trunk = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()).requires_grad_(False)
    return nn.Sequential(trunk, nn.Linear(6, num_classes))


def leaving(num_classes: int) -> nn.Module:
    raise SystemExit(num_classes)


def no_module(num_classes: int) -> object:
    return {"classes": num_classes}


def failing(num_classes: int) -> nn.Module:
    raise KeyError(num_classes)


def sized(num_classes: int, *, width: int = 5, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width, bias=bias), nn.Tanh(), nn.Linear(width, num_classes))


def batch_normed(num_classes: int) -> nn.Module:
    layers = (nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, num_classes))
    return nn.Sequential(*layers)


READY = nn.Sequential(nn.Linear(4, CLASSES))

SHAPES: Mapping[str, tuple[int, ...]] = {
    "residual": (2, 5, 5),
    "pooled": (1, 8, 8),
    "attention": (3, 4),
    "dot_product": (3, 4),
    "encoder": (3, 4),
    "gru": (3, 4),
    "lstm": (3, 4),
    "tied": (4,),
    "backward_only": (4,),
    "linear": (2, 3),
    "vision_transformer": (3, 16, 16),
    "mlp:5-4": (1, 3, 3),
    "cnn": (1, 16, 16),
    "resnet18": (3, 32, 32),
}
"""Networks that can be linearized, and the samples that they take."""


def model_of(
    name: str,
    *,
    shape: tuple[int, ...] | None = None,
    loss: Loss | None = None,
    precision: Any = "float64",
    **options: Any,
) -> Network:
    """The model of a factory in this file, or of a packaged network."""
    shape = shape or SHAPES.get(name, (4,))
    full = name if name.partition(":")[0] in ("mlp", "cnn") else f"py:{__name__}:{name}"
    trust(full)
    network = architecture(full, shape, CLASSES)
    return network_model(
        network,
        sample_shape=shape,
        classes=CLASSES,
        loss=loss or Squares(),
        precision=precision,
        **options,
    )


def samples_of(model: Network, count: int, *, seed: int = 0) -> EmbeddingSet:
    """Random samples of a network with labels and weights."""
    generator = np.random.default_rng(seed)
    rows: NDArray[np.float64] = generator.standard_normal((count, int(np.prod(model.sample_shape))))
    names = [str(number) for number in range(model.classes)]
    labels = generator.integers(0, model.classes, count)
    return EmbeddingSet.from_numpy(rows, labels, class_names=names)
