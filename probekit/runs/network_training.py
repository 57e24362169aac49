"""The part of `probekit train` that is about whole networks: pictures as rows, and the network of a config."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from probekit.cache import DiskStore
from probekit.errors import InputError, NotFoundError
from probekit.federated.fedavg import FedAvg
from probekit.federated.network import FederatedCg
from probekit.federated.pretraining import Pretraining
from probekit.federated.trained import Trained, Watch
from probekit.federated.whole import WholeNetwork, train_network
from probekit.runs.checkpoint import TrainingCheckpoint
from probekit.runs.fitting import Fitted, rounds_told, timed
from probekit.runs.options import NETWORK_RIDGE, TrainOptions, method_of
from probekit.values import EmbeddingSet, Json, Partition


def pictures(config: TrainOptions, store: DiskStore, *, note: Callable[[str], None] | None = None) -> TrainOptions:
    """The config with a set of the cache in place of a data set: its pixels, extracted where they are not there yet."""
    names, known = store.sets.names(), store.sets.digests()
    if config.embeddings in names or any(one.startswith(config.embeddings) for one in known):
        if config.split is not None:
            raise InputError(
                f"--split is of a data set, and {config.embeddings} is a set of the cache, of one split already. Leave "
                "it out, or name the data set."
            )
        return config
    if ":" not in config.embeddings:
        raise NotFoundError(
            f"There is no set {config.embeddings!r} in {store.root}, and a data set is written SCHEME:NAME. "
            "`probekit cache ls` shows the sets; packaged:mnist, say, is a data set."
        )
    from probekit.datasets import dataset
    from probekit.encoding.extract import extract

    data = dataset(config.embeddings, split=config.split)
    backbone = _pixels_for(data)
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", f"{config.embeddings.partition(':')[2]}-{config.split or ''}-{backbone}")
    name = plain[-100:].lstrip("-._").rstrip("-")
    if name not in names and note is not None:
        note(f"Reading the pictures of {config.embeddings} as {backbone} into the cache, as {name}.")
    store.sets.give_name(name, extract(backbone, data, store=store).digest)
    return replace(config, embeddings=name, split=None)


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


def fit_network(
    config: TrainOptions,
    embeddings: EmbeddingSet,
    divided: Partition,
    timings: dict[str, float],
    watch: Watch | None,
    *,
    standing: TrainingCheckpoint,
    note: Callable[[str], None] | None = None,
) -> Fitted:
    """The network that the config names, pretrained, linearized and trained across the clients."""
    before = standing.load()
    if before is not None and note is not None:
        done = "its pretraining" if before.reached is None else f"round {before.reached.rounds}"
        note(f"Going on after {done}, where this training was interrupted. To begin anew, remove {standing.path}.")
    options = WholeNetwork(
        config.network,
        int(config.subset) if config.subset is not None and config.subset.isdecimal() else config.subset,
        config.centre,
        config.precision,
        Pretraining(config.pretrain_epochs, config.pretrain_batch, config.pretrain_rate, config.seed),
        config.network_weights,
        config.seed,
    )
    with timed(timings, "train"):
        trained = train_network(
            embeddings,
            divided,
            ridge=config.number() if config.ridge is not None else NETWORK_RIDGE,
            options=options,
            method=network_method(config),
            keep=config.keep or "gradients",
            pretraining=watch("pretraining") if watch is not None else None,
            progress=watch("rounds") if watch is not None else None,
            standing=before,
            save=standing.save,
        )
    return Fitted(trained, resolved(config, trained))


def network_method(config: TrainOptions) -> FedAvg | FederatedCg:
    """How the linearized network is trained."""
    if config.method == "fedavg":
        found = method_of(config)
        assert isinstance(found, FedAvg)
        return found
    given = {name: getattr(config, name) for name in ("rounds", "tolerance") if getattr(config, name) is not None}
    return FederatedCg(**given)


def resolved(config: TrainOptions, trained: Trained) -> dict[str, Json]:
    """The config with everything filled in that it had left open."""
    method = network_method(config)
    plain: dict[str, Json] = {"rounds": method.rounds, "tolerance": method.tolerance}
    more = rounds_told(method, trained) if isinstance(method, FedAvg) else plain
    kept = "gradients" if trained.gradients is not None else "nothing"
    return {**config.plain(), **more, "clients": len(trained.counts), "ridge": trained.ridge, "keep": kept}
