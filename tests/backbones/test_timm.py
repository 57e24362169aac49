"""Each view is the tensor that timm itself gives; weights that do not fit are refused."""

from __future__ import annotations

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
import timm
import timm.data
import timm.models

from probekit.backbones import load_backbone
from probekit.backbones.module import TorchBackbone
from probekit.data.pictures import canary_samples
from probekit.errors import InputError, NotFoundError, OfflineError, ProbekitError
from probekit.testing import check_backbone

PICTURES = canary_samples("image")[:3]
TINY: dict[str, Any] = {"embed_dim": 24, "depth": 4, "num_heads": 2, "img_size": 32}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_tiny_patch16_224", {**TINY, "patch_size": 8}),
    "vit-registers": ("vit_tiny_patch16_224", {**TINY, "patch_size": 8, "reg_tokens": 2}),
    "vit-avg": (
        "vit_tiny_patch16_224",
        {**TINY, "patch_size": 8, "class_token": False, "global_pool": "avg"},
    ),
    "deit-distilled": ("deit_tiny_distilled_patch16_224", {**TINY, "patch_size": 8}),
    "beit": ("beit_base_patch16_224", {**TINY, "patch_size": 8}),
    "eva": ("vit_small_patch16_dinov3", {**TINY, "patch_size": 8}),
    "cait": ("cait_xxs24_224", {**TINY, "depth": 2, "patch_size": 8}),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {"embed_dim": 12, "depths": [1, 1], "num_heads": [1, 2], "img_size": 56},
    ),
    "convnext": ("convnext_atto", {"depths": [1, 1, 1, 1], "dims": [4, 8, 12, 16]}),
    "resnet": ("test_resnet", {}),
}
TOKENS = ("vit", "vit-registers", "vit-avg", "deit-distilled", "beit", "eva")
PREFIX = {"vit": 1, "vit-registers": 3, "vit-avg": 0, "deit-distilled": 2, "beit": 1, "eva": 5}
MAPS = ("swin", "convnext", "resnet")
Saved = Callable[[str], Path]


def make_model(name: str) -> Any:
    """A model whose weights all matter; many initial ones are zero."""
    architecture, arguments = MODELS[name]
    torch.manual_seed(0)
    model: Any = timm.create_model(architecture, num_classes=5, **arguments).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
        for key, buffer in model.named_buffers():
            if "running_var" in key:
                buffer.add_(0.5)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Gives the folder of a model, in timm's own format."""
    root = tmp_path_factory.mktemp("timm")

    def save(name: str) -> Path:
        folder = root / name
        if not folder.exists():
            model = make_model(name)
            side = MODELS[name][1].get("img_size", 64)
            model.pretrained_cfg.update(
                input_size=(3, side, side),
                num_classes=5,
                mean=(0.4, 0.5, 0.6),
                std=(0.2, 0.3, 0.4),
                interpolation="bicubic",
                crop_pct=0.9,
            )
            timm.models.save_for_hf(
                model, str(folder), model_args=MODELS[name][1], safe_serialization=True
            )
        return folder

    return save


def load(name: str, **options: str) -> TorchBackbone:
    backbone = load_backbone(name, device="cpu", **options)
    assert isinstance(backbone, TorchBackbone)
    return backbone


def encode(name: str) -> NDArray[np.float32]:
    backbone = load(name)
    return backbone.encode([backbone.prepare(picture) for picture in PICTURES])


def library_batch(folder: Path) -> Tensor:
    """The pictures as timm prepares them for a saved model."""
    data: Any = timm.data
    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    transform = data.create_transform(**data.resolve_model_data_config(model))
    return torch.stack([transform(picture.convert("RGB")) for picture in PICTURES])


def library_model(folder: Path) -> Any:
    return timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).eval()


def hooked_blocks(model: Any, batch: Tensor) -> list[Tensor]:
    """What each block gives, seen by hooks."""
    outputs: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda _, __, output: outputs.append(output))
        for block in model.blocks
    ]
    model.forward_features(batch)
    for hook in hooks:
        hook.remove()
    return outputs


