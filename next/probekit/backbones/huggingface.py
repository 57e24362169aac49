"""Vision encoders of transformers: `hf:ORG/NAME[@REVISION][#view]` or `hf:FOLDER[#view]`.

Any model that AutoModel loads and that takes pictures; its views are found by running it.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from probekit.backbones.hub import fetch_snapshot, hub_errors, translate
from probekit.backbones.module import Options, Preprocessing, TorchBackbone, stack_batch
from probekit.backbones.views import Vectors, near, vision_backbone
from probekit.data.pictures import canary_samples, to_rgb
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
PARTS = ("visual_projection", "vision_projection", "qformer", "query_tokens")
POOLERS = ("pooler", "head")
CLASS_TOKEN = re.compile(r"(^|\.)(cls_(register_)?tokens?|class_(embedding|token))(\.|$)")
NUMBER = re.compile(r"\.\d+\.")
MAX_PREFIX = 64
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
    folder = local or fetch_snapshot(name)
    with _quiet(), hub_errors(name):
        native = _native_preprocessing(name, folder)
        encoder, notes = _load_encoder(name, folder, native.prepare)
        return vision_backbone(
            name,
            encoder,
            native,
            model=encoder,
            model_name=type(encoder.tower).__name__,
            channels_last=encoder.layout.is_map,
            commit="" if local else folder.name,
            notes=notes,
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
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
    is_path = text.startswith((".", "/", "~")) or name.name.count("/") != 1
    if is_path or folder.is_dir() or Path(name.name).is_dir():
        raise NotFoundError(
            f"{text} is no folder with a config.json, as save_pretrained writes it. Correct the "
            "path (a folder has no @REVISION), or write hf:ORG/NAME[@REVISION]."
        )
    return None


@dataclass(frozen=True)
class ProcessorCall:
    """A transformers image processor as a function from a picture to an array."""

    processor: Any
    packed: bool

    def __call__(self, content: Image.Image) -> NDArray[np.float32]:
        inputs = self.processor(images=to_rgb(content), return_tensors="pt")
        tensor: Tensor = pack(inputs) if self.packed else inputs["pixel_values"][0]
        return tensor.numpy().astype(np.float32, copy=False)


def pack(inputs: Mapping[str, Tensor]) -> Tensor:
    """SigLIP 2's patches, mask and grid of one picture as one tensor (patches, values + 3)."""
    patches = inputs["pixel_values"][0]
    mask = inputs["pixel_attention_mask"][0].to(patches)
    grid = inputs["spatial_shapes"][0].to(patches)
    return torch.cat([patches, mask[:, None], grid.expand(len(patches), 2)], dim=1)


def unpack(batch: Tensor) -> dict[str, Tensor]:
    return {
        "pixel_values": batch[:, :, :-3],
        "pixel_attention_mask": batch[:, :, -3].int(),
        "spatial_shapes": batch[:, 0, -2:].long(),
    }


