"""Carrying a set from one cache to another: as a small cache of its own, or as a Hugging Face dataset."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from probekit.cache.audit import verify
from probekit.cache.disk import DiskStore
from probekit.cache.entry import check_schema
from probekit.errors import CorruptError, InputError, NotFoundError
from probekit.files import read_json, write_json
from probekit.values import SCHEMA, TARGET, EmbeddingSet, EncodingSpec, Json

_NOTE = "probekit-set.json"
FORMATS = ("folder", "dataset")


def export(store: DiskStore, name: str, target: Path, *, form: str = "folder") -> str:
    """Write a set to a new folder; gives its digest."""
    if form not in FORMATS:
        raise InputError(f"Cannot export as {form!r}: choose one of {', '.join(FORMATS)}.")
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{target} exists and is not empty. Choose a new folder.")
    embeddings = store.open(name)
    digest = embeddings.digest
    label = store.sets.label(digest)
    if form == "folder":
        _copy(embeddings, store, DiskStore(target), label)
    else:
        embeddings.to_dataset().save_to_disk(str(target))
    spec: dict[str, Json] = {"backbone": embeddings.spec.backbone, **embeddings.spec.identity}
    note: dict[str, Json] = {"schema": SCHEMA, "set": digest, "name": label, "form": form, "spec": spec}
    write_json(target / _NOTE, {**note, "source": embeddings.source, "rows": _rows_digest(embeddings)})
    return digest


def bring(store: DiskStore, source: Path, *, name: str | None = None, restore_erased: bool = False) -> str:
    """Add an exported set to a cache after checking every hash; gives its name.

    restore_erased: also where samples of it were erased from this cache, which then come back.
    """
    if not (source / _NOTE).is_file():
        raise NotFoundError(f"{source} holds no exported set: {_NOTE} is missing.")
    _refuse_links(source)
    note = read_json(source / _NOTE)
    check_schema(note.get("schema"), source / _NOTE)
    embeddings = _read_folder(source, note) if note.get("form") == "folder" else _read_dataset(source, note)
    if embeddings.digest != note["set"] or _rows_digest(embeddings) != note["rows"]:
        raise CorruptError(f"{source} is not what was exported: its digests do not fit. Export it again.")
    label = name or str(note["name"])
    _copy(embeddings, DiskStore(source), store, label, restore_erased=restore_erased)
    return label


def _copy(
    embeddings: EmbeddingSet, source: DiskStore, target: DiskStore, name: str, *, restore_erased: bool = False
) -> None:
    for samples, vectors in source.canaries(embeddings.spec).items():
        if target.canary(embeddings.spec, samples) is None:
            target.keep_canary(embeddings.spec, vectors, samples)
    target.adopt(embeddings, name, restore_erased=restore_erased)


def _read_folder(source: Path, note: dict[str, Any]) -> EmbeddingSet:
    there = DiskStore(source)
    problems, _ = verify(there)
    if problems:
        first = problems[0]
        raise CorruptError(f"{source} is damaged: {first.where}: {first.what}. Export it again; nothing was imported.")
    return there.open(str(note["set"]))


def _read_dataset(source: Path, note: dict[str, Any]) -> EmbeddingSet:
    import datasets

    try:
        table = datasets.load_from_disk(str(source)).with_format("numpy")
    except (OSError, ValueError, FileNotFoundError) as error:
        raise CorruptError(f"{source} cannot be read as a dataset ({error}). Export it again.") from error
    spec = EncodingSpec(**note["spec"])
    names = getattr(table.features["label"], "names", None)
    own = table.select_columns(["embedding"]).with_format(
        "numpy", dtype=np.dtype(spec.dtype)
    )  # else of 32 bits at most
    rows = np.stack(list(own["embedding"])).astype(spec.dtype)
    masked = ~np.isfinite(rows).all(axis=1)
    known = [name for name in table.column_names if name.startswith(TARGET)]
    names = [name.removeprefix(TARGET) for name in known] or names
    return EmbeddingSet(
        spec=spec,
        embeddings=rows,
        labels=np.asarray(table["label"], dtype=np.int64),
        ids=[str(sample) for sample in table["id"]],
        class_names=tuple(names or ()),
        clients=[str(c) for c in table["client_id"]] if "client_id" in table.column_names else None,
        names=[str(text) for text in table["name"]] if "name" in table.column_names else None,
        masked=masked if masked.any() else None,
        source=str(note["source"]),
        targets=np.stack([np.asarray(table[name], np.float64) for name in known], axis=1) if known else None,
    )


def _rows_digest(embeddings: EmbeddingSet) -> str:
    hasher = hashlib.sha256()
    for block in embeddings.blocks():
        hasher.update(np.ascontiguousarray(block).tobytes())
    return hasher.hexdigest()


def _refuse_links(source: Path) -> None:
    """An exported folder holds plain files only: a link could point anywhere."""
    for path in source.rglob("*"):
        if path.is_symlink() or not path.resolve().is_relative_to(source.resolve()):
            raise InputError(f"{path} leads out of the exported folder. Nothing was imported.")
