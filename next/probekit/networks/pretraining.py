"""Where a network starts: drawn weights, those of a file, or trained on the server's rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from probekit.embeddings import EmbeddingSet
from probekit.errors import CorruptError, InputError, NotFoundError
from probekit.files import read_limited
from probekit.networks.architectures import Architecture, initialized
from probekit.networks.jacobian import as_array, check_module, flatten, frozen_buffers
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
MAX_BYTES = 1 << 36


@dataclass(frozen=True)
class Pretraining:
    """`epochs` of Adam on the server's rows (cross-entropy, or squares of targets)."""

    rows: EmbeddingSet
    epochs: int
    seed: int = 0


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
    module = initialized(architecture, seed)
    if weights is not None:
        load_weights(module, weights)
    if pretraining is not None:
        pretrain(module, pretraining, sample_shape, progress)
    flat = flatten(dict(module.named_parameters()))
    buffers = flatten(frozen_buffers(module))
    network = flat_module(module, buffers, np.arange(classes), "float64")
    samples = network.tensor(synthetic_samples(sample_shape))
    canary = network.all_outputs(network.tensor(flat), samples)
    if canary.shape[1] != classes:
        raise InputError(
            f"The network must have an output for each of {classes} classes or targets; it has "
            f"{canary.shape[1]}. Let its factory take num_classes."
        )
    check_module(network, network.tensor(flat), samples)
    kind = LinearizedNetwork if linearize else Network
    model = kind(
        architecture,
        flat,
        buffers,
        sample_shape,
        np.arange(classes),
        as_array(canary),
        loss,
        precision,
    )
    if isinstance(model, LinearizedNetwork):
        return replace(model, pull_to=center)
    return model


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
                if len(batch) == 1 and len(rows) > 1:  # batch norm has no variance of one row
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
        raise NotFoundError(f"No weights at {path}. Pass a .safetensors or .pt file.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load

            tensors = load(read_limited(path, MAX_BYTES))
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
            tensors = tensors.get("state_dict", tensors)
    except Exception as error:
        raise CorruptError(
            f"Weights are a state dict, as safetensors or torch.save writes it; {path} cannot be "
            f"read ({type(error).__name__}). Save module.state_dict()."
        ) from error
    try:
        module.load_state_dict(tensors)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"Weights must be those of the network; {path.name} has others: {reason} Pass the "
            "file of this architecture."
        ) from error


def _targets(rows: EmbeddingSet) -> Tensor:
    if rows.targets is not None:
        return torch.from_numpy(np.asarray(rows.targets, np.float32))
    if rows.labels is None:
        raise InputError(f"{rows.source} has no labels. Pass labels (--labels FILE).")
    return torch.from_numpy(np.asarray(rows.labels, np.int64))
