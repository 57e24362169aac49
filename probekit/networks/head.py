"""NetworkHead: a trained network that predicts, saved and loaded as heads are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from probekit.arrays import Array, Json
from probekit.heads import BaseHead
from probekit.networks.network import Network
from probekit.objective import scores
from probekit.records import dump, record


@record("trained-network")
@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A network, linearized or not, and the parameters that it was trained to."""

    model: Network
    params: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkHead(BaseHead):
    """The scores of a trained network; its rows are flattened samples."""

    trained: TrainedNetwork

    @property
    def width(self) -> int:
        return math.prod(self.trained.model.sample_shape)

    @property
    def params(self) -> Array:
        return self.trained.params

    def scores(self, block: Array) -> Array:
        return scores(self.trained.model.outputs_of(block), self.params)

    @property
    def kind(self) -> str:
        return "linearized network" if self.trained.model.is_linear else "conventional network"

    def _description(self) -> dict[str, Json]:
        kind = self.kind.removesuffix(" network")
        return {**super()._description(), "network": f"{kind} {self.trained.model.architecture}"}

    def _tensors(self) -> dict[str, NDArray[Any]]:
        model = self.trained.model
        return {
            "params": self.params,
            "weights": model.weights,
            "buffers": model.buffers,
            "columns": model.columns,
        }

    def _content(self) -> bytes:
        return dump(self.trained)
