"""The paper's settings, and those of its code."""

from __future__ import annotations

import numpy as np
import pytest

from probekit.errors import NotFoundError
from probekit.federated.local import Adam, Sgd
from probekit.federated.presets import PRESETS, preset
from probekit.registry import configured
from probekit.unlearning.methods.fedremoval import FedRemoval
from tests.federated.examples import divided, federation


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_trains(name: str) -> None:
    chosen = preset(name)
    asked = federation(divided((70, 40, 33)), intercept=chosen.intercept)
    params = (
        type(chosen.trainer)(**{**vars(chosen.trainer), "rounds": 3})
        .train(asked, ridge=chosen.ridge)
        .params
    )
    assert np.isfinite(params).all()


def test_paper_and_code_differ_in_what_they_say() -> None:
    paper = preset("f2l2-paper")
    code = preset("f2l2-code")
    assert paper.facts.keys() == code.facts.keys()
    assert all(paper.facts[topic] != code.facts[topic] for topic in paper.facts)
    assert (paper.trainer.plan.optimizer, code.trainer.plan.optimizer) == (Sgd(), Adam())
    assert (paper.trainer.uniform, code.trainer.uniform) == (False, True)
    assert (paper.trainer.start, code.trainer.start) == ("model", "random")
    assert (paper.ridge > 0, code.ridge) == (True, 0)
    assert code.trainer.plan.drop_last


def test_the_code_has_a_schedule_for_each_dataset() -> None:
    rounds = {name: preset(name).trainer.rounds for name in PRESETS if "code" in name}
    assert rounds == {
        "f2l2-code": 200,
        "f2l2-code-mnist": 400,
        "f2l2-code-fashion-mnist": 800,
        "f2l2-code-cifar10": 800,
    }


def test_an_unknown_preset_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        preset("f2l2")


@pytest.mark.parametrize("name", PRESETS)
def test_the_removal_of_a_preset_is_a_method(name: str) -> None:
    assert isinstance(configured(preset(name).unlearner), FedRemoval)
