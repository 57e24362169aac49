"""Options are checked once, and say what they mean for model, ridge and trainer."""

from __future__ import annotations

from typing import Any

import pytest

from probekit.errors import InputError, NotFoundError
from probekit.federated.local import Adam
from probekit.federated.presets import preset
from probekit.federated.training.cg import ConjugateGradients
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.training.lbfgs import LbfgsRounds
from probekit.linear.ridge import Gcv, InverseC
from probekit.runs.options import TrainOptions


def test_ridge_is_closed_form_with_a_free_intercept() -> None:
    options = TrainOptions()
    assert options.trainer() == ClosedForm(frozenset({"statistics"}))
    assert options.setting() == Gcv()
    assert options.linear_model(5, 3).intercept == "free"


def test_logistic_penalizes_its_intercept_and_ends_within_the_tolerance() -> None:
    options = TrainOptions(head="logistic", C=2.0, tolerance=1e-4)
    trainer = options.trainer()
    assert isinstance(trainer, LbfgsRounds)
    assert trainer.tolerance < 1e-4
    assert options.setting() == InverseC(2.0)
    assert options.linear_model(5, 3).intercept == "penalized"


@pytest.mark.parametrize("method", ["cg", "cg:products=7", "lbfgs:rounds=7"])
def test_solvers_end_within_the_tolerance_unless_they_have_their_own(method: str) -> None:
    def tolerance(text: str) -> float:
        trainer = TrainOptions(method=text, ridge=0.1, keep="gradients", tolerance=1e-3).trainer()
        assert isinstance(trainer, ConjugateGradients | LbfgsRounds)
        return trainer.tolerance

    assert 0 < tolerance(method) < 1e-3
    separator = "," if ":" in method else ":"
    assert tolerance(f"{method}{separator}tolerance=0.5") == 0.5


def test_fedavg_is_written_with_its_options() -> None:
    method = "fedavg:rounds=3,epochs=2,batch_size=16,rate=0.5,optimizer=adam,participation=0.5"
    trainer = TrainOptions(method=method, keep="history,gradients", seed=4).trainer()
    assert isinstance(trainer, FedAvg)
    assert (trainer.rounds, trainer.participation) == (3, 0.5)
    assert trainer.keep == {"history", "gradients"}
    plan = trainer.plan
    assert (plan.epochs, plan.batch_size, plan.rate, plan.seed) == (2, 16, 0.5, 4)
    assert plan.optimizer == Adam()
    assert TrainOptions(method="fedavg:steps=5", ridge=0.1).trainer().plan.epochs is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "origin"),
    [
        ({}, "gcv"),
        ({"ridge": 0.1}, "as given"),
        ({"network": "mlp"}, "default"),
        ({"preset": "f2l2-paper"}, "f2l2-paper"),
    ],
)
def test_the_origin_of_a_ridge_is_said(options: dict[str, Any], origin: str) -> None:
    assert TrainOptions(**options).ridge_origin == origin


def test_a_preset_sets_trainer_ridge_and_intercept() -> None:
    options = TrainOptions(preset="f2l2-paper", keep="nothing")
    paper = preset("f2l2-paper")
    assert options.trainer() == paper.trainer
    assert options.setting() == paper.ridge
    assert options.linear_model(5, 3).intercept == paper.intercept
    assert TrainOptions(preset="f2l2-paper", ridge=0.5).setting() == 0.5


@pytest.mark.parametrize(
    "options",
    [
        {"head": "tree"},
        {"head": "logistic", "C": "gcv"},
        {"head": "logistic", "C": 1.0, "ridge": 0.1},
        {"C": 1.0},
        {"head": "logistic", "C": 0.0},
        {"ridge": float("1e400")},
        {"ridge": float("nan")},
        {"ridge": -1.0},
        {"ridge": "big"},
        {"intercept": "none"},
        {"normalize": "l1"},
        {"keep": "everything"},
        {"keep": "history"},
        {"method": "fedavg:round=3"},
        {"method": "fedavg:rounds=many"},
        {"method": "fedavg:rounds=0"},
        {"tolerance": 0.0},
        {"at_least": 0},
        {"network": "mlp", "method": "closed-form"},
        {"network": "mlp", "method": "lbfgs"},
        {"network": "mlp", "method": "cg", "linearize": False},
        {"network": "mlp", "ridge": 0.0},
        {"network": "mlp", "method": "fedavg:rounds=3"},
        {"network": "mlp", "method": "knot:rounds=3"},
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        TrainOptions(**options)


@pytest.mark.parametrize("options", [{"method": "fedavgg"}, {"preset": "f2l2"}])
def test_unknown_names_are_not_found(options: dict[str, Any]) -> None:
    with pytest.raises(NotFoundError):
        TrainOptions(**options)
