"""A backbone that takes its time, for tests that end a process while it encodes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conftest import PixelBackbone


class SlowBackbone(PixelBackbone):
    """The mean colours of cells, after a while."""

    def encode(self, batch: Any) -> NDArray[np.float32]:
        time.sleep(0.05)
        return super().encode(batch)


def make() -> SlowBackbone:
    return SlowBackbone()
