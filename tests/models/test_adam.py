"""The iterative solver takes torch's steps, keeps the best of those it looks at, and tells its true residual."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.models.adam import F2L2, AdamSteps

Array = NDArray[np.float64]


def by_torch(matrix: Array, rhs: Array, *, start: Array, options: AdamSteps) -> Array:
    """The best of every few points that torch's Adam passes, by the objective without weight decay."""
    v = torch.tensor(start, requires_grad=True)
    A, g = torch.tensor(matrix), torch.tensor(rhs)
    optimiser = torch.optim.Adam([v], lr=options.rate, weight_decay=options.weight_decay)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, options.decay_every, options.decay)
    best, lowest = start, np.inf
    for step in range(options.steps + 1):
        loss = (v * (A @ v) / 2 - g * v).sum()
        if step % options.look_every == 0 and float(loss.detach()) < lowest:
            best, lowest = v.detach().numpy().copy(), float(loss.detach())
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
    return np.asarray(best)


@pytest.mark.parametrize("options", [AdamSteps(), AdamSteps(steps=57, weight_decay=0.3, decay_every=10)])
def test_steps_are_torchs(options: AdamSteps) -> None:
    random = np.random.default_rng(0)
    rows, rhs = random.normal(size=(30, 6)), random.normal(size=(6, 2))
    matrix = rows.T @ rows / 30
    found = options.solve(matrix, rhs)
    wanted = by_torch(matrix, rhs, start=np.zeros((6, 2)), options=options)
    assert np.allclose(found.value, wanted, rtol=1e-8, atol=1e-10)
    true = np.linalg.norm(matrix @ found.value - rhs) / np.linalg.norm(rhs)
    assert found.residual == pytest.approx(float(true))


def test_the_published_schedule_starts_anywhere_but_always_there() -> None:
    matrix, rhs = np.eye(4), np.ones((4, 3))
    one, other = AdamSteps(steps=1, random_start=True), AdamSteps(steps=1, random_start=True, seed=1)
    assert np.array_equal(one.solve(matrix, rhs).value, one.solve(matrix, rhs).value)
    assert not np.array_equal(one.solve(matrix, rhs).value, other.solve(matrix, rhs).value)
    assert (F2L2.steps, F2L2.rate, F2L2.weight_decay, F2L2.decay_every) == (400, 0.01, 0.01, 200)
    with pytest.raises(InputError, match="above 0"):
        AdamSteps(steps=0)
