"""From a config and a cache to a run folder: the work of `probekit train`, without flags and without printing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probekit.attack import poison
from probekit.cache import DiskStore
from probekit.cli.config import DEFAULT_CLIENTS, ROUNDS, TrainConfig, design_of, method_of
from probekit.cli.runs import Material, Run, create
from probekit.errors import InputError
from probekit.federated.choice import Choice, choose
from probekit.federated.client import Picked, client_statistics
from probekit.federated.fedavg import FedAvg
from probekit.federated.local import train
from probekit.federated.server import client_weights, merge
from probekit.federated.task import ClosedForm
from probekit.federated.trained import Progress, ServerSet, Trained
from probekit.learning import Design, Partition
from probekit.linear.logistic import fit_logistic
from probekit.linear.ridge import penalty_of
from probekit.linear.views import system_of
from probekit.partitioning import parse_scheme, partition
from probekit.unlearning.request import known_clients
from probekit.values import UNLABELLED, EmbeddingSet, Json

Watch = Callable[[Progress], None]
CHOSEN_RIDGE = (
    "The ridge was chosen as if without it, from all clients' rows, and is not hidden: give --ridge a number."
)


@dataclass(frozen=True)
class Outcome:
    """A finished run and what is worth telling of it."""

    run: Run
    trained: Trained
    embeddings: EmbeddingSet
    partition: Partition
    left_out: int
    choice: Choice | None
    effective_dimension: float | None
    condition: float | None
    timings: dict[str, float] = field(default_factory=dict)


def usable(embeddings: EmbeddingSet) -> tuple[EmbeddingSet, NDArray[np.int64] | None]:
    """The rows with a label and an embedding, and their numbers (None: all rows are so)."""
    good = embeddings.labels != UNLABELLED
    if embeddings.masked is not None:
        good &= ~embeddings.masked
    if good.all() and len(good):
        return embeddings, None
    if not good.any():
        raise InputError(
            f"No row can be used: of {len(embeddings)} rows none has both a label and an embedding. Extract a data set "
            "that has labels (--label-column)."
        )
    rows = np.flatnonzero(good).astype(np.int64)
    return embeddings.select(rows), rows


def train_run(
    config: TrainConfig, store: DiskStore, path: Path, *, force: bool = False, progress: Watch | None = None
) -> Outcome:
    """Train as the config says and keep everything in a run folder."""
    timings: dict[str, float] = {}
    with _timed(timings, "open"):
        digest = store.sets.resolve(config.embeddings)
        whole = store.open(digest)
        embeddings, rows = usable(whole)
    with _timed(timings, "partition"):
        divided = divide(config, embeddings)
    if config.poison is not None:
        with _timed(timings, "poison"):
            triggered = store.open(config.triggered or "")
            triggered = triggered if rows is None else triggered.select(rows)
            whole = embeddings = poisoned(config, store, embeddings, triggered, divided)
            digest, rows = whole.digest, None
    design = design_of(config, embeddings, divided)
    method = method_of(config)
    choice = None
    if chooses(config, method):
        with _timed(timings, "choose the ridge"):
            fitted = method if isinstance(method, ClosedForm) else ClosedForm()
            how = config.ridge or "auto"
            choice = choose(
                embeddings, divided, design=design, how=how, scaling=config.scaling, method=fitted, seed=config.seed
            )
    with _timed(timings, "train"):
        trained = _fit(config, embeddings, divided, design=design, choice=choice, progress=progress)
    effective, condition = _spectrum(trained, method, choice)
    trained = _described(trained, whole, choice)
    material = Material(
        config=_resolved(config, method, trained),
        inputs=_inputs(store, digest, whole, embeddings),
        partition=divided,
        trained=trained,
        rows=rows,
        timings=timings,
        details={"backbone": whole.spec.backbone, "source": whole.source},
    )
    with _timed(timings, "write"):
        run = create(path, material, force=force)
    left_out = len(whole) - len(embeddings)
    return Outcome(run, trained, embeddings, divided, left_out, choice, effective, condition, timings)


def poisoned(
    config: TrainConfig, store: DiskStore, clean: EmbeddingSet, triggered: EmbeddingSet, divided: Partition
) -> EmbeddingSet:
    """The set with one client's rows triggered and labelled as the target, kept in the cache under its own name."""
    client = config.poison or ""
    if client not in divided.clients:
        raise InputError(f"Cannot poison client {config.poison}: {known_clients(tuple(divided.clients))}.")
    made = poison(
        clean,
        triggered,
        rows=divided.clients[client],
        target=config.target,
        fraction=config.poison_fraction,
        seed=config.seed,
    )
    known = store.known(made.spec)
    fresh = [row for row, sample in enumerate(made.ids) if sample not in known]
    if fresh:
        store.save(made.spec, [made.ids[row] for row in fresh], np.asarray(made.embeddings[np.array(fresh)]))
    sealed = store.seal(replace(made, embeddings=store.load(made.spec, made.ids)))
    store.sets.give_name(f"{config.embeddings}-poisoned-{config.poison}"[:120], sealed.digest)
    return sealed


def divide(config: TrainConfig, embeddings: EmbeddingSet) -> Partition:
    """Who holds which rows, as the config says."""
    counted = parse_scheme(config.partition).counted
    return partition(
        embeddings.labels,
        config.partition,
        clients=config.clients if config.clients is not None or not counted else DEFAULT_CLIENTS,
        server_share=config.server_share,
        server_choice=config.server_choice,
        seed=config.seed,
        client_ids=embeddings.clients,
        embeddings=embeddings.embeddings,
    )


