"""FedRemoval with the best step length: one number from each retained client, and the retained loss never rises.

Along w - alpha v the retained loss is a parabola; its lowest point is alpha = <g, v> / <v, H v>, and there it
is <g, v>^2 / (2 <v, H v>) below where it was.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from probekit.errors import InputError
from probekit.federated.trained import Trained
from probekit.unlearning.fedremoval import FedRemoval, finished
from probekit.unlearning.method import NOTHING, Material, Unlearned
from probekit.unlearning.request import UnlearnRequest
from probekit.unlearning.step import Plan, ready


@dataclass(frozen=True)
class FedRemovalLine:
    """FedRemoval's direction, as far along it as the retained loss falls."""

    solver: str = "cholesky"
    needs: frozenset[str] = frozenset({"server set", "retained clients"})

    @property
    def name(self) -> str:
        """How it is asked for."""
        return "fedremoval-line" if self.solver == "cholesky" else f"fedremoval-line:{self.solver}"

    def plan(self, trained: Trained, request: UnlearnRequest, material: Material = NOTHING) -> Plan:
        """What is known before the step."""
        return ready(self, trained, request, material).plan

    def unlearn(self, trained: Trained, request: UnlearnRequest, material: Material = NOTHING) -> Unlearned:
        """The head at the lowest point of the retained loss along the step."""
        start = time.perf_counter()
        here = ready(self, trained, request, material)
        if here.loss is None:
            raise InputError("The best step length needs one number from every retained client; none answers.")
        solution = FedRemoval(self.solver).direction(here)
        v = solution.value
        along, curvature = float((here.gradient * v).sum()), here.loss.curvature_form(v)
        length = along / curvature if curvature > 0 else 0.0
        flops = here.flops(solution.steps + 1, factored=solution.method in ("cholesky", "dual"))
        cost = replace(here.cost(0, scalars=1), flops=flops, seconds=time.perf_counter() - start)
        found = finished(
            self.name,
            trained,
            here,
            request=request,
            params=here.start - length * v,
            solution=solution,
            cost=cost,
            note=f"The best step length along FedRemoval's direction is {length:.6g}; the paper takes 1.",
        )
        return replace(found, loss_change=-length * along / 2)


def load(argument: str) -> FedRemovalLine:
    """The method, for the registry: `fedremoval-line[:SOLVER]`."""
    return FedRemovalLine(FedRemoval(argument or "cholesky").solver)
