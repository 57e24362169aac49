"""Networks that cannot be linearized, refused, each with the reason."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from probekit.errors import InputError
from probekit.jacobian.tape import Forward, Fresh, Tape, Tensors, differentiable

ROWS = 3
"""How many rows a network is tried on."""

Dropouts = nn.modules.dropout._DropoutNd
Norms = nn.modules.batchnorm._BatchNorm


def refuse_modes(module: nn.Module) -> None:
    """Refuse layers whose outputs are random or depend on the other rows of a batch."""
    for name, layer in module.named_modules():
        label = f"{type(layer).__name__} {name or 'itself'}"
        if layer.training and (isinstance(layer, Norms) or (isinstance(layer, Dropouts) and layer.p > 0)):
            raise InputError(f"A network is linearized as it predicts; {label} is in train mode. Call module.eval().")
        if isinstance(layer, Norms) and layer.running_mean is None:
            raise InputError(
                f"Rows must not mix; {label} has no running statistics. Make it with track_running_stats=True."
            )


def refuse_unfit(module: nn.Module, inputs: Tensor, *, classes: int) -> None:
    """Refuse a network that has nothing to train, or does not give one score per class for such inputs."""
    first = next(module.parameters(), None)
    if first is None:
        raise InputError("A network needs parameters to be trained; this one has none. Give it a layer.")
    some = inputs[:ROWS].to(first.device, first.dtype)
    with torch.no_grad():
        _scores(lambda: module(some), some, classes)


def inspect(forward: Forward, params: Tensors, inputs: Tensor) -> int:
    """The number of outputs, or a sentence why this network cannot be linearized on these inputs."""
    some = inputs[:ROWS]
    with torch.no_grad(), differentiable():
        outputs = _scores(lambda: forward(params, some), some)
        if not torch.isfinite(outputs).all():
            raise InputError("A network's outputs must be finite; found NaN or infinity. Look at weights and inputs.")
        if not torch.equal(forward(params, some), outputs):
            raise InputError(
                "Equal inputs must give equal outputs; two calls gave different ones. Take out randomness and memory."
            )
        alone = forward(params, some[:1])
        if not torch.allclose(alone[0], outputs[0], rtol=1e-3, atol=1e-4 * float(outputs.abs().max())):
            raise InputError("A row's outputs must not depend on other rows; here they do. Take out what mixes rows.")
    _refuse_opaque(forward, params, some)
    return int(outputs.shape[1])


def _scores(work: Callable[[], Tensor], some: Tensor, classes: int | None = None) -> Tensor:
    """What the network gives for some inputs: a row of scores for each, or a sentence why not."""
    try:
        outputs = work()
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        why = f"cannot take inputs of shape {tuple(some.shape[1:])} and type {some.dtype}"
        raise _unfit(error, why, " Give the inputs it was made for.") from error
    found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if len(found) != 2 or found != (len(some), classes or found[1]):
        raise InputError(
            f"A network must give one score per class for each input, ({len(some)}, {classes or 'classes'}); found "
            f"{found}. Make it for these classes, flatten its outputs, or take one of them."
        )
    return outputs


def _refuse_opaque(forward: Forward, params: Tensors, some: Tensor) -> None:
    """Refuse a network that torch.func cannot follow, in either direction, or whose two directions disagree."""
    ones = tuple(torch.ones_like(one) for one in params)
    try:
        pushed = Fresh(forward, params, some).jvp(ones)
        replayed = Tape(forward, params, some).jvp(ones)
    except RuntimeError as error:
        raise _unfit(error, "has no derivative that torch.func can take") from error
    scale = float(pushed.abs().max())
    if not torch.allclose(pushed, replayed, rtol=1e-2, atol=1e-3 * scale + 1e-30):
        raise InputError(
            "Forward-mode and reverse-mode derivatives disagree. Look at custom functions and in-place operations."
        )


def _unfit(error: Exception, why: str, remedy: str = "") -> InputError:
    if any(word in str(error).lower() for word in ("in-place", "inplace", "mutate a captured")):
        why = "changes a tensor in place where torch.func cannot follow"
        remedy = " Write that operation without the trailing underscore."
    return InputError(f"The network {why}: {first_line(error)}{remedy}")


def first_line(error: Exception) -> str:
    """The first sentence of an error, cut where it is long."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0].strip().rstrip(".")
    return (line if len(line) <= 160 else line[:157] + "...") + "."
