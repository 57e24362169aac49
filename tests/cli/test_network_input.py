"""`train --network` with input that cannot be used: the exit code, the reason, nothing written."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from probekit.cache import Cache
from probekit.cli.main import run
from probekit.embeddings import EmbeddingSet
from probekit.networks.architectures import Mlp, initialized
from tests.networks import modules
from tests.networks.modules import CLASSES

OWN = f"py:{modules.__name__}:"
NETWORK = ("--network", "mlp:5")
CONVENTIONAL = (*NETWORK, "--no-linearize")
Case = tuple[tuple[str, ...], int, tuple[str, ...]]


def network(name: str, code: int, *words: str) -> Case:
    return ("rows", "--network", name), code, words


def option(flag: str, value: str, code: int, *words: str) -> Case:
    return ("rows", *NETWORK, flag, value), code, (value, flag, *words)


NAMES: list[Case] = [
    network("", 3, "Unknown network ''", "mlp:500-100"),
    network("resnet", 3, "Unknown network 'resnet'", "cnn"),
    network("MLP", 3, "'MLP'"),
    network("cnn:5", 3, "'cnn:5'"),
    network("cnn", 2, "square pictures", "(4,)", "-b pixels#rgb"),
    network("mlp:0", 2, "'0'"),
    network("mlp:5-0", 2, "'5-0'", "mlp:500-100"),
    network("mlp:-5", 2, "'-5'"),
    network("mlp:5-", 2, "'5-'"),
    network("mlp:1e9", 2, "'1e9'"),
    network("mlp:٣", 2, "'٣'"),
    network("mlp:100000000000", 2, "800,000,000,003 parameters", "GB are free"),
    network("py:", 2, "py:package.module:factory"),
    network("py:numbers", 2, "py:package.module:factory"),
    network("py:no_such_module:f", 3, "'no_such_module'", "working directory"),
    network("py:raising:f", 2, "raising must be", "RuntimeError: boom"),
    network("py:leaving:f", 2, "leaving must be", "SystemExit: 3"),
    network("py:unfinished:f", 2, "SyntaxError"),
    network(f"{OWN}absent", 3, "no attribute 'absent'"),
    network("py:os:getcwd", 2, "must return a torch module"),
]
OWN_NETWORKS: list[Case] = [
    network(f"{OWN}{name}", 2, *words)
    for name, words in {
        "failing": ("failing must build a network", "KeyError"),
        "leaving": ("SystemExit: 3",),
        "sized:depth=3": ("'depth'", "Check its options"),
        "no_module": ("{'classes': 3}",),
        "no_parameters": ("this one has none",),
        "frozen": ("this one has none", "requires_grad_()"),
        "lazy": ("weight has no shape yet", "nn.Linear"),
        "train_mode": ("1 is in train mode", ".eval()"),
        "random": ("the same outputs twice",),
        "dictionary": ("returned dict", "logits"),
        "batch_statistics": ("each row by itself", "track_running_stats"),
        "centered": ("each row by itself",),
        "writing": ("writes into it",),
        "infinite": ("must be finite",),
        "constant": ("must have derivatives",),
        "disagreeing": ("Forward and reverse mode must agree",),
        "many_outputs": ("this one has 7", "num_classes"),
        "other_samples": ("samples of shape (4,)", "pixels:SIDE"),
    }.items()
]
OPTIONS: list[Case] = [
    option("--weights", "none.pt", 3),
    option("--weights", "text.pt", 4, "UnpicklingError"),
    option("--weights", "code.pt", 4, "UnpicklingError"),
    option("--weights", "state-with-code.pt", 4, "UnpicklingError"),
    option("--weights", "text.safetensors", 4, "SafetensorError"),
    option("--weights", "cut.safetensors", 4, "SafetensorError"),
    option("--weights", "larger.safetensors", 2, "size mismatch for 1.weight"),
    option("--ridge", "0", 2, "above 0"),
    option("--ridge", "-1", 2, "0 or more"),
    option("--ridge", "nan", 2, "finite"),
    option("--center", "middle", 2, "wp, zero"),
    option("--intercept", "free", 2, "drop --intercept free"),
    option("--server-share", "nan", 2),
    option("--pretrain-epochs", "-1", 2),
    option("--tolerance", "0", 2, "above 0"),
    option("--keep", "statistics", 2, "gradients or nothing"),
    option("--transport", "carrier-pigeon", 2, "ray:HOST:PORT"),
    (("rows", *NETWORK, "--weights", "nan.safetensors"), 2, ("must be finite", "weights")),
    (("rows", *NETWORK, "--method", "closed-form"), 2, ("closed-form", "fedavg")),
    (("rows", *NETWORK, "--method", "lbfgs"), 2, ("lbfgs", "by cg")),
    (("rows", *NETWORK, "--method", "fedavg:rounds=3"), 2, ("a rate", "fedavg:rate=1e-3")),
    (("rows", *NETWORK, "--method", "knot:rounds=3"), 2, ("a rate", "fedavg:rate=1e-3")),
    (("rows", *NETWORK, "--preset", "f2l2-paper"), 2, ("a rate", "fedavg:rate=1e-3")),
    (("rows", *NETWORK, "--method", "cg:products=0"), 2, ("above 0", "found 0")),
    (("rows", *CONVENTIONAL, "--method", "cg"), 2, ("--linearize", "by cg")),
    (("rows", *CONVENTIONAL, "--center", "zero"), 2, ("'zero'", "--no-linearize", "Drop")),
    (("rows", "--no-linearize"), 2, ("--no-linearize", "Pass --network")),
    (("rows", "--center", "zero"), 2, ("--center", "Pass --network")),
    (("rows", "--pretrain-epochs", "3"), 2, ("--pretrain-epochs", "Pass --network")),
    (("rows", "--weights", "larger.safetensors"), 2, ("--weights", "Pass --network")),
    (("rows", *NETWORK, "--poison", "client=0,trigger=square,target=0"), 2, ("vectors", "-b")),
    (("targets", *NETWORK, "--head", "logistic"), 2, ("has targets", "--head ridge")),
    (("targets", *CONVENTIONAL), 2, ("has targets", "--head ridge")),
    (("texts.csv", *NETWORK, "-b", "pixels"), 2, ("text", "pixels")),
]


class Payload:
    """Code in a pickle."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch executed",)


