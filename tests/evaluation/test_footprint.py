"""What a removal took is what was seen to pass, and what lay there."""

from __future__ import annotations

import json

from probekit.evaluation.footprint import Footprint, footprint, stored_bytes
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import Material
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from tests.unlearning.conftest import Run, make_run


def took(run: Run, method: str, material: Material | None = None) -> Footprint:
    removal = Removal(run.trained, UnlearnRequest(("1",)), material or run.material)
    return footprint(removal, carried_out(removal, method))


def test_who_was_online_and_what_lay_there() -> None:
    run = make_run()
    d, k = run.trained.params.shape
    exact, anew = took(run, "exact"), took(run, "retrain")
    assert (exact.retained_online, exact.target_online, exact.up) == (False, False, 0)
    assert exact.needed == ("statistics",)
    assert exact.storage == len(run.trained.counts) * 8 * (d * d + d * k + k)
    assert (anew.retained_online, anew.target_online) == (True, False)
    assert anew.up >= 8 * (len(run.trained.counts) - 1) * d * k
    assert anew.storage == 0
    assert json.loads(json.dumps(exact.plain))["stored"]["statistics"] == exact.storage


def test_a_federation_that_is_given_counts_once_it_is_asked() -> None:
    run = make_run()
    asked = took(run, "retrain", Material(clients=run.online("1"), embeddings=None))
    assert asked.retained_online
    assert asked.rounds >= 1
    still = took(run, "exact", Material(clients=run.online("1")))
    assert not still.retained_online


def test_gradients_and_histories_are_counted() -> None:
    from dataclasses import replace

    import numpy as np

    from probekit.federated.trained import Gradients, History, Kept, Round

    run = make_run()
    params = run.trained.params
    one = Round(params, ("0", "1"), (0.5, 0.5), np.stack([params, params]))
    kept = Kept(arrays={"a": np.zeros(3)}, parts={"0": {"b": np.zeros(2)}})
    full = replace(
        run.trained, gradients=Gradients({"0": params}), history=History((one,), params), kept={"fisher": kept}
    )
    found = stored_bytes(full)
    assert (found["gradients"], found["history"], found["fisher"]) == (params.nbytes, 4 * params.nbytes, 40)
