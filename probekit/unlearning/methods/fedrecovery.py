"""FedRecovery (Zhang et al., 2023) without its noise: weighted residuals, subtracted.

With a_i the aggregate update of round i and b_i the same without the forgotten:
w = w_T - sum q_i (a_i - b_i), q_i = |a_i|^2 / sum |a_j|^2. The paper then adds Gaussian noise, by
which the result cannot be told from that of retraining up to (epsilon, delta); that is not done
here, so nothing of the kind is promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from probekit.federated.local import check_positive
from probekit.federated.state import State
from probekit.records import record
from probekit.unlearning.removal import Need, Promise, Questions, Removal, choosing_questions
from probekit.unlearning.replay import Replay


@record("method/fedrecovery")
@dataclass(frozen=True)
class FedRecovery:
    """Asks nobody; subtracts `scale` times the mean residual, or their unweighted "sum"."""

    promise: ClassVar[Promise] = "nothing"
    scale: float = 1.0
    weights: Literal["squares", "sum"] = "squares"

    def __post_init__(self) -> None:
        check_positive(self, "scale")

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.HISTORY, Need.WHOLE_CLIENTS})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        return choosing_questions(removal)

    def unlearn(self, removal: Removal) -> State:
        replay = Replay(removal)
        squares = []
        residuals = []
        for number, kept in enumerate(replay.history.rounds):
            retained = replay.retained_uploads(kept)
            end = replay.end(number)
            retained_end = replay.step(kept.start, retained) if retained else kept.start
            squares.append(float(np.square(end - kept.start).sum()))
            touched = kept.uploads.keys() > retained.keys()
            residuals.append(end - retained_end if touched else np.zeros_like(end))
        weights = np.ones(len(squares))
        if self.weights == "squares":
            weights = np.array(squares) / (sum(squares) or 1.0)
        residual = np.tensordot(weights, np.stack(residuals), axes=1)
        return removal.finish(removal.state.params - self.scale * residual)
