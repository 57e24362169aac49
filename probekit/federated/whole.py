"""A whole network trained across clients: pretrained on the server's rows, linearized there, and kept as a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import from_numpy, nn

from probekit.datasets.pictures import picture_shape
from probekit.errors import InputError, NotFoundError
from probekit.federated.fedavg import FedAvg
from probekit.federated.network import FederatedCg, NetworkTrained, train_holders
from probekit.federated.network_clients import holders
from probekit.federated.pretraining import PRETRAINING, Pretraining, pretrain
from probekit.federated.task import check_rows, design_for
from probekit.federated.trained import Progress, Reached, ServerSet, Trained
from probekit.jacobian.inspection import refuse_unfit
from probekit.jacobian.linearize import tensor_of
from probekit.linear.design import Design
from probekit.models.heads import Network, NetworkHead
from probekit.models.networks import described, inputs_of, linearized, network
from probekit.values import EmbeddingSet, Json, Partition

Told = Callable[[Progress], None]


@dataclass(frozen=True)
class WholeNetwork:
    """Which network, and how it comes to the weights that it is linearized around.

    `subset`: which parameters are trained across clients: a pattern of names, or the number of last layers; None for
    all. `weights`: a safetensors file with w_p; None: pretrained on the server's rows. `centre`: what the ridge pulls
    to, "wp" or "zero".
    """

    network: str = "mlp"
    subset: str | int | None = None
    centre: str = "wp"
    precision: str = "float64"
    pretraining: Pretraining = PRETRAINING
    weights: str | None = None
    seed: int = 0


WHOLE = WholeNetwork()


@dataclass(frozen=True, eq=False)
class Standing:
    """How far a training is: w_p by name, and where the rounds have come to (None: none is done)."""

    weights: Mapping[str, NDArray[Any]]
    reached: Reached | None = None


def train_network(
    embeddings: EmbeddingSet,
    partition: Partition,
    *,
    ridge: float,
    options: WholeNetwork = WHOLE,
    method: FedAvg | FederatedCg | None = None,
    keep: str = "gradients",
    pretraining: Told | None = None,
    progress: Told | None = None,
    standing: Standing | None = None,
    save: Callable[[Standing], None] | None = None,
) -> Trained:
    """A whole network of the clients' rows, linearized; the rows are pictures (`pixels`), or any numbers.

    `save` is given how far it is after pretraining and after every round; `standing` is such a place, to go on from.
    """
    if keep not in ("gradients", "nothing"):
        raise InputError(f'Of a network the server keeps "gradients" or "nothing"; found {keep!r}.')
    check_rows(embeddings, partition, design_for(embeddings))
    about = _pretrained(embeddings, partition, options, pretraining, None if standing is None else standing.weights)

    def saved(reached: Reached | None) -> None:
        if save is not None:
            save(Standing(about.weights, reached))

    if standing is None:
        saved(None)
    model = linearized(about)
    inputs = inputs_of(about, np.asarray(embeddings.embeddings))
    held = holders(model, inputs, embeddings.labels, partition, centre=options.centre)
    start = None if standing is None else standing.reached
    found = train_holders(held, ridge=ridge, method=method, progress=progress, start=start, save=saved)
    return _trained(found, embeddings, partition, about, keep=keep, recipe=_recipe(found, options))


def input_shape(embeddings: EmbeddingSet) -> tuple[int, ...]:
    """The shape of one input: a picture's where the rows are pixels, else as many numbers as a row has."""
    return picture_shape(embeddings.spec) or (embeddings.dimension,)


def _pretrained(
    embeddings: EmbeddingSet,
    partition: Partition,
    options: WholeNetwork,
    progress: Told | None,
    known: Mapping[str, NDArray[Any]] | None,
) -> Network:
    """The network at w_p, where that is not known yet."""
    shape, classes = input_shape(embeddings), design_for(embeddings).classes
    made = network(options.network, shape, classes, seed=options.seed)
    refuse_unfit(made, tensor_of(np.asarray(embeddings.embeddings[:8])).reshape(-1, *shape), classes=classes)
    if known is not None:
        made.load_state_dict({name: from_numpy(np.array(value)) for name, value in known.items()})
    elif options.weights is not None:
        _load(made, Path(options.weights))
    else:
        if not len(partition.server):
            raise InputError(
                "A network is pretrained on rows of the server's own, and it has none. Partition with a server share, "
                "say 0.1, or give weights."
            )
        rows = np.asarray(embeddings.embeddings[partition.server], np.float32).reshape(-1, *shape)
        labels = embeddings.labels[partition.server]
        made = pretrain(made, rows, labels, options=options.pretraining, progress=progress)
    return described(made, options.network, shape, classes, subset=options.subset, precision=options.precision)


def _load(module: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise NotFoundError(
            f"There is no file of weights {path}. Give a safetensors file with the network's own names."
        )
    try:
        module.load_state_dict({name: from_numpy(np.array(value)) for name, value in load_file(path).items()})
    except (RuntimeError, SafetensorError) as error:
        raise InputError(
            f"The weights in {path} do not fit the network: {str(error).splitlines()[-1].strip()} Give those of the "
            "same architecture."
        ) from error


def _recipe(found: NetworkTrained, options: WholeNetwork) -> dict[str, Json]:
    pretrained: Json = dict(vars(options.pretraining)) if options.weights is None else None
    return {
        "head": "network",
        "scaling": "mean",
        "intercept": "none",
        "arithmetic": "float64",
        "fit_view": "none",
        "class_weight": None,
        "normalise_classes": False,
        "solver": found.method,
        "note": found.solution.note,
        "residual": found.solution.residual,
        "rounds": found.rounds,
        "rows": sum(found.counts.values()),
        "centre": found.centre,
        "pretraining": pretrained,
        "weights": options.weights,
        "exact_unlearning": False,
    }


def _trained(
    found: NetworkTrained,
    embeddings: EmbeddingSet,
    partition: Partition,
    about: Network,
    *,
    keep: str,
    recipe: dict[str, Any],
) -> Trained:
    classes = embeddings.class_names or tuple(map(str, range(found.classes)))
    head = NetworkHead(found.params, classes, found.ridge, about, found.centre, embeddings.spec.digest, recipe)
    return Trained(
        head=head,
        method=found.method,
        design=Design(len(found.params), 1, intercept="none"),
        ridge=found.ridge,
        scaling="mean",
        counts=found.counts,
        weights=found.weights,
        solution=found.solution,
        rounds=found.rounds,
        losses=found.losses,
        learning_rate=found.learning_rate,
        server=ServerSet(None, partition.server) if len(partition.server) else None,
        gradients=found.gradients if keep == "gradients" else None,
        history=found.history,
        traffic=found.traffic,
    )
