"""The values of a small picture: unchanged where it has the size already, channels first."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from probekit.backbones import load_backbone
from probekit.backbones.pixels import Pixels
from probekit.errors import InputError, NotFoundError
from probekit.testing import check_backbone

SHAPES = {
    "pixels": (1, 28, 28),
    "pixels#gray": (1, 28, 28),
    "pixels:1": (1, 1, 1),
    "pixels:32": (1, 32, 32),
    "pixels#rgb": (3, 32, 32),
    "pixels:8#rgb": (3, 8, 8),
    "pixels:512": (1, 512, 512),
}


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def load(name: str) -> Pixels:
    backbone = load_backbone(name)
    assert isinstance(backbone, Pixels)
    return backbone


def encode(name: str, picture: Image.Image) -> NDArray[np.float32]:
    backbone = load(name)
    [row] = backbone.encode([backbone.prepare(picture)])
    return np.asarray(row)


@pytest.mark.parametrize(("name", "side"), [("pixels", 28), ("pixels:28", 28), ("pixels:9", 9)])
def test_a_gray_picture_of_that_size_is_its_values(name: str, side: int) -> None:
    values = noise(side, side)
    row = encode(name, Image.fromarray(values))
    assert row.dtype == np.float32
    np.testing.assert_allclose(row, values.reshape(-1) / 255, atol=1e-7)


@pytest.mark.parametrize(("name", "side"), [("pixels#rgb", 32), ("pixels:9#rgb", 9)])
def test_a_color_picture_of_that_size_is_its_values_channels_first(name: str, side: int) -> None:
    values = noise(side, side, 3)
    row = encode(name, Image.fromarray(values))
    expected = np.stack([values[..., 0], values[..., 1], values[..., 2]]) / 255
    np.testing.assert_allclose(row.reshape(3, side, side), expected, atol=1e-7)


def test_a_gray_picture_has_three_equal_channels() -> None:
    values = noise(32, 32)
    channels = encode("pixels#rgb", Image.fromarray(values)).reshape(3, 32, 32)
    np.testing.assert_allclose(channels, np.stack([values] * 3) / 255, atol=1e-7)


def test_color_becomes_gray_by_the_usual_weights() -> None:
    values = noise(28, 28, 3)
    luma = values @ np.array([0.299, 0.587, 0.114])
    row = encode("pixels", Image.fromarray(values))
    np.testing.assert_allclose(row * 255, luma.reshape(-1), atol=0.51)


def test_sixteen_bits_are_scaled_and_not_cut() -> None:
    values = noise(28, 28).astype(np.uint16) * 257
    row = encode("pixels", Image.fromarray(values))
    np.testing.assert_allclose(row, values.reshape(-1) / 65535, atol=1e-6)


def test_other_sizes_are_squashed() -> None:
    halves = np.zeros((40, 80), np.uint8)
    halves[:, 40:] = 200
    rows = encode("pixels:8", Image.fromarray(halves)).reshape(8, 8)
    np.testing.assert_allclose(rows[:, :3], 0)
    np.testing.assert_allclose(rows[:, 5:], 200 / 255, atol=1e-6)


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
def test_the_shape_of_a_sample_is_known(name: str, shape: tuple[int, ...]) -> None:
    backbone = load(name)
    assert backbone.sample_shape == shape
    assert list(backbone.views.values()) == [int(np.prod(shape))]


def test_it_keeps_what_extraction_relies_on() -> None:
    check_backbone(load("pixels"))
    check_backbone(load("pixels:8#rgb"))


def test_one_backbone_has_one_name_and_identity() -> None:
    assert load("pixels:28") == load("pixels#gray") == load("pixels")
    assert load("pixels:28").name == "pixels"
    assert load("pixels:8#rgb").name == "pixels:8#rgb"
    assert load("pixels:8").identity != load("pixels:9").identity


@pytest.mark.parametrize("side", ["0", "513", "-3", "3.5"])
def test_other_sides_are_refused(side: str) -> None:
    with pytest.raises(InputError):
        load_backbone(f"pixels:{side}")


def test_other_views_and_presets_are_refused() -> None:
    with pytest.raises(NotFoundError):
        load_backbone("pixels#cmyk")
    with pytest.raises(InputError):
        load_backbone("pixels", preprocessing="f2l2-flowers")
