"""The one door to all backbones."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from probekit import registry
from probekit.backbones import backbone, known_models, register_backbone
from probekit.errors import InputError, NotFoundError
from probekit.protocols import Reference


def embed(samples: list[Any]) -> Any:
    return np.ones((len(samples), 2), dtype=np.float32)


class Pool(nn.Module):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.mean(dim=(2, 3))


class Own:
    """A stranger's backbone: it imports nothing of ours."""

    name, kind, fingerprint, view = "own", "image", "0" * 64, "last"
    preprocessing = {"by": "me"}  # noqa: RUF012

    def preprocess(self, sample: Any) -> Any:
        return sample

    def encode(self, batch: Any) -> Any:
        return embed(batch)


@pytest.fixture(autouse=True)
def forgetful_registry() -> Iterator[None]:
    before = dict(registry.backbones._registered)
    yield
    registry.backbones._registered.clear()
    registry.backbones._registered.update(before)


def test_registered_factories_of_every_shape() -> None:
    seen: list[Reference] = []

    @register_backbone("mine")
    def load(reference: Reference) -> Own:
        seen.append(reference)
        return Own()

    register_backbone("bare")(Own)
    register_backbone("function")(lambda: embed)
    assert isinstance(backbone("mine:thing#last"), Own)
    assert seen == [Reference("mine", "thing", view="last")]
    assert backbone("bare").name == "own"
    assert backbone("function").name == "function"
    with pytest.raises(InputError, match=r"no view #first. It has: #last"):
        backbone("mine:thing#first")


def test_objects_pass_as_they_are_and_stay_where_they_are() -> None:
    own = Own()
    assert backbone(own) is own
    placed: Any = backbone(Pool(), preset="f2l2-domainnet", precision="amp-bfloat16")
    again: Any = backbone(placed)
    assert again is placed
    assert (placed.device, placed.precision) == ("cpu", "amp-bfloat16")


def test_the_fingerprint_is_computed_when_it_is_asked_for() -> None:
    found = backbone(Pool(), preset="f2l2-domainnet", device="cpu")
    assert "fingerprint" not in vars(backbone(found))
    assert found.fingerprint == vars(found)["fingerprint"]


def test_presets_are_refused_where_they_would_be_ignored() -> None:
    with pytest.raises(InputError, match="brings its own preprocessing"):
        backbone(Own(), preset="f2l2-domainnet")
    register_backbone("mine")(Own)
    with pytest.raises(InputError, match="brings its own preprocessing"):
        backbone("mine", preset="f2l2-domainnet")
    with pytest.raises(InputError, match="no preprocessing preset 'typo'"):
        backbone("mine", preset="typo")


def test_places_are_refused_where_they_would_be_ignored() -> None:
    assert backbone(Own(), device="auto", precision="float32").name == "own"
    wishes: tuple[dict[str, Any], ...] = ({"device": "cuda"}, {"precision": "amp-float16"})
    for wish in wishes:
        with pytest.raises(InputError, match="cannot be placed"):
            backbone(Own(), **wish)


def test_an_unknown_prefix_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="open_clip"):
        backbone("openclip:ViT-B-32/openai")


def test_known_models_can_be_asked_for() -> None:
    names = known_models()
    assert "open_clip:ViT-B-32/laion2b_s34b_b79k" in names
    assert "timm:resnet50.a1_in1k" in names


def test_importing_the_door_imports_no_library_behind_it() -> None:
    heavy = "torch", "transformers", "open_clip", "timm"
    script = f"import sys, probekit.backbones; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
