"""Starfish (Liu et al., 2024): replay from a rollback, uploads estimated, now and then corrected.

Its core, after FedRecover (Cao et al., 2023), on one server; the paper shares secrets between two,
and promises a bound. A client's update at the new model M is taken to be u_t - B (M - w_t), with
u_t and w_t as kept and B a limited-memory matrix from the rounds in which it really trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np

from probekit.arrays import Array
from probekit.federated.local import check_positive
from probekit.federated.state import Round, State, Upload
from probekit.records import record
from probekit.unlearning.local import fit_questions
from probekit.unlearning.removal import Need, Promise, Questions, Removal, choosing_questions
from probekit.unlearning.replay import Replay


@record("method/starfish")
@dataclass(frozen=True)
class Starfish:
    """Trains the first `warmup`, every `correction`-th and the last `tuning` rounds it repeats.

    buffer: the pairs of differences that a matrix is made of.
    """

    promise: ClassVar[Promise] = "nothing"
    buffer: int = 2
    warmup: int = 10
    correction: int = 10
    tuning: int = 5

    def __post_init__(self) -> None:
        check_positive(self, "buffer", "correction")

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.HISTORY, Need.WHOLE_CLIENTS, Need.RETAINED, Need.RETAINED_ROWS})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        replay = Replay(removal)
        rounds = [
            fit_questions(removal.state.params, clients=kept.uploads)
            for number, kept in replay.rounds.items()
            if self.trains(number, replay)
        ]
        return [*choosing_questions(removal), *rounds]

    def unlearn(self, removal: Removal) -> State:
        replay = Replay(removal)
        matrices = {name: Secant(self.buffer) for name in removal.clients}
        return replay.run(partial(self._uploads, replay, matrices))

    def trains(self, number: int, replay: Replay) -> bool:
        """Whether a round is trained; the others are estimated."""
        done = number - replay.first
        if done < self.warmup or number >= len(replay.history.rounds) - self.tuning:
            return True
        return (done - self.warmup + 1) % self.correction == 0

    def _uploads(
        self,
        replay: Replay,
        matrices: Mapping[str, Secant],
        number: int,
        params: Array,
        kept: Round,
    ) -> dict[str, Upload]:
        if not self.trains(number, replay):
            return _estimated(matrices, params, kept)
        trained = replay.trained_uploads(replay.fedavg, number, params, kept)
        for name, upload in trained.items():
            kept_update = kept.uploads[name].params - kept.start
            update = upload.params - params
            matrices[name].add(params - kept.start, kept_update - update)
        return trained


@dataclass(eq=False)
class Secant:
    """B v from the last pairs of differences (Byrd et al., 1994); 0 before the first."""

    size: int
    moved: list[Array] = field(default_factory=list)
    changed: list[Array] = field(default_factory=list)

    def add(self, moved: Array, changed: Array) -> None:
        """Take in a pair that has curvature."""
        curvature = float((moved * changed).sum())
        if curvature > np.finfo(np.float64).eps * float((moved * moved).sum()):
            self.moved = [*self.moved, moved.ravel()][-self.size :]
            self.changed = [*self.changed, changed.ravel()][-self.size :]

    def product(self, vector: Array) -> Array:
        if not self.moved:
            return np.zeros_like(vector)
        S = np.stack(self.moved, axis=1)
        Y = np.stack(self.changed, axis=1)
        v = vector.ravel()
        A = S.T @ Y
        scale = float(Y[:, -1] @ S[:, -1]) / float(S[:, -1] @ S[:, -1])
        lower = np.tril(A, -1)
        middle = np.block([[-np.diag(np.diag(A)), lower.T], [lower, scale * S.T @ S]])
        right = np.concatenate([Y.T @ v, scale * S.T @ v])
        # pairs of neighboring rounds are nearly parallel, so the system is solved in least squares
        coefficients = np.linalg.lstsq(middle, right, rcond=None)[0]
        product = scale * v - np.hstack([Y, scale * S]) @ coefficients
        return np.asarray(product).reshape(vector.shape)


def _estimated(matrices: Mapping[str, Secant], params: Array, kept: Round) -> dict[str, Upload]:
    """Kept updates, corrected for the way from the kept parameters to the new ones."""
    moved = params - kept.start
    uploads = {}
    for name, upload in kept.uploads.items():
        update = upload.params - kept.start
        uploads[name] = replace(upload, params=params + update - matrices[name].product(moved))
    return uploads
