"""Models of architectures: what is refused before work, weights from files, pretraining."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from probekit.embeddings import EmbeddingSet
from probekit.errors import CorruptError, InputError, NotFoundError
from probekit.networks import jacobian
from probekit.networks.architectures import Mlp, architecture, initialized
from probekit.networks.network import LinearizedNetwork, Network
from probekit.networks.pretraining import Pretraining, load_weights, network_model, pretrain
from probekit.objective import Squares
from probekit.progress import Step
from probekit.records import dump, parse
from tests.networks.modules import CLASSES, model_of, samples_of

REFUSED = {
    "train_mode": (r"must be in eval mode.* 1 is in train mode. Call .eval\(\)", InputError),
    "random": ("the same outputs twice; these differ. Take out what is random", InputError),
    "batch_statistics": ("each row by itself.*ValueError.*track_running_stats", InputError),
    "map_statistics": ("each row by itself.*outputs differ.*track_running_stats", InputError),
    "centered": ("each row by itself.*outputs differ.*group norm", InputError),
    "dictionary": ("a tensor .rows, classes.*returned dict. Return the logits", InputError),
    "maps": (r"a tensor .rows, classes.*returned \(2, 3, 1\). Return the logits", InputError),
    "writing": ("leave its input as it is; this one writes into it. Let it copy", InputError),
    "disagreeing": ("Forward and reverse mode must agree.*autograd.Function", InputError),
    "broken": ("must have derivatives.*NotImplementedError.*Replace that layer", InputError),
    "constant": ("must have derivatives.*RuntimeError.*Replace that layer", InputError),
    "infinite": ("outputs must be finite; found others. Check its weights", InputError),
    "many_outputs": ("each of 3 classes or targets; this one has 7.*num_classes", InputError),
    "few_outputs": ("each of 3 classes or targets; this one has 2.*num_classes", InputError),
    "other_samples": (
        r"samples of shape \(4,\), .*; it raised RuntimeError.* Take a net",
        InputError,
    ),
    "no_parameters": ("have parameters .* this one has none. Give it a layer", InputError),
    "lazy": ("weight has no shape yet. Replace that layer .nn.LazyLinear by", InputError),
    "complex_numbers": ("must be real numbers.* weight has torch.complex64", InputError),
    "frozen": (r"that require gradients; this one has none.*\.requires_grad_\(\)", InputError),
    "leaving": ("must build a network; it raised SystemExit: 3. Check its options", InputError),
    "no_module": ("must return a torch module; it returned {'classes': 3}", InputError),
    "failing": ("must build a network; it raised KeyError.* Check its options", InputError),
    "sized:depth=3": ("must build a network; it raised TypeError.*'depth'", InputError),
    "absent": ("no attribute 'absent'", NotFoundError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_with_the_reason(name: str) -> None:
    reason, kind = REFUSED[name]
    with pytest.raises(kind, match=reason) as caught:
        model_of(name, pretraining=Unread())
    assert "\n" not in str(caught.value)


class Unread(Pretraining):
    """Pretraining that must not begin."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError("refused too late")


def test_what_memory_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"800,000,000,003 param.* GB are free. Take a smaller"):
        model_of("mlp:100000000000")
    monkeypatch.setattr(jacobian, "free_memory", lambda: 1e8)
    assert model_of("mlp:50").shape == (403,)
    with pytest.raises(InputError, match=r"2,400,003 parameters needs 0.2 GB .*; 0.1 GB are free"):
        model_of("mlp:300000")
    with pytest.raises(InputError, match=r"247 parameters needs 0.1 GB for one row"):
        model_of("residual", shape=(2, 800, 800), pretraining=Unread())


def test_a_network_starts_as_torch_draws_it() -> None:
    drawn = [model_of("mlp:5-4", seed=seed).weights for seed in (0, 0, 1)]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    assert (drawn[2] == model_of("mlp:5-4").random_start(1)).all()
    model = model_of("mlp:5-4", linearize=False)
    assert not model.is_linear
    assert (model.center == 0).all()
    assert (model_of("mlp:5-4").center == drawn[0]).all()
    assert (model_of("mlp:5-4", center="zero").center == 0).all()


