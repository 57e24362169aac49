"""Sets on disk: an ordered list of samples with what is said of them, and names for sets.

sets/<digest>/set.json              spec, class names, source, skipped samples
              columns.safetensors   ids, labels and, where known, clients, names, masked rows; salted columns
names/<name>.json                   which set a name means
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.cache.entry import check_schema
from probekit.cache.ids import Column, hex_ids, pack
from probekit.cache.journal import changing
from probekit.cache.matrices import map_tensors, write_tensors
from probekit.errors import CorruptError, InputError, NotFoundError
from probekit.files import ASIDE, DIGEST, checked_digest, new_folder, read_json, remove_file, remove_folder, write_json
from probekit.registry import nearest
from probekit.values import SCHEMA, EmbeddingSet, Rows, Skipped

_COLUMN = "column "
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


def _read_texts(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Column:
    """Many short texts in one array of bytes."""
    return Column(range(len(ends)), lambda row: data[ends[row - 1] if row else 0 : ends[row]].tobytes().decode())


def _texts(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    encoded = [text.encode() for text in texts]
    data = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return data, np.cumsum([len(text) for text in encoded], dtype=np.int64)


class SetShelf:
    """The sets of a cache and their names."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def digests(self, spec: str | None = None) -> list[str]:
        """Every set there is, or every one of this spec."""
        found = sorted(path.name for path in (self.root / "sets").glob("*") if DIGEST.fullmatch(path.name))
        return [digest for digest in found if spec is None or self.read_note(digest)["spec"] == spec]

    def names(self) -> dict[str, str]:
        """Every name and the set it means."""
        return {path.stem: str(read_json(path)["set"]) for path in sorted((self.root / "names").glob("*.json"))}

    def names_of(self, digest: str) -> list[str]:
        """The names that mean this set."""
        return [name for name, meant in self.names().items() if meant == digest]

    def label(self, digest: str) -> str:
        """What to call a set: its first name, or how its digest begins."""
        return next(iter(self.names_of(digest)), digest[:12])

    def give_name(self, name: str, digest: str) -> None:
        """Let this name mean this set from now on."""
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot name a set: use letters, digits, dots, dashes and underscores.")
        path = self.root / "names" / f"{name}.json"
        if path.exists() and read_json(path).get("set") == digest:  # also where nothing can be written
            return
        with changing(self.root):
            write_json(path, {"set": digest})

    def drop_name(self, name: str) -> None:
        """Let a name mean nothing; a set that has no other goes, its rows stay."""
        digest = self.names()[name]
        with changing(self.root):
            if self.names_of(digest) == [name]:
                self.remove(digest)
            remove_file(self.root / "names" / f"{name}.json")

    def resolve(self, text: str) -> str:
        """The digest that a name or the beginning of a digest means."""
        names = self.names()
        if text in names:
            return names[text]
        matches = [digest for digest in self.digests() if len(text) >= 6 and digest.startswith(text)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise InputError(f"{text!r} is the beginning of {len(matches)} sets: give more digits.")
        raise NotFoundError(
            f"There is no set {text!r} in {self.root}. {nearest(text, list(names))} `probekit cache ls` shows all."
        )

    def write(self, embeddings: EmbeddingSet) -> str:
        """Keep what is said of the rows of a set; gives its digest."""
        digest = embeddings.digest
        target = self.root / "sets" / digest
        if target.exists():
            self._add_columns(digest, embeddings)
            return digest
        with changing(self.root), new_folder(target, aside=target.parent / f"{ASIDE}set") as aside:
            _write_columns(aside, embeddings)
        return digest

    def has(self, embeddings: EmbeddingSet) -> bool:
        """Whether a set is there with the same groups and all its columns of the data set."""
        if not (self.root / "sets" / embeddings.digest).exists():
            return False
        there, groups = self.read_columns(embeddings.digest), embeddings.groups
        same = groups is None or np.array_equal(there.get("groups", ()), groups)
        return same and {*map(_kept, embeddings.columns)} <= there.keys()

    def _add_columns(self, digest: str, embeddings: EmbeddingSet) -> None:
        """Keep columns that a set does not have yet; those that it has stay, and groups are replaced."""
        if self.has(embeddings):
            return
        with changing(self.root):
            note, there = self.read_note(digest), self.read_columns(digest)
            named = {_kept(name): column for name, column in embeddings.columns.items()}
            folder = self.root / "sets" / digest
            if embeddings.groups is not None:
                there["groups"], note["group_column"] = embeddings.groups.astype("<i8"), embeddings.group_column
            written = _write_arrays(folder, named | there)
            write_json(folder / "set.json", {**note, "columns": written})
            remove_file(folder / f"{note['columns']}.safetensors")

    def read_note(self, digest: str) -> dict[str, Any]:
        """The small facts of a set: spec digest, backbone, rows, class names, source, skipped."""
        path = self.root / "sets" / digest / "set.json"
        note: dict[str, Any] = read_json(path)
        check_schema(note.get("schema"), path)
        for name in ("spec", "columns"):
            checked_digest(note.get(name), path)
        return note

    def read_columns(self, digest: str) -> dict[str, NDArray[Any]]:
        """The columns of a set, mapped."""
        return map_tensors(self.columns_path(digest))[0]

    def columns_path(self, digest: str) -> Path:
        """Where they are."""
        return self.root / "sets" / digest / f"{self.read_note(digest)['columns']}.safetensors"

    def remove(self, digest: str) -> None:
        """Forget a set and the names that mean it, for good; its rows stay."""
        with changing(self.root):
            for name in self.names_of(digest):
                remove_file(self.root / "names" / f"{name}.json")
            remove_folder(self.root / "sets" / digest)


def _write_columns(folder: Path, embeddings: EmbeddingSet) -> None:
    columns: dict[str, NDArray[Any]] = {"labels": embeddings.labels.astype("<i8"), "ids": pack(embeddings.ids)}
    clients = sorted(set(embeddings.clients or ()))
    if embeddings.clients is not None:
        codes = {client: code for code, client in enumerate(clients)}
        columns["clients"] = np.array([codes[client] for client in embeddings.clients], dtype="<i8")
    if embeddings.names is not None:
        columns["names"], columns["name_ends"] = _texts(embeddings.names)
    if embeddings.masked is not None:
        columns["masked"] = embeddings.masked.astype(np.uint8)
    if embeddings.groups is not None:
        columns["groups"] = embeddings.groups.astype("<i8")
    if embeddings.targets is not None:
        columns["targets"] = np.ascontiguousarray(embeddings.targets, dtype="<f8")
    columns |= {_kept(name): column for name, column in embeddings.columns.items()}
    name = _write_arrays(folder, columns)
    write_json(
        folder / "set.json",
        {
            "schema": SCHEMA,
            "spec": embeddings.spec.digest,
            "backbone": embeddings.spec.backbone,
            "source": embeddings.source,
            "rows": len(embeddings),
            "dimension": embeddings.dimension,
            "columns": name,
            "group_column": embeddings.group_column,
            "class_names": list(embeddings.class_names),
            "clients": clients,
            "skipped": [asdict(skipped) for skipped in embeddings.skipped],
        },
    )


def _kept(name: str) -> str:
    """What a column of the data set is called in a file, beside our own."""
    return f"{_COLUMN}{name}"


def _write_arrays(folder: Path, columns: Mapping[str, NDArray[Any]]) -> str:
    ordered = dict(sorted(columns.items(), key=lambda column: -column[1].dtype.itemsize))  # eight-byte columns aligned
    tensors = {name: (array.shape, array.dtype, [array]) for name, array in ordered.items()}
    return write_tensors(folder, tensors, {"schema": SCHEMA})


def assemble(note: dict[str, Any], columns: dict[str, NDArray[Any]], *, spec: Any, rows: Rows) -> EmbeddingSet:
    """An EmbeddingSet from what is kept of it and its rows."""
    clients, names, masked = columns.get("clients"), columns.get("names"), columns.get("masked")
    try:
        return EmbeddingSet(
            spec=spec,
            embeddings=rows,
            labels=columns["labels"],
            ids=hex_ids(columns["ids"]),
            class_names=tuple(note["class_names"]),
            clients=None if clients is None else Column(clients, note["clients"].__getitem__),
            names=None if names is None else _read_texts(names, columns["name_ends"]),
            masked=None if masked is None else masked.astype(bool),
            skipped=tuple(Skipped(**skipped) for skipped in note["skipped"]),
            source=note["source"],
            columns={name.removeprefix(_COLUMN): one for name, one in columns.items() if name.startswith(_COLUMN)},
            groups=columns.get("groups"),
            targets=columns.get("targets"),
            group_column=note.get("group_column", ""),
        )
    except (KeyError, TypeError) as error:
        raise CorruptError(f"A set's description is damaged: {error}. Run `probekit cache verify`.") from error
