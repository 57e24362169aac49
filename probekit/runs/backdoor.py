"""How well a trigger works on a head, beside the head that retraining gives."""

from __future__ import annotations

from dataclasses import dataclass

from probekit.errors import InputError
from probekit.evaluation.backdoor import BackdoorSuccess, backdoor_success
from probekit.evaluation.metrics import USUAL, Interval
from probekit.models.heads import Head
from probekit.runs.result import Result
from probekit.values import EmbeddingSet


@dataclass(frozen=True)
class BackdoorComparison(Result):
    """How well a trigger works on a head, and on the retrained one; the difference is what counts."""

    set: str
    trigger: str | None
    target: int
    base_rate: float
    head: BackdoorSuccess
    retrained: BackdoorSuccess
    difference_to_retraining: float


def compare_backdoor(
    head: Head, retrained: Head, triggered: EmbeddingSet, *, target: int, interval: Interval = USUAL
) -> BackdoorComparison:
    """Success of the trigger on both heads; being lower than retrained is a difference, too."""
    here, there = (backdoor_success(one, triggered, target=target, interval=interval) for one in (head, retrained))
    rates = [one.excluding_target.value for one in (here, there)]
    if rates[0] is None or rates[1] is None:
        raise InputError("Backdoor success needs triggered pictures of other classes than the target; there are none.")
    apart = abs(rates[0] - rates[1])
    source, trigger = triggered.source, triggered.spec.trigger
    return BackdoorComparison(source, trigger, target, here.base_rate, here, there, apart)
