"""Rows certified from gradient rounds, of a head and of a network, beside those that the distance alone certifies.

Digits through EfficientNet-Lite0 (1,281 parameters per class, rows of length 1, ridge 1.5e-4), and MNIST's perceptron
784-100-50-10 (84,060 parameters, 2,160 retained rows, ridge .01, of a server with 10 or with 300 rows of its own). One
client of five is forgotten. "ours" and "theirs" are shares of test rows; each certificate is verified, too. The data
come into the default cache first, as `probekit dataset get mnist` does it.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from _measure import finish, report

from probekit.backbones import backbone
from probekit.cache import DiskStore
from probekit.certificates.certify import certify
from probekit.certificates.verdicts import PROVEN
from probekit.certificates.verify import Evidence, verify
from probekit.datasets.installed import install
from probekit.encoding.extract import extract
from probekit.federated.in_process import InProcess
from probekit.federated.networks import train_network
from probekit.federated.partition import partition
from probekit.federated.rows import design_for
from probekit.federated.trained import Trained
from probekit.federated.training import train
from probekit.files import default_root
from probekit.unlearning.choice import unlearn
from probekit.unlearning.method import Material
from probekit.unlearning.products import Products
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet, EncodingSpec, Partition

GONE, EACH, CLIENTS, TEST = "0", 540, 5, 500


def judge(name: str, trained: Trained, material: Material, test: EmbeddingSet, rounds: int, bar: float) -> None:
    """Forget a client, certify the rest, verify it, and report the shares of rows."""
    assert material.embeddings is not None
    assert material.partition is not None
    began = time.perf_counter()
    done = unlearn(trained, UnlearnRequest((GONE,)), method=f"fedremoval-pcg:{rounds}", material=material)
    removed = time.perf_counter()
    held = {one: rows for one, rows in material.partition.clients.items() if one != GONE}
    clients = InProcess.of(trained.problem, material.embeddings, held)
    made = certify(trained, done, clients=clients, evaluation=test)
    certified = time.perf_counter()
    found, products = made.rounds, Products.of(done.trained_after)
    assert found is not None
    assert products is not None
    given = Evidence(done.trained_after.head, clients=clients, evaluation=test, products=products)
    verdicts = {one.name: one.verdict for one in verify(made, given)}
    more: dict[str, Any] = {
        "rounds": rounds,
        "plain": found.plain / found.rows,
        "error": found.error,
        "verified": {name: verdicts[name] for name in ("products", "rounds")},
        "megabytes": round(2 * products.images.nbytes / 1e6, 1),
        "seconds": [round(one, 1) for one in (removed - began, certified - removed, time.perf_counter() - certified)],
    }
    report(name, found.certified / found.rows, 1.0, bar=bar, **more)
    report(f"{name}: both claims proven", float(all(one == PROVEN for one in more["verified"].values())), 1.0, bar=1)


def digits() -> None:
    """The head."""
    store, encoder = DiskStore(default_root()), backbone("packaged:efficientnet-lite0")
    data, test = (extract(encoder, "packaged:digits", split=split, store=store) for split in ("train", "test"))
    divided = partition(data.labels, "iid", clients=CLIENTS, server_share=0.1, seed=0)
    trained = train(data, divided, ridge=1.5e-4, design=design_for(data, view="l2"), keep="gradients")
    for rounds in (3, 5, 10):
        judge("digits, 1,281 parameters per class", trained, Material(data, divided), test, rounds, 0.5)


def pictures(split: str, count: int) -> EmbeddingSet:
    """So many of MNIST's, as numbers from 0 to 1."""
    folder = install("mnist", default_root(), progress=lambda step: print(json.dumps({"data": step}), flush=True))
    images, labels = (np.load(folder / f"{split}-{noun}.npy", mmap_mode="r") for noun in ("images", "labels"))
    some = np.sort(np.random.default_rng(0).permutation(len(labels))[:count])
    rows = (images[some] / 255.0).reshape(count, -1).astype(np.float32)
    spec = EncodingSpec("mnist", "0" * 64, {}, "raw", "float32")
    ids = [f"{place:064x}" for place in some.tolist()]
    return EmbeddingSet(spec, rows, labels[some].astype(np.int64), ids, tuple("0123456789"), source=split)


def network(own: int, rounds: int) -> None:
    """The perceptron, of a server with so many rows."""
    total = own + CLIENTS * EACH
    data, order = pictures("train", total), np.random.default_rng(1).permutation(total)
    parts = {str(one): np.sort(order[own + EACH * one : own + EACH * (one + 1)]) for one in range(CLIENTS)}
    divided = Partition(parts, np.sort(order[:own]), total, "iid", 1)
    trained = train_network(data, divided, ridge=0.01)
    judge(f"MNIST, server of {own} rows", trained, Material(data, divided), pictures("test", TEST), rounds, 0.5)


if __name__ == "__main__":
    digits()
    network(300, 80)
    network(10, 320)
    finish()
