"""Backbones of the user's own: a torch module, a function, a Backbone, or `py:module:factory`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeGuard, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probekit.arrays import Json, digest
from probekit.backbones import module
from probekit.backbones.backbone import Backbone
from probekit.backbones.module import NATIVE, Options, Prepare, Preprocessing, TorchBackbone
from probekit.data.pictures import canary_samples
from probekit.errors import InputError, NotFoundError
from probekit.registry import Name, import_object

VIEW = "output"


def load(name: Name, **options: Unpack[Options]) -> Backbone:
    """`py:module:attribute`: a Backbone, a module, a function, or a factory without parameters."""
    thing = import_object(f"py:{name.name}")
    if not isinstance(thing, nn.Module) and not is_backbone(thing) and _is_factory(thing):
        thing = thing()
    options["kind"] = getattr(thing, "kind", "image")
    backbone = as_backbone(thing, name=str(name), **options)
    if name.view is not None and name.view not in backbone.views:
        available = ", ".join(f"#{view}" for view in backbone.views)
        raise NotFoundError(f"{name} has no view #{name.view}. It has: {available}.")
    return backbone


def _is_factory(thing: Any) -> bool:
    """Whether something can be called without arguments."""
    try:
        inspect.signature(thing).bind()
    except (TypeError, ValueError):
        return False
    return True


def is_backbone(thing: object) -> TypeGuard[Backbone]:
    return isinstance(thing, Backbone) and not isinstance(thing, type)


def as_backbone(
    thing: object,
    *,
    name: str | None = None,
    prepare: Prepare | None = None,
    **options: Unpack[Options],
) -> Backbone:
    """A Backbone as it is; a torch module or a function from prepared samples to vectors as one.

    prepare: one sample (pictures as RGB) to what the module takes; or its attribute `prepare`. A
    function without one receives the samples themselves, as a list.
    """
    if options["prompt"] or options["max_length"] is not None:
        raise InputError(
            "prompt and max_length (--prompt, --max-length) are for text encoders by name; found "
            f"{thing!r}. Put them into its prepare."
        )
    if is_backbone(thing):
        if prepare is not None or options["preprocessing"] != NATIVE:
            raise InputError(
                f"{thing!r} is a backbone already and has its own preprocessing. Leave out prepare "
                "and preprocessing (--preprocessing)."
            )
        return thing
    if isinstance(thing, type) or not callable(thing):
        raise InputError(
            f"A backbone must be a torch module, a function from samples to vectors or a Backbone; "
            f"found {thing!r}. Give an object, such as MyBackbone()."
        )
    label = name or _qualified_name(thing).rpartition(".")[2]
    kind = options["kind"]
    precision = options["precision"]
    preprocessing = _preprocessing(thing, prepare, options["preprocessing"], kind)
    backbone: Backbone
    if isinstance(thing, nn.Module):
        structure = digest(_without_addresses(repr(thing)))
        backbone = TorchBackbone(
            name=label,
            kind=kind,
            model=thing,
            forward=_output,
            views={VIEW: 0},
            preprocessing=preprocessing,
            identity={"module": _qualified_name(thing), "structure": structure},
            device=options["device"],
            precision=precision,
        )
    elif precision == "float32":
        identity = {**_function_identity(thing), "preprocessing": preprocessing.values}
        backbone = FunctionBackbone(label, kind, thing, preprocessing.prepare, identity)
    else:
        raise InputError(
            f"{label} is a function and computes in its own precision; found {precision!r}. "
            "Leave out precision (--amp), or give a torch module."
        )
    samples = canary_samples(kind)[1:3]
    if samples:  # none for arrays, whose shape only the dataset knows
        _measure(backbone, samples)
    return backbone


def _output(model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
    return {VIEW: model(batch)}


def _measure(backbone: Backbone, samples: Sequence[Any]) -> None:
    """Find the width on two samples of different sizes."""
    try:
        backbone.encode([backbone.prepare(sample) for sample in samples])
    except InputError:
        raise
    except Exception as error:  # whatever a user's function does with such samples
        raise InputError(
            f"{backbone.name} must turn 2 samples of different sizes into an array of shape (2, d);"
            f" it raised {type(error).__name__}: {error}. Resize inside it, or give prepare=."
        ) from error


@dataclass(eq=False)
class FunctionBackbone:
    """A function from a batch of prepared samples to (n, d).

    Arrays and tensors are stacked for it; pictures and texts stay a list.
    """

    name: str
    kind: str
    function: Callable[[Any], Any] = field(repr=False)
    prepare: Prepare = field(repr=False)
    identity: Mapping[str, Json] = field(repr=False)
    views: Mapping[str, int] = field(default_factory=lambda: {VIEW: 0})

    def encode(self, batch: Sequence[Any]) -> NDArray[np.float32]:
        inputs = module.stack_batch(batch)
        if isinstance(batch[0], np.ndarray):
            inputs = inputs.numpy()
        with torch.inference_mode():
            output = self.function(inputs)
        rows = output.float().cpu().numpy() if isinstance(output, Tensor) else np.asarray(output)
        self.views = {VIEW: module.check_output(self.name, rows, len(batch))}
        return rows.astype(np.float32, copy=False)


def _preprocessing(thing: object, prepare: Prepare | None, preset: str, kind: str) -> Preprocessing:
    function: Prepare | None = prepare or getattr(thing, "prepare", None)
    if function is not None:
        if preset != NATIVE:
            raise InputError(f"Give prepare or preprocessing={preset!r}, one of them; found both.")
        return Preprocessing(module.Transform(function), _function_identity(function))
    if isinstance(thing, nn.Module) and kind == "image" and preset == NATIVE:
        raise InputError(
            f"Nothing says how pictures become tensors for {type(thing).__name__}. Give "
            "prepare=, a function from a picture to a tensor, or set its attribute `prepare`."
        )
    unchanged = Preprocessing(module.Transform(_unchanged), {"prepare": "as it is"})
    return unchanged.choose(preset)


def _unchanged(content: Any) -> Any:
    return content


def _qualified_name(thing: object) -> str:
    owner: Any = thing if inspect.isroutine(thing) else type(thing)
    return f"{owner.__module__}.{owner.__qualname__}"


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _function_identity(function: Callable[[Any], Any]) -> dict[str, Json]:
    """Name and source of a function, and the weights of the modules that it reaches.

    Other values that it closes over are not covered: against those the cache keeps its canary.
    """
    weights: dict[str, Json] = {
        name: module.tensor_digest(value.state_dict())
        for name, value in sorted(_reachable(function).items())
        if isinstance(value, nn.Module)
    }
    version: Json = getattr(function, "identity", None) or digest(_source(function))
    return {"function": _qualified_name(function), "weights": weights, "version": version}


def _source(function: Callable[[Any], Any]) -> str:
    """The source of a function or of a callable's class, and its description."""
    if isinstance(function, partial):
        arguments = repr((function.args, function.keywords))
        return _source(function.func) + _without_addresses(arguments)
    source = ""
    try:
        source = inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):  # typed at a prompt, or built in
        if inspect.isfunction(function):
            code = function.__code__
            source = f"{code.co_code.hex()} {code.co_consts} {code.co_names}"
    return _without_addresses(source + repr(function))


def _reachable(function: Callable[[Any], Any]) -> dict[str, object]:
    """What a callable is bound to, closes over, or has as attributes, defaults or arguments."""
    if isinstance(function, partial):
        arguments = {f"argument {number}": value for number, value in enumerate(function.args)}
        return {**arguments, **function.keywords, **_reachable(function.func)}
    if inspect.isfunction(function):
        variables = inspect.getclosurevars(function)
        parameters = inspect.signature(function).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        return {**vars(function), **variables.globals, **variables.nonlocals, **defaults}
    owner: object = function.__self__ if inspect.ismethod(function) else function
    return {**getattr(owner, "__dict__", {}), type(owner).__name__: owner}
