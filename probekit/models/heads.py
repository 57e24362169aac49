"""Heads as values: an affine map of embeddings, or a whole network, linearized around its weights w_p or as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.design import CENTRES, LinearFit
from probekit.values import Array, Json, canonical

PRECISIONS = ("float64", "float32")
NETWORK_LOSSES = ("cross-entropy", "squared")
"""What a network may be trained by: of a softmax, or half the sum of squares against one-hot targets."""


@dataclass(frozen=True)
class LinearHead:
    """An affine map from embeddings to class scores: `embedding @ params[:d] + params[d]` (bias last).

    Any centring or scaling is already inside `params`; only the row view ("raw" or "l2") is applied to an
    embedding. `targets`, where it is no classifier: what the columns are, "labels" of 0 or 1 or "real" numbers.
    """

    backend: ClassVar[str] = "embeddings"

    params: Array
    classes: tuple[str, ...]
    ridge: float
    view: str = "raw"
    spec_digest: str = ""
    recipe: Mapping[str, Json] = field(default_factory=dict)
    targets: str = ""

    def __post_init__(self) -> None:
        if self.params.ndim != 2 or self.params.shape[1] != len(self.classes):
            found = f"{len(self.classes)} classes, parameters of shape {self.params.shape}"
            raise InputError(f"A head needs one column of parameters per class: {found}.")
        _freeze(self.params)

    @property
    def dimension(self) -> int:
        """The length of an embedding."""
        return int(self.params.shape[0]) - 1

    @cached_property
    def digest(self) -> str:
        """The sha256 of the map: parameters, classes and row view."""
        about: list[Json] = [list(self.classes), self.view, self.spec_digest, list(self.params.shape)]
        return _hash([*about, self.targets] if self.targets else about, self.params)


def head_of(fit: LinearFit, *, classes: tuple[str, ...] = (), spec_digest: str = "") -> LinearHead:
    """The head of fitted parameters. Classes without names are called by their numbers."""
    names = classes or tuple(map(str, range(fit.design.classes)))
    more = {"spec_digest": spec_digest, "targets": getattr(fit.design, "targets", "")}
    return LinearHead(fit.params, names, fit.ridge, view=fit.design.view, recipe=fit.recipe, **more)


@dataclass(frozen=True, eq=False)
class Network:
    """A network at its weights w_p, parameters and buffers by name.

    `name` is what `probekit.models.networks.network` makes it from; `shape` that of one input, `moving` the names
    of the parameters that are trained, `precision` the numbers it computes in, `canary` what somebody's own code gives
    for fixed inputs.
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    weights: Mapping[str, NDArray[Any]]
    moving: tuple[str, ...]
    precision: str = "float64"
    canary: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InputError(f"A network computes in {' or '.join(PRECISIONS)}; found {self.precision!r}.")

    @property
    def plain(self) -> dict[str, Json]:
        """All but the weights."""
        taken: dict[str, Json] = {"shape": list(self.shape), "classes": self.classes, "moving": list(self.moving)}
        known: dict[str, Json] = {"canary": list(self.canary)} if self.canary else {}
        return {"name": self.name, **taken, "precision": self.precision, **known}

    @cached_property
    def digest(self) -> str:
        """The sha256 of the weights, the architecture's name, its own code's canary, and which weights move."""
        hasher = hashlib.sha256(canonical(self.plain).encode())
        for name, value in sorted(self.weights.items()):
            hasher.update(f"{name} {value.dtype.str} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        return hasher.hexdigest()

    @property
    def dimension(self) -> int:
        """How many numbers one input has."""
        return int(np.prod(self.shape))


@dataclass(frozen=True, eq=False)
class NetworkHead:
    """Scores f(w_p) + J (w - w_p) of a network linearized around w_p. `params`, one column, are w - w_p, or w where
    the centre is "zero".
    """

    backend: ClassVar[str] = "jvp"

    params: Array
    classes: tuple[str, ...]
    ridge: float
    network: Network
    centre: str = "wp"
    spec_digest: str = ""
    recipe: Mapping[str, Json] = field(default_factory=dict)
    view: str = "raw"

    def __post_init__(self) -> None:
        if self.centre not in CENTRES:
            raise InputError(f"The parameters are counted from one of {', '.join(CENTRES)}; found {self.centre!r}.")
        if self.params.ndim != 2 or self.params.shape[1] != 1 or len(self.classes) != self.network.classes:
            found = f"shape {self.params.shape} and {len(self.classes)} classes"
            raise InputError(f"A network's head has one column and {self.network.classes} classes; found {found}.")
        _freeze(self.params)

    @property
    def dimension(self) -> int:
        """The length of a row."""
        return self.network.dimension

    @cached_property
    def digest(self) -> str:
        """The sha256 of the map: parameters, network, classes."""
        return _hash([list(self.classes), self.centre, self.spec_digest, self.network.digest], self.params)


@dataclass(frozen=True, eq=False)
class ConventionalHead(NetworkHead):
    """Scores f(w) of a network itself, not linearized. `params`, one column, are its moving weights and then its
    buffers, counted from those at w_p or, where the centre is "zero", from zero; `loss` is what it was trained by.
    """

    backend: ClassVar[str] = "network"

    loss: str = "cross-entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in NETWORK_LOSSES:
            raise InputError(f"A network is trained by {' or '.join(NETWORK_LOSSES)}; found {self.loss!r}.")

    @cached_property
    def digest(self) -> str:
        """The sha256 of the map: parameters, network, classes; it is no linearized one."""
        about: list[Json] = [list(self.classes), self.centre, self.spec_digest, self.network.digest]
        return _hash([*about, self.backend], self.params)


def _freeze(params: Array) -> None:
    if not np.isfinite(params).all():
        raise InputError("A head cannot hold NaN or infinite parameters. Look at the rows and the ridge.")
    params.setflags(write=False)


def _hash(about: Json, params: Array) -> str:
    found = hashlib.sha256(canonical(about).encode())
    found.update(np.ascontiguousarray(params, "<f8").data)
    return found.hexdigest()


class Head(Protocol):
    """What predicts: parameters, the names of the classes, and which backend's problem it solves.

    `view` says how a row is scaled before it meets the parameters ("raw", "l2"); `recipe` what it came about by.
    """

    @property
    def backend(self) -> str: ...
    @property
    def params(self) -> Array: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def ridge(self) -> float: ...
    @property
    def view(self) -> str: ...
    @property
    def spec_digest(self) -> str: ...
    @property
    def recipe(self) -> Mapping[str, Json]: ...
    @property
    def dimension(self) -> int: ...
    @property
    def digest(self) -> str: ...
