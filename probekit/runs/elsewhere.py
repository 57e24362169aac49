"""Runs whose clients are elsewhere: what a server has of them, and where their row numbers come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from probekit.cache import DiskStore
from probekit.errors import InputError, MismatchError
from probekit.federated.party import Party
from probekit.runs.options import TrainOptions
from probekit.runs.rows import usable
from probekit.runs.training_rows import TrainingRows
from probekit.values import EmbeddingSet, Json, Partition, digest

SCHEME = "federation"
LOCAL = ("clients", "partition", "server_share", "server_choice", "poison", "triggered", "split")
"""Options that are about rows of the cache."""


def refuse_local(options: TrainOptions, keys: Mapping[str, bytes] | None) -> None:
    """Refuse options that divide or change rows which the clients have themselves."""
    plain = TrainOptions.__dataclass_fields__
    for name in LOCAL:
        if (value := getattr(options, name)) != plain[name].default:
            raise InputError(
                f"The clients of a federation have rows of their own: `{name}` is for a set of the cache; found "
                f"`{name}={value}`. Leave it out; rows for the server are given as `server_set`."
            )
    if keys:
        raise InputError("The clients of a federation bring their keys. Leave `client_keys` out.")


def server_rows(options: TrainOptions, party: Party, store: DiskStore) -> EmbeddingSet:
    """The server's own rows, encoded as the clients' are; none, where no set is given."""
    hollow = party.description.hollow
    if options.server_set is None:
        return hollow
    found, _ = usable(store.open(options.server_set))
    if found.spec.digest != hollow.spec.digest or found.class_names not in ((), hollow.class_names):
        what = "encoding" if found.spec.digest != hollow.spec.digest else "classes"
        raise MismatchError(
            f"The set {options.server_set} has another {what} than the clients' rows. Extract it with their backbone "
            f"({hollow.spec.backbone}) and their classes."
        )
    return found


def elsewhere(options: TrainOptions, party: Party, store: DiskStore, *, job: str) -> TrainingRows:
    """What a training across these clients stands on here."""
    own = server_rows(options, party, store)
    partition = Partition({}, np.arange(len(own)), len(own), SCHEME, options.seed)
    return TrainingRows(own, partition, store, party, job)


def described(party: Party) -> str:
    """The sha256 of who the clients are and what their rows are like."""
    said = party.description
    about: dict[str, Json] = {"counts": dict(said.counts), "classes": list(said.class_names), "spec": said.spec.digest}
    return digest({**about, "party": party.name, "targets": said.targets})


def virtual_partition(own: Partition, counts: Mapping[str, int]) -> Partition:
    """Row numbers for rows elsewhere: the server's come first, then each client's."""
    ends = len(own.server) + np.cumsum([0, *counts.values()])
    held = {name: np.arange(ends[place], ends[place + 1]) for place, name in enumerate(counts)}
    return Partition(held, own.server, int(ends[-1]), SCHEME, own.seed)


def inputs_of(options: TrainOptions, party: Party, store: DiskStore, counts: Mapping[str, int]) -> dict[str, Json]:
    """What a run says of rows that it never saw; `set` and `rows` are the server's own."""
    said, name = party.description, options.server_set
    spec: dict[str, Json] = {"backbone": said.spec.backbone, **asdict(said.spec)}
    found: dict[str, Json] = {"name": party.name, "set": "", "rows": "", "spec": said.spec.digest}
    if name is not None:
        found["set"], found["rows"] = store.sets.resolve(name), usable(store.open(name))[0].digest
    return {**found, "count": sum(counts.values()), "left out": 0, "federation": party.name, "encoding": spec}
