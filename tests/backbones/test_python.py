"""Backbones of one's own: functions, modules, factories, and what identifies them."""

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from probekit.backbones import backbone
from probekit.backbones.modes import training_parts
from probekit.backbones.python import as_backbone
from probekit.datasets import pictures
from probekit.errors import InputError, NotFoundError
from probekit.protocols import Backbone
from probekit.testing import check_backbone
from probekit.values import digest

SAMPLES = pictures.canary_samples("image")


def mean_colour(samples: list[Image.Image]) -> Any:
    """A plain function: the mean colour of each picture."""
    return np.stack([np.asarray(sample).mean(axis=(0, 1)) for sample in samples])


def thumbnail(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(picture.resize((4, 4)), dtype=np.float32)).permute(2, 0, 1)


class Flat(nn.Module):
    """A torch module that flattens its input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.flatten(1) * self.scale


class Prepared(Flat):
    preprocess = staticmethod(thumbnail)


def test_a_function_gets_rgb_pictures() -> None:
    found = as_backbone(mean_colour)
    assert isinstance(found, Backbone)
    given = found.encode([found.preprocess(sample) for sample in SAMPLES])
    wanted = [np.asarray(sample.convert("RGB")).reshape(-1, 3).mean(0) for sample in SAMPLES]
    np.testing.assert_allclose(given, wanted, rtol=1e-6)
    assert not [check for check in check_backbone(found) if not check.passed]


def test_a_functions_fingerprint_is_its_name_and_source() -> None:
    name = f"{mean_colour.__module__}.mean_colour"
    assert as_backbone(mean_colour).fingerprint == digest([name, inspect.getsource(mean_colour)])
    assert as_backbone(thumbnail).fingerprint != as_backbone(mean_colour).fingerprint


def test_a_fingerprint_may_be_stated() -> None:
    one, two = (as_backbone(mean_colour, fingerprint=version) for version in ("v1", "v2"))
    assert one.fingerprint != two.fingerprint
    assert as_backbone(mean_colour, fingerprint="ab" * 32).fingerprint == "ab" * 32
    with pytest.raises(InputError, match="give `fingerprint`"):
        as_backbone(eval("lambda samples: samples"))
    assert len(as_backbone(eval("lambda samples: samples"), fingerprint="mine").fingerprint) == 64


def test_arguments_that_messages_name_exist() -> None:
    nameless = eval("lambda samples: samples")
    with pytest.raises(InputError, match="give `fingerprint`"):
        backbone(nameless)
    assert backbone(nameless, fingerprint="mine").fingerprint == as_backbone(nameless, fingerprint="mine").fingerprint
    with pytest.raises(InputError, match="Give `preprocess`"):
        backbone(Flat())
    found = backbone(Flat(), preprocess=thumbnail)
    assert found.preprocessing == as_backbone(Flat(), preprocess=thumbnail).preprocessing
    with pytest.raises(InputError, match="one of them"):
        backbone(Flat(), preprocess=thumbnail, preset="f2l2-flowers")
    with pytest.raises(InputError, match="is a backbone already"):
        backbone(found, preprocess=thumbnail)
    assert backbone(nameless, fingerprint="mine", kind="array").kind == "array"


def test_modules_in_training_mode_are_found_wherever_they_are() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())

    def closed(samples: Any) -> Any:
        return net(samples)

    assert training_parts(as_backbone(closed, fingerprint="x")) == "net"
    net.eval()
    assert training_parts(as_backbone(closed, fingerprint="x")) == ""
    net.train()
    assert training_parts(as_backbone(net, preprocess=thumbnail)) == ""  # which puts it in evaluation mode
    assert training_parts(torch.nn.Linear(2, 2)) == ""
    assert training_parts(as_backbone(max, fingerprint="x")) == ""


def test_an_object_without_a_description_needs_a_fingerprint() -> None:
    class Callable:
        def __call__(self, samples: Any) -> Any:
            return mean_colour(samples)

    with pytest.raises(InputError, match="Cannot tell one version"):
        as_backbone(Callable())
    with pytest.raises(InputError, match="Cannot tell one version"):
        as_backbone(partial(mean_colour))


def test_a_module_needs_a_preprocessing_for_pictures() -> None:
    with pytest.raises(InputError, match="nothing says how pictures are prepared"):
        as_backbone(Flat())
    given, own = as_backbone(Flat(), preprocess=thumbnail), as_backbone(Prepared())
    for found in (given, own):
        assert "thumbnail" in str(found.preprocessing["function"])
        assert not [check for check in check_backbone(found) if not check.passed]
    assert as_backbone(Flat(), preprocess=lambda picture: picture).preprocessing != given.preprocessing


def test_a_modules_fingerprint_follows_its_weights() -> None:
    one, two = Prepared(), Prepared()
    with torch.no_grad():
        two.scale.add_(1)
    assert as_backbone(one).fingerprint == as_backbone(Prepared()).fingerprint
    assert as_backbone(one).fingerprint != as_backbone(two).fingerprint


def test_arrays_and_texts_need_no_preprocessing() -> None:
    rows = [np.full((2, 3), number, dtype=np.float64) for number in range(8)]
    module, function = (
        as_backbone(Flat(), kind="array"),
        as_backbone(lambda rows: rows.reshape(8, -1), kind="array"),
    )
    for found in (module, function):
        np.testing.assert_allclose(found.encode([found.preprocess(row) for row in rows])[3], 3.0)
    lengths = as_backbone(lambda texts: [[len(text)] for text in texts], kind="text")
    assert lengths.encode(["a", "abc"]).tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize("output", [[1.0, 2.0], [[1.0]], [["a"], ["b"]]])
def test_output_that_is_not_one_vector_per_sample_is_refused(output: Any) -> None:
    with pytest.raises(InputError, match=r"\(2, d\).*one row per sample"):
        as_backbone(lambda samples: output).encode(SAMPLES[:2])


def test_what_cannot_be_a_backbone_is_refused() -> None:
    with pytest.raises(InputError, match="torch module or a function"):
        as_backbone(7)
    with pytest.raises(InputError, match=r"Give Prepared\(\.\.\.\)"):
        as_backbone(Prepared)
    with pytest.raises(InputError, match="backbone already"):
        as_backbone(as_backbone(mean_colour), preprocess=thumbnail)


MODULE = """
import numpy as np
import torch
from torch import nn

