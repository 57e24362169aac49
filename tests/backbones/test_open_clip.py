"""open_clip's own output and ours agree; what would silently lose a setting is refused."""

from __future__ import annotations

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
from torch import Tensor

import probekit.backbones.module  # noqa: F401

# isort: split
import open_clip

from probekit.backbones import load_backbone
from probekit.backbones.module import TorchBackbone
from probekit.backbones.open_clip import find_weights, tag_config
from probekit.data.pictures import canary_samples
from probekit.errors import InputError, NotFoundError, OfflineError, ProbekitError
from probekit.testing import check_backbone

PICTURES = canary_samples("image")[:4]
TEXT = {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1}
VIT = {"image_size": 32, "layers": 3, "width": 24, "head_width": 12, "patch_size": 8}
TIMM = {"timm_pool": "avg", "timm_proj": "linear", "image_size": 64}
SQUASH = {
    "mean": [0.5, 0.4, 0.3],
    "std": [0.5, 0.6, 0.7],
    "resize_mode": "squash",
    "interpolation": "bilinear",
}


def config(vision: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {"embed_dim": 12, "vision_cfg": vision, "text_cfg": TEXT, **settings}


CONFIGS = {
    "vit": config(VIT),
    "vit-quickgelu": config(VIT, quick_gelu=True),
    "vit-avg": config({**VIT, "pool_type": "avg", "final_ln_after_pool": True}),
    "resnet": config({"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None}),
    "timm-resnet": config({**TIMM, "timm_model_name": "test_resnet"}),
    "timm-vit": config(
        {**TIMM, "timm_model_name": "test_vit", "timm_pool": "token", "image_size": 160}
    ),
}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small architectures, known to open_clip beside its own."""
    folder = tmp_path_factory.mktemp("configs")
    for name, document in CONFIGS.items():
        (folder / f"tiny-{name}.json").write_text(json.dumps(document))
    open_clip.add_model_config(folder)
    return folder


def make_model(name: str) -> Any:
    torch.manual_seed(3)
    model: Any = open_clip.create_model(f"tiny-{name}").eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


Saved = Callable[[str], Path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, configs: Path) -> Saved:
    """Gives the folder of a model in open_clip's format, its preprocessing not the default."""
    root = tmp_path_factory.mktemp("models")

    def save(name: str) -> Path:
        folder = root / name
        if not folder.exists():
            folder.mkdir()
            document = {"model_cfg": CONFIGS[name], "preprocess_cfg": SQUASH}
            (folder / "open_clip_config.json").write_text(json.dumps(document))
            state = make_model(name).state_dict()
            save_file(state, folder / "open_clip_model.safetensors")
        return folder

    return save


def load(name: str, **options: Any) -> TorchBackbone:
    backbone = load_backbone(f"open_clip:{name}", device="cpu", **options)
    assert isinstance(backbone, TorchBackbone)
    return backbone


def encode(name: str) -> NDArray[np.float32]:
    backbone = load(name)
    return backbone.encode([backbone.prepare(picture) for picture in PICTURES])


def from_library(source: str, **options: str) -> tuple[Any, Tensor]:
    """open_clip's own model and the pictures as it prepares them."""
    model, _, transform = open_clip.create_model_and_transforms(source, **options)
    batch = [transform(picture.convert("RGB")) for picture in PICTURES]
    return model.eval(), torch.stack(batch)


def assert_close(actual: NDArray[np.float32], expected: Tensor) -> None:
    np.testing.assert_allclose(actual, expected.numpy(), atol=2e-5, rtol=1e-4)
    assert np.abs(actual[0] - actual[1]).max() > 1e-3


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_proj_is_what_open_clip_gives_for_pictures(saved: Saved, name: str) -> None:
    folder = saved(name)
    model, batch = from_library(f"local-dir:{folder}")
    assert_close(encode(f"local-dir:{folder}"), model.encode_image(batch))


@pytest.mark.parametrize("name", ["vit", "vit-quickgelu", "vit-avg"])
@torch.no_grad()
def test_views_of_a_transformer(saved: Saved, name: str) -> None:
    folder = f"local-dir:{saved(name)}"
    model, batch = from_library(folder)
    tower = model.visual
    blocks: list[Tensor] = []
    for block in tower.transformer.resblocks:
        block.register_forward_hook(lambda _, __, output: blocks.append(output))
    tower.proj = None
    tower.output_tokens = True
    pre, tokens = tower(batch)
    assert_close(encode(f"{folder}#pre"), pre)
    assert_close(encode(f"{folder}#mean"), tokens.mean(1))
    assert_close(encode(f"{folder}#layer:2.cls"), blocks[1][:, 0])
    assert_close(encode(f"{folder}#layer:-1.mean"), blocks[2][:, 1:].mean(1))
    assert_close(encode(f"{folder}#layer:*"), torch.cat([b[:, 0] for b in blocks], dim=1))
    last = torch.cat([tower.ln_post(block)[:, 0] for block in blocks[1:]], dim=1)
    assert_close(encode(f"{folder}#last2.cls"), last)


@torch.no_grad()
def test_views_of_a_timm_transformer(saved: Saved) -> None:
    folder = f"local-dir:{saved('timm-vit')}"
    model, batch = from_library(folder)
    trunk = model.visual.trunk
    tokens = trunk.forward_features(batch)
    assert_close(encode(f"{folder}#pre"), trunk(batch))
    assert_close(encode(f"{folder}#cls"), tokens[:, 0])
    assert_close(encode(f"{folder}#mean"), tokens[:, 1:].mean(1))
    assert_close(encode(f"{folder}#cls+mean"), torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1))
    [raw] = trunk.get_intermediate_layers(batch, n=[3], return_prefix_tokens=True)
    assert_close(encode(f"{folder}#layer:4.cls"), raw[1][:, 0])


@torch.no_grad()
def test_views_of_convolutional_towers(saved: Saved) -> None:
    folder = f"local-dir:{saved('timm-resnet')}"
    model, batch = from_library(folder)
    features = model.visual.trunk.forward_features(batch)
    assert_close(encode(f"{folder}#pre"), model.visual.trunk(batch))
    assert_close(encode(f"{folder}#mean"), features.mean((2, 3)))
    folder = f"local-dir:{saved('resnet')}"
    model, batch = from_library(folder)
    tower = model.visual
    stem = tower.stem(batch)
    assert_close(encode(f"{folder}#layer:1"), stem.mean((2, 3)))
    last = tower.layer4(tower.layer3(tower.layer2(tower.layer1(stem))))
    assert_close(encode(f"{folder}#layer:-1.mean"), last.mean((2, 3)))


@pytest.mark.parametrize(
    ("name", "view"),
    [("vit", "cls"), ("resnet", "pre"), ("resnet", "mean"), ("resnet", "last2.mean")],
)
def test_an_unknown_view_names_those_there_are(saved: Saved, name: str, view: str) -> None:
    with pytest.raises(NotFoundError):
        load(f"local-dir:{saved(name)}#{view}")


def test_the_folders_preprocessing_is_used_and_stated(saved: Saved) -> None:
    backbone = load(f"local-dir:{saved('vit')}")
    stated: Any = backbone.identity["preprocessing"]
    assert {key: stated[key] for key in SQUASH} == SQUASH
    assert stated["size"] == [32, 32]
    check_backbone(backbone)
    pickle.dumps(backbone.prepare)


@pytest.mark.parametrize("repository", ["org/tiny", "org/tiny@v2"])
def test_the_hub_gives_what_the_folder_gives(
    saved: Saved, publish: Callable[..., str], repository: str
) -> None:
    publish(saved("vit"), "org/tiny", revision=repository.partition("@")[2] or "main")
    assert np.array_equal(encode(f"hf-hub:{repository}"), encode(f"local-dir:{saved('vit')}"))


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("vit", ".pt"), ("vit", ".safetensors"), ("resnet", ".pth"), ("timm-resnet", ".bin")],
)
@torch.no_grad()
def test_a_weights_file_is_used_as_open_clip_does_by_default(
    tmp_path: Path, configs: Path, name: str, suffix: str
) -> None:
    file = tmp_path / f"mine{suffix}"
    state = make_model(name).state_dict()
    if suffix == ".safetensors":
        save_file(state, file)
    else:
        torch.save(state, file)
    model, batch = from_library(f"tiny-{name}", pretrained=str(file))
    assert_close(encode(f"tiny-{name}/{file}"), model.encode_image(batch))


