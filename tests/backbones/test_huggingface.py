"""Each view is the tensor that transformers itself gives; nothing random passes for pretrained."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

import probekit.backbones.torchvision_operators  # noqa: F401

# isort: split
import transformers

from probekit.backbones import backbone
from probekit.datasets import pictures
from probekit.errors import InputError, NotFoundError, OfflineError
from probekit.testing import check_backbone

hf: Any = transformers
SAMPLES = pictures.canary_samples("image")[:4]
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
VISION: dict[str, Any] = {**SIZES, "image_size": 32, "patch_size": 8}
TEXT: dict[str, Any] = {**SIZES, "vocab_size": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "hidden_size": 24,
    "word_embed_proj_dim": 24,
    "ffn_dim": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 64,
}
SQUARE = {"height": 32, "width": 32}


@pytest.fixture(autouse=True)
def silence() -> None:
    """Saving is not what is tested here."""
    log: Any = hf.utils.logging
    log.set_verbosity_error()
    log.disable_progress_bar()


def shaken(model: Any) -> Any:
    """The model with weights that all matter; many of transformers' initial ones are zero or tiny."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval()


def blip2_config() -> Any:
    return hf.Blip2Config(
        vision_config=VISION,
        qformer_config={**SIZES, "encoder_hidden_size": 24, "vocab_size": 64},
        text_config=OPT,
        num_query_tokens=4,
        image_text_hidden_size=16,
    )


def clip_config() -> Any:
    return hf.CLIPConfig(vision_config=VISION, text_config=TEXT, projection_dim=16)


def make(name: str) -> Any:
    makers: dict[str, Callable[[], Any]] = {
        "clip": lambda: hf.CLIPModel(clip_config()),
        "clip-vision": lambda: hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**VISION, projection_dim=16)),
        "siglip": lambda: hf.SiglipModel(hf.SiglipConfig(vision_config=VISION, text_config=TEXT)),
        "siglip2": lambda: hf.Siglip2VisionModel(hf.Siglip2VisionConfig(**SIZES, patch_size=8, num_patches=16)),
        "dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(**{**VISION, "mlp_ratio": 2})),
        "registers": lambda: hf.Dinov2WithRegistersModel(
            hf.Dinov2WithRegistersConfig(**{**VISION, "mlp_ratio": 2}, num_register_tokens=3)
        ),
        "vit": lambda: hf.ViTModel(hf.ViTConfig(**VISION)),
        "vit-classifier": lambda: hf.ViTForImageClassification(hf.ViTConfig(**VISION)),
        "blip2": lambda: hf.Blip2ForConditionalGeneration(blip2_config()),
        "blip2-retrieval": lambda: hf.Blip2ForImageTextRetrieval(blip2_config()),
    }
    torch.manual_seed(0)
    return shaken(makers[name]())


def processor(name: str) -> Any:
    if name.startswith("clip"):
        return hf.CLIPImageProcessor(size={"shortest_edge": 36}, crop_size=SQUARE)
    if name == "siglip2":
        return hf.Siglip2ImageProcessor(patch_size=8, max_num_patches=16)
    if name in ("dinov2", "registers"):
        return hf.BitImageProcessor(size={"shortest_edge": 40}, crop_size=SQUARE)
    kind = {"siglip": hf.SiglipImageProcessor, "vit": hf.ViTImageProcessor, "blip2": hf.BlipImageProcessor}
    return kind[name.partition("-")[0]](size=SQUARE)


