"""Every attack on a network's run by whoever owns its files, who computes every digest again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from probekit import Run
from probekit.arrays import hex_id
from probekit.federated.state import KeptGradients
from probekit.networks.architectures import Mlp, Own, initialized
from probekit.networks.network import LinearizedNetwork, Network
from probekit.networks.pretraining import network_model
from probekit.objective import CrossEntropy
from probekit.runs.rows import TRAINING
from tests.runs import test_verify as heads
from tests.runs.conftest import Story
from tests.runs.examples import WIDTH, embeddings, make_run
from tests.runs.forging import Forgery, options_changed

Copy = Callable[[str], Story]
Attack = Callable[[Forgery], Forgery]
HIDDEN = 4
CLASSES = 3
LAST = HIDDEN * CLASSES + CLASSES
"""Parameters of the last layer."""


def network(forgery: Forgery) -> LinearizedNetwork:
    model = forgery.state.model
    assert isinstance(model, LinearizedNetwork)
    return model


def other_model(forgery: Forgery, **fields: Any) -> Forgery:
    """The state with a model that has other fields, whatever they are."""
    model = network(forgery)
    forged = object.__new__(type(model))
    for name in model.__dataclass_fields__:
        object.__setattr__(forged, name, fields.get(name, getattr(model, name)))
    return replace(forgery, state=replace(forgery.state, model=forged))


def noted_in_description(forgery: Forgery) -> Forgery:
    """run.json says that the training began with this network."""
    digest = forgery.state.model.digest
    return replace(forgery, description=replace(forgery.description, network=digest)).anew()


# Attacks on what the network started from.


def other_first_weights(forgery: Forgery) -> Forgery:
    model = network(forgery)
    other = network_model(
        model.architecture,
        sample_shape=model.sample_shape,
        classes=model.classes,
        loss=model.loss,
        seed=1,
    )
    return replace(forgery, state=replace(forgery.state, model=other)).trained()


def other_first_weights_noted(forgery: Forgery) -> Forgery:
    return noted_in_description(other_first_weights(forgery))


def first_weights_are_the_last(forgery: Forgery) -> Forgery:
    """So that the parameters have moved nowhere."""
    return other_model(forgery, weights=forgery.state.params)


def first_weights_exchanged(forgery: Forgery) -> Forgery:
    """Two hidden units with all their weights, which leaves every score as it is."""
    order = np.arange(HIDDEN)[[1, 0, 2, 3]]

    def exchanged(params: np.ndarray) -> np.ndarray:
        first = params[: HIDDEN * WIDTH].reshape(HIDDEN, WIDTH)[order]
        biases = params[HIDDEN * WIDTH : -LAST][order]
        last = params[-LAST:-CLASSES].reshape(CLASSES, HIDDEN)[:, order]
        return np.concatenate([first.ravel(), biases, last.ravel(), params[-CLASSES:]])

    forged = other_model(forgery, weights=exchanged(network(forgery).weights))
    return forged.with_params(exchanged(forgery.state.params)).certified()


def canary_changed(forgery: Forgery) -> Forgery:
    return other_model(forgery, canary=network(forgery).canary + 1e-6)


# Attacks on what the network is.


def architecture_renamed(forgery: Forgery) -> Forgery:
    return options_changed(forgery, network="mlp:5").anew()


def architecture_changed(forgery: Forgery) -> Forgery:
    return other_model(forgery, architecture=Mlp((WIDTH, HIDDEN + 1, CLASSES)))


def columns_permuted(forgery: Forgery) -> Forgery:
    return other_model(forgery, columns=network(forgery).columns[[1, 0, 2]])


def column_dropped(forgery: Forgery) -> Forgery:
    return other_model(forgery, columns=network(forgery).columns[:2])


def pulled_elsewhere(forgery: Forgery) -> Forgery:
    return other_model(forgery, pull_to="zero").trained()


def other_loss(forgery: Forgery) -> Forgery:
    return other_model(forgery, loss=CrossEntropy()).trained()


def other_precision(forgery: Forgery) -> Forgery:
    return other_model(forgery, precision="float64")


def other_shape(forgery: Forgery) -> Forgery:
    return other_model(forgery, sample_shape=(2, 3))


def conventional(forgery: Forgery) -> Forgery:
    model = network(forgery)
    plain = Network(**{name: getattr(model, name) for name in Network.__dataclass_fields__})
    return replace(forgery, state=replace(forgery.state, model=plain))


# Attacks on parameters and claims.


def outputs_exchanged(forgery: Forgery) -> Forgery:
    params = forgery.state.params.copy()
    last = params[-LAST:-CLASSES].reshape(CLASSES, HIDDEN)
    last[:2] = last[[1, 0]]
    params[-CLASSES:] = params[-CLASSES:][[1, 0, 2]]
    return forgery.with_params(params)


def claims_nearer(forgery: Forgery) -> Forgery:
    params = forgery.state.params.copy()
    params[0] += 0.01
    return forgery.with_params(params)


def no_certificate(forgery: Forgery) -> Forgery:
    return replace(forgery, certificate=None)


def claiming(name: str, factor: float) -> Attack:
    def change(forgery: Forgery) -> Forgery:
        return forgery.claiming(**{name: factor * getattr(forgery.certificate, name)})

    change.__name__ = f"{name}_times_{factor:g}"
    return change


def claiming_of_old_head(name: str) -> Attack:
    """The old head with a true certificate, but for one claim that is the new head's."""

    def change(forgery: Forgery) -> Forgery:
        forged = heads.old_head_true_certificate(forgery)
        return forged.claiming(**{name: getattr(forgery.certificate, name)})

    change.__name__ = f"old_head_with_{name}"
    return change


