"""What both kinds of training give, and how they tell what they do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from probekit.federated.choice import Choice
from probekit.federated.fedavg import FedAvg
from probekit.federated.trained import Trained
from probekit.runs.options import ROUNDS
from probekit.values import Json


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was trained, by which config in the end, and what is known of its system."""

    trained: Trained
    config: dict[str, Json]
    choice: Choice | None = None
    effective_dimension: float | None = None
    condition: float | None = None


def rounds_told(method: FedAvg, trained: Trained) -> dict[str, Json]:
    """The options of FedAvg as they were in the end."""
    told: dict[str, Json] = {name: getattr(method, name) for name in ROUNDS if name not in ("preset", "optimiser")}
    return {**told, "optimiser": method.optimiser.name, "learning_rate": trained.learning_rate}


@contextmanager
def timed(timings: dict[str, float], what: str) -> Iterator[None]:
    """Note how long this took."""
    began = time.perf_counter()
    yield
    timings[what] = round(time.perf_counter() - began, 4)
