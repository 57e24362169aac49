"""FedRemoval with the best step length: one number from each retained client, and the retained loss never rises.

Along w - alpha v the retained loss is a parabola; its lowest point is alpha = <g, v> / <v, H v>, and there it
is <g, v>^2 / (2 <v, H v>) below where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from probekit.unlearning.method import Unlearned
from probekit.unlearning.methods.fedremoval import FedRemoval, after_step, direction
from probekit.unlearning.removal import Removal


@dataclass(frozen=True)
class FedRemovalLine:
    """FedRemoval's direction, as far along it as the retained loss falls."""

    name: ClassVar[str] = "fedremoval-line"
    needs: ClassVar[tuple[Any, ...]] = (*FedRemoval.needs[:3], ("retained", "form"))
    keeps: ClassVar[tuple[str, ...]] = FedRemoval.keeps
    traits: ClassVar[frozenset[str]] = frozenset()

    solver: str = "cholesky"

    def unlearn(self, removal: Removal) -> Unlearned:
        """The head at the lowest point of the retained loss along the step."""
        solution = direction(removal, self.solver)
        v = solution.value
        along, curvature = float((removal.gradient * v).sum()), removal.loss.form(v)
        length = along / curvature if curvature > 0 else 0.0
        note = f"The best step length along FedRemoval's direction is {length:.6g}; the paper takes 1."
        change = -length * along / 2
        return after_step(self, removal, solution, length=length, products=1, note=note, loss_change=change)
