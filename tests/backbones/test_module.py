"""FrozenModule: frozen, float32 outside, one fingerprint per architecture and weights."""

import copy
import hashlib
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from probekit.backbones.module import FrozenModule, available, weights_digest
from probekit.backbones.preprocessing import StatedPreprocess
from probekit.errors import InputError
from probekit.protocols import Backbone, Placeable


def same(sample: object) -> object:
    return sample


def frozen(module: nn.Module, **options: object) -> FrozenModule:
    preprocess = StatedPreprocess(same, {"given": "as it is"})
    return FrozenModule(module, preprocess, name="mine", view="output", kind="array", **options)  # type: ignore[arg-type]


def small() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def test_it_is_a_placeable_backbone_that_is_frozen() -> None:
    backbone = frozen(small().train())
    assert isinstance(backbone, Backbone)
    assert isinstance(backbone, Placeable)
    assert not any(part.training for part in backbone.module.modules())
    assert not any(weight.requires_grad for weight in backbone.module.parameters())


def test_tensors_arrays_and_lists_of_either_encode_alike() -> None:
    backbone, rows = frozen(small()), np.arange(20, dtype=np.float32).reshape(5, 4)
    wanted = small().eval()(torch.tensor(rows)).detach().numpy()
    rows.setflags(write=False)
    forms = (torch.tensor(rows), rows, list(rows), list(torch.tensor(rows)), rows.astype(np.float64))
    for form in forms:
        given = backbone.encode(form)
        assert given.dtype == np.float32
        np.testing.assert_allclose(given, wanted, atol=1e-6)


def test_the_fingerprint_is_the_digest_of_names_types_shapes_and_bytes() -> None:
    module = small()
    hasher = hashlib.sha256(b"text\0")
    for name in sorted(module.state_dict()):
        array = module.state_dict()[name].numpy()
        hasher.update(f"{name}\0torch.{array.dtype}\0{array.shape}\0".encode() + array.tobytes())
    assert weights_digest("text", module) == hasher.hexdigest()


def test_the_fingerprint_follows_weights_and_architecture_and_nothing_else() -> None:
    module, other, half = small(), small(), small().half()
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1e-3
    first = frozen(copy.deepcopy(module))
    first.place("cpu", precision="amp-bfloat16")
    assert first.fingerprint == frozen(module).fingerprint
    assert frozen(other).fingerprint != first.fingerprint
    assert frozen(small(), architecture="another").fingerprint != first.fingerprint
    assert frozen(half).fingerprint == frozen(copy.deepcopy(half).float()).fingerprint


def test_reduced_precision_changes_little_and_gives_float32() -> None:
    backbone, rows = frozen(small()), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    exact = backbone.encode(rows)
    for precision in ("amp-bfloat16", "amp-float16"):
        backbone.place("cpu", precision=precision)
        rough = backbone.encode(rows)
        assert backbone.precision == precision
        assert rough.dtype == np.float32
        assert 0 < np.abs(rough - exact).max() < 0.05


def test_no_gradients_are_recorded() -> None:
    seen: list[bool] = []

    def read(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_inference_mode_enabled())
        output: torch.Tensor = module(batch)
        return output

    frozen(small(), read=read).encode(torch.zeros(2, 4))
    assert seen == [True]


@pytest.mark.parametrize("shape", [(2, 3, 1), (2,), (1, 6)])
def test_output_that_is_not_one_vector_per_sample_is_refused(shape: tuple[int, ...]) -> None:
    backbone = frozen(small(), read=lambda module, batch: torch.zeros(shape))
    with pytest.raises(InputError, match=r"shape \(2, d\).*Pool or flatten"):
        backbone.encode(torch.zeros(2, 4))


def test_output_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(InputError, match="found dict"):
        frozen(small(), read=lambda module, batch: {"last": batch}).encode(torch.zeros(2, 4))


def test_only_the_preprocessing_travels() -> None:
    preprocess = pickle.loads(pickle.dumps(frozen(small()).preprocess))
    assert preprocess.values == {"given": "as it is"}


def test_unknown_places_are_refused_with_those_that_are_there() -> None:
    backbone = frozen(small())
    with pytest.raises(InputError, match="float32, amp-bfloat16"):
        backbone.place("cpu", precision="float8")
    for device in ("tpu", "cuda:99", "cpu:1"):
        with pytest.raises(InputError, match=rf"{device}.*this machine has cpu"):
            backbone.place(device)


def test_auto_takes_the_fastest_device_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert available("auto") == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert available("auto") == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (available("auto"), available("cuda:1")) == ("cuda", "cuda:1")
