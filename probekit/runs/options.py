"""How a run is trained: one value, checked once, written to run.json and never changed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import msgspec

from probekit.errors import InputError
from probekit.federated.held_out import HeldOut
from probekit.federated.local import Adam, LocalPlan, Sgd
from probekit.federated.state import KEEP, Trainer
from probekit.federated.training.cg import ConjugateGradients
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.training.knot import KnotTraining
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.linear.model import LinearModel
from probekit.linear.ridge import (
    INTERCEPTS,
    Gcv,
    Intercept,
    InverseC,
    RidgeRule,
    check_C,
    check_ridge,
)
from probekit.objective import CrossEntropy, Loss, Squares
from probekit.records import record_name
from probekit.registry import TRAINERS, configured, nearest

if TYPE_CHECKING:
    from probekit.federated.presets import Preset

HEADS = ("ridge", "logistic")
Center = Literal["wp", "zero"]
INTERCEPT_OF: dict[str, Intercept] = {"ridge": "free", "logistic": "penalized"}
AUTO = ("auto", "auto:gcv")
SOLVED = 0.1
"""Trainers that end at the minimum end well within the tolerance of `verify`."""
LINEARIZED_RIDGE = 0.01
PRETRAIN_EPOCHS = 10
LINEARIZED = "cg"
CONVENTIONAL = "fedavg:rounds=20,epochs=1,batch_size=32,optimizer=adam,rate=1e-3"


class FedAvgSettings(msgspec.Struct, forbid_unknown_fields=True):
    """What may stand behind `fedavg:`, as text."""

    rounds: int = 20
    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    drop_last: bool = False
    rate: float | None = None
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    uniform: bool = False
    participation: float = 1.0
    at_least: float = 1.0
    start: Literal["model", "random"] = "model"

    def trainer(self, keep: frozenset[str], seed: int) -> Trainer:
        return self.fedavg(keep, seed)

    def fedavg(self, keep: frozenset[str], seed: int) -> FedAvg:
        is_adam = self.optimizer == "adam"
        plan = LocalPlan(
            rate=self.rate,
            steps=self.steps,
            epochs=self.epochs if self.epochs or self.steps else 1,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            optimizer=Adam(weight_decay=self.weight_decay) if is_adam else Sgd(self.momentum),
            seed=seed,
        )
        return FedAvg(
            self.rounds, plan, self.uniform, self.participation, self.at_least, self.start, keep
        )


class KnotSettings(FedAvgSettings):
    """What may stand behind `knot:`."""

    clusters: int = 2

    def trainer(self, keep: frozenset[str], seed: int) -> Trainer:
        return KnotTraining(self.clusters, self.fedavg(frozenset(), seed), keep)


SETTINGS: dict[str, type[FedAvgSettings]] = {"fedavg": FedAvgSettings, "knot": KnotSettings}


@dataclass(frozen=True)
class TrainOptions:
    """Whose rows are trained on, and how.

    clients: a number, or the column that names each row's client; partition: how a number of
        clients gets its rows ("iid", "dirichlet:0.5", "shards:2").
    ridge: a number, or "auto": generalized cross-validation from the clients' sums.
    C: of a logistic head, whose ridge is 1 / (C n); "auto", the default: chosen by rows that the
        clients hold out.
    intercept: None is "free" for ridge and "penalized" for logistic heads.
    method: a trainer with its options, "fedavg:rounds=20,epochs=1"; None is the closed form for
        ridge and L-BFGS rounds for logistic heads.
    keep: what the server keeps for later removals: "statistics,gradients", "history" or "nothing".
    server_share: the share of the rows that the server has for itself.
    at_least: how many clients must answer; None: all of them.
    tolerance: `verify` accepts a head within this share of its own norm from the minimum.
    preset: a published setting, "f2l2-paper"; method, ridge and intercept come before it.
    network: in place of a head, "mlp", "mlp:500-100", "cnn" or "py:package.module:factory".
    linearize: around its pretrained weights, or train it as it is.
    pretrain_epochs: on the server's rows, where it has some.
    center: what the ridge of a linearized network pulls to, "wp" (those weights) or "zero".
    weights: the sha256 of the file that it starts from; None: weights are drawn by the seed.

    What is empty follows from the rest: of a conventional network the head is "logistic", of
    others "ridge"; of networks nothing is kept. A network's ridge is 0.01 where it is linearized,
    else 0; its method is "cg", or FedAvg by Adam.
    """

    head: str = ""
    ridge: float | str = "auto"
    C: float | str | None = None
    intercept: Intercept | None = None
    normalize: str = "none"
    method: str | None = None
    clients: int | str = 1
    partition: str | None = None
    server_share: float = 0.0
    keep: str = ""
    at_least: int | None = None
    tolerance: float = 1e-6
    preset: str | None = None
    seed: int = 0
    network: str | None = None
    linearize: bool = True
    pretrain_epochs: int = PRETRAIN_EPOCHS
    center: Center = "wp"
    weights: str | None = None

    def __post_init__(self) -> None:
        conventional = self.network is not None and not self.linearize
        object.__setattr__(self, "head", self.head or ("logistic" if conventional else "ridge"))
        kept = "statistics" if self.network is None else "nothing"
        object.__setattr__(self, "keep", self.keep or kept)
        check_choice("--head", self.head, HEADS)
        check_choice("--center", self.center, ("wp", "zero"))
        check_choice("--intercept", self.intercept or "free", INTERCEPTS)
        check_choice("--normalize", self.normalize, ("none", "l2"))
        for name in self.keep.split(","):
            check_choice("--keep", name, (*KEEP, "nothing"))
        if self.C is not None and (self.head != "logistic" or self.ridge not in AUTO):
            raise InputError(
                f"C is of a logistic head without a ridge; found head {self.head!r} and ridge "
                f"{self.ridge}. Pass one of --c and --ridge."
            )
        if self.C == "auto" and (self.network is not None or self.preset is not None):
            raise InputError(
                f"C is chosen for heads without a preset; found --network {self.network} and "
                f"--preset {self.preset}. Pass a number (--c)."
            )
        if self.ridge not in AUTO:
            check_ridge(self.ridge)
        for name in ("ridge", "C", "server_share", "tolerance"):
            if isinstance(value := getattr(self, name), int | float):  # as JSON reads it
                object.__setattr__(self, name, float(value))
        if not 0 < self.tolerance < math.inf:
            raise InputError(f"--tolerance must be above 0; found {self.tolerance!r}.")
        self._check_division()
        self._check_network()
        self.setting()
        self.trainer()

    def _check_division(self) -> None:
        is_number = isinstance(self.clients, int) and self.clients > 0
        if not is_number and not isinstance(self.clients, str):
            raise InputError(
                f"--clients is a number above 0 or a column; found {self.clients!r}. "
                "Pass --clients 5."
            )
        if self.at_least is not None and self.at_least < 1:
            raise InputError(f"--at-least must be 1 or more; found {self.at_least}.")
        if self.partition is not None:
            from probekit.data.partition import Scheme

            Scheme.parse(self.partition)

    def _check_network(self) -> None:
        if self.pretrain_epochs < 0:
            raise InputError(f"--pretrain-epochs must be 0 or more; found {self.pretrain_epochs}.")
        is_set = {
            "--no-linearize": not self.linearize,
            "--center": self.center != "wp",
            "--weights": self.weights is not None,
            "--pretrain-epochs": self.pretrain_epochs != PRETRAIN_EPOCHS,
        }
        if self.network is None:
            for flag in filter(is_set.get, is_set):
                raise InputError(f"{flag} is about a network; found none. Pass --network.")
            return
        if is_set["--no-linearize"] and is_set["--center"]:
            raise InputError(
                f"--center is about linearized networks; found {self.center!r} beside "
                "--no-linearize. Drop one of them."
            )
        if self.intercept == "free":
            raise InputError("The ridge of a network is on all parameters; drop --intercept free.")
        self._check_network_trainer()

    def _check_network_trainer(self) -> None:
        """What its trainer would refuse after pretraining."""
        trainer = self.trainer()
        solves = isinstance(trainer, ConjugateGradients)
        is_for_heads = isinstance(trainer, ClosedForm | LbfgsRounds)
        if is_for_heads or (solves and not self.linearize):
            raise InputError(
                "A network is trained by fedavg, a linearized one (--linearize) also by cg; found "
                f"--method {self.method}. Pass fedavg:rate=1e-3."
            )
        if solves and self.setting() == 0:
            raise InputError(
                "Conjugate gradients need a ridge above 0; found 0. Pass --ridge 0.01."
            )
        averaging = trainer.fedavg if isinstance(trainer, KnotTraining) else trainer
        if isinstance(averaging, FedAvg) and averaging.plan.rate is None:
            raise InputError(
                "FedAvg needs a rate for a network, whose curvature is not known beforehand; found "
                "none. Pass one (--method fedavg:rate=1e-3)."
            )

    @property
    def is_pretrained(self) -> bool:
        """Whether a network is trained on the server's rows first, where there are some."""
        return self.network is not None and self.pretrain_epochs > 0

    @property
    def published(self) -> Preset | None:
        if self.preset is None:
            return None
        from probekit.federated.presets import preset

        return preset(self.preset)

    def setting(self) -> float | RidgeRule:
        """The ridge, or the rule that chooses it."""
        if self.C is not None and self.C != "auto":
            return InverseC(check_C(self.C))
        if self.published is not None and self.ridge in AUTO:
            return self.published.ridge
        if self.network is not None and self.ridge in AUTO:
            return LINEARIZED_RIDGE if self.linearize else 0.0
        if isinstance(self.ridge, str):
            return HeldOut() if self.head == "logistic" else Gcv()
        return self.ridge

    @property
    def ridge_origin(self) -> str:
        """Where the ridge comes from, in a word or two: `gcv`, `as given`."""
        setting = self.setting()
        if not isinstance(setting, int | float):
            return record_name(setting).removeprefix("ridge/")
        if self.ridge not in AUTO:
            return "as given"
        return self.preset or "default"

    @property
    def chosen_intercept(self) -> Intercept:
        if self.network is not None:
            return "penalized"
        if self.intercept is not None:
            return self.intercept
        return INTERCEPT_OF[self.head] if self.published is None else self.published.intercept

    @property
    def loss(self) -> Loss:
        return CrossEntropy() if self.head == "logistic" else Squares()

    def linear_model(self, dimension: int, outputs: int) -> LinearModel:
        return LinearModel(dimension, outputs, self.loss, self.chosen_intercept)

    def trainer(self) -> Trainer:
        keep = frozenset(self.keep.split(",")) - {"nothing"}
        if self.method is None and self.published is not None:
            trainer = self.published.trainer
            return replace(trainer, keep=keep, plan=replace(trainer.plan, seed=self.seed))
        method = self.method or self._default_method
        name, _, settings = method.partition(":")
        if name in SETTINGS:
            kind = SETTINGS[name]
            pairs = dict(pair.partition("=")[::2] for pair in settings.split(",") if pair)
            try:
                chosen = msgspec.convert(pairs, kind, strict=False)
            except msgspec.ValidationError as error:
                raise InputError(
                    f"{name} takes {', '.join(kind.__struct_fields__)}; found "
                    f"{settings!r}: {error}. Write --method {name}:rounds=20,epochs=1."
                ) from error
            return chosen.trainer(keep, self.seed)
        chosen_trainer: Trainer = configured(method, TRAINERS)
        is_open = "tolerance=" not in settings
        if is_open and isinstance(chosen_trainer, ConjugateGradients | LbfgsRounds):
            chosen_trainer = replace(chosen_trainer, tolerance=SOLVED * self.tolerance)
        return replace(chosen_trainer, keep=keep)  # type: ignore[type-var]

    @property
    def _default_method(self) -> str:
        if self.network is not None:
            return LINEARIZED if self.linearize else CONVENTIONAL
        return "closed-form" if self.head == "ridge" else "lbfgs"


def check_choice(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(
            f"{flag} must be one of {', '.join(allowed)}; found {value!r}. "
            f"{nearest(value, list(allowed))}"
        )
