"""Pictures: what is accepted, what is refused and why, and that ids follow content alone."""

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

from probekit.datasets import pictures
from probekit.errors import InputError, SampleError

RED_BLUE = np.array([[[255, 0, 0], [0, 0, 255]]], dtype=np.uint8)  # one row: red, then blue


def written(picture: Image.Image, kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


NOISE = pictures.canary_samples("image")[-1]


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_bytes_and_files_decode_alike(tmp_path: Path, kind: str) -> None:
    data = written(Image.fromarray(RED_BLUE), kind)
    (tmp_path / "picture").write_bytes(data)
    assert np.array_equal(np.asarray(pictures.decode(data)), RED_BLUE)
    assert np.array_equal(np.asarray(pictures.decode(tmp_path / "picture")), RED_BLUE)


def test_orientation_is_applied_once() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    upright = pictures.decode(written(Image.fromarray(RED_BLUE), "PNG", exif=exif))
    assert np.array_equal(np.asarray(upright), np.rot90(RED_BLUE, k=-1))
    assert pictures.picture_id(pictures.checked(upright)) == pictures.picture_id(upright)


def test_sixteen_bit_grey_is_divided_by_257_and_rounded() -> None:
    values = np.array([[0, 128, 129, 257, 32896, 65535]], dtype=np.uint16)
    picture = pictures.decode(written(Image.fromarray(values), "PNG"))
    assert picture.mode == "I;16"
    assert pictures.deepest(picture) == 65535
    seen = pictures.eight_bits(picture)
    assert seen.mode == "L"
    assert np.asarray(seen).tolist() == [[round(int(v) / 257) for v in values[0]]]
    assert np.asarray(pictures.rgb(picture)).tolist() == np.asarray(seen.convert("RGB")).tolist()


def test_a_window_uses_all_grey_levels_of_a_12_bit_scan_and_ids_tell_them_apart() -> None:
    values = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    scan, next_scan = (pictures.decode(written(Image.fromarray(one), "PNG")) for one in (values, values + 1))
    assert len(np.unique(np.asarray(pictures.eight_bits(scan)))) == 17
    shown = np.asarray(pictures.eight_bits(scan, (0, 4095)))
    assert len(np.unique(shown)) == 256
    assert shown.ravel().tolist() == [int(value * 255 / 4095 + 0.5) for value in range(4096)]
    assert np.asarray(pictures.eight_bits(scan, (100, 101))).ravel()[99:103].tolist() == [0, 0, 255, 255]
    assert pictures.picture_id(scan) != pictures.picture_id(next_scan)
    whole = np.asarray(pictures.eight_bits(next_scan, (0, 65535)))
    assert whole.tolist() == np.asarray(pictures.eight_bits(next_scan)).tolist()


def test_the_order_of_bytes_in_a_file_is_no_part_of_the_id() -> None:
    values = np.arange(16, dtype=np.uint16).reshape(4, 4)
    little, big = (
        Image.frombytes(mode, (4, 4), values.astype(kind).tobytes())
        for mode, kind in (("I;16", "<u2"), ("I;16B", ">u2"))
    )
    assert pictures.picture_id(pictures.checked(little)) == pictures.picture_id(pictures.checked(big))


def test_windows_are_for_grey_pictures_and_have_two_ends() -> None:
    with pytest.raises(SampleError, match="this one is RGB"):
        pictures.eight_bits(Image.new("RGB", (2, 2)), (0, 9))
    with pytest.raises(SampleError, match="not finite"):
        pictures.eight_bits(Image.fromarray(np.full((2, 2), np.nan, np.float32)), (0, 1))
    hounsfield = Image.fromarray(np.array([[-1000, 0, 400]], np.int32))
    assert np.asarray(pictures.eight_bits(hounsfield, (-200, 200))).tolist() == [[0, 128, 255]]
    assert pictures.checked_window((0.0, 4095.0)) == (0, 4095)
    wrong: tuple[Any, ...] = ((5, 5), (9, 1), (0, float("inf")), 5, (1, 2, 3), "ab")
    for bad in wrong:
        with pytest.raises(InputError, match="the lower first"):
            pictures.checked_window(bad)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "0 bytes"),
        (b"this is not a picture", "not a picture"),
        (written(NOISE, "PNG")[:3000], "truncated"),
        (written(NOISE, "JPEG")[:3000], "truncated"),
    ],
    ids=["empty", "text", "half a PNG", "half a JPEG"],
)
def test_broken_files_are_refused_with_a_remedy(data: bytes, word: str) -> None:
    with pytest.raises(SampleError, match=word) as caught:
        pictures.decode(data)
    assert "remove the row" in str(caught.value)


def test_a_missing_file_is_a_sample_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"nowhere\.png: there is no such file"):
        pictures.decode(tmp_path / "nowhere.png")


def test_a_pipe_is_no_picture_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(SampleError, match=r"pipe\.png is no regular file"):
        pictures.decode(tmp_path / "pipe.png")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP"])
