"""Where Hugging Face's `datasets` finds a dataset, and what it says when it does not, in our words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from probekit.errors import InputError, NotFoundError, OfflineError, ProbekitError

BUILDERS = {f".{kind}": kind for kind in ("parquet", "arrow", "csv", "json")}
BUILDERS |= {".tsv": "csv", ".jsonl": "json", ".tar": "webdataset"}
HUB_NAME = re.compile(r"(?P<path>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?(:(?P<config>[^:]+))?")
NETWORK = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "huggingface_hub", "aiohttp")


@dataclass(frozen=True)
class Place:
    """Where a dataset is: a hub name, a local folder, or local files of one format."""

    name: str
    path: str
    config: str | None = None
    revision: str | None = None
    files: tuple[str, ...] = ()

    @property
    def is_saved(self) -> bool:
        """Whether `save_to_disk` wrote it."""
        marks = ("dataset_dict.json", "state.json")
        return not self.files and any((Path(self.path) / mark).is_file() for mark in marks)

    @property
    def folder(self) -> Path | None:
        """The local folder that relative paths in its columns start from."""
        return Path(self.files[0]).parent if self.files else Path(self.path) if Path(self.path).is_dir() else None


def locate(name: str) -> Place:
    """What a name means. What exists on disk wins, the whole name first: a path may hold colons."""
    before, colon, after = name.rpartition(":")
    for path, config in ((name, None), (before, after or None)) if colon else ((name, None),):
        local = Path(path).expanduser().absolute()
        if path and local.is_dir():
            return Place(name, str(local), config)
        files = (str(local),) if local.is_file() else _matches(local)
        if path and files and config is None:
            return Place(name, _builder(files), files=files)
    if re.match(r"[/.~]|\w:[\\/]|\w+:\\", name) or _suffix(name) in BUILDERS or set("*?[\\") & set(name):
        raise NotFoundError(f"There is no file or folder {name!r}. Correct the path, or give a name of the hub.")
    match = HUB_NAME.fullmatch(name)
    if match is None or match["path"] in {*BUILDERS.values(), "imagefolder", "text", "pandas"}:
        raise InputError(f"{name!r} is no dataset: write hf:NAME, hf:NAME:CONFIG or the path of a folder or file.")
    return Place(name, match["path"], match["config"], match["revision"])


def _matches(pattern: Path) -> tuple[str, ...]:
    return tuple(sorted(str(file) for file in Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))))


def _suffix(path: str) -> str:
    return Path(path.lower().removesuffix(".gz")).suffix


def _builder(files: Sequence[str]) -> str:
    found = {BUILDERS.get(_suffix(file)) for file in files}
    builder = found.pop()
    if found or builder is None:
        known, some = ", ".join(BUILDERS), ", ".join(files[:3])
        raise InputError(f"Files of one known format are wanted ({known}); found {some}. Name such files, or a folder.")
    return builder


def read(place: Place, *, streaming: bool, split: str | None) -> Any:
    """What the library makes of a place, with its errors in our words."""
    extra: dict[str, Any] = {"data_files": list(place.files)} if place.files else {}
    if place.files and _suffix(place.files[0]) == ".tsv":
        extra["sep"] = "\t"
    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        if place.is_saved:
            return datasets.load_from_disk(place.path)
        return datasets.load_dataset(
            place.path, place.config, revision=place.revision, split=split, streaming=streaming, **extra
        )
    except Exception as error:
        ours = _translation(place, error)
        if ours is None:
            raise
        raise ours from error
    finally:
        if bars:
            datasets.enable_progress_bars()


def _translation(place: Place, error: Exception) -> ProbekitError | None:
    """Our error for one of the library's; None for a mistake of its own."""
    text = " ".join(str(error.__cause__ or error).split())
    if isinstance(error, datasets.exceptions.DatasetNotFoundError):
        return NotFoundError(f"There is no dataset {place.name!r} to be had: {error}")
    if isinstance(error, ConnectionError) or type(error).__module__.partition(".")[0] in NETWORK:
        remedy = "Load it once where there is a network, or give a local path."
        return OfflineError(f"{place.name!r} is not on this machine and cannot be downloaded: {text}. {remedy}")
    if "BuilderConfig" in text and "not found" in text:
        return NotFoundError(f"{place.path} has no configuration {place.config!r}: {text}.")
    if "Config name is missing" in text:
        return InputError(f"Choose a configuration, hf:{place.path}:CONFIG: {text}")
    if "Unknown split" in text:
        return NotFoundError(f"{place.name}: {text}")
    if isinstance(error, datasets.exceptions.DatasetsError | ValueError | OSError | RuntimeError | pa.ArrowException):
        return InputError(f"{place.name!r} cannot be read as a dataset: {text}")
    return None
