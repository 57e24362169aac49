"""Heads that cannot be are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probekit.errors import InputError
from probekit.models.heads import LinearHead, Network, NetworkHead

WEIGHTS = {"0.weight": np.zeros((2, 3), np.float32)}


def network(**changes: Any) -> Network:
    return Network(
        **{"name": "mlp", "shape": (3,), "classes": 2, "weights": WEIGHTS, "moving": ("0.weight",), **changes}
    )


def test_networks_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="computes in"):
        network(precision="float16")
    for params, classes, centre, said in (
        (np.zeros((6, 1)), ("a", "b"), "moon", "counted from"),
        (np.zeros((6, 2)), ("a", "b"), "wp", "one column"),
        (np.zeros((6, 1)), ("a",), "wp", "2 classes"),
        (np.full((6, 1), np.nan), ("a", "b"), "wp", "NaN"),
    ):
        with pytest.raises(InputError, match=said):
            NetworkHead(params, classes, 0.1, network(), centre)


def test_heads_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError):
        LinearHead(np.full((4, 2), np.inf), ("a", "b"), 0.1)
    with pytest.raises(InputError):
        LinearHead(np.zeros((4, 2)), ("a",), 0.1)
