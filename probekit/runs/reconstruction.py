"""What the heads before and after a request tell of the rows that it took out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from probekit.cache import DiskStore
from probekit.custody.seals import opened
from probekit.errors import InputError, NotFoundError
from probekit.evaluation.reconstruction import (
    HeadPair,
    RebuiltOutcome,
    RebuiltRequest,
    Reconstruction,
    ReconstructionRate,
    compared_with,
    rate_of,
)
from probekit.federated.sums import add_up
from probekit.federated.trained import Trained
from probekit.linear.design import Design
from probekit.linear.ridge import penalty_of
from probekit.linear.statistics import columns_of
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.result import Result
from probekit.runs.rows import UNLEARN, request_of, rows_at, usable
from probekit.runs.snapshot import snapshot
from probekit.unlearning.request import UnlearnRequest, asked
from probekit.unlearning.rows import remaining_rows

NOISES = (0.0, 1e-4, 1e-3)
TRIAL_STREAM = 64
CANDIDATES = 10_000
"""Among so many rows, the deleted included, what is rebuilt is looked for; of more, some are drawn."""
RETAINED_ROWS, PUBLIC_ROWS = "retained", "public"
MEANS = (
    "Who holds the heads before and after a request of one row, and the curvature of the rest, can compute that row's "
    "embedding. Exact removal does not prevent it: the difference of the heads is what tells.",
    "What follows: collect requests and carry them out together; release heads with noise; keep the old head secret, "
    "and purge it.",
    "The mean embedding alone has a high cosine with every row: read the centred one, and whether the row is found.",
)
SHARED_TERM = "The secret linear term of this run is the same in both heads and cancels: it does not prevent this."

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class TrialRate(Result):
    """Single rows of the current state, each taken out in turn: how often they are found."""

    curvature: str
    noise: float
    rate: ReconstructionRate


@dataclass(frozen=True)
class ReconstructionResult(Result):
    """Every request of a run under attack, and trials of single rows; `left_out` says what could not be attacked."""

    run: Path
    public: str
    requests: tuple[RebuiltRequest, ...]
    trials: tuple[TrialRate, ...]
    left_out: tuple[str, ...]
    meaning: tuple[str, ...]


def reconstruction(
    run: OpenRun,
    *,
    public: str | None = None,
    noise: Sequence[float] = NOISES,
    trials: int = 20,
    seed: int = 0,
) -> ReconstructionResult:
    """Rebuild what requests took out from the heads before and after, and single rows in trials.

    public: a set whose curvature an attacker has; none: the server's rows, where there are some.
    noise: normal noise on every number of both heads, in turn.
    trials: how many single rows of the current state are taken out, one at a time, and rebuilt.
    """
    folder, store = run.folder, run.store
    trained = folder.trained()
    refuse_unlike(trained)
    if any(not scale >= 0 for scale in noise) or trials < 0:
        raise InputError(f"Noise and trials are 0 or more; found {list(noise)} and {trials}.")
    name, known = public_columns(folder, store, public)
    found, left_out = rebuilt_requests(folder, store, public=known, noise=noise, seed=seed)
    rates = _trials(folder, store, known, noise=noise, trials=trials, seed=seed) if trials else ()
    meaning = (*MEANS, *([SHARED_TERM] if trained.objective is not None else []))
    return ReconstructionResult(run.path, name, found, rates, left_out, meaning)


def refuse_unlike(trained: Trained) -> None:
    """Refuse what is not a plain ridge head on embeddings."""
    if not {"plain", "statistics"} <= trained.problem.traits or "targets" in trained.problem.traits:
        raise InputError(
            "Reconstruction is computed for ridge heads of classes on embeddings, without feature scaling or class "
            "weights; this run has another model."
        )


def rebuilt_requests(
    run: RunFolder,
    store: DiskStore,
    *,
    public: Array | None = None,
    noise: Sequence[float] = (0.0,),
    seed: int = 0,
) -> tuple[tuple[RebuiltRequest, ...], tuple[str, ...]]:
    """The rows of every request whose heads before and after are there; and why others were left out.

    public: public rows as columns.
    """
    refuse_unlike(run.trained())
    found, left_out, states = [], [], run.states()
    for entry in run.entries():
        if entry.action != UNLEARN:
            continue
        details: Any = entry.details
        if not {entry.state - 1, entry.state} <= set(states) or not opened(details["request"]):
            left_out.append(f"State {entry.state}: a head, or what was asked for, was purged: nothing to attack.")
            continue
        request = request_of(entry)
        if request.relabelled or request.added:
            left_out.append(f"State {entry.state}: rows were relabelled or taken in, which is not looked at.")
            continue
        outcomes = tuple(_rebuilt(run, store, entry.state, request, public=public, noise=noise, seed=seed))
        if outcomes:
            found.append(RebuiltRequest(entry.state, asked(details["request"]), outcomes))
        else:
            left_out.append(f"State {entry.state}: no client's row was taken out, or no curvature is known.")
    return tuple(found), tuple(left_out)


def _rebuilt(
    run: RunFolder,
    store: DiskStore,
    state: int,
    request: UnlearnRequest,
    *,
    public: Array | None,
    noise: Sequence[float],
    seed: int,
) -> Iterator[RebuiltOutcome]:
    """One request with every curvature at hand and every noise."""
    before, after = run.trained(state - 1), run.trained(state)
    embeddings, partition = rows_at(run, store, state - 1)
    gone = remaining_rows(before, request, embeddings, partition).gone
    deleted = np.unique(np.concatenate([np.empty(0, np.int64), *gone.values()]))
    if not len(deleted):
        return
    stay = np.unique(np.concatenate([partition.clients[name] for name in before.counts]))
    candidates = np.union1d(_some(stay, seed), deleted)
    design = plain_design(before)
    columns = columns_of(embeddings.select(candidates).to_numpy(), design)
    penalties = _penalty(before, before.rows), _penalty(after, after.rows)
    pair = HeadPair(before.params, after.params, penalties[0], penalties[1], design.intercept != "none")
    grams = {}
    statistics = snapshot(run, store, state).statistics
    if statistics is not None:
        grams[RETAINED_ROWS] = add_up(statistics.values(), before.problem.design).dense.total_gram
    if public is not None:
        grams[PUBLIC_ROWS] = public.T @ public * (after.rows / len(public))
    for name, gram in grams.items():
        for scale in noise:
            heads = pair.noisy(scale, seed) if scale else pair
            rebuilt = heads.rebuilt(gram, rows=len(deleted))
            where = np.searchsorted(candidates, deleted)
            yield RebuiltOutcome(name, scale, _compared(rebuilt, columns, where, design))


def _some(rows: Indices, seed: int) -> Indices:
    """At most so many of these rows as are compared with."""
    generator = np.random.Generator(np.random.PCG64([seed, TRIAL_STREAM]))
    return rows if len(rows) <= CANDIDATES else np.sort(generator.permutation(rows)[:CANDIDATES])


def _compared(rebuilt: Array, columns: Array, deleted: Indices, design: Design) -> Reconstruction:
    return compared_with(rebuilt, columns[:, : design.dimension], deleted, signed=design.intercept != "none")


def plain_design(trained: Trained) -> Design:
    """The run's design in float64."""
    design: Design = trained.problem.design
    return replace(design, arithmetic="float64", grid=0.0, per_class=False)


