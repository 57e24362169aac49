"""A request against a run, with everything that a method may use to carry it out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError
from probekit.federated.federation import Federation, Nobody, Traffic
from probekit.federated.in_process import FirstOf, InProcess
from probekit.federated.loss import CommonLoss
from probekit.federated.server import client_weights
from probekit.federated.summation import StatisticsTree
from probekit.federated.trained import Trained
from probekit.linear.design import ClientStats, Solution
from probekit.models.heads import Head
from probekit.protocols import Watch
from probekit.registry import spec_of
from probekit.unlearning.method import NOTHING, ROWS, Cost, Material, Unlearned
from probekit.unlearning.request import UnlearnRequest
from probekit.unlearning.rows import Remainder, remaining_rows
from probekit.unlearning.soundness import refuse_unsound
from probekit.unlearning.sources import (
    kept_clients,
    online_clients,
    pretrained_on,
    remaining_server,
    server_holding,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Removal:
    """A request against a run, with everything that may be used to carry it out."""

    before: Trained
    request: UnlearnRequest
    material: Material = NOTHING
    started: float = field(default_factory=time.perf_counter)
    earlier: Traffic = field(init=False)
    """What the federations had sent before."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "earlier", sum((one.traffic for one in self._asked()), Traffic()))

    @property
    def problem(self) -> Any:
        """What was trained."""
        return self.before.problem

    @property
    def watch(self) -> Watch:
        """Called with progress."""
        return self.material.watch

    @property
    def params(self) -> Array:
        """The parameters before."""
        return self.before.params

    @cached_property
    def left(self) -> tuple[str, ...]:
        """The clients that stay, and those that join."""
        return self.request.remaining(self.before)

    @cached_property
    def arriving(self) -> dict[str, ClientStats]:
        """The statistics of clients that join."""
        given = {name: one for name, one in self.material.arriving.items() if name in self.request.added}
        return {name: refuse_unsound(one, name, design=self.problem.design) for name, one in given.items()}

    @cached_property
    def held(self) -> Mapping[str, NDArray[np.int64]] | None:
        """The cached rows of clients that stay or join, before single ones are forgotten; None: not at hand."""
        partition = self.material.partition
        if self.material.embeddings is None or partition is None:
            return None
        absent = [name for name in self.left if name not in partition.clients and name not in self.arriving]
        if absent and absent[0] in self.request.added:
            raise InputError(
                f"Cannot add client {absent[0]}: it has neither statistics (Material.arriving) nor rows in the "
                "partition. Give one of them."
            )
        if absent:
            raise MismatchError(
                f"Client {absent[0]} of this run holds no rows in the partition given. Use the run's own partition."
            )
        return {name: partition.clients.get(name, np.empty(0, np.int64)) for name in self.left}

    @cached_property
    def rest(self) -> Remainder:
        """The rows that stay, where single ones are forgotten or relabelled."""
        material = self.material
        if self.held is None or material.embeddings is None or material.partition is None:
            raise InputError(f"This request needs {ROWS}.")
        divided = replace(material.partition, clients={**material.partition.clients, **self.held})
        return remaining_rows(self.before, self.request, material.embeddings, divided)

    @cached_property
    def changed(self) -> frozenset[str]:
        """Clients that stay, with other rows than before, or that join with rows."""
        joining = frozenset(self.request.added) - self.arriving.keys()
        if self.material.clients is not None and self.request.by_row and self.held is None:
            named = {*(one.client for one in self.request.samples), *(one.client for one in self.request.relabelled)}
            # only they themselves know whose rows change, unless the request does
            return joining | (frozenset(self.left) if None in named else frozenset(self.left) & named)
        if joining and self.material.clients is None and (self.held is None or self.material.server_only):
            raise InputError(
                f"Cannot add client {min(joining)}: it needs its statistics (Material.arriving) or cached rows. Give "
                "them, or the embedding set and the partition."
            )
        return self.rest.changed | joining if self.request.by_row else joining

    @cached_property
    def online(self) -> Federation:
        """The retained clients themselves: those given, else from their cached rows."""
        return online_clients(self)

    server_set = cached_property(remaining_server)
    """The server's own rows after the request; those that were a client's leave with it."""
    pretrained_on = cached_property(pretrained_on)
    """Why nothing takes these clients out of a network, or empty."""
    server = cached_property(server_holding)
    """What the server holds itself: from its statistics or, where a problem has none, from its rows."""

    @cached_property
    def retained(self) -> Federation:
        """The retained clients, as they can be asked: from what was kept, else online."""
        return FirstOf(self.problem, [*kept_clients(self), self.online], self.counts)

    @cached_property
    def target(self) -> Federation:
        """The forgotten clients (of a request by samples: the clients with those samples alone)."""
        material = self.material
        if material.target is not None:
            return material.target
        if material.embeddings is None or material.partition is None or material.server_only:
            return Nobody()
        known, leaving = material.partition.clients, self.request.clients
        gone = self.rest.gone if self.request.by_row else {name: known[name] for name in leaving if name in known}
        return InProcess.of(self.problem, material.embeddings, gone) if gone else Nobody()

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many rows each client has afterwards."""
        if self.material.clients is not None:
            return {name: count for name in self.left if (count := self.online.counts[name])}
        known = dict(self.before.counts)
        if self.held is not None:
            rows = self.rest.partition.clients if self.request.by_row else self.held
            known |= {name: len(rows.get(name, ())) for name in self.left if name in self.changed}
        known |= {name: one.count for name, one in self.arriving.items()}
        return {name: known[name] for name in self.left if known.get(name)}

    @property
    def rows(self) -> int:
        """How many rows are retained."""
        return sum(self.counts.values())

    @property
    def ridge(self) -> float:
        """The ridge in mean scaling, for the retained rows."""
        return self.before.mean_ridge(self.rows)

    @cached_property
    def loss(self) -> CommonLoss:
        """The retained loss, in float64."""
        return CommonLoss(self.retained, self.problem, self.ridge, precision="float64")

    @cached_property
    def gradient(self) -> Array:
        """The retained loss's gradient at the parameters before."""
        return self.loss.gradient(self.params)

    def gradients_at(self, params: Array) -> dict[str, Array]:
        """Every retained client's mean gradient at these parameters, the ridge's part included: one round."""
        extra = self.problem.penalty(self.ridge) * params
        answers = self.retained.ask("gradient", {"params": params}).each()
        found = {one.client: one.arrays["gradient"] / one.count + extra for one in answers}
        return {name: found[name] for name in self.counts}

    @cached_property
    def statistics(self) -> StatisticsTree | None:
        """The retained clients' statistics where the run kept them; those that the request changed are asked for."""
        kept = self.before.statistics
        if kept is None:
            return None
        stay = set(self.left) - self.changed
        gone = [name for name in kept if name not in stay]
        if isinstance(kept, StatisticsTree):
            tree = kept.without(*gone)
        else:
            rest = {name: kept[name] for name in kept if name not in gone}
            tree = StatisticsTree.of(rest) if rest else StatisticsTree(self.problem.design)
        arrived, asked = dict(self.arriving), [name for name in self.changed if name in self.counts]
        if asked:
            source = self.online if self.online.offers("statistics") else self.retained
            for one in source.ask("statistics", clients=asked).each():
                sent = self.problem.stats(one.arrays)
                arrived[one.client] = refuse_unsound(sent, one.client, design=self.problem.design)
        for name, statistics in arrived.items():
            tree = tree.including(name, statistics)
        if not tree.parts:
            raise InputError("Cannot forget every sample of every client: nothing would remain to be trained on.")
        return tree

    def shares(self, counts: Mapping[str, int]) -> dict[str, float]:
        """What clients with so many rows count in an average: by size, or all alike, as in the run's training."""
        old, new = (np.array([*one.values()]) for one in (self.before.counts, counts))
        sized = np.allclose([*self.before.weights.values()], client_weights(old))
        return dict(zip(counts, client_weights(new, "size" if sized else "uniform").tolist(), strict=True))

    @property
    def forgotten(self) -> frozenset[str]:
        """The clients that something is forgotten of."""
        return frozenset(self.request.clients) | self.changed

    @property
    def cost(self) -> Cost:
        """What passed so far, and the time since the request was taken up."""
        sent = sum((one.traffic for one in self._asked()), Traffic()) - self.earlier
        return Cost(sent.up, sent.down, sent.rounds, seconds=time.perf_counter() - self.started)

    def _asked(self) -> list[Federation]:
        """Federations that were given or made, each once: what is asked through another is counted there."""
        made, material = vars(self), self.material
        found = (made.get("retained", made.get("online", material.clients)), made.get("target", material.target))
        return [one for one in found if one is not None]

    def available(self, party: str, what: str) -> bool:
        """Whether something that a method needs is here."""
        match party:
            case "kept":
                return self.before.has(what)
            case "server":
                found = self.server_set
                rows = self.held is not None or self.material.server is not None
                return found is not None and (found.statistics is not None or rows)
            case "problem":
                return what in self.problem.traits
            case "request":  # "clients": whole ones leave; "leaving": nobody joins
                return not self.request.added and (what == "leaving" or not self.request.by_row)
            case "trainer":
                return hasattr(self.material.options, what)
            case "retained" | "online" | "target":
                return bool(getattr(self, party).offers(what))
        raise InputError(f"A method can need something of kept, server, retained, target, ...; found {party!r}.")

    def finish(
        self,
        method: Any,
        solution: Solution | None = None,
        *,
        params: Array | None = None,
        head: Head | None = None,
        flops: int = 0,
        note: str = "",
        warnings: tuple[str, ...] = (),
        loss_change: float | None = None,
        one_step: bool = False,
        **kept: Any,
    ) -> Unlearned:
        """The run at a new head (or its parameters); what knows a forgotten client, or belongs to the old head, goes.

        `kept` replaces what would be dropped, by name. Without a `solution` no system was solved: the residual is that
        of no step at all.
        """
        name = spec_of(method)
        if head is None:
            if params is None or not np.isfinite(params).all():
                raise InputError(f"Unlearning by {name} must end in finite parameters. Nothing was changed.")
            recipe = {**self.before.lasting, "solver": name, "rows": self.rows, "exact_unlearning": False}
            head = self.problem.head(params, ridge=self.before.head.ridge, recipe=recipe)
        dropped: Any = {"losses": (), "history": None, "gradients": None, "learning_rate": None, "rounds": 0}
        kept = {**dropped, "server": self.server_set, **kept}
        if "statistics" not in kept:
            kept["statistics"] = self.statistics
        solution = solution or Solution(self.problem.params(head), 1.0, 0, name, "No system was solved.")
        cost = replace(self.cost, flops=flops)
        after = replace(
            self.before.without(self.forgotten),
            head=head,
            solution=solution,
            method=name,
            counts=dict(self.counts),
            weights=self.shares(self.counts),
            traffic={name: Traffic(cost.up, cost.down, cost.rounds)},
            **kept,
        )
        return Unlearned(after, self.request, name, solution, cost, note, warnings, loss_change, one_step)
