"""What the command line refuses of whole networks, in one sentence each."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.cli.conftest import Probekit
from tests.cli.networks.shop import (
    FACTORIES,
    FIRST,
    QUICK,
    Shop,
    sentence,
)

REFUSED: dict[str, tuple[tuple[str, ...], int, str]] = {
    "a ridge of 0": (("--ridge", "0"), 2, "needs a ridge above 0"),
    "a chosen ridge": (("--ridge", "auto"), 2, "the backend jvp is a number"),
    "statistics": (("--keep", "statistics"), 2, "can keep gradients, nothing"),
    "a view of the fit": (("--standardise", "centre"), 2, "found --standardise centre"),
    "sum scaling": (("--scaling", "sum"), 2, "--scaling is no option of the backend jvp"),
    "exact arithmetic": (("--arithmetic", "exact"), 2, "--arithmetic is no option of the backend jvp"),
    "objective noise": (("--objective-noise", "0.1"), 2, "--objective-noise is no option of the backend jvp"),
    "logistic": (("--method", "logistic"), 2, "Training by logistic is for heads on embeddings"),
    "a preset": (("--method", "fedavg", "--preset", "f2l2"), 2, "needs a full batch of 32"),
    "local steps without fedavg": (("--local-steps", "3"), 2, "it belongs to --method fedau or fedavg"),
    "no such network": (("--network", "mpl"), 3, "Known and close: mlp"),
    "too small for it": (("--network", "cnn"), 2, "each side at least 16; found (1, 12, 12)"),
    "no such weights": (("--network-weights", "no.safetensors"), 3, "no file of weights no.safetensors"),
    "other weights": (("--network-weights", "other.safetensors"), 2, "do not fit the network"),
    "no weights": (("--network-weights", "text.safetensors"), 2, "do not fit the network"),
    "no such subset": (("--subset", "9.*"), 2, "No parameter's name matches"),
    "too many layers": (("--subset", "4"), 2, "counted from 1 to 3"),
    "a split of a set": (("--split", "test"), 2, "--split is of a data set"),
    "no such rate": (("--pretrain-rate", "0"), 2, "rate above 0"),
    "no such client": (("--poison", "7", "--triggered", "grey-triggered"), 2, "Cannot poison client 7"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(probekit: Probekit, what: str) -> None:
    save_file({"1.weight": np.zeros((3, 4), np.float32)}, "other.safetensors")
    Path("text.safetensors").write_text("no weights at all")
    options, code, words = REFUSED[what]
    found, _, said = probekit("train", "grey", *QUICK, *options, "--run", "r")
    assert (found, words in sentence(said)) == (code, True), said
    assert not Path("r").exists()


OWN: dict[str, tuple[str, int, str]] = {
    "batch norm that stays in train mode": ("stubborn", 2, "is in train mode"),
    "dropout by a function": ("random", 2, "two calls gave different ones"),
    "writing in place": ("writing", 2, "in place where torch.func cannot follow"),
    "another shape of inputs": ("small", 2, "cannot take inputs of shape (1, 12, 12)"),
    "other classes": ("more_classes", 2, "one score per class for each input, (3, 3); found (3, 5)"),
    "outputs in space": ("unflattened", 2, "found (3, 3, 10, 10)"),
    "nothing to train": ("idle", 2, "needs parameters"),
    "no module": ("number", 2, "must make a torch.nn.Module; found int"),
    "a module, no function": ("instance", 2, "must be a function"),
    "a bug": ("broken", 2, "RuntimeError: a bug of its own."),
    "another signature": ("one_argument", 2, "takes 1 positional argument but 2 were given"),
    "an unknown function": ("nowhere", 3, "own_networks has no 'nowhere'"),
    "interruption": ("interrupted", 130, "Interrupted"),
}


@pytest.mark.parametrize("what", OWN)
def test_networks_of_ones_own_that_are_refused(probekit: Probekit, factories: str, what: str) -> None:
    name, code, words = OWN[what]
    found, _, said = probekit("train", "grey", *FIRST, "--network", factories + name, "--run", "r")
    assert (found, words in sentence(said)) == (code, True), said
    assert not Path("r").exists()
    assert not [path for path in Path().iterdir() if path.name.startswith(".") and path.is_dir()]


def test_a_batch_of_one_row_has_no_variance(probekit: Probekit, factories: str) -> None:
    base = ("train", "grey", *FIRST, "--network", f"{factories}normed", "--run", "r", "--pretrain-batch")
    code, _, said = probekit(*base, "17")
    assert (code, "Choose another batch size" in sentence(said)) == (2, True)
    assert probekit(*base, "9")[0] == 0


def test_networks_and_heads_are_told_apart(probekit: Probekit, shop: Shop) -> None:
    for arguments, code, words in (
        (("grey", "--network", "cnn"), 2, "--network is no option of the backend embeddings"),
        (("grey", "--pretrain-epochs", "3"), 2, "--pretrain-epochs is no option of the backend embeddings"),
        (("grey", "--backend", "jvp"), 2, "Partition with a server share"),
        ((shop.grey,), 3, "There is no set"),
        (("nowhere", "--backend", "jvp"), 3, "a data set is written SCHEME:NAME"),
        (("npz:nowhere.npz", "--backend", "jvp"), 3, "There is no file"),
        ((shop.grey, "--split", "test", "--backend", "jvp"), 3, "has no split 'test'"),
        (("nope:nowhere", "--backend", "jvp"), 3, "There is no dataset 'nope'"),
    ):
        found, _, said = probekit("train", *arguments, "--clients", "3", "--run", "r")
        assert (found, words in sentence(said)) == (code, True), said
        assert not Path("r").exists()


def test_rows_that_are_no_pictures(probekit: Probekit) -> None:
    np.savez("rows.npz", embeddings=np.eye(30, 6, dtype=np.float32), labels=np.arange(30) % 3)
    code, _, said = probekit("train", "npz:rows.npz", *FIRST, "--run", "r")
    assert (code, "holds no pictures" in sentence(said)) == (2, True)


def test_a_network_that_is_gone_is_missed(probekit: Probekit, factories: str, tmp_path: Path) -> None:
    assert probekit("train", "grey", *FIRST, "--network", f"{factories}tiny", "--run", "r")[0] == 0
    sys.modules.pop("own_networks")
    changed = FACTORIES.replace("8", "7")
    (tmp_path / "modules" / "own_networks.py").write_text(changed)
    shutil.rmtree(tmp_path / "modules" / "__pycache__", ignore_errors=True)
    code, _, said = probekit("unlearn", "r", "--client", "0")
    assert (code, "Give the code that it was trained with" in sentence(said)) == (4, True)
    sys.modules.pop("own_networks")
    (tmp_path / "modules" / "own_networks.py").unlink()
    shutil.rmtree(tmp_path / "modules" / "__pycache__", ignore_errors=True)
    code, _, said = probekit("evaluate", "r", "test")
    assert (code, "cannot be found" in sentence(said)) == (3, True)
