"""TorchBackbone: frozen, float32 outside, one identity per numbers; what is random is refused."""

from __future__ import annotations

import copy
import hashlib
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from probekit.backbones import load_backbone, module
from probekit.backbones.backbone import Backbone
from probekit.backbones.module import (
    Preprocessing,
    TorchBackbone,
    choose_device,
    declare_operators,
    make_preset,
    tensor_digest,
)
from probekit.errors import InputError, NotFoundError

ROWS = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)


def output(model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
    return {"output": model(batch)}


def small(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def wrap(model: nn.Module, **options: Any) -> TorchBackbone:
    settings: dict[str, Any] = {
        "name": "mine",
        "kind": "array",
        "forward": output,
        "views": {"output": 3},
        "preprocessing": Preprocessing(np.asarray, {}),
        "identity": {"library": "mine"},
        "device": "cpu",
        "precision": "float32",
    }
    return TorchBackbone(model=model, **{**settings, **options})


def test_it_is_a_frozen_backbone() -> None:
    backbone: Backbone = wrap(small().train())
    assert isinstance(backbone, TorchBackbone)
    assert not any(part.training for part in backbone.model.modules())
    assert not any(weight.requires_grad for weight in backbone.model.parameters())


def test_tensors_arrays_and_lists_of_either_encode_alike() -> None:
    backbone = wrap(small())
    expected = small().eval()(torch.tensor(ROWS)).detach().numpy()
    frozen = ROWS.copy()
    frozen.setflags(write=False)
    forms = (torch.tensor(ROWS), frozen, list(ROWS), list(torch.tensor(ROWS)), ROWS.astype("f8"))
    for form in forms:
        rows = backbone.encode(form)
        assert rows.dtype == np.float32
        np.testing.assert_allclose(rows, expected, atol=1e-6)


def test_batches_on_a_cpu_do_not_change_the_bits() -> None:
    sizes: list[int] = []

    def watched(model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        sizes.append(len(batch))
        assert torch.is_inference_mode_enabled()
        return output(model, batch)

    wrap(small(), forward=watched).encode(ROWS)
    assert sizes == [8, 8, 4]


def test_views_stand_side_by_side_in_order() -> None:
    def both(model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        return {"second": batch[:, :1], "first": model(batch), "unused": batch}

    rows = wrap(small(), forward=both, views={"first": 3, "second": 1}).encode(ROWS)
    np.testing.assert_allclose(rows[:, :3], wrap(small()).encode(ROWS))
    np.testing.assert_allclose(rows[:, 3], ROWS[:, 0])


def test_texts_reach_the_module_as_a_list() -> None:
    def lengths(model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        assert isinstance(batch, list)
        return {"output": torch.tensor([[float(len(text))] for text in batch])}

    backbone = wrap(nn.Identity(), forward=lengths, kind="text", views={"output": 1})
    assert backbone.encode(["a", "abc"]).tolist() == [[1.0], [3.0]]


def test_the_digest_is_of_names_types_shapes_and_bytes() -> None:
    tensors = small().state_dict()
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].numpy()
        hasher.update(f"{name}\0torch.{array.dtype}\0{array.shape}\0".encode() + array.tobytes())
    assert tensor_digest(tensors) == hasher.hexdigest()
    shuffled = dict(reversed(tensors.items()))
    assert tensor_digest(shuffled) == tensor_digest(tensors)


def test_the_identity_follows_what_determines_the_numbers() -> None:
    changed = small()
    with torch.no_grad():
        next(changed.parameters())[0, 0] += 1e-3
    identity = wrap(small()).identity
    assert wrap(copy.deepcopy(small()), name="other", commit="1").identity == identity
    assert wrap(changed).identity != identity
    assert wrap(small(), identity={"library": "other"}).identity != identity
    assert wrap(small(), precision="amp-bfloat16").identity != identity
    half = small().half()
    assert wrap(copy.deepcopy(half)).identity == wrap(half.float()).identity


def test_reduced_precision_changes_little_and_gives_float32() -> None:
    exact = wrap(small()).encode(ROWS)
    for precision in ("amp-bfloat16", "amp-float16"):
        backbone = wrap(small(), precision=precision)
        rough = backbone.encode(ROWS)
        assert rough.dtype == np.float32
        assert 0 < np.abs(rough - exact).max() < 0.05
        assert {weight.dtype for weight in backbone.model.parameters()} == {torch.float32}


def test_channels_last_gives_the_same_numbers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    pictures = np.random.default_rng(1).standard_normal((3, 3, 9, 9)).astype(np.float32)
    plain = wrap(copy.deepcopy(model), views={"output": 8})
    fast = wrap(model, views={"output": 8}, channels_last=True)
    assert plain.identity == fast.identity
    np.testing.assert_allclose(plain.encode(pictures), fast.encode(pictures), atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 1), (2,), (1, 3), (2, 4)])
def test_output_that_is_not_one_vector_per_sample_is_refused(shape: tuple[int, ...]) -> None:
    backbone = wrap(small(), forward=lambda model, batch: {"output": torch.zeros(shape)})
    with pytest.raises(InputError):
        backbone.encode(ROWS[:2])


def test_output_that_is_no_tensor_is_refused() -> None:
    backbone = wrap(small(), forward=lambda model, batch: {"output": "text"})
    with pytest.raises(InputError):
        backbone.encode(ROWS[:2])


def test_samples_of_two_shapes_are_refused_with_both() -> None:
    with pytest.raises(InputError):
        wrap(small()).encode([np.zeros(4), np.zeros(3)])


def test_workers_receive_the_preparation_alone() -> None:
    prepare = wrap(small(), preprocessing=make_preset("f2l2-imagenet")).prepare
    picture = Image.new("RGB", (50, 30), (255, 0, 51))
    assert torch.equal(pickle.loads(pickle.dumps(prepare))(picture), prepare(picture))


def test_unknown_places_are_refused_with_those_that_exist() -> None:
    with pytest.raises(InputError):
        wrap(small(), precision="float8")
    for device in ("tpu", "cuda:99", "meta"):
        with pytest.raises(InputError):
            wrap(small(), device=device)


def test_auto_takes_the_fastest_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto") == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == "cuda"
    assert choose_device("cpu") == "cpu"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(NotFoundError):
        load_backbone("hff:org/name")
    with pytest.raises(InputError):
        load_backbone("")


def test_prepare_belongs_to_modules_and_functions() -> None:
    with pytest.raises(InputError):
        load_backbone("pixels", prepare=np.asarray)


SCRIPT = """
import probekit.backbones.module
import torchvision.transforms
print(len(torchvision.transforms.Compose([]).transforms))
"""


def test_torchvision_imports_after_the_shim() -> None:
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert process.stdout.strip() == "0", process.stderr


@pytest.mark.parametrize("healthy", [True, False])
def test_operators_are_declared_where_they_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, healthy: bool
) -> None:
    (tmp_path / "_C.so").write_bytes(b"not a library")
    operators = SimpleNamespace()
    declared: list[str] = []

    def load_library(path: str) -> None:
        if not healthy:
            raise OSError(path)
        operators.nms = path

    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(module, "find_spec", lambda name: spec)
    monkeypatch.setattr(torch.ops, "load_library", load_library)
    monkeypatch.setattr(torch.ops, "torchvision", operators, raising=False)
    monkeypatch.setattr(torch.library, "define", lambda name, schema: declared.append(name))
    declare_operators()
    assert declared == ([] if healthy else ["torchvision::nms", "torchvision::qnms"])
    declared.clear()
    monkeypatch.setitem(sys.modules, "torchvision", sys)
    declare_operators()
    assert declared == []


def test_presets_follow_the_papers_arithmetic() -> None:
    picture = Image.new("RGB", (50, 30), (255, 0, 51))
    pixels = make_preset("f2l2-domainnet").prepare(picture)
    assert pixels.shape == (3, 224, 224)
    expected = (np.array([1.0, 0.0, 0.2]) - [0.4914, 0.4822, 0.4465]) / [0.247, 0.243, 0.261]
    np.testing.assert_allclose(pixels[:, 100, 100], expected, atol=1e-5)
    np.testing.assert_allclose(
        make_preset("f2l2-flowers").prepare(picture)[:, 9, 9], [1, 0, 0.2], atol=1e-6
    )
    assert module.CPU_BATCH == 8
