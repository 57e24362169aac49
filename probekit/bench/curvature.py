"""How well the server's rows stand for the curvature of the retained ones."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from probekit.arrays import Json
from probekit.bench.training import Training
from probekit.errors import InputError
from probekit.federated.federation import total_stats
from probekit.federated.loss import MeanLoss
from probekit.linear.model import LinearModel
from probekit.progress import Progress, silent
from probekit.runs.run import single_thread

STREAM = 43


def server_curvature(training: Training, progress: Progress = silent) -> dict[str, Json]:
    """The paper's number, a random unit vector's v' H v, with the server's rows and the retained
    ones; and, for a head, what a removal depends on:

    relative error: |H^-1/2 (H_p - H) H^-1/2|. Below 1/2 one step with the server's H_p is sure to
        help.
    effective dimension: tr G (G + ridge I)^-1 over the retained rows.
    """
    removal = training.removal(progress)
    server = removal.server
    model = removal.state.model
    if server is None or not model.is_linear:
        raise InputError("Curvature needs rows on the server and a convex loss. Set server_share.")
    ridge = removal.ridge_choice.value
    generator = np.random.Generator(np.random.PCG64([training.seed, STREAM]))
    vector = generator.standard_normal(model.shape)
    vector /= np.linalg.norm(vector)
    values: dict[str, Json] = {"server rows": server.rows, "retained rows": removal.retained.rows}
    with single_thread():
        for name, federation in (("server", server), ("retained", removal.retained)):
            product = MeanLoss(federation, 0.0).product(removal.state.params, vector)
            values[f"random vector, {name}"] = float((vector * product).sum())
        if isinstance(model, LinearModel):
            statistics = (total_stats(server), total_stats(removal.retained))
            means = [stats.gram / stats.weight for stats in statistics]
            penalty = ridge * np.diag(np.broadcast_to(model.penalized[:, 0], len(means[0])))
            H = means[1] + penalty
            relative = eigh(means[0] - means[1], H, eigvals_only=True)
            values["relative error"] = float(np.abs(relative).max())
            values["effective dimension"] = float(np.trace(np.linalg.solve(H, means[1])))
    return {"curvature": values}
