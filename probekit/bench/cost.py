"""What a product with the curvature costs: over the server's rows, and over all retained ones."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from probekit.arrays import Json
from probekit.bench.training import Training
from probekit.errors import InputError
from probekit.federated.loss import MeanLoss
from probekit.linear.model import LinearModel
from probekit.linear.solvers import conjugate_gradient
from probekit.progress import Progress, silent
from probekit.runs.run import single_thread
from probekit.unlearning.methods.fedremoval import NETWORK_STEPS, NETWORK_TOLERANCE

SERVER = "the server's rows"
RETAINED = "the retained clients' rows"


def product_costs(training: Training, progress: Progress = silent) -> dict[str, Json]:
    """Rows, GFLOP, seconds on one thread, rounds and bytes of one product, by whose rows they are;
    and how many products with the server's rows a step of FedRemoval takes.

    The server asks nobody for a product with its own rows. Heads need no approximation: the
    curvature of all their clients is a sum of statistics.
    """
    from torch.utils.flop_counter import FlopCounterMode

    removal = training.removal(progress)
    server = removal.server
    model = removal.state.model
    if server is None or not model.is_linear or isinstance(model, LinearModel):
        raise InputError(
            "A product's cost is that of a linearized network with rows on the server; found a "
            "head, a conventional network, or no rows. Set network and server_share."
        )
    params = removal.state.params
    vector = np.ones_like(params)
    costs: dict[str, Json] = {}
    with single_thread():
        for name, federation in ((SERVER, server), (RETAINED, removal.retained)):
            loss = MeanLoss(federation, 0.0)
            loss.product(params, vector)  # measures how many rows fit into memory
            with FlopCounterMode(display=False) as counter:
                loss.product(params, vector)
            traffic = federation.traffic
            before = (traffic.rounds, traffic.sent + traffic.received)
            started = time.process_time()
            loss.product(params, vector)
            seconds = time.process_time() - started
            asked = (traffic.rounds - before[0], traffic.sent + traffic.received - before[1])
            rounds, sent = (0, 0) if federation is server else asked
            costs[name] = {
                "rows": federation.rows,
                "GFLOP": counter.get_total_flops() / 1e9,
                "seconds": round(seconds, 4),
                "rounds": rounds,
                "bytes": sent,
            }
        loss = MeanLoss(server, removal.ridge_choice.value)
        step = conjugate_gradient(
            partial(loss.product, params),
            removal.gradient(),
            steps=NETWORK_STEPS,
            tolerance=NETWORK_TOLERANCE,
        )
    return {"product": costs, "products of a step": step.steps}