def embed(samples):
    return np.ones((len(samples), 2))

def make():
    return embed

def told(reference):
    return lambda samples: np.full((len(samples), len(reference.name)), 1.0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.AdaptiveAvgPool2d(1)
    def forward(self, batch):
        return self.layer(batch).flatten(1)

ready = Net()
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder."""
    (tmp_path / "module_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.delitem(__import__("sys").modules, "module_of_mine", raising=False)
    return "py:module_of_mine"


def test_names_of_functions_factories_and_objects(own_module: str) -> None:
    for name, width in (("embed", 2), ("make", 2), ("told", len("module_of_mine:told"))):
        found = backbone(f"{own_module}:{name}")
        assert found.encode([found.preprocess(sample) for sample in SAMPLES]).shape == (8, width)
        assert found.name == f"{own_module}:{name}"
    for name in ("Net", "ready"):
        found = backbone(f"{own_module}:{name}", preset="f2l2-flowers")
        assert found.preprocessing["preset"] == "f2l2-flowers"
        assert found.encode([found.preprocess(SAMPLES[0])]).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("py:module_of_mine:embedd", NotFoundError, "has no 'embedd'.*embed"),
        ("py:module_of_yours:embed", NotFoundError, "No module named 'module_of_yours'"),
        ("py:module_of_mine", InputError, "py:module:factory"),
        ("py:module_of_mine:embed#cls", InputError, "no view #cls. It has: #output"),
    ],
)
def test_names_that_lead_nowhere(own_module: str, name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        backbone(name)


def test_a_module_that_needs_another_says_which(own_module: str) -> None:
    Path("module_that_needs.py").write_text("import something_absent")
    with pytest.raises(NotFoundError, match="needs 'something_absent', which is not installed"):
        backbone("py:module_that_needs:make")
