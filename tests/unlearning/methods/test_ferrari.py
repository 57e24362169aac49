"""Blindness: its gradient, what shrinks, what stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probekit.errors import InputError, NotFoundError
from probekit.federated.client import RowClient
from probekit.federated.local import LocalPlan
from probekit.registry import configured
from probekit.unlearning.methods.ferrari import NOISE_STREAM, Blindness
from tests.oracles import Array, relative_error
from tests.unlearning.maps import LEAVER, Problem, make_problem
from tests.unlearning.problems import forget


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem()


def noise(generator: np.random.Generator, rows: int, directions: Array) -> Array:
    size = generator.uniform(0.05, 1.0, (rows, 1))
    return size * generator.normal(size=(rows, len(directions))) @ directions


def test_its_gradient_is_that_of_the_loss(problem: Problem) -> None:
    """By differences of the mean of |f(x) - f(x + d)| / |d| over the same noise."""
    directions = np.eye(6)[:2]
    client = RowClient(LEAVER, problem.asked.model, problem.maps.clients[LEAVER])
    plan = LocalPlan(steps=1)
    gradient = Blindness(directions, 3, "mean").local_loss(client, plan).gradient(problem.start)
    generator = plan.generator(LEAVER, NOISE_STREAM)
    draws = [noise(generator, client.count, directions) for _ in range(3)]

    def loss(W: Array) -> float:
        ratios = [np.linalg.norm(d @ W[:-1], axis=1) / np.linalg.norm(d, axis=1) for d in draws]
        return float(np.mean(ratios))

    for place in np.ndindex(problem.start.shape):
        step = np.zeros_like(problem.start)
        step[place] = 1e-6
        slope = (loss(problem.start + step) - loss(problem.start - step)) / 2e-6
        assert gradient[place] == pytest.approx(slope, abs=1e-8)


def test_the_region_shrinks_step_by_step_and_nothing_else_changes(problem: Problem) -> None:
    heads = [
        problem.after(f"ferrari:columns=0:1+3:4,rate=0.003,steps={steps}").params
        for steps in (1, 5, 15, 30)
    ]
    sizes = [np.linalg.norm(head[[0, 3]]) for head in (problem.start, *heads)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.8 * sizes[0]
    for head in heads:
        others = np.delete(head - problem.start, [0, 3], axis=0)
        assert np.abs(others).max() < 1e-12


def test_differences_of_embeddings_say_the_directions(problem: Problem, tmp_path: Path) -> None:
    direction = np.array([1.0, -2.0, 0.5, 0.0, 0.0, 1.0])
    path = tmp_path / "trigger.npy"
    np.save(path, direction)
    after = problem.after(f"ferrari:directions={path},rate=0.003,steps=30").params
    change = after - problem.start
    assert change[:-1] == pytest.approx(np.outer(direction, change[0]), abs=1e-12)
    shrunk = np.linalg.norm(direction @ after[:-1])
    assert shrunk < 0.7 * np.linalg.norm(direction @ problem.start[:-1])


def test_a_sum_steps_as_far_as_there_are_rows(problem: Problem) -> None:
    """The published loss; on all rows of a client one step is that many times as long."""
    one, many = (
        problem.after(f"ferrari:columns=0:2,steps=1,rate=1e-5,reduce={how}").params - problem.start
        for how in ("mean", "sum")
    )
    assert relative_error(many, len(problem.maps.clients[LEAVER]) * one) < 1e-9


def test_directions_that_do_not_fit_are_refused(problem: Problem, tmp_path: Path) -> None:
    for columns in ("a:b", "4:9", "2:2", "5"):
        with pytest.raises(InputError):
            problem.after(f"ferrari:columns={columns}")
    with pytest.raises(InputError, match="blind"):
        problem.after("ferrari")
    with pytest.raises(NotFoundError):
        problem.after(f"ferrari:directions={tmp_path / 'none.npy'}")
    np.save(tmp_path / "wide.npy", np.ones((2, 7)))
    (tmp_path / "text.npy").write_text("no numbers")
    for name in ("wide", "text"):
        with pytest.raises(InputError):
            problem.after(f"ferrari:directions={tmp_path / name}.npy")
    alone = problem.asked.only({LEAVER})
    forget(problem.state, alone, "ferrari:columns=0:2", clients={LEAVER})
    assert configured("ferrari:columns=0:2").columns == "0:2"