Saved = Callable[[str], tuple[Path, Any]]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Saves a model and its processor as transformers does; gives the folder and the model."""

    def save(name: str) -> tuple[Path, Any]:
        folder, model = tmp_path / name, make(name)
        model.save_pretrained(folder)
        processor(name).save_pretrained(folder)
        return folder, model

    return save


def ours(name: str) -> NDArray[np.float32]:
    found = backbone(name)
    return np.asarray(found.encode([found.preprocess(sample) for sample in SAMPLES]))


def queries(model: Any, pixels: Any) -> Any:
    seen = model.vision_model(**pixels).last_hidden_state
    return model.qformer(query_embeds=model.query_tokens.expand(len(seen), -1, -1), encoder_hidden_states=seen)[0]


def masked_mean(model: Any, inputs: Any) -> Any:
    tokens = model(**inputs).last_hidden_state
    lengths = inputs["pixel_attention_mask"].sum(dim=1)
    return torch.stack([row[: int(length)].mean(dim=0) for row, length in zip(tokens, lengths, strict=True)])


CASES: dict[tuple[str, str], Callable[[Any, Any], Any]] = {
    ("clip", ""): lambda model, pixels: model.visual_projection(model.vision_model(**pixels).pooler_output),
    ("clip", "#proj"): lambda model, pixels: model.visual_projection(model.vision_model(**pixels).pooler_output),
    ("clip", "#pre"): lambda model, pixels: model.vision_model(**pixels).pooler_output,
    ("clip", "#cls"): lambda model, pixels: model.vision_model(**pixels).last_hidden_state[:, 0],
    ("clip", "#mean"): lambda model, pixels: model.vision_model(**pixels).last_hidden_state[:, 1:].mean(1),
    ("clip-vision", ""): lambda model, pixels: model(**pixels).image_embeds,
    ("clip-vision", "#pre"): lambda model, pixels: model.vision_model(**pixels).pooler_output,
    ("siglip", ""): lambda model, pixels: model.vision_model(**pixels).pooler_output,
    ("siglip", "#mean"): lambda model, pixels: model.vision_model(**pixels).last_hidden_state.mean(1),
    ("siglip2", ""): lambda model, inputs: model(**inputs).pooler_output,
    ("siglip2", "#mean"): masked_mean,
    ("dinov2", ""): lambda model, pixels: model(**pixels).pooler_output,
    ("dinov2", "#mean"): lambda model, pixels: model(**pixels).last_hidden_state[:, 1:].mean(1),
    ("registers", "#mean"): lambda model, pixels: model(**pixels).last_hidden_state[:, 4:].mean(1),
    ("vit", ""): lambda model, pixels: model(**pixels).last_hidden_state[:, 0],
    ("vit", "#mean"): lambda model, pixels: model(**pixels).last_hidden_state[:, 1:].mean(1),
    ("vit", "#pooled"): lambda model, pixels: model(**pixels).pooler_output,
    ("vit-classifier", ""): lambda model, pixels: model.vit(**pixels).last_hidden_state[:, 0],
    ("blip2-retrieval", ""): lambda model, pixels: queries(model, pixels)[:, 0],
    ("blip2-retrieval", "#proj"): lambda model, pixels: model.vision_projection(queries(model, pixels)[:, 0]),
    ("blip2-retrieval", "#cls"): lambda model, pixels: model.vision_model(**pixels).last_hidden_state[:, 0],
}


@pytest.mark.parametrize(("name", "view"), CASES)
def test_views_are_the_librarys_own_tensors(saved: Saved, name: str, view: str) -> None:
    folder, model = saved(name)
    inputs = hf.AutoImageProcessor.from_pretrained(folder)(
        images=[sample.convert("RGB") for sample in SAMPLES], return_tensors="pt"
    )
    with torch.no_grad():
        wanted = CASES[name, view](model, inputs).numpy()
    np.testing.assert_allclose(ours(f"hf:{folder}{view}"), wanted, atol=1e-6, rtol=1e-5)


def test_blip2_through_its_whole_generator(saved: Saved) -> None:
    """transformers' own feature call is the oracle; the language model is left on the disk."""
    folder, model = saved("blip2")
    pixels = hf.AutoImageProcessor.from_pretrained(folder)(
        images=[sample.convert("RGB") for sample in SAMPLES], return_tensors="pt"
    )
    with torch.no_grad():
        whole = hf.Blip2Model.from_pretrained(folder).eval()
        tokens = whole.get_qformer_features(**pixels).numpy()
        seen = model.vision_model(**pixels).last_hidden_state.numpy()
    for view, wanted in {
        "": tokens[:, 0],
        "#qformer.0": tokens[:, 0],
        "#qformer.3": tokens[:, 3],
        "#qformer.mean": tokens.mean(axis=1),
        "#cls": seen[:, 0],
        "#mean": seen[:, 1:].mean(axis=1),
    }.items():
        np.testing.assert_allclose(ours(f"hf:{folder}{view}"), wanted, atol=1e-6, rtol=1e-5)
    found: Any = backbone(f"hf:{folder}")
    assert found.view == "qformer.0"
    assert {name.partition(".")[0] for name in found.module.state_dict()} == {
        *("vision_model", "qformer", "query_tokens"),
    }
    tower: Any = backbone(f"hf:{folder}#cls")
    assert {name.partition(".")[0] for name in tower.module.state_dict()} == {"vision_model"}
    with pytest.raises(InputError, match="lacks 2 of the weights"):
        backbone(f"hf:{folder}#proj")
    with pytest.raises(InputError, match=r"#qformer.N with N below 4"):
        backbone(f"hf:{folder}#qformer.4")


