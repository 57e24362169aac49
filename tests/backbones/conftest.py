"""Tiny saved models of real architectures, and a hub that nobody reaches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

import probekit.backbones.module  # noqa: F401

# isort: split
import transformers

hf: Any = transformers
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
VISION: dict[str, Any] = {**SIZES, "image_size": 32, "patch_size": 8}
TEXT: dict[str, Any] = {
    **SIZES,
    "vocab_size": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "hidden_size": 24,
    "word_embed_proj_dim": 24,
    "ffn_dim": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 64,
}
STAGES: dict[str, Any] = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 12, 16, 24]}
SQUARE = {"height": 32, "width": 32}
Publish = Callable[..., str]
TinyModels = Callable[[str], Path]


def blip2_config() -> Any:
    return hf.Blip2Config(
        vision_config=VISION,
        qformer_config={**SIZES, "encoder_hidden_size": 24, "vocab_size": 64},
        text_config=OPT,
        num_query_tokens=4,
        image_text_hidden_size=16,
    )


MODELS: dict[str, Callable[[], Any]] = {
    "clip": lambda: hf.CLIPModel(
        hf.CLIPConfig(vision_config=VISION, text_config=TEXT, projection_dim=16)
    ),
    "clip-projection": lambda: hf.CLIPVisionModelWithProjection(
        hf.CLIPVisionConfig(**VISION, projection_dim=16)
    ),
    "clip-tower": lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**VISION, projection_dim=16)),
    "siglip": lambda: hf.SiglipModel(hf.SiglipConfig(vision_config=VISION, text_config=TEXT)),
    "siglip-tower": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**VISION)),
    "dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(**{**VISION, "mlp_ratio": 2})),
    "dinov2-registers": lambda: hf.Dinov2WithRegistersModel(
        hf.Dinov2WithRegistersConfig(**{**VISION, "mlp_ratio": 2}, num_register_tokens=3)
    ),
    "dinov3": lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**VISION, num_register_tokens=2)),
    "dinov3-convnext": lambda: hf.DINOv3ConvNextModel(hf.DINOv3ConvNextConfig(**STAGES)),
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**VISION)),
    "vit-classifier": lambda: hf.ViTForImageClassification(hf.ViTConfig(**VISION)),
    "deit": lambda: hf.DeiTModel(hf.DeiTConfig(**VISION)),
    "beit": lambda: hf.BeitModel(hf.BeitConfig(**VISION, use_mean_pooling=True)),
    "data2vec": lambda: hf.Data2VecVisionModel(
        hf.Data2VecVisionConfig(**VISION), add_pooling_layer=True
    ),
    "mae": lambda: hf.ViTMAEForPreTraining(
        hf.ViTMAEConfig(
            **VISION,
            decoder_hidden_size=16,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=2,
            decoder_intermediate_size=16,
        )
    ),
    "aimv2-headless": lambda: hf.Aimv2VisionModel(hf.Aimv2VisionConfig(**VISION, use_head=False)),
    "aimv2": lambda: hf.Aimv2VisionModel(hf.Aimv2VisionConfig(**VISION)),
    "ijepa": lambda: hf.IJepaModel(hf.IJepaConfig(**VISION), add_pooling_layer=False),
    "swin": lambda: hf.SwinModel(
        hf.SwinConfig(
            image_size=32,
            patch_size=4,
            embed_dim=8,
            depths=[1, 1, 1],
            num_heads=[2, 2, 2],
            window_size=2,
        )
    ),
    "convnext": lambda: hf.ConvNextModel(hf.ConvNextConfig(**STAGES)),
    "resnet": lambda: hf.ResNetModel(
        hf.ResNetConfig(**STAGES, embedding_size=8, layer_type="basic")
    ),
    "blip2": lambda: hf.Blip2ForConditionalGeneration(blip2_config()),
    "blip2-retrieval": lambda: hf.Blip2ForImageTextRetrieval(blip2_config()),
}


def make_processor(name: str) -> Any:
    if name.startswith("clip"):
        return hf.CLIPImageProcessor(size={"shortest_edge": 36}, crop_size=SQUARE)
    if name.startswith("dinov2"):
        return hf.BitImageProcessor(size={"shortest_edge": 40}, crop_size=SQUARE)
    if name == "deit":
        return hf.DeiTImageProcessor(size={"height": 36, "width": 36}, crop_size=SQUARE)
    if name in ("convnext", "resnet"):
        return hf.ConvNextImageProcessor(size={"shortest_edge": 32})
    processors = {
        "siglip": hf.SiglipImageProcessor,
        "dinov3": hf.DINOv3ViTImageProcessor,
        "beit": hf.BeitImageProcessor,
        "data2vec": hf.BeitImageProcessor,
        "blip2": hf.BlipImageProcessor,
    }
    family = processors.get(name.partition("-")[0], hf.ViTImageProcessor)
    return family(size=SQUARE)


def make_model(name: str) -> Any:
    """A model whose weights all matter; many initial ones are zero or tiny."""
    torch.manual_seed(0)
    model = MODELS[name]()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
        for key, buffer in model.named_buffers():
            if "running_var" in key:
                buffer.add_(0.5)
    return model.eval()


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModels]:
    """Gives the folder of a tiny saved model by name; saved once for all tests: copy to change."""
    root = tmp_path_factory.mktemp("models")
    logging: Any = hf.utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    def saved(name: str) -> Path:
        folder = root / name
        if not folder.exists():
            make_model(name).save_pretrained(folder)
            make_processor(name).save_pretrained(folder)
        return folder

    yield saved
    shutil.rmtree(root)


@pytest.fixture
def editable(tiny_models: TinyModels, tmp_path: Path) -> TinyModels:
    """Gives a copy of a tiny model's folder that a test may change."""

    def copied(name: str) -> Path:
        return Path(shutil.copytree(tiny_models(name), tmp_path / name))

    return copied


@pytest.fixture(autouse=True)
def offline_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the hub's cache; all requests are refused at once."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def publish(offline_hub: Path) -> Publish:
    """Puts a folder into the hub's cache as if it had been downloaded; gives its commit."""

    def put(folder: Path, repository: str, *, revision: str = "main") -> str:
        commit = format(len(revision) * 7919, "040x")
        home = offline_hub / f"models--{repository.replace('/', '--')}"
        (home / "refs").mkdir(parents=True, exist_ok=True)
        (home / "refs" / revision).write_text(commit)
        shutil.copytree(folder, home / "snapshots" / commit)
        return commit

    return put


@pytest.fixture
def edit_json() -> Callable[..., None]:
    """Changes entries of a JSON file."""

    def edit(file: Path, **entries: object) -> None:
        file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))

    return edit
