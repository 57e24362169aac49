"""Networks that cannot be linearized, refused, each with the reason."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from probekit.errors import InputError
from probekit.jacobian.tape import Forward, Tape, Tensors, differentiable

ROWS = 3
"""How many rows a network is tried on."""

Dropouts = nn.modules.dropout._DropoutNd
Norms = nn.modules.batchnorm._BatchNorm


def refuse_modes(module: nn.Module) -> None:
    """Refuse layers whose outputs are random or depend on the other rows of a batch."""
    for name, layer in module.named_modules():
        label = f"{type(layer).__name__} {name or 'itself'}"
        if isinstance(layer, Dropouts) and layer.training and layer.p > 0:
            raise InputError(f"A network is linearized as it predicts; {label} drops at random. Call module.eval().")
        if isinstance(layer, Norms):
            if layer.training:
                raise InputError(
                    f"A network is linearized as it predicts; {label} is in train mode and normalises by the "
                    "batch at hand. Call module.eval()."
                )
            if layer.running_mean is None:
                raise InputError(
                    f"A row's outputs must not depend on the other rows; {label} has no running statistics. "
                    "Make it with track_running_stats=True."
                )


def refuse_unfit(module: nn.Module, inputs: Tensor, *, classes: int) -> None:
    """Refuse a network that has nothing to train, or does not give one score per class for such inputs."""
    first = next(module.parameters(), None)
    if first is None:
        raise InputError("A network needs parameters to be trained; this one has none. Give it a layer.")
    some = inputs[:ROWS].to(first.device, first.dtype)
    with torch.no_grad():
        outputs = _tried(lambda: module(some), some)
    found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if found != (len(some), classes):
        raise InputError(
            f"A network must give one score per class for each input, ({len(some)}, {classes}); found {found}. Make "
            "it for these classes, and flatten its outputs."
        )


def inspect(forward: Forward, params: Tensors, inputs: Tensor) -> int:
    """The number of outputs, or a sentence why this network cannot be linearized on these inputs."""
    some = inputs[:ROWS]
    with torch.no_grad(), differentiable():
        outputs = _tried(lambda: forward(params, some), some)
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(some):
            found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise InputError(
                f"A network must give one row of scores per input, ({len(some)}, classes); found {found}. "
                "Flatten its outputs, or take one of them."
            )
        if not torch.isfinite(outputs).all():
            raise InputError("A network's outputs must be finite; found NaN or infinity. Look at weights and inputs.")
        _refuse_restless(forward, params, some, outputs=outputs)
    _refuse_opaque(forward, params, some)
    return int(outputs.shape[1])


def _tried(work: Callable[[], Tensor], some: Tensor) -> Tensor:
    try:
        return work()
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        if _in_place(error):
            raise InputError(_in_place_sentence(error)) from error
        raise InputError(
            f"The network cannot take inputs of shape {tuple(some.shape[1:])} and type {some.dtype}: "
            f"{first_line(error)} Give the inputs it was made for."
        ) from error


def _refuse_restless(forward: Forward, params: Tensors, some: Tensor, *, outputs: Tensor) -> None:
    """Refuse outputs that change from call to call, or with the company of a row."""
    if not torch.equal(forward(params, some), outputs):
        raise InputError(
            "A network must give the same outputs for the same inputs; two calls gave different ones. Take out what "
            "is random (functional dropout, noise) or remembers (running state)."
        )
    alone = forward(params, some[:1])
    if not torch.allclose(alone[0], outputs[0], rtol=1e-3, atol=1e-4 * float(outputs.abs().max())):
        raise InputError(
            "A row's outputs must not depend on the other rows of its batch; here they do. Take out what mixes rows."
        )


def _refuse_opaque(forward: Forward, params: Tensors, some: Tensor) -> None:
    """Refuse a network that torch.func cannot follow, in either direction, or whose two directions disagree."""
    ones = tuple(torch.ones_like(one) for one in params)
    try:
        with torch.no_grad(), differentiable():
            pushed = torch.func.jvp(lambda *p: forward(p, some), params, ones)[1]
        tape = Tape(forward, params, some)
        replayed = tape.jvp(ones)
    except RuntimeError as error:
        if _in_place(error):
            raise InputError(_in_place_sentence(error)) from error
        raise InputError(f"The network has no derivative that torch.func can take: {first_line(error)}") from error
    scale = float(pushed.abs().max())
    if not torch.allclose(pushed, replayed, rtol=1e-2, atol=1e-3 * scale + 1e-30):
        raise InputError(
            "Forward-mode and reverse-mode derivatives of the network disagree: some operation in it has a wrong "
            "one, or depends on what was computed before. Look at its custom functions and in-place operations."
        )


def _in_place(error: Exception) -> bool:
    text = str(error).lower()
    return any(word in text for word in ("in-place", "inplace", "mutate a captured", "modified by an inplace"))


def _in_place_sentence(error: Exception) -> str:
    return (
        "The network changes a tensor in place where torch.func cannot follow: "
        f"{first_line(error)} Write that operation without the trailing underscore."
    )


def first_line(error: Exception) -> str:
    """The first sentence of an error, cut where it is long."""
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    line = line.split(". ")[0].strip().rstrip(".")
    return (line if len(line) <= 160 else line[:157] + "...") + "."
