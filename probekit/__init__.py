"""probekit: linear probes on frozen foundation models, trained across clients, with certified unlearning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probekit.backbones import backbone as backbone
    from probekit.certificates.certificate import Certificate as Certificate
    from probekit.certificates.certify import certify as certify
    from probekit.certificates.verify import verify as verify
    from probekit.datasets import dataset as dataset
    from probekit.encoding.extract import extract as extract
    from probekit.errors import ProbekitError as ProbekitError
    from probekit.evaluation.probe import probe as probe
    from probekit.evaluation.probe_values import Probe as Probe
    from probekit.federated.methods.closed_form import ClosedForm as ClosedForm
    from probekit.federated.methods.fedavg import FedAvg as FedAvg
    from probekit.federated.networks import train_network as train_network
    from probekit.federated.partition import partition as partition
    from probekit.federated.trained import Trained as Trained
    from probekit.federated.training import train as train
    from probekit.jacobian.linearize import linearize as linearize
    from probekit.models.estimators import LogisticHead as LogisticHead
    from probekit.models.estimators import RidgeHead as RidgeHead
    from probekit.models.heads import LinearHead as LinearHead
    from probekit.models.heads import NetworkHead as NetworkHead
    from probekit.models.jvp import WholeNetwork as WholeNetwork
    from probekit.models.serving import load_head as load_head
    from probekit.models.serving import predict as predict
    from probekit.models.serving import save_head as save_head
    from probekit.runs.options import TrainOptions as TrainOptions
    from probekit.runs.run import Run as Run
    from probekit.unlearning.choice import unlearn as unlearn
    from probekit.unlearning.request import UnlearnRequest as UnlearnRequest
    from probekit.values import EmbeddingSet as EmbeddingSet
    from probekit.values import Partition as Partition
    from probekit.values.identity import EncodingSpec as EncodingSpec

__version__ = "0.1.0"

_NAMES = {
    "backbones": ("backbone",),
    "certificates.certificate": ("Certificate",),
    "certificates.certify": ("certify",),
    "certificates.verify": ("verify",),
    "datasets": ("dataset",),
    "encoding.extract": ("extract",),
    "errors": ("ProbekitError",),
    "evaluation.probe": ("probe",),
    "evaluation.probe_values": ("Probe",),
    "federated.methods.closed_form": ("ClosedForm",),
    "federated.methods.fedavg": ("FedAvg",),
    "federated.networks": ("train_network",),
    "federated.partition": ("partition",),
    "federated.trained": ("Trained",),
    "federated.training": ("train",),
    "jacobian.linearize": ("linearize",),
    "models.estimators": ("LogisticHead", "RidgeHead"),
    "models.heads": ("LinearHead", "NetworkHead"),
    "models.jvp": ("WholeNetwork",),
    "models.serving": ("load_head", "predict", "save_head"),
    "runs.options": ("TrainOptions",),
    "runs.run": ("Run",),
    "unlearning.choice": ("unlearn",),
    "unlearning.request": ("UnlearnRequest",),
    "values": ("EmbeddingSet", "Partition"),
    "values.identity": ("EncodingSpec",),
}
_HOMES = {name: f"probekit.{home}" for home, names in _NAMES.items() for name in names}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import probekit` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'probekit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
