"""Linear probes on frozen foundation models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from probekit.backbones import load_backbone as load_backbone
    from probekit.cache import Cache as Cache
    from probekit.data import DataOptions as DataOptions
    from probekit.data import read_dataset as read_dataset
    from probekit.embeddings import EmbeddingSet as EmbeddingSet
    from probekit.embeddings import Encoding as Encoding
    from probekit.errors import ProbekitError as ProbekitError
    from probekit.estimators import KNNProbe as KNNProbe
    from probekit.estimators import LDAProbe as LDAProbe
    from probekit.estimators import LogisticProbe as LogisticProbe
    from probekit.estimators import NearestMeanProbe as NearestMeanProbe
    from probekit.estimators import RidgeProbe as RidgeProbe
    from probekit.extraction import ExtractOptions as ExtractOptions
    from probekit.extraction.extract import extract as extract
    from probekit.heads import Head as Head
    from probekit.heads import load_head as load_head
    from probekit.probing import ProbeResult as ProbeResult
    from probekit.probing.probe import probe as probe
    from probekit.probing.zero_shot import zero_shot_head as zero_shot_head
    from probekit.runs.run import Run as Run
    from probekit.runs.train import train as train

_HOMES = {
    "Cache": "probekit.cache",
    "DataOptions": "probekit.data",
    "EmbeddingSet": "probekit.embeddings",
    "Encoding": "probekit.embeddings",
    "ExtractOptions": "probekit.extraction",
    "Head": "probekit.heads",
    "KNNProbe": "probekit.estimators",
    "LDAProbe": "probekit.estimators",
    "NearestMeanProbe": "probekit.estimators",
    "LogisticProbe": "probekit.estimators",
    "ProbeResult": "probekit.probing",
    "ProbekitError": "probekit.errors",
    "Run": "probekit.runs.run",
    "RidgeProbe": "probekit.estimators",
    "extract": "probekit.extraction.extract",
    "load_backbone": "probekit.backbones",
    "load_head": "probekit.heads",
    "probe": "probekit.probing",
    "read_dataset": "probekit.data",
    "train": "probekit.runs.train",
    "zero_shot_head": "probekit.probing.zero_shot",
}
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'probekit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
