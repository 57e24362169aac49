"""The kept rounds of a run, gone through again as if the forgotten clients had never been there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from probekit.errors import InputError
from probekit.federated.local_rounds import averaged_rows
from probekit.federated.server import average
from probekit.federated.trained import History, HistoryRecorder
from probekit.protocols import Progress
from probekit.unlearning.removal import Removal
from probekit.values import Array, frozen

HISTORY_NEEDS = (("kept", "history"), ("request", "clients"))


@dataclass(frozen=True, eq=False)
class KeptRound:
    """A round as the retained clients saw it: its number, where it started, who of them took part, what they sent.

    `length` is how many rounds of this length the run went from here to the next kept one.
    """

    number: int
    start: Array
    names: tuple[str, ...]
    uploads: Array
    length: float = 1.0

    @property
    def updates(self) -> Array:
        """What each of them changed."""
        return np.asarray(self.uploads - self.start)


@dataclass(eq=False)
class Replay:
    """The kept rounds without the forgotten, every `every`-th of them, and a new history of what is made of them."""

    removal: Removal
    every: int = 1
    recorder: HistoryRecorder = field(default_factory=HistoryRecorder, init=False)

    @cached_property
    def history(self) -> History:
        """Of all who took part."""
        found = self.removal.before.history
        if found is None or not found.rounds:
            raise InputError("There is no history of rounds to go through. Train by FedAvg with keep_history=True.")
        return found

    @cached_property
    def means(self) -> list[slice]:
        """The rows of parameters that are averaged, never moved."""
        return averaged_rows(self.removal.problem)

    @cached_property
    def shares(self) -> dict[str, float]:
        """What every retained client counts in an average."""
        return self.removal.shares(self.removal.counts)

    @property
    def server_rate(self) -> float:
        """How far an average was followed."""
        return float(getattr(self.removal.material.options, "server_learning_rate", 1.0))

    @property
    def rounds(self) -> list[KeptRound]:
        """Those in which a retained client took part."""
        kept, found = range(0, len(self.history.rounds), self.every), []
        for number in kept:
            one = self.history.rounds[number]
            who = [at for at, name in enumerate(one.participants) if name in self.shares]
            if who:
                names = tuple(one.participants[at] for at in who)
                found.append(KeptRound(number, one.start, names, np.asarray(one.uploads)[who], self._length(number)))
        return found

    def after(self, number: int) -> Array:
        """The run's parameters before the round of this number; after the last: at the end."""
        rounds = self.history.rounds
        return rounds[number].start if number < len(rounds) else self.history.end

    def _length(self, number: int) -> float:
        """The way from a kept round to the next one, in lengths of the round itself."""
        start = self.history.rounds[number].start
        own, whole = (np.linalg.norm(self.after(number + some) - start) for some in (1, self.every))
        return float(whole / own) if own and self.every > 1 else 1.0

    def moved(self, start: Array, one: KeptRound, updates: Array, sent: Array | None = None) -> Array:
        """The parameters after a round with these updates; averaged rows come from what was `sent` (then)."""
        uploads = start + updates
        for rows in self.means:
            uploads[:, rows] = (one.uploads if sent is None else sent)[:, rows]
        self.recorder.add(start, one.names, tuple(self.shares[name] for name in one.names), uploads)
        return self.average(start, one.names, uploads)

    def average(self, start: Array, names: Sequence[str], uploads: Array) -> Array:
        """The retained clients' average of these uploads, as their own training would have taken it."""
        shares = np.array([self.shares[name] for name in names])
        how: Any = {"clients": len(self.shares), "rate": self.server_rate, "means": self.means}
        return average(start, uploads, shares, **how)

    def run(self, step: Callable[[Array, KeptRound], Array], stage: str = "history") -> Array:
        """The parameters after every kept round, each by this step from where the one before ended."""
        params, progress, rounds = self.history.rounds[0].start, self.removal.watch(stage), self.rounds
        for done, one in enumerate(rounds):
            params = step(params, one)
            progress(Progress(done + 1, len(rounds)))
        return np.asarray(params)

    def kept(self, end: Array) -> dict[str, Any]:
        """What a further removal stands on: the new rounds, their number and the rate that they were made by."""
        history = self.recorder.history(frozen(np.array(end)))
        return {
            "history": history,
            "rounds": len(history.rounds),
            "learning_rate": self.removal.before.learning_rate,
        }
