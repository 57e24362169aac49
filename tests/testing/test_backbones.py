"""check_backbone passes a good backbone and names each planted fault of a bad one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from probekit.data.pictures import canary_samples
from probekit.errors import InputError
from probekit.testing import ConformanceError, check_backbone


def moments(picture: Image.Image) -> NDArray[np.float32]:
    pixels = np.asarray(picture.convert("RGB"), dtype=np.float32).reshape(-1, 3)
    return np.concatenate([pixels.mean(0), pixels.std(0)])


class Good:
    """Mean and spread of each picture's colors."""

    name = "good"
    kind = "image"

    def __init__(self) -> None:
        self.identity: dict[str, Any] = {"weights": "none", "preprocessing": "RGB"}
        self.views = {"moments": 6}

    def prepare(self, content: Image.Image) -> Any:
        return moments(content)

    def encode(self, batch: Any) -> Any:
        return np.stack(list(batch))


class RandomVectors(Good):
    def encode(self, batch: Any) -> Any:
        noise = np.random.default_rng().normal(size=(len(batch), 1))
        return super().encode(batch) + noise.astype(np.float32)


class BatchStatistics(Good):
    """Centers over the batch, as a network in training mode does."""

    def encode(self, batch: Any) -> Any:
        rows = super().encode(batch)
        return rows - rows.mean(0)


class ThreeDimensional(Good):
    def encode(self, batch: Any) -> Any:
        return super().encode(batch)[:, :, None]


class OtherWidth(Good):
    def encode(self, batch: Any) -> Any:
        return super().encode(batch)[:, :5]


class Tensors(Good):
    def encode(self, batch: Any) -> Any:
        return torch.from_numpy(super().encode(batch))


class WholeNumbers(Good):
    def encode(self, batch: Any) -> Any:
        return super().encode(batch).astype(np.int64)


class NotFinite(Good):
    def encode(self, batch: Any) -> Any:
        rows = super().encode(batch)
        rows[2, 1] = np.nan
        return rows


class PrepareHoldsModel(Good):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(6, 6).eval()

    def prepare(self, content: Image.Image) -> Any:
        with torch.no_grad():
            return self.network(torch.from_numpy(moments(content))).numpy()


class LambdaPrepare(Good):
    def __init__(self) -> None:
        super().__init__()
        self.prepare = lambda content: moments(content)  # type: ignore[method-assign]


class RandomPrepare(Good):
    def prepare(self, content: Image.Image) -> Any:
        return moments(content) + np.random.default_rng().normal(size=6).astype(np.float32)


class NoIdentity(Good):
    def __init__(self) -> None:
        super().__init__()
        self.identity = {}


class IdentityOfObjects(Good):
    def __init__(self) -> None:
        super().__init__()
        self.identity = {"device": torch.device("cpu")}


class ChangingIdentity(Good):
    @property
    def identity(self) -> dict[str, Any]:
        return {"weights": np.random.default_rng().integers(2**60).item()}

    @identity.setter
    def identity(self, value: dict[str, Any]) -> None:
        pass


def test_a_good_backbone_passes_and_is_measured() -> None:
    measured = check_backbone(Good())
    assert measured.width == 6
    assert measured.repeat_difference == measured.batch_difference == 0
    assert measured.samples_per_second > 0


@pytest.mark.parametrize(
    "backbone",
    [
        RandomVectors,
        BatchStatistics,
        ThreeDimensional,
        OtherWidth,
        Tensors,
        WholeNumbers,
        NotFinite,
        PrepareHoldsModel,
        LambdaPrepare,
        RandomPrepare,
        NoIdentity,
        IdentityOfObjects,
        ChangingIdentity,
    ],
)
def test_each_planted_fault_is_refused(backbone: type[Good]) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_backbone(backbone())
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, InputError)


class OtherKernels(Good):
    def encode(self, batch: Any) -> Any:
        return super().encode(batch) * np.float32(1 + 1e-6 * (len(batch) % 2))


def test_small_differences_between_batches_are_allowed() -> None:
    measured = check_backbone(OtherKernels())
    assert 0 < measured.batch_difference < 1e-5


def test_samples_may_be_given_and_must_suffice() -> None:
    pictures = canary_samples("image")
    check_backbone(Good(), samples=pictures[:4])
    with pytest.raises(InputError):
        check_backbone(Good(), samples=pictures[:3])
    arrays = Good()
    arrays.kind = "array"
    with pytest.raises(InputError):
        check_backbone(arrays)
