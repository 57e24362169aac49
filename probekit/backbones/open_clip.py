"""open_clip's towers: of pictures, or of texts where the data are texts; the other is not kept.

Names: `open_clip:MODEL/PRETRAINED`, `open_clip:MODEL/FILE`, `open_clip:MODEL/random`,
`open_clip:hf-hub:ORG/NAME[@REVISION]`, `open_clip:local-dir:FOLDER`.
Views: `#proj` (default), the tower's output after its projection, not normalized; `#pre`, before
it; `#mean` of the patch tokens; those of inner layers, see `views`. The text tower has `#proj`.

A bare weights file carries neither activation nor preprocessing: open_clip uses its defaults for
it, and a model trained otherwise would give wrong embeddings without a word. Those are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from probekit.arrays import Json, digest
from probekit.backbones import hub
from probekit.backbones.module import Options, Preprocessing, TorchBackbone, Transform, plain_json
from probekit.backbones.text import as_text, vocabulary
from probekit.backbones.timm import TimmEncoder, layer_vectors
from probekit.backbones.views import Encoder, Vectors, view_backbone
from probekit.errors import InputError, NotFoundError
from probekit.registry import Name, nearest

# isort: split
import open_clip
from open_clip.modified_resnet import ModifiedResNet
from open_clip.timm_model import TimmModel
from open_clip.tokenizer import SimpleTokenizer
from open_clip.transform import PreprocessCfg, image_transform_v2
from open_clip.transformer import VisionTransformer

CONFIG_FILE = "open_clip_config.json"
STEMS = {"stem": "open_clip_model", "torch_stem": "open_clip_pytorch_model"}
QUICK = "-quickgelu"
SCALES = ("logit_scale", "logit_bias")
TOWERS = {
    "vision": (open_clip.CLIPVisionCfg, "timm_model"),
    "text": (open_clip.CLIPTextCfg, "hf_model"),
}
"""The configuration of each tower, and how its fields of another library's model begin."""
Settings = Mapping[str, Any]


def load(name: Name, **options: Unpack[Options]) -> TorchBackbone:
    with hub.hub_errors(name):
        model, config = _create(name.name)
        temperature = float(torch.exp(-model.logit_scale.detach()))
        if options["kind"] == "text":
            return _text_backbone(name, model, config, temperature, **options)
        tower: Any = model.visual
        if isinstance(tower, VisionTransformer):
            tower.output_tokens = True
        settings: dict[str, Any] = open_clip.get_model_preprocess_cfg(model)
        side = settings["size"]
        size = (side, side) if isinstance(side, int) else tuple(side)
        native = Preprocessing(
            Transform(image_transform_v2(PreprocessCfg(**settings), is_train=False)),
            plain_json({"library": "open_clip", **settings, "size": size}),
            (3, *size),
        )
        encoder = OpenClipEncoder(
            tower, _identity(config, "vision"), default_views=("proj",), temperature=temperature
        )
        return view_backbone(name, encoder, native, **options)


def _text_backbone(
    name: Name,
    model: open_clip.CLIP,
    config: Settings,
    temperature: float,
    **options: Unpack[Options],
) -> TorchBackbone:
    """The text tower; open_clip pads all texts to one length, without a mask."""
    prompt = options["prompt"] or ""
    folder = hub.library_folder(name.name, **STEMS)
    source = name.name.partition("/")[0] if folder is None else f"{hub.FOLDER}{folder}"
    with hub.one_request():
        tokenizer = open_clip.get_tokenizer(source)
    if options["max_length"] is not None:
        raise InputError(
            f"{name} takes texts of {tokenizer.context_length} tokens alone; found max_length "
            f"(--max-length) {options['max_length']}. Leave it out."
        )
    tokenization: dict[str, Json] = {
        "library": "open_clip",
        "tokenizer": type(tokenizer).__name__,
        "context_length": tokenizer.context_length,
        "prompt": prompt,
    }
    if not isinstance(tokenizer, SimpleTokenizer):
        tokenization["vocabulary"] = digest(vocabulary(tokenizer.tokenizer))
    del model.visual
    encoder = OpenClipTextEncoder(
        model,
        _identity(config, "text"),
        default_views=("proj",),
        temperature=temperature,
        tokenizer=tokenizer,
        prompt=prompt,
    )
    return view_backbone(name, encoder, Preprocessing(as_text, tokenization, ()), **options)


def _create(name: str) -> tuple[Any, dict[str, Any]]:
    """A model with its weights, and its configuration."""
    folder = hub.library_folder(name, **STEMS)
    if folder is not None:
        source = f"{hub.FOLDER}{folder}"
        return _with_weights(source), open_clip.get_model_config(source)
    architecture, _, weights = name.partition("/")
    architectures = open_clip.list_models()
    if architecture not in architectures:
        raise NotFoundError(
            f"open_clip has no model {architecture!r}. {nearest(architecture, architectures)}"
        )
    config: dict[str, Any] = open_clip.get_model_config(architecture)
    if weights == hub.RANDOM:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hub.RANDOM_SEED)
            model = open_clip.create_model(architecture, load_weights=False, pretrained_text=False)
        return model, config
    if open_clip.is_pretrained_cfg(architecture, weights):
        config = tag_config(architecture, weights)
        with hub.one_request():
            model = _with_weights(
                architecture, pretrained=weights, force_quick_gelu=config["quick_gelu"]
            )
        return model, config
    file = find_weights(architecture, weights, config)
    return _with_weights(architecture, pretrained=str(file)), config


def _with_weights(source: str, **options: Any) -> Any:
    """Without `require_pretrained`, open_clip would go on with random weights."""
    return open_clip.create_model(source, require_pretrained=True, weights_only=True, **options)


