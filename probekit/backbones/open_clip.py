"""open_clip's image towers.

Names: `open_clip:ARCH/TAG`, `ARCH/FILE`, `ARCH/random`, `hf-hub:ORG/NAME[@REVISION]`, `local-dir:FOLDER`.
Views: `#proj` (default), the tower's output after its projection, not normalised; `#pre`, before the
projection, for towers whose projection stands apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import probekit.backbones.torchvision_operators  # noqa: F401

# isort: split
import open_clip
import torch
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError
from open_clip.transform import PreprocessCfg, image_transform_v2

from probekit.backbones import hub, open_clip_files
from probekit.backbones.module import FrozenModule
from probekit.backbones.preprocessing import Preprocess, choose_preprocess, picture_preprocess
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
    with hub.unlogged(), hub.translating(reference):
        if name.startswith(HUB):
            source = FOLDER + str(_fetched(name.removeprefix(HUB)))
            return _frozen(reference, _created(source), _config(source))
        if name.startswith(FOLDER):
            _check_folder(Path(name.removeprefix(FOLDER)).expanduser())
            source = FOLDER + str(Path(name.removeprefix(FOLDER)).expanduser())
            return _frozen(reference, _created(source), _config(source))
        arch, _, weights = name.partition("/")
        return _of_architecture(reference, arch, weights=weights)


def _of_architecture(reference: Reference, arch: str, *, weights: str) -> FrozenModule:
    if arch not in open_clip.list_models():
        raise NotFoundError(f"open_clip has no architecture {arch!r}. {nearest(arch, open_clip.list_models())}")
    config = _config(arch)
    if not weights:
        raise InputError(
            f"open_clip:{arch} names no weights. Write open_clip:{arch}/TAG "
            f"({', '.join(open_clip.list_pretrained_tags_by_model(arch)[:6]) or 'none is published'}), "
            f"open_clip:{arch}/FILE, or open_clip:{arch}/random for random ones."
        )
    if weights == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            model = open_clip.create_model(arch, load_weights=False, pretrained_text=False)
        return _frozen(reference, model, config)
    if open_clip.is_pretrained_cfg(arch, weights):
        open_clip_files.check_tag(arch, weights, config=config)
        return _frozen(reference, _created(arch, pretrained=weights), config)
    file = open_clip_files.checked(arch, weights, config=config)
    return _frozen(reference, _created(arch, pretrained=str(file)), config)


def _created(source: str, **options: Any) -> Any:
    """open_clip's own model; without `require_pretrained` it would go on with random weights."""
    return open_clip.create_model(
        source, device="cpu", precision="fp32", require_pretrained=True, weights_only=True, **options
    )


def _config(source: str) -> dict[str, Any]:
    config: dict[str, Any] = open_clip.get_model_config(source)
    return config


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
        raise NotFoundError(
            f"{folder} holds no open_clip_config.json. Name a folder as open_clip saves it for the hub, "
            "or write open_clip:ARCH/FILE."
        )
    files = sorted(file for end in ("safetensors", "bin", "pth") for file in folder.glob(f"*.{end}"))
    known = [
        file for file in files if file.stem in ("open_clip_model", "open_clip_pytorch_model", "model", "pytorch_model")
    ]
    if not files:
        raise NotFoundError(
            f"{folder} holds no weights (*.safetensors, *.bin, *.pth). Put them beside the configuration."
        )
    if len(files) > 1 and not known:
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
    return FrozenModule(
        tower,
        choose_preprocess(reference.preset, native, size=size),
        name=str(reference),
        view=view,
        read=available[view],
        architecture=_architecture(config),
    )


def _native(model: Any) -> tuple[Preprocess, tuple[int, int]]:
    """The preprocessing that the loaded model carries, and the height and width it makes."""
    stated = open_clip.get_model_preprocess_cfg(model)
    transform = image_transform_v2(PreprocessCfg(**stated), is_train=False)
    size = stated["size"]
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    crop: dict[str, Json] = {"shortest": "centre", "longest": "centre, padded", "squash": "none"}
    values = picture_preprocess(
        transform,
        library="open_clip",
        size=[height, width],
        resize=stated["resize_mode"],
        crop=crop[stated["resize_mode"]],
        fill=stated["fill_color"] if stated["resize_mode"] == "longest" else None,
        interpolation=stated["interpolation"],
        antialias=True,
        range=[0, 1],
        mean=list(stated["mean"]),
        std=list(stated["std"]),
    )
    return values, (height, width)


def _first(tower: Any, batch: torch.Tensor) -> torch.Tensor:
    """The tower's output; CoCa's gives its tokens as well."""
    output = tower(batch)
    pooled: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return pooled


def _pre(tower: Any) -> dict[str, Callable[[Any, torch.Tensor], torch.Tensor]]:
    """How to read the tower before its projection, if that can be told apart."""
    if getattr(tower, "proj", None) is not None:
        return {"pre": _first}  # once `proj` is None, the tower stops before it
    head, trunk = getattr(tower, "head", None), getattr(tower, "trunk", None)
    if trunk is None or head is None or hasattr(head, "pool"):
        return {}
    if len(head):
        return {"pre": lambda tower, batch: tower.trunk(batch)}
    if trunk.num_classes > 0:
        return {
            "pre": lambda tower, batch: tower.trunk.forward_head(tower.trunk.forward_features(batch), pre_logits=True)
        }
    return {}


def _architecture(config: dict[str, Any]) -> str:
    """What the weights do not tell: heads, activation, pooling; with defaults, so that all sources agree."""
    vision = asdict(open_clip.CLIPVisionCfg(**config["vision_cfg"]))
    vision.pop("timm_model_pretrained", None)
    return canonical(
        {
            "library": "open_clip",
            "embed_dim": config["embed_dim"],
            "quick_gelu": bool(config.get("quick_gelu")) and not vision.get("timm_model_name"),
            "vision": vision,
        }
    )
