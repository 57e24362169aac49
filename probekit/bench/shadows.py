"""Membership after unlearning, by many trainings on random halves of the rows (shadows).

U-LiRA (Hayes et al. 2024): of each forgotten row, are heads that unlearned it told from heads that
never saw it, by the likelihood ratio of its margin? KLoM (Georgiev et al. 2024): how far are the
margins of unlearned heads from those of retrained ones, in KL divergence, row by row?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from probekit.arrays import Array, Indices, Json
from probekit.bench.training import Training
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.federated.federation import Federation, InProcess
from probekit.federated.state import State
from probekit.linear.model import LinearModel
from probekit.linear.stats import normalized
from probekit.objective import scores
from probekit.progress import Progress, Step, silent
from probekit.registry import configured
from probekit.runs.run import RunData, single_thread
from probekit.unlearning.removal import Removal, Request, unlearn

SHADOWS = 64
STREAM = 42
FALSE_POSITIVES = 0.01


@dataclass(frozen=True, eq=False)
class Shadows:
    """Margins of heads, (shadows, rows), and whether a head's half had the row.

    points: the rows of the forgotten client, then the test rows, which no half has.
    """

    unlearned: Mapping[str, Array]
    retrained: Array
    other_retrained: Array
    was_member: NDArray[np.bool_]
    forgotten: Indices
    test: Indices


def draw_shadows(
    training: Training,
    methods: tuple[str, ...],
    *,
    count: int = SHADOWS,
    progress: Progress = silent,
) -> Shadows:
    """Train, unlearn and retrain on `count` halves of the rows; retrain on as many others."""
    newest = training.run.newest
    data = RunData.of(newest.all_rows, newest.description, training.cache)
    options = newest.description.options
    model = newest.state.model
    if not isinstance(model, LinearModel) or data.test is None:
        raise InputError("Shadows need a head and test rows; found a network, or none. Use a head.")
    sets = {
        name: normalized(rows, options.normalize)
        for name, rows in data.rows.client_sets(data.matrix, data.encoding, data.classes).items()
    }
    leaver = sets[training.client]
    points = [leaver, data.test]
    generator = np.random.Generator(np.random.PCG64([training.seed, STREAM]))
    unlearned: dict[str, list[Array]] = {method: [] for method in methods}
    retrained: list[Array] = []
    others: list[Array] = []
    members: list[NDArray[np.bool_]] = []
    with single_thread():
        for number in range(count):
            halves, is_member = _halves(sets, generator)
            federation = Federation.of(InProcess(halves), model)
            state = options.trainer().train(federation, ridge=options.setting())
            removal = Removal.of(
                state,
                Request(frozenset({training.client})),
                federation,
                server=data.server(model),
            )
            for method in methods:
                after = state
                if method != "nothing":
                    after = unlearn(configured(method), removal)
                unlearned[method].append(_margins(after, points))
            retrained.append(_margins(_retrained(federation, state, training.client), points))
            others_half = Federation.of(InProcess(_halves(sets, generator)[0]), model)
            others.append(_margins(_retrained(others_half, state, training.client), points))
            members.append(is_member[training.client])
            progress(Step("shadows", number + 1, count))
    size = len(leaver)
    return Shadows(
        {method: np.array(margins) for method, margins in unlearned.items()},
        np.array(retrained),
        np.array(others),
        np.array(members),
        np.arange(size),
        np.arange(size, size + len(data.test)),
    )


def _halves(
    sets: Mapping[str, EmbeddingSet], generator: np.random.Generator
) -> tuple[dict[str, EmbeddingSet], dict[str, NDArray[np.bool_]]]:
    """A random half of each client's rows, and which rows those are."""
    halves = {}
    is_member = {}
    for name, rows in sets.items():
        chosen = generator.permutation(len(rows)) < max(1, len(rows) // 2)
        halves[name] = rows.take(np.flatnonzero(chosen))
        is_member[name] = chosen
    return halves, is_member


def _retrained(federation: Federation, state: State, client: str) -> State:
    setting = state.ridge_choice.setting
    return state.trainer.train(federation.without([client]), ridge=setting)


def _margins(state: State, parts: list[EmbeddingSet]) -> Array:
    """The score of the true class above the largest of the others."""
    margins = []
    for rows in parts:
        values = scores(state.model.outputs(rows), state.params)
        assert rows.labels is not None
        index = np.arange(len(rows))
        true = values[index, rows.labels].copy()
        values[index, rows.labels] = -np.inf
        margins.append(true - values.max(axis=1))
    return np.concatenate(margins)


def u_lira(margins: Array, was_member: NDArray[np.bool_]) -> tuple[float, float]:
    """The area under the ROC curve, and the true positives at 1 % of false ones.

    margins, was_member: (shadows, rows). Each head is judged by Gaussians of all others: a mean for
    each row, inside and outside, and one variance for all.
    """
    ratios = np.empty(margins.shape)
    for shadow in range(len(margins)):
        others = np.arange(len(margins)) != shadow
        inside = np.where(was_member[others], margins[others], np.nan)
        outside = np.where(was_member[others], np.nan, margins[others])
        means = [np.nanmean(part, axis=0) for part in (inside, outside)]
        spread = np.nanmean([np.nanvar(part, axis=0, ddof=1) for part in (inside, outside)])
        distance = [np.square(margins[shadow] - mean) for mean in means]
        ratios[shadow] = (distance[1] - distance[0]) / (2 * spread)
    known = np.isfinite(ratios)
    false, true, _ = roc_curve(was_member[known], ratios[known])
    return float(roc_auc_score(was_member[known], ratios[known])), float(
        np.interp(FALSE_POSITIVES, false, true)
    )


def klom(margins: Array, reference: Array) -> float:
    """The mean over rows of the KL divergence of Gaussians: margins against the others'."""
    means = margins.mean(axis=0) - reference.mean(axis=0)
    variances = margins.var(axis=0, ddof=1)
    others = reference.var(axis=0, ddof=1)
    divergence = 0.5 * (np.log(others / variances) + (variances + means**2) / others - 1)
    return float(divergence.mean())


def membership(shadows: Shadows) -> dict[str, dict[str, Json]]:
    """U-LiRA and KLoM of every method, and of retraining: the floor of both."""
    rows = {**shadows.unlearned, "retrain": shadows.retrained}
    table: dict[str, dict[str, Json]] = {}
    for name, margins in rows.items():
        auc, hits = u_lira(margins[:, shadows.forgotten], shadows.was_member)
        table[name] = {
            "U-LiRA, AUC": auc,
            "U-LiRA, true positives at 1 %": hits,
            "KLoM, forgotten rows": _klom_at(margins, shadows, shadows.forgotten),
            "KLoM, test rows": _klom_at(margins, shadows, shadows.test),
        }
    return table


def _klom_at(margins: Array, shadows: Shadows, rows: Indices) -> float:
    return klom(margins[:, rows], shadows.other_retrained[:, rows])
