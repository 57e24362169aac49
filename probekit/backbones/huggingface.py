"""Vision encoders of transformers: `hf:ORG/NAME[@REVISION][#view]` or `hf:FOLDER[#view]`.

Any model that AutoModel loads and that takes pictures; its views are found by running it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from probekit.arrays import Json
from probekit.backbones import views
from probekit.backbones.hub import fetch_snapshot, hub_errors, translate
from probekit.backbones.module import Options, Preprocessing, TorchBackbone, plain_json
from probekit.backbones.views import Encoder, Vectors, near
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
POOLERS = ("pooler", "head")
NUMBER = re.compile(r"\.\d+\.")
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
MAX_PREFIX = 64
FROM_FOLDER = {"trust_remote_code": False, "local_files_only": True}
INCIDENTAL = re.compile(
    r"_.*|architectures|auto_map|(torch_)?dtype|id2label|label2id|num_labels|problem_type"
    r"|transformers_version|return_dict|output_(attentions|hidden_states)|initializer_.*"
    r"|.*dropout.*|drop_path_rate|layerdrop|projection_dim|use_cache|chunk_size_feed_forward"
    r"|is_encoder_decoder|out_features|out_indices|stage_names|image_processor_type"
    r"|feature_extractor_type|processor_class|device|data_format|input_data_format"
    r"|return_tensors|disable_grouping"
)
"""Fields of configurations that do not change what is computed in evaluation mode."""


def load(name: Name, **options: Unpack[Options]) -> TorchBackbone:
    local = _find_folder(name)
    with _quiet(), hub_errors(name):
        folder = local or fetch_snapshot(name.name, name.revision)
        native = _native_preprocessing(name, folder)
        encoder = _load_encoder(name, folder, native)
        return views.vision_backbone(
            name,
            encoder,
            native,
            channels_last=encoder.layout.is_map,
            commit="" if local else folder.name,
            **options,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence loading reports; what matters in them is raised."""
    logging: Any = transformers.utils.logging
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _find_folder(name: Name) -> Path | None:
    """The local folder that a name is, whose own name may hold an @; None for a hub name."""
    text = f"{name.name}@{name.revision}" if name.revision else name.name
    folder = Path(text).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.is_dir() or not HUB_NAME.fullmatch(name.name):
        raise NotFoundError(
            f"{text} is no folder with a config.json, as save_pretrained writes it. Correct the "
            "path (a folder has no @REVISION), or write hf:ORG/NAME[@REVISION]."
        )
    return None


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
        processor = auto.from_pretrained(folder, backend="pil", **FROM_FOLDER)
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
        **_essential(processor.to_dict()),
    }
    return Preprocessing(prepare, values, shape)


def _essential(fields: Mapping[str, Any]) -> dict[str, Json]:
    """A configuration without incidental fields."""
    values = plain_json(fields)
    return {name: value for name, value in values.items() if not INCIDENTAL.fullmatch(name)}


@dataclass(frozen=True)
class Layout:
    """What the outputs of a tower are.

    is_map: whether last_hidden_state is (n, d, height, width), not (n, tokens, d).
    prefix: tokens before the patches; None where the patch grid is not known.
    has_class: whether the first of them is a class token.
    norm: the module that makes last_hidden_state, or the pooled class token, of the last layer.
    pooled: whether there is a pooler_output; pooled_is_cls: and it is the class token.
    inner: whether the tokens of inner layers can be told apart.
    """

    is_map: bool = False
    prefix: int | None = 0
    has_class: bool = False
    norm: str = ""
    pooled: bool = False
    pooled_is_cls: bool = False
    inner: bool = True


@dataclass
class VisionEncoder(Encoder):
    """model: a ModuleDict of the tower and, behind it, projection, qformer and queries.

    The projection takes the pooled output or the first query; it is Identity where the library's
    own features are that as it is.
    """

    default_views: Sequence[str] = ("qformer.0", "proj", "pooled", "cls", "mean")
    first_layer: int = 0
    layout: Layout = Layout()

    def keep(self, names: set[str]) -> Mapping[str, Tensor]:
        """Without what stands behind the tower where no vector needs it, and a random pooler."""
        if not any(name.startswith(("proj", "pre", "qformer")) for name in names):
            self.model = nn.ModuleDict({"tower": self.model["tower"]})
        unused = () if self.layout.pooled else ("tower.pooler.", "tower.head.")
        tensors = self.model.state_dict()
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(unused)}

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
        if "projection" in self.model and before_projection is not None:
            vectors["proj"] = self.model["projection"](before_projection)
            if not isinstance(self.model["projection"], nn.Identity):
                vectors["pre"] = before_projection
        return vectors

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


