"""50,000 clients of skewed sizes, one with 100,000 rows: in this process and on Ray.

The head is compared with the pooled solution, by a solver of its own on all rows.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from _measure import finish, memory, report

from probekit.embeddings import EmbeddingSet, Encoding
from probekit.federated.federation import Federation, InProcess, Transport
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.transports.ray import RayTransport, cluster
from probekit.linear.model import LinearModel
from probekit.runs.run import single_thread

CLIENTS = 50_000
LARGEST = 100_000
WIDTH = 128
CLASSES = 10
RIDGE = 1e-3
CLASS_NAMES = tuple(str(number) for number in range(CLASSES))


def make_clients() -> tuple[dict[str, EmbeddingSet], np.ndarray, np.ndarray]:
    """Clients of Zipf's sizes, their rows and labels together; ids are never looked at."""
    generator = np.random.default_rng(0)
    sizes = np.minimum(generator.zipf(1.6, CLIENTS), 2_000)
    sizes[CLIENTS // 2] = LARGEST
    count = int(sizes.sum())
    labels = generator.integers(0, CLASSES, count)
    rows = generator.standard_normal((count, WIDTH), dtype=np.float32)
    rows += generator.standard_normal((CLASSES, WIDTH), dtype=np.float32)[labels]
    ids = np.zeros((count, 32), np.uint8)
    encoding = Encoding.of_vectors("benchmark", WIDTH, "float32")
    ends = np.cumsum(sizes)
    clients = {}
    for number, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        part = slice(int(end - size), int(end))
        clients[f"{number:05}"] = EmbeddingSet(
            rows[part], ids[part], encoding, labels=labels[part], class_names=CLASS_NAMES
        )
    return clients, rows, labels


def pooled(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Centered normal equations of all rows at once."""
    X = rows.astype(np.float64)
    Y = np.eye(CLASSES)[labels]
    mean = X.mean(axis=0)
    X -= mean
    gram = X.T @ X / len(X) + RIDGE * np.eye(WIDTH)
    weights = np.linalg.solve(gram, X.T @ (Y - Y.mean(axis=0)) / len(X))
    return np.vstack([weights, Y.mean(axis=0) - mean @ weights])


def measure(name: str, transport: Transport, truth: np.ndarray) -> bytes:
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is used now
    before = memory("VmRSS")
    started = time.monotonic()
    federation = Federation.of(transport, LinearModel(WIDTH, CLASSES))
    head = ClosedForm(keep=frozenset()).train(federation, ridge=RIDGE).params
    seconds = time.monotonic() - started
    error = np.linalg.norm(head - truth) / np.linalg.norm(truth)
    added = (memory("VmHWM") - before) / 1e6
    report(f"{CLIENTS:,} clients {name}, relative distance to the pooled head", float(error),
           1e-12, bar=1, better="lower", rows=federation.rows, seconds=round(seconds, 1),
           MB_beyond_the_rows=round(added))  # fmt: skip
    return head.tobytes()


if __name__ == "__main__":
    with single_thread():
        clients, rows, labels = make_clients()
        truth = pooled(rows, labels)
        here = measure("in process", InProcess(clients), truth)
        with cluster():
            started = time.monotonic()
            transport = RayTransport.of(clients)
            print(f"rows to the object store: {time.monotonic() - started:.1f} s", file=sys.stderr)
            there = measure("on Ray", transport, truth)
    report("heads in process and on Ray with the same bits", float(here == there), 1.0, bar=1)
    finish()
