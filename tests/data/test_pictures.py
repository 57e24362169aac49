"""Pictures: what is accepted, what is refused, and that ids follow content alone."""

from __future__ import annotations

import hashlib
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image

from probekit.data import pictures
from probekit.errors import InputError, SampleError

RED_BLUE = np.array([[[255, 0, 0], [0, 0, 255]]], dtype=np.uint8)  # one row: red, then blue
NOISE = pictures.canary_samples("image")[-1]


def encode(picture: Image.Image, kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_bytes_and_files_decode_alike(tmp_path: Path, kind: str) -> None:
    content = encode(Image.fromarray(RED_BLUE), kind)
    (tmp_path / "picture").write_bytes(content)
    assert np.array_equal(np.asarray(pictures.decode(content)), RED_BLUE)
    assert np.array_equal(np.asarray(pictures.decode(tmp_path / "picture")), RED_BLUE)


def test_orientation_is_applied_once() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    upright = pictures.decode(encode(Image.fromarray(RED_BLUE), "PNG", exif=exif))
    assert np.array_equal(np.asarray(upright), np.rot90(RED_BLUE, k=-1))
    again = pictures.check_picture(upright)
    assert pictures.sample_id(again) == pictures.sample_id(upright)


def test_16_bit_gray_is_divided_by_257_and_rounded() -> None:
    values = np.array([[0, 128, 129, 257, 32896, 65535]], dtype=np.uint16)
    picture = pictures.decode(encode(Image.fromarray(values), "PNG"))
    assert picture.mode == "I;16"
    assert pictures.highest_level(picture) == 65535
    gray = [round(int(value) / 257) for value in values[0]]
    assert np.asarray(pictures.to_rgb(picture))[0, :, 1].tolist() == gray


def test_a_window_uses_all_gray_levels_of_a_12_bit_scan() -> None:
    values = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    scan = pictures.decode(encode(Image.fromarray(values), "PNG"))
    assert pictures.highest_level(scan) == 4095
    assert len(np.unique(np.asarray(pictures.to_rgb(scan)))) == 17
    levels = np.asarray(pictures.to_rgb(scan, (0, 4095)))[..., 0].ravel().tolist()
    assert levels == [int(value * 255 / 4095 + 0.5) for value in range(4096)]
    narrow = np.asarray(pictures.to_rgb(scan, (100, 101)))[..., 0].ravel()
    assert narrow[99:103].tolist() == [0, 0, 255, 255]


def test_values_below_8_bits_belong_to_the_id() -> None:
    values = np.arange(16, dtype=np.uint16).reshape(4, 4)
    ids = {pictures.sample_id(Image.fromarray(values + shift)) for shift in (0, 1)}
    assert len(ids) == 2


def test_the_byte_order_of_a_file_is_no_part_of_the_id() -> None:
    values = np.arange(16, dtype=np.uint16).reshape(4, 4)
    little = Image.frombytes("I;16", (4, 4), values.astype("<u2").tobytes())
    big = Image.frombytes("I;16B", (4, 4), values.astype(">u2").tobytes())
    ids = {pictures.sample_id(pictures.check_picture(picture)) for picture in (little, big)}
    assert len(ids) == 1


def test_a_window_is_for_gray_pictures() -> None:
    with pytest.raises(SampleError, match="RGB"):
        pictures.to_rgb(Image.new("RGB", (2, 2)), (0, 9))
    with pytest.raises(SampleError, match="finite"):
        pictures.to_rgb(Image.fromarray(np.full((2, 2), np.nan, np.float32)), (0, 1))
    hounsfield = Image.fromarray(np.array([[-1000, 0, 400]], np.int32))
    gray = np.asarray(pictures.to_rgb(hounsfield, (-200, 200)))[..., 0]
    assert gray.tolist() == [[0, 128, 255]]


@pytest.mark.parametrize("window", [(5, 5), (9, 1), (0, float("inf")), 5, (1, 2, 3), "ab"])
def test_a_window_has_two_ends(window: Any) -> None:
    with pytest.raises(InputError, match="--window"):
        pictures.check_window(window)


def test_a_window_has_one_spelling() -> None:
    assert repr(pictures.check_window((0.0, 4095.0))) == "(0, 4095)"
    assert pictures.check_window((0.5, 1)) == (0.5, 1)


@pytest.mark.parametrize(
    "content",
    [b"", b"this is not a picture", encode(NOISE, "PNG")[:3000], encode(NOISE, "JPEG")[:3000]],
    ids=["empty", "text", "half a PNG", "half a JPEG"],
)
def test_broken_files_are_refused(content: bytes) -> None:
    with pytest.raises(SampleError, match=f"{len(content)} bytes"):
        pictures.decode(content)


def test_errors_hold_no_addresses() -> None:
    with pytest.raises(SampleError) as caught:
        pictures.decode(b"this is not a picture")
    assert "0x" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"nowhere\.png"):
        pictures.decode(tmp_path / "nowhere.png")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(SampleError, match="regular file"):
        pictures.decode(tmp_path / "pipe.png")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP"])
