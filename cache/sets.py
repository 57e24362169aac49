"""Sets on disk: an ordered list of samples with what is said of them, and names for sets.

sets/<digest>/set.json              spec, class names, source, skipped samples
              columns.safetensors   ids, labels and, where known, clients, names, masked rows
names/<name>.json                   which set a name means
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, overload

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from probekit.cache.entry import check_schema
from probekit.cache.ids import HexIds, pack
from probekit.errors import CorruptError, InputError, NotFoundError
from probekit.files import ASIDE, checked_digest, map_tensors, new_folder, read_json, storing, write_json, write_tensors
from probekit.registry import nearest
from probekit.values import SCHEMA, EmbeddingSet, Rows, Skipped

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


class Texts(Sequence[str]):
    """Many short texts in one array of bytes."""

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._data, self._ends = data, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[str]: ...
    def __getitem__(self, row: int | slice) -> str | Sequence[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        start = int(self._ends[row - 1]) if row else 0
        return self._data[start : int(self._ends[row])].tobytes().decode()


def _texts(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    encoded = [text.encode() for text in texts]
    data = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return data, np.cumsum([len(text) for text in encoded], dtype=np.int64)


class SetShelf:
    """The sets of a cache and their names."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Held for the moments in which sets and names change; leftovers of a killed process are swept."""
        with storing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            with FileLock(self.root / ".lock"):
                for stale in [*self.root.glob(f"{ASIDE}*"), *self.root.glob(f"*/{ASIDE}*")]:
                    shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
                yield

    def digests(self) -> list[str]:
        """Every set there is."""
        folder = self.root / "sets"
        return sorted(path.name for path in folder.iterdir() if _is_digest(path.name)) if folder.exists() else []

    def names(self) -> dict[str, str]:
        """Every name and the set it means."""
        folder = self.root / "names"
        if not folder.exists():
            return {}
        return {path.stem: str(read_json(path)["set"]) for path in sorted(folder.glob("*.json"))}

    def give_name(self, name: str, digest: str) -> None:
        """Let this name mean this set from now on."""
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot name a set: use letters, digits, dots, dashes and underscores.")
        with self.changing():
            write_json(self.root / "names" / f"{name}.json", {"set": digest})

    def resolve(self, text: str) -> str:
        """The digest that a name or the beginning of a digest means."""
        names, digests = self.names(), self.digests()
        if text in names:
            return names[text]
        matches = [digest for digest in digests if len(text) >= 6 and digest.startswith(text)]
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
            return digest
        with self.changing(), new_folder(target, aside=target.parent / f"{ASIDE}set") as aside:
            _write_columns(aside, embeddings)
        return digest

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
        note = self.read_note(digest)
        return map_tensors(self.root / "sets" / digest / f"{note['columns']}.safetensors")[0]

    def remove(self, digest: str) -> None:
        """Forget a set and the names that mean it; its rows stay."""
        with self.changing():
            for name, meant in self.names().items():
                if meant == digest:
                    (self.root / "names" / f"{name}.json").unlink()
            shutil.rmtree(self.root / "sets" / digest, ignore_errors=True)


def _is_digest(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", name) is not None


def _write_columns(folder: Path, embeddings: EmbeddingSet) -> None:
    columns: dict[str, NDArray[Any]] = {
        "labels": np.ascontiguousarray(embeddings.labels, dtype="<i8"),
        "ids": pack(embeddings.ids),
    }
    clients: list[str] = []
    if embeddings.clients is not None:
        clients = sorted(set(embeddings.clients))
        codes = {client: code for code, client in enumerate(clients)}
        columns["clients"] = np.array([codes[client] for client in embeddings.clients], dtype="<i8")
    if embeddings.names is not None:
        columns["names"], columns["name_ends"] = _texts(embeddings.names)
    if embeddings.masked is not None:
        columns["masked"] = embeddings.masked.astype(np.uint8)
    ordered = dict(sorted(columns.items(), key=lambda column: -column[1].dtype.itemsize))  # eight-byte columns aligned
    tensors = {name: (array.shape, array.dtype, [array]) for name, array in ordered.items()}
    name = write_tensors(folder, tensors, {"schema": SCHEMA})
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
            "class_names": list(embeddings.class_names),
            "clients": clients,
            "skipped": [asdict(skipped) for skipped in embeddings.skipped],
        },
    )


def assemble(note: dict[str, Any], columns: dict[str, NDArray[Any]], *, spec: Any, rows: Rows) -> EmbeddingSet:
    """An EmbeddingSet from what is kept of it and its rows."""
    clients, names, masked = columns.get("clients"), columns.get("names"), columns.get("masked")
    try:
        return EmbeddingSet(
            spec=spec,
            embeddings=rows,
            labels=columns["labels"],
            ids=HexIds(columns["ids"]),
            class_names=tuple(note["class_names"]),
            clients=None if clients is None else Coded(clients, note["clients"]),
            names=None if names is None else Texts(names, columns["name_ends"]),
            masked=None if masked is None else masked.astype(bool),
            skipped=tuple(Skipped(**skipped) for skipped in note["skipped"]),
            source=note["source"],
        )
    except (KeyError, TypeError) as error:
        raise CorruptError(f"A set's description is damaged: {error}. Run `probekit cache verify`.") from error


class Coded(Sequence[str]):
    """A column of few different texts, kept as numbers."""

    def __init__(self, codes: NDArray[np.int64], texts: Sequence[str]) -> None:
        self.codes, self.texts = codes, list(texts)

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[str]: ...
    def __getitem__(self, row: int | slice) -> str | Sequence[str]:
        return Coded(self.codes[row], self.texts) if isinstance(row, slice) else self.texts[int(self.codes[row])]
