"""FedEraser (Liu et al., 2021): kept updates keep their length and get a calibrated direction.

The first round is repeated without the forgotten. Then every retained client trains a little from
the new model M_t, giving V_t^c, and M_{t+1} = M_t + sum p_c |U_t^c| V_t^c / |V_t^c|, each tensor by
itself, with U_t^c the update that was kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from probekit.arrays import Array
from probekit.federated.local import check_positive
from probekit.federated.state import Round, State, Upload
from probekit.objective import Model
from probekit.records import record
from probekit.unlearning.local import fit_questions
from probekit.unlearning.removal import Need, Promise, Questions, Removal, choosing_questions
from probekit.unlearning.replay import Replay


@record("method/federaser")
@dataclass(frozen=True)
class FedEraser:
    """`ratio`: of the run's local steps or epochs that a calibration takes, rounded up.

    lengths: those of each client's "own" kept update; or, as the published codes have it, for all
        clients the distance of their mean from the global model *after* the round ("mean").
    """

    promise: ClassVar[Promise] = "nothing"
    ratio: float = 0.5
    lengths: Literal["own", "mean"] = "own"

    def __post_init__(self) -> None:
        check_positive(self, "ratio")

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.HISTORY, Need.WHOLE_CLIENTS, Need.RETAINED, Need.RETAINED_ROWS})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        params = removal.state.params
        trained = list(Replay(removal).rounds.values())[1:]
        rounds = [fit_questions(params, clients=kept.uploads) for kept in trained]
        return [*choosing_questions(removal), *rounds]

    def unlearn(self, removal: Removal) -> State:
        replay = Replay(removal)
        return replay.run(partial(self._uploads, replay))

    def _uploads(
        self, replay: Replay, number: int, params: Array, kept: Round
    ) -> dict[str, Upload]:
        if kept is next(iter(replay.rounds.values())):
            return dict(kept.uploads)
        fedavg = replace(replay.fedavg, plan=replay.fedavg.plan.shortened(self.ratio))
        trained = replay.trained_uploads(fedavg, number, params, kept)
        model = replay.removal.state.model
        if self.lengths == "mean":
            direction = replay.step(params, trained) - params
            length = replay.step(kept.start, kept.uploads) - replay.end(number)
            mean = calibrated(model, direction, length)
            return {name: replace(item, params=params + mean) for name, item in trained.items()}
        uploads = {}
        for name, upload in trained.items():
            kept_update = kept.uploads[name].params - kept.start
            update = calibrated(model, upload.params - params, kept_update)
            uploads[name] = replace(upload, params=params + update)
        return uploads


def calibrated(model: Model, direction: Array, length: Array) -> Array:
    """A direction with the length of another update, tensor by tensor."""
    update = np.zeros_like(direction)
    for span, _ in model.tensors.values():
        norm = float(np.linalg.norm(direction[span]))
        if norm > 0:
            update[span] = direction[span] * (float(np.linalg.norm(length[span])) / norm)
    return update
