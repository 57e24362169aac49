"""Frozen encoders by name. Each loader stands in its own file, imported when its prefix is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from probekit import registry
from probekit.errors import InputError
from probekit.protocols import Backbone, Placeable

if TYPE_CHECKING:
    from probekit.backbones.python import Own

register_backbone = registry.backbones.register


def backbone(
    name: str | object,
    *,
    preset: str = "native",
    device: str | None = None,
    precision: str | None = None,
    preprocess: Callable[[Any], Any] | None = None,
    fingerprint: str | None = None,
    kind: str = "image",
) -> Backbone:
    """A frozen model that turns samples into vectors.

    name: `open_clip:ARCH/TAG`, `hf:ORG/NAME[@REVISION]`, `timm:NAME`, `packaged:NAME`, `py:module:factory` or a
    plugin's own, with `#view` to choose the tensor; or a Backbone, a torch module or a function.
    preset: how pictures are preprocessed: native, f2l2-domainnet, f2l2-imagenet or f2l2-flowers.
    device: auto, cpu, cuda or mps. Left out, an object stays where it is, a model by name goes to the cpu.
    precision: float32, amp-bfloat16 or amp-float16. Left out, float32.
    preprocess: of a module or a function: turns one sample into what it takes.
    fingerprint: of a function: a text that changes when its numbers do; left out, its source is looked at.
    kind: of a module or a function that has no `kind` of its own: image, text or array.
    Gives a Backbone, to pass to `extract`.
    """
    from probekit.backbones import python

    own = python.Own(preprocess, fingerprint, kind)
    found = _named(name, preset, own) if isinstance(name, str) else python.with_preset(name, preset, own)
    if preset != "native" and found.preprocessing.get("preset") != preset:
        raise InputError(f"{found.name} brings its own preprocessing and knows no presets. Leave out {preset!r}.")
    if device is not None or precision is not None:
        _place(found, device or str(getattr(found, "device", "cpu")), precision or "float32")
    return found


def _named(name: str, preset: str, own: Own) -> Backbone:
    from probekit.backbones import preprocessing, python

    if preset != "native":
        preprocessing.preset(preset)
    reference = registry.parse(name, preset=preset)
    factory = registry.imported(f"py:{reference.name}") if reference.scheme == "py" else None
    found = python.made(factory or registry.backbones.get(reference.scheme), reference, own)
    if reference.view is not None and found.view != reference.view:
        raise InputError(f"{name} has no view #{reference.view}. It has: #{found.view}.")
    return found


def _place(found: Backbone, device: str, precision: str) -> None:
    if isinstance(found, Placeable):
        found.place(device, precision=precision)
    elif device not in ("cpu", "auto") or precision != "float32":
        remedy = "Leave out `device` and `precision`, or give it a method place(device, *, precision)."
        raise InputError(f"{found.name} cannot be placed on {device!r} in {precision!r}. {remedy}")


def known_models() -> list[str]:
    """The names of all models whose weights open_clip and timm publish."""
    import probekit.backbones.torchvision_operators  # noqa: F401

    # isort: split
    import open_clip
    import timm

    clip = [f"open_clip:{arch}/{tag}" for arch, tag in open_clip.list_pretrained()]
    return [*clip, *(f"timm:{name}" for name in timm.list_pretrained())]
