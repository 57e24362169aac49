"""What training leaves: the head, what the server kept, what it cost, and what can be unlearned from that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from probekit.linear.design import ClientStats, Design, Solution
from probekit.models.heads import Head, NetworkHead

NUMBER_BYTES = 8

Params = NDArray[np.float64]


@dataclass(frozen=True)
class Progress:
    """One round or step: how many are done, of how many (None: until it is near enough), the loss of the global
    parameters, and how near they are, where these are known."""

    done: int
    total: int | None
    loss: float = math.nan
    residual: float = math.nan


Watch = Callable[[str], Callable[[Progress], None]]
"""Gives, for the name of a stage, what is to be told of its progress."""


def unwatched(stage: str) -> Callable[[Progress], None]:
    """Nobody looks."""
    return lambda now: None


@dataclass(frozen=True, eq=False)
class Reached:
    """Where rounds have come to: the parameters (a network's counted from w_p), and how many it took."""

    params: Params
    rounds: int


@dataclass(frozen=True)
class Traffic:
    """Bytes sent to the server (up) and from it (down), every number as eight bytes."""

    up: int = 0
    down: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.up + other.up, self.down + other.down)


@dataclass(frozen=True)
class Round:
    """One round: the parameters it started from, who took part, with what weight, and the uploads."""

    start: Params
    participants: tuple[str, ...]
    weights: tuple[float, ...]
    uploads: Params

    def update(self, client: str) -> Params:
        """What a participant changed: its upload minus the start."""
        change: Params = self.uploads[self.participants.index(client)] - self.start
        return change


@dataclass(frozen=True)
class History:
    """Every round's start and uploads, in order; `end` are the parameters after the last one."""

    rounds: tuple[Round, ...]
    end: Params

    @property
    def size(self) -> int:
        """The bytes that the parameters take."""
        return self.end.nbytes + sum(one.start.nbytes + one.uploads.nbytes for one in self.rounds)


@dataclass(frozen=True)
class Gradients:
    """The gradient of each client's mean ridge loss, penalty included.

    `aggregate`: at the final global parameters, for every client; FedRemoval's theorem needs these. `local`:
    at the client's own last local parameters, for the participants of the last round; algorithm 1 as printed
    sends these.
    """

    aggregate: Mapping[str, Params]
    local: Mapping[str, Params] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerSet:
    """The server's own rows (numbers in the embedding set) and their statistics, which a network has none of."""

    statistics: ClientStats | None
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Ability:
    """Whether the material for an unlearning method is there, and why (not)."""

    possible: bool
    why: str


@dataclass(frozen=True)
class Trained:
    """A trained head with all that the server kept.

    `ridge` is in the given scaling; `weights` are the clients' shares in an average; `traffic` is told by
    purpose. `objective` is the secret linear term that was added to the loss, if one was.
    """

    head: Head
    method: str
    design: Design
    ridge: float
    scaling: str
    counts: Mapping[str, int]
    weights: Mapping[str, float]
    solution: Solution
    rounds: int = 1
    losses: tuple[float, ...] = ()
    learning_rate: float | None = None
    statistics: Mapping[str, ClientStats] | None = None
    server: ServerSet | None = None
    gradients: Gradients | None = None
    history: History | None = None
    objective: Params | None = None
    traffic: Mapping[str, Traffic] = field(default_factory=dict)

    @property
    def params(self) -> Params:
        """The parameters of the least-squares problem: the head's, but no bias where the design has none."""
        return self.head.params[: self.design.columns]

    @property
    def total_traffic(self) -> Traffic:
        """All bytes, whatever for."""
        return sum(self.traffic.values(), Traffic())

    def can_unlearn(self) -> dict[str, Ability]:
        """For each method of unlearning: is its material here, and why (not)."""
        exact = Ability(True, "Every client's statistics are kept.")
        if isinstance(self.head, NetworkHead):
            exact = Ability(False, "A linearized network has no statistics. Take fedremoval-pcg or retrain.")
        elif self.statistics is None:
            exact = Ability(False, 'No statistics of clients are kept. Train with keep="statistics".')
        removal = self._removal()
        online = Ability(removal.possible, f"{removal.why} The retained clients must answer at removal time.")
        past = Ability(True, f"All {self.rounds} rounds are kept.")
        if self.history is None:
            whole = isinstance(self.head, NetworkHead)
            remedy = "Of a whole network none is." if whole else "Train by FedAvg with keep_history=True."
            past = Ability(False, f"No history of rounds is kept. {remedy}")
        return {
            "exact": exact,
            "fedremoval": removal,
            "fedremoval-line": removal if exact.possible or not removal.possible else online,
            "fedremoval-pcg": removal if exact.possible or not removal.possible else online,
            "retrain": Ability(True, "Nothing kept is needed; the retained clients must hold their rows."),
            "federaser": past,
            "fedrecovery": past,
            "knot": past,
        }

    def _removal(self) -> Ability:
        if self.objective is not None:
            return Ability(False, "The head's objective has a secret linear term that clients' gradients lack.")
        if self.server is None:
            return Ability(False, "The server has no rows of its own. Partition with a server share, say 0.1.")
        if self.statistics is None and self.gradients is None:
            return Ability(False, 'No gradients of clients are kept. Train with keep="gradients" or "statistics".')
        if self.head.recipe.get("fit_view") != "none" or self.head.recipe.get("class_weight"):
            return Ability(False, "The head has a view or class weights: the clients' plain losses are not its own.")
        if self.head.recipe.get("normalise_classes"):
            return Ability(False, "The head's classes are normalised: it is not the minimum of the clients' losses.")
        return Ability(True, "The server has rows of its own and the clients' gradients at the final head.")
