"""Forgetting one client of 40 in memory, beside retraining from rows and the paper's schedule.

50,000 x 512 rows of 10 classes, as CIFAR-10 has by a ViT-B/32, a fifth of them the server's; one
BLAS thread for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from _measure import finish, race, report
from numpy.typing import NDArray

from probekit.arrays import Array
from probekit.embeddings import EmbeddingSet
from probekit.federated.federation import Federation, InProcess, total_stats
from probekit.federated.state import State
from probekit.federated.training.closed_form import ClosedForm
from probekit.linear.model import LinearModel
from probekit.linear.stats import SufficientStats
from probekit.runs.run import single_thread
from probekit.unlearning.methods.exact import Exact
from probekit.unlearning.methods.retrain import Retrain
from probekit.unlearning.removal import Removal, Request, Unlearner, unlearn

CLIENTS = 40
EACH = 1_000
SERVER_ROWS = 10_000
WIDTH = 512
CLASSES = 10
RIDGE = 1e-3
FORGOTTEN = "07"
REMOVALS = 10
"""How many are timed together: one takes milliseconds."""
REPEATS = 7
STEPS = 400


def make_rows(count: int, seed: int) -> EmbeddingSet:
    """Rows around a center for each class, with a mean that is not zero, as embeddings have."""
    centers = 0.3 * np.random.default_rng(0).standard_normal((CLASSES, WIDTH), dtype=np.float32)
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, count)
    rows = generator.standard_normal((count, WIDTH), dtype=np.float32)
    rows += centers[labels] + np.float32(0.5)
    return EmbeddingSet.from_numpy(rows, labels, class_names=[str(c) for c in range(CLASSES)])


def compare(
    name: str,
    exact: Callable[[], State],
    rival: Callable[[], object],
    *,
    bar: float,
    **details: Any,
) -> None:
    ours, theirs = race(lambda: [exact() for _ in range(REMOVALS)], rival, repeats=REPEATS)
    seconds = [round(ours / REMOVALS, 5), round(theirs, 4)]
    name = f"exact removals per second over {name}"
    report(name, REMOVALS / ours, 1 / theirs, bar=bar, seconds=seconds, **details)


def forget(method: Unlearner, state: State, clients: Federation) -> State:
    return unlearn(method, Removal.of(state, Request(frozenset({FORGOTTEN})), clients))


def scheduled_step(server: EmbeddingSet, state: State, gradient: Array) -> NDArray[Any]:
    """The paper's removal as its code does it: w - v after 400 Adam steps for H_p v = g.

    In its favor: float32, all rows in one product instead of batches of 32, no evaluation on the
    way, the retained gradient given.
    """
    rows = np.ones((SERVER_ROWS, WIDTH + 1), np.float32)
    rows[:, :-1] = server.to_numpy()
    goal: NDArray[Any] = gradient.astype(np.float32)
    step = first = second = np.zeros_like(goal)
    for number in range(1, STEPS + 1):
        slope = rows.T @ (rows @ step) / np.float32(SERVER_ROWS) - goal + np.float32(0.01) * step
        first = np.float32(0.9) * first + np.float32(0.1) * slope
        second = np.float32(0.999) * second + np.float32(0.001) * np.square(slope)
        rate = np.float32(0.01 / (1 - 0.9**number))
        scale = np.sqrt(second / np.float32(1 - 0.999**number)) + np.float32(1e-8)
        step = step - rate * first / scale
    return np.asarray(state.params - step)


def residual(stats: SufficientStats, params: Array) -> float:
    """How far params are from the retained rows' normal equations, |(G + n r P) W - C| / |C|."""
    penalty = stats.weight * RIDGE * params
    penalty[-1] = 0.0
    moved = stats.gram @ params + penalty - stats.moment
    return float(f"{np.linalg.norm(moved) / np.linalg.norm(stats.moment):.2g}")


def main() -> None:
    rows = make_rows(CLIENTS * EACH, 1)
    parts = {f"{c:02}": rows.take(np.arange(EACH) + c * EACH) for c in range(CLIENTS)}
    clients = Federation.of(InProcess(parts), LinearModel(WIDTH, CLASSES))
    state = ClosedForm().train(clients, ridge=RIDGE)
    exact = partial(forget, Exact(), state, clients)
    retrained = partial(forget, Retrain(), state, clients)
    assert np.array_equal(exact().params, retrained().params)
    compare("retraining from rows", exact, retrained, bar=30)
    retained = clients.without({FORGOTTEN})
    stats = total_stats(retained)
    gradient = stats.gram @ state.params - stats.moment
    scheduled = partial(scheduled_step, make_rows(SERVER_ROWS, 2), state, gradient / stats.weight)
    heads = {"exact": exact().params, "adam": scheduled(), "nothing": state.params}
    residuals = {name: residual(stats, params) for name, params in heads.items()}
    compare(f"{STEPS} Adam steps", exact, scheduled, bar=100, residuals=residuals)


if __name__ == "__main__":
    with single_thread():
        main()
    finish()