def test_the_projection_of_blip2_is_the_librarys_before_it_is_normalised(saved: Saved) -> None:
    folder, _ = saved("blip2-retrieval")
    pixels = hf.AutoImageProcessor.from_pretrained(folder)(
        images=[sample.convert("RGB") for sample in SAMPLES], return_tensors="pt"
    )
    with torch.no_grad():
        model = hf.Blip2VisionModelWithProjection.from_pretrained(folder).eval()
        wanted = model(**pixels).image_embeds[:, 0].numpy()
    given = ours(f"hf:{folder}#proj")
    np.testing.assert_allclose(given / np.linalg.norm(given, axis=1, keepdims=True), wanted, atol=1e-6)


@pytest.mark.parametrize("name", ["clip", "siglip2", "blip2"])
def test_they_keep_the_promises_of_a_backbone(saved: Saved, name: str) -> None:
    found = backbone(f"hf:{saved(name)[0]}")
    failed = [check for check in check_backbone(found) if not check.passed]
    assert not failed
    pickle.loads(pickle.dumps(found.preprocess))


def test_the_preprocessing_says_what_the_processor_does(saved: Saved) -> None:
    values = backbone(f"hf:{saved('clip')[0]}").preprocessing
    assert values["library"] == "transformers"
    assert values["size"] == {"shortest_edge": 36}
    assert values["crop_size"] == SQUARE
    assert values["resample"] == "bicubic"
    assert values["backend"] in ("torchvision", "pillow")


@pytest.mark.parametrize("name", ["org/tiny", "org/tiny@v1.0", "org/tiny#pre"])
def test_hub_names_resolve_through_the_cache(saved: Saved, publish: Any, name: str) -> None:
    folder, _ = saved("clip")
    publish(folder, "org/tiny", revision="v1.0" if "@" in name else "main")
    view = "#pre" if "#" in name else ""
    assert np.array_equal(ours(f"hf:{name}"), ours(f"hf:{folder}{view}"))
    assert backbone(f"hf:{name}").name == f"hf:{name}"


def test_a_commit_is_a_revision(saved: Saved, publish: Any) -> None:
    folder, _ = saved("clip")
    commit = publish(folder, "org/tiny")
    assert np.array_equal(ours(f"hf:org/tiny@{commit}"), ours(f"hf:{folder}"))


def test_a_folder_may_have_an_at_in_its_name(saved: Saved) -> None:
    folder, _ = saved("clip")
    moved = folder.rename(folder.parent / "a@b")
    assert len(ours(f"hf:{moved}")) == len(SAMPLES)
    with pytest.raises(InputError, match="folders have no revisions"):
        backbone(f"hf:{moved}@v1")


def test_half_precision_checkpoints_compute_in_float32(saved: Saved) -> None:
    folder, model = saved("dinov2")
    model.half().save_pretrained(folder)
    found: Any = backbone(f"hf:{folder}")
    assert {weight.dtype for weight in found.module.parameters()} == {torch.float32}


