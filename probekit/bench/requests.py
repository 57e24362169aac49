"""What is to be forgotten: a client, samples or a class, at random or those that matter most; one or a stream."""

from __future__ import annotations

import numpy as np

from probekit.bench.experiment import BenchSetting
from probekit.bench.rows import DividedRows
from probekit.errors import InputError
from probekit.federated.trained import Trained
from probekit.unlearning.influence import influences
from probekit.unlearning.request import SampleRef, UnlearnRequest
from probekit.values import Array, Indices

REQUEST_STREAM = 73


def forget_requests(
    setting: BenchSetting, trained: Trained, rows: DividedRows, seed: int
) -> tuple[UnlearnRequest, ...]:
    """The requests of a setting, in order."""
    asked, generator = setting.request, np.random.Generator(np.random.PCG64([seed, REQUEST_STREAM]))
    clients = rows.partition.clients
    by_influence = asked.choice == "high-influence"
    if asked.what == "client":
        order = sorted(clients)
        if by_influence:
            order = [one.client for one in influences(trained)]
        else:
            order = [order[number] for number in generator.permutation(len(order))]
        if rows.poisoned is not None:
            order = [rows.poisoned, *(name for name in order if name != rows.poisoned)]
        if asked.stream >= len(order):
            raise InputError(f"{asked.stream} of {len(order)} clients cannot be forgotten: somebody must remain.")
        return tuple(UnlearnRequest((name,)) for name in order[: asked.stream])
    held = {name: np.asarray(own) for name, own in clients.items()}
    if asked.what == "class":
        labels = rows.embeddings.labels
        chosen = int(generator.integers(len(rows.embeddings.class_names) or labels.max() + 1))
        meant = {name: own[labels[own] == chosen] for name, own in held.items()}
        return (UnlearnRequest(samples=_samples(rows, meant)),)
    wanted = asked.size * asked.stream
    pool = [(name, int(row)) for name in sorted(held) for row in held[name]]
    if rows.poisoned is not None and len(held[rows.poisoned]) > wanted:
        pool = [(rows.poisoned, int(row)) for row in held[rows.poisoned]]
    if wanted >= len(pool):
        raise InputError(f"{wanted} samples cannot be forgotten of {len(pool)}: some must remain. Ask for fewer.")
    if by_influence:
        size = gradient_sizes(trained, rows, np.array([row for _, row in pool]))
        order_of = np.argsort(-size, kind="stable")
    else:
        order_of = generator.permutation(len(pool))
    picked = [pool[number] for number in order_of[:wanted].tolist()]
    groups = [picked[start : start + asked.size] for start in range(0, wanted, asked.size)]
    return tuple(UnlearnRequest(samples=_named(rows, group)) for group in groups)


def gradient_sizes(trained: Trained, rows: DividedRows, some: Indices) -> Array:
    """How much each row pulls at the head: its residual times its length, the norm of a linear head's gradient."""
    own = np.asarray(rows.embeddings.embeddings[some], np.float64)
    found = trained.problem.scores(trained.head, own)
    found[np.arange(len(some)), rows.embeddings.labels[some]] -= 1
    return np.asarray(np.linalg.norm(found, axis=1) * np.sqrt(1 + np.square(own).sum(axis=1)))


def _samples(rows: DividedRows, meant: dict[str, Indices]) -> tuple[SampleRef, ...]:
    return _named(rows, [(name, int(row)) for name, own in meant.items() for row in own])


def _named(rows: DividedRows, some: list[tuple[str, int]]) -> tuple[SampleRef, ...]:
    return tuple(SampleRef(rows.embeddings.ids[row], name) for name, row in some)
