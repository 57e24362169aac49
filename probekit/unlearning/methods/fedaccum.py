"""FedAccum: the retained clients' kept updates, added up without the forgotten; nobody trains.

M_{t+1} = M_t + sum over the retained of p_c U_t^c. The updates were made at models that knew the forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from probekit.errors import InputError
from probekit.unlearning.history import HISTORY_NEEDS, Replay
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal


@dataclass(frozen=True)
class FedAccum:
    """Adds the retained clients' kept updates up, without training.

    `every`: only every so many rounds are used, as if no others had been stored. `rescale`: each is lengthened to the
    way that the run went until the next stored one. `scale`: of every update.
    """

    name: ClassVar[str] = "fedaccum"
    needs: ClassVar[tuple[Any, ...]] = HISTORY_NEEDS
    keeps: ClassVar[tuple[str, ...]] = ("history",)
    traits: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Liu et al., IWQoS 2021 (its baseline)"
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"every": (1, 2, 5), "scale": (0.5, 0.9, 1.0)}

    every: int = 1
    rescale: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.every < 1 or self.scale <= 0:
            raise InputError(
                f"fedaccum takes every 1 or more and a scale above 0; found {self.every} and {self.scale}."
            )

    def unlearn(self, removal: Removal) -> Unlearned:
        """The start of the run and all these updates."""
        replay = Replay(removal, self.every)
        params = replay.run(
            lambda now, one: replay.moved(now, one, self.scale * (one.length if self.rescale else 1.0) * one.updates)
        )
        note = "Updates that were made beside the forgotten are added up as they are; nobody trained."
        return removal.finish(
            self, params=params, flops=params.size * len(replay.rounds), note=note, **replay.kept(params)
        )