def tag_config(architecture: str, tag: str) -> dict[str, Any]:
    """The configuration of an architecture with the activation of published weights.

    open_clip would only warn that `ViT-B-32` computes GELU and `openai` needs QuickGELU.
    """
    config: dict[str, Any] = open_clip.get_model_config(architecture)
    published = open_clip.get_pretrained_cfg(architecture, tag)
    config["quick_gelu"] = bool(config.get("quick_gelu") or published.get("quick_gelu"))
    return config


def find_weights(architecture: str, text: str, config: Settings) -> Path:
    """The weights file of a name, if nothing known about it contradicts how it would be used."""
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if not Path(text).suffix:
        raise NotFoundError(
            f"open_clip has no weights {text!r} for {architecture}. {nearest(text, tags)} Write "
            f"open_clip:{architecture}/TAG, /FILE, or /{hub.RANDOM} for random ones."
        )
    file = hub.weights_file(text, f"open_clip:{architecture}/")
    if (file.parent / CONFIG_FILE).is_file():
        raise InputError(
            f"{file.parent / CONFIG_FILE} says how {file.name} is to be used, and a bare file "
            f"loses it. Write open_clip:local-dir:{file.parent}."
        )
    named = [tag for tag in tags if tag in str(file)]
    published = [open_clip.get_pretrained_cfg(architecture, tag) for tag in named or tags]
    differences = [_difference(settings, config) for settings in published]
    if differences and all(differences):
        quick = f"{architecture}{QUICK}"
        remedy = f", or open_clip:{quick}/{file}" if quick in open_clip.list_models() else ""
        raise InputError(
            f"Published weights of {architecture} are used otherwise than {file.name} would be: "
            f"{differences[0]}. Put it into a folder with an {CONFIG_FILE} and write "
            f"open_clip:local-dir:FOLDER{remedy}."
        )
    return file


def _difference(published: Settings, config: Settings) -> str:
    """What published weights need and a bare file would not get; the size is the architecture's."""
    needed = {"quick_gelu": False, **published, "size": None}
    bare = {**asdict(PreprocessCfg()), "quick_gelu": bool(config.get("quick_gelu"))}
    differences = [
        f"{key} {needed[key]} (a bare file: {value})"
        for key, value in bare.items()
        if needed.get(key) not in (None, value)
    ]
    return "; ".join(differences)


def _identity(config: Settings, tower: str) -> dict[str, Json]:
    """What the tensors do not say: heads, activation, pooling; with all defaults filled in."""
    configuration, foreign = TOWERS[tower]
    settings: dict[str, Any] = asdict(configuration(**config[f"{tower}_cfg"]))
    settings.pop(f"{foreign}_pretrained")
    quick_gelu = bool(config.get("quick_gelu")) and not settings[f"{foreign}_name"]
    return {"library": "open_clip", "quick_gelu": quick_gelu, tower: plain_json(settings)}


class OpenClipEncoder(Encoder):
    def vectors(self, batch: Tensor) -> Vectors:
        if isinstance(self.model, VisionTransformer):
            return self._transformer_vectors(batch)
        if isinstance(self.model, TimmModel):
            return self._timm_vectors(batch)
        return {"proj": self.model(batch)}

    def _transformer_vectors(self, batch: Tensor) -> Vectors:
        """open_clip ends with `pooled @ proj`; here that is done apart."""
        projection = self.model.proj
        self.model.proj = None
        try:
            pooled, tokens = self.model(batch)
        finally:
            self.model.proj = projection
        vectors = {"proj": pooled if projection is None else pooled @ projection, "pre": pooled}
        if self.model.attn_pool is None and self.model.pool_type in ("tok", "avg"):
            vectors["mean"] = tokens.mean(1)
        return vectors

    def _timm_vectors(self, batch: Tensor) -> Vectors:
        """The projection is the head; without one it is the trunk's own classifier.

        Where the head pools too, its input is no vector and so no view.
        """
        trunk, head = self.model.trunk, self.model.head
        features = trunk.forward_features(batch)
        output = trunk.forward_head(features)
        vectors = {**TimmEncoder(trunk, {}).tokens(features), "proj": head(output)}
        if len(head):
            vectors["pre"] = output
        elif trunk.num_classes:
            vectors["pre"] = trunk.forward_head(features, pre_logits=True)
        return vectors

    def layers(self, batch: Tensor, numbers: Sequence[int], *, normed: bool) -> Sequence[Vectors]:
        if isinstance(self.model, TimmModel):
            return TimmEncoder(self.model.trunk, {}).layers(batch, numbers, normed=normed)
        states = self.model.forward_intermediates(
            batch,
            indices=[number - 1 for number in numbers] or None,
            normalize_intermediates=normed and not isinstance(self.model, ModifiedResNet),
            intermediates_only=True,
            output_extra_tokens=True,
        )
        grids = states["image_intermediates"]
        prefixes = states.get("image_intermediates_prefix", [None] * len(grids))
        return [layer_vectors(*pair) for pair in zip(grids, prefixes, strict=True)]


@dataclass(kw_only=True)
class OpenClipTextEncoder(Encoder):
    """tokenizer: texts to token numbers (n, context length)."""

    kind: ClassVar[str] = "text"
    tokenizer: Callable[[list[str]], Tensor]
    prompt: str

    def vectors(self, batch: Sequence[str]) -> Vectors:
        device = next(self.model.parameters()).device
        tokens = self.tokenizer([self.prompt + text for text in batch])
        return {"proj": self.model.encode_text(tokens.to(device))}

    def keep(self, names: set[str]) -> Mapping[str, Tensor]:
        tensors = self.model.state_dict()
        return {name: tensor for name, tensor in tensors.items() if name not in SCALES}
