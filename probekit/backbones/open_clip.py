"""open_clip's image towers.

Names: `open_clip:ARCH/TAG`, `ARCH/FILE`, `ARCH/random`, `hf-hub:ORG/NAME[@REVISION]`, `local-dir:FOLDER`.
Views: `#proj` (default), the tower's output after its projection, not normalised; `#pre`, before the
projection, for towers whose projection stands apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import probekit.backbones.torchvision_operators  # noqa: F401

# isort: split
import open_clip
import torch
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError
from open_clip.transform import PreprocessCfg, image_transform_v2

from probekit.backbones import hub, open_clip_files
from probekit.backbones.module import FrozenModule
from probekit.backbones.preprocessing import Preprocess, choose_preprocess, scaled_preprocess
from probekit.errors import InputError, NotFoundError
from probekit.protocols import Reference
from probekit.registry import nearest
from probekit.values import Json, canonical

SEED = 0
"""What `ARCH/random` is initialised from."""

HUB, FOLDER = "hf-hub:", "local-dir:"
WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


def load(reference: Reference) -> FrozenModule:
    """The image tower that this name means; the text tower is not kept."""
    name = reference.name
    with hub.translating(reference):
        if name.startswith((HUB, FOLDER)):
            kind, _, place = name.partition(":")
            folder = _fetched(place) if f"{kind}:" == HUB else Path(place).expanduser()
            _check_folder(folder)
            return _frozen(reference, _created(FOLDER + str(folder)), open_clip.get_model_config(FOLDER + str(folder)))
        arch, _, weights = name.partition("/")
        return _of_architecture(reference, arch, weights=weights)


def _of_architecture(reference: Reference, arch: str, *, weights: str) -> FrozenModule:
    if arch not in open_clip.list_models():
        raise NotFoundError(f"open_clip has no architecture {arch!r}. {nearest(arch, open_clip.list_models())}")
    config: dict[str, Any] = open_clip.get_model_config(arch)
    if not weights:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(arch)[:6]) or "none is published"
        ways = f"open_clip:{arch}/TAG ({tags}), open_clip:{arch}/FILE, or open_clip:{arch}/random for random ones"
        raise InputError(f"open_clip:{arch} names no weights. Write {ways}.")
    if weights == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return _frozen(reference, open_clip.create_model(arch, load_weights=False, pretrained_text=False), config)
    if open_clip.is_pretrained_cfg(arch, weights):
        open_clip_files.check_tag(arch, weights, config=config)
    else:
        weights = str(open_clip_files.checked(arch, weights, config=config))
    return _frozen(reference, _created(arch, pretrained=weights), config)


def _created(source: str, **options: Any) -> Any:
    """open_clip's own model; without `require_pretrained` it would go on with random weights."""
    options |= {"device": "cpu", "precision": "fp32", "require_pretrained": True, "weights_only": True}
    return open_clip.create_model(source, **options)


def _fetched(repository: str) -> Path:
    """The local snapshot of a hub repository, with its configuration and weights.

    open_clip's own `hf-hub:` knows no revisions, and only logs that it could not fetch the weights.
    """
    name, _, revision = repository.partition("@")
    config = hf_hub_download(name, "open_clip_config.json", revision=revision or None)
    cached = (try_to_load_from_cache(name, file, revision=revision or None) for file in WEIGHTS)
    if not any(isinstance(path, str) for path in cached):
        try:
            hf_hub_download(name, WEIGHTS[0], revision=revision or None)
        except EntryNotFoundError:
            hf_hub_download(name, WEIGHTS[1], revision=revision or None)
    return Path(config).parent


def _check_folder(folder: Path) -> None:
    if not (folder / "open_clip_config.json").is_file():
        remedy = "Name a folder as open_clip saves it for the hub, or write open_clip:ARCH/FILE."
        raise NotFoundError(f"{folder} holds no open_clip_config.json. {remedy}")
    files = sorted(file for end in ("safetensors", "bin", "pth") for file in folder.glob(f"*.{end}"))
    if not files:
        raise NotFoundError(f"{folder} holds no weights (*.safetensors, *.bin, *.pth). Put them there.")
    usual = {"open_clip_model", "open_clip_pytorch_model", "model", "pytorch_model"}
    if len(files) > 1 and not any(file.stem in usual for file in files):
        names = ", ".join(file.name for file in files)
        raise InputError(f"{folder} holds several weights ({names}). Keep one, or call it open_clip_model.safetensors.")


def _frozen(reference: Reference, model: Any, config: dict[str, Any]) -> FrozenModule:
    tower: Any = model.visual
    native, size = _native(model)
    view = reference.view or "proj"
    available = {"proj": _first, **_pre(tower)}
    if view not in available:
        raise InputError(f"{reference} has no view #{view}. It has: {', '.join('#' + name for name in available)}.")
    if view == "pre" and hasattr(tower, "proj"):
        tower.proj = None
    preprocess, architecture = choose_preprocess(reference.preset, native, size=size), _architecture(config)
    read = available[view]
    return FrozenModule(tower, preprocess, name=str(reference), view=view, read=read, architecture=architecture)


def _native(model: Any) -> tuple[Preprocess, tuple[int, int]]:
    """The preprocessing that the loaded model carries, and the height and width it makes."""
    stated = open_clip.get_model_preprocess_cfg(model)
    transform = image_transform_v2(PreprocessCfg(**stated), is_train=False)
    resize, side = stated["resize_mode"], stated["size"]
    size = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
    crop = {"shortest": "centre", "longest": "centre, padded", "squash": "none"}[resize]
    fill = stated["fill_color"] if resize == "longest" else None
    values: dict[str, Json] = {"library": "open_clip", "resize": resize, "crop": crop, "fill": fill}
    return scaled_preprocess(transform, stated, size, **values), size


def _first(tower: Any, batch: torch.Tensor) -> torch.Tensor:
    """The tower's output; CoCa's gives its tokens as well."""
    output = tower(batch)
    return cast(torch.Tensor, output[0] if isinstance(output, tuple) else output)


def _pre(tower: Any) -> dict[str, Callable[[Any, torch.Tensor], torch.Tensor]]:
    """How to read the tower before its projection, if that can be told apart."""
    if getattr(tower, "proj", None) is not None:
        return {"pre": _first}  # once `proj` is None, the tower stops before it
    head, trunk = getattr(tower, "head", None), getattr(tower, "trunk", None)
    if trunk is None or head is None or hasattr(head, "pool"):
        return {}
    if len(head):
        return {"pre": lambda tower, batch: tower.trunk(batch)}
    return {"pre": _before_logits} if trunk.num_classes > 0 else {}


def _before_logits(tower: Any, batch: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, tower.trunk.forward_head(tower.trunk.forward_features(batch), pre_logits=True))


def _architecture(config: dict[str, Any]) -> str:
    """What the weights do not tell: heads, activation, pooling; with defaults, so that all sources agree."""
    vision = asdict(open_clip.CLIPVisionCfg(**config["vision_cfg"]))
    vision.pop("timm_model_pretrained", None)
    quick = bool(config.get("quick_gelu")) and not vision.get("timm_model_name")
    stated = {"library": "open_clip", "embed_dim": config["embed_dim"], "quick_gelu": quick, "vision": vision}
    return canonical(stated)
