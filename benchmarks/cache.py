"""Opening and reading cached rows, beside np.load(mmap_mode="r"): medians of interleaved runs.

python benchmarks/cache.py [--rows 200000] [--width 512] [--runs 15] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import stack_ids, texts
from probekit.cache import Cache
from probekit.embeddings import EmbeddingSet, Encoding

FEW_ROWS = 2_000
ENCODING = Encoding("benchmark", {"weights": "random"})


def make_set(matrix: NDArray[Any]) -> EmbeddingSet:
    count = len(matrix)
    identities = np.random.default_rng(1).bytes(32 * count)
    return EmbeddingSet(
        rows=matrix,
        ids=stack_ids([identities]),
        encoding=ENCODING,
        labels=np.arange(count, dtype=np.int64) % 10,
        class_names=tuple("abcdefghij"),
        columns={"key": texts(f"train/{number:07d}.png" for number in range(count))},
    )


def seconds(action: Callable[[], object], repeats: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        action()
    return (time.perf_counter() - start) / repeats


def interleaved(actions: list[Callable[[], object]], runs: int, repeats: int = 1) -> list[float]:
    """The median seconds of each action; their runs alternate, so that drifts cancel."""
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(runs):
        for action, measured in zip(actions, times, strict=True):
            measured.append(seconds(action, repeats))
    return [statistics.median(measured) for measured in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        measure(Path(name), options.rows, options.width, options.runs)


def measure(folder: Path, count: int, width: int, runs: int) -> None:
    cache = Cache(folder / "cache")
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((count, width), np.float32)
    np.save(folder / "rows.npy", matrix)
    many = make_set(matrix)
    print(f"save {count:,} x {width}: {seconds(partial(cache.save, 'many', many)):.2f} s")
    cache.save("few", make_set(generator.standard_normal((FEW_ROWS, width), np.float32)))

    def read_array() -> float:
        return float(np.load(folder / "rows.npy", mmap_mode="r").sum())

    def read_cache() -> float:
        return float(np.asarray(cache.open("many").rows).sum())

    def read_blocks() -> float:
        return sum(float(block.rows[:].sum()) for block in cache.open("many").blocks())

    array, stored, blocks = interleaved([read_array, read_cache, read_blocks], runs)
    print(f"np.load(mmap) and sum: {1e3 * array:.1f} ms")
    print(f"cache.open and sum: {1e3 * stored:.1f} ms, ratio {stored / array:.2f} (at most 2)")
    print(f"cache.open and sum in blocks: {1e3 * blocks:.1f} ms, ratio {blocks / array:.2f}")
    few, lots = interleaved([lambda: cache.open("few"), lambda: cache.open("many")], runs, 20)
    print(f"open {FEW_ROWS:,} rows: {1e3 * few:.2f} ms")
    print(f"open {count:,} rows: {1e3 * lots:.2f} ms, ratio {lots / few:.2f}")


if __name__ == "__main__":
    main()