def chooses(config: TrainConfig, method: ClosedForm | FedAvg) -> bool:
    """Whether a ridge is to be chosen: asked for, or neither given nor the method's own."""
    own = isinstance(method, FedAvg) and method.ridge is not None
    return config.auto or (config.ridge is None and config.method != "logistic" and not own)


def _fit(
    config: TrainConfig,
    embeddings: EmbeddingSet,
    divided: Partition,
    *,
    design: Design,
    choice: Choice | None,
    progress: Watch | None,
) -> Trained:
    if config.method == "logistic":
        return _logistic(config, embeddings, divided, design)
    return train(
        embeddings,
        divided,
        ridge=choice or (config.number() if config.ridge is not None else None),
        method=method_of(config),
        scaling=config.scaling,
        design=design,
        keep=config.keep,
        objective_noise=config.objective_noise,
        progress=progress,
    )


def _logistic(config: TrainConfig, embeddings: EmbeddingSet, divided: Partition, design: Design) -> Trained:
    """One head of all clients' rows, pooled. Without a ridge it is 1 in sum scaling: scikit-learn's C = 1."""
    held = np.sort(np.concatenate(list(divided.clients.values())))
    scaling = config.scaling if config.ridge is not None else "sum"
    ridge = config.number() if config.ridge is not None else 1.0
    penalty = penalty_of(ridge, scaling, len(held))
    if not penalty > 0:
        raise InputError(f"A logistic head needs a ridge above 0; found {ridge:g}.")
    labels = embeddings.labels[held]
    head, solution = fit_logistic(Picked(embeddings.embeddings, held), labels, design, c=1 / penalty)
    counts = {name: len(rows) for name, rows in divided.clients.items()}
    shares = client_weights(np.array(list(counts.values())))
    server = None
    if len(divided.server):
        server = ServerSet(client_statistics(embeddings, divided.server, design), divided.server)
    named = replace(head, classes=embeddings.class_names or head.classes, spec_digest=embeddings.spec.digest)
    weights = dict(zip(counts, shares.tolist(), strict=True))
    return Trained(named, "logistic", design, ridge, scaling, counts, weights, solution, server=server)


def _spectrum(
    trained: Trained, method: ClosedForm | FedAvg, choice: Choice | None
) -> tuple[float | None, float | None]:
    """Effective dimension and condition number of the system, where its statistics are at hand."""
    if choice is not None:
        return choice.effective_dimension, choice.condition
    if trained.statistics is None or not isinstance(method, ClosedForm):
        return None, None
    system = system_of(merge(trained.statistics.values()), view=method.view, class_weight=method.class_weight)
    values = np.maximum(np.linalg.eigvalsh(system.gram), 0.0)
    shifted = values + penalty_of(trained.ridge, trained.scaling, system.weight)
    condition = float(shifted[-1] / shifted[0]) if shifted[0] > 0 else None
    return float((values / np.where(shifted > 0, shifted, 1.0)).sum()), condition


def _described(trained: Trained, embeddings: EmbeddingSet, choice: Choice | None) -> Trained:
    """The head knowing its backbone and how its ridge came about."""
    spec = embeddings.spec
    more: dict[str, Json] = {"backbone": spec.backbone, "spec": spec.identity, "dataset": embeddings.source}
    if choice is not None:
        more["ridge_chosen"] = told(choice)
        if trained.objective is not None:
            note = f"{trained.solution.note} {CHOSEN_RIDGE}"
            trained = replace(trained, solution=replace(trained.solution, note=note))
    return replace(trained, head=replace(trained.head, recipe={**trained.head.recipe, **more}))


def told(choice: Choice) -> dict[str, Json]:
    """A choice of ridge in plain values."""
    found = choice.validation
    best = int(np.argmin(found.squared))
    return {
        "by": found.scheme,
        "candidates": len(found.ridges),
        "from": float(found.ridges[0]),
        "to": float(found.ridges[-1]),
        "squared_error": float(found.squared[best]),
        "wrong_share": None if found.wrong is None else float(found.wrong[best]),
        "at_edge": choice.at_edge,
    }


def _resolved(config: TrainConfig, method: ClosedForm | FedAvg, trained: Trained) -> dict[str, Json]:
    """The config with everything filled in that it had left open."""
    kept = "statistics" if trained.statistics is not None else "gradients" if trained.gradients else "nothing"
    rounds: dict[str, Json] = {}
    if isinstance(method, FedAvg):
        rounds = {name: getattr(method, name) for name in ROUNDS if name not in ("preset", "optimiser")}
        rounds |= {"optimiser": method.optimiser.name, "learning_rate": trained.learning_rate}
    return {
        **config.plain(),
        **rounds,
        "clients": len(trained.counts),
        "ridge": trained.ridge,
        "ridge_by": config.ridge if config.ridge is not None else "default",
        "scaling": trained.scaling,
        "intercept": trained.design.intercept,
        "grid": trained.design.grid,
        "keep": kept,
    }


def _inputs(store: DiskStore, digest: str, whole: EmbeddingSet, used: EmbeddingSet) -> dict[str, Json]:
    """What the run was trained on; the name is the set's in the cache, where it has one."""
    name = next((name for name, meant in store.sets.names().items() if meant == digest), digest[:12])
    return {
        "name": name,
        "set": digest,
        "rows": used.digest,
        "spec": whole.spec.digest,
        "count": len(used),
        "left out": len(whole) - len(used),
    }


@contextmanager
def _timed(timings: dict[str, float], what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    timings[what] = round(time.perf_counter() - began, 4)
