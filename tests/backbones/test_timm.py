"""timm's own pooled output, from random weights and from files; a file that does not fit is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import probekit.backbones.torchvision_operators  # noqa: F401

# isort: split
import timm
import timm.data

from probekit.backbones import backbone
from probekit.datasets import pictures
from probekit.errors import InputError, NotFoundError, OfflineError
from probekit.testing import check_backbone

SAMPLES = pictures.canary_samples("image")[:3]
ARCH = "test_resnet"


def directly(model: Any) -> Any:
    data: Any = timm.data
    transform = data.create_transform(**data.resolve_model_data_config(model), is_training=False)
    with torch.no_grad():
        return model.eval()(torch.stack([transform(sample.convert("RGB")) for sample in SAMPLES])).numpy()


def ours(name: str) -> Any:
    found = backbone(name)
    return found.encode([found.preprocess(sample) for sample in SAMPLES])


@pytest.mark.parametrize("arch", [ARCH, "test_vit"])
@pytest.mark.parametrize("classes", [0, 7, 1000])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_files_give_what_timm_gives(tmp_path: Path, arch: str, classes: int, suffix: str) -> None:
    torch.manual_seed(2)
    whole: Any = timm.create_model(arch, num_classes=classes)
    file = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": whole.state_dict()}, file)
    else:
        save_file(whole.state_dict(), file)
    whole.reset_classifier(0)
    np.testing.assert_allclose(ours(f"timm:{arch}/{file}"), directly(whole), atol=1e-6)


def test_random_weights_are_the_same_every_time_and_keep_the_promises() -> None:
    found = backbone(f"timm:{ARCH}/random")
    torch.manual_seed(5)
    assert backbone(f"timm:{ARCH}/random").fingerprint == found.fingerprint
    assert not [check for check in check_backbone(found) if not check.passed]
    assert found.preprocessing["size"] == [160, 160]


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    state = timm.create_model(ARCH, num_classes=0).state_dict()
    torch.save({key: value for key, value in state.items() if key != "conv1.0.weight"}, file)
    with pytest.raises(InputError, match="Cannot load"):
        backbone(f"timm:{ARCH}/{file}")
    torch.save(torch.nn.Linear(1, 1), file)
    with pytest.raises(InputError, match=r"weights_only|more than tensors"):
        backbone(f"timm:{ARCH}/{file}")


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("resnet51", NotFoundError, "no model 'resnet51'.*resnet50"),
        ("resnet50.b1_in1k", NotFoundError, r"no weights 'resnet50.b1_in1k'.*resnet50\.c1_in1k"),
        ("resnet50.a1_in1k", OfflineError, "not in the local cache"),
        ("resnet50/absent.pth", NotFoundError, "no weights file absent.pth"),
        ("resnet50#cls", InputError, "no view #cls.*#pooled"),
    ],
)
def test_what_cannot_be_found_is_answered_with_a_remedy(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        backbone(f"timm:{name}")
    assert type(caught.value) is error
