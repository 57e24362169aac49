"""What a verifier has, and what it computes of that once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.asked_look import AskedLook
from probekit.certificates.certificate import Certificate
from probekit.certificates.second import SecondLoss, Sums
from probekit.certificates.second_look import SecondLook
from probekit.certificates.target_look import TargetLook, TargetSums
from probekit.errors import VerificationError
from probekit.federated.federation import Federation
from probekit.linear.design import ClientStats
from probekit.linear.objective import SIGMA
from probekit.models.heads import Head
from probekit.models.problem import problem_of
from probekit.unlearning.products import Products
from probekit.values import EmbeddingSet

AT_HAND = 2**29
"""How many bytes of statistics are held while they are checked and added up."""

Array = NDArray[np.float64]
Look = SecondLook | TargetLook | AskedLook


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a verifier has. Everything is optional; the more there is, the more is proven.

    `head` and `before` are the heads after and before; `statistics` the retained clients'; `embeddings` with
    `rows` (row numbers of each retained client) the cached rows themselves; `clients` answer one gradient
    round; `evaluation` is the set of the certified agreement; `reference` the head compared with;
    `signature` is the one beside the certificate, `public_key` that of the signer one trusts; `objective` the secret
    linear term of the loss, and `objective_before` that of the run before; `sums` are those over all retained clients,
    where these are not told apart; `products` those that the rounds measured.
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
    sums: Sums | None = None
    products: Products | None = None


@dataclass(frozen=True, eq=False)
class Computed:
    """A certificate and the evidence, with what is computed of it once."""

    certificate: Certificate
    evidence: Evidence

    @cached_property
    def problem(self) -> Any:
        """The problem that the head solves with this objective; None without a head."""
        head, objective = self.evidence.head, self.certificate.objective
        if head is None:
            return None
        problem = problem_of(head, objective)
        for name in ("ridge", "scaling", *problem.objective):
            if name not in objective:
                raise VerificationError(f"The objective has no {name}.")
        return problem

    @cached_property
    def term(self) -> Array | None:
        """The secret linear term, where the loss has one and it is at hand."""
        return self.evidence.objective if SIGMA in self.certificate.objective else None

    @cached_property
    def rows(self) -> Mapping[str, NDArray[np.int64]] | None:
        """The retained clients' rows, where all are at hand."""
        given = self.evidence.rows
        if self.evidence.embeddings is None or given is None or set(self.certificate.retained) - set(given):
            return None
        return {name: given[name] for name in self.certificate.retained or given}

    @cached_property
    def at_hand(self) -> list[ClientStats]:
        """The first statistics, as they are read: while somebody has them, the next to ask need not read them."""
        given = self.evidence.statistics or {}
        sizes = [8 * sum(map(math.prod, one.design.shapes)) for one in itertools.islice(given.values(), 1)]
        return [one.loaded for one in itertools.islice(given.values(), AT_HAND // max(sizes, default=1))]

    @cached_property
    def sums(self) -> Sums | None:
        """Those of the statistics as they are given, else of the rows."""
        if "statistics" not in self.problem.traits or "targets" in self.problem.traits:
            return None
        if self.evidence.sums is not None:
            return self.evidence.sums
        if self.evidence.statistics:
            return Sums.of_statistics(self.evidence.statistics)
        held = self.evidence.embeddings
        if self.rows is None or held is None:
            return None
        parts = ((held.embeddings[own], held.labels[own]) for own in self.rows.values() if len(own))
        return Sums.of_rows(self.problem.design, parts)

    @cached_property
    def target_sums(self) -> TargetSums | None:
        """The same of rows with real targets."""
        if "targets" not in self.problem.traits:
            return None
        if self.evidence.statistics:
            return TargetSums.of_statistics(self.evidence.statistics)
        held = self.evidence.embeddings
        if self.rows is None or held is None or held.targets is None:
            return None
        parts = ((held.embeddings[own], held.targets[own]) for own in self.rows.values() if len(own))
        return TargetSums.of_rows(self.problem.design, parts)

    def look(self, params: Array) -> Look | None:
        """Parameters, seen from the retained loss; None: there is nothing to compute it of."""
        objective, hint = self.certificate.objective, self.certificate.curvature
        if self.sums is not None:
            loss = SecondLoss.of(self.sums, objective, term=self.term)
            return SecondLook(loss, params, None if hint is None else hint.value)
        if self.target_sums is not None:
            return TargetLook(self.target_sums, objective, params, None if hint is None else hint.value)
        clients = self.clients
        return None if clients is None else AskedLook.of(params, objective, self.problem, clients, self.term)

    @cached_property
    def clients(self) -> Federation | None:
        """Who answers a gradient round: the clients, or their rows."""
        from probekit.federated.in_process import InProcess

        if not {"plain", "quadratic"} <= self.problem.traits:
            return None
        if self.rows is not None and self.evidence.embeddings is not None:
            return InProcess.of(self.problem, self.evidence.embeddings, self.rows)
        return self.evidence.clients
