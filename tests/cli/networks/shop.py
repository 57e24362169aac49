"""Small pictures, networks of somebody's own, and what tests of whole networks ask of a run."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.models.heads import NetworkHead
from probekit.models.networks import inputs_of, linearized
from probekit.models.serving import load_head
from probekit.runs.folder import RunFolder
from probekit.runs.rows import rows_at

RIDGE = 0.05
QUICK = ("--backend", "jvp", "--server-share", "0.2", "--clients", "3", "--pretrain-epochs", "3")
FIRST = (*QUICK, "--ridge", str(RIDGE))
FORK = multiprocessing.get_context("fork")

FACTORIES = '''
"""Networks of somebody's own, most of them not fit to be linearized."""
import torch
from torch import nn


def plain(shape, classes, *between):
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 8), *between, nn.Linear(8, classes))


def tiny(shape, classes):
    return plain(shape, classes, nn.LeakyReLU(0.01))


def given(*_):
    return tiny((1, 12, 12), 3)


def dropping(shape, classes):
    return plain(shape, classes, nn.Dropout(0.5)).train()


def normed(shape, classes):
    return plain(shape, classes, nn.BatchNorm1d(8)).train()


class Restless(nn.BatchNorm1d):
    def train(self, mode=True):
        return super().train(True)


class Random(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)


class Writing(nn.Linear):
    def forward(self, x):
        found = super().forward(x)
        self.scratch = getattr(self, "scratch", torch.zeros(found.shape[1], dtype=found.dtype))
        with torch.no_grad() if self.training else torch.enable_grad():
            self.scratch.copy_(found[0] * 0)
        return found + self.scratch.detach() if self.training else found + self.scratch


def stubborn(shape, classes):
    return plain(shape, classes, Restless(8))


def random(shape, classes):
    return plain(shape, classes, Random())


def writing(shape, classes):
    return plain(shape, classes, Writing(8, 8))


def small(shape, classes):
    return nn.Linear(7, classes)


def more_classes(shape, classes):
    return plain(shape, classes + 2)


def unflattened(shape, classes):
    return nn.Conv2d(shape[0], classes, 3)


def idle(shape, classes):
    return nn.Flatten()


def number(shape, classes):
    return 3


def broken(shape, classes):
    raise RuntimeError("a bug of its own. And more")


def one_argument(shape):
    return None


def interrupted(shape, classes):
    raise KeyboardInterrupt


instance = nn.Linear(3, 3)
'''


def pictures(rows: int, *, side: int = 12, seed: int = 0, rgb: bool = False) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Noisy pictures of three patterns, and which of them each is."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(rows) % 3)
    patterns = np.random.default_rng(7).integers(0, 256, (3, 4, 4, 3)).repeat(side // 4, 1).repeat(side // 4, 2)
    noisy = patterns[labels] + generator.normal(0, 60, (rows, side, side, 3))
    found = np.clip(noisy, 0, 255).astype(np.uint8)
    return (found if rgb else found[..., 0]), labels


def save(path: Path, rows: int, **how: Any) -> str:
    """A file of pictures, as a data set."""
    images, labels = pictures(rows, **how)
    np.savez(path, images=images, labels=labels)
    return f"npz:{path}"


@dataclass(frozen=True)
class Shop:
    """A cache, data sets, and a run that was trained on one of them by three clients."""

    root: Path

    @property
    def grey(self) -> str:
        return f"npz:{self.root / 'grey.npz'}"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def store(self) -> DiskStore:
        return DiskStore(self.cache)


def network_head(run: Path, state: int = 1) -> NetworkHead:
    found = load_head(run / "states" / f"{state:04d}" / "head")
    assert isinstance(found, NetworkHead)
    return found


def certificate(run: Path, state: int = 2) -> Path:
    return run / "states" / f"{state:04d}" / "certificate.json"


def minimum(run: Path, store: DiskStore, state: int) -> NDArray[np.float64]:
    """The minimum of a state's own loss by a dense solve of all parameters' dual."""
    opened, head = RunFolder.open(run), network_head(run, state)
    embeddings, partition = rows_at(opened, store, state)
    rows = np.concatenate([partition.clients[name] for name in opened.trained(state).counts])
    model = linearized(head.network)
    inputs = inputs_of(head.network, np.asarray(embeddings.embeddings[rows])).double()
    parts = torch.func.jacrev(lambda p: model.forward(p, inputs))(model.base)
    matrix = torch.cat([one.reshape(len(rows) * 3, -1) for one in parts], dim=1).numpy()
    offset = model.over(inputs, centre=head.centre).offset
    lacking = (np.eye(3)[embeddings.labels[rows]] - offset).reshape(-1, 1) / len(rows)
    dual = matrix @ matrix.T / len(rows) + RIDGE * np.eye(len(matrix))
    return np.asarray(matrix.T @ np.linalg.solve(dual, lacking))


def sentence(said: str) -> str:
    """The one line that an error is told in."""
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, said
    assert "Something unexpected" not in said
    assert "Traceback" not in said
    return lines[0]
