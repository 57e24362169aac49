"""Each view is the tensor that transformers itself gives; nothing random passes for pretrained."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

import probekit.backbones.module  # noqa: F401

# isort: split
import timm.models
import transformers

from probekit.backbones import load_backbone
from probekit.backbones.module import TorchBackbone
from probekit.data.pictures import canary_samples
from probekit.errors import InputError, NotFoundError, OfflineError

hf: Any = transformers
PICTURES = canary_samples("image")[:3]
TinyModels = Callable[[str], Path]


def load(name: str, **options: str) -> TorchBackbone:
    backbone = load_backbone(name, device="cpu", **options)
    assert isinstance(backbone, TorchBackbone)
    return backbone


def encode(backbone: TorchBackbone) -> NDArray[np.float32]:
    return backbone.encode([backbone.prepare(picture) for picture in PICTURES])


def library_inputs(folder: Path) -> dict[str, torch.Tensor]:
    processor = hf.AutoImageProcessor.from_pretrained(folder, backend="pil")
    pictures = [picture.convert("RGB") for picture in PICTURES]
    return dict(processor(images=pictures, return_tensors="pt"))


@dataclass(frozen=True)
class Facts:
    """What is known of an architecture from its source, not from our code.

    prefix: tokens before the patches; cls: whether the first is a class token.
    norm: the module that all #lastN layers pass; none: there is no #lastN.
    """

    model_class: str
    default: str
    prefix: int = 0
    cls: bool = False
    norm: str = ""
    pooled: bool = True
    inner: bool = True
    tower: str = ""


FACTS = {
    "clip": Facts("CLIPModel", "proj", 1, True, "post_layernorm", tower="vision_model"),
    "clip-projection": Facts(
        "CLIPVisionModelWithProjection", "proj", 1, True, "post_layernorm", tower="vision_model"
    ),
    "clip-tower": Facts("CLIPVisionModel", "pooled", 1, True, "post_layernorm"),
    "siglip": Facts("SiglipModel", "proj", 0, False, "post_layernorm", tower="vision_model"),
    "siglip-tower": Facts("SiglipVisionModel", "pooled", 0, False, "post_layernorm"),
    "dinov2": Facts("Dinov2Model", "cls", 1, True, "layernorm"),
    "dinov2-registers": Facts("Dinov2WithRegistersModel", "cls", 4, True, "layernorm"),
    "dinov3": Facts("DINOv3ViTModel", "cls", 3, True, "norm"),
    "dinov3-convnext": Facts("DINOv3ConvNextModel", "cls", 1, True, inner=False),
    "vit": Facts("ViTModel", "pooled", 1, True, "layernorm"),
    "vit-classifier": Facts(
        "ViTForImageClassification", "cls", 1, True, "layernorm", pooled=False, tower="vit"
    ),
    "deit": Facts("DeiTModel", "pooled", 2, True, "layernorm"),
    "beit": Facts("BeitModel", "pooled", 1, True),
    "data2vec": Facts("Data2VecVisionModel", "pooled", 1, True),
    "mae": Facts("ViTMAEModel", "cls", 1, True, "layernorm", pooled=False),
    "aimv2": Facts("Aimv2VisionModel", "pooled", 0, False, "rms_norm"),
    "aimv2-headless": Facts("Aimv2VisionModel", "mean", 0, False, "rms_norm", pooled=False),
    "ijepa": Facts("IJepaModel", "mean", 0, False, "layernorm", pooled=False),
    "swin": Facts("SwinModel", "pooled"),
    "convnext": Facts("ConvNextModel", "pooled"),
    "resnet": Facts("ResNetModel", "pooled"),
    "blip2": Facts("Blip2Model", "qformer.0", 1, True, "post_layernorm", tower="vision_model"),
    "blip2-retrieval": Facts(
        "Blip2ForImageTextRetrieval", "qformer.0", 1, True, "post_layernorm", tower="vision_model"
    ),
}


@dataclass(frozen=True)
class Reference:
    """A model by the library's own class, its inputs and the outputs of its tower."""

    name: str
    folder: Path
    model: Any
    tower: Any
    inputs: dict[str, torch.Tensor]
    outputs: Any

    def views(self) -> dict[str, torch.Tensor]:
        return {**self.token_views(), **self.vectors()}

    def read(self, token: str, state: torch.Tensor) -> torch.Tensor:
        rows = []
        for row in range(len(state)):
            if token == "cls":
                rows.append(state[row, 0])
            elif state.dim() == 4:
                rows.append(state[row].flatten(1).mean(1))
            else:
                rows.append(state[row, FACTS[self.name].prefix :].mean(0))
        return torch.stack(rows)

    def token_views(self) -> dict[str, torch.Tensor]:
        facts = FACTS[self.name]
        views = {}
        for token in ["cls", "mean"] if facts.cls else ["mean"]:
            views[token] = self.read(token, self.outputs.last_hidden_state)
            for index, state in enumerate(self.outputs.hidden_states if facts.inner else ()):
                views[f"layer:{index}.{token}"] = self.read(token, state)
            if facts.norm:
                norm = self.tower.get_submodule(facts.norm)
                last = [self.read(token, norm(state)) for state in self.outputs.hidden_states[-4:]]
                views[f"last4.{token}"] = torch.cat(last, 1)
        if facts.cls:
            views["cls+mean"] = torch.cat([views["cls"], views["mean"]], 1)
        if facts.cls and facts.norm:
            views["last4.cls+mean"] = torch.cat([views["last4.cls"], views["last4.mean"]], 1)
        return views

    def vectors(self) -> dict[str, torch.Tensor]:
        views = {}
        if FACTS[self.name].pooled:
            views["pooled"] = self.outputs.pooler_output.reshape(len(PICTURES), -1)
        if self.name in ("clip", "siglip"):
            views["proj"] = self.model.get_image_features(**self.inputs).pooler_output
        if self.name == "clip-projection":
            views["proj"] = self.model(**self.inputs).image_embeds
        if self.name in ("clip", "clip-projection"):
            views["pre"] = self.outputs.pooler_output
        if self.name.startswith("blip2"):
            whole = hf.Blip2Model.from_pretrained(self.folder).eval()
            queries = whole.get_qformer_features(**self.inputs)
            views["qformer.mean"] = queries.mean(1)
            views |= {f"qformer.{number}": queries[:, number] for number in (0, 3)}
            if self.name == "blip2-retrieval":
                views["pre"] = queries[:, 0]
                views["proj"] = self.model.vision_projection(queries[:, 0])
        return views


