"""Where claims of a certificate meet the evidence: what came of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.certificates.budgets import check_release, check_term
from probekit.certificates.certificate import NOT_QUADRATIC
from probekit.certificates.evidence import Computed, Look
from probekit.certificates.judged_rows import judge_agreement, judge_rounds
from probekit.certificates.privacy import NOISE_RECIPE
from probekit.certificates.second import SecondLoss, Sums
from probekit.certificates.second_look import Range, SecondLook
from probekit.certificates.target_look import TargetLook, apart_from_rows
from probekit.certificates.verdicts import (
    FALSE,
    INTACT,
    PROVEN,
    Finding,
    at_least,
    at_most,
    same,
    stated,
    unproven,
)
from probekit.custody.seals import opened
from probekit.errors import ProbekitError
from probekit.linear.design import ClientStats
from probekit.linear.objective import SIGMA
from probekit.linear.targets import TargetStats
from probekit.models.heads import Head
from probekit.unlearning.soundness import refuse_unsound
from probekit.values import digest

HEAD = "the head that it is about"
SUMS = "the retained clients' statistics or rows, or a gradient round of these clients"
ROWS = "the retained clients' rows"


@dataclass(frozen=True, eq=False)
class Bench(Computed):
    """Judges each claim."""

    def findings(self) -> list[Finding]:
        """All claims that need more than the certificate itself."""
        found = [*self._heads(), *self._retained()]
        try:
            problem = self.problem
            if problem is not None:
                found += self._objective()
        except (ProbekitError, KeyError, TypeError, ValueError) as error:
            return [*found, Finding("objective", FALSE, "a problem", str(error))]
        if problem is None:
            return [*found, *(unproven(name, said, HEAD) for name, said in self._numbers())]
        if "quadratic" not in problem.traits:
            found.append(unproven("distance", NOT_QUADRATIC, "a ridge loss of a head or of a linearized network"))
        try:
            return [*found, *self._judged()]
        except (ProbekitError, KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
            return [*found, *(unproven(name, said, str(error)) for name, said in self._numbers())]

    def _heads(self) -> list[Finding]:
        found = []
        for name, head, said in (
            ("head", self.evidence.head, self.certificate.after),
            ("before", self.evidence.before, self.certificate.before),
        ):
            if name == "head" and head is not None and NOISE_RECIPE[0] in head.recipe:
                found.append(check_release(self.certificate, head))
                continue
            if not opened(said):
                found.append(unproven(name, "sealed", "the opening, unless it was erased"))
                continue
            claimed = str(said.get("head", "none"))
            wanted = HEAD if name == "head" else "the head before"
            found.append(same(name, claimed, head.digest) if head is not None else unproven(name, claimed[:16], wanted))
        return found

    def _objective(self) -> list[Finding]:
        problem, said = self.problem, self.certificate.objective
        wrong = [
            name for name, value in problem.objective.items() if isinstance(value, str) and str(said.get(name)) != value
        ]
        head, design = self.evidence.head, getattr(problem, "design", None)
        if head is not None and design is not None:
            told = {"intercept": design.intercept, "fit_view": str(said.get("view"))}
            wrong += [name for name, value in told.items() if head.recipe.get(name, value) != value]
        found = [stated("objective", not wrong, "that of the head", wrong[0] if wrong else "that of the head")]
        if head is not None and problem.params(head).shape != problem.shape:
            found.append(Finding("objective", FALSE, f"parameters {problem.shape}", f"{problem.params(head).shape}"))
        return found + check_term(
            self.certificate, head, shape=problem.shape, term=self.term, before=self.evidence.objective_before
        )

    def _retained(self) -> list[Finding]:
        """Who is retained, with how many rows, and whether the statistics are theirs."""
        numbers = self.certificate.retained_numbers
        claimed = "{} clients, {} rows".format(*numbers)
        given, found = self.evidence.statistics, []
        counts: Mapping[str, int] | None = None
        if given is not None:
            counts = {name: one.count for name, one in given.items()}
        if self.rows is not None:
            counts = {name: len(own) for name, own in self.rows.items()}
        elif self.evidence.rows is not None:
            missing = sorted(set(self.certificate.retained) - set(self.evidence.rows))
            return [Finding("retained", FALSE, claimed, f"no rows of {missing[0]}")] if missing else []
        if counts is None:
            found.append(unproven("retained", claimed, ROWS))
        else:
            seen = f"{len(counts)} clients, {sum(counts.values())} rows"
            named = self.certificate.counted is None
            same_numbers = (len(counts), sum(counts.values())) == numbers
            wrong = counts != dict(self.certificate.retained) if named else not same_numbers
            verdict = FALSE if wrong else PROVEN if self.rows is not None and named else INTACT
            found.append(Finding("retained", verdict, claimed, seen, ROWS if verdict == INTACT else ""))
        return found + self._statistics()

    def _statistics(self) -> list[Finding]:
        given, claimed = self.evidence.statistics, self.certificate.after.get("statistics")
        if claimed is None:
            return []
        if given is None:
            return [unproven("statistics", claimed[:16], "the kept statistics, and the rows that they are of")]
        found = digest({name: one.digest for name, one in given.items()})
        if found != claimed:
            return [same("statistics", claimed, found)]
        try:
            _ = self.at_hand
            for name, one in given.items():
                refuse_unsound(one, name, design=None if self.evidence.head is None else self.problem.design)
        except (ProbekitError, KeyError, TypeError, ValueError) as error:
            return [Finding("statistics", FALSE, "sums of rows", str(error))]
        if self.rows is None or self.evidence.embeddings is None or self.evidence.head is None:
            return [Finding("statistics", INTACT, claimed[:16], "whole, and possible", ROWS)]
        try:
            return [self._of_rows(given)]
        except ProbekitError as error:
            return [unproven("statistics", claimed[:16], str(error))]

    def _of_rows(self, given: Mapping[str, ClientStats]) -> Finding:
        """Whether statistics are those of the rows, to the rounding of sums (to the bit on a grid)."""
        held, rows = self.evidence.embeddings, self.rows
        assert held is not None
        assert rows is not None
        worst = 0.0
        for name, one in given.items():
            own = rows.get(name, np.zeros(0, np.int64))
            sent = one.loaded
            if isinstance(sent, TargetStats):
                off = None if held.targets is None else apart_from_rows(sent, held.embeddings[own], held.targets[own])
                if off is None:
                    return Finding("statistics", FALSE, "those of the rows", f"client {name} knows other targets")
                apart, room = off[0], summing_room("float64", one.count) * off[1]
                if not apart <= room:
                    return Finding("statistics", FALSE, f"within {room:.3g} of the rows'", f"{name}'s: {apart:.3g} off")
                worst = max(worst, apart)
                continue
            mine = Sums.of_rows(one.design, [(held.embeddings[own], held.labels[own])] if len(own) else [])
            if not len(own) or not np.array_equal(mine.counts, one.class_counts):
                return Finding("statistics", FALSE, "those of the rows", f"client {name} has other classes")
            gram, moment = np.ldexp(mine.gram.high, 2 * mine.half), np.ldexp(mine.moment.high, mine.half)
            apart = float(np.linalg.norm(one.gram - gram) + np.linalg.norm(one.moment - moment))
            energy = float(np.trace(np.ldexp(mine.total.high, 2 * mine.half))) + one.count
            room = summing_room(one.design.arithmetic, one.count) * energy
            if not apart <= room:
                return Finding(
                    "statistics", FALSE, f"within {room:.3g} of the rows'", f"client {name}'s are {apart:.3g} off"
                )
            worst = max(worst, apart)
        return Finding("statistics", PROVEN, "those of the rows", f"{worst:.3g} apart")

    def _numbers(self) -> list[tuple[str, str]]:
        """The claims that are numbers, and how they read."""
        said = self.certificate
        every: dict[str, Any] = {
            "residual": None if said.residual is None else said.residual.bound,
            "curvature": None if said.curvature is None else said.curvature.value,
            "weights": said.bounds.weights,
            "excess-loss": said.bounds.excess_loss,
            "outputs": said.bounds.outputs,
            "loss-change": said.bounds.loss_change,
            "agreement": None if said.agreement is None else said.agreement.certified,
            "rounds": None if said.rounds is None else said.rounds.certified,
            "reference": None if said.reference is None else said.reference.distance,
        }
        return [(name, f"{value:.6g}") for name, value in every.items() if value is not None]

    def _judged(self) -> list[Finding]:
        head = self.evidence.head
        assert head is not None
        look, said, bounds = self.look(self.problem.params(head)), self.certificate, self.certificate.bounds
        if look is None:
            return [unproven(name, text, SUMS) for name, text in self._numbers()]
        found = self._biased(head)
        if said.curvature is not None:
            found.append(at_least("curvature", said.curvature.value, look.curvature()))
        if SIGMA in said.objective and self.term is None:  # every head is the minimum for some term
            rest = [(name, text) for name, text in self._numbers() if name != "curvature"]
            return [*found, *(unproven(name, text, "the secret linear term of the loss") for name, text in rest)]
        found += self._residual(look)
        upper: list[tuple[str, float | None, Callable[[], Range]]] = [
            ("weights", bounds.weights, look.distance),
            ("excess-loss", bounds.excess_loss, look.excess),
        ]
        if isinstance(look, SecondLook | TargetLook):
            upper.append(("outputs", bounds.outputs, look.outputs))
        elif bounds.outputs is not None:
            found.append(unproven("outputs", f"{bounds.outputs:.6g}", "the retained clients' statistics or rows"))
        found += [at_most(name, claim, truth()) for name, claim, truth in upper if claim is not None]
        return [*found, *self._change(look), *self._agreement(look), *self._reference(look)]

    def _biased(self, head: Head) -> list[Finding]:
        """Where the design has no bias, a head's last row must be what its centring makes of it."""
        design = getattr(self.problem, "design", None)
        if design is None or design.intercept != "none" or len(head.params) != design.dimension + 1:
            return []
        bias, wanted = head.params[-1], np.zeros(head.params.shape[1])
        room = 0.0
        if self.sums is not None and self.certificate.objective["view"] != "none":
            centre = SecondLoss.of(self.sums, self.certificate.objective).centre
            assert centre is not None
            centre = np.ldexp(centre, self.sums.half)
            wanted = -(centre @ head.params[:-1])
            room = 1e-12 * float(np.linalg.norm(centre)) * float(np.linalg.norm(head.params[:-1]))
        off = float(np.abs(bias - wanted).max())
        return [] if off <= room else [Finding("head", FALSE, "a bias that its centring gives", f"{off:.3g} off")]

    def _residual(self, look: Look) -> list[Finding]:
        said = self.certificate.residual
        if said is None:
            return []
        truths = look.residuals()
        if len(said.by_class) != len(truths) - 1 or len(said.rounding_by_class) != len(truths) - 1:
            return [Finding("residual", FALSE, f"{len(said.by_class)} classes", f"{len(truths) - 1} classes")]
        claims = [a + b for a, b in zip(said.by_class, said.rounding_by_class, strict=True)] + [said.bound]
        found = [at_most("residual", claim, truth) for claim, truth in zip(claims, truths, strict=True)]
        worst = [one for verdict in (FALSE, INTACT) for one in found if one.verdict == verdict]
        return [worst[0] if worst else found[-1]]

    def _change(self, look: Look) -> list[Finding]:
        bounds, before = self.certificate.bounds, self.evidence.before
        if bounds.loss_change is None:
            return []
        claimed = f"{bounds.loss_change:.6g}"
        if before is None or not isinstance(look, SecondLook | TargetLook):
            return [unproven("loss-change", claimed, "the head before and the retained clients' statistics or rows")]
        truth = look.change(self.problem.params(before))
        low, high = (bounds.loss_change + sign * (bounds.loss_rounding or 0.0) for sign in (-1, 1))
        if truth.high is None:
            return [unproven("loss-change", claimed, "numbers that rounding spoils less")]
        inside = low <= truth.low and truth.high <= high
        outside = truth.high < low or truth.low > high
        verdict = PROVEN if inside else FALSE if outside else INTACT
        wanted = "" if verdict != INTACT else "numbers that rounding spoils less"
        return [Finding("loss-change", verdict, claimed, str(truth), wanted)]

    def _agreement(self, look: Look) -> list[Finding]:
        said, measured = self.certificate.agreement, self.certificate.rounds
        found = [] if said is None else [judge_agreement(said, look, self)]
        return found if measured is None else [*found, *judge_rounds(measured, look, self)]

    def _reference(self, look: Look) -> list[Finding]:
        said, other = self.certificate.reference, self.evidence.reference
        if said is None:
            return []
        if other is None:
            return [unproven("reference", f"{said.distance:.6g}", f"the head {said.head[:16]} compared with")]
        if other.digest != said.head:
            return [same("reference", said.head, other.digest)]
        params, head = self.problem.params(other), self.evidence.head
        assert head is not None
        distance = float(np.linalg.norm(self.problem.params(head) - params))
        if not abs(distance - said.distance) <= 1e-12 * max(distance, said.distance):
            return [Finding("reference", FALSE, f"{said.distance:.6g}", f"{distance:.6g}")]
        again = self.look(params)
        assert again is not None
        return [at_most("reference", said.bound, again.distance())]


def summing_room(arithmetic: str, rows: int) -> float:
    """How far sums may be from a verifier's own, against the sum of squares: by what any order of adding rounds."""
    if arithmetic == "exact":
        return 0.0
    unit = 2.0**-24 if arithmetic == "fast" else 2.0**-53
    return 32 * (min(rows, 8192) + 64) * unit + 4 * (rows + 64) * 2.0**-53
