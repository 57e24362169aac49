"""Which columns of a Hugging Face dataset hold the content, the label and the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probekit.datasets.options import Columns
from probekit.errors import InputError

IMAGE_NAMES = ("image", "img", "picture", "jpg", "jpeg", "png", "webp")
LABEL_NAMES = ("label", "labels", "class", "fine_label", "target", "cls", "category")
TEXT_NAMES = ("text", "sentence", "caption", "content", "document", "txt")
CLIENT_NAME = "client_id"


@dataclass(frozen=True)
class ChosenColumns:
    """What is read: the kind of the content and the columns it, the label and the client stand in."""

    kind: str
    content: str
    label: str | None
    client: str | None
    class_names: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def choose(features: Mapping[str, Any], wanted: Columns, *, source: str) -> ChosenColumns:
    """The columns asked for, and the rest found by type, then by name. What is ambiguous is refused."""
    for column in (wanted.image, wanted.label, wanted.client, wanted.text, *wanted.kept):
        if column is not None and column not in features:
            raise InputError(f"{source} has no column {column!r}; found {', '.join(features)}.")
    if wanted.image is not None and wanted.text is not None:
        raise InputError(f"Choose one: pictures from {wanted.image!r} or texts from {wanted.text!r}.")
    label = wanted.label or _label(features, wanted, source=source)
    kind, content = _content(features, wanted, label, source=source)
    client = wanted.client or (CLIENT_NAME if CLIENT_NAME in features else None)
    feature = features.get(label) if label is not None else None
    names = tuple(getattr(feature, "names", ()))
    if label is not None and not hasattr(feature, "names") and not _is_text(feature) and not _is_number(feature):
        raise InputError(f"{source}: column {label!r} holds {feature}; a label is one class number or name per row.")
    return ChosenColumns(kind, content, label, client, names, wanted.kept)


def _content(features: Mapping[str, Any], wanted: Columns, label: str | None, *, source: str) -> tuple[str, str]:
    for kind, column, fits in (("image", wanted.image, _may_be_image), ("text", wanted.text, _is_text)):
        if column is not None:
            if not fits(features[column]):
                raise InputError(f"{source}: column {column!r} holds {features[column]}, not {kind}s.")
            return kind, column
    typed = [name for name, feature in features.items() if _is_image(feature)]
    named = [name for name in features if name.lower() in IMAGE_NAMES and _may_be_image(features[name])]
    texts = [name for name in features if name.lower() in TEXT_NAMES and _is_text(features[name]) and name != label]
    for kind, candidates, names in (("image", typed or named, IMAGE_NAMES), ("text", texts, ())):
        if candidates:
            return kind, _one(candidates, names, noun=kind, source=source)
    remedy = "Name one with Columns(image=...) or Columns(text=...)."
    raise InputError(f"{source} has no column known to hold images or texts; found {', '.join(features)}. {remedy}")


def _label(features: Mapping[str, Any], wanted: Columns, *, source: str) -> str | None:
    free = [name for name in features if name not in (wanted.image, wanted.text, wanted.client)]
    typed = [name for name in free if hasattr(features[name], "names")]
    named = [name for name in free if name.lower() in LABEL_NAMES and type(features[name]).__name__ == "Value"]
    candidates = typed or named
    return _one(candidates, LABEL_NAMES, noun="label", source=source) if candidates else None


def _one(candidates: Sequence[str], names: Sequence[str], *, noun: str, source: str) -> str:
    """The only candidate, or the only one whose name says so."""
    usual = candidates if len(candidates) == 1 else [name for name in candidates if name.lower() in names]
    if len(usual) != 1:
        found = ", ".join(candidates)
        raise InputError(f"{source} could be read from the columns {found}: choose with Columns({noun}=...).")
    return usual[0]


def _is_image(feature: Any) -> bool:
    return type(feature).__name__ == "Image"


def _may_be_image(feature: Any) -> bool:
    """A picture, or what the library itself can take for one: paths, encoded bytes, or both."""
    if isinstance(feature, dict):
        return feature.keys() == {"bytes", "path"}
    return _is_image(feature) or _is_text(feature) or getattr(feature, "dtype", None) in ("binary", "large_binary")


def _is_number(feature: Any) -> bool:
    return type(feature).__name__ == "Value" and feature.dtype.startswith(("int", "uint", "float", "bool"))


def _is_text(feature: Any) -> bool:
    return type(feature).__name__ == "Value" and feature.dtype in ("string", "large_string", "string_view")