def assert_close(actual: NDArray[np.float32], expected: Tensor) -> None:
    np.testing.assert_allclose(actual, expected.numpy(), atol=2e-5, rtol=1e-4)
    assert np.abs(actual[0] - actual[1]).max() > 1e-3  # the pictures are told apart


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_pooled_is_timms_own_output(saved: Saved, name: str) -> None:
    folder = saved(name)
    expected = library_model(folder)(library_batch(folder))
    assert_close(encode(f"timm:{folder}"), expected)
    assert_close(encode(f"timm:local-dir:{folder}#pooled"), expected)


@pytest.mark.parametrize("name", TOKENS)
@torch.no_grad()
def test_tokens_and_inner_layers_of_transformers(saved: Saved, name: str) -> None:
    folder = saved(name)
    model = library_model(folder)
    batch = library_batch(folder)
    prefix = PREFIX[name]
    tokens = model.forward_features(batch)
    blocks = hooked_blocks(model, batch)
    assert_close(encode(f"timm:{folder}#mean"), tokens[:, prefix:].mean(1))
    assert_close(encode(f"timm:{folder}#layer:2.mean"), blocks[1][:, prefix:].mean(1))
    assert_close(encode(f"timm:{folder}#layer:-1.mean"), blocks[3][:, prefix:].mean(1))
    if not prefix:
        with pytest.raises(NotFoundError):
            load(f"timm:{folder}#cls")
        return
    both = torch.cat([tokens[:, 0], tokens[:, prefix:].mean(1)], dim=1)
    assert_close(encode(f"timm:{folder}#cls"), tokens[:, 0])
    assert_close(encode(f"timm:{folder}#cls+mean"), both)
    assert_close(encode(f"timm:{folder}#layer:-2"), blocks[2][:, 0])
    every = load(f"timm:{folder}#layer:*.cls")
    assert every.views == {f"layer:{number}.cls": 24 for number in (1, 2, 3, 4)}
    assert_close(encode(f"timm:{folder}#layer:*"), torch.cat([b[:, 0] for b in blocks], dim=1))


@pytest.mark.parametrize("name", ["vit", "deit-distilled", "eva"])
@torch.no_grad()
def test_the_last_layers_pass_the_final_norm(saved: Saved, name: str) -> None:
    folder = saved(name)
    model = library_model(folder)
    blocks = [model.norm(block) for block in hooked_blocks(model, library_batch(folder))]
    classes = [block[:, 0] for block in blocks[-2:]]
    means = [block[:, PREFIX[name] :].mean(1) for block in blocks[-2:]]
    assert_close(encode(f"timm:{folder}#last2.cls"), torch.cat(classes, dim=1))
    assert_close(encode(f"timm:{folder}#last2.cls+mean"), torch.cat([*classes, *means], dim=1))


@pytest.mark.parametrize("name", ["beit", *MAPS])
def test_without_a_norm_of_all_layers_there_is_no_last(saved: Saved, name: str) -> None:
    with pytest.raises(NotFoundError):
        load(f"timm:{saved(name)}#last2.mean")


@pytest.mark.parametrize("name", MAPS)
@torch.no_grad()
def test_maps_are_averaged_over_their_places(saved: Saved, name: str) -> None:
    folder = saved(name)
    model = library_model(folder)
    batch = library_batch(folder)
    places = (1, 2) if name == "swin" else (2, 3)
    stages = model.forward_intermediates(batch, intermediates_only=True)
    assert_close(encode(f"timm:{folder}#mean"), model.forward_features(batch).mean(places))
    assert_close(encode(f"timm:{folder}#layer:1"), stages[0].mean((2, 3)))
    assert len(load(f"timm:{folder}#layer:*").views) == len(stages)
    with pytest.raises(NotFoundError):
        load(f"timm:{folder}#cls")


