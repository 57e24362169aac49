"""The references: training anew on the rows that remain, in closed form or by the run's own FedAvg."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from probekit.errors import InputError
from probekit.federated.client import client_statistics
from probekit.federated.fedavg import FedAvg
from probekit.federated.local import train
from probekit.federated.server import merge
from probekit.federated.trained import Trained
from probekit.models.heads import NetworkHead
from probekit.unlearning.exact import refit
from probekit.unlearning.method import NOTHING, Cost, Material, Unlearned, require, without_argument
from probekit.unlearning.remainder import remaining_rows, remaining_server, trained_after
from probekit.unlearning.request import UnlearnRequest


@dataclass(frozen=True)
class Retrain:
    """Statistics of the remaining rows, made anew, and solved: the head that all others are measured by."""

    name: str = "retrain"
    needs: frozenset[str] = frozenset({"rows"})

    def unlearn(self, trained: Trained, request: UnlearnRequest, material: Material = NOTHING) -> Unlearned:
        """The head of the remaining rows."""
        start = time.perf_counter()
        require(self, trained, material)
        rest = remaining_rows(trained, request, material)
        if isinstance(trained.head, NetworkHead):
            from probekit.unlearning.network_retrain import retrain_network

            return retrain_network(trained, request, rest, name=self.name, watch=material.watch)
        parts = {
            name: client_statistics(rest.embeddings, rows, trained.design)
            for name, rows in rest.partition.clients.items()
        }
        if not parts:
            raise InputError("Cannot retrain on nothing: every sample of every client is to be forgotten.")
        head, solution = refit(trained, merge(parts.values()), material)
        d, k, rows = trained.design.columns, trained.design.classes, sum(p.count for p in parts.values())
        sent = d * (d + 1) // 2 + d * k + k
        cost = Cost(
            up=8 * sent * len(parts),
            rounds=1,
            flops=rows * d * (d + k) + d**3 // 3 + 2 * d * d * k,
            seconds=time.perf_counter() - start,
        )
        after = trained_after(
            trained,
            head,
            solution,
            counts={name: one.count for name, one in parts.items()},
            method=self.name,
            cost=cost,
            statistics=parts if trained.statistics is not None else None,
            server=remaining_server(trained, rest),
        )
        return Unlearned(after, request, self.name, solution, cost, "Trained anew on the remaining rows.")


@dataclass(frozen=True)
class RetrainFedAvg:
    """The run's own FedAvg, from its start, on the clients that remain."""

    name: str = "retrain-fedavg"
    needs: frozenset[str] = frozenset({"rows", "options"})

    def unlearn(self, trained: Trained, request: UnlearnRequest, material: Material = NOTHING) -> Unlearned:
        """The head that FedAvg comes to without the forgotten."""
        start = time.perf_counter()
        require(self, trained, material)
        if not isinstance(material.options, FedAvg):
            raise InputError("retrain-fedavg needs the FedAvg options of the run. Give them as options.")
        rest = remaining_rows(trained, request, material)
        if isinstance(trained.head, NetworkHead):
            from probekit.unlearning.network_retrain import retrain_network

            options, watch = material.options, material.watch
            return retrain_network(trained, request, rest, name=self.name, options=options, watch=watch)
        keep = "gradients" if trained.gradients is not None else "nothing"
        after = train(
            rest.embeddings,
            rest.partition,
            ridge=trained.ridge,
            method=replace(material.options, ridge=None),
            scaling=trained.scaling,
            design=trained.design,
            keep="statistics" if trained.statistics is not None else keep,
        )
        sent, d, k = after.total_traffic, trained.design.columns, trained.design.classes
        steps = material.options.local_steps or material.options.local_epochs or 1
        batch = material.options.batch_size or int(np.mean([*after.counts.values()]))
        flops = after.rounds * len(after.counts) * steps * 4 * batch * d * k
        cost = Cost(sent.up, sent.down, after.rounds, flops, time.perf_counter() - start)
        note = "FedAvg with several local steps settles beside the minimum of the retained loss."
        return Unlearned(after, request, self.name, after.solution, cost, note)


def load(argument: str) -> Retrain:
    """The method, for the registry."""
    without_argument("retrain", argument)
    return Retrain()


def load_fedavg(argument: str) -> RetrainFedAvg:
    """The method, for the registry."""
    without_argument("retrain-fedavg", argument)
    return RetrainFedAvg()
