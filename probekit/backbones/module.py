"""TorchBackbone: a torch module and a preprocessing as a Backbone; the paper's preprocessing."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from probekit.arrays import Json
from probekit.data.pictures import to_rgb
from probekit.errors import InputError

Forward = Callable[[Any, Any], Mapping[str, Tensor]]
"""View -> (n, width), of a module and a stacked batch (a list of texts where the kind is text)."""
Prepare = Callable[[Any], Any]

PRECISIONS = {"float32": None, "amp-bfloat16": torch.bfloat16, "amp-float16": torch.float16}
CPU_BATCH = 8
"""Samples that pass a network at once on a CPU: more leave its caches and move the last bits."""
NATIVE = "native"
PRESETS: Mapping[str, Sequence[Sequence[float]]] = {
    "f2l2-domainnet": ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
    "f2l2-imagenet": ((0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262)),
    "f2l2-flowers": (),
}
"""The paper's preprocessing by its datasets: mean and deviation of the channels, if any."""
PRESET_SIDE = 224


def declare_operators() -> None:
    """Let torchvision be imported beside a CPU build of torch; called before that.

    On Linux, PyPI's torchvision is linked against CUDA libraries. Beside a CPU torch its compiled
    operators cannot be loaded, and importing it fails ("operator torchvision::nms does not
    exist"). open_clip, timm and transformers need its transforms alone, which are pure Python:
    declaring two operators is enough. So modules import this one before those.
    """
    spec = find_spec("torchvision") if "torchvision" not in sys.modules else None
    if sys.platform != "linux" or spec is None or spec.origin is None:
        return
    with suppress(OSError):
        library = Path(spec.origin).with_name("_C.so")
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    if not hasattr(torch.ops.torchvision, "nms"):
        for operator in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", schema)


declare_operators()


