"""The random draws of published probes, number by number: validation rows and few-shot rows.

torch.randperm is drawn with NumPy: its CPU generator is a Mersenne Twister seeded like NumPy's
RandomState, and shuffles by r[i] <-> r[i + random % (n - i)].
"""

from __future__ import annotations

import numpy as np

from probekit.arrays import Indices

Drawn = list[tuple[Indices, Indices]]
"""For every draw the rows to fit a few-shot head on, and the rows to choose its C by."""


class TorchGenerator:
    """`torch.Generator().manual_seed(seed)`, for permutations."""

    def __init__(self, seed: int) -> None:
        self._twister = np.random.RandomState(seed)

    def permutation(self, count: int) -> Indices:
        """`torch.randperm(count)` on a CPU."""
        order = np.arange(count)
        numbers = self._twister.randint(0, 1 << 32, max(count - 1, 0), np.uint32).tolist()
        for first, number in enumerate(numbers):
            second = first + number % (count - first)
            order[first], order[second] = order[second], order[first]
        return order


def random_tenth(labels: Indices) -> Indices:
    """DINOv2: the first tenth of a permutation with seed 0, whatever the classes."""
    return TorchGenerator(0).permutation(len(labels))[: len(labels) // 10]


def stratified_tenth(labels: Indices, share: float = 0.1) -> Indices:
    """DINOv3: of every class the first rows of a permutation with seed 0, one or more.

    A class of a single row keeps it for training.
    """
    shuffled = TorchGenerator(0).permutation(len(labels))
    parts = []
    for rows in _rows_by_class(labels[shuffled]):
        count = max(1, int(share * len(rows))) if len(rows) > 1 else 0
        parts.append(shuffled[rows[:count]])
    return np.concatenate(parts)


def dinov3_shots(labels: Indices, shots: int, draws: int) -> Drawn:
    """DINOv3: a hundredth of the rows chooses C; draw t permutes each class with seed t."""
    choosing = stratified_tenth(labels, 0.01)
    shuffled = TorchGenerator(0).permutation(len(labels))
    remaining = shuffled[~np.isin(shuffled, choosing)]
    classes = _rows_by_class(labels[remaining])
    drawn = []
    for draw in range(draws):
        generator = TorchGenerator(draw)
        picked = [rows[generator.permutation(len(rows))[:shots]] for rows in classes]
        drawn.append((remaining[np.concatenate(picked)], choosing))
    return drawn


def big_vision_shots(labels: Indices, shots: int, draws: int) -> Drawn:
    """big_vision: draw t permutes each class by default_rng(t); more shots add rows."""
    drawn = []
    for draw in range(draws):
        generator = np.random.default_rng(draw)
        orders = [generator.permutation(rows) for rows in _rows_by_class(labels)]
        drawn.append((np.concatenate([order[:shots] for order in orders]), _none()))
    return drawn


def mteb_shots(labels: Indices, shots: int, draws: int) -> Drawn:
    """MTEB: one order, shuffled again with the same seed for every draw; first rows of a class."""
    order = list(range(len(labels)))
    drawn = []
    for _ in range(draws):
        np.random.RandomState(42).shuffle(order)
        shuffled = np.array(order, np.int64)
        picked = [shuffled[rows[:shots]] for rows in _rows_by_class(labels[shuffled])]
        drawn.append((np.concatenate(picked), _none()))
    return drawn


def _rows_by_class(labels: Indices) -> list[Indices]:
    """The rows of every class that has some, in order."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _none() -> Indices:
    return np.zeros(0, np.int64)
