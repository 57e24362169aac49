"""Checking a certificate with material of one's own: everything that can be computed again, is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.agreement import Agreement, agreement
from probekit.certificates.bounds import Known, Residual, RetainedQuadratic, SmallestCurvature, summing_error
from probekit.certificates.budgets import check_privacy, check_term
from probekit.certificates.certificate import STATISTICS, Certificate, signed_bytes
from probekit.certificates.certify import bounds_of, known_at, statistics_digest
from probekit.certificates.checks import CLOSE, Check, at_most, close, same
from probekit.custody.signatures import check_signature
from probekit.errors import ProbekitError, VerificationError
from probekit.federated.federation import Federation
from probekit.federated.in_process import InProcess
from probekit.linear.design import ClientStats
from probekit.linear.objective import SIGMA
from probekit.linear.ridge import penalty_of
from probekit.linear.solvers import Cholesky
from probekit.models.heads import Head
from probekit.models.problem import problem_of
from probekit.unlearning.request import UnlearnRequest
from probekit.unlearning.soundness import refuse_unsound
from probekit.values import EmbeddingSet

OTHER_ROUNDING = 1e3
"""How much the rounding terms of a gradient round and of statistics may differ: both bound the same error."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a verifier has. Everything is optional; the more there is, the more is checked.

    `head` and `before` are the heads after and before; `statistics` the retained clients'; `embeddings` with
    `rows` (row numbers of each retained client) the cached rows themselves; `clients` answer one gradient
    round; `evaluation` is the set of the certified agreement; `reference` the head compared with;
    `signature` and `public_key` whose signature is wanted; `objective` the secret linear term of the loss, and
    `objective_before` that of the run before.
    """

    head: Head | None = None
    before: Head | None = None
    statistics: Mapping[str, ClientStats] | None = None
    embeddings: EmbeddingSet | None = None
    rows: Mapping[str, NDArray[np.int64]] | None = None
    clients: Federation | None = None
    evaluation: EmbeddingSet | None = None
    reference: Head | None = None
    signature: Mapping[str, str] | None = None
    public_key: bytes | None = None
    objective: Array | None = None
    objective_before: Array | None = None


def verify(certificate: Certificate, evidence: Evidence) -> list[Check]:
    """Every check that the evidence allows, in the order of the certificate."""
    checks = _said(certificate) + _signed(certificate, evidence) + check_privacy(certificate)
    for name, head, said in (
        ("head after", evidence.head, certificate.after),
        ("head before", evidence.before, certificate.before),
    ):
        if head is not None:
            checks.append(same(name, said.get("head", "none"), head.digest))
    head = evidence.head
    if head is None:
        return checks + _retained(certificate, evidence, None)[2]
    try:
        problem = problem_of(head, certificate.objective)
        penalty_of(certificate.objective["ridge"], certificate.objective["scaling"], 1.0)  # type: ignore[arg-type]
        lacking = set(problem.objective) - set(certificate.objective)
        if lacking:
            raise KeyError(f"no {min(lacking)}")
    except (ProbekitError, KeyError, TypeError, ValueError) as error:
        return [*checks, Check("objective", False, "a problem", str(error))]
    checks += [
        same(name, str(certificate.objective.get(name)), value)
        for name, value in problem.objective.items()
        if isinstance(value, str)
    ]
    statistics, clients, found = _retained(certificate, evidence, problem)
    term = evidence.objective if SIGMA in certificate.objective else None
    checks += found + check_term(certificate, head, shape=problem.shape, term=term, before=evidence.objective_before)
    params = problem.params(head)
    if params.shape == problem.shape:
        if term is not None and term.shape != params.shape:
            return checks
        known = known_at(params, certificate.objective, problem, statistics=statistics, clients=clients, term=term)
        if known is not None and term is None and SIGMA in certificate.objective:
            checks += _curved(certificate, known)
        elif known is not None:
            checks += _numbers(certificate, known, params) + _compared(certificate, evidence, known, problem)
    return checks


def _retained(
    certificate: Certificate, evidence: Evidence, problem: Any
) -> tuple[Mapping[str, ClientStats] | None, Federation | None, list[Check]]:
    """What answers for the retained rows (statistics, or clients), and what was checked of it."""
    checks: list[Check] = []
    given = evidence.statistics
    if given is not None:
        checks.append(_counts(certificate, {name: one.count for name, one in given.items()}))
        if "statistics" in certificate.after:
            checks.append(same("statistics after", certificate.after["statistics"], statistics_digest(given)))
        try:
            for name, one in given.items():
                refuse_unsound(one, name, design=None if problem is None else problem.design)
            checks.append(Check("statistics could be of rows", True, "sound", "sound"))
        except ProbekitError as error:
            return None, None, [*checks, Check("statistics could be of rows", False, "sound", str(error))]
    if problem is None or evidence.embeddings is None or evidence.rows is None:
        return given, evidence.clients, checks
    missing = sorted(set(certificate.retained) - set(evidence.rows))
    if missing:
        return given, None, [*checks, Check("rows of retained clients", False, "all", f"none of {missing[0]}")]
    rows = {name: evidence.rows[name] for name in certificate.retained}
    checks.append(_counts(certificate, {name: len(own) for name, own in rows.items()}))
    clients = InProcess.of(problem, evidence.embeddings, rows)
    if not clients.offers("statistics"):
        return None, clients, checks
    answers = clients.ask("statistics").each()
    found = {one.client: problem.stats(one.arrays) for one in answers}
    anew = {name: found[name] for name in rows}
    if given is not None:
        checks += [_alike(name, given[name], anew[name]) for name in anew if name in given]
    return anew, None, checks


def _said(certificate: Certificate) -> list[Check]:
    """What a certificate says must agree with itself."""
    try:
        forgotten = UnlearnRequest.from_plain(certificate.request).clients
    except (ProbekitError, KeyError, TypeError) as error:
        return [Check("request", False, "a request", str(error))]
    still = [name for name in forgotten if name in certificate.retained]
    said = "none is retained"
    checks = [Check("forgotten clients are gone", not still, said, ", ".join(still) or said)]
    residual, curvature, bounds = certificate.residual, certificate.curvature, certificate.bounds
    if residual is not None and curvature is not None:
        checks += [
            close("bound = residual / curvature", bounds.weights, residual.bound / curvature.value),
            close("residual of all classes", residual.norm, math.hypot(*residual.by_class)),
            close("outputs", bounds.outputs, float(residual.class_bounds.max()) / curvature.value),
        ]
    elif bounds.weights is not None:
        checks.append(Check("bound = residual / curvature", False, f"{bounds.weights:.6g}", "no residual"))
    if certificate.reference is not None and bounds.weights is not None:
        together = bounds.weights + certificate.reference.bound
        checks.append(at_most("distance to the reference", certificate.reference.distance, together))
    return checks


def _signed(certificate: Certificate, evidence: Evidence) -> list[Check]:
    if evidence.public_key is None:
        return []
    wanted = "signed by this key"
    if evidence.signature is None:
        return [Check("signature", False, wanted, "no signature")]
    try:
        check_signature(signed_bytes(certificate), evidence.signature, evidence.public_key)
    except VerificationError as error:
        return [Check("signature", False, wanted, str(error))]
    return [Check("signature", True, wanted, wanted)]


def _counts(certificate: Certificate, counts: Mapping[str, int]) -> Check:
    wanted = dict(certificate.retained)
    listed, found = (f"{len(one)} clients, {sum(one.values())} rows" for one in (wanted, counts))
    return Check("who is retained", dict(counts) == wanted, listed, found)


def _alike(name: str, given: ClientStats, found: ClientStats) -> Check:
    """Statistics as kept against those of the rows: equal to rounding, to the bit in exact arithmetic."""
    error = summing_error(given.design.arithmetic, given.design.dimension, given.count, 1)
    room = 2 * error * (float(np.trace(found.total_gram)) + found.count)
    apart = float(np.linalg.norm(given.gram - found.gram) + np.linalg.norm(given.moment - found.moment))
    equal = np.array_equal(given.class_counts, found.class_counts) and apart <= room
    return Check(f"statistics of client {name}", bool(equal), f"within {room:.3g}", f"{apart:.3g} apart")


def _numbers(certificate: Certificate, known: Known, params: Array) -> list[Check]:
    """Residual, curvature and what follows from them, computed again."""
    checks = []
    by_statistics = certificate.checkable_by == STATISTICS
    if certificate.residual is not None:
        alike = by_statistics == (known.loss is not None)
        checks.append(_residual(certificate.residual, known.residual, 1.01 if alike else OTHER_ROUNDING))
    checks += _curved(certificate, known)
    bound = certificate.bounds.weights
    if known.loss is not None and known.curvature is not None:
        if bound is not None:
            checks.append(_minimum(bound, known.loss, known.curvature.value, params, known.residual.rounding))
        if by_statistics:
            again = bounds_of(known, params, None, free=False)
            room = CLOSE + 4 * known.residual.rounding / known.residual.bound
            checks.append(close("excess loss", certificate.bounds.excess_loss, again.excess_loss, room=min(room, 0.9)))
    return checks


def _residual(said: Residual, found: Residual, rounding: float) -> Check:
    """The claimed residual of every class, within what rounding allows; the claimed rounding, within a factor."""
    passed = len(said.by_class) == len(found.by_class) and all(
        abs(claimed - own) <= hidden + CLOSE * own
        for claimed, own, hidden in zip(
            (*said.by_class, said.norm),
            (*found.by_class, found.norm),
            (*found.rounding_by_class, found.rounding),
            strict=True,
        )
    )
    passed = passed and found.rounding / rounding <= said.rounding <= found.rounding * rounding
    return Check(
        "retained residual",
        passed,
        f"{said.norm:.6g} (rounding {said.rounding:.3g})",
        f"{found.norm:.6g} (rounding {found.rounding:.3g})",
    )


def _curved(certificate: Certificate, known: Known) -> list[Check]:
    """The smallest curvature, where the verifier has what the certifier had: no linear term is needed for it."""
    enough = known.loss is not None or certificate.checkable_by != STATISTICS
    if certificate.curvature is None or not enough:
        return []
    return [_curvature(certificate.curvature, known.curvature)]


def _curvature(said: SmallestCurvature, found: SmallestCurvature | None) -> Check:
    """The claimed smallest curvature must be there; there may be more (statistics know more than the ridge)."""
    if found is None:
        return Check("smallest curvature", False, f"{said.value:.6g}", "none is certain")
    passed = 0 < said.value <= found.value * (1 + CLOSE)
    return Check("smallest curvature", passed, f"{said.value:.6g}", f"at least {found.value:.6g}")


def _minimum(bound: float, loss: RetainedQuadratic, curvature: float, params: Array, rounding: float) -> Check:
    """The minimum itself, found anew: the claimed bound must reach it, but for the minimum's own error."""
    found = Cholesky(tolerance=math.inf).solve(loss.curvature, loss.linear).value
    left = float(np.linalg.norm(loss.curvature @ found - loss.linear))
    gap = float(np.linalg.norm(params - found))
    return at_most("distance to the retained minimum", gap, bound + (left + rounding) / curvature)


