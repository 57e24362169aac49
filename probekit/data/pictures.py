"""Pictures as the rest may take them for granted: whole, upright, with an id, and as 8 bits.

Also the canaries: samples that are the same everywhere and forever.
"""

from __future__ import annotations

import math
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, features

from probekit.arrays import content_id
from probekit.embeddings import as_numpy
from probekit.errors import InputError, SampleError

Window = tuple[float, float]

SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png"}
    | {".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
EIGHT_BIT_MODES = frozenset(
    {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV", "LAB"}
)
"""The modes that have one agreed conversion to 8-bit RGB."""
DEEP_MODES = ("I;16", "I", "F")
"""Gray pictures of more than 8 bits. Of these only the first has an agreed range of values."""
CHANNELS = (1, 3, 4)
DEFAULT_WINDOW = (0, 65535)
DECODER = "probekit 1, pillow {}, jpeg {}, webp {}, avif {}".format(
    PIL.__version__,
    features.version_codec("jpg"),
    features.version_module("webp"),
    features.version_module("avif"),
)
"""What determines the pixels of a file, and so its id."""


def is_picture_name(name: str) -> bool:
    return name[name.rfind(".") :].lower() in SUFFIXES


def content_kind(content: Any) -> str | None:
    """image, text or array; None for what no row may hold."""
    if isinstance(content, Image.Image | bytes | Path):
        return "image"
    if isinstance(content, str):
        return "text"
    if not hasattr(content, "dtype"):
        return None
    array = _channels_last(content)
    channels = array.shape[2] if array.ndim == 3 else 1
    is_gray = channels == 1 and array.dtype in (np.uint8, np.uint16)
    is_color = channels in CHANNELS and array.dtype == np.uint8
    if array.ndim in (2, 3) and (is_gray or is_color):
        return "image"
    return "array" if array.ndim and array.dtype.kind in "fiu" else None


def _channels_last(content: Any) -> NDArray[Any]:
    array = as_numpy(content)
    is_picture = array.ndim == 3 and array.dtype == np.uint8 and array.shape[0] in CHANNELS
    return np.moveaxis(array, 0, 2) if is_picture and array.shape[2] not in CHANNELS else array


def describe(content: object) -> str:
    if hasattr(content, "dtype") and hasattr(content, "shape"):
        return f"{content.dtype} of shape {tuple(content.shape)}"
    return "None" if content is None else f"a {type(content).__name__}"


def read_content(content: Any, kind: str) -> Any:
    """A content as samples give it: a checked picture, a text, or an array of finite numbers."""
    if isinstance(content, dict):  # a cell of `datasets`
        content = content["bytes"] or content["path"]
    if kind == "image" and isinstance(content, str):
        return decode(content)
    if content_kind(content) != kind:
        raise SampleError(
            f"Expected an item of kind {kind}; found {describe(content)}. Replace it."
        )
    if kind == "text":
        return str(content)
    if isinstance(content, bytes | Path):
        return decode(content)
    if isinstance(content, Image.Image):
        return check_picture(content)
    array = _channels_last(content)
    if kind == "image":
        pixels = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
        return check_picture(Image.fromarray(np.ascontiguousarray(pixels)))
    bad = array[~np.isfinite(array)]
    if len(bad):
        raise SampleError(f"Numbers must be finite; found {bad[0]}. Remove the row.")
    return array


def decode(source: bytes | str | Path) -> Image.Image:
    """The picture in a file or in its bytes, read to the end and checked."""
    if isinstance(source, bytes):
        location = f"A picture of {len(source)} bytes"
        file: BytesIO | Path = BytesIO(source)
    else:
        location = str(source)
        file = Path(source)
        if file.exists() and not file.is_file():
            raise SampleError(
                f"{location} must be a regular file; found a pipe or a device. Leave it out."
            )
    try:
        with Image.open(file) as picture:
            return check_picture(picture)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever a broken file leads them to
        reason = re.sub(r" object at 0x[0-9a-f]+", "", str(error))  # equal errors, equal texts
        if not isinstance(error, SampleError):
            reason = f"no picture could be read ({type(error).__name__}: {reason}). Replace it."
        raise SampleError(f"{location}: {reason}") from error


def check_picture(picture: Image.Image) -> Image.Image:
    """The same picture, loaded and upright; SampleError where it cannot be used.

    EXIF orientation is applied as the `datasets` library does. Alpha and values of more than 8 bits
    stay: they belong to the sample's id, and `to_rgb` drops them later.
    """
    # the first picture of an MPO file (phones write them) is the photograph; others are previews
    frames = 1 if picture.format == "MPO" else getattr(picture, "n_frames", 1)
    if frames > 1:
        raise SampleError(f"Expected one picture; found {frames} frames. Save one as its own file.")
    if 0 in picture.size:
        raise SampleError(
            f"The picture is {picture.width} x {picture.height} and has no pixels. Replace it."
        )
    picture.load()
    if picture.getexif().get(ExifTags.Base.Orientation) is not None:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I;16"):
        return Image.fromarray(np.asarray(picture).astype(np.uint16))  # in one order of bytes
    if picture.mode not in (*EIGHT_BIT_MODES, *DEEP_MODES):
        raise SampleError(
            f"Pictures of mode {picture.mode!r} have no agreed range. Save them as 8-bit L or RGB."
        )
    return picture


def check_window(window: Window) -> Window:
    """Two finite numbers, the lower first; whole ones as int: a window has one spelling."""
    try:
        low, high = map(float, window)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"A window must be two gray values, as --window 0,4095; found {window!r}.")
    return (int(low) if low.is_integer() else low, int(high) if high.is_integer() else high)


def to_rgb(picture: Image.Image, window: Window | None = None) -> Image.Image:
    """The picture as RGB. Alpha is dropped, as open_clip, transformers and timm do; not blended.

    Convert before resizing: Pillow resizes palette pictures by nearest neighbor.
    window: the gray values that become 0 and 255; those between in proportion, rounded, those
    beyond cut off. Without one it is 0 and 65535 for 16 bits, and pictures of 32 bits, which have
    no agreed range, are refused.
    """
    if window is not None or picture.mode in DEEP_MODES:
        picture = _to_eight_bits(picture, window)
    if picture.mode == "RGB":
        return picture
    if "transparency" in picture.info:  # in one step Pillow would warn
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def _to_eight_bits(picture: Image.Image, window: Window | None) -> Image.Image:
    if picture.mode not in ("L", *DEEP_MODES):
        raise SampleError(
            f"A window is for gray pictures; found {picture.mode}. Leave --window out."
        )
    if window is None and picture.mode != "I;16":
        raise SampleError(
            f"Pictures of mode {picture.mode!r} have no agreed range of values. Give a window "
            "(--window LOW,HIGH), or save them as L or RGB."
        )
    low, high = window or DEFAULT_WINDOW
    values = np.asarray(picture, dtype=np.float64)
    if not np.isfinite(values).all():
        raise SampleError("The picture holds values that are not finite. Remove the row.")
    scaled = np.clip((values - low) / (high - low), 0, 1) * 255
    return Image.fromarray(np.floor(scaled + 0.5).astype(np.uint8))


def highest_level(content: Any) -> int:
    """The highest value of a 16-bit picture; 0 for all else.

    A scan of 12 bits stays below 4096 and would use 17 gray levels without a window.
    """
    if isinstance(content, Image.Image) and content.mode == "I;16":
        return int(np.asarray(content).max())
    return 0


def sample_id(content: Any) -> bytes:
    """The id of a checked picture, a text or an array: of its content alone, 32 bytes."""
    if isinstance(content, Image.Image):
        return _picture_id(content)
    if isinstance(content, str):
        return content_id("text", content.encode("utf-8", "surrogatepass"))
    if isinstance(content, np.ndarray) and content.dtype.kind in "biufc":
        little = np.ascontiguousarray(content, dtype=content.dtype.newbyteorder("<"))
        shape = str(content.shape).encode()
        return content_id("array", little.dtype.str.encode(), shape, little.tobytes())
    raise SampleError(f"A sample must be a picture, a text or numbers; found {describe(content)}.")


def _picture_id(picture: Image.Image) -> bytes:
    size = f"{picture.width}x{picture.height}"
    parts = [picture.mode.encode(), size.encode(), picture.tobytes()]
    if picture.palette is not None and picture.mode in ("P", "PA"):
        mode = picture.palette.mode
        parts += [mode.encode(), bytes(picture.getpalette(mode) or [])]
    return content_id("image", *parts)


CANARY_TEXTS = (
    "a photograph of a dog",
    "A photograph of a cat, in the rain.",
    "0123456789",
    "Die Straße ist naß.",
    "one two one two one two one two one two one two one two one two one two one two",
    "雨の日の写真",
    "x",
    "ALL CAPITALS; punctuation: (yes!) -- and\ttabs\nand lines",
)


def canary_samples(kind: str) -> list[Any]:
    """Eight fixed samples; none for arrays, whose shape `canary_arrays` follows."""
    match kind:
        case "image":
            return _canary_pictures()
        case "text":
            return list(CANARY_TEXTS)
        case "array":
            return []
    raise InputError(f"A kind must be image, text or array; found {kind!r}.")


def canary_arrays(like: NDArray[Any]) -> list[NDArray[Any]]:
    """Four arrays of another's shape and dtype: values in (0, 1), or small whole numbers."""
    noise = _noise(4 * like.size).reshape(4, *like.shape)
    if like.dtype.kind in "biu":  # they may be indices
        return [(block % 8).astype(like.dtype) for block in noise]
    return [((block + 0.5) / 256).astype(like.dtype) for block in noise]


def _canary_pictures() -> list[Image.Image]:
    """Gradients, a checkerboard and noise, of integers only so that no library can change them."""
    y, x = np.mgrid[0:200, 0:320]
    across = x * 255 // 319
    down = y * 255 // 199
    board = (x // 16 + y // 16) % 2 * 255
    rings = ((x - 160) ** 2 + (y - 100) ** 2) // 64 % 256
    planes = (
        np.stack([across, down, 255 - across], axis=-1),
        np.stack([board, board, board], axis=-1),
        np.stack([rings, down, board], axis=-1)[:, :200],
        np.stack([across, rings, down], axis=-1)[:48, :64],
        np.stack([down, across, rings], axis=-1)[:150, :33],
        board[:8, 10:18],
        rings,
        _noise(96 * 64 * 3).reshape(96, 64, 3),
    )
    return [Image.fromarray(np.ascontiguousarray(plane, dtype=np.uint8)) for plane in planes]


def _noise(count: int) -> NDArray[np.uint8]:
    """High bytes of a linear congruential generator: NumPy promises no stream across versions."""
    state = 20240229
    values = bytearray()
    for _ in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        values.append(state >> 24)
    return np.frombuffer(bytes(values), dtype=np.uint8)
