"""Certified removal of a logistic head (Guo et al., ICML 2020): one Newton step, and a budget of what it leaves.

L(W) = sum_i -log softmax(x_i W)[y_i] + penalty/2 |W|^2 + <B, W>, B secret and N(0, sigma^2). Without the removed rows
the gradient at W is r - Delta, r what earlier steps left, Delta the removed part of the gradient. V = H^-1 Delta, H the
curvature of the rest at W, leaves r + (H V - Delta) + the third order. Of a softmax, along a row's change of scores
u = V^T x, the third derivative is E[(u - E u)^2 (z - E z)] <= |u|^2/2 sqrt(2) |z|, integrated over (1 - t) half of it:
the third order is at most GAMMA |X|_2 sqrt(sum_i |u_i|^4) <= GAMMA R |X|_2 |V| |X V|, R the longest row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from probekit.errors import InputError
from probekit.federated.methods.guo import RECORD
from probekit.federated.trained import Kept
from probekit.linear.lapack import linalg
from probekit.linear.solvers import ConjugateGradient, Inverse, Operator
from probekit.unlearning.method import Unlearned
from probekit.unlearning.removal import Removal
from probekit.values import Array

GAMMA = math.sqrt(2) / 4
"""Of a softmax; Guo's 1/4 is that of two classes by one vector."""
ROUNDING = 1 + 1e-9
"""What sums in float64 may be off by, and more."""
TRAINER = "a run by the trainer guo, whose loss has the secret linear term: train with `method=guo`"


@dataclass(frozen=True)
class GuoRemoval:
    """One Newton step on the loss of the rest, while what such steps leave is hidden by the run's linear term.

    (`epsilon`, `delta`)-certified removal holds while the bounds of all requests add up to less than
    sigma epsilon / sqrt(2 ln(1.5 / delta)); then it is refused, and retraining is due. `tolerance` is that of the
    equations, whose rest counts, too. It is a statement about distributions; no `Certificate` of a distance.
    """

    name: ClassVar[str] = "guo"
    source: ClassVar[str] = "Guo et al., 2020"
    needs: ClassVar[tuple[Any, ...]] = (
        ("problem", "softmax", TRAINER),
        ("kept", RECORD, TRAINER),
        ("request", "leaving"),
        ("kept", "objective", TRAINER),
        ("target", "gradient", "what is to go, online or as cached rows (labels are put right by retrain)"),
        *(("retained", one, "the retained clients online, or their cached rows") for one in ("curvature", "scales")),
        ("retained", "statistics", "the retained clients online, or their cached rows"),
    )
    keeps: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[frozenset[str]] = frozenset({"linear_term", "epsilon_delta"})
    tunable: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    epsilon: float = 1.0
    delta: float = 1e-4
    tolerance: float = 1e-10
    rounds: int = 500

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and 0 < self.delta < 1):
            raise InputError(f"guo takes epsilon above 0, delta in (0, 1); found {self.epsilon} and {self.delta}.")

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head after the step, if the budget allows it."""
        if removal.request.relabelled:
            raise InputError("Unlearning by guo takes clients or samples out; to put labels right use retrain.")
        record: Any = removal.before.kept[RECORD].plain
        budget = record["sigma"] * self.epsilon / math.sqrt(2 * math.log(1.5 / self.delta))
        step, left, taken = self._step(removal)
        spent = record["spent"] + left
        if not spent <= budget:
            raise InputError(
                f"This removal would bring what Newton steps leave to {spent:.4g}, and the linear term of sigma "
                f"{record['sigma']:g} hides {budget:.4g} at ({self.epsilon:g}, {self.delta:g}). Use retrain, which "
                "starts a new budget; or train with a larger sigma."
            )
        note = (
            f"({self.epsilon:g}, {self.delta:g})-certified removal: the gradient's bound is {spent:.4g} of "
            f"{budget:.4g}, after {record['requests'] + 1} requests. It concerns who does not know the linear term."
        )
        plain = {**record, "spent": spent, "requests": record["requests"] + 1}
        kept = {**removal.before.without(removal.forgotten).kept, RECORD: Kept(plain=plain)}
        flops = 4 * taken * removal.rows * step.size
        return removal.finish(self, params=removal.params + step, flops=flops, note=note, kept=kept)

    def _step(self, removal: Removal) -> tuple[Array, float, int]:
        """V, the bound on the gradient that it adds, and the products that it took."""
        problem, params, asked = removal.problem, removal.params, removal.retained
        penalty = problem.penalty(removal.ridge) * removal.rows
        before = problem.penalty(removal.before.mean_ridge(removal.before.rows)) * removal.before.rows
        gone = removal.target.ask("gradient", {"params": params}).total().arrays["gradient"]
        delta = gone + (before - penalty) * params
        gram = problem.stats(asked.ask("statistics").total().arrays).total_gram
        inverse = Inverse.of(gram / problem.shape[1] + np.diagflat(penalty))
        solver = ConjugateGradient(self.tolerance, self.rounds, _Flat(inverse.matvec, problem.shape))

        def curvature(v: Array) -> Array:
            found = asked.ask("curvature", {"params": v, "at": params}).total()
            return np.asarray(found.arrays["product"] + penalty * v)

        # classes share one curvature, so that all parameters are one column
        solution = solver.descend(_Flat(curvature, problem.shape), delta.reshape(-1, 1))
        step, wide = solution.value.reshape(problem.shape), {"ridge": 0.0, "batch": 1}
        rows = max(one.values["curvature"] for one in asked.ask("scales", plan=wide).each())
        longest = math.sqrt(2 * rows)  # a row's curvature is at most |x|^2 / 2
        seen = math.sqrt(max(float((step * (gram @ step)).sum()), 0.0))
        largest = math.sqrt(float(linalg.eigvalsh(gram, subset_by_index=[len(gram) - 1] * 2)[0]))
        third = GAMMA * largest * seen * min(longest * float(np.linalg.norm(step)), seen)
        unsolved = solution.residual * float(np.linalg.norm(delta))
        return step, ROUNDING * third + unsolved, solution.steps


@dataclass(frozen=True, eq=False)
class _Flat(Operator):
    """A map of parameters, as one column."""

    of: Callable[[Array], Array]
    shape: tuple[int, int]

    def matvec(self, v: Array) -> Array:
        """The map, there and back."""
        return self.of(v.reshape(self.shape)).reshape(-1, 1)
