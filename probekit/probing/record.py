"""A file of finished cells: a JSON line each, appended, found again by what determines the cell."""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from probekit.errors import CorruptError, InputError
from probekit.files import storage_errors
from probekit.probing.cells import IN_MEMORY, Cell
from probekit.probing.evaluate import Evaluation, WrongRow
from probekit.probing.few_shot import FewShot
from probekit.probing.reliability import ConfidenceBin

HITS = "hits"
LINE_START = b'{"key": '


class Record:
    """The cells of a file by their keys; a last line that was cut off is left out."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise InputError(
                f"record (--record) must be a file of JSON lines; {path} is a folder. Name a file."
            )
        self.path = path
        self._documents: dict[str, dict[str, Any]] = {}
        content = path.read_bytes() if path.exists() else b""
        *lines, cut_off = content.split(b"\n")
        if not cut_off.startswith(LINE_START[: len(cut_off)]):
            lines.append(cut_off)
        for number, line in enumerate(lines, 1):
            try:
                document = json.loads(line)
                self._documents[document["key"]] = document["cell"]
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptError(
                    f"Line {number} of {path} is no finished cell ({error}). Remove it, or choose "
                    "another file (--record)."
                ) from error

    def cell(self, key: str) -> Cell | None:
        """Without its fitted head, but with its hits."""
        document = self._documents.get(key)
        return None if document is None else _read_cell(document)

    def add(self, key: str, cell: Cell) -> None:
        """Append a line and sync it."""
        document = _write_cell(cell)
        line = json.dumps({"key": key, "cell": document}, ensure_ascii=False, allow_nan=False)
        with storage_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self._documents[key] = document


def _write_cell(cell: Cell) -> dict[str, Any]:
    document = asdict(cell.without_rows())
    for name in IN_MEMORY:
        del document[name]
    if cell.evaluation is not None and cell.evaluation.confusion is not None:
        document["evaluation"]["confusion"] = cell.evaluation.confusion.tolist()
    if cell.hits is not None:
        packed = b64encode(np.packbits(cell.hits).tobytes()).decode()
        document[HITS] = {"count": len(cell.hits), "bits": packed}
    return document


def _read_cell(document: Mapping[str, Any]) -> Cell:
    fields = dict(document)
    evaluation = fields["evaluation"]
    if evaluation is not None:
        evaluation = msgspec.convert(evaluation, Evaluation, dec_hook=_read_array)
    hits = fields.pop(HITS, None)
    if hits is not None:
        packed = np.frombuffer(b64decode(hits["bits"]), np.uint8)
        hits = np.unpackbits(packed, count=hits["count"]).astype(bool)
    fields |= {
        "evaluation": evaluation,
        "hits": hits,
        "few_shot": msgspec.convert(fields["few_shot"], tuple[FewShot, ...]),
        "most_wrong": msgspec.convert(fields["most_wrong"], tuple[WrongRow, ...]),
        "reliability": msgspec.convert(fields["reliability"], tuple[ConfidenceBin, ...]),
        "missing_classes": tuple(fields["missing_classes"]),
        "notes": tuple(fields["notes"]),
    }
    return Cell(**fields)


def _read_array(kind: type, value: Any) -> Any:
    return np.array(value, np.int64)
