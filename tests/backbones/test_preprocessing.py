"""Presets against torchvision's own transforms, and the choice between them and a model's own."""

import pickle
from typing import Any

import pytest
import torch
from PIL import Image

import probekit.backbones.torchvision_operators  # noqa: F401

# isort: split
from torchvision import transforms

from probekit.backbones.preprocessing import PRESETS, StatedPreprocess, choose_preprocess, picture_preprocess, preset
from probekit.datasets import pictures
from probekit.errors import InputError
from probekit.values import canonical

SAMPLES = pictures.canary_samples("image")


def normalised(mean: tuple[float, ...], std: tuple[float, ...]) -> Any:
    steps = [transforms.Resize((224, 224)), transforms.ToTensor(), transforms.Normalize(mean, std)]
    return transforms.Compose(steps)


ORACLES = {
    "f2l2-domainnet": normalised((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
    "f2l2-imagenet": normalised((0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262)),
    "f2l2-flowers": transforms.Compose([transforms.ToTensor(), transforms.Resize((224, 224), antialias=True)]),
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_what_torchvision_does(name: str) -> None:
    ours = pickle.loads(pickle.dumps(preset(name)))
    for sample in SAMPLES:
        wanted = ORACLES[name](sample.convert("RGB"))
        torch.testing.assert_close(ours(sample), wanted, atol=1e-6, rtol=0)


def test_presets_say_what_they_do_and_differ() -> None:
    assert len({canonical(each.values) for each in PRESETS.values()}) == len(PRESETS)
    assert preset("f2l2-flowers").values["mean"] is None
    assert preset("f2l2-domainnet").values["std"] == (0.247, 0.243, 0.261)


def test_native_is_the_models_own_and_presets_replace_it() -> None:
    native = picture_preprocess(transforms.ToTensor(), size=[224, 224], crop=None)
    assert choose_preprocess("native", native, size=(384, 384)) is native
    assert choose_preprocess("f2l2-flowers", native, size=(224, 224)) is PRESETS["f2l2-flowers"]
    assert native.values == {"colour": "RGB", "alpha": "dropped", "size": [224, 224]}


@pytest.mark.parametrize("size", [(384, 384), (224, 192), None])
def test_a_preset_of_another_size_is_refused(size: tuple[int, int] | None) -> None:
    with pytest.raises(InputError, match="224 x 224, but this backbone takes"):
        choose_preprocess("f2l2-imagenet", picture_preprocess(transforms.ToTensor()), size=size)


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="native, f2l2-domainnet, f2l2-imagenet, f2l2-flowers"):
        preset("f2l2-domain")


def test_pictures_reach_a_transform_as_rgb_and_all_else_as_it_is() -> None:
    seen = StatedPreprocess(lambda sample: sample, {})
    assert seen(Image.new("LA", (2, 2))).mode == "RGB"
    assert seen("a text") == "a text"
