"""A backbone of one's own: how much of each colour a picture holds. Nothing of probekit is imported."""

import hashlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LEVELS = 4


class Colours:
    """The share of each of 64 colours, as the embedding of a picture."""

    name = "colours"
    kind = "image"
    view = "histogram"
    fingerprint = hashlib.sha256(b"colours, version 1").hexdigest()

    @property
    def preprocessing(self) -> dict[str, object]:
        """What `preprocess` and `encode` do, in plain values."""
        return {"colour": "RGB", "resize": "squash", "size": [64, 64], "levels": LEVELS}

    def preprocess(self, picture: Image.Image) -> NDArray[np.uint8]:
        """The picture as an array of one size; runs in worker processes."""
        return np.asarray(picture.convert("RGB").resize((64, 64)))

    def encode(self, batch: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """One row of 64 shares for each picture of the batch."""
        levels = np.stack(batch).reshape(len(batch), -1, 3).astype(np.int64) * LEVELS // 256
        colours = levels @ np.array([LEVELS * LEVELS, LEVELS, 1])
        counts = [np.bincount(row, minlength=LEVELS**3) for row in colours]
        shares: NDArray[np.float32] = np.array(counts, dtype=np.float32) / colours.shape[1]
        return shares