@torch.no_grad()
def test_a_model_of_which_timm_states_no_prefix_has_no_mean(saved: Saved) -> None:
    folder = saved("cait")
    tokens = library_model(folder).forward_features(library_batch(folder))
    assert tokens.shape[1] == 17
    assert_close(encode(f"timm:{folder}#cls"), tokens[:, 0])
    with pytest.raises(NotFoundError):
        load(f"timm:{folder}#mean")


@pytest.mark.parametrize("name", ["crossvit_9_240", "convit_tiny"])
def test_tokens_that_cannot_be_told_apart_are_no_views(name: str) -> None:
    backbone = load(f"timm:{name}/random")
    rows = backbone.encode([backbone.prepare(picture) for picture in PICTURES])
    assert list(backbone.views) == ["pooled"]
    batch = torch.stack([torch.as_tensor(backbone.prepare(picture)) for picture in PICTURES])
    with torch.no_grad():
        assert_close(rows, backbone.model(batch))
    with pytest.raises(NotFoundError):
        load(f"timm:{name}/random#mean")


@pytest.mark.parametrize("classes", [0, 7])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@torch.no_grad()
def test_files_give_what_timm_gives(tmp_path: Path, classes: int, suffix: str) -> None:
    torch.manual_seed(2)
    model: Any = timm.create_model("test_vit", num_classes=classes).eval()
    file = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": model.state_dict()}, file)
    else:
        save_file(model.state_dict(), file)
    model.reset_classifier(0)
    backbone = load(f"timm:test_vit/{file}")
    batch = torch.stack([torch.as_tensor(backbone.prepare(picture)) for picture in PICTURES])
    assert_close(backbone.encode(list(batch)), model(batch))


def test_random_weights_are_the_same_every_time_and_conform() -> None:
    first = load("timm:test_resnet/random")
    torch.manual_seed(5)
    assert load("timm:test_resnet/random").identity == first.identity
    check_backbone(first)


def test_the_identity_follows_weights_and_arguments_and_not_the_path(
    saved: Saved, tmp_path: Path, edit_json: Callable[..., None]
) -> None:
    folder = saved("vit")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    identity = load(f"timm:{folder}").identity
    assert load(f"timm:{copy}").identity == identity
    edit_json(copy / "config.json", model_args={**MODELS["vit"][1], "num_heads": 3})
    assert load(f"timm:{copy}").identity != identity  # the same tensors, other attention


def test_a_preset_needs_its_size(saved: Saved) -> None:
    with pytest.raises(InputError):
        load(f"timm:{saved('vit')}", preprocessing="f2l2-flowers")


def test_weights_that_do_not_fit_are_refused(saved: Saved, tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    state = timm.create_model("test_resnet", num_classes=0).state_dict()
    torch.save({key: value for key, value in state.items() if key != "conv1.0.weight"}, file)
    with pytest.raises(InputError):
        load(f"timm:test_resnet/{file}")
    folder = tmp_path / "incomplete"
    folder.mkdir()
    (folder / "config.json").write_bytes((saved("vit") / "config.json").read_bytes())
    whole = make_model("vit").state_dict()
    kept = {key: value for key, value in whole.items() if not key.startswith("blocks.2.")}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(InputError):
        load(f"timm:{folder}")


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(1, 1), tmp_path / "whole.pth")
    with pytest.raises(InputError):
        load(f"timm:test_resnet/{tmp_path}/whole.pth")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("resnet51", NotFoundError),
        ("resnet50.b1_in1k", NotFoundError),
        ("resnet50.a1_in1k", OfflineError),
        ("hf-hub:org/absent", OfflineError),
        ("resnet50/absent.pth", NotFoundError),
        ("local-dir:absent", InputError),
        ("test_resnet/random#cls", NotFoundError),
        ("test_vit/random#layer:7.cls", NotFoundError),
        ("test_vit/random#layer:0.cls", NotFoundError),
        ("test_vit/random#last7.cls", NotFoundError),
        ("test_vit/random#cls+nothing", NotFoundError),
    ],
)
def test_what_cannot_be_found_is_refused(name: str, error: type[ProbekitError]) -> None:
    with pytest.raises(error) as caught:
        load(f"timm:{name}")
    assert type(caught.value) is error
