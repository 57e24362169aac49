"""open_clip's own models and ours agree; what would silently lose activation or preprocessing is refused."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

import probekit.backbones.torchvision_operators  # noqa: F401

# isort: split
import open_clip

from probekit.backbones import backbone
from probekit.datasets import pictures
from probekit.errors import InputError, NotFoundError, OfflineError
from probekit.testing import check_backbone

SAMPLES = pictures.canary_samples("image")[:4]
TEXT = {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1}
VIT = {"image_size": 32, "layers": 2, "width": 24, "head_width": 12, "patch_size": 8}
RESNET = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None}
TIMM = {"timm_model_name": "resnet18", "timm_pool": "avg", "timm_proj": "linear", "image_size": 32}
SQUASHED = {
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
    "resize_mode": "squash",
    "interpolation": "bilinear",
}


def config(vision: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"embed_dim": 12, "vision_cfg": vision, "text_cfg": TEXT, **more}


@pytest.fixture(autouse=True, scope="module")
def tiny_architectures(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Small architectures, known to open_clip beside its own."""
    folder = tmp_path_factory.mktemp("architectures")
    for name, stated in {
        "tiny": config(VIT),
        "tiny-quickgelu": config(VIT, quick_gelu=True),
        "tiny-resnet": config(RESNET),
        "tiny-timm": config(TIMM),
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(stated))
    open_clip.add_model_config(folder)


def model_of(arch: str, seed: int = 3) -> Any:
    torch.manual_seed(seed)
    return open_clip.create_model(arch).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in open_clip's own hub format, with activation and preprocessing not the default."""
    home = tmp_path / "saved"
    home.mkdir()
    stated = {"model_cfg": config(VIT, quick_gelu=True), "preprocess_cfg": SQUASHED}
    (home / "open_clip_config.json").write_text(json.dumps(stated))
    save_file(model_of("tiny-quickgelu").state_dict(), home / "open_clip_model.safetensors")
    return home


def directly(model: Any, transform: Callable[[Any], torch.Tensor]) -> NDArray[np.float32]:
    """open_clip's own answer."""
    batch = torch.stack([transform(sample.convert("RGB")) for sample in SAMPLES])
    with torch.no_grad():
        vectors: NDArray[np.float32] = model.encode_image(batch).numpy()
    return vectors


def ours(name: str) -> NDArray[np.float32]:
    found = backbone(name)
    return np.asarray(found.encode([found.preprocess(sample) for sample in SAMPLES]))


def test_a_folder_is_used_as_its_configuration_says(folder: Path) -> None:
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    name = f"open_clip:local-dir:{folder}"
    np.testing.assert_allclose(ours(name), directly(model.eval(), transform), atol=1e-6)
    found = backbone(name)
    assert found.preprocessing == {
        "colour": "RGB",
        "alpha": "dropped",
        "library": "open_clip",
        "size": [32, 32],
        "resize": "squash",
        "crop": "none",
        "interpolation": "bilinear",
        "antialias": True,
        "range": [0, 1],
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    }
    assert all(check.passed for check in check_backbone(found)), check_backbone(found)


@pytest.mark.parametrize("name", ["org/tiny", "org/tiny@v2"])
def test_the_hub_gives_what_the_folder_gives(folder: Path, publish: Any, name: str) -> None:
    publish(folder, "org/tiny", revision=name.partition("@")[2] or "main")
    assert np.array_equal(ours(f"open_clip:hf-hub:{name}"), ours(f"open_clip:local-dir:{folder}"))


@pytest.mark.parametrize(
    ("arch", "suffix"),
    [
        ("tiny", ".pt"),
        ("tiny", ".bin"),
        ("tiny", ".safetensors"),
        ("tiny-resnet", ".pth"),
        ("tiny-timm", ".pt"),
    ],
)
def test_a_weights_file_is_used_as_open_clip_does_by_default(tmp_path: Path, arch: str, suffix: str) -> None:
    file, model = tmp_path / f"mine{suffix}", model_of(arch)
    if suffix == ".safetensors":
        save_file(model.state_dict(), file)
    else:
        torch.save(model.state_dict(), file)
    same, _, transform = open_clip.create_model_and_transforms(arch, pretrained=str(file))
    name = f"open_clip:{arch}/{file}"
    np.testing.assert_allclose(ours(name), directly(same.eval(), transform), atol=1e-6)
    assert backbone(name).preprocessing["resize"] == "shortest"


