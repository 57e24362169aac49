"""probekit: linear probes on frozen foundation models, trained across clients and taken back with proof."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probekit.backbones import backbone as backbone
    from probekit.certificates import Certificate as Certificate
    from probekit.certification import certify as certify
    from probekit.datasets import dataset as dataset
    from probekit.errors import ProbekitError as ProbekitError
    from probekit.estimator import LogisticHead as LogisticHead
    from probekit.estimator import RidgeHead as RidgeHead
    from probekit.extraction import extract as extract
    from probekit.federated.fedavg import FedAvg as FedAvg
    from probekit.federated.local import train as train
    from probekit.federated.task import ClosedForm as ClosedForm
    from probekit.federated.trained import Trained as Trained
    from probekit.federated.whole import WholeNetwork as WholeNetwork
    from probekit.federated.whole import train_network as train_network
    from probekit.heads import load_head as load_head
    from probekit.heads import predict as predict
    from probekit.heads import save_head as save_head
    from probekit.learning import LinearHead as LinearHead
    from probekit.learning import Partition as Partition
    from probekit.linear.network import linearize as linearize
    from probekit.linearized import NetworkHead as NetworkHead
    from probekit.partitioning import partition as partition
    from probekit.unlearning.choice import unlearn as unlearn
    from probekit.unlearning.request import UnlearnRequest as UnlearnRequest
    from probekit.values import EmbeddingSet as EmbeddingSet
    from probekit.values import EncodingSpec as EncodingSpec
    from probekit.verification import verify as verify

__version__ = "0.1.0"

_HOMES = {
    "Certificate": "probekit.certificates",
    "ClosedForm": "probekit.federated.task",
    "EmbeddingSet": "probekit.values",
    "EncodingSpec": "probekit.values",
    "FedAvg": "probekit.federated.fedavg",
    "LinearHead": "probekit.learning",
    "LogisticHead": "probekit.estimator",
    "NetworkHead": "probekit.linearized",
    "Partition": "probekit.learning",
    "ProbekitError": "probekit.errors",
    "RidgeHead": "probekit.estimator",
    "Trained": "probekit.federated.trained",
    "UnlearnRequest": "probekit.unlearning.request",
    "WholeNetwork": "probekit.federated.whole",
    "backbone": "probekit.backbones",
    "certify": "probekit.certification",
    "dataset": "probekit.datasets",
    "extract": "probekit.extraction",
    "linearize": "probekit.linear.network",
    "load_head": "probekit.heads",
    "partition": "probekit.partitioning",
    "predict": "probekit.heads",
    "save_head": "probekit.heads",
    "train": "probekit.federated.local",
    "train_network": "probekit.federated.whole",
    "unlearn": "probekit.unlearning.choice",
    "verify": "probekit.verification",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import probekit` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'probekit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