def library_views(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """All views of a saved model by the library's own classes and plain loops."""
    facts = FACTS[name]
    options = {"add_pooling_layer": True} if name == "data2vec" else {}
    model = getattr(hf, facts.model_class).from_pretrained(folder, **options).eval()
    tower = getattr(model, facts.tower) if facts.tower else model
    inputs = library_inputs(folder)
    arguments: dict[str, Any] = {**inputs, "output_hidden_states": True}
    if name == "mae":  # the library's own way to see all patches, in their order
        model.config.mask_ratio = 0.0
        arguments["noise"] = torch.arange(16.0).expand(len(PICTURES), -1)
    with torch.inference_mode():
        outputs = tower(**arguments)
        return Reference(name, folder, model, tower, inputs, outputs).views()


@pytest.mark.parametrize("name", FACTS)
def test_every_view_is_the_librarys_own_tensor(name: str, tiny_models: TinyModels) -> None:
    folder = tiny_models(name)
    expected = library_views(name, folder)
    default = load(f"hf:{folder}")
    assert list(default.views) == [FACTS[name].default]
    np.testing.assert_allclose(encode(default), expected[FACTS[name].default], atol=2e-5, rtol=1e-5)
    for view, vectors in expected.items():
        if view.startswith("layer:") and not view.startswith("layer:1."):
            continue  # all of them: next test
        backbone = load(f"hf:{folder}#{view}")
        assert backbone.views == {view: vectors.shape[1]}
        np.testing.assert_allclose(
            encode(backbone), vectors, atol=2e-5, rtol=1e-5, err_msg=f"{name}#{view}"
        )
    listed: Any = default.description["other_views"]
    listed = {view.partition(" ")[0] for view in listed}
    families = {"#" + re.sub(r"\d+", "N", view) for view in expected}
    layers = {view for view in listed if view.startswith("#layer:")}
    assert listed - layers == {view for view in families if not view.startswith("#layer:")}
    assert bool(layers) == FACTS[name].inner


PAGE = Path(__file__).parents[2] / "docs" / "backbones.md"
DOCUMENTED = {
    "openai/clip-vit-large-patch14": "clip",
    "facebook/metaclip-b32-400m": "clip",
    "google/siglip-base-patch16-224": "siglip",
    "google/siglip2-base-patch16-224": "siglip",
    "facebook/dinov2-base": "dinov2",
    "facebook/dinov2-with-registers-base": "dinov2-registers",
    "facebook/dinov3-vits16-pretrain-lvd1689m": "dinov3",
    "facebook/dinov3-convnext-tiny-pretrain-lvd1689m": "dinov3-convnext",
    "google/vit-base-patch16-224-in21k": "vit",
    "microsoft/beit-base-patch16-224": "beit",
    "facebook/vit-mae-base": "mae",
    "apple/aimv2-large-patch14-224": "aimv2-headless",
    "facebook/ijepa_vith14_1k": "ijepa",
    "microsoft/swin-tiny-patch4-window7-224": "swin",
    "facebook/convnextv2-tiny-22k-224": "convnext",
    "Salesforce/blip2-opt-2.7b": "blip2",
}
"""Checkpoints of the page, and the tiny model of each one's architecture."""


def test_the_page_shows_the_default_views() -> None:
    rows = re.findall(r"\| `hf:([^`]+)` \| `#([^`]+)` \|", PAGE.read_text().split("## Texts")[0])
    assert dict(rows) == {name: FACTS[model].default for name, model in DOCUMENTED.items()}


@pytest.mark.parametrize("name", ["clip", "siglip", "dinov3", "swin", "resnet"])
def test_all_layers_come_out_of_one_pass(name: str, tiny_models: TinyModels) -> None:
    folder = tiny_models(name)
    expected = library_views(name, folder)
    kind = "cls" if FACTS[name].cls else "mean"
    for text, token in (("layer:*", kind), ("layer:*.mean", "mean")):
        layers = [f"layer:{index}.{token}" for index in range(len(expected))]
        layers = [layer for layer in layers if layer in expected]
        backbone = load(f"hf:{folder}#{text}")
        assert list(backbone.views) == layers
        joined = torch.cat([expected[layer] for layer in layers], 1)
        np.testing.assert_allclose(encode(backbone), joined, atol=2e-5, rtol=1e-5)


def test_layers_count_from_the_end_and_share_one_name(tiny_models: TinyModels) -> None:
    folder = tiny_models("dinov2")
    last_but_one = load(f"hf:{folder}#layer:-2.cls")
    assert list(last_but_one.views) == ["layer:3.cls"]
    assert np.array_equal(encode(last_but_one), encode(load(f"hf:{folder}#layer:3")))
    for view in ("layer:5.cls", "layer:-6.cls", "last5.cls", "last0.cls", "layer:*.", "sum"):
        with pytest.raises(NotFoundError) as caught:
            load(f"hf:{folder}#{view}")
        assert caught.value.exit_code == 3


def test_a_projected_query_is_the_librarys_before_normalization(tiny_models: TinyModels) -> None:
    folder = tiny_models("blip2-retrieval")
    with torch.inference_mode():
        model = hf.Blip2VisionModelWithProjection.from_pretrained(folder).eval()
        expected = model(**library_inputs(folder)).image_embeds[:, 0].numpy()
    rows = encode(load(f"hf:{folder}#proj"))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_only_what_a_view_needs_is_held(tiny_models: TinyModels) -> None:
    folder = tiny_models("blip2")
    held = {key.partition(".")[0] for key in load(f"hf:{folder}").model.state_dict()}
    assert held == {"tower", "qformer", "queries"}
    held = {key.partition(".")[0] for key in load(f"hf:{folder}#cls").model.state_dict()}
    assert held == {"tower"}


def test_the_description_lists_the_views(tiny_models: TinyModels) -> None:
    clip: Any = load(f"hf:{tiny_models('clip')}#cls")
    assert clip.identity["preprocessing"]["processor"] == "CLIPImageProcessorPil"
    assert "#layer:N.cls (N from 0 to 4, or * for all)" in clip.description["other_views"]
    json.dumps(clip.description)


def test_the_identity_is_that_of_the_numbers(
    tiny_models: TinyModels, editable: TinyModels, tmp_path: Path, edit_json: Any
) -> None:
    whole = load(f"hf:{tiny_models('clip')}#pooled")
    folder = editable("clip")
    model = hf.CLIPModel.from_pretrained(folder).eval()
    model.vision_model.save_pretrained(tmp_path / "tower", max_shard_size="20KB")
    processor = hf.AutoImageProcessor.from_pretrained(folder)
    processor.save_pretrained(tmp_path / "tower")
    tower = load(f"hf:{tmp_path / 'tower'}#pooled")
    assert len(list((tmp_path / "tower").glob("*.safetensors"))) > 1
    assert tower.identity == whole.identity
    assert json.dumps(dict(whole.identity))
    edit_json(folder / "config.json", initializer_factor=2.0, transformers_version="0")
    assert load(f"hf:{folder}#pooled").identity == whole.identity

    edit_json(folder / "preprocessor_config.json", resample=2)
    assert load(f"hf:{folder}#pooled").identity != whole.identity
    config = json.loads((tmp_path / "tower" / "config.json").read_text())
    edit_json(tmp_path / "tower" / "config.json", hidden_act="relu")
    assert config["hidden_act"] != "relu"
    assert load(f"hf:{tmp_path / 'tower'}#pooled").identity != whole.identity
    half = load(f"hf:{tiny_models('clip')}#pooled", precision="amp-bfloat16")
    assert half.identity != whole.identity


def test_one_changed_weight_is_another_identity(editable: TinyModels) -> None:
    folder = editable("vit")
    identity = load(f"hf:{folder}").identity
    state = load_file(folder / "model.safetensors")
    state["pooler.dense.bias"][0] += 1e-3
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    assert load(f"hf:{folder}").identity != identity


def test_a_random_pooler_is_no_part_of_the_identity(tiny_models: TinyModels) -> None:
    name = f"hf:{tiny_models('vit-classifier')}#cls"
    assert load(name).identity == load(name).identity


@pytest.mark.parametrize("name", ["clip", "siglip", "dinov3"])
def test_workers_receive_the_preprocessing_alone(name: str, tiny_models: TinyModels) -> None:
    backbone = load(f"hf:{tiny_models(name)}")
    prepare = pickle.loads(pickle.dumps(backbone.prepare))
    sample = prepare(PICTURES[0])
    assert sample.dtype == np.float32
    assert np.array_equal(sample, backbone.prepare(PICTURES[0]))
    inputs = library_inputs(tiny_models(name))
    np.testing.assert_allclose(sample, inputs["pixel_values"][0].numpy(), atol=1e-6)


@pytest.mark.parametrize("revision", ["main", "v1.0"])
def test_hub_names_resolve_through_the_local_cache(
    revision: str, tiny_models: TinyModels, publish: Any
) -> None:
    folder = tiny_models("clip")
    commit = publish(folder, "org/tiny", revision=revision)
    local = load(f"hf:{folder}#pre")
    for text in (f"@{revision}", f"@{commit}", "" if revision == "main" else f"@{revision}"):
        backbone = load(f"hf:org/tiny{text}#pre")
        assert backbone.name == f"hf:org/tiny{text}#pre"
        assert backbone.commit == commit
        assert backbone.identity == local.identity
        assert np.array_equal(encode(backbone), encode(local))
    with pytest.raises(OfflineError):
        load("hf:org/tiny@other")


def test_a_folder_may_have_an_at_in_its_name(editable: TinyModels) -> None:
    folder = editable("dinov2")
    renamed = folder.rename(folder.parent / "a@b")
    assert len(encode(load(f"hf:{renamed}"))) == len(PICTURES)
    with pytest.raises(NotFoundError):
        load(f"hf:{renamed}@v1")


def test_half_precision_checkpoints_compute_in_float32(editable: TinyModels) -> None:
    folder = editable("dinov2")
    hf.Dinov2Model.from_pretrained(folder).half().save_pretrained(folder)
    backbone = load(f"hf:{folder}")
    assert {weight.dtype for weight in backbone.model.parameters()} == {torch.float32}


def test_torch_files_are_read_but_pickles_are_not(editable: TinyModels) -> None:
    folder = editable("dinov2")
    expected = encode(load(f"hf:{folder}"))
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    assert np.array_equal(encode(load(f"hf:{folder}")), expected)
    torch.save({"state": torch.nn.Linear(1, 1)}, folder / "pytorch_model.bin")
    with pytest.raises(InputError):
        load(f"hf:{folder}")


@pytest.mark.parametrize(
    ("name", "dropped"),
    [
        ("siglip", "vision_model.encoder.layers.1.self_attn.k_proj.weight"),
        ("dinov2", "embeddings.cls_token"),
        ("clip", "vision_model.post_layernorm.weight"),
    ],
)
def test_weights_that_would_be_random_are_refused(
    name: str, dropped: str, editable: TinyModels
) -> None:
    folder = editable(name)
    state = load_file(folder / "model.safetensors")
    del state[dropped]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError):
        load(f"hf:{folder}")


