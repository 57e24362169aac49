"""Vectors that exist already: imported and probed by ridge, each command in a process of its own.

The bar is what the process itself allocates at its peak, beside the bytes of the vectors. Pages of
files that are mapped count in `rss` too: the system takes them back when it needs memory.

python benchmarks/import_vectors.py [--rows 1000000] [--width 768] [--classes 10]
    [--formats npy,npz,h5,safetensors,parquet] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from _measure import finish, report

BLOCK = 10_000
SECONDS_BETWEEN_LOOKS = 0.02
BAR = 0.5
BAG_ROWS = 1_000
GROUP_ROWS = 100_000


def write_rows(folder: Path, rows: int, width: int, classes: int) -> None:
    """Rows around a center for each class, with a mean that is not zero, as embeddings have."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, classes, rows)
    centers = 0.05 * generator.standard_normal((classes, width), dtype=np.float32)
    path = folder / "rows.npy"
    matrix = np.lib.format.open_memmap(path, "w+", dtype=np.float32, shape=(rows, width))
    for start in range(0, rows, BLOCK):
        part = labels[start : start + BLOCK]
        noise = generator.standard_normal((len(part), width), dtype=np.float32)
        matrix[start : start + len(part)] = noise + centers[part] + np.float32(0.5)
    matrix.flush()
    np.save(folder / "labels.npy", labels)
    bags = np.arange(rows) // BAG_ROWS
    np.savez(folder / "bags.npz", bag=bags, label=bags % 2)


def convert(folder: Path, kind: str) -> None:
    """The rows in another format, rows.KIND; as a child, for its memory is not measured."""
    matrix = np.load(folder / "rows.npy", mmap_mode="r")
    path = folder / f"rows.{kind}"
    if kind == "npz":
        np.savez(path, vectors=matrix)
    elif kind == "h5":
        import h5py

        with h5py.File(path, "w") as file:
            file.create_dataset("features", data=matrix, chunks=(1, matrix.shape[1]))
    elif kind == "safetensors":
        from safetensors.numpy import save_file

        save_file({"vectors": np.ascontiguousarray(matrix)}, path)
    elif kind == "parquet":
        import pyarrow as pa
        from pyarrow import parquet

        schema = pa.schema({"embedding": pa.list_(pa.float32())})  # as pandas writes arrays
        with parquet.ParquetWriter(path, schema) as writer:
            for start in range(0, len(matrix), GROUP_ROWS):
                block = pa.array(matrix[start : start + GROUP_ROWS].ravel())
                lists = pa.FixedSizeListArray.from_arrays(block, matrix.shape[1])
                writer.write_table(pa.table([lists.cast(schema.field(0).type)], schema))


def own_bytes(pid: int) -> int:
    """What a process has allocated itself, without the files that it maps."""
    with suppress(OSError, KeyError):  # it has just ended
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        sizes = dict(line.partition(":")[::2] for line in lines)
        return 1024 * int(sizes["RssAnon"].split()[0])
    return 0


def measure(name: str, vector_bytes: int, *arguments: object, bar: float = BAR) -> None:
    """Run a command of probekit and report its peaks and its time."""
    command = [sys.executable, "-m", "probekit", *map(str, arguments)]
    start = time.perf_counter()
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
            peak = max(peak, own_bytes(child.pid))
            time.sleep(SECONDS_BETWEEN_LOOKS)
        _, status, used = ended
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}.")
    seconds = time.perf_counter() - start
    report(
        name,
        peak,
        vector_bytes,
        bar=bar,
        better="lower",
        seconds=round(seconds, 1),
        cpu_seconds=round(used.ru_utime + used.ru_stime, 1),
        own_megabytes=round(peak / 1e6),
        rss_megabytes=round(1024 * used.ru_maxrss / 1e6),
    )


def in_child(work: Callable[..., None], *arguments: object) -> None:
    """Whoever starts a command gives it a peak of memory, so the files are written by another."""
    child = get_context("spawn").Process(target=work, args=arguments)
    child.start()
    child.join()
    if child.exitcode:
        raise SystemExit("The rows could not be written.")


def measure_formats(folder: Path, size: int, formats: Sequence[str]) -> None:
    """Imports of every format; of npy in bags and a probe too."""
    for kind in formats:
        in_child(convert, folder, kind)
        path = folder / f"rows.{kind}"
        cache = folder / f"cache-{kind}"
        where = ("--name", "rows", "--cache", cache)
        measure(f"import {kind}", size, "import", path, "--labels", folder / "labels.npy", *where)
        if kind == "npy":
            bags = ("--labels", folder / "bags.npz", "--pool", "mean", "--by", "bag")
            measure("import in bags", size, "import", path, *bags, "--name", "bags", *where[2:])
            probe = ("probe", "rows", "--head", "ridge", "--no-controls", *where[2:])
            measure("probe in folds by ridge", size, *probe)
        else:
            path.unlink()
        shutil.rmtree(cache)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--formats", default="npy")
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="probekit-import-", dir=options.folder) as name:
        folder = Path(name)
        in_child(write_rows, folder, options.rows, options.width, options.classes)
        measure_formats(folder, 4 * options.rows * options.width, options.formats.split(","))
    finish()


if __name__ == "__main__":
    main()
