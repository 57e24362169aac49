"""A whole network trained anew on the rows that remain, from the same w_p: what all other ways are measured by."""

from __future__ import annotations

import time

import numpy as np

from probekit.errors import InputError
from probekit.federated.fedavg import FedAvg
from probekit.federated.network import FederatedCg, NetworkTrained, train_holders
from probekit.federated.network_clients import holders
from probekit.federated.trained import Trained, Watch, unwatched
from probekit.models.heads import NetworkHead
from probekit.models.networks import inputs_of, linearized
from probekit.unlearning.method import Cost, Unlearned
from probekit.unlearning.remainder import Remainder, moved_head, remaining_server, trained_after
from probekit.unlearning.request import UnlearnRequest

EXACT = {"float64": FederatedCg(rounds=2000, tolerance=1e-8), "float32": FederatedCg(rounds=500, tolerance=1e-5)}
"""How near to the minimum retraining goes, by the numbers that the run was trained in."""
NOTE = "Trained anew on the remaining rows, from the same w_p, which knows the server's rows only."


def fit_anew(
    trained: Trained, rest: Remainder, *, options: FedAvg | None = None, watch: Watch = unwatched
) -> NetworkTrained:
    """The linearized network of these rows, around the run's own w_p."""
    head = trained.head
    if not isinstance(head, NetworkHead) or not rest.partition.clients:
        raise InputError("Cannot retrain on nothing: every sample of every client is to be forgotten.")
    model = linearized(head.network)
    inputs = inputs_of(head.network, np.asarray(rest.embeddings.embeddings[:]))
    held = holders(model, inputs, rest.embeddings.labels, rest.partition, centre=head.centre)
    method = options or EXACT[head.network.precision]
    return train_holders(held, ridge=trained.ridge, method=method, progress=watch("retraining"))


def retrain_network(
    trained: Trained,
    request: UnlearnRequest,
    rest: Remainder,
    *,
    name: str,
    options: FedAvg | None = None,
    watch: Watch = unwatched,
) -> Unlearned:
    """The linearized network of the remaining rows."""
    start = time.perf_counter()
    found = fit_anew(trained, rest, options=options, watch=watch)
    sent = sum((one for one in found.traffic.values()), start=type(trained.total_traffic)())
    rows = sum(found.counts.values())
    flops = 8 * found.rounds * rows * found.model.size
    cost = Cost(sent.up, sent.down, found.rounds, flops, time.perf_counter() - start)
    after = trained_after(
        trained,
        moved_head(trained, found.params, method=name, rows=rows),
        found.solution,
        counts=found.counts,
        method=name,
        cost=cost,
        gradients=found.gradients if trained.gradients is not None else None,
        server=remaining_server(trained, rest),
    )
    return Unlearned(after, request, name, found.solution, cost, NOTE)
