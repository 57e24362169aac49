"""The certified rows of a set, counted by the verifier's own route: from sums, or where clients answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.agreement import Agreement, RoundsAgreement
from probekit.certificates.asked_look import AskedLook
from probekit.certificates.claimed_rows import judge_rows, kept_and_lost
from probekit.certificates.evidence import Computed, Look
from probekit.certificates.rounds_look import RoundsLook
from probekit.certificates.second_look import SecondLook
from probekit.certificates.verdicts import FALSE, INTACT, PROVEN, Finding, same, unproven
from probekit.errors import VerificationError
from probekit.models.problem import ScoredRows

SURER = "numbers that rounding spoils less"
PRODUCTS = "the products that the rounds measured, which the run keeps, and the retained clients' answers or rows"

Array = NDArray[np.float64]


def judge_agreement(said: Agreement, look: Look, bench: Computed) -> Finding:
    """Whether so many rows keep their class: by sums where there are any, else by answers."""
    claimed, rows, head = f"{said.certified} of {said.rows}", bench.evidence.evaluation, bench.evidence.head
    if rows is None or head is None:
        return unproven("agreement", claimed, f"the set {said.set_digest[:16]} that rows were counted in")
    if (rows.digest, len(rows)) != (said.set_digest, said.rows):
        return Finding("agreement", FALSE, said.set_digest[:16], rows.digest[:16])
    if isinstance(look, AskedLook):
        return _asked(said, look, bench)
    if not isinstance(look, SecondLook):
        return unproven("agreement", claimed, "classes: numbers have no margins")
    return judge_rows(said, look, head, rows, bench.problem.design)


def _asked(said: Agreement, look: AskedLook, bench: Computed) -> Finding:
    """Whether so many rows keep their class by the distance alone, and scores are off by no more than is claimed."""
    certified, rows, sizes = 0, 0, [np.zeros(0)]
    for block in _blocks(bench):
        leads, needed, largest = _plainly(block, look)
        certified, rows = certified + int((leads > needed).all(axis=1).sum()), rows + len(leads)
        sizes.append(largest)
    every = np.concatenate(sizes)
    proven = max(said.certified, said.plain, said.curved or 0) <= certified
    if len(every):
        proven = proven and bool(np.median(every) <= said.median_bound and every.max() <= said.largest_bound)
    claimed, found = f"{said.certified} of {said.rows}", f"at least {certified} of {rows}"
    return Finding("agreement", PROVEN if proven else INTACT, claimed, found, "" if proven else SURER)


def judge_rounds(said: RoundsAgreement, look: Look, bench: Computed) -> list[Finding]:
    """Whether so many rows keep their class, and whether products are what clients answer."""
    rows, given = bench.evidence.evaluation, bench.evidence.products
    named = unproven("products", said.products[:16], PRODUCTS)
    if given is not None:
        named = same("products", said.products, given.digest)
    second = None
    if given is not None and bench.clients is not None:
        params = bench.problem.params(bench.evidence.head)
        asked = look
        if not isinstance(asked, AskedLook):
            asked = AskedLook.of(params, bench.certificate.objective, bench.problem, bench.clients, bench.term)
        second = RoundsLook(asked, params, bench.problem, bench.clients, given)
        named = _true(said, second, named)
    claimed = f"{said.certified} of {said.rows}"
    if said.version != 1:
        return [named, unproven("rounds", claimed, "a newer probekit")]
    if rows is None:
        return [named, unproven("rounds", claimed, f"the set {said.set_digest[:16]} that rows were counted in")]
    if (rows.digest, len(rows)) != (said.set_digest, said.rows):
        return [named, Finding("rounds", FALSE, said.set_digest[:16], rows.digest[:16])]
    if isinstance(look, SecondLook):
        return [named, _by_sums(said, look, bench)]
    try:
        return [named, unproven("rounds", claimed, PRODUCTS) if second is None else _by_answers(said, second, bench)]
    except VerificationError as error:  # of the products: the other claims stand for themselves
        return [named, unproven("rounds", claimed, str(error))]


def _by_sums(said: RoundsAgreement, look: SecondLook, bench: Computed) -> Finding:
    """Sums know the minimum itself: products are not needed."""
    head, rows = bench.evidence.head, bench.evidence.evaluation
    assert head is not None
    assert rows is not None
    kept, lost = kept_and_lost(look, head, rows, bench.problem.design)
    most, could = max(said.certified, said.plain), len(rows) - lost
    verdict = FALSE if most > could else PROVEN if most <= kept else INTACT
    found = f"{kept} to {could} of {len(rows)}"
    return Finding("rounds", verdict, f"{said.certified} of {said.rows}", found, SURER if verdict == INTACT else "")


def _by_answers(said: RoundsAgreement, look: RoundsLook, bench: Computed) -> Finding:
    certified = 0
    for block in _blocks(bench):
        leads, needed, _ = _plainly(block, look.look)
        certified += int(((leads > needed).all(axis=1) | look.certain(block)).sum())
    proven = max(said.certified, said.plain) <= certified
    claimed, found = f"{said.certified} of {said.rows}", f"at least {certified} of {said.rows}"
    return Finding("rounds", PROVEN if proven else INTACT, claimed, found, "" if proven else SURER)


def _true(said: RoundsAgreement, look: RoundsLook, named: Finding) -> Finding:
    """The finding on the products: those that were certified with, and what clients answer when asked again."""
    if named.verdict == FALSE:
        return named
    try:
        many = look.pairs[0].shape[1]
    except VerificationError as error:
        return Finding("products", FALSE, named.claimed, str(error))
    least, most = look.error
    claimed = f"off by at most {said.error:.3g}"
    if not least <= max(said.error, 0.0) * np.sqrt(many):
        return Finding("products", FALSE, claimed, f"mixtures are off by {least:.3g}")
    return Finding("products", PROVEN, named.claimed, f"off by at most {most:.3g} in all")


def _blocks(bench: Computed) -> Iterator[ScoredRows]:
    blocks: Iterator[ScoredRows] = bench.problem.scored(bench.evidence.head, bench.evidence.evaluation)
    return blocks


def _plainly(block: ScoredRows, look: AskedLook) -> tuple[Array, Array, Array]:
    """Leads, the lead that the distance alone asks for, and how far a row's scores can be off."""
    top, every = block.scores.argmax(axis=1), np.arange(len(block.scores))
    leads = block.scores[every, top][:, None] - block.scores
    leads[every, top] = np.inf
    highs: list[Any] = [one.high for one in look.residuals()]
    away = np.array([np.inf if not look.ridge or one is None else float(one / look.ridge) for one in highs])
    if block.rows is None:
        assert block.apart is not None
        assert block.norms is not None
        return leads, block.apart * away[-1], block.norms.max(axis=1) * away[-1]
    norms = np.linalg.norm(block.rows, axis=1) * (1 + 2.0**-40)
    off = np.outer(norms, away[:-1])
    strayed = 2.0**-44 * np.abs(block.scores).max(axis=1, keepdims=True)
    return leads, off + off[every, top][:, None] + strayed, off.max(axis=1)