def choose_device(device: str) -> str:
    """The fastest device for "auto"; else this one, if the machine has it."""
    if device == "auto":
        available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        return next((kind for kind, usable in available.items() if usable), "cpu")
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device (--device) must be auto, or one of this machine as cuda:0; found {device!r}."
        ) from error
    return device


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """The sha256 of tensors in order of their names: name, dtype, shape, bytes."""
    hasher = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            hasher.update(flat.view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def plain_json(fields: Mapping[str, Any]) -> dict[str, Json]:
    """A library's configuration as JSON, without what is not set."""
    values: dict[str, Json] = json.loads(json.dumps(fields, default=str))
    return {name: value for name, value in values.items() if value is not None}


def stack_batch(batch: Sequence[Any]) -> Any:
    """Prepared arrays or tensors as one tensor (float64 becomes float32); others stay a list."""
    if not isinstance(batch[0], np.ndarray | Tensor):
        return list(batch)
    shapes = sorted({tuple(sample.shape) for sample in batch})
    if len(shapes) > 1:
        raise InputError(
            "Prepared samples must all have one shape, so that they make a batch; found "
            f"{shapes[0]} and {shapes[1]}. Resize or crop them in prepare."
        )
    stack: Any = torch.stack if isinstance(batch[0], Tensor) else np.stack
    stacked = torch.as_tensor(stack(list(batch)))
    return stacked.float() if stacked.dtype == torch.float64 else stacked


class Options(TypedDict):
    """What every loader takes, as `load_backbone` describes it."""

    device: str
    precision: str
    preprocessing: str
    kind: str
    prompt: str | None
    max_length: int | None


class Preprocessing(NamedTuple):
    """What happens to a sample before the model.

    prepare: turns one sample into an array; an object apart, so that worker processes receive it
        without the model.
    values: what determines it, for the identity.
    shape: of the arrays; None: any; (): of texts, which are no arrays.
    """

    prepare: Prepare
    values: Mapping[str, Json]
    shape: tuple[int, ...] | None = None

    def choose(self, name: str) -> Preprocessing:
        """This one for "native", or a preset that makes arrays of the same shape."""
        if name == NATIVE:
            return self
        if name not in PRESETS:
            raise InputError(
                f"preprocessing (--preprocessing) must be one of {', '.join([NATIVE, *PRESETS])}; "
                f"found {name!r}."
            )
        preset = make_preset(name)
        if self.shape not in (None, preset.shape):
            raise InputError(
                f"{name} makes samples of shape {preset.shape}; this backbone takes "
                f"{self.shape or 'texts'}. "
                "Leave out preprocessing (--preprocessing)."
            )
        return preset


@dataclass(kw_only=True, eq=False, repr=False)
class TorchBackbone:
    """A torch module as a backbone: evaluation mode, no gradients, weights in float32.

    forward: takes the module and a stacked batch, gives each view as (n, width).
    views: names and widths; a width of 0 is measured on the first batch.
    identity: what determines the numbers; preprocessing, tensors and precision are added.
    tensors: those that the views depend on, where the module holds others; else its state_dict.
    channels_last: memory layout of pictures; faster for convolutions, but a module that calls
        `view` on a map cannot take it.
    temperature: of the softmax over cosines between pictures and texts; None: it has not both.
    commit: of the hub repository that the weights came from; a record, not part of the identity.
    description: for `backbone check`: what else is known of its views.
    """

    name: str
    model: nn.Module
    forward: Forward
    views: dict[str, int]
    preprocessing: Preprocessing
    identity: Mapping[str, Json]
    device: str
    precision: str
    kind: str = "image"
    tensors: InitVar[Mapping[str, Tensor] | None] = None
    channels_last: bool = False
    temperature: float | None = None
    commit: str = ""
    description: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self, tensors: Mapping[str, Tensor] | None) -> None:
        if self.precision not in PRECISIONS:
            raise InputError(
                f"precision must be one of {', '.join(PRECISIONS)}; found {self.precision!r}."
            )
        self.prepare = self.preprocessing.prepare
        self.device = choose_device(self.device)
        self.model.float().eval().requires_grad_(False)
        self.identity = {
            **self.identity,
            "preprocessing": self.preprocessing.values,
            "weights": tensor_digest(self.model.state_dict() if tensors is None else tensors),
            "precision": self.precision,
        }
        self.model.to(self.device)
        if self.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def __repr__(self) -> str:
        return f"<backbone {self.name} on {self.device}>"

    def encode(self, batch: Sequence[Any]) -> NDArray[np.float32]:
        """(n, sum of the widths): the views side by side."""
        if not isinstance(batch[0], str):
            return self._encode_parts(stack_batch(batch))
        # texts of like length need less padding
        order = sorted(range(len(batch)), key=lambda index: len(batch[index]))
        rows = self._encode_parts([batch[index] for index in order])
        return rows[np.argsort(order)]

    def _encode_parts(self, inputs: Any) -> NDArray[np.float32]:
        size = CPU_BATCH if self.device == "cpu" else len(inputs)
        starts = range(0, len(inputs), size)
        return np.concatenate([self._encode(inputs[start : start + size]) for start in starts])

    def _encode(self, inputs: Any) -> NDArray[np.float32]:
        if isinstance(inputs, Tensor):
            inputs = inputs.to(self.device)
            if self.channels_last:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
        dtype = PRECISIONS[self.precision]
        device = self.device.partition(":")[0]
        with torch.inference_mode(), torch.autocast(device, dtype, enabled=dtype is not None):
            outputs = self.forward(self.model, inputs)
        for view, width in self.views.items():
            self.views[view] = check_output(self.name, outputs[view], len(inputs), width)
        joined = torch.cat([outputs[view].float() for view in self.views], dim=1)
        rows: NDArray[np.float32] = joined.cpu().numpy()
        return rows


def check_output(name: str, output: object, rows: int, width: int = 0) -> int:
    """The width of an output that is one vector per sample; 0: any width."""
    shape: Any = type(output).__name__
    if isinstance(output, Tensor | np.ndarray):
        shape = tuple(output.shape)
    if len(shape) != 2 or shape[0] != rows or not shape[1] or shape[1] != (width or shape[1]):
        raise InputError(
            f"{name} must give one vector per sample, shape ({rows}, {width or 'd'}) for {rows} "
            f"samples; found {shape}. Pool or flatten inside it."
        )
    return int(shape[1])


@dataclass(frozen=True)
class Transform:
    """A function of one sample; pictures reach it as RGB."""

    function: Prepare

    def __call__(self, content: Any) -> Any:
        return self.function(to_rgb(content) if isinstance(content, Image.Image) else content)


def make_preset(name: str) -> Preprocessing:
    """Squash and normalize with statistics of other data, as the paper's code does.

    For Flowers it resizes the float tensor, not the 8-bit picture, and does not normalize.
    """
    from torchvision import transforms

    resize = transforms.Resize((PRESET_SIDE, PRESET_SIDE), antialias=True)
    steps = [transforms.ToTensor(), resize]
    statistics = PRESETS[name]
    if statistics:
        steps = [resize, transforms.ToTensor(), transforms.Normalize(*statistics)]
    values: dict[str, Json] = {"preset": name, "size": [PRESET_SIDE] * 2, "statistics": statistics}
    shape = (3, PRESET_SIDE, PRESET_SIDE)
    return Preprocessing(Transform(transforms.Compose(steps)), values, shape)
