"""How an extraction is done, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass

from probekit.datasets.pictures import checked_window
from probekit.errors import InputError
from probekit.protocols import Trigger

ON_ERROR = ("raise", "skip", "mask")


@dataclass(frozen=True)
class ExtractOptions:
    """How to extract; None lets the machine decide.

    batch_size, num_workers: samples encoded at once, and processes that decode.
    dtype: how rows are stored. on_error: "raise", "skip" or "mask" a sample that cannot be used.
    trigger: pasted on every picture first.
    window: the grey values (lowest, highest) that become black and white: for pictures of 12, 16 or 32 bits.
    group: a column that says what belongs together: patients, users, videos.
    save_rows, save_seconds: rows are made safe when that many, or that old.
    restore_erased: bring samples back that were erased from the store on request; else they are left out.
    shard: (number, of how many), from 0 on: encode that share of the rows only; `cache.shards.merge` brings them
    together.
    """

    batch_size: int | None = None
    num_workers: int | None = None
    dtype: str = "float32"
    on_error: str = "raise"
    trigger: Trigger | None = None
    window: tuple[float, float] | None = None
    group: str | None = None
    save_rows: int = 1024
    save_seconds: float = 15.0
    restore_erased: bool = False
    shard: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ON_ERROR:
            raise InputError(f"Cannot handle bad samples by {self.on_error!r}: choose one of {', '.join(ON_ERROR)}.")
        for name in ("batch_size", "save_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"`{name}` must be at least 1; found {value}.")
        if self.shard is not None and not 0 <= self.shard[0] < self.shard[1]:
            raise InputError(f"Shards are numbered from 0 to {self.shard[1] - 1}; found {self.shard[0]}.")
        if self.window is not None:
            object.__setattr__(self, "window", checked_window(self.window))


@dataclass(frozen=True)
class ExtractProgress:
    """How far an extraction is: rows read, rows encoded now, rows that were there, samples left out, rows of samples
    that were erased on request."""

    rows: int
    total: int | None
    encoded: int = 0
    reused: int = 0
    skipped: int = 0
    erased: int = 0
    seconds: float = 0.0
