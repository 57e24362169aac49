"""Sets in places that are reached over a network: buckets, hubs, other people's servers.

There lie the files of an exported set and, written last, `probekit-files.json` with the size and the sha256 of each:
what is not listed is not read, and a place without the list is not complete. A file that is there whole is not sent or
fetched again, so that the same command goes on where one was interrupted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from probekit.cache.disk import DiskStore
from probekit.cache.removal import INCOMING
from probekit.cache.transfer import bring, export
from probekit.errors import CorruptError, HostileError, InputError, NotFoundError, OfflineError
from probekit.files import MOST_BYTES, checked_digest, make_folder, new_file, parsed, remove_folder, sha256_file
from probekit.values import Json, canonical

MANIFEST = "probekit-files.json"
BY_ARROW = {"s3": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfss"}
UNREACHED = ("ConnectError", "ConnectTimeout", "ReadTimeout")
"""What the hub's client raises besides errors of the system."""
BLOCK = 1 << 22
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ -]*")
_HUB = re.compile(r"hf:(?P<name>[\w.-]+/[\w.-]+)")


def local_path(text: str) -> Path | None:
    """The folder of this machine that a text names, by its path or its URL; None: it is elsewhere."""
    elsewhere = "://" in text or text.startswith("hf:")
    return Path(text.removeprefix("file://")) if text.startswith("file://") or not elsewhere else None


@dataclass(frozen=True)
class Sent:
    """What an export did: the set's digest, files sent now, and those that were there."""

    digest: str
    sent: int
    there: int


def export_to(store: DiskStore, name: str, url: str, *, form: str = "folder") -> Sent:
    """Send a set to a URL, or to a data set repository of the hub (`hf:OWNER/NAME`)."""
    with tempfile.TemporaryDirectory(prefix="probekit-export-") as place:
        folder = Path(place) / "set"
        digest = export(store, name, folder, form=form)
        files = _files(folder)
        if url.startswith("hf:"):
            return Sent(digest, _to_hub(folder, url), 0)
        with _reached(url):
            away = Remote.at(url)
            missing = [path for path, (size, _) in files.items() if away.size(path) != size]
            # texts may have changed and kept their length; they are small
            missing += [path for path in files if path.endswith(".json") and path not in missing]
            for path in missing:
                away.send(folder / path, path)
            away.write(MANIFEST, canonical({"files": {path: list(said) for path, said in files.items()}}).encode())
        return Sent(digest, len(missing), len(files) - len(missing))


def import_from(store: DiskStore, url: str, *, name: str | None = None, restore_erased: bool = False) -> str:
    """Add the set at a URL to a cache; gives its name. Every file is checked when it arrives."""
    with _reached(url):
        away = Remote.at(url)
        listed = away.read(MANIFEST)
        if listed is None:
            raise NotFoundError(f"{shown(url)} holds no exported set, or not all of it: {MANIFEST} is missing.")
        files = _manifest(listed, url)
        place = store.root / INCOMING / hashlib.sha256(url.encode() + listed).hexdigest()[:16]
        for path, (size, sha256) in files.items():
            target = place / path
            if not (target.is_file() and target.stat().st_size == size and sha256_file(target) == sha256):
                away.fetch(path, target, size, sha256)
    label = bring(store, place, name=name, restore_erased=restore_erased)
    remove_folder(place)
    return label


