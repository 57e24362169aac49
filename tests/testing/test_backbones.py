"""The conformance tests pass a good backbone and catch each way of being a bad one."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from probekit.testing import check_backbone


class Good:
    """Mean and spread of each picture's colours."""

    name, kind, fingerprint, view = "good", "image", "ab" * 32, "moments"
    preprocessing: dict[str, Any] = {"colour": "RGB"}  # noqa: RUF012

    def preprocess(self, sample: Any) -> Any:
        pixels = np.asarray(sample.convert("RGB"), dtype=np.float32).reshape(-1, 3)
        return np.concatenate([pixels.mean(0), pixels.std(0)])

    def encode(self, batch: Any) -> Any:
        return np.stack(list(batch))


class Random(Good):
    def encode(self, batch: Any) -> Any:
        noise = np.random.default_rng().normal(size=(len(batch), 1))
        return super().encode(batch) + noise.astype(np.float32)


class Batched(Good):
    """Normalises over the batch, as a network left in training mode does."""

    def encode(self, batch: Any) -> Any:
        rows = super().encode(batch)
        return rows - rows.mean(0)


class Wide(Good):
    def encode(self, batch: Any) -> Any:
        return super().encode(batch).astype(np.float64)


class Cubic(Good):
    def encode(self, batch: Any) -> Any:
        return super().encode(batch)[:, :, None]


class Holed(Good):
    def encode(self, batch: Any) -> Any:
        return super().encode(batch) * np.float32("nan")


class Training(Good):
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())


class Silent(Good):
    preprocessing: dict[str, Any] = {}  # noqa: RUF012


class Wordy(Good):
    preprocessing: dict[str, Any] = {"device": torch.device("cpu")}  # noqa: RUF012


class Named(Good):
    fingerprint = "version 2"


class Broken(Good):
    def encode(self, batch: Any) -> Any:
        raise RuntimeError("out of memory")


def failures(backbone: Any) -> dict[str, str]:
    return {check.name: check.detail for check in check_backbone(backbone) if not check.passed}


def test_a_good_backbone_passes_everything_and_is_timed() -> None:
    checks = {check.name: check for check in check_backbone(Good())}
    assert all(check.passed for check in checks.values())
    assert "samples/s" in checks["speed"].detail
    assert set(checks) >= {
        "shape",
        "dtype",
        "frozen",
        "deterministic",
        "batch size",
        "preprocessing",
        "fingerprint",
    }


@pytest.mark.parametrize(
    ("bad", "caught", "words"),
    [
        (Random, "deterministic", "wanted 0"),
        (Batched, "batch size", "1, 3, 8"),
        (Wide, "dtype", "float64"),
        (Cubic, "shape", "wanted (8, d)"),
        (Holed, "finite", "48 bad"),
        (Training, "frozen", "3 parts in training mode, 2 parameters"),
        (Silent, "preprocessing", "plain values"),
        (Wordy, "preprocessing", "JSON"),
        (Named, "fingerprint", "64 hexadecimal"),
        (Broken, "encodes", "out of memory"),
    ],
)
def test_each_fault_is_caught(bad: type[Good], caught: str, words: str) -> None:
    assert words in failures(bad())[caught]


def test_arrays_need_samples_of_their_own() -> None:
    class Rows(Good):
        kind = "array"

        def preprocess(self, sample: Any) -> Any:
            return sample

    assert "give samples" in failures(Rows())["samples"]
    rows = [np.full(3, number, dtype=np.float32) for number in range(8)]
    assert all(check.passed for check in check_backbone(Rows(), samples=rows))