@pytest.mark.parametrize(
    ("name", "dropped", "views"),
    [
        ("siglip", "vision_model.head.probe", ("pooled", "proj")),
        ("vit", "pooler.dense.weight", ("pooled",)),
        ("clip", "visual_projection.weight", ("proj", "pre")),
    ],
)
def test_a_missing_pooler_or_projection_only_removes_its_views(
    name: str, dropped: str, views: tuple[str, ...], editable: TinyModels
) -> None:
    folder = editable(name)
    mean = encode(load(f"hf:{folder}#mean"))
    state = load_file(folder / "model.safetensors")
    del state[dropped]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    assert np.array_equal(encode(load(f"hf:{folder}#mean")), mean)
    assert not set(load(f"hf:{folder}").views) & set(views)
    for view in views:
        with pytest.raises(NotFoundError):
            load(f"hf:{folder}#{view}")


@pytest.mark.parametrize(
    "change", [{"num_hidden_layers": 2}, {"hidden_size": 32}, {"image_size": 64}]
)
def test_a_configuration_of_other_weights_is_refused(
    change: dict[str, int], editable: TinyModels, edit_json: Any
) -> None:
    folder = editable("vit")
    edit_json(folder / "config.json", **change)
    with pytest.raises(InputError):
        load(f"hf:{folder}")


