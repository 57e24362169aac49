"""probekit: linear probes on frozen foundation models, trained across clients and taken back with proof."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probekit.backbones import backbone as backbone
    from probekit.datasets import dataset as dataset
    from probekit.errors import ProbekitError as ProbekitError
    from probekit.extraction import extract as extract
    from probekit.values import EmbeddingSet as EmbeddingSet
    from probekit.values import EncodingSpec as EncodingSpec

__version__ = "0.1.0"

_HOMES = {
    "EmbeddingSet": "probekit.values",
    "EncodingSpec": "probekit.values",
    "ProbekitError": "probekit.errors",
    "backbone": "probekit.backbones",
    "dataset": "probekit.datasets",
    "extract": "probekit.extraction",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import probekit` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'probekit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
