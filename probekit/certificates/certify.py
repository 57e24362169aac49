"""From an unlearned run, and what the certifier has, to a certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates import bounds, certificate
from probekit.certificates.agreement import agreement
from probekit.certificates.bounds import Known, SmallestCurvature
from probekit.certificates.certificate import Bounds, Certificate, ReferenceHead
from probekit.certificates.published import concentration, paper_terms
from probekit.certificates.rounds_rows import agreement_by_rounds
from probekit.certificates.target_bounds import excess_of_targets, known_of_targets
from probekit.errors import InputError
from probekit.federated.federation import Federation
from probekit.federated.loss import CommonLoss
from probekit.federated.summation import StatisticsTree
from probekit.federated.trained import Trained
from probekit.linear.design import ClientStats
from probekit.linear.norms import norm
from probekit.linear.objective import SIGMA
from probekit.linear.roots import has_root
from probekit.linear.targets import TargetStats
from probekit.models.heads import Head
from probekit.unlearning.method import Unlearned
from probekit.values import EmbeddingSet, Json, digest

SCALAR_ERROR = 1e-6
"""How far, relatively, a change of the loss may be off that clients told by one number each."""

ONE_ROW = (
    "One row was taken out of a linear head: whoever holds the heads before and after, and the curvature of other "
    "rows, can compute its embedding. Carry requests out together, release heads with noise, or keep the head before "
    "secret."
)
"""What goes with a certificate of a request that takes a single row out."""

Array = NDArray[np.float64]


@np.errstate(over="ignore", invalid="ignore")
def certify(
    before: Trained,
    unlearned: Unlearned,
    *,
    clients: Federation | None = None,
    evaluation: EmbeddingSet | None = None,
    reference: Head | None = None,
    privacy: Mapping[str, Json] | None = None,
) -> Certificate:
    """The certificate of an unlearned run: by its kept statistics, else by a gradient round of `clients`, else none.

    `evaluation` is a set on which the certified agreement is counted; `reference` another head to compare with.
    """
    after, problem = unlearned.trained_after, unlearned.trained_after.problem
    if "quadratic" not in problem.traits:
        return _uncertified(before, unlearned)
    objective = objective_of(after)
    has: dict[str, Any] = {"statistics": after.statistics, "clients": clients, "term": after.objective}
    refuse_left_in(before, unlearned)
    known, found = None, None
    try:
        known = known_at(after.params, objective, problem, **has)
    except InputError as error:  # numbers that float64 cannot bound
        found = Bounds(loss_change=unlearned.loss_change, why=str(error))
    if known is not None and not math.isfinite(known.residual.bound):
        known, found = (
            None,
            Bounds(loss_change=unlearned.loss_change, why="The residual overflows. Scale the embeddings."),
        )
    if found is None:
        moved = norm(before.params) + norm(after.params)
        found = bounds_of(known, after.params, unlearned.loss_change, problem=problem, moved=moved)
    hidden = () if after.objective is None else certificate.TERM_ASSUMPTIONS
    ridge, server = after.mean_ridge(after.rows), None if after.server is None else after.server.statistics
    agreed = compared = chance = by_rounds = None
    unsure: tuple[str, ...] = ()
    if unlearned.one_step and server is not None:
        chance = concentration(server, after.rows, ridge=ridge, step=before.params - after.params)
    if known is not None and known.weights is not None:
        if evaluation is not None and not known.groups:  # only classes can agree
            counted = agreement(after.head, evaluation, known=known, problem=problem)
            agreed = counted if math.isfinite(counted.largest_bound) else None
            by_rounds, unsure = agreement_by_rounds(after, evaluation, known=known, clients=clients)
        if reference is not None:
            other = problem.params(reference)
            own = known_at(other, objective, problem, **has)
            if own is not None and own.weights is not None:
                distance = norm(after.params - other)
                compared = ReferenceHead(reference.digest, own.weights, distance)
    return Certificate(
        request=unlearned.request.plain,
        method=unlearned.method,
        before=digests_of(before),
        after=digests_of(after),
        retained=dict(after.counts),
        objective=objective,
        checkable_by=_checker(known, unlearned),
        bounds=found,
        residual=None if known is None else known.residual,
        curvature=None if known is None else known.curvature,
        agreement=agreed,
        rounds=by_rounds,
        reference=compared,
        paper=()
        if "targets" in problem.traits
        else paper_terms(after.statistics, server, ridge=ridge, solver=unlearned.solution.method),
        concentration=chance,
        privacy=privacy,
        warnings=(*unlearned.warnings, *unsure),
        assumptions=(*certificate.ASSUMPTIONS, *problem.assumptions, *hidden),
        caveats=(*certificate.CAVEATS, *([ONE_ROW] if _one_row(before, unlearned) else [])),
    )


def _uncertified(before: Trained, unlearned: Unlearned) -> Certificate:
    """What was done, by whom it was asked and who stays; of a loss that is not quadratic nothing is bounded."""
    after = unlearned.trained_after
    refuse_left_in(before, unlearned)
    return Certificate(
        request=unlearned.request.plain,
        method=unlearned.method,
        before=digests_of(before),
        after=digests_of(after),
        retained=dict(after.counts),
        objective=_told_loss(after),
        checkable_by=certificate.SERVER,
        bounds=Bounds(why=certificate.NOT_QUADRATIC),
        warnings=unlearned.warnings,
        assumptions=(
            *certificate.ASSUMPTIONS,
            certificate.NOT_QUADRATIC,
            *(() if after.objective is None else certificate.TERM_ASSUMPTIONS),
        ),
    )


def _one_row(before: Trained, unlearned: Unlearned) -> bool:
    """Whether a single row of a head on embeddings is all that was taken out."""
    after, request = unlearned.trained_after, unlearned.request
    alone = before.rows - after.rows == 1 and not (request.relabelled or request.added)
    return alone and "statistics" in after.problem.traits


def objective_of(trained: Trained) -> dict[str, Json]:
    """What determines the loss besides the rows, in plain values; heads that minimise no ridge loss are refused."""
    if "quadratic" not in trained.problem.traits:
        raise InputError(certificate.NOT_QUADRATIC)
    if "minimum" not in trained.problem.traits:
        raise InputError(
            "A head whose classes were normalised is no minimum of a loss, so no residual bounds it. Certify it by "
            "comparing its digest with retraining, in exact arithmetic."
        )
    return _told_loss(trained)


def _told_loss(trained: Trained) -> dict[str, Json]:
    sigma = {} if trained.objective is None else {SIGMA: trained.head.recipe[SIGMA]}
    return {"ridge": trained.ridge, "scaling": trained.scaling, **trained.problem.objective, **sigma}


def _free(problem: Any) -> bool:
    """Whether the ridge leaves a parameter out."""
    return bool((problem.penalty(1.0) == 0).any())


def known_at(
    params: Array,
    objective: Mapping[str, Any],
    problem: Any,
    *,
    statistics: Mapping[str, ClientStats] | None = None,
    clients: Federation | None = None,
    term: Array | None = None,
) -> Known | None:
    """What statistics, or a gradient round, tell of the retained loss (with its linear `term`) at these parameters."""
    if statistics is not None:
        total, design = StatisticsTree.of(statistics).total, problem.design
        if isinstance(total, TargetStats):
            return known_of_targets(params, objective, total, [one.count for one in statistics.values()])
        few = [one.count for one in statistics.values() if has_root(one.count, design.classes, design)]
        how: Any = {"parts": len(statistics), "roots": max(few, default=0), "term": term}
        loss = bounds.quadratic(total, objective, **how)
        sure = bounds.convexity(loss)
        return Known(bounds.residual(loss, params), sure if sure.value > 0 else None, loss)
    if clients is None or "plain" not in problem.traits:
        return None
    counts = [*clients.counts.values()]
    ridge = objective["ridge"] / (sum(counts) if objective["scaling"] == "sum" else 1)
    gradient = CommonLoss(clients, problem, ridge, precision="float64").gradient(params)
    if term is not None:
        gradient = gradient + term / sum(counts)
    scales = clients.ask("scales").total().values
    found = bounds.asked_residual(
        gradient, params, problem=problem, ridge=ridge, counts=counts, scales=scales, term=term
    )
    held = ridge > 0 and not _free(problem)
    least = SmallestCurvature(ridge * (1 - bounds.gamma(16)), "ridge") if held else None
    return Known(found, least, gradient=gradient)


def bounds_of(
    known: Known | None, params: Array, loss_change: float | None, *, problem: Any, moved: float = 0.0
) -> Bounds:
    """The bounds that follow from what is known, or why there are none; `moved`: the size of both heads' parameters."""
    rounding = None if loss_change is None else SCALAR_ERROR * abs(loss_change)
    if known is None:
        why = "Nobody who holds retained rows was asked: a gradient round or statistics are needed for a bound."
        return Bounds(loss_change=loss_change, loss_rounding=rounding, why=why)
    if rounding is not None:
        rounding += known.residual.rounding * moved
    if known.weights is None or known.curvature is None:
        why = "The ridge is 0 or rounding is as large as the smallest curvature: no bound holds."
        if _free(problem) and known.loss is None and not known.groups:
            why = "A free intercept is not held by the ridge: a bound needs the statistics' smallest curvature."
        return Bounds(loss_change=loss_change, loss_rounding=rounding, why=why)
    reach, room = _reach(problem, known), 1 + bounds.gamma(8)
    return Bounds(
        weights=known.weights * room,
        excess_loss=excess_of_targets(known, params)
        if known.groups
        else bounds.excess_loss(known.residual, known.curvature.value, loss=known.loss, params=params),
        outputs=None if reach is None else reach * float(known.residual.class_bounds.max()) / known.curvature.value,
        loss_change=loss_change,
        loss_rounding=rounding,
    )


