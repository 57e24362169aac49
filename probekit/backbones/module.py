"""The one class that turns a torch module and a preprocessing into a backbone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from probekit.backbones.preprocessing import Preprocess
from probekit.errors import InputError
from probekit.values import Json

PRECISIONS = {"float32": None, "amp-bfloat16": torch.bfloat16, "amp-float16": torch.float16}
CPU_BATCH = 8
"""How many samples go through a network at once on a CPU: more would leave its caches, and move the last bits."""


def available(device: str) -> str:
    """The device to use for "auto", or this one if it is there."""
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if present[name])
    kind, _, number = device.partition(":")
    cards = torch.cuda.device_count() if kind == "cuda" else 1
    if not present.get(kind) or (number and not (number.isdigit() and int(number) < cards)):
        there = ", ".join(name for name, is_there in present.items() if is_there)
        raise InputError(f"Cannot use device {device!r}: this machine has {there}. Choose one of these, or auto.")
    return device


def weights_digest(architecture: str, module: nn.Module) -> str:
    """The sha256 of an architecture's text and of all tensors of a module, by name."""
    hasher = hashlib.sha256(architecture.encode() + b"\0")
    for name, tensor in sorted(module.state_dict().items()):
        hasher.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            hasher.update(memoryview(flat.view(torch.uint8).numpy()))
    return hasher.hexdigest()


def stacked(batch: Any) -> torch.Tensor:
    """A batch (a tensor, an array, or a sequence of either) as one tensor. float64 becomes float32."""
    if not isinstance(batch, torch.Tensor | np.ndarray):
        first = next(iter(batch), None)
        batch = torch.stack(list(batch)) if isinstance(first, torch.Tensor) else np.stack(list(batch))
    if isinstance(batch, np.ndarray):
        batch = torch.from_numpy(batch if batch.flags.writeable else batch.copy())
    tensor: torch.Tensor = batch
    return tensor.float() if tensor.dtype == torch.float64 else tensor


class FrozenModule:
    """A backbone made of a torch module: in evaluation mode, without gradients, its weights in float32.

    `preprocess` is an object of its own, so that worker processes receive it and never the model. `read`
    takes the embedding out of the module; left out, the module's output is the embedding. `architecture`
    says what names and shapes of weights do not (heads, activation); left out, the module's description.
    """

    def __init__(
        self,
        module: nn.Module,
        preprocess: Preprocess,
        *,
        name: str,
        view: str,
        read: Callable[[Any, torch.Tensor], torch.Tensor] | None = None,
        architecture: str | None = None,
        kind: str = "image",
        collate: Callable[[Sequence[Any]], Any] = stacked,
    ) -> None:
        self.module = module.float().eval().requires_grad_(False)
        self.preprocess = preprocess
        self.name, self.view, self.kind = name, view, kind
        self._read, self._collate = read, collate
        # the module's own description, without the addresses that differ from run to run
        self._architecture = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(module)) if architecture is None else architecture
        self.device, self.precision = "cpu", "float32"

    def __repr__(self) -> str:
        return f"<backbone {self.name} on {self.device}>"

    @property
    def preprocessing(self) -> Mapping[str, Json]:
        """What `preprocess` does, in plain values."""
        return self.preprocess.values

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of architecture and weights."""
        return weights_digest(self._architecture, self.module)

    def place(self, device: str, *, precision: str = "float32") -> None:
        """Move to a device; compute in this precision. The weights stay float32."""
        if precision not in PRECISIONS:
            raise InputError(f"Cannot compute in {precision!r}: choose one of {', '.join(PRECISIONS)}.")
        device = available(device)
        self.module.to(device)
        self.device, self.precision = device, precision

    def encode(self, batch: Any) -> NDArray[np.float32]:
        """The embeddings (b, d) of a batch of preprocessed samples."""
        inputs = self._collate(batch)
        if not isinstance(inputs, torch.Tensor):
            return self._checked(self._forward(inputs), len(inputs))
        size = CPU_BATCH if self.device == "cpu" else max(1, len(inputs))
        parts = [self._checked(self._forward(part.to(self.device)), len(part)) for part in torch.split(inputs, size)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _forward(self, inputs: Any) -> Any:
        amp, kind = PRECISIONS[self.precision], self.device.partition(":")[0]
        with torch.inference_mode(), torch.autocast(kind, dtype=amp, enabled=amp is not None):
            return self.module(inputs) if self._read is None else self._read(self.module, inputs)

    def _checked(self, output: Any, rows: int) -> NDArray[np.float32]:
        if not isinstance(output, torch.Tensor) or output.ndim != 2 or len(output) != rows:
            found = f"shape {tuple(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__
            wanted = f"one vector per sample, a tensor of shape ({rows}, d)"
            raise InputError(f"{self.name} must give {wanted}; found {found}. Pool or flatten inside the module.")
        return cast(NDArray[np.float32], output.float().cpu().numpy())
