"""Runs whose C is chosen by rows that the hospitals hold out."""

from __future__ import annotations

from pathlib import Path

import pytest

from probekit.errors import InputError
from probekit.federated.held_out import HeldOut
from probekit.linear.ridge import InverseC
from probekit.runs.options import TrainOptions
from tests.runs.examples import make_run


def test_c_is_chosen_again_without_a_hospital(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", head="logistic", C="auto")
    state = run.newest.state
    assert state.ridge_choice.rule == HeldOut()
    assert run.verify().ok
    run.unlearn(client="north")
    anew = run.newest.state
    assert anew.ridge_choice.rule == HeldOut()
    assert not anew.ridge_choice.stale
    assert run.certificate is not None
    assert not run.certificate.stale_ridge
    rows = sum(state.clients.values()), sum(anew.clients.values())
    assert state.ridge * rows[0] != pytest.approx(anew.ridge * rows[1])  # north's are larger
    assert run.verify().ok


def test_a_logistic_head_chooses_its_c_by_default() -> None:
    assert TrainOptions(head="logistic").setting() == HeldOut()
    assert TrainOptions(head="logistic", C="auto").setting() == HeldOut()
    assert TrainOptions(head="logistic", C=1).setting() == InverseC(1.0)
    assert TrainOptions(head="logistic", ridge=0.1).setting() == 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "ridge", "C": "auto"}, "'ridge'"),
        ({"head": "logistic", "C": "gcv"}, "found 'gcv'"),
        ({"head": "logistic", "C": -1.0}, "found -1"),
        ({"head": "logistic", "C": "auto", "ridge": 0.1}, "0.1"),
        ({"head": "logistic", "C": "auto", "network": "mlp", "linearize": False}, "mlp"),
    ],
)
def test_a_c_that_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainOptions(**options)  # type: ignore[arg-type]
