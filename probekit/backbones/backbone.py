"""Backbone: a frozen encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from probekit.arrays import Json


@runtime_checkable
class Backbone(Protocol):
    """Encodes samples of one kind ("image", "text" or "array").

    name: as it was typed, with its view.
    identity: what determines its numbers, the view aside: a digest of the weights' tensors, the
        resolved configuration, the effective preprocessing with its backend, the precision.
    views: the tensors that `encode` gives, with their widths, in order. Usually a single one;
        `#layer:*` has one for each layer.
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def identity(self) -> Mapping[str, Json]: ...
    @property
    def views(self) -> Mapping[str, int]: ...
    def prepare(self, content: Any) -> Any:
        """One decoded sample as `encode` takes it; runs in worker processes, without the model."""

    def encode(self, batch: Sequence[Any]) -> NDArray[Any]:
        """(n, sum of the views' widths) for n prepared samples."""
