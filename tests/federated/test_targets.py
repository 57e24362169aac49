"""Several labels and real targets through the one door: in this process and through files, honest and garbage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.errors import InputError, MismatchError, MissingClientsError
from probekit.federated.in_process import InProcess
from probekit.federated.message import Answer, Ask
from probekit.federated.partition import partition
from probekit.federated.rows import design_for, head_problem
from probekit.federated.training import train
from probekit.values import EmbeddingSet
from tests.nodes import Machines


@pytest.fixture(scope="module")
def data() -> EmbeddingSet:
    generator = np.random.default_rng(2)
    X = generator.normal(size=(120, 10))
    Y = X @ generator.normal(size=(10, 3)) + generator.normal(size=(120, 3))
    Y[generator.random(Y.shape) < 0.3] = np.nan
    Y[:, 0] = np.where(np.isnan(Y).all(axis=1), 1.0, Y[:, 0])
    return EmbeddingSet.from_numpy(X, Y, class_names=("a", "b", "c"))


@pytest.mark.parametrize("options", [{}, {"keep": "nothing"}, {"ridge": "auto:loo"}])
@pytest.mark.parametrize("clients", [3, 14])
def test_the_same_head_and_bytes_through_files(
    data: EmbeddingSet, tmp_path: Path, clients: int, options: dict[str, Any]
) -> None:
    divided = partition(data.labels, "iid", clients=clients, seed=1)
    problem = head_problem(data, design_for(data))
    machines = Machines(tmp_path, data, divided.clients)
    near, far = InProcess.of(problem, data, divided.clients), machines.answering(problem)
    given: Any = {"ridge": 0.1, "problem": problem, **options}
    wanted, found = (train(data, divided, federation=one, **given) for one in (near, far))
    assert found.head.digest == wanted.head.digest
    assert far.traffic == near.traffic
    total = near.ask("statistics").total().arrays
    assert int(total["rows"][0]) == 120


def test_a_sum_of_several_buckets_is_that_of_all_rows() -> None:
    generator = np.random.default_rng(5)
    data = EmbeddingSet.from_numpy(generator.normal(size=(400, 5)), generator.normal(size=(400, 2)))
    problem = head_problem(data, design_for(data))
    divided = partition(data.labels, "iid", clients=10, seed=1)
    total = InProcess.of(problem, data, divided.clients).ask("statistics").total()
    found: Any = problem.stats(total.arrays)
    [part] = found.parts.values()
    joint = np.hstack([np.asarray(one) for one in (data.embeddings, np.ones((400, 1)), data.targets)])
    assert part.count == total.count == 400
    np.testing.assert_allclose(part.matrix, joint.T @ joint, atol=1e-9)


def test_garbage_is_named_and_classes_are_not_targets(data: EmbeddingSet) -> None:
    divided = partition(data.labels, "iid", clients=3, seed=1)
    problem = head_problem(data, design_for(data))

    class Liar(InProcess):
        def reply(self, ask: Ask, name: str) -> Answer:
            found = super().reply(ask, name)
            joint = next(one for one in found.arrays if one.startswith("joint-"))
            return replace(found, arrays={**found.arrays, joint: found.arrays[joint][:-1]}) if name == "1" else found

    with pytest.raises(MissingClientsError, match="needs shape"):
        train(data, divided, ridge=0.1, problem=problem, federation=Liar.of(problem, data, divided.clients))
    classes = replace(data, targets=None, labels=np.arange(120) % 3)
    with pytest.raises(MismatchError, match="different problems"):
        train(classes, divided, ridge=0.1, problem=problem)
    with pytest.raises(InputError, match="rows have classes"):
        _ = problem.hold(classes, np.arange(4)).statistics