def _reach(problem: Any, known: Known) -> float | None:
    """How much longer than itself a row of norm 1 can be to the parameters; None: classes share no columns."""
    if "statistics" not in problem.traits:
        return None
    if problem.design.intercept != "none":
        return math.sqrt(2) * (1 + bounds.gamma(8))
    centre = None if known.loss is None else known.loss.centre
    return (1 + (0.0 if centre is None else norm(centre))) * (1 + bounds.gamma(problem.shape[0] + 8))


def refuse_left_in(before: Trained, unlearned: Unlearned) -> None:
    """Refuse a result whose counts or statistics are not those of exactly the clients that the request leaves."""
    after, request = unlearned.trained_after, unlearned.request
    left = set(request.remaining(before))
    left -= {name for name in left - set(after.counts) if request.may_empty(name, before.counts.get(name, 0))}
    if set(after.counts) != left or (after.statistics is not None and set(after.statistics) != left):
        wrong = sorted(left ^ set(after.counts) or left ^ set(after.statistics or ()))
        raise InputError(
            f"The method {unlearned.method} was to leave {len(left)} clients and differs in {wrong[0]}: nothing is "
            "certified. Mend the method (`Removal.finish` drops what knows the forgotten)."
        )
    if before.statistics is None or after.statistics is None or request.by_row:
        return
    for name in left & set(before.statistics):
        kept, found = before.statistics[name], after.statistics[name]
        if found is not kept and found.digest != kept.digest:
            raise InputError(
                f"The method {unlearned.method} changed the statistics of client {name}, who was to stay as it is: "
                "nothing is certified. Mend the method."
            )


def digests_of(trained: Trained) -> dict[str, str]:
    """The digests that name a run's head and, where kept, its statistics."""
    found = {"head": trained.head.digest}
    if trained.statistics is not None:
        found["statistics"] = statistics_digest(trained.statistics)
    return found


def statistics_digest(statistics: Mapping[str, ClientStats]) -> str:
    """The sha256 that names all clients' statistics together."""
    return digest({name: one.digest for name, one in statistics.items()})


def _checker(known: Known | None, unlearned: Unlearned) -> str:
    if known is not None:
        return certificate.STATISTICS if known.loss is not None or known.groups else certificate.GRADIENT
    return certificate.SCALAR if unlearned.loss_change is not None else certificate.SERVER
