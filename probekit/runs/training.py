"""From options and a cache to a run folder: the work of `probekit train`, without flags and without printing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from probekit.cache import DiskStore
from probekit.cache.users import register
from probekit.errors import InputError, NotFoundError
from probekit.evaluation.backdoor import poison
from probekit.federated.choice import Choice, RidgeChoice
from probekit.federated.partition import parse_scheme, partition
from probekit.federated.trained import Trained
from probekit.federated.training import with_recipe
from probekit.models.problem import backend_named
from probekit.protocols import Watch, unwatched
from probekit.runs.asking import refuse_keys
from probekit.runs.checkpoint import TrainingCheckpoint
from probekit.runs.commitments import row_ids_of
from probekit.runs.creation import RunContents, create
from probekit.runs.fitting import fit, timed
from probekit.runs.folder import RunFolder
from probekit.runs.layout import noise_path, refuse_taken
from probekit.runs.noise import fix_noise, releases_of
from probekit.runs.options import TrainOptions
from probekit.runs.result import Result, to_plain
from probekit.runs.rows import usable
from probekit.unlearning.choice import can_unlearn
from probekit.unlearning.method import NOTHING, Material
from probekit.unlearning.request import known_clients
from probekit.values import EmbeddingSet, Json, Partition

DEFAULT_CLIENTS = 10
CHOSEN_RIDGE = (
    "The ridge was chosen as if without it, from all clients' rows, and is not hidden: give the ridge as a number."
)


CLASSED = ("dirichlet", "shards", "classes")
"""Ways to divide rows that go by their classes."""
UNNAMED = "(unnamed)"
"""What a run calls a set that has no name."""


@dataclass(frozen=True)
class Ability:
    """Whether clients can be forgotten by a method, and why (not)."""

    possible: bool
    why: str


@dataclass(frozen=True, eq=False)
class TrainResult(Result):
    """A finished run and what is worth telling of it; `left_out` rows had no label or no embedding."""

    folder: RunFolder
    trained: Trained
    left_out: int
    ridge_chosen: RidgeChoice | None
    condition_number: float | None
    effective_dimension: float | None
    seconds: Mapping[str, float]
    can_unlearn: Mapping[str, Ability]

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
    name: str,
    options: TrainOptions,
    *,
    store: DiskStore,
    force: bool = False,
    watch: Watch = unwatched,
    note: Callable[[str], None] | None = None,
    client_keys: Mapping[str, bytes] | None = None,
) -> TrainResult:
    """Train on a set of the cache (a network: or on a data set) and keep everything in a run folder."""
    refuse_taken(path, force=force)
    timings: dict[str, float] = {}
    if "split" in backend_named(options.backend).options:
        name, options = _pictures(name, options, store, note=note)
    with timed(timings, "open"):
        digest = store.sets.resolve(name)
        whole = store.open(digest)
        embeddings, rows = usable(whole)
    with timed(timings, "partition"):
        divided = divide(options, embeddings)
    refuse_keys(client_keys or {}, divided.clients)
    if options.poison is not None:
        with timed(timings, "poison"):
            triggered = store.open(options.triggered or "")
            whole = embeddings = poisoned(name, options, store, embeddings, triggered, divided)
            digest, rows = whole.digest, None
    begun = fix_noise(path, options, force=force, note=note)
    checkpoint = TrainingCheckpoint.of(path, options, embeddings)
    fitted = fit(options, embeddings, divided, checkpoint, timings=timings, watch=watch, note=note)
    trained = _described(fitted.trained, whole, fitted.choice)
    inputs = _inputs(store, digest, whole, embeddings)
    config = {"embeddings": name if name in store.sets.names() else inputs["name"], **fitted.options}
    details: dict[str, Json] = {"backbone": whole.spec.backbone, "source": whole.source}
    row_ids = row_ids_of(embeddings, divided, trained.counts)
    material = RunContents(config, inputs, divided, trained, rows, timings, details, row_ids, client_keys or {})
    with timed(timings, "write"):
        register(store.root, path)  # first: a run that appears is on the list
        run = create(path, material, force=force, begun=begun)
    checkpoint.remove()
    noise_path(path).unlink(missing_ok=True)
    chosen = None if fitted.choice is None else fitted.choice.summary
    left_out, able = len(whole) - len(embeddings), abilities(trained, Material(embeddings, divided))
    return TrainResult(run, trained, left_out, chosen, fitted.condition, fitted.effective_dimension, timings, able)


def abilities(trained: Trained, rows: Material) -> dict[str, Ability]:
    """What can be unlearned by which registered method: from what was kept, or with the clients' answers."""
    asked, alone = can_unlearn(trained, rows), can_unlearn(trained, NOTHING)
    how = {
        True: "The retained clients must answer, or their cached rows be at hand.",
        False: "From what the server kept.",
    }
    return {name: Ability(not why, why or how[bool(alone[name])]) for name, why in asked.items()}


