"""The paper's settings (F2L2: Algorithms 1 and 2), and those of its released code, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from probekit.errors import NotFoundError
from probekit.federated.local import Adam, LocalPlan, Sgd
from probekit.federated.training.fedavg import FedAvg
from probekit.linear.ridge import Intercept
from probekit.registry import nearest


@dataclass(frozen=True)
class Preset:
    """How a head is trained and a client removed; `facts` say by topic what distinguishes it.

    unlearner: the method as `unlearn` takes it.
    """

    name: str
    trainer: FedAvg
    ridge: float
    intercept: Intercept
    unlearner: str
    facts: Mapping[str, str]


PAPER = Preset(
    name="f2l2-paper",
    trainer=FedAvg(rounds=200, plan=LocalPlan(epochs=1, batch_size=32, optimizer=Sgd())),
    ridge=0.01,
    intercept="penalized",
    unlearner="fedremoval:sgd",
    facts={
        "optimizer": "SGD (Algorithm 1), at 1 / (largest curvature of any row)",
        "batches": "32 rows, all rows of every epoch",
        "average": "weights n_c / n",
        "start": "the pretrained weights; 0 for a head on embeddings",
        "loss": "1/2 squared error, mean over rows",
        "ridge": "0.01, above 0 as the theorem needs; also in the gradient and in removal",
        "rounds": "200; 400 to 800 epochs for networks",
        "gradient": "of the retained clients at the aggregated head (as the theorem needs)",
        "removal": "Algorithm 2: SGD from 0 on the server's rows, at the ridge of the training",
    },
)
CODE = Preset(
    name="f2l2-code",
    trainer=FedAvg(
        rounds=200,
        plan=LocalPlan(rate=1e-4, epochs=1, batch_size=32, drop_last=True, optimizer=Adam()),
        uniform=True,
        start="random",
    ),
    ridge=0.0,
    intercept="penalized",
    unlearner="fedremoval:adam,weight_decay=0.01",
    facts={
        "optimizer": "Adam at 1e-4, created anew every round, so that its schedule never decays",
        "batches": "32 rows; the last short batch of an epoch is dropped",
        "average": "weights 1 / C, with --weighted_aggregate too",
        "start": "random (kaiming uniform), not the pretrained weights",
        "loss": "squared error, mean over rows and classes: 2/k of the paper's",
        "ridge": "0, where the theorem needs it above 0",
        "rounds": "200 for heads and DomainNet, 400 for MNIST, 800 for FashionMNIST and CIFAR10",
        "gradient": "at the aggregated head, one more round; without the ridge's part",
        "removal": "400 steps of Adam at 0.01 from a random start, weight decay 0.01 for the ridge",
    },
)


def _code_for(dataset: str, rounds: int) -> Preset:
    return replace(
        CODE, name=f"{CODE.name}-{dataset}", trainer=replace(CODE.trainer, rounds=rounds)
    )


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        PAPER,
        CODE,
        _code_for("mnist", 400),
        _code_for("fashion-mnist", 800),
        _code_for("cifar10", 800),
    )
}


def preset(name: str) -> Preset:
    if name not in PRESETS:
        raise NotFoundError(f"Unknown preset {name!r}. {nearest(name, list(PRESETS))}")
    return PRESETS[name]