def test_equal_weights_have_one_identity_whatever_their_source(
    saved: Saved, tmp_path: Path
) -> None:
    file = tmp_path / "mine.pt"
    torch.save(make_model("vit-quickgelu").state_dict(), file)
    folder = load(f"local-dir:{saved('vit-quickgelu')}").identity
    same = load(f"tiny-vit-quickgelu/{file}").identity
    other = load(f"tiny-vit/{file}").identity
    assert same["weights"] == folder["weights"] == other["weights"]
    assert same["quick_gelu"] is folder["quick_gelu"] is True
    assert same["vision"] == folder["vision"]
    assert other["quick_gelu"] is False  # another activation


def test_random_weights_are_the_same_every_time(configs: Path) -> None:
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    first = load("tiny-vit/random")
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(5)
    assert load("tiny-vit/random").identity == first.identity


def test_only_the_image_tower_is_kept(saved: Saved) -> None:
    tensors = load(f"local-dir:{saved('vit')}").model.state_dict()
    assert {"conv1.weight", "proj"} <= set(tensors)
    assert not any("token_embedding" in name for name in tensors)


@pytest.mark.parametrize(
    ("name", "error", "remedy"),
    [
        ("ViT-B-23/openai", NotFoundError, "ViT-B-32"),
        ("ViT-B-32/laion2b_s34b", NotFoundError, "laion2b_s34b_b79k"),
        ("ViT-B-32/missing.pt", NotFoundError, ""),
        ("ViT-B-32", NotFoundError, "random"),
        ("ViT-B-32/openai", OfflineError, ""),
        ("ViT-B-32/laion2b_s34b_b79k", OfflineError, ""),
        ("hf-hub:org/absent", OfflineError, "hf-hub:org/absent"),
        ("local-dir:/nowhere", InputError, ""),
    ],
)
def test_what_cannot_be_found_names_a_remedy(
    name: str, error: type[ProbekitError], remedy: str
) -> None:
    with pytest.raises(error) as caught:
        load(name)
    assert type(caught.value) is error
    assert remedy in str(caught.value)


