"""The draws of published probes, number by number, against the libraries that they call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probekit.probing import draws

LABELS = np.random.default_rng(0).integers(0, 4, 103)


def torch_classes(labels: NDArray[np.int64]) -> list[torch.Tensor]:
    tensor = torch.from_numpy(labels)
    return [torch.nonzero(tensor == number).flatten() for number in tensor.unique()]


@pytest.mark.parametrize("count", [0, 1, 2, 5, 1000])
@pytest.mark.parametrize("seed", [0, 3])
def test_permutations_are_torchs(count: int, seed: int) -> None:
    ours = draws.TorchGenerator(seed)
    theirs = torch.Generator().manual_seed(seed)
    for _ in range(2):  # the generator goes on
        expected = torch.randperm(count, generator=theirs).tolist()
        assert ours.permutation(count).tolist() == expected


def test_the_tenth_of_dinov2() -> None:
    torch.manual_seed(0)
    expected = torch.randperm(len(LABELS))[: len(LABELS) // 10]
    assert draws.random_tenth(LABELS).tolist() == expected.tolist()


def dinov3_validation(labels: NDArray[np.int64], share: float) -> tuple[set[int], torch.Tensor]:
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    validation = set()
    for rows in torch_classes(labels[shuffled.numpy()]):
        count = max(1, int(share * len(rows))) if len(rows) > 1 else 0
        validation |= set(shuffled[rows[:count]].tolist())
    return validation, shuffled


@pytest.mark.parametrize("labels", [LABELS, np.array([0, 0, 1, 2, 2, 2, 0])])
def test_the_tenth_of_dinov3(labels: NDArray[np.int64]) -> None:
    expected, _ = dinov3_validation(labels, 0.1)
    assert set(draws.stratified_tenth(labels).tolist()) == expected


def test_shots_of_dinov3() -> None:
    validation, shuffled = dinov3_validation(LABELS, 0.01)
    training = [row for row in shuffled.tolist() if row not in validation]
    drawn = draws.dinov3_shots(LABELS, 3, 2)
    for seed, (rows, choosing) in enumerate(drawn):
        generator = torch.Generator().manual_seed(seed)
        expected = []
        for members in torch_classes(LABELS[training]):
            picked = torch.randperm(len(members), generator=generator)[:3]
            expected += [training[row] for row in members[picked].tolist()]
        assert set(rows.tolist()) == set(expected)
        assert set(choosing.tolist()) == validation


def test_shots_of_big_vision() -> None:
    for seed, (rows, choosing) in enumerate(draws.big_vision_shots(LABELS, 5, 3)):
        generator = np.random.default_rng(seed)
        orders = [generator.permutation(np.where(number == LABELS)[0]) for number in range(4)]
        assert rows.tolist() == [row for order in orders for row in order[:5]]
        assert not len(choosing)


def test_shots_of_mteb() -> None:
    order = list(range(len(LABELS)))
    for rows, _ in draws.mteb_shots(LABELS, 8, 3):
        np.random.RandomState(42).shuffle(order)
        expected = [row for number in range(4) for row in order if LABELS[row] == number]
        counts = dict.fromkeys(range(4), 0)
        kept = []
        for row in expected:
            counts[LABELS[row]] += 1
            if counts[LABELS[row]] <= 8:
                kept.append(row)
        assert rows.tolist() == kept
