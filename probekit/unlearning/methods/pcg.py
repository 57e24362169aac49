"""From the paper's step to the exact answer: conjugate gradients on the retained loss, one round per iteration.

The server's curvature is the preconditioner. A retained gradient at w - s p gives H p = (g(w) - g(w - s p)) / s,
so a round is a broadcast of parameters and the clients' gradients there, as in training. s is chosen so that
s p is as long as w: then no digits are lost in the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.federated.trained import Gradients
from probekit.linear.design import Solution
from probekit.linear.solvers import ConjugateGradient
from probekit.protocols import Progress
from probekit.unlearning.method import Unlearned
from probekit.unlearning.methods.fedremoval import FedRemoval, server_plan
from probekit.unlearning.products import PRODUCTS, Measuring, Products, products, room_for, top_directions
from probekit.unlearning.removal import Removal

DEFAULT_ROUNDS = 10

Params = NDArray[np.float64]


@dataclass(frozen=True)
class FedRemovalPcg:
    """Up to `rounds` gradient rounds (0: the paper's step), fewer once |g| is `tolerance` of what it was.

    One more round at the end gives the true gradient there: the certificate's residual, and what a further
    removal starts from. The products that the rounds measured are kept where that takes 1 GiB at most and the run has
    no statistics (`keep_products`): rows are certified by them. `extra` rounds then measure more of them, along the
    directions in which the server's own rows curve most.
    """

    name: ClassVar[str] = "fedremoval-pcg"
    needs: ClassVar[tuple[Any, ...]] = (*FedRemoval.needs, ("retained", "form"))
    keeps: ClassVar[tuple[str, ...]] = ("statistics", "gradients", PRODUCTS)
    traits: ClassVar[frozenset[str]] = frozenset()

    rounds: int = DEFAULT_ROUNDS
    tolerance: float = 1e-12
    extra: int = 0
    keep_products: bool = True

    def __post_init__(self) -> None:
        if self.rounds < 0 or not 0 <= self.tolerance < 1 or self.extra < 0:
            raise InputError(
                "fedremoval-pcg takes 0 rounds or more, a tolerance in [0, 1) and 0 extra rounds or more; found "
                f"{self.rounds}, {self.tolerance} and {self.extra}."
            )

    @property
    def spec(self) -> str:
        """How it is asked for."""
        more = f"rounds={self.rounds},extra={self.extra}" if self.extra else self.rounds
        return f"fedremoval-pcg:{more}"

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head after these rounds."""
        squares, check = removal.server.squares(), _Check(removal)
        params, used, measured = self._descend(removal, check)
        left, before = (float(np.linalg.norm(one)) for one in (check.residual(params), removal.gradient))
        solution = Solution(params, left / before if before else left, used, "preconditioned gradient rounds")
        note = f"{used} gradient rounds and one to check; the retained gradient fell to {solution.residual:.3g}."
        kept = dict(removal.before.without(removal.forgotten).kept)
        if found := self._measured(removal, measured):
            kept[PRODUCTS] = found.kept
            note += f" {len(found.reach)} products with the curvature are kept."
        return removal.finish(
            self,
            solution,
            params=params,
            flops=squares.work(used + 1, factored=squares.dense() is not None),
            note=note,
            warnings=server_plan(removal).warnings,
            gradients=Gradients(check.gradients),
            kept=kept,
        )

    def _descend(self, removal: Removal, check: _Check) -> tuple[Params, int, list[Measuring]]:
        """Preconditioned conjugate gradients on all classes at once; the parameters, the rounds taken, and what was
        measured in them.

        Clients that trained in coarser numbers answer in them; when they believe to be a good way on, a round in
        float64 tells the true gradient, and from there it goes on.
        """
        loss, params, gradient = removal.loss, removal.params, removal.gradient
        inverse = removal.server.squares().inverse(removal.ridge)
        if self.rounds == 0:
            return params - inverse.matvec(gradient), 0, []
        room = room_for(removal, self.rounds + self.extra) if self.keep_products else 0
        first, measured = 0, [Measuring(params, gradient, loss, room)]
        if removal.problem.precision != "float64":
            rough = replace(loss, precision=removal.problem.precision)
            first = 1
            measured.append(Measuring(params, rough.gradient(params), rough, room))
        progress = removal.watch("gradient rounds")

        def step(done: int, left: float, _: Params) -> None:
            progress(Progress(first + done, self.rounds, residual=left))

        coarse = measured[1] if first else None
        solver = ConjugateGradient(self.tolerance, self.rounds - first, inverse, coarse, step)
        found = solver.descend(measured[0], -gradient, start=params, residual=check.residual, look_cost=1)
        return found.value, first + found.steps, measured

    def _measured(self, removal: Removal, measured: list[Measuring]) -> Products | None:
        """All that rounds measured, and the extra ones."""
        if measured and self.extra and measured[0].room:
            width = removal.problem.shape[1]
            top = top_directions(removal.server.squares(), self.extra * width)
            progress = removal.watch("extra products")
            for number in range(self.extra):
                measured[0].matvec(top[:, number * width : (number + 1) * width])
                progress(Progress(number + 1, self.extra))
        return products(removal, measured)


@dataclass(eq=False)
class _Check:
    """The true gradient at some parameters, by a round of its own; what was asked last is not asked again."""

    removal: Removal
    params: Params | None = None
    gradients: dict[str, Params] = field(default_factory=dict)

    def residual(self, params: Params) -> Params:
        """The retained loss's gradient, negative."""
        if params is not self.params:
            self.params, self.gradients = params, self.removal.gradients_at(params)
        counts = self.removal.counts
        total = sum((counts[name] * one for name, one in self.gradients.items()), np.zeros_like(params))
        return -total / self.removal.rows