def _native_preprocessing(name: Name, folder: Path) -> Preprocessing:
    auto: Any = transformers.AutoImageProcessor
    try:
        processor = auto.from_pretrained(
            folder, backend="pil", trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise NotFoundError(
            f"{name} has no image processor (preprocessor_config.json) that transformers can load "
            f"({translate(error, name)}). hf: needs a vision encoder; save the processor it was "
            "trained with into the same folder."
        ) from error
    pictures = [Image.new("RGB", (97, 61), (90, 120, 30)), Image.new("RGB", (45, 130))]
    inputs = processor(images=pictures[0], return_tensors="pt")
    prepare = ProcessorCall(processor, packed="spatial_shapes" in inputs)
    shapes = [prepare(picture).shape for picture in pictures]
    if shapes[0] != shapes[1] or len(shapes[0]) != (2 if prepare.packed else 3):
        raise InputError(
            f"The image processor of {name} must make arrays of one size (channels, height, "
            f"width); found {shapes[0]} and {shapes[1]}. Set do_center_crop and crop_size, or a "
            "size with height and width, in its preprocessor_config.json."
        )
    lineage = {kind.__name__ for kind in type(processor).__mro__}
    values: dict[str, Json] = {
        "library": "transformers",
        "processor": type(processor).__name__,
        "backend": "torchvision" if "TorchvisionBackend" in lineage else "pil",
        "shape": list(shapes[0]),
        **_plain(processor.to_dict()),
    }
    return Preprocessing(prepare, values, shapes[0])


@dataclass(frozen=True)
class Layout:
    """What the outputs of a tower are.

    is_map: whether last_hidden_state is (n, d, height, width), not (n, tokens, d).
    prefix: tokens before the patches; None where the patch grid is not known.
    class_tokens: how many of them are class tokens.
    norm: the module that makes last_hidden_state, or the pooled class token, of the last layer.
    pooled: whether there is a pooler_output; pooled_is_cls: and it is the class token.
    inner: whether the tokens of inner layers can be told apart.
    """

    is_map: bool = False
    prefix: int | None = 0
    class_tokens: int = 0
    norm: str = ""
    pooled: bool = False
    pooled_is_cls: bool = False
    inner: bool = True


class VisionEncoder(nn.Module):
    """A vision tower, with the projection or the Q-Former behind it where there is one.

    packed: inputs are patches of varying grids with their mask, as `pack` makes them.
    absent: vectors that are no views, as the model does not define them.
    """

    first_layer = 0
    default_views: Sequence[str] = ("qformer.0", "proj", "pooled", "cls", "mean")
    identity: Mapping[str, Json] = {}
    layout = Layout()
    absent: frozenset[str] = frozenset()

    def __init__(
        self, tower: nn.Module, parts: Mapping[str, Any] | None = None, *, packed: bool = False
    ) -> None:
        super().__init__()
        parts = parts or {}
        has_queries = {"qformer", "query_tokens"} <= parts.keys()
        self.tower = tower
        self.projection = parts.get("visual_projection", parts.get("vision_projection"))
        self.qformer = parts["qformer"] if has_queries else None
        self.query_tokens = parts["query_tokens"] if has_queries else None
        self.packed = packed

    def keep(self, names: set[str]) -> Mapping[str, Tensor]:
        """Without projection, Q-Former and pooler where none of these vectors needs them."""
        if not any(name in ("proj", "pre") or name.startswith("qformer") for name in names):
            self.qformer = None
            self.query_tokens = None
        if "proj" not in names:
            self.projection = None
        modules: dict[str, Any] = {"tower": self.tower, "qformer": self.qformer}
        self.identity = {
            "library": "transformers",
            "configuration": {
                part: _plain(module.config.to_dict())
                for part, module in modules.items()
                if module is not None
            },
        }
        tensors: dict[str, Tensor] = self.state_dict()
        pooler_used = self.qformer is None and names & {"proj", "pre", "pooled"}
        if pooler_used or self.layout.norm.startswith(POOLERS):
            return tensors
        unused = tuple(f"tower.{part}." for part in POOLERS)
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(unused)}

    def inputs(self, batch: Tensor) -> dict[str, Tensor]:
        return unpack(batch) if self.packed else {"pixel_values": batch}

    def vectors(self, batch: Tensor, names: Collection[str] = ()) -> Vectors:
        inputs = self.inputs(batch)
        outputs = self.tower(**inputs)
        states = outputs.last_hidden_state
        vectors = self._tokens(states, inputs)
        if self.layout.pooled:
            vectors["pooled"] = outputs.pooler_output.flatten(1)
            vectors["pre"] = vectors["pooled"]
        if self.qformer is not None and self.query_tokens is not None:
            queries = self.qformer(
                query_embeds=self.query_tokens.expand(len(states), -1, -1),
                encoder_hidden_states=states,
            ).last_hidden_state
            vectors |= {
                f"qformer.{number}": query for number, query in enumerate(queries.unbind(1))
            }
            vectors |= {"qformer.mean": queries.mean(dim=1), "pre": queries[:, 0]}
        if "pre" in vectors:
            projection = self.projection or nn.Identity()
            vectors["proj"] = projection(vectors["pre"])
        return {name: vector for name, vector in vectors.items() if name not in self.absent}

    def layers(self, batch: Tensor, numbers: Sequence[int], *, normed: bool) -> Sequence[Vectors]:
        inputs = self.inputs(batch)
        states = self.tower(**inputs, output_hidden_states=True).hidden_states
        if not self.layout.inner:
            return []
        chosen = [states[number] for number in numbers] if numbers else states
        if normed and self.layout.norm:
            norm = self.tower.get_submodule(self.layout.norm)
            chosen = [norm(state) for state in chosen]
        return [self._tokens(state, inputs) for state in chosen]

    def _tokens(self, state: Tensor, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if state.dim() == 4:
            return {"mean": state.mean(dim=(2, 3))}
        tokens = {"cls": state[:, 0]} if self.layout.class_tokens else {}
        if self.packed:
            mask = inputs["pixel_attention_mask"]
            total = (state * mask[..., None]).sum(dim=1)
            tokens["mean"] = total / mask.sum(dim=1, keepdim=True)
        elif self.layout.prefix is not None:
            tokens["mean"] = state[:, self.layout.prefix :].mean(dim=1)
        return tokens


def _load_encoder(name: Name, folder: Path, prepare: Any) -> tuple[VisionEncoder, list[str]]:
    """The vision encoder of a checkpoint, and notes; what would be random is refused."""
    auto: Any = transformers.AutoConfig
    config = auto.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    class_name, options = MODEL_CLASSES.get(config.model_type, ("AutoModel", {}))
    architecture = (config.architectures or [""])[0]
    if architecture.endswith("VisionModelWithProjection"):
        class_name = architecture
    model, info = getattr(transformers, class_name).from_pretrained(
        folder,
        output_loading_info=True,
        dtype=torch.float32,
        trust_remote_code=False,
        weights_only=True,
        local_files_only=True,
        **options,
    )
    model.eval()
    prefix = "vision_model." if hasattr(model, "vision_model") else ""
    tower = model.vision_model if prefix else model
    if tower.main_input_name != "pixel_values":
        raise InputError(
            f"hf: needs a vision encoder, which takes pixel_values; {name} "
            f"({type(model).__name__}) takes {tower.main_input_name}. Wrap it in a function of "
            "your own and name it py:module:factory."
        )
    missing = {key for key in info["missing_keys"] if not key.startswith(PARTS)}
    missing = {key.removeprefix(prefix) for key in missing if key.startswith(prefix)}
    random = sorted(key for key in missing if not key.startswith(POOLERS))
    if random:
        raise InputError(
            f"{name} lacks {len(random)} weights of its vision encoder, which would be random "
            f"({', '.join(random[:3])}). Use a checkpoint that has them."
        )
    notes = _check_surplus(name, model, set(info["unexpected_keys"]))
    absent = {key.partition(".")[0] for key in info["missing_keys"]}
    parts = {part: getattr(model, part) for part in PARTS if hasattr(model, part)}
    loaded = {part: module for part, module in parts.items() if part not in absent}
    encoder = VisionEncoder(tower, loaded, packed=prepare.packed)
    batch = stack_batch([prepare(picture) for picture in canary_samples("image")[1:3]])
    encoder.layout = find_layout(encoder, batch, pooler_loaded=not missing)
    if encoder.layout.pooled_is_cls:  # DINO
        encoder.default_views = ("qformer.0", "proj", "cls")
    encoder.absent = _undefined_vectors(model, encoder, batch)
    return encoder, notes


def _check_surplus(name: Name, model: Any, unexpected: set[str]) -> list[str]:
    """Refuse weights of layers that the configuration does not have; note norms left aside."""
    prefix = f"{model.base_model_prefix}."
    surplus = sorted(key.removeprefix(prefix) for key in unexpected)
    stacks = {NUMBER.split(key.removeprefix(prefix))[0] for key in model.state_dict()}
    layers = [key for key in surplus if NUMBER.search(key) and NUMBER.split(key)[0] in stacks]
    layers = [key for key in layers if key.endswith((".weight", ".bias", ".gamma"))]
    if layers:
        raise InputError(
            f"{name} has {len(layers)} weights that its config.json has no place for "
            f"({', '.join(layers[:3])}). Configuration and weights do not belong together: "
            "fetch both again."
        )
    norms = [key for key in surplus if "norm" in key and key.count(".") == 1]
    return [f"{type(model).__name__} does not use the checkpoint's {key}." for key in norms]


@torch.inference_mode()
def _undefined_vectors(model: Any, encoder: VisionEncoder, batch: Tensor) -> frozenset[str]:
    """#proj and #pre, unless #proj is what the library itself gives for images."""
    projected = encoder.projection is not None
    defined = projected
    if encoder.query_tokens is None and hasattr(model, "get_image_features"):
        features = model.get_image_features(**encoder.inputs(batch)).pooler_output
        vectors = encoder.vectors(batch)
        defined = "proj" in vectors and near(vectors["proj"], features)
    if not defined:
        return frozenset({"proj", "pre"})
    return frozenset() if projected else frozenset({"pre"})


@torch.inference_mode()
def find_layout(encoder: VisionEncoder, batch: Tensor, *, pooler_loaded: bool) -> Layout:
    """Find what a tower's outputs are by one forward pass.

    pooler_loaded: False where the checkpoint lacks the pooler's weights, so that they are random.
    """
    tower = encoder.tower
    outputs = tower(**encoder.inputs(batch), output_hidden_states=True)
    last = outputs.last_hidden_state
    hidden: tuple[Tensor, ...] = outputs.hidden_states or ()
    pooler = outputs.get("pooler_output") if pooler_loaded else None
    is_map = last.dim() == 4
    patches = None
    prefix = 0
    if not is_map and not encoder.packed:
        patches = _count_patches(tower, outputs, batch)
        prefix = last.shape[1] - (patches or math.isqrt(last.shape[1]) ** 2)
    grid_known = is_map or encoder.packed or patches is not None
    pooled_is_cls = prefix > 0 and pooler is not None and near(pooler, last[:, 0])
    class_tokens = 0
    if pooled_is_cls or any(CLASS_TOKEN.search(name) for name, _ in tower.named_parameters()):
        config: Any = tower.config
        count = getattr(config, "num_cls_tokens", getattr(config, "n_cls_tokens", 1))
        class_tokens = count if prefix else 0
    norm = ""
    if hidden and not near(hidden[-1], last):
        norm = _find_norm(tower, hidden[-1], last)
    elif class_tokens and pooler is not None:  # CLIP: only the pooled class token is normed
        norm = _find_norm(tower, last[:, 0], pooler)
    # where a stage's prefix stands is not known
    inner = bool(hidden) and (not prefix or len({state.shape for state in hidden}) == 1)
    known_prefix = prefix if grid_known else None
    is_pooled = pooler is not None
    return Layout(is_map, known_prefix, class_tokens, norm, is_pooled, pooled_is_cls, inner)


def _count_patches(tower: nn.Module, outputs: Any, batch: Tensor) -> int | None:
    """How many of the tokens are patches; None where nothing says it."""
    count: int = outputs.last_hidden_state.shape[1]
    if outputs.get("reshaped_hidden_states") is not None:
        return count
    if outputs.hidden_states and outputs.hidden_states[-1].dim() == 4:
        return int(outputs.hidden_states[-1][0, 0].numel())
    convolutions = [module for module in tower.modules() if isinstance(module, nn.Conv2d)]
    strides = [layer.stride for layer in convolutions if layer.kernel_size == layer.stride][:1]
    config: Any = tower.config
    if hasattr(config, "patch_size") and isinstance(config.patch_size, int):
        strides.append((config.patch_size, config.patch_size))
    height, width = batch.shape[-2:]
    for stride in strides:
        patches = (height // int(stride[0])) * (width // int(stride[1]))
        if 0 <= count - patches <= MAX_PREFIX:
            return patches
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


def _plain(fields: Mapping[str, Any]) -> dict[str, Json]:
    """A configuration as JSON, without incidental fields and those that are not set."""
    essential = {
        name: value
        for name, value in fields.items()
        if value is not None and not INCIDENTAL.fullmatch(name)
    }
    plain: dict[str, Json] = json.loads(json.dumps(essential, default=str))
    return plain
