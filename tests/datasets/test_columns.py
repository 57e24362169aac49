"""Which columns are read."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Array2D, ClassLabel, Features, Image, List, Value

from probekit.datasets import Columns
from probekit.datasets.columns import choose
from probekit.errors import InputError

TEXT, NUMBER, CLASS = Value("string"), Value("int64"), ClassLabel(names=["a", "b"])


@pytest.mark.parametrize(
    ("features", "wanted", "expected"),
    [
        ({"photo": Image(), "kind": CLASS}, Columns(), ("image", "photo", "kind", None)),
        ({"image": Image(), "mask": Image(), "label": CLASS}, Columns(), ("image", "image", "label", None)),
        ({"a": Image(), "b": Image()}, Columns(image="b"), ("image", "b", None, None)),
        (
            {"img": Image(), "fine_label": CLASS, "coarse_label": CLASS},
            Columns(),
            ("image", "img", "fine_label", None),
        ),
        ({"png": Image(), "cls": NUMBER, "__key__": TEXT}, Columns(), ("image", "png", "cls", None)),
        ({"image": TEXT, "label": TEXT}, Columns(), ("image", "image", "label", None)),
        ({"image": Value("binary")}, Columns(), ("image", "image", None, None)),
        ({"image": {"bytes": Value("binary"), "path": TEXT}}, Columns(), ("image", "image", None, None)),
        ({"text": TEXT, "label": CLASS}, Columns(), ("text", "text", "label", None)),
        ({"image": Image(), "text": TEXT}, Columns(), ("image", "image", None, None)),
        ({"image": Image(), "note": TEXT}, Columns(text="note"), ("text", "note", None, None)),
        ({"image": Image(), "client_id": NUMBER}, Columns(), ("image", "image", None, "client_id")),
        ({"image": Image(), "site": TEXT}, Columns(client="site"), ("image", "image", None, "site")),
        ({"image": Image(), "label": NUMBER, "sort": CLASS}, Columns(), ("image", "image", "sort", None)),
        ({"file": TEXT, "y": NUMBER}, Columns(image="file", label="y"), ("image", "file", "y", None)),
    ],
)
def test_columns_are_found_by_type_then_by_name(
    features: dict[str, Any], wanted: Columns, expected: tuple[str, str, str | None, str | None]
) -> None:
    found = choose(Features(features), wanted, source="test")
    assert (found.kind, found.content, found.label, found.client) == expected
    is_class = found.label is not None and isinstance(features[found.label], ClassLabel)
    assert found.class_names == (("a", "b") if is_class else ())


@pytest.mark.parametrize(
    ("features", "wanted", "message"),
    [
        ({"a": Image(), "b": Image()}, Columns(), r"columns a, b: choose with Columns\(image=...\)"),
        (
            {"image": Image(), "img": Image()},
            Columns(),
            r"columns image, img: choose with Columns\(image=...\)",
        ),
        (
            {"image": Image(), "p": CLASS, "q": CLASS},
            Columns(),
            r"columns p, q: choose with Columns\(label=...\)",
        ),
        (
            {"image": Image(), "label": NUMBER, "class": NUMBER},
            Columns(),
            r"label, class: choose with Columns\(label=...\)",
        ),
        ({"text": TEXT, "caption": TEXT}, Columns(), r"text, caption: choose with Columns\(text=...\)"),
        (
            {"a": NUMBER, "b": TEXT},
            Columns(),
            r"found a, b. Name one with Columns\(image=...\) or Columns\(text=...\).",
        ),
        ({"image": Image()}, Columns(label="y"), "no column 'y'; found image"),
        ({"image": Image(), "n": NUMBER}, Columns(image="n"), "column 'n' holds .* not images"),
        ({"image": Image(), "n": NUMBER}, Columns(text="n"), "column 'n' holds .* not texts"),
        ({"image": Image(), "t": TEXT}, Columns(image="image", text="t"), "Choose one"),
        ({"image": Image(), "tags": List(NUMBER)}, Columns(label="tags"), "one class number or name per row"),
        (
            {"image": Image(), "m": Array2D((2, 2), "int8")},
            Columns(label="m"),
            "one class number or name per row",
        ),
        (
            {"image": Image(), "when": Value("date32")},
            Columns(label="when"),
            "one class number or name per row",
        ),
    ],
)
def test_what_is_ambiguous_or_unfit_is_refused(features: dict[str, Any], wanted: Columns, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(Features(features), wanted, source="test")
