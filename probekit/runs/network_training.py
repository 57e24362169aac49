"""The part of `probekit train` that is about whole networks: pictures as rows, and the network of some options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from probekit.cache import DiskStore
from probekit.errors import InputError, NotFoundError
from probekit.federated.fedavg import FedAvg
from probekit.federated.network import FederatedCg
from probekit.federated.pretraining import Pretraining
from probekit.federated.trained import Watch
from probekit.federated.whole import WholeNetwork, train_network
from probekit.runs.checkpoint import TrainingCheckpoint
from probekit.runs.fitting import Fitted, method_of, resolved, timed
from probekit.runs.options import TrainOptions
from probekit.values import EmbeddingSet, Partition

NETWORK_RIDGE = 0.01


def pictures(
    name: str, options: TrainOptions, store: DiskStore, *, note: Callable[[str], None] | None = None
) -> tuple[str, TrainOptions]:
    """A set of the cache in place of a data set: its pixels, extracted where they are not there yet."""
    names, known = store.sets.names(), store.sets.digests()
    if name in names or any(one.startswith(name) for one in known):
        if options.split is not None:
            raise InputError(
                f"`split` is of a data set, and {name} is a set of the cache, of one split already. Leave "
                "it out, or name the data set."
            )
        return name, options
    if ":" not in name:
        raise NotFoundError(
            f"There is no set {name!r} in {store.root}, and a data set is written SCHEME:NAME. "
            "`probekit cache ls` shows the sets; packaged:mnist, say, is a data set."
        )
    from probekit.datasets import dataset
    from probekit.encoding.extract import extract, set_name

    data = dataset(name, split=options.split)
    backbone = _pixels_for(data)
    made = set_name(name, options.split, backbone.replace(":", "-"))
    if made not in names and note is not None:
        note(f"Reading the pictures of {name} as {backbone} into the cache, as {made}.")
    store.sets.give_name(made, extract(backbone, data, store=store).digest)
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


def fit_network(
    options: TrainOptions,
    embeddings: EmbeddingSet,
    divided: Partition,
    timings: dict[str, float],
    watch: Watch | None,
    *,
    checkpoint: TrainingCheckpoint,
    note: Callable[[str], None] | None = None,
) -> Fitted:
    """The network that the options name, pretrained, linearized and trained across the clients."""
    before = checkpoint.load()
    if before is not None and note is not None:
        done = "its pretraining" if before.reached is None else f"round {before.reached.rounds}"
        note(f"Going on after {done}, where this training was interrupted. To begin anew, remove {checkpoint.path}.")
    network = WholeNetwork(
        options.network,
        int(options.subset) if options.subset is not None and options.subset.isdecimal() else options.subset,
        options.centre,
        options.precision,
        Pretraining(options.pretrain_epochs, options.pretrain_batch, options.pretrain_rate, options.seed),
        options.network_weights,
        options.seed,
    )
    method = network_method(options)
    with timed(timings, "train"):
        trained = train_network(
            embeddings,
            divided,
            ridge=NETWORK_RIDGE if options.number is None else options.number,
            options=network,
            method=method,
            keep=options.keep or "gradients",
            pretraining=watch("pretraining") if watch is not None else None,
            progress=watch("rounds") if watch is not None else None,
            standing=before,
            save=checkpoint.save,
        )
    return Fitted(trained, resolved(options, method, trained))


def network_method(options: TrainOptions) -> FedAvg | FederatedCg:
    """How the linearized network is trained."""
    if options.method == "fedavg":
        found = method_of(options)
        assert isinstance(found, FedAvg)
        return found
    given = {name: getattr(options, name) for name in ("rounds", "tolerance") if getattr(options, name) is not None}
    return FederatedCg(**given)
