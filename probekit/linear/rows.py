"""Some rows of a matrix, read when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.values import Rows


@dataclass(frozen=True)
class Picked:
    """Some rows of a matrix, in a given order, read when asked for."""

    rows: Rows
    index: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.index), *self.rows.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return self.rows[self.index[index]]

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.rows[self.index], dtype=dtype)
