"""From options and a cache to a run folder: the work of `probekit train`, without flags and without printing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.evaluation.backdoor import poison
from probekit.federated.choice import Choice, RidgeChoice
from probekit.federated.federation import Traffic
from probekit.federated.partition import parse_scheme, partition
from probekit.federated.trained import Trained
from probekit.federated.training import with_recipe
from probekit.models.problem import backend_named
from probekit.protocols import Watch, unwatched
from probekit.runs.checkpoint import TrainingCheckpoint
from probekit.runs.fitting import Fitted, fit, timed
from probekit.runs.folder import RunContents, RunFolder, create
from probekit.runs.layout import refuse_taken
from probekit.runs.options import TrainOptions
from probekit.runs.pictures import pictures
from probekit.runs.result import Result
from probekit.runs.rows import usable
from probekit.unlearning.choice import can_unlearn
from probekit.unlearning.method import NOTHING, Material
from probekit.unlearning.request import known_clients
from probekit.values import EmbeddingSet, Json, Partition

DEFAULT_CLIENTS = 10
CHOSEN_RIDGE = (
    "The ridge was chosen as if without it, from all clients' rows, and is not hidden: give the ridge as a number."
)


@dataclass(frozen=True)
class PartitionSummary:
    """How the rows were divided."""

    scheme: str
    seed: int


@dataclass(frozen=True)
class Ability:
    """Whether clients can be forgotten by a method, and why (not)."""

    possible: bool
    why: str


@dataclass(frozen=True)
class TrainResult(Result):
    """What training gave. `bytes_up` and `bytes_down` are of all `traffic`; `head` is the head's digest."""

    run: Path
    state: int
    set: str
    backbone: str
    method: str
    kind: str
    rows: int
    left_out: int
    dimension: int
    parameters: int
    classes: int
    partition: PartitionSummary
    clients: Mapping[str, int]
    server_rows: int
    ridge: float
    scaling: str
    ridge_chosen: RidgeChoice | None
    solver: str
    note: str
    residual: float
    condition_number: float | None
    effective_dimension: float | None
    rounds: int
    learning_rate: float | None
    loss: tuple[float, float] | None
    bytes_up: int
    bytes_down: int
    traffic: Mapping[str, Traffic]
    history_bytes: int
    seconds: Mapping[str, float]
    can_unlearn: Mapping[str, Ability]
    head: str

    @classmethod
    def of(
        cls,
        run: RunFolder,
        fitted: Fitted,
        trained: Trained,
        left_out: int,
        timings: Mapping[str, float],
        abilities: Mapping[str, Ability],
    ) -> Self:
        """What there is to say of a run that was just written."""
        traffic, divided, inputs = trained.total_traffic, run.partition(), run.inputs
        return cls(
            run=run.path,
            state=run.state,
            set=inputs["name"],
            backbone=str(trained.head.recipe["backbone"]),
            method=trained.method,
            kind=trained.problem.kind,
            rows=inputs["count"],
            left_out=left_out,
            dimension=trained.head.dimension,
            parameters=trained.params.size,
            classes=len(trained.head.classes),
            partition=PartitionSummary(divided.scheme, divided.seed),
            clients=trained.counts,
            server_rows=len(divided.server),
            ridge=trained.ridge,
            scaling=trained.scaling,
            ridge_chosen=None if fitted.choice is None else fitted.choice.summary,
            solver=trained.solution.method,
            note=trained.solution.note,
            residual=trained.solution.residual,
            condition_number=fitted.condition,
            effective_dimension=fitted.effective_dimension,
            rounds=trained.rounds,
            learning_rate=trained.learning_rate,
            loss=(trained.losses[0], trained.losses[-1]) if trained.losses else None,
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            traffic=trained.traffic,
            history_bytes=trained.history.size if trained.history else 0,
            seconds=timings,
            can_unlearn=abilities,
            head=trained.head.digest,
        )


def abilities_of(trained: Trained, rows: Material) -> dict[str, Ability]:
    """What can be unlearned by which registered method: from what was kept, or with the clients' answers."""
    kept, asked = can_unlearn(trained, NOTHING), can_unlearn(trained, rows)
    found = {}
    for name, why in kept.items():
        if not why:
            found[name] = Ability(True, "From what the server kept.")
        elif not asked[name]:
            found[name] = Ability(True, "The retained clients must answer, or their cached rows be at hand.")
        else:
            found[name] = Ability(False, asked[name])
    return found


def train_run(
    path: Path,
    name: str,
    options: TrainOptions,
    *,
    store: DiskStore,
    force: bool = False,
    watch: Watch = unwatched,
    note: Callable[[str], None] | None = None,
) -> tuple[RunFolder, TrainResult]:
    """Train on a set of the cache (a network: or on a data set) and keep everything in a run folder."""
    refuse_taken(path, force=force)
    timings: dict[str, float] = {}
    if "split" in backend_named(options.backend).options:
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
    checkpoint = TrainingCheckpoint.of(path, options, embeddings)
    fitted = fit(options, embeddings, divided, timings=timings, watch=watch, checkpoint=checkpoint, note=note)
    trained = _described(fitted.trained, whole, fitted.choice)
    material = RunContents(
        config={"embeddings": name, **fitted.options},
        inputs=_inputs(store, digest, whole, embeddings),
        partition=divided,
        trained=trained,
        rows=rows,
        timings=timings,
        details={"backbone": whole.spec.backbone, "source": whole.source},
    )
    with timed(timings, "write"):
        run = create(path, material, force=force)
    checkpoint.remove()
    abilities = abilities_of(trained, Material(embeddings, divided))
    return run, TrainResult.of(run, fitted, trained, len(whole) - len(embeddings), timings, abilities)


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
        more["ridge_chosen"] = asdict(choice.summary)
        if trained.objective is not None:
            note = f"{trained.solution.note} {CHOSEN_RIDGE}"
            trained = replace(trained, solution=replace(trained.solution, note=note))
    return with_recipe(trained, more)


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
