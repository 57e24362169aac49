"""Frozen encoders by name. Each scheme's loader is imported when its prefix is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from probekit.errors import InputError, NotFoundError
from probekit.registry import BACKBONES, Name

if TYPE_CHECKING:
    from probekit.backbones.backbone import Backbone
    from probekit.backbones.module import Options


def load_backbone(
    name: str | object,
    *,
    device: str = "auto",
    precision: str = "float32",
    preprocessing: str = "native",
    kind: str = "image",
    prompt: str | None = None,
    max_length: int | None = None,
    prepare: Callable[[Any], Any] | None = None,
) -> Backbone:
    """A frozen encoder, ready for `extract`.

    name: `open_clip:ARCH/TAG`, `hf:ORG/NAME[@REVISION]`, `st:ORG/NAME[@REVISION]`, `timm:NAME`,
        `packaged:NAME`, `pixels`, `py:module:factory` or a plugin's scheme, with `#view`; or a
        torch module, a function from prepared samples to vectors, or a Backbone.
    device: auto, cpu, cuda or mps.
    precision: float32, amp-bfloat16 or amp-float16.
    preprocessing: native, or a preset of the paper (f2l2-domainnet, f2l2-imagenet, f2l2-flowers).
    kind: image, text or array: what a module or a function takes, and which tower is taken of a
        model that has one for pictures and one for texts.
    prompt: put before every text, such as E5's "query: "; None: what an `st:` model states.
    max_length: texts are cut to so many tokens; None: to what the model takes.
    prepare: turns one sample into what a module or a function takes.
    """
    options: Options = {
        "device": device,
        "precision": precision,
        "preprocessing": preprocessing,
        "kind": kind,
        "prompt": prompt,
        "max_length": max_length,
    }
    if not isinstance(name, str):
        from probekit.backbones.custom import as_backbone

        return as_backbone(name, prepare=prepare, **options)
    parsed = Name.parse(name)
    if prepare is not None:
        raise InputError(
            f"prepare belongs to a module or a function; {name} has its own. Leave out prepare."
        )
    load = BACKBONES.get(parsed.scheme)
    try:
        backbone: Backbone = load(parsed, **options)
    except ImportError as error:
        raise NotFoundError(
            f"{name} needs a package that cannot be imported ({error}). Install it."
        ) from error
    if backbone.kind != "text" and (prompt or max_length is not None):
        raise InputError(
            f"prompt and max_length (--prompt, --max-length) are for text encoders; {name} encodes "
            f"{backbone.kind} samples. Leave them out."
        )
    return backbone
