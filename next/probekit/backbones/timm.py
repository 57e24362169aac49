"""timm's models without their classifiers.

Names: `timm:NAME`, `timm:NAME/FILE`, `timm:NAME/random`, `timm:FOLDER`, `timm:hf-hub:ORG/NAME`.
Views: `#pooled` (default), the model's own output; `#cls`, `#mean` of the last tokens or map; those
of inner layers, see `views`.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from probekit.arrays import Json, digest
from probekit.backbones.hub import hub_errors, weights_file
from probekit.backbones.module import Options, Preprocessing, TorchBackbone, Transform
from probekit.backbones.views import Vectors, vision_backbone
from probekit.errors import NotFoundError
from probekit.files import read_json
from probekit.registry import Name, nearest

# isort: split
import timm
import timm.models
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform

RANDOM = "random"
RANDOM_SEED = 0
HUB = "hf-hub:"
FOLDER = "local-dir:"
CLASS_TOKEN = re.compile(r"(^|\.)(cls_token|class_token|class_embedding)$")


def load(name: Name, **options: Unpack[Options]) -> TorchBackbone:
    with hub_errors(name):
        model, architecture, arguments = _create(name.name)
        model.eval()
    config: Any = resolve_model_data_config
    data = config(model, use_test_size=False)
    identity: dict[str, Json] = {
        "library": "timm",
        "architecture": architecture,
        "arguments": arguments,
        "structure": digest(repr(model)),
    }
    native = Preprocessing(
        Transform(create_transform(**data, is_training=False)),
        _plain({"library": "timm", "use_test_size": False, **data}),
        tuple(data["input_size"]),
    )
    encoder = TimmEncoder(model, identity)
    title = type(model).__name__
    return vision_backbone(name, encoder, native, model=model, model_name=title, **options)


def _create(name: str) -> tuple[Any, str, Mapping[str, Json]]:
    """A model without classifier, its architecture, and the arguments it was saved with."""
    if Path(name).expanduser().is_dir():
        name = FOLDER + str(Path(name).expanduser())
    arguments: Mapping[str, Any] | None = None
    architecture, _, weights = name.partition("/")
    plain, _, tag = architecture.partition(".")
    if name.startswith((HUB, FOLDER)):
        plain, arguments = _saved_configuration(name)
        model: Any = timm.create_model(name, pretrained=True)
    elif not timm.is_model(plain):
        raise NotFoundError(
            f"timm has no model {plain!r}. {nearest(plain, timm.list_models())} A folder of "
            "weights is named by its path."
        )
    elif weights == RANDOM:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(RANDOM_SEED)
            model = timm.create_model(architecture, num_classes=0)
    elif weights:
        model = _with_weights(plain, weights_file(weights, f"timm:{architecture}/"))
    else:
        published = timm.list_pretrained(f"{plain}.*") or timm.list_pretrained(plain)
        if not published or (tag and architecture not in published):
            raise NotFoundError(
                f"timm publishes no weights {architecture!r}. {nearest(architecture, published)} "
                f"Or write timm:{plain}/FILE, timm:{plain}/{RANDOM}."
            )
        model = timm.create_model(architecture, pretrained=True)
    # all were made with their classes, so that timm loads strictly
    model.reset_classifier(0)
    return model, plain, _plain(arguments or {})


def _saved_configuration(name: str) -> tuple[str, Mapping[str, Any] | None]:
    """Architecture and arguments of a model in a folder or a repository."""
    if name.startswith(HUB):
        _, architecture, arguments = timm.models.load_model_config_from_hf(name.removeprefix(HUB))
        return architecture, arguments
    config = read_json(Path(name.removeprefix(FOLDER)) / "config.json")
    return config["architecture"], config.get("model_args")


def _with_weights(architecture: str, file: Path) -> Any:
    """A model with a file's weights, made with as many classes: timm skips what does not fit."""
    state = timm.models.load_state_dict(str(file), weights_only=True)
    model: Any = timm.create_model(architecture, num_classes=0)
    classifier = model.pretrained_cfg.get("classifier") or ""
    if not isinstance(classifier, str):
        classifier = classifier[0]
    classes = len(state.get(f"{classifier}.weight", ()))
    overlay = {"state_dict": state, "num_classes": classes, "label_offset": 0}
    return timm.create_model(
        architecture, pretrained=True, num_classes=classes, pretrained_cfg_overlay=overlay
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Json]:
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }


@dataclass
class TimmEncoder:
    model: Any
    identity: Mapping[str, Json]
    default_views: Sequence[str] = ("pooled",)
    first_layer: int = 1

    def keep(self, names: set[str]) -> Mapping[str, Tensor]:
        tensors: Mapping[str, Tensor] = self.model.state_dict()
        return tensors

    def vectors(self, batch: Tensor, names: Collection[str]) -> Vectors:
        vectors: dict[str, Tensor] = {}
        if not names or "pooled" in names:
            vectors["pooled"] = self.model(batch).flatten(1)
        if names and not {"cls", "mean"} & set(names):
            return vectors
        features = self.model.forward_features(batch)
        if features.dim() == 4:
            channels_last = str(getattr(self.model, "output_fmt", "NCHW")).endswith("NHWC")
            vectors["mean"] = features.mean((1, 2) if channels_last else (2, 3))
            return vectors
        prefix = self._prefix(features, batch)
        if prefix is not None:
            vectors["mean"] = features[:, prefix:].mean(1)
            if prefix and self._has_class_token():
                vectors["cls"] = features[:, 0]
        return vectors

    def _prefix(self, features: Tensor, batch: Tensor) -> int | None:
        """The tokens before the grid. Where timm does not state them they are counted: CaiT and
        XCiT have a class token all the same."""
        count: int | None = getattr(self.model, "num_prefix_tokens", None)
        levels = getattr(self.model, "feature_info", None)
        if count is not None or not levels:
            return count
        stride = levels[-1]["reduction"]
        height, width = batch.shape[-2:]
        prefix = features.shape[1] - math.ceil(height / stride) * math.ceil(width / stride)
        return prefix if prefix in (0, 1, 2) else None

    def _has_class_token(self) -> bool:
        return any(CLASS_TOKEN.search(name) for name, _ in self.model.named_parameters())

    def layers(self, batch: Tensor, numbers: Sequence[int], *, normed: bool) -> Sequence[Vectors]:
        parameters = inspect.signature(self.model.forward_intermediates).parameters
        options = {"return_prefix_tokens": True} if "return_prefix_tokens" in parameters else {}
        states = self.model.forward_intermediates(
            batch,
            indices=[number - 1 for number in numbers] or None,
            norm=normed,
            stop_early=True,
            intermediates_only=True,
            **options,
        )
        pairs = [state if isinstance(state, tuple) else (state, None) for state in states]
        with_class = self._has_class_token()
        return [layer_vectors(grid, prefix if with_class else None) for grid, prefix in pairs]


def layer_vectors(grid: Tensor, prefix: Tensor | None) -> Vectors:
    """Of a map (n, d, h, w), and of the tokens before it (n, p, d) where the first is a class."""
    vectors = {"mean": grid.mean((2, 3))}
    if prefix is not None and prefix.shape[1]:
        vectors["cls"] = prefix[:, 0]
    return vectors
