"""Networks by name: `mlp`, `cnn`, and own ones as `py:package.module:factory`.

A network travels as its name and its weights. Own code is run only where somebody has named it:
whoever starts a command, never whoever sent a message or wrote a run.
"""

from __future__ import annotations

import copy
import inspect
import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import nn

from probekit.errors import InputError, NotFoundError, ProbekitError
from probekit.records import record
from probekit.registry import import_object

SLOPE = 0.01
"""Of LeakyReLU, as in the paper's code."""
KERNEL = 5
CHANNELS = (6, 16)
MOST_SIZES = 100
NAMES = "mlp, mlp:500-100, cnn, py:package.module:factory"

_named: set[str] = set()


class Architecture(Protocol):
    """What a network is, without its weights; a hashable record."""

    def build(self) -> nn.Module: ...
    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether samples of this shape fit, as far as is known without building it."""

    def __hash__(self) -> int: ...


@record("architecture/mlp")
@dataclass(frozen=True)
class Mlp:
    """Linear layers with LeakyReLU between them; sizes from the input to the classes."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.sizes) <= MOST_SIZES or min(self.sizes) < 1:
            raise InputError(
                f"An MLP has 2 to {MOST_SIZES} sizes above 0; found {reprlib.repr(self.sizes)}."
            )

    def takes(self, shape: tuple[int, ...]) -> bool:
        return math.prod(shape) == self.sizes[0]

    def build(self) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(self.sizes):
            layers += [nn.Linear(inputs, outputs), nn.LeakyReLU(SLOPE)]
        return nn.Sequential(*layers[:-1])


@record("architecture/cnn")
@dataclass(frozen=True)
class Cnn:
    """The paper's: two convolutions of 5 x 5 with max-pooling, then linear layers, LeakyReLU."""

    channels: int
    side: int
    classes: int

    def __post_init__(self) -> None:
        if self.channels < 1 or self.classes < 1 or self._side < 1:
            raise InputError(
                f"cnn takes pictures of 16 x 16 or more; found {self.channels} x {self.side} x "
                f"{self.side}. Take larger ones (pixels:32), or mlp."
            )

    def takes(self, shape: tuple[int, ...]) -> bool:
        return shape == (self.channels, self.side, self.side)

    @property
    def _side(self) -> int:
        """Of a picture after the convolutions."""
        side = self.side
        for _ in CHANNELS:
            side = (side - KERNEL + 1) // 2
        return side

    def build(self) -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((self.channels, *CHANNELS)):
            layers += [nn.Conv2d(inputs, outputs, KERNEL), nn.LeakyReLU(SLOPE), nn.MaxPool2d(2)]
        sizes = (CHANNELS[-1] * self._side**2, 256, 128, self.classes)
        return nn.Sequential(*layers, Mlp(sizes).build())


@record("architecture/own")
@dataclass(frozen=True)
class Own:
    """`py:package.module:factory[:option=value,...]`: a function that returns a module.

    It gets `num_classes` where it takes that name and none is given.
    """

    name: str
    classes: int

    def takes(self, shape: tuple[int, ...]) -> bool:
        return True

    def __reduce__(self) -> tuple[Callable[..., Own], tuple[str, int]]:
        return _unpickled, (self.name, self.classes)  # Ray runs what it is sent anyway

    def build(self) -> nn.Module:
        if self.name not in _named:
            raise InputError(
                f"{self.name} is own code, which only whoever starts a command can ask to be run. "
                f"Pass --network {self.name}."
            )
        factory, options = _parsed(self.name)
        if isinstance(factory, nn.Module):
            return copy.deepcopy(factory)
        try:
            module: object = factory(**self._arguments(factory, options))
        except ProbekitError:
            raise
        except (Exception, SystemExit) as error:  # whatever a user's function does
            raise InputError(
                f"{self.name} must build a network; it raised {type(error).__name__}: {error}. "
                "Check its options."
            ) from error
        if not isinstance(module, nn.Module):
            raise InputError(f"{self.name} must return a torch module; it returned {module!r}.")
        return module

    def _arguments(self, factory: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
        parameters = inspect.signature(factory).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        if "num_classes" in parameters or inspect.Parameter.VAR_KEYWORD in kinds:
            return {"num_classes": self.classes, **options}
        return options


def _unpickled(name: str, classes: int) -> Own:
    trust(name)
    return Own(name, classes)


def trust(name: str) -> None:
    """Let this process run the code that a network's name stands for."""
    if name.startswith("py:"):
        _named.add(name)


def is_trusted(name: str) -> bool:
    """Whether this process may run the code that a network's name stands for, if it is any."""
    return name in _named or not name.startswith("py:")


def architecture(name: str, shape: tuple[int, ...], classes: int) -> Architecture:
    """The network of a name, for samples of this shape."""
    kind, _, options = name.partition(":")
    if kind == "py":
        return Own(name, classes)
    if kind == "mlp":
        hidden = [int(size) for size in (options or "100-50").split("-") if size.isdecimal()]
        if min(hidden, default=0) < 1 or "-".join(map(str, hidden)) != (options or "100-50"):
            raise InputError(
                f"mlp takes the sizes of its hidden layers; found {options!r}. Write mlp:500-100."
            )
        return Mlp((math.prod(shape), *hidden, classes))
    if kind == "cnn" and not options:
        if len(shape) != 3 or shape[1] != shape[2]:
            raise InputError(
                f"cnn takes square pictures; found samples of shape {shape}. Encode them with "
                "pixels (-b pixels#rgb), or take mlp."
            )
        return Cnn(shape[0], shape[1], classes)
    raise NotFoundError(f"Unknown network {name!r}. Known: {NAMES}.")


def check_name(name: str) -> None:
    """Refuse what names no network, before any work; own code is imported."""
    if isinstance(architecture(name, (3, 32, 32), 2), Own):
        _parsed(name)


@lru_cache(maxsize=8)
def built(architecture: Architecture, parameters: int) -> nn.Module:
    """The module in eval mode, with whatever weights; refused where it has not so many parameters.

    Named architectures are counted before anything is allocated.
    """
    if not isinstance(architecture, Own):
        _check_count(parameter_count(architecture), parameters)
    module = initialized(architecture, 0)
    _check_count(count_parameters(module), parameters)
    return module


def initialized(architecture: Architecture, seed: int) -> nn.Module:
    """The module in eval mode, with weights as torch draws them under a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architecture.build().cpu().eval()


def count_parameters(module: nn.Module) -> int:
    """Of those that are trained."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def parameter_count(architecture: Architecture) -> int:
    """Without allocating them."""
    try:
        with torch.device("meta"):
            return count_parameters(architecture.build())
    except (RuntimeError, TypeError) as error:  # sizes that torch cannot count
        raise InputError(f"A network must have sizes below 2^63; found {architecture}.") from error


def _check_count(count: int, parameters: int) -> None:
    if count != parameters:
        raise InputError(
            f"Weights of a network must be as many as its parameters, {count:,}; found "
            f"{parameters:,}. Use the code and the file that belong together."
        )


def _parsed(name: str) -> tuple[Any, dict[str, Any]]:
    """What a name imports, and the options behind it."""
    from probekit.backbones.module import declare_operators

    declare_operators()  # before torchvision is imported
    module, _, rest = name.removeprefix("py:").partition(":")
    attribute, _, text = rest.partition(":")
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    options = {key.strip().replace("-", "_"): _literal(value) for key, _, value in pairs}
    return import_object(f"py:{module}:{attribute}"), options


def _literal(text: str) -> Any:
    """A number, true, false or none where it reads like one."""
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