@pytest.fixture
def place(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with bad files; two cached sets."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((30, 4)).astype(np.float32)
    Cache().save("rows", EmbeddingSet.from_numpy(rows, ["a", "b", "c"] * 10))
    Cache().save("targets", EmbeddingSet.from_numpy(rows, targets=rows[:, :2]))
    (folder / "raising.py").write_text("raise RuntimeError('boom')\n")
    (folder / "leaving.py").write_text("raise SystemExit(3)\n")
    (folder / "unfinished.py").write_text("def f(:\n")
    (folder / "texts.csv").write_text("text,label\ngood,1\nbad,0\n" * 10)
    for name in ("text.pt", "text.safetensors"):
        (folder / name).write_bytes(b"no tensors")
    (folder / "code.pt").write_bytes(pickle.dumps(Payload()))
    torch.save({"1.weight": Payload()}, folder / "state-with-code.pt")
    save_file(initialized(Mlp((4, 6, CLASSES)), 0).state_dict(), folder / "larger.safetensors")
    content = (folder / "larger.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(content[:-8])
    state = initialized(Mlp((4, 5, CLASSES)), 0).state_dict()
    state["3.bias"][0] = torch.nan
    save_file(state, folder / "nan.safetensors")
    return folder


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [*NAMES, *OWN_NETWORKS, *OPTIONS],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    words: tuple[str, ...],
) -> None:
    cached = sorted(path for path in Cache().root.rglob("*") if path.suffix != ".lock")
    before = sorted(place.iterdir())
    assert run(["train", *arguments, "--clients", "3", "--run", "runs/a", "--quiet"]) == code
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert [word for word in words if word not in printed] == []
    assert sorted(path for path in place.iterdir() if path.name != "__pycache__") == before
    assert sorted(path for path in Cache().root.rglob("*") if path.suffix != ".lock") == cached