def _penalty(trained: Trained, rows: int) -> Array:
    found: Array = trained.problem.penalty(penalty_of(trained.ridge, trained.scaling, rows))
    return found


def public_columns(run: RunFolder, store: DiskStore, name: str | None = None) -> tuple[str, Array | None]:
    """The public rows as columns, and what they are."""
    trained, rows = run.trained(), None
    refuse_unlike(trained)
    if name is not None:
        rows, what = usable(store.open(name))[0], name
        if rows.spec.digest != trained.head.spec_digest:
            raise InputError(f"{name} was encoded otherwise than the rows of {run.path}. Extract it like those.")
    else:
        embeddings, partition = rows_at(run, store)
        if not len(partition.server):
            return "none: the server has no rows of its own", None
        rows, what = embeddings.select(partition.server), "the server's own"
    return f"{len(rows)} rows of {what}", columns_of(rows.to_numpy(), plain_design(trained))


def _trials(
    run: RunFolder, store: DiskStore, public: Array | None, *, noise: Sequence[float], trials: int, seed: int
) -> tuple[TrialRate, ...]:
    """Single rows taken out exactly, one at a time, from the minimum over the current state's rows.

    With B = Z^T Z + penalty' I the head without z is that of B - z z^T (Sherman-Morrison): one factor serves all.
    """
    trained, (embeddings, partition) = run.trained(), rows_at(run, store)
    statistics = snapshot(run, store).statistics
    if statistics is None or trained.rows < 3:
        raise NotFoundError(f"{run.path} has no statistics, or fewer than 3 rows: no trials can be made of it.")
    sums, design, count = add_up(statistics.values(), trained.problem.design).dense, plain_design(trained), trained.rows
    held = np.unique(np.concatenate([partition.clients[name] for name in trained.counts]))
    rows = embeddings.select(_some(held, seed))
    columns, targets = columns_of(rows.to_numpy(), design), np.eye(design.classes)[rows.labels]
    gram, moment = sums.total_gram, sums.moment
    penalties = [_penalty(trained, number) for number in (count, count - 1)]
    before = linalg.solve(gram + np.diag(penalties[0][:, 0]), moment, assume_a="pos")
    factor = linalg.cho_factor(gram + np.diag(penalties[1][:, 0]))
    whole = linalg.cho_solve(factor, moment)
    found: dict[tuple[str, float], list[Reconstruction]] = {}
    generator = np.random.Generator(np.random.PCG64([seed, TRIAL_STREAM]))
    for trial, row in enumerate(generator.permutation(len(rows))[:trials].tolist()):
        z, y = columns[row], targets[row]
        along = linalg.cho_solve(factor, z)
        start = whole - np.outer(along, y)  # B^-1 (moment - z y^T)
        after = start + np.outer(along, z @ start) / (1 - z @ along)
        pair = HeadPair(before, after, penalties[0], penalties[1], design.intercept != "none")
        grams = {RETAINED_ROWS: gram - np.outer(z, z)}
        if public is not None:
            grams[PUBLIC_ROWS] = public.T @ public * ((count - 1) / len(public))
        for name, known in grams.items():
            for scale in noise:
                heads = pair.noisy(scale, seed + trial) if scale else pair
                outcome = _compared(heads.rebuilt(known), columns, np.array([row]), design)
                found.setdefault((name, scale), []).append(outcome)
    return tuple(TrialRate(name, scale, rate_of(each)) for (name, scale), each in found.items())
