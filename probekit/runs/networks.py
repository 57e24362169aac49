"""The network that a run's options name: made by `train`, and made again by `verify`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from probekit.errors import InputError
from probekit.networks.architectures import architecture, is_trusted, trust
from probekit.networks.network import LinearizedNetwork, Network
from probekit.networks.pretraining import Pretraining, network_model
from probekit.objective import Model
from probekit.progress import Progress, silent
from probekit.runs.layout import Description
from probekit.runs.run import RunData


def check_code(name: str) -> None:
    """Refuse own code of a run that nobody has asked for in this process."""
    if not is_trusted(name):
        raise InputError(
            f"The network of this run is own code, {name}, which is run only where it is asked "
            f"for. Pass --network {name}."
        )


def first_network(
    data: RunData,
    weights: Path | None = None,
    progress: Progress = silent,
    *,
    trained: Network | None = None,
) -> Network:
    """The network before training: drawn by the seed or read, then pretrained on server rows.

    trained: what it became. It may have outputs for classes that were forgotten since.
    """
    options = data.description.options
    name = options.network or ""
    trust(name)
    shape = data.encoding.sample_shape or (data.description.width,)
    outputs = len(data.classes)
    server = data.server_rows
    if trained is not None:
        outputs = trained.canary.shape[1]
        has_all = len(trained.columns) == len(data.classes)
        if server is not None and server.labels is not None and has_all:
            names = tuple(map(str, range(outputs)))
            server = replace(server, labels=trained.columns[server.labels], class_names=names)
    pretraining = None
    if server is not None and options.is_pretrained:
        pretraining = Pretraining(server, options.pretrain_epochs, options.seed)
    return network_model(
        architecture(name, shape, outputs),
        sample_shape=shape,
        classes=outputs,
        loss=options.loss,
        linearize=options.linearize,
        center=options.center,
        seed=options.seed,
        weights=weights,
        pretraining=pretraining,
        progress=progress,
    )


def is_network_of(description: Description, model: Model, classes: int) -> bool:
    """Whether a model is the network of run.json with outputs for so many of its classes."""
    options = description.options
    encoding = description.read_encoding()
    if not isinstance(model, Network):
        return False
    shape = encoding.sample_shape or (description.width,)
    outputs = model.canary.shape[1]
    claims = (
        model.architecture == architecture(options.network or "", shape, outputs),
        model.digest == description.network,
        model.loss == options.loss,
        model.precision == "float32",
        isinstance(model, LinearizedNetwork) == options.linearize,
        not isinstance(model, LinearizedNetwork) or model.pull_to == options.center,
        len(model.columns) == classes and bool((np.diff(model.columns) > 0).all()),
    )
    return all(claims)