def _compared(certificate: Certificate, evidence: Evidence, known: Known, problem: Any) -> list[Check]:
    """The loss before, the evaluation set and the reference head, where they are at hand."""
    checks: list[Check] = []
    head, said = evidence.head, certificate.agreement
    if head is None:
        return checks
    params, change = problem.params(head), certificate.bounds.loss_change
    if change is not None and known.loss is not None and evidence.before is not None:
        fell = _value(known.loss, params) - _value(known.loss, problem.params(evidence.before))
        room = known.residual.rounding * float(np.linalg.norm(evidence.before.params) + np.linalg.norm(params))
        passed = abs(change - fell) <= room + CLOSE * abs(fell)
        checks.append(Check("change of the retained loss", passed, f"{change:.6g}", f"{fell:.6g}"))
    enough = known.loss is not None or certificate.checkable_by != STATISTICS
    if evidence.evaluation is not None and said is not None and known.curvature is not None and enough:
        found = agreement(head, evidence.evaluation, known=known, problem=problem)
        checks.append(_agreed(said, found))
    if evidence.reference is not None and certificate.reference is not None:
        distance = float(np.linalg.norm(params - problem.params(evidence.reference)))
        checks += [
            same("reference head", certificate.reference.head, evidence.reference.digest),
            close("distance measured", certificate.reference.distance, distance),
        ]
    return checks


def _agreed(said: Agreement, found: Agreement) -> Check:
    """A verifier may certify more (by statistics), and a row in a thousand fewer, where rounding decides."""
    enough = said.certified <= found.certified + max(1, found.rows // 1000)
    passed = enough and said.set_digest == found.set_digest
    return Check(
        "certified agreement", passed, f"{said.certified} of {said.rows}", f"{found.certified} of {found.rows}"
    )


def _value(loss: RetainedQuadratic, params: Array) -> float:
    return float((params * (loss.curvature @ params / 2 - loss.linear)).sum())
