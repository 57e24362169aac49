"""Backbones of the user's own: what they are given, what identifies them, what is refused."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from probekit.backbones import load_backbone
from probekit.data.pictures import canary_samples
from probekit.errors import InputError, NotFoundError, ProbekitError
from probekit.testing import check_backbone

PICTURES = canary_samples("image")


def mean_color(pictures: list[Image.Image]) -> NDArray[np.float64]:
    return np.stack([np.asarray(picture).mean(axis=(0, 1)) for picture in pictures])


def thumbnail(picture: Image.Image) -> Tensor:
    values = np.array(picture.resize((4, 4)), dtype=np.float32) / 255
    return torch.from_numpy(values).permute(2, 0, 1)


def squeeze(picture: Image.Image) -> Tensor:
    return thumbnail(picture) * 2


def without_resizing(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture, dtype=np.float32)).permute(2, 0, 1)


def stack_pictures(pictures: list[Image.Image]) -> NDArray[np.float64]:
    return np.stack([np.asarray(picture) for picture in pictures]).mean(axis=(1, 2))


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, batch: Tensor) -> Tensor:
        return batch.flatten(1) * self.scale


class Prepared(Flat):
    prepare = staticmethod(thumbnail)


class PlainBackbone:
    name = "plain"
    kind = "image"
    identity = {"version": 1}  # noqa: RUF012
    views = {"mean": 3}  # noqa: RUF012

    def prepare(self, content: Image.Image) -> NDArray[np.float32]:
        return np.asarray(content.convert("RGB"), np.float32).mean(axis=(0, 1))

    def encode(self, batch: list[Any]) -> NDArray[np.float32]:
        return np.stack(batch)


def test_a_function_without_prepare_receives_rgb_pictures() -> None:
    backbone = load_backbone(mean_color)
    rows = backbone.encode([backbone.prepare(picture) for picture in PICTURES])
    expected = [np.asarray(picture.convert("RGB")).reshape(-1, 3).mean(0) for picture in PICTURES]
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    assert backbone.views == {"output": 3}
    check_backbone(backbone)


def test_a_function_with_prepare_receives_a_stacked_batch() -> None:
    backbone = load_backbone(flatten, prepare=thumbnail)
    assert backbone.views == {"output": 48}
    rows = backbone.encode([backbone.prepare(picture) for picture in PICTURES])
    np.testing.assert_allclose(rows[1], thumbnail(PICTURES[1].convert("RGB")).flatten())
    assert backbone.identity["preprocessing"] != load_backbone(flatten).identity["preprocessing"]


def flatten(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.flatten(1)
    return mean_color(batch)


def test_a_module_is_used_with_its_prepare() -> None:
    for backbone in (load_backbone(Flat(), prepare=thumbnail), load_backbone(Prepared())):
        rows = backbone.encode([backbone.prepare(picture) for picture in PICTURES])
        expected = [thumbnail(picture.convert("RGB")).flatten().numpy() for picture in PICTURES]
        np.testing.assert_allclose(rows, expected)
        check_backbone(backbone)


def test_a_module_may_take_a_preset() -> None:
    network = nn.Sequential(nn.AvgPool2d(224), nn.Flatten())
    backbone = load_backbone(network, preprocessing="f2l2-flowers")
    rows = backbone.encode([backbone.prepare(Image.new("RGB", (50, 60), (255, 0, 51)))])
    np.testing.assert_allclose(rows, [[1, 0, 0.2]], atol=1e-3)


def test_a_backbone_is_taken_as_it_is() -> None:
    plain = PlainBackbone()
    assert load_backbone(plain) is plain
    check_backbone(plain)
    with pytest.raises(InputError):
        load_backbone(plain, prepare=thumbnail)


def test_arrays_and_texts_need_no_prepare() -> None:
    rows = [np.full((2, 3), number, dtype=np.float64) for number in range(4)]
    for thing in (Flat(), lambda batch: batch.reshape(len(batch), -1)):
        backbone = load_backbone(thing, kind="array")
        assert list(backbone.views) == ["output"]
        vectors = backbone.encode([backbone.prepare(row) for row in rows])
        np.testing.assert_allclose(vectors[3], np.full(6, 3.0))
        assert backbone.views == {"output": 6}
        check_backbone(backbone, samples=rows)
    lengths = load_backbone(lambda texts: [[len(text)] for text in texts], kind="text")
    assert lengths.encode(["a", "abc"]).tolist() == [[1.0], [3.0]]


def test_the_identity_of_a_function_is_its_name_and_source() -> None:
    assert load_backbone(mean_color).identity == load_backbone(mean_color).identity
    assert load_backbone(mean_color).identity != load_backbone(flatten).identity
    first = load_backbone(Flat(), prepare=thumbnail).identity
    assert first != load_backbone(Flat(), prepare=squeeze).identity


def test_the_identity_of_a_module_is_its_tensors() -> None:
    changed = Prepared()
    with torch.no_grad():
        changed.scale.add_(1)
    assert load_backbone(Prepared()).identity == load_backbone(Prepared()).identity
    assert load_backbone(Prepared()).identity != load_backbone(changed).identity


def test_the_identity_of_a_function_has_the_weights_it_reaches() -> None:
    def callables(network: nn.Module) -> list[Any]:
        def closing(batch: Tensor) -> Tensor:
            return network(batch)

        def with_default(batch: Tensor, network: nn.Module = network) -> Tensor:
            return network(batch)

        return [closing, with_default, partial(apply, network), network.forward]

    pairs = zip(callables(nn.Linear(3, 2)), callables(nn.Linear(3, 2)), strict=True)
    for first, second in pairs:
        identities = [
            load_backbone(thing, prepare=color_vector).identity for thing in (first, first, second)
        ]
        assert identities[0] == identities[1]
        assert identities[0] != identities[2]


def apply(network: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = network(batch)
    return output


def color_vector(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(picture, np.float32).mean(axis=(0, 1)))


def test_a_version_may_be_stated() -> None:
    sourceless = eval("lambda pictures: [[1.0]] * len(pictures)")
    sourceless.identity = "v1"
    first = load_backbone(sourceless).identity
    sourceless.identity = "v2"
    assert load_backbone(sourceless).identity != first


def test_functions_typed_at_a_prompt_differ_by_their_code() -> None:
    texts = ("pictures: [[1.0]] * len(pictures)", "pictures: [[2.0]] * len(pictures)")
    first, second = (load_backbone(eval(f"lambda {text}")).identity for text in texts)
    assert first != second
    assert load_backbone(eval(f"lambda {texts[0]}")).identity == first


class Threshold:
    """A callable with a setting; `dataclass` would describe it."""

    def __init__(self, level: int) -> None:
        self.level = level

    def __call__(self, pictures: list[Image.Image]) -> NDArray[np.float64]:
        return mean_color(pictures) > self.level


class Described(Threshold):
    def __repr__(self) -> str:
        return f"Described({self.level})"


def test_the_identity_of_a_callable_is_its_class_and_description() -> None:
    identities = [load_backbone(thing).identity for thing in (Described(1), Described(2))]
    assert identities[0] != identities[1]
    assert load_backbone(Described(1)).identity == identities[0]
    assert load_backbone(Threshold(1)).identity == load_backbone(Threshold(1)).identity
    partials = [load_backbone(partial(apply_level, level)).identity for level in (1, 2)]
    assert partials[0] != partials[1]


def apply_level(level: int, pictures: list[Image.Image]) -> NDArray[np.float64]:
    return mean_color(pictures) > level


def test_a_module_is_put_into_evaluation_mode_and_a_function_is_checked() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(48, 2))

    def embed(batch: Tensor) -> Tensor:
        return network(batch)

    with pytest.raises(InputError):
        check_backbone(load_backbone(embed, prepare=thumbnail))
    load_backbone(network, prepare=thumbnail)
    assert not network.training
    check_backbone(load_backbone(embed, prepare=thumbnail))


def test_samples_of_several_shapes_are_refused_with_two_of_them() -> None:
    with pytest.raises(InputError):
        load_backbone(nn.Flatten(), prepare=without_resizing, kind="image").encode(
            [without_resizing(picture) for picture in PICTURES[1:3]]
        )
    with pytest.raises(InputError):
        load_backbone(stack_pictures)


@pytest.mark.parametrize("output", [[1.0, 2.0, 3.0], [[1.0]], [["a"], ["b"], ["c"]]])
def test_what_is_not_one_vector_per_sample_is_refused(output: Any) -> None:
    with pytest.raises(InputError):
        load_backbone(lambda pictures: output)


@pytest.mark.parametrize("output", [torch.zeros(4, 3, 2), torch.zeros(7, 2), (torch.zeros(1, 2),)])
def test_a_module_that_does_not_give_vectors_is_refused(output: Any) -> None:
    class Fixed(nn.Module):
        def forward(self, batch: Tensor) -> Any:
            return output

    with pytest.raises(InputError):
        load_backbone(Fixed(), prepare=thumbnail)


@pytest.mark.parametrize("thing", [7, Prepared, Flat()])
def test_what_cannot_be_a_backbone_is_refused(thing: Any) -> None:
    with pytest.raises(InputError):
        load_backbone(thing)


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError):
        load_backbone(Flat(), prepare=thumbnail, preprocessing="f2l2-flowers")
    with pytest.raises(InputError):
        load_backbone(mean_color, precision="amp-bfloat16")


MODULE = """
import numpy as np
import torchvision  # needs the shim
from torch import nn

