"""Encoders of transformers: `hf:ORG/NAME[@REVISION][#view]` or `hf:FOLDER[#view]`.

Any model that AutoModel loads and that takes pictures or texts; its views are found by running it.
Text towers are in `text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from probekit.arrays import Json
from probekit.backbones import checkpoint, text, views
from probekit.backbones.hub import fetch_snapshot, hub_errors, translate
from probekit.backbones.module import Options, Preprocessing, TorchBackbone
from probekit.backbones.views import Vectors, near
from probekit.data.pictures import to_rgb
from probekit.errors import InputError, NotFoundError
from probekit.registry import Name

# isort: split
import transformers

MODEL_CLASSES: Mapping[str, tuple[str, Mapping[str, bool]]] = {
    # AutoModel masks three quarters of the patches at random
    "vit_mae": ("ViTModel", {"add_pooling_layer": False}),
    # AutoModel loads the language model
    "blip-2": ("Blip2VisionModelWithProjection", {}),
    # its last norm is in the pooler, which AutoModel leaves out
    "data2vec-vision": ("Data2VecVisionModel", {"add_pooling_layer": True}),
}
"""Class and options for the model types where AutoModel is not the vision encoder."""
PROJECTIONS = {"visual_projection", "vision_projection"}
MAX_PREFIX = 64


def load(name: Name, **options: Unpack[Options]) -> TorchBackbone:
    local = checkpoint.find_folder(name)
    with checkpoint.quiet(), hub_errors(name):
        folder = local or fetch_snapshot(name.name, name.revision)
        commit = "" if local else folder.name
        config = checkpoint.load_config(folder)
        if takes_text(config, options["kind"]):
            prompt = options["prompt"] or ""
            encoder = text.load_encoder(name, folder, prompt, options["max_length"])
            return text.text_backbone(name, encoder, commit=commit, **options)
        native = _native_preprocessing(name, folder)
        vision = _load_encoder(name, folder, config, native)
        return views.view_backbone(
            name, vision, native, channels_last=vision.layout.is_map, commit=commit, **options
        )


def takes_text(config: Any, kind: str) -> bool:
    """Whether a checkpoint is read as a text encoder; one with two towers by the kind of data."""
    if {"text_config", "vision_config"} <= set(config.sub_configs):
        return kind == "text"
    model_classes: Any = transformers.MODEL_MAPPING.get(type(config), ())
    if not isinstance(model_classes, tuple):
        model_classes = (model_classes,)
    return {model_class.main_input_name for model_class in model_classes} == {"input_ids"}


@dataclass(frozen=True)
class ProcessorCall:
    """A transformers image processor as a function from a picture to an array."""

    processor: Any

    def __call__(self, content: Image.Image) -> NDArray[np.float32]:
        inputs = self.processor(images=to_rgb(content), return_tensors="pt")
        return np.asarray(inputs["pixel_values"][0], np.float32)


def _native_preprocessing(name: Name, folder: Path) -> Preprocessing:
    auto: Any = transformers.AutoImageProcessor
    try:
        processor = auto.from_pretrained(folder, backend="pil", **checkpoint.FROM_FOLDER)
    except (OSError, ValueError) as error:
        raise NotFoundError(
            f"{name} has no image processor (preprocessor_config.json) that transformers can load "
            f"({translate(error, name)}). hf: needs a vision encoder; save the processor it was "
            "trained with into the same folder."
        ) from error
    prepare = ProcessorCall(processor)
    shape = prepare(Image.new("RGB", (97, 61))).shape
    values: dict[str, Json] = {
        "library": "transformers",
        "processor": type(processor).__name__,
        "shape": list(shape),
        **checkpoint.essential(processor.to_dict()),
    }
    return Preprocessing(prepare, values, shape)


@dataclass(frozen=True)
class Layout(checkpoint.TowerLayout):
    """What the outputs of a vision tower are.

    is_map: whether last_hidden_state is (n, d, height, width), not (n, tokens, d).
    prefix: tokens before the patches; None where the patch grid is not known.
    norm: the module that makes last_hidden_state, or the pooled class token, of the last layer.
    pooled_is_cls: whether the pooler_output is the class token.
    inner: whether the tokens of inner layers can be told apart.
    """

    is_map: bool = False
    prefix: int | None = 0
    norm: str = ""
    pooled_is_cls: bool = False
    inner: bool = True


@dataclass
class VisionEncoder(checkpoint.TowerEncoder):
    """model: a ModuleDict of the tower and, behind it, projection, qformer and queries.

    The projection takes the pooled output or the first query.
    """

    default_views: Sequence[str] = ("qformer.0", "proj", "pooled", "cls", "mean")
    layout: Layout = Layout()

    def vectors(self, batch: Tensor) -> Vectors:
        outputs = self.model["tower"](pixel_values=batch)
        states = outputs.last_hidden_state
        vectors = self._tokens(states)
        if self.layout.pooled:
            vectors["pooled"] = outputs.pooler_output.flatten(1)
        before_projection = vectors.get("pooled")
        if "qformer" in self.model:
            queries = self.model["qformer"](
                query_embeds=self.model["queries"].tokens.expand(len(states), -1, -1),
                encoder_hidden_states=states,
            ).last_hidden_state
            vectors["qformer.mean"] = queries.mean(dim=1)
            for number, query in enumerate(queries.unbind(1)):
                vectors[f"qformer.{number}"] = query
            before_projection = queries[:, 0]
        return {**vectors, **self.project(before_projection)}

    def layers(self, batch: Tensor, numbers: Sequence[int], *, normed: bool) -> Sequence[Vectors]:
        if not self.layout.inner:
            return []
        tower = self.model["tower"]
        states = tower(pixel_values=batch, output_hidden_states=True).hidden_states
        chosen = [states[number] for number in numbers] if numbers else states
        if normed and self.layout.norm:
            norm = tower.get_submodule(self.layout.norm)
            chosen = [norm(state) for state in chosen]
        return [self._tokens(state) for state in chosen]

    def _tokens(self, state: Tensor) -> dict[str, Tensor]:
        return views.read_tokens(state, prefix=self.layout.prefix, has_class=self.layout.has_class)


def _load_encoder(name: Name, folder: Path, config: Any, native: Preprocessing) -> VisionEncoder:
    """The vision encoder of a checkpoint; what would be random is refused or left out."""
    class_name, options = MODEL_CLASSES.get(config.model_type, ("AutoModel", {}))
    architecture = (config.architectures or [""])[0]
    if architecture.endswith("VisionModelWithProjection"):
        class_name = architecture
    model, missing = checkpoint.load_model(name, folder, class_name, **options)
    has_tower = hasattr(model, "vision_model")
    tower = model.vision_model if has_tower else model
    if tower.main_input_name != "pixel_values":
        raise InputError(
            f"hf: needs an encoder of pictures (pixel_values) or texts (input_ids); {name} "
            f"({type(model).__name__}) takes {tower.main_input_name}. {checkpoint.WRAP_IT}"
        )
    pooler_loaded = checkpoint.pooler_is_loaded(name, missing, "vision_model." if has_tower else "")
    configurations = {"tower": tower.config}
    parts = {"tower": tower}
    loaded = checkpoint.loaded_parts(model, missing)
    if {"qformer", "query_tokens"} <= loaded:
        configurations["qformer"] = model.qformer.config
        parts["qformer"] = model.qformer
        parts["queries"] = nn.ParameterDict({"tokens": model.query_tokens})
    for projection in PROJECTIONS & loaded:
        parts["projection"] = getattr(model, projection)
    identity: dict[str, Json] = {"library": "transformers"}
    for part, configuration in configurations.items():
        identity[part] = checkpoint.essential(configuration.to_dict())
    encoder = VisionEncoder(nn.ModuleDict(parts), identity)
    encoder.temperature = checkpoint.find_temperature(model, loaded)
    batch = views.sample_batch(native)
    encoder.layout = find_layout(tower, batch, pooler_loaded=pooler_loaded)
    if encoder.layout.pooled_is_cls:  # DINO
        encoder.default_views = ("qformer.0", "proj", "cls")
    if "qformer" not in parts and hasattr(model, "get_image_features"):
        with torch.inference_mode():
            features = model.get_image_features(pixel_values=batch).pooler_output
        encoder.check_projection(batch, features)
    return encoder


@torch.inference_mode()
def find_layout(tower: Any, batch: Tensor, *, pooler_loaded: bool) -> Layout:
    """Find what a tower's outputs are by one forward pass.

    pooler_loaded: False where the checkpoint lacks the pooler's weights, so that they are random.
    """
    outputs = tower(pixel_values=batch, output_hidden_states=True)
    last = outputs.last_hidden_state
    hidden: tuple[Tensor, ...] = outputs.hidden_states or ()
    pooler = outputs.get("pooler_output") if pooler_loaded else None
    is_map = last.dim() == 4
    prefix: int | None = 0
    if not is_map:
        patches = _count_patches(tower, outputs, batch)
        prefix = None if patches is None else last.shape[1] - patches
    pooled_is_cls = prefix != 0 and pooler is not None and near(pooler, last[:, 0])
    has_class = prefix != 0 and (pooled_is_cls or views.has_class_token(tower))
    norm = ""
    if hidden and not near(hidden[-1], last):
        norm = _find_norm(tower, hidden[-1], last)
    elif has_class and pooler is not None:  # CLIP: only the pooled class token is normed
        norm = _find_norm(tower, last[:, 0], pooler)
    # where a stage's prefix stands is not known
    inner = bool(hidden) and (prefix == 0 or len({state.shape for state in hidden}) == 1)
    return Layout(has_class, pooler is not None, is_map, prefix, norm, pooled_is_cls, inner)


def _count_patches(tower: Any, outputs: Any, batch: Tensor) -> int | None:
    """How many of the tokens are patches; None where nothing says it."""
    count: int = outputs.last_hidden_state.shape[1]
    if outputs.get("reshaped_hidden_states") is not None:
        return count
    if outputs.hidden_states and outputs.hidden_states[-1].dim() == 4:
        return int(outputs.hidden_states[-1][0, 0].numel())
    for module in tower.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride:
            height, width = (batch.shape[2] // module.stride[0], batch.shape[3] // module.stride[1])
            is_grid = 0 <= count - height * width <= MAX_PREFIX
            return height * width if is_grid else None
    return None


def _find_norm(tower: nn.Module, states: Tensor, normed: Tensor) -> str:
    """The norm module, outermost first, that makes the one tensor of the other."""
    modules: list[tuple[str, nn.Module]] = list(tower.named_modules())
    norms = [item for item in modules if "norm" in type(item[1]).__name__.lower()]
    for name, module in sorted(norms, key=lambda item: item[0].count(".")):
        try:
            if near(module(states), normed):
                return name
        except (RuntimeError, TypeError, ValueError, IndexError):  # made for another shape
            continue
    return ""
