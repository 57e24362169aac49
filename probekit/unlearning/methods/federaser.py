"""FedEraser (Liu et al., 2021): each kept update keeps its length and gets the direction that retraining would take.

The first round is repeated without the forgotten. Then, for each kept round t, every retained client trains a little
from the new model M_t, giving V_t^c, and M_{t+1} = M_t + sum p_c |U_t^c| V_t^c / |V_t^c|, for each tensor by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError
from probekit.models.fitting import FitPlan
from probekit.unlearning.history import HISTORY_NEEDS, KeptRound, Replay
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.unlearning.rounds import RATE, fits, local_plan, retained_rounds
from probekit.values import Array


@dataclass(frozen=True)
class FedEraser:
    """Calibrates the kept updates of the retained clients by a little training of theirs.

    `ratio`: of the run's local steps or epochs that a calibration takes, rounded up. `every`: only every so many rounds
    are used, as if no others had been stored; `rescale` lengthens each to the way that the run went until the next one.
    `post`: rounds of plain FedAvg afterwards. `rate`: of the local steps; None: as the run was trained. `reference`:
    as the public codes, which calibrate the clients' average instead of each client's update, and measure its length
    from the model *after* the round (an index that is off by one), so that a step is as long as the forgotten
    clients' pull.
    """

    name: ClassVar[str] = "federaser"
    needs: ClassVar[tuple[Any, ...]] = (*HISTORY_NEEDS, ("retained", "fit"), RATE)
    keeps: ClassVar[tuple[str, ...]] = ("history",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Liu et al., IWQoS 2021"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"ratio": (0.2, 0.5, 1.0), "post": (0, 5)}

    ratio: float = 0.5
    every: int = 1
    rescale: bool = False
    post: int = 0
    rate: float | None = None
    reference: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.ratio < math.inf or self.every < 1 or self.post < 0:
            raise InputError(
                "federaser takes a ratio above 0, every 1 or more and post 0 or more; found "
                f"{self.ratio}, {self.every} and {self.post}."
            )

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head after every kept round was calibrated."""
        replay, whole = Replay(removal, self.every), local_plan(removal, rate=self.rate)
        less: Any = {name: math.ceil(self.ratio * many) for name, many in _effort(whole).items()}
        plan = replace(whole, **less)

        def step(now: Array, one: KeptRound) -> Array:
            longer = one.length if self.rescale else 1.0
            if one.number == replay.rounds[0].number:
                return replay.moved(now, one, longer * one.updates)
            found = fits(removal.retained, now, replace(plan, round=one.number), clients=one.names)
            sent = np.stack([found[name] for name in one.names])
            made = self._calibrated(replay, now, one, sent)
            return replay.moved(now, one, longer * made, sent)

        params = replay.run(step)
        kept = replay.kept(params)
        if self.post:
            params = retained_rounds(removal, params, replace(whole, round=len(replay.history.rounds)), self.post)
            kept = {"learning_rate": removal.before.learning_rate}
        d, k = removal.problem.shape
        steps, rounds = max(_effort(plan).values(), default=1), len(replay.rounds)
        flops = (rounds * steps + self.post * max(_effort(whole).values(), default=1)) * 4 * removal.rows * d * k
        unit = "steps" if plan.steps else "epochs"
        note = f"{rounds} kept rounds, calibrated by {steps} {unit} of the retained clients."
        return removal.finish(self, params=params, flops=flops, note=note, **kept)

    def _calibrated(self, replay: Replay, now: Array, one: KeptRound, sent: Array) -> Array:
        """New directions in kept lengths, of each client and each tensor."""
        new, old = sent - now, one.updates
        if self.reference:
            new, old = (np.broadcast_to(replay.average(now, one.names, sent) - now, sent.shape).copy(), old)
            kept = replay.average(one.start, one.names, one.uploads) - replay.after(one.number + 1)
            old = np.broadcast_to(kept, sent.shape)
        for rows in replay.removal.problem.blocks.values():
            lengths, wanted = (np.linalg.norm(some[:, rows], axis=(1, 2), keepdims=True) for some in (new, old))
            new[:, rows] *= np.divide(wanted, lengths, out=np.zeros_like(wanted), where=lengths > 0)
        return np.asarray(new)


def _effort(plan: FitPlan) -> dict[str, int]:
    """The steps or the epochs of a plan."""
    return {name: many for name in ("steps", "epochs") if (many := getattr(plan, name)) is not None}