def test_torch_files_are_read_but_pickles_are_not(saved: Saved) -> None:
    folder, _ = saved("dinov2")
    wanted = ours(f"hf:{folder}")
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    assert np.array_equal(ours(f"hf:{folder}"), wanted)
    torch.save({"state": torch.nn.Linear(1, 1)}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="more than tensors"):
        backbone(f"hf:{folder}")


def test_weights_that_would_be_random_are_refused(saved: Saved) -> None:
    folder, _ = saved("siglip")
    state = load_file(folder / "model.safetensors")
    dropped = "vision_model.head.probe"
    save_file({k: v for k, v in state.items() if k != dropped}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"lacks 1 of the weights.*head\.probe.*random"):
        backbone(f"hf:{folder}")


def test_weights_without_a_place_are_refused(saved: Saved, edit_json: Any) -> None:
    folder, _ = saved("vit")
    edit_json(folder / "config.json", num_hidden_layers=1)
    with pytest.raises(InputError, match="do not belong together"):
        backbone(f"hf:{folder}")


def test_weights_of_another_shape_are_refused(saved: Saved, edit_json: Any) -> None:
    folder, _ = saved("dinov2")
    edit_json(folder / "config.json", hidden_size=32)
    with pytest.raises(InputError, match="Cannot load"):
        backbone(f"hf:{folder}")


def test_views_that_a_checkpoint_has_no_weights_for_are_refused(saved: Saved) -> None:
    with pytest.raises(InputError, match=r"lacks 2 of the weights.*#cls, #mean, #pooled"):
        backbone(f"hf:{saved('vit-classifier')[0]}#pooled")
    with pytest.raises(InputError, match=r"no view #proj. It has: #cls, #mean"):
        backbone(f"hf:{saved('dinov2')[0]}#proj")


def test_a_checkpoint_without_a_processor_is_refused(saved: Saved) -> None:
    folder, _ = saved("clip")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(NotFoundError, match=r"without an image processor.*Save the processor"):
        backbone(f"hf:{folder}")


def test_a_processor_that_keeps_the_shape_of_pictures_is_refused(saved: Saved, edit_json: Any) -> None:
    folder, _ = saved("clip")
    edit_json(folder / "preprocessor_config.json", do_center_crop=False)
    with pytest.raises(InputError, match="varying size"):
        backbone(f"hf:{folder}")


def test_presets_follow_the_size_that_the_processor_makes(saved: Saved, edit_json: Any) -> None:
    folder, _ = saved("dinov2")
    with pytest.raises(InputError, match="takes 32 x 32"):
        backbone(f"hf:{folder}", preset="f2l2-flowers")
    edit_json(folder / "preprocessor_config.json", crop_size={"height": 224, "width": 224})
    found = backbone(f"hf:{folder}", preset="f2l2-flowers")
    assert found.preprocessing["preset"] == "f2l2-flowers"
    assert found.encode([found.preprocess(SAMPLES[0])]).shape == (1, 24)
    with pytest.raises(InputError, match="varying size"):
        backbone(f"hf:{saved('siglip2')[0]}", preset="f2l2-flowers")


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("org/absent", OfflineError, "not in the local cache"),
        ("/nowhere/at/all", NotFoundError, "no folder /nowhere/at/all"),
        ("clip-vit-base", NotFoundError, "write hf:ORG/NAME"),
    ],
)
def test_what_cannot_be_found_is_answered_with_a_remedy(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        backbone(f"hf:{name}")
    assert type(caught.value) is error


def test_a_model_of_another_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(InputError, match=r"'bert'.*py:module:factory"):
        backbone(f"hf:{tmp_path}")
    with pytest.raises(NotFoundError, match=r"no config.json"):
        backbone(f"hf:{tmp_path.parent}")


def test_code_in_a_repository_is_never_run(tmp_path: Path) -> None:
    stated = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with pytest.raises(InputError, match="Cannot load"):
        backbone(f"hf:{tmp_path}")
    assert not (tmp_path / "ran").exists()
