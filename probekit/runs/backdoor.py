"""How well a trigger works on a run's head, beside the head that retraining gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probekit.errors import InputError
from probekit.evaluation.backdoor import BackdoorSuccess, backdoor_success
from probekit.evaluation.metrics import Interval, Share
from probekit.federated.client import client_statistics
from probekit.federated.server import merge
from probekit.federated.trained import Trained
from probekit.linear.design import ClientStats
from probekit.models.heads import Head, NetworkHead
from probekit.runs.folder import RunFolder
from probekit.unlearning.exact import refit
from probekit.unlearning.remainder import named_head
from probekit.values import EmbeddingSet

if TYPE_CHECKING:
    from probekit.cache import DiskStore


def retrained_head(run: RunFolder, store: DiskStore, trained: Trained, *, state: int | None = None) -> Head:
    """The closed-form head of exactly the rows that are retained: from kept statistics, else from the cached rows."""
    number = run.state if state is None else state
    if isinstance(trained.head, NetworkHead):
        from probekit.runs.references import retrained_network
        from probekit.runs.unlearning import rows_at

        return retrained_network(run, trained, *rows_at(run, store, number))
    return named_head(trained, refit(trained, _total(run, store, trained, number))[0])


def _total(run: RunFolder, store: DiskStore, trained: Trained, state: int) -> ClientStats:
    if trained.statistics is not None:
        return merge(trained.statistics.values())
    from probekit.runs.unlearning import rows_at

    embeddings, partition = rows_at(run, store, state)
    return merge(client_statistics(embeddings, partition.clients[name], trained.design) for name in trained.counts)


def backdoor(
    head: Head, retrained: Head, triggered: EmbeddingSet, *, target: int, interval: Interval
) -> dict[str, Any]:
    """Success of the trigger on both heads; the difference is the measure, and lower than retrained is one too."""
    here = backdoor_success(head, triggered, target=target, interval=interval)
    there = backdoor_success(retrained, triggered, target=target, interval=interval)
    return {
        "set": triggered.source,
        "trigger": triggered.spec.trigger,
        "target": target,
        "base rate": here.base_rate,
        "head": _told(here),
        "retrained": _told(there),
        "difference to retraining": abs(_rate(here.excluding_target) - _rate(there.excluding_target)),
    }


def _told(found: BackdoorSuccess) -> dict[str, float]:
    return {"all": _rate(found.all), "excluding target": _rate(found.excluding_target)}


def _rate(found: Share) -> float:
    if found.value is None:
        raise InputError("Backdoor success needs triggered pictures of other classes than the target; there are none.")
    return found.value
