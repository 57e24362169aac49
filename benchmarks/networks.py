"""Whole networks: curvature products beside bare torch.func; ResNet-18 trained and unlearned.

products  J^T J v of a linearized network in float32 on one batch, beside jvp and vjp of
          `torch.func` as anybody would write them: the paper's MLP and CNN, and ResNet-18.
          Both with freed memory kept, as the command does
resnet    `train` (linearized, conjugate gradients) and `unlearn` of 200 random pictures of
          32 x 32, each a command in a process of its own: seconds, and the peak of its memory

One thread. Without arguments both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _measure import finish, race, report
from PIL import Image
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

from probekit.backbones.module import declare_operators
from probekit.cli.main import keep_freed_memory
from probekit.embeddings import EmbeddingSet
from probekit.networks.architectures import architecture, trust
from probekit.networks.network import Network
from probekit.networks.pretraining import network_model
from probekit.objective import RowsObjective, Squares

CLASSES = 10
RESNET = "py:networks:resnet18"
BATCHES = {
    "mlp": ((1, 28, 28), 2_048),
    "cnn": ((3, 32, 32), 512),
    RESNET: ((3, 32, 32), 64),
}
"""Samples of each network, and how many are one batch."""
REPEATS = 9
PICTURES = 200
CLIENTS = 4
RIDGE = "0.1"
MOST_MEMORY = 4e9


def resnet18(num_classes: int) -> nn.Module:
    """torchvision's, which is imported beside a CPU build of torch."""
    declare_operators()
    from torchvision import models

    network: nn.Module = models.resnet18(num_classes=num_classes)
    return network


def model_of(name: str) -> Network:
    """The network linearized around drawn weights."""
    trust(name)
    shape = BATCHES[name][0]
    network = architecture(name, shape, CLASSES)
    return network_model(network, sample_shape=shape, classes=CLASSES, loss=Squares())


def bare_product(module: nn.Module, inputs: Tensor, vector: Tensor) -> Callable[[], Tensor]:
    """J^T J v by a jvp and a vjp."""
    params = {name: parameter.detach() for name, parameter in module.named_parameters()}
    sizes = [parameter.numel() for parameter in params.values()]
    parts = zip(params.items(), vector.split(sizes), strict=True)
    tangents = {name: part.view(parameter.shape) for (name, parameter), part in parts}

    def outputs(tensors: dict[str, Tensor]) -> Tensor:
        scores: Tensor = functional_call(module, tensors, (inputs,))
        return scores

    def product() -> Tensor:
        _, moved = jvp(outputs, (params,), (tangents,))
        _, pull = vjp(outputs, params)
        return torch.cat([part.reshape(-1) for part in pull(moved)[0].values()])

    return product


def measure_product(name: str) -> None:
    model = model_of(name)
    shape, count = BATCHES[name]
    assert count <= model.block
    generator = np.random.default_rng(0)
    samples = generator.standard_normal((count, int(np.prod(shape))), dtype=np.float32)
    labels = generator.integers(0, CLASSES, count)
    rows = EmbeddingSet.from_numpy(samples, labels, class_names=[str(c) for c in range(CLASSES)])
    objective = RowsObjective.of(model, rows)
    vector = generator.standard_normal(model.shape)
    inputs = torch.from_numpy(samples).view(-1, *shape)
    bare = bare_product(model.network.module, inputs, torch.from_numpy(vector).float())
    expected = bare().double().numpy()
    difference = objective.product(model.weights, vector) - expected
    distance = float(np.linalg.norm(difference) / np.linalg.norm(expected))
    assert distance < 1e-5
    ours, theirs = race(
        lambda: objective.product(model.weights, vector),
        bare,
        repeats=REPEATS,
        clock=time.process_time,
    )
    report(f"{name.rpartition(':')[2]}: seconds of a product over those of torch.func", ours,
           theirs, bar=1.2, better="lower", parameters=vector.size, rows=count,
           distance=float(f"{distance:.1g}"))  # fmt: skip


def measure_command(name: str, *arguments: str, folder: Path) -> None:
    """Run a command with this folder as its working directory; it must succeed."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PROBEKIT_CACHE": str(folder / "cache"),
        "PYTHONPATH": str(Path(__file__).parent),
    }
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "probekit", *arguments], cwd=folder, env=environment
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = round(time.monotonic() - started, 1)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    peak = 1024.0 * usage.ru_maxrss
    report(f"{name}: peak memory in bytes", peak, MOST_MEMORY, bar=1, better="lower",
           seconds=seconds)  # fmt: skip


def measure_resnet() -> None:
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        for number in range(PICTURES):
            place = folder / "pictures" / str(number % CLASSES)
            place.mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{number}.png")
        measure_command(
            "resnet18: train", "train", "pictures", "-b", "pixels:32#rgb", "--network", RESNET,
            "--clients", str(CLIENTS), "--server-share", "0.2", "--pretrain-epochs", "2",
            "--ridge", RIDGE, "--run", "run", folder=folder,
        )  # fmt: skip
        measure_command(
            "resnet18: unlearn", "unlearn", "run", "--client", "1", "--method", "fedremoval",
            "--network", RESNET, folder=folder,
        )  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    parts = sys.argv[1:] or ["products", "resnet"]
    if "products" in parts:
        for name in BATCHES:
            measure_product(name)
    if "resnet" in parts:
        measure_resnet()


if __name__ == "__main__":
    main()
    finish()
