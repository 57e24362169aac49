"""Datasets made of Python objects: lists of pictures or of pairs, arrays, map-style torch datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from probekit.datasets import pictures
from probekit.datasets.options import DatasetOptions
from probekit.datasets.table import Table, array_kind, classify, picture, vector
from probekit.errors import InputError, SampleError
from probekit.values import UNLABELLED


def wrap(rows: Sequence[Any], options: DatasetOptions) -> Table:
    """The dataset of a sequence of contents or of (content, label) tuples. Paths and bytes are pictures."""
    name = f"python:{type(rows).__name__}"
    options.refuse("split", "columns", source=f"A {type(rows).__name__}")
    if not len(rows):
        raise InputError(f"A dataset needs at least one row; found an empty {type(rows).__name__}.")
    first = rows[0]
    paired = _is_pair(first)
    first = first[0] if paired else first
    kind = _kind(first)
    if kind is None:
        raise InputError(
            "A sample must be a PIL picture, encoded bytes, a Path, a text, an array of H x W [x 3] bytes or a row of "
            f"numbers; found {_description(first)}. For separate arrays pass list(zip(pictures, labels))."
        )
    labels, class_names = _labels(rows, source=name) if paired else (np.full(len(rows), UNLABELLED), ())
    return Table(name, kind, partial(_reader, rows, paired, kind), labels, class_names)


def _is_pair(row: Any) -> bool:
    return isinstance(row, tuple) and len(row) == 2


def _kind(content: Any) -> str | None:
    if isinstance(content, Image.Image | bytes | Path):
        return "image"
    return "text" if isinstance(content, str) else array_kind(content)


def _description(content: Any) -> str:
    if isinstance(content, np.ndarray):
        return f"an array of {content.dtype} with shape {content.shape}"
    return f"a {type(content).__name__}"


def _labels(rows: Sequence[Any], *, source: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The labels of pairs. Where torchvision's `targets` tell them, nothing is decoded to learn them."""
    class_names = tuple(str(name) for name in getattr(rows, "classes", ()))
    targets = getattr(rows, "targets", None)
    if targets is not None and len(targets) == len(rows) and getattr(rows, "target_transform", None) is None:
        return classify(np.asarray(targets), class_names, source=source)
    values = []
    for row in range(len(rows)):
        pair = rows[row]
        if not _is_pair(pair):
            found = _description(pair)
            raise InputError(f"{source}, row {row}: wanted a (content, label) pair as in row 0; found {found}.")
        values.append(pair[1].item() if hasattr(pair[1], "item") else pair[1])
    return classify(values, class_names, source=source)


def _reader(rows: Sequence[Any], paired: bool, kind: str, row: int) -> Callable[[], Any]:
    # What lies in a list is there already and goes alone; anything else may decode when asked, so it is asked later.
    there = {row: rows[row]} if isinstance(rows, list | tuple | np.ndarray) else rows
    return partial(_content, there, paired, kind, row)


def _content(rows: Any, paired: bool, kind: str, row: int) -> Any:
    content = rows[row][0] if paired else rows[row]
    if _kind(content) != kind:
        raise SampleError(f"Row {row}: wanted content of kind {kind} as in row 0; found {_description(content)}.")
    if isinstance(content, Image.Image):
        return pictures.checked(content)
    if isinstance(content, bytes | Path):
        return pictures.decode(content)
    if kind == "image":
        return pictures.checked(picture(content))
    return content if kind == "text" else vector(content)
