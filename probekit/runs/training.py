"""From options and a cache to a run folder: the work of `probekit train`, without flags and without printing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from probekit.cache import DiskStore
from probekit.cache.users import register
from probekit.federated.choice import Choice, RidgeChoice
from probekit.federated.federation import Missing
from probekit.federated.party import Party
from probekit.federated.trained import Trained
from probekit.federated.training import with_recipe
from probekit.protocols import Watch, unwatched
from probekit.runs.checkpoint import TrainingCheckpoint
from probekit.runs.commitments import row_ids_of
from probekit.runs.creation import RunContents, create
from probekit.runs.federation import on_engine
from probekit.runs.fitting import fit, timed
from probekit.runs.folder import RunFolder
from probekit.runs.gathering import across, from_cache
from probekit.runs.jobs import job_done
from probekit.runs.layout import noise_path, refuse_taken
from probekit.runs.noise import fix_noise, releases_of
from probekit.runs.options import TrainOptions
from probekit.runs.result import Result, to_plain
from probekit.unlearning.choice import can_unlearn
from probekit.unlearning.method import NOTHING, Material
from probekit.values import EmbeddingSet, Json

CHOSEN_RIDGE = (
    "The ridge was chosen as if without it, from all clients' rows, and is not hidden: give the ridge as a number."
)


@dataclass(frozen=True)
class Ability:
    """Whether clients can be forgotten by a method, and why (not)."""

    possible: bool
    why: str


@dataclass(frozen=True, eq=False)
class TrainResult(Result):
    """A finished run and what is worth telling of it; `left_out` rows had no label or no embedding, `missing`
    clients of a federation are not in it."""

    folder: RunFolder
    trained: Trained
    left_out: int
    ridge_chosen: RidgeChoice | None
    condition_number: float | None
    effective_dimension: float | None
    seconds: Mapping[str, float]
    can_unlearn: Mapping[str, Ability]
    missing: Mapping[str, Missing]

    @property
    def kind(self) -> str:
        """A head, or which network."""
        return str(self.trained.problem.kind)

    @property
    def release(self) -> dict[str, Json] | None:
        """The noise on released heads, and the ledger entry that fixed it before fitting."""
        found = releases_of(self.folder.entries())
        return None if found is None else {**found.noise.plain, "entry": found.fixed.digest}

    @property
    def plain(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        trained, partition, inputs = self.trained, self.folder.partition(), self.folder.inputs
        sent, solution = trained.total_traffic, trained.solution
        return {
            "run": str(self.folder.path),
            "state": self.folder.state,
            "set": inputs["name"],
            "backbone": trained.head.recipe["backbone"],
            "kind": self.kind,
            "rows": inputs["count"],
            "dimension": trained.head.dimension,
            "parameters": trained.params.size,
            "classes": len(trained.head.classes),
            "partition": {"scheme": partition.scheme, "seed": partition.seed},
            "clients": dict(trained.counts),
            "server_rows": len(partition.server),
            **{name: getattr(trained, name) for name in ("method", "ridge", "scaling", "rounds", "learning_rate")},
            "solver": solution.method,
            "note": solution.note,
            "residual": solution.residual,
            "loss": [trained.losses[0], trained.losses[-1]] if trained.losses else None,
            "bytes_up": sent.up,
            "bytes_down": sent.down,
            "traffic": to_plain(trained.traffic),
            "history_bytes": trained.history.size if trained.history else 0,
            "head": trained.head.digest,
            "release": self.release,
            **{name: to_plain(value) for name, value in vars(self).items() if name not in ("folder", "trained")},
        }


def train_run(
    path: Path,
    name: str | None,
    options: TrainOptions,
    *,
    store: DiskStore,
    force: bool = False,
    watch: Watch = unwatched,
    note: Callable[[str], None] | None = None,
    client_keys: Mapping[str, bytes] | None = None,
    federation: Party | str | None = None,
) -> TrainResult:
    """Train on a set of the cache (a network: or on a data set), or across a federation; keep all in a run folder."""
    refuse_taken(path, force=force)
    timings: dict[str, float] = {}
    engine = federation if isinstance(federation, str) and on_engine(federation) else None
    if federation is None or engine is not None:
        found = from_cache(name, options, store, client_keys, timings, note, engine)
    else:
        found = across(path, name, options, federation, store, client_keys, timings)
    options = found.options
    begun = fix_noise(path, options, force=force, note=note)
    checkpoint = TrainingCheckpoint.of(path, options, found.digest)
    with ExitStack() as opened:
        fitted = fit(options, found.rows, checkpoint, timings=timings, watch=watch, note=note, opened=opened)
        able = abilities(fitted.trained, found.material(fitted))
    trained = _described(fitted.trained, found.whole, fitted.choice)
    divided, config, inputs = found.recorded(trained, fitted.options)
    details: dict[str, Json] = {"backbone": found.whole.spec.backbone, "source": found.whole.source}
    if fitted.missing:
        details["missing"] = to_plain(fitted.missing)
    row_ids = row_ids_of(found.rows.embeddings, found.rows.partition, trained.counts)
    keys = {client: key for client, key in found.keys.items() if client in trained.counts}
    material = RunContents(config, inputs, divided, trained, found.numbers, timings, details, row_ids, keys)
    with timed(timings, "write"):
        register(store.root, path)  # first: a run that appears is on the list
        run = create(path, material, force=force, begun=begun)
    found.rows.finish()
    checkpoint.remove()
    job_done(path, found.rows.job)
    noise_path(path).unlink(missing_ok=True)
    chosen = None if fitted.choice is None else fitted.choice.summary
    left_out, solved = len(found.whole) - len(found.rows.embeddings), (fitted.condition, fitted.effective_dimension)
    return TrainResult(run, trained, left_out, chosen, *solved, timings, able, fitted.missing)


def abilities(trained: Trained, rows: Material) -> dict[str, Ability]:
    """What can be unlearned by which registered method: from what was kept, or with the clients' answers."""
    asked, alone = can_unlearn(trained, rows), can_unlearn(trained, NOTHING)
    how = {
        True: "The retained clients must answer, or their cached rows be at hand.",
        False: "From what the server kept.",
    }
    return {name: Ability(not why, why or how[bool(alone[name])]) for name, why in asked.items()}


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
