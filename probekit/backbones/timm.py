"""timm's models without classifier: `timm:NAME`, `timm:NAME/FILE`, `timm:NAME/random`. View: `#pooled`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import probekit.backbones.torchvision_operators  # noqa: F401

# isort: split
import timm
import timm.data
import timm.models
import torch

from probekit.backbones import hub
from probekit.backbones.module import FrozenModule
from probekit.backbones.preprocessing import Preprocess, choose_preprocess, scaled_preprocess
from probekit.errors import InputError, NotFoundError
from probekit.protocols import Reference
from probekit.registry import nearest

SEED = 0
ELSEWHERE = ("hf-hub:", "hf_hub:", "local-dir:")
"""Names that timm itself looks up outside its own list."""


def load(reference: Reference) -> FrozenModule:
    """The pooled output of a timm model."""
    if reference.view not in (None, "pooled"):
        raise InputError(f"{reference} has no view #{reference.view}. timm's models have: #pooled.")
    with hub.translating(reference):
        model, arch = _model(reference.name)
        native, size = _native(model)
        preprocess = choose_preprocess(reference.preset, native, size=size)
        return FrozenModule(
            model, preprocess, name=str(reference), view="pooled", architecture=f"timm\n{arch}\n{model}"
        )


def _model(name: str) -> tuple[Any, str]:
    """The model that a name means, and the name of its architecture."""
    if name.startswith(ELSEWHERE):
        model: Any = timm.create_model(name, pretrained=True, num_classes=0)
        return model, str(model.pretrained_cfg.get("architecture"))
    arch, _, weights = name.partition("/")
    plain, _, tag = arch.partition(".")
    if not timm.is_model(plain):
        raise NotFoundError(f"timm has no model {arch!r}. {nearest(arch, timm.list_models())}")
    if weights == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return timm.create_model(arch, pretrained=False, num_classes=0), plain
    if weights:
        return _from_file(arch, hub.weights_file(weights, f"timm:{arch}")), plain
    known = timm.list_pretrained(f"{plain}.*") or timm.list_pretrained(plain)
    if not known:
        raise NotFoundError(f"timm has no weights for {plain}. Write timm:{plain}/FILE or timm:{plain}/random.")
    if tag and arch not in known:
        raise NotFoundError(f"timm has no weights {arch!r}. {nearest(arch, known)}")
    return timm.create_model(arch, pretrained=True, num_classes=0), plain


def _from_file(arch: str, file: Path) -> Any:
    """The model with the weights of a file. All must find their place: timm would skip those that do not."""
    state = timm.models.load_state_dict(str(file), weights_only=True)
    model: Any = timm.create_model(arch, pretrained=False, num_classes=0)
    classifier = model.pretrained_cfg.get("classifier")
    first = classifier if isinstance(classifier, str) or not classifier else classifier[0]
    classes = len(state.get(f"{first}.weight", ()))
    overlay = {"file": str(file), "num_classes": classes, "label_offset": 0}
    model = timm.create_model(arch, pretrained=True, num_classes=classes, pretrained_cfg_overlay=overlay)
    model.reset_classifier(0)
    return model


def _native(model: Any) -> tuple[Preprocess, tuple[int, int]]:
    """The preprocessing that timm states for the model, and the height and width it makes."""
    data: Any = timm.data
    stated = data.resolve_model_data_config(model)
    _, height, width = stated["input_size"]
    transform, size = data.create_transform(**stated, is_training=False), (height, width)
    crop = {"crop_share": stated["crop_pct"], "crop": stated["crop_mode"]}
    return scaled_preprocess(transform, stated, size, library="timm", **crop), size
