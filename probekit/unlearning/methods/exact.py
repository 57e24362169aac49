"""Exact removal: the retained clients' statistics, summed anew and solved. Nothing is subtracted.

The outcome is the minimum of the retained loss: what closed-form training on the rest gives, to rounding in
float64 arithmetic, to the last bit in exact arithmetic. (FedAvg with several local steps would settle
elsewhere.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from probekit.federated.trained import Gradients
from probekit.unlearning.method import FROM_ROWS, Unlearned
from probekit.unlearning.removal import Removal

NOTE = "The head is the minimum of the retained loss, as closed-form training on the rest gives it."


@dataclass(frozen=True)
class Exact:
    """Re-sums the retained clients' statistics and solves."""

    name: ClassVar[str] = "exact"
    needs: ClassVar[tuple[Any, ...]] = (("problem", "statistics"), ("kept", "statistics"))
    keeps: ClassVar[tuple[str, ...]] = ("statistics", "gradients")
    traits: ClassVar[frozenset[str]] = frozenset({"minimum", FROM_ROWS})

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head of the retained statistics."""
        before, problem = removal.before, removal.problem
        tree: Any = removal.statistics
        head, solution = before.minimum(tree.total)
        renewed: dict[str, Any] = {}
        if before.gradients is not None:
            renewed["gradients"] = Gradients(removal.gradients_at(problem.params(head)))
        flops = closed_form_work(len(tree), *problem.shape)
        return removal.finish(self, solution, head=head, flops=flops, note=NOTE, **renewed)


def closed_form_work(parts: int, d: int, k: int) -> int:
    """Operations of adding up so many Grams (or rows) and solving once."""
    return parts * d * (d + k) + d**3 // 3 + 2 * d * d * k