@dataclass(frozen=True)
class Remote:
    """A folder in a file system of fsspec."""

    system: Any
    folder: str
    url: str
    flat: bool
    """Whether folders need not be made."""

    @classmethod
    def at(cls, url: str) -> Remote:
        """What a URL names; a scheme whose package is not installed is refused by that package's name."""
        scheme = urlsplit(url).scheme
        if scheme in BY_ARROW:
            from fsspec.implementations.arrow import ArrowFSWrapper
            from pyarrow import fs

            system, folder = fs.FileSystem.from_uri(_with_endpoint(BY_ARROW[scheme] + url[len(scheme) :]))
            return cls(ArrowFSWrapper(system), folder.rstrip("/"), url, True)
        from fsspec.core import url_to_fs

        try:
            system, folder = url_to_fs(url)
        except ImportError as error:
            raise NotFoundError(f"{scheme}:// needs a package that is not installed here: {error}.") from error
        except ValueError as error:
            known = ", ".join(f"{one}://" for one in ("file", *BY_ARROW))
            raise InputError(
                f"{scheme}:// is no place that is known ({error}). Give hf:OWNER/NAME, {known}."
            ) from error
        return cls(system, folder.rstrip("/"), url, False)

    def size(self, path: str) -> int | None:
        """How many bytes a file has; None where there is none."""
        try:
            found = self.system.info(f"{self.folder}/{path}")
        except FileNotFoundError:
            return None
        return int(found["size"]) if found["type"] == "file" else None

    def read(self, path: str) -> bytes | None:
        """The bytes of a small file; None where there is none."""
        size = self.size(path)
        if size is None:
            return None
        if size > MOST_BYTES:
            raise HostileError(f"{path} at {shown(self.url)} has {size} bytes; {MOST_BYTES} are read. Export it again.")
        with self.system.open(f"{self.folder}/{path}", "rb") as handle:
            found: bytes = handle.read()
        return found

    def write(self, path: str, content: bytes) -> None:
        """Write a small file."""
        self._make_folder(path)
        with self.system.open(f"{self.folder}/{path}", "wb") as handle:
            handle.write(content)

    def send(self, source: Path, path: str) -> None:
        """Write a file from here."""
        self._make_folder(path)
        with source.open("rb") as own, self.system.open(f"{self.folder}/{path}", "wb") as handle:
            shutil.copyfileobj(own, handle, BLOCK)

    def fetch(self, path: str, target: Path, size: int, sha256: str) -> None:
        """Bring a file here, which must be the one that was listed."""
        if (there := self.size(path)) != size:
            raise CorruptError(f"{path} at {shown(self.url)} has {there} bytes, not {size}. Export the set again.")
        make_folder(target.parent)
        hasher = hashlib.sha256()
        with self.system.open(f"{self.folder}/{path}", "rb") as handle, new_file(target) as own:
            while block := handle.read(BLOCK):
                hasher.update(block)
                own.write(block)
            if hasher.hexdigest() != sha256:
                raise CorruptError(f"{path} at {shown(self.url)} is not what was exported. Export the set again.")

    def _make_folder(self, path: str) -> None:
        if not self.flat:
            self.system.makedirs(f"{self.folder}/{path}".rpartition("/")[0], exist_ok=True)


def shown(url: str) -> str:
    """A URL without what is secret in it."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _with_endpoint(url: str) -> str:
    """The URL of a bucket with the endpoint that the environment names, as other programs read it."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    parts = urlsplit(url)
    if parts.scheme != "s3" or not endpoint or "endpoint_override" in parse_qs(parts.query):
        return url
    where, region = urlsplit(endpoint), os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    more = f"scheme={where.scheme}&endpoint_override={quote(where.netloc, safe='')}&region={region or 'us-east-1'}"
    return f"{url}{'&' if parts.query else '?'}{more}"


def _files(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file of an exported folder that is not a lock: its size and its sha256."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): (path.stat().st_size, sha256_file(path)) for path in found}


def _manifest(content: bytes, url: str) -> dict[str, tuple[int, str]]:
    """The files that are listed, none of which leads out of its folder."""
    where = Path(MANIFEST)
    try:
        listed: dict[str, list[Json]] = parsed(content)["files"]
        found = {path: (int(str(size)), checked_digest(sha256, where)) for path, (size, sha256) in listed.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostileError(f"{MANIFEST} at {shown(url)} is not one that was written: {error}. Export again.") from error
    for path in found:
        if not all(_PART.fullmatch(part) for part in path.split("/")):
            raise HostileError(
                f"{MANIFEST} at {shown(url)} names {path!r}, which no export writes. Nothing was imported."
            )
    return found


def _to_hub(folder: Path, text: str) -> int:
    """Upload a folder as a data set repository; the hub does not take again what it has."""
    named = _HUB.fullmatch(text)
    if named is None:
        raise InputError(f"A repository of the hub is written hf:OWNER/NAME; found {text!r}.")
    with _reached(text):
        from huggingface_hub import HfApi

        hub, where = HfApi(), dict[str, Any](repo_id=named["name"], repo_type="dataset")
        hub.create_repo(**where, private=True, exist_ok=True)
        hub.upload_folder(**where, folder_path=folder, ignore_patterns=[".*", "**/.*"])
    return len(_files(folder))


@contextmanager
def _reached(url: str) -> Iterator[None]:
    """Turn what networks say into our words."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__name__ not in UNREACHED:
            raise
        said = " ".join(str(error).split())[:200]
        raise OfflineError(f"{shown(url)} cannot be reached or refuses: {said} Give the same command again.") from error