def test_nothing_goes_on_with_random_weights(
    saved: Saved, tmp_path: Path, publish: Callable[..., str]
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    source = saved("vit")
    (folder / "open_clip_config.json").write_bytes((source / "open_clip_config.json").read_bytes())
    publish(folder, "org/empty")
    for name in (f"local-dir:{folder}", "hf-hub:org/empty"):
        with pytest.raises(InputError):
            load(name)


def test_a_preset_needs_its_size(configs: Path) -> None:
    with pytest.raises(InputError):
        load("tiny-vit/random", preprocessing="f2l2-domainnet")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "mine.pt"
    torch.save({"a": torch.zeros(1)}, file)
    return file


def find(architecture: str, file: Path) -> Path:
    return find_weights(architecture, str(file), open_clip.get_model_config(architecture))


def test_a_file_of_which_nothing_is_known_is_accepted(weights: Path) -> None:
    assert find("ViT-B-32", weights) == weights
    assert find("ViT-B-32-quickgelu", weights) == weights


def test_a_torchscript_archive_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ViT-B-32.pt"
    script: Any = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    script.save(str(file))
    with pytest.raises(InputError):
        load(f"ViT-B-32/{file}")


def test_a_file_beside_its_configuration_is_named_by_the_folder(weights: Path) -> None:
    (weights.parent / "open_clip_config.json").write_text("{}")
    with pytest.raises(InputError, match=f"open_clip:local-dir:{weights.parent}"):
        find("ViT-B-32", weights)


@pytest.mark.parametrize(
    ("architecture", "place", "remedy"),
    [
        (
            "ViT-B-32",
            "vit_b_32-quickgelu-laion400m_e32-46683a32.pt",
            "ViT-B-32-quickgelu/",
        ),
        (
            "ViT-B-32",
            "models--timm--vit_base_patch32_clip_224.openai/snapshots/1/open_clip_model.safetensors",
            "ViT-B-32-quickgelu/",
        ),
        ("ViT-B-32", "my-openai-weights.pt", "ViT-B-32-quickgelu/"),
        ("ViT-B-16-SigLIP", "mine.pt", "local-dir:FOLDER"),
        ("RN50x4", "mine.pt", "RN50x4-quickgelu/"),
    ],
)
def test_a_file_that_is_known_to_be_used_otherwise(
    tmp_path: Path, architecture: str, place: str, remedy: str
) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"a": torch.zeros(1)}, file)
    with pytest.raises(InputError, match=f"open_clip:{remedy}"):
        find(architecture, file)
    if "quickgelu" in remedy:
        assert find(f"{architecture}-quickgelu", file) == file


