"""timm's models without their classifiers.

Names: `timm:NAME`, `timm:NAME/FILE`, `timm:NAME/random`, `timm:FOLDER`,
`timm:hf-hub:ORG/NAME[@REVISION]`.
Views: `#pooled` (default), the model's own output; `#cls`, `#mean` of the last tokens or map; those
of inner layers, see `views`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from probekit.arrays import Json, digest
from probekit.backbones import hub
from probekit.backbones.module import Options, Preprocessing, TorchBackbone, Transform, plain_json
from probekit.backbones.views import Encoder, Vectors, has_class_token, read_tokens, view_backbone
from probekit.errors import NotFoundError
from probekit.files import read_json
from probekit.registry import Name, nearest

# isort: split
import timm
import timm.models
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform


def load(name: Name, **options: Unpack[Options]) -> TorchBackbone:
    with hub.hub_errors(name):
        path = Path(name.name).expanduser()
        folder = path if path.is_dir() else hub.library_folder(name.name)
        if folder is None:
            architecture = name.name.partition("/")[0].partition(".")[0]
            config = {"architecture": architecture}
            model = _create(name.name)
        else:
            config = read_json(folder / "config.json")
            model = timm.create_model(f"{hub.FOLDER}{folder}", pretrained=True)
        # weights were loaded with their classes, so that timm did so strictly
        model.reset_classifier(0)
        resolve: Any = resolve_model_data_config
        data = resolve(model, use_test_size=False)
        native = Preprocessing(
            Transform(create_transform(**data, is_training=False)),
            plain_json({"library": "timm", "use_test_size": False, **data}),
            tuple(data["input_size"]),
        )
        identity: dict[str, Json] = {"library": "timm", "structure": digest(repr(model))}
        identity["architecture"] = config["architecture"]
        identity["arguments"] = config.get("model_args") or {}
        return view_backbone(name, TimmEncoder(model, identity), native, **options)


def _create(name: str) -> Any:
    """A model by its name in timm, with published weights, those of a file, or random ones."""
    architecture, _, weights = name.partition("/")
    plain, _, tag = architecture.partition(".")
    if not timm.is_model(plain):
        raise NotFoundError(
            f"timm has no model {plain!r}. {nearest(plain, timm.list_models())} A folder of "
            "weights is named by its path."
        )
    if weights == hub.RANDOM:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hub.RANDOM_SEED)
            return timm.create_model(architecture, num_classes=0)
    if weights:
        return _with_weights(plain, hub.weights_file(weights, f"timm:{architecture}/"))
    published = timm.list_pretrained(f"{plain}.*") or timm.list_pretrained(plain)
    if not published or (tag and architecture not in published):
        raise NotFoundError(
            f"timm publishes no weights {architecture!r}. {nearest(architecture, published)} "
            f"Or write timm:{plain}/FILE, timm:{plain}/{hub.RANDOM}."
        )
    with hub.one_request():
        return timm.create_model(architecture, pretrained=True)


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


class TimmEncoder(Encoder):
    def vectors(self, batch: Tensor) -> Vectors:
        features = self.model.forward_features(batch)
        pooled = self.model.forward_head(features).flatten(1)
        return {"pooled": pooled, **self.tokens(features)}

    def tokens(self, features: object) -> Vectors:
        if not isinstance(features, Tensor):  # CrossViT has two branches
            return {}
        if features.dim() == 4 and str(getattr(self.model, "output_fmt", "")).endswith("NHWC"):
            features = features.permute(0, 3, 1, 2)
        prefix: int | None = 0
        if features.dim() == 3:
            prefix = getattr(self.model, "num_prefix_tokens", None)
        has_class = prefix != 0 and has_class_token(self.model)
        return read_tokens(features, prefix=prefix, has_class=has_class)

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
        has_class = has_class_token(self.model)
        return [layer_vectors(grid, prefix if has_class else None) for grid, prefix in pairs]


def layer_vectors(grid: Tensor, prefix: Tensor | None) -> Vectors:
    """Of a map (n, d, h, w), and of the tokens before it (n, p, d) where the first is a class."""
    vectors = {"mean": grid.mean((2, 3))}
    if prefix is not None and prefix.shape[1]:
        vectors["cls"] = prefix[:, 0]
    return vectors
