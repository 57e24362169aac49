"""Where a network starts: drawn weights, those of a file, or trained on the server's rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from probekit.arrays import Array
from probekit.embeddings import EmbeddingSet
from probekit.errors import CorruptError, InputError, NotFoundError
from probekit.networks import jacobian
from probekit.networks.architectures import Architecture, Own, initialized, parameter_count
from probekit.networks.network import (
    Center,
    LinearizedNetwork,
    Network,
    Precision,
    flat_module,
    synthetic_samples,
)
from probekit.objective import Loss
from probekit.progress import Progress, Step, silent

BATCH = 32
RATE = 1e-3


@dataclass(frozen=True)
class Pretraining:
    """`epochs` of Adam on the server's rows (cross-entropy, or squares of targets)."""

    rows: EmbeddingSet
    epochs: int
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.rows) < 2 or self.epochs < 0:
            raise InputError(
                f"Pretraining needs 2 rows of the server or more, and epochs; found "
                f"{len(self.rows)} rows and {self.epochs} epochs. Raise --server-share, or pass "
                "--pretrain-epochs 0."
            )


def network_model(
    architecture: Architecture,
    *,
    sample_shape: tuple[int, ...],
    classes: int,
    loss: Loss,
    linearize: bool = True,
    center: Center = "wp",
    precision: Precision = "float32",
    seed: int = 0,
    weights: Path | None = None,
    pretraining: Pretraining | None = None,
    progress: Progress = silent,
) -> Network:
    """The model of an architecture, from the weights with which training starts."""
    if not isinstance(architecture, Own):
        jacobian.check_memory(parameter_count(architecture))
    module = initialized(architecture, seed)
    if weights is not None:
        load_weights(module, weights)
    start = _check_start(module, sample_shape, classes)
    if pretraining is not None:
        pretrain(module, pretraining, sample_shape, progress)
        start = _check_start(module, sample_shape, classes)
    kind = LinearizedNetwork if linearize else Network
    model = kind(
        architecture=architecture,
        weights=start.weights,
        buffers=start.buffers,
        sample_shape=sample_shape,
        columns=np.arange(classes),
        canary=start.canary,
        loss=loss,
        precision=precision,
    )
    if isinstance(model, LinearizedNetwork):
        return replace(model, pull_to=center)
    return model


class _Start(NamedTuple):
    weights: Array
    buffers: Array
    canary: Array


def _check_start(module: nn.Module, sample_shape: tuple[int, ...], classes: int) -> _Start:
    """What training starts from; refuses networks that cannot be trained."""
    _check_parameters(module)
    weights = jacobian.flatten(jacobian.trained_parameters(module))
    buffers = jacobian.flatten(jacobian.frozen_buffers(module))
    network = flat_module(module, buffers, np.arange(classes), "float64")
    flat = network.tensor(weights)
    samples = network.tensor(synthetic_samples(sample_shape))
    canary = jacobian.check_module(network, flat, samples)
    jacobian.rows_at_once(network, flat, samples)
    return _Start(weights, buffers, jacobian.as_array(canary))


def _check_parameters(module: nn.Module) -> None:
    if not jacobian.trained_parameters(module):
        raise InputError(
            "A network must have parameters that require gradients; this one has none. Give it a "
            "layer, or call .requires_grad_()."
        )
    for name, parameter in module.named_parameters():
        if is_lazy(parameter) or not parameter.is_floating_point():
            kind = "no shape yet" if is_lazy(parameter) else str(parameter.dtype)
            raise InputError(
                f"A network's parameters must be real numbers with a shape; {name} has {kind}. "
                "Replace that layer (nn.LazyLinear by nn.Linear)."
            )


def pretrain(
    module: nn.Module,
    pretraining: Pretraining,
    sample_shape: tuple[int, ...],
    progress: Progress = silent,
) -> None:
    """Train a module in place; it ends in eval mode."""
    rows = pretraining.rows
    targets = _targets(rows)
    measure = nn.functional.cross_entropy if rows.targets is None else nn.functional.mse_loss
    generator = np.random.Generator(np.random.PCG64(pretraining.seed))
    optimizer = torch.optim.Adam(module.parameters(), lr=RATE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(pretraining.seed)
        module.train()
        for epoch in range(pretraining.epochs):
            order = generator.permutation(len(rows))
            for first in range(0, len(rows), BATCH):
                batch = order[first : first + BATCH]
                if len(batch) == 1:  # batch norm has no variance of one row
                    continue
                inputs = torch.from_numpy(np.asarray(rows.rows[batch], np.float32))
                optimizer.zero_grad()
                outputs = module(inputs.view(-1, *sample_shape))
                loss: Tensor = measure(outputs, targets[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            progress(Step("pretraining", epoch + 1, pretraining.epochs, f"loss {loss.item():.4g}"))
        module.eval()
    for parameter in module.parameters():
        parameter.grad = None


def load_weights(module: nn.Module, path: Path) -> None:
    """A state dict (safetensors, or a .pt file without code) into a module, strictly."""
    if not path.is_file():
        raise NotFoundError(f"No weights at {path}. Pass a state dict (--weights FILE).")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors = load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what torch thinks of other pickles
                tensors = torch.load(path, map_location="cpu", weights_only=True)
            tensors = tensors.get("state_dict", tensors)
    except Exception as error:
        raise CorruptError(
            f"Weights are a state dict, as safetensors or torch.save writes it; {path} cannot be "
            f"read ({type(error).__name__}). Save module.state_dict() (--weights FILE)."
        ) from error
    try:
        module.load_state_dict(tensors)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = shorten(" ".join(str(error).split()), 200, placeholder=" ...")
        raise InputError(
            f"Weights must be those of the network; {path.name} has others: {reason} Pass "
            "those of this architecture (--weights FILE)."
        ) from error


def _targets(rows: EmbeddingSet) -> Tensor:
    if rows.targets is not None:
        return torch.from_numpy(np.asarray(rows.targets, np.float32))
    if rows.labels is None or (rows.labels < 0).any():
        raise InputError(
            f"Pretraining needs a label for each row; {rows.source} lacks some. Pass labels "
            "(--labels FILE)."
        )
    return torch.from_numpy(np.asarray(rows.labels, np.int64))
