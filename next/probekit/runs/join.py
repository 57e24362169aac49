"""Clients that join a run: the state that training with them from the start would give."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from probekit.arrays import Ids, id_keys
from probekit.errors import InputError, MismatchError
from probekit.federated.state import KeptStatistics
from probekit.files import new_folder, restore_folder, write_bytes
from probekit.progress import Progress, silent
from probekit.records import dump
from probekit.runs import layout
from probekit.runs.layout import Commitment, Cost, Joined, Unlearned
from probekit.runs.rows import TRAINING, RunRows, fingerprint_of, leaves_of
from probekit.runs.run import Run, RunData, certify_state, single_thread, write_state
from probekit.runs.train import TrainingPlan


def join(plan: TrainingPlan, progress: Progress = silent) -> Run:
    """Train with the clients of a plan too; kept sums of the others are not asked for again.

    The run gets a new commitment, and with it another fingerprint.
    """
    restore_folder(plan.folder)
    plan.sweep()
    run = Run(plan.folder, cache=plan.cache)
    _check_alike(plan, run)
    plan = replace(plan, rows=plan.rows.take(plan.rows.roles == TRAINING))
    with layout.working(run.folder, progress), single_thread():
        return _join(plan, run, progress)


def _join(plan: TrainingPlan, run: Run, progress: Progress) -> Run:
    started = time.monotonic()
    stored = run.newest
    joined = stored.rows.take(stored.rows.held_by(plan.rows.clients))
    if joined.same_rows(plan.rows):
        note = "These clients joined before; nothing was changed."
        return Run(run.folder, cache=run.cache, notes=(*plan.notes, note))
    requests = [event for event in stored.events if isinstance(event, Unlearned)]
    taken = {*stored.all_rows.clients, *(name for event in requests for name in event.clients)}
    if taken := taken & set(plan.rows.clients):
        raise InputError(
            f"Clients that join need new names; {min(taken)!r} is or was in this run, with other "
            "rows. Rename it."
        )
    rows, commitment = _committed_with(plan, run)
    description = stored.description
    content = description.dump()
    fingerprint = fingerprint_of(content, commitment)
    retained = layout.retained(rows, stored.events)
    data = RunData.of(retained, description, run.cache)
    state = stored.state
    kept = state.get(KeptStatistics)
    if data.classes != stored.rows.classes:
        kept = None  # sums of fewer classes
    model = description.options.model(description.width, len(data.classes))
    federation = data.federation(model, kept)
    setting = state.ridge_choice.setting
    state = state.trainer.train(federation, ridge=setting, progress=progress)
    cost = Cost.of(federation, started)
    certificate, notes = certify_state(
        state, federation, test=data.test, class_labels=rows.targets is None
    )
    event = Joined(layout.now(), fingerprint, len(plan.rows), cost)
    unchanged = {
        path.relative_to(run.folder): path.read_bytes()
        for path in run.folder.rglob("*")
        if path.is_file() and path.name not in (layout.COMMITMENT, layout.ROWS, layout.LOCK)
    }
    with new_folder(run.folder) as aside:
        for path, file in unchanged.items():
            write_bytes(aside / path, file)
        write_bytes(aside / layout.COMMITMENT, dump(Commitment(commitment)))
        write_bytes(aside / layout.ROWS, dump(rows))
        folder = layout.state_folder(aside, stored.number + 1)
        write_state(folder, retained, state, certificate, [*stored.events, event], description)
    return Run(run.folder, cache=run.cache, notes=(*plan.notes, *notes))


def _committed_with(plan: TrainingPlan, run: Run) -> tuple[RunRows, Ids]:
    """The rows of a run and those that join, and the leaves of both; erased ones stay closed."""
    stored = run.newest
    description = stored.description
    entry = run.cache.entry(description.read_encoding())
    added = leaves_of(plan.rows, entry.rows(plan.rows.ids, description.width))
    leaves = np.concatenate([stored.commitment, added])
    by_value = np.argsort(id_keys(leaves))
    places = np.empty(len(leaves), np.int64)
    places[by_value] = np.arange(len(leaves))
    old = replace(stored.all_rows, leaves=places[stored.all_rows.leaves])
    new = replace(plan.rows, leaves=places[len(stored.commitment) :])
    return old.joined(new), np.ascontiguousarray(leaves[by_value])


def _check_alike(plan: TrainingPlan, run: Run) -> None:
    ours = run.newest.description
    theirs = plan.description
    has_targets = run.newest.all_rows.targets is not None
    if (
        ours.read_encoding().digest != theirs.read_encoding().digest
        or has_targets != (plan.rows.targets is not None)
        or (has_targets and plan.rows.outputs != run.newest.all_rows.outputs)
    ):
        raise MismatchError(
            f"Who joins needs rows like those of {run.folder.name}, by "
            f"{ours.encoding['backbone']} as {ours.encoding['dtype']}, with the same labels or "
            f"targets; found {theirs.encoding['backbone']} as {theirs.encoding['dtype']}. "
            "Extract them alike."
        )
