"""Pictures that the rest of probekit may take for granted: whole, upright, with an id, and as 8 bits."""

from __future__ import annotations

import math
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from probekit.errors import InputError, SampleError
from probekit.values import EncodingSpec, content_id

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV", "LAB")
"""The modes that have one agreed conversion to 8-bit RGB."""
DEEP = ("I;16", "I", "F")
"""Grey pictures of more than 8 bits. Of these only the first has an agreed range of values."""


def decode(source: bytes | Path) -> Image.Image:
    """The picture in a file or in its bytes, read to the end and checked."""
    where = str(source) if isinstance(source, Path) else f"{len(source)} bytes"
    if isinstance(source, Path) and source.exists() and not source.is_file():
        raise SampleError(f"{where} is no regular file but a pipe, a folder or a device. Replace it or remove the row.")
    try:
        with Image.open(source if isinstance(source, Path) else BytesIO(source)) as picture:
            return checked(picture)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever a broken file makes them stumble over
        raise SampleError(f"{where}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    match error:
        case SampleError():
            return str(error)
        case FileNotFoundError():
            return "there is no such file. Correct the path or remove the row."
        case Image.DecompressionBombError() | Image.DecompressionBombWarning():
            return f"too many pixels to be decoded safely ({error}). Save a smaller copy."
    said = re.sub(r" object at 0x[0-9a-f]+", "", str(error))  # it is kept with the set, and others say the same
    found = f"cannot be read as a picture ({type(error).__name__}: {said})"
    return f"{found}. The file is truncated, damaged or not a picture: replace it or remove the row."


def checked(picture: Image.Image) -> Image.Image:
    """The same picture, upright, or a SampleError that says what is wrong with it.

    EXIF orientation is applied as the `datasets` library does. Alpha and values of more than 8 bits stay: they belong
    to the sample's id, and `rgb` and `eight_bits` drop them later.
    """
    if not isinstance(picture, Image.Image):
        raise SampleError(f"Wanted a picture, found {type(picture).__name__}. Give a PIL picture.")
    # the first picture of an MPO file (phones write them) is the photograph; others are previews, depth maps
    frames = 1 if picture.format == "MPO" else getattr(picture, "n_frames", 1)
    if frames > 1:
        raise SampleError(f"One picture was wanted, found {frames} frames. Save the wanted frame as its own file.")
    if 0 in picture.size:
        raise SampleError(f"The picture has no pixels: {picture.width} x {picture.height}. Remove the row.")
    picture.load()
    if picture.getexif().get(ExifTags.Base.Orientation) is not None:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I;16"):
        return Image.fromarray(np.asarray(picture).astype(np.uint16))  # in one order of bytes
    if picture.mode not in (*MODES, *DEEP):
        remedy = "Scale them to 8 bits yourself, and save them as L or RGB."
        raise SampleError(f"Pictures of mode {picture.mode!r} have no agreed range of values. {remedy}")
    return picture


def checked_window(window: tuple[float, float]) -> tuple[float, float]:
    """A window of grey values: two numbers, the lower first; whole ones as such, so that one window has one name."""
    try:
        low, high = map(float, window)
    except (TypeError, ValueError):
        raise InputError(f"A `window` is two numbers, the lower first; found {window!r}.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"A `window` is two numbers, the lower first; found {low:g} and {high:g}.")
    return (int(low) if low == int(low) else low), (int(high) if high == int(high) else high)


def spec_window(spec: EncodingSpec) -> tuple[float, float] | None:
    """The window that rows were encoded with, where there was one."""
    given: Any = spec.preprocessing.get("window")
    return None if given is None else checked_window(given)


def eight_bits(content: Any, window: tuple[float, float] | None = None) -> Any:
    """A picture at most 8 bits deep; whatever is no picture as it is.

    window: the grey values that become 0 and 255; those between in proportion, rounded, those beyond cut off. Left
    out, it is 0 and 65535 for 16 bits, and pictures of 32 bits, which have no agreed range, are refused.
    """
    if not isinstance(content, Image.Image) or (window is None and content.mode not in DEEP):
        return content
    if content.mode not in ("L", *DEEP):
        raise SampleError(f"A window is for grey pictures, and this one is {content.mode}. Leave `window` out for it.")
    if window is None and content.mode != "I;16":
        remedy = "Give a `window` (lowest, highest), or save them as L or RGB."
        raise SampleError(f"Pictures of mode {content.mode!r} have no agreed range of values. {remedy}")
    low, high = window or (0, 65535)
    values = np.asarray(content, dtype=np.float64)
    if not np.isfinite(values).all():
        raise SampleError("The picture holds values that are not finite. Replace it or remove the row.")
    return Image.fromarray(np.floor(np.clip((values - low) / (high - low), 0, 1) * 255 + 0.5).astype(np.uint8))


def deepest(content: Any) -> int:
    """The highest value of a 16-bit picture; 0 for all else."""
    return int(np.asarray(content).max()) if isinstance(content, Image.Image) and content.mode == "I;16" else 0


def rgb(picture: Image.Image) -> Image.Image:
    """The picture as RGB. Alpha is dropped, as open_clip, transformers and timm do; nothing is blended in.

    Every backbone converts before it resizes: Pillow would resize palette pictures by nearest neighbour.
    """
    picture = eight_bits(picture)
    if picture.mode == "RGB":
        return picture
    if "transparency" in picture.info:  # Pillow warns when asked to forget a palette's transparency in one step
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def picture_id(picture: Image.Image) -> str:
    """The id of a checked picture: of its mode, size, pixels and, where it has one, palette."""
    parts = [picture.mode.encode(), f"{picture.width}x{picture.height}".encode(), picture.tobytes()]
    if picture.palette is not None and picture.mode in ("P", "PA"):
        mode = picture.palette.mode
        parts += [mode.encode(), bytes(picture.getpalette(mode) or [])]
    return content_id("image", *parts)


def sample_id(content: Any) -> str:
    """The id of a picture, a text or an array."""
    if isinstance(content, Image.Image):
        return picture_id(content)
    if isinstance(content, str):
        return content_id("text", content.encode("utf-8", "surrogatepass"))
    if isinstance(content, np.ndarray) and content.dtype.kind in "biufc":
        little = np.ascontiguousarray(content, dtype=content.dtype.newbyteorder("<"))
        return content_id("array", little.dtype.str.encode(), str(content.shape).encode(), little.tobytes())
    found = f"an array of {content.dtype}" if isinstance(content, np.ndarray) else type(content).__name__
    raise SampleError(f"A sample must be a PIL picture, a text or an array of numbers; found {found}.")


def picture_shape(spec: EncodingSpec) -> tuple[int, int, int] | None:
    """The channels, height and width of the pictures that the rows of `pixels` are; None for any other backbone."""
    match spec.preprocessing:
        case {"size": [int(height), int(width)], **rest} if re.match(r"pixels(?![^:#])", spec.backbone):
            return (3 if rest.get("channels") == 3 else 1), height, width
    return None


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
    """Eight samples that are the same everywhere and forever; none for arrays, whose shape `canary_arrays` follows."""
    if kind not in ("image", "text", "array"):
        raise InputError(f"Samples are of kind image, text or array; found {kind!r}.")
    if kind == "image":
        return _canary_pictures()
    return list(CANARY_TEXTS) if kind == "text" else []


def canary_arrays(like: NDArray[Any]) -> list[NDArray[Any]]:
    """Four arrays of another's shape and type: values in (0, 1), or small whole numbers that may be indices."""
    noise = _noise(4 * like.size).reshape(4, *like.shape)
    whole = like.dtype.kind in "biu"
    return [(one % 8 if whole else (one + 0.5) / 256).astype(like.dtype) for one in noise]


def _canary_pictures() -> list[Image.Image]:
    """Gradients, a checkerboard and noise, made of integers only so that no library can change them."""
    y, x = np.mgrid[0:200, 0:320]
    across, down = x * 255 // 319, y * 255 // 199
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
    """The high bytes of a linear congruential generator: NumPy promises no stream across its versions."""
    state, values = 20240229, bytearray()
    for _ in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        values.append(state >> 24)
    return np.frombuffer(bytes(values), dtype=np.uint8)
