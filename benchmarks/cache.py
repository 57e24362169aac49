"""Opening a set of 200,000 x 512 embeddings and reading it fully, against a bare memory map and parquet."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import finish, race, report

from probekit.cache import DiskStore
from probekit.values import EmbeddingSet, EncodingSpec

ROWS, FEW, WIDTH, BLOCK = 200_000, 2_000, 512, 8192
SPEC = EncodingSpec(backbone="benchmark:random", weights="0" * 64, preprocessing={"size": 1}, view="none")


def fill(store: DiskStore, vectors: np.ndarray[Any, Any], name: str) -> None:
    """Keep vectors as a set, as an extraction would."""
    ids = [hashlib.sha256(f"{name} {row}".encode()).hexdigest() for row in range(len(vectors))]
    labels = np.arange(len(vectors), dtype=np.int64) % 10
    for start in range(0, len(ids), BLOCK):
        store.save(SPEC, ids[start : start + BLOCK], vectors[start : start + BLOCK])
    rows = store.load(SPEC, ids)
    names = tuple(f"class {number}" for number in range(10))
    sealed = store.seal(EmbeddingSet(SPEC, rows, labels, ids, names, names=[f"row {i}" for i in range(len(ids))]))
    store.sets.give_name(name, sealed.digest)


def total(rows: Any) -> float:
    """The sum of all values, a block at a time: every value is touched."""
    return float(sum(rows[start : start + BLOCK].sum() for start in range(0, len(rows), BLOCK)))


def main() -> None:
    """Make the three files, read each in turns, and compare."""
    vectors = np.random.default_rng(0).standard_normal((ROWS, WIDTH), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fill(DiskStore(root / "large"), vectors, "large")
        fill(DiskStore(root / "small"), vectors[:FEW], "small")
        np.save(root / "rows.npy", vectors)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), WIDTH)
        pq.write_table(pa.table({"embedding": column}), root / "rows.parquet")
        expected = total(vectors)
        del vectors, column

        def ours() -> float:
            return total(DiskStore(root / "large").open("large").embeddings)

        def mapped() -> float:
            return total(np.load(root / "rows.npy", mmap_mode="r"))

        def parquet() -> float:
            table = pq.read_table(root / "rows.parquet")
            values = table.column("embedding").combine_chunks().flatten().to_numpy()
            return total(values.reshape(-1, WIDTH))

        for read in (ours, mapped, parquet):  # the same numbers, and every file in the page cache
            assert np.isclose(read(), expected)
        first, second = race(ours, mapped, repeats=9)
        report(
            "open and read 200,000 x 512, over np.load(mmap)",
            first,
            second,
            bar=1.5,
            better="lower",
            unit="seconds",
        )
        first, second = race(ours, parquet, repeats=5)
        rates = (ROWS / first, ROWS / second)
        report("open and read 200,000 x 512, over parquet", *rates, bar=10, unit="rows per second")
        first, second = race(
            lambda: DiskStore(root / "large").open("large"),
            lambda: DiskStore(root / "small").open("small"),
            repeats=51,
        )
        report("open 200,000 rows, over opening 2,000", first, second, bar=3, better="lower", unit="seconds")
    finish()


if __name__ == "__main__":
    main()