ATTACKS: list[tuple[Attack, tuple[int, int, int]]] = [
    (heads.untouched, (0, 0, 0)),
    (heads.nothing_done_old_certificate, (6, 6, 6)),
    (heads.old_head_swapped_back, (6, 6, 6)),
    (heads.old_head_true_certificate, (7, 7, 7)),
    (heads.one_sample_left, (6, 6, 6)),
    (heads.another_ridge, (6, 6, 6)),
    (heads.ridge_by_hand, (6, 6, 6)),
    (heads.ridge_called_stale, (6, 6, 6)),
    (heads.row_counted_twice, (6, 6, 6)),
    (heads.more_rows_certified, (6, 6, 6)),
    (heads.certificate_of_another_state, (6, 6, 6)),
    (heads.rows_moved, (6, 6, 6)),
    (heads.labels_changed, (6, 6, 6)),
    (heads.line_deleted, (6, 6, 6)),
    (heads.erasure_claimed, (6, 6, 6)),
    (heads.rolled_back, (6, 0, 6)),
    (heads.another_client_forgotten, (6, 0, 6)),
    (other_first_weights, (6, 6, 6)),
    (other_first_weights_noted, (6, 6, 7)),
    (first_weights_are_the_last, (6, 6, 6)),
    (first_weights_exchanged, (6, 6, 6)),
    (canary_changed, (6, 6, 6)),
    (architecture_renamed, (6, 6, 6)),
    (architecture_changed, (6, 6, 6)),
    (columns_permuted, (6, 6, 6)),
    (column_dropped, (6, 6, 6)),
    (pulled_elsewhere, (6, 6, 6)),
    (other_loss, (6, 6, 6)),
    (other_precision, (6, 6, 6)),
    (other_shape, (6, 6, 6)),
    (conventional, (6, 6, 6)),
    (outputs_exchanged, (6, 6, 6)),
    (claims_nearer, (6, 6, 6)),
    (no_certificate, (7, 7, 7)),
    (claiming("distance", 1e-6), (6, 6, 6)),
    (claiming("excess_loss", 1e-12), (6, 6, 6)),
    (claiming("curvature", 1.5), (7, 7, 7)),
    (claiming("rows", 2), (6, 6, 6)),
    (claiming("ridge", 0.5), (6, 6, 6)),
    *((claiming_of_old_head(name), (6, 6, 6)) for name in ("distance", "excess_loss", "residual")),
]


