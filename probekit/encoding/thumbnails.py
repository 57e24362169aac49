"""Small pictures of rows, read from their data set again."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO

from PIL import Image

from probekit.datasets.pictures import eight_bits, rgb, sample_id, spec_window
from probekit.encoding.reencode import reopen
from probekit.errors import ProbekitError
from probekit.values import EmbeddingSet

SIDE = 128
REMOTE = ("hf:",)
"""Data sets that reading again could mean downloading again."""


def thumbnails(rows: EmbeddingSet, wanted: Iterable[int]) -> dict[str, bytes]:
    """PNGs by id of those rows whose pictures are still where they were, and still the same."""
    names = {rows.names[row]: rows.ids[row] for row in wanted} if rows.names is not None else {}
    if not names or rows.source.startswith(REMOTE):
        return {}
    found: dict[str, bytes] = {}
    try:
        data = reopen(rows.source)
        if data.kind != "image":
            return {}
        for sample in data:
            if sample.name in names:
                content, known = sample.content(), names.pop(sample.name)
                if sample_id(content) == known:
                    found[known] = _small(eight_bits(content, spec_window(rows.spec)))
            if not names:
                break
    except (ProbekitError, OSError):
        return found  # moved or removed since: a page without these pictures is still a page
    return found


def _small(picture: Image.Image) -> bytes:
    shown = rgb(picture)
    shown.thumbnail((SIDE, SIDE))
    kept = BytesIO()
    shown.save(kept, format="PNG")
    return kept.getvalue()