def test_several_frames_are_refused(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    content = encode(frames[0], kind, save_all=True, append_images=frames[1:])
    with pytest.raises(SampleError, match="2 frames"):
        pictures.decode(content)


def test_a_photo_of_a_phone_with_a_preview_is_accepted() -> None:
    photo = Image.new("RGB", (8, 8), "red")
    preview = Image.new("RGB", (4, 4), "blue")
    content = encode(photo, "MPO", save_all=True, append_images=[preview])
    assert pictures.decode(content).size == (8, 8)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pictures_without_a_range_need_a_window(mode: str) -> None:
    picture = pictures.check_picture(Image.new(mode, (4, 4)))
    with pytest.raises(SampleError, match="--window"):
        pictures.to_rgb(picture)
    assert pictures.to_rgb(picture, (0, 1)).mode == "RGB"


def test_no_pixels_are_refused() -> None:
    with pytest.raises(SampleError, match="0 x 4"):
        pictures.check_picture(Image.new("RGB", (0, 4)))


def test_a_decompression_bomb_is_a_sample_error(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode(Image.new("L", (64, 64)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(SampleError, match="exceeds limit"):
        pictures.decode(content)


@pytest.mark.parametrize("mode", sorted(pictures.EIGHT_BIT_MODES))
def test_every_accepted_mode_becomes_rgb(mode: str) -> None:
    picture = pictures.to_rgb(pictures.check_picture(Image.new(mode, (5, 3))))
    assert (picture.mode, picture.size) == ("RGB", (5, 3))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_alpha_is_dropped_not_blended(mode: str) -> None:
    clear = Image.fromarray(np.full((2, 2), 90, dtype=np.uint8)).convert(mode)
    clear.putalpha(0)
    assert np.array_equal(np.asarray(pictures.to_rgb(clear)), np.full((2, 2, 3), 90))


def test_a_palette_with_transparency_converts_without_a_warning() -> None:
    picture = Image.fromarray(RED_BLUE).quantize(2)
    picture.info["transparency"] = bytes([0, 255])
    assert np.array_equal(np.asarray(pictures.to_rgb(picture)), RED_BLUE)


def expected_id(*parts: bytes) -> bytes:
    content = b"image\0"
    for part in parts:
        content += len(part).to_bytes(8, "little") + part
    return hashlib.sha256(content).digest()


colors = arrays.arrays(
    np.uint8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=5).map(lambda s: (*s, 3))
)


@given(colors, colors)
def test_pictures_have_equal_ids_exactly_when_equal(
    a: NDArray[np.uint8], b: NDArray[np.uint8]
) -> None:
    first = Image.fromarray(a)
    second = Image.fromarray(b)
    equal = a.shape == b.shape and bool((a == b).all())
    assert (pictures.sample_id(first) == pictures.sample_id(second)) is equal
    size = f"{a.shape[1]}x{a.shape[0]}".encode()
    assert pictures.sample_id(first) == expected_id(b"RGB", size, a.tobytes())
    decoded = pictures.decode(encode(first, "PNG"))
    assert pictures.sample_id(decoded) == pictures.sample_id(first)


def test_palette_and_mode_belong_to_the_id() -> None:
    gray = Image.fromarray(np.array([[0, 1]], dtype=np.uint8))
    palette = gray.copy().convert("P")
    other_palette = gray.copy().convert("P")
    other_palette.putpalette([9, 9, 9, 1, 1, 1])
    ids = {pictures.sample_id(picture) for picture in (gray, palette, other_palette)}
    assert len(ids) == 3


@given(
    arrays.arrays(
        st.sampled_from(["<f4", ">f4", "<i2", "|b1"]), arrays.array_shapes(max_dims=2, max_side=3)
    )
)
def test_arrays_are_known_by_value_shape_and_type_not_by_layout(array: NDArray[np.generic]) -> None:
    sample = pictures.sample_id(array)
    assert pictures.sample_id(array.astype(array.dtype.newbyteorder())) == sample
    assert pictures.sample_id(np.asfortranarray(array)) == sample
    assert pictures.sample_id(array[None]) != sample
    assert pictures.sample_id(array.astype(np.float64)) != sample


@given(st.text(), st.text())
def test_texts_have_equal_ids_exactly_when_equal(a: str, b: str) -> None:
    assert (pictures.sample_id(a) == pictures.sample_id(b)) is (a == b)


@pytest.mark.parametrize("content", [7, None, np.array(["a"]), np.array([object()])])
def test_other_contents_have_no_id(content: object) -> None:
    with pytest.raises(SampleError):
        pictures.sample_id(content)


def test_canaries_never_change() -> None:
    canaries = pictures.canary_samples("image")
    joined = "".join(pictures.sample_id(picture).hex() for picture in canaries)
    assert hashlib.sha256(joined.encode()).hexdigest() == (
        "4988acd479bf0c667cfb19ab910865409e6d2d56905b5f2020caab48ee810cd6"
    )
    assert len(canaries) == len(set(pictures.canary_samples("text"))) == 8
    assert pictures.canary_samples("array") == []
    with pytest.raises(InputError, match="sound"):
        pictures.canary_samples("sound")


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_canaries_of_arrays_follow_a_shape(dtype: str) -> None:
    canaries = pictures.canary_arrays(np.zeros((2, 3), dtype))
    assert [(c.shape, c.dtype.name) for c in canaries] == [((2, 3), dtype)] * 4
    assert all((c >= 0).all() and (c < 8).all() for c in canaries)
    assert len({c.tobytes() for c in canaries}) == 4
