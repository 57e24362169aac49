"""From options and a cache to a run folder: the work of `probekit train`, without flags and without printing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.evaluation.backdoor import poison
from probekit.federated.choice import Choice
from probekit.federated.partition import parse_scheme, partition
from probekit.federated.trained import Trained, Watch
from probekit.runs.fitting import timed
from probekit.runs.folder import RunContents, RunFolder, create
from probekit.runs.head_training import fit_head, told
from probekit.runs.layout import refuse_taken
from probekit.runs.options import TrainOptions
from probekit.unlearning.request import known_clients
from probekit.values import UNLABELLED, EmbeddingSet, Json, Partition

DEFAULT_CLIENTS = 10
CHOSEN_RIDGE = (
    "The ridge was chosen as if without it, from all clients' rows, and is not hidden: give the ridge as a number."
)


@dataclass(frozen=True)
class TrainResult:
    """A finished run and what is worth telling of it."""

    run: RunFolder
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
            "that has labels (`label_column`)."
        )
    rows = np.flatnonzero(good).astype(np.int64)
    return embeddings.select(rows), rows


def train_run(
    path: Path,
    name: str,
    options: TrainOptions,
    *,
    store: DiskStore,
    force: bool = False,
    watch: Watch | None = None,
    note: Callable[[str], None] | None = None,
) -> TrainResult:
    """Train on a set of the cache (a network: or on a data set) and keep everything in a run folder."""
    refuse_taken(path, force=force)
    timings: dict[str, float] = {}
    network = options.backend == "jvp"
    if network:
        from probekit.runs.network_training import pictures

        name, options = pictures(name, options, store, note=note)
    with timed(timings, "open"):
        digest = store.sets.resolve(name)
        whole = store.open(digest)
        embeddings, rows = usable(whole)
    with timed(timings, "partition"):
        divided = divide(options, embeddings)
    if options.poison is not None:
        with timed(timings, "poison"):
            triggered = store.open(options.triggered or "")
            triggered = triggered if rows is None else triggered.select(rows)
            whole = embeddings = poisoned(name, options, store, embeddings, triggered, divided)
            digest, rows = whole.digest, None
    checkpoint = None
    if network:
        from probekit.runs.checkpoint import TrainingCheckpoint
        from probekit.runs.network_training import fit_network

        checkpoint = TrainingCheckpoint.of(path, options, embeddings)
        fitted = fit_network(options, embeddings, divided, timings, watch, checkpoint=checkpoint, note=note)
    else:
        fitted = fit_head(options, embeddings, divided, timings, watch)
    trained = _described(fitted.trained, whole, fitted.choice)
    material = RunContents(
        config={"embeddings": name, **fitted.config},
        inputs=_inputs(store, digest, whole, embeddings),
        partition=divided,
        trained=trained,
        rows=rows,
        timings=timings,
        details={"backbone": whole.spec.backbone, "source": whole.source},
    )
    with timed(timings, "write"):
        run = create(path, material, force=force)
    if checkpoint is not None:
        checkpoint.remove()
    left_out = len(whole) - len(embeddings)
    return TrainResult(
        run,
        trained,
        embeddings,
        divided,
        left_out,
        fitted.choice,
        fitted.effective_dimension,
        fitted.condition,
        timings,
    )


def poisoned(
    name: str,
    options: TrainOptions,
    store: DiskStore,
    clean: EmbeddingSet,
    triggered: EmbeddingSet,
    divided: Partition,
) -> EmbeddingSet:
    """The set with one client's rows triggered and labelled as the target, kept in the cache under its own name."""
    client = options.poison or ""
    if client not in divided.clients:
        raise InputError(f"Cannot poison client {client}: {known_clients(tuple(divided.clients))}.")
    made = poison(
        clean,
        triggered,
        rows=divided.clients[client],
        target=options.target,
        fraction=options.poison_fraction,
        seed=options.seed,
    )
    known = store.known(made.spec)
    fresh = [row for row, sample in enumerate(made.ids) if sample not in known]
    if fresh:
        store.save(made.spec, [made.ids[row] for row in fresh], np.asarray(made.embeddings[np.array(fresh)]))
    sealed = store.seal(replace(made, embeddings=store.load(made.spec, made.ids)))
    store.sets.give_name(f"{name}-poisoned-{client}"[:120], sealed.digest)
    return sealed


def divide(options: TrainOptions, embeddings: EmbeddingSet) -> Partition:
    """Who holds which rows, as the options say."""
    counted = parse_scheme(options.partition).counted
    return partition(
        embeddings.labels,
        options.partition,
        clients=options.clients if options.clients is not None or not counted else DEFAULT_CLIENTS,
        server_share=options.server_share,
        server_choice=options.server_choice,
        seed=options.seed,
        client_ids=embeddings.clients,
        embeddings=embeddings.embeddings,
    )


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