@pytest.mark.parametrize(
    ("attack", "codes"), ATTACKS, ids=lambda value: getattr(value, "__name__", None)
)
def test_attacks(story: Copy, attack: Attack, codes: tuple[int, int, int]) -> None:
    known = story("network")
    attack(known.forgery()).write()
    assert known.codes() == codes


def test_the_head_of_the_state_before(story: Copy) -> None:
    known = story("network")
    for path in (known.folder / "states/0001/head").iterdir():
        shutil.copy(path, known.folder / "states/0002/head" / path.name)
    assert known.codes() == (6, 6, 6)


def test_kept_gradients_are_those_of_the_rows(tmp_path: Path) -> None:
    options = {"network": "mlp:4", "ridge": 0.1, "keep": "gradients"}
    run = make_run(tmp_path / "runs" / "a", cache=tmp_path / "cache", **options)
    known = Story(tmp_path, run.fingerprint)
    assert known.verify(asked=False).exit_code == 0
    forgery = known.forgery()
    kept = forgery.state.get(KeptGradients)
    assert kept is not None
    east, west = kept.gradients["east"], kept.gradients["west"]
    for forged in (
        {"east": west, "west": east},
        {"east": np.full(east.shape, np.nan)},
        {"east": np.zeros(len(east) + 1)},
    ):
        item = replace(kept, gradients={**kept.gradients, **forged})
        replace(forgery, state=replace(forgery.state, kept=(item,))).write()
        assert known.verify(asked=False).exit_code == 6


def test_large_first_weights_do_not_hide_that_nothing_was_done(tmp_path: Path) -> None:
    """Near enough is a share of what training added, not of what the network began with."""
    rows = embeddings()
    matrix = rows.to_numpy().copy()
    matrix[:, 0] = 0.0
    rows = replace(rows, rows=matrix)
    state = initialized(Mlp((WIDTH, HIDDEN, CLASSES)), 0).state_dict()
    state["1.weight"][:, 0] = 1e8  # of a column that is 0
    save_file(state, tmp_path / "large.safetensors")
    run = make_run(
        tmp_path / "runs" / "a",
        rows,
        test=None,
        cache=tmp_path / "cache",
        network="mlp:4",
        ridge=0.1,
        weights=tmp_path / "large.safetensors",
    )
    assert run.verify().exit_code == 0
    run.unlearn(client="north")
    known = Story(tmp_path, run.fingerprint)
    assert known.verify().exit_code == 0
    heads.old_head_true_certificate(known.forgery()).write()
    assert known.codes() == (7, 7, 7)


def test_own_code_of_a_run_is_not_run(story: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wrote a run does not decide what a verifier's machine runs."""
    monkeypatch.setattr(torch, "set_num_threads", lambda count: pytest.fail("was called"))
    known = story("network")
    forgery = known.forgery()
    name = "py:torch:set_num_threads:num=1"
    forged = options_changed(forgery, network=name)
    outputs = network(forgery).canary.shape[1]
    forged = other_model(forged, architecture=Own(name, outputs))
    noted_in_description(forged).write()
    assert known.verify(noted=False).exit_code == 7
    with pytest.raises(Exception, match="own code"):
        Run(known.folder, cache=known.cache).evaluate()


@pytest.mark.parametrize("verb", ["unlearn", "erase"])
def test_first_weights_are_shown_without_a_class_that_is_gone(tmp_path: Path, verb: str) -> None:
    """They were pretrained with an output for it, before or after the others."""
    rows = embeddings(60)
    assert rows.labels is not None
    labels = (rows.labels + 1) % 3
    labels[:2] = 3
    rows = replace(rows, labels=labels, class_names=("ant", "bee", "cow", "asp"))
    options = {"network": "mlp:3", "ridge": 0.5, "server_share": 0.2, "pretrain_epochs": 2}
    run = make_run(tmp_path / "run", rows, test=None, clients=3, seed=1, **options)
    ids = [hex_id(row) for row in rows.ids[:2]]
    held = run.newest.all_rows
    assert (held.roles[held.with_ids(ids)] == TRAINING).all()
    getattr(run, verb)(sample=ids)
    assert run.head.names == ("ant", "bee", "cow")
    assert run.verify().exit_code == 0