def embed(samples):
    return np.ones((len(samples), 2))

def make():
    return embed

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3), nn.Flatten())
    def forward(self, batch):
        return self.layers(batch)

ready = Net().eval()
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory."""
    (tmp_path / "module_of_mine.py").write_text(MODULE)
    (tmp_path / "module_that_needs.py").write_text("import something_absent")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "module_of_mine", raising=False)
    return "py:module_of_mine"


@pytest.mark.parametrize("attribute", ["embed", "make"])
def test_names_of_functions_and_factories(user_module: str, attribute: str) -> None:
    backbone = load_backbone(f"{user_module}:{attribute}")
    assert backbone.name == f"{user_module}:{attribute}"
    assert backbone.encode([backbone.prepare(PICTURES[0])]).shape == (1, 2)


def test_torchvision_can_be_imported_by_the_users_module(user_module: str) -> None:
    code = f"from probekit.backbones import load_backbone; load_backbone('{user_module}:embed')"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("attribute", ["Net", "ready"])
def test_names_of_modules_and_their_classes(user_module: str, attribute: str) -> None:
    backbone = load_backbone(f"{user_module}:{attribute}", preprocessing="f2l2-flowers")
    assert backbone.encode([backbone.prepare(PICTURES[0])]).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("py:module_of_mine:embedd", NotFoundError),
        ("py:module_of_yours:embed", NotFoundError),
        ("py:module_that_needs:make", NotFoundError),
        ("py:module_of_mine", InputError),
        ("py:module_of_mine:embed#cls", NotFoundError),
    ],
)
def test_names_that_lead_nowhere(user_module: str, name: str, error: type[ProbekitError]) -> None:
    with pytest.raises(error):
        load_backbone(name)
