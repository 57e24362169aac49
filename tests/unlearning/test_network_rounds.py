"""Rounds and steps on a whole network: in float32 where it was trained so, and told as they are done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit.protocols import Progress
from probekit.unlearning.choice import unlearn
from tests.unlearning.small_network import (
    GONE,
    minimum,
    network_of,
    whole,
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("centre", ["wp", "zero"])
def test_gradient_rounds_in_float32_end_where_float64_ones_do(centre: str) -> None:
    trained, material = whole(centre, precision="float32")
    assert material.embeddings is not None
    head = network_of(trained)
    double = replace(head, network=replace(head.network, precision="float64"))
    wanted = minimum(double, material.embeddings, np.arange(30, 90))
    away = np.linalg.norm(trained.params - wanted)
    done = unlearn(trained, GONE, method="fedremoval-pcg:300", material=material)
    assert np.linalg.norm(done.trained_after.params - wanted) <= 1e-9 * away
    assert done.solution.residual <= 1e-9
    few = unlearn(trained, GONE, method="fedremoval-pcg:5", material=material)
    assert few.solution.steps == 5
    assert 1e-9 * away < np.linalg.norm(few.trained_after.params - wanted) < away


@pytest.mark.parametrize(
    ("name", "stage", "total"),
    [
        ("fedremoval:pcg", "solving", None),
        ("fedremoval-line:cg", "solving", None),
        ("fedremoval:adam", "solving", 400),
        ("fedremoval-pcg:12", "gradient rounds", 12),
        ("retrain", "retraining", 2002),
    ],
)
def test_long_work_tells_how_far_it_is(name: str, stage: str, total: int | None) -> None:
    trained, material = whole()
    told: dict[str, list[Progress]] = {}

    def watch(stage: str) -> Callable[[Progress], None]:
        return told.setdefault(stage, []).append

    unlearn(trained, GONE, method=name, material=replace(material, watch=watch))
    assert [*told] == [stage]
    assert {one.total for one in told[stage]} == {total}
    done = [one.done for one in told[stage]]
    assert len(done) > 5
    assert done == sorted(set(done))
    assert told[stage][-1].residual < 0.5 * told[stage][0].residual
