"""Extraction on a Ray cluster: actors with a model each encode shards of a data set into the cache that they share.

The shards are those of `--shard`. An actor that dies is started again, and its shard goes on where it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from probekit.backbones import backbone
from probekit.cache import DiskStore
from probekit.cache.shards import merge, shard_name
from probekit.datasets import Columns, dataset
from probekit.datasets.triggers import trigger
from probekit.encoding.cluster import RETRIES, Cluster
from probekit.encoding.extract import extract, spec_of
from probekit.encoding.loading import length_of
from probekit.encoding.options import ExtractProgress
from probekit.errors import ProbekitError, StorageError
from probekit.protocols import Backbone, Dataset
from probekit.values import EmbeddingSet, EncodingSpec

SHARDS = 4
"""For each actor: what one has not finished when others have is small."""


@dataclass(frozen=True)
class ExtractRequest:
    """An extraction in plain values, as another process can be told it. settings: fields of `ExtractOptions`."""

    backbone: str
    dataset: str
    split: str | None = None
    columns: Columns = field(default_factory=Columns)
    streaming: bool = False
    limit: int | None = None
    preset: str = "native"
    device: str = "auto"
    precision: str = "float32"
    trigger: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def data(self) -> Dataset:
        """The rows."""
        more: Any = {"split": self.split, "columns": self.columns, "streaming": self.streaming, "limit": self.limit}
        return dataset(self.dataset, **more)

    def encoder(self, data: Dataset) -> Backbone:
        """The backbone for these rows."""
        more: Any = {"preset": self.preset, "device": self.device, "precision": self.precision, "kind": data.kind}
        return backbone(self.backbone, **more)

    @property
    def options(self) -> dict[str, Any]:
        """The settings, with the trigger that is named."""
        return {**self.settings, "trigger": trigger(self.trigger) if self.trigger else None}

    def spec(self, encoder: Backbone) -> EncodingSpec:
        """What determines the embeddings."""
        own = self.options
        return spec_of(encoder, dtype=own["dtype"], trigger=own["trigger"], window=own["window"])


@dataclass(frozen=True)
class ShardReport:
    """What an actor has done of a shard: how far it came, and what a person should know."""

    progress: ExtractProgress
    notes: tuple[str, ...]


class Encoder:
    """A model and the rows, ready to encode any shard of them into a cache."""

    def __init__(self, request: ExtractRequest, root: Path, name: str) -> None:
        self.request, self.store, self.name = request, DiskStore(root), name
        self.data = request.data()
        self.encoder = request.encoder(self.data)

    def shard(self, number: int, shards: int) -> ShardReport:
        """Encode a shard, or go on with it."""
        last, notes = [ExtractProgress(0, 0)], list[str]()

        def progress(now: ExtractProgress) -> None:
            last[:] = [now]

        own = {"num_workers": 0, **{key: value for key, value in self.request.options.items() if value is not None}}
        given: Any = {"store": self.store, "progress": progress, "note": notes.append, "shard": (number, shards)}
        made = extract(self.encoder, self.data, **given, **own)
        self.store.sets.give_name(shard_name(self.name, number, shards), made.digest)
        return ShardReport(last[0], tuple(notes))


def extract_on(
    engine: str,
    request: ExtractRequest,
    name: str,
    *,
    store: DiskStore,
    progress: Callable[[ExtractProgress], None],
    note: Callable[[str], None],
) -> EmbeddingSet:
    """Encode a data set on the cluster that `ray` or `ray:HOST:PORT` names, into a set of this name."""
    with Cluster.named(engine) as cluster:
        actors = cluster.gpus or cluster.cpus
        total = ExtractProgress(0, length_of(request.data()))
        told: dict[str, None] = {}
        for report in _encoded(cluster, request, store.root.absolute(), name, actors=actors):
            now = report.progress
            counted = {one: getattr(total, one) + getattr(now, one) for one in COUNTED}
            total = replace(total, **counted)
            progress(total)
            for text in report.notes:
                if text not in told:
                    told[text] = None
                    note(text)
    return store.open(merge(store, name).digest)


COUNTED = ("rows", "encoded", "reused", "skipped", "erased", "seconds")


def _encoded(cluster: Cluster, request: ExtractRequest, root: Path, name: str, *, actors: int) -> Any:
    """What became of each shard, as they are done. The actors end before anything else is started."""
    ray, shards = cluster.ray, SHARDS * actors
    needs = {"num_gpus": 1} if cluster.gpus else {"num_cpus": 1}
    remote = ray.remote(**needs, max_restarts=RETRIES, max_task_retries=RETRIES)(Encoder)
    encoders = [remote.remote(request, root, name) for _ in range(actors)]
    free, working, todo = deque(encoders), dict[Any, Any](), deque(range(shards))
    try:
        while todo or working:
            while todo and free:
                encoder = free.popleft()
                working[encoder.shard.remote(todo.popleft(), shards)] = encoder
            [done], _ = ray.wait(list(working), num_returns=1)
            free.append(working.pop(done))
            yield _got(ray, done)
    finally:
        for encoder in encoders:
            ray.kill(encoder)


def _got(ray: Any, done: Any) -> ShardReport:
    try:
        found: ShardReport = ray.get(done)
    except ray.exceptions.RayTaskError as error:
        if not isinstance(error.cause, ProbekitError):
            raise
        raise error.cause from None
    except ray.exceptions.RayActorError as error:
        raise StorageError(
            f"An encoder died {RETRIES + 1} times. What was encoded is kept; look at the machine's memory and give the "
            f"same command again. {str(error).splitlines()[0]}"
        ) from error
    return found
