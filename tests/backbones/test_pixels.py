"""The values of a small picture, unchanged where it has the size already, and the shape that they had."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from probekit.backbones import backbone
from probekit.datasets.pictures import picture_shape
from probekit.encoding.extract import spec_of
from probekit.errors import InputError
from probekit.testing import check_backbone
from probekit.values import EncodingSpec

SHAPES = {
    "pixels": (1, 28, 28),
    "pixels#grey": (1, 28, 28),
    "pixels:1": (1, 1, 1),
    "pixels:32": (1, 32, 32),
    "pixels#rgb": (3, 32, 32),
    "pixels:8#rgb": (3, 8, 8),
    "pixels:512": (1, 512, 512),
}


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def encoded(name: str, picture: Image.Image) -> NDArray[np.float32]:
    encoder = backbone(name)
    [row] = encoder.encode([encoder.preprocess(picture)])
    return np.asarray(row)


@pytest.mark.parametrize(("name", "side"), [("pixels", 28), ("pixels:28", 28), ("pixels:9", 9)])
def test_a_small_grey_picture_is_its_values(name: str, side: int) -> None:
    values = noise(side, side)
    found = encoded(name, Image.fromarray(values))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, values.reshape(-1) / 255, atol=1e-7)


@pytest.mark.parametrize(("name", "side"), [("pixels#rgb", 32), ("pixels:32#rgb", 32), ("pixels:9#rgb", 9)])
def test_a_small_coloured_picture_is_its_values_channels_first(name: str, side: int) -> None:
    values = noise(side, side, 3)
    found = encoded(name, Image.fromarray(values))
    assert found.dtype == np.float32
    expected = np.stack([values[..., 0], values[..., 1], values[..., 2]]) / 255
    np.testing.assert_allclose(found.reshape(3, side, side), expected, atol=1e-7)


def test_a_grey_picture_has_three_equal_channels() -> None:
    values = noise(32, 32)
    planes = encoded("pixels#rgb", Image.fromarray(values)).reshape(3, 32, 32)
    np.testing.assert_allclose(planes, np.stack([values] * 3) / 255, atol=1e-7)


@pytest.mark.parametrize(("name", "mode"), [("pixels:16", "L"), ("pixels:16#rgb", "RGB")])
def test_another_size_is_squashed_and_stays_between_0_and_1(name: str, mode: str) -> None:
    picture = Image.fromarray(noise(20, 50, 3))
    channels = [np.asarray(one.resize((16, 16), Image.Resampling.BILINEAR)) for one in picture.convert(mode).split()]
    found = encoded(name, picture)
    np.testing.assert_allclose(found, np.stack(channels).reshape(-1) / 255, atol=1e-7)
    assert 0 <= found.min() < found.max() <= 1


@pytest.mark.parametrize("name", ["pixels", "pixels:12", "pixels#rgb", "pixels:12#rgb"])
def test_it_keeps_the_promises_of_a_backbone(name: str) -> None:
    assert [check.name for check in check_backbone(backbone(name)) if not check.passed] == []


def test_caches_of_784_grey_values_stay_valid() -> None:
    kept = "8a29a371c06b421416a9636ec0c32e922b593a3699309bd7bfacdc3c76736a25"
    assert {spec_of(backbone(name)).digest for name in ("pixels", "pixels#grey", "pixels:28")} == {kept}
    assert spec_of(backbone("pixels")).backbone == "pixels"


def test_every_form_has_an_identity_of_its_own() -> None:
    names = ["pixels", "pixels:32", "pixels#rgb", "pixels:28#rgb"]
    assert len({spec_of(backbone(name)).digest for name in names}) == len(names)
    assert [backbone(name).name for name in names] == names
    assert spec_of(backbone("pixels:32#rgb")) == spec_of(backbone("pixels#rgb"))


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
def test_the_spec_tells_the_shape_of_a_row(name: str, shape: tuple[int, int, int]) -> None:
    assert picture_shape(spec_of(backbone(name))) == shape
    assert encoded(name, Image.fromarray(noise(5, 6, 3))).shape == (np.prod(shape),)


@pytest.mark.parametrize("name", ["packaged:efficientnet-lite0", "py:pixels:make", "pixels2", "my-pixels", ""])
def test_rows_of_another_backbone_have_no_shape(name: str) -> None:
    assert picture_shape(EncodingSpec(name, "00", {"size": [28, 28], "channels": 3}, "pooled")) is None


def test_a_spec_without_a_size_has_no_shape() -> None:
    assert picture_shape(EncodingSpec("pixels", "00", {"channels": 3}, "rgb")) is None


@pytest.mark.parametrize("side", ["x", "0", "-3", "513", "1000", "2.5", "28x28", "032", "٣", "9" * 5000, " 28"])
@pytest.mark.parametrize("view", ["", "#rgb"])
def test_a_bad_side_is_refused(side: str, view: str) -> None:
    with pytest.raises(InputError, match=r"whole number from 1 to 512 .*; found"):
        backbone(f"pixels:{side}{view}")


@pytest.mark.parametrize("name", ["pixels#cls", "pixels:32#RGB"])
def test_an_unknown_view_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"views #grey and #rgb; found #(cls|RGB)"):
        backbone(name)


def test_presets_are_refused() -> None:
    with pytest.raises(InputError, match="no presets"):
        backbone("pixels#rgb", preset="f2l2-domainnet")