def test_layers_without_a_place_for_their_scales_are_refused(tmp_path: Path) -> None:
    sizes = {"embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 32, "patch_size": 8}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, init_values=0.1, **sizes)
    model.pretrained_cfg.update(input_size=(3, 32, 32), num_classes=0)
    for scaled in ({"init_values": 0.1}, {}):
        folder = tmp_path / str(len(scaled))
        arguments = {**sizes, **scaled}
        timm.models.save_for_hf(model, folder, model_args=arguments, safe_serialization=True)
    assert list(load(f"hf:{tmp_path / '1'}").views) == ["cls"]
    with pytest.raises(InputError):
        load(f"hf:{tmp_path / '0'}")


def test_a_checkpoint_without_a_processor_is_refused(editable: TinyModels) -> None:
    folder = editable("clip")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(NotFoundError):
        load(f"hf:{folder}")


def test_a_processor_that_keeps_the_shape_of_pictures_is_refused(
    editable: TinyModels, edit_json: Any
) -> None:
    folder = editable("clip")
    edit_json(folder / "preprocessor_config.json", do_center_crop=False)
    with pytest.raises(InputError):
        load(f"hf:{folder}")


def test_presets_need_the_size_that_the_model_takes(editable: TinyModels, edit_json: Any) -> None:
    folder = editable("dinov2")
    with pytest.raises(InputError):
        load(f"hf:{folder}", preprocessing="f2l2-flowers")
    with pytest.raises(InputError):
        load(f"hf:{folder}", preprocessing="f2l2")
    native = load(f"hf:{folder}")
    edit_json(folder / "preprocessor_config.json", crop_size={"height": 224, "width": 224})
    preset: Any = load(f"hf:{folder}", preprocessing="f2l2-flowers")
    assert preset.identity["preprocessing"]["preset"] == "f2l2-flowers"
    assert preset.identity["weights"] == native.identity["weights"]
    assert preset.prepare(PICTURES[0]).shape == (3, 224, 224)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("org/absent", OfflineError),
        ("org/absent@v2", OfflineError),
        ("/nowhere/at/all", NotFoundError),
        ("clip-vit-base", NotFoundError),
    ],
)
def test_what_cannot_be_found_is_said_at_once(name: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        load(f"hf:{name}")
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


def test_what_encodes_neither_pictures_nor_texts_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    sizes |= {"num_conv_pos_embedding_groups": 1, "num_conv_pos_embeddings": 2}
    config = hf.Wav2Vec2Config(**sizes, conv_dim=[8], conv_stride=[4], conv_kernel=[4])
    hf.Wav2Vec2Model(config).save_pretrained(tmp_path / "sounds")
    with pytest.raises(NotFoundError):
        load(f"hf:{tmp_path / 'sounds'}")
    hf.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path / "sounds")
    with pytest.raises(InputError):
        load(f"hf:{tmp_path / 'sounds'}")
    with pytest.raises(NotFoundError):
        load(f"hf:{tmp_path}")


def test_code_in_a_repository_is_never_run(tmp_path: Path) -> None:
    auto_map = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    config = {"model_type": "evil", "auto_map": auto_map}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    hf.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    with pytest.raises(InputError):
        load(f"hf:{tmp_path}")
    assert not (tmp_path / "ran").exists()


def test_loading_is_silent_and_leaves_logging_as_it_was(
    tiny_models: TinyModels, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_models("vit-classifier")  # its pooler is missing, which transformers reports
    verbosity = hf.utils.logging.get_verbosity()
    handlers = list(logging.root.handlers)
    hf.utils.logging.set_verbosity_warning()
    try:
        load(f"hf:{folder}")
        assert hf.utils.logging.get_verbosity() == logging.WARNING
    finally:
        hf.utils.logging.set_verbosity(verbosity)
    assert logging.root.handlers == handlers
    assert capfd.readouterr() == ("", "")