def _load_encoder(name: Name, folder: Path, native: Preprocessing) -> VisionEncoder:
    """The vision encoder of a checkpoint; what would be random is refused or left out."""
    model, missing = _load_model(name, folder)
    has_tower = hasattr(model, "vision_model")
    tower = model.vision_model if has_tower else model
    if tower.main_input_name != "pixel_values":
        raise InputError(
            f"hf: needs a vision encoder, which takes pixel_values; {name} "
            f"({type(model).__name__}) takes {tower.main_input_name}. Wrap it in a function of "
            "your own and name it py:module:factory."
        )
    prefix = "vision_model." if has_tower else ""
    absent = {key.removeprefix(prefix) for key in missing if key.startswith(prefix)}
    random = sorted(key for key in absent if not key.startswith(POOLERS))
    if random:
        raise InputError(
            f"{name} lacks {len(random)} weights of its vision encoder, which would be random "
            f"({', '.join(random[:3])}). Use a checkpoint that has them."
        )
    configurations = {"tower": tower.config}
    parts = {"tower": tower}
    loaded = set(dir(model)) - {key.partition(".")[0] for key in missing}
    if {"qformer", "query_tokens"} <= loaded:
        configurations["qformer"] = model.qformer.config
        parts["qformer"] = model.qformer
        parts["queries"] = nn.ParameterDict({"tokens": model.query_tokens})
    for projection in PROJECTIONS & loaded:
        parts["projection"] = getattr(model, projection)
    identity: dict[str, Json] = {"library": "transformers"}
    for part, configuration in configurations.items():
        identity[part] = _essential(configuration.to_dict())
    encoder = VisionEncoder(nn.ModuleDict(parts), identity)
    batch = views.sample_batch(native)
    encoder.layout = find_layout(tower, batch, pooler_loaded=not absent)
    if encoder.layout.pooled_is_cls:  # DINO
        encoder.default_views = ("qformer.0", "proj", "cls")
    _check_projection(model, encoder, batch)
    return encoder


def _load_model(name: Name, folder: Path) -> tuple[Any, set[str]]:
    """The model of a checkpoint, and the names of its weights that the checkpoint lacks."""
    auto: Any = transformers.AutoConfig
    config = auto.from_pretrained(folder, **FROM_FOLDER)
    class_name, options = MODEL_CLASSES.get(config.model_type, ("AutoModel", {}))
    architecture = (config.architectures or [""])[0]
    if architecture.endswith("VisionModelWithProjection"):
        class_name = architecture
    model, info = getattr(transformers, class_name).from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, **options, **FROM_FOLDER
    )
    prefix = f"{model.base_model_prefix}."
    surplus = sorted(key.removeprefix(prefix) for key in info["unexpected_keys"])
    stacks = {NUMBER.split(key.removeprefix(prefix))[0] for key in model.state_dict()}
    layers = [key for key in surplus if NUMBER.search(key) and NUMBER.split(key)[0] in stacks]
    layers = [key for key in layers if key.endswith((".weight", ".bias", ".gamma"))]
    if layers:
        raise InputError(
            f"{name} has {len(layers)} weights that its config.json has no place for "
            f"({', '.join(layers[:3])}). Configuration and weights do not belong together: "
            "fetch both again."
        )
    return model.eval(), set(info["missing_keys"])


@torch.inference_mode()
def _check_projection(model: Any, encoder: VisionEncoder, batch: Tensor) -> None:
    """Keep the projection where it gives the library's own features for images.

    Where the pooled output is those features (SigLIP), the projection is Identity.
    """
    parts = encoder.model
    if "qformer" in parts or not hasattr(model, "get_image_features"):
        return
    if "projection" not in parts:
        parts["projection"] = nn.Identity()
    features = model.get_image_features(pixel_values=batch).pooler_output
    projected = encoder.vectors(batch).get("proj")
    if projected is None or not near(projected, features):
        del parts["projection"]


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
    return Layout(is_map, prefix, has_class, norm, pooler is not None, pooled_is_cls, inner)


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
