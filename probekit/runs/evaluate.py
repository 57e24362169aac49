"""The verb: how good the heads of a run are, beside retraining and the minimum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from probekit.arrays import Array
from probekit.data import DataOptions, read_dataset
from probekit.data.splits import choose_split
from probekit.data.triggers import Poison, TriggeredDataset, parse_trigger
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, NotFoundError, OfflineError
from probekit.evaluation.intervals import Sampling
from probekit.evaluation.unlearning import (
    AFTER,
    BEFORE,
    MINIMUM,
    RETRAINED,
    UnlearningEvaluation,
    UnlearningRows,
    evaluate_unlearning,
)
from probekit.extraction import ExtractOptions
from probekit.extraction.extract import extract_dataset, open_backbone, set_name
from probekit.extraction.sources import is_encoded, read_rows
from probekit.federated.federation import Federation
from probekit.federated.loss import MeanLoss
from probekit.federated.state import State
from probekit.federated.training.cg import ConjugateGradients
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.heads import BaseHead
from probekit.linear.model import LinearModel
from probekit.linear.solvers import conjugate_gradient
from probekit.objective import Squares
from probekit.progress import Progress, silent
from probekit.runs import layout
from probekit.runs.layout import Trained
from probekit.runs.rows import TRAINING, RunFiles
from probekit.runs.run import Run, RunData, single_thread

OWN_TEST = "test"
NEWTON_STEPS = 2
NEWTON_TOLERANCE = 1e-4
PRODUCTS = 300


@dataclass(frozen=True, eq=False)
class RunEvaluation:
    """The heads of a run, on its own rows and on test rows (`evaluated_on`)."""

    run: Run
    evaluated_on: str
    test_rows: int
    poison: Poison | None
    unlearning: UnlearningEvaluation
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.run.folder),
            "state": self.run.newest.number,
            "evaluated_on": self.evaluated_on,
            "test_rows": self.test_rows,
            "poison": None if self.poison is None else vars(self.poison),
            **self.unlearning.to_dict(),
        }


def evaluate_run(
    run: Run,
    data: object = OWN_TEST,
    *,
    confidence: float = 0.95,
    reading: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> RunEvaluation:
    """The head before (of the oldest state), after, retrained and at the minimum.

    data: rows as `probe` takes them, or "test", the run's own.
    reading: DataOptions (data), ExtractOptions (options) and VectorOptions (vectors).
    """
    reading = reading or {}
    newest = run.newest
    partition = RunData.of(newest.all_rows, newest.description, run.cache)
    training = partition.rows.role_set(
        partition.matrix, partition.encoding, partition.classes, TRAINING
    )
    if isinstance(newest.all_rows, RunFiles):
        raise InputError(
            f"Heads are evaluated on rows; {run.folder} has the clients' sums alone. Evaluate its "
            f"head on rows of your own: probekit predict {newest.folder / layout.HEAD} DATA."
        )
    if training is None:
        raise NotFoundError(
            f"No training row of {run.folder} is in {run.cache.root}. Pass the run's cache "
            "(--cache), or extract the rows again."
        )
    notes: list[str] = []
    with single_thread():
        heads = run_heads(run, notes, progress)
        test = partition.test if data == OWN_TEST else _read_test(run, data, reading, progress)
        own_rows = partition.test
        limit = None if own_rows is None else len(own_rows)
        poison, triggered = _read_triggered(run, reading, limit, notes, progress)
        count = len(training)
        client_rows = np.split(
            np.arange(count),
            np.searchsorted(
                partition.rows.holders[:count], np.arange(1, len(partition.rows.clients))
            ),
        )
        rows = UnlearningRows(
            training,
            dict(zip(partition.rows.clients, client_rows, strict=True)),
            layout.forgotten(partition.rows, newest.events)[:count],
            test,
            triggered,
            "" if poison is None else poison.target,
        )
        unlearning = evaluate_unlearning(
            heads, rows, loss=run.options.loss, sampling=Sampling(confidence)
        )
    if test is None:
        notes.append("This run has no test rows. Pass some: probekit evaluate RUN DATA.")
    evaluated_on = "the run's test rows" if data == OWN_TEST else str(data)
    test_rows = 0 if test is None else len(test)
    return RunEvaluation(run, evaluated_on, test_rows, poison, unlearning, tuple(notes))


def run_heads(run: Run, notes: list[str], progress: Progress = silent) -> dict[str, BaseHead]:
    """The heads of a run by the names of HEADS, as far as its states and rows are here."""
    newest = run.newest
    heads: dict[str, BaseHead] = {}
    numbers = layout.state_numbers(run.folder)
    if numbers[0] < newest.number:
        heads[BEFORE] = replace(newest, number=numbers[0]).head
    was_changed = any(not isinstance(event, Trained) for event in newest.events)
    heads[AFTER if was_changed else BEFORE] = newest.head
    data = RunData.of(newest.rows, newest.description, run.cache)
    if data.rows.counts() != newest.rows.counts():
        notes.append(
            "Some retained rows are not in the cache, so there is no retrained head and no minimum "
            "beside this one. Extract them again."
        )
        return heads
    options = run.options
    federation = data.federation(newest.state.model)
    if was_changed:
        trainer = newest.state.trainer  # at the run's own rate, whoever left
        trained = trainer.train(federation, ridge=options.setting(), progress=progress)
        heads[RETRAINED] = data.head(trained)
    if federation.model.is_linear:
        heads[MINIMUM] = data.head(minimum_of(federation, newest.state.ridge, progress))
    return heads


def minimum_of(federation: Federation, ridge: float, progress: Progress) -> State:
    """The minimum over these rows; of a logistic head to rounding, by Newton steps at the end."""
    if not isinstance(federation.model, LinearModel):
        return ConjugateGradients().train(federation, ridge=ridge, progress=progress)
    if isinstance(federation.model.loss, Squares):
        return ClosedForm(keep=frozenset()).train(federation, ridge=ridge, progress=progress)
    state = LbfgsRounds(keep=frozenset()).train(federation, ridge=ridge, progress=progress)
    loss = MeanLoss(federation, ridge)
    params = state.params
    shape = params.shape
    for _ in range(NEWTON_STEPS):
        step = conjugate_gradient(
            partial(_curvature, loss, params),
            loss.gradient(params).reshape(-1, 1),
            steps=PRODUCTS,
            tolerance=NEWTON_TOLERANCE,
        )
        params = params - step.value.reshape(shape)
    return replace(state, params=params)


def _curvature(loss: MeanLoss, params: Array, vector: Array) -> Array:
    """Softmax couples the classes, so that all parameters are one column."""
    return loss.product(params, vector.reshape(params.shape)).reshape(-1, 1)


def _read_test(
    run: Run, data: object, reading: Mapping[str, Any], progress: Progress
) -> EmbeddingSet:
    """The test split of data, or all of it where it has one split."""
    backbone = None
    if not is_encoded(data, run.cache):
        backbone = run.newest.description.read_encoding().backbone
    parts = read_rows(data, cache=run.cache, backbone=backbone, progress=progress, **reading)
    return (parts[0].test or parts[0].train).labeled()


def _read_triggered(
    run: Run, reading: Mapping[str, Any], limit: int | None, notes: list[str], progress: Progress
) -> tuple[Poison | None, EmbeddingSet | None]:
    """How the run was poisoned, and the test pictures of its data with that trigger.

    limit: the first of them, as many as the run has test rows (`train --limit`).
    """
    texts = [event.poison for event in run.newest.events if isinstance(event, Trained)]
    if texts[0] is None:
        return None, None
    poison = Poison.parse(texts[0])
    description = run.newest.description
    data = reading.get("data") or DataOptions()
    options = reading.get("options") or ExtractOptions(dtype=description.read_encoding().dtype)
    try:
        data = replace(data, limit=data.limit or limit)
        splits = read_dataset(description.source, data).by_name
        split = choose_split(list(splits), "test")
        dataset = TriggeredDataset(splits[split], parse_trigger(poison.trigger))
        backbone = open_backbone(description.read_encoding().backbone, dataset.kind, options)
    except (NotFoundError, OfflineError, InputError) as error:
        notes.append(f"The backdoor cannot be evaluated: {error}")
        return poison, None
    name = f"{description.source}-{poison.trigger}"
    name = set_name(name, split, backbone.name, limit=data.limit)
    extracted = extract_dataset(
        dataset,
        backbone,
        name=name,
        source=description.source,
        cache=run.cache,
        window=data.window,
        options=options,
        progress=progress,
    )
    return poison, next(iter(extracted.sets.values()))