def test_the_same_weights_have_the_same_fingerprint_from_everywhere(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.pt"
    torch.save(model_of("tiny-quickgelu").state_dict(), file)
    from_folder = backbone(f"open_clip:local-dir:{folder}").fingerprint
    assert backbone(f"open_clip:tiny-quickgelu/{file}").fingerprint == from_folder
    assert backbone(f"open_clip:tiny/{file}").fingerprint != from_folder  # another activation


def test_random_weights_are_the_same_every_time() -> None:
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    first = backbone("open_clip:tiny/random")
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(5)
    assert backbone("open_clip:tiny/random").fingerprint == first.fingerprint


def test_before_the_projection_of_a_transformer(folder: Path) -> None:
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.visual.proj = None
    given = ours(f"open_clip:local-dir:{folder}#pre")
    assert given.shape == (len(SAMPLES), 24)
    np.testing.assert_allclose(given, directly(model.eval(), transform), atol=1e-6)


def test_before_the_projection_of_a_timm_tower() -> None:
    projected, before = backbone("open_clip:tiny-timm/random"), backbone("open_clip:tiny-timm/random#pre")
    assert (projected.view, before.view) == ("proj", "pre")
    batch = [before.preprocess(sample) for sample in SAMPLES]
    weight = projected.module.head.proj.weight.numpy()  # type: ignore[attr-defined]
    np.testing.assert_allclose(before.encode(batch) @ weight.T, projected.encode(batch), atol=1e-5)


@pytest.mark.parametrize(("arch", "there"), [("tiny", "#proj, #pre"), ("tiny-resnet", "#proj")])
def test_an_unknown_view_names_those_there_are(arch: str, there: str) -> None:
    with pytest.raises(InputError, match=rf"no view #cls. It has: {there}\."):
        backbone(f"open_clip:{arch}/random#cls")
    if arch == "tiny-resnet":
        with pytest.raises(InputError, match=r"no view #pre"):
            backbone("open_clip:tiny-resnet/random#pre")


def test_only_the_image_tower_is_kept() -> None:
    found: Any = backbone("open_clip:tiny/random")
    assert {name.partition(".")[0] for name in found.module.state_dict()} >= {"conv1", "proj"}
    assert not any("token_embedding" in name for name in found.module.state_dict())
    pickle.dumps(found.preprocess)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("ViT-B-23/openai", NotFoundError, "no architecture 'ViT-B-23'.*ViT-B-32"),
        ("ViT-B-32/laion2b_s34b", NotFoundError, "no weights 'laion2b_s34b'.*laion2b_s34b_b79k"),
        ("ViT-B-32/missing.pt", NotFoundError, "no weights file missing.pt"),
        ("ViT-B-32", InputError, "names no weights.*ViT-B-32/random"),
        ("ViT-B-32/openai", InputError, "QuickGELU.*Write open_clip:ViT-B-32-quickgelu/openai"),
        ("ViT-B-32/laion2b_s34b_b79k", OfflineError, "HF_HUB_OFFLINE"),
        ("hf-hub:org/absent", OfflineError, "not in the local cache"),
        ("local-dir:/nowhere", NotFoundError, "no open_clip_config.json"),
    ],
)
def test_what_cannot_be_found_is_answered_with_a_remedy(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        backbone(f"open_clip:{name}")
    assert type(caught.value) is error


def test_a_hub_repository_without_weights_is_refused(folder: Path, publish: Any) -> None:
    (folder / "open_clip_model.safetensors").unlink()
    publish(folder, "org/empty")
    with pytest.raises(OfflineError, match="org/empty"):
        backbone("open_clip:hf-hub:org/empty")


def test_a_folder_without_weights_or_with_too_many_is_refused(folder: Path) -> None:
    weights = folder / "open_clip_model.safetensors"
    (folder / "a.safetensors").write_bytes(weights.read_bytes())
    weights.rename(folder / "b.safetensors")
    with pytest.raises(InputError, match=r"several weights.*a.safetensors, b.safetensors"):
        backbone(f"open_clip:local-dir:{folder}")
    (folder / "a.safetensors").unlink()
    (folder / "b.safetensors").unlink()
    with pytest.raises(NotFoundError, match="holds no weights"):
        backbone(f"open_clip:local-dir:{folder}")


def test_presets_need_the_papers_size() -> None:
    with pytest.raises(InputError, match="224 x 224, but this backbone takes 32 x 32"):
        backbone("open_clip:tiny/random", preset="f2l2-domainnet")
