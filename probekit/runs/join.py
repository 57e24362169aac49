"""Clients that join a run: the state that training with them from the start would give."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from probekit.arrays import Ids
from probekit.errors import InputError, MismatchError
from probekit.federated.state import KeptStatistics
from probekit.files import new_folder, restore_folder, write_bytes
from probekit.progress import Progress, silent
from probekit.records import dump
from probekit.runs import layout
from probekit.runs.layout import Commitment, Cost, Joined, Unlearned
from probekit.runs.rows import TRAINING, RunFiles, RunRows, fingerprint_of, leaves_of, sort_leaves
from probekit.runs.run import (
    Connect,
    Run,
    RunData,
    certify_state,
    connection,
    matrix_of,
    single_thread,
    write_state,
)
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
    with (
        layout.working(run.folder, progress),
        single_thread(),
        connection(plan.transport) as connect,
    ):
        return _join(plan, run, connect, progress)


def _join(plan: TrainingPlan, run: Run, connect: Connect, progress: Progress) -> Run:
    started = time.monotonic()
    stored = run.newest
    joined = stored.rows.take(stored.rows.held_by(plan.rows.clients))
    if joined.same_rows(plan.rows):
        note = "These clients joined before; nothing was changed."
        return Run(run.folder, cache=run.cache, notes=(*plan.notes, note))
    requests = [event for event in stored.events if isinstance(event, Unlearned)]
    taken = {*stored.all_rows.clients, *(name for event in requests for name in event.clients)}
    replaced = _replaced(plan.rows, stored.rows)
    if taken := (taken & set(plan.rows.clients)) - replaced:
        raise InputError(
            f"Clients that join need new names; {min(taken)!r} is or was in this run, with other "
            "rows. Rename it."
        )
    rows, commitment = _committed_with(plan, run, replaced)
    description = stored.description
    content = description.dump()
    fingerprint = fingerprint_of(content, commitment)
    retained = layout.retained(rows, stored.events)
    data = RunData.of(retained, description, run.cache)
    state = stored.state
    kept = state.get(KeptStatistics)
    if plan.sums and kept is not None:
        kept = KeptStatistics({**kept.parts, **plan.sums})
    elif data.classes != stored.rows.classes:
        kept = None  # sums of fewer classes
    model = state.model
    if description.options.network is None:
        model = description.options.linear_model(description.width, len(data.classes))
    elif len(data.classes) != model.classes:
        raise InputError(
            f"Clients that join a network have its {model.classes} classes; with them there would "
            f"be {len(data.classes)}. Train anew with all of them."
        )
    federation = data.federation(model, kept, connect)
    setting = state.ridge_choice.setting
    state = state.trainer.train(federation, ridge=setting, progress=progress)
    cost = Cost.of(federation, started)
    certificate, notes = certify_state(
        state, federation, test=data.test, class_labels=rows.targets is None
    )
    event = Joined(layout.now(), fingerprint, plan.rows.size, cost)
    dropped = {layout.COMMITMENT, layout.ROWS, layout.LOCK}
    states = run.folder / layout.STATES
    unchanged = {
        path.relative_to(run.folder): path.read_bytes()
        for path in run.folder.rglob("*")
        if path.is_file() and path.name not in dropped
        if not replaced or states not in path.parents  # they hold the replaced sums
    }
    with new_folder(run.folder) as aside:
        for path, file in unchanged.items():
            write_bytes(aside / path, file)
        write_bytes(aside / layout.COMMITMENT, dump(Commitment(commitment)))
        write_bytes(aside / layout.ROWS, dump(rows))
        folder = layout.state_folder(aside, stored.number + 1)
        write_state(folder, retained, state, certificate, [*stored.events, event], description)
    return Run(run.folder, cache=run.cache, notes=(*plan.notes, *notes))


def _replaced(new: RunRows, old: RunRows) -> frozenset[str]:
    """The clients of whom a newer file is here."""
    if not isinstance(new, RunFiles) or not isinstance(old, RunFiles):
        return frozenset()
    replaced = frozenset(new.clients) & set(old.clients)
    for name in sorted(replaced):
        if new.files[name].date <= old.files[name].date:
            raise MismatchError(
                f"A file replaces an older one; that of {name} is of {new.files[name].date}, the "
                f"run's of {old.files[name].date}. Ask for the newest."
            )
    return replaced


def _committed_with(plan: TrainingPlan, run: Run, replaced: frozenset[str]) -> tuple[RunRows, Ids]:
    """The rows of a run and those that join, and the leaves of both; erased ones stay closed."""
    stored = run.newest
    gone = stored.all_rows.held_by(replaced)
    stays = np.ones(len(stored.commitment), bool)
    stays[stored.all_rows.leaves[gone]] = False
    earlier = stored.all_rows.take(~gone)
    earlier = replace(earlier, leaves=(np.cumsum(stays) - 1)[earlier.leaves])
    added = leaves_of(plan.rows, matrix_of(plan.rows, stored.description, run.cache))
    leaves = np.concatenate([stored.commitment[stays], added])
    numbers, commitment = sort_leaves(leaves)
    old = replace(earlier, leaves=numbers[earlier.leaves])
    new = replace(plan.rows, leaves=numbers[len(leaves) - len(added) :])
    return old.joined(new), commitment


def _check_alike(plan: TrainingPlan, run: Run) -> None:
    ours = run.newest.description
    theirs = plan.description
    rows = run.newest.all_rows
    has_targets = rows.targets is not None
    if isinstance(plan.rows, RunFiles) and (
        type(rows) is not RunFiles
        or (rows.outputs, rows.kind) != (plan.rows.outputs, plan.rows.kind)
        or (ours.source, ours.options.normalize) != (theirs.source, theirs.options.normalize)
    ):
        raise MismatchError(
            f"A file that joins is like those of {run.folder.name}: {', '.join(rows.outputs)}, "
            f"{ours.source}, normalized by {ours.options.normalize}; found "
            f"{', '.join(plan.rows.outputs)}, {theirs.source}, {theirs.options.normalize}. "
            "Summarize again alike."
        )
    if (
        type(rows) is not type(plan.rows)
        or ours.read_encoding().digest != theirs.read_encoding().digest
        or has_targets != (plan.rows.targets is not None)
        or (has_targets and plan.rows.outputs != rows.outputs)
    ):
        raise MismatchError(
            f"Who joins needs rows like those of {run.folder.name}, by "
            f"{ours.encoding['backbone']} as {ours.encoding['dtype']}, with the same labels or "
            f"targets; found {theirs.encoding['backbone']} as {theirs.encoding['dtype']}. "
            "Extract them alike."
        )