def poisoned(
    name: str, options: TrainOptions, store: DiskStore, clean: EmbeddingSet, triggered: EmbeddingSet, divided: Partition
) -> EmbeddingSet:
    """The set with one client's rows triggered and labelled as the target, kept in the cache under its own name."""
    client = options.poison or ""
    if client not in divided.clients:
        raise InputError(f"Cannot poison client {client}: {known_clients(tuple(divided.clients))}.")
    own, share = divided.clients[client], options.poison_fraction
    made = poison(clean, triggered, rows=own, target=options.target, fraction=share, seed=options.seed)
    return store.adopt(made, f"{name}-poisoned-{client}"[:120])


def divide(options: TrainOptions, embeddings: EmbeddingSet) -> Partition:
    """Who holds which rows, as the options say."""
    if embeddings.targets is not None and (by := parse_scheme(options.partition).kind) in CLASSED:
        raise InputError(f"Rows with real targets have no classes to divide them by; found {by}. Take iid or column.")
    if embeddings.targets is not None and options.poison is not None:
        raise InputError("A backdoor is of classes; these rows have several labels or real targets. Leave it out.")
    counted = parse_scheme(options.partition).counted
    clients = DEFAULT_CLIENTS if options.clients is None and counted else options.clients
    given: Any = {name: getattr(options, name) for name in ("server_share", "server_choice", "seed")}
    rows: Any = {"client_ids": embeddings.clients, "embeddings": embeddings.embeddings, "groups": embeddings.groups}
    return partition(embeddings.labels, options.partition, clients=clients, **given, **rows)


def _pictures(
    name: str, options: TrainOptions, store: DiskStore, *, note: Callable[[str], None] | None = None
) -> tuple[str, TrainOptions]:
    """A set of the cache in place of a data set: its pixels, extracted where they are not there yet."""
    names, known = store.sets.names(), store.sets.digests()
    if name in names or any(one.startswith(name) for one in known):
        if options.split is not None:
            raise InputError(f"`split` is of a data set, and {name} is a set of the cache. Leave it out.")
        return name, options
    if ":" not in name:
        hint = "a data set is written SCHEME:NAME (packaged:mnist, say); `probekit cache ls` shows the sets"
        raise NotFoundError(f"There is no set {name!r} in {store.root}; {hint}.")
    from probekit.datasets import dataset
    from probekit.encoding.extract import extract, set_name

    data = dataset(name, split=options.split)
    backbone = _pixels_for(data)
    made = set_name(name, options.split, backbone.replace(":", "-"))
    if made not in names and note is not None:
        note(f"Reading the pictures of {name} as {backbone} into the cache, as {made}.")
    remarks: Any = {} if note is None else {"note": note}
    store.sets.give_name(made, extract(backbone, data, store=store, **remarks).digest)
    return made, replace(options, split=None)


def _pixels_for(data: Any) -> str:
    """The pixels of pictures of this size and colour; what is not a square is squashed into one of its height."""
    if data.kind != "image":
        raise InputError(f"{data.name} holds no pictures. Extract it with a backbone first, and name the set.")
    first = next(iter(data), None)
    if first is None:
        raise InputError(f"{data.name} is empty. Give a data set with pictures in it.")
    picture = first.content()
    size, grey = picture.size, picture.mode in ("L", "1", "I", "I;16", "F")
    return f"pixels:{size[1]}" + ("" if grey else "#rgb")


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
    """What the run was trained on; the name is the set's in the cache, where it has one.

    Never the beginning of its digest: that stays, unsealed, when rows are erased, and candidates could be tried on it.
    """
    name = next((name for name, meant in store.sets.names().items() if meant == digest), UNNAMED)
    counts = {"count": len(used), "left out": len(whole) - len(used)}
    return {"name": name, "set": digest, "rows": used.digest, "spec": whole.spec.digest, **counts}
