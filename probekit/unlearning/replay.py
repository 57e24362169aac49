"""The kept rounds of a training, repeated as if the forgotten clients had never been there.

Rounds before the first in which one of them took part stay as they were: training is rolled back
to there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from probekit.arrays import Array
from probekit.federated.state import History, Round, State, Upload
from probekit.federated.training.fedavg import FedAvg
from probekit.progress import Step
from probekit.unlearning.local import local_training
from probekit.unlearning.removal import Removal

NewUploads = Callable[[int, Array, Round], Mapping[str, Upload]]
"""Of a round by its number, its new parameters before it, and its kept uploads of the retained."""


@dataclass(frozen=True, eq=False)
class Replay:
    """The rounds of a training that a removal repeats."""

    removal: Removal

    @cached_property
    def history(self) -> History:
        return self.removal.kept(History)

    @cached_property
    def fedavg(self) -> FedAvg:
        return local_training(self.removal, self.removal.retained)

    @cached_property
    def first(self) -> int:
        """The first round of a forgotten client."""
        forgotten = self.removal.request.clients
        rounds = self.history.rounds
        took_part = (i for i, kept in enumerate(rounds) if forgotten & kept.uploads.keys())
        return next(took_part, len(rounds))

    @cached_property
    def rounds(self) -> dict[int, Round]:
        """The rounds to repeat, by number, with the retained clients' uploads; none is empty."""
        repeated = {}
        for number, kept in enumerate(self.history.rounds[self.first :], start=self.first):
            retained = self.retained_uploads(kept)
            if retained:
                repeated[number] = Round(kept.start, retained)
        return repeated

    @cached_property
    def weights(self) -> dict[str, float] | None:
        """Of all retained clients, for rounds of some of them, as far as they were recorded."""
        if self.fedavg.participation == 1:
            return None
        if self.fedavg.uniform:
            return dict.fromkeys(self.removal.clients, 1.0)
        weights = {name: float(rows) for name, rows in self.removal.clients.items()}
        for kept in self.history.rounds:
            uploads = self.retained_uploads(kept)
            weights |= {name: upload.weight for name, upload in uploads.items()}
        return weights

    def retained_uploads(self, kept: Round) -> dict[str, Upload]:
        clients = self.removal.clients
        return {name: upload for name, upload in kept.uploads.items() if name in clients}

    def trained_uploads(
        self, fedavg: FedAvg, number: int, params: Array, kept: Round
    ) -> dict[str, Upload]:
        """What the clients of a round send back from new parameters."""
        retained = self.removal.retained
        ridge = self.removal.ridge_choice.value
        return dict(fedavg.uploads(retained, params, number, ridge=ridge, clients=kept.uploads))

    def end(self, number: int) -> Array:
        """The parameters after a kept round."""
        rounds = self.history.rounds
        return rounds[number + 1].start if number + 1 < len(rounds) else self.history.end

    def step(self, params: Array, uploads: Mapping[str, Upload]) -> Array:
        return self.fedavg.step(params, uploads.items(), self.weights)

    def run(self, new_uploads: NewUploads) -> State:
        """The state after all rounds with new uploads, which are its history."""
        rounds = list(self.history.rounds[: self.first])
        params = self.end(self.first - 1) if self.first else self.history.rounds[0].start
        for number, kept in self.rounds.items():
            uploads = new_uploads(number, params, kept)
            rounds.append(Round(params, uploads))
            params = self.step(params, uploads)
            self.removal.progress(Step("rounds", number + 1, len(self.history.rounds)))
        return self.removal.finish(params, History(tuple(rounds), params))
