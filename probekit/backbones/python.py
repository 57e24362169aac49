"""Backbones out of Python: `py:module:factory`, and anything that can be made one of (`as_backbone`)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from probekit.backbones.module import FrozenModule, stacked
from probekit.backbones.preprocessing import NATIVE, Preprocess, StatedPreprocess, picture_preprocess, preset
from probekit.errors import InputError
from probekit.protocols import Backbone, Reference
from probekit.registry import imported
from probekit.values import Json, digest

VIEW = "output"


@dataclass(frozen=True)
class Own:
    """What a caller says of a module or a function: how samples are prepared, which version, what it takes."""

    preprocess: Callable[[Any], Any] | None = None
    fingerprint: str | None = None
    kind: str = "image"


def load(reference: Reference) -> Backbone:
    """What `py:module:factory` makes."""
    return made(imported(f"py:{reference.name}"), reference)


def made(factory: Any, reference: Reference, own: Own | None = None) -> Backbone:
    """The backbone of an entry point or a `py:` name.

    A callable without required parameters is called; so is one whose only parameter is called `reference`,
    with the Reference. One with another parameter is the function from samples to embeddings itself.
    """
    thing = factory
    if callable(factory) and not is_backbone(factory) and not isinstance(factory, nn.Module):
        wanted = _required(factory)
        if wanted in ([], ["reference"]):
            thing = factory(reference) if wanted else factory()
    return with_preset(thing, reference.preset, own, name=str(reference))


def with_preset(thing: Any, name_of_preset: str, own: Own | None = None, *, name: str | None = None) -> Backbone:
    """A backbone made of a thing with this preset, where it does not bring a preprocessing of its own."""
    own = own or Own()
    chosen = None if name_of_preset == NATIVE or is_backbone(thing) else preset(name_of_preset)
    if chosen is not None and own.preprocess is not None:
        raise InputError(f"Give `preprocess` or the preset {name_of_preset}, one of them.")
    kind = getattr(thing, "kind", own.kind)
    prepare = own.preprocess or chosen
    return as_backbone(thing, name=name, preprocess=prepare, fingerprint=own.fingerprint, kind=kind)


def is_backbone(thing: Any) -> bool:
    """Whether a thing is a backbone already. Ours are not asked: looking for a fingerprint computes it."""
    ours = isinstance(thing, FrozenModule | FunctionBackbone)
    return ours or (not isinstance(thing, type) and isinstance(thing, Backbone))


def _required(function: Callable[..., Any]) -> list[str]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ["samples"]
    return [each.name for each in parameters if each.kind in positional and each.default is each.empty]


def as_backbone(
    thing: Any,
    *,
    name: str | None = None,
    fingerprint: str | None = None,
    preprocess: Preprocess | Callable[[Any], Any] | None = None,
    kind: str = "image",
) -> Backbone:
    """A backbone made of a backbone, of a torch module or of a function from samples to vectors.

    A torch module for pictures needs a preprocessing: given here, or as its attribute `preprocess`. A
    function without one gets the samples themselves: a list of RGB pictures or texts, or one stacked array.
    """
    if isinstance(thing, type):
        raise InputError(f"{thing.__name__} is a class, and a backbone is an object. Give {thing.__name__}(...).")
    if is_backbone(thing):
        if preprocess is not None or fingerprint is not None:
            raise InputError(f"{thing.name} is a backbone already and brings its own preprocessing and fingerprint.")
        return cast(Backbone, thing)
    if not callable(thing):
        raise InputError(f"Cannot make a backbone of {type(thing).__name__}. Give a torch module or a function.")
    label = name or str(getattr(thing, "__name__", type(thing).__name__))
    own = _stated(preprocess or getattr(thing, "preprocess", None), kind)
    if isinstance(thing, nn.Module):
        if own is None:
            remedy = "Give `preprocess`, a function from a picture to a tensor, or set its attribute of that name."
            raise InputError(f"{label} is a torch module, and nothing says how pictures are prepared for it. {remedy}")
        return FrozenModule(thing, own, name=label, view=VIEW, kind=kind, collate=_collated)
    version = _hexadecimal(fingerprint or getattr(thing, "fingerprint", None) or _source_digest(thing))
    stated = own or picture_preprocess(_itself, by="the function")
    return FunctionBackbone(thing, stated, name=label, fingerprint=version, kind=kind)


def _itself(sample: Any) -> Any:
    return sample


def _collated(batch: Any) -> Any:
    """A list of texts stays one; all else becomes one tensor."""
    texts = isinstance(batch, Sequence) and all(isinstance(sample, str) for sample in batch)
    return list(batch) if texts else stacked(batch)


def _stated(preprocess: Any, kind: str) -> Preprocess | None:
    """The preprocessing with values that describe it: its own, or the digest of its source."""
    if preprocess is None:
        return None if kind == "image" else StatedPreprocess(_itself, {"given": f"{kind} as it is"})
    if isinstance(getattr(preprocess, "values", None), Mapping):
        return cast(Preprocess, preprocess)
    values: dict[str, Json] = {"function": _qualified(preprocess), "source": _source_digest(preprocess)}
    return picture_preprocess(preprocess, **values) if kind == "image" else StatedPreprocess(preprocess, values)


def _qualified(function: Any) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _source_digest(function: Any) -> str:
    """The sha256 of a function's name and source; of an object's description, if that describes it.

    It does not cover what a function closes over or calls: against that, the cache keeps its canary.
    """
    try:
        return digest([_qualified(function), inspect.getsource(function)])
    except (OSError, TypeError) as error:
        text = repr(function)
        if re.search(r" at 0x[0-9a-fA-F]+", text) or not text:
            remedy = "Define it in a file, give it a repr that says all, or give `fingerprint`, a text of your choice."
            raise InputError(f"Cannot tell one version of {_qualified(function)} from another. {remedy}") from error
        return digest([_qualified(function), text])


def _hexadecimal(fingerprint: str) -> str:
    """A fingerprint as sha256: as it is, or the digest of whatever version its author stated."""
    return fingerprint if re.fullmatch(r"[0-9a-f]{64}", fingerprint) else digest(["stated", fingerprint])


class FunctionBackbone:
    """A backbone made of a plain function from a batch of samples to (b, d)."""

    view = VIEW

    def __init__(
        self, function: Callable[[Any], Any], preprocess: Preprocess, *, name: str, fingerprint: str, kind: str
    ) -> None:
        self.function, self.preprocess = function, preprocess
        self.name, self.fingerprint, self.kind = name, fingerprint, kind

    def __repr__(self) -> str:
        return f"<backbone {self.name}>"

    @property
    def preprocessing(self) -> Mapping[str, Json]:
        """What `preprocess` does, in plain values."""
        return self.preprocess.values

    def encode(self, batch: Any) -> NDArray[Any]:
        """What the function gives: arrays and tensors are stacked for it, pictures and texts stay a list."""
        with torch.inference_mode():
            output = self.function(_stacked_if_numbers(batch))
        array: NDArray[Any] = output.cpu().numpy() if isinstance(output, torch.Tensor) else np.asarray(output)
        if array.ndim != 2 or len(array) != len(batch) or array.dtype.kind not in "fiub":
            wanted, found = f"numbers of shape ({len(batch)}, d)", f"{array.dtype} of shape {array.shape}"
            raise InputError(f"{self.name} must give {wanted}; found {found}. Return an array with one row per sample.")
        return array.astype(np.float32, copy=False)


def _stacked_if_numbers(batch: Any) -> Any:
    if isinstance(batch, np.ndarray | torch.Tensor):
        return batch
    samples = list(batch)
    for kind, stack in ((torch.Tensor, torch.stack), (np.ndarray, np.stack)):
        if samples and all(isinstance(sample, kind) for sample in samples):
            return stack(samples)
    return samples