def blobs(count: int = 60, width: int = 4, *, shape: tuple[int, ...] = ()) -> EmbeddingSet:
    """Rows around a center for each class."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, count)
    rows = 2 * generator.standard_normal((CLASSES, width))[labels]
    rows += 0.3 * generator.standard_normal((count, width))
    return EmbeddingSet.from_numpy(rows.astype(np.float32), labels, class_names=list("abc"))


def accuracy(model: Network, rows: EmbeddingSet) -> float:
    scores = model.outputs(rows).at(model.weights)[0]
    return float((scores.argmax(axis=1) == rows.labels).mean())


@pytest.mark.parametrize("linearize", [True, False])
def test_pretraining_fits_the_servers_rows(linearize: bool) -> None:
    rows = blobs(200)
    steps: list[Step] = []
    before = torch.random.get_rng_state()
    model = model_of(
        "sized", linearize=linearize, pretraining=Pretraining(rows, 60), progress=steps.append
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert isinstance(model, LinearizedNetwork) == linearize
    assert accuracy(model_of("sized"), rows) < 0.9 < accuracy(model, rows)
    assert [(step.stage, step.done, step.total) for step in steps] == [
        ("pretraining", epoch, 60) for epoch in range(1, 61)
    ]
    losses = [float(step.note.removeprefix("loss ")) for step in steps]
    assert losses[-1] < losses[0] / 2


def test_pretraining_is_a_function_of_its_seed() -> None:
    rows = blobs(33)  # the last batch is a single row
    weights = [
        model_of("batch_normed", pretraining=Pretraining(rows, 2, seed)) for seed in (0, 0, 1)
    ]
    assert (weights[0].weights == weights[1].weights).all()
    assert (weights[0].buffers == weights[1].buffers).all()
    assert (weights[0].weights != weights[2].weights).any()


def test_batch_norm_learns_its_statistics_and_freezes_them() -> None:
    rows = blobs()
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, CLASSES))
    pretrain(module, Pretraining(rows, 10), (4,))
    assert not any(part.training for part in module.modules())
    assert all(parameter.grad is None for parameter in module.parameters())
    statistics = module[1].running_mean
    model = model_of("batch_normed", pretraining=Pretraining(rows, 10))
    assert isinstance(statistics, torch.Tensor)
    assert np.abs(statistics.numpy()).max() > 0.1
    assert (model.buffers != model_of("batch_normed").buffers).any()
    inputs = torch.tensor(rows.to_numpy())
    initial = initialized(model.architecture, 0)
    pretrain(initial, Pretraining(rows, 10), (4,))
    with torch.no_grad():
        expected = initial(inputs).numpy()
    np.testing.assert_allclose(model.outputs(rows).at(model.weights)[0], expected, atol=1e-6)


def test_what_is_frozen_stays() -> None:
    model = model_of("frozen_trunk", pretraining=Pretraining(blobs(), 3), linearize=False)
    assert model.shape == (6 * CLASSES + CLASSES,)
    module = initialized(model.architecture, 0)
    before = [parameter.clone() for parameter in module[0].parameters()]
    pretrain(module, Pretraining(blobs(), 3), (4,))
    assert all(map(torch.equal, before, module[0].parameters()))
    with torch.no_grad():
        for parameter in module[1].parameters():
            parameter += 0.1
    again = parse(dump(model), Network, max_bytes=10**6)
    rows = samples_of(model, 5)
    scores = module(torch.tensor(rows.to_numpy(), dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(again.outputs(rows).at(model.weights + 0.1)[0], scores, atol=1e-6)


def test_targets_are_fitted_by_their_squares() -> None:
    rows = blobs()
    targets = rows.to_numpy() @ np.random.default_rng(0).standard_normal((4, CLASSES))
    numbers = EmbeddingSet.from_numpy(rows.to_numpy(), targets=targets)
    model = model_of("sized:width=20", pretraining=Pretraining(numbers, 150))
    residual = model.outputs(numbers).at(model.weights)[0] - targets
    assert np.square(residual).mean() < 0.1 * np.square(targets).mean()


def test_pretraining_needs_rows_with_labels() -> None:
    rows = blobs()
    unlabeled = replace(rows, labels=np.where(np.arange(60) == 7, -1, rows.labels))
    with pytest.raises(InputError, match="a label for each row; arrays lacks some"):
        model_of("sized", pretraining=Pretraining(unlabeled, 1))
    with pytest.raises(InputError, match="a label for each row"):
        model_of("sized", pretraining=Pretraining(replace(rows, labels=None), 1))
    with pytest.raises(InputError, match=r"2 rows of the server or more.*found 1 rows"):
        Pretraining(rows.take(np.arange(1)), 1)
    with pytest.raises(InputError, match="and -1 epochs"):
        Pretraining(rows, -1)


def test_divergence_is_refused() -> None:
    rows = blobs().to_numpy() * np.float32(1e30)
    huge = EmbeddingSet.from_numpy(rows, targets=np.zeros((60, CLASSES)))
    with pytest.raises(InputError, match="outputs must be finite"):
        model_of("mlp:5-4", shape=(4,), pretraining=Pretraining(huge, 1))


Save = Callable[[dict[str, torch.Tensor], Path], None]
FILES: dict[str, Save] = {
    "weights.safetensors": save_file,
    "weights.pt": torch.save,
    "checkpoint.pth": lambda tensors, path: torch.save({"state_dict": tensors}, path),
}


@pytest.mark.parametrize("name", FILES)
def test_weights_come_from_a_file(name: str, tmp_path: Path) -> None:
    other = initialized(architecture("mlp:5-4", (1, 3, 3), CLASSES), 7)
    FILES[name](dict(other.state_dict()), tmp_path / name)
    model = model_of("mlp:5-4", weights=tmp_path / name)
    assert (model.weights == model.random_start(7)).all()


class Payload:
    """Code in a pickle."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch executed",)


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = Mlp((4, 5, 3)).build()
    state = dict(module.state_dict())
    with pytest.raises(NotFoundError, match=r"No weights at .*none.pt. Pass a state dict"):
        load_weights(module, tmp_path / "none.pt")
    contents = {
        "code.pt": pickle.dumps(Payload()),
        "text.pt": b"no tensors",
        "list.pt": pickle.dumps([1, 2]),
        "empty.pt": b"",
        "text.safetensors": b"no tensors",
        "empty.safetensors": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorruptError, match=f"{name} cannot be read .* Save module.state_dict"):
            load_weights(module, tmp_path / name)
    assert not (tmp_path / "executed").exists()
    others: dict[str, tuple[dict[str, Any], str]] = {
        "missing": ({"1.weight": state["1.weight"]}, "Missing key"),
        "more": ({**state, "9.weight": torch.zeros(2)}, "Unexpected key"),
        "shapes": ({**state, "1.weight": torch.zeros(2, 2)}, "size mismatch for 1.weight"),
        "texts": ({**state, "1.weight": "zero"}, "1.weight"),
    }
    for name, (tensors, reason) in others.items():
        torch.save(tensors, tmp_path / name)
        with pytest.raises(
            InputError, match=f"{name} has others: .*{reason}.* Pass those"
        ) as caught:
            load_weights(module, tmp_path / name)
        assert "\n" not in str(caught.value)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    module = initialized(Mlp((9, 5, 4, CLASSES)), 0)
    with torch.no_grad():
        next(module.parameters())[0, 0] = torch.nan
    save_file(module.state_dict(), tmp_path / "nan.safetensors")
    with pytest.raises(InputError, match="outputs must be finite"):
        model_of("mlp:5-4", weights=tmp_path / "nan.safetensors")


def test_options_are_checked() -> None:
    network = architecture("mlp:5-4", (4,), CLASSES)
    for options, reason in (
        ({"precision": "half"}, "float32 or float64"),
        ({"center": "w0"}, "wp"),
    ):
        with pytest.raises(InputError, match=reason):
            network_model(
                network, sample_shape=(4,), classes=CLASSES, loss=Squares(), **options
            )  # fmt: skip


def test_samples_are_those_of_the_network() -> None:
    model = model_of("mlp:5-4")
    model.check_rows("a", 9, CLASSES)
    for width, outputs in ((8, CLASSES), (9, 2)):
        with pytest.raises(InputError, match=r"Client a must have samples of \(1, 3, 3\) and 3"):
            model.check_rows("a", width, outputs)
    assert samples_of(model, 2).width == 9
