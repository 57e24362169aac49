"""Exact removal: the retained clients' statistics, summed anew and solved. Nothing is subtracted.

The outcome is the minimum of the retained loss: what closed-form training on the rest gives, to rounding in
float64 arithmetic, to the last bit in exact arithmetic. (FedAvg with several local steps would settle
elsewhere.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from probekit.errors import InputError
from probekit.federated.trained import Gradients
from probekit.unlearning.method import Unlearned, require
from probekit.unlearning.removal import Removal

NOTE = "The head is the minimum of the retained loss, as closed-form training on the rest gives it."


@dataclass(frozen=True)
class Exact:
    """Re-sums the retained clients' statistics and solves."""

    name: ClassVar[str] = "exact"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "statistics"), ("kept", "statistics"))
    keeps: ClassVar[tuple[str, ...]] = ("statistics", "gradients")
    traits: ClassVar[frozenset[str]] = frozenset({"minimum"})

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head of the retained statistics."""
        require(self, removal)
        before, problem, tree = removal.before, removal.problem, removal.statistics
        if tree is None:
            raise InputError('Exact removal needs every client\'s statistics. Train with keep="statistics".')
        head, solution = before.minimum(tree.total)
        d, k = problem.shape
        gradients = None
        if before.gradients is not None:
            params = problem.params(head)
            extra = problem.penalty(removal.ridge) * params
            found = removal.retained.ask("gradient", {"params": params}).each()
            gradients = Gradients({one.client: one.arrays["gradient"] / one.count + extra for one in found})
        return removal.finish(
            self,
            solution,
            head=head,
            flops=len(tree) * d * (d + k) + d**3 // 3 + 2 * d * d * k,
            note=NOTE,
            gradients=gradients,
        )
