"""What a training stands on: a set of the cache divided among clients, or clients elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.errors import InputError, NotFoundError
from probekit.evaluation.backdoor import poison
from probekit.federated.partition import parse_scheme, partition
from probekit.federated.party import Party
from probekit.federated.trained import Trained
from probekit.models.problem import backend_named
from probekit.runs.asking import refuse_keys
from probekit.runs.checkpoint import FREE
from probekit.runs.elsewhere import SCHEME, described, elsewhere, inputs_of, refuse_local, virtual_partition
from probekit.runs.federation import open_party
from probekit.runs.fitting import Fitted, timed, trainer_again
from probekit.runs.jobs import job_of
from probekit.runs.options import TrainOptions
from probekit.runs.rows import usable
from probekit.runs.training_rows import TrainingRows
from probekit.unlearning.method import Material
from probekit.unlearning.request import known_clients
from probekit.values import EmbeddingSet, Json, Partition

DEFAULT_CLIENTS = 10
CLASSED = ("dirichlet", "shards", "classes")
"""Ways to divide rows that go by their classes."""
UNNAMED = "(unnamed)"
"""What a run calls a set that has no name."""


@dataclass(frozen=True, eq=False)
class Gathered:
    """What is trained on, by which options, and what the run will say of it.

    `whole` also has the rows that cannot be used, `numbers` are those of the others among them (None: all).
    """

    rows: TrainingRows
    options: TrainOptions
    whole: EmbeddingSet
    numbers: NDArray[np.int64] | None
    digest: str
    keys: Mapping[str, bytes]
    recorded: Callable[[Trained, dict[str, Json]], tuple[Partition, dict[str, Json], dict[str, Json]]]

    def material(self, fitted: Fitted) -> Material:
        """Who could be asked to forget the first client."""
        trainer = trainer_again(fitted.options)
        if self.rows.party is None:
            return Material(self.rows.embeddings, self.rows.partition, options=trainer)
        first, *others = fitted.trained.counts.items()
        target, clients = (replace(fitted.clients, sizes=dict(some)) for some in ([first], others))
        return Material(clients=clients, target=target, server=self.rows.embeddings, options=trainer)


def from_cache(
    name: str | None,
    options: TrainOptions,
    store: DiskStore,
    keys: Mapping[str, bytes] | None,
    timings: dict[str, float],
    note: Callable[[str], None] | None,
    engine: str | None,
) -> Gathered:
    """A set of the cache, divided among clients, which an engine may ask."""
    if name is None:
        raise InputError("Training needs rows: name a set of the cache, or clients elsewhere with `federation`.")
    for own in ("server_set", "at_least", "timeout"):
        if getattr(options, own) is not None:
            raise InputError(f"`{own}` is for clients elsewhere (`federation`); these rows are in the cache.")
    if "split" in backend_named(options.backend).options:
        name, options = _pictures(name, options, store, note=note)
    with timed(timings, "open"):
        digest = store.sets.resolve(name)
        whole = store.open(digest)
        embeddings, numbers = usable(whole)
    with timed(timings, "partition"):
        divided = divide(options, embeddings)
    refuse_keys(keys or {}, divided.clients)
    if options.poison is not None:
        with timed(timings, "poison"):
            triggered = store.open(options.triggered or "")
            whole = embeddings = poisoned(name, options, store, embeddings, triggered, divided)
            digest, numbers = whole.digest, None

    def recorded(_: Trained, chosen: dict[str, Json]) -> tuple[Partition, dict[str, Json], dict[str, Json]]:
        inputs = _inputs(store, digest, whole, embeddings)
        asked: dict[str, Json] = {} if engine is None else {"federation": engine}
        return (
            divided,
            {"embeddings": name if name in store.sets.names() else inputs["name"], **chosen, **asked},
            inputs,
        )

    rows = TrainingRows(embeddings, divided, store, engine=engine)
    return Gathered(rows, options, whole, numbers, embeddings.digest, keys or {}, recorded)


def across(
    path: Path,
    name: str | None,
    options: TrainOptions,
    federation: Party | str,
    store: DiskStore,
    keys: Mapping[str, bytes] | None,
    timings: dict[str, float],
) -> Gathered:
    """Clients elsewhere, and rows of the server's own where it has a set."""
    if name is not None:
        raise InputError(f"The clients of a federation have rows of their own; found the set {name}. Leave it out.")
    refuse_local(options, keys)
    with timed(timings, "open"):
        party = open_party(federation) if isinstance(federation, str) else federation
        digest = described(party)
        free = {own: value for own, value in options.plain.items() if own not in FREE}
        rows = elsewhere(options, party, store, job=job_of(path, "train", digest, free))
        whole = rows.embeddings if options.server_set is None else store.open(options.server_set)
        numbers = None if options.server_set is None else usable(whole)[1]

    def recorded(trained: Trained, chosen: dict[str, Json]) -> tuple[Partition, dict[str, Json], dict[str, Json]]:
        inputs = inputs_of(options, party, store, trained.counts)
        config: dict[str, Json] = {**chosen, "partition": SCHEME, "federation": party.name}
        return virtual_partition(rows.partition, trained.counts), {"embeddings": party.name, **config}, inputs

    return Gathered(rows, options, whole, numbers, digest, party.description.keys, recorded)


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


def _inputs(store: DiskStore, digest: str, whole: EmbeddingSet, used: EmbeddingSet) -> dict[str, Json]:
    """What the run was trained on; the name is the set's in the cache, where it has one.

    Never the beginning of its digest: that stays, unsealed, when rows are erased, and candidates could be tried on it.
    """
    name = next((name for name, meant in store.sets.names().items() if meant == digest), UNNAMED)
    counts = {"count": len(used), "left out": len(whole) - len(used)}
    return {"name": name, "set": digest, "rows": used.digest, "spec": whole.spec.digest, **counts}