def test_several_frames_are_refused(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = written(frames[0], kind, save_all=True, append_images=frames[1:])
    with pytest.raises(SampleError, match=r"2 frames.*own file"):
        pictures.decode(data)


def test_a_phones_photograph_with_a_preview_behind_it_is_accepted() -> None:
    photograph, preview = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (4, 4), "blue")
    data = written(photograph, "MPO", save_all=True, append_images=[preview])
    assert pictures.decode(data).size == (8, 8)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pictures_without_a_range_are_refused(mode: str) -> None:
    with pytest.raises(SampleError, match=r"no agreed range of values\. Give a `window`"):
        pictures.eight_bits(pictures.checked(Image.new(mode, (4, 4))))


def test_no_pixels_and_no_picture_are_refused() -> None:
    with pytest.raises(SampleError, match="0 x 4"):
        pictures.checked(Image.new("RGB", (0, 4)))
    with pytest.raises(SampleError, match="found str"):
        pictures.checked("cat.png")  # type: ignore[arg-type]


def test_a_decompression_bomb_is_a_sample_error(monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(Image.new("L", (64, 64)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(SampleError, match=r"too many pixels.*smaller copy"):
        pictures.decode(data)


@pytest.mark.parametrize("mode", pictures.MODES)
def test_every_accepted_mode_becomes_rgb(mode: str) -> None:
    picture = pictures.rgb(pictures.checked(Image.new(mode, (5, 3))))
    assert (picture.mode, picture.size) == ("RGB", (5, 3))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_alpha_is_dropped_not_blended(mode: str) -> None:
    opaque = Image.fromarray(np.full((2, 2), 90, dtype=np.uint8)).convert(mode)
    clear = opaque.copy()
    clear.putalpha(0)
    assert np.array_equal(np.asarray(pictures.rgb(clear)), np.full((2, 2, 3), 90))


def test_a_palette_with_transparency_converts_without_a_warning() -> None:
    picture = Image.fromarray(RED_BLUE).quantize(2)
    picture.info["transparency"] = bytes([0, 255])
    assert np.array_equal(np.asarray(pictures.rgb(picture)), RED_BLUE)


def oracle(mode: bytes, size: bytes, pixels: bytes) -> str:
    text = b"image\0"
    for part in (mode, size, pixels):
        text += len(part).to_bytes(8, "little") + part
    return hashlib.sha256(text).hexdigest()


pixels = arrays.arrays(np.uint8, arrays.array_shapes(min_dims=3, max_dims=3, max_side=5).map(lambda s: (*s[:2], 3)))


@given(pixels, pixels)
def test_pictures_have_equal_ids_exactly_when_they_are_equal(one: NDArray[np.uint8], two: NDArray[np.uint8]) -> None:
    first, second = Image.fromarray(one), Image.fromarray(two)
    same = one.shape == two.shape and bool((one == two).all())
    assert (pictures.picture_id(first) == pictures.picture_id(second)) is same
    size = f"{one.shape[1]}x{one.shape[0]}".encode()
    assert pictures.picture_id(first) == oracle(b"RGB", size, one.tobytes())
    assert pictures.picture_id(pictures.decode(written(first, "PNG"))) == pictures.picture_id(first)


def test_palette_and_mode_belong_to_the_id() -> None:
    indices = Image.fromarray(np.array([[0, 1]], dtype=np.uint8))
    one, two = indices.copy().convert("P"), indices.copy().convert("P")
    two.putpalette([9, 9, 9, 1, 1, 1])
    assert len({pictures.picture_id(each) for each in (indices, one, two)}) == 3


numbers = arrays.arrays(st.sampled_from(["<f4", ">f4", "<i2", "|b1"]), arrays.array_shapes(max_dims=2, max_side=3))


@given(numbers)
def test_arrays_are_known_by_value_shape_and_type_not_by_layout(array: NDArray[np.generic]) -> None:
    there = pictures.sample_id(array)
    assert pictures.sample_id(array.astype(array.dtype.newbyteorder())) == there
    assert pictures.sample_id(np.asfortranarray(array)) == there
    assert pictures.sample_id(array[None]) != there
    assert pictures.sample_id(array.astype(np.float64)) != there


@given(st.text(), st.text())
def test_texts_have_equal_ids_exactly_when_they_are_equal(one: str, two: str) -> None:
    assert (pictures.sample_id(one) == pictures.sample_id(two)) is (one == two)


@pytest.mark.parametrize("content", [7, None, np.array(["a"]), np.array([object()])])
def test_other_contents_have_no_id(content: object) -> None:
    with pytest.raises(SampleError, match="picture, a text or an array"):
        pictures.sample_id(content)


def test_canaries_never_change() -> None:
    drawn = pictures.canary_samples("image")
    together = "".join(pictures.picture_id(picture) for picture in drawn)
    assert hashlib.sha256(together.encode()).hexdigest() == CANARY
    assert len({picture.size for picture in drawn}) >= 5
    assert len(drawn) == len(set(pictures.canary_samples("text"))) == 8
    assert pictures.canary_samples("array") == []
    with pytest.raises(InputError, match="image, text or array"):
        pictures.canary_samples("sound")


CANARY = "4988acd479bf0c667cfb19ab910865409e6d2d56905b5f2020caab48ee810cd6"