def test_files_that_are_no_weights_are_refused(
    tmp_path: Path, weights: Path, configs: Path
) -> None:
    torch.save(torch.nn.Linear(1, 1), tmp_path / "whole.pt")
    with pytest.raises(InputError):
        load(f"tiny-vit/{tmp_path}/whole.pt")
    with pytest.raises(InputError):
        load(f"tiny-vit/{weights}")
    (tmp_path / "weights.npz").write_bytes(b"")
    with pytest.raises(NotFoundError):
        find("ViT-B-32", tmp_path / "weights.npz")


TEXTS = ["a cat", "two dogs and a very long text that is cut to eight tokens", "x"]


@pytest.mark.parametrize("settings", [{}, {"quick_gelu": True}, {"custom_text": True}])
@torch.no_grad()
def test_texts_are_encoded_as_open_clip_does(tmp_path: Path, settings: dict[str, Any]) -> None:
    text = {**TEXT, "vocab_size": 49408}
    document = {"embed_dim": 12, "vision_cfg": VIT, "text_cfg": text, **settings}
    (tmp_path / "tiny-texts.json").write_text(json.dumps(document))
    open_clip.add_model_config(tmp_path)
    torch.manual_seed(5)
    model = open_clip.create_model("tiny-texts").eval()
    folder = tmp_path / "model"
    folder.mkdir()
    saved_config = {"model_cfg": document, "preprocess_cfg": SQUASH}
    (folder / "open_clip_config.json").write_text(json.dumps(saved_config))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    backbone = load(f"local-dir:{folder}", kind="text", prompt="see ")
    assert (backbone.kind, list(backbone.views)) == ("text", ["proj"])
    prompted = [f"see {text}" for text in TEXTS]
    expected = model.encode_text(open_clip.get_tokenizer("tiny-texts")(prompted))
    np.testing.assert_allclose(backbone.encode(TEXTS), expected.numpy(), atol=1e-5)
    assert not any(key.startswith("visual.") for key in backbone.model.state_dict())
    bare = load(f"local-dir:{folder}", kind="text")
    assert bare.identity != backbone.identity
    pictures = load(f"local-dir:{folder}")
    assert pictures.temperature == pytest.approx(1 / model.logit_scale.exp().item())
    with pytest.raises(InputError):
        load(f"local-dir:{folder}", kind="text", max_length=8)
    with pytest.raises(NotFoundError):
        load(f"local-dir:{folder}#cls", kind="text")


def test_published_weights_have_the_activation_that_they_were_trained_with() -> None:
    corrected = 0
    for model, tag in open_clip.list_pretrained():
        config = tag_config(model, tag)
        needed = bool(open_clip.get_pretrained_cfg(model, tag).get("quick_gelu"))
        assert config["quick_gelu"] or not needed
        corrected += needed and not open_clip.get_model_config(model).get("quick_gelu")
    assert corrected
    plain = tag_config("ViT-B-32", "openai")
    quick = tag_config("ViT-B-32-quickgelu", "openai")
    assert plain == quick
